/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drift: a residual stream through the fixture's layers. Attention's share comes from the fixture; norm and
 * residual are float64 in every path, so that what drifts is what the kernel computed. docs/numerics.md#stack.
 */
#ifndef GB_HARNESS_RUN_RESIDUAL_STREAM_H
#define GB_HARNESS_RUN_RESIDUAL_STREAM_H

#include "fixtures/fixtures.h"
#include "reference/reference.h"

/*
 * Adds the attention delta of `layer` to state [tokens, hidden] and computes the layer's input from it:
 * x [tokens, hidden] = bf16(RMSNorm(state)); ids, routing_weights [tokens, top_k] by the reference router of layers in
 * this contract.
 */
enum gb_status stack_input(const struct gb_contract *contract, const struct gb_fixture *fixture, uint32_t layer,
                           uint32_t tokens, double *state, gb_bf16 *x, int32_t *ids, float *routing_weights,
                           struct gb_error *error);
/*
 * The same for truth, nothing rounded: before, after: the stream [tokens, hidden] of all tokens ahead of the layer's
 * attention and behind the layer, with the weights of the source. GB_ENOMEM, or what the source returns.
 */
enum gb_status stack_truth(const struct gb_fixture *fixture, uint32_t layer, const struct gb_truth_source *source,
                           const double *before, double *after, struct gb_error *error);
/* state += output. output: [tokens, hidden] of `format`. */
void stack_add(double *state, enum gb_format format, const void *output, size_t count);

#endif
