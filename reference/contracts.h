/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private: the contracts as rows, every order with the weights and activations that it covers. contracts.c makes the
 * values of them, kernels.c the CPU kernels that run them. docs/numerics.md is their text.
 */
#ifndef GB_REFERENCE_CONTRACTS_H
#define GB_REFERENCE_CONTRACTS_H

#include "reference/order.h"

/* CONTRACT(WEIGHTS, WEIGHT_FORMAT, ACTIVATIONS, ACTIVATION_FORMAT, ORDER, NAME, BITS, KERNEL, SUMMARY): WEIGHTS and
 * ACTIVATIONS as the contract's name has them; struct gb_order gb_ORDER, of that NAME; BITS of its accumulators;
 * KERNEL: what its kernels' names begin with. */
#define GB_FMA32(CONTRACT, KERNEL, WEIGHTS, WEIGHT_FORMAT, ACTIVATIONS, ACTIVATION_FORMAT, WHAT)                       \
    CONTRACT(WEIGHTS, WEIGHT_FORMAT, ACTIVATIONS, ACTIVATION_FORMAT, fma32, GB_ORDER_FMA32, 24, KERNEL,                \
             WHAT ", FP32 fma on 32 lanes, combine in slot order")
/* Its sums are rounded toward zero: 23 bits. */
#define GB_MMA16(CONTRACT, KERNEL, WEIGHTS, WEIGHT_FORMAT, WHAT)                                                       \
    CONTRACT(WEIGHTS, WEIGHT_FORMAT, "bf16", GB_BF16, mma16, GB_ORDER_MMA16_SM90, 23, KERNEL,                          \
             WHAT ", tensor cores of Hopper, m16n8k16 in four chains, combine in slot order")

#define GB_BF16_ACTIVATIONS ", bf16 activations and intermediate"
#define GB_CONTRACTS(C)                                                                                                \
    GB_FMA32(C, "cpu/nvfp4", "nvfp4", GB_NVFP4, "bf16", GB_BF16, "NVFP4 weights" GB_BF16_ACTIVATIONS)                  \
    GB_FMA32(C, "cpu/mxfp8", "mxfp8", GB_MXFP8, "bf16", GB_BF16, "MXFP8 weights" GB_BF16_ACTIVATIONS)                  \
    GB_FMA32(C, "cpu/mxfp4", "mxfp4", GB_MXFP4, "bf16", GB_BF16, "MXFP4 weights" GB_BF16_ACTIVATIONS)                  \
    GB_FMA32(C, "cpu/fp8", "fp8", GB_FP8_BLOCK, "bf16", GB_BF16,                                                       \
             "FP8 weights in blocks of 128 x 128" GB_BF16_ACTIVATIONS)                                                 \
    GB_FMA32(C, "cpu/bf16", "bf16", GB_BF16, "bf16", GB_BF16, "bf16 weights" GB_BF16_ACTIVATIONS)                      \
    GB_FMA32(C, "cpu/nvfp4-nvfp4", "nvfp4", GB_NVFP4, "nvfp4", GB_NVFP4,                                               \
             "NVFP4 weights, x and bf16 intermediate quantised to NVFP4")                                              \
    GB_FMA32(C, "cpu/mxfp8-mxfp8", "mxfp8", GB_MXFP8, "mxfp8", GB_MXFP8,                                               \
             "MXFP8 weights, x and bf16 intermediate quantised to MXFP8")                                              \
    GB_FMA32(C, "cpu/mxfp4-mxfp8", "mxfp4", GB_MXFP4, "mxfp8", GB_MXFP8,                                               \
             "MXFP4 weights, x and bf16 intermediate quantised to MXFP8")                                              \
    GB_FMA32(C, "cpu/fp8-fp8", "fp8", GB_FP8_BLOCK, "fp8", GB_FP8_BLOCK,                                               \
             "FP8 weights in blocks of 128 x 128, x and bf16 intermediate quantised in blocks of 1 x 128")             \
    GB_MMA16(C, "cpu/nvfp4-mma16", "nvfp4", GB_NVFP4, "NVFP4 weights" GB_BF16_ACTIVATIONS)                             \
    GB_MMA16(C, "cpu/mxfp8-mma16", "mxfp8", GB_MXFP8, "MXFP8 weights" GB_BF16_ACTIVATIONS)                             \
    GB_MMA16(C, "cpu/mxfp4-mma16", "mxfp4", GB_MXFP4, "MXFP4 weights" GB_BF16_ACTIVATIONS)

#endif
