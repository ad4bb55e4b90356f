/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/explain/altered_row.h"

#include <math.h>
#include <string.h>

#include "harness/explain/effects.h"
#include "quant/quant.h"

/* The bits of an exact value of one type, read as another type's: E4M3 as E5M2, bf16 as FP16, E5M2 for E8M0's
 * neighbours has no meaning and stays. */
static float read_as(float value, enum gb_format format, enum finding_type type)
{
    if (format == GB_BF16 && type == FINDING_FP16)
        return gb_fp16_decode(gb_bf16_encode(value).bits);
    if ((format == GB_MXFP8 || format == GB_FP8_BLOCK) && type == FINDING_E5M2)
        return gb_e5m2_decode((gb_e5m2){gb_e4m3_encode(value).bits});
    return value;
}

static float power_of(float value)
{
    return value == 0.0f || !isfinite(value) ? value : copysignf(ldexpf(1.0f, ilogbf(value)), value);
}

/* Element i of `count` under the effect. other: the same of the row that the effect names. */
static float altered(const struct finding *f, enum gb_format format, const float *own, const float *other,
                     uint32_t count, uint32_t i)
{
    switch (f->effect) {
    case FINDING_ROW:
    case FINDING_ROW_XOR:
    case FINDING_EXPERT:
        return other[i];
    case FINDING_FACTOR:
        return (float)f->amount * own[i];
    case FINDING_READ:
        return read_as(own[i], format, f->type);
    case FINDING_POWER:
        return power_of(own[i]);
    default:
        return own[element_from(f, count, i)] * (f->effect == FINDING_NEGATIVE && own[i] < 0.0f ? -1.0f : 1.0f);
    }
}

static uint32_t around(uint32_t index, int32_t offset, uint32_t size)
{
    int64_t moved = ((int64_t)index + offset) % (int64_t)size;
    return (uint32_t)(moved < 0 ? moved + (int64_t)size : moved);
}

void altered_row(const struct gb_weights *w, const struct finding *f, uint32_t expert, uint32_t row, float *scratch,
                 double *added)
{
    const uint32_t K = w->columns, block = gb_format_block(w->format), blocks = (K + block - 1) / block;
    float *codes = scratch, *scales = codes + K, *other_codes = scales + K, *other_scales = other_codes + K;
    uint32_t from = row, of = expert;
    if (f->effect == FINDING_ROW)
        from = around(row, f->offset, w->rows);
    if (f->effect == FINDING_ROW_XOR && (row ^ (uint32_t)f->offset) < w->rows)
        from = row ^ (uint32_t)f->offset;
    if (f->effect == FINDING_EXPERT)
        of = around(expert, f->offset, w->experts);
    gb_weights_codes(w, expert, row, codes, scales);
    gb_weights_codes(w, of, from, other_codes, other_scales);
    double global = (double)gb_weights_global(w, expert, row);
    for (uint32_t k = 0; k < K; k++) {
        double own = (double)codes[k] * (double)scales[k / block], made = own;
        size_t at = element_from(f, K, k);
        if (f->operand == FINDING_CODES)
            made = (double)altered(f, w->format, codes, other_codes, K, k) * (double)scales[k / block];
        else if (f->operand == FINDING_BLOCKS)
            made = (double)codes[k] * (double)altered(f, w->format, scales, other_scales, blocks, k / block);
        else
            made = (double)codes[at] * (double)scales[at / block];
        added[k] = finding_axis_has(&f->k, k) ? (made - own) * global : 0.0;
    }
}
