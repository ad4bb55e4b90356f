/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded, it stands for a loaded machine of 16 processors: OpenBLAS starts a thread for each, and these get to ask
 * for their buffers a tenth of a second late.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#define VISIBLE __attribute__((visibility("default")))

enum { PROCESSORS = 16, BUFFER = 32 << 20 };

VISIBLE long sysconf(int name)
{
    static long (*original)(int);
    if (!original)
        *(void **)&original = dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_NPROCESSORS_CONF || name == _SC_NPROCESSORS_ONLN ? PROCESSORS : original(name);
}

VISIBLE int sched_getaffinity(pid_t process, size_t bytes, cpu_set_t *set)
{
    (void)process;
    CPU_ZERO_S(bytes, set);
    for (size_t i = 0; i < PROCESSORS; i++)
        CPU_SET_S(i, bytes, set);
    return 0;
}

VISIBLE void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    static void *(*original)(void *, size_t, int, int, int, off_t);
    if (!original)
        *(void **)&original = dlsym(RTLD_NEXT, "mmap");
    if (bytes >= BUFFER && flags & MAP_ANONYMOUS)
        usleep(100000);
    return original(address, bytes, protection, flags, file, offset);
}
