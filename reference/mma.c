/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor cores' sums in integers; every step is numbered as in docs/numerics.md#mma. */
#include <string.h>

#include "reference/mma.h"

static const struct gb_mma_unit units[] = {
    {"sm_80", 24, 8, -133, false},
    {"sm_89", 24, 8, -133, false},
    {"sm_90", 25, 16, -133, true},
    {"sm_100", 25, 16, -133, false},
};

const struct gb_mma_unit *gb_mma_units(uint32_t *count)
{
    *count = sizeof units / sizeof *units;
    return units;
}

const struct gb_mma_unit *gb_mma_unit_find(const char *name)
{
    for (uint32_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strcmp(units[i].name, name))
            return &units[i];
    return NULL;
}

enum { MOST_PRODUCTS = 16, NOTHING = INT32_MIN };

/* A binary floating-point number: (-1)^negative * significand * 2^(exponent - fraction). */
struct number {
    bool negative, infinite, nan;
    int32_t exponent;
    uint32_t fraction; /* bits */
    uint64_t significand;
};

/* bits: a sign, `exponents` and then `fraction` bits, as IEEE 754 has them. Subnormal numbers are not normalised. */
static struct number unpack(uint32_t bits, uint32_t exponents, uint32_t fraction)
{
    const uint32_t most = (1u << exponents) - 1, field = bits >> fraction & most;
    const uint32_t low = bits & ((1u << fraction) - 1);
    const int32_t bias = (int32_t)(most >> 1);
    struct number n = {.negative = bits >> (exponents + fraction) & 1, .fraction = fraction};
    n.infinite = field == most && low == 0;
    n.nan = field == most && low != 0;
    n.exponent = (int32_t)(field ? field : 1) - bias;
    n.significand = field ? low | 1u << fraction : low;
    return n;
}

static struct number unpack16(enum gb_format format, uint16_t bits)
{
    return format == GB_BF16 ? unpack(bits, 8, 7) : unpack(bits, 5, 10);
}

static struct number unpack32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return unpack(bits, 8, 23);
}

/* Exact; step 1. */
static struct number times(struct number a, struct number b)
{
    const bool zero = (!a.infinite && !a.significand) || (!b.infinite && !b.significand);
    struct number p = {.negative = a.negative != b.negative, .fraction = a.fraction + b.fraction};
    p.infinite = a.infinite || b.infinite;
    p.nan = a.nan || b.nan || (p.infinite && zero);
    p.exponent = a.exponent + b.exponent;
    p.significand = a.significand * b.significand;
    return p;
}

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* sum * 2^unit toward zero in binary32; what reaches 2^128 is infinite, and every zero is +0: step 5. */
static float pack(int64_t sum, int32_t unit)
{
    const uint32_t sign = sum < 0 ? 0x80000000u : 0;
    uint64_t magnitude = (uint64_t)(sum < 0 ? -sum : sum);
    if (magnitude == 0)
        return 0.0f;
    for (; magnitude >> 24; unit++)
        magnitude >>= 1;
    for (; unit < -149 && magnitude; unit++)
        magnitude >>= 1;
    for (; !(magnitude >> 23) && unit > -149; unit--)
        magnitude <<= 1;
    if (magnitude == 0)
        return 0.0f;
    if (unit > 127 - 23)
        return from_bits(sign | 0x7F800000u);
    const uint32_t field = magnitude >> 23 ? (uint32_t)(unit + 150) : 0;
    return from_bits(sign | field << 23 | ((uint32_t)magnitude & 0x7FFFFFu));
}

/* Up to unit->products products and c. */
static float add_up(const struct gb_mma_unit *unit, enum gb_format format, const uint16_t *a, const uint16_t *b,
                    uint32_t count, float c)
{
    struct number terms[MOST_PRODUCTS + 1];
    bool nan = false, positive = false, negative = false;
    int32_t largest = NOTHING;
    for (uint32_t i = 0; i < count; i++)
        terms[i] = times(unpack16(format, a[i]), unpack16(format, b[i]));
    terms[count] = unpack32(c);
    for (uint32_t i = 0; i <= count; i++) { /* step 2 */
        nan |= terms[i].nan;
        positive |= terms[i].infinite && !terms[i].negative;
        negative |= terms[i].infinite && terms[i].negative;
        if (terms[i].significand && terms[i].exponent > largest) /* step 3 */
            largest = terms[i].exponent;
    }
    if (nan || (positive && negative))
        return from_bits(0x7FFFFFFFu);
    if (positive || negative)
        return from_bits(positive ? 0x7F800000u : 0xFF800000u);
    if (largest == NOTHING)
        return 0.0f;
    if (largest < unit->least_exponent)
        largest = unit->least_exponent;
    int64_t sum = 0;
    for (uint32_t i = 0; i <= count; i++) { /* step 4 */
        const int32_t below = largest - terms[i].exponent;
        const uint64_t aligned = terms[i].significand << (unit->fraction_bits - terms[i].fraction);
        const int64_t kept = terms[i].significand && below < 64 ? (int64_t)(aligned >> below) : 0;
        sum += terms[i].negative ? -kept : kept;
    }
    return pack(sum, largest - (int32_t)unit->fraction_bits);
}

float gb_mma(const struct gb_mma_unit *unit, enum gb_format format, const uint16_t *a, const uint16_t *b,
             uint32_t count, float c)
{
    for (uint32_t i = 0; i < count; i += unit->products) {
        const uint32_t rest = count - i;
        c = add_up(unit, format, a + i, b + i, rest < unit->products ? rest : unit->products, c);
    }
    return c;
}
