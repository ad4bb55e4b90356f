/* SPDX-License-Identifier: Apache-2.0 */
/* The order fma32/1 in plain C; every step is numbered as in docs/numerics.md#fma32. */
#include <math.h>
#include <stdlib.h>

#include "reference/dot.h"

enum { LANES = 32, CHUNK_BYTES = 16 };

enum gb_status gb_row_new(const struct gb_weights *weights, struct gb_row *row, struct gb_error *error)
{
    uint32_t block = gb_format_block(weights->format);
    row->columns = weights->columns;
    row->chunk =
        (uint32_t)((uint64_t)CHUNK_BYTES * weights->columns / gb_row_code_bytes(weights->format, weights->columns));
    row->block = block > 1 ? block : row->chunk;
    row->global = 1.0f;
    row->codes = malloc(sizeof(float) * weights->columns);
    row->scales = malloc(sizeof(float) * weights->columns);
    if (!row->codes || !row->scales) {
        gb_row_free(row);
        return gb_fail(error, GB_ENOMEM, "no memory for a row of %u weights", weights->columns);
    }
    return GB_OK;
}

void gb_row_free(struct gb_row *row)
{
    free(row->codes);
    free(row->scales);
    row->codes = NULL;
    row->scales = NULL;
}

void gb_row_decode(const struct gb_weights *weights, uint32_t expert, uint32_t index, struct gb_row *row)
{
    gb_weights_codes(weights, expert, index, row->codes, row->scales);
    row->global = gb_weights_global(weights, expert, index);
}

static inline uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

GB_FMA_CLONES
float gb_row_dot(const struct gb_row *row, const float *x, const float *x_scales)
{
    float acc[LANES] = {0};
    for (uint32_t first = 0, c = 0; first < row->columns; first += row->chunk, c++) { /* steps 1 and 2 */
        uint32_t end = smaller(first + row->chunk, row->columns);
        for (uint32_t run = first; run < end; run += row->block) { /* step 3 */
            uint32_t stop = smaller(run + row->block, end);
            float p = 0.0f;
            for (uint32_t i = run; i < stop; i++)
                p = fmaf(row->codes[i], x[i], p);
            float s = row->scales[run / row->block];
            acc[c % LANES] = fmaf(x_scales ? s * x_scales[run / row->block] : s, p, acc[c % LANES]);
        }
    }
    for (uint32_t m = LANES / 2; m > 0; m /= 2) { /* step 4 */
        float next[LANES];
        for (uint32_t l = 0; l < LANES; l++)
            next[l] = acc[l] + acc[l ^ m];
        for (uint32_t l = 0; l < LANES; l++)
            acc[l] = next[l];
    }
    return acc[0] * row->global; /* step 5 */
}

float gb_dot(const struct gb_weights *weights, uint32_t expert, uint32_t row, const gb_bf16 *x)
{
    struct gb_operand operand = {.x = x, .weights = *weights};
    struct gb_activations activations;
    struct gb_row decoded;
    float result = NAN;
    if (gb_activations_new(&operand, 1, NULL, 1, &activations, NULL) != GB_OK)
        return result;
    if (gb_row_new(weights, &decoded, NULL) == GB_OK) {
        struct gb_product product = {weights, expert, row, 1, 1, activations.path, activations.vector, NULL};
        gb_dots(&product, &decoded, &result);
        gb_row_free(&decoded);
    }
    gb_activations_free(&activations);
    return result;
}
