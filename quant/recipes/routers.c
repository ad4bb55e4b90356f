/* SPDX-License-Identifier: Apache-2.0 */
/* The router recipes: docs/numerics.md#route. A published row never changes; another rule is another row. */
#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"

/* The fields of struct gb_router in their order, without the prefixes of their values. */
#define ROUTER(LOGITS, BIAS, SCORE, NONFINITE, REPLACEMENT, GROUPS, KEPT, TERMS, MASKED, WEIGHT, RENORMALISE, FROM,    \
               ZERO_IS_ONE, EPSILON, SCALE, WEIGHTS, SIDE)                                                             \
    {                                                                                                                  \
        sizeof(struct gb_router), GB_##LOGITS, GB_ROUTER_BIAS_##BIAS, GB_ROUTER_SCORE_##SCORE,                         \
            GB_ROUTER_NONFINITE_##NONFINITE, REPLACEMENT, GROUPS, KEPT, TERMS, MASKED, GB_ROUTER_WEIGHT_##WEIGHT,      \
            GB_ROUTER_RENORMALISE_##RENORMALISE, FROM, ZERO_IS_ONE, EPSILON, SCALE, GB_##WEIGHTS, GB_ROUTER_ON_##SIDE  \
    }

static const struct gb_router_recipe recipes[] = {
    {"gaugeblock.renormalised/1",
     ROUTER(FP32, NONE, LOGIT, KEPT, 0.0f, 1, 1, 1, -INFINITY, SOFTMAX_CHOSEN, NONE, 1, 0, 0.0f, 1.0f, FP32, OUTPUT),
     "ours; of a fixture that names no router and renormalises",
     "top-k of the logits, then their softmax: one rounding less than softmax, top-k, division"},
    {"gaugeblock.softmax/1",
     ROUTER(FP32, NONE, LOGIT, KEPT, 0.0f, 1, 1, 1, -INFINITY, SOFTMAX_ALL, NONE, 1, 0, 0.0f, 1.0f, FP32, OUTPUT),
     "ours; of a fixture that names no router and does not renormalise",
     "top-k of the logits, weights from the softmax over all experts"},
    {"transformers.qwen3-moe/1",
     ROUTER(BF16, NONE, SOFTMAX, KEPT, 0.0f, 1, 1, 1, -INFINITY, SCORE, DIVIDE, 1, 0, 0.0f, 1.0f, BF16, OUTPUT),
     "Hugging Face transformers, models/qwen3_moe/modeling_qwen3_moe.py@00d4b3d2, norm_topk_prob true; mixtral likewise",
     "softmax of bf16 logits in FP32, top-k of it, divided by their sum, to bf16"},
    {"transformers.mixtral/1",
     ROUTER(BF16, NONE, SOFTMAX, KEPT, 0.0f, 1, 1, 1, -INFINITY, SCORE, DIVIDE, 1, 0, 0.0f, 1.0f, FP32, OUTPUT),
     "Hugging Face transformers 5.23.0, models/mixtral/modeling_mixtral.py, MixtralTopKRouter",
     "softmax of bf16 logits in FP32, top-k of it, divided by their sum"},
    {"transformers.olmoe/1",
     ROUTER(BF16, NONE, SOFTMAX, KEPT, 0.0f, 1, 1, 1, -INFINITY, SCORE, NONE, 1, 0, 0.0f, 1.0f, BF16, OUTPUT),
     "Hugging Face transformers, models/olmoe/modeling_olmoe.py@f321adbc, norm_topk_prob false",
     "softmax of bf16 logits in FP32, top-k of it, to bf16"},
    {"transformers.deepseek-v3/1",
     ROUTER(FP32, CHOICE, SIGMOID, KEPT, 0.0f, 8, 4, 2, 0.0f, SCORE, DIVIDE, 1, 0, 1e-20f, 2.5f, FP32, OUTPUT),
     "Hugging Face transformers, models/deepseek_v3/modeling_deepseek_v3.py@00b676f8",
     "sigmoid, bias for the choice, 4 of 8 groups, the others' experts count as 0.0, (w / (sum + 1e-20)) * 2.5"},
    {"transformers.deepseek-v3/2",
     ROUTER(FP32, CHOICE, SIGMOID, KEPT, 0.0f, 8, 4, 2, -INFINITY, SCORE, DIVIDE, 1, 0, 1e-20f, 2.5f, FP32, OUTPUT),
     "Hugging Face transformers 5.23.0, models/deepseek_v3/modeling_deepseek_v3.py; glm4_moe, dots1 and others likewise",
     "sigmoid, bias for the choice, 4 of 8 groups, the others -inf, (w / (sum + 1e-20)) * 2.5"},
    {"transformers.deepseek-v2/1",
     ROUTER(FP32, NONE, SOFTMAX, KEPT, 0.0f, 8, 3, 1, 0.0f, SCORE, NONE, 1, 0, 0.0f, 16.0f, FP32, OUTPUT),
     "Hugging Face transformers 5.23.0, models/deepseek_v2/modeling_deepseek_v2.py, topk_method group_limited_greedy",
     "softmax, 3 of 8 groups by their largest, the others' experts count as 0.0, w * 16"},
    {"moonshotai.kimi-k2/1",
     ROUTER(FP32, CHOICE, SIGMOID, KEPT, 0.0f, 1, 1, 1, -INFINITY, SCORE, DIVIDE, 1, 0, 1e-20f, 2.827f, FP32, OUTPUT),
     "moonshotai/Kimi-K2-Instruct, config.json and modeling_deepseek.py: n_group 1, routed_scaling_factor 2.827",
     "sigmoid, bias for the choice, one group, (w / (sum + 1e-20)) * 2.827"},
    {"transformers.gpt-oss/1",
     ROUTER(BF16, LOGIT, LOGIT, KEPT, 0.0f, 1, 1, 1, -INFINITY, SOFTMAX_CHOSEN, NONE, 1, 0, 0.0f, 1.0f, BF16, OUTPUT),
     "Hugging Face transformers, models/gpt_oss/modeling_gpt_oss.py@00d4b3d2",
     "top-k of bf16 logits with bias, then their softmax, to bf16"},
    {"transformers.llama4/1",
     ROUTER(BF16, NONE, LOGIT, KEPT, 0.0f, 1, 1, 1, -INFINITY, SIGMOID, NONE, 1, 0, 0.0f, 1.0f, BF16, INPUT),
     "Hugging Face transformers, models/llama4/modeling_llama4.py@000c33fd",
     "top-k of bf16 logits, the sigmoid of each to bf16, multiplied with the expert's input"},
    {"transformers.granitemoe/1",
     ROUTER(BF16, NONE, LOGIT, KEPT, 0.0f, 1, 1, 1, -INFINITY, SOFTMAX_CHOSEN, NONE, 1, 0, 0.0f, 1.0f, BF16, OUTPUT),
     "Hugging Face transformers 5.23.0, models/granitemoe/modeling_granitemoe.py",
     "top-k of bf16 logits, then their softmax, to bf16"},
    {"transformers.ernie4.5-moe/1",
     ROUTER(FP32, CHOICE, SOFTMAX, KEPT, 0.0f, 1, 1, 1, -INFINITY, SCORE, DIVIDE, 1, 0, 0.0f, 1.0f, BF16, OUTPUT),
     "Hugging Face transformers 5.23.0, models/ernie4_5_moe/modeling_ernie4_5_moe.py, sums above moe_norm_min",
     "softmax, bias for the choice, w / sum, to bf16"},
    {"transformers.hunyuan-v1-moe/1",
     ROUTER(FP32, NONE, SOFTMAX, KEPT, 0.0f, 1, 1, 1, -INFINITY, SCORE, DIVIDE, 1, 0, 0.0f, 1.0f, FP32, OUTPUT),
     "Hugging Face transformers 5.23.0, models/hunyuan_v1_moe/modeling_hunyuan_v1_moe.py, router in FP32",
     "softmax, top-k of it, w / sum"},
    {"transformers.minimax-m2/1",
     ROUTER(FP32, CHOICE, SIGMOID, KEPT, 0.0f, 1, 1, 1, -INFINITY, SCORE, DIVIDE, 1, 0, 0.0f, 1.0f, FP32, OUTPUT),
     "Hugging Face transformers 5.23.0, models/minimax_m2/modeling_minimax_m2.py, router in FP32",
     "sigmoid, bias for the choice, w / sum"},
    {"vllm.topk-softmax/1",
     ROUTER(FP32, NONE, SOFTMAX_RECIPROCAL, ZERO, 0.0f, 1, 1, 1, -INFINITY, SCORE, NONE, 1, 0, 0.0f, 1.0f, FP32,
            OUTPUT),
     "vLLM, csrc/libtorch_stable/moe/topk_softmax_kernels.cu@085c812b, renormalize false",
     "softmax as q * (1 / sum), NaN and infinities to 0, top-k"},
    {"vllm.topk-softmax-renormalised/1",
     ROUTER(FP32, NONE, SOFTMAX_RECIPROCAL, ZERO, 0.0f, 1, 1, 1, -INFINITY, SCORE, SCALE, 1, 1, 0.0f, 1.0f, FP32,
            OUTPUT),
     "vLLM, csrc/libtorch_stable/moe/topk_softmax_kernels.cu@085c812b, renormalize true",
     "softmax as q * (1 / sum), NaN and infinities to 0, top-k, w * (scale / sum), a sum of 0 counts as 1"},
    {"vllm.topk-sigmoid/1",
     ROUTER(FP32, CHOICE, SIGMOID, ZERO, 0.0f, 1, 1, 1, -INFINITY, SCORE, SCALE, 1, 1, 0.0f, 1.0f, FP32, OUTPUT),
     "vLLM, csrc/libtorch_stable/moe/topk_softmax_kernels.cu@085c812b, SCORING_SIGMOID, renormalize true",
     "sigmoid, NaN to 0, bias for the choice, w * (scale / sum), a sum of 0 counts as 1"},
    {"vllm.grouped-topk/1",
     ROUTER(FP32, CHOICE, SIGMOID, LOGIT, -INFINITY, 8, 4, 2, -INFINITY, SCORE, SCALE, 1, 0, 1e-20f, 2.5f, FP32,
            OUTPUT),
     "vLLM, csrc/libtorch_stable/moe/grouped_topk_kernels.cu@05bd69cd, grouped_topk_fused_kernel: above 256 experts",
     "sigmoid, bias for the choice, 4 of 8 groups, a logit that is not finite counts as -inf, w * (2.5 / (1e-20 + sum))"},
    {"vllm.grouped-topk-small/1",
     ROUTER(FP32, CHOICE, SIGMOID, KEPT, 0.0f, 8, 4, 2, -INFINITY, SCORE, SCALED_DIVIDE, 1, 0, 1e-20f, 2.5f, FP32,
            OUTPUT),
     "vLLM, csrc/libtorch_stable/moe/grouped_topk_kernels.cu@05bd69cd, grouped_topk_fused_small_expert_count_kernel",
     "sigmoid, bias for the choice, 4 of 8 groups, the others -inf, (w * 2.5) / (sum + 1e-20)"},
    {"vllm.grouped-topk-flt-min/1",
     ROUTER(FP32, CHOICE, SIGMOID, BIASED, FLT_MIN, 8, 4, 2, -INFINITY, SCORE, DIVIDE, 1, 0, 1e-20f, 2.5f, FP32,
            OUTPUT),
     "vLLM, csrc/moe/grouped_topk_kernels.cu@15f69bde, DeepSeek-V3's parameters",
     "sigmoid, bias for the choice, 4 of 8 groups, what is not finite counts as FLT_MIN, (w / (1e-20 + sum)) * 2.5"},
    {"flashinfer.deepseek-v3/1",
     ROUTER(FP32, CHOICE, SIGMOID, KEPT, 0.0f, 8, 4, 2, -INFINITY, SCORE, SCALED_DIVIDE, 1, 0, 1e-20f, 2.5f, BF16,
            OUTPUT),
     "FlashInfer, csrc/fused_moe/noAuxTcKernels.cu@fb28d724, bf16 scores, DeepSeek-V3's parameters",
     "sigmoid, bias for the choice, 4 of 8 groups, the others -inf, (w * 2.5) / (sum + 1e-20), to bf16"},
    {"te.sigmoid/1",
     ROUTER(FP32, LOSSY, SIGMOID, KEPT, 0.0f, 8, 4, 0, -INFINITY, SCORE, DIVIDE, 2, 0, 1e-20f, 2.5f, FP32, OUTPUT),
     "Transformer Engine, common/fused_router/fused_topk_with_score_function.cu@2f77de03, DeepSeek-V3's parameters",
     "sigmoid plus bias, 4 of 8 groups by their top k/4, the bias subtracted again, (w / (sum + 1e-20)) * 2.5 if k > 1"},
};

const struct gb_router_recipe *gb_router_recipes(size_t *count)
{
    *count = sizeof recipes / sizeof *recipes;
    return recipes;
}

static const struct gb_router_recipe *find_row(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        if (strlen(recipes[i].name) == length && !strncmp(recipes[i].name, name, length))
            return &recipes[i];
    return NULL;
}

/* What a name may say behind the row's: a model's own number of this rule. */
struct parameter {
    const char *key;
    size_t at; /* in struct gb_router */
    bool real; /* float; otherwise uint32_t */
};

static const struct parameter parameters[] = {
    {"groups", offsetof(struct gb_router, groups), false},
    {"kept", offsetof(struct gb_router, kept_groups), false},
    {"terms", offsetof(struct gb_router, group_terms), false},
    {"scale", offsetof(struct gb_router, scale), true},
};
enum { PARAMETERS = sizeof parameters / sizeof *parameters };

static void *field(struct gb_router *router, const struct parameter *p)
{
    return (char *)router + p->at;
}

/* The shortest decimal number that is this float. */
static void print_float(float value, char text[32])
{
    for (int digits = 1; digits <= FLT_DECIMAL_DIG; digits++) {
        snprintf(text, 32, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            return;
    }
}

/* The row's name, and what the router has otherwise. false: no room. */
static bool print_name(const struct gb_router_recipe *row, const struct gb_router *router, char name[GB_ROUTER_NAME])
{
    struct gb_router from = row->router, to = *router;
    size_t used = (size_t)snprintf(name, GB_ROUTER_NAME, "%s", row->name);
    for (int i = 0; i < PARAMETERS && used < GB_ROUTER_NAME; i++) {
        const struct parameter *p = &parameters[i];
        char text[32];
        if (!memcmp(field(&from, p), field(&to, p), sizeof(float)))
            continue;
        if (p->real)
            print_float(*(float *)field(&to, p), text);
        else
            snprintf(text, sizeof text, "%u", *(uint32_t *)field(&to, p));
        used += (size_t)snprintf(name + used, GB_ROUTER_NAME - used, ";%s=%s", p->key, text);
    }
    return used < GB_ROUTER_NAME;
}

/* Reads ";groups=1;kept=1;scale=2.446" into the router. */
static bool read_parameters(const char *text, struct gb_router *router)
{
    for (int i = 0; i < PARAMETERS; i++) {
        const struct parameter *p = &parameters[i];
        size_t length = strlen(p->key);
        if (text[0] != ';' || strncmp(text + 1, p->key, length) || text[length + 1] != '=')
            continue;
        char *end = (char *)(text += length + 2);
        if (p->real)
            *(float *)field(router, p) = strtof(text, &end);
        else
            *(uint32_t *)field(router, p) = (uint32_t)strtoul(text, &end, 10);
        text = end;
    }
    return !*text && router->groups && router->kept_groups && router->kept_groups <= router->groups &&
           isfinite(router->scale) && router->scale > 0.0f;
}

/* Rows with parameters of their own that have been asked for; they stay until the process ends. */
struct variant {
    struct gb_router_recipe recipe;
    char name[GB_ROUTER_NAME];
    struct variant *next;
};
static struct variant *_Atomic variants;

static const struct gb_router_recipe *find_variant(const char *name)
{
    for (struct variant *v = atomic_load(&variants); v; v = v->next)
        if (!strcmp(v->name, name))
            return &v->recipe;
    return NULL;
}

static const struct gb_router_recipe *add_variant(const struct gb_router_recipe *row, const struct gb_router *router,
                                                  const char *name)
{
    struct variant *v = malloc(sizeof *v);
    if (!v)
        return NULL;
    v->recipe = (struct gb_router_recipe){v->name, *router, row->source, row->summary};
    snprintf(v->name, sizeof v->name, "%s", name);
    v->next = atomic_load(&variants);
    while (!atomic_compare_exchange_weak(&variants, &v->next, v))
        ;
    return &v->recipe;
}

/* One rule has one name: keys in their sequence, none that says what the row says, numbers in their shortest form. */
static bool is_canonical(const char *name, const struct gb_router_recipe *row, const struct gb_router *router)
{
    char again[GB_ROUTER_NAME];
    return print_name(row, router, again) && !strcmp(again, name);
}

const struct gb_router_recipe *gb_router_recipe_find(const char *name)
{
    const char *more = strchr(name, ';');
    const struct gb_router_recipe *row = find_row(name, more ? (size_t)(more - name) : strlen(name));
    if (!row || !more)
        return row;
    const struct gb_router_recipe *known = find_variant(name);
    struct gb_router router = row->router;
    if (known || !read_parameters(more, &router) || !is_canonical(name, row, &router))
        return known;
    return add_variant(row, &router, name);
}

bool gb_router_recipe_name(const char *row, const struct gb_router *router, char name[GB_ROUTER_NAME])
{
    const struct gb_router_recipe *found = find_row(row, strlen(row));
    return found && print_name(found, router, name) && gb_router_recipe_find(name);
}

const struct gb_router_recipe *gb_router_recipe_default(bool renormalise)
{
    return gb_router_recipe_find(renormalise ? "gaugeblock.renormalised/1" : "gaugeblock.softmax/1");
}
