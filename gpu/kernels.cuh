/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of this folder, as kernels.cu registers them. Private to gpu/. */
#ifndef GB_GPU_KERNELS_CUH
#define GB_GPU_KERNELS_CUH

#include "gpu/device.cuh"

#define GB_CUDA_MAX_TOP_K 16u

/* They launch on a->stream and return without waiting. The arguments have been checked. */
enum gb_status gb_cuda_gate_up(const struct gb_arguments *a, struct gb_error *error);
enum gb_status gb_cuda_down(const struct gb_arguments *a, struct gb_error *error);
enum gb_status gb_cuda_route(const struct gb_arguments *a, struct gb_error *error);

/* GB_EINVAL, with the reason, where the operator is not defined for q. */
enum gb_status gb_cuda_quantise_check(const struct gb_quantisation *q, enum gb_operator operation,
                                      struct gb_error *error);
/* As above. */
enum gb_status gb_cuda_quantise(const struct gb_arguments *a, struct gb_error *error);
enum gb_status gb_cuda_silu_mul_quantise(const struct gb_arguments *a, struct gb_error *error);

/* Bytes of dynamic shared memory that a block takes. */
size_t gb_cuda_gate_up_shared(enum gb_format weights, const struct gb_shape *shape);
size_t gb_cuda_down_shared(enum gb_format weights, const struct gb_shape *shape);
size_t gb_cuda_route_shared(const struct gb_shape *shape, const struct gb_router *router);

/* Bytes of workspace: the logits [tokens, experts]. */
size_t gb_cuda_route_workspace(const struct gb_shape *shape);

#endif
