/* SPDX-License-Identifier: Apache-2.0 */
/* Any JSON record of the program: what it says of itself, then every list of objects as a table. */
#include <stdlib.h>
#include <string.h>

#include "harness/report/html.h"

enum { HEADS = 40, TEXT = 160, DEPTH = 3 };

static void value_text(const json_t *value, char text[TEXT])
{
    char *dumped;
    if (json_is_string(value))
        snprintf(text, TEXT, "%s", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(text, TEXT, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, TEXT, "%.6g", json_real_value(value));
    else if (json_is_null(value) || !value)
        text[0] = '\0';
    else if ((dumped = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT))) {
        snprintf(text, TEXT, "%s", dumped);
        if (strlen(dumped) >= TEXT)
            memcpy(text + TEXT - 4, "...", 4);
        free(dumped);
    }
}

/* Columns of a list's rows: keys of what is no list, those of objects inside with a point between. */
struct columns {
    char name[HEADS][TEXT];
    int count;
};

static void add_columns(const json_t *object, const char *prefix, int depth, struct columns *columns)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        char name[TEXT];
        bool known = false;
        snprintf(name, sizeof name, "%s%s%s", prefix, *prefix ? "." : "", key);
        if (json_is_object(value) && depth < DEPTH) {
            add_columns(value, name, depth + 1, columns);
            continue;
        }
        if (json_is_array(value) && json_array_size(value) && json_is_object(json_array_get(value, 0)))
            continue; /* a table of its own */
        for (int i = 0; i < columns->count; i++)
            known |= !strcmp(columns->name[i], name);
        if (!known && columns->count < HEADS)
            memcpy(columns->name[columns->count++], name, sizeof name);
    }
}

/* The value at "a.b.c". */
static const json_t *at(const json_t *object, const char *path)
{
    char key[TEXT];
    for (const char *dot; object && (dot = strchr(path, '.')) && !json_object_get(object, path); path = dot + 1) {
        snprintf(key, sizeof key, "%.*s", (int)(dot - path), path);
        object = json_object_get(object, key);
    }
    return json_object_get(object, path);
}

static void tables_in(FILE *stream, const char *name, const json_t *value, int depth);

static void table(FILE *stream, const char *name, const json_t *list)
{
    struct columns *columns = calloc(1, sizeof *columns);
    const char *row[HEADS];
    char(*cells)[TEXT] = malloc(sizeof *cells * HEADS);
    for (size_t i = 0; columns && i < json_array_size(list); i++)
        add_columns(json_array_get(list, i), "", 0, columns);
    if (columns && cells && columns->count) {
        for (int i = 0; i < columns->count; i++)
            row[i] = columns->name[i];
        html_table_begin(stream, name, row, columns->count);
        for (size_t r = 0; r < json_array_size(list); r++) {
            for (int i = 0; i < columns->count; i++) {
                value_text(at(json_array_get(list, r), columns->name[i]), cells[i]);
                row[i] = cells[i];
            }
            html_row(stream, row, columns->count);
        }
        html_table_end(stream);
    }
    free(columns);
    free(cells);
}

/* The lists of objects in a value, and those in their rows where these are few. */
static void tables_in(FILE *stream, const char *name, const json_t *value, int depth)
{
    const char *key;
    json_t *inner;
    char path[2 * TEXT];
    if (json_is_array(value) && json_array_size(value) && json_is_object(json_array_get(value, 0))) {
        table(stream, name, value);
        for (size_t i = 0; depth < DEPTH && json_array_size(value) <= 8 && i < json_array_size(value); i++) {
            snprintf(path, sizeof path, "%.150s %zu", name, i);
            tables_in(stream, path, json_array_get(value, i), depth + 1);
        }
    } else if (json_is_object(value)) {
        json_object_foreach((json_t *)value, key, inner)
        {
            snprintf(path, sizeof path, "%.150s%s%.150s", name, *name ? ": " : "", key);
            tables_in(stream, path, inner, depth + 1);
        }
    }
}

/* What is neither a list nor an object, and what objects at the top hold. */
static void facts(FILE *stream, const json_t *record)
{
    static const char *const heads[] = {"", "value"};
    struct columns *columns = calloc(1, sizeof *columns);
    if (!columns)
        return;
    add_columns(record, "", DEPTH - 2, columns);
    fputs("<details><summary>Run</summary>", stream);
    html_table_begin(stream, "Run", heads, 2);
    for (int i = 0; i < columns->count; i++) {
        char text[TEXT];
        value_text(at(record, columns->name[i]), text);
        html_row(stream, (const char *const[]){columns->name[i], text}, 2);
    }
    html_table_end(stream);
    fputs("</details>\n", stream);
    free(columns);
}

void html_record(FILE *stream, const char *name, const json_t *record)
{
    const char *schema = json_string_value(json_object_get(record, "schema"));
    const char *verdict = json_string_value(json_object_get(record, "verdict"));
    fputs("<h2>", stream);
    html_text(stream, schema ? schema : "Record");
    fputs(": ", stream);
    html_text(stream, name);
    fputs("</h2>\n", stream);
    if (verdict) {
        fputs("<p>Verdict <b class=\"", stream);
        html_text(stream, verdict);
        fputs("\">", stream);
        html_text(stream, verdict);
        fputs("</b></p>\n", stream);
    }
    html_bench(stream, record);
    html_ranks(stream, record);
    tables_in(stream, "", record, 0);
    facts(stream, record);
}
