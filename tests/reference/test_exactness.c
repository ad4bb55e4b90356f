/* SPDX-License-Identifier: Apache-2.0 */
/* gb_exact_layer says what docs/numerics.md#exact says, on small layers at and beside every limit of the text. */
#include "reference/reference.h"

#include <omp.h>

#include "quant/quant.h"
#include "tests/oracle/bounds.h"
#include "tests/support/check.h"
#include "tests/support/problem.h"

static const struct gb_shape shape = {2, 8, 8, 2, 2};

struct layer {
    struct problem problem;
    struct gb_truth_quantised weights;
    double x[16], r[4];
};

/* All zeros, ids 0 1 and 1 0, routing weights 1; x is 1 in column 0 and 0 elsewhere. */
static void layer_new(struct layer *l)
{
    problem_new(&l->problem, shape, GB_BF16, DATA_CODES, 1);
    struct gb_arguments *a = &l->problem.arguments;
    memset((void *)(uintptr_t)a->gate_up.codes, 0, sizeof(gb_bf16) * 2 * 2 * 8 * 8);
    memset((void *)(uintptr_t)a->down.codes, 0, sizeof(gb_bf16) * 2 * 8 * 8);
    for (int i = 0; i < 4; i++) {
        l->problem.ids[i] = i == 1 || i == 2;
        l->r[i] = 1;
    }
    for (int i = 0; i < 16; i++)
        l->x[i] = i % 8 == 0;
    l->weights = (struct gb_truth_quantised){.gate_up = a->gate_up, .down = a->down};
}

static void set(const struct gb_weights *w, uint32_t expert, uint32_t row, uint32_t column, double value)
{
    gb_bf16 code = gb_bf16_encode((float)value);
    assert_true((double)gb_bf16_decode(code) == value);
    ((gb_bf16 *)(uintptr_t)w->codes)[((size_t)expert * w->rows + row) * w->columns + column] = code;
}

/* Whether it is exact: the library's word, which is the oracle's. */
static bool exact(const struct layer *l, const struct gb_rounding_points *points, struct gb_exactness *found)
{
    const struct gb_stage_roundings *s = &points->stages;
    const struct oracle_declared declared = {.bits = points->accumulator_bits,
                                             .gate_up = s->gate_up == GB_BF16,
                                             .silu = s->silu == GB_BF16,
                                             .slot = s->slot == GB_BF16,
                                             .routing_weight = s->routing_weight == GB_BF16,
                                             .weighted = s->weighted == GB_BF16,
                                             .intermediate = points->intermediate == GB_BF16};
    struct gb_truth_quantised weights = l->weights;
    struct gb_truth_source source = gb_truth_from_quantised(&weights);
    long double bits, closed[2];
    assert_int_equal(gb_exact_layer(&shape, l->x, l->problem.ids, l->r, &source, points, found, NULL), GB_OK);
    bool expected = oracle_exact(&l->problem.arguments, l->x, l->r, &declared, &bits, closed);
    if (expected != !found->why)
        fail_msg("%s; by the text %s", found->why ? found->why : "exact", expected ? "exact" : "not exact");
    if (expected && !(fabsl((long double)found->bits - bits) < 1e-9L))
        fail_msg("%.17g bits, by the text %.17Lg", found->bits, bits);
    const double far[] = {found->closed_intermediate, found->closed_output};
    for (int i = 0; expected && i < 2; i++)
        if (!(fabsl((long double)far[i] - closed[i]) <= 1e-9L * closed[i]))
            fail_msg("closed gates: %.17g, by the text %.17Lg", far[i], closed[i]);
    return expected;
}

static const struct gb_rounding_points fp32 = {GB_BF16, GB_FP32, 24, {0}, NULL};

/* One gate, up 1, down 1: only where all forms of SiLU agree. */
static void gates_are_open_or_closed(void **state)
{
    static const struct {
        double gate;
        bool exact;
    } cases[] = {{0, true},       {32, true},   {31.875, false}, {16, false},      {24, false},
                 {33, true},      {-1, false},  {-0.5, false},   {-32, false},     {-96, false},
                 {-109.5, false}, {-110, true}, {-111, true},    {0x1p-60, false}, {1000, true}};
    struct layer l;
    struct gb_exactness found;
    (void)state;
    layer_new(&l);
    set(&l.weights.gate_up, 0, 8, 0, 1);
    set(&l.weights.down, 0, 3, 0, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set(&l.weights.gate_up, 0, 0, 0, cases[i].gate);
        if (exact(&l, &fp32, &found) != cases[i].exact)
            fail_msg("gate %g: %s", cases[i].gate, found.why ? found.why : "exact");
        if (!cases[i].exact)
            assert_string_equal(found.why, "a gate lies where forms of SiLU differ");
        assert_int_equal(found.token, 0);
    }
    problem_free(&l.problem);
}

/* Sums stay in 2^-100 .. 2^100, both ends included. */
static void ranges_end(void **state)
{
    static const struct {
        double up;
        bool exact;
    } cases[] = {{0x1p95, true}, {0x1p96, false}, {0x1p-95, true}, {0x1p-101, false}, {0x1.8p94, true}};
    struct layer l;
    struct gb_exactness found;
    (void)state;
    layer_new(&l);
    set(&l.weights.gate_up, 0, 0, 0, 32);
    set(&l.weights.down, 0, 3, 0, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set(&l.weights.gate_up, 0, 8, 0, cases[i].up);
        if (exact(&l, &fp32, &found) != cases[i].exact)
            fail_msg("up %a: %s", cases[i].up, found.why ? found.why : "exact");
    }
    problem_free(&l.problem);
}

/* Values at random from those that lie at the limits. */
static double pick(uint64_t *random, const double *values, uint32_t count)
{
    return values[random_below(random, count)];
}

static void random_layer(struct layer *l, uint64_t *random)
{
    static const double gates[] = {0, 0, 32, 33, 40.5, 64, -110, -112, -128, 31.75, -109};
    static const double few[] = {0, 0, 1, 1, -1, 2, 3, -5, 0.5, 7};
    static const double weights[] = {1, 1, 0.5, 0.75, -0.25, 1 + 0x1p-7, 1 + 0x1p-9, 0};
    static const double scales[] = {1, 1, 1, 1, 0x1p40, 0x1p-50, 0x1p86, 0x1p-99};
    double scale = pick(random, scales, 8);
    uint32_t sparse = random_below(random, 2) ? 9 : 10; /* one in eight layers has gates where forms differ */
    double first = random_below(random, 4) ? 1 : 9;
    bool spoilt = random_below(random, 8) == 0;
    for (uint32_t e = 0; e < 2; e++)
        for (uint32_t i = 0; i < 8; i++) {
            double gate = pick(random, gates, spoilt ? 11 : 9), wide = pick(random, few, sparse);
            set(&l->weights.gate_up, e, i, 0, gate);
            set(&l->weights.gate_up, e, i, 1, wide); /* cancels with column 2 */
            set(&l->weights.gate_up, e, i, 2, -wide);
            for (uint32_t c = 0; c < 8; c++) {
                set(&l->weights.gate_up, e, 8 + i, c, scale * pick(random, few, 10));
                set(&l->weights.down, e, i, c, pick(random, few, 10));
            }
        }
    for (uint32_t i = 0; i < 16; i++) {
        l->x[i] = i % 8 == 0 ? first : i % 8 < 3 ? 2 : pick(random, few, 10);
        for (uint32_t e = 0; i % 8 > 2 && e < 2; e++)
            for (uint32_t row = 0; row < 8; row++)
                set(&l->weights.gate_up, e, row, i % 8, 0);
    }
    for (int i = 0; i < 4; i++) {
        l->r[i] = pick(random, weights, 8);
        l->problem.ids[i] = random_below(random, 9) == 0 ? -1 : (i == 1 || i == 2);
    }
}

static void layers_are_the_texts(void **state)
{
    uint64_t random = 4;
    unsigned exacts = 0, reasons = 0;
    const char *seen[16];
    struct layer l;
    (void)state;
    layer_new(&l);
    for (unsigned n = 0; n < 3000; n++) {
        struct gb_rounding_points points = {GB_BF16, GB_FP32, 4 + random_below(&random, 22), {0}, NULL};
        enum gb_format *stages[] = {&points.stages.gate_up, &points.stages.silu, &points.stages.slot,
                                    &points.stages.weighted, &points.stages.routing_weight};
        struct gb_exactness found;
        if (random_below(&random, 4) == 0)
            *stages[random_below(&random, 5)] = GB_BF16;
        if (random_below(&random, 8) == 0)
            points.intermediate = GB_FP32;
        random_layer(&l, &random);
        exacts += exact(&l, &points, &found);
        bool known = !found.why;
        for (unsigned i = 0; i < reasons; i++)
            known |= seen[i] == found.why;
        if (!known)
            seen[reasons++] = found.why;
    }
    print_message("%u of 3000 are exact, %u reasons against it\n", exacts, reasons);
    assert_true(exacts > 300 && exacts < 2700);
    assert_int_equal(reasons, 10);
    problem_free(&l.problem);
}

/* The reason of the first row of the first token, whichever thread comes first. */
static void threads_do_not_choose_the_reason(void **state)
{
    uint64_t random = 5;
    unsigned refused = 0;
    const int threads = omp_get_max_threads();
    struct layer l;
    (void)state;
    layer_new(&l);
    for (unsigned n = 0; n < 400; n++) {
        const struct gb_rounding_points points = {
            GB_BF16, GB_FP32, 4 + random_below(&random, 12), {.slot = n % 2 ? GB_BF16 : GB_FP32}, NULL};
        struct gb_exactness found[2];
        random_layer(&l, &random);
        for (int i = 0; i < 2; i++) {
            omp_set_num_threads(i ? 4 : 1);
            exact(&l, &points, &found[i]);
        }
        refused += found[0].why != NULL;
        if (found[0].why != found[1].why || found[0].token != found[1].token)
            fail_msg("%s (token %u), and with threads %s (token %u)", found[0].why, found[0].token, found[1].why,
                     found[1].token);
    }
    omp_set_num_threads(threads);
    assert_true(refused > 200);
    problem_free(&l.problem);
}

static void extensions_are_not_examined(void **state)
{
    static const float biases[32] = {1.0f};
    static const struct gb_extension extensions[] = {
        {GB_SWIGLU_OAI, NULL, NULL}, {GB_SILU, biases, NULL}, {GB_SILU, NULL, biases}, {GB_SILU, NULL, NULL}};
    struct layer l;
    (void)state;
    layer_new(&l);
    for (size_t i = 0; i < sizeof extensions / sizeof *extensions; i++) {
        struct gb_truth_quantised weights = l.weights;
        struct gb_truth_source source = gb_truth_from_quantised(&weights);
        struct gb_exactness found;
        source.extension = extensions[i];
        assert_int_equal(gb_exact_layer(&shape, l.x, l.problem.ids, l.r, &source, &fp32, &found, NULL), GB_OK);
        if (i < 3)
            assert_string_equal(found.why, "biases and other activations than SiLU are not examined");
        else
            assert_null(found.why);
    }
    problem_free(&l.problem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(extensions_are_not_examined),
        cmocka_unit_test(gates_are_open_or_closed),
        cmocka_unit_test(ranges_end),
        cmocka_unit_test(layers_are_the_texts),
        cmocka_unit_test(threads_do_not_choose_the_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
