/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/verdict.h"

/* In ascending gravity, as enum verdict is. */
static const struct {
    const char *name;
    int exit_code;
} verdicts[] = {
    [VERDICT_PASS] = {"PASS", EXIT_PASS},
    [VERDICT_NOT_RUN] = {"NOT_RUN", EXIT_NOT_RUN},
    [VERDICT_UNSUPPORTED] = {"UNSUPPORTED", EXIT_NOT_RUN},
    [VERDICT_VACUOUS] = {"VACUOUS", EXIT_VACUOUS},
    [VERDICT_FAIL] = {"FAIL", EXIT_FAIL},
    [VERDICT_NONDETERMINISTIC] = {"NONDETERMINISTIC", EXIT_NONDETERMINISTIC},
    [VERDICT_BAD_INPUT] = {"BAD_INPUT", EXIT_USAGE},
    [VERDICT_CRASH] = {"CRASH", EXIT_CRASH},
};

const char *verdict_name(enum verdict verdict)
{
    return verdicts[verdict].name;
}

int verdict_exit_code(enum verdict verdict)
{
    return verdicts[verdict].exit_code;
}

enum verdict verdict_graver(enum verdict a, enum verdict b)
{
    return a > b ? a : b;
}
