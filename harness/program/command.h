/* SPDX-License-Identifier: Apache-2.0 */
/* The program's commands. Each gets argv from its own name on and returns an exit code (harness/run/verdict.h). */
#ifndef GB_HARNESS_PROGRAM_COMMAND_H
#define GB_HARNESS_PROGRAM_COMMAND_H

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include "gaugeblock.h"
#include "harness/run/text.h"

/* A command: the file of each defines one, command_NAME, and main.c lists it. */
struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const struct argp *argp;
    const char *summary; /* NULL: not for people, and without argp */
};

/* What the program says of itself, in its help and in its manual. */
#define PROGRAM_SUMMARY "the reference standard for block-scaled Mixture-of-Experts numerics"
#define PROGRAM_EXAMPLE                                                                                                \
    "  gaugeblock make layer.h5 --shape 64,8,1024,512 --format nvfp4 --tokens 8\n"                                     \
    "  gaugeblock verify layer.h5\n"
#define PROGRAM_EXIT_CODES                                                                                             \
    "Exit codes: 0 PASS, 1 FAIL, 2 bad usage or input, 3 NOT_RUN or UNSUPPORTED, 4 VACUOUS,\n"                         \
    "5 CRASH or time-out, 6 NONDETERMINISTIC.\n"

/* A list that is long enough for a file of its own; harness/program/list.c has the others. */
int list_differences(void);

/* Ends the program's output: `code`, unless some of it could not be written, which it says. */
int command_finish(const char *command, int code);
/* A flag of struct argp_option, beside argp's: the option may be given more than once. */
enum { OPTION_REPEATABLE = 0x1000 };
/* --help, which every command has. */
extern const struct argp_option help_option;
/* Whether an option has a short form, which is its key. */
bool option_has_letter(const struct argp_option *option);
/* Parses with argp; exits with 2 on bad usage, such as an option with a value given twice, and 0 after --help. */
void command_parse(const struct argp *argp, int argc, char **argv, void *input);
/* What a parser calls instead of argp's own, which prints three lines: one line on stderr, then exits with 2. */
_Noreturn void usage_error(const struct argp_state *state, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A whole number from low to high, and the first 3 or 4 sizes experts,top_k,hidden,intermediate of --shape; anything
 * else is a usage error. */
uint64_t option_number(const struct argp_state *state, const char *name, const char *text, uint64_t low, uint64_t high);
void option_shape(const struct argp_state *state, const char *text, int sizes, struct gb_shape *shape);
#pragma GCC poison argp_error argp_usage
/* Prints "gaugeblock COMMAND: message" on stderr and returns EXIT_USAGE. */
int command_error(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
