/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that candidates.cu measures beside those of gpu/: NVFP4 in other orders, and reading alone. */
#ifndef GB_TESTS_GPU_CANDIDATES_CUH
#define GB_TESTS_GPU_CANDIDATES_CUH

#include "gpu/down.cuh"
#include "gpu/gate_up.cuh"

/* E2M1 codes by way of fp16: s ee m in fp16's fields is the value times 2^-14. Two codes at a time. */
struct gb_decode_by_fp16 {
    static constexpr float factor = 0x1p+14f;
    static __device__ __forceinline__ void decode(uint32_t codes, float (&w)[8])
    {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t sign = (i == 3 ? codes : codes << (12 - 4 * i)) & 0x80008000u;
            const uint32_t rest = (i == 3 ? codes >> 3 : codes << (9 - 4 * i)) & 0x0E000E00u;
            w[i] = __half2float(__ushort_as_half((unsigned short)(sign | rest)));
            w[i + 4] = __half2float(__ushort_as_half((unsigned short)((sign | rest) >> 16)));
        }
    }
};

struct gb_decode_by_bytes {
    static constexpr float factor = GB_E2M1_FACTOR;
    static __device__ __forceinline__ void decode(uint32_t codes, float (&w)[8])
    {
        gb_e2m1x8_decode(codes, w);
    }
};

/* NVFP4 for rows of whole chunks: Chunk elements to a lane at a time; Premultiplied: order B. */
template <uint32_t Chunk, bool Premultiplied, class Decode = gb_decode_by_bytes>
struct gb_candidate : gb_cuda_nvfp4<true> {
    static constexpr uint32_t chunk = Chunk;
    static constexpr float x_factor = Decode::factor;
    static __device__ __forceinline__ uint32_t runs(uint32_t, uint32_t)
    {
        return Chunk / run;
    }
    static __device__ __forceinline__ gb_cuda_chunk load(const gb_cuda_row &row, uint32_t c, uint32_t columns)
    {
        if (Chunk == 32)
            return gb_cuda_nvfp4<true>::load(row, c, columns);
        const uint2 codes = __ldg((const uint2 *)row.codes + c);
        return {make_uint4(codes.x, codes.y, 0, 0), __ldg(row.scales + c)};
    }
    template <uint32_t Rows, uint32_t Tokens, bool Huge>
    static __device__ __forceinline__ void run_fma(const gb_cuda_chunk (&data)[Rows], uint32_t r,
                                                   const float *const (&x)[Tokens], float (&acc)[Rows * Tokens])
    {
        float p[Rows * Tokens], s[Rows][2];
#pragma unroll
        for (uint32_t n = 0; n < Rows; n++) {
            gb_e4m3x2_decode((uint16_t)data[n].scales, &s[n][0], &s[n][1]);
#pragma unroll
            for (uint32_t t = 0; t < Tokens; t++)
                p[n * Tokens + t] = Premultiplied ? acc[n * Tokens + t] : 0.0f;
        }
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            float w[Rows][8];
#pragma unroll
            for (uint32_t n = 0; n < Rows; n++) {
                Decode::decode(gb_word(data[n].codes, 2 * r + half), w[n]);
                for (uint32_t i = 0; i < 8; i++) {
                    w[n][i] = Huge ? __fmul_rn(w[n][i], x_factor) : w[n][i];
                    w[n][i] = Premultiplied ? __fmul_rn(w[n][i], s[n][r]) : w[n][i];
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < 8; i += 4)
#pragma unroll
                for (uint32_t t = 0; t < Tokens; t++) {
                    const float4 v = *(const float4 *)(x[t] + 8 * half + i);
                    const float xs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                    for (uint32_t n = 0; n < Rows; n++)
#pragma unroll
                        for (uint32_t j = 0; j < 4; j++)
                            p[n * Tokens + t] = __fmaf_rn(w[n][i + j], xs[j], p[n * Tokens + t]);
                }
        }
#pragma unroll
        for (uint32_t n = 0; n < Rows; n++)
#pragma unroll
            for (uint32_t t = 0; t < Tokens; t++)
                acc[n * Tokens + t] =
                    Premultiplied ? p[n * Tokens + t] : __fmaf_rn(s[n][r], p[n * Tokens + t], acc[n * Tokens + t]);
    }
};

/* down in order B. Team: Rows output rows, every slot; a slot's row is at most 32 chunks, one round. */
template <class Format, class Tile>
__global__ void __launch_bounds__(Tile::Threads, Tile::Resident)
    gb_folded_kernel(const __grid_constant__ struct gb_arguments a)
{
    extern __shared__ float4 shared[];
    __shared__ gb_slot_list list;
    constexpr uint32_t Lanes = Tile::Lanes, Rows = Tile::Rows;
    const uint32_t columns = a.shape.intermediate, lane = threadIdx.x % Lanes;
    const uint32_t row = blockIdx.x * Tile::Block + threadIdx.x / Lanes * Rows;
    const uint32_t stride = gb_staged_floats<Format>(columns);
    const size_t pair = (size_t)blockIdx.y * a.shape.top_k;
    float *staged = (float *)shared;
    if (threadIdx.x < 32)
        gb_list_slots(a.ids + pair, a.shape, &list);
    __syncthreads();
    const auto rows_of = [&](uint32_t j, gb_cuda_row(&rows)[Rows]) {
        for (uint32_t n = 0; n < Rows; n++)
            rows[n] = Format::row(a.down, list.expert[j], row + n);
    };
    const auto source = [&](uint32_t j) { return a.intermediate + (pair + list.slot[j]) * columns; };
    float total[32 / Lanes][Rows] = {};
    gb_cuda_round<Lanes, Rows> round;
    rows_of(0, round.rows);
    for (uint32_t k = 0; k < 32 / Lanes; k++)
        gb_round_load<Format>(round, k, lane + k * Lanes, columns);
    gb_stage<Format>(list.count, columns, source, Format::x_factor, staged);
    __syncthreads();
    for (uint32_t j = 0; j < list.count; j++) {
        const auto x_of = [&](uint32_t) { return staged + j * stride; };
        const float weight =
            __fmul_rn(a.routing_weights[pair + list.slot[j]], gb_cuda_global(a.down, list.expert[j], 0));
        if (j + 1 < list.count)
            rows_of(j + 1, round.rows);
#pragma unroll
        for (uint32_t k = 0; k < 32 / Lanes; k++) {
            float acc[Rows] = {};
            gb_chunk_fma<Format, Lanes, Rows, 1, false>(round, k, lane + k * Lanes, columns, x_of, acc);
            if (j + 1 < list.count)
                gb_round_load<Format>(round, k, lane + k * Lanes, columns);
            for (uint32_t n = 0; n < Rows; n++)
                total[k][n] = __fmaf_rn(weight, acc[n], total[k][n]);
        }
    }
    const float y = gb_butterfly<Lanes, Rows>(total);
    if (lane % (Lanes / Rows) == 0)
        ((float *)a.output)[(size_t)blockIdx.y * a.shape.hidden + row + lane / (Lanes / Rows)] = y;
}

/* Reads the codes and scales of experts[blockIdx.y], 32 KiB a block, four 16-byte loads under way in each thread. */
static __global__ void __launch_bounds__(512) gb_read_kernel(struct gb_weights w, const int32_t *experts,
                                                             uint32_t code_words, uint32_t scale_words, uint32_t *sink)
{
    const size_t e = (size_t)experts[blockIdx.y];
    const uint4 *codes = (const uint4 *)w.codes + e * code_words, *scales = (const uint4 *)w.scales + e * scale_words;
    uint32_t sum = 0;
    uint4 v[4] = {};
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t i = (blockIdx.x * 4 + k) * 512 + threadIdx.x;
        if (i < code_words)
            v[k] = __ldg(codes + i);
        else if (i - code_words < scale_words)
            v[k] = __ldg(scales + (i - code_words));
    }
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    if (sum == 0x9E3779B9u && threadIdx.x == 512) /* never; keeps the loads */
        *sink = sum;
}

/* Words first .. of a pseudorandom sequence, kept where `keep` has ones and with `set` set. */
static __global__ void gb_fill_kernel(uint32_t *words, size_t count, uint32_t seed, uint32_t keep, uint32_t set)
{
    for (size_t i = blockIdx.x * 256 + threadIdx.x; i < count; i += (size_t)gridDim.x * 256) {
        uint64_t z = (i + ((uint64_t)seed << 40)) * 0x9E3779B97F4A7C15ull;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        words[i] = ((uint32_t)(z >> 32) & keep) | set;
    }
}

#endif
