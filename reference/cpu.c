/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU paths: which ones this CPU has, and which one is in force. */
#include <stdatomic.h>

#include "quant/quant.h"
#include "reference/reference.h"

static bool always(void)
{
    return true;
}

#if defined(__x86_64__)
#include <cpuid.h>

/* clang 14 does not know f16c as a name. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi");
}
#else
static bool never(void)
{
    return false;
}

#define has_avx2 never
#define has_avx512 never
#endif

/* In ascending order of speed. */
static const struct path {
    const char *name;
    bool (*available)(void);
} paths[] = {
    [GB_CPU_PLAIN] = {"plain", always},
    [GB_CPU_AVX2] = {"avx2", has_avx2},
    [GB_CPU_AVX512] = {"avx512", has_avx512},
};

enum { PATHS = sizeof paths / sizeof *paths, NOT_SET = -1 };

static atomic_int in_force = NOT_SET;

const char *gb_cpu_path_name(enum gb_cpu_path path)
{
    return (unsigned)path < PATHS ? paths[path].name : NULL;
}

bool gb_cpu_path_available(enum gb_cpu_path path)
{
    return (unsigned)path < PATHS && paths[path].available();
}

enum gb_status gb_cpu_path_set(enum gb_cpu_path path, struct gb_error *error)
{
    if ((unsigned)path >= PATHS)
        return gb_fail(error, GB_EINVAL, "unknown CPU path %d", (int)path);
    if (!paths[path].available())
        return gb_fail(error, GB_EUNSUPPORTED, "this CPU lacks what the path %s needs", paths[path].name);
    atomic_store(&in_force, (int)path);
    return GB_OK;
}

enum gb_cpu_path gb_cpu_path_get(void)
{
    int path = atomic_load(&in_force);
    if (path == NOT_SET) { /* once: virtual machines leave to answer CPUID */
        int best = PATHS - 1;
        while (!paths[best].available())
            best--;
        if (atomic_compare_exchange_strong(&in_force, &path, best))
            path = best;
    }
    return (enum gb_cpu_path)path;
}
