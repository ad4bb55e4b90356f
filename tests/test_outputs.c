/* SPDX-License-Identifier: Apache-2.0 */
/* fixtures/outputs: the three file types, as others write them, and what is refused. */
#include "tests/fixture_problem.h"

#include <unistd.h>

#include <hdf5.h>

static char folder[] = "/tmp/gaugeblock-outputs-XXXXXX";
static char path[64];
static struct gb_fixture *fixture, *one_layer;
enum { TOKENS = 5, HIDDEN = 96, TOP_K = 2, INTERMEDIATE = 32, VALUES = TOKENS * HIDDEN };

/* Values that rounding to float32 changes; -0, and one that becomes infinite, in front. */
static double value(uint32_t layer, size_t i)
{
    const double specials[] = {-0.0, 1e300};
    return i < 2 ? specials[i] : (1 + (double)layer) * ((double)i + 1) / 7;
}

/* A NaN with a payload, -0, infinity and a subnormal in front. */
static float narrow_value(uint32_t layer, size_t i)
{
    const uint32_t specials[] = {0x7FC01234, 0x80000000, 0xFF800000, 0x00000001};
    return i < 4 ? bits_float(specials[i]) : (float)value(layer, i);
}

static gb_bf16 bf16_value(uint32_t layer, size_t i)
{
    return (gb_bf16){(uint16_t)(i * 131 + layer * 7 + 1)};
}

static struct gb_outputs *read_good(const struct gb_fixture *f)
{
    struct gb_outputs *outputs;
    struct gb_error error = {""};
    if (gb_outputs_read(path, f, &outputs, &error) != GB_OK)
        fail_msg("%s", error.message);
    return outputs;
}

static void expect_refusal(const struct gb_fixture *f, const char *what, const char *more)
{
    struct gb_outputs *outputs;
    struct gb_error error = {""};
    enum gb_status status = gb_outputs_read(path, f, &outputs, &error);
    if (status != GB_EFORMAT)
        fail_msg("%s, %s: got %s", what, more, gb_status_name(status));
    assert_null(outputs);
    if (strncmp(error.message, path, strlen(path)) || !strstr(error.message, what) || !strstr(error.message, more) ||
        strchr(error.message, '\n'))
        fail_msg("'%s' does not say '%s' and '%s'", error.message, what, more);
}

static void check_float(const struct gb_outputs *outputs, uint32_t tokens, bool from_double)
{
    assert_int_equal(outputs->shape.tokens, tokens);
    assert_int_equal(outputs->shape.hidden, HIDDEN);
    for (uint32_t l = 0; l < outputs->layers; l++) {
        assert_int_equal(outputs->layer[l].format, GB_FP32);
        for (size_t i = 0; i < tokens * HIDDEN; i++) {
            float want = from_double ? (float)value(l, i) : narrow_value(l, i);
            assert_int_equal(float_bits(want), float_bits(((const float *)outputs->layer[l].output)[i]));
        }
    }
}

static void check_bf16(const struct gb_outputs *outputs)
{
    for (uint32_t l = 0; l < outputs->layers; l++) {
        assert_int_equal(outputs->layer[l].format, GB_BF16);
        for (size_t i = 0; i < VALUES; i++)
            assert_int_equal(bf16_value(l, i).bits, ((const gb_bf16 *)outputs->layer[l].output)[i].bits);
    }
}

/* Ours. */

static void written_is_read(void **state)
{
    (void)state;
    static const enum gb_format formats[] = {GB_FP32, GB_BF16};
    for (int c = 0; c < 8; c++) {
        bool stage = c & 1, stack = c & 2;
        enum gb_format format = formats[c >> 2];
        struct gb_outputs *made, *read;
        struct gb_error error = {""};
        size_t size = format == GB_FP32 ? sizeof(float) : sizeof(gb_bf16);
        uint64_t random = 1;
        assert_int_equal(gb_outputs_new(&shape, LAYERS, format, stage, stack, &made, &error), GB_OK);
        for (uint32_t l = 0; l < LAYERS; l++) {
            for (size_t b = 0; b < VALUES * size; b++)
                ((uint8_t *)made->layer[l].output)[b] = (uint8_t)random_bits(&random);
            if (stage)
                fill_bf16(&random, made->layer[l].intermediate, TOKENS * TOP_K * INTERMEDIATE);
        }
        fill_double(&random, made->stack, LAYERS * VALUES);
        if (gb_outputs_write(path, made, &error) != GB_OK)
            fail_msg("%s", error.message);
        read = read_good(fixture);
        assert_memory_equal(&read->shape, &shape, sizeof shape);
        assert_int_equal(read->layers, LAYERS);
        for (uint32_t l = 0; l < LAYERS; l++) {
            assert_int_equal(read->layer[l].format, format);
            same_bytes(read->layer[l].output, made->layer[l].output, VALUES * size);
            same_bytes(read->layer[l].intermediate, made->layer[l].intermediate,
                       TOKENS * TOP_K * INTERMEDIATE * sizeof(gb_bf16));
        }
        same_bytes(read->stack, made->stack, LAYERS * VALUES * sizeof(double));
        gb_outputs_free(made);
        gb_outputs_free(read);
    }
}

static void sizes_are_checked(void **state)
{
    (void)state;
    struct gb_outputs *outputs;
    struct gb_error error;
    struct gb_shape none = shape;
    none.tokens = 0;
    assert_int_equal(gb_outputs_new(&none, 1, GB_FP32, true, true, &outputs, &error), GB_EINVAL);
    assert_int_equal(gb_outputs_new(&shape, 0, GB_FP32, true, true, &outputs, &error), GB_EINVAL);
    assert_int_equal(gb_outputs_new(&shape, 1, GB_NVFP4, true, true, &outputs, &error), GB_EINVAL);
    const struct gb_shape huge = {UINT32_MAX, UINT32_MAX, 1, 1, 1};
    assert_int_equal(gb_outputs_new(&huge, UINT32_MAX, GB_FP32, false, true, &outputs, &error), GB_EINVAL);
    assert_null(outputs);
    gb_outputs_free(NULL);
}

/* HDF5 as others write it: oldest format, contiguous, no attributes. */

static hid_t create_hdf5(void)
{
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(file >= 0);
    return file;
}

static void put(hid_t file, const char *name, hid_t type, int rank, const hsize_t *dims, hid_t creation, hid_t native,
                const void *values)
{
    hid_t links = H5Pcreate(H5P_LINK_CREATE), space = H5Screate_simple(rank, dims, NULL);
    H5Pset_create_intermediate_group(links, 1);
    hid_t dataset = H5Dcreate2(file, name, type, space, links, creation, H5P_DEFAULT);
    assert_true(dataset >= 0);
    if (values)
        assert_true(H5Dwrite(dataset, native, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    H5Dclose(dataset);
    H5Sclose(space);
    H5Pclose(links);
}

/* Both layers' outputs of `type`, with this many tokens in layer 1. */
static hid_t create_layers(hid_t type, hid_t creation, hsize_t tokens, hsize_t tokens_of_1)
{
    static double wide[VALUES];
    static float narrow[VALUES];
    static uint16_t bits[VALUES];
    hid_t file = create_hdf5();
    for (uint32_t l = 0; l < LAYERS; l++) {
        const hsize_t dims[] = {l ? tokens_of_1 : tokens, HIDDEN};
        char name[32];
        for (size_t i = 0; i < VALUES; i++) {
            wide[i] = value(l, i);
            narrow[i] = narrow_value(l, i);
            bits[i] = bf16_value(l, i).bits;
        }
        snprintf(name, sizeof name, "/layers/%u/output", l);
        if (H5Tget_class(type) == H5T_INTEGER)
            put(file, name, type, 2, dims, creation, H5T_NATIVE_UINT16, bits);
        else if (H5Tget_size(type) == sizeof(double))
            put(file, name, type, 2, dims, creation, H5T_NATIVE_DOUBLE, wide);
        else
            put(file, name, type, 2, dims, creation, H5T_NATIVE_FLOAT, narrow);
    }
    return file;
}

static void hdf5_of_others(void **state)
{
    (void)state;
    struct gb_outputs *outputs;
    const hsize_t chunk[] = {2, 50};
    hid_t packed = H5Pcreate(H5P_DATASET_CREATE), compact = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(packed, 2, chunk);
    H5Pset_shuffle(packed);
    H5Pset_deflate(packed, 6);
    H5Pset_layout(compact, H5D_COMPACT);
    const hid_t creations[] = {H5P_DEFAULT, packed, compact};
    for (int i = 0; i < 3; i++) {
        H5Fclose(create_layers(H5T_IEEE_F32LE, creations[i], TOKENS, TOKENS));
        outputs = read_good(fixture);
        assert_null(outputs->stack);
        assert_null(outputs->layer[0].intermediate);
        check_float(outputs, TOKENS, false);
        gb_outputs_free(outputs);
    }
    H5Fclose(create_layers(H5T_IEEE_F64BE, packed, 3, 3));
    outputs = read_good(fixture);
    check_float(outputs, 3, true);
    gb_outputs_free(outputs);
    H5Fclose(create_layers(H5T_STD_U16LE, H5P_DEFAULT, TOKENS, TOKENS));
    outputs = read_good(fixture);
    check_bf16(outputs);
    gb_outputs_free(outputs);
    H5Pclose(packed);
    H5Pclose(compact);
}

static void wrong_hdf5(void **state)
{
    (void)state;
    const hsize_t narrow[] = {TOKENS, HIDDEN - 1}, stage[] = {TOKENS, INTERMEDIATE, TOP_K}, chunk[] = {2, HIDDEN},
                  right[] = {TOKENS, HIDDEN};
    hid_t chunked = H5Pcreate(H5P_DATASET_CREATE), external = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(chunked, 2, chunk);
    H5Pset_external(external, "/etc/passwd", 0, sizeof(float) * VALUES);
    H5Fclose(create_layers(H5T_IEEE_F32LE, H5P_DEFAULT, TOKENS, 4));
    expect_refusal(fixture, "/layers/1/output", "has 4 tokens, but other arrays have 5");
    H5Fclose(create_layers(H5T_STD_U8LE, H5P_DEFAULT, TOKENS, TOKENS));
    expect_refusal(fixture, "/layers/0/output", "holds uint8");
    H5Fclose(create_layers(H5T_STD_I64LE, H5P_DEFAULT, TOKENS, TOKENS));
    expect_refusal(fixture, "/layers/0/output", "element type");
    hid_t file = create_layers(H5T_IEEE_F32LE, H5P_DEFAULT, TOKENS, TOKENS);
    put(file, "/layers/1/intermediate", H5T_STD_U16LE, 3, stage, H5P_DEFAULT, H5T_NATIVE_UINT16, NULL);
    H5Fclose(file);
    expect_refusal(fixture, "/layers/1/intermediate", "has shape [5, 32, 2]; write [tokens, top_k, intermediate]");
    expect_refusal(one_layer, "/layers/1", "only 1 layers");
    file = create_hdf5();
    put(file, "/layers/0/output", H5T_IEEE_F32LE, 2, narrow, H5P_DEFAULT, H5T_NATIVE_FLOAT, NULL);
    H5Fclose(file);
    expect_refusal(fixture, "/layers/0/output", "has shape [5, 95]; write [tokens, hidden] = [5, 96]");
    file = create_hdf5();
    put(file, "/layers/1/output", H5T_IEEE_F32LE, 2, narrow, H5P_DEFAULT, H5T_NATIVE_FLOAT, NULL);
    H5Fclose(file);
    expect_refusal(fixture, "/layers/0", "missing");
    const hid_t creations[] = {H5P_DEFAULT, chunked, external};
    static const char *const says[] = {"no data", "no data", "another place"};
    for (int i = 0; i < 3; i++) {
        file = create_hdf5();
        put(file, "/layers/0/output", H5T_IEEE_F32LE, 2, right, creations[i], H5T_NATIVE_FLOAT, NULL);
        H5Fclose(file);
        expect_refusal(one_layer, "/layers/0/output", says[i]);
    }
    H5Pclose(chunked);
    H5Pclose(external);
}

/* numpy. */

static void write_npy(int version, const char *header, const void *values, size_t bytes)
{
    FILE *file = fopen(path, "wb");
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
        narrow[i] = narrow_value(i / VALUES, i % VALUES);
        wide[i] = value(i / VALUES, i % VALUES);
        bits[i] = bf16_value(i / VALUES, i % VALUES);
    }
    /* As numpy.save writes it, padded so that the values are aligned; and at an odd place. */
    write_npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 5, 96), }             \n", narrow,
              sizeof narrow);
    check_float(outputs = read_good(fixture), TOKENS, false);
    gb_outputs_free(outputs);
    write_npy(2, "{\"shape\":(2,5,96),\"descr\":\"<f8\",\"fortran_order\":False}\n", wide, sizeof wide);
    check_float(outputs = read_good(fixture), TOKENS, true);
    gb_outputs_free(outputs);
    write_npy(3, "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 5, 96)}", bits, sizeof bits);
    check_bf16(outputs = read_good(fixture));
    gb_outputs_free(outputs);
    write_npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 96), }", narrow, 3 * HIDDEN * sizeof *narrow);
    check_float(outputs = read_good(one_layer), 3, false);
    gb_outputs_free(outputs);
    write_npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 96), }", narrow,
              3 * HIDDEN * sizeof *narrow);
    check_float(outputs = read_good(one_layer), 3, false);
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
        expect_refusal(one_layer, cases[i].what, cases[i].says);
    }
    write_npy(4, "{}", "", 0);
    expect_refusal(one_layer, "version", "4");
    write_npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (5, 96), }", "", 0);
    for (off_t size = 60; size >= 9; size--) {
        assert_int_equal(truncate(path, size), 0);
        expect_refusal(one_layer, "header", "truncated");
    }
}

/* safetensors. */

static void safetensors_of_others(void **state)
{
    (void)state;
    static float narrow[LAYERS][VALUES];
    static double wide[LAYERS][VALUES], stack[LAYERS * VALUES];
    static gb_bf16 bits[LAYERS][VALUES], stage[TOKENS * TOP_K * INTERMEDIATE];
    static int32_t integers[VALUES];
    struct gb_outputs *outputs;
    struct gb_error error = {""};
    for (uint32_t l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < VALUES; i++) {
            narrow[l][i] = narrow_value(l, i);
            stack[l * VALUES + i] = wide[l][i] = value(l, i);
            bits[l][i] = bf16_value(l, i);
        }
    for (size_t i = 0; i < sizeof stage / sizeof *stage; i++)
        stage[i] = bf16_value(3, i);
    struct gb_tensor t[] = {
        {"layers.0.output", GB_DTYPE_F32, 2, {TOKENS, HIDDEN}, VALUES, narrow[0]},
        {"layers.1.output", GB_DTYPE_F32, 2, {TOKENS, HIDDEN}, VALUES, narrow[1]},
        {"layers.0.intermediate", GB_DTYPE_BF16, 3, {TOKENS, TOP_K, INTERMEDIATE}, sizeof stage / sizeof *stage, stage},
        {"layers.1.intermediate", GB_DTYPE_BF16, 3, {TOKENS, TOP_K, INTERMEDIATE}, sizeof stage / sizeof *stage, stage},
        {"stack.output", GB_DTYPE_F64, 3, {LAYERS, TOKENS, HIDDEN}, LAYERS * VALUES, stack},
    };
    assert_int_equal(gb_safetensors_write(path, t, 3, &error), GB_OK);
    expect_refusal(fixture, "layers.1.intermediate", "is missing, but layer 0 has it");
    assert_int_equal(gb_safetensors_write(path, t, 5, &error), GB_OK);
    check_float(outputs = read_good(fixture), TOKENS, false);
    for (uint32_t l = 0; l < LAYERS; l++)
        same_bytes(outputs->layer[l].intermediate, stage, sizeof stage);
    same_bytes(outputs->stack, stack, sizeof stack);
    gb_outputs_free(outputs);
    expect_refusal(one_layer, "layers.1.output", "only 1 layers");

    for (uint32_t l = 0; l < LAYERS; l++) {
        t[l].dtype = GB_DTYPE_F64;
        t[l].data = wide[l];
    }
    assert_int_equal(gb_safetensors_write(path, t, 2, &error), GB_OK);
    check_float(outputs = read_good(fixture), TOKENS, true);
    gb_outputs_free(outputs);
    for (uint32_t l = 0; l < LAYERS; l++) {
        t[l].dtype = GB_DTYPE_BF16;
        t[l].data = bits[l];
    }
    assert_int_equal(gb_safetensors_write(path, t, 2, &error), GB_OK);
    check_bf16(outputs = read_good(fixture));
    gb_outputs_free(outputs);

    assert_int_equal(gb_safetensors_write(path, t, 1, &error), GB_OK);
    expect_refusal(fixture, "layers.1.output", "missing");
    t[1] = (struct gb_tensor){"layers.1.output", GB_DTYPE_I32, 2, {TOKENS, HIDDEN}, VALUES, integers};
    assert_int_equal(gb_safetensors_write(path, t, 2, &error), GB_OK);
    expect_refusal(fixture, "layers.1.output", "I32");
    t[1] = (struct gb_tensor){"layers.1.output", GB_DTYPE_F32, 4, {1, 1, TOKENS, HIDDEN}, VALUES, narrow[1]};
    assert_int_equal(gb_safetensors_write(path, t, 2, &error), GB_OK);
    expect_refusal(fixture, "layers.1.output", "[1, 1, 5, 96]");
}

static void other_files(void **state)
{
    (void)state;
    static const char *const contents[] = {"", "x", "neither of them, but longer than any magic"};
    struct gb_outputs *outputs;
    struct gb_error error;
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        FILE *file = fopen(path, "w");
        fputs(contents[i], file);
        fclose(file);
        expect_refusal(fixture, "neither HDF5", "safetensors");
    }
    assert_int_equal(gb_outputs_read("/nonexistent", fixture, &outputs, &error), GB_EIO);
    assert_int_equal(gb_outputs_read(folder, fixture, &outputs, &error), GB_EIO);
    outputs = NULL;
    assert_int_equal(gb_outputs_new(&shape, 1, GB_FP32, false, false, &outputs, &error), GB_OK);
    assert_int_equal(gb_outputs_write("/nonexistent/a.h5", outputs, &error), GB_EIO);
    gb_outputs_free(outputs);
}

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/outputs", folder);
    fixture = new_fixture(GB_NVFP4, false, false, false);
    return gb_fixture_new(&shape, 1, GB_NVFP4, false, false, false, &one_layer, NULL) == GB_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    gb_fixture_free(fixture);
    gb_fixture_free(one_layer);
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_is_read),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(hdf5_of_others),
        cmocka_unit_test(wrong_hdf5),
        cmocka_unit_test(good_npy),
        cmocka_unit_test(wrong_npy),
        cmocka_unit_test(safetensors_of_others),
        cmocka_unit_test(other_files),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
