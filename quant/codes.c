/* SPDX-License-Identifier: Apache-2.0 */
/* A quotient as a code: clamp, rounding, the sign of zero and what becomes of NaN. */
#include <math.h>

#include "quant/codes.h"

/* Sign and magnitude: what a code of the type consists of. INT8 is negated afterwards instead. */
struct element {
    uint8_t sign; /* 0: negated as two's complement */
    uint8_t nan;
    bool minus_zero;                    /* whether there is a code for it */
    uint8_t (*encode)(float magnitude); /* nearest, ties to even */
    float (*decode)(uint8_t code);
};

static uint8_t e2m1_encode(float value)
{
    return gb_e2m1_encode(value).bits;
}

static float e2m1_decode(uint8_t code)
{
    return gb_e2m1_decode((gb_e2m1){code});
}

static uint8_t e4m3_encode(float value)
{
    return gb_e4m3_encode(value).bits;
}

static float e4m3_decode(uint8_t code)
{
    return gb_e4m3_decode((gb_e4m3){code});
}

static uint8_t e4m3fnuz_encode(float value)
{
    return gb_e4m3fnuz_encode(value).bits;
}

static float e4m3fnuz_decode(uint8_t code)
{
    return gb_e4m3fnuz_decode((gb_e4m3fnuz){code});
}

static uint8_t e3m2_encode(float value)
{
    return gb_e3m2_encode(value).bits;
}

static float e3m2_decode(uint8_t code)
{
    return gb_e3m2_decode((gb_e3m2){code});
}

static uint8_t e2m3_encode(float value)
{
    return gb_e2m3_encode(value).bits;
}

static float e2m3_decode(uint8_t code)
{
    return gb_e2m3_decode((gb_e2m3){code});
}

static uint8_t e5m2_encode(float value)
{
    return gb_e5m2_encode(value).bits;
}

static float e5m2_decode(uint8_t code)
{
    return gb_e5m2_decode((gb_e5m2){code});
}

static uint8_t int8_encode(float value)
{
    return (uint8_t)(int8_t)nearbyintf(value);
}

static float int8_decode(uint8_t code)
{
    return (float)(int8_t)code;
}

static const struct element elements[] = {
    [GB_E2M1] = {0x08, 0x07, true, e2m1_encode, e2m1_decode},
    [GB_E4M3] = {0x80, 0x7F, true, e4m3_encode, e4m3_decode},
    [GB_E4M3FNUZ] = {0x80, 0x80, false, e4m3fnuz_encode, e4m3fnuz_decode},
    [GB_E5M2] = {0x80, 0x7F, true, e5m2_encode, e5m2_decode},
    [GB_E3M2] = {0x20, 0x1F, true, e3m2_encode, e3m2_decode},
    [GB_E2M3] = {0x20, 0x1F, true, e2m3_encode, e2m3_decode},
    [GB_INT8] = {0x00, 0x00, false, int8_encode, int8_decode},
};

float gb_code_value(enum gb_element_format element, uint8_t code)
{
    return elements[element].decode(code);
}

/* The code of a magnitude in 0 .. M: the nearest, moved down where `rounding` says so. */
static uint8_t round_magnitude(const struct element *e, enum gb_rounding rounding, float magnitude)
{
    uint8_t code = e->encode(magnitude);
    if (code == 0 || rounding == GB_TIES_TO_EVEN)
        return code;
    float here = e->decode(code), below = e->decode((uint8_t)(code - 1));
    bool tie =
        magnitude - below == here - magnitude; /* both exact: neighbours are less than a factor of 2 apart, or 0 */
    if (rounding == GB_TRUNCATE ? here > magnitude : tie && here > magnitude)
        code--;
    return code;
}

static uint8_t code_of_nan(const struct gb_quantiser *q, const struct element *e, bool negative)
{
    uint8_t largest = e->encode(q->largest);
    switch (q->element_nan) {
    case GB_NAN_IS_NAN:
        break;
    case GB_NAN_KEEPS_SIGN:
        return e->nan | (negative ? e->sign : 0);
    case GB_NAN_IS_LARGEST:
        return largest;
    case GB_NAN_IS_LOWEST:
        return q->element == GB_INT8 ? 0x80 : largest | e->sign;
    case GB_NAN_IS_ZERO:
        return 0;
    }
    return e->nan;
}

static bool zero_is_negative(enum gb_zero_sign rule, float quotient)
{
    switch (rule) {
    case GB_ZERO_KEEPS_SIGN:
        return signbit(quotient);
    case GB_ZERO_SIGN_OF_VALUE:
        return quotient < 0.0f;
    case GB_ZERO_IS_POSITIVE:
        break;
    case GB_ZERO_NEGATIVE_UNLESS_ABOVE:
        return !(quotient > 0.0f);
    }
    return false;
}

uint8_t gb_code_of(const struct gb_quantiser *q, float quotient, float x)
{
    const struct element *e = &elements[q->element];
    if (isnan(quotient))
        return code_of_nan(q, e, signbit(x));
    float magnitude = fabsf(quotient);
    uint8_t code = round_magnitude(e, q->rounding, magnitude < q->largest ? magnitude : q->largest);
    bool negative = code ? quotient < 0.0f : e->minus_zero && zero_is_negative(q->zero_sign, quotient);
    if (negative)
        return e->sign ? code | e->sign : (uint8_t)-code;
    return code;
}
