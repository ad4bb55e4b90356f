/* SPDX-License-Identifier: Apache-2.0 */
/* Formats of weights: names, sizes, and one row as numbers. */
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "quant/multiversion.h"
#include "quant/elements.h"
#include "quant/quant.h"

enum { NVFP4_BLOCK = 16, MX_BLOCK = 32, FP8_BLOCK = 128 };

/* NVFP4: amax / 6 in E4M3 is off by at most 1/16, so that its largest code is 6; MX: rounded up, a scale leaves more
 * than half of the largest code; FP8: amax / 448 in FP32. Weights first, as `gaugeblock list formats` has them. */
static const struct gb_format_row formats[] = {
    {GB_BF16, "bf16", true, GB_CODEC_BF16, 0, 1, 1, false, false, 0.0f},
    {GB_NVFP4, "nvfp4", true, GB_CODEC_E2M1, GB_SCALE_E4M3, NVFP4_BLOCK, 1, false, true, 6.0f},
    {GB_MXFP8, "mxfp8", true, GB_CODEC_E4M3, GB_SCALE_E8M0, MX_BLOCK, 1, false, false, 224.0f},
    {GB_MXFP4, "mxfp4", true, GB_CODEC_E2M1, GB_SCALE_E8M0, MX_BLOCK, 1, false, false, 3.0f},
    {GB_FP8_BLOCK, "fp8", true, GB_CODEC_E4M3, GB_SCALE_FP32, FP8_BLOCK, FP8_BLOCK, true, false, 448.0f},
    {GB_FP32, "fp32", false, 0, 0, 1, 1, false, false, 0.0f},
    {GB_FP16, "fp16", false, GB_CODEC_FP16, 0, 1, 1, false, false, 0.0f},
};
enum { FORMATS = sizeof formats / sizeof *formats };

const struct gb_format_row *gb_format_find(enum gb_format format)
{
    for (size_t i = 0; i < FORMATS; i++)
        if (formats[i].format == format)
            return &formats[i];
    return NULL;
}

const struct gb_format_row *gb_weight_formats(size_t *count)
{
    for (*count = 0; *count < FORMATS && formats[*count].weights;)
        ++*count;
    return formats;
}

size_t gb_scale_bytes(enum gb_scale scale)
{
    return scale == GB_SCALE_FP32 ? sizeof(float) : scale != 0;
}

static size_t code_bits(const struct gb_format_row *row)
{
    return row->codes ? gb_codec_bits(row->codes) : 32;
}

const char *gb_format_name(enum gb_format format)
{
    const struct gb_format_row *row = gb_format_find(format);
    return row ? row->name : NULL;
}

bool gb_format_parse(const char *name, enum gb_format *format)
{
    for (size_t i = 0; i < FORMATS; i++)
        if (formats[i].weights && !strcmp(formats[i].name, name)) {
            *format = formats[i].format;
            return true;
        }
    return false;
}

uint32_t gb_format_block(enum gb_format format)
{
    const struct gb_format_row *row = gb_format_find(format);
    return row ? row->block : 0;
}

uint32_t gb_format_block_rows(enum gb_format format)
{
    const struct gb_format_row *row = gb_format_find(format);
    return row ? row->block_rows : 0;
}

uint32_t gb_format_multiple(enum gb_format format)
{
    const struct gb_format_row *row = gb_format_find(format);
    return !row ? 0 : row->edges ? 1 : row->block;
}

size_t gb_row_code_bytes(enum gb_format format, uint32_t columns)
{
    const struct gb_format_row *row = gb_format_find(format);
    return row ? columns * code_bits(row) / 8 : 0;
}

static size_t divide_up(size_t count, size_t by)
{
    return (count + by - 1) / by;
}

size_t gb_row_scale_bytes(enum gb_format format, uint32_t columns)
{
    const struct gb_format_row *row = gb_format_find(format);
    return row ? divide_up(columns, row->block) * gb_scale_bytes(row->scales) : 0;
}

size_t gb_part_scale_bytes(enum gb_format format, uint32_t rows, uint32_t columns)
{
    const struct gb_format_row *row = gb_format_find(format);
    return row ? divide_up(rows, row->block_rows) * gb_row_scale_bytes(format, columns) : 0;
}

enum gb_status gb_weights_bytes(const struct gb_weights *weights, size_t *codes, size_t *scales, size_t *global_scales,
                                struct gb_error *error)
{
    const struct gb_format_row *row = gb_format_find(weights->format);
    if (!row)
        return gb_fail(error, GB_EINVAL, "unknown weight format %d", (int)weights->format);
    if (weights->columns == 0 || weights->columns % gb_format_multiple(weights->format))
        return gb_fail(error, GB_EINVAL, "%u columns are no whole number of %s blocks of %u", weights->columns,
                       row->name, row->block);
    if (weights->halves == 0 || weights->rows % weights->halves)
        return gb_fail(error, GB_EINVAL, "%u rows are not divided by %u parts", weights->rows, weights->halves);
    size_t scale_rows = divide_up(weights->rows / weights->halves, row->block_rows) * weights->halves;
    if (!gb_bytes(weights->experts, weights->rows, gb_row_code_bytes(weights->format, weights->columns), 1, codes) ||
        !gb_bytes(weights->experts, scale_rows, gb_row_scale_bytes(weights->format, weights->columns), 1, scales) ||
        !gb_bytes(weights->experts, weights->halves, row->global ? sizeof(float) : 0, 1, global_scales))
        return gb_fail(error, GB_EINVAL, "%u x %u x %u weights do not fit in memory", weights->experts, weights->rows,
                       weights->columns);
    return GB_OK;
}

uint32_t gb_weights_part(const struct gb_weights *weights, uint32_t row)
{
    return row / (weights->rows / weights->halves);
}

float gb_weights_global(const struct gb_weights *weights, uint32_t expert, uint32_t row)
{
    if (!weights->global_scales)
        return 1.0f;
    return weights->global_scales[(size_t)expert * weights->halves + gb_weights_part(weights, row)];
}

/* Into each of the clones. */
#define INLINE static inline __attribute__((always_inline))

/* Where a row's codes and scales begin. */
struct row_at {
    const struct gb_weights *weights;
    size_t codes;  /* elements before the row */
    size_t scales; /* scales before the row's */
};

/* Each part's blocks of rows begin at its first row. */
static struct row_at row_at(const struct gb_weights *weights, uint32_t expert, uint32_t row)
{
    const struct gb_format_row *format = gb_format_find(weights->format);
    uint32_t rows = weights->rows / weights->halves;
    size_t scale_rows = divide_up(rows, format->block_rows), part = (size_t)expert * weights->halves + row / rows;
    return (struct row_at){
        .weights = weights,
        .codes = ((size_t)expert * weights->rows + row) * weights->columns,
        .scales = (part * scale_rows + row % rows / format->block_rows) * divide_up(weights->columns, format->block),
    };
}

/* first is even. */
INLINE void e2m1_codes(const struct row_at *at, uint32_t first, uint32_t count, float *codes)
{
    const gb_e2m1x2 *pairs = (const gb_e2m1x2 *)at->weights->codes + (at->codes + first) / 2;
    for (uint32_t c = 0; c < count / 2; c++) {
        codes[2 * c] = e2m1_value(pairs[c].bits & 15u);
        codes[2 * c + 1] = e2m1_value((uint32_t)pairs[c].bits >> 4);
    }
}

INLINE void e4m3_codes(const struct row_at *at, uint32_t first, uint32_t count, float *codes)
{
    const gb_e4m3 *elements = (const gb_e4m3 *)at->weights->codes + at->codes + first;
    for (uint32_t c = 0; c < count; c++)
        codes[c] = e4m3_value(elements[c].bits);
}

INLINE void bf16_codes(const struct row_at *at, uint32_t first, uint32_t count, float *codes)
{
    const gb_bf16 *elements = (const gb_bf16 *)at->weights->codes + at->codes + first;
    for (uint32_t c = 0; c < count; c++)
        codes[c] = gb_bf16_decode(elements[c]);
}

/* Bytes are widened in a loop of their own: in the other gcc would narrow every part of a scale. */
INLINE void e4m3_scales(const struct row_at *at, size_t first, size_t count, float *scales)
{
    const gb_e4m3 *bytes = (const gb_e4m3 *)at->weights->scales + at->scales + first;
    for (size_t b = 0; b < count; b++)
        scales[b] = f32_from_bits(bytes[b].bits);
#pragma omp simd
    for (size_t b = 0; b < count; b++)
        scales[b] = e4m3_value(f32_bits(scales[b]));
}

INLINE void e8m0_scales(const struct row_at *at, size_t first, size_t count, float *scales)
{
    const gb_e8m0 *bytes = (const gb_e8m0 *)at->weights->scales + at->scales + first;
    for (size_t b = 0; b < count; b++)
        scales[b] = gb_e8m0_decode(bytes[b]);
}

/* Columns first .. first + count - 1 of a row. */
INLINE void decode_codes(const struct row_at *at, enum gb_codec type, uint32_t first, uint32_t count, float *codes)
{
    switch (type) {
    case GB_CODEC_E2M1:
        e2m1_codes(at, first, count, codes);
        break;
    case GB_CODEC_E4M3:
        e4m3_codes(at, first, count, codes);
        break;
    case GB_CODEC_BF16:
        bf16_codes(at, first, count, codes);
        break;
    default:
        memcpy(codes, (const float *)at->weights->codes + at->codes + first, count * sizeof *codes);
    }
}

/* Scales first .. first + count - 1 of a row. */
INLINE void decode_scales(const struct row_at *at, enum gb_scale type, size_t first, size_t count, float *scales)
{
    switch (type) {
    case GB_SCALE_E4M3:
        e4m3_scales(at, first, count, scales);
        break;
    case GB_SCALE_E8M0:
        e8m0_scales(at, first, count, scales);
        break;
    case GB_SCALE_FP32:
        memcpy(scales, (const float *)at->weights->scales + at->scales + first, count * sizeof *scales);
        break;
    default:
        for (size_t b = 0; b < count; b++)
            scales[b] = 1.0f;
    }
}

GB_VECTOR_CLONES void gb_weights_codes(const struct gb_weights *weights, uint32_t expert, uint32_t row, float *codes,
                                       float *scales)
{
    const struct gb_format_row *format = gb_format_find(weights->format);
    struct row_at at = row_at(weights, expert, row);
    decode_codes(&at, format->codes, 0, weights->columns, codes);
    decode_scales(&at, format->scales, 0, divide_up(weights->columns, format->block), scales);
}

/* values = codes * scale, for `count` codes that share a scale. */
INLINE void scale_run(const float *codes, uint32_t count, double scale, double *values)
{
#pragma omp simd
    for (uint32_t c = 0; c < count; c++)
        values[c] = (double)codes[c] * scale;
}

/* Two elements, anywhere. */
typedef double pair __attribute__((vector_size(2 * sizeof(double)), aligned(sizeof(double)), may_alias));

/* The two E2M1 codes of each byte: the lower half of all values, then the upper one. */
#define PAIRS_WITH(upper)                                                                                              \
    0.0, upper, 0.5, upper, 1.0, upper, 1.5, upper, 2.0, upper, 3.0, upper, 4.0, upper, 6.0, upper, -0.0, upper, -0.5, \
        upper, -1.0, upper, -1.5, upper, -2.0, upper, -3.0, upper, -4.0, upper, -6.0, upper
static const double e2m1_pairs[256 * 2] = {
    PAIRS_WITH(0.0),  PAIRS_WITH(0.5),  PAIRS_WITH(1.0),  PAIRS_WITH(1.5),  PAIRS_WITH(2.0),  PAIRS_WITH(3.0),
    PAIRS_WITH(4.0),  PAIRS_WITH(6.0),  PAIRS_WITH(-0.0), PAIRS_WITH(-0.5), PAIRS_WITH(-1.0), PAIRS_WITH(-1.5),
    PAIRS_WITH(-2.0), PAIRS_WITH(-3.0), PAIRS_WITH(-4.0), PAIRS_WITH(-6.0),
};

/* The same of `count` E2M1 codes, whole blocks of `block`, looked up in fewer instructions than their bits take.
 * scales: [count / block], each times `global`. */
GB_NARROW_CLONES static void scale_pairs(const gb_e2m1x2 *codes, uint32_t count, uint32_t block, const float *scales,
                                         double global, double *values)
{
    for (uint32_t first = 0; first < count; first += block, scales++) {
        const double scale = (double)*scales * global;
        for (uint32_t p = first / 2; p < (first + block) / 2; p++)
            *(pair *)(values + 2 * p) = *(const pair *)(e2m1_pairs + 2 * codes[p].bits) * scale;
    }
}

#ifdef GB_WIDE_VECTORS
/* The same with all 16 numbers in two registers, from which the low four bits of a lane choose. Blocks are made of 16
 * codes each. */
GB_WIDE_VECTORS static void scale_pairs_wide(const gb_e2m1x2 *codes, uint32_t count, uint32_t block,
                                             const float *scales, double global, double *values)
{
    const __m512i shifts[2] = {_mm512_setr_epi64(0, 4, 8, 12, 16, 20, 24, 28),
                               _mm512_setr_epi64(32, 36, 40, 44, 48, 52, 56, 60)};
    const __m512d positive = _mm512_setr_pd(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0);
    const __m512d negative = _mm512_setr_pd(-0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0);
    for (uint32_t first = 0; first < count; first += block, scales++) {
        const __m512d scale = _mm512_set1_pd((double)*scales * global);
        for (uint32_t c = first; c < first + block; c += 16) {
            long long bits;
            memcpy(&bits, codes + c / 2, sizeof bits);
            for (unsigned half = 0; half < 2; half++) {
                const __m512i code = _mm512_srlv_epi64(_mm512_set1_epi64(bits), shifts[half]);
                const __m512d number = _mm512_permutex2var_pd(positive, code, negative);
                _mm512_storeu_pd(values + c + 8 * half, _mm512_mul_pd(number, scale));
            }
        }
    }
}
#endif

static void e2m1_values(const gb_e2m1x2 *codes, uint32_t count, uint32_t block, const float *scales, double global,
                        double *values)
{
#ifdef GB_WIDE_VECTORS
    if (gb_has_wide_vectors()) {
        scale_pairs_wide(codes, count, block, scales, global, values);
        return;
    }
#endif
    scale_pairs(codes, count, block, scales, global, values);
}

GB_VECTOR_CLONES static void row_values(const struct row_at *at, uint32_t columns, double global, double *values)
{
    enum { PIECE = 512 }; /* a multiple of every block */
    const struct gb_format_row *format = gb_format_find(at->weights->format);
    const uint32_t block = format->scales ? format->block : PIECE;
    for (uint32_t first = 0; first < columns; first += PIECE) {
        float codes[PIECE], scales[PIECE];
        const uint32_t count = columns - first < PIECE ? columns - first : PIECE;
        decode_scales(at, format->scales, first / block, divide_up(count, block), scales);
        if (format->codes == GB_CODEC_E2M1) {
            e2m1_values((const gb_e2m1x2 *)at->weights->codes + (at->codes + first) / 2, count, block, scales, global,
                        values + first);
            continue;
        }
        decode_codes(at, format->codes, first, count, codes);
        for (uint32_t run = 0; run < count; run += block)
            scale_run(codes + run, count - run < block ? count - run : block, (double)scales[run / block] * global,
                      values + first + run);
    }
}

void gb_weights_row(const struct gb_weights *weights, uint32_t expert, uint32_t row, double *values)
{
    struct row_at at = row_at(weights, expert, row);
    row_values(&at, weights->columns, (double)gb_weights_global(weights, expert, row), values);
}

/* The largest magnitude among numbers whose bits compare as their magnitudes do: those of `magnitude`, up to `most`,
 * above which lies NaN. */
#define LARGEST(TYPE)                                                                                                  \
    INLINE TYPE largest_##TYPE(const TYPE *numbers, size_t count, TYPE magnitude, TYPE most)                           \
    {                                                                                                                  \
        TYPE largest = 0;                                                                                              \
        _Pragma("omp simd reduction(max : largest)") for (size_t i = 0; i < count; i++)                                \
        {                                                                                                              \
            TYPE m = numbers[i] & magnitude;                                                                           \
            m = m > most ? 0 : m;                                                                                      \
            largest = m > largest ? m : largest;                                                                       \
        }                                                                                                              \
        return largest;                                                                                                \
    }
LARGEST(uint8_t)
LARGEST(uint16_t)
LARGEST(uint32_t)

INLINE float largest_code(const struct row_at *at, enum gb_codec type, uint32_t count)
{
    const uint8_t *bytes = at->weights->codes;
    uint8_t low, high;
    switch (type) {
    case GB_CODEC_E2M1:
        low = largest_uint8_t(bytes + at->codes / 2, count / 2, 0x07, 0x07);
        high = largest_uint8_t(bytes + at->codes / 2, count / 2, 0x70, 0x70) >> 4;
        return e2m1_value(low > high ? low : high);
    case GB_CODEC_E4M3:
        return e4m3_value(largest_uint8_t(bytes + at->codes, count, 0x7F, 0x7E));
    case GB_CODEC_BF16:
        return gb_bf16_decode(
            (gb_bf16){largest_uint16_t((const uint16_t *)at->weights->codes + at->codes, count, 0x7FFF, 0x7F80)});
    default:
        return f32_from_bits(
            largest_uint32_t((const uint32_t *)at->weights->codes + at->codes, count, 0x7FFFFFFF, 0x7F800000));
    }
}

INLINE float largest_scale(const struct row_at *at, enum gb_scale type, size_t count)
{
    const uint8_t *bytes = (const uint8_t *)at->weights->scales + at->scales;
    switch (type) {
    case GB_SCALE_E4M3:
        return e4m3_value(largest_uint8_t(bytes, count, 0x7F, 0x7E));
    case GB_SCALE_E8M0:
        return gb_e8m0_decode((gb_e8m0){largest_uint8_t(bytes, count, 0xFF, 0xFE)});
    case GB_SCALE_FP32:
        return f32_from_bits(
            largest_uint32_t((const uint32_t *)at->weights->scales + at->scales, count, 0x7FFFFFFF, 0x7F800000));
    default:
        return 1.0f;
    }
}

GB_VECTOR_CLONES void gb_weights_largest(const struct gb_weights *weights, uint32_t expert, uint32_t row, float *code,
                                         float *scale)
{
    const struct gb_format_row *format = gb_format_find(weights->format);
    const struct row_at at = row_at(weights, expert, row);
    *code = largest_code(&at, format->codes, weights->columns);
    *scale = largest_scale(&at, format->scales, divide_up(weights->columns, format->block));
}
