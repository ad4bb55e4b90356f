/* SPDX-License-Identifier: Apache-2.0 */
/* How a GPU test ends where there is no GPU, and when the runtime fails. */
#ifndef GB_TESTS_GPU_GPU_H
#define GB_TESTS_GPU_GPU_H

#include <cstdio>
#include <cstdlib>

#include <cuda_runtime.h>

#include "gaugeblock.h"

/* CTest's SKIP_RETURN_CODE; an ordinary failure where a GPU is required. */
inline int skip(const char *reason)
{
#ifdef GAUGEBLOCK_REQUIRE_GPU
    const bool required = true;
#else
    const bool required = getenv("GAUGEBLOCK_REQUIRE_GPU") != NULL;
#endif
    printf("%s: %s\n", required ? "FAILED, a GPU is required" : "skipped", reason);
    return required ? 1 : 77;
}

inline void require_at(bool good, const char *what, const char *reason, int line)
{
    if (good)
        return;
    printf("FAILED at line %d: %s: %s\n", line, what, reason);
    exit(1);
}

/* Ends the test unless the call succeeded: a cudaError_t, or a status whose message is in `error`. */
inline void require_success(cudaError_t code, const char *what, int line)
{
    require_at(code == cudaSuccess, what, cudaGetErrorString(code), line);
}
inline void require_success(enum gb_status status, const char *what, int line)
{
    require_at(status == GB_OK, what, "not GB_OK", line);
}
#define require(call) require_success((call), #call, __LINE__)

#endif
