/* SPDX-License-Identifier: Apache-2.0 */
/* One line of progress on stderr, and only where stderr is a terminal. */
#ifndef GB_HARNESS_PROGRESS_H
#define GB_HARNESS_PROGRESS_H

/* "what done/total". */
void progress(const char *what, unsigned done, unsigned total);
/* Clears the line. */
void progress_done(void);

#endif
