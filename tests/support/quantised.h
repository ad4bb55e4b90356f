/* SPDX-License-Identifier: Apache-2.0 */
/* Layers with quantised activations by any valid order, and with what a kernel can do wrong where it quantises. */
#ifndef GB_TESTS_SUPPORT_QUANTISED_H
#define GB_TESTS_SUPPORT_QUANTISED_H

#include "fixtures/fixtures.h"
#include "tests/support/valid_kernels.h"

struct contract {
    enum gb_format weights, activations;
};

/* With hidden and intermediate rounded up to whole blocks of activations. */
struct gb_shape quantised_shape(struct gb_shape shape, const struct contract *contract);
/* Data of kind `exact` of one layer of such a shape, as `gaugeblock make` builds it. */
struct gb_fixture *quantised_fixture(const struct gb_shape *shape, const struct contract *contract, const char *routing,
                                     uint64_t seed);

/* What a kernel does wrong where it quantises, x or the intermediate. */
enum mistake {
    NOTHING,
    TIES_AWAY,      /* codes: from zero, not to even */
    TIES_TO_ZERO,   /* codes */
    TRUNCATED,      /* codes: toward zero */
    SCALE_UP,       /* the next scale of the type (E8M0: the next power of two), where it is not exact */
    SCALE_DOWN,     /* the one before */
    NEXT_AMAX,      /* the largest magnitude is that of the next block */
    WIDER,          /* two blocks have one scale */
    NEXT_SCALE,     /* codes are multiplied by the scale of the next block */
    SWAPPED,        /* neighbours exchanged, as by nibbles in the wrong order */
    FLUSHED,        /* scales below the normal ones are zero */
    WITHOUT_GLOBAL, /* d is left out of the sums */
    OTHER_GLOBAL,   /* d of the other one is taken */
    UNQUANTISED,    /* as with bf16 activations */
    DIVIDED,        /* the recipe multiplies by RN(1 / s): other codes at ties, for s = 1.875 times a power of two */
    UNROUNDED,      /* the intermediate is quantised before it is rounded to bf16 */
    MISTAKES
};
extern const char *const mistake_names[MISTAKES];

/* A quantiser in float64, of nvfp4.trtllm/1, mxfp8.rceil/1 and fp8g128.vllm/1 on finite values, with a mistake. */
struct quantiser {
    enum gb_format format;
    uint32_t block;
    double elements[127], scales[127];
    uint32_t element_count;
    double d[2]; /* of x, of the intermediate */
    enum mistake mistake;
    bool of_x; /* where the mistake is */
};

/* A layer of such a contract, put together from one of bf16's: x has the values of its codes, and between gate_up and
 * down the intermediate gets those of its. */
struct quantised {
    struct quantiser quantiser;
    struct problem problem;
    size_t inner;
    bool late; /* global scales of activations are multiplied with those of the weights, not with codes */
};

/* With the elements, scales and global scales of the fixture. Everything else is zero. */
void quantised_new(struct quantised *layer, const struct gb_fixture *fixture);
/* output: [tokens, hidden]; intermediate: scratch, [tokens, top_k, intermediate]. */
void quantised_layer(struct quantised *layer, const struct gb_fixture *fixture, const struct valid_kernel *valid,
                     double *output, double *intermediate);
/* The reference's layer by the oracle, codes and all. output: [tokens, hidden]. */
void quantised_oracle(const struct gb_fixture *fixture, float *output);

#endif
