/* SPDX-License-Identifier: Apache-2.0 */
/* gb_convert NAME: binary32 on standard input, codes of 16 bits on standard output. */
#include <stdio.h>

#include "quant/quant.h"

int main(int argc, char **argv)
{
    float values[4096];
    uint16_t codes[4096];
    const struct gb_conversion *conversion = argc == 2 ? gb_conversion_find(argv[1]) : NULL;
    if (!conversion) {
        fprintf(stderr, "gb_convert: no conversion named %s\n", argc > 1 ? argv[1] : "");
        return 2;
    }
    for (size_t count; (count = fread(values, sizeof *values, 4096, stdin));) {
        gb_convert_array(conversion, values, count, codes);
        if (fwrite(codes, sizeof *codes, count, stdout) != count)
            return 1;
    }
    return ferror(stdin) || fflush(stdout);
}
