/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixtures/fixtures.h"
#include "harness/run/child.h"
#include "harness/program/command.h"
#include "harness/run/probe.h"
#include "harness/program/manual.h"
#include "harness/run/verdict.h"
#include "harness/run/worker.h"

/* Those for people, in the order of the help; each is the struct command of its file. */
#define COMMANDS_SHOWN(X)                                                                                              \
    X(list)                                                                                                            \
    X(make) X(import) X(info) X(inspect) X(verify) X(bench) X(diff) X(power) X(study) X(report) X(vectors) X(identify)

#define DECLARE(NAME) extern const struct command command_##NAME;
COMMANDS_SHOWN(DECLARE)

/* Those that the program starts itself; a sanitizer or a debugger watches `worker`, which nothing guards. */
static const struct command guard = {"guard", guard_main, NULL, NULL};
static const struct command worker = {"worker", worker_main, NULL, NULL};
static const struct command probe = {"probe", probe_main, NULL, NULL};

#define ADDRESS(NAME) , &command_##NAME
static const struct command *const commands[] = {&guard, &worker, &probe COMMANDS_SHOWN(ADDRESS)};
enum { COMMANDS = sizeof commands / sizeof *commands };

static const struct command *find(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (!strcmp(name, commands[i]->name))
            return commands[i];
    return NULL;
}

static void usage(FILE *stream)
{
    fprintf(stream,
            "Usage: gaugeblock COMMAND [OPTION...]\n"
            "%c%s.\n\n",
            PROGRAM_SUMMARY[0] - 'a' + 'A', PROGRAM_SUMMARY + 1);
    for (size_t i = 0; i < COMMANDS; i++)
        if (commands[i]->summary)
            fprintf(stream, "  %-9s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(stream, "\nExample:\n%s\n%s\ngaugeblock help COMMAND tells more.\n", PROGRAM_EXAMPLE, PROGRAM_EXIT_CODES);
}

/* gaugeblock help [COMMAND] */
static int help(int argc, char **argv)
{
    const struct command *command = argc > 2 ? find(argv[2]) : NULL;
    char *words[] = {argc > 2 ? argv[2] : NULL, "--help", NULL};
    if (argc <= 2) {
        usage(stdout);
        return command_finish("", EXIT_PASS);
    }
    if (command && command->summary && argc == 3)
        return command->run(2, words);
    fprintf(stderr, "gaugeblock help: name one command; see gaugeblock --help\n");
    return EXIT_USAGE;
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

/* Threads without work give their processor back, where the environment does not say how they wait. OpenMP and
 * OpenBLAS ask it before main, so the program starts itself once more; what it starts then is as if it had not: a
 * subject that is timed has threads as they are. */
static void wait_passively(char **argv)
{
    enum { ASKED = 2 };
    static const char *const name[ASKED] = {"OMP_WAIT_POLICY", "OPENBLAS_THREAD_TIMEOUT"};
    static const char *const value[ASKED] = {"passive", "4"}; /* 2^4 ticks: OpenBLAS has no less */
    static const char started[] = "GAUGEBLOCK_WAITS";         /* which of them the program has set, as digits */
    char program[PATH_MAX] = "", set[ASKED + 1] = "";         /* by its own name, which others see */
    for (size_t i = 0, n = 0; !getenv(started) && i < ASKED; i++)
        if (!getenv(name[i]) && (i || !getenv("GOMP_SPINCOUNT")) && !setenv(name[i], value[i], 1))
            set[n++] = (char)('0' + i);
    if (*set && !setenv(started, set, 1) && readlink("/proc/self/exe", program, sizeof program - 1) > 0)
        execv(program, argv);
    const char *told = getenv(started) ? getenv(started) : set;
    for (size_t i = 0; i < ASKED; i++) /* by itself, or without /proc */
        if (strchr(told, '0' + (int)i))
            unsetenv(name[i]);
    unsetenv(started);
}

int main(int argc, char **argv)
{
    open_standard();
    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is an error of write */
    gb_hdf5_no_atexit();
    if (argc < 2) { /* nothing was done: not an exit code of success */
        usage(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "-?") || !strcmp(argv[1], "help"))
        return help(!strcmp(argv[1], "help") ? argc : 2, argv);
    if (!strcmp(argv[1], "--version")) {
        printf("gaugeblock %s, kernel ABI %u\n", GB_VERSION, GB_ABI_VERSION);
        return command_finish("", EXIT_PASS);
    }
    if (!strcmp(argv[1], "manual") && argc == 3) /* the build's: what is installed beside the program */
        return manual_write(commands, COMMANDS, argv[2]);
    const struct command *command = find(argv[1]);
    if (command && command->summary)
        wait_passively(argv);
    if (command)
        return command_finish(command->name, command->run(argc - 1, argv + 1));
    fprintf(stderr, "gaugeblock: no command named '%s'; see gaugeblock --help\n", argv[1]);
    return EXIT_USAGE;
}
