/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>

#include "harness/judge/judge.h"
#include "harness/judge/aggregate_tests.h"

static void worsen(struct judgement *j, enum verdict verdict, const char *format, va_list list)
{
    if (verdict_graver(verdict, j->verdict) == j->verdict)
        return;
    j->verdict = verdict;
    vsnprintf(j->reason, sizeof j->reason, format, list);
}

void judgement_worsen(struct judgement *j, enum verdict verdict, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    j->wrong |= verdict == VERDICT_FAIL;
    worsen(j, verdict, format, list);
    va_end(list);
}

/* Of how the subject behaved. */
static void misbehaved(struct judgement *j, enum verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void misbehaved(struct judgement *j, enum verdict verdict, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    worsen(j, verdict, format, list);
    va_end(list);
}

void judgement_of_sums(struct judgement *j, const struct statistics *sums, const char *of, bool rms, bool gain)
{
    for (enum family f = 0; f < FAMILIES; f++) {
        const struct family_result *r = &sums->family[f];
        if ((family_is_gain(f) ? gain : rms) && r->exceeding)
            judgement_worsen(
                j, VERDICT_FAIL,
                "%s%s: %llu of %llu sums lie beyond what rounding makes of them with probability %g; largest at layer "
                "%u, %s: %.3g times the limit",
                of, family_name(f), (unsigned long long)r->exceeding, (unsigned long long)r->count, sums->probability,
                r->layer, family_place(f, r, (char[64]){0}, 64), r->limit_ratio);
    }
}

void judgement_watch(struct judgement *j, const struct gb_kernel *kernel, const struct worker_checks *checks)
{
    if (checks->differing && !(kernel->flags & GB_NONDETERMINISTIC))
        misbehaved(j, VERDICT_NONDETERMINISTIC, "%llu elements differ between two runs on the same inputs; first: %s",
                   (unsigned long long)checks->differing, checks->where);
    if (checks->canary_broken)
        misbehaved(j, VERDICT_FAIL, "wrote outside a buffer: %s", checks->where);
    if (checks->input_changed)
        misbehaved(j, VERDICT_FAIL, "changed an input: %s", checks->where);
    if (checks->unwritten)
        judgement_worsen(j, VERDICT_FAIL, "%llu elements were never written; first: %s",
                         (unsigned long long)checks->unwritten, checks->where);
}
