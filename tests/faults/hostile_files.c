/* SPDX-License-Identifier: Apache-2.0 */
/* What a hostile library does to files that the judge uses: HOSTILE_RECORD names the record that will be written, and
 * TMPDIR the folder for what is short-lived. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/faults/hostile.h"

/* Leaves a file there. */
static void write_file(const char *path, const char *text)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (file < 0 || write(file, text, strlen(text)) != (ssize_t)strlen(text))
        return;
    close(file);
}

/* The record, as it is to look, before it is written; JUnit's file likewise. */
static void spoil_record(const char *record)
{
    char folder[PATH_MAX], inside[PATH_MAX + 8], junit[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", record);
    dirname(folder);
    snprintf(junit, sizeof junit, "%.*sxml", (int)strlen(record) - 4, record);
    snprintf(inside, sizeof inside, "%s/inside", record);
    unlink(record);
    if (!strcmp(what, "record-forged"))
        write_file(record, "{\"verdict\": \"PASS\"}");
    if (!strcmp(what, "record-pipe"))
        mkfifo(record, 0666);
    if (!strcmp(what, "record-folder") && mkdir(record, 0777) == 0)
        write_file(inside, "");
    if (!strcmp(what, "record-link") && (symlink("/nowhere", record) || symlink("/dev/null", junit)))
        return;
    if (!strcmp(what, "record-gone"))
        rmdir(folder);
    if (!strcmp(what, "record-file") && rmdir(folder) == 0)
        write_file(folder, "");
    if (!strcmp(what, "record-locked"))
        chmod(folder, 0);
}

void hostile_files(void)
{
    const char *record = getenv("HOSTILE_RECORD"), *folder = getenv("TMPDIR");
    if (record && !strncmp(what, "record-", 7))
        spoil_record(record);
    if (!folder || strncmp(what, "folder-", 7))
        return;
    if (!strcmp(what, "folder-locked"))
        chmod(folder, 0);
    else if (rmdir(folder) == 0 && !strcmp(what, "folder-file"))
        write_file(folder, "");
}
