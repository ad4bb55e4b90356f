/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of errors, and of their squares, against what rounding makes of them: docs/gates.md,
 * docs/numerics.md#error-covariance.
 */
#ifndef GB_HARNESS_JUDGE_AGGREGATE_TESTS_H
#define GB_HARNESS_JUDGE_AGGREGATE_TESTS_H

#include <stdbool.h>

#include "harness/judge/baseline.h"

/* What is summed. RMS_*: squares of errors; SCALE_*: errors times truth, which shows a wrong scale. */
enum family {
    RMS_TOKEN,          /* a tile of the columns of one token */
    RMS_COLUMNS,        /* a tile of the columns of all tokens, each token by its own prediction */
    RMS_INTERMEDIATE,   /* the intermediate of one token and slot */
    SCALE_LAYER,        /* the output of all tokens */
    SCALE_TOKEN,        /* of one token */
    SCALE_COLUMN,       /* one column of all tokens */
    SCALE_EXPERT,       /* one expert's share of the output, all tokens */
    SCALE_SLOT,         /* one token's and slot's share of the output */
    SCALE_INTERMEDIATE, /* the intermediate of one token and slot */
    FAMILIES
};

/* One family over all layers of a case. */
struct family_result {
    uint64_t count, exceeding, zero_exceeding;  /* zero_...: by zeros in place of the subject's values */
    double limit_ratio;                         /* the largest statistic / its limit */
    uint32_t layer, first, second;              /* where: token or expert or column, and tile or slot */
    double detection_smallest, detection_worst; /* of the relative errors that reach the limit: of the scale (SCALE_*),
                                           or in the rms (RMS_*) */
};

struct aggregate_tests {
    double probability;     /* of a false alarm in one case, for the RMS_* together and for the SCALE_* together */
    uint64_t rms, scale;    /* how many statistics it is spread over */
    uint32_t tokens_judged; /* of each layer; fewer than there are where memory ends */
    uint64_t tokens_left_out,
        ambiguous_codes; /* of all layers, with re-quantised codes: docs/numerics.md#error-covariance */
    struct family_result family[FAMILIES];
};

/* "rms of a token" and so on. */
const char *family_name(enum family family);
bool family_is_scale(enum family family);
/* How many of the sums so far, RMS_* or SCALE_*, zeros would not pass. */
uint64_t aggregate_zero_exceeding(const struct aggregate_tests *s, bool scale);
/* "token 3, slot 2": where a result's largest statistic is; returns text. */
const char *family_place(enum family family, const struct family_result *result, char *text, size_t bytes);

/* Tokens with the input of an earlier one, so with its errors: left out of sums over tokens. repeats: [tokens], false.
 */
void aggregate_repeats(const struct gb_layer *layer, uint32_t tokens, uint32_t hidden, bool *repeats);
/* What one layer's output is held against. */
struct prediction {
    const double *truth; /* [tokens, hidden] */
    const struct gb_bounds *of;
    const struct gb_covariance *covariance;
};

/* For the first `tokens` tokens of all layers. output, intermediate: which of the two the subject hands out. */
void aggregate_start(struct aggregate_tests *s, const struct baseline *baseline, uint32_t tokens, bool output,
                     bool inner, double probability);
/* One layer. subject: [tokens, hidden]. */
enum gb_status aggregate_output(struct aggregate_tests *s, const struct baseline *baseline, uint32_t layer,
                                const double *subject, struct gb_error *error);
/* The same for down alone: covariance are those of gb_bound_down for one layer's tokens. */
void aggregate_start_down(struct aggregate_tests *s, const struct baseline *baseline,
                          const struct gb_covariance *covariance, double probability);
enum gb_status aggregate_down(struct aggregate_tests *s, const struct baseline *baseline, uint32_t layer,
                              const struct prediction *down, const double *subject, struct gb_error *error);
/* subject: [tokens, top_k, intermediate]. */
void aggregate_intermediate(struct aggregate_tests *s, const struct baseline *baseline, uint32_t layer, uint32_t tokens,
                            const double *subject);

/* Of sub-Gaussian errors: P(|u . e| > scale_limit(V, x)) <= 2 e^-x, V the variance of u . e; and
 * P(|e| > rms_limit(n, x)) <= e^-x, of n errors of variance 1. */
double scale_limit(double variance, double x);
double rms_limit(double count, double x);

#endif
