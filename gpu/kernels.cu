/* SPDX-License-Identifier: Apache-2.0 */
/* The table of this library's kernels, and the checks in front of each. */
#include <cstring>

#include "gpu/kernels.cuh"
#include "gpu/ranks.cuh"
#include "gpu/routed_layer.cuh"

namespace
{

/* The domain that every kernel here shares. */
enum gb_status check_shape(const struct gb_shape *shape, enum gb_format weights, struct gb_error *error)
{
    const struct gb_shape s = *shape;
    if (!s.tokens || !s.hidden || !s.intermediate || !s.experts || !s.top_k || s.top_k > s.experts)
        return gb_cuda_fail(
            error, GB_EUNSUPPORTED,
            "tokens %u, hidden %u, intermediate %u, experts %u, top_k %u: every size must be at least 1 "
            "and top_k at most experts",
            s.tokens, s.hidden, s.intermediate, s.experts, s.top_k);
    /* columns that share a scale; bf16 rows are whole chunks */
    const uint32_t block = weights == GB_MXFP8 || weights == GB_MXFP4 ? 32 : 16;
    if (s.hidden % block || s.intermediate % block)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "%s %u is no multiple of %u",
                            s.hidden % block ? "hidden" : "intermediate", s.hidden % block ? s.hidden : s.intermediate,
                            block);
    if (s.top_k > GB_CUDA_MAX_TOP_K)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "top_k %u is more than %u", s.top_k, GB_CUDA_MAX_TOP_K);
    if ((uint64_t)s.tokens * s.top_k > 65535) /* the grid's second dimension */
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "tokens * top_k = %u * %u is more than 65535", s.tokens, s.top_k);
    if (s.hidden > 1u << 20 || s.intermediate > 1u << 20) /* so that sizes of rows fit in 32 bits */
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "hidden %u or intermediate %u is more than %u", s.hidden,
                            s.intermediate, 1u << 20);
    return GB_OK;
}

/* What no kernel here computes. */
enum gb_status check_extension(enum gb_activation activation, bool biased, uint32_t apply_router_weight_on_input,
                               uint32_t top_k, struct gb_error *error)
{
    if (apply_router_weight_on_input > 1 || (apply_router_weight_on_input && top_k != 1))
        return gb_cuda_fail(error, GB_EUNSUPPORTED,
                            "apply_router_weight_on_input %u with top_k %u; it is 1 only where top_k is 1",
                            apply_router_weight_on_input, top_k);
    if (activation != GB_SILU)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "activation %d; this kernel has SiLU", (int)activation);
    if (biased)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "gate_up or down has a bias, which this kernel does not add");
    return GB_OK;
}

/* GB_OK if the device can run blocks of `bytes` shared memory. 8 KiB is left for what a block holds beside it: a list
 * of pairs, and the runtime's part. */
enum gb_status check_device(size_t bytes, struct gb_error *error)
{
    int most = 0;
    enum gb_status status = gb_cuda_present(error);
    if (status == GB_OK)
        status = gb_cuda_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &most, error);
    if (status != GB_OK)
        return status;
    if (bytes + 8192 > (size_t)most)
        return gb_cuda_fail(error, GB_EUNSUPPORTED,
                            "a row of this shape needs %zu bytes of shared memory; the device has %d", bytes, most);
    return gb_cuda_image(error);
}

/* The problem itself, whatever the device. */
enum gb_status check_problem(const struct gb_problem *problem, enum gb_format weights, struct gb_error *error)
{
    if (problem->size < GB_PROBLEM_LEAST)
        return gb_cuda_fail(error, GB_EINVAL, "a problem of %zu bytes; this library needs %zu", problem->size,
                            GB_PROBLEM_LEAST);
    if (problem->weights != weights)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "weight format %d; this kernel has format %d",
                            (int)problem->weights, (int)weights);
    struct gb_problem asked = {};
    memcpy(&asked, problem, problem->size < sizeof asked ? problem->size : sizeof asked);
    const enum gb_status status =
        check_extension(asked.activation, asked.biased, asked.apply_router_weight_on_input, asked.shape.top_k, error);
    return status == GB_OK ? check_shape(&problem->shape, weights, error) : status;
}

template <enum gb_operator Operator, enum gb_format Weights>
enum gb_status supports(const struct gb_problem *problem, struct gb_error *error)
{
    const enum gb_status status = check_problem(problem, Weights, error);
    if (status != GB_OK)
        return status;
    size_t bytes = 0;
    if (Operator != GB_DOWN)
        bytes = gb_cuda_gate_up_shared(Weights, &problem->shape);
    if (Operator != GB_GATE_UP && bytes < gb_cuda_down_shared(Weights, &problem->shape))
        bytes = gb_cuda_down_shared(Weights, &problem->shape);
    return check_device(bytes, error);
}

enum gb_status check_weights(const char *name, const struct gb_weights *w, enum gb_format format, uint32_t experts,
                             uint32_t rows, uint32_t columns, uint32_t halves, struct gb_error *error)
{
    if (w->format != format || w->experts != experts || w->rows != rows || w->columns != columns || w->halves != halves)
        return gb_cuda_fail(
            error, GB_EINVAL,
            "%s: format %d, %u experts, %u rows, %u columns, %u halves; the shape needs %d, %u, %u, %u, %u", name,
            (int)w->format, w->experts, w->rows, w->columns, w->halves, (int)format, experts, rows, columns, halves);
    if (!w->codes || (format != GB_BF16 && !w->scales) || (format == GB_NVFP4 && !w->global_scales))
        return gb_cuda_fail(error, GB_EINVAL, "%s lacks codes, scales or global scales", name);
    return GB_OK;
}

/* What the caller knows of the arguments, and zeros for the rest. */
enum gb_status known(const struct gb_arguments *given, struct gb_arguments *a, struct gb_error *error)
{
    if (given->size < GB_ARGUMENTS_LEAST)
        return gb_cuda_fail(error, GB_EINVAL, "arguments of %zu bytes; this library needs %zu", given->size,
                            GB_ARGUMENTS_LEAST);
    *a = {};
    memcpy(a, given, given->size < sizeof *a ? given->size : sizeof *a);
    return GB_OK;
}

bool weighs_input(const struct gb_problem *problem)
{
    return problem->size >= offsetof(struct gb_problem, apply_router_weight_on_input) +
                                sizeof problem->apply_router_weight_on_input &&
           problem->apply_router_weight_on_input;
}

size_t workspace(const struct gb_problem *problem)
{
    return weighs_input(problem) ? gb_cuda_weigh_workspace(&problem->shape) : 0;
}

/* What the caller has given is what the operator needs. */
template <enum gb_operator Operator, enum gb_format Weights>
enum gb_status check_arguments(const struct gb_arguments &a, struct gb_error *error)
{
    const struct gb_shape *s = &a.shape;
    enum gb_status status =
        check_extension(a.activation, a.gate_up_bias || a.down_bias, a.apply_router_weight_on_input, s->top_k, error);
    if (status == GB_OK)
        status = check_shape(s, Weights, error);
    if (status != GB_OK)
        return status;
    if (!a.ids || !a.intermediate || (Operator != GB_DOWN && !a.x) || (Operator != GB_GATE_UP && !a.output) ||
        ((Operator != GB_GATE_UP || a.apply_router_weight_on_input) && !a.routing_weights))
        return gb_cuda_fail(error, GB_EINVAL, "a buffer that the operator needs is NULL");
    if (Operator != GB_DOWN)
        status = check_weights("gate_up", &a.gate_up, Weights, s->experts, 2 * s->intermediate, s->hidden, 2, error);
    if (status == GB_OK && Operator != GB_GATE_UP)
        status = check_weights("down", &a.down, Weights, s->experts, s->hidden, s->intermediate, 1, error);
    return status;
}

/* What launches gate_up or down. */
using launcher = enum gb_status (*)(enum gb_operator operation, const struct gb_arguments *a, struct gb_error *error);

enum gb_status fastest(enum gb_operator operation, const struct gb_arguments *a, struct gb_error *error)
{
    return operation == GB_GATE_UP ? gb_cuda_gate_up(a, error) : gb_cuda_down(a, error);
}

template <enum gb_operator Operator, enum gb_format Weights, launcher Launch = fastest>
enum gb_status run(const struct gb_arguments *given, struct gb_error *error)
{
    struct gb_arguments a;
    enum gb_status status = known(given, &a, error);
    if (status == GB_OK)
        status = check_arguments<Operator, Weights>(a, error);
    if (status == GB_OK && a.apply_router_weight_on_input)
        status = gb_cuda_weigh(&a, error);
    if (status == GB_OK && Operator != GB_DOWN)
        status = Launch(GB_GATE_UP, &a, error);
    if (status == GB_OK && Operator != GB_GATE_UP)
        status = Launch(GB_DOWN, &a, error);
    return status;
}

enum gb_status supports_route(const struct gb_problem *problem, struct gb_error *error)
{
    if (problem->size < offsetof(struct gb_problem, router) + sizeof problem->router)
        return gb_cuda_fail(error, GB_EINVAL, "a problem of %zu bytes has no router", problem->size);
    if (problem->weights != GB_BF16)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "weight format %d; a router's is %d", (int)problem->weights,
                            (int)GB_BF16);
    const enum gb_status status = gb_cuda_route_check(&problem->shape, problem->router, error);
    return status == GB_OK ? check_device(gb_cuda_route_shared(&problem->shape, problem->router), error) : status;
}

/* told: of gb_cuda_route. */
enum gb_status route(const struct gb_arguments *given, uint64_t *told, struct gb_error *error)
{
    struct gb_arguments a;
    enum gb_status status = known(given, &a, error);
    if (status == GB_OK)
        status = gb_cuda_route_check(&a.shape, a.router, error);
    if (status != GB_OK)
        return status;
    if (!a.x || !a.routed_ids || !a.routed_weights || (a.router->bias != GB_ROUTER_BIAS_NONE && !a.router_bias))
        return gb_cuda_fail(error, GB_EINVAL, "a buffer that the router needs is NULL");
    status = check_weights("router", &a.router_weights, GB_BF16, 1, a.shape.experts, a.shape.hidden, 1, error);
    return status == GB_OK ? gb_cuda_route(&a, told, error) : status;
}

enum gb_status run_route(const struct gb_arguments *given, struct gb_error *error)
{
    return route(given, NULL, error);
}

template <enum gb_operator Operator, enum gb_format Weights> constexpr struct gb_kernel kernel(const char *name)
{
    return {name,
            Operator,
            Weights,
            GB_BF16,
            GB_FP32,
            GB_ORDER_FMA32,
            24,
            GB_DEVICE_POINTERS | GB_GRAPH_CAPTURABLE | GB_APPLY_ROUTER_WEIGHT_ON_INPUT |
                (Operator == GB_LAYER ? (uint32_t)GB_STAGE_OUTPUTS : 0u),
            supports<Operator, Weights>,
            workspace,
            NULL,
            NULL,
            run<Operator, Weights>,
            {}};
}

template <enum gb_format Weights>
enum gb_status supports_naive(const struct gb_problem *problem, struct gb_error *error)
{
    const enum gb_status status = check_problem(problem, Weights, error);
    return status == GB_OK ? check_device(0, error) : status;
}

/* The same operators for every weight format, written for readers. */
template <enum gb_operator Operator, enum gb_format Weights> constexpr struct gb_kernel naive(const char *name)
{
    struct gb_kernel k = kernel<Operator, Weights>(name);
    k.supports = supports_naive<Weights>;
    k.run = run<Operator, Weights, gb_cuda_naive>;
    return k;
}

enum gb_status supports_warp_decode(const struct gb_problem *problem, struct gb_error *error)
{
    const enum gb_status status = supports_naive<GB_NVFP4>(problem, error);
    if (status == GB_OK && (problem->shape.hidden % 32 || problem->shape.intermediate % 32))
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "hidden %u or intermediate %u is no multiple of 32",
                            problem->shape.hidden, problem->shape.intermediate);
    return status;
}

/* The same operators by warp decode, to measure others against. */
template <enum gb_operator Operator, launcher Launch> constexpr struct gb_kernel warp_decode(const char *name)
{
    struct gb_kernel k = kernel<Operator, GB_NVFP4>(name);
    k.supports = supports_warp_decode;
    k.run = run<Operator, GB_NVFP4, Launch>;
    return k;
}

/* What kernels for the tensor cores of compute capability 9 share. `why`: what they depend on it for. */
template <enum gb_format Weights>
enum gb_status supports_tensor_cores(const struct gb_problem *problem, const char *why, struct gb_error *error)
{
    enum gb_status status = check_problem(problem, Weights, error);
    if (status != GB_OK)
        return status;
    if (problem->shape.experts > GB_CUDA_MMA16_MOST_EXPERTS)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "experts %u is more than %u", problem->shape.experts,
                            GB_CUDA_MMA16_MOST_EXPERTS);
    if (weighs_input(problem))
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "apply_router_weight_on_input; this kernel does not weigh x");
    int major = 0;
    status = gb_cuda_present(error);
    if (status == GB_OK)
        status = gb_cuda_attribute(cudaDevAttrComputeCapabilityMajor, &major, error);
    if (status == GB_OK && major != 9)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "compute capability %d; %s the tensor cores of 9", major, why);
    return status == GB_OK ? check_device(0, error) : status;
}

/*
 * The order mma16-sm90/1. Its kernels are for the architecture whose instruction the order describes.
 */
template <enum gb_format Weights>
enum gb_status supports_mma16(const struct gb_problem *problem, struct gb_error *error)
{
    return supports_tensor_cores<Weights>(problem, "mma16-sm90/1 describes", error);
}

template <enum gb_operator Operator> size_t workspace_mma16(const struct gb_problem *problem)
{
    return gb_cuda_mma16_workspace(Operator, &problem->shape);
}

/* Prepare: that of the order. */
template <enum gb_operator Operator, auto Prepare>
enum gb_status prepare_records(const struct gb_arguments *given, void **prepared, struct gb_error *error)
{
    struct gb_arguments a;
    const enum gb_status status = known(given, &a, error);
    return status == GB_OK ? Prepare(Operator, &a, prepared, error) : status;
}

enum gb_status check_not_weighing(const struct gb_arguments &a, struct gb_error *error)
{
    return a.apply_router_weight_on_input
               ? gb_cuda_fail(error, GB_EUNSUPPORTED, "apply_router_weight_on_input; this kernel does not weigh x")
               : GB_OK;
}

/* told: of gb_cuda_mma16. */
template <enum gb_operator Operator, enum gb_format Weights>
enum gb_status multiply(const struct gb_arguments *given, const uint64_t *told, struct gb_error *error)
{
    struct gb_arguments a;
    enum gb_status status = known(given, &a, error);
    if (status == GB_OK)
        status = check_arguments<Operator, Weights>(a, error);
    if (status == GB_OK)
        status = check_not_weighing(a, error);
    if (status == GB_OK && gb_cuda_mma16_workspace(Operator, &a.shape) && !a.workspace)
        status = gb_cuda_fail(error, GB_EINVAL, "a buffer that the operator needs is NULL");
    return status == GB_OK ? gb_cuda_mma16(Operator, &a, told, error) : status;
}

template <enum gb_operator Operator, enum gb_format Weights>
enum gb_status run_mma16(const struct gb_arguments *given, struct gb_error *error)
{
    return multiply<Operator, Weights>(given, NULL, error);
}

template <enum gb_operator Operator, enum gb_format Weights, bool Repacked>
constexpr struct gb_kernel mma16(const char *name)
{
    return {name,
            Operator,
            Weights,
            GB_BF16,
            GB_FP32,
            GB_ORDER_MMA16_SM90,
            23,
            GB_DEVICE_POINTERS | GB_GRAPH_CAPTURABLE | (Operator == GB_LAYER ? (uint32_t)GB_STAGE_OUTPUTS : 0u),
            supports_mma16<Weights>,
            workspace_mma16<Operator>,
            Repacked ? prepare_records<Operator, gb_cuda_mma16_prepare> : NULL,
            Repacked ? gb_cuda_mma16_release : NULL,
            run_mma16<Operator, Weights>,
            {}};
}

/* The order fma32/1 on tensor cores, and of one token on the canonical layout. */
template <enum gb_operator Operator>
enum gb_status supports_repacked(const struct gb_problem *problem, struct gb_error *error)
{
    const enum gb_status status = supports_tensor_cores<GB_NVFP4>(problem, "this kernel is for", error);
    const struct gb_shape &s = problem->shape;
    /* units are counted in 32 bits: tiles of 8 neurons or 16 outputs, of every two pairs or of one left over */
    const uint64_t tiles = s.intermediate / 8 > s.hidden / 16 ? s.intermediate / 8 : s.hidden / 16;
    if (status == GB_OK && ((uint64_t)s.tokens * s.top_k / 2 + s.experts) * tiles > UINT32_MAX / 2)
        return gb_cuda_fail(error, GB_EUNSUPPORTED,
                            "tokens * top_k = %u * %u, hidden %u, intermediate %u: too many tiles of rows to count",
                            s.tokens, s.top_k, s.hidden, s.intermediate);
    return status == GB_OK && problem->shape.tokens == 1 ? supports<Operator, GB_NVFP4>(problem, error) : status;
}

template <enum gb_operator Operator> size_t workspace_repacked(const struct gb_problem *problem)
{
    return gb_cuda_fma32_repacked_workspace(Operator, &problem->shape);
}

template <enum gb_operator Operator>
enum gb_status run_repacked(const struct gb_arguments *given, struct gb_error *error)
{
    struct gb_arguments a;
    enum gb_status status = known(given, &a, error);
    if (status == GB_OK)
        status = check_not_weighing(a, error);
    if (status == GB_OK && a.shape.tokens == 1)
        return run<Operator, GB_NVFP4>(given, error);
    if (status == GB_OK)
        status = check_arguments<Operator, GB_NVFP4>(a, error);
    if (status == GB_OK && (!a.prepared || (gb_cuda_fma32_repacked_workspace(Operator, &a.shape) && !a.workspace)))
        status = gb_cuda_fail(error, GB_EINVAL, "a buffer that the operator needs is NULL");
    return status == GB_OK ? gb_cuda_fma32_repacked(Operator, &a, error) : status;
}

template <enum gb_operator Operator> constexpr struct gb_kernel repacked(const char *name)
{
    struct gb_kernel k = mma16<Operator, GB_NVFP4, true>(name);
    k.order = GB_ORDER_FMA32;
    k.accumulator_bits = 24;
    k.supports = supports_repacked<Operator>;
    k.workspace = workspace_repacked<Operator>;
    k.prepare = prepare_records<Operator, gb_cuda_fma32_prepare>;
    k.run = run_repacked<Operator>;
    return k;
}

size_t workspace_eight_stages(const struct gb_problem *problem)
{
    return gb_cuda_eight_stages_workspace(&problem->shape);
}

enum gb_status run_eight_stages(const struct gb_arguments *given, struct gb_error *error)
{
    struct gb_arguments a;
    enum gb_status status = known(given, &a, error);
    if (status == GB_OK)
        status = check_arguments<GB_LAYER, GB_NVFP4>(a, error);
    if (status == GB_OK && !a.workspace)
        status = gb_cuda_fail(error, GB_EINVAL, "a buffer that the operator needs is NULL");
    return status == GB_OK ? gb_cuda_eight_stages(&a, error) : status;
}

/* The classical pipeline, to measure others against. */
constexpr struct gb_kernel eight_stages(const char *name)
{
    struct gb_kernel k = mma16<GB_LAYER, GB_NVFP4, false>(name);
    k.workspace = workspace_eight_stages;
    k.run = run_eight_stages;
    return k;
}

enum gb_status check_unweighed(bool weighed, struct gb_error *error)
{
    return weighed ? gb_cuda_fail(error, GB_EUNSUPPORTED,
                                  "apply_router_weight_on_input with quantised activations; no contract has both")
                   : GB_OK;
}

/* The same operators on quantised activations. */
template <enum gb_operator Operator, enum gb_format Weights, enum gb_format Activations>
enum gb_status supports_quantised(const struct gb_problem *problem, struct gb_error *error)
{
    const size_t known = offsetof(struct gb_problem, activation_rules) + sizeof problem->activation_rules;
    const struct gb_quantiser *rules = problem->size < known ? NULL : problem->activation_rules;
    enum gb_status status = supports<Operator, Weights>(problem, error);
    if (status == GB_OK)
        status = check_unweighed(weighs_input(problem), error);
    return status == GB_OK ? gb_cuda_activations_check(Activations, rules, &problem->shape, error) : status;
}

size_t workspace_quantised(const struct gb_problem *problem)
{
    return gb_cuda_activations_workspace(&problem->shape);
}

template <enum gb_operator Operator, enum gb_format Weights, enum gb_format Activations>
enum gb_status run_quantised(const struct gb_arguments *given, struct gb_error *error)
{
    struct gb_arguments a;
    enum gb_status status = known(given, &a, error);
    if (status == GB_OK)
        status = check_extension(a.activation, a.gate_up_bias || a.down_bias, a.apply_router_weight_on_input,
                                 a.shape.top_k, error);
    if (status == GB_OK)
        status = check_shape(&a.shape, Weights, error);
    if (status == GB_OK)
        status = check_unweighed(a.apply_router_weight_on_input, error);
    if (status == GB_OK)
        status = gb_cuda_activations_check(Activations, a.activation_rules, &a.shape, error);
    if (status == GB_OK && Operator != GB_DOWN) {
        struct gb_arguments first = a;
        first.size = sizeof first;
        status = check_weights("gate_up", &a.gate_up, Weights, a.shape.experts, 2 * a.shape.intermediate,
                               a.shape.hidden, 2, error);
        if (status == GB_OK)
            status = gb_cuda_activations(GB_GATE_UP, &first, error);
        if (status == GB_OK)
            status = run<GB_GATE_UP, Weights>(&first, error);
    }
    if (status == GB_OK && Operator != GB_GATE_UP) {
        struct gb_arguments second = a;
        second.size = sizeof second;
        status =
            check_weights("down", &a.down, Weights, a.shape.experts, a.shape.hidden, a.shape.intermediate, 1, error);
        if (status == GB_OK)
            status = gb_cuda_activations(GB_DOWN, &second, error);
        if (status == GB_OK)
            status = run<GB_DOWN, Weights>(&second, error);
    }
    return status;
}

template <enum gb_operator Operator, enum gb_format Weights, enum gb_format Activations>
constexpr struct gb_kernel quantised(const char *name)
{
    return {name,
            Operator,
            Weights,
            Activations,
            GB_FP32,
            GB_ORDER_FMA32,
            24,
            GB_DEVICE_POINTERS | GB_GRAPH_CAPTURABLE | GB_STAGE_OUTPUTS,
            supports_quantised<Operator, Weights, Activations>,
            workspace_quantised,
            NULL,
            NULL,
            run_quantised<Operator, Weights, Activations>,
            {}};
}

template <enum gb_operator Operator>
enum gb_status supports_quantise(const struct gb_problem *problem, struct gb_error *error)
{
    const bool grown = problem->size >= offsetof(struct gb_problem, quantise) + sizeof problem->quantise;
    enum gb_status status = gb_cuda_quantise_check(grown ? problem->quantise : NULL, Operator, error);
    return status == GB_OK ? check_device(0, error) : status;
}

template <enum gb_operator Operator>
enum gb_status run_quantise(const struct gb_arguments *given, struct gb_error *error)
{
    struct gb_arguments a;
    enum gb_status status = known(given, &a, error);
    if (status == GB_OK)
        status = gb_cuda_quantise_check(a.quantise, Operator, error);
    if (status == GB_OK && (!a.values || !a.codes || !a.scales))
        status = gb_cuda_fail(error, GB_EINVAL, "a buffer that the operator needs is NULL");
    if (status != GB_OK)
        return status;
    return Operator == GB_QUANTISE ? gb_cuda_quantise(&a, error) : gb_cuda_silu_mul_quantise(&a, error);
}

/* Every recipe: its rules determine the codes, so there is no order and no weight format. */
template <enum gb_operator Operator> constexpr struct gb_kernel quantiser(const char *name)
{
    return {name,
            Operator,
            (enum gb_format)0,
            GB_BF16,
            GB_FP32,
            NULL,
            24,
            GB_DEVICE_POINTERS | GB_GRAPH_CAPTURABLE,
            supports_quantise<Operator>,
            NULL,
            NULL,
            NULL,
            run_quantise<Operator>,
            {}};
}

template <enum gb_operator Operator>
enum gb_status supports_exchange(const struct gb_problem *problem, struct gb_error *error)
{
    const bool grown = problem->size >= offsetof(struct gb_problem, exchange) + sizeof problem->exchange;
    const enum gb_status status = gb_cuda_exchange_check(grown ? problem->exchange : NULL, Operator, error);
    return status == GB_OK ? gb_cuda_ranks_check(problem->exchange->ranks, error) : status;
}

/* What the caller has given is what the operator needs. */
template <enum gb_operator Operator>
enum gb_status check_exchange(const struct gb_arguments *given, struct gb_arguments *a, struct gb_error *error)
{
    enum gb_status status = known(given, a, error);
    if (status == GB_OK)
        status = gb_cuda_exchange_check(a->exchange, Operator, error);
    if (status != GB_OK)
        return status;
    const bool quantises = Operator == GB_DISPATCH && a->exchange->quantiser.element;
    if (!a->ids || !a->placement ||
        (Operator == GB_DISPATCH && (!a->x || !a->counts || !a->routes || !a->codes || (quantises && !a->scales))) ||
        (Operator == GB_COMBINE && (!a->routing_weights || !a->values || !a->output)))
        return gb_cuda_fail(error, GB_EINVAL, "a buffer that the operator needs is NULL");
    return GB_OK;
}

template <enum gb_operator Operator>
enum gb_status prepare_exchange(const struct gb_arguments *given, void **prepared, struct gb_error *error)
{
    struct gb_arguments a;
    const enum gb_status status = check_exchange<Operator>(given, &a, error);
    return status == GB_OK ? gb_cuda_exchange_prepare(Operator, &a, prepared, error) : status;
}

template <enum gb_operator Operator>
enum gb_status run_exchange(const struct gb_arguments *given, struct gb_error *error)
{
    struct gb_arguments a;
    enum gb_status status = check_exchange<Operator>(given, &a, error);
    if (status == GB_OK && !a.prepared)
        status = gb_cuda_fail(error, GB_EINVAL, "the ranks have not been prepared");
    return status == GB_OK ? gb_cuda_exchange(Operator, &a, error) : status;
}

/* Over ranks, every accumulation and, like the quantisers, every recipe. */
template <enum gb_operator Operator> constexpr struct gb_kernel exchange(const char *name)
{
    return {name,
            Operator,
            (enum gb_format)0,
            GB_BF16,
            GB_FP32,
            Operator == GB_COMBINE ? GB_ORDER_SLOTS : NULL,
            24,
            GB_DEVICE_POINTERS | GB_GRAPH_CAPTURABLE,
            supports_exchange<Operator>,
            NULL,
            prepare_exchange<Operator>,
            gb_cuda_exchange_release,
            run_exchange<Operator>,
            {}};
}

constexpr struct gb_kernel router = {"cuda/route",
                                     GB_ROUTE,
                                     GB_BF16,
                                     GB_BF16,
                                     GB_FP32,
                                     GB_ORDER_FMA32,
                                     24,
                                     GB_DEVICE_POINTERS | GB_GRAPH_CAPTURABLE,
                                     supports_route,
                                     NULL,
                                     NULL,
                                     NULL,
                                     run_route,
                                     {}};

/* What layers that route are made of. */
template <enum gb_format Weights> constexpr struct gb_kernel layer = kernel<GB_LAYER, Weights>("layer");
template <enum gb_format Format>
constexpr struct gb_kernel quantised_layer = quantised<GB_LAYER, Format, Format>("layer");
template <enum gb_format Weights, bool Repacked>
constexpr struct gb_kernel mma16_layer = mma16<GB_LAYER, Weights, Repacked>("layer");
constexpr struct gb_kernel repacked_layer = repacked<GB_LAYER>("layer");

/* Of the layer, up to where the router tells ids and weights. */
size_t layer_workspace(const struct gb_shape &s)
{
    return (gb_cuda_mma16_workspace(GB_LAYER, &s) + 127) / 128 * 128;
}

size_t workspace_routed_mma16(const struct gb_problem *problem)
{
    const struct gb_shape &s = problem->shape;
    return layer_workspace(s) + (s.tokens == 1 ? gb_cuda_told_bytes(s.top_k) : 0);
}

/* Of one token, gate_up loads weights as soon as their expert has been chosen, before the router has ended. */
template <enum gb_format Weights>
enum gb_status run_routed_mma16(const struct gb_arguments *given, struct gb_error *error)
{
    const struct gb_arguments a = gb_routed_arguments(given);
    enum gb_status status = gb_cuda_route_check(&a.shape, a.router, error);
    if (status == GB_OK && !a.workspace)
        status = gb_cuda_fail(error, GB_EINVAL, "a buffer that the operator needs is NULL");
    if (status != GB_OK)
        return status;
    uint64_t *told = a.shape.tokens == 1 ? (uint64_t *)((char *)a.workspace + layer_workspace(a.shape)) : NULL;
    status = route(given, told, error);
    return status == GB_OK ? multiply<GB_LAYER, Weights>(&a, told, error) : status;
}

template <enum gb_format Weights, bool Repacked> constexpr struct gb_kernel mma16_routed_layer(const char *name)
{
    struct gb_kernel k = gb_routed_layer<router, mma16_layer<Weights, Repacked>>::kernel(name);
    k.workspace = workspace_routed_mma16;
    k.run = run_routed_mma16<Weights>;
    return k;
}

const struct gb_kernel kernels[] = {
    kernel<GB_LAYER, GB_NVFP4>("cuda/nvfp4-layer"),
    kernel<GB_GATE_UP, GB_NVFP4>("cuda/nvfp4-gate-up"),
    kernel<GB_DOWN, GB_NVFP4>("cuda/nvfp4-down"),
    repacked<GB_LAYER>("cuda/nvfp4-repacked-layer"),
    repacked<GB_GATE_UP>("cuda/nvfp4-repacked-gate-up"),
    repacked<GB_DOWN>("cuda/nvfp4-repacked-down"),
    kernel<GB_LAYER, GB_MXFP8>("cuda/mxfp8-layer"),
    kernel<GB_GATE_UP, GB_MXFP8>("cuda/mxfp8-gate-up"),
    kernel<GB_DOWN, GB_MXFP8>("cuda/mxfp8-down"),
    kernel<GB_LAYER, GB_BF16>("cuda/bf16-layer"),
    kernel<GB_GATE_UP, GB_BF16>("cuda/bf16-gate-up"),
    kernel<GB_DOWN, GB_BF16>("cuda/bf16-down"),
    quantised<GB_LAYER, GB_NVFP4, GB_NVFP4>("cuda/nvfp4-nvfp4-layer"),
    quantised<GB_GATE_UP, GB_NVFP4, GB_NVFP4>("cuda/nvfp4-nvfp4-gate-up"),
    quantised<GB_DOWN, GB_NVFP4, GB_NVFP4>("cuda/nvfp4-nvfp4-down"),
    quantised<GB_LAYER, GB_MXFP8, GB_MXFP8>("cuda/mxfp8-mxfp8-layer"),
    quantised<GB_GATE_UP, GB_MXFP8, GB_MXFP8>("cuda/mxfp8-mxfp8-gate-up"),
    quantised<GB_DOWN, GB_MXFP8, GB_MXFP8>("cuda/mxfp8-mxfp8-down"),
    mma16<GB_LAYER, GB_NVFP4, false>("cuda/nvfp4-mma16-layer"),
    mma16<GB_GATE_UP, GB_NVFP4, false>("cuda/nvfp4-mma16-gate-up"),
    mma16<GB_DOWN, GB_NVFP4, false>("cuda/nvfp4-mma16-down"),
    mma16<GB_LAYER, GB_NVFP4, true>("cuda/nvfp4-mma16-repacked-layer"),
    mma16<GB_GATE_UP, GB_NVFP4, true>("cuda/nvfp4-mma16-repacked-gate-up"),
    mma16<GB_DOWN, GB_NVFP4, true>("cuda/nvfp4-mma16-repacked-down"),
    mma16<GB_LAYER, GB_MXFP8, false>("cuda/mxfp8-mma16-layer"),
    mma16<GB_GATE_UP, GB_MXFP8, false>("cuda/mxfp8-mma16-gate-up"),
    mma16<GB_DOWN, GB_MXFP8, false>("cuda/mxfp8-mma16-down"),
    mma16<GB_LAYER, GB_MXFP8, true>("cuda/mxfp8-mma16-repacked-layer"),
    mma16<GB_GATE_UP, GB_MXFP8, true>("cuda/mxfp8-mma16-repacked-gate-up"),
    mma16<GB_DOWN, GB_MXFP8, true>("cuda/mxfp8-mma16-repacked-down"),
    mma16<GB_LAYER, GB_MXFP4, false>("cuda/mxfp4-mma16-layer"),
    mma16<GB_GATE_UP, GB_MXFP4, false>("cuda/mxfp4-mma16-gate-up"),
    mma16<GB_DOWN, GB_MXFP4, false>("cuda/mxfp4-mma16-down"),
    mma16<GB_LAYER, GB_MXFP4, true>("cuda/mxfp4-mma16-repacked-layer"),
    mma16<GB_GATE_UP, GB_MXFP4, true>("cuda/mxfp4-mma16-repacked-gate-up"),
    mma16<GB_DOWN, GB_MXFP4, true>("cuda/mxfp4-mma16-repacked-down"),
    naive<GB_LAYER, GB_NVFP4>("cuda/naive-nvfp4-layer"),
    naive<GB_GATE_UP, GB_NVFP4>("cuda/naive-nvfp4-gate-up"),
    naive<GB_DOWN, GB_NVFP4>("cuda/naive-nvfp4-down"),
    naive<GB_LAYER, GB_MXFP8>("cuda/naive-mxfp8-layer"),
    naive<GB_GATE_UP, GB_MXFP8>("cuda/naive-mxfp8-gate-up"),
    naive<GB_DOWN, GB_MXFP8>("cuda/naive-mxfp8-down"),
    naive<GB_LAYER, GB_MXFP4>("cuda/naive-mxfp4-layer"),
    naive<GB_GATE_UP, GB_MXFP4>("cuda/naive-mxfp4-gate-up"),
    naive<GB_DOWN, GB_MXFP4>("cuda/naive-mxfp4-down"),
    naive<GB_LAYER, GB_FP8_BLOCK>("cuda/naive-fp8-layer"),
    naive<GB_GATE_UP, GB_FP8_BLOCK>("cuda/naive-fp8-gate-up"),
    naive<GB_DOWN, GB_FP8_BLOCK>("cuda/naive-fp8-down"),
    naive<GB_LAYER, GB_BF16>("cuda/naive-bf16-layer"),
    naive<GB_GATE_UP, GB_BF16>("cuda/naive-bf16-gate-up"),
    naive<GB_DOWN, GB_BF16>("cuda/naive-bf16-down"),
    warp_decode<GB_LAYER, gb_cuda_warp_decode>("cuda/warp-decode-layer"),
    warp_decode<GB_GATE_UP, gb_cuda_warp_decode>("cuda/warp-decode-gate-up"),
    warp_decode<GB_DOWN, gb_cuda_warp_decode>("cuda/warp-decode-down"),
    warp_decode<GB_LAYER, gb_cuda_warp_decode_table>("cuda/warp-decode-table-layer"),
    warp_decode<GB_GATE_UP, gb_cuda_warp_decode_table>("cuda/warp-decode-table-gate-up"),
    warp_decode<GB_DOWN, gb_cuda_warp_decode_table>("cuda/warp-decode-table-down"),
    eight_stages("cuda/eight-stages-layer"),
    router,
    gb_routed_layer<router, layer<GB_NVFP4>>::kernel("cuda/nvfp4-routed-layer"),
    gb_routed_layer<router, repacked_layer>::kernel("cuda/nvfp4-repacked-routed-layer"),
    gb_routed_layer<router, layer<GB_MXFP8>>::kernel("cuda/mxfp8-routed-layer"),
    gb_routed_layer<router, layer<GB_BF16>>::kernel("cuda/bf16-routed-layer"),
    gb_routed_layer<router, quantised_layer<GB_NVFP4>>::kernel("cuda/nvfp4-nvfp4-routed-layer"),
    gb_routed_layer<router, quantised_layer<GB_MXFP8>>::kernel("cuda/mxfp8-mxfp8-routed-layer"),
    mma16_routed_layer<GB_NVFP4, false>("cuda/nvfp4-mma16-routed-layer"),
    mma16_routed_layer<GB_NVFP4, true>("cuda/nvfp4-mma16-repacked-routed-layer"),
    mma16_routed_layer<GB_MXFP8, false>("cuda/mxfp8-mma16-routed-layer"),
    mma16_routed_layer<GB_MXFP8, true>("cuda/mxfp8-mma16-repacked-routed-layer"),
    mma16_routed_layer<GB_MXFP4, false>("cuda/mxfp4-mma16-routed-layer"),
    mma16_routed_layer<GB_MXFP4, true>("cuda/mxfp4-mma16-repacked-routed-layer"),
    quantiser<GB_QUANTISE>("cuda/quantise"),
    quantiser<GB_SILU_MUL_QUANTISE>("cuda/silu-mul-quantise"),
    exchange<GB_DISPATCH>("cuda/dispatch"),
    exchange<GB_COMBINE>("cuda/combine"),
};

} // namespace

extern "C" GB_API const struct gb_kernel_table *gb_kernels(void)
{
    static const struct gb_kernel_table table = {GB_ABI_VERSION, sizeof(struct gb_kernel),
                                                 sizeof kernels / sizeof kernels[0], kernels};
    return &table;
}
