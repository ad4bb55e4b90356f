/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A subject library of kernels that misbehave on the GPU, around cuda/nvfp4-layer, which does the work. Each claims the
 * order fma32/1. faults-cuda/none only does the work.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/device.cuh"

namespace
{

const struct gb_kernel *layer()
{
    void *library = dlopen("libgaugeblock-cuda.so", RTLD_NOW | RTLD_LOCAL);
    const auto function = library ? (const struct gb_kernel_table *(*)())dlsym(library, GB_KERNELS_SYMBOL) : NULL;
    for (uint32_t i = 0; function && i < function()->count; i++)
        if (!strcmp(function()->kernels[i].name, "cuda/nvfp4-layer"))
            return &function()->kernels[i];
    return NULL;
}

enum gb_status supports(const struct gb_problem *problem, struct gb_error *error)
{
    const struct gb_kernel *correct = layer();
    return correct ? correct->supports(problem, error)
                   : gb_cuda_fail(error, GB_EUNSUPPORTED, "libgaugeblock-cuda.so cannot be loaded: %s", dlerror());
}

size_t output_count(const struct gb_arguments *a)
{
    return (size_t)a->shape.tokens * a->shape.hidden;
}

size_t workspace(const struct gb_problem *)
{
    return sizeof(uint32_t);
}

__global__ void write_nowhere(uint32_t *nowhere)
{
    nowhere[threadIdx.x] = 1;
}

/* No poison is 1. */
__global__ void never_end(volatile uint32_t *word)
{
    while (*word != 1)
        __nanosleep(1000);
}

__global__ void trap()
{
    __trap();
}

__global__ void write_past_end(float *output, size_t count)
{
    output[count] = 1;
}

__global__ void change(gb_bf16 *x)
{
    x[0].bits ^= 1;
}

/* A bit of what was in the scratch before. */
__global__ void add_unwritten(uint32_t *output, const uint32_t *scratch)
{
    output[0] ^= *scratch & 1;
}

/* Blocks add to the same elements without atomic operations. */
__global__ void race(volatile float *output, size_t count)
{
    for (size_t i = threadIdx.x; i < count; i += blockDim.x)
        output[i] += 1e-3f * (float)(clock64() % 7);
}

__global__ void poison_one(uint32_t *output, size_t at)
{
    output[at] = 0x7FC00000;
}

enum fault {
    NONE,
    ILLEGAL_ADDRESS,
    HANGS,
    TRAPS,
    EXITS,
    CRASHES,
    WRITES_PAST_END,
    CHANGES_INPUT,
    READS_UNWRITTEN,
    RACES,
    NAN_OUTPUT,
    ZERO_OUTPUT,
    DOES_NOTHING
};

/* After the correct layer. */
void misbehave(enum fault fault, const struct gb_arguments *a)
{
    const auto stream = (cudaStream_t)a->stream;
    const size_t count = output_count(a);
    switch (fault) {
    case ILLEGAL_ADDRESS:
        return write_nowhere<<<1, 32, 0, stream>>>(NULL);
    case HANGS:
        return never_end<<<1, 1, 0, stream>>>((volatile uint32_t *)a->workspace);
    case TRAPS:
        return trap<<<1, 1, 0, stream>>>();
    case EXITS:
        exit(0);
    case CRASHES:
        abort();
    case WRITES_PAST_END:
        return write_past_end<<<1, 1, 0, stream>>>((float *)a->output, count);
    case CHANGES_INPUT:
        return change<<<1, 1, 0, stream>>>((gb_bf16 *)a->x);
    case READS_UNWRITTEN:
        return add_unwritten<<<1, 1, 0, stream>>>((uint32_t *)a->output, (const uint32_t *)a->workspace);
    case RACES:
        return race<<<64, 256, 0, stream>>>((float *)a->output, count);
    case NAN_OUTPUT:
        return poison_one<<<1, 1, 0, stream>>>((uint32_t *)a->output, count / 2);
    case ZERO_OUTPUT:
        (void)cudaMemsetAsync(a->output, 0, count * sizeof(float), stream);
        return;
    case NONE:
    case DOES_NOTHING:
        return;
    }
}

template <enum fault Fault> enum gb_status run(const struct gb_arguments *a, struct gb_error *error)
{
    const enum gb_status status = Fault == DOES_NOTHING ? GB_OK : layer()->run(a, error);
    if (status == GB_OK)
        misbehave(Fault, a);
    return status == GB_OK ? gb_cuda_check(cudaGetLastError(), "kernel launch", error) : status;
}

template <enum fault Fault> constexpr struct gb_kernel kernel(const char *name)
{
    return {name,     GB_LAYER,  GB_NVFP4, GB_BF16, GB_FP32,    "fma32/1", 24, GB_DEVICE_POINTERS | GB_STAGE_OUTPUTS,
            supports, workspace, NULL,     NULL,    run<Fault>, {}};
}

const struct gb_kernel kernels[] = {
    kernel<NONE>("faults-cuda/none"),
    kernel<ILLEGAL_ADDRESS>("faults-cuda/illegal-address"),
    kernel<HANGS>("faults-cuda/hangs"),
    kernel<TRAPS>("faults-cuda/traps"),
    kernel<EXITS>("faults-cuda/exits"),
    kernel<CRASHES>("faults-cuda/crashes"),
    kernel<WRITES_PAST_END>("faults-cuda/writes-past-end"),
    kernel<CHANGES_INPUT>("faults-cuda/changes-input"),
    kernel<READS_UNWRITTEN>("faults-cuda/reads-unwritten"),
    kernel<RACES>("faults-cuda/races"),
    kernel<NAN_OUTPUT>("faults-cuda/nan-output"),
    kernel<ZERO_OUTPUT>("faults-cuda/zero-output"),
    kernel<DOES_NOTHING>("faults-cuda/does-nothing"),
    kernel<NONE>("faults-cuda/none-again"),
};

} // namespace

extern "C" GB_API const struct gb_kernel_table *gb_kernels(void)
{
    static const struct gb_kernel_table table = {GB_ABI_VERSION, sizeof(struct gb_kernel),
                                                 sizeof kernels / sizeof kernels[0], kernels};
    return &table;
}
