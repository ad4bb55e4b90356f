/* SPDX-License-Identifier: Apache-2.0 */
/* fixtures/outputs: .npy files, as numpy writes them, and what is refused. */
#include "tests/outputs_file.h"

#include <unistd.h>

static void write_npy(int version, const char *header, const void *values, size_t bytes)
{
    FILE *file = fopen(outputs_path, "wb");
    uint32_t length = (uint32_t)strlen(header);
    fwrite("\x93NUMPY", 1, 6, file);
    fputc(version, file);
    fputc(0, file);
    fwrite(&length, 1, version == 1 ? 2 : 4, file);
    fwrite(header, 1, length, file);
    fwrite(values, 1, bytes, file);
    assert_int_equal(fclose(file), 0);
}

static void good_npy(void **state)
{
    (void)state;
    static float narrow[LAYERS * VALUES];
    static double wide[LAYERS * VALUES];
    static gb_bf16 bits[LAYERS * VALUES];
    struct gb_outputs *outputs;
    for (uint32_t i = 0; i < LAYERS * VALUES; i++) {
        narrow[i] = outputs_narrow(i / VALUES, i % VALUES);
        wide[i] = outputs_value(i / VALUES, i % VALUES);
        bits[i] = outputs_bf16(i / VALUES, i % VALUES);
    }
    /* As numpy.save writes it, padded so that the values are aligned; and at an odd place. */
    write_npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 5, 96), }             \n", narrow,
              sizeof narrow);
    outputs_check_float(outputs = outputs_read(outputs_fixture), TOKENS, false);
    gb_outputs_free(outputs);
    write_npy(2, "{\"shape\":(2,5,96),\"descr\":\"<f8\",\"fortran_order\":False}\n", wide, sizeof wide);
    outputs_check_float(outputs = outputs_read(outputs_fixture), TOKENS, true);
    gb_outputs_free(outputs);
    write_npy(3, "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 5, 96)}", bits, sizeof bits);
    outputs_check_bf16(outputs = outputs_read(outputs_fixture));
    gb_outputs_free(outputs);
    write_npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 96), }", narrow, 3 * HIDDEN * sizeof *narrow);
    outputs_check_float(outputs = outputs_read(outputs_one_layer), 3, false);
    gb_outputs_free(outputs);
    write_npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 96), }", narrow,
              3 * HIDDEN * sizeof *narrow);
    outputs_check_float(outputs = outputs_read(outputs_one_layer), 3, false);
    gb_outputs_free(outputs);
}

static void wrong_npy(void **state)
{
    (void)state;
    static const float values[VALUES];
    static const struct {
        const char *header, *what, *says;
        size_t bytes;
    } cases[] = {
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (5, 96), }", "fortran_order", "ascontiguousarray", 1920},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (5, 96), }", "descr", "'>f4'", 1920},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (5, 96), }", "descr", "'|O'", 1920},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (5, 96), }", "descr", "'<f2'", 1920},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (5, 96), }", "header", "numpy.save", 1920},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5, 95), }", "shape", "[5, 95]", 1900},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6, 96), }", "shape", "[6, 96]", 1920},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 96), }", "shape", "[0, 96]", 0},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (480,), }", "shape", "[480]", 1920},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (), }", "shape", "[]", 1920},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 5, 96), }", "shape", "[2, 5, 96]", 1920},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 5, 96), }", "shape", "more dimensions", 1920},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5, 96), }", "values", "1919 bytes", 1919},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5, 96), }", "values", "1921 bytes", 1921},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 96), }", "header", "array", 1920},
        {"{'descr': '<f4', 'shape': (5, 96), }", "header", "array", 1920},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5, 96), 'more': 1}", "header", "array", 1920},
        {"{'descr': '<f4", "header", "array", 1920},
        {"", "header", "array", 1920},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-5, 96), }", "header", "array", 1920},
    };
    static char bytes[2000];
    memcpy(bytes, values, sizeof values);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_npy(1, cases[i].header, bytes, cases[i].bytes);
        outputs_expect_refusal(outputs_one_layer, cases[i].what, cases[i].says);
    }
    write_npy(4, "{}", "", 0);
    outputs_expect_refusal(outputs_one_layer, "version", "4");
    write_npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (5, 96), }", "", 0);
    for (off_t size = 60; size >= 9; size--) {
        assert_int_equal(truncate(outputs_path, size), 0);
        outputs_expect_refusal(outputs_one_layer, "header", "truncated");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_npy),
        cmocka_unit_test(wrong_npy),
    };
    return cmocka_run_group_tests(tests, outputs_set_up, outputs_tear_down);
}
