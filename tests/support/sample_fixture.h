/* SPDX-License-Identifier: Apache-2.0 */
/* Small fixtures for the tests of fixtures/: every buffer filled, none with zeros; and their comparison. */
#ifndef GB_TESTS_SUPPORT_SAMPLE_FIXTURE_H
#define GB_TESTS_SUPPORT_SAMPLE_FIXTURE_H

#include "tests/support/check.h"

#include "fixtures/fixtures.h"

enum { LAYERS = 2 };
/* Sizes that are no powers of two, and multiples of every format's block. */
extern const struct gb_shape shape;

/* Asserts that every step succeeds. */
struct gb_fixture *new_fixture(enum gb_format format, bool router, bool stack, bool attention);
/* Asserts that both have equal attributes and equal bytes in every buffer. */
void same_fixture(const struct gb_fixture *a, const struct gb_fixture *b);

/* Values by position in *state. */
void fill_weights(uint64_t *state, const struct gb_weights *weights);
void fill_bf16(uint64_t *state, const void *values, size_t count);
void fill_double(uint64_t *state, double *values, size_t count);
void same_bytes(const void *a, const void *b, size_t count);
void same_weights(const struct gb_weights *a, const struct gb_weights *b);

#endif
