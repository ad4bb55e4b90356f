/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint of codes in one file: config.json, a NUL, hf_quant_config.json (left out if empty), a NUL,
 * model.safetensors. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

/* Of sizes beyond these nothing is taken: memory for them is the caller's affair. */
enum { LARGEST = 64, MOST_EXPERTS = 4 };

/* The bytes up to the next NUL, which are taken off the rest. */
static size_t part(const uint8_t **rest, size_t *count)
{
    const uint8_t *end = *count ? memchr(*rest, 0, *count) : NULL;
    size_t size = end ? (size_t)(end - *rest) : *count, used = size + (end != NULL);
    *rest += used;
    *count -= used;
    return size;
}

static void name_file(const char *name, const char *file)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    if (file ? symlink(file, path) && errno != EEXIST : unlink(path) && errno != ENOENT)
        abort();
}

static void take_values(const struct gb_checkpoint *checkpoint)
{
    float values[LARGEST * LARGEST];
    struct gb_error error;
    for (int p = GB_GATE_PROJ; p <= GB_DOWN_PROJ; p++)
        fuzz_check(gb_checkpoint_expert(checkpoint, 0, 0, (enum gb_projection)p, values, &error), &error);
}

static void take_codes(const struct gb_checkpoint *checkpoint)
{
    struct gb_shape shape = checkpoint->shape;
    struct gb_fixture *fixture;
    struct gb_error error;
    shape.tokens = 1;
    if (gb_fixture_new(&shape, 1, checkpoint->format, true, false, false, &fixture, &error) != GB_OK)
        return; /* sizes that its blocks do not divide */
    struct gb_layer *layer = fixture->layer;
    if (gb_checkpoint_encodes(checkpoint) && gb_fixture_add(fixture, GB_EXTRA_ENCODE_SCALES, &error) != GB_OK)
        abort();
    if (checkpoint->biased && gb_fixture_add(fixture, GB_EXTRA_BIASES, &error) != GB_OK)
        abort();
    if (checkpoint->router_biased && gb_fixture_add(fixture, GB_EXTRA_ROUTER_BIAS, &error) != GB_OK)
        abort();
    for (uint32_t expert = 0; expert < shape.experts; expert++) {
        enum gb_status status = gb_checkpoint_codes(checkpoint, 0, expert, layer, &error);
        fuzz_check(status, &error);
        if (status == GB_OK && gb_codes_plausible(&layer->gate_up, expert, &error) == GB_OK)
            fuzz_touch(layer->gate_up.codes, (size_t)2 * shape.intermediate * shape.hidden / 2);
    }
    fuzz_check(gb_checkpoint_router(checkpoint, 0, layer, &error), &error);
    if (checkpoint->biased)
        fuzz_check(gb_checkpoint_biases(checkpoint, 0, layer, &error), &error);
    fuzz_check(gb_order_plausible(layer, checkpoint->activation, &error), &error);
    gb_fixture_free(fixture);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct gb_checkpoint *checkpoint;
    struct gb_error error;
    const uint8_t *config = bytes;
    size_t config_size = part(&bytes, &count);
    const uint8_t *quantization = bytes;
    size_t quantization_size = part(&bytes, &count);
    name_file("config.json", fuzz_file(0, config, config_size));
    const char *file = fuzz_file(1, quantization, quantization_size);
    name_file("hf_quant_config.json", quantization_size ? file : NULL);
    name_file("model.safetensors", fuzz_file(2, bytes, count));
    enum gb_status status = gb_checkpoint_open(fuzz_folder(), &checkpoint, &error);
    fuzz_check(status, &error);
    if (status != GB_OK)
        return 0;
    const struct gb_shape *s = &checkpoint->shape;
    if (s->hidden <= LARGEST && s->intermediate <= LARGEST && s->experts <= MOST_EXPERTS) {
        if (checkpoint->layout)
            take_codes(checkpoint);
        else
            take_values(checkpoint);
    }
    gb_checkpoint_close(checkpoint);
    return 0;
}
