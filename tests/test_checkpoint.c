/* SPDX-License-Identifier: Apache-2.0 */
/* fixtures/checkpoint: folders written here in every naming and type, and with something wrong. */
#include "tests/checkpoint_model.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "quant/quant.h"

static struct gb_checkpoint *open_good(void)
{
    struct gb_checkpoint *checkpoint;
    struct gb_error error = {""};
    if (gb_checkpoint_open(model_folder, &checkpoint, &error) != GB_OK)
        fail_msg("%s", error.message);
    return checkpoint;
}

static void expect_refusal(enum gb_status expected, const char *what, const char *more)
{
    struct gb_checkpoint *checkpoint;
    struct gb_error error = {""};
    enum gb_status status = gb_checkpoint_open(model_folder, &checkpoint, &error);
    if (status != expected)
        fail_msg("%s, %s: got %s", what, more, gb_status_name(status));
    assert_null(checkpoint);
    if (!strstr(error.message, what) || !strstr(error.message, more) || strchr(error.message, '\n'))
        fail_msg("'%s' does not say '%s' and '%s'", error.message, what, more);
}

/* Position of a tensor in add_layer's order. */
static size_t position(const struct model *m, uint32_t l, uint32_t e, int p)
{
    size_t per_layer = m->stacked ? 4 : 2 + 3 * EXPERTS;
    return l * per_layer + 2 + (m->stacked ? (size_t)(p == 2) : e * 3 + (size_t)p);
}

static void check_experts(const struct gb_checkpoint *c, const struct model *m)
{
    float values[MATRIX];
    struct gb_error error = {""};
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t e = 0; e < EXPERTS; e++)
            for (int p = 0; p < 3; p++) {
                uint64_t first = !m->stacked ? 0 : p == 2 ? e * MATRIX : (2 * e + (uint64_t)p) * MATRIX;
                memset(values, 0xFF, sizeof values);
                if (gb_checkpoint_expert(c, l, e, (enum gb_projection)p, values, &error) != GB_OK)
                    fail_msg("%s", error.message);
                for (uint64_t i = 0; i < MATRIX; i++)
                    assert_same_float(model_value(position(m, l, e, p), first + i), values[i], "%u %u %d %d", l, e, p,
                                      (int)i);
            }
}

static struct gb_fixture *layer_for(uint32_t experts)
{
    const struct gb_shape shape = {1, HIDDEN, INTERMEDIATE, experts, 1};
    struct gb_fixture *f;
    assert_int_equal(gb_fixture_new(&shape, 1, GB_BF16, true, false, false, &f, NULL), GB_OK);
    return f;
}

static void check_router(const struct gb_checkpoint *c, const struct model *m)
{
    struct gb_error error = {""};
    struct gb_fixture *f = layer_for(EXPERTS);
    float shift = strcmp(m->type, "qwen3_next") ? 0.0f : 1.0f;
    for (uint32_t l = 0; l < LAYERS; l++) {
        if (gb_checkpoint_router(c, l, &f->layer[0], &error) != GB_OK)
            fail_msg("%s", error.message);
        size_t tensor = position(m, l, 0, 0) - 2;
        for (uint64_t i = 0; i < EXPERTS * HIDDEN; i++)
            assert_same_float(model_value(tensor, i), gb_bf16_decode(((const gb_bf16 *)f->layer[0].router.codes)[i]),
                              "%d", (int)i);
        for (uint64_t i = 0; i < HIDDEN; i++)
            assert_same_float(model_value(tensor + 1, i) + shift, f->layer[0].norm[i], "%d", (int)i);
    }
    gb_fixture_free(f);
}

static void good_checkpoints(void **state)
{
    (void)state;
    static const struct model models[] = {
        {"qwen3_moe", GB_DTYPE_BF16, false, false}, {"qwen3_moe", GB_DTYPE_F16, false, true},
        {"qwen3_moe", GB_DTYPE_F32, true, false},   {"mixtral", GB_DTYPE_BF16, false, true},
        {"mixtral", GB_DTYPE_F32, false, false},    {"mixtral", GB_DTYPE_BF16, true, true},
        {"olmoe", GB_DTYPE_F32, false, false},      {"qwen3_next", GB_DTYPE_BF16, true, false},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        model_write(&models[i], NULL);
        struct gb_checkpoint *c = open_good();
        assert_int_equal(c->shape.experts, EXPERTS);
        assert_int_equal(c->shape.top_k, 2);
        assert_int_equal(c->shape.hidden, HIDDEN);
        assert_int_equal(c->shape.intermediate, INTERMEDIATE);
        assert_int_equal(c->shape.tokens, 0);
        assert_int_equal(c->layers, LAYERS);
        assert_true(c->rms_norm_epsilon == 1e-5);
        assert_int_equal(c->renormalise, !strcmp(models[i].type, "mixtral") || !strcmp(models[i].type, "qwen3_next"));
        assert_string_equal(c->name, strrchr(model_folder, '/') + 1);
        check_experts(c, &models[i]);
        check_router(c, &models[i]);
        gb_checkpoint_close(c);
    }
}

/* The hash is the one that sha256sum prints of what sha256sum prints. */
static void hash_of_files(void **state)
{
    (void)state;
    static const struct {
        struct model model;
        const char *files;
    } cases[] = {
        {{"qwen3_moe", GB_DTYPE_BF16, false, false},
         "config.json model.safetensors.index.json a.safetensors b.safetensors"},
        {{"qwen3_moe", GB_DTYPE_BF16, false, true}, "config.json model.safetensors"},
    };
    for (size_t i = 0; i < 2; i++) {
        char command[256], text[65] = "";
        model_write(&cases[i].model, NULL);
        struct gb_checkpoint *c = open_good();
        snprintf(command, sizeof command, "cd %s && sha256sum %s | sha256sum", model_folder, cases[i].files);
        FILE *pipe = popen(command, "r");
        assert_int_equal(fscanf(pipe, "%64s", text), 1);
        pclose(pipe);
        assert_string_equal(text, c->sha256);
        gb_checkpoint_close(c);
    }
}

static void config_keys(void **state)
{
    (void)state;
    const struct model m = {"qwen3_moe", GB_DTYPE_BF16, false, false};
    model_write(&m, NULL);
    model_write_config("qwen3_moe", ", \"norm_topk_prob\": true, \"moe_intermediate_size\": 16, \"num_experts\": 3");
    struct gb_checkpoint *c = open_good();
    assert_true(c->renormalise);
    assert_int_equal(c->shape.intermediate, 16);
    gb_checkpoint_close(c);
    static const struct {
        const char *more, *what, *says;
    } cases[] = {
        {", \"norm_topk_prob\": 1", "norm_topk_prob", "neither"},
        {", \"num_experts\": \"3\"", "num_experts", "size"},
        {", \"num_experts\": 0", "num_experts", "size"},
        {", \"num_experts\": 1", "num_experts_per_tok", "2 of 1"},
        {", \"moe_intermediate_size\": 4294967296", "moe_intermediate_size", "size"},
        {", \"hidden_act\": \"gelu\"", "hidden_act", "silu"},
        {", \"hidden_size\": 32", "config.json", "duplicate"},
        {", ", "config.json", "invalid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_write_config("qwen3_moe", cases[i].more);
        expect_refusal(GB_EFORMAT, cases[i].what, cases[i].says);
    }
    model_write_config("llama", "");
    expect_refusal(GB_EFORMAT, "model_type", "'llama'");
    model_write_text("config.json", "{}");
    expect_refusal(GB_EFORMAT, "model_type", "missing");
    model_write_text("config.json", "{\"model_type\": \"olmoe\"}");
    expect_refusal(GB_EFORMAT, "num_experts", "missing");
    model_write_text("config.json", "");
    expect_refusal(GB_EFORMAT, "config.json", "empty");
    unlink(model_file("config.json"));
    expect_refusal(GB_EIO, "config.json", "No such file");
}

static void wrong_indices(void **state)
{
    (void)state;
    const struct model m = {"qwen3_moe", GB_DTYPE_BF16, false, false};
    static const char *const names[] = {"../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", ".", ""};
    model_write(&m, NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"weight_map\": {\"x\": \"%s\"}}", names[i]);
        model_write_text("model.safetensors.index.json", text);
        expect_refusal(GB_EFORMAT, "model.safetensors.index.json: x", "no name of a shard");
    }
    model_write_text("model.safetensors.index.json", "{\"weight_map\": {\"x\": 3}}");
    expect_refusal(GB_EFORMAT, "model.safetensors.index.json: x", "no name of a shard");
    model_write_text("model.safetensors.index.json", "{\"weight_map\": {}}");
    expect_refusal(GB_EFORMAT, "weight_map", "empty");
    model_write_text("model.safetensors.index.json", "{\"a\": 1, \"a\": 2}");
    expect_refusal(GB_EFORMAT, "model.safetensors.index.json", "duplicate");
    model_write_text("model.safetensors.index.json", "{\"weight_map\": {\"x\": \"c.safetensors\"}}");
    expect_refusal(GB_EIO, "c.safetensors", "missing shard");
    model_write(&m, NULL);
    assert_int_equal(truncate(model_file("b.safetensors"), 3000), 0);
    expect_refusal(GB_EFORMAT, "b.safetensors", "truncated");
    unlink(model_file("b.safetensors"));
    expect_refusal(GB_EIO, "b.safetensors", "missing shard");
    model_empty_folder();
    model_write_config("qwen3_moe", "");
    expect_refusal(GB_EIO, "model.safetensors", "missing");
}

/* Reads one matrix, and one router, of which at least one must fail and name the tensor. */
static void expect_tensor_refusal(const char *file, const char *tensor, const char *what)
{
    float values[MATRIX];
    struct gb_error error = {""};
    struct gb_checkpoint *c = open_good();
    struct gb_fixture *f = layer_for(EXPERTS);
    enum gb_status status = GB_OK;
    for (int p = 0; p < 3 && status == GB_OK; p++)
        status = gb_checkpoint_expert(c, 1, 2, (enum gb_projection)p, values, &error);
    if (status == GB_OK)
        status = gb_checkpoint_router(c, 1, &f->layer[0], &error);
    if (status != GB_EFORMAT || !strstr(error.message, file) || !strstr(error.message, tensor) ||
        !strstr(error.message, what))
        fail_msg("%s: '%s' does not say '%s', '%s' and '%s'", gb_status_name(status), error.message, file, tensor,
                 what);
    gb_fixture_free(f);
    gb_checkpoint_close(c);
}

static void missing_tensors(void **state)
{
    (void)state;
    static const char *const names[] = {
        "model.layers.1.mlp.gate.weight", "model.layers.1.post_attention_layernorm.weight",
        "model.layers.1.mlp.experts.2.gate_proj.weight", "model.layers.1.mlp.experts.2.down_proj.weight"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        model_write(&(struct model){"qwen3_moe", GB_DTYPE_BF16, false, false}, names[i]);
        expect_tensor_refusal("model.safetensors.index.json", names[i], "missing");
        model_write(&(struct model){"qwen3_moe", GB_DTYPE_BF16, false, true}, names[i]);
        expect_tensor_refusal("model.safetensors:", names[i], "missing");
    }
}

/* Sizes in config.json that the tensors do not have, types that are not read, a router that needs more than bf16. */
static void wrong_tensors(void **state)
{
    (void)state;
    const struct model m = {"qwen3_moe", GB_DTYPE_BF16, false, false};
    model_write(&m, NULL);
    model_write_config("qwen3_moe", ", \"moe_intermediate_size\": 8");
    expect_tensor_refusal(".safetensors", "gate_proj", "[8, 32]");
    model_write_config("qwen3_moe", ", \"num_experts\": 4");
    struct gb_checkpoint *c = open_good();
    struct gb_fixture *f = layer_for(4);
    struct gb_error error = {""};
    float values[MATRIX];
    assert_int_equal(gb_checkpoint_router(c, 1, &f->layer[0], &error), GB_EFORMAT);
    assert_non_null(strstr(error.message, "mlp.gate.weight: config.json asks for shape [4, 32]"));
    gb_fixture_free(f);
    gb_checkpoint_close(c);
    model_write(&(struct model){"qwen3_moe", GB_DTYPE_F32, true, false}, NULL);
    model_write_config("qwen3_moe", ", \"num_experts\": 2");
    c = open_good();
    assert_int_equal(gb_checkpoint_expert(c, 0, 0, GB_UP_PROJ, values, &error), GB_EFORMAT);
    assert_non_null(strstr(error.message, "experts.gate_up_proj"));
    assert_int_equal(gb_checkpoint_expert(c, LAYERS, 0, GB_UP_PROJ, values, &error), GB_EINVAL);
    assert_int_equal(gb_checkpoint_expert(c, 0, 2, GB_UP_PROJ, values, &error), GB_EINVAL);
    f = layer_for(EXPERTS);
    assert_int_equal(gb_checkpoint_router(c, LAYERS, &f->layer[0], &error), GB_EINVAL);
    assert_int_equal(gb_checkpoint_router(c, 0, &f->layer[0], &error), GB_EINVAL);
    gb_fixture_free(f);
    gb_checkpoint_close(c);
}

static void router_beyond_bf16(void **state)
{
    (void)state;
    static float router[EXPERTS * HIDDEN], norm[HIDDEN];
    static const int32_t codes[MATRIX];
    const struct gb_tensor tensors[] = {
        {"model.layers.0.mlp.gate.weight", GB_DTYPE_F32, 2, {EXPERTS, HIDDEN}, EXPERTS * HIDDEN, router},
        {"model.layers.0.post_attention_layernorm.weight", GB_DTYPE_F32, 1, {HIDDEN}, HIDDEN, norm},
        {"model.layers.0.mlp.experts.0.gate_proj.weight", GB_DTYPE_I32, 2, {INTERMEDIATE, HIDDEN}, MATRIX, codes},
    };
    struct gb_fixture *f = layer_for(EXPERTS);
    struct gb_error error = {""};
    float values[MATRIX];
    model_empty_folder();
    model_write_config("olmoe", "");
    router[77] = 0x1.01p0f;
    assert_int_equal(gb_safetensors_write(model_file("model.safetensors"), tensors, 3, &error), GB_OK);
    struct gb_checkpoint *c = open_good();
    assert_int_equal(gb_checkpoint_router(c, 0, &f->layer[0], &error), GB_EFORMAT);
    assert_non_null(strstr(error.message, "model.layers.0.mlp.gate.weight: element 77"));
    assert_int_equal(gb_checkpoint_expert(c, 0, 0, GB_GATE_PROJ, values, &error), GB_EFORMAT);
    assert_non_null(strstr(error.message, "is I32"));
    gb_checkpoint_close(c);
    gb_fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_checkpoints),   cmocka_unit_test(hash_of_files),   cmocka_unit_test(config_keys),
        cmocka_unit_test(wrong_indices),      cmocka_unit_test(missing_tensors), cmocka_unit_test(wrong_tensors),
        cmocka_unit_test(router_beyond_bf16),
    };
    return cmocka_run_group_tests(tests, model_set_up, model_tear_down);
}
