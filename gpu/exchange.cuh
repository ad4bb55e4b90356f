/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine on arrays of all ranks: each rank's part is put on its device, the ranks exchange it there, and
 * what each received is taken back.
 */
#ifndef GB_GPU_EXCHANGE_CUH
#define GB_GPU_EXCHANGE_CUH

#include "gpu/combine.cuh"
#include "gpu/dispatch.cuh"

struct gb_cuda_exchanger {
    struct gb_exchange asked;
    enum gb_operator operation;
    struct gb_cuda_ranks ranks;
    char *memory[GB_CUDA_MAX_RANKS]; /* what the jobs point to, of each rank */
    struct gb_dispatch_job dispatch[GB_CUDA_MAX_RANKS];
    struct gb_combine_job combine[GB_CUDA_MAX_RANKS];
    int32_t *all_ids[GB_CUDA_MAX_RANKS]; /* of combine, [ranks, tokens, top_k] */
};

/* most_rows: that are exchanged in all. close in any case. */
enum gb_status gb_cuda_exchanger_open(enum gb_operator operation, const struct gb_exchange *x, uint32_t most_rows,
                                      struct gb_cuda_exchanger *e, struct gb_error *error);
void gb_cuda_exchanger_close(struct gb_cuda_exchanger *e);
/* Into the ranks' streams: the parts of the arguments' arrays to the ranks; the exchange; the parts back. */
enum gb_status gb_cuda_exchanger_put(struct gb_cuda_exchanger *e, const struct gb_arguments *a, struct gb_error *error);
enum gb_status gb_cuda_exchanger_run(struct gb_cuda_exchanger *e, struct gb_error *error);
enum gb_status gb_cuda_exchanger_take(struct gb_cuda_exchanger *e, const struct gb_arguments *a,
                                      struct gb_error *error);

#endif
