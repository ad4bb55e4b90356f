/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures/fixtures.h"
#include "harness/command.h"
#include "harness/input.h"
#include "harness/verdict.h"
#include "harness/worker.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary; /* NULL: not for people */
} commands[] = {
    {"list", command_list, "what there is: formats, recipes, contracts, kernels, devices, gates"},
    {"make", command_make, "generate a problem"},
    {"import", command_import, "make a problem from a checkpoint"},
    {"info", command_info, "describe a problem"},
    {"verify", command_verify, "judge kernels, or outputs, on problems"},
    {"diff", command_diff, "compare two records of verify"},
    {"power", command_power, "what a gate sees on a problem: planted faults, smallest errors"},
    {"vectors", command_vectors, "write conformance vectors of recipes"},
    {"identify", command_identify, "name the recipe that a quantiser implements"},
    {"worker", worker_main, NULL},
    {"probe", probe_main, NULL},
};

static void usage(FILE *stream)
{
    fprintf(stream, "Usage: gaugeblock COMMAND [OPTION...]\n"
                    "The reference standard for block-scaled Mixture-of-Experts numerics.\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (commands[i].summary)
            fprintf(stream, "  %-8s %s\n", commands[i].name, commands[i].summary);
    fprintf(stream, "\nExample:\n"
                    "  gaugeblock make layer.h5 --shape 64,8,1024,512 --format nvfp4 --tokens 8\n"
                    "  gaugeblock verify layer.h5\n\n"
                    "gaugeblock COMMAND --help tells more. Exit codes: 0 PASS, 1 FAIL, 2 bad usage or input,\n"
                    "3 NOT_RUN or UNSUPPORTED, 4 VACUOUS, 5 CRASH or time-out, 6 NONDETERMINISTIC.\n");
}

/* Ends the program's output: `code`, unless some of it could not be written. */
static int finish(const char *command, int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    fprintf(stderr, "gaugeblock%s%s: standard output: %s\n", *command ? " " : "", command, strerror(errno));
    return code ? code : EXIT_USAGE;
}

void usage_error(const struct argp_state *state, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "%s: ", state->name);
    vfprintf(stderr, format, list);
    fprintf(stderr, "; see %s --help\n", state->name);
    va_end(list);
    exit(EXIT_USAGE);
}

/* Around a command's parser: argp itself prints nothing. */
static error_t parse_quietly(int key, char *argument, struct argp_state *state)
{
    (void)argument;
    if (key == ARGP_KEY_INIT)
        state->child_inputs[0] = state->input;
    else if (key == ARGP_KEY_ERROR)
        usage_error(state, "%s: no such option, or its value is missing", state->argv[state->next - 1]);
    else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

void command_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    char name[64];
    const struct argp_child children[] = {{argp, 0, NULL, 0}, {0}};
    const struct argp quiet = {.parser = parse_quietly, .children = children};
    const char *command = argv[0];
    snprintf(name, sizeof name, "gaugeblock %s", command);
    argv[0] = name;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-?")) {
            argp_help(argp, stdout, ARGP_HELP_STD_HELP, name);
            exit(finish(command, EXIT_PASS));
        }
    if (argp_parse(&quiet, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP, NULL, input))
        exit(EXIT_USAGE);
}

int command_error(const char *command, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "gaugeblock %s: ", command);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    return EXIT_USAGE;
}

int parse_number(const char *text, uint64_t low, uint64_t high, uint64_t *value)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || n < low || n > high)
        return 0;
    *value = n;
    return 1;
}

int main(int argc, char **argv)
{
    gb_hdf5_no_atexit();
    if (argc < 2) {
        fprintf(stderr, "gaugeblock: name a command; see gaugeblock --help\n");
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-?") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return finish("", EXIT_PASS);
    }
    if (!strcmp(argv[1], "--version")) {
        printf("gaugeblock %s, kernel ABI %u\n", GB_VERSION, GB_ABI_VERSION);
        return finish("", EXIT_PASS);
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(argv[1], commands[i].name))
            return finish(commands[i].name, commands[i].run(argc - 1, argv + 1));
    fprintf(stderr, "gaugeblock: no command named '%s'; see gaugeblock --help\n", argv[1]);
    return EXIT_USAGE;
}
