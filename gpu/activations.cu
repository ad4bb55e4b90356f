/* SPDX-License-Identifier: Apache-2.0 */
/* Activations quantised, and as the dot products read them: docs/numerics.md#quantised-activations. */
#include <cmath>

#include "gpu/bf16.cuh"
#include "gpu/e2m1.cuh"
#include "gpu/e4m3.cuh"
#include "gpu/e8m0.cuh"
#include "gpu/kernels.cuh"

namespace
{

constexpr uint32_t threads = 256, at_once = 8; /* values of a thread, all of one block */

__device__ __forceinline__ uint32_t bf16_pair(float low, float high)
{
    return (uint32_t)gb_bf16_round(low) | (uint32_t)gb_bf16_round(high) << 16;
}

/* bf16(RN(code * scale)) of every code. codes: [count] E2M1, two a byte, or E4M3; numbers: [count]. */
template <enum gb_format Format>
__global__ void __launch_bounds__(threads)
    gb_decode_kernel(const void *codes, const uint8_t *scales, uint64_t count, gb_bf16 *numbers)
{
    const uint64_t group = (uint64_t)blockIdx.x * threads + threadIdx.x;
    if (group * at_once >= count)
        return;
    float v[at_once], scale;
    if (Format == GB_NVFP4) {
        float unused;
        gb_e2m1x8_decode(((const uint32_t *)codes)[group], v);
        gb_e4m3x2_decode(scales[group * at_once / 16], &scale, &unused);
        scale = __fmul_rn(scale, GB_E2M1_FACTOR); /* a power of two: what is decoded lacks it */
    } else {
        const uint2 words = ((const uint2 *)codes)[group];
        gb_e4m3x2_decode((uint16_t)words.x, &v[0], &v[1]);
        gb_e4m3x2_decode((uint16_t)(words.x >> 16), &v[2], &v[3]);
        gb_e4m3x2_decode((uint16_t)words.y, &v[4], &v[5]);
        gb_e4m3x2_decode((uint16_t)(words.y >> 16), &v[6], &v[7]);
        scale = gb_e8m0_decode(scales[group * at_once / 32]);
    }
#pragma unroll
    for (uint32_t i = 0; i < at_once; i++)
        v[i] = __fmul_rn(v[i], scale);
    ((uint4 *)numbers)[group] =
        make_uint4(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]), bf16_pair(v[6], v[7]));
}

/* RN(g * d) of every global scale. */
__global__ void __launch_bounds__(threads) gb_scale_kernel(const float *globals, float d, uint32_t count, float *scaled)
{
    const uint32_t i = blockIdx.x * threads + threadIdx.x;
    if (i < count)
        scaled[i] = __fmul_rn(globals[i], d);
}

/* x of gate_up, or the intermediate of down. */
struct source {
    const gb_bf16 *values; /* [rows, columns] */
    uint32_t rows, columns;
    float global; /* decoding */
    void *codes, *scales;
};

struct source source_of(const struct gb_arguments *a, enum gb_operator operation)
{
    const struct gb_shape &s = a->shape;
    if (operation == GB_DOWN)
        return {a->intermediate,       s.tokens * s.top_k,    s.intermediate,
                a->intermediate_scale, a->intermediate_codes, a->intermediate_scales};
    return {a->x, s.tokens, s.hidden, a->x_scale, a->x_codes, a->x_scales};
}

size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Bytes of the numbers of x or of the intermediate, whichever are more. */
size_t numbers_bytes(const struct gb_shape *s)
{
    const size_t x = (size_t)s->tokens * s->hidden, inner = (size_t)s->tokens * s->top_k * s->intermediate;
    return aligned(sizeof(gb_bf16) * (x > inner ? x : inner));
}

template <enum gb_format Format>
enum gb_status decode(const struct source &from, void *stream, gb_bf16 *numbers, struct gb_error *error)
{
    const uint64_t count = (uint64_t)from.rows * from.columns;
    return gb_cuda_launch("decode", gb_decode_kernel<Format>,
                          dim3((unsigned)((count / at_once + threads - 1) / threads)), threads, 0, stream, error,
                          (const void *)from.codes, (const uint8_t *)from.scales, count, numbers);
}

struct gb_quantisation quantisation_of(const struct gb_quantiser *rules, const struct source &from)
{
    struct gb_quantisation q = {};
    q.size = sizeof q;
    q.input = GB_BF16;
    q.rows = from.rows;
    q.columns = q.input_columns = from.columns;
    q.quantiser = *rules;
    q.layout = GB_SCALES_LINEAR;
    q.bound = INFINITY;
    q.global_scale = rules->global == GB_GLOBAL_DECODE ? from.global : 1.0f / from.global;
    return q;
}

} // namespace

size_t gb_cuda_activations_workspace(const struct gb_shape *shape)
{
    return numbers_bytes(shape) + sizeof(float) * 2 * shape->experts;
}

enum gb_status gb_cuda_activations_check(enum gb_format format, const struct gb_quantiser *rules,
                                         const struct gb_shape *shape, struct gb_error *error)
{
    const bool nvfp4 =
        rules && rules->element == GB_E2M1 && rules->scale == GB_SCALE_E4M3 && rules->block_columns == 16;
    const bool mxfp8 =
        rules && rules->element == GB_E4M3 && rules->scale == GB_SCALE_E8M0 && rules->block_columns == 32;
    if (!rules || rules->block_rows != 1 || (format == GB_NVFP4 ? !nvfp4 : !mxfp8))
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "activations of another recipe than this kernel's format %d",
                            (int)format);
    if (shape->hidden % rules->block_columns || shape->intermediate % rules->block_columns)
        return gb_cuda_fail(error, GB_EUNSUPPORTED,
                            "hidden %u or intermediate %u is no multiple of %u, activations' block", shape->hidden,
                            shape->intermediate, rules->block_columns);
    return GB_OK;
}

enum gb_status gb_cuda_activations(enum gb_operator operation, struct gb_arguments *a, struct gb_error *error)
{
    const struct source from = source_of(a, operation);
    const struct gb_quantiser *rules = a->activation_rules;
    const struct gb_quantisation q = quantisation_of(rules, from);
    struct gb_weights *weights = operation == GB_DOWN ? &a->down : &a->gate_up;
    if (!from.values || !from.codes || !from.scales || !a->workspace)
        return gb_cuda_fail(error, GB_EINVAL, "a buffer that quantised activations need is NULL");
    enum gb_status status = gb_cuda_quantise_check(&q, GB_QUANTISE, error);
    if (status != GB_OK)
        return status;
    struct gb_arguments asked = *a;
    asked.quantise = &q;
    asked.values = from.values;
    asked.codes = from.codes;
    asked.scales = from.scales;
    gb_bf16 *numbers = (gb_bf16 *)a->workspace;
    float *scaled = (float *)((char *)a->workspace + numbers_bytes(&a->shape));
    status = gb_cuda_quantise(&asked, error);
    if (status == GB_OK)
        status = rules->element == GB_E2M1 ? decode<GB_NVFP4>(from, a->stream, numbers, error)
                                           : decode<GB_MXFP8>(from, a->stream, numbers, error);
    if (status == GB_OK && rules->global != GB_GLOBAL_NONE) {
        const uint32_t count = weights->experts * weights->halves;
        status = gb_cuda_launch("scale", gb_scale_kernel, dim3((count + threads - 1) / threads), threads, 0, a->stream,
                                error, weights->global_scales, from.global, count, scaled);
        weights->global_scales = scaled;
    }
    if (operation == GB_DOWN)
        a->intermediate = numbers;
    else
        a->x = numbers;
    return status;
}
