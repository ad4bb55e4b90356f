/* SPDX-License-Identifier: Apache-2.0 */
/* Private: what dispatch and combine share: checked arguments, and in which order a rank receives rows. */
#ifndef GB_REFERENCE_EXCHANGE_H
#define GB_REFERENCE_EXCHANGE_H

#include "reference/reference.h"

/* The rows of all ranks: docs/numerics.md#dispatch. */
struct gb_rows {
    int32_t *counts; /* [ranks, experts], of a sender's tokens to an expert */
    int32_t *routes; /* [rows], the route of each row */
    int32_t *row;    /* [ranks * tokens * top_k], the row of each route, -1 of an empty slot */
};
/* Arguments as gb_exchange_check found them good. GB_ENOMEM. */
enum gb_status gb_rows_new(const struct gb_arguments *arguments, struct gb_rows *rows, struct gb_error *error);
void gb_rows_free(struct gb_rows *rows);

/* Whether the operator is defined for what is asked. GB_EINVAL with the reason. */
enum gb_status gb_exchange_check(const struct gb_exchange *exchange, enum gb_operator operation,
                                 struct gb_error *error);
/* The same of all that both operators read: placement, ids, and that there are as many routes as rows. */
enum gb_status gb_exchange_check_routes(const struct gb_arguments *arguments, enum gb_operator operation,
                                        struct gb_error *error);

#endif
