/* SPDX-License-Identifier: Apache-2.0 */
/* reference/cpu.c where a CPU has AVX-512 if it has what the emulation needs. */
#include <stdbool.h>
#include <string.h>

static bool emulated(const char *feature)
{
    return !strncmp(feature, "avx512", 6) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

#define __builtin_cpu_supports(FEATURE) (emulated(FEATURE) || __builtin_cpu_supports(FEATURE))

#include "reference/cpu.c"
