/* SPDX-License-Identifier: Apache-2.0 */
/* gb_vectors_read: the text of inputs. */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct gb_vectors *vectors;
    struct gb_error error;
    enum gb_status status = gb_vectors_read(fuzz_file(0, bytes, count), &vectors, &error);
    fuzz_check(status, &error);
    fuzz_nothing(status == GB_OK ? NULL : vectors);
    if (status != GB_OK)
        return 0;
    const uint32_t sizes[] = {vectors->cases, vectors->rows, vectors->columns};
    fuzz_touch(sizes, sizeof sizes);
    fuzz_touch(vectors->amax, vectors->cases * sizeof *vectors->amax);
    fuzz_touch(vectors->values, (size_t)vectors->cases * vectors->rows * vectors->columns * sizeof *vectors->values);
    gb_vectors_free(vectors);
    return 0;
}
