/* SPDX-License-Identifier: Apache-2.0 */
/* Values to codes and scales: docs/numerics.md#quantise. */
#include "gpu/quantise.cuh"

enum gb_status gb_cuda_quantise(const struct gb_arguments *a, struct gb_error *error)
{
    const gb_quantise_job job = {*a->quantise, a->values, a->codes, a->scales};
    return gb_launch_quantise<gb_plain_source, 256, 3>(job, a->stream, error);
}
