/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mma16-sm90/1 on AVX-512 (F, BW, VL): 16 rows at a time, a row in every lane.
 *
 * An instruction of the order is a sum of integers. With E the largest exponent of its terms, every term times 2^(25 -
 * E), converted to int32 toward zero, is what the instruction keeps of it: at most 3.75 * 2^25, so that 16 of them and
 * the accumulator stay below 2^31. The int32 sum is rounded toward zero to binary32 and scaled back, exactly.
 */
#include "reference/mma16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* PASS: how many activations share the decoding of a weight. */
enum { ROWS = 16, PASS = 8, STEP_BYTES = 64, TERMS = GB_MMA16_COLUMNS };

/* A step of 16 rows: codes of chunk c, dword d; scales of block b. */
struct step {
    __m512i codes[4][4];
    __m512 scales[8];
};

struct tile {
    const uint8_t *codes;  /* [ROWS, code_bytes] */
    const uint8_t *scales; /* [ROWS, scale_bytes] */
    size_t code_bytes, scale_bytes;
    uint32_t rows; /* that exist */
};

INLINE uint32_t scales_of_step(enum gb_format format)
{
    return format == GB_NVFP4 ? 8 : format == GB_MXFP4 ? 4 : 2;
}

/* Row r of the tile; of rows that do not exist, the last that does. */
INLINE uint32_t row_of(const struct tile *tile, uint32_t r)
{
    return r < tile->rows ? r : tile->rows - 1;
}

/* Dwords of a chunk: register d of the result has dword d of row r in lane r. */
INLINE void transpose(const uint8_t *const *rows, __m512i *dwords)
{
    __m512i z[4];
    UNROLL for (uint32_t q = 0; q < 4; q++)
    {
        z[q] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)rows[q]));
        z[q] = _mm512_inserti32x4(z[q], _mm_loadu_si128((const __m128i *)rows[4 + q]), 1);
        z[q] = _mm512_inserti32x4(z[q], _mm_loadu_si128((const __m128i *)rows[8 + q]), 2);
        z[q] = _mm512_inserti32x4(z[q], _mm_loadu_si128((const __m128i *)rows[12 + q]), 3);
    }
    const __m512i a = _mm512_unpacklo_epi32(z[0], z[1]), b = _mm512_unpackhi_epi32(z[0], z[1]);
    const __m512i c = _mm512_unpacklo_epi32(z[2], z[3]), d = _mm512_unpackhi_epi32(z[2], z[3]);
    dwords[0] = _mm512_unpacklo_epi64(a, c);
    dwords[1] = _mm512_unpackhi_epi64(a, c);
    dwords[2] = _mm512_unpacklo_epi64(b, d);
    dwords[3] = _mm512_unpackhi_epi64(b, d);
}

/* The number of E4M3 bytes, 0 .. 255 in every lane, times 2^exponent. */
INLINE __m512 e4m3(__m512i bytes, float factor)
{
    const __m512i magnitude = _mm512_slli_epi32(_mm512_and_si512(bytes, _mm512_set1_epi32(0x7F)), 20);
    const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(bytes, _mm512_set1_epi32(0x80)), 24);
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_or_si512(magnitude, sign)), _mm512_set1_ps(factor));
}

/* Step s. False if the plain definition must take it: scales or codes that are not ordinary. */
INLINE bool load(const struct tile *tile, enum gb_format format, uint32_t s, struct step *to)
{
    const uint32_t scales = scales_of_step(format);
    const size_t code_at = (size_t)s * STEP_BYTES, scale_at = (size_t)s * scales;
    const uint8_t *rows[ROWS];
    uint8_t codes[ROWS][STEP_BYTES];
    uint64_t words[ROWS];
    const bool whole = code_at + STEP_BYTES <= tile->code_bytes;
    for (uint32_t r = 0; r < ROWS; r++) {
        const uint8_t *from = tile->codes + row_of(tile, r) * tile->code_bytes + code_at;
        const uint8_t *scale = tile->scales + row_of(tile, r) * tile->scale_bytes + scale_at;
        rows[r] = from;
        words[r] = format == GB_NVFP4 ? 0 : 0x7F7F7F7F7F7F7F7F;
        if (whole)
            memcpy(&words[r], scale, scales);
        else {
            memset(codes[r], 0, STEP_BYTES);
            memcpy(codes[r], from, tile->code_bytes - code_at);
            memcpy(&words[r], scale, tile->scale_bytes - scale_at);
            rows[r] = codes[r];
        }
    }
    UNROLL for (uint32_t c = 0; c < 4; c++)
    {
        transpose(rows, to->codes[c]);
        for (uint32_t r = 0; r < ROWS; r++)
            rows[r] += 16;
    }
    const __m512i low = _mm512_loadu_si512(words), high = _mm512_loadu_si512(words + 8);
    __mmask16 odd = 0;
    UNROLL for (uint32_t b = 0; b < 8; b++)
    {
        if (b >= scales)
            break;
        const __m256i first = _mm512_cvtepi64_epi32(_mm512_srli_epi64(low, 8 * b));
        const __m256i second = _mm512_cvtepi64_epi32(_mm512_srli_epi64(high, 8 * b));
        const __m512i bytes =
            _mm512_and_si512(_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1), _mm512_set1_epi32(0xFF));
        if (format == GB_NVFP4) {
            odd |= _mm512_cmpeq_epi32_mask(_mm512_and_si512(bytes, _mm512_set1_epi32(0x7F)), _mm512_set1_epi32(0x7F));
            to->scales[b] = e4m3(bytes, 0x1p112f);
        } else {
            const __m512i from = _mm512_sub_epi32(bytes, _mm512_set1_epi32(87));
            odd |= _mm512_cmpgt_epu32_mask(from, _mm512_set1_epi32(47));
            /* fields of E4M3 in those of binary32 are the code times 2^-120 */
            const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(bytes, 23));
            to->scales[b] = format == GB_MXFP8 ? _mm512_mul_ps(scale, _mm512_set1_ps(0x1p120f)) : scale;
        }
    }
    if (format == GB_MXFP8) {
        const __m512i nan = _mm512_set1_epi8(0x7F);
        UNROLL for (uint32_t i = 0; i < 16; i++) odd |=
            _mm512_cmpeq_epi8_mask(_mm512_and_si512(to->codes[i / 4][i % 4], nan), nan) != 0;
    }
    return !odd;
}

/* The 16 operands of instruction i in every row. */
INLINE void operands(enum gb_format format, const struct step *from, uint32_t i, __m512 *w)
{
    const __m512 e2m1 = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f,
                                       -2.0f, -3.0f, -4.0f, -6.0f);
    UNROLL for (uint32_t c = 0; c < 4; c++)
    {
        const uint32_t dword = format == GB_MXFP8 ? i : i / 2;
        const __m512i codes = from->codes[c][dword];
        const __m512 scale = from->scales[format == GB_NVFP4 ? 2 * c + dword / 2 : format == GB_MXFP4 ? c : c / 2];
        UNROLL for (uint32_t k = 0; k < 4; k++)
        {
            const uint32_t element = format == GB_MXFP8 ? k : i % 2 * 4 + k;
            if (format == GB_MXFP8) {
                /* the byte's sign and, four bits further down, its fields */
                const __m512i top = _mm512_slli_epi32(codes, 24 - 8 * element);
                const __m512i fields = _mm512_and_si512(_mm512_srai_epi32(top, 4), _mm512_set1_epi32((int)0x87F00000));
                w[4 * c + k] = _mm512_mul_ps(_mm512_castsi512_ps(fields), scale);
            } else {
                w[4 * c + k] = _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4 * element), e2m1), scale);
            }
        }
    }
}

/* One instruction: accumulator + w . x. odd: lanes whose sum is too small for these operations. */
INLINE __m512 add_up(const __m512 *w, const float *x, const float *fields, const uint32_t *columns, __m512 accumulator,
                     __mmask16 *odd)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF), least = _mm512_set1_epi32((254 - 64) << 23);
    const __m512i start = _mm512_castps_si512(accumulator);
    __m512i largest[2] = {
        _mm512_add_epi32(_mm512_and_si512(start, magnitude), _mm512_set1_epi32(127 << 23)),
        least,
    };
    UNROLL for (uint32_t k = 0; k < TERMS; k++) largest[k % 2] = _mm512_max_epu32(
        largest[k % 2], _mm512_add_epi32(_mm512_and_si512(_mm512_castps_si512(w[k]), magnitude),
                                         _mm512_set1_epi32(((const int32_t *)(const void *)fields)[columns[k]])));
    const __m512i field =
        _mm512_and_si512(_mm512_max_epu32(largest[0], largest[1]), _mm512_set1_epi32((int)0xFF800000));
    const __m512 up = _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_set1_epi32((int)((254u + 127 + 25) << 23)), field));
    const __m512 down = _mm512_castsi512_ps(_mm512_sub_epi32(field, _mm512_set1_epi32((127 + 25) << 23)));
    __m512i sums[2] = {_mm512_cvttps_epi32(_mm512_mul_ps(accumulator, up)), _mm512_setzero_si512()};
    UNROLL for (uint32_t k = 0; k < TERMS; k++)
    {
        const __m512 product = _mm512_mul_ps(_mm512_mul_ps(w[k], _mm512_set1_ps(x[columns[k]])), up);
        sums[k % 2] = _mm512_add_epi32(sums[k % 2], _mm512_cvttps_epi32(product));
    }
    const __mmask16 tiny = _mm512_cmpeq_epi32_mask(field, least);
    if (__builtin_expect(tiny, 0)) {
        __m512i any = start;
        const __m512 far = _mm512_set1_ps(0x1p64f); /* so that no product is too small to be one */
        UNROLL for (uint32_t k = 0; k < TERMS; k++) any = _mm512_or_si512(
            any, _mm512_castps_si512(_mm512_mul_ps(_mm512_mul_ps(w[k], far), _mm512_set1_ps(x[columns[k]]))));
        *odd |= _mm512_mask_test_epi32_mask(tiny, any, magnitude);
    }
    const __m512i sum = _mm512_add_epi32(sums[0], sums[1]);
    return _mm512_mul_ps(_mm512_cvt_roundepi32_ps(sum, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC), down);
}

/* Steps 1 to 3 of up to PASS activations. chains: [count, GB_MMA16_CHAINS]. False: the plain definition takes it. */
INLINE bool run(const struct tile *tile, enum gb_format format, uint32_t columns, uint32_t count, const float *const *x,
                __m512 *chains)
{
    const uint32_t step = gb_mma16_step(format), all = (columns + step - 1) / step * step;
    __mmask16 odd = 0;
    for (uint32_t i = 0; i < count * GB_MMA16_CHAINS; i++)
        chains[i] = _mm512_setzero_ps();
    for (uint32_t s = 0; s * step < columns; s++) {
        struct step now;
        if (!load(tile, format, s, &now))
            return false;
        UNROLL for (uint32_t i = 0; i < 8; i++)
        {
            if (i * TERMS >= step)
                break;
            __m512 w[TERMS];
            uint32_t at[TERMS];
            UNROLL for (uint32_t k = 0; k < TERMS; k++) at[k] = gb_mma16_column(format, i, k);
            operands(format, &now, i, w);
            for (uint32_t n = 0; n < count; n++) {
                __m512 *chain = &chains[n * GB_MMA16_CHAINS + s % GB_MMA16_CHAINS];
                *chain = add_up(w, x[n] + (size_t)s * step, x[n] + all + (size_t)s * step, at, *chain, &odd);
            }
        }
    }
    return !odd;
}

static bool ordinary(const float *x, uint32_t all)
{
    uint32_t flag;
    memcpy(&flag, x + 2 * (size_t)all, sizeof flag);
    return flag;
}

static __attribute__((noinline)) bool run_nvfp4(const struct tile *tile, uint32_t columns, uint32_t count,
                                                const float *const *x, __m512 *chains)
{
    return count == 1 ? run(tile, GB_NVFP4, columns, 1, x, chains) : run(tile, GB_NVFP4, columns, count, x, chains);
}

static __attribute__((noinline)) bool run_mxfp4(const struct tile *tile, uint32_t columns, uint32_t count,
                                                const float *const *x, __m512 *chains)
{
    return count == 1 ? run(tile, GB_MXFP4, columns, 1, x, chains) : run(tile, GB_MXFP4, columns, count, x, chains);
}

static __attribute__((noinline)) bool run_mxfp8(const struct tile *tile, uint32_t columns, uint32_t count,
                                                const float *const *x, __m512 *chains)
{
    return count == 1 ? run(tile, GB_MXFP8, columns, 1, x, chains) : run(tile, GB_MXFP8, columns, count, x, chains);
}

void gb_mma16_dots_avx512(const struct gb_weights *weights, uint32_t expert, uint32_t row, uint32_t rows,
                          uint32_t count, const float *const *x, float *out)
{
    const enum gb_format format = weights->format;
    const uint32_t columns = weights->columns, step = gb_mma16_step(format), all = (columns + step - 1) / step * step;
    struct tile tile = {.code_bytes = format == GB_MXFP8 ? columns : columns / 2,
                        .scale_bytes = columns / (format == GB_NVFP4 ? 16 : 32)};
    for (uint32_t r = 0; r < rows; r += ROWS)
        for (uint32_t i = 0; i < count; i += PASS) {
            const size_t index = (size_t)expert * weights->rows + row + r;
            const uint32_t now = count - i < PASS ? count - i : PASS;
            __m512 chains[PASS * GB_MMA16_CHAINS];
            bool good = true;
            tile.rows = rows - r < ROWS ? rows - r : ROWS;
            tile.codes = (const uint8_t *)weights->codes + index * tile.code_bytes;
            tile.scales = (const uint8_t *)weights->scales + index * tile.scale_bytes;
            for (uint32_t n = 0; n < now; n++)
                good &= ordinary(x[i + n], all);
            good = good && (format == GB_NVFP4   ? run_nvfp4(&tile, columns, now, x + i, chains)
                            : format == GB_MXFP4 ? run_mxfp4(&tile, columns, now, x + i, chains)
                                                 : run_mxfp8(&tile, columns, now, x + i, chains));
            for (uint32_t l = 0; l < tile.rows; l++)
                for (uint32_t n = 0; n < now; n++) {
                    float *to = &out[(size_t)(r + l) * count + i + n], four[GB_MMA16_CHAINS];
                    for (uint32_t c = 0; c < GB_MMA16_CHAINS; c++)
                        four[c] = ((const float *)&chains[n * GB_MMA16_CHAINS + c])[l];
                    if (good)
                        *to = gb_mma16_finish(weights, expert, row + r + l, four);
                    else
                        gb_mma16_dots(weights, expert, row + r + l, 1, 1, x + i + n, to);
                }
        }
}
#endif
