/* SPDX-License-Identifier: Apache-2.0 */
/* Which instance of the kernel an operator's arguments ask for. */
#ifndef GB_GPU_QUANTISE_CUH
#define GB_GPU_QUANTISE_CUH

#include "gpu/by_division.cuh"

/* Blocks of 64 or 128 that are divided by their scale, if the rules are such; otherwise any block, by the rules. */
template <class Source, uint32_t Threads, uint32_t Resident>
enum gb_status gb_launch_quantise(const gb_quantise_job &job, void *stream, struct gb_error *error)
{
    using e4m3 = gb_by_division<gb_e4m3_codes>;
    using int8 = gb_by_division<gb_int8_codes>;
    const uint32_t block = job.q.quantiser.block_columns;
    if (e4m3::computes(job.q.quantiser) && block == 128)
        return gb_quantise_launch<Source, e4m3, 2, Threads, Resident>(job, stream, error);
    if (e4m3::computes(job.q.quantiser) && block == 64)
        return gb_quantise_launch<Source, e4m3, 1, Threads, Resident>(job, stream, error);
    if (int8::computes(job.q.quantiser) && block == 128)
        return gb_quantise_launch<Source, int8, 2, Threads, Resident>(job, stream, error);
    if (int8::computes(job.q.quantiser) && block == 64)
        return gb_quantise_launch<Source, int8, 1, Threads, Resident>(job, stream, error);
    return gb_quantise_launch<Source, gb_by_rules, 1, Threads, Resident>(job, stream, error);
}

#endif
