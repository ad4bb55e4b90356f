/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm in float64: docs/numerics.md#rms_norm. */
#include <math.h>

#include "reference/reference.h"

void gb_rms_norm(const double *x, const float *weight, uint32_t hidden, double epsilon, double *y)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < hidden; i++)
        sum += x[i] * x[i];
    double root = sqrt(sum / hidden + epsilon);
    for (uint32_t i = 0; i < hidden; i++)
        y[i] = x[i] / root * (double)weight[i];
}
