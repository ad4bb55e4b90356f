/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/explain/altered_row.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/element_from.h"
#include "quant/multiversion.h"
#include "quant/quant.h"

/* The bits of an exact value of one type, read as another type's: E4M3 as E5M2, bf16 as FP16, E2M1 as a number with a
 * sign; others stay. */
static float read_as(float value, enum gb_format format, enum finding_type type)
{
    if (format == GB_BF16 && type == FINDING_FP16)
        return gb_fp16_decode(gb_bf16_encode(value).bits);
    if ((format == GB_MXFP8 || format == GB_FP8_BLOCK) && type == FINDING_E5M2)
        return gb_e5m2_decode((gb_e5m2){gb_e4m3_encode(value).bits});
    if (gb_row_code_bytes(format, 2) == 1 && type == FINDING_INTEGER) {
        const uint32_t code = gb_e2m1_encode(value).bits;
        return code & 8u ? -(float)(code & 7u) : (float)(code & 7u);
    }
    return value;
}

static float power_of(float value)
{
    return value == 0.0f || !isfinite(value) ? value : copysignf(ldexpf(1.0f, ilogbf(value)), value);
}

static uint32_t around(uint32_t index, int32_t offset, uint32_t size)
{
    int64_t moved = ((int64_t)index + offset) % (int64_t)size;
    return (uint32_t)(moved < 0 ? moved + (int64_t)size : moved);
}

bool altered_new(const struct gb_weights *w, const struct finding *f, struct altered *a)
{
    const uint32_t K = w->columns, block = gb_format_block(w->format);
    *a = (struct altered){.weights = w, .finding = f, .blocks = (K + block - 1) / block};
    const uint32_t count = f->operand == FINDING_BLOCKS ? a->blocks : K;
    a->from = malloc(K * sizeof *a->from);
    a->taken = malloc(K * sizeof *a->taken);
    a->values = malloc(8 * (size_t)K * sizeof *a->values);
    for (uint32_t i = 0; a->from && i < count; i++)
        a->from[i] = (uint32_t)element_from(f, count, i);
    for (uint32_t k = 0; a->taken && k < K; k++)
        a->taken[k] = finding_axis_has(&f->k, k);
    return a->from && a->taken && a->values;
}

void altered_free(struct altered *a)
{
    free(a->from);
    free(a->taken);
    free(a->values);
}

/* Codes or scales of a row under an effect that takes none of another place. false: it does. */
static bool alter_each(const struct finding *f, enum gb_format format, const float *own, uint32_t count, float *made)
{
    const float amount = (float)f->amount;
    for (uint32_t i = 0; i < count; i++)
        switch (f->effect) {
        case FINDING_FACTOR:
            made[i] = amount * own[i];
            break;
        case FINDING_CONSTANT:
            made[i] = amount;
            break;
        case FINDING_SATURATE:
            made[i] = fminf(fmaxf(own[i], -amount), amount);
            break;
        case FINDING_READ:
            made[i] = read_as(own[i], format, f->type);
            break;
        case FINDING_POWER:
            made[i] = power_of(own[i]);
            break;
        case FINDING_SQUARE:
            made[i] = own[i] * fabsf(own[i]);
            break;
        case FINDING_NEGATIVE:
            made[i] = fabsf(own[i]);
            break;
        default:
            return false;
        }
    return true;
}

/* Codes or scales of a row under the effect. other: the same of the row that the effect names. */
static void alter(const struct altered *a, const float *own, const float *other, uint32_t count, float *made)
{
    if (alter_each(a->finding, a->weights->format, own, count, made))
        return;
    if (other)
        memcpy(made, other, count * sizeof *made);
    for (uint32_t i = 0; !other && i < count; i++)
        made[i] = own[a->from[i]];
}

/* Whether the effect names another row, which. */
static bool names_row(const struct altered *a, uint32_t *expert, uint32_t *row)
{
    const struct gb_weights *w = a->weights;
    const struct finding *f = a->finding;
    if (f->effect == FINDING_HALF)
        *row = (*row + w->rows / 2) % w->rows;
    if (f->effect == FINDING_ROW_XOR && (*row ^ (uint32_t)f->offset) < w->rows)
        *row ^= (uint32_t)f->offset;
    if (f->effect == FINDING_ROW)
        *row = around(*row, f->offset, w->rows);
    if (f->effect == FINDING_EXPERT)
        *expert = around(*expert, f->offset, w->experts);
    return f->effect == FINDING_HALF || f->effect == FINDING_ROW_XOR || f->effect == FINDING_ROW ||
           f->effect == FINDING_EXPERT;
}

/* Scales of a row where tiles of them are read as their transpose; those of no whole tile stay. */
static void transpose(const struct altered *a, uint32_t expert, uint32_t row, float *codes, float *others,
                      const float *own, float *made)
{
    const uint32_t n = (uint32_t)a->finding->offset, tile = row / n * n, whole = a->blocks / n * n;
    memcpy(made, own, a->blocks * sizeof *made);
    for (uint32_t i = 0; i < n && tile + n <= a->weights->rows; i++) {
        gb_weights_codes(a->weights, expert, tile + i, codes, others);
        for (uint32_t b = i; b < whole; b += n)
            made[b] = others[b / n * n + row % n];
    }
}

/* each: [count], the scale of each element. */
static void spread(const float *scales, uint32_t block, uint32_t count, float *each)
{
    for (uint32_t b = 0, k = 0; k < count; b++)
        for (const uint32_t end = count - k < block ? count : k + block; k < end; k++)
            each[k] = scales[b];
}

/* What codes times scales become less what they are. */
GB_VECTOR_CLONES static void subtract(const float *new_codes, const float *new_scales, const float *codes,
                                      const float *scales, double global, uint32_t count, double *added)
{
    for (uint32_t k = 0; k < count; k++)
        added[k] = ((double)new_codes[k] * (double)new_scales[k] - (double)codes[k] * (double)scales[k]) * global;
}

void altered_row(const struct altered *a, uint32_t expert, uint32_t row, double *added)
{
    const struct gb_weights *w = a->weights;
    const enum finding_operand operand = a->finding->operand;
    const uint32_t K = w->columns, block = gb_format_block(w->format);
    float *codes = a->values, *scales = codes + K, *other_codes = scales + K, *other_scales = other_codes + K;
    float *new_codes = other_scales + K, *new_scales = new_codes + K, *each = new_scales + K, *new_each = each + K;
    const double global = (double)gb_weights_global(w, expert, row);
    uint32_t of = expert, from = row;
    const bool other = names_row(a, &of, &from);
    gb_weights_codes(w, expert, row, codes, scales);
    if (other)
        gb_weights_codes(w, of, from, other_codes, other_scales);
    if (operand == FINDING_CODES)
        alter(a, codes, other ? other_codes : NULL, K, new_codes);
    if (a->finding->effect == FINDING_TRANSPOSED)
        transpose(a, expert, row, other_codes, other_scales, scales, new_scales);
    else if (operand == FINDING_BLOCKS)
        alter(a, scales, other ? other_scales : NULL, a->blocks, new_scales);
    spread(scales, block, K, each);
    if (operand == FINDING_BLOCKS)
        spread(new_scales, block, K, new_each);
    for (uint32_t k = 0; operand == FINDING_WEIGHTS && k < K; k++) {
        new_codes[k] = codes[a->from[k]];
        new_each[k] = each[a->from[k]];
    }
    subtract(operand == FINDING_BLOCKS ? codes : new_codes, operand == FINDING_CODES ? each : new_each, codes, each,
             global, K, added);
    for (uint32_t k = 0; a->finding->k.kind != AXIS_ALL && k < K; k++)
        added[k] = a->taken[k] ? added[k] : 0.0;
}
