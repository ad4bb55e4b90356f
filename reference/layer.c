/* SPDX-License-Identifier: Apache-2.0 */
/* gate_up followed by down: docs/numerics.md#layer. */
#include <stdlib.h>

#include "reference/operators.h"

enum gb_status gb_reference_layer(const struct gb_contract *contract, const struct gb_arguments *arguments,
                                  struct gb_error *error)
{
    enum gb_status status = gb_arguments_check(contract, arguments, GB_LAYER, error);
    if (status != GB_OK)
        return status;
    const struct gb_shape *shape = &arguments->shape;
    struct gb_arguments a = gb_arguments_known(arguments);
    gb_bf16 *own = NULL;
    if (!a.intermediate) {
        own = malloc(sizeof(gb_bf16) * shape->tokens * shape->top_k * shape->intermediate);
        if (!own)
            return gb_fail(error, GB_ENOMEM, "no memory for the intermediate of %u tokens", shape->tokens);
        a.intermediate = own;
    }
    status = gb_reference_gate_up(contract, &a, error);
    if (status == GB_OK)
        status = gb_reference_down(contract, &a, error);
    free(own);
    return status;
}
