/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* memfd_create */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

const char *fuzz_file(int slot, const uint8_t *bytes, size_t count)
{
    static struct {
        int descriptor;
        char path[32];
    } files[FUZZ_FILES];
    if (!files[slot].path[0]) {
        files[slot].descriptor = memfd_create("input", MFD_CLOEXEC);
        snprintf(files[slot].path, sizeof files[slot].path, "/proc/self/fd/%d", files[slot].descriptor);
    }
    if (ftruncate(files[slot].descriptor, 0) || pwrite(files[slot].descriptor, bytes, count, 0) != (ssize_t)count)
        stop("no memory for a file");
    return files[slot].path;
}

static char folder[] = "/tmp/gaugeblock-fuzz-XXXXXX";

static void remove_folder(void)
{
    DIR *directory = opendir(folder);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        char path[sizeof folder + sizeof entry->d_name + 1];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        unlink(path);
    }
    if (directory)
        closedir(directory);
    rmdir(folder);
}

const char *fuzz_folder(void)
{
    if (strstr(folder, "XXXXXX")) {
        if (!mkdtemp(folder))
            stop("cannot make a folder in /tmp");
        atexit(remove_folder);
    }
    return folder;
}

void fuzz_check(enum gb_status status, const struct gb_error *error)
{
    if (status == GB_OK)
        return;
    if (status != GB_EFORMAT && status != GB_EIO && status != GB_ENOMEM)
        stop(gb_status_name(status));
    if (strncmp(error->message, "/proc/self/fd/", 14) && strncmp(error->message, "/tmp/gaugeblock-fuzz-", 21))
        stop(error->message);
    for (const char *c = error->message; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7F)
            stop("a message of more than one line");
}

void fuzz_touch(const void *bytes, size_t count)
{
    const volatile uint8_t *byte = bytes;
    for (size_t i = 0; i < count; i++)
        (void)byte[i];
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
