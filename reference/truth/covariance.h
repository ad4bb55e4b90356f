/* SPDX-License-Identifier: Apache-2.0 */
/* Private: covariance of errors that arise at the outputs alone, so that those of one token are independent too. */
#ifndef GB_REFERENCE_TRUTH_COVARIANCE_H
#define GB_REFERENCE_TRUTH_COVARIANCE_H

#include "reference/reference.h"

/* Zeroed. The caller then fills in the slots' shares of the output. gb_covariance_free in any case. */
enum gb_status gb_covariance_start(const struct gb_shape *shape, struct gb_covariance *covariance,
                                   struct gb_error *error);
/* A slot's share of a token's output, later its direction: [hidden]. token: below covariance->tokens. */
float *gb_covariance_slot(const struct gb_covariance *covariance, uint32_t token, uint32_t slot);
/* From the shares, and what codes that are open may do. of: output_sigma, and output_underflow or NULL. */
enum gb_status gb_covariance_independent(const struct gb_bounds *of, struct gb_covariance *covariance,
                                         struct gb_error *error);

/* Codes that are open, of the tokens that are not left out. */
struct gb_open_codes {
    uint32_t *start;     /* [tokens * top_k + 1]: where the codes of a pair begin in column */
    uint32_t *column;    /* [open]: of the intermediate */
    const double *flips; /* [tokens, top_k, intermediate] */
};

/* Which they are, and room for what they may do; flips NULL: none. gb_open_codes_free in any case. */
enum gb_status gb_open_codes_new(const struct gb_shape *shape, const double *flips, struct gb_covariance *covariance,
                                 struct gb_open_codes *open, struct gb_error *error);
void gb_open_codes_free(struct gb_open_codes *open);
/* A row of down's weights, [intermediate], for one pair and output r; weight: the pair's routing weight. Returns what
 * flips may add to the sum of magnitudes, without that weight. */
double gb_open_codes_row(const struct gb_open_codes *open, struct gb_covariance *covariance, uint32_t top_k,
                         uint32_t intermediate, uint32_t pair, uint32_t r, const double *row, double weight);
/* When all rows have been added; deviation is known. */
void gb_open_codes_close(struct gb_covariance *covariance);

#endif
