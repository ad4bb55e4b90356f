/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fma32/1 on AVX-512 (F, BW, VL, VBMI): teams of 16 chunks. The layout is drawn in reference/fma32_lanes.h.
 *
 * A row is taken in stretches of 32 chunks, two teams and an accumulator for each. The two go side by side, and so do
 * two rows of one stretch or four of one team, and the two runs of an NVFP4 chunk, so that the CPU has several chains
 * of fma to work on, each of which waits for its last. Four dot products share step 4.
 * The rows of a tile are that many streams of memory: with four, each of the tile's quarters is one, which reads DRAM
 * faster than one stream does. Codes are asked for AHEAD_BYTES before they are needed, and scales with them; before a
 * stream ends, those of the next tile.
 */
#include "reference/fma32_lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* PASS: dot products that share step 4, of rows, and of activations that share the decoding of a weight. */
enum { TEAM = 16, TEAMS = GB_LANES / TEAM, REGISTER_BYTES = 64, TEAM_BYTES = 4 * REGISTER_BYTES };
enum { PASS = 4 };
enum { AHEAD_BYTES = 1024 };

/* A stretch of some rows, and the activations of a pass. */
struct stretch {
    const uint8_t *codes;           /* of the first row, [bytes] */
    const uint8_t *scales;          /* likewise */
    const uint8_t *later_codes;     /* what is read AHEAD_BYTES of codes later */
    const uint8_t *later_scales;    /* likewise */
    size_t code_bytes, scale_bytes; /* from a row to the next */
    size_t bytes;
    uint32_t rows;
    uint32_t teams;    /* that have any bytes */
    uint32_t elements; /* of a chunk */
    uint32_t count;
    const float *const *x; /* [count], each from `at` on [TEAMS, elements, TEAM] */
    size_t at;
};

struct four {
    __m512i of[4];
};

/* A number of every lane for every row and activation. */
struct sums {
    __m512 of[TEAMS][PASS]; /* [teams, rows * count] */
};

/* How many of the stretch's bytes, `each` of them a team's, are team t's. */
INLINE size_t part(size_t bytes, size_t each, uint32_t t)
{
    size_t before = t * each;
    return bytes <= before ? 0 : bytes - before < each ? bytes - before : each;
}

/* Team t's codes of row r, four chunks in a register; zeros where there are none. */
INLINE struct four load_team(const struct stretch *s, uint32_t r, uint32_t t)
{
    struct four z;
    UNROLL for (uint32_t q = 0; q < 4; q++)
    {
        const size_t at = r * s->code_bytes + (4 * t + q) * REGISTER_BYTES;
        const uint8_t *from = s->codes + at;
        size_t bytes = part(s->bytes, REGISTER_BYTES, 4 * t + q);
        z.of[q] = bytes == REGISTER_BYTES ? _mm512_loadu_si512(from)
                                          : _mm512_maskz_loadu_epi8(((__mmask64)1 << bytes) - 1, from);
    }
    return z;
}

/* Asks for its share of the later codes, in step k of so many. Of one activation evenly, since few lines at a time can
 * be waited for; of several, whose steps take longer, at once. */
INLINE void ask(const struct stretch *s, uint32_t k, uint32_t steps)
{
    const uint32_t row = 4 * s->teams, lines = s->rows * row;
    const uint32_t from = s->count == 1 ? k * lines / steps : 0;
    const uint32_t to = s->count == 1 ? (k + 1) * lines / steps : k == 0 ? lines : 0;
    UNROLL for (uint32_t i = from; i < to; i++)
        _mm_prefetch((const char *)s->later_codes + i / row * s->code_bytes + i % row * REGISTER_BYTES, _MM_HINT_T0);
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

/* Element k of team t's chunks in row r: p = fma(w, x, p). */
INLINE void element(const struct stretch *s, uint32_t r, uint32_t t, uint32_t k, __m512 w, struct sums *p)
{
    UNROLL for (uint32_t n = 0; n < s->count; n++)
    {
        __m512 x = _mm512_load_ps(s->x[n] + s->at + (t * s->elements + k) * TEAM);
        p->of[t][r * s->count + n] = _mm512_fmadd_ps(w, x, p->of[t][r * s->count + n]);
    }
}

/* The end of a run of team t in row r: acc = fma(scale, p, acc). */
INLINE void join(const struct stretch *s, uint32_t r, uint32_t t, __m512 scale, const struct sums *p, struct sums *acc)
{
    UNROLL for (uint32_t i = r * s->count; i < (r + 1) * s->count; i++)
    {
        acc->of[t][i] = _mm512_fmadd_ps(scale, p->of[t][i], acc->of[t][i]);
    }
}

/* -0 in the positions of team t's chunks that do not exist. */
INLINE __m512 existing(const struct stretch *s, uint32_t t, __m512 scale)
{
    const __m512i chunk = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    size_t chunks = (part(s->bytes, TEAM_BYTES, t) + GB_CHUNK_BYTES - 1) / GB_CHUNK_BYTES;
    __mmask16 missing = _mm512_cmpge_epu32_mask(chunk, _mm512_set1_epi32((int)chunks));
    return chunks == TEAM ? scale : _mm512_mask_mov_ps(scale, missing, _mm512_set1_ps(-0.0f));
}

/* The bits of an E4M3 magnitude as FP32, whose lower half is zero. Those below 8 are m times 2^-9. */
#define E4M3_SMALL(m, exponent) ((118u + (exponent)) << 23 | ((m) << (23 - (exponent)) & 0x7FFFFFu))
#define E4M3_BITS(m)                                                                                                   \
    ((m) == 0x7F ? 0x7FC00000u                                                                                         \
     : (m) >= 8  ? ((m) << 20) + (120u << 23)                                                                          \
     : (m) >= 4  ? E4M3_SMALL(m, 2)                                                                                    \
     : (m) >= 2  ? E4M3_SMALL(m, 1)                                                                                    \
     : (m) == 1  ? E4M3_SMALL(m, 0)                                                                                    \
                 : 0u)
#define E4M3_UPPER(m) (uint8_t)(E4M3_BITS(m) >> 24)
#define E4M3_LOWER(m) (uint8_t)(E4M3_BITS(m) >> 16)
#define OF_4(byte, m) byte(m), byte((m) + 1), byte((m) + 2), byte((m) + 3)
#define OF_16(byte, m) OF_4(byte, m), OF_4(byte, (m) + 4), OF_4(byte, (m) + 8), OF_4(byte, (m) + 12)
#define OF_128(byte)                                                                                                   \
    OF_16(byte, 0u), OF_16(byte, 16u), OF_16(byte, 32u), OF_16(byte, 48u), OF_16(byte, 64u), OF_16(byte, 80u),         \
        OF_16(byte, 96u), OF_16(byte, 112u)

/* Bytes 3 and 2 of E4M3 codes as FP32. */
struct e4m3 {
    __m512i upper, lower;
};

/* For every code the byte of its lowest 6 bits in the table's first half, or in the second where bit 6 is set. */
INLINE __m512i look_up(const uint8_t table[128], __m512i codes, __mmask64 second)
{
    __m512i byte = _mm512_permutexvar_epi8(codes, _mm512_load_si512(table));
    return _mm512_mask_permutexvar_epi8(byte, second, codes, _mm512_load_si512(table + 64));
}

INLINE struct e4m3 decode_e4m3(__m512i codes)
{
    static const uint8_t upper[128] __attribute__((aligned(64))) = {OF_128(E4M3_UPPER)};
    static const uint8_t lower[128] __attribute__((aligned(64))) = {OF_128(E4M3_LOWER)};
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    const __mmask64 second = _mm512_test_epi8_mask(codes, _mm512_set1_epi8(0x40));
    const __m512i magnitude = look_up(upper, codes, second);
    return (struct e4m3){_mm512_ternarylogic_epi32(magnitude, codes, sign, 0xF8 /* a | b & c */),
                         look_up(lower, codes, second)};
}

/* The bf16 in the lower half of every dword, and in the upper one. */
INLINE __m512 lower_half(__m512i pair)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
}

INLINE __m512 upper_half(__m512i pair)
{
    return _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xFFFF0000)));
}

/* NVFP4's scale codes of team t in row r; that of -0 where there is none. */
INLINE __m256i load_scales(const struct stretch *s, uint32_t r, uint32_t t)
{
    const size_t count = part(s->bytes, TEAM_BYTES, t) / 8, at = r * s->scale_bytes + t * (TEAM_BYTES / 8);
    const __mmask32 there = (__mmask32)(((uint64_t)1 << count) - 1);
    _mm_prefetch((const char *)s->later_scales + at, _MM_HINT_T0);
    return _mm256_mask_loadu_epi8(_mm256_set1_epi8((char)0x80), there, s->scales + at);
}

/* Scales of both runs of the chunks of two teams; -0 where there is none. Decoded, a chunk's two are a dword, and
 * dwords are brought into the positions of activations. scale: [teams, runs] */
INLINE void decode_scales(__m512i codes, __m512 scale[2][2])
{
    const __m512i place = _mm512_set_epi32(23, 7, 19, 3, 22, 6, 18, 2, 21, 5, 17, 1, 20, 4, 16, 0);
    struct e4m3 of = decode_e4m3(codes);
    __m512i chunks_0 = _mm512_unpacklo_epi8(of.lower, of.upper); /* 0 1 2 3 | 8 ..; two scales each, as words */
    __m512i chunks_4 = _mm512_unpackhi_epi8(of.lower, of.upper); /* 4 5 6 7 | 12 .. */
    UNROLL for (uint32_t t = 0; t < 2; t++)
    {
        __m512i chunks =
            _mm512_permutex2var_epi32(chunks_0, _mm512_add_epi32(place, _mm512_set1_epi32(8 * (int)t)), chunks_4);
        scale[t][0] = lower_half(chunks);
        scale[t][1] = upper_half(chunks);
    }
}

/* Two at a time, of one row or of two. scale: [rows * teams, runs] */
INLINE void nvfp4_scales(const struct stretch *s, __m512 scale[PASS][2])
{
    UNROLL for (uint32_t i = 0; i < s->rows * s->teams; i += 2)
    {
        const uint32_t other = i + 1 < s->rows * s->teams ? i + 1 : i;
        __m512i codes = _mm512_castsi256_si512(load_scales(s, i / s->teams, i % s->teams));
        if (other > i)
            codes = _mm512_inserti64x4(codes, load_scales(s, other / s->teams, other % s->teams), 1);
        decode_scales(codes, scale + i);
    }
}

/* Every dword's lowest 4 bits as E2M1; the look-up takes no others. */
INLINE __m512 e2m1(__m512i codes)
{
    return _mm512_permutexvar_ps(codes,
                                 _mm512_set_ps(-6, -4, -3, -2, -1.5f, -1, -0.5f, -0.0f, 6, 4, 3, 2, 1.5f, 1, 0.5f, 0));
}

INLINE void nvfp4_stretch(const struct stretch *s, struct sums *acc)
{
    struct four dword[PASS][TEAMS];
    struct sums p[2] = {0}; /* of either run */
    __m512 scale[PASS][2];
    UNROLL for (uint32_t r = 0; r < s->rows; r++) UNROLL for (uint32_t t = 0; t < s->teams; t++) dword[r][t] =
        transpose(load_team(s, r, t));
    nvfp4_scales(s, scale);
    UNROLL for (uint32_t n = 0; n < 16; n++)
    {
        ask(s, n, 16);
        UNROLL for (uint32_t run = 0; run < 2; run++) UNROLL for (uint32_t t = 0; t < s->teams; t++)
            UNROLL for (uint32_t r = 0; r < s->rows; r++) element(
                s, r, t, 16 * run + n, e2m1(_mm512_srli_epi32(dword[r][t].of[2 * run + n / 8], 4 * (n % 8))), &p[run]);
    }
    UNROLL for (uint32_t run = 0; run < 2; run++) UNROLL for (uint32_t t = 0; t < s->teams; t++)
        UNROLL for (uint32_t r = 0; r < s->rows; r++) join(s, r, t, scale[r * s->teams + t][run], &p[run], acc);
}

/* Scales of every team's chunks in row r, two of which share one; -0 where there is none. The upper halves of FP32: the
 * code is the exponent, 0 a subnormal and 255 NaN. */
INLINE void mxfp8_scales(const struct stretch *s, uint32_t r, __m512 scale[TEAMS])
{
    const __m512i place = _mm512_set_epi16(7, 7, 5, 5, 3, 3, 1, 1, 7, 7, 5, 5, 3, 3, 1, 1, 6, 6, 4, 4, 2, 2, 0, 0, 6, 6,
                                           4, 4, 2, 2, 0, 0);
    const size_t at = r * s->scale_bytes;
    const __mmask16 there = (__mmask16)((1u << s->bytes / 32) - 1);
    __m256i code = _mm256_cvtepu8_epi16(_mm_maskz_loadu_epi8(there, s->scales + at));
    _mm_prefetch((const char *)s->later_scales + at, _MM_HINT_T0);
    __m256i bits = _mm256_max_epu16(_mm256_slli_epi16(code, 7), _mm256_set1_epi16(0x0040));
    bits =
        _mm256_mask_mov_epi16(bits, _mm256_cmpeq_epi16_mask(code, _mm256_set1_epi16(0xFF)), _mm256_set1_epi16(0x7FC0));
    bits = _mm256_mask_mov_epi16(_mm256_set1_epi16((short)0x8000), there, bits);
    UNROLL for (uint32_t t = 0; t < s->teams; t++) scale[t] = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(
        0xAAAAAAAA, _mm512_add_epi16(place, _mm512_set1_epi16(8 * (short)t)), _mm512_castsi256_si512(bits)));
}

/* Register d holds words 2d and 2d + 1 of every chunk: in each 16-byte part the first of its four, then the others. */
INLINE struct four transpose_words(struct four z)
{
    __m512i a = _mm512_unpacklo_epi16(z.of[0], z.of[1]); /* 0.0  4.0  0.1  4.1 ... 4.3 | ... */
    __m512i b = _mm512_unpackhi_epi16(z.of[0], z.of[1]); /* 0.4  4.4  0.5  4.5 ... 4.7 | ... */
    __m512i c = _mm512_unpacklo_epi16(z.of[2], z.of[3]); /* 8.0 12.0  8.1 12.1 ... | ... */
    __m512i d = _mm512_unpackhi_epi16(z.of[2], z.of[3]); /* 8.4 12.4  8.5 12.5 ... | ... */
    return (struct four){{_mm512_unpacklo_epi32(a, c), _mm512_unpackhi_epi32(a, c), _mm512_unpacklo_epi32(b, d),
                          _mm512_unpackhi_epi32(b, d)}};
}

INLINE void mxfp8_stretch(const struct stretch *s, struct sums *acc)
{
    struct four words[PASS][TEAMS];
    struct sums p = {0};
    __m512 scale[PASS][TEAMS];
    UNROLL for (uint32_t r = 0; r < s->rows; r++)
    {
        UNROLL for (uint32_t t = 0; t < s->teams; t++) words[r][t] = transpose_words(load_team(s, r, t));
        mxfp8_scales(s, r, scale[r]);
    }
    UNROLL for (uint32_t d = 0; d < 4; d++)
    {
        __m512i pairs[PASS][TEAMS][2]; /* elements 4d and 4d + 1 as bf16; 4d + 2 and 4d + 3 */
        UNROLL for (uint32_t t = 0; t < s->teams; t++) UNROLL for (uint32_t r = 0; r < s->rows; r++)
        {
            struct e4m3 of = decode_e4m3(words[r][t].of[d]);
            pairs[r][t][0] = _mm512_unpacklo_epi8(of.lower, of.upper);
            pairs[r][t][1] = _mm512_unpackhi_epi8(of.lower, of.upper);
        }
        UNROLL for (uint32_t k = 0; k < 4; k++)
        {
            ask(s, 4 * d + k, 16);
            UNROLL for (uint32_t t = 0; t < s->teams; t++) UNROLL for (uint32_t r = 0; r < s->rows; r++)
            {
                __m512i pair = pairs[r][t][k / 2];
                element(s, r, t, 4 * d + k, k % 2 ? upper_half(pair) : lower_half(pair), &p);
            }
        }
    }
    UNROLL for (uint32_t t = 0; t < s->teams; t++) UNROLL for (uint32_t r = 0; r < s->rows; r++)
        join(s, r, t, scale[r][t], &p, acc);
}

INLINE void bf16_stretch(const struct stretch *s, struct sums *acc)
{
    struct four pairs[PASS][TEAMS];
    struct sums p = {0};
    UNROLL for (uint32_t r = 0; r < s->rows; r++) UNROLL for (uint32_t t = 0; t < s->teams; t++) pairs[r][t] =
        transpose(load_team(s, r, t));
    UNROLL for (uint32_t k = 0; k < 8; k++)
    {
        ask(s, k, 8);
        UNROLL for (uint32_t t = 0; t < s->teams; t++) UNROLL for (uint32_t r = 0; r < s->rows; r++)
        {
            __m512i pair = pairs[r][t].of[k / 2];
            element(s, r, t, k, k % 2 ? upper_half(pair) : lower_half(pair), &p);
        }
    }
    UNROLL for (uint32_t t = 0; t < s->teams; t++) UNROLL for (uint32_t r = 0; r < s->rows; r++)
        join(s, r, t, existing(s, t, _mm512_set1_ps(1)), &p, acc);
}

INLINE void stretch(enum gb_format format, struct stretch s, struct sums *acc)
{
    if (format == GB_NVFP4)
        nvfp4_stretch(&s, acc);
    else if (format == GB_MXFP8)
        mxfp8_stretch(&s, acc);
    else
        bf16_stretch(&s, acc);
}

/* Step 4 from m = 8 on, of four dot products. Position 4q + r is lane 4r + q of a team, so the lane's bits 8, 4, 2, 1
 * are the position's 2, 1, 8, 4. */
INLINE __m128 butterfly(const __m512 of[PASS])
{
    __m512 a = _mm512_add_ps(_mm512_shuffle_ps(of[0], of[1], 0x44), _mm512_shuffle_ps(of[0], of[1], 0xEE)); /* m = 8 */
    __m512 b = _mm512_add_ps(_mm512_shuffle_ps(of[2], of[3], 0x44), _mm512_shuffle_ps(of[2], of[3], 0xEE));
    __m512 v = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD)); /* m = 4 */
    v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0x4E));                                 /* m = 2 */
    v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xB1));                                 /* m = 1 */
    return _mm512_castps512_ps128(v);
}

/* What is read `bytes` after `at`: once the tile has ended, what comes next. */
INLINE const uint8_t *later(const uint8_t *at, size_t bytes, const uint8_t *end, const uint8_t *next)
{
    size_t left = (size_t)(end - at);
    return bytes < left || !next ? at + bytes : next + (bytes - left);
}

/* Chooses what is asked for while the stretch is computed, of streams of so many rows. `per_scale`: bytes of codes. */
INLINE void look_ahead(const struct gb_tile *tile, uint32_t stream, size_t per_scale, struct stretch *s)
{
    const uint8_t *codes_end = tile->codes + stream * tile->code_bytes;
    const uint8_t *scales_end = tile->scales + stream * tile->scale_bytes;
    s->later_codes = later(s->codes, AHEAD_BYTES, codes_end, tile->next_codes);
    s->later_scales = later(s->scales, AHEAD_BYTES / per_scale, scales_end, tile->next_scales);
}

/* Step 1 to 3 of rows row .. row + rows - 1 times `count` activations from `first` on, and m = 16 of step 4.
 * bytes: of codes in a row; sum: [rows, count] */
INLINE void sum_rows(enum gb_format format, const struct gb_tile *tile, size_t bytes, uint32_t row, uint32_t rows,
                     uint32_t stream, uint32_t first, uint32_t count, __m512 *sum)
{
    const uint32_t elements = format == GB_NVFP4 ? 32 : format == GB_MXFP8 ? 16 : 8;
    const size_t whole = TEAMS * TEAM_BYTES, per_scale = format == GB_NVFP4 ? 8 : 32;
    struct sums acc = {0};
    struct stretch s = {
        .codes = tile->codes + row * tile->code_bytes,
        .scales = tile->scales + row * tile->scale_bytes,
        .code_bytes = stream * tile->code_bytes,
        .scale_bytes = stream * tile->scale_bytes,
        .bytes = whole,
        .rows = rows,
        .teams = TEAMS,
        .elements = elements,
        .count = count,
        .x = tile->x + first,
    };
    size_t left = bytes;
    for (; left >= whole; left -= whole) {
        look_ahead(tile, stream, per_scale, &s);
        stretch(format, s, &acc);
        s.codes += whole;
        s.scales += whole / per_scale;
        s.at += GB_LANES * elements;
    }
    s.bytes = left;
    look_ahead(tile, stream, per_scale, &s);
    if (left > TEAM_BYTES) {
        stretch(format, s, &acc);
    } else if (left) {
        s.teams = 1;
        stretch(format, s, &acc);
    }
    UNROLL for (uint32_t i = 0; i < rows * count; i++) sum[i] = _mm512_add_ps(acc.of[0][i], acc.of[1][i]);
}

/* Rows row, row + stream .. times `count` activations from `first` on; so many rows side by side. */
INLINE void some_rows(enum gb_format format, const struct gb_tile *tile, size_t bytes, uint32_t row, uint32_t rows,
                      uint32_t stream, uint32_t first, uint32_t count, uint32_t side, float *dots)
{
    __m512 sum[PASS] = {0};
    float dot[PASS];
    for (uint32_t r = 0; r < rows; r += side)
        sum_rows(format, tile, bytes, row + r * stream, side, stream, first, count, sum + r * count);
    _mm_storeu_ps(dot, butterfly(sum));
    for (uint32_t i = 0; i < rows * count; i++)
        dots[(size_t)(row + i / count * stream) * tile->count + first + i % count] = dot[i];
}

/* Every row, of so many bytes, times `count` activations from `first` on; so many rows side by side. */
INLINE void all_rows(enum gb_format format, const struct gb_tile *tile, size_t bytes, uint32_t first, uint32_t count,
                     uint32_t side, float *dots)
{
    const uint32_t stream = tile->rows / (PASS / count);
    for (uint32_t row = 0; row < stream; row++)
        some_rows(format, tile, bytes, row, PASS / count, stream, first, count, side, dots);
    for (uint32_t row = stream * (PASS / count); row < tile->rows; row++)
        some_rows(format, tile, bytes, row, 1, tile->rows, first, count, 1, dots);
}

/* bytes: of codes in a row, which are the tile's; teams: of a row that go side by side. */
INLINE void passes(enum gb_format format, const struct gb_tile *tile, size_t bytes, uint32_t teams, float *dots)
{
    uint32_t first = 0;
    for (; first + PASS <= tile->count; first += PASS)
        all_rows(format, tile, bytes, first, PASS, 1, dots);
    const uint32_t left = tile->count - first;
    if (left == 3)
        all_rows(format, tile, bytes, first, 3, 1, dots);
    else if (left == 2)
        all_rows(format, tile, bytes, first, 2, 2 / teams, dots);
    else if (left == 1)
        all_rows(format, tile, bytes, first, 1, 4 / teams, dots);
}

/* Rows of one whole team have loops of their own, in which all lengths are constants. */
INLINE void any_length(enum gb_format format, const struct gb_tile *tile, float *dots)
{
    if (tile->code_bytes == TEAM_BYTES)
        passes(format, tile, TEAM_BYTES, 1, dots);
    else if (tile->code_bytes < TEAM_BYTES)
        passes(format, tile, tile->code_bytes, 1, dots);
    else
        passes(format, tile, tile->code_bytes, TEAMS, dots);
}

void gb_dots_avx512(const struct gb_tile *tile, float *dots)
{
    if (tile->format == GB_NVFP4)
        any_length(GB_NVFP4, tile, dots);
    else if (tile->format == GB_MXFP8)
        any_length(GB_MXFP8, tile, dots);
    else
        any_length(GB_BF16, tile, dots);
}
#endif
