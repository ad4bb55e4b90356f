/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions and timed runs on a device that is none: what they call in which sequence, what a kernel finds in memory,
 * and that each call that fails is the last one. */
#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixtures/fixtures.h"
#include "harness/run/altered.h"
#include "harness/run/environment.h"
#include "harness/run/operators.h"
#include "harness/run/session.h"
#include "harness/run/session_arrays.h"
#include "harness/run/timed.h"
#include "tests/support/generated_layer.h"
#include "tests/support/small_problems.h"

/* What was called, a letter each, and which call is to fail; what only gives back is not counted. */
static struct {
    char log[1 << 14], back[1 << 12];
    size_t count, given_back;
    int fail;
    size_t live; /* allocations */
    char rounds; /* which of them leaves another rounding: w, p, x, r, or > */
    bool once;
    int prepared, prepares;
    size_t read[64][2]; /* from where, and how many bytes */
    size_t reads;
} calls;

static void start(int fail)
{
    memset(&calls, 0, sizeof calls);
    calls.fail = fail;
}

static void round_after(char what)
{
    if (calls.rounds == what) {
        fesetround(FE_UPWARD);
        calls.rounds = calls.once ? 0 : what;
    }
}

static enum gb_status call(char what, struct gb_error *error)
{
    assert_true(calls.count + 1 < sizeof calls.log);
    if (strchr("auds", what))
        assert_int_equal(fegetround(), FE_TONEAREST);
    calls.log[calls.count] = what;
    round_after(what);
    return (int)calls.count++ == calls.fail ? gb_fail(error, GB_EIO, "call %d, %c", calls.fail, what) : GB_OK;
}

static void give_back(char what)
{
    assert_true(calls.given_back + 1 < sizeof calls.back);
    calls.back[calls.given_back++] = what;
}

enum { BARE = 0xA5 };

static enum gb_status allocate(size_t bytes, void **pointer, struct gb_error *error)
{
    enum gb_status status = call('a', error);
    *pointer = status == GB_OK ? malloc(bytes) : NULL;
    calls.live += *pointer != NULL;
    if (*pointer)
        memset(*pointer, BARE, bytes);
    return status;
}

static void release(void *pointer)
{
    calls.live -= pointer != NULL;
    free(pointer);
}

static enum gb_status upload(void *to, const void *from, size_t bytes, struct gb_error *error)
{
    memcpy(to, from, bytes);
    return call('u', error);
}

static enum gb_status download(void *to, const void *from, size_t bytes, struct gb_error *error)
{
    memcpy(to, from, bytes);
    return call('d', error);
}

static enum gb_status synchronise(struct gb_error *error)
{
    return call('s', error);
}

static const struct gb_device device = {
    .allocate = allocate, .release = release, .upload = upload, .download = download, .synchronise = synchronise};

/* The kernel. */

static bool prepared_twice; /* copies that are timed have what was prepared each */

static struct session *looked_at; /* which prepare finds the weights of */
static bool chosen, admitted;     /* only experts with tokens are there; and one more */
static uint32_t away, altered;    /* as they should lie there */

enum { CODES_BYTES = 6 }; /* that a test's kernel writes */
enum { TOKENS = 3, EXPERTS = 5, HIDDEN = 128, INTERMEDIATE = 64, TOP_K = 2 };
static const int32_t ids[TOKENS * TOP_K] = {0, 1, 3, -1, 1, 3};

/* One used expert's part of an array, which should be what the fixture has of `from`, its parts in other places. */
static bool is_there(const char *there, const char *from, size_t each, struct altered_split split)
{
    const size_t middle = each - split.kept - split.moved;
    return !memcmp(there, from, split.kept) && !memcmp(there + split.kept, from + split.kept + split.moved, middle) &&
           !memcmp(there + split.kept + middle, from + split.kept, split.moved);
}

/* Every used expert's arrays, by this test's own reckoning of where they are, and nothing of others. */
static void look(const struct gb_arguments *a)
{
    const struct session *s = looked_at;
    const struct gb_layer *l = &s->fixture->layer[0];
    const struct {
        const void *original, *there;
        size_t each;
    } arrays[SESSION_WEIGHTS] = {
        {l->gate_up.codes, a->gate_up.codes, 2 * INTERMEDIATE * HIDDEN / 2},
        {l->gate_up.scales, a->gate_up.scales, 2 * INTERMEDIATE * HIDDEN / 16},
        {l->gate_up.global_scales, a->gate_up.global_scales, 2 * sizeof(float)},
        {l->down.codes, a->down.codes, INTERMEDIATE * HIDDEN / 2},
        {l->down.scales, a->down.scales, INTERMEDIATE * HIDDEN / 16},
        {l->down.global_scales, a->down.global_scales, sizeof(float)},
        {l->gate_up_bias, a->gate_up_bias, 2 * INTERMEDIATE * sizeof(float)},
        {l->down_bias, a->down_bias, HIDDEN * sizeof(float)},
    };
    /* Of those in use each is at the next one's place, where they are moved. */
    static const uint32_t used[] = {0, 1, 3}, more[] = {0, 1, 3, 4}, all[] = {0, 1, 2, 3, 4};
    const uint32_t *in_use = !chosen ? all : admitted ? more : used, count = !chosen ? 5 : admitted ? 4 : 3;
    const uint32_t gate_up = 1u << 0 | 1u << 1 | 1u << 2 | 1u << 6, uses = operator_uses(s->kernel);
    assert_true(!a->x && !a->ids && !a->routing_weights);
    assert_int_equal(a->activation, uses & READS_EXPERTS ? s->fixture->activation : GB_SILU);
    assert_int_equal(a->gate_up.format, uses & READS_GATE_UP ? GB_NVFP4 : 0);
    assert_int_equal(a->down.format, uses & READS_DOWN ? GB_NVFP4 : 0);
    for (int slot = 0; slot < SESSION_WEIGHTS; slot++) {
        const size_t each = uses & (gate_up >> slot & 1 ? READS_GATE_UP : READS_DOWN) ? arrays[slot].each : 0;
        const struct altered_split whole = {each, 0}, parts = altered_split(each);
        const bool swapped = altered >> slot & 1, moved = away || (swapped && !parts.moved);
        bool there[EXPERTS] = {false};
        if (s->weights[slot].bytes != EXPERTS * each || s->weights[slot].payload != arrays[slot].there)
            fail_msg("array %d has %zu bytes", slot, s->weights[slot].bytes);
        for (uint32_t n = 0; each && n < count; n++) {
            const char *at = (const char *)arrays[slot].there + in_use[n] * each;
            const uint32_t from = in_use[moved ? (n + count - 1) % count : n];
            there[in_use[n]] = true;
            if (!is_there(at, (const char *)arrays[slot].original + from * each, each,
                          swapped && parts.moved ? parts : whole))
                fail_msg("array %d, place %u: not of expert %u%s", slot, in_use[n], from, swapped ? ", altered" : "");
        }
        for (uint32_t e = 0; each && e < EXPERTS; e++) {
            const uint8_t *at = (const uint8_t *)arrays[slot].there + e * each;
            if (!there[e] && (*at != GUARDED_FRESH || memcmp(at, at + 1, each - 1)))
                fail_msg("array %d: expert %u is there", slot, e);
        }
    }
    if (!(uses & READS_ROUTER)) {
        assert_true(!s->router.bytes && !s->router_bias.bytes);
        return;
    }
    const size_t bytes[] = {EXPERTS * HIDDEN * sizeof(gb_bf16), EXPERTS * sizeof(float)};
    assert_true(a->router && a->router_weights.codes == s->router.payload && a->router_bias == s->router_bias.payload);
    assert_true(s->router.bytes == bytes[0] && s->router_bias.bytes == bytes[1]);
    assert_true(a->router_weights.rows == EXPERTS && a->router_weights.columns == HIDDEN);
    for (int n = 0; n < 2; n++) {
        const struct altered_split parts = altered_split(bytes[n]);
        assert_true(parts.moved > 0);
        if (!is_there(n ? (const char *)a->router_bias : a->router_weights.codes,
                      n ? (const char *)l->router_bias : l->router.codes, bytes[n],
                      altered >> (SESSION_WEIGHTS + n) & 1 ? parts : (struct altered_split){bytes[n], 0}))
            fail_msg("%s%s", n ? "the router's bias" : "the router", altered ? ", altered" : "");
    }
}

static size_t workspace(const struct gb_problem *problem)
{
    round_after('w');
    return 64 * problem->shape.tokens;
}

static enum gb_status prepare(const struct gb_arguments *arguments, void **prepared, struct gb_error *error)
{
    if (looked_at && calls.fail < 0)
        look(arguments);
    assert_true(prepared_twice || !calls.prepared);
    enum gb_status status = call('p', error);
    calls.prepared += status == GB_OK;
    calls.prepares++;
    if (status == GB_OK)
        *prepared = calls.log;
    return status;
}

static void release_prepared(void *prepared)
{
    assert_true(prepared == calls.log && calls.prepared);
    calls.prepared--;
    give_back('p');
    round_after('x');
}

static int runs;
/* What it changes: the first byte of what it reads, 2: of weights, 3: beside its output, 4: beside its workspace. */
static int spoils;
static struct session *spoilt;               /* whose weights */
static const struct gb_fixture *of_run;      /* a timed run's, if it is one on a layer */
static const struct gb_fixture *of_exchange; /* of ranks */
static int stream;

static enum gb_status run(const struct gb_arguments *a, struct gb_error *error)
{
    assert_true(a->prepared == calls.log && calls.prepared);
    float *output = a->output; /* NULL where an operator has none */
    runs++;
    if (a->values)
        *(char *)a->values ^= spoils == 1;
    if (a->x)
        *(char *)a->x ^= spoils == 1;
    if (spoilt)
        *(char *)spoilt->weights[4].payload ^= 1;
    if (spoils == 3)
        output[a->shape.tokens * a->shape.hidden] = 0.0f;
    if (spoils == 4)
        ((char *)a->workspace)[-1] ^= 1;
    if (a->codes && !of_exchange)
        memset(a->codes, 0x3C, CODES_BYTES);
    if (of_exchange)
        assert_true(a->exchange == &of_exchange->exchanged.asked &&
                    !memcmp(&a->shape, &of_exchange->shape, sizeof a->shape));
    if (of_run) {
        assert_true(a->stream == &stream && a->shape.tokens == 2 && a->shape.hidden == HIDDEN);
        assert_memory_equal(a->x, of_run->layer[0].x, 2 * HIDDEN * sizeof(gb_bf16));
        assert_memory_equal(a->ids, ids, 2 * TOP_K * sizeof *ids);
        assert_true(a->gate_up.codes && a->down.codes && a->workspace);
    }
    for (size_t i = 0; output && i < (size_t)a->shape.tokens * a->shape.hidden; i++)
        output[i] = (float)(runs * 1000 + (int)i);
    return call('r', error);
}

#define KERNEL(NAME, OPERATION, OUTPUT, FLAGS)                                                                         \
    {                                                                                                                  \
        .name = NAME, .operation = OPERATION, .weights = GB_NVFP4, .activations = GB_BF16, .output = OUTPUT,           \
        .flags = FLAGS, .workspace = workspace, .prepare = prepare, .release = release_prepared, .run = run            \
    }
static const struct gb_kernel kernels[] = {
    KERNEL("layer", GB_LAYER, GB_FP32, 0),     KERNEL("routed", GB_LAYER, GB_FP32, GB_ROUTES),
    KERNEL("gate_up", GB_GATE_UP, GB_BF16, 0), KERNEL("down", GB_DOWN, GB_FP32, 0),
    KERNEL("route", GB_ROUTE, GB_FP32, 0),
};
static const struct gb_kernel captured_layer = KERNEL("captured", GB_LAYER, GB_FP32, GB_GRAPH_CAPTURABLE),
                              quantise = KERNEL("quantise", GB_QUANTISE, GB_FP32, 0),
                              dispatch = KERNEL("dispatch", GB_DISPATCH, GB_FP32, 0);
enum { KERNELS = sizeof kernels / sizeof *kernels };

/* With biases and a router that has one. */
static struct gb_fixture *layer(void)
{
    const struct gb_shape shape = {TOKENS, HIDDEN, INTERMEDIATE, EXPERTS, TOP_K};
    struct gb_fixture *f;
    struct gb_error error = {""};
    if (gb_fixture_new(&shape, 1, GB_NVFP4, true, false, false, &f, &error) != GB_OK ||
        gb_fixture_add(f, GB_EXTRA_BIASES, &error) != GB_OK || gb_fixture_add(f, GB_EXTRA_ROUTER_BIAS, &error) != GB_OK)
        fail_msg("%s", error.message);
    f->seed = 5;
    f->activation = GB_SWIGLU_OAI;
    snprintf(f->recipe, sizeof f->recipe, "%s", gb_recipe_default(GB_NVFP4)->name);
    snprintf(f->generator, sizeof f->generator, "gaussian/1");
    snprintf(f->router, sizeof f->router, "moonshotai.kimi-k2/1");
    if (gb_generate_inputs(f, &error) != GB_OK)
        fail_msg("%s", error.message);
    for (uint32_t e = 0; e < EXPERTS; e++)
        if (gb_generate_expert(f, 0, e, &error) != GB_OK)
            fail_msg("%s", error.message);
    memcpy(f->layer[0].ids, ids, sizeof ids);
    for (size_t i = 0; i < EXPERTS * 2 * INTERMEDIATE; i++)
        f->layer[0].gate_up_bias[i] = (float)i;
    for (size_t i = 0; i < EXPERTS * HIDDEN; i++)
        f->layer[0].down_bias[i] = -(float)i;
    return f;
}

/* All of a session, up to the first call that fails; *closed: how many calls there were before it was closed. */
static enum gb_status whole(const struct gb_kernel *kernel, const struct gb_fixture *f, size_t *closed,
                            unsigned *environment, struct gb_error *error)
{
    static const struct run_way way = {0xFF, GUARDED_END};
    static const gb_bf16 intermediate[TOKENS * TOP_K * INTERMEDIATE];
    const struct operator_row *row = operator_find(kernel->operation);
    const struct gb_layer *l = &f->layer[0];
    const struct operator_inputs inputs = {l->x, l->ids, l->routing_weights, intermediate};
    const uint32_t uses = operator_uses(kernel);
    struct worker_checks checks = {0}, routing = {0};
    struct session s;
    struct gb_outputs *out;
    looked_at = &s;
    away = altered = admitted = 0;
    assert_int_equal(row->new_outputs(kernel, f, TOKENS, 1, false, &out, error), GB_OK);
    enum gb_status status = chosen ? session_open_chosen(kernel, &device, f, 0, l->ids, TOKENS * TOP_K, &s, error)
                                   : session_open(kernel, &device, f, 0, &s, error);
    if (status == GB_OK)
        status = session_run(&s, TOKENS, &inputs, &out->layer[0], way, &checks, &routing, error);
    away = !(uses & READS_ROUTER);
    if (status == GB_OK)
        status = session_move(&s, true, error);
    if (status == GB_OK) /* what is moved is prepared anew */
        assert_int_equal(calls.prepares, away ? 2 : 1);
    if (status == GB_OK)
        status = session_run(&s, TOKENS - 1, &inputs, &out->layer[0], way, &checks, &routing, error);
    away = 0;
    if (status == GB_OK)
        status = session_move(&s, false, error);
    for (uint32_t n = 0; n < SESSION_ARRAYS; n++) {
        const bool has = n < 3 || n == 6       ? uses & READS_GATE_UP
                         : n < SESSION_WEIGHTS ? uses & READS_DOWN
                                               : uses & READS_ROUTER && !(chosen && uses & READS_EXPERTS);
        if (status == GB_OK && session_has(&s, n) != has)
            fail_msg("%s: array %u", kernel->name, n);
        altered = 1u << n;
        if (status == GB_OK && session_has(&s, n))
            status = session_alter(&s, altered, true, error);
        if (status == GB_OK && n % 4 == 0 && has) /* what lies elsewhere is no changed input */
            status = session_run(&s, TOKENS, &inputs, &out->layer[0], way, &checks, &routing, error);
        const uint32_t other = altered;
        altered = 0;
        if (status == GB_OK && session_has(&s, n))
            status = session_alter(&s, other, false, error);
    }
    admitted = chosen;
    if (status == GB_OK && chosen)
        status = session_admit(&s, 4, error);
    away = admitted && !(uses & READS_ROUTER);
    if (status == GB_OK && chosen)
        status = session_move(&s, true, error);
    if (status == GB_OK)
        assert_true(s.prepare_s > 0.0 && s.prepare_s < 60.0);
    *closed = calls.count;
    *environment = s.environment;
    looked_at = NULL;
    enum gb_status after = session_close(&s, &checks, &routing, error);
    gb_outputs_free(out);
    assert_false(calls.prepared);
    if (status == GB_OK && after == GB_OK)
        assert_false(checks.canary_broken || checks.input_changed || routing.canary_broken || routing.input_changed);
    return status == GB_OK ? after : status;
}

/* A run's outputs are what the kernel wrote, and whatever it changes in between is seen behind the run that did. */
static void runs_are_read_and_watched(void **state)
{
    static const struct run_way way = {0xFF, GUARDED_END};
    static const char *const where[] = {"", "x of layer 0", "down scales of layer 0", "beside output of layer 0",
                                        "beside workspace of layer 0"};
    struct gb_fixture *f = layer();
    const struct gb_layer *l = &f->layer[0];
    const struct operator_inputs inputs = {l->x, l->ids, l->routing_weights, NULL};
    (void)state;
    chosen = false;
    for (int n = 0; n < 5; n++) {
        struct worker_checks checks = {0}, routing = {0};
        struct gb_error error = {""};
        struct gb_outputs *out;
        struct session s;
        start(-1);
        assert_int_equal(operator_find(GB_LAYER)->new_outputs(&kernels[0], f, TOKENS, 1, false, &out, &error), GB_OK);
        float *output = out->layer[0].output;
        assert_int_equal(session_open(&kernels[0], &device, f, 0, &s, &error), GB_OK);
        for (int again = 0; again < 2; again++) { /* the second run changes it back */
            spoilt = n == 2 ? &s : NULL;
            spoils = n;
            runs = 40 + again;
            for (size_t i = 0; i < TOKENS * HIDDEN; i++)
                output[i] = -1.0f;
            assert_int_equal(session_run(&s, TOKENS - 1, &inputs, &out->layer[0], way, &checks, &routing, &error),
                             GB_OK);
            for (size_t i = 0; i < TOKENS * HIDDEN; i++)
                if (output[i] != (i < (TOKENS - 1) * HIDDEN ? (float)((41 + again) * 1000 + (int)i) : -1.0f))
                    fail_msg("element %zu is %g", i, (double)output[i]);
            if (strcmp(checks.where, where[n]) || checks.canary_broken != (n > 2) ||
                checks.input_changed != (n == 1 || n == 2) || *routing.where)
                fail_msg("%d, run %d: '%s', not '%s'", n, again, checks.where, where[n]);
        }
        spoils = 0;
        assert_int_equal(session_close(&s, &checks, &routing, &error), GB_OK);
        assert_string_equal(checks.where, where[n]);
        gb_outputs_free(out);
    }
    gb_fixture_free(f);
}

static void each_call_of_a_session_fails(void **state)
{
    struct gb_fixture *f = layer();
    (void)state;
    for (int k = 0; k < 2 * KERNELS; k++) {
        const struct gb_kernel *kernel = &kernels[k / 2];
        chosen = k & 1;
        struct gb_error error = {""};
        char all[sizeof calls.log];
        size_t closed, end;
        unsigned environment;
        start(-1);
        if (whole(kernel, f, &end, &environment, &error) != GB_OK)
            fail_msg("%s", error.message);
        assert_int_equal(environment, 0);
        assert_int_equal(calls.live, 0);
        memcpy(all, calls.log, sizeof all);
        const size_t count = calls.count;
        for (size_t n = 0; n < count; n++) {
            char right[64];
            start((int)n);
            error.message[0] = '\0';
            enum gb_status status = whole(kernel, f, &closed, &environment, &error);
            snprintf(right, sizeof right, "call %zu, %c", n, all[n]);
            if (status != GB_EIO || strcmp(error.message, right) || memcmp(all, calls.log, n + 1) ||
                closed != (n < end ? n + 1 : end) || calls.live != 0)
                fail_msg("%s, call %zu of %zu: status %d, \"%s\", %zu calls before it was closed, %zu left: %.60s",
                         kernel->name, n, count, (int)status, error.message, closed, calls.live, calls.log + n);
        }
        for (size_t n = 0; n + 1 < end; n++) /* all work is waited for */
            assert_true((all[n] != 'p' && all[n] != 'r') || all[n + 1] == 's');
        for (int i = 0; i < 8; i++) { /* a kernel that leaves another rounding behind, once or always */
            const char *which = &"wpxr"[i / 2];
            start(-1);
            calls.rounds = *which;
            calls.once = i % 2;
            assert_int_equal(whole(kernel, f, &end, &environment, &error), GB_OK);
            if (environment != ENVIRONMENT_ROUNDING || environment_reset())
                fail_msg("%s: of a rounding left by %c %x was seen", kernel->name, *which, environment);
        }
    }
    gb_fixture_free(f);
}

/* What is seen first is told, of arrays with a layer and without; how many bytes are few. */
static void what_is_seen_is_noted(void **state)
{
    struct worker_checks checks = {0}, other = {0};
    struct session s = {.router = {.bytes = 1}};
    (void)state;
    array_note(&other, &other.input_changed, "", "values", -1);
    assert_true(other.input_changed && !other.canary_broken);
    assert_string_equal(other.where, "values");
    for (int n = 0; n < 3; n++) {
        array_note(&checks, n == 1 ? &checks.input_changed : &checks.canary_broken, "beside ", n ? "y" : "x", n);
        assert_true(checks.canary_broken && checks.input_changed == (n > 0));
        assert_string_equal(checks.where, "beside x of layer 0");
    }
    array_note(&other, &other.canary_broken, "beside ", "x", 0);
    assert_string_equal(other.where, "values");
    assert_true(session_has(&s, SESSION_WEIGHTS) && !session_has(&s, SESSION_WEIGHTS + 1));
    for (int slot = 0; slot < SESSION_WEIGHTS; slot++) {
        s.weights[slot].bytes = (1 << 26) - 2;
        s.weights[SESSION_WEIGHTS - 1 - slot].bytes += 2;
        assert_true(session_is_small(&s));
        s.weights[slot].bytes++;
        assert_false(session_is_small(&s));
        memset(s.weights, 0, sizeof s.weights);
    }
}

/* How many weights a session reads, and what is told of an array that a kernel changed, or wrote beside. */
static void weights_are_counted_and_watched(void **state)
{
    static const char *const names[SESSION_ARRAYS] = {
        "gate_up codes", "gate_up scales", "gate_up global scales", "down codes", "down scales", "down global scales",
        "gate_up bias",  "down bias",      "router weights",        "router bias"};
    enum { EACH = 3 * INTERMEDIATE * HIDDEN, BYTES = EACH / 2 + EACH / 16 + 4 * (3 + 2 * INTERMEDIATE + HIDDEN) };
    struct gb_fixture *f = layer();
    (void)state;
    start(-1);
    for (int k = 0; k < 4; k++)
        for (uint32_t n = 0; n < 3 * SESSION_ARRAYS; n++) {
            const struct gb_kernel *kernel = &kernels[k / 2];
            const uint32_t array = n % SESSION_ARRAYS, experts = k % 2 ? 3 : EXPERTS;
            const bool router = array >= SESSION_WEIGHTS, routes = kernel->flags & GB_ROUTES;
            struct worker_checks checks = {0}, routing = {0};
            struct session s;
            struct gb_error error = {""};
            uint64_t weights, bytes;
            char where[64] = "";
            if (router && !routes)
                continue;
            assert_int_equal(k % 2 ? session_open_chosen(kernel, &device, f, 0, ids, TOKENS * TOP_K, &s, &error)
                                   : session_open(kernel, &device, f, 0, &s, &error),
                             GB_OK);
            session_weights(&s, &weights, &bytes);
            assert_int_equal(weights, experts * EACH + (routes ? EXPERTS * HIDDEN : 0));
            assert_int_equal(bytes, experts * BYTES + (routes ? EXPERTS * (2 * HIDDEN + 4) : 0));
            struct guarded *of = array < SESSION_WEIGHTS    ? &s.weights[array]
                                 : array == SESSION_WEIGHTS ? &s.router
                                                            : &s.router_bias;
            char *payload = of->payload;
            const size_t each = of->bytes / EXPERTS;
            if (n < SESSION_ARRAYS) /* the last byte of expert 3, the first of 0, and one of 2 who may not be in use */
                payload[4 * each - 1] ^= 1;
            else if (n < 2 * SESSION_ARRAYS)
                payload[n % 2 ? -1 : (int)of->bytes] ^= 1;
            else
                payload[2 * each] ^= 1;
            if (n < 2 * SESSION_ARRAYS || k % 2 == 0 || router)
                snprintf(where, sizeof where, "%s%s of layer 0", n / SESSION_ARRAYS == 1 ? "beside " : "",
                         names[array]);
            assert_int_equal(session_close(&s, &checks, &routing, &error), GB_OK);
            const struct worker_checks *told = router ? &routing : &checks, *other = router ? &checks : &routing;
            if (strcmp(told->where, where) || *other->where || told->canary_broken != (n / SESSION_ARRAYS == 1) ||
                told->input_changed != (*where && n / SESSION_ARRAYS != 1) || other->canary_broken ||
                other->input_changed)
                fail_msg("%s, %u: '%s' and '%s', not '%s'", kernel->name, n, told->where, other->where, where);
        }
    gb_fixture_free(f);
}

/* The clock. */

static enum gb_status clock_start(void *timer, struct gb_error *error)
{
    assert_ptr_equal(timer, &calls);
    return call('<', error);
}

static enum gb_status clock_stop(void *timer, double *seconds, struct gb_error *error)
{
    (void)timer;
    *seconds = (double)calls.count;
    return call('>', error);
}

static enum gb_status clock_replay(void *timer, void *graph, struct gb_error *error)
{
    (void)timer;
    return call(*(char *)graph, error);
}

static void clock_discard(void *graph)
{
    give_back(*(char *)graph);
}

static void clock_close(void *timer)
{
    assert_ptr_equal(timer, &calls);
    give_back('c');
}

static const char *arena;

static enum gb_status clock_read(void *timer, const void *from, size_t bytes, struct gb_error *error)
{
    (void)timer;
    assert_true(calls.reads < 64);
    calls.read[calls.reads][0] = (size_t)((const char *)from - arena);
    calls.read[calls.reads++][1] = bytes;
    return call('R', error);
}

static const struct gb_timer fake_clock = {.start = clock_start,
                                           .stop = clock_stop,
                                           .replay = clock_replay,
                                           .discard = clock_discard,
                                           .close = clock_close,
                                           .read = clock_read};

static size_t cache, asked; /* what the clock says, and what is asked for in its place */

static enum gb_status clock_cache(size_t *bytes, struct gb_error *error)
{
    *bytes = cache;
    return call('b', error);
}

static enum gb_status clock_open(void **timer, void **to, struct gb_error *error)
{
    enum gb_status status = call('o', error);
    *timer = status == GB_OK ? &calls : NULL;
    *to = &stream;
    return status;
}

static enum gb_status clock_capture(void *timer, struct gb_error *error)
{
    assert_ptr_equal(timer, &calls);
    return call('C', error);
}

static enum gb_status clock_captured(void *timer, void **graph, size_t *launches, struct gb_error *error)
{
    static char graphs[] = "yz";
    static int next;
    assert_ptr_equal(timer, &calls);
    *graph = &graphs[next++ % 2];
    *launches = 7;
    return call('E', error);
}

static const struct gb_timer whole_clock = {.cache_bytes = clock_cache,
                                            .open = clock_open,
                                            .capture = clock_capture,
                                            .captured = clock_captured,
                                            .start = clock_start,
                                            .stop = clock_stop,
                                            .replay = clock_replay,
                                            .discard = clock_discard,
                                            .close = clock_close,
                                            .read = clock_read};

enum gb_status __wrap_subject_timer(const struct gb_kernel *kernel, const struct gb_timer **timer,
                                    struct gb_error *error);
enum gb_status __wrap_subject_timer(const struct gb_kernel *kernel, const struct gb_timer **timer,
                                    struct gb_error *error)
{
    (void)kernel;
    *timer = &whole_clock;
    return call('t', error);
}

/* What is timed, from its first call to its last: of a layer on copies of the weights in use, of others on copies of
 * their rows; in graphs where the kernel's runs may be captured. */
struct opened {
    const struct gb_kernel *kernel;
    bool hot;
    uint32_t copies, runs, launches;
    uint64_t weights, bytes, large_bytes;
    const char *calls; /* some of those that open it, and a sample's, behind what poisons */
};

static enum gb_status open_and_sample(const struct opened *of, const struct gb_fixture *f, size_t *closed,
                                      struct gb_error *error)
{
    const bool layers = operator_find(of->kernel->operation)->layers;
    const struct gb_layer *l = layers ? &f->layer[0] : NULL;
    const struct operator_inputs inputs = {layers ? l->x : NULL, ids, layers ? l->routing_weights : NULL, NULL};
    const struct timing_request request = {.samples = 1, .hot = of->hot, .cache = asked};
    struct worker_checks checks = {0}, routing = {0};
    struct timing timing;
    struct timing_sample found;
    struct timed t;
    of_run = layers ? f : NULL;
    prepared_twice = true;
    enum gb_status status = timed_open(of->kernel, &device, f, layers ? 2 : f->shape.tokens, layers ? &inputs : NULL,
                                       layers ? ids : NULL, &request, &t, &timing, error);
    arena = t.arena.payload;
    if (status == GB_OK) {
        const uint32_t *bits = t.arena.payload;
        if (timing.copies != of->copies || timing.runs != of->runs || timing.launches != of->launches ||
            timing.weights != of->weights || timing.bytes != of->bytes || timing.large_bytes != of->large_bytes ||
            timing.cache_bytes != (asked ? asked : cache) || !(timing.prepare_s > 0.0 && timing.prepare_s < 60.0))
            fail_msg("%s: %u copies, %u runs, %u launches, %llu weights, %llu bytes, %llu in a large read, %g s",
                     of->kernel->name, timing.copies, timing.runs, timing.launches, (unsigned long long)timing.weights,
                     (unsigned long long)timing.bytes, (unsigned long long)timing.large_bytes, timing.prepare_s);
        for (uint64_t i = 1; calls.fail < 0 && i < of->large_bytes / 4; i++) /* 2^32 of them differ */
            assert_true(bits[i] == (i % (1 << 18) ? bits[i - 1] * 1664525u + 1013904223u : bits[0]));
        for (uint64_t i = 0; calls.fail < 0 && t.copied && i < of->large_bytes; i++)
            assert_int_equal(((uint8_t *)t.target.payload)[i], 0xFF);
    }
    runs = 0;
    if (status == GB_OK)
        status = timed_sample(&t, &found, error);
    if (status == GB_OK && t.copied)
        assert_memory_equal(t.target.payload, t.arena.payload, of->large_bytes);
    *closed = calls.count;
    enum gb_status after = timed_close(&t, &checks, &routing, error);
    of_run = NULL;
    assert_int_equal(calls.prepared, 0);
    return status == GB_OK ? after : status;
}

static void each_call_of_a_timed_run_fails(void **state)
{
    enum {
        BYTES =
            3 * (3 * INTERMEDIATE * HIDDEN / 2 + 3 * INTERMEDIATE * HIDDEN / 16 + 4 * (3 + 2 * INTERMEDIATE + HIDDEN))
    };
    struct gb_fixture *f = layer(), *exchanged = two_ranks();
    const uint64_t rows = exchanged->exchanged.asked.rows, moved = rows * (32 / 2 + 32 / 16);
    const struct opened opened[] = {
        {&kernels[0], false, 100028 / BYTES + 1, 100028 / BYTES + 1, 0, 9 * INTERMEDIATE * HIDDEN, BYTES,
         (100028 / BYTES + 1) * BYTES / 16 * 16, "s<R>"},
        {&kernels[0], true, 1, 8, 0, 9 * INTERMEDIATE * HIDDEN, BYTES, 100016,
         "s<R>RRRRRRRR<RRRRRRRR>rrrrrrrr<rrrrrrrr>s"},
        {&captured_layer, true, 1, 8, 1, 9 * INTERMEDIATE * HIDDEN, BYTES, 100016,
         "sCrrrrrrrrECRRRRRRRREus<R>z<z>y<y>s"},
        {&dispatch, true, 1, 8, 0, 0, moved, 100016, "s<>"},
        {&dispatch, false, MOST_COPIES, MOST_COPIES, 0, 0, moved, 100016, "s<>"},
        {&kernels[0], true, 1, 8, 0, 9 * INTERMEDIATE * HIDDEN, BYTES, 1200000, "s<R>"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof opened / sizeof *opened; i++) {
        const struct opened *of = &opened[i];
        const struct gb_fixture *on = of->kernel == &dispatch ? exchanged : f;
        struct gb_error error = {""};
        char all[sizeof calls.log];
        size_t closed, end;
        cache = of->large_bytes == 1200000 ? 300003 : 25007;
        start(-1);
        if (open_and_sample(of, on, &end, &error) != GB_OK)
            fail_msg("%s", error.message);
        assert_int_equal(calls.live, 0);
        memcpy(all, calls.log, sizeof all);
        if (!strstr(all, of->calls))
            fail_msg("%s: no %s in %s", of->kernel->name, of->calls, all);
        for (const char *which = "wp"; *which; which++) { /* is put right before the device is called again */
            start(-1);
            calls.rounds = *which;
            assert_int_equal(open_and_sample(of, on, &closed, &error), GB_OK);
        }
        const size_t count = cache == 25007 ? strlen(all) : 0;
        for (size_t n = 0; n < count; n += of->copies == MOST_COPIES ? 97 : 1) {
            char right[64];
            start((int)n);
            error.message[0] = '\0';
            enum gb_status status = open_and_sample(of, on, &closed, &error);
            snprintf(right, sizeof right, "call %zu, %c", n, all[n]);
            /* What is captured is ended. */
            const size_t more = n < end && closed == n + 2 && calls.log[n + 1] == 'E' ? 1 : 0;
            if (status != GB_EIO || strcmp(error.message, right) || memcmp(all, calls.log, n + 1) ||
                closed != (n < end ? n + 1 + more : end) || calls.live != 0)
                fail_msg("%s, call %zu of %zu: status %d, \"%s\", %zu calls, %zu left: %.60s", of->kernel->name, n,
                         count, (int)status, error.message, closed, calls.live, calls.log + n);
        }
    }
    struct gb_error error = {""};
    size_t closed;
    asked = 25007;
    start(-1);
    assert_int_equal(open_and_sample(&opened[0], f, &closed, &error), GB_OK);
    assert_null(strchr(calls.log, 'b'));
    asked = 0;
    gb_fixture_free(f);
    gb_fixture_free(exchanged);
}

/* Operators without layers: one run between what is prepared and released. */
static void each_call_of_a_quantiser_fails(void **state)
{
    static const struct run_way way = {0xFF, GUARDED_END};
    struct gb_fixture *f = three_rows();
    struct gb_error error = {""};
    char all[sizeof calls.log];
    size_t count = 0;
    (void)state;
    prepared_twice = false;
    for (int n = -5; n < (int)count; n++) { /* below 0: another rounding left behind; -5: and an input changed */
        struct gb_outputs *out;
        struct worker_checks checks = {0};
        char right[64] = "";
        start(n);
        calls.rounds = n < 0 ? "rwpxr"[n + 5] : 0;
        spoils = n == -5 ? 1 : 0;
        error.message[0] = '\0';
        assert_int_equal(gb_outputs_new_codes(&f->quantisation, &out, &error), GB_OK);
        enum gb_status status = session_run_arrays(&quantise, &device, f, f->shape.tokens, way, out, &checks, &error);
        assert_int_equal(environment_reset(), 0);
        assert_true(calls.live == 0 && !calls.prepared);
        if (n < 0) {
            assert_int_equal(status, GB_OK);
            for (int i = 0; i < CODES_BYTES + 1; i++)
                assert_int_equal(((uint8_t *)out->codes)[i], i < CODES_BYTES ? 0x3C : 0xFF);
            assert_true(checks.input_changed == (spoils == 1) && !checks.canary_broken);
            assert_string_equal(checks.where, spoils ? "values" : "");
            memcpy(all, calls.log, sizeof all);
            count = calls.count;
            assert_non_null(strstr(all, "prs"));
        } else {
            snprintf(right, sizeof right, "call %d, %c", n, all[n]);
            if (status != GB_EIO || strcmp(error.message, right) || memcmp(all, calls.log, (size_t)n + 1) ||
                calls.count != (size_t)n + 1)
                fail_msg("call %d of %zu: status %d, \"%s\": %s", n, count, (int)status, error.message, calls.log + n);
        }
        gb_outputs_free(out);
    }
    spoils = 0;
    gb_fixture_free(f);
    /* What ranks send has their sizes. */
    struct gb_outputs *out;
    struct worker_checks checks = {0};
    f = two_ranks();
    start(-1);
    of_exchange = f;
    assert_int_equal(gb_outputs_new_dispatch(&f->exchanged.asked, &out, &error), GB_OK);
    assert_int_equal(session_run_arrays(&dispatch, &device, f, f->shape.tokens, way, out, &checks, &error), GB_OK);
    assert_true(!checks.input_changed && !checks.canary_broken && calls.live == 0);
    of_exchange = NULL;
    gb_outputs_free(out);
    gb_fixture_free(f);
}

/* Copies of a layer's arrays, timed: up to the first call that fails. */
struct sampled {
    const char *what;
    bool hot, graphs;
    uint32_t launches;
    const char *calls; /* of a sample, behind what poisons */
};

static enum gb_status sample(const struct sampled *of, const struct gb_fixture *f, size_t *begun, size_t *closed,
                             struct gb_error *error)
{
    static const struct run_way way = {0x11, GUARDED_END};
    static char graphs[] = "yz";
    const struct gb_kernel *kernel = &kernels[0];
    const struct gb_layer *l = &f->layer[0];
    const struct operator_inputs inputs = {l->x, l->ids, l->routing_weights, NULL};
    struct worker_checks checks = {0}, routing = {0};
    struct timing timing = {.copies = of->hot ? 1 : 2,
                            .runs = of->hot ? 3 : 2,
                            .launches = of->launches,
                            .bytes = 7 * 16 + 5,
                            .large_bytes = 256};
    struct timed t = {.kernel = kernel,
                      .memory = &device,
                      .clock = &fake_clock,
                      .timer = &calls,
                      .copy = calloc(MOST_COPIES, sizeof *t.copy),
                      .timing = &timing,
                      .run_graph = of->graphs ? &graphs[0] : NULL,
                      .read_graph = of->graphs ? &graphs[1] : NULL,
                      .hot = of->hot};
    const int fail = calls.fail;
    calls.fail = -1;
    prepared_twice = true;
    assert_int_equal(guarded_new(&device, 256, GUARDED_END, 0, &t.arena, error), GB_OK);
    arena = t.arena.payload;
    for (uint32_t n = 0; n < timing.copies; n++) {
        struct timed_copy *c = &t.copy[n];
        c->arrays = (struct array_run){
            .row = operator_find(GB_LAYER), .kernel = kernel, .uses = operator_uses(kernel), .inputs = &inputs};
        c->arguments = gb_layer_arguments(f, 0, TOKENS);
        c->arguments.prepared = calls.log;
        calls.prepared++;
        assert_int_equal(array_run_new(&c->arrays, &device, f, TOKENS, 32, way, &c->arguments, error), GB_OK);
    }
    *begun = calls.count;
    calls.fail = fail < 0 ? -1 : fail + (int)calls.count;
    runs = 0;
    struct timing_sample found = {0};
    enum gb_status status = timed_sample(&t, &found, error);
    *closed = calls.count;
    calls.fail = -1;
    assert_int_equal(environment_reset(), 0);
    if (status == GB_OK) { /* each where its stop is among the calls */
        const char *at = calls.log + *begun, *ends[3];
        for (int i = 0; i < 3; i++)
            ends[i] = at = strchr(at, '>') + 1;
        assert_true(found.large_s == (double)(ends[0] - 1 - calls.log) &&
                    found.read_s == (double)(ends[1] - 1 - calls.log) &&
                    found.run_s == (double)(ends[2] - 1 - calls.log));
    }
    for (uint32_t n = 0; status == GB_OK && n < timing.copies; n++) {
        struct gb_outputs *out;
        assert_int_equal(operator_find(GB_LAYER)->new_outputs(kernel, f, TOKENS, 1, false, &out, error), GB_OK);
        assert_int_equal(timed_read(&t, n, &out->layer[0], error), GB_OK);
        const float *output = out->layer[0].output;
        for (size_t i = 0; i < TOKENS * HIDDEN; i++) /* what its last run wrote, or poison */
            if (of->graphs ? memcmp(&output[i], &(uint32_t){0xFFFFFFFF}, 4)
                           : output[i] != (float)((of->hot ? 6 : (int)n + 1) * 1000 + (int)i))
                fail_msg("%s, copy %u: element %zu is %g", of->what, n, i, (double)output[i]);
        gb_outputs_free(out);
    }
    assert_int_equal(timed_close(&t, &checks, &routing, error), GB_OK);
    assert_int_equal(calls.prepared, 0);
    assert_false(checks.canary_broken || checks.input_changed || routing.canary_broken || routing.input_changed);
    return status;
}

static void each_call_of_a_sample_fails(void **state)
{
    static const struct sampled samples[] = {
        {"cold", false, false, 1, "<R><RR><rr>s"},     {"cold, three launches", false, false, 3, "<R><RRRRRR><rr>s"},
        {"cold graphs", false, true, 3, "<R><z><y>s"}, {"hot", true, false, 0, "<R>RRR<RRR>rrr<rrr>s"},
        {"hot graphs", true, true, 2, "<R>z<z>y<y>s"},
    };
    struct gb_fixture *f = layer();
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const struct sampled *of = &samples[i];
        struct gb_error error = {""};
        char right[64], back[16], all[sizeof calls.log];
        size_t begun, closed;
        start(-1);
        calls.rounds = i % 2 ? '>' : 'r';
        if (sample(of, f, &begun, &closed, &error) != GB_OK)
            fail_msg("%s", error.message);
        environment_reset();
        snprintf(right, sizeof right, "%ss%s", of->hot ? "u" : "uu", of->calls); /* each copy's output is poisoned */
        if (closed - begun != strlen(right) || memcmp(calls.log + begun, right, closed - begun))
            fail_msg("%s: %.*s, not %s", of->what, (int)(closed - begun), calls.log + begun, right);
        snprintf(back, sizeof back, "%s%sc", of->graphs ? "yz" : "", of->hot ? "p" : "pp");
        assert_string_equal(calls.back, back);
        assert_int_equal(calls.live, 0);
        /* A pass over all of the arena, then pieces of whole units of it, one behind the other, of each copy. */
        assert_true(calls.read[0][0] == 0 && calls.read[0][1] == 256);
        const uint32_t launches = of->launches ? of->launches : 1;
        for (size_t r = 1; !of->graphs && r < calls.reads; r++) {
            const size_t n = r - 1, l = n % launches, copy = of->hot ? 0 : n / launches;
            const size_t first = 7 * l / launches * 16, last = 7 * (l + 1) / launches * 16;
            if (calls.read[r][0] != copy * 7 * 16 + first || calls.read[r][1] != last - first)
                fail_msg("%s: read %zu is of %zu bytes at %zu", of->what, r, calls.read[r][1], calls.read[r][0]);
        }
        memcpy(all, calls.log, sizeof all);
        const size_t count = closed - begun;
        for (size_t n = 0; n < count; n++) {
            start((int)n);
            error.message[0] = '\0';
            enum gb_status status = sample(of, f, &begun, &closed, &error);
            if (status != GB_EIO || closed != begun + n + 1 || memcmp(all, calls.log, closed) || calls.live != 0 ||
                strncmp(error.message, "call ", 5))
                fail_msg("%s, call %zu: status %d, \"%s\", then %.*s", of->what, n, (int)status, error.message,
                         (int)(closed - begun), calls.log + begun);
        }
    }
    gb_fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_are_read_and_watched),      cmocka_unit_test(what_is_seen_is_noted),
        cmocka_unit_test(each_call_of_a_session_fails),   cmocka_unit_test(weights_are_counted_and_watched),
        cmocka_unit_test(each_call_of_a_quantiser_fails), cmocka_unit_test(each_call_of_a_sample_fails),
        cmocka_unit_test(each_call_of_a_timed_run_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
