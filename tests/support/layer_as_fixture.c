/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/layer_as_fixture.h"

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/check.h"

static void copy_weights(const struct gb_weights *from, struct gb_weights *to)
{
    size_t codes, scales, globals;
    if (gb_weights_bytes(from, &codes, &scales, &globals, NULL) != GB_OK)
        abort();
    memcpy((void *)(uintptr_t)to->codes, from->codes, codes);
    if (scales)
        memcpy((void *)(uintptr_t)to->scales, from->scales, scales);
    if (globals)
        memcpy((void *)(uintptr_t)to->global_scales, from->global_scales, globals);
}

struct gb_fixture *problem_fixture(const struct problem *p)
{
    const struct gb_shape *shape = &p->arguments.shape;
    size_t pairs = (size_t)shape->tokens * shape->top_k, inputs = (size_t)shape->tokens * shape->hidden;
    struct gb_truth_quantised weights = {.gate_up = p->arguments.gate_up, .down = p->arguments.down};
    struct gb_truth_source source = gb_truth_from_quantised(&weights);
    struct gb_fixture *fixture;
    if (gb_fixture_new(shape, 1, p->arguments.gate_up.format, false, false, false, &fixture, NULL) != GB_OK)
        abort();
    struct gb_layer *layer = &fixture->layer[0];
    copy_weights(&p->arguments.gate_up, &layer->gate_up);
    copy_weights(&p->arguments.down, &layer->down);
    memcpy(layer->x, p->x, inputs * sizeof *p->x);
    memcpy(layer->ids, p->ids, pairs * sizeof *p->ids);
    memcpy(layer->routing_weights, p->routing_weights, pairs * sizeof *p->routing_weights);
    memcpy(layer->truth_routing_weights, p->truth_routing_weights, pairs * sizeof *p->truth_routing_weights);
    if (gb_truth_layer(shape, p->truth_x, p->ids, p->truth_routing_weights, &source, layer->truth_quantised, NULL,
                       NULL) != GB_OK)
        abort();
    memcpy(layer->truth_original, layer->truth_quantised, inputs * sizeof *layer->truth_original);
    return fixture;
}
