/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/program/fixture_list.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "harness/run/text.h"
#include "quant/quant.h"

enum { LIST_BYTES = 1 << 16 };

static enum gb_status no_memory(struct gb_error *error)
{
    return gb_fail(error, GB_ENOMEM, "no memory for the list of fixtures");
}

bool is_fixture_name(const char *file)
{
    const char *dot = strrchr(file, '.');
    return dot && dot != file && file[0] != '.' && (!strcmp(dot, ".h5") || !strcmp(dot, ".hdf5"));
}

/* path, refused: taken over; refused may be NULL. */
static enum gb_status add(struct fixture_list *list, char *path, char *refused, struct gb_error *error)
{
    char **paths = reallocarray(list->path, list->count + 1, sizeof *paths);
    list->path = paths ? paths : list->path;
    char **reasons = reallocarray(list->refused, list->count + 1, sizeof *reasons);
    list->refused = reasons ? reasons : list->refused;
    if (!path || !paths || !reasons) {
        free(path);
        free(refused);
        return no_memory(error);
    }
    list->path[list->count] = path;
    list->refused[list->count++] = refused;
    return GB_OK;
}

static enum gb_status refuse(struct fixture_list *list, const char *path, struct gb_error *error, const char *format,
                             ...) __attribute__((format(printf, 4, 5)));
static enum gb_status refuse(struct fixture_list *list, const char *path, struct gb_error *error, const char *format,
                             ...)
{
    char *reason = NULL;
    va_list values;
    va_start(values, format);
    int length = vasprintf(&reason, format, values);
    va_end(values);
    return length < 0 ? no_memory(error) : add(list, strdup(path), reason, error);
}

static bool is_folder(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static char *inside(const char *folder, const char *file)
{
    size_t length = strlen(folder);
    char *path;
    return asprintf(&path, "%s%s%s", folder, length && folder[length - 1] == '/' ? "" : "/", file) < 0 ? NULL : path;
}

static int choose(const struct dirent *entry)
{
    return is_fixture_name(entry->d_name);
}

static int compare(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static bool has(struct dirent *const *entries, int count, const char *file)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(entries[i]->d_name, file))
            return true;
    return false;
}

/* Refuses what the folder's list has and the folder has not. text: the list. */
static enum gb_status check_list(struct fixture_list *list, const char *folder, char *text,
                                 struct dirent *const *entries, int count, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    char *rest;
    for (char *line = strtok_r(text, "\n", &rest); status == GB_OK && line; line = strtok_r(NULL, "\n", &rest)) {
        line[strcspn(line, " \t\r")] = '\0';
        if (!line[0] || line[0] == '#' || has(entries, count, line))
            continue;
        char *path = inside(folder, line);
        status = path ? refuse(list, path, error,
                               "%s: is in " SUITE_LIST ", but not there; make the suite again, or take its line out of "
                               "that file",
                               path_end(path))
                      : no_memory(error);
        free(path);
    }
    return status;
}

/* The folder's list, if it has one. */
static enum gb_status read_list(struct fixture_list *list, const char *folder, struct dirent *const *entries, int count,
                                struct gb_error *error)
{
    struct stat file;
    char *path = inside(folder, SUITE_LIST), *text = calloc(1, LIST_BYTES + 1);
    enum gb_status status = path && text ? GB_OK : no_memory(error);
    if (status == GB_OK && lstat(path, &file) == 0) {
        FILE *stream = stat(path, &file) == 0 && S_ISREG(file.st_mode) ? fopen(path, "re") : NULL;
        size_t bytes = stream ? fread(text, 1, LIST_BYTES + 1, stream) : 0;
        bool good = stream && !ferror(stream) && bytes <= LIST_BYTES && strlen(text) == bytes;
        status =
            good ? check_list(list, folder, text, entries, count, error)
                 : refuse(list, path, error, "%s: is no list of fixtures that can be read; remove it", path_end(path));
        if (stream)
            fclose(stream);
    }
    free(path);
    free(text);
    return status;
}

static enum gb_status add_folder(struct fixture_list *list, const char *folder, struct gb_error *error)
{
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, choose, compare);
    uint32_t before = list->count;
    if (count < 0)
        return errno == ENOMEM
                   ? no_memory(error)
                   : refuse(list, folder, error, "%s: cannot read this folder: %s", path_end(folder), strerror(errno));
    enum gb_status status = GB_OK;
    for (int i = 0; status == GB_OK && i < count; i++) {
        char *path = inside(folder, entries[i]->d_name);
        if (path && is_folder(path))
            free(path);
        else
            status = add(list, path, NULL, error);
    }
    if (status == GB_OK)
        status = read_list(list, folder, entries, count, error);
    if (status == GB_OK && list->count == before)
        status =
            refuse(list, folder, error, "%s: a folder without fixtures (*.h5); gaugeblock make DIR --suite writes some",
                   path_end(folder));
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
    return status;
}

enum gb_status fixture_list_new(const char *const *arguments, uint32_t count, struct fixture_list *list,
                                struct gb_error *error)
{
    enum gb_status status = GB_OK;
    *list = (struct fixture_list){0};
    for (uint32_t i = 0; status == GB_OK && i < count; i++)
        status = is_folder(arguments[i]) ? add_folder(list, arguments[i], error)
                                         : add(list, strdup(arguments[i]), NULL, error);
    return status;
}

void fixture_list_free(struct fixture_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        free(list->path[i]);
        free(list->refused[i]);
    }
    free(list->path);
    free(list->refused);
}
