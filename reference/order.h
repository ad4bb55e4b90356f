/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private: what an order of accumulation is made of. An order is one file with one struct gb_order, its contracts are
 * rows of contracts.h; the operators reach it through their contract alone.
 */
#ifndef GB_REFERENCE_ORDER_H
#define GB_REFERENCE_ORDER_H

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
    uint32_t block; /* elements that share a scale; 0: no scales */
    float *codes;   /* [columns], without scale */
    float *scales;  /* [columns / block], rounded up */
    float global;
};

/* Buffers for rows of these weights. GB_ENOMEM. */
enum gb_status gb_row_new(const struct gb_weights *weights, struct gb_row *row, struct gb_error *error);
void gb_row_free(struct gb_row *row);
void gb_row_decode(const struct gb_weights *weights, uint32_t expert, uint32_t index, struct gb_row *row);

struct gb_groups;

/* Activations as an order's path reads them. */
struct gb_activations {
    enum gb_cpu_path path;
    void *values;
    const void **vector;  /* one for each pair of the groups, or for each activation where there are no groups */
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
enum gb_status gb_activations_new(const struct gb_order *order, const struct gb_operand *operand, size_t count,
                                  const struct gb_groups *groups, uint32_t share, struct gb_activations *activations,
                                  struct gb_error *error);
void gb_activations_free(struct gb_activations *activations);

/* Consecutive rows of one part of one expert, times several activations. */
struct gb_product {
    const struct gb_weights *weights;
    uint32_t expert;
    uint32_t row; /* the first one */
    uint32_t rows;
    uint32_t count;
    enum gb_cpu_path path;
    const void *const *x;          /* [count], of the path's struct gb_activations */
    const float *const *x_scales;  /* likewise, or NULL */
    const struct gb_product *next; /* NULL, or what the same thread computes afterwards: its weights are asked for */
};

/*
 * How many rows of an expert an operator gives to gb_order.dots at once: many, since they follow each other in memory
 * and are read as one stream, but every thread needs work, and `dots` floats a row should stay in its cache. At
 * least 1.
 */
uint32_t gb_rows_at_once(uint32_t rows, uint32_t experts, size_t dots);

/* An order: in which sequence, with which roundings, a dot product is accumulated. Text: docs/numerics.md. */
struct gb_order {
    const char *name;
    /* The fastest path up to that in force that computes with weights of this format. */
    enum gb_cpu_path (*path)(enum gb_format weights);
    /* Bytes of one activation vector [columns] as a path reads it, a multiple of 64; and the vector in that layout. */
    size_t (*bytes)(enum gb_cpu_path path, enum gb_format weights, uint32_t columns);
    void (*arrange)(enum gb_cpu_path path, enum gb_format weights, const gb_bf16 *x, uint32_t columns, void *values);
    /* The product's dot products, the same bits on every path, NaN as gb_one_nan. decoded: scratch of gb_row_new for
     * these weights; dots: [product->rows, product->count]. */
    void (*dots)(const struct gb_product *product, struct gb_row *decoded, float *dots);
};

/* ORDER(STEM, NAME) of each: struct gb_order gb_STEM. */
#define GB_ORDERS(ORDER) ORDER(fma32, GB_ORDER_FMA32) ORDER(mma16, GB_ORDER_MMA16_SM90)

#define GB_DECLARE_ORDER(STEM, NAME) extern const struct gb_order gb_##STEM;
GB_ORDERS(GB_DECLARE_ORDER)

#endif
