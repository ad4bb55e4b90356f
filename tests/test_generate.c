/* SPDX-License-Identifier: Apache-2.0 */
/* fixtures/generate.c against docs/fixtures.md#generators, with Philox written again from its paper. */
#include "tests/check.h"

#include "fixtures/fixtures.h"

/* Philox4x32-10: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4], k[2] = {key[0], key[1]};
    memcpy(c, counter, sizeof c);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)c[0] * 0xD2511F53, b = (uint64_t)c[2] * 0xCD9E8D57;
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1],
                                  (uint32_t)a};
        memcpy(c, next, sizeof c);
        k[0] += 0x9E3779B9;
        k[1] += 0xBB67AE85;
    }
    memcpy(out, c, sizeof c);
}

/* The document's formula, in float64. */
static double expected(uint64_t seed, uint32_t stream, uint32_t layer, uint32_t expert, uint64_t i, double scale)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)i, (uint32_t)(i >> 32), stream + 256 * layer, expert};
    uint32_t r[4];
    philox(counter, key, r);
    double n = -6.0 * 65535;
    for (int w = 0; w < 3; w++)
        n += 2.0 * (r[w] % 65536) + 2.0 * (r[w] / 65536);
    uint32_t b = r[3] / (1u << 24);
    return ldexp(n, b < 207 ? 0 : b < 251 ? 1 : b < 255 ? 2 : 3) * 0x1p-17 * scale;
}

/* The known answers that the authors publish with Random123 (kat_vectors, philox4x32 10). */
static void philox_known_answers(void **state)
{
    (void)state;
    static const uint32_t vectors[][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
         0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
         0x24126ea1},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        uint32_t out[4];
        philox(vectors[i], vectors[i] + 4, out);
        assert_memory_equal(out, vectors[i] + 6, sizeof out);
    }
}

static void every_argument_counts(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed, first;
        enum gb_stream stream;
        uint32_t layer, expert;
        float scale;
    } cases[] = {
        {0, 0, GB_STREAM_X, 0, 0, 1},
        {1, 0, GB_STREAM_X, 0, 0, 1},
        {1ull << 32, 0, GB_STREAM_X, 0, 0, 1},
        {0, 1ull << 32, GB_STREAM_X, 0, 0, 1},
        {0, (1ull << 32) - 3, GB_STREAM_X, 0, 0, 1},
        {0, 0, GB_STREAM_ROUTING, 0, 0, 1},
        {0, 0, GB_STREAM_DOWN, 1, 0, 1},
        {0, 0, GB_STREAM_DOWN, (1 << 24) - 1, 511, 1},
        {UINT64_MAX, 12345, GB_STREAM_GATE, 47, 127, 0x1p-6f},
        {7, 3, GB_STREAM_UP, 2, 5, 0x1p20f},
        {7, 3, GB_STREAM_RESIDUAL, 2, 5, 0x1p-100f},
    };
    float values[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gb_generate_gaussian(cases[i].seed, cases[i].stream, cases[i].layer, cases[i].expert, cases[i].first, 64,
                             cases[i].scale, values);
        for (uint64_t e = 0; e < 64; e++) {
            double want = expected(cases[i].seed, cases[i].stream, cases[i].layer, cases[i].expert, cases[i].first + e,
                                   (double)cases[i].scale);
            assert_true((double)(float)want == want);
            assert_same_float((float)want, values[e], "case %zu, element %d", i, (int)e);
        }
    }
}

/* Published bits: these never change. */
static void golden_values(void **state)
{
    (void)state;
    static const float golden[8] = {-0x1.a4b4p-2f, 0x1.82cp-2f,  0x1.5efp0f,    -0x1.f2fp-3f,
                                    -0x1.7d6p-1f,  -0x1.cf6p-4f, -0x1.22c4p-2f, 0x1.58cp-5f};
    float values[8];
    gb_generate_gaussian(1, GB_STREAM_X, 0, 0, 0, 8, 1.0f, values);
    for (int i = 0; i < 8; i++)
        assert_same_float(golden[i], values[i], "element %d", i);
}

/* A large call, which runs on several threads, is the same as many small ones. */
static void parts_are_the_whole(void **state)
{
    (void)state;
    enum { COUNT = 1 << 18 };
    float *whole = malloc(COUNT * sizeof *whole), part[1000];
    gb_generate_gaussian(5, GB_STREAM_GATE, 3, 9, 77, COUNT, 0.5f, whole);
    for (uint64_t first = 0; first + 1000 <= COUNT; first += 1000) {
        gb_generate_gaussian(5, GB_STREAM_GATE, 3, 9, 77 + first, 1000, 0.5f, part);
        assert_memory_equal(part, whole + first, sizeof part);
    }
    free(whole);
}

/*
 * Mean 0, standard deviation 0.9990 * scale, kurtosis m4 = 16.556, no correlation of neighbours, as the document says.
 * The bounds are six standard errors over n independent values, in units of the standard deviation: 1 / sqrt(n) of the
 * mean and of the correlation, sqrt((m4 - 1) / 4n) of the deviation, at most sqrt(m8 / n) of the kurtosis. The moments
 * m4 and m8 = 290887 follow from the document's integers exactly.
 */
static void statistics(void **state)
{
    (void)state;
    enum { COUNT = 1 << 22 };
    const double n = COUNT, sd = sqrt(511.0 / 256) * sqrt(((double)(1ull << 32) - 1) / 2) * 2 * 0x1p-17;
    float *values = malloc(COUNT * sizeof *values);
    double mean = 0, square = 0, fourth = 0, neighbour = 0, largest = 0;
    gb_generate_gaussian(3, GB_STREAM_X, 0, 0, 0, COUNT, 1.0f, values);
    for (size_t i = 0; i < COUNT; i++) {
        double v = (double)values[i];
        mean += v / n;
        square += v * v / n;
        fourth += v * v * v * v / n;
        neighbour += i ? v * (double)values[i - 1] / n : 0;
        largest = fmax(largest, fabs(v));
    }
    free(values);
    assert_true(fabs(mean) < 6 * sd / sqrt(n));
    assert_true(fabs(sqrt(square) / sd - 1) < 6 * sqrt((16.556 - 1) / 4 / n));
    assert_true(fabs(fourth / (square * square) - 16.556) < 6 * sqrt(290887 / n));
    assert_true(fabs(neighbour / square) < 6 / sqrt(n));
    assert_true(largest > 12 && largest <= 24);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers), cmocka_unit_test(every_argument_counts),
        cmocka_unit_test(golden_values),        cmocka_unit_test(parts_are_the_whole),
        cmocka_unit_test(statistics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
