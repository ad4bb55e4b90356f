/* SPDX-License-Identifier: Apache-2.0 */
/* Private: moments of errors that arise at the outputs alone, so that those of one token are independent too. */
#ifndef GB_REFERENCE_MOMENTS_H
#define GB_REFERENCE_MOMENTS_H

#include "reference/reference.h"

/* Zeroed. The caller then fills in the slots' shares of the output. gb_moments_free in any case. */
enum gb_status gb_moments_start(const struct gb_shape *shape, struct gb_moments *moments, struct gb_error *error);
/* A slot's share of a token's output, later its direction: [hidden]. token: below moments->tokens. */
float *gb_moments_slot(const struct gb_moments *moments, uint32_t token, uint32_t slot);
/* From the shares. sigma: [tokens, hidden]. */
void gb_moments_independent(const double *sigma, struct gb_moments *moments);

#endif
