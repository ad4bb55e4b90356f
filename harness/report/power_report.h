/* SPDX-License-Identifier: Apache-2.0 */
/* The record of `power`, drawn. */
#ifndef GB_HARNESS_REPORT_POWER_REPORT_H
#define GB_HARNESS_REPORT_POWER_REPORT_H

#include <jansson.h>
#include <stdio.h>

/* For people: a table on a terminal; Markdown. */
void power_table(FILE *stream, const json_t *record);
void power_markdown(FILE *stream, const json_t *record);

#endif
