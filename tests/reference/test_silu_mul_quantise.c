/* SPDX-License-Identifier: Apache-2.0 */
/* silu_mul_quantise against the oracle: every gate, every variant of FP8, fnuz and INT8 groups, refusals. */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/operator_case.h"
#include "tests/oracle/oracle.h"
#include "tests/support/kept_explanation.h"

/* Without the whole sweep every gate has one of the three forms. */
static int forms = 3;

static void expect_every_gate(enum gb_format input)
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float x = input == GB_FP16 ? gb_fp16_decode((uint16_t)bits) : gb_bf16_decode((gb_bf16){(uint16_t)bits});
        for (int form = GB_SILU_EXACT + (int)bits % forms; form <= GB_SILU_RECIPROCAL; form += forms)
            assert_same_float(oracle_silu_as(form, x), gb_silu_as(form, x), "form %d of silu(%a)", form, (double)x);
    }
}

static void every_bf16_gate(void **state)
{
    (void)state;
    expect_every_gate(GB_BF16);
}

static void every_fp16_gate(void **state)
{
    (void)state;
    expect_every_gate(GB_FP16);
}

static void groups(const struct gb_quantisation *q, const float *values, uint8_t *codes, void *scales)
{
    uint32_t group = q->quantiser.block_columns;

    for (uint32_t g = 0; g < q->columns / group; g++)
        oracle_quantise_group(q->quantiser.element, q->bound, values + g * group, group, codes + g * group,
                              (float *)scales + g);
}

/* Without the whole sweep every variant has one of the kinds of data, and two thirds of the rows and of the columns. */
static int sparse = OPERATOR_KINDS;

/* 3 elements x 2 groups x 2 inputs x 2 layouts x 3 forms x 3 roundings, and a bound where there can be one. */
static void every_variant(void **state)
{
    static const char *const recipes[] = {"fp8g128.vllm-fused/1", "fp8fnuzg128.vllm-fused/1", "int8g128.vllm-fused/1",
                                          "fp8g64.vllm-fused/1",  "fp8fnuzg64.vllm-fused/1",  "int8g64.vllm-fused/1"};
    size_t nonzero[OPERATOR_KINDS] = {0};

    (void)state;
    for (uint32_t v = 0; v < 3 * 2 * 2 * 2 * 3 * 3 * 2; v++) {
        const struct gb_quantiser *rules = operator_rules(recipes[v % 6]);
        struct gb_quantisation q = operator_question(rules, true, sparse > 1 ? 2 : 3, sparse > 1 ? 256 : 384);
        uint32_t roundings = v / 72 % 3;
        q.input = v / 6 % 2 ? GB_FP16 : GB_BF16;
        q.layout = v / 12 % 2 ? GB_SCALES_TRANSPOSED : GB_SCALES_LINEAR;
        q.silu = (enum gb_silu_form)(1 + v / 24 % 3);
        q.activated = roundings == 2 ? q.input : GB_FP32;
        q.product = roundings >= 1 ? q.input : GB_FP32;
        if (v / 216 % 2 && rules->bound != GB_BOUND_NONE)
            q.bound = 0.0071f;
        for (int kind = (int)(v + v / 6 + v / 72) % sparse; kind < OPERATOR_KINDS; kind += sparse) {
            char label[64];
            snprintf(label, sizeof label, "variant %u, data %d", v, kind);
            uint16_t *input = operator_input(&q, (enum operator_data)kind, 1000 * v + (uint64_t)kind);
            nonzero[kind] += expect_operator(&q, input, groups, label);
            free(input);
        }
    }
    for (int kind = 0; kind < OPERATOR_KINDS; kind++)
        assert_true(nonzero[kind] > (sparse > 1 ? 20000 : 50000));
}

/* The order of rounding and product shows in a code, so that the test above can tell roundings apart. */
static void roundings_differ(void **state)
{
    struct gb_quantisation q = operator_question(operator_rules("fp8g128.vllm-fused/1"), true, 64, 1024);
    uint16_t *input = operator_input(&q, OPERATOR_GAUSSIAN, 7);
    uint8_t *codes[3];
    float scales[64 * 8];

    (void)state;
    for (int roundings = 0; roundings < 3; roundings++) {
        codes[roundings] = malloc(64 * 1024);
        q.activated = roundings == 2 ? GB_BF16 : GB_FP32;
        q.product = roundings >= 1 ? GB_BF16 : GB_FP32;
        struct gb_arguments a = {
            .size = sizeof a, .quantise = &q, .values = input, .codes = codes[roundings], .scales = scales};
        assert_int_equal(gb_reference_silu_mul_quantise(&a, NULL), GB_OK);
    }
    assert_memory_not_equal(codes[0], codes[1], 64 * 1024);
    assert_memory_not_equal(codes[0], codes[2], 64 * 1024);
    assert_memory_not_equal(codes[1], codes[2], 64 * 1024);
    for (int roundings = 0; roundings < 3; roundings++)
        free(codes[roundings]);
    free(input);
}

static void what_is_refused(void **state)
{
    const struct gb_quantiser *rules = operator_rules("fp8g128.vllm-fused/1");
    uint16_t input[2 * 256] = {0};
    uint8_t codes[256];
    float scales[4];
    struct gb_error error;

    (void)state;
#define REFUSED(CHANGE, WORD)                                                                                          \
    do {                                                                                                               \
        struct gb_quantisation q = operator_question(rules, true, 1, 256);                                             \
        struct gb_arguments a = {.size = sizeof a, .quantise = &q, .values = input, .codes = codes, .scales = scales}; \
        memset(&error, 0, sizeof error);                                                                               \
        CHANGE;                                                                                                        \
        assert_int_equal(gb_reference_silu_mul_quantise(&a, &error), GB_EINVAL);                                       \
        kept_message(error.message, NULL);                                                                             \
        if (!strstr(error.message, WORD))                                                                              \
            fail_msg("%s: the message lacks \"%s\": %s", #CHANGE, WORD, error.message);                                \
    } while (0)
    REFUSED(q.input_columns = 256, "gate and up");
    REFUSED(q.columns = 200; q.input_columns = 400, "no multiple of the group of 128");
    REFUSED(q.quantiser.block_columns = 32, "64 or 128");
    REFUSED(q.quantiser.block_columns = 256, "128 columns");
    REFUSED(q.quantiser.block_rows = 128, "1 row");
    REFUSED(q.input = GB_FP32, "bf16");
    REFUSED(q.quantiser.element = 0, "element");
    REFUSED(q.quantiser = *operator_rules("int8g128.vllm-fused/1"); q.bound = 0.5f, "INT8");
    REFUSED(q.bound = 0, "above zero");
    REFUSED(q.bound = NAN, "above zero");
    REFUSED(q.silu = 4, "silu");
    REFUSED(q.product = GB_FP16, "rounded");
    REFUSED(q.layout = 2, "layout");
    REFUSED(q.rows = 0, "rows");
    REFUSED(q.size = 8, "struct gb_quantisation");
    REFUSED(a.quantise = NULL, "struct gb_quantisation");
    REFUSED(a.codes = NULL, "NULL");
    REFUSED(a.values = NULL, "NULL");
    REFUSED(a.scales = NULL, "NULL");
    REFUSED(q.columns = 0; q.input_columns = 0, "columns");
    REFUSED(q.columns = 0x80000080; q.input_columns = 0x100, "columns");
    REFUSED(q.rows = UINT32_MAX; q.columns = 0x7FFFFF80; q.input_columns = 0xFFFFFF00, "fit in memory");
    REFUSED(q.input_columns = 513, "gate and up");
    REFUSED(q.bound = -1.0f, "above zero");
    REFUSED(q.silu = 0, "silu");
    REFUSED(q.activated = GB_FP16, "rounded");
    REFUSED(q.quantiser.scale = 9, "scale");
    REFUSED(q.quantiser.bound = GB_BOUND_NONE; q.bound = 0.5f, "takes no bound");
#undef REFUSED
}

static void the_table_has_it(void **state)
{
    const struct gb_kernel_table *table = gb_reference_kernels();
    const struct gb_quantiser *rules = operator_rules("fp8g128.vllm-fused/1");
    unsigned found = 0;

    (void)state;
    for (uint32_t k = 0; k < table->count; k++) {
        const struct gb_kernel *kernel = &table->kernels[k];
        bool gated = kernel->operation == GB_SILU_MUL_QUANTISE;
        struct gb_quantisation q = operator_question(rules, gated, 1, 256);
        struct gb_problem problem = {.size = sizeof problem, .quantise = &q};
        if (kernel->operation != GB_QUANTISE && !gated)
            continue;
        found |= gated ? 2 : 1;
        assert_int_equal(kernel->supports(&problem, NULL), GB_OK);
        q.columns--;
        assert_int_equal(kernel->supports(&problem, NULL), GB_EINVAL);
        problem.size = GB_PROBLEM_LEAST;
        assert_int_equal(kernel->supports(&problem, NULL), GB_EINVAL);
    }
    assert_int_equal(found, 3);
}

int main(int argc, char **argv)
{
    if (sweeps_are_whole(argc, argv))
        sparse = forms = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bf16_gate),  cmocka_unit_test(every_fp16_gate), cmocka_unit_test(every_variant),
        cmocka_unit_test(roundings_differ), cmocka_unit_test(what_is_refused), cmocka_unit_test(the_table_has_it),
        KEPT_AS("test_silu_mul_quantise"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
