/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Explanations beside those that tests/harness/kept/NAME.txt holds, a line each. As of tests/cli/kept.py: what is kept
 * shows that something changed, never that it was right. With KEEP=1 in the environment it is written anew.
 */
#ifndef GB_TESTS_SUPPORT_KEPT_EXPLANATION_H
#define GB_TESTS_SUPPORT_KEPT_EXPLANATION_H

#include "harness/judge/case_result.h"

/* NULL: nothing was to be explained. */
void kept_explanation(const struct explanation *explanation);
/* Anything else of which each line is kept. */
void kept_text(const char *text);
/* The same, as printf has it. */
__attribute__((format(printf, 1, 2))) void kept_line(const char *format, ...);
/* A message, a line for those beside each other that are the same: how many, and what. folder: where the test's files
 * lie, whose name is another each time, or NULL. */
void kept_message(const char *message, const char *folder);
/* Expects the explanations so far to be those that are kept under this name. */
void expect_kept_explanations(const char *name);

/* Behind a group's other tests: what they kept is what is kept under this name. */
#define KEPT_AS(NAME)                                                                                                  \
    {                                                                                                                  \
        .name = "as kept", .test_func = expect_kept_by_now, .initial_state = (char[])                                  \
        {                                                                                                              \
            NAME                                                                                                       \
        }                                                                                                              \
    }
void expect_kept_by_now(void **state);

#endif
