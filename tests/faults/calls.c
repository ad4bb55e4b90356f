/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference's kernels, which leave a line of every call in the file GB_CALLS: what they are given, and where it
 * lies. The call that GB_CALLS_FAIL names fails, "run 3". Of an array that is: its name; the start of a hash of what is
 * in it; how many bytes before and behind it can be read, with a hash of each; and, where its address may be one that
 * it had before, which one of those that were seen.
 */
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "quant/quant.h"
#include "tests/faults/call_log.h"
#include "tests/support/fma32.h"

enum { PAGE = 4096, FAR = 1 << 15, CANARY = 1 << 14, WORKSPACE = (1 << 16) + 100, MOST_SEEN = 64 };

static bool is_readable(const char *byte)
{
    static int ends[2];
    char back;
    if (!ends[1] && pipe(ends))
        abort();
    return write(ends[1], byte, 1) == 1 && read(ends[0], &back, 1) == 1;
}

static size_t readable_before(const char *start)
{
    size_t count = 0;
    while (count < FAR && is_readable(start - count - 1)) {
        size_t rest = (uintptr_t)(start - count) % PAGE;
        count += rest ? rest : PAGE;
    }
    return count < FAR ? count : FAR;
}

static size_t readable_behind(const char *end)
{
    size_t count = 0;
    while (count < FAR && is_readable(end + count))
        count += PAGE - (uintptr_t)(end + count) % PAGE;
    return count < FAR ? count : FAR;
}

/* Which of the array's addresses it is. */
static int address_of(unsigned array, const void *address)
{
    static const void *seen[32][MOST_SEEN];
    int i = 0;
    while (i + 1 < MOST_SEEN && seen[array][i] && seen[array][i] != address)
        i++;
    seen[array][i] = address;
    return i;
}

/* number: of the array. */
static void log_array(unsigned number, const char *name, const void *array, size_t bytes)
{
    const char *start = array;
    if (!array)
        return;
    size_t before = readable_before(start), behind = readable_behind(start + bytes);
    call_log(" | %s %zu %06x", name, bytes, call_hash(start, bytes) >> 8);
    call_log(" %zu %03x", before, call_hash(start - before, before) >> 20);
    call_log(" %zu %03x", behind, call_hash(start + bytes, behind) >> 20);
    if (before == CANARY && behind >= CANARY)
        call_log(" at %d", address_of(number, array));
}

static void log_weights(unsigned number, const char *name, const struct gb_weights *w)
{
    size_t codes = 0, scales = 0, globals = 0;
    struct gb_error ignored;
    if (!w->codes || gb_weights_bytes(w, &codes, &scales, &globals, &ignored) != GB_OK)
        return;
    call_log(" | %s %u x %u x %u", name, w->experts, w->rows, w->columns);
    log_array(number, "codes", w->codes, codes);
    log_array(number + 1, "scales", w->scales, scales);
    log_array(number + 2, "globals", w->global_scales, globals);
}

static void log_layer(const struct gb_arguments *a)
{
    const struct gb_shape *s = &a->shape;
    const size_t hidden = (size_t)s->tokens * s->hidden, pairs = (size_t)s->tokens * s->top_k;
    const size_t inner = pairs * s->intermediate, rows = (size_t)s->experts * sizeof(float);
    log_array(0, "x", a->x, hidden * sizeof *a->x);
    log_array(1, "ids", a->ids, pairs * sizeof *a->ids);
    log_array(2, "routing weights", a->routing_weights, pairs * sizeof *a->routing_weights);
    log_weights(3, "gate_up", &a->gate_up);
    log_weights(6, "down", &a->down);
    log_array(9, "gate_up bias", a->gate_up_bias, 2 * s->intermediate * rows);
    log_array(10, "down bias", a->down_bias, s->hidden * rows);
    log_weights(11, "router", &a->router_weights);
    log_array(14, "router bias", a->router_bias, rows);
    log_array(15, "intermediate", a->intermediate, inner * sizeof *a->intermediate);
    log_array(16, "output", a->output, hidden * sizeof(float));
    log_array(17, "routed ids", a->routed_ids, pairs * sizeof *a->routed_ids);
    log_array(18, "routed weights", a->routed_weights, pairs * sizeof *a->routed_weights);
    log_array(19, "x codes", a->x_codes, hidden / 2); /* NVFP4 */
    log_array(20, "x scales", a->x_scales, hidden / 16);
    log_array(21, "intermediate codes", a->intermediate_codes, inner / 2);
    log_array(22, "intermediate scales", a->intermediate_scales, inner / 16);
    call_log(" | activation %d, scales %.9g %.9g%s%s", (int)a->activation, (double)a->x_scale,
             (double)a->intermediate_scale, a->activation_rules ? ", rules" : "", a->router ? ", router" : "");
}

/* What is sent is bf16. */
static void log_exchange(const struct gb_arguments *a)
{
    const struct gb_exchange *x = a->exchange;
    const size_t tokens = (size_t)x->ranks * x->tokens, slots = tokens * x->top_k, moved = (size_t)x->rows * x->hidden;
    log_array(0, "x", a->x, tokens * x->hidden * sizeof *a->x);
    log_array(1, "ids", a->ids, slots * sizeof *a->ids);
    log_array(2, "routing weights", a->routing_weights, slots * sizeof *a->routing_weights);
    log_array(3, "placement", a->placement, x->experts * sizeof *a->placement);
    log_array(4, "rows", a->values, moved * sizeof(gb_bf16));
    log_array(5, "counts", a->counts, (size_t)x->ranks * x->experts * sizeof *a->counts);
    log_array(6, "routes", a->routes, x->rows * sizeof *a->routes);
    log_array(7, "codes", a->codes, moved * sizeof(gb_bf16));
    log_array(8, "output", a->output, tokens * x->hidden * sizeof(float));
}

/* To E2M1 with scales of one byte. */
static void log_quantise(const struct gb_arguments *a)
{
    const struct gb_quantisation *q = a->quantise;
    const size_t count = (size_t)q->rows * q->columns;
    call_log(" | %u rows", q->rows);
    log_array(0, "values", a->values, (size_t)q->rows * q->input_columns * sizeof(gb_bf16));
    log_array(1, "codes", a->codes, count / 2);
    log_array(2, "scales", a->scales, count / q->quantiser.block_columns);
}

static void log_call(const char *name, const struct gb_arguments *a)
{
    call_log("%s of %u tokens, %u x %u, top %u of %u", name, a->shape.tokens, a->shape.hidden, a->shape.intermediate,
             a->shape.top_k, a->shape.experts);
    if (a->exchange)
        log_exchange(a);
    else if (a->quantise)
        log_quantise(a);
    else
        log_layer(a);
    log_array(31, "workspace", a->workspace, WORKSPACE);
    call_log("%s\n", a->prepared ? " | prepared" : "");
}

/* "powers EFFECTIVE BOUNDING", in hexadecimal. */
static void log_powers(void)
{
    char line[256], effective[32] = "", bounding[32] = "";
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof line, file)) {
        sscanf(line, "CapEff: %31s", effective);
        sscanf(line, "CapBnd: %31s", bounding);
    }
    if (file)
        fclose(file);
    call_log("powers %s %s\n", effective, bounding);
}

/* What malloc hands out, and what the process may use: of processor time so long on each processor, and 10 s. */
static void log_process(void)
{
    const long long processors = sysconf(_SC_NPROCESSORS_CONF);
    struct rlimit core, seconds, bytes;
    volatile uint8_t *fresh = malloc(1000);
    if (!fresh || getrlimit(RLIMIT_CORE, &core) || getrlimit(RLIMIT_CPU, &seconds) || getrlimit(RLIMIT_FSIZE, &bytes))
        abort();
    const long long left = (long long)seconds.rlim_cur - 10;
    call_log(
        "a process with memory of %02x, cores of %llu bytes, files of %llu bytes, %lld s of each processor and %lld\n",
        fresh[500], (unsigned long long)core.rlim_cur, (unsigned long long)bytes.rlim_cur, left / processors,
        left % processors);
    free((void *)fresh);
}

static enum gb_status supports(const struct gb_problem *p, struct gb_error *error)
{
    (void)error;
    log_process();
    log_powers();
    call_log("problem of %u tokens, %u x %u, top %u of %u, weights %d, activation %d%s%s%s%s%s\n", p->shape.tokens,
             p->shape.hidden, p->shape.intermediate, p->shape.top_k, p->shape.experts, (int)p->weights,
             (int)p->activation, p->biased ? ", biased" : "", p->router ? ", router" : "",
             p->activation_rules ? ", rules" : "", p->quantise ? ", quantisation" : "",
             p->exchange ? ", exchange" : "");
    return GB_OK;
}

static size_t workspace(const struct gb_problem *problem)
{
    call_log("workspace for %u tokens%s\n", problem->quantise ? problem->quantise->rows : problem->shape.tokens,
             problem->exchange ? " between ranks" : "");
    return WORKSPACE;
}

/* Whether this call of its kind fails. asked: how many there were. */
static bool fails(const char *kind, unsigned long *asked, struct gb_error *error)
{
    const char *named = getenv("GB_CALLS_FAIL");
    const size_t length = strlen(kind);
    if (!named || strncmp(named, kind, length) || ++*asked != strtoul(named + length, NULL, 10))
        return false;
    call_log("fails\n");
    gb_fail(error, GB_EDEVICE, "%s fails", named);
    return true;
}

static enum gb_status prepare(const struct gb_arguments *arguments, void **prepared, struct gb_error *error)
{
    static unsigned long asked;
    *prepared = malloc(1);
    log_call("prepare", arguments);
    if (fails("prepare", &asked, error)) {
        free(*prepared);
        *prepared = NULL;
        return GB_EDEVICE;
    }
    return *prepared ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory");
}

static void release(void *prepared)
{
    call_log("release\n");
    free(prepared);
}

#define RUN(OPERATOR, FUNCTION)                                                                                        \
    static enum gb_status run_##OPERATOR(const struct gb_arguments *a, struct gb_error *error)                         \
    {                                                                                                                  \
        static unsigned long asked;                                                                                    \
        log_call(#OPERATOR, a);                                                                                        \
        return fails("run", &asked, error) ? GB_EDEVICE : FUNCTION(a, error);                                          \
    }
RUN(layer, fma32_layer)
RUN(routed_layer, fma32_routed_layer)
RUN(gate_up, fma32_gate_up)
RUN(down, fma32_down)
RUN(route, fma32_router)
RUN(quantise, gb_reference_quantise)
RUN(dispatch, gb_reference_dispatch)
RUN(combine, gb_reference_combine)

/* Right in as many calls as there are before one is timed. */
static enum gb_status run_later(const struct gb_arguments *a, struct gb_error *error)
{
    static unsigned calls;
    enum gb_status status = fma32_layer(a, error);
    if (calls++ >= 5)
        *(uint32_t *)a->output ^= 1;
    return status;
}

#define KERNEL(NAME, OPERATION, ACTIVATIONS, ORDER, FLAGS, RUN)                                                        \
    {                                                                                                                  \
        .name = "calls/" NAME, .operation = OPERATION, .weights = GB_NVFP4, .activations = ACTIVATIONS,                \
        .output = GB_FP32, .order = ORDER, .accumulator_bits = 24, .flags = FLAGS, .supports = supports,               \
        .workspace = workspace, .prepare = prepare, .release = release, .run = RUN                                     \
    }

GB_API const struct gb_kernel_table *gb_kernels(void);

const struct gb_kernel_table *gb_kernels(void)
{
    static const struct gb_kernel kernels[] = {
        KERNEL("layer", GB_LAYER, GB_BF16, GB_ORDER_FMA32, GB_STAGE_OUTPUTS | GB_LAYER_EXTENSIONS, run_layer),
        KERNEL("quantised", GB_LAYER, GB_NVFP4, GB_ORDER_FMA32, GB_STAGE_OUTPUTS, run_layer),
        KERNEL("routed", GB_LAYER, GB_BF16, GB_ORDER_FMA32, GB_ROUTES, run_routed_layer),
        KERNEL("gate_up", GB_GATE_UP, GB_BF16, GB_ORDER_FMA32, GB_LAYER_EXTENSIONS, run_gate_up),
        KERNEL("down", GB_DOWN, GB_BF16, GB_ORDER_FMA32, GB_LAYER_EXTENSIONS, run_down),
        KERNEL("route", GB_ROUTE, GB_BF16, GB_ORDER_FMA32, 0, run_route),
        KERNEL("quantise", GB_QUANTISE, GB_BF16, NULL, 0, run_quantise),
        KERNEL("dispatch", GB_DISPATCH, GB_BF16, NULL, 0, run_dispatch),
        KERNEL("combine", GB_COMBINE, GB_BF16, GB_ORDER_SLOTS, 0, run_combine),
        KERNEL("later", GB_LAYER, GB_BF16, GB_ORDER_FMA32, 0, run_later),
        KERNEL("ordered", GB_LAYER, GB_BF16, "mine/1", 0, run_layer),
        KERNEL("ordered-combine", GB_COMBINE, GB_BF16, GB_ORDER_FMA32, 0, run_combine),
    };
    static const struct gb_kernel_table table = {
        .abi_version = GB_ABI_VERSION,
        .kernel_size = sizeof(struct gb_kernel),
        .count = sizeof kernels / sizeof *kernels,
        .kernels = kernels,
    };
    return &table;
}
