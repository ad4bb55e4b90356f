/* SPDX-License-Identifier: Apache-2.0 */
/* Faults in quantised activations: other codes of the same values, and codes or scales taken for others. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/faults/rows.h"
#include "quant/quant.h"

static const struct gb_quantiser *rules_of(const struct injected *p)
{
    return p->clean->arguments.activation_rules;
}

static bool is_x(const struct injected *p)
{
    return p->fault->stage == STAGE_ACT_QUANT;
}

static size_t elements(const struct injected *p)
{
    return (size_t)p->coded.rows * p->coded.columns;
}

static size_t code_bytes(const struct injected *p)
{
    return elements(p) / (rules_of(p)->element == GB_E2M1 ? 2 : 1);
}

/* Scales of one row, and bytes of one scale. */
static uint32_t blocks(const struct injected *p)
{
    return p->coded.columns / rules_of(p)->block_columns;
}

static size_t scale_bytes(const struct injected *p)
{
    return rules_of(p)->scale == GB_SCALE_FP32 ? sizeof(float) : 1;
}

/* The other stage's global scale. */
static float other_global(const struct injected *p)
{
    return is_x(p) ? p->clean->arguments.intermediate_scale : p->clean->arguments.x_scale;
}

/* Values as gate_up or the recipe before it stores them, [rows, columns]; unrounded: the intermediate before that. */
static float *values_of(struct injected *p, bool unrounded)
{
    float *values = malloc(elements(p) * sizeof *values);
    for (size_t i = 0; values && i < elements(p); i++)
        values[i] = unrounded ? gb_gated(p->clean->arguments.activation, p->gate[i], p->up[i])
                              : gb_bf16_decode(is_x(p) ? p->x[i] : p->intermediate[i]);
    p->no_memory |= !values;
    return values;
}

/* Quantises values, which it frees, by other rules or with another global scale; scales: [rows, blocks by these rules].
 */
static void quantise(struct injected *p, const struct gb_quantiser *rules, float d, float *values, void *scales)
{
    if (values)
        gb_quantiser_run(rules, values, p->coded.rows, p->coded.columns,
                         rules->global == GB_GLOBAL_DECODE ? d : 1.0f / d, INFINITY, p->coded.codes, scales, NULL);
    free(values);
}

static float largest_of(const float *values, size_t count)
{
    float largest = 0.0f;
    for (size_t i = 0; i < count; i++)
        largest = fmaxf(largest, fabsf(values[i]));
    return largest;
}

static void by_rules(struct injected *p, const struct gb_quantiser *rules)
{
    quantise(p, rules, p->coded.d, values_of(p, false), p->coded.scales);
}

static void plant_codes_truncated(struct injected *p)
{
    struct gb_quantiser rules = *rules_of(p);
    rules.rounding = GB_TRUNCATE;
    by_rules(p, &rules);
}

static void plant_codes_ties_to_zero(struct injected *p)
{
    struct gb_quantiser rules = *rules_of(p);
    rules.rounding = GB_TIES_TO_ZERO;
    by_rules(p, &rules);
}

/* Every value but a block's largest, which makes the scale, is a little larger, so that no tie is left. */
static void plant_codes_ties_away(struct injected *p)
{
    float *values = values_of(p, false);
    uint32_t block = rules_of(p)->block_columns;
    for (size_t first = 0; values && first < elements(p); first += block) {
        float largest = largest_of(values + first, block);
        for (size_t i = first; i < first + block; i++)
            values[i] *= fabsf(values[i]) < largest ? 1.0f + 0x1p-16f : 1.0f;
    }
    quantise(p, rules_of(p), p->coded.d, values, p->coded.scales);
}

/* A division where the recipe multiplies with a reciprocal, and the other way round. */
static void plant_codes_reciprocal(struct injected *p)
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
    struct gb_quantiser rules = *rules_of(p);
    rules.quotient = other[rules.quotient];
    by_rules(p, &rules);
}

/* E8M0: down where the recipe rounds up, and else up. */
static void plant_codes_scale_rounding(struct injected *p)
{
    struct gb_quantiser rules = *rules_of(p);
    bool up = rules.scale_rounding == GB_SCALE_CEIL || rules.scale_rounding == GB_SCALE_CEIL_FRACTION;
    rules.scale_rounding = up ? GB_SCALE_FLOOR : GB_SCALE_CEIL;
    by_rules(p, &rules);
}

/* Two blocks share the scale of both. */
static void plant_codes_wide_block(struct injected *p)
{
    struct gb_quantiser rules = *rules_of(p);
    size_t each = scale_bytes(p), count = (size_t)p->coded.rows * blocks(p);
    uint8_t *wide = malloc(count * each), *scales = p->coded.scales;
    rules.block_columns *= 2;
    if (wide && p->coded.columns % rules.block_columns == 0) {
        quantise(p, &rules, p->coded.d, values_of(p, false), wide);
        for (size_t i = 0; i < count; i++)
            memcpy(scales + i * each, wide + i / 2 * each, each);
    }
    p->no_memory |= !wide;
    free(wide);
}

/* The global scale, where codes are made and where products are multiplied. */
static void plant_codes_global(struct injected *p)
{
    p->coded.d *= (float)p->fault->amount;
    by_rules(p, rules_of(p));
}

/* What the first row's largest magnitude makes of it, for all rows. */
static void plant_codes_first_global(struct injected *p)
{
    float *values = values_of(p, false), d = p->coded.d;
    if (values)
        d = largest_of(values, p->coded.columns) / rules_of(p)->global_largest;
    p->coded.d = isnormal(d) && isnormal(1.0f / d) ? d : p->coded.d;
    quantise(p, rules_of(p), p->coded.d, values, p->coded.scales);
}

static void plant_codes_other_global(struct injected *p)
{
    p->coded.d = other_global(p);
    by_rules(p, rules_of(p));
}

static void plant_codes_plain(struct injected *p)
{
    p->coded.plain = true;
}

static void plant_codes_of_fp32(struct injected *p)
{
    quantise(p, rules_of(p), p->coded.d, values_of(p, true), p->coded.scales);
}

/* What products are multiplied with alone. */
static void plant_codes_global_missing(struct injected *p)
{
    p->coded.d = 1.0f;
}

static void plant_codes_global_twice(struct injected *p)
{
    p->coded.d *= p->coded.d;
}

static void plant_codes_other_alpha(struct injected *p)
{
    p->coded.d = other_global(p);
}

static void plant_codes_nibbles(struct injected *p)
{
    for (size_t i = 0; i < code_bytes(p); i++)
        p->coded.codes[i] = (uint8_t)(p->coded.codes[i] << 4 | p->coded.codes[i] >> 4);
}

static void plant_codes_unsigned_odd(struct injected *p)
{
    for (size_t i = 0; i < code_bytes(p); i++)
        p->coded.codes[i] &= 0x7F;
}

/* E4M3: 448 becomes NaN. */
static void plant_codes_no_saturation(struct injected *p)
{
    for (size_t i = 0; i < code_bytes(p); i++)
        p->coded.codes[i] |= (p->coded.codes[i] & 0x7F) == 0x7E;
}

static void plant_codes_fnuz(struct injected *p)
{
    for (size_t i = 0; i < code_bytes(p); i++)
        p->coded.codes[i] = gb_e4m3_encode(gb_e4m3fnuz_decode((gb_e4m3fnuz){p->coded.codes[i]})).bits;
}

/* The last block of every row. */
static void plant_codes_tail(struct injected *p)
{
    size_t row = code_bytes(p) / p->coded.rows, block = row / blocks(p);
    for (size_t end = row; end <= code_bytes(p); end += row)
        memset(p->coded.codes + end - block, 0, block);
}

/* Every scale from where `place` has it, of linear ones. */
static void move_scales(struct injected *p, size_t (*place)(const struct injected *p, uint32_t row, uint32_t block))
{
    size_t each = scale_bytes(p), count = (size_t)p->coded.rows * blocks(p);
    uint8_t *clean = malloc(count * each), *scales = p->coded.scales;
    if (clean)
        memcpy(clean, scales, count * each);
    for (uint32_t r = 0; clean && r < p->coded.rows; r++)
        for (uint32_t b = 0; b < blocks(p); b++)
            memcpy(scales + ((size_t)r * blocks(p) + b) * each, clean + place(p, r, b) % count * each, each);
    p->no_memory |= !clean;
    free(clean);
}

static size_t next_block(const struct injected *p, uint32_t row, uint32_t block)
{
    return (size_t)row * blocks(p) + block + 1;
}

static void plant_scales_next_block(struct injected *p)
{
    move_scales(p, next_block);
}

static size_t next_row(const struct injected *p, uint32_t row, uint32_t block)
{
    return (size_t)(row + 1) * blocks(p) + block;
}

static void plant_scales_next_row(struct injected *p)
{
    move_scales(p, next_row);
}

static size_t first_block(const struct injected *p, uint32_t row, uint32_t block)
{
    (void)block;
    return (size_t)row * blocks(p);
}

static void plant_scales_first_block(struct injected *p)
{
    move_scales(p, first_block);
}

static size_t swizzled(const struct injected *p, uint32_t row, uint32_t block)
{
    struct gb_scales layout = {GB_LAYOUT_SWIZZLED_128X4, p->coded.rows, blocks(p), 1};
    return gb_layout_offset(&layout, row, block);
}

static void plant_scales_swizzled(struct injected *p)
{
    move_scales(p, swizzled);
}

static size_t transposed(const struct injected *p, uint32_t row, uint32_t block)
{
    return (size_t)block * p->coded.rows + row;
}

static void plant_scales_transposed(struct injected *p)
{
    move_scales(p, transposed);
}

/* The stored scale is the next one up, for codes made by the right one; FP32: the next power of two. */
static void plant_scales_up(struct injected *p)
{
    size_t count = (size_t)p->coded.rows * blocks(p);
    float *wide = p->coded.scales;
    uint8_t *narrow = p->coded.scales;
    uint8_t most = rules_of(p)->scale == GB_SCALE_E4M3 ? 0x7E : 0xFE;
    for (size_t i = 0; i < count; i++)
        if (rules_of(p)->scale == GB_SCALE_FP32)
            wide[i] = exp2f(ceilf(log2f(wide[i])));
        else
            narrow[i] = (uint8_t)(narrow[i] + (narrow[i] < most));
}

/* E4M3 below 2^-6. */
static void plant_scales_subnormal_zero(struct injected *p)
{
    uint8_t *scales = p->coded.scales;
    for (size_t i = 0; i < (size_t)p->coded.rows * blocks(p); i++)
        scales[i] = scales[i] < 0x08 ? 0 : scales[i];
}

static const struct fault codes[] = {
    CODES("not quantised", 0, codes_plain, 0, "SGLang #25493: weight-only where W4A4 is claimed"),
    CODES("codes rounded toward zero", 0, codes_truncated, 0, "vLLM per_token_group_quant: a cast that truncates"),
    CODES("ties to zero", 0, codes_ties_to_zero, 0, "llama.cpp best_index: the lower of two equally near codes"),
    CODES("ties away from zero", 0, codes_ties_away, 0, "roundf in place of rintf"),
    CODES("division for reciprocal, or the reverse", 0, codes_reciprocal, 0,
          "vLLM packed per-group quantiser: x * (1/s)"),
    CODES("scales rounded the other way", SCALES_E8M0, codes_scale_rounding, 0, "TE #2411; E8M0 floor against ceil"),
    CODES("one scale for two blocks", 0, codes_wide_block, 0, "MX blocks of 32 in place of NVFP4's 16"),
    CODES("scales of the next block", 0, scales_next_block, 0, "a scale pointer advanced before its use"),
    CODES("scales of the next row", 0, scales_next_row, 0, "codes sorted by expert, their scales not"),
    CODES("scale of the first block for the whole row", 0, scales_first_block, 0, "scale stride missing"),
    CODES("linear scales read as swizzled", ROW_SCALES, scales_swizzled, 0, "modular #6600; vLLM #50084"),
    CODES("scales read as transposed", 0, scales_transposed, 0, "vLLM, DeepGEMM: column-major scales of activations"),
    CODES("stored scale one step up", 0, scales_up, 0, "FP32 scales packed as UE8M0 after the codes were made"),
    CODES("last block zero", 0, codes_tail, 0, "CUTLASS #3536: K tail dropped"),
    CODES("subnormal scales zero", SCALES_E4M3, scales_subnormal_zero, 0, "FlashInfer #3933, #2356"),
    CODES("global scale missing", SCALES_E4M3, codes_global_missing, 0, "FlashInfer #3548: about 2400 times"),
    CODES("global scale used twice", SCALES_E4M3, codes_global_twice, 0,
          "FlashInfer #3548: one in the quantiser's output and in alpha"),
    CODES("alpha of the other product", SCALES_E4M3, codes_other_alpha, 0, "one alpha for both grouped products"),
    CODES("global scale of the other product", SCALES_E4M3, codes_other_global, 0, "a1_gscale used for a2"),
    CODES("global scale of the first token", SCALES_E4M3, codes_first_global, 0,
          "a dynamic scale where a calibrated one is asked for"),
    CODES("global scale half as large", SCALES_E4M3, codes_global, 0.5,
          "one expert's input_scale in place of the largest"),
    CODES("nibbles exchanged", E2M1, codes_nibbles, 0, "Triton #5197; torchao #2939"),
    CODES("sign of odd nibbles lost", E2M1, codes_unsigned_odd, 0, "a mask without the high nibble's sign"),
    CODES("448 becomes NaN", E4M3, codes_no_saturation, 0, "FlashInfer #3103: a conversion that does not saturate"),
    CODES("E4M3 read as FNUZ", E4M3, codes_fnuz, 0, "vLLM #7210, #47201; SGLang #35111"),
};
const struct fault_table faults_codes = {codes, sizeof codes / sizeof *codes};

static const struct fault requantised[] = {
    PLANT("intermediate quantised from FP32", REQUANT, codes_of_fp32, 0,
          "vLLM fused_silu_mul_block_quant: no bf16 in between"),
};
const struct fault_table faults_requantised = {requantised, sizeof requantised / sizeof *requantised};
