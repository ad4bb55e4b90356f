/* SPDX-License-Identifier: Apache-2.0 */
/* The judge's side: starts the process that reads a library's table, and checks what that left. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/run/child.h"
#include "harness/run/library.h"
#include "harness/run/operators.h"
#include "harness/run/probe.h"
#include "harness/run/table_wire.h"
#include "harness/run/text.h"
#include "quant/quant.h"
#include "reference/reference.h"

extern char **environ;

/* Beside the program, as it is built, or where it is installed. */
enum gb_status library_cuda_path(char *path, size_t bytes, struct gb_error *error)
{
    static const char *const places[] = {"", GB_LIB_FROM_BIN "/"};
    char own[PATH_MAX];
    if (!realpath("/proc/self/exe", own))
        return gb_fail(error, GB_EUNSUPPORTED, "cannot tell where this program lies");
    *strrchr(own, '/') = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int written = snprintf(path, bytes, "%s/%s" CUDA_LIBRARY, own, places[i]);
        if (written > 0 && (size_t)written < bytes && !access(path, F_OK))
            return GB_OK;
    }
    return gb_fail(error, GB_EUNSUPPORTED, "this build has no CUDA kernels (" CUDA_LIBRARY " is not there)");
}

const char *kernel_weights_name(const struct gb_kernel *kernel)
{
    const char *name = gb_format_name(kernel->weights);
    return name ? name : "none";
}

static bool rounds(enum gb_format format)
{
    return format == GB_FP32 || format == GB_BF16;
}

/* Any enumerator may hold any number. */
static bool known(const struct gb_kernel *k)
{
    for (uint32_t i = 0; i < ROUNDED_STAGES; i++)
        if (stage_rounding(&k->roundings, i) && !rounds(stage_rounding(&k->roundings, i)))
            return false;
    return operator_find(k->operation) &&
           (k->activations == GB_BF16 || gb_recipe_default_activations(k->activations)) && rounds(k->output) &&
           k->accumulator_bits >= 8 && k->accumulator_bits <= 53;
}

/* Printable ASCII without spaces. */
static bool is_name(const char *text)
{
    for (const char *c = text; *c; c++)
        if (*c <= ' ' || *c > '~')
            return false;
    return text[0];
}

enum gb_status library_check_kernel(const char *path, uint32_t i, const struct gb_kernel *k, struct gb_error *error)
{
    if (!k->name || !k->name[0])
        return gb_fail(error, GB_EINVAL, "%s: kernel %u lacks a name", path, i);
    if (!is_name(k->name) || strlen(k->name) >= NAME_BYTES)
        return gb_fail(error, GB_EINVAL, "%s: kernel %u: a name is printable ASCII without spaces, at most %d long",
                       path, i, NAME_BYTES - 1);
    if (k->order && (!is_name(k->order) || strlen(k->order) >= ORDER_BYTES))
        return gb_fail(error, GB_EINVAL,
                       "%s: kernel %s: an order is NULL, or printable ASCII without spaces, at most %d long", path,
                       k->name, ORDER_BYTES - 1);
    const struct operator_row *row = operator_find(k->operation);
    if (k->flags & GB_ROUTES && !(row && row->flags & GB_ROUTES))
        return gb_fail(error, GB_EINVAL, "%s: kernel %s: has GB_ROUTES, which is for GB_LAYER", path, k->name);
    if (k->flags & GB_ONE_RANK && !(row && row->flags & GB_ONE_RANK))
        return gb_fail(error, GB_EINVAL, "%s: kernel %s: has GB_ONE_RANK, which is for GB_DISPATCH and GB_COMBINE",
                       path, k->name);
    if (!known(k))
        return gb_fail(error, GB_EINVAL,
                       "%s: kernel %s: its operator, formats, roundings or accumulator bits are unknown", path,
                       k->name);
    return GB_OK;
}

/* One entry, whose strings end somewhere in it. */
static enum gb_status take_kernel(const char *path, uint32_t i, const struct wire_kernel *w, struct gb_kernel *k,
                                  struct gb_error *error)
{
    if (!memchr(w->name, '\0', sizeof w->name) || !memchr(w->order, '\0', sizeof w->order))
        return gb_fail(error, GB_EINVAL, "%s: kernel %u: a name without an end", path, i);
    *k = (struct gb_kernel){
        .operation = (enum gb_operator)w->operation,
        .weights = (enum gb_format)w->weights,
        .activations = (enum gb_format)w->activations,
        .output = (enum gb_format)w->output,
        .accumulator_bits = w->accumulator_bits,
        .flags = w->flags,
        .name = strdup(w->name),
        .order = w->order[0] ? strdup(w->order) : NULL,
    };
    for (uint32_t s = 0; s < ROUNDED_STAGES; s++)
        stage_round(&k->roundings, s, (enum gb_format)w->roundings[s]);
    if (!k->name || (w->order[0] && !k->order))
        return gb_fail(error, GB_ENOMEM, "no memory for the kernels of %s", path);
    return library_check_kernel(path, i, k, error);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum gb_status check_names(const char *path, const struct subject_library *library, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    const char **names = malloc((library->count + 1) * sizeof *names);
    if (!names)
        return gb_fail(error, GB_ENOMEM, "no memory for the kernels of %s", path);
    for (uint32_t i = 0; i < library->count; i++)
        names[i] = library->kernels[i].name;
    qsort(names, library->count, sizeof *names, by_name);
    for (uint32_t i = 1; status == GB_OK && i < library->count; i++)
        if (!strcmp(names[i - 1], names[i]))
            status = gb_fail(error, GB_EINVAL, "%s: two kernels are named %s", path, names[i]);
    free(names);
    return status;
}

static enum gb_status take_table(const char *path, const char *wire, struct subject_library *library,
                                 struct gb_error *error)
{
    struct wire_head head;
    struct wire_kernel entry;
    memcpy(&head, wire, sizeof head);
    if (head.count > MAX_KERNELS)
        return gb_fail(error, GB_EINVAL, "%s: a table has at most %d kernels", path, MAX_KERNELS);
    library->kernels = calloc(head.count + 1, sizeof *library->kernels);
    enum gb_status status =
        library->kernels ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for the kernels of %s", path);
    for (; status == GB_OK && library->count < head.count; library->count++) {
        memcpy(&entry, wire + sizeof head + library->count * sizeof entry, sizeof entry);
        status = take_kernel(path, library->count, &entry, &library->kernels[library->count], error);
    }
    return status == GB_OK ? check_names(path, library, error) : status;
}

static const char *doing(uint32_t state)
{
    return state == WIRE_LOADING  ? " while it was loaded"
           : state == WIRE_ASKING ? " in " GB_KERNELS_SYMBOL "() or its table"
           : state == WIRE_READ   ? " as its process ended"
                                  : "";
}

/*
 * Starts the process, waits, and reads what it left into wire, [WIRE_BYTES]. argument: of `table`, or NULL. Returns
 * VERDICT_PASS; VERDICT_CRASH, and reason says how it ended; VERDICT_NOT_RUN, and why it was not started.
 */
static enum verdict ask_table(char *argument, unsigned timeout_s, char *wire, char *reason, size_t bytes)
{
    char *argv[] = {"gaugeblock", "table", argument, NULL};
    char how[128], said[CHILD_SAID];
    struct child child;
    struct gb_error error;
    struct wire_head head = {0};
    enum verdict verdict = VERDICT_CRASH;
    int status, file = child_memory("table", WIRE_BYTES), log = child_memory("said", CHILD_LOG);
    int code = file < 0 || log < 0
                   ? errno
                   : child_start_guarded(argv, environ, log, &file, 1, &(struct child_limits){timeout_s, 0}, &child);
    if (code) {
        snprintf(reason, bytes, "cannot start a process to read it: %s", strerror(code));
        verdict = VERDICT_NOT_RUN;
    } else {
        enum child_end end = child_wait(&child, timeout_s, &status);
        bool got = child_read(file, 0, wire, WIRE_BYTES, &error) == GB_OK;
        if (got)
            memcpy(&head, wire, sizeof head);
        if (end != CHILD_ENDED)
            snprintf(reason, bytes, "the library took longer than %u s%s; --timeout allows more", timeout_s,
                     doing(head.state));
        else if (child_describe(status, how, sizeof how)[0])
            snprintf(reason, bytes, "the library's process %s%s%s%s", WIFSIGNALED(status) ? "was " : "", how,
                     doing(head.state), child_said(log, said, sizeof said));
        else if (!got || (head.state != WIRE_READ && head.state != WIRE_REFUSED))
            snprintf(reason, bytes, "the library ended its process%s, as if it had called exit()", doing(head.state));
        else
            verdict = VERDICT_PASS;
    }
    if (file >= 0)
        close(file);
    if (log >= 0)
        close(log);
    return verdict;
}

/* A message of the child's, as one line. */
static void take_message(const char *wire, char *text, size_t bytes)
{
    struct wire_head head;
    memcpy(&head, wire, sizeof head);
    head.message[sizeof head.message - 1] = '\0';
    printable(head.message, text, bytes);
}

static enum gb_status read_builtin(struct subject_library *library, struct gb_error *error)
{
    const struct gb_kernel_table *own = gb_reference_kernels();
    library->kernels = calloc(own->count + 1, sizeof *library->kernels);
    if (!library->kernels)
        return gb_fail(error, GB_ENOMEM, "no memory for the kernels of the reference");
    for (uint32_t i = 0; i < own->count; i++) {
        const struct gb_kernel *from = &own->kernels[i];
        struct gb_kernel *k = &library->kernels[library->count++];
        *k = *from;
        k->name = strdup(from->name);
        k->order = from->order ? strdup(from->order) : NULL;
        if (!k->name || (from->order && !k->order))
            return gb_fail(error, GB_ENOMEM, "no memory for the kernels of the reference");
    }
    return GB_OK;
}

enum gb_status library_read(const char *path, unsigned timeout_s, struct subject_library *library,
                            struct gb_error *error)
{
    memset(library, 0, sizeof *library);
    if (!strcmp(path, BUILTIN_LIBRARY)) {
        snprintf(library->path, sizeof library->path, "%s", path);
        return read_builtin(library, error);
    }
    struct stat about;
    struct gb_error wrong;
    if (!realpath(path, library->path))
        return gb_fail(error, GB_EIO, "%s: no such subject library", path);
    if (stat(library->path, &about) == 0 && !S_ISREG(about.st_mode)) /* a FIFO would be waited for */
        return gb_fail(error, GB_EINVAL, "%s: is no regular file; name a library", path);
    char *wire = calloc(1, WIRE_BYTES);
    if (!wire)
        return gb_fail(error, GB_ENOMEM, "no memory for the kernels of %s", path);
    enum gb_status status = GB_OK;
    library->verdict = ask_table(library->path, timeout_s, wire, library->reason, sizeof library->reason);
    if (library->verdict == VERDICT_PASS && ((const struct wire_head *)wire)->state == WIRE_REFUSED) {
        library->verdict = VERDICT_BAD_INPUT;
        take_message(wire, library->reason, sizeof library->reason);
    } else if (library->verdict == VERDICT_PASS &&
               (status = take_table(path_end(path), wire, library, &wrong)) != GB_OK) {
        library->verdict = status == GB_ENOMEM ? VERDICT_NOT_RUN : VERDICT_BAD_INPUT;
        snprintf(library->reason, sizeof library->reason, "%s", wrong.message);
    }
    free(wire);
    if (library->verdict != VERDICT_PASS) {
        char *kept = library->path;
        struct subject_library none = {.verdict = library->verdict};
        snprintf(none.path, sizeof none.path, "%s", kept);
        snprintf(none.reason, sizeof none.reason, "%s", library->reason);
        library_free(library);
        *library = none;
    }
    return GB_OK;
}

void library_free(struct subject_library *library)
{
    for (uint32_t i = 0; library->kernels && i <= library->count; i++) {
        free((char *)library->kernels[i].name);
        free((char *)library->kernels[i].order);
    }
    free(library->kernels);
    library->kernels = NULL;
    library->count = 0;
}

enum gb_status library_device(char *text, size_t bytes, struct gb_error *error)
{
    static bool asked, there;
    static char answer[640];
    char path[PATH_MAX];
    enum gb_status status = library_cuda_path(path, sizeof path, error);
    if (status != GB_OK)
        return status;
    if (!asked) {
        char *wire = calloc(1, WIRE_BYTES);
        if (!wire)
            return gb_fail(error, GB_ENOMEM, "no memory for the device's description");
        if (ask_table(NULL, INPUT_TIMEOUT_S, wire, answer, sizeof answer) == VERDICT_PASS) {
            there = ((const struct wire_head *)wire)->state == WIRE_READ;
            take_message(wire, answer, sizeof answer);
        }
        asked = true;
        free(wire);
    }
    if (!there)
        return gb_fail(error, GB_EUNSUPPORTED, "%.500s", answer);
    snprintf(text, bytes, "%s", answer);
    return GB_OK;
}
