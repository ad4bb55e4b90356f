/* SPDX-License-Identifier: Apache-2.0 */
/* gb_outputs_read of .npy: the input follows the magic and the version, so that every execution parses a header. */
#include <string.h>

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static struct gb_fixture *fixture;
    static const uint8_t magic[] = "\x93NUMPY";
    enum { MAGIC = sizeof magic - 1, LARGEST = 1 << 16 };
    uint8_t file[LARGEST];
    struct gb_outputs *outputs;
    struct gb_error error;
    if (count > LARGEST - MAGIC)
        return 0;
    if (!fixture)
        fixture = fuzz_fixture();
    memcpy(file, magic, MAGIC);
    memcpy(file + MAGIC, bytes, count);
    enum gb_status status = gb_outputs_read(fuzz_file(0, file, MAGIC + count), fixture, &outputs, &error);
    fuzz_check(status, &error);
    fuzz_nothing(status == GB_OK ? NULL : outputs);
    if (status != GB_OK)
        return 0;
    fuzz_touch(outputs->layer[0].output,
               (size_t)outputs->shape.tokens * outputs->shape.hidden * (outputs->layer[0].format == GB_BF16 ? 2 : 4));
    gb_outputs_free(outputs);
    return 0;
}
