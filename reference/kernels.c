/* SPDX-License-Identifier: Apache-2.0 */
/* The reference as subjects: of each contract its operators, and what needs none. */
#include "quant/quant.h"
#include "reference/contracts.h"
#include "reference/exchange.h"
#include "reference/quantise.h"

static const struct gb_quantiser *activation_rules(const struct gb_problem *problem)
{
    size_t known = offsetof(struct gb_problem, activation_rules) + sizeof problem->activation_rules;
    return problem->size < known ? NULL : problem->activation_rules;
}

static enum gb_status supports(const struct gb_problem *problem, const char *order, struct gb_error *error)
{
    const struct gb_quantiser *rules = activation_rules(problem);
    uint32_t multiple = gb_format_multiple(problem->weights), block = rules ? rules->block_columns : 1;
    if (!gb_contract_find(problem->weights, rules ? gb_quantiser_activations(rules) : GB_BF16, order))
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

static const struct gb_exchange *exchange(const struct gb_problem *problem)
{
    return problem->size < offsetof(struct gb_problem, exchange) + sizeof problem->exchange ? NULL : problem->exchange;
}

static enum gb_status supports_dispatch(const struct gb_problem *problem, struct gb_error *error)
{
    return gb_exchange_check(exchange(problem), GB_DISPATCH, error);
}

static enum gb_status supports_combine(const struct gb_problem *problem, struct gb_error *error)
{
    return gb_exchange_check(exchange(problem), GB_COMBINE, error);
}

/* The operators as the kernels of an order run them: ORDER_layer and so on. */
#define OPERATOR(ORDER, NAME, OPERATOR, OPERATION)                                                                     \
    static enum gb_status ORDER##_##OPERATOR(const struct gb_arguments *a, struct gb_error *error)                     \
    {                                                                                                                  \
        return gb_reference_##OPERATOR(gb_contract_of(a, OPERATION, NAME), a, error);                                  \
    }
#define OPERATORS(ORDER, NAME)                                                                                         \
    static enum gb_status ORDER##_supports(const struct gb_problem *problem, struct gb_error *error)                   \
    {                                                                                                                  \
        return supports(problem, NAME, error);                                                                         \
    }                                                                                                                  \
    static enum gb_status ORDER##_supports_routed(const struct gb_problem *problem, struct gb_error *error)            \
    {                                                                                                                  \
        enum gb_status status = check_router(problem, error);                                                          \
        return status == GB_OK ? supports(problem, NAME, error) : status;                                              \
    }                                                                                                                  \
    OPERATOR(ORDER, NAME, layer, GB_LAYER)                                                                             \
    OPERATOR(ORDER, NAME, routed_layer, GB_LAYER)                                                                      \
    OPERATOR(ORDER, NAME, gate_up, GB_GATE_UP)                                                                         \
    OPERATOR(ORDER, NAME, down, GB_DOWN)

GB_ORDERS(OPERATORS)
OPERATOR(fma32, GB_ORDER_FMA32, router, GB_ROUTE)

/* What is asked for determines every bit, combine's in its one order; there is no weight format. */
#define ALONE(NAME, OPERATION, ORDER, SUPPORTS, RUN)                                                                   \
    {                                                                                                                  \
        .name = NAME, .operation = OPERATION, .activations = GB_BF16, .output = GB_FP32, .order = ORDER,               \
        .accumulator_bits = 24, .supports = SUPPORTS, .run = RUN                                                       \
    }

#define KERNEL(NAME, OPERATION, WEIGHTS, ACTIVATIONS, ORDER, BITS, FLAGS, SUPPORTS, RUN)                               \
    {                                                                                                                  \
        .name = NAME, .operation = OPERATION, .weights = WEIGHTS, .activations = ACTIVATIONS, .output = GB_FP32,       \
        .order = ORDER, .accumulator_bits = BITS, .flags = GB_LAYER_EXTENSIONS | (FLAGS), .supports = SUPPORTS,        \
        .run = RUN                                                                                                     \
    }
#define ROUTER                                                                                                         \
    {                                                                                                                  \
        .name = "cpu/route", .operation = GB_ROUTE, .weights = GB_BF16, .activations = GB_BF16, .output = GB_FP32,     \
        .order = GB_ORDER_FMA32, .accumulator_bits = 24, .supports = supports_route, .run = fma32_router               \
    }
/* PREFIX-layer, PREFIX-gate-up, PREFIX-down, PREFIX-routed-layer. Those with bf16 activations can weigh the input; of
 * those with quantised ones, gate_up and down hand out the codes. */
#define KERNELS(WEIGHTS, WEIGHT_FORMAT, ACTIVATIONS, ACTIVATION_FORMAT, ORDER, NAME, BITS, PREFIX, SUMMARY)            \
    KERNEL(PREFIX "-layer", GB_LAYER, WEIGHT_FORMAT, ACTIVATION_FORMAT, NAME, BITS,                                    \
           GB_STAGE_OUTPUTS | WEIGHS(ACTIVATION_FORMAT), ORDER##_supports, ORDER##_layer),                             \
        KERNEL(PREFIX "-gate-up", GB_GATE_UP, WEIGHT_FORMAT, ACTIVATION_FORMAT, NAME, BITS, STAGE(ACTIVATION_FORMAT),  \
               ORDER##_supports, ORDER##_gate_up),                                                                     \
        KERNEL(PREFIX "-down", GB_DOWN, WEIGHT_FORMAT, ACTIVATION_FORMAT, NAME, BITS, STAGE(ACTIVATION_FORMAT),        \
               ORDER##_supports, ORDER##_down),                                                                        \
        KERNEL(PREFIX "-routed-layer", GB_LAYER, WEIGHT_FORMAT, ACTIVATION_FORMAT, NAME, BITS,                         \
               GB_ROUTES | GB_STAGE_OUTPUTS | WEIGHS(ACTIVATION_FORMAT), ORDER##_supports_routed,                      \
               ORDER##_routed_layer),
#define WEIGHS(ACTIVATION_FORMAT) ((ACTIVATION_FORMAT) == GB_BF16 ? GB_APPLY_ROUTER_WEIGHT_ON_INPUT : 0)
#define STAGE(ACTIVATION_FORMAT) ((ACTIVATION_FORMAT) == GB_BF16 ? GB_APPLY_ROUTER_WEIGHT_ON_INPUT : GB_STAGE_OUTPUTS)

static const struct gb_kernel kernels[] = {
    GB_CONTRACTS(KERNELS) ROUTER,
    ALONE("cpu/quantise", GB_QUANTISE, NULL, supports_quantise, gb_reference_quantise),
    ALONE("cpu/silu-mul-quantise", GB_SILU_MUL_QUANTISE, NULL, supports_silu_mul_quantise,
          gb_reference_silu_mul_quantise),
    ALONE("cpu/dispatch", GB_DISPATCH, NULL, supports_dispatch, gb_reference_dispatch),
    ALONE("cpu/combine", GB_COMBINE, GB_ORDER_SLOTS, supports_combine, gb_reference_combine),
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
