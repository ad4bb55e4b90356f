/* SPDX-License-Identifier: Apache-2.0 */
/* One layer of generated data, as `gaugeblock make` builds it. Failure aborts. */
#ifndef GB_TESTS_SUPPORT_GENERATED_LAYER_H
#define GB_TESTS_SUPPORT_GENERATED_LAYER_H

#include "fixtures/fixtures.h"
#include "tests/support/problem.h"

struct generated_layer {
    struct gb_shape shape;
    enum gb_format weights, activations; /* GB_BF16: activations are not quantised */
    const char *recipe;                  /* of quantised activations; NULL: the default */
    const char *data, *routing;          /* of gb_generators and of gb_routing_kinds */
    uint64_t seed;
};

/* For gb_fixture_free. */
struct gb_fixture *generated_layer(const struct generated_layer *of);
/* The fixture's inputs as a problem with its activations' rules, if these are quantised. Routing weights, which alone
 * it owns, are the fixture's times `factor`. */
struct problem generated_problem(const struct gb_fixture *fixture, bool quantised, float factor);

#endif
