/* SPDX-License-Identifier: Apache-2.0 */
/* The reference's operators in the order fma32, in the shape of gb_kernel.run: by the contract of their arguments. */
#ifndef GB_TESTS_SUPPORT_FMA32_H
#define GB_TESTS_SUPPORT_FMA32_H

#include "reference/reference.h"

#define FMA32_OPERATOR(OPERATOR, OPERATION)                                                                            \
    static inline enum gb_status fma32_##OPERATOR(const struct gb_arguments *a, struct gb_error *error)                \
    {                                                                                                                  \
        return gb_reference_##OPERATOR(gb_contract_of(a, OPERATION, GB_ORDER_FMA32), a, error);                        \
    }
FMA32_OPERATOR(layer, GB_LAYER)
FMA32_OPERATOR(routed_layer, GB_LAYER)
FMA32_OPERATOR(gate_up, GB_GATE_UP)
FMA32_OPERATOR(gate_up_codes, GB_GATE_UP)
FMA32_OPERATOR(down, GB_DOWN)
FMA32_OPERATOR(down_codes, GB_DOWN)
FMA32_OPERATOR(router, GB_ROUTE)

static inline enum gb_status fma32_gate_up_values(const struct gb_arguments *a, const struct gb_gate_up_values *values,
                                                  struct gb_error *error)
{
    return gb_reference_gate_up_values(gb_contract_of(a, GB_GATE_UP, GB_ORDER_FMA32), a, values, error);
}

static inline enum gb_status fma32_route(const struct gb_shape *shape, const gb_bf16 *x,
                                         const struct gb_weights *router, bool renormalise, int32_t *ids,
                                         float *routing_weights, struct gb_error *error)
{
    const struct gb_contract *contract = gb_contract_find(router->format, GB_BF16, GB_ORDER_FMA32);
    return gb_reference_route(contract, shape, x, router, renormalise, ids, routing_weights, error);
}

static inline float fma32_dot(const struct gb_weights *weights, uint32_t expert, uint32_t row, const gb_bf16 *x)
{
    return gb_dot(gb_contract_find(weights->format, GB_BF16, GB_ORDER_FMA32)->order, weights, expert, row, x);
}

#endif
