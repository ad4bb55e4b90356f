/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/checkpoint_model.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "quant/quant.h"

enum { MOST = 64 };
char model_folder[] = "/tmp/gaugeblock-checkpoint-XXXXXX";

const char *model_file(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", model_folder, name);
    return path;
}

void model_write_text(const char *name, const char *text)
{
    FILE *file = fopen(model_file(name), "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

void model_empty_folder(void)
{
    DIR *stream = opendir(model_folder);
    for (struct dirent *entry; (entry = readdir(stream));)
        unlinkat(dirfd(stream), entry->d_name, 0);
    closedir(stream);
}

/* The tensors of a model. Element i of tensor n is value(n, i), exact in bf16 and fp16. */

struct tensors {
    struct gb_tensor tensor[MOST];
    char name[MOST][96];
    size_t count;
};

float model_value(size_t tensor, uint64_t i)
{
    return ldexpf((float)(1 + (tensor * 31 + i * 7) % 251), -5) * (i % 3 ? 1.0f : -1.0f);
}

static void *encode(enum gb_dtype dtype, size_t tensor, uint64_t count)
{
    void *data = malloc(count * sizeof(float));
    for (uint64_t i = 0; i < count; i++) {
        float v = model_value(tensor, i);
        if (dtype == GB_DTYPE_F32)
            ((float *)data)[i] = v;
        else if (dtype == GB_DTYPE_BF16)
            ((gb_bf16 *)data)[i] = gb_bf16_encode(v);
        else
            ((_Float16 *)data)[i] = (_Float16)v;
    }
    return data;
}

__attribute__((format(printf, 6, 7))) static void add(struct tensors *all, enum gb_dtype dtype, uint64_t a, uint64_t b,
                                                      uint64_t c, const char *format, ...)
{
    struct gb_tensor *tensor = &all->tensor[all->count];
    va_list list;
    va_start(list, format);
    vsnprintf(all->name[all->count], sizeof all->name[0], format, list);
    va_end(list);
    const uint64_t shape[3] = {a, b, c};
    *tensor = (struct gb_tensor){.name = all->name[all->count], .dtype = dtype, .count = 1};
    for (; tensor->rank < 3 && shape[tensor->rank]; tensor->rank++) {
        tensor->shape[tensor->rank] = shape[tensor->rank];
        tensor->count *= shape[tensor->rank];
    }
    tensor->data = encode(dtype, all->count, tensor->count);
    all->count++;
}

static void add_layer(struct tensors *all, const struct model *m, uint32_t l)
{
    bool mixtral = !strcmp(m->type, "mixtral");
    const char *block = mixtral ? "block_sparse_moe" : "mlp";
    const char *const names[3] = {mixtral ? "w1" : "gate_proj", mixtral ? "w3" : "up_proj",
                                  mixtral ? "w2" : "down_proj"};
    add(all, m->dtype, EXPERTS, HIDDEN, 0, "model.layers.%u.%s.gate.weight", l, block);
    add(all, m->dtype, HIDDEN, 0, 0, "model.layers.%u.post_attention_layernorm.weight", l);
    if (m->stacked) {
        add(all, m->dtype, EXPERTS, 2 * INTERMEDIATE, HIDDEN, "model.layers.%u.%s.experts.gate_up_proj", l, block);
        add(all, m->dtype, EXPERTS, HIDDEN, INTERMEDIATE, "model.layers.%u.%s.experts.down_proj", l, block);
        return;
    }
    for (uint32_t e = 0; e < EXPERTS; e++)
        for (int p = 0; p < 3; p++)
            add(all, m->dtype, p == 2 ? HIDDEN : INTERMEDIATE, p == 2 ? INTERMEDIATE : HIDDEN, 0,
                "model.layers.%u.%s.experts.%u.%s.weight", l, block, e, names[p]);
}

void model_write_config(const char *type, const char *more)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"model_type\": \"%s\", \"num_local_experts\": %d, \"num_experts_per_tok\": 2, \"hidden_size\": %d, "
             "\"intermediate_size\": %d, \"num_hidden_layers\": %d, \"rms_norm_eps\": 1e-05%s}",
             type, EXPERTS, HIDDEN, INTERMEDIATE, LAYERS, more);
    model_write_text("config.json", text);
}

/* Tensors alternate between two shards, so that no layer lies in one; the index names b first. */
static void write_shards(const struct tensors *all)
{
    struct gb_error error = {""};
    static char index[16384];
    int used = snprintf(index, sizeof index, "{\"metadata\": {}, \"weight_map\": {");
    for (size_t s = 0; s < 2; s++) {
        struct gb_tensor part[MOST];
        size_t count = 0;
        for (size_t i = s; i < all->count; i += 2)
            part[count++] = all->tensor[i];
        if (gb_safetensors_write(model_file(s ? "a.safetensors" : "b.safetensors"), part, count, &error) != GB_OK)
            fail_msg("%s", error.message);
    }
    for (size_t i = 0; i < all->count; i++)
        used += snprintf(index + used, sizeof index - (size_t)used, "%s\"%s\": \"%s\"", i ? ", " : "",
                         all->tensor[i].name, i % 2 ? "a.safetensors" : "b.safetensors");
    snprintf(index + used, sizeof index - (size_t)used, "}}");
    model_write_text("model.safetensors.index.json", index);
}

void model_write(const struct model *m, const char *without)
{
    static struct tensors all;
    struct gb_error error = {""};
    model_empty_folder();
    model_write_config(m->type, "");
    all.count = 0;
    for (uint32_t l = 0; l < LAYERS; l++)
        add_layer(&all, m, l);
    size_t kept = 0;
    for (size_t i = 0; i < all.count; i++) {
        bool skip = without && !strcmp(all.name[i], without);
        if (skip)
            free((void *)all.tensor[i].data);
        else
            all.tensor[kept++] = all.tensor[i];
    }
    all.count = kept;
    if (!m->single)
        write_shards(&all);
    else if (gb_safetensors_write(model_file("model.safetensors"), all.tensor, all.count, &error) != GB_OK)
        fail_msg("%s", error.message);
    for (size_t i = 0; i < all.count; i++)
        free((void *)all.tensor[i].data);
}

int model_set_up(void **state)
{
    (void)state;
    return mkdtemp(model_folder) ? 0 : -1;
}

int model_tear_down(void **state)
{
    (void)state;
    model_empty_folder();
    return rmdir(model_folder);
}
