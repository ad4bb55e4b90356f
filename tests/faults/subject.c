/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A subject library of injected faults, and of correct kernels for comparison. faults/NAME claims the order fma32/1
 * and is judged by bits; faults/NAME-unordered claims none and is judged by bounds.
 */
#define _GNU_SOURCE
#include <fenv.h>
#include <omp.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/faults/faults.h"
#include "tests/support/fma32.h"

static enum gb_status supports(const struct gb_problem *problem, struct gb_error *error)
{
    if (problem->weights != GB_NVFP4)
        return gb_fail(error, GB_EUNSUPPORTED, "only NVFP4 weights");
    if (problem->shape.hidden % 16 || problem->shape.intermediate % 16)
        return gb_fail(error, GB_EUNSUPPORTED, "hidden and intermediate must be multiples of 16");
    return GB_OK;
}

static enum gb_status supports_router(const struct gb_problem *problem, struct gb_error *error)
{
    return problem->router ? GB_OK : gb_fail(error, GB_EUNSUPPORTED, "no router");
}

static enum gb_status supports_routed(const struct gb_problem *problem, struct gb_error *error)
{
    enum gb_status status = supports_router(problem, error);
    return status == GB_OK ? supports(problem, error) : status;
}

/* The reference; what an operator does not have must be NULL, as gaugeblock.h says. */
static enum gb_status run_gate_up_alone(const struct gb_arguments *a, struct gb_error *error)
{
    if ((a->routing_weights && !a->apply_router_weight_on_input) || a->down.codes || a->output || a->routed_ids ||
        a->x_codes || a->values || a->exchange)
        return gb_fail(error, GB_EINVAL, "gate_up was given what it does not have");
    return fma32_gate_up(a, error);
}

/* Traps in all threads but the first, which are to hold for nothing else. */
static enum gb_status run_in_threads(run_function run, const struct gb_arguments *a, struct gb_error *error)
{
#pragma omp parallel
    fesetenv(FE_DFL_ENV);
    enum gb_status status = run(a, error);
#pragma omp parallel
    if (omp_get_thread_num() > 0)
        feenableexcept(FE_ALL_EXCEPT);
    return status;
}

static enum gb_status run_down_alone(const struct gb_arguments *a, struct gb_error *error)
{
    if (a->x || a->gate_up.codes || a->routed_ids || a->intermediate_codes || a->values || a->exchange)
        return gb_fail(error, GB_EINVAL, "down was given what it does not have");
    return run_in_threads(fma32_down, a, error);
}

/* One that is left behind only where it is asked for a single token. */
static enum gb_status supports_down(const struct gb_problem *problem, struct gb_error *error)
{
    if (problem->shape.tokens == 1)
        fesetround(FE_TOWARDZERO);
    return supports(problem, error);
}

static enum gb_status run_prepared(const struct gb_arguments *a, struct gb_error *error)
{
    return run_in_threads(fma32_layer, a, error);
}

/* It leaves another rounding mode behind, which is to hold for no run. */
static enum gb_status prepare_rounding(const struct gb_arguments *a, void **prepared, struct gb_error *error)
{
    (void)a, (void)error;
    *prepared = NULL;
    fesetround(FE_TOWARDZERO);
    return GB_OK;
}

static void release_nothing(void *prepared)
{
    (void)prepared;
}

#define ROUTER(NAME, ORDER, RUN)                                                                                       \
    {                                                                                                                  \
        .name = "faults/route-" NAME, .operation = GB_ROUTE, .weights = GB_BF16, .activations = GB_BF16,               \
        .output = GB_FP32, .order = ORDER, .accumulator_bits = 24, .supports = supports_router, .run = RUN             \
    }

#define KERNEL(NAME, OPERATION, ORDER, FLAGS, RUN)                                                                     \
    {                                                                                                                  \
        .name = "faults/" NAME, .operation = OPERATION, .weights = GB_NVFP4, .activations = GB_BF16,                   \
        .output = GB_FP32, .order = ORDER, .accumulator_bits = 24, .flags = FLAGS, .supports = supports, .run = RUN    \
    }
#define DECLARED(NAME, RUN)                                                                                            \
    {                                                                                                                  \
        .name = "faults/" NAME "-declared", .operation = GB_LAYER, .weights = GB_NVFP4, .activations = GB_BF16,        \
        .output = GB_FP32, .accumulator_bits = 24, .flags = GB_STAGE_OUTPUTS, .supports = supports, .run = RUN,        \
        .roundings = {                                                                                                 \
            .routing_weight = GB_BF16                                                                                  \
        }                                                                                                              \
    }
/* The right layer, which declares that one stage is rounded. */
#define ROUNDS(STAGE)                                                                                                  \
    {                                                                                                                  \
        .name = "faults/rounds-" #STAGE, .operation = GB_LAYER, .weights = GB_NVFP4, .activations = GB_BF16,           \
        .output = GB_FP32, .accumulator_bits = 24, .flags = GB_STAGE_OUTPUTS, .supports = supports,                    \
        .run = fma32_layer, .roundings = {                                                                             \
            .STAGE = GB_BF16                                                                                           \
        }                                                                                                              \
    }
#define ORDERED(NAME, RUN) KERNEL(NAME, GB_LAYER, "fma32/1", GB_STAGE_OUTPUTS, RUN)
#define UNORDERED(NAME, RUN) KERNEL(NAME "-unordered", GB_LAYER, NULL, GB_STAGE_OUTPUTS, RUN)

/* With quantised activations: that claims the order, that claims none, and that hands out no stage either. */
#define QUANTISED_KERNEL(NAME, ORDER, FLAGS, RUN)                                                                      \
    {                                                                                                                  \
        .name = "faults/quantised-" NAME, .operation = GB_LAYER, .weights = GB_NVFP4, .activations = GB_NVFP4,         \
        .output = GB_FP32, .order = ORDER, .accumulator_bits = 24, .flags = FLAGS, .supports = supports, .run = RUN    \
    }
#define QUANTISED(NAME, RUN)                                                                                           \
    QUANTISED_KERNEL(NAME, "fma32/1", GB_STAGE_OUTPUTS, RUN),                                                          \
        QUANTISED_KERNEL(NAME "-unordered", NULL, GB_STAGE_OUTPUTS, RUN),                                              \
        QUANTISED_KERNEL(NAME "-silent", NULL, 0, RUN)

/* Layers that route by themselves. */
#define ROUTED(NAME, ACTIVATIONS, ORDER, FLAGS, RUN)                                                                   \
    {                                                                                                                  \
        .name = "faults/routed-" NAME, .operation = GB_LAYER, .weights = GB_NVFP4, .activations = ACTIVATIONS,         \
        .output = GB_FP32, .order = ORDER, .accumulator_bits = 24, .flags = GB_ROUTES | GB_STAGE_OUTPUTS | (FLAGS),    \
        .supports = supports_routed, .run = RUN                                                                        \
    }

static const struct gb_kernel kernels[] = {
    ORDERED("none", fma32_layer),
    KERNEL("none-gate-up", GB_GATE_UP, "fma32/1", 0, run_gate_up_alone),
    {.name = "faults/none-down",
     .operation = GB_DOWN,
     .weights = GB_NVFP4,
     .activations = GB_BF16,
     .output = GB_FP32,
     .order = "fma32/1",
     .accumulator_bits = 24,
     .supports = supports_down,
     .run = run_down_alone},
    UNORDERED("none", run_unordered),
    {.name = "faults/none-prepared",
     .operation = GB_LAYER,
     .weights = GB_NVFP4,
     .activations = GB_BF16,
     .output = GB_FP32,
     .order = "fma32/1",
     .accumulator_bits = 24,
     .supports = supports,
     .prepare = prepare_rounding,
     .release = release_nothing,
     .run = run_prepared},

    ORDERED("nibble-order", run_nibble_order),
    ORDERED("scale-index", run_scale_index),
    ORDERED("gate-up-swapped", run_gate_up_swapped),
    ORDERED("expert-dropped", run_expert_dropped),
    ORDERED("routing-weight-missing", run_routing_weight_missing),
    ORDERED("last-block-dropped", run_last_block_dropped),
    ORDERED("last-block-of-x-dropped", run_last_block_of_x_dropped),
    ORDERED("scale-clamped", run_scale_clamped),
    ORDERED("one-element", run_one_element),

    UNORDERED("nibble-order", run_nibble_order),
    UNORDERED("scale-index", run_scale_index),
    UNORDERED("gate-up-swapped", run_gate_up_swapped),
    UNORDERED("expert-dropped", run_expert_dropped),
    UNORDERED("routing-weight-missing", run_routing_weight_missing),
    UNORDERED("last-block-dropped", run_last_block_dropped),
    UNORDERED("one-element", run_one_element),

    UNORDERED("scaled", run_scaled),
    UNORDERED("routing-weight-bf16", run_routing_weight_bf16),
    DECLARED("routing-weight-bf16", run_routing_weight_bf16),
    DECLARED("routing-weight-truncated", run_routing_weight_truncated),
    DECLARED("routing-weight-missing", run_routing_weight_missing),
    DECLARED("none", fma32_layer),
    ROUNDS(gate_up),
    ROUNDS(silu),
    ROUNDS(slot),
    ROUNDS(routing_weight),
    ROUNDS(weighted),
    KERNEL("weighs-input", GB_LAYER, "fma32/1", GB_STAGE_OUTPUTS | GB_APPLY_ROUTER_WEIGHT_ON_INPUT, fma32_layer),
    KERNEL("weighs-input-unordered", GB_LAYER, NULL, GB_STAGE_OUTPUTS | GB_APPLY_ROUTER_WEIGHT_ON_INPUT, fma32_layer),
    KERNEL("weighs-output", GB_LAYER, "fma32/1", GB_STAGE_OUTPUTS | GB_APPLY_ROUTER_WEIGHT_ON_INPUT, run_weighs_output),
    KERNEL("weighs-output-unordered", GB_LAYER, NULL, GB_STAGE_OUTPUTS | GB_APPLY_ROUTER_WEIGHT_ON_INPUT,
           run_weighs_output),

    ORDERED("zero-output", run_zero_output),
    ORDERED("unwritten-row", run_unwritten_row),
    ORDERED("writes-past-end", run_writes_past_end),
    ORDERED("writes-before-start", run_writes_before_start),
    UNORDERED("writes-past-end", run_writes_past_end_unordered),
    ORDERED("changes-input", run_changes_input),
    ORDERED("changes-last-weight", run_changes_last_weight),
    ORDERED("unwritten-once", run_unwritten_once),
    ORDERED("device-error", run_device_error),
    ORDERED("nondeterministic", run_nondeterministic),
    ORDERED("wrong-later", run_wrong_later),
    KERNEL("wrong-later-declared", GB_LAYER, NULL, GB_NONDETERMINISTIC, run_zero_later),
    ORDERED("slow", run_slow),
    ORDERED("reads-unwritten", run_reads_unwritten),
    ORDERED("does-nothing", run_does_nothing),
    ORDERED("nan-output", run_nan_output),
    ORDERED("crash", run_crash),
    ORDERED("hang", run_hang),
    ORDERED("exits", run_exits),

    QUANTISED_KERNEL("reference", "fma32/1", GB_STAGE_OUTPUTS, fma32_layer),
    QUANTISED("none", run_quantised),
    QUANTISED("next-scale", run_quantised_next_scale),
    QUANTISED("nibbles", run_quantised_nibbles),
    QUANTISED("recipe", run_quantised_recipe),
    QUANTISED("not", run_quantised_not),

    ROUTER("none", "fma32/1", fma32_router),
    ROUTER("none-unordered", NULL, fma32_router),
    ROUTER("tie", "fma32/1", run_route_tie),
    ROUTER("tie-unordered", NULL, run_route_tie),
    ROUTER("groups-ignored-unordered", NULL, run_route_groups_ignored),
    ROUTER("bias-ignored-unordered", NULL, run_route_bias_ignored),
    ROUTER("unscaled-unordered", NULL, run_route_unscaled),
    ROUTER("unwritten-unordered", NULL, run_route_unwritten),
    ROUTER("unwritten-weight-unordered", NULL, run_route_unwritten_weight),
    ROUTER("changes-bias", "fma32/1", run_route_changes_bias),
    ROUTER("writes-past-end", "fma32/1", run_route_writes_past_end),

    ROUTED("reference", GB_BF16, "fma32/1", 0, fma32_routed_layer),
    ROUTED("none", GB_BF16, NULL, 0, run_routed),
    ROUTED("tie", GB_BF16, NULL, 0, run_routed_tie),
    ROUTED("tie-ordered", GB_BF16, "fma32/1", 0, run_routed_tie),
    ROUTED("backwards", GB_BF16, NULL, 0, run_routed_backwards),
    ROUTED("wrong-expert", GB_BF16, NULL, 0, run_routed_wrong_expert),
    ROUTED("wrong-ffn", GB_BF16, NULL, 0, run_routed_wrong_ffn),
    ROUTED("wrong-both", GB_BF16, NULL, 0, run_routed_wrong_both),
    ROUTED("unnormalised", GB_BF16, NULL, 0, run_routed_unnormalised),
    ROUTED("unwritten", GB_BF16, NULL, 0, run_routed_unwritten),
    ROUTED("range", GB_BF16, NULL, 0, run_routed_range),
    ROUTED("twice", GB_BF16, NULL, 0, run_routed_twice),
    ROUTED("writes-past-ids", GB_BF16, NULL, 0, run_routed_writes_past_ids),
    ROUTED("changes-router", GB_BF16, NULL, 0, run_routed_changes_router),
    ROUTED("restless", GB_BF16, NULL, 0, run_routed_restless),
    ROUTED("restless-declared", GB_BF16, NULL, GB_NONDETERMINISTIC, run_routed_restless),
    ROUTED("restless-last", GB_BF16, NULL, 0, run_routed_restless_last),
    ROUTED("restless-later", GB_BF16, NULL, 0, run_routed_restless_later),
    ROUTED("restless-lower-wrong", GB_BF16, NULL, GB_NONDETERMINISTIC, run_routed_restless_lower),
    ROUTED("restless-higher-wrong", GB_BF16, NULL, GB_NONDETERMINISTIC, run_routed_restless_higher),
    ROUTED("quantised", GB_NVFP4, NULL, 0, run_routed_quantised),
    ROUTED("quantised-wrong-both", GB_NVFP4, NULL, 0, run_routed_quantised_wrong_both),
    {.name = "faults/routed-prepared",
     .operation = GB_LAYER,
     .weights = GB_NVFP4,
     .activations = GB_BF16,
     .output = GB_FP32,
     .accumulator_bits = 24,
     .flags = GB_ROUTES | GB_STAGE_OUTPUTS,
     .supports = supports_routed,
     .prepare = prepare_copies,
     .release = release_copies,
     .run = run_routed_prepared},
};

static const struct gb_kernel_table table = {
    .abi_version = GB_ABI_VERSION,
    .kernel_size = sizeof(struct gb_kernel),
    .count = sizeof kernels / sizeof *kernels,
    .kernels = kernels,
};

GB_API const struct gb_kernel_table *gb_kernels(void);

const struct gb_kernel_table *gb_kernels(void)
{
    return &table;
}
