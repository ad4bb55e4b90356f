/* SPDX-License-Identifier: Apache-2.0 */
/* Every vector path of the reference, forced, against plain C: the same bits for every input. */
#include "tests/support/check.h"

#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/fma32.h"
#include "tests/support/problem.h"

/* A number's own bits, and for NaN the one pattern that every path writes: fails the test otherwise. */
#define assert_same_bits(expected, actual, place, ...)                                                                 \
    do {                                                                                                               \
        float expected_ = (expected), actual_ = (actual);                                                              \
        if (float_bits(expected_) != float_bits(actual_) || (isnan(expected_) && float_bits(expected_) != 0x7FC00000)) \
            fail_msg(place ": expected %a (%08X), got %a (%08X)", __VA_ARGS__, (double)expected_,                      \
                     float_bits(expected_), (double)actual_, float_bits(actual_));                                     \
    } while (0)

static bool one_nan(gb_bf16 value)
{
    return (value.bits & 0x7FFF) <= 0x7F80 || value.bits == 0x7FC0;
}

static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP8, GB_BF16};
enum { FORMATS = sizeof formats / sizeof *formats };

static void force(enum gb_cpu_path path)
{
    assert_int_equal(gb_cpu_path_set(path, NULL), GB_OK);
    assert_int_equal(gb_cpu_path_get(), path);
}

/* The path under test, from cmocka's initial state. */
static enum gb_cpu_path subject(void **state)
{
    return *(const enum gb_cpu_path *)*state;
}

static const uint32_t lengths[] = {16, 32, 48, 64, 80, 96, 240, 272, 384, 512, 528, 768, 1040, 2048, 2880, 4128, 7168};

/* Rows as long as a model's, and large layers of every format and kind, only in the whole sweep. */
static uint32_t longest = 2048;
/* Of codes, and of data, one in so many: more than 1 where instructions are emulated. */
static unsigned thin = 1;
static const uint32_t odd_lengths[] = {1, 2, 7, 8, 9, 13, 63, 65, 71, 120, 127, 129, 255, 257, 383, 1001};

/* Calls function for every format and every length of rows it can have. */
static void for_every_length(void (*function)(enum gb_cpu_path, enum gb_format, uint32_t), enum gb_cpu_path path)
{
    for (unsigned f = 0; f < FORMATS; f++)
        for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++)
            if (lengths[i] <= longest && lengths[i] % gb_format_block(formats[f]) == 0)
                function(path, formats[f], lengths[i]);
    for (unsigned i = 0; i < sizeof odd_lengths / sizeof *odd_lengths; i++)
        function(path, GB_BF16, odd_lengths[i]);
}

/* What kinds of results were seen, so that the data cannot silently lose its point. */
static struct seen {
    unsigned nan, infinite, subnormal, negative_zero, normal;
} seen;

static void note(float value)
{
    seen.nan += isnan(value) != 0;
    seen.infinite += isinf(value) != 0;
    seen.subnormal += fpclassify(value) == FP_SUBNORMAL;
    seen.negative_zero += value == 0 && signbit(value);
    seen.normal += fpclassify(value) == FP_NORMAL;
}

/* One in `special`, or never if that is 0. */
static bool rarely(uint64_t *random, unsigned special)
{
    return special && random_below(random, special) == 0;
}

/* Any finite bf16 number below 2^exponent, -0 and subnormals too; NaN or infinite once in `special`. */
static gb_bf16 edge_activation(uint64_t *random, unsigned exponent, unsigned special)
{
    static const uint16_t nonfinite[] = {0x7F80, 0xFF80, 0x7FC0, 0xFF81};
    uint32_t sign = random_below(random, 2) << 15;

    if (rarely(random, special))
        return (gb_bf16){nonfinite[random_below(random, 4)]};
    if (random_below(random, 16) == 0)
        return (gb_bf16){(uint16_t)(sign | random_below(random, 2))};
    return (gb_bf16){(uint16_t)(sign | random_below(random, (127 + exponent) << 7))};
}

/* Any bits of codes and scales, the sign of NVFP4's scales and E8M0's smallest too; NaN once in `special`. */
static void edge_weights(struct gb_weights *weights, uint64_t *random, unsigned exponent, unsigned special)
{
    size_t rows = (size_t)weights->experts * weights->rows;
    size_t code_bytes = rows * gb_row_code_bytes(weights->format, weights->columns);
    size_t scale_bytes = rows * gb_row_scale_bytes(weights->format, weights->columns);
    uint8_t *codes = (uint8_t *)weights->codes, *scales = (uint8_t *)weights->scales;
    uint8_t scale_nan = weights->format == GB_NVFP4 ? 0x7F : 0xFF;

    for (size_t i = 0; weights->format == GB_BF16 && i < code_bytes / 2; i++)
        ((gb_bf16 *)weights->codes)[i] = edge_activation(random, exponent, special);
    for (size_t i = 0; weights->format != GB_BF16 && i < code_bytes; i++) {
        codes[i] = (uint8_t)random_bits(random);
        if (weights->format == GB_MXFP8 && (codes[i] & 0x7F) == 0x7F)
            codes[i] ^= 1;
        if (weights->format == GB_MXFP8 && rarely(random, special))
            codes[i] |= 0x7F;
    }
    for (size_t i = 0; i < scale_bytes; i++) {
        scales[i] = (uint8_t)random_bits(random);
        if (weights->format == GB_MXFP8 && random_below(random, 2))
            scales[i] = (uint8_t)random_below(random, 3);
        if ((scales[i] & scale_nan) == scale_nan)
            scales[i] ^= 1;
        if (rarely(random, special / 16))
            scales[i] |= scale_nan;
    }
}

enum { EXPERTS = 2, ROWS = 5, LONGEST = 7168 };

/* Every row of two experts times one activation vector. A path is forced once for all rows: to ask the processor for it
 * may take longer than they do. */
static void compare_rows(enum gb_cpu_path path, const struct gb_weights *weights, const gb_bf16 *x)
{
    float expected[EXPERTS * ROWS];

    force(GB_CPU_PLAIN);
    for (uint32_t row = 0; row < EXPERTS * ROWS; row++)
        expected[row] = fma32_dot(weights, row / ROWS, row % ROWS, x);
    force(path);
    for (uint32_t row = 0; row < EXPERTS * ROWS; row++) {
        assert_same_bits(expected[row], fma32_dot(weights, row / ROWS, row % ROWS, x), "%s, %u columns, row %u",
                         gb_format_name(weights->format), weights->columns, row);
        note(expected[row]);
    }
}

/*
 * The data of the other tests; then magnitudes of every size, from results that underflow to results that overflow,
 * without and with numbers that are not finite.
 */
static void compare_length(enum gb_cpu_path path, enum gb_format format, uint32_t columns)
{
    static const enum data kinds[] = {DATA_GAUSSIAN, DATA_WIDE,      DATA_SUBNORMAL,
                                      DATA_CANCEL,   DATA_NONFINITE, DATA_CODES};
    static const unsigned exponents[] = {2, 60, 127};
    static gb_bf16 x[LONGEST];

    for (unsigned k = 0; k < 12; k++) {
        uint64_t random = 12 * columns + k;
        unsigned exponent = exponents[k % 3], special = k < 9 ? 0 : 4 * columns;
        struct gb_weights weights;
        problem_weights(&weights, format, EXPERTS, ROWS, columns, 1, kinds[k < 5 ? k : 5], &random);
        problem_activations(x, columns, kinds[k < 5 ? k : 5], &random);
        if (k >= 6)
            edge_weights(&weights, &random, exponent, special);
        for (uint32_t i = 0; k >= 6 && i < columns; i++)
            x[i] = edge_activation(&random, exponent, special);
        compare_rows(path, &weights, x);
        problem_weights_free(&weights);
    }
}

static void rows_of_every_length(void **state)
{
    seen = (struct seen){0};
    for_every_length(compare_length, subject(state));
    assert_true(seen.normal > 3000 && seen.subnormal > 500 && seen.nan > 200 && seen.infinite > 100);
}

/* Negative weights, and scales, that make products with the smallest x underflow. */
static void tiny_weights(struct gb_weights *weights)
{
    size_t rows = (size_t)weights->experts * weights->rows;
    size_t code_bytes = rows * gb_row_code_bytes(weights->format, weights->columns);
    size_t scale_bytes = rows * gb_row_scale_bytes(weights->format, weights->columns);

    if (weights->format == GB_BF16)
        for (size_t i = 0; i < code_bytes / 2; i++)
            ((gb_bf16 *)weights->codes)[i].bits = 0x8001;
    else
        memset((void *)weights->codes, weights->format == GB_NVFP4 ? 0x99 : 0x81, code_bytes);
    if (scale_bytes)
        memset((void *)weights->scales, weights->format == GB_NVFP4 ? 1 : 0, scale_bytes);
    for (uint32_t i = 0; weights->global_scales && i < weights->experts * weights->halves; i++)
        ((float *)weights->global_scales)[i] = 0x1p-126f;
}

/* Sums that are -0, in every lane or in some, while other lanes are +0 or idle. */
static void negative_zero(void **state)
{
    enum gb_cpu_path path = subject(state);

    seen = (struct seen){0};
    for (unsigned f = 0; f < FORMATS; f++)
        for (uint32_t columns = 32; columns <= 2048; columns += longest < LONGEST ? 96 : 32) {
            uint64_t random = columns;
            struct gb_weights weights;
            gb_bf16 x[2048];
            problem_weights(&weights, formats[f], EXPERTS, ROWS, columns, 1, DATA_CODES, &random);
            tiny_weights(&weights);
            for (uint32_t i = 0; i < columns; i++)
                x[i].bits = random_below(&random, 3) ? 1 : 0;
            compare_rows(path, &weights, x);
            problem_weights_free(&weights);
        }
    assert_true(seen.negative_zero > 200);
}

/* Row i of one for each code byte with each scale byte, twice in a row of zeros, in places that change. */
static float of_code_and_scale(enum gb_format format, unsigned i, const gb_bf16 *x)
{
    static const float one = 1;
    unsigned code = i % 256, scale = i / 256;
    uint8_t codes[32] = {0}, scales[2] = {(uint8_t)(scale * 7), (uint8_t)scale};

    codes[code % 16] = (uint8_t)code;
    codes[16 + scale % 16] = (uint8_t)code;
    struct gb_weights weights = {
        format, 1, 1, 32, 1, codes, scales + (format == GB_MXFP8), format == GB_NVFP4 ? &one : NULL};
    return fma32_dot(&weights, 0, 0, x);
}

/* Of a bf16 number. */
static float of_bf16(enum gb_format format, unsigned i, const gb_bf16 *x)
{
    gb_bf16 codes[32] = {{0}};

    codes[i % 32].bits = (uint16_t)i;
    struct gb_weights weights = {format, 1, 1, 32, 1, codes, NULL, NULL};
    return fma32_dot(&weights, 0, 0, x);
}

static void every_code_with_every_scale(void **state)
{
    enum { ROWS_OF_ONE = 65536 };
    static float expected[ROWS_OF_ONE];
    enum gb_cpu_path path = subject(state);
    gb_bf16 x[32];

    for (uint32_t i = 0; i < 32; i++)
        x[i].bits = (uint16_t)(0x3F80 + i);
    for (unsigned f = 0; f < FORMATS; f++) {
        float (*row)(enum gb_format, unsigned, const gb_bf16 *) = formats[f] == GB_BF16 ? of_bf16 : of_code_and_scale;
        force(GB_CPU_PLAIN);
        for (unsigned i = 0; i < ROWS_OF_ONE; i += thin)
            expected[i] = row(formats[f], i, x);
        force(path);
        for (unsigned i = 0; i < ROWS_OF_ONE; i += thin)
            assert_same_bits(expected[i], row(formats[f], i, x), "%s, code and scale %04X", gb_format_name(formats[f]),
                             i);
    }
}

/* `bytes` that end where the process may not read on; mapped for good. */
static void *at_the_edge(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page;
    char *map = mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(map != MAP_FAILED);
    assert_int_equal(mprotect(map + size, page, PROT_NONE), 0);
    return map + size - bytes;
}

static void read_to_the_edge(enum gb_cpu_path path, enum gb_format format, uint32_t columns)
{
    size_t code_bytes = gb_row_code_bytes(format, columns), scale_bytes = gb_row_scale_bytes(format, columns);
    uint64_t random = columns;
    struct gb_weights weights, edge;
    gb_bf16 *x = at_the_edge(columns * sizeof *x);

    problem_weights(&weights, format, 1, 1, columns, 1, DATA_CODES, &random);
    problem_activations(x, columns, DATA_CODES, &random);
    edge = weights;
    edge.codes = memcpy(at_the_edge(code_bytes), weights.codes, code_bytes);
    if (scale_bytes)
        edge.scales = memcpy(at_the_edge(scale_bytes), weights.scales, scale_bytes);
    force(GB_CPU_PLAIN);
    float expected = fma32_dot(&weights, 0, 0, x);
    force(path);
    assert_same_bits(expected, fma32_dot(&edge, 0, 0, x), "%s, %u columns", gb_format_name(format), columns);
    problem_weights_free(&weights);
}

static void nothing_is_read_past_the_end(void **state)
{
    for_every_length(read_to_the_edge, subject(state));
}

/* problem is expected's twin: the layer of expected in plain C, of problem on the path, on one thread and on two. */
static void compare_layers(struct problem *expected, struct problem *problem, enum gb_cpu_path path)
{
    const struct gb_shape *shape = &problem->arguments.shape;
    size_t outputs = (size_t)shape->tokens * shape->hidden;
    size_t intermediates = (size_t)shape->tokens * shape->top_k * shape->intermediate;

    force(GB_CPU_PLAIN);
    assert_int_equal(fma32_layer(&expected->arguments, NULL), GB_OK);
    force(path);
    for (int threads = 1; threads <= 2; threads++) {
        omp_set_num_threads(threads);
        problem_poison(problem);
        assert_int_equal(fma32_layer(&problem->arguments, NULL), GB_OK);
        for (size_t i = 0; i < intermediates; i++)
            if (expected->intermediate[i].bits != problem->intermediate[i].bits || !one_nan(expected->intermediate[i]))
                fail_msg("%d threads, intermediate of pair %zu, element %zu: expected %04X, got %04X", threads,
                         i / shape->intermediate, i % shape->intermediate, expected->intermediate[i].bits,
                         problem->intermediate[i].bits);
        for (size_t i = 0; i < outputs; i++)
            assert_same_bits(expected->output[i], problem->output[i], "%d threads, output of token %zu, element %zu",
                             threads, i / shape->hidden, i % shape->hidden);
    }
}

/* From one to eleven tokens for an expert: whole passes of activations, and what is left over. */
static void whole_layers(void **state)
{
    static const struct gb_shape shapes[] = {
        {1, 96, 32, 4, 2},  {3, 384, 192, 3, 2}, {11, 160, 96, 2, 1},
        {9, 64, 544, 5, 4}, {5, 1056, 32, 2, 2}, {2, 2048, 512, 4, 3},
    };
    static const enum data kinds[] = {DATA_CODES, DATA_GAUSSIAN, DATA_CANCEL, DATA_NONFINITE};
    enum gb_cpu_path path = subject(state);

    for (unsigned f = 0; f < FORMATS; f++)
        for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++) {
                struct problem twins[2];
                if ((shapes[s].hidden > longest / 2 + 512 && (k != f || f > 0 || thin > 1)) ||
                    (thin > 1 && (k + s + f) % 4))
                    continue;
                for (unsigned i = 0; i < 2; i++) {
                    problem_new(&twins[i], shapes[s], formats[f], kinds[k], 10 * s + k);
                    problem_empty_slots(&twins[i], 7, s);
                }
                compare_layers(&twins[0], &twins[1], path);
                problem_free(&twins[0]);
                problem_free(&twins[1]);
            }
}

static void whole_routers(void **state)
{
    enum { TOKENS = 7, EXPERTS_ROUTED = 41, TOP_K = 6, SLOTS = TOKENS * TOP_K };
    static const uint32_t hidden[] = {1, 13, 64, 265, 384, 2048};
    enum gb_cpu_path path = subject(state);

    for (unsigned h = 0; h < sizeof hidden / sizeof *hidden; h++)
        for (int run = 0; run < 8; run += thin < 2 ? 1 : 5) {
            const struct gb_shape shape = {TOKENS, hidden[h], 1, EXPERTS_ROUTED, TOP_K};
            enum data kind = run < 4 ? DATA_GAUSSIAN : DATA_NONFINITE;
            uint64_t random = 100 * h + (unsigned)run;
            struct gb_weights router;
            static gb_bf16 x[TOKENS * 2048];
            int32_t expected_ids[SLOTS], ids[SLOTS];
            float expected[SLOTS], weights[SLOTS];

            problem_weights(&router, GB_BF16, 1, EXPERTS_ROUTED, hidden[h], 1, kind, &random);
            problem_activations(x, (size_t)TOKENS * hidden[h], kind, &random);
            force(GB_CPU_PLAIN);
            assert_int_equal(fma32_route(&shape, x, &router, run % 2, expected_ids, expected, NULL), GB_OK);
            force(path);
            omp_set_num_threads(1 + run / 2 % 2);
            memset(ids, 0xA5, sizeof ids);
            memset(weights, 0xA5, sizeof weights);
            assert_int_equal(fma32_route(&shape, x, &router, run % 2, ids, weights, NULL), GB_OK);
            for (unsigned i = 0; i < SLOTS; i++) {
                assert_int_equal(expected_ids[i], ids[i]);
                assert_same_bits(expected[i], weights[i], "%u columns, slot %u", hidden[h], i);
            }
            problem_weights_free(&router);
        }
}

/* Runs first: no path has been set yet. */
static void the_fastest_path_is_the_default(void **state)
{
    enum gb_cpu_path path = gb_cpu_path_get();

    (void)state;
    assert_true(gb_cpu_path_available(path));
    for (enum gb_cpu_path faster = path + 1; gb_cpu_path_name(faster); faster++)
        assert_false(gb_cpu_path_available(faster));
    print_message("%s\n", gb_cpu_path_name(path));
}

static void paths_are_set_by_number(void **state)
{
    static const int unknown[] = {-1, 3};
    struct gb_error error = {""};
    char expected[64];

    (void)state;
    assert_string_equal(gb_cpu_path_name(GB_CPU_PLAIN), "plain");
    assert_string_equal(gb_cpu_path_name(GB_CPU_AVX2), "avx2");
    assert_string_equal(gb_cpu_path_name(GB_CPU_AVX512), "avx512");
    assert_true(gb_cpu_path_available(GB_CPU_PLAIN));
    force(GB_CPU_PLAIN);
    for (unsigned i = 0; i < 2; i++) {
        assert_null(gb_cpu_path_name((enum gb_cpu_path)unknown[i]));
        assert_false(gb_cpu_path_available((enum gb_cpu_path)unknown[i]));
        assert_int_equal(gb_cpu_path_set((enum gb_cpu_path)unknown[i], &error), GB_EINVAL);
        snprintf(expected, sizeof expected, "unknown CPU path %d", unknown[i]);
        assert_string_equal(error.message, expected);
        assert_int_equal(gb_cpu_path_get(), GB_CPU_PLAIN);
    }
    for (enum gb_cpu_path path = GB_CPU_AVX2; path <= GB_CPU_AVX512; path++)
        if (!gb_cpu_path_available(path)) {
            assert_int_equal(gb_cpu_path_set(path, &error), GB_EUNSUPPORTED);
            snprintf(expected, sizeof expected, "this CPU lacks what the path %s needs", gb_cpu_path_name(path));
            assert_string_equal(error.message, expected);
            assert_int_equal(gb_cpu_path_get(), GB_CPU_PLAIN);
        }
}

#define ON(PATH, FUNCTION)                                                                                             \
    {                                                                                                                  \
        .name = #PATH ": " #FUNCTION, .test_func = FUNCTION, .initial_state = &PATH                                    \
    }
#define EVERY_TEST(PATH)                                                                                               \
    ON(PATH, rows_of_every_length), ON(PATH, negative_zero), ON(PATH, every_code_with_every_scale),                    \
        ON(PATH, nothing_is_read_past_the_end), ON(PATH, whole_layers), ON(PATH, whole_routers)

int main(int argc, char **argv)
{
    enum { SKIPPED = 77 };
    static enum gb_cpu_path path = GB_CPU_PLAIN;
    const struct CMUnitTest general[] = {
        cmocka_unit_test(the_fastest_path_is_the_default),
        cmocka_unit_test(paths_are_set_by_number),
    };
    const struct CMUnitTest of_path[] = {EVERY_TEST(path)};
    if (argc < 2)
        return cmocka_run_group_tests(general, NULL, NULL);
    while (gb_cpu_path_name(path) && strcmp(argv[1], gb_cpu_path_name(path)))
        path++;
    if (path == GB_CPU_PLAIN || !gb_cpu_path_name(path))
        return EXIT_FAILURE;
    if (!gb_cpu_path_available(path)) {
        printf("skipped: this CPU lacks what the path %s needs\n", argv[1]);
        return SKIPPED;
    }
    if (sweeps_are_whole(argc - 1, argv + 1))
        longest = LONGEST;
    if (argc > 2 && !strcmp(argv[2], "thin"))
        thin = 13;
    return cmocka_run_group_tests(of_path, NULL, NULL);
}
