/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU operators of all contracts, bit for bit as docs/numerics.md defines them, and the float64 truth they are
 * measured against.
 */
#ifndef GB_REFERENCE_REFERENCE_H
#define GB_REFERENCE_REFERENCE_H

#include <stdbool.h>

#include "gaugeblock.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every operator by name; other parts have a table with a row of each. */
#define GB_OPERATORS(ROW)                                                                                              \
    ROW(layer) ROW(gate_up) ROW(down) ROW(route) ROW(quantise) ROW(silu_mul_quantise) ROW(dispatch) ROW(combine)

/* In which sequence, with which roundings, dot products are accumulated. */
struct gb_order;
GB_API const char *gb_order_name(const struct gb_order *order);

/* What determines every bit of a layer's result: docs/numerics.md. */
struct gb_contract {
    const char *name; /* "nvfp4.bf16.fma32/1": weights, activations, order */
    enum gb_format weights;
    enum gb_format activations;
    const struct gb_order *order;
    const char *summary;
};

GB_API const struct gb_contract *gb_contracts(size_t *count);
/* NULL if no contract of this weight format, activation format and order exists. */
GB_API const struct gb_contract *gb_contract_find(enum gb_format weights, enum gb_format activations,
                                                  const char *order);
/* That of an operator's arguments in this order; NULL if there is none. */
GB_API const struct gb_contract *gb_contract_of(const struct gb_arguments *arguments, enum gb_operator operation,
                                                const char *order);
/* That of the router of layers in this contract: bf16 weights and fma32, whatever the order of the experts. */
GB_API const struct gb_contract *gb_contract_router(const struct gb_contract *contract);

/* Correctly rounded elementary functions of binary32, all 2^32 inputs. docs/numerics.md#silu, #sigmoid, #exp. */
GB_API float gb_silu(float x);
/* y[i] = gb_silu(x[i]), on vectors where the CPU has them. x, y: [count], not the same array. */
GB_API void gb_silu_all(const float *x, uint32_t count, float *y);
GB_API float gb_sigmoid(float x);
/* silu(gate) * up, or another activation, in FP32: docs/numerics.md#gate_up. */
GB_API float gb_gated(enum gb_activation activation, float gate, float up);
GB_API float gb_exp(float x);

/* silu in one of its forms, binary32. docs/numerics.md#silu_mul. */
GB_API float gb_silu_as(enum gb_silu_form form, float x);

/* One row times x in an order. x: [weights->columns]. NaN where memory is short. */
GB_API float gb_dot(const struct gb_order *order, const struct gb_weights *weights, uint32_t expert, uint32_t row,
                    const gb_bf16 *x);

/*
 * How dot products are computed: in plain C, which is the definition, or on vector registers straight from the codes.
 * Every path gives the same bits, of NaN too (docs/numerics.md#nan). The fastest one that the CPU has is in force until
 * another is set.
 */
enum gb_cpu_path {
    GB_CPU_PLAIN = 0,
    GB_CPU_AVX2 = 1,  /* AVX2, FMA and F16C */
    GB_CPU_AVX512 = 2 /* AVX-512 F, BW, VL and VBMI */
};

/* Whether this CPU has it; false for an unknown path. */
GB_API bool gb_cpu_path_available(enum gb_cpu_path path);
/* For all threads, and the operators called from here on. GB_EINVAL: unknown path. GB_EUNSUPPORTED: not on this CPU. */
GB_API enum gb_status gb_cpu_path_set(enum gb_cpu_path path, struct gb_error *error);
GB_API enum gb_cpu_path gb_cpu_path_get(void);
/* "plain", "avx2", "avx512"; NULL for an unknown path. */
GB_API const char *gb_cpu_path_name(enum gb_cpu_path path);

/*
 * The operators of a contract, on the ABI's arguments with host pointers; `output` is FP32. workspace, prepared and
 * stream are not used. GB_LAYER writes the intermediate if it is not NULL.
 * GB_EINVAL: no contract (NULL) or another than the arguments', an id out of range, or shapes that disagree. GB_ENOMEM.
 */
GB_API enum gb_status gb_reference_gate_up(const struct gb_contract *contract, const struct gb_arguments *arguments,
                                           struct gb_error *error);
GB_API enum gb_status gb_reference_down(const struct gb_contract *contract, const struct gb_arguments *arguments,
                                        struct gb_error *error);
/* bf16(RN(routing_weight * x)): what a layer with apply_router_weight_on_input takes for x. */
GB_API gb_bf16 gb_weigh(float routing_weight, gb_bf16 x);
GB_API enum gb_status gb_reference_layer(const struct gb_contract *contract, const struct gb_arguments *arguments,
                                         struct gb_error *error);

/* A layer with GB_ROUTES: gb_reference_router, and gb_reference_layer on what it chose; ids and routing_weights are not
 * read. GB_EINVAL, GB_ENOMEM. */
GB_API enum gb_status gb_reference_routed_layer(const struct gb_contract *contract,
                                                const struct gb_arguments *arguments, struct gb_error *error);

/* What GB_GATE_UP rounds to the intermediate, and what it is made of, in FP32: each [tokens, top_k, intermediate], of
 * which the rows of empty slots are not written. */
struct gb_gate_up_values {
    float *gate, *up; /* the dot products, biases added */
    float *product;   /* of the activation, before it is rounded to bf16 */
};
/* gb_reference_gate_up, which also keeps its values; values: NULL for none. */
GB_API enum gb_status gb_reference_gate_up_values(const struct gb_contract *contract,
                                                  const struct gb_arguments *arguments,
                                                  const struct gb_gate_up_values *values, struct gb_error *error);

/*
 * GB_ROUTE: x and router_weights by the recipe arguments->router to routed_ids and routed_weights. GB_EINVAL: shapes
 * that disagree, or a recipe that does not fit them. GB_ENOMEM.
 */
GB_API enum gb_status gb_reference_router(const struct gb_contract *contract, const struct gb_arguments *arguments,
                                          struct gb_error *error);

/*
 * The same by gb_router_recipe_default: top-k of the logits, then softmax.
 * x: [tokens, hidden]; router: BF16 weights with experts = 1, rows = shape->experts, columns = hidden.
 * renormalise: weights sum to one over the chosen, instead of over all experts.
 * ids, routing_weights: [tokens, top_k], by descending logit.
 */
GB_API enum gb_status gb_reference_route(const struct gb_contract *contract, const struct gb_shape *shape,
                                         const gb_bf16 *x, const struct gb_weights *router, bool renormalise,
                                         int32_t *ids, float *routing_weights, struct gb_error *error);

/*
 * arguments->quantise, values -> codes, scales; all other arguments are ignored. docs/numerics.md#quantise and
 * #silu_mul_quantise. GB_EINVAL: widths, types, groups, forms or a bound for which they are not defined. GB_ENOMEM.
 */
GB_API enum gb_status gb_reference_quantise(const struct gb_arguments *arguments, struct gb_error *error);
GB_API enum gb_status gb_reference_silu_mul_quantise(const struct gb_arguments *arguments, struct gb_error *error);
/* What these quantise, in binary32. values: [rows, columns]. */
GB_API enum gb_status gb_reference_quantised_values(const struct gb_arguments *arguments, enum gb_operator operation,
                                                    float *values, struct gb_error *error);

/*
 * All ranks of arguments->exchange in one process; shape and weights are not used. `output` is FP32. GB_EINVAL: sizes
 * or a quantiser for which the operator is not defined, ids or ranks out of range, or another number of rows than the
 * ids have. GB_ENOMEM. docs/numerics.md#dispatch and #combine.
 */
GB_API enum gb_status gb_reference_dispatch(const struct gb_arguments *arguments, struct gb_error *error);
GB_API enum gb_status gb_reference_combine(const struct gb_arguments *arguments, struct gb_error *error);
/* The route of each row that is received, as both operators order them. routes: [rows]. GB_EINVAL, GB_ENOMEM. */
GB_API enum gb_status gb_reference_routes(const struct gb_arguments *arguments, int32_t *routes,
                                          struct gb_error *error);
/*
 * gb_reference_layer whose experts are spread over ranks: dispatch, of x in bf16 or by arguments->activation_rules,
 * each rank's gate_up and down of the rows that it received, and combine of these. shape.tokens = ranks *
 * exchange->tokens; the exchange's quantiser is not read, nor is the intermediate. GB_EINVAL, GB_ENOMEM.
 * docs/numerics.md#layer-over-ranks.
 */
GB_API enum gb_status gb_reference_layer_over_ranks(const struct gb_contract *contract,
                                                    const struct gb_arguments *arguments, struct gb_error *error);

/*
 * Processes that compute dispatch and combine together, each of them for neighbouring ranks of the problem:
 * docs/numerics.md#over-processes. All of them make the same calls.
 */
struct gb_parcel {
    void *bytes; /* NULL: none */
    size_t size;
};
struct gb_processes {
    uint32_t process, count;
    void *context; /* of `exchange` */
    /* Gives every process its parcel of `to` and gets one from each. to, from: [count]; bytes of `from` are allocated
     * by malloc. `mine`: what became of this process; where any is not GB_OK, nothing is sent, and all return that of
     * the first such process, with its error. */
    enum gb_status (*exchange)(const struct gb_processes *processes, enum gb_status mine, const struct gb_parcel *to,
                               struct gb_parcel *from, struct gb_error *error);
};
/* The first of the problem's ranks that a process has; those before the next one's are its own, which may be none. */
GB_API uint32_t gb_processes_first(uint32_t ranks, uint32_t processes, uint32_t process);
/*
 * gb_reference_dispatch and gb_reference_combine by several processes. Arrays are those of this process's ranks alone,
 * and so are exchange->rows the rows that these receive or return; `counts` are of all ranks, `routes` are not read.
 * GB_EFORMAT: what arrived is none of theirs.
 */
GB_API enum gb_status gb_reference_dispatch_over_processes(const struct gb_processes *processes,
                                                           const struct gb_arguments *arguments,
                                                           struct gb_error *error);
GB_API enum gb_status gb_reference_combine_over_processes(const struct gb_processes *processes,
                                                          const struct gb_arguments *arguments, struct gb_error *error);
/*
 * gb_reference_layer_over_ranks by several processes: likewise, and gate_up, down and their biases are those of the
 * experts that are placed on this process's ranks, in ascending order.
 */
GB_API enum gb_status gb_reference_layer_over_processes(const struct gb_processes *processes,
                                                        const struct gb_contract *contract,
                                                        const struct gb_arguments *arguments, struct gb_error *error);

/*
 * What GB_GATE_UP makes of x, or GB_DOWN of the intermediate, by arguments->activation_rules: values [rows, columns],
 * rows = tokens or tokens * top_k, to codes and scales as in struct gb_arguments. Else of the arguments, only shape and
 * the global scales are read. GB_EINVAL, GB_ENOMEM. docs/numerics.md#quantised-activations.
 */
GB_API enum gb_status gb_reference_quantise_activations(const struct gb_arguments *arguments,
                                                        enum gb_operator operation, const gb_bf16 *values, void *codes,
                                                        void *scales, struct gb_error *error);
/*
 * gate_up and down on codes that are given: x_codes and x_scales, or intermediate_codes and intermediate_scales, are
 * inputs, and the global scale is what the products are multiplied with. With activation_rules.
 */
GB_API enum gb_status gb_reference_gate_up_codes(const struct gb_contract *contract,
                                                 const struct gb_arguments *arguments, struct gb_error *error);
GB_API enum gb_status gb_reference_down_codes(const struct gb_contract *contract, const struct gb_arguments *arguments,
                                              struct gb_error *error);
/* The values of such codes, with both scales, exact in float64. values: [rows, columns]. */
GB_API enum gb_status gb_reference_activation_values(const struct gb_arguments *arguments, enum gb_operator operation,
                                                     const void *codes, const void *scales, double *values,
                                                     struct gb_error *error);

/* The reference as subjects: cpu/reference rows, registered like anybody's. */
GB_API const struct gb_kernel_table *gb_reference_kernels(void);

/* y[i] = x[i] / sqrt(mean(x^2) + epsilon) * weight[i], in float64. x, y: [hidden]; weight: [hidden]. */
GB_API void gb_rms_norm(const double *x, const float *weight, uint32_t hidden, double epsilon, double *y);

/* What a layer may have beside weights and SiLU; zeroed: nothing. */
struct gb_extension {
    enum gb_activation activation;
    const float *gate_up_bias; /* [experts, 2 * intermediate]; NULL: none */
    const float *down_bias;    /* [experts, hidden]; NULL: none */
};

/* Truth: the same mathematics in float64, nothing rounded in between. */

/*
 * Where truth reads weights from. Both functions fill one expert's matrix in float64:
 * gate_up [2 * intermediate, hidden] (gate rows, then up rows), down [hidden, intermediate].
 */
struct gb_truth_source {
    void *context;
    enum gb_status (*gate_up)(void *context, uint32_t expert, double *matrix, struct gb_error *error);
    enum gb_status (*down)(void *context, uint32_t expert, double *matrix, struct gb_error *error);
    struct gb_extension extension;
};

/* A layer's quantised weights as a source: context is a struct gb_truth_quantised. */
struct gb_truth_quantised {
    struct gb_weights gate_up;
    struct gb_weights down;
    struct gb_extension extension;
};
GB_API struct gb_truth_source gb_truth_from_quantised(struct gb_truth_quantised *weights);

/* GB_ROUTE in float64 from x [tokens, hidden] (arguments->x is not used); values that are not finite count as
 * themselves. ids, routing_weights: [tokens, top_k]. */
GB_API enum gb_status gb_truth_router(const struct gb_arguments *arguments, const double *x, int32_t *ids,
                                      double *routing_weights, struct gb_error *error);
/* The weights of experts that somebody else has chosen: ids in 0 .. experts-1, not changed. */
GB_API enum gb_status gb_truth_routing_weights(const struct gb_arguments *arguments, const double *x, int32_t *ids,
                                               double *routing_weights, struct gb_error *error);
/* logits = router . x and its softmax in float64; ids by descending logit, ties to the lower id.
 * x: [tokens, hidden]; ids, routing_weights: [tokens, top_k]. */
GB_API enum gb_status gb_truth_route(const struct gb_shape *shape, const double *x, const struct gb_weights *router,
                                     bool renormalise, int32_t *ids, double *routing_weights, struct gb_error *error);

/*
 * output [tokens, hidden]; intermediate [tokens, top_k, intermediate] or NULL.
 * x: [tokens, hidden]; ids, routing_weights: [tokens, top_k]; id -1 is an empty slot.
 * The matrix products use OpenBLAS, so the last bits depend on it.
 */
GB_API enum gb_status gb_truth_layer(const struct gb_shape *shape, const double *x, const int32_t *ids,
                                     const double *routing_weights, const struct gb_truth_source *source,
                                     double *output, double *intermediate, struct gb_error *error);

/* How many threads a matrix product of truth takes, for the whole process. With one, the last bits are the same for any
 * number of OpenMP's threads, and several threads may compute truths side by side. */
GB_API void gb_truth_threads(int threads);

/* Bounds: how far from truth a kernel with given rounding points may be. docs/numerics.md#bounds. */

/* How far an FP32 evaluation of silu(x) by any published form is from it, at most. docs/numerics.md#bounds. */
GB_API double gb_silu_error(double x);

/* How a kernel quantises its intermediate a second time. */
struct gb_requantisation {
    const struct gb_quantiser *rules;
    float global;      /* decoding */
    double deviations; /* how many standard deviations of a value before it is rounded are allowed for; INFINITY: the
                          worst case */
    float x_global;    /* decoding, of x; 0 where that is of no matter */
};

/* The rounding points of a kernel. */
struct gb_rounding_points {
    enum gb_format intermediate; /* GB_BF16 or GB_FP32 */
    enum gb_format output;       /* GB_FP32 or GB_BF16 */
    uint32_t accumulator_bits;   /* significand bits of every accumulation, 24 for FP32 */
    struct gb_stage_roundings stages;
    const struct gb_requantisation *requantisation; /* NULL: of bf16 activations */
};

/* Whether accumulators may round toward zero, so that limits have to leave room for the mean of their errors, *_bias of
 * struct gb_bounds. FP32 ones that do so declare 23 bits. */
GB_API bool gb_may_truncate(uint32_t accumulator_bits);

/*
 * Of each element; any pointer may be NULL. output_*: [tokens, hidden]; the others, unrounded_* of the
 * intermediate before it is rounded to its format: [tokens, top_k, intermediate].
 *   worst: the theorem, |subject - truth| <= worst for any order of summation;
 *   sigma: the standard deviation if every rounding error is independent and uniform in its interval;
 *   bias: the mean error, up to a factor from -1 to 1 common to all elements, if roundings are toward zero;
 *   underflow: what roundings below the normal range add, at most; worst counts it, sigma does not.
 */
struct gb_bounds {
    double *output_worst, *output_sigma, *output_bias;
    double *intermediate_worst, *intermediate_sigma, *intermediate_bias;
    double *unrounded_worst, *unrounded_sigma; /* of mean intermediate_bias: rounding to nearest adds none */
    double *unrounded_typical;                 /* sigma where the order of a sum has nothing to do with its terms */
    double *output_truth, *intermediate_truth; /* gb_truth_layer's but for last bits; output_truth of a requantised
                                                  intermediate, */
    double *output_underflow, *intermediate_underflow;
    double *requantised, *flips; /* which is this, and how far a code may be from it; else not written */
};

/* Inputs as gb_truth_layer; routing_weights: as the kernel rounds them. */
GB_API enum gb_status gb_bound_layer(const struct gb_shape *shape, const double *x, const int32_t *ids,
                                     const double *routing_weights, const struct gb_truth_quantised *weights,
                                     const struct gb_rounding_points *points, const struct gb_bounds *bounds,
                                     struct gb_error *error);

/* Whether every sum is exact in any order, so that all kernels of these rounding points have the same bits:
 * docs/numerics.md#exact. */
struct gb_exactness {
    const char *why; /* NULL: they are. Otherwise the first reason against it, and its token */
    uint32_t token;
    double bits; /* of the widest sum: the accumulator it needs */
    /* How far from zero a value of the intermediate whose gate is closed may be, and an output that is a zero, where
     * exp's argument is clamped. */
    double closed_intermediate, closed_output;
};
/* Inputs as gb_truth_layer; with quantised activations (points->requantisation) x are the numbers of its codes.
 * GB_ENOMEM. */
GB_API enum gb_status gb_exact_layer(const struct gb_shape *shape, const double *x, const int32_t *ids,
                                     const double *routing_weights, const struct gb_truth_source *source,
                                     const struct gb_rounding_points *points, struct gb_exactness *exactness,
                                     struct gb_error *error);

/*
 * How the errors of one token's outputs hang together, an error of the intermediate being spread over all of them, for
 * the first `tokens` tokens: what a sum of errors, or of their squares, may come to. docs/numerics.md#error-covariance.
 */
struct gb_covariance {
    uint32_t tokens;
    uint32_t directions; /* top_k + 1 */
    uint32_t tile;       /* columns of a tile, the last one may have fewer */
    uint32_t tiles;
    float *direction;  /* [tokens, directions, hidden]: for each slot's share of the output, then for all of it, the
                          direction along which an error proportional to it stands out most from rounding */
    double *signal;    /* [tokens, directions]: direction . share, truth's */
    double *variance;  /* [tokens, directions]: of direction . error */
    double *factor;    /* [tokens, tiles, tile * (tile + 1) / 2]: L, lower, row by row, L L^T the covariance of the
                          errors of a tile; NULL if a token's errors are independent: then there is one tile, and */
    double *deviation; /* [tokens, hidden]: sigma of each */
    double *underflow; /* [tokens, tiles]: what underflow adds to the square of the length of L^-1 error, at most */
    uint32_t *open; /* [tokens]: how many codes of a re-quantised intermediate are open, GB_LEFT_OUT for a token about
                       which sums say nothing; NULL: nothing is re-quantised, or what it is made to is given */
    double **basis; /* [tokens]: [open, hidden], orthonormal: all that these codes may do, in units of deviation */
    double *kept;   /* [tokens, hidden]: the share of an output's variance that no such code touches */
};
/* Of gb_covariance.open. */
#define GB_LEFT_OUT UINT32_MAX

/* ids, routing_weights: as gb_truth_layer; intermediate: truth's; bounds: with both sigmas. GB_EINVAL, GB_ENOMEM. */
GB_API enum gb_status gb_covariance_new(const struct gb_shape *shape, const int32_t *ids, const double *routing_weights,
                                        const double *intermediate, const struct gb_truth_quantised *weights,
                                        const struct gb_bounds *bounds, struct gb_covariance *covariance,
                                        struct gb_error *error);
GB_API void gb_covariance_free(struct gb_covariance *covariance);
/* values = L^-1 values; errors become uncorrelated, of variance 1. Where nothing may err the result is 0.
 * values: [count], count the columns of the tile. */
GB_API void gb_covariance_whiten(const struct gb_covariance *covariance, uint32_t token, uint32_t tile, uint32_t count,
                                 double *values);
/* Takes out of the errors of one token what codes that are open may have made of them. values: [hidden]. */
GB_API void gb_covariance_project(const struct gb_covariance *covariance, uint32_t token, double *values);

/*
 * down alone, by any order of summation, on an intermediate that is given and therefore exact: output_* of bounds, of
 * which output_sigma is needed, and the covariance of its errors. intermediate: [tokens, top_k, intermediate];
 * flips: NULL, or how far each value may be from there, in the same shape; routing_weights: as the kernel rounds them.
 * docs/numerics.md#stages, #covariance. GB_EINVAL, GB_ENOMEM.
 */
GB_API enum gb_status gb_bound_down(const struct gb_shape *shape, const double *intermediate, const double *flips,
                                    const int32_t *ids, const double *routing_weights,
                                    const struct gb_truth_quantised *weights, const struct gb_rounding_points *points,
                                    const struct gb_bounds *bounds, struct gb_covariance *covariance,
                                    struct gb_error *error);

/*
 * GB_ROUTE by any order of summation, docs/numerics.md#bounds: an expert's choice lies in low .. high, so that a set of
 * experts is impossible where one outside it has a low above the high of one inside; and a weight is at most relative *
 * its truth away from it. Both are infinite where FP32 may overflow. deviations: how many standard deviations of a dot
 * product's error are allowed for; INFINITY: the worst case. low, high: [tokens, experts]; relative: [tokens]. x as
 * gb_truth_router.
 */
GB_API enum gb_status gb_bound_router(const struct gb_arguments *arguments, const double *x, uint32_t accumulator_bits,
                                      double deviations, double *low, double *high, double *relative,
                                      struct gb_error *error);

/* GB_COMBINE in float64. output: [ranks * tokens, hidden]. GB_EINVAL, GB_ENOMEM. */
GB_API enum gb_status gb_truth_exchange(const struct gb_arguments *arguments, double *output, struct gb_error *error);
/* The same by any order of the sums that are formed where the exchange says, to an output of this format, with
 * accumulators of so many significand bits: |subject - truth| <= worst. truth, worst: [ranks * tokens, hidden]; worst
 * may be NULL. docs/numerics.md#rank-sums. */
GB_API enum gb_status gb_bound_exchange(const struct gb_arguments *arguments, enum gb_format output,
                                        uint32_t accumulator_bits, double *truth, double *worst,
                                        struct gb_error *error);

#ifdef __cplusplus
}
#endif
#endif
