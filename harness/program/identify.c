/* SPDX-License-Identifier: Apache-2.0 */
/* gaugeblock identify: names the recipe that a quantiser implements. */
#include <stdio.h>
#include <string.h>

#include "harness/program/command.h"
#include "harness/judge/identification.h"
#include "harness/run/probe.h"
#include "harness/report/record.h"
#include "harness/run/output_guard.h"

#define IDENTIFICATION_SCHEMA "gaugeblock-identification/1"

struct options {
    const char *vectors, *outputs, *scales, *record;
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;
    size_t length = argument ? strlen(argument) : 0;
    if (key == 's')
        options->scales = argument;
    else if (key == 'o' && (length < 5 || strcmp(argument + length - 5, ".json")))
        usage_error(state, "-o %s: the extension must be .json", argument);
    else if (key == 'o')
        options->record = argument;
    else if (key == ARGP_KEY_ARG && !options->vectors)
        options->vectors = argument;
    else if (key == ARGP_KEY_ARG && !options->outputs)
        options->outputs = argument;
    else if (key == ARGP_KEY_ARG)
        usage_error(state, "one file of outputs at a time; the scales of a .npy file are named with --scales");
    else if (key == ARGP_KEY_END && !options->outputs)
        usage_error(state, "name the vectors' inputs and a file of outputs");
    else if (key != ARGP_KEY_END)
        return ARGP_ERR_UNKNOWN;
    return 0;
}

/* The record. */

/* How many of each class; those of which there are none are left out. */
static json_t *counts(const size_t *numbers, const char *const *names, unsigned classes)
{
    json_t *object = json_object();
    for (unsigned i = 0; i < classes; i++)
        if (numbers[i])
            json_object_set_new(object, names[i], json_integer((json_int_t)numbers[i]));
    return object;
}

static json_t *difference(const struct quantiser_difference *d)
{
    static const char *const blocks[] = {"non-finite blocks", "zero blocks", "blocks of subnormal maximum",
                                         "other blocks"};
    static const char *const elements[] = {"NaN", "infinities", "zeros", "what becomes zero", "other values"};
    return json_pack("{s:I, s:I, s:I, s:o, s:o}", "blocks", (json_int_t)d->blocks, "nonfinite_blocks",
                     (json_int_t)d->nonfinite_blocks, "global_scales", (json_int_t)d->globals, "scales",
                     counts(d->scales, blocks, BLOCK_CLASSES), "codes", counts(d->codes, elements, ELEMENT_CLASSES));
}

static json_t *hexadecimal(uint32_t bits, int digits)
{
    char text[12];
    snprintf(text, sizeof text, "%0*X", digits, bits);
    return json_string(text);
}

static json_t *scale_at(const struct gb_vectors *v, const struct gb_vector_outputs *outputs, size_t block)
{
    uint32_t bits = 0, size = gb_vectors_scale_bytes(v);
    memcpy(&bits, outputs->scales + block * size, size);
    return hexadecimal(bits, 2 * (int)size);
}

/* The first block that differs: at most 16 columns of it, from the first code that differs. */
static json_t *first(const struct gb_vectors *v, const struct gb_vector_outputs *expected,
                     const struct gb_vector_outputs *found, const struct quantiser_difference *d)
{
    enum { SHOWN = 16 };
    uint32_t length = v->format.block_columns ? v->format.block_columns : v->columns, across = d->first_column / length;
    uint32_t end = (across + 1) * length < v->columns ? (across + 1) * length : v->columns;
    size_t row = (size_t)d->first_case * v->rows + d->first_row, down = d->first_row / v->format.block_rows;
    size_t block = (d->first_case * gb_vectors_down(v) + down) * gb_vectors_across(v) + across;
    json_t *inputs = json_array(), *codes[2] = {json_array(), json_array()};
    if (end > d->first_column + SHOWN)
        end = d->first_column + SHOWN;
    for (uint32_t column = d->first_column; column < end; column++) {
        json_array_append_new(inputs, hexadecimal(v->values[row * v->columns + column].bits, 4));
        json_array_append_new(codes[0], hexadecimal(gb_vectors_code(v, expected, row, column), 2));
        json_array_append_new(codes[1], hexadecimal(gb_vectors_code(v, found, row, column), 2));
    }
    return json_pack("{s:i, s:i, s:i, s:o, s:{s:o, s:o}, s:{s:o, s:o}}", "case", (int)d->first_case, "row",
                     (int)d->first_row, "column", (int)d->first_column, "inputs", inputs, "scale", "expected",
                     scale_at(v, expected, block), "found", scale_at(v, found, block), "codes", "expected", codes[0],
                     "found", codes[1]);
}

/* What separates the outputs from the closest recipe. */
static enum gb_status add_closest(json_t *record, const struct gb_vectors *v, const struct gb_vector_outputs *theirs,
                                  const struct identification *found, struct gb_error *error)
{
    struct gb_vector_outputs *ours;
    const struct rule_change *change = &found->change;
    enum gb_status status = gb_vector_outputs_run(v, &found->closest->quantiser, &ours, error);
    if (status != GB_OK)
        return status;
    json_object_set_new(record, "closest", json_string(found->closest->name));
    json_object_set_new(record, "change",
                        change->rule
                            ? json_pack("{s:s, s:s, s:s}", "rule", change->rule, "from", change->from, "to", change->to)
                            : json_null());
    json_object_set_new(record, "difference", difference(&found->difference));
    if (found->difference.blocks)
        json_object_set_new(record, "first", first(v, ours, theirs, &found->difference));
    gb_vector_outputs_free(ours);
    return GB_OK;
}

static enum gb_status identify(json_t *record, const struct gb_vectors *v, const struct gb_vector_outputs *theirs,
                               struct gb_error *error)
{
    struct identification found;
    struct gb_vectors *full = NULL;
    enum gb_status status = identify_outputs(v, theirs, &found, error);
    if (status == GB_OK && found.equals == 1)
        status = gb_vectors_make(&v->format, &full, error);
    if (status == GB_OK && full)
        status = identify_unseen(v, full, theirs, &found, error);
    gb_vectors_free(full);
    if (status != GB_OK)
        return status;
    json_t *recipes = json_array();
    for (size_t i = 0; i < found.equals; i++)
        json_array_append_new(recipes, json_string(found.equal[i]->name));
    uint32_t blocks = v->cases * gb_vectors_down(v) * gb_vectors_across(v);
    json_object_set_new(record, "format", json_string(v->name));
    json_object_set_new(record, "blocks", json_integer(blocks));
    json_object_set_new(record, "recipes", recipes);
    json_t *unseen = json_array();
    for (size_t i = 0; i < found.unseen_count; i++)
        json_array_append_new(unseen, json_string(found.unseen[i]));
    json_object_set_new(record, "unseen", unseen);
    enum verdict verdict = !found.equals                                ? VERDICT_FAIL
                           : found.equals > 1 || found.unseen_count > 0 ? VERDICT_VACUOUS
                                                                        : VERDICT_PASS;
    json_object_set_new(record, "verdict", json_string(verdict_name(verdict)));
    json_object_set_new(record, "exit_code", json_integer(verdict_exit_code(verdict)));
    return found.equals || !found.closest ? GB_OK : add_closest(record, v, theirs, &found, error);
}

/* The record for people. */

static void print_counts(const char *what, const json_t *of)
{
    json_int_t sum = 0;
    const char *name, *separator = " (";
    json_t *count;
    json_object_foreach((json_t *)of, name, count) sum += json_integer_value(count);
    if (!sum)
        return;
    printf("  %s: %lld", what, (long long)sum);
    json_object_foreach((json_t *)of, name, count)
    {
        printf("%s%s %lld", separator, name, (long long)json_integer_value(count));
        separator = ", ";
    }
    printf(")\n");
}

static void print_list(const char *name, const json_t *list)
{
    printf("    %-9s", name);
    for (size_t i = 0; i < json_array_size(list); i++)
        printf(" %4s", json_string_value(json_array_get(list, i)));
    printf("\n");
}

static void print_first(const json_t *first)
{
    const json_t *codes = json_object_get(first, "codes");
    printf("  first: case %.0f, row %.0f, from column %.0f\n", record_number(first, "case", NULL),
           record_number(first, "row", NULL), record_number(first, "column", NULL));
    printf("    %-9s expected %s, found %s\n", "scale", record_text(first, "scale", "expected", NULL),
           record_text(first, "scale", "found", NULL));
    print_list("inputs", json_object_get(first, "inputs"));
    print_list("expected", json_object_get(codes, "expected"));
    print_list("found", json_object_get(codes, "found"));
}

static void print_unseen(const json_t *unseen)
{
    printf("not named: for all that these inputs show, other rules would be as good:");
    for (size_t i = 0; i < json_array_size(unseen); i++)
        printf("%s %s", i ? "," : "", json_string_value(json_array_get(unseen, i)));
    printf("; take those that gaugeblock vectors writes\n");
}

static void print(const json_t *record)
{
    const json_t *recipes = json_object_get(record, "recipes"), *d = json_object_get(record, "difference");
    const char *closest = record_text(record, "closest", NULL), *rule = record_text(record, "change", "rule", NULL);
    double blocks = record_number(d, "blocks", NULL), globals = record_number(d, "global_scales", NULL);
    for (size_t i = 0; i < json_array_size(recipes); i++)
        printf("%s%s\n", json_string_value(json_array_get(recipes, i)),
               i ? " (the same in every bit of these vectors)" : "");
    if (json_array_size(json_object_get(record, "unseen")))
        print_unseen(json_object_get(record, "unseen"));
    if (json_array_size(recipes) > 1)
        printf("not named: these inputs do not tell them apart; take those that gaugeblock vectors writes\n");
    if (json_array_size(recipes))
        return;
    if (!*closest) {
        printf("unknown: there is no recipe of the block format %s\n", record_text(record, "format", NULL));
        return;
    }
    printf("unknown, closest %s, differs at %.0f of %.0f blocks%s\n", closest, blocks,
           record_number(record, "blocks", NULL),
           blocks > 0 && blocks == record_number(d, "nonfinite_blocks", NULL) ? ", all of them with NaN or infinity"
                                                                              : "");
    if (*rule)
        printf("  it is %s with another %s: %s instead of %s\n", closest, rule,
               record_text(record, "change", "to", NULL), record_text(record, "change", "from", NULL));
    if (globals > 0)
        printf("  global scales: %.0f\n", globals);
    print_counts("scales", json_object_get(d, "scales"));
    print_counts("codes", json_object_get(d, "codes"));
    if (blocks > 0)
        print_first(json_object_get(record, "first"));
}

static int report(const struct options *options, json_t *record, const struct gb_vectors *vectors,
                  const struct gb_vector_outputs *outputs)
{
    struct gb_error error;
    json_object_set_new(record, "vectors", record_file(options->vectors));
    json_object_set_new(record, "outputs", record_file(options->outputs));
    if (options->scales)
        json_object_set_new(record, "scales", record_file(options->scales));
    enum gb_status status = identify(record, vectors, outputs, &error);
    if (status == GB_OK && options->record)
        status = report_write(options->record, record, &error);
    if (status != GB_OK)
        return command_error("identify", "%s", error.message);
    print(record);
    return (int)json_integer_value(json_object_get(record, "exit_code"));
}

static const struct argp_option options[] = {
    {"scales", 's', "FILE", 0, "the scales, where OUTPUTS is a .npy file of codes", 0},
    {"record", 'o', "FILE", 0, "also write the finding as .json", 0},
    {0},
};

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "VECTORS OUTPUTS",
    .doc =
        "Name the recipe that a quantiser implements, from what it made of a block format's inputs. VECTORS is "
        "the file of inputs. OUTPUTS is HDF5 or .safetensors with the arrays codes, scales and, if there are "
        "any, global_scales; .npy with the codes; or a recipe's file of vectors.\v"
        "Exit codes: 0 named, 1 unknown, 2 bad usage or input, 4 inputs that tell too little. docs/vectors.md describes the files.\n\n"
        "Example:\n  gaugeblock identify fixtures/vectors/e4m3-1x32-e8m0.txt outputs.h5",
};

static int run_identify(int argc, char **argv)
{
    struct options o = {.vectors = NULL};
    struct gb_vectors *vectors;
    struct gb_vector_outputs *outputs;
    struct gb_error error;
    command_parse(&argp, argc, argv, &o);
    const char *const inputs[] = {o.vectors, o.outputs, o.scales};
    if (o.record && output_guard(o.record, inputs, 3, &error) != GB_OK)
        return command_error("identify", "%s", error.message);
    if (gb_vectors_read(o.vectors, &vectors, &error) != GB_OK)
        return command_error("identify", "%s", error.message);
    int code = input_vector_outputs(o.outputs, o.scales, o.vectors, vectors, &outputs, &error);
    if (code == EXIT_PASS) {
        json_t *record = record_begin(IDENTIFICATION_SCHEMA, argc, argv);
        code = report(&o, record, vectors, outputs);
        json_decref(record);
        gb_vector_outputs_free(outputs);
    } else {
        command_error("identify", "%s", error.message);
    }
    gb_vectors_free(vectors);
    return code;
}

const struct command command_identify = {"identify", run_identify, &argp,
                                         "name the recipe that a quantiser implements"};
