/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As test_false_alarms, of layers with quantised activations: valid kernels that quantise twice, over contracts,
 * recipes, shapes and kinds of data, with sums rounded toward zero and global scales early or late as well.
 * `test_false_alarms_activations all` judges 2,560 of them. Scales that are wrong by a few 1e-4 must be rejected.
 */
#include "harness/judge/judge.h"
#include "quant/quant.h"
#include "tests/support/false_alarm.h"
#include "tests/support/check.h"
#include "tests/support/generated_layer.h"

enum { ALL_FIXTURES = 320, SOME_FIXTURES = 8, VARIANTS = 8 };

static const struct {
    enum gb_format weights, activations;
    const char *recipe;
} contracts[] = {
    {GB_NVFP4, GB_NVFP4, "nvfp4.trtllm/1"},
    {GB_MXFP8, GB_MXFP8, "mxfp8.rceil/1"},
    {GB_MXFP4, GB_MXFP8, "mxfp8.floor/1"},
    {GB_FP8_BLOCK, GB_FP8_BLOCK, "fp8g128.vllm/1"},
    {GB_NVFP4, GB_NVFP4, "nvfp4.modelopt/1"},
    {GB_MXFP8, GB_MXFP8, "mxfp8.floor/1"},
    {GB_FP8_BLOCK, GB_FP8_BLOCK, "fp8g128.deepseek/1"},
};
static const struct gb_shape shapes[] = {{8, 256, 128, 6, 3}, {5, 128, 256, 4, 4}, {3, 384, 128, 5, 1}};
static const char *const kinds[] = {"gaussian/1", "ties/1", "edge/1", "gaussian/1", "exact/1"};
static const char *const routings[] = {"uniform", "skewed", "holes", "hot"};

static const struct gb_kernel claims[] = {
    {.output = GB_FP32, .accumulator_bits = 24},
    {.output = GB_FP32, .accumulator_bits = 24, .roundings = {.gate_up = GB_BF16}},
    {.output = GB_BF16, .accumulator_bits = 24},
    {.output = GB_FP32, .accumulator_bits = 24, .roundings = {.silu = GB_BF16, .routing_weight = GB_BF16}},
    {.output = GB_FP32, .accumulator_bits = 24, .roundings = {.slot = GB_BF16}},
    {.output = GB_FP32, .accumulator_bits = 23},
    {.output = GB_FP32, .accumulator_bits = 20},
    {.output = GB_FP32, .accumulator_bits = 23, .roundings = {.gate_up = GB_BF16}},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void ok(enum gb_status status, const struct gb_error *error)
{
    if (status != GB_OK) {
        fprintf(stderr, "%s\n", error->message);
        abort();
    }
}

/* As `gaugeblock make` makes it. */
static struct gb_fixture *generate(uint32_t n, const char *kind)
{
    size_t c = n % COUNT(contracts);
    struct generated_layer of = {shapes[n % COUNT(shapes)],
                                 contracts[c].weights,
                                 contracts[c].activations,
                                 contracts[c].recipe,
                                 kind,
                                 routings[n % COUNT(routings)],
                                 n};
    return generated_layer(&of);
}

/* Every how manieth variant is run, others of the next fixture. */
static uint32_t sparse = 2;

/* Rounding toward zero costs a bit, which is declared. */
static bool truncates(const struct gb_kernel *claim)
{
    return claim->accumulator_bits < 24;
}

/* One sum over all slots is none of those that are rounded toward zero (docs/numerics.md#error-covariance), nor of
 * slots that are stored. */
static struct valid_kernel variant(uint32_t n, uint32_t v, const struct gb_kernel *claim)
{
    uint32_t way = v * 5 + n * 3;
    bool truncate = truncates(claim) && (n + v) % 4;
    return (struct valid_kernel){.order = (n + v) % VALID_ORDERS,
                                 .fma = way & 1,
                                 .scales_first = way & 2,
                                 .reciprocal = way & 4,
                                 .fold = (way & 8) && !claim->roundings.slot && !truncate,
                                 .truncate = truncate,
                                 .early = way & 16,
                                 .seed = n * VARIANTS + v};
}

/* Fixture n and its variants. factor: of their scales, 1 for legal ones. */
static void count_fixture(uint32_t n, const char *kind, float factor, struct alarms *a)
{
    const struct gb_kernel *claim = &claims[factor == 1 ? n % COUNT(claims) : 0];
    struct gb_fixture *f = generate(n, kind);
    struct problem p = generated_problem(f, true, factor);
    struct baseline plain, quantised;
    struct alarm_subject s;
    struct gb_error error = {""};
    char name[96];
    ok(baseline_new(f, gb_contract_find(f->weights, GB_BF16, GB_ORDER_FMA32), NULL, &plain, &error), &error);
    ok(baseline_new(plain.fixture, fixture_contract(plain.fixture), &plain, &quantised, &error), &error);
    alarm_subject_new(&s, &p, &quantised, claim);
    snprintf(name, sizeof name, "fixture %u (%s, %s)", n, contracts[n % COUNT(contracts)].recipe, kind);
    for (uint32_t v = n / 2 % sparse; v < VARIANTS; v += sparse) {
        struct valid_kernel valid = variant(n, v, claim);
        alarms_run(&s, claim, &valid, claim->accumulator_bits + truncates(claim), n % 2, name, a);
    }
    alarm_subject_free(&s);
    baseline_free(&quantised);
    baseline_free(&plain);
    gb_fixture_free(f);
    free(p.routing_weights);
}

static struct alarms count(uint32_t fixtures, uint32_t stride, float factor)
{
    struct alarms sum = {0};
#pragma omp parallel for schedule(dynamic)
    for (uint32_t n = 0; n < fixtures; n++) {
        struct alarms a = {0};
        uint32_t m = n * stride;
        count_fixture(m, factor == 1 ? kinds[m / COUNT(contracts) % COUNT(kinds)] : "gaussian/1", factor, &a);
#pragma omp critical
        alarms_add(&sum, &a);
    }
    return sum;
}

/* What the largest of each family comes to of its limit. */
static const double seen[FAMILIES] = {[RMS_TOKEN] = 0.0851,    [RMS_COLUMNS] = 0.0686, [RMS_INTERMEDIATE] = 0.7226,
                                      [SCALE_LAYER] = 0.0708,  [SCALE_TOKEN] = 0.1018, [SCALE_COLUMN] = 0.0695,
                                      [SCALE_EXPERT] = 0.1036, [SCALE_SLOT] = 0.1064,  [SCALE_INTERMEDIATE] = 0.2638};

int main(int argc, char **argv)
{
    bool all = argc > 1 && !strcmp(argv[1], "all");
    uint32_t fixtures = all ? ALL_FIXTURES : SOME_FIXTURES, stride = all ? 1 : 9;
    sparse = all ? 1 : sparse;
    struct alarms valid = count(fixtures, stride, 1), inadmissible = count(COUNT(contracts), 1, 1.0005f);
    bool bad = alarms_bad(&valid, seen, all) || valid.runs != (uint64_t)fixtures * VARIANTS / sparse;
    bad |= valid.sums < valid.runs / 3 || valid.ambiguous_codes == 0;
    bad |= inadmissible.alarms < inadmissible.runs; /* with scales that are wrong by 5e-4 */
    alarms_print(stdout, &valid, all ? "test_false_alarms_activations all" : "test_false_alarms_activations", fixtures);
    fprintf(stderr, "%llu of %llu kernels with a wrong scale rejected\n%s%s", (unsigned long long)inadmissible.alarms,
            (unsigned long long)inadmissible.runs, valid.first, valid.first[0] ? "\n" : "");
    return bad;
}
