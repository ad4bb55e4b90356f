/* SPDX-License-Identifier: Apache-2.0 */
/* Checked CUDA calls and launches. Private to gpu/. */
#ifndef GB_GPU_DEVICE_CUH
#define GB_GPU_DEVICE_CUH

#include <cuda_runtime.h>

#include "gaugeblock.h"

/* Writes the message into *error (if not NULL) and returns status. */
enum gb_status gb_cuda_fail(struct gb_error *error, enum gb_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* GB_OK, or GB_EDEVICE with the call's name and the runtime's name and text for the error. */
enum gb_status gb_cuda_check(cudaError_t code, const char *call, struct gb_error *error);

/* GB_OK if a GPU can be used, or GB_EUNSUPPORTED with the reason (no driver, no device). */
enum gb_status gb_cuda_present(struct gb_error *error);

/* An attribute of the current device. */
inline enum gb_status gb_cuda_attribute(enum cudaDeviceAttr attribute, int *value, struct gb_error *error)
{
    int device = 0;
    const enum gb_status status = gb_cuda_check(cudaGetDevice(&device), "cudaGetDevice", error);
    return status == GB_OK
               ? gb_cuda_check(cudaDeviceGetAttribute(value, attribute, device), "cudaDeviceGetAttribute", error)
               : status;
}

/* GB_OK if this library has code for the current device, or GB_EUNSUPPORTED with its compute capability. */
enum gb_status gb_cuda_image(struct gb_error *error);

/* Whether a kernel's code for the current device has what came with compute capability 9.0: clusters, and waiting for
 * the kernel in front. Code that is translated from PTX for an earlier one has not, whatever the device. */
template <class... Formal> bool gb_cuda_overlaps(void (*kernel)(Formal...))
{
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess)
        return attributes.ptxVersion >= 90;
    (void)cudaGetLastError(); /* the launch reports it */
    return false;
}

/* Launches kernel(arguments...) on `stream` with `shared` bytes of dynamic shared memory. Does not synchronise. early:
 * its blocks may start before the kernel in front of it has ended, if that lets them and this one knows to wait.
 * cluster: blocks of a cluster, side by side in the grid's x. */
template <class... Formal, class... Actual>
enum gb_status gb_cuda_launch_as(bool early, uint32_t cluster, const char *name, void (*kernel)(Formal...), dim3 grid,
                                 unsigned threads, size_t shared, void *stream, struct gb_error *error,
                                 Actual... arguments)
{
    enum gb_status status = gb_cuda_check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared), name, error);
    if (status == GB_OK && cluster > 8)
        status =
            gb_cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), name, error);
    if (status != GB_OK)
        return status;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = (cudaStream_t)stream;
    cudaLaunchAttribute attributes[2] = {};
    config.attrs = attributes;
    if (early && gb_cuda_overlaps(kernel)) {
        cudaLaunchAttribute &attribute = attributes[config.numAttrs++];
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        cudaLaunchAttribute &attribute = attributes[config.numAttrs++];
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim = {cluster, 1, 1};
    }
    return gb_cuda_check(cudaLaunchKernelEx(&config, kernel, arguments...), name, error);
}

/* How a multiprocessor is divided into shared memory and L1 cache for the launches of a kernel that follow: so many per
 * cent shared, or as the kernel needs. Blocks of kernels that ask for the same can be resident side by side; those of
 * another division wait until it is empty. */
template <class... Formal>
enum gb_status gb_cuda_prefer_shared(const char *name, void (*kernel)(Formal...), int percent, struct gb_error *error)
{
    return gb_cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, percent), name,
                         error);
}

template <class... Formal, class... Actual>
enum gb_status gb_cuda_launch(const char *name, void (*kernel)(Formal...), dim3 grid, unsigned threads, size_t shared,
                              void *stream, struct gb_error *error, Actual... arguments)
{
    return gb_cuda_launch_as(false, 1, name, kernel, grid, threads, shared, stream, error, arguments...);
}

template <class... Formal, class... Actual>
enum gb_status gb_cuda_launch_early(const char *name, void (*kernel)(Formal...), dim3 grid, unsigned threads,
                                    size_t shared, void *stream, struct gb_error *error, Actual... arguments)
{
    return gb_cuda_launch_as(true, 1, name, kernel, grid, threads, shared, stream, error, arguments...);
}

/* Early where there are clusters. */
template <class... Formal, class... Actual>
enum gb_status gb_cuda_launch_cluster(const char *name, void (*kernel)(Formal...), uint32_t cluster, dim3 grid,
                                      unsigned threads, size_t shared, void *stream, struct gb_error *error,
                                      Actual... arguments)
{
    return gb_cuda_launch_as(cluster > 1, cluster, name, kernel, grid, threads, shared, stream, error, arguments...);
}

#endif
