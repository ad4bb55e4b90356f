/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/gate_up.cuh"
#include "gpu/kernels.cuh"

using tile = gb_gate_up_tile<16, 1, 256, 16>;

size_t gb_cuda_gate_up_shared(enum gb_format weights, const struct gb_shape *shape)
{
    return weights == GB_NVFP4 ? gb_gate_up_shared_bytes<gb_cuda_nvfp4<true>, tile>(shape->hidden)
                               : gb_gate_up_shared_bytes<gb_cuda_bf16, tile>(shape->hidden);
}

enum gb_status gb_cuda_gate_up(const struct gb_arguments *a, struct gb_error *error)
{
    if (a->gate_up.format == GB_BF16)
        return gb_gate_up_launch<gb_cuda_bf16, tile>(*a, error);
    if (a->shape.hidden % gb_cuda_nvfp4<true>::chunk == 0)
        return gb_gate_up_launch<gb_cuda_nvfp4<true>, tile>(*a, error);
    return gb_gate_up_launch<gb_cuda_nvfp4<false>, tile>(*a, error);
}
