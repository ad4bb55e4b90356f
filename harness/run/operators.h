/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operators, one row each: what a kernel of one reads and writes, and how it is asked. Its checks are the row
 * operator_check_<name> of harness/judge/operators.h, its injected bugs operator_faults_<name> of
 * harness/faults/operators.h; nothing else asks which operator it has to do with.
 */
#ifndef GB_HARNESS_RUN_OPERATORS_H
#define GB_HARNESS_RUN_OPERATORS_H

#include "fixtures/fixtures.h"

/* What a kernel reads and writes of a layer of a fixture. An operator without layers uses none of these. */
enum operator_use {
    READS_X = 1u << 0,
    READS_ROUTING = 1u << 1, /* ids: which experts */
    READS_ROUTING_WEIGHTS = 1u << 2,
    READS_INTERMEDIATE = 1u << 3,
    READS_GATE_UP = 1u << 4, /* weights and biases */
    READS_DOWN = 1u << 5,
    READS_ROUTER = 1u << 6,
    WRITES_OUTPUT = 1u << 7,
    WRITES_INTERMEDIATE = 1u << 8,
    WRITES_ROUTING = 1u << 9,  /* ids and routing weights */
    WRITES_X_CODES = 1u << 10, /* and scales */
    WRITES_INTERMEDIATE_CODES = 1u << 11
};
#define READS_EXPERTS (READS_GATE_UP | READS_DOWN)
#define WRITES_RESULT (WRITES_OUTPUT | WRITES_INTERMEDIATE)

/* An array that is read or written. */
struct operator_array {
    const char *name;
    uint32_t use; /* enum operator_use of a kernel that has it; 0: all have */
    bool written;
    bool routing;    /* what watching it shows is about the routing */
    bool bound;      /* what is read there goes with other arrays, and cannot change alone */
    size_t argument; /* where struct gb_arguments points to it */
    size_t place;    /* where its pointer is: struct operator_inputs or struct gb_fixture; of what is written struct
                        gb_layer_outputs or struct gb_outputs: the former of each on layers */
    /* Of so many tokens: bytes of the array, and of one element. */
    size_t (*bytes)(const struct gb_kernel *kernel, const struct gb_fixture *fixture, uint32_t tokens, size_t *element);
};
/* The pointer at this place of a struct. */
void *operator_pointer(const void *structure, size_t place);

/* Host inputs of one run on a layer. */
struct operator_inputs {
    const gb_bf16 *x;             /* [tokens, hidden] */
    const int32_t *ids;           /* [tokens, top_k] */
    const float *routing_weights; /* [tokens, top_k] */
    const gb_bf16 *intermediate;  /* [tokens, top_k, intermediate]; NULL where no kernel reads it */
};

struct operator_row {
    enum gb_operator operation;
    const char *name;      /* "layer" */
    const char *tokens;    /* what the first axis counts: "tokens", "rows" */
    const char *again;     /* how the second judged run differs from the first: ", with ..."; "": in its poison alone */
    const char *reference; /* the reference's kernel; NULL: it depends on the formats */
    const char *instead;   /* what its kernels do to a fixture with layers, and what to run; NULL: they run on those */
    bool over_ranks;       /* its arrays are those of all ranks, always of all tokens */
    bool layers;           /* it is run layer by layer, on one's weights */
    const char *order;     /* that its kernels may claim, where it has no contracts; NULL: none */
    uint32_t flags;        /* of enum gb_kernel_flags those that it alone has */
    uint32_t uses;         /* enum operator_use of every kernel, and */
    uint32_t stages;       /* of those that have GB_STAGE_OUTPUTS */
    const struct operator_array *arrays;
    uint32_t array_count;
    /* What is asked of the kernel for the first `tokens` of the fixture. quantisation: what it may point to. */
    struct gb_problem (*ask)(const struct gb_kernel *kernel, const struct gb_fixture *fixture, uint32_t tokens,
                             struct gb_quantisation *quantisation);
    /* Bytes of the rows that a run moves: it is timed beside a copy of as many. NULL: beside a read of the weights,
     * where it has any, or not at all. */
    size_t (*moved)(const struct gb_fixture *fixture);
    /* Other inputs of the same problem, for a run between two others, in which what a kernel keeps from one call to the
     * next shows; NULL: none. GB_ENOMEM. free_other in any case. */
    enum gb_status (*other)(const struct gb_fixture *fixture, struct gb_fixture *other, struct gb_error *error);
    void (*free_other)(struct gb_fixture *other);
    /* Adds where an element of what it writes belongs: " (rank 1, token 3)"; NULL: its number says it. */
    void (*place)(const struct gb_fixture *fixture, const struct operator_array *array, size_t element, char *text,
                  size_t bytes);
    /* Room for what it writes; with_stack: for the residual stream, too. */
    enum gb_status (*new_outputs)(const struct gb_kernel *kernel, const struct gb_fixture *fixture, uint32_t tokens,
                                  uint32_t layers, bool with_stack, struct gb_outputs **outputs,
                                  struct gb_error *error);
};

/* NULL for an unknown one. */
const struct operator_row *operator_find(enum gb_operator operation);
/* By its name; NULL for an unknown one. */
const struct operator_row *operator_named(const char *name);
/* The row of what the fixture is a problem of, GB_LAYER for layers. */
const struct operator_row *operator_of(const struct gb_fixture *fixture);
/* The same of a problem. */
const struct operator_row *operator_asked(const struct gb_problem *problem);
/* What such outputs of the fixture are the results of: its operator, or a router where they are routing alone. */
const struct operator_row *operator_of_outputs(const struct gb_fixture *fixture, const struct gb_outputs *outputs);
/* Its name; "unknown" for any other. */
const char *operator_name(enum gb_operator operation);

/* enum operator_use of this kernel. */
uint32_t operator_uses(const struct gb_kernel *kernel);
/* Whether it makes a layer's output of a layer's input: its outputs can be the next layer's. */
bool operator_is_whole(const struct gb_kernel *kernel);
/* Whether it is run through the residual stream of this fixture. */
bool operator_has_stack(const struct gb_kernel *kernel, const struct gb_fixture *fixture);
/* The router in a kernel that routes, as a kernel. */
struct gb_kernel operator_router(const struct gb_kernel *kernel);

#endif
