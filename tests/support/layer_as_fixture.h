/* SPDX-License-Identifier: Apache-2.0 */
/* A random problem as a fixture of one layer, with truth. Out of memory aborts. */
#ifndef GB_TESTS_SUPPORT_LAYER_AS_FIXTURE_H
#define GB_TESTS_SUPPORT_LAYER_AS_FIXTURE_H

#include "fixtures/fixtures.h"
#include "tests/support/problem.h"

/* For gb_fixture_free. problem: without extensions; not referred to afterwards. */
struct gb_fixture *problem_fixture(const struct problem *problem);

#endif
