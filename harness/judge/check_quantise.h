/* SPDX-License-Identifier: Apache-2.0 */
/* The check of a quantiser's codes and scales, bit by bit. docs/gates.md#quantisers. */
#ifndef GB_HARNESS_JUDGE_CHECK_QUANTISE_H
#define GB_HARNESS_JUDGE_CHECK_QUANTISE_H

#include <stdbool.h>

#include "fixtures/fixtures.h"

/* Codes, or scales, against the reference's. */
struct array_check {
    uint64_t compared;
    uint64_t mismatching; /* encodings differ; NaN of an FP32 scale is a class */
    uint64_t admissible;  /* of those: what another evaluation of SiLU may make of the inputs */
    /* The first that differs and is not admissible, or the first that differs. */
    uint32_t row, column; /* column: a code's, or the first of a scale's block */
    uint32_t got, reference;
};

struct quantise_check {
    bool open_silu;  /* the subject's SiLU is none of the forms, so that admissible differences pass */
    bool only_zeros; /* the reference's codes */
    uint32_t block;  /* columns that share a scale */
    uint32_t code_digits, scale_digits; /* of an encoding in hexadecimal */
    struct array_check codes, scales;
    char codes_sha256[65], scales_sha256[65];
};

/* Differences that fail. */
uint64_t array_wrong(const struct quantise_check *check, const struct array_check *array);
/* One code, whose row and column are known; the place of a block's scale, in scales of this layout. */
uint8_t quantised_code(const struct gb_quantisation *q, const void *codes, uint32_t row, uint32_t column);
size_t quantised_scale_place(const struct gb_quantisation *q, uint32_t row, uint32_t block);

/* outputs, reference: of the same rows. GB_ENOMEM. */
enum gb_status check_quantise(const struct gb_fixture *fixture, const struct gb_outputs *reference,
                              const struct gb_outputs *outputs, bool open_silu, struct quantise_check *check,
                              struct gb_error *error);
/* How many codes and scales differ, of the same quantisation. */
uint64_t quantise_differences(const struct gb_outputs *a, const struct gb_outputs *b);

#endif
