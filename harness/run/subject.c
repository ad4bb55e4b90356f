/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/run/declared_precision.h"
#include "harness/run/subject.h"
#include "quant/quant.h"
#include "reference/reference.h"

static bool rounds(enum gb_format format)
{
    return format == GB_FP32 || format == GB_BF16;
}

static bool known(const struct gb_kernel *k)
{
    for (uint32_t i = 0; i < ROUNDED_STAGES; i++)
        if (stage_rounding(&k->roundings, i) && !rounds(stage_rounding(&k->roundings, i)))
            return false;
    return operator_find(k->operation) &&
           (k->activations == GB_BF16 || gb_recipe_default_activations(k->activations)) && rounds(k->output) &&
           k->accumulator_bits >= 8 && k->accumulator_bits <= 53;
}

static enum gb_status check_table(const char *path, const struct gb_kernel_table *table, struct gb_error *error)
{
    if (!table || table->abi_version != GB_ABI_VERSION || table->kernel_size != sizeof(struct gb_kernel))
        return gb_fail(error, GB_EINVAL, "%s: built for kernel ABI %u; this program speaks %u; rebuild it", path,
                       table ? table->abi_version : 0, GB_ABI_VERSION);
    for (uint32_t i = 0; i < table->count; i++) {
        const struct gb_kernel *k = &table->kernels[i];
        if (!k->name || !k->name[0] || !k->supports || !k->run)
            return gb_fail(error, GB_EINVAL, "%s: kernel %u lacks a name, supports or run", path, i);
        for (const char *c = k->name; *c; c++)
            if (*c <= ' ' || *c > '~')
                return gb_fail(error, GB_EINVAL, "%s: kernel %u: a name is printable ASCII without spaces", path, i);
        for (uint32_t j = 0; j < i; j++)
            if (!strcmp(k->name, table->kernels[j].name))
                return gb_fail(error, GB_EINVAL, "%s: two kernels are named %s", path, k->name);
        if (k->flags & GB_ROUTES && k->operation != GB_LAYER)
            return gb_fail(error, GB_EINVAL, "%s: kernel %s: has GB_ROUTES, which is for GB_LAYER", path, k->name);
        if (!known(k))
            return gb_fail(error, GB_EINVAL,
                           "%s: kernel %s: its operator, formats, roundings or accumulator bits are unknown", path,
                           k->name);
    }
    return GB_OK;
}

enum gb_status subject_library_open(const char *path, struct subject_library *library, struct gb_error *error)
{
    if (!strcmp(path, BUILTIN_LIBRARY)) {
        snprintf(library->path, sizeof library->path, "%s", path);
        library->table = gb_reference_kernels();
        return GB_OK;
    }
    if (!realpath(path, library->path))
        return gb_fail(error, GB_EIO, "%s: no such subject library", path);
    struct stat about;
    if (stat(library->path, &about) == 0 && !S_ISREG(about.st_mode)) /* a FIFO would be waited for */
        return gb_fail(error, GB_EINVAL, "%s: is no regular file; name a library", path);
    void *handle = dlopen(library->path, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return gb_fail(error, GB_EINVAL, "%s: %s", path, dlerror());
    gb_kernels_function function;
    *(void **)&function = dlsym(handle, GB_KERNELS_SYMBOL);
    if (!function)
        return gb_fail(error, GB_EINVAL, "%s: exports no function " GB_KERNELS_SYMBOL, path);
    library->table = function();
    return check_table(path, library->table, error);
}

enum gb_status subject_cuda_path(char *path, size_t bytes, struct gb_error *error)
{
    Dl_info info;
    char resolved[PATH_MAX];
    if (!dladdr((const void *)&gb_reference_kernels, &info) || !realpath(info.dli_fname, resolved))
        return gb_fail(error, GB_EUNSUPPORTED, "cannot tell where libgaugeblock lies");
    char *slash = strrchr(resolved, '/');
    int written = snprintf(path, bytes, "%.*s/" CUDA_LIBRARY, (int)(slash - resolved), resolved);
    if (written < 0 || (size_t)written >= bytes || access(path, R_OK))
        return gb_fail(error, GB_EUNSUPPORTED, "this build has no CUDA kernels (" CUDA_LIBRARY " is not there)");
    return GB_OK;
}

const struct gb_kernel *subject_kernel(const struct subject_library *library, uint32_t i)
{
    return &library->table->kernels[i];
}

const struct gb_kernel *subject_find(const struct subject_library *library, const char *name)
{
    for (uint32_t i = 0; i < library->table->count; i++)
        if (!strcmp(library->table->kernels[i].name, name))
            return &library->table->kernels[i];
    return NULL;
}

const char *kernel_weights_name(const struct gb_kernel *kernel)
{
    const char *name = gb_format_name(kernel->weights);
    return name ? name : "none";
}

static enum gb_status host_describe(char *text, size_t bytes, struct gb_error *error)
{
    (void)error;
    snprintf(text, bytes, "host");
    return GB_OK;
}

static enum gb_status host_allocate(size_t bytes, void **pointer, struct gb_error *error)
{
    if (posix_memalign(pointer, 256, bytes))
        return gb_fail(error, GB_ENOMEM, "no memory for %zu bytes", bytes);
    return GB_OK;
}

static enum gb_status host_copy(void *to, const void *from, size_t bytes, struct gb_error *error)
{
    (void)error;
    memcpy(to, from, bytes);
    return GB_OK;
}

static enum gb_status host_synchronise(struct gb_error *error)
{
    (void)error;
    return GB_OK;
}

const struct gb_device *host_memory(void)
{
    static const struct gb_device host = {
        .abi_version = GB_ABI_VERSION,
        .describe = host_describe,
        .allocate = host_allocate,
        .release = free,
        .upload = host_copy,
        .download = host_copy,
        .synchronise = host_synchronise,
    };
    return &host;
}

enum gb_status subject_memory(const struct gb_kernel *kernel, const struct gb_device **memory, struct gb_error *error)
{
    char path[PATH_MAX];
    *memory = host_memory();
    if (!(kernel->flags & GB_DEVICE_POINTERS))
        return GB_OK;
    enum gb_status status = subject_cuda_path(path, sizeof path, error);
    if (status != GB_OK)
        return status;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    gb_device_function function = NULL;
    if (handle)
        *(void **)&function = dlsym(handle, GB_DEVICE_SYMBOL);
    if (!function || !(*memory = function()) || (*memory)->abi_version != GB_ABI_VERSION)
        return gb_fail(error, GB_EUNSUPPORTED, "%s: %s", path, handle ? "no device functions of this ABI" : dlerror());
    char text[256];
    return (*memory)->describe(text, sizeof text, error);
}
