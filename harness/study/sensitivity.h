/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sensitivity: how much of a model's error each expert adds, by projection and by weights and activations, and how much
 * leaving it in bf16, or in MXFP8, takes away. docs/study.md#sensitivity.
 */
#ifndef GB_HARNESS_STUDY_SENSITIVITY_H
#define GB_HARNESS_STUDY_SENSITIVITY_H

#include "harness/study/study.h"

/* What is quantised by itself. */
enum study_part { STUDY_GATE_WEIGHTS, STUDY_UP_WEIGHTS, STUDY_DOWN_WEIGHTS, STUDY_X, STUDY_INTERMEDIATE, STUDY_PARTS };
/* In what parts are that are not quantised as the rest; dynamic: activations with a global scale for each token. */
enum study_remedy { STUDY_IN_BF16, STUDY_IN_MXFP8, STUDY_DYNAMIC };
const char *study_part_name(enum study_part part);

/* An expert of a layer that has tokens. Errors are squares, relative to the residual stream: the mean over tokens of
 * |error of the layer's output|^2 / |truth's stream|^2. */
struct study_unit {
    uint32_t layer, expert; /* layer: of the fixture */
    uint32_t tokens;
    double part[STUDY_PARTS];      /* with this alone quantised */
    double adds;                   /* with all of the expert quantised, and no other one */
    double takes[STUDY_PARTS + 1]; /* what remedying this part alone takes from the error of all, or the whole expert */
    double range;                  /* its largest input over what its input scale can hold; 0: it has none of its own */
    bool unset;                    /* its input scale is 1, as before any calibration */
    uint32_t rank;                 /* from 1, in which it is remedied, greedily; 0: it was not needed */
    double left;                   /* share of the whole error that is left then */
};

struct study_sensitivity {
    const struct gb_fixture *fixture; /* the quantised weights, inputs and streams */
    gb_matrix_function original;      /* the weights before quantisation */
    void *context;
    const struct gb_recipe *recipe; /* of activations; NULL: they stay bf16 */
    enum study_remedy remedy;
    const struct gb_recipe *mxfp8; /* of STUDY_IN_MXFP8; NULL for the others */
    const float *input_scales;     /* [layers, experts, 2] decoding, of x and of the intermediate; NULL, or NaN in one:
                                      calibrated over the layer's tokens */
    double enough;                 /* the greedy list ends where this share of the error is left */
    double error;                  /* out: of all together */
    double remedied;               /* out: the same with all experts remedied */
    double *by_layer;              /* out: [layers] share of `error` */
    double *layer_takes;           /* out: [layers] what remedying the whole layer takes away, as a share of it */
    struct study_unit *unit;       /* out: [units], by rank, then by what they add */
    uint32_t units;
};
/* GB_ENOMEM, GB_EINVAL, or what `original` returns. Freed by study_sensitivity_free in any case. */
enum gb_status study_sensitivity_run(struct study_sensitivity *s, struct gb_error *error);
void study_sensitivity_free(struct study_sensitivity *s);

#endif
