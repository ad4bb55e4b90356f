/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/gate_up.cuh"
#include "gpu/kernels.cuh"

namespace
{

/* Few tokens: all blocks of Qwen3-Next's shape are resident at once. More: larger blocks. As many pairs as experts, or
 * nearly: two tokens of an expert at a time. Chosen on an H200: docs/results. */
using few = gb_gate_up_tile<16, 128, 8, 1, 5>;
using some = gb_gate_up_tile<16, 128, 32, 1, 5>;
using many = gb_gate_up_tile<16, 128, 32, 2, 4>;

/* Calls choose(tile) with the tile for a shape. */
template <class Result, class Choose> Result with_tile(const struct gb_shape &shape, const Choose &choose)
{
    if (shape.tokens <= 2)
        return choose(few());
    if (shape.tokens * shape.top_k < shape.experts / 2 || shape.hidden > 7168) /* x of two tokens takes much room */
        return choose(some());
    return choose(many());
}

template <class Format> enum gb_status launch(const struct gb_arguments &a, struct gb_error *error)
{
    return with_tile<enum gb_status>(a.shape,
                                     [&](auto tile) { return gb_gate_up_launch<Format, decltype(tile)>(a, error); });
}

template <class Format> size_t shared_bytes(const struct gb_shape &shape)
{
    return with_tile<size_t>(shape,
                             [&](auto tile) { return gb_gate_up_shared_bytes<Format, decltype(tile)>(shape.hidden); });
}

} // namespace

size_t gb_cuda_gate_up_shared(enum gb_format weights, const struct gb_shape *shape)
{
    return weights == GB_NVFP4   ? shared_bytes<gb_cuda_nvfp4<true>>(*shape)
           : weights == GB_MXFP8 ? shared_bytes<gb_cuda_mxfp8>(*shape)
                                 : shared_bytes<gb_cuda_bf16>(*shape);
}

enum gb_status gb_cuda_gate_up(const struct gb_arguments *a, struct gb_error *error)
{
    if (a->gate_up.format == GB_BF16)
        return launch<gb_cuda_bf16>(*a, error);
    if (a->gate_up.format == GB_MXFP8)
        return launch<gb_cuda_mxfp8>(*a, error);
    if (a->shape.hidden % gb_cuda_nvfp4<true>::chunk == 0)
        return launch<gb_cuda_nvfp4<true>>(*a, error);
    return launch<gb_cuda_nvfp4<false>>(*a, error);
}
