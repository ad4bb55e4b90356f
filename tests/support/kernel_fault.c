/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/kernel_fault.h"

#include "quant/quant.h"
#include "tests/support/check.h"

enum { GATE = 1, UP = 2, DOWN = 4 };

/* A faulty kernel while it is drawn. */
struct faulty {
    const struct layer_stages *clean;
    struct layer_stages stages;
    uint64_t *random;
    int32_t expert;       /* -1: all */
    unsigned projections; /* of GATE, UP, DOWN */
    uint32_t *rank;       /* [pairs], the place of a pair among those of its expert, in token order */
};

static void *allocate(size_t bytes)
{
    void *memory = calloc(bytes ? bytes : 1, 1);
    if (!memory)
        abort();
    return memory;
}

static void *copy_of(const void *from, size_t bytes)
{
    return memcpy(allocate(bytes), from, bytes);
}

static size_t pairs_of(const struct faulty *f)
{
    return (size_t)f->clean->arguments.shape.tokens * f->clean->arguments.shape.top_k;
}

static bool of_expert(const struct faulty *f, int32_t expert)
{
    return expert >= 0 && (f->expert < 0 || expert == f->expert);
}

/* The pair of the same expert at another place of its list; pairs where there is none. */
static size_t pair_at(const struct faulty *f, int32_t expert, uint32_t rank)
{
    size_t p = 0;
    while (p < pairs_of(f) && (f->clean->arguments.ids[p] != expert || f->rank[p] != rank))
        p++;
    return p;
}

static uint32_t pairs_of_expert(const struct faulty *f, int32_t expert)
{
    uint32_t count = 0;
    for (size_t p = 0; p < pairs_of(f); p++)
        count += f->clean->arguments.ids[p] == expert;
    return count;
}

/* Weights whose bytes are changed. */
struct tensor {
    struct gb_weights weights;
    const struct gb_weights *clean;
    uint8_t *codes, *scales;
    float *globals;
};

static struct tensor tensor_of(const struct gb_weights *clean)
{
    struct tensor t = {.weights = *clean, .clean = clean};
    size_t codes, scales, globals;
    assert_int_equal(gb_weights_bytes(clean, &codes, &scales, &globals, NULL), GB_OK);
    t.weights.codes = t.codes = copy_of(clean->codes, codes);
    t.weights.scales = t.scales = scales ? copy_of(clean->scales, scales) : NULL;
    t.weights.global_scales = t.globals = globals ? copy_of(clean->global_scales, globals) : NULL;
    return t;
}

static void tensor_free(struct tensor *t)
{
    free(t->codes);
    free(t->scales);
    free(t->globals);
}

static uint32_t code_get(const struct gb_weights *w, uint32_t e, uint32_t r, uint32_t k)
{
    size_t i = ((size_t)e * w->rows + r) * w->columns + k;
    if (w->format == GB_BF16)
        return ((const uint16_t *)w->codes)[i];
    if (gb_row_code_bytes(w->format, 2) == 2)
        return ((const uint8_t *)w->codes)[i];
    return ((const uint8_t *)w->codes)[i / 2] >> 4 * (i % 2) & 15;
}

static void code_set(struct tensor *t, uint32_t e, uint32_t r, uint32_t k, uint32_t code)
{
    size_t i = ((size_t)e * t->clean->rows + r) * t->clean->columns + k;
    if (t->clean->format == GB_BF16)
        ((uint16_t *)(void *)t->codes)[i] = (uint16_t)code;
    else if (gb_row_code_bytes(t->clean->format, 2) == 2)
        t->codes[i] = (uint8_t)code;
    else
        t->codes[i / 2] = (uint8_t)((t->codes[i / 2] & (15 << 4 * (1 - i % 2))) | code << 4 * (i % 2));
}

static uint32_t code_bits(const struct gb_weights *w)
{
    return 8 * (uint32_t)gb_row_code_bytes(w->format, 2) / 2;
}

static uint32_t scale_bytes(const struct gb_weights *w)
{
    return w->format == GB_FP8_BLOCK ? sizeof(float) : 1;
}

static uint32_t blocks_of(const struct gb_weights *w)
{
    uint32_t block = gb_format_block(w->format);
    return (w->columns + block - 1) / block;
}

/* Where the scale of row r's block b lies. */
static size_t scale_at(const struct gb_weights *w, uint32_t e, uint32_t r, uint32_t b)
{
    uint32_t rows = w->rows / w->halves, tall = gb_format_block_rows(w->format), down = (rows + tall - 1) / tall;
    return ((((size_t)e * w->halves + r / rows) * down + r % rows / tall) * blocks_of(w) + b) * scale_bytes(w);
}

/* A change of one row of the weights. */
typedef void edit(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t parameter);

/* Each row of the projections and experts that are wrong: of all of them, or of an aligned range of rows. */
static void edit_weights(struct faulty *f, edit *change, uint32_t parameter, bool ranges)
{
    struct gb_arguments a = f->clean->arguments;
    struct tensor gate_up = tensor_of(&f->clean->arguments.gate_up), down = tensor_of(&f->clean->arguments.down);
    uint32_t I = a.shape.intermediate, H = a.shape.hidden, first = 0, count = UINT32_MAX;
    if (ranges && random_below(f->random, 3) == 0) {
        uint32_t rows = f->projections == DOWN ? H : I;
        count = 32u << random_below(f->random, 2);
        first = count * random_below(f->random, rows / count);
    }
    for (uint32_t e = 0; e < a.shape.experts; e++) {
        if (!of_expert(f, (int32_t)e) || !pairs_of_expert(f, (int32_t)e))
            continue;
        for (uint32_t r = 0; r < 2 * I; r++)
            if (f->projections & (r < I ? GATE : UP) && r % I - first < count)
                change(f, &gate_up, e, r, parameter);
        for (uint32_t r = 0; r < H; r++)
            if (f->projections & DOWN && r - first < count)
                change(f, &down, e, r, parameter);
    }
    a.gate_up = gate_up.weights;
    a.down = down.weights;
    layer_stages_free(&f->stages);
    layer_stages_new(&a, f->clean->order, &f->stages);
    tensor_free(&gate_up);
    tensor_free(&down);
}

static void scales_from(struct tensor *t, uint32_t e, uint32_t r, uint32_t from_row, uint32_t mask, uint32_t offset)
{
    uint32_t blocks = blocks_of(t->clean);
    for (uint32_t b = 0; t->scales && b < blocks; b++)
        memcpy(t->scales + scale_at(t->clean, e, r, b),
               (const uint8_t *)t->clean->scales + scale_at(t->clean, e, from_row, ((b & ~mask) + offset) % blocks),
               scale_bytes(t->clean));
}

static void edit_scales_of_next_block(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t by)
{
    (void)f;
    scales_from(t, e, r, r, 0, by % blocks_of(t->clean));
}

static void scales_of_next_block(struct faulty *f)
{
    edit_weights(f, edit_scales_of_next_block, random_below(f->random, 2) ? 1 : UINT32_MAX, true);
}

static void edit_scales_of_other_row(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t flip)
{
    (void)f;
    scales_from(t, e, r, (r ^ flip) < t->clean->rows ? r ^ flip : r, 0, 0);
}

static void scales_of_other_row(struct faulty *f)
{
    edit_weights(f, edit_scales_of_other_row, 1u << random_below(f->random, 5), true);
}

static void edit_codes_exchanged(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t flip)
{
    (void)f;
    for (uint32_t k = 0; k < t->clean->columns; k++)
        if ((k ^ flip) < t->clean->columns)
            code_set(t, e, r, k, code_get(t->clean, e, r, k ^ flip));
}

static void codes_exchanged(struct faulty *f)
{
    edit_weights(f, edit_codes_exchanged, 1u << random_below(f->random, 4), true);
}

static void edit_signs_lost(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t unused)
{
    (void)f;
    (void)unused;
    for (uint32_t k = 0; k < t->clean->columns; k++)
        code_set(t, e, r, k, code_get(t->clean, e, r, k) & ~(1u << (code_bits(t->clean) - 1)));
}

static void signs_lost(struct faulty *f)
{
    edit_weights(f, edit_signs_lost, 0, true);
}

static void edit_scales_of_expert(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t by)
{
    uint32_t other = (e + by) % f->clean->arguments.shape.experts;
    for (uint32_t b = 0; t->scales && b < blocks_of(t->clean); b++)
        memcpy(t->scales + scale_at(t->clean, e, r, b),
               (const uint8_t *)t->clean->scales + scale_at(t->clean, other, r, b), scale_bytes(t->clean));
}

static void scales_of_next_expert(struct faulty *f)
{
    edit_weights(f, edit_scales_of_expert, 1, false);
}

static void edit_k_left_out(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t count)
{
    (void)f;
    for (uint32_t k = t->clean->columns - count; k < t->clean->columns; k++)
        code_set(t, e, r, k, 0);
}

static void k_left_out(struct faulty *f)
{
    edit_weights(f, edit_k_left_out, 16u << random_below(f->random, 3), false);
}

/* Rows [pairs, width] of `bytes` an element: those of an expert's list from the pair before, a ring. */
static void take_rows(struct faulty *f, const void *clean, void *rows, size_t bytes, int step, uint32_t from_rank)
{
    for (size_t p = 0; p < pairs_of(f); p++) {
        int32_t e = f->clean->arguments.ids[p];
        uint32_t count = e < 0 ? 0 : pairs_of_expert(f, e);
        if (!of_expert(f, e) || f->rank[p] < from_rank)
            continue;
        uint32_t rank = step ? (f->rank[p] + (uint32_t)((int)count + step)) % count : from_rank - 1;
        memcpy((char *)rows + p * bytes, (const char *)clean + pair_at(f, e, rank) * bytes, bytes);
    }
}

static void take_rows_of_stage(struct faulty *f, int step, uint32_t from_rank)
{
    const struct gb_shape *s = &f->clean->arguments.shape;
    switch (random_below(f->random, 3)) {
    case 0:
        take_rows(f, f->clean->x, f->stages.x, s->hidden * sizeof(gb_bf16), step, from_rank);
        layer_stages_from(&f->stages, FINDING_INPUT);
        break;
    case 1:
        take_rows(f, f->clean->intermediate, f->stages.intermediate, s->intermediate * sizeof(gb_bf16), step,
                  from_rank);
        layer_stages_from(&f->stages, FINDING_ACT);
        break;
    default:
        take_rows(f, f->clean->slots, f->stages.slots, s->hidden * sizeof(float), step, from_rank);
        layer_stages_from(&f->stages, FINDING_DOWN);
        break;
    }
}

static void expert_list_shifted(struct faulty *f)
{
    take_rows_of_stage(f, random_below(f->random, 2) ? 1 : -1, 0);
}

/* The tile of tokens that an expert has too many of is not computed. */
static void tile_of_tokens_zero(struct faulty *f)
{
    uint32_t from = 1 + random_below(f->random, 2), H = f->clean->arguments.shape.hidden;
    for (size_t p = 0; p < pairs_of(f); p++)
        if (of_expert(f, f->clean->arguments.ids[p]) && f->rank[p] >= from)
            memset(f->stages.slots + p * H, 0, H * sizeof(float));
    layer_stages_from(&f->stages, FINDING_DOWN);
}

static void edit_scales_shared(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t mask)
{
    (void)f;
    scales_from(t, e, r, r, mask, 0);
}

/* One scale is read for two or four blocks. */
static void scales_shared(struct faulty *f)
{
    edit_weights(f, edit_scales_shared, random_below(f->random, 2) ? 1 : 3, true);
}

static void edit_codes_misread(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t unused)
{
    (void)f;
    (void)unused;
    for (uint32_t k = 0; k < t->clean->columns; k++) {
        uint32_t code = code_get(t->clean, e, r, k), sign = code & (1u << (code_bits(t->clean) - 1));
        if (t->clean->format == GB_NVFP4 || t->clean->format == GB_MXFP4)
            code = sign | (code & 7) >> 1;
        else if (t->clean->format == GB_BF16)
            code = sign | (uint32_t)gb_bf16_encode(gb_fp16_decode((uint16_t)(code & 0x7FFF))).bits;
        else
            code = gb_e4m3_encode(gb_e5m2_decode((gb_e5m2){(uint8_t)code})).bits;
        code_set(t, e, r, k, code);
    }
}

/* Codes read as those of another format: E4M3 as E5M2, bf16 as fp16, E2M1 with another exponent. */
static void codes_misread(struct faulty *f)
{
    edit_weights(f, edit_codes_misread, 0, true);
}

/* 64 neighbouring outputs of a fragment are written as a transposed 8 x 8 tile. */
static void fragment_transposed(struct faulty *f)
{
    uint32_t H = f->clean->arguments.shape.hidden, I = f->clean->arguments.shape.intermediate;
    bool down = random_below(f->random, 2);
    for (size_t p = 0; p < pairs_of(f); p++)
        for (uint32_t i = 0; of_expert(f, f->clean->arguments.ids[p]) && i < (down ? H : I); i++) {
            uint32_t from = i / 64 * 64 + i % 8 * 8 + i % 64 / 8;
            if (down)
                f->stages.slots[p * H + i] = f->clean->slots[p * H + from];
            else
                f->stages.intermediate[p * I + i] = f->clean->intermediate[p * I + from];
        }
    layer_stages_from(&f->stages, down ? FINDING_DOWN : FINDING_ACT);
}

/* A chunk of down's operand is still that of the step before. */
static void chunk_stale(struct faulty *f)
{
    uint32_t I = f->clean->arguments.shape.intermediate, chunk = 16u << random_below(f->random, 2);
    uint32_t first = chunk * (1 + random_below(f->random, I / chunk - 1));
    for (size_t p = 0; p < pairs_of(f); p++)
        if (of_expert(f, f->clean->arguments.ids[p]))
            memcpy(f->stages.intermediate + p * I + first, f->clean->intermediate + p * I + first - chunk,
                   chunk * sizeof(gb_bf16));
    layer_stages_from(&f->stages, FINDING_ACT);
}

static void edit_scales_of_gate(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t unused)
{
    uint32_t I = f->clean->arguments.shape.intermediate;
    (void)unused;
    scales_from(t, e, r, r % I, 0, 0);
}

static void scales_of_gate_for_up(struct faulty *f)
{
    f->projections = UP;
    edit_weights(f, edit_scales_of_gate, 0, false);
}

/* The last rows of a tile of tokens are read at a clamped index. */
static void rows_clamped(struct faulty *f)
{
    take_rows_of_stage(f, 0, 1 + random_below(f->random, 2));
}

static void stripe_lost(struct faulty *f)
{
    uint32_t H = f->clean->arguments.shape.hidden, width = 32u << random_below(f->random, 2);
    uint32_t first = width * random_below(f->random, H / width), from = random_below(f->random, 2);
    for (size_t p = 0; p < pairs_of(f); p++)
        if (of_expert(f, f->clean->arguments.ids[p]) && f->rank[p] >= from)
            memset(f->stages.slots + p * H + first, 0, width * sizeof(float));
    layer_stages_from(&f->stages, FINDING_DOWN);
}

/* Routing weights sorted, ids not. */
static void weights_sorted(struct faulty *f)
{
    uint32_t k = f->clean->arguments.shape.top_k;
    float *weights = copy_of(f->clean->arguments.routing_weights, pairs_of(f) * sizeof *weights);
    for (size_t t = 0; t < pairs_of(f); t += k)
        for (uint32_t i = 1; i < k; i++)
            for (uint32_t j = i; j > 0 && weights[t + j] > weights[t + j - 1]; j--) {
                float w = weights[t + j];
                weights[t + j] = weights[t + j - 1];
                weights[t + j - 1] = w;
            }
    f->stages.arguments.routing_weights = weights;
    layer_stages_from(&f->stages, FINDING_DOWN);
    free(weights);
}

static void edit_scales_powers(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t unused)
{
    (void)f;
    (void)unused;
    for (uint32_t b = 0; t->scales && b < blocks_of(t->clean); b++) {
        uint8_t *scale = t->scales + scale_at(t->clean, e, r, b);
        float value;
        if (t->clean->format == GB_FP8_BLOCK) {
            memcpy(&value, scale, sizeof value);
            value = ldexpf(1.0f, ilogbf(value));
            memcpy(scale, &value, sizeof value);
        } else if (t->clean->format == GB_NVFP4) {
            *scale &= 0xF8;
        } else {
            *scale = (uint8_t)((const uint8_t *)t->clean->scales)[scale_at(t->clean, e, r, b)] & 0xFE;
        }
    }
}

/* Scales of which only the exponent, or not all of it, is read. */
static void scales_truncated(struct faulty *f)
{
    edit_weights(f, edit_scales_powers, 0, true);
}

/* Chunks of x exchanged for the tokens of one expert. */
static void chunks_of_x_exchanged(struct faulty *f)
{
    uint32_t H = f->clean->arguments.shape.hidden, flip = 8u << random_below(f->random, 3);
    for (size_t p = 0; p < pairs_of(f); p++)
        for (uint32_t i = 0; of_expert(f, f->clean->arguments.ids[p]) && i < H; i++)
            f->stages.x[p * H + i] = f->clean->x[p * H + (i ^ flip)];
    layer_stages_from(&f->stages, FINDING_INPUT);
}

static void edit_k_of_other_block(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t flip)
{
    edit_codes_exchanged(f, t, e, r, flip);
    for (uint32_t b = 0; t->scales && b < blocks_of(t->clean); b++)
        if ((b ^ 1) < blocks_of(t->clean))
            memcpy(t->scales + scale_at(t->clean, e, r, b),
                   (const uint8_t *)t->clean->scales + scale_at(t->clean, e, r, b ^ 1), scale_bytes(t->clean));
}

/* Neighbouring blocks of a row exchanged with their scales. */
static void blocks_exchanged(struct faulty *f)
{
    uint32_t block = gb_format_block(f->clean->arguments.down.format);
    edit_weights(f, edit_k_of_other_block, block > 1 ? block : 16, true);
}

/* x of another token: its number doubled. */
static void tokens_strided(struct faulty *f)
{
    uint32_t T = f->clean->arguments.shape.tokens, k = f->clean->arguments.shape.top_k;
    uint32_t H = f->clean->arguments.shape.hidden;
    for (size_t p = 0; p < pairs_of(f); p++)
        if (of_expert(f, f->clean->arguments.ids[p]))
            memcpy(f->stages.x + p * H, f->clean->x + 2 * p / k % T * k * H, H * sizeof(gb_bf16));
    layer_stages_from(&f->stages, FINDING_INPUT);
}

/* The rest of a tile of tokens is computed with the weights of the next expert. */
static void tile_of_next_expert(struct faulty *f)
{
    struct gb_arguments a = f->clean->arguments;
    uint32_t from = 1 + random_below(f->random, 2);
    int32_t *ids = copy_of(a.ids, pairs_of(f) * sizeof *ids);
    for (size_t p = 0; p < pairs_of(f); p++)
        if (of_expert(f, ids[p]) && f->rank[p] >= from)
            ids[p] = (ids[p] + 1) % (int32_t)a.shape.experts;
    a.ids = ids;
    layer_stages_free(&f->stages);
    layer_stages_new(&a, f->clean->order, &f->stages);
    free(ids);
}

/* The last quarter of every vector is its first one again. */
static void vector_wrapped(struct faulty *f)
{
    uint32_t I = f->clean->arguments.shape.intermediate, wide = 16u << random_below(f->random, 2);
    for (size_t p = 0; p < pairs_of(f); p++)
        for (uint32_t i = 0; of_expert(f, f->clean->arguments.ids[p]) && i < I; i++)
            f->stages.intermediate[p * I + i] =
                f->clean->intermediate[p * I + i - (i % wide >= wide / 4 * 3 ? wide / 4 * 3 : 0)];
    layer_stages_from(&f->stages, FINDING_ACT);
}

/* Tiles of columns that are scaled one up, one down. */
static void tiles_scaled(struct faulty *f)
{
    uint32_t I = f->clean->arguments.shape.intermediate, wide = 16u << random_below(f->random, 2);
    for (size_t p = 0; p < pairs_of(f); p++)
        for (uint32_t i = 0; of_expert(f, f->clean->arguments.ids[p]) && i < I; i++)
            f->stages.intermediate[p * I + i] =
                gb_bf16_encode((i / wide % 2 ? 2.0f : 0.5f) * gb_bf16_decode(f->clean->intermediate[p * I + i]));
    layer_stages_from(&f->stages, FINDING_ACT);
}

static void edit_chunk_doubled(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t chunk)
{
    (void)f;
    for (uint32_t b = 0; t->scales && b < blocks_of(t->clean); b++) {
        uint8_t *scale = t->scales + scale_at(t->clean, e, r, b);
        float value;
        if (b % 2 != chunk)
            continue;
        if (t->clean->format == GB_FP8_BLOCK) {
            memcpy(&value, (const uint8_t *)t->clean->scales + scale_at(t->clean, e, r, b), sizeof value);
            value *= 2.0f;
            memcpy(scale, &value, sizeof value);
        } else {
            *scale = (uint8_t)(((const uint8_t *)t->clean->scales)[scale_at(t->clean, e, r, b)] +
                               (t->clean->format == GB_NVFP4 ? 8 : 1));
        }
    }
}

/* Scales of every second block with another exponent. */
static void scales_doubled(struct faulty *f)
{
    edit_weights(f, edit_chunk_doubled, random_below(f->random, 2), false);
}

/* Sums of down kept in bf16 between chunks of K. */
static void accumulator_narrow(struct faulty *f)
{
    const struct gb_weights *w = &f->clean->arguments.down;
    uint32_t I = w->columns, H = w->rows, chunk = 16u << random_below(f->random, 2);
    double *row = allocate(I * sizeof *row);
    for (size_t p = 0; p < pairs_of(f); p++)
        for (uint32_t r = 0; of_expert(f, f->clean->arguments.ids[p]) && r < H; r++) {
            float sum = 0.0f;
            gb_weights_row(w, (uint32_t)f->clean->arguments.ids[p], r, row);
            for (uint32_t k = 0; k < I; k++) {
                sum += (float)row[k] * gb_bf16_decode(f->clean->intermediate[p * I + k]);
                sum = k % chunk == chunk - 1 ? gb_bf16_decode(gb_bf16_encode(sum)) : sum;
            }
            f->stages.slots[p * H + r] = sum;
        }
    free(row);
    layer_stages_from(&f->stages, FINDING_DOWN);
}

/* up has one added, or gate is clamped at 1. */
static void activation_other(struct faulty *f)
{
    uint32_t I = f->clean->arguments.shape.intermediate;
    bool clamped = random_below(f->random, 2);
    for (size_t p = 0; p < pairs_of(f); p++)
        for (uint32_t i = 0; of_expert(f, f->clean->arguments.ids[p]) && i < I; i++) {
            if (clamped)
                f->stages.gate[p * I + i] = fminf(f->clean->gate[p * I + i], 1.0f);
            else
                f->stages.up[p * I + i] += 1.0f;
        }
    layer_stages_from(&f->stages, FINDING_GATE_UP);
}

/* All slots have the first one's weight. */
static void weight_of_first_slot(struct faulty *f)
{
    uint32_t k = f->clean->arguments.shape.top_k;
    float *weights = copy_of(f->clean->arguments.routing_weights, pairs_of(f) * sizeof *weights);
    for (size_t p = 0; p < pairs_of(f); p++)
        if (of_expert(f, f->clean->arguments.ids[p]))
            weights[p] = f->clean->arguments.routing_weights[p / k * k];
    f->stages.arguments.routing_weights = weights;
    layer_stages_from(&f->stages, FINDING_DOWN);
    free(weights);
}

/* In a stripe of columns the last slot is stored in place of being added. */
static void stored_not_added(struct faulty *f)
{
    const struct gb_shape *s = &f->clean->arguments.shape;
    uint32_t width = 32u << random_below(f->random, 2), first = width * random_below(f->random, s->hidden / width);
    for (size_t p = 0; p < pairs_of(f); p++)
        if (p % s->top_k < s->top_k - 1)
            memset(f->stages.slots + p * s->hidden + first, 0, width * sizeof(float));
    layer_stages_from(&f->stages, FINDING_DOWN);
}

/* Registers of a fragment stored in the order of lanes. */
static void lanes_for_registers(struct faulty *f)
{
    uint32_t I = f->clean->arguments.shape.intermediate, registers = 2u << random_below(f->random, 2);
    for (size_t p = 0; p < pairs_of(f); p++)
        for (uint32_t i = 0; of_expert(f, f->clean->arguments.ids[p]) && i < I; i++)
            f->stages.intermediate[p * I + i] =
                f->clean
                    ->intermediate[p * I + i / 32 * 32 + i % (32 / registers) * registers + i % 32 / (32 / registers)];
    layer_stages_from(&f->stages, FINDING_ACT);
}

static void edit_rows_interleaved(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t unused)
{
    uint32_t I = f->clean->arguments.shape.intermediate, from = r < I ? 2 * r : 2 * (r - I) + 1;
    (void)unused;
    for (uint32_t k = 0; k < t->clean->columns; k++)
        code_set(t, e, r, k, code_get(t->clean, e, from, k));
    scales_from(t, e, r, from, 0, 0);
}

/* Rows of one expert taken for gate, up, gate, up. */
static void rows_interleaved(struct faulty *f)
{
    f->projections = GATE | UP;
    edit_weights(f, edit_rows_interleaved, 0, false);
}

/* Tokens beyond a tile are those of the tile again. */
static void tile_again(struct faulty *f)
{
    const struct gb_shape *s = &f->clean->arguments.shape;
    size_t token = (size_t)s->top_k * s->hidden;
    for (uint32_t t = 4; t < s->tokens; t++)
        memcpy(f->stages.slots + t * token, f->clean->slots + t % 4 * token, token * sizeof(float));
    layer_stages_from(&f->stages, FINDING_DOWN);
}

/* Accumulators of gate that start at what the pair before in the list left. */
static void accumulators_kept(struct faulty *f)
{
    uint32_t I = f->clean->arguments.shape.intermediate;
    for (size_t p = 0; p < pairs_of(f); p++) {
        size_t before = f->rank[p] ? pair_at(f, f->clean->arguments.ids[p], f->rank[p] - 1) : pairs_of(f);
        for (uint32_t i = 0; before < pairs_of(f) && of_expert(f, f->clean->arguments.ids[p]) && i < I; i++)
            f->stages.gate[p * I + i] += f->clean->gate[before * I + i];
    }
    layer_stages_from(&f->stages, FINDING_GATE_UP);
}

/* Routing weights applied twice, in some experts or all. */
static void weights_twice(struct faulty *f)
{
    float *weights = copy_of(f->clean->arguments.routing_weights, pairs_of(f) * sizeof *weights);
    for (size_t p = 0; p < pairs_of(f); p++)
        if (of_expert(f, f->clean->arguments.ids[p]))
            weights[p] *= weights[p];
    f->stages.arguments.routing_weights = weights;
    layer_stages_from(&f->stages, FINDING_DOWN);
    free(weights);
}

static void edit_codes_capped(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t unused)
{
    uint32_t sign = 1u << (code_bits(t->clean) - 1);
    uint32_t most = t->clean->format == GB_BF16 ? 0x3C00 : code_bits(t->clean) == 4 ? 5 : 0x70;
    (void)f;
    (void)unused;
    for (uint32_t k = 0; k < t->clean->columns; k++) {
        uint32_t code = code_get(t->clean, e, r, k);
        if ((code & ~sign) > most)
            code_set(t, e, r, k, (code & sign) | most);
    }
}

/* Codes decoded with too small a largest one. */
static void codes_capped(struct faulty *f)
{
    edit_weights(f, edit_codes_capped, 0, true);
}

/* Columns of the output that are the next token's. */
static void stripe_of_next_token(struct faulty *f)
{
    const struct gb_shape *s = &f->clean->arguments.shape;
    uint32_t width = 32u << random_below(f->random, 2), first = width * random_below(f->random, s->hidden / width);
    for (uint32_t t = 0; t < s->tokens; t++)
        memcpy(f->stages.output + (size_t)t * s->hidden + first,
               f->clean->output + (size_t)((t + 1) % s->tokens) * s->hidden + first, width * sizeof(float));
}

/* up without its sign, in a tile. */
static void signs_of_up_lost(struct faulty *f)
{
    uint32_t I = f->clean->arguments.shape.intermediate, width = 32, first = width * random_below(f->random, I / width);
    for (size_t p = 0; p < pairs_of(f); p++)
        for (uint32_t i = first; of_expert(f, f->clean->arguments.ids[p]) && i < first + width; i++)
            f->stages.up[p * I + i] = fabsf(f->clean->up[p * I + i]);
    layer_stages_from(&f->stages, FINDING_GATE_UP);
}

/* The intermediate of two tokens of an expert exchanged. */
static void rows_exchanged(struct faulty *f)
{
    uint32_t I = f->clean->arguments.shape.intermediate;
    for (size_t p = 0; p < pairs_of(f); p++) {
        size_t other = of_expert(f, f->clean->arguments.ids[p]) ? pair_at(f, f->clean->arguments.ids[p], f->rank[p] ^ 1)
                                                                : pairs_of(f);
        if (other < pairs_of(f))
            memcpy(f->stages.intermediate + p * I, f->clean->intermediate + other * I, I * sizeof(gb_bf16));
    }
    layer_stages_from(&f->stages, FINDING_ACT);
}

/* gate read where up is, or the reverse. */
static void one_half_twice(struct faulty *f)
{
    uint32_t I = f->clean->arguments.shape.intermediate;
    bool gate = random_below(f->random, 2);
    for (size_t p = 0; p < pairs_of(f); p++)
        if (of_expert(f, f->clean->arguments.ids[p]))
            memcpy((gate ? f->stages.up : f->stages.gate) + p * I, (gate ? f->clean->gate : f->clean->up) + p * I,
                   I * sizeof(float));
    layer_stages_from(&f->stages, FINDING_GATE_UP);
}

/* A tile of down's results added twice for the tokens beyond the first. */
static void tile_added_twice(struct faulty *f)
{
    uint32_t H = f->clean->arguments.shape.hidden, width = 64, first = width * random_below(f->random, H / width);
    for (size_t p = 0; p < pairs_of(f); p++)
        for (uint32_t i = first; of_expert(f, f->clean->arguments.ids[p]) && f->rank[p] >= 1 && i < first + width; i++)
            f->stages.slots[p * H + i] *= 2.0f;
    layer_stages_from(&f->stages, FINDING_DOWN);
}

static void edit_row_shifted(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t by)
{
    (void)f;
    for (uint32_t k = 0; k < t->clean->columns; k++)
        code_set(t, e, r, k, code_get(t->clean, e, r, (k + by) % t->clean->columns));
}

/* Codes of a row read from so many further on. */
static void rows_shifted(struct faulty *f)
{
    edit_weights(f, edit_row_shifted, 1u << random_below(f->random, 5), true);
}

/* The slot beyond a limit left out. */
static void last_slot_left_out(struct faulty *f)
{
    const struct gb_shape *s = &f->clean->arguments.shape;
    for (size_t p = 0; p < pairs_of(f); p++)
        if (p % s->top_k == s->top_k - 1 && (f->expert < 0 || p / s->top_k % 2))
            memset(f->stages.slots + p * s->hidden, 0, s->hidden * sizeof(float));
    layer_stages_from(&f->stages, FINDING_DOWN);
}

/* gelu, by its usual approximation, for silu. */
static void gelu_for_silu(struct faulty *f)
{
    uint32_t I = f->clean->arguments.shape.intermediate;
    for (size_t p = 0; p < pairs_of(f); p++)
        for (size_t i = p * I; of_expert(f, f->clean->arguments.ids[p]) && i < (p + 1) * I; i++) {
            float g = f->clean->gate[i], inner = 0.7978845608f * (g + 0.044715f * g * g * g);
            f->stages.intermediate[i] = gb_bf16_encode(0.5f * g * (1.0f + tanhf(inner)) * f->clean->up[i]);
        }
    layer_stages_from(&f->stages, FINDING_ACT);
}

static void silu_left_out(struct faulty *f)
{
    uint32_t I = f->clean->arguments.shape.intermediate;
    for (size_t p = 0; p < pairs_of(f); p++)
        for (size_t i = p * I; of_expert(f, f->clean->arguments.ids[p]) && i < (p + 1) * I; i++)
            f->stages.intermediate[i] = gb_bf16_encode(f->clean->gate[i] * f->clean->up[i]);
    layer_stages_from(&f->stages, FINDING_ACT);
}

/* Routing weights on gate and up, before silu, and on the results of down as well. */
static void weight_before_silu(struct faulty *f)
{
    const struct gb_arguments *a = &f->clean->arguments;
    uint32_t I = a->shape.intermediate;
    for (size_t p = 0; p < pairs_of(f); p++)
        for (size_t i = p * I; of_expert(f, a->ids[p]) && i < (p + 1) * I; i++) {
            f->stages.gate[i] *= a->routing_weights[p];
            f->stages.up[i] *= a->routing_weights[p];
        }
    layer_stages_from(&f->stages, FINDING_GATE_UP);
}

/* The last columns of x are zero in every second token. */
static void tail_of_x_zero(struct faulty *f)
{
    uint32_t H = f->clean->arguments.shape.hidden, k = f->clean->arguments.shape.top_k;
    uint32_t tail = 32u << random_below(f->random, 2), odd = random_below(f->random, 2);
    for (size_t p = 0; p < pairs_of(f); p++)
        if (p / k % 2 == odd)
            memset(f->stages.x + p * H + H - tail, 0, tail * sizeof(gb_bf16));
    layer_stages_from(&f->stages, FINDING_INPUT);
}

static void compute_with_ids(struct faulty *f, int32_t *ids)
{
    struct gb_arguments a = f->clean->arguments;
    a.ids = ids;
    layer_stages_free(&f->stages);
    layer_stages_new(&a, f->clean->order, &f->stages);
    free(ids);
}

/* Experts beyond a bound are the last one below it. */
static void ids_clamped(struct faulty *f)
{
    int32_t *ids = copy_of(f->clean->arguments.ids, pairs_of(f) * sizeof *ids);
    int32_t bound = (int32_t)f->clean->arguments.shape.experts / 2;
    for (size_t p = 0; p < pairs_of(f); p++)
        ids[p] = ids[p] >= bound ? bound - 1 : ids[p];
    compute_with_ids(f, ids);
}

/* The second slot has the first one's expert. */
static void expert_of_first_slot(struct faulty *f)
{
    int32_t *ids = copy_of(f->clean->arguments.ids, pairs_of(f) * sizeof *ids);
    for (size_t p = 0; p < pairs_of(f); p += f->clean->arguments.shape.top_k)
        ids[p + 1] = ids[p];
    compute_with_ids(f, ids);
}

/* Two blocks of threads add without atomics: in some columns one slot is lost. */
static void slot_lost_in_race(struct faulty *f)
{
    const struct gb_shape *s = &f->clean->arguments.shape;
    uint32_t wide = 8u << random_below(f->random, 2), slot = random_below(f->random, s->top_k);
    for (size_t p = slot; p < pairs_of(f); p += s->top_k)
        for (uint32_t i = 0; i < s->hidden; i++)
            if (i / wide % 4 == 1)
                f->stages.slots[p * s->hidden + i] = 0.0f;
    layer_stages_from(&f->stages, FINDING_DOWN);
}

/* Of two parts of K the second is added twice. */
static void half_of_k_twice(struct faulty *f)
{
    const struct gb_weights *w = &f->clean->arguments.down;
    double *row = allocate(w->columns * sizeof *row);
    for (size_t p = 0; p < pairs_of(f); p++)
        for (uint32_t r = 0; of_expert(f, f->clean->arguments.ids[p]) && r < w->rows; r++) {
            double sum = 0.0;
            gb_weights_row(w, (uint32_t)f->clean->arguments.ids[p], r, row);
            for (uint32_t i = w->columns / 2; i < w->columns; i++)
                sum += row[i] * (double)gb_bf16_decode(f->clean->intermediate[p * w->columns + i]);
            f->stages.slots[p * w->rows + r] += (float)sum;
        }
    free(row);
    layer_stages_from(&f->stages, FINDING_DOWN);
}

static void edit_signs_of_odd(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t unused)
{
    (void)f;
    (void)unused;
    for (uint32_t k = 1; k < t->clean->columns; k += 2)
        code_set(t, e, r, k, code_get(t->clean, e, r, k) ^ 1u << (code_bits(t->clean) - 1));
}

static void signs_of_odd_columns(struct faulty *f)
{
    edit_weights(f, edit_signs_of_odd, 0, true);
}

/* gate and up exchanged in every second row. */
static void halves_exchanged_in_odd_rows(struct faulty *f)
{
    uint32_t I = f->clean->arguments.shape.intermediate;
    for (size_t p = 0; p < pairs_of(f); p++)
        for (size_t i = p * I + 1; of_expert(f, f->clean->arguments.ids[p]) && i < (p + 1) * I; i += 2) {
            f->stages.gate[i] = f->clean->up[i];
            f->stages.up[i] = f->clean->gate[i];
        }
    layer_stages_from(&f->stages, FINDING_GATE_UP);
}

/* Routing weights divided by the largest of their token. */
static void weights_by_largest(struct faulty *f)
{
    uint32_t k = f->clean->arguments.shape.top_k;
    float *weights = copy_of(f->clean->arguments.routing_weights, pairs_of(f) * sizeof *weights);
    for (size_t t = 0; t < pairs_of(f); t += k) {
        float largest = 0.0f;
        for (uint32_t u = 0; u < k; u++)
            largest = fmaxf(largest, weights[t + u]);
        for (uint32_t u = 0; u < k; u++)
            weights[t + u] /= largest;
    }
    f->stages.arguments.routing_weights = weights;
    layer_stages_from(&f->stages, FINDING_DOWN);
    free(weights);
}

static void edit_scales_transposed(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t unused)
{
    uint32_t blocks = blocks_of(t->clean) / 4 * 4;
    (void)f;
    (void)unused;
    for (uint32_t b = 0; b < blocks; b++)
        memcpy(t->scales + scale_at(t->clean, e, r, b),
               (const uint8_t *)t->clean->scales + scale_at(t->clean, e, r / 4 * 4 + b % 4, b / 4 * 4 + r % 4),
               scale_bytes(t->clean));
}

/* Tiles of 4 x 4 scales, rows by blocks, read as their transpose. */
static void scales_transposed(struct faulty *f)
{
    edit_weights(f, edit_scales_transposed, 0, true);
}

/* Tokens beyond what an expert has room for are dropped. */
static void capacity_exceeded(struct faulty *f)
{
    uint32_t H = f->clean->arguments.shape.hidden;
    for (size_t p = 0; p < pairs_of(f); p++)
        if (f->rank[p] >= 2)
            memset(f->stages.slots + p * H, 0, H * sizeof(float));
    layer_stages_from(&f->stages, FINDING_DOWN);
}

/* Two experts are exchanged in the table of pointers. */
static void experts_exchanged(struct faulty *f)
{
    int32_t *ids = copy_of(f->clean->arguments.ids, pairs_of(f) * sizeof *ids);
    int32_t one = ids[0],
            other = (one + 1 + (int32_t)random_below(f->random, 3)) % (int32_t)f->clean->arguments.shape.experts;
    for (size_t p = 0; p < pairs_of(f); p++)
        ids[p] = ids[p] == one ? other : ids[p] == other ? one : ids[p];
    compute_with_ids(f, ids);
}

/* The table of experts begins two too early. */
static void experts_off_by_two(struct faulty *f)
{
    int32_t *ids = copy_of(f->clean->arguments.ids, pairs_of(f) * sizeof *ids);
    for (size_t p = 0; p < pairs_of(f); p++)
        ids[p] = (ids[p] + 2) % (int32_t)f->clean->arguments.shape.experts;
    compute_with_ids(f, ids);
}

/* The sum over slots is stored as their mean. */
static void slots_averaged(struct faulty *f)
{
    uint32_t H = f->clean->arguments.shape.hidden;
    for (size_t p = 0; p < pairs_of(f); p++)
        for (uint32_t i = 0; of_expert(f, f->clean->arguments.ids[p]) && i < H; i++)
            f->stages.slots[p * H + i] /= (float)f->clean->arguments.shape.top_k;
    layer_stages_from(&f->stages, FINDING_DOWN);
}

/* Routing weights through softmax once more. */
static void softmax_again(struct faulty *f)
{
    uint32_t k = f->clean->arguments.shape.top_k;
    float *weights = copy_of(f->clean->arguments.routing_weights, pairs_of(f) * sizeof *weights);
    for (size_t t = 0; t < pairs_of(f); t += k) {
        float sum = 0.0f;
        for (uint32_t u = 0; u < k; u++)
            sum += expf(weights[t + u]);
        for (uint32_t u = 0; u < k; u++)
            weights[t + u] = expf(weights[t + u]) / sum;
    }
    f->stages.arguments.routing_weights = weights;
    layer_stages_from(&f->stages, FINDING_DOWN);
    free(weights);
}

/* All slots count alike. */
static void weights_equal(struct faulty *f)
{
    uint32_t k = f->clean->arguments.shape.top_k;
    float *weights = copy_of(f->clean->arguments.routing_weights, pairs_of(f) * sizeof *weights);
    for (size_t p = 0; p < pairs_of(f); p++)
        weights[p] = 1.0f / (float)k;
    f->stages.arguments.routing_weights = weights;
    layer_stages_from(&f->stages, FINDING_DOWN);
    free(weights);
}

/* Rows of the intermediate with one scale each, in eight bits. */
static void intermediate_in_int8(struct faulty *f)
{
    uint32_t I = f->clean->arguments.shape.intermediate;
    for (size_t p = 0; p < pairs_of(f); p++) {
        float largest = 0.0f;
        for (size_t i = p * I; i < (p + 1) * I; i++)
            largest = fmaxf(largest, fabsf(gb_bf16_decode(f->clean->intermediate[i])));
        for (size_t i = p * I; of_expert(f, f->clean->arguments.ids[p]) && largest > 0.0f && i < (p + 1) * I; i++)
            f->stages.intermediate[i] = gb_bf16_encode(
                nearbyintf(gb_bf16_decode(f->clean->intermediate[i]) / largest * 127.0f) * largest / 127.0f);
    }
    layer_stages_from(&f->stages, FINDING_ACT);
}

/* A buffer of the intermediate that holds the sum of a token and the one before it. */
static void intermediate_not_cleared(struct faulty *f)
{
    uint32_t I = f->clean->arguments.shape.intermediate, k = f->clean->arguments.shape.top_k;
    for (size_t p = k; p < pairs_of(f); p++)
        for (uint32_t i = 0; of_expert(f, f->clean->arguments.ids[p]) && i < I; i++)
            f->stages.intermediate[p * I + i] = gb_bf16_encode(gb_bf16_decode(f->clean->intermediate[p * I + i]) +
                                                               gb_bf16_decode(f->clean->intermediate[(p - k) * I + i]));
    layer_stages_from(&f->stages, FINDING_ACT);
}

/* Tiles of gate's rows that are one row late. */
static void rows_late(struct faulty *f)
{
    uint32_t I = f->clean->arguments.shape.intermediate, wide = 32, first = wide * random_below(f->random, I / wide);
    for (size_t p = 0; p < pairs_of(f); p++)
        for (uint32_t i = first + 1; of_expert(f, f->clean->arguments.ids[p]) && i < first + wide; i++)
            f->stages.gate[p * I + i] = f->clean->gate[p * I + i - 1];
    layer_stages_from(&f->stages, FINDING_GATE_UP);
}

/* One lane of four loads no x. */
static void lane_without_x(struct faulty *f)
{
    uint32_t H = f->clean->arguments.shape.hidden, lane = random_below(f->random, 4), wide = 8;
    for (size_t p = 0; p < pairs_of(f); p++)
        for (uint32_t i = 0; of_expert(f, f->clean->arguments.ids[p]) && i < H; i++)
            if (i / wide % 4 == lane)
                f->stages.x[p * H + i] = gb_bf16_encode(0.0f);
    layer_stages_from(&f->stages, FINDING_INPUT);
}

/* gate limited on both sides. */
static void gate_limited(struct faulty *f)
{
    size_t I = f->clean->arguments.shape.intermediate;
    for (size_t p = 0; p < pairs_of(f); p++)
        for (size_t i = p * I; of_expert(f, f->clean->arguments.ids[p]) && i < (p + 1) * I; i++)
            f->stages.gate[i] = fmaxf(-0.75f, fminf(f->clean->gate[i], 0.75f));
    layer_stages_from(&f->stages, FINDING_GATE_UP);
}

/* The last token of each expert is computed as the first one. */
static void last_is_first(struct faulty *f)
{
    uint32_t H = f->clean->arguments.shape.hidden;
    for (size_t p = 0; p < pairs_of(f); p++) {
        int32_t id = f->clean->arguments.ids[p];
        if (of_expert(f, id) && f->rank[p] == pairs_of_expert(f, id) - 1)
            memcpy(f->stages.slots + p * H, f->clean->slots + pair_at(f, id, 0) * H, H * sizeof(float));
    }
    layer_stages_from(&f->stages, FINDING_DOWN);
}

/* Tokens of an expert in reverse. */
static void list_reversed(struct faulty *f)
{
    uint32_t H = f->clean->arguments.shape.hidden;
    for (size_t p = 0; p < pairs_of(f); p++) {
        int32_t id = f->clean->arguments.ids[p];
        size_t other = of_expert(f, id) ? pair_at(f, id, pairs_of_expert(f, id) - 1 - f->rank[p]) : p;
        memcpy(f->stages.slots + p * H, f->clean->slots + other * H, H * sizeof(float));
    }
    layer_stages_from(&f->stages, FINDING_DOWN);
}

static void edit_scale_of_fourth_rows(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t unused)
{
    (void)f;
    (void)unused;
    if (r % 4 == 3)
        scales_from(t, e, r, r - 1, 0, 0);
}

/* Of four neighbouring rows the last has the scales of the one before it. */
static void scales_of_fourth_rows(struct faulty *f)
{
    edit_weights(f, edit_scale_of_fourth_rows, 0, false);
}

static void edit_bytes_reversed(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t group)
{
    (void)f;
    for (uint32_t k = 0; k < t->clean->columns; k++)
        code_set(t, e, r, k, code_get(t->clean, e, r, k / group * group + group - 1 - k % group));
}

/* Words of four or eight codes in the other endianness. */
static void codes_reversed(struct faulty *f)
{
    edit_weights(f, edit_bytes_reversed, 4u << random_below(f->random, 2), true);
}

static void edit_inverted(struct faulty *f, struct tensor *t, uint32_t e, uint32_t r, uint32_t lane)
{
    (void)f;
    for (uint32_t k = lane; k < t->clean->columns; k += 8)
        code_set(t, e, r, k, code_get(t->clean, e, r, k) ^ 1u << (code_bits(t->clean) - 1));
}

/* One code of eight has the wrong sign. */
static void lane_inverted(struct faulty *f)
{
    edit_weights(f, edit_inverted, random_below(f->random, 8), false);
}

struct family {
    const char *name;
    void (*run)(struct faulty *f);
    bool scales; /* of formats with scales alone */
};

static const struct family known[] = {
    {"scales of the next block", scales_of_next_block, true},
    {"scales of another row", scales_of_other_row, true},
    {"codes exchanged", codes_exchanged, false},
    {"signs of codes lost", signs_lost, false},
    {"scales of the next expert", scales_of_next_expert, true},
    {"tail of K left out", k_left_out, false},
    {"expert's list shifted", expert_list_shifted, false},
    {"tile of tokens zero", tile_of_tokens_zero, false},
    {"scales shared by blocks", scales_shared, true},
    {"codes misread", codes_misread, false},
    {"fragment transposed", fragment_transposed, false},
    {"chunk stale", chunk_stale, false},
    {"scales of gate for up", scales_of_gate_for_up, true},
    {"rows of a tile clamped", rows_clamped, false},
    {"stripe of outputs lost", stripe_lost, false},
    {"routing weights sorted", weights_sorted, false},
    {"scales truncated", scales_truncated, true},
    {"chunks of x exchanged", chunks_of_x_exchanged, false},
    {"blocks exchanged", blocks_exchanged, false},
    {"tokens strided", tokens_strided, false},
    {"tile of the next expert", tile_of_next_expert, false},
    {"vector wrapped", vector_wrapped, false},
    {"tiles scaled", tiles_scaled, false},
    {"scales doubled", scales_doubled, true},
    {"accumulator narrow", accumulator_narrow, false},
    {"activation other", activation_other, false},
    {"weight of the first slot", weight_of_first_slot, false},
    {"stored, not added", stored_not_added, false},
    {"lanes for registers", lanes_for_registers, false},
    {"rows interleaved", rows_interleaved, false},
    {"tile again", tile_again, false},
    {"accumulators kept", accumulators_kept, false},
    {"weights twice", weights_twice, false},
    {"codes capped", codes_capped, false},
    {"stripe of the next token", stripe_of_next_token, false},
    {"signs of up lost", signs_of_up_lost, false},
    {"rows exchanged", rows_exchanged, false},
    {"one half twice", one_half_twice, false},
    {"tile added twice", tile_added_twice, false},
    {"rows shifted", rows_shifted, false},
    {"last slot left out", last_slot_left_out, false},
    {"gelu for silu", gelu_for_silu, false},
    {"silu left out", silu_left_out, false},
    {"weight before silu", weight_before_silu, false},
    {"tail of x zero in every second token", tail_of_x_zero, false},
    {"ids clamped", ids_clamped, false},
    {"expert of the first slot", expert_of_first_slot, false},
    {"slot lost in a race", slot_lost_in_race, false},
    {"half of K twice", half_of_k_twice, false},
    {"signs of odd columns", signs_of_odd_columns, false},
    {"halves exchanged in odd rows", halves_exchanged_in_odd_rows, false},
    {"weights by the largest", weights_by_largest, false},
    {"scales transposed", scales_transposed, true},
    {"experts exchanged", experts_exchanged, false},
    {"intermediate in INT8", intermediate_in_int8, false},
};

static const struct family held_out[] = {
    {"capacity exceeded", capacity_exceeded, false},
    {"experts off by two", experts_off_by_two, false},
    {"slots averaged", slots_averaged, false},
    {"softmax again", softmax_again, false},
    {"weights equal", weights_equal, false},
    {"intermediate not cleared", intermediate_not_cleared, false},
    {"rows late", rows_late, false},
    {"lane without x", lane_without_x, false},
    {"gate limited", gate_limited, false},
    {"last is first", last_is_first, false},
    {"list reversed", list_reversed, false},
    {"scales of fourth rows", scales_of_fourth_rows, true},
    {"codes reversed", codes_reversed, false},
    {"lane inverted", lane_inverted, false},
};

size_t kernel_fault_families(enum kernel_faults which)
{
    return which == KERNEL_FAULTS_KNOWN ? sizeof known / sizeof *known : sizeof held_out / sizeof *held_out;
}

const char *kernel_fault_run(const struct layer_stages *clean, enum kernel_faults which, uint64_t seed, float *output)
{
    static const unsigned projections[] = {GATE, UP, GATE | UP, DOWN, DOWN};
    const struct gb_arguments *a = &clean->arguments;
    uint64_t random = seed;
    const struct family *families = which == KERNEL_FAULTS_KNOWN ? known : held_out, *family;
    random_bits(&random);
    do
        family = &families[random_below(&random, (uint32_t)kernel_fault_families(which))];
    while (family->scales && !a->down.scales);
    struct faulty f = {.clean = clean, .random = &random, .expert = -1};
    f.projections = projections[random_below(&random, 5)];
    f.rank = allocate(pairs_of(&f) * sizeof *f.rank);
    for (size_t p = 0; p < pairs_of(&f); p++)
        for (size_t before = 0; before < p; before++)
            f.rank[p] += a->ids[before] == a->ids[p];
    if (random_below(&random, 2))
        f.expert = a->ids[random_below(&random, (uint32_t)pairs_of(&f))];
    layer_stages_new(a, clean->order, &f.stages);
    family->run(&f);
    memcpy(output, f.stages.output, (size_t)a->shape.tokens * a->shape.hidden * sizeof *output);
    layer_stages_free(&f.stages);
    free(f.rank);
    return family->name;
}
