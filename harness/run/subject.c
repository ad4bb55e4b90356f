/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/host_timer.h"
#include "harness/run/library.h"
#include "harness/run/subject.h"
#include "quant/quant.h"
#include "reference/reference.h"

static enum gb_status check_table(const char *path, const struct gb_kernel_table *table, struct gb_error *error)
{
    if (!table || table->abi_version != GB_ABI_VERSION)
        return gb_fail(error, GB_EINVAL, "%s: built for kernel ABI %u; this program speaks %u; rebuild it", path,
                       table ? table->abi_version : 0, GB_ABI_VERSION);
    if (table->kernel_size != sizeof(struct gb_kernel))
        return gb_fail(error, GB_EINVAL, "%s: its kernels take %u bytes in the table, not %zu; rebuild it", path,
                       (unsigned)table->kernel_size, sizeof(struct gb_kernel));
    if (table->count && !table->kernels)
        return gb_fail(error, GB_EINVAL, "%s: its table has %u kernels at NULL", path, table->count);
    for (uint32_t i = 0; i < table->count; i++)
        if (!table->kernels[i].supports || !table->kernels[i].run)
            return gb_fail(error, GB_EINVAL, "%s: kernel %u lacks supports or run", path, i);
    return GB_OK;
}

enum gb_status subject_open(const char *path, void (*loaded)(void), const struct gb_kernel_table **table,
                            struct gb_error *error)
{
    if (!strcmp(path, BUILTIN_LIBRARY)) {
        *table = gb_reference_kernels();
        return GB_OK;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *reason = dlerror();
        return gb_fail(error, GB_EINVAL, "%s: %s%s", path, reason,
                       strstr(reason, "ELF") ? "; a subject is a shared library (cc -shared -fPIC)" : "");
    }
    gb_kernels_function function;
    *(void **)&function = dlsym(handle, GB_KERNELS_SYMBOL);
    if (!function)
        return gb_fail(error, GB_EINVAL, "%s: exports no function " GB_KERNELS_SYMBOL, path);
    if (loaded)
        loaded();
    *table = function();
    return check_table(path, *table, error);
}

const struct gb_kernel *subject_find(const struct gb_kernel_table *table, const char *name)
{
    for (uint32_t i = 0; i < table->count; i++)
        if (!strcmp(table->kernels[i].name, name))
            return &table->kernels[i];
    return NULL;
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

/* Of which guarded.c maps every page itself. */
static const struct gb_device *host_memory(void)
{
    static const struct gb_device host = {
        .abi_version = GB_ABI_VERSION,
        .release = free,
        .upload = host_copy,
        .download = host_copy,
        .synchronise = host_synchronise,
    };
    return &host;
}

/* What our CUDA library exports under this name. */
static enum gb_status cuda_symbol(const char *name, void **symbol, struct gb_error *error)
{
    char path[PATH_MAX];
    enum gb_status status = library_cuda_path(path, sizeof path, error);
    if (status != GB_OK)
        return status;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    *symbol = handle ? dlsym(handle, name) : NULL;
    return *symbol ? GB_OK
                   : gb_fail(error, GB_EUNSUPPORTED, "%s: %s%s", path, handle ? "it has no " : "",
                             handle ? name : dlerror());
}

enum gb_status subject_device(const struct gb_device **device, char *text, size_t bytes, struct gb_error *error)
{
    gb_device_function function;
    enum gb_status status = cuda_symbol(GB_DEVICE_SYMBOL, (void **)&function, error);
    if (status == GB_OK && (*device = function())->abi_version != GB_ABI_VERSION)
        status = gb_fail(error, GB_EUNSUPPORTED, CUDA_LIBRARY ": no device functions of this ABI");
    return status == GB_OK ? (*device)->describe(text, bytes, error) : status;
}

enum gb_status subject_timer(const struct gb_kernel *kernel, const struct gb_timer **timer, struct gb_error *error)
{
    gb_timer_function function;
    *timer = host_timer();
    if (!(kernel->flags & GB_DEVICE_POINTERS))
        return GB_OK;
    enum gb_status status = cuda_symbol(GB_TIMER_SYMBOL, (void **)&function, error);
    if (status == GB_OK && (*timer = function())->size < sizeof **timer)
        status = gb_fail(error, GB_EUNSUPPORTED, CUDA_LIBRARY ": no timer of this version");
    return status;
}

enum gb_status subject_poison(const struct gb_kernel *kernel, uint8_t byte, struct gb_error *error)
{
    gb_device_poison_function function;
    if (!(kernel->flags & GB_DEVICE_POINTERS))
        return GB_OK;
    enum gb_status status = cuda_symbol(GB_DEVICE_POISON_SYMBOL, (void **)&function, error);
    return status == GB_OK ? function(byte, error) : status;
}

enum gb_status subject_memory(const struct gb_kernel *kernel, const struct gb_device **memory, struct gb_error *error)
{
    char text[256];
    *memory = host_memory();
    return kernel->flags & GB_DEVICE_POINTERS ? subject_device(memory, text, sizeof text, error) : GB_OK;
}
