/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding by a row of policies; docs/numerics.md#conversions. */
#include "quant/bits.h"
#include "quant/quant.h"

struct codec {
    const char *name;
    unsigned bits;
    unsigned mantissa;
    int bias;
    uint16_t sign;     /* mask; 0: unsigned */
    uint16_t infinity; /* magnitude; 0: the format has none */
    uint16_t nan;      /* what overflow to NaN gives, under the sign; 0: the format has none */
    bool signed_nan;
};

static const struct codec codecs[] = {
    [GB_CODEC_E2M1] = {"e2m1", 4, 1, 1, 0x8, 0, 0, false},
    [GB_CODEC_E3M2] = {"e3m2", 6, 2, 3, 0x20, 0, 0, false},
    [GB_CODEC_E2M3] = {"e2m3", 6, 3, 1, 0x20, 0, 0, false},
    [GB_CODEC_E4M3] = {"e4m3", 8, 3, 7, 0x80, 0, 0x7F, true},
    [GB_CODEC_E4M3FNUZ] = {"e4m3fnuz", 8, 3, 8, 0x80, 0, 0x80, false},
    [GB_CODEC_E5M2] = {"e5m2", 8, 2, 15, 0x80, 0x7C, 0x7F, true},
    [GB_CODEC_E8M0] = {"e8m0", 8, 0, 127, 0, 0, 0xFF, false},
    [GB_CODEC_BF16] = {"bf16", 16, 7, 127, 0x8000, 0x7F80, 0x7FC0, true},
    [GB_CODEC_FP16] = {"fp16", 16, 10, 15, 0x8000, 0x7C00, 0x7E00, true},
};

static bool known(enum gb_codec codec)
{
    return codec >= GB_CODEC_E2M1 && codec <= GB_CODEC_FP16;
}

const char *gb_codec_name(enum gb_codec codec)
{
    return known(codec) ? codecs[codec].name : NULL;
}

unsigned gb_codec_bits(enum gb_codec codec)
{
    return known(codec) ? codecs[codec].bits : 0;
}

float gb_codec_decode(enum gb_codec codec, uint16_t code)
{
    switch (codec) {
    case GB_CODEC_E2M1:
        return gb_e2m1_decode((gb_e2m1){(uint8_t)code});
    case GB_CODEC_E3M2:
        return gb_e3m2_decode((gb_e3m2){(uint8_t)code});
    case GB_CODEC_E2M3:
        return gb_e2m3_decode((gb_e2m3){(uint8_t)code});
    case GB_CODEC_E4M3:
        return gb_e4m3_decode((gb_e4m3){(uint8_t)code});
    case GB_CODEC_E4M3FNUZ:
        return gb_e4m3fnuz_decode((gb_e4m3fnuz){(uint8_t)code});
    case GB_CODEC_E5M2:
        return gb_e5m2_decode((gb_e5m2){(uint8_t)code});
    case GB_CODEC_E8M0:
        return gb_e8m0_decode((gb_e8m0){(uint8_t)code});
    case GB_CODEC_BF16:
        return gb_bf16_decode((gb_bf16){code});
    case GB_CODEC_FP16:
        return gb_fp16_decode(code);
    }
    return f32_from_bits(0x7FC00000);
}

/* value / 2^drop, rounded; value < 2^24, drop >= 1. */
static uint32_t round_off(uint32_t value, unsigned drop, enum gb_conversion_rounding rounding)
{
    if (drop > 31) /* the same, as value < 2^24: far below half */
        drop = 31;
    uint32_t kept = value >> drop, rest = value & ((1u << drop) - 1), half = 1u << (drop - 1);
    switch (rounding) {
    case GB_CONVERT_TIES_TO_EVEN:
        return kept + (rest > half || (rest == half && (kept & 1)));
    case GB_CONVERT_TIES_TO_ZERO:
        return kept + (rest > half);
    case GB_CONVERT_TOWARD_ZERO:
        return kept;
    case GB_CONVERT_AWAY_FROM_ZERO:
        return kept + (rest != 0);
    }
    return kept;
}

/* The code of a finite magnitude (binary32 encoding) as if the exponent had no end. */
static uint32_t round_magnitude(const struct codec *codec, uint32_t magnitude, enum gb_conversion_rounding rounding)
{
    uint32_t field = magnitude >> 23, significand = magnitude & 0x7FFFFF;
    if (field)
        significand |= 1u << 23;
    else
        field = 1;                                 /* subnormals share the exponent of the first normal ones */
    int exponent = (int)field - 127 + codec->bias; /* the code's exponent field; below 1: a subnormal code */
    unsigned drop = 23 - codec->mantissa;
    if (exponent < 1) {
        drop += (unsigned)(1 - exponent);
        exponent = 1;
    }
    return round_off(significand, drop, rounding) + ((uint32_t)(exponent - 1) << codec->mantissa);
}

static uint16_t beyond(const struct codec *codec, const struct gb_conversion *conversion, enum gb_overflow overflow,
                       uint16_t sign)
{
    if (overflow == GB_TO_LARGEST)
        return conversion->largest | sign;
    if (overflow == GB_TO_INFINITY)
        return codec->infinity | sign;
    return codec->nan | (codec->signed_nan ? sign : 0);
}

static uint16_t zero(enum gb_conversion_zero rule, bool exact, uint16_t sign, uint16_t minus)
{
    switch (rule) {
    case GB_CONVERT_ZERO_SIGNED:
        return sign;
    case GB_CONVERT_ZERO_SIGNED_UNDERFLOW:
        return exact ? 0 : sign;
    case GB_CONVERT_ZERO_NEGATIVE:
        return exact ? minus : sign;
    case GB_CONVERT_ZERO_UNSIGNED:
    case GB_CONVERT_ZERO_NAN:
        break;
    }
    return 0;
}

uint16_t gb_convert(const struct gb_conversion *conversion, float value)
{
    const struct codec *codec = &codecs[conversion->codec];
    uint32_t bits = f32_bits(value), magnitude = bits & 0x7FFFFFFF;
    bool negative = bits >> 31;
    uint16_t sign = negative ? codec->sign : 0;
    if (magnitude > 0x7F800000) { /* NaN */
        bool set = conversion->nan_sign != GB_NAN_POSITIVE && negative == (conversion->nan_sign == GB_NAN_SIGNED);
        return conversion->nan | (set ? codec->sign : 0);
    }
    if (conversion->zero == GB_CONVERT_ZERO_NAN && (negative || magnitude == 0))
        return conversion->nan;
    if (magnitude == 0x7F800000)
        return beyond(codec, conversion, conversion->infinity, sign);
    if (conversion->codec == GB_CODEC_E8M0 && magnitude <= 0x00400000) /* code 0 is 2^-127, not 0 */
        return 0;
    uint32_t code = round_magnitude(codec, magnitude, conversion->rounding);
    if (code > conversion->largest)
        return beyond(codec, conversion, conversion->overflow, sign);
    return code ? (uint16_t)code | sign : zero(conversion->zero, magnitude == 0, sign, codec->sign);
}

void gb_convert_array(const struct gb_conversion *conversion, const float *values, size_t count, uint16_t *codes)
{
    for (size_t i = 0; i < count; i++)
        codes[i] = gb_convert(conversion, values[i]);
}
