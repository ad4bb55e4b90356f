/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What judging found: one subject on one batch of one fixture, in numbers. judge/ fills it, explain/ annotates it,
 * report/ alone turns it into JSON and text. docs/gates.md says what each check means.
 */
#ifndef GB_HARNESS_JUDGE_CASE_RESULT_H
#define GB_HARNESS_JUDGE_CASE_RESULT_H

#include "harness/judge/finding.h"
#include "harness/judge/aggregate_tests.h"
#include "harness/judge/check_quantise.h"
#include "harness/judge/checks.h"
#include "harness/judge/metrics.h"
#include "harness/judge/policy.h"
#include "harness/judge/reroute.h"
#include "harness/run/verdict.h"
#include "harness/run/worker.h"

/* The check `exact`, over all layers of a case. */
struct exact_result {
    bool binding;
    const char *why; /* it does not bind: what is not exact; NULL if everything is */
    uint32_t layer, token;
    double bits; /* of the widest sum */
    uint64_t compared, mismatching;
};

/* The check of the bf16 intermediate's values, over all layers. */
struct codes_result {
    bool binding, differences_binding; /* what fails the case: an inadmissible value; too many admissible differences */
    uint64_t elements;                 /* of the case, which the probability of a false alarm is spread over */
    uint64_t codes, flips, inadmissible; /* flips: other values than the reference's, but admissible ones */
    uint64_t counted, allowed, beyond;   /* flips of tokens whose input no earlier token has; the most there may be;
                                            layers with more */
    double expected;                     /* a bound on how many there are in the mean */
};

/* The check of down by itself, over all layers. */
struct down_result {
    bool bound_binding, rms_binding, scale_binding;
    const char *why;   /* aggregate tests are not made; NULL: they are */
    uint64_t elements; /* of the case */
    struct check_result bound;
    struct aggregate_tests aggregate;
};

/* Figures of the distance from truth. */
struct distances {
    struct metrics reference_quantised, reference_original;
    struct metrics subject_quantised, subject_original, stored_quantised;
};

/* One buffer of one layer against the reference, bit by bit. */
struct stage_bits {
    const char *stage;
    enum gb_format format;
    size_t per_token;
    struct difference of;
};

/* One buffer of one layer against truth. */
struct stage_bound {
    const char *stage;
    size_t per_token;
    struct bound_result of;
};

/* Whose output, and from which truth. */
struct stage_distance {
    const char *subject, *truth;
    struct metrics of;
};

struct stage_hash {
    char name[48];
    char sha256[65];
};

/* How a router's tokens were judged. */
struct routed_tokens {
    uint64_t decided, same, swapped, wrong;
    double gap_ulp;
};

enum { MOST_STAGE_BITS = 8, MOST_STAGE_BOUNDS = 2, MOST_STAGE_DISTANCES = 5, MOST_STAGE_HASHES = 6 };

struct layer_result {
    uint32_t layer, model_layer;
    uint32_t bits_count, bound_count, distance_count, hash_count;
    struct stage_bits bits[MOST_STAGE_BITS];
    struct stage_bound bound[MOST_STAGE_BOUNDS];
    struct stage_distance distance[MOST_STAGE_DISTANCES];
    struct stage_hash hash[MOST_STAGE_HASHES];
    bool routed; /* of a router whose ids are experts, with */
    struct routed_tokens tokens;
};

/* The residual stream behind one layer; flips: tokens routed to a set of experts other than truth's. */
struct drift_result {
    uint32_t layer, model_layer;
    struct metrics subject_quantised, subject_original, reference_quantised, reference_original;
    uint32_t subject_changed, reference_changed;
};

struct case_result {
    enum verdict verdict;
    char reason[768]; /* one line; empty for PASS */
    bool wrong;       /* what the subject wrote fails, not just how it behaved */
    bool judged;      /* what follows is there */
    bool router;      /* and bits, bound and layers are all of it */
    bool exchange;    /* the same of dispatch or combine, in one layer */
    bool quantiser;   /* and `quantise` is all of it */
    struct quantise_check quantise;
    bool output; /* what the subject writes, so that thresholds and distances are there */
    bool bits_binding, bound_binding, rms_binding, scale_binding;
    struct check_result bits, bound;
    struct exact_result exact;
    struct aggregate_tests aggregate;
    const char *without_sums; /* why aggregate tests are not made; NULL: they are */
    struct codes_result codes;
    struct down_result down;
    struct closeness closeness; /* to the policy's thresholds */
    struct distances overall;
    struct layer_result *layer; /* [layers] */
    uint32_t layers;
    struct drift_result *drift; /* [layers]; NULL: no stack */
};

/* GB_ENOMEM. */
enum gb_status case_result_layers(struct case_result *result, const struct gb_fixture *fixture, struct gb_error *error);
void case_result_free(struct case_result *result);
/* Whether check `exact`, and so on, was violated, binding or not. */
bool exact_violated(const struct exact_result *check);
bool codes_violated(const struct codes_result *check);
bool sums_violated(const struct aggregate_tests *s, bool scale);
bool down_violated(const struct down_result *check);

void layer_add_bits(struct layer_result *layer, const char *stage, enum gb_format format, size_t per_token,
                    const struct difference *difference);
void layer_add_bound(struct layer_result *layer, const char *stage, size_t per_token, const struct bound_result *bound);
/* SHA-256 of the bytes. */
void layer_add_hash(struct layer_result *layer, const char *name, const void *data, size_t bytes);
/* output_sha256, intermediate_sha256 and those of the activations' codes and scales, over the little-endian bytes.
 * rules: of the activations; NULL: there are none. */
void layer_add_hashes(struct layer_result *layer, const struct gb_layer_outputs *outputs, const struct gb_shape *shape,
                      const struct gb_quantiser *rules, bool with_output);

/* Keeps the gravest verdict and the reason that came with it first; of what the subject wrote. */
void case_worsen(struct case_result *result, enum verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* What aggregate tests showed, of the families that bind. of: what they are sums of, with ", " behind it, or "". */
void case_of_sums(struct case_result *result, const struct aggregate_tests *sums, const char *of, bool rms, bool scale);
/* What watching the subject's process showed. */
void case_watch(struct case_result *result, const struct gb_kernel *kernel, const struct worker_checks *checks);

/* What a wrong result looks like, found by explain/. */
struct explained {
    char name[160];
    double explains; /* the share of the squared error */
};
enum { MOST_SHOWN = 5 };
/* How much was looked at before something was named, or nothing. */
struct searched {
    uint32_t findings; /* of structure, computed in all tokens */
    double products;   /* multiplications that the search for structure took, as it counts them */
    uint32_t known_bugs, untried_bugs;
};
struct explanation {
    uint32_t layer;
    struct explained best;         /* the name is empty where no known bug fits */
    char kind[160];                /* the name without what a smaller problem renumbers */
    uint32_t found_count;          /* 0: the error has no structure */
    struct finding found[2];       /* what the error is as a structure: one cause or two; and */
    struct finding_words words[2]; /* in words */
    struct explained *also;        /* [also_count], that explain as much */
    uint32_t also_count;
    struct explained shown[MOST_SHOWN]; /* the best ones */
    uint32_t shown_count;
    struct searched searched;       /* of layers */
    char tokens[128], columns[128]; /* where the error is confined, in words; "": it is not */
    int32_t expert;                 /* -1: not to one */
    char text[768];                 /* all of it in a line */
};
void explanation_free(struct explanation *explanation);

/* The smallest part of the fixture that fails. */
struct minimal_part {
    const char *path;
    long long bytes;
    char name[160]; /* of its explanation */
    bool explained_alike;
    uint32_t layer, first_token, tokens, first_slot, slots, hidden, intermediate;
    unsigned tries;
    char *repro; /* allocated */
};

/* One case of a run. */
struct case_entry {
    char *subject;       /* its name, allocated */
    const char *library; /* "" for a file of outputs */
    struct gb_kernel kernel;
    bool known;           /* the kernel is */
    const char *contract; /* "" if no order is claimed */
    uint32_t batch;
    char *repro; /* allocated */
    double seconds;
    char reason[2048];
    char note[256]; /* what else is to be known of the subject's run; "": nothing */
    struct case_result result;
    struct timing timing;               /* of a case that passes, where it was timed */
    struct routing_difference rerouted; /* where the layer was judged under the subject's own routing */
    uint32_t rerouted_tokens;
    struct explanation *explanation; /* NULL: none */
    const char *next;                /* what to do about it; NULL */
    struct minimal_part *minimal;    /* NULL */
};

/* The cases of one fixture. */
struct case_list {
    struct case_entry *of; /* [count] */
    size_t count;
};
/* A new last entry, zeroed but for these; NULL: no memory. subject and repro are copied. */
struct case_entry *case_list_add(struct case_list *list, const char *subject, const char *library,
                                 const struct gb_kernel *kernel, uint32_t batch, const char *repro);
void case_list_free(struct case_list *list);

#endif
