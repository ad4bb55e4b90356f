/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <unistd.h>

#include "harness/progress.h"

void progress(const char *what, unsigned done, unsigned total)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K%s %u/%u", what, done, total);
}

void progress_done(void)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
}
