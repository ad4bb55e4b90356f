/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary of outcomes and their exit codes (docs/gates.md). */
#ifndef GB_HARNESS_RUN_VERDICT_H
#define GB_HARNESS_RUN_VERDICT_H

enum verdict {
    VERDICT_PASS,
    VERDICT_NOT_RUN,
    VERDICT_UNSUPPORTED,
    VERDICT_VACUOUS,
    VERDICT_FAIL,
    VERDICT_NONDETERMINISTIC,
    VERDICT_BAD_INPUT, /* a fixture or a file of outputs was refused */
    VERDICT_CRASH
};

/* Exit codes of the program. */
enum {
    EXIT_PASS = 0,
    EXIT_FAIL = 1,
    EXIT_USAGE = 2, /* bad usage or bad input */
    EXIT_NOT_RUN = 3,
    EXIT_VACUOUS = 4,
    EXIT_CRASH = 5,
    EXIT_NONDETERMINISTIC = 6
};

const char *verdict_name(enum verdict verdict);
int verdict_exit_code(enum verdict verdict);
/* The graver of two: CRASH, BAD_INPUT, NONDETERMINISTIC, FAIL, VACUOUS, then UNSUPPORTED and NOT_RUN, then PASS. */
enum verdict verdict_graver(enum verdict a, enum verdict b);

#endif
