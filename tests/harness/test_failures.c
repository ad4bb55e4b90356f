/* SPDX-License-Identifier: Apache-2.0 */
/* Wherever memory is short or a call of HDF5 fails within a call of ours, ours fails and says so, or what it makes is
 * the same. A file that is not written is not there. */
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixtures/vectors.h"
#include "harness/explain/explain.h"
#include "harness/explain/invert.h"
#include "harness/explain/operators.h"
#include "harness/faults/faults.h"
#include "harness/faults/operators.h"
#include "harness/judge/coverage.h"
#include "harness/judge/drift.h"
#include "harness/judge/judge.h"
#include "harness/judge/metrics.h"
#include "harness/report/to_json.h"
#include "harness/run/compute_truth.h"
#include "harness/run/contract.h"
#include "harness/run/operators.h"
#include "harness/study/study.h"
#include "quant/quant.h"
#include "tests/faults/memory.h"
#include "tests/support/failing_hdf5.h"
#include "tests/support/generated_layer.h"
#include "tests/support/kept_explanation.h"
#include "tests/support/layer_as_fixture.h"
#include "tests/support/small_problems.h"

/* One of each kind of problem, a layer with a router, and one whose activations are quantised; outputs of the first
 * two, which has a wrong element; a study. */
static const struct gb_shape shape = {3, 64, 32, 5, 2};
static struct gb_fixture *plain, *quantised, *values, *sent, *combined, *routed, *coded, *stacked;
static struct gb_outputs *outputs, *codes, *received;
static struct study study;
static char folder[] = "/tmp/gaugeblock-test-XXXXXX";
static const char *const path = "written.h5", *const given[] = {"layer.h5", "values.h5", "sent.h5", "outputs.h5"};

static void ok(enum gb_status status, const struct gb_error *error)
{
    if (status != GB_OK)
        fail_msg("%s", error->message);
}

/* What the last operation made. */
static char made[1 << 16];

static enum gb_status said(enum gb_status status, const char *text)
{
    snprintf(made, sizeof made, "%s", text);
    return status;
}

/* Its bytes' sum and count. */
static enum gb_status said_file(enum gb_status status)
{
    FILE *file = fopen(path, "rb");
    uint64_t sum = 0, count = 0;
    for (int byte; file && (byte = getc(file)) != EOF; count++)
        sum = 31 * sum + (uint64_t)byte;
    if (file)
        fclose(file);
    snprintf(made, sizeof made, "%llu bytes, %016llx", (unsigned long long)count, (unsigned long long)sum);
    if (status != GB_OK)
        assert_int_equal(count, 0);
    unlink(path);
    return status;
}

static enum gb_status write_layer(struct gb_error *error)
{
    return said_file(gb_fixture_write(path, quantised, error));
}

static enum gb_status write_values(struct gb_error *error)
{
    return said_file(gb_fixture_write(path, values, error));
}

static enum gb_status write_sent(struct gb_error *error)
{
    return said_file(gb_fixture_write(path, sent, error));
}

static enum gb_status write_outputs(struct gb_error *error)
{
    return said_file(gb_outputs_write(path, outputs, error));
}

static enum gb_status write_codes(struct gb_error *error)
{
    return said_file(gb_outputs_write(path, codes, error));
}

static enum gb_status write_received(struct gb_error *error)
{
    return said_file(gb_outputs_write(path, received, error));
}

static enum gb_status write_study(struct gb_error *error)
{
    return said_file(study_write(path, &study, error));
}

static enum gb_status read_fixture(const char *name, struct gb_error *error)
{
    struct gb_fixture *fixture = NULL;
    enum gb_status status = gb_fixture_read(name, &fixture, error);
    said(status, status == GB_OK ? fixture->sha256 : "");
    gb_fixture_free(fixture);
    return status;
}

static enum gb_status read_layer(struct gb_error *error)
{
    return read_fixture(given[0], error);
}

static enum gb_status read_values(struct gb_error *error)
{
    return read_fixture(given[1], error);
}

static enum gb_status read_sent(struct gb_error *error)
{
    struct gb_fixture *fixture = NULL;
    enum gb_status status = gb_fixture_read(given[2], &fixture, error);
    if (status == GB_OK)
        assert_memory_equal(&fixture->exchanged.asked, &sent->exchanged.asked, sizeof sent->exchanged.asked);
    gb_fixture_free(fixture);
    return said(status, "");
}

static enum gb_status read_outputs(struct gb_error *error)
{
    struct gb_outputs *read = NULL;
    enum gb_status status = gb_outputs_read(given[3], plain, &read, error);
    if (status == GB_OK)
        assert_memory_equal(read->layer[0].output, outputs->layer[0].output,
                            sizeof(float) * shape.tokens * shape.hidden);
    gb_outputs_free(read);
    return said(status, "");
}

/* The reason, and all figures. */
static void said_checks(enum gb_status status, const struct case_result *result)
{
    made[0] = '\0';
    if (status != GB_OK)
        return;
    json_t *checks = checks_to_json(result);
    char *text = json_dumps(checks, 0);
    snprintf(made, sizeof made, "%s %s", result->reason, text);
    free(text);
    json_decref(checks);
}

/* Bounds, both reference's baselines, and the default gate's result with all checks. */
static enum gb_status judge_layer(struct gb_error *error)
{
    const bool is[] = {false, true};
    const struct gb_fixture *f = quantised;
    struct baseline of[2] = {0};
    struct case_result result = {0};
    struct policy gate;
    struct gb_kernel kernel = {.name = "subject",
                               .operation = GB_LAYER,
                               .weights = f->weights,
                               .activations = f->activations,
                               .output = GB_FP32,
                               .accumulator_bits = 24};
    enum gb_status status = GB_OK;
    policy_preset(0, &gate);
    for (int b = 0; status == GB_OK && b < 2; b++)
        status = baseline_new(f, gb_contract_find(f->weights, is[b] ? f->activations : GB_BF16, GB_ORDER_FMA32),
                              is[b] ? &of[0] : NULL, &of[b], error);
    if (status == GB_OK)
        status = judge(&of[1], &kernel, outputs, NULL, &gate, &result, error);
    said_checks(status, &result);
    case_result_free(&result);
    baseline_free(&of[1]);
    baseline_free(&of[0]);
    return status;
}

static enum gb_status explain_layer(struct gb_error *error)
{
    const struct gb_rounding_points points = {.intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = 24};
    struct baseline baseline = {0};
    struct explanation *explanation = NULL;
    enum gb_status status =
        baseline_new(plain, gb_contract_find(plain->weights, GB_BF16, GB_ORDER_FMA32), NULL, &baseline, error);
    if (status == GB_OK)
        status = baseline_bounds(&baseline, &points, false, error);
    if (status == GB_OK)
        status = explain(&baseline, GB_LAYER, outputs, &explanation, error);
    explanation_free(explanation);
    baseline_free(&baseline);
    return said(status, "");
}

static enum gb_status count_coverage(struct gb_error *error)
{
    struct coverage coverage = {0};
    uint64_t sum = 0;
    char text[32];
    enum gb_status status = coverage_measure(quantised, shape.tokens, &coverage, error);
    if (status == GB_OK)
        status = coverage_measure_weights(quantised, shape.tokens, &coverage, error);
    for (int i = 0; i < COVERAGE_ITEMS; i++)
        sum = 31 * sum + coverage.of[i].seen;
    snprintf(text, sizeof text, "%llx", (unsigned long long)sum);
    return said(status, text);
}

static enum gb_status open_source(void *context, const struct study_case *c, uint32_t seed, struct study_source *source,
                                  struct gb_error *error)
{
    const struct study_generation g = {.name = "test",
                                       .router = "",
                                       .shape = c->shape,
                                       .layers = c->layers,
                                       .weights = GB_NVFP4,
                                       .seed = c->first_seed + seed,
                                       .outlier_factor = 1.0f,
                                       .routing_skew = 1.0f};
    (void)context;
    return study_source_generate(&g, source, error);
}

static enum gb_status save_nothing(void *context, struct gb_error *error)
{
    (void)context, (void)error;
    return GB_OK;
}

static enum gb_status run_study(struct gb_error *error)
{
    const volatile sig_atomic_t never = 0;
    struct study own = {.kind = "drift", .cases = 1, .of = calloc(1, sizeof *own.of)};
    struct study_run run = {.stop = &never, .open = open_source, .save = save_nothing, .all = 1.0};
    char hash[65] = "";
    bool stopped = false;
    enum gb_status status = own.of ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for the test's own study");
    if (status == GB_OK) {
        *own.of = study.of[0];
        status = study_case_new(own.of, error);
    }
    if (status == GB_OK)
        status = study_case_run(own.of, &run, &stopped, error);
    if (status == GB_OK)
        study_hash(&own, hash);
    if (status == GB_OK && !hash[0])
        status = gb_fail(error, GB_ENOMEM, "no memory for the test's own hash");
    if (own.of)
        study_free(&own);
    return said(status, hash);
}

/* The codes and scales that the reference has, by the quantiser's checks. */
static enum gb_status judge_codes(struct gb_error *error)
{
    const struct gb_kernel kernel = {.name = "subject", .operation = GB_QUANTISE};
    struct baselines baselines = {.fixture = values};
    struct baseline *baseline;
    struct case_result result = {0};
    struct policy gate;
    policy_preset(0, &gate);
    enum gb_status status =
        operator_check_find(GB_QUANTISE)->baseline(&baselines, &kernel, values->shape.tokens, &baseline, error);
    if (status == GB_OK)
        status = judge(baseline, &kernel, codes, NULL, &gate, &result, error);
    said_checks(status, &result);
    case_result_free(&result);
    baselines_free(&baselines);
    return status;
}

static enum gb_status open_checkpoint(struct gb_error *error)
{
    struct gb_checkpoint *checkpoint = NULL;
    float *matrix = NULL;
    enum gb_status status = gb_checkpoint_open(GB_SOURCE_DIR "/fixtures/data/tiny-qwen3-moe", &checkpoint, error);
    if (status == GB_OK) {
        matrix = malloc(sizeof *matrix * checkpoint->shape.hidden * checkpoint->shape.intermediate);
        status = matrix ? gb_checkpoint_expert(checkpoint, 0, 1, GB_DOWN_PROJ, matrix, error)
                        : gb_fail(error, GB_ENOMEM, "no memory for the test's own matrix");
    }
    said(status, status == GB_OK ? checkpoint->sha256 : "");
    free(matrix);
    gb_checkpoint_close(checkpoint);
    return status;
}

/* What lies between two layers of the trained model, and what its blocks made. */
static enum gb_status read_capture(struct gb_error *error)
{
    enum { TOKENS = 2, WIDTH = 384 };
    static double delta[TOKENS * WIDTH], made_of[TOKENS * WIDTH];
    const struct gb_shape first = {TOKENS, WIDTH, 192, 16, 4};
    struct gb_capture *capture = (void *)made;
    bool present = false, there = false;
    enum gb_status status =
        gb_capture_open(GB_SOURCE_DIR "/fixtures/data/tiny-qwen3-moe/capture.safetensors", &capture, error);
    if (status != GB_OK) {
        assert_null(capture);
        return said(status, "");
    }
    status = gb_capture_between(capture, 0, 1, &first, delta, &present, error);
    if (status == GB_OK)
        status = gb_capture_output(capture, 1, &first, made_of, &there, error);
    snprintf(made, sizeof made, "%d %a, %d %a", present, delta[7], there, made_of[7]);
    gb_capture_close(capture);
    return status;
}

/* Inputs of a block format, and what a recipe makes of them. */
static enum gb_status make_vectors(struct gb_error *error)
{
    const struct gb_recipe *recipe = gb_recipe_find("fp8g128.vllm/1");
    const struct gb_block_format format = gb_block_format_of(&recipe->quantiser);
    struct gb_vectors *vectors = (void *)made;
    struct gb_vector_outputs *of = (void *)made;
    enum gb_status status = gb_vectors_make(&format, &vectors, error);
    if (status != GB_OK) {
        assert_null(vectors);
        return said(status, "");
    }
    status = gb_vector_outputs_run(vectors, &recipe->quantiser, &of, error);
    if (status != GB_OK)
        assert_null(of);
    snprintf(made, sizeof made, "%s: %u cases of %u x %u, first code %u", vectors->name, vectors->cases, vectors->rows,
             vectors->columns, of ? gb_vectors_code(vectors, of, 3, 5) : 99);
    gb_vector_outputs_free(of);
    gb_vectors_free(vectors);
    return status;
}

static void add_to(uint64_t *sum, const void *array, size_t bytes)
{
    for (size_t i = 0; array && i < bytes; i++)
        *sum = *sum * 31 + ((const unsigned char *)array)[i];
}

static enum gb_status said_sum(enum gb_status status, uint64_t sum)
{
    char text[32];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)sum);
    return said(status, text);
}

static enum gb_status make_truth(struct gb_error *error)
{
    uint64_t sum = 0;
    memset(routed->layer[0].truth_quantised, 0, sizeof(double) * shape.tokens * shape.hidden);
    enum gb_status status = compute_truth(routed, error);
    add_to(&sum, routed->layer[0].truth_quantised, sizeof(double) * shape.tokens * shape.hidden);
    return said_sum(status, sum);
}

/* Other tokens for a run between two others. */
static enum gb_status send_others(struct gb_error *error)
{
    const struct operator_row *row = operator_find(GB_DISPATCH);
    struct gb_fixture other;
    uint64_t sum = 0;
    enum gb_status status = row->other(sent, &other, error);
    if (status == GB_OK) {
        add_to(&sum, other.exchanged.ids, sizeof *other.exchanged.ids * shape.tokens * shape.top_k);
        add_to(&sum, other.exchanged.x, sizeof *other.exchanged.x * sent->shape.tokens * sent->shape.hidden);
    }
    row->free_other(&other);
    return said_sum(status, sum);
}

/* What the operator writes with each injected bug that the problem can have. */
static enum gb_status inject(const struct gb_fixture *f, enum gb_operator operation, struct gb_error *error)
{
    const struct operator_faults *faults = operator_faults_find(operation);
    struct operator_fault fault;
    uint64_t sum = 0;
    enum gb_status status = GB_OK;
    for (uint32_t i = 0; status == GB_OK && faults->at(i, &fault); i++) {
        struct gb_outputs *o = NULL;
        status = faults->run(i, f->layer ? fixture_contract(f) : NULL, f, &o, error);
        sum = sum * 31 + (o != NULL);
        for (uint32_t l = 0; o && l < o->layers; l++)
            add_to(&sum, o->layer[l].ids, sizeof(int32_t) * f->shape.tokens * f->shape.top_k);
        if (o && o->routes)
            add_to(&sum, o->routes, sizeof *o->routes * f->exchanged.asked.rows);
        gb_outputs_free(o);
    }
    return said_sum(status, sum);
}

static enum gb_status inject_dispatch(struct gb_error *error)
{
    return inject(sent, GB_DISPATCH, error);
}

static enum gb_status inject_router(struct gb_error *error)
{
    return inject(routed, GB_ROUTE, error);
}

static enum gb_status inject_quantise(struct gb_error *error)
{
    return inject(values, GB_QUANTISE, error);
}

/* A layer with bugs that need memory of their own. */
static enum gb_status inject_layer(struct gb_error *error)
{
    static const char *const names[] = {"x: one scale for two blocks", "x: scales of the next block"};
    struct gb_arguments arguments = gb_layer_arguments(coded, 0, shape.tokens);
    struct trace trace;
    float output[3 * 64];
    uint64_t sum = 0;
    gb_layer_activations(coded, 0, coded->activations, &arguments);
    enum gb_status status = trace_new(fixture_contract(coded), &arguments, &trace, error);
    for (size_t i = 0; status == GB_OK && i < fault_count(); i++)
        for (size_t n = 0; status == GB_OK && n < sizeof names / sizeof *names; n++)
            if (!strcmp(fault_at(i)->name, names[n])) {
                status = fault_run(fault_at(i), &trace, NULL, output, error);
                add_to(&sum, output, sizeof output);
            }
    trace_free(&trace);
    return said_sum(status, sum);
}

static enum gb_status explain_codes(struct gb_error *error)
{
    struct explanation *explanation = NULL;
    enum gb_status status = explain_quantise(values, codes, &explanation, error);
    said(status, explanation ? explanation->text : "");
    explanation_free(explanation);
    return status;
}

static enum gb_status inject_combine(struct gb_error *error)
{
    return inject(combined, GB_COMBINE, error);
}

/* What is said of an injected bug's outputs by the judge, and what they look like. */
static enum gb_status judge_bug(const struct gb_fixture *f, enum gb_operator operation, const char *bug,
                                struct gb_error *error)
{
    const struct operator_faults *faults = operator_faults_find(operation);
    const struct operator_explainer *explainer = operator_explainer_find(operation);
    const struct gb_kernel kernel = {.name = "bug",
                                     .operation = operation,
                                     .weights = f->weights,
                                     .activations = GB_BF16,
                                     .output = GB_FP32,
                                     .order = GB_ORDER_FMA32,
                                     .accumulator_bits = 24};
    struct baselines all = {.fixture = f};
    struct baseline *baseline = NULL;
    struct case_result result = {0};
    struct explanation *explanation = NULL;
    struct gb_outputs *o = NULL;
    struct operator_fault fault;
    struct policy gate;
    uint32_t at = 0;
    policy_preset(0, &gate);
    while (faults->at(at, &fault) && strcmp(fault.name, bug))
        at++;
    assert_true(faults->at(at, &fault));
    enum gb_status status = faults->run(at, f->layer ? fixture_contract(f) : NULL, f, &o, error);
    if (status == GB_OK)
        status = operator_check_find(operation)->baseline(&all, &kernel, f->shape.tokens, &baseline, error);
    if (status == GB_OK)
        status = judge(baseline, &kernel, o, NULL, &gate, &result, error);
    if (status == GB_OK && explainer)
        status = explainer->explain(baseline, operation, o, &explanation, error);
    snprintf(made, sizeof made, "%s %s", result.reason, explanation ? explanation->text : "");
    explanation_free(explanation);
    case_result_free(&result);
    gb_outputs_free(o);
    baselines_free(&all);
    return status;
}

static enum gb_status judge_router(struct gb_error *error)
{
    return judge_bug(routed, GB_ROUTE, "weights in reverse", error);
}

static enum gb_status judge_dispatch(struct gb_error *error)
{
    return judge_bug(sent, GB_DISPATCH, "a count is too high by one", error);
}

static enum gb_status judge_combine(struct gb_error *error)
{
    return judge_bug(combined, GB_COMBINE, "the row is lost", error);
}

/* A block of the intermediate that makes outputs wrong is found again. */
static enum gb_status invert_errors(struct gb_error *error)
{
    enum { TOKENS = 3, HIDDEN = 64, INNER = 32, TOP_K = 2 };
    static bool column[HIDDEN];
    double errors[TOKENS * HIDDEN] = {0}, weights[TOKENS * TOP_K], delta[TOP_K * INNER] = {0}, row[INNER], work = 0.0;
    struct diagnosis diagnosis = {.trace = {.arguments = gb_layer_arguments(plain, 0, shape.tokens)},
                                  .width = HIDDEN,
                                  .errors = errors,
                                  .location = {.column = column, .wrong_columns = HIDDEN}};
    const struct gb_arguments *a = &diagnosis.trace.arguments;
    const struct stages stages = {.diagnosis = &diagnosis,
                                  .tokens = shape.tokens,
                                  .top_k = TOP_K,
                                  .pairs = TOKENS * TOP_K,
                                  .hidden = HIDDEN,
                                  .intermediate = INNER,
                                  .experts = shape.experts,
                                  .ids = a->ids,
                                  .weights = weights};
    char text[32];
    assert_true(a->ids[0] >= 0);
    for (int p = 0; p < TOKENS * TOP_K; p++)
        weights[p] = (double)a->routing_weights[p];
    for (uint32_t j = 0; j < HIDDEN; j++) {
        column[j] = true;
        gb_weights_row(&a->down, (uint32_t)a->ids[0], j, row);
        errors[j] = weights[0] * row[3];
    }
    enum gb_status status = invert(&stages, 0, GROUP_BLOCKS, INFINITY, delta, &work, error);
    snprintf(text, sizeof text, "%.6f %.6f", delta[3], delta[4]);
    return said(status, text);
}

/* How far the reference's stream is from truth, and how many tokens it routes otherwise. */
static enum gb_status measure_drift(struct gb_error *error)
{
    struct baseline baseline = {0};
    struct drift_result *drift = NULL;
    char text[64] = "";
    enum gb_status status =
        baseline_new(stacked, gb_contract_find(GB_NVFP4, GB_BF16, GB_ORDER_FMA32), NULL, &baseline, error);
    if (status == GB_OK)
        status = drift_measure(&baseline, baseline.reference, &drift, error);
    if (status == GB_OK)
        snprintf(text, sizeof text, "%a, %u", metrics_relative_l2(&drift->subject_quantised), drift->subject_changed);
    free(drift);
    baseline_free(&baseline);
    return said(status, text);
}

static const struct operation {
    const char *name;
    enum gb_status (*run)(struct gb_error *error);
    bool files; /* HDF5 is called */
} operations[] = {{"writes a layer", write_layer, true},
                  {"writes values", write_values, true},
                  {"writes what ranks send", write_sent, true},
                  {"writes outputs", write_outputs, true},
                  {"writes codes", write_codes, true},
                  {"writes what ranks receive", write_received, true},
                  {"writes a study", write_study, true},
                  {"reads a layer", read_layer, true},
                  {"reads values", read_values, true},
                  {"reads what ranks send", read_sent, true},
                  {"reads outputs", read_outputs, true},
                  {"judges", judge_layer, false},
                  {"explains", explain_layer, false},
                  {"counts what is covered", count_coverage, false},
                  {"runs a study", run_study, false},
                  {"judges codes", judge_codes, false},
                  {"opens a checkpoint", open_checkpoint, false},
                  {"reads a capture", read_capture, false},
                  {"makes vectors", make_vectors, false},
                  {"computes truth", make_truth, false},
                  {"sends other tokens", send_others, false},
                  {"injects bugs into dispatch", inject_dispatch, false},
                  {"injects bugs into a router", inject_router, false},
                  {"injects bugs into a quantiser", inject_quantise, false},
                  {"injects bugs into a layer", inject_layer, false},
                  {"explains codes", explain_codes, false},
                  {"inverts errors", invert_errors, false},
                  {"injects bugs into combine", inject_combine, false},
                  {"judges a router", judge_router, false},
                  {"judges dispatch", judge_dispatch, false},
                  {"judges combine", judge_combine, false},
                  {"measures drift", measure_drift, false}};

/* What is said for want of memory, whatever a compiler makes of the functions that ask for it; and all that was. */
static const char *const for_want_of_memory[] = {"layer.h5: /layers/0/routing/ids: no memory to check it",
                                                 "layer.h5: no memory for /layers/0/x",
                                                 "layer.h5: no memory for 1 layers",
                                                 "layer.h5: no memory for a fixture",
                                                 "no memory for /layers/0/x",
                                                 "no memory for 1 layers",
                                                 "no memory for 1 seeds",
                                                 "no memory for 1 x 104 x 128 values",
                                                 "no memory for 15 scores",
                                                 "no memory for 192 codes",
                                                 "no memory for 192 values",
                                                 "no memory for 2 paths of 3 tokens",
                                                 "no memory for 2 slots",
                                                 "no memory for 3 rows",
                                                 "no memory for 3 tokens",
                                                 "no memory for 3 x 64 activations",
                                                 "no memory for 4 other tokens",
                                                 "no memory for 64 outputs",
                                                 "no memory for 9 experts",
                                                 "no memory for 96 codes",
                                                 "no memory for a block",
                                                 "no memory for a copy of the weights of 5 experts",
                                                 "no memory for a fixture",
                                                 "no memory for a reference",
                                                 "no memory for a row",
                                                 "no memory for a row of 32 weights",
                                                 "no memory for a row of 64",
                                                 "no memory for an expert",
                                                 "no memory for an expert of 64 x 32",
                                                 "no memory for an explanation",
                                                 "no memory for an injected bug",
                                                 "no memory for bounds",
                                                 "no memory for counts of 2 rows",
                                                 "no memory for one token",
                                                 "no memory for output of 4 rows",
                                                 "no memory for outputs",
                                                 "no memory for results",
                                                 "no memory for rows of 32 weights",
                                                 "no memory for rows of 64 weights",
                                                 "no memory for scales",
                                                 "no memory for the bounds of 3 tokens",
                                                 "no memory for the bounds of 5 experts",
                                                 "no memory for the codes of 3 rows",
                                                 "no memory for the codes of 3 tokens",
                                                 "no memory for the covariance of 3 tokens",
                                                 "no memory for the coverage of 3 tokens",
                                                 "no memory for the drift of 1 layers",
                                                 "no memory for the drift of 3 tokens",
                                                 "no memory for the figures of 1 layers",
                                                 "no memory for the ids of 3 tokens",
                                                 "no memory for the intermediate of 12 tokens",
                                                 "no memory for the intermediate of 3 tokens",
                                                 "no memory for the lists of 5 experts",
                                                 "no memory for the open codes of 3 tokens",
                                                 "no memory for the residual stream",
                                                 "no memory for the results",
                                                 "no memory for the results of 1 layers",
                                                 "no memory for the routing of 3 tokens",
                                                 "no memory for the rows of 8 slots",
                                                 "no memory for the rules",
                                                 "no memory for the scores of 3 tokens",
                                                 "no memory for the stack of 3 tokens",
                                                 "no memory for the stages of 3 tokens",
                                                 "no memory for the streams of 3 tokens",
                                                 "no memory for the truth of 3 (token, slot) pairs",
                                                 "no memory for the truth of 3 tokens",
                                                 "no memory for the truth of 6 tokens",
                                                 "no memory for tiles of 64 outputs",
                                                 "no memory for x_codes of 3 tokens",
                                                 "no memory to check 128 sums",
                                                 "no memory to check 8 slots",
                                                 "no memory to compare 3 rows",
                                                 "no memory to count the codes of 5 experts",
                                                 "no memory to examine 3 tokens",
                                                 "no memory to explain 128 sums",
                                                 "no memory to explain an error",
                                                 "no memory to explain the errors of 3 tokens",
                                                 "no memory to group 12 pairs by expert",
                                                 "no memory to group 6 pairs by expert",
                                                 "no memory to inject a bug into 3 tokens",
                                                 "no memory to judge 128 values",
                                                 "no memory to judge 192 values",
                                                 "no memory to judge 3 tokens",
                                                 "no memory to judge 5 experts",
                                                 "no memory to judge the routing of 3 tokens",
                                                 "no memory to locate 192 errors",
                                                 "no memory to locate the errors of 3 tokens",
                                                 "no memory to look for a missing block",
                                                 "no memory to look for the structure of an error",
                                                 "no memory to project 16 pairs",
                                                 "no memory to quantise 12 x 64 activations",
                                                 "no memory to quantise 3 tokens",
                                                 "no memory to quantise 3 x 64 activations",
                                                 "no memory to route 3 tokens",
                                                 "no memory to route to 5 experts",
                                                 "no memory to take 6 slots apart",
                                                 "no memory to take a layer of 3 tokens apart",
                                                 "no memory to take the layer apart",
                                                 "outputs.h5: /layers/0/output: no memory for it",
                                                 "outputs.h5: no memory for its arrays",
                                                 "sent.h5: no memory for /placement",
                                                 "sent.h5: no memory for a fixture",
                                                 "values.h5: no memory for /values",
                                                 "values.h5: no memory for a fixture",
                                                 "written.h5: /layers/0/routing/ids: no memory to check it",
                                                 "written.h5: no memory for its name",
                                                 "written.h5: no memory to hash the results"};
static char told[1 << 16];

static void tell(const char *message)
{
    const size_t used = strlen(told);
    snprintf(told + used, sizeof told - used, "%s\n", message);
}

static bool was_told(const char *message)
{
    const size_t length = strlen(message);
    for (const char *at = told; (at = strstr(at, message)); at += length)
        if ((at == told || at[-1] == '\n') && at[length] == '\n')
            return true;
    return false;
}

/* How failures of HDF5 are told: one line for those beside each other that are told alike. */
static void keep(const char *message)
{
    static char last[sizeof((struct gb_error *)NULL)->message];
    static uint32_t times;
    char line[sizeof last + 16];
    if (times && strcmp(last, message)) {
        snprintf(line, sizeof line, "%u: %s\n", times, last);
        kept_text(line);
        times = 0;
    }
    snprintf(last, sizeof last, "%s", message);
    times++;
}

/* Whatever fails, nothing of HDF5 stays open. failure: 0 for none. */
static void check_closed(const char *name, uint32_t failure)
{
    const uint32_t open = hdf5_left_open();
    if (open)
        fail_msg("%s, failure %u: %u objects of HDF5 are left open", name, failure, open);
}

/* What is allocated and not given back. 0: what was given back is kept for later, and cannot be told from it. */
static size_t memory_in_use(void)
{
    const char *tunables = getenv("GLIBC_TUNABLES");
    return tunables && strstr(tunables, "tcache_count=0") ? mallinfo2().uordblks : 0;
}

/* What libraries take once is theirs; what is in use after a run is after one more. */
static void expect_given_back(const struct operation *o, uint32_t plant(uint32_t), uint32_t n, size_t *in_use)
{
    struct gb_error ignored;
    size_t before = *in_use;
    *in_use = memory_in_use();
    for (int again = 0; *in_use > before; again++) {
        if (again == 3)
            fail_msg("%s, failure %u: %zu bytes in use, and one run later %zu", o->name, n, before, *in_use);
        before = *in_use;
        plant(n);
        o->run(&ignored);
        *in_use = memory_in_use();
    }
}

/* Runs it without a failure, then with each one; of many calls of HDF5, which are alike from dataset to dataset, with
 * every so manieth. plant: sets which one, and returns how many there were. */
static void each(const struct operation *o, uint32_t plant(uint32_t), uint32_t least)
{
    struct gb_error error = {""};
    char right[sizeof made];
    plant(0);
    ok(o->run(&error), &error);
    check_closed(o->name, 0);
    const uint32_t count = plant(1);
    memcpy(right, made, sizeof made);
    size_t in_use = 0;
    if (plant == memory_fail)
        expect_given_back(o, plant, 0, &in_use);
    if (count < least)
        fail_msg("%s: %u places", o->name, count);
    uint32_t refused = 0;
    for (uint32_t n = 1; n <= count; n += plant == hdf5_fail ? 1 + count / 150 : 1) {
        error.message[0] = '\0';
        plant(n);
        enum gb_status status = o->run(&error);
        refused += status != GB_OK;
        check_closed(o->name, n);
        if (plant == memory_fail)
            expect_given_back(o, plant, n, &in_use);
        if (plant == hdf5_fail)
            keep(status == GB_OK ? "the same" : error.message);
        else if (status != GB_OK && !was_told(error.message))
            tell(error.message);
        if (status == GB_OK
                ? strcmp(made, right)
                : !strstr(error.message, plant == memory_fail ? "memory" : ".h5: ") || strchr(error.message, '\n'))
            fail_msg("%s, failure %u of %u: status %d, %s, %s, not %s", o->name, n, count, (int)status, error.message,
                     made, right);
    }
    if (plant == hdf5_fail)
        keep("");
    if (!refused)
        fail_msg("%s: of %u failures none is told", o->name, count);
}

static void memory_is_short(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        each(&operations[i], memory_fail, 1);
    for (size_t i = 0; i < sizeof for_want_of_memory / sizeof *for_want_of_memory; i++)
        if (!was_told(for_want_of_memory[i]))
            fail_msg("'%s' is not said in:\n%s", for_want_of_memory[i], told);
}

static void hdf5_fails(void **state)
{
    char hash[65];
    (void)state;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (operations[i].files)
            each(&operations[i], hdf5_fail, 10);
    study_hash(&study, hash);
    keep(hash);
    keep("");
    expect_kept_explanations("test_failures");
}

/* What a file says that no problem may have is the file's mistake. */
static void wrong_value(void **state)
{
    struct gb_fixture *fixture;
    struct gb_error error = {""};
    (void)state;
    assert_true(hdf5_put_count(given[1], "columns", 40));
    assert_int_equal(gb_fixture_read(given[1], &fixture, &error), GB_EFORMAT);
    assert_string_equal(error.message, "values.h5: columns: 40 is no multiple of the block 16");
}

/* The layer behind a router, on a stream of its own. */
static struct gb_fixture *on_a_stream(const struct gb_fixture *layer)
{
    const size_t count = (size_t)shape.tokens * shape.hidden;
    struct gb_fixture *f;
    struct gb_error error = {""};
    ok(gb_fixture_new(&shape, 1, GB_NVFP4, true, true, false, &f, &error), &error);
    for (size_t i = 0; i < (size_t)shape.experts * shape.hidden; i++)
        ((gb_bf16 *)f->layer[0].router.codes)[i] = gb_bf16_encode((float)((i * 7) % 13) - 6.0f);
    for (size_t i = 0; i < shape.hidden; i++)
        f->layer[0].norm[i] = 1.0f;
    for (size_t i = 0; i < count; i++) {
        f->stack.residual[i] = (double)((i * 11) % 17) - 8.0;
        f->stack.truth_quantised[i] = f->stack.truth_original[i] = f->stack.residual[i] + 0.25;
    }
    const struct gb_weights *from[] = {&layer->layer[0].gate_up, &layer->layer[0].down};
    struct gb_weights *to[] = {&f->layer[0].gate_up, &f->layer[0].down};
    for (int w = 0; w < 2; w++) {
        size_t bytes[3];
        ok(gb_weights_bytes(from[w], &bytes[0], &bytes[1], &bytes[2], &error), &error);
        memcpy((void *)to[w]->codes, from[w]->codes, bytes[0]);
        memcpy((void *)to[w]->scales, from[w]->scales, bytes[1]);
        memcpy((void *)to[w]->global_scales, from[w]->global_scales, bytes[2]);
    }
    f->rms_norm_epsilon = 1e-6;
    f->norm_topk_prob = true;
    return f;
}

static void make_problems(void)
{
    struct problem problem;
    struct gb_error error = {""};
    problem_new(&problem, shape, GB_NVFP4, DATA_GAUSSIAN, 31);
    plain = problem_fixture(&problem);
    quantised = problem_fixture(&problem);
    ok(gb_fixture_quantise_activations(quantised, GB_NVFP4, NULL, &error), &error);
    values = three_rows();
    sent = two_ranks();
    combined = two_ranks_combined();
    routed = generated_layer(&(struct generated_layer){shape, GB_NVFP4, GB_BF16, NULL, "gaussian/1", "router", 5});
    coded = generated_layer(&(struct generated_layer){shape, GB_NVFP4, GB_NVFP4, NULL, "gaussian/1", "router", 6});
    stacked = on_a_stream(plain);
    problem_free(&problem);
    strcpy(quantised->generator, "import/1");
    strcpy(quantised->recipe, "nvfp4.modelopt/1");
    quantised->rms_norm_epsilon = 1e-6;
}

/* The reference's, of which an expert's part of a token is wrong; codes; a study that has not begun. */
static void make_outputs(void)
{
    struct gb_error error = {""};
    struct baseline baseline;
    ok(baseline_new(plain, gb_contract_find(GB_NVFP4, GB_BF16, GB_ORDER_FMA32), NULL, &baseline, &error), &error);
    ok(gb_outputs_new(&shape, 1, GB_FP32, true, false, &outputs, &error), &error);
    struct gb_layer_outputs *to = &outputs->layer[0], *from = &baseline.reference->layer[0];
    const size_t inner = (size_t)shape.tokens * shape.top_k * shape.intermediate;
    for (size_t i = 0; i < (size_t)shape.tokens * shape.hidden; i++)
        ((float *)to->output)[i] = (i / 16 % 2 ? 1.0f : 1.5f) * ((float *)from->output)[i];
    memcpy(to->intermediate, from->intermediate, sizeof(gb_bf16) * inner);
    baseline_free(&baseline);
    ok(gb_outputs_new_codes(&values->quantisation, &codes, &error), &error);
    ok(gb_outputs_new_dispatch(&sent->exchanged.asked, &received, &error), &error);
    strcpy(study.kind, "drift");
    study.of = calloc(1, sizeof *study.of);
    study.cases = 1;
    struct study_case *c = study.of;
    *c = (struct study_case){.shape = shape,
                             .layers = 1,
                             .seeds = 1,
                             .samples = 2,
                             .first_seed = 7,
                             .outlier_factor = 1.0,
                             .routing_skew = 1.0};
    strcpy(c->weights, "nvfp4");
    ok(study_paths("bf16.fma32,nvfp4.fma32", GB_NVFP4, &shape, c->path, &c->paths, &error), &error);
    ok(study_case_new(c, &error), &error);
}

static int set_up(void **state)
{
    struct gb_error error = {""};
    (void)state;
    if (!mkdtemp(folder) || chdir(folder))
        return -1;
    make_problems();
    make_outputs();
    ok(gb_fixture_write(given[0], quantised, &error), &error);
    ok(gb_fixture_write(given[1], values, &error), &error);
    ok(gb_fixture_write(given[2], sent, &error), &error);
    ok(gb_outputs_write(given[3], outputs, &error), &error);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        unlink(given[i]);
    assert_int_equal(chdir("/"), 0);
    rmdir(folder);
    study_free(&study);
    gb_outputs_free(received);
    gb_outputs_free(codes);
    gb_outputs_free(outputs);
    gb_fixture_free(stacked);
    gb_fixture_free(coded);
    gb_fixture_free(routed);
    gb_fixture_free(combined);
    gb_fixture_free(sent);
    gb_fixture_free(values);
    gb_fixture_free(quantised);
    gb_fixture_free(plain);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(memory_is_short), cmocka_unit_test(hdf5_fails),
                                       cmocka_unit_test(wrong_value)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
