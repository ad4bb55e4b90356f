/* SPDX-License-Identifier: Apache-2.0 */
/* Problems of a router, and recipes, at random. */
#ifndef GB_TESTS_GPU_ROUTE_PROBLEM_CUH
#define GB_TESTS_GPU_ROUTE_PROBLEM_CUH

#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "quant/quant.h"

/* gaussian: logits of order 1; ties: one of three rows for each expert; edge: NaN, infinities, zeros, differences that
 * underflow e^x; negative: biases that make most choices negative; close: 16 experts whose logits differ by units in
 * the last place, and others nearer to zero; zeros: logits of 0 and 2^-140 of both signs, zeros of both signs in bf16,
 * behind two that are greater. */
enum kind { GAUSSIAN, TIES, EDGE, NEGATIVE, CLOSE, ZEROS, KINDS };
inline const char *const kind_names[KINDS] = {"gaussian", "ties", "edge", "negative", "close", "zeros"};

/* splitmix64, and the sum of its four parts, of mean 0 and variance 1 */
inline uint64_t random_bits(uint64_t &state)
{
    uint64_t z = state += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

inline uint32_t random_below(uint64_t &state, uint32_t count)
{
    return (uint32_t)((random_bits(state) >> 32) * count >> 32);
}

inline float random_gaussian(uint64_t &state)
{
    const uint64_t bits = random_bits(state);
    const uint32_t sum = (uint32_t)((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48));
    return ((float)sum - 2 * 65535.0f) * (1.7320508f / 65536); /* a uniform one of width 1 has the variance 1/12 */
}

/* Host inputs of one problem. */
struct problem {
    struct gb_shape shape;
    enum kind kind;
    std::vector<gb_bf16> x, router;
    std::vector<float> bias;
};

inline struct problem make(const struct gb_shape &shape, enum kind kind, uint64_t state)
{
    static const uint16_t tiny[] = {0x0000, 0x0D80, 0x8D80}; /* 0, 2^-100, -2^-100 */
    static const uint16_t edges[] = {0x7FC0, 0x7F80, 0xFF80, 0x0000, 0x8000, 0x42B0, 0xC2D0, 0x7F7F, 0xFF7F, 0x0001};
    const size_t hidden = shape.hidden;
    const float size = 1.0f / sqrtf((float)hidden);
    struct problem p = {shape, kind, {}, {}, {}};
    p.x.resize(shape.tokens * hidden);
    p.router.resize(shape.experts * hidden);
    p.bias.resize(shape.experts);
    for (gb_bf16 &x : p.x)
        x = gb_bf16_encode(random_gaussian(state));
    for (uint32_t e = 0; e < shape.experts; e++) {
        gb_bf16 *row = &p.router[e * hidden];
        for (size_t i = 0; i < hidden; i++)
            row[i] = gb_bf16_encode((kind == CLOSE && e >= 16 ? size / 4 : size) * random_gaussian(state));
        if (kind == TIES && e >= 3)
            memcpy(row, &p.router[random_below(state, 3) * hidden], sizeof(gb_bf16) * hidden);
        if (kind == CLOSE && e < 16) {
            memcpy(row, p.router.data(), sizeof(gb_bf16) * hidden);
            row[0] = gb_bf16_encode(ldexpf((float)random_below(state, 8), -24));
        }
        if (kind == EDGE && random_below(state, 2)) {
            memset(row, 0, sizeof(gb_bf16) * hidden);
            row[0].bits = edges[random_below(state, sizeof edges / sizeof *edges)];
        }
        if (kind == ZEROS) {
            memset(row, 0, sizeof(gb_bf16) * hidden);
            row[0].bits = e < 2 ? (uint16_t)(0x5380 - 0x80 * e) : tiny[random_below(state, 3)]; /* 2^40, 2^39 */
        }
        p.bias[e] = kind == TIES ? (float)random_below(state, 2) / 4 : random_gaussian(state) / 8;
        p.bias[e] -= kind == NEGATIVE ? 0.75f : 0.0f;
    }
    for (uint32_t t = 0; kind == EDGE && t < shape.tokens; t++)
        p.x[t * hidden].bits = t % 2 ? 0x3F80 : 0xBF80;
    for (uint32_t t = 0; kind == ZEROS && t < shape.tokens; t++) {
        memset(&p.x[t * hidden], 0, sizeof(gb_bf16) * hidden);
        p.x[t * hidden].bits = 0x2B80; /* 2^-40 */
    }
    return p;
}

/* A recipe that no system has, on 24 experts: all values of all fields meet. */
inline struct gb_router random_router(uint64_t &state)
{
    static const float masks[] = {0.0f, -INFINITY, FLT_MIN, NAN, 0.25f}, epsilons[] = {0.0f, 1e-20f, 0.125f};
    static const float scales[] = {1.0f, 2.5f, 2.827f};
    static const uint32_t divisors[] = {1, 2, 4, 6, 8, 12, 24};
    struct gb_router r = {};
    r.size = sizeof r;
    r.logits = random_below(state, 2) ? GB_FP32 : GB_BF16;
    r.bias = (enum gb_router_bias)(1 + random_below(state, GB_ROUTER_BIAS_LOSSY));
    r.score = (enum gb_router_score)(1 + random_below(state, GB_ROUTER_SCORE_SIGMOID));
    r.nonfinite = (enum gb_router_nonfinite)(1 + random_below(state, GB_ROUTER_NONFINITE_BIASED));
    r.replacement = masks[random_below(state, 5)];
    r.groups = divisors[random_below(state, 7)];
    r.kept_groups = 1 + random_below(state, r.groups);
    r.group_terms = random_below(state, 5);
    r.masked = masks[random_below(state, 5)];
    r.weight = (enum gb_router_weight)(1 + random_below(state, GB_ROUTER_WEIGHT_SIGMOID));
    r.renormalise = (enum gb_router_renormalise)(1 + random_below(state, GB_ROUTER_RENORMALISE_SCALED_DIVIDE));
    r.renormalise_from = 1 + random_below(state, 3);
    r.zero_sum_is_one = random_below(state, 2);
    r.epsilon = epsilons[random_below(state, 3)];
    r.scale = scales[random_below(state, 3)];
    r.weights = random_below(state, 2) ? GB_FP32 : GB_BF16;
    r.side = GB_ROUTER_ON_OUTPUT;
    return r;
}

#endif
