/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens to the ranks of their experts: docs/numerics.md#dispatch. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/exchange.h"

/* One row as codes and scales. x: [hidden]; values: scratch, [hidden]. */
static enum gb_status quantise_row(const struct gb_exchange *e, const gb_bf16 *x, float *values, void *codes,
                                   void *scales, struct gb_error *error)
{
    for (uint32_t i = 0; i < e->hidden; i++)
        values[i] = gb_bf16_decode(x[i]);
    return gb_quantiser_run(&e->quantiser, values, 1, e->hidden, e->global_scale, INFINITY, codes, scales, error);
}

enum gb_status gb_dispatch_rows(const struct gb_arguments *a, const int32_t *routes, struct gb_error *error)
{
    const struct gb_exchange *e = a->exchange;
    size_t code_bytes = sizeof(gb_bf16) * e->hidden, scale_bytes = 0; /* of a row */
    enum gb_status status = GB_OK;
    if (e->quantiser.element)
        status = gb_quantiser_bytes(&e->quantiser, 1, e->hidden, &code_bytes, &scale_bytes, error);
    if (status != GB_OK)
        return status;
#pragma omp parallel
    {
        float *values = malloc(sizeof(float) * e->hidden); /* [hidden] */
        struct gb_error reason;
        enum gb_status mine = values ? GB_OK : gb_fail(&reason, GB_ENOMEM, "no memory for a row");
#pragma omp for schedule(static)
        for (uint32_t row = 0; row < e->rows; row++) {
            const gb_bf16 *x = a->x + (size_t)routes[row] / e->top_k * e->hidden;
            uint8_t *codes = (uint8_t *)a->codes + row * code_bytes;
            if (!e->quantiser.element)
                memcpy(codes, x, code_bytes);
            else if (mine == GB_OK)
                mine = quantise_row(e, x, values, codes, (uint8_t *)a->scales + row * scale_bytes, &reason);
        }
        if (mine != GB_OK)
#pragma omp critical
            status = gb_fail(error, mine, "%s", reason.message);
        free(values);
    }
    return status;
}

enum gb_status gb_reference_dispatch(const struct gb_arguments *a, struct gb_error *error)
{
    struct gb_rows rows;
    enum gb_status status = gb_exchange_check_routes(a, GB_DISPATCH, error);
    const struct gb_exchange *e = a->exchange;
    if (status == GB_OK && (!a->x || !a->counts || !a->routes || !a->codes || (e->quantiser.element && !a->scales)))
        status = gb_fail(error, GB_EINVAL, "a buffer that the operator needs is NULL");
    if (status == GB_OK)
        status = gb_rows_new(a, &rows, error);
    if (status != GB_OK)
        return status;
    memcpy(a->counts, rows.counts, sizeof *a->counts * e->ranks * e->experts);
    memcpy(a->routes, rows.routes, sizeof *a->routes * e->rows);
    status = gb_dispatch_rows(a, rows.routes, error);
    gb_rows_free(&rows);
    return status;
}
