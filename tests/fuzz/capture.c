/* SPDX-License-Identifier: Apache-2.0 */
/* gb_capture_open, and the activations and residual streams of a few layers. */
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"

static void take(const struct gb_capture *capture, const struct gb_shape *shape, uint32_t layer)
{
    struct gb_error error;
    bool present;
    size_t count = (size_t)shape->tokens * shape->hidden;
    gb_bf16 *x = malloc(count * sizeof *x);
    double *residual = malloc(count * sizeof *residual), *delta = malloc(count * sizeof *delta);
    enum gb_status status = gb_capture_inputs(capture, layer, shape, x, &error);
    fuzz_check(status, &error);
    if (status == GB_OK)
        fuzz_touch(x, count * sizeof *x);
    status = gb_capture_residual(capture, layer, shape, residual, delta, &present, &error);
    fuzz_check(status, &error);
    if (status == GB_OK && present)
        fuzz_touch(delta, count * sizeof *delta);
    status = gb_capture_between(capture, layer / 2, layer, shape, delta, &present, &error);
    fuzz_check(status, &error);
    if (status == GB_OK && present)
        fuzz_touch(delta, count * sizeof *delta);
    status = gb_capture_output(capture, layer, shape, residual, &present, &error);
    fuzz_check(status, &error);
    if (status == GB_OK && present)
        fuzz_touch(residual, count * sizeof *residual);
    int32_t *ids = malloc((size_t)shape->tokens * shape->top_k * sizeof *ids);
    status = gb_capture_ids(capture, layer, shape, ids, &present, &error);
    fuzz_check(status, &error);
    if (status == GB_OK && present)
        fuzz_touch(ids, (size_t)shape->tokens * shape->top_k * sizeof *ids);
    free(ids);
    free(x);
    free(residual);
    free(delta);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct gb_capture *capture;
    struct gb_error error;
    enum gb_status status = gb_capture_open(fuzz_file(0, bytes, count), &capture, &error);
    fuzz_check(status, &error);
    fuzz_nothing(status == GB_OK ? NULL : capture);
    if (status != GB_OK)
        return 0;
    struct gb_shape shape = {.tokens = gb_capture_tokens(capture), .hidden = 4, .experts = 8, .top_k = 2};
    for (uint32_t layer = 0; layer < 3; layer++)
        take(capture, &shape, layer);
    shape.tokens = 1;
    take(capture, &shape, 0);
    gb_capture_close(capture);
    return 0;
}
