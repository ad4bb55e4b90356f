/* SPDX-License-Identifier: Apache-2.0 */
/* A file of outputs, what others may have written into it, and fixtures that it is read for. */
#ifndef GB_TESTS_SUPPORT_OUTPUTS_FILE_H
#define GB_TESTS_SUPPORT_OUTPUTS_FILE_H

#include "tests/support/sample_fixture.h"

enum { TOKENS = 5, HIDDEN = 96, TOP_K = 2, INTERMEDIATE = 32, VALUES = TOKENS * HIDDEN };

extern char outputs_folder[], outputs_path[64];                /* and the file in it */
extern struct gb_fixture *outputs_fixture, *outputs_one_layer; /* of two layers, of one */

/* Values that rounding to float32 changes; -0, and one that becomes infinite, in front. */
double outputs_value(uint32_t layer, size_t i);
/* A NaN with a payload, -0, infinity and a subnormal in front. */
float outputs_narrow(uint32_t layer, size_t i);
gb_bf16 outputs_bf16(uint32_t layer, size_t i);
/* The file's outputs, which must be readable. */
struct gb_outputs *outputs_read(const struct gb_fixture *fixture);
/* Reads the file, which must fail with a single line that names it and says both texts. */
void outputs_expect_refusal(const struct gb_fixture *fixture, const char *what, const char *more);
/* That the outputs are outputs_narrow, or outputs_value rounded; or outputs_bf16. */
void outputs_check_float(const struct gb_outputs *outputs, uint32_t tokens, bool from_double);
void outputs_check_bf16(const struct gb_outputs *outputs);
/* Of a group of cmocka's tests. */
int outputs_set_up(void **state);
int outputs_tear_down(void **state);

#endif
