/* SPDX-License-Identifier: Apache-2.0 */
/* The last mile: final norm and head on the streams behind the last layer, in float64. */
#include <math.h>
#include <stdlib.h>

#include "harness/study/study.h"

const char *study_against_name(enum study_against against)
{
    static const char *const names[] = {"quantised", "original", "bf16.fma32"};
    return names[against];
}

/* One token's logits of all streams. values: scratch of a thread. logits: [streams, vocabulary]; normed: [streams,
 * hidden] */
static enum gb_status logits_of(const struct gb_head *head, const double *normed, uint32_t streams, double *logits,
                                struct gb_error *error)
{
    enum gb_status status = GB_OK;
#pragma omp parallel
    {
        float *row = malloc(sizeof *row * head->hidden);
#pragma omp for
        for (uint32_t w = 0; w < head->vocabulary; w++) {
            if (row)
                gb_head_row(head, w, row);
            for (uint32_t s = 0; row && s < streams; s++) {
                double sum = 0.0;
                for (uint32_t i = 0; i < head->hidden; i++)
                    sum += normed[(size_t)s * head->hidden + i] * (double)row[i];
                logits[(size_t)s * head->vocabulary + w] = sum;
            }
        }
        if (!row)
#pragma omp critical
            status = gb_fail(error, GB_ENOMEM, "no memory for a row of the head");
        free(row);
    }
    return status;
}

/* Logits to logarithms of probabilities; the most probable word, the first of equals. */
static uint32_t log_softmax(double *logits, uint32_t vocabulary)
{
    uint32_t top = 0;
    double sum = 0.0;
    for (uint32_t w = 1; w < vocabulary; w++)
        if (logits[w] > logits[top])
            top = w;
    const double most = logits[top];
    for (uint32_t w = 0; w < vocabulary; w++)
        sum += exp(logits[w] - most);
    for (uint32_t w = 0; w < vocabulary; w++)
        logits[w] -= most + log(sum);
    return top;
}

/* Of q from p, both logarithms, in nats. */
static double divergence(const double *p, const double *q, uint32_t vocabulary)
{
    double sum = 0.0;
    for (uint32_t w = 0; w < vocabulary; w++)
        sum += exp(p[w]) * (p[w] - q[w]);
    return sum;
}

enum gb_status study_head(struct study_case *c, const struct study_end *end, uint32_t seed, const double *state,
                          struct gb_error *error)
{
    const uint32_t streams = c->paths + STUDY_TRUTHS, hidden = c->shape.hidden, vocabulary = c->vocabulary;
    double *normed = malloc(sizeof *normed * streams * hidden);     /* [streams, hidden] */
    double *logits = malloc(sizeof *logits * streams * vocabulary); /* [streams, vocabulary] */
    uint32_t top[STUDY_PATHS + STUDY_TRUTHS];
    enum gb_status status =
        normed && logits ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for logits of %u words", vocabulary);
    for (uint32_t n = 0; status == GB_OK && n < c->shape.tokens; n++) {
        for (uint32_t s = 0; s < streams; s++)
            gb_rms_norm(state + ((size_t)s * c->shape.tokens + n) * hidden, end->head->norm, hidden, end->epsilon,
                        normed + (size_t)s * hidden);
        status = logits_of(end->head, normed, streams, logits, error);
        for (uint32_t s = 0; status == GB_OK && s < streams; s++)
            top[s] = log_softmax(logits + (size_t)s * vocabulary, vocabulary);
        for (uint32_t a = 0; status == GB_OK && a < STUDY_AGAINST; a++)
            for (uint32_t p = 0; p < c->paths; p++) { /* streams: both truths, then the paths, bf16.fma32 first */
                size_t at = (size_t)p * c->samples + seed * c->shape.tokens + n;
                c->head[a].kl[at] = divergence(logits + (size_t)a * vocabulary,
                                               logits + (size_t)(STUDY_TRUTHS + p) * vocabulary, vocabulary);
                c->head[a].same_top[at] = top[a] == top[STUDY_TRUTHS + p];
            }
    }
    free(normed);
    free(logits);
    return status;
}
