/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device whose memory is the host's, in the place of the CUDA library: no GPU is needed to see what the harness does
 * with one. What is launched waits on the stream until it is synchronised; a graph is the launches that were captured.
 * Right kernels, and ones with a mistake that only a device shows. What the harness asks for is left in the file
 * GB_CALLS; the request that GB_DEVICE_FAILS names fails, "upload 3". Where GB_DEVICE_OLD is "device" or "timer", that
 * table is an older version's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "quant/quant.h"
#include "tests/faults/call_log.h"
#include "tests/support/fma32.h"

enum { MOST_LAUNCHES = 16, MOST_ALLOCATIONS = 4096, CACHE_BYTES = 1 << 16 };

struct launch {
    enum gb_status (*run)(const struct gb_arguments *arguments, struct gb_error *error);
    struct gb_arguments arguments;
    const uint8_t *from; /* what is read where `run` is NULL: [bytes] */
    size_t bytes;
};

struct graph {
    struct launch launch[MOST_LAUNCHES];
    size_t launches;
};

struct timer {
    struct graph *capturing; /* NULL: what is launched waits to run */
    struct timespec began;
};

static struct graph waiting;
static struct {
    uint8_t *from;
    size_t bytes;
} allocated[MOST_ALLOCATIONS];
static size_t allocations;
static uint8_t poison;

/* "3 + 256": a byte of the allocation 3. */
static const char *place_of(const void *pointer)
{
    static char text[2][48];
    static int turn;
    const uint8_t *byte = pointer;
    turn = !turn;
    snprintf(text[turn], sizeof *text, "nowhere");
    for (size_t i = 0; i < allocations; i++)
        if (allocated[i].from && allocated[i].from <= byte && byte < allocated[i].from + allocated[i].bytes)
            snprintf(text[turn], sizeof *text, "%zu + %zu", i, (size_t)(byte - allocated[i].from));
    return text[turn];
}

/* Each request that can fail has a kind, and is counted among those of its kind. */
static enum gb_status ask(const char *kind, struct gb_error *error)
{
    static unsigned asked;
    const char *fails = getenv("GB_DEVICE_FAILS");
    const size_t length = strlen(kind);
    if (!fails || strncmp(fails, kind, length) || ++asked != strtoul(fails + length, NULL, 10))
        return GB_OK;
    call_log("fails\n");
    return gb_fail(error, GB_EDEVICE, "%s fails", fails);
}

static enum gb_status launch(struct timer *stream, struct launch one, struct gb_error *error)
{
    call_log("%s %s, %zu bytes\n", stream && stream->capturing ? "captures" : "launches",
             place_of(one.run ? one.arguments.output : one.from), one.bytes);
    struct graph *to = stream && stream->capturing ? stream->capturing : &waiting;
    if (ask("launch", error) != GB_OK)
        return GB_EDEVICE;
    if (to->launches == MOST_LAUNCHES)
        return gb_fail(error, GB_EDEVICE, "too many launches");
    to->launch[to->launches++] = one;
    return GB_OK;
}

static enum gb_status describe(char *text, size_t bytes, struct gb_error *error)
{
    if (getenv("GB_DEVICE_GONE"))
        return gb_fail(error, GB_EUNSUPPORTED, "the device is gone");
    snprintf(text, bytes, "memory of the host");
    return GB_OK;
}

static enum gb_status allocate(size_t bytes, void **pointer, struct gb_error *error)
{
    if (ask("allocate", error) != GB_OK)
        return GB_EDEVICE;
    if (allocations == MOST_ALLOCATIONS || posix_memalign(pointer, 256, bytes))
        return gb_fail(error, GB_ENOMEM, "no memory for %zu bytes", bytes);
    memset(*pointer, poison, bytes);
    call_log("allocates %zu: %zu\n", allocations, bytes);
    allocated[allocations].from = *pointer;
    allocated[allocations++].bytes = bytes;
    return GB_OK;
}

static void release(void *pointer)
{
    call_log("releases %s\n", place_of(pointer));
    for (size_t i = 0; i < allocations; i++)
        if (pointer && allocated[i].from == pointer)
            allocated[i].from = NULL, allocated[i].bytes = 0;
    free(pointer);
}

/* Whether those bytes are the device's. */
static enum gb_status check(const void *device, size_t bytes, struct gb_error *error)
{
    const uint8_t *from = device;
    for (size_t i = 0; i < allocations; i++)
        if (allocated[i].from && allocated[i].from <= from && from + bytes <= allocated[i].from + allocated[i].bytes)
            return GB_OK;
    return gb_fail(error, GB_EDEVICE, "%zu bytes that are not the device's", bytes);
}

static enum gb_status upload(void *device, const void *host, size_t bytes, struct gb_error *error)
{
    enum gb_status status = check(device, bytes, error);
    call_log("uploads %s, %zu of %06x\n", place_of(device), bytes, call_hash(host, bytes) >> 8);
    if (status == GB_OK)
        status = ask("upload", error);
    if (status == GB_OK)
        memcpy(device, host, bytes);
    return status;
}

static enum gb_status download(void *host, const void *device, size_t bytes, struct gb_error *error)
{
    enum gb_status status = check(device, bytes, error);
    call_log("downloads %s, %zu\n", place_of(device), bytes);
    if (status == GB_OK)
        status = ask("download", error);
    if (status == GB_OK)
        memcpy(host, device, bytes);
    return status;
}

static enum gb_status read_all(const struct launch *one, struct gb_error *error)
{
    static volatile uint8_t seen;
    enum gb_status status = check(one->from, one->bytes, error);
    for (size_t i = 0; status == GB_OK && i < one->bytes; i += 64)
        seen = seen ^ one->from[i];
    return status;
}

static enum gb_status synchronise(struct gb_error *error)
{
    call_log("synchronises %zu\n", waiting.launches);
    enum gb_status status = ask("synchronise", error);
    for (size_t i = 0; status == GB_OK && i < waiting.launches; i++) {
        const struct launch *one = &waiting.launch[i];
        status = one->run ? one->run(&one->arguments, error) : read_all(one, error);
    }
    waiting.launches = 0;
    return status;
}

/* The clock. */

static enum gb_status cache_bytes(size_t *bytes, struct gb_error *error)
{
    *bytes = CACHE_BYTES;
    return ask("clock", error);
}

static enum gb_status open_timer(void **timer, void **stream, struct gb_error *error)
{
    if (ask("clock", error) != GB_OK)
        return GB_EDEVICE;
    *timer = *stream = calloc(1, sizeof(struct timer));
    return *timer ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for a timer");
}

/* What is still being captured would be lost on a device: the process ends. */
static void close_timer(void *timer)
{
    struct timer *t = timer;
    call_log("has no clock any more\n");
    if (t->capturing)
        abort();
    free(t);
}

static enum gb_status capture(void *timer, struct gb_error *error)
{
    struct timer *t = timer;
    call_log("begins a graph\n");
    if (ask("clock", error) != GB_OK)
        return GB_EDEVICE;
    t->capturing = calloc(1, sizeof *t->capturing);
    return t->capturing ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for a graph");
}

/* A graph of nothing is refused. */
static enum gb_status captured(void *timer, void **graph, size_t *launches, struct gb_error *error)
{
    struct timer *t = timer;
    struct graph *made = t->capturing;
    t->capturing = NULL;
    *launches = made->launches;
    call_log("has a graph of %zu\n", made->launches);
    enum gb_status status = made->launches ? ask("clock", error) : gb_fail(error, GB_EDEVICE, "nothing was captured");
    if (status != GB_OK) {
        free(made);
        return status;
    }
    *graph = made;
    return GB_OK;
}

static enum gb_status replay(void *timer, void *graph, struct gb_error *error)
{
    const struct graph *g = graph;
    call_log("replays\n");
    enum gb_status status = ask("clock", error);
    for (size_t i = 0; status == GB_OK && i < g->launches; i++)
        status = launch(timer, g->launch[i], error);
    return status;
}

static void discard(void *graph)
{
    call_log("discards a graph\n");
    free(graph);
}

static enum gb_status start(void *timer, struct gb_error *error)
{
    struct timer *t = timer;
    call_log("starts the clock\n");
    enum gb_status status = synchronise(error);
    clock_gettime(CLOCK_MONOTONIC, &t->began);
    return status;
}

static enum gb_status stop(void *timer, double *seconds, struct gb_error *error)
{
    const struct timer *t = timer;
    struct timespec now;
    call_log("stops the clock\n");
    enum gb_status status = synchronise(error);
    clock_gettime(CLOCK_MONOTONIC, &now);
    const char *always = getenv("GB_DEVICE_SECONDS");
    *seconds = always ? strtod(always, NULL)
                      : (double)(now.tv_sec - t->began.tv_sec) + 1e-9 * (double)(now.tv_nsec - t->began.tv_nsec);
    return status;
}

static enum gb_status read_once(void *timer, const void *from, size_t bytes, struct gb_error *error)
{
    if (bytes % 16)
        return gb_fail(error, GB_EINVAL, "%zu bytes are no multiple of 16", bytes);
    return launch(timer, (struct launch){.from = from, .bytes = bytes}, error);
}

/* The kernels. */

static enum gb_status supports(const struct gb_problem *problem, struct gb_error *error)
{
    return problem->weights == GB_NVFP4 ? GB_OK : gb_fail(error, GB_EUNSUPPORTED, "only NVFP4 weights");
}

static enum gb_status supports_router(const struct gb_problem *problem, struct gb_error *error)
{
    return problem->router ? GB_OK : gb_fail(error, GB_EUNSUPPORTED, "no router");
}

static enum gb_status supports_links(const struct gb_problem *problem, struct gb_error *error)
{
    return problem->exchange ? GB_OK : gb_fail(error, GB_EUNSUPPORTED, "nothing to dispatch");
}

/* What moves rows is matched and named here, never run. */
static enum gb_status run_links(const struct gb_arguments *a, struct gb_error *error)
{
    (void)a;
    return gb_fail(error, GB_EUNSUPPORTED, "there is one device");
}

static enum gb_status run(const struct gb_arguments *a, struct gb_error *error)
{
    return launch(a->stream, (struct launch){.run = fma32_layer, .arguments = *a}, error);
}

/* In three launches, each of which computes it. */
static enum gb_status run_thrice(const struct gb_arguments *a, struct gb_error *error)
{
    enum gb_status status = run(a, error);
    if (status == GB_OK)
        status = run(a, error);
    return status == GB_OK ? run(a, error) : status;
}

static size_t bytes_of_output(const struct gb_arguments *a)
{
    return sizeof(float) * a->shape.tokens * a->shape.hidden;
}

static enum gb_status layer_and_before(const struct gb_arguments *a, struct gb_error *error)
{
    ((uint8_t *)a->output)[-1] ^= 1;
    return fma32_layer(a, error);
}

static enum gb_status run_before(const struct gb_arguments *a, struct gb_error *error)
{
    return launch(a->stream, (struct launch){.run = layer_and_before, .arguments = *a}, error);
}

static enum gb_status layer_and_behind(const struct gb_arguments *a, struct gb_error *error)
{
    ((uint8_t *)a->output)[bytes_of_output(a)] ^= 1;
    return fma32_layer(a, error);
}

static enum gb_status run_behind(const struct gb_arguments *a, struct gb_error *error)
{
    return launch(a->stream, (struct launch){.run = layer_and_behind, .arguments = *a}, error);
}

static bool is_captured(const struct gb_arguments *a)
{
    const struct timer *t = a->stream;
    return t && t->capturing;
}

/* A host that computes while it is captured: what is replayed is a copy. */
static enum gb_status copy_output(const struct gb_arguments *a, struct gb_error *error)
{
    (void)error;
    memcpy(a->output, a->workspace, bytes_of_output(a));
    return GB_OK;
}

static enum gb_status run_remembers(const struct gb_arguments *a, struct gb_error *error)
{
    static void *made_last; /* of the graph before, which is gone */
    struct gb_arguments made = *a;
    if (!is_captured(a))
        return run(a, error);
    free(made_last);
    made.workspace = made_last = malloc(bytes_of_output(a));
    made.output = made.workspace;
    enum gb_status status = made.output ? fma32_layer(&made, error) : GB_ENOMEM;
    made.output = a->output;
    return status == GB_OK ? launch(a->stream, (struct launch){.run = copy_output, .arguments = made}, error) : status;
}

/* The same of a router. */
static enum gb_status copy_routing(const struct gb_arguments *a, struct gb_error *error)
{
    const size_t bytes = sizeof(int32_t) * a->shape.tokens * a->shape.top_k; /* of either array */
    (void)error;
    memcpy(a->routed_ids, a->workspace, bytes);
    memcpy(a->routed_weights, (uint8_t *)a->workspace + bytes, bytes);
    return GB_OK;
}

static enum gb_status run_remembers_routing(const struct gb_arguments *a, struct gb_error *error)
{
    static void *made_last;
    struct gb_arguments made = *a;
    const size_t pairs = (size_t)a->shape.tokens * a->shape.top_k;
    if (!is_captured(a))
        return launch(a->stream, (struct launch){.run = fma32_router, .arguments = *a}, error);
    free(made_last);
    made.workspace = made_last = malloc(2 * sizeof(int32_t) * pairs);
    made.routed_ids = made.workspace;
    made.routed_weights = (float *)made.workspace + pairs;
    enum gb_status status = made.workspace ? fma32_router(&made, error) : GB_ENOMEM;
    made.routed_ids = a->routed_ids;
    made.routed_weights = a->routed_weights;
    return status == GB_OK ? launch(a->stream, (struct launch){.run = copy_routing, .arguments = made}, error) : status;
}

static enum gb_status run_refuses(const struct gb_arguments *a, struct gb_error *error)
{
    return is_captured(a) ? gb_fail(error, GB_EDEVICE, "not while it is captured") : run(a, error);
}

static enum gb_status run_elsewhere(const struct gb_arguments *a, struct gb_error *error)
{
    struct gb_arguments elsewhere = *a;
    elsewhere.stream = NULL;
    return run(&elsewhere, error);
}

/* Adds what its own memory happens to hold. */
static enum gb_status layer_and_fresh(const struct gb_arguments *a, struct gb_error *error)
{
    void *fresh;
    enum gb_status status = fma32_layer(a, error);
    if (status == GB_OK)
        status = allocate(sizeof(float), &fresh, error);
    if (status == GB_OK) {
        *(float *)a->output += *(float *)fresh;
        release(fresh);
    }
    return status;
}

static enum gb_status run_fresh(const struct gb_arguments *a, struct gb_error *error)
{
    return launch(a->stream, (struct launch){.run = layer_and_fresh, .arguments = *a}, error);
}

#define KERNEL(NAME, FLAGS, RUN)                                                                                       \
    {                                                                                                                  \
        .name = "cuda/" NAME, .operation = GB_LAYER, .weights = GB_NVFP4, .activations = GB_BF16, .output = GB_FP32,   \
        .order = GB_ORDER_FMA32, .accumulator_bits = 24, .flags = GB_DEVICE_POINTERS | FLAGS, .supports = supports,    \
        .run = RUN                                                                                                     \
    }

GB_API const struct gb_kernel_table *gb_kernels(void);
GB_API const struct gb_device *gb_device(void);
GB_API const struct gb_timer *gb_timer(void);
GB_API enum gb_status gb_device_poison(uint8_t byte, struct gb_error *error);

const struct gb_kernel_table *gb_kernels(void)
{
    static const struct gb_kernel kernels[] = {
        KERNEL("none", GB_GRAPH_CAPTURABLE, run),
        KERNEL("stages", GB_GRAPH_CAPTURABLE | GB_STAGE_OUTPUTS, run),
        KERNEL("thrice", GB_GRAPH_CAPTURABLE, run_thrice),
        KERNEL("before", 0, run_before),
        KERNEL("behind", 0, run_behind),
        KERNEL("fresh", 0, run_fresh),
        KERNEL("remembers", GB_GRAPH_CAPTURABLE, run_remembers),
        KERNEL("refuses", GB_GRAPH_CAPTURABLE, run_refuses),
        KERNEL("elsewhere", GB_GRAPH_CAPTURABLE, run_elsewhere),
        KERNEL("launched", 0, run_refuses),
        {
            .name = "cuda/remembers-routing",
            .operation = GB_ROUTE,
            .weights = GB_BF16,
            .activations = GB_BF16,
            .output = GB_FP32,
            .order = GB_ORDER_FMA32,
            .accumulator_bits = 24,
            .flags = GB_DEVICE_POINTERS | GB_GRAPH_CAPTURABLE,
            .supports = supports_router,
            .run = run_remembers_routing,
        },
        {
            .name = "cuda/links",
            .operation = GB_DISPATCH,
            .activations = GB_BF16,
            .output = GB_FP32,
            .accumulator_bits = 24,
            .flags = GB_DEVICE_POINTERS,
            .supports = supports_links,
            .run = run_links,
        },
    };
    static const struct gb_kernel_table table = {
        .abi_version = GB_ABI_VERSION,
        .kernel_size = sizeof(struct gb_kernel),
        .count = sizeof kernels / sizeof *kernels,
        .kernels = kernels,
    };
    return &table;
}

/* Whether that table is an older one. */
static bool is_old(const char *table)
{
    const char *old = getenv("GB_DEVICE_OLD");
    return old && !strcmp(old, table);
}

const struct gb_device *gb_device(void)
{
    static struct gb_device device = {
        .abi_version = GB_ABI_VERSION,
        .describe = describe,
        .allocate = allocate,
        .release = release,
        .upload = upload,
        .download = download,
        .synchronise = synchronise,
    };
    device.abi_version -= is_old("device");
    return &device;
}

const struct gb_timer *gb_timer(void)
{
    static struct gb_timer timer = {
        .size = sizeof(struct gb_timer),
        .cache_bytes = cache_bytes,
        .open = open_timer,
        .close = close_timer,
        .capture = capture,
        .captured = captured,
        .replay = replay,
        .discard = discard,
        .start = start,
        .stop = stop,
        .read = read_once,
    };
    timer.size -= is_old("timer");
    return &timer;
}

enum gb_status gb_device_poison(uint8_t byte, struct gb_error *error)
{
    call_log("has fresh memory of %02x\n", byte);
    poison = byte;
    return ask("poison", error);
}
