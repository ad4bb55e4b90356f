/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/study/ranks.h"

#include "harness/run/processes.h"
#include "quant/quant.h"

struct study_ranks study_ranks = {.count = 1, .groups = 1, .members = 1};

enum gb_status study_ranks_join(char **argv, struct gb_error *error)
{
    enum gb_status status = processes_join(argv, error);
    study_ranks.rank = processes.process;
    study_ranks.count = processes.count;
    study_ranks.groups = 0; /* none, until they are divided */
    study_ranks_divide(1);
    return status;
}

void study_ranks_divide(uint32_t groups)
{
    struct study_ranks *r = &study_ranks;
    if (groups == r->groups)
        return;
    r->groups = groups;
    r->group = r->rank % groups;
    r->member = r->rank / groups;
    r->members = (r->count - r->group + groups - 1) / groups;
    if (processes.count > 1)
        processes.divide(r->group, r->rank);
}

void study_ranks_share(bool everyone, void *bytes, size_t count, uint32_t from)
{
    if ((everyone ? study_ranks.count : study_ranks.members) > 1)
        processes.broadcast(everyone, bytes, count, from);
}

double study_ranks_largest(bool everyone, double value)
{
    uint32_t count = everyone ? study_ranks.count : study_ranks.members;
    double largest = value;
    for (uint32_t r = 0; r < count; r++) {
        double other = value;
        study_ranks_share(everyone, &other, sizeof other, r);
        largest = other > largest ? other : largest;
    }
    return largest;
}

enum gb_status study_ranks_agree(bool everyone, enum gb_status status, struct gb_error *error)
{
    uint32_t count = everyone ? study_ranks.count : study_ranks.members;
    for (uint32_t r = 0; r < count; r++) {
        enum gb_status other = status;
        study_ranks_share(everyone, &other, sizeof other, r);
        if (other == GB_OK)
            continue;
        study_ranks_share(everyone, error, sizeof *error, r);
        return other;
    }
    return GB_OK;
}
