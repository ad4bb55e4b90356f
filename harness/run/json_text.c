/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/json_text.h"

#include <stdlib.h>
#include <string.h>

json_t *record_string(const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        return json_string("?");
    for (char *c = copy; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7F)
            *c = *c == '\n' ? ' ' : '?';
    json_t *string = json_string(copy);
    for (char *c = copy; !string && *c; c++) /* not UTF-8 somewhere: keep what is ASCII */
        if ((unsigned char)*c > 0x7F)
            *c = '?';
    if (!string)
        string = json_string(copy);
    free(copy);
    return string;
}
