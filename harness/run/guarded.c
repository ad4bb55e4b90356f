/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "harness/run/guarded.h"
#include "quant/quant.h"

enum { CANARY_BYTES = 16384, ALIGNMENT = 256, PIECE_BYTES = 1 << 22 };

/* Two bytes are a NaN as bf16, and four as FP32, so that what is read there shows. */
static uint8_t canary_byte(size_t i)
{
    return i % 2 ? 0x7F | (uint8_t)(i * 58) : 0x81 | (uint8_t)(i * 29);
}

/* The right canary starts at the payload's last byte + 1, whatever the alignment. */
static enum gb_status write_canaries(const struct guarded *b, struct gb_error *error)
{
    uint8_t canary[CANARY_BYTES];
    for (size_t i = 0; i < CANARY_BYTES; i++)
        canary[i] = canary_byte(i);
    enum gb_status status = b->memory->upload(b->base, canary, CANARY_BYTES, error);
    if (status == GB_OK)
        status = b->memory->upload((char *)b->payload + b->bytes, canary, CANARY_BYTES, error);
    return status;
}

enum gb_status guarded_new(const struct gb_device *memory, size_t bytes, struct guarded *buffer, struct gb_error *error)
{
    memset(buffer, 0, sizeof *buffer);
    if (bytes == 0)
        return GB_OK;
    if (bytes > SIZE_MAX - 2 * CANARY_BYTES)
        return gb_fail(error, GB_ENOMEM, "no memory for %zu bytes", bytes);
    void *base;
    enum gb_status status = memory->allocate(bytes + 2 * CANARY_BYTES, &base, error);
    if (status != GB_OK)
        return status;
    *buffer = (struct guarded){memory, base, (char *)base + CANARY_BYTES, bytes};
    _Static_assert(CANARY_BYTES % ALIGNMENT == 0, "the payload keeps the allocation's alignment");
    status = write_canaries(buffer, error);
    if (status != GB_OK)
        guarded_free(buffer);
    return status;
}

enum gb_status guarded_from(const struct gb_device *memory, const void *content, size_t bytes, struct guarded *buffer,
                            struct gb_error *error)
{
    enum gb_status status = guarded_new(memory, bytes, buffer, error);
    return status == GB_OK ? guarded_put(buffer, 0, content, bytes, error) : status;
}

void guarded_free(struct guarded *buffer)
{
    if (buffer->base)
        buffer->memory->release(buffer->base);
    memset(buffer, 0, sizeof *buffer);
}

enum gb_status guarded_poison(const struct guarded *buffer, uint8_t byte, struct gb_error *error)
{
    if (!buffer->bytes)
        return GB_OK;
    void *content = malloc(buffer->bytes);
    if (!content)
        return gb_fail(error, GB_ENOMEM, "no memory for %zu bytes of poison", buffer->bytes);
    memset(content, byte, buffer->bytes);
    enum gb_status status = buffer->memory->upload(buffer->payload, content, buffer->bytes, error);
    free(content);
    return status;
}

enum gb_status guarded_read(const struct guarded *buffer, void *content, struct gb_error *error)
{
    return buffer->bytes ? buffer->memory->download(content, buffer->payload, buffer->bytes, error) : GB_OK;
}

enum gb_status guarded_intact(const struct guarded *buffer, bool *intact, struct gb_error *error)
{
    uint8_t left[CANARY_BYTES], right[CANARY_BYTES];
    *intact = true;
    if (!buffer->bytes)
        return GB_OK;
    enum gb_status status = buffer->memory->download(left, buffer->base, CANARY_BYTES, error);
    if (status == GB_OK)
        status = buffer->memory->download(right, (char *)buffer->payload + buffer->bytes, CANARY_BYTES, error);
    for (size_t i = 0; status == GB_OK && i < CANARY_BYTES; i++)
        *intact &= left[i] == canary_byte(i) && right[i] == canary_byte(i);
    return status;
}

enum gb_status guarded_put(const struct guarded *buffer, size_t offset, const void *content, size_t bytes,
                           struct gb_error *error)
{
    return bytes ? buffer->memory->upload((char *)buffer->payload + offset, content, bytes, error) : GB_OK;
}

enum gb_status guarded_equals(const struct guarded *buffer, size_t offset, const void *content, size_t bytes,
                              bool *equal, struct gb_error *error)
{
    *equal = true;
    char *piece = malloc(PIECE_BYTES);
    if (!piece)
        return gb_fail(error, GB_ENOMEM, "no memory to check inputs");
    enum gb_status status = GB_OK;
    for (size_t at = 0; status == GB_OK && *equal && at < bytes; at += PIECE_BYTES) {
        size_t count = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        status = buffer->memory->download(piece, (const char *)buffer->payload + offset + at, count, error);
        *equal &= status == GB_OK && !memcmp(piece, (const char *)content + at, count);
    }
    free(piece);
    return status;
}
