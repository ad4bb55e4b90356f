/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `gaugeblock make` can generate never fails a correct kernel: formats x activations x kinds of data x routing x
 * seeds x small odd shapes, drawn at random by number. On each the reference of every contract is judged, as itself and
 * as a kernel without an order, and a few other legal kernels. `test_false_alarms_generated all` judges 3,000 fixtures
 * and prints a record; `test_false_alarms_generated FIRST COUNT` those from FIRST on.
 */
#include "harness/judge/check_exact.h"
#include "harness/judge/judge.h"
#include "harness/judge/checks.h"
#include "quant/quant.h"
#include "tests/support/check.h"
#include "tests/support/false_alarm.h"
#include "tests/support/generated_layer.h"

/* STRIDE: of the first fixtures those in which underflow shows, 6 and 42 and 54, are among some. */
enum { ALL_FIXTURES = 3000, SOME_FIXTURES = 12, STRIDE = 6, VARIANTS = 3 };

static const struct {
    enum gb_format weights, activations;
    const char *recipe;
} formats[] = {{GB_NVFP4, GB_BF16, NULL},
               {GB_MXFP8, GB_BF16, NULL},
               {GB_MXFP4, GB_BF16, NULL},
               {GB_FP8_BLOCK, GB_BF16, NULL},
               {GB_BF16, GB_BF16, NULL},
               {GB_NVFP4, GB_NVFP4, "nvfp4.trtllm/1"},
               {GB_NVFP4, GB_NVFP4, "nvfp4.modelopt/1"},
               {GB_MXFP8, GB_MXFP8, "mxfp8.rceil/1"},
               {GB_MXFP4, GB_MXFP8, "mxfp8.rceil/1"},
               {GB_MXFP4, GB_MXFP8, "mxfp8.floor/1"},
               {GB_FP8_BLOCK, GB_FP8_BLOCK, "fp8g128.vllm/1"},
               {GB_FP8_BLOCK, GB_FP8_BLOCK, "fp8g128.deepseek/1"}};
static const char *const kinds[] = {"gaussian/1", "ties/1",   "edge/1",   "edge/1",  "edge/1",
                                    "wide/1",     "shared/1", "sparse/1", "exact/1", "nonfinite/1"};
static const char *const routings[] = {"router", "uniform", "skewed", "hot", "half", "holes", "equal"};

static const struct gb_kernel claims[] = {
    {.output = GB_FP32, .accumulator_bits = 24},
    {.output = GB_FP32, .accumulator_bits = 24},
    {.output = GB_FP32, .accumulator_bits = 23},
    {.output = GB_BF16, .accumulator_bits = 24},
    {.output = GB_FP32, .accumulator_bits = 24, .roundings = {.gate_up = GB_BF16, .slot = GB_BF16}},
    {.output = GB_FP32, .accumulator_bits = 24, .roundings = {.silu = GB_BF16, .routing_weight = GB_BF16}},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void ok(enum gb_status status, const struct gb_error *error)
{
    if (status != GB_OK) {
        fprintf(stderr, "%s\n", error->message);
        abort();
    }
}

static uint32_t next_multiple(uint32_t value, uint32_t of)
{
    return (value + of - 1) / of * of;
}

/* Routing that needs no numbers of a router, where data have none that are exact or finite. */
static const char *routing_of(const char *data, uint64_t *random)
{
    const char *routing = routings[random_below(random, COUNT(routings))];
    bool own = !strncmp(data, "exact", 5) || !strncmp(data, "nonfinite", 9);
    return own && !strcmp(routing, "router") ? "uniform" : routing;
}

/* Fixture n. */
static struct generated_layer draw(uint32_t n)
{
    uint64_t random = 0x9E3779B97F4A7C15u * (n + 1);
    random_bits(&random);
    size_t c = random_below(&random, COUNT(formats));
    uint32_t block = gb_format_multiple(formats[c].weights), wide = random_below(&random, 6) == 0 ? 4 : 1;
    if (formats[c].activations != GB_BF16 && gb_format_block(formats[c].activations) > block)
        block = gb_format_block(formats[c].activations);
    struct generated_layer of = {
        .weights = formats[c].weights, .activations = formats[c].activations, .recipe = formats[c].recipe, .seed = n};
    of.data = kinds[random_below(&random, COUNT(kinds))];
    if (of.activations != GB_BF16 && !strcmp(of.data, "exact/1"))
        of.data = "exact/2";
    if (of.activations != GB_BF16 && !strcmp(of.data, "nonfinite/1"))
        of.data = "edge/1";
    of.routing = routing_of(of.data, &random);
    of.shape = (struct gb_shape){.tokens = 1 + random_below(&random, 20),
                                 .hidden = next_multiple(16 + random_below(&random, 176 * wide), block),
                                 .intermediate = next_multiple(16 + random_below(&random, 112 * wide), block),
                                 .experts = 2 + random_below(&random, 8)};
    of.shape.top_k = 1 + random_below(&random, of.shape.experts < 4 ? of.shape.experts : 4);
    return of;
}

/* The reference's own results, judged as those of `kernel`. */
static void reference_runs(struct baseline *b, const struct gb_kernel *kernel, bool inner, const char *name,
                           struct alarms *a)
{
    struct case_result j;
    struct gb_error error = {""};
    struct policy gate;
    gb_bf16 *kept = b->reference->layer[0].intermediate;
    policy_preset(0, &gate);
    b->reference->layer[0].intermediate = inner ? kept : NULL;
    ok(judge(b, kernel, b->reference, NULL, &gate, &j, &error), &error);
    b->reference->layer[0].intermediate = kept;
    a->runs++;
    a->vacuous += j.verdict == VERDICT_VACUOUS;
    a->alarms += j.verdict == VERDICT_FAIL || j.verdict == VERDICT_BAD_INPUT;
    if (j.verdict != VERDICT_PASS && j.verdict != VERDICT_VACUOUS && !a->first[0])
        snprintf(a->first, sizeof a->first, "%s: the reference, %s: %s", name,
                 kernel->order ? kernel->order : "without an order", j.reason);
    case_result_free(&j);
}

/* By every contract that the fixture is a problem of: as itself, bit by bit, and as a kernel without an order. */
static void contracts_run(struct baselines *all, const char *name, struct alarms *a)
{
    size_t count;
    const struct gb_contract *contracts = gb_contracts(&count);
    const struct gb_fixture *f = all->fixture;
    for (size_t i = 0; i < count; i++) {
        const struct gb_contract *c = &contracts[i];
        struct baseline *b;
        struct gb_error error = {""};
        if (c->weights != f->weights || (c->activations != GB_BF16 && c->activations != f->activations))
            continue;
        ok(baselines_get(all, c, &b, &error), &error);
        for (int way = 0; way < 4; way++) {
            struct gb_kernel kernel = {.name = "reference",
                                       .operation = GB_LAYER,
                                       .weights = c->weights,
                                       .activations = c->activations,
                                       .output = GB_FP32,
                                       .accumulator_bits = strstr(c->name, "mma16") ? 23 : 24,
                                       .order = way & 1 ? gb_order_name(c->order) : NULL};
            reference_runs(b, &kernel, way & 2, name, a);
        }
    }
}

/* Other legal kernels, judged by the contract of the fixture's own activations or by that of bf16 ones. */
static void valid_run(struct baselines *all, uint32_t n, const char *name, struct alarms *a)
{
    const struct gb_fixture *f = all->fixture;
    for (uint32_t v = 0; v < VARIANTS; v++) {
        const struct gb_kernel *claim = &claims[(n + v) % COUNT(claims)];
        bool truncate = claim->accumulator_bits < 24, quantised = f->activations != GB_BF16 && v % 3 < 2;
        struct problem p = generated_problem(f, quantised, 1);
        struct alarm_subject s;
        struct baseline *b;
        struct gb_error error = {""};
        uint32_t way = 7 * n + 5 * v;
        struct valid_kernel valid = {.order = (n + v) % VALID_ORDERS,
                                     .fma = way & 1,
                                     .scales_first = way & 2,
                                     .reciprocal = way & 4,
                                     .fold = (way & 8) && !claim->roundings.slot && !truncate,
                                     .truncate = truncate,
                                     .early = way & 16,
                                     .seed = n * VARIANTS + v};
        ok(baselines_get(all, gb_contract_find(f->weights, quantised ? f->activations : GB_BF16, GB_ORDER_FMA32), &b,
                         &error),
           &error);
        alarm_subject_new(&s, &p, b, claim);
        alarms_run(&s, claim, &valid, claim->accumulator_bits + truncate, n / 2 % 2, name, a);
        alarm_subject_free(&s);
        free(p.routing_weights);
    }
}

static void count_fixture(uint32_t n, struct alarms *a)
{
    struct generated_layer of = draw(n);
    struct gb_fixture *f = generated_layer(&of);
    struct baselines all = {.fixture = f};
    struct gb_error error;
    char name[200];
    snprintf(name, sizeof name, "fixture %u (%s, activations %s, %s, %s, --shape %u,%u,%u,%u --tokens %u --seed %llu)",
             n, gb_format_name(of.weights), gb_format_name(of.activations), of.data, of.routing, of.shape.experts,
             of.shape.top_k, of.shape.hidden, of.shape.intermediate, of.shape.tokens, (unsigned long long)of.seed);
    if (exact_check(f, &error) == GB_OK) { /* too large for exact sums: `gaugeblock make` refuses it */
        contracts_run(&all, name, a);
        if (!f->nonfinite)
            valid_run(&all, n, name, a);
    }
    baselines_free(&all);
    gb_fixture_free(f);
}

static struct alarms count(uint32_t first, uint32_t fixtures, uint32_t stride)
{
    struct alarms sum = {0};
#pragma omp parallel for schedule(dynamic)
    for (uint32_t n = 0; n < fixtures; n++) {
        struct alarms a = {0};
        count_fixture(first + n * stride, &a);
#pragma omp critical
        {
            if (a.first[0])
                fprintf(stderr, "%llu of %llu: %s\n", (unsigned long long)a.alarms, (unsigned long long)a.runs,
                        a.first);
            alarms_add(&sum, &a);
        }
    }
    return sum;
}

int main(int argc, char **argv)
{
    bool all = argc == 2 && !strcmp(argv[1], "all"), some = argc < 2;
    uint32_t first = argc == 3 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    uint32_t fixtures = argc == 3 ? (uint32_t)strtoul(argv[2], NULL, 10) : all ? ALL_FIXTURES : SOME_FIXTURES;
    struct alarms a = count(first, fixtures, some ? STRIDE : 1);
    alarms_print(stdout, &a, all ? "test_false_alarms_generated all" : "test_false_alarms_generated", fixtures);
    return alarms_bad(&a, NULL, all) || a.runs < 6ull * fixtures;
}
