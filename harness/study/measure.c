/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/study/measure.h"

#include <math.h>

#include "quant/quant.h"

/* bf16 encodings on a line. */
static int32_t position(double value)
{
    uint16_t bits = gb_bf16_encode((float)value).bits;
    return bits & 0x8000 ? -(int32_t)(bits & 0x7FFF) : (int32_t)bits;
}

/* 0, 1, 2, 3-4, 5-8, ... */
static uint32_t bin_of(uint32_t ulp)
{
    uint32_t bin = 0;
    while (bin + 1 < STUDY_BINS && ulp > (bin ? 1u << (bin - 1) : 0u))
        bin++;
    return bin;
}

void study_measure_token(struct study_case *c, enum study_mode mode, enum study_truth truth, uint32_t path,
                         uint32_t sample, const double *state, const double *right)
{
    struct study_measure *m = &c->measure[mode][truth];
    size_t row = path;
    double error2 = 0.0, dot = 0.0, self2 = 0.0, largest = 0.0;
    uint32_t steps = 0;
    for (uint32_t i = 0; i < c->shape.hidden; i++) {
        double off = fabs(state[i] - right[i]);
        int32_t apart = position(state[i]) - position(right[i]);
        uint32_t ulp = (uint32_t)(apart < 0 ? -apart : apart);
        error2 += off * off;
        dot += state[i] * right[i];
        self2 += state[i] * state[i];
        largest = off > largest || isnan(off) ? off : largest;
        steps = ulp > steps ? ulp : steps;
        m->ulps[row * STUDY_BINS + bin_of(ulp)]++;
    }
    m->error2[row * c->samples + sample] = error2;
    m->dot[row * c->samples + sample] = dot;
    m->self2[row * c->samples + sample] = self2;
    m->max_abs[row] = largest > m->max_abs[row] || isnan(largest) ? largest : m->max_abs[row];
    m->max_ulp[row] = steps > m->max_ulp[row] ? steps : m->max_ulp[row];
}

double study_distance2(const double *a, const double *b, uint32_t count)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < count; i++)
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
}

bool study_same_experts(const int32_t *a, const int32_t *b, uint32_t top_k)
{
    for (uint32_t i = 0; i < top_k; i++) {
        bool found = false;
        for (uint32_t j = 0; j < top_k; j++)
            found |= a[i] == b[j];
        if (!found)
            return false;
    }
    return true;
}
