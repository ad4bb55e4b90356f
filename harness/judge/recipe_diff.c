/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/judge/recipe_diff.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum kind { CHOICE, COUNT, BYTE, NUMBER };
enum { VALUES = 9 };

/* A field and the values that it is tried with. Of a choice, names[i] is the name of values[i]. */
struct field {
    const char *name;
    size_t offset;
    enum kind kind;
    double values[VALUES];
    const char *names[VALUES]; /* [0] NULL: values are printed as numbers */
    unsigned count;
};

#define AT(field) #field, offsetof(struct gb_quantiser, field)

static const struct field fields[] = {
    {AT(global), CHOICE, {GB_GLOBAL_ENCODE, GB_GLOBAL_ENCODE_RECIPROCAL}, {"largest/A", "largest*(1/A)"}, 2},
    {AT(amax_start), NUMBER, {0, 1e-10f, 0x1.b8p-34f, 1e-6f, 1e-4f}, {0}, 5}, /* and bf16(1e-10) */
    {AT(amax_nan), CHOICE, {0, 1, 2}, {"drops-nan", "propagates-nan", "nan-if-all-are"}, 3},
    {AT(ratio),
     CHOICE,
     {GB_RATIO_POWER, GB_RATIO_DIVIDE, GB_RATIO_MULTIPLY, GB_RATIO_ENCODE_FIRST, GB_RATIO_ENCODE_LAST,
      GB_RATIO_DIVIDE_ENCODE, GB_RATIO_DIVIDE_PRODUCT, GB_RATIO_DIVIDE_TWICE, GB_RATIO_INVERSE},
     {"power", "a/M", "a*C", "a*(G*C)", "G*(a*C)", "G*(a/M)", "a/(M*d)", "(a/M)/d", "1/(M/a)"},
     9},
    {AT(ratio_intermediate), CHOICE, {0, 1, 2}, {"fp32", "bf16", "fp16"}, 3},
    {AT(ratio_if_zero), NUMBER, {0, 0.125, 1}, {0}, 3},
    {AT(ratio_min),
     NUMBER,
     {0, 1.0f / (448 * 512.0f), 1.0f / (224 * 512.0f), FLT_EPSILON, FLT_MIN, 1e-10f, 0x1p-9, 0x1p-6},
     {0},
     8},
    {AT(four_over_six), CHOICE, {0, 1, 2}, {"six", "four-over-six-absolute", "four-over-six-square"}, 3},
    {AT(scale_rounding),
     CHOICE,
     {GB_SCALE_NEAREST, GB_SCALE_FLOOR, GB_SCALE_CEIL, GB_SCALE_EVEN, GB_SCALE_CEIL_FRACTION, GB_SCALE_LLAMA_CPP},
     {"nearest", "floor", "ceil", "even", "ceil-fraction", "llama-cpp"},
     6},
    {AT(mantissa_bits), COUNT, {1, 2, 3}, {0}, 3},
    {AT(scale_min), BYTE, {0, 1, 8}, {0}, 3},
    {AT(scale_max), BYTE, {0, 0x77}, {0}, 2},
    {AT(scale_if_zero), BYTE, {0, 1, 0x20, 0x38}, {0}, 4},
    {AT(scale_infinity), BYTE, {0, 0xFE, 0xFF}, {0}, 3},
    {AT(scale_nan), BYTE, {0, 0x7E, 0xFE}, {0}, 3},
    {AT(quotient),
     CHOICE,
     {GB_QUOTIENT_DIVIDE, GB_QUOTIENT_RECIPROCAL, GB_QUOTIENT_POWER, GB_QUOTIENT_AMAX, GB_QUOTIENT_DIVIDE_PRODUCT,
      GB_QUOTIENT_DIVIDE_ENCODE, GB_QUOTIENT_ENCODE_PRODUCT, GB_QUOTIENT_ENCODE, GB_QUOTIENT_DECODE},
     {"x/s", "x*(1/s)", "x*2^(127-code)", "x*(M/a)", "x/(s*d)", "x/(s/G)", "x*(1/(s*(1/G)))", "x*(G/s)", "x*((1/d)/s)"},
     9},
    {AT(multiplier_max), NUMBER, {0, FLT_MAX, 448 * 512.0f}, {0}, 3},
    {AT(multiplier_lowest), NUMBER, {0, 1, 0x1p126f}, {0}, 3},
    {AT(zero_multiplier), CHOICE, {0, 1, 2, 3}, {"never", "if-amax-is", "if-ratio-is", "if-scale-is"}, 4},
    {AT(intermediate), CHOICE, {0, 1, 2}, {"fp32", "bf16", "fp16"}, 3},
    {AT(rounding), CHOICE, {0, 1, 2}, {"ties-to-even", "ties-to-zero", "truncate"}, 3},
    {AT(element_nan), CHOICE, {0, 1, 2, 3, 4}, {"nan", "nan-keeps-sign", "largest", "lowest", "zero"}, 5},
    {AT(zero_sign), CHOICE, {0, 1, 2, 3}, {"keeps-sign", "sign-of-value", "positive", "negative-unless-above"}, 4},
    {AT(flush_subnormals), COUNT, {0, 1}, {0}, 2},
};
enum { FIELDS = sizeof fields / sizeof *fields };

static double get(const struct gb_quantiser *rules, const struct field *field)
{
    const char *at = (const char *)rules + field->offset;
    uint32_t count;
    float number;
    if (field->kind == BYTE)
        return *(const uint8_t *)at;
    memcpy(&count, at, sizeof count);
    memcpy(&number, at, sizeof number);
    return field->kind == NUMBER ? (double)number : count;
}

static void set(struct gb_quantiser *rules, const struct field *field, double value)
{
    char *at = (char *)rules + field->offset;
    uint32_t count = field->kind == NUMBER ? 0 : (uint32_t)value;
    float number = (float)value;
    if (field->kind == BYTE)
        *(uint8_t *)at = (uint8_t)count;
    else if (field->kind == NUMBER)
        memcpy(at, &number, sizeof number);
    else
        memcpy(at, &count, sizeof count);
}

static void print(const struct field *field, double value, char text[32])
{
    for (unsigned i = 0; i < field->count; i++)
        if (field->names[0] && field->values[i] == value) {
            snprintf(text, 32, "%s", field->names[i]);
            return;
        }
    if (field->kind == BYTE)
        snprintf(text, 32, "0x%02X", (unsigned)value);
    else
        snprintf(text, 32, "%.9g", value);
}

/* Which formulas go with which global scale and which type of scale. */
static bool possible(const struct gb_quantiser *q)
{
    static const enum gb_global ratio_of[] = {
        [GB_RATIO_ENCODE_FIRST] = GB_GLOBAL_ENCODE,  [GB_RATIO_ENCODE_LAST] = GB_GLOBAL_ENCODE,
        [GB_RATIO_DIVIDE_ENCODE] = GB_GLOBAL_ENCODE, [GB_RATIO_DIVIDE_PRODUCT] = GB_GLOBAL_DECODE,
        [GB_RATIO_DIVIDE_TWICE] = GB_GLOBAL_DECODE,  [GB_RATIO_INVERSE] = GB_GLOBAL_NONE,
    };
    static const enum gb_global quotient_of[] = {
        [GB_QUOTIENT_DIVIDE_PRODUCT] = GB_GLOBAL_DECODE, [GB_QUOTIENT_DIVIDE_ENCODE] = GB_GLOBAL_ENCODE,
        [GB_QUOTIENT_ENCODE_PRODUCT] = GB_GLOBAL_ENCODE, [GB_QUOTIENT_ENCODE] = GB_GLOBAL_ENCODE,
        [GB_QUOTIENT_DECODE] = GB_GLOBAL_DECODE,
    };
    bool e8m0 = q->scale == GB_SCALE_E8M0;
    enum gb_global global = q->global == GB_GLOBAL_ENCODE_RECIPROCAL ? GB_GLOBAL_ENCODE : q->global;
    if (ratio_of[q->ratio] != global || quotient_of[q->quotient] != global)
        return false;
    if ((q->ratio == GB_RATIO_POWER || q->quotient == GB_QUOTIENT_POWER) && !e8m0)
        return false;
    switch (q->scale_rounding) {
    case GB_SCALE_NEAREST:
        return !e8m0;
    case GB_SCALE_LLAMA_CPP:
        return q->scale == GB_SCALE_E4M3;
    default:
        return e8m0;
    }
}

/* Whether anything is computed from the field. */
static bool read_by(const struct gb_quantiser *q, const struct field *field)
{
    bool divides = q->quotient == GB_QUOTIENT_DIVIDE || q->quotient == GB_QUOTIENT_DIVIDE_PRODUCT ||
                   q->quotient == GB_QUOTIENT_DIVIDE_ENCODE;
    switch (field->offset) {
    case offsetof(struct gb_quantiser, mantissa_bits):
        return q->scale_rounding == GB_SCALE_EVEN;
    case offsetof(struct gb_quantiser, ratio_if_zero):
    case offsetof(struct gb_quantiser, ratio_min):
        return q->ratio != GB_RATIO_POWER;
    case offsetof(struct gb_quantiser, ratio_intermediate):
        return q->ratio == GB_RATIO_DIVIDE || q->ratio == GB_RATIO_MULTIPLY || q->ratio == GB_RATIO_ENCODE_LAST ||
               q->ratio == GB_RATIO_DIVIDE_ENCODE || q->ratio == GB_RATIO_DIVIDE_TWICE;
    case offsetof(struct gb_quantiser, scale_min):
    case offsetof(struct gb_quantiser, scale_max):
    case offsetof(struct gb_quantiser, scale_if_zero):
    case offsetof(struct gb_quantiser, scale_nan):
        return q->scale != GB_SCALE_FP32;
    case offsetof(struct gb_quantiser, scale_infinity):
        return q->scale == GB_SCALE_E8M0;
    case offsetof(struct gb_quantiser, four_over_six):
        return q->scale == GB_SCALE_E4M3 && q->global != GB_GLOBAL_NONE && q->global != GB_GLOBAL_DECODE;
    case offsetof(struct gb_quantiser, multiplier_max):
        return !divides;
    case offsetof(struct gb_quantiser, multiplier_lowest):
        return q->quotient == GB_QUOTIENT_POWER;
    default:
        return true;
    }
}

bool rule_change_next(const struct gb_quantiser *rules, unsigned index, struct rule_change *change)
{
    for (unsigned f = 0; f < FIELDS; f++)
        for (unsigned v = 0; v < fields[f].count; v++) {
            change->rules = *rules;
            set(&change->rules, &fields[f], fields[f].values[v]);
            if (get(rules, &fields[f]) == get(&change->rules, &fields[f]) || !read_by(rules, &fields[f]) ||
                !possible(&change->rules) || index-- > 0)
                continue;
            change->rule = fields[f].name;
            print(&fields[f], get(rules, &fields[f]), change->from);
            print(&fields[f], get(&change->rules, &fields[f]), change->to);
            return true;
        }
    return false;
}
