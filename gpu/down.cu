/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/down.cuh"

namespace
{

/* One token: small blocks, so that every multiprocessor has some. More: each staged slot serves more rows. Chosen on
 * an H200: docs/results. */
using one = gb_down_tile<16, 2, 320, 8, 2>;
using few = gb_down_tile<16, 2, 256, 16, 3>;
using many = gb_down_tile<8, 2, 128, 32, 4>;

/* Calls choose(tile) with the tile for a shape. */
template <class Result, class Choose> Result with_tile(const struct gb_shape &shape, const Choose &choose)
{
    if (shape.tokens == 1)
        return choose(one());
    if (shape.tokens <= 4)
        return choose(few());
    return choose(many());
}

template <class Format> enum gb_status launch(const struct gb_arguments &a, struct gb_error *error)
{
    return with_tile<enum gb_status>(a.shape,
                                     [&](auto tile) { return gb_down_launch<Format, decltype(tile)>(a, error); });
}

template <class Format> size_t shared_bytes(const struct gb_shape &shape)
{
    return with_tile<size_t>(shape, [&](auto tile) {
        return gb_down_shared_bytes<Format, decltype(tile)>(shape.intermediate, shape.top_k);
    });
}

} // namespace

size_t gb_cuda_down_shared(enum gb_format weights, const struct gb_shape *shape)
{
    return weights == GB_NVFP4   ? shared_bytes<gb_cuda_nvfp4<true>>(*shape)
           : weights == GB_MXFP8 ? shared_bytes<gb_cuda_mxfp8>(*shape)
                                 : shared_bytes<gb_cuda_bf16>(*shape);
}

enum gb_status gb_cuda_down(const struct gb_arguments *a, struct gb_error *error)
{
    if (a->down.format == GB_BF16)
        return launch<gb_cuda_bf16>(*a, error);
    if (a->down.format == GB_MXFP8)
        return launch<gb_cuda_mxfp8>(*a, error);
    if (a->shape.intermediate % gb_cuda_nvfp4<true>::chunk == 0)
        return launch<gb_cuda_nvfp4<true>>(*a, error);
    return launch<gb_cuda_nvfp4<false>>(*a, error);
}
