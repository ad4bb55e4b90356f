/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/gate_up.cuh"
#include "gpu/kernels.cuh"

namespace
{

/* Few tokens: all blocks of Qwen3-Next's shape are resident at once. Several: two tokens of an expert at a time, and
 * what is read of x serves four rows. */
using few = gb_gate_up_tile<16, 1, 128, 8, 1, 5>;
using several = gb_gate_up_tile<32, 2, 128, 32, 2, 4>;
constexpr uint32_t few_tokens = 2;

template <class Format> enum gb_status launch(const struct gb_arguments &a, struct gb_error *error)
{
    return a.shape.tokens <= few_tokens ? gb_gate_up_launch<Format, few>(a, error)
                                        : gb_gate_up_launch<Format, several>(a, error);
}

template <class Format> size_t shared_bytes(const struct gb_shape &shape)
{
    return shape.tokens <= few_tokens ? gb_gate_up_shared_bytes<Format, few>(shape.hidden)
                                      : gb_gate_up_shared_bytes<Format, several>(shape.hidden);
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
