/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formats from their definitions. A format is the sorted list of its finite magnitudes; encoding counts the
 * midpoints below the value. Values and midpoints have few significant bits, so doubles hold them exactly.
 */
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A sign, `exponent` and `mantissa` bits. */
struct format {
    unsigned exponent;
    unsigned mantissa;
    int bias;
    unsigned finite;   /* magnitudes 0 .. finite-1 are numbers, in ascending order */
    unsigned infinity; /* the magnitude of infinity; 0: the format has none */
    unsigned largest;  /* the magnitude that encoding overflows to */
    unsigned nan;      /* the magnitude that encoding gives a NaN */
    bool nan_keeps_sign;
    bool one_nan;       /* the code of -0 is NaN and the only one */
    double *magnitudes; /* [finite + 1]: the last is what rounding overflows to */
    double *midpoints;  /* [finite]: between magnitudes i and i + 1; the last is where rounding overflows */
};

static struct format formats[] = {
    [ORACLE_E2M1] = {2, 1, 1, 8, 0, 7, 7, false, false, NULL, NULL}, /* has no NaN: one becomes +6 */
    [ORACLE_E4M3] = {4, 3, 7, 127, 0, 126, 127, false, false, NULL, NULL},
    [ORACLE_E5M2] = {5, 2, 15, 0x7C, 0x7C, 0x7B, 0x7F, false, false, NULL, NULL},
    [ORACLE_BF16] = {8, 7, 127, 0x7F80, 0x7F80, 0x7F80, 0x7FC0, true, false, NULL, NULL},
    [ORACLE_FP16] = {5, 10, 15, 0x7C00, 0x7C00, 0x7C00, 0x7E00, true, false, NULL, NULL},
    [ORACLE_E4M3FNUZ] = {4, 3, 8, 128, 0, 127, 128, false, true, NULL, NULL},
    [ORACLE_E3M2] = {3, 2, 3, 32, 0, 31, 31, false, false, NULL,
                     NULL}, /* no NaN here and below: one becomes the largest */
    [ORACLE_E2M3] = {2, 3, 1, 32, 0, 31, 31, false, false, NULL, NULL},
};

/* The value the bits would have if no code were reserved: infinity's code becomes the next power of two, which is
 * what IEEE 754 rounds overflow against. */
static double magnitude_value(const struct format *format, unsigned magnitude)
{
    unsigned mantissa = magnitude % (1u << format->mantissa);
    unsigned exponent = magnitude >> format->mantissa;
    double fraction = mantissa / (double)(1u << format->mantissa);

    if (exponent == 0)
        return ldexp(fraction, 1 - format->bias);
    return ldexp(1 + fraction, (int)exponent - format->bias);
}

double oracle_decode(enum oracle_format element, unsigned code)
{
    const struct format *format = &formats[element];
    unsigned sign_bit = 1u << (format->exponent + format->mantissa);
    unsigned magnitude = code % sign_bit;
    double value;

    if (format->one_nan && code == sign_bit)
        return (double)NAN;
    if (magnitude < format->finite)
        value = format->magnitudes[magnitude];
    else if (format->infinity && magnitude == format->infinity)
        value = (double)INFINITY;
    else
        return (double)NAN;
    return code & sign_bit ? -value : value;
}

/* 2^(code - 127) of each code. */
static double powers[256];

/* Runs before main, so that threads find the tables in place. */
__attribute__((constructor)) static void fill_tables(void)
{
    for (unsigned f = 0; f < sizeof formats / sizeof *formats; f++) {
        formats[f].magnitudes = malloc((formats[f].finite + 1) * sizeof(double));
        formats[f].midpoints = malloc(formats[f].finite * sizeof(double));
        if (!formats[f].magnitudes || !formats[f].midpoints)
            abort();
        for (unsigned i = 0; i <= formats[f].finite; i++)
            formats[f].magnitudes[i] = magnitude_value(&formats[f], i);
        for (unsigned i = 0; i < formats[f].finite; i++)
            formats[f].midpoints[i] = (formats[f].magnitudes[i] + formats[f].magnitudes[i + 1]) / 2;
    }
    for (int code = 0; code < 256; code++)
        powers[code] = code == 0xFF ? (double)NAN : ldexp(1, code - 127);
}

__attribute__((destructor)) static void free_tables(void)
{
    for (unsigned f = 0; f < sizeof formats / sizeof *formats; f++) {
        free(formats[f].magnitudes);
        free(formats[f].midpoints);
    }
}

/* The magnitude nearest to x >= 0, the even one where two are equally near. */
static unsigned nearest(const struct format *format, double x)
{
    unsigned low = 0, high = format->finite; /* midpoints[low - 1] < x <= midpoints[high] */

    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (format->midpoints[middle] < x)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < format->finite && format->midpoints[low] == x && low % 2 == 1)
        low++;
    return low < format->largest ? low : format->largest;
}

static bool is_negative(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >> 31;
}

unsigned oracle_encode(enum oracle_format element, float value)
{
    const struct format *format = &formats[element];
    unsigned sign = is_negative(value) ? 1u << (format->exponent + format->mantissa) : 0;

    if (value != value)
        return format->nan + (format->nan_keeps_sign ? sign : 0);
    unsigned magnitude = nearest(format, fabs((double)value));
    return magnitude == 0 && format->one_nan ? 0 : magnitude + sign;
}

unsigned oracle_bits(enum oracle_format element)
{
    return 1 + formats[element].exponent + formats[element].mantissa;
}

unsigned oracle_finite(enum oracle_format element)
{
    return formats[element].finite;
}

double oracle_magnitude(enum oracle_format element, unsigned magnitude)
{
    return formats[element].magnitudes[magnitude];
}

double oracle_e8m0_decode(unsigned code)
{
    return powers[code & 0xFF];
}

/* The least power of two that is not below |value|; the largest there is if all are. */
unsigned oracle_e8m0_encode(float value)
{
    unsigned low = 0, high = 0xFE;

    if (value != value)
        return 0xFF;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (oracle_e8m0_decode(middle) < fabs((double)value))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
