/* SPDX-License-Identifier: Apache-2.0 */
/* The contracts as values. */
#include <string.h>

#include "reference/contracts.h"
#include "reference/operators.h"

#define CONTRACT(WEIGHTS, WEIGHT_FORMAT, ACTIVATIONS, ACTIVATION_FORMAT, ORDER, NAME, BITS, KERNEL, SUMMARY)           \
    {WEIGHTS "." ACTIVATIONS "." NAME, WEIGHT_FORMAT, ACTIVATION_FORMAT, &gb_##ORDER, SUMMARY},

static const struct gb_contract contracts[] = {GB_CONTRACTS(CONTRACT)};

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
