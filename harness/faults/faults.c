/* SPDX-License-Identifier: Apache-2.0 */
/* All faults, stage after stage, and what has them. */
#include "harness/faults/operators.h"
#include "harness/faults/rows.h"
#include "quant/quant.h"

static const struct fault_table *const tables[] = {
    &faults_inputs,    &faults_codes,       &faults_weights, &faults_projections,
    &faults_activated, &faults_requantised, &faults_slots,   &faults_outputs,
};
enum { TABLES = sizeof tables / sizeof *tables };

size_t fault_count(void)
{
    size_t count = 0;
    for (int t = 0; t < TABLES; t++)
        count += tables[t]->count;
    return count;
}

const struct fault *fault_at(size_t index)
{
    for (int t = 0; t < TABLES; t++) {
        if (index < tables[t]->count)
            return &tables[t]->rows[index];
        index -= tables[t]->count;
    }
    return NULL;
}

const char *fault_stage_name(enum fault_stage stage)
{
    static const char *const names[] = {"input",      "act_quant", "gate_up", "down",    "weights", "projection",
                                        "activation", "requant",   "slot",    "combine", "output"};
    return names[stage];
}

static unsigned has(enum gb_format format)
{
    static const unsigned codes[] = {[GB_CODEC_E2M1] = E2M1, [GB_CODEC_E4M3] = E4M3, [GB_CODEC_BF16] = BF16};
    static const unsigned scales[] = {
        [GB_SCALE_E4M3] = SCALES_E4M3, [GB_SCALE_E8M0] = SCALES_E8M0, [GB_SCALE_FP32] = SCALES_FP32};
    const struct gb_format_row *row = gb_format_find(format);
    return (row->codes < sizeof codes / sizeof *codes ? codes[row->codes] : 0) | scales[row->scales];
}

bool fault_applies(const struct fault *fault, const struct gb_arguments *a)
{
    bool codes = fault->stage == STAGE_ACT_QUANT || fault->stage == STAGE_REQUANT;
    if (codes && !a->activation_rules)
        return false;
    enum gb_format format = codes ? gb_quantiser_activations(a->activation_rules) : a->gate_up.format;
    return !fault->formats || fault->formats & has(format);
}

/* What a layer's stages can be mistaken about is all that these can. */
const struct operator_faults operator_faults_layer = {.operation = GB_LAYER};
const struct operator_faults operator_faults_gate_up = {.operation = GB_GATE_UP};
const struct operator_faults operator_faults_down = {.operation = GB_DOWN};
