/* SPDX-License-Identifier: Apache-2.0 */
/* Private: the order fma32/1 on decoded rows, and the grouping of (token, slot) pairs by expert. */
#ifndef GB_REFERENCE_DOT_H
#define GB_REFERENCE_DOT_H

#include "quant/quant.h"
#include "reference/reference.h"

/* One decoded weight row. */
struct gb_row {
    uint32_t columns;
    uint32_t chunk;   /* elements in 16 bytes of codes */
    uint32_t block;   /* elements that share a scale; a whole chunk where there are no scales */
    float *codes;     /* [columns], without scale */
    float *scales;    /* [columns / block], rounded up */
    float global;
};

/* Buffers for rows of these weights. GB_ENOMEM. */
enum gb_status gb_row_new(const struct gb_weights *weights, struct gb_row *row, struct gb_error *error);
void gb_row_free(struct gb_row *row);
void gb_row_decode(const struct gb_weights *weights, uint32_t expert, uint32_t index, struct gb_row *row);

/* row . x in the order fma32/1. x: [row->columns]. */
float gb_row_dot(const struct gb_row *row, const float *x);

/* The (token, slot) pairs of each expert in ascending order: pair = token * top_k + slot. */
struct gb_groups {
    uint32_t active;   /* experts with at least one pair */
    uint32_t most;     /* pairs of the expert that has the most */
    uint32_t *expert;  /* [active] */
    uint32_t *start;   /* [active + 1] */
    uint32_t *pair;    /* [start[active]] */
};

/* GB_EINVAL if an id is out of range; empty slots (-1) belong to no group. */
enum gb_status gb_groups_new(const struct gb_shape *shape, const int32_t *ids, struct gb_groups *groups,
                             struct gb_error *error);
void gb_groups_free(struct gb_groups *groups);

/* Shapes, ids and pointers of an operator agree. GB_EINVAL. */
enum gb_status gb_arguments_check(const struct gb_arguments *arguments, enum gb_operator operation,
                                  struct gb_error *error);

#endif
