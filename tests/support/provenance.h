/* SPDX-License-Identifier: Apache-2.0 */
/* What every record in docs/results/ says about itself. */
#ifndef GB_TESTS_SUPPORT_PROVENANCE_H
#define GB_TESTS_SUPPORT_PROVENANCE_H

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "gb_commit.h"

/* The CPU's name, as Linux knows it. */
static inline void cpu_name(char *name, size_t size)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(name, size, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strncmp(line, "model name", 10) ? NULL : strchr(line, ':');
        if (value) {
            value[strcspn(value, "\"\\\n")] = '\0';
            snprintf(name, size, "%s", value + 2);
            break;
        }
    }
    if (file)
        fclose(file);
}

/* The first members of a JSON object: command, date (UTC), commit of the build, CPU. */
static inline void print_provenance(FILE *out, const char *schema, const char *command)
{
    char date[16], cpu[128];
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &utc));
    cpu_name(cpu, sizeof cpu);
    fprintf(out, "\"schema\": \"%s\", \"command\": \"%s\", \"date\": \"%s\", \"commit\": \"%s\", \"cpu\": \"%s\"",
            schema, command, date, GB_COMMIT, cpu);
}

#endif
