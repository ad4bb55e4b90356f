/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often the default gate rejects a correct kernel: valid layers of every order, with and without fma, over formats,
 * shapes, data, rounding points and seeds. `test_false_alarms all` judges 10,240 of them and prints a record; without
 * an argument a subset. At loosened levels the rms and scale checks must raise no more alarms than they say.
 */
#include "tests/support/false_alarm.h"
#include "tests/support/check.h"
#include "tests/support/layer_as_fixture.h"

enum { ALL_FIXTURES = 1280, SOME_FIXTURES = 24, VARIANTS = 8 };

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

/* Fixture n and its variants. bits: of the accumulators that are used; 0: those that are declared. */
static void count_fixture(uint32_t n, uint32_t bits, struct alarms *a)
{
    const struct gb_kernel *claim = &claims[n % COUNT(claims)];
    struct gb_shape shape = shapes[n % COUNT(shapes)];
    struct problem problem;
    struct baseline baseline;
    struct alarm_subject s;
    char name[32];
    problem_new(&problem, shape, formats[n / COUNT(shapes) % COUNT(formats)], kinds[n / 3 % COUNT(kinds)], 1000 + n);
    if (n % 4 == 0)
        problem_empty_slots(&problem, 9, n);
    struct gb_fixture *fixture = problem_fixture(&problem);
    if (baseline_new(fixture, gb_contract_find(fixture->weights, GB_BF16, GB_ORDER_FMA32), NULL, &baseline, NULL) !=
        GB_OK)
        abort();
    alarm_subject_new(&s, &problem, &baseline, claim);
    snprintf(name, sizeof name, "fixture %u", n);
    for (uint32_t v = 0; v < VARIANTS; v++) {
        uint32_t way = v + VARIANTS * (n % 2);
        struct valid_kernel valid = {.order = (n + v) % VALID_ORDERS,
                                     .fma = way & 1,
                                     .scales_first = way & 2,
                                     .reciprocal = way & 4,
                                     .fold = way & 8,
                                     .seed = n * VARIANTS + v};
        valid.fold &= !claim->roundings.slot && !claim->roundings.weighted; /* a stored slot is a sum of its own */
        alarms_run(&s, claim, &valid, bits ? bits : claim->accumulator_bits, n % 2, name, a);
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

int main(int argc, char **argv)
{
    bool all = argc > 1 && !strcmp(argv[1], "all");
    uint32_t fixtures = all ? ALL_FIXTURES : SOME_FIXTURES, stride = ALL_FIXTURES / fixtures + !all;
    struct alarms valid = count(fixtures, stride, 0);
    struct alarms inadmissible = count(SOME_FIXTURES / 4, ALL_FIXTURES / SOME_FIXTURES * 4 + 1, 10);
    bool bad = alarms_bad(&valid) || valid.runs != (uint64_t)fixtures * VARIANTS;
    bad |= inadmissible.alarms < inadmissible.runs / 2; /* the same kernels, with accumulators of 10 bits */
    alarms_print(stdout, &valid, all ? "test_false_alarms all" : "test_false_alarms", fixtures);
    fprintf(stderr, "%llu of %llu kernels with 10-bit accumulators rejected\n%s%s",
            (unsigned long long)inadmissible.alarms, (unsigned long long)inadmissible.runs, valid.first,
            valid.first[0] ? "\n" : "");
    return bad;
}
