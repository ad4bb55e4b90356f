/* SPDX-License-Identifier: Apache-2.0 */
/* Where the scale of a row and a column of blocks lies; docs/numerics.md#scale-layouts. */
#include <string.h>

#include "quant/quant.h"

/* What rows and columns are padded to. */
static const struct {
    const char *name;
    uint32_t tile_rows, tile_columns;
} layouts[] = {
    [GB_LAYOUT_LINEAR] = {"linear", 1, 1},
    [GB_LAYOUT_TRANSPOSED] = {"transposed", 1, 1},
    [GB_LAYOUT_TRANSPOSED_ALIGNED] = {"transposed-aligned", 0, 1}, /* as many rows as 16 bytes hold */
    [GB_LAYOUT_SWIZZLED_128X4] = {"swizzled-128x4", 128, 4},
    [GB_LAYOUT_SWIZZLED_8X4] = {"swizzled-8x4", 8, 4},
    [GB_LAYOUT_PACKED] = {"packed", 4, 4},
};

static bool known(enum gb_layout layout)
{
    return layout >= GB_LAYOUT_LINEAR && layout <= GB_LAYOUT_PACKED;
}

const char *gb_layout_name(enum gb_layout layout)
{
    return known(layout) ? layouts[layout].name : NULL;
}

bool gb_layout_parse(const char *name, enum gb_layout *layout)
{
    for (enum gb_layout l = GB_LAYOUT_LINEAR; l <= GB_LAYOUT_PACKED; l++)
        if (!strcmp(layouts[l].name, name)) {
            *layout = l;
            return true;
        }
    return false;
}

static uint64_t round_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* Rows and columns with padding. */
static uint64_t padded_rows(const struct gb_scales *s)
{
    uint32_t tile = layouts[s->layout].tile_rows;
    return round_up(s->rows, tile ? tile : 16 / s->bytes);
}

static uint64_t padded_columns(const struct gb_scales *s)
{
    return round_up(s->columns, layouts[s->layout].tile_columns);
}

enum gb_status gb_layout_bytes(const struct gb_scales *s, size_t *bytes, struct gb_error *error)
{
    if (!known(s->layout))
        return gb_fail(error, GB_EINVAL, "unknown layout %d of scales", (int)s->layout);
    if (s->bytes != 1 && s->bytes != 4)
        return gb_fail(error, GB_EINVAL, "scales of %u bytes; there are E4M3 and E8M0 of 1 and FP32 of 4", s->bytes);
    if (s->bytes != 1 && layouts[s->layout].tile_columns == 4)
        return gb_fail(error, GB_EINVAL, "layout %s is for scales of 1 byte, not %u", layouts[s->layout].name,
                       s->bytes);
    if (!s->rows || !s->columns || !gb_bytes(padded_rows(s), padded_columns(s), 1, s->bytes, bytes))
        return gb_fail(error, GB_EINVAL, "%u x %u scales are none, or do not fit in memory", s->rows, s->columns);
    return GB_OK;
}

size_t gb_layout_offset(const struct gb_scales *s, uint32_t row, uint32_t column)
{
    size_t m = row, k = column, tiles = padded_columns(s) / 4; /* of 4 columns, across */
    switch (s->layout) {
    case GB_LAYOUT_LINEAR:
        break;
    case GB_LAYOUT_TRANSPOSED:
    case GB_LAYOUT_TRANSPOSED_ALIGNED:
        return (k * padded_rows(s) + m) * s->bytes;
    case GB_LAYOUT_SWIZZLED_128X4:
        return (m / 128 * tiles + k / 4) * 512 + m % 32 * 16 + m % 128 / 32 * 4 + k % 4;
    case GB_LAYOUT_SWIZZLED_8X4:
        return (m / 8 * tiles + k / 4) * 32 + m % 8 * 4 + k % 4;
    case GB_LAYOUT_PACKED:
        return (k / 4 * padded_rows(s) + m) * 4 + k % 4;
    }
    return (m * s->columns + k) * s->bytes;
}

enum gb_status gb_layout_pack(const struct gb_scales *s, const void *linear, void *packed, struct gb_error *error)
{
    size_t bytes;
    enum gb_status status = gb_layout_bytes(s, &bytes, error);
    if (status != GB_OK)
        return status;
    memset(packed, 0, bytes);
    const uint8_t *from = linear;
    for (uint32_t row = 0; row < s->rows; row++)
        for (uint32_t column = 0; column < s->columns; column++, from += s->bytes)
            memcpy((uint8_t *)packed + gb_layout_offset(s, row, column), from, s->bytes);
    return GB_OK;
}

enum gb_status gb_layout_unpack(const struct gb_scales *s, const void *packed, void *linear, struct gb_error *error)
{
    size_t bytes;
    enum gb_status status = gb_layout_bytes(s, &bytes, error);
    if (status != GB_OK)
        return status;
    uint8_t *to = linear;
    for (uint32_t row = 0; row < s->rows; row++)
        for (uint32_t column = 0; column < s->columns; column++, to += s->bytes)
            memcpy(to, (const uint8_t *)packed + gb_layout_offset(s, row, column), s->bytes);
    return GB_OK;
}
