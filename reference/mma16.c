/* SPDX-License-Identifier: Apache-2.0 */
/* The order mma16-sm90/1: which path computes it. */
#include "reference/mma16.h"
#include "reference/order.h"

#if !defined(__x86_64__)
#define gb_mma16_dots_avx2 NULL
#define gb_mma16_dots_avx512 NULL
#endif

static enum gb_cpu_path path_of(enum gb_format weights)
{
    (void)weights;
    return gb_cpu_path_get();
}

static size_t vector_bytes(enum gb_cpu_path path, enum gb_format weights, uint32_t columns)
{
    (void)path;
    return (gb_mma16_arranged_floats(weights, columns) * sizeof(float) + 63) / 64 * 64;
}

static void arrange(enum gb_cpu_path path, enum gb_format weights, const gb_bf16 *x, uint32_t columns, void *values)
{
    float *to = values;
    (void)path;
    gb_bf16_decode_all(x, columns, to);
    gb_mma16_arrange(weights, columns, to, to);
}

static void all_dots(const struct gb_product *product, struct gb_row *decoded, float *dots)
{
    static void (*const paths[])(const struct gb_weights *, uint32_t, uint32_t, uint32_t, uint32_t,
                                 const float *const *, float *) = {
        [GB_CPU_PLAIN] = gb_mma16_dots,
        [GB_CPU_AVX2] = gb_mma16_dots_avx2,
        [GB_CPU_AVX512] = gb_mma16_dots_avx512,
    };
    (void)decoded;
    paths[product->path](product->weights, product->expert, product->row, product->rows, product->count,
                         (const float *const *)product->x, dots);
}

const struct gb_order gb_mma16 = {GB_ORDER_MMA16_SM90, path_of, vector_bytes, arrange, all_dots};
