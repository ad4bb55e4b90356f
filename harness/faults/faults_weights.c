/* SPDX-License-Identifier: Apache-2.0 */
/* Faults in how weights are read: codes, scales, rows, experts. */
#include <stdlib.h>
#include <string.h>

#include "harness/faults/rows.h"
#include "quant/quant.h"

/* For each row of each affected expert: `uint32_t e, r`. */
#define EACH_ROW(p, w)                                                                                                 \
    for (uint32_t e = 0; e < (p)->shape.experts; e++)                                                                  \
        if ((p)->affected[e])                                                                                          \
            for (uint32_t r = 0; r < (w)->weights.rows; r++)

/* The weights as they were. */
static const struct gb_weights *clean(const struct injected *p, const struct editable *w)
{
    return w == &p->gate_up ? &p->clean->arguments.gate_up : &p->clean->arguments.down;
}

static const uint8_t *clean_scales(const struct injected *p, const struct editable *w, uint32_t e, uint32_t r)
{
    return (const uint8_t *)clean(p, w)->scales + ((size_t)e * w->weights.rows + r) * w->row_scale_bytes;
}

static const uint8_t *clean_codes(const struct injected *p, const struct editable *w, uint32_t e, uint32_t r)
{
    return (const uint8_t *)clean(p, w)->codes + ((size_t)e * w->weights.rows + r) * w->row_code_bytes;
}

/* FP8's scales of one expert: halves of [blocks down, blocks across]. */
struct blocks {
    uint32_t halves, down, across;
};

static struct blocks blocks_of(const struct editable *w)
{
    return (struct blocks){w->weights.halves, (w->weights.rows / w->weights.halves + 127) / 128,
                           (w->weights.columns + 127) / 128};
}

static float *block_scales(const struct editable *w, uint32_t expert, uint32_t part)
{
    struct blocks b = blocks_of(w);
    return (float *)(void *)w->scales + ((size_t)expert * b.halves + part) * b.down * b.across;
}

static void edit_nibbles_exchanged(struct injected *p, struct editable *w)
{
    EACH_ROW(p, w)
    {
        uint8_t *codes = editable_codes(w, e, r);
        for (size_t i = 0; i < w->row_code_bytes; i++)
            codes[i] = (uint8_t)(codes[i] << 4 | codes[i] >> 4);
    }
}

static size_t scales_of_expert(const struct editable *w)
{
    struct blocks b = blocks_of(w);
    return w->weights.format == GB_FP8_BLOCK ? (size_t)b.halves * b.down * b.across
                                             : (size_t)w->weights.rows * w->row_scale_bytes;
}

/* Scale i of an expert takes that at i + by, of the expert beside it where this one's end; its own, if nobody uses that
 * one. */
static void move_scales(struct injected *p, struct editable *w, int by)
{
    size_t one = w->weights.format == GB_FP8_BLOCK ? sizeof(float) : 1, count = scales_of_expert(w);
    for (size_t e = 0; e < p->shape.experts; e++) {
        const uint8_t *from = (const uint8_t *)clean(p, w)->scales + e * count * one;
        bool outside = by > 0 ? e + 1 < p->shape.experts && p->clean->used[e + 1] : e > 0 && p->clean->used[e - 1];
        if (!p->affected[e])
            continue;
        if (by > 0) {
            memcpy(w->scales + e * count * one, from + one, (count - 1) * one);
            memcpy(w->scales + ((e + 1) * count - 1) * one, outside ? from + count * one : from, one);
        } else {
            memcpy(w->scales + (e * count + 1) * one, from, (count - 1) * one);
            memcpy(w->scales + e * count * one, outside ? from - one : from + (count - 1) * one, one);
        }
    }
}

/* A pointer into the scales advanced by one. */
static void edit_scales_next_block(struct injected *p, struct editable *w)
{
    move_scales(p, w, 1);
}

static void edit_scales_previous_block(struct injected *p, struct editable *w)
{
    move_scales(p, w, -1);
}

/* An index that is clamped to the row. */
static void edit_scales_next_kept(struct injected *p, struct editable *w)
{
    EACH_ROW(p, w)
    memcpy(editable_scales(w, e, r), clean_scales(p, w, e, r) + 1, w->row_scale_bytes - 1);
}

/* An index that is taken modulo the row. */
static void edit_scales_next_wrapped(struct injected *p, struct editable *w)
{
    edit_scales_next_kept(p, w);
    EACH_ROW(p, w)
    editable_scales(w, e, r)[w->row_scale_bytes - 1] = clean_scales(p, w, e, r)[0];
}

static void edit_scales_next_row(struct injected *p, struct editable *w)
{
    EACH_ROW(p, w)
    memcpy(editable_scales(w, e, r), clean_scales(p, w, e, (r + 1) % w->weights.rows), w->row_scale_bytes);
}

/* Linear scales taken for swizzled ones: scale [r, b] from where the 128x4 layout has it. */
static void edit_scales_swizzled(struct injected *p, struct editable *w)
{
    struct gb_scales linear = {GB_LAYOUT_SWIZZLED_128X4, w->weights.rows, (uint32_t)w->row_scale_bytes, 1};
    size_t bytes = (size_t)w->weights.rows * w->row_scale_bytes;
    EACH_ROW(p, w)
    for (uint32_t b = 0; b < w->row_scale_bytes; b++)
        editable_scales(w, e, r)[b] = clean_scales(p, w, e, 0)[gb_layout_offset(&linear, r, b) % bytes];
}

/* Swizzled scales taken for linear ones: what lies at place r * blocks + b of the 128x4 layout. */
static void edit_scales_unswizzled(struct injected *p, struct editable *w)
{
    struct gb_scales linear = {GB_LAYOUT_SWIZZLED_128X4, w->weights.rows, (uint32_t)w->row_scale_bytes, 1};
    size_t bytes = (size_t)w->weights.rows * w->row_scale_bytes;
    for (uint32_t e = 0; e < p->shape.experts; e++)
        for (uint32_t r = 0; p->affected[e] && r < w->weights.rows; r++)
            for (uint32_t b = 0; b < w->row_scale_bytes; b++) {
                size_t at = gb_layout_offset(&linear, r, b);
                if (at < bytes)
                    editable_scales(w, e, 0)[at] = clean_scales(p, w, e, r)[b];
            }
}

/* [blocks, rows] taken for [rows, blocks]. */
static void edit_scales_of_columns(struct injected *p, struct editable *w)
{
    EACH_ROW(p, w)
    for (size_t b = 0; b < w->row_scale_bytes; b++)
        editable_scales(w, e, r)[b] = clean_scales(p, w, e, 0)[b * w->weights.rows + r];
}

static void edit_scales_first_block(struct injected *p, struct editable *w)
{
    EACH_ROW(p, w)
    memset(editable_scales(w, e, r), clean_scales(p, w, e, r)[0], w->row_scale_bytes);
}

/* E4M3 without its significand. */
static void edit_scales_power_of_two(struct injected *p, struct editable *w)
{
    EACH_ROW(p, w)
    for (size_t b = 0; b < w->row_scale_bytes; b++)
        editable_scales(w, e, r)[b] &= 0xF8;
}

/* E4M3 below 2^-6. */
static void edit_scales_subnormal_zero(struct injected *p, struct editable *w)
{
    EACH_ROW(p, w)
    for (size_t b = 0; b < w->row_scale_bytes; b++)
        if (editable_scales(w, e, r)[b] < 8)
            editable_scales(w, e, r)[b] = 0;
}

/* E8M0 with a bias of 126. */
static void edit_scales_bias(struct injected *p, struct editable *w)
{
    EACH_ROW(p, w)
    for (size_t b = 0; b < w->row_scale_bytes; b++)
        if (editable_scales(w, e, r)[b] < 0xFE)
            editable_scales(w, e, r)[b]++;
}

static void edit_scales_inverse(struct injected *p, struct editable *w)
{
    struct blocks b = blocks_of(w);
    for (uint32_t e = 0; e < p->shape.experts; e++)
        for (size_t i = 0; p->affected[e] && i < (size_t)b.halves * b.down * b.across; i++)
            block_scales(w, e, 0)[i] = 1.0f / block_scales(w, e, 0)[i];
}

/* [across, down] taken for [down, across]. */
static void edit_scales_transposed(struct injected *p, struct editable *w)
{
    struct blocks b = blocks_of(w);
    for (uint32_t e = 0; e < p->shape.experts; e++)
        for (uint32_t part = 0; p->affected[e] && part < b.halves; part++) {
            size_t at = ((size_t)e * b.halves + part) * b.down * b.across;
            const float *from = (const float *)clean(p, w)->scales + at;
            for (uint32_t r = 0; r < b.down; r++)
                for (uint32_t c = 0; c < b.across; c++)
                    block_scales(w, e, part)[(size_t)r * b.across + c] = from[(size_t)c * b.down + r];
        }
}

static void edit_scales_one(struct injected *p, struct editable *w)
{
    struct blocks b = blocks_of(w);
    for (uint32_t e = 0; e < p->shape.experts; e++)
        for (uint32_t part = 0; p->affected[e] && part < b.halves; part++)
            for (size_t i = 0; i < (size_t)b.down * b.across; i++)
                block_scales(w, e, part)[i] = block_scales(w, e, part)[0];
}

static void edit_global_missing(struct injected *p, struct editable *w)
{
    for (uint32_t i = 0; i < p->shape.experts * w->weights.halves; i++)
        if (p->affected[i / w->weights.halves])
            w->global_scales[i] = 1.0f;
}

static void edit_global_next_expert(struct injected *p, struct editable *w)
{
    uint32_t parts = w->weights.halves;
    const float *from = clean(p, w)->global_scales;
    for (uint32_t e = 0; e < p->shape.experts; e++)
        if (p->affected[e])
            for (uint32_t next = (e + 1) % p->shape.experts; next != e; next = (next + 1) % p->shape.experts)
                if (p->clean->used[next]) {
                    memcpy(w->global_scales + e * parts, from + next * parts, parts * sizeof *from);
                    break;
                }
}

static void edit_global_of_gate(struct injected *p, struct editable *w)
{
    for (uint32_t e = 0; e < p->shape.experts; e++)
        if (p->affected[e])
            w->global_scales[2 * e + 1] = w->global_scales[2 * e];
}

/* One row's codes and, where rows have their own, scales. */
static void take_row(struct injected *p, struct editable *w, uint32_t e, uint32_t r, uint32_t from)
{
    memcpy(editable_codes(w, e, r), clean_codes(p, w, e, from), w->row_code_bytes);
    if (w->row_scale_bytes)
        memcpy(editable_scales(w, e, r), clean_scales(p, w, e, from), w->row_scale_bytes);
}

/* Gate and up, with everything that is theirs. */
static void edit_halves_exchanged(struct injected *p, struct editable *w)
{
    uint32_t half = w->weights.rows / 2;
    EACH_ROW(p, w)
    take_row(p, w, e, r, (r + half) % w->weights.rows);
    for (uint32_t e = 0; e < p->shape.experts; e++) {
        if (w->global_scales && p->affected[e]) {
            w->global_scales[2 * e] = clean(p, w)->global_scales[2 * e + 1];
            w->global_scales[2 * e + 1] = clean(p, w)->global_scales[2 * e];
        }
        if (w->weights.format == GB_FP8_BLOCK && p->affected[e]) {
            size_t each = (size_t)blocks_of(w).down * blocks_of(w).across;
            const float *from = (const float *)clean(p, w)->scales + 2 * e * each;
            memcpy(block_scales(w, e, 0), from + each, each * sizeof *from);
            memcpy(block_scales(w, e, 1), from, each * sizeof *from);
        }
    }
}

/* Rows taken for gate, up, gate, up, ... */
static void edit_interleaved(struct injected *p, struct editable *w)
{
    uint32_t half = w->weights.rows / 2;
    EACH_ROW(p, w)
    take_row(p, w, e, r, r < half ? 2 * r : 2 * (r - half) + 1);
}

/* Rows that lie as gate, up, gate, up, ... taken for gate, then up. */
static void edit_deinterleaved(struct injected *p, struct editable *w)
{
    uint32_t half = w->weights.rows / 2;
    EACH_ROW(p, w)
    take_row(p, w, e, r, r % 2 ? half + r / 2 : r / 2);
}

static void edit_rows_next(struct injected *p, struct editable *w)
{
    EACH_ROW(p, w)
    take_row(p, w, e, r, (r + 1) % w->weights.rows);
}

/* Every expert has the weights of the first one in use. */
static void edit_first_expert(struct injected *p, struct editable *w)
{
    uint32_t first = 0;
    size_t codes = w->weights.rows * w->row_code_bytes, scales = w->weights.rows * w->row_scale_bytes;
    while (first < p->shape.experts && !p->clean->used[first])
        first++;
    for (uint32_t e = first + 1; e < p->shape.experts; e++)
        if (p->affected[e]) {
            memcpy(editable_codes(w, e, 0), clean_codes(p, w, first, 0), codes);
            if (scales)
                memcpy(editable_scales(w, e, 0), clean_scales(p, w, first, 0), scales);
        }
}

/* The columns of the last scale; 16 where there are no scales. */
static void edit_last_block_dropped(struct injected *p, struct editable *w)
{
    uint32_t block = gb_format_block(w->weights.format), columns = w->weights.columns;
    block = block > 1 ? block : 16;
    size_t tail = gb_row_code_bytes(w->weights.format, columns % block ? columns % block : block);
    EACH_ROW(p, w)
    memset(editable_codes(w, e, r) + w->row_code_bytes - tail, 0, tail);
}

/* The last 16 columns. */
static void plant_x_tail_zero(struct injected *p)
{
    uint32_t tail = p->shape.hidden < 16 ? p->shape.hidden : 16;
    for (uint32_t t = 1; t <= p->shape.tokens; t++)
        memset(p->x + (size_t)t * p->shape.hidden - tail, 0, tail * sizeof *p->x);
}

/* Each E2M1 code of both nibbles through a table. */
static void map_e2m1(struct injected *p, struct editable *w, const uint8_t even[16], const uint8_t odd[16])
{
    EACH_ROW(p, w)
    {
        uint8_t *codes = editable_codes(w, e, r);
        for (size_t i = 0; i < w->row_code_bytes; i++)
            codes[i] = (uint8_t)(even[codes[i] & 15] | odd[codes[i] >> 4] << 4);
    }
}

static const uint8_t same[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* The subnormal 0.5 becomes 0. */
static void edit_e2m1_no_half(struct injected *p, struct editable *w)
{
    static const uint8_t map[16] = {0, 0, 2, 3, 4, 5, 6, 7, 8, 8, 10, 11, 12, 13, 14, 15};
    map_e2m1(p, w, map, map);
}

/* 6 is read as 4. */
static void edit_e2m1_no_six(struct injected *p, struct editable *w)
{
    static const uint8_t map[16] = {0, 1, 2, 3, 4, 5, 6, 6, 8, 9, 10, 11, 12, 13, 14, 14};
    map_e2m1(p, w, map, map);
}

/* The odd element loses its sign. */
static void edit_e2m1_unsigned_odd(struct injected *p, struct editable *w)
{
    static const uint8_t map[16] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7};
    map_e2m1(p, w, same, map);
}

/* Each E4M3 code through a function of its bits. */
static void map_e4m3(struct injected *p, struct editable *w, float (*value)(uint8_t bits))
{
    gb_e4m3 map[256];
    for (unsigned i = 0; i < 256; i++)
        map[i] = gb_e4m3_encode(value((uint8_t)i));
    EACH_ROW(p, w)
    for (size_t i = 0; i < w->row_code_bytes; i++)
        editable_codes(w, e, r)[i] = map[editable_codes(w, e, r)[i]].bits;
}

static float as_fnuz(uint8_t bits)
{
    return bits == 0x80 ? 0.0f : gb_e4m3fnuz_decode((gb_e4m3fnuz){bits});
}

static float as_e5m2(uint8_t bits)
{
    return gb_e5m2_decode((gb_e5m2){bits});
}

static float as_normal(uint8_t bits)
{
    return (bits & 0x7F) < 8 ? 0.0f : gb_e4m3_decode((gb_e4m3){bits});
}

static void edit_e4m3_fnuz(struct injected *p, struct editable *w)
{
    map_e4m3(p, w, as_fnuz);
}

static void edit_e4m3_as_e5m2(struct injected *p, struct editable *w)
{
    map_e4m3(p, w, as_e5m2);
}

static void edit_e4m3_subnormal_zero(struct injected *p, struct editable *w)
{
    map_e4m3(p, w, as_normal);
}

/* Significands of three bits. */
static void edit_bf16_as_e4m3(struct injected *p, struct editable *w)
{
    EACH_ROW(p, w)
    {
        gb_bf16 *row = (gb_bf16 *)(void *)editable_codes(w, e, r);
        for (uint32_t i = 0; i < w->weights.columns; i++)
            row[i].bits = (uint16_t)((row[i].bits + 8) & 0xFFF0);
    }
}

static const struct fault weights[] = {
    EDIT("gate and up swapped", GATE_UP, 0, halves_exchanged, "SGLang #25493: [up | gate] layout, w13_swap_halves"),
    EDIT("gate and up read as interleaved", GATE_UP, 0, interleaved, "ONNX Runtime #28738; aiter #5549"),
    EDIT("interleaved gate and up read as halves", GATE_UP, 0, deinterleaved, "ONNX Runtime #28738; aiter #5549"),
    EDIT("rows of gate and up off by one", GATE_UP, 0, rows_next, "a row pointer advanced before its use"),
    EDIT("rows of down off by one", DOWN, 0, rows_next, "a row pointer advanced before its use"),
    EDIT("gate and up of the first expert for all", GATE_UP, 0, first_expert, "expert stride missing"),
    EDIT("down of the first expert for all", DOWN, 0, first_expert, "expert stride missing"),
    EDIT("last K block of gate and up dropped", GATE_UP, 0, last_block_dropped, "TileLang #2381; CUTLASS #3536"),
    EDIT("last K block of down dropped", DOWN, 0, last_block_dropped, "TileLang-Ascend #1341"),
    PLANT("last 16 columns of x zero", INPUT, x_tail_zero, 0, "CUTLASS #3536: K tail dropped"),
    EDIT("nibbles of gate and up exchanged", GATE_UP, E2M1, nibbles_exchanged, "Triton #5197; torchao #2939"),
    EDIT("nibbles of down exchanged", DOWN, E2M1, nibbles_exchanged, "Triton #5197; torchao #2939"),
    EDIT("scales of the next block in gate and up", GATE_UP, SCALES, scales_next_block,
         "a scale pointer advanced before its use"),
    EDIT("scales of the next block in down", DOWN, SCALES, scales_next_block,
         "a scale pointer advanced before its use"),
    EDIT("scales of the previous block in gate and up", GATE_UP, SCALES, scales_previous_block,
         "a scale pointer advanced one block late"),
    EDIT("scales of the previous block in down", DOWN, SCALES, scales_previous_block,
         "a scale pointer advanced one block late"),
    EDIT("scales of the next block in gate and up, a row's last kept", GATE_UP, ROW_SCALES, scales_next_kept,
         "an index clamped to the row"),
    EDIT("scales of the next block in down, a row's last kept", DOWN, ROW_SCALES, scales_next_kept,
         "an index clamped to the row"),
    EDIT("scales of the next block in gate and up, a row's last from its first", GATE_UP, ROW_SCALES,
         scales_next_wrapped, "an index taken modulo the row"),
    EDIT("scales of the next block in down, a row's last from its first", DOWN, ROW_SCALES, scales_next_wrapped,
         "an index taken modulo the row"),
    EDIT("scales of the next row in gate and up", GATE_UP, ROW_SCALES, scales_next_row,
         "a wrong leading dimension of scales"),
    EDIT("scales of the next row in down", DOWN, ROW_SCALES, scales_next_row, "a wrong leading dimension of scales"),
    EDIT("linear scales of gate and up read as swizzled", GATE_UP, ROW_SCALES, scales_swizzled,
         "modular #6600; vLLM #50084"),
    EDIT("linear scales of down read as swizzled", DOWN, ROW_SCALES, scales_swizzled, "modular #6600; vLLM #50084"),
    EDIT("swizzled scales of gate and up read as linear", GATE_UP, ROW_SCALES, scales_unswizzled,
         "modular #6600; vLLM #50084"),
    EDIT("swizzled scales of down read as linear", DOWN, ROW_SCALES, scales_unswizzled, "modular #6600; vLLM #50084"),
    EDIT("transposed scales of gate and up read as rows", GATE_UP, ROW_SCALES, scales_of_columns,
         "scales with their rows innermost, as DeepGEMM takes them"),
    EDIT("transposed scales of down read as rows", DOWN, ROW_SCALES, scales_of_columns,
         "scales with their rows innermost, as DeepGEMM takes them"),
    EDIT("scale of the first block for the whole row, gate and up", GATE_UP, ROW_SCALES, scales_first_block,
         "scale stride missing"),
    EDIT("scale of the first block for the whole row, down", DOWN, ROW_SCALES, scales_first_block,
         "scale stride missing"),
    EDIT("scales without significand in gate and up", GATE_UP, SCALES_E4M3, scales_power_of_two,
         "E4M3 scales read as powers of two"),
    EDIT("scales without significand in down", DOWN, SCALES_E4M3, scales_power_of_two,
         "E4M3 scales read as powers of two"),
    EDIT("subnormal scales zero in gate and up", GATE_UP, SCALES_E4M3, scales_subnormal_zero,
         "FlashInfer #3933, #2356"),
    EDIT("subnormal scales zero in down", DOWN, SCALES_E4M3, scales_subnormal_zero, "FlashInfer #3933, #2356"),
    EDIT("scale bias off by one in gate and up", GATE_UP, SCALES_E8M0, scales_bias,
         "Transformers #46763: scales up to an octave off"),
    EDIT("scale bias off by one in down", DOWN, SCALES_E8M0, scales_bias,
         "Transformers #46763: scales up to an octave off"),
    EDIT("block scales of gate and up inverted", GATE_UP, SCALES_FP32, scales_inverse,
         "weight_scale_inv taken by its name"),
    EDIT("block scales of down inverted", DOWN, SCALES_FP32, scales_inverse, "weight_scale_inv taken by its name"),
    EDIT("block scales of gate and up transposed", GATE_UP, SCALES_FP32, scales_transposed, "vLLM #50204"),
    EDIT("block scales of down transposed", DOWN, SCALES_FP32, scales_transposed, "vLLM #50204"),
    EDIT("block scale of the first block for all, gate and up", GATE_UP, SCALES_FP32, scales_one,
         "per-tensor scale in place of blocks"),
    EDIT("global scale of gate and up missing", GATE_UP, SCALES_E4M3, global_missing, "FlashInfer #3548"),
    EDIT("global scale of down missing", DOWN, SCALES_E4M3, global_missing, "FlashInfer #3548"),
    EDIT("global scale of the next expert in gate and up", GATE_UP, SCALES_E4M3, global_next_expert,
         "one alpha for the wrong expert"),
    EDIT("global scale of the next expert in down", DOWN, SCALES_E4M3, global_next_expert,
         "one alpha for the wrong expert"),
    EDIT("global scale of gate used for up", GATE_UP, SCALES_E4M3, global_of_gate, "one w13 alpha for two tensors"),
    EDIT("E2M1 0.5 read as 0 in gate and up", GATE_UP, E2M1, e2m1_no_half, "subnormals flushed when decoding"),
    EDIT("E2M1 6 read as 4 in down", DOWN, E2M1, e2m1_no_six, "a wrong entry of a table"),
    EDIT("sign of odd nibbles lost in gate and up", GATE_UP, E2M1, e2m1_unsigned_odd,
         "a mask without the high nibble's sign"),
    EDIT("E4M3 read as FNUZ in gate and up", GATE_UP, E4M3, e4m3_fnuz, "vLLM #7210, #47201; SGLang #35111"),
    EDIT("E4M3 read as FNUZ in down", DOWN, E4M3, e4m3_fnuz, "vLLM #7210, #47201; SGLang #35111"),
    EDIT("E4M3 read as E5M2 in gate and up", GATE_UP, E4M3, e4m3_as_e5m2, "the other 8-bit dtype"),
    EDIT("subnormal E4M3 codes zero in down", DOWN, E4M3, e4m3_subnormal_zero, "subnormals flushed when decoding"),
    EDIT("bf16 weights with three significand bits less", GATE_UP, BF16, bf16_as_e4m3,
         "weights quantised without saying so"),

    EDIT("last K block dropped", WEIGHTS, 0, last_block_dropped, "TileLang #2381; CUTLASS #3536"),
    EDIT("weights of the first expert for all", WEIGHTS, 0, first_expert, "expert stride missing"),
    EDIT("nibbles exchanged", WEIGHTS, E2M1, nibbles_exchanged, "Triton #5197; torchao #2939"),
    EDIT("scales of the next block", WEIGHTS, SCALES, scales_next_block, "a scale pointer advanced before its use"),
    EDIT("scales of the previous block", WEIGHTS, SCALES, scales_previous_block,
         "a scale pointer advanced one block late"),
    EDIT("scales of the next block, a row's last kept", WEIGHTS, ROW_SCALES, scales_next_kept,
         "an index clamped to the row"),
    EDIT("scales of the next block, a row's last from its first", WEIGHTS, ROW_SCALES, scales_next_wrapped,
         "an index taken modulo the row"),
    EDIT("scales of the next row", WEIGHTS, ROW_SCALES, scales_next_row, "a wrong leading dimension of scales"),
    EDIT("linear scales read as swizzled", WEIGHTS, ROW_SCALES, scales_swizzled, "modular #6600; vLLM #50084"),
    EDIT("swizzled scales read as linear", WEIGHTS, ROW_SCALES, scales_unswizzled, "modular #6600; vLLM #50084"),
    EDIT("transposed scales read as rows", WEIGHTS, ROW_SCALES, scales_of_columns,
         "scales with their rows innermost, as DeepGEMM takes them"),
    EDIT("scales without significand", WEIGHTS, SCALES_E4M3, scales_power_of_two, "E4M3 scales read as powers of two"),
    EDIT("scale bias off by one", WEIGHTS, SCALES_E8M0, scales_bias, "Transformers #46763: scales up to an octave off"),
    EDIT("block scales transposed", WEIGHTS, SCALES_FP32, scales_transposed, "vLLM #50204"),
    EDIT("global scales missing", WEIGHTS, SCALES_E4M3, global_missing, "FlashInfer #3548"),
    EDIT("E4M3 read as FNUZ", WEIGHTS, E4M3, e4m3_fnuz, "vLLM #7210, #47201; SGLang #35111"),
};
const struct fault_table faults_weights = {weights, sizeof weights / sizeof *weights};
