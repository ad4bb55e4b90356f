/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What it costs where a layer over ranks adds up: the distance of its output from truth of the quantised weights, for
 * every accumulation of docs/numerics.md#combine, over 1 to 64 ranks, with experts in blocks or at random.
 *
 *     gb_accuracy_ranks FIXTURE...    JSON on stdout; exit code 1 if the accumulation at the receiver has other bits
 *                                     for another number of ranks or placement
 *
 * Fixtures are of layers without quantised activations; ranks are left out that do not divide the tokens. Rows are
 * bf16.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures/fixtures.h"
#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/provenance.h"

enum { RANKS_PER_NODE = 8 };
static const uint32_t rank_counts[] = {1, 2, 4, 8, 16, 32, 64};
static const char *const placements[] = {"blocks", "random"};

static void die(const char *what, const char *why)
{
    fprintf(stderr, "gb_accuracy_ranks: %s: %s\n", what, why);
    exit(1);
}

static void *allocate(size_t bytes)
{
    void *pointer = malloc(bytes);
    if (!pointer)
        die("allocation", "no memory");
    return pointer;
}

/* splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. */
static uint64_t random_bits(uint64_t n)
{
    n = (n + 1) * 0x9E3779B97F4A7C15;
    n = (n ^ n >> 30) * 0xBF58476D1CE4E5B9;
    n = (n ^ n >> 27) * 0x94D049BB133111EB;
    return n ^ n >> 31;
}

/* placement: [experts] */
static void place(bool random, uint32_t experts, uint32_t ranks, int32_t *placement)
{
    for (uint32_t e = 0; e < experts; e++)
        placement[e] = (int32_t)(random ? random_bits(e) % ranks : (uint64_t)e * ranks / experts);
}

/* Squares of an output's errors and of truth: of the FP32 output, and of it rounded to bf16. */
struct squares {
    double fp32, bf16, truth;
};

static void add(struct squares *s, const float *output, const double *truth, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double stored = (double)gb_bf16_decode(gb_bf16_encode(output[i]));
        s->fp32 += ((double)output[i] - truth[i]) * ((double)output[i] - truth[i]);
        s->bf16 += (stored - truth[i]) * (stored - truth[i]);
        s->truth += truth[i] * truth[i];
    }
}

static void print_case(const struct squares *s, uint32_t ranks, const char *placement, const char *accumulation,
                       bool first)
{
    printf("%s\n      {\"ranks\": %u, \"placement\": \"%s\", \"accumulation\": \"%s\", \"relative_l2_fp32\": %.4g, "
           "\"relative_l2_bf16\": %.4g}",
           first ? "" : ",", ranks, placement, accumulation, sqrt(s->fp32 / s->truth), sqrt(s->bf16 / s->truth));
}

/* One layer over ranks. output: [tokens, hidden] */
static void run(const struct gb_fixture *f, uint32_t layer, uint32_t ranks, const int32_t *placement,
                enum gb_accumulation accumulation, float *output)
{
    struct gb_arguments a = gb_layer_arguments(f, layer, f->shape.tokens);
    struct gb_exchange x = {.size = sizeof x,
                            .ranks = ranks,
                            .tokens = f->shape.tokens / ranks,
                            .hidden = f->shape.hidden,
                            .experts = f->shape.experts,
                            .top_k = f->shape.top_k,
                            .input = GB_BF16,
                            .accumulation = accumulation,
                            .ranks_per_node = RANKS_PER_NODE};
    struct gb_error error;
    for (size_t s = 0; s < (size_t)f->shape.tokens * f->shape.top_k; s++)
        x.rows += a.ids[s] >= 0;
    a.exchange = &x;
    a.placement = placement;
    a.output = output;
    if (gb_reference_layer_over_ranks(gb_contract_of(&a, GB_LAYER, GB_ORDER_FMA32), &a, &error) != GB_OK)
        die("layer over ranks", error.message);
}

/* Every accumulation over so many ranks. receiver: [layers, tokens, hidden], what it made before; first: nothing yet.
 */
static bool run_ranks(const struct gb_fixture *f, uint32_t ranks, bool random, float *receiver, bool first)
{
    size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    float *output = allocate(count * sizeof *output);
    int32_t *placement = allocate(sizeof *placement * f->shape.experts);
    bool same = true;
    place(random, f->shape.experts, ranks, placement);
    for (enum gb_accumulation a = GB_AT_RECEIVER; gb_accumulation_name(a); a++) {
        struct squares squares = {0};
        for (uint32_t l = 0; l < f->layers; l++) {
            run(f, l, ranks, placement, a, output);
            add(&squares, output, f->layer[l].truth_quantised, count);
            if (a != GB_AT_RECEIVER)
                continue;
            if (first)
                memcpy(receiver + l * count, output, count * sizeof *output);
            same &= !memcmp(receiver + l * count, output, count * sizeof *output);
        }
        print_case(&squares, ranks, placements[random], gb_accumulation_name(a), first && a == GB_AT_RECEIVER);
    }
    free(output);
    free(placement);
    return same;
}

/* The layer on one rank, whose slots stay FP32. */
static struct squares run_layers(const struct gb_fixture *f)
{
    size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    float *output = allocate(count * sizeof *output);
    struct squares squares = {0};
    struct gb_error error;
    for (uint32_t l = 0; l < f->layers; l++) {
        struct gb_arguments a = gb_layer_arguments(f, l, f->shape.tokens);
        a.output = output;
        if (gb_reference_layer(gb_contract_of(&a, GB_LAYER, GB_ORDER_FMA32), &a, &error) != GB_OK)
            die("layer", error.message);
        add(&squares, output, f->layer[l].truth_quantised, count);
    }
    free(output);
    return squares;
}

static bool run_fixture(const char *path, bool first)
{
    struct gb_fixture *f;
    struct gb_error error;
    bool same = true, none = true;
    if (gb_fixture_read(path, &f, &error) != GB_OK)
        die(path, error.message);
    if (!f->layers || f->activations != GB_BF16 || f->apply_router_weight_on_input)
        die(path, "is no problem of layers with bf16 activations and weighed outputs");
    float *receiver = allocate(sizeof *receiver * f->layers * f->shape.tokens * f->shape.hidden);
    struct squares whole = run_layers(f);
    printf(
        "%s\n    {\"source\": \"%s\", \"contract\": \"%s\", \"layers\": %u, \"tokens\": %u, \"hidden\": %u, "
        "\"experts\": %u, \"top_k\": %u, \"ranks_per_node\": %d, \"one_rank_fp32_slots\": {\"relative_l2_fp32\": %.4g, "
        "\"relative_l2_bf16\": %.4g}, \"cases\": [",
        first ? "" : ",", f->source, f->contract, f->layers, f->shape.tokens, f->shape.hidden, f->shape.experts,
        f->shape.top_k, (int)RANKS_PER_NODE, sqrt(whole.fp32 / whole.truth), sqrt(whole.bf16 / whole.truth));
    for (size_t n = 0; n < sizeof rank_counts / sizeof *rank_counts; n++)
        for (int random = 0; random < (n ? 2 : 1) && f->shape.tokens % rank_counts[n] == 0; random++) {
            same &= run_ranks(f, rank_counts[n], random, receiver, none);
            none = false;
        }
    printf("]}");
    free(receiver);
    gb_fixture_free(f);
    return same;
}

int main(int argc, char **argv)
{
    bool same = argc > 1;
    printf("{");
    print_provenance(stdout, "gaugeblock.accuracy-ranks/1", "gb_accuracy_ranks FIXTURE...");
    printf(", \"fixtures\": [");
    for (int i = 1; i < argc; i++)
        same &= run_fixture(argv[i], i == 1);
    printf("]}\n");
    return same ? 0 : 1;
}
