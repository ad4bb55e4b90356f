/* SPDX-License-Identifier: Apache-2.0 */
/* gaugeblock vectors: writes conformance vectors. */
#include <stdio.h>
#include <string.h>

#include "fixtures/fixtures.h"
#include "harness/program/command.h"
#include "harness/run/verdict.h"

struct options {
    const char *folder;
    char **recipes; /* the recipes named; NULL: all */
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    if (key == ARGP_KEY_ARG && !options->folder) {
        if (!argument[0])
            usage_error(state, "name a folder");
        options->folder = argument;
    } else if (key == ARGP_KEY_ARG) {
        const struct gb_recipe *recipe = gb_recipe_find(argument);
        if (!recipe || !recipe->quantiser.element)
            usage_error(state, "no recipe with scales named '%s'; see gaugeblock list recipes", argument);
        if (!options->recipes)
            options->recipes = state->argv + state->next - 1;
    } else if (key == ARGP_KEY_NO_ARGS) {
        usage_error(state, "name a folder");
    } else if (key != ARGP_KEY_END) {
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static bool wanted(const struct options *options, const char *name)
{
    if (!options->recipes)
        return true;
    for (char **recipe = options->recipes; *recipe; recipe++)
        if (!strcmp(*recipe, name))
            return true;
    return false;
}

/* FOLDER/NAME.txt, with - for the / of a recipe's version. */
static bool file_name(const char *folder, const char *name, char *path, size_t size)
{
    int length = snprintf(path, size, "%s/%s.txt", folder, name);
    if (length < 0 || (size_t)length >= size)
        return false;
    for (char *c = path + strlen(folder) + 1; *c; c++)
        if (*c == '/')
            *c = '-';
    return true;
}

static enum gb_status write_outputs(const struct options *options, const struct gb_vectors *vectors,
                                    const struct gb_recipe *recipe, struct gb_error *error)
{
    char path[4096];
    struct gb_vector_outputs *outputs = NULL;
    if (!file_name(options->folder, recipe->name, path, sizeof path))
        return gb_fail(error, GB_EINVAL, "the folder's name is too long");
    enum gb_status status = gb_vector_outputs_run(vectors, &recipe->quantiser, &outputs, error);
    if (status == GB_OK)
        status = gb_vector_outputs_write(vectors, outputs, recipe, path, error);
    gb_vector_outputs_free(outputs);
    return status;
}

/* The inputs of the block format of recipes[first], and the outputs of all recipes of it. */
static enum gb_status write_format(const struct options *options, const struct gb_recipe *recipes, size_t first,
                                   size_t count, struct gb_error *error)
{
    char path[4096], name[32];
    struct gb_block_format format = gb_block_format_of(&recipes[first].quantiser);
    struct gb_vectors *vectors;
    gb_block_format_name(&format, name);
    if (!file_name(options->folder, name, path, sizeof path))
        return gb_fail(error, GB_EINVAL, "the folder's name is too long");
    enum gb_status status = gb_vectors_make(&format, &vectors, error);
    if (status != GB_OK)
        return status;
    status = gb_vectors_write(vectors, path, error);
    for (size_t i = first; i < count && status == GB_OK; i++) {
        struct gb_block_format other = gb_block_format_of(&recipes[i].quantiser);
        if (gb_block_format_same(&format, &other) && wanted(options, recipes[i].name))
            status = write_outputs(options, vectors, &recipes[i], error);
    }
    gb_vectors_free(vectors);
    return status;
}

static const struct argp argp = {
    .parser = parse,
    .args_doc = "FOLDER [RECIPE...]",
    .doc = "Write conformance vectors: what quantisers are given, a file for each block format, and what each "
           "recipe makes of it, a file for each recipe.\v"
           "Example:\n  mkdir vectors && gaugeblock vectors vectors nvfp4.modelopt/1",
};

static int run_vectors(int argc, char **argv)
{
    struct options options = {NULL, NULL};
    size_t count;
    const struct gb_recipe *recipes = gb_recipes(&count);
    struct gb_error error;
    command_parse(&argp, argc, argv, &options);
    for (size_t i = 0; i < count; i++) {
        struct gb_block_format format = gb_block_format_of(&recipes[i].quantiser);
        bool first = format.element && wanted(&options, recipes[i].name);
        for (size_t j = 0; j < i && first; j++) {
            struct gb_block_format other = gb_block_format_of(&recipes[j].quantiser);
            first = !gb_block_format_same(&format, &other) || !wanted(&options, recipes[j].name);
        }
        if (first && write_format(&options, recipes, i, count, &error) != GB_OK)
            return command_error("vectors", "%s", error.message);
    }
    return EXIT_PASS;
}

const struct command command_vectors = {"vectors", run_vectors, &argp, "write conformance vectors of recipes"};
