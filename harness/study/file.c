/* SPDX-License-Identifier: Apache-2.0 */
/* Studies as HDF5 files: docs/study.md#file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/hash.h"
#include "harness/run/probe.h"
#include "harness/study/study.h"

static const char schema[] = "gaugeblock-study/1";

/* Attributes of a case that are whole numbers, and its texts. */
struct counts {
    const char *name;
    uint32_t *value;
    uint32_t low, high;
};
enum { COUNTS = 11, LARGEST = 1 << 20 };

static void counts_of(struct study_case *c, struct counts counts[COUNTS])
{
    const struct counts all[COUNTS] = {
        {"tokens", &c->shape.tokens, 1, LARGEST},
        {"hidden", &c->shape.hidden, 1, LARGEST},
        {"intermediate", &c->shape.intermediate, 1, LARGEST},
        {"experts", &c->shape.experts, 1, LARGEST},
        {"top_k", &c->shape.top_k, 1, LARGEST},
        {"layers", &c->layers, 1, 4096},
        {"seeds", &c->seeds, 1, 4096},
        {"path_count", &c->paths, 1, STUDY_PATHS},
        {"samples", &c->samples, 1, LARGEST},
        {"vocabulary", &c->vocabulary, 0, 1 << 24},
        {"done", &c->done, 0, 4096 * 4096},
    };
    memcpy(counts, all, sizeof all);
}

static const struct {
    const char *name;
    size_t offset, bytes;
} texts[] = {
    {"model", offsetof(struct study_case, name), sizeof(((struct study_case *)0)->name)},
    {"weights", offsetof(struct study_case, weights), sizeof(((struct study_case *)0)->weights)},
    {"recipe", offsetof(struct study_case, recipe), sizeof(((struct study_case *)0)->recipe)},
    {"inputs_sha256", offsetof(struct study_case, inputs), sizeof(((struct study_case *)0)->inputs)},
    {"head_sha256", offsetof(struct study_case, end), sizeof(((struct study_case *)0)->end)},
};
enum { TEXTS = sizeof texts / sizeof *texts };

/* The names of the paths, and how each is computed, one after the other. */
static void path_texts(const struct study_case *c, char names[STUDY_PATH_LIST], char how[4 * STUDY_PATH_LIST])
{
    size_t used = 0, used_how = 0;
    for (uint32_t p = 0; p < c->paths; p++) {
        const struct study_path *path = &c->path[p];
        used += (size_t)snprintf(names + used, STUDY_PATH_LIST - used, p ? ",%s" : "%s", path->name);
        used_how +=
            (size_t)snprintf(how + used_how, 4 * STUDY_PATH_LIST - used_how, "%s%s%s%s%s", p ? "; " : "",
                             path->contract ? path->contract->name : "", path->dequantised ? " after " : " ",
                             path->recipe ? path->recipe->name : "", path->dequantised ? " dequantised to bf16" : "");
    }
}

/* Which kernels computed paths, "PATH KERNEL" with commas between. */
static void kernel_text(const struct study_case *c, char kernels[4 * STUDY_PATH_LIST])
{
    size_t used = 0;
    kernels[0] = '\0';
    for (uint32_t p = 0; p < c->paths; p++)
        if (c->path[p].kernel.kernel)
            used += (size_t)snprintf(kernels + used, 4 * STUDY_PATH_LIST - used, "%s%s %s", used ? ", " : "",
                                     c->path[p].name, c->path[p].kernel.kernel->name);
}

/* What an unfinished case goes on from: how far each seed is, and the streams of those that are begun. */
static enum gb_status write_resume(struct gb_results *file, const struct study_case *c, const char *group,
                                   struct gb_error *error)
{
    const uint64_t streams[] = {c->paths + STUDY_TRUTHS, c->shape.tokens, c->shape.hidden}, seeds[] = {c->seeds};
    char path[64];
    if (c->done == c->seeds * c->layers)
        return GB_OK;
    double *layers = malloc(sizeof *layers * c->seeds);
    if (!layers)
        return gb_fail(error, GB_ENOMEM, "no memory for %u seeds", c->seeds);
    for (uint32_t s = 0; s < c->seeds; s++)
        layers[s] = c->layers_done[s];
    snprintf(path, sizeof path, "%.31s/resume/layers_done", group);
    enum gb_status status = gb_results_put(file, path, 1, seeds, "seeds", layers, error);
    for (uint32_t s = 0; status == GB_OK && s < c->seeds; s++) {
        snprintf(path, sizeof path, "%.31s/resume/state/%u", group, s);
        if (c->state[s])
            status = gb_results_put(file, path, 3, streams, "truths and paths, tokens, hidden", c->state[s], error);
    }
    free(layers);
    return status;
}

static enum gb_status write_case(struct gb_results *file, struct study_case *c, uint32_t index, struct gb_error *error)
{
    struct counts counts[COUNTS];
    struct study_array arrays[STUDY_ARRAYS];
    char group[32], path[sizeof group + sizeof arrays[0].name + 1];
    char names[STUDY_PATH_LIST], how[4 * STUDY_PATH_LIST], kernels[4 * STUDY_PATH_LIST], factors[2][32];
    uint32_t count = study_case_arrays(c, arrays);
    counts_of(c, counts);
    path_texts(c, names, how);
    kernel_text(c, kernels);
    snprintf(group, sizeof group, "/cases/%u", index);
    snprintf(factors[0], sizeof factors[0], "%.9g", c->outlier_factor);
    snprintf(factors[1], sizeof factors[1], "%.9g", c->routing_skew);
    enum gb_status status = gb_results_group(file, group, error);
    for (int i = 0; status == GB_OK && i < TEXTS; i++)
        status = gb_results_put_text(file, group, texts[i].name, (const char *)c + texts[i].offset, error);
    for (int i = 0; status == GB_OK && i < COUNTS; i++)
        status = gb_results_put_count(file, group, counts[i].name, *counts[i].value, error);
    if (status == GB_OK)
        status = gb_results_put_count(file, group, "first_seed", c->first_seed, error);
    if (status == GB_OK)
        status = gb_results_put_text(file, group, "paths", names, error);
    if (status == GB_OK)
        status = gb_results_put_text(file, group, "contracts", how, error);
    if (status == GB_OK)
        status = gb_results_put_text(file, group, "kernels", kernels, error);
    if (status == GB_OK)
        status = gb_results_put_text(file, group, "outlier_factor", factors[0], error);
    if (status == GB_OK)
        status = gb_results_put_text(file, group, "routing_skew", factors[1], error);
    for (uint32_t i = 0; status == GB_OK && i < count; i++) {
        snprintf(path, sizeof path, "%.31s/%.63s", group, arrays[i].name);
        status = gb_results_put(file, path, arrays[i].rank, arrays[i].dims, arrays[i].axes, *arrays[i].values, error);
    }
    return status == GB_OK ? write_resume(file, c, group, error) : status;
}

enum gb_status study_write(const char *path, struct study *study, struct gb_error *error)
{
    struct gb_results *file;
    char hash[65];
    study_hash(study, hash);
    if (!hash[0])
        return gb_fail(error, GB_ENOMEM, "%s: no memory to hash the results", path);
    enum gb_status status = gb_results_create(path, &file, error);
    if (status != GB_OK)
        return status;
    status = gb_results_put_text(file, "", "schema", schema, error);
    if (status == GB_OK)
        status = gb_results_put_text(file, "", "kind", study->kind, error);
    if (status == GB_OK)
        status = gb_results_put_text(file, "", "command", study->command, error);
    if (status == GB_OK)
        status = gb_results_put_text(file, "", "program", "gaugeblock " GB_VERSION, error);
    if (status == GB_OK)
        status = gb_results_put_count(file, "", "cases", study->cases, error);
    if (status == GB_OK)
        status = gb_results_put_count(file, "", "finished", study_finished(study), error);
    if (status == GB_OK)
        status = gb_results_put_text(file, "", "content_sha256", hash, error);
    if (status == GB_OK)
        status = gb_results_group(file, "/cases", error);
    for (uint32_t i = 0; status == GB_OK && i < study->cases; i++)
        status = write_case(file, &study->of[i], i, error);
    return gb_results_save(file, status, error);
}

/* Names of paths from "a,b,c"; contracts and recipes are left alone. */
static enum gb_status read_paths(struct gb_results *file, const char *group, struct study_case *c,
                                 struct gb_error *error)
{
    char names[STUDY_PATH_LIST], *at = names;
    uint32_t count = 0;
    enum gb_status status = gb_results_get_text(file, group, "paths", names, sizeof names, error);
    for (; status == GB_OK && at && count < c->paths; count++) {
        char *comma = strchr(at, ',');
        snprintf(c->path[count].name, sizeof c->path[count].name, "%.*s", (int)strcspn(at, ","), at);
        at = comma ? comma + 1 : NULL;
    }
    if (status == GB_OK && (count != c->paths || at))
        return gb_fail(error, GB_EFORMAT, "%s: paths are not %u names", group, c->paths);
    return status;
}

/* The sizes must agree before memory is taken by them. Of three of those that counts_of admits the product is below
 * 2^60 bytes. */
static enum gb_status check_sizes(const char *group, const struct study_case *c, struct gb_error *error)
{
    const uint64_t samples = (uint64_t)c->seeds * c->shape.tokens;
    if (samples != c->samples || c->done > c->seeds * c->layers || c->shape.top_k > c->shape.experts)
        return gb_fail(error, GB_EFORMAT, "%s: its sizes contradict each other", group);
    return GB_OK;
}

/* How far each seed is; the sum must be what the case says. */
static enum gb_status read_progress(struct gb_results *file, struct study_case *c, const char *group,
                                    struct gb_error *error)
{
    const uint64_t seeds[] = {c->seeds};
    char path[64];
    double sum = 0.0;
    snprintf(path, sizeof path, "%.31s/resume/layers_done", group);
    double *layers = calloc(c->seeds, sizeof *layers);
    enum gb_status status = layers ? gb_results_get(file, path, 1, seeds, layers, error)
                                   : gb_fail(error, GB_ENOMEM, "no memory for %u seeds", c->seeds);
    for (uint32_t s = 0; status == GB_OK && s < c->seeds; s++) {
        if (!(layers[s] >= 0.0 && layers[s] <= c->layers) || layers[s] != floor(layers[s]))
            status = gb_fail(error, GB_EFORMAT, "%s: %g is no number of layers", path, layers[s]);
        else
            c->layers_done[s] = (uint32_t)layers[s];
        sum += layers[s];
    }
    free(layers);
    if (status == GB_OK && sum != c->done)
        return gb_fail(error, GB_EFORMAT, "%s: %g layers in all, not %u", path, sum, c->done);
    return status;
}

static enum gb_status read_resume(struct gb_results *file, struct study_case *c, const char *group,
                                  struct gb_error *error)
{
    const uint64_t streams[] = {c->paths + STUDY_TRUTHS, c->shape.tokens, c->shape.hidden};
    char path[64];
    enum gb_status status = GB_OK;
    for (uint32_t s = 0; s < c->seeds; s++)
        c->layers_done[s] = c->layers;
    if (c->done == c->seeds * c->layers)
        return GB_OK;
    status = read_progress(file, c, group, error);
    for (uint32_t s = 0; status == GB_OK && s < c->seeds; s++) {
        if (c->layers_done[s] == 0 || c->layers_done[s] == c->layers)
            continue;
        snprintf(path, sizeof path, "%.31s/resume/state/%u", group, s);
        c->state[s] = malloc(sizeof(double) * study_case_streams(c));
        status = c->state[s] ? gb_results_get(file, path, 3, streams, c->state[s], error)
                             : gb_fail(error, GB_ENOMEM, "no memory for the streams of seed %u", s);
    }
    return status;
}

static enum gb_status read_case(struct gb_results *file, struct study_case *c, uint32_t index, struct gb_error *error)
{
    struct counts counts[COUNTS];
    struct study_array arrays[STUDY_ARRAYS];
    char group[32], path[sizeof group + sizeof arrays[0].name + 1], factors[2][32];
    enum gb_status status = GB_OK;
    counts_of(c, counts);
    snprintf(group, sizeof group, "/cases/%u", index);
    for (int i = 0; status == GB_OK && i < TEXTS; i++)
        status = gb_results_get_text(file, group, texts[i].name, (char *)c + texts[i].offset, texts[i].bytes, error);
    for (int i = 0; status == GB_OK && i < COUNTS; i++) {
        uint64_t value = 0;
        status = gb_results_get_count(file, group, counts[i].name, counts[i].low, counts[i].high, &value, error);
        *counts[i].value = (uint32_t)value;
    }
    if (status == GB_OK)
        status = gb_results_get_count(file, group, "first_seed", 0, UINT64_MAX, &c->first_seed, error);
    if (status == GB_OK)
        status = gb_results_get_text(file, group, "outlier_factor", factors[0], sizeof factors[0], error);
    if (status == GB_OK)
        status = gb_results_get_text(file, group, "routing_skew", factors[1], sizeof factors[1], error);
    if (status == GB_OK)
        status = read_paths(file, group, c, error);
    if (status == GB_OK)
        status = check_sizes(group, c, error);
    if (status == GB_OK)
        status = study_case_new(c, error);
    if (status != GB_OK)
        return status;
    c->outlier_factor = strtod(factors[0], NULL);
    c->routing_skew = strtod(factors[1], NULL);
    uint32_t count = study_case_arrays(c, arrays);
    for (uint32_t i = 0; status == GB_OK && i < count; i++) {
        snprintf(path, sizeof path, "%.31s/%.63s", group, arrays[i].name);
        status = gb_results_get(file, path, arrays[i].rank, arrays[i].dims, *arrays[i].values, error);
    }
    return status == GB_OK ? read_resume(file, c, group, error) : status;
}

static enum gb_status read_all(struct gb_results *file, struct study *study, char hash[65], struct gb_error *error)
{
    char text[32];
    uint64_t cases = 0;
    enum gb_status status = gb_results_get_text(file, "", "schema", text, sizeof text, error);
    if (status == GB_OK && strcmp(text, schema))
        return gb_fail(error, GB_EFORMAT, "schema '%s' is not %s: it is no result of gaugeblock study", text, schema);
    if (status == GB_OK)
        status = gb_results_get_text(file, "", "kind", study->kind, sizeof study->kind, error);
    if (status == GB_OK)
        status = gb_results_get_text(file, "", "command", study->command, sizeof study->command, error);
    if (status == GB_OK)
        status = gb_results_get_text(file, "", "content_sha256", hash, 65, error);
    if (status == GB_OK)
        status = gb_results_get_count(file, "", "cases", 1, 256, &cases, error);
    if (status != GB_OK)
        return status;
    study->of = calloc(cases, sizeof *study->of);
    if (!study->of)
        return gb_fail(error, GB_ENOMEM, "no memory for %u cases", (unsigned)cases);
    for (; status == GB_OK && study->cases < cases; study->cases++)
        status = read_case(file, &study->of[study->cases], study->cases, error);
    return status;
}

enum gb_status study_read(const char *path, struct study *study, struct gb_error *error)
{
    struct gb_results *file;
    char hash[65], found[65];
    *study = (struct study){.cases = 0};
    enum gb_status status = gb_results_open(path, &file, error);
    if (status != GB_OK)
        return status;
    status = read_all(file, study, hash, error);
    gb_results_close(file);
    if (status == GB_OK) {
        study_hash(study, found);
        if (!found[0])
            status = gb_fail(error, GB_ENOMEM, "no memory to hash the results");
        else if (strcmp(found, hash))
            status = gb_fail(error, GB_EFORMAT,
                             "content_sha256: the results hash to %s; they were changed after the "
                             "file was written",
                             found);
    }
    if (status == GB_OK)
        return GB_OK;
    study_free(study);
    input_name(path, error);
    return status;
}

void study_hash(struct study *study, char *text)
{
    char *bytes = NULL;
    size_t count = 0;
    FILE *stream = open_memstream(&bytes, &count);
    text[0] = '\0';
    if (!stream)
        return;
    fprintf(stream, "%s %s", schema, study->kind);
    for (uint32_t i = 0; i < study->cases; i++) {
        struct study_case *c = &study->of[i];
        struct study_array arrays[STUDY_ARRAYS];
        struct counts counts[COUNTS];
        uint32_t found = study_case_arrays(c, arrays);
        counts_of(c, counts);
        for (int t = 0; t < TEXTS; t++)
            fprintf(stream, "\n%s=%s", texts[t].name, (const char *)c + texts[t].offset);
        for (int k = 0; k < COUNTS; k++)
            fprintf(stream, "\n%s=%u", counts[k].name, *counts[k].value);
        fprintf(stream, "\nfirst_seed=%llu outlier_factor=%.9g routing_skew=%.9g", (unsigned long long)c->first_seed,
                c->outlier_factor, c->routing_skew);
        for (uint32_t p = 0; p < c->paths; p++)
            fprintf(stream, "\npath=%s", c->path[p].name);
        for (uint32_t a = 0; a < found; a++) {
            size_t elements = 1;
            for (uint32_t d = 0; d < arrays[a].rank; d++)
                elements *= arrays[a].dims[d];
            fprintf(stream, "\n%s\n", arrays[a].name);
            for (size_t e = 0; e < elements; e++) { /* one encoding of NaN */
                double value = (*arrays[a].values)[e];
                if (isnan(value))
                    value = (double)NAN;
                fwrite(&value, sizeof value, 1, stream);
            }
        }
    }
    if (!fclose(stream))
        hash_sha256(bytes, count, text);
    free(bytes);
}
