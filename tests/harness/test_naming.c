/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explain on structured faults (tests/support/structured_fault.h): a name is right if what it says, planted by the
 * generator, makes the outputs that were seen. A part of the faults must be right in 80 %, the 200 of `test_naming all`
 * in 90 %; wrong is 1 %; `test_naming SEED COUNT` prints every one. Of mistakes that are no findings
 * (tests/support/kernel_fault.h) 80 % are right of the families that the search was written with in view, and 60 % of
 * those that came after it.
 */
#include <time.h>

#include "harness/explain/explain.h"
#include "harness/faults/faults.h"
#include "tests/support/check.h"
#include "tests/support/kept_explanation.h"
#include "tests/support/kernel_fault.h"
#include "tests/support/layer_as_fixture.h"
#include "tests/support/structured_fault.h"

static uint64_t first_seed = 1;
static unsigned faults = 14;
static bool printed, whole, holes; /* holes: slots of some tokens are empty */

static const struct {
    struct gb_shape shape, quick; /* of a part of the faults */
    enum gb_format weights, activations;
    const char *order; /* of the faulty kernel */
} scenes[] = {
    {{12, 256, 128, 8, 2}, {6, 112, 80, 6, 2}, GB_NVFP4, GB_BF16, GB_ORDER_FMA32},
    {{16, 256, 128, 16, 4}, {8, 128, 64, 8, 4}, GB_MXFP8, GB_BF16, GB_ORDER_FMA32},
    {{8, 512, 128, 32, 6}, {5, 128, 64, 9, 3}, GB_BF16, GB_BF16, GB_ORDER_FMA32},
    {{6, 384, 256, 6, 2}, {4, 128, 128, 5, 2}, GB_FP8_BLOCK, GB_BF16, GB_ORDER_FMA32},
    {{12, 256, 128, 8, 2}, {7, 112, 80, 6, 2}, GB_NVFP4, GB_NVFP4, GB_ORDER_FMA32},
    {{10, 256, 128, 8, 3}, {5, 128, 64, 6, 3}, GB_MXFP8, GB_MXFP8, GB_ORDER_FMA32},
    {{8, 256, 128, 8, 2}, {4, 128, 64, 6, 2}, GB_NVFP4, GB_BF16, GB_ORDER_MMA16_SM90},
};
enum { SCENES = sizeof scenes / sizeof *scenes };

struct scene {
    struct problem problem;
    struct gb_fixture *fixture;
    struct baseline plain, quantised, *baseline;
    struct layer_stages clean; /* in the faulty kernel's order */
    struct gb_outputs *subject;
    float *again; /* [tokens, hidden] */
};

static void scene_new(unsigned n, uint64_t seed, struct scene *s)
{
    static const struct gb_rounding_points points = {
        .intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = 24};
    const struct gb_shape *shape = whole ? &scenes[n].shape : &scenes[n].quick;
    memset(s, 0, sizeof *s);
    problem_new(&s->problem, *shape, scenes[n].weights, DATA_GAUSSIAN, seed);
    if (holes)
        problem_empty_slots(&s->problem, 4, seed);
    s->fixture = problem_fixture(&s->problem);
    s->baseline = &s->plain;
    if (scenes[n].activations != GB_BF16)
        assert_int_equal(gb_fixture_quantise_activations(s->fixture, scenes[n].activations, NULL, NULL), GB_OK);
    for (int i = 0; s->fixture->layer[0].activation_scales && i < 2; i++)
        s->fixture->layer[0].activation_scales[i] = 4.5f / 2688;
    assert_int_equal(
        baseline_new(s->fixture, gb_contract_find(s->fixture->weights, GB_BF16, GB_ORDER_FMA32), NULL, &s->plain, NULL),
        GB_OK);
    if (scenes[n].activations != GB_BF16) {
        s->baseline = &s->quantised;
        assert_int_equal(baseline_new(s->fixture, fixture_contract(s->fixture), &s->plain, &s->quantised, NULL), GB_OK);
    }
    assert_int_equal(baseline_bounds(s->baseline, &points, false, NULL), GB_OK);
    struct gb_arguments a = baseline_arguments(s->baseline, 0);
    layer_stages_new(&a, scenes[n].order, &s->clean);
    assert_int_equal(gb_outputs_new(shape, 1, GB_FP32, false, false, &s->subject, NULL), GB_OK);
    s->again = malloc((size_t)shape->tokens * shape->hidden * sizeof *s->again);
    assert_non_null(s->again);
}

static void scene_free(struct scene *s)
{
    layer_stages_free(&s->clean);
    if (s->baseline == &s->quantised)
        baseline_free(&s->quantised);
    baseline_free(&s->plain);
    gb_outputs_free(s->subject);
    gb_fixture_free(s->fixture);
    problem_free(&s->problem);
    free(s->again);
}

static double squares(const struct scene *s, const float *a, const float *b)
{
    double sum = 0.0;
    for (size_t i = 0; i < (size_t)s->problem.arguments.shape.tokens * s->problem.arguments.shape.hidden; i++)
        if (!(isnan(a[i]) && isnan(b[i])))
            sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sum;
}

/* At least 8 outputs are wrong, by more than rounding. */
static bool shows(const struct scene *s)
{
    const float *output = s->subject->layer[0].output, *reference = s->baseline->reference->layer[0].output;
    size_t count = (size_t)s->problem.arguments.shape.tokens * s->problem.arguments.shape.hidden, wrong = 0;
    for (size_t i = 0; i < count; i++)
        wrong += !same_float(output[i], s->clean.output[i]);
    return wrong >= 8 && squares(s, output, s->clean.output) > 100 * squares(s, s->clean.output, reference) &&
           squares(s, output, s->clean.output) > 1e-10 * (double)count;
}

static uint64_t draw(struct scene *s, uint64_t seed, struct finding *fault)
{
    for (;; seed += 1000003) {
        structured_fault_draw(&s->clean, seed, fault);
        structured_fault_run(&s->clean, fault, s->subject->layer[0].output, NULL);
        if (shows(s))
            return seed;
    }
}

enum score { RIGHT, ABSENT, WRONG, SCORES };

static bool same_axis(const struct finding_axis *a, const struct finding_axis *b, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++)
        if (finding_axis_has(a, i) != finding_axis_has(b, i))
            return false;
    return true;
}

struct tally {
    unsigned of[SCORES], stage, effect, place;
    unsigned by_stage[FINDING_STAGES][SCORES], by_effect[FINDING_EFFECTS][SCORES];
    double slowest; /* seconds of processor time */
};

/* What the findings make together: s->again. */
static void plant_findings(struct scene *s, const struct explanation *e)
{
    size_t count = (size_t)s->problem.arguments.shape.tokens * s->problem.arguments.shape.hidden;
    float *one = malloc(count * sizeof *one);
    assert_non_null(one);
    memcpy(s->again, s->clean.output, count * sizeof *s->again);
    for (uint32_t f = 0; f < e->found_count; f++) {
        structured_fault_run(&s->clean, &e->found[f], one, NULL);
        for (size_t i = 0; i < count; i++)
            s->again[i] += one[i] - s->clean.output[i];
    }
    free(one);
}

/* By what the name makes. */
static enum score score_outputs(struct scene *s, const struct explanation *e)
{
    const float *output = s->subject->layer[0].output;
    if (!e || !e->best.name[0])
        return ABSENT;
    if (!e->found_count) /* an injected bug of that name, or none */
        return e->best.explains > 0.9999 ? RIGHT : WRONG;
    plant_findings(s, e);
    double all = squares(s, output, s->clean.output), left = squares(s, output, s->again);
    return left <= 1e-3 * all || (isnan(all) && left == 0.0) ? RIGHT : WRONG; /* NaN: of the subject's outputs */
}

static enum score score(struct scene *s, const struct finding *fault, const struct explanation *e, struct tally *tally)
{
    const struct gb_shape *shape = &s->problem.arguments.shape;
    if (e && e->best.name[0] && e->found_count) {
        const struct finding *found = &e->found[0];
        tally->stage += found->stage == fault->stage;
        tally->effect += found->effect == fault->effect;
        tally->place += same_axis(&found->tokens, &fault->tokens, shape->tokens) &&
                        same_axis(&found->slots, &fault->slots, shape->top_k) &&
                        same_axis(&found->experts, &fault->experts, shape->experts) &&
                        same_axis(&found->elements, &fault->elements, shape->intermediate) &&
                        same_axis(&found->k, &fault->k, shape->intermediate);
    }
    return score_outputs(s, e);
}

static const char *const stages[] = {"input", "gate",           "up",     "gate_up", "act", "requant",
                                     "down",  "routing weight", "combine"};
static const char *const effects[FINDING_EFFECTS] = {
    "factor",     "add",       "constant", "negative", "saturate",   "flush",     "round",   "element",
    "xor",        "reverse",   "token",    "slot",     "expert",     "scales",    "swapped", "shared",
    "tiled",      "listed",    "clamped",  "slot of",  "token of",   "cap",       "floor",   "token xor",
    "listed xor", "expert of", "weighted", "largest",  "ranked",     "function",  "half",    "row xor",
    "read",       "power",     "square",   "row",      "transposed", "exchanged",
};

static void write_axis(const char *name, const struct finding_axis *a)
{
    if (a->kind == AXIS_RANGE)
        print_message(" %s %u+%u", name, a->first, a->count);
    if (a->kind == AXIS_MODULO)
        print_message(" %s %u+%u%%%u", name, a->first, a->count, a->period);
    if (a->kind == AXIS_LIST)
        print_message(" %s list of %u", name, a->count);
}

static void write_finding(const struct finding *f)
{
    print_message("%s %s %.4g/%d/%d", stages[f->stage], effects[f->effect], f->amount, f->offset, (int)f->type);
    write_axis("tokens", &f->tokens);
    write_axis("slots", &f->slots);
    write_axis("experts", &f->experts);
    write_axis("elements", &f->elements);
    write_axis("k", &f->k);
}

static void one(struct scene *s, unsigned n, uint64_t seed, struct tally *tally)
{
    static const char *const words[] = {"right", "absent", "WRONG"};
    struct explanation *e;
    struct finding fault;
    seed = draw(s, seed, &fault);
    clock_t began = clock();
    assert_int_equal(explain(s->baseline, GB_LAYER, s->subject, &e, NULL), GB_OK);
    double seconds = (double)(clock() - began) / CLOCKS_PER_SEC;
    kept_explanation(e);
    enum score result = score(s, &fault, e, tally);
    tally->of[result]++;
    tally->by_stage[fault.stage][result]++;
    tally->by_effect[fault.effect][result]++;
    tally->slowest = fmax(tally->slowest, seconds);
    if (printed) {
        print_message("%-6s %5.2f s scene %u seed %llu: ", words[result], seconds, n, (unsigned long long)seed);
        write_finding(&fault);
        print_message("  =>  %s\n", e ? e->text : "nothing");
    }
    explanation_free(e);
}

static void structured_faults_are_named(void **state)
{
    struct tally tally = {.slowest = 0.0};
    (void)state;
    for (unsigned n = 0; n < SCENES && n < faults; n++) {
        struct scene s;
        scene_new(n, first_seed, &s);
        for (unsigned i = n; i < faults; i += SCENES)
            one(&s, n, first_seed * 4096 + i, &tally);
        scene_free(&s);
    }
    for (int i = 0; printed && i < FINDING_STAGES; i++)
        print_message("%-15s right %3u absent %3u wrong %3u\n", stages[i], tally.by_stage[i][RIGHT],
                      tally.by_stage[i][ABSENT], tally.by_stage[i][WRONG]);
    for (int i = 0; printed && i < FINDING_EFFECTS; i++)
        print_message("%-15s right %3u absent %3u wrong %3u\n", effects[i], tally.by_effect[i][RIGHT],
                      tally.by_effect[i][ABSENT], tally.by_effect[i][WRONG]);
    print_message("%u faults: right %u, absent %u, wrong %u; of the names, stage as planted %u, effect %u, place %u; "
                  "slowest %.2f s\n",
                  faults, tally.of[RIGHT], tally.of[ABSENT], tally.of[WRONG], tally.stage, tally.effect, tally.place,
                  tally.slowest);
    if (!printed) {
        assert_true(100 * tally.of[RIGHT] >= (faults < 200 ? 80 : 90) * faults);
        assert_true(100 * tally.of[WRONG] <= faults);
    }
}

/* Mistakes that are planted in what a kernel reads and writes, not as findings. */
static void name_kernel_faults(enum kernel_faults which, unsigned count, unsigned of[SCORES])
{
    static const char *const words[] = {"right", "absent", "WRONG"};
    for (unsigned n = 0; n < SCENES && n < count; n++) {
        struct scene s;
        scene_new(n, first_seed, &s);
        for (unsigned i = n; i < count; i += SCENES) {
            struct explanation *e;
            const char *name;
            uint64_t seed = first_seed * 8192 + i;
            for (;; seed += 1000003) {
                name = kernel_fault_run(&s.clean, which, seed, s.subject->layer[0].output);
                if (shows(&s))
                    break;
            }
            clock_t began = clock();
            assert_int_equal(explain(s.baseline, GB_LAYER, s.subject, &e, NULL), GB_OK);
            double seconds = (double)(clock() - began) / CLOCKS_PER_SEC;
            kept_explanation(e);
            enum score result = score_outputs(&s, e);
            of[result]++;
            if (printed)
                print_message("%-6s %5.2f s scene %u seed %llu: %s  =>  %s\n", words[result], seconds, n,
                              (unsigned long long)seed, name, e ? e->text : "nothing");
            explanation_free(e);
        }
        scene_free(&s);
    }
}

static void mistakes_of_kernels_are_named(void **state)
{
    unsigned known[SCORES] = {0}, held_out[SCORES] = {0}, count = printed ? faults : whole ? 100 : 3;
    unsigned others = whole ? count : 2;
    (void)state;
    name_kernel_faults(KERNEL_FAULTS_KNOWN, count, known);
    name_kernel_faults(KERNEL_FAULTS_HELD_OUT, others, held_out);
    print_message("mistakes of kernels: right %u, absent %u, wrong %u; held out: right %u, absent %u, wrong %u\n",
                  known[RIGHT], known[ABSENT], known[WRONG], held_out[RIGHT], held_out[ABSENT], held_out[WRONG]);
    assert_true(100 * known[RIGHT] >= (count < 100 ? 65 : 80) * count);
    assert_true(100 * held_out[RIGHT] >= (others < 100 ? 20 : 60) * others);
    assert_true(100 * (known[WRONG] + held_out[WRONG]) <= count + others);
}

/* A factor of all that one expert makes at a stage below the combine, where two such faults add up. */
static struct finding factor_of_expert(uint64_t *random, uint32_t expert)
{
    static const enum finding_stage where[] = {FINDING_UP, FINDING_ACT, FINDING_DOWN};
    static const double factors[] = {0.5, 2.0, -1.0, 1.25};
    return (struct finding){.stage = where[random_below(random, 3)],
                            .effect = FINDING_FACTOR,
                            .amount = factors[random_below(random, 4)],
                            .experts = {.kind = AXIS_LIST, .count = 1, .list = {expert}}};
}

/* An expert of a token. */
static uint32_t used_expert(const struct scene *s, uint64_t *random)
{
    const struct gb_shape *shape = &s->problem.arguments.shape;
    return (uint32_t)s->problem.ids[random_below(random, shape->tokens * shape->top_k)];
}

/* Two factors of different experts: named right if both are, by what they make together. */
static void two_causes_are_named(void **state)
{
    unsigned of[SCORES] = {0}, pairs = printed ? faults : whole ? 70 : 2, two = 0;
    uint64_t random = first_seed;
    (void)state;
    for (unsigned n = 0; n < SCENES && n < pairs; n++) {
        struct scene s;
        scene_new(n, first_seed, &s);
        size_t count = (size_t)s.problem.arguments.shape.tokens * s.problem.arguments.shape.hidden;
        float *output = s.subject->layer[0].output, *other = malloc(count * sizeof *other);
        assert_non_null(other);
        for (unsigned i = n; i < pairs; i += SCENES) {
            struct finding fault[2];
            struct explanation *e;
            uint32_t expert = used_expert(&s, &random), second = expert;
            while (second == expert)
                second = used_expert(&s, &random);
            fault[0] = factor_of_expert(&random, expert);
            fault[1] = factor_of_expert(&random, second);
            structured_fault_run(&s.clean, &fault[0], output, NULL);
            structured_fault_run(&s.clean, &fault[1], other, NULL);
            double one = squares(&s, output, s.clean.output), ratio = squares(&s, other, s.clean.output) / one;
            if (!(ratio > 0.01 && ratio < 100))
                continue;
            for (size_t j = 0; j < count; j++)
                output[j] += other[j] - s.clean.output[j];
            assert_int_equal(explain(s.baseline, GB_LAYER, s.subject, &e, NULL), GB_OK);
            kept_explanation(e);
            double all = squares(&s, output, s.clean.output);
            enum score result = e && e->found_count ? WRONG : ABSENT;
            memcpy(s.again, s.clean.output, count * sizeof *s.again);
            for (uint32_t f = 0; e && f < e->found_count; f++) {
                structured_fault_run(&s.clean, &e->found[f], other, NULL);
                for (size_t j = 0; j < count; j++)
                    s.again[j] += other[j] - s.clean.output[j];
            }
            if (result == WRONG && squares(&s, output, s.again) <= 2e-3 * all)
                result = RIGHT;
            two += e && e->found_count == 2;
            of[result]++;
            if (printed) {
                print_message("%u: ", result);
                write_finding(&fault[0]);
                print_message("; ");
                write_finding(&fault[1]);
                print_message("  =>  %s\n", e ? e->text : "nothing");
            }
            explanation_free(e);
        }
        free(other);
        scene_free(&s);
    }
    print_message("two causes: right %u, absent %u, wrong %u; %u with two names\n", of[RIGHT], of[ABSENT], of[WRONG],
                  two);
    assert_true(two > 0 && 2 * of[RIGHT] >= of[RIGHT] + of[ABSENT] + of[WRONG]);
    assert_true(100 * of[WRONG] <= of[RIGHT] + of[ABSENT] + of[WRONG]);
}

/* Places in the lists of experts are those of slots that have one. */
static void places_in_lists_are_named_beside_empty_slots(void **state)
{
    (void)state;
    holes = true;
    for (uint32_t place = 0; place < 3; place++) {
        const struct finding fault = {.stage = FINDING_DOWN,
                                      .effect = FINDING_FACTOR,
                                      .amount = 3.0,
                                      .list = {.kind = AXIS_RANGE, .first = place, .count = 1}};
        struct scene s;
        struct explanation *e;
        scene_new(1, first_seed, &s);
        structured_fault_run(&s.clean, &fault, s.subject->layer[0].output, NULL);
        assert_true(shows(&s));
        assert_int_equal(explain(s.baseline, GB_LAYER, s.subject, &e, NULL), GB_OK);
        kept_explanation(e);
        if (score_outputs(&s, e) != RIGHT)
            fail_msg("place %u: %s", place, e ? e->text : "nothing");
        explanation_free(e);
        scene_free(&s);
    }
    holes = false;
}

/* Of the list of injected bugs, which structure does not read: what it says of them is right, where it says anything.
 */
static void injected_bugs_have_the_structure_that_is_named(void **state)
{
    unsigned of[SCORES] = {0};
    (void)state;
    if (!whole || printed)
        return;
    for (unsigned n = 0; n < SCENES - 1; n++) {
        struct scene s;
        struct trace trace;
        scene_new(n, first_seed, &s);
        struct gb_arguments a = baseline_arguments(s.baseline, 0);
        assert_int_equal(trace_new(s.baseline->contract, &a, &trace, NULL), GB_OK);
        for (size_t i = n; i < fault_count(); i += 3) {
            struct explanation *e;
            struct tally tally;
            if (!fault_applies(fault_at(i), &a))
                continue;
            assert_int_equal(fault_run(fault_at(i), &trace, NULL, s.subject->layer[0].output, NULL), GB_OK);
            assert_int_equal(explain(s.baseline, GB_LAYER, s.subject, &e, NULL), GB_OK);
            if (e) {
                memset(&tally, 0, sizeof tally);
                enum score result =
                    e->found_count ? score(&s, &(struct finding){.stage = FINDING_INPUT}, e, &tally) : ABSENT;
                of[result]++;
                if (printed)
                    print_message("%u scene %u %s: %s %s: %s\n", result, n, fault_at(i)->name,
                                  e->found_count ? e->words[0].array : "", e->found_count ? e->words[0].place : "",
                                  e->found_count ? e->words[0].effect : "");
            }
            explanation_free(e);
        }
        trace_free(&trace);
        scene_free(&s);
    }
    print_message("injected bugs by structure alone: right %u, absent %u, wrong %u\n", of[RIGHT], of[ABSENT],
                  of[WRONG]);
    assert_true(of[RIGHT] > 0);
    assert_true(100 * of[WRONG] <= of[RIGHT] + of[ABSENT] + of[WRONG]);
}

/* Of the few faults of the quick test. */
static void explanations_are_those_kept(void **state)
{
    (void)state;
    if (!whole)
        expect_kept_explanations("test_naming");
}

int main(int argc, char **argv)
{
    whole = sweeps_are_whole(argc, argv);
    faults = whole ? 200 : faults;
    if (argc > 3)
        cmocka_set_test_filter(argv[3]);
    if (argc > 2) {
        first_seed = strtoull(argv[1], NULL, 10);
        faults = (unsigned)strtoul(argv[2], NULL, 10);
        printed = whole = true;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(structured_faults_are_named),
                                       cmocka_unit_test(mistakes_of_kernels_are_named),
                                       cmocka_unit_test(two_causes_are_named),
                                       cmocka_unit_test(places_in_lists_are_named_beside_empty_slots),
                                       cmocka_unit_test(injected_bugs_have_the_structure_that_is_named),
                                       cmocka_unit_test(explanations_are_those_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
