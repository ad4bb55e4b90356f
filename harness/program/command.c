/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/program/command.h"
#include "harness/run/verdict.h"

int command_finish(const char *command, int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    fprintf(stderr, "gaugeblock%s%s: standard output: %s\n", *command ? " " : "", command, strerror(errno));
    return code ? code : EXIT_USAGE;
}

enum { LINE = 8192 };

/* The message as one line, whatever the arguments and files hold that it quotes. */
static const char *one_line(char line[LINE], const char *format, va_list list)
{
    vsnprintf(line, LINE, format, list);
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    return line;
}

void usage_error(const struct argp_state *state, const char *format, ...)
{
    char line[LINE];
    va_list list;
    va_start(list, format);
    fprintf(stderr, "%s: %s; see %s --help\n", state->name, one_line(line, format, list), state->name);
    va_end(list);
    exit(EXIT_USAGE);
}

void option_shape(const struct argp_state *state, const char *text, int sizes, struct gb_shape *shape)
{
    uint32_t *const fields[] = {&shape->experts, &shape->top_k, &shape->hidden, &shape->intermediate};
    const char *more = sizes == 4 ? ",intermediate" : "";
    char copy[64];
    if (strlen(text) >= sizeof copy)
        usage_error(state, "--shape %s: give experts,top_k,hidden%s", text, more);
    snprintf(copy, sizeof copy, "%s", text);
    char *at = copy;
    for (int i = 0; i < sizes; i++) {
        uint64_t value;
        char *comma = strchr(at, ',');
        if ((comma != NULL) != (i < sizes - 1))
            usage_error(state, "--shape %s: give experts,top_k,hidden%s", text, more);
        if (comma)
            *comma = '\0';
        if (!parse_number(at, 1, 1 << 20, &value))
            usage_error(state, "--shape %s: '%s' is no number from 1 to %d", text, at, 1 << 20);
        *fields[i] = (uint32_t)value;
        at = comma ? comma + 1 : at;
    }
    if (shape->top_k > shape->experts)
        usage_error(state, "--shape %s: top-k %u is larger than the number of experts %u", text, shape->top_k,
                    shape->experts);
}

uint64_t option_number(const struct argp_state *state, const char *name, const char *text, uint64_t low, uint64_t high)
{
    uint64_t value = 0;
    if (!parse_number(text, low, high, &value))
        usage_error(state, "--%s %s: give a whole number from %llu to %llu", name, text, (unsigned long long)low,
                    (unsigned long long)high);
    return value;
}

/* A command's parser and what it was given so far. */
struct parsing {
    const struct argp *argp;
    void *input;
    bool given[64]; /* by the option's place */
};

/* An option that only begins as a name does is none: a script is to mean today's options with tomorrow's program too.
 */
static void refuse_abbreviation(const struct argp_option *options, int key, const char *argument,
                                const struct argp_state *state)
{
    for (size_t i = 0; options && options[i].name; i++) {
        if (options[i].key != key)
            continue;
        int behind = argument && argument == state->argv[state->next - 1]; /* as a word of its own */
        const char *word = state->argv[state->next - 1 - behind];
        size_t length = strlen(options[i].name);
        if (!strncmp(word, "--", 2) &&
            (strncmp(word + 2, options[i].name, length) || (word[2 + length] && word[2 + length] != '=')))
            usage_error(state, "%.*s: no such option; there is --%s", (int)strcspn(word, "="), word, options[i].name);
    }
}

/* Around a command's parser: argp itself prints nothing, and no value is silently replaced by a later one. */
static error_t parse_once(int key, char *argument, struct argp_state *state)
{
    struct parsing *p = state->input;
    const struct argp_option *options = p->argp->options;
    if (key == ARGP_KEY_ERROR)
        usage_error(state, "%s: no such option, or its value is missing", state->argv[state->next - 1]);
    refuse_abbreviation(options, key, argument, state);
    for (size_t i = 0; options && options[i].name && i < sizeof p->given / sizeof *p->given; i++)
        if (options[i].key == key && options[i].arg && !(options[i].flags & OPTION_REPEATABLE)) {
            if (p->given[i])
                usage_error(state, key < 128 && isgraph(key) ? "--%s (-%c) is given twice" : "--%s is given twice",
                            options[i].name, key);
            p->given[i] = true;
        }
    state->input = p->input;
    error_t status = p->argp->parser(key, argument, state);
    state->input = p;
    return status;
}

const struct argp_option help_option = {"help", 'h', NULL, 0, "print this help", 0};

bool option_has_letter(const struct argp_option *option)
{
    return option->key > ' ' && option->key < 0x7f;
}

/* Whether the word asks for help. */
static bool asks_for_help(const char *word)
{
    return !strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "-?");
}

void command_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    char name[64];
    struct parsing parsing = {.argp = argp, .input = input};
    struct argp once = *argp;
    char *command = argv[0];
    once.parser = parse_once;
    snprintf(name, sizeof name, "gaugeblock %s", command);
    argv[0] = name;
    for (int i = 1; i < argc; i++)
        if (asks_for_help(argv[i])) {
            argp_help(argp, stdout, ARGP_HELP_STD_HELP, name);
            exit(command_finish(command, EXIT_PASS));
        }
    if (argp_parse(&once, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP, NULL, &parsing))
        exit(EXIT_USAGE);
    argv[0] = command; /* a record has it */
}

int command_error(const char *command, const char *format, ...)
{
    char line[LINE];
    va_list list;
    va_start(list, format);
    fprintf(stderr, "gaugeblock %s: %s\n", command, one_line(line, format, list));
    va_end(list);
    return EXIT_USAGE;
}
