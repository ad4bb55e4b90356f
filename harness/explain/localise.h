/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: which tokens, columns and experts an error is confined to. */
#ifndef GB_HARNESS_EXPLAIN_LOCALISE_H
#define GB_HARNESS_EXPLAIN_LOCALISE_H

#include <stdbool.h>

#include "harness/judge/case_result.h"

/* Errors of [tokens, hidden]; those that are not finite count as the largest. Of intermediates, "tokens" are slots. */
struct error_location {
    uint32_t tokens, hidden;
    uint32_t rows_per_token; /* 1, or top_k where "tokens" are slots */
    bool *token, *column;    /* [tokens], [hidden]: whether there is an error in it */
    uint32_t wrong_tokens, wrong_columns;
    int32_t expert; /* the only one that all wrong tokens have and no other token has; -1: none */
};

enum gb_status error_location_new(const double *errors, uint32_t tokens, uint32_t hidden, const int32_t *ids,
                                  uint32_t top_k, struct error_location *location, struct gb_error *error);
void error_location_free(struct error_location *location);
/* Fills in tokens, columns and expert, each where the error is confined to some. */
void error_location_name(const struct error_location *location, uint32_t first_token, struct explanation *explanation);

#endif
