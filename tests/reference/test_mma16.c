/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensor cores' sums against results of an H200, and the order mma16-sm90/1: its columns, the plain definition
 * against the oracle, and every path against that.
 */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "reference/mma.h"
#include "reference/mma16.h"
#include "reference/reference.h"
#include "tests/oracle/oracle.h"
#include "tests/support/problem.h"

/* The oracle's instruction, of bf16 bits. */
static float oracle_of(const uint16_t *a, const uint16_t *b, float c)
{
    float x[16], y[16];
    for (unsigned i = 0; i < 16; i++) {
        x[i] = (float)oracle_decode(ORACLE_BF16, a[i]);
        y[i] = (float)oracle_decode(ORACLE_BF16, b[i]);
    }
    return oracle_mma_sm90(c, x, y);
}

/* tests/mma_sm90.txt, which test_mma --vectors wrote: operands, 16 of a, 16 of b, c and the hardware's d. */
static void an_h200s_results(void **state)
{
    const struct gb_mma_unit *unit = gb_mma_unit_find("sm_90");
    unsigned lines = 0, other = 0, bf16 = 0;
    char line[512];
    (void)state;
    FILE *file = fopen(GB_SOURCE_DIR "/tests/mma_sm90.txt", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        uint16_t a[16], b[16];
        const enum gb_format format = strncmp(line, "bf16", 4) ? GB_FP16 : GB_BF16;
        char *at = line + 4;
        for (unsigned i = 0; i < 32; i++)
            (i < 16 ? a : b)[i % 16] = (uint16_t)strtoul(at, &at, 16);
        const float c = bits_float((uint32_t)strtoul(at, &at, 16));
        const uint32_t d = (uint32_t)strtoul(at, &at, 16);
        lines++;
        if (float_bits(gb_mma(unit, format, a, b, 16, c)) != d)
            fail_msg("line %u: hardware %08X, model %08X", lines, d, float_bits(gb_mma(unit, format, a, b, 16, c)));
        if (format == GB_BF16) {
            assert_same_float(bits_float(d), oracle_of(a, b, c), "line %u: the oracle", lines);
            bf16++;
        }
        other += float_bits(gb_mma(gb_mma_unit_find("sm_80"), format, a, b, 16, c)) != d;
    }
    fclose(file);
    assert_true(lines > 312 && bf16 > 156);
    assert_true(other > 50); /* so the blocks tell architectures apart */
}

static void every_column_once(void **state)
{
    static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP4, GB_MXFP8};
    (void)state;
    for (unsigned f = 0; f < 3; f++) {
        const uint32_t step = gb_mma16_step(formats[f]);
        uint8_t seen[128] = {0};
        for (uint32_t i = 0; i < step / 16; i++)
            for (uint32_t place = 0; place < 16; place++)
                seen[gb_mma16_column(formats[f], i, place)]++;
        for (uint32_t c = 0; c < step; c++)
            assert_int_equal(seen[c], 1);
    }
}

/* Worked by hand: 2^24 and 1 in the same instruction lose nothing, 2^27 and 1 lose the 1 for want of a 26th bit. */
static void what_an_instruction_keeps(void **state)
{
    float arranged[2 * 128 + 16] __attribute__((aligned(64)));
    float x[64] = {0}, out;
    const float *const pointers[1] = {arranged};
    uint8_t codes[32] = {0}, scales[4] = {0x38, 0x38, 0x38, 0x38}; /* 1.0 */
    const float global = 1.0f;
    struct gb_weights weights = {GB_NVFP4, 1, 1, 64, 1, codes, scales, &global};
    (void)state;
    codes[0] = 0x22; /* columns 0 and 1: 1.0 each, one instruction */
    x[0] = 0x1p24f;
    x[1] = 1.0f;
    gb_mma16_arrange(GB_NVFP4, 64, x, arranged);
    gb_mma16_dots(&weights, 0, 0, 1, 1, pointers, &out);
    assert_same_float(0x1p24f, out, "%s", "2^24 + 1 toward zero");
    x[1] = 3.0f;
    gb_mma16_arrange(GB_NVFP4, 64, x, arranged);
    gb_mma16_dots(&weights, 0, 0, 1, 1, pointers, &out);
    assert_same_float(0x1p24f + 2, out, "%s", "2^24 + 3 toward zero");
    codes[2] = 0x0A; /* column 4: -1, the next instruction */
    x[1] = 0.0f;
    x[4] = 1.0f;
    gb_mma16_arrange(GB_NVFP4, 64, x, arranged);
    gb_mma16_dots(&weights, 0, 0, 1, 1, pointers, &out);
    assert_same_float(0x1p24f - 1, out, "%s", "2^24 - 1 is exact");
}

/* Of a value that has no more bits. */
static uint16_t bf16_of(float value)
{
    return (uint16_t)(float_bits(value) >> 16);
}

/* c + 2^first - 2^last, both products of the first columns. */
static float difference(const struct gb_mma_unit *unit, int first, int last, float c)
{
    const float a[2] = {ldexpf(1.0f, first / 2), ldexpf(-1.0f, last / 2)};
    const float b[2] = {ldexpf(1.0f, first - first / 2), ldexpf(1.0f, last - last / 2)};
    uint16_t x[16] = {bf16_of(a[0]), bf16_of(a[1])}, y[16] = {bf16_of(b[0]), bf16_of(b[1])};
    return gb_mma(unit, GB_BF16, x, y, 16, c);
}

/* The table of docs/numerics.md#mma: the last bit that is kept and the first that is not, worked by hand. */
static void every_unit_keeps_its_bits(void **state)
{
    static const struct {
        const char *name;
        int fraction;
        uint32_t products;
        bool checked;
    } rows[] = {{"sm_80", 24, 8, false}, {"sm_89", 24, 8, false}, {"sm_90", 25, 16, true}, {"sm_100", 25, 16, false}};
    uint32_t count;
    (void)state;
    assert_non_null(gb_mma_units(&count));
    assert_int_equal(count, sizeof rows / sizeof *rows);
    for (uint32_t r = 0; r < count; r++) {
        const struct gb_mma_unit *unit = gb_mma_unit_find(rows[r].name);
        const int f = rows[r].fraction;
        assert_non_null(unit);
        assert_int_equal(unit->checked, rows[r].checked);
        assert_same_float(-1.0f, difference(unit, f, 0, -ldexpf(1.0f, f)), "%s: its last bit", rows[r].name);
        assert_same_float(0.0f, difference(unit, f + 1, 0, -ldexpf(1.0f, f + 1)), "%s: a bit more", rows[r].name);
        /* of the least exponent, -133 */
        assert_same_float(0.0f, difference(unit, -149, -133 - f, 0.0f), "%s: a small one is kept", rows[r].name);
        assert_same_float(0x1p-149f, difference(unit, -149, -134 - f, 0.0f), "%s: a smaller one", rows[r].name);
        /* 2^24 + 1 is a binary32 number only if the rounding comes after -2^24 */
        for (uint32_t place = rows[r].products - 1; place <= rows[r].products; place++) {
            uint16_t x[32] = {bf16_of(0x1p24f), bf16_of(1.0f)}, y[32];
            for (uint32_t i = 0; i < 32; i++)
                y[i] = bf16_of(1.0f);
            x[place] = bf16_of(-0x1p24f);
            assert_same_float(place < rows[r].products ? 1.0f : 0.0f, gb_mma(unit, GB_BF16, x, y, 32, 0.0f),
                              "%s: column %u", rows[r].name, place);
        }
    }
    assert_null(gb_mma_unit_find("sm_70"));
}

struct seen {
    unsigned normal, nan, infinite, subnormal;
};

static void note(struct seen *seen, float value)
{
    seen->normal += isnormal(value) != 0;
    seen->nan += isnan(value) != 0;
    seen->infinite += isinf(value) != 0;
    seen->subnormal += fpclassify(value) == FP_SUBNORMAL;
}

/* What products are spread around, powers of two: the ends of binary32, where the least exponent of a sum binds, what
 * NVFP4's 2^-8 and 2^8 reach, and one. */
static const int centres[] = {-158, -150, -140, -133, -126, -118, 0, 100, 112, 120, 126};

/* Scales and activations whose products lie around 2^centre, with scales anywhere in their range. */
static void spread(int centre, struct gb_weights *weights, gb_bf16 *x, size_t count, uint64_t *random)
{
    const uint32_t block = weights->format == GB_NVFP4 ? 16 : 32;
    const size_t blocks = (size_t)weights->experts * weights->rows * weights->columns / block;
    const int middle = weights->format == GB_NVFP4 ? 127 : 4 + (int)random_below(random, 248);
    uint8_t *scales = (uint8_t *)weights->scales;
    for (size_t i = 0; i < blocks; i++) {
        const uint32_t near = (uint32_t)(middle - 4) + random_below(random, 9);
        scales[i] = (uint8_t)(weights->format == GB_NVFP4 ? random_below(random, 127) : near);
    }
    for (size_t i = 0; i < count; i++) {
        const int near = centre + 254 - middle + (int)random_below(random, 9) - 4;
        const uint32_t exponent = near < 0 ? 0 : near > 254 ? 254 : (uint32_t)near;
        x[i].bits = (uint16_t)(exponent << 7 | random_below(random, 128) | random_below(random, 2) << 15);
    }
}

/* Data of any kind, and beyond the last one spread around a centre. */
static void compare_with_oracle(enum gb_format format, uint32_t columns, int data, struct seen *seen)
{
    enum { EXPERTS = 2, ROWS = 6, COUNT = 3, PARTS = 2 };
    uint64_t random = 37 * columns + (uint64_t)data;
    const size_t floats = (gb_mma16_arranged_floats(format, columns) + 15) / 16 * 16;
    struct gb_weights weights;
    gb_bf16 *x = malloc(COUNT * columns * sizeof *x);
    float *numbers = malloc(columns * sizeof *numbers),
          *arranged = aligned_alloc(64, COUNT * floats * sizeof *arranged);
    const float *pointers[COUNT];
    float actual[ROWS * COUNT];
    const enum data kind = data > DATA_NONFINITE ? DATA_CODES : (enum data)data;

    assert_true(x && numbers && arranged);
    problem_weights(&weights, format, EXPERTS, ROWS, columns, PARTS, kind, &random);
    problem_activations(x, COUNT * (size_t)columns, kind, &random);
    if (data > DATA_NONFINITE)
        spread(centres[data - DATA_NONFINITE - 1], &weights, x, COUNT * (size_t)columns, &random);
    for (uint32_t i = 0; i < COUNT; i++) {
        for (uint32_t c = 0; c < columns; c++)
            numbers[c] = gb_bf16_decode(x[i * columns + c]);
        pointers[i] = arranged + i * floats;
        gb_mma16_arrange(format, columns, numbers, arranged + i * floats);
    }
    memset(actual, 0xA5, sizeof actual);
    gb_mma16_dots(&weights, 1, 0, ROWS, COUNT, pointers, actual);
    for (uint32_t i = 0; i < ROWS * COUNT; i++) {
        const float expected = oracle_dot_mma16(&weights, 1, i / COUNT, x + i % COUNT * columns);
        assert_same_float(expected, actual[i], "%s, %u columns, data %d, row %u, activation %u", gb_format_name(format),
                          columns, data, i / COUNT, i % COUNT);
        note(seen, expected);
    }
    free(x);
    free(numbers);
    free(arranged);
    problem_weights_free(&weights);
}

/* Without the whole sweep long rows have a third of the kinds of data. */
static int sparse = 3;

/* A short last chunk is of NVFP4, whose rows are multiples of 16; a short last step of all. */
static void the_oracle_agrees(void **state)
{
    static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP4, GB_MXFP8};
    static const uint32_t lengths[] = {16, 32, 48, 64, 80, 96, 112, 128, 144, 256, 368, 384, 512, 544, 720, 1040};
    (void)state;
    for (unsigned f = 0; f < 3; f++) {
        struct seen seen = {0};
        for (int data = DATA_CODES; data <= DATA_NONFINITE + (int)(sizeof centres / sizeof *centres); data++)
            for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++)
                if ((formats[f] == GB_NVFP4 || lengths[i] % 32 == 0) &&
                    (lengths[i] < 256 || (data + (int)i) % sparse == 0))
                    compare_with_oracle(formats[f], lengths[i], data, &seen);
        assert_true(seen.normal > 1000 && seen.nan > 50 && seen.infinite > 20 && seen.subnormal > 20);
    }
}

typedef void path(const struct gb_weights *, uint32_t, uint32_t, uint32_t, uint32_t, const float *const *, float *);

static void compare(path *vector, const char *name, enum gb_format format, uint32_t columns, enum data data,
                    struct seen *seen)
{
    enum { EXPERTS = 2, ROWS = 42, COUNT = 11 };
    uint64_t random = 31 * columns + (uint64_t)data;
    const size_t floats = (gb_mma16_arranged_floats(format, columns) + 15) / 16 * 16;
    struct gb_weights weights;
    gb_bf16 *x = malloc(COUNT * columns * sizeof *x);
    float *numbers = malloc(columns * sizeof *numbers),
          *arranged = aligned_alloc(64, COUNT * floats * sizeof *arranged);
    const float *pointers[COUNT];
    float expected[ROWS * COUNT], actual[ROWS * COUNT];

    assert_true(x && numbers && arranged);
    problem_weights(&weights, format, EXPERTS, ROWS, columns, 1, data, &random);
    problem_activations(x, COUNT * (size_t)columns, data, &random);
    for (uint32_t i = 0; i < COUNT; i++) {
        for (uint32_t c = 0; c < columns; c++)
            numbers[c] = gb_bf16_decode(x[i * columns + c]);
        pointers[i] = arranged + i * floats;
        gb_mma16_arrange(format, columns, numbers, arranged + i * floats);
    }
    gb_mma16_dots(&weights, 1, 0, ROWS, COUNT, pointers, expected);
    memset(actual, 0xA5, sizeof actual);
    vector(&weights, 1, 0, 17, COUNT, pointers, actual);
    vector(&weights, 1, 17, ROWS - 17, COUNT, pointers, actual + 17 * COUNT);
    for (uint32_t i = 0; i < ROWS * COUNT; i++) {
        assert_same_float(expected[i], actual[i], "%s, %s, %u columns, data %d, row %u, activation %u", name,
                          gb_format_name(format), columns, (int)data, i / COUNT, i % COUNT);
        note(seen, expected[i]);
    }
    vector(&weights, 1, 3, 1, 1, pointers + 2, actual);
    assert_same_float(expected[3 * COUNT + 2], actual[0], "%s, %s, one row, one activation", name,
                      gb_format_name(format));
    free(x);
    free(numbers);
    free(arranged);
    problem_weights_free(&weights);
}

/* One code or scale that vector paths leave to the plain one, or just do not, in each place of a row, all others being
 * ordinary. */
static void one_odd_byte(path *vector, const char *name, enum gb_format format)
{
    enum { ROWS = 18, COLUMNS = 288 };
    static const uint8_t odd_codes[] = {0x7F, 0xFF}, odd_e4m3[] = {0x7F, 0xFF},
                         odd_e8m0[] = {0x00, 0xFF, 86, 87, 134, 135};
    uint64_t random = 5;
    struct gb_weights weights;
    gb_bf16 x[COLUMNS];
    float numbers[COLUMNS], expected[ROWS], actual[ROWS];
    float *arranged = aligned_alloc(64, (gb_mma16_arranged_floats(format, COLUMNS) + 15) / 16 * 64);
    const float *const pointers[] = {arranged};
    unsigned nan = 0;
    assert_non_null(arranged);
    problem_weights(&weights, format, 1, ROWS, COLUMNS, 1, DATA_GAUSSIAN, &random);
    for (size_t b = 0; format == GB_MXFP8 && b < ROWS * COLUMNS; b++) /* so that signs tell nothing */
        ((uint8_t *)(uintptr_t)weights.codes)[b] &= 0x7F;
    for (uint32_t c = 0; c < COLUMNS; c++) {
        x[c] = gb_bf16_encode((float)random_gaussian(&random));
        numbers[c] = gb_bf16_decode(x[c]);
    }
    gb_mma16_arrange(format, COLUMNS, numbers, arranged);
    gb_mma16_dots(&weights, 0, 0, ROWS, 1, pointers, expected);
    for (int of_scales = format != GB_MXFP8; of_scales < 2; of_scales++) {
        const uint8_t *odd = !of_scales ? odd_codes : format == GB_NVFP4 ? odd_e4m3 : odd_e8m0;
        const size_t odds = !of_scales || format == GB_NVFP4 ? 2 : sizeof odd_e8m0;
        const size_t bytes = of_scales ? gb_row_scale_bytes(format, COLUMNS) : gb_row_code_bytes(format, COLUMNS);
        uint8_t *values = (uint8_t *)(uintptr_t)(of_scales ? weights.scales : weights.codes);
        for (size_t n = 0; n < bytes * odds; n++) {
            const uint32_t row = (uint32_t)(n % ROWS);
            if (sparse > 1 && !of_scales && n % 2 != n / 32 % 2) /* one of both */
                continue;
            uint8_t *byte = &values[row * bytes + n / odds], kept = *byte;
            const float right = expected[row];
            *byte = odd[n % odds];
            gb_mma16_dots(&weights, 0, row, 1, 1, pointers, expected + row);
            vector(&weights, 0, 0, ROWS, 1, pointers, actual);
            for (uint32_t r = 0; r < ROWS; r++)
                assert_same_float(expected[r], actual[r], "%s, %s, %02X in byte %zu of row %u's %s, row %u", name,
                                  gb_format_name(format), *byte, n / odds, row, of_scales ? "scales" : "codes", r);
            nan += isnan(expected[row]) != 0;
            expected[row] = right;
            *byte = kept;
        }
    }
    assert_true(nan > 5);
    free(arranged);
    problem_weights_free(&weights);
}

/* What is ordinary the vectors take, and not the plain definition, which does not read the exponents that are arranged
 * beside the numbers: where those are 2^24 times too large, nearly all bits are lost. */
static void taken_by_vectors(path *vector, const char *name, enum gb_format format)
{
    enum { ROWS = 18, COLUMNS = 288 };
    const uint32_t step = gb_mma16_step(format), all = (COLUMNS + step - 1) / step * step;
    uint64_t random = 6;
    struct gb_weights weights;
    gb_bf16 x[COLUMNS];
    float numbers[COLUMNS], right[ROWS], wrong[ROWS];
    float *arranged = aligned_alloc(64, (gb_mma16_arranged_floats(format, COLUMNS) + 15) / 16 * 64);
    const float *const pointers[] = {arranged};
    assert_non_null(arranged);
    problem_weights(&weights, format, 1, ROWS, COLUMNS, 1, DATA_GAUSSIAN, &random);
    problem_activations(x, COLUMNS, DATA_GAUSSIAN, &random);
    for (uint32_t c = 0; c < COLUMNS; c++)
        numbers[c] = gb_bf16_decode(x[c]);
    gb_mma16_arrange(format, COLUMNS, numbers, arranged);
    vector(&weights, 0, 0, ROWS, 1, pointers, right);
    for (uint32_t c = 0; c < COLUMNS; c++)
        arranged[all + c] = bits_float(float_bits(arranged[all + c]) + (24u << 23));
    vector(&weights, 0, 0, ROWS, 1, pointers, wrong);
    for (uint32_t r = 0; r < ROWS; r++)
        if (same_float(right[r], wrong[r]))
            fail_msg("%s, %s, row %u: taken by the plain definition", name, gb_format_name(format), r);
    free(arranged);
    problem_weights_free(&weights);
}

/* Products below half of the smallest binary32 number are none by themselves; what 16 of them add up to is one. */
static void sums_of_nothing(path *vector, const char *name)
{
    enum { ROWS = 16, COLUMNS = 128 };
    uint8_t codes[ROWS * COLUMNS / 2], scales[ROWS * COLUMNS / 32];
    const struct gb_weights weights = {GB_MXFP4, 1, ROWS, COLUMNS, 1, codes, scales, NULL};
    float x[COLUMNS], arranged[2 * COLUMNS + 16] __attribute__((aligned(64))), expected[ROWS], actual[ROWS];
    const float *const pointers[] = {arranged};
    memset(codes, 0x22, sizeof codes); /* 1.0 */
    memset(scales, 87, sizeof scales); /* 2^-40, the smallest that the vector paths take */
    for (uint32_t c = 0; c < COLUMNS; c++)
        x[c] = c % 32 < 16 ? 0x1.ep-111f : 0.0f; /* 0.47 of the smallest number; the last instructions add nothing */
    gb_mma16_arrange(GB_MXFP4, COLUMNS, x, arranged);
    gb_mma16_dots(&weights, 0, 0, ROWS, 1, pointers, expected);
    vector(&weights, 0, 0, ROWS, 1, pointers, actual);
    for (uint32_t r = 0; r < ROWS; r++)
        assert_same_float(expected[r], actual[r], "%s, row %u", name, r);
    assert_true(expected[0] > 0.0f);
}

static void every_path_the_same(path *vector, const char *name)
{
    static const uint32_t lengths[] = {32, 64, 96, 128, 160, 352, 512, 1552};
    struct seen seen = {0};
    for (int data = DATA_CODES; data <= DATA_NONFINITE; data++)
        for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            if (lengths[i] > 64 && (data + (int)i) % sparse)
                continue;
            compare(vector, name, GB_NVFP4, lengths[i] - (lengths[i] % 64 ? 16 : 0), (enum data)data, &seen);
            compare(vector, name, GB_MXFP4, lengths[i] / 32 * 32, (enum data)data, &seen);
            compare(vector, name, GB_MXFP8, lengths[i] / 32 * 32, (enum data)data, &seen);
        }
    assert_true(seen.normal > 10000 && seen.nan > 100 && seen.subnormal > 100);
    one_odd_byte(vector, name, GB_NVFP4);
    one_odd_byte(vector, name, GB_MXFP4);
    one_odd_byte(vector, name, GB_MXFP8);
    sums_of_nothing(vector, name);
    taken_by_vectors(vector, name, GB_NVFP4);
    taken_by_vectors(vector, name, GB_MXFP4);
    taken_by_vectors(vector, name, GB_MXFP8);
}

static void avx512_as_plain(void **state)
{
    (void)state;
    if (!gb_cpu_path_available(GB_CPU_AVX512))
        skip();
    every_path_the_same(gb_mma16_dots_avx512, "avx512");
}

static void avx2_as_plain(void **state)
{
    (void)state;
    if (!gb_cpu_path_available(GB_CPU_AVX2))
        skip();
    every_path_the_same(gb_mma16_dots_avx2, "avx2");
}

/* A path: its test alone. */
int main(int argc, char **argv)
{
    if (sweeps_are_whole(argc, argv))
        sparse = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_h200s_results),
        cmocka_unit_test(every_column_once),
        cmocka_unit_test(what_an_instruction_keeps),
        cmocka_unit_test(every_unit_keeps_its_bits),
        cmocka_unit_test(the_oracle_agrees),
        cmocka_unit_test(avx512_as_plain),
        cmocka_unit_test(avx2_as_plain),
    };
    if (argc > 1 && !strcmp(argv[1], "avx512"))
        cmocka_set_test_filter("avx512*");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
