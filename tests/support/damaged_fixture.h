/* SPDX-License-Identifier: Apache-2.0 */
/* A good fixture in a folder of its own, and a copy of it to damage. */
#ifndef GB_TESTS_SUPPORT_DAMAGED_FIXTURE_H
#define GB_TESTS_SUPPORT_DAMAGED_FIXTURE_H

#include "tests/support/sample_fixture.h"

extern char damaged_folder[], damaged_good[64], damaged_bad[64]; /* the folder, the good file, the copy */
extern struct gb_fixture *damaged_content;                       /* of the good file */

/* Makes the bad file one. */
void damaged_copy(void);
/* Reads the bad file, which must fail with a single line that names the file and says both texts, and is kept. */
void damaged_expect_refusal(const char *field, const char *what);
/* Of a group of cmocka's tests. */
int damaged_set_up(void **state);
int damaged_tear_down(void **state);

#endif
