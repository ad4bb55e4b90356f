/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded, it stands for memory that is short: what a place in code of gaugeblock asks for fails, in every process. A
 * place is the command of the process, what asks, and what called that, to a depth of GAUGEBLOCK_FAULT_DEPTH (1: what
 * asks alone); what libraries ask for does not fail, those within the program included, whose code begins at address
 * GAUGEBLOCK_FAULT_CODE of its file. GAUGEBLOCK_FAULT_MEMORY is "PLACE CALL", a place's number and which of its calls
 * fails; every process adds these to the file GAUGEBLOCK_FAULT_PLACES, a line for each of a place's first MOST_CALLS
 * calls. Or it is N, and the first call fails of the Nth place that asks; how many have asked is printed on standard
 * error where N is 0. Within a program memory_fail says which one fails, counted from its call on.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unwind.h>

#include "tests/faults/memory.h"

#define VISIBLE __attribute__((visibility("default")))

extern void *__libc_malloc(size_t bytes), *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *array, size_t bytes), *__libc_memalign(size_t alignment, size_t bytes);

enum { MOST_PLACES = 1 << 16, MOST_SEGMENTS = 4, MOST_CALLS = 2 };
static struct {
    uintptr_t from, to, base;
} code[MOST_SEGMENTS];
static struct {
    uint64_t place; /* 0: none */
    uint32_t calls;
} places[MOST_PLACES];
static struct {
    uint64_t place;
    uint32_t call; /* 0: none */
} failing;
static uint64_t command; /* which `gaugeblock COMMAND` this is */
static uint32_t segments, depth = 1, asked, failing_of_asked;
static bool counting;
static const char *list;
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
            code[segments].base = object->dlpi_addr;
            code[segments].from = object->dlpi_addr + p->p_vaddr;
            code[segments].to = code[segments].from + p->p_memsz;
            if (!object->dlpi_name[0] && code[segments].to - object->dlpi_addr > end)
                code[segments].to = object->dlpi_addr + end;
            segments++;
        }
    }
    return 0;
}

/* glibc gives a constructor what main is given. */
__attribute__((constructor)) static void begin(int argc, char **argv)
{
    const char *fault = getenv("GAUGEBLOCK_FAULT_MEMORY"), *frames = getenv("GAUGEBLOCK_FAULT_DEPTH");
    char *call;
    list = getenv("GAUGEBLOCK_FAULT_PLACES");
    for (const char *c = argc > 1 ? argv[1] : ""; *c; c++)
        command = command * 31 + (unsigned char)*c;
    if (frames)
        depth = (uint32_t)strtoul(frames, NULL, 10);
    if (fault) {
        failing.place = strtoull(fault, &call, 16);
        failing.call = (uint32_t)strtoul(call, NULL, 10);
        failing_of_asked = failing.call ? 0 : (uint32_t)strtoul(fault, NULL, 10);
        counting = !failing.call && !failing_of_asked;
    }
    dl_iterate_phdr(add_object, NULL);
}

__attribute__((destructor)) static void end(void)
{
    if (counting)
        fprintf(stderr, "places that ask for memory: %u\n", asked);
}

/* The segment that the address is in; MOST_SEGMENTS: it is not gaugeblock's. */
static uint32_t segment_of(uintptr_t address)
{
    for (uint32_t s = 0; s < segments; s++)
        if (code[s].from <= address && address < code[s].to)
            return s;
    return MOST_SEGMENTS;
}

struct walk {
    uintptr_t caller; /* 0: it has been passed */
    uint64_t place;
    uint32_t left;
};

static _Unwind_Reason_Code take_frame(struct _Unwind_Context *context, void *to)
{
    struct walk *walk = to;
    uintptr_t address = _Unwind_GetIP(context);
    uint32_t s = segment_of(address);
    if (address == walk->caller)
        walk->caller = 0;
    if (s < MOST_SEGMENTS && !walk->caller) {
        walk->place = (walk->place ^ (address - code[s].base)) * UINT64_C(0x9E3779B97F4A7C15) + s;
        walk->left--;
    }
    return walk->left ? _URC_NO_REASON : _URC_END_OF_STACK;
}

static void write_down(uint64_t place, uint32_t call)
{
    char line[64];
    const int error = errno, bytes = snprintf(line, sizeof line, "%016llx %u\n", (unsigned long long)place, call);
    int file = open(list, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file >= 0 && write(file, line, (size_t)bytes) != bytes)
        abort();
    close(file);
    errno = error;
}

/* Whether a call from there fails now. */
static bool fails(const void *caller)
{
    if (segment_of((uintptr_t)caller) == MOST_SEGMENTS)
        return false;
    struct walk walk = {.caller = (uintptr_t)caller, .place = command, .left = depth};
    _Unwind_Backtrace(take_frame, &walk);
    pthread_mutex_lock(&lock);
    uint32_t p = walk.place % MOST_PLACES;
    while (places[p].place && places[p].place != walk.place)
        p = (p + 1) % MOST_PLACES;
    places[p].place = walk.place;
    const uint32_t call = ++places[p].calls;
    asked += call == 1;
    bool now =
        failing.call ? walk.place == failing.place && call == failing.call : call == 1 && asked == failing_of_asked;
    if (list && call <= MOST_CALLS)
        write_down(walk.place, call);
    pthread_mutex_unlock(&lock);
    if (now)
        errno = ENOMEM;
    return now;
}

uint32_t memory_fail(uint32_t place)
{
    pthread_mutex_lock(&lock);
    uint32_t before = asked;
    memset(places, 0, sizeof places);
    asked = 0;
    failing_of_asked = place;
    pthread_mutex_unlock(&lock);
    return before;
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

VISIBLE char *strndup(const char *text, size_t most)
{
    size_t bytes = strnlen(text, most);
    char *copy = fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes + 1);
    if (copy)
        copy[bytes] = '\0';
    return copy ? memcpy(copy, text, bytes) : NULL;
}

VISIBLE void *aligned_alloc(size_t alignment, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, bytes);
}

VISIBLE int posix_memalign(void **array, size_t alignment, size_t bytes)
{
    void *got = fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, bytes);
    if (got)
        *array = got;
    return got ? 0 : ENOMEM;
}

/* What comes next under this name. */
static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        abort();
    return found;
}

static int print(bool failed, char **text, const char *format, va_list values)
{
    int (*own)(char **, const char *, va_list) = (int (*)(char **, const char *, va_list))real("vasprintf");
    return failed ? -1 : own(text, format, values);
}

VISIBLE int vasprintf(char **text, const char *format, va_list values)
{
    return print(fails(__builtin_return_address(0)), text, format, values);
}

int __vasprintf_chk(char **text, int flag, const char *format, va_list values);
VISIBLE int __vasprintf_chk(char **text, int flag, const char *format, va_list values)
{
    (void)flag;
    return print(fails(__builtin_return_address(0)), text, format, values);
}

VISIBLE int asprintf(char **text, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int bytes = print(fails(__builtin_return_address(0)), text, format, values);
    va_end(values);
    return bytes;
}

int __asprintf_chk(char **text, int flag, const char *format, ...);
VISIBLE int __asprintf_chk(char **text, int flag, const char *format, ...)
{
    va_list values;
    (void)flag;
    va_start(values, format);
    int bytes = print(fails(__builtin_return_address(0)), text, format, values);
    va_end(values);
    return bytes;
}

VISIBLE FILE *open_memstream(char **text, size_t *bytes)
{
    FILE *(*own)(char **, size_t *) = (FILE * (*)(char **, size_t *)) real("open_memstream");
    return fails(__builtin_return_address(0)) ? NULL : own(text, bytes);
}

VISIBLE int memfd_create(const char *name, unsigned flags)
{
    int (*own)(const char *, unsigned) = (int (*)(const char *, unsigned))real("memfd_create");
    return fails(__builtin_return_address(0)) ? -1 : own(name, flags);
}
