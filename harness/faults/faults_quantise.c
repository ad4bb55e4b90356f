/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/faults/faults_quantise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/faults/operators.h"
#include "harness/faults/quantise_as.h"
#include "quant/quant.h"
#include "reference/reference.h"

/* Mistaken rules. */

static bool truncated(struct gb_quantisation *q)
{
    bool rounds = q->quantiser.rounding != GB_TRUNCATE;
    q->quantiser.rounding = GB_TRUNCATE;
    return rounds;
}

static bool ties_to_zero(struct gb_quantisation *q)
{
    bool even = q->quantiser.rounding == GB_TIES_TO_EVEN;
    q->quantiser.rounding = GB_TIES_TO_ZERO;
    return even;
}

static bool amax_drops_nan(struct gb_quantisation *q)
{
    bool kept = q->quantiser.amax_nan != GB_AMAX_DROPS_NAN;
    q->quantiser.amax_nan = GB_AMAX_DROPS_NAN;
    return kept;
}

static bool amax_propagates_nan(struct gb_quantisation *q)
{
    bool dropped = q->quantiser.amax_nan != GB_AMAX_PROPAGATES_NAN;
    q->quantiser.amax_nan = GB_AMAX_PROPAGATES_NAN;
    return dropped;
}

/* E8M0: down where the recipe rounds up, and else up. */
static bool power_rounded_otherwise(struct gb_quantisation *q)
{
    enum gb_scale_rounding *r = &q->quantiser.scale_rounding;
    *r = *r == GB_SCALE_FLOOR ? GB_SCALE_CEIL : GB_SCALE_FLOOR;
    return q->quantiser.scale == GB_SCALE_E8M0;
}

static bool quotient_otherwise(struct gb_quantisation *q)
{
    static const enum gb_quotient other[] = {[GB_QUOTIENT_DIVIDE] = GB_QUOTIENT_RECIPROCAL,
                                             [GB_QUOTIENT_RECIPROCAL] = GB_QUOTIENT_DIVIDE,
                                             [GB_QUOTIENT_POWER] = GB_QUOTIENT_POWER,
                                             [GB_QUOTIENT_AMAX] = GB_QUOTIENT_DIVIDE,
                                             [GB_QUOTIENT_DIVIDE_PRODUCT] = GB_QUOTIENT_DECODE,
                                             [GB_QUOTIENT_DIVIDE_ENCODE] = GB_QUOTIENT_ENCODE_PRODUCT,
                                             [GB_QUOTIENT_ENCODE_PRODUCT] = GB_QUOTIENT_DIVIDE_ENCODE,
                                             [GB_QUOTIENT_ENCODE] = GB_QUOTIENT_DIVIDE_ENCODE,
                                             [GB_QUOTIENT_DECODE] = GB_QUOTIENT_DIVIDE_PRODUCT};
    enum gb_quotient before = q->quantiser.quotient;
    q->quantiser.quotient = other[before];
    return q->quantiser.quotient != before;
}

static bool ratio_otherwise(struct gb_quantisation *q)
{
    static const enum gb_ratio other[] = {
        [GB_RATIO_POWER] = GB_RATIO_POWER,
        [GB_RATIO_DIVIDE] = GB_RATIO_MULTIPLY,
        [GB_RATIO_MULTIPLY] = GB_RATIO_DIVIDE,
        [GB_RATIO_ENCODE_FIRST] = GB_RATIO_DIVIDE_ENCODE,
        [GB_RATIO_ENCODE_LAST] = GB_RATIO_DIVIDE_ENCODE,
        [GB_RATIO_DIVIDE_ENCODE] = GB_RATIO_ENCODE_LAST,
        [GB_RATIO_DIVIDE_PRODUCT] = GB_RATIO_DIVIDE_TWICE,
        [GB_RATIO_DIVIDE_TWICE] = GB_RATIO_DIVIDE_PRODUCT,
        [GB_RATIO_INVERSE] = GB_RATIO_DIVIDE,
    };
    enum gb_ratio before = q->quantiser.ratio;
    q->quantiser.ratio = other[before];
    return q->quantiser.ratio != before;
}

static bool minimum_dropped(struct gb_quantisation *q)
{
    struct gb_quantiser *r = &q->quantiser;
    bool had =
        r->amax_start > 0.0f || r->ratio_min > 0.0f || r->ratio_if_zero > 0.0f || r->scale_min || r->scale_if_zero;
    r->amax_start = r->ratio_min = r->ratio_if_zero = 0.0f;
    r->scale_min = r->scale_if_zero = 0;
    return had;
}

static bool bound_dropped(struct gb_quantisation *q)
{
    bool had = isfinite(q->bound);
    q->bound = INFINITY;
    return had;
}

static bool global_missing(struct gb_quantisation *q)
{
    bool had = q->quantiser.global != GB_GLOBAL_NONE && q->global_scale != 1.0f;
    q->global_scale = 1.0f;
    return had;
}

static bool global_inverted(struct gb_quantisation *q)
{
    bool had = q->quantiser.global != GB_GLOBAL_NONE && isnormal(1.0f / q->global_scale) && q->global_scale != 1.0f;
    q->global_scale = had ? 1.0f / q->global_scale : q->global_scale;
    return had;
}

static bool layout_otherwise(struct gb_quantisation *q)
{
    q->layout = q->layout == GB_SCALES_LINEAR ? GB_SCALES_TRANSPOSED : GB_SCALES_LINEAR;
    return q->rows > 1 && q->columns > q->quantiser.block_columns;
}

static bool silu_as(struct gb_quantisation *q, enum gb_silu_form form)
{
    bool other = gb_quantisation_gated(q) && q->silu != form;
    q->silu = form;
    return other;
}

static bool silu_exact(struct gb_quantisation *q)
{
    return silu_as(q, GB_SILU_EXACT);
}

static bool silu_divided(struct gb_quantisation *q)
{
    return silu_as(q, GB_SILU_DIVIDE);
}

static bool silu_by_reciprocal(struct gb_quantisation *q)
{
    return silu_as(q, GB_SILU_RECIPROCAL);
}

static bool activated_otherwise(struct gb_quantisation *q)
{
    q->activated = q->activated == GB_FP32 ? q->input : GB_FP32;
    return gb_quantisation_gated(q);
}

static bool product_otherwise(struct gb_quantisation *q)
{
    q->product = q->product == GB_FP32 ? q->input : GB_FP32;
    return gb_quantisation_gated(q);
}

/* Mistaken inputs. */

static bool swapped(const uint16_t *right, uint16_t *values, const struct gb_quantisation *q)
{
    for (size_t row = 0; row < q->rows && gb_quantisation_gated(q); row++)
        for (uint32_t c = 0; c < q->input_columns; c++)
            values[row * q->input_columns + c] = right[row * q->input_columns + (c + q->columns) % q->input_columns];
    return gb_quantisation_gated(q);
}

/* Gate and up of a column side by side, as some layouts have them. */
static bool interleaved(const uint16_t *right, uint16_t *values, const struct gb_quantisation *q)
{
    for (size_t row = 0; row < q->rows && gb_quantisation_gated(q); row++)
        for (uint32_t c = 0; c < q->columns; c++) {
            values[row * q->input_columns + c] = right[row * q->input_columns + 2 * c];
            values[row * q->input_columns + q->columns + c] = right[row * q->input_columns + 2 * c + 1];
        }
    return gb_quantisation_gated(q);
}

/* bf16 read as fp16, or the other way round. */
static bool other_type(struct gb_quantisation *q)
{
    enum gb_format other = q->input == GB_BF16 ? GB_FP16 : GB_BF16;
    q->activated = q->activated == q->input ? other : q->activated;
    q->product = q->product == q->input ? other : q->product;
    q->input = other;
    return true;
}

/* Mistaken results. */

static uint32_t blocks_of(const struct quantised *r)
{
    return r->asked->columns / r->asked->quantiser.block_columns;
}

static uint8_t code_at(const struct quantised *r, size_t i)
{
    const uint8_t *codes = r->codes;
    if (r->asked->quantiser.element != GB_E2M1)
        return codes[i];
    return (uint8_t)((codes[i / 2] >> (i % 2 * 4)) & 15);
}

static void set_code(struct quantised *r, size_t i, uint8_t code)
{
    uint8_t *codes = r->codes;
    if (r->asked->quantiser.element != GB_E2M1)
        codes[i] = code;
    else
        codes[i / 2] = (uint8_t)(i % 2 ? (codes[i / 2] & 15) | code << 4 : (codes[i / 2] & 0xF0) | (code & 15));
}

static size_t scale_at(const struct quantised *r, uint32_t row, uint32_t block)
{
    return r->asked->layout == GB_SCALES_LINEAR ? (size_t)row * blocks_of(r) + block
                                                : (size_t)block * r->asked->rows + row;
}

/* A block with its values, its largest magnitude and its step. */
struct block {
    uint32_t row, number;
    size_t first; /* element */
    const float *values;
    float amax;
    struct gb_quantiser_step step;
};

static float amax_of(const struct gb_quantisation *q, const float *values, float (*magnitude)(float))
{
    float a = q->quantiser.amax_start;
    for (uint32_t i = 0; i < q->quantiser.block_columns; i++)
        a = fmaxf(a, magnitude(values[i]));
    return q->quantiser.bound == GB_BOUND_AMAX ? fminf(a, q->bound) : a;
}

/* Calls `each` for every block without NaN and infinity, and says whether it changed anything. */
static bool for_blocks(struct quantised *r, bool (*each)(struct quantised *r, const struct block *b))
{
    const struct gb_quantisation *q = r->asked;
    bool changed = false;
    if (q->quantiser.four_over_six != GB_SIX) /* whose step is one of two */
        return false;
    for (uint32_t row = 0; row < q->rows; row++)
        for (uint32_t n = 0; n < blocks_of(r); n++) {
            struct block b = {.row = row, .number = n};
            bool finite = true;
            b.first = (size_t)row * q->columns + (size_t)n * q->quantiser.block_columns;
            b.values = r->values + b.first;
            for (uint32_t i = 0; i < q->quantiser.block_columns; i++)
                finite &= isfinite(b.values[i]) != 0;
            if (!finite)
                continue;
            b.amax = amax_of(q, b.values, fabsf);
            b.step = gb_quantiser_find_step(&q->quantiser, b.amax, q->global_scale, q->bound);
            changed |= each(r, &b);
        }
    return changed;
}

/* Of the element: bits of a magnitude, the largest one, and the sign's bit. */
static uint8_t sign_of(enum gb_element_format element)
{
    return element == GB_E2M1 ? 8 : element == GB_E3M2 || element == GB_E2M3 ? 0x20 : 0x80;
}

static float magnitude_of(enum gb_element_format element, uint8_t code)
{
    static const enum gb_codec codecs[] = {
        [GB_E2M1] = GB_CODEC_E2M1, [GB_E4M3] = GB_CODEC_E4M3, [GB_E4M3FNUZ] = GB_CODEC_E4M3FNUZ,
        [GB_E5M2] = GB_CODEC_E5M2, [GB_E3M2] = GB_CODEC_E3M2, [GB_E2M3] = GB_CODEC_E2M3};
    return element == GB_INT8 ? (float)code : gb_codec_decode(codecs[element], code);
}

/* The value before it is rounded to a code. */
static float quotient_of(const struct quantised *r, const struct block *b, uint32_t i)
{
    float q = b->step.divides ? b->values[i] / b->step.operand : b->values[i] * b->step.operand;
    enum gb_intermediate to = r->asked->quantiser.intermediate;
    return to == GB_INTERMEDIATE_FP32   ? q
           : to == GB_INTERMEDIATE_BF16 ? gb_bf16_decode(gb_bf16_encode(q))
                                        : gb_fp16_decode(gb_fp16_encode(q));
}

static bool round_away(struct quantised *r, const struct block *b)
{
    const struct gb_quantiser *rules = &r->asked->quantiser;
    bool changed = false;
    for (uint32_t i = 0; i < rules->block_columns && !b->step.zero; i++) {
        uint8_t code = code_at(r, b->first + i), sign = sign_of(rules->element);
        uint8_t m = rules->element == GB_INT8 ? (uint8_t)abs((int8_t)code) : code & (uint8_t)(sign - 1);
        float q = fabsf(quotient_of(r, b, i)), below = magnitude_of(rules->element, m);
        if (below >= rules->largest || !(q > below))
            continue;
        if (q - below != magnitude_of(rules->element, (uint8_t)(m + 1)) - q)
            continue;
        m++;
        if (rules->element == GB_INT8)
            code = (uint8_t)(signbit(b->values[i]) ? -(int)m : (int)m);
        else
            code = (uint8_t)((signbit(b->values[i]) ? sign : 0) | m);
        set_code(r, b->first + i, code);
        changed = true;
    }
    return changed;
}

static bool ties_away(struct quantised *r)
{
    return r->asked->quantiser.rounding == GB_TIES_TO_EVEN && for_blocks(r, round_away);
}

/* Beyond the largest code the bits run on: to NaN or infinity, or into the sign. */
static bool let_overflow(struct quantised *r, const struct block *b)
{
    const struct gb_quantiser *rules = &r->asked->quantiser;
    uint8_t sign = sign_of(rules->element);
    bool changed = false;
    for (uint32_t i = 0; i < rules->block_columns && !b->step.zero; i++) {
        uint8_t code = code_at(r, b->first + i), m = code & (uint8_t)(sign - 1);
        float below = magnitude_of(rules->element, (uint8_t)(m - 1)), half = (rules->largest - below) / 2.0f;
        if (magnitude_of(rules->element, m) != rules->largest || fabsf(quotient_of(r, b, i)) < rules->largest + half)
            continue;
        set_code(r, b->first + i, (uint8_t)((code & sign) ^ (m + 1)));
        changed = true;
    }
    return changed;
}

static bool not_saturated(struct quantised *r)
{
    return r->asked->quantiser.element != GB_INT8 && r->asked->quantiser.element != GB_E4M3FNUZ &&
           for_blocks(r, let_overflow);
}

/* The block again, as if its largest magnitude were this. */
static void quantise_block(struct quantised *r, const struct block *b, float amax)
{
    const struct gb_quantiser *rules = &r->asked->quantiser;
    float global = r->asked->global_scale, values[128];
    struct gb_quantiser alone = *rules;
    uint8_t codes[128], scale[sizeof(float)];
    alone.bound = GB_BOUND_AMAX; /* which makes it the largest magnitude where it is below */
    alone.amax_start = fmaxf(alone.amax_start, amax);
    memcpy(values, b->values, sizeof *values * rules->block_columns);
    if (gb_quantiser_run(&alone, values, 1, rules->block_columns, global, amax > 0.0f ? amax : 0x1p-149f, codes, scale,
                         NULL) == GB_OK) {
        size_t each = rules->scale == GB_SCALE_FP32 ? sizeof(float) : 1;
        memcpy((uint8_t *)r->scales + scale_at(r, b->row, b->number) * each, scale, each);
        for (uint32_t i = 0; i < rules->block_columns; i++)
            set_code(r, b->first + i,
                     (uint8_t)(rules->element == GB_E2M1 ? codes[i / 2] >> (i % 2 * 4) & 15 : codes[i]));
    }
}

/* E4M3 scales rounded down: by a largest magnitude that makes the scale below where the nearest one is above. */
static bool floor_scale(struct quantised *r, const struct block *b)
{
    const struct gb_quantisation *q = r->asked;
    uint32_t code = b->step.code;
    double d = q->quantiser.global == GB_GLOBAL_NONE     ? 1.0
               : q->quantiser.global == GB_GLOBAL_DECODE ? (double)q->global_scale
                                                         : 1.0 / (double)q->global_scale;
    double ratio = (double)b->amax / ((double)q->quantiser.largest * d);
    if (code == 0 || code > 0x7E || (double)gb_e4m3_decode((gb_e4m3){(uint8_t)code}) <= ratio * (1.0 + 0x1p-22))
        return false;
    float below = (float)((double)gb_e4m3_decode((gb_e4m3){(uint8_t)(code - 1)}) * (double)q->quantiser.largest * d);
    quantise_block(r, b, below);
    return true;
}

static bool scale_floored(struct quantised *r)
{
    return r->asked->quantiser.scale == GB_SCALE_E4M3 && r->asked->quantiser.bound == GB_BOUND_NONE &&
           for_blocks(r, floor_scale);
}

static float itself(float value)
{
    return value;
}

static bool largest_with_sign(struct quantised *r, const struct block *b)
{
    float amax = amax_of(r->asked, b->values, itself);
    if (amax >= b->amax)
        return false;
    quantise_block(r, b, amax);
    return true;
}

static bool amax_signed(struct quantised *r)
{
    return r->asked->quantiser.bound == GB_BOUND_NONE && for_blocks(r, largest_with_sign);
}

/* Along each row or column of scales those of the next place; the last place has the first one's. */
static bool move_scales(struct quantised *r, bool along_row)
{
    const uint32_t rows = r->asked->rows, blocks = blocks_of(r), lines = along_row ? rows : blocks;
    const uint32_t places = along_row ? blocks : rows;
    size_t bytes = r->asked->quantiser.scale == GB_SCALE_FP32 ? sizeof(float) : 1;
    uint8_t *scales = r->scales, first[sizeof(float)];
    for (uint32_t line = 0; line < lines; line++) {
        memcpy(first, scales + scale_at(r, along_row ? line : 0, along_row ? 0 : line) * bytes, bytes);
        for (uint32_t i = 0; i < places; i++) {
            uint8_t *at = scales + scale_at(r, along_row ? line : i, along_row ? i : line) * bytes;
            bool last = i + 1 == places;
            size_t next = last ? 0 : scale_at(r, along_row ? line : i + 1, along_row ? i + 1 : line) * bytes;
            memcpy(at, last ? first : scales + next, bytes);
        }
    }
    return places > 1;
}

static bool scales_next_block(struct quantised *r)
{
    return move_scales(r, true);
}

static bool scales_next_row(struct quantised *r)
{
    return move_scales(r, false);
}

static bool nibbles(struct quantised *r)
{
    uint8_t *codes = r->codes;
    for (size_t i = 0; i < (size_t)r->asked->rows * r->asked->columns / 2; i++)
        codes[i] = (uint8_t)(codes[i] << 4 | codes[i] >> 4);
    return true;
}

static bool nibbles_swapped(struct quantised *r)
{
    return r->asked->quantiser.element == GB_E2M1 && nibbles(r);
}

static bool tail_lost(struct quantised *r)
{
    const struct gb_quantisation *q = r->asked;
    for (uint32_t row = 0; row < q->rows; row++)
        for (uint32_t c = q->columns - q->quantiser.block_columns; c < q->columns; c++)
            set_code(r, (size_t)row * q->columns + c, 0);
    return true;
}

static bool last_row_lost(struct quantised *r)
{
    const struct gb_quantisation *q = r->asked;
    for (uint32_t c = 0; c < q->columns; c++)
        set_code(r, (size_t)(q->rows - 1) * q->columns + c, 0);
    return true;
}

static const struct quantise_fault faults[] = {
    {"ties are rounded away from zero", NULL, NULL, ties_away, false, "roundf() before the conversion"},
    {"ties are rounded towards zero", ties_to_zero, NULL, NULL, false, "comparisons with midpoints by >"},
    {"codes are truncated", truncated, NULL, NULL, true, "a cast in place of the conversion"},
    {"codes are not saturated", NULL, NULL, not_saturated, false, "a conversion without .satfinite"},
    {"NaN is dropped from the block's largest magnitude", amax_drops_nan, NULL, NULL, false,
     "fmax() where the recipe's maximum propagates NaN"},
    {"NaN makes the block's largest magnitude NaN", amax_propagates_nan, NULL, NULL, false,
     "torch.amax where the recipe's is fmax()"},
    {"the block's largest value is taken with its sign", NULL, NULL, amax_signed, true, "max without abs"},
    {"the scale's power of two is rounded the other way", power_rounded_otherwise, NULL, NULL, true,
     "floor and ceil of log2 are both in use (OCP MX, RCEIL)"},
    {"the scale is rounded down, not to the nearest", NULL, NULL, scale_floored, false,
     "truncation of the scale to E4M3"},
    {"values: division and multiplication by a reciprocal exchanged", quotient_otherwise, NULL, NULL, false,
     "x / s for x * (1 / s), as compilers with fast-math make it"},
    {"scales: division and multiplication by a reciprocal exchanged", ratio_otherwise, NULL, NULL, false,
     "amax / 448 for amax * (1 / 448)"},
    {"the smallest scale is left out", minimum_dropped, NULL, NULL, false, "no clamp against scales of zero"},
    {"the bound is left out", bound_dropped, NULL, NULL, false, "scale_ub not passed on"},
    {"the global scale is left out", global_missing, NULL, NULL, true, "1.0 in place of input_scale"},
    {"the global scale is inverted", global_inverted, NULL, NULL, true,
     "encoding and decoding global scales are both published"},
    {"gate and up are exchanged", NULL, swapped, NULL, true, "w1 and w3 in the other sequence"},
    {"gate and up are read column by column", NULL, interleaved, NULL, true, "interleaved rows, as gpt-oss has them"},
    {"silu is correctly rounded", silu_exact, NULL, NULL, false, "another form of silu"},
    {"silu is gate / (1 + exp(-gate))", silu_divided, NULL, NULL, false, "another form of silu"},
    {"silu is gate * (1 / (1 + exp(-gate)))", silu_by_reciprocal, NULL, NULL, false, "another form of silu"},
    {"silu(gate) is rounded elsewhere", activated_otherwise, NULL, NULL, false,
     "the unfused pair rounds silu(gate) to the input's format"},
    {"silu(gate) * up is rounded elsewhere", product_otherwise, NULL, NULL, false,
     "the unfused pair stores the product"},
    {"values are read as the other 16-bit format", other_type, NULL, NULL, true, "a template instance of another type"},
    {"scales are those of the next block", NULL, NULL, scales_next_block, true, "an index off by one"},
    {"scales are those of the next row", NULL, NULL, scales_next_row, true, "an index off by one"},
    {"scales are transposed", layout_otherwise, NULL, NULL, true, "DeepGEMM wants scales column-major"},
    {"the two codes of a byte are exchanged", NULL, NULL, nibbles_swapped, true, "the high nibble first"},
    {"the last block of every row is not computed", NULL, NULL, tail_lost, true, "a grid that is rounded down"},
    {"the last row is not computed", NULL, NULL, last_row_lost, true, "a grid that is rounded down"},
};

const struct quantise_fault *quantise_faults(size_t *count)
{
    *count = sizeof faults / sizeof *faults;
    return faults;
}

/* The bug in the results of `asked`, which it leaves *applies false for where it has none. */
static enum gb_status spoil(const struct quantise_fault *fault, const struct gb_fixture *f,
                            const struct gb_quantisation *asked, struct gb_outputs *outputs, bool *applies,
                            struct gb_error *error)
{
    struct gb_arguments a = {.size = sizeof a, .quantise = asked, .values = f->values};
    float *values = malloc(sizeof *values * asked->rows * asked->columns); /* [rows, columns] */
    enum gb_status status = values ? gb_reference_quantised_values(&a, f->operation, values, error)
                                   : gb_fail(error, GB_ENOMEM, "no memory for %u rows", asked->rows);
    if (status == GB_OK)
        *applies = fault->spoil(&(struct quantised){asked, values, outputs->codes, outputs->scales});
    free(values);
    return status;
}

enum gb_status quantise_fault_run(const struct quantise_fault *fault, const struct gb_fixture *f, uint32_t rows,
                                  struct gb_outputs **outputs, struct gb_error *error)
{
    struct gb_quantisation asked = gb_fixture_quantisation(f, rows);
    size_t bytes = sizeof *f->values * rows * asked.input_columns;
    uint16_t *values = NULL;
    enum gb_status status = GB_OK;
    *outputs = NULL;
    bool applies = !fault->change || fault->change(&asked);
    if (applies && fault->input) {
        values = malloc(bytes);
        if (!values)
            return gb_fail(error, GB_ENOMEM, "no memory for %u rows", rows);
        applies = fault->input(f->values, values, &asked);
    }
    if (applies)
        status = quantise_as(&asked, values ? values : f->values, outputs, error);
    if (status == GB_OK && applies && fault->spoil)
        status = spoil(fault, f, &asked, *outputs, &applies, error);
    free(values);
    if (status != GB_OK || !applies) {
        gb_outputs_free(*outputs);
        *outputs = NULL;
    } else {
        (*outputs)->quantisation = gb_fixture_quantisation(f, rows); /* as they are taken for */
    }
    return status;
}

static bool fault_of_quantiser(size_t index, struct operator_fault *fault)
{
    if (index >= sizeof faults / sizeof *faults)
        return false;
    *fault = (struct operator_fault){faults[index].name, faults[index].modelled_on, faults[index].must_catch};
    return true;
}

static enum gb_status run_quantiser(int64_t index, const struct gb_contract *contract, const struct gb_fixture *f,
                                    struct gb_outputs **outputs, struct gb_error *error)
{
    (void)contract;
    return index < 0 ? quantise_reference(f, f->quantisation.rows, outputs, error)
                     : quantise_fault_run(&faults[index], f, f->quantisation.rows, outputs, error);
}

static bool gated(const struct gb_fixture *f)
{
    return gb_quantisation_gated(&f->quantisation);
}

#define QUANTISER(OPERATION)                                                                                           \
    {                                                                                                                  \
        OPERATION, "injected_bugs", NULL, fault_of_quantiser, run_quantiser, GB_OPEN_SILU, "caught_with_open_silu",    \
            gated                                                                                                      \
    }
const struct operator_faults operator_faults_quantise = QUANTISER(GB_QUANTISE);
const struct operator_faults operator_faults_silu_mul_quantise = QUANTISER(GB_SILU_MUL_QUANTISE);
