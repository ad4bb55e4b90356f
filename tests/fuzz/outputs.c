/* SPDX-License-Identifier: Apache-2.0 */
/* gb_outputs_read of any type of file: npy, safetensors, HDF5. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

/* Where good outputs are refused, no input would be read far. */
static struct gb_fixture *read_good(void)
{
    struct gb_fixture *fixture = fuzz_fixture();
    struct gb_outputs *outputs, *again;
    struct gb_error error;
    char path[256];
    snprintf(path, sizeof path, "%s/outputs.h5", fuzz_folder());
    if (gb_outputs_new(&fixture->shape, 1, GB_FP32, true, true, &outputs, &error) != GB_OK ||
        gb_outputs_write(path, outputs, &error) != GB_OK || gb_outputs_read(path, fixture, &again, &error) != GB_OK)
        abort();
    gb_outputs_free(outputs);
    gb_outputs_free(again);
    return fixture;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static struct gb_fixture *fixture;
    struct gb_outputs *outputs;
    struct gb_error error;
    gb_hdf5_no_atexit();
    if (!fixture)
        fixture = read_good();
    enum gb_status status = gb_outputs_read(fuzz_file(0, bytes, count), fixture, &outputs, &error);
    fuzz_check(status, &error);
    fuzz_nothing(status == GB_OK ? NULL : outputs);
    if (status != GB_OK)
        return 0;
    const struct gb_shape *s = &outputs->shape;
    size_t values = (size_t)s->tokens * s->hidden;
    fuzz_touch(s, sizeof *s);
    for (uint32_t l = 0; l < outputs->layers; l++) {
        const struct gb_layer_outputs *layer = &outputs->layer[l];
        fuzz_touch(layer->output, values * (layer->format == GB_BF16 ? sizeof(gb_bf16) : sizeof(float)));
        if (layer->intermediate)
            fuzz_touch(layer->intermediate, (size_t)s->tokens * s->top_k * s->intermediate * sizeof(gb_bf16));
    }
    if (outputs->stack)
        fuzz_touch(outputs->stack, outputs->layers * values * sizeof(double));
    gb_outputs_free(outputs);
    return 0;
}
