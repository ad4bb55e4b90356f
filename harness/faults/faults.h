/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Injected faults: mistakes of real kernels, made by the reference on any fixture. What a gate makes of them is its
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
    float *global_scales;                   /* [experts, halves], NVFP4 alone */
    size_t row_code_bytes, row_scale_bytes; /* FP8: the latter is 0, scales are per block of rows */
};

/* One layer as the reference computes it, taken apart. pairs = tokens * top_k; empty slots hold zeros. */
struct trace {
    const struct gb_contract *contract;
    struct gb_arguments
        arguments; /* with this layer's inputs; with apply_router_weight_on_input, those of the same layer without it */
    struct gb_arguments given; /* as they were */
    gb_bf16 *x;                /* [tokens, hidden], and */
    float *ones;               /* [pairs]: what `arguments` has instead; NULL without apply_router_weight_on_input */
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
struct injected {
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
    bool no_memory;        /* the fault could not be planted */
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
    unsigned formats; /* what of the weights', or of the activations' whose codes it changes, it needs (rows.h); 0:
                         nothing */
    void (*plant)(struct injected *injected);
    void (*edit)(struct injected *injected, struct editable *weights); /* STAGE_GATE_UP, STAGE_DOWN, both */
    double amount;                                                     /* what the function makes of it */
    bool must_catch;                                                   /* a gate that lets it pass is worth nothing */
    bool particular;         /* it chooses a token, slot, expert or element itself; another one may be hit */
    bool nothing;            /* zeros */
    const char *modelled_on; /* the public bug, or what makes it likely */
};

/* Of every stage, in the order in which a layer is computed; NULL behind the last. */
size_t fault_count(void);
const struct fault *fault_at(size_t index);
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

#endif
