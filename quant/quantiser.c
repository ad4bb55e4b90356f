/* SPDX-License-Identifier: Apache-2.0 */
/* The one quantiser behind every recipe; the steps are numbered as in docs/recipes.md#the-quantiser. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "quant/codes.h"
#include "quant/elements.h"
#include "quant/multiversion.h"

/* The part of a matrix that shares a scale. */
struct block {
    const float *values; /* [rows, columns] with `stride` between rows */
    size_t stride;
    uint32_t rows, columns;
};

#define INLINE static inline __attribute__((always_inline)) /* into loops over blocks */

INLINE float flushed(const struct gb_quantiser *q, float value)
{
    return q->flush_subnormals && fabsf(value) < FLT_MIN ? copysignf(0.0f, value) : value;
}

INLINE float multiply(const struct gb_quantiser *q, float a, float b)
{
    return flushed(q, flushed(q, a) * flushed(q, b));
}

INLINE float divide(const struct gb_quantiser *q, float a, float b)
{
    return flushed(q, flushed(q, a) / flushed(q, b));
}

static float add(const struct gb_quantiser *q, float a, float b)
{
    return flushed(q, flushed(q, a) + flushed(q, b));
}

static float rounded_to(enum gb_intermediate intermediate, float value)
{
    switch (intermediate) {
    case GB_INTERMEDIATE_FP32:
        break;
    case GB_INTERMEDIATE_BF16:
        return gb_bf16_decode(gb_bf16_encode(value));
    case GB_INTERMEDIATE_FP16:
        return gb_fp16_decode(gb_fp16_encode(value));
    }
    return value;
}

/* Step 2. */
static float amax_of(const struct gb_quantiser *q, const struct block *block, float bound)
{
    float a = q->amax_start;
    size_t nans = 0;
    for (uint32_t row = 0; row < block->rows; row++)
        for (uint32_t column = 0; column < block->columns; column++) {
            float x = fabsf(block->values[row * block->stride + column]);
            nans += isnan(x) != 0;
            a = x > a ? x : a;
        }
    if ((q->amax_nan == GB_AMAX_PROPAGATES_NAN && nans) ||
        (q->amax_nan == GB_AMAX_NAN_IF_ALL_ARE && nans == (size_t)block->rows * block->columns))
        return NAN;
    return q->bound == GB_BOUND_AMAX && bound < a ? bound : a;
}

INLINE float formula_of_ratio(const struct gb_quantiser *q, float a, float global)
{
    switch (q->ratio) {
    case GB_RATIO_POWER: /* the exponent is taken off in power_of_two */
        return a;
    case GB_RATIO_DIVIDE:
        return rounded_to(q->ratio_intermediate, divide(q, a, q->largest));
    case GB_RATIO_MULTIPLY:
        return rounded_to(q->ratio_intermediate, multiply(q, a, q->reciprocal));
    case GB_RATIO_ENCODE_FIRST:
        return multiply(q, a, multiply(q, global, q->reciprocal));
    case GB_RATIO_ENCODE_LAST:
        return multiply(q, global, rounded_to(q->ratio_intermediate, multiply(q, a, q->reciprocal)));
    case GB_RATIO_DIVIDE_ENCODE:
        return multiply(q, global, rounded_to(q->ratio_intermediate, divide(q, a, q->largest)));
    case GB_RATIO_DIVIDE_PRODUCT:
        return divide(q, a, multiply(q, q->largest, global));
    case GB_RATIO_DIVIDE_TWICE:
        return divide(q, rounded_to(q->ratio_intermediate, divide(q, a, q->largest)), global);
    case GB_RATIO_INVERSE:
        return divide(q, 1.0f, divide(q, q->largest, a));
    }
    return NAN;
}

/* Step 3. */
INLINE float ratio_of(const struct gb_quantiser *q, float a, float global, float bound)
{
    float r = formula_of_ratio(q, a, global);
    if (isnan(r) || q->ratio == GB_RATIO_POWER)
        return r;
    if (flushed(q, r) == 0.0f)
        r = q->ratio_if_zero;
    if (q->bound == GB_BOUND_RATIO && bound < r)
        r = bound;
    if (r < q->ratio_min)
        r = q->ratio_min;
    return q->ratio_max != 0.0f && r > q->ratio_max ? q->ratio_max : r;
}

/* The E8M0 code of r >= 0; with GB_RATIO_POWER, of r * 2^-e. */
static uint32_t power_of_two(const struct gb_quantiser *q, float r)
{
    uint32_t bits = f32_bits(r) + (q->scale_rounding == GB_SCALE_EVEN ? 1u << (22 - q->mantissa_bits) : 0);
    uint32_t exponent = bits >> 23, fraction = bits & 0x7FFFFF;
    if (exponent == 255 && q->scale_infinity)
        return q->scale_infinity;
    if (q->scale_rounding == GB_SCALE_CEIL) /* code 0 is 2^-127, the subnormal 0x00400000 */
        exponent += exponent ? fraction != 0 : fraction > 0x400000;
    if (q->scale_rounding == GB_SCALE_CEIL_FRACTION)
        exponent += fraction != 0;
    uint32_t down = q->ratio == GB_RATIO_POWER ? (f32_bits(q->largest) >> 23) - 127 : 0;
    uint32_t code = exponent > down ? exponent - down : 0;
    return code < 0xFE ? code : 0xFE;
}

/* E4M3 as llama.cpp rounds to it, r >= 0: ties go up, 7 * 2^-9 is all that lies below 2^-6, and above 240 comes 448. */
static uint32_t e4m3_of_llama_cpp(float r)
{
    if (r < 0x1p-6f) {
        uint32_t code = (uint32_t)(r * 0x1p9f + 0.5f);
        return code < 7 ? code : 7;
    }
    uint32_t code = ((f32_bits(r) >> 19) + 1) / 2 - ((127u - 7) << 3);
    return code < 0x78 ? code : 0x7E;
}

/* Codes that the rules have instead of those of numbers. */
struct admitted {
    uint32_t if_zero, least, most;
};

static struct admitted admitted_of(const struct gb_quantiser *q)
{
    return (struct admitted){q->scale_if_zero, q->scale_min, q->scale_max ? q->scale_max : UINT32_MAX};
}

static inline uint32_t admit(struct admitted by, uint32_t code)
{
    code = code ? code : by.if_zero;
    code = code > by.least ? code : by.least;
    return code < by.most ? code : by.most;
}

static bool rounds_to_e4m3(const struct gb_quantiser *q)
{
    return q->scale == GB_SCALE_E4M3 && q->scale_rounding != GB_SCALE_LLAMA_CPP;
}

/* Step 4 of rules for which that holds. */
GB_VECTOR_CLONES static void nearest_e4m3(const struct gb_quantiser *q, const float *r, uint32_t count, uint32_t *codes,
                                          float *scales)
{
    const struct admitted by = admitted_of(q);
    const uint32_t nan = q->scale_nan ? q->scale_nan : 0x7F;
#pragma omp simd
    for (uint32_t b = 0; b < count; b++) {
        uint32_t code = admit(by, e4m3_code(r[b]));
        codes[b] = (f32_bits(r[b]) & 0x7FFFFFFF) > 0x7F800000 ? nan : code;
    }
#pragma omp simd
    for (uint32_t b = 0; b < count; b++)
        scales[b] = e4m3_value(codes[b]);
}

/* The same of other rules. */
static void round_scale(const struct gb_quantiser *q, float r, uint32_t *code, float *scale)
{
    const bool e4m3 = q->scale == GB_SCALE_E4M3;
    *code = 0;
    *scale = r;
    if (q->scale == GB_SCALE_FP32)
        return;
    if (isnan(r))
        *code = q->scale_nan ? q->scale_nan : e4m3 ? 0x7F : 0xFF;
    else
        *code = admit(admitted_of(q), e4m3 ? e4m3_of_llama_cpp(r) : power_of_two(q, r));
    uint8_t byte = (uint8_t)*code;
    *scale = e4m3 ? e4m3_value(byte) : gb_e8m0_decode((gb_e8m0){byte});
}

/* Step 4. r, codes, scales: [count]. */
static void round_scales(const struct gb_quantiser *q, const float *r, uint32_t count, uint32_t *codes, float *scales)
{
    if (rounds_to_e4m3(q))
        nearest_e4m3(q, r, count, codes, scales);
    else
        for (uint32_t b = 0; b < count; b++)
            round_scale(q, r[b], &codes[b], &scales[b]);
}

/* 2^(127 - code) */
static float power_multiplier(const struct gb_quantiser *q, uint32_t code)
{
    if (code == 0xFF)
        return NAN;
    if (code == 0 && q->multiplier_lowest != 0.0f)
        return q->multiplier_lowest;
    return ldexpf(1.0f, 127 - (int)code);
}

INLINE float formula_of_multiplier(const struct gb_quantiser *q, float a, float global,
                                   const struct gb_quantiser_step *step)
{
    switch (q->quotient) {
    case GB_QUOTIENT_POWER:
        return power_multiplier(q, step->code);
    case GB_QUOTIENT_RECIPROCAL:
        return divide(q, 1.0f, step->scale);
    case GB_QUOTIENT_AMAX:
        return divide(q, q->largest, a);
    case GB_QUOTIENT_ENCODE_PRODUCT:
        return divide(q, 1.0f, multiply(q, step->scale, divide(q, 1.0f, global)));
    case GB_QUOTIENT_ENCODE:
        return divide(q, global, step->scale);
    case GB_QUOTIENT_DECODE:
        return divide(q, divide(q, 1.0f, global), step->scale);
    default:
        return NAN;
    }
}

INLINE bool multiplier_is_zero(const struct gb_quantiser *q, float a, float r, const struct gb_quantiser_step *step)
{
    switch (q->zero_multiplier) {
    case GB_ZERO_NEVER:
        break;
    case GB_ZERO_IF_AMAX_IS:
        return flushed(q, a) == 0.0f;
    case GB_ZERO_IF_RATIO_IS:
        return flushed(q, r) == 0.0f;
    case GB_ZERO_IF_SCALE_IS:
        return q->scale == GB_SCALE_FP32 ? flushed(q, step->scale) == 0.0f : step->code == 0;
    }
    return false;
}

/* Step 5; operand and divides of the step. */
INLINE void find_operand(const struct gb_quantiser *q, float a, float r, float global, struct gb_quantiser_step *step)
{
    step->divides = false;
    step->operand = 0.0f;
    if (multiplier_is_zero(q, a, r, step))
        return;
    switch (q->quotient) {
    case GB_QUOTIENT_DIVIDE:
        step->operand = step->scale;
        step->divides = true;
        return;
    case GB_QUOTIENT_DIVIDE_PRODUCT:
        step->operand = multiply(q, step->scale, global);
        step->divides = true;
        return;
    case GB_QUOTIENT_DIVIDE_ENCODE:
        step->operand = divide(q, step->scale, global);
        step->divides = true;
        return;
    default:
        step->operand = formula_of_multiplier(q, a, global, step);
        if (q->multiplier_max != 0.0f && !(step->operand <= q->multiplier_max))
            step->operand = q->multiplier_max;
    }
}

/* Steps 4 and 5. */
static struct gb_quantiser_step step_of(const struct gb_quantiser *q, float a, float r, float global)
{
    struct gb_quantiser_step step = {.code = 0};
    round_scales(q, &r, 1, &step.code, &step.scale);
    find_operand(q, a, r, global, &step);
    return step;
}

/* Step 6. */
static uint8_t element(const struct gb_quantiser *q, const struct gb_quantiser_step *step, float x)
{
    if (step->zero)
        return 0;
    float quotient = step->divides ? divide(q, x, step->operand) : multiply(q, x, step->operand);
    return gb_code_of(q, rounded_to(q->intermediate, quotient), x);
}

/* What a candidate of four-over-six loses. */
static float error_of(const struct gb_quantiser *q, const struct block *block, float global,
                      const struct gb_quantiser_step *step)
{
    float e = 0.0f, decode = divide(q, 1.0f, global);
    for (uint32_t row = 0; row < block->rows; row++)
        for (uint32_t column = 0; column < block->columns; column++) {
            float x = block->values[row * block->stride + column];
            float value = gb_code_value(q->element, element(q, step, x));
            float t = add(q, multiply(q, multiply(q, value, step->scale), decode), -x);
            e = add(q, e, q->four_over_six == GB_FOUR_OVER_SIX_ABSOLUTE ? fabsf(t) : multiply(q, t, t));
        }
    return e;
}

static struct gb_quantiser_step best_step(const struct gb_quantiser *q, const struct block *block, float global,
                                          float bound)
{
    float a = amax_of(q, block, bound);
    float r = ratio_of(q, a, global, bound);
    struct gb_quantiser_step six = step_of(q, a, r, global);
    if (q->four_over_six == GB_SIX)
        return six;
    if (flushed(q, a) == 0.0f)
        return (struct gb_quantiser_step){.zero = true};
    struct gb_quantiser_step four = step_of(q, a, multiply(q, r, 1.5f), global);
    return error_of(q, block, global, &four) < error_of(q, block, global, &six) ? four : six;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The codes of `count` elements, one a byte. */
static void run_codes(const struct gb_quantiser *q, const struct gb_quantiser_step *step, const float *x,
                      uint32_t count, uint8_t *run)
{
    if (!step->zero && gb_codes_of(q, x, count, step->operand, step->divides, run))
        return;
    for (uint32_t i = 0; i < count; i++)
        run[i] = element(q, step, x[i]);
}

/* first: the index of the run's first element in the matrix. */
static void put_codes(enum gb_element_format format, const uint8_t *run, uint32_t count, size_t first, uint8_t *codes)
{
    if (format != GB_E2M1) {
        memcpy(codes + first, run, count);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *pair = codes + (first + i) / 2;
        *pair = (uint8_t)((first + i) % 2 == 0 ? run[i] : *pair | run[i] << 4);
    }
}

/* first: the index of the block's first element in the matrix. */
static void write_codes(const struct gb_quantiser *q, const struct block *block, const struct gb_quantiser_step *step,
                        size_t first, uint8_t *codes)
{
    uint8_t run[GB_CODES_AT_ONCE];
    for (uint32_t row = 0; row < block->rows; row++)
        for (uint32_t column = 0; column < block->columns; column += GB_CODES_AT_ONCE) {
            size_t in_block = row * block->stride + column;
            uint32_t count = smaller(GB_CODES_AT_ONCE, block->columns - column);
            run_codes(q, step, block->values + in_block, count, run);
            put_codes(q->element, run, count, first + in_block, codes);
        }
}

struct gb_quantiser_step gb_quantiser_find_step(const struct gb_quantiser *q, float amax, float global, float bound)
{
    return step_of(q, amax, ratio_of(q, amax, global, bound), global);
}

float gb_quantiser_element(const struct gb_quantiser *q, const struct gb_quantiser_step *step, float x)
{
    return gb_code_value(q->element, element(q, step, x));
}

static uint32_t block_columns(const struct gb_quantiser *q, uint32_t columns)
{
    return q->block_columns ? q->block_columns : columns;
}

static uint32_t blocks(uint32_t length, uint32_t block)
{
    return length / block + (length % block != 0);
}

enum gb_status gb_quantiser_bytes(const struct gb_quantiser *q, uint32_t rows, uint32_t columns, size_t *codes,
                                  size_t *scales, struct gb_error *error)
{
    uint32_t length = block_columns(q, columns);
    if (!rows || !columns || (q->block_rows == 1 && columns % length) || (q->element == GB_E2M1 && columns % 2))
        return gb_fail(error, GB_EINVAL, "%u rows of %u columns are no whole number of blocks of %u", rows, columns,
                       length);
    if (!gb_bytes(rows, q->element == GB_E2M1 ? columns / 2 : columns, 1, 1, codes) ||
        !gb_bytes(blocks(rows, q->block_rows), blocks(columns, length), 1, q->scale == GB_SCALE_FP32 ? 4 : 1, scales))
        return gb_fail(error, GB_EINVAL, "%u x %u values do not fit in memory", rows, columns);
    return GB_OK;
}

enum gb_status gb_quantiser_global(const struct gb_quantiser *q, float amax, float *global, struct gb_error *error)
{
    *global = 1.0f;
    if (q->global == GB_GLOBAL_NONE)
        return GB_OK;
    if (!isfinite(amax))
        return gb_fail(error, GB_EINVAL, "a matrix whose largest absolute value is %g has no global scale",
                       (double)amax);
    if (amax == 0.0f)
        return GB_OK;
    *global = q->global == GB_GLOBAL_ENCODE              ? q->global_largest / amax
              : q->global == GB_GLOBAL_ENCODE_RECIPROCAL ? q->global_largest * (1.0f / amax)
                                                         : amax / q->global_largest;
    if (isinf(*global))
        *global = q->global_overflow;
    if (!(*global >= FLT_MIN))
        return gb_fail(error, GB_EINVAL, "the largest absolute value %g is too small: the global scale %g is subnormal",
                       (double)amax, (double)*global);
    return GB_OK;
}

/* first: the index of the first of `count` scales in the matrix. */
static void put_scales(const struct gb_quantiser *q, const uint32_t *code, const float *scale, size_t first,
                       uint32_t count, void *scales)
{
    uint8_t *bytes = (uint8_t *)scales + first;
    if (q->scale == GB_SCALE_FP32)
        memcpy((float *)scales + first, scale, count * sizeof *scale);
    else
        for (uint32_t b = 0; b < count; b++)
            bytes[b] = (uint8_t)code[b];
}

/* Whether a quotient of a block with this largest magnitude may be NaN: it or the operand is not finite, or something
 * is divided by zero. */
INLINE uint32_t may_be_nan(float amax, float operand, uint32_t divides)
{
    const uint32_t infinity = 0x7F800000, a = f32_bits(amax) & 0x7FFFFFFF, m = f32_bits(operand) & 0x7FFFFFFF;
    return (a >= infinity) | (m >= infinity) | ((m == 0) & divides);
}

/* Steps 3 to 5 of blocks that are common; how many of them may have a quotient that is NaN. known: the same rules, of
 * which the compiler may know some; maxima: [count]. */
INLINE uint32_t steps_by(const struct gb_quantiser *q, const struct gb_quantiser *known, const float *maxima,
                         uint32_t count, float global, float bound, struct gb_block_steps *steps)
{
    float a[GB_MOST_BLOCKS] = {0}, r[GB_MOST_BLOCKS] = {0};
    uint32_t nans = 0;
#pragma omp simd
    for (uint32_t b = 0; b < count; b++) {
        float most = maxima[b] > known->amax_start ? maxima[b] : known->amax_start;
        a[b] = known->bound == GB_BOUND_AMAX && bound < most ? bound : most;
        r[b] = ratio_of(known, a[b], global, bound);
    }
    round_scales(q, r, count, steps->code, steps->scale);
#pragma omp simd
    for (uint32_t b = 0; b < count; b++) {
        struct gb_quantiser_step step; /* not all of it: gcc would write it to memory */
        step.code = steps->code[b];
        step.scale = steps->scale[b];
        find_operand(known, a[b], r[b], global, &step);
        steps->operand[b] = step.operand;
        steps->divides[b] = step.divides;
    }
#pragma omp simd reduction(+ : nans)
    for (uint32_t b = 0; b < count; b++)
        nans += may_be_nan(maxima[b], steps->operand[b], steps->divides[b]);
    return nans;
}

/* Whether the rules are those of which the next function knows the branches. */
static bool divides_by_product(const struct gb_quantiser *q)
{
    return q->ratio == GB_RATIO_DIVIDE_PRODUCT && q->quotient == GB_QUOTIENT_DIVIDE_PRODUCT &&
           q->zero_multiplier == GB_ZERO_NEVER;
}

/* The same for rules of which that holds, without a branch for each block. */
GB_VECTOR_CLONES static uint32_t steps_by_product(const struct gb_quantiser *q, const float *maxima, uint32_t count,
                                                  float global, float bound, struct gb_block_steps *steps)
{
    struct gb_quantiser known = *q;
    known.ratio = GB_RATIO_DIVIDE_PRODUCT;
    known.quotient = GB_QUOTIENT_DIVIDE_PRODUCT;
    known.zero_multiplier = GB_ZERO_NEVER;
    known.flush_subnormals = 0; /* as in all that are common */
    return steps_by(q, &known, maxima, count, global, bound, steps);
}

static uint32_t find_steps(const struct gb_quantiser *q, const float *maxima, uint32_t count, float global, float bound,
                           struct gb_block_steps *steps)
{
    return divides_by_product(q) ? steps_by_product(q, maxima, count, global, bound, steps)
                                 : steps_by(q, q, maxima, count, global, bound, steps);
}

/* Where the blocks of a matrix are found and left. */
struct run {
    const struct gb_quantiser *q;
    const float *values, *maxima; /* maxima: [blocks], NULL: to be found */
    float global, bound;
    void *codes, *scales;
};

/* Blocks first .. first + count - 1 of `length` elements, which are common; false: some quotient may be NaN. */
static bool run_common(const struct run *run, size_t first, uint32_t count, uint32_t length)
{
    struct gb_block_steps steps;
    float found[GB_MOST_BLOCKS];
    const struct gb_quantiser *q = run->q;
    const size_t element = first * length;
    const float *maxima = run->maxima ? run->maxima + first : found;
    if (!run->maxima)
        gb_block_maxima(run->values + element, count, length, found);
    if (find_steps(q, maxima, count, run->global, run->bound, &steps))
        return false;
    gb_block_codes(q, run->values + element, count, length, &steps,
                   (uint8_t *)run->codes + (q->element == GB_E2M1 ? element / 2 : element));
    put_scales(q, steps.code, steps.scale, first, count, run->scales);
    return true;
}

/* Any block, the matrix's number `index`, whose first element is number `first`. */
static void run_block(const struct run *run, const struct block *block, size_t index, size_t first)
{
    struct gb_quantiser_step step = best_step(run->q, block, run->global, run->bound);
    put_scales(run->q, &step.code, &step.scale, index, 1, run->scales);
    write_codes(run->q, block, &step, first, run->codes);
}

/* A matrix of blocks that are common: they follow each other, wherever rows end. */
static void run_all_common(const struct run *run, size_t blocks, uint32_t length)
{
    const size_t at_once = GB_BLOCKS_AT_ONCE / length;
    for (size_t first = 0; first < blocks; first += at_once) {
        const size_t count = blocks - first < at_once ? blocks - first : at_once;
        if (run_common(run, first, (uint32_t)count, length))
            continue;
        for (size_t b = first; b < first + count; b++) {
            const struct block block = {run->values + b * length, length, 1, length};
            run_block(run, &block, b, b * length);
        }
    }
}

enum gb_status gb_quantiser_run_with(const struct gb_quantiser *q, const float *values, const float *maxima,
                                     uint32_t rows, uint32_t columns, float global, float bound, void *codes,
                                     void *scales, struct gb_error *error)
{
    size_t code_bytes, scale_bytes, index = 0;
    enum gb_status status = gb_quantiser_bytes(q, rows, columns, &code_bytes, &scale_bytes, error);
    if (status != GB_OK)
        return status;
    if (q->global != GB_GLOBAL_NONE && !(global >= FLT_MIN && global <= FLT_MAX))
        return gb_fail(error, GB_EINVAL, "the global scale %g is no positive normal number", (double)global);
    const struct run run = {q, values, maxima, global, bound, codes, scales};
    const uint32_t length = block_columns(q, columns);
    if (gb_blocks_are_common(q, length)) {
        run_all_common(&run, (size_t)rows * (columns / length), length);
        return GB_OK;
    }
    for (uint32_t row = 0; row < rows; row += q->block_rows)
        for (uint32_t column = 0; column < columns; column += length, index++) {
            size_t first = (size_t)row * columns + column;
            struct block block = {values + first, columns, smaller(q->block_rows, rows - row),
                                  smaller(length, columns - column)};
            run_block(&run, &block, index, first);
        }
    return GB_OK;
}

enum gb_status gb_quantiser_run(const struct gb_quantiser *q, const float *values, uint32_t rows, uint32_t columns,
                                float global, float bound, void *codes, void *scales, struct gb_error *error)
{
    return gb_quantiser_run_with(q, values, NULL, rows, columns, global, bound, codes, scales, error);
}
