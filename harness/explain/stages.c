/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/stages.h"
#include "quant/quant.h"

static enum gb_status no_memory(struct gb_error *error)
{
    return gb_fail(error, GB_ENOMEM, "no memory to take %s apart", "the layer");
}

static void widen(const gb_bf16 *from, size_t count, double *to)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (double)gb_bf16_decode(from[i]);
}

static size_t around(size_t index, int64_t offset, size_t size)
{
    int64_t moved = ((int64_t)index + offset) % (int64_t)size;
    return (size_t)(moved < 0 ? moved + (int64_t)size : moved);
}

/* Scales of a row become those `offset` blocks further on. */
static void move_scales(const struct gb_quantiser *rules, uint32_t rows, uint32_t blocks, int32_t offset,
                        const struct finding_axis *elements, uint8_t *scales)
{
    size_t each = rules->scale == GB_SCALE_FP32 ? sizeof(float) : 1;
    uint8_t *row = malloc(blocks * each);
    for (uint32_t r = 0; row && r < rows; r++) {
        uint8_t *own = scales + (size_t)r * blocks * each;
        memcpy(row, own, blocks * each);
        for (uint32_t b = 0; b < blocks; b++)
            if (!elements || finding_axis_has(elements, b * rules->block_columns))
                memcpy(own + b * each, row + around(b, offset, blocks) * each, each);
    }
    free(row);
}

static enum gb_status quantise(const struct stages *s, enum gb_operator operation, uint32_t width, const gb_bf16 *rows,
                               uint32_t count, int32_t offset, const struct finding_axis *elements, double *values,
                               struct gb_error *error)
{
    struct gb_arguments a = s->diagnosis->trace.arguments;
    size_t codes_bytes, scales_bytes;
    if (!a.activation_rules) {
        widen(rows, (size_t)count * width, values);
        return GB_OK;
    }
    a.shape.tokens = count;
    a.shape.top_k = 1;
    enum gb_status status = gb_quantiser_bytes(a.activation_rules, count, width, &codes_bytes, &scales_bytes, error);
    if (status != GB_OK)
        return status;
    void *codes = malloc(codes_bytes), *scales = malloc(scales_bytes);
    status = codes && scales ? gb_reference_quantise_activations(&a, operation, rows, codes, scales, error)
                             : no_memory(error);
    if (status == GB_OK && offset)
        move_scales(a.activation_rules, count, width / a.activation_rules->block_columns, offset, elements, scales);
    if (status == GB_OK)
        status = gb_reference_activation_values(&a, operation, codes, scales, values, error);
    free(codes);
    free(scales);
    return status;
}

enum gb_status stages_requantise(const struct stages *s, const gb_bf16 *rows, uint32_t count, double *values,
                                 struct gb_error *error)
{
    return quantise(s, GB_DOWN, s->intermediate, rows, count, 0, NULL, values, error);
}

enum gb_status stages_read(const struct stages *s, const gb_bf16 *rows, uint32_t count, double *values,
                           struct gb_error *error)
{
    return quantise(s, GB_GATE_UP, s->hidden, rows, count, 0, NULL, values, error);
}

enum gb_status stages_new(const struct diagnosis *w, struct stages *s, struct gb_error *error)
{
    const struct trace *t = &w->trace;
    const struct gb_shape *shape = &t->arguments.shape;
    size_t pairs = (size_t)shape->tokens * shape->top_k, inner = pairs * shape->intermediate;
    size_t outer = pairs * shape->hidden, outputs = (size_t)shape->tokens * shape->hidden;
    *s = (struct stages){.diagnosis = w,
                         .tokens = shape->tokens,
                         .top_k = shape->top_k,
                         .pairs = (uint32_t)pairs,
                         .hidden = shape->hidden,
                         .intermediate = shape->intermediate,
                         .experts = shape->experts,
                         .ids = t->arguments.ids};
    s->x = malloc(outer * sizeof(double));
    s->gate = malloc(inner * sizeof(double));
    s->up = malloc(inner * sizeof(double));
    s->act = malloc(inner * sizeof(double));
    s->requant = malloc(inner * sizeof(double));
    s->slots = malloc(outer * sizeof(double));
    s->weights = malloc(pairs * sizeof(double));
    s->output = malloc(outputs * sizeof(double));
    if (!s->x || !s->gate || !s->up || !s->act || !s->requant || !s->slots || !s->weights || !s->output)
        return no_memory(error);
    for (size_t pair = 0; pair < pairs; pair++) {
        widen(t->arguments.x + pair / shape->top_k * shape->hidden, shape->hidden, s->x + pair * shape->hidden);
        s->weights[pair] = t->arguments.routing_weights ? (double)t->arguments.routing_weights[pair] : 1.0;
    }
    for (size_t i = 0; i < inner; i++) {
        s->gate[i] = (double)t->gate[i];
        s->up[i] = (double)t->up[i];
    }
    widen(t->intermediate, inner, s->act);
    for (size_t i = 0; i < outer; i++)
        s->slots[i] = (double)t->slots[i];
    for (size_t i = 0; i < outputs; i++)
        s->output[i] = (double)t->output[i];
    return stages_requantise(s, t->intermediate, (uint32_t)pairs, s->requant, error);
}

void stages_free(struct stages *s)
{
    free(s->x);
    free(s->gate);
    free(s->up);
    free(s->act);
    free(s->requant);
    free(s->slots);
    free(s->weights);
    free(s->output);
}

const double *stages_array(const struct stages *s, enum finding_stage stage, uint32_t *width)
{
    static const double *const none = NULL;
    const double *const arrays[] = {s->x, s->gate, s->up, s->gate, s->act, s->requant, s->slots, s->weights, s->output};
    *width = stage == FINDING_INPUT || stage == FINDING_DOWN || stage == FINDING_COMBINE ? s->hidden
             : stage == FINDING_ROUTING_WEIGHT                                           ? 1
                                                                                         : s->intermediate;
    return stage < FINDING_STAGES ? arrays[stage] : none;
}

bool stages_hit(const struct stages *s, const struct finding *f, size_t pair)
{
    uint32_t token = (uint32_t)(pair / s->top_k) + s->diagnosis->first, slot = (uint32_t)(pair % s->top_k);
    return s->ids[pair] >= 0 && finding_axis_has(&f->tokens, token) && finding_axis_has(&f->slots, slot) &&
           finding_axis_has(&f->experts, (uint32_t)s->ids[pair]);
}

static double rounded(double v, enum finding_type type)
{
    float value = (float)v;
    uint32_t bits;
    switch (type) {
    case FINDING_FP16:
        return (double)gb_fp16_decode(gb_fp16_encode(value));
    case FINDING_E4M3:
        return (double)gb_e4m3_decode(gb_e4m3_encode(value));
    case FINDING_E5M2:
        return (double)gb_e5m2_decode(gb_e5m2_encode(value));
    case FINDING_BF16_TRUNCATED:
        memcpy(&bits, &value, sizeof bits);
        bits &= 0xFFFF0000u;
        memcpy(&value, &bits, sizeof value);
        return (double)value;
    default:
        return (double)gb_bf16_decode(gb_bf16_encode(value));
    }
}

double effect_of(const struct finding *f, const double *rows, size_t count, size_t per_token, size_t width, size_t row,
                 size_t i)
{
    const double *own = rows + row * width;
    double v = own[i];
    switch (f->effect) {
    case FINDING_FACTOR:
        return f->amount * v;
    case FINDING_ADD:
        return v + f->amount;
    case FINDING_CONSTANT:
        return f->amount;
    case FINDING_NEGATIVE:
        return fabs(v);
    case FINDING_SATURATE:
        return fmin(fmax(v, -f->amount), f->amount);
    case FINDING_FLUSH:
        return fabs(v) < f->amount ? 0.0 : v;
    case FINDING_ROUND:
        return rounded(v, f->type);
    case FINDING_ELEMENT:
        return own[around(i, f->offset, width)];
    case FINDING_XOR:
        return (i ^ (size_t)f->offset) < width ? own[i ^ (size_t)f->offset] : v;
    case FINDING_REVERSE:
        return own[width - 1 - i];
    case FINDING_TOKEN:
        return rows[around(row, (int64_t)f->offset * (int64_t)per_token, count) * width + i];
    case FINDING_SLOT:
        return rows[(row / per_token * per_token + around(row % per_token, f->offset, per_token)) * width + i];
    default:
        return v;
    }
}

/* What becomes of the rows of these pairs of an array with slots. */
static void change(const struct stages *s, const struct finding *f, const bool *asked, const double *clean,
                   size_t width, double *rows)
{
    for (size_t p = 0; p < s->pairs; p++)
        for (size_t i = 0; asked[p] && stages_hit(s, f, p) && i < width; i++)
            if (finding_axis_has(&f->elements, (uint32_t)i))
                rows[p * width + i] = effect_of(f, clean, s->pairs, s->top_k, width, p, i);
}

/* ids: of the pairs that are hit and asked for, off by the finding's offset if it is one of experts of gate_up (or, if
 * `down`, of down); -1: the others. */
static int32_t *ids_of(const struct stages *s, const struct finding *f, const bool *asked, bool down)
{
    int32_t *ids = malloc(s->pairs * sizeof *ids);
    for (size_t p = 0; ids && p < s->pairs; p++) {
        ids[p] = asked[p] && stages_hit(s, f, p) ? s->ids[p] : -1;
        if (ids[p] >= 0 && f->effect == FINDING_EXPERT && down == (f->stage == FINDING_DOWN))
            ids[p] = (int32_t)around((size_t)ids[p], f->offset, s->experts);
    }
    return ids;
}

static struct gb_arguments apart(const struct stages *s, const int32_t *ids)
{
    struct gb_arguments a = s->diagnosis->pairs.arguments;
    a.ids = ids;
    return a;
}

/* Whether an effect on a whole row of x, or on columns of K, is asked for. */
static bool reads_otherwise(const struct finding *f)
{
    return f->stage == FINDING_INPUT || f->k.kind != AXIS_ALL || f->effect == FINDING_EXPERT;
}

static double k_factor(const struct finding *f)
{
    return f->effect == FINDING_CONSTANT ? 0.0 : f->amount;
}

/* gate, up: [pairs, intermediate], of the pairs asked for. */
static enum gb_status project(const struct stages *s, const struct finding *f, const bool *asked, double *gate,
                              double *up, struct gb_error *error)
{
    size_t H = s->hidden, I = s->intermediate, inner = s->pairs * I;
    gb_bf16 *x = malloc(s->pairs * H * sizeof *x), *intermediate = malloc(inner * sizeof *intermediate);
    float *values = malloc(3 * inner * sizeof *values);
    int32_t *ids = ids_of(s, f, asked, false);
    enum gb_status status = x && intermediate && values && ids ? GB_OK : no_memory(error);
    for (size_t i = 0; status == GB_OK && i < s->pairs * H; i++) {
        double v = s->x[i];
        if (ids[i / H] >= 0 && f->stage == FINDING_INPUT && finding_axis_has(&f->elements, (uint32_t)(i % H)))
            v = effect_of(f, s->x, s->pairs, s->top_k, H, i / H, i % H);
        else if (f->k.kind != AXIS_ALL && finding_axis_has(&f->k, (uint32_t)(i % H)))
            v *= k_factor(f);
        x[i] = gb_bf16_encode((float)v);
    }
    if (status == GB_OK) {
        struct gb_arguments a = apart(s, ids);
        struct gb_gate_up_values to = {values, values + inner, values + 2 * inner};
        a.x = x;
        a.intermediate = intermediate;
        status = gb_reference_gate_up_values(
            gb_contract_of(&a, GB_GATE_UP, gb_order_name(s->diagnosis->trace.contract->order)), &a, &to, error);
    }
    for (size_t i = 0; status == GB_OK && i < inner; i++) {
        bool taken =
            ids[i / I] >= 0 && (f->stage == FINDING_INPUT || finding_axis_has(&f->elements, (uint32_t)(i % I)));
        if (taken && f->stage != FINDING_UP)
            gate[i] = (double)values[i];
        if (taken && f->stage != FINDING_GATE)
            up[i] = (double)values[inner + i];
    }
    free(x);
    free(intermediate);
    free(values);
    free(ids);
    return status;
}

static void change_projections(const struct stages *s, const struct finding *f, const bool *asked, double *gate,
                               double *up)
{
    size_t I = s->intermediate;
    if (f->effect == FINDING_SWAPPED) {
        for (size_t i = 0; i < s->pairs * I; i++)
            if (asked[i / I] && stages_hit(s, f, i / I) && finding_axis_has(&f->elements, (uint32_t)(i % I))) {
                gate[i] = s->up[i];
                up[i] = s->gate[i];
            }
        return;
    }
    if (f->stage != FINDING_UP)
        change(s, f, asked, s->gate, I, gate);
    if (f->stage != FINDING_GATE)
        change(s, f, asked, s->up, I, up);
}

/* rows: [pairs, intermediate] in bf16, of the pairs asked for. */
static enum gb_status intermediate_under(const struct stages *s, const struct finding *f, const bool *asked,
                                         gb_bf16 *rows, struct gb_error *error)
{
    size_t inner = (size_t)s->pairs * s->intermediate;
    double *gate = malloc(inner * sizeof *gate), *up = malloc(inner * sizeof *up), *act = malloc(inner * sizeof *act);
    enum gb_status status = gate && up && act ? GB_OK : no_memory(error);
    if (status == GB_OK) {
        memcpy(gate, s->gate, inner * sizeof *gate);
        memcpy(up, s->up, inner * sizeof *up);
        memcpy(act, s->act, inner * sizeof *act);
        memcpy(rows, s->diagnosis->trace.intermediate, inner * sizeof *rows);
        if (f->stage <= FINDING_GATE_UP && reads_otherwise(f))
            status = project(s, f, asked, gate, up, error);
        else if (f->stage <= FINDING_GATE_UP)
            change_projections(s, f, asked, gate, up);
        else if (f->stage == FINDING_ACT)
            change(s, f, asked, s->act, s->intermediate, act);
    }
    for (size_t i = 0; status == GB_OK && i < inner; i++) {
        size_t p = i / s->intermediate;
        if (!asked[p] || !stages_hit(s, f, p))
            continue;
        if (f->stage <= FINDING_GATE_UP && (gate[i] != s->gate[i] || up[i] != s->up[i]))
            rows[i] = gb_bf16_encode(gb_gated(s->diagnosis->trace.arguments.activation, (float)gate[i], (float)up[i]));
        else if (f->stage == FINDING_ACT)
            rows[i] = gb_bf16_encode((float)act[i]);
    }
    free(gate);
    free(up);
    free(act);
    return status;
}

enum gb_status stages_operand(const struct stages *s, const struct finding *f, const bool *asked, double *operand,
                              double *intermediate, struct gb_error *error)
{
    size_t inner = (size_t)s->pairs * s->intermediate;
    memcpy(operand, s->requant, inner * sizeof *operand);
    if (f->stage == FINDING_REQUANT) {
        change(s, f, asked, s->requant, s->intermediate, operand);
        enum gb_status status = GB_OK;
        for (size_t p = 0; status == GB_OK && f->effect == FINDING_SCALES && p < s->pairs; p++)
            if (asked[p] && stages_hit(s, f, p))
                status = quantise(s, GB_DOWN, s->intermediate, s->diagnosis->trace.intermediate + p * s->intermediate,
                                  1, f->offset, &f->elements, operand + p * s->intermediate, error);
        return status;
    }
    gb_bf16 *rows = malloc(inner * sizeof *rows);
    enum gb_status status = rows ? intermediate_under(s, f, asked, rows, error) : no_memory(error);
    if (status == GB_OK && intermediate)
        widen(rows, inner, intermediate);
    for (size_t p = 0; status == GB_OK && p < s->pairs; p++)
        if (asked[p] && stages_hit(s, f, p))
            status = stages_requantise(s, rows + p * s->intermediate, 1, operand + p * s->intermediate, error);
    free(rows);
    return status;
}

/* Rows of down's products for numbers that no bf16 has: in float64. */
static void multiply(const struct stages *s, const struct finding *f, const double *operand, double *slots)
{
    const struct gb_arguments *a = &s->diagnosis->trace.arguments;
    double *row = malloc(s->intermediate * sizeof *row);
    for (size_t p = 0; row && p < s->pairs; p++)
        for (uint32_t j = 0; stages_hit(s, f, p) && j < s->hidden; j++) {
            double sum = s->slots[p * s->hidden + j];
            gb_weights_row(&a->down, (uint32_t)s->ids[p], j, row);
            for (size_t i = 0; i < s->intermediate; i++)
                sum += row[i] * (operand[p * s->intermediate + i] - s->requant[p * s->intermediate + i]);
            slots[p * s->hidden + j] = sum;
        }
    free(row);
}

/* slots: [pairs, hidden], of the pairs that are hit; the others stay. */
static enum gb_status contract_down(const struct stages *s, const struct finding *f, const gb_bf16 *rows, double *slots,
                                    struct gb_error *error)
{
    size_t outer = (size_t)s->pairs * s->hidden;
    bool *all = malloc(s->pairs * sizeof *all);
    float *ones = malloc(s->pairs * sizeof *ones), *results = malloc(outer * sizeof *results);
    gb_bf16 *input = malloc((size_t)s->pairs * s->intermediate * sizeof *input);
    int32_t *ids = NULL;
    enum gb_status status = all && ones && results && input ? GB_OK : no_memory(error);
    if (status == GB_OK) {
        for (size_t p = 0; p < s->pairs; p++) {
            ones[p] = 1.0f;
            all[p] = true;
        }
        ids = ids_of(s, f, all, true);
        status = ids ? GB_OK : no_memory(error);
    }
    if (status == GB_OK) {
        struct gb_arguments a = apart(s, ids);
        memcpy(input, rows, (size_t)s->pairs * s->intermediate * sizeof *input);
        a.intermediate = input;
        a.routing_weights = ones;
        a.output = results;
        status = gb_reference_down(gb_contract_of(&a, GB_DOWN, gb_order_name(s->diagnosis->trace.contract->order)), &a,
                                   error);
    }
    for (size_t i = 0; status == GB_OK && i < outer; i++)
        if (ids[i / s->hidden] >= 0 &&
            (f->stage != FINDING_DOWN || finding_axis_has(&f->elements, (uint32_t)(i % s->hidden))))
            slots[i] = (double)results[i];
    free(all);
    free(ones);
    free(results);
    free(input);
    free(ids);
    return status;
}

/* slots under a finding of any stage up to FINDING_DOWN. */
static enum gb_status slots_under(const struct stages *s, const struct finding *f, const gb_bf16 *rows, double *slots,
                                  struct gb_error *error)
{
    size_t inner = (size_t)s->pairs * s->intermediate;
    enum gb_status status = GB_OK;
    if (f->stage == FINDING_REQUANT) {
        double *operand = malloc(inner * sizeof *operand);
        bool *all = malloc(s->pairs * sizeof *all);
        for (size_t p = 0; all && p < s->pairs; p++)
            all[p] = true;
        status = operand && all ? stages_operand(s, f, all, operand, NULL, error) : no_memory(error);
        if (status == GB_OK)
            multiply(s, f, operand, slots);
        free(operand);
        free(all);
    } else if (f->stage == FINDING_DOWN && f->k.kind != AXIS_ALL) {
        gb_bf16 *some = malloc(inner * sizeof *some);
        for (size_t i = 0; some && i < inner; i++)
            some[i] = finding_axis_has(&f->k, (uint32_t)(i % s->intermediate))
                          ? gb_bf16_encode((float)(k_factor(f) * (double)gb_bf16_decode(rows[i])))
                          : rows[i];
        status = some ? contract_down(s, f, some, slots, error) : no_memory(error);
        free(some);
    } else if (f->stage < FINDING_DOWN || f->effect == FINDING_EXPERT) {
        status = contract_down(s, f, rows, slots, error);
    } else if (f->stage == FINDING_DOWN) {
        bool *all = malloc(s->pairs * sizeof *all);
        for (size_t p = 0; all && p < s->pairs; p++)
            all[p] = true;
        if (all)
            change(s, f, all, s->slots, s->hidden, slots);
        else
            status = no_memory(error);
        free(all);
    }
    return status;
}

static bool token_hit(const struct stages *s, const struct finding *f, uint32_t token)
{
    bool hit = false;
    for (size_t p = (size_t)token * s->top_k; p < (size_t)(token + 1) * s->top_k; p++)
        hit |= stages_hit(s, f, p);
    return hit;
}

/* The output of slots and weights, each in FP32. */
static void combine_under(const struct stages *s, const struct finding *f, const double *slots, float *results)
{
    for (uint32_t t = 0; t < s->tokens; t++)
        for (size_t j = 0; j < s->hidden; j++) {
            float y = 0.0f;
            for (size_t p = (size_t)t * s->top_k; p < (size_t)(t + 1) * s->top_k; p++) {
                double weight = s->weights[p];
                if (f->stage == FINDING_ROUTING_WEIGHT && stages_hit(s, f, p))
                    weight = effect_of(f, s->weights, s->pairs, s->top_k, 1, p, 0);
                if (s->ids[p] >= 0)
                    y = fmaf((float)weight, (float)slots[p * s->hidden + j], y);
            }
            if (f->stage == FINDING_COMBINE && token_hit(s, f, t) && finding_axis_has(&f->elements, (uint32_t)j))
                y = (float)effect_of(f, s->output, s->tokens, 1, s->hidden, t, j);
            results[(size_t)t * s->hidden + j] = y;
        }
}

enum gb_status stages_plant(const struct stages *s, const struct finding *f, float *results, struct gb_error *error)
{
    size_t inner = (size_t)s->pairs * s->intermediate, outer = (size_t)s->pairs * s->hidden;
    gb_bf16 *rows = malloc(inner * sizeof *rows);
    double *slots = malloc(outer * sizeof *slots);
    bool *all = malloc(s->pairs * sizeof *all);
    enum gb_status status = rows && slots && all ? GB_OK : no_memory(error);
    if (status == GB_OK) {
        memcpy(slots, s->slots, outer * sizeof *slots);
        memcpy(rows, s->diagnosis->trace.intermediate, inner * sizeof *rows);
        for (size_t p = 0; p < s->pairs; p++)
            all[p] = true;
        if (f->stage <= FINDING_ACT)
            status = intermediate_under(s, f, all, rows, error);
    }
    if (status == GB_OK && s->diagnosis->inner) {
        for (size_t i = 0; i < inner; i++)
            results[i] = gb_bf16_decode(rows[i]);
    } else if (status == GB_OK) {
        status = f->stage <= FINDING_DOWN ? slots_under(s, f, rows, slots, error) : GB_OK;
        if (status == GB_OK)
            combine_under(s, f, slots, results);
    }
    free(rows);
    free(slots);
    free(all);
    return status;
}
