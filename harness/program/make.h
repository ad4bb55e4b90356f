/* SPDX-License-Identifier: Apache-2.0 */
/* The command make, for commands that need a problem of their own. */
#ifndef GB_HARNESS_PROGRAM_MAKE_H
#define GB_HARNESS_PROGRAM_MAKE_H

/* gaugeblock make with these words, without saying what was made. Returns an exit code; on bad usage it exits. */
int make_quietly(int argc, char **argv);

#endif
