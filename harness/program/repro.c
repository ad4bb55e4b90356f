/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/probe.h"
#include "harness/run/processes.h"
#include "harness/program/repro.h"

static void add(char *text, const char *more, size_t bytes)
{
    size_t length = strlen(text), room = REPRO_BYTES - 1 - length;
    bytes = bytes < room ? bytes : room;
    memcpy(text + length, more, bytes);
    text[length + bytes] = '\0';
}

/* A word, quoted if need be, with a space before it. */
static void add_word(char *text, const char *word)
{
    bool plain = word[0] && !word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                               "_-./=,:+@%")];
    if (text[0])
        add(text, " ", 1);
    if (plain) {
        add(text, word, strlen(word));
        return;
    }
    add(text, "'", 1);
    for (const char *c = word; *c; c++)
        add(text, *c == '\'' ? "'\\''" : c, *c == '\'' ? 4 : 1);
    add(text, "'", 1);
}

static void add_option(char *text, const char *name, const char *value)
{
    add_word(text, name);
    add_word(text, value);
}

static void add_number(char *text, const char *name, unsigned value)
{
    char digits[16];
    snprintf(digits, sizeof digits, "%u", value);
    add_option(text, name, digits);
}

static void start(char *text, const char *fixture)
{
    text[0] = '\0';
    if (processes.count > 1) {
        add_word(text, "mpirun");
        add_number(text, "-n", processes.count);
    }
    add_word(text, "gaugeblock");
    add_word(text, "verify");
    add_word(text, fixture);
}

static void add_timeout(char *text, unsigned timeout_s)
{
    if (timeout_s != INPUT_TIMEOUT_S)
        add_number(text, "--timeout", timeout_s);
}

/* What every line of a run needs: its time limit and its policy, where they are not the default ones. */
static void add_common(char *text, unsigned timeout_s, const char *policy, bool anywhere)
{
    char full[PATH_MAX];
    struct policy preset;
    add_timeout(text, timeout_s);
    for (unsigned i = 0; policy && policy_preset(i, &preset); i++)
        anywhere = anywhere && strcmp(preset.name, policy);
    if (policy)
        add_option(text, "--gate", anywhere && realpath(policy, full) ? full : policy);
}

void repro_kernel(char *text, const struct case_request *r, const char *path, const struct selected *s, uint32_t batch,
                  bool anywhere)
{
    char full[PATH_MAX];
    const char *library = s->library->path;
    start(text, anywhere && realpath(path, full) ? full : path);
    if (s->kernel) /* otherwise its library alone */
        add_option(text, "--kernel", s->kernel->name);
    add_number(text, "--batch", batch);
    if (strcmp(library, BUILTIN_LIBRARY) && !strstr(library, CUDA_LIBRARY))
        add_option(text, "--subject", anywhere && realpath(library, full) ? full : library);
    add_common(text, r->timeout_s, r->policy_name, anywhere);
}

void repro_outputs(char *text, const struct case_request *r, const char *outputs,
                   const struct declared_precision *declared)
{
    start(text, r->path);
    add_option(text, "--outputs", outputs);
    if (r->batches_text)
        add_option(text, "--batch", r->batches_text);
    if (declared->operation)
        add_option(text, "--operator", operator_name(declared->operation));
    if (declared->order)
        add_option(text, "--order", declared->order);
    if (declared->activations != r->fixture->activations)
        add_option(text, "--activations", gb_format_name(declared->activations));
    if (declared->scales)
        add_option(text, "--scales", declared->scales);
    if (declared->open_silu)
        add_word(text, "--open-silu");
    if (declared->roundings_text)
        add_option(text, "--rounding", declared->roundings_text);
    if (declared->accumulator_bits != FP32_SIGNIFICAND_BITS)
        add_number(text, "--accumulator-bits", declared->accumulator_bits);
    add_common(text, r->timeout_s, r->policy_name, false);
}

void repro_refused(char *text, const char *path, const char *batches, unsigned timeout_s)
{
    start(text, path);
    if (batches)
        add_option(text, "--batch", batches);
    add_timeout(text, timeout_s);
}
