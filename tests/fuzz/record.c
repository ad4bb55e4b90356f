/* SPDX-License-Identifier: Apache-2.0 */
/* `gaugeblock diff` of two records, with a NUL between them: an exit code of its own, and at most one line of error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/program/command.h"
#include "harness/run/verdict.h"
#include "tests/fuzz/fuzz.h"

extern const struct command command_diff;

/* Two names on stderr are 2 x 200 bytes at most. */
static char said[4096];

static int diff(const char *before, const char *now)
{
    char *argv[] = {"diff", (char *)before, (char *)now, NULL};
    static FILE *nowhere;
    if (!nowhere && !(nowhere = fopen("/dev/null", "w")))
        abort();
    FILE *output = stdout, *errors = stderr;
    memset(said, 0, sizeof said);
    stdout = nowhere;
    stderr = fmemopen(said, sizeof said, "w");
    if (!stderr)
        abort();
    int code = command_diff.run(3, argv);
    fclose(stderr);
    stdout = output;
    stderr = errors;
    return code;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    const uint8_t *end = count ? memchr(bytes, 0, count) : NULL;
    size_t first = end ? (size_t)(end - bytes) : count, second = end ? count - first - 1 : 0;
    const char *before = fuzz_file(0, bytes, first), *now = fuzz_file(1, bytes + count - second, second);
    int code = diff(before, end ? now : before);
    const char *line = strchr(said, '\n');
    if (code == EXIT_USAGE ? !line || line[1] || !strstr(said, fuzz_folder()) : said[0] != 0)
        abort();
    if (code != EXIT_PASS && code != EXIT_FAIL && code != EXIT_USAGE && code != EXIT_NOT_RUN)
        abort();
    return 0;
}
