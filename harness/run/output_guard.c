/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/run/output_guard.h"
#include "harness/run/text.h"
#include "quant/quant.h"

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static enum gb_status refuse(const char *path, const char *input, struct gb_error *error)
{
    return gb_fail(error, GB_EINVAL, "%.200s: is an input of this command (%.200s); name another file to write", path,
                   input);
}

enum gb_status output_guard(const char *path, const char *const *inputs, uint32_t count, struct gb_error *error)
{
    struct stat target, input;
    if (stat(path, &target))
        return GB_OK;
    for (uint32_t i = 0; i < count; i++)
        if (inputs[i] && stat(inputs[i], &input) == 0 && same_file(&target, &input))
            return refuse(path, inputs[i], error);
    return GB_OK;
}

/* The folder that a file lies in, or would; its name in there. text: [PATH_MAX]. */
static const char *folder_of(const char *path, char *text, const char **name)
{
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    snprintf(text, PATH_MAX, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    return text;
}

static bool same_output(const char *a, const char *b)
{
    struct stat of_a, of_b;
    const char *name_a, *name_b;
    if (stat(a, &of_a) == 0 && stat(b, &of_b) == 0)
        return same_file(&of_a, &of_b) && S_ISREG(of_a.st_mode);
    char folder_a[PATH_MAX], folder_b[PATH_MAX];
    if (stat(folder_of(a, folder_a, &name_a), &of_a) || stat(folder_of(b, folder_b, &name_b), &of_b))
        return false;
    return same_file(&of_a, &of_b) && !strcmp(name_a, name_b);
}

enum gb_status output_guard_each(const char *const *outputs, uint32_t count, struct gb_error *error)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (outputs[i] && outputs[j] && same_output(outputs[i], outputs[j]))
                return gb_fail(error, GB_EINVAL, "%.200s: is to be written twice (%.200s); name another file",
                               outputs[i], outputs[j]);
    return GB_OK;
}

enum gb_status output_guard_writable(const char *path, struct gb_error *error)
{
    char folder[PATH_MAX];
    const char *name;
    struct stat target;
    if (!path)
        return GB_OK;
    const bool there = stat(path, &target) == 0;
    if (there && S_ISDIR(target.st_mode))
        errno = EISDIR;
    else if (there ? !access(path, W_OK) : *path && !access(folder_of(path, folder, &name), W_OK | X_OK))
        return GB_OK;
    return gb_fail(error, GB_EIO, "%s: cannot be written: %s", path_end(path), strerror(errno));
}

enum gb_status output_begin(const char *path, const char **found, struct gb_error *error)
{
    char folder[PATH_MAX], absolute[PATH_MAX];
    const char *name;
    struct stat target;
    char *joined;
    if (lstat(path, &target) == 0 && !S_ISREG(target.st_mode))
        return gb_fail(error, GB_EIO, "%s: is no regular file; name another", path_end(path));
    enum gb_status status = output_guard_writable(path, error);
    if (status != GB_OK)
        return status;
    if (!realpath(folder_of(path, folder, &name), absolute))
        return gb_fail(error, GB_EIO, "%s: cannot be written: %s", path_end(path), strerror(errno));
    if (asprintf(&joined, "%s/%s", strcmp(absolute, "/") ? absolute : "", name) < 0)
        return gb_fail(error, GB_ENOMEM, "%s: no memory for its name", path_end(path));
    *found = joined;
    return GB_OK;
}

/* Renames it to where nothing is. */
static void put_aside(const char *path)
{
    char aside[PATH_MAX + 8];
    struct stat about;
    int file;
    snprintf(aside, sizeof aside, "%s.XXXXXX", path);
    if (lstat(path, &about))
        return;
    if (S_ISDIR(about.st_mode) && mkdtemp(aside))
        rename(path, aside);
    else if (S_ISREG(about.st_mode) && (file = mkstemp(aside)) >= 0)
        rename(path, aside), close(file);
    else
        unlink(path); /* a link or a pipe holds nothing */
}

static void make_folder(const char *path)
{
    char parent[PATH_MAX];
    struct stat about;
    if (stat(path, &about) == 0 && S_ISDIR(about.st_mode)) {
        if (access(path, W_OK | X_OK))
            chmod(path, about.st_mode | S_IRWXU);
        return;
    }
    snprintf(parent, sizeof parent, "%.*s", (int)(strrchr(path, '/') - path), path);
    if (parent[0])
        make_folder(parent);
    put_aside(path);
    mkdir(path, 0777);
}

void output_make_room(const char *found)
{
    char folder[PATH_MAX];
    struct stat target;
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(found, '/') - found), found);
    if (folder[0])
        make_folder(folder);
    if (lstat(found, &target) == 0 && !S_ISREG(target.st_mode))
        put_aside(found);
}

static bool of_checkpoint(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && (!strcmp(dot, ".json") || !strcmp(dot, ".safetensors"));
}

enum gb_status output_guard_checkpoint(const char *path, const char *folder, struct gb_error *error)
{
    struct stat target, input;
    DIR *directory = stat(path, &target) ? NULL : opendir(folder);
    enum gb_status status = GB_OK;
    for (struct dirent *entry; directory && status == GB_OK && (entry = readdir(directory));)
        if (of_checkpoint(entry->d_name) && fstatat(dirfd(directory), entry->d_name, &input, 0) == 0 &&
            same_file(&target, &input))
            status = refuse(path, entry->d_name, error);
    if (directory)
        closedir(directory);
    return status;
}
