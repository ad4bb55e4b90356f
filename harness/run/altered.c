/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/altered.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "quant/quant.h"

struct altered_split altered_split(size_t bytes)
{
    enum { LONGEST = 4, PAGES = 16 };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), unit = bytes < PAGES * page ? LONGEST : page;
    struct altered_split split = {.kept = bytes / 2 / unit * unit};
    split.moved = (bytes - split.kept) / 2 / unit * unit;
    return split;
}

/* Every unit but the first of more than two takes the place of the one before it. */
static void rotate(char *to, const char *from, size_t count, size_t unit)
{
    size_t first = count > 2 ? unit : 0, rest = count * unit - first - unit;
    memcpy(to, from, first);
    memcpy(to + first, from + first + unit, rest);
    memcpy(to + first + rest, from + first, unit);
}

enum gb_status altered_array(const struct operator_array *array, const struct gb_kernel *kernel,
                             const struct gb_fixture *fixture, uint32_t tokens, const void *inputs, void *altered,
                             void **copy, struct gb_error *error)
{
    size_t element, bytes = array->bytes(kernel, fixture, tokens, &element), row = bytes / tokens;
    const char *from = array->written ? NULL : operator_pointer(inputs, array->place);
    char *to;
    *copy = NULL;
    if (!from || array->bound || !row || bytes % tokens || row % element)
        return GB_OK;
    if (!(to = malloc(bytes)))
        return gb_fail(error, GB_ENOMEM, "no memory for another %s", array->name);
    rotate(to, from, tokens, row);
    if (!memcmp(to, from, bytes))
        for (size_t at = 0; at < bytes; at += row)
            rotate(to + at, from + at, row / element, element);
    if (!memcmp(to, from, bytes)) {
        free(to);
        return GB_OK;
    }
    memcpy((char *)altered + array->place, &to, sizeof to);
    *copy = to;
    return GB_OK;
}
