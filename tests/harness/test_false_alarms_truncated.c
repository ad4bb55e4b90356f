/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As test_false_alarms, of accumulators that round toward zero, or to fewer bits: complete dot products for each slot
 * and one sum over all slots, on data whose partial sums have a mean (all positive) or one size from the start (massive
 * activations), with long sums among them. `test_false_alarms_truncated all` judges 1,536 of them.
 */
#include "quant/quant.h"
#include "tests/support/check.h"
#include "tests/support/false_alarm.h"
#include "tests/support/layer_as_fixture.h"

enum { ALL_FIXTURES = 256, SOME_FIXTURES = 9, VARIANTS = 6 };

static const struct gb_shape shapes[] = {{4, 256, 128, 6, 3}, {1, 32, 14336, 2, 2}, {3, 512, 64, 5, 4},
                                         {2, 96, 2048, 3, 1}, {1, 2048, 96, 8, 8},  {6, 128, 192, 4, 2}};
static const enum gb_format formats[] = {GB_BF16, GB_NVFP4, GB_MXFP8, GB_MXFP4, GB_FP8_BLOCK};
static const enum kind {
    POSITIVE,
    MASSIVE,
    POSITIVE_INPUT,
    MASSIVE_PAIR,
    GAUSSIAN
} kinds[] = {POSITIVE, MASSIVE, POSITIVE_INPUT, MASSIVE_PAIR, GAUSSIAN};

/* What kernels declare. Those that truncate have one bit more. */
static const struct gb_kernel claims[] = {
    {.output = GB_FP32, .accumulator_bits = 23},
    {.output = GB_FP32, .accumulator_bits = 16},
    {.output = GB_FP32, .accumulator_bits = 23, .roundings = {.gate_up = GB_BF16}},
    {.output = GB_BF16, .accumulator_bits = 21},
    {.output = GB_FP32, .accumulator_bits = 23, .roundings = {.slot = GB_BF16, .routing_weight = GB_BF16}},
    {.output = GB_FP32, .accumulator_bits = 24},
    {.output = GB_FP32, .accumulator_bits = 18},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void clear_signs(const struct gb_weights *w)
{
    size_t bytes, scales, globals;
    uint8_t *codes = (uint8_t *)(uintptr_t)w->codes;
    if (gb_weights_bytes(w, &bytes, &scales, &globals, NULL) != GB_OK)
        abort();
    for (size_t i = 0; i < bytes; i++)
        codes[i] &= w->format == GB_BF16                             ? (i % 2 ? 0x7F : 0xFF)
                    : w->format == GB_NVFP4 || w->format == GB_MXFP4 ? 0x77
                                                                     : 0x7F;
}

/* Channels that are 300 times as large: of one sign, or two of opposite sign and nearly the same size, which cancel
 * where their weights agree. The first is column 0 for every second fixture. */
static void make_massive(struct problem *p, bool pair, uint64_t seed)
{
    const uint32_t hidden = p->arguments.shape.hidden;
    uint64_t random = seed;
    for (uint32_t t = 0; t < p->arguments.shape.tokens; t++)
        for (int n = 0; n < 2; n++) {
            uint32_t c = n ? hidden - 1 : seed % 2 ? 0 : random_below(&random, hidden - 1);
            gb_bf16 *x = &p->x[(size_t)t * hidden + c];
            if (n && !pair)
                continue;
            *x = gb_bf16_encode((pair && n ? -300.0f : 300.0f) * (1 + (float)random_uniform(&random) / 16));
        }
}

static void shape_data(struct problem *p, enum kind kind, uint64_t seed)
{
    const size_t inputs = (size_t)p->arguments.shape.tokens * p->arguments.shape.hidden;
    if (kind == MASSIVE || kind == MASSIVE_PAIR)
        make_massive(p, kind == MASSIVE_PAIR, seed);
    if (kind == POSITIVE || kind == POSITIVE_INPUT)
        clear_signs(&p->arguments.gate_up);
    if (kind == POSITIVE)
        clear_signs(&p->arguments.down);
    for (size_t i = 0; i < inputs; i++) {
        if (kind == POSITIVE || kind == POSITIVE_INPUT)
            p->x[i].bits &= 0x7FFF;
        p->truth_x[i] = (double)gb_bf16_decode(p->x[i]);
    }
}

/* Fixture n and its variants. bits: more than what is declared; those that truncate may have one. */
static void count_fixture(uint32_t n, int bits, struct alarms *a)
{
    const struct gb_kernel *claim = &claims[n % COUNT(claims)];
    enum kind kind = kinds[n / 2 % COUNT(kinds)];
    struct problem problem;
    struct baseline baseline;
    struct alarm_subject s;
    char name[48];
    problem_new(&problem, shapes[n % COUNT(shapes)], formats[n / 3 % COUNT(formats)], DATA_GAUSSIAN, 5000 + n);
    shape_data(&problem, kind, n);
    struct gb_fixture *fixture = problem_fixture(&problem);
    if (baseline_new(fixture, gb_contract_find(fixture->weights, GB_BF16, GB_ORDER_FMA32), NULL, &baseline, NULL) !=
        GB_OK)
        abort();
    alarm_subject_new(&s, &problem, &baseline, claim);
    snprintf(name, sizeof name, "fixture %u, data %d", n, (int)kind);
    for (uint32_t v = 0; v < VARIANTS; v++) {
        uint32_t way = v * 5 + n * 3;
        struct valid_kernel valid = {.order = v % VALID_ORDERS,
                                     .fma = way & 1,
                                     .scales_first = way & 2,
                                     .reciprocal = way & 4,
                                     .fold = (way & 8) && !claim->roundings.slot,
                                     .clamp = way & 16,
                                     .truncate = claim->accumulator_bits < 24,
                                     .seed = n * VARIANTS + v};
        alarms_run(&s, claim, &valid, (uint32_t)((int)claim->accumulator_bits + valid.truncate + bits), n % 2, name, a);
    }
    alarm_subject_free(&s);
    baseline_free(&baseline);
    gb_fixture_free(fixture);
    problem_free(&problem);
}

/* which: NULL for the first ones. */
static struct alarms count(uint32_t fixtures, const uint32_t *which, int bits)
{
    struct alarms sum = {0};
#pragma omp parallel for schedule(dynamic)
    for (uint32_t n = 0; n < fixtures; n++) {
        struct alarms a = {0};
        count_fixture(which ? which[n] : n, bits, &a);
#pragma omp critical
        alarms_add(&sum, &a);
    }
    return sum;
}

/* Two of them, 20 and 50, exceed limits that have no room for the mean of what is lost. */
static const uint32_t some[SOME_FIXTURES] = {1, 20, 24, 47, 50, 93, 116, 139, 162},
                      rough[COUNT(claims)] = {0, 29, 23, 24, 11, 33, 6};

/* What the largest of each family comes to of its limit. */
static const double seen[FAMILIES] = {[RMS_TOKEN] = 0.7939,    [RMS_COLUMNS] = 0.8522, [RMS_INTERMEDIATE] = 0.843,
                                      [SCALE_LAYER] = 0.3876,  [SCALE_TOKEN] = 0.3926, [SCALE_COLUMN] = 0.4979,
                                      [SCALE_EXPERT] = 0.3968, [SCALE_SLOT] = 0.3968,  [SCALE_INTERMEDIATE] = 0.3625};

int main(int argc, char **argv)
{
    bool all = argc > 1 && !strcmp(argv[1], "all");
    uint32_t fixtures = all ? ALL_FIXTURES : SOME_FIXTURES;
    struct alarms valid = count(fixtures, all ? NULL : some, 0), inadmissible = count(COUNT(claims), rough, -7);
    bool bad = alarms_bad(&valid, seen, all) || valid.runs != (uint64_t)fixtures * VARIANTS;
    bad |= inadmissible.alarms < inadmissible.runs / 2; /* with accumulators that have 7 bits less */
    alarms_print(stdout, &valid, all ? "test_false_alarms_truncated all" : "test_false_alarms_truncated", fixtures);
    fprintf(stderr, "%llu of %llu kernels with 7 bits less rejected\n%s%s", (unsigned long long)inadmissible.alarms,
            (unsigned long long)inadmissible.runs, valid.first, valid.first[0] ? "\n" : "");
    return bad;
}
