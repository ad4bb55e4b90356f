/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mma16-sm90/1 on AVX2: 8 rows at a time, a row in every lane. As in mma16_avx512.c, but that conversions of integers
 * round to nearest here: what was rounded away from zero is taken back by one unit in the last place.
 */
#include "reference/mma16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* PASS: how many activations share the decoding of a weight. */
enum { ROWS = 8, PASS = 8, STEP_BYTES = 64, TERMS = GB_MMA16_COLUMNS };

/* A step of 16 rows: codes of chunk c, dword d; scales of block b. */
struct step {
    __m256i codes[4][4];
    __m256 scales[8];
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
INLINE void transpose(const uint8_t *const *rows, __m256i *dwords)
{
    __m256i z[4];
    UNROLL for (uint32_t q = 0; q < 4; q++) z[q] =
        _mm256_loadu2_m128i((const __m128i *)rows[4 + q], (const __m128i *)rows[q]);
    const __m256i a = _mm256_unpacklo_epi32(z[0], z[1]), b = _mm256_unpackhi_epi32(z[0], z[1]);
    const __m256i c = _mm256_unpacklo_epi32(z[2], z[3]), d = _mm256_unpackhi_epi32(z[2], z[3]);
    dwords[0] = _mm256_unpacklo_epi64(a, c);
    dwords[1] = _mm256_unpackhi_epi64(a, c);
    dwords[2] = _mm256_unpacklo_epi64(b, d);
    dwords[3] = _mm256_unpackhi_epi64(b, d);
}

/* The number of E4M3 bytes, 0 .. 255 in every lane, times factor * 2^-120. */
INLINE __m256 e4m3(__m256i bytes, float factor)
{
    const __m256i magnitude = _mm256_slli_epi32(_mm256_and_si256(bytes, _mm256_set1_epi32(0x7F)), 20);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(bytes, _mm256_set1_epi32(0x80)), 24);
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(magnitude, sign)), _mm256_set1_ps(factor));
}

/* Step s. False if the plain definition must take it: scales or codes that are not ordinary. */
INLINE bool load(const struct tile *tile, enum gb_format format, uint32_t s, struct step *to)
{
    const uint32_t scales = scales_of_step(format);
    const size_t code_at = (size_t)s * STEP_BYTES, scale_at = (size_t)s * scales;
    const uint8_t *rows[ROWS];
    uint8_t codes[ROWS][STEP_BYTES];
    uint8_t bytes[8][ROWS];
    uint32_t odd = 0;
    const bool whole = code_at + STEP_BYTES <= tile->code_bytes;
    for (uint32_t r = 0; r < ROWS; r++) {
        const uint8_t *from = tile->codes + row_of(tile, r) * tile->code_bytes + code_at;
        const uint8_t *scale = tile->scales + row_of(tile, r) * tile->scale_bytes + scale_at;
        rows[r] = from;
        for (uint32_t b = 0; b < scales; b++)
            bytes[b][r] = scale_at + b < tile->scale_bytes ? scale[b] : format == GB_NVFP4 ? 0 : 0x7F;
        if (!whole) {
            memset(codes[r], 0, STEP_BYTES);
            memcpy(codes[r], from, tile->code_bytes - code_at);
            rows[r] = codes[r];
        }
    }
    UNROLL for (uint32_t c = 0; c < 4; c++)
    {
        transpose(rows, to->codes[c]);
        for (uint32_t r = 0; r < ROWS; r++)
            rows[r] += 16;
    }
    UNROLL for (uint32_t b = 0; b < 8; b++)
    {
        if (b >= scales)
            break;
        const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes[b]));
        __m256i good;
        if (format == GB_NVFP4) {
            const __m256i nan = _mm256_set1_epi32(0x7F);
            good = _mm256_xor_si256(_mm256_cmpeq_epi32(_mm256_and_si256(wide, nan), nan), _mm256_set1_epi32(-1));
            to->scales[b] = e4m3(wide, 0x1p112f);
        } else {
            const __m256i most = _mm256_set1_epi32(47);
            good = _mm256_cmpeq_epi32(_mm256_max_epu32(_mm256_sub_epi32(wide, _mm256_set1_epi32(87)), most), most);
            /* fields of E4M3 in those of binary32 are the code times 2^-120 */
            const __m256 scale = _mm256_castsi256_ps(_mm256_slli_epi32(wide, 23));
            to->scales[b] = format == GB_MXFP8 ? _mm256_mul_ps(scale, _mm256_set1_ps(0x1p120f)) : scale;
        }
        odd |= ~(uint32_t)_mm256_movemask_epi8(good);
    }
    if (format == GB_MXFP8) {
        const __m256i nan = _mm256_set1_epi8(0x7F);
        UNROLL for (uint32_t i = 0; i < 16; i++) odd |=
            (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_and_si256(to->codes[i / 4][i % 4], nan), nan));
    }
    return !odd;
}

/* The 16 operands of instruction i in every row. */
INLINE void operands(enum gb_format format, const struct step *from, uint32_t i, __m256 *w)
{
    const __m256 e2m1 = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const __m256i sign = _mm256_set1_epi32((int)0x80000000);
    UNROLL for (uint32_t c = 0; c < 4; c++)
    {
        const uint32_t dword = format == GB_MXFP8 ? i : i / 2;
        const __m256i codes = from->codes[c][dword];
        const __m256 scale = from->scales[format == GB_NVFP4 ? 2 * c + dword / 2 : format == GB_MXFP4 ? c : c / 2];
        UNROLL for (uint32_t k = 0; k < 4; k++)
        {
            const uint32_t element = format == GB_MXFP8 ? k : i % 2 * 4 + k;
            if (format == GB_MXFP8) {
                /* the byte's sign and, four bits further down, its fields */
                const __m256i top = _mm256_slli_epi32(codes, (int)(24 - 8 * element));
                const __m256i fields = _mm256_and_si256(_mm256_srai_epi32(top, 4), _mm256_set1_epi32((int)0x87F00000));
                w[4 * c + k] = _mm256_mul_ps(_mm256_castsi256_ps(fields), scale);
            } else {
                const __m256 magnitude = _mm256_permutevar8x32_ps(e2m1, _mm256_srli_epi32(codes, (int)(4 * element)));
                const __m256i negative = _mm256_and_si256(_mm256_slli_epi32(codes, (int)(28 - 4 * element)), sign);
                w[4 * c + k] = _mm256_mul_ps(_mm256_or_ps(magnitude, _mm256_castsi256_ps(negative)), scale);
            }
        }
    }
}

/* To binary32, toward zero; |sum| is below 0.97 * 2^31. */
INLINE __m256 toward_zero(__m256i sum)
{
    const __m256 nearest = _mm256_cvtepi32_ps(sum);
    const __m256i back = _mm256_abs_epi32(_mm256_cvttps_epi32(nearest));
    const __m256i beyond = _mm256_cmpgt_epi32(back, _mm256_abs_epi32(sum));
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(nearest), beyond));
}

/* One instruction: accumulator + w . x. *odd is set if a sum is too small for these operations. */
INLINE __m256 add_up(const __m256 *w, const float *x, const float *fields, const uint32_t *columns, __m256 accumulator,
                     bool *odd)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF), least = _mm256_set1_epi32((254 - 64) << 23);
    const __m256i start = _mm256_castps_si256(accumulator);
    __m256i largest[2] = {
        _mm256_add_epi32(_mm256_and_si256(start, magnitude), _mm256_set1_epi32(127 << 23)),
        least,
    };
    UNROLL for (uint32_t k = 0; k < TERMS; k++) largest[k % 2] = _mm256_max_epu32(
        largest[k % 2], _mm256_add_epi32(_mm256_and_si256(_mm256_castps_si256(w[k]), magnitude),
                                         _mm256_castps_si256(_mm256_broadcast_ss(&fields[columns[k]]))));
    const __m256i field =
        _mm256_and_si256(_mm256_max_epu32(largest[0], largest[1]), _mm256_set1_epi32((int)0xFF800000));
    const __m256 up = _mm256_castsi256_ps(_mm256_sub_epi32(_mm256_set1_epi32((int)((254u + 127 + 25) << 23)), field));
    const __m256 down = _mm256_castsi256_ps(_mm256_sub_epi32(field, _mm256_set1_epi32((127 + 25) << 23)));
    __m256i sums[2] = {_mm256_cvttps_epi32(_mm256_mul_ps(accumulator, up)), _mm256_setzero_si256()};
    UNROLL for (uint32_t k = 0; k < TERMS; k++)
    {
        const __m256 product = _mm256_mul_ps(_mm256_mul_ps(w[k], _mm256_broadcast_ss(&x[columns[k]])), up);
        sums[k % 2] = _mm256_add_epi32(sums[k % 2], _mm256_cvttps_epi32(product));
    }
    const __m256i tiny = _mm256_cmpeq_epi32(field, least);
    if (__builtin_expect(!_mm256_testz_si256(tiny, tiny), 0)) {
        __m256i any = start;
        const __m256 far = _mm256_set1_ps(0x1p64f); /* so that no product is too small to be one */
        UNROLL for (uint32_t k = 0; k < TERMS; k++) any = _mm256_or_si256(
            any, _mm256_castps_si256(_mm256_mul_ps(_mm256_mul_ps(w[k], far), _mm256_broadcast_ss(&x[columns[k]]))));
        *odd |= !_mm256_testz_si256(_mm256_and_si256(tiny, magnitude), any);
    }
    return _mm256_mul_ps(toward_zero(_mm256_add_epi32(sums[0], sums[1])), down);
}

/* Steps 1 to 3 of up to PASS activations. chains: [count, GB_MMA16_CHAINS]. False: the plain definition takes it. */
INLINE bool run(const struct tile *tile, enum gb_format format, uint32_t columns, uint32_t count, const float *const *x,
                __m256 *chains)
{
    const uint32_t step = gb_mma16_step(format), all = (columns + step - 1) / step * step;
    bool odd = false;
    for (uint32_t i = 0; i < count * GB_MMA16_CHAINS; i++)
        chains[i] = _mm256_setzero_ps();
    for (uint32_t s = 0; s * step < columns; s++) {
        struct step now;
        if (!load(tile, format, s, &now))
            return false;
        UNROLL for (uint32_t i = 0; i < 8; i++)
        {
            if (i * TERMS >= step)
                break;
            __m256 w[TERMS];
            uint32_t at[TERMS];
            UNROLL for (uint32_t k = 0; k < TERMS; k++) at[k] = gb_mma16_column(format, i, k);
            operands(format, &now, i, w);
            for (uint32_t n = 0; n < count; n++) {
                __m256 *chain = &chains[n * GB_MMA16_CHAINS + s % GB_MMA16_CHAINS];
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
                                                const float *const *x, __m256 *chains)
{
    return count == 1 ? run(tile, GB_NVFP4, columns, 1, x, chains) : run(tile, GB_NVFP4, columns, count, x, chains);
}

static __attribute__((noinline)) bool run_mxfp4(const struct tile *tile, uint32_t columns, uint32_t count,
                                                const float *const *x, __m256 *chains)
{
    return count == 1 ? run(tile, GB_MXFP4, columns, 1, x, chains) : run(tile, GB_MXFP4, columns, count, x, chains);
}

static __attribute__((noinline)) bool run_mxfp8(const struct tile *tile, uint32_t columns, uint32_t count,
                                                const float *const *x, __m256 *chains)
{
    return count == 1 ? run(tile, GB_MXFP8, columns, 1, x, chains) : run(tile, GB_MXFP8, columns, count, x, chains);
}

void gb_mma16_dots_avx2(const struct gb_weights *weights, uint32_t expert, uint32_t row, uint32_t rows, uint32_t count,
                        const float *const *x, float *out)
{
    const enum gb_format format = weights->format;
    const uint32_t columns = weights->columns, step = gb_mma16_step(format), all = (columns + step - 1) / step * step;
    struct tile tile = {.code_bytes = format == GB_MXFP8 ? columns : columns / 2,
                        .scale_bytes = columns / (format == GB_NVFP4 ? 16 : 32)};
    for (uint32_t r = 0; r < rows; r += ROWS)
        for (uint32_t i = 0; i < count; i += PASS) {
            const size_t index = (size_t)expert * weights->rows + row + r;
            const uint32_t now = count - i < PASS ? count - i : PASS;
            __m256 chains[PASS * GB_MMA16_CHAINS];
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
