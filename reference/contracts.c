/* SPDX-License-Identifier: Apache-2.0 */
/* The contracts: every order with the weights and activations that it covers. docs/numerics.md is their text. */
#include <string.h>

#include "reference/operators.h"

#define LAYER "combine in slot order"

/* A contract of ORDER, struct gb_order ORDER with the name NAME; WEIGHTS and ACTIVATIONS as a contract's name has them.
 */
#define CONTRACT(WEIGHTS, WEIGHT_FORMAT, ACTIVATIONS, ACTIVATION_FORMAT, ORDER, NAME, SUMMARY)                         \
    {                                                                                                                  \
        WEIGHTS "." ACTIVATIONS "." NAME, WEIGHT_FORMAT, ACTIVATION_FORMAT, &ORDER, SUMMARY                            \
    }
#define BF16_ACTIVATIONS ", bf16 activations and intermediate, "
#define FMA32(WEIGHTS, WEIGHT_FORMAT, ACTIVATIONS, ACTIVATION_FORMAT, WHAT)                                            \
    CONTRACT(WEIGHTS, WEIGHT_FORMAT, ACTIVATIONS, ACTIVATION_FORMAT, gb_fma32, GB_ORDER_FMA32,                         \
             WHAT "FP32 fma on 32 lanes, " LAYER)

#define MMA16(WEIGHTS, WEIGHT_FORMAT, WHAT)                                                                            \
    CONTRACT(WEIGHTS, WEIGHT_FORMAT, "bf16", GB_BF16, gb_mma16, GB_ORDER_MMA16_SM90,                                   \
             WHAT "tensor cores of Hopper, m16n8k16 in four chains, " LAYER)

static const struct gb_contract contracts[] = {
    FMA32("nvfp4", GB_NVFP4, "bf16", GB_BF16, "NVFP4 weights" BF16_ACTIVATIONS),
    FMA32("mxfp8", GB_MXFP8, "bf16", GB_BF16, "MXFP8 weights" BF16_ACTIVATIONS),
    FMA32("mxfp4", GB_MXFP4, "bf16", GB_BF16, "MXFP4 weights" BF16_ACTIVATIONS),
    FMA32("fp8", GB_FP8_BLOCK, "bf16", GB_BF16, "FP8 weights in blocks of 128 x 128" BF16_ACTIVATIONS),
    FMA32("bf16", GB_BF16, "bf16", GB_BF16, "bf16 weights" BF16_ACTIVATIONS),
    FMA32("nvfp4", GB_NVFP4, "nvfp4", GB_NVFP4, "NVFP4 weights, x and bf16 intermediate quantised to NVFP4, "),
    FMA32("mxfp8", GB_MXFP8, "mxfp8", GB_MXFP8, "MXFP8 weights, x and bf16 intermediate quantised to MXFP8, "),
    FMA32("mxfp4", GB_MXFP4, "mxfp8", GB_MXFP8, "MXFP4 weights, x and bf16 intermediate quantised to MXFP8, "),
    FMA32("fp8", GB_FP8_BLOCK, "fp8", GB_FP8_BLOCK,
          "FP8 weights in blocks of 128 x 128, x and bf16 intermediate quantised in blocks of 1 x 128, "),
    MMA16("nvfp4", GB_NVFP4, "NVFP4 weights" BF16_ACTIVATIONS),
    MMA16("mxfp8", GB_MXFP8, "MXFP8 weights" BF16_ACTIVATIONS),
    MMA16("mxfp4", GB_MXFP4, "MXFP4 weights" BF16_ACTIVATIONS),
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
            !strcmp(contracts[i].order->name, order))
            return &contracts[i];
    return NULL;
}

const struct gb_contract *gb_contract_of(const struct gb_arguments *arguments, enum gb_operator operation,
                                         const char *order)
{
    struct gb_arguments a = gb_arguments_known(arguments);
    if (operation == GB_ROUTE)
        return gb_contract_find(a.router_weights.format, GB_BF16, order);
    return gb_contract_find(operation == GB_DOWN ? a.down.format : a.gate_up.format,
                            a.activation_rules ? gb_quantiser_activations(a.activation_rules) : GB_BF16, order);
}

const struct gb_contract *gb_contract_router(const struct gb_contract *contract)
{
    return contract ? gb_contract_find(GB_BF16, GB_BF16, GB_ORDER_FMA32) : NULL;
}
