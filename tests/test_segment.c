/* SPDX-License-Identifier: Apache-2.0 */
/* Fixtures handed from process to process in memory: as they were read, whole, and each process's own where it writes.
 */
#define _GNU_SOURCE
#include "tests/fixture_problem.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

static char path[] = "/tmp/gaugeblock-segment-XXXXXX";

/* The file's fixture behind a new descriptor. */
static int send_file(void)
{
    struct gb_error error = {""};
    int descriptor = memfd_create("fixture", MFD_CLOEXEC);
    assert_true(descriptor >= 0);
    if (gb_fixture_send(path, descriptor, &error) != GB_OK)
        fail_msg("%s", error.message);
    return descriptor;
}

static void write_file(enum gb_format format, bool router, bool stack, bool attention)
{
    struct gb_error error = {""};
    struct gb_fixture *written = new_fixture(format, router, stack, attention);
    if (gb_fixture_write(path, written, &error) != GB_OK)
        fail_msg("%s", error.message);
    gb_fixture_free(written);
}

static void check_shared(enum gb_format format, bool router, bool stack, bool attention)
{
    struct gb_fixture *read, *received, *attached, *again;
    write_file(format, router, stack, attention);
    int descriptor = send_file();
    assert_int_equal(gb_fixture_read(path, &read, NULL), GB_OK);
    assert_int_equal(gb_fixture_receive(path, descriptor, &received, NULL), GB_OK);
    assert_int_equal(gb_fixture_attach(descriptor, &attached, NULL), GB_OK);
    same_fixture(read, received);
    same_fixture(read, attached);
    attached->layer[1].x[3].bits ^= 1;
    ((uint8_t *)attached->layer[0].down.codes)[5] ^= 1;
    assert_int_equal(gb_fixture_attach(descriptor, &again, NULL), GB_OK);
    same_fixture(read, received);
    same_fixture(read, again);
    gb_fixture_free(attached);
    gb_fixture_free(again);
    assert_true(fcntl(descriptor, F_GETFD) >= 0);
    gb_fixture_free(received);
    assert_true(fcntl(descriptor, F_GETFD) < 0);
    gb_fixture_free(read);
}

static void as_they_were_read(void **state)
{
    static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP8, GB_BF16, GB_MXFP4, GB_FP8_BLOCK};
    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        check_shared(formats[i], true, true, true);
        check_shared(formats[i], true, true, false);
        check_shared(formats[i], false, false, false);
    }
}

/* Parts that a fixture gets later have memory of their own. */
static void parts_are_added(void **state)
{
    struct gb_fixture *received;
    (void)state;
    write_file(GB_NVFP4, true, false, false);
    assert_int_equal(gb_fixture_receive(path, send_file(), &received, NULL), GB_OK);
    assert_int_equal(gb_fixture_add(received, GB_EXTRA_BIASES, NULL), GB_OK);
    received->layer[1].gate_up_bias[0] = 1.0f;
    gb_fixture_free(received);
}

static void refuse(int descriptor, const char *what)
{
    struct gb_fixture *received;
    struct gb_error error = {""};
    enum gb_status status = gb_fixture_receive(path, descriptor, &received, &error);
    if (status != GB_EFORMAT || received || !strstr(error.message, what))
        fail_msg("status %d, '%s'; expected '%s'", (int)status, error.message, what);
    close(descriptor);
}

/* Cut anywhere, or with another input than the hash says. */
static void damaged(void **state)
{
    static const int parts = 97;
    struct gb_fixture *read;
    (void)state;
    write_file(GB_MXFP8, true, true, true);
    assert_int_equal(gb_fixture_read(path, &read, NULL), GB_OK);
    for (int part = 0; part < parts; part++) {
        int descriptor = send_file();
        off_t bytes = lseek(descriptor, 0, SEEK_END);
        assert_int_equal(ftruncate(descriptor, bytes * part / parts), 0);
        refuse(descriptor, path);
    }
    int descriptor = send_file();
    size_t bytes = (size_t)lseek(descriptor, 0, SEEK_END), x = sizeof(gb_bf16) * shape.tokens * shape.hidden;
    char *segment = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    assert_true(segment != MAP_FAILED);
    char *at = memmem(segment, bytes, read->layer[1].x, x);
    assert_non_null(at);
    at[x - 2] ^= 1;
    munmap(segment, bytes);
    refuse(descriptor, "input_sha256");
    gb_fixture_free(read);
}

static int set_up(void **state)
{
    (void)state;
    int descriptor = mkstemp(path);
    return descriptor < 0 || close(descriptor);
}

static int tear_down(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_they_were_read),
        cmocka_unit_test(parts_are_added),
        cmocka_unit_test(damaged),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
