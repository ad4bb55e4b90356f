/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The error bounds of docs/numerics.md#bounds and #stages and the sums of #aggregate-tests, in long double from the
 * text alone: one element at a time, one line of code for one line of the text. Shares nothing with reference/ or
 * quant/.
 */
#ifndef GB_TESTS_ORACLE_BOUNDS_H
#define GB_TESTS_ORACLE_BOUNDS_H

#include "tests/oracle/oracle.h"

/* A value of truth, its W, V, V*, b and U. scale: what the rounding errors of b's own evaluation are relative to. */
struct oracle_error {
    long double value, worst, variance, typical, bias, underflow, scale;
};

/* What a kernel declares. bf16 where true. */
struct oracle_declared {
    unsigned bits; /* p */
    bool gate_up, silu, intermediate, slot, routing_weight, weighted, output;
    const struct gb_quantiser *recipe; /* NULL: bf16 activations */
    float d_h, d_x;
    long double lambda; /* lambda(N_f), of the interval of a quantised intermediate */
};

/* "Activation": w of SiLU. */
long double oracle_silu_error(long double gate);
/*
 * arguments: shape, ids, weights, biases and activation; x [tokens, hidden], truth's. unrounded, rounded: [tokens,
 * top_k, intermediate], before and after the rounding to the intermediate's format; empty slots are zeros.
 */
void oracle_bound_intermediate(const struct gb_arguments *arguments, const double *x,
                               const struct oracle_declared *declared, struct oracle_error *unrounded,
                               struct oracle_error *rounded);
/* "Quantised intermediate": unrounded -> c' and W_i; W_i is infinite where a block has no bound. */
void oracle_bound_codes(const struct gb_arguments *arguments, const struct oracle_declared *declared,
                        const struct oracle_error *unrounded, struct oracle_error *codes);
/*
 * "Output". h: [tokens, top_k, intermediate]; weights: [tokens, top_k]. given: "Down by itself", where h is known and
 * its W only counts in the magnitudes of sums. output: [tokens, hidden]; above: W_c, [tokens, hidden].
 */
void oracle_bound_output(const struct gb_arguments *arguments, const double *weights,
                         const struct oracle_declared *declared, const struct oracle_error *h, bool given,
                         struct oracle_error *output, long double *above);
/* "Router". x: [tokens, hidden]; low, high: [tokens, experts]; relative: [tokens]. */
void oracle_bound_router(const struct gb_arguments *arguments, const double *x, unsigned bits, long double lambda,
                         long double *low, long double *high, long double *relative);

/* Which sums are tested. RMS_*: of squares; SCALE_*: along truth. */
enum oracle_sums {
    ORACLE_RMS_TOKEN,
    ORACLE_RMS_TILE,
    ORACLE_RMS_INTERMEDIATE,
    ORACLE_SCALE_ALL,
    ORACLE_SCALE_TOKEN,
    ORACLE_SCALE_COLUMN,
    ORACLE_SCALE_EXPERT,
    ORACLE_SCALE_SLOT,
    ORACLE_SCALE_INTERMEDIATE,
    ORACLE_SUMS
};

/* Of all sums of one kind: how many there are, how many are above their limit and how many a subject of zeros would
 * have above it; the largest sum / limit; the least and the largest detection limit. */
struct oracle_sum {
    unsigned count, above, zeros_above;
    long double ratio, least, most;
    uint32_t first, second; /* where the largest is: token, tile, column or expert; slot or tile */
};

/* One layer's tokens, as #aggregate-tests sees them. */
struct oracle_aggregates {
    const struct gb_arguments *arguments;    /* shape, ids, down and its bias */
    const gb_bf16 *x;                        /* [tokens, hidden]: which tokens have the same input */
    const double *weights;                   /* [tokens, top_k], r */
    const double *h, *sigma_h;               /* [tokens, top_k, intermediate]; sigma_h NULL: D = 0 */
    const double *error_h, *bias_h;          /* the same shape; NULL: the intermediate is not tested */
    const double *y, *sigma_y, *bias_y;      /* [tokens, hidden] */
    const double *underflow_h, *underflow_y; /* of h and y, U; underflow_h where the intermediate is tested */
    const double *error;                     /* [tokens, hidden]: kernel's output - y */
    const double *width;     /* [tokens, top_k, intermediate]: W of the codes; NULL: none is ambiguous */
    const float *direction;  /* [tokens, top_k + 1, hidden]: dir as it is stored, which the sums are along;
                                checked to be as good as one of this code's own */
    uint32_t tile;           /* columns */
    long double probability; /* P */
};
/* Returns the smallest signal^2 / V along a direction in units of that along C^-1 t, which is 1 but for roundings; 0
 * where a direction's largest component is not 1. */
long double oracle_aggregate(const struct oracle_aggregates *of, struct oracle_sum sums[ORACLE_SUMS]);
/* "Admissible codes" and "Number of admissible differences", of one value: h, W_h, V_h, V*_h and b_h before it is
 * rounded to bf16. low, high: the outermost admissible codes. */
void oracle_admissible(const struct oracle_error *h, long double lambda, uint16_t *low, uint16_t *high);
/* f. code: the reference's. */
long double oracle_difference(const struct oracle_error *h, uint16_t code);
/* The number of admissible differences: the limit for `count` codes of mean number M. */
uint64_t oracle_differences(long double M, uint64_t count, long double probability);

/* #exact: whether all sums of the layer are exact in any order. x: [tokens, hidden]; weights: [tokens, top_k]. bits: of
 * the widest sum, if they are; closed: c and c_y of closed gates. */
bool oracle_exact(const struct gb_arguments *arguments, const double *x, const double *weights,
                  const struct oracle_declared *declared, long double *bits, long double closed[2]);

#endif
