/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that quantise their activations, with sums in double from the last column to the first, and what may be wrong
 * with them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/faults/faults.h"

struct wrong {
    bool next_scale;    /* x is multiplied by the scale of the block after its own */
    bool nibbles;       /* the two codes of a byte of x are swapped */
    const char *recipe; /* the intermediate's; NULL: the right one */
    bool unquantised;   /* down takes the bf16 intermediate */
};

/* Memory of one run. */
struct work {
    uint8_t *codes, *scales; /* of x, or of the intermediate */
    double *values;          /* [rows, columns], of the codes */
    double *row;             /* of weights */
};

static enum gb_status work_new(const struct gb_shape *s, struct work *w, struct gb_error *error)
{
    size_t widest = s->hidden > s->intermediate ? s->hidden : s->intermediate;
    size_t count = (size_t)s->tokens * s->top_k * widest;
    *w = (struct work){malloc(count), malloc(count), malloc(count * sizeof(double)), malloc(widest * sizeof(double))};
    return w->codes && w->scales && w->values && w->row ? GB_OK
                                                        : gb_fail(error, GB_ENOMEM, "no memory for activations");
}

static void work_free(struct work *w)
{
    free(w->codes);
    free(w->scales);
    free(w->values);
    free(w->row);
}

static double dot(const struct gb_weights *weights, uint32_t expert, uint32_t row, const double *x, double *scratch)
{
    double sum = 0;
    gb_weights_row(weights, expert, row, scratch);
    for (uint32_t i = weights->columns; i-- > 0;)
        sum += scratch[i] * x[i];
    return sum;
}

/* Codes and scales go where they are asked for, and are spoiled only for the kernel's own use. */
static enum gb_status quantise(const struct gb_arguments *a, enum gb_operator operation, const gb_bf16 *values,
                               size_t count, const struct wrong *wrong, struct work *w, struct gb_error *error)
{
    struct gb_arguments asked = *a;
    size_t blocks = count / a->activation_rules->block_columns;
    bool of_x = operation == GB_GATE_UP;
    if (!of_x && wrong->recipe)
        asked.activation_rules = &gb_recipe_find(wrong->recipe)->quantiser;
    enum gb_status status = gb_reference_quantise_activations(&asked, operation, values, w->codes, w->scales, error);
    if (status != GB_OK)
        return status;
    if (of_x ? a->x_codes : a->intermediate_codes) {
        memcpy(of_x ? a->x_codes : a->intermediate_codes, w->codes, count / 2);
        memcpy(of_x ? a->x_scales : a->intermediate_scales, w->scales, blocks);
    }
    for (size_t b = 0; of_x && wrong->next_scale && b + 1 < blocks; b++)
        w->scales[b] = w->scales[b + 1];
    for (size_t i = 0; of_x && wrong->nibbles && i < count / 2; i++)
        w->codes[i] = (uint8_t)(w->codes[i] << 4 | w->codes[i] >> 4);
    return gb_reference_activation_values(&asked, operation, w->codes, w->scales, w->values, error);
}

static void gate_up(const struct gb_arguments *a, struct work *w, gb_bf16 *intermediate)
{
    const struct gb_shape *s = &a->shape;
    for (size_t pair = 0; pair < (size_t)s->tokens * s->top_k; pair++)
        for (uint32_t i = 0; i < s->intermediate; i++) {
            const double *x = w->values + pair / s->top_k * s->hidden;
            int32_t expert = a->ids[pair];
            double gate = expert < 0 ? 0 : dot(&a->gate_up, (uint32_t)expert, i, x, w->row);
            double up = expert < 0 ? 0 : dot(&a->gate_up, (uint32_t)expert, s->intermediate + i, x, w->row);
            intermediate[pair * s->intermediate + i] = gb_bf16_encode((float)(gate / (1 + exp(-gate)) * up));
        }
}

static void down(const struct gb_arguments *a, struct work *w)
{
    const struct gb_shape *s = &a->shape;
    for (uint32_t t = 0; t < s->tokens; t++)
        for (uint32_t r = 0; r < s->hidden; r++) {
            double y = 0;
            for (uint32_t j = 0; j < s->top_k; j++) {
                size_t pair = (size_t)t * s->top_k + j;
                if (a->ids[pair] >= 0)
                    y += (double)a->routing_weights[pair] *
                         dot(&a->down, (uint32_t)a->ids[pair], r, w->values + pair * s->intermediate, w->row);
            }
            ((float *)a->output)[(size_t)t * s->hidden + r] = (float)y;
        }
}

static enum gb_status layer(const struct gb_arguments *a, const struct wrong *wrong, struct gb_error *error)
{
    const struct gb_shape *s = &a->shape;
    size_t inner = (size_t)s->tokens * s->top_k * s->intermediate;
    gb_bf16 *own = malloc(inner * sizeof *own), *intermediate = a->intermediate ? a->intermediate : own;
    struct work w;
    enum gb_status status = work_new(s, &w, error);
    if (status == GB_OK)
        status = quantise(a, GB_GATE_UP, a->x, (size_t)s->tokens * s->hidden, wrong, &w, error);
    if (status == GB_OK) {
        gate_up(a, &w, intermediate);
        status = quantise(a, GB_DOWN, intermediate, inner, wrong, &w, error);
    }
    for (size_t i = 0; wrong->unquantised && i < inner; i++)
        w.values[i] = (double)gb_bf16_decode(intermediate[i]);
    if (status == GB_OK)
        down(a, &w);
    work_free(&w);
    free(own);
    return status;
}

enum gb_status run_quantised(const struct gb_arguments *a, struct gb_error *error)
{
    return layer(a, &(struct wrong){0}, error);
}

enum gb_status run_quantised_next_scale(const struct gb_arguments *a, struct gb_error *error)
{
    return layer(a, &(struct wrong){.next_scale = true}, error);
}

enum gb_status run_quantised_nibbles(const struct gb_arguments *a, struct gb_error *error)
{
    return layer(a, &(struct wrong){.nibbles = true}, error);
}

enum gb_status run_quantised_recipe(const struct gb_arguments *a, struct gb_error *error)
{
    return layer(a, &(struct wrong){.recipe = "nvfp4.flashinfer-4over6-mae-448/1"}, error);
}

enum gb_status run_quantised_not(const struct gb_arguments *a, struct gb_error *error)
{
    return layer(a, &(struct wrong){.unquantised = true}, error);
}
