/* SPDX-License-Identifier: Apache-2.0 */
/* gate_up and down on tensor cores, in the orders mma16-sm90/1 and, of NVFP4 weights, fma32/1: launches, the combine,
 * and the repacked layout. */
#include <algorithm>
#include <cstddef>

#include "gpu/fma32_runs.cuh"
#include "gpu/kernels.cuh"
#include "gpu/mma16_one_token.cuh"
#include "gpu/mma16_turns.cuh"

namespace
{

uint32_t tiles_of(const struct gb_weights &weights)
{
    return weights.rows / gb_mma16_tile;
}

template <class Format> size_t record_bytes(const struct gb_weights &weights)
{
    return (size_t)weights.experts * tiles_of(weights) * gb_mma16_steps<Format>(weights.columns) *
           gb_mma16_records<Format, true>::bytes;
}

constexpr uint32_t step_codes = gb_mma16_tile * gb_mma16_step_bytes; /* bytes of a record's codes */

/* Whether one of a block's codes is NaN. */
template <class Format> __device__ bool has_nan(const uint8_t *codes)
{
    if (Format::format == GB_MXFP8)
        for (uint32_t i = 0; i < Format::block; i++)
            if ((codes[i] & 0x7F) == 0x7F)
                return true;
    return false;
}

/* A thread for every word of codes, and for every scale, of a record; block (record), in the order of the codes.
 * padding: the scale of columns that a row does not have. unkept: out, 1 if there is what records cannot have. */
template <class Format, bool GateUp>
__global__ void repack_kernel(const __grid_constant__ struct gb_weights weights, uint32_t tiles, uint32_t steps,
                              uint8_t padding, uint8_t *records, uint32_t *unkept)
{
    const uint32_t step = blockIdx.x % steps, tile = blockIdx.x / steps % tiles, expert = blockIdx.x / steps / tiles;
    const uint32_t code_bytes = gb_mma16_code_bytes<Format>(weights.columns);
    const uint32_t scale_bytes = weights.columns / Format::block;
    const uint32_t n = tile % gb_mma16_group(tiles);
    uint8_t *record = records + (((size_t)expert * tiles + tile - n) * steps + step * gb_mma16_group(tiles) + n) *
                                    gb_mma16_records<Format, GateUp>::bytes;
    const uint8_t *codes = (const uint8_t *)weights.codes, *scales = (const uint8_t *)weights.scales;
    const auto row_of = [&](uint32_t r) {
        return (size_t)expert * weights.rows + gb_mma16_row<GateUp>(weights.rows, tile, r);
    };
    for (uint32_t i = threadIdx.x; i < step_codes / 4; i += blockDim.x) {
        const uint32_t half = i / 128, lane = i / 4 % 32, byte = step * 64 + lane % 4 * 16 + i % 4 * 4;
        const size_t row = row_of(8 * half + lane / 4);
        uint32_t word = 0;
        for (uint32_t b = 0; b < 4; b++)
            word |= byte + b < code_bytes ? (uint32_t)codes[row * code_bytes + byte + b] << 8 * b : 0;
        if (Format::clears && byte < code_bytes && !scales[row * scale_bytes + byte / (code_bytes / scale_bytes)])
            word &= 0x88888888u;
        ((uint32_t *)record)[i] =
            Format::format == GB_MXFP8 ? gb_mma16_repack_bytes_word(word) : gb_mma16_repack_word(word);
    }
    for (uint32_t i = threadIdx.x; i < gb_mma16_tile * Format::scales; i += blockDim.x) {
        const uint32_t block = step * Format::scales + i / 2 % Format::scales;
        const size_t row = row_of(i / 2 / Format::scales + i % 2 * 8);
        const bool exists = block < scale_bytes;
        const bool kept = Format::keep(exists ? scales[row * scale_bytes + block] : padding, record[step_codes + i]) &&
                          !(exists && has_nan<Format>(codes + row * code_bytes + block * Format::block));
        if (!kept)
            *unkept = 1;
    }
}

/* records: out, NULL if the weights have what records cannot have: the word behind the records says so. */
template <class Format, bool GateUp>
enum gb_status repack(const struct gb_weights &weights, uint8_t padding, uint8_t **records, cudaStream_t stream,
                      struct gb_error *error)
{
    const size_t bytes = record_bytes<Format>(weights);
    const uint32_t tiles = tiles_of(weights), steps = gb_mma16_steps<Format>(weights.columns);
    uint32_t unkept = 0;
    enum gb_status status = gb_cuda_check(cudaMalloc(records, bytes + sizeof unkept), "cudaMalloc", error);
    if (status != GB_OK)
        return status;
    uint32_t *said = (uint32_t *)(*records + bytes);
    status = gb_cuda_check(cudaMemsetAsync(said, 0, sizeof unkept, stream), "cudaMemset", error);
    if (status == GB_OK)
        status = gb_cuda_launch("repack", repack_kernel<Format, GateUp>, dim3(weights.experts * tiles * steps), 256, 0,
                                stream, error, weights, tiles, steps, padding, *records, said);
    if (status == GB_OK)
        status = gb_cuda_check(cudaMemcpyAsync(&unkept, said, sizeof unkept, cudaMemcpyDeviceToHost, stream), "repack",
                               error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaStreamSynchronize(stream), "repack", error);
    if (unkept) {
        (void)cudaFree(*records);
        *records = NULL;
    }
    return status;
}

/* y = fma(routing weight, dot, y) over the slots: block (b, token), a thread four columns. All of a token's loads are
 * under way at once; ids and routing weights were there before down began. Shared: see asks_for_shared. */
template <bool Shared>
__global__ void combine_kernel(const int32_t *ids, const float *routing_weights, const float *dots, float *output,
                               uint32_t top_k, uint32_t experts, uint32_t hidden)
{
    const uint32_t column = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    const size_t first = (size_t)blockIdx.y * top_k;
    gb_let_next_start();
    bool used[GB_CUDA_MAX_TOP_K];
    float w[GB_CUDA_MAX_TOP_K];
    float4 dot[GB_CUDA_MAX_TOP_K];
#pragma unroll
    for (uint32_t j = 0; j < GB_CUDA_MAX_TOP_K; j++) {
        used[j] = j < top_k && (uint32_t)__ldcg(ids + first + j) < experts;
        w[j] = j < top_k ? __ldcg(routing_weights + first + j) : 0.0f;
    }
    gb_wait_for_previous();
    if (column >= hidden)
        return;
#pragma unroll
    for (uint32_t j = 0; j < GB_CUDA_MAX_TOP_K; j++)
        if (used[j])
            dot[j] = __ldcg((const float4 *)(dots + (first + j) * hidden + column));
    float4 y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (uint32_t j = 0; j < GB_CUDA_MAX_TOP_K; j++)
        if (used[j])
            y = make_float4(__fmaf_rn(w[j], dot[j].x, y.x), __fmaf_rn(w[j], dot[j].y, y.y),
                            __fmaf_rn(w[j], dot[j].z, y.z), __fmaf_rn(w[j], dot[j].w, y.w));
    *(float4 *)(output + (size_t)blockIdx.y * hidden + column) = y;
}

/* Bytes of the dot products of down, [pairs, hidden], in the workspace, in front of the items. */
size_t dots_bytes(const struct gb_shape &s)
{
    return s.tokens == 1 ? 0 : sizeof(float) * s.tokens * s.top_k * s.hidden;
}

/* Of several tokens: four tiles a unit, where that divides them; in mma16-sm90/1 items of up to 16 pairs where there
 * are many. fma32/1 needs more registers, and of brief rows fewer warps a unit, as it takes long to end one. */
template <class Order> struct shapes {
    using fours = gb_mma16_shape<Order, gb_mma16_group_tiles, 1, 5, 1>;
    using wide = gb_mma16_shape<Order, gb_mma16_group_tiles, 1, 4, 2>;
    using ones = gb_mma16_shape<Order, 1, 4, 5, 1>;
    using brief = fours;
    static constexpr uint32_t brief_steps = 0;
};
template <bool GateUp> struct shapes<gb_fma32_order<GateUp>> {
    using fours = gb_mma16_shape<gb_fma32_order<GateUp>, gb_mma16_group_tiles, 1, 4, 1>;
    using wide = fours;
    using ones = gb_mma16_shape<gb_fma32_order<GateUp>, 1, 4, 4, 1>;
    using brief = gb_mma16_shape<gb_fma32_order<GateUp>, gb_mma16_group_tiles, 1, 8, 1, 2>;
    static constexpr uint32_t brief_steps = 6; /* as gb_mma16_next_chain has it */
};

/* Rows of so many columns are long: a kernel that lists the items takes little beside reading their experts. */
constexpr uint32_t long_row = 4096;

/* Whether the items are listed, by expert, and not found by every block: where pairs are many, or an expert of long
 * rows may have two items, which the L2 cache can serve if they lie side by side. of_item: pairs of the least item. */
bool lists_items(const struct gb_shape &s, uint32_t of_item)
{
    return s.tokens * s.top_k > gb_mma16_few_pairs || (s.tokens > of_item && s.hidden >= long_row);
}

/* Pairs that an item of mma16-sm90/1 may have. Of up to 16, fewer blocks are resident, which costs a few per cent, most
 * on short rows, where no expert has more than 8 pairs, and least in MXFP8; where enough have, weights that are read
 * once save more.
 */
uint32_t pairs_of_item(const struct gb_shape &s, enum gb_format weights)
{
    const uint32_t each = s.hidden < long_row ? 5 : weights == GB_MXFP8 ? 1 : 2;
    const bool groups = s.hidden % (gb_mma16_tile * gb_mma16_group_tiles) == 0 &&
                        s.intermediate % (gb_mma16_tile / 2 * gb_mma16_group_tiles) == 0;
    const bool wide = groups && lists_items(s, gb_mma16_tokens) && s.tokens * s.top_k / each >= s.experts;
    return wide ? 2 * gb_mma16_tokens : gb_mma16_tokens;
}

/* Kernels of fma32/1 need more shared memory than the launches between them would leave: all of a layer ask for as
 * much, so that none waits for another division of the multiprocessor. */
template <class Order> constexpr bool asks_for_shared = false;
template <bool GateUp> constexpr bool asks_for_shared<gb_fma32_order<GateUp>> = true;

template <class Order, class... Formal> enum gb_status prefer(void (*kernel)(Formal...), struct gb_error *error)
{
    return asks_for_shared<Order> ? gb_cuda_prefer_shared("fma32", kernel, GB_CUDA_BESIDE_PERCENT, error) : GB_OK;
}

/* items: there are no more. */
template <bool GateUp, class Shape>
enum gb_status launch_turns(const gb_mma16_job &job, uint32_t items, uint32_t multiprocessors, void *stream,
                            struct gb_error *error)
{
    const auto kernel = gb_mma16_turns_kernel<GateUp, Shape>;
    const uint64_t units = (uint64_t)(job.weights.tiles / Shape::Tiles) * items;
    const uint64_t resident = std::min<uint64_t>(units, multiprocessors * Shape::Resident);
    const uint64_t least = job.items ? 1 : (units + gb_mma16_items_at_once - 1) / gb_mma16_items_at_once;
    const uint64_t blocks = std::max(resident, least);
    const enum gb_status status = prefer<typename Shape::Order>(kernel, error);
    return status == GB_OK
               ? gb_cuda_launch_early(GateUp ? "gate_up" : "down", kernel, dim3((uint32_t)blocks), Shape::threads,
                                      gb_mma16_turns_bytes<Shape>(job.weights.experts), stream, error, job)
               : status;
}

template <class Order, bool GateUp>
enum gb_status launch_turns(const gb_mma16_job &job, uint32_t multiprocessors, void *stream, struct gb_error *error)
{
    using shape = shapes<Order>;
    const uint32_t items = job.items ? gb_mma16_most_items(job.pairs, job.weights.experts, Order::tokens) : job.pairs;
    return job.weights.tiles % gb_mma16_group_tiles
               ? launch_turns<GateUp, typename shape::ones>(job, items, multiprocessors, stream, error)
           : gb_mma16_steps<typename Order::Layout::Format>(job.weights.columns) <= shape::brief_steps
               ? launch_turns<GateUp, typename shape::brief>(job, items, multiprocessors, stream, error)
           : job.of_item == shape::wide::Pairs
               ? launch_turns<GateUp, typename shape::wide>(job, items, multiprocessors, stream, error)
               : launch_turns<GateUp, typename shape::fours>(job, items, multiprocessors, stream, error);
}

/* gate_up of one token, a tile a block: so that every multiprocessor has some. All loads of 2,048 columns of NVFP4 are
 * under way at once; of more blocks with fewer registers each as many; and where these would not all be resident, more
 * blocks with fewer loads each. */
template <class Layout>
enum gb_status launch_one_token_gate_up(const gb_mma16_job &job, uint32_t multiprocessors, void *stream,
                                        struct gb_error *error)
{
    const uint64_t blocks = (uint64_t)job.weights.tiles * job.pairs;
    const auto kernel = blocks > 6 * multiprocessors   ? gb_mma16_one_token_gate_up_kernel<Layout, 2, 8>
                        : blocks > 5 * multiprocessors ? gb_mma16_one_token_gate_up_kernel<Layout, 4, 6>
                                                       : gb_mma16_one_token_gate_up_kernel<Layout, 4, 5>;
    return gb_cuda_launch_early("gate_up", kernel, dim3(job.weights.tiles, job.pairs), gb_mma16_threads, 0, stream,
                                error, job);
}

/* Of shared memory: no two such blocks are resident on a multiprocessor, but one beside a block of the router. */
constexpr size_t alone_bytes = 88 * 1024;

/* A block a multiprocessor, if there are no more. */
template <class Layout>
enum gb_status launch_one_token_down(const gb_mma16_job &job, uint32_t multiprocessors, void *stream,
                                     struct gb_error *error)
{
    const auto kernel = gb_mma16_one_token_down_kernel<Layout>;
    const size_t bytes = job.weights.tiles <= multiprocessors ? alone_bytes : 0;
    const enum gb_status status = gb_cuda_prefer_shared("down", kernel, GB_CUDA_BESIDE_PERCENT, error);
    return status == GB_OK
               ? gb_cuda_launch_early("down", kernel, dim3(job.weights.tiles),
                                      32 * std::min(job.top_k, gb_mma16_one_token_warps), bytes, stream, error, job)
               : status;
}

template <class Layout, bool GateUp>
enum gb_status launch(const gb_mma16_job &job, uint32_t multiprocessors, void *stream, struct gb_error *error)
{
    if (job.pairs != job.top_k)
        return launch_turns<gb_mma16_order<Layout>, GateUp>(job, multiprocessors, stream, error);
    if constexpr (GateUp)
        return launch_one_token_gate_up<Layout>(job, multiprocessors, stream, error);
    else
        return launch_one_token_down<Layout>(job, multiprocessors, stream, error);
}

const uint8_t *records_of(const struct gb_arguments &a, bool gate_up)
{
    const gb_cuda_repacked *repacked = (const gb_cuda_repacked *)a.prepared;
    return !repacked ? NULL : gate_up ? repacked->gate_up : repacked->down;
}

template <bool GateUp>
gb_mma16_job job_of(const struct gb_arguments &a, const gb_mma16_items *items, uint32_t of_item, bool ids_ready)
{
    const struct gb_shape &s = a.shape;
    const uint8_t *records = records_of(a, GateUp);
    const struct gb_weights &weights = GateUp ? a.gate_up : a.down;
    gb_mma16_job job = {};
    job.weights = {records ? records : (const uint8_t *)weights.codes,
                   (const uint8_t *)weights.scales,
                   weights.format == GB_NVFP4 ? weights.global_scales : NULL,
                   s.experts,
                   weights.rows,
                   weights.columns,
                   tiles_of(weights)};
    job.x = GateUp ? (const uint16_t *)a.x : (const uint16_t *)a.intermediate;
    job.share = GateUp ? s.top_k : 1;
    job.ids = a.ids;
    job.pairs = s.tokens * s.top_k;
    job.of_item = of_item;
    job.items = items;
    job.ids_ready = ids_ready;
    job.intermediate = (uint16_t *)a.intermediate;
    job.dots = (float *)a.workspace;
    job.routing_weights = a.routing_weights;
    job.output = (float *)a.output;
    job.top_k = s.top_k;
    return job;
}

enum gb_status multiprocessors_of(uint32_t *count, struct gb_error *error)
{
    int attribute = 0;
    const enum gb_status status = gb_cuda_attribute(cudaDevAttrMultiProcessorCount, &attribute, error);
    *count = (uint32_t)attribute;
    return status;
}

/* On the repacked layout if there are records, otherwise on the canonical one. */
template <enum gb_format Weights, bool GateUp>
enum gb_status run(const struct gb_arguments &a, const gb_mma16_items *items, bool ids_ready, const uint64_t *told,
                   struct gb_error *error)
{
    using format = gb_mma16_format<Weights>;
    uint32_t multiprocessors = 0;
    const enum gb_status status = multiprocessors_of(&multiprocessors, error);
    if (status != GB_OK)
        return status;
    gb_mma16_job job = job_of<GateUp>(a, items, pairs_of_item(a.shape, Weights), ids_ready);
    job.told = told;
    if (records_of(a, GateUp))
        return launch<gb_mma16_records<gb_mma16_kept<Weights>, GateUp>, GateUp>(job, multiprocessors, a.stream, error);
    if constexpr (Weights == GB_NVFP4)
        if (job.weights.columns % 32)
            return launch<gb_mma16_rows<format, GateUp, false>, GateUp>(job, multiprocessors, a.stream, error);
    return launch<gb_mma16_rows<format, GateUp, true>, GateUp>(job, multiprocessors, a.stream, error);
}

template <bool GateUp>
enum gb_status run(const struct gb_arguments &a, const gb_mma16_items *items, bool ids_ready, const uint64_t *told,
                   struct gb_error *error)
{
    const enum gb_format format = GateUp ? a.gate_up.format : a.down.format;
    return format == GB_NVFP4   ? run<GB_NVFP4, GateUp>(a, items, ids_ready, told, error)
           : format == GB_MXFP8 ? run<GB_MXFP8, GateUp>(a, items, ids_ready, told, error)
                                : run<GB_MXFP4, GateUp>(a, items, ids_ready, told, error);
}

template <bool GateUp>
enum gb_status run_fma32(const struct gb_arguments &a, const gb_mma16_items *items, bool ids_ready,
                         struct gb_error *error)
{
    using order = gb_fma32_order<GateUp>;
    uint32_t multiprocessors = 0;
    const enum gb_status status = multiprocessors_of(&multiprocessors, error);
    return status == GB_OK ? launch_turns<order, GateUp>(job_of<GateUp>(a, items, order::tokens, ids_ready),
                                                         multiprocessors, a.stream, error)
                           : status;
}

/* of_item: pairs that an item may have. *items: out, NULL where every block finds its own. */
template <class Order>
enum gb_status list_items(enum gb_operator operation, const struct gb_arguments &a, uint32_t of_item,
                          gb_mma16_items **items, struct gb_error *error)
{
    const struct gb_shape &s = a.shape;
    const auto kernel = gb_mma16_items_kernel<asks_for_shared<Order>>;
    *items = NULL;
    if (!lists_items(s, Order::tokens))
        return GB_OK;
    *items = (gb_mma16_items *)((uint8_t *)a.workspace + (operation == GB_GATE_UP ? 0 : dots_bytes(s)));
    const enum gb_status status = prefer<Order>(kernel, error);
    return status == GB_OK
               ? gb_cuda_launch_early("items", kernel, dim3(1), gb_mma16_items_threads, gb_mma16_items_bytes(s.experts),
                                      a.stream, error, a.ids, s.tokens * s.top_k, s.experts, of_item, *items)
               : status;
}

template <class Order> enum gb_status combine(const struct gb_arguments &a, struct gb_error *error)
{
    const struct gb_shape &s = a.shape;
    const auto kernel = combine_kernel<asks_for_shared<Order>>;
    constexpr uint32_t threads = 128;
    const enum gb_status status = prefer<Order>(kernel, error);
    return status == GB_OK
               ? gb_cuda_launch_early("combine", kernel, dim3((s.hidden / 4 + threads - 1) / threads, s.tokens),
                                      threads, 0, a.stream, error, a.ids, a.routing_weights, (const float *)a.workspace,
                                      (float *)a.output, s.top_k, s.experts, s.hidden)
               : status;
}

size_t workspace(enum gb_operator operation, const struct gb_shape &s, uint32_t of_item)
{
    const size_t items = sizeof(gb_mma16_item) * gb_mma16_most_items(s.tokens * s.top_k, s.experts, of_item);
    return (operation == GB_GATE_UP ? 0 : dots_bytes(s)) +
           (lists_items(s, of_item) ? offsetof(gb_mma16_items, item) + items : 0);
}

template <bool GateUp>
enum gb_status repack(const struct gb_weights &weights, uint8_t **records, cudaStream_t stream, struct gb_error *error)
{
    return weights.format == GB_NVFP4   ? repack<gb_mma16_kept<GB_NVFP4>, GateUp>(weights, 0, records, stream, error)
           : weights.format == GB_MXFP8 ? repack<gb_mma16_kept<GB_MXFP8>, GateUp>(weights, 0, records, stream, error)
                                        : repack<gb_mma16_kept<GB_MXFP4>, GateUp>(weights, 0, records, stream, error);
}

/* What gate_up(records) and down(records) repack of the operator. */
template <class GateUp, class Down>
enum gb_status prepare(enum gb_operator operation, void **prepared, const GateUp &gate_up, const Down &down)
{
    gb_cuda_repacked *repacked = new gb_cuda_repacked();
    enum gb_status status = operation == GB_DOWN ? GB_OK : gate_up(&repacked->gate_up);
    if (status == GB_OK && operation != GB_GATE_UP)
        status = down(&repacked->down);
    if (status == GB_OK)
        *prepared = repacked;
    else
        gb_cuda_mma16_release(repacked);
    return status;
}

} // namespace

size_t gb_cuda_mma16_workspace(enum gb_operator operation, const struct gb_shape *shape)
{
    return workspace(operation, *shape, gb_mma16_tokens);
}

enum gb_status gb_cuda_mma16(enum gb_operator operation, const struct gb_arguments *a, const uint64_t *told,
                             struct gb_error *error)
{
    using order = gb_mma16_order<gb_mma16_records<gb_mma16_format<GB_NVFP4>, false>>; /* of any layout and format */
    const enum gb_format weights = operation == GB_DOWN ? a->down.format : a->gate_up.format;
    gb_mma16_items *items;
    enum gb_status status = list_items<order>(operation, *a, pairs_of_item(a->shape, weights), &items, error);
    if (status == GB_OK && operation != GB_DOWN)
        status = run<true>(*a, items, false, told, error);
    if (status == GB_OK && operation != GB_GATE_UP)
        status = run<false>(*a, items, operation == GB_LAYER, told, error);
    return status == GB_OK && operation != GB_GATE_UP && a->shape.tokens > 1 ? combine<order>(*a, error) : status;
}

size_t gb_cuda_fma32_repacked_workspace(enum gb_operator operation, const struct gb_shape *shape)
{
    return shape->tokens == 1 ? 0 : workspace(operation, *shape, gb_fma32_order<false>::tokens);
}

enum gb_status gb_cuda_fma32_repacked(enum gb_operator operation, const struct gb_arguments *a, struct gb_error *error)
{
    using order = gb_fma32_order<false>;
    gb_mma16_items *items;
    enum gb_status status = list_items<order>(operation, *a, order::tokens, &items, error);
    if (status == GB_OK && operation != GB_DOWN)
        status = run_fma32<true>(*a, items, false, error);
    if (status == GB_OK && operation != GB_GATE_UP)
        status = run_fma32<false>(*a, items, operation == GB_LAYER, error);
    return status == GB_OK && operation != GB_GATE_UP ? combine<order>(*a, error) : status;
}

enum gb_status gb_cuda_mma16_prepare(enum gb_operator operation, const struct gb_arguments *a, void **prepared,
                                     struct gb_error *error)
{
    const cudaStream_t stream = (cudaStream_t)a->stream;
    return prepare(
        operation, prepared, [&](uint8_t **records) { return repack<true>(a->gate_up, records, stream, error); },
        [&](uint8_t **records) { return repack<false>(a->down, records, stream, error); });
}

enum gb_status gb_cuda_fma32_prepare(enum gb_operator operation, const struct gb_arguments *a, void **prepared,
                                     struct gb_error *error)
{
    constexpr uint8_t padding = 0x80; /* -0, which leaves an accumulator as it is, one of -0 too */
    const cudaStream_t stream = (cudaStream_t)a->stream;
    using format = gb_mma16_format<GB_NVFP4>;
    return prepare(
        operation, prepared,
        [&](uint8_t **records) { return repack<format, true>(a->gate_up, padding, records, stream, error); },
        [&](uint8_t **records) { return repack<format, false>(a->down, padding, records, stream, error); });
}

void gb_cuda_mma16_release(void *prepared)
{
    gb_cuda_repacked *repacked = (gb_cuda_repacked *)prepared;
    if (!repacked)
        return;
    (void)cudaFree(repacked->gate_up);
    (void)cudaFree(repacked->down);
    delete repacked;
}
