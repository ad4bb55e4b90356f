/* SPDX-License-Identifier: Apache-2.0 */
/* Words of the command line and of messages. */
#ifndef GB_HARNESS_RUN_TEXT_H
#define GB_HARNESS_RUN_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* Of a long path the end, so that the reason still fits behind it in a message. */
const char *path_end(const char *path);
/* A copy that a terminal can be shown: what is no printable ASCII is '?'. Returns copy. */
const char *printable(const char *text, char *copy, size_t bytes);
/* A whole number from low to high; false otherwise. */
int parse_number(const char *text, uint64_t low, uint64_t high, uint64_t *value);

#endif
