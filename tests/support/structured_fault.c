/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/structured_fault.h"

#include "quant/quant.h"
#include "tests/support/check.h"

static void *allocate(size_t bytes)
{
    void *memory = calloc(bytes, 1);
    if (!memory)
        abort();
    return memory;
}

static void *copy_of(const void *from, size_t bytes)
{
    return memcpy(allocate(bytes), from, bytes);
}

static void must(enum gb_status status)
{
    if (status != GB_OK)
        abort();
}

static size_t pairs_of(const struct gb_arguments *a)
{
    return (size_t)a->shape.tokens * a->shape.top_k;
}

/* Every slot a token of its own. */
static struct gb_arguments apart(const struct layer_stages *s, const int32_t *ids, const float *ones)
{
    struct gb_arguments a = s->arguments;
    a.shape.tokens = (uint32_t)pairs_of(&s->arguments);
    a.shape.top_k = 1;
    a.ids = ids;
    a.routing_weights = ones;
    return a;
}

/* gate, up: [pairs, intermediate], of these rows of x and these experts. */
static void project(const struct layer_stages *s, const gb_bf16 *x, const int32_t *ids, float *gate, float *up)
{
    struct gb_arguments a = apart(s, ids, NULL);
    size_t count = a.shape.tokens * (size_t)a.shape.intermediate;
    float *product = allocate(count * sizeof *product);
    a.x = x;
    a.intermediate = allocate(count * sizeof *a.intermediate);
    must(gb_reference_gate_up_values(gb_contract_of(&a, GB_GATE_UP, s->order), &a,
                                     &(struct gb_gate_up_values){gate, up, product}, NULL));
    free(a.intermediate);
    free(product);
}

/* slots: [pairs, hidden]. fault: of the requantised numbers; NULL: none. */
static void contract_down(const struct layer_stages *s, const gb_bf16 *intermediate, const int32_t *ids,
                          const struct finding *fault, float *slots);

static void combine(const struct layer_stages *s, const float *weights, const float *slots, float *output)
{
    const struct gb_shape *shape = &s->arguments.shape;
    for (uint32_t t = 0; t < shape->tokens; t++)
        for (uint32_t j = 0; j < shape->hidden; j++) {
            float y = 0.0f;
            for (size_t p = (size_t)t * shape->top_k; p < (size_t)(t + 1) * shape->top_k; p++)
                if (s->arguments.ids[p] >= 0)
                    y = fmaf(weights[p], slots[p * shape->hidden + j], y);
            output[(size_t)t * shape->hidden + j] = y;
        }
}

void layer_stages_from(struct layer_stages *s, enum finding_stage changed)
{
    const struct gb_arguments *a = &s->arguments;
    size_t inner = pairs_of(a) * a->shape.intermediate;
    if (changed < FINDING_GATE)
        project(s, s->x, a->ids, s->gate, s->up);
    for (size_t i = 0; changed < FINDING_ACT && i < inner; i++)
        s->intermediate[i] = gb_bf16_encode(gb_gated(a->activation, s->gate[i], s->up[i]));
    if (changed < FINDING_DOWN)
        contract_down(s, s->intermediate, a->ids, NULL, s->slots);
    combine(s, a->routing_weights, s->slots, s->output);
}

void layer_stages_new(const struct gb_arguments *arguments, const char *order, struct layer_stages *s)
{
    const struct gb_shape *shape = &arguments->shape;
    size_t pairs = pairs_of(arguments), inner = pairs * shape->intermediate;
    *s = (struct layer_stages){.arguments = *arguments, .order = order};
    s->x = allocate(pairs * shape->hidden * sizeof *s->x);
    s->gate = allocate(inner * sizeof *s->gate);
    s->up = allocate(inner * sizeof *s->up);
    s->intermediate = allocate(inner * sizeof *s->intermediate);
    s->slots = allocate(pairs * shape->hidden * sizeof *s->slots);
    s->output = allocate((size_t)shape->tokens * shape->hidden * sizeof *s->output);
    for (size_t p = 0; p < pairs; p++)
        memcpy(s->x + p * shape->hidden, arguments->x + p / shape->top_k * shape->hidden, shape->hidden * sizeof *s->x);
    layer_stages_from(s, FINDING_INPUT);
}

void layer_stages_free(struct layer_stages *s)
{
    free(s->x);
    free(s->gate);
    free(s->up);
    free(s->intermediate);
    free(s->slots);
    free(s->output);
}

/* The place of a pair in the list of its expert. */
static uint32_t place_of(const struct layer_stages *s, size_t pair)
{
    uint32_t place = 0;
    for (size_t before = 0; before < pair; before++)
        place += s->arguments.ids[before] == s->arguments.ids[pair];
    return place;
}

/* The pair whose row the fault takes for this one. */
static size_t listed_pair(const struct layer_stages *s, const struct finding *f, size_t pair)
{
    uint32_t place = (uint32_t)f->offset, count = 0;
    for (size_t p = 0; p < pairs_of(&s->arguments); p++)
        count += s->arguments.ids[p] == s->arguments.ids[pair];
    if (f->effect == FINDING_LISTED_XOR)
        place ^= place_of(s, pair);
    if (f->effect == FINDING_LISTED)
        place = (uint32_t)(((int64_t)place_of(s, pair) + f->offset + count) % count);
    for (size_t p = 0; p < pairs_of(&s->arguments); p++)
        if (s->arguments.ids[p] == s->arguments.ids[pair] && place_of(s, p) == place)
            return p;
    return pair;
}

static bool hits_pair(const struct layer_stages *s, const struct finding *f, size_t pair)
{
    int32_t id = s->arguments.ids[pair];
    uint32_t top_k = s->arguments.shape.top_k;
    return id >= 0 && finding_axis_has(&f->tokens, (uint32_t)(pair / top_k)) &&
           finding_axis_has(&f->slots, (uint32_t)(pair % top_k)) && finding_axis_has(&f->experts, (uint32_t)id) &&
           finding_axis_has(&f->list, place_of(s, pair));
}

/* The output's rows: tokens of which a pair is hit. */
static bool hits_token(const struct layer_stages *s, const struct finding *f, uint32_t token)
{
    uint32_t top_k = s->arguments.shape.top_k;
    bool hit = false;
    for (size_t p = (size_t)token * top_k; p < (size_t)(token + 1) * top_k; p++)
        hit |= hits_pair(s, f, p);
    return hit;
}

static double rounded(double v, enum finding_type type)
{
    uint32_t bits;
    float value = (float)v;
    switch (type) {
    case FINDING_BF16_TRUNCATED:
        memcpy(&bits, &value, sizeof bits);
        bits &= 0xFFFF0000;
        memcpy(&value, &bits, sizeof value);
        return (double)value;
    case FINDING_TF32: /* to 11 significant bits, ties to even */
        return v == 0.0 ? v : ldexp(nearbyint(ldexp(v, 10 - ilogb(v))), ilogb(v) - 10);
    case FINDING_FP16:
        return (double)gb_fp16_decode(gb_fp16_encode(value));
    case FINDING_E4M3:
        return (double)gb_e4m3_decode(gb_e4m3_encode(value));
    case FINDING_E5M2:
        return (double)gb_e5m2_decode(gb_e5m2_encode(value));
    default:
        return (double)gb_bf16_decode(gb_bf16_encode(value));
    }
}

static size_t ring(size_t index, int32_t offset, size_t size)
{
    return (size_t)(((int64_t)index + offset) % (int64_t)size + (int64_t)size) % size;
}

/* Element (a, b) of a tile of offset x columns is that at place (b, a) of one of columns x offset. */
static size_t transposed(const struct finding *f, size_t i)
{
    size_t rows = (size_t)f->offset, columns = (size_t)f->columns, tile = rows * columns;
    size_t a = i % tile / columns, b = i % columns;
    return i - i % tile + b * rows + a;
}

/* By the largest magnitude of the row, or of the group that the element lies in. */
static double in_int8(const struct finding *f, const double *row, size_t width, size_t i)
{
    const size_t group = f->type == FINDING_INT8_GROUPS ? 128 : width;
    double most = 0.0;
    for (size_t n = 0; n < width; n++)
        if (n / group == i / group && fabs(row[n]) > most)
            most = fabs(row[n]);
    return most > 0.0 ? nearbyint(row[i] / most * 127.0) * most / 127.0 : 0.0;
}

/* Element i of row `row` of an array [rows, width], of which there are `per_token` rows a token. */
static double affected(const struct finding *f, const double *clean, size_t rows, size_t per_token, size_t width,
                       size_t row, size_t i)
{
    double v = clean[row * width + i];
    size_t other;
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
        return fabs(v) > f->amount ? copysign(f->amount, v) : v;
    case FINDING_FLUSH:
        return fabs(v) < f->amount ? 0.0 : v;
    case FINDING_CAP:
        return v > f->amount ? f->amount : v;
    case FINDING_FLOOR:
        return v < f->amount ? f->amount : v;
    case FINDING_TOKEN_XOR:
        other = ((row / per_token) ^ (size_t)f->offset) * per_token + row % per_token;
        return clean[(other < rows ? other : row) * width + i];
    case FINDING_SLOT_OF:
        return clean[(row - row % per_token + (size_t)f->offset % per_token) * width + i];
    case FINDING_TOKEN_OF:
        return clean[(row % ((size_t)f->offset * per_token)) * width + i];
    case FINDING_ROUND:
        return f->type == FINDING_INT8 || f->type == FINDING_INT8_GROUPS ? in_int8(f, clean + row * width, width, i)
                                                                         : rounded(v, f->type);
    case FINDING_ELEMENT:
        return clean[row * width + ring(i, f->offset, width)];
    case FINDING_XOR:
        return clean[row * width + ((i ^ (size_t)f->offset) < width ? i ^ (size_t)f->offset : i)];
    case FINDING_REVERSE:
        return clean[row * width + width - 1 - i];
    case FINDING_SHARED:
        return clean[row * width + i - (i & (size_t)f->offset)];
    case FINDING_TILED:
        return clean[row * width + (transposed(f, i) < width ? transposed(f, i) : i)];
    case FINDING_TOKEN:
        return clean[ring(row, f->offset * (int32_t)per_token, rows) * width + i];
    case FINDING_SLOT:
        return clean[(row / per_token * per_token + ring(row % per_token, f->offset, per_token)) * width + i];
    default:
        return v;
    }
}

/* The function of gate and up that the fault puts in the activation's place. */
static double function_of(enum finding_function function, double g, double u)
{
    double silu = g / (1.0 + exp(-g));
    switch (function) {
    case FUNCTION_PRODUCT:
        return u * g;
    case FUNCTION_RELU:
        return g > 0.0 ? u * g : 0.0;
    case FUNCTION_RELU_SQUARE:
        return g > 0.0 ? u * g * g : 0.0;
    case FUNCTION_GELU:
        return u * g * 0.5 * erfc(-g / sqrt(2.0));
    case FUNCTION_GELU_TANH:
        return u * g / (1.0 + exp(-2.0 * sqrt(2.0 / M_PI) * (g + 0.044715 * pow(g, 3.0))));
    case FUNCTION_GELU_QUICK:
        return u * g / (1.0 + exp(-1.702 * g));
    case FUNCTION_SIGMOID:
        return u / (1.0 + exp(-g));
    case FUNCTION_TANH:
        return u * (1.0 - 2.0 / (1.0 + exp(2.0 * g)));
    case FUNCTION_HARD_SWISH:
        return g <= -3.0 ? 0.0 : g >= 3.0 ? u * g : u * g * (g + 3.0) / 6.0;
    case FUNCTION_SILU:
        return silu;
    case FUNCTION_SUM:
        return u + silu;
    case FUNCTION_OF_PRODUCT:
        return u * g / (1.0 + exp(-u * g));
    case FUNCTION_TWICE:
        return u * silu / (1.0 + exp(-silu));
    default:
        return u * g / (1.0 + exp(g));
    }
}

/* The routing weight of a pair when its token's are divided by the largest, or sorted. */
static double weight_among(const struct layer_stages *s, const struct finding *f, size_t pair)
{
    uint32_t k = s->arguments.shape.top_k, slot = (uint32_t)(pair % k);
    const float *given = s->arguments.routing_weights + pair / k * k;
    float *sorted = copy_of(given, k * sizeof *sorted);
    for (uint32_t i = 1; i < k; i++)
        for (uint32_t j = i; j > 0 && sorted[j] > sorted[j - 1]; j--) {
            float w = sorted[j];
            sorted[j] = sorted[j - 1];
            sorted[j - 1] = w;
        }
    double made = f->effect == FINDING_RANKED ? (double)sorted[slot] : (double)given[slot] / (double)sorted[0];
    free(sorted);
    return made;
}

/* Element i of a pair's row under effects that need more than the array they are on. */
static double affected_slot(const struct layer_stages *s, const struct finding *f, const double *clean, size_t rows,
                            size_t width, size_t row, size_t i)
{
    double v = clean[row * width + i];
    switch (f->effect) {
    case FINDING_LISTED:
    case FINDING_LISTED_XOR:
    case FINDING_CLAMPED:
        return clean[listed_pair(s, f, row) * width + i];
    case FINDING_WEIGHTED:
        return v * (double)s->arguments.routing_weights[row];
    case FINDING_LARGEST:
    case FINDING_RANKED:
        return weight_among(s, f, row);
    case FINDING_FUNCTION:
        return function_of(f->function, (double)s->gate[row * width + i], (double)s->up[row * width + i]);
    default:
        return affected(f, clean, rows, s->arguments.shape.top_k, width, row, i);
    }
}

/* values: [rows, width], changed where the fault hits. */
static void affect(const struct layer_stages *s, const struct finding *f, double *values, bool per_slot, size_t width)
{
    const struct gb_shape *shape = &s->arguments.shape;
    size_t per_token = per_slot ? shape->top_k : 1, rows = shape->tokens * per_token;
    double *clean = copy_of(values, rows * width * sizeof *values);
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < width; i++)
            if ((per_slot ? hits_pair(s, f, row) : hits_token(s, f, (uint32_t)row)) &&
                finding_axis_has(&f->elements, (uint32_t)i))
                values[row * width + i] = (per_slot ? affected_slot(s, f, clean, rows, width, row, i)
                                                    : affected(f, clean, rows, per_token, width, row, i)) +
                                          (f->added ? clean[row * width + i] : 0.0);
    free(clean);
}

static void affect_floats(const struct layer_stages *s, const struct finding *f, float *values, bool per_slot,
                          size_t width)
{
    size_t count = s->arguments.shape.tokens * (per_slot ? s->arguments.shape.top_k : 1) * width;
    double *wide = allocate(count * sizeof *wide);
    for (size_t i = 0; i < count; i++)
        wide[i] = (double)values[i];
    affect(s, f, wide, per_slot, width);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)wide[i];
    free(wide);
}

static void affect_bf16(const struct layer_stages *s, const struct finding *f, gb_bf16 *values, size_t width)
{
    size_t count = pairs_of(&s->arguments) * width;
    double *wide = allocate(count * sizeof *wide);
    for (size_t i = 0; i < count; i++)
        wide[i] = (double)gb_bf16_decode(values[i]);
    affect(s, f, wide, true, width);
    for (size_t i = 0; i < count; i++)
        values[i] = gb_bf16_encode((float)wide[i]);
    free(wide);
}

/* The numbers of the intermediate's codes, each block's scale times a power of two, or of another block. */
static void affect_codes(const struct layer_stages *s, const struct finding *f, struct gb_arguments *a)
{
    const struct gb_quantiser *rules = a->activation_rules;
    uint32_t I = a->shape.intermediate, block = rules->block_columns, blocks = I / block;
    size_t pairs = pairs_of(&s->arguments), each = rules->scale == GB_SCALE_FP32 ? sizeof(float) : 1;
    uint8_t *scales = a->intermediate_scales, *codes = a->intermediate_codes;
    uint8_t *clean = copy_of(scales, pairs * blocks * each);
    bool nibbles = gb_quantiser_activations(rules) == GB_NVFP4;
    for (size_t p = 0; p < pairs; p++)
        for (uint32_t b = 0; hits_pair(s, f, p) && b < blocks; b++) {
            size_t i = p * blocks + b;
            float scale;
            if (!finding_axis_has(&f->elements, b * block))
                continue;
            if (f->effect == FINDING_CONSTANT)
                memset(codes + (p * I + b * block) / (nibbles ? 2 : 1), 0, block / (nibbles ? 2 : 1));
            else if (f->effect == FINDING_SCALES)
                memcpy(scales + i * each, clean + (p * blocks + ring(b, f->offset, blocks)) * each, each);
            else if (rules->scale == GB_SCALE_FP32) {
                memcpy(&scale, clean + i * each, sizeof scale);
                scale *= (float)f->amount;
                memcpy(scales + i * each, &scale, sizeof scale);
            } else if (rules->scale == GB_SCALE_E4M3) {
                scale = gb_e4m3_decode((gb_e4m3){clean[i]}) * (float)f->amount;
                scales[i] = gb_e4m3_encode(scale).bits;
            } else {
                scales[i] = (uint8_t)(clean[i] + (int)lround(log2(f->amount)));
            }
        }
    free(clean);
}

static void contract_down(const struct layer_stages *s, const gb_bf16 *intermediate, const int32_t *ids,
                          const struct finding *fault, float *slots)
{
    size_t pairs = pairs_of(&s->arguments);
    float *ones = allocate(pairs * sizeof *ones);
    struct gb_arguments a = apart(s, ids, ones);
    for (size_t p = 0; p < pairs; p++)
        ones[p] = 1.0f;
    a.intermediate = copy_of(intermediate, pairs * a.shape.intermediate * sizeof *intermediate);
    a.output = slots;
    const struct gb_contract *contract = gb_contract_of(&a, GB_DOWN, s->order);
    if (fault && fault->stage == FINDING_REQUANT) {
        size_t codes, scales;
        must(gb_quantiser_bytes(a.activation_rules, (uint32_t)pairs, a.shape.intermediate, &codes, &scales, NULL));
        a.intermediate_codes = allocate(codes);
        a.intermediate_scales = allocate(scales);
        must(gb_reference_quantise_activations(&a, GB_DOWN, intermediate, a.intermediate_codes, a.intermediate_scales,
                                               NULL));
        affect_codes(s, fault, &a);
        must(gb_reference_down_codes(contract, &a, NULL));
        free(a.intermediate_codes);
        free(a.intermediate_scales);
    } else {
        must(gb_reference_down(contract, &a, NULL));
    }
    free(a.intermediate);
    free(ones);
}

/* Rows [pairs, width] with the columns in k multiplied. */
static gb_bf16 *without_k(const struct finding *f, const gb_bf16 *rows, size_t pairs, size_t width)
{
    gb_bf16 *some = copy_of(rows, pairs * width * sizeof *rows);
    double factor = f->effect == FINDING_CONSTANT ? 0.0 : f->amount;
    for (size_t i = 0; i < pairs * width; i++)
        if (finding_axis_has(&f->k, (uint32_t)(i % width)))
            some[i] = gb_bf16_encode((float)(factor * (double)gb_bf16_decode(rows[i])));
    return some;
}

/* What a projection reads: rows [pairs, width] as numbers. */
static double *read_rows(const struct layer_stages *s, enum gb_operator operation, const gb_bf16 *rows, size_t width)
{
    size_t pairs = pairs_of(&s->arguments), codes, scales;
    double *values = allocate(pairs * width * sizeof *values);
    struct gb_arguments a = apart(s, s->arguments.ids, NULL);
    a.shape.top_k = 1;
    for (size_t i = 0; i < pairs * width; i++)
        values[i] = (double)gb_bf16_decode(rows[i]);
    if (!a.activation_rules)
        return values;
    must(gb_quantiser_bytes(a.activation_rules, (uint32_t)pairs, (uint32_t)width, &codes, &scales, NULL));
    void *code = allocate(codes), *scale = allocate(scales);
    must(gb_reference_quantise_activations(&a, operation, rows, code, scale, NULL));
    must(gb_reference_activation_values(&a, operation, code, scale, values, NULL));
    free(code);
    free(scale);
    return values;
}

/* A number of a code, scale or weight as the fault reads it: own of this row, other of the row or expert it names. */
static double reread(const struct finding *f, enum gb_format format, const double *own, const double *other,
                     size_t width, size_t i)
{
    double v = own[i];
    if (f->effect == FINDING_HALF || f->effect == FINDING_ROW_XOR || f->effect == FINDING_ROW ||
        f->effect == FINDING_EXPERT)
        return other[i];
    if (f->effect == FINDING_SQUARE)
        return copysign(v * v, v);
    if (f->effect == FINDING_READ && f->type == FINDING_INTEGER && (format == GB_NVFP4 || format == GB_MXFP4)) {
        static const double magnitudes[] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
        int code = 0;
        while (magnitudes[code] != fabs(v))
            code++;
        return copysign(code, v);
    }
    if (f->effect == FINDING_FACTOR)
        return f->amount * v;
    if (f->effect == FINDING_POWER)
        return v == 0.0 ? v : copysign(exp2(floor(log2(fabs(v)))), v);
    if (f->effect == FINDING_READ && format == GB_BF16 && f->type == FINDING_FP16)
        return (double)gb_fp16_decode(gb_bf16_encode((float)v).bits);
    if (f->effect == FINDING_READ && format != GB_BF16 && f->type == FINDING_E5M2)
        return (double)gb_e5m2_decode((gb_e5m2){gb_e4m3_encode((float)v).bits});
    return affected(f, own, 1, 1, width, 0, i);
}

/* Codes, scales and their products of a row. */
struct numbers {
    double *codes, *scales, *values; /* [columns], [blocks], [columns] */
};

static struct numbers numbers_of(const struct gb_weights *w, uint32_t e, uint32_t r)
{
    size_t K = w->columns, block = gb_format_block(w->format);
    float *codes = allocate(2 * K * sizeof *codes), *scales = codes + K;
    double *wide = allocate(3 * K * sizeof *wide);
    gb_weights_codes(w, e, r, codes, scales);
    for (size_t k = 0; k < K; k++) {
        wide[k] = (double)codes[k];
        wide[K + k / block] = (double)scales[k / block];
        wide[2 * K + k] = wide[k] * wide[K + k / block];
    }
    free(codes);
    return (struct numbers){wide, wide + K, wide + 2 * K};
}

/* The scale of a block where tiles of scales are read as their transpose. */
static double transposed_scale(const struct finding *f, const struct gb_weights *w, uint32_t e, uint32_t r, uint32_t b)
{
    uint32_t n = (uint32_t)f->offset, block = gb_format_block(w->format), blocks = (w->columns + block - 1) / block;
    bool whole = r - r % n + n <= w->rows && b - b % n + n <= blocks;
    struct numbers of = numbers_of(w, e, whole ? r - r % n + b % n : r);
    double scale = of.scales[whole ? b - b % n + r % n : b];
    free(of.codes);
    return scale;
}

/* What the fault adds to the weights of a row. added: [columns]. */
static void reread_row(const struct finding *f, const struct gb_weights *w, uint32_t e, uint32_t r, double *added)
{
    size_t K = w->columns, block = gb_format_block(w->format), blocks = (K + block - 1) / block;
    uint32_t from = r, of = f->effect == FINDING_EXPERT ? (uint32_t)ring(e, f->offset, w->experts) : e;
    if (f->effect == FINDING_HALF)
        from = r < w->rows / 2 ? r + w->rows / 2 : r - w->rows / 2;
    else if (f->effect == FINDING_ROW_XOR && (r ^ (uint32_t)f->offset) < w->rows)
        from = r ^ (uint32_t)f->offset;
    else if (f->effect == FINDING_ROW)
        from = (uint32_t)ring(r, f->offset, w->rows);
    struct numbers own = numbers_of(w, e, r), other = numbers_of(w, of, from);
    for (size_t k = 0; k < K; k++) {
        double made;
        if (f->effect == FINDING_TRANSPOSED)
            made = own.codes[k] * transposed_scale(f, w, e, r, (uint32_t)(k / block));
        else if (f->operand == FINDING_CODES)
            made = own.scales[k / block] * reread(f, w->format, own.codes, other.codes, K, k);
        else if (f->operand == FINDING_BLOCKS)
            made = own.codes[k] * reread(f, w->format, own.scales, other.scales, blocks, k / block);
        else
            made = reread(f, w->format, own.values, other.values, K, k);
        made -= own.values[k];
        added[k] = finding_axis_has(&f->k, (uint32_t)k) ? made * (double)gb_weights_global(w, e, r) : 0.0;
    }
    free(own.codes);
    free(other.codes);
}

/* Dot products [pairs, width] of rows first .. of the weights, as the fault reads these. */
static void dot_reread(const struct layer_stages *s, const struct finding *f, const struct gb_weights *w,
                       uint32_t first, const double *operand, size_t width, float *results)
{
    double *added = allocate(w->columns * sizeof *added);
    for (uint32_t e = 0; e < w->experts; e++)
        for (uint32_t r = 0; finding_axis_has(&f->experts, e) && r < width; r++) {
            reread_row(f, w, e, first + r, added);
            for (size_t p = 0; p < pairs_of(&s->arguments); p++) {
                double sum = 0.0;
                for (size_t k = 0; s->arguments.ids[p] == (int32_t)e && k < w->columns; k++)
                    sum += added[k] * operand[p * w->columns + k];
                results[p * width + r] += (float)sum;
            }
        }
    free(added);
}

static bool names_expert(const struct finding *f)
{
    return f->effect == FINDING_EXPERT || f->effect == FINDING_EXPERT_OF || f->effect == FINDING_EXCHANGED;
}

static int32_t *other_experts(const struct layer_stages *s, const struct finding *f)
{
    size_t pairs = pairs_of(&s->arguments);
    int32_t *ids = copy_of(s->arguments.ids, pairs * sizeof *ids);
    for (size_t p = 0; p < pairs; p++)
        if (ids[p] >= 0 && f->effect == FINDING_EXCHANGED)
            ids[p] = hits_pair(s, f, p) ? f->offset - ids[p] : ids[p];
        else if (ids[p] >= 0)
            ids[p] = f->effect == FINDING_EXPERT_OF
                         ? f->offset
                         : (int32_t)ring((size_t)ids[p], f->offset, s->arguments.shape.experts);
    return ids;
}

static void take_where_hit(const struct layer_stages *s, const struct finding *f, const float *from, float *to,
                           size_t width)
{
    for (size_t i = 0; i < pairs_of(&s->arguments) * width; i++)
        if (hits_pair(s, f, i / width) && finding_axis_has(&f->elements, (uint32_t)(i % width)))
            to[i] = from[i];
}

static void affect_projections(const struct layer_stages *s, const struct finding *f, float *gate, float *up)
{
    const struct gb_shape *shape = &s->arguments.shape;
    size_t pairs = pairs_of(&s->arguments), I = shape->intermediate, count = pairs * I;
    float *other_gate = copy_of(gate, count * sizeof *gate), *other_up = copy_of(up, count * sizeof *up);
    if (f->operand != FINDING_RESULTS) {
        double *x = read_rows(s, GB_GATE_UP, s->x, shape->hidden);
        dot_reread(s, f, &s->arguments.gate_up, 0, x, I, other_gate);
        dot_reread(s, f, &s->arguments.gate_up, shape->intermediate, x, I, other_up);
        free(x);
    } else if (f->k.kind != AXIS_ALL) {
        gb_bf16 *x = without_k(f, s->x, pairs, shape->hidden);
        project(s, x, s->arguments.ids, other_gate, other_up);
        free(x);
    } else if (names_expert(f)) {
        int32_t *ids = other_experts(s, f);
        project(s, s->x, ids, other_gate, other_up);
        free(ids);
    } else if (f->effect == FINDING_SWAPPED || f->effect == FINDING_HALF) {
        memcpy(other_gate, up, count * sizeof *gate);
        memcpy(other_up, gate, count * sizeof *gate);
    } else {
        affect_floats(s, f, other_gate, true, I);
        affect_floats(s, f, other_up, true, I);
    }
    if (f->stage != FINDING_UP)
        take_where_hit(s, f, other_gate, gate, I);
    if (f->stage != FINDING_GATE)
        take_where_hit(s, f, other_up, up, I);
    free(other_gate);
    free(other_up);
}

static void affect_slots(const struct layer_stages *s, const struct finding *f, const gb_bf16 *intermediate,
                         float *slots)
{
    const struct gb_shape *shape = &s->arguments.shape;
    size_t pairs = pairs_of(&s->arguments);
    float *other = copy_of(slots, pairs * shape->hidden * sizeof *other);
    if (f->operand != FINDING_RESULTS) {
        double *h = read_rows(s, GB_DOWN, intermediate, shape->intermediate);
        dot_reread(s, f, &s->arguments.down, 0, h, shape->hidden, other);
        free(h);
    } else if (f->k.kind != AXIS_ALL) {
        gb_bf16 *some = without_k(f, intermediate, pairs, shape->intermediate);
        contract_down(s, some, s->arguments.ids, NULL, other);
        free(some);
    } else if (names_expert(f)) {
        int32_t *ids = other_experts(s, f);
        contract_down(s, intermediate, ids, NULL, other);
        free(ids);
    } else {
        affect_floats(s, f, other, true, shape->hidden);
    }
    take_where_hit(s, f, other, slots, shape->hidden);
    free(other);
}

/* Pairs computed with the weights of another expert, gate_up and down. */
static void compute_elsewhere(const struct layer_stages *s, const struct finding *f, gb_bf16 *h, float *slots)
{
    struct gb_arguments a = s->arguments;
    struct layer_stages other;
    int32_t *ids = other_experts(s, f);
    a.ids = ids;
    layer_stages_new(&a, s->order, &other);
    for (size_t p = 0; p < pairs_of(&a); p++)
        if (hits_pair(s, f, p)) {
            memcpy(h + p * a.shape.intermediate, other.intermediate + p * a.shape.intermediate,
                   a.shape.intermediate * sizeof *h);
            memcpy(slots + p * a.shape.hidden, other.slots + p * a.shape.hidden, a.shape.hidden * sizeof *slots);
        }
    layer_stages_free(&other);
    free(ids);
}

void structured_fault_run(const struct layer_stages *clean, const struct finding *f, float *output,
                          gb_bf16 *intermediate)
{
    const struct gb_shape *shape = &clean->arguments.shape;
    size_t pairs = pairs_of(&clean->arguments), inner = pairs * shape->intermediate, outer = pairs * shape->hidden;
    gb_bf16 *x = copy_of(clean->x, outer * sizeof *x), *h = copy_of(clean->intermediate, inner * sizeof *h);
    float *gate = copy_of(clean->gate, inner * sizeof *gate), *up = copy_of(clean->up, inner * sizeof *up);
    float *slots = copy_of(clean->slots, outer * sizeof *slots);
    float *weights = copy_of(clean->arguments.routing_weights, pairs * sizeof *weights);
    if (f->stage == FINDING_INPUT && names_expert(f)) {
        compute_elsewhere(clean, f, h, slots);
    } else if (f->stage == FINDING_INPUT) {
        affect_bf16(clean, f, x, shape->hidden);
        project(clean, x, clean->arguments.ids, gate, up);
    }
    if (f->stage >= FINDING_GATE && f->stage <= FINDING_GATE_UP)
        affect_projections(clean, f, gate, up);
    bool elsewhere = f->stage == FINDING_INPUT && names_expert(f);
    if (f->stage <= FINDING_GATE_UP && !elsewhere)
        for (size_t i = 0; i < inner; i++)
            h[i] = gb_bf16_encode(gb_gated(clean->arguments.activation, gate[i], up[i]));
    if (f->stage == FINDING_ACT)
        affect_bf16(clean, f, h, shape->intermediate);
    if (f->stage <= FINDING_REQUANT && !elsewhere)
        contract_down(clean, h, clean->arguments.ids, f, slots);
    if (f->stage == FINDING_DOWN)
        affect_slots(clean, f, h, slots);
    if (f->stage == FINDING_ROUTING_WEIGHT)
        affect_floats(clean, f, weights, true, 1);
    combine(clean, weights, slots, output);
    if (f->stage == FINDING_COMBINE)
        affect_floats(clean, f, output, false, shape->hidden);
    if (intermediate)
        memcpy(intermediate, h, inner * sizeof *h);
    free(x);
    free(h);
    free(gate);
    free(up);
    free(slots);
    free(weights);
}

static struct finding_axis draw_range(uint32_t size, uint32_t unit, uint64_t *random)
{
    struct finding_axis axis = {.kind = AXIS_RANGE};
    uint32_t units = size / unit;
    if (units < 2)
        return (struct finding_axis){0};
    axis.count = unit * (1 + random_below(random, units > 4 ? units / 2 : 1));
    axis.first = unit * random_below(random, (size - axis.count) / unit + 1);
    return axis;
}

static struct finding_axis draw_modulo(uint32_t period, uint64_t *random)
{
    struct finding_axis axis = {.kind = AXIS_MODULO, .period = period};
    axis.count = 1 + random_below(random, period / 2);
    axis.first = random_below(random, period - axis.count + 1);
    return axis;
}

/* Columns of a tile, of a lane, or any. */
static struct finding_axis draw_elements(uint32_t size, uint32_t unit, uint64_t *random)
{
    uint32_t unit_now = unit << random_below(random, 3);
    switch (random_below(random, 6)) {
    case 0:
    case 1:
        return draw_range(size, unit_now * 2 <= size ? unit_now : unit, random);
    case 2:
        return unit > 1 ? draw_range(size, unit, random) : draw_modulo(2u << random_below(random, 5), random);
    default:
        return (struct finding_axis){0};
    }
}

static void draw_pairs(const struct gb_shape *shape, bool per_slot, uint64_t *random, struct finding *f)
{
    switch (random_below(random, per_slot ? 7 : 4)) {
    case 0:
        f->tokens = (struct finding_axis){.kind = AXIS_RANGE, .first = random_below(random, shape->tokens), .count = 1};
        break;
    case 1:
        f->tokens = random_below(random, 2) ? draw_range(shape->tokens, 2, random) : draw_modulo(4, random);
        break;
    case 2:
    case 3:
        break;
    case 4:
        f->slots = (struct finding_axis){.kind = AXIS_RANGE, .first = random_below(random, shape->top_k), .count = 1};
        break;
    case 5:
        f->experts = random_below(random, 2) ? draw_range(shape->experts, shape->experts / 4, random)
                                             : draw_modulo(random_below(random, 2) ? 2 : 4, random);
        break;
    default:
        f->experts =
            (struct finding_axis){.kind = AXIS_RANGE, .first = random_below(random, shape->experts), .count = 1};
        break;
    }
}

static double typical(const float *values, size_t count)
{
    double squares = 0.0;
    for (size_t i = 0; i < count; i++)
        squares += (double)values[i] * (double)values[i];
    return sqrt(squares / (double)count);
}

static double size_of_stage(const struct layer_stages *s, enum finding_stage stage)
{
    const struct gb_shape *shape = &s->arguments.shape;
    size_t inner = pairs_of(&s->arguments) * shape->intermediate;
    double squares = 0.0;
    switch (stage) {
    case FINDING_INPUT:
        return 1.0;
    case FINDING_ACT:
        for (size_t i = 0; i < inner; i++)
            squares += pow((double)gb_bf16_decode(s->intermediate[i]), 2);
        return sqrt(squares / (double)inner);
    case FINDING_DOWN:
        return typical(s->slots, pairs_of(&s->arguments) * shape->hidden);
    case FINDING_COMBINE:
        return typical(s->output, (size_t)shape->tokens * shape->hidden);
    default:
        return typical(s->gate, inner);
    }
}

/* Other functions of gate and up, weights in the wrong place, a lower bound. */
static void draw_function(uint64_t *random, double size, struct finding *f)
{
    const bool projected = f->stage >= FINDING_GATE && f->stage <= FINDING_ACT;
    f->effect = f->stage == FINDING_ACT && random_below(random, 2)                      ? FINDING_FUNCTION
                : f->stage == FINDING_GATE_UP || (projected && random_below(random, 2)) ? FINDING_WEIGHTED
                : f->stage == FINDING_INPUT || f->stage == FINDING_ACT                  ? FINDING_NEGATIVE
                                                                                        : FINDING_FLOOR;
    f->function = (enum finding_function)random_below(random, FUNCTIONS);
    f->amount = f->effect == FINDING_FLOOR ? -size * (0.2 + 0.5 * random_uniform(random)) : 0.0;
}

/* Rows of other tokens: exchanged in runs, or added. */
static void draw_row(uint64_t *random, struct finding *f)
{
    const bool listed = f->stage != FINDING_COMBINE && random_below(random, 2);
    f->added = random_below(random, 2);
    f->offset = f->added ? (random_below(random, 2) ? 1 : -1) : 1 << random_below(random, 2);
    f->effect = f->added ? (listed ? FINDING_LISTED : FINDING_TOKEN) : listed ? FINDING_LISTED_XOR : FINDING_TOKEN_XOR;
}

static void draw_effect(const struct layer_stages *s, uint64_t *random, uint32_t width, struct finding *f)
{
    static const double factors[] = {0.5, 2, 0.25, -1, 1.25, 0.75, 4, 1.0625, 0.1, 448.0 / 6};
    static const int32_t flips[] = {1, 2, 4, 8, 16};
    double size = size_of_stage(s, f->stage);
    bool narrow = f->stage == FINDING_ACT || f->stage == FINDING_INPUT; /* bf16 already */
    switch (random_below(random, 13)) {
    case 11:
        draw_function(random, size, f);
        break;
    case 12:
        draw_row(random, f);
        break;
    case 0:
        f->effect = FINDING_ADD;
        f->amount = (random_below(random, 2) ? 1.0 : -0.5) * size;
        break;
    case 1:
        f->effect = FINDING_CONSTANT;
        break;
    case 2:
        f->effect = FINDING_NEGATIVE;
        break;
    case 3:
        f->effect = FINDING_SATURATE;
        f->amount = size * (0.5 + random_uniform(random));
        break;
    case 4:
        f->effect = FINDING_FLUSH;
        f->amount = size * (0.2 + 0.5 * random_uniform(random));
        break;
    case 5:
    case 6:
        f->effect = FINDING_ROUND;
        f->type = (enum finding_type)(narrow ? FINDING_E4M3 + (int)random_below(random, 2)
                                             : (int)random_below(random, FINDING_TYPES));
        break;
    case 7:
        f->effect = random_below(random, 2) ? FINDING_ELEMENT : random_below(random, 2) ? FINDING_XOR : FINDING_REVERSE;
        f->offset = f->effect == FINDING_XOR  ? flips[random_below(random, 5)]
                    : random_below(random, 3) ? (int32_t)(1u << random_below(random, 6))
                                              : (int32_t)(width / 2);
        break;
    case 8:
        f->effect = f->stage != FINDING_COMBINE && f->stage != FINDING_INPUT && random_below(random, 2) ? FINDING_SLOT
                                                                                                        : FINDING_TOKEN;
        f->offset = random_below(random, 2) ? 1 : -1;
        break;
    default:
        f->effect = FINDING_FACTOR;
        f->amount = factors[random_below(random, sizeof factors / sizeof *factors)];
        break;
    }
}

void structured_fault_draw(const struct layer_stages *s, uint64_t seed, struct finding *f)
{
    static const enum finding_stage stages[] = {
        FINDING_INPUT, FINDING_GATE,           FINDING_UP,      FINDING_GATE_UP, FINDING_ACT, FINDING_ACT, FINDING_DOWN,
        FINDING_DOWN,  FINDING_ROUTING_WEIGHT, FINDING_COMBINE, FINDING_COMBINE};
    const struct gb_shape *shape = &s->arguments.shape;
    uint64_t random = seed;
    random_bits(&random);
    *f = (struct finding){.stage = stages[random_below(&random, sizeof stages / sizeof *stages)]};
    if (s->arguments.activation_rules && random_below(&random, 6) == 0)
        f->stage = FINDING_REQUANT;
    uint32_t width = f->stage == FINDING_INPUT || f->stage == FINDING_DOWN || f->stage == FINDING_COMBINE
                         ? shape->hidden
                     : f->stage == FINDING_ROUTING_WEIGHT ? 1
                                                          : shape->intermediate;
    bool dots = (f->stage >= FINDING_GATE && f->stage <= FINDING_GATE_UP) || f->stage == FINDING_DOWN;
    draw_pairs(shape, f->stage != FINDING_COMBINE && f->stage != FINDING_INPUT, &random, f);
    if (f->stage == FINDING_ROUTING_WEIGHT) {
        static const enum finding_effect effects[] = {FINDING_FACTOR, FINDING_CONSTANT, FINDING_SLOT, FINDING_TOKEN,
                                                      FINDING_ROUND};
        f->effect = effects[random_below(&random, 5)];
        f->amount = f->effect == FINDING_FACTOR ? 0.5 + 2 * random_uniform(&random) : 0.0;
        f->offset = 1;
        f->type = random_below(&random, 2) ? FINDING_BF16 : FINDING_FP16;
    } else if (f->stage == FINDING_REQUANT) {
        static const enum finding_effect effects[] = {FINDING_FACTOR, FINDING_CONSTANT, FINDING_SCALES};
        uint32_t block = s->arguments.activation_rules->block_columns;
        f->elements = draw_elements(width, block, &random);
        f->effect = effects[random_below(&random, 3)];
        f->amount = f->effect == FINDING_FACTOR ? 0.5 * (1 + 3 * random_below(&random, 2)) : 0.0;
        f->offset = random_below(&random, 2) ? 1 : -1;
    } else if (dots && random_below(&random, 4) == 0) {
        uint32_t K = f->stage == FINDING_DOWN ? shape->intermediate : shape->hidden;
        f->k = draw_range(K, 16u << random_below(&random, 3), &random);
        f->elements = random_below(&random, 2) ? draw_elements(width, 32, &random) : (struct finding_axis){0};
        f->effect = random_below(&random, 4) ? FINDING_CONSTANT : FINDING_FACTOR;
        f->amount = f->effect == FINDING_FACTOR ? 2.0 : 0.0;
    } else if (dots && random_below(&random, 8) == 0) {
        f->effect = FINDING_EXPERT;
        f->offset = random_below(&random, 2) ? 1 : -1;
    } else if (f->stage == FINDING_GATE_UP && random_below(&random, 6) == 0) {
        f->effect = FINDING_SWAPPED;
        f->elements = draw_elements(width, 32, &random);
    } else {
        f->elements = draw_elements(width, 1 + 15 * random_below(&random, 2), &random);
        draw_effect(s, &random, width, f);
    }
}
