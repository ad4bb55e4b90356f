/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of a subject: canaries on both sides, poison inside, on the host or on a device. */
#ifndef GB_HARNESS_RUN_GUARDED_H
#define GB_HARNESS_RUN_GUARDED_H

#include <stdbool.h>

#include "gaugeblock.h"

struct guarded {
    const struct gb_device *memory;
    char *base;    /* canary, payload, canary */
    void *payload; /* 256-byte aligned */
    size_t bytes;
};

/* bytes may be 0: payload is then NULL. */
enum gb_status guarded_new(const struct gb_device *memory, size_t bytes, struct guarded *buffer,
                           struct gb_error *error);
/* With a copy of `content` inside. */
enum gb_status guarded_from(const struct gb_device *memory, const void *content, size_t bytes, struct guarded *buffer,
                            struct gb_error *error);
void guarded_free(struct guarded *buffer);
/* Fills the payload with one byte. */
enum gb_status guarded_poison(const struct guarded *buffer, uint8_t byte, struct gb_error *error);
enum gb_status guarded_read(const struct guarded *buffer, void *content, struct gb_error *error);
/* Whether both canaries are whole. */
enum gb_status guarded_intact(const struct guarded *buffer, bool *intact, struct gb_error *error);
/* Copies `content` to the payload from byte `offset` on. */
enum gb_status guarded_put(const struct guarded *buffer, size_t offset, const void *content, size_t bytes,
                           struct gb_error *error);
/* Whether the payload still equals `content` from byte `offset` on. */
enum gb_status guarded_equals(const struct guarded *buffer, size_t offset, const void *content, size_t bytes,
                              bool *equal, struct gb_error *error);

#endif
