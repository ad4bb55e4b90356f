/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The judge: one subject, one batch, all layers of one fixture -> one case of the record.
 * docs/gates.md says what each lane means.
 */
#ifndef GB_HARNESS_JUDGE_JUDGE_H
#define GB_HARNESS_JUDGE_JUDGE_H

#include <jansson.h>

#include "harness/judge/baseline.h"
#include "harness/judge/policy.h"
#include "harness/run/verdict.h"
#include "harness/run/worker.h"

struct judgement {
    enum verdict verdict;
    char reason[768]; /* one line; empty for PASS */
    bool wrong;       /* what the subject wrote fails, not just how it behaved */
    json_t *lanes;    /* the case's "lanes" */
    json_t *metrics;  /* the case's "metrics" */
};

/* Keeps the gravest verdict and the reason that came with it first; of what the subject wrote. */
void judgement_worsen(struct judgement *judgement, enum verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* What sums of errors showed, of the families that bind. of: what they are sums of, with ", " behind it, or "". */
struct statistics;
void judgement_of_sums(struct judgement *judgement, const struct statistics *sums, const char *of, bool rms, bool gain);
/* What watching the subject's process showed. */
void judgement_watch(struct judgement *judgement, const struct gb_kernel *kernel, const struct worker_checks *checks);

/*
 * kernel: what the subject claims to be. outputs: what it wrote for the first outputs->shape.tokens tokens.
 * checks: what watching it showed, or NULL for outputs that came as a file.
 */
enum gb_status judge(struct baseline *baseline, const struct gb_kernel *kernel, const struct gb_outputs *outputs,
                     const struct worker_checks *checks, const struct gate *gate, struct judgement *judgement,
                     struct gb_error *error);

/* What the subject's residual stream shows, of outputs with a stack; into judgement->metrics. */
enum gb_status judge_drift(const struct baseline *baseline, const struct gb_kernel *kernel,
                           const struct gb_outputs *outputs, struct judgement *judgement, struct gb_error *error);

#endif
