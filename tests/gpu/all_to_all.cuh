/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's all-to-all of rows that lie in the order of dispatch: the baseline of bench_ranks. */
#ifndef GB_TESTS_GPU_ALL_TO_ALL_CUH
#define GB_TESTS_GPU_ALL_TO_ALL_CUH

#include <functional>

#include <nccl.h>

#include "tests/gpu/ranks_problem.cuh"

inline void require_nccl(ncclResult_t result, int line)
{
    require_at(result == ncclSuccess, "NCCL", ncclGetErrorString(result), line);
}

class all_to_all
{
  public:
    explicit all_to_all(uint32_t count) : communicators(count)
    {
        struct gb_error error;
        std::vector<int> devices(count);
        for (uint32_t r = 0; r < count; r++)
            devices[r] = (int)r;
        check(gb_cuda_ranks_open(count, 2 * most, &ranks, &error), error, "ranks");
        require_nccl(ncclCommInitAll(communicators.data(), (int)count, devices.data()), __LINE__);
    }
    ~all_to_all()
    {
        for (ncclComm_t communicator : communicators)
            ncclCommDestroy(communicator);
        gb_cuda_ranks_close(&ranks);
    }

    /* bytes: [ranks * ranks], from each to each. median: of the times of a call, as bench_ranks has it. */
    template <class Median> double time(const std::vector<size_t> &bytes, const Median &median)
    {
        exchange(bytes); /* connects the ranks, which a captured call cannot */
        require(cudaDeviceSynchronize());
        return median(&ranks, std::function<void()>([&] { exchange(bytes); }));
    }

  private:
    static constexpr size_t most = (size_t)1 << 28;
    std::vector<ncclComm_t> communicators;
    struct gb_cuda_ranks ranks;

    void exchange(const std::vector<size_t> &bytes)
    {
        const uint32_t count = ranks.count;
        require_nccl(ncclGroupStart(), __LINE__);
        for (uint32_t r = 0; r < count; r++) {
            char *sent = ranks.of[r].link.window[r], *received = sent + most;
            for (uint32_t other = 0; other < count; other++) {
                const size_t to = bytes[(size_t)r * count + other], from = bytes[(size_t)other * count + r];
                require_nccl(ncclSend(sent, to, ncclInt8, (int)other, communicators[r], ranks.of[r].stream), __LINE__);
                require_nccl(ncclRecv(received, from, ncclInt8, (int)other, communicators[r], ranks.of[r].stream),
                             __LINE__);
                sent += to;
                received += from;
            }
        }
        require_nccl(ncclGroupEnd(), __LINE__);
    }
};

#endif
