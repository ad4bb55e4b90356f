/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness/run/guarded.h"
#include "quant/quant.h"

enum { CANARY_BYTES = 16384, ALIGNMENT = 256, PIECE_BYTES = 1 << 22, GUARD_BYTES = 1 << 16 };

/* Two bytes are a NaN as bf16, and four as FP32, so that what is read there shows. */
static void fill_canary(uint8_t canary[CANARY_BYTES])
{
    enum { PERIOD = 256 }; /* of the low bytes of i * 58 and i * 29 */
    for (size_t i = 0; i < PERIOD; i++)
        canary[i] = i % 2 ? 0x7F | (uint8_t)(i * 58) : 0x81 | (uint8_t)(i * 29);
    for (size_t i = PERIOD; i < CANARY_BYTES; i += PERIOD)
        memcpy(canary + i, canary, PERIOD);
}

/* The right canary starts at the payload's last byte + 1, whatever the alignment. */
static enum gb_status write_canaries(const struct guarded *b, struct gb_error *error)
{
    uint8_t canary[CANARY_BYTES];
    fill_canary(canary);
    enum gb_status status = b->left ? b->memory->upload(b->base, canary, b->left, error) : GB_OK;
    if (status == GB_OK && b->right)
        status = b->memory->upload((char *)b->payload + b->bytes, canary, b->right, error);
    return status;
}

/* Regions whose addresses are kept, of the host or of a device. */
static struct kept {
    size_t mapped;
    uint32_t slot;
    char *region;
} kept[GUARDED_SLOTS * 8];

/* That of the slot and size, or a free entry; NULL: there is no room. */
static struct kept *kept_of(size_t bytes, uint32_t slot)
{
    size_t n = 0;
    while (n < sizeof kept / sizeof *kept && kept[n].region && (kept[n].slot != slot || kept[n].mapped != bytes))
        n++;
    return n < sizeof kept / sizeof *kept ? &kept[n] : NULL;
}

static size_t round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

/* A region for reading and writing, with guard pages before and behind it. */
static char *map(size_t bytes)
{
    char *all = mmap(NULL, bytes + 2 * GUARD_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return NULL;
    if (mprotect(all + GUARD_BYTES, bytes, PROT_READ | PROT_WRITE) == 0)
        return all + GUARD_BYTES;
    munmap(all, bytes + 2 * GUARD_BYTES);
    return NULL;
}

/* That of the slot and size, or a new one; kept in the one case and, where there is room, in the other. */
static char *map_again(size_t bytes, uint32_t slot, bool *is_kept)
{
    struct kept *k = kept_of(bytes, slot);
    if (k && k->region) {
        *is_kept = true;
        return mprotect(k->region, bytes, PROT_READ | PROT_WRITE) == 0 ? k->region : NULL;
    }
    char *region = map(bytes);
    *is_kept = k && region;
    if (*is_kept)
        *k = (struct kept){bytes, slot, region};
    return region;
}

/* Bytes of GUARDED_FRESH in a file in memory; negative: there is none. */
static int fresh_file(void)
{
    static int file = -1;
    if (file >= 0)
        return file;
    char *piece = malloc(PIECE_BYTES);
    file = memfd_create("fresh", MFD_CLOEXEC);
    if (piece)
        memset(piece, GUARDED_FRESH, PIECE_BYTES);
    if (file >= 0 && (!piece || write(file, piece, PIECE_BYTES) != PIECE_BYTES)) {
        close(file);
        file = -1;
    }
    free(piece);
    return file;
}

/* Fills whole pages with GUARDED_FRESH: the same PIECE_BYTES of memory everywhere, until they are written to. Returns
 * how many bytes from `start` on. */
static size_t fill_shared(char *start, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t at = 0, end = bytes / page * page;
    while (at < end) {
        size_t piece = end - at < PIECE_BYTES ? end - at : PIECE_BYTES;
        if (mmap(start + at, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fresh_file(), 0) ==
            MAP_FAILED)
            return at;
        at += piece;
    }
    return at;
}

/* Every byte of a new region; large ones take memory where they are written to. */
static void fill(const struct guarded *b)
{
    size_t shared = b->mapped >= PIECE_BYTES && !b->kept && fresh_file() >= 0 ? fill_shared(b->region, b->mapped) : 0;
    memset(b->region + shared, GUARDED_FRESH, b->mapped - shared);
}

static enum gb_status host_new(size_t bytes, enum guarded_place place, uint32_t slot, struct guarded *b,
                               struct gb_error *error)
{
    const size_t aligned = round_up(bytes, ALIGNMENT), page = (size_t)sysconf(_SC_PAGESIZE);
    b->left = place == GUARDED_START ? 0 : CANARY_BYTES;
    b->right = place == GUARDED_END ? aligned - bytes : CANARY_BYTES;
    b->mapped = round_up(b->left + bytes + b->right, page);
    b->region = place == GUARDED_CANARIES ? map_again(b->mapped, slot, &b->kept) : map(b->mapped);
    if (!b->region)
        return gb_fail(error, GB_ENOMEM, "no memory for %zu bytes", bytes);
    b->base = place == GUARDED_END ? b->region + b->mapped - aligned - b->left : b->region;
    b->payload = b->base + b->left;
    if (place == GUARDED_LARGE)
        (void)madvise(b->region, b->mapped, MADV_HUGEPAGE);
    else
        fill(b);
    return GB_OK;
}

/* Those between canaries stay allocated, so that the others lie elsewhere. */
static enum gb_status device_new(size_t bytes, enum guarded_place place, uint32_t slot, struct guarded *b,
                                 struct gb_error *error)
{
    _Static_assert(CANARY_BYTES % ALIGNMENT == 0, "the payload keeps the allocation's alignment");
    const size_t all = bytes + 2 * CANARY_BYTES;
    struct kept *k = place == GUARDED_CANARIES ? kept_of(all, slot) : NULL;
    void *base = k ? k->region : NULL;
    enum gb_status status = base ? GB_OK : b->memory->allocate(all, &base, error);
    if (status != GB_OK)
        return status;
    if (k)
        *k = (struct kept){all, slot, base};
    b->kept = k;
    b->base = base;
    b->payload = b->base + CANARY_BYTES;
    b->left = b->right = CANARY_BYTES;
    return GB_OK;
}

enum gb_status guarded_new(const struct gb_device *memory, size_t bytes, enum guarded_place place, uint32_t slot,
                           struct guarded *buffer, struct gb_error *error)
{
    *buffer = (struct guarded){.memory = memory};
    if (bytes == 0)
        return GB_OK;
    if (bytes > SIZE_MAX - 4 * CANARY_BYTES - 4 * GUARD_BYTES)
        return gb_fail(error, GB_ENOMEM, "no memory for %zu bytes", bytes);
    enum gb_status status = memory->release == free /* the host's */
                                ? host_new(bytes, place, slot, buffer, error)
                                : device_new(bytes, place, slot, buffer, error);
    buffer->bytes = bytes;
    if (status == GB_OK)
        status = write_canaries(buffer, error);
    if (status != GB_OK)
        guarded_free(buffer);
    return status;
}

enum gb_status guarded_from(const struct gb_device *memory, const void *content, size_t bytes, enum guarded_place place,
                            uint32_t slot, struct guarded *buffer, struct gb_error *error)
{
    enum gb_status status = guarded_new(memory, bytes, place, slot, buffer, error);
    return status == GB_OK ? guarded_put(buffer, 0, content, bytes, error) : status;
}

/* What is kept gives its memory back, and may not be read either; on a device it is poisoned. */
void guarded_free(struct guarded *buffer)
{
    if (buffer->region && buffer->kept) {
        madvise(buffer->region, buffer->mapped, MADV_DONTNEED);
        mprotect(buffer->region, buffer->mapped, PROT_NONE);
    } else if (buffer->region) {
        munmap(buffer->region - GUARD_BYTES, buffer->mapped + 2 * GUARD_BYTES);
    } else if (buffer->base && buffer->kept) {
        (void)guarded_poison(buffer, GUARDED_FRESH, NULL);
    } else if (buffer->base) {
        buffer->memory->release(buffer->base);
    }
    memset(buffer, 0, sizeof *buffer);
}

enum gb_status guarded_poison(const struct guarded *buffer, uint8_t byte, struct gb_error *error)
{
    const size_t most = buffer->bytes < PIECE_BYTES ? buffer->bytes : PIECE_BYTES;
    enum gb_status status = GB_OK;
    if (!buffer->bytes)
        return GB_OK;
    void *piece = malloc(most);
    if (!piece)
        return gb_fail(error, GB_ENOMEM, "no memory for %zu bytes of poison", most);
    memset(piece, byte, most);
    for (size_t at = 0, count; status == GB_OK && at < buffer->bytes; at += count) {
        count = buffer->bytes - at < most ? buffer->bytes - at : most;
        status = guarded_put(buffer, at, piece, count, error);
    }
    free(piece);
    return status;
}

enum gb_status guarded_read(const struct guarded *buffer, void *content, struct gb_error *error)
{
    return buffer->bytes ? buffer->memory->download(content, buffer->payload, buffer->bytes, error) : GB_OK;
}

enum gb_status guarded_intact(const struct guarded *buffer, bool *intact, struct gb_error *error)
{
    uint8_t canary[CANARY_BYTES], left[CANARY_BYTES], right[CANARY_BYTES];
    *intact = true;
    if (!buffer->bytes)
        return GB_OK;
    enum gb_status status = buffer->left ? buffer->memory->download(left, buffer->base, buffer->left, error) : GB_OK;
    if (status == GB_OK && buffer->right)
        status = buffer->memory->download(right, (char *)buffer->payload + buffer->bytes, buffer->right, error);
    fill_canary(canary);
    if (status == GB_OK)
        *intact = !memcmp(left, canary, buffer->left) && !memcmp(right, canary, buffer->right);
    return status;
}

enum gb_status guarded_put(const struct guarded *buffer, size_t offset, const void *content, size_t bytes,
                           struct gb_error *error)
{
    return bytes ? buffer->memory->upload((char *)buffer->payload + offset, content, bytes, error) : GB_OK;
}

static bool lies_in(const struct guarded_file *file, const char *content, size_t bytes)
{
    return file->descriptor >= 0 && content >= file->start && bytes <= file->bytes &&
           (size_t)(content - file->start) <= file->bytes - bytes;
}

/* Pages of the file as long as there are whole ones, in the place of those of the payload from `at` on. Returns how
 * many bytes; fewer than are worth a mapping of their own are none. */
static size_t show_pages(const struct guarded *b, char *at, const struct guarded_file *file, const char *content,
                         size_t bytes)
{
    enum { LEAST = 1 << 14 };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = bytes / page * page;
    const size_t place = (size_t)(content - file->start);
    if (!b->region || !lies_in(file, content, bytes) || whole < LEAST || (uintptr_t)at % page || place % page)
        return 0;
    return mmap(at, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file->descriptor,
                (off_t)place) == MAP_FAILED
               ? 0
               : whole;
}

enum gb_status guarded_show(const struct guarded *buffer, size_t offset, const struct guarded_file *file,
                            const void *content, size_t bytes, struct gb_error *error)
{
    size_t shown = show_pages(buffer, (char *)buffer->payload + offset, file, content, bytes);
    return guarded_put(buffer, offset + shown, (const char *)content + shown, bytes - shown, error);
}

void guarded_file_forget(const struct guarded_file *file, const void *content, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (page - (uintptr_t)content % page) % page;
    if (lies_in(file, content, bytes) && bytes >= before + page)
        madvise((char *)content + before, (bytes - before) / page * page, MADV_DONTNEED);
}

enum gb_status guarded_equals(const struct guarded *buffer, size_t offset, const void *content, size_t bytes,
                              bool *equal, struct gb_error *error)
{
    *equal = true;
    if (!bytes)
        return GB_OK;
    if (buffer->region) {
        *equal = !memcmp((const char *)buffer->payload + offset, content, bytes);
        return GB_OK;
    }
    char *piece = malloc(bytes < PIECE_BYTES ? bytes : PIECE_BYTES);
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
