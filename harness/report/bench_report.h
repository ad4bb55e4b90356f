/* SPDX-License-Identifier: Apache-2.0 */
/* The times of a record of bench: how they grow, and the table for people. docs/bench.md. */
#ifndef GB_HARNESS_REPORT_BENCH_REPORT_H
#define GB_HARNESS_REPORT_BENCH_REPORT_H

#include <jansson.h>
#include <stdio.h>

/* Adds "growth": of every subject with three amounts of bytes or more, the fixed cost and the rate that its times have
 * as a line over the bytes. */
void bench_growth(json_t *record);
void bench_table(FILE *stream, const json_t *record);

#endif
