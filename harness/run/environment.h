/* SPDX-License-Identifier: Apache-2.0 */
/* The calling thread's floating-point environment, which a library may change as it is loaded and a kernel as it runs.
 */
#ifndef GB_HARNESS_RUN_ENVIRONMENT_H
#define GB_HARNESS_RUN_ENVIRONMENT_H

#include <stddef.h>

enum environment_change {
    ENVIRONMENT_ROUNDING = 1u << 0,   /* not to nearest even */
    ENVIRONMENT_SUBNORMALS = 1u << 1, /* flushed, or taken for zero */
    ENVIRONMENT_PRECISION = 1u << 2,  /* of the x87, reduced */
    ENVIRONMENT_TRAPS = 1u << 3,      /* exceptions end the process */
};

/* Sets the default environment. Returns how the thread's differed: enum environment_change. */
unsigned environment_reset(void);
/* The same in every thread of OpenMP's pool, which a kernel may have shared. */
void environment_reset_threads(void);

/* "loading the library changed the rounding mode; reset before each call". "": nothing was changed. */
void environment_describe(unsigned loading, unsigned calls, char *text, size_t bytes);

#endif
