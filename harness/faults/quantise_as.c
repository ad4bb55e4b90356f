/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/faults/quantise_as.h"

#include "quant/quant.h"
#include "reference/reference.h"

enum gb_status quantise_as(const struct gb_quantisation *asked, const uint16_t *values, struct gb_outputs **outputs,
                           struct gb_error *error)
{
    struct gb_arguments a = {.size = sizeof a, .quantise = asked, .values = values};
    enum gb_status status = gb_outputs_new_codes(asked, outputs, error);
    if (status != GB_OK)
        return status;
    a.codes = (*outputs)->codes;
    a.scales = (*outputs)->scales;
    status =
        gb_quantisation_gated(asked) ? gb_reference_silu_mul_quantise(&a, error) : gb_reference_quantise(&a, error);
    if (status != GB_OK) {
        gb_outputs_free(*outputs);
        *outputs = NULL;
    }
    return status;
}

enum gb_status quantise_reference(const struct gb_fixture *f, uint32_t rows, struct gb_outputs **outputs,
                                  struct gb_error *error)
{
    struct gb_quantisation asked = gb_fixture_quantisation(f, rows);
    return quantise_as(&asked, f->values, outputs, error);
}
