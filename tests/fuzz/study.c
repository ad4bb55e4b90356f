/* SPDX-License-Identifier: Apache-2.0 */
/*
 * study_read of any file, and of well-formed ones: behind a first byte of 0 the input is the file; behind any other, a
 * list of edits to the results of an unfinished study.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/report/study_report.h"
#include "harness/study/study.h"
#include "tests/fuzz/fuzz.h"

static const char *const objects[] = {
    "/",
    "/cases",
    "/cases/0",
    "/cases/0/open_loop",
    "/cases/0/open_loop/quantised/error2",
    "/cases/0/open_loop/quantised/ulps",
    "/cases/0/open_loop/original/changed",
    "/cases/0/layer/original/max_abs",
    "/cases/0/truth/original/layer2",
    "/cases/0/truth/model_layer",
    "/cases/0/head/original/kl",
    "/cases/0/head/bf16.fma32/same_top",
    "/cases/0/resume",
    "/cases/0/resume/layers_done",
    "/cases/0/resume/state/0",
    "/cases/1",
};
static const char *const attributes[] = {
    "schema",  "kind",   "command",       "cases",       "finished", "content_sha256", "model",
    "weights", "recipe", "inputs_sha256", "head_sha256", "tokens",   "hidden",         "intermediate",
    "experts", "top_k",  "layers",        "seeds",       "samples",  "vocabulary",     "path_count",
    "paths",   "done",   "first_seed",    "axes",        "kernels",  "outlier_factor", "routing_skew",
};
static const struct fuzz_names names = {objects, sizeof objects / sizeof *objects, attributes,
                                        sizeof attributes / sizeof *attributes};

/* Two seeds of two layers, one of them begun: as `study` writes it. */
static void write_good(const char *path)
{
    struct study study = {.kind = "drift", .command = "gaugeblock study drift", .cases = 1};
    struct study_case *c = study.of = calloc(1, sizeof *study.of);
    struct study_array arrays[STUDY_ARRAYS];
    struct gb_error error;
    if (!c)
        abort();
    *c = (struct study_case){.name = "fuzz",
                             .weights = "nvfp4",
                             .shape = {1, 4, 4, 2, 1},
                             .layers = 2,
                             .seeds = 2,
                             .samples = 2,
                             .paths = 2,
                             .vocabulary = 3};
    strcpy(c->path[0].name, "bf16.fma32");
    strcpy(c->path[1].name, "mxfp8.fma32");
    if (study_case_new(c, &error) != GB_OK || !(c->state[0] = calloc(study_case_streams(c), sizeof(double))))
        abort();
    c->done = c->layers_done[0] = 1;
    uint32_t count = study_case_arrays(c, arrays);
    for (uint32_t i = 0; i < count; i++)
        (*arrays[i].values)[0] = 0.5 * i;
    if (study_write(path, &study, &error) != GB_OK)
        abort();
    study_free(&study);
}

/* Its bytes, written once. */
static const uint8_t *good_file(size_t *count)
{
    static uint8_t bytes[1 << 17];
    static size_t size;
    if (!size) {
        char path[128];
        snprintf(path, sizeof path, "%s/good.h5", fuzz_folder());
        write_good(path);
        FILE *file = fopen(path, "rb");
        size = file ? fread(bytes, 1, sizeof bytes, file) : 0;
        if (!size || size == sizeof bytes)
            abort();
        fclose(file);
    }
    *count = size;
    return bytes;
}

/* All that is made of results. */
static void use(struct study *study)
{
    static FILE *nowhere;
    struct gb_error error;
    char hash[65];
    if (!nowhere && !(nowhere = fopen("/dev/null", "w")))
        abort();
    study_hash(study, hash);
    study_print(nowhere, study, false, &error);
    study_csv(nowhere, study, &error);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct study study;
    struct gb_error error;
    size_t size;
    gb_hdf5_no_atexit();
    const uint8_t *good = good_file(&size);
    const bool whole = count && bytes[0] == 0;
    const char *path = fuzz_file(0, whole ? bytes + 1 : good, whole ? count - 1 : size);
    if (!whole)
        fuzz_edit(path, &names, bytes + (count > 0), count - (count > 0));
    enum gb_status status = study_read(path, &study, &error);
    fuzz_check(status, &error);
    if (count == 0 && status != GB_OK)
        abort(); /* not edited */
    if (status == GB_OK)
        use(&study);
    study_free(&study);
    return 0;
}
