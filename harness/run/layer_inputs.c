/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/layer_inputs.h"

#include "quant/quant.h"
#include "reference/reference.h"

void layer_inputs(const struct gb_fixture *f, uint32_t layer, enum gb_format rounded, double *x,
                  double *routing_weights)
{
    const struct gb_layer *l = &f->layer[layer];
    const size_t hidden = f->shape.hidden, pairs = (size_t)f->shape.tokens * f->shape.top_k;
    for (size_t i = 0; i < pairs; i++)
        routing_weights[i] = rounded == GB_BF16 ? (double)gb_bf16_decode(gb_bf16_encode(l->routing_weights[i]))
                                                : l->truth_routing_weights[i];
    for (size_t i = 0; i < f->shape.tokens * hidden; i++)
        x[i] = (double)gb_bf16_decode(
            f->apply_router_weight_on_input ? gb_weigh((float)routing_weights[i / hidden], l->x[i]) : l->x[i]);
    for (size_t i = 0; f->apply_router_weight_on_input && i < pairs; i++)
        routing_weights[i] = 1.0;
}
