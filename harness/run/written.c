/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/written.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/run/child.h"
#include "harness/run/operators.h"
#include "quant/quant.h"

/* The file, and how much of it was passed. */
struct transfer {
    int file;
    size_t at;
    struct gb_error *error;
};

typedef enum gb_status pass(struct transfer *transfer, void *array, size_t bytes);

static enum gb_status put(struct transfer *t, void *array, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t put = pwrite(t->file, (const char *)array + done, bytes - done, (off_t)(t->at + done));
        if (put < 0 && errno != EINTR)
            return gb_fail(t->error, GB_EIO, "what the kernel wrote cannot be left: %s", strerror(errno));
        done += put > 0 ? (size_t)put : 0;
    }
    t->at += bytes;
    return GB_OK;
}

static enum gb_status count(struct transfer *t, void *array, size_t bytes)
{
    (void)array;
    t->at += bytes;
    return GB_OK;
}

static enum gb_status get(struct transfer *t, void *array, size_t bytes)
{
    enum gb_status status = child_read(t->file, t->at, array, bytes, t->error);
    t->at += bytes;
    return status;
}

/* Passes all that such a kernel has there. */
static enum gb_status each(struct transfer *t, pass *what, const struct gb_kernel *kernel,
                           const struct gb_fixture *fixture, const struct gb_outputs *o)
{
    const struct operator_row *row = operator_find(kernel->operation);
    enum gb_status status = GB_OK;
    for (uint32_t l = 0; l < (row->layers ? o->layers : 1); l++) {
        const void *written = row->layers ? (const void *)&o->layer[l] : o;
        for (uint32_t i = 0; status == GB_OK && i < row->array_count; i++) {
            const struct operator_array *a = &row->arrays[i];
            void *array = a->written ? operator_pointer(written, a->place) : NULL;
            size_t element;
            if (array)
                status = what(t, array, a->bytes(kernel, fixture, o->shape.tokens, &element));
        }
    }
    if (status == GB_OK && o->stack)
        status = what(t, o->stack, sizeof *o->stack * o->layers * o->shape.tokens * o->shape.hidden);
    return status;
}

enum gb_status written_send(int file, const struct gb_kernel *kernel, const struct gb_fixture *fixture,
                            const struct gb_outputs *outputs, struct gb_error *error)
{
    struct transfer transfer = {.file = file, .error = error};
    return each(&transfer, put, kernel, fixture, outputs);
}

enum gb_status written_receive(int file, const struct gb_kernel *kernel, const struct gb_fixture *fixture,
                               uint32_t tokens, bool with_stack, struct gb_outputs **outputs, struct gb_error *error)
{
    const struct operator_row *row = operator_find(kernel->operation);
    struct transfer all = {.file = file, .error = error}, transfer = all;
    struct stat about;
    enum gb_status status = row->new_outputs(kernel, fixture, tokens, fixture->layers, with_stack, outputs, error);
    if (status == GB_OK)
        status = each(&all, count, kernel, fixture, *outputs);
    if (status == GB_OK && (fstat(file, &about) || (uint64_t)about.st_size != all.at))
        status = gb_fail(error, GB_EFORMAT, "they are not the %zu bytes of such a kernel on %u tokens", all.at, tokens);
    if (status == GB_OK)
        status = each(&transfer, get, kernel, fixture, *outputs);
    if (status != GB_OK) {
        gb_outputs_free(*outputs);
        *outputs = NULL;
    }
    return status;
}
