/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The instructions of AVX-512 that reference/ has, in C, for a CPU without them: what Intel's Intrinsics Guide says of
 * each. What it leaves undefined is 0xA5 here, masked loads read what the mask names alone, and an aligned load of what
 * is not aligned ends the process. Needs AVX2 and FMA.
 */
#ifndef GB_TESTS_SUPPORT_AVX512_IMMINTRIN_H
#define GB_TESTS_SUPPORT_AVX512_IMMINTRIN_H

#include_next <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Short ones become part of their callers; long ones are called, or the callers' unrolled loops take minutes. */
#define EMULATED_SHORT static inline __attribute__((__always_inline__, unused))
#define EMULATED_LONG static __attribute__((noinline, unused))

typedef uint32_t emulated_u32 __attribute__((vector_size(64), may_alias));
typedef int32_t emulated_i32 __attribute__((vector_size(64), may_alias));
typedef uint64_t emulated_u64 __attribute__((vector_size(64), may_alias));
typedef uint16_t emulated_u16 __attribute__((vector_size(64), may_alias));
typedef uint8_t emulated_u8 __attribute__((vector_size(64), may_alias));

union emulated {
    __m512 f;
    __m512i i;
    __m256 half[2];
    __m256i half_i[2];
    __m128i quarter_i[4];
    float f32[16];
    int32_t i32[16];
    uint32_t u32[16];
    uint64_t u64[8];
    uint16_t u16[32];
    uint8_t u8[64];
};
union emulated_256 {
    __m256i i;
    uint32_t u32[8];
    uint16_t u16[16];
    uint8_t u8[32];
};
union emulated_128 {
    __m128i i;
    uint8_t u8[16];
};

#define EMULATED_I(A) ((union emulated){.i = (A)})
#define EMULATED_F(A) ((union emulated){.f = (A)})

/* Lanes are told from the last to the first by set, the other way round by setr. */
#define _mm512_setr_ps(...) ((__m512){__VA_ARGS__})
#define _mm512_set_ps(P, O, N, M, L, K, J, I, H, G, F, E, D, C, B, A)                                                  \
    ((__m512){A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P})
#define _mm512_set_epi32(P, O, N, M, L, K, J, I, H, G, F, E, D, C, B, A)                                               \
    ((__m512i)(emulated_i32){A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P})
#define _mm512_set_epi16(F1, E1, D1, C1, B1, A1, Z, Y, X, W, V, U, T, S, R, Q, P, O, N, M, L, K, J, I, H, G, F, E, D,  \
                         C, B, A)                                                                                      \
    ((__m512i)(emulated_u16){A, B, C, D, E, F, G, H, I, J, K,  L,  M,  N,  O,  P,                                      \
                             Q, R, S, T, U, V, W, X, Y, Z, A1, B1, C1, D1, E1, F1})
#define _mm512_setzero_ps() ((__m512){0})
#define _mm512_setzero_si512() ((__m512i){0})
#define _mm512_set1_ps(A) emulated_set1_ps(A)
#define _mm512_set1_epi32(A) emulated_set1_epi32(A)
#define _mm512_set1_epi16(A) emulated_set1_epi16(A)
#define _mm512_set1_epi8(A) emulated_set1_epi8(A)
EMULATED_SHORT __m512 emulated_set1_ps(float a)
{
    return a - (__m512){0}; /* -0 stays -0 */
}
EMULATED_SHORT __m512i emulated_set1_epi32(int a)
{
    return (__m512i)((uint32_t)a + (emulated_u32){0});
}
EMULATED_SHORT __m512i emulated_set1_epi16(short a)
{
    return (__m512i)((uint16_t)a + (emulated_u16){0});
}
EMULATED_SHORT __m512i emulated_set1_epi8(char a)
{
    return (__m512i)((uint8_t)a + (emulated_u8){0});
}

/* Lane by lane. */
#define _mm512_add_ps(A, B) ((__m512)((A) + (B)))
#define _mm512_mul_ps(A, B) ((__m512)((A) * (B)))
#define _mm512_and_si512(A, B) ((__m512i)((A) & (B)))
#define _mm512_or_si512(A, B) ((__m512i)((A) | (B)))
#define _mm512_add_epi16(A, B) ((__m512i)((emulated_u16)(A) + (emulated_u16)(B)))
#define _mm512_add_epi32(A, B) ((__m512i)((emulated_u32)(A) + (emulated_u32)(B)))
#define _mm512_sub_epi32(A, B) ((__m512i)((emulated_u32)(A) - (emulated_u32)(B)))
#define _mm512_ternarylogic_epi32(A, B, C, TABLE) emulated_ternarylogic(A, B, C, TABLE)
#define _mm512_fmadd_ps(A, B, C) emulated_fmadd_ps(A, B, C)
#define _mm512_max_epu32(A, B) emulated_max_epu32(A, B)
#define _mm512_slli_epi32(A, N) emulated_slli_epi32(A, N)
#define _mm512_srli_epi32(A, N) emulated_srli_epi32(A, N)
#define _mm512_srai_epi32(A, N) emulated_srai_epi32(A, N)
#define _mm512_srli_epi64(A, N) emulated_srli_epi64(A, N)
EMULATED_SHORT __m512 emulated_fmadd_ps(__m512 a, __m512 b, __m512 c)
{
    const union emulated x = {.f = a}, y = {.f = b}, z = {.f = c};
    return (union emulated){
        .half = {_mm256_fmadd_ps(x.half[0], y.half[0], z.half[0]), _mm256_fmadd_ps(x.half[1], y.half[1], z.half[1])}}
        .f;
}
/* Bit n of the table is what becomes of the three bits 4a + 2b + c = n. */
EMULATED_SHORT __m512i emulated_ternarylogic(__m512i a, __m512i b, __m512i c, unsigned table)
{
    __m512i to = {0};
    for (unsigned n = 0; n < 8; n++)
        if (table >> n & 1)
            to |= (n & 4 ? a : ~a) & (n & 2 ? b : ~b) & (n & 1 ? c : ~c);
    return to;
}
EMULATED_SHORT __m512i emulated_max_epu32(__m512i a, __m512i b)
{
    const emulated_i32 more = (emulated_u32)a > (emulated_u32)b;
    return (a & (__m512i)more) | (b & ~(__m512i)more);
}
EMULATED_SHORT __m512i emulated_slli_epi32(__m512i a, unsigned n)
{
    return n > 31 ? (__m512i){0} : (__m512i)((emulated_u32)a << n);
}
EMULATED_SHORT __m512i emulated_srli_epi32(__m512i a, unsigned n)
{
    return n > 31 ? (__m512i){0} : (__m512i)((emulated_u32)a >> n);
}
EMULATED_SHORT __m512i emulated_srai_epi32(__m512i a, unsigned n)
{
    return (__m512i)((emulated_i32)a >> (n > 31 ? 31 : n));
}
EMULATED_SHORT __m512i emulated_srli_epi64(__m512i a, unsigned n)
{
    return n > 63 ? (__m512i){0} : (__m512i)((emulated_u64)a >> n);
}

/* Conversions: of integers toward zero, the only direction that is asked for; of numbers that are no int32,
 * 0x80000000. */
#define _mm512_castps_si512(A) ((__m512i)(A))
#define _mm512_castsi512_ps(A) ((__m512)(A))
#define _mm512_castps512_ps128(A) ((__m128)(EMULATED_F(A).quarter_i[0]))
#define _mm512_cvttps_epi32(A) emulated_cvttps_epi32(A)
#define _mm512_cvt_roundepi32_ps(A, ROUNDING) emulated_cvt_roundepi32_ps(A, ROUNDING)
#define _mm512_cvtepi64_epi32(A) emulated_cvtepi64_epi32(A)
EMULATED_SHORT __m512i emulated_cvttps_epi32(__m512 a)
{
    const union emulated x = {.f = a};
    return (union emulated){.half_i = {_mm256_cvttps_epi32(x.half[0]), _mm256_cvttps_epi32(x.half[1])}}.i;
}
EMULATED_LONG __m512 emulated_cvt_roundepi32_ps(__m512i a, int rounding)
{
    union emulated x = {.i = a};
    if (rounding != (_MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC))
        abort();
    for (unsigned i = 0; i < 16; i++) {
        uint32_t magnitude = x.i32[i] < 0 ? 0u - x.u32[i] : x.u32[i], lost = 0;
        while (magnitude >> lost >> 24)
            lost++;
        const float kept = (float)(magnitude >> lost << lost);
        x.f32[i] = x.i32[i] < 0 ? -kept : kept;
    }
    return x.f;
}
EMULATED_LONG __m256i emulated_cvtepi64_epi32(__m512i a)
{
    const union emulated x = {.i = a};
    union emulated_256 to;
    for (unsigned i = 0; i < 8; i++)
        to.u32[i] = (uint32_t)x.u64[i];
    return to.i;
}

/* Masks: bit n for lane n. */
#define _mm512_cmpeq_epi32_mask(A, B) emulated_mask_32((emulated_u32)(A) == (emulated_u32)(B))
#define _mm512_cmpgt_epu32_mask(A, B) emulated_mask_32((emulated_u32)(A) > (emulated_u32)(B))
#define _mm512_cmpge_epu32_mask(A, B) emulated_mask_32((emulated_u32)(A) >= (emulated_u32)(B))
#define _mm512_mask_test_epi32_mask(MASK, A, B)                                                                        \
    ((__mmask16)((MASK)&emulated_mask_32((emulated_u32)((A) & (B)) != (emulated_u32){0})))
#define _mm512_cmpeq_epi8_mask(A, B) emulated_cmpeq_epi8_mask(A, B)
#define _mm512_test_epi8_mask(A, B) (~emulated_cmpeq_epi8_mask((A) & (B), (__m512i){0}))
#define _mm256_cmpeq_epi16_mask(A, B) emulated_cmpeq_epi16_mask(A, B)
#define _mm512_mask_mov_ps(FROM, MASK, A) emulated_mask_mov_ps(FROM, MASK, A)
#define _mm256_mask_mov_epi16(FROM, MASK, A) emulated_mask_mov_epi16(FROM, MASK, A)
EMULATED_SHORT __mmask16 emulated_mask_32(emulated_i32 lanes)
{
    const union emulated x = {.i = (__m512i)lanes};
    return (__mmask16)(_mm256_movemask_ps(x.half[0]) | _mm256_movemask_ps(x.half[1]) << 8);
}
EMULATED_SHORT __mmask64 emulated_cmpeq_epi8_mask(__m512i a, __m512i b)
{
    const union emulated x = {.i = a}, y = {.i = b};
    const uint32_t low = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(x.half_i[0], y.half_i[0]));
    const uint32_t high = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(x.half_i[1], y.half_i[1]));
    return (uint64_t)high << 32 | low;
}
EMULATED_LONG __mmask16 emulated_cmpeq_epi16_mask(__m256i a, __m256i b)
{
    const union emulated_256 x = {.i = a}, y = {.i = b};
    unsigned mask = 0;
    for (unsigned i = 0; i < 16; i++)
        mask |= (unsigned)(x.u16[i] == y.u16[i]) << i;
    return (__mmask16)mask;
}
EMULATED_LONG __m512 emulated_mask_mov_ps(__m512 from, __mmask16 mask, __m512 a)
{
    union emulated to = {.f = from};
    const union emulated x = {.f = a};
    for (unsigned i = 0; i < 16; i++)
        to.u32[i] = mask >> i & 1 ? x.u32[i] : to.u32[i];
    return to.f;
}
EMULATED_LONG __m256i emulated_mask_mov_epi16(__m256i from, __mmask16 mask, __m256i a)
{
    union emulated_256 to = {.i = from};
    const union emulated_256 x = {.i = a};
    for (unsigned i = 0; i < 16; i++)
        to.u16[i] = mask >> i & 1 ? x.u16[i] : to.u16[i];
    return to.i;
}

/* Memory. */
#define _mm512_load_ps(FROM) emulated_load(FROM, 64).f
#define _mm512_load_si512(FROM) emulated_load(FROM, 64).i
#define _mm512_loadu_si512(FROM) emulated_load(FROM, 1).i
#define _mm512_maskz_loadu_epi8(MASK, AT) emulated_maskz_loadu_epi8(MASK, AT)
#define _mm256_mask_loadu_epi8(FROM, MASK, AT) emulated_mask_loadu_epi8_256(FROM, MASK, AT)
#define _mm_maskz_loadu_epi8(MASK, AT) emulated_maskz_loadu_epi8_128(MASK, AT)
EMULATED_SHORT union emulated emulated_load(const void *from, size_t aligned)
{
    union emulated to;
    if ((uintptr_t)from % aligned)
        abort();
    memcpy(&to, from, sizeof to);
    return to;
}
EMULATED_LONG __m512i emulated_maskz_loadu_epi8(__mmask64 mask, const uint8_t *at)
{
    union emulated to = {.i = {0}};
    for (unsigned i = 0; i < 64; i++)
        if (mask >> i & 1)
            to.u8[i] = at[i];
    return to.i;
}
EMULATED_LONG __m256i emulated_mask_loadu_epi8_256(__m256i from, __mmask32 mask, const uint8_t *at)
{
    union emulated_256 to = {.i = from};
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1)
            to.u8[i] = at[i];
    return to.i;
}
EMULATED_LONG __m128i emulated_maskz_loadu_epi8_128(__mmask16 mask, const uint8_t *at)
{
    union emulated_128 to = {{0}};
    for (unsigned i = 0; i < 16; i++)
        if (mask >> i & 1)
            to.u8[i] = at[i];
    return to.i;
}

/* Lanes that move. Within each 16 bytes: */
#define _mm512_unpacklo_epi8(A, B) emulated_unpack(A, B, 1, 0)
#define _mm512_unpackhi_epi8(A, B) emulated_unpack(A, B, 1, 8)
#define _mm512_unpacklo_epi16(A, B) emulated_unpack(A, B, 2, 0)
#define _mm512_unpackhi_epi16(A, B) emulated_unpack(A, B, 2, 8)
#define _mm512_unpacklo_epi32(A, B) emulated_unpack(A, B, 4, 0)
#define _mm512_unpackhi_epi32(A, B) emulated_unpack(A, B, 4, 8)
#define _mm512_unpacklo_epi64(A, B) emulated_unpack(A, B, 8, 0)
#define _mm512_unpackhi_epi64(A, B) emulated_unpack(A, B, 8, 8)
#define _mm512_shuffle_ps(A, B, CONTROL) emulated_shuffle_ps(A, B, CONTROL)
EMULATED_LONG __m512i emulated_unpack(__m512i a, __m512i b, unsigned width, unsigned from)
{
    const union emulated x = {.i = a}, y = {.i = b};
    union emulated to;
    for (unsigned i = 0; i < 64; i++) {
        const unsigned at = i / 16 * 16 + from + i % 16 / (2 * width) * width + i % width;
        to.u8[i] = i / width % 2 ? y.u8[at] : x.u8[at];
    }
    return to.i;
}
EMULATED_LONG __m512 emulated_shuffle_ps(__m512 a, __m512 b, unsigned control)
{
    const union emulated x = {.f = a}, y = {.f = b};
    union emulated to;
    for (unsigned i = 0; i < 16; i++)
        to.f32[i] = (i % 4 < 2 ? x : y).f32[i / 4 * 4 + (control >> i % 4 * 2 & 3)];
    return to.f;
}
/* Of all 64 bytes: */
#define _mm512_shuffle_f32x4(A, B, CONTROL) emulated_shuffle_f32x4(A, B, CONTROL)
#define _mm512_permutexvar_ps(INDEX, A) emulated_permutexvar_ps(INDEX, A)
#define _mm512_permutex2var_epi32(A, INDEX, B) emulated_permutex2var_epi32(A, INDEX, B)
#define _mm512_permutexvar_epi8(INDEX, A) emulated_permutexvar_epi8(A, ~(__mmask64)0, INDEX, A)
#define _mm512_mask_permutexvar_epi8(FROM, MASK, INDEX, A) emulated_permutexvar_epi8(FROM, MASK, INDEX, A)
#define _mm512_maskz_permutexvar_epi16(MASK, INDEX, A) emulated_permutexvar_epi16(MASK, INDEX, A)
EMULATED_LONG __m512 emulated_shuffle_f32x4(__m512 a, __m512 b, unsigned control)
{
    const union emulated x = {.f = a}, y = {.f = b};
    union emulated to;
    for (unsigned i = 0; i < 16; i++)
        to.f32[i] = (i < 8 ? x : y).f32[(control >> i / 4 * 2 & 3) * 4 + i % 4];
    return to.f;
}
EMULATED_LONG __m512 emulated_permutexvar_ps(__m512i index, __m512 a)
{
    const union emulated x = {.f = a}, n = {.i = index};
    union emulated to;
    for (unsigned i = 0; i < 16; i++)
        to.f32[i] = x.f32[n.u32[i] % 16];
    return to.f;
}
EMULATED_LONG __m512i emulated_permutex2var_epi32(__m512i a, __m512i index, __m512i b)
{
    const union emulated x[2] = {{.i = a}, {.i = b}}, n = {.i = index};
    union emulated to;
    for (unsigned i = 0; i < 16; i++)
        to.u32[i] = x[n.u32[i] / 16 % 2].u32[n.u32[i] % 16];
    return to.i;
}
EMULATED_LONG __m512i emulated_permutexvar_epi8(__m512i from, __mmask64 mask, __m512i index, __m512i a)
{
    const union emulated x = {.i = a}, n = {.i = index};
    union emulated to = {.i = from};
    for (unsigned i = 0; i < 64; i++)
        if (mask >> i & 1)
            to.u8[i] = x.u8[n.u8[i] % 64];
    return to.i;
}
EMULATED_LONG __m512i emulated_permutexvar_epi16(__mmask32 mask, __m512i index, __m512i a)
{
    const union emulated x = {.i = a}, n = {.i = index};
    union emulated to;
    for (unsigned i = 0; i < 32; i++)
        to.u16[i] = mask >> i & 1 ? x.u16[n.u16[i] % 32] : 0;
    return to.i;
}

/* Parts of a register; the others are what they were, or anything. */
#define _mm512_castsi128_si512(A) emulated_undefined((union emulated){.quarter_i = {A}}, 16)
#define _mm512_castsi256_si512(A) emulated_undefined((union emulated){.half_i = {A}}, 32)
#define _mm512_inserti32x4(A, B, PLACE) emulated_inserti32x4(A, B, PLACE)
#define _mm512_inserti64x4(A, B, PLACE) emulated_inserti64x4(A, B, PLACE)
EMULATED_SHORT __m512i emulated_undefined(union emulated x, unsigned first)
{
    memset(x.u8 + first, 0xA5, sizeof x - first);
    return x.i;
}
EMULATED_SHORT __m512i emulated_inserti32x4(__m512i a, __m128i b, unsigned place)
{
    union emulated to = {.i = a};
    to.quarter_i[place % 4] = b;
    return to.i;
}
EMULATED_SHORT __m512i emulated_inserti64x4(__m512i a, __m256i b, unsigned place)
{
    union emulated to = {.i = a};
    to.half_i[place % 2] = b;
    return to.i;
}

/* Functions of the including file are called, too. */
#define always_inline unused

#endif
