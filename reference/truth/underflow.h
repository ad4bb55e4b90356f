/* SPDX-License-Identifier: Apache-2.0 */
/* Private: what products and sums lose below binary32's normal range. docs/numerics.md#underflow. */
#ifndef GB_REFERENCE_TRUTH_UNDERFLOW_H
#define GB_REFERENCE_TRUTH_UNDERFLOW_H

#include "reference/reference.h"

/* A: what the factors of a row's weights may multiply an error by. */
double gb_weights_reach(const struct gb_weights *weights, uint32_t expert, uint32_t row);
/* B: the same of activations, [count], each at most |value| + limit; limit NULL: 0. rules: of their codes, with the
 * global scale *global; NULL: they are bf16. */
double gb_activations_reach(const double *value, const double *limit, uint32_t count, const struct gb_quantiser *rules,
                            const float *global);
/* U of a sum of `terms` terms, each rounded `roundings` times at most on its way, `all` roundings in a row. */
double gb_underflow(const struct gb_rounding_points *points, double terms, double roundings, double all, double reach);
/* eta: what one rounding loses there. */
double gb_underflow_unit(const struct gb_rounding_points *points);

#endif
