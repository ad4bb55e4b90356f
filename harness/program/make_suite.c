/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/program/make_suite.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/program/command.h"
#include "harness/program/fixture_list.h"
#include "harness/run/progress.h"
#include "harness/run/verdict.h"
#include "quant/quant.h"

/* When a row is part of the suite. */
enum condition { ALWAYS, BF16_ACTIVATIONS, EXACT_DATA, SMALL_BLOCKS };

/* A problem. Sizes of layers are `hidden` and `intermediate` columns, and so many blocks more, of 16 columns or what
 * the formats take, up to a multiple of it. */
struct row {
    const char *file;
    uint32_t experts, top_k, hidden, hidden_blocks, intermediate, intermediate_blocks;
    const char *options;
    enum condition condition;
};

static const struct row layers[] = {
    {"gaussian.h5", 8, 4, 256, 0, 192, 0, "--layers 2 --tokens 32", ALWAYS},
    {"shared.h5", 16, 4, 128, 0, 64, 0, "--data shared --tokens 32", ALWAYS},
    {"loads.h5", 10, 2, 128, 1, 64, 1, "--data gaussian --routing loads --tokens 58 --generated", ALWAYS},
    {"wide.h5", 8, 3, 192, 0, 384, 0, "--data wide --routing equal --tokens 48 --generated", ALWAYS},
    {"sparse.h5", 8, 2, 512, 0, 256, 0, "--data sparse --routing half --tokens 24 --generated", ALWAYS},
    {"ties.h5", 8, 3, 384, 0, 256, 0, "--data ties --routing skewed --tokens 24 --generated", ALWAYS},
    {"edge.h5", 8, 3, 256, 0, 0, 10, "--data edge --routing holes --tokens 48 --generated", ALWAYS},
    {"scales.h5", 8, 1, 256, 0, 256, 0, "--data scales --routing uniform --tokens 24 --generated", ALWAYS},
    {"exact.h5", 8, 2, 256, 0, 128, 0, "--data exact --routing hot --tokens 48 --generated", EXACT_DATA},
    {"long.h5", 4, 2, 1280, 1, 1152, 1, "--routing uniform --tokens 17 --generated", ALWAYS},
    {"one-token.h5", 32, 8, 128, 0, 128, 0, "--tokens 1 --generated", ALWAYS},
    {"experts-300.h5", 300, 4, 64, 0, 64, 0, "--routing boundary --tokens 24 --generated", ALWAYS},
    {"experts-65537.h5", 65537, 4, 0, 1, 0, 1, "--routing boundary --tokens 18 --generated", SMALL_BLOCKS},
    {"nan.h5", 8, 2, 128, 0, 64, 0, "--data nonfinite --routing uniform --tokens 24 --generated", BF16_ACTIVATIONS},
};

/* Of quantisers: rows of codes in place of experts, columns in place of hidden. */
static const struct row quantisers[] = {
    {"gaussian.h5", 64, 0, 512, 0, 0, 0, "--data gaussian", ALWAYS},
    {"ties.h5", 64, 0, 512, 0, 0, 0, "--data ties", ALWAYS},
    {"edge.h5", 64, 0, 512, 0, 0, 0, "--data edge", ALWAYS},
    {"nonfinite.h5", 64, 0, 512, 0, 0, 0, "--data nonfinite", ALWAYS},
    {"long.h5", 17, 0, 4224, 0, 0, 0, "--data gaussian", ALWAYS},
    {"one-row.h5", 1, 0, 128, 0, 0, 0, "--data gaussian", ALWAYS},
};

enum { LAYERS = sizeof layers / sizeof *layers, QUANTISERS = sizeof quantisers / sizeof *quantisers };
enum { MOST_WORDS = 16, OPTIONS = 256 };

/* What sizes of layers are multiples of. */
static uint32_t unit_of(const struct make_suite *s)
{
    uint32_t unit = gb_format_multiple(s->format) > 16 ? gb_format_multiple(s->format) : 16;
    uint32_t activations = s->activations == GB_BF16 ? 1 : gb_format_block(s->activations);
    return activations > unit ? activations : unit;
}

/* Why a row is no part of the suite; NULL: it is. */
static const char *left_out(const struct make_suite *s, const struct row *row)
{
    switch (row->condition) {
    case BF16_ACTIVATIONS:
        return s->activations == GB_BF16 ? NULL : "codes of NaN differ by the recipe of activations";
    case EXACT_DATA:
        return s->exact ? NULL : "no data are exact by this recipe of activations";
    case SMALL_BLOCKS:
        return unit_of(s) <= 32 ? NULL : "so many experts of whole blocks take gigabytes";
    default:
        return NULL;
    }
}

static uint32_t columns_of(uint32_t columns, uint32_t blocks, uint32_t unit)
{
    return (columns + unit - 1) / unit * unit + blocks * unit;
}

/* "--shape 8,2,144,80 --tokens 58 ...". */
static void options_of(const struct make_suite *s, const struct row *row, char text[OPTIONS])
{
    if (s->operation) {
        snprintf(text, OPTIONS, "--shape %u,%u %s", row->experts, row->hidden, row->options);
        return;
    }
    uint32_t groups = s->router->groups ? s->router->groups : 1;
    uint32_t experts = (row->experts + groups - 1) / groups * groups;
    uint32_t top_k = s->router->side == GB_ROUTER_ON_INPUT ? 1 : row->top_k;
    snprintf(text, OPTIONS, "--shape %u,%u,%u,%u %s", experts, top_k,
             columns_of(row->hidden, row->hidden_blocks, unit_of(s)),
             columns_of(row->intermediate, row->intermediate_blocks, unit_of(s)), row->options);
}

/* Whether a suite, of whatever formats, has a file of this name. */
static bool of_a_suite(const char *file)
{
    for (size_t i = 0; i < LAYERS; i++)
        if (!strcmp(file, layers[i].file))
            return true;
    for (size_t i = 0; i < QUANTISERS; i++)
        if (!strcmp(file, quantisers[i].file))
            return true;
    return false;
}

/* A folder without fixtures but those of an earlier suite, which are removed: what is left of a run that is killed is
 * then never taken for the whole. */
static enum gb_status clear(const char *folder, struct gb_error *error)
{
    if (mkdir(folder, 0777) == 0)
        return GB_OK;
    DIR *directory = errno == EEXIST ? opendir(folder) : NULL;
    if (!directory)
        return gb_fail(error, GB_EIO, "%s: cannot make this folder: %s", path_end(folder), strerror(errno));
    enum gb_status status = GB_OK;
    for (struct dirent *entry; status == GB_OK && (entry = readdir(directory));)
        if (is_fixture_name(entry->d_name) && !of_a_suite(entry->d_name))
            status = gb_fail(error, GB_EINVAL, "%s/%s: is not of the suite; name a folder without other fixtures",
                             path_end(folder), entry->d_name);
    rewinddir(directory);
    for (struct dirent *entry; status == GB_OK && (entry = readdir(directory));)
        if (is_fixture_name(entry->d_name) && unlinkat(dirfd(directory), entry->d_name, 0))
            status = gb_fail(error, GB_EIO, "%s/%s: cannot be replaced: %s", path_end(folder), entry->d_name,
                             strerror(errno));
    closedir(directory);
    return status;
}

static enum gb_status write_list(const struct make_suite *s, const struct row *rows, size_t count,
                                 struct gb_error *error)
{
    char path[PATH_MAX], options[OPTIONS], *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    if (!stream)
        return gb_fail(error, GB_ENOMEM, "no memory for a list of fixtures");
    fprintf(stream, "# The problems of this folder and their options. `gaugeblock verify` misses a file that is not "
                    "there: take its line out\n# if it is not to be judged.\n");
    for (size_t i = 0; i < count; i++) {
        options_of(s, &rows[i], options);
        if (!left_out(s, &rows[i]))
            fprintf(stream, "%s %s\n", rows[i].file, options);
    }
    enum gb_status status = fclose(stream) ? gb_fail(error, GB_ENOMEM, "no memory for a list of fixtures") : GB_OK;
    if (status == GB_OK && (size_t)snprintf(path, sizeof path, "%s/" SUITE_LIST, s->folder) >= sizeof path)
        status = gb_fail(error, GB_EINVAL, "%s: is too long a path", path_end(s->folder));
    if (status == GB_OK)
        status = gb_file_write(path, text, bytes, error);
    free(text);
    return status;
}

/* The command line of one problem, run. */
static int make_row(const struct make_suite *s, const struct row *row)
{
    char path[PATH_MAX], options[OPTIONS], command[] = "make", *rest;
    char **argv = malloc(((size_t)s->argc + MOST_WORDS + 1) * sizeof *argv);
    int argc = 0;
    if (!argv || (size_t)snprintf(path, sizeof path, "%s/%s", s->folder, row->file) >= sizeof path) {
        free(argv);
        return command_error("make", "%s: is too long a path, or no memory", path_end(s->folder));
    }
    argv[argc++] = command;
    argv[argc++] = path;
    for (int i = 1; i < s->argc; i++)
        if (s->argv[i] != s->folder && strcmp(s->argv[i], "--suite"))
            argv[argc++] = s->argv[i];
    options_of(s, row, options);
    for (char *word = strtok_r(options, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    argv[argc] = NULL;
    int code = s->make(argc, argv);
    free(argv);
    return code;
}

int make_suite(const struct make_suite *s)
{
    const struct row *rows = s->operation ? quantisers : layers;
    const size_t count = s->operation ? QUANTISERS : LAYERS;
    struct gb_error error;
    size_t made = 0;
    if (clear(s->folder, &error) != GB_OK || write_list(s, rows, count, &error) != GB_OK)
        return command_error("make", "%s", error.message);
    for (size_t i = 0; i < count; i++) {
        if (left_out(s, &rows[i])) {
            printf("%s/%s: left out: %s\n", s->folder, rows[i].file, left_out(s, &rows[i]));
            continue;
        }
        progress_enter((double)i / (double)count, (double)(i + 1) / (double)count);
        int code = make_row(s, &rows[i]);
        progress_leave();
        if (code != EXIT_PASS)
            return code;
        made++;
    }
    printf("%s: %zu problems\n", s->folder, made);
    return EXIT_PASS;
}
