/* SPDX-License-Identifier: Apache-2.0 */
/* Words of codes as mma16's repacked layout has them: every code comes back in bf16's fields. Needs no GPU. */
#include <cstdio>

#include "gpu/mma16.cuh"

namespace
{

/* s ee m or s eeee mmm at the bits of bf16's sign, exponent and mantissa. */
uint32_t field(uint32_t code, uint32_t bits)
{
    const uint32_t sign = 1u << (bits - 1);
    return (code & sign ? 0x8000u : 0) | (code & (sign - 1)) << (bits == 4 ? 6 : 4);
}

/* How many codes of a word come back wrong. */
uint32_t wrong_codes(uint32_t codes)
{
    uint32_t fours[4], bytes[2], wrong = 0;
    gb_mma16_repacked_word(gb_mma16_repack_word(codes), fours);
    gb_mma16_repacked_bytes_word(gb_mma16_repack_bytes_word(codes), bytes[0], bytes[1]);
    for (uint32_t i = 0; i < 8; i++)
        wrong += (fours[i / 2] >> 16 * (i % 2) & 0xFFFF) != field(codes >> 4 * i & 0xF, 4);
    for (uint32_t i = 0; i < 4; i++)
        wrong += (bytes[i / 2] >> 16 * (i % 2) & 0xFFFF) != field(codes >> 8 * i & 0xFF, 8);
    return wrong;
}

} // namespace

int main()
{
    uint32_t wrong = 0, words = 0;
    for (uint32_t low = 0; low < 0x10000; low++) /* all pairs of halves of which one is that of any of a few words */
        for (uint32_t half : {0x0000u, 0xFFFFu, 0x1234u, 0x89ABu, 0x5A5Au}) {
            wrong += wrong_codes(low << 16 | half) + wrong_codes(half << 16 | low);
            words += 2;
        }
    printf("%u words, %u codes wrong\n", words, wrong);
    return wrong != 0;
}
