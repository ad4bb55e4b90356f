/* SPDX-License-Identifier: Apache-2.0 */
/* fixtures/: damage of any byte never crashes the reader, and is never read as other content. */
#include "tests/damaged_fixture.h"

#include <fcntl.h>
#include <unistd.h>

#include <hdf5.h>

/* Reads the bad file; if it is accepted, its content must be that of the good one. Returns whether it was refused. */
static bool refused_or_same(void)
{
    struct gb_fixture *f;
    struct gb_error error = {""};
    enum gb_status status = gb_fixture_read(damaged_bad, &f, &error);
    if (status != GB_OK) {
        assert_true(status == GB_EFORMAT || status == GB_EIO || status == GB_ENOMEM);
        assert_int_equal(strncmp(error.message, damaged_bad, strlen(damaged_bad)), 0);
        return true;
    }
    same_fixture(damaged_content, f);
    gb_fixture_free(f);
    return false;
}

static void truncated_files(void **state)
{
    (void)state;
    damaged_copy();
    int file = open(damaged_bad, O_RDWR);
    for (off_t size = lseek(file, 0, SEEK_END) - 1; size >= 0; size -= size > 256 ? 251 : 1) {
        assert_int_equal(ftruncate(file, size), 0);
        assert_true(refused_or_same());
    }
    close(file);
}

static void flipped_bits(void **state)
{
    (void)state;
    uint64_t random = 11;
    size_t refused = 0;
    damaged_copy();
    int file = open(damaged_bad, O_RDWR);
    off_t size = lseek(file, 0, SEEK_END);
    for (int i = 0; i < 2000; i++) {
        /* Half of them in the first 4 KiB, where the superblock and the root group lie. */
        off_t at = random_below(&random, i % 2 ? (uint32_t)size : 4096);
        uint8_t byte, bit = (uint8_t)(1 << random_below(&random, 8)), flipped;
        assert_int_equal(pread(file, &byte, 1, at), 1);
        flipped = byte ^ bit;
        assert_int_equal(pwrite(file, &flipped, 1, at), 1);
        refused += refused_or_same();
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
    }
    close(file);
    assert_true(refused > 1000);
}

/* HDF5's own error printing stays off, and is put back. */
static void prints_nothing(void **state)
{
    (void)state;
    char log[80];
    snprintf(log, sizeof log, "%s/stderr", damaged_folder);
    damaged_copy();
    assert_int_equal(truncate(damaged_bad, 5000), 0);
    fflush(stderr);
    int kept = dup(STDERR_FILENO), file = open(log, O_RDWR | O_CREAT, 0600);
    dup2(file, STDERR_FILENO);
    bool refused = refused_or_same();
    off_t quiet = lseek(file, 0, SEEK_END);
    H5Fopen("/nonexistent", H5F_ACC_RDONLY, H5P_DEFAULT);
    off_t loud = lseek(file, 0, SEEK_END);
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(file);
    unlink(log);
    assert_true(refused);
    assert_int_equal(quiet, 0);
    assert_true(loud > 0);
}

static void other_files(void **state)
{
    (void)state;
    struct gb_fixture *f;
    struct gb_error error;
    assert_int_equal(gb_fixture_read("/nonexistent/a.h5", &f, &error), GB_EIO);
    assert_int_equal(gb_fixture_read(damaged_folder, &f, &error), GB_EIO);
    int file = open(damaged_bad, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(write(file, "no HDF5", 7), 7);
    close(file);
    damaged_expect_refusal("", "no HDF5 file");
}

int main(void)
{
    gb_hdf5_no_atexit();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(truncated_files),
        cmocka_unit_test(flipped_bits),
        cmocka_unit_test(prints_nothing),
        cmocka_unit_test(other_files),
    };
    return cmocka_run_group_tests(tests, damaged_set_up, damaged_tear_down);
}
