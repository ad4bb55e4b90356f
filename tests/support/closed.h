/* SPDX-License-Identifier: Apache-2.0 */
/* Files that a test's calls should have closed. */
#ifndef GB_TESTS_SUPPORT_CLOSED_H
#define GB_TESTS_SUPPORT_CLOSED_H

#include <dirent.h>
#include <unistd.h>

#include "tests/support/check.h"

/* No file below *state, a folder's name, is mapped or has a descriptor. */
static inline void all_is_closed(void **state)
{
    const char *folder = *state;
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    DIR *descriptors = opendir("/proc/self/fd");
    assert_true(maps && descriptors);
    while (fgets(line, sizeof line, maps))
        if (strstr(line, folder))
            fail_msg("mapped: %s", line);
    fclose(maps);
    for (struct dirent *entry; (entry = readdir(descriptors));) {
        ssize_t length = readlinkat(dirfd(descriptors), entry->d_name, line, sizeof line - 1);
        line[length > 0 ? length : 0] = '\0';
        if (strstr(line, folder))
            fail_msg("open: %s", line);
    }
    closedir(descriptors);
}

/* Behind a group's other tests. FOLDER: an array of characters. */
#define ALL_CLOSED(FOLDER)                                                                                             \
    {                                                                                                                  \
        .name = "all is closed", .test_func = all_is_closed, .initial_state = FOLDER                                   \
    }

#endif
