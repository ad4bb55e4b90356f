/* SPDX-License-Identifier: Apache-2.0 */
/* The clock of kernels on the host: struct gb_timer without graphs, whose reads have OpenMP's threads. */
#ifndef GB_HARNESS_RUN_HOST_TIMER_H
#define GB_HARNESS_RUN_HOST_TIMER_H

#include "gaugeblock.h"

/* capture, captured, replay and discard are NULL. */
const struct gb_timer *host_timer(void);
/* Reads so many bytes, by the same threads, and adds up their words; from is aligned to 16. */
uint64_t host_timer_sum(const void *from, size_t bytes);
/* Copies so many bytes, by the same threads. */
void host_timer_copy(void *to, const void *from, size_t bytes);

#endif
