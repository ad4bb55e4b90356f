/* SPDX-License-Identifier: Apache-2.0 */
/*
 * silu(x) = x / (1 + e^-x), correctly rounded: docs/numerics.md#silu.
 *
 * Where |x| < 2^-125 the result x/2 + x^2/4 - ... has x/2 exactly on a tie of binary32 for odd subnormals, and
 * the positive second term decides: a double just above x/2 rounds the right way. Elsewhere one double evaluation
 * rounded once is right; tests/reference/exhaustive_silu.c proves it for every input.
 */
#include <math.h>
#include <string.h>

#include "quant/multiversion.h"
#include "reference/reference.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((simd("notinbranch"))) double exp(double); /* glibc has it on vectors, within 4 ulp: libmvec */
#endif

float gb_silu(float x)
{
    if (isnan(x))
        return x;
    if (isinf(x))
        return x > 0 ? x : -0.0f;
    if (x != 0.0f && fabsf(x) < 0x1p-125f)
        return (float)nextafter((double)x / 2, INFINITY);
    return (float)((double)x / (1.0 + exp(-(double)x)));
}

/*
 * A vectorised exp is off by at most 4 ulp, so 1 + exp by at most 4.5 times 2^-52 of itself and the quotient by 5
 * times: 10 of its ulps, where these are smallest. y[i] is right where no tie of binary32 is as near as SPREAD of the
 * double's ulps; elsewhere, and where x or y is extreme, unsure[i] is not 0.
 */
GB_VECTOR_CLONES static void one_evaluation(const float *x, uint32_t count, float *y, uint32_t *unsure)
{
    enum { LOST_BITS = 53 - 24, TIE = 1 << (LOST_BITS - 1), SPREAD = 16 };
#pragma omp simd
    for (uint32_t i = 0; i < count; i++) {
        double exact = x[i], value = exact / (1.0 + exp(-exact));
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        uint32_t lost = (uint32_t)bits & ((1u << LOST_BITS) - 1);
        y[i] = (float)value;
        unsure[i] = (lost - (TIE - SPREAD) <= 2 * SPREAD) | !(fabs(exact) < 100) | !(fabs(value) > 0x1p-126);
    }
}

void gb_silu_all(const float *x, uint32_t count, float *y)
{
    enum { AT_ONCE = 256 };
    uint32_t unsure[AT_ONCE];
    for (uint32_t first = 0; first < count; first += AT_ONCE) {
        uint32_t some = count - first < AT_ONCE ? count - first : AT_ONCE;
        one_evaluation(x + first, some, y + first, unsure);
        for (uint32_t i = 0; i < some; i++)
            if (unsure[i])
                y[first + i] = gb_silu(x[first + i]);
    }
}
