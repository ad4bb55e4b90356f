/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of a subject: canaries or guard pages on both sides, poison inside, on the host or on a device. */
#ifndef GB_HARNESS_RUN_GUARDED_H
#define GB_HARNESS_RUN_GUARDED_H

#include <stdbool.h>

#include "gaugeblock.h"

/* What is in memory that nobody wrote: a large number as bf16 and FP32. */
enum { GUARDED_FRESH = 0x7E };

/* Where a buffer lies on the host; on a device it has canaries everywhere, and its address is as on the host. */
enum guarded_place {
    GUARDED_CANARIES, /* between canaries; at the same address as the last one of its slot and size, and at no other's
                       */
    GUARDED_END,      /* so that it ends, but for its alignment, where no access is allowed */
    GUARDED_START,    /* so that it starts there */
    GUARDED_LARGE     /* between canaries, in large pages, and where nobody writes no memory is used */
};

/* How a run differs from another: what fills all that is written, and where buffers lie. */
struct run_way {
    uint8_t poison;
    enum guarded_place place;
};

struct guarded {
    const struct gb_device *memory;
    char *base;    /* left bytes of canary, payload, right bytes of canary */
    void *payload; /* 256-byte aligned */
    size_t bytes, left, right;
    char *region;  /* on the host: what is mapped, */
    size_t mapped; /* that many bytes */
    bool kept;     /* it keeps its address when it is freed */
};

/* bytes may be 0: payload is then NULL. slot: below GUARDED_SLOTS; what it is for, for as long as the process lives. */
enum { GUARDED_SLOTS = 32 };
enum gb_status guarded_new(const struct gb_device *memory, size_t bytes, enum guarded_place place, uint32_t slot,
                           struct guarded *buffer, struct gb_error *error);
/* With a copy of `content` inside. */
enum gb_status guarded_from(const struct gb_device *memory, const void *content, size_t bytes, enum guarded_place place,
                            uint32_t slot, struct guarded *buffer, struct gb_error *error);
void guarded_free(struct guarded *buffer);
/* Fills the payload with one byte. */
enum gb_status guarded_poison(const struct guarded *buffer, uint8_t byte, struct gb_error *error);
enum gb_status guarded_read(const struct guarded *buffer, void *content, struct gb_error *error);
/* Whether its canaries are whole. */
enum gb_status guarded_intact(const struct guarded *buffer, bool *intact, struct gb_error *error);
/* Copies `content` to the payload from byte `offset` on. */
enum gb_status guarded_put(const struct guarded *buffer, size_t offset, const void *content, size_t bytes,
                           struct gb_error *error);
/* A file in memory, and where this process has mapped it. */
struct guarded_file {
    int descriptor;    /* negative: there is none */
    const char *start; /* [bytes] */
    size_t bytes;
};
/* As guarded_put, of content that may lie in the file: its pages are then the payload's on the host, and take memory of
 * their own where they are written to. */
enum gb_status guarded_show(const struct guarded *buffer, size_t offset, const struct guarded_file *file,
                            const void *content, size_t bytes, struct gb_error *error);
/* Gives back the memory by which this process sees whole pages of the file, to which it has not written. */
void guarded_file_forget(const struct guarded_file *file, const void *content, size_t bytes);
/* Whether the payload still equals `content` from byte `offset` on. */
enum gb_status guarded_equals(const struct guarded *buffer, size_t offset, const void *content, size_t bytes,
                              bool *equal, struct gb_error *error);

#endif
