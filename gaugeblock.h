/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gaugeblock.h: the public contract. Formats, shapes, errors, and the kernel ABI
 * through which every kernel, ours or another's, is run and judged.
 *
 * Valid C11, C++17 and CUDA. Includes only the standard library and gaugeblock_quantiser.h.
 *
 * Version policy. GB_ABI_VERSION names the binary layout of every struct in this file.
 * Within one ABI version, structs that start with `size` only grow at their end and the
 * caller says how much of them it knows; enumerators keep their values; nothing is removed.
 * Any other change raises GB_ABI_VERSION, and a library of another version is refused by name.
 *
 * Notation used in every shape comment: tokens = T, hidden = H, intermediate = I,
 * experts = E, top_k = K, all row-major and contiguous.
 */
#ifndef GAUGEBLOCK_H
#define GAUGEBLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "gaugeblock_quantiser.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GB_VERSION "0.1.0"
#define GB_ABI_VERSION 1u

#if defined(__GNUC__)
#define GB_API __attribute__((visibility("default")))
#else
#define GB_API
#endif

/* What a function returns. Nothing in the library prints or exits. */
enum gb_status {
    GB_OK = 0,
    GB_EINVAL = 1,       /* an argument is out of its documented range */
    GB_ENOMEM = 2,       /* an allocation failed */
    GB_EIO = 3,          /* the operating system or HDF5 refused a read or a write */
    GB_EFORMAT = 4,      /* a file's content breaks its schema */
    GB_EUNSUPPORTED = 5, /* valid, but not implemented by this kernel or not possible on this machine */
    GB_EDEVICE = 6       /* the accelerator's runtime reported an error */
};

/* Filled where a function that takes one fails; always a single NUL-terminated line. */
struct gb_error {
    char message[512];
};

/* "GB_EINVAL" and so on; "unknown status" for any other value. */
GB_API const char *gb_status_name(enum gb_status status);

/*
 * A struct type per element format, so that one format's codes cannot be passed as another's.
 * Bit layouts: docs/numerics.md.
 */
typedef struct {
    uint8_t bits;
} gb_e2m1; /* 1.2.1, in the low nibble */
typedef struct {
    uint8_t bits;
} gb_e2m1x2; /* even element in the low nibble, odd one in the high nibble */
typedef struct {
    uint8_t bits;
} gb_e4m3; /* 1.4.3, bias 7, no infinities (OCP OFP8 E4M3) */
typedef struct {
    uint8_t bits;
} gb_e5m2; /* 1.5.2, bias 15 (OCP OFP8 E5M2) */
typedef struct {
    uint8_t bits;
} gb_e4m3fnuz; /* 1.4.3, bias 8, no infinities, no -0; 0x80 is NaN (AMD gfx94x, ml_dtypes float8_e4m3fnuz) */
typedef struct {
    uint8_t bits;
} gb_e3m2; /* 1.3.2, bias 3, in the low six bits (OCP MX FP6 E3M2) */
typedef struct {
    uint8_t bits;
} gb_e2m3; /* 1.2.3, bias 1, in the low six bits (OCP MX FP6 E2M3) */
typedef struct {
    uint8_t bits;
} gb_e8m0; /* a power of two, 2^(bits - 127); 0xFF is NaN (OCP MX E8M0) */
typedef struct {
    uint16_t bits;
} gb_bf16; /* 1.8.7 */

/*
 * How numbers are stored. NVFP4 = E2M1 codes, one E4M3 scale per 16 columns, FP32 global scale.
 * MXFP8 = E4M3 codes, one E8M0 scale per 32 columns. MXFP4 = E2M1 codes, one E8M0 scale per 32 columns.
 * FP8 with blocks = E4M3 codes, one FP32 scale per 128 rows x 128 columns of a part; edge blocks are smaller.
 * FP16 is no format of weights: values that are quantised may have it.
 */
enum gb_format { GB_FP32 = 1, GB_BF16 = 2, GB_NVFP4 = 3, GB_MXFP8 = 4, GB_MXFP4 = 5, GB_FP8_BLOCK = 6, GB_FP16 = 7 };

/* Sizes of one MoE layer. Every size is at least 1 and top_k <= experts. */
struct gb_shape {
    uint32_t tokens;
    uint32_t hidden;
    uint32_t intermediate;
    uint32_t experts;
    uint32_t top_k;
};

/*
 * One projection of all experts.
 *   gate_up: rows = 2 * intermediate, the gate rows first, then the up rows; columns = hidden;
 *            halves = 2 (the gate rows and the up rows have a global scale each).
 *   down:    rows = hidden; columns = intermediate; halves = 1.
 * codes:         NVFP4, MXFP4: gb_e2m1x2 [experts, rows, columns / 2]; MXFP8, FP8: gb_e4m3 [experts, rows, columns];
 *                BF16: gb_bf16 [experts, rows, columns].
 * scales:        NVFP4: gb_e4m3 [experts, rows, columns / 16]; MXFP4, MXFP8: gb_e8m0 [experts, rows, columns / 32];
 *                FP8: float [experts, halves, ceil(rows / halves / 128), ceil(columns / 128)]; otherwise NULL.
 * global_scales: NVFP4: [experts, halves], the decoding scale (value = code * scale * global); otherwise NULL.
 */
struct gb_weights {
    enum gb_format format;
    uint32_t experts;
    uint32_t rows;
    uint32_t columns;
    uint32_t halves;
    const void *codes;
    const void *scales;
    const float *global_scales;
};

/* What a kernel computes. The operators are defined in docs/numerics.md. */
enum gb_operator {
    GB_LAYER = 1,             /* x, ids, routing weights -> output; stage output: intermediate */
    GB_GATE_UP = 2,           /* x, ids -> intermediate */
    GB_DOWN = 3,              /* intermediate, ids, routing weights -> output */
    GB_ROUTE = 4,             /* x -> ids, routing weights */
    GB_QUANTISE = 5,          /* values -> codes, scales */
    GB_SILU_MUL_QUANTISE = 6, /* gate and up values -> codes, scales of silu(gate) * up */
    GB_DISPATCH = 7,          /* x, ids, placement -> counts, routes, rows of x as codes and scales */
    GB_COMBINE = 8            /* rows of experts' outputs, ids, routing weights, placement -> output */
};

/*
 * A router recipe as plain data: how the logits of a token become the ids and weights of its experts. The steps that
 * these fields choose between are written out in docs/numerics.md#route. Among equal values the lower id comes first.
 */

/* Where the router's bias, FP32 [experts], goes. */
enum gb_router_bias {
    GB_ROUTER_BIAS_NONE = 1,
    GB_ROUTER_BIAS_LOGIT = 2,  /* added to the logits */
    GB_ROUTER_BIAS_CHOICE = 3, /* added to the scores for the choice of experts alone */
    GB_ROUTER_BIAS_LOSSY = 4   /* added to the scores before the choice and subtracted again after it */
};

/* What experts are chosen by. */
enum gb_router_score {
    GB_ROUTER_SCORE_LOGIT = 1,
    GB_ROUTER_SCORE_SOFTMAX = 2,            /* over all experts, q / sum */
    GB_ROUTER_SCORE_SOFTMAX_RECIPROCAL = 3, /* over all experts, q * (1 / sum) */
    GB_ROUTER_SCORE_SIGMOID = 4
};

/* What counts where something is not finite. */
enum gb_router_nonfinite {
    GB_ROUTER_NONFINITE_KEPT = 1,  /* the value itself; NaN is smaller than everything */
    GB_ROUTER_NONFINITE_ZERO = 2,  /* +0 for a score, in the choice and as a weight */
    GB_ROUTER_NONFINITE_LOGIT = 3, /* `replacement` in the choice, where the logit is not finite */
    GB_ROUTER_NONFINITE_BIASED = 4 /* `replacement` in the choice, where the biased score is not finite */
};

/* The weight of a chosen expert before renormalisation. */
enum gb_router_weight {
    GB_ROUTER_WEIGHT_SCORE = 1,
    GB_ROUTER_WEIGHT_SOFTMAX_CHOSEN = 2, /* the softmax of the logits over the chosen experts */
    GB_ROUTER_WEIGHT_SOFTMAX_ALL = 3,    /* the softmax of the logits over all experts */
    GB_ROUTER_WEIGHT_SIGMOID = 4         /* the sigmoid of the logit */
};

/* What renormalisation makes of a weight w, s being the sum of the chosen ones plus epsilon. */
enum gb_router_renormalise {
    GB_ROUTER_RENORMALISE_NONE = 1,         /* w * scale */
    GB_ROUTER_RENORMALISE_DIVIDE = 2,       /* (w / s) * scale */
    GB_ROUTER_RENORMALISE_RECIPROCAL = 3,   /* (w * (1 / s)) * scale */
    GB_ROUTER_RENORMALISE_SCALE = 4,        /* w * (scale / s) */
    GB_ROUTER_RENORMALISE_SCALED_DIVIDE = 5 /* (w * scale) / s */
};

/* What a weight multiplies. */
enum gb_router_side { GB_ROUTER_ON_OUTPUT = 1, GB_ROUTER_ON_INPUT = 2 };

struct gb_router {
    size_t size;           /* sizeof(struct gb_router) of the caller */
    enum gb_format logits; /* what logits are rounded to: GB_FP32 or GB_BF16 */
    enum gb_router_bias bias;
    enum gb_router_score score;
    enum gb_router_nonfinite nonfinite;
    float replacement;
    uint32_t groups;      /* of experts with neighbouring ids, all of one size; 1: none */
    uint32_t kept_groups; /* 1 .. groups */
    uint32_t group_terms; /* a group's score is the sum of its so many highest; 0: top_k / kept_groups */
    float masked;         /* what an expert of a group that is not kept counts as in the choice */
    enum gb_router_weight weight;
    enum gb_router_renormalise renormalise;
    uint32_t renormalise_from; /* the smallest top_k that is renormalised */
    uint32_t zero_sum_is_one;  /* 1: where s is not above zero it counts as 1 */
    float epsilon;
    float scale;
    enum gb_format weights; /* what weights are rounded to, last: GB_FP32 or GB_BF16 */
    enum gb_router_side side;
};

/* What lies between gate_up and down, docs/numerics.md under the same names. */
enum gb_activation {
    GB_SILU = 0,      /* silu(gate) * up */
    GB_SWIGLU_OAI = 1 /* gpt-oss: g * sigmoid(1.702 g) * (u + 1), g = min(gate, 7), u = up within -7 .. 7 */
};

/* How silu(gate) is computed: docs/numerics.md#silu_mul. */
enum gb_silu_form {
    GB_SILU_EXACT = 1,     /* correctly rounded */
    GB_SILU_DIVIDE = 2,    /* gate / (1 + e), e = exp(-gate) correctly rounded */
    GB_SILU_RECIPROCAL = 3 /* gate * (1 / (1 + e)) */
};

enum gb_scale_layout {
    GB_SCALES_LINEAR = 0,    /* [rows, blocks of a row] */
    GB_SCALES_TRANSPOSED = 1 /* [blocks of a row, rows] */
};

/* What GB_QUANTISE and GB_SILU_MUL_QUANTISE are asked for: docs/numerics.md#quantise and #silu_mul_quantise. */
struct gb_quantisation {
    size_t size;                   /* sizeof(struct gb_quantisation) of the caller */
    enum gb_format input;          /* of the values: GB_BF16 or GB_FP16 */
    uint32_t rows, columns;        /* of the codes; columns a multiple of the block */
    uint32_t input_columns;        /* GB_QUANTISE: columns; GB_SILU_MUL_QUANTISE: 2 * columns, [gate | up] */
    enum gb_silu_form silu;        /* this and the next two: GB_SILU_MUL_QUANTISE only */
    enum gb_format activated;      /* silu(gate) is rounded to it: GB_FP32 (it stays) or the input's format */
    enum gb_format product;        /* and so is silu(gate) * up */
    struct gb_quantiser quantiser; /* block_rows 1, block_columns 16, 32, 64 or 128; FP32 scales: 64 or 128 */
    enum gb_scale_layout layout;
    float bound;        /* of quantiser.bound, above zero; INFINITY: none */
    float global_scale; /* encoding or decoding, as quantiser.global says; ignored where that is none */
};

/* Where GB_COMBINE adds up, and what is rounded to bf16 on the way: docs/numerics.md#combine. */
enum gb_accumulation {
    GB_AT_RECEIVER = 1,   /* rows travel; the token's rank adds them up in slot order */
    GB_AT_SENDER = 2,     /* every rank adds up its own rows, and sends one bf16 row a token */
    GB_AT_SENDER_NODE = 3 /* and so does every node with the rows of its ranks */
};

/*
 * What GB_DISPATCH and GB_COMBINE are asked for: docs/numerics.md#dispatch and #combine. Every rank has `tokens`
 * tokens, of which those without experts are sent nowhere. A route is one slot of one token with an expert; its number
 * is (rank * tokens + token) * top_k + slot.
 */
struct gb_exchange {
    size_t size; /* sizeof(struct gb_exchange) of the caller */
    uint32_t ranks;
    uint32_t tokens; /* of each rank */
    uint32_t hidden, experts, top_k;
    uint32_t rows; /* routes of all ranks: rows that are received in all */
    /* GB_DISPATCH: rows are sent as bf16 where `element` is 0, otherwise as codes and scales of this quantiser, of
     * block_rows 1. */
    struct gb_quantiser quantiser;
    float global_scale; /* of the quantiser, as struct gb_quantisation has it */
    /* GB_COMBINE */
    enum gb_format input; /* of the rows: GB_BF16 or GB_FP32 */
    enum gb_accumulation accumulation;
    uint32_t ranks_per_node; /* GB_AT_SENDER_NODE: neighbouring ranks, the last node may have fewer */

    /* Of kernels with GB_ONE_RANK; otherwise 0, 0 and NULL. Arrays and `rows` are then those of this rank alone: its
     * tokens, and the rows that it receives or, of GB_COMBINE, returns. */
    uint32_t one_rank;      /* 1 */
    uint32_t rank;          /* this process's */
    const char *rendezvous; /* a folder that all ranks' processes can write to, empty before their first call */
};

/* The question `supports` and `workspace` answer. */
struct gb_problem {
    size_t size; /* sizeof(struct gb_problem) of the caller */
    struct gb_shape shape;
    enum gb_format weights;
    const struct gb_router *router; /* GB_ROUTE, and kernels with GB_ROUTES: the recipe; otherwise NULL */
    enum gb_activation activation;  /* not GB_SILU, and biased not 0, only for kernels with GB_LAYER_EXTENSIONS */
    uint32_t biased;                /* 1: gate_up and down have biases */
    const struct gb_quantisation
        *quantise; /* GB_QUANTISE, GB_SILU_MUL_QUANTISE; otherwise NULL. These ignore the rest */
    const struct gb_quantiser *activation_rules; /* of kernels whose activations are not GB_BF16; otherwise NULL */
    uint32_t apply_router_weight_on_input;       /* as in struct gb_arguments; not 0 only for kernels with
                                                    GB_APPLY_ROUTER_WEIGHT_ON_INPUT */
    const struct gb_exchange *exchange;          /* GB_DISPATCH, GB_COMBINE; otherwise NULL. These ignore the rest */
};

/* The least `size` a caller may give: the struct as ABI version 1 began. */
#define GB_PROBLEM_LEAST (offsetof(struct gb_problem, weights) + sizeof(enum gb_format))
#define GB_ARGUMENTS_LEAST (offsetof(struct gb_arguments, stream) + sizeof(void *))

/*
 * Everything `run` reads and writes. Pointers are device pointers where the kernel has
 * GB_DEVICE_POINTERS, and `stream` is then a cudaStream_t. Buffers are aligned to 256 bytes.
 *
 * An id of -1 is an empty slot: its intermediate row is +0 and it takes no part in the combine.
 */
struct gb_arguments {
    size_t size; /* sizeof(struct gb_arguments) of the caller */
    struct gb_shape shape;
    const gb_bf16 *x;             /* in  [tokens, hidden]; NULL for GB_DOWN */
    const int32_t *ids;           /* in  [tokens, top_k], each in -1 .. experts-1; NULL for GB_ROUTE and GB_ROUTES */
    const float *routing_weights; /* in  [tokens, top_k]; NULL for GB_GATE_UP, GB_ROUTE and GB_ROUTES */
    struct gb_weights gate_up;    /* in; codes NULL for GB_DOWN and GB_ROUTE */
    struct gb_weights down;       /* in; codes NULL for GB_GATE_UP and GB_ROUTE */
    gb_bf16 *intermediate;        /* [tokens, top_k, intermediate]; GB_GATE_UP: out; GB_DOWN: in;
                                     GB_LAYER: out, never NULL if the kernel has GB_STAGE_OUTPUTS, else NULL */
    void *output;    /* out [tokens, hidden] in the kernel's output format; NULL for GB_GATE_UP, GB_ROUTE */
    void *workspace; /* scratch of workspace() bytes, contents undefined; NULL if that is 0 */
    void *prepared;  /* what prepare() returned, or NULL */
    void *stream;

    /* For GB_ROUTE, and GB_LAYER kernels with GB_ROUTES; otherwise NULL. */
    const struct gb_router *router;   /* the recipe, always in host memory */
    struct gb_weights router_weights; /* in; GB_BF16, experts = 1, rows = shape.experts, columns = hidden, halves = 1 */
    const float *router_bias;         /* in  [experts]; NULL where the recipe has none */
    int32_t *routed_ids;              /* out [tokens, top_k] */
    float *routed_weights;            /* out [tokens, top_k] */

    /* Only for kernels with GB_LAYER_EXTENSIONS; otherwise GB_SILU and NULL. */
    enum gb_activation activation;
    const float *gate_up_bias; /* in  [experts, 2 * intermediate], gate, then up; NULL: none */
    const float *down_bias;    /* in  [experts, hidden]; NULL: none */

    /* For GB_QUANTISE and GB_SILU_MUL_QUANTISE; otherwise NULL. */
    const struct gb_quantisation *quantise; /* always in host memory */
    const void *values;                     /* in  [rows, input_columns], bf16 or fp16 bits */
    void *codes;  /* out [rows, columns], two a byte for E2M1, otherwise one: enum gb_element_format */
    void *scales; /* out gb_e4m3, gb_e8m0 or float, one a block, in the asked-for layout */

    /*
     * Only for kernels whose activations are not GB_BF16; otherwise NULL and 0: docs/numerics.md#quantised-activations.
     * Codes lie in rows, scales in rows of columns / block; GB_LAYER and GB_GATE_UP write those of x, GB_LAYER and
     * GB_DOWN those of the intermediate. Never NULL if the kernel has GB_STAGE_OUTPUTS, else NULL.
     */
    const struct gb_quantiser *activation_rules;    /* the recipe, always in host memory */
    float x_scale, intermediate_scale;              /* decoding global scales; 1 where the recipe has none */
    void *x_codes, *x_scales;                       /* out [tokens, hidden] */
    void *intermediate_codes, *intermediate_scales; /* out [tokens, top_k, intermediate] */

    /* 1: the routing weight multiplies x before gate_up, and down's sum has none: docs/numerics.md#weighed-input. Then
     * top_k is 1, and GB_GATE_UP has routing weights. Only for kernels with GB_APPLY_ROUTER_WEIGHT_ON_INPUT; otherwise
     * 0. */
    uint32_t apply_router_weight_on_input;

    /*
     * For GB_DISPATCH and GB_COMBINE; otherwise NULL. Arrays are those of all ranks, one rank after the other:
     * tokens = ranks * exchange->tokens. GB_DISPATCH reads x and ids, and writes counts, routes, and the rows as
     * `codes` [rows, hidden] (gb_bf16, or as for GB_QUANTISE) and `scales` [rows, hidden / block]. GB_COMBINE reads
     * ids, routing_weights and, as `values`, the rows of experts' outputs in the order of dispatch [rows, hidden], and
     * writes `output`.
     */
    const struct gb_exchange *exchange; /* always in host memory */
    const int32_t *placement;           /* in  [experts], the rank that has the expert */
    int32_t *counts;                    /* out [ranks, experts], routes of a rank's tokens to an expert */
    int32_t *routes;                    /* out [rows], the route of each row; in for GB_COMBINE with GB_ONE_RANK */
};

enum gb_kernel_flags {
    GB_DEVICE_POINTERS = 1u << 0,  /* buffers lie in CUDA device memory */
    GB_NONDETERMINISTIC = 1u << 1, /* two runs may differ in bits, and the kernel says so */
    GB_GRAPH_CAPTURABLE = 1u << 2, /* run() may be captured in a CUDA graph */
    GB_STAGE_OUTPUTS = 1u << 3,    /* a GB_LAYER kernel that also writes `intermediate`; any kernel that also writes the
                                      codes and scales of its quantised activations */
    GB_LAYER_EXTENSIONS = 1u << 4, /* reads `activation` and the biases; others are not asked for problems with them */
    GB_APPLY_ROUTER_WEIGHT_ON_INPUT = 1u << 5, /* reads `apply_router_weight_on_input`; likewise */
    GB_OPEN_SILU = 1u << 7, /* a GB_SILU_MUL_QUANTISE kernel whose silu is an FP32 evaluation of its own, whatever
                               form is asked for: codes and scales may be any that this leaves open */
    GB_ONE_RANK =
        1u << 8,        /* a GB_DISPATCH or GB_COMBINE kernel that runs in one process a rank, in all of them at once:
                           each is called with its own rank's arrays, and they reach each other by themselves */
    GB_ROUTES = 1u << 6 /* a GB_LAYER kernel that routes by itself: it reads the router, and writes routed_ids and
                           routed_weights beside its outputs; only asked where every layer has a router */
};

/*
 * One kernel. `weights` (GB_ROUTE: of the router, GB_BF16), `activations` and `order` name its contract,
 * <weights>.<activations>.<order>; order NULL claims none, and the kernel is then judged against bounds instead of
 * bits.
 */
/*
 * Where a kernel rounds between its stages, beside the intermediate and the output: GB_BF16, or GB_FP32 (as is 0).
 */
struct gb_stage_roundings {
    enum gb_format gate_up;        /* every dot product of gate and of up */
    enum gb_format silu;           /* silu(gate), before it is multiplied by up */
    enum gb_format slot;           /* every slot's dot product of down, before or after its routing weight */
    enum gb_format routing_weight; /* every routing weight, to nearest even, before anything is multiplied by it */
    enum gb_format weighted; /* every slot's product with its routing weight, if the slot is rounded before it, too */
};

/* The orders of accumulation that have a contract: docs/numerics.md. */
#define GB_ORDER_FMA32 "fma32/1"
#define GB_ORDER_MMA16_SM90 "mma16-sm90/1"
/* Of GB_COMBINE alone: fma in slot order, then ranks and nodes in ascending order: docs/numerics.md#combine. */
#define GB_ORDER_SLOTS "slots/1"

struct gb_kernel {
    const char *name; /* unique in its table, printable ASCII without spaces, at most 127: "vendor/kernel" */
    enum gb_operator operation;
    enum gb_format weights;
    enum gb_format activations; /* what x and the intermediate are multiplied as: GB_BF16, GB_NVFP4, GB_MXFP8 or
                                   GB_FP8_BLOCK, whose blocks of activations are 1 x 128 */
    enum gb_format output;      /* GB_FP32 or GB_BF16 */
    const char *order;          /* GB_ORDER_..., or NULL */
    uint32_t accumulator_bits;  /* significand bits of the narrowest accumulator; 24 for FP32 */
    uint32_t flags;             /* enum gb_kernel_flags */

    /* GB_OK, or GB_EUNSUPPORTED with the reason. Called before anything else. */
    enum gb_status (*supports)(const struct gb_problem *problem, struct gb_error *error);
    /* Bytes of scratch run() needs. NULL: none. */
    size_t (*workspace)(const struct gb_problem *problem);
    /* One-time work on the weights (repacking), not timed. *prepared is released by release(). NULL: none. */
    enum gb_status (*prepare)(const struct gb_arguments *arguments, void **prepared, struct gb_error *error);
    void (*release)(void *prepared);
    /* Computes. With GB_DEVICE_POINTERS it may return before the work on `stream` is done. */
    enum gb_status (*run)(const struct gb_arguments *arguments, struct gb_error *error);

    struct gb_stage_roundings roundings; /* zero: no rounding but those of the contract */
};

struct gb_kernel_table {
    uint32_t abi_version;            /* GB_ABI_VERSION of the header it was built with */
    uint32_t kernel_size;            /* sizeof(struct gb_kernel) it was built with */
    uint32_t count;                  /* at most 4096 */
    const struct gb_kernel *kernels; /* [count] */
};

/* The one function a subject library exports under this name. Never NULL; valid until dlclose. */
#define GB_KERNELS_SYMBOL "gb_kernels"
typedef const struct gb_kernel_table *(*gb_kernels_function)(void);

/*
 * Device memory, for whoever runs kernels with GB_DEVICE_POINTERS. The CUDA library of
 * gaugeblock exports it as "gb_device"; the harness uses it for every such kernel.
 */
struct gb_device {
    uint32_t abi_version;
    /* GB_OK and a one-line description, or GB_EUNSUPPORTED with the reason (no driver, no GPU). */
    enum gb_status (*describe)(char *text, size_t bytes, struct gb_error *error);
    enum gb_status (*allocate)(size_t bytes, void **pointer, struct gb_error *error);
    void (*release)(void *pointer);
    enum gb_status (*upload)(void *device, const void *host, size_t bytes, struct gb_error *error);
    enum gb_status (*download)(void *host, const void *device, size_t bytes, struct gb_error *error);
    /* Waits for all work and reports any error that happened since the last call. */
    enum gb_status (*synchronise)(struct gb_error *error);
};
#define GB_DEVICE_SYMBOL "gb_device"
typedef const struct gb_device *(*gb_device_function)(void);

/*
 * Fills with a byte what cudaMalloc, of small requests, and the default pool of cudaMallocAsync hand out from here on.
 * The CUDA library of gaugeblock exports it; the harness calls it before a kernel with GB_DEVICE_POINTERS.
 */
#define GB_DEVICE_POISON_SYMBOL "gb_device_poison"
typedef enum gb_status (*gb_device_poison_function)(uint8_t byte, struct gb_error *error);

/*
 * A clock of the device, for whoever times such kernels. The CUDA library of gaugeblock exports it as "gb_timer"; the
 * harness uses it for every kernel with GB_DEVICE_POINTERS.
 */
struct gb_timer {
    size_t size; /* sizeof(struct gb_timer) it was built with */
    /* Bytes of the last cache in front of memory. */
    enum gb_status (*cache_bytes)(size_t *bytes, struct gb_error *error);
    /* A timer, and the stream that it times. */
    enum gb_status (*open)(void **timer, void **stream, struct gb_error *error);
    void (*close)(void *timer);
    /* What goes to the stream between these two does not run, but becomes a graph of so many kernel launches. */
    enum gb_status (*capture)(void *timer, struct gb_error *error);
    enum gb_status (*captured)(void *timer, void **graph, size_t *launches, struct gb_error *error);
    enum gb_status (*replay)(void *timer, void *graph, struct gb_error *error);
    void (*discard)(void *graph);
    /* Seconds that the stream takes for what goes to it between these two; stop waits for it. */
    enum gb_status (*start)(void *timer, struct gb_error *error);
    enum gb_status (*stop)(void *timer, double *seconds, struct gb_error *error);
    /* One launch that reads so many bytes once; a multiple of 16. */
    enum gb_status (*read)(void *timer, const void *from, size_t bytes, struct gb_error *error);
};
#define GB_TIMER_SYMBOL "gb_timer"
typedef const struct gb_timer *(*gb_timer_function)(void);

#ifdef __cplusplus
}
#endif
#endif
