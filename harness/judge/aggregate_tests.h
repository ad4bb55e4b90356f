/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of errors, and of their squares, against what rounding makes of them: docs/gates.md, docs/numerics.md#moments.
 */
#ifndef GB_HARNESS_JUDGE_AGGREGATE_TESTS_H
#define GB_HARNESS_JUDGE_AGGREGATE_TESTS_H

#include <stdbool.h>

#include "harness/judge/baseline.h"

/* What is summed. RMS_*: squares of errors; GAIN_*: errors times truth, which shows a wrong scale. */
enum family {
    RMS_TOKEN,         /* a tile of the columns of one token */
    RMS_COLUMNS,       /* a tile of the columns of all tokens, each token by its own prediction */
    RMS_INTERMEDIATE,  /* the intermediate of one token and slot */
    GAIN_LAYER,        /* the output of all tokens */
    GAIN_TOKEN,        /* of one token */
    GAIN_COLUMN,       /* one column of all tokens */
    GAIN_EXPERT,       /* one expert's share of the output, all tokens */
    GAIN_SLOT,         /* one token's and slot's share of the output */
    GAIN_INTERMEDIATE, /* the intermediate of one token and slot */
    FAMILIES
};

/* One family over all layers of a case. */
struct family_result {
    uint64_t count, exceeding, zero_exceeding; /* zero_...: by zeros in place of the subject's values */
    double limit_ratio;                        /* the largest statistic / its limit */
    uint32_t layer, first, second;             /* where: token or expert or column, and tile or slot */
    double floor_smallest, floor_worst; /* of the relative errors that reach the limit: of the scale (GAIN_*), or in
                                           the rms (RMS_*) */
};

struct statistics {
    double probability;     /* of a false alarm in one case, for the RMS_* together and for the GAIN_* together */
    uint64_t rms, gain;     /* how many statistics it is spread over */
    uint32_t tokens_judged; /* of each layer; fewer than there are where memory ends */
    uint64_t tokens_left_out, open_codes; /* of all layers, with re-quantised codes: docs/numerics.md#moments */
    struct family_result family[FAMILIES];
};

/* "rms of a token" and so on. */
const char *family_name(enum family family);
bool family_is_gain(enum family family);
/* How many of the sums so far, RMS_* or GAIN_*, zeros would not pass. */
uint64_t statistics_zero_exceeding(const struct statistics *s, bool gain);
/* "token 3, slot 2": where a result's largest statistic is; returns text. */
const char *family_place(enum family family, const struct family_result *result, char *text, size_t bytes);

/* Tokens with the input of an earlier one, so with its errors: left out of sums over tokens. repeats: [tokens], false.
 */
void statistics_repeats(const struct gb_layer *layer, uint32_t tokens, uint32_t hidden, bool *repeats);
/* What one layer's output is held against. */
struct prediction {
    const double *truth; /* [tokens, hidden] */
    const struct gb_bounds *of;
    const struct gb_moments *moments;
};

/* For the first `tokens` tokens of all layers. output, intermediate: which of the two the subject hands out. */
void statistics_start(struct statistics *s, const struct baseline *baseline, uint32_t tokens, bool output, bool inner,
                      double probability);
/* One layer. subject: [tokens, hidden]. */
enum gb_status statistics_output(struct statistics *s, const struct baseline *baseline, uint32_t layer, uint32_t tokens,
                                 const double *subject, struct gb_error *error);
/* The same for down alone: moments are those of gb_bound_down for one layer's tokens. */
void statistics_start_down(struct statistics *s, const struct baseline *baseline, const struct gb_moments *moments,
                           double probability);
enum gb_status statistics_down(struct statistics *s, const struct baseline *baseline, uint32_t layer,
                               const struct prediction *down, const double *subject, struct gb_error *error);
/* subject: [tokens, top_k, intermediate]. */
void statistics_intermediate(struct statistics *s, const struct baseline *baseline, uint32_t layer, uint32_t tokens,
                             const double *subject);

#endif
