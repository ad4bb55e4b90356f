/* SPDX-License-Identifier: Apache-2.0 */
/* gaugeblock make --suite: a folder of small problems that together exercise everything. docs/gates.md#suite. */
#ifndef GB_HARNESS_PROGRAM_MAKE_SUITE_H
#define GB_HARNESS_PROGRAM_MAKE_SUITE_H

#include "fixtures/fixtures.h"

struct make_suite {
    const char *folder;
    enum gb_operator operation; /* 0: of layers */
    enum gb_format format, activations;
    bool exact;                     /* the recipe of activations is the one that data of kind `exact` are for */
    const struct gb_router *router; /* its rule */
    int argc;                       /* the command line, whose options hold for every problem */
    char **argv;
    int (*make)(int argc, char **argv); /* writes one problem, as the command does; its exit code */
};

/* Makes the folder if there is none. Returns an exit code; what was wrong has been said. */
int make_suite(const struct make_suite *suite);

#endif
