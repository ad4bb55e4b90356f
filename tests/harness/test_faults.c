/* SPDX-License-Identifier: Apache-2.0 */
/* The library of faults: a layer taken apart is the reference's, and every fault changes what it says. What each makes
 * of every problem is kept as a hash of it. */
#include "harness/explain/explain.h"
#include "harness/explain/operators.h"
#include "harness/faults/faults.h"
#include "harness/faults/faults_exchange.h"
#include "harness/faults/faults_route.h"
#include "harness/faults/operators.h"
#include "harness/judge/operators.h"
#include "harness/judge/policy.h"
#include "quant/quant.h"
#include "tests/support/check.h"
#include "tests/support/fma32.h"
#include "tests/support/kept_explanation.h"
#include "tests/support/problem.h"
#include "tests/support/route_problem.h"

static const enum gb_format formats[] = {GB_BF16, GB_NVFP4, GB_MXFP8, GB_MXFP4, GB_FP8_BLOCK};
static const struct gb_shape shapes[] = {{7, 160, 96, 5, 3}, {1, 32, 32, 1, 1}, {3, 256, 160, 4, 4}};

/* Whether every fault has every problem, and not a third of them: it still changes one. */
static bool whole;

/* Sanitizers make one problem as long as ten. */
#if defined(__SANITIZE_ADDRESS__)
enum { SANITISED = 1 };
#else
enum { SANITISED = 0 };
#endif

enum { FORMATS = sizeof formats / sizeof *formats, SHAPES = sizeof shapes / sizeof *shapes };

static size_t outputs(const struct gb_shape *shape)
{
    return (size_t)shape->tokens * shape->hidden;
}

/* Empty slots too. */
static void test_trace_is_the_reference(void **state)
{
    (void)state;
    for (int f = 0; f < FORMATS; f++)
        for (int s = 0; s < SHAPES; s++) {
            struct problem problem;
            struct trace trace;
            struct gb_error error = {""};
            problem_new(&problem, shapes[s], formats[f], DATA_CODES, 11 + (uint64_t)s);
            if (s == 0)
                problem_empty_slots(&problem, 5, 1);
            if (s == 2)
                problem_extend(&problem, GB_SWIGLU_OAI, 7);
            assert_int_equal(fma32_layer(&problem.arguments, &error), GB_OK);
            assert_int_equal(trace_new(gb_contract_of(&problem.arguments, GB_LAYER, GB_ORDER_FMA32), &problem.arguments,
                                       &trace, &error),
                             GB_OK);
            for (size_t i = 0; i < outputs(&shapes[s]); i++)
                assert_same_float(problem.output[i], trace.output[i], "format %d, shape %d, output %zu",
                                  (int)formats[f], s, i);
            trace_free(&trace);
            problem_free(&problem);
        }
}

/* Contracts with quantised activations, as far as a layer taken apart is concerned: every combination there is. */
static const struct {
    enum gb_format weights;
    const char *recipe;
} quantised[] = {{GB_NVFP4, "nvfp4.trtllm/1"},
                 {GB_NVFP4, "nvfp4.modelopt/1"},
                 {GB_MXFP8, "mxfp8.rceil/1"},
                 {GB_MXFP4, "mxfp8.floor/1"},
                 {GB_FP8_BLOCK, "fp8g128.vllm/1"}};

enum { QUANTISED = sizeof quantised / sizeof *quantised };

/* The second has global scales so large that the block scales are subnormal. */
static void problem_quantised(struct problem *p, int n, struct gb_shape shape)
{
    problem_new(p, shape, quantised[n].weights, DATA_GAUSSIAN, 21);
    p->arguments.activation_rules = &gb_recipe_find(quantised[n].recipe)->quantiser;
    p->arguments.x_scale = (n == 1 ? 0x1p15f : 1.0f) * 4.0f / 2688;
    p->arguments.intermediate_scale = (n == 1 ? 0x1p15f : 1.0f) * 3.0f / 2688;
}

static const struct gb_shape shape_quantised = {2, 256, 256, 5, 3};

/* And codes that nothing was done to make its bits. */
static void test_quantised_trace_is_the_reference(void **state)
{
    static const enum fault_stage stages[] = {STAGE_REQUANT, STAGE_ACT_QUANT};
    (void)state;
    for (int n = 0; n < QUANTISED; n++) {
        struct problem problem;
        struct trace trace;
        problem_quantised(&problem, n, shape_quantised);
        problem_empty_slots(&problem, 5, 1 + n % 2);
        assert_int_equal(fma32_layer(&problem.arguments, NULL), GB_OK);
        assert_int_equal(
            trace_new(gb_contract_of(&problem.arguments, GB_LAYER, GB_ORDER_FMA32), &problem.arguments, &trace, NULL),
            GB_OK);
        for (size_t i = 0; i < outputs(&shape_quantised); i++)
            assert_same_float(problem.output[i], trace.output[i], "%s, %zu", quantised[n].recipe, i);
        for (int c = 0; c < 2; c++) {
            const struct fault none = {.name = "none", .stage = stages[c]};
            memset(problem.output, 0xA5, outputs(&shape_quantised) * sizeof *problem.output);
            assert_int_equal(fault_run(&none, &trace, NULL, problem.output, NULL), GB_OK);
            for (size_t i = 0; i < outputs(&shape_quantised); i++)
                assert_same_float(trace.output[i], problem.output[i], "%s, %s, %zu", quantised[n].recipe,
                                  fault_stage_name(none.stage), i);
        }
        trace_free(&trace);
        problem_free(&problem);
    }
}

/* What every problem has become under a fault, a word each: it is kept in tests/harness/kept, for nobody says what a
 * mistake is to make of it. */
struct becomes {
    char *words;
    size_t bytes;
    FILE *stream;
};

static void becomes_nothing(struct becomes *b)
{
    b->stream = b->stream ? b->stream : open_memstream(&b->words, &b->bytes);
    assert_non_null(b->stream);
    fprintf(b->stream, " -");
}

/* FNV-1a, of which 16 bits are kept. */
static void becomes_bytes(struct becomes *b, const void *values, size_t bytes)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const uint8_t *)values)[i]) * 16777619u;
    b->stream = b->stream ? b->stream : open_memstream(&b->words, &b->bytes);
    assert_non_null(b->stream);
    fprintf(b->stream, " %04x", hash >> 16);
}

static void keep(const char *name, struct becomes *b)
{
    assert_int_equal(fclose(b->stream), 0);
    kept_text(name);
    kept_text(":");
    kept_text(b->words);
    kept_text("\n");
    free(b->words);
}

static bool changes(const struct fault *fault, const struct trace *trace, float *output)
{
    struct gb_error error = {""};
    size_t count = outputs(&trace->arguments.shape);
    memset(output, 0xA5, count * sizeof *output);
    if (fault_run(fault, trace, NULL, output, &error) != GB_OK)
        fail_msg("%s: %s", fault->name, error.message);
    return memcmp(output, trace->output, count * sizeof *output) != 0;
}

/* changed: [faults], set for those that change the problem's output; all: [faults]. */
static void note_changes(const struct problem *problem, bool *changed, struct becomes *all)
{
    struct trace trace;
    const size_t count = fault_count();
    assert_int_equal(
        trace_new(gb_contract_of(&problem->arguments, GB_LAYER, GB_ORDER_FMA32), &problem->arguments, &trace, NULL),
        GB_OK);
    float *output = malloc(outputs(&problem->arguments.shape) * sizeof *output); /* [tokens, hidden] */
    assert_non_null(output);
    for (size_t i = 0; i < count; i++) {
        if (!fault_applies(fault_at(i), &trace.arguments)) {
            becomes_nothing(&all[i]);
            continue;
        }
        changed[i] |= changes(fault_at(i), &trace, output);
        for (size_t o = 0; strstr(fault_at(i)->name, "GELU") && o < outputs(&problem->arguments.shape); o++)
            output[o] = 0.0f; /* by erff, whose last bit is the libm's */
        becomes_bytes(&all[i], output, outputs(&problem->arguments.shape) * sizeof *output);
    }
    free(output);
    trace_free(&trace);
}

/* On values from recipes, with several blocks, experts and tokens; no fault without an effect somewhere. */
static void test_every_fault_changes_the_output(void **state)
{
    (void)state;
    const size_t count = fault_count();
    bool *changed = calloc(count, sizeof *changed);
    struct becomes *all = calloc(count, sizeof *all);
    assert_non_null(changed);
    assert_non_null(all);
    for (int f = 0; f < FORMATS; f++)
        for (int s = 0; s < SHAPES; s++)
            for (int d = 0; d < 2; d++) {
                struct problem problem;
                if (!whole && (f + s + d) % 3)
                    continue;
                problem_new(&problem, shapes[s], formats[f], d ? DATA_CODES : DATA_GAUSSIAN, 3 + (uint64_t)s);
                if (s == 0 && d)
                    problem_extend(&problem, GB_SWIGLU_OAI, 7);
                note_changes(&problem, changed, all);
                problem_free(&problem);
            }
    for (int n = 0; n < QUANTISED; n++) {
        struct problem problem;
        problem_quantised(&problem, n, shape_quantised);
        note_changes(&problem, changed, all);
        problem_free(&problem);
    }
    for (size_t i = 0; i < count; i++)
        if (!changed[i])
            fail_msg("'%s' changes nothing anywhere", fault_at(i)->name);
    for (size_t i = 0; i < count; i++) {
        const struct fault *f = fault_at(i);
        char row[256];
        snprintf(row, sizeof row, "%s, at %s, formats %x, amount %g%s%s%s", f->name, fault_stage_name(f->stage),
                 f->formats, f->amount, f->must_catch ? ", must be caught" : "", f->particular ? ", particular" : "",
                 f->nothing ? ", nothing" : "");
        keep(row, &all[i]);
    }
    free(changed);
    free(all);
}

/* An E8M0 scale read one too large is twice what it is, but for the largest number, above which there is none. */
static void test_scales_of_another_bias(void **state)
{
    (void)state;
    static const struct gb_shape shape = {1, 32, 32, 1, 1};
    struct problem problem;
    struct trace trace;
    float output[32];
    size_t i = 0;
    problem_new(&problem, shape, GB_MXFP8, DATA_GAUSSIAN, 5);
    const struct gb_weights *gate_up = &problem.arguments.gate_up, *down = &problem.arguments.down;
    for (uint32_t r = 0; r < gate_up->rows; r++) /* of which the intermediate is small enough */
        ((uint8_t *)(void *)gate_up->scales)[r] -= 50;
    memset((void *)down->codes, 0x01, (size_t)down->rows * down->columns);
    for (uint32_t r = 0; r < down->rows; r++)
        ((uint8_t *)(void *)down->scales)[r] = r % 2 ? 0xFE : 0xFD;
    assert_int_equal(
        trace_new(gb_contract_of(&problem.arguments, GB_LAYER, GB_ORDER_FMA32), &problem.arguments, &trace, NULL),
        GB_OK);
    while (strcmp(fault_at(i)->name, "scale bias off by one in down"))
        i++;
    assert_int_equal(fault_run(fault_at(i), &trace, NULL, output, NULL), GB_OK);
    for (uint32_t r = 0; r < shape.hidden; r++) {
        assert_true(trace.output[r] != 0.0f && isfinite(trace.output[r]));
        assert_same_float((r % 2 ? 1.0f : 2.0f) * trace.output[r], output[r], "output %u", r);
    }
    trace_free(&trace);
    problem_free(&problem);
}

static void test_table(void **state)
{
    (void)state;
    const size_t count = fault_count();
    for (size_t i = 0; i < count; i++) {
        const struct fault *fault = fault_at(i);
        bool weights = fault->stage >= STAGE_GATE_UP && fault->stage <= STAGE_WEIGHTS;
        if (!fault->modelled_on || !*fault->modelled_on || (fault->edit != NULL) != weights || !fault->plant != weights)
            fail_msg("row of '%s'", fault->name);
        for (size_t other = 0; other < i; other++)
            if (!strcmp(fault_at(other)->name, fault->name))
                fail_msg("two faults named '%s'", fault->name);
    }
    for (int f = 0; f < FORMATS + QUANTISED; f++) {
        size_t stages[STAGE_OUTPUT + 1] = {0}, applies = 0;
        const struct gb_arguments a = {
            .gate_up.format = f < FORMATS ? formats[f] : quantised[f - FORMATS].weights,
            .activation_rules = f < FORMATS ? NULL : &gb_recipe_find(quantised[f - FORMATS].recipe)->quantiser};
        for (size_t i = 0; i < count; i++)
            if (fault_applies(fault_at(i), &a)) {
                stages[fault_at(i)->stage]++;
                applies++;
            }
        assert_true(applies >= 60);
        for (int s = 0; s <= STAGE_OUTPUT; s++)
            assert_true((stages[s] > 0) == (f >= FORMATS || (s != STAGE_ACT_QUANT && s != STAGE_REQUANT)));
        assert_true(f < FORMATS || stages[STAGE_ACT_QUANT] + stages[STAGE_REQUANT] >= 24);
    }
}

/* In every recipe that can have it a fault changes ids or weights; every fault is one of some recipe. */
static void test_every_fault_of_a_router_changes_it(void **state)
{
    (void)state;
    size_t count, recipes;
    const struct route_fault *all = route_faults(&count);
    const struct gb_router_recipe *recipe = gb_router_recipes(&recipes);
    const struct gb_shape shape = {24, 96, 64, 64, 8}; /* as many as kept groups have terms */
    assert_true(count >= 20);
    for (size_t i = 0; i < count; i++) {
        uint32_t applied = 0;
        struct becomes becomes = {0};
        assert_true(all[i].modelled_on && *all[i].modelled_on && !all[i].change != !all[i].spoil);
        for (size_t other = 0; other < i; other++)
            assert_string_not_equal(all[other].name, all[i].name);
        for (size_t r = 0; r < recipes; r++) {
            struct route_problem p;
            bool applies;
            size_t pairs = (size_t)shape.tokens * shape.top_k;
            route_problem_new(&p, shape, ROUTE_GAUSSIAN, 5 + r);
            p.arguments.router = &recipe[r].router;
            if (recipe[r].router.bias == GB_ROUTER_BIAS_NONE)
                p.arguments.router_bias = NULL;
            if (fma32_router(&p.arguments, NULL) == GB_OK) { /* as many experts go with it */
                memcpy(p.expected_ids, p.ids, sizeof *p.ids * pairs);
                memcpy(p.expected, p.weights, sizeof *p.weights * pairs);
                struct gb_error error = {""};
                if (route_fault_run(&all[i], gb_contract_of(&p.arguments, GB_ROUTE, GB_ORDER_FMA32), &p.arguments,
                                    &applies, &error) != GB_OK)
                    fail_msg("%s, %s: %s", all[i].name, recipe[r].name, error.message);
                if (applies && !memcmp(p.expected_ids, p.ids, sizeof *p.ids * pairs) &&
                    !memcmp(p.expected, p.weights, sizeof *p.weights * pairs))
                    fail_msg("'%s' changes nothing of %s", all[i].name, recipe[r].name);
                applied += applies;
                if (applies) {
                    becomes_bytes(&becomes, p.ids, sizeof *p.ids * pairs);
                    becomes_bytes(&becomes, p.weights, sizeof *p.weights * pairs);
                } else {
                    becomes_nothing(&becomes);
                }
            }
            route_problem_free(&p);
        }
        keep(all[i].name, &becomes);
        if (!applied)
            fail_msg("'%s' is none of any recipe", all[i].name);
    }
}

/* Quantisers of every type of code, scale and quotient. */
static const struct {
    const char *recipe, *data;
    bool gated, fp16;
    enum gb_scale_layout layout;
    enum gb_silu_form silu;
    float bound;
} quantisers[] = {
    {"nvfp4.trtllm/1", "gaussian/1", false, false, GB_SCALES_LINEAR, GB_SILU_EXACT, INFINITY},
    {"nvfp4.modelopt/1", "gaussian/1", true, true, GB_SCALES_LINEAR, GB_SILU_EXACT, INFINITY},
    {"nvfp4.torchao/1", "edge/1", false, false, GB_SCALES_LINEAR, GB_SILU_EXACT, INFINITY},
    {"nvfp4.llamacpp/1", "ties/1", false, true, GB_SCALES_LINEAR, GB_SILU_EXACT, INFINITY},
    {"nvfp4.compressed-tensors-bf16/1", "ties/1", false, false, GB_SCALES_LINEAR, GB_SILU_EXACT, INFINITY},
    {"nvfp4.compressed-tensors-triton/1", "ties/1", false, true, GB_SCALES_LINEAR, GB_SILU_EXACT, INFINITY},
    {"nvfp4.flashinfer-4over6-mae-448/1", "gaussian/1", false, false, GB_SCALES_LINEAR, GB_SILU_EXACT, INFINITY},
    {"mxfp8.rceil/1", "gaussian/1", false, true, GB_SCALES_TRANSPOSED, GB_SILU_EXACT, INFINITY},
    {"mxfp8e5m2.te/1", "ties/1", false, false, GB_SCALES_LINEAR, GB_SILU_EXACT, INFINITY},
    {"mxfp6e3m2.even/1", "ties/1", false, false, GB_SCALES_LINEAR, GB_SILU_EXACT, INFINITY},
    {"mxfp6e2m3.ceil/1", "edge/1", false, false, GB_SCALES_TRANSPOSED, GB_SILU_EXACT, INFINITY},
    {"mxfp4.floor/1", "gaussian/1", true, false, GB_SCALES_LINEAR, GB_SILU_DIVIDE, INFINITY},
    {"mxfp4.even/1", "ties/1", false, false, GB_SCALES_LINEAR, GB_SILU_EXACT, INFINITY},
    {"fp8g128.vllm/1", "gaussian/1", false, false, GB_SCALES_LINEAR, GB_SILU_EXACT, INFINITY},
    {"fp8g128.deepep/1", "nonfinite/1", false, false, GB_SCALES_TRANSPOSED, GB_SILU_EXACT, INFINITY},
    {"fp8g64.vllm-fused/1", "gaussian/1", true, false, GB_SCALES_LINEAR, GB_SILU_RECIPROCAL, 0.75f},
    {"fp8fnuzg128.vllm-fused/1", "edge/1", true, true, GB_SCALES_LINEAR, GB_SILU_DIVIDE, 0.75f},
    {"int8g64.vllm-fused/1", "ties/1", true, false, GB_SCALES_LINEAR, GB_SILU_DIVIDE, INFINITY},
    {"int8g128.vllm/1", "ties/1", false, false, GB_SCALES_LINEAR, GB_SILU_EXACT, INFINITY},
};
enum { QUANTISERS = sizeof quantisers / sizeof *quantisers };

static struct gb_fixture *quantiser_fixture(int n)
{
    bool gated = quantisers[n].gated;
    struct gb_error error = {""};
    struct gb_fixture *f;
    struct gb_quantisation q = {.size = sizeof q,
                                .input = quantisers[n].fp16 ? GB_FP16 : GB_BF16,
                                .rows = 5,
                                .columns = 256,
                                .input_columns = gated ? 512 : 256,
                                .silu = quantisers[n].silu,
                                .activated = GB_FP32,
                                .product = GB_FP32,
                                .quantiser = gb_recipe_find(quantisers[n].recipe)->quantiser,
                                .layout = quantisers[n].layout,
                                .bound = quantisers[n].bound,
                                .global_scale = 1.0f};
    if (gb_fixture_new_quantise(gated ? GB_SILU_MUL_QUANTISE : GB_QUANTISE, &q, quantisers[n].recipe, &f, &error) !=
        GB_OK)
        fail_msg("%s: %s", quantisers[n].recipe, error.message);
    snprintf(f->generator, sizeof f->generator, "%s", quantisers[n].data);
    f->nonfinite = !strcmp(quantisers[n].data, "nonfinite/1");
    f->seed = 3;
    if (gb_generate_values(f, &error) != GB_OK)
        fail_msg("%s: %s", quantisers[n].recipe, error.message);
    return f;
}

/* single: of one row. */
static struct gb_fixture *exchange_fixture(enum gb_operator operation, const char *recipe,
                                           enum gb_accumulation accumulation, bool single)
{
    const struct gb_exchange_kinds kinds = {.generator = "gaussian/1",
                                            .routing = single ? "uniform" : "holes",
                                            .placement = "random",
                                            .seed = 5,
                                            .empty = single ? 0 : 1};
    struct gb_error error = {""};
    struct gb_fixture *f;
    struct gb_exchange x = {.size = sizeof x,
                            .ranks = single ? 1 : 10,
                            .tokens = single ? 1 : 4,
                            .hidden = 256,
                            .experts = single ? 1 : 11,
                            .top_k = single ? 1 : 3,
                            .global_scale = 1.0f,
                            .input = GB_BF16,
                            .accumulation = accumulation,
                            .ranks_per_node = !accumulation ? 0
                                              : single      ? 1
                                                            : 2};
    if (recipe)
        x.quantiser = gb_recipe_find(recipe)->quantiser;
    if (gb_generate_exchange(operation, &x, recipe ? recipe : "bf16", &kinds, &f, &error) != GB_OK)
        fail_msg("%s", error.message);
    struct gb_arguments a = gb_fixture_exchange_arguments(f);
    if (f->exchanged.truth)
        assert_int_equal(gb_truth_exchange(&a, f->exchanged.truth, &error), GB_OK);
    return f;
}

static void becomes_outputs(struct becomes *b, const struct gb_outputs *o)
{
    struct gb_code_arrays codes = {0};
    if (o->quantisation.rows)
        codes = gb_code_arrays(&o->quantisation);
    if (codes.codes) {
        becomes_bytes(b, o->codes, codes.codes);
        becomes_bytes(b, o->scales, codes.scales);
        return;
    }
    for (enum gb_exchange_part p = 0; p < GB_EXCHANGE_PARTS; p++)
        if (gb_outputs_exchanged(o, p))
            becomes_bytes(b, gb_outputs_exchanged(o, p), gb_exchange_array(&o->exchange, GB_FP32, p).bytes);
}

/* What the judge says of the outputs, and what of that is figures. */
static size_t judged_text(const struct operator_faults *row, struct baselines *all, uint32_t flags,
                          const struct gb_outputs *outputs, const struct gb_outputs *clean, char *text, size_t bytes)
{
    const struct operator_check *check = operator_check_find(row->operation);
    const struct gb_kernel kernel = {.name = "bug",
                                     .operation = row->operation,
                                     .weights = GB_BF16,
                                     .activations = GB_BF16,
                                     .output = GB_FP32,
                                     .order = operator_find(row->operation)->order,
                                     .accumulator_bits = 24,
                                     .flags = flags};
    struct injected_result seen = {0};
    struct gb_error error = {""};
    struct baseline *baseline;
    struct case_result j;
    struct policy policy;
    policy_preset(0, &policy);
    assert_int_equal(check->baseline(all, &kernel, clean->shape.tokens, &baseline, &error), GB_OK);
    assert_int_equal(judge(baseline, &kernel, outputs, NULL, &policy, &j, &error), GB_OK);
    check->injected(outputs, clean, &j, &seen);
    int used =
        snprintf(text, bytes, "%s %s, %d %d %d %llu %llu", verdict_name(j.verdict), j.reason, j.wrong, j.bits_binding,
                 j.bound_binding, (unsigned long long)j.bits.compared, (unsigned long long)j.bits.max_ulp);
    for (uint32_t i = 0; i < seen.figures; i++)
        used += snprintf(text + used, bytes - (size_t)used, ", %s %llu", seen.figure[i].name,
                         (unsigned long long)seen.figure[i].count);
    for (uint32_t i = 0; i < seen.seen; i++)
        used += snprintf(text + used, bytes - (size_t)used, ", by %s", seen.seen_by[i]);
    used += snprintf(text + used, bytes - (size_t)used, ", %llu %llu", (unsigned long long)j.quantise.codes.admissible,
                     (unsigned long long)j.quantise.scales.admissible);
    case_result_free(&j);
    return (size_t)used;
}

/* said: whether in words, too. */
static void becomes_judged(struct becomes *b, const struct operator_faults *row, struct baselines *all, uint32_t flags,
                           const struct gb_outputs *outputs, const struct gb_outputs *clean, bool said)
{
    char text[2048];
    becomes_bytes(b, text, judged_text(row, all, flags, outputs, clean, text, sizeof text));
    if (said)
        fprintf(b->stream, " (%s)", text);
}

/* What the outputs look like, in words. */
static void becomes_explained(struct becomes *b, const struct operator_faults *row, struct baselines *all,
                              const struct gb_outputs *outputs, const struct gb_outputs *clean)
{
    const struct operator_explainer *explainer = operator_explainer_find(row->operation);
    const struct gb_kernel kernel = {.operation = row->operation};
    struct explanation *e;
    struct gb_error error = {""};
    struct baseline *baseline;
    if (!explainer)
        return;
    assert_int_equal(
        operator_check_find(row->operation)->baseline(all, &kernel, clean->shape.tokens, &baseline, &error), GB_OK);
    if (explainer->explain(baseline, row->operation, outputs, &e, &error) != GB_OK)
        fail_msg("%s", error.message);
    fprintf(b->stream, e ? " => %s [%s, %.6g; %s" : " => nothing", e ? e->text : "", e ? e->kind : "",
            e ? e->best.explains : 0.0, e ? e->best.name : "");
    for (uint32_t i = 0; e && i < e->shown_count; i++)
        fprintf(b->stream, "; %s %.6g", e->shown[i].name, e->shown[i].explains);
    fprintf(b->stream, e ? "; %d]" : "%.0d", e ? (int)e->expert : 0);
    explanation_free(e);
}

/* A bug changes what the reference makes of some problem of its operator. */
static void test_faults_of_operators_without_layers(void **state)
{
    (void)state;
    enum { EXCHANGES = 6, SINGLE = 2, COUNT = QUANTISERS + EXCHANGES + SINGLE };
    struct gb_fixture *fixtures[COUNT] = {exchange_fixture(GB_DISPATCH, NULL, 0, false),
                                          exchange_fixture(GB_DISPATCH, "fp8g128.vllm/1", 0, false),
                                          exchange_fixture(GB_DISPATCH, "nvfp4.trtllm/1", 0, false),
                                          exchange_fixture(GB_COMBINE, NULL, GB_AT_RECEIVER, false),
                                          exchange_fixture(GB_COMBINE, NULL, GB_AT_SENDER, false),
                                          exchange_fixture(GB_COMBINE, NULL, GB_AT_SENDER_NODE, false)};
    for (int n = 0; n < QUANTISERS; n++)
        fixtures[EXCHANGES + n] = quantiser_fixture(n);
    fixtures[COUNT - 2] = exchange_fixture(GB_DISPATCH, "nvfp4.trtllm/1", 0, true);
    fixtures[COUNT - 1] = exchange_fixture(GB_COMBINE, NULL, GB_AT_RECEIVER, true);
    struct baselines baselines[COUNT] = {{0}};
    struct gb_outputs *clean[COUNT];
    for (int n = 0; n < COUNT; n++) {
        struct gb_error error = {""};
        baselines[n].fixture = fixtures[n];
        assert_int_equal(operator_faults_find(fixtures[n]->operation)->run(-1, NULL, fixtures[n], &clean[n], &error),
                         GB_OK);
    }
    const struct operator_faults *row;
    for (size_t o = 0; (row = operator_faults_at(o)); o++) {
        struct operator_fault fault;
        for (size_t i = 0; row->operation >= GB_QUANTISE && row->at(i, &fault); i++) {
            struct becomes becomes = {0};
            bool applied = false;
            for (int n = 0; n < COUNT; n++) {
                struct gb_outputs *outputs;
                struct gb_error error = {""};
                if (fixtures[n]->operation != row->operation)
                    continue;
                if (row->run((int64_t)i, NULL, fixtures[n], &outputs, &error) != GB_OK)
                    fail_msg("%s: %s", fault.name, error.message);
                applied |= outputs != NULL;
                if (!outputs) {
                    becomes_nothing(&becomes);
                    continue;
                }
                becomes_outputs(&becomes, outputs);
                becomes_judged(&becomes, row, &baselines[n], 0, outputs, clean[n], n % 3 == 0);
                if (!SANITISED && (row->operation == GB_COMBINE || (i + (size_t)n) % 8 == 0))
                    becomes_explained(&becomes, row, &baselines[n], outputs, clean[n]);
                if (row->lax && row->lax_fits(fixtures[n]))
                    becomes_judged(&becomes, row, &baselines[n], row->lax, outputs, clean[n], false);
                gb_outputs_free(outputs);
            }
            if (!applied && row->operation != GB_QUANTISE) /* those of the gate are not its */
                fail_msg("'%s' is none of any problem", fault.name);
            char name[256];
            snprintf(name, sizeof name, "%s of %s%s", fault.name, operator_name(row->operation),
                     fault.must_catch ? ", must be caught" : "");
            keep(name, &becomes);
        }
    }
    for (int n = 0; n < COUNT; n++) {
        baselines_free(&baselines[n]);
        gb_outputs_free(clean[n]);
        gb_fixture_free(fixtures[n]);
    }
}

/* Every bug of a quantiser in the rules of every recipe, with a global scale that nobody leaves out unseen. */
static void test_bugs_of_every_recipe(void **state)
{
    static const enum gb_operator operators[] = {GB_QUANTISE, GB_SILU_MUL_QUANTISE};
    size_t count;
    const struct gb_recipe *recipe = gb_recipes(&count);
    struct operator_fault fault;
    (void)state;
    for (int o = 0; o < 2; o++) {
        const struct operator_faults *row = operator_faults_find(operators[o]);
        for (size_t i = 0; row->at(i, &fault); i++) {
            struct becomes becomes = {0};
            char name[256];
            for (size_t r = 0; r < count; r++) {
                struct gb_fixture *f;
                struct gb_outputs *outputs;
                struct gb_error error = {""};
                const struct gb_quantisation q = {.size = sizeof q,
                                                  .input = r % 2 ? GB_FP16 : GB_BF16,
                                                  .rows = 2,
                                                  .columns = 256,
                                                  .input_columns = o ? 512 : 256,
                                                  .silu = r % 3 ? GB_SILU_EXACT : GB_SILU_DIVIDE,
                                                  .activated = GB_FP32,
                                                  .product = GB_FP32,
                                                  .quantiser = recipe[r].quantiser,
                                                  .bound = recipe[r].quantiser.bound ? 0.75f : INFINITY,
                                                  .global_scale = 1.0f};
                if (gb_fixture_new_quantise(operators[o], &q, recipe[r].name, &f, &error) != GB_OK)
                    continue; /* of weights alone */
                snprintf(f->generator, sizeof f->generator, i % 2 ? "gaussian/1" : "edge/1");
                f->seed = 7;
                assert_int_equal(gb_generate_values(f, &error), GB_OK);
                f->quantisation.global_scale = q.quantiser.global == GB_GLOBAL_NONE ? 1.0f : 0.25f;
                if (row->run((int64_t)i, NULL, f, &outputs, &error) != GB_OK)
                    fail_msg("%s, %s: %s", fault.name, recipe[r].name, error.message);
                if (outputs)
                    becomes_outputs(&becomes, outputs);
                else
                    becomes_nothing(&becomes);
                gb_outputs_free(outputs);
                gb_fixture_free(f);
            }
            snprintf(name, sizeof name, "%s of %s by every recipe", fault.name, operator_name(operators[o]));
            keep(name, &becomes);
        }
    }
}

/* What saw a router's bug: ids that are none, ids, weights; and of how many tokens either is another one. */
static void test_what_saw_a_bug_of_a_router_is_said(void **state)
{
    enum { LAYERS = 3, ROUTED_TOKENS = 5, TOP_K = 2 };
    const struct gb_shape shape = {ROUTED_TOKENS, 32, 32, 8, TOP_K};
    (void)state;
    for (unsigned n = 0; n < 8 * LAYERS; n++) {
        const unsigned at = n / 8, names = (n & 1) + (n >> 1 & 1) + (n >> 2 & 1);
        struct layer_result layers[LAYERS] = {{.routed = true}, {.routed = true}, {.routed = true}};
        struct case_result j = {.layer = layers, .layers = LAYERS};
        struct injected_result seen = {0};
        struct gb_outputs *both[2];
        for (int i = 0; i < 2; i++) {
            assert_int_equal(gb_outputs_new_routing(&shape, LAYERS, &both[i], NULL), GB_OK);
            for (uint32_t l = 0; l < LAYERS; l++)
                for (uint32_t p = 0; p < ROUTED_TOKENS * TOP_K; p++) {
                    both[i]->layer[l].ids[p] = (int32_t)(p + l) % 8;
                    both[i]->layer[l].routing_weights[p] = 0.5f;
                }
        }
        layers[at].routed = !(n & 1);
        layers[at].tokens.wrong = n >> 1 & 1;
        j.bound.exceeding = n >> 2 & 1;
        both[0]->layer[at].ids[0] += (int32_t)(n & 1);                                        /* token 0 */
        both[0]->layer[at].ids[3] += (int32_t)(n >> 1 & 1);                                   /* token 1 */
        both[0]->layer[at].routing_weights[ROUTED_TOKENS * TOP_K - 1] += (float)(n >> 2 & 1); /* the last one */
        both[0]->layer[LAYERS - 1 - at].routing_weights[ROUTED_TOKENS * TOP_K - 2] += (float)(n >> 2 & 1); /* too */
        operator_check_find(GB_ROUTE)->injected(both[0], both[1], &j, &seen);
        const uint64_t changed = names + (at != LAYERS - 1 - at ? n >> 2 & 1 : 0);
        if (seen.figures != 1 || seen.figure[0].count != changed || seen.seen != names)
            fail_msg("case %u: %u figures, %llu tokens of %llu, seen by %u of %u", n, seen.figures,
                     (unsigned long long)seen.figure[0].count, (unsigned long long)changed, seen.seen, names);
        for (unsigned bit = 0, i = 0; bit < 3; bit++)
            if (n >> bit & 1)
                assert_string_equal(seen.seen_by[i++], bit == 0 ? "range" : bit == 1 ? "ids" : "weights");
        for (int i = 0; i < 2; i++)
            gb_outputs_free(both[i]);
    }
}

/* Rows that lie elsewhere, routes that are none, counts and elements from the first to the last; NaN of FP32 scales is
 * one class. */
static void test_what_is_wrong_in_a_dispatch_is_said(void **state)
{
    enum { DAMAGES = 18 };
    struct gb_fixture *f = exchange_fixture(GB_DISPATCH, "fp8g128.deepgemm/1", 0, false);
    const struct operator_faults *row = operator_faults_find(GB_DISPATCH);
    const struct gb_exchange *x = &f->exchanged.asked;
    const uint32_t last = x->rows - 1;
    struct baselines baselines = {.fixture = f};
    struct gb_outputs *clean;
    struct gb_error error = {""};
    int32_t empty = 0;
    (void)state;
    while (f->exchanged.ids[empty] >= 0)
        empty++;
    for (uint32_t t = 0; t < 4; t++)
        f->exchanged.x[(size_t)t * x->hidden].bits = 0x7FC0;
    assert_int_equal(row->run(-1, NULL, f, &clean, &error), GB_OK);
    for (int n = 0; n < DAMAGES; n++) {
        struct gb_outputs *o;
        char text[2048], name[32];
        assert_int_equal(row->run(-1, NULL, f, &o, &error), GB_OK);
        int32_t *routes = o->routes, *counts = o->counts, kept = routes[0];
        uint8_t *codes = gb_outputs_exchanged(o, GB_EXCHANGE_CODES);
        uint32_t *scales = gb_outputs_exchanged(o, GB_EXCHANGE_SCALES), nan = 0;
        const uint32_t blocks = x->hidden / 128;
        while (nan < blocks * x->rows && (scales[nan] & 0x7FFFFFFF) <= 0x7F800000)
            nan++;
        assert_true(nan < blocks * x->rows);
        if (n == 1 || n == 2 || n == 3)
            scales[nan] = n == 1 ? 0xFF800001 : n == 2 ? 0x7F800000 : 0x7F7FFFFF;
        else if (n == 4 || n == 5)
            scales[n == 4 ? 1 : blocks * x->rows - 1] ^= 1;
        else if (n == 6 || n == 7)
            routes[n == 6 ? 0 : last] = n == 6 ? -1 : (int32_t)(f->shape.tokens * x->top_k);
        else if (n == 8)
            routes[last] = empty;
        else if (n == 9)
            routes[0] = routes[1];
        else if (n == 10 || n == 11) { /* to another rank; within the first one's rows */
            routes[0] = routes[n == 10 ? last : 1];
            routes[n == 10 ? last : 1] = kept;
        } else if (n == 12 || n == 13)
            counts[n == 12 ? 0 : x->ranks * x->experts - 1] += n == 12 ? 1 : 2;
        else if (n == 14 || n == 15)
            codes[n == 14 ? 0 : x->rows * x->hidden - 1] ^= 1;
        else if (n == 16 || n == 17) /* the whole row is another's: the last one's, the first one's */
            memcpy(codes + (n == 16 ? 5 : 6) * x->hidden, codes + (n == 16 ? last : 0) * x->hidden, x->hidden);
        judged_text(row, &baselines, 0, o, clean, text, sizeof text);
        snprintf(name, sizeof name, "dispatch, damage %d: ", n);
        kept_text(name);
        kept_text(text);
        kept_text("\n");
        assert_int_equal(!strncmp(text, "PASS", 4), n < 2);
        gb_outputs_free(o);
    }
    baselines_free(&baselines);
    gb_outputs_free(clean);
    gb_fixture_free(f);
}

/* Whether the bug changes anything of the problem. */
static bool applies(const struct gb_fixture *f, const char *name)
{
    const struct operator_faults *row = operator_faults_find(f->operation);
    struct operator_fault fault;
    struct gb_outputs *outputs;
    struct gb_error error = {""};
    size_t i = 0;
    while (row->at(i, &fault) && strcmp(fault.name, name))
        i++;
    assert_true(row->at(i, &fault));
    if (row->run((int64_t)i, NULL, f, &outputs, &error) != GB_OK)
        fail_msg("%s: %s", name, error.message);
    bool changed = outputs != NULL;
    gb_outputs_free(outputs);
    return changed;
}

/* Where no expert's rank has tokens of its own, and where weights are bf16 numbers. */
static void test_bugs_that_change_nothing(void **state)
{
    static const char own[] = "rows to the own rank are not counted", rounded[] = "weights are rounded to bf16";
    struct gb_fixture *f = exchange_fixture(GB_DISPATCH, NULL, 0, false);
    (void)state;
    assert_true(applies(f, own));
    for (uint32_t e = 0; e < f->exchanged.asked.experts; e++)
        f->exchanged.placement[e] = (int32_t)f->exchanged.asked.ranks - 1; /* which has none */
    assert_false(applies(f, own));
    gb_fixture_free(f);
    f = exchange_fixture(GB_COMBINE, NULL, GB_AT_RECEIVER, false);
    assert_true(applies(f, rounded));
    for (uint32_t s = 0; s < f->exchanged.asked.ranks * f->exchanged.asked.tokens * f->exchanged.asked.top_k; s++)
        f->exchanged.routing_weights[s] = 0.25f;
    assert_false(applies(f, rounded));
    gb_fixture_free(f);
}

/* To be combined: a slot a token, an expert a rank. */
static struct gb_exchange one_slot(uint32_t ranks, uint32_t tokens, uint32_t hidden)
{
    return (struct gb_exchange){.size = sizeof(struct gb_exchange),
                                .ranks = ranks,
                                .tokens = tokens,
                                .hidden = hidden,
                                .experts = ranks,
                                .top_k = 1,
                                .global_scale = 1.0f,
                                .input = GB_BF16,
                                .accumulation = GB_AT_RECEIVER,
                                .ranks_per_node = 1};
}

/* Of rows one further on there are at least two, of nodes of so many ranks more than one. */
static void test_bugs_of_more_than_one(void **state)
{
    static const struct {
        const char *name;
        uint32_t most; /* ranks, of one row each, in which it changes nothing */
    } bugs[] = {{"rows of all ranks lie one further on", 1},
                {"rows are added up at nodes of two ranks", 2},
                {"rows are added up at nodes of four ranks", 4},
                {"rows are added up at nodes of eight ranks", 8}};
    const struct gb_exchange_kinds kinds = {
        .generator = "gaussian/1", .routing = "uniform", .placement = "blocks", .seed = 5};
    (void)state;
    for (uint32_t ranks = 1; ranks <= 10; ranks++) {
        const struct gb_exchange x = one_slot(ranks, 1, 32);
        struct gb_fixture *f;
        struct gb_error error = {""};
        if (gb_generate_exchange(GB_COMBINE, &x, "bf16", &kinds, &f, &error) != GB_OK)
            fail_msg("%s", error.message);
        for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++)
            if (applies(f, bugs[i].name) != (ranks > bugs[i].most))
                fail_msg("%u ranks: %s", ranks, bugs[i].name);
        gb_fixture_free(f);
    }
}

/* A lost row is told where the token is far from truth, by 8 times what rounding explains, and what is left is within
 * twice that: steps of 3 % of the row's weight, and of what is beside it. */
static void test_a_lost_row_is_told_beside_rounding(void **state)
{
    const struct combine_fault *fault = combine_faults(&(size_t){0}); /* "the row is lost" */
    struct gb_fixture *f = exchange_fixture(GB_COMBINE, NULL, GB_AT_RECEIVER, false);
    struct gb_arguments a = gb_fixture_exchange_arguments(f);
    const size_t hidden = a.shape.hidden, count = a.shape.tokens * hidden;
    uint32_t token = 4;
    double *truth = malloc(count * sizeof *truth), *worst = malloc(count * sizeof *worst);
    struct gb_error error = {""};
    struct becomes becomes = {0};
    (void)state;
    while (f->exchanged.ids[3 * token] < 0 || f->exchanged.ids[3 * token + 1] < 0)
        token++;
    assert_true(truth && worst && !strcmp(fault->name, "the row is lost"));
    for (int n = 0; n < 43; n++) {
        struct baseline baseline = {.fixture = f};
        struct explanation *e;
        struct gb_outputs *o;
        const double beside = n < 24 || n >= 40 ? 0.5 : 1.8 * pow(1.03, n - 28);
        f->exchanged.routing_weights[3 * token + 1] = n < 24 ? (float)(1e-7 * pow(1.03, n)) : 0.25f;
        assert_int_equal(combine_fault_run(fault, &a, token, 1, &o, &error), GB_OK);
        assert_int_equal(gb_bound_exchange(&a, GB_FP32, 24, truth, worst, &error), GB_OK);
        for (size_t i = token * hidden; i < (token + 1) * hidden; i++)
            ((float *)o->combined)[i] += (float)((i % 2 ? beside : -beside) * worst[i]);
        if (n >= 40) { /* the first element, one in the middle, the last one is beside the lost row's */
            const size_t i = token * hidden + (n == 40 ? 0 : n == 41 ? hidden / 2 : hidden - 1);
            ((float *)o->combined)[i] += (float)(3.0 * worst[i]);
        }
        assert_int_equal(explain_combine(&baseline, GB_COMBINE, o, &e, &error), GB_OK);
        if (e)
            becomes_bytes(&becomes, e->text, strlen(e->text));
        else
            becomes_nothing(&becomes);
        assert_true(n < 40 || !e || !strstr(e->text, "the row is lost"));
        if (n == 23)
            assert_non_null(strstr(e->text, "the row is lost"));
        explanation_free(e);
        gb_outputs_free(o);
    }
    keep("a lost row beside rounding", &becomes);
    gb_fixture_free(f);
    free(truth);
    free(worst);
}

/* A row in place of another one is told where there are at most 4096. */
static void test_another_row_is_told_among_so_many(void **state)
{
    enum { HIDDEN = 32, WRONG = 9, TAKEN = 5 };
    const struct gb_exchange_kinds kinds = {
        .generator = "gaussian/1", .routing = "uniform", .placement = "random", .seed = 5};
    (void)state;
    for (uint32_t rows = 4096; rows <= 4097; rows++) {
        const struct gb_exchange x = one_slot(1, rows, HIDDEN);
        struct gb_fixture *f;
        struct gb_outputs *o;
        struct explanation *e;
        struct gb_error error = {""};
        gb_bf16 kept[HIDDEN];
        if (gb_generate_exchange(GB_COMBINE, &x, "bf16", &kinds, &f, &error) != GB_OK)
            fail_msg("%s", error.message);
        gb_bf16 *wrong = (gb_bf16 *)f->exchanged.rows + WRONG * HIDDEN;
        struct baseline baseline = {.fixture = f};
        memcpy(kept, wrong, sizeof kept);
        memcpy(wrong, (gb_bf16 *)f->exchanged.rows + TAKEN * HIDDEN, sizeof kept);
        assert_int_equal(operator_faults_find(GB_COMBINE)->run(-1, NULL, f, &o, &error), GB_OK);
        memcpy(wrong, kept, sizeof kept);
        assert_int_equal(explain_combine(&baseline, GB_COMBINE, o, &e, &error), GB_OK);
        if (rows > 4096)
            assert_null(e);
        else
            assert_string_equal(e->best.name, "rank 0, token 9: one of its rows is row 5, of rank 0, token 5, slot 0");
        explanation_free(e);
        gb_outputs_free(o);
        gb_fixture_free(f);
    }
}

/* Sanitized there are fewer explanations, and whole there are more problems. */
static void test_all_are_kept(void **state)
{
    (void)state;
    if (SANITISED || whole)
        skip();
    expect_kept_explanations("test_faults");
}

int main(int argc, char **argv)
{
    whole = sweeps_are_whole(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace_is_the_reference),
        cmocka_unit_test(test_quantised_trace_is_the_reference),
        cmocka_unit_test(test_every_fault_changes_the_output),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_scales_of_another_bias),
        cmocka_unit_test(test_every_fault_of_a_router_changes_it),
        cmocka_unit_test(test_faults_of_operators_without_layers),
        cmocka_unit_test(test_bugs_of_every_recipe),
        cmocka_unit_test(test_what_is_wrong_in_a_dispatch_is_said),
        cmocka_unit_test(test_what_saw_a_bug_of_a_router_is_said),
        cmocka_unit_test(test_a_lost_row_is_told_beside_rounding),
        cmocka_unit_test(test_another_row_is_told_among_so_many),
        cmocka_unit_test(test_bugs_that_change_nothing),
        cmocka_unit_test(test_bugs_of_more_than_one),
        cmocka_unit_test(test_all_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
