/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>

#include "harness/judge.h"

void judgement_worsen(struct judgement *j, enum verdict verdict, const char *format, ...)
{
    if (verdict_graver(verdict, j->verdict) == j->verdict)
        return;
    va_list list;
    va_start(list, format);
    j->verdict = verdict;
    vsnprintf(j->reason, sizeof j->reason, format, list);
    va_end(list);
}

void judgement_watch(struct judgement *j, const struct gb_kernel *kernel, const struct worker_checks *checks)
{
    if (checks->differing && !(kernel->flags & GB_NONDETERMINISTIC))
        judgement_worsen(j, VERDICT_NONDETERMINISTIC,
                         "%llu elements differ between two runs on the same inputs; first: %s",
                         (unsigned long long)checks->differing, checks->where);
    if (checks->canary_broken)
        judgement_worsen(j, VERDICT_FAIL, "wrote outside a buffer: %s", checks->where);
    if (checks->input_changed)
        judgement_worsen(j, VERDICT_FAIL, "changed an input: %s", checks->where);
    if (checks->unwritten)
        judgement_worsen(j, VERDICT_FAIL, "%llu elements were never written; first: %s",
                         (unsigned long long)checks->unwritten, checks->where);
}
