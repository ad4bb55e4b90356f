/* SPDX-License-Identifier: Apache-2.0 */
/* The contracts this version implements; docs/numerics.md is their text. */
#include <string.h>

#include "reference/reference.h"

static const struct gb_contract contracts[] = {
    {"nvfp4.bf16.fma32/1", GB_NVFP4, GB_BF16, "fma32/1",
     "NVFP4 weights, bf16 activations and intermediate, FP32 fma on 32 lanes, combine in slot order"},
    {"mxfp8.bf16.fma32/1", GB_MXFP8, GB_BF16, "fma32/1",
     "MXFP8 weights, bf16 activations and intermediate, FP32 fma on 32 lanes, combine in slot order"},
    {"mxfp4.bf16.fma32/1", GB_MXFP4, GB_BF16, "fma32/1",
     "MXFP4 weights, bf16 activations and intermediate, FP32 fma on 32 lanes, combine in slot order"},
    {"fp8.bf16.fma32/1", GB_FP8_BLOCK, GB_BF16, "fma32/1",
     "FP8 weights in blocks of 128 x 128, bf16 activations and intermediate, FP32 fma on 32 lanes, combine in slot order"},
    {"bf16.bf16.fma32/1", GB_BF16, GB_BF16, "fma32/1",
     "bf16 weights, bf16 activations and intermediate, FP32 fma on 32 lanes, combine in slot order"},
    {"nvfp4.nvfp4.fma32/1", GB_NVFP4, GB_NVFP4, "fma32/1",
     "NVFP4 weights, x and bf16 intermediate quantised to NVFP4, FP32 fma on 32 lanes, combine in slot order"},
    {"mxfp8.mxfp8.fma32/1", GB_MXFP8, GB_MXFP8, "fma32/1",
     "MXFP8 weights, x and bf16 intermediate quantised to MXFP8, FP32 fma on 32 lanes, combine in slot order"},
    {"mxfp4.mxfp8.fma32/1", GB_MXFP4, GB_MXFP8, "fma32/1",
     "MXFP4 weights, x and bf16 intermediate quantised to MXFP8, FP32 fma on 32 lanes, combine in slot order"},
    {"fp8.fp8.fma32/1", GB_FP8_BLOCK, GB_FP8_BLOCK, "fma32/1",
     "FP8 weights in blocks of 128 x 128, x and bf16 intermediate quantised in blocks of 1 x 128, FP32 fma on 32 lanes, "
     "combine in slot order"},
};

const struct gb_contract *gb_contracts(size_t *count)
{
    *count = sizeof contracts / sizeof *contracts;
    return contracts;
}

const struct gb_contract *gb_contract_find(enum gb_format weights, enum gb_format activations, const char *order)
{
    for (size_t i = 0; order && i < sizeof contracts / sizeof *contracts; i++)
        if (contracts[i].weights == weights && contracts[i].activations == activations &&
            !strcmp(contracts[i].order, order))
            return &contracts[i];
    return NULL;
}
