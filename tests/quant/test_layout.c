/* SPDX-License-Identifier: Apache-2.0 */
/* quant/layout.c against an oracle that writes each layout in storage order, from its description as a permutation of
 * a padded matrix; on shapes with and without padding. */
#include "tests/support/check.h"
#include "tests/support/kept_explanation.h"

#include "quant/quant.h"

enum { PADDING = -1 };

/* What lies in every place of a layout: index into [rows, columns], or PADDING. */
struct places {
    int64_t *index;
    size_t count;
};

static void place(struct places *p, const struct gb_scales *s, uint32_t row, uint32_t column)
{
    bool inside = row < s->rows && column < s->columns;
    p->index[p->count++] = inside ? (int64_t)row * s->columns + column : PADDING;
}

/* In the words of the sources: "view(rows / 128, 4, 32, columns / 4, 4).permute(0, 3, 2, 1, 4)" and so on. */
static struct places oracle(const struct gb_scales *s)
{
    struct places p = {malloc(((size_t)s->rows + 128) * (s->columns + 4) * sizeof(int64_t)), 0};
    assert_non_null(p.index);
    uint32_t align = s->layout == GB_LAYOUT_TRANSPOSED_ALIGNED ? 16 / s->bytes : 1;
    switch (s->layout) {
    case GB_LAYOUT_LINEAR:
        for (uint32_t row = 0; row < s->rows; row++)
            for (uint32_t column = 0; column < s->columns; column++)
                place(&p, s, row, column);
        break;
    case GB_LAYOUT_TRANSPOSED:
    case GB_LAYOUT_TRANSPOSED_ALIGNED:
        for (uint32_t column = 0; column < s->columns; column++)
            for (uint32_t row = 0; row < s->rows || row % align; row++)
                place(&p, s, row, column);
        break;
    case GB_LAYOUT_SWIZZLED_128X4:
        for (uint32_t tile = 0; tile < s->rows; tile += 128)
            for (uint32_t across = 0; across < s->columns; across += 4)
                for (uint32_t lane = 0; lane < 32; lane++)
                    for (uint32_t group = 0; group < 4; group++)
                        for (uint32_t column = 0; column < 4; column++)
                            place(&p, s, tile + 32 * group + lane, across + column);
        break;
    case GB_LAYOUT_SWIZZLED_8X4:
        for (uint32_t tile = 0; tile < s->rows; tile += 8)
            for (uint32_t across = 0; across < s->columns; across += 4)
                for (uint32_t row = 0; row < 8; row++)
                    for (uint32_t column = 0; column < 4; column++)
                        place(&p, s, tile + row, across + column);
        break;
    case GB_LAYOUT_PACKED:
        for (uint32_t across = 0; across < s->columns; across += 4)
            for (uint32_t row = 0; row < s->rows || row % 4; row++)
                for (uint32_t byte = 0; byte < 4; byte++)
                    place(&p, s, row, across + byte);
        break;
    }
    return p;
}

/* One scale of every place: never 0, and different from its neighbours'. */
static uint32_t value(int64_t index)
{
    return index == PADDING ? 0 : 0x01010101u * (uint32_t)(1 + index % 251) ^ (uint32_t)(index / 251 << 8);
}

static void check_shape(struct gb_scales s)
{
    struct places places = oracle(&s);
    size_t bytes, scales = (size_t)s.rows * s.columns;
    struct gb_error error;
    assert_int_equal(gb_layout_bytes(&s, &bytes, &error), GB_OK);
    assert_int_equal(bytes, places.count * s.bytes);

    uint8_t *linear = malloc(scales * s.bytes), *back = malloc(scales * s.bytes), *packed = malloc(bytes + 1);
    assert_true(linear && back && packed);
    for (size_t i = 0; i < scales; i++)
        memcpy(linear + i * s.bytes, &(uint32_t){value((int64_t)i)}, s.bytes);
    memset(packed, 0xEE, bytes + 1);
    memset(back, 0xEE, scales * s.bytes);
    assert_int_equal(gb_layout_pack(&s, linear, packed, &error), GB_OK);
    for (size_t i = 0; i < places.count; i++)
        if (memcmp(packed + i * s.bytes, &(uint32_t){value(places.index[i])}, s.bytes))
            fail_msg("%s of %u x %u: place %zu does not hold scale %lld", gb_layout_name(s.layout), s.rows, s.columns,
                     i, (long long)places.index[i]);
    assert_int_equal(packed[bytes], 0xEE);
    for (size_t i = 0; i < places.count; i++) /* padding is not read */
        if (places.index[i] == PADDING)
            memset(packed + i * s.bytes, 0xAA, s.bytes);
    assert_int_equal(gb_layout_unpack(&s, packed, back, &error), GB_OK);
    assert_memory_equal(back, linear, scales * s.bytes);
    free(places.index);
    free(linear);
    free(back);
    free(packed);
}

static void every_layout_is_the_oracles(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 3, 4, 7, 8, 9, 31, 32, 33, 127, 128, 129, 200, 256, 300};
    static const uint32_t columns[] = {1, 2, 3, 4, 5, 7, 8, 11, 23, 64, 90, 180};
    for (enum gb_layout l = GB_LAYOUT_LINEAR; l <= GB_LAYOUT_PACKED; l++)
        for (unsigned r = 0; r < sizeof rows / sizeof *rows; r++)
            for (unsigned c = 0; c < sizeof columns / sizeof *columns; c++) {
                check_shape((struct gb_scales){l, rows[r], columns[c], 1});
                if (l <= GB_LAYOUT_TRANSPOSED_ALIGNED)
                    check_shape((struct gb_scales){l, rows[r], columns[c], 4});
            }
}

/* By hand, from the documentation's picture of the 128x4 tile and DeepGEMM's strides. */
static void landmarks(void **state)
{
    (void)state;
    struct gb_scales s = {GB_LAYOUT_SWIZZLED_128X4, 256, 8, 1};
    assert_int_equal(gb_layout_offset(&s, 0, 3), 3);
    assert_int_equal(gb_layout_offset(&s, 1, 0), 16);
    assert_int_equal(gb_layout_offset(&s, 32, 0), 4);
    assert_int_equal(gb_layout_offset(&s, 127, 3), 511);
    assert_int_equal(gb_layout_offset(&s, 0, 4), 512);
    assert_int_equal(gb_layout_offset(&s, 128, 0), 1024);
    struct gb_scales packed = {GB_LAYOUT_PACKED, 5, 6, 1};
    assert_int_equal(gb_layout_offset(&packed, 1, 2), 6);
    assert_int_equal(gb_layout_offset(&packed, 0, 4), 32);
    struct gb_scales aligned = {GB_LAYOUT_TRANSPOSED_ALIGNED, 5, 2, 4};
    assert_int_equal(gb_layout_offset(&aligned, 1, 1), 4 * (8 + 1));
}

static void refused(struct gb_scales s, const char *why)
{
    size_t bytes;
    struct gb_error error = {""};
    uint8_t byte = 0;
    assert_int_equal(gb_layout_bytes(&s, &bytes, &error), GB_EINVAL);
    kept_message(error.message, NULL);
    assert_non_null(strstr(error.message, why));
    assert_int_equal(gb_layout_pack(&s, &byte, &byte, &error), GB_EINVAL);
    assert_int_equal(gb_layout_unpack(&s, &byte, &byte, &error), GB_EINVAL);
}

static void wrong_sizes_are_refused(void **state)
{
    (void)state;
    refused((struct gb_scales){(enum gb_layout)0, 1, 1, 1}, "unknown layout");
    refused((struct gb_scales){(enum gb_layout)7, 1, 1, 1}, "unknown layout");
    refused((struct gb_scales){GB_LAYOUT_LINEAR, 0, 1, 1}, "0 x 1 scales are none");
    refused((struct gb_scales){GB_LAYOUT_LINEAR, 1, 0, 1}, "1 x 0 scales are none");
    refused((struct gb_scales){GB_LAYOUT_LINEAR, 1, 1, 2}, "2 bytes");
    refused((struct gb_scales){GB_LAYOUT_SWIZZLED_8X4, 1, 1, 4}, "1 byte");
    refused((struct gb_scales){GB_LAYOUT_SWIZZLED_128X4, UINT32_MAX, UINT32_MAX, 1}, "memory");
    refused((struct gb_scales){GB_LAYOUT_TRANSPOSED_ALIGNED, UINT32_MAX, UINT32_MAX, 4}, "memory");
}

static void names(void **state)
{
    (void)state;
    for (enum gb_layout l = GB_LAYOUT_LINEAR; l <= GB_LAYOUT_PACKED; l++) {
        enum gb_layout parsed;
        assert_true(gb_layout_parse(gb_layout_name(l), &parsed));
        assert_int_equal(parsed, l);
    }
    enum gb_layout unused;
    assert_false(gb_layout_parse("swizzled", &unused));
    assert_null(gb_layout_name((enum gb_layout)0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_is_the_oracles),
        cmocka_unit_test(landmarks),
        cmocka_unit_test(wrong_sizes_are_refused),
        cmocka_unit_test(names),
        KEPT_AS("test_layout"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
