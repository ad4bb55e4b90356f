/* SPDX-License-Identifier: Apache-2.0 */
/* silu(gate) * up to codes and scales: docs/numerics.md#silu_mul_quantise. */
#include "gpu/quantise.cuh"

enum gb_status gb_cuda_silu_mul_quantise(const struct gb_arguments *a, struct gb_error *error)
{
    const gb_quantise_job job = {*a->quantise, a->values, a->codes, a->scales};
    if (job.q.input == GB_FP16)
        return gb_launch_quantise<gb_gated_source<gb_input_fp16, gb_silu_directly>, 256, 2>(job, a->stream, error);
    /* Filling the table costs a thread less than one block's silu would, so that it pays for any size. */
    return gb_launch_quantise<gb_gated_source<gb_input_bf16, gb_silu_by_table>, 1024, 1>(job, a->stream, error);
}
