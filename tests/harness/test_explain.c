/* SPDX-License-Identifier: Apache-2.0 */
/* explain: every fault of the library is named by itself or by one that makes the same error, also in one expert.
 * Parts of a problem are problems of what they are cut from. */
#include "harness/explain/explain.h"

#include "harness/explain/subproblem.h"
#include "harness/faults/faults.h"
#include "reference/reference.h"
#include "tests/support/check.h"
#include "tests/support/fma32.h"
#include "tests/support/kept_explanation.h"
#include "tests/support/layer_as_fixture.h"

/* Of each format every so manieth fault is run. */
static uint32_t stride = 110;

struct scene {
    struct problem problem;
    struct gb_fixture *fixture;
    struct baseline baseline;
    struct trace trace;
    struct gb_outputs *subject;
};

/* busy: an expert that every token has, in one of its slots; -1: none. activations: of the fixture. */
static void scene_of(struct scene *s, struct gb_shape shape, enum gb_format format, enum gb_format activations,
                     int32_t busy)
{
    static const struct gb_rounding_points points = {
        .intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = 24};
    memset(s, 0, sizeof *s);
    problem_new(&s->problem, shape, format, DATA_GAUSSIAN, 21);
    for (uint32_t t = 0; busy >= 0 && t < shape.tokens; t++) {
        s->problem.ids[2 * t + t % 2] = busy;
        s->problem.ids[2 * t + 1 - t % 2] = (busy + 1 + (int32_t)t % 5) % 6;
    }
    s->fixture = problem_fixture(&s->problem);
    if (activations != GB_BF16)
        assert_int_equal(gb_fixture_quantise_activations(s->fixture, activations, NULL, NULL), GB_OK);
    struct gb_arguments a = gb_layer_arguments(s->fixture, 0, shape.tokens);
    assert_int_equal(baseline_new(s->fixture, gb_contract_find(s->fixture->weights, GB_BF16, GB_ORDER_FMA32), NULL,
                                  &s->baseline, NULL),
                     GB_OK);
    assert_int_equal(baseline_bounds(&s->baseline, &points, false, NULL), GB_OK);
    assert_int_equal(trace_new(gb_contract_of(&a, GB_LAYER, GB_ORDER_FMA32), &a, &s->trace, NULL), GB_OK);
    assert_int_equal(gb_outputs_new(&shape, 1, GB_FP32, false, false, &s->subject, NULL), GB_OK);
}

static void scene_with(struct scene *s, enum gb_format format, int32_t busy)
{
    scene_of(s, (struct gb_shape){12, 64, 32, 6, 2}, format, GB_BF16, busy);
}

static void scene_new(struct scene *s, enum gb_format format)
{
    scene_with(s, format, -1);
}

static void scene_free(struct scene *s)
{
    trace_free(&s->trace);
    baseline_free(&s->baseline);
    gb_outputs_free(s->subject);
    gb_fixture_free(s->fixture);
    problem_free(&s->problem);
}

/* The best explanation of the subject's outputs. Owned by the caller; NULL: they are right. */
static struct explanation *explained(struct scene *s)
{
    struct explanation *explanation;
    struct gb_error error = {""};
    if (explain(&s->baseline, GB_LAYER, s->subject, &explanation, &error) != GB_OK)
        fail_msg("%s", error.message);
    kept_explanation(explanation);
    return explanation;
}

static bool also_fits(const struct explanation *explanation, const char *start)
{
    for (size_t i = 0; explanation && i < explanation->also_count; i++)
        if (!strncmp(explanation->also[i].name, start, strlen(start)))
            return true;
    return false;
}

/* By itself, by its structure, or beside what makes the same error: each in one of the formats. */
static void faults_are_explained(void **state)
{
    static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP8, GB_BF16, GB_MXFP4, GB_FP8_BLOCK};
    const size_t count = fault_count();
    (void)state;
    for (unsigned f = 0; f < sizeof formats / sizeof *formats; f++) {
        struct scene s;
        scene_of(&s, (struct gb_shape){stride > 1 ? 4 : 6, 128, stride > 1 ? 96 : 160, 6, 2}, formats[f], GB_BF16, -1);
        for (size_t i = f % stride; i < count; i += stride) {
            if (!fault_applies(fault_at(i), &s.trace.arguments) || !strcmp(fault_at(i)->name, "one NaN") ||
                !strcmp(fault_at(i)->name, "one element of another place")) /* one element has no name */
                continue;
            assert_int_equal(fault_run(fault_at(i), &s.trace, NULL, s.subject->layer[0].output, NULL), GB_OK);
            struct explanation *explanation = explained(&s);
            const char *name = explanation ? explanation->best.name : fault_at(i)->name;
            if (explanation && !(explanation->best.explains > 0.99))
                fail_msg("%s: %s", fault_at(i)->name, explanation->text);
            if (strncmp(name, fault_at(i)->name, strlen(fault_at(i)->name)) &&
                !also_fits(explanation, fault_at(i)->name) &&
                !(explanation->found_count && explanation->best.explains > 0.999))
                fail_msg("%s: %s", fault_at(i)->name, explanation->text);
            explanation_free(explanation);
        }
        scene_free(&s);
    }
}

static void one_expert_is_named(void **state)
{
    bool affected[6] = {false, false, true};
    const size_t count = fault_count();
    size_t tried = 0;
    struct scene s;
    (void)state;
    scene_new(&s, GB_NVFP4);
    for (size_t i = 0; i < count; i++) {
        char name[128];
        if (strcmp(fault_at(i)->name, "scales of the next block") && strcmp(fault_at(i)->name, "gate and up swapped") &&
            strcmp(fault_at(i)->name, "nibbles of down exchanged"))
            continue;
        assert_int_equal(fault_run(fault_at(i), &s.trace, affected, s.subject->layer[0].output, NULL), GB_OK);
        struct explanation *explanation = explained(&s);
        snprintf(name, sizeof name, "%s, of expert 2 alone", fault_at(i)->name);
        if (strcmp(explanation->best.name, name) && !also_fits(explanation, name))
            fail_msg("%s: %s", name, explanation->text);
        assert_int_equal(explanation->expert, 2);
        assert_non_null(strstr(explanation->text, "of expert 2"));
        explanation_free(explanation);
        tried++;
    }
    assert_int_equal(tried, 3);
    scene_free(&s);
}

static void expect_name(struct scene *s, const char *name)
{
    struct explanation *explanation = explained(s);
    assert_non_null(explanation);
    if (strcmp(explanation->best.name, name))
        fail_msg("'%s', not '%s': %s", explanation->best.name, name, explanation->text);
    if (!strstr(explanation->text, name))
        fail_msg("%s", explanation->text);
    explanation_free(explanation);
}

static double distance2(const float *a, const float *b, int count)
{
    double sum = 0.0;
    for (int i = 0; i < count; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sum;
}

/* Tokens 3 and 9 exchanged, one element beside that wrong: the share that the exchange explains. */
static void expect_share_of_exchange(struct scene *s)
{
    float *output = s->subject->layer[0].output, *row[] = {output + 3 * 64, output + 9 * 64};
    const float *right[] = {s->trace.output + 3 * 64, s->trace.output + 9 * 64};
    row[0][5] += (float)sqrt(0.0016 * distance2(right[0], right[1], 64));
    double all = distance2(row[0], right[0], 64) + distance2(row[1], right[1], 64);
    double left = distance2(row[0], right[1], 64);
    struct explanation *explanation = explained(s);
    assert_non_null(explanation);
    if (strcmp(explanation->best.name, "token 3 and token 9 exchanged") ||
        fabs(explanation->best.explains - (1.0 - left / all)) > 1e-9 || left < 5e-4 * all)
        fail_msg("%s: %.9f, not %.9f", explanation->text, explanation->best.explains, 1.0 - left / all);
    explanation_free(explanation);
}

static void rows_of_other_tokens_are_named(void **state)
{
    struct scene s;
    (void)state;
    scene_new(&s, GB_NVFP4);
    float *output = s.subject->layer[0].output;
    const size_t row = 64 * sizeof *output;
    memcpy(output, s.trace.output, 12 * row);
    memcpy(output + 3 * 64, s.trace.output + 9 * 64, row);
    memcpy(output + 9 * 64, s.trace.output + 3 * 64, row);
    expect_name(&s, "token 3 and token 9 exchanged");
    expect_share_of_exchange(&s);
    memcpy(output + 3 * 64, s.trace.output + 9 * 64, row);
    memcpy(output + 9 * 64, s.trace.output + 9 * 64, row);
    expect_name(&s, "output of token 3: those of token 9");
    memcpy(output + 4 * 64, s.trace.output + 3 * 64, row);
    expect_name(&s, "token 3 has the output of token 9, token 4 that of token 3");
    for (int t = 0; t < 12; t++)
        memcpy(output + t * 64, s.trace.output + (t + 5) % 12 * 64, row);
    expect_name(&s, "output: those of the token 5 further on");
    scene_free(&s);
}

/* Of more tokens than are looked at together: those around the wrong one, by their numbers in the problem. */
static void tokens_of_a_large_problem_are_named(void **state)
{
    enum { TOKENS = 48, WIDTH = 32 };
    static const uint32_t tokens[] = {0, 15, 17, 33, 47};
    struct scene s;
    (void)state;
    scene_of(&s, (struct gb_shape){TOKENS, WIDTH, 16, 6, 2}, GB_NVFP4, GB_BF16, -1);
    float *output = s.subject->layer[0].output;
    for (size_t n = 0; n < sizeof tokens / sizeof *tokens; n++) {
        char name[64];
        memcpy(output, s.trace.output, TOKENS * WIDTH * sizeof *output);
        for (int i = 0; i < WIDTH; i++)
            output[tokens[n] * WIDTH + i] *= 1.25f;
        snprintf(name, sizeof name, "output of token %u: multiplied by 1.25", tokens[n]);
        expect_name(&s, name);
        /* A faint error of another token, which the window has or has not. */
        const uint32_t other = tokens[n] < 24 ? tokens[n] + 17 : tokens[n] - 17;
        output[other * WIDTH + 5] += 1e-3f;
        struct explanation *explanation = explained(&s);
        assert_non_null(explanation);
        explanation_free(explanation);
    }
    scene_free(&s);
}

/* Every token is wrong, so that no place points at the expert. */
static void a_busy_expert_is_named(void **state)
{
    bool affected[6] = {false, false, false, false, true};
    const size_t count = fault_count();
    struct scene s;
    (void)state;
    scene_with(&s, GB_NVFP4, 4);
    float *output = s.subject->layer[0].output;
    for (size_t i = 0; i < 12 * 64; i++) {
        size_t pair = i / 64 * 2 + i / 64 % 2;
        output[i] = s.trace.output[i] + 0.375f * s.problem.routing_weights[pair] * s.trace.slots[pair * 64 + i % 64];
    }
    expect_name(&s, "down_proj of expert 4: multiplied by 1.375");
    for (size_t i = 0; i < count; i++)
        if (!strcmp(fault_at(i)->name, "global scale of the next expert in gate and up")) {
            assert_int_equal(fault_run(fault_at(i), &s.trace, affected, output, NULL), GB_OK);
            expect_name(&s, "global scale of the next expert in gate and up, of expert 4 alone");
        }
    scene_free(&s);
}

static void offsets_of_ids_are_named(void **state)
{
    static const struct {
        int32_t offset;
        const char *name;
    } rows[] = {{1, "experts' ids off by 1"}, {5, "experts' ids off by -1"}, {3, "experts' ids off by 3"}};
    (void)state;
    for (unsigned n = 0; n < 3; n++) {
        struct scene s;
        int32_t ids[24];
        scene_new(&s, GB_BF16);
        struct gb_arguments a = gb_layer_arguments(s.fixture, 0, 12);
        for (int i = 0; i < 24; i++)
            ids[i] = (a.ids[i] + rows[n].offset) % 6;
        a.ids = ids;
        a.output = s.subject->layer[0].output;
        assert_int_equal(fma32_layer(&a, NULL), GB_OK);
        expect_name(&s, rows[n].name);
        scene_free(&s);
    }
}

static void right_outputs_need_none(void **state)
{
    struct scene s;
    (void)state;
    scene_new(&s, GB_MXFP8);
    memcpy(s.subject->layer[0].output, s.trace.output, 12 * 64 * sizeof(float));
    assert_null(explained(&s));
    scene_free(&s);
}

/* Nothing that needs many wrong elements is tried where three are more than rounding: not a factor, which four show. */
static void few_elements_are_few(void **state)
{
    (void)state;
    for (int wrong = 3; wrong <= 4; wrong++) {
        struct scene s;
        scene_new(&s, GB_MXFP8);
        float *output = s.subject->layer[0].output;
        for (int i = 0; i < 12 * 64; i++)
            output[i] = s.trace.output[i] * (i % 2 ? 1.0f + 0x1p-19f : 1.0f - 0x1p-20f);
        for (int i = 0; i < wrong; i++)
            output[(2 + i) * 64 + 44] *= 2.0f;
        struct explanation *explanation = explained(&s);
        assert_non_null(explanation);
        const char *said = wrong < 4
                               ? "no structure found, no known bug fits it; in tokens 2, 3, 4 only; in column 44 only"
                               : "looks like: output of tokens 2-5, column 44: multiplied by ";
        if (strncmp(explanation->text, said, strlen(said)))
            fail_msg("%d elements: %s, not: %s", wrong, explanation->text, said);
        explanation_free(explanation);
        scene_free(&s);
    }
}

/* Either contract is named where the other is asked for, with what to say for it. */
static void the_other_contract_is_named(void **state)
{
    static const struct gb_rounding_points points = {
        .intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = 24};
    struct baseline quantised = {0};
    struct scene s;
    (void)state;
    scene_of(&s, (struct gb_shape){4, 64, 64, 6, 2}, GB_NVFP4, GB_NVFP4, -1);
    size_t bytes = 4 * 64 * sizeof(float);
    assert_int_equal(
        baseline_new(s.baseline.fixture, fixture_contract(s.baseline.fixture), &s.baseline, &quantised, NULL), GB_OK);
    assert_int_equal(baseline_bounds(&quantised, &points, false, NULL), GB_OK);
    memcpy(s.subject->layer[0].output, quantised.reference->layer[0].output, bytes);
    struct explanation *explanation = explained(&s);
    assert_non_null(strstr(explanation->text,
                           "looks like: the contract with nvfp4 activations (explains 100 % of the squared error)"));
    assert_non_null(strstr(explanation->text, "; if that is meant: --activations nvfp4, or so in the kernel's table"));
    explanation_free(explanation);
    memcpy(s.subject->layer[0].output, s.baseline.reference->layer[0].output, bytes);
    assert_int_equal(explain(&quantised, GB_LAYER, s.subject, &explanation, NULL), GB_OK);
    assert_non_null(strstr(explanation->text,
                           "looks like: the contract with bf16 activations (explains 100 % of the squared error)"));
    assert_non_null(strstr(explanation->text, "; if that is meant: --activations bf16, or so in the kernel's table"));
    explanation_free(explanation);
    baseline_free(&quantised);
    scene_free(&s);
}

/* A kernel that is given the intermediate has that of the right experts, whatever experts it takes itself. */
static void mistakes_of_down_are_explained(void **state)
{
    enum { TOKENS = 6, HIDDEN = 128 };
    float of_layer[TOKENS * HIDDEN];
    struct scene s;
    uint32_t seen = 0;
    (void)state;
    scene_of(&s, (struct gb_shape){TOKENS, HIDDEN, 160, 6, 2}, GB_NVFP4, GB_BF16, -1);
    for (size_t i = 0; i < fault_count(); i++) {
        const struct fault *fault = fault_at(i);
        float *output = s.subject->layer[0].output;
        struct explanation *explanation;
        if (fault->stage != STAGE_INPUT || !fault_applies(fault, &s.trace.arguments))
            continue;
        s.trace.down_alone = false;
        assert_int_equal(fault_run(fault, &s.trace, NULL, of_layer, NULL), GB_OK);
        s.trace.down_alone = true;
        assert_int_equal(fault_run(fault, &s.trace, NULL, output, NULL), GB_OK);
        if (!memcmp(output, of_layer, sizeof of_layer))
            continue;
        assert_int_equal(explain(&s.baseline, GB_DOWN, s.subject, &explanation, NULL), GB_OK);
        if (!explanation) /* of x, which it does not read */
            assert_memory_equal(output, s.baseline.reference->layer[0].output, sizeof of_layer);
        else if (!(explanation->best.explains > 0.999) ||
                 (strcmp(explanation->best.name, fault->name) && !also_fits(explanation, fault->name)))
            fail_msg("%s: %s", fault->name, explanation->text);
        seen += explanation != NULL;
        explanation_free(explanation);
    }
    scene_free(&s);
    assert_in_range(seen, 4, fault_count());
}

/* On few tokens much looks alike: the simplest is the name, and the rest is said. */
static void the_simplest_that_fits_is_named(void **state)
{
    static const struct {
        struct gb_shape shape;
        const char *fault, *name, *also; /* also: how one of the others begins; NULL: there is none */
    } rows[] = {
        {{2, 128, 64, 4, 2}, "output zero", "output zero", NULL},
        {{2, 128, 64, 4, 1}, "output zero", "output zero", "last slot dropped"},
        {{1, 128, 64, 4, 1}, "output zero", "output zero", "one expert dropped"},
        {{1, 128, 64, 4, 1}, "routing weight missing", "routing weight missing", "the output scaled by "},
        {{1, 128, 64, 1, 1}, "routing weight missing", "routing weight missing", "routing weights uniform"},
        {{1, 128, 64, 4, 2}, "one slot lost", "slot 1 left out", "expert 0 left out"},
        {{1, 128, 64, 4, 1}, "gate and up swapped", "gate and up swapped", "SiLU of up"},
        {{1, 128, 16, 4, 1}, "last K block of down dropped", "output zero", "last K block of down dropped"},
        {{6, 128, 64, 4, 2}, "last K block of down dropped", "last K block of down dropped", "last 16 neurons zero"},
        {{6, 128, 64, 4, 2}, "two rows exchanged", "token 0 and token 1 exchanged", "two rows exchanged"},
    };
    const size_t count = fault_count();
    (void)state;
    for (unsigned n = 0; n < sizeof rows / sizeof *rows; n++) {
        struct scene s;
        scene_of(&s, rows[n].shape, GB_NVFP4, GB_BF16, -1);
        for (size_t i = 0; i < count; i++)
            if (!strcmp(fault_at(i)->name, rows[n].fault))
                assert_int_equal(fault_run(fault_at(i), &s.trace, NULL, s.subject->layer[0].output, NULL), GB_OK);
        struct explanation *explanation = explained(&s);
        const char *name = explanation->best.name;
        if (strncmp(name, rows[n].name, strlen(rows[n].name)))
            fail_msg("row %u: '%s', not '%s': %s", n, name, rows[n].name, explanation->text);
        if (rows[n].also ? !also_fits(explanation, rows[n].also) : explanation->also_count != 0)
            fail_msg("row %u: '%s' is not among what fits alike: %s", n, rows[n].also ? rows[n].also : "",
                     explanation->text);
        if (rows[n].also && !strstr(explanation->text, ", or"))
            fail_msg("row %u: %s", n, explanation->text);
        explanation_free(explanation);
        scene_free(&s);
    }
}

/* Expert `e` of the part has the first columns of the first rows of either half of expert `of`. */
static void expect_weights(const struct gb_weights *part, uint32_t e, const struct gb_weights *whole, uint32_t of)
{
    double values[512], right[512];
    const uint32_t rows = part->rows / part->halves, all = whole->rows / whole->halves;
    for (uint32_t row = 0; row < part->rows; row++) {
        gb_weights_row(part, e, row, values);
        gb_weights_row(whole, of, row / rows * all + row % rows, right);
        assert_memory_equal(values, right, part->columns * sizeof *values);
    }
}

/* Inputs and weights of the part are the whole's, its experts numbered in the order of the whole's; where no token has
 * an expert, it is like the first one. */
static void expect_part(const struct gb_fixture *f, const struct part *p, const struct gb_fixture *part)
{
    const struct gb_layer *from = &f->layer[p->layer], *to = &part->layer[0];
    const struct gb_shape *shape = &part->shape;
    uint32_t of[16], used = 0;
    for (uint32_t e = 0; e < f->shape.experts; e++)
        for (uint32_t i = 0; i < p->tokens * p->slots; i++)
            if (from->ids[(p->first_token + i / p->slots) * f->shape.top_k + p->first_slot + i % p->slots] ==
                (int32_t)e) {
                of[used++] = e;
                break;
            }
    assert_true(shape->tokens == p->tokens && shape->top_k == p->slots && shape->hidden == p->hidden &&
                shape->intermediate == p->intermediate && shape->experts == (used > p->slots ? used : p->slots));
    for (uint32_t e = used; e < shape->experts; e++)
        of[e] = of[0];
    for (uint32_t t = 0; t < p->tokens; t++) {
        assert_memory_equal(to->x + t * p->hidden, from->x + (p->first_token + t) * f->shape.hidden,
                            p->hidden * sizeof *to->x);
        for (uint32_t k = 0; k < p->slots; k++) {
            const uint32_t i = t * p->slots + k, n = (p->first_token + t) * f->shape.top_k + p->first_slot + k;
            assert_true(to->ids[i] < (int32_t)used && (to->ids[i] < 0) == (from->ids[n] < 0));
            assert_true(to->ids[i] < 0 || (int32_t)of[to->ids[i]] == from->ids[n]);
            assert_true(to->routing_weights[i] == from->routing_weights[n] &&
                        to->truth_routing_weights[i] == from->truth_routing_weights[n]);
        }
    }
    for (uint32_t e = 0; e < shape->experts; e++) {
        const uint32_t I = p->intermediate;
        expect_weights(&to->gate_up, e, &from->gate_up, of[e]);
        expect_weights(&to->down, e, &from->down, of[e]);
        for (uint32_t i = 0; from->gate_up_bias && e < used && i < 2 * I; i++)
            assert_true(to->gate_up_bias[e * 2 * I + i] ==
                        from->gate_up_bias[(2 * of[e] + i / I) * f->shape.intermediate + i % I]);
        for (uint32_t i = 0; from->gate_up_bias && e < used && i < p->hidden; i++)
            assert_true(to->down_bias[e * p->hidden + i] == from->down_bias[of[e] * f->shape.hidden + i]);
    }
}

/* Truth of a fixture of one layer from its own arrays. */
static void expect_truth(const struct gb_fixture *f)
{
    const struct gb_layer *l = &f->layer[0];
    struct gb_truth_quantised weights = {l->gate_up, l->down, {f->activation, l->gate_up_bias, l->down_bias}};
    struct gb_truth_source source = gb_truth_from_quantised(&weights);
    const size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    double *x = malloc(count * sizeof *x), *truth = malloc(count * sizeof *truth);
    assert_true(x && truth);
    for (size_t i = 0; i < count; i++)
        x[i] = (double)gb_bf16_decode(l->x[i]);
    assert_int_equal(gb_truth_layer(&f->shape, x, l->ids, l->truth_routing_weights, &source, truth, NULL, NULL), GB_OK);
    assert_memory_equal(l->truth_quantised, truth, count * sizeof *truth);
    assert_memory_equal(l->truth_original, truth, count * sizeof *truth);
    free(x);
    free(truth);
}

/* Of formats with and without scales of each row, tiles and globals; biases, and tokens with empty slots. */
static void parts_are_of_the_whole(void **state)
{
    static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP4, GB_BF16, GB_FP8_BLOCK};
    static const struct part parts[] = {{0, 0, 5, 0, 3, 384, 256},
                                        {0, 1, 2, 1, 2, 256, 128},
                                        {0, 3, 1, 0, 3, 128, 256},
                                        {0, 4, 1, 2, 1, 384, 128},
                                        {0, 2, 3, 0, 1, 128, 128}};
    (void)state;
    for (unsigned n = 0; n < sizeof formats / sizeof *formats; n++) {
        struct problem problem;
        problem_new(&problem, (struct gb_shape){5, 384, 256, 11, 3}, formats[n], DATA_GAUSSIAN, 40 + n);
        problem.ids[3 * 3 + 1] = problem.ids[3 * 3 + 2] = problem.ids[1 * 3 + 2] = -1;
        struct gb_fixture *f = problem_fixture(&problem), *part;
        struct gb_error error = {""};
        f->layer[0].index = 6 + n;
        f->activation = n == 1 ? GB_SWIGLU_OAI : GB_SILU;
        f->norm_topk_prob = n != 2;
        f->nonfinite = n == 2;
        f->rms_norm_epsilon = 0.5 + n;
        f->activations = n ? GB_BF16 : GB_NVFP4;
        strcpy(f->recipe, "recipe");
        strcpy(f->contract, "contract");
        strcpy(f->activation_recipe, "activations");
        strcpy(f->source, "checkpoint");
        strcpy(f->sha256, "0123");
        if (n % 2)
            assert_int_equal(gb_fixture_add(f, GB_EXTRA_BIASES, &error), GB_OK);
        for (uint32_t i = 0; n % 2 && i < 11 * 2 * 256; i++)
            f->layer[0].gate_up_bias[i] = 0.5f + 0.001f * (float)i;
        for (uint32_t i = 0; n % 2 && i < 11 * 384; i++)
            f->layer[0].down_bias[i] = -0.25f - 0.002f * (float)i;
        if (!n)
            assert_int_equal(gb_fixture_add(f, GB_EXTRA_ACTIVATION_SCALES, &error), GB_OK);
        for (uint32_t i = 0; !n && i < 2; i++)
            f->layer[0].activation_scales[i] = 0.25f + (float)i;
        for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
            const struct part *p = &parts[i];
            char source[64];
            if (part_new(f, p, &part, &error) != GB_OK)
                fail_msg("%s", error.message);
            expect_part(f, p, part);
            expect_truth(part);
            assert_int_equal(part->layer[0].index, 6 + n);
            assert_true(part->activation == f->activation && part->norm_topk_prob == f->norm_topk_prob &&
                        part->nonfinite == f->nonfinite && part->rms_norm_epsilon == f->rms_norm_epsilon &&
                        part->activations == f->activations && !part->stack.residual);
            assert_string_equal(part->recipe, f->recipe);
            assert_string_equal(part->contract, f->contract);
            assert_string_equal(part->activation_recipe, f->activation_recipe);
            assert_string_equal(part->source_sha256, f->sha256);
            assert_string_equal(part->generator, "import/1");
            snprintf(source, sizeof source, "layer 0, tokens %u to %u, slots %u to %u of checkpoint", p->first_token,
                     p->first_token + p->tokens - 1, p->first_slot, p->first_slot + p->slots - 1);
            assert_string_equal(part->source, source);
            assert_int_equal(part->layer[0].activation_scales != NULL, !n);
            if (!n)
                assert_memory_equal(part->layer[0].activation_scales, f->layer[0].activation_scales, 2 * sizeof(float));
            gb_fixture_free(part);
        }
        const struct part none = {0, 3, 1, 1, 2, 384, 256};
        assert_int_equal(part_new(f, &none, &part, &error), GB_EINVAL);
        assert_null(part);
        gb_fixture_free(f);
        problem_free(&problem);
    }
}

/* Of the faults above, which are a part of all. */
static void explanations_are_those_kept(void **state)
{
    (void)state;
    if (stride > 1)
        expect_kept_explanations("test_explain");
}

int main(int argc, char **argv)
{
    if (sweeps_are_whole(argc, argv))
        stride = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_are_explained),
        cmocka_unit_test(one_expert_is_named),
        cmocka_unit_test(rows_of_other_tokens_are_named),
        cmocka_unit_test(tokens_of_a_large_problem_are_named),
        cmocka_unit_test(a_busy_expert_is_named),
        cmocka_unit_test(offsets_of_ids_are_named),
        cmocka_unit_test(right_outputs_need_none),
        cmocka_unit_test(few_elements_are_few),
        cmocka_unit_test(the_other_contract_is_named),
        cmocka_unit_test(mistakes_of_down_are_explained),
        cmocka_unit_test(the_simplest_that_fits_is_named),
        cmocka_unit_test(parts_are_of_the_whole),
        cmocka_unit_test(explanations_are_those_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
