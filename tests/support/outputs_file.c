/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/outputs_file.h"
#include "tests/support/kept_explanation.h"

#include <unistd.h>

char outputs_folder[] = "/tmp/gaugeblock-outputs-XXXXXX";
char outputs_path[64];
struct gb_fixture *outputs_fixture, *outputs_one_layer;

double outputs_value(uint32_t layer, size_t i)
{
    const double specials[] = {-0.0, 1e300};
    return i < 2 ? specials[i] : (1 + (double)layer) * ((double)i + 1) / 7;
}

float outputs_narrow(uint32_t layer, size_t i)
{
    const uint32_t specials[] = {0x7FC01234, 0x80000000, 0xFF800000, 0x00000001};
    return i < 4 ? bits_float(specials[i]) : (float)outputs_value(layer, i);
}

gb_bf16 outputs_bf16(uint32_t layer, size_t i)
{
    return (gb_bf16){(uint16_t)(i * 131 + layer * 7 + 1)};
}

struct gb_outputs *outputs_read(const struct gb_fixture *f)
{
    struct gb_outputs *outputs;
    struct gb_error error = {""};
    if (gb_outputs_read(outputs_path, f, &outputs, &error) != GB_OK)
        fail_msg("%s", error.message);
    return outputs;
}

void outputs_expect_refusal(const struct gb_fixture *f, const char *what, const char *more)
{
    struct gb_outputs *outputs;
    struct gb_error error = {""};
    enum gb_status status = gb_outputs_read(outputs_path, f, &outputs, &error);
    if (status != GB_EFORMAT)
        fail_msg("%s, %s: got %s", what, more, gb_status_name(status));
    assert_null(outputs);
    kept_message(error.message, outputs_folder);
    if (strncmp(error.message, outputs_path, strlen(outputs_path)) || !strstr(error.message, what) ||
        !strstr(error.message, more) || strchr(error.message, '\n'))
        fail_msg("'%s' does not say '%s' and '%s'", error.message, what, more);
}

void outputs_check_float(const struct gb_outputs *outputs, uint32_t tokens, bool from_double)
{
    assert_int_equal(outputs->shape.tokens, tokens);
    assert_int_equal(outputs->shape.hidden, HIDDEN);
    for (uint32_t l = 0; l < outputs->layers; l++) {
        assert_int_equal(outputs->layer[l].format, GB_FP32);
        for (size_t i = 0; i < tokens * HIDDEN; i++) {
            float want = from_double ? (float)outputs_value(l, i) : outputs_narrow(l, i);
            assert_int_equal(float_bits(want), float_bits(((const float *)outputs->layer[l].output)[i]));
        }
    }
}

void outputs_check_bf16(const struct gb_outputs *outputs)
{
    for (uint32_t l = 0; l < outputs->layers; l++) {
        assert_int_equal(outputs->layer[l].format, GB_BF16);
        for (size_t i = 0; i < VALUES; i++)
            assert_int_equal(outputs_bf16(l, i).bits, ((const gb_bf16 *)outputs->layer[l].output)[i].bits);
    }
}

int outputs_set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(outputs_folder));
    snprintf(outputs_path, sizeof outputs_path, "%s/outputs", outputs_folder);
    outputs_fixture = new_fixture(GB_NVFP4, false, false, false);
    return gb_fixture_new(&shape, 1, GB_NVFP4, false, false, false, &outputs_one_layer, NULL) == GB_OK ? 0 : -1;
}

int outputs_tear_down(void **state)
{
    (void)state;
    gb_fixture_free(outputs_fixture);
    gb_fixture_free(outputs_one_layer);
    unlink(outputs_path);
    return rmdir(outputs_folder);
}
