/* SPDX-License-Identifier: Apache-2.0 */
/* Private to tasks (processes.h): a part as bytes, a head and the arrays behind it. */
#ifndef GB_HARNESS_RUN_TASK_PIECES_H
#define GB_HARNESS_RUN_TASK_PIECES_H

#include <stdbool.h>

#include "reference/reference.h"

/* What a part's head begins with. */
enum task_kind { TASK_EXCHANGE, TASK_LAYER };

/* One array of a part. */
struct piece {
    const void *values;
    size_t bytes;
};

/* parcel: allocated by malloc. False: no memory. */
bool task_pack(const void *head, size_t bytes, const struct piece *pieces, int count, struct gb_parcel *parcel);
/* Finds the arrays, of which `bytes` are known, behind a head of so many bytes. */
void task_unpack(const struct gb_parcel *parcel, size_t head, struct piece *pieces, int count);

#endif
