/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fma32/1 on AVX2, FMA and F16C: teams of 8 chunks, four accumulators. The layout is drawn in reference/fma32_lanes.h.
 *
 * Rows are taken in turn from STREAMS parts of a tile, which reads DRAM faster than one row after the other does. Codes
 * and scales are asked for AHEAD_BYTES of codes before they are needed.
 */
#include "reference/fma32_lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* PASS: how many activations share the decoding of a weight. */
enum { TEAM = 8, REGISTER_BYTES = 32, TEAM_BYTES = 4 * REGISTER_BYTES, TEAMS = GB_LANES / TEAM, PASS = 4 };
enum { STREAMS = 4, AHEAD_BYTES = 1024 };

struct four {
    __m256i of[4];
};

struct sums {
    __m256 of[PASS];
};

/* A team's codes, two chunks in a register. */
INLINE struct four load_team(const uint8_t *codes)
{
    struct four z;
    UNROLL for (size_t r = 0; r < 4; r++) z.of[r] = _mm256_loadu_si256((const __m256i *)(codes + r * REGISTER_BYTES));
    return z;
}

/* The first `bytes` of a team's codes, zeros after them: whole dwords, and the last bf16 of an odd number of them. */
INLINE struct four load_part(const uint8_t *codes, size_t bytes)
{
    const __m256i place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    uint16_t alone = 0;
    if (bytes % 4)
        memcpy(&alone, codes + bytes - sizeof alone, sizeof alone);
    struct four z;
    UNROLL for (size_t r = 0; r < 4; r++)
    {
        __m256i end = _mm256_set1_epi32((int)(bytes / 4) - (int)(r * REGISTER_BYTES / 4));
        const int *from = (const int *)(codes + r * REGISTER_BYTES);
        __m256i whole = _mm256_maskload_epi32(from, _mm256_cmpgt_epi32(end, place));
        z.of[r] = _mm256_or_si256(whole, _mm256_and_si256(_mm256_cmpeq_epi32(end, place), _mm256_set1_epi32(alone)));
    }
    return z;
}

/* Register d holds dword d of every chunk. */
INLINE struct four transpose(struct four z)
{
    __m256i a = _mm256_unpacklo_epi32(z.of[0], z.of[1]); /* 0.0 2.0 0.1 2.1 | 1.0 3.0 1.1 3.1 */
    __m256i b = _mm256_unpackhi_epi32(z.of[0], z.of[1]); /* 0.2 2.2 0.3 2.3 | ... */
    __m256i c = _mm256_unpacklo_epi32(z.of[2], z.of[3]); /* 4.0 6.0 4.1 6.1 | ... */
    __m256i d = _mm256_unpackhi_epi32(z.of[2], z.of[3]); /* 4.2 6.2 4.3 6.3 | ... */
    return (struct four){{_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c), _mm256_unpacklo_epi64(b, d),
                          _mm256_unpackhi_epi64(b, d)}};
}

INLINE __m256i table(const uint8_t of[16])
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)of));
}

/* In every 16 bytes, words 0, 2, 4 and 6, then 1, 3, 5 and 7. */
INLINE __m256i even_odd_words(__m256i words)
{
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    return _mm256_shuffle_epi8(words, _mm256_broadcastsi128_si256(order));
}

/* Register d holds words 2d and 2d + 1 of every chunk: in each 16-byte part the first of its four, then the others. */
INLINE struct four transpose_words(struct four z)
{
    __m256i a = _mm256_unpacklo_epi16(z.of[0], z.of[1]); /* 0.0 2.0 0.1 2.1 ... 2.3 | ... */
    __m256i b = _mm256_unpackhi_epi16(z.of[0], z.of[1]); /* 0.4 2.4 0.5 2.5 ... 2.7 | ... */
    __m256i c = _mm256_unpacklo_epi16(z.of[2], z.of[3]); /* 4.0 6.0 4.1 6.1 ... | ... */
    __m256i d = _mm256_unpackhi_epi16(z.of[2], z.of[3]); /* 4.4 6.4 4.5 6.5 ... | ... */
    return (struct four){{_mm256_unpacklo_epi32(a, c), _mm256_unpackhi_epi32(a, c), _mm256_unpacklo_epi32(b, d),
                          _mm256_unpackhi_epi32(b, d)}};
}

/* One element of a run: p = fma(w, x, p) in every lane, for every activation. */
INLINE void element(__m256 w, const float *const *x, size_t at, uint32_t count, struct sums *p)
{
    UNROLL for (uint32_t i = 0; i < count; i++) p->of[i] = _mm256_fmadd_ps(w, _mm256_load_ps(x[i] + at), p->of[i]);
}

/* The same, w in the lower or the upper half of every dword as bf16. */
INLINE void lower(__m256i pair, const float *const *x, size_t at, uint32_t count, struct sums *p)
{
    element(_mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)), x, at, count, p);
}

INLINE void upper(__m256i pair, const float *const *x, size_t at, uint32_t count, struct sums *p)
{
    const __m256i mask = _mm256_set1_epi32((int)0xFFFF0000);
    element(_mm256_castsi256_ps(_mm256_and_si256(pair, mask)), x, at, count, p);
}

/* The end of a run: acc = fma(scale, p, acc). */
INLINE void join(__m256 scale, uint32_t count, const struct sums *p, struct sums *acc)
{
    UNROLL for (uint32_t i = 0; i < count; i++) acc->of[i] = _mm256_fmadd_ps(scale, p->of[i], acc->of[i]);
}

/*
 * Scales of run 0 and run 1 of every chunk. The bits of E4M3, moved to the place of binary16's, are a number 2^-8 as
 * large, subnormal or not; NaN alone is not, and is set.
 */
INLINE void nvfp4_scales(const uint8_t *scales, __m256 scale[2])
{
    const __m256i magnitude = _mm256_set1_epi16(0x3F80), used = _mm256_set1_epi16((short)0xBF80);
    const __m256i place = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    const __m256 unit = _mm256_set1_ps(0x1p8f);
    __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)scales));
    __m256i half = _mm256_and_si256(_mm256_slli_epi16(words, 7), used);
    __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(half, magnitude), magnitude);
    half = _mm256_or_si256(half, _mm256_and_si256(nan, _mm256_set1_epi16(0x7E00)));
    half = even_odd_words(_mm256_permutevar8x32_epi32(half, place));
    half = _mm256_permute4x64_epi64(half, 0xD8); /* run 0 in the lower half, run 1 in the upper */
    scale[0] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), unit);
    scale[1] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), unit);
}

/* E2M1 codes in the lower half of every byte, as bf16: of bytes 0 to 7 and 8 to 15 of every 16. */
INLINE void e2m1_bf16(__m256i code, __m256i *first, __m256i *second)
{
    static const uint8_t upper_byte[16] = {0x00, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40,
                                           0x80, 0xBF, 0xBF, 0xBF, 0xC0, 0xC0, 0xC0, 0xC0};
    static const uint8_t lower_byte[16] = {0x00, 0x00, 0x80, 0xC0, 0x00, 0x40, 0x80, 0xC0,
                                           0x00, 0x00, 0x80, 0xC0, 0x00, 0x40, 0x80, 0xC0};
    __m256i u = _mm256_shuffle_epi8(table(upper_byte), code), l = _mm256_shuffle_epi8(table(lower_byte), code);
    *first = _mm256_unpacklo_epi8(l, u);
    *second = _mm256_unpackhi_epi8(l, u);
}

/*
 * Eight elements of every chunk, in two of its words. Of the four chunks a to d of a 16-byte part they are the bytes
 *     a0 a1 b0 b1 c0 c1 d0 d1 a2 a3 b2 b3 c2 c3 d2 d3
 * so that the first eight bytes give a bf16 pair per chunk, from its bytes 0 and 1, and the others from 2 and 3.
 */
INLINE void nvfp4_elements(__m256i code, const float *const *x, size_t at, uint32_t count, struct sums *p)
{
    const __m256i nibble = _mm256_set1_epi8(0x0F);
    __m256i even[2], odd[2];
    e2m1_bf16(_mm256_and_si256(code, nibble), &even[0], &even[1]);
    e2m1_bf16(_mm256_and_si256(_mm256_srli_epi16(code, 4), nibble), &odd[0], &odd[1]);
    UNROLL for (uint32_t h = 0; h < 2; h++)
    {
        lower(even[h], x, at + (4 * h) * TEAM, count, p);
        lower(odd[h], x, at + (4 * h + 1) * TEAM, count, p);
        upper(even[h], x, at + (4 * h + 2) * TEAM, count, p);
        upper(odd[h], x, at + (4 * h + 3) * TEAM, count, p);
    }
}

/* The two runs go side by side: each is a chain of fma, which wait for each other. */
INLINE void nvfp4_team(struct four codes, const uint8_t *scales, const float *const *x, size_t at, uint32_t count,
                       struct sums *acc)
{
    struct four words = transpose_words(codes);
    struct sums p[2] = {0}; /* of either run */
    __m256 scale[2];
    nvfp4_scales(scales, scale);
    UNROLL for (uint32_t d = 0; d < 2; d++) UNROLL for (uint32_t run = 0; run < 2; run++)
        nvfp4_elements(words.of[2 * run + d], x, at + 8 * (2 * run + d) * TEAM, count, &p[run]);
    UNROLL for (uint32_t run = 0; run < 2; run++) join(scale[run], count, &p[run], acc);
}

/* Eight elements of every chunk, as bf16: two in each dword. */
INLINE void bf16_elements(struct four pairs, const float *const *x, size_t at, uint32_t count, struct sums *p)
{
    UNROLL for (uint32_t d = 0; d < 4; d++)
    {
        lower(pairs.of[d], x, at + 2 * d * TEAM, count, p);
        upper(pairs.of[d], x, at + (2 * d + 1) * TEAM, count, p);
    }
}

/* -0 in the positions of chunks that do not exist. */
INLINE __m256 existing(__m256 scale, uint32_t chunks)
{
    const __m256i chunk = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    __m256i there = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)chunks), chunk);
    return _mm256_blendv_ps(_mm256_set1_ps(-0.0f), scale, _mm256_castsi256_ps(there));
}

/* Two chunks share a scale, so both 16-byte parts have the same four. */
INLINE __m256 mxfp8_scales(const uint8_t *scales, uint32_t chunks)
{
    int bytes;
    memcpy(&bytes, scales, sizeof bytes);
    __m256i code = _mm256_cvtepu8_epi32(_mm_set1_epi32(bytes));
    __m256i zero = _mm256_cmpeq_epi32(code, _mm256_setzero_si256());
    __m256i nan = _mm256_cmpeq_epi32(code, _mm256_set1_epi32(0xFF));
    __m256i bits = _mm256_or_si256(_mm256_slli_epi32(code, 23), _mm256_and_si256(zero, _mm256_set1_epi32(0x00400000)));
    bits = _mm256_or_si256(bits, _mm256_and_si256(nan, _mm256_set1_epi32(0x7FC00000)));
    return existing(_mm256_castsi256_ps(bits), chunks);
}

/*
 * E4M3 as bf16: of bytes 0 to 7 and 8 to 15 of every 16. The code's nibbles give both bytes; where the upper three
 * bits of the exponent are zero, the lower nibble alone does, and a second look-up, which is zero elsewhere, mends
 * them. code  s eee  e mmm          bf16  s 0111eee  e mmm 0000, the exponent being 60 * 2 more
 */
INLINE void e4m3_bf16(__m256i code, __m256i *first, __m256i *second)
{
    static const uint8_t upper_byte[16] = {0x00, 0x3D, 0x3E, 0x3F, 0x40, 0x41, 0x42, 0x43,
                                           0x80, 0xBD, 0xBE, 0xBF, 0xC0, 0xC1, 0xC2, 0xC3};
    static const uint8_t lower_byte[16] = {0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70,
                                           0x80, 0x90, 0xA0, 0xB0, 0xC0, 0xD0, 0xE0, 0xF0};
    static const uint8_t small_upper[16] = {0x00, 0x3B, 0x3B, 0x3B, 0x3C, 0x3C, 0x3C, 0x3C,
                                            0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C, 0x3C};
    /* 0x00, 0x00, 0x80, 0xC0, 0x00, 0x20, 0x40, 0x60, and from 0x80 on the same, exclusive or lower_byte */
    static const uint8_t small_lower[16] = {0x00, 0x10, 0xA0, 0xF0, 0x40, 0x70, 0x20, 0x10};
    const __m256i nibble = _mm256_set1_epi8(0x0F), magnitude = _mm256_set1_epi8(0x7F);
    __m256i n = _mm256_and_si256(code, nibble), h = _mm256_and_si256(_mm256_srli_epi16(code, 4), nibble);
    __m256i large = _mm256_cmpgt_epi8(_mm256_and_si256(code, _mm256_set1_epi8(0x70)), _mm256_setzero_si256());
    __m256i nan = _mm256_cmpeq_epi8(_mm256_and_si256(code, magnitude), magnitude);
    __m256i small = _mm256_or_si256(n, large); /* an index of which bit 7 asks for zero */
    __m256i u =
        _mm256_or_si256(_mm256_shuffle_epi8(table(upper_byte), h), _mm256_shuffle_epi8(table(small_upper), small));
    __m256i l =
        _mm256_xor_si256(_mm256_shuffle_epi8(table(lower_byte), n), _mm256_shuffle_epi8(table(small_lower), small));
    u = _mm256_or_si256(u, nan);
    *first = _mm256_unpacklo_epi8(l, u);
    *second = _mm256_unpackhi_epi8(l, u);
}

INLINE void mxfp8_team(struct four codes, uint32_t chunks, const uint8_t *scales, const float *const *x, size_t at,
                       uint32_t count, struct sums *acc)
{
    struct four words = transpose_words(codes);
    struct sums p = {0};
    UNROLL for (uint32_t d = 0; d < 4; d++)
    {
        __m256i pairs[2]; /* elements 4d and 4d + 1 of every chunk, 4d + 2 and 4d + 3 */
        e4m3_bf16(words.of[d], &pairs[0], &pairs[1]);
        UNROLL for (uint32_t h = 0; h < 2; h++)
        {
            lower(pairs[h], x, at + (4 * d + 2 * h) * TEAM, count, &p);
            upper(pairs[h], x, at + (4 * d + 2 * h + 1) * TEAM, count, &p);
        }
    }
    join(mxfp8_scales(scales, chunks), count, &p, acc);
}

INLINE void bf16_team(struct four codes, uint32_t chunks, const float *const *x, size_t at, uint32_t count,
                      struct sums *acc)
{
    struct sums p = {0};
    bf16_elements(transpose(codes), x, at, count, &p);
    join(existing(_mm256_set1_ps(1), chunks), count, &p, acc);
}

/* scales: those of a whole team, of which `chunks` exist. */
INLINE void team(enum gb_format format, struct four codes, const uint8_t *scales, uint32_t chunks,
                 const float *const *x, size_t at, uint32_t count, struct sums *acc)
{
    if (format == GB_NVFP4)
        nvfp4_team(codes, scales, x, at, count, acc);
    else if (format == GB_MXFP8)
        mxfp8_team(codes, chunks, scales, x, at, count, acc);
    else
        bf16_team(codes, chunks, x, at, count, acc);
}

/* The last team of a row, of fewer chunks. The scales that NVFP4 lacks are the code of -0. */
INLINE void short_team(enum gb_format format, const uint8_t *codes, size_t bytes, const uint8_t *scales,
                       size_t scale_bytes, const float *const *x, size_t at, uint32_t count, struct sums *acc)
{
    uint8_t all_scales[TEAM_BYTES / 8];
    memset(all_scales, 0x80, sizeof all_scales);
    if (scale_bytes)
        memcpy(all_scales, scales, scale_bytes);
    uint32_t chunks = (uint32_t)((bytes + GB_CHUNK_BYTES - 1) / GB_CHUNK_BYTES);
    team(format, load_part(codes, bytes), all_scales, chunks, x, at, count, acc);
}

/* Step 4. Position 4q + r is lane 2r + q of a team, so the lane's bits 4, 2, 1 are the position's bits 2, 1, 4. */
INLINE float butterfly(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m256 v = _mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d)); /* m = 16, then 8 */
    v = _mm256_add_ps(v, _mm256_permute_ps(v, 0x4E));                   /* m = 4 */
    v = _mm256_add_ps(v, _mm256_permute_ps(v, 0xB1));                   /* m = 2 */
    v = _mm256_add_ps(v, _mm256_permute2f128_ps(v, v, 1));              /* m = 1 */
    return _mm256_cvtss_f32(v);
}

/* A row times `count` activations from `first` on. The teams of a row take turns on the accumulators. */
INLINE void one_row(enum gb_format format, const struct gb_tile *tile, uint32_t row, uint32_t first, uint32_t count,
                    float *dots)
{
    const size_t elements = TEAM_BYTES * (format == GB_NVFP4 ? 2 : 1) / (format == GB_BF16 ? 2 : 1);
    const size_t scale_bytes = format == GB_NVFP4 ? elements / 16 : format == GB_MXFP8 ? elements / 32 : 0;
    const size_t short_scale_bytes = scale_bytes ? tile->scale_bytes % scale_bytes : 0;
    const float *const *x = tile->x + first;
    const uint8_t *codes = tile->codes + row * tile->code_bytes;
    const uint8_t *scales = tile->scales + row * tile->scale_bytes;
    struct sums acc[TEAMS] = {0};
    size_t left = tile->code_bytes, at = 0;
    for (; left >= TEAM_BYTES; left -= TEAM_BYTES, at += elements, codes += TEAM_BYTES, scales += scale_bytes) {
        _mm_prefetch((const char *)codes + AHEAD_BYTES, _MM_HINT_T0);
        _mm_prefetch((const char *)codes + AHEAD_BYTES + TEAM_BYTES / 2, _MM_HINT_T0);
        if (scale_bytes)
            _mm_prefetch((const char *)scales + AHEAD_BYTES / TEAM_BYTES * scale_bytes, _MM_HINT_T0);
        team(format, load_team(codes), scales, TEAM, x, at, count, &acc[0]);
        struct sums done = acc[0];
        acc[0] = acc[1];
        acc[1] = acc[2];
        acc[2] = acc[3];
        acc[3] = done;
    }
    if (left)
        short_team(format, codes, left, scales, short_scale_bytes, x, at, count, &acc[0]);
    for (uint32_t i = 0; i < count; i++)
        dots[(size_t)row * tile->count + first + i] = butterfly(acc[0].of[i], acc[1].of[i], acc[2].of[i], acc[3].of[i]);
}

/* Every row: number i of every stream, and what the streams leave over at the end. */
INLINE void pass(enum gb_format format, const struct gb_tile *tile, uint32_t first, uint32_t count, float *dots)
{
    const uint32_t stream = tile->rows / STREAMS, all = stream * STREAMS;
    for (uint32_t i = 0; i < tile->rows; i++)
        one_row(format, tile, i < all ? i % STREAMS * stream + i / STREAMS : i, first, count, dots);
}

INLINE void passes(enum gb_format format, const struct gb_tile *tile, float *dots)
{
    uint32_t first = 0;
    for (; first + PASS <= tile->count; first += PASS)
        pass(format, tile, first, PASS, dots);
    for (; first + 2 <= tile->count; first += 2)
        pass(format, tile, first, 2, dots);
    for (; first < tile->count; first++)
        pass(format, tile, first, 1, dots);
}

void gb_dots_avx2(const struct gb_tile *tile, float *dots)
{
    if (tile->format == GB_NVFP4)
        passes(GB_NVFP4, tile, dots);
    else if (tile->format == GB_MXFP8)
        passes(GB_MXFP8, tile, dots);
    else
        passes(GB_BF16, tile, dots);
}
#endif
