/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fixtures/fixtures.h"
#include "harness/child.h"
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
    {"guard", guard_main, NULL},
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

/* Descriptors 0 to 2 that are closed would become files of ours: /dev/null takes their place, and still cannot be
 * written. */
static void open_standard(void)
{
    int descriptor;
    do
        descriptor = open("/dev/null", O_RDONLY);
    while (descriptor >= 0 && descriptor <= STDERR_FILENO);
    if (descriptor >= 0)
        close(descriptor);
}

int main(int argc, char **argv)
{
    open_standard();
    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is an error of write */
    gb_hdf5_no_atexit();
    if (argc < 2) {
        fprintf(stderr, "gaugeblock: name a command; see gaugeblock --help\n");
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-?") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return command_finish("", EXIT_PASS);
    }
    if (!strcmp(argv[1], "--version")) {
        printf("gaugeblock %s, kernel ABI %u\n", GB_VERSION, GB_ABI_VERSION);
        return command_finish("", EXIT_PASS);
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(argv[1], commands[i].name))
            return command_finish(commands[i].name, commands[i].run(argc - 1, argv + 1));
    fprintf(stderr, "gaugeblock: no command named '%s'; see gaugeblock --help\n", argv[1]);
    return EXIT_USAGE;
}
