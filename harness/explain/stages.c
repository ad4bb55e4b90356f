/* SPDX-License-Identifier: Apache-2.0 */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/altered_row.h"
#include "harness/explain/element_from.h"
#include "harness/explain/gate_functions.h"
#include "harness/explain/stages.h"
#include "quant/quant.h"

#undef I /* complex.h's, which cblas.h includes */

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
           finding_axis_has(&f->experts, (uint32_t)s->ids[pair]) &&
           finding_axis_has(&f->list, s->diagnosis->list[pair]);
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
    case FINDING_TF32: /* 13 of 23 bits are left out */
        memcpy(&bits, &value, sizeof bits);
        bits = (bits + 0xFFFu + (bits >> 13 & 1u)) & ~0x1FFFu;
        memcpy(&value, &bits, sizeof value);
        return (double)value;
    default:
        return (double)gb_bf16_decode(gb_bf16_encode(value));
    }
}

/* An element of a row as an integer times the scale of its row or group. */
static double as_integer(const double *row, size_t width, size_t i, enum finding_type type)
{
    const size_t group = type == FINDING_INT8 ? width : INT8_GROUP, first = i / group * group;
    const size_t end = first + group < width ? first + group : width;
    double most = 0.0;
    for (size_t n = first; n < end; n++)
        most = fmax(most, fabs(row[n]));
    const float scale = (float)most / 127.0f;
    return scale > 0.0f ? (double)(rintf((float)row[i] / scale) * scale) : 0.0;
}

/* The row whose token differs in the bits of the offset; itself where there is none. */
static size_t row_xor(const struct finding *f, size_t row, size_t count, size_t per_token)
{
    size_t token = row / per_token ^ (size_t)f->offset, other = token * per_token + row % per_token;
    return other < count ? other : row;
}

static double value_of(const struct finding *f, const double *rows, size_t count, size_t per_token, size_t width,
                       size_t row, size_t i)
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
    case FINDING_CAP:
        return fmin(v, f->amount);
    case FINDING_FLOOR:
        return fmax(v, f->amount);
    case FINDING_SATURATE:
        return fmin(fmax(v, -f->amount), f->amount);
    case FINDING_FLUSH:
        return fabs(v) < f->amount ? 0.0 : v;
    case FINDING_ROUND:
        return f->type >= FINDING_ROW_TYPES ? as_integer(own, width, i, f->type) : rounded(v, f->type);
    case FINDING_TOKEN:
        return rows[around(row, (int64_t)f->offset * (int64_t)per_token, count) * width + i];
    case FINDING_TOKEN_XOR:
        return rows[row_xor(f, row, count, per_token) * width + i];
    case FINDING_SLOT_OF:
        return rows[(row / per_token * per_token + (size_t)f->offset % per_token) * width + i];
    case FINDING_TOKEN_OF:
        return rows[(row / per_token % (size_t)f->offset * per_token + row % per_token) * width + i];
    case FINDING_SLOT:
        return rows[(row / per_token * per_token + around(row % per_token, f->offset, per_token)) * width + i];
    default:
        return own[element_from(f, width, i)];
    }
}

double effect_of(const struct finding *f, const double *rows, size_t count, size_t per_token, size_t width, size_t row,
                 size_t i)
{
    return value_of(f, rows, count, per_token, width, row, i) + (f->added ? rows[row * width + i] : 0.0);
}

/* The pair of the list of pair p's expert that the finding takes in its place; p where the diagnosis does not have it.
 */
static size_t listed(const struct stages *s, const struct finding *f, size_t p)
{
    const struct diagnosis *w = s->diagnosis;
    uint32_t place = f->effect == FINDING_CLAMPED      ? (uint32_t)f->offset
                     : f->effect == FINDING_LISTED_XOR ? w->list[p] ^ (uint32_t)f->offset
                                                       : (uint32_t)around(w->list[p], f->offset, w->listed[s->ids[p]]);
    for (size_t other = 0; other < s->pairs; other++)
        if (s->ids[other] == s->ids[p] && w->list[other] == place)
            return other;
    return p;
}

/* The weight of the token of pair p that `rank` of its weights are before, the largest first. */
static double weight_of_rank(const struct stages *s, size_t p, size_t rank)
{
    const double *weights = s->weights + p / s->top_k * s->top_k;
    for (uint32_t u = 0; u < s->top_k; u++) {
        size_t before = 0;
        for (uint32_t v = 0; v < s->top_k; v++)
            before += weights[v] > weights[u] || (weights[v] == weights[u] && v < u);
        if (before == rank)
            return weights[u];
    }
    return 0.0;
}

double stages_effect(const struct stages *s, const struct finding *f, const double *rows, size_t width, size_t p,
                     size_t i)
{
    const double own = rows[p * width + i];
    switch (f->effect) {
    case FINDING_LISTED:
    case FINDING_LISTED_XOR:
    case FINDING_CLAMPED:
        return rows[listed(s, f, p) * width + i] + (f->added ? own : 0.0);
    case FINDING_WEIGHTED:
        return own * s->weights[p];
    case FINDING_HALF:
        return (rows == s->gate ? s->up : s->gate)[p * width + i];
    case FINDING_LARGEST:
        return own / weight_of_rank(s, p, 0);
    case FINDING_RANKED:
        return weight_of_rank(s, p, p % s->top_k);
    case FINDING_FUNCTION:
        return gate_function(f->function, s->gate[p * width + i], s->up[p * width + i]);
    default:
        return effect_of(f, rows, s->pairs, s->top_k, width, p, i);
    }
}

/* What becomes of the rows of these pairs of an array with slots. */
static void change(const struct stages *s, const struct finding *f, const bool *asked, const double *clean,
                   size_t width, double *rows)
{
    for (size_t p = 0; p < s->pairs; p++) {
        const bool hit = asked[p] && stages_hit(s, f, p);
        for (size_t i = 0; hit && i < width; i++)
            if (finding_axis_has(&f->elements, (uint32_t)i))
                rows[p * width + i] = stages_effect(s, f, clean, width, p, i);
    }
}

uint32_t stages_expert(const struct stages *s, const struct finding *f, int32_t id)
{
    if (f->effect == FINDING_EXCHANGED)
        return (uint32_t)(f->offset - id);
    return f->effect == FINDING_EXPERT_OF ? (uint32_t)f->offset : (uint32_t)around((size_t)id, f->offset, s->experts);
}

/* ids: of the pairs that are hit and asked for, off by the finding's offset if it is one of experts of gate_up (or, if
 * `down`, of down); -1: the others. */
static int32_t *ids_of(const struct stages *s, const struct finding *f, const bool *asked, bool down)
{
    int32_t *ids = malloc(s->pairs * sizeof *ids);
    for (size_t p = 0; ids && p < s->pairs; p++) {
        ids[p] = asked[p] && stages_hit(s, f, p) ? s->ids[p] : -1;
        if (ids[p] >= 0 && effect_names_expert(f->effect) &&
            (f->stage == FINDING_INPUT || down == (f->stage == FINDING_DOWN)))
            ids[p] = (int32_t)stages_expert(s, f, ids[p]);
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
    return f->stage == FINDING_INPUT || f->k.kind != AXIS_ALL || effect_names_expert(f->effect);
}

static double k_factor(const struct finding *f)
{
    return f->effect == FINDING_CONSTANT ? 0.0 : f->amount;
}

/* Whether row r of gate_up is one that the finding is on. */
static bool altered_has(const struct stages *s, const struct finding *f, uint32_t r)
{
    bool is_up = r >= s->intermediate;
    return f->stage != (is_up ? FINDING_GATE : FINDING_UP) && finding_axis_has(&f->elements, r % s->intermediate);
}

/* gate, up: [pairs, intermediate], of the pairs asked for, with weights that are read otherwise. */
static enum gb_status project_altered(const struct stages *s, const struct finding *f, const bool *asked, double *gate,
                                      double *up, struct gb_error *error)
{
    size_t H = s->hidden, I = s->intermediate;
    gb_bf16 *x = malloc(H * sizeof *x);
    double *read = malloc(H * sizeof *read), *added = malloc(2 * I * H * sizeof *added);
    struct altered altered;
    bool good = altered_new(&s->diagnosis->trace.arguments.gate_up, f, &altered);
    enum gb_status status = x && read && added && good ? GB_OK : no_memory(error);
    for (uint32_t e = 0; status == GB_OK && e < s->experts; e++) {
        bool made = false;
        for (size_t p = 0; status == GB_OK && p < s->pairs; p++) {
            if (s->ids[p] != (int32_t)e || !asked[p] || !stages_hit(s, f, p))
                continue;
            for (uint32_t r = 0; !made && r < 2 * I; r++)
                if (altered_has(s, f, r))
                    altered_row(&altered, e, r, added + r * H);
            made = true;
            for (size_t i = 0; i < H; i++)
                x[i] = gb_bf16_encode((float)s->x[p * H + i]);
            status = stages_read(s, x, 1, read, error);
            for (uint32_t r = 0; r < 2 * I; r++)
                if (altered_has(s, f, r))
                    (r >= I ? up : gate)[p * I + r % I] += cblas_ddot((int)H, added + r * H, 1, read, 1);
        }
    }
    free(x);
    free(read);
    free(added);
    altered_free(&altered);
    return status;
}

/* gate, up: [pairs, intermediate], of the pairs asked for. */
static enum gb_status project(const struct stages *s, const struct finding *f, const bool *asked, double *gate,
                              double *up, struct gb_error *error)
{
    size_t H = s->hidden, I = s->intermediate, inner = s->pairs * I;
    gb_bf16 *x = calloc(s->pairs * H, sizeof *x), *intermediate = malloc(inner * sizeof *intermediate);
    float *values = malloc(3 * inner * sizeof *values);
    int32_t *ids = ids_of(s, f, asked, false);
    enum gb_status status = x && intermediate && values && ids ? GB_OK : no_memory(error);
    for (size_t p = 0; status == GB_OK && p < s->pairs; p++)
        for (size_t i = 0; ids[p] >= 0 && i < H; i++) {
            double v = s->x[p * H + i];
            if (f->stage == FINDING_INPUT && finding_axis_has(&f->elements, (uint32_t)i))
                v = stages_effect(s, f, s->x, H, p, i);
            else if (f->k.kind != AXIS_ALL && finding_axis_has(&f->k, (uint32_t)i))
                v *= k_factor(f);
            x[p * H + i] = gb_bf16_encode((float)v);
        }
    if (status == GB_OK) {
        struct gb_arguments a = apart(s, ids);
        struct gb_gate_up_values to = {values, values + inner, values + 2 * inner};
        a.x = x;
        a.intermediate = intermediate;
        status = gb_reference_gate_up_values(
            gb_contract_of(&a, GB_GATE_UP, gb_order_name(s->diagnosis->trace.contract->order)), &a, &to, error);
    }
    for (size_t p = 0; status == GB_OK && p < s->pairs; p++)
        for (size_t i = p * I; ids[p] >= 0 && i < (p + 1) * I; i++) {
            bool taken = f->stage == FINDING_INPUT || finding_axis_has(&f->elements, (uint32_t)(i - p * I));
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
        for (size_t p = 0; p < s->pairs; p++) {
            const size_t first = p * s->intermediate, bytes = asked[p] ? s->intermediate * sizeof *gate : 0;
            memcpy(gate + first, s->gate + first, bytes);
            memcpy(up + first, s->up + first, bytes);
            memcpy(act + first, s->act + first, bytes);
        }
        memcpy(rows, s->diagnosis->trace.intermediate, inner * sizeof *rows);
        if (f->stage <= FINDING_GATE_UP && f->operand != FINDING_RESULTS)
            status = project_altered(s, f, asked, gate, up, error);
        else if (f->stage <= FINDING_GATE_UP && reads_otherwise(f))
            status = project(s, f, asked, gate, up, error);
        else if (f->stage <= FINDING_GATE_UP)
            change_projections(s, f, asked, gate, up);
        else if (f->stage == FINDING_ACT)
            change(s, f, asked, s->act, s->intermediate, act);
    }
    for (size_t p = 0; status == GB_OK && p < s->pairs; p++) {
        const bool hit = asked[p] && stages_hit(s, f, p);
        for (size_t i = p * s->intermediate; hit && i < (p + 1) * s->intermediate; i++)
            if (f->stage <= FINDING_GATE_UP && (gate[i] != s->gate[i] || up[i] != s->up[i]))
                rows[i] =
                    gb_bf16_encode(gb_gated(s->diagnosis->trace.arguments.activation, (float)gate[i], (float)up[i]));
            else if (act[i] != s->act[i])
                rows[i] = gb_bf16_encode((float)act[i]);
    }
    free(gate);
    free(up);
    free(act);
    return status;
}

enum gb_status stages_operand(const struct stages *s, const struct finding *f, const bool *asked, double *operand,
                              struct gb_error *error)
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

/* slots: [pairs, hidden], of the pairs that are hit, with weights that are read otherwise. */
static enum gb_status contract_altered(const struct stages *s, const struct finding *f, double *slots,
                                       struct gb_error *error)
{
    size_t I = s->intermediate, H = s->hidden;
    double *added = malloc(I * sizeof *added);
    struct altered altered;
    enum gb_status status =
        altered_new(&s->diagnosis->trace.arguments.down, f, &altered) && added ? GB_OK : no_memory(error);
    for (uint32_t e = 0; status == GB_OK && e < s->experts; e++)
        for (uint32_t r = 0; r < H; r++) {
            bool made = false;
            for (size_t p = 0; finding_axis_has(&f->elements, r) && p < s->pairs; p++) {
                if (s->ids[p] != (int32_t)e || !stages_hit(s, f, p))
                    continue;
                if (!made)
                    altered_row(&altered, e, r, added);
                made = true;
                slots[p * H + r] += cblas_ddot((int)I, added, 1, s->requant + p * I, 1);
            }
        }
    free(added);
    altered_free(&altered);
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
        status = operand && all ? stages_operand(s, f, all, operand, error) : no_memory(error);
        if (status == GB_OK)
            multiply(s, f, operand, slots);
        free(operand);
        free(all);
    } else if (f->stage == FINDING_DOWN && f->operand != FINDING_RESULTS) {
        status = contract_altered(s, f, slots, error);
    } else if (f->stage == FINDING_DOWN && f->k.kind != AXIS_ALL) {
        gb_bf16 *some = malloc(inner * sizeof *some);
        for (size_t i = 0; some && i < inner; i++)
            some[i] = finding_axis_has(&f->k, (uint32_t)(i % s->intermediate))
                          ? gb_bf16_encode((float)(k_factor(f) * (double)gb_bf16_decode(rows[i])))
                          : rows[i];
        status = some ? contract_down(s, f, some, slots, error) : no_memory(error);
        free(some);
    } else if (f->stage < FINDING_DOWN || effect_names_expert(f->effect)) {
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
                    weight = stages_effect(s, f, s->weights, 1, p, 0);
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
