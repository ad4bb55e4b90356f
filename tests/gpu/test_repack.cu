/* SPDX-License-Identifier: Apache-2.0 */
/* Words of codes and scales as mma16's repacked layout has them: every code comes back in bf16's fields, and every
 * scale as itself times a power of two. Needs no GPU. */
#include <cmath>
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

double bf16(uint32_t bits)
{
    return std::ldexp(128 + (bits & 127), (int)(bits >> 7) - 134);
}

/* How many scales come back wrong, or are kept where bf16 has no such number. value(code): a scale, negative if it is
 * none that is kept. */
template <class Kept, class Value> uint32_t wrong_scales(int power, const Value &value)
{
    uint32_t wrong = 0;
    for (uint32_t code = 0; code < 256; code++) {
        uint8_t byte;
        const double scale = value(code), found = std::ldexp(scale, power);
        const bool kept = Kept::keep((uint8_t)code, byte), is = scale >= 0.0 && found < 0x1p128;
        wrong += kept != is;
        if (kept && is && !(Kept::clears && scale == 0.0)) /* of a zero there are zeros only */
            wrong += bf16((byte << Kept::bits) + Kept::zero) != found;
    }
    return wrong;
}

double e4m3(uint32_t code)
{
    return code >= 0x7F ? -1.0 : code < 8 ? std::ldexp(code, -9) : std::ldexp(8 + code % 8, (int)(code / 8) - 10);
}

double e8m0(uint32_t code)
{
    return code == 255 ? -1.0 : std::ldexp(1.0, (int)code - 127);
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
    const uint32_t scales = wrong_scales<gb_mma16_kept_scale<GB_NVFP4>>(118, e4m3) +
                            wrong_scales<gb_mma16_kept_scale<GB_MXFP4>>(126, e8m0) +
                            wrong_scales<gb_mma16_kept_scale<GB_MXFP8>>(120, e8m0);
    printf("%u words, %u codes wrong, %u scales wrong\n", words, wrong, scales);
    return wrong + scales != 0;
}
