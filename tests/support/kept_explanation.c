/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/kept_explanation.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"

static char *seen;
static size_t bytes;
static FILE *stream;

void kept_line(const char *format, ...)
{
    if (!stream)
        stream = open_memstream(&seen, &bytes);
    assert_non_null(stream);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stream, format, arguments);
    va_end(arguments);
}

void kept_text(const char *text)
{
    kept_line("%s", text);
}

static char last[1024];
static unsigned times;

static void end_message(void)
{
    char line[sizeof last + 16];
    snprintf(line, sizeof line, "%u: %s\n", times, last);
    if (times)
        kept_text(line);
    times = 0;
}

void kept_message(const char *message, const char *folder)
{
    char without[sizeof last];
    const char *at = folder ? strstr(message, folder) : NULL;
    if (at)
        snprintf(without, sizeof without, "%.*sFOLDER%s", (int)(at - message), message, at + strlen(folder));
    else
        snprintf(without, sizeof without, "%s", message);
    if (strcmp(without, last))
        end_message();
    memcpy(last, without, sizeof last);
    times++;
}

void expect_kept_by_now(void **state)
{
    expect_kept_explanations(*state);
}

void kept_explanation(const struct explanation *e)
{
    kept_text("");
    if (!e) {
        fprintf(stream, "nothing\n");
        return;
    }
    fprintf(stream, "%s [%s]", e->text, e->kind);
    for (uint32_t i = 0; i < e->found_count; i++)
        fprintf(stream, "; %s: %s, %s, %s", e->words[i].stage, e->words[i].array, e->words[i].place,
                e->words[i].effect);
    for (uint32_t i = 0; i < e->also_count; i++)
        fprintf(stream, "; or %s", e->also[i].name);
    for (uint32_t i = 0; i < e->shown_count; i++)
        fprintf(stream, "; %s %.5g", e->shown[i].name, e->shown[i].explains);
    /* Products tell which effects were tried. A search without a finding may go on or not by the last bits of a BLAS.
     */
    fprintf(stream, "; %u findings in %.*g products\n", e->searched.findings, e->searched.findings ? 12 : 4,
            e->searched.products);
}

void expect_kept_explanations(const char *name)
{
    char path[4096], *kept;
    end_message();
    snprintf(path, sizeof path, "%s/tests/harness/kept/%s.txt", GB_SOURCE_DIR, name);
    assert_non_null(stream);
    assert_int_equal(fclose(stream), 0);
    stream = NULL;
    FILE *file = fopen(path, getenv("KEEP") ? "w+" : "r");
    assert_non_null(file);
    if (getenv("KEEP"))
        assert_int_equal(fwrite(seen, 1, bytes, file), bytes);
    rewind(file);
    kept = calloc(1, bytes + 2);
    assert_non_null(kept);
    size_t length = fread(kept, 1, bytes + 1, file);
    fclose(file);
    size_t same = 0;
    while (same < bytes && same < length && seen[same] == kept[same])
        same++;
    while (same > 0 && seen[same - 1] != '\n')
        same--;
    if (length != bytes || memcmp(seen, kept, bytes) != 0)
        fail_msg("%s: not as kept; if it is right: KEEP=1, and read git diff\nkept %.*s\nnow  %.*s", path,
                 (int)strcspn(kept + same, "\n"), kept + same, (int)strcspn(seen + same, "\n"), seen + same);
    free(kept);
    free(seen);
}
