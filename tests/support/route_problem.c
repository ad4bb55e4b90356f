/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/route_problem.h"

#include "quant/quant.h"
#include "tests/support/check.h"

static void *new_bytes(size_t bytes)
{
    void *made = malloc(bytes);
    assert_non_null(made);
    memset(made, 0xA5, bytes);
    return made;
}

void route_problem_new(struct route_problem *p, struct gb_shape shape, enum route_kind kind, uint64_t seed)
{
    static const uint16_t edges[] = {0x7FC0, 0x7F80, 0xFF80, 0x0000, 0x8000, 0x42B0, 0xC2D0, 0x7F7F, 0xFF7F, 0x0001};
    size_t pairs = (size_t)shape.tokens * shape.top_k;
    p->x = new_bytes(sizeof(gb_bf16) * shape.tokens * shape.hidden);
    p->router = new_bytes(sizeof(gb_bf16) * shape.experts * shape.hidden);
    p->bias = new_bytes(sizeof(float) * shape.experts);
    p->ids = new_bytes(sizeof(int32_t) * pairs);
    p->expected_ids = new_bytes(sizeof(int32_t) * pairs);
    p->weights = new_bytes(sizeof(float) * pairs);
    p->expected = new_bytes(sizeof(float) * pairs);
    for (size_t i = 0; i < (size_t)shape.tokens * shape.hidden; i++)
        p->x[i] = gb_bf16_encode((float)random_gaussian(&seed));
    for (uint32_t e = 0; e < shape.experts; e++) {
        gb_bf16 *row = p->router + (size_t)e * shape.hidden;
        for (uint32_t i = 0; i < shape.hidden; i++)
            row[i] = gb_bf16_encode((float)(random_gaussian(&seed) / sqrt(shape.hidden)));
        if (kind == ROUTE_TIES && e >= 3) /* one of three rows */
            memcpy(row, p->router + (size_t)random_below(&seed, 3) * shape.hidden, sizeof(gb_bf16) * shape.hidden);
        if (kind == ROUTE_EDGE && random_below(&seed, 2)) {
            memset(row, 0, sizeof(gb_bf16) * shape.hidden);
            row[0].bits = edges[random_below(&seed, sizeof edges / sizeof *edges)];
        }
        p->bias[e] = (float)random_gaussian(&seed) / 8;
        if (kind == ROUTE_TIES)
            p->bias[e] = (float)random_below(&seed, 2) / 4;
        if (kind == ROUTE_NEGATIVE)
            p->bias[e] -= 0.75f;
    }
    if (kind == ROUTE_EDGE)
        for (uint32_t t = 0; t < shape.tokens; t++)
            p->x[(size_t)t * shape.hidden].bits = t % 2 ? 0x3F80 : 0xBF80;
    p->arguments = (struct gb_arguments){
        .size = sizeof p->arguments,
        .shape = shape,
        .x = p->x,
        .router_weights = {GB_BF16, 1, shape.experts, shape.hidden, 1, p->router, NULL, NULL},
        .router_bias = p->bias,
        .routed_ids = p->ids,
        .routed_weights = p->weights,
    };
}

void route_problem_free(struct route_problem *p)
{
    free(p->x);
    free(p->router);
    free(p->bias);
    free(p->ids);
    free(p->expected_ids);
    free(p->weights);
    free(p->expected);
}
