/* SPDX-License-Identifier: Apache-2.0 */
/* gb_safetensors_open: whatever is handed out lies in the file. */
#include <math.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct gb_safetensors *file;
    struct gb_error error;
    enum gb_status status = gb_safetensors_open(fuzz_file(0, bytes, count), &file, &error);
    fuzz_check(status, &error);
    fuzz_nothing(status == GB_OK ? NULL : file);
    if (status != GB_OK)
        return 0;
    for (size_t i = 0; i < gb_safetensors_count(file); i++) {
        const struct gb_tensor *tensor = gb_safetensors_at(file, i);
        if (gb_safetensors_find(file, tensor->name) != tensor)
            __builtin_trap();
        fuzz_touch(tensor->name, strlen(tensor->name));
        fuzz_touch(&tensor->dtype, sizeof tensor->dtype);
        fuzz_touch(tensor->shape, tensor->rank * sizeof *tensor->shape);
        for (uint64_t e = 0; e < tensor->count; e++) {
            const double value = gb_tensor_get(tensor, e);
            fuzz_touch(&value, isnan(value) ? 0 : sizeof value);
        }
    }
    gb_safetensors_close(file);
    return 0;
}
