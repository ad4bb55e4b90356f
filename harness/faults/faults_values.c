/* SPDX-License-Identifier: Apache-2.0 */
/* Faults in arithmetic: sums, the activation, the combine. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/faults/rows.h"
#include "quant/quant.h"

static size_t inner(const struct injected *p)
{
    return (size_t)p->shape.tokens * p->shape.top_k * p->shape.intermediate;
}

static float bf16(float v)
{
    return gb_bf16_decode(gb_bf16_encode(v));
}

/* Toward zero, to `bits` significand bits. */
static double truncated(double v, int bits)
{
    int exponent;
    double significand = frexp(v, &exponent);
    return ldexp(trunc(ldexp(significand, bits)), exponent - bits);
}

/* w . x with an accumulator of `bits` that truncates after each 32 products; the last `lost` columns are left out. */
static float poor_dot(const double *w, const double *x, uint32_t columns, uint32_t lost, int bits)
{
    double sum = 0.0;
    for (uint32_t i = 0; i + lost < columns; i++) {
        sum += w[i] * x[i];
        if (i % 32 == 31)
            sum = truncated(sum, bits);
    }
    return (float)sum;
}

/* Consecutive rows of one expert. */
struct rows {
    const struct gb_weights *weights;
    const float *bias; /* [count]; NULL: none */
    uint32_t expert, first, count;
    bool *no_memory; /* set where there is none */
};

/* Their products with one vector. results: [count]. */
static void poor_rows(const struct rows *rows, const double *x, uint32_t lost, int bits, float *results)
{
    uint32_t columns = rows->weights->columns;
    double *w = malloc(sizeof(double) * columns);
    if (!w) {
#pragma omp atomic write
        *rows->no_memory = true;
        return;
    }
    for (uint32_t r = 0; r < rows->count; r++) {
        gb_weights_row(rows->weights, rows->expert, rows->first + r, w);
        results[r] = poor_dot(w, x, columns, lost, bits) + (rows->bias ? rows->bias[r] : 0.0f);
    }
    free(w);
}

static void poor_projection(struct injected *p, uint32_t lost, int bits)
{
    const struct gb_arguments *a = &p->clean->arguments;
    uint32_t I = p->shape.intermediate, K = p->shape.top_k;
    double *operand = injected_operand(p, false);
#pragma omp parallel for schedule(dynamic)
    for (uint32_t pair = 0; pair < p->shape.tokens * K; pair++) {
        if (p->ids[pair] < 0 || !operand)
            continue;
        const double *x = operand + (size_t)(pair / K) * p->shape.hidden;
        struct rows rows = {&a->gate_up, NULL, (uint32_t)p->ids[pair], 0, I, &p->no_memory};
        rows.bias = a->gate_up_bias ? a->gate_up_bias + (size_t)rows.expert * 2 * I : NULL;
        poor_rows(&rows, x, lost, bits, p->gate + (size_t)pair * I);
        rows.first = I;
        rows.bias = rows.bias ? rows.bias + I : NULL;
        poor_rows(&rows, x, lost, bits, p->up + (size_t)pair * I);
    }
    free(operand);
}

static void plant_projection_accumulator(struct injected *p)
{
    poor_projection(p, 0, (int)p->fault->amount);
}

/* The last quarter of the columns. */
static void plant_projection_split_lost(struct injected *p)
{
    poor_projection(p, p->shape.hidden / 4, 53);
}

static void plant_projection_bf16(struct injected *p)
{
    for (size_t i = 0; i < inner(p); i++) {
        p->gate[i] = bf16(p->gate[i]);
        p->up[i] = bf16(p->up[i]);
    }
}

/* Not of the output. Biases are not weighed. */
static void plant_weights_on_input(struct injected *p)
{
    uint32_t I = p->shape.intermediate;
    const float *bias = p->clean->arguments.gate_up_bias;
    for (size_t i = 0; i < inner(p); i++)
        if (p->ids[i / I] >= 0) {
            const float *own = bias ? bias + (size_t)p->ids[i / I] * 2 * I + i % I : NULL;
            p->gate[i] += (p->gate[i] - (own ? own[0] : 0.0f)) * (p->routing_weights[i / I] - 1.0f);
            p->up[i] += (p->up[i] - (own ? own[I] : 0.0f)) * (p->routing_weights[i / I] - 1.0f);
        }
    for (size_t pair = 0; pair < inner(p) / I; pair++)
        p->routing_weights[pair] = 1.0f;
}

static void plant_projection_bias_missing(struct injected *p)
{
    const float *bias = p->clean->arguments.gate_up_bias;
    uint32_t I = p->shape.intermediate;
    for (size_t i = 0; bias && i < inner(p); i++)
        if (p->ids[i / I] >= 0) {
            p->gate[i] -= bias[(size_t)p->ids[i / I] * 2 * I + i % I];
            p->up[i] -= bias[(size_t)p->ids[i / I] * 2 * I + I + i % I];
        }
}

/* h = bf16(function(gate, up)) */
static void gated(struct injected *p, float (*function)(float gate, float up, float amount))
{
    for (size_t i = 0; i < inner(p); i++)
        p->intermediate[i] = gb_bf16_encode(function(p->gate[i], p->up[i], (float)p->fault->amount));
}

static float hard_swish(float gate, float up, float amount)
{
    (void)amount;
    return gate * fminf(fmaxf(gate + 3.0f, 0.0f), 6.0f) / 6.0f * up;
}

static float gelu(float gate, float up, float amount)
{
    (void)amount;
    return gate * 0.5f * (1.0f + erff(gate * (float)M_SQRT1_2)) * up;
}

static float relu(float gate, float up, float amount)
{
    (void)amount;
    return fmaxf(gate, 0.0f) * up;
}

static float alpha(float gate, float up, float amount)
{
    return gate * gb_sigmoid(amount * gate) * up;
}

static float clamped(float gate, float up, float amount)
{
    return gb_silu(fminf(gate, amount)) * fminf(fmaxf(up, -amount), amount);
}

static float of_up(float gate, float up, float amount)
{
    (void)amount;
    return gb_silu(up) * gate;
}

static float silu_bf16(float gate, float up, float amount)
{
    (void)amount;
    return bf16(gb_silu(gate)) * up;
}

static float plain(float gate, float up, float amount)
{
    (void)amount;
    return gb_silu(gate) * up;
}

/* A sigmoid of `amount` bits, as an approximate tanh or a table gives it. */
static float coarse(float gate, float up, float amount)
{
    return gate * (float)(rint((double)gb_sigmoid(gate) * exp2((double)amount)) / exp2((double)amount)) * up;
}

static float plus_one(float gate, float up, float amount)
{
    return gb_silu(gate) * (up + amount);
}

static void plant_silu_hard_swish(struct injected *p)
{
    gated(p, hard_swish);
}

static void plant_silu_gelu(struct injected *p)
{
    gated(p, gelu);
}

static void plant_silu_relu(struct injected *p)
{
    gated(p, relu);
}

static void plant_silu_alpha(struct injected *p)
{
    gated(p, alpha);
}

static void plant_silu_clamped(struct injected *p)
{
    gated(p, clamped);
}

static void plant_silu_of_up(struct injected *p)
{
    gated(p, of_up);
}

static void plant_silu_bf16(struct injected *p)
{
    gated(p, silu_bf16);
}

static void plant_silu_plain(struct injected *p)
{
    gated(p, plain);
}

static void plant_silu_coarse(struct injected *p)
{
    gated(p, coarse);
}

static void plant_up_plus_one(struct injected *p)
{
    gated(p, plus_one);
}

static void plant_intermediate_truncated(struct injected *p)
{
    for (size_t i = 0; i < inner(p); i++) {
        float h = gb_gated(p->clean->arguments.activation, p->gate[i], p->up[i]);
        uint32_t bits;
        memcpy(&bits, &h, sizeof bits);
        p->intermediate[i].bits = (uint16_t)(bits >> 16);
    }
}

/* Each run of `count` values through a format: encoded after division by largest / most, decoded again. */
static void requantise(struct injected *p, size_t count, float most, float (*through)(float v))
{
    for (size_t first = 0; first < inner(p); first += count) {
        size_t end = first + count < inner(p) ? first + count : inner(p);
        float largest = 0.0f;
        for (size_t i = first; i < end; i++)
            largest = fmaxf(largest, fabsf(gb_bf16_decode(p->intermediate[i])));
        float scale = largest > 0.0f ? largest / most : 1.0f;
        for (size_t i = first; i < end; i++)
            p->intermediate[i] = gb_bf16_encode(through(gb_bf16_decode(p->intermediate[i]) / scale) * scale);
    }
}

static float through_e4m3(float v)
{
    return gb_e4m3_decode(gb_e4m3_encode(v));
}

static float through_e2m1(float v)
{
    return gb_e2m1_decode(gb_e2m1_encode(v));
}

static void plant_intermediate_e4m3(struct injected *p)
{
    requantise(p, p->shape.intermediate, 448.0f, through_e4m3);
}

static void plant_intermediate_nvfp4(struct injected *p)
{
    requantise(p, 16, 6.0f, through_e2m1);
}

/* The last 16 neurons. */
static void plant_intermediate_tail_zero(struct injected *p)
{
    uint32_t I = p->shape.intermediate, tail = I < 16 ? I : 16;
    for (size_t row = I; row <= inner(p); row += I)
        memset(p->intermediate + row - tail, 0, tail * sizeof *p->intermediate);
}

static void plant_intermediate_next_slot(struct injected *p)
{
    size_t row = p->shape.intermediate, K = p->shape.top_k;
    for (size_t pair = 0; pair < (size_t)p->shape.tokens * K; pair++) {
        size_t next = (pair + 1) % K ? pair + 1 : pair + 1 - K;
        memcpy(p->intermediate + pair * row, p->clean->intermediate + next * row, row * sizeof *p->intermediate);
    }
}

/* A slot's dot products. */
static float *slot(struct injected *p, uint32_t token, uint32_t k)
{
    return p->slots + ((size_t)token * p->shape.top_k + k) * p->shape.hidden;
}

static void plant_slot_accumulator(struct injected *p)
{
    const struct gb_arguments *a = &p->clean->arguments;
    uint32_t H = p->shape.hidden, I = p->shape.intermediate;
    double *operand = injected_operand(p, true);
#pragma omp parallel for schedule(dynamic)
    for (uint32_t pair = 0; pair < p->shape.tokens * p->shape.top_k; pair++)
        if (p->ids[pair] >= 0 && operand) {
            struct rows rows = {&a->down, NULL, (uint32_t)p->ids[pair], 0, H, &p->no_memory};
            rows.bias = a->down_bias ? a->down_bias + (size_t)rows.expert * H : NULL;
            poor_rows(&rows, operand + (size_t)pair * I, 0, (int)p->fault->amount, p->slots + (size_t)pair * H);
        }
    free(operand);
}

static void plant_slot_bf16(struct injected *p)
{
    for (size_t i = 0; i < (size_t)p->shape.tokens * p->shape.top_k * p->shape.hidden; i++)
        p->slots[i] = bf16(p->slots[i]);
}

static void plant_slot_fp16(struct injected *p)
{
    for (size_t i = 0; i < (size_t)p->shape.tokens * p->shape.top_k * p->shape.hidden; i++)
        p->slots[i] = gb_fp16_decode(gb_fp16_encode(p->slots[i]));
}

static void plant_slot_bias_missing(struct injected *p)
{
    const float *bias = p->clean->arguments.down_bias;
    size_t H = p->shape.hidden;
    for (size_t i = 0; bias && i < (size_t)p->shape.tokens * p->shape.top_k * H; i++)
        if (p->ids[i / H] >= 0)
            p->slots[i] -= bias[(size_t)p->ids[i / H] * H + i % H];
}

/* One slot of one token is added twice; one is not added. */
static void plant_slot_twice(struct injected *p)
{
    for (uint32_t i = 0; i < p->shape.hidden; i++)
        slot(p, p->shape.tokens / 2, p->shape.top_k - 1)[i] *= 2.0f;
}

static void plant_slot_lost(struct injected *p)
{
    memset(slot(p, p->shape.tokens / 2, p->shape.top_k - 1), 0, p->shape.hidden * sizeof *p->slots);
}

/* The sum over slots, rounded to bf16 after each. */
static void plant_combine_bf16(struct injected *p)
{
    for (uint32_t t = 0; t < p->shape.tokens; t++)
        for (uint32_t row = 0; row < p->shape.hidden; row++) {
            float y = 0.0f;
            for (uint32_t k = 0; k < p->shape.top_k; k++)
                if (p->ids[(size_t)t * p->shape.top_k + k] >= 0)
                    y = bf16(fmaf(p->routing_weights[(size_t)t * p->shape.top_k + k], slot(p, t, k)[row], y));
            p->output[(size_t)t * p->shape.hidden + row] = y;
        }
}

static const struct fault projections[] = {
    PLANT("gate and up accumulated in bf16", PROJECTION, projection_accumulator, 8, "PyTorch #84402; DeepEP #176"),
    PLANT("gate and up accumulated in fp16", PROJECTION, projection_accumulator, 11, "ONNX Runtime #29166"),
    PLANT("gate and up accumulated in 14 bits", PROJECTION, projection_accumulator, 14,
          "DeepGEMM #37, #50: Hopper's FP8"),
    PLANT("split of K lost in gate and up", PROJECTION, projection_split_lost, 0,
          "TensorRT-LLM #12686: split_k drops work"),
    PLANT("gate and up rounded to bf16", PROJECTION, projection_bf16, 0,
          "vLLM #48847: the reference's other precision"),
    PLANT("bias of gate and up missing", PROJECTION, projection_bias_missing, 0, "a bias that this path does not read"),
    PLANT("routing weight on the input", PROJECTION, weights_on_input, 0,
          "TensorRT-LLM #3492, the other way: input-side weights where the output's are asked for"),
};
const struct fault_table faults_projections = {projections, sizeof projections / sizeof *projections};

static const struct fault activated[] = {
    PLANT("SiLU in place of the clamped activation", ACTIVATION, silu_plain, 0, "SGLang #39939; vLLM #43589"),
    PLANT("hard swish", ACTIVATION, silu_hard_swish, 0, "a cheaper activation of the same shape"),
    PLANT("GELU in place of SiLU", ACTIVATION, silu_gelu, 0, "SGLang #3170: the activation is a parameter"),
    PLANT("ReLU in place of SiLU", ACTIVATION, silu_relu, 0, "an activation enumerator off by one"),
    PLANT("sigmoid of 1.702 gate", ACTIVATION, silu_alpha, 1.702, "ONNX Runtime #28738: alpha of GPT-OSS for all"),
    PLANT("gate and up clamped at 7", ACTIVATION, silu_clamped, 7, "ONNX Runtime #28738: limit of GPT-OSS for all"),
    PLANT("gate and up clamped at 0.5", ACTIVATION, silu_clamped, 0.5, "SGLang #39939: a wrong swiglu_limit"),
    PLANT("up plus one", ACTIVATION, up_plus_one, 1, "vLLM #45738: SwigluBias"),
    PLANT("SiLU of up", ACTIVATION, silu_of_up, 0, "SGLang #25493: w13_swap_halves"),
    PLANT("SiLU rounded to bf16", ACTIVATION, silu_bf16, 0, "vLLM #48847: bf16 SiLU against FP32 SiLU"),
    PLANT("sigmoid of 10 bits", ACTIVATION, silu_coarse, 10, "tanh.approx, half precision exp"),
    PLANT("intermediate truncated to bf16", ACTIVATION, intermediate_truncated, 0,
          "the upper half of the bits, without rounding"),
    PLANT("intermediate quantised to E4M3", ACTIVATION, intermediate_e4m3, 0,
          "vLLM #45332: re-quantisation between the products"),
    PLANT("intermediate quantised to NVFP4", ACTIVATION, intermediate_nvfp4, 0, "a W4A4 kernel where W4A16 is claimed"),
    PLANT("last 16 neurons zero", ACTIVATION, intermediate_tail_zero, 0, "a tile of the intermediate not written"),
    PLANT("intermediate of the next slot", ACTIVATION, intermediate_next_slot, 0, "inverse permutation off by one"),
};
const struct fault_table faults_activated = {activated, sizeof activated / sizeof *activated};

static const struct fault slots[] = {
    PLANT("down accumulated in bf16", SLOT, slot_accumulator, 8, "PyTorch #84402; DeepEP #176"),
    PLANT("down accumulated in 14 bits", SLOT, slot_accumulator, 14, "DeepGEMM #37, #50: Hopper's FP8"),
    PLANT("slots rounded to bf16", SLOT, slot_bf16, 0, "TIRx #208: each contribution in bf16"),
    PLANT("slots rounded to fp16", SLOT, slot_fp16, 0, "an fp16 output of the second product"),
    PLANT("bias of down missing", SLOT, slot_bias_missing, 0, "a bias that this path does not read"),
    PLANT("one slot added twice", SLOT, slot_twice, 0, "an atomic add repeated", .particular = true),
    PLANT("one slot lost", SLOT, slot_lost, 0, "vLLM #56887: atomic adds, a lost update", .particular = true),

    PLANT("sum over slots in bf16", COMBINE, combine_bf16, 0, "vLLM #15045: moe_sum_kernel"),
};
const struct fault_table faults_slots = {slots, sizeof slots / sizeof *slots};
