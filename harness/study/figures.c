/* SPDX-License-Identifier: Apache-2.0 */
/* The figures of a layer and path from what was kept of its tokens. */
#include <math.h>

#include "harness/study/study.h"

struct study_figures study_figures_of(const struct study_case *c, enum study_mode mode, enum study_truth truth,
                                      uint32_t layer, uint32_t path)
{
    const struct study_measure *m = &c->measure[mode][truth];
    size_t row = (size_t)layer * c->paths + path;
    const double *right2 = (mode == STUDY_LAYER ? c->layer2 : c->stream2)[truth] + (size_t)layer * c->samples;
    double error2 = 0.0, dot = 0.0, self2 = 0.0, truth2 = 0.0, carried2 = 0.0, injected2 = 0.0;
    struct study_figures f = {.cosine_min = (double)NAN, .max_abs = m->max_abs[row], .max_ulp = m->max_ulp[row]};
    for (uint32_t n = 0; n < c->samples; n++) {
        size_t at = row * c->samples + n;
        double cosine = m->dot[at] / sqrt(m->self2[at] * right2[n]);
        error2 += m->error2[at];
        dot += m->dot[at];
        self2 += m->self2[at];
        truth2 += right2[n];
        if (!(cosine >= f.cosine_min))
            f.cosine_min = cosine;
        if (mode == STUDY_OPEN_LOOP) {
            injected2 += c->measure[STUDY_TEACHER_FORCED][truth].error2[at];
            carried2 += m->carried2[at];
            f.changed += m->changed[at];
        }
    }
    f.relative_l2 = sqrt(error2 / truth2);
    f.cosine = dot / sqrt(self2 * truth2);
    f.sqnr_db = 10.0 * log10(truth2 / error2);
    f.injected = mode == STUDY_OPEN_LOOP ? sqrt(injected2 / truth2) : (double)NAN;
    f.carried = mode == STUDY_OPEN_LOOP ? sqrt(carried2 / truth2) : (double)NAN;
    f.changed = mode == STUDY_OPEN_LOOP ? f.changed : (double)NAN;
    return f;
}
