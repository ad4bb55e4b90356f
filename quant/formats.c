/* SPDX-License-Identifier: Apache-2.0 */
/* Formats of weights: names, sizes, and one row as numbers. */
#include <string.h>

#include "quant/elements.h"
#include "quant/quant.h"

enum { NVFP4_BLOCK = 16, MXFP8_BLOCK = 32 };

struct format_row {
    enum gb_format format;
    const char *name;
    uint32_t block; /* columns that share a scale */
    uint32_t bits_per_code;
    uint32_t scale_bytes; /* of one scale; 0: no scales */
    bool global;          /* whether parts have a global scale */
};

static const struct format_row formats[] = {
    {GB_FP32, "fp32", 1, 32, 0, false},
    {GB_BF16, "bf16", 1, 16, 0, false},
    {GB_NVFP4, "nvfp4", NVFP4_BLOCK, 4, 1, true},
    {GB_MXFP8, "mxfp8", MXFP8_BLOCK, 8, 1, false},
};

static const struct format_row *find(enum gb_format format)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].format == format)
            return &formats[i];
    return NULL;
}

const char *gb_format_name(enum gb_format format)
{
    const struct format_row *row = find(format);
    return row ? row->name : NULL;
}

bool gb_format_parse(const char *name, enum gb_format *format)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].format != GB_FP32 && !strcmp(formats[i].name, name)) {
            *format = formats[i].format;
            return true;
        }
    return false;
}

uint32_t gb_format_block(enum gb_format format)
{
    const struct format_row *row = find(format);
    return row ? row->block : 0;
}

size_t gb_row_code_bytes(enum gb_format format, uint32_t columns)
{
    const struct format_row *row = find(format);
    return row ? (size_t)columns * row->bits_per_code / 8 : 0;
}

size_t gb_row_scale_bytes(enum gb_format format, uint32_t columns)
{
    const struct format_row *row = find(format);
    return row ? (size_t)columns / row->block * row->scale_bytes : 0;
}

enum gb_status gb_weights_bytes(const struct gb_weights *weights, size_t *codes, size_t *scales, size_t *global_scales,
                                struct gb_error *error)
{
    const struct format_row *row = find(weights->format);
    if (!row)
        return gb_fail(error, GB_EINVAL, "unknown weight format %d", (int)weights->format);
    if (weights->columns == 0 || weights->columns % row->block)
        return gb_fail(error, GB_EINVAL, "%u columns are no whole number of %s blocks of %u", weights->columns,
                       row->name, row->block);
    if (!gb_bytes(weights->experts, weights->rows, gb_row_code_bytes(weights->format, weights->columns), 1, codes) ||
        !gb_bytes(weights->experts, weights->rows, gb_row_scale_bytes(weights->format, weights->columns), 1, scales) ||
        !gb_bytes(weights->experts, weights->parts, row->global ? sizeof(float) : 0, 1, global_scales))
        return gb_fail(error, GB_EINVAL, "%u x %u x %u weights do not fit in memory", weights->experts, weights->rows,
                       weights->columns);
    return GB_OK;
}

uint32_t gb_weights_part(const struct gb_weights *weights, uint32_t row)
{
    return row / (weights->rows / weights->parts);
}

float gb_weights_global(const struct gb_weights *weights, uint32_t expert, uint32_t row)
{
    if (!weights->global_scales)
        return 1.0f;
    return weights->global_scales[(size_t)expert * weights->parts + gb_weights_part(weights, row)];
}

static void nvfp4_codes(const struct gb_weights *weights, size_t row, float *codes, float *scales)
{
    const gb_e2m1x2 *pairs = (const gb_e2m1x2 *)weights->codes + row * (weights->columns / 2);
    const gb_e4m3 *bytes = (const gb_e4m3 *)weights->scales + row * (weights->columns / NVFP4_BLOCK);
    for (uint32_t c = 0; c < weights->columns / 2; c++) {
        codes[2 * c] = e2m1_value(pairs[c].bits & 15u);
        codes[2 * c + 1] = e2m1_value((uint32_t)pairs[c].bits >> 4);
    }
    for (uint32_t b = 0; b < weights->columns / NVFP4_BLOCK; b++)
        scales[b] = gb_e4m3_decode(bytes[b]);
}

static void mxfp8_codes(const struct gb_weights *weights, size_t row, float *codes, float *scales)
{
    const gb_e4m3 *elements = (const gb_e4m3 *)weights->codes + row * weights->columns;
    const gb_e8m0 *bytes = (const gb_e8m0 *)weights->scales + row * (weights->columns / MXFP8_BLOCK);
    for (uint32_t c = 0; c < weights->columns; c++)
        codes[c] = e4m3_value(elements[c].bits);
    for (uint32_t b = 0; b < weights->columns / MXFP8_BLOCK; b++)
        scales[b] = gb_e8m0_decode(bytes[b]);
}

void gb_weights_codes(const struct gb_weights *weights, uint32_t expert, uint32_t row, float *codes, float *scales)
{
    size_t r = (size_t)expert * weights->rows + row;
    if (weights->format == GB_NVFP4) {
        nvfp4_codes(weights, r, codes, scales);
        return;
    }
    if (weights->format == GB_MXFP8) {
        mxfp8_codes(weights, r, codes, scales);
        return;
    }
    for (uint32_t c = 0; c < weights->columns; c++) {
        size_t i = r * weights->columns + c;
        codes[c] = weights->format == GB_BF16 ? gb_bf16_decode(((const gb_bf16 *)weights->codes)[i])
                                              : ((const float *)weights->codes)[i];
        scales[c] = 1.0f;
    }
}

static void nvfp4_row(const struct gb_weights *weights, size_t row, double global, double *values)
{
    const gb_e2m1x2 *pairs = (const gb_e2m1x2 *)weights->codes + row * (weights->columns / 2);
    const gb_e4m3 *bytes = (const gb_e4m3 *)weights->scales + row * (weights->columns / NVFP4_BLOCK);
    for (uint32_t c = 0; c < weights->columns; c += 2) {
        double scale = (double)gb_e4m3_decode(bytes[c / NVFP4_BLOCK]) * global;
        values[c] = (double)e2m1_value(pairs[c / 2].bits & 15u) * scale;
        values[c + 1] = (double)e2m1_value((uint32_t)pairs[c / 2].bits >> 4) * scale;
    }
}

static void mxfp8_row(const struct gb_weights *weights, size_t row, double *values)
{
    const gb_e4m3 *elements = (const gb_e4m3 *)weights->codes + row * weights->columns;
    const gb_e8m0 *bytes = (const gb_e8m0 *)weights->scales + row * (weights->columns / MXFP8_BLOCK);
    for (uint32_t c = 0; c < weights->columns; c++)
        values[c] = (double)e4m3_value(elements[c].bits) * (double)gb_e8m0_decode(bytes[c / MXFP8_BLOCK]);
}

void gb_weights_row(const struct gb_weights *weights, uint32_t expert, uint32_t row, double *values)
{
    size_t r = (size_t)expert * weights->rows + row;
    if (weights->format == GB_NVFP4) {
        nvfp4_row(weights, r, (double)gb_weights_global(weights, expert, row), values);
        return;
    }
    if (weights->format == GB_MXFP8) {
        mxfp8_row(weights, r, values);
        return;
    }
    for (uint32_t c = 0; c < weights->columns; c++) {
        size_t i = r * weights->columns + c;
        values[c] = weights->format == GB_BF16 ? (double)gb_bf16_decode(((const gb_bf16 *)weights->codes)[i])
                                               : (double)((const float *)weights->codes)[i];
    }
}
