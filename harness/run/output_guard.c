/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "harness/run/output_guard.h"
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
