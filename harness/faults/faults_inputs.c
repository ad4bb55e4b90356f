/* SPDX-License-Identifier: Apache-2.0 */
/* Faults in what a layer is given: routing weights, experts' ids, activations. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/faults/rows.h"
#include "quant/quant.h"

static size_t pairs(const struct injected *p)
{
    return (size_t)p->shape.tokens * p->shape.top_k;
}

static void plant_weights_missing(struct injected *p)
{
    if (p->clean->given.apply_router_weight_on_input)
        memcpy(p->x, p->clean->given.x, (size_t)p->shape.tokens * p->shape.hidden * sizeof *p->x);
    for (size_t i = 0; i < pairs(p); i++)
        p->routing_weights[i] = 1.0f;
}

static void plant_weights_uniform(struct injected *p)
{
    for (size_t i = 0; i < pairs(p); i++)
        p->routing_weights[i] = 1.0f / (float)p->shape.top_k;
}

static void plant_weights_squared(struct injected *p)
{
    for (size_t i = 0; i < pairs(p); i++)
        p->routing_weights[i] *= p->routing_weights[i];
}

static void plant_weights_scaled(struct injected *p)
{
    for (size_t i = 0; i < pairs(p); i++)
        p->routing_weights[i] *= (float)p->fault->amount;
}

static void plant_weights_bf16(struct injected *p)
{
    for (size_t i = 0; i < pairs(p); i++)
        p->routing_weights[i] = gb_bf16_decode(gb_bf16_encode(p->routing_weights[i]));
}

static void plant_weights_next_slot(struct injected *p)
{
    const float *clean = p->clean->arguments.routing_weights;
    for (size_t i = 0; i < pairs(p); i++)
        p->routing_weights[i] = clean[(i + 1) % p->shape.top_k ? i + 1 : i + 1 - p->shape.top_k];
}

static void plant_weights_next_token(struct injected *p)
{
    const float *clean = p->clean->arguments.routing_weights;
    for (size_t i = 0; i < pairs(p); i++)
        p->routing_weights[i] = clean[(i + p->shape.top_k) % pairs(p)];
}

static void plant_weights_reversed(struct injected *p)
{
    const float *clean = p->clean->arguments.routing_weights;
    for (size_t i = 0; i < pairs(p); i++)
        p->routing_weights[i] = clean[i - i % p->shape.top_k + (p->shape.top_k - 1 - i % p->shape.top_k)];
}

static void drop(struct injected *p, int32_t expert)
{
    for (size_t i = 0; i < pairs(p); i++)
        if (p->ids[i] == expert)
            p->ids[i] = -1;
}

/* The expert that the fewest pairs go to: the hardest to miss. */
static void plant_expert_dropped(struct injected *p)
{
    size_t fewest = SIZE_MAX;
    int32_t dropped = -1;
    for (uint32_t e = 0; e < p->shape.experts; e++) {
        size_t load = 0;
        for (size_t i = 0; i < pairs(p); i++)
            load += p->ids[i] == (int32_t)e;
        if (load && load < fewest) {
            fewest = load;
            dropped = (int32_t)e;
        }
    }
    drop(p, dropped);
}

static void plant_last_expert_dropped(struct injected *p)
{
    int32_t last = -1;
    for (size_t i = 0; i < pairs(p); i++)
        last = p->ids[i] > last ? p->ids[i] : last;
    drop(p, last);
}

static void plant_last_slot_dropped(struct injected *p)
{
    for (size_t i = p->shape.top_k - 1; i < pairs(p); i += p->shape.top_k)
        p->ids[i] = -1;
}

/* Of each expert, the last of its pairs: the remainder of a tile of tokens. */
static void plant_last_pair_dropped(struct injected *p)
{
    for (uint32_t e = 0; e < p->shape.experts; e++)
        for (size_t i = pairs(p); i-- > 0;)
            if (p->ids[i] == (int32_t)e) {
                p->ids[i] = -1;
                break;
            }
}

/* Pairs beyond an even share of each expert. */
static void plant_over_capacity(struct injected *p)
{
    size_t capacity = (pairs(p) + p->shape.experts - 1) / p->shape.experts;
    for (uint32_t e = 0; e < p->shape.experts; e++) {
        size_t load = 0;
        for (size_t i = 0; i < pairs(p); i++)
            if (p->ids[i] == (int32_t)e && load++ >= capacity)
                p->ids[i] = -1;
    }
}

/* The next expert in use. */
static int32_t next_used(const struct injected *p, int32_t expert)
{
    uint32_t e = (uint32_t)expert;
    do
        e = (e + 1) % p->shape.experts;
    while (!p->clean->used[e]);
    return (int32_t)e;
}

/* One token's first expert. */
static void plant_wrong_expert(struct injected *p)
{
    int32_t *id = &p->ids[(size_t)(p->shape.tokens / 2) * p->shape.top_k];
    if (*id >= 0)
        *id = next_used(p, *id);
}

static void plant_next_expert(struct injected *p)
{
    for (size_t i = 0; i < pairs(p); i++)
        if (p->ids[i] >= 0)
            p->ids[i] = next_used(p, p->ids[i]);
}

/* Ids without their weights. */
static void plant_slots_exchanged(struct injected *p)
{
    for (size_t i = 0; p->shape.top_k > 1 && i < pairs(p); i += p->shape.top_k) {
        int32_t first = p->ids[i];
        p->ids[i] = p->ids[i + 1];
        p->ids[i + 1] = first;
    }
}

static void plant_expert_repeated(struct injected *p)
{
    for (size_t i = 0; p->shape.top_k > 1 && i < pairs(p); i += p->shape.top_k)
        p->ids[i + 1] = p->ids[i];
}

static void plant_x_next_token(struct injected *p)
{
    size_t row = p->shape.hidden;
    memcpy(p->x, p->clean->arguments.x + row, (p->shape.tokens - 1) * row * sizeof *p->x);
    memcpy(p->x + (p->shape.tokens - 1) * row, p->clean->arguments.x, row * sizeof *p->x);
}

/* Through E4M3 with a scale for each token. */
static void plant_x_e4m3(struct injected *p)
{
    for (uint32_t t = 0; t < p->shape.tokens; t++) {
        gb_bf16 *row = p->x + (size_t)t * p->shape.hidden;
        float largest = 0.0f;
        for (uint32_t i = 0; i < p->shape.hidden; i++)
            largest = fmaxf(largest, fabsf(gb_bf16_decode(row[i])));
        float scale = largest > 0.0f ? largest / 448.0f : 1.0f;
        for (uint32_t i = 0; i < p->shape.hidden; i++)
            row[i] = gb_bf16_encode(gb_e4m3_decode(gb_e4m3_encode(gb_bf16_decode(row[i]) / scale)) * scale);
    }
}

/* Through E2M1 with a scale of E4M3 for 16 columns. */
static void plant_x_nvfp4(struct injected *p)
{
    for (size_t first = 0; first < (size_t)p->shape.tokens * p->shape.hidden; first += 16) {
        float largest = 0.0f;
        size_t end = first + 16 < (size_t)p->shape.tokens * p->shape.hidden ? first + 16
                                                                            : (size_t)p->shape.tokens * p->shape.hidden;
        for (size_t i = first; i < end; i++)
            largest = fmaxf(largest, fabsf(gb_bf16_decode(p->x[i])));
        float scale = gb_e4m3_decode(gb_e4m3_encode(largest / 6.0f));
        for (size_t i = first; i < end; i++)
            p->x[i] = gb_bf16_encode(
                scale > 0.0f ? gb_e2m1_decode(gb_e2m1_encode(gb_bf16_decode(p->x[i]) / scale)) * scale : 0.0f);
    }
}

/* The last significand bit. */
static void plant_x_truncated(struct injected *p)
{
    for (size_t i = 0; i < (size_t)p->shape.tokens * p->shape.hidden; i++)
        p->x[i].bits &= 0xFFFE;
}

static const struct fault inputs[] = {
    PLANT("routing weight missing", INPUT, weights_missing, 0,
          "TensorRT-LLM #3492: weights set to one for input-side use"),
    PLANT("routing weight applied twice", INPUT, weights_squared, 0,
          "vLLM #43694: on the input and again on the output"),
    PLANT("routing weights uniform", INPUT, weights_uniform, 0, "a mean over experts in place of their weights"),
    PLANT("routed scaling factor missing", INPUT, weights_scaled, 1 / 2.5, "FlashInfer #3499: mRouteScale is 1.0"),
    PLANT("routed scaling factor applied twice", INPUT, weights_scaled, 2.5, "vLLM #24119, #45037"),
    PLANT("routing weight in bf16", INPUT, weights_bf16, 0, "vLLM #16674: topk_weights must be FP32"),
    PLANT("routing weight of the next slot", INPUT, weights_next_slot, 0, "weights and ids sorted apart"),
    PLANT("routing weights in reverse", INPUT, weights_reversed, 0, "ascending top-k against descending"),
    PLANT("routing weights of the next token", INPUT, weights_next_token, 0,
          "vLLM #52639: combine with other ids than dispatch"),
    PLANT("one expert dropped", INPUT, expert_dropped, 0, "FlashInfer #3547: experts of a shard give zero",
          .must_catch = true, .particular = true),
    PLANT("last expert dropped", INPUT, last_expert_dropped, 0, "an expert count one too small", .particular = true),
    PLANT("last slot dropped", INPUT, last_slot_dropped, 0, "a loop over top-k one too short", .particular = true),
    PLANT("last token of each expert dropped", INPUT, last_pair_dropped, 0, "vLLM-XPU #453: moe_align_block_size",
          .particular = true),
    PLANT("tokens over capacity dropped", INPUT, over_capacity, 0, "DeepSpeed #1492: capacity of an expert",
          .particular = true),
    PLANT("one token with a wrong expert", INPUT, wrong_expert, 0, "llama.cpp #5473: another top-k", .must_catch = true,
          .particular = true),
    PLANT("ids off by one expert", INPUT, next_expert, 0, "FlashInfer #3066: local_expert_offset dropped"),
    PLANT("ids exchanged between slots", INPUT, slots_exchanged, 0, "ids and weights permuted apart"),
    PLANT("expert of the first slot repeated", INPUT, expert_repeated, 0, "vLLM #31938: expert_map not modified"),
    PLANT("activations of the next token", INPUT, x_next_token, 0, "an off-by-one in the permutation of tokens"),
    PLANT("x quantised to E4M3", INPUT, x_e4m3, 0, "a W4A8 kernel where W4A16 is claimed"),
    PLANT("x quantised to NVFP4", INPUT, x_nvfp4, 0, "a W4A4 kernel where W4A16 is claimed"),
    PLANT("x without its last bit", INPUT, x_truncated, 0, "TF32-like truncation of an operand"),
};
const struct fault_table faults_inputs = {inputs, sizeof inputs / sizeof *inputs};
