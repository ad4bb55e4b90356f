/* SPDX-License-Identifier: Apache-2.0 */
/* Values that the quantising operators are tested on, the same for the same seed. */
#ifndef GB_TESTS_GPU_QUANTISE_DATA_CUH
#define GB_TESTS_GPU_QUANTISE_DATA_CUH

#include <cmath>
#include <vector>

#include "quant/quant.h"

/* EDGE: any 16 bits, NaN, Inf and subnormals among them, and blocks of zeros. */
enum data_kind { GAUSSIAN, TIES, EDGE, KINDS };
static const char *const kind_names[KINDS] = {"gaussian", "ties", "edge"};

inline uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15; /* splitmix64 */
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

inline uint16_t encoded(enum gb_format input, float value)
{
    return input == GB_FP16 ? gb_fp16_encode(value) : gb_bf16_encode(value).bits;
}

inline float gaussian(uint64_t *state)
{
    double sum = -6;
    for (int i = 0; i < 3; i++) {
        const uint64_t bits = random_bits(state);
        for (int k = 0; k < 64; k += 16)
            sum += (double)(bits >> k & 0xFFFF) / 65536;
    }
    return (float)sum;
}

/* An odd number of halves, eighths, ... below `largest`, which a block with a scale that is a power of two has on a
 * tie. */
inline float on_a_tie(float largest, uint64_t *state)
{
    const uint64_t bits = random_bits(state);
    const float value = ldexpf((float)(2 * (bits & 31) + 1), (int)(bits >> 8 & 15) - 9);
    const float sized = value < largest ? value : largest;
    return bits >> 20 & 1 ? -sized : sized;
}

/* [rows, input_columns] of q.input. The gates of TIES are values that silu leaves as they are. */
inline void fill(std::vector<uint16_t> &values, const struct gb_quantisation &q, enum data_kind kind, uint64_t seed)
{
    const uint32_t block = q.quantiser.block_columns, gated = q.input_columns != q.columns;
    values.resize((size_t)q.rows * q.input_columns);
#pragma omp parallel for
    for (uint32_t row = 0; row < q.rows; row++) {
        uint64_t state = seed * 1000003 + row;
        uint16_t *out = values.data() + (size_t)row * q.input_columns;
        for (uint32_t i = 0; i < q.input_columns; i++) {
            const uint32_t in_block = i % q.columns % block, gate = gated && i < q.columns;
            const uint64_t bits = random_bits(&state);
            if (kind == GAUSSIAN)
                out[i] = encoded(q.input, gaussian(&state) * (gate ? 2.0f : 1.0f));
            else if (kind == TIES)
                out[i] = encoded(q.input, gate             ? 32.0f
                                          : in_block == 3u ? q.quantiser.largest / (gated ? 32.0f : 1.0f)
                                          : gated          ? on_a_tie(q.quantiser.largest, &state) / 32.0f
                                                           : on_a_tie(q.quantiser.largest, &state));
            else if (bits >> 60 == 0 && in_block == 0) /* a whole block of zeros, of either sign */
                for (uint32_t k = 0; k < block && i < q.input_columns; k++, i += k < block)
                    out[i] = (uint16_t)(bits >> k % 32 << 15);
            else if (bits >> 56 & 1) /* moderate, so that not every block has a NaN or Inf */
                out[i] = encoded(q.input, ldexpf(gaussian(&state), (int)(bits % 25) - 18));
            else
                out[i] = bits % 64 ? encoded(q.input, gaussian(&state))
                                   : (uint16_t)(bits >> 16 | (bits >> 32 & 3       ? 0u
                                                              : q.input == GB_FP16 ? 0x7C00u
                                                                                   : 0x7F80u));
        }
    }
}

#endif
