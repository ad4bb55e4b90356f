/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/operators.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/reference.h"

void *operator_pointer(const void *structure, size_t place)
{
    void *pointer;
    memcpy(&pointer, (const char *)structure + place, sizeof pointer);
    return pointer;
}

#define READ(NAME, ARGUMENT, USE, INPUTS, PLACE, BYTES)                                                                \
    .name = NAME, .use = USE, .argument = offsetof(struct gb_arguments, ARGUMENT),                                     \
    .place = offsetof(struct INPUTS, PLACE), .bytes = BYTES
#define WRITTEN(NAME, ARGUMENT, USE, ROUTING, OUTPUTS, PLACE, BYTES)                                                   \
    {                                                                                                                  \
        .name = NAME, .use = USE, .written = true, .routing = ROUTING,                                                 \
        .argument = offsetof(struct gb_arguments, ARGUMENT), .place = offsetof(struct OUTPUTS, PLACE), .bytes = BYTES  \
    }

/* Operators on layers. */

static size_t pairs_of(const struct gb_fixture *f, uint32_t tokens)
{
    return (size_t)tokens * f->shape.top_k;
}

static size_t bytes_of_x(const struct gb_kernel *k, const struct gb_fixture *f, uint32_t tokens, size_t *element)
{
    (void)k;
    *element = sizeof(gb_bf16);
    return (size_t)tokens * f->shape.hidden * *element;
}

static size_t bytes_of_ids(const struct gb_kernel *k, const struct gb_fixture *f, uint32_t tokens, size_t *element)
{
    (void)k;
    *element = sizeof(int32_t);
    return pairs_of(f, tokens) * *element;
}

static size_t bytes_of_routing_weights(const struct gb_kernel *k, const struct gb_fixture *f, uint32_t tokens,
                                       size_t *element)
{
    (void)k;
    *element = sizeof(float);
    return pairs_of(f, tokens) * *element;
}

static size_t bytes_of_intermediate(const struct gb_kernel *k, const struct gb_fixture *f, uint32_t tokens,
                                    size_t *element)
{
    (void)k;
    *element = sizeof(gb_bf16);
    return pairs_of(f, tokens) * f->shape.intermediate * *element;
}

static size_t bytes_of_output(const struct gb_kernel *k, const struct gb_fixture *f, uint32_t tokens, size_t *element)
{
    *element = k->output == GB_FP32 ? sizeof(float) : sizeof(gb_bf16);
    return (size_t)tokens * f->shape.hidden * *element;
}

static size_t bytes_of_activations(const struct gb_fixture *f, uint32_t tokens, enum gb_activation_part part,
                                   size_t *element)
{
    struct gb_activation_array a = gb_activation_array(gb_fixture_activation_rules(f), &f->shape, part);
    *element = a.bytes;
    return (size_t)tokens * a.slots * a.width * *element;
}

#define ACTIVATIONS(NAME, PART)                                                                                        \
    static size_t bytes_of_##NAME(const struct gb_kernel *k, const struct gb_fixture *f, uint32_t tokens,              \
                                  size_t *element)                                                                     \
    {                                                                                                                  \
        (void)k;                                                                                                       \
        return bytes_of_activations(f, tokens, PART, element);                                                         \
    }
ACTIVATIONS(x_codes, GB_X_CODES)
ACTIVATIONS(x_scales, GB_X_SCALES)
ACTIVATIONS(intermediate_codes, GB_INTERMEDIATE_CODES)
ACTIVATIONS(intermediate_scales, GB_INTERMEDIATE_SCALES)

#define LAYER_READ(NAME, ARGUMENT, USE)                                                                                \
    {                                                                                                                  \
        READ(NAME, ARGUMENT, USE, operator_inputs, ARGUMENT, bytes_of_##ARGUMENT)                                      \
    }
#define CODES_WRITTEN(NAME, USE, PART)                                                                                 \
    WRITTEN(#NAME, NAME, USE, false, gb_layer_outputs, activations[PART], bytes_of_##NAME)

static const struct operator_array of_layers[] = {
    LAYER_READ("x", x, READS_X),
    LAYER_READ("ids", ids, READS_ROUTING),
    LAYER_READ("routing weights", routing_weights, READS_ROUTING_WEIGHTS),
    LAYER_READ("intermediate", intermediate, READS_INTERMEDIATE),
    WRITTEN("output", output, WRITES_OUTPUT, false, gb_layer_outputs, output, bytes_of_output),
    WRITTEN("intermediate", intermediate, WRITES_INTERMEDIATE, false, gb_layer_outputs, intermediate,
            bytes_of_intermediate),
    WRITTEN("routed ids", routed_ids, WRITES_ROUTING, true, gb_layer_outputs, ids, bytes_of_ids),
    WRITTEN("routed weights", routed_weights, WRITES_ROUTING, true, gb_layer_outputs, routing_weights,
            bytes_of_routing_weights),
    CODES_WRITTEN(x_codes, WRITES_X_CODES, GB_X_CODES),
    CODES_WRITTEN(x_scales, WRITES_X_CODES, GB_X_SCALES),
    CODES_WRITTEN(intermediate_codes, WRITES_INTERMEDIATE_CODES, GB_INTERMEDIATE_CODES),
    CODES_WRITTEN(intermediate_scales, WRITES_INTERMEDIATE_CODES, GB_INTERMEDIATE_SCALES),
};

static struct gb_problem ask_layer(const struct gb_kernel *kernel, const struct gb_fixture *fixture, uint32_t tokens,
                                   struct gb_quantisation *quantisation)
{
    struct gb_problem problem = gb_fixture_problem(fixture, tokens);
    (void)quantisation;
    if (kernel->activations == GB_BF16)
        problem.activation_rules = NULL;
    if (kernel->flags & GB_ROUTES)
        problem.router = gb_fixture_router(fixture);
    return problem;
}

static struct gb_problem ask_router(const struct gb_kernel *kernel, const struct gb_fixture *fixture, uint32_t tokens,
                                    struct gb_quantisation *quantisation)
{
    (void)kernel;
    (void)quantisation;
    return (struct gb_problem){.size = sizeof(struct gb_problem),
                               .shape = gb_fixture_problem(fixture, tokens).shape,
                               .weights = GB_BF16,
                               .router = gb_fixture_router(fixture)};
}

static enum gb_status new_routing(const struct gb_kernel *kernel, const struct gb_fixture *fixture, uint32_t tokens,
                                  uint32_t layers, bool with_stack, struct gb_outputs **outputs, struct gb_error *error)
{
    struct gb_shape shape = fixture->shape;
    (void)kernel;
    (void)with_stack;
    shape.tokens = tokens;
    return gb_outputs_new_routing(&shape, layers, outputs, error);
}

static enum gb_status new_layers(const struct gb_kernel *kernel, const struct gb_fixture *fixture, uint32_t tokens,
                                 uint32_t layers, bool with_stack, struct gb_outputs **outputs, struct gb_error *error)
{
    static const uint32_t of_part[GB_ACTIVATION_PARTS] = {
        [GB_X_CODES] = WRITES_X_CODES,
        [GB_X_SCALES] = WRITES_X_CODES,
        [GB_INTERMEDIATE_CODES] = WRITES_INTERMEDIATE_CODES,
        [GB_INTERMEDIATE_SCALES] = WRITES_INTERMEDIATE_CODES,
    };
    struct gb_shape shape = fixture->shape;
    uint32_t uses = operator_uses(kernel);
    shape.tokens = tokens;
    enum gb_status status =
        gb_outputs_new(&shape, layers, kernel->output, uses & WRITES_INTERMEDIATE, with_stack, outputs, error);
    if (status == GB_OK && uses & WRITES_ROUTING)
        status = gb_outputs_add_routing(*outputs, error);
    for (int p = 0; status == GB_OK && p < GB_ACTIVATION_PARTS; p++)
        if (uses & of_part[p])
            status = gb_outputs_add_activations(*outputs, gb_fixture_activation_rules(fixture),
                                                (enum gb_activation_part)p, error);
    return status;
}

/* Quantisers. */

static size_t bytes_of_values(const struct gb_kernel *k, const struct gb_fixture *f, uint32_t tokens, size_t *element)
{
    (void)k;
    *element = sizeof *f->values;
    return (size_t)tokens * f->quantisation.input_columns * *element;
}

static size_t bytes_of_codes(const struct gb_kernel *k, const struct gb_fixture *f, uint32_t tokens, size_t *element)
{
    struct gb_quantisation q = gb_fixture_quantisation(f, tokens);
    (void)k;
    *element = 1;
    return gb_code_arrays(&q).codes;
}

static size_t bytes_of_scales(const struct gb_kernel *k, const struct gb_fixture *f, uint32_t tokens, size_t *element)
{
    struct gb_quantisation q = gb_fixture_quantisation(f, tokens);
    struct gb_code_arrays a = gb_code_arrays(&q);
    (void)k;
    *element = a.scale_bytes;
    return a.scales;
}

static struct gb_problem ask_quantiser(const struct gb_kernel *kernel, const struct gb_fixture *fixture,
                                       uint32_t tokens, struct gb_quantisation *quantisation)
{
    (void)kernel;
    *quantisation = gb_fixture_quantisation(fixture, tokens);
    return (struct gb_problem){.size = sizeof(struct gb_problem), .quantise = quantisation};
}

static enum gb_status new_codes(const struct gb_kernel *kernel, const struct gb_fixture *fixture, uint32_t tokens,
                                uint32_t layers, bool with_stack, struct gb_outputs **outputs, struct gb_error *error)
{
    struct gb_quantisation q = gb_fixture_quantisation(fixture, tokens);
    (void)kernel;
    (void)layers;
    (void)with_stack;
    return gb_outputs_new_codes(&q, outputs, error);
}

static const struct operator_array of_quantisers[] = {
    {READ("values", values, 0, gb_fixture, values, bytes_of_values)},
    WRITTEN("codes", codes, 0, false, gb_outputs, codes, bytes_of_codes),
    WRITTEN("scales", scales, 0, false, gb_outputs, scales, bytes_of_scales),
};

/* Over ranks. */

#define FIXED(NAME, TYPE, COUNT)                                                                                       \
    static size_t bytes_of_##NAME(const struct gb_kernel *k, const struct gb_fixture *f, uint32_t tokens,              \
                                  size_t *element)                                                                     \
    {                                                                                                                  \
        (void)k;                                                                                                       \
        (void)tokens; /* of all ranks, always */                                                                       \
        *element = sizeof(TYPE);                                                                                       \
        return *element * (COUNT);                                                                                     \
    }
FIXED(placement, int32_t, f->shape.experts)
FIXED(rows, gb_bf16, (size_t)f->exchanged.asked.rows * f->shape.hidden)
FIXED(routes_of_rows, int32_t, f->exchanged.routes ? f->exchanged.asked.rows : 0u) /* of one rank */

/* What is written; NAME is that of gb_outputs_exchanged. */
#define EXCHANGED(NAME, PART)                                                                                          \
    static size_t bytes_of_##NAME(const struct gb_kernel *k, const struct gb_fixture *f, uint32_t tokens,              \
                                  size_t *element)                                                                     \
    {                                                                                                                  \
        struct gb_exchange_array a = gb_exchange_array(&f->exchanged.asked, k->output, PART);                          \
        (void)tokens;                                                                                                  \
        *element = a.element ? a.element : 1;                                                                          \
        return a.bytes;                                                                                                \
    }
EXCHANGED(counts, GB_EXCHANGE_COUNTS)
EXCHANGED(routes, GB_EXCHANGE_ROUTES)
EXCHANGED(sent_codes, GB_EXCHANGE_CODES)
EXCHANGED(sent_scales, GB_EXCHANGE_SCALES)
EXCHANGED(combined, GB_EXCHANGE_OUTPUT)

static size_t moved_rows(const struct gb_fixture *f)
{
    const struct gb_exchange *x = &f->exchanged.asked;
    return x->accumulation ? (size_t)x->rows * x->hidden * sizeof *f->exchanged.rows
                           : gb_exchange_array(x, GB_FP32, GB_EXCHANGE_CODES).bytes +
                                 gb_exchange_array(x, GB_FP32, GB_EXCHANGE_SCALES).bytes;
}

static struct gb_problem ask_exchange(const struct gb_kernel *kernel, const struct gb_fixture *fixture, uint32_t tokens,
                                      struct gb_quantisation *quantisation)
{
    (void)kernel;
    (void)tokens;
    (void)quantisation;
    return (struct gb_problem){.size = sizeof(struct gb_problem), .exchange = &fixture->exchanged.asked};
}

static enum gb_status new_sent(const struct gb_kernel *kernel, const struct gb_fixture *fixture, uint32_t tokens,
                               uint32_t layers, bool with_stack, struct gb_outputs **outputs, struct gb_error *error)
{
    (void)kernel;
    (void)tokens;
    (void)layers;
    (void)with_stack;
    return gb_outputs_new_dispatch(&fixture->exchanged.asked, outputs, error);
}

static enum gb_status new_combined(const struct gb_kernel *kernel, const struct gb_fixture *fixture, uint32_t tokens,
                                   uint32_t layers, bool with_stack, struct gb_outputs **outputs,
                                   struct gb_error *error)
{
    (void)tokens;
    (void)layers;
    (void)with_stack;
    return gb_outputs_new_combine(&fixture->exchanged.asked, kernel->output, outputs, error);
}

/* A copy of an array [count, bytes], the last element first; NULL stays. */
static bool reversed(size_t count, size_t bytes, const void *array, void *place)
{
    char *copy = array ? malloc(count * bytes) : NULL;
    for (size_t i = 0; copy && i < count; i++)
        memcpy(copy + i * bytes, (const char *)array + (count - 1 - i) * bytes, bytes);
    memcpy(place, &copy, sizeof copy);
    return copy || !array;
}

/* Tokens and rows in reverse: as many routes, to other places. */
static enum gb_status other_exchange(const struct gb_fixture *f, struct gb_fixture *other, struct gb_error *error)
{
    const struct gb_exchanged *e = &f->exchanged;
    const struct gb_shape *s = &f->shape;
    *other = *f;
    struct gb_exchanged *to = &other->exchanged;
    to->routes = NULL;
    bool good = reversed(s->tokens, sizeof *e->ids * s->top_k, e->ids, &to->ids);
    good &= reversed(s->tokens, sizeof *e->x * s->hidden, e->x, &to->x);
    good &= reversed(s->tokens, sizeof *e->routing_weights * s->top_k, e->routing_weights, &to->routing_weights);
    good &= reversed(e->asked.rows, sizeof *e->rows * s->hidden, e->rows, &to->rows);
    return good ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for %u other tokens", s->tokens);
}

static void free_exchange(struct gb_fixture *other)
{
    free(other->exchanged.ids);
    free(other->exchanged.x);
    free(other->exchanged.routing_weights);
    free(other->exchanged.rows);
}

/* The route of a row; negative: no memory, or it has one rank's rows alone. */
static int64_t route_of(const struct gb_fixture *f, size_t row)
{
    struct gb_arguments a = gb_fixture_exchange_arguments(f);
    struct gb_error ignored;
    int32_t *routes = malloc(sizeof *routes * a.exchange->rows);
    int64_t route = routes && gb_reference_routes(&a, routes, &ignored) == GB_OK ? routes[row] : -1;
    free(routes);
    return route;
}

/* What was sent belongs to the slot of its row, a sum to its token. */
static void place_exchanged(const struct gb_fixture *f, const struct operator_array *array, size_t element, char *text,
                            size_t bytes)
{
    const struct gb_exchange *x = &f->exchanged.asked;
    if (array->place == offsetof(struct gb_outputs, combined)) {
        size_t token = element / x->hidden;
        snprintf(text, bytes, " (rank %zu, token %zu)", x->one_rank ? x->rank : token / x->tokens, token % x->tokens);
    } else if (array->place != offsetof(struct gb_outputs, counts)) {
        enum gb_exchange_part part = array->place == offsetof(struct gb_outputs, routes)  ? GB_EXCHANGE_ROUTES
                                     : array->place == offsetof(struct gb_outputs, codes) ? GB_EXCHANGE_CODES
                                                                                          : GB_EXCHANGE_SCALES;
        uint32_t columns = gb_exchange_array(x, GB_FP32, part).columns;
        size_t row = element / (columns ? columns : 1);
        int64_t route = route_of(f, row), token = route / x->top_k;
        if (route >= 0)
            snprintf(text, bytes, " (row %zu: token %lld of rank %lld, slot %lld)", row, (long long)(token % x->tokens),
                     (long long)(token / x->tokens), (long long)(route % x->top_k));
    }
}

#define RANKS_READ(NAME, ARGUMENT, PLACE, BYTES) READ(NAME, ARGUMENT, 0, gb_fixture, exchanged.PLACE, BYTES)
static const struct operator_array of_dispatch[] = {
    {RANKS_READ("x", x, x, bytes_of_x)},
    {RANKS_READ("ids", ids, ids, bytes_of_ids)},
    {RANKS_READ("placement", placement, placement, bytes_of_placement), .bound = true},
    WRITTEN("counts", counts, 0, false, gb_outputs, counts, bytes_of_counts),
    WRITTEN("routes", routes, 0, false, gb_outputs, routes, bytes_of_routes),
    WRITTEN("codes", codes, 0, false, gb_outputs, codes, bytes_of_sent_codes),
    WRITTEN("scales", scales, 0, false, gb_outputs, scales, bytes_of_sent_scales),
};
static const struct operator_array of_combine[] = {
    {RANKS_READ("ids", ids, ids, bytes_of_ids), .bound = true},
    {RANKS_READ("routing weights", routing_weights, routing_weights, bytes_of_routing_weights)},
    {RANKS_READ("placement", placement, placement, bytes_of_placement), .bound = true},
    {RANKS_READ("rows", values, rows, bytes_of_rows)},
    {RANKS_READ("routes", routes, routes, bytes_of_routes_of_rows), .bound = true},
    WRITTEN("output", output, 0, false, gb_outputs, combined, bytes_of_combined),
};

#define COUNT(ARRAY) (sizeof(ARRAY) / sizeof *(ARRAY))
#define ON_LAYERS                                                                                                      \
    .tokens = "tokens", .again = ", with tokens and experts in other places", .layers = true, .arrays = of_layers,     \
    .array_count = COUNT(of_layers)
#define OVER_RANKS(NAME)                                                                                               \
    .name = #NAME, .tokens = "tokens", .again = "", .over_ranks = true, .flags = GB_ONE_RANK, .arrays = of_##NAME,     \
    .array_count = COUNT(of_##NAME),                                                                                   \
    .instead = "sends tokens between ranks, so it runs on problems of gaugeblock make --operator " #NAME,              \
    .ask = ask_exchange, .moved = moved_rows, .other = other_exchange, .free_other = free_exchange,                    \
    .place = place_exchanged
#define QUANTISER(NAME)                                                                                                \
    .name = NAME, .tokens = "rows", .again = "", .arrays = of_quantisers, .array_count = COUNT(of_quantisers),         \
    .ask = ask_quantiser, .new_outputs = new_codes,                                                                    \
    .instead = "quantises values alone; make a problem of it (gaugeblock make q.h5 --operator " NAME                   \
               " --recipe nvfp4.trtllm/1), or judge its codes with gaugeblock identify"

static const struct operator_row rows[] = {
    {GB_LAYER, ON_LAYERS, .name = "layer", .flags = GB_ROUTES,
     .uses = READS_X | READS_ROUTING | READS_ROUTING_WEIGHTS | READS_GATE_UP | READS_DOWN | WRITES_OUTPUT,
     .stages = WRITES_INTERMEDIATE | WRITES_X_CODES | WRITES_INTERMEDIATE_CODES, .ask = ask_layer,
     .new_outputs = new_layers},
    {GB_GATE_UP, ON_LAYERS, .name = "gate_up", .uses = READS_X | READS_ROUTING | READS_GATE_UP | WRITES_INTERMEDIATE,
     .stages = WRITES_X_CODES, .ask = ask_layer, .new_outputs = new_layers},
    {GB_DOWN, ON_LAYERS, .name = "down",
     .uses = READS_INTERMEDIATE | READS_ROUTING | READS_ROUTING_WEIGHTS | READS_DOWN | WRITES_OUTPUT,
     .stages = WRITES_INTERMEDIATE_CODES, .ask = ask_layer, .new_outputs = new_layers},
    {GB_ROUTE, ON_LAYERS, .name = "route", .uses = READS_X | READS_ROUTER | WRITES_ROUTING, .ask = ask_router,
     .new_outputs = new_routing},
    {GB_QUANTISE, QUANTISER("quantise"), .reference = "cpu/quantise"},
    {GB_SILU_MUL_QUANTISE, QUANTISER("silu_mul_quantise"), .reference = "cpu/silu-mul-quantise", .flags = GB_OPEN_SILU},
    {GB_DISPATCH, OVER_RANKS(dispatch), .reference = "cpu/dispatch", .new_outputs = new_sent},
    {GB_COMBINE, OVER_RANKS(combine), .reference = "cpu/combine", .order = GB_ORDER_SLOTS, .new_outputs = new_combined},
};

const struct operator_row *operator_find(enum gb_operator operation)
{
    for (size_t i = 0; i < COUNT(rows); i++)
        if (rows[i].operation == operation)
            return &rows[i];
    return NULL;
}

const struct operator_row *operator_named(const char *name)
{
    for (size_t i = 0; i < COUNT(rows); i++)
        if (!strcmp(rows[i].name, name))
            return &rows[i];
    return NULL;
}

const struct operator_row *operator_of(const struct gb_fixture *fixture)
{
    return operator_find(fixture->operation ? fixture->operation : GB_LAYER);
}

const struct operator_row *operator_asked(const struct gb_problem *problem)
{
    const struct gb_quantisation *q = problem->quantise;
    const struct gb_exchange *x = problem->exchange;
    if (x)
        return operator_find(x->accumulation ? GB_COMBINE : GB_DISPATCH);
    return operator_find(!q ? GB_LAYER : q->input_columns == q->columns ? GB_QUANTISE : GB_SILU_MUL_QUANTISE);
}

const struct operator_row *operator_of_outputs(const struct gb_fixture *fixture, const struct gb_outputs *outputs)
{
    const struct operator_row *row = operator_of(fixture);
    return row->layers && !outputs->layer[0].output ? operator_find(GB_ROUTE) : row;
}

const char *operator_name(enum gb_operator operation)
{
    const struct operator_row *row = operator_find(operation);
    return row ? row->name : "unknown";
}

uint32_t operator_uses(const struct gb_kernel *kernel)
{
    const struct operator_row *row = operator_find(kernel->operation);
    uint32_t uses = row->uses | (kernel->flags & GB_STAGE_OUTPUTS ? row->stages : 0);
    if (kernel->activations == GB_BF16)
        uses &= ~(uint32_t)(WRITES_X_CODES | WRITES_INTERMEDIATE_CODES);
    if (kernel->flags & row->flags & GB_ROUTES)
        uses = (uses & ~(uint32_t)(READS_ROUTING | READS_ROUTING_WEIGHTS)) | READS_ROUTER | WRITES_ROUTING;
    return uses;
}

bool operator_is_whole(const struct gb_kernel *kernel)
{
    uint32_t uses = operator_uses(kernel);
    const uint32_t whole = READS_X | READS_EXPERTS | WRITES_OUTPUT;
    return (uses & whole) == whole;
}

bool operator_has_stack(const struct gb_kernel *kernel, const struct gb_fixture *fixture)
{
    return operator_is_whole(kernel) && fixture->stack.residual;
}

struct gb_kernel operator_router(const struct gb_kernel *kernel)
{
    struct gb_kernel router = *kernel;
    router.operation = GB_ROUTE;
    router.weights = router.activations = GB_BF16;
    router.order = kernel->order ? GB_ORDER_FMA32 : NULL; /* which every contract's router has */
    router.output = GB_FP32;
    router.roundings = (struct gb_stage_roundings){0}; /* they are the layer's */
    return router;
}
