/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "harness/program/command.h"
#include "harness/judge/policy.h"
#include "harness/program/models.h"
#include "harness/run/library.h"
#include "harness/run/probe.h"
#include "harness/run/text.h"
#include "harness/run/verdict.h"
#include "quant/quant.h"
#include "reference/reference.h"

static int list_formats(void)
{
    size_t count;
    const struct gb_format_row *formats = gb_weight_formats(&count);
    printf("%-8s %-18s %s\n", "format", "columns per scale", "bytes of a row of 64");
    for (size_t i = 0; i < count; i++)
        printf("%-8s %-18u %zu\n", formats[i].name, formats[i].block,
               gb_row_code_bytes(formats[i].format, 64) + gb_row_scale_bytes(formats[i].format, 64));
    return EXIT_PASS;
}

static int list_recipes(void)
{
    size_t count;
    const struct gb_recipe *recipes = gb_recipes(&count);
    for (size_t i = 0; i < count; i++)
        printf("%s\n  weight format: %s\n  %s\n  source: %s\n", recipes[i].name,
               recipes[i].format ? gb_format_name(recipes[i].format) : "none", recipes[i].summary, recipes[i].source);
    return EXIT_PASS;
}

static int list_conversions(void)
{
    static const char *const rounding[] = {"", "ties-to-even", "ties-to-zero", "toward-zero", "away-from-zero"};
    static const char *const beyond[] = {"", "largest", "infinity", "NaN"};
    static const char *const sign[] = {"", "positive", "signed", "inverted"};
    static const char *const zero[] = {"", "signed", "unsigned", "signed-underflow", "negative", "nan"};
    size_t count;
    const struct gb_conversion *rows = gb_conversions(&count);
    printf("%-28s %-15s %-7s %-9s %-9s %-6s %-9s %-17s %s\n", "conversion", "rounding", "largest", "overflow",
           "infinity", "nan", "nan sign", "zero", "source");
    for (size_t i = 0; i < count; i++)
        printf("%-28s %-15s 0x%-5X %-9s %-9s 0x%-4X %-9s %-17s %s\n", rows[i].name, rounding[rows[i].rounding],
               rows[i].largest, beyond[rows[i].overflow], beyond[rows[i].infinity], rows[i].nan, sign[rows[i].nan_sign],
               zero[rows[i].zero], rows[i].source);
    return EXIT_PASS;
}

static int list_routers(void)
{
    size_t count;
    const struct gb_router_recipe *recipes = gb_router_recipes(&count);
    for (size_t i = 0; i < count; i++)
        printf("%s\n  %s\n  source: %s\n", recipes[i].name, recipes[i].summary, recipes[i].source);
    return EXIT_PASS;
}

static int list_contracts(void)
{
    size_t count;
    const struct gb_contract *contracts = gb_contracts(&count);
    for (size_t i = 0; i < count; i++)
        printf("%s\n  %s\n", contracts[i].name, contracts[i].summary);
    return EXIT_PASS;
}

/* Each as a gate file would have it. */
static int list_gates(void)
{
    struct policy policy;
    for (unsigned i = 0; policy_preset(i, &policy); i++) {
        json_t *object = policy_json(&policy);
        json_dumpf(object, stdout, JSON_REAL_PRECISION(9));
        putchar('\n');
        json_decref(object);
    }
    return EXIT_PASS;
}

static int list_models(void)
{
    size_t count;
    const struct model *all = models(&count);
    printf("%-20s %8s %6s %8s %13s  %-26s %s\n", "model", "experts", "top-k", "hidden", "intermediate", "router",
           "source");
    for (size_t i = 0; i < count; i++)
        printf("%-20s %8u %6u %8u %13u  %-26s %s\n", all[i].name, all[i].shape.experts, all[i].shape.top_k,
               all[i].shape.hidden, all[i].shape.intermediate,
               all[i].router[0] ? all[i].router : gb_router_recipe_default(true)->name, all[i].source);
    return EXIT_PASS;
}

enum { MAX_SUBJECTS = 16 };

struct list_options {
    size_t list; /* of `lists` */
    const char *subjects[MAX_SUBJECTS];
    uint32_t subject_count;
    unsigned timeout_s;
};

static void list_table(const struct subject_library *library)
{
    for (uint32_t i = 0; i < library->count; i++) {
        const struct gb_kernel *k = &library->kernels[i];
        struct gb_error error = {"available"};
        char device[256];
        if (k->flags & GB_DEVICE_POINTERS)
            library_device(device, sizeof device, &error);
        printf("%-30s %-17s %-8s %-6s %-9s %s\n", k->name,
               k->flags & GB_ROUTES ? "route and layer" : operator_name(k->operation), kernel_weights_name(k),
               gb_format_name(k->output), k->order ? k->order : "none", error.message);
    }
}

static int list_library(const char *path, unsigned timeout_s)
{
    struct subject_library library;
    struct gb_error error;
    enum verdict verdict = VERDICT_BAD_INPUT;
    if (library_read(path, timeout_s, &library, &error) != GB_OK) {
        command_error("list", "%s", error.message);
    } else if ((verdict = library.verdict) != VERDICT_PASS) {
        command_error("list", "%s: %s", path_end(path), library.reason);
    } else {
        list_table(&library);
        library_free(&library);
    }
    return verdict_exit_code(verdict);
}

static int list_kernels(const struct list_options *o)
{
    struct gb_error error;
    char path[4096];
    int code = EXIT_PASS;
    printf("%-30s %-17s %-8s %-6s %-9s %s\n", "kernel", "operator", "weights", "output", "order", "status");
    for (uint32_t i = 0; i < o->subject_count; i++) {
        int one = list_library(o->subjects[i], o->timeout_s);
        code = one > code ? one : code; /* a crash is graver than a library that is refused */
    }
    if (o->subject_count)
        return code;
    list_library(BUILTIN_LIBRARY, o->timeout_s);
    if (library_cuda_path(path, sizeof path, &error) == GB_OK)
        return list_library(path, o->timeout_s);
    printf("%-30s %s\n", "cuda/*", error.message);
    return EXIT_PASS;
}

static int list_devices(void)
{
    struct gb_error error;
    char text[256];
    printf("host: always there\n");
    printf("cuda: %s\n", library_device(text, sizeof text, &error) == GB_OK ? text : error.message);
    return EXIT_PASS;
}

enum { OPTION_SUBJECT = 256, OPTION_TIMEOUT, MOST_WORDS = 256 };

static const struct argp_option options[] = {
    {"subject", OPTION_SUBJECT, "LIB.so", OPTION_REPEATABLE, "list this library's kernels instead (repeatable)", 0},
    {"timeout", OPTION_TIMEOUT, "S", 0, "seconds that reading a library may take; 600 by default", 0},
    {0},
};

/* "kernels" is the one that has options. */
static const struct {
    const char *name;
    int (*list)(void);
} lists[] = {
    {"formats", list_formats},         {"recipes", list_recipes},
    {"differences", list_differences}, {"conversions", list_conversions},
    {"routers", list_routers},         {"contracts", list_contracts},
    {"models", list_models},           {"kernels", NULL},
    {"devices", list_devices},         {"gates", list_gates},
};
enum { LISTS = sizeof lists / sizeof *lists };

/* All of them, ", " between. */
static const char *list_names(char *text, size_t bytes)
{
    text[0] = '\0';
    for (size_t i = 0; i < LISTS; i++) {
        size_t length = strlen(text);
        snprintf(text + length, bytes - length, "%s%s", i ? ", " : "", lists[i].name);
    }
    return text;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct list_options *o = state->input;
    char names[MOST_WORDS];
    uint64_t value;
    switch (key) {
    case OPTION_SUBJECT:
        if (o->subject_count == MAX_SUBJECTS)
            usage_error(state, "at most %d times --subject", MAX_SUBJECTS);
        o->subjects[o->subject_count++] = argument;
        return 0;
    case OPTION_TIMEOUT:
        if (!parse_number(argument, 1, 1 << 20, &value))
            usage_error(state, "--timeout %s: give a number of seconds from 1 to %d", argument, 1 << 20);
        o->timeout_s = (unsigned)value;
        return 0;
    case ARGP_KEY_NO_ARGS:
        usage_error(state, "name a list: %s", list_names(names, sizeof names));
        return 0;
    case ARGP_KEY_ARG:
        if (o->list < LISTS)
            usage_error(state, "one list at a time");
        for (o->list = 0; o->list < LISTS && strcmp(lists[o->list].name, argument);)
            o->list++;
        if (o->list == LISTS)
            usage_error(state, "no list named '%s'; there are %s", argument, list_names(names, sizeof names));
        return 0;
    case ARGP_KEY_END:
        if (o->subject_count && lists[o->list].list)
            usage_error(state, "--subject goes with kernels");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "formats|recipes|differences|conversions|routers|contracts|models|kernels|devices|gates",
    .doc = "Print what this build knows.\v"
           "Examples:\n"
           "  gaugeblock list kernels\n"
           "  gaugeblock list kernels --subject ./libmine.so",
};

static int run_list(int argc, char **argv)
{
    struct list_options o = {.list = LISTS, .timeout_s = INPUT_TIMEOUT_S};
    command_parse(&argp, argc, argv, &o);
    return lists[o.list].list ? lists[o.list].list() : list_kernels(&o);
}

const struct command command_list = {"list", run_list, &argp,
                                     "what there is: formats, recipes, contracts, kernels, devices, gates"};
