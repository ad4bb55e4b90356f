/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *path_end(const char *path)
{
    enum { SHOWN = 160 };
    size_t length = strlen(path);
    return length > SHOWN ? path + length - SHOWN : path;
}

const char *printable(const char *text, char *copy, size_t bytes)
{
    size_t i = 0;
    for (; text[i] && i + 1 < bytes; i++)
        copy[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    copy[i] = '\0';
    return copy;
}

int parse_number(const char *text, uint64_t low, uint64_t high, uint64_t *value)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || n < low || n > high)
        return 0;
    *value = n;
    return 1;
}
