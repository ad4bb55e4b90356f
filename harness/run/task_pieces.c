/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/task_pieces.h"

#include <stdlib.h>
#include <string.h>

/* Where what follows begins: aligned for any element. */
static size_t padded(size_t bytes)
{
    enum { ALIGNMENT = 16 };
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

bool task_pack(const void *head, size_t bytes, const struct piece *pieces, int count, struct gb_parcel *parcel)
{
    size_t size = padded(bytes);
    for (int i = 0; i < count; i++)
        size += padded(pieces[i].bytes);
    *parcel = (struct gb_parcel){calloc(1, size), size};
    if (!parcel->bytes)
        return false;
    char *at = (char *)memcpy(parcel->bytes, head, bytes) + padded(bytes);
    for (int i = 0; i < count; at += padded(pieces[i++].bytes))
        if (pieces[i].bytes)
            memcpy(at, pieces[i].values, pieces[i].bytes);
    return true;
}

void task_unpack(const struct gb_parcel *parcel, size_t head, struct piece *pieces, int count)
{
    const char *at = (const char *)parcel->bytes + padded(head);
    for (int i = 0; i < count; at += padded(pieces[i++].bytes))
        pieces[i].values = pieces[i].bytes ? at : NULL;
}
