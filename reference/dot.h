/* SPDX-License-Identifier: Apache-2.0 */
/* Private: the order fma32/1 on rows of weights, and the grouping of (token, slot) pairs by expert. */
#ifndef GB_REFERENCE_DOT_H
#define GB_REFERENCE_DOT_H

#include <math.h>

#include "quant/quant.h"
#include "reference/reference.h"

/* Before a function with fmaf in it: it is compiled twice, with the CPU's instruction and with libm's function, which
 * give the same bits, and the CPU at hand decides. clang 14 names the pair otherwise than its callers do. */
#if defined(__x86_64__) && !defined(__clang__)
#define GB_FMA_CLONES __attribute__((target_clones("fma", "default")))
#else
#define GB_FMA_CLONES
#endif

/* The value, and for any NaN the one of docs/numerics.md#nan: which NaN an operation gives is the CPU's, and its
 * compiler's, choice. */
static inline float gb_one_nan(float value)
{
    return isnan(value) ? NAN : value;
}

/* One decoded weight row. */
struct gb_row {
    uint32_t columns;
    uint32_t chunk; /* elements in 16 bytes of codes */
    uint32_t block; /* elements that share a scale; a whole chunk where there are no scales */
    float *codes;   /* [columns], without scale */
    float *scales;  /* [columns / block], rounded up */
    float global;
};

/* Buffers for rows of these weights. GB_ENOMEM. */
enum gb_status gb_row_new(const struct gb_weights *weights, struct gb_row *row, struct gb_error *error);
void gb_row_free(struct gb_row *row);
void gb_row_decode(const struct gb_weights *weights, uint32_t expert, uint32_t index, struct gb_row *row);

/* row . x in the order fma32/1: its definition in plain C. x: [row->columns]; x_scales: [row->columns / row->block],
 * rounded up, of FP8 activations, or NULL. */
float gb_row_dot(const struct gb_row *row, const float *x, const float *x_scales);

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

/* Activations as the path in force reads them (enum gb_cpu_path): plainly one after the other, or in lanes. */
struct gb_activations {
    enum gb_cpu_path path;
    float *values;
    const float **vector; /* one for each pair of the groups, or for each activation where there are no groups */
    const float **scales; /* likewise, of FP8 activations; NULL: of others */
};

/* An operator's activations and weights. Quantised activations are the numbers of their codes, their global scale is
 * in that of the weights. */
struct gb_operand {
    const gb_bf16 *x;          /* [rows, weights.columns] */
    const float *x_scales;     /* [rows, weights.columns / 128], of FP8 activations, or NULL */
    struct gb_weights weights; /* gate_up or down */
    gb_bf16 *numbers;          /* from here on: memory of its own */
    void *codes, *scales;
    float *globals; /* [experts, parts] */
};

/* Quantises x (GB_GATE_UP) or the intermediate (GB_DOWN) if the arguments name a recipe; given: its codes and scales
 * are in the arguments instead. GB_EINVAL, GB_ENOMEM. */
enum gb_status gb_operand_new(const struct gb_arguments *arguments, enum gb_operator operation, bool given,
                              struct gb_operand *operand, struct gb_error *error);
void gb_operand_free(struct gb_operand *operand);

/* Activations for rows of the operand's weights, of which there are `count`. With groups, vector[n] is activation
 * groups->pair[n] / share; without (NULL), activation n. GB_ENOMEM. */
enum gb_status gb_activations_new(const struct gb_operand *operand, size_t count, const struct gb_groups *groups,
                                  uint32_t share, struct gb_activations *activations, struct gb_error *error);
void gb_activations_free(struct gb_activations *activations);

/* Consecutive rows of one part of one expert, times several activations. */
struct gb_product {
    const struct gb_weights *weights;
    uint32_t expert;
    uint32_t row; /* the first one */
    uint32_t rows;
    uint32_t count;
    enum gb_cpu_path path;
    const float *const *x;        /* [count], of the path's struct gb_activations */
    const float *const *x_scales; /* likewise, or NULL */
};

/*
 * How many rows of an expert an operator gives to gb_dots at once: many, since they follow each other in memory and are
 * read as one stream, but every thread needs work, and `dots` floats a row should stay in its cache. At least 1.
 */
uint32_t gb_rows_at_once(uint32_t rows, uint32_t experts, size_t dots);

/* The product's dot products, the same bits on every path. decoded: scratch of gb_row_new for these weights;
 * dots: [product->rows, product->count]. */
void gb_dots(const struct gb_product *product, struct gb_row *decoded, float *dots);

/* The arguments' extension; of a caller that does not know the fields, none. */
struct gb_extension gb_arguments_extension(const struct gb_arguments *arguments);

/* One expert's row of a bias [experts, count]; NULL if there is none. */
static inline const float *gb_bias_of(const float *bias, uint32_t expert, uint32_t count)
{
    return bias ? bias + (size_t)expert * count : NULL;
}

/* Whether the routing weight multiplies x, as far as the caller knows of it. */
bool gb_weighs_input(const struct gb_arguments *arguments);
/* silu(gate) * up, or another activation, in FP32: docs/numerics.md#gate_up. */
float gb_gated(enum gb_activation activation, float gate, float up);

/* The arguments; of a caller that does not know the last fields, zeros there. */
struct gb_arguments gb_arguments_known(const struct gb_arguments *arguments);

/* Quantised activations are defined for the operator. GB_EINVAL. */
enum gb_status gb_activations_check(const struct gb_arguments *arguments, enum gb_operator operation,
                                    struct gb_error *error);

/* Shapes, ids and pointers of an operator agree. GB_EINVAL. */
enum gb_status gb_arguments_check(const struct gb_arguments *arguments, enum gb_operator operation,
                                  struct gb_error *error);

#endif
