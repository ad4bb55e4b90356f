/* SPDX-License-Identifier: Apache-2.0 */
/* route followed by layer: docs/numerics.md#layer. */
#include "reference/operators.h"

enum gb_status gb_reference_routed_layer(const struct gb_contract *contract, const struct gb_arguments *arguments,
                                         struct gb_error *error)
{
    enum gb_status status = gb_reference_router(gb_contract_router(contract), arguments, error);
    if (status != GB_OK)
        return status;
    struct gb_arguments a = gb_arguments_known(arguments);
    a.size = sizeof a;
    a.ids = a.routed_ids;
    a.routing_weights = a.routed_weights;
    return gb_reference_layer(contract, &a, error);
}
