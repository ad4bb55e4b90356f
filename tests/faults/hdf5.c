/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded, it stands for an HDF5 that dies on a damaged file: GAUGEBLOCK_FAULT_HDF5 = crash, hang or eat says what
 * becomes of every process that reads such a file with pread, as HDF5's default driver does.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((visibility("default"))) ssize_t pread(int file, void *bytes, size_t count, off_t offset);

static void fall(const char *fault)
{
    if (!strcmp(fault, "crash"))
        raise(SIGSEGV);
    while (!strcmp(fault, "hang"))
        pause();
    while (!strcmp(fault, "eat")) {
        enum { BITE = 64 << 20 };
        volatile char *bite = malloc(BITE);
        if (!bite)
            abort();
        for (size_t i = 0; i < BITE; i += 4096)
            bite[i] = 1;
    }
}

ssize_t pread(int file, void *bytes, size_t count, off_t offset)
{
    static const char signature[8] = "\x89HDF\r\n\x1a\n";
    const char *fault = getenv("GAUGEBLOCK_FAULT_HDF5");
    char first[sizeof signature];
    if (fault && syscall(SYS_pread64, file, first, sizeof first, 0) == sizeof first &&
        !memcmp(first, signature, sizeof signature))
        fall(fault);
    return syscall(SYS_pread64, file, bytes, count, offset);
}
