/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdbool.h>

#include "harness/judge/admissible.h"
#include "quant/quant.h"

static uint32_t encode_bf16(float value)
{
    return gb_bf16_encode(value).bits;
}

static float decode_bf16(uint32_t code)
{
    return gb_bf16_decode((gb_bf16){(uint16_t)code});
}

static uint32_t encode_e4m3(float value)
{
    return gb_e4m3_encode(value).bits;
}

static float decode_e4m3(uint32_t code)
{
    return gb_e4m3_decode((gb_e4m3){(uint8_t)code});
}

static uint32_t encode_e2m1(float value)
{
    return gb_e2m1_encode(value).bits;
}

static float decode_e2m1(uint32_t code)
{
    return gb_e2m1_decode((gb_e2m1){(uint8_t)code});
}

const struct rounding rounding_bf16 = {encode_bf16, decode_bf16, 0x8000};
const struct rounding rounding_e4m3 = {encode_e4m3, decode_e4m3, 0x80};
const struct rounding rounding_e2m1 = {encode_e2m1, decode_e2m1, 0x8};

/* The code of a float64, which is first moved to the next binary32 in the direction of `limit`: what lies beyond it is
 * rounded no further. */
static float rounded(const struct rounding *r, double value, float limit)
{
    float near = (float)value;
    bool short_of_it = limit > 0.0f ? (double)near < value : (double)near > value;
    return r->decode(r->encode(short_of_it ? nextafterf(near, limit) : near));
}

enum admissibility admissibility_of(const struct rounding *r, uint32_t subject, uint32_t reference,
                                    const struct unrounded *v)
{
    float value = r->decode(subject);
    if (value == r->decode(reference) || (isnan(value) && isnan(r->decode(reference))))
        return CODE_SAME;
    if (isnan(v->truth) || isnan(v->limit)) /* an infinite interval has any code in it */
        return isnan(value) ? CODE_ADMISSIBLE : CODE_INADMISSIBLE;
    return value >= rounded(r, v->truth - v->limit, -INFINITY) && value <= rounded(r, v->truth + v->limit, INFINITY)
               ? CODE_ADMISSIBLE
               : CODE_INADMISSIBLE;
}

/* What lies half way from a code to the next one of smaller magnitude; below zero comes the other sign. */
static double inner_boundary(const struct rounding *r, uint32_t code)
{
    uint32_t magnitude = code & ~r->sign, sign = code & r->sign;
    if (!magnitude)
        return -0.5 * ((double)r->decode(sign) + (double)r->decode(sign | 1));
    return 0.5 * ((double)r->decode(code) + (double)r->decode(code - 1));
}

/* To the next one of larger magnitude. The last one has all that lies beyond it. */
static double outer_boundary(const struct rounding *r, uint32_t code)
{
    float next = ((code + 1) & r->sign) == (code & r->sign) ? r->decode(code + 1) : NAN;
    return isnan(next) ? (code & r->sign ? -INFINITY : INFINITY) : 0.5 * ((double)r->decode(code) + (double)next);
}

/* P(error >= distance) of an error with this mean, by Cantelli's inequality, less what underflow may add to it. */
static double reaches(double distance, double mean, const struct unrounded *v)
{
    double beyond = distance - v->underflow - mean;
    if (distance > v->worst)
        return 0.0;
    return beyond <= 0.0 ? 1.0 : v->variance / (v->variance + beyond * beyond);
}

double flip_probability(const struct rounding *r, uint32_t code, const struct unrounded *v)
{
    double a = outer_boundary(r, code), b = inner_boundary(r, code);
    if (isnan(v->truth))
        return 0.0;
    double above = fmax(a, b) - v->truth, below = v->truth - fmin(a, b); /* below 0: one mean of the two reaches it */
    double up = reaches(above, v->bias, v) + reaches(below, -v->bias, v);
    double down = reaches(above, -v->bias, v) + reaches(below, v->bias, v);
    return fmin(1.0, fmax(up, down));
}

/* Chernoff's bound: P(flips >= k) <= exp(-(k ln(k / m) - k + m)) for a sum of independent flips of mean m < k. */
uint64_t differences_allowed(double expected, uint64_t codes, double probability)
{
    double needed = log(1.0 / probability);
    uint64_t low = (uint64_t)expected, high = codes; /* low + 1 .. high + 1: where the first k that is improbable is */
    while (low < high) {
        double k = (double)(low + (high - low) / 2 + 1), m = fmax(expected, 1e-300);
        if (k > m && k * log(k / m) - k + m >= needed)
            high = (uint64_t)k - 1;
        else
            low = (uint64_t)k;
    }
    return low < codes ? low : codes;
}
