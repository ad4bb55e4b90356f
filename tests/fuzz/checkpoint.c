/* SPDX-License-Identifier: Apache-2.0 */
/* gb_checkpoint_open_mapped: config.json, a NUL, the index, and after another NUL, if there is one, the map. The one
 * shard, a.safetensors, is good: experts of a 4 x 4 model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

enum { SIZE = 4, EXPERTS = 2 };

/* A folder whose config and index are the two files in memory. */
static const char *folder_of(const char *config, const char *index)
{
    static const float values[SIZE * SIZE];
    static bool made;
    const char *folder = fuzz_folder();
    char path[256], names[3 * EXPERTS + 2][96];
    struct gb_tensor tensors[3 * EXPERTS + 2];
    struct gb_error error;
    size_t count = 0;
    if (made)
        return folder;
    for (int e = 0; e < EXPERTS; e++)
        for (int p = 0; p < 3; p++)
            snprintf(names[count++], sizeof *names, "model.layers.0.mlp.experts.%d.%s_proj.weight", e,
                     p == 0   ? "gate"
                     : p == 1 ? "up"
                              : "down");
    snprintf(names[count++], sizeof *names, "model.layers.0.mlp.gate.weight");
    snprintf(names[count++], sizeof *names, "model.layers.0.post_attention_layernorm.weight");
    for (size_t i = 0; i < count; i++)
        tensors[i] = (struct gb_tensor){names[i], GB_DTYPE_F32, 2, {SIZE, SIZE}, SIZE * SIZE, values};
    tensors[count - 2].shape[0] = EXPERTS;
    tensors[count - 2].count = EXPERTS * SIZE;
    tensors[count - 1].rank = 1;
    tensors[count - 1].count = SIZE;
    snprintf(path, sizeof path, "%s/a.safetensors", folder);
    made = gb_safetensors_write(path, tensors, count, &error) == GB_OK;
    snprintf(path, sizeof path, "%s/config.json", folder);
    made = made && symlink(config, path) == 0;
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    made = made && symlink(index, path) == 0;
    if (!made)
        abort();
    return folder;
}

/* Only of sizes that the shard can have: memory for others is the caller's affair. */
static void take(const struct gb_checkpoint *checkpoint)
{
    float values[SIZE * SIZE];
    struct gb_error error;
    if (checkpoint->shape.hidden != SIZE || checkpoint->shape.intermediate != SIZE)
        return;
    for (uint32_t expert = 0; expert < EXPERTS && expert < checkpoint->shape.experts; expert++)
        for (int p = GB_GATE_PROJ; p <= GB_DOWN_PROJ; p++)
            fuzz_check(gb_checkpoint_expert(checkpoint, 0, expert, (enum gb_projection)p, values, &error), &error);
    if (checkpoint->shape.experts != EXPERTS)
        return;
    gb_bf16 codes[EXPERTS * SIZE];
    float norm[SIZE], bias[EXPERTS];
    struct gb_layer layer = {.router = {.format = GB_BF16, .codes = codes, .rows = EXPERTS, .columns = SIZE},
                             .router_bias = bias,
                             .norm = norm};
    char name[128];
    for (uint32_t l = 0; l < 2; l++)
        if (!gb_checkpoint_is_dense(checkpoint, l))
            gb_checkpoint_shared(checkpoint, l, name);
    fuzz_check(gb_checkpoint_router(checkpoint, 0, &layer, &error), &error);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    const uint8_t *end = count ? memchr(bytes, 0, count) : NULL;
    size_t config = end ? (size_t)(end - bytes) : count, index = end ? count - config - 1 : 0;
    const uint8_t *next = end ? end + 1 : bytes, *more = index ? memchr(next, 0, index) : NULL;
    size_t map = more ? index - (size_t)(more - next) - 1 : 0;
    index = more ? (size_t)(more - next) : index;
    const char *first = fuzz_file(0, bytes, config), *second = fuzz_file(1, next, index);
    const char *third = more ? fuzz_file(2, more + 1, map) : NULL;
    struct gb_checkpoint *checkpoint;
    struct gb_error error;
    enum gb_status status = gb_checkpoint_open_mapped(folder_of(first, second), third, &checkpoint, &error);
    fuzz_check(status, &error);
    if (status == GB_OK) {
        take(checkpoint);
        gb_checkpoint_close(checkpoint);
    }
    return 0;
}
