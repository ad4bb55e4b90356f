/* SPDX-License-Identifier: Apache-2.0 */
/* Private: the run functions of the planted faults. All compute GB_LAYER on NVFP4 weights with host pointers. */
#ifndef GB_TESTS_FAULTS_FAULTS_H
#define GB_TESTS_FAULTS_FAULTS_H

#include "gaugeblock.h"

typedef enum gb_status run_function(const struct gb_arguments *arguments, struct gb_error *error);

/* Correct layers on changed inputs: inputs.c */
run_function run_nibble_order, run_scale_index, run_gate_up_swapped, run_expert_dropped, run_routing_weight_missing,
    run_routing_weight_bf16, run_last_block_dropped;

/* Correct layers whose output is then spoiled, or processes that come to grief: outputs.c */
run_function run_one_element, run_scaled, run_zero_output, run_unwritten_row, run_writes_past_end, run_changes_input,
    run_nondeterministic, run_nan_output, run_crash, run_hang, run_exits;

/* A correct layer in an order of its own: unordered.c */
run_function run_unordered;

#endif
