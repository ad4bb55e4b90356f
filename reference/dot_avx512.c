/* SPDX-License-Identifier: Apache-2.0 */
/* fma32/1 on AVX-512 (F, BW, VL): teams of 16 chunks, two accumulators. The layout is drawn in reference/lanes.h. */
#if defined(__x86_64__)
#include <immintrin.h>

#include "reference/lanes.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* PASS: how many activations share the decoding of a weight; 2 accumulators, a sum and a pointer each. */
enum { TEAM = 16, REGISTER_BYTES = 64, TEAM_BYTES = 4 * REGISTER_BYTES, PASS = 4 };

struct four {
    __m512i of[4];
};

struct sums {
    __m512 of[PASS];
};

/* The first `bytes` of 64, zeros after them. */
INLINE __m512i load_part(const uint8_t *from, size_t bytes)
{
    return bytes >= REGISTER_BYTES ? _mm512_loadu_si512(from)
                                   : _mm512_maskz_loadu_epi8(((__mmask64)1 << bytes) - 1, from);
}

/* The first `bytes` of a team's codes, four chunks in a register. */
INLINE struct four load_team(const uint8_t *codes, size_t bytes)
{
    struct four z;
    UNROLL for (size_t r = 0; r < 4; r++)
    {
        size_t before = r * REGISTER_BYTES;
        z.of[r] = load_part(codes + before, bytes > before ? bytes - before : 0);
    }
    return z;
}

/* Register d holds dword d of every chunk. */
INLINE struct four transpose(struct four z)
{
    __m512i a = _mm512_unpacklo_epi32(z.of[0], z.of[1]); /* 0.0  4.0  0.1  4.1 | ... */
    __m512i b = _mm512_unpackhi_epi32(z.of[0], z.of[1]); /* 0.2  4.2  0.3  4.3 | ... */
    __m512i c = _mm512_unpacklo_epi32(z.of[2], z.of[3]); /* 8.0 12.0  8.1 12.1 | ... */
    __m512i d = _mm512_unpackhi_epi32(z.of[2], z.of[3]); /* 8.2 12.2  8.3 12.3 | ... */
    return (struct four){{_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c), _mm512_unpacklo_epi64(b, d),
                          _mm512_unpackhi_epi64(b, d)}};
}

/* One element of a run: p = fma(w, x, p) in every lane, for every activation. */
INLINE void element(__m512 w, const float *const *x, size_t at, uint32_t count, struct sums *p)
{
    UNROLL for (uint32_t i = 0; i < count; i++)
        p->of[i] = _mm512_fmadd_ps(w, _mm512_load_ps(x[i] + at), p->of[i]);
}

/* The end of a run: acc = fma(scale, p, acc), and p = +0. */
INLINE void join(__m512 scale, uint32_t count, struct sums *p, struct sums *acc)
{
    UNROLL for (uint32_t i = 0; i < count; i++)
    {
        acc->of[i] = _mm512_fmadd_ps(scale, p->of[i], acc->of[i]);
        p->of[i] = _mm512_setzero_ps();
    }
}

/*
 * Scales of run 0 and run 1 of every chunk; those of missing runs are -0. The bits of E4M3, moved to the place of
 * binary16's, are a number 2^-8 as large, subnormal or not; NaN alone is not, and is set.
 */
INLINE void nvfp4_scales(const uint8_t *scales, size_t count, __m512 scale[2])
{
    const __m512i magnitude = _mm512_set1_epi16(0x3F80), used = _mm512_set1_epi16((short)0xBF80);
    const __m512i place = _mm512_set_epi16(31, 23, 15, 7, 29, 21, 13, 5, 27, 19, 11, 3, 25, 17, 9, 1,
                                           30, 22, 14, 6, 28, 20, 12, 4, 26, 18, 10, 2, 24, 16, 8, 0);
    const __m512 unit = _mm512_set1_ps(0x1p8f);
    __mmask32 there = count >= 32 ? 0xFFFFFFFF : ((__mmask32)1 << count) - 1;
    __m256i bytes = _mm256_mask_loadu_epi8(_mm256_set1_epi8((char)0x80), there, scales);
    __m512i half = _mm512_and_si512(_mm512_slli_epi16(_mm512_cvtepi8_epi16(bytes), 7), used);
    __mmask32 nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(half, magnitude), magnitude);
    half = _mm512_mask_mov_epi16(half, nan, _mm512_set1_epi16(0x7E00));
    half = _mm512_permutexvar_epi16(place, half); /* run 0 in the lower half, run 1 in the upper */
    scale[0] = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(half)), unit);
    scale[1] = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1)), unit);
}

INLINE void nvfp4_team(const uint8_t *codes, size_t bytes, const uint8_t *scales, const float *const *x, size_t at,
                       uint32_t count, struct sums *acc)
{
    const __m512 values = _mm512_set_ps(-6, -4, -3, -2, -1.5f, -1, -0.5f, -0.0f, 6, 4, 3, 2, 1.5f, 1, 0.5f, 0);
    struct four dword = transpose(load_team(codes, bytes));
    struct sums p = {0};
    __m512 scale[2];
    nvfp4_scales(scales, bytes / 8, scale);
    UNROLL for (uint32_t d = 0; d < 4; d++)
    {
        UNROLL for (uint32_t n = 0; n < 8; n++) /* the look-up takes the lowest 4 bits */
            element(_mm512_permutexvar_ps(_mm512_srli_epi32(dword.of[d], 4 * n), values), x,
                    at + (8 * d + n) * TEAM, count, &p);
        if (d % 2)
            join(scale[d / 2], count, &p, acc);
    }
}

/* Eight elements of every chunk, as bf16: two in each dword. */
INLINE void bf16_elements(struct four pairs, const float *const *x, size_t at, uint32_t count, struct sums *p)
{
    const __m512i upper = _mm512_set1_epi32((int)0xFFFF0000);
    UNROLL for (uint32_t d = 0; d < 4; d++)
    {
        element(_mm512_castsi512_ps(_mm512_slli_epi32(pairs.of[d], 16)), x, at + 2 * d * TEAM, count, p);
        element(_mm512_castsi512_ps(_mm512_and_si512(pairs.of[d], upper)), x, at + (2 * d + 1) * TEAM, count, p);
    }
}

/* -0 in the positions of chunks that do not exist. */
INLINE __m512 existing(__m512 scale, uint32_t chunks)
{
    const __m512i chunk = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    __mmask16 missing = _mm512_cmpge_epu32_mask(chunk, _mm512_set1_epi32((int)chunks));
    return _mm512_mask_mov_ps(scale, missing, _mm512_set1_ps(-0.0f));
}

/* Two chunks share a scale. */
INLINE __m512 mxfp8_scales(const uint8_t *scales, size_t count)
{
    const __m512i place = _mm512_set_epi32(7, 5, 3, 1, 7, 5, 3, 1, 6, 4, 2, 0, 6, 4, 2, 0);
    const __m512i zero = _mm512_setzero_si512(), nan = _mm512_set1_epi32(0x7FC00000);
    __m128i bytes = _mm_maskz_loadu_epi8((__mmask16)((1u << count) - 1), scales);
    __m512i code = _mm512_permutexvar_epi32(place, _mm512_cvtepu8_epi32(bytes));
    __m512i bits = _mm512_slli_epi32(code, 23);
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(code, zero), _mm512_set1_epi32(0x00400000));
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(code, _mm512_set1_epi32(0xFF)), nan);
    return existing(_mm512_castsi512_ps(bits), 2 * (uint32_t)count);
}

INLINE __m512i table(const uint8_t of[16])
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)of));
}

/*
 * E4M3 as bf16. Its nibbles give both bytes; with the exponent's upper three bits zero, the lower nibble alone does.
 *     code  s eee  e mmm          bf16  s 0111eee  e mmm 0000, the exponent being 60 * 2 more
 */
INLINE void e4m3_bf16(__m512i code, __m512i *lower_half, __m512i *upper_half)
{
    static const uint8_t upper[16] = {0x00, 0x3D, 0x3E, 0x3F, 0x40, 0x41, 0x42, 0x43,
                                      0x80, 0xBD, 0xBE, 0xBF, 0xC0, 0xC1, 0xC2, 0xC3};
    static const uint8_t lower[16] = {0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70,
                                      0x80, 0x90, 0xA0, 0xB0, 0xC0, 0xD0, 0xE0, 0xF0};
    static const uint8_t small_upper[16] = {0x00, 0x3B, 0x3B, 0x3B, 0x3C, 0x3C, 0x3C, 0x3C,
                                            0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C};
    static const uint8_t small_lower[16] = {0x00, 0x00, 0x80, 0xC0, 0x00, 0x20, 0x40, 0x60,
                                            0x80, 0x90, 0xA0, 0xB0, 0xC0, 0xD0, 0xE0, 0xF0};
    const __m512i nibble = _mm512_set1_epi8(0x0F), magnitude = _mm512_set1_epi8(0x7F);
    __m512i second = _mm512_and_si512(code, nibble);
    __m512i first = _mm512_and_si512(_mm512_srli_epi16(code, 4), nibble);
    __mmask64 small = _mm512_testn_epi8_mask(code, _mm512_set1_epi8(0x70));
    __mmask64 nan = _mm512_cmpeq_epi8_mask(_mm512_and_si512(code, magnitude), magnitude);
    __m512i u = _mm512_or_si512(_mm512_shuffle_epi8(table(upper), first),
                                _mm512_maskz_shuffle_epi8(small, table(small_upper), second));
    __m512i l = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(table(lower), second), small, table(small_lower), second);
    u = _mm512_mask_mov_epi8(u, nan, magnitude);
    *lower_half = _mm512_unpacklo_epi8(l, u);
    *upper_half = _mm512_unpackhi_epi8(l, u);
}

INLINE void mxfp8_team(const uint8_t *codes, size_t bytes, const uint8_t *scales, const float *const *x, size_t at,
                       uint32_t count, struct sums *acc)
{
    struct four z = load_team(codes, bytes), first, second; /* elements 0 to 7 and 8 to 15 of every chunk */
    struct sums p = {0};
    UNROLL for (uint32_t r = 0; r < 4; r++)
        e4m3_bf16(z.of[r], &first.of[r], &second.of[r]);
    bf16_elements(transpose(first), x, at, count, &p);
    bf16_elements(transpose(second), x, at + 8 * TEAM, count, &p);
    join(mxfp8_scales(scales, bytes / 32), count, &p, acc);
}

INLINE void bf16_team(const uint8_t *codes, size_t bytes, const float *const *x, size_t at, uint32_t count,
                      struct sums *acc)
{
    uint32_t chunks = (uint32_t)((bytes + GB_CHUNK_BYTES - 1) / GB_CHUNK_BYTES);
    struct sums p = {0};
    bf16_elements(transpose(load_team(codes, bytes)), x, at, count, &p);
    join(existing(_mm512_set1_ps(1), chunks), count, &p, acc);
}

INLINE void team(enum gb_format format, const uint8_t *codes, size_t bytes, const uint8_t *scales,
                 const float *const *x, size_t at, uint32_t count, struct sums *acc)
{
    if (format == GB_NVFP4)
        nvfp4_team(codes, bytes, scales, x, at, count, acc);
    else if (format == GB_MXFP8)
        mxfp8_team(codes, bytes, scales, x, at, count, acc);
    else
        bf16_team(codes, bytes, x, at, count, acc);
}

/* Step 4. Position 4q + r is lane 4r + q, so the lane's bits 8, 4, 2, 1 are the position's bits 2, 1, 8, 4. */
INLINE float butterfly(__m512 even, __m512 odd)
{
    __m512 v = _mm512_add_ps(even, odd);                  /* m = 16 */
    v = _mm512_add_ps(v, _mm512_permute_ps(v, 0x4E));     /* m = 8 */
    v = _mm512_add_ps(v, _mm512_permute_ps(v, 0xB1));     /* m = 4 */
    v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0x4E)); /* m = 2 */
    v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xB1)); /* m = 1 */
    return _mm512_cvtss_f32(v);
}

/* Every row against `count` activations from `first` on. The teams of a row take turns on the accumulators. */
INLINE void pass(enum gb_format format, const struct gb_tile *tile, uint32_t first, uint32_t count, float *dots)
{
    const size_t scale_bytes = format == GB_NVFP4 ? TEAM_BYTES / 8 : format == GB_MXFP8 ? TEAM_BYTES / 32 : 0;
    const size_t elements = TEAM_BYTES * (format == GB_NVFP4 ? 2 : 1) / (format == GB_BF16 ? 2 : 1);
    const float *const *x = tile->x + first;
    for (uint32_t row = 0; row < tile->rows; row++) {
        const uint8_t *codes = tile->codes + row * tile->code_bytes;
        const uint8_t *scales = tile->scales + row * tile->scale_bytes;
        struct sums next = {0}, other = {0};
        size_t left = tile->code_bytes, at = 0;
        for (; left >= TEAM_BYTES; left -= TEAM_BYTES, at += elements, codes += TEAM_BYTES, scales += scale_bytes) {
            team(format, codes, TEAM_BYTES, scales, x, at, count, &next);
            struct sums done = next;
            next = other;
            other = done;
        }
        if (left)
            team(format, codes, left, scales, x, at, count, &next);
        for (uint32_t i = 0; i < count; i++)
            dots[(size_t)row * tile->count + first + i] = butterfly(next.of[i], other.of[i]);
    }
}

INLINE void passes(enum gb_format format, const struct gb_tile *tile, float *dots)
{
    uint32_t first = 0;
    for (; first + PASS <= tile->count; first += PASS)
        pass(format, tile, first, PASS, dots);
    for (; first < tile->count; first++)
        pass(format, tile, first, 1, dots);
}

void gb_dots_avx512(const struct gb_tile *tile, float *dots)
{
    if (tile->format == GB_NVFP4)
        passes(GB_NVFP4, tile, dots);
    else if (tile->format == GB_MXFP8)
        passes(GB_MXFP8, tile, dots);
    else
        passes(GB_BF16, tile, dots);
}
#endif
