/* SPDX-License-Identifier: Apache-2.0 */
/* Faults in what is written. */
#include <math.h>
#include <string.h>

#include "harness/faults/rows.h"
#include "quant/quant.h"

static size_t count(const struct injected *p)
{
    return (size_t)p->shape.tokens * p->shape.hidden;
}

static float *row(struct injected *p, uint32_t token)
{
    return p->output + (size_t)token * p->shape.hidden;
}

static const float *clean_row(const struct injected *p, uint32_t token)
{
    return p->clean->output + (size_t)token * p->shape.hidden;
}

static void plant_output_zero(struct injected *p)
{
    memset(p->output, 0, count(p) * sizeof *p->output);
}

static void plant_output_scaled(struct injected *p)
{
    for (size_t i = 0; i < count(p); i++)
        p->output[i] *= (float)p->fault->amount;
}

static void plant_output_row_zero(struct injected *p)
{
    memset(row(p, p->shape.tokens / 2), 0, p->shape.hidden * sizeof *p->output);
}

/* The first token and the next one that differs from it. */
static void plant_output_rows_exchanged(struct injected *p)
{
    size_t bytes = p->shape.hidden * sizeof *p->output;
    uint32_t other = 1;
    while (other < p->shape.tokens && !memcmp(clean_row(p, 0), clean_row(p, other), bytes))
        other++;
    if (other >= p->shape.tokens)
        return;
    memcpy(row(p, 0), clean_row(p, other), bytes);
    memcpy(row(p, other), clean_row(p, 0), bytes);
}

static void plant_output_row_repeated(struct injected *p)
{
    if (p->shape.tokens > 1)
        memcpy(row(p, p->shape.tokens - 1), clean_row(p, p->shape.tokens - 2), p->shape.hidden * sizeof *p->output);
}

/* The last `amount` columns. */
static void plant_output_columns_zero(struct injected *p)
{
    uint32_t tail = (uint32_t)fmin(p->fault->amount, p->shape.hidden);
    for (uint32_t t = 0; t < p->shape.tokens; t++)
        memset(row(p, t) + p->shape.hidden - tail, 0, tail * sizeof *p->output);
}

/* Each even column with the odd one after it. */
static void plant_output_columns_exchanged(struct injected *p)
{
    for (uint32_t t = 0; t < p->shape.tokens; t++)
        for (uint32_t i = 0; i + 1 < p->shape.hidden; i += 2) {
            row(p, t)[i] = clean_row(p, t)[i + 1];
            row(p, t)[i + 1] = clean_row(p, t)[i];
        }
}

static void plant_output_columns_shifted(struct injected *p)
{
    for (uint32_t t = 0; t < p->shape.tokens; t++)
        memcpy(row(p, t), clean_row(p, t) + 1, (p->shape.hidden - 1) * sizeof *p->output);
}

/* The second half of the columns is the first one again. */
static void plant_output_tile_repeated(struct injected *p)
{
    for (uint32_t t = 0; t < p->shape.tokens; t++)
        memcpy(row(p, t) + p->shape.hidden / 2, clean_row(p, t), p->shape.hidden / 2 * sizeof *p->output);
}

/* To the bits of bf16, toward zero. */
static void plant_output_truncated(struct injected *p)
{
    for (size_t i = 0; i < count(p); i++) {
        uint32_t bits;
        memcpy(&bits, &p->output[i], sizeof bits);
        bits &= 0xFFFF0000;
        memcpy(&p->output[i], &bits, sizeof bits);
    }
}

/* The largest element of one row. */
static float *peak(struct injected *p)
{
    float *values = row(p, p->shape.tokens / 2), *largest = values;
    for (uint32_t i = 0; i < p->shape.hidden; i++)
        largest = fabsf(values[i]) > fabsf(*largest) ? values + i : largest;
    return largest;
}

static void plant_output_sign(struct injected *p)
{
    *peak(p) *= -1.0f;
}

static void plant_output_nan(struct injected *p)
{
    *peak(p) = NAN;
}

/* One element is another one's. */
static void plant_output_stale(struct injected *p)
{
    *peak(p) = p->clean->output[0];
}

static void plant_residual_added(struct injected *p)
{
    for (size_t i = 0; i < (size_t)p->shape.tokens * p->shape.hidden; i++)
        p->output[i] += gb_bf16_decode(p->x[i]);
}

static const struct fault outputs[] = {
    PLANT("output zero", OUTPUT, output_zero, 0, "FlashInfer #4328, KernelBench #165: zeros pass", .must_catch = true,
          .nothing = true),
    PLANT("output scaled by 1.25", OUTPUT, output_scaled, 1.25, "a scale of another convention"),
    PLANT("output scaled by 1.05", OUTPUT, output_scaled, 1.05, "a scale of another convention"),
    PLANT("output scaled by 1 + 2^-10", OUTPUT, output_scaled, 1 + 0x1p-10, "1/s by rcp.approx, rounded to half"),
    PLANT("output scaled by 1 + 2^-14", OUTPUT, output_scaled, 1 + 0x1p-14, "a systematic error near FP32's noise"),
    PLANT("residual added", OUTPUT, residual_added, 0, "a fused epilogue where none was asked for"),
    PLANT("one row zero", OUTPUT, output_row_zero, 0, "KernelBench-Hard: a token of a tile left out",
          .particular = true),
    PLANT("two rows exchanged", OUTPUT, output_rows_exchanged, 0, "inverse permutation off by one", .must_catch = true,
          .particular = true),
    PLANT("last row repeated", OUTPUT, output_row_repeated, 0, "a clamped index of a tile's remainder",
          .particular = true),
    PLANT("last 16 columns zero", OUTPUT, output_columns_zero, 16, "flashinfer-bench: unwritten tail columns",
          .particular = true),
    PLANT("last column zero", OUTPUT, output_columns_zero, 1, "flashinfer-bench: unwritten tail columns",
          .particular = true),
    PLANT("even and odd columns exchanged", OUTPUT, output_columns_exchanged, 0, "packed bf16x2 stored in reverse"),
    PLANT("columns shifted by one", OUTPUT, output_columns_shifted, 0, "a store off by one element"),
    PLANT("first half of the columns repeated", OUTPUT, output_tile_repeated, 0,
          "TensorRT-LLM #10331: errors with the period of a tile"),
    PLANT("output truncated to bf16", OUTPUT, output_truncated, 0, "the upper half of the bits, without rounding"),
    PLANT("sign of one element", OUTPUT, output_sign, 0, "one wrong lane", .particular = true),
    PLANT("one element of another place", OUTPUT, output_stale, 0, "FlashInfer #4964: one element of millions",
          .particular = true),
    PLANT("one NaN", OUTPUT, output_nan, 0, "FlashInfer #3103: a minority of NaN", .particular = true),
};
const struct fault_table faults_outputs = {outputs, sizeof outputs / sizeof *outputs};
