/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of this folder, as kernels.cu registers them. Private to gpu/. */
#ifndef GB_GPU_KERNELS_CUH
#define GB_GPU_KERNELS_CUH

#include "gpu/device.cuh"

#define GB_CUDA_MAX_TOP_K 16u
#define GB_CUDA_MMA16_MOST_EXPERTS 4096u

/* How down of one token and the router, which lets its blocks start beside those of down in the layer in front, divide
 * a multiprocessor: 196 of Hopper's 228 KiB are shared then. Loads under way need L1 cache, so it is not all. */
#define GB_CUDA_BESIDE_PERCENT 85

/* They launch on a->stream and return without waiting. The arguments have been checked. */
enum gb_status gb_cuda_gate_up(const struct gb_arguments *a, struct gb_error *error);
enum gb_status gb_cuda_down(const struct gb_arguments *a, struct gb_error *error);
/* told: NULL, or of one token, in device memory: the ids, and then the weights, for the next kernels on the stream to
 * hear (gpu/overlap.cuh). */
enum gb_status gb_cuda_route(const struct gb_arguments *a, uint64_t *told, struct gb_error *error);
size_t gb_cuda_told_bytes(uint32_t top_k);
/* GB_GATE_UP or GB_DOWN, every weight format. */
enum gb_status gb_cuda_naive(enum gb_operator operation, const struct gb_arguments *a, struct gb_error *error);
/* GB_GATE_UP or GB_DOWN, NVFP4 weights, rows of whole chunks; codes by their bits, or through a table. */
enum gb_status gb_cuda_warp_decode(enum gb_operator operation, const struct gb_arguments *a, struct gb_error *error);
enum gb_status gb_cuda_warp_decode_table(enum gb_operator operation, const struct gb_arguments *a,
                                         struct gb_error *error);

/* GB_EUNSUPPORTED, with the reason, where route is not defined for the shape or the recipe. */
enum gb_status gb_cuda_route_check(const struct gb_shape *shape, const struct gb_router *router,
                                   struct gb_error *error);

/* GB_EINVAL, with the reason, where the operator is not defined for q. */
enum gb_status gb_cuda_quantise_check(const struct gb_quantisation *q, enum gb_operator operation,
                                      struct gb_error *error);
/* As above. */
enum gb_status gb_cuda_quantise(const struct gb_arguments *a, struct gb_error *error);
enum gb_status gb_cuda_silu_mul_quantise(const struct gb_arguments *a, struct gb_error *error);

/* GB_EUNSUPPORTED, with the reason, where the rules do not quantise activations of this shape to the format. */
enum gb_status gb_cuda_activations_check(enum gb_format format, const struct gb_quantiser *rules,
                                         const struct gb_shape *shape, struct gb_error *error);
/* Quantises x (GB_GATE_UP) or the intermediate (GB_DOWN) of the arguments; then they are their codes' numbers, and the
 * weights' global scales have the activations' in them. Both lie in the workspace, until the next call. */
enum gb_status gb_cuda_activations(enum gb_operator operation, struct gb_arguments *a, struct gb_error *error);
size_t gb_cuda_activations_workspace(const struct gb_shape *shape);

/* Weighs x by the routing weights, for operators whose apply_router_weight_on_input is 1; then the arguments are the
 * weighed x, which lies in the workspace until the next call, and routing weights of 1. */
enum gb_status gb_cuda_weigh(struct gb_arguments *a, struct gb_error *error);
size_t gb_cuda_weigh_workspace(const struct gb_shape *shape);

/* The layer in eight launches: NVFP4 weights, mma16-sm90/1. */
enum gb_status gb_cuda_eight_stages(const struct gb_arguments *a, struct gb_error *error);
size_t gb_cuda_eight_stages_workspace(const struct gb_shape *shape);

/* Bytes of dynamic shared memory that a block takes. */
size_t gb_cuda_gate_up_shared(enum gb_format weights, const struct gb_shape *shape);
size_t gb_cuda_down_shared(enum gb_format weights, const struct gb_shape *shape);
size_t gb_cuda_route_shared(const struct gb_shape *shape, const struct gb_router *router);

/* The order mma16-sm90/1, NVFP4, MXFP8 or MXFP4 weights: on what prepare returned, or on the canonical layout. told:
 * NULL, or of a layer of one token, where the router, which is in front, tells the ids and weights of the arguments. */
enum gb_status gb_cuda_mma16(enum gb_operator operation, const struct gb_arguments *a, const uint64_t *told,
                             struct gb_error *error);
/* What prepare returns: the operator's weights, repacked (gb_mma16_records), in device memory; NULL where it has none,
 * or where they have a scale or a code that records cannot have: they are used as they are. */
struct gb_cuda_repacked {
    uint8_t *gate_up, *down;
};
enum gb_status gb_cuda_mma16_prepare(enum gb_operator operation, const struct gb_arguments *a, void **prepared,
                                     struct gb_error *error);
void gb_cuda_mma16_release(void *prepared);
/* Which pairs share an expert and, for down, the complete dot products [tokens, top_k, hidden]. */
size_t gb_cuda_mma16_workspace(enum gb_operator operation, const struct gb_shape *shape);

/* The order fma32/1 of several tokens, NVFP4 weights, on what its prepare returned. */
enum gb_status gb_cuda_fma32_prepare(enum gb_operator operation, const struct gb_arguments *a, void **prepared,
                                     struct gb_error *error);
enum gb_status gb_cuda_fma32_repacked(enum gb_operator operation, const struct gb_arguments *a, struct gb_error *error);
/* As gb_cuda_mma16_workspace. */
size_t gb_cuda_fma32_repacked_workspace(enum gb_operator operation, const struct gb_shape *shape);

/* GB_DISPATCH and GB_COMBINE over the ranks of a process. GB_EUNSUPPORTED, with the reason, where there is no kernel
 * for the problem; whether there are devices for it is gb_cuda_ranks_check's to say. */
enum gb_status gb_cuda_exchange_check(const struct gb_exchange *x, enum gb_operator operation, struct gb_error *error);
/* Memory and streams on the ranks' devices. */
enum gb_status gb_cuda_exchange_prepare(enum gb_operator operation, const struct gb_arguments *a, void **prepared,
                                        struct gb_error *error);
void gb_cuda_exchange_release(void *prepared);
enum gb_status gb_cuda_exchange(enum gb_operator operation, const struct gb_arguments *a, struct gb_error *error);

#endif
