/* SPDX-License-Identifier: Apache-2.0 */
/* Which contract a fixture is a problem of, and which one a kernel is held to. */
#ifndef GB_HARNESS_RUN_CONTRACT_H
#define GB_HARNESS_RUN_CONTRACT_H

#include "fixtures/fixtures.h"
#include "reference/reference.h"

/* The contract that the fixture is a problem of; NULL if there is none. */
const struct gb_contract *fixture_contract(const struct gb_fixture *fixture);
/* The contract by which a kernel is judged: that of its activations and its order, GB_ORDER_FMA32 if it claims none;
 * NULL if there is none. */
const struct gb_contract *kernel_contract(const struct gb_fixture *fixture, const struct gb_kernel *kernel);

#endif
