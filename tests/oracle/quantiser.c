/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The quantiser of docs/recipes.md, from its text. Scales of powers of two and codes are found by searching what the
 * format can represent, in exact comparisons of doubles; binary32 operations are the oracle's integers.
 */
#include "tests/oracle/oracle.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

struct scale {
    unsigned code;
    float value;
};

static float flush(const struct gb_quantiser *rules, float x)
{
    if (rules->flush_subnormals && x > -0x1p-126f && x < 0x1p-126f)
        return signbit(x) ? -0.0f : 0.0f;
    return x;
}

static float times(const struct gb_quantiser *rules, float x, float y)
{
    return flush(rules, oracle_multiply(flush(rules, x), flush(rules, y)));
}

static float over(const struct gb_quantiser *rules, float x, float y)
{
    return flush(rules, oracle_divide(flush(rules, x), flush(rules, y)));
}

static float plus(const struct gb_quantiser *rules, float x, float y)
{
    return flush(rules, oracle_add(flush(rules, x), flush(rules, y)));
}

static float narrowed(enum gb_intermediate format, float x)
{
    if (format == GB_INTERMEDIATE_BF16)
        return (float)oracle_decode(ORACLE_BF16, oracle_encode(ORACLE_BF16, x));
    if (format == GB_INTERMEDIATE_FP16)
        return (float)oracle_decode(ORACLE_FP16, oracle_encode(ORACLE_FP16, x));
    return x;
}

static float block_amax(const struct gb_quantiser *rules, const float *block, size_t count, float bound)
{
    float a = rules->amax_start;
    size_t numbers = 0;

    for (size_t i = 0; i < count; i++) {
        if (block[i] != block[i])
            continue;
        numbers++;
        a = fmaxf(a, fabsf(block[i]));
    }
    if (rules->amax_nan == GB_AMAX_PROPAGATES_NAN && numbers < count)
        return NAN;
    if (rules->amax_nan == GB_AMAX_NAN_IF_ALL_ARE && numbers == 0)
        return NAN;
    return rules->bound == GB_BOUND_AMAX ? fminf(a, bound) : a;
}

static float ratio(const struct gb_quantiser *rules, float a, float global, float bound)
{
    float m = rules->largest, c = rules->reciprocal, r = NAN;
    enum gb_intermediate narrow = rules->ratio_intermediate;

    if (rules->ratio == GB_RATIO_POWER)
        return a; /* r itself may be no binary32 number */
    if (rules->ratio == GB_RATIO_DIVIDE)
        r = narrowed(narrow, over(rules, a, m));
    if (rules->ratio == GB_RATIO_MULTIPLY)
        r = narrowed(narrow, times(rules, a, c));
    if (rules->ratio == GB_RATIO_ENCODE_FIRST)
        r = times(rules, a, times(rules, global, c));
    if (rules->ratio == GB_RATIO_ENCODE_LAST)
        r = times(rules, global, narrowed(narrow, times(rules, a, c)));
    if (rules->ratio == GB_RATIO_DIVIDE_ENCODE)
        r = times(rules, global, narrowed(narrow, over(rules, a, m)));
    if (rules->ratio == GB_RATIO_DIVIDE_PRODUCT)
        r = over(rules, a, times(rules, m, global));
    if (rules->ratio == GB_RATIO_DIVIDE_TWICE)
        r = over(rules, narrowed(narrow, over(rules, a, m)), global);
    if (rules->ratio == GB_RATIO_INVERSE)
        r = over(rules, 1, over(rules, m, a));
    if (r != r)
        return r;
    if (flush(rules, r) == 0)
        r = rules->ratio_if_zero;
    if (rules->bound == GB_BOUND_RATIO)
        r = fminf(r, bound);
    r = fmaxf(r, rules->ratio_min);
    return rules->ratio_max != 0 ? fminf(r, rules->ratio_max) : r;
}

/* The greatest E8M0 code whose power is at most r; 0 if none is. */
static unsigned power_below(double r)
{
    unsigned code = 0;

    while (code < 0xFE && oracle_e8m0_decode(code + 1) <= r)
        code++;
    return code;
}

/* The least E8M0 code whose power is at least r; 0xFE if none is. */
static unsigned power_above(double r)
{
    unsigned code = 0;

    while (code < 0xFE && oracle_e8m0_decode(code) < r)
        code++;
    return code;
}

/* What adding 2^(22 - bits) to the encoding makes of a number. */
static double encoding_plus(float r, unsigned bits)
{
    int exponent;

    if (isinf(r))
        return (double)r;
    frexp((double)r, &exponent);
    int last = r < FLT_MIN ? -149 : exponent - 24; /* exponent of the last bit of the significand */
    double sum = (double)r + ldexp(1, last + 22 - (int)bits);
    return sum < ldexp(1, 128) ? sum : (double)INFINITY;
}

static unsigned e8m0_code(const struct gb_quantiser *rules, float r)
{
    double down = 1, x = (double)r;

    if (rules->ratio == GB_RATIO_POWER)
        while (down * 2 <= (double)rules->largest)
            down *= 2;
    if (rules->scale_rounding == GB_SCALE_EVEN)
        x = encoding_plus(r, rules->mantissa_bits);
    if (isinf(x)) {
        if (rules->scale_infinity)
            return rules->scale_infinity;
        x = ldexp(1, 128);
    }
    if (rules->scale_rounding == GB_SCALE_CEIL_FRACTION && r > 0 && r < FLT_MIN)
        x = ldexp(1, -126);
    if (rules->scale_rounding == GB_SCALE_CEIL || rules->scale_rounding == GB_SCALE_CEIL_FRACTION)
        return power_above(x / down);
    return power_below(x / down);
}

static unsigned e4m3_code(const struct gb_quantiser *rules, float r)
{
    unsigned code = 0;

    if (rules->scale_rounding != GB_SCALE_LLAMA_CPP)
        return oracle_encode(ORACLE_E4M3, r);
    if (r < 0x1p-6f) {
        float n = floorf(oracle_add(oracle_multiply(512, r), 0.5f));
        return n < 7 ? (unsigned)n : 7;
    }
    while (code < 0x7E && (oracle_decode(ORACLE_E4M3, code) + oracle_decode(ORACLE_E4M3, code + 1)) / 2 <= (double)r)
        code++;
    return oracle_decode(ORACLE_E4M3, code) > 240 ? 0x7E : code;
}

static struct scale round_scale(const struct gb_quantiser *rules, float r)
{
    bool e4m3 = rules->scale == GB_SCALE_E4M3;
    struct scale scale = {0, r};

    if (rules->scale == GB_SCALE_FP32)
        return scale;
    if (r != r) {
        scale.code = rules->scale_nan ? rules->scale_nan : e4m3 ? 0x7F : 0xFF;
    } else {
        scale.code = e4m3 ? e4m3_code(rules, r) : e8m0_code(rules, r);
        if (scale.code == 0)
            scale.code = rules->scale_if_zero;
        if (scale.code < rules->scale_min)
            scale.code = rules->scale_min;
        if (rules->scale_max && scale.code > rules->scale_max)
            scale.code = rules->scale_max;
    }
    scale.value = (float)(e4m3 ? oracle_decode(ORACLE_E4M3, scale.code) : oracle_e8m0_decode(scale.code));
    return scale;
}

static bool multiplier_vanishes(const struct gb_quantiser *rules, float a, float r, struct scale scale)
{
    if (rules->zero_multiplier == GB_ZERO_IF_AMAX_IS)
        return flush(rules, a) == 0;
    if (rules->zero_multiplier == GB_ZERO_IF_RATIO_IS)
        return flush(rules, r) == 0;
    if (rules->zero_multiplier == GB_ZERO_IF_SCALE_IS)
        return rules->scale == GB_SCALE_FP32 ? flush(rules, scale.value) == 0 : scale.code == 0;
    return false;
}

static float multiplier(const struct gb_quantiser *rules, float a, float global, struct scale scale)
{
    float s = scale.value, m = NAN;

    if (rules->quotient == GB_QUOTIENT_POWER && scale.code != 0xFF) {
        m = (float)ldexp(1, 127 - (int)scale.code);
        if (scale.code == 0 && rules->multiplier_lowest != 0)
            m = rules->multiplier_lowest;
    }
    if (rules->quotient == GB_QUOTIENT_RECIPROCAL)
        m = over(rules, 1, s);
    if (rules->quotient == GB_QUOTIENT_AMAX)
        m = over(rules, rules->largest, a);
    if (rules->quotient == GB_QUOTIENT_ENCODE_PRODUCT)
        m = over(rules, 1, times(rules, s, over(rules, 1, global)));
    if (rules->quotient == GB_QUOTIENT_ENCODE)
        m = over(rules, global, s);
    if (rules->quotient == GB_QUOTIENT_DECODE)
        m = over(rules, over(rules, 1, global), s);
    return rules->multiplier_max != 0 ? fminf(m, rules->multiplier_max) : m;
}

static float quotient(const struct gb_quantiser *rules, float x, float a, float r, float global, struct scale scale)
{
    float q;

    if (multiplier_vanishes(rules, a, r, scale))
        q = times(rules, x, 0);
    else if (rules->quotient == GB_QUOTIENT_DIVIDE)
        q = over(rules, x, scale.value);
    else if (rules->quotient == GB_QUOTIENT_DIVIDE_PRODUCT)
        q = over(rules, x, times(rules, scale.value, global));
    else if (rules->quotient == GB_QUOTIENT_DIVIDE_ENCODE)
        q = over(rules, x, over(rules, scale.value, global));
    else
        q = times(rules, x, multiplier(rules, a, global, scale));
    return narrowed(rules->intermediate, q);
}

static double magnitude_of(enum gb_element_format element, unsigned magnitude)
{
    static const enum oracle_format formats[] = {
        [GB_E2M1] = ORACLE_E2M1, [GB_E4M3] = ORACLE_E4M3, [GB_E4M3FNUZ] = ORACLE_E4M3FNUZ,
        [GB_E5M2] = ORACLE_E5M2, [GB_E3M2] = ORACLE_E3M2, [GB_E2M3] = ORACLE_E2M3,
    };
    return element == GB_INT8 ? (double)magnitude : oracle_decode(formats[element], magnitude);
}

/* The code whose magnitude has this index. */
static unsigned with_sign(enum gb_element_format element, unsigned magnitude, bool negative)
{
    static const unsigned signs[] = {[GB_E2M1] = 8,    [GB_E4M3] = 128,  [GB_E4M3FNUZ] = 128, [GB_E5M2] = 128,
                                     [GB_E3M2] = 0x20, [GB_E2M3] = 0x20, [GB_INT8] = 0};
    bool no_minus_zero = element == GB_E4M3FNUZ || element == GB_INT8;

    if (!negative || (magnitude == 0 && no_minus_zero))
        return magnitude;
    return element == GB_INT8 ? 256 - magnitude : magnitude + signs[element];
}

static unsigned nan_code(const struct gb_quantiser *rules, unsigned most, bool negative)
{
    static const unsigned nans[] = {[GB_E2M1] = 7,    [GB_E4M3] = 127,  [GB_E4M3FNUZ] = 128, [GB_E5M2] = 127,
                                    [GB_E3M2] = 0x1F, [GB_E2M3] = 0x1F, [GB_INT8] = 0};

    if (rules->element_nan == GB_NAN_IS_ZERO)
        return 0;
    if (rules->element_nan == GB_NAN_IS_LARGEST)
        return most;
    if (rules->element_nan == GB_NAN_IS_LOWEST)
        return rules->element == GB_INT8 ? 128 : with_sign(rules->element, most, true);
    bool sign = rules->element_nan == GB_NAN_KEEPS_SIGN && negative && rules->element != GB_E4M3FNUZ;
    return sign ? with_sign(rules->element, nans[rules->element], true) : nans[rules->element];
}

static unsigned code_of(const struct gb_quantiser *rules, float q, float value)
{
    unsigned magnitude = 0;
    double x = fmin(fabs((double)q), (double)rules->largest), here = magnitude_of(rules->element, 0);
    bool negative = q < 0;

    if (q != q) {
        while (magnitude_of(rules->element, magnitude) < (double)rules->largest)
            magnitude++;
        return nan_code(rules, magnitude, signbit(value));
    }
    while (here < (double)rules->largest) { /* up while the next magnitude is what the rule asks for */
        double next = magnitude_of(rules->element, magnitude + 1), middle = (here + next) / 2;
        bool up = rules->rounding == GB_TRUNCATE ? next <= x : middle < x;
        if (rules->rounding == GB_TIES_TO_EVEN && middle == x)
            up = magnitude % 2 == 1;
        if (!up)
            break;
        here = next;
        magnitude++;
    }
    if (magnitude == 0 && rules->zero_sign == GB_ZERO_KEEPS_SIGN)
        negative = signbit(q);
    if (magnitude == 0 && rules->zero_sign == GB_ZERO_IS_POSITIVE)
        negative = false;
    if (magnitude == 0 && rules->zero_sign == GB_ZERO_NEGATIVE_UNLESS_ABOVE)
        negative = !(q > 0);
    return with_sign(rules->element, magnitude, negative);
}

static float candidate_error(const struct gb_quantiser *rules, const float *block, size_t count, float a, float r,
                             float global)
{
    struct scale scale = round_scale(rules, r);
    float sum = 0;

    for (size_t i = 0; i < count; i++) {
        float code =
            (float)oracle_decode(ORACLE_E2M1, code_of(rules, quotient(rules, block[i], a, r, global, scale), block[i]));
        float value = times(rules, times(rules, code, scale.value), over(rules, 1, global));
        float t = plus(rules, value, -block[i]);
        sum = plus(rules, sum, rules->four_over_six == GB_FOUR_OVER_SIX_SQUARE ? times(rules, t, t) : fabsf(t));
    }
    return sum;
}

/* block [count] -> codes [count] */
static struct scale quantise_block(const struct gb_quantiser *rules, const float *block, size_t count, float global,
                                   float bound, uint8_t *codes)
{
    float a = block_amax(rules, block, count, bound);
    float r = ratio(rules, a, global, bound);

    if (rules->four_over_six && flush(rules, a) == 0) {
        for (size_t i = 0; i < count; i++)
            codes[i] = 0;
        return (struct scale){0, 0};
    }
    if (rules->four_over_six) {
        float four = times(rules, r, 1.5f);
        if (candidate_error(rules, block, count, a, four, global) < candidate_error(rules, block, count, a, r, global))
            r = four;
    }
    struct scale scale = round_scale(rules, r);
    for (size_t i = 0; i < count; i++)
        codes[i] = (uint8_t)code_of(rules, quotient(rules, block[i], a, r, global, scale), block[i]);
    return scale;
}

/* r and the scale of a block whose largest magnitude is A. */
static struct scale scale_of(const struct gb_quantiser *rules, float A, float d, float *global, float *r)
{
    *global = rules->global == GB_GLOBAL_DECODE ? d : oracle_divide(1, d);
    *r = ratio(rules, fmaxf(rules->amax_start, A), *global, INFINITY);
    return round_scale(rules, *r);
}

double oracle_quantised_scale(const struct gb_quantiser *rules, float A, float d)
{
    float global, r;
    return (double)scale_of(rules, A, d, &global, &r).value;
}

double oracle_quantised_number(const struct gb_quantiser *rules, float A, float v, float d)
{
    static const enum oracle_format formats[] = {
        [GB_E2M1] = ORACLE_E2M1, [GB_E4M3] = ORACLE_E4M3, [GB_E4M3FNUZ] = ORACLE_E4M3FNUZ,
        [GB_E5M2] = ORACLE_E5M2, [GB_E3M2] = ORACLE_E3M2, [GB_E2M3] = ORACLE_E2M3,
    };
    float global, r, a = fmaxf(rules->amax_start, A);
    struct scale scale = scale_of(rules, A, d, &global, &r);
    unsigned code = code_of(rules, quotient(rules, v, a, r, global, scale), v);
    double number = rules->element == GB_INT8 ? (double)(code < 128 ? (int)code : (int)code - 256)
                                              : oracle_decode(formats[rules->element], code);
    return number * (double)scale.value * (rules->global == GB_GLOBAL_NONE ? 1 : (double)d);
}

void oracle_quantise(const struct gb_quantiser *rules, const float *values, uint32_t rows, uint32_t columns,
                     float global, float bound, uint8_t *codes, uint8_t *scale_codes, float *scale_values)
{
    uint32_t wide = rules->block_columns ? rules->block_columns : columns;
    size_t most = (size_t)rules->block_rows * wide, at = 0;
    float *block = malloc(most * sizeof *block);
    uint8_t *block_codes = malloc(most);

    if (!block || !block_codes)
        abort();
    for (uint32_t top = 0; top < rows; top += rules->block_rows)
        for (uint32_t left = 0; left < columns; left += wide, at++) {
            size_t count = 0;
            for (uint32_t i = top; i < rows && i < top + rules->block_rows; i++)
                for (uint32_t j = left; j < columns && j < left + wide; j++)
                    block[count++] = values[(size_t)i * columns + j];
            struct scale scale = quantise_block(rules, block, count, global, bound, block_codes);
            scale_codes[at] = (uint8_t)scale.code;
            scale_values[at] = scale.value;
            count = 0;
            for (uint32_t i = top; i < rows && i < top + rules->block_rows; i++)
                for (uint32_t j = left; j < columns && j < left + wide; j++)
                    codes[(size_t)i * columns + j] = block_codes[count++];
        }
    free(block);
    free(block_codes);
}
