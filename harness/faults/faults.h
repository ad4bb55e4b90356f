/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planted faults: mistakes of real kernels, made by the reference on any fixture. What a gate makes of them is its
 * power; how well one of them fits a subject's error explains that error. docs/gates.md#power.
 */
#ifndef GB_HARNESS_FAULTS_FAULTS_H
#define GB_HARNESS_FAULTS_FAULTS_H

#include <stdbool.h>

#include "reference/reference.h"

/* Weights that a fault may change. Experts that no token uses are left undefined. */
struct editable {
    struct gb_weights weights; /* of the buffers below */
    uint8_t *codes, *scales;
    float *global_scales;                   /* [experts, parts], NVFP4 alone */
    size_t row_code_bytes, row_scale_bytes; /* FP8: the latter is 0, scales are per block of rows */
};

/* One layer as the reference computes it, taken apart. pairs = tokens * top_k; empty slots hold zeros. */
struct trace {
    const struct gb_contract *contract;
    struct gb_arguments
        arguments;             /* with this layer's inputs; with weighed_input, those of the same layer without it */
    struct gb_arguments given; /* as they were */
    gb_bf16 *x;                /* [tokens, hidden], and */
    float *ones;               /* [pairs]: what `arguments` has instead; NULL without weighed_input */
    bool *used;                /* [experts] */
    float *gate, *up;          /* [pairs, intermediate], with their bias */
    gb_bf16 *intermediate;     /* [pairs, intermediate] */
    float *slots;              /* [pairs, hidden]: the dot products of down, with their bias */
    float *output;             /* [tokens, hidden] */
    bool down_alone;           /* false; true: faults are those of a kernel that is given the intermediate */
};

/* Quantised activations of one stage. */
struct coded {
    uint32_t rows, columns;
    uint8_t *codes; /* [rows, columns], two a byte if they are E2M1 */
    void *scales;   /* [rows, columns / block], a byte or FP32 */
    float d;        /* the global scale that products are multiplied with */
    bool plain;     /* the stage does not quantise, and multiplies the bf16 values */
};

/* The layer under a fault: copies, of which a fault changes those of the stage it enters at. */
struct planted {
    const struct trace *clean;
    const struct fault *fault;
    const bool *affected; /* [experts], whose weights are changed: those in use, or one of them */
    struct gb_shape shape;
    int32_t *ids;           /* [tokens, top_k] */
    float *routing_weights; /* [tokens, top_k] */
    gb_bf16 *x;             /* [tokens, hidden] */
    struct editable gate_up, down;
    struct coded coded;    /* STAGE_ACT_QUANT: of x; STAGE_REQUANT: of the intermediate */
    float *gate, *up;      /* [pairs, intermediate] */
    gb_bf16 *intermediate; /* [pairs, intermediate] */
    float *slots;          /* [pairs, hidden] */
    float *output;         /* [tokens, hidden] */
};

/* Where a fault enters; everything after it is the reference's. */
enum fault_stage {
    STAGE_INPUT,      /* ids, routing weights, x */
    STAGE_ACT_QUANT,  /* codes and scales of x; with quantised activations alone */
    STAGE_GATE_UP,    /* weights of gate and up */
    STAGE_DOWN,       /* weights of down */
    STAGE_WEIGHTS,    /* both */
    STAGE_PROJECTION, /* gate and up, computed */
    STAGE_ACTIVATION, /* the intermediate, from gate and up */
    STAGE_REQUANT,    /* codes and scales of the intermediate; with quantised activations alone */
    STAGE_SLOT,       /* the slots' dot products */
    STAGE_COMBINE,    /* the output, from the slots */
    STAGE_OUTPUT      /* the output, computed */
};

struct fault {
    const char *name;
    enum fault_stage stage;
    unsigned formats; /* bits 1 << enum gb_format of the weights, or of the activations whose codes it changes, that
                         have it; 0: all */
    void (*plant)(struct planted *planted);
    void (*edit)(struct planted *planted, struct editable *weights); /* STAGE_GATE_UP, STAGE_DOWN, both */
    double amount;                                                   /* what the function makes of it */
    bool vital;                                                      /* a gate that lets it pass is worth nothing */
    const char *resembles;                                           /* the public bug, or what makes it likely */
};

const struct fault *faults(size_t *count);
/* "input", "gate_up", ... */
const char *fault_stage_name(enum fault_stage stage);
/* Whether layers with such weights and activations have it. */
bool fault_applies(const struct fault *fault, const struct gb_arguments *arguments);

/* arguments: of a layer, inputs set. */
enum gb_status trace_new(const struct gb_contract *contract, const struct gb_arguments *arguments, struct trace *trace,
                         struct gb_error *error);
void trace_free(struct trace *trace);

/* The layer with the fault in it. affected: whose weights it changes, [experts]; NULL: those of all in use.
 * output: [tokens, hidden]. */
enum gb_status fault_run(const struct fault *fault, const struct trace *clean, const bool *affected, float *output,
                         struct gb_error *error);
/* intermediate: also the codes that it goes through, [tokens, top_k, intermediate]. */
enum gb_status fault_run_stages(const struct fault *fault, const struct trace *clean, const bool *affected,
                                float *output, gb_bf16 *intermediate, struct gb_error *error);

/* Rows and pairs, for those who plant. */
uint8_t *editable_codes(const struct editable *weights, uint32_t expert, uint32_t row);
uint8_t *editable_scales(const struct editable *weights, uint32_t expert, uint32_t row);
float planted_gated(enum gb_activation activation, float gate, float up);
/* What the dot products of GB_GATE_UP or GB_DOWN read, scales included: x [tokens, hidden], or the intermediate [pairs,
 * intermediate]. NULL: no memory. */
double *planted_operand(const struct planted *p, enum gb_operator operation);

/* harness/faults/faults_inputs.c */
void plant_weights_missing(struct planted *p);
void plant_weights_uniform(struct planted *p);
void plant_weights_squared(struct planted *p);
void plant_weights_scaled(struct planted *p);
void plant_weights_bf16(struct planted *p);
void plant_weights_next_slot(struct planted *p);
void plant_weights_next_token(struct planted *p);
void plant_weights_reversed(struct planted *p);
void plant_expert_dropped(struct planted *p);
void plant_last_expert_dropped(struct planted *p);
void plant_last_slot_dropped(struct planted *p);
void plant_last_pair_dropped(struct planted *p);
void plant_over_capacity(struct planted *p);
void plant_wrong_expert(struct planted *p);
void plant_next_expert(struct planted *p);
void plant_slots_exchanged(struct planted *p);
void plant_expert_repeated(struct planted *p);
void plant_x_next_token(struct planted *p);
void plant_x_tail_zero(struct planted *p);
void plant_x_e4m3(struct planted *p);
void plant_x_nvfp4(struct planted *p);
void plant_x_truncated(struct planted *p);

/* harness/faults/faults_weights.c */
void edit_nibbles_exchanged(struct planted *p, struct editable *w);
void edit_scales_next_block(struct planted *p, struct editable *w);
void edit_scales_previous_block(struct planted *p, struct editable *w);
void edit_scales_next_kept(struct planted *p, struct editable *w);
void edit_scales_next_wrapped(struct planted *p, struct editable *w);
void edit_scales_next_row(struct planted *p, struct editable *w);
void edit_scales_swizzled(struct planted *p, struct editable *w);
void edit_scales_unswizzled(struct planted *p, struct editable *w);
void edit_scales_of_columns(struct planted *p, struct editable *w);
void edit_scales_first_block(struct planted *p, struct editable *w);
void edit_scales_power_of_two(struct planted *p, struct editable *w);
void edit_scales_subnormal_zero(struct planted *p, struct editable *w);
void edit_scales_bias(struct planted *p, struct editable *w);
void edit_scales_inverse(struct planted *p, struct editable *w);
void edit_scales_transposed(struct planted *p, struct editable *w);
void edit_scales_one(struct planted *p, struct editable *w);
void edit_global_missing(struct planted *p, struct editable *w);
void edit_global_next_expert(struct planted *p, struct editable *w);
void edit_global_of_gate(struct planted *p, struct editable *w);
void edit_halves_exchanged(struct planted *p, struct editable *w);
void edit_interleaved(struct planted *p, struct editable *w);
void edit_deinterleaved(struct planted *p, struct editable *w);
void edit_rows_next(struct planted *p, struct editable *w);
void edit_first_expert(struct planted *p, struct editable *w);
void edit_last_block_dropped(struct planted *p, struct editable *w);
void edit_e2m1_no_half(struct planted *p, struct editable *w);
void edit_e2m1_no_six(struct planted *p, struct editable *w);
void edit_e2m1_unsigned_odd(struct planted *p, struct editable *w);
void edit_e4m3_fnuz(struct planted *p, struct editable *w);
void edit_e4m3_as_e5m2(struct planted *p, struct editable *w);
void edit_e4m3_subnormal_zero(struct planted *p, struct editable *w);
void edit_bf16_as_e4m3(struct planted *p, struct editable *w);

/* harness/faults/faults_values.c */
void plant_projection_accumulator(struct planted *p);
void plant_projection_bf16(struct planted *p);
void plant_weights_on_input(struct planted *p);
void plant_projection_bias_missing(struct planted *p);
void plant_projection_split_lost(struct planted *p);
void plant_silu_hard_swish(struct planted *p);
void plant_silu_gelu(struct planted *p);
void plant_silu_relu(struct planted *p);
void plant_silu_alpha(struct planted *p);
void plant_silu_clamped(struct planted *p);
void plant_silu_of_up(struct planted *p);
void plant_silu_bf16(struct planted *p);
void plant_silu_plain(struct planted *p);
void plant_silu_coarse(struct planted *p);
void plant_up_plus_one(struct planted *p);
void plant_intermediate_truncated(struct planted *p);
void plant_intermediate_e4m3(struct planted *p);
void plant_intermediate_nvfp4(struct planted *p);
void plant_intermediate_tail_zero(struct planted *p);
void plant_intermediate_next_slot(struct planted *p);
void plant_slot_accumulator(struct planted *p);
void plant_slot_bf16(struct planted *p);
void plant_slot_bias_missing(struct planted *p);
void plant_slot_fp16(struct planted *p);
void plant_slot_twice(struct planted *p);
void plant_slot_lost(struct planted *p);
void plant_combine_bf16(struct planted *p);
void plant_residual_added(struct planted *p);

/* harness/faults/faults_activations.c */
void plant_codes_truncated(struct planted *p);
void plant_codes_ties_to_zero(struct planted *p);
void plant_codes_ties_away(struct planted *p);
void plant_codes_reciprocal(struct planted *p);
void plant_codes_scale_rounding(struct planted *p);
void plant_codes_wide_block(struct planted *p);
void plant_codes_global(struct planted *p);
void plant_codes_first_global(struct planted *p);
void plant_codes_other_global(struct planted *p);
void plant_codes_plain(struct planted *p);
void plant_codes_of_fp32(struct planted *p);
void plant_codes_global_missing(struct planted *p);
void plant_codes_other_alpha(struct planted *p);
void plant_codes_nibbles(struct planted *p);
void plant_codes_unsigned_odd(struct planted *p);
void plant_codes_no_saturation(struct planted *p);
void plant_codes_fnuz(struct planted *p);
void plant_codes_tail(struct planted *p);
void plant_scales_next_block(struct planted *p);
void plant_scales_next_row(struct planted *p);
void plant_scales_first_block(struct planted *p);
void plant_scales_swizzled(struct planted *p);
void plant_scales_transposed(struct planted *p);
void plant_scales_up(struct planted *p);
void plant_scales_subnormal_zero(struct planted *p);

/* harness/faults/faults_outputs.c */
void plant_output_zero(struct planted *p);
void plant_output_scaled(struct planted *p);
void plant_output_row_zero(struct planted *p);
void plant_output_rows_exchanged(struct planted *p);
void plant_output_row_repeated(struct planted *p);
void plant_output_columns_zero(struct planted *p);
void plant_output_columns_exchanged(struct planted *p);
void plant_output_columns_shifted(struct planted *p);
void plant_output_tile_repeated(struct planted *p);
void plant_output_truncated(struct planted *p);
void plant_output_sign(struct planted *p);
void plant_output_nan(struct planted *p);
void plant_output_stale(struct planted *p);

#endif
