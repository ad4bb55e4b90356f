/* SPDX-License-Identifier: Apache-2.0 */
/* fixtures/: round trips of every format, the hash, and writes that fail or are killed. */
#define _GNU_SOURCE /* O_TMPFILE */
#include "tests/fixture_problem.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "quant/quant.h"

static char folder[] = "/tmp/gaugeblock-fixture-XXXXXX";
static char path[64];

static void round_trip(enum gb_format format, bool router, bool stack, bool attention)
{
    struct gb_fixture *written = new_fixture(format, router, stack, attention), *read = NULL;
    struct gb_error error = {""};
    if (gb_fixture_write(path, written, &error) != GB_OK || gb_fixture_read(path, &read, &error) != GB_OK)
        fail_msg("%s", error.message);
    assert_int_equal(strlen(written->sha256), 64);
    same_fixture(written, read);
    gb_fixture_free(written);
    gb_fixture_free(read);
}

static void round_trips(void **state)
{
    (void)state;
    static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP8, GB_BF16, GB_MXFP4, GB_FP8_BLOCK};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        round_trip(formats[i], true, true, true);
        round_trip(formats[i], true, true, false);
        round_trip(formats[i], false, false, false);
    }
}

/* Published encoding scales come back, change the hash, and must be what the decoding ones are the reciprocals of. */
static void round_trip_of_encode_scales(void **state)
{
    (void)state;
    struct gb_fixture *plain = new_fixture(GB_NVFP4, true, false, false), *written, *read = NULL;
    struct gb_error error = {""};
    assert_int_equal(gb_fixture_write(path, plain, &error), GB_OK);
    written = new_fixture(GB_NVFP4, true, false, false);
    assert_int_equal(gb_fixture_add(written, GB_EXTRA_ENCODE_SCALES, &error), GB_OK);
    for (uint32_t l = 0; l < written->layers; l++)
        for (int down = 0; down < 2; down++) {
            struct gb_weights *w = down ? &written->layer[l].down : &written->layer[l].gate_up;
            for (uint32_t i = 0; i < w->experts * w->parts; i++) {
                written->layer[l].encode_scales[down][i] = 2688.0f + (float)(7 * i + l);
                ((float *)w->global_scales)[i] = 1.0f / written->layer[l].encode_scales[down][i];
                ((float *)(down ? &plain->layer[l].down : &plain->layer[l].gate_up)->global_scales)[i] =
                    ((float *)w->global_scales)[i];
            }
        }
    assert_int_equal(gb_fixture_write(path, plain, &error), GB_OK);
    if (gb_fixture_write(path, written, &error) != GB_OK || gb_fixture_read(path, &read, &error) != GB_OK)
        fail_msg("%s", error.message);
    assert_string_not_equal(plain->sha256, written->sha256);
    same_fixture(written, read);
    written->layer[1].encode_scales[1][2] += 1.0f;
    assert_int_equal(gb_fixture_write(path, written, &error), GB_EINVAL);
    assert_non_null(strstr(error.message, "down/encode_scales: element 2 of /layers/1"));
    gb_fixture_free(written);
    gb_fixture_free(plain);
    gb_fixture_free(read);
    plain = new_fixture(GB_MXFP4, true, false, false);
    assert_int_equal(gb_fixture_add(plain, GB_EXTRA_ENCODE_SCALES, &error), GB_EINVAL);
    gb_fixture_free(plain);
}

/* Sizes larger than a chunk in every direction. */
static void round_trip_of_many_chunks(void **state)
{
    (void)state;
    const struct gb_shape large = {.tokens = 3, .hidden = 1 << 18, .intermediate = 48, .experts = 2, .top_k = 1};
    struct gb_fixture *written, *read = NULL;
    struct gb_error error = {""};
    uint64_t random = 3;
    assert_int_equal(gb_fixture_new(&large, 1, GB_NVFP4, true, true, false, &written, &error), GB_OK);
    written->rms_norm_epsilon = 1e-5;
    strcpy(written->contract, "nvfp4.bf16.fma32/1");
    fill_weights(&random, &written->layer[0].gate_up);
    fill_weights(&random, &written->layer[0].down);
    fill_bf16(&random, written->layer[0].x, (size_t)large.tokens * large.hidden);
    fill_double(&random, written->stack.truth_original, (size_t)large.tokens * large.hidden);
    if (gb_fixture_write(path, written, &error) != GB_OK || gb_fixture_read(path, &read, &error) != GB_OK)
        fail_msg("%s", error.message);
    same_weights(&written->layer[0].gate_up, &read->layer[0].gate_up);
    same_weights(&written->layer[0].down, &read->layer[0].down);
    same_bytes(written->layer[0].x, read->layer[0].x, sizeof(gb_bf16) * large.tokens * large.hidden);
    same_bytes(written->stack.truth_original, read->stack.truth_original, sizeof(double) * large.tokens * large.hidden);
    gb_fixture_free(written);
    gb_fixture_free(read);
}

/* The hash is of the inputs: any of them changes it, truth and provenance do not. */
static void hash_is_of_inputs(void **state)
{
    (void)state;
    struct gb_fixture *f = new_fixture(GB_NVFP4, true, true, true);
    struct gb_error error = {""};
    char first[65];
    assert_int_equal(gb_fixture_write(path, f, &error), GB_OK);
    strcpy(first, f->sha256);
    f->layer[1].truth_quantised[3] += 1;
    f->layer[0].truth_routing_weights[3] += 1;
    f->stack.truth_original[5] += 1;
    f->seed = 9;
    strcpy(f->source, "elsewhere");
    assert_int_equal(gb_fixture_write(path, f, &error), GB_OK);
    assert_string_equal(first, f->sha256);
    unsigned char *const inputs[] = {
        (unsigned char *)&f->layer[1].x[7],
        (unsigned char *)&f->layer[0].routing_weights[3],
        (unsigned char *)f->layer[1].gate_up.codes + 100,
        (unsigned char *)f->layer[1].gate_up.scales + 2,
        (unsigned char *)f->layer[1].gate_up.global_scales,
        (unsigned char *)f->layer[1].down.codes + 100,
        (unsigned char *)f->layer[1].down.scales + 2,
        (unsigned char *)f->layer[1].down.global_scales,
        (unsigned char *)f->layer[1].router.codes + 4,
        (unsigned char *)&f->layer[1].norm[4],
        (unsigned char *)&f->stack.residual[4],
        (unsigned char *)&f->stack.attention_delta[4],
        (unsigned char *)&f->layer[1].index,
        (unsigned char *)&f->renormalise,
        (unsigned char *)&f->rms_norm_epsilon,
        (unsigned char *)&f->recipe[3],
    };
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        *inputs[i] ^= 1;
        assert_int_equal(gb_fixture_write(path, f, &error), GB_OK);
        if (!strcmp(first, f->sha256))
            fail_msg("input %zu is not hashed", i);
        *inputs[i] ^= 1;
    }
    gb_fixture_free(f);
}

/* Written twice, with another second on the clock: the same bytes. */
static void same_content_is_the_same_file(void **state)
{
    (void)state;
    static char bytes[2][1 << 20];
    size_t count[2];
    struct gb_fixture *f = new_fixture(GB_NVFP4, true, true, true);
    struct gb_error error = {""};
    for (int i = 0; i < 2; i++) {
        for (time_t start = time(NULL); i && time(NULL) == start;)
            usleep(1000);
        assert_int_equal(gb_fixture_write(path, f, &error), GB_OK);
        FILE *file = fopen(path, "rb");
        count[i] = fread(bytes[i], 1, sizeof bytes[i], file);
        fclose(file);
    }
    assert_int_equal(count[0], count[1]);
    assert_in_range(count[0], 1, sizeof bytes[0] - 1);
    assert_memory_equal(bytes[0], bytes[1], count[0]);
    gb_fixture_free(f);
}

static void layer_arguments(void **state)
{
    (void)state;
    struct gb_fixture *f = new_fixture(GB_NVFP4, true, false, false);
    struct gb_arguments a = gb_layer_arguments(f, 1, 3);
    assert_int_equal(a.size, sizeof a);
    assert_int_equal(a.shape.tokens, 3);
    assert_int_equal(a.shape.hidden, shape.hidden);
    assert_ptr_equal(a.x, f->layer[1].x);
    assert_ptr_equal(a.ids, f->layer[1].ids);
    assert_ptr_equal(a.routing_weights, f->layer[1].routing_weights);
    assert_ptr_equal(a.gate_up.codes, f->layer[1].gate_up.codes);
    assert_ptr_equal(a.down.scales, f->layer[1].down.scales);
    assert_null(a.intermediate);
    assert_null(a.output);
    gb_fixture_free(f);
}

static void sizes_are_checked(void **state)
{
    (void)state;
    static const struct {
        struct gb_shape shape;
        uint32_t layers;
        enum gb_format format;
        const char *says;
    } cases[] = {
        {{0, 96, 32, 3, 2}, 1, GB_NVFP4, "tokens"},
        {{5, 96, 32, 3, 4}, 1, GB_NVFP4, "top_k"},
        {{5, 96, 32, 3, 2}, 0, GB_NVFP4, "layers"},
        {{5, 90, 32, 3, 2}, 1, GB_NVFP4, "hidden"},
        {{5, 96, 48, 3, 2}, 1, GB_MXFP8, "intermediate"},
        {{5, 96, 32, 3, 2}, 1, GB_FP32, "weights"},
        {{1u << 31, 96, 32, 3, 2}, 1, GB_BF16, "tokens"},
        {{5, 0x7FFFFFE0, 0x7FFFFFE0, 0x7FFFFFFF, 2}, 1, GB_BF16, "gate_up/codes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gb_fixture *f;
        struct gb_error error = {""};
        assert_int_equal(
            gb_fixture_new(&cases[i].shape, cases[i].layers, cases[i].format, true, true, true, &f, &error), GB_EINVAL);
        assert_null(f);
        if (!strstr(error.message, cases[i].says))
            fail_msg("'%s' does not name %s", error.message, cases[i].says);
    }
}

/* Writes that fail. */

static size_t files_in_folder(void)
{
    size_t count = 0;
    DIR *stream = opendir(folder);
    assert_non_null(stream);
    for (struct dirent *entry; (entry = readdir(stream));)
        count += entry->d_name[0] != '.' || strlen(entry->d_name) > 2;
    closedir(stream);
    return count;
}

/* In a child, so that the limit and what HDF5 does at exit stay there: writes with files limited to `bytes`. Returns
 * the status; the message must name the file. */
static int write_limited(const struct rlimit *limit)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct gb_fixture *f = new_fixture(GB_NVFP4, true, true, true);
        struct gb_error error = {""};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, limit);
        enum gb_status status = gb_fixture_write(path, f, &error);
        gb_fixture_free(f);
        exit(status != GB_OK && strncmp(error.message, path, strlen(path)) ? 99 : (int)status);
    }
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    return WEXITSTATUS(result);
}

static void failed_write_leaves_nothing(void **state)
{
    (void)state;
    struct gb_fixture *f = new_fixture(GB_NVFP4, true, true, true);
    struct gb_error error = {""};
    struct stat whole;
    assert_int_equal(gb_fixture_write(path, f, &error), GB_OK);
    gb_fixture_free(f);
    assert_int_equal(stat(path, &whole), 0);
    for (int i = 0; i < 16; i++) {
        struct rlimit limit = {(rlim_t)(whole.st_size * i / 16), RLIM_INFINITY};
        unlink(path);
        assert_int_equal(write_limited(&limit), GB_EIO);
        assert_int_equal(files_in_folder(), 0);
    }
    struct rlimit enough = {(rlim_t)whole.st_size, RLIM_INFINITY};
    assert_int_equal(write_limited(&enough), GB_OK);
    assert_int_equal(files_in_folder(), 1);
    struct rlimit less = {(rlim_t)whole.st_size / 2, RLIM_INFINITY};
    assert_int_equal(write_limited(&less), GB_EIO);
    assert_int_equal(gb_fixture_read(path, &f, &error), GB_OK);
    gb_fixture_free(f);
}

/* Starts a process that writes the fixture to the path again and again, and kills it so long after the first. */
static void kill_writer(struct gb_fixture *f, bool from_new, useconds_t delay)
{
    struct gb_error error;
    fflush(NULL);
    unlink(path);
    pid_t child = fork();
    assert_true(child >= 0);
    while (child == 0) {
        if (from_new)
            unlink(path);
        gb_fixture_write(path, f, &error);
    }
    for (int i = 0; i < 60000 && access(path, F_OK); i++)
        usleep(1000);
    usleep(delay);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* Whenever a writer is killed, there is no file but that of the name, where the file system has nameless ones. */
static void killed_write_leaves_no_other_file(void **state)
{
    (void)state;
    int nameless = open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (nameless < 0)
        skip();
    close(nameless);
    struct gb_fixture *f = new_fixture(GB_NVFP4, true, true, true);
    for (useconds_t delay = 0; delay < 20000; delay += 500) {
        kill_writer(f, true, delay);
        if (files_in_folder() > (access(path, F_OK) == 0))
            fail_msg("killed after %u us: a temporary file is left", (unsigned)delay);
    }
    gb_fixture_free(f);
}

/* And the name holds the whole old or the whole new file. */
static void killed_write_leaves_a_whole_file(void **state)
{
    (void)state;
    struct gb_fixture *f = new_fixture(GB_NVFP4, true, true, true), *read;
    struct gb_error error = {""};
    assert_int_equal(gb_fixture_write(path, f, &error), GB_OK);
    for (useconds_t delay = 0; delay < 20000; delay += 1000) {
        kill_writer(f, false, delay);
        if (gb_fixture_read(path, &read, &error) != GB_OK)
            fail_msg("killed after %u us: %s", (unsigned)delay, error.message);
        same_fixture(f, read);
        gb_fixture_free(read);
    }
    gb_fixture_free(f);
}

static void folders_are_checked(void **state)
{
    (void)state;
    struct gb_fixture *f = new_fixture(GB_NVFP4, true, false, false);
    struct gb_error error = {""};
    assert_int_equal(gb_fixture_write("/nonexistent/a.h5", f, &error), GB_EIO);
    assert_non_null(strstr(error.message, "/nonexistent/a.h5"));
    assert_int_equal(gb_fixture_write(folder, f, &error), GB_EIO);
    f->layer[0].x[3].bits = 0x7F80;
    assert_int_equal(gb_fixture_write(path, f, &error), GB_EINVAL);
    assert_non_null(strstr(error.message, "/layers/0/x: element [0, 3]"));
    f->layer[0].x[3].bits = 0;
    memset(f->source, 'a', sizeof f->source);
    assert_int_equal(gb_fixture_write(path, f, &error), GB_EINVAL);
    assert_non_null(strstr(error.message, "source"));
    gb_fixture_free(f);
}

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/fixture.h5", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    /* A killed writer leaves its temporary files. */
    DIR *stream = opendir(folder);
    for (struct dirent *entry; stream && (entry = readdir(stream));)
        unlinkat(dirfd(stream), entry->d_name, 0);
    closedir(stream);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trips),
        cmocka_unit_test(round_trip_of_encode_scales),
        cmocka_unit_test(round_trip_of_many_chunks),
        cmocka_unit_test(hash_is_of_inputs),
        cmocka_unit_test(same_content_is_the_same_file),
        cmocka_unit_test(layer_arguments),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(failed_write_leaves_nothing),
        cmocka_unit_test(killed_write_leaves_no_other_file),
        cmocka_unit_test(killed_write_leaves_a_whole_file),
        cmocka_unit_test(folders_are_checked),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
