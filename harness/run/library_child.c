/* SPDX-License-Identifier: Apache-2.0 */
/* The process that loads a library to read its table, and runs no kernel: whatever the library does, it does here. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "harness/run/child.h"
#include "harness/run/library.h"
#include "harness/run/subject.h"
#include "harness/run/table_wire.h"
#include "quant/quant.h"

static struct wire_head head;

/* Leaves the head; the parent says what is missing if that fails. */
static bool leave(enum wire_state state)
{
    head.state = state;
    return pwrite(CHILD_SHARED, &head, sizeof head, 0) == (ssize_t)sizeof head;
}

static void note_loaded(void)
{
    leave(WIRE_ASKING);
}

static enum gb_status describe(const char *path, uint32_t i, const struct gb_kernel *k, struct gb_error *error)
{
    struct wire_kernel w = {.operation = k->operation,
                            .weights = k->weights,
                            .activations = k->activations,
                            .output = k->output,
                            .accumulator_bits = k->accumulator_bits,
                            .flags = k->flags};
    enum gb_status status = library_check_kernel(path, i, k, error);
    if (status != GB_OK)
        return status;
    snprintf(w.name, sizeof w.name, "%s", k->name);
    snprintf(w.order, sizeof w.order, "%s", k->order ? k->order : "");
    for (uint32_t s = 0; s < ROUNDED_STAGES; s++)
        w.roundings[s] = stage_rounding(&k->roundings, s);
    return pwrite(CHILD_SHARED, &w, sizeof w, (off_t)(sizeof head + i * sizeof w)) == (ssize_t)sizeof w
               ? GB_OK
               : gb_fail(error, GB_EIO, "%s: cannot describe its kernels", path);
}

static enum gb_status read_table(const char *path, struct gb_error *error)
{
    const struct gb_kernel_table *table;
    enum gb_status status = subject_open(path, note_loaded, &table, error);
    if (status == GB_OK && table->count > MAX_KERNELS)
        status =
            gb_fail(error, GB_EINVAL, "%s: its table has %u kernels, more than %d", path, table->count, MAX_KERNELS);
    for (uint32_t i = 0; status == GB_OK && i < table->count; i++)
        status = describe(path, i, &table->kernels[i], error);
    if (status == GB_OK)
        head.count = table->count;
    return status;
}

int table_main(int argc, char **argv)
{
    const struct gb_device *device;
    struct gb_error error = {""};
    if (argc > 2) {
        fprintf(stderr, "gaugeblock guard table: is run by other commands\n");
        return EXIT_USAGE;
    }
    if (!leave(WIRE_LOADING))
        return EXIT_USAGE;
    enum gb_status status =
        argc == 2 ? read_table(argv[1], &error) : subject_device(&device, head.message, sizeof head.message, &error);
    if (status != GB_OK)
        memcpy(head.message, error.message, sizeof head.message);
    return leave(status == GB_OK ? WIRE_READ : WIRE_REFUSED) ? EXIT_PASS : EXIT_CRASH;
}
