/* SPDX-License-Identifier: Apache-2.0 */
#include "reference/truth/underflow.h"

#include <math.h>

#include "quant/quant.h"
#include "reference/truth/bounds.h"

/* The largest codes of E2M1 and E4M3, and the largest E4M3 scale. */
static const double largest_e2m1 = 6.0, largest_e4m3 = 448.0;

/* At least 1. NaN counts nothing: where it is a factor, truth is NaN. */
static double at_least_one(float value)
{
    return fmax(1.0, fabs((double)value));
}

double gb_weights_reach(const struct gb_weights *weights, uint32_t expert, uint32_t row)
{
    float code, scale;
    gb_weights_largest(weights, expert, row, &code, &scale);
    return at_least_one(code) * at_least_one(scale) * at_least_one(gb_weights_global(weights, expert, row));
}

double gb_activations_reach(const double *value, const double *limit, uint32_t count, const struct gb_quantiser *rules,
                            const float *global)
{
    double most = 1.0;
    for (uint32_t i = 0; i < count; i++)
        most = fmax(most, fabs(value[i]) + (limit ? limit[i] : 0.0));
    if (!rules)
        return most;
    if (rules->global != GB_GLOBAL_NONE)
        return largest_e2m1 * largest_e4m3 * at_least_one(*global);
    return largest_e4m3 * most;
}

double gb_underflow_unit(const struct gb_rounding_points *points)
{
    return ldexp(1.0, -125 - (int)points->accumulator_bits);
}

double gb_underflow(const struct gb_rounding_points *points, double terms, double roundings, double all, double reach)
{
    double u = ldexp(1.0, -(int)points->accumulator_bits);
    return (terms + 1.0) * roundings * gb_underflow_unit(points) * (1.0 + gamma_n(all, u)) * reach;
}
