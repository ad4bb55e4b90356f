/* SPDX-License-Identifier: Apache-2.0 */
/* The domain of quantise and silu_mul_quantise: docs/numerics.md#quantise. */
#include <cmath>

#include "gpu/kernels.cuh"

static enum gb_status check_rules(const struct gb_quantisation *q, struct gb_error *error)
{
    const struct gb_quantiser *rules = &q->quantiser;
    const uint32_t block = rules->block_columns;
    if (rules->element < GB_E2M1 || rules->element > GB_INT8 || rules->scale < GB_SCALE_E4M3 ||
        rules->scale > GB_SCALE_FP32)
        return gb_cuda_fail(error, GB_EINVAL, "element %d with scale %d: the recipe has one that does not exist",
                            (int)rules->element, (int)rules->scale);
    if (rules->block_rows != 1 || (block != 16 && block != 32 && block != 64 && block != 128))
        return gb_cuda_fail(error, GB_EINVAL, "blocks of %u x %u; a block is 1 row of 16, 32, 64 or 128 columns",
                            rules->block_rows, block);
    if (rules->scale == GB_SCALE_FP32 && block < 64)
        return gb_cuda_fail(error, GB_EINVAL, "groups of %u; those with FP32 scales have 64 or 128 values", block);
    if (q->columns % block)
        return gb_cuda_fail(error, GB_EINVAL, "%u columns are no multiple of the group of %u", q->columns, block);
    if (!(q->bound > 0.0f))
        return gb_cuda_fail(error, GB_EINVAL, "the bound %g is not above zero; none is INFINITY", (double)q->bound);
    if (!std::isinf(q->bound) && rules->bound == GB_BOUND_NONE)
        return gb_cuda_fail(error, GB_EINVAL, "the bound %g is given, but %s", (double)q->bound,
                            rules->element == GB_INT8 ? "INT8 recipes take none" : "the recipe takes none");
    if (rules->global != GB_GLOBAL_NONE && !(std::isnormal(q->global_scale) && q->global_scale > 0.0f))
        return gb_cuda_fail(error, GB_EINVAL, "the global scale %g is no positive normal number",
                            (double)q->global_scale);
    return GB_OK;
}

enum gb_status gb_cuda_quantise_check(const struct gb_quantisation *q, enum gb_operator operation,
                                      struct gb_error *error)
{
    const bool gated = operation == GB_SILU_MUL_QUANTISE;
    if (!q || q->size < sizeof *q)
        return gb_cuda_fail(error, GB_EINVAL, "no struct gb_quantisation of at least %zu bytes", sizeof *q);
    if (q->input != GB_BF16 && q->input != GB_FP16)
        return gb_cuda_fail(error, GB_EINVAL, "values of format %d; bf16 is %d and fp16 is %d", (int)q->input, GB_BF16,
                            GB_FP16);
    if (!q->rows || !q->columns || q->columns > 1u << 24 || (uint64_t)q->rows * (q->columns / 16) >= 1u << 31)
        return gb_cuda_fail(error, GB_EINVAL,
                            "%u rows of %u columns; at least 1 each, at most 2^24 columns and 2^35 values", q->rows,
                            q->columns);
    if (q->input_columns != (gated ? 2 * q->columns : q->columns))
        return gb_cuda_fail(error, GB_EINVAL, "an input %u wide; %u columns are made from %u", q->input_columns,
                            q->columns, gated ? 2 * q->columns : q->columns);
    if (q->layout != GB_SCALES_LINEAR && q->layout != GB_SCALES_TRANSPOSED)
        return gb_cuda_fail(error, GB_EINVAL, "scale layout %d does not exist", (int)q->layout);
    if (gated && (q->silu < GB_SILU_EXACT || q->silu > GB_SILU_RECIPROCAL))
        return gb_cuda_fail(error, GB_EINVAL, "form %d of silu does not exist", (int)q->silu);
    if (gated &&
        ((q->activated != GB_FP32 && q->activated != q->input) || (q->product != GB_FP32 && q->product != q->input)))
        return gb_cuda_fail(error, GB_EINVAL, "roundings to formats %d and %d; each is FP32 (%d) or the input's (%d)",
                            (int)q->activated, (int)q->product, GB_FP32, (int)q->input);
    return check_rules(q, error);
}
