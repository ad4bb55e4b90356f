/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded, it stands for a libhdf5 that dies on a damaged file: GAUGEBLOCK_FAULT_HDF5 = crash, hang or eat says what
 * H5Dread does in every process that calls it.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((visibility("default"))) int H5Dread(long dataset, long memory_type, long memory_space, long file_space,
                                                   long list, void *values);

int H5Dread(long dataset, long memory_type, long memory_space, long file_space, long list, void *values)
{
    const char *fault = getenv("GAUGEBLOCK_FAULT_HDF5");
    (void)dataset, (void)memory_type, (void)memory_space, (void)file_space, (void)list, (void)values;
    if (fault && !strcmp(fault, "crash"))
        raise(SIGSEGV);
    while (fault && !strcmp(fault, "hang"))
        pause();
    while (fault && !strcmp(fault, "eat")) {
        enum { BITE = 64 << 20 };
        volatile char *bite = malloc(BITE);
        if (!bite)
            abort();
        for (size_t i = 0; i < BITE; i += 4096)
            bite[i] = 1;
    }
    return -1;
}
