/* SPDX-License-Identifier: Apache-2.0 */
/* One line of progress on stderr, and only where stderr is a terminal: how much of the whole run is done, and what is
 * being done. */
#ifndef GB_HARNESS_RUN_PROGRESS_H
#define GB_HARNESS_RUN_PROGRESS_H

/* What follows, to progress_leave, is the part of the current part from `from` to `to`, both 0 to 1. The run is the
 * outermost part; shares are what the parts take on a CPU, roughly. */
void progress_enter(double from, double to);
void progress_leave(void);
/* " 37 %  what": so much of the current part is done, 0 to 1, and `what` begins. Never goes back. */
void progress(const char *what, double done);
/* " 37 %  what 3/8": number `item` of `count` pieces begins, from 0. */
void progress_item(const char *what, unsigned item, unsigned count);
/* Clears the line. */
void progress_done(void);

#endif
