/* SPDX-License-Identifier: Apache-2.0 */
/* The reference's quantisers on values of a fixture, asked as it asks or otherwise. */
#ifndef GB_HARNESS_FAULTS_QUANTISE_AS_H
#define GB_HARNESS_FAULTS_QUANTISE_AS_H

#include "fixtures/fixtures.h"

/* Codes and scales of `values` where `asked` is asked. GB_ENOMEM; GB_EINVAL: that is not defined. */
enum gb_status quantise_as(const struct gb_quantisation *asked, const uint16_t *values, struct gb_outputs **outputs,
                           struct gb_error *error);
/* Those of the fixture's first `rows` rows, as it asks. GB_ENOMEM. */
enum gb_status quantise_reference(const struct gb_fixture *fixture, uint32_t rows, struct gb_outputs **outputs,
                                  struct gb_error *error);

#endif
