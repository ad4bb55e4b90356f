/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with a kernel, as a structure: at which stage, in which elements, and what becomes of them. */
#ifndef GB_HARNESS_JUDGE_FINDING_H
#define GB_HARNESS_JUDGE_FINDING_H

#include <stdbool.h>
#include <stdint.h>

/* An array that a layer computes; all but x, routing weights and the output have a row for each slot of each token. */
enum finding_stage {
    FINDING_INPUT,          /* x [tokens, hidden], as gate_up reads it */
    FINDING_GATE,           /* dot products of gate_proj [pairs, intermediate] */
    FINDING_UP,             /* those of up_proj */
    FINDING_GATE_UP,        /* both */
    FINDING_ACT,            /* the bf16 intermediate [pairs, intermediate] */
    FINDING_REQUANT,        /* its quantised numbers, code times scale */
    FINDING_DOWN,           /* dot products of down_proj [pairs, hidden] */
    FINDING_ROUTING_WEIGHT, /* [pairs], a row being one number */
    FINDING_COMBINE,        /* the output [tokens, hidden] */
    FINDING_STAGES
};

enum finding_effect {
    FINDING_FACTOR,   /* amount times the value */
    FINDING_ADD,      /* the value plus amount */
    FINDING_CONSTANT, /* amount: 0, NaN, infinity */
    FINDING_NEGATIVE, /* the magnitude: the sign is lost */
    FINDING_SATURATE, /* at +-amount */
    FINDING_FLUSH,    /* magnitudes below amount are 0 */
    FINDING_ROUND,    /* to the type */
    FINDING_ELEMENT,  /* the element `offset` further on in the row, the row being a ring */
    FINDING_XOR,      /* the element whose index differs in the bits of `offset` */
    FINDING_REVERSE,  /* the element as far from the end of the row */
    FINDING_TOKEN,    /* the row of the token `offset` further on, in the same slot; tokens are a ring */
    FINDING_SLOT,     /* the row of the slot `offset` further on, in the same token; slots are a ring */
    FINDING_EXPERT,   /* computed with the weights of the expert `offset` further on; experts are a ring. FINDING_INPUT:
                         of gate_up and down both */
    FINDING_SCALES,   /* FINDING_REQUANT: codes with the scales of the block `offset` further on in the row, a ring */
    FINDING_SWAPPED,  /* gate for up and up for gate */
    FINDING_SHARED,   /* the element at the index without the bits of `offset`: one for a run of them */
    FINDING_TILED,    /* `offset` x `columns` neighbouring elements as their transpose: element a * columns + b of a
                         tile is that at b * offset + a */
    FINDING_LISTED,   /* the row of the pair `offset` further on in the list of the same expert, a ring */
    FINDING_CLAMPED,  /* the row of the pair number `offset` in the list of the same expert */
    FINDING_SLOT_OF,  /* the row of slot `offset` of the same token */
    FINDING_TOKEN_OF, /* the row of the token whose number is this one's mod `offset`, in the same slot */
    FINDING_CAP,      /* at most amount */
    FINDING_FLOOR,    /* at least amount */
    FINDING_TOKEN_XOR,  /* the row of the token whose index differs in the bits of `offset`, in the same slot */
    FINDING_LISTED_XOR, /* the row of the pair whose place in the list of the same expert does */
    FINDING_EXPERT_OF,  /* computed with the weights of expert `offset`. FINDING_INPUT: of gate_up and down both */
    FINDING_WEIGHTED,   /* times the pair's routing weight */
    FINDING_LARGEST,    /* FINDING_ROUTING_WEIGHT: divided by the largest of the token's */
    FINDING_RANKED,     /* FINDING_ROUTING_WEIGHT: the token's, largest first */
    FINDING_FUNCTION,   /* FINDING_ACT: another function of gate and up */
    FINDING_HALF,       /* gate for up or up for gate; of weights of gate_up: the same row of the other half */
    FINDING_ROW_XOR,    /* of weights: the row whose index differs in the bits of `offset` */
    FINDING_READ,       /* of weights: the bits read as those of the type */
    FINDING_POWER,      /* of weights: the power of two at or below the magnitude, with its sign */
    FINDING_SQUARE,     /* of weights: times the magnitude: applied twice */
    FINDING_ROW,        /* of weights: the row `offset` further on; rows are a ring */
    FINDING_TRANSPOSED, /* of scales: tiles of `offset` rows and as many blocks as their transpose */
    FINDING_EXCHANGED,  /* two experts, whose numbers add up to `offset`, with each other's weights */
    FINDING_EFFECTS
};

enum finding_type {
    FINDING_BF16,
    FINDING_BF16_TRUNCATED,
    FINDING_FP16,
    FINDING_E4M3,
    FINDING_E5M2,
    FINDING_TF32,
    FINDING_INT8,        /* with a scale of the whole row, its largest magnitude over 127 */
    FINDING_INT8_GROUPS, /* of each INT8_GROUP elements */
    FINDING_TYPES,
    FINDING_ROW_TYPES = FINDING_INT8, /* those from here on depend on other elements of the row */
    FINDING_INTEGER = FINDING_TYPES   /* FINDING_READ alone: E2M1's codes as numbers 0 to 7 with a sign */
};

enum { INT8_GROUP = 128 };

/* What a kernel may compute of gate g and up u in place of its contract's function. */
enum finding_function {
    FUNCTION_PRODUCT,     /* g u */
    FUNCTION_RELU,        /* max(g, 0) u */
    FUNCTION_RELU_SQUARE, /* max(g, 0)^2 u */
    FUNCTION_GELU,        /* gelu(g) u, of the error function */
    FUNCTION_GELU_TANH,   /* gelu(g) u, of tanh */
    FUNCTION_GELU_QUICK,  /* g sigmoid(1.702 g) u */
    FUNCTION_SIGMOID,     /* sigmoid(g) u */
    FUNCTION_TANH,        /* tanh(g) u */
    FUNCTION_HARD_SWISH,  /* g min(max(g + 3, 0), 6) / 6 u */
    FUNCTION_SILU,        /* silu(g): up left out */
    FUNCTION_SUM,         /* silu(g) + u */
    FUNCTION_OF_PRODUCT,  /* silu(g u) */
    FUNCTION_TWICE,       /* silu(silu(g)) u */
    FUNCTION_NEGATED,     /* g sigmoid(-g) u */
    FUNCTIONS
};

/* What of a projection an effect is on: its dot products, or what they read. */
enum finding_operand {
    FINDING_RESULTS,
    FINDING_WEIGHTS, /* their values; the element is the column of K */
    FINDING_CODES,   /* their codes, each with the scale of its place; the same */
    FINDING_BLOCKS   /* their blocks' scales; the element is the block of a row */
};

/* Some of the indices 0 .. size - 1. */
struct finding_axis {
    enum { AXIS_ALL, AXIS_RANGE, AXIS_MODULO, AXIS_LIST } kind;
    uint32_t first, count; /* AXIS_RANGE: first .. first + count - 1; AXIS_MODULO: those of index mod period */
    uint32_t period;
    uint32_t list[16]; /* AXIS_LIST: [count], ascending */
};

struct finding {
    enum finding_stage stage;
    enum finding_operand operand; /* of FINDING_GATE, FINDING_UP, FINDING_GATE_UP and FINDING_DOWN */
    enum finding_effect effect;
    double amount;
    int32_t offset, columns;
    bool added; /* of effects that take a row or an element of another place: it is added to the own one */
    enum finding_type type;
    enum finding_function function;
    struct finding_axis tokens, slots, experts;
    struct finding_axis list;     /* the place of a pair among those of its expert, in the order of tokens */
    struct finding_axis elements; /* of a row */
    struct finding_axis k;        /* of weights, and FACTOR and CONSTANT 0 of a dot product: of these columns of K */
};

/* The same in words. */
struct finding_words {
    char stage[16];  /* "gate_up" */
    char array[40];  /* "up_proj" */
    char place[160]; /* "of expert 5, rows 128-255"; "": everywhere */
    char effect[96]; /* "multiplied by 0.5" */
};

static inline bool finding_axis_has(const struct finding_axis *axis, uint32_t index)
{
    bool found = false;
    switch (axis->kind) {
    case AXIS_RANGE:
        return index >= axis->first && index - axis->first < axis->count;
    case AXIS_MODULO:
        return index % axis->period >= axis->first && index % axis->period - axis->first < axis->count;
    case AXIS_LIST:
        for (uint32_t i = 0; i < axis->count; i++)
            found |= axis->list[i] == index;
        return found;
    default:
        return true;
    }
}

#endif
