/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures/fixtures.h"
#include "harness/command.h"
#include "harness/verdict.h"
#include "harness/worker.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary; /* NULL: not for people */
} commands[] = {
    {"list", command_list, "what there is: formats, recipes, contracts, kernels, devices"},
    {"make", command_make, "generate a problem"},
    {"import", command_import, "make a problem from a checkpoint"},
    {"info", command_info, "describe a problem"},
    {"verify", command_verify, "judge kernels, or outputs, on problems"},
    {"diff", command_diff, "compare two records of verify"},
    {"worker", worker_main, NULL},
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

void command_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    char name[64];
    snprintf(name, sizeof name, "gaugeblock %s", argv[0]);
    argv[0] = name;
    argp_err_exit_status = EXIT_USAGE;
    if (argp_parse(argp, argc, argv, 0, NULL, input))
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
        usage(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-?") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return EXIT_PASS;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("gaugeblock %s, kernel ABI %u\n", GB_VERSION, GB_ABI_VERSION);
        return EXIT_PASS;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(argv[1], commands[i].name)) {
            int code = commands[i].run(argc - 1, argv + 1);
            if (fflush(stdout) || ferror(stdout)) {
                fprintf(stderr, "gaugeblock %s: standard output: %s\n", commands[i].name, strerror(errno));
                return code ? code : EXIT_USAGE;
            }
            return code;
        }
    fprintf(stderr, "gaugeblock: no command named '%s'; see gaugeblock --help\n", argv[1]);
    return EXIT_USAGE;
}
