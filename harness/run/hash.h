/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 as text. */
#ifndef GB_HARNESS_RUN_HASH_H
#define GB_HARNESS_RUN_HASH_H

#include <stddef.h>

/* text: [65], hexadecimal; "" if libcrypto refuses. */
void hash_sha256(const void *data, size_t bytes, char *text);

#endif
