/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a JSON string. */
#ifndef GB_HARNESS_RUN_JSON_TEXT_H
#define GB_HARNESS_RUN_JSON_TEXT_H

#include <jansson.h>

/* Bytes that are not UTF-8, and control characters, become '?', line ends a space. */
json_t *record_string(const char *text);

#endif
