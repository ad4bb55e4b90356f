/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/json_text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool is_control(char c)
{
    return (unsigned char)c < ' ' || c == 0x7F;
}

json_t *record_string(const char *text)
{
    size_t plain = 0;
    while (text[plain] && !is_control(text[plain]))
        plain++;
    json_t *string = text[plain] ? NULL : json_string(text);
    if (string)
        return string;
    char *copy = strdup(text);
    if (!copy)
        return json_string("?");
    for (char *c = copy; *c; c++)
        if (is_control(*c))
            *c = *c == '\n' ? ' ' : '?';
    string = json_string(copy);
    for (char *c = copy; !string && *c; c++) /* not UTF-8 somewhere: keep what is ASCII */
        if ((unsigned char)*c > 0x7F)
            *c = '?';
    if (!string)
        string = json_string(copy);
    free(copy);
    return string;
}
