/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often the default gate rejects a correct kernel: valid layers of every order, with and without fma, over formats,
 * shapes, data, rounding points and seeds. `test_false_alarms all` judges 10,240 of them and prints a record; without
 * an argument a subset, in which every choice occurs. At loosened levels the rms and scale checks must raise no more
 * alarms than they say, and at their own level the largest sums must come near their limits.
 */
#include "tests/support/false_alarm.h"
#include "tests/support/check.h"
#include "tests/support/layer_as_fixture.h"

/* STRIDE: without a divisor in common with the number of any choice. */
enum { ALL_FIXTURES = 1280, SOME_FIXTURES = 16, STRIDE = 53, VARIANTS = 8 };

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

/* What a run is made of: a number for each choice, below `count`. */
enum choice { SHAPE, FORMAT, DATA, CLAIM, EMPTY, INNER, ORDER, FMA, SCALES_FIRST, RECIPROCAL, FOLD, CHOICES };
static const struct {
    const char *name;
    uint32_t count;
} choices[CHOICES] = {
    [SHAPE] = {"shape", COUNT(shapes)},
    [FORMAT] = {"format", COUNT(formats)},
    [DATA] = {"data", COUNT(kinds)},
    [CLAIM] = {"claim", COUNT(claims)},
    [EMPTY] = {"empty slots", 2},
    [INNER] = {"intermediate handed out", 2},
    [ORDER] = {"order", VALID_ORDERS},
    [FMA] = {"fma", 2},
    [SCALES_FIRST] = {"scales first", 2},
    [RECIPROCAL] = {"reciprocal", 2},
    [FOLD] = {"fold", 2},
};

/* Every how manieth variant is run, others of the next fixture. */
static uint32_t sparse = 2;

/* Of variant v of fixture n. */
static void choose(uint32_t n, uint32_t v, uint32_t of[CHOICES])
{
    uint32_t way = v + VARIANTS * (n / 2 % 2);
    of[SHAPE] = n % COUNT(shapes);
    of[FORMAT] = n / COUNT(shapes) % COUNT(formats);
    of[DATA] = n / 3 % COUNT(kinds);
    of[CLAIM] = n % COUNT(claims);
    of[EMPTY] = n % 4 == 0;
    of[INNER] = n % 2;
    of[ORDER] = (n + v) % VALID_ORDERS;
    of[FMA] = way & 1;
    of[SCALES_FIRST] = way >> 1 & 1;
    of[RECIPROCAL] = way >> 2 & 1;
    /* A stored slot is a sum of its own. */
    of[FOLD] = (way >> 3 & 1) && !claims[of[CLAIM]].roundings.slot && !claims[of[CLAIM]].roundings.weighted;
}

/* Whether every value of every choice is reached, and every two of the kernel's own. */
static bool all_reached(uint32_t fixtures, uint32_t stride)
{
    bool seen[CHOICES][8] = {{false}}, good = true;
    uint32_t of[CHOICES];
    for (uint32_t n = 0; n < fixtures; n++)
        for (uint32_t v = n * stride / 4 % sparse; v < VARIANTS; v += sparse) {
            choose(n * stride, v, of);
            for (int c = 0; c < CHOICES; c++)
                seen[c][of[c]] = true;
        }
    for (int c = 0; c < CHOICES; c++)
        for (uint32_t value = 0; value < choices[c].count; value++)
            if (!seen[c][value]) {
                fprintf(stderr, "%s %u is never reached\n", choices[c].name, value);
                good = false;
            }
    return good;
}

/* Fixture n and its variants. bits: of the accumulators that are used; 0: those that are declared. */
static void count_fixture(uint32_t n, uint32_t bits, struct alarms *a)
{
    uint32_t of[CHOICES];
    choose(n, 0, of);
    const struct gb_kernel *claim = &claims[of[CLAIM]];
    struct problem problem;
    struct baseline baseline;
    struct alarm_subject s;
    char name[32];
    problem_new(&problem, shapes[of[SHAPE]], formats[of[FORMAT]], kinds[of[DATA]], 1000 + n);
    if (of[EMPTY])
        problem_empty_slots(&problem, 9, n);
    struct gb_fixture *fixture = problem_fixture(&problem);
    if (baseline_new(fixture, gb_contract_find(fixture->weights, GB_BF16, GB_ORDER_FMA32), NULL, &baseline, NULL) !=
        GB_OK)
        abort();
    alarm_subject_new(&s, &problem, &baseline, claim);
    snprintf(name, sizeof name, "fixture %u", n);
    for (uint32_t v = n / 4 % sparse; v < VARIANTS; v += sparse) {
        choose(n, v, of);
        struct valid_kernel valid = {.order = of[ORDER],
                                     .fma = of[FMA],
                                     .scales_first = of[SCALES_FIRST],
                                     .reciprocal = of[RECIPROCAL],
                                     .fold = of[FOLD],
                                     .seed = n * VARIANTS + v};
        alarms_run(&s, claim, &valid, bits ? bits : claim->accumulator_bits, of[INNER], name, a);
    }
    alarm_subject_free(&s);
    baseline_free(&baseline);
    gb_fixture_free(fixture);
    problem_free(&problem);
}

static struct alarms count(uint32_t fixtures, uint32_t stride, uint32_t bits)
{
    struct alarms sum = {0};
#pragma omp parallel for schedule(dynamic)
    for (uint32_t n = 0; n < fixtures; n++) {
        struct alarms a = {0};
        count_fixture(n * stride, bits, &a);
#pragma omp critical
        alarms_add(&sum, &a);
    }
    return sum;
}

/* What the largest of each family comes to of its limit. */
static const double seen[FAMILIES] = {[RMS_TOKEN] = 0.8055,    [RMS_COLUMNS] = 0.8838, [RMS_INTERMEDIATE] = 0.7241,
                                      [SCALE_LAYER] = 0.2569,  [SCALE_TOKEN] = 0.5583, [SCALE_COLUMN] = 0.5189,
                                      [SCALE_EXPERT] = 0.3389, [SCALE_SLOT] = 0.4529,  [SCALE_INTERMEDIATE] = 0.3934};

int main(int argc, char **argv)
{
    bool all = argc > 1 && !strcmp(argv[1], "all");
    uint32_t fixtures = all ? ALL_FIXTURES : SOME_FIXTURES, stride = all ? 1 : STRIDE;
    sparse = all ? 1 : sparse;
    struct alarms valid = count(fixtures, stride, 0);
    struct alarms inadmissible = count(SOME_FIXTURES / 4, 4 * STRIDE + 1, 10);
    bool bad = alarms_bad(&valid, seen, all) || !all_reached(fixtures, stride) ||
               valid.runs != (uint64_t)fixtures * VARIANTS / sparse;
    bad |= inadmissible.alarms < inadmissible.runs / 2; /* the same kernels, with accumulators of 10 bits */
    alarms_print(stdout, &valid, all ? "test_false_alarms all" : "test_false_alarms", fixtures);
    fprintf(stderr, "%llu of %llu kernels with 10-bit accumulators rejected\n%s%s",
            (unsigned long long)inadmissible.alarms, (unsigned long long)inadmissible.runs, valid.first,
            valid.first[0] ? "\n" : "");
    return bad;
}
