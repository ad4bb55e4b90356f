/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "harness/program/command.h"
#include "harness/judge/policy.h"
#include "harness/program/models.h"
#include "harness/run/subject.h"
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
    struct gate gate;
    for (unsigned i = 0; gate_preset(i, &gate); i++) {
        json_t *object = gate_json(&gate);
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
               all[i].router[0] ? all[i].router : gb_router_recipe_default(all[i].renormalise)->name, all[i].source);
    return EXIT_PASS;
}

static void list_table(const struct subject_library *library)
{
    for (uint32_t i = 0; i < library->table->count; i++) {
        const struct gb_kernel *k = subject_kernel(library, i);
        const struct gb_device *memory;
        struct gb_error error = {"available"};
        subject_memory(k, &memory, &error);
        printf("%-30s %-17s %-8s %-6s %-9s %s\n", k->name,
               k->flags & GB_ROUTES ? "route and layer" : operator_name(k->operation), kernel_weights_name(k),
               gb_format_name(k->output), k->order ? k->order : "none", error.message);
    }
}

static int list_kernels(void)
{
    struct subject_library library;
    struct gb_error error;
    char path[4096];
    printf("%-30s %-17s %-8s %-6s %-9s %s\n", "kernel", "operator", "weights", "output", "order", "status");
    if (subject_library_open(BUILTIN_LIBRARY, &library, &error) == GB_OK)
        list_table(&library);
    enum gb_status status = subject_cuda_path(path, sizeof path, &error);
    if (status == GB_OK)
        status = subject_library_open(path, &library, &error);
    if (status == GB_OK)
        list_table(&library);
    else
        printf("%-30s %s\n", "cuda/*", error.message);
    return EXIT_PASS;
}

static int list_devices(void)
{
    struct subject_library library;
    struct gb_error error;
    char path[4096], text[256];
    printf("host: always there\n");
    enum gb_status status = subject_cuda_path(path, sizeof path, &error);
    if (status == GB_OK)
        status = subject_library_open(path, &library, &error);
    const struct gb_device *device = NULL;
    for (uint32_t i = 0; status == GB_OK && !device && i < library.table->count; i++)
        if (subject_kernel(&library, i)->flags & GB_DEVICE_POINTERS)
            status = subject_memory(subject_kernel(&library, i), &device, &error);
    if (status == GB_OK && device)
        status = device->describe(text, sizeof text, &error);
    printf("cuda: %s\n", status == GB_OK ? text : error.message);
    return EXIT_PASS;
}

static const struct {
    const char *name;
    int (*list)(void);
} lists[] = {
    {"formats", list_formats},         {"recipes", list_recipes},
    {"differences", list_differences}, {"conversions", list_conversions},
    {"routers", list_routers},         {"contracts", list_contracts},
    {"models", list_models},           {"kernels", list_kernels},
    {"devices", list_devices},         {"gates", list_gates},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    int (**list)(void) = state->input;
    if (key == ARGP_KEY_NO_ARGS)
        usage_error(
            state,
            "name a list: formats, recipes, differences, conversions, routers, contracts, models, kernels, devices or gates");
    if (key != ARGP_KEY_ARG)
        return key == ARGP_KEY_END ? 0 : ARGP_ERR_UNKNOWN;
    if (*list)
        usage_error(state, "one list at a time");
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (!strcmp(lists[i].name, argument))
            *list = lists[i].list;
    if (!*list)
        usage_error(
            state,
            "no list named '%s'; there are formats, recipes, differences, conversions, routers, contracts, models, "
            "kernels, devices, gates",
            argument);
    return 0;
}

static const struct argp argp = {
    .parser = parse,
    .args_doc = "formats|recipes|differences|conversions|routers|contracts|models|kernels|devices|gates",
    .doc = "Print what this build knows.\v"
           "Example:\n  gaugeblock list kernels",
};

static int run_list(int argc, char **argv)
{
    int (*list)(void) = NULL;
    command_parse(&argp, argc, argv, &list);
    return list();
}

const struct command command_list = {"list", run_list, &argp,
                                     "what there is: formats, recipes, contracts, kernels, devices, gates"};
