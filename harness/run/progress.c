/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <stdio.h>
#include <unistd.h>

#include "harness/run/progress.h"

static struct part {
    double from, to; /* of the run */
} parts[16] = {{0.0, 1.0}};
static unsigned depth;
static double furthest;

void progress_enter(double from, double to)
{
    const struct part *outer = &parts[depth++];
    assert(depth < sizeof parts / sizeof *parts);
    double length = outer->to - outer->from;
    parts[depth] = (struct part){outer->from + from * length, outer->from + to * length};
}

void progress_leave(void)
{
    depth--;
}

void progress(const char *what, double done)
{
    const struct part *part = &parts[depth];
    double now = part->from + (part->to - part->from) * done;
    furthest = now > furthest ? now : furthest;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K%3.0f %%  %s", 100.0 * furthest, what);
}

void progress_item(const char *what, unsigned item, unsigned count)
{
    progress(what, (double)item / count);
    if (count > 1 && isatty(STDERR_FILENO))
        fprintf(stderr, " %u/%u", item + 1, count);
}

void progress_done(void)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
}
