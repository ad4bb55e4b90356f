/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded, it stands for memory that is short: the first allocation fails that the Nth place in code of gaugeblock
 * asks for, in every process, where N is GAUGEBLOCK_FAULT_MEMORY; what libraries ask for does not, those within the
 * program included, whose code begins at address GAUGEBLOCK_FAULT_CODE of its file. How many places have asked is
 * printed on standard error where N is 0. Within a program it does the same from each memory_fail on.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/faults/memory.h"

#define VISIBLE __attribute__((visibility("default")))

extern void *__libc_malloc(size_t bytes), *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *array, size_t bytes);

enum { MOST_PLACES = 4096, MOST_SEGMENTS = 4 };
static struct {
    uintptr_t from, to;
} code[MOST_SEGMENTS];
static uintptr_t places[MOST_PLACES];
static uint32_t segments, seen, failing;
static bool counting;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The program, whose name here is empty, and its library. */
static int add_object(struct dl_phdr_info *object, size_t bytes, void *unused)
{
    const char *foreign = getenv("GAUGEBLOCK_FAULT_CODE");
    const uintptr_t end = foreign ? strtoul(foreign, NULL, 16) : UINTPTR_MAX;
    (void)bytes, (void)unused;
    if (object->dlpi_name[0] && !strstr(object->dlpi_name, "libgaugeblock.so"))
        return 0;
    for (uint32_t i = 0; i < object->dlpi_phnum && segments < MOST_SEGMENTS; i++) {
        const ElfW(Phdr) *p = &object->dlpi_phdr[i];
        if (p->p_type == PT_LOAD && p->p_flags & PF_X) {
            code[segments].from = object->dlpi_addr + p->p_vaddr;
            code[segments].to = code[segments].from + p->p_memsz;
            if (!object->dlpi_name[0] && code[segments].to - object->dlpi_addr > end)
                code[segments].to = object->dlpi_addr + end;
            segments++;
        }
    }
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *fault = getenv("GAUGEBLOCK_FAULT_MEMORY");
    failing = fault ? (uint32_t)strtoul(fault, NULL, 10) : 0;
    counting = fault && !failing;
    dl_iterate_phdr(add_object, NULL);
}

__attribute__((destructor)) static void end(void)
{
    if (counting)
        fprintf(stderr, "places that ask for memory: %u\n", seen);
}

static bool of_gaugeblock(uintptr_t caller)
{
    for (uint32_t s = 0; s < segments; s++)
        if (code[s].from <= caller && caller < code[s].to)
            return true;
    return false;
}

static bool fails(const void *caller)
{
    uintptr_t place = (uintptr_t)caller;
    if (!of_gaugeblock(place))
        return false;
    pthread_mutex_lock(&lock);
    uint32_t p = 0;
    while (p < seen && places[p] != place)
        p++;
    bool first = p == seen && seen < MOST_PLACES;
    if (first)
        places[seen++] = place;
    bool now = first && seen == failing;
    pthread_mutex_unlock(&lock);
    if (now)
        errno = ENOMEM;
    return now;
}

uint32_t memory_fail(uint32_t place)
{
    pthread_mutex_lock(&lock);
    uint32_t asked = seen;
    seen = 0;
    failing = place;
    pthread_mutex_unlock(&lock);
    return asked;
}

VISIBLE void *malloc(size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

VISIBLE void *calloc(size_t count, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, bytes);
}

VISIBLE void *realloc(void *array, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(array, bytes);
}

VISIBLE void *reallocarray(void *array, size_t count, size_t bytes)
{
    size_t all;
    return fails(__builtin_return_address(0)) || __builtin_mul_overflow(count, bytes, &all)
               ? NULL
               : __libc_realloc(array, all);
}

VISIBLE char *strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}
