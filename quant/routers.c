/* SPDX-License-Identifier: Apache-2.0 */
/* The router recipes: docs/numerics.md#route. A published row never changes; another rule is another row. */
#include <float.h>
#include <math.h>
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
    {"transformers.olmoe/1",
     ROUTER(BF16, NONE, SOFTMAX, KEPT, 0.0f, 1, 1, 1, -INFINITY, SCORE, NONE, 1, 0, 0.0f, 1.0f, BF16, OUTPUT),
     "Hugging Face transformers, models/olmoe/modeling_olmoe.py@f321adbc, norm_topk_prob false",
     "softmax of bf16 logits in FP32, top-k of it, to bf16"},
    {"transformers.deepseek-v3/1",
     ROUTER(FP32, CHOICE, SIGMOID, KEPT, 0.0f, 8, 4, 2, 0.0f, SCORE, DIVIDE, 1, 0, 1e-20f, 2.5f, FP32, OUTPUT),
     "Hugging Face transformers, models/deepseek_v3/modeling_deepseek_v3.py@00b676f8",
     "sigmoid, bias for the choice, 4 of 8 groups, the others' experts count as 0.0, (w / (sum + 1e-20)) * 2.5"},
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
     "vLLM, csrc/libtorch_stable/moe/grouped_topk_kernels.cu@05bd69cd, DeepSeek-V3's parameters",
     "sigmoid, bias for the choice, 4 of 8 groups, a logit that is not finite counts as -inf, w * (2.5 / (1e-20 + sum))"},
    {"vllm.grouped-topk-flt-min/1",
     ROUTER(FP32, CHOICE, SIGMOID, BIASED, FLT_MIN, 8, 4, 2, -INFINITY, SCORE, DIVIDE, 1, 0, 1e-20f, 2.5f, FP32,
            OUTPUT),
     "vLLM, csrc/moe/grouped_topk_kernels.cu@15f69bde, DeepSeek-V3's parameters",
     "sigmoid, bias for the choice, 4 of 8 groups, what is not finite counts as FLT_MIN, (w / (1e-20 + sum)) * 2.5"},
    {"flashinfer.deepseek-v3/1",
     ROUTER(FP32, CHOICE, SIGMOID, KEPT, 0.0f, 8, 4, 2, -INFINITY, SCORE, SCALED_DIVIDE, 1, 0, 1e-20f, 2.5f, BF16,
            OUTPUT),
     "FlashInfer, csrc/fused_moe/noAuxTcKernels.cu@0a17574e, bf16 scores, DeepSeek-V3's parameters",
     "sigmoid, bias for the choice, 4 of 8 groups, the others -inf, (w * 2.5) / (sum + 1e-20), to bf16"},
    {"te.sigmoid/1",
     ROUTER(FP32, LOSSY, SIGMOID, KEPT, 0.0f, 8, 4, 0, -INFINITY, SCORE, DIVIDE, 2, 0, 1e-20f, 2.5f, FP32, OUTPUT),
     "Transformer Engine, common/fused_router/fused_topk_with_score_function.cu@017d75a6, DeepSeek-V3's parameters",
     "sigmoid plus bias, 4 of 8 groups by their top k/4, the bias subtracted again, (w / (sum + 1e-20)) * 2.5 if k > 1"},
};

const struct gb_router_recipe *gb_router_recipes(size_t *count)
{
    *count = sizeof recipes / sizeof *recipes;
    return recipes;
}

const struct gb_router_recipe *gb_router_recipe_find(const char *name)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        if (!strcmp(recipes[i].name, name))
            return &recipes[i];
    return NULL;
}

const struct gb_router_recipe *gb_router_recipe_default(bool renormalise)
{
    return gb_router_recipe_find(renormalise ? "gaugeblock.renormalised/1" : "gaugeblock.softmax/1");
}
