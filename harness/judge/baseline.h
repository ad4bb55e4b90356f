/* SPDX-License-Identifier: Apache-2.0 */
/* What subjects on one fixture are judged against: the reference's bits, and bounds around truth. */
#ifndef GB_HARNESS_JUDGE_BASELINE_H
#define GB_HARNESS_JUDGE_BASELINE_H

#include "fixtures/fixtures.h"
#include "harness/run/contract.h"
#include "reference/reference.h"

/* What a subject's results for one layer, all tokens, are held against. */
struct layer_bounds {
    struct gb_bounds of;
    struct gb_bounds down; /* with quantised activations: output_* of down by itself, on the codes that truth has */
    struct gb_covariance covariance;
    struct gb_exactness exactness;
    uint64_t truth_differs; /* elements of the fixture's truth that are not what its inputs give */
    size_t truth_first;     /* the first of them */
    double truth_own;       /* what it should be */
};

/* What an operator makes of the first `tokens` of a fixture. */
typedef enum gb_status (*baseline_function)(const struct gb_fixture *fixture, uint32_t tokens,
                                            struct gb_outputs **outputs, struct gb_error *error);

struct baseline {
    const struct gb_fixture *fixture;
    const struct gb_contract *contract;
    struct baseline *plain; /* that with bf16 activations, where this one's contract quantises them; otherwise NULL */
    baseline_function
        compute; /* NULL; or what made `reference`, of some tokens: contract and all below are NULL then */
    struct gb_outputs *reference;     /* all tokens, with intermediate, and stack where the fixture has one */
    struct gb_rounding_points points; /* what bounds were computed for */
    bool stages;                      /* whether they have unrounded_typical */
    struct layer_bounds *bounds;      /* [layers]; NULL until baseline_bounds */
};

/* Runs the reference by this contract on every layer and, if there is one, on the stack. plain: the baseline with bf16
 * activations in the same order, which must live as long; NULL: these are they. GB_ENOMEM. */
enum gb_status baseline_new(const struct gb_fixture *fixture, const struct gb_contract *contract,
                            struct baseline *plain, struct baseline *baseline, struct gb_error *error);
void baseline_free(struct baseline *baseline);

/* The baselines of one fixture, each made when it is first asked for. */
struct baselines {
    const struct gb_fixture *fixture;
    struct baseline **of; /* [count], the one with bf16 activations ahead of one that quantises them */
    size_t count;
};

/* baseline: by this contract, of the baselines and as long as they are. GB_EINVAL: NULL, no contract. GB_ENOMEM. */
enum gb_status baselines_get(struct baselines *baselines, const struct gb_contract *contract,
                             struct baseline **baseline, struct gb_error *error);
/* The same by the contract that such a kernel is held to; `tokens` does not matter. */
enum gb_status baselines_of_kernel(struct baselines *baselines, const struct gb_kernel *kernel, uint32_t tokens,
                                   struct baseline **baseline, struct gb_error *error);
/* That of an operator without a contract: what `compute` makes of the first `tokens`. GB_ENOMEM. */
enum gb_status baselines_get_rows(struct baselines *baselines, uint32_t tokens, baseline_function compute,
                                  struct baseline **baseline, struct gb_error *error);
void baselines_free(struct baselines *baselines);
/* Inputs and weights of one layer, all tokens; outputs NULL. */
struct gb_arguments baseline_arguments(const struct baseline *baseline, uint32_t layer);
/* What down multiplies with, as the kernel takes it for the bounds' rounding points. routing_weights: [tokens, top_k].
 */
void baseline_routing_weights(const struct baseline *baseline, uint32_t layer, uint32_t tokens,
                              double *routing_weights);
/* Makes baseline->bounds hold for these rounding points; stages: of a subject that hands out its intermediate. */
enum gb_status baseline_bounds(struct baseline *baseline, const struct gb_rounding_points *points, bool stages,
                               struct gb_error *error);

#endif
