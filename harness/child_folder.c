/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of a run in TMPDIR. It is locked while it is in use, so that a later run knows one that was left. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "harness/child.h"
#include "quant/quant.h"

static const char prefix[] = "gaugeblock-run-";
enum { RANDOM = 6 }; /* characters of a name behind the prefix */

static void remove_folder(const char *folder)
{
    DIR *directory = opendir(folder);
    if (!directory)
        return;
    for (struct dirent *entry; (entry = readdir(directory));)
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            unlinkat(dirfd(directory), entry->d_name, 0);
    closedir(directory);
    rmdir(folder);
}

/* Whether the folder is one of ours that nobody uses. One that was just made may not have been locked yet. */
static bool is_left(const char *path)
{
    enum { JUST_MADE_S = 10 };
    struct stat about;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0)
        return false;
    bool left = fstat(folder, &about) == 0 && about.st_uid == geteuid() && time(NULL) - about.st_mtime > JUST_MADE_S &&
                flock(folder, LOCK_EX | LOCK_NB) == 0;
    close(folder);
    return left;
}

static void remove_left(const char *temporary)
{
    DIR *directory = opendir(temporary);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        char path[4400];
        if (strncmp(entry->d_name, prefix, strlen(prefix)) || strlen(entry->d_name) != strlen(prefix) + RANDOM)
            continue;
        snprintf(path, sizeof path, "%s/%s", temporary, entry->d_name);
        if (is_left(path))
            remove_folder(path);
    }
    if (directory)
        closedir(directory);
}

enum gb_status child_folder_open(struct child_folder *folder, struct gb_error *error)
{
    static bool looked;
    const char *temporary = getenv("TMPDIR");
    if (!temporary || !temporary[0])
        temporary = "/tmp";
    if (!looked)
        remove_left(temporary);
    looked = true;
    child_hold_signals();
    snprintf(folder->path, sizeof folder->path, "%s/%sXXXXXX", temporary, prefix);
    if (!mkdtemp(folder->path)) {
        int reason = errno;
        child_release_signals();
        return gb_fail(error, GB_EIO, "%s: %s; set TMPDIR to a writable folder", folder->path, strerror(reason));
    }
    folder->lock = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->lock >= 0)
        flock(folder->lock, LOCK_EX | LOCK_NB);
    return GB_OK;
}

void child_folder_close(struct child_folder *folder)
{
    remove_folder(folder->path);
    if (folder->lock >= 0)
        close(folder->lock);
    child_release_signals();
}
