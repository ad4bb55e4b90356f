/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that gate_up, down and layer of the reference refuse, with a message that says why. */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/fma32.h"
#include "tests/support/problem.h"
#include "tests/support/kept_explanation.h"

typedef enum gb_status operator_function(const struct gb_arguments *arguments, struct gb_error *error);

static void refused(operator_function *function, const struct gb_arguments *arguments, const char *words)
{
    struct gb_error error = {""};

    assert_int_equal(function(arguments, &error), GB_EINVAL);
    kept_message(error.message, NULL);
    if (!strstr(error.message, words) || strchr(error.message, '\n'))
        fail_msg("\"%s\" does not say %s", error.message, words);
}

static void bad_arguments_are_refused(void **state)
{
    struct problem problem;
    struct gb_arguments good, bad;

    (void)state;
    problem_new(&problem, (struct gb_shape){3, 32, 16, 4, 2}, GB_NVFP4, DATA_CODES, 84);
    good = problem.arguments;
    problem.ids[3] = 4;
    refused(fma32_layer, &good, "expert id 4 of token 1, slot 1");
    refused(fma32_gate_up, &good, "expert id 4");
    refused(fma32_down, &good, "expert id 4");
    problem.ids[3] = -2;
    refused(fma32_layer, &good, "expert id -2");
    problem.ids[3] = 1;
    assert_int_equal(fma32_layer(&good, NULL), GB_OK);

#define REFUSED(function, change, words)                                                                               \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        change;                                                                                                        \
        refused(function, &bad, words);                                                                                \
    } while (0)
    REFUSED(fma32_layer, bad.size = 8, "8");
    REFUSED(fma32_layer, bad.shape.tokens = 0, "at least 1");
    REFUSED(fma32_layer, bad.shape.hidden = 0, "at least 1");
    REFUSED(fma32_layer, bad.shape.intermediate = 0, "at least 1");
    REFUSED(fma32_layer, bad.shape.experts = 0, "at least 1");
    REFUSED(fma32_layer, bad.shape.top_k = 0, "at least 1");
    REFUSED(fma32_layer, bad.shape.top_k = 5, "top_k");
    REFUSED(fma32_layer, bad.shape.hidden = 48, "gate_up");
    REFUSED(fma32_layer, (bad.shape.top_k = 1, bad.shape.tokens = UINT32_MAX, bad.shape.intermediate = INT32_MAX),
            "do not fit");
    REFUSED(fma32_layer, (bad.shape.top_k = 1, bad.shape.tokens = UINT32_MAX, bad.shape.hidden = UINT32_MAX),
            "do not fit");
    REFUSED(fma32_layer, bad.shape.tokens = UINT32_MAX / 2 + 1, "do not fit");
    REFUSED(fma32_layer, bad.shape.experts = 3, "gate_up");
    REFUSED(fma32_layer, bad.gate_up.halves = 1, "gate_up");
    REFUSED(fma32_layer, bad.gate_up.scales = NULL, "gate_up");
    REFUSED(fma32_layer, bad.down.rows = 16, "down");
    REFUSED(fma32_layer, bad.down.global_scales = NULL, "down");
    REFUSED(fma32_down, bad.down.columns = 32, "down");
    REFUSED(fma32_layer, bad.x = NULL, "NULL");
    REFUSED(fma32_layer, bad.ids = NULL, "NULL");
    REFUSED(fma32_layer, bad.routing_weights = NULL, "NULL");
    REFUSED(fma32_layer, bad.output = NULL, "NULL");
    REFUSED(fma32_gate_up, bad.intermediate = NULL, "NULL");
    REFUSED(fma32_down, bad.intermediate = NULL, "NULL");
    REFUSED(fma32_gate_up, bad.x = NULL, "NULL");
    REFUSED(fma32_gate_up, bad.ids = NULL, "NULL");
    REFUSED(fma32_down, bad.routing_weights = NULL, "NULL");
    REFUSED(fma32_down, bad.output = NULL, "NULL");
    REFUSED(fma32_layer, bad.shape.intermediate = UINT32_MAX / 2 + 1, "at least 1");
    REFUSED(fma32_layer, bad.activation = (enum gb_activation)99, "unknown activation 99");
    REFUSED(fma32_layer, bad.apply_router_weight_on_input = 1, "only where top_k is 1");
    REFUSED(fma32_layer, (bad.apply_router_weight_on_input = 2, bad.shape.top_k = 1), "only where top_k is 1");
    REFUSED(fma32_gate_up, (bad.apply_router_weight_on_input = 1, bad.shape.top_k = 1, bad.routing_weights = NULL),
            "are NULL");
#undef REFUSED
    static const enum gb_format others[] = {GB_MXFP8, GB_BF16};
    struct gb_error error = {""};
    assert_int_equal(gb_reference_layer(NULL, &good, &error), GB_EINVAL);
    kept_message(error.message, NULL);
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++) {
        const struct gb_contract *contract = gb_contract_find(others[i], GB_BF16, GB_ORDER_FMA32);
        assert_int_equal(gb_reference_layer(contract, &good, &error), GB_EINVAL);
        assert_int_equal(gb_reference_gate_up(contract, &good, &error), GB_EINVAL);
        assert_int_equal(gb_reference_down(contract, &good, &error), GB_EINVAL);
        kept_message(error.message, NULL);
    }
    problem_free(&problem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bad_arguments_are_refused), KEPT_AS("test_arguments")};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
