/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "harness/program/models.h"

/* .shape = {tokens, hidden, intermediate, experts, top_k}. */
static const struct model table[] = {
    {"qwen3-next-80b-a3b",
     {0, 2048, 512, 512, 10},
     "transformers.qwen3-moe/1",
     "Qwen/Qwen3-Next-80B-A3B-Instruct config.json"},
    {"qwen3-30b-a3b", {0, 2048, 768, 128, 8}, "transformers.qwen3-moe/1", "Qwen/Qwen3-30B-A3B config.json"},
    {"qwen3-235b-a22b", {0, 4096, 1536, 128, 8}, "transformers.qwen3-moe/1", "Qwen/Qwen3-235B-A22B config.json"},
    {"deepseek-v3", {0, 7168, 2048, 256, 8}, "transformers.deepseek-v3/1", "deepseek-ai/DeepSeek-V3 config.json"},
    {"kimi-k2", {0, 7168, 2048, 384, 8}, "moonshotai.kimi-k2/1", "moonshotai/Kimi-K2-Instruct config.json"},
    {"olmoe-1b-7b",
     {0, 2048, 1024, 64, 8},
     "transformers.olmoe/1",
     "allenai/OLMoE-1B-7B config.json; 64 * 3 * 2048 * 1024 * 16 layers = 6.4 of its 6.9 billion parameters"},
    {"mixtral-8x7b", {0, 4096, 14336, 8, 2}, "transformers.qwen3-moe/1", "mistralai/Mixtral-8x7B-v0.1 config.json"},
    {"gpt-oss-120b",
     {0, 2880, 2880, 128, 4},
     "transformers.gpt-oss/1",
     "openai/gpt-oss-120b config.json; of its biases the router's alone"},
    {"phi-3.5-moe", {0, 4096, 6400, 16, 2}, "", "microsoft/Phi-3.5-MoE-instruct config.json"},
    {"minimax-m2", {0, 3072, 1536, 256, 8}, "", "MiniMaxAI/MiniMax-M2 config.json"},
    {"llama-4-maverick",
     {0, 5120, 8192, 128, 1},
     "transformers.llama4/1",
     "meta-llama/Llama-4-Maverick-17B-128E config.json; without its shared expert"},
    {"llama-4-scout",
     {0, 5120, 8192, 16, 1},
     "transformers.llama4/1",
     "meta-llama/Llama-4-Scout-17B-16E config.json; without its shared expert"},
    {"glm-4.5", {0, 5120, 1536, 160, 8}, "", "zai-org/GLM-4.5 config.json"},
    {"tiny-qwen3-moe", {0, 384, 192, 16, 4}, "transformers.qwen3-moe/1", "fixtures/data/tiny-qwen3-moe/config.json"},
};

const struct model *models(size_t *count)
{
    *count = sizeof table / sizeof *table;
    return table;
}

const struct model *model_find(const char *name)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}
