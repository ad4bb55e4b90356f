/* SPDX-License-Identifier: Apache-2.0 */
/* fixtures/: a good file with one thing wrong is refused, and the message names it. */
#include "tests/damaged_fixture.h"

#include <unistd.h>

#include <hdf5.h>

/* Every dataset of the good file, with whether it may be absent beside a stack. */
static const struct {
    const char *path;
    bool optional;
} datasets[] = {
    {"/layers/0/x", false},
    {"/layers/1/routing/ids", false},
    {"/layers/0/routing/weights", false},
    {"/layers/1/gate_up/codes", false},
    {"/layers/0/gate_up/scales", false},
    {"/layers/1/gate_up/global_scales", false},
    {"/layers/0/down/codes", false},
    {"/layers/1/down/scales", false},
    {"/layers/0/down/global_scales", false},
    {"/layers/1/router/weight", false},
    {"/layers/0/norm/weight", false},
    {"/layers/1/truth/routing_weights", false},
    {"/layers/0/truth/quantised", false},
    {"/layers/1/truth/original", false},
    {"/stack/residual", true},
    {"/stack/attention_delta", true},
    {"/stack/truth/quantised", true},
    {"/stack/truth/original", true},
};
enum { DATASETS = sizeof datasets / sizeof *datasets };

/* A copy of the good file, open for a change. */
static hid_t open_copy(void)
{
    damaged_copy();
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    hid_t file = H5Fopen(damaged_bad, H5F_ACC_RDWR, access);
    assert_true(file >= 0);
    H5Pclose(access);
    return file;
}

/* Datasets changed by a new one in their place. */

struct change {
    hid_t type;  /* 0: as it was */
    bool longer; /* first dimension + 1 */
    bool contiguous;
    bool unwritten;
    bool compressed; /* a second filter */
};

static herr_t copy_attribute(hid_t from, const char *name, const H5A_info_t *info, void *to)
{
    char value[256];
    (void)info;
    hid_t old = H5Aopen(from, name, H5P_DEFAULT), type = H5Aget_type(old), space = H5Aget_space(old);
    hid_t made = H5Acreate2(*(hid_t *)to, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    herr_t result = H5Aread(old, type, value) < 0 || H5Awrite(made, type, value) < 0 ? -1 : 0;
    H5Aclose(made);
    H5Sclose(space);
    H5Tclose(type);
    H5Aclose(old);
    return result;
}

static void replace(hid_t file, const char *path, const struct change *change)
{
    hsize_t dims[3];
    static double values[1 << 16];
    hid_t old = H5Dopen2(file, path, H5P_DEFAULT), space = H5Dget_space(old), type = H5Dget_type(old);
    hid_t native = H5Tget_native_type(type, H5T_DIR_ASCEND), creation = H5Dget_create_plist(old);
    assert_true(H5Dread(old, native, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    int rank = H5Sget_simple_extent_dims(space, dims, NULL);
    dims[0] += change->longer;
    hid_t new_space = H5Screate_simple(rank, dims, NULL);
    if (change->contiguous) {
        H5Premove_filter(creation, H5Z_FILTER_FLETCHER32);
        H5Pset_layout(creation, H5D_CONTIGUOUS);
    }
    if (change->compressed)
        H5Pset_shuffle(creation);
    assert_true(H5Ldelete(file, path, H5P_DEFAULT) >= 0);
    hid_t made =
        H5Dcreate2(file, path, change->type ? change->type : type, new_space, H5P_DEFAULT, creation, H5P_DEFAULT);
    assert_true(made >= 0);
    if (!change->unwritten)
        assert_true(H5Dwrite(made, native, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    assert_true(H5Aiterate2(old, H5_INDEX_NAME, H5_ITER_INC, NULL, copy_attribute, &made) >= 0);
    H5Dclose(made);
    H5Sclose(new_space);
    H5Pclose(creation);
    H5Tclose(native);
    H5Tclose(type);
    H5Sclose(space);
    H5Dclose(old);
}

static void replaced_everywhere(const struct change *change, const char *what)
{
    for (size_t i = 0; i < DATASETS; i++) {
        hid_t file = open_copy();
        replace(file, datasets[i].path, change);
        H5Fclose(file);
        damaged_expect_refusal(datasets[i].path, what);
    }
}

static void wrong_datasets(void **state)
{
    (void)state;
    replaced_everywhere(&(struct change){.type = H5T_STD_I64LE}, "element type");
    replaced_everywhere(&(struct change){.type = H5T_IEEE_F32BE}, "element type");
    replaced_everywhere(&(struct change){.longer = true}, "shape");
    replaced_everywhere(&(struct change){.contiguous = true}, "checksum");
    replaced_everywhere(&(struct change){.compressed = true}, "checksum");
    replaced_everywhere(&(struct change){.unwritten = true}, "no data");
}

/* A required dataset is missed by name; without an optional one the inputs are others, or the stack is broken. */
static void missing_datasets(void **state)
{
    (void)state;
    for (size_t i = 0; i < DATASETS; i++) {
        hid_t file = open_copy();
        assert_true(H5Ldelete(file, datasets[i].path, H5P_DEFAULT) >= 0);
        H5Fclose(file);
        if (!datasets[i].optional || !strncmp(datasets[i].path, "/stack/truth", 12) ||
            !strcmp(datasets[i].path, "/stack/residual"))
            damaged_expect_refusal(datasets[i].path, "missing");
        else
            damaged_expect_refusal("input_sha256", "hash");
    }
}

static void links_elsewhere(void **state)
{
    (void)state;
    hid_t file = open_copy();
    H5Lmove(file, "/layers/0/x", file, "/kept", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("/kept", file, "/layers/0/x", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    damaged_expect_refusal("/layers/0/x", "link");
    file = open_copy();
    H5Ldelete(file, "/layers/1", H5P_DEFAULT);
    H5Lcreate_external(damaged_good, "/layers/1", file, "/layers/1", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    damaged_expect_refusal("/layers/1", "link");
    file = open_copy();
    H5Lcreate_hard(file, "/layers/1", file, "/layers/2", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    damaged_expect_refusal("/layers", "3 groups");
}

/* Attributes. A wrong one is made from the good one: left out, a long text, a variable-length text, a number. */

static void put_text(hid_t object, const char *name, const char *text, size_t size)
{
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    H5Tset_size(type, size);
    hid_t attribute = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(H5Awrite(attribute, type, size == H5T_VARIABLE ? (const void *)&text : text) >= 0);
    H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
}

static void put_number(hid_t object, const char *name, int64_t value, int rank)
{
    hsize_t one = 1;
    hid_t space = rank ? H5Screate_simple(1, &one, NULL) : H5Screate(H5S_SCALAR);
    hid_t attribute = H5Acreate2(object, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(H5Awrite(attribute, H5T_NATIVE_INT64, &value) >= 0);
    H5Aclose(attribute);
    H5Sclose(space);
}

enum attribute_change { LEFT_OUT, VARIABLE_TEXT, FIXED_TEXT, NUMBER, VECTOR };

/* text, or number, as the change asks. */
static void wrong_attribute(const char *path, const char *name, enum attribute_change change, const char *text,
                            int64_t number, const char *what)
{
    hid_t file = open_copy(), object = H5Oopen(file, path, H5P_DEFAULT);
    assert_true(H5Adelete(object, name) >= 0);
    if (change == VARIABLE_TEXT || change == FIXED_TEXT)
        put_text(object, name, text, change == FIXED_TEXT ? strlen(text) : H5T_VARIABLE);
    if (change == NUMBER || change == VECTOR)
        put_number(object, name, number, change == VECTOR);
    H5Oclose(object);
    H5Fclose(file);
    damaged_expect_refusal(name, what);
}

static void wrong_texts(void **state)
{
    (void)state;
    static const char *const names[] = {"schema",   "kind",      "byte_order", "activations",   "weights",     "recipe",
                                        "contract", "generator", "source",     "source_sha256", "input_sha256"};
    char long_text[400];
    memset(long_text, 'a', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        wrong_attribute("/", names[i], LEFT_OUT, NULL, 0, "missing");
        wrong_attribute("/", names[i], VARIABLE_TEXT, "text", 0, "fixed-length");
        wrong_attribute("/", names[i], FIXED_TEXT, "two\nlines", 0, "control character");
        wrong_attribute("/", names[i], FIXED_TEXT, long_text, 0, "too long");
        wrong_attribute("/", names[i], NUMBER, NULL, 1, "fixed-length");
    }
    wrong_attribute("/", "schema", FIXED_TEXT, "something-else", 0, "something-else");
    wrong_attribute("/", "kind", FIXED_TEXT, "virtual", 0, "'virtual'");
    wrong_attribute("/", "weights", FIXED_TEXT, "int4", 0, "int4");
    wrong_attribute("/", "weights", FIXED_TEXT, "fp32", 0, "fp32");
    wrong_attribute("/layers/0/x", "format", FIXED_TEXT, "fp16", 0, "fp16");
    wrong_attribute("/layers/0/gate_up/codes", "layout", FIXED_TEXT, "swizzled", 0, "swizzled");
    wrong_attribute("/layers/0/down/scales", "recipe", FIXED_TEXT, "other/1", 0, "other/1");
}

static void wrong_numbers(void **state)
{
    (void)state;
    static const char *const sizes[] = {"layers", "tokens", "hidden", "intermediate", "experts", "top_k"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        wrong_attribute("/", sizes[i], LEFT_OUT, NULL, 0, "missing");
        wrong_attribute("/", sizes[i], FIXED_TEXT, "5", 0, "integer");
        wrong_attribute("/", sizes[i], VECTOR, NULL, 5, "scalar");
        wrong_attribute("/", sizes[i], NUMBER, NULL, 0, "out of range");
        wrong_attribute("/", sizes[i], NUMBER, NULL, -5, "out of range");
        wrong_attribute("/", sizes[i], NUMBER, NULL, 1ll << 31, "out of range");
    }
    wrong_attribute("/", "schema_version", NUMBER, NULL, 2, "version 1");
    wrong_attribute("/", "renormalise", NUMBER, NULL, 2, "out of range");
    wrong_attribute("/", "seed", LEFT_OUT, NULL, 0, "missing");
    wrong_attribute("/", "seed", NUMBER, NULL, -1, "out of range");
    wrong_attribute("/", "rms_norm_epsilon", NUMBER, NULL, 1, "float");
    wrong_attribute("/", "top_k", NUMBER, NULL, 4, "experts");
    wrong_attribute("/", "hidden", NUMBER, NULL, 90, "multiples");
    wrong_attribute("/layers/1", "index", NUMBER, NULL, -1, "out of range");
    wrong_attribute("/layers/1", "index", LEFT_OUT, NULL, 0, "missing");
}

/* Sizes that no file could hold are refused from the datasets' shapes, before memory is taken. */
static void huge_sizes(void **state)
{
    (void)state;
    hid_t file = open_copy(), root = H5Gopen2(file, "/", H5P_DEFAULT);
    static const char *const sizes[] = {"tokens", "hidden", "intermediate", "experts"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        H5Adelete(root, sizes[i]);
        put_number(root, sizes[i], 0x7FFFFFE0, 0);
    }
    H5Gclose(root);
    H5Fclose(file);
    damaged_expect_refusal("gate_up", "memory");
    file = open_copy();
    root = H5Gopen2(file, "/", H5P_DEFAULT);
    H5Adelete(root, "layers");
    put_number(root, "layers", 0x7FFFFFFF, 0);
    H5Gclose(root);
    H5Fclose(file);
    damaged_expect_refusal("/layers", "2147483647");
}

/* Values. */

static void put_element(const char *path, size_t element, hid_t type, const void *value)
{
    static double values[1 << 16];
    hid_t file = open_copy(), dataset = H5Dopen2(file, path, H5P_DEFAULT);
    assert_true(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    memcpy((char *)values + element * H5Tget_size(type), value, H5Tget_size(type));
    assert_true(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    H5Dclose(dataset);
    H5Fclose(file);
}

static void wrong_ids(void **state)
{
    (void)state;
    static const char path[] = "/layers/0/routing/ids";
    const int32_t values[] = {3, -2, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        put_element(path, 7, H5T_NATIVE_INT32, &values[i]);
        damaged_expect_refusal(path, "of token 3 is out of range 0..2");
    }
    put_element(path, 5, H5T_NATIVE_INT32, &damaged_content->layer[0].ids[4]);
    damaged_expect_refusal(path, "chosen twice by token 2");
}

static void wrong_values(void **state)
{
    (void)state;
    const double reals[] = {NAN, INFINITY, -INFINITY};
    const float scales[] = {NAN, INFINITY, 0, -1};
    const uint8_t e4m3[] = {0x7F, 0x80, 0x81, 0xFF};
    const uint16_t bf16[] = {0x7F80, 0xFF80, 0x7FC1};
    static const char *const truths[] = {
        "/layers/0/truth/routing_weights", "/layers/1/truth/quantised", "/layers/0/truth/original", "/stack/residual",
        "/stack/attention_delta",          "/stack/truth/quantised",    "/stack/truth/original"};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        const float narrow = (float)reals[i];
        for (size_t t = 0; t < sizeof truths / sizeof *truths; t++) {
            put_element(truths[t], 9, H5T_NATIVE_DOUBLE, &reals[i]);
            damaged_expect_refusal(truths[t], "is not finite");
        }
        put_element("/layers/1/routing/weights", 9, H5T_NATIVE_FLOAT, &narrow);
        damaged_expect_refusal("/layers/1/routing/weights", "element [4, 1] is not finite");
        put_element("/layers/1/norm/weight", 9, H5T_NATIVE_FLOAT, &narrow);
        damaged_expect_refusal("/layers/1/norm/weight", "element [9] is not finite");
        put_element("/layers/1/x", 97, H5T_NATIVE_UINT16, &bf16[i]);
        damaged_expect_refusal("/layers/1/x", "element [1, 1] is not finite");
        put_element("/layers/0/router/weight", 97, H5T_NATIVE_UINT16, &bf16[i]);
        damaged_expect_refusal("/layers/0/router/weight", "is not finite");
    }
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        put_element("/layers/0/gate_up/global_scales", 3, H5T_NATIVE_FLOAT, &scales[i]);
        damaged_expect_refusal("/layers/0/gate_up/global_scales", "element [1, 1] is not");
        put_element("/layers/1/down/global_scales", 2, H5T_NATIVE_FLOAT, &scales[i]);
        damaged_expect_refusal("/layers/1/down/global_scales", "element [2, 0] is not");
        put_element("/layers/1/down/scales", 2, H5T_NATIVE_UINT8, &e4m3[i]);
        damaged_expect_refusal("/layers/1/down/scales", "element [0, 1, 0] is");
    }
}

/* One changed bit of every input is noticed by the hash. */
static void changed_inputs(void **state)
{
    (void)state;
    const uint16_t x = damaged_content->layer[1].x[50].bits ^ 1;
    const uint8_t code = ((const uint8_t *)damaged_content->layer[0].gate_up.codes)[77] ^ 0x10;
    const float weight = damaged_content->layer[0].routing_weights[2] * 2;
    put_element("/layers/1/x", 50, H5T_NATIVE_UINT16, &x);
    damaged_expect_refusal("input_sha256", "hash");
    put_element("/layers/0/gate_up/codes", 77, H5T_NATIVE_UINT8, &code);
    damaged_expect_refusal("input_sha256", "hash");
    put_element("/layers/0/routing/weights", 2, H5T_NATIVE_FLOAT, &weight);
    damaged_expect_refusal("input_sha256", "hash");
}

int main(void)
{
    gb_hdf5_no_atexit();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_datasets), cmocka_unit_test(missing_datasets), cmocka_unit_test(links_elsewhere),
        cmocka_unit_test(wrong_texts),    cmocka_unit_test(wrong_numbers),    cmocka_unit_test(huge_sizes),
        cmocka_unit_test(wrong_ids),      cmocka_unit_test(wrong_values),     cmocka_unit_test(changed_inputs),
    };
    return cmocka_run_group_tests(tests, damaged_set_up, damaged_tear_down);
}
