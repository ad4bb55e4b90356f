/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/program/command.h"
#include "harness/judge/coverage.h"
#include "harness/run/probe.h"
#include "harness/run/operators.h"
#include "harness/run/verdict.h"
#include "quant/quant.h"

struct info_options {
    const char *path;
    bool coverage;
};

static const struct argp_option options[] = {
    {"coverage", 'c', 0, 0, "also count which codes, scales, roundings, gates and loads it exercises", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct info_options *o = state->input;
    if (key == 'c')
        o->coverage = true;
    else if (key == ARGP_KEY_ARG && !o->path)
        o->path = argument;
    else if (key == ARGP_KEY_ARG)
        usage_error(state, "one fixture at a time");
    else if (key == ARGP_KEY_NO_ARGS)
        usage_error(state, "name a fixture");
    else if (key != ARGP_KEY_END)
        return ARGP_ERR_UNKNOWN;
    return 0;
}

/* Experts that got a token, and the most tokens one expert got. */
static void loads(const struct gb_fixture *f, const struct gb_layer *l, uint32_t *count, uint32_t *touched,
                  uint32_t *most)
{
    memset(count, 0, sizeof *count * f->shape.experts);
    *touched = *most = 0;
    for (size_t p = 0; p < (size_t)f->shape.tokens * f->shape.top_k; p++) {
        if (l->ids[p] < 0)
            continue;
        uint32_t n = ++count[l->ids[p]];
        *touched += n == 1;
        *most = n > *most ? n : *most;
    }
}

static int describe(const struct gb_fixture *f)
{
    uint32_t *count = malloc(sizeof *count * f->shape.experts); /* [experts] */
    if (!count)
        return command_error("info", "no memory");
    printf("contract        %s\n", f->contract);
    printf("recipe          %s\n", f->recipe);
    if (f->activation_recipe[0])
        printf("activations     %s\n", f->activation_recipe);
    printf("source          %s%s%s\n", f->source, f->source_sha256[0] ? ", sha256 " : "", f->source_sha256);
    printf("generator       %s, seed %llu\n", f->generator, (unsigned long long)f->seed);
    printf("shape           %u layers, %u tokens, hidden %u, intermediate %u, %u experts, top-%u\n", f->layers,
           f->shape.tokens, f->shape.hidden, f->shape.intermediate, f->shape.experts, f->shape.top_k);
    printf("router          %s, top-%u\n", f->router[0] ? f->router : gb_router_recipe_default(f->norm_topk_prob)->name,
           f->shape.top_k);
    if (f->apply_router_weight_on_input)
        printf("weighed input   the routing weight multiplies x, not the output\n");
    printf("stack           %s\n", !f->stack.residual         ? "none"
                                   : f->stack.attention_delta ? "residual stream with attention deltas"
                                                              : "residual stream without attention");
    if (f->nonfinite)
        printf("nonfinite       NaN may occur\n");
    printf("input sha256    %s\n", f->sha256);
    for (uint32_t l = 0; l < f->layers; l++) {
        uint32_t touched, most;
        loads(f, &f->layer[l], count, &touched, &most);
        printf("layer %-3u       model layer %u, %u experts touched, at most %u tokens on one\n", l, f->layer[l].index,
               touched, most);
        if (f->layer[l].activation_scales)
            printf("                global scales of activations %g (x), %g (intermediate)\n",
                   (double)f->layer[l].activation_scales[0], (double)f->layer[l].activation_scales[1]);
    }
    free(count);
    return EXIT_PASS;
}

static const char *on_off(bool given, float value, char text[32])
{
    snprintf(text, 32, given ? "%.9g" : "none", (double)value);
    return text;
}

static int describe_quantiser(const struct gb_fixture *f)
{
    const struct gb_quantisation *q = &f->quantisation;
    char global[32], bound[32];
    const struct gb_recipe *recipe = gb_recipe_find(f->recipe);
    struct gb_code_arrays arrays = gb_code_arrays(q);
    printf("operator        %s\n", operator_name(f->operation));
    printf("recipe          %s%s%s\n", f->recipe, recipe ? ": " : "", recipe ? recipe->summary : "");
    printf("source          %s%s%s\n", f->source, f->source_sha256[0] ? ", sha256 " : "", f->source_sha256);
    printf("generator       %s, seed %llu\n", f->generator, (unsigned long long)f->seed);
    printf("values          %s [%u, %u]%s\n", q->input == GB_FP16 ? "fp16" : "bf16", q->rows, q->input_columns,
           gb_quantisation_gated(q) ? ", gate, then up" : "");
    if (gb_quantisation_gated(q))
        printf("silu            %s, rounded to %s; its product with up to %s\n", gb_silu_form_name(q->silu),
               gb_format_name(q->activated), gb_format_name(q->product));
    printf("codes           %s [%u, %u]\n", arrays.code_format, q->rows, arrays.row_codes);
    printf("scales          %s, one per %u columns, %s\n", arrays.scale_format, q->quantiser.block_columns,
           gb_scale_layout_name(q->layout));
    printf("global scale    %s\n", on_off(q->quantiser.global != GB_GLOBAL_NONE, q->global_scale, global));
    printf("bound           %s\n", on_off(isfinite(q->bound), q->bound, bound));
    if (f->nonfinite)
        printf("nonfinite       NaN and infinities may occur\n");
    printf("input sha256    %s\n", f->sha256);
    return EXIT_PASS;
}

static int describe_exchange(const struct gb_fixture *f)
{
    const struct gb_exchanged *e = &f->exchanged;
    const struct gb_exchange *x = &e->asked;
    uint64_t *received = calloc(x->ranks, sizeof *received), most = 0, tokens = 0; /* [ranks] */
    if (!received)
        return command_error("info", "no memory for %u ranks", x->ranks);
    for (size_t s = 0; s < (size_t)f->shape.tokens * x->top_k; s++)
        if (e->ids[s] >= 0) {
            uint64_t rows = ++received[e->placement[e->ids[s]]];
            most = rows > most ? rows : most;
        }
    for (uint32_t rank = 0; rank < x->ranks; rank++)
        tokens += received[rank] > 0;
    printf("operator        %s\n", operator_name(f->operation));
    printf("ranks           %u, of which %llu receive rows\n", x->ranks, (unsigned long long)tokens);
    printf("tokens          %u on each rank\n", x->tokens);
    printf("hidden          %u\n", x->hidden);
    printf("experts         %u, top-k %u\n", x->experts, x->top_k);
    printf("rows            %u %s, at most %llu on one rank\n", x->rows, f->recipe, (unsigned long long)most);
    if (x->accumulation)
        printf("accumulation    %s", gb_accumulation_name(x->accumulation));
    if (x->accumulation == GB_AT_SENDER_NODE)
        printf(", nodes of %u ranks", x->ranks_per_node);
    printf("%ssource          %s\n", x->accumulation ? "\n" : "", f->source);
    printf("generator       %s, seed %llu\n", f->generator, (unsigned long long)f->seed);
    printf("input sha256    %s\n", f->sha256);
    free(received);
    return EXIT_PASS;
}

static int describe_coverage(const struct gb_fixture *f)
{
    struct coverage coverage;
    struct gb_error error;
    char name[32];
    if (coverage_measure(f, f->shape.tokens, &coverage, &error) != GB_OK)
        return command_error("info", "%s", error.message);
    for (enum coverage_item i = 0; i < COVERAGE_ITEMS; i++) {
        const struct coverage_count *count = &coverage.of[i];
        if (count->applies)
            printf("%-28s %llu", coverage_name(i, name), (unsigned long long)count->seen);
        if (count->applies && count->possible)
            printf(" of %llu", (unsigned long long)count->possible);
        if (count->applies)
            putchar('\n');
    }
    return EXIT_PASS;
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "FIXTURE",
    .doc = "Check a problem and describe it.\v"
           "Examples:\n"
           "  gaugeblock info layer.h5\n"
           "  gaugeblock info layer.h5 --coverage",
};

static int run_info(int argc, char **argv)
{
    struct info_options o = {0};
    struct gb_fixture *fixture;
    struct gb_error error;
    command_parse(&argp, argc, argv, &o);
    int code = input_fixture(o.path, INPUT_TIMEOUT_S, &fixture, &error);
    if (code != EXIT_PASS) {
        command_error("info", "%s", error.message);
        return code;
    }
    code = gb_fixture_quantises(fixture)   ? describe_quantiser(fixture)
           : gb_fixture_exchanges(fixture) ? describe_exchange(fixture)
                                           : describe(fixture);
    if (code == EXIT_PASS && o.coverage)
        code = !operator_of(fixture)->layers
                   ? command_error("info", "%s: --coverage counts codes and experts of layers; this is a problem of %s",
                                   path_end(o.path), operator_name(fixture->operation))
                   : describe_coverage(fixture);
    gb_fixture_free(fixture);
    return code;
}

const struct command command_info = {"info", run_info, &argp, "describe a problem"};
