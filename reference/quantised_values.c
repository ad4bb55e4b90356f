/* SPDX-License-Identifier: Apache-2.0 */
/* What the operators of quantisation quantise, as numbers. */
#include "reference/quantise.h"

enum gb_status gb_reference_quantised_values(const struct gb_arguments *a, enum gb_operator operation, float *values,
                                             struct gb_error *error)
{
    const struct gb_quantisation *q = a->quantise;
    enum gb_status status = gb_quantise_check(q, operation, error);
    for (uint32_t row = 0; status == GB_OK && row < q->rows; row++)
        (operation == GB_QUANTISE ? gb_plain_row : gb_gated_row)(q, a->values, row, values + (size_t)row * q->columns);
    return status;
}
