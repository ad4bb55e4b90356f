/* SPDX-License-Identifier: Apache-2.0 */
/* Every encoder on all 2^32 floats against the oracle's codebooks. */
#include "tests/support/exhaustive.h"

#include "quant/quant.h"
#include "tests/oracle/oracle.h"

static void check(uint32_t bits, struct tally *tally)
{
    float value = bits_float(bits);
    const struct {
        const char *what;
        unsigned expected, actual;
    } codes[] = {
        {"e2m1", oracle_encode(ORACLE_E2M1, value), gb_e2m1_encode(value).bits},
        {"e4m3", oracle_encode(ORACLE_E4M3, value), gb_e4m3_encode(value).bits},
        {"e5m2", oracle_encode(ORACLE_E5M2, value), gb_e5m2_encode(value).bits},
        {"e4m3fnuz", oracle_encode(ORACLE_E4M3FNUZ, value), gb_e4m3fnuz_encode(value).bits},
        {"e3m2", oracle_encode(ORACLE_E3M2, value), gb_e3m2_encode(value).bits},
        {"e2m3", oracle_encode(ORACLE_E2M3, value), gb_e2m3_encode(value).bits},
        {"bf16", oracle_encode(ORACLE_BF16, value), gb_bf16_encode(value).bits},
        {"fp16", oracle_encode(ORACLE_FP16, value), gb_fp16_encode(value)},
        {"e8m0", oracle_e8m0_encode(value), gb_e8m0_encode(value).bits},
    };

    tally->floats++;
    for (unsigned i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].expected != codes[i].actual)
            differ(tally, codes[i].what, bits, codes[i].expected, codes[i].actual);
}

int main(void)
{
    return exhaustive("exhaustive_codecs", "encoding to nine formats of elements and scales against the oracle", check);
}
