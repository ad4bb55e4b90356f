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
/* The first row of each sender's tokens for each expert: receivers in rank order; of a receiver, senders in rank order;
 * of those, its experts in id order. start: [ranks, experts]. */
void gb_rows_begin(const struct gb_exchange *exchange, const int32_t *placement, const int32_t *counts, int32_t *start);
/* Codes and scales of exchange->rows rows from x. routes: [rows], from the first token of x on. */
enum gb_status gb_dispatch_rows(const struct gb_arguments *arguments, const int32_t *routes, struct gb_error *error);

/* Whether the operator is defined for what is asked. GB_EINVAL with the reason. */
enum gb_status gb_exchange_check(const struct gb_exchange *exchange, enum gb_operator operation,
                                 struct gb_error *error);
/* The same of all that both operators read: placement, and ids of `count` ranks from rank `first` on, of which it
 * counts the routes. */
enum gb_status gb_exchange_check_slots(const struct gb_arguments *arguments, enum gb_operator operation, uint32_t first,
                                       uint32_t count, size_t *routes, struct gb_error *error);
/* The same of all ranks, which have as many routes as rows. */
enum gb_status gb_exchange_check_routes(const struct gb_arguments *arguments, enum gb_operator operation,
                                        struct gb_error *error);

#endif
