/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory for the harness (gb_device), and the error messages of this folder. */
#include <stdarg.h>
#include <stdio.h>

#include "gpu/device.cuh"

enum gb_status gb_cuda_fail(struct gb_error *error, enum gb_status status, const char *format, ...)
{
    if (error) {
        va_list values;
        va_start(values, format);
        vsnprintf(error->message, sizeof error->message, format, values);
        va_end(values);
    }
    return status;
}

enum gb_status gb_cuda_check(cudaError_t code, const char *call, struct gb_error *error)
{
    if (code == cudaSuccess)
        return GB_OK;
    (void)cudaGetLastError(); /* a failure that is reported here is not reported again by a later call */
    return gb_cuda_fail(error, GB_EDEVICE, "%s: %s (%s)", call, cudaGetErrorName(code), cudaGetErrorString(code));
}

enum gb_status gb_cuda_present(struct gb_error *error)
{
    int driver = 0, devices = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "no CUDA driver on this machine");
    cudaError_t code = cudaGetDeviceCount(&devices);
    if (code != cudaSuccess && code != cudaErrorNoDevice)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "no usable CUDA device: %s (%s), driver %d.%d, runtime %d.%d",
                            cudaGetErrorName(code), cudaGetErrorString(code), driver / 1000, driver % 1000 / 10,
                            CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (devices == 0)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "no CUDA device on this machine");
    return GB_OK;
}

static __global__ void probe() {}

enum gb_status gb_cuda_image(struct gb_error *error)
{
    int major = 0, minor = 0;
    cudaFuncAttributes attributes;
    cudaError_t code = cudaFuncGetAttributes(&attributes, probe);
    if (code != cudaErrorNoKernelImageForDevice && code != cudaErrorInvalidDeviceFunction)
        return gb_cuda_check(code, "cudaFuncGetAttributes", error);
    (void)cudaGetLastError();
    enum gb_status status = gb_cuda_attribute(cudaDevAttrComputeCapabilityMajor, &major, error);
    if (status == GB_OK)
        status = gb_cuda_attribute(cudaDevAttrComputeCapabilityMinor, &minor, error);
    if (status != GB_OK)
        return status;
    return gb_cuda_fail(error, GB_EUNSUPPORTED, "this library has no code for compute capability %d.%d", major, minor);
}

static enum gb_status describe(char *text, size_t bytes, struct gb_error *error)
{
    int device = 0, driver = 0, runtime = 0;
    cudaDeviceProp properties;
    enum gb_status status = gb_cuda_present(error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaGetDevice(&device), "cudaGetDevice", error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties", error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion", error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion", error);
    if (status == GB_OK)
        snprintf(text, bytes, "%s, compute capability %d.%d, %d multiprocessors, %.1f GiB, driver %d.%d, runtime %d.%d",
                 properties.name, properties.major, properties.minor, properties.multiProcessorCount,
                 (double)properties.totalGlobalMem / (1 << 30), driver / 1000, driver % 1000 / 10, runtime / 1000,
                 runtime % 1000 / 10);
    return status;
}

static enum gb_status allocate(size_t bytes, void **pointer, struct gb_error *error)
{
    *pointer = NULL;
    cudaError_t code = cudaMalloc(pointer, bytes);
    if (code != cudaErrorMemoryAllocation)
        return gb_cuda_check(code, "cudaMalloc", error);
    (void)cudaGetLastError();
    return gb_cuda_fail(error, GB_ENOMEM, "cudaMalloc: no %zu bytes of device memory", bytes);
}

static void release(void *pointer)
{
    (void)cudaFree(pointer); /* an earlier kernel's failure is reported by synchronise() */
}

static enum gb_status upload(void *device, const void *host, size_t bytes, struct gb_error *error)
{
    enum gb_status status =
        gb_cuda_check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device", error);
    /* From pageable memory cudaMemcpy returns before the last bytes have arrived; a stream that does not wait for the
     * default stream would overtake them. */
    return status == GB_OK ? gb_cuda_check(cudaStreamSynchronize(0), "cudaStreamSynchronize", error) : status;
}

static enum gb_status download(void *host, const void *device, size_t bytes, struct gb_error *error)
{
    return gb_cuda_check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy from the device", error);
}

static enum gb_status synchronise(struct gb_error *error)
{
    enum gb_status status = gb_cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize", error);
    return status == GB_OK ? gb_cuda_check(cudaGetLastError(), "an earlier CUDA call", error) : status;
}

extern "C" GB_API const struct gb_device *gb_device(void)
{
    static const struct gb_device device = {GB_ABI_VERSION, describe, allocate, release, upload, download, synchronise};
    return &device;
}
