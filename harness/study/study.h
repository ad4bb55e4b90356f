/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Studies: what formats of activations, orders and places of rounding cost in accuracy, on the same tokens and weights.
 * docs/study.md states what is measured and how.
 */
#ifndef GB_HARNESS_STUDY_STUDY_H
#define GB_HARNESS_STUDY_STUDY_H

#include <signal.h>

#include "fixtures/fixtures.h"
#include "quant/quant.h"
#include "reference/reference.h"

/* What errors are measured against, both in float64: the layer with the dequantised weights, and with those before
 * quantisation. */
enum study_truth { STUDY_QUANTISED, STUDY_ORIGINAL, STUDY_TRUTHS };
/* Of the residual stream: whether a path's errors accumulate, or every layer starts from truth's stream. Of a layer by
 * itself: its output, where path and truth are given the same bf16 input and experts. */
enum study_mode { STUDY_OPEN_LOOP, STUDY_TEACHER_FORCED, STUDY_LAYER, STUDY_MODES };
/* "quantised", "original"; "open_loop", "teacher_forced", "layer". */
const char *study_truth_name(enum study_truth truth);
const char *study_mode_name(enum study_mode mode);

/* A kernel in its library. */
struct study_kernel {
    const char *library; /* path, or BUILTIN_LIBRARY */
    const struct gb_kernel *kernel;
};
enum { STUDY_KERNEL_TIMEOUT_S = 600 }; /* of one layer's batch */

/* How a layer is computed. */
struct study_path {
    char name[48];                      /* "mxfp8.fma32": activations, order, and what else is rounded */
    const struct gb_contract *contract; /* that multiplies */
    const struct gb_recipe *recipe;     /* by which x and the intermediate are quantised; NULL: they stay bf16 */
    bool dequantised;                   /* to bf16 before they are multiplied: no contract multiplies the codes */
    bool rounded_gate_up;               /* gate and up are rounded to bf16 before silu(gate) * up */
    bool fp32_intermediate;             /* silu(gate) * up is not rounded */
    uint32_t ranks; /* 0: the combine is FP32; else the sum over every rank's experts is rounded to bf16 first */
    struct study_kernel kernel; /* that computes it in place of the reference; NULL: none does */
};
enum { STUDY_PATHS = 24, STUDY_PATH_LIST = 1024 };

/* The paths of a comma-separated list of names, or NULL for those of docs/study.md#paths, which these weights and sizes
 * allow. paths: [STUDY_PATHS]. The first one is always bf16.fma32. GB_EINVAL names what is wrong. */
enum gb_status study_paths(const char *list, enum gb_format weights, const struct gb_shape *shape,
                           struct study_path *paths, uint32_t *count, struct gb_error *error);

/* The inputs of one layer, of any number of tokens. */
struct study_batch {
    uint32_t tokens;
    const gb_bf16 *x;     /* [tokens, hidden] */
    const int32_t *ids;   /* [tokens, top_k] */
    const float *weights; /* [tokens, top_k] */
};
/* output: [tokens, hidden]; intermediate: [tokens, top_k, intermediate], as it was before it was quantised; NULL: not
 * wanted. global: the decoding scales of x and of the intermediate. */
enum gb_status study_path_run(const struct study_path *path, const struct gb_fixture *fixture, uint32_t layer,
                              const struct study_batch *batch, const float global[2], float *output,
                              gb_bf16 *intermediate, struct gb_error *error);

/* Whether the kernel claims to compute the path, bit for bit. */
bool study_path_takes(const struct study_path *path, const struct gb_kernel *kernel);

/* Quantises values [rows, columns] and gives what the codes stand for, in float64. global: decoding. GB_ENOMEM. */
enum gb_status study_dequantise(const struct gb_quantiser *rules, const gb_bf16 *values, uint32_t rows,
                                uint32_t columns, float global, double *out, struct gb_error *error);

/* Where layers come from. */
struct study_source {
    struct gb_fixture *fixture; /* inputs of all layers, and weights of those that are loaded */
    bool generated;             /* weights by generator and seed, loaded a layer at a time */
    bool borrowed;              /* the fixture is not the source's to free */
};
/* A stack of `layers` layers with generated weights. GB_EINVAL, GB_ENOMEM. */
struct study_generation {
    const char *name, *router; /* router: "": gb_router_recipe_default(true) */
    struct gb_shape shape;
    uint32_t layers;
    enum gb_format weights;
    uint64_t seed;
    float outlier_factor, routing_skew;
};
enum gb_status study_source_generate(const struct study_generation *generation, struct study_source *source,
                                     struct gb_error *error);
/* A fixture with a residual stream, which stays the caller's. GB_EINVAL says what it lacks. */
enum gb_status study_source_fixture(struct gb_fixture *fixture, struct study_source *source, struct gb_error *error);
void study_source_free(struct study_source *source);
/* Makes the weights of these experts, [experts], of one layer; nothing where all are there. GB_ENOMEM. */
enum gb_status study_source_load(struct study_source *source, uint32_t layer, const bool *experts,
                                 struct gb_error *error);
/* Gives their memory back. */
void study_source_unload(struct study_source *source, uint32_t layer);

enum { STUDY_BINS = 18 }; /* of bf16 ulp: 0, 1, 2, 3-4, 5-8, ..., more than 2^15 */

/* Errors of paths in one mode against one truth; samples = seeds * tokens, a seed's tokens side by side. Not finished:
 * NaN. */
struct study_measure {
    double *error2;   /* [layers, paths, samples] |path - truth|^2 */
    double *dot;      /* [layers, paths, samples] path . truth */
    double *self2;    /* [layers, paths, samples] |path|^2 */
    double *max_abs;  /* [layers, paths] */
    double *max_ulp;  /* [layers, paths] steps between both, rounded to bf16 */
    double *ulps;     /* [layers, paths, STUDY_BINS] elements by their bf16 ulp */
    double *carried2; /* [layers, paths, samples] open loop: |path - its teacher-forced result|^2 */
    double *changed;  /* [layers, paths, samples] open loop: 1 where the set of experts is another than truth's */
};

/* What the model's logits are compared with, those of both truths and of bf16.fma32. */
enum study_against { STUDY_AGAINST_BF16 = STUDY_TRUTHS, STUDY_AGAINST };
/* "quantised", "original", "bf16.fma32". */
const char *study_against_name(enum study_against against);
struct study_logits {
    double *kl; /* [paths, samples] divergence of the path's distribution of the next token from the other, nats */
    double *same_top; /* [paths, samples] 1 where both find the same word most probable */
};

/* One model in one weight format. */
struct study_case {
    char name[128], weights[16], recipe[64];
    struct gb_shape shape; /* tokens: of one seed */
    uint32_t layers, seeds, paths, samples;
    uint32_t vocabulary; /* of the head; 0: the case has none */
    uint64_t first_seed;
    char inputs[65]; /* SHA-256 of the fixture's inputs; "" where they are generated */
    char end[65];    /* SHA-256 of the checkpoint that the head is of; "" without */
    double outlier_factor, routing_skew;
    struct study_path path[STUDY_PATHS];
    struct study_measure measure[STUDY_MODES][STUDY_TRUTHS];
    double *stream2[STUDY_TRUTHS];           /* [layers, samples] |truth's residual stream|^2 */
    double *layer2[STUDY_TRUTHS];            /* [layers, samples] |truth's output of a layer by itself|^2 */
    double *model_layer;                     /* [layers] their numbers in the model */
    struct study_logits head[STUDY_AGAINST]; /* where there is a vocabulary */
    uint32_t done;                           /* layers that are finished, of all seeds together */
    uint32_t *layers_done;                   /* [seeds] of each */
    double **state; /* [seeds] of one that is begun: [paths + STUDY_TRUTHS, tokens, hidden] its residual streams behind
                       the last layer; otherwise NULL */
};

/* Allocated for these sizes, figures NaN; of case->path only the names have to be there. GB_ENOMEM; freed in any case.
 */
enum gb_status study_case_new(struct study_case *c, struct gb_error *error);
void study_case_free(struct study_case *c);
/* Numbers in `state` of a seed. */
size_t study_case_streams(const struct study_case *c);
/* A case of one layer and one seed, not allocated yet. */
struct study_case study_case_part(const struct study_case *c);
/* Enters the next layer of a seed: a case of it alone, and the streams behind it. GB_ENOMEM. */
enum gb_status study_case_add(struct study_case *c, uint32_t seed, const struct study_case *layer, const double *state,
                              struct gb_error *error);

/* How what several seeds have is one. */
enum study_merge { STUDY_BY_SAMPLE, STUDY_LARGEST, STUDY_SUM, STUDY_SAME };
/* Every array of a case but `state`: its name in the file, its axes. */
struct study_array {
    char name[64]; /* "open_loop/quantised/error2" */
    uint32_t rank;
    uint64_t dims[3];
    const char *axes;
    double **values;
    enum study_merge merge;
};
size_t study_array_elements(const struct study_array *array);
enum { STUDY_ARRAYS = STUDY_TRUTHS * (STUDY_MODES * 6 + 2 + 2) + 1 + STUDY_AGAINST * 2 };
/* arrays: [STUDY_ARRAYS]. How many; those of logits come last. */
uint32_t study_case_arrays(struct study_case *c, struct study_array *arrays);

/* What a run calls after every layer; not GB_OK ends it. */
typedef enum gb_status study_save(void *context, struct gb_error *error);
/* What comes behind the last layer. */
struct study_end {
    const struct gb_head *head;
    double epsilon; /* of its norm */
};
/* Enters what a seed's streams behind the last layer, [truths and paths, tokens, hidden], mean for the logits.
 * GB_ENOMEM. */
enum gb_status study_head(struct study_case *c, const struct study_end *end, uint32_t seed, const double *state,
                          struct gb_error *error);

/* What one run is about. Every rank has one. */
struct study_run {
    const volatile sig_atomic_t *stop; /* not 0: end between paths */
    /* The layers of one seed; freed with study_source_free. */
    enum gb_status (*open)(void *context, const struct study_case *c, uint32_t seed, struct study_source *source,
                           struct gb_error *error);
    const struct study_end *end; /* NULL: no logits */
    study_save *save;
    void *context;
    double done, all; /* in layers */
    double began;     /* clock_seconds() at `done` = resumed */
    double resumed;
};
/* Goes on until all seeds are finished, or *stopped; then what was finished before is in the case, and nothing else. */
enum gb_status study_case_run(struct study_case *c, struct study_run *run, bool *stopped, struct gb_error *error);

/* A study as its file holds it. */
struct study {
    char kind[16]; /* "drift", "closeness" */
    char command[1024];
    uint32_t cases;
    struct study_case *of; /* [cases] */
};
void study_free(struct study *study);
/* Gives every rank the figures and streams that rank 0 has, of the same study. GB_ENOMEM. */
enum gb_status study_share(struct study *study, struct gb_error *error);
/* Whether every case is finished. */
bool study_finished(const struct study *study);
/* SHA-256 of all that was measured, which does not depend on threads, ranks or interruptions. text: [65], "" where
 * memory is short */
void study_hash(struct study *study, char *text);
enum gb_status study_write(const char *path, struct study *study, struct gb_error *error);
enum gb_status study_read(const char *path, struct study *study, struct gb_error *error);

/* Figures of one mode, truth, layer and path over all samples. */
struct study_figures {
    double relative_l2, cosine, cosine_min, sqnr_db, max_abs, max_ulp;
    double changed;           /* tokens; NaN where it is not measured */
    double injected, carried; /* open loop: relative L2 of either part; otherwise NaN */
};
/* A figure with its 95 % interval. */
struct study_interval {
    double value, low, high;
};

enum { STUDY_INTERVAL_TEXT = 48 };
/* low and high, `times` as large, in a format of two doubles; "unknown" where there are not tokens enough to tell. */
const char *study_interval_text(struct study_interval interval, double times, const char *format,
                                char text[STUDY_INTERVAL_TEXT]);

/* Tokens drawn with replacement within each seed, the same draws for all that is compared. */
struct study_resamples {
    uint32_t seeds, tokens, draws;
    uint16_t *count; /* [draws, samples = seeds * tokens] how often each was drawn */
    double *logs;    /* [draws or seeds, whichever are more], overwritten by each of the functions below */
    double *sums;    /* [2, samples], the same */
    double *lines;   /* [2, layers], the same */
};
enum gb_status study_resamples_new(uint32_t layers, uint32_t seeds, uint32_t tokens, struct study_resamples *r,
                                   struct gb_error *error);
void study_resamples_free(struct study_resamples *r);
/*
 * sqrt(sum a / sum b) with its interval, docs/study.md#intervals: a paired bootstrap over tokens gives the standard
 * error of the logarithm; where there are several seeds and these differ by more, their spread does. a, b: [samples].
 */
struct study_interval study_ratio(const struct study_resamples *r, const double *a, const double *b);

struct study_figures study_figures_of(const struct study_case *c, enum study_mode mode, enum study_truth truth,
                                      uint32_t layer, uint32_t path);
/* relative_l2 of study_figures_of with its interval. */
struct study_interval study_relative_l2(const struct study_case *c, const struct study_resamples *r,
                                        enum study_mode mode, enum study_truth truth, uint32_t layer, uint32_t path);

/* Means over all samples, with their intervals: of the divergence, and of the share of the same most probable word
 * (Clopper and Pearson). */
struct study_interval study_mean_kl(const struct study_case *c, const struct study_resamples *r,
                                    enum study_against against, uint32_t path);
struct study_interval study_top_agreement(const struct study_case *c, enum study_against against, uint32_t path);

/* Open loop: relative L2 = amplitude * (layer + 1)^exponent, least squares of the logarithms. NaN with fewer than 3
 * layers. */
struct study_growth {
    struct study_interval exponent; /* by resampled tokens */
    double error;                   /* of the exponent: its standard error, from how far layers are off the line */
};
struct study_growth study_growth_of(const struct study_case *c, const struct study_resamples *r, enum study_truth truth,
                                    uint32_t path);

/* How many times farther from truth path `path` is than path 0, STUDY_LAYER, in the root mean square over tokens.
 * layer: of all layers where it is c->layers, each relative to the size of its output. */
struct study_interval study_closeness(const struct study_case *c, const struct study_resamples *r,
                                      enum study_truth truth, uint32_t path, uint32_t layer);

#endif
