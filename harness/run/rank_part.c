/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/rank_part.h"

#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/reference.h"

enum gb_status rank_part_new(const struct gb_fixture *whole, uint32_t rank, const char *rendezvous,
                             struct rank_part *part, struct gb_error *error)
{
    const struct gb_exchanged *e = &whole->exchanged;
    const uint32_t tokens = e->asked.tokens, slots = tokens * e->asked.top_k;
    memset(part, 0, sizeof *part);
    if (rank >= e->asked.ranks)
        return gb_fail(error, GB_EINVAL, "rank %u of %u", rank, e->asked.ranks);
    const struct gb_arguments a = gb_fixture_exchange_arguments(whole);
    int32_t *routes = malloc(sizeof *routes * e->asked.rows);
    enum gb_status status = routes ? gb_reference_routes(&a, routes, error)
                                   : gb_fail(error, GB_ENOMEM, "no memory for the rows of rank %u", rank);
    if (status != GB_OK) {
        free(routes);
        return status;
    }
    part->fixture = *whole;
    struct gb_exchanged *to = &part->fixture.exchanged;
    to->asked.one_rank = 1;
    to->asked.rank = rank;
    to->asked.rendezvous = rendezvous;
    to->asked.rows = 0;
    for (uint32_t row = 0; row < e->asked.rows; row++) {
        int32_t receiver = e->placement[e->ids[routes[row]]];
        part->first += receiver < (int32_t)rank;
        to->asked.rows += receiver == (int32_t)rank;
    }
    part->fixture.shape.tokens = tokens;
    to->ids += (size_t)rank * slots;
    to->x = e->x ? e->x + (size_t)rank * tokens * e->asked.hidden : NULL;
    to->routing_weights = e->rows ? e->routing_weights + (size_t)rank * slots : NULL;
    to->rows = e->rows ? e->rows + (size_t)part->first * e->asked.hidden : NULL;
    to->routes = NULL;
    if (e->rows) { /* a rank that sums knows whose its rows are */
        memmove(routes, routes + part->first, sizeof *routes * to->asked.rows);
        to->routes = routes;
    } else {
        free(routes);
    }
    return GB_OK;
}

void rank_part_free(struct rank_part *part)
{
    free(part->fixture.exchanged.routes);
    memset(part, 0, sizeof *part);
}
