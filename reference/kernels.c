/* SPDX-License-Identifier: Apache-2.0 */
/* The reference as subjects. */
#include "quant/quant.h"
#include "reference/quantise.h"
#include "reference/reference.h"

static const struct gb_quantiser *activation_rules(const struct gb_problem *problem)
{
    size_t known = offsetof(struct gb_problem, activation_rules) + sizeof problem->activation_rules;
    return problem->size < known ? NULL : problem->activation_rules;
}

static enum gb_status supports(const struct gb_problem *problem, struct gb_error *error)
{
    const struct gb_quantiser *rules = activation_rules(problem);
    uint32_t multiple = gb_format_multiple(problem->weights), block = rules ? rules->block_columns : 1;
    if (!gb_contract_find(problem->weights, rules ? gb_quantiser_activations(rules) : GB_BF16, GB_ORDER_FMA32))
        return gb_fail(error, GB_EUNSUPPORTED, "no contract for this weight format and these activations");
    if (problem->shape.hidden % block || problem->shape.intermediate % block)
        return gb_fail(error, GB_EUNSUPPORTED,
                       "hidden %u or intermediate %u is no multiple of %u, the block of activations",
                       problem->shape.hidden, problem->shape.intermediate, block);
    if (problem->shape.hidden % multiple || problem->shape.intermediate % multiple)
        return gb_fail(error, GB_EUNSUPPORTED, "hidden %u or intermediate %u is no multiple of the block %u",
                       problem->shape.hidden, problem->shape.intermediate, multiple);
    return GB_OK;
}

static enum gb_status check_router(const struct gb_problem *problem, struct gb_error *error)
{
    if (problem->size < offsetof(struct gb_problem, router) + sizeof problem->router || !problem->router)
        return gb_fail(error, GB_EUNSUPPORTED, "the problem names no router recipe");
    return GB_OK;
}

/* The router's domain is not the layer's: any hidden size. */
static enum gb_status supports_route(const struct gb_problem *problem, struct gb_error *error)
{
    if (problem->weights != GB_BF16)
        return gb_fail(error, GB_EUNSUPPORTED, "a router's weights are bf16");
    return check_router(problem, error);
}

static enum gb_status supports_routed(const struct gb_problem *problem, struct gb_error *error)
{
    enum gb_status status = check_router(problem, error);
    return status == GB_OK ? supports(problem, error) : status;
}

static const struct gb_quantisation *asked_for(const struct gb_problem *problem)
{
    return problem->size < offsetof(struct gb_problem, quantise) + sizeof problem->quantise ? NULL : problem->quantise;
}

static enum gb_status supports_quantise(const struct gb_problem *problem, struct gb_error *error)
{
    return gb_quantise_check(asked_for(problem), GB_QUANTISE, error);
}

static enum gb_status supports_silu_mul_quantise(const struct gb_problem *problem, struct gb_error *error)
{
    return gb_quantise_check(asked_for(problem), GB_SILU_MUL_QUANTISE, error);
}

/* An operator as the kernels of the order fma32 run it. */
#define FMA32(OPERATOR, OPERATION)                                                                                     \
    static enum gb_status fma32_##OPERATOR(const struct gb_arguments *a, struct gb_error *error)                       \
    {                                                                                                                  \
        return gb_reference_##OPERATOR(gb_contract_of(a, OPERATION, GB_ORDER_FMA32), a, error);                        \
    }
FMA32(layer, GB_LAYER)
FMA32(routed_layer, GB_LAYER)
FMA32(gate_up, GB_GATE_UP)
FMA32(down, GB_DOWN)
FMA32(router, GB_ROUTE)

/* Every recipe: the codes are determined by its rules, so there is no order and no weight format. */
#define QUANTISER(NAME, OPERATION, SUPPORTS, RUN)                                                                      \
    {                                                                                                                  \
        .name = NAME, .operation = OPERATION, .activations = GB_BF16, .output = GB_FP32, .accumulator_bits = 24,       \
        .supports = SUPPORTS, .run = RUN                                                                               \
    }

#define KERNEL(NAME, OPERATION, WEIGHTS, ACTIVATIONS, FLAGS, SUPPORTS, RUN)                                            \
    {                                                                                                                  \
        .name = NAME, .operation = OPERATION, .weights = WEIGHTS, .activations = ACTIVATIONS, .output = GB_FP32,       \
        .order = GB_ORDER_FMA32, .accumulator_bits = 24, .flags = GB_LAYER_EXTENSIONS | (FLAGS), .supports = SUPPORTS, \
        .run = RUN                                                                                                     \
    }
#define ROW(NAME, OPERATION, WEIGHTS, FLAGS, RUN)                                                                      \
    KERNEL(NAME, OPERATION, WEIGHTS, GB_BF16, GB_WEIGHED_INPUT | (FLAGS), supports, RUN)
/* A layer that routes by itself. */
#define ROUTED(NAME, WEIGHTS, ACTIVATIONS, FLAGS)                                                                      \
    KERNEL(NAME "-routed-layer", GB_LAYER, WEIGHTS, ACTIVATIONS, GB_ROUTES | GB_STAGE_OUTPUTS | (FLAGS),               \
           supports_routed, fma32_routed_layer)
/* The operators with bf16 activations: NAME-layer, NAME-gate-up, NAME-down, NAME-routed-layer. */
#define PLAIN(NAME, WEIGHTS)                                                                                           \
    ROW(NAME "-layer", GB_LAYER, WEIGHTS, GB_STAGE_OUTPUTS, fma32_layer),                                              \
        ROW(NAME "-gate-up", GB_GATE_UP, WEIGHTS, 0, fma32_gate_up),                                                   \
        ROW(NAME "-down", GB_DOWN, WEIGHTS, 0, fma32_down), ROUTED(NAME, WEIGHTS, GB_BF16, GB_WEIGHED_INPUT)
/* The same with quantised ones. */
#define QUANTISED(NAME, WEIGHTS, ACTIVATIONS)                                                                          \
    KERNEL(NAME "-layer", GB_LAYER, WEIGHTS, ACTIVATIONS, GB_STAGE_OUTPUTS, supports, fma32_layer),                    \
        KERNEL(NAME "-gate-up", GB_GATE_UP, WEIGHTS, ACTIVATIONS, GB_STAGE_OUTPUTS, supports, fma32_gate_up),          \
        KERNEL(NAME "-down", GB_DOWN, WEIGHTS, ACTIVATIONS, GB_STAGE_OUTPUTS, supports, fma32_down),                   \
        ROUTED(NAME, WEIGHTS, ACTIVATIONS, 0)

static const struct gb_kernel kernels[] = {
    PLAIN("cpu/nvfp4", GB_NVFP4),
    PLAIN("cpu/mxfp8", GB_MXFP8),
    PLAIN("cpu/mxfp4", GB_MXFP4),
    PLAIN("cpu/fp8", GB_FP8_BLOCK),
    PLAIN("cpu/bf16", GB_BF16),
    QUANTISED("cpu/nvfp4-nvfp4", GB_NVFP4, GB_NVFP4),
    QUANTISED("cpu/mxfp8-mxfp8", GB_MXFP8, GB_MXFP8),
    QUANTISED("cpu/mxfp4-mxfp8", GB_MXFP4, GB_MXFP8),
    QUANTISED("cpu/fp8-fp8", GB_FP8_BLOCK, GB_FP8_BLOCK),
    {.name = "cpu/route",
     .operation = GB_ROUTE,
     .weights = GB_BF16,
     .activations = GB_BF16,
     .output = GB_FP32,
     .order = GB_ORDER_FMA32,
     .accumulator_bits = 24,
     .supports = supports_route,
     .run = fma32_router},
    QUANTISER("cpu/quantise", GB_QUANTISE, supports_quantise, gb_reference_quantise),
    QUANTISER("cpu/silu-mul-quantise", GB_SILU_MUL_QUANTISE, supports_silu_mul_quantise,
              gb_reference_silu_mul_quantise),
};

static const struct gb_kernel_table table = {
    .abi_version = GB_ABI_VERSION,
    .kernel_size = sizeof(struct gb_kernel),
    .count = sizeof kernels / sizeof *kernels,
    .kernels = kernels,
};

const struct gb_kernel_table *gb_reference_kernels(void)
{
    return &table;
}
