/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

/* libhdf5 1.10 leaks where it finds a damaged object. The sanitiser finds the function only if it is visible. */
GB_API const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}

static void stop(const char *what)
{
    fprintf(stderr, "fuzz: %s\n", what);
    abort();
}

/* In memory where there is a folder of it. HDF5 needs a real path: a descriptor's in /proc will not do. */
static char folder[64];

static void remove_folder(void)
{
    DIR *directory = opendir(folder);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        char path[sizeof folder + sizeof entry->d_name];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        unlink(path);
    }
    if (directory)
        closedir(directory);
    rmdir(folder);
}

const char *fuzz_folder(void)
{
    static const char name[] = "gaugeblock-fuzz-XXXXXX";
    if (folder[0])
        return folder;
    snprintf(folder, sizeof folder, "/dev/shm/%s", name);
    if (!mkdtemp(folder)) {
        snprintf(folder, sizeof folder, "/tmp/%s", name);
        if (!mkdtemp(folder))
            stop("cannot make a folder in /tmp");
    }
    atexit(remove_folder);
    return folder;
}

const char *fuzz_file(int slot, const uint8_t *bytes, size_t count)
{
    static struct {
        int descriptor;
        char path[sizeof folder + 16];
    } files[FUZZ_FILES];
    if (!files[slot].path[0]) {
        snprintf(files[slot].path, sizeof files[slot].path, "%s/input%d", fuzz_folder(), slot);
        files[slot].descriptor = open(files[slot].path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    }
    if (ftruncate(files[slot].descriptor, 0) || pwrite(files[slot].descriptor, bytes, count, 0) != (ssize_t)count)
        stop("no room for a file");
    return files[slot].path;
}

FILE *fuzz_answers;
uint64_t fuzz_touched;

/* The message without the folder, whose name is another each time; of a long name its end is there. */
static void note(const char *message)
{
    const char *const end = folder[0] ? strrchr(folder, '/') + 1 : "no folder";
    if (!strncmp(message, folder, (size_t)(end - folder)) && folder[0])
        message += end - folder;
    for (const char *at; (at = strstr(message, end)); message = at + strlen(end))
        fprintf(fuzz_answers, "%.*s...", (int)(at - message), message);
    fprintf(fuzz_answers, "%s; ", message);
}

void fuzz_check(enum gb_status status, const struct gb_error *error)
{
    enum { LONG_NAME = 160 };
    if (fuzz_answers)
        note(status == GB_OK ? "read" : error->message);
    if (status == GB_OK)
        return;
    if (status != GB_EFORMAT && status != GB_EIO && status != GB_ENOMEM)
        stop(gb_status_name(status));
    if (strncmp(error->message, folder, strlen(folder)) && strlen(error->message) < LONG_NAME)
        stop(error->message);
    for (const char *c = error->message; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7F)
            stop("a message of more than one line");
}

void fuzz_touch(const void *bytes, size_t count)
{
    const uint8_t *byte = bytes;
    for (size_t i = 0; i < count; i++) /* FNV-1a */
        fuzz_touched = (fuzz_touched ^ byte[i]) * 0x100000001B3u;
}

void fuzz_nothing(const void *made)
{
    if (made)
        stop("what could not be read is there");
}

void fuzz_touch_fixture(struct gb_fixture *fixture)
{
    if (!fixture)
        return;
    const size_t values = (size_t)fixture->shape.tokens * fixture->shape.hidden;
    fuzz_touch(fixture->sha256, strlen(fixture->sha256));
    fuzz_touch(&fixture->shape, sizeof fixture->shape);
    for (uint32_t l = 0; l < fixture->layers && fixture->layer; l++) {
        const struct gb_layer *layer = &fixture->layer[l];
        fuzz_touch(layer->x, values * sizeof *layer->x);
        fuzz_touch(layer->truth_quantised, values * sizeof *layer->truth_quantised);
        fuzz_touch(layer->truth_original, values * sizeof *layer->truth_original);
    }
}

struct gb_fixture *fuzz_fixture(void)
{
    const struct gb_shape shape = {.tokens = 2, .hidden = 32, .intermediate = 16, .experts = 3, .top_k = 2};
    struct gb_fixture *f;
    struct gb_error error;
    if (gb_fixture_new(&shape, 1, GB_NVFP4, true, true, false, &f, &error) != GB_OK)
        stop(error.message);
    f->rms_norm_epsilon = 1e-6;
    strcpy(f->recipe, "nvfp4.modelopt/1");
    strcpy(f->contract, "nvfp4.bf16.fma32/1");
    strcpy(f->generator, "import/1");
    strcpy(f->source, "fuzz");
    struct gb_layer *layer = &f->layer[0];
    for (uint32_t i = 0; i < shape.tokens * shape.top_k; i++) {
        layer->ids[i] = (int32_t)(i % shape.experts);
        layer->truth_routing_weights[i] = 0.5;
        layer->routing_weights[i] = 0.5f;
    }
    for (uint32_t e = 0; e < shape.experts; e++) {
        ((float *)layer->gate_up.global_scales)[2 * e] = 1;
        ((float *)layer->gate_up.global_scales)[2 * e + 1] = 2;
        ((float *)layer->down.global_scales)[e] = 1;
    }
    return f;
}

const uint8_t *fuzz_good_file(size_t *count)
{
    static uint8_t bytes[1 << 16];
    static size_t size;
    char path[sizeof folder + 16];
    struct gb_error error;
    if (!size) {
        snprintf(path, sizeof path, "%s/good.h5", fuzz_folder());
        struct gb_fixture *fixture = fuzz_fixture(), *again;
        if (gb_fixture_write(path, fixture, &error) != GB_OK || gb_fixture_read(path, &again, &error) != GB_OK)
            stop(error.message);
        FILE *file = fopen(path, "rb");
        size = file ? fread(bytes, 1, sizeof bytes, file) : 0;
        if (!size || size == sizeof bytes)
            stop("the good file does not fit");
        fclose(file);
        gb_fixture_free(fixture);
        gb_fixture_free(again);
    }
    *count = size;
    return bytes;
}
