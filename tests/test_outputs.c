/* SPDX-License-Identifier: Apache-2.0 */
/* fixtures/outputs: HDF5 and safetensors, as others write them, and what is refused. */
#include "tests/outputs_file.h"

#include <unistd.h>

#include <hdf5.h>

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
        if (gb_outputs_write(outputs_path, made, &error) != GB_OK)
            fail_msg("%s", error.message);
        read = outputs_read(outputs_fixture);
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
    hid_t file = H5Fcreate(outputs_path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
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
            wide[i] = outputs_value(l, i);
            narrow[i] = outputs_narrow(l, i);
            bits[i] = outputs_bf16(l, i).bits;
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
        outputs = outputs_read(outputs_fixture);
        assert_null(outputs->stack);
        assert_null(outputs->layer[0].intermediate);
        outputs_check_float(outputs, TOKENS, false);
        gb_outputs_free(outputs);
    }
    H5Fclose(create_layers(H5T_IEEE_F64BE, packed, 3, 3));
    outputs = outputs_read(outputs_fixture);
    outputs_check_float(outputs, 3, true);
    gb_outputs_free(outputs);
    H5Fclose(create_layers(H5T_STD_U16LE, H5P_DEFAULT, TOKENS, TOKENS));
    outputs = outputs_read(outputs_fixture);
    outputs_check_bf16(outputs);
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
    outputs_expect_refusal(outputs_fixture, "/layers/1/output", "has 4 tokens, but other arrays have 5");
    H5Fclose(create_layers(H5T_STD_U8LE, H5P_DEFAULT, TOKENS, TOKENS));
    outputs_expect_refusal(outputs_fixture, "/layers/0/output", "holds uint8");
    H5Fclose(create_layers(H5T_STD_I64LE, H5P_DEFAULT, TOKENS, TOKENS));
    outputs_expect_refusal(outputs_fixture, "/layers/0/output", "element type");
    hid_t file = create_layers(H5T_IEEE_F32LE, H5P_DEFAULT, TOKENS, TOKENS);
    put(file, "/layers/1/intermediate", H5T_STD_U16LE, 3, stage, H5P_DEFAULT, H5T_NATIVE_UINT16, NULL);
    H5Fclose(file);
    outputs_expect_refusal(outputs_fixture, "/layers/1/intermediate",
                           "has shape [5, 32, 2]; write [tokens, top_k, intermediate]");
    outputs_expect_refusal(outputs_one_layer, "/layers/1", "only 1 layers");
    file = create_hdf5();
    put(file, "/layers/0/output", H5T_IEEE_F32LE, 2, narrow, H5P_DEFAULT, H5T_NATIVE_FLOAT, NULL);
    H5Fclose(file);
    outputs_expect_refusal(outputs_fixture, "/layers/0/output", "has shape [5, 95]; write [tokens, hidden] = [5, 96]");
    file = create_hdf5();
    put(file, "/layers/1/output", H5T_IEEE_F32LE, 2, narrow, H5P_DEFAULT, H5T_NATIVE_FLOAT, NULL);
    H5Fclose(file);
    outputs_expect_refusal(outputs_fixture, "/layers/0", "missing");
    const hid_t creations[] = {H5P_DEFAULT, chunked, external};
    static const char *const says[] = {"no data", "no data", "another place"};
    for (int i = 0; i < 3; i++) {
        file = create_hdf5();
        put(file, "/layers/0/output", H5T_IEEE_F32LE, 2, right, creations[i], H5T_NATIVE_FLOAT, NULL);
        H5Fclose(file);
        outputs_expect_refusal(outputs_one_layer, "/layers/0/output", says[i]);
    }
    H5Pclose(chunked);
    H5Pclose(external);
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
            narrow[l][i] = outputs_narrow(l, i);
            stack[l * VALUES + i] = wide[l][i] = outputs_value(l, i);
            bits[l][i] = outputs_bf16(l, i);
        }
    for (size_t i = 0; i < sizeof stage / sizeof *stage; i++)
        stage[i] = outputs_bf16(3, i);
    struct gb_tensor t[] = {
        {"layers.0.output", GB_DTYPE_F32, 2, {TOKENS, HIDDEN}, VALUES, narrow[0]},
        {"layers.1.output", GB_DTYPE_F32, 2, {TOKENS, HIDDEN}, VALUES, narrow[1]},
        {"layers.0.intermediate", GB_DTYPE_BF16, 3, {TOKENS, TOP_K, INTERMEDIATE}, sizeof stage / sizeof *stage, stage},
        {"layers.1.intermediate", GB_DTYPE_BF16, 3, {TOKENS, TOP_K, INTERMEDIATE}, sizeof stage / sizeof *stage, stage},
        {"stack.output", GB_DTYPE_F64, 3, {LAYERS, TOKENS, HIDDEN}, LAYERS * VALUES, stack},
    };
    assert_int_equal(gb_safetensors_write(outputs_path, t, 3, &error), GB_OK);
    outputs_expect_refusal(outputs_fixture, "layers.1.intermediate", "is missing, but layer 0 has it");
    assert_int_equal(gb_safetensors_write(outputs_path, t, 5, &error), GB_OK);
    outputs_check_float(outputs = outputs_read(outputs_fixture), TOKENS, false);
    for (uint32_t l = 0; l < LAYERS; l++)
        same_bytes(outputs->layer[l].intermediate, stage, sizeof stage);
    same_bytes(outputs->stack, stack, sizeof stack);
    gb_outputs_free(outputs);
    outputs_expect_refusal(outputs_one_layer, "layers.1.output", "only 1 layers");

    for (uint32_t l = 0; l < LAYERS; l++) {
        t[l].dtype = GB_DTYPE_F64;
        t[l].data = wide[l];
    }
    assert_int_equal(gb_safetensors_write(outputs_path, t, 2, &error), GB_OK);
    outputs_check_float(outputs = outputs_read(outputs_fixture), TOKENS, true);
    gb_outputs_free(outputs);
    for (uint32_t l = 0; l < LAYERS; l++) {
        t[l].dtype = GB_DTYPE_BF16;
        t[l].data = bits[l];
    }
    assert_int_equal(gb_safetensors_write(outputs_path, t, 2, &error), GB_OK);
    outputs_check_bf16(outputs = outputs_read(outputs_fixture));
    gb_outputs_free(outputs);

    assert_int_equal(gb_safetensors_write(outputs_path, t, 1, &error), GB_OK);
    outputs_expect_refusal(outputs_fixture, "layers.1.output", "missing");
    t[1] = (struct gb_tensor){"layers.1.output", GB_DTYPE_I32, 2, {TOKENS, HIDDEN}, VALUES, integers};
    assert_int_equal(gb_safetensors_write(outputs_path, t, 2, &error), GB_OK);
    outputs_expect_refusal(outputs_fixture, "layers.1.output", "I32");
    t[1] = (struct gb_tensor){"layers.1.output", GB_DTYPE_F32, 4, {1, 1, TOKENS, HIDDEN}, VALUES, narrow[1]};
    assert_int_equal(gb_safetensors_write(outputs_path, t, 2, &error), GB_OK);
    outputs_expect_refusal(outputs_fixture, "layers.1.output", "[1, 1, 5, 96]");
}

static void other_files(void **state)
{
    (void)state;
    static const char *const contents[] = {"", "x", "neither of them, but longer than any magic"};
    struct gb_outputs *outputs;
    struct gb_error error;
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        FILE *file = fopen(outputs_path, "w");
        fputs(contents[i], file);
        fclose(file);
        outputs_expect_refusal(outputs_fixture, "neither HDF5", "safetensors");
    }
    assert_int_equal(gb_outputs_read("/nonexistent", outputs_fixture, &outputs, &error), GB_EIO);
    assert_int_equal(gb_outputs_read(outputs_folder, outputs_fixture, &outputs, &error), GB_EIO);
    outputs = NULL;
    assert_int_equal(gb_outputs_new(&shape, 1, GB_FP32, false, false, &outputs, &error), GB_OK);
    assert_int_equal(gb_outputs_write("/nonexistent/a.h5", outputs, &error), GB_EIO);
    gb_outputs_free(outputs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_is_read), cmocka_unit_test(sizes_are_checked),     cmocka_unit_test(hdf5_of_others),
        cmocka_unit_test(wrong_hdf5),      cmocka_unit_test(safetensors_of_others), cmocka_unit_test(other_files),
    };
    return cmocka_run_group_tests(tests, outputs_set_up, outputs_tear_down);
}
