/* SPDX-License-Identifier: Apache-2.0 */
/* The worker process: loads one kernel, runs it on every layer and batch, leaves outputs and a report. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "harness/run/altered.h"
#include "harness/run/contract.h"
#include "harness/run/child.h"
#include "harness/run/clock.h"
#include "harness/run/environment.h"
#include "harness/run/json_text.h"
#include "harness/run/rank_part.h"
#include "harness/run/session.h"
#include "harness/run/session_arrays.h"
#include "harness/run/session_replay.h"
#include "harness/run/residual_stream.h"
#include "harness/run/subject.h"
#include "harness/run/text.h"
#include "harness/run/timed.h"
#include "harness/run/written.h"
#include "quant/quant.h"
#include "reference/reference.h"

/* Two bytes whose repetition is a NaN in FP32 and bf16 (0xFF...) and an ordinary number (0x5A...). */
static const uint8_t poisons[2] = {0xFF, 0x5A};
/* The runs of a batch. The moved one has its inputs elsewhere in the arrays, and its arrays where the first has them.
 */
static const struct run_way moved_way = {0xFF, GUARDED_CANARIES}, first_way = {0xFF, GUARDED_CANARIES},
                            second_way = {0x5A, GUARDED_END}, last_way = {0x5A, GUARDED_START};

struct worker {
    struct gb_fixture *whole;
    struct gb_fixture *fixture; /* the same, or its part of one rank: */
    struct rank_part part;
    uint32_t rank;
    const char *rendezvous; /* NULL: not one of several processes of a kernel */
    const struct gb_kernel *kernel;
    const struct operator_row *row; /* of its operator */
    uint32_t uses;                  /* enum operator_use of it */
    const struct gb_device *memory;
    const struct gb_timer *clock; /* of a device that can capture the kernel; NULL: none */
    uint32_t batches[MAX_BATCHES];
    uint32_t batch_count;
    struct gb_outputs *outputs[MAX_BATCHES];
    struct gb_outputs *moved[MAX_BATCHES]; /* of the run with tokens and experts in other places, put back */
    bool moved_differs[MAX_BATCHES];       /* from the first run in any bit */
    struct worker_checks checks[MAX_BATCHES], routing[MAX_BATCHES];
    double seconds[MAX_BATCHES];
    struct timing_request timed;
    struct timing timing[MAX_BATCHES];
    double *state;                           /* [tokens, hidden], the residual stream; NULL: no drift */
    unsigned loading_changed, calls_changed; /* enum environment_change */
    struct rlimit room;                      /* of memory, before the subject was there */
};

enum gb_status parse_batches(const char *option, const char *text, uint32_t tokens, uint32_t *batches, uint32_t *count,
                             struct gb_error *error)
{
    const char *at = text;
    for (*count = 0; *count < MAX_BATCHES; (*count)++) {
        char *end;
        errno = 0;
        unsigned long n = strtoul(at, &end, 10);
        if (end == at || errno || at[0] == '-' || n < 1 || n > tokens || (*count && n <= batches[*count - 1]) ||
            (*end != ',' && *end != '\0'))
            return gb_fail(error, GB_EINVAL, "%s %s: give ascending numbers from 1 to %u, separated by commas", option,
                           text, tokens);
        batches[*count] = (uint32_t)n;
        if (*end == '\0') {
            (*count)++;
            return GB_OK;
        }
        at = end + 1;
    }
    return gb_fail(error, GB_EINVAL, "%s %s: at most %d batches", option, text, (int)MAX_BATCHES);
}

/* Elements equal to both poisons were never written; any other difference is nondeterminism. layer: negative without
 * layers. */
static void compare_runs(const struct worker *w, const struct operator_array *array, const void *first,
                         const void *second, size_t count, size_t element, int64_t layer, struct worker_checks *checks)
{
    char of_layer[96] = "";
    uint8_t poison[2][sizeof(float)];
    memset(poison[0], poisons[0], sizeof poison[0]);
    memset(poison[1], poisons[1], sizeof poison[1]);
    for (size_t i = 0; i < count; i++) {
        const char *a = (const char *)first + i * element, *b = (const char *)second + i * element;
        if (!memcmp(a, b, element))
            continue;
        if (!checks->unwritten && !checks->differing) {
            if (layer >= 0)
                snprintf(of_layer, sizeof of_layer, " of layer %lld", (long long)layer);
            else if (w->row->place)
                w->row->place(w->fixture, array, i, of_layer, sizeof of_layer);
            snprintf(checks->where, sizeof checks->where, "element %zu of %s%s", i, array->name, of_layer);
        }
        if (!memcmp(a, poison[0], element) && !memcmp(b, poison[1], element))
            checks->unwritten++;
        else
            checks->differing++;
    }
}

static enum gb_status new_outputs(const struct worker *w, uint32_t tokens, uint32_t layers, bool with_stack,
                                  struct gb_outputs **outputs, struct gb_error *error)
{
    return w->row->new_outputs(w->kernel, w->fixture, tokens, layers, with_stack, outputs, error);
}

/* Where what watching the kernel's routing shows belongs: beside the rest where it is all that the kernel writes. */
static struct worker_checks *routing_checks(struct worker *w, uint32_t b)
{
    return w->uses & WRITES_RESULT ? &w->routing[b] : &w->checks[b];
}

/* All that two runs of a batch wrote: struct gb_layer_outputs, or struct gb_outputs and layer -1. */
static void compare_written(const struct worker *w, const void *out, const void *again, uint32_t b, int64_t layer,
                            struct worker_checks *checks, struct worker_checks *routing)
{
    for (uint32_t i = 0; i < w->row->array_count; i++) {
        const struct operator_array *a = &w->row->arrays[i];
        size_t element;
        if (!a->written || !array_used(a, w->uses))
            continue;
        size_t bytes = a->bytes(w->kernel, w->fixture, w->batches[b], &element);
        compare_runs(w, a, operator_pointer(out, a->place), operator_pointer(again, a->place), bytes / element, element,
                     layer, a->routing ? routing : checks);
    }
}

/* Generates experts that the kernel chose and a generated fixture has no token for. *any: there were some. */
static enum gb_status admit_chosen(struct worker *w, struct session *s, const int32_t *ids, size_t pairs, bool *any,
                                   struct gb_error *error)
{
    enum gb_status status = GB_OK;
    *any = false;
    for (size_t p = 0; status == GB_OK && p < pairs; p++) {
        if (ids[p] < 0 || (uint32_t)ids[p] >= w->fixture->shape.experts || s->used[ids[p]])
            continue;
        *any = true;
        status = gb_generate_expert(w->fixture, s->layer, (uint32_t)ids[p], error);
        if (status == GB_OK)
            status = session_admit(s, (uint32_t)ids[p], error);
    }
    return status;
}

/* One run, of a layer that routes once more for as long as it chooses experts that were not there. */
static enum gb_status run_once(struct worker *w, struct session *s, const struct operator_inputs *inputs,
                               const struct gb_layer_outputs *out, struct run_way way, uint32_t b,
                               struct gb_error *error)
{
    uint32_t tokens = w->batches[b];
    size_t pairs = (size_t)tokens * w->fixture->shape.top_k;
    enum gb_status status = GB_OK;
    bool again = true;
    while (status == GB_OK && again) {
        status = session_run(s, tokens, inputs, out, way, &w->checks[b], routing_checks(w, b), error);
        again = false;
        if (status == GB_OK && w->uses & READS_EXPERTS && w->uses & WRITES_ROUTING)
            status = admit_chosen(w, s, out->ids, pairs, &again, error);
    }
    return status;
}

/* Copies rows in reverse: token t is the last but t. */
static void reverse(void *to, const void *from, uint32_t tokens, size_t row)
{
    for (uint32_t t = 0; t < tokens; t++)
        memcpy((char *)to + t * row, (const char *)from + (tokens - 1 - t) * row, row);
}

/* Puts what the moved run wrote back to where the first run has it. */
static void put_back(const struct worker *w, uint32_t b, uint32_t layer, const struct gb_layer_outputs *ran)
{
    uint32_t tokens = w->batches[b];
    for (uint32_t i = 0; i < w->row->array_count; i++) {
        const struct operator_array *a = &w->row->arrays[i];
        size_t element;
        if (a->written && array_used(a, w->uses))
            reverse(operator_pointer(&w->moved[b]->layer[layer], a->place), operator_pointer(ran, a->place), tokens,
                    a->bytes(w->kernel, w->fixture, tokens, &element) / tokens);
    }
}

static void inputs_free(const struct worker *w, const struct operator_inputs *inputs)
{
    for (uint32_t i = 0; i < w->row->array_count; i++)
        if (!w->row->arrays[i].written)
            free(operator_pointer(inputs, w->row->arrays[i].place));
}

/* The inputs that the kernel reads with their tokens in reverse and their experts where session_move has them.
 * inputs_free in any case. */
static enum gb_status move_inputs(const struct worker *w, const struct session *s, const struct operator_inputs *inputs,
                                  uint32_t tokens, struct operator_inputs *moved, struct gb_error *error)
{
    *moved = (struct operator_inputs){0};
    for (uint32_t i = 0; i < w->row->array_count; i++) {
        const struct operator_array *a = &w->row->arrays[i];
        size_t element;
        if (a->written || !array_used(a, s->uses))
            continue;
        size_t bytes = a->bytes(w->kernel, w->fixture, tokens, &element);
        void *copy = malloc(bytes);
        if (!copy)
            return gb_fail(error, GB_ENOMEM, "no memory for %u tokens in another order", tokens);
        reverse(copy, operator_pointer(inputs, a->place), tokens, bytes / tokens);
        memcpy((char *)moved + a->place, &copy, sizeof copy);
    }
    int32_t *ids = (int32_t *)moved->ids;
    for (size_t p = 0; ids && p < (size_t)tokens * w->fixture->shape.top_k; p++)
        ids[p] = ids[p] < 0 ? ids[p] : (int32_t)s->moved[ids[p]];
    return GB_OK;
}

/* A run of a batch, before all others, whose tokens come in reverse and whose experts session_move has moved: every
 * token's result is that of the first run, and whatever a kernel remembers by shape or by address is wrong there. */
static enum gb_status run_moved(struct worker *w, struct session *s, const struct operator_inputs *inputs, uint32_t b,
                                struct gb_error *error)
{
    struct operator_inputs there;
    struct gb_outputs *ran = NULL;
    enum gb_status status = move_inputs(w, s, inputs, w->batches[b], &there, error);
    if (status == GB_OK)
        status = new_outputs(w, w->batches[b], 1, false, &ran, error);
    if (status == GB_OK)
        status = run_once(w, s, &there, &ran->layer[0], moved_way, b, error);
    if (status == GB_OK)
        put_back(w, b, s->layer, &ran->layer[0]);
    gb_outputs_free(ran);
    inputs_free(w, &there);
    return status;
}

/* A run with these arrays altered, where the kernel has them and they can be: inputs, a bit each of the operator's row,
 * and weights (session_alter). What it writes is not judged. */
static enum gb_status run_altered_arrays(struct worker *w, struct session *s, const struct operator_inputs *inputs,
                                         uint32_t read, uint32_t weights, uint32_t b, struct gb_error *error)
{
    struct operator_inputs altered = *inputs;
    struct gb_outputs *ran = NULL;
    void *copy[MOST_ARRAYS] = {NULL};
    bool any = weights;
    enum gb_status status = weights ? session_alter(s, weights, true, error) : GB_OK;
    for (uint32_t i = 0; status == GB_OK && i < w->row->array_count; i++)
        if (read & 1u << i && array_used(&w->row->arrays[i], s->uses)) {
            status = altered_array(&w->row->arrays[i], w->kernel, w->fixture, w->batches[b], inputs, &altered, &copy[i],
                                   error);
            any |= copy[i] != NULL;
        }
    if (status == GB_OK && any)
        status = new_outputs(w, w->batches[b], 1, false, &ran, error);
    if (status == GB_OK && any)
        status = run_once(w, s, &altered, &ran->layer[0], first_way, b, error);
    if (status == GB_OK && weights)
        status = session_alter(s, weights, false, error);
    gb_outputs_free(ran);
    for (uint32_t i = 0; i < MOST_ARRAYS; i++)
        free(copy[i]);
    return status;
}

/* All arrays of weights that the kernel reads. */
static uint32_t weight_arrays(const struct session *s)
{
    uint32_t arrays = 0;
    for (uint32_t i = 0; i < SESSION_ARRAYS; i++)
        arrays |= session_has(s, i) ? 1u << i : 0;
    return arrays;
}

/* Whether the runs of this batch and layer come between runs on altered arrays: of one that tells tokens apart. Code
 * that is timed runs alone. */
static bool is_altered(const struct worker *w, const struct session *s, uint32_t b)
{
    enum { TOKENS = 4 };
    uint32_t first = 0;
    while (first + 1 < w->batch_count && w->batches[first] < TOKENS)
        first++;
    return s->layer == 0 && b == first && !w->timed.samples;
}

/* Runs that differ from those that are judged, before any of these, at the addresses of the first run: in all arrays,
 * which begin as they do there, and then in one each with all others as they are: those of the weights (one by one
 * where they are little work), x, and what else is read. A kernel that knows its inputs again by some of the arrays, or
 * by how they begin, has kept what is wrong. */
static enum gb_status run_altered(struct worker *w, struct session *s, const struct operator_inputs *inputs, uint32_t b,
                                  struct gb_error *error)
{
    const uint32_t all = weight_arrays(s);
    enum gb_status status = run_altered_arrays(w, s, inputs, ~0u, all, b, error);
    for (uint32_t i = 0; status == GB_OK && session_is_small(s) && i < SESSION_ARRAYS; i++)
        status = run_altered_arrays(w, s, inputs, 0, all & 1u << i, b, error);
    if (status == GB_OK && !session_is_small(s))
        status = run_altered_arrays(w, s, inputs, 0, all, b, error);
    if (status == GB_OK)
        status = run_altered_arrays(w, s, inputs, 1u, 0, b, error);
    for (uint32_t i = w->row->array_count; status == GB_OK && i-- > 1;)
        status = run_altered_arrays(w, s, inputs, 1u << i, 0, b, error);
    return status;
}

/* A kernel that keeps one run alone has forgotten what was wrong where it knows its inputs by the array that was
 * altered last: now by that one again, and then by scales and biases. */
static enum gb_status run_altered_again(struct worker *w, struct session *s, const struct operator_inputs *inputs,
                                        uint32_t b, struct gb_error *error)
{
    enum gb_status status = run_altered_arrays(w, s, inputs, 1u << 1, 0, b, error);
    return status == GB_OK ? run_altered_arrays(w, s, inputs, 0, weight_arrays(s) & ~SESSION_CODES, b, error) : status;
}

/* Whether the run with tokens and experts in other places wrote what the first one did. */
static void note_moved(struct worker *w, uint32_t layer, uint32_t b)
{
    struct worker_checks differing = {0};
    compare_written(w, &w->outputs[b]->layer[layer], &w->moved[b]->layer[layer], b, layer, &differing, &differing);
    w->moved_differs[b] |= differing.differing || differing.unwritten;
}

/* Two calls whose outputs are not judged, the second with all arrays altered, so that whatever a kernel takes from the
 * call before is wrong in the next one. Two, so that what is wrong in every other call is so in one of those around. */
static enum gb_status run_altered_between(struct worker *w, struct session *s, const struct operator_inputs *inputs,
                                          uint32_t b, struct gb_error *error)
{
    enum gb_status status = run_altered_arrays(w, s, inputs, ~0u, 0, b, error);
    return status == GB_OK ? run_altered_arrays(w, s, inputs, ~0u, weight_arrays(s), b, error) : status;
}

/* Two runs of one batch with different poison. */
static enum gb_status run_batch(struct worker *w, struct session *s, const struct operator_inputs *inputs, uint32_t b,
                                struct gb_error *error)
{
    const struct gb_layer_outputs *out = &w->outputs[b]->layer[s->layer];
    struct gb_outputs *second = NULL;
    enum gb_status status = is_altered(w, s, b) ? run_altered(w, s, inputs, b, error) : GB_OK;
    if (status == GB_OK)
        status = run_once(w, s, inputs, out, first_way, b, error);
    if (status == GB_OK)
        note_moved(w, s->layer, b);
    if (status == GB_OK)
        status = new_outputs(w, w->batches[b], 1, false, &second, error);
    if (status == GB_OK && is_altered(w, s, b))
        status = run_altered_between(w, s, inputs, b, error);
    if (status == GB_OK)
        status = run_once(w, s, inputs, &second->layer[0], second_way, b, error);
    if (status == GB_OK)
        compare_written(w, out, &second->layer[0], b, s->layer, &w->checks[b], routing_checks(w, b));
    gb_outputs_free(second);
    return status;
}

/* Remembers what a later run shows of the first one's inputs, if nothing was seen before. */
static void note_later(struct worker_checks *checks, const struct worker_checks *later)
{
    if (!checks->differing && !checks->unwritten && (later->differing || later->unwritten)) {
        checks->differing = later->differing + later->unwritten;
        memcpy(checks->where, later->where, sizeof checks->where);
    }
}

/* The last run of a batch is the first one again, at other addresses, after others: the results are the same. */
static enum gb_status run_last(struct worker *w, struct session *s, const struct operator_inputs *inputs, uint32_t b,
                               struct gb_error *error)
{
    struct worker_checks checks = {0}, routing = {0};
    struct gb_outputs *ran = NULL;
    enum gb_status status = new_outputs(w, w->batches[b], 1, false, &ran, error);
    if (status == GB_OK && is_altered(w, s, b))
        status = run_altered_again(w, s, inputs, b, error);
    if (status == GB_OK)
        status = run_once(w, s, inputs, &ran->layer[0], last_way, b, error);
    if (status == GB_OK) {
        compare_written(w, &w->outputs[b]->layer[s->layer], &ran->layer[0], b, s->layer, &checks, &routing);
        note_later(&w->checks[b], &checks);
        note_later(routing_checks(w, b), &routing);
    }
    gb_outputs_free(ran);
    return status;
}

/* Says of what two runs show that one of them was a replay. */
static void note_replay(struct worker_checks *checks)
{
    size_t used = strlen(checks->where);
    if (checks->differing || checks->unwritten)
        snprintf(checks->where + used, sizeof checks->where - used, ", replayed as a CUDA graph");
}

/* A CUDA graph that was captured on the first inputs and replayed on others has the results of launches on these. */
static enum gb_status run_replayed(struct worker *w, struct session *s, const struct operator_inputs *inputs,
                                   uint32_t b, struct gb_error *error)
{
    struct worker_checks checks = {0}, routing = {0};
    struct operator_inputs there;
    struct gb_outputs *ran[3] = {NULL}; /* launched on the other inputs; replayed on the first and on the others */
    enum gb_status status = move_inputs(w, s, inputs, w->batches[b], &there, error);
    for (int n = 0; status == GB_OK && n < 3; n++)
        status = new_outputs(w, w->batches[b], 1, false, &ran[n], error);
    if (status == GB_OK)
        status = run_once(w, s, &there, &ran[0]->layer[0], first_way, b, error);
    if (status == GB_OK) {
        const struct operator_inputs *const both[] = {inputs, &there};
        const struct gb_layer_outputs *const out[] = {&ran[1]->layer[0], &ran[2]->layer[0]};
        status = session_replay(s, w->clock, w->batches[b], both, out, 2, &w->checks[b], routing_checks(w, b), error);
    }
    if (status == GB_OK) {
        compare_written(w, &w->outputs[b]->layer[s->layer], &ran[1]->layer[0], b, s->layer, &checks, &routing);
        compare_written(w, &ran[0]->layer[0], &ran[2]->layer[0], b, s->layer, &checks, &routing);
        note_replay(&checks);
        note_replay(&routing);
        note_later(&w->checks[b], &checks);
        note_later(routing_checks(w, b), &routing);
    }
    for (int n = 0; n < 3; n++)
        gb_outputs_free(ran[n]);
    inputs_free(w, &there);
    return status;
}

/* What a run of a batch writes: struct gb_layer_outputs of the first layer, or struct gb_outputs. */
static const void *written(const struct worker *w, const struct gb_outputs *outputs)
{
    return w->row->layers ? (const void *)&outputs->layer[0] : outputs;
}

/* What a timed run wrote is what the first one did; of a nondeterministic kernel it is judged in the moved run's place.
 */
static enum gb_status check_timed(struct worker *w, const struct timed *t, uint32_t b, struct gb_outputs *ran,
                                  struct gb_error *error)
{
    const int64_t layer = w->row->layers ? 0 : -1;
    enum gb_status status = GB_OK;
    for (uint32_t n = 0; status == GB_OK && n < w->timing[b].copies; n++) {
        struct worker_checks checks = {0}, routing = {0};
        status = timed_read(t, n, written(w, ran), error);
        if (status != GB_OK)
            return status;
        compare_written(w, written(w, w->outputs[b]), written(w, ran), b, layer, &checks, &routing);
        if (w->kernel->flags & GB_NONDETERMINISTIC && (checks.differing || routing.differing)) {
            w->moved_differs[b] = true;
            status = timed_read(t, n, written(w, w->moved[b]), error);
        }
        note_later(&w->checks[b], &checks);
        note_later(routing_checks(w, b), &routing);
    }
    return status;
}

/* inputs: NULL of an operator without layers. */
static enum gb_status time_batch(struct worker *w, const struct operator_inputs *inputs, uint32_t b,
                                 struct gb_error *error)
{
    struct timed t;
    const int32_t *ids = w->uses & WRITES_ROUTING ? w->outputs[b]->layer[0].ids : inputs ? inputs->ids : NULL;
    struct timing *timing = &w->timing[b];
    struct gb_outputs *ran = NULL;
    struct gb_error ignored;
    enum { WARM_UP = 2 };
    enum gb_status status =
        timed_open(w->kernel, w->memory, w->fixture, w->batches[b], inputs, ids, &w->timed, &t, timing, error);
    if (status == GB_OK)
        status = new_outputs(w, w->batches[b], w->row->layers ? 1 : 0, false, &ran, error);
    for (uint32_t i = 0; status == GB_OK && i < WARM_UP + w->timed.samples; i++) {
        status = timed_sample(&t, &timing->sample[i < WARM_UP ? 0 : i - WARM_UP], error);
        if (status == GB_OK)
            status = check_timed(w, &t, b, ran, error);
    }
    enum gb_status closed = timed_close(&t, &w->checks[b], routing_checks(w, b), status == GB_OK ? error : &ignored);
    gb_outputs_free(ran);
    timing->samples = w->timed.samples;
    return status == GB_OK ? closed : status;
}

/* Whether the residual stream has brought what the fixture gives the layer, as before the first. */
static bool same_inputs(const struct worker *w, uint32_t layer, uint32_t tokens, const gb_bf16 *x, const int32_t *ids,
                        const float *routing_weights)
{
    const struct gb_layer *l = &w->fixture->layer[layer];
    const size_t pairs = (size_t)tokens * w->fixture->shape.top_k;
    return !memcmp(x, l->x, sizeof *x * tokens * w->fixture->shape.hidden) &&
           !memcmp(ids, l->ids, sizeof *ids * pairs) &&
           !memcmp(routing_weights, l->routing_weights, sizeof *routing_weights * pairs);
}

/* The kernel's own residual stream through this layer, on the largest batch. */
static enum gb_status run_stack(struct worker *w, struct session *s, struct gb_error *error)
{
    const struct gb_shape *shape = &w->fixture->shape;
    uint32_t last = w->batch_count - 1, tokens = w->batches[last];
    size_t count = (size_t)tokens * shape->hidden, pairs = (size_t)tokens * shape->top_k;
    gb_bf16 *x = malloc(count * sizeof *x);
    int32_t *ids = malloc(pairs * sizeof *ids);
    float *routing_weights = malloc(pairs * sizeof *routing_weights);
    struct gb_outputs *own = NULL;
    enum gb_status status = GB_OK;
    if (!x || !ids || !routing_weights)
        status = gb_fail(error, GB_ENOMEM, "no memory for the stack of %u tokens", tokens);
    if (status == GB_OK)
        status = new_outputs(w, tokens, 1, false, &own, error);
    environment_reset_threads();
    if (status == GB_OK)
        status = stack_input(kernel_contract(w->fixture, w->kernel), w->fixture, s->layer, tokens, w->state, x, ids,
                             routing_weights, error);
    if (status == GB_OK) {
        struct operator_inputs inputs = {x, ids, routing_weights, NULL};
        status = run_once(w, s, &inputs, &own->layer[0], first_way, last, error);
    }
    if (status == GB_OK && same_inputs(w, s->layer, tokens, x, ids, routing_weights))
        compare_written(w, &w->outputs[last]->layer[s->layer], &own->layer[0], last, s->layer, &w->checks[last],
                        routing_checks(w, last));
    if (status == GB_OK) {
        stack_add(w->state, w->kernel->output, own->layer[0].output, count);
        memcpy(w->outputs[last]->stack + s->layer * count, w->state, count * sizeof(double));
    }
    gb_outputs_free(own);
    free(x);
    free(ids);
    free(routing_weights);
    return status;
}

static enum gb_status run_layer(struct worker *w, uint32_t layer, struct gb_error *error)
{
    const struct gb_layer *l = &w->fixture->layer[layer];
    const struct gb_shape *shape = &w->fixture->shape;
    struct session s;
    gb_bf16 *inner = NULL;
    enum gb_status status = session_open(w->kernel, w->memory, w->fixture, layer, &s, error);
    if (status == GB_OK && w->uses & READS_INTERMEDIATE) {
        struct gb_arguments a = gb_layer_arguments(w->fixture, layer, shape->tokens);
        inner = malloc(sizeof(gb_bf16) * shape->tokens * shape->top_k * shape->intermediate);
        a.intermediate = inner;
        gb_layer_activations(w->fixture, layer, w->kernel->activations, &a);
        environment_reset_threads();
        status = inner ? gb_reference_gate_up(kernel_contract(w->fixture, w->kernel), &a, error)
                       : gb_fail(error, GB_ENOMEM, "no memory for the intermediate");
    }
    const struct operator_inputs inputs = {l->x, l->ids, l->routing_weights, inner};
    if (status == GB_OK)
        status = session_move(&s, true, error);
    for (uint32_t b = 0; status == GB_OK && b < w->batch_count; b++)
        status = run_moved(w, &s, &inputs, b, error);
    if (status == GB_OK)
        status = session_move(&s, false, error);
    for (uint32_t b = 0; status == GB_OK && b < w->batch_count; b++) {
        double began = clock_seconds();
        status = run_batch(w, &s, &inputs, b, error);
        w->seconds[b] += clock_seconds() - began;
    }
    if (status == GB_OK && w->state)
        status = run_stack(w, &s, error);
    for (uint32_t b = 0; status == GB_OK && b < w->batch_count; b++)
        status = run_last(w, &s, &inputs, b, error);
    for (uint32_t b = 0; status == GB_OK && w->clock && b < w->batch_count; b++)
        status = run_replayed(w, &s, &inputs, b, error);
    for (uint32_t b = 0; status == GB_OK && w->timed.samples && layer == 0 && b < w->batch_count; b++)
        status = time_batch(w, &inputs, b, error);
    struct gb_error ignored;
    uint32_t last = w->batch_count - 1;
    enum gb_status closed =
        session_close(&s, &w->checks[last], routing_checks(w, last), status == GB_OK ? error : &ignored);
    w->calls_changed |= s.environment;
    free(inner);
    return status == GB_OK ? closed : status;
}

/* Runs of an operator without layers with one input altered each, before any that is judged, as run_altered. Ranks in
 * processes of their own would have to agree on them. */
static enum gb_status run_arrays_altered(struct worker *w, uint32_t b, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (uint32_t i = 0; status == GB_OK && !w->rendezvous && !w->timed.samples && i < w->row->array_count; i++) {
        struct gb_fixture altered = *w->fixture;
        struct gb_outputs *ran = NULL;
        void *copy;
        status =
            altered_array(&w->row->arrays[i], w->kernel, w->fixture, w->batches[b], w->fixture, &altered, &copy, error);
        if (status == GB_OK && copy)
            status = new_outputs(w, w->batches[b], 0, false, &ran, error);
        if (status == GB_OK && copy)
            status =
                session_run_arrays(w->kernel, w->memory, &altered, w->batches[b], first_way, ran, &w->checks[b], error);
        gb_outputs_free(ran);
        free(copy);
    }
    return status;
}

/* A run on other inputs, of which nothing is kept. */
static enum gb_status run_other(struct worker *w, uint32_t b, struct gb_error *error)
{
    struct gb_fixture other;
    struct gb_outputs *outputs = NULL;
    struct worker_checks ignored = {0};
    if (!w->row->other || w->fixture->exchanged.routes) /* which would be those of other tokens */
        return GB_OK;
    enum gb_status status = w->row->other(w->fixture, &other, error);
    if (status == GB_OK)
        status = new_outputs(w, w->batches[b], 0, false, &outputs, error);
    if (status == GB_OK)
        status = session_run_arrays(w->kernel, w->memory, &other, w->batches[b], first_way, outputs, &ignored, error);
    gb_outputs_free(outputs);
    w->row->free_other(&other);
    return status;
}

/* Three runs of one batch of an operator without layers. */
static enum gb_status run_arrays(struct worker *w, uint32_t b, struct gb_error *error)
{
    struct gb_outputs *runs[2] = {w->outputs[b], w->moved[b]}; /* nothing moves: it is the second run */
    enum gb_status status = run_arrays_altered(w, b, error);
    double began = clock_seconds();
    w->moved_differs[b] = w->kernel->flags & GB_NONDETERMINISTIC;
    const struct run_way ways[] = {first_way, second_way, last_way};
    for (int i = 0; status == GB_OK && i < 3; i++) {
        struct worker_checks later = {0};
        struct run_way way = ways[i];
        if (w->checks[b].canary_broken) /* it is known, and need not crash */
            way.place = GUARDED_CANARIES;
        if (i == 1) /* of all ranks, whatever one of them did */
            status = run_other(w, b, error);
        if (status == GB_OK)
            status = session_run_arrays(w->kernel, w->memory, w->fixture, w->batches[b], way, runs[i > 0],
                                        &w->checks[b], error);
        if (status == GB_OK && i)
            compare_written(w, runs[0], runs[1], b, -1, i == 1 ? &w->checks[b] : &later, &later);
        note_later(&w->checks[b], &later);
    }
    w->seconds[b] = clock_seconds() - began;
    return status;
}

static enum gb_status prepare(struct worker *w, char **argv, struct gb_error *error)
{
    const uint32_t both = GB_DEVICE_POINTERS | GB_GRAPH_CAPTURABLE;
    enum gb_status status = argv[1][0] ? gb_fixture_read(argv[1], &w->whole, error)
                                       : gb_fixture_attach(CHILD_SHARED + WORKER_FIXTURE, &w->whole, error);
    if (!argv[1][0])
        close(CHILD_SHARED + WORKER_FIXTURE);
    w->fixture = w->whole;
    if (status == GB_OK && w->rendezvous) {
        status = rank_part_new(w->whole, w->rank, w->rendezvous, &w->part, error);
        w->fixture = &w->part.fixture;
    }
    if (status == GB_OK) {
        const struct gb_kernel_table *table;
        status = subject_open(argv[2], NULL, &table, error);
        w->loading_changed = environment_reset();
        w->kernel = status == GB_OK ? subject_find(table, argv[3]) : NULL;
    }
    if (status != GB_OK)
        return status;
    if (!w->kernel)
        return gb_fail(error, GB_EINVAL, "%s: no kernel named %s", argv[2], argv[3]);
    w->row = operator_find(w->kernel->operation);
    w->uses = operator_uses(w->kernel);
    status = subject_memory(w->kernel, &w->memory, error);
    if (status == GB_OK && !w->timed.samples) /* what is timed has its memory as it is */
        status = subject_poison(w->kernel, GUARDED_FRESH, error);
    if (status == GB_OK && (w->kernel->flags & both) == both)
        status = subject_timer(w->kernel, &w->clock, error);
    if (w->clock && !w->clock->capture)
        w->clock = NULL;
    if (status == GB_OK)
        status = parse_batches("--batch", argv[4], w->fixture->shape.tokens, w->batches, &w->batch_count, error);
    uint32_t layers = w->fixture->layers;
    for (uint32_t b = 0; status == GB_OK && b < w->batch_count; b++) {
        bool with_stack = operator_has_stack(w->kernel, w->fixture) && b == w->batch_count - 1;
        status = new_outputs(w, w->batches[b], layers, with_stack, &w->outputs[b], error);
        if (status == GB_OK)
            status = new_outputs(w, w->batches[b], layers, false, &w->moved[b], error);
    }
    if (status == GB_OK && operator_has_stack(w->kernel, w->fixture)) {
        size_t bytes = sizeof(double) * w->batches[w->batch_count - 1] * w->fixture->shape.hidden;
        w->state = malloc(bytes);
        if (!w->state)
            return gb_fail(error, GB_ENOMEM, "no memory for the residual stream");
        memcpy(w->state, w->fixture->stack.residual, bytes);
    }
    return status;
}

static enum gb_status work(struct worker *w, char **argv, struct gb_error *error)
{
    enum gb_status status = prepare(w, argv, error);
    for (uint32_t b = 0; status == GB_OK && b < w->batch_count; b++) {
        struct gb_quantisation quantisation;
        struct gb_problem problem = w->row->ask(w->kernel, w->fixture, w->batches[b], &quantisation);
        status = w->kernel->supports(&problem, error);
        w->calls_changed |= environment_reset();
        if (status == GB_OK && !w->row->layers)
            status = run_arrays(w, b, error);
        if (status == GB_OK && !w->row->layers && w->timed.samples)
            status = time_batch(w, NULL, b, error);
    }
    for (uint32_t l = 0; status == GB_OK && l < w->fixture->layers; l++)
        status = run_layer(w, l, error);
    for (uint32_t b = 0; status == GB_OK && b < w->batch_count; b++) {
        const int file = CHILD_SHARED + WORKER_OUTPUTS + 2 * (int)b;
        status = written_send(file, w->kernel, w->fixture, w->outputs[b], error);
        if (status == GB_OK && w->moved_differs[b])
            status = written_send(file + 1, w->kernel, w->fixture, w->moved[b], error);
    }
    return status;
}

/* Whether the subject has taken memory from its own process. */
static bool has_less_room(const struct worker *w)
{
    struct rlimit now;
    return getrlimit(RLIMIT_AS, &now) == 0 && now.rlim_cur < w->room.rlim_cur;
}

/* Into the room that the parent reserved. */
static bool write_report(const json_t *report)
{
    char *text = json_dumps(report, JSON_INDENT(1));
    size_t length = text ? strlen(text) : 0;
    bool good = text && length < WORKER_REPORT_BYTES &&
                pwrite(CHILD_SHARED + WORKER_REPORT, text, length, 0) == (ssize_t)length;
    free(text);
    return good;
}

static json_t *checks_json(const struct worker_checks *c)
{
    return json_pack("{s:b, s:b, s:I, s:I, s:s}", "canary_broken", c->canary_broken, "input_changed", c->input_changed,
                     "unwritten", (json_int_t)c->unwritten, "differing", (json_int_t)c->differing, "where", c->where);
}

static json_int_t nanoseconds(double seconds)
{
    return (json_int_t)(seconds * 1e9 + 0.5);
}

static json_t *timing_json(const struct timing *t)
{
    json_t *run = json_array(), *read = json_array(), *large = json_array();
    for (uint32_t i = 0; i < t->samples; i++) {
        json_array_append_new(run, json_integer(nanoseconds(t->sample[i].run_s)));
        json_array_append_new(read, json_integer(nanoseconds(t->sample[i].read_s)));
        json_array_append_new(large, json_integer(nanoseconds(t->sample[i].large_s)));
    }
    return json_pack("{s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "copies", (int)t->copies, "runs",
                     (int)t->runs, "launches", (int)t->launches, "weights", (json_int_t)t->weights, "bytes",
                     (json_int_t)t->bytes, "cache_bytes", (json_int_t)t->cache_bytes, "large_bytes",
                     (json_int_t)t->large_bytes, "prepare_ns", nanoseconds(t->prepare_s), "run_ns", run, "read_ns",
                     read, "large_ns", large);
}

/* timed SAMPLES cold|hot CACHE, or rank RANK RENDEZVOUS */
static bool parse_mode(struct worker *w, int argc, char **argv)
{
    uint64_t number, cache;
    bool timed = !strcmp(argv[0], "timed"), rank = !strcmp(argv[0], "rank");
    if (argc != (timed ? 4 : 3) || !(timed || rank) ||
        !parse_number(argv[1], timed ? 1 : 0, timed ? MOST_TIMES : UINT32_MAX, &number))
        return false;
    if (rank) {
        w->rank = (uint32_t)number;
        w->rendezvous = argv[2];
        return true;
    }
    if (!parse_number(argv[3], 0, MOST_CACHE_BYTES, &cache))
        return false;
    w->timed = (struct timing_request){.samples = (uint32_t)number, .hot = !strcmp(argv[2], "hot"), .cache = cache};
    return w->timed.hot || !strcmp(argv[2], "cold");
}

int worker_main(int argc, char **argv)
{
    static struct worker w;
    struct gb_error error = {""};
    if (argc < 5 || (argc > 5 && !parse_mode(&w, argc - 5, &argv[5]))) {
        fprintf(stderr, "gaugeblock worker: is run by gaugeblock verify and bench\n");
        return EXIT_USAGE;
    }
    getrlimit(RLIMIT_AS, &w.room);
    enum gb_status status = work(&w, argv, &error);
    error.message[sizeof error.message - 1] = '\0'; /* it may be the kernel's */
    json_t *batches = json_array(), *routing = json_array(), *seconds = json_array(), *timing = json_array();
    for (uint32_t b = 0; b < w.batch_count; b++) {
        json_array_append_new(seconds, json_real(w.seconds[b]));
        json_array_append_new(batches, checks_json(&w.checks[b]));
        json_array_append_new(timing, timing_json(&w.timing[b]));
        json_array_append_new(routing, checks_json(&w.routing[b]));
    }
    json_t *report = json_pack("{s:i, s:b, s:o, s:o, s:o, s:o, s:o, s:i, s:i}", "status", (int)status, "less_room",
                               has_less_room(&w), "message", record_string(error.message), "batches", batches,
                               "routing", routing, "seconds", seconds, "timing", timing, "loading_changed",
                               (int)w.loading_changed, "calls_changed", (int)w.calls_changed);
    bool failed = !report || !write_report(report);
    json_decref(report);
    for (uint32_t b = 0; b < w.batch_count; b++) {
        gb_outputs_free(w.outputs[b]);
        gb_outputs_free(w.moved[b]);
    }
    rank_part_free(&w.part);
    gb_fixture_free(w.whole);
    free(w.state);
    return failed ? EXIT_CRASH : EXIT_PASS;
}
