/* SPDX-License-Identifier: Apache-2.0 */
/* e^x, correctly rounded: one double evaluation rounded once. tests/reference/exhaustive_exp.c proves it for every
 * input. */
#include <math.h>

#include "reference/reference.h"

float gb_exp(float x)
{
    return (float)exp((double)x);
}
