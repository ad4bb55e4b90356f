/* SPDX-License-Identifier: Apache-2.0 */
/* A layer's bits depend on nothing but its inputs: every CPU path, number of threads and batch prefix gives the same.
 */
#include "tests/support/check.h"

#include <omp.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/fma32.h"
#include "tests/support/problem.h"

enum { MOST_THREADS = 3 };
static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP8, GB_BF16};
enum { FORMATS = sizeof formats / sizeof *formats };

/* Every expert gets several tokens, so that a prefix changes which of them share the decoding of a weight; rows of less
 * than a chunk, of short last chunks, and of more than 32 chunks. */
static const struct gb_shape shapes[] = {{11, 96, 32, 3, 2}, {7, 160, 544, 2, 2}, {6, 1056, 96, 3, 2}};

/* Token by token: the first ones as in `all`, the others as the poison left them. */
static void compare(const struct problem *all, const struct problem *prefix, const char *path, int threads)
{
    const struct gb_shape *shape = &all->arguments.shape;
    uint32_t tokens = prefix->arguments.shape.tokens;
    size_t pair = (size_t)shape->top_k * shape->intermediate;

    for (size_t i = 0; i < shape->tokens * pair; i++) {
        gb_bf16 expected = i < tokens * pair ? all->intermediate[i] : (gb_bf16){0xA5A5};
        if (!same_bf16(expected, prefix->intermediate[i]))
            fail_msg("%s, %s, %d threads, %u of %u tokens, intermediate of token %zu, element %zu: expected %04X, got "
                     "%04X",
                     gb_format_name(all->arguments.gate_up.format), path, threads, tokens, shape->tokens, i / pair,
                     i % pair, expected.bits, prefix->intermediate[i].bits);
    }
    for (size_t i = 0; i < (size_t)shape->tokens * shape->hidden; i++) {
        float expected = i < (size_t)tokens * shape->hidden ? all->output[i] : bits_float(0xA5A5A5A5);
        assert_same_float(expected, prefix->output[i],
                          "%s, %s, %d threads, %u of %u tokens, output of token %zu, element %zu",
                          gb_format_name(all->arguments.gate_up.format), path, threads, tokens, shape->tokens,
                          i / shape->hidden, i % shape->hidden);
    }
}

/* The layer of all in plain C on one thread, and of prefix, its twin, in every other way. */
static unsigned compare_ways(struct problem *all, struct problem *prefix)
{
    uint32_t tokens = all->arguments.shape.tokens;
    unsigned ways = 0;

    assert_int_equal(gb_cpu_path_set(GB_CPU_PLAIN, NULL), GB_OK);
    omp_set_num_threads(1);
    assert_int_equal(fma32_layer(&all->arguments, NULL), GB_OK);
    for (enum gb_cpu_path path = GB_CPU_PLAIN; gb_cpu_path_name(path); path++) {
        if (!gb_cpu_path_available(path))
            continue;
        assert_int_equal(gb_cpu_path_set(path, NULL), GB_OK);
        for (int threads = 1; threads <= MOST_THREADS; threads++)
            for (prefix->arguments.shape.tokens = 1; prefix->arguments.shape.tokens <= tokens;
                 prefix->arguments.shape.tokens++, ways++) {
                omp_set_num_threads(threads);
                memset(prefix->output, 0xA5, sizeof(float) * tokens * all->arguments.shape.hidden);
                memset(prefix->intermediate, 0xA5,
                       sizeof(gb_bf16) * tokens * all->arguments.shape.top_k * all->arguments.shape.intermediate);
                assert_int_equal(fma32_layer(&prefix->arguments, NULL), GB_OK);
                compare(all, prefix, gb_cpu_path_name(path), threads);
            }
    }
    return ways;
}

static void layers(void **state)
{
    static const enum data kinds[] = {DATA_GAUSSIAN, DATA_WIDE}; /* in turns */
    unsigned ways = 0, paths = 0;

    (void)state;
    for (unsigned f = 0; f < FORMATS; f++)
        for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            struct problem twins[2];
            for (unsigned i = 0; i < 2; i++) {
                problem_new(&twins[i], shapes[s], formats[f], kinds[(f + s) % 2], 100 * s + f);
                problem_empty_slots(&twins[i], 9, s);
            }
            ways += compare_ways(&twins[0], &twins[1]);
            problem_free(&twins[0]);
            problem_free(&twins[1]);
        }
    for (enum gb_cpu_path path = GB_CPU_PLAIN; gb_cpu_path_name(path); path++) {
        print_message("%s: %s\n", gb_cpu_path_name(path), gb_cpu_path_available(path) ? "compared" : "not on this CPU");
        paths += gb_cpu_path_available(path);
    }
    assert_int_equal(ways, FORMATS * (11 + 7 + 6) * MOST_THREADS * paths);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(layers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
