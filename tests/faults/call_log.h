/* SPDX-License-Identifier: Apache-2.0 */
/* Private: lines in the file that GB_CALLS names in the environment, if any: what a subject or a device is asked for.
 */
#ifndef GB_TESTS_FAULTS_CALL_LOG_H
#define GB_TESTS_FAULTS_CALL_LOG_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline void call_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

static inline void call_log(const char *format, ...)
{
    const char *path = getenv("GB_CALLS");
    FILE *file = path ? fopen(path, "ae") : NULL;
    va_list list;
    va_start(list, format);
    if (file) {
        vfprintf(file, format, list);
        fclose(file);
    }
    va_end(list);
}

/* FNV-1a of so many bytes. */
static inline unsigned call_hash(const void *bytes, size_t count)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * 16777619u;
    return hash;
}

#endif
