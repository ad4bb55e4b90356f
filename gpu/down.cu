/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/down.cuh"

using tile = gb_down_tile<16, 2, 256, 16>;

size_t gb_cuda_down_shared(enum gb_format weights, const struct gb_shape *shape)
{
    return weights == GB_NVFP4
               ? gb_down_shared_bytes<gb_cuda_nvfp4<true>, tile>(shape->intermediate, shape->top_k)
               : gb_down_shared_bytes<gb_cuda_bf16, tile>(shape->intermediate, shape->top_k);
}

enum gb_status gb_cuda_down(const struct gb_arguments *a, struct gb_error *error)
{
    if (a->down.format == GB_BF16)
        return gb_down_launch<gb_cuda_bf16, tile>(*a, error);
    if (a->shape.intermediate % gb_cuda_nvfp4<true>::chunk == 0)
        return gb_down_launch<gb_cuda_nvfp4<true>, tile>(*a, error);
    return gb_down_launch<gb_cuda_nvfp4<false>, tile>(*a, error);
}
