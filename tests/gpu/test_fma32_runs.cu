/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which runs of fma32/1 an instruction may have, by gpu/fma32_runs.cuh on the CPU: never one in which 6 times the sum
 * of |x| is more than 2^24 u, u half a unit in the last place of the smallest x that is not zero, and every one in
 * which it is less than that by what the estimate may lose. Needs no GPU.
 */
#include <cmath>
#include <cstdio>

#include "gpu/fma32_runs.cuh"
#include "tests/support/check.h"

namespace
{

constexpr double allowed = 16777216.0; /* 2^24 */
/* A sum rounded to bf16 twice is at least so many times the sum, and at most. */
constexpr double lowest = 256.0 / 257 * (256.0 / 257), highest = 257.0 / 256 * (257.0 / 256) * (1 + 0x1p-22);

uint16_t x[16]; /* a run */

bool taken()
{
    gb_fma32_extent half[2];
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t words[4];
        memcpy(words, x + 8 * i, sizeof words);
        half[i] = gb_fma32_extent_of(make_uint4(words[0], words[1], words[2], words[3]));
    }
    return gb_fma32_exact(gb_fma32_extent_of_both(half[0], half[1]));
}

struct {
    uint64_t runs, taken, wrongly_taken, wrongly_left, near; /* near: within 1 % of what is allowed, and above it */
} count;

void look()
{
    double sum = 0, least = INFINITY;
    for (uint16_t bits : x) {
        const double value = fabs((double)gb_bf16_low(bits));
        sum += value; /* exact where all are within 2^40 of each other */
        if (value > 0)
            least = fmin(least, value);
    }
    const bool none = !std::isfinite(least), odd = !std::isfinite(sum);
    const double units = none || odd ? 0 : 6 * sum / (ldexp(1, ilogb(least)) * 0x1p-8);
    const bool is_taken = taken();
    count.runs++;
    count.taken += is_taken;
    count.near += units > allowed && units < 1.01 * allowed;
    count.wrongly_taken += is_taken && (odd || units > allowed || (!none && least < 0x1p-90) || sum * lowest >= 512);
    count.wrongly_left +=
        !is_taken && !odd && units * highest * 6.05 / 6 <= allowed && (none || least >= 0x1p-90) && sum * highest < 512;
}

/* A run at the edge. Of the four sums in bf16, three are of a power of two and what may be lost beside it twice, half a
 * unit; the last one is of the smallest x and of what brings the whole to the limit and up to 0.8 % more. */
void look_at_edge(uint64_t *state)
{
    const int largest = (int)random_below(state, 80) - 72;
    const uint32_t first = random_below(state, 4);
    const double least = ldexp(1, largest - 13), limit = allowed * least * 0x1p-8 / 6;
    double sum = 0;
    const auto set = [&](uint32_t of, uint32_t i, double value) {
        x[of / 2 * 8 + of % 2 + 2 * i] = gb_bf16_round((float)value);
        sum += gb_bf16_low(gb_bf16_round((float)value));
    };
    for (uint32_t n = 0; n < 3; n++) {
        const uint32_t of = (first + n) % 4;
        const double large = ldexp(1, largest - 2 * (int)n), lost = large / 256;
        set(of, 0, large);
        set(of, 1, lost * (random_below(state, 4) ? 1 : 1 - random_uniform(state) / 16));
        set(of, 2, lost / 2);
        set(of, 3, lost / 2);
    }
    const uint32_t of = (first + 3) % 4;
    set(of, 0, least * (1 + random_uniform(state)));
    set(of, 1, least);
    set(of, 2, 0);
    set(of, 3, limit * (1 + 0.008 * random_uniform(state)) - sum);
    look();
}

void look_at_all()
{
    uint64_t state = 20261128;
    for (uint32_t n = 0; n < 400000; n++) {
        const uint32_t spread = 1 + n % 24, middle = n / 24 % 4 ? 120 : random_below(&state, 255);
        for (uint16_t &bits : x) {
            const uint32_t exponent = middle + random_below(&state, spread);
            const uint32_t fraction = random_below(&state, 4) ? (uint32_t)random_bits(&state) & 0x7F : 0;
            bits = (uint16_t)((random_bits(&state) & 0x8000) | (exponent > 255 ? 255 : exponent) << 7 | fraction);
            if (random_below(&state, 16) == 0)
                bits &= 0x8000;
        }
        look();
        look_at_edge(&state);
    }
    memset(x, 0, sizeof x);
    look();
}

} // namespace

int main()
{
    look_at_all();
    printf("%llu runs, %llu an instruction's, %llu of them wrongly; %llu wrongly left; %llu close above the limit\n",
           (unsigned long long)count.runs, (unsigned long long)count.taken, (unsigned long long)count.wrongly_taken,
           (unsigned long long)count.wrongly_left, (unsigned long long)count.near);
    return count.wrongly_taken || count.wrongly_left || count.taken < count.runs / 10 || count.near < count.runs / 4;
}
