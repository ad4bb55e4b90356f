/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the worker: of a problem over ranks the part of one, as a problem of its own. */
#ifndef GB_HARNESS_RUN_RANK_PART_H
#define GB_HARNESS_RUN_RANK_PART_H

#include "fixtures/fixtures.h"

struct rank_part {
    struct gb_fixture fixture; /* its arrays are those of the whole, but for exchanged.routes, which is its own */
    uint32_t first;            /* row of the whole that is its first one */
};

/* rendezvous: what its exchange points to; NULL where no kernel runs. whole lives as long. GB_ENOMEM, GB_EINVAL: it has
 * no such rank. */
enum gb_status rank_part_new(const struct gb_fixture *whole, uint32_t rank, const char *rendezvous,
                             struct rank_part *part, struct gb_error *error);
void rank_part_free(struct rank_part *part);

#endif
