/* SPDX-License-Identifier: Apache-2.0 */
/* Values to codes and scales: docs/numerics.md#quantise. */
#include "gpu/quantise.cuh"

enum gb_status gb_cuda_quantise(const struct gb_arguments *a, struct gb_error *error)
{
    const gb_quantise_job job = {*a->quantise, a->values, a->codes, a->scales};
    if (job.q.input == GB_BF16)
        return gb_launch_quantise<gb_plain_source<gb_input_bf16>, 256, 3>(job, a->stream, error);
    return gb_launch_quantise<gb_plain_source<gb_input_fp16>, 256, 3>(job, a->stream, error);
}
