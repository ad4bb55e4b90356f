/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The error bounds of docs/numerics.md#bounds and #stages and the sums of #aggregate-tests, in long double from the
 * text alone: one element at a time, one line of code for one line of the text. Shares nothing with reference/ or
 * quant/.
 */
#ifndef GB_TESTS_ORACLE_BOUNDS_H
#define GB_TESTS_ORACLE_BOUNDS_H

#include "tests/oracle/oracle.h"

/* A value of truth, its W, V, V* and b. scale: what the rounding errors of b's own evaluation are relative to. */
struct oracle_error {
    long double value, worst, variance, typical, bias, scale;
};

/* What a kernel declares. bf16 where true. */
struct oracle_declared {
    unsigned bits; /* p */
    bool gate_up, silu, intermediate, slot, weighted, output;
    const struct gb_quantiser *recipe; /* NULL: bf16 activations */
    float d_h;
    long double lambda; /* lambda(N_f), of the interval of a quantised intermediate */
};

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

#endif
