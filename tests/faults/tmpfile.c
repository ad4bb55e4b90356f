/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded, it stands for a file system without nameless files. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>

static int open_named(const char *function, const char *path, int flags, mode_t mode)
{
    int (*next)(const char *, int, ...);
    *(void **)&next = dlsym(RTLD_NEXT, function);
    if ((flags & O_TMPFILE) == O_TMPFILE) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return next(path, flags, mode);
}

#define OPEN(name)                                                                                                     \
    __attribute__((visibility("default"))) int name(const char *path, int flags, ...);                                 \
    int name(const char *path, int flags, ...)                                                                         \
    {                                                                                                                  \
        va_list list;                                                                                                  \
        va_start(list, flags);                                                                                         \
        mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;                                                      \
        va_end(list);                                                                                                  \
        return open_named(#name, path, flags, mode);                                                                   \
    }

OPEN(open)
OPEN(open64)
