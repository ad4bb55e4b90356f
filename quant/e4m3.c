/* SPDX-License-Identifier: Apache-2.0 */
/* E4M3. */
#include "quant/elements.h"
#include "quant/quant.h"

enum { NAN_CODE = 0x7F };

float gb_e4m3_decode(gb_e4m3 code)
{
    return e4m3_value(code.bits);
}

gb_e4m3 gb_e4m3_encode(float value)
{
    return (gb_e4m3){(uint8_t)(value != value ? NAN_CODE : e4m3_code(value))};
}
