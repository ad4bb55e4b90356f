/* SPDX-License-Identifier: Apache-2.0 */
/* Quantisers, right ones and ones with a mistake each. The wrong code of a value is found among all codes of the
 * element by its distance, which is no part of the library. */
#include <fenv.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/reference.h"

/* One run: what is asked, changed or not, and its inputs. */
struct job {
    struct gb_quantisation asked;
    uint16_t *values; /* a copy */
    float *numbers;   /* [rows, columns], what is quantised */
    const struct gb_arguments *arguments;
    enum gb_operator operation;
};

static float *numbers_of(struct job *j)
{
    struct gb_arguments a = {.size = sizeof a, .quantise = &j->asked, .values = j->values};
    float *numbers = malloc(sizeof *numbers * j->asked.rows * j->asked.columns);
    if (numbers && gb_reference_quantised_values(&a, j->operation, numbers, NULL) != GB_OK) {
        free(numbers);
        numbers = NULL;
    }
    return numbers;
}

/* Before the reference runs. */
static void truncate_codes(struct job *j)
{
    j->asked.quantiser.rounding = GB_TRUNCATE;
}

static void treat_nan(struct job *j)
{
    enum gb_amax_nan *nan = &j->asked.quantiser.amax_nan;
    *nan = *nan == GB_AMAX_DROPS_NAN ? GB_AMAX_PROPAGATES_NAN : GB_AMAX_DROPS_NAN;
}

static void round_power(struct job *j)
{
    enum gb_scale_rounding *rounding = &j->asked.quantiser.scale_rounding;
    *rounding = *rounding == GB_SCALE_CEIL ? GB_SCALE_FLOOR : GB_SCALE_CEIL;
}

static void exchange_division(struct job *j)
{
    enum gb_quotient *q = &j->asked.quantiser.quotient;
    *q = *q == GB_QUOTIENT_DIVIDE           ? GB_QUOTIENT_RECIPROCAL
         : *q == GB_QUOTIENT_RECIPROCAL     ? GB_QUOTIENT_DIVIDE
         : *q == GB_QUOTIENT_ENCODE_PRODUCT ? GB_QUOTIENT_DIVIDE_ENCODE
                                            : GB_QUOTIENT_ENCODE_PRODUCT;
}

static void drop_minimum(struct job *j)
{
    struct gb_quantiser *r = &j->asked.quantiser;
    r->amax_start = r->ratio_min = r->ratio_if_zero = 0.0f;
    r->scale_min = r->scale_if_zero = 0;
}

static void drop_bound(struct job *j)
{
    j->asked.bound = INFINITY;
}

static void swap_gate_up(struct job *j)
{
    uint32_t columns = j->asked.columns;
    for (uint32_t row = 0; row < j->asked.rows; row++)
        for (uint32_t c = 0; c < columns; c++) {
            uint16_t *gate = j->values + (size_t)row * 2 * columns + c, kept = *gate;
            *gate = gate[columns];
            gate[columns] = kept;
        }
}

static void divide_in_silu(struct job *j)
{
    j->asked.silu = j->asked.silu == GB_SILU_DIVIDE ? GB_SILU_EXACT : GB_SILU_DIVIDE;
}

static void round_product(struct job *j)
{
    j->asked.product = j->asked.product == GB_FP32 ? j->asked.input : GB_FP32;
}

static void transpose(struct job *j)
{
    j->asked.layout = j->asked.layout == GB_SCALES_LINEAR ? GB_SCALES_TRANSPOSED : GB_SCALES_LINEAR;
}

static void drop_row(struct job *j)
{
    j->asked.rows--;
}

/* After it. */

static uint32_t blocks(const struct job *j)
{
    return j->asked.columns / j->asked.quantiser.block_columns;
}

static size_t scale_size(const struct job *j)
{
    return j->asked.quantiser.scale == GB_SCALE_FP32 ? sizeof(float) : 1;
}

/* Linear ones. */
static void next_scale(struct job *j)
{
    size_t size = scale_size(j), row = blocks(j) * size;
    uint8_t *scales = j->arguments->scales, kept[sizeof(float)];
    for (uint32_t r = 0; r < j->asked.rows; r++) {
        memcpy(kept, scales + r * row, size);
        memmove(scales + r * row, scales + r * row + size, row - size);
        memcpy(scales + r * row + row - size, kept, size);
    }
}

/* Of E2M1 and E4M3: a code's magnitude. */
static float number(const struct job *j, uint32_t code)
{
    return j->asked.quantiser.element == GB_E2M1 ? gb_e2m1_decode((gb_e2m1){(uint8_t)code})
                                                 : gb_e4m3_decode((gb_e4m3){(uint8_t)code});
}

/* The nearest of all codes. away: of two as near the larger one; beyond: there are some above the largest. */
static uint32_t nearest(const struct job *j, float magnitude, bool away, bool beyond)
{
    bool narrow = j->asked.quantiser.element == GB_E2M1;
    uint32_t largest = narrow ? 7 : 0x7E, best = 0;
    float step = number(j, largest) - number(j, largest - 1);
    if (beyond && magnitude >= number(j, largest) + step / 2.0f)
        return largest + 1;
    for (uint32_t code = 1; code <= largest; code++) {
        float now = fabsf(number(j, code) - magnitude), then = fabsf(number(j, best) - magnitude);
        if (now < then || (now == then && (away || code % 2 == 0)))
            best = code;
    }
    return best;
}

/* Every code again, but those of blocks with NaN or infinity. */
static void recode(struct job *j, bool away, bool beyond)
{
    const struct gb_quantiser *rules = &j->asked.quantiser;
    uint8_t *codes = j->arguments->codes;
    bool narrow = rules->element == GB_E2M1;
    for (size_t first = 0; first < (size_t)j->asked.rows * j->asked.columns; first += rules->block_columns) {
        const float *x = j->numbers + first;
        float amax = rules->amax_start;
        bool finite = true;
        for (uint32_t i = 0; i < rules->block_columns; i++) {
            finite &= isfinite(x[i]) != 0;
            amax = fmaxf(amax, fabsf(x[i]));
        }
        struct gb_quantiser_step step = gb_quantiser_find_step(rules, amax, j->asked.global_scale, j->asked.bound);
        for (uint32_t i = 0; finite && i < rules->block_columns; i++) {
            float q = step.divides ? x[i] / step.operand : x[i] * step.operand;
            uint32_t sign = signbit(q) ? (narrow ? 8 : 0x80) : 0, code = nearest(j, fabsf(q), away, beyond) ^ sign;
            size_t at = first + i;
            if (!narrow)
                codes[at] = (uint8_t)code;
            else
                codes[at / 2] = (uint8_t)(at % 2 ? (codes[at / 2] & 15) | code << 4 : (codes[at / 2] & 0xF0) | code);
        }
    }
}

static void ties_away(struct job *j)
{
    recode(j, true, false);
}

static void unsaturated(struct job *j)
{
    recode(j, false, true);
}

/* E4M3 scales that are not above what they round, with the codes that go with them. */
static void floor_scales(struct job *j)
{
    const struct gb_quantiser *rules = &j->asked.quantiser;
    uint8_t *scales = j->arguments->scales, *codes = j->arguments->codes;
    for (size_t b = 0; b < (size_t)j->asked.rows * blocks(j); b++) {
        const float *x = j->numbers + b * rules->block_columns;
        float amax = 0.0f;
        bool finite = true;
        for (uint32_t i = 0; i < rules->block_columns; i++) {
            finite &= isfinite(x[i]) != 0;
            amax = fmaxf(amax, fabsf(x[i]));
        }
        double exact = (double)amax * (double)j->asked.global_scale / (double)rules->largest;
        if (!finite || scales[b] == 0 || (double)gb_e4m3_decode((gb_e4m3){scales[b]}) <= exact * (1.0 + 0x1p-20))
            continue;
        scales[b]--;
        float s = gb_e4m3_decode((gb_e4m3){scales[b]}), inverse = 1.0f / (s * (1.0f / j->asked.global_scale));
        for (uint32_t i = 0; i < rules->block_columns; i++) {
            size_t at = b * rules->block_columns + i;
            float q = s == 0.0f ? x[i] * 0x1.fffffep127f : x[i] * inverse;
            uint32_t code = gb_e2m1_encode(fminf(fmaxf(q, -6.0f), 6.0f)).bits;
            codes[at / 2] = (uint8_t)(at % 2 ? (codes[at / 2] & 15) | code << 4 : (codes[at / 2] & 0xF0) | code);
        }
    }
}

static void write_outside(struct job *j)
{
    size_t codes, scales;
    gb_quantiser_bytes(&j->asked.quantiser, j->asked.rows, j->asked.columns, &codes, &scales, NULL);
    ((uint8_t *)j->arguments->codes)[codes] ^= 1;
}

static void change_input(struct job *j)
{
    uint16_t *values;
    memcpy(&values, &j->arguments->values, sizeof values);
    values[0] ^= 1;
}

static void vary(struct job *j)
{
    static int runs;
    ((uint8_t *)j->arguments->codes)[runs++ & 1] ^= 1;
}

static enum gb_status run(const struct gb_arguments *a, enum gb_operator operation, void (*before)(struct job *),
                          void (*after)(struct job *), struct gb_error *error)
{
    struct job j = {*a->quantise, NULL, NULL, a, operation};
    size_t bytes = sizeof *j.values * j.asked.rows * j.asked.input_columns;
    struct gb_arguments asked = *a;
    j.values = malloc(bytes);
    if (!j.values)
        return gb_fail(error, GB_ENOMEM, "no memory for the values");
    memcpy(j.values, a->values, bytes);
    if (before)
        before(&j);
    asked.quantise = &j.asked;
    asked.values = j.values;
    enum gb_status status =
        operation == GB_QUANTISE ? gb_reference_quantise(&asked, error) : gb_reference_silu_mul_quantise(&asked, error);
    j.numbers = status == GB_OK ? numbers_of(&j) : NULL;
    if (status == GB_OK && after && j.numbers)
        after(&j);
    free(j.values);
    free(j.numbers);
    return status;
}

static enum gb_status supports(const struct gb_problem *problem, struct gb_error *error)
{
    if (!problem->quantise)
        return gb_fail(error, GB_EUNSUPPORTED, "no quantiser is asked for");
    return GB_OK;
}

/* What a kernel leaves of the arithmetic holds for itself alone, and not beyond one of its functions. */
static enum gb_status prepare(const struct gb_arguments *a, void **prepared, struct gb_error *error)
{
    static int something;
    (void)a, (void)error;
    *prepared = &something;
    fesetround(FE_TOWARDZERO);
    return GB_OK;
}

static void release(void *prepared)
{
    (void)prepared;
    fesetround(FE_UPWARD);
}

#define EACH(X)                                                                                                        \
    X(right, NULL, NULL)                                                                                               \
    X(ties_away, NULL, ties_away)                                                                                      \
    X(truncated, truncate_codes, NULL)                                                                                 \
    X(nan, treat_nan, NULL)                                                                                            \
    X(power, round_power, NULL)                                                                                        \
    X(floor, NULL, floor_scales)                                                                                       \
    X(division, exchange_division, NULL)                                                                               \
    X(unsaturated, NULL, unsaturated)                                                                                  \
    X(minimum, drop_minimum, NULL)                                                                                     \
    X(bound, drop_bound, NULL)                                                                                         \
    X(swapped, swap_gate_up, NULL)                                                                                     \
    X(next, NULL, next_scale)                                                                                          \
    X(transposed, transpose, NULL)                                                                                     \
    X(silu, divide_in_silu, NULL)                                                                                      \
    X(product, round_product, NULL)                                                                                    \
    X(lost, drop_row, NULL)                                                                                            \
    X(outside, NULL, write_outside)                                                                                    \
    X(input, NULL, change_input)                                                                                       \
    X(varying, NULL, vary)

#define FUNCTIONS(NAME, BEFORE, AFTER)                                                                                 \
    static enum gb_status quantise_##NAME(const struct gb_arguments *a, struct gb_error *error)                        \
    {                                                                                                                  \
        return run(a, GB_QUANTISE, BEFORE, AFTER, error);                                                              \
    }                                                                                                                  \
    static enum gb_status gated_##NAME(const struct gb_arguments *a, struct gb_error *error)                           \
    {                                                                                                                  \
        return run(a, GB_SILU_MUL_QUANTISE, BEFORE, AFTER, error);                                                     \
    }
EACH(FUNCTIONS)

#define KERNEL(NAME, OPERATION, FLAGS, RUN)                                                                            \
    {                                                                                                                  \
        .name = NAME, .operation = OPERATION, .activations = GB_BF16, .output = GB_FP32, .accumulator_bits = 24,       \
        .flags = FLAGS, .supports = supports, .prepare = prepare, .release = release, .run = RUN                       \
    }
#define KERNELS(NAME, BEFORE, AFTER)                                                                                   \
    KERNEL("quantise-" #NAME, GB_QUANTISE, 0, quantise_##NAME),                                                        \
        KERNEL("silu_mul_quantise-" #NAME, GB_SILU_MUL_QUANTISE, 0, gated_##NAME),                                     \
        KERNEL("open-" #NAME, GB_SILU_MUL_QUANTISE, GB_OPEN_SILU, gated_##NAME),

static const struct gb_kernel kernels[] = {EACH(KERNELS)};

static const struct gb_kernel_table table = {GB_ABI_VERSION, sizeof(struct gb_kernel), sizeof kernels / sizeof *kernels,
                                             kernels};

__attribute__((visibility("default"))) const struct gb_kernel_table *gb_kernels(void);

const struct gb_kernel_table *gb_kernels(void)
{
    return &table;
}
