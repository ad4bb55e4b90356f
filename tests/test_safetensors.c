/* SPDX-License-Identifier: Apache-2.0 */
/* fixtures/safetensors: every fault a header can have is named; what is written is read back. */
#include "tests/check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixtures/fixtures.h"

static char folder[] = "/tmp/gaugeblock-safetensors-XXXXXX";
static char path[64];

/* A file of this header length field, header text and count of data bytes 0, 1, 2, ... */
static void write_raw(uint64_t length, const char *header, size_t data)
{
    unlink(path); /* some file systems wait for storage where a file is overwritten */
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(&length, sizeof length, 1, file);
    fputs(header, file);
    for (size_t i = 0; i < data; i++)
        fputc((int)(i & 255), file);
    assert_int_equal(fclose(file), 0);
}

static void write_file(const char *header, size_t data)
{
    write_raw(strlen(header), header, data);
}

static void expect_refusal(const char *what)
{
    struct gb_safetensors *file;
    struct gb_error error = {""};
    enum gb_status status = gb_safetensors_open(path, &file, &error);
    if (status != GB_EFORMAT)
        fail_msg("%s: got %s", what, gb_status_name(status));
    assert_null(file);
    if (strncmp(error.message, path, strlen(path)) || !strstr(error.message, what) || strchr(error.message, '\n'))
        fail_msg("'%s' does not say '%s'", error.message, what);
}

static void wrong_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *says;
    } cases[] = {
        {"", 0, "header: invalid JSON"},
        {"{", 0, "header: invalid JSON"},
        {"[]", 0, "header: is no JSON object"},
        {"{} {}", 0, "header: invalid JSON"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, "duplicate"},
        {"{\"a\":3}", 0, "a: is no JSON object"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "a: data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "a: data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1.0]}}", 1, "a: data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}}", 1, "a: data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, "a: data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,99999999999999999999]}}", 1, "too big integer"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":3,\"data_offsets\":[0,1]}}", 1, "a: shape"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, "a: shape"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,1]}}", 1, "a: shape"},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0, "a: shape"},
        {"{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "a: dtype"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, "need 2"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,7]}}", 7, "need 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "a: ends at byte 8"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3, "b: data_offsets: overlap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]}}",
         5, "b: data_offsets: leave a hole"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3, "a: data_offsets: leave a hole"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 4, "2 bytes behind"},
        {"{\"a\\nb\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,9]}}", 2, "a?b: ends at byte 9"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(cases[i].header, cases[i].data);
        expect_refusal(cases[i].says);
    }
    write_raw(100000001, "{}", 0);
    expect_refusal("header: 100000001 bytes");
    write_raw(3, "{}", 0);
    expect_refusal("truncated");
    write_raw(UINT64_MAX, "{}", 0);
    expect_refusal("header");
}

/* A file cut anywhere is refused, and where tensors are lost, one is named. */
static void truncated_files(void **state)
{
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"first\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},"
                                 "\"last\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[6,10]}}";
    const off_t data = 8 + (off_t)strlen(header);
    for (off_t size = 0; size < data + 10; size++) {
        write_file(header, 10);
        assert_int_equal(truncate(path, size), 0);
        expect_refusal(size >= data ? (size < data + 6 ? "ends at" : "last: ends at byte 10") : "");
    }
}

/* With any bit of the header flipped: refused, or every element handed out lies in the file's 14 bytes of data. */
static void flipped_bits(void **state)
{
    (void)state;
    static const size_t sizes[] = {
        [GB_DTYPE_F64] = 8, [GB_DTYPE_F32] = 4, [GB_DTYPE_F16] = 2,     [GB_DTYPE_BF16] = 2,   [GB_DTYPE_I64] = 8,
        [GB_DTYPE_I32] = 4, [GB_DTYPE_U8] = 1,  [GB_DTYPE_F8_E4M3] = 1, [GB_DTYPE_F8_E8M0] = 1};
    volatile double last;
    uint64_t random = 5;
    static const char header[] = "{\"first\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},"
                                 "\"last\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[6,14]}}";
    for (int i = 0; i < 4000; i++) {
        struct gb_safetensors *file;
        char changed[sizeof header];
        size_t bytes = 0;
        memcpy(changed, header, sizeof header);
        changed[random_below(&random, sizeof header - 1)] ^= (char)(1 << random_below(&random, 7));
        write_raw(sizeof header - 1, changed, 14);
        if (gb_safetensors_open(path, &file, NULL) != GB_OK)
            continue;
        for (size_t t = 0; t < gb_safetensors_count(file); t++) {
            const struct gb_tensor *tensor = gb_safetensors_at(file, t);
            bytes += tensor->count * sizes[tensor->dtype];
            for (uint64_t e = 0; e < tensor->count; e++)
                last = gb_tensor_get(tensor, e);
        }
        assert_in_range(bytes, 0, 14);
        gb_safetensors_close(file);
    }
    (void)last;
}

/* Metadata, padding, scalars, empty tensors, and types that are not read. */
static void good_headers(void **state)
{
    (void)state;
    struct gb_safetensors *file;
    struct gb_error error = {""};
    write_file("{\"__metadata__\":{\"a\":\"b\"},"
               "\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},"
               "\"eight\":{\"dtype\":\"F8_E5M2\",\"shape\":[2],\"data_offsets\":[1,3]},"
               "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[3,3]},"
               "\"deep\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1],\"data_offsets\":[3,4]},"
               "\"four\":{\"dtype\":\"U8\",\"shape\":[1,2,1,1],\"data_offsets\":[4,6]}}   ",
               6);
    if (gb_safetensors_open(path, &file, &error) != GB_OK)
        fail_msg("%s", error.message);
    assert_int_equal(gb_safetensors_count(file), 3);
    assert_null(gb_safetensors_find(file, "eight"));
    assert_null(gb_safetensors_find(file, "deep"));
    assert_null(gb_safetensors_find(file, "__metadata__"));
    assert_null(gb_safetensors_find(file, "missing"));
    assert_int_equal(gb_safetensors_find(file, "scalar")->rank, 0);
    assert_int_equal(gb_safetensors_find(file, "scalar")->count, 1);
    assert_int_equal(gb_safetensors_find(file, "empty")->count, 0);
    const struct gb_tensor *four = gb_safetensors_find(file, "four");
    assert_int_equal(four->rank, 4);
    assert_int_equal(four->shape[1], 2);
    assert_true(gb_tensor_get(four, 1) == 5);
    gb_safetensors_close(file);
    write_file("{}", 0);
    assert_int_equal(gb_safetensors_open(path, &file, &error), GB_OK);
    assert_int_equal(gb_safetensors_count(file), 0);
    gb_safetensors_close(file);
    gb_safetensors_close(NULL);
}

/* One tensor a type, of sizes that leave later ones unaligned were they stored as given. */
static void written_is_read(void **state)
{
    (void)state;
    const uint8_t u8[3] = {1, 128, 255};
    const double f64[2] = {0.1, -1e300};
    const float f32[3] = {0.1f, -2, 3};
    const uint16_t f16[3] = {0x3C00, 0xC000, 0x0001}, bf16[2] = {0x3F80, 0xC049};
    const int64_t i64[1] = {-(1ll << 53)};
    const int32_t i32[2] = {INT32_MIN, 7};
    const struct gb_tensor tensors[] = {
        {"u8", GB_DTYPE_U8, 1, {3}, 3, u8},
        {"f64", GB_DTYPE_F64, 2, {2, 1}, 2, f64},
        {"bf16", GB_DTYPE_BF16, 1, {2}, 2, bf16},
        {"f32", GB_DTYPE_F32, 3, {1, 3, 1}, 3, f32},
        {"i64", GB_DTYPE_I64, 0, {0}, 1, i64},
        {"f16 \"quoted\" \xc3\xa9", GB_DTYPE_F16, 1, {3}, 3, f16},
        {"i32", GB_DTYPE_I32, 4, {1, 1, 2, 1}, 2, i32},
    };
    const double values[][3] = {{1, 128, 255}, {0.1, -1e300},    {1, -3.140625}, {0.1f, -2, 3},
                                {-0x1p53},     {1, -2, 0x1p-24}, {INT32_MIN, 7}};
    enum { COUNT = sizeof tensors / sizeof *tensors };
    struct gb_safetensors *file = NULL;
    struct gb_error error = {""};
    if (gb_safetensors_write(path, tensors, COUNT, &error) != GB_OK ||
        gb_safetensors_open(path, &file, &error) != GB_OK)
        fail_msg("%s", error.message);
    assert_int_equal(gb_safetensors_count(file), COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        const struct gb_tensor *tensor = gb_safetensors_find(file, tensors[i].name);
        assert_non_null(tensor);
        assert_int_equal(tensor->dtype, tensors[i].dtype);
        assert_int_equal(tensor->rank, tensors[i].rank);
        assert_memory_equal(tensor->shape, tensors[i].shape, tensor->rank * sizeof *tensor->shape);
        for (uint64_t e = 0; e < tensor->count; e++)
            assert_true(gb_tensor_get(tensor, e) == values[i][e]);
    }
    assert_int_equal((uintptr_t)gb_safetensors_find(file, "f64")->data % 8, 0);
    assert_int_equal((uintptr_t)gb_safetensors_find(file, "f32")->data % 4, 0);
    gb_safetensors_close(file);
}

static void wrong_tensors(void **state)
{
    (void)state;
    const uint8_t u8[2] = {1, 2};
    struct gb_error error = {""};
    const struct gb_tensor twice[] = {{"a", GB_DTYPE_U8, 1, {2}, 2, u8}, {"a", GB_DTYPE_U8, 1, {2}, 2, u8}};
    const struct gb_tensor wrong[] = {
        {"count", GB_DTYPE_U8, 1, {2}, 3, u8},
        {"rank", GB_DTYPE_U8, 5, {1, 1, 1, 1}, 1, u8},
        {"overflow", GB_DTYPE_U8, 2, {1ull << 32, 1ull << 32}, 0, u8},
        {"dtype", (enum gb_dtype)99, 1, {2}, 2, u8},
        {"__metadata__", GB_DTYPE_U8, 1, {2}, 2, u8},
        {"not utf-8 \xff", GB_DTYPE_U8, 1, {2}, 2, u8},
    };
    unlink(path);
    assert_int_equal(gb_safetensors_write(path, twice, 2, &error), GB_EINVAL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(gb_safetensors_write(path, &wrong[i], 1, &error), GB_EINVAL);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(gb_safetensors_write("/nonexistent/a", twice, 1, &error), GB_EIO);
    assert_non_null(strstr(error.message, "/nonexistent/a"));
}

static void other_files(void **state)
{
    (void)state;
    struct gb_safetensors *file;
    struct gb_error error;
    assert_int_equal(gb_safetensors_open("/nonexistent/a", &file, &error), GB_EIO);
    assert_int_equal(gb_safetensors_open(folder, &file, &error), GB_EIO);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(gb_safetensors_open(path, &file, &error), GB_EIO);
    unlink(path);
}

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a.safetensors", folder);
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
        cmocka_unit_test(wrong_headers), cmocka_unit_test(truncated_files), cmocka_unit_test(flipped_bits),
        cmocka_unit_test(good_headers),  cmocka_unit_test(written_is_read), cmocka_unit_test(wrong_tensors),
        cmocka_unit_test(other_files),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
