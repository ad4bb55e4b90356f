/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/down.cuh"

namespace
{

/* Few tokens: small blocks, so that every multiprocessor has one. More: each staged slot serves more rows, and what is
 * read of it four at a time. */
using few = gb_down_tile<8, 1, 320, 8, 2>;
using some = gb_down_tile<16, 4, 256, 32, 2>;
using several = gb_down_tile<16, 4, 256, 64, 2>;
constexpr uint32_t few_tokens = 2, some_tokens = 6;

template <class Format> enum gb_status launch(const struct gb_arguments &a, struct gb_error *error)
{
    return a.shape.tokens <= few_tokens    ? gb_down_launch<Format, few>(a, error)
           : a.shape.tokens <= some_tokens ? gb_down_launch<Format, some>(a, error)
                                           : gb_down_launch<Format, several>(a, error);
}

template <class Format> size_t shared_bytes(const struct gb_shape &shape)
{
    const uint32_t i = shape.intermediate, k = shape.top_k;
    return shape.tokens <= few_tokens    ? gb_down_shared_bytes<Format, few>(i, k)
           : shape.tokens <= some_tokens ? gb_down_shared_bytes<Format, some>(i, k)
                                         : gb_down_shared_bytes<Format, several>(i, k);
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
