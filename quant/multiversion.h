/* SPDX-License-Identifier: Apache-2.0 */
/* Private: functions compiled for several CPUs, of which the program takes the best at its start. */
#ifndef GB_QUANT_MULTIVERSION_H
#define GB_QUANT_MULTIVERSION_H

/* Not with the sanitizer, whose run time is not up when the choice is made. GB_NARROW_CLONES: of functions that have
 * vectors of 32 bytes; GB_WIDE_VECTORS: of those with 64 bytes, for CPUs of which gb_has_wide_vectors() is true. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define GB_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#define GB_NARROW_CLONES __attribute__((target_clones("avx2", "default")))
#define GB_WIDE_VECTORS __attribute__((target("arch=x86-64-v4")))

static inline int gb_has_wide_vectors(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#else
#define GB_VECTOR_CLONES
#define GB_NARROW_CLONES
#endif

#endif
