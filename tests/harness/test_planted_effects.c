/* SPDX-License-Identifier: Apache-2.0 */
/* Effects that are planted into a study: each moves the figure that it should, and no other. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "harness/study/study.h"
#include "harness/study/truth.h"

enum { TOKENS = 12, HIDDEN = 256, LAYERS = 2, TOP_K = 3, EXPERTS = 8 };
static const struct gb_shape shape = {TOKENS, HIDDEN, 128, EXPERTS, TOP_K};
static const bool every[EXPERTS] = {true, true, true, true, true, true, true, true};

static struct study_source generated(void)
{
    struct study_generation g = {.name = "planted",
                                 .router = "",
                                 .shape = shape,
                                 .layers = LAYERS,
                                 .weights = GB_NVFP4,
                                 .seed = 5,
                                 .outlier_factor = 1.0f,
                                 .routing_skew = 1.0f};
    struct study_source source;
    struct gb_error error;
    if (study_source_generate(&g, &source, &error) != GB_OK)
        fail_msg("%s", error.message);
    return source;
}

/* A study, and what is planted into its layers before it runs. */
struct planted {
    struct study_case c;
    void (*plant)(struct gb_fixture *fixture, const void *what);
    const void *what;
};

static enum gb_status open_source(void *context, const struct study_case *c, uint32_t seed, struct study_source *source,
                                  struct gb_error *error)
{
    struct planted *p = context;
    (void)c;
    (void)seed;
    (void)error;
    *source = generated();
    if (p->plant)
        p->plant(source->fixture, p->what);
    return GB_OK;
}

static enum gb_status keep(void *context, struct gb_error *error)
{
    (void)context;
    (void)error;
    return GB_OK;
}

/* Runs the study of these paths. */
static void run(struct planted *p, const char *paths)
{
    static const volatile sig_atomic_t never = 0;
    struct study_run run = {.stop = &never, .open = open_source, .save = keep, .context = p, .all = 1.0};
    struct gb_error error;
    bool stopped;
    p->c = (struct study_case){.shape = shape, .layers = LAYERS, .seeds = 1, .samples = TOKENS, .first_seed = 5};
    if (study_paths(paths, GB_NVFP4, &shape, p->c.path, &p->c.paths, &error) != GB_OK ||
        study_case_new(&p->c, &error) != GB_OK || study_case_run(&p->c, &run, &stopped, &error) != GB_OK)
        fail_msg("%s", error.message);
}

/* Every array of one path is the same in both, bit for bit. */
static void assert_same_path(struct study_case *a, uint32_t in_a, struct study_case *b, uint32_t in_b)
{
    struct study_array of_a[STUDY_ARRAYS], of_b[STUDY_ARRAYS];
    uint32_t count = study_case_arrays(a, of_a);
    study_case_arrays(b, of_b);
    for (uint32_t i = 0; i < count; i++) {
        const bool by_path = strstr(of_a[i].axes, "paths") != NULL;
        size_t inner = of_a[i].rank == 3 ? of_a[i].dims[2] : 1;
        for (size_t l = 0; by_path && l < LAYERS; l++) {
            const double *x = *of_a[i].values + (l * a->paths + in_a) * inner;
            const double *y = *of_b[i].values + (l * b->paths + in_b) * inner;
            if (memcmp(x, y, sizeof *x * inner))
                fail_msg("%s of %s differs in layer %zu", of_a[i].name, a->path[in_a].name, l);
        }
    }
}

static double relative_l2(const struct study_case *c, enum study_truth truth, uint32_t path)
{
    return study_figures_of(c, STUDY_LAYER, truth, 0, path).relative_l2;
}

/*
 * gate and up rounded to bf16 before silu(gate) * up: two more roundings of the size of the one that makes the
 * intermediate, the one of gate times d ln silu / d ln gate, which is about 1. The error of the layer by itself grows
 * by about sqrt(3); an FP32 intermediate takes its own rounding away, and leaves the roundings of nothing but sums.
 * Against the original weights nothing shows: those errors are far larger. No other path has another bit.
 */
static void extra_rounding(void **state)
{
    struct planted without = {.plant = NULL}, with = {.plant = NULL};
    (void)state;
    run(&without, "mxfp8.fma32,int8.fma32");
    run(&with, "mxfp8.fma32,bf16.fma32.bf16gateup,bf16.fma32.fp32intermediate,int8.fma32");
    assert_same_path(&without.c, 0, &with.c, 0);
    assert_same_path(&without.c, 1, &with.c, 1);
    assert_same_path(&without.c, 2, &with.c, 4);
    double right = relative_l2(&with.c, STUDY_QUANTISED, 0), extra = relative_l2(&with.c, STUDY_QUANTISED, 2),
           none = relative_l2(&with.c, STUDY_QUANTISED, 3);
    print_message("layer by itself: %.3e, gate and up rounded %.3e, FP32 intermediate %.3e\n", right, extra, none);
    assert_true(extra > 1.5 * right && extra < 2.0 * right);
    assert_true(none < 1e-3 * right && none > 0.0);
    assert_true(fabs(relative_l2(&with.c, STUDY_ORIGINAL, 2) / relative_l2(&with.c, STUDY_ORIGINAL, 0) - 1.0) < 1e-2);
    for (size_t n = 0; n < TOKENS; n++) /* layer 0 is routed before anything is computed */
        assert_true(with.c.measure[STUDY_OPEN_LOOP][STUDY_QUANTISED].changed[2 * TOKENS + n] ==
                    with.c.measure[STUDY_OPEN_LOOP][STUDY_QUANTISED].changed[n]);
    study_case_free(&without.c);
    study_case_free(&with.c);
}

static void faint_norm(struct gb_fixture *f, const void *what)
{
    const float *factor = what;
    for (uint32_t l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < HIDDEN; i++)
            f->layer[l].norm[i] *= *factor;
}

/* Inputs that are 2^20 times smaller: what activations are calibrated with is as well, so that codes lose no more. */
static void faint_inputs(void **state)
{
    static const float factor = 0x1p-20f;
    struct planted usual = {.plant = NULL}, faint = {.plant = faint_norm, .what = &factor};
    (void)state;
    run(&usual, "nvfp4.fma32");
    run(&faint, "nvfp4.fma32");
    const double right = relative_l2(&usual.c, STUDY_QUANTISED, 1), found = relative_l2(&faint.c, STUDY_QUANTISED, 1);
    print_message("nvfp4: %.3e, faint %.3e\n", right, found);
    if (!(found > 0.8 * right && found < 1.25 * right))
        fail_msg("%.3e, and of faint inputs %.3e", right, found);
    study_case_free(&usual.c);
    study_case_free(&faint.c);
}

/* Two rows of layer 0's router that are the same but in columns i and j, where the first has none and the second
 * alpha and -beta. */
struct tie {
    uint32_t token, first, second; /* experts */
    uint32_t i, j;
    gb_bf16 alpha, beta; /* that x rounded to bf16 ranks otherwise than x */
    gb_bf16 clear;       /* in place of beta: both rank alike */
};

static void plant_tie(struct gb_fixture *f, const struct tie *t, gb_bf16 beta)
{
    gb_bf16 *router = (gb_bf16 *)f->layer[0].router.codes, *first = router + (size_t)t->first * HIDDEN,
            *second = router + (size_t)t->second * HIDDEN;
    const gb_bf16 zero = {0}, minus = {(uint16_t)(beta.bits ^ 0x8000)};
    first[t->i] = first[t->j] = zero;
    memcpy(second, first, sizeof *first * HIDDEN);
    second[t->i] = t->alpha;
    second[t->j] = minus;
}

static void near_tie(struct gb_fixture *f, const void *what)
{
    const struct tie *t = what;
    plant_tie(f, t, t->beta);
}

static void clear_tie(struct gb_fixture *f, const void *what)
{
    const struct tie *t = what;
    plant_tie(f, t, t->clear);
}

/* Looks for a tie at the last place of a token's experts: x and its bf16 xr, both positive at i and j, with
 * alpha x_i > beta x_j but alpha xr_i < beta xr_j, by 2^-10 of either; clear is beta one step down. */
static bool find_columns(const double *x, struct tie *t)
{
    for (t->i = 0; t->i < HIDDEN; t->i++)
        for (t->j = 0; t->j < HIDDEN; t->j++) {
            double xi = x[t->i], xj = x[t->j];
            double ri = (double)gb_bf16_decode(gb_bf16_encode((float)xi)),
                   rj = (double)gb_bf16_decode(gb_bf16_encode((float)xj));
            if (t->i == t->j || xi < 0.5 || xj < 0.5 || xi / xj < (1.0 + 0x1p-9) * ri / rj)
                continue;
            for (uint16_t step = 0; step < 128; step++) {
                t->alpha = gb_bf16_encode(1.0f + 0x1p-7f * step);
                t->beta = gb_bf16_encode((float)((double)gb_bf16_decode(t->alpha) * sqrt(xi / xj * ri / rj)));
                t->clear = (gb_bf16){(uint16_t)(t->beta.bits - 1)};
                double alpha = (double)gb_bf16_decode(t->alpha), beta = (double)gb_bf16_decode(t->beta);
                if (alpha * xi > (1.0 + 0x1p-11) * beta * xj && alpha * ri < (1.0 - 0x1p-11) * beta * rj)
                    return true;
            }
        }
    return false;
}

/* The tie of some token, whose last chosen expert becomes the first of both. */
static struct tie find_tie(void)
{
    struct study_source source = generated();
    struct gb_fixture *f = source.fixture;
    struct tie t = {0};
    double x[HIDDEN];
    int32_t ids[TOP_K + 1];
    double weights[TOP_K + 1];
    for (t.token = 0; t.token < TOKENS; t.token++) {
        struct gb_shape one = {1, HIDDEN, 128, EXPERTS, TOP_K + 1};
        gb_rms_norm(f->stack.residual + (size_t)t.token * HIDDEN, f->layer[0].norm, HIDDEN, f->rms_norm_epsilon, x);
        assert_int_equal(gb_truth_route(&one, x, &f->layer[0].router, true, ids, weights, NULL), GB_OK);
        t.first = (uint32_t)ids[TOP_K - 1];
        t.second = (uint32_t)ids[TOP_K];
        if (weights[TOP_K - 2] > 1.5 * weights[TOP_K - 1] && find_columns(x, &t))
            break;
    }
    study_source_free(&source);
    assert_true(t.token < TOKENS);
    return t;
}

/*
 * x in float64 prefers one expert, x in bf16 the other. The token's set of experts is another one on every path, and
 * its error in the residual stream is one of experts, not of roundings: with bf16 activations many times as large. The
 * layer by itself, whose experts are given, does not show it, and neither does any other token in its first layer.
 */
static void routing_tie(void **state)
{
    const struct tie tie = find_tie();
    struct planted near = {.plant = near_tie, .what = &tie}, apart = {.plant = clear_tie, .what = &tie};
    (void)state;
    run(&near, "bf16.mma16-sm90,mxfp8.fma32");
    run(&apart, "bf16.mma16-sm90,mxfp8.fma32");
    print_message("token %u, experts %u and %u, columns %u and %u\n", tie.token, tie.first, tie.second, tie.i, tie.j);
    for (size_t p = 0; p < near.c.paths; p++)
        for (size_t n = 0; n < TOKENS; n++) {
            size_t at = p * TOKENS + n; /* of layer 0 */
            const struct study_measure *open[] = {&near.c.measure[STUDY_OPEN_LOOP][STUDY_QUANTISED],
                                                  &apart.c.measure[STUDY_OPEN_LOOP][STUDY_QUANTISED]};
            const struct study_measure *alone[] = {&near.c.measure[STUDY_LAYER][STUDY_QUANTISED],
                                                   &apart.c.measure[STUDY_LAYER][STUDY_QUANTISED]};
            double moved = sqrt(open[0]->error2[at] / open[1]->error2[at]);
            assert_true(open[1]->changed[at] == 0.0 && open[0]->changed[at] == (n == tie.token));
            if (n == tie.token)
                print_message("  %s: its error grows %.1f times\n", near.c.path[p].name, moved);
            /* Other tokens' weights of the second expert, if it is among theirs, are a little different. */
            assert_true(n == tie.token ? moved > (p == 2 ? 1.3 : 10.0) : moved > 0.8 && moved < 1.25);
            assert_true(fabs(sqrt(alone[0]->error2[at] / alone[1]->error2[at]) - 1.0) < 0.25);
        }
    study_case_free(&near.c);
    study_case_free(&apart.c);
}

/* Column c of gate and up is zero in every expert, so that x[c] changes no result. */
static void close_column(struct gb_fixture *f, uint32_t c)
{
    uint8_t *codes = (uint8_t *)f->layer[0].gate_up.codes;
    for (size_t row = 0; row < (size_t)EXPERTS * 2 * 128; row++)
        codes[row * (HIDDEN / 2) + c / 2] &= c % 2 ? 0x0F : 0xF0;
}

/* |output - truth| / |truth| of layer 0 by one path. x: [TOKENS, HIDDEN] */
static double error_of(const char *name, const struct study_source *source, const gb_bf16 *x, float *output)
{
    static double truth[TOKENS * HIDDEN], shares[STUDY_TRUTH_SHARES * TOKENS * HIDDEN], wide[TOKENS * HIDDEN];
    const bool mine[STUDY_TRUTH_SHARES] = {true, true, true, true, true, true, true, true};
    const struct gb_fixture *f = source->fixture;
    struct study_path paths[STUDY_PATHS];
    struct gb_error error;
    int32_t ids[TOKENS * TOP_K];
    float weights[TOKENS * TOP_K], largest = 0.0f;
    double exact[TOKENS * TOP_K], off = 0.0, size = 0.0;
    uint32_t count;
    for (int i = 0; i < TOKENS * TOP_K; i++) {
        ids[i] = (i * 5 + i / TOP_K) % EXPERTS;
        exact[i] = (double)(weights[i] = 0.25f + 0.125f * (float)(i % 3));
    }
    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        wide[i] = (double)gb_bf16_decode(x[i]);
        largest = fmaxf(largest, fabsf((float)wide[i]));
    }
    struct study_truth_inputs in = {TOKENS, wide, ids, exact};
    struct study_batch batch = {TOKENS, x, ids, weights};
    assert_int_equal(study_paths(name, GB_NVFP4, &shape, paths, &count, &error), GB_OK);
    const float global[2] = {largest / 2688.0f, 4.0f / 2688.0f};
    gb_truth_threads(1);
    assert_int_equal(study_truth_shares(f, 0, STUDY_QUANTISED, &in, mine, shares, &error), GB_OK);
    study_truth_sum(shares, TOKENS * HIDDEN, truth);
    assert_int_equal(study_path_run(&paths[count - 1], f, 0, &batch, global, output, NULL, &error), GB_OK);
    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        off += ((double)output[i] - truth[i]) * ((double)output[i] - truth[i]);
        size += truth[i] * truth[i];
    }
    return sqrt(off / size);
}

/* Of mean 0 and variance 1: the sum of twelve uniform numbers (xorshift). */
static float normal(void)
{
    static uint64_t state = 88172645463325252u;
    double sum = -6.0;
    for (int i = 0; i < 12; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        sum += (double)(state >> 11) * 0x1p-53;
    }
    return (float)sum;
}

/*
 * One channel of x that is 100 times larger and that no expert looks at. bf16 activations keep every bit. INT8 spends
 * its 127 steps on it: in the block of 128 around it, half of x, a step is 100 / 127 instead of 2.7 / 127. FP8 makes
 * room by its exponent, and so does MXFP8; MXFP4 loses the 31 values beside it, an eighth of x.
 */
static void outlier_channel(void **state)
{
    static const struct {
        const char *name;
        double least, most; /* by which the error grows */
    } rows[] = {{"bf16.fma32", 1.0, 1.0},  {"bf16.mma16-sm90", 1.0, 1.0}, {"bf16.fma32.prereduced4", 1.0, 1.0},
                {"int8.fma32", 8.0, 15.0}, {"fp8.fma32", 0.85, 1.15},     {"mxfp8.fma32", 0.95, 1.05},
                {"mxfp4.fma32", 1.8, 3.0}};
    enum { CHANNEL = 77 };
    static float outputs[2][TOKENS * HIDDEN];
    struct study_source source = generated();
    struct gb_error error;
    gb_bf16 x[2][TOKENS * HIDDEN];
    (void)state;
    assert_int_equal(study_source_load(&source, 0, every, &error), GB_OK);
    close_column(source.fixture, CHANNEL);
    for (size_t i = 0; i < TOKENS * HIDDEN; i++) {
        float value = i % HIDDEN == CHANNEL ? 1.0f : normal();
        x[0][i] = gb_bf16_encode(value);
        x[1][i] = gb_bf16_encode(i % HIDDEN == CHANNEL ? 100.0f * value : value);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double before = error_of(rows[i].name, &source, x[0], outputs[0]),
               after = error_of(rows[i].name, &source, x[1], outputs[1]);
        print_message("%-24s %.3e, with the outlier %.3e\n", rows[i].name, before, after);
        if (rows[i].most == 1.0)
            assert_memory_equal(outputs[0], outputs[1], sizeof outputs[0]);
        assert_true(after >= rows[i].least * before && after <= rows[i].most * before);
    }
    study_source_free(&source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(extra_rounding), cmocka_unit_test(faint_inputs),
                                       cmocka_unit_test(routing_tie), cmocka_unit_test(outlier_channel)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
