/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formats from their definitions. A format is the sorted list of its finite magnitudes; encoding counts the
 * midpoints below the value. Values and midpoints have few significant bits, so doubles hold them exactly.
 */
#include "tests/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A sign, `exponent` and `mantissa` bits. */
struct format {
    unsigned exponent;
    unsigned mantissa;
    int bias;
    unsigned finite;      /* magnitudes 0 .. finite-1 are numbers, in ascending order */
    unsigned infinity;    /* the magnitude of infinity; 0: the format has none and saturates */
    double *midpoints;    /* [finite]: between magnitudes i and i + 1; the last is where rounding overflows */
};

static struct format e2m1 = {2, 1, 1, 8, 0, NULL};
static struct format e4m3 = {4, 3, 7, 127, 0, NULL};
static struct format bf16 = {8, 7, 127, 0x7F80, 0x7F80, NULL};
static const struct format fp16 = {5, 10, 15, 0x7C00, 0x7C00, NULL};

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

static double decode(const struct format *format, unsigned code)
{
    unsigned sign_bit = 1u << (format->exponent + format->mantissa);
    unsigned magnitude = code % sign_bit;
    double value;

    if (magnitude < format->finite)
        value = magnitude_value(format, magnitude);
    else if (format->infinity && magnitude == format->infinity)
        value = (double)INFINITY;
    else
        return (double)NAN;
    return code & sign_bit ? -value : value;
}

/* Runs before main, so that threads find the midpoints in place. */
__attribute__((constructor)) static void fill_midpoints(void)
{
    struct format *formats[] = {&e2m1, &e4m3, &bf16};

    for (unsigned f = 0; f < 3; f++) {
        formats[f]->midpoints = malloc(formats[f]->finite * sizeof(double));
        if (!formats[f]->midpoints)
            abort();
        for (unsigned i = 0; i < formats[f]->finite; i++)
            formats[f]->midpoints[i] = (magnitude_value(formats[f], i) + magnitude_value(formats[f], i + 1)) / 2;
    }
}

__attribute__((destructor)) static void free_midpoints(void)
{
    free(e2m1.midpoints);
    free(e4m3.midpoints);
    free(bf16.midpoints);
}

/* The magnitude nearest to |value|, the even one where two are equally near. */
static unsigned nearest(const struct format *format, float value)
{
    double x = fabs((double)value);
    unsigned low = 0, high = format->finite; /* midpoints[low - 1] < x <= midpoints[high] */
    unsigned largest = format->infinity ? format->infinity : format->finite - 1;

    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (format->midpoints[middle] < x)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < format->finite && format->midpoints[low] == x && low % 2 == 1)
        low++;
    return low < largest ? low : largest;
}

static bool is_negative(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >> 31;
}

double oracle_e2m1_decode(unsigned code)
{
    return decode(&e2m1, code);
}

double oracle_e4m3_decode(unsigned code)
{
    return decode(&e4m3, code);
}

double oracle_bf16_decode(unsigned code)
{
    return decode(&bf16, code);
}

double oracle_fp16_decode(unsigned code)
{
    return decode(&fp16, code);
}

unsigned oracle_e2m1_encode(float value)
{
    if (value != value)
        return 7;
    return nearest(&e2m1, value) + (is_negative(value) ? 8 : 0);
}

unsigned oracle_e4m3_encode(float value)
{
    if (value != value)
        return 0x7F;
    return nearest(&e4m3, value) + (is_negative(value) ? 0x80 : 0);
}

unsigned oracle_bf16_encode(float value)
{
    unsigned sign = is_negative(value) ? 0x8000 : 0;

    if (value != value)
        return 0x7FC0 + sign;
    return nearest(&bf16, value) + sign;
}
