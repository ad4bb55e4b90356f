/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often the default gate rejects a correct kernel: legal layers of every order, with and without fma, over formats,
 * shapes, data, rounding points and seeds. `test_false_alarms all` judges 10,240 of them and prints a record; without
 * an argument a subset. At loosened levels the rms and gain lanes must raise no more alarms than they say.
 */
#include "harness/judge.h"
#include "harness/lanes.h"
#include "harness/statistics.h"
#include "quant/quant.h"
#include "tests/check.h"
#include "tests/legal.h"
#include "tests/problem_fixture.h"
#include "tests/provenance.h"

enum { LEVELS = 3, ALL_FIXTURES = 1280, SOME_FIXTURES = 24, VARIANTS = 8 };

static const double levels[LEVELS] = {0.5, 0.1, 0.01};

static const struct gb_shape shapes[] = {
    {8, 256, 128, 6, 3}, {16, 128, 96, 8, 2}, {5, 160, 192, 4, 4}, {3, 384, 64, 5, 1}, {1, 288, 160, 9, 6}};
static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP8, GB_BF16, GB_MXFP4, GB_FP8_BLOCK};
static const enum data kinds[] = {DATA_GAUSSIAN, DATA_GAUSSIAN, DATA_CODES, DATA_CANCEL};

/* What kernels declare. */
static const struct gb_kernel claims[] = {
    {.output = GB_FP32, .accumulator_bits = 24},
    {.output = GB_BF16, .accumulator_bits = 24},
    {.output = GB_FP32, .accumulator_bits = 24, .roundings = {.gate_up = GB_BF16}},
    {.output = GB_BF16, .accumulator_bits = 24, .roundings = {GB_BF16, GB_BF16, GB_BF16, 0, 0}},
    {.output = GB_BF16, .accumulator_bits = 24, .roundings = {GB_BF16, 0, GB_BF16, GB_BF16, GB_BF16}},
    {.output = GB_FP32, .accumulator_bits = 24, .roundings = {.routing_weight = GB_BF16}},
    {.output = GB_FP32, .accumulator_bits = 16},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

struct counts {
    uint64_t runs, alarms, vacuous;
    uint64_t rms[LEVELS], gain[LEVELS]; /* runs with an alarm at the level */
    double largest[FAMILIES];           /* limit_ratio at the gate's own level */
    char first[1024];                   /* the first alarm */
};

/* One fixture in memory, of a random problem. */
struct subject {
    struct problem problem;
    struct gb_fixture *fixture;
    struct baseline baseline;
    struct gb_outputs *outputs;
    double *output, *intermediate;
};

static void ok(enum gb_status status, const struct gb_error *error)
{
    if (status != GB_OK) {
        fprintf(stderr, "%s\n", error ? error->message : gb_status_name(status));
        abort();
    }
}

static void subject_new(struct subject *s, uint32_t n, const struct gb_kernel *claim)
{
    struct gb_shape shape = shapes[n % COUNT(shapes)];
    enum gb_format format = formats[n / COUNT(shapes) % COUNT(formats)];
    struct gb_error error = {""};
    problem_new(&s->problem, shape, format, kinds[n / 3 % COUNT(kinds)], 1000 + n);
    if (n % 4 == 0)
        problem_empty_slots(&s->problem, 9, n);
    s->fixture = problem_fixture(&s->problem);
    ok(baseline_new(s->fixture, &s->baseline, &error), &error);
    ok(gb_outputs_new(&shape, 1, claim->output, true, false, &s->outputs, &error), &error);
    s->output = malloc(sizeof(double) * shape.tokens * shape.hidden);
    s->intermediate = malloc(sizeof(double) * shape.tokens * shape.top_k * shape.intermediate);
    if (!s->output || !s->intermediate)
        abort();
}

static void subject_free(struct subject *s)
{
    problem_free(&s->problem);
    baseline_free(&s->baseline);
    gb_fixture_free(s->fixture);
    gb_outputs_free(s->outputs);
    free(s->output);
    free(s->intermediate);
}

/* The variant's output in the kernel's formats. */
static void run(struct subject *s, const struct gb_kernel *claim, const struct legal *legal, uint32_t bits)
{
    const struct gb_shape *shape = &s->fixture->shape;
    struct gb_rounding_points points = {GB_BF16, claim->output, bits, claim->roundings, NULL};
    legal_layer(&s->problem, legal, &points, s->output, s->intermediate);
    for (size_t i = 0; i < (size_t)shape->tokens * shape->hidden; i++)
        if (claim->output == GB_FP32)
            ((float *)s->outputs->layer[0].output)[i] = (float)s->output[i];
        else
            ((gb_bf16 *)s->outputs->layer[0].output)[i] = gb_bf16_encode((float)s->output[i]);
    for (size_t i = 0; i < (size_t)shape->tokens * shape->top_k * shape->intermediate; i++)
        s->outputs->layer[0].intermediate[i] = gb_bf16_encode((float)s->intermediate[i]);
}

/* The statistics at one level, for both lanes. */
static void loosen(struct subject *s, double level, bool inner, bool *rms, bool *gain, double *ratios)
{
    struct statistics statistics;
    struct gb_error error;
    uint32_t tokens = s->fixture->shape.tokens;
    statistics_start(&statistics, &s->baseline, tokens, true, inner, level);
    ok(statistics_output(&statistics, &s->baseline, 0, tokens, s->output, &error), &error);
    if (inner)
        statistics_intermediate(&statistics, &s->baseline, 0, tokens, s->intermediate);
    for (enum family f = 0; f < FAMILIES; f++) {
        *(family_is_gain(f) ? gain : rms) |= statistics.family[f].exceeding > 0;
        if (ratios)
            ratios[f] = fmax(ratios[f], statistics.family[f].limit_ratio);
    }
}

static void count_run(struct subject *s, const struct gb_kernel *claim, uint32_t n, const struct legal *legal,
                      struct counts *c)
{
    struct gb_kernel kernel = *claim;
    struct judgement j;
    struct gb_error error = {""};
    struct gate gate;
    gb_bf16 *kept = s->outputs->layer[0].intermediate;
    bool inner = n % 2, none = false;
    kernel.name = "legal";
    kernel.operation = GB_LAYER;
    kernel.weights = s->fixture->weights;
    kernel.activations = GB_BF16;
    gate_preset(0, &gate);
    s->outputs->layer[0].intermediate = inner ? kept : NULL;
    ok(judge(&s->baseline, &kernel, s->outputs, NULL, &gate, &j, &error), &error);
    s->outputs->layer[0].intermediate = kept;
    c->runs++;
    c->vacuous += j.verdict == VERDICT_VACUOUS;
    c->alarms += j.verdict == VERDICT_FAIL;
    if (j.verdict == VERDICT_FAIL && !c->first[0])
        snprintf(c->first, sizeof c->first, "fixture %u, order %d, fma %d, scales first %d, reciprocal %d, fold %d: %s",
                 n, (int)legal->order, legal->fma, legal->scales_first, legal->reciprocal, legal->fold, j.reason);
    json_decref(j.lanes);
    json_decref(j.metrics);
    for (int level = 0; level < LEVELS; level++) {
        bool rms = false, gain = false;
        loosen(s, levels[level], inner, &rms, &gain, NULL);
        c->rms[level] += rms;
        c->gain[level] += gain;
    }
    loosen(s, FALSE_ALARM_PROBABILITY, inner, &none, &none, c->largest);
}

/* Fixture n and its variants. bits: of the accumulators that are used; 0: those that are declared. */
static void count_fixture(uint32_t n, uint32_t bits, struct counts *c)
{
    const struct gb_kernel *claim = &claims[n % COUNT(claims)];
    struct subject s;
    subject_new(&s, n, claim);
    for (uint32_t v = 0; v < VARIANTS; v++) {
        uint32_t way = v + VARIANTS * (n % 2);
        struct legal legal = {(n + v) % LEGAL_ORDERS, way & 1, way & 2, way & 4, way & 8, n * VARIANTS + v};
        legal.fold &= !claim->roundings.slot && !claim->roundings.weighted; /* a stored slot is a sum of its own */
        run(&s, claim, &legal, bits ? bits : claim->accumulator_bits);
        count_run(&s, claim, n, &legal, c);
    }
    subject_free(&s);
}

static void add(struct counts *sum, const struct counts *c)
{
    sum->runs += c->runs;
    sum->alarms += c->alarms;
    sum->vacuous += c->vacuous;
    for (int level = 0; level < LEVELS; level++) {
        sum->rms[level] += c->rms[level];
        sum->gain[level] += c->gain[level];
    }
    for (int f = 0; f < FAMILIES; f++)
        sum->largest[f] = fmax(sum->largest[f], c->largest[f]);
    if (!sum->first[0])
        memcpy(sum->first, c->first, sizeof sum->first);
}

static struct counts count(uint32_t fixtures, uint32_t stride, uint32_t bits)
{
    struct counts sum = {0};
#pragma omp parallel for schedule(dynamic)
    for (uint32_t n = 0; n < fixtures; n++) {
        struct counts c = {0};
        count_fixture(n * stride, bits, &c);
#pragma omp critical
        add(&sum, &c);
    }
    return sum;
}

static void print_record(const struct counts *c, const char *command, uint32_t fixtures)
{
    printf("{");
    print_provenance(stdout, "gaugeblock-false-alarms/1", command);
    printf(",\n \"fixtures\": %u, \"runs\": %llu, \"alarms\": %llu, \"vacuous\": %llu,\n \"largest_limit_ratio\": {",
           fixtures, (unsigned long long)c->runs, (unsigned long long)c->alarms, (unsigned long long)c->vacuous);
    for (enum family f = 0; f < FAMILIES; f++)
        printf("%s\"%s\": %.4f", f ? ", " : "", family_name(f), c->largest[f]);
    printf("},\n \"loosened\": [");
    for (int level = 0; level < LEVELS; level++)
        printf("%s{\"probability\": %g, \"rms\": %.6f, \"gain\": %.6f}", level ? ", " : "", levels[level],
               (double)c->rms[level] / (double)c->runs, (double)c->gain[level] / (double)c->runs);
    printf("]}\n");
}

int main(int argc, char **argv)
{
    bool all = argc > 1 && !strcmp(argv[1], "all");
    uint32_t fixtures = all ? ALL_FIXTURES : SOME_FIXTURES, stride = ALL_FIXTURES / fixtures + !all;
    struct counts legal = count(fixtures, stride, 0);
    struct counts illegal = count(SOME_FIXTURES / 4, ALL_FIXTURES / SOME_FIXTURES * 4 + 1, 10);
    bool bad = legal.alarms || legal.runs != (uint64_t)fixtures * VARIANTS || legal.vacuous > legal.runs / 10;
    for (int level = 0; level < LEVELS; level++)
        bad |= (double)legal.rms[level] > levels[level] * (double)legal.runs ||
               (double)legal.gain[level] > levels[level] * (double)legal.runs;
    bad |= illegal.alarms < illegal.runs / 2; /* the same kernels, with accumulators of 10 bits */
    print_record(&legal, all ? "test_false_alarms all" : "test_false_alarms", fixtures);
    fprintf(stderr, "%llu of %llu kernels with 10-bit accumulators rejected\n%s%s", (unsigned long long)illegal.alarms,
            (unsigned long long)illegal.runs, legal.first, legal.first[0] ? "\n" : "");
    return bad;
}
