/* SPDX-License-Identifier: Apache-2.0 */
/* What a study found, in sentences at the top of its page. */
#include <math.h>
#include <string.h>

#include "harness/report/html.h"
#include "harness/report/html_study.h"

const char *study_page_against(enum study_truth truth)
{
    return truth == STUDY_QUANTISED ? "float64 with the quantised weights" : "float64 with the original weights";
}

struct study_figures study_page_last(const struct study_page *p, enum study_truth truth, uint32_t path)
{
    return study_figures_of(p->c, STUDY_OPEN_LOOP, truth, p->c->layers - 1, path);
}

/* The layer that injects most into the path, and its share of the squared errors that all inject. */
static uint32_t worst_layer(const struct study_page *p, enum study_truth truth, uint32_t path, double *part)
{
    double sum = 0.0, most = 0.0;
    uint32_t worst = 0;
    for (uint32_t l = 0; l < p->c->layers; l++) {
        double injected = study_figures_of(p->c, STUDY_OPEN_LOOP, truth, l, path).injected;
        sum += injected * injected;
        if (injected > most) {
            most = injected;
            worst = l;
        }
    }
    *part = most * most / sum;
    return worst;
}

/* Whether a path cannot be told from the closest one, of whose error it has this ratio. */
static bool equal(struct study_interval ratio)
{
    return !(ratio.low > 1.0) || ratio.value < 1.005; /* of one token there is no interval */
}

/* Which path is closest, by how much and how sure. */
static void closest(const struct study_page *p, enum study_truth truth)
{
    const struct study_case *c = p->c;
    char text[STUDY_INTERVAL_TEXT];
    uint32_t best = 0, second = 0;
    double error = INFINITY, next = INFINITY;
    for (uint32_t i = 0; i < c->paths; i++) {
        double e = study_page_last(p, truth, i).relative_l2;
        if (e < error)
            error = e, best = i;
    }
    const double *errors = c->measure[STUDY_OPEN_LOOP][truth].error2 + (size_t)(c->layers - 1) * c->paths * c->samples;
    if (study_ratio(&p->resamples, errors, errors + (size_t)best * c->samples).value < 1.005)
        best = 0; /* the plainest of equals */
    struct study_interval of_best = study_relative_l2(c, &p->resamples, STUDY_OPEN_LOOP, truth, c->layers - 1, best);
    fprintf(p->stream,
            "<li><b>Closest to %s:</b> <code>%s</code>. Relative L2 error of its residual stream after the last layer: "
            "%.3g %% (95 %% interval %s).",
            study_page_against(truth), p->names[best], 100.0 * of_best.value,
            study_interval_text(of_best, 100.0, "%.3g to %.3g %%", text));
    for (uint32_t i = 0; i < c->paths; i++) {
        struct study_interval r =
            study_ratio(&p->resamples, errors + (size_t)i * c->samples, errors + (size_t)best * c->samples);
        if (i == best || equal(r) || r.value > next)
            continue;
        next = r.value;
        second = i;
    }
    if (isfinite(next)) {
        struct study_interval r =
            study_ratio(&p->resamples, errors + (size_t)second * c->samples, errors + (size_t)best * c->samples);
        fprintf(
            p->stream,
            " The nearest path that is measurably farther, <code>%s</code>, has %.3f times that error (95 %% interval %s).",
            p->names[second], r.value, study_interval_text(r, 1.0, "%.3f to %.3f", text));
    }
    bool first = true;
    for (uint32_t i = 0; i < c->paths; i++) {
        struct study_interval r =
            study_ratio(&p->resamples, errors + (size_t)i * c->samples, errors + (size_t)best * c->samples);
        if (i == best || !equal(r))
            continue;
        fprintf(p->stream, "%s<code>%s</code>", first ? " Statistically tied with the closest: " : ", ", p->names[i]);
        first = false;
    }
    fputs(first ? "</li>\n" : ".</li>\n", p->stream);
}

/* By how much paths that quantise activations are farther than bf16 activations, which path 0 has. */
static void quantised(const struct study_page *p, enum study_truth truth)
{
    char text[STUDY_INTERVAL_TEXT];
    bool first = true;
    for (uint32_t i = 1; i < p->c->paths; i++) {
        if (!strncmp(p->names[i], "bf16.", strlen("bf16.")))
            continue;
        struct study_interval r = study_closeness(p->c, &p->resamples, truth, i, p->c->layers);
        if (first)
            fprintf(p->stream,
                    "<li><b>Quantised activations</b>, against %s: error of the layers' outputs, each layer given the "
                    "same bf16 input, over that of <code>%s</code> (95 %% interval): ",
                    study_page_against(truth), p->names[0]);
        fprintf(p->stream, "%s<code>%s</code> %.3f (%s)", first ? "" : ", ", p->names[i], r.value,
                study_interval_text(r, 1.0, "%.3f to %.3f", text));
        first = false;
    }
    fputs(first ? "" : ".</li>\n", p->stream);
}

/* Which path moves the distribution of the next token most, other than bf16 activations do. */
static void next_token(const struct study_page *p)
{
    struct study_interval most = {0.0, 0.0, 0.0};
    uint32_t farthest = 1;
    for (uint32_t i = 1; i < p->c->paths; i++) {
        struct study_interval kl = study_mean_kl(p->c, &p->resamples, STUDY_AGAINST_BF16, i);
        if (kl.value > most.value) {
            most = kl;
            farthest = i;
        }
    }
    struct study_interval top = study_top_agreement(p->c, STUDY_AGAINST_BF16, farthest);
    char text[STUDY_INTERVAL_TEXT];
    fprintf(p->stream,
            "<li><b>Next token:</b> of all paths the distribution of <code>%s</code> is farthest from that of "
            "<code>%s</code>: KL %.2g nats (95 %% interval %s); both find the same token most probable for %.3g %% of "
            "the tokens (95 %% interval %.3g to %.3g %%).</li>\n",
            p->names[farthest], p->names[0], most.value, study_interval_text(most, 1.0, "%.2g to %.2g", text),
            100.0 * top.value, 100.0 * top.low, 100.0 * top.high);
}

static void changed_experts(const struct study_page *p, uint32_t farthest)
{
    const struct study_case *c = p->c;
    double of[STUDY_TRUTHS][2];
    for (int t = 0; t < STUDY_TRUTHS; t++) {
        of[t][0] = study_page_last(p, (enum study_truth)t, 0).changed;
        of[t][1] = study_page_last(p, (enum study_truth)t, farthest).changed;
    }
    fprintf(p->stream,
            "<li><b>Changed experts:</b> in layer %.0f, of %u tokens, another set of experts is chosen than by float64 "
            "with the quantised weights for %.0f by <code>%s</code> and %.0f by <code>%s</code>. Against float64 with "
            "the original weights these are %.0f and %.0f, but most of them come from the weights' own errors and from "
            "experts that the router ranks nearly alike: they do not rank paths.</li>\n",
            c->model_layer[c->layers - 1], c->samples, of[STUDY_QUANTISED][0], p->names[0], of[STUDY_QUANTISED][1],
            p->names[farthest], of[STUDY_ORIGINAL][0], of[STUDY_ORIGINAL][1]);
}

void study_page_answers(const struct study_page *p)
{
    const struct study_case *c = p->c;
    fputs("<ul class=\"answers\">\n", p->stream);
    for (int t = STUDY_TRUTHS; t-- > 0;)
        closest(p, (enum study_truth)t);
    for (int t = STUDY_TRUTHS; t-- > 0;)
        quantised(p, (enum study_truth)t);
    double part;
    uint32_t farthest = 0;
    for (uint32_t i = 1; i < c->paths; i++)
        if (study_page_last(p, STUDY_ORIGINAL, i).relative_l2 >
            study_page_last(p, STUDY_ORIGINAL, farthest).relative_l2)
            farthest = i;
    uint32_t worst = worst_layer(p, STUDY_ORIGINAL, 0, &part);
    fprintf(p->stream,
            "<li><b>Layer that hurts most:</b> layer %.0f, which injects %.0f %% of the sum over layers of squared "
            "injected errors of <code>%s</code> against the original weights",
            c->model_layer[worst], 100.0 * part, p->names[0]);
    worst = worst_layer(p, STUDY_ORIGINAL, farthest, &part);
    fprintf(p->stream, "; for <code>%s</code>, the farthest path, layer %.0f with %.0f %%", p->names[farthest],
            c->model_layer[worst], 100.0 * part);
    worst = worst_layer(p, STUDY_QUANTISED, farthest, &part);
    fprintf(p->stream, ", and against the quantised weights layer %.0f with %.0f %%.</li>\n", c->model_layer[worst],
            100.0 * part);
    changed_experts(p, farthest);
    if (c->vocabulary)
        next_token(p);
    fputs("</ul>\n", p->stream);
}
