/* SPDX-License-Identifier: Apache-2.0 */
/* Routing weights that multiply x: docs/numerics.md#weighed-input. */
#include "gpu/bf16.cuh"
#include "gpu/kernels.cuh"

namespace
{

constexpr uint32_t threads = 256, alignment = 256;

/* bf16(RN(weight * x)) of every token, two columns a thread, and the weights that down has then. x, weighed: [tokens,
 * hidden]; weights, ones: [tokens]. x NULL: the ones alone. */
__global__ void __launch_bounds__(threads)
    gb_weigh_kernel(const gb_bf16 *x, const float *weights, uint32_t hidden, gb_bf16 *weighed, float *ones)
{
    const uint32_t pair = blockIdx.x * threads + threadIdx.x, token = blockIdx.y;
    if (pair == 0)
        ones[token] = 1.0f;
    if (!x || pair >= hidden / 2)
        return;
    const uint64_t at = (uint64_t)token * (hidden / 2) + pair;
    const uint32_t word = ((const uint32_t *)x)[at];
    const uint32_t low = gb_bf16_round(__fmul_rn(weights[token], gb_bf16_low(word)));
    const uint32_t high = gb_bf16_round(__fmul_rn(weights[token], gb_bf16_high(word)));
    ((uint32_t *)weighed)[at] = low | high << 16;
}

/* Bytes of the weighed x; the ones lie behind it. */
size_t weighed_bytes(const struct gb_shape *s)
{
    const size_t bytes = sizeof(gb_bf16) * s->tokens * s->hidden;
    return (bytes + alignment - 1) / alignment * alignment;
}

} // namespace

size_t gb_cuda_weigh_workspace(const struct gb_shape *shape)
{
    return weighed_bytes(shape) + sizeof(float) * shape->tokens;
}

enum gb_status gb_cuda_weigh(struct gb_arguments *a, struct gb_error *error)
{
    if (!a->workspace)
        return gb_cuda_fail(error, GB_EINVAL, "apply_router_weight_on_input without a workspace");
    const auto weighed = (gb_bf16 *)a->workspace;
    const auto ones = (float *)((uint8_t *)a->workspace + weighed_bytes(&a->shape));
    const uint32_t blocks = (a->shape.hidden / 2 + threads - 1) / threads;
    const enum gb_status status =
        gb_cuda_launch("weigh", gb_weigh_kernel, dim3(blocks, a->shape.tokens), threads, 0, a->stream, error, a->x,
                       a->routing_weights, a->shape.hidden, weighed, ones);
    a->x = a->x ? weighed : NULL;
    a->routing_weights = ones;
    return status;
}
