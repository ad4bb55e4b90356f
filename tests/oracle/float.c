/* SPDX-License-Identifier: Apache-2.0 */
/* binary32 in integers: an exact product, sum or quotient of at most 128 bits, rounded once. */
#include "tests/oracle/oracle.h"

#include <string.h>

typedef unsigned __int128 wide;

enum kind { FINITE, INFINITE, NOT_A_NUMBER };

/* (-1)^negative * significand * 2^exponent */
struct number {
    enum kind kind;
    bool negative;
    wide significand;
    int exponent;
};

static const int least_exponent = -149; /* of the last bit of the smallest subnormal */

static struct number unpack(float value)
{
    uint32_t bits;
    struct number number = {FINITE, false, 0, least_exponent};

    memcpy(&bits, &value, sizeof bits);
    uint32_t exponent = bits >> 23 & 0xFF;
    uint32_t fraction = bits & 0x7FFFFF;
    number.negative = bits >> 31;
    number.significand = fraction;
    if (exponent == 0xFF) {
        number.kind = fraction ? NOT_A_NUMBER : INFINITE;
    } else if (exponent) {
        number.significand += 1u << 23;
        number.exponent = (int)exponent - 127 - 23;
    }
    return number;
}

static float pack(bool negative, uint32_t magnitude)
{
    uint32_t bits = magnitude + (negative ? 1u << 31 : 0);
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static float pack_nan(void)
{
    return pack(false, 0x7FC00000);
}

static int bit_length(wide value)
{
    uint64_t high = (uint64_t)(value >> 64), low = (uint64_t)value;

    if (high)
        return 128 - __builtin_clzll(high);
    return low ? 64 - __builtin_clzll(low) : 0;
}

/* To nearest, ties to even. significand != 0; its last bit may stand for any nonzero remainder below it, if at
 * least 26 bits are above that. */
static float round_once(bool negative, wide significand, int exponent)
{
    int last = exponent + bit_length(significand) - 24; /* exponent of the result's last bit */
    if (last < least_exponent)
        last = least_exponent;
    int dropped = last - exponent;
    wide kept = significand;

    if (dropped > 127) {
        kept = 0;
    } else if (dropped > 0) {
        wide unit = (wide)1 << dropped;
        wide remainder = significand % unit;
        kept = significand / unit;
        if (remainder > unit / 2 || (remainder == unit / 2 && kept % 2 == 1))
            kept++;
    } else {
        kept <<= -dropped;
    }

    /* kept <= 2^24; a subnormal's exponent field is 0, a carry out of the significand moves into the exponent. */
    if (kept < 1u << 23)
        return pack(negative, (uint32_t)kept);
    if (last + 23 > 127)
        return pack(negative, 0x7F800000);
    return pack(negative, ((uint32_t)(last + 23 + 127) << 23) + (uint32_t)kept - (1u << 23));
}

/* Moves the leading bit to bit 123. */
static void normalise(struct number *number)
{
    int shift = 124 - bit_length(number->significand);

    number->significand <<= shift;
    number->exponent -= shift;
}

/* a + b for finite numbers of at most 48 significant bits. */
static float add_numbers(struct number a, struct number b)
{
    if (a.significand == 0 && b.significand == 0)
        return pack(a.negative && b.negative, 0);
    if (a.significand == 0)
        return round_once(b.negative, b.significand, b.exponent);
    if (b.significand == 0)
        return round_once(a.negative, a.significand, a.exponent);

    normalise(&a);
    normalise(&b);
    if (a.exponent < b.exponent) {
        struct number swap = a;
        a = b;
        b = swap;
    }
    int shift = a.exponent - b.exponent;
    wide lost = shift > 127 ? b.significand : b.significand % ((wide)1 << shift);
    wide aligned = shift > 127 ? 0 : b.significand >> shift;
    if (lost)
        aligned |= 1;

    if (a.negative == b.negative)
        return round_once(a.negative, a.significand + aligned, a.exponent);
    if (a.significand == aligned)
        return pack(false, 0);
    if (a.significand > aligned)
        return round_once(a.negative, a.significand - aligned, a.exponent);
    return round_once(b.negative, aligned - a.significand, a.exponent);
}

float oracle_fma(float a, float b, float c)
{
    struct number x = unpack(a), y = unpack(b), z = unpack(c);
    bool negative = x.negative != y.negative;

    if (x.kind == NOT_A_NUMBER || y.kind == NOT_A_NUMBER || z.kind == NOT_A_NUMBER)
        return pack_nan();
    if (x.kind == INFINITE || y.kind == INFINITE) {
        bool zero_times_infinity = (x.kind == FINITE && x.significand == 0) || (y.kind == FINITE && y.significand == 0);
        if (zero_times_infinity || (z.kind == INFINITE && z.negative != negative))
            return pack_nan();
        return pack(negative, 0x7F800000);
    }
    if (z.kind == INFINITE)
        return c;
    struct number product = {FINITE, negative, x.significand * y.significand, x.exponent + y.exponent};
    return add_numbers(product, z);
}

float oracle_add(float a, float b)
{
    return oracle_fma(a, 1, b);
}

/* -0 is the one addend that changes no product, not even a zero's sign. */
float oracle_multiply(float a, float b)
{
    return oracle_fma(a, b, pack(true, 0));
}

float oracle_divide(float a, float b)
{
    struct number x = unpack(a), y = unpack(b);
    bool negative = x.negative != y.negative;
    bool x_zero = x.kind == FINITE && x.significand == 0;
    bool y_zero = y.kind == FINITE && y.significand == 0;

    if (x.kind == NOT_A_NUMBER || y.kind == NOT_A_NUMBER || (x_zero && y_zero) ||
        (x.kind == INFINITE && y.kind == INFINITE))
        return pack_nan();
    if (x.kind == INFINITE || y_zero)
        return pack(negative, 0x7F800000);
    if (x_zero || y.kind == INFINITE)
        return pack(negative, 0);

    /* At least 100 - 24 quotient bits, and one more that says whether anything was left. */
    wide dividend = x.significand << 100;
    wide quotient = dividend / y.significand * 2;
    if (dividend % y.significand)
        quotient++;
    return round_once(negative, quotient, x.exponent - y.exponent - 101);
}
