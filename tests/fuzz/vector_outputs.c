/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gb_vector_outputs_read of any type of file: the first byte says which vectors it is for, and whether the rest is also
 * the .npy file of the scales.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

/* 2 cases of 2 x 32 values (2 x 48 with blocks of two rows), as text. */
static struct gb_vectors *small_vectors(int which)
{
    static const char *const formats[] = {"e2m1-1x16-e4m3", "e4m3-2x32-fp32"};
    static const unsigned columns[] = {32, 48};
    struct gb_vectors *vectors;
    struct gb_error error;
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    fprintf(to, "gaugeblock-vectors 1 inputs\nformat %s\ngenerator fuzz\nshape 2 2 %u\n", formats[which],
            columns[which]);
    for (int c = 0; c < 2; c++) {
        fprintf(to, "case %d amax 3F800000\n", c);
        for (unsigned i = 0; i < 2 * columns[which]; i++)
            fprintf(to, "3F80%s", (i + 1) % columns[which] ? "" : "\n");
    }
    fprintf(to, "end\n");
    if (fclose(to) || gb_vectors_read(fuzz_file(0, (const uint8_t *)text, size), &vectors, &error) != GB_OK)
        abort();
    free(text);
    return vectors;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static struct gb_vectors *vectors[2];
    struct gb_vector_outputs *outputs;
    struct gb_error error;
    gb_hdf5_no_atexit();
    for (int i = 0; i < 2; i++)
        if (!vectors[i])
            vectors[i] = small_vectors(i);
    if (!count)
        return 0;
    const struct gb_vectors *v = vectors[bytes[0] & 1];
    const char *path = fuzz_file(0, bytes + 1, count - 1);
    const char *scales = bytes[0] & 2 ? fuzz_file(1, bytes + 1, count - 1) : NULL;
    enum gb_status status = gb_vector_outputs_read(path, scales, v, &outputs, &error);
    fuzz_check(status, &error);
    fuzz_nothing(status == GB_OK ? NULL : outputs);
    if (status != GB_OK)
        return 0;
    fuzz_touch(outputs->codes, gb_vectors_code_bytes(v));
    fuzz_touch(outputs->scales, gb_vectors_all_scale_bytes(v));
    if (outputs->globals)
        fuzz_touch(outputs->globals, v->cases * sizeof(float));
    fuzz_touch(outputs->name, strlen(outputs->name));
    gb_vector_outputs_free(outputs);
    return 0;
}
