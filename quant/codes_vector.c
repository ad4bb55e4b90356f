/* SPDX-License-Identifier: Apache-2.0 */
/* The codes of elements side by side, for the two element types that weights are made of: of a run with one operand,
 * and of many blocks in a row. */
#include <math.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "quant/elements.h"
#include "quant/multiversion.h"
#include "quant/codes.h"

/* What blocks in a row are made of: elements that are taken at once. */
enum { LANES = 16 };

static const uint32_t sign_bit = 0x80000000;

GB_VECTOR_CLONES static uint32_t quotients(const float *x, uint32_t count, float operand, bool divides, float *quotient)
{
    uint32_t nans = 0;
    if (divides) {
#pragma omp simd reduction(+ : nans)
        for (uint32_t i = 0; i < count; i++) {
            quotient[i] = x[i] / operand;
            nans += quotient[i] != quotient[i];
        }
    } else {
#pragma omp simd reduction(+ : nans)
        for (uint32_t i = 0; i < count; i++) {
            quotient[i] = x[i] * operand;
            nans += quotient[i] != quotient[i];
        }
    }
    return nans;
}

/* The code of a quotient that is a number, in whole numbers: AVX2 would branch where floats are compared. signs: the
 * bits that zero keeps, if it has a sign and so has what rounds to zero; otherwise only numbers below zero have. */
static inline uint32_t code_of(float quotient, float largest, int fraction, int bias, int sign, uint32_t signs)
{
    uint32_t bits = f32_bits(quotient), magnitude = bits & 0x7FFFFFFF, most = f32_bits(largest);
    uint32_t negative = bits & (magnitude ? sign_bit : signs);
    return code_of_magnitude(f32_from_bits(magnitude < most ? magnitude : most), fraction, bias) |
           negative >> (31 - sign);
}

GB_VECTOR_CLONES static void e2m1_codes(const float *quotient, uint32_t count, uint32_t signs, uint32_t *codes)
{
#pragma omp simd
    for (uint32_t i = 0; i < count; i++)
        codes[i] = code_of(quotient[i], 6.0f, E2M1_FRACTION, E2M1_BIAS, 3, signs);
}

GB_VECTOR_CLONES static void e4m3_codes(const float *quotient, uint32_t count, uint32_t signs, uint32_t *codes)
{
#pragma omp simd
    for (uint32_t i = 0; i < count; i++)
        codes[i] = code_of(quotient[i], 448.0f, E4M3_FRACTION, E4M3_BIAS, 7, signs);
}

/* A loop of its own: in the others gcc would narrow every part of a code. */
GB_VECTOR_CLONES static void narrow(const uint32_t *wide, uint32_t count, uint8_t *codes)
{
#pragma omp simd
    for (uint32_t i = 0; i < count; i++)
        codes[i] = (uint8_t)wide[i];
}

/* Whether codes follow from quotients as above. */
static bool rules_are_common(const struct gb_quantiser *q)
{
    if (q->rounding != GB_TIES_TO_EVEN || q->intermediate != GB_INTERMEDIATE_FP32 || q->flush_subnormals ||
        (q->zero_sign != GB_ZERO_KEEPS_SIGN && q->zero_sign != GB_ZERO_SIGN_OF_VALUE))
        return false;
    return (q->element == GB_E2M1 && q->largest == 6.0f) || (q->element == GB_E4M3 && q->largest == 448.0f);
}

static void codes_of_quotients(const struct gb_quantiser *q, const float *quotient, uint32_t count, uint8_t *codes)
{
    const uint32_t signs = q->zero_sign == GB_ZERO_KEEPS_SIGN ? sign_bit : 0;
    uint32_t wide[GB_BLOCKS_AT_ONCE];
    if (q->element == GB_E2M1)
        e2m1_codes(quotient, count, signs, wide);
    else
        e4m3_codes(quotient, count, signs, wide);
    narrow(wide, count, codes);
}

bool gb_codes_of(const struct gb_quantiser *q, const float *x, uint32_t count, float operand, bool divides,
                 uint8_t *codes)
{
    float quotient[GB_CODES_AT_ONCE];
    if (!rules_are_common(q) || count > GB_CODES_AT_ONCE || quotients(x, count, operand, divides, quotient))
        return false;
    codes_of_quotients(q, quotient, count, codes);
    return true;
}

/* Magnitudes compare as their bits do, and NaN is above all. */
GB_VECTOR_CLONES float gb_largest_magnitude(const float *x, size_t count)
{
    uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
    for (size_t i = 0; i < count; i++) {
        uint32_t magnitude = f32_bits(x[i]) & 0x7FFFFFFF;
        largest = magnitude > largest ? magnitude : largest;
    }
    return f32_from_bits(largest);
}

GB_VECTOR_CLONES void gb_block_maxima(const float *x, size_t blocks, uint32_t columns, float *maxima)
{
    for (size_t b = 0; b < blocks; b++) {
        uint32_t largest[LANES] = {0}, all = 0;
        for (uint32_t i = 0; i < columns; i += LANES, x += LANES)
            for (uint32_t lane = 0; lane < LANES; lane++) {
                uint32_t magnitude = f32_bits(x[lane]) & 0x7FFFFFFF;
                largest[lane] = magnitude > largest[lane] ? magnitude : largest[lane];
            }
        for (uint32_t lane = 0; lane < LANES; lane++)
            all = largest[lane] > all ? largest[lane] : all;
        maxima[b] = f32_from_bits(all);
    }
}

GB_VECTOR_CLONES static void block_quotients(const float *x, uint32_t blocks, uint32_t columns,
                                             const struct gb_block_steps *steps, float *quotient)
{
    for (uint32_t b = 0; b < blocks; b++, x += columns, quotient += columns) {
        const float operand = steps->operand[b];
        if (steps->divides[b])
#pragma omp simd
            for (uint32_t i = 0; i < columns; i++)
                quotient[i] = x[i] / operand;
        else
#pragma omp simd
            for (uint32_t i = 0; i < columns; i++)
                quotient[i] = x[i] * operand;
    }
}

GB_VECTOR_CLONES static void pack_pairs(const uint8_t *codes, uint32_t count, uint8_t *pairs)
{
#pragma omp simd
    for (uint32_t i = 0; i < count / 2; i++)
        pairs[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
}

bool gb_blocks_are_common(const struct gb_quantiser *q, uint32_t columns)
{
    return rules_are_common(q) && q->four_over_six == GB_SIX && q->block_rows == 1 && columns % LANES == 0 &&
           columns <= GB_BLOCKS_AT_ONCE;
}

#ifdef GB_WIDE_VECTORS
/* E2M1 codes of LANES quotients that are numbers. Their values are 1/2 apart up to 2, 1 up to 4 and 2 up to 6, so a
 * code is the least of 2 m, m + 2 and m / 2 + 4, each rounded once to a whole number, ties to even: the low bits of a
 * float from 2^23 on. */
GB_WIDE_VECTORS static inline __m512i e2m1_codes_wide(__m512 quotient)
{
    /* The smaller magnitude, without a sign; the third's bits where the second's are 1, elsewhere the first's. */
    enum { LEAST_MAGNITUDE = 0xA, SECOND_CHOOSES = 0xB8 };
    const __m512 m = _mm512_range_ps(quotient, _mm512_set1_ps(6.0f), LEAST_MAGNITUDE);
    const __m512 halves = _mm512_fmadd_ps(m, _mm512_set1_ps(2.0f), _mm512_set1_ps(0x1p23f));
    const __m512 ones = _mm512_add_ps(m, _mm512_set1_ps(0x1p23f + 2.0f));
    const __m512 twos = _mm512_fmadd_ps(m, _mm512_set1_ps(0.5f), _mm512_set1_ps(0x1p23f + 4.0f));
    const __m512 least = _mm512_min_ps(_mm512_min_ps(halves, ones), twos);
    const __m512i sign = _mm512_srli_epi32(_mm512_castps_si512(quotient), 28);
    return _mm512_ternarylogic_epi32(sign, _mm512_set1_epi32(7), _mm512_castps_si512(least), SECOND_CHOOSES);
}

/* gb_block_codes of E2M1 in one pass. -0 loses its sign where 0 is added, and only there. */
GB_WIDE_VECTORS static void block_pairs_wide(const struct gb_quantiser *q, const float *x, uint32_t blocks,
                                             uint32_t columns, const struct gb_block_steps *steps, uint8_t *pairs)
{
    const __m512 zero = _mm512_set1_ps(q->zero_sign == GB_ZERO_KEEPS_SIGN ? -0.0f : 0.0f);
    for (uint32_t b = 0; b < blocks; b++) {
        const __m512 operand = _mm512_set1_ps(steps->operand[b]);
        for (uint32_t i = 0; i < columns; i += LANES, x += LANES, pairs += LANES / 2) {
            const __m512 values = _mm512_loadu_ps(x);
            const __m512 quotient = steps->divides[b] ? _mm512_div_ps(values, operand) : _mm512_mul_ps(values, operand);
            const __m512i codes = e2m1_codes_wide(_mm512_add_ps(quotient, zero));
            const __m512i of_64_bits = _mm512_or_si512(codes, _mm512_srli_epi64(codes, 28));
            _mm_storel_epi64((__m128i *)pairs, _mm512_cvtepi64_epi8(of_64_bits));
        }
    }
}
#endif

/* gb_block_codes in passes, each over all blocks. */
static void block_codes_by_passes(const struct gb_quantiser *q, const float *x, uint32_t blocks, uint32_t columns,
                                  const struct gb_block_steps *steps, uint8_t *codes)
{
    float quotient[GB_BLOCKS_AT_ONCE] = {0}; /* gcc does not see that blocks are not empty */
    uint8_t run[GB_BLOCKS_AT_ONCE];
    const bool pairs = q->element == GB_E2M1;
    block_quotients(x, blocks, columns, steps, quotient);
    codes_of_quotients(q, quotient, blocks * columns, pairs ? run : codes);
    if (pairs)
        pack_pairs(run, blocks * columns, codes);
}

void gb_block_codes(const struct gb_quantiser *q, const float *x, uint32_t blocks, uint32_t columns,
                    const struct gb_block_steps *steps, uint8_t *codes)
{
#ifdef GB_WIDE_VECTORS
    if (q->element == GB_E2M1 && gb_has_wide_vectors()) {
        block_pairs_wide(q, x, blocks, columns, steps, codes);
        return;
    }
#endif
    block_codes_by_passes(q, x, blocks, columns, steps, codes);
}
