/* SPDX-License-Identifier: Apache-2.0 */
/* gb_safetensors_open: whatever is handed out lies in the file. */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct gb_safetensors *file;
    struct gb_error error;
    enum gb_status status = gb_safetensors_open(fuzz_file(0, bytes, count), &file, &error);
    fuzz_check(status, &error);
    if (status != GB_OK)
        return 0;
    for (size_t i = 0; i < gb_safetensors_count(file); i++) {
        const struct gb_tensor *tensor = gb_safetensors_at(file, i);
        if (gb_safetensors_find(file, tensor->name) != tensor)
            __builtin_trap();
        for (uint64_t e = 0; e < tensor->count; e++)
            (void)gb_tensor_get(tensor, e);
    }
    gb_safetensors_close(file);
    return 0;
}
