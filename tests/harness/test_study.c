/* SPDX-License-Identifier: Apache-2.0 */
/* Studies: paths against the contracts, statistics against known answers, runs against interrupted ones; files, and
 * what is said of those that are wrong, against what tests/harness/kept holds. */
#define _GNU_SOURCE
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness/report/study_report.h"
#include "harness/run/clock.h"
#include "harness/run/processes.h"
#include "harness/run/residual_stream.h"
#include "harness/study/measure.h"
#include "harness/study/ranks.h"
#include "harness/study/sensitivity.h"
#include "harness/study/study.h"
#include "tests/support/check.h"
#include "tests/support/kept_explanation.h"

enum { TOKENS = 5, LAYERS = 3 };
static const struct gb_shape shape = {TOKENS, 256, 128, 8, 3};

static struct study_generation generation(enum gb_format weights, uint64_t seed)
{
    return (struct study_generation){.name = "test",
                                     .router = "",
                                     .shape = shape,
                                     .layers = LAYERS,
                                     .weights = weights,
                                     .seed = seed,
                                     .outlier_factor = 1.0f,
                                     .routing_skew = 1.0f};
}

static struct study_source generated(enum gb_format weights, uint64_t seed)
{
    const struct study_generation g = generation(weights, seed);
    struct study_source source;
    struct gb_error error;
    if (study_source_generate(&g, &source, &error) != GB_OK)
        fail_msg("%s", error.message);
    return source;
}

/* Inputs of layer 0, every expert's weights made. */
static struct study_batch inputs(struct study_source *source, int32_t *ids, float *weights)
{
    struct gb_fixture *f = source->fixture;
    bool all[8] = {true, true, true, true, true, true, true, true};
    struct gb_arguments a = gb_route_arguments(f, 0, TOKENS);
    struct gb_error error;
    assert_int_equal(study_source_load(source, 0, all, &error), GB_OK);
    a.routed_ids = ids;
    a.routed_weights = weights;
    assert_int_equal(gb_reference_router(gb_contract_find(GB_BF16, GB_BF16, GB_ORDER_FMA32), &a, &error), GB_OK);
    return (struct study_batch){TOKENS, f->layer[0].x, ids, weights};
}

static struct study_path path_named(const char *name, enum gb_format weights)
{
    struct study_path paths[STUDY_PATHS];
    struct gb_error error;
    uint32_t count;
    if (study_paths(name, weights, &shape, paths, &count, &error) != GB_OK)
        fail_msg("%s", error.message);
    return paths[count - 1];
}

/* A power of two as scale is exact in bf16: quantised and dequantised, the layer has the bits of the contract that
 * multiplies the codes. */
static void dequantised_is_the_contract(void **state)
{
    static const enum gb_format formats[] = {GB_MXFP8, GB_MXFP4};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct study_source source = generated(formats[i], 3);
        int32_t ids[TOKENS * 3];
        float weights[TOKENS * 3], native[TOKENS * 256], emulated[TOKENS * 256], plain[TOKENS * 256];
        const float global[2] = {1.0f, 1.0f};
        struct study_batch batch = inputs(&source, ids, weights);
        struct study_path path = path_named("mxfp8.fma32", formats[i]), bf16 = path_named("bf16.fma32", formats[i]);
        assert_false(path.dequantised);
        assert_int_equal(study_path_run(&path, source.fixture, 0, &batch, global, native, NULL, NULL), GB_OK);
        assert_int_equal(study_path_run(&bf16, source.fixture, 0, &batch, global, plain, NULL, NULL), GB_OK);
        path.dequantised = true;
        path.contract = bf16.contract;
        assert_int_equal(study_path_run(&path, source.fixture, 0, &batch, global, emulated, NULL, NULL), GB_OK);
        assert_memory_equal(native, emulated, sizeof native);
        assert_memory_not_equal(native, plain, sizeof native);
        study_source_free(&source);
    }
}

/* With NVFP4 weights and activations the dequantised form rounds once more, to bf16: far less than the codes do. */
static void dequantised_nvfp4_is_near(void **state)
{
    struct study_source source = generated(GB_NVFP4, 3);
    int32_t ids[TOKENS * 3];
    float weights[TOKENS * 3], native[TOKENS * 256], emulated[TOKENS * 256], plain[TOKENS * 256];
    const float global[2] = {0.013f, 0.0021f};
    double apart = 0.0, cost = 0.0;
    (void)state;
    struct study_batch batch = inputs(&source, ids, weights);
    struct study_path path = path_named("nvfp4.fma32", GB_NVFP4), bf16 = path_named("bf16.fma32", GB_NVFP4);
    assert_false(path.dequantised);
    assert_int_equal(study_path_run(&path, source.fixture, 0, &batch, global, native, NULL, NULL), GB_OK);
    assert_int_equal(study_path_run(&bf16, source.fixture, 0, &batch, global, plain, NULL, NULL), GB_OK);
    path.dequantised = true;
    path.contract = bf16.contract;
    assert_int_equal(study_path_run(&path, source.fixture, 0, &batch, global, emulated, NULL, NULL), GB_OK);
    for (int i = 0; i < TOKENS * 256; i++) {
        apart += pow((double)native[i] - (double)emulated[i], 2);
        cost += pow((double)native[i] - (double)plain[i], 2);
    }
    assert_true(apart > 0.0 && apart < 2.5e-2 * cost); /* an extra 2^-9 may flip codes of the intermediate */
    study_source_free(&source);
}

/* Pages of weights that are let go are the system's, so zeros here; loaded again they hold what they held. */
static void weights_are_let_go(void **state)
{
    (void)state;
    struct study_source source = generated(GB_MXFP8, 3);
    int32_t ids[TOKENS * 3];
    float weights[TOKENS * 3];
    const struct gb_weights *w = &source.fixture->layer[0].gate_up;
    size_t codes, scales, globals, page = (size_t)sysconf(_SC_PAGESIZE), zeros = 0;
    inputs(&source, ids, weights);
    assert_int_equal(gb_weights_bytes(w, &codes, &scales, &globals, NULL), GB_OK);
    uint8_t *before = malloc(codes);
    assert_true(before && codes > 3 * page);
    memcpy(before, w->codes, codes);
    study_source_unload(&source, 0);
    for (size_t i = page; i < codes - page; i++)
        zeros += !((const uint8_t *)w->codes)[i];
    assert_int_equal(zeros, codes - 2 * page);
    inputs(&source, ids, weights);
    assert_memory_equal(before, w->codes, codes);
    free(before);
    study_source_free(&source);
}

/* The sum over one rank's experts is the layer, rounded once; over as many ranks as experts, of rounded terms. */
static void prereduced(void **state)
{
    struct study_source source = generated(GB_NVFP4, 5);
    int32_t ids[TOKENS * 3], one[TOKENS * 3];
    float weights[TOKENS * 3], whole[TOKENS * 256], reduced[TOKENS * 256], term[TOKENS * 256], sum[TOKENS * 256];
    const float global[2] = {1.0f, 1.0f};
    (void)state;
    struct study_batch batch = inputs(&source, ids, weights), single = {TOKENS, batch.x, one, weights};
    struct study_path bf16 = path_named("bf16.fma32", GB_NVFP4), path = path_named("bf16.fma32.prereduced8", GB_NVFP4);
    assert_int_equal(path.ranks, 8);
    assert_int_equal(study_path_run(&bf16, source.fixture, 0, &batch, global, whole, NULL, NULL), GB_OK);
    assert_int_equal(study_path_run(&path, source.fixture, 0, &batch, global, reduced, NULL, NULL), GB_OK);
    for (int32_t e = 0; e < 8; e++) {
        for (int i = 0; i < TOKENS * 3; i++)
            one[i] = ids[i] == e ? e : -1;
        assert_int_equal(study_path_run(&bf16, source.fixture, 0, &single, global, term, NULL, NULL), GB_OK);
        for (int i = 0; i < TOKENS * 256; i++)
            sum[i] = (e ? sum[i] : 0.0f) + gb_bf16_decode(gb_bf16_encode(term[i]));
    }
    assert_memory_equal(reduced, sum, sizeof sum);
    path.ranks = 1;
    assert_int_equal(study_path_run(&path, source.fixture, 0, &batch, global, reduced, NULL, NULL), GB_OK);
    for (int i = 0; i < TOKENS * 256; i++)
        assert_true(reduced[i] == gb_bf16_decode(gb_bf16_encode(whole[i])));
    study_source_free(&source);
}

/* Where gate and up are rounded to bf16, and where the intermediate is three bf16 numbers whose products are added from
 * the smallest on, from the values of the reference; a slot is empty. */
static void other_places_of_rounding(void **state)
{
    enum { INNER = TOKENS * 3 * 128, OUT = TOKENS * 256 };
    static float gate[INNER], up[INNER], product[INNER];
    static gb_bf16 intermediate[INNER], term[3][INNER];
    struct study_source source = generated(GB_NVFP4, 5);
    int32_t ids[TOKENS * 3];
    float weights[TOKENS * 3], found[OUT], right[OUT], part[OUT];
    const float global[2] = {1.0f, 1.0f};
    struct gb_error error;
    (void)state;
    struct study_batch batch = inputs(&source, ids, weights);
    ids[4] = -1;
    for (int fine = 0; fine < 2; fine++) {
        struct study_path path = path_named(fine ? "bf16.fma32.fp32intermediate" : "bf16.fma32.bf16gateup", GB_NVFP4);
        struct gb_arguments a = gb_layer_arguments(source.fixture, 0, TOKENS);
        const struct gb_gate_up_values values = {gate, up, product};
        a.x = batch.x;
        a.ids = ids;
        a.routing_weights = weights;
        a.intermediate = intermediate;
        memset(product, 0, sizeof product);
        assert_int_equal(gb_reference_gate_up_values(path.contract, &a, &values, &error), GB_OK);
        for (int i = 0; i < INNER; i++) {
            float rounded[2] = {gb_bf16_decode(gb_bf16_encode(gate[i])), gb_bf16_decode(gb_bf16_encode(up[i]))};
            float left = fine ? product[i] : gb_gated(a.activation, rounded[0], rounded[1]);
            for (int t = 0; t < 3; t++)
                left -= gb_bf16_decode(term[t][i] = gb_bf16_encode(left));
            assert_true(!fine || left == 0.0f);
        }
        memset(right, 0, sizeof right);
        for (int t = fine ? 2 : 0; t >= 0; t--) {
            a.intermediate = term[t];
            a.output = part;
            assert_int_equal(gb_reference_down(path.contract, &a, &error), GB_OK);
            for (int i = 0; i < OUT; i++)
                right[i] += part[i];
        }
        assert_int_equal(study_path_run(&path, source.fixture, 0, &batch, global, found, NULL, &error), GB_OK);
        for (int i = 0; i < OUT; i++)
            if (found[i] != right[i])
                fail_msg("%s, element %d: %a, and not %a", path.name, i, (double)found[i], (double)right[i]);
    }
    study_source_free(&source);
}

static void names(void **state)
{
    static const char *const wrong[] = {"bf16",         "fp5.fma32",
                                        "bf16.sum",     "bf16.fma32.prereduced1",
                                        "bf16.fma32.x", "bf16.fma32.prereduced4x",
                                        "bf16.fma32..", "bf16.fma32.",
                                        "bf16.",        "bf16.fma32.fp32intermediate.x"};
    struct study_path paths[STUDY_PATHS];
    struct gb_shape narrow = shape;
    struct gb_error error;
    uint32_t count;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(study_paths(wrong[i], GB_NVFP4, &shape, paths, &count, &error), GB_EINVAL);
    assert_int_equal(study_paths("mxfp8.mma16-sm90", GB_FP8_BLOCK, &shape, paths, &count, &error), GB_EUNSUPPORTED);
    assert_int_equal(study_paths("mxfp8.fma32.fp32intermediate", GB_NVFP4, &shape, paths, &count, &error),
                     GB_EUNSUPPORTED);
    assert_int_equal(study_paths("bf16.mma16-sm90.bf16gateup.prereduced12", GB_NVFP4, &shape, paths, &count, &error),
                     GB_OK);
    assert_true(count == 2 && paths[1].rounded_gate_up && !paths[1].fp32_intermediate && paths[1].ranks == 12);
    assert_int_equal(study_paths(NULL, GB_NVFP4, &shape, paths, &count, &error), GB_OK);
    assert_int_equal(count, 8);
    assert_int_equal(study_paths("bf16.fma32,int8.fma32,int8.fma32", GB_NVFP4, &shape, paths, &count, &error), GB_OK);
    assert_int_equal(count, 2);
    assert_string_equal(paths[1].recipe->name, "int8g128.vllm/1");
    char list[STUDY_PATH_LIST] = "";
    for (int n = 2; n < 2 + STUDY_PATHS; n++) { /* and bf16.fma32 */
        if (n == 1 + STUDY_PATHS) {
            strcat(list, ",bf16.fma32.prereduced2,bf16.fma32"); /* both are there */
            assert_int_equal(study_paths(list, GB_NVFP4, &shape, paths, &count, &error), GB_OK);
            assert_int_equal(count, STUDY_PATHS);
            assert_int_equal(paths[STUDY_PATHS - 1].ranks, STUDY_PATHS);
        }
        snprintf(list + strlen(list), sizeof list - strlen(list), "%sbf16.fma32.prereduced%d", n > 2 ? "," : "", n);
    }
    assert_int_equal(study_paths(list, GB_NVFP4, &shape, paths, &count, &error), GB_EINVAL);
    assert_string_equal(error.message, "--paths: more than 24");
    narrow.intermediate = 192; /* 128 does not divide it: blocks of 64 */
    assert_int_equal(study_paths("fp8.fma32", GB_NVFP4, &narrow, paths, &count, &error), GB_OK);
    assert_string_equal(paths[1].recipe->name, "fp8g64.vllm/1");
    assert_true(paths[1].dequantised);
}

/* A kernel computes a path that has its formats and its order, and rounds nowhere else. */
static void paths_of_kernels(void **state)
{
    const struct gb_kernel right = {.name = "test",
                                    .operation = GB_LAYER,
                                    .weights = GB_NVFP4,
                                    .activations = GB_BF16,
                                    .output = GB_FP32,
                                    .order = GB_ORDER_FMA32};
    const struct study_path path = path_named("bf16.fma32", GB_NVFP4);
    (void)state;
    assert_true(study_path_takes(&path, &right));
    for (int wrong = 0; wrong < 11; wrong++) {
        struct gb_kernel kernel = right;
        struct study_path other = path;
        kernel.operation = wrong == 0 ? GB_DOWN : right.operation;
        kernel.flags = wrong == 1 ? GB_ROUTES : 0;
        kernel.output = wrong == 2 ? GB_BF16 : right.output;
        kernel.order = wrong == 3 ? NULL : wrong == 4 ? "mma16-sm90/1" : right.order;
        kernel.weights = wrong == 5 ? GB_MXFP8 : right.weights;
        kernel.activations = wrong == 6 ? GB_NVFP4 : right.activations;
        other.dequantised = wrong == 7;
        other.ranks = wrong == 8 ? 2 : 0;
        other.rounded_gate_up = wrong == 9;
        other.fp32_intermediate = wrong == 10;
        if (study_path_takes(&other, &kernel))
            fail_msg("a kernel that is another one in %d", wrong);
    }
}

/* A router whose rule has a bias has one in every layer, of numbers that differ. Rows hold whole blocks. */
static void routers_have_biases(void **state)
{
    struct study_generation g = generation(GB_MXFP8, 3);
    struct study_source source;
    struct gb_error error = {""};
    (void)state;
    g.router = "moonshotai.kimi-k2/1";
    if (study_source_generate(&g, &source, &error) != GB_OK)
        fail_msg("%s: %s", g.router, error.message);
    for (uint32_t l = 0; l < LAYERS; l++)
        assert_true(source.fixture->layer[l].router_bias[0] != source.fixture->layer[l].router_bias[1]);
    study_source_free(&source);
    g.shape.hidden = 240;
    assert_int_equal(study_source_generate(&g, &source, &error), GB_EINVAL);
    g.shape = (struct gb_shape){TOKENS, 256, 144, 8, 3};
    assert_int_equal(study_source_generate(&g, &source, &error), GB_EINVAL);
    assert_string_equal(error.message, "hidden 256 and intermediate 144 must be multiples of 32 for mxfp8");
}

/* Outliers are channel 37 of every 128 of the norms; a skewed router's rows differ in width by this factor from the
 * first to the last: that of a single expert is as it was. */
static void statistics_are_shaped(void **state)
{
    static const uint32_t experts[] = {8, 2, 1};
    (void)state;
    for (int n = 0; n < 3; n++) {
        struct study_generation g = generation(GB_MXFP8, 3);
        struct study_source plain, shaped;
        struct gb_error error = {""};
        g.shape = (struct gb_shape){TOKENS, 256, 128, experts[n], 1};
        assert_int_equal(study_source_generate(&g, &plain, &error), GB_OK);
        assert_string_equal(plain.fixture->recipe, gb_recipe_default(GB_MXFP8)->name);
        assert_string_equal(plain.fixture->generator, "gaussian/1");
        assert_string_equal(plain.fixture->router, g.router);
        assert_true(plain.fixture->seed == g.seed && plain.fixture->norm_topk_prob);
        assert_true(plain.fixture->rms_norm_epsilon == 1e-6);
        g.outlier_factor = 8.0f;
        g.routing_skew = 4.0f;
        assert_int_equal(study_source_generate(&g, &shaped, &error), GB_OK);
        for (uint32_t l = 0; l < LAYERS; l++) {
            const struct gb_layer *a = &plain.fixture->layer[l], *b = &shaped.fixture->layer[l];
            const gb_bf16 *before = a->router.codes, *after = b->router.codes;
            for (uint32_t i = 0; i < 256; i++)
                if (b->norm[i] != a->norm[i] * (i % 128 == 37 ? 8.0f : 1.0f))
                    fail_msg("layer %u, channel %u: %g of %g", l, i, (double)b->norm[i], (double)a->norm[i]);
            for (uint32_t i = 0; i < experts[n] * 256; i++) {
                const double place = experts[n] == 1 ? 0.5 : (double)(i / 256) / (experts[n] - 1);
                const float right = gb_bf16_decode(before[i]) * (float)pow(4.0, 0.5 - place);
                if (after[i].bits != gb_bf16_encode(right).bits)
                    fail_msg("%u experts, layer %u, element %u of the router: %04x of %04x", experts[n], l, i,
                             after[i].bits, before[i].bits);
            }
        }
        study_source_free(&plain);
        study_source_free(&shaped);
    }
}

/* What a run of several seeds needs. */
struct running {
    struct study study;
    struct study_run run;
    volatile sig_atomic_t stop;
    uint32_t layers; /* how many to do before it stops */
};

static enum gb_status count_down(void *context, struct gb_error *error)
{
    struct running *r = context;
    (void)error;
    if (r->layers && --r->layers == 0)
        r->stop = 1;
    return GB_OK;
}

static void start(struct running *r)
{
    struct gb_error error;
    memset(r, 0, sizeof *r);
    strcpy(r->study.kind, "drift");
    r->study.of = calloc(1, sizeof *r->study.of);
    r->study.cases = 1;
    struct study_case *c = r->study.of;
    *c = (struct study_case){.shape = shape,
                             .layers = LAYERS,
                             .seeds = 2,
                             .samples = 2 * TOKENS,
                             .first_seed = 7,
                             .outlier_factor = 1.0,
                             .routing_skew = 1.0};
    strcpy(c->weights, "nvfp4");
    assert_int_equal(study_paths(NULL, GB_NVFP4, &shape, c->path, &c->paths, &error), GB_OK);
    assert_int_equal(study_case_new(c, &error), GB_OK);
}

static enum gb_status open_source(void *context, const struct study_case *c, uint32_t of, struct study_source *source,
                                  struct gb_error *error)
{
    (void)context;
    (void)error;
    *source = generated(GB_NVFP4, c->first_seed + of);
    return GB_OK;
}

/* Runs what is left, or until it stops. */
static void go(struct running *r, uint32_t layers)
{
    struct gb_error error;
    bool stopped = false;
    r->stop = 0;
    r->layers = layers;
    r->run = (struct study_run){.stop = &r->stop, .open = open_source, .save = count_down, .context = r, .all = 1.0};
    if (study_case_run(r->study.of, &r->run, &stopped, &error) != GB_OK)
        fail_msg("%s", error.message);
}

static void whole_run(int threads, char *hash)
{
    struct running r;
    int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    start(&r);
    go(&r, 0);
    study_hash(&r.study, hash);
    omp_set_num_threads(before);
    study_free(&r.study);
}

static bool whole; /* whether all interruptions are tried, and the simulation is to be long */

/* The same bits for any number of threads, and for a run that was interrupted after any layer (or every other one),
 * left in a file and gone on with. */
static void threads_and_interruptions(void **state)
{
    char first[65], hash[65], file[] = "/tmp/gaugeblock-study-XXXXXX";
    struct gb_error error;
    (void)state;
    whole_run(1, first);
    whole_run(5, hash);
    assert_string_equal(first, hash);
    close(mkstemp(file));
    for (uint32_t layers = 1; layers < 2 * LAYERS; layers += whole ? 1 : 2) {
        struct running r;
        struct study_path paths[STUDY_PATHS];
        start(&r);
        memcpy(paths, r.study.of->path, sizeof paths);
        go(&r, layers);
        assert_int_equal(r.study.of->done, layers);
        for (uint32_t s = 0; s < 2; s++) { /* a seed has streams where it is begun and not finished */
            const uint32_t done = r.study.of->layers_done[s];
            assert_int_equal(r.study.of->state[s] != NULL, 0 < done && done < LAYERS);
        }
        assert_int_equal(study_write(file, &r.study, &error), GB_OK);
        study_free(&r.study);
        if (study_read(file, &r.study, &error) != GB_OK)
            fail_msg("%s", error.message);
        assert_int_equal(r.study.of->done, layers);
        memcpy(r.study.of->path, paths, sizeof paths);
        go(&r, 0);
        study_hash(&r.study, hash);
        assert_string_equal(first, hash);
        study_free(&r.study);
    }
    unlink(file);
}

/* What two ranks share, each a process, and what became of each. */
struct two_ranks {
    pthread_barrier_t barrier;
    char bytes[1 << 16];
    struct {
        bool everyone;
        uint32_t from;
        size_t count;
    } shares[2]; /* what each rank is about to share */
    struct {
        int status;
        bool stopped;
        uint32_t done;
        char hash[65], message[512];
    } of[2];
};
static struct two_ranks *both;

/* Of both in any case: a group of one shares nothing. Both share the same. */
static void share_both(bool everyone, void *bytes, size_t count, uint32_t from)
{
    const uint32_t own = study_ranks.rank;
    both->shares[own].everyone = everyone;
    both->shares[own].from = from;
    both->shares[own].count = count;
    pthread_barrier_wait(&both->barrier);
    if (both->shares[!own].everyone != everyone || both->shares[!own].from != from ||
        both->shares[!own].count != count) {
        fprintf(stderr, "rank %u shares %zu bytes of %u, the other one %zu of %u\n", own, count, from,
                both->shares[!own].count, both->shares[!own].from);
        _exit(1);
    }
    for (size_t at = 0, piece; at < count; at += piece) {
        piece = count - at < sizeof both->bytes ? count - at : sizeof both->bytes;
        if (from == study_ranks.rank)
            memcpy(both->bytes, (char *)bytes + at, piece);
        pthread_barrier_wait(&both->barrier);
        if (from != study_ranks.rank)
            memcpy((char *)bytes + at, both->bytes, piece);
        pthread_barrier_wait(&both->barrier);
    }
}

static void divide_both(uint32_t group, uint32_t member)
{
    assert_true(group < study_ranks.groups && member == study_ranks.rank);
}

/* What goes wrong in one of two ranks. */
enum mishap { NONE, NO_SOURCE, NO_EXPERT, NO_LAYER, NOT_SAVED, STOPPED, GONE_ON_WITH };
static enum mishap mishap;
static uint32_t unlucky;

static enum gb_status open_unlucky(void *context, const struct study_case *c, uint32_t of, struct study_source *source,
                                   struct gb_error *error)
{
    if (mishap == NO_SOURCE && study_ranks.rank == unlucky)
        return gb_fail(error, GB_EIO, "rank %u has no seed %u", unlucky, of);
    enum gb_status status = open_source(context, c, of, source, error);
    if (mishap == NO_EXPERT && study_ranks.rank == unlucky)
        strcpy(source->fixture->generator, "other/1");
    return status;
}

static enum gb_status save_unlucky(void *context, struct gb_error *error)
{
    if (mishap == NOT_SAVED && study_ranks.rank == unlucky)
        return gb_fail(error, GB_ENOMEM, "rank %u cannot save", unlucky);
    return count_down(context, error);
}

static void run_rank(uint32_t seeds)
{
    struct running r;
    struct gb_error error = {""};
    bool stopped = false;
    enum gb_status status = GB_OK;
    start(&r);
    r.study.of->seeds = seeds;
    r.study.of->samples = seeds * TOKENS;
    r.run = (struct study_run){.stop = &r.stop, .open = open_unlucky, .save = save_unlucky, .context = &r, .all = 1.0};
    if (mishap == NO_LAYER && study_ranks.rank == unlucky)
        r.study.of->path[1].contract = gb_contract_find(GB_MXFP4, GB_BF16, GB_ORDER_FMA32);
    if (mishap == STOPPED && study_ranks.rank == unlucky)
        r.layers = 2;
    if (mishap == GONE_ON_WITH && study_ranks.rank == 0) { /* alone, after four layers */
        const struct study_ranks two = study_ranks;
        study_ranks = (struct study_ranks){.count = 1, .groups = 1, .members = 1};
        go(&r, 4);
        study_ranks = two;
        r.stop = 0;
        r.run.stop = &r.stop;
        r.run.open = open_unlucky;
        r.run.save = save_unlucky;
    }
    if (mishap == GONE_ON_WITH)
        status = study_share(&r.study, &error);
    if (status == GB_OK)
        status = study_case_run(r.study.of, &r.run, &stopped, &error);
    both->of[study_ranks.rank].status = status;
    both->of[study_ranks.rank].stopped = stopped;
    both->of[study_ranks.rank].done = r.study.of->done;
    snprintf(both->of[study_ranks.rank].message, sizeof both->of->message, "%s", status == GB_OK ? "" : error.message);
    study_hash(&r.study, both->of[study_ranks.rank].hash);
}

/* Runs so many ranks, each in a process that has a minute. */
static void run_ranks(uint32_t ranks, uint32_t seeds)
{
    pthread_barrierattr_t shared;
    pid_t child[2];
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&both->barrier, &shared, 2);
    memset(both->of, 0xFF, sizeof both->of);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        child[rank] = fork();
        assert_true(child[rank] >= 0);
        if (child[rank])
            continue;
        alarm(60);
        omp_set_num_threads(1);
        processes = (struct processes){rank, ranks, .divide = divide_both, .broadcast = share_both};
        study_ranks = (struct study_ranks){.rank = rank, .count = ranks};
        study_ranks_divide(1);
        run_rank(seeds);
        _exit(0);
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        int status;
        assert_int_equal(waitpid(child[rank], &status, 0), child[rank]);
        if (status)
            fail_msg("mishap %d of rank %u, %u seeds: rank %u ended with %x", (int)mishap, unlucky, seeds, rank,
                     status);
    }
}

/* What one of two ranks finds wrong, both say, and neither waits for the other; what both compute is what one does. */
static void two_ranks_agree(void **state)
{
    static const char other_contract[] = "weights or activations are not those of the contract mxfp4.bf16.fma32/1";
    static const struct {
        enum mishap mishap;
        uint32_t seeds, unlucky;
        int status;
        uint32_t done;
        const char *message;
    } runs[] = {{NONE, 1, 0, GB_OK, 3, ""},
                {NONE, 2, 0, GB_OK, 6, ""},
                {NO_SOURCE, 1, 1, GB_EIO, 0, "rank 1 has no seed 0"},
                {NO_SOURCE, 2, 1, GB_EIO, 0, "rank 1 has no seed 1"},
                {NO_EXPERT, 1, 1, GB_EINVAL, 0, "generator 'other/1' is unknown to this version"},
                {NO_LAYER, 1, 0, GB_EINVAL, 0, other_contract},
                {NO_LAYER, 2, 1, GB_EINVAL, 0, other_contract},
                {NOT_SAVED, 1, 1, GB_ENOMEM, 1, "rank 1 cannot save"},
                {NOT_SAVED, 2, 0, GB_ENOMEM, 2, "rank 0 cannot save"},
                {STOPPED, 1, 1, GB_OK, 2, ""},
                {STOPPED, 2, 1, GB_OK, 4, ""},
                {GONE_ON_WITH, 2, 0, GB_OK, 6, ""}};
    char alone[3][65];
    (void)state;
    both = mmap(NULL, sizeof *both, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(both != MAP_FAILED);
    for (uint32_t seeds = 1; seeds < 3; seeds++) {
        mishap = NONE;
        run_ranks(1, seeds);
        memcpy(alone[seeds], both->of[0].hash, sizeof alone[seeds]);
    }
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        mishap = runs[i].mishap;
        unlucky = runs[i].unlucky;
        run_ranks(2, runs[i].seeds);
        for (int rank = 0; rank < 2; rank++) {
            if (both->of[rank].status != runs[i].status || both->of[rank].done != runs[i].done ||
                strcmp(both->of[rank].message, runs[i].message) || both->of[rank].stopped != (mishap == STOPPED))
                fail_msg("run %zu, rank %d: status %d after %u layers, stopped %d: %s", i, rank, both->of[rank].status,
                         both->of[rank].done, both->of[rank].stopped, both->of[rank].message);
            if (runs[i].done == 3 * runs[i].seeds)
                assert_string_equal(both->of[rank].hash, alone[runs[i].seeds]);
        }
        assert_string_equal(both->of[0].hash, both->of[1].hash);
    }
    munmap(both, sizeof *both);
}

/* Every rank's place, by how many ranks and groups there are: group, member and members of each. */
static void ranks_are_divided(void **state)
{
    const struct study_ranks before = study_ranks;
    (void)state;
    for (uint32_t count = 1; count < 8; count++)
        for (uint32_t groups = 1; groups <= count; groups++) {
            uint32_t members[8] = {0};
            for (uint32_t rank = 0; rank < count; rank++) {
                study_ranks = (struct study_ranks){.rank = rank, .count = count};
                study_ranks_divide(groups);
                assert_int_equal(study_ranks.groups, groups);
                assert_int_equal(study_ranks.group, rank % groups);
                assert_int_equal(study_ranks.member, members[rank % groups]++);
            }
            for (uint32_t rank = 0; rank < count; rank++) {
                study_ranks = (struct study_ranks){.rank = rank, .count = count};
                study_ranks_divide(groups);
                assert_int_equal(study_ranks.members, members[rank % groups]);
            }
        }
    study_ranks = before;
}

/* On a terminal a study says how much is done, and from the second layer on how long the rest takes: `spent` seconds
 * have gone by before, for two layers of which one was there already. */
static void expect_said(double spent, const char *unit, double least, double most)
{
    static int furthest; /* what was done is never less on the line */
    char text[512] = "", *at = text;
    int terminal, own, before = dup(STDERR_FILENO);
    struct gb_error error;
    struct running r;
    bool stopped;
    start(&r);
    strcpy(r.study.of->name, "m");
    r.study.of->seeds = 1;
    r.study.of->samples = TOKENS;
    r.run = (struct study_run){.stop = &r.stop,
                               .open = open_source,
                               .save = count_down,
                               .context = &r,
                               .all = 4.0,
                               .done = 1.0,
                               .resumed = 1.0,
                               .began = clock_seconds() - spent};
    assert_int_equal(openpty(&terminal, &own, NULL, NULL, NULL), 0);
    dup2(own, STDERR_FILENO);
    enum gb_status status = study_case_run(r.study.of, &r.run, &stopped, &error);
    dup2(before, STDERR_FILENO);
    assert_int_equal(status, GB_OK);
    close(own);
    ssize_t got = 0;
    for (size_t used = 0; (got = read(terminal, text + used, sizeof text - 1 - used)) > 0; used += (size_t)got)
        ; /* to the end, which a terminal tells by an error */
    for (int layer = 0; layer < 3; layer++) {
        double left = 2.0;
        char found[16] = "", right[64];
        furthest = 25 * (layer + 1) > furthest ? 25 * (layer + 1) : furthest;
        snprintf(right, sizeof right, "%3d %%  m nvfp4: layer %d of 3", furthest, layer + 1);
        at = strstr(at, right);
        if (!at)
            fail_msg("no \"%s\" in \"%s\"", right, text);
        at += strlen(right);
        if (layer == 0)
            assert_memory_equal(at, "\r", 1);
        else if (sscanf(at, ", %lf %15[a-z] left", &left, found) != 2 || strcmp(found, unit) ||
                 !(left >= (layer == 1 ? least : least / 4) && left <= (layer == 1 ? most : most / 4)))
            fail_msg("layer %d: \"%s\", and not from %g to %g %s", layer, at, least, most, unit);
    }
    close(terminal);
    close(before);
    study_free(&r.study);
}

static void what_is_left_is_said(void **state)
{
    (void)state;
    expect_said(36000.0, "min", 1199.0, 1201.0); /* two layers, as the one before took ten hours */
    expect_said(50.0, "s", 99.0, 119.0);
}

/* What is carried is nothing before the first layer has been, and afterwards not nothing; both truths are the same
 * where the weights lose nothing. */
static void decomposition(void **state)
{
    struct running r;
    (void)state;
    start(&r);
    go(&r, 0);
    const struct study_case *c = r.study.of;
    for (uint32_t p = 0; p < c->paths; p++) {
        struct study_figures f = study_figures_of(c, STUDY_OPEN_LOOP, STUDY_QUANTISED, 0, p);
        assert_true(f.carried == 0.0 && f.relative_l2 == f.injected && f.changed <= c->samples);
        f = study_figures_of(c, STUDY_OPEN_LOOP, STUDY_QUANTISED, LAYERS - 1, p);
        assert_true(f.carried > 0.0 && f.injected > 0.0 && f.relative_l2 <= 1.0001 * (f.injected + f.carried));
        double ulps = 0.0;
        for (int b = 0; b < STUDY_BINS; b++)
            ulps += c->measure[STUDY_LAYER][STUDY_ORIGINAL].ulps[((size_t)p) * STUDY_BINS + (size_t)b];
        assert_true(ulps == (double)c->samples * shape.hidden);
    }
    /* bf16 activations are closest to the quantised weights' truth, FP4 ones farthest from it. */
    struct study_figures bf16 = study_figures_of(c, STUDY_LAYER, STUDY_QUANTISED, 1, 0);
    struct study_figures mxfp8 = study_figures_of(c, STUDY_LAYER, STUDY_QUANTISED, 1, 3);
    struct study_figures mxfp4 = study_figures_of(c, STUDY_LAYER, STUDY_QUANTISED, 1, 7);
    assert_string_equal(c->path[3].name, "mxfp8.fma32");
    assert_string_equal(c->path[7].name, "mxfp4.fma32");
    assert_true(4.0 * bf16.relative_l2 < mxfp8.relative_l2 && 2.0 * mxfp8.relative_l2 < mxfp4.relative_l2);
    study_free(&r.study);
}

/* Elements by their steps of bf16, up to more than 2^15; a NaN is the largest error of all, and stays it. */
static void tokens_are_measured(void **state)
{
    static const double right[] = {1, 1, 1, 1, -4, -0x1p-130}, one[] = {1, 1 + 0x1p-7, 1, 1 - 0x1p-6, 4, 0x1p-130};
    static const double bins[STUDY_BINS] = {[0] = 2, [1] = 1, [3] = 1, [5] = 1, [STUDY_BINS - 1] = 1};
    struct study_case c = {.shape = {2, 6, 1, 1, 1}, .layers = 1, .seeds = 1, .paths = 1, .samples = 2};
    struct study_measure *m = &c.measure[STUDY_LAYER][STUDY_ORIGINAL];
    struct gb_error error;
    double state_of[6];
    (void)state;
    assert_int_equal(study_case_new(&c, &error), GB_OK);
    m->max_abs[0] = m->max_ulp[0] = 0.0;
    memset(m->ulps, 0, sizeof *m->ulps * STUDY_BINS);
    study_measure_token(&c, STUDY_LAYER, STUDY_ORIGINAL, 0, 0, one, right);
    for (int b = 0; b < STUDY_BINS; b++)
        if (m->ulps[b] != bins[b])
            fail_msg("%g elements in bin %d, not %g", m->ulps[b], b, bins[b]);
    assert_true(m->max_abs[0] == 8.0 && m->max_ulp[0] == 2 * 0x4080);
    memcpy(state_of, one, sizeof state_of);
    state_of[1] = (double)NAN;
    study_measure_token(&c, STUDY_LAYER, STUDY_ORIGINAL, 0, 1, state_of, right);
    assert_true(isnan(m->max_abs[0]));
    study_measure_token(&c, STUDY_LAYER, STUDY_ORIGINAL, 0, 0, right, right);
    assert_true(isnan(m->max_abs[0]));
    study_case_free(&c);
}

static enum gb_status open_attention(void *context, const struct study_case *c, uint32_t of,
                                     struct study_source *source, struct gb_error *error)
{
    const enum gb_status status = open_source(context, c, of, source, error);
    const size_t row = (size_t)TOKENS * shape.hidden;
    double *attention = calloc(LAYERS * row, sizeof *attention); /* [layers, tokens, hidden] */
    assert_non_null(attention);
    for (size_t l = 0; l < LAYERS; l++) {
        attention[l * row] = 90.0;
        attention[(l + 1) * row - 1] = -90.0;
        for (size_t t = 1; t + 1 < TOKENS; t++)
            attention[l * row + t * shape.hidden + 50 * l + t] = 40.0 * (double)t;
    }
    source->fixture->stack.attention_delta = attention;
    return status;
}

/* One channel of each token, of the first and of the last too, is what attention made it: truth and a path with bf16
 * activations route by it alike. */
static void attention_is_added(void **state)
{
    struct running with, without;
    struct gb_error error;
    bool stopped;
    (void)state;
    start(&with);
    start(&without);
    with.study.of->seeds = without.study.of->seeds = 1;
    with.study.of->samples = without.study.of->samples = TOKENS;
    with.run = (struct study_run){
        .stop = &with.stop, .open = open_attention, .save = count_down, .context = &with, .all = 1.0};
    if (study_case_run(with.study.of, &with.run, &stopped, &error) != GB_OK)
        fail_msg("%s", error.message);
    go(&without, 0);
    for (int truth = 0; truth < STUDY_TRUTHS; truth++)
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t n = 0; n < TOKENS; n++) {
                const struct study_case *c = with.study.of;
                const double added = c->stream2[truth][l * c->samples + n];
                assert_true(added > 4.0 * without.study.of->stream2[truth][l * c->samples + n]);
                if (truth == STUDY_QUANTISED)
                    assert_true(c->measure[STUDY_OPEN_LOOP][truth].changed[l * c->paths * c->samples + n] == 0.0);
            }
    study_free(&with.study);
    study_free(&without.study);
}

static bool silent; /* the stream ahead of the first layer is zero */

static enum gb_status open_silent(void *context, const struct study_case *c, uint32_t of, struct study_source *source,
                                  struct gb_error *error)
{
    const enum gb_status status = open_source(context, c, of, source, error);
    if (silent)
        memset(source->fixture->stack.residual, 0, sizeof(double) * TOKENS * shape.hidden);
    return status;
}

static float largest_of(const gb_bf16 *values, size_t count)
{
    float largest = 0.0f;
    for (size_t i = 0; i < count; i++)
        largest = fmaxf(largest, fabsf(gb_bf16_decode(values[i])));
    return largest;
}

/* The first two layers by themselves, path after path: activations have the global scale that holds the largest of the
 * inputs and of what the first path's intermediate is, and where these are nothing, 1. */
static void expect_calibrated(struct running *r, struct study_source *source, uint32_t layer, double *stream)
{
    static gb_bf16 x[TOKENS * 256], intermediate[TOKENS * 3 * 128];
    static float output[TOKENS * 256];
    const struct study_case *c = r->study.of;
    int32_t ids[TOKENS * 3];
    float weights[TOKENS * 3];
    bool all[8] = {true, true, true, true, true, true, true, true};
    uint32_t scaled = 0;
    struct gb_error error;
    assert_int_equal(study_source_load(source, layer, all, &error), GB_OK);
    assert_int_equal(stack_input(c->path[0].contract, source->fixture, layer, TOKENS, stream, x, ids, weights, &error),
                     GB_OK);
    const struct study_batch batch = {TOKENS, x, ids, weights};
    float largest[2] = {largest_of(x, TOKENS * 256), 0.0f};
    for (uint32_t p = 0; p < c->paths; p++) {
        const struct study_path *path = &c->path[p];
        bool has = path->recipe && path->recipe->quantiser.global != GB_GLOBAL_NONE;
        float global[2];
        for (int i = 0; i < 2; i++)
            global[i] = has && largest[i] > 0.0f ? largest[i] / path->recipe->quantiser.global_largest : 1.0f;
        scaled += has;
        if (study_path_run(path, source->fixture, layer, &batch, global, output, p ? NULL : intermediate, &error) !=
            GB_OK)
            fail_msg("%s", error.message);
        if (p == 0)
            largest[1] = largest_of(intermediate, TOKENS * 3 * 128);
        for (uint32_t n = 0; n < TOKENS; n++) {
            const double found = c->measure[STUDY_LAYER][0].self2[(layer * c->paths + p) * c->samples + n];
            double right = 0.0;
            for (uint32_t i = 0; i < 256; i++)
                right += (double)output[n * 256 + i] * (double)output[n * 256 + i];
            if (found != right || (right == 0.0) != silent)
                fail_msg("layer %u, %s, token %u%s: %a, not %a", layer, path->name, n, silent ? " of zeros" : "", found,
                         right);
        }
    }
    assert_true(scaled > 0);
}

static void calibrated_by_the_first_path(void **state)
{
    static double stream[TOKENS * 256];
    (void)state;
    for (int s = 0; s < 2; s++) {
        struct running r;
        struct study_source source;
        struct gb_error error;
        bool stopped;
        silent = s;
        start(&r);
        struct study_case *c = r.study.of;
        c->seeds = 1;
        c->samples = TOKENS;
        assert_int_equal(open_silent(NULL, c, 0, &source, &error), GB_OK);
        memcpy(stream, source.fixture->stack.residual, sizeof stream);
        for (uint32_t layer = 0; layer < 2; layer++) {
            r.stop = 0;
            r.layers = 1;
            r.run =
                (struct study_run){.stop = &r.stop, .open = open_silent, .save = count_down, .context = &r, .all = 1.0};
            if (study_case_run(c, &r.run, &stopped, &error) != GB_OK)
                fail_msg("%s", error.message);
            expect_calibrated(&r, &source, layer, stream);
            memcpy(stream, c->state[0], sizeof stream); /* truth's */
        }
        study_source_free(&source);
        study_free(&r.study);
    }
}

static enum gb_status matrix(void *fixture, uint32_t layer, uint32_t expert, enum gb_projection projection,
                             float *values, struct gb_error *error)
{
    return gb_generate_matrix(fixture, layer, expert, projection, values, error);
}

/* Leaving one expert after the other in bf16 leaves less and less of the error, and in the end nothing. */
static void sensitivity_adds_up(void **state)
{
    struct study_source source = generated(GB_NVFP4, 11);
    struct gb_fixture *f = source.fixture;
    const bool all_experts[8] = {true, true, true, true, true, true, true, true};
    struct study_path nvfp4 = path_named("nvfp4.fma32", GB_NVFP4);
    struct study_sensitivity s = {.fixture = f, .original = matrix, .context = f, .recipe = nvfp4.recipe};
    struct gb_error error;
    double share = 0.0, left = 1.0;
    (void)state;
    for (uint32_t l = 0; l < LAYERS; l++) {
        struct gb_arguments a = gb_route_arguments(f, l, TOKENS);
        a.routed_ids = f->layer[l].ids;
        a.routed_weights = f->layer[l].routing_weights;
        assert_int_equal(study_source_load(&source, l, all_experts, &error), GB_OK);
        assert_int_equal(gb_reference_router(gb_contract_find(GB_BF16, GB_BF16, GB_ORDER_FMA32), &a, &error), GB_OK);
    }
    if (study_sensitivity_run(&s, &error) != GB_OK)
        fail_msg("%s", error.message);
    assert_true(s.units > LAYERS && s.error > 0.0);
    for (uint32_t l = 0; l < LAYERS; l++)
        share += s.by_layer[l];
    assert_true(fabs(share - 1.0) < 1e-12);
    for (uint32_t u = 0; u < s.units && s.unit[u].rank; u++) {
        assert_int_equal(s.unit[u].rank, u + 1);
        assert_true(s.unit[u].left < left);
        left = s.unit[u].left;
    }
    assert_true(fabs(left) < 1e-9);
    study_sensitivity_free(&s);
    study_source_free(&source);
}

/* Logits of three words from streams of two channels: the divergences by their definition, and who agrees. The first
 * path is truth itself, the second prefers another word. */
static void last_mile(void **state)
{
    static const gb_bf16 matrix[] = {{0x3F80}, {0}, {0}, {0x3F80}, {0xBF80}, {0x4000}}; /* 1, 0; 0, 1; -1, 2 */
    static const double streams[4][2] = {{3.0, 1.0}, {2.0, 2.5}, {3.0, 1.0}, {-1.0, 4.0}};
    const struct gb_tensor tensor = {.dtype = GB_DTYPE_BF16, .rank = 2, .shape = {3, 2}, .count = 6, .data = matrix};
    float norm[] = {1.0f, 2.0f};
    const struct gb_head head = {3, 2, norm, &tensor};
    const struct study_end end = {&head, 1e-6};
    struct study_case c = {
        .shape = {1, 2, 2, 2, 1}, .layers = 1, .seeds = 1, .samples = 1, .paths = 2, .vocabulary = 3};
    struct gb_error error;
    double p[4][3];
    int top[4];
    (void)state;
    for (int s = 0; s < 4; s++) {
        double root = sqrt((streams[s][0] * streams[s][0] + streams[s][1] * streams[s][1]) / 2.0 + 1e-6), sum = 0.0;
        double a = streams[s][0] / root, b = 2.0 * streams[s][1] / root;
        const double logits[] = {a, b, 2.0 * b - a};
        for (int w = 0; w < 3; w++)
            sum += exp(logits[w]);
        for (int w = 0; w < 3; w++)
            p[s][w] = exp(logits[w]) / sum;
        top[s] = logits[0] > logits[1] && logits[0] > logits[2] ? 0 : logits[1] > logits[2] ? 1 : 2;
    }
    assert_int_equal(study_case_new(&c, &error), GB_OK);
    assert_int_equal(study_head(&c, &end, 0, streams[0], &error), GB_OK);
    for (int a = 0; a < STUDY_AGAINST; a++)
        for (int path = 0; path < 2; path++) {
            double kl = 0.0;
            for (int w = 0; w < 3; w++)
                kl += p[a][w] * log(p[a][w] / p[2 + path][w]);
            assert_true(fabs(c.head[a].kl[path] - kl) < 1e-14);
            assert_true(c.head[a].same_top[path] == (top[a] == top[2 + path]));
        }
    assert_true(top[0] != top[1] && c.head[STUDY_QUANTISED].kl[0] == 0.0 && c.head[STUDY_ORIGINAL].kl[0] > 0.1);
    study_case_free(&c);
}

/* 38 of 40 tokens agree: the interval of Clopper and Pearson is 83.1 to 99.4 %. */
static void agreement(void **state)
{
    struct study_case c = {
        .shape = {40, 2, 2, 2, 1}, .layers = 1, .seeds = 1, .samples = 40, .paths = 1, .vocabulary = 2};
    struct gb_error error;
    (void)state;
    assert_int_equal(study_case_new(&c, &error), GB_OK);
    for (int n = 0; n < 40; n++)
        c.head[0].same_top[n] = n != 3 && n != 30;
    struct study_interval i = study_top_agreement(&c, (enum study_against)STUDY_QUANTISED, 0);
    assert_true(i.value == 0.95 && fabs(i.low - 0.8308) < 1e-4 && fabs(i.high - 0.9939) < 1e-4);
    study_case_free(&c);
}

/* One layer, two tokens: errors of the same part of bf16's in each, and how a table shows it. */
static void ratios_from_a_hundredth_have_three_places(void **state)
{
    static const struct {
        double squared;
        const char *shown;
    } rows[] = {{1.0001e-4, "| 0.010 | 0.010 .. 0.010 | 0.010 .. 0.010 |\n"},
                {0.99e-4, "| 9.95e-03 | 9.95e-03 .. 9.95e-03 | 9.95e-03 .. 9.95e-03 |\n"}};
    (void)state;
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        struct study_case c = {.name = "one",
                               .weights = "nvfp4",
                               .shape = {2, 4, 4, 2, 1},
                               .layers = 1,
                               .seeds = 1,
                               .samples = 2,
                               .paths = 2,
                               .path = {{.name = "bf16.fma32"}, {.name = "mxfp8.fma32"}}};
        const struct study study = {.kind = "closeness", .command = "", .of = &c, .cases = 1};
        struct gb_error error;
        char *text = NULL;
        size_t bytes = 0;
        FILE *stream = open_memstream(&text, &bytes);
        assert_non_null(stream);
        assert_int_equal(study_case_new(&c, &error), GB_OK);
        for (int t = 0; t < STUDY_TRUTHS; t++)
            for (int n = 0; n < 2; n++) {
                c.layer2[t][n] = c.measure[STUDY_LAYER][t].error2[n] = 1.0;
                c.measure[STUDY_LAYER][t].error2[2 + n] = rows[row].squared;
            }
        c.done = 1;
        assert_int_equal(study_print(stream, &study, true, &error), GB_OK);
        fclose(stream);
        char *found = strstr(text, rows[row].shown);
        if (!found || !strstr(found + 1, rows[row].shown)) /* a line for each truth */
            fail_msg("%s", text);
        free(text);
        study_case_free(&c);
    }
}

/* A heavy-tailed positive number of mean 1, and one from -1 to 1, from a generator of their own. */
static uint64_t seed = 88172645463325252u;
static double uniform(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return ((double)(seed >> 11) + 0.5) * 0x1p-53;
}
static double normal(void)
{
    return sqrt(-2.0 * log(uniform())) * cos(2.0 * 3.14159265358979323846 * uniform());
}
static double lognormal(double sigma)
{
    return exp(sigma * normal() - 0.5 * sigma * sigma);
}

/* Of simulated pairs of errors, whose true ratio is known, the share of intervals that hold it. */
static double coverage(uint32_t seeds, uint32_t tokens, double seed_sigma, int trials)
{
    enum { MOST = 256 };
    double a[MOST], b[MOST];
    int covered = 0;
    struct study_resamples r;
    struct gb_error error;
    assert_int_equal(study_resamples_new(1, seeds, tokens, &r, &error), GB_OK);
    for (int n = 0; n < trials; n++) {
        for (uint32_t s = 0; s < seeds; s++) {
            double of_seed = lognormal(seed_sigma);
            for (uint32_t t = 0; t < tokens; t++) {
                double common = lognormal(0.5); /* what both share is a token's size */
                a[s * tokens + t] = 1.96 * common * of_seed * lognormal(0.4);
                b[s * tokens + t] = common * lognormal(0.4);
            }
        }
        struct study_interval i = study_ratio(&r, a, b);
        covered += i.low <= 1.4 && 1.4 <= i.high;
    }
    study_resamples_free(&r);
    return (double)covered / trials;
}

/* 95 % as they say. The standard deviation of a share of n trials is 22 % / sqrt(n). */
static void intervals_cover(void **state)
{
    static const struct {
        uint32_t seeds, tokens;
        double seed_sigma;
    } rows[] = {{1, 64, 0.0}, {1, 128, 0.0}, {4, 32, 0.0}, {4, 32, 0.2}, {8, 16, 0.1}};
    const int trials = whole ? 4000 : 200;
    const double off = whole ? 0.02 : 0.045;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double share = coverage(rows[i].seeds, rows[i].tokens, rows[i].seed_sigma, trials);
        print_message("%u seeds of %u tokens, seeds differ by %.1f: %.1f %% of the intervals hold the ratio\n",
                      rows[i].seeds, rows[i].tokens, rows[i].seed_sigma, 100.0 * share);
        assert_true(fabs(share - 0.95) <= off);
    }
}

/* A ratio that every token has is known for certain. */
static void known_ratio(void **state)
{
    double a[24], b[24];
    struct study_resamples r;
    struct gb_error error;
    (void)state;
    for (int i = 0; i < 24; i++) {
        b[i] = 1.0 + i;
        a[i] = 9.0 * b[i];
    }
    assert_int_equal(study_resamples_new(1, 3, 8, &r, &error), GB_OK);
    struct study_interval i = study_ratio(&r, a, b);
    assert_true(fabs(i.value - 3.0) < 1e-12 && fabs(i.low - 3.0) < 1e-12 && fabs(i.high - 3.0) < 1e-12);
    a[3] *= 1.5;
    i = study_ratio(&r, a, b);
    assert_true(i.low < i.value && i.value < i.high && i.high - i.low > 1e-3);
    study_resamples_free(&r);
}

/* Errors that grow as the root of the depth, and as its 1.25th power with noise. */
static void growth(void **state)
{
    enum { DEPTH = 20 };
    struct study_case c = {.shape = shape, .layers = DEPTH, .seeds = 1, .samples = TOKENS, .paths = 1};
    struct study_resamples r;
    struct gb_error error;
    (void)state;
    assert_int_equal(study_case_new(&c, &error), GB_OK);
    assert_int_equal(study_resamples_new(DEPTH, 1, TOKENS, &r, &error), GB_OK);
    for (int noisy = 0; noisy < 2; noisy++) {
        const double exponent = noisy ? 1.25 : 0.5;
        for (size_t l = 0; l < DEPTH; l++)
            for (size_t n = 0; n < TOKENS; n++) {
                double size = 2.0 + (double)n, off = noisy ? exp(0.05 * normal()) : 1.0;
                c.stream2[STUDY_ORIGINAL][l * TOKENS + n] = size * size;
                c.measure[STUDY_OPEN_LOOP][STUDY_ORIGINAL].error2[l * TOKENS + n] =
                    pow(off * size * 1e-3 * pow((double)l + 1.0, exponent), 2.0);
            }
        struct study_growth g = study_growth_of(&c, &r, STUDY_ORIGINAL, 0);
        if (!noisy)
            assert_true(fabs(g.exponent.value - 0.5) < 1e-9 && g.error < 1e-9);
        else
            assert_true(fabs(g.exponent.value - 1.25) < 4.0 * g.error && g.error > 1e-3 && g.error < 0.05 &&
                        g.exponent.low < g.exponent.value);
    }
    study_resamples_free(&r);
    study_case_free(&c);
}

/* A file that says other than it holds is refused. */
static void damaged_file(void **state)
{
    char file[] = "/tmp/gaugeblock-study-XXXXXX";
    struct gb_error error;
    struct running r;
    struct study read;
    (void)state;
    close(mkstemp(file));
    start(&r);
    go(&r, 1);
    assert_int_equal(study_write(file, &r.study, &error), GB_OK);
    FILE *stream = fopen(file, "r+b");
    assert_non_null(stream);
    fseek(stream, 0, SEEK_END);
    long size = ftell(stream);
    for (long at = 0; at < size; at += size / (whole ? 40 : 20) + 1) {
        fseek(stream, at, SEEK_SET);
        int byte = fgetc(stream);
        fseek(stream, at, SEEK_SET);
        fputc(byte ^ 0x10, stream);
        fflush(stream);
        char hash[2][65];
        study_hash(&r.study, hash[0]);
        if (study_read(file, &read, &error) == GB_OK) { /* a byte that nothing was read from */
            study_hash(&read, hash[1]);
            assert_string_equal(hash[0], hash[1]);
            study_free(&read);
        }
        fseek(stream, at, SEEK_SET);
        fputc(byte, stream);
        fflush(stream);
    }
    fclose(stream);
    assert_int_equal(study_read(file, &read, &error), GB_OK);
    study_free(&read);
    study_free(&r.study);
    unlink(file);
}

/* A study that is begun, of sizes that all differ, in which no two numbers are alike. */
static void begun_study(struct study *study)
{
    struct study_array arrays[STUDY_ARRAYS];
    struct gb_error error;
    *study = (struct study){.kind = "drift", .command = "gaugeblock study drift", .cases = 1};
    struct study_case *c = study->of = calloc(1, sizeof *study->of);
    assert_non_null(c);
    *c = (struct study_case){.name = "model",
                             .weights = "nvfp4",
                             .recipe = "nvfp4.trtllm/1",
                             .inputs = "0123",
                             .end = "4567",
                             .shape = {5, 6, 7, 8, 4},
                             .layers = 3,
                             .seeds = 4,
                             .samples = 20,
                             .paths = 2,
                             .vocabulary = 9,
                             .first_seed = UINT64_MAX,
                             .outlier_factor = 1.5,
                             .routing_skew = 2.25};
    strcpy(c->path[0].name, "bf16.fma32");
    strcpy(c->path[1].name, "mxfp8.fma32");
    assert_int_equal(study_case_new(c, &error), GB_OK);
    uint32_t count = study_case_arrays(c, arrays);
    for (uint32_t a = 0; a < count; a++) /* what is not measured is no number */
        for (size_t i = 0; i < study_array_elements(&arrays[a]); i++)
            assert_true(isnan((*arrays[a].values)[i]));
    for (uint32_t s = 0; s < c->seeds; s++) /* the first has all layers, the last none */
        c->done += c->layers_done[s] = c->layers - s;
    for (uint32_t s = 1; s + 1 < c->seeds; s++) {
        c->state[s] = malloc(study_case_streams(c) * sizeof *c->state[s]);
        assert_non_null(c->state[s]);
        for (size_t i = 0; i < study_case_streams(c); i++)
            c->state[s][i] = -(double)i - 0.5 * s;
    }
    for (uint32_t a = 0; a < count; a++)
        for (size_t i = 0; i < study_array_elements(&arrays[a]); i++)
            (*arrays[a].values)[i] = 1000.0 * a + (double)i;
    c->model_layer[0] = -(double)NAN;
}

/* Every field of a file is read, into its place; NaN has one encoding in the hash. */
static void files_are_read_back(void **state)
{
    char file[] = "/tmp/gaugeblock-study-XXXXXX", hash[65], line[96];
    struct study study, read;
    struct gb_error error;
    (void)state;
    close(mkstemp(file));
    begun_study(&study);
    struct study_case *c = study.of, *r;
    study_hash(&study, hash);
    snprintf(line, sizeof line, "hash: %s\n", hash);
    kept_text(line);
    c->model_layer[0] = (double)NAN;
    assert_int_equal(study_write(file, &study, &error), GB_OK);
    if (study_read(file, &read, &error) != GB_OK)
        fail_msg("%s", error.message);
    r = read.of;
    assert_string_equal(study.kind, read.kind);
    assert_string_equal(study.command, read.command);
    for (uint32_t p = 0; p < c->paths; p++)
        assert_string_equal(c->path[p].name, r->path[p].name);
    assert_memory_equal(c->layers_done, r->layers_done, c->seeds * sizeof *c->layers_done);
    for (uint32_t s = 0; s < c->seeds; s++) {
        assert_int_equal(c->state[s] != NULL, r->state[s] != NULL);
        if (c->state[s])
            assert_memory_equal(c->state[s], r->state[s], study_case_streams(c) * sizeof(double));
    }
    study_hash(&read, line);
    assert_string_equal(line, hash);
    study_free(&read);
    for (uint32_t s = 0; s < c->seeds; s++) /* a case that is finished keeps nothing to go on from */
        c->layers_done[s] = c->layers;
    for (int finished = 0; finished < 2; finished++) {
        const uint64_t seeds[] = {c->seeds};
        double layers[4];
        struct gb_results *results;
        c->done = c->seeds * c->layers - !finished;
        assert_int_equal(study_write(file, &study, &error), GB_OK);
        assert_int_equal(gb_results_open(file, &results, &error), GB_OK);
        assert_int_equal(gb_results_get(results, "/cases/0/resume/layers_done", 1, seeds, layers, &error),
                         finished ? GB_EFORMAT : GB_OK);
        gb_results_close(results);
    }
    study_free(&study);
    unlink(file);
}

/* An attribute of a study's file that is another one: a count, or where there is one a text; NULL: none is. */
struct edit {
    const char *name, *text;
    uint64_t count;
};

static void put(struct gb_results *file, const char *group, const char *name, uint64_t count, const char *text,
                const struct edit *edit)
{
    struct gb_error error;
    const bool other = edit->name && !strcmp(edit->name, name);
    if (other && edit->text && !strcmp(edit->text, "absent"))
        return;
    assert_int_equal(text ? gb_results_put_text(file, group, name, other ? edit->text : text, &error)
                          : gb_results_put_count(file, group, name, other ? edit->count : count, &error),
                     GB_OK);
}

/* The study as docs/study.md#file has it, but for the edit. layers: how far its seeds are, in place of what they say.
 */
static void write_edited(const char *path, struct study *study, const struct edit *edit, const double *layers)
{
    struct study_case *c = study->of;
    struct study_array arrays[STUDY_ARRAYS];
    struct gb_results *file;
    struct gb_error error;
    char hash[65], name[96];
    const uint64_t seeds[] = {c->seeds}, streams[] = {c->paths + STUDY_TRUTHS, c->shape.tokens, c->shape.hidden};
    static const char group[] = "/cases/0";
    study_hash(study, hash);
    assert_int_equal(gb_results_create(path, &file, &error), GB_OK);
    put(file, "", "schema", 0, "gaugeblock-study/1", edit);
    put(file, "", "kind", 0, study->kind, edit);
    put(file, "", "command", 0, study->command, edit);
    put(file, "", "content_sha256", 0, hash, edit);
    put(file, "", "cases", 1, NULL, edit);
    assert_int_equal(gb_results_group(file, "/cases", &error), GB_OK);
    assert_int_equal(gb_results_group(file, group, &error), GB_OK);
    const struct edit texts[] = {{"model", c->name, 0},        {"weights", c->weights, 0},
                                 {"recipe", c->recipe, 0},     {"inputs_sha256", c->inputs, 0},
                                 {"head_sha256", c->end, 0},   {"paths", "bf16.fma32,mxfp8.fma32", 0},
                                 {"outlier_factor", "1.5", 0}, {"routing_skew", "2.25", 0}},
                      counts[] = {{"tokens", NULL, c->shape.tokens},
                                  {"hidden", NULL, c->shape.hidden},
                                  {"intermediate", NULL, c->shape.intermediate},
                                  {"experts", NULL, c->shape.experts},
                                  {"top_k", NULL, c->shape.top_k},
                                  {"layers", NULL, c->layers},
                                  {"seeds", NULL, c->seeds},
                                  {"path_count", NULL, c->paths},
                                  {"samples", NULL, c->samples},
                                  {"vocabulary", NULL, c->vocabulary},
                                  {"done", NULL, c->done},
                                  {"first_seed", NULL, c->first_seed}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        put(file, group, texts[i].name, 0, texts[i].text, edit);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        put(file, group, counts[i].name, counts[i].count, NULL, edit);
    const uint32_t count = study_case_arrays(c, arrays);
    for (uint32_t a = 0; a < count; a++) {
        snprintf(name, sizeof name, "%s/%.63s", group, arrays[a].name);
        assert_int_equal(gb_results_put(file, name, arrays[a].rank, arrays[a].dims, "axes", *arrays[a].values, &error),
                         GB_OK);
    }
    assert_int_equal(gb_results_put(file, "/cases/0/resume/layers_done", 1, seeds, "seeds", layers, &error), GB_OK);
    for (uint32_t s = 0; s < c->seeds; s++) {
        snprintf(name, sizeof name, "/cases/0/resume/state/%u", s);
        if (c->state[s])
            assert_int_equal(gb_results_put(file, name, 3, streams, "axes", c->state[s], &error), GB_OK);
    }
    assert_int_equal(gb_results_save(file, GB_OK, &error), GB_OK);
}

/* Reads the file, and keeps what is said of it. */
static void keep_answer(const char *path, const char *what)
{
    struct study read;
    struct gb_error error;
    char line[1024];
    const enum gb_status status = study_read(path, &read, &error);
    if (status == GB_OK)
        study_free(&read);
    else
        assert_int_equal(strncmp(error.message, path, strlen(path)), 0);
    snprintf(line, sizeof line, "%s: %d%s\n", what, (int)status, status == GB_OK ? "" : error.message + strlen(path));
    kept_text(line);
}

/* Of each attribute the values around those that it may have, and each without its attribute. */
static void wrong_files_are_refused(void **state)
{
    static const struct edit edits[] = {
        {NULL, NULL, 0},
        {"schema", "gaugeblock-study/2", 0},
        {"schema", "absent", 0},
        {"kind", "absent", 0},
        {"kind", "closeness......", 0},
        {"kind", "closeness.......", 0},
        {"command", "absent", 0},
        {"command", "gaugeblock study", 0}, /* not measured */
        {"content_sha256", "absent", 0},
        {"content_sha256", "0123", 0},
        {"cases", NULL, 0},
        {"cases", NULL, 2},
        {"cases", NULL, 256},
        {"cases", NULL, 257},
        {"model", "other", 0},
        {"model", "absent", 0},
        {"weights", "mxfp8..........", 0},
        {"weights", "mxfp8...........", 0},
        {"recipe", "absent", 0},
        {"inputs_sha256", "absent", 0},
        {"head_sha256", "absent", 0},
        {"paths", "absent", 0},
        {"paths", "bf16.fma32", 0},
        {"paths", "bf16.fma32,mxfp8.fma32,", 0},
        {"paths", "bf16.fma32,mxfp8.fma32,int8.fma32", 0},
        {"paths", "bf16.fma32,mxfp4.fma32", 0},
        {"outlier_factor", "absent", 0},
        {"outlier_factor", "1.25", 0},
        {"routing_skew", "absent", 0},
        {"routing_skew", "2.5", 0},
        {"tokens", NULL, 0},
        {"tokens", NULL, 1},
        {"tokens", NULL, 4},
        {"tokens", NULL, 1 << 20},
        {"tokens", NULL, (1 << 20) + 1},
        {"tokens", NULL, ((uint64_t)1 << 32) + 5},
        {"hidden", NULL, 0},
        {"hidden", NULL, 7},
        {"hidden", NULL, 1 << 20},
        {"hidden", NULL, (1 << 20) + 1},
        {"intermediate", NULL, 0},
        {"intermediate", NULL, 1},
        {"intermediate", NULL, 1 << 20},
        {"intermediate", NULL, (1 << 20) + 1},
        {"experts", NULL, 0},
        {"experts", NULL, 3},
        {"experts", NULL, 4}, /* as many as slots */
        {"experts", NULL, 1 << 20},
        {"experts", NULL, (1 << 20) + 1},
        {"top_k", NULL, 0},
        {"top_k", NULL, 1},
        {"top_k", NULL, 8},
        {"top_k", NULL, 9},
        {"top_k", NULL, 1 << 20},
        {"top_k", NULL, (1 << 20) + 1},
        {"layers", NULL, 0},
        {"layers", NULL, 1},
        {"layers", NULL, 2},
        {"layers", NULL, 4096},
        {"layers", NULL, 4097},
        {"seeds", NULL, 0},
        {"seeds", NULL, 1},
        {"seeds", NULL, 4096},
        {"seeds", NULL, 4097},
        {"path_count", NULL, 0},
        {"path_count", NULL, 1},
        {"path_count", NULL, 3},
        {"path_count", NULL, STUDY_PATHS},
        {"path_count", NULL, STUDY_PATHS + 1},
        {"samples", NULL, 0},
        {"samples", NULL, 1},
        {"samples", NULL, 19},
        {"samples", NULL, 21},
        {"samples", NULL, 1 << 20},
        {"samples", NULL, (1 << 20) + 1},
        {"vocabulary", NULL, 0},
        {"vocabulary", NULL, 1 << 24},
        {"vocabulary", NULL, (1 << 24) + 1},
        {"done", NULL, 0},
        {"done", NULL, 5},
        {"done", NULL, 11},
        {"done", NULL, 12}, /* all of them: how far each is is not asked */
        {"done", NULL, 13},
        {"done", NULL, 4096 * 4096},
        {"done", NULL, 4096 * 4096 + 1},
        {"first_seed", "absent", 0},
        {"first_seed", NULL, 0},
    };
    static const double progress[][4] = {{3.0, 2.0, 1.0, 0.0}, {3.0, 2.0, 0.0, 1.0},  {2.0, 3.0, 1.0, 0.0},
                                         {0.0, 2.0, 1.0, 3.0}, {4.0, 2.0, 0.0, 0.0},  {3.0, 2.0, 2.0, -1.0},
                                         {3.0, 2.5, 0.5, 0.0}, {3.0, 2.0, NAN, 1.0},  {3.0, 2.0, 1.0, 1.0},
                                         {3.0, 2.0, 0.0, 0.0}, {3.0, 1.0, 2.0, -0.0}, {3.0, INFINITY, 1.0, 0.0}};
    char file[] = "/tmp/gaugeblock-study-XXXXXX", what[128];
    struct study study;
    (void)state;
    close(mkstemp(file));
    begun_study(&study);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        const struct edit *e = &edits[i];
        write_edited(file, &study, e, progress[0]);
        snprintf(what, sizeof what, e->text ? "%s %s" : "%s %s%llu", e->name ? e->name : "all right",
                 e->text ? e->text : "", (unsigned long long)e->count);
        keep_answer(file, what);
    }
    for (size_t i = 1; i < sizeof progress / sizeof *progress; i++) {
        const double *p = progress[i];
        write_edited(file, &study, &edits[0], p);
        snprintf(what, sizeof what, "layers done %g, %g, %g, %g", p[0], p[1], p[2], p[3]);
        keep_answer(file, what);
    }
    study_free(&study);
    unlink(file);
    expect_kept_explanations("test_study");
}

int main(int argc, char **argv)
{
    whole = sweeps_are_whole(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_agree), /* first: a process that has had threads is not forked */
        cmocka_unit_test(ranks_are_divided),
        cmocka_unit_test(what_is_left_is_said),
        cmocka_unit_test(dequantised_is_the_contract),
        cmocka_unit_test(dequantised_nvfp4_is_near),
        cmocka_unit_test(weights_are_let_go),
        cmocka_unit_test(prereduced),
        cmocka_unit_test(other_places_of_rounding),
        cmocka_unit_test(names),
        cmocka_unit_test(paths_of_kernels),
        cmocka_unit_test(routers_have_biases),
        cmocka_unit_test(statistics_are_shaped),
        cmocka_unit_test(threads_and_interruptions),
        cmocka_unit_test(decomposition),
        cmocka_unit_test(tokens_are_measured),
        cmocka_unit_test(attention_is_added),
        cmocka_unit_test(calibrated_by_the_first_path),
        cmocka_unit_test(sensitivity_adds_up),
        cmocka_unit_test(last_mile),
        cmocka_unit_test(agreement),
        cmocka_unit_test(known_ratio),
        cmocka_unit_test(ratios_from_a_hundredth_have_three_places),
        cmocka_unit_test(intervals_cover),
        cmocka_unit_test(growth),
        cmocka_unit_test(damaged_file),
        cmocka_unit_test(files_are_read_back),
        cmocka_unit_test(wrong_files_are_refused),
    };
    gb_hdf5_no_atexit();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
