/* SPDX-License-Identifier: Apache-2.0 */
/* Which instance of the kernel an operator's arguments ask for. */
#ifndef GB_GPU_QUANTISE_CUH
#define GB_GPU_QUANTISE_CUH

#include "gpu/by_division.cuh"

/* Blocks of any length, by the rules. */
template <class Source, uint32_t Threads, uint32_t Resident>
enum gb_status gb_launch_by_rules(const gb_quantise_job &job, void *stream, struct gb_error *error)
{
    switch (job.q.quantiser.block_columns) {
    case 16:
        return gb_quantise_launch<Source, gb_by_rules, 16, Threads, Resident>(job, stream, error);
    case 32:
        return gb_quantise_launch<Source, gb_by_rules, 32, Threads, Resident>(job, stream, error);
    case 64:
        return gb_quantise_launch<Source, gb_by_rules, 64, Threads, Resident>(job, stream, error);
    default:
        return gb_quantise_launch<Source, gb_by_rules, 128, Threads, Resident>(job, stream, error);
    }
}

/* Blocks of 64 or 128 that are divided by their scale, if the rules are such; otherwise blocks by the rules. */
template <class Source, uint32_t Threads, uint32_t Resident>
enum gb_status gb_launch_quantise(const gb_quantise_job &job, void *stream, struct gb_error *error)
{
    const uint32_t block = job.q.quantiser.block_columns;
    if (gb_by_division<gb_e4m3_codes>::computes(job.q.quantiser) && block == 128)
        return gb_quantise_launch<Source, gb_by_division<gb_e4m3_codes>, 128, Threads, Resident>(job, stream, error);
    if (gb_by_division<gb_e4m3_codes>::computes(job.q.quantiser) && block == 64)
        return gb_quantise_launch<Source, gb_by_division<gb_e4m3_codes>, 64, Threads, Resident>(job, stream, error);
    if (gb_by_division<gb_int8_codes>::computes(job.q.quantiser) && block == 128)
        return gb_quantise_launch<Source, gb_by_division<gb_int8_codes>, 128, Threads, Resident>(job, stream, error);
    if (gb_by_division<gb_int8_codes>::computes(job.q.quantiser) && block == 64)
        return gb_quantise_launch<Source, gb_by_division<gb_int8_codes>, 64, Threads, Resident>(job, stream, error);
    return gb_launch_by_rules<Source, Threads, Resident>(job, stream, error);
}

#endif
