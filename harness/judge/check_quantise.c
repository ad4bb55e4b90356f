/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/judge/check_quantise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/faults/quantise_as.h"
#include "harness/judge/operators.h"
#include "harness/run/hash.h"
#include "quant/quant.h"
#include "reference/reference.h"

uint64_t array_wrong(const struct quantise_check *check, const struct array_check *array)
{
    return array->mismatching - (check->open_silu ? array->admissible : 0);
}

uint8_t quantised_code(const struct gb_quantisation *q, const void *codes, uint32_t row, uint32_t column)
{
    const uint8_t *bytes = codes;
    size_t at = (size_t)row * q->columns + column;
    if (q->quantiser.element != GB_E2M1)
        return bytes[at];
    return column % 2 ? bytes[at / 2] >> 4 : bytes[at / 2] & 15;
}

size_t quantised_scale_place(const struct gb_quantisation *q, uint32_t row, uint32_t block)
{
    return q->layout == GB_SCALES_LINEAR ? (size_t)row * (q->columns / q->quantiser.block_columns) + block
                                         : (size_t)block * q->rows + row;
}

static uint32_t scale_bits(const struct gb_quantisation *q, const void *scales, uint32_t row, uint32_t block)
{
    size_t place = quantised_scale_place(q, row, block);
    uint32_t bits = ((const uint8_t *)scales)[q->quantiser.scale == GB_SCALE_FP32 ? 0 : place];
    if (q->quantiser.scale == GB_SCALE_FP32)
        memcpy(&bits, (const float *)scales + place, sizeof bits);
    return bits;
}

static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static bool same_scale(const struct gb_quantisation *q, uint32_t a, uint32_t b)
{
    return a == b || (q->quantiser.scale == GB_SCALE_FP32 && isnan(of_bits(a)) && isnan(of_bits(b)));
}

static float number_of(enum gb_element_format element, uint8_t code)
{
    static const enum gb_codec codecs[] = {
        [GB_E2M1] = GB_CODEC_E2M1, [GB_E4M3] = GB_CODEC_E4M3, [GB_E4M3FNUZ] = GB_CODEC_E4M3FNUZ,
        [GB_E5M2] = GB_CODEC_E5M2, [GB_E3M2] = GB_CODEC_E3M2, [GB_E2M3] = GB_CODEC_E2M3};
    return element == GB_INT8 ? (float)(int8_t)code : gb_codec_decode(codecs[element], code);
}

/* What values a subject's may be whose SiLU is some published evaluation in FP32: [columns] of a row. */
struct possible {
    float *low, *high;
};

static float rounded(enum gb_format format, float value)
{
    return format == GB_FP16   ? gb_fp16_decode(gb_fp16_encode(value))
           : format == GB_BF16 ? gb_bf16_decode(gb_bf16_encode(value))
                               : value;
}

static float input_at(const struct gb_fixture *f, size_t i)
{
    return f->quantisation.input == GB_FP16 ? gb_fp16_decode(f->values[i]) : gb_bf16_decode((gb_bf16){f->values[i]});
}

/* values: the reference's of this row. */
static void find_possible(const struct gb_fixture *f, uint32_t row, const float *values, const struct possible *p)
{
    const struct gb_quantisation *q = &f->quantisation;
    for (uint32_t c = 0; c < q->columns; c++) {
        size_t at = (size_t)row * q->input_columns + c;
        float gate = input_at(f, at), up = input_at(f, at + q->columns);
        p->low[c] = p->high[c] = values[c];
        if (!isfinite(gate) || !isfinite(up) || !gb_quantisation_gated(q))
            continue;
        double silu = (double)gate / (1.0 + exp(-(double)gate)), error = gb_silu_error((double)gate);
        float a = nextafterf((float)(silu - error), -INFINITY), b = nextafterf((float)(silu + error), INFINITY);
        a = rounded(q->product, rounded(q->activated, a) * up);
        b = rounded(q->product, rounded(q->activated, b) * up);
        p->low[c] = fminf(fminf(a, b), values[c]);
        p->high[c] = fmaxf(fmaxf(a, b), values[c]);
    }
}

/* A block's scale at both ends of what its largest magnitude may be. */
struct steps {
    bool open; /* there is more than one possibility */
    struct gb_quantiser_step low, high;
};

static float bounded(const struct gb_quantisation *q, float amax)
{
    const struct gb_quantiser *rules = &q->quantiser;
    amax = fmaxf(amax, rules->amax_start);
    return rules->bound == GB_BOUND_AMAX ? fminf(amax, q->bound) : amax;
}

static struct steps find_steps(const struct gb_quantisation *q, const struct possible *p, uint32_t first)
{
    const struct gb_quantiser *rules = &q->quantiser;
    struct steps s = {.open = rules->four_over_six == GB_SIX};
    float low = 0.0f, high = 0.0f;
    for (uint32_t c = first; c < first + rules->block_columns; c++) {
        float a = fabsf(p->low[c]), b = fabsf(p->high[c]);
        s.open &= isfinite(a) && isfinite(b);
        low = fmaxf(low, fminf(a, b));
        high = fmaxf(high, fmaxf(a, b));
    }
    if (s.open) {
        s.low = gb_quantiser_find_step(rules, bounded(q, low), q->global_scale, q->bound);
        s.high = gb_quantiser_find_step(rules, bounded(q, high), q->global_scale, q->bound);
    }
    return s;
}

/* Scales grow with the largest magnitude. */
static bool scale_admissible(const struct gb_quantisation *q, const struct steps *s, uint32_t got)
{
    if (!s->open)
        return false;
    if (q->quantiser.scale == GB_SCALE_FP32)
        return of_bits(got) >= s->low.scale && of_bits(got) <= s->high.scale;
    return got >= s->low.code && got <= s->high.code;
}

/* Codes grow with the value and, in magnitude, fall with the scale: the ends say between which. got_scale: the
 * subject's, which one of the ends may be out of question for. */
static bool code_admissible(const struct gb_quantisation *q, const struct steps *s, const struct possible *p,
                            uint32_t column, uint8_t got, uint32_t got_scale)
{
    const struct gb_quantiser *rules = &q->quantiser;
    const struct gb_quantiser_step *steps[] = {&s->low, &s->high};
    float number = number_of(rules->element, got), least = INFINITY, most = -INFINITY;
    bool narrow = rules->scale != GB_SCALE_FP32, minus = false, plus = false;
    if (!s->open || isnan(number))
        return false;
    for (int i = 0; i < 2; i++) {
        if (narrow && s->low.code != s->high.code && got_scale != steps[i]->code &&
            (got_scale == s->low.code || got_scale == s->high.code))
            continue;
        float a = gb_quantiser_element(rules, steps[i], p->low[column]);
        float b = gb_quantiser_element(rules, steps[i], p->high[column]);
        least = fminf(least, fminf(a, b));
        most = fmaxf(most, fmaxf(a, b));
        minus |= signbit(a) || signbit(b);
        plus |= !signbit(a) || !signbit(b);
    }
    return number >= least && number <= most && (number != 0.0f || (signbit(number) ? minus : plus));
}

static void compare(struct array_check *a, bool differs, bool admissible, uint32_t row, uint32_t column, uint32_t got,
                    uint32_t reference)
{
    a->compared++;
    if (!differs)
        return;
    if (a->mismatching == 0 || (a->mismatching == a->admissible && !admissible)) {
        a->row = row;
        a->column = column;
        a->got = got;
        a->reference = reference;
    }
    a->mismatching++;
    a->admissible += admissible;
}

static void check_row(const struct gb_quantisation *q, uint32_t row, const struct possible *p,
                      const struct gb_outputs *reference, const struct gb_outputs *outputs, struct quantise_check *k)
{
    uint32_t block = q->quantiser.block_columns;
    for (uint32_t b = 0; b < q->columns / block; b++) {
        struct steps s = {.open = false};
        uint32_t got = scale_bits(q, outputs->scales, row, b), expected = scale_bits(q, reference->scales, row, b);
        bool differs = !same_scale(q, got, expected);
        if (p->low)
            s = find_steps(q, p, b * block);
        compare(&k->scales, differs, differs && scale_admissible(q, &s, got), row, b * block, got, expected);
        for (uint32_t c = b * block; c < (b + 1) * block; c++) {
            uint8_t theirs = quantised_code(q, outputs->codes, row, c),
                    ours = quantised_code(q, reference->codes, row, c);
            k->only_zeros &= number_of(q->quantiser.element, ours) == 0.0f;
            compare(&k->codes, theirs != ours, theirs != ours && code_admissible(q, &s, p, c, theirs, got), row, c,
                    theirs, ours);
        }
    }
}

enum gb_status check_quantise(const struct gb_fixture *f, const struct gb_outputs *reference,
                              const struct gb_outputs *outputs, bool open_silu, struct quantise_check *k,
                              struct gb_error *error)
{
    const struct gb_quantisation q = gb_fixture_quantisation(f, outputs->shape.tokens);
    struct gb_arguments a = {.size = sizeof a, .quantise = &q, .values = f->values};
    struct gb_code_arrays arrays = gb_code_arrays(&q);
    bool gated = gb_quantisation_gated(&q);
    size_t row = sizeof(float) * q.columns;
    float *values = gated ? malloc(row * q.rows) : NULL; /* [rows, columns] */
    struct possible p = {gated ? malloc(row) : NULL, gated ? malloc(row) : NULL};
    *k = (struct quantise_check){.open_silu = open_silu && gated,
                                 .only_zeros = true,
                                 .block = q.quantiser.block_columns,
                                 .code_digits = q.quantiser.element == GB_E2M1 ? 1 : 2,
                                 .scale_digits = 2 * arrays.scale_bytes};
    enum gb_status status = gated && (!values || !p.low || !p.high)
                                ? gb_fail(error, GB_ENOMEM, "no memory to check %u rows", q.rows)
                                : GB_OK;
    if (status == GB_OK && gated)
        status = gb_reference_quantised_values(&a, f->operation, values, error);
    for (uint32_t r = 0; status == GB_OK && r < q.rows; r++) {
        if (gated)
            find_possible(f, r, values + (size_t)r * q.columns, &p);
        check_row(&q, r, &p, reference, outputs, k);
    }
    hash_sha256(outputs->codes, arrays.codes, k->codes_sha256);
    hash_sha256(outputs->scales, arrays.scales, k->scales_sha256);
    free(values);
    free(p.low);
    free(p.high);
    return status;
}

uint64_t quantise_differences(const struct gb_outputs *a, const struct gb_outputs *b)
{
    const struct gb_quantisation *q = &b->quantisation;
    uint32_t block = q->quantiser.block_columns;
    uint64_t count = 0;
    for (uint32_t row = 0; row < q->rows; row++) {
        for (uint32_t i = 0; i < q->columns / block; i++)
            count += !same_scale(q, scale_bits(q, a->scales, row, i), scale_bits(q, b->scales, row, i));
        for (uint32_t c = 0; c < q->columns; c++)
            count += quantised_code(q, a->codes, row, c) != quantised_code(q, b->codes, row, c);
    }
    return count;
}

static enum gb_status baseline_of_rows(struct baselines *all, const struct gb_kernel *kernel, uint32_t tokens,
                                       struct baseline **baseline, struct gb_error *error)
{
    (void)kernel;
    return baselines_get_rows(all, tokens, quantise_reference, baseline, error);
}

/* "codes: 3 of 64 differ from the reference; first at row 1, column 17, block 1: 0x5, reference 0x4" */
static void worsen(struct case_result *j, const char *name, const struct array_check *a, uint64_t wrong, uint32_t block,
                   uint32_t digits)
{
    case_worsen(j, VERDICT_FAIL,
                "%s: %llu of %llu differ from the reference; first at row %u, column %u, block %u: 0x%0*x, reference "
                "0x%0*x",
                name, (unsigned long long)wrong, (unsigned long long)a->compared, a->row, a->column, a->column / block,
                (int)digits, a->got, (int)digits, a->reference);
}

static enum gb_status evaluate_quantise(struct baseline *b, const struct gb_kernel *kernel,
                                        const struct gb_outputs *outputs, const struct policy *policy,
                                        struct case_result *j, struct gb_error *error)
{
    struct quantise_check *k = &j->quantise;
    (void)policy; /* bits decide */
    enum gb_status status = check_quantise(b->fixture, b->reference, outputs, kernel->flags & GB_OPEN_SILU, k, error);
    if (status != GB_OK)
        return status;
    uint64_t codes = array_wrong(k, &k->codes), scales = array_wrong(k, &k->scales);
    /* What is wrong first in a row is said: a scale before its block's codes. */
    bool scale_first = scales && (!codes || k->scales.row < k->codes.row ||
                                  (k->scales.row == k->codes.row && k->scales.column <= k->codes.column));
    if (scale_first)
        worsen(j, "scales", &k->scales, scales, k->block, k->scale_digits);
    if (codes)
        worsen(j, "codes", &k->codes, codes, k->block, k->code_digits);
    if (k->only_zeros)
        case_worsen(j, VERDICT_VACUOUS, "every code of the reference is zero, so nothing was verified");
    j->judged = j->quantiser = true;
    return GB_OK;
}

static void injected_quantise(const struct gb_outputs *outputs, const struct gb_outputs *clean,
                              const struct case_result *j, struct injected_result *r)
{
    const struct array_check *arrays[] = {&j->quantise.codes, &j->quantise.scales};
    static const char *const names[] = {"codes", "scales"};
    (void)outputs;
    (void)clean;
    for (int i = 0; i < 2; i++) {
        r->figure[r->figures].name = names[i];
        r->figure[r->figures++].count = arrays[i]->mismatching;
        if (array_wrong(&j->quantise, arrays[i]))
            r->seen_by[r->seen++] = names[i];
    }
}

const struct operator_check operator_check_quantise = {GB_QUANTISE, baseline_of_rows, evaluate_quantise,
                                                       injected_quantise};
const struct operator_check operator_check_silu_mul_quantise = {GB_SILU_MUL_QUANTISE, baseline_of_rows,
                                                                evaluate_quantise, injected_quantise};
