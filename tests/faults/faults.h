/* SPDX-License-Identifier: Apache-2.0 */
/* Private: the run functions of the injected faults. Host pointers; GB_LAYER on NVFP4 weights, and
 * GB_ROUTE. */
#ifndef GB_TESTS_FAULTS_FAULTS_H
#define GB_TESTS_FAULTS_FAULTS_H

#include "gaugeblock.h"

typedef enum gb_status run_function(const struct gb_arguments *arguments, struct gb_error *error);

/* Correct layers on changed inputs: inputs.c */
run_function run_nibble_order, run_scale_index, run_gate_up_swapped, run_expert_dropped, run_routing_weight_missing,
    run_routing_weight_bf16, run_routing_weight_truncated, run_last_block_dropped, run_scale_clamped,
    run_last_block_of_x_dropped;

/* Correct layers whose output is then spoiled, or processes that come to grief: outputs.c */
run_function run_weighs_output, run_one_element, run_scaled, run_zero_output, run_unwritten_row, run_writes_past_end,
    run_writes_before_start, run_writes_past_end_unordered, run_changes_input, run_changes_last_weight,
    run_unwritten_once, run_device_error, run_nondeterministic, run_wrong_later, run_zero_later, run_slow,
    run_reads_unwritten, run_does_nothing, run_nan_output, run_crash, run_hang, run_exits;

/* A correct layer in an order of its own: unordered.c */
run_function run_unordered;

/* Layers that quantise their activations to NVFP4, in an order of their own: quantised.c */
run_function run_quantised, run_quantised_next_scale, run_quantised_nibbles, run_quantised_recipe, run_quantised_not;

/* Routers: route.c */
run_function run_route_tie, run_route_groups_ignored, run_route_bias_ignored, run_route_unscaled, run_route_unwritten,
    run_route_unwritten_weight, run_route_changes_bias, run_route_writes_past_end;

/* Layers that route by themselves: routed.c */
run_function run_routed, run_routed_tie, run_routed_backwards, run_routed_wrong_expert, run_routed_wrong_ffn,
    run_routed_wrong_both, run_routed_unnormalised, run_routed_unwritten, run_routed_range, run_routed_twice,
    run_routed_writes_past_ids, run_routed_changes_router, run_routed_restless, run_routed_restless_last,
    run_routed_restless_later, run_routed_restless_lower, run_routed_restless_higher, run_routed_prepared,
    run_routed_quantised, run_routed_quantised_wrong_both;
enum gb_status prepare_copies(const struct gb_arguments *arguments, void **prepared, struct gb_error *error);
void release_copies(void *prepared);

#endif
