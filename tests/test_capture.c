/* SPDX-License-Identifier: Apache-2.0 */
/* fixtures/capture.c: what it hands out, and captures with something wrong. */
#include "tests/check.h"

#include <unistd.h>

#include "fixtures/fixtures.h"

enum { TOKENS = 4, HIDDEN = 32, VALUES = TOKENS * HIDDEN };
static char folder[] = "/tmp/gaugeblock-capture-XXXXXX";
static char path[64];

struct captured {
    gb_bf16 x[VALUES];
    double in[VALUES], mid[VALUES];
    float in32[VALUES];
};

static void fill_capture(struct captured *c)
{
    for (uint64_t i = 0; i < VALUES; i++) {
        c->x[i].bits = (uint16_t)(0x3F00 + i);
        c->in[i] = ((double)i + 1) / 3;
        c->mid[i] = ((double)i + 2) / 7;
        c->in32[i] = ((float)i + 3) / 3;
    }
}

static struct gb_capture *open_capture(const struct gb_tensor *tensors, size_t count, enum gb_status expected,
                                       const char *says)
{
    struct gb_capture *capture;
    struct gb_error error = {""};
    if (gb_safetensors_write(path, tensors, count, &error) != GB_OK)
        fail_msg("%s", error.message);
    assert_int_equal(gb_capture_open(path, &capture, &error), expected);
    if (!strstr(error.message, says))
        fail_msg("'%s' does not say '%s'", error.message, says);
    return capture;
}

static void good_capture(void **state)
{
    (void)state;
    static struct captured a;
    gb_bf16 x[VALUES];
    double residual[VALUES], delta[VALUES];
    bool present;
    struct gb_error error = {""};
    fill_capture(&a);
    const struct gb_tensor tensors[] = {
        {"layer3.mlp_input_bf16", GB_DTYPE_BF16, 2, {TOKENS, HIDDEN}, VALUES, a.x},
        {"layer3.residual_in_f64", GB_DTYPE_F64, 2, {TOKENS, HIDDEN}, VALUES, a.in},
        {"layer3.residual_mid_f64", GB_DTYPE_F64, 2, {TOKENS, HIDDEN}, VALUES, a.mid},
        {"layer10.mlp_input_bf16", GB_DTYPE_BF16, 2, {TOKENS, HIDDEN}, VALUES, a.x},
        {"layer10.residual_in_f64", GB_DTYPE_F32, 2, {TOKENS, HIDDEN}, VALUES, a.in32},
        {"layer10.residual_mid_f64", GB_DTYPE_F64, 2, {TOKENS, HIDDEN}, VALUES, a.mid},
        {"layer11.mlp_input_bf16", GB_DTYPE_BF16, 2, {TOKENS, HIDDEN}, VALUES, a.x},
        {"layer12.residual_in_f64", GB_DTYPE_F64, 2, {TOKENS, HIDDEN}, VALUES, a.in},
        {"layer12.something_else", GB_DTYPE_F32, 1, {VALUES}, VALUES, a.in32},
    };
    struct gb_capture *c = open_capture(tensors, 9, GB_OK, "");
    assert_int_equal(gb_capture_tokens(c), TOKENS);
    const struct gb_shape prefix = {.tokens = 3, .hidden = HIDDEN};
    memset(x, 0xAA, sizeof x);
    assert_int_equal(gb_capture_inputs(c, 3, &prefix, x, &error), GB_OK);
    assert_memory_equal(x, a.x, 3 * HIDDEN * sizeof *x);
    assert_int_equal(x[3 * HIDDEN].bits, 0xAAAA);
    assert_int_equal(gb_capture_residual(c, 3, &prefix, residual, delta, &present, &error), GB_OK);
    assert_true(present);
    for (size_t i = 0; i < 3 * HIDDEN; i++)
        assert_true(residual[i] == a.in[i] && delta[i] == a.mid[i] - a.in[i]);
    assert_int_equal(gb_capture_residual(c, 10, &prefix, NULL, delta, &present, &error), GB_OK);
    assert_true(present && delta[5] == a.mid[5] - (double)a.in32[5]);
    assert_int_equal(gb_capture_residual(c, 11, &prefix, residual, delta, &present, &error), GB_OK);
    assert_false(present);
    assert_int_equal(gb_capture_residual(c, 12, &prefix, residual, delta, &present, &error), GB_EFORMAT);
    assert_non_null(strstr(error.message, "layer12.residual_mid_f64"));
    assert_int_equal(gb_capture_inputs(c, 12, &prefix, x, &error), GB_EFORMAT);
    assert_non_null(strstr(error.message, "layer12.mlp_input_bf16: missing"));
    const struct gb_shape wide = {.tokens = 3, .hidden = HIDDEN + 1}, many = {.tokens = TOKENS + 1, .hidden = HIDDEN};
    assert_int_equal(gb_capture_inputs(c, 3, &wide, x, &error), GB_EFORMAT);
    assert_int_equal(gb_capture_inputs(c, 3, &many, x, &error), GB_EFORMAT);
    gb_capture_close(c);
}

static void wrong_captures(void **state)
{
    (void)state;
    static struct captured a;
    fill_capture(&a);
    const struct gb_tensor wrong[][2] = {
        {{"layer0.x", GB_DTYPE_BF16, 2, {TOKENS, HIDDEN}, VALUES, a.x}},
        {{"layer0.mlp_input_bf16", GB_DTYPE_F32, 2, {TOKENS, HIDDEN}, VALUES, a.in32}},
        {{"layer0.mlp_input_bf16", GB_DTYPE_BF16, 1, {VALUES}, VALUES, a.x}},
        {{"layer0.mlp_input_bf16", GB_DTYPE_BF16, 2, {0, HIDDEN}, 0, a.x}},
        {{"layer0.mlp_input_bf16", GB_DTYPE_BF16, 2, {TOKENS, HIDDEN}, VALUES, a.x},
         {"layer1.mlp_input_bf16", GB_DTYPE_BF16, 2, {2, HIDDEN}, 2 * HIDDEN, a.x}},
    };
    assert_null(open_capture(wrong[0], 1, GB_EFORMAT, "mlp_input_bf16"));
    for (size_t i = 1; i < 4; i++)
        assert_null(open_capture(wrong[i], 1, GB_EFORMAT, "layer0.mlp_input_bf16: is not BF16"));
    assert_null(open_capture(wrong[4], 2, GB_EFORMAT, "layer1.mlp_input_bf16: has another shape"));
    struct gb_capture *none;
    assert_int_equal(gb_capture_open("/nonexistent", &none, NULL), GB_EIO);
}

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/capture", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_capture),
        cmocka_unit_test(wrong_captures),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
