/* SPDX-License-Identifier: Apache-2.0 */
/* Private: what the operators share: checked arguments, and the grouping of (token, slot) pairs by expert. */
#ifndef GB_REFERENCE_OPERATORS_H
#define GB_REFERENCE_OPERATORS_H

#include "quant/quant.h"
#include "reference/order.h"
#include "reference/reference.h"

/* The (token, slot) pairs of each expert in ascending order: pair = token * top_k + slot. */
struct gb_groups {
    uint32_t active;  /* experts with at least one pair */
    uint32_t most;    /* pairs of the expert that has the most */
    uint32_t *expert; /* [active] */
    uint32_t *start;  /* [active + 1] */
    uint32_t *pair;   /* [start[active]] */
};

/* GB_EINVAL if an id is out of range; empty slots (-1) belong to no group. */
enum gb_status gb_groups_new(const struct gb_shape *shape, const int32_t *ids, struct gb_groups *groups,
                             struct gb_error *error);
void gb_groups_free(struct gb_groups *groups);

/* The arguments' extension; of a caller that does not know the fields, none. */
struct gb_extension gb_arguments_extension(const struct gb_arguments *arguments);

/* One expert's row of a bias [experts, count]; NULL if there is none. */
static inline const float *gb_bias_of(const float *bias, uint32_t expert, uint32_t count)
{
    return bias ? bias + (size_t)expert * count : NULL;
}

/* Whether the routing weight multiplies x, as far as the caller knows of it. */
bool gb_weighs_input(const struct gb_arguments *arguments);

/* The arguments; of a caller that does not know the last fields, zeros there. */
struct gb_arguments gb_arguments_known(const struct gb_arguments *arguments);

/* Quantised activations are defined for the operator. GB_EINVAL. */
enum gb_status gb_activations_check(const struct gb_contract *contract, const struct gb_arguments *arguments,
                                    enum gb_operator operation, struct gb_error *error);

/* Shapes, ids and pointers of an operator agree, and are of the contract. GB_EINVAL. */
enum gb_status gb_arguments_check(const struct gb_contract *contract, const struct gb_arguments *arguments,
                                  enum gb_operator operation, struct gb_error *error);

#endif
