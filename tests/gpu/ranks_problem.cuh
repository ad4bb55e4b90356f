/* SPDX-License-Identifier: Apache-2.0 */
/* Problems of dispatch and combine with the CPU reference's results, for the tests of the kernels over ranks. */
#ifndef GB_TESTS_GPU_RANKS_PROBLEM_CUH
#define GB_TESTS_GPU_RANKS_PROBLEM_CUH

#include <cstring>
#include <string>
#include <vector>

#include "fixtures/fixtures.h"
#include "gpu/exchange.cuh"
#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/gpu/gpu.h"

inline void check(enum gb_status status, const struct gb_error &error, const char *what)
{
    if (status != GB_OK) {
        printf("FAILED: %s: %s\n", what, error.message);
        exit(1);
    }
}

/* What a problem is made of. recipe: NULL for bf16 rows. */
struct ranks_kind {
    enum gb_operator operation;
    uint32_t ranks, tokens, hidden, experts, top_k;
    const char *recipe, *routing, *placement, *data;
    enum gb_accumulation accumulation;
    uint32_t ranks_per_node;
    enum gb_format input;
    uint32_t empty;
};

/* An array of the arguments, and where it is on the device that holds arrays of all ranks. */
struct ranks_array {
    size_t argument; /* offset in struct gb_arguments */
    std::vector<char> content;
    bool written;
    bool floats; /* NaNs of any pattern are equal */
};

/* Inputs, and outputs as the reference has them. */
class ranks_problem
{
  public:
    struct gb_exchange asked;
    std::vector<ranks_array> arrays;
    std::string name;

    ranks_problem(const ranks_kind &kind, uint64_t seed)
    {
        struct gb_error error;
        struct gb_fixture *f = NULL;
        const struct gb_exchange_kinds kinds = {kind.data ? kind.data : "gaussian/1", kind.routing, kind.placement,
                                                seed, kind.empty};
        struct gb_exchange x = {};
        x.size = sizeof x;
        x.ranks = kind.ranks;
        x.tokens = kind.tokens;
        x.hidden = kind.hidden;
        x.experts = kind.experts;
        x.top_k = kind.top_k;
        x.global_scale = 1.0f;
        x.input = GB_BF16;
        if (kind.recipe)
            x.quantiser = gb_recipe_find(kind.recipe)->quantiser;
        if (kind.operation == GB_COMBINE) {
            x.accumulation = kind.accumulation;
            x.ranks_per_node = kind.ranks_per_node;
        }
        check(gb_generate_exchange(kind.operation, &x, kind.recipe ? kind.recipe : "bf16", &kinds, &f, &error), error,
              "gb_generate_exchange");
        struct gb_arguments a = gb_fixture_exchange_arguments(f);
        asked = *a.exchange;
        if (kind.operation == GB_DISPATCH)
            make_dispatch(a);
        else
            make_combine(a, kind.input, seed);
        gb_fixture_free(f);
        name = std::string(kind.operation == GB_DISPATCH ? "dispatch" : "combine") + " ranks " +
               std::to_string(kind.ranks) + " tokens " + std::to_string(kind.tokens) + " hidden " +
               std::to_string(kind.hidden) + " experts " + std::to_string(kind.experts) + " top " +
               std::to_string(kind.top_k) + " " + (kind.recipe ? kind.recipe : "bf16") + " " + kind.routing + " " +
               kind.placement + " accumulation " + std::to_string(kind.accumulation) + " seed " + std::to_string(seed);
    }

    size_t rows() const
    {
        return asked.rows;
    }

  private:
    void add(size_t argument, const void *content, size_t bytes, bool written, bool floats = false)
    {
        arrays.push_back(
            {argument, std::vector<char>((const char *)content, (const char *)content + bytes), written, floats});
    }

    void make_dispatch(struct gb_arguments a)
    {
        struct gb_error error;
        const size_t tokens = (size_t)asked.ranks * asked.tokens;
        size_t code_bytes = (size_t)asked.hidden * 2, scale_bytes = 0;
        if (asked.quantiser.element)
            check(gb_quantiser_bytes(&asked.quantiser, 1, asked.hidden, &code_bytes, &scale_bytes, &error), error,
                  "gb_quantiser_bytes");
        std::vector<int32_t> counts((size_t)asked.ranks * asked.experts), routes(asked.rows + 1);
        std::vector<char> codes(code_bytes * asked.rows + 1), scales(scale_bytes * asked.rows + 1);
        a.counts = counts.data();
        a.routes = routes.data();
        a.codes = codes.data();
        a.scales = scales.data();
        check(gb_reference_dispatch(&a, &error), error, "gb_reference_dispatch");
        add(offsetof(struct gb_arguments, x), a.x, tokens * asked.hidden * 2, false);
        add(offsetof(struct gb_arguments, ids), a.ids, tokens * asked.top_k * 4, false);
        add(offsetof(struct gb_arguments, placement), a.placement, (size_t)asked.experts * 4, false);
        add(offsetof(struct gb_arguments, counts), a.counts, counts.size() * 4, true);
        add(offsetof(struct gb_arguments, routes), a.routes, (size_t)asked.rows * 4, true);
        add(offsetof(struct gb_arguments, codes), a.codes, code_bytes * asked.rows, true);
        add(offsetof(struct gb_arguments, scales), a.scales, scale_bytes * asked.rows, true,
            asked.quantiser.scale == GB_SCALE_FP32);
    }

    /* Rows in FP32 have low bits that bf16 has not. */
    void make_combine(struct gb_arguments a, enum gb_format input, uint64_t seed)
    {
        struct gb_error error;
        const size_t tokens = (size_t)asked.ranks * asked.tokens, values = (size_t)asked.rows * asked.hidden;
        std::vector<uint32_t> wide(input == GB_FP32 ? values : 0);
        std::vector<float> output(tokens * asked.hidden);
        for (size_t i = 0; i < wide.size(); i++)
            wide[i] = (uint32_t)((const uint16_t *)a.values)[i] << 16 |
                      (uint32_t)((i * 2654435761u + seed) * 40503u >> 16 & 0xFFFFu);
        asked.input = input == GB_FP32 ? GB_FP32 : GB_BF16;
        a.exchange = &asked;
        a.values = wide.empty() ? a.values : wide.data();
        a.output = output.data();
        check(gb_reference_combine(&a, &error), error, "gb_reference_combine");
        add(offsetof(struct gb_arguments, ids), a.ids, tokens * asked.top_k * 4, false);
        add(offsetof(struct gb_arguments, routing_weights), a.routing_weights, tokens * asked.top_k * 4, false);
        add(offsetof(struct gb_arguments, placement), a.placement, (size_t)asked.experts * 4, false);
        add(offsetof(struct gb_arguments, values), a.values, values * (wide.empty() ? 2 : 4), false);
        add(offsetof(struct gb_arguments, output), a.output, output.size() * 4, true, true);
    }
};

/* Words that differ. Of floats NaN equals NaN. */
__global__ void count_differences(const unsigned char *found, const unsigned char *wanted, size_t bytes, bool floats,
                                  unsigned long long *differences)
{
    unsigned long long mine = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < bytes; i += (size_t)gridDim.x * blockDim.x) {
        const size_t word = i / 4 * 4;
        bool nans = floats;
        if (floats) {
            const uint32_t a = *(const uint32_t *)(found + word), b = *(const uint32_t *)(wanted + word);
            nans = (a & 0x7FFFFFFFu) > 0x7F800000u && (b & 0x7FFFFFFFu) > 0x7F800000u;
        }
        mine += found[i] != wanted[i] && !nans;
    }
    if (mine)
        atomicAdd(differences, mine);
}

/* Arrays of all ranks on the first device, for problems of one size. */
class ranks_arrays
{
  public:
    struct gb_arguments arguments = {};

    explicit ranks_arrays(const ranks_problem &p)
    {
        arguments.size = sizeof arguments;
        for (const ranks_array &array : p.arrays) {
            void *memory = NULL;
            require(cudaMalloc(&memory, array.content.size() + 256));
            memcpy((char *)&arguments + array.argument, &memory, sizeof memory);
        }
        require(cudaMalloc(&differences, sizeof *differences));
        require(cudaMemset(differences, 0, sizeof *differences));
    }
    ~ranks_arrays()
    {
        for (void *memory : all)
            cudaFree(memory);
        cudaFree(differences);
    }
    ranks_arrays(const ranks_arrays &) = delete;

    /* A copy of the problem's arrays on the device, for `put` and `compare`. */
    std::vector<char *> keep(const ranks_problem &p)
    {
        std::vector<char *> kept;
        for (const ranks_array &array : p.arrays) {
            void *memory = NULL;
            require(cudaMalloc(&memory, array.content.size() + 256));
            require(cudaMemcpy(memory, array.content.data(), array.content.size(), cudaMemcpyHostToDevice));
            all.push_back(memory);
            kept.push_back((char *)memory);
        }
        return kept;
    }
    void *at(const ranks_array &array)
    {
        void *memory;
        memcpy(&memory, (char *)&arguments + array.argument, sizeof memory);
        return memory;
    }
    void put(const ranks_problem &p, const std::vector<char *> &kept, cudaStream_t stream)
    {
        for (size_t i = 0; i < p.arrays.size(); i++)
            if (!p.arrays[i].written)
                require(cudaMemcpyAsync(at(p.arrays[i]), kept[i], p.arrays[i].content.size(), cudaMemcpyDeviceToDevice,
                                        stream));
    }
    void poison(const ranks_problem &p, int byte, cudaStream_t stream)
    {
        for (const ranks_array &array : p.arrays)
            if (array.written)
                require(cudaMemsetAsync(at(array), byte, array.content.size(), stream));
    }
    void compare(const ranks_problem &p, const std::vector<char *> &kept, cudaStream_t stream)
    {
        for (size_t i = 0; i < p.arrays.size(); i++)
            if (p.arrays[i].written && !p.arrays[i].content.empty())
                count_differences<<<128, 256, 0, stream>>>((const unsigned char *)at(p.arrays[i]),
                                                           (const unsigned char *)kept[i], p.arrays[i].content.size(),
                                                           p.arrays[i].floats, differences);
        require(cudaGetLastError());
    }
    /* Bytes that differed in all comparisons since the last question. */
    unsigned long long different()
    {
        unsigned long long count = 0;
        require(cudaDeviceSynchronize());
        require(cudaMemcpy(&count, differences, sizeof count, cudaMemcpyDeviceToHost));
        require(cudaMemset(differences, 0, sizeof *differences));
        return count;
    }

  private:
    std::vector<void *> all;
    unsigned long long *differences;
};

#endif
