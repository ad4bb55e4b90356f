/* SPDX-License-Identifier: Apache-2.0 */
/* The fixtures that a command line names: files, and folders of them. docs/gates.md#suite. */
#ifndef GB_HARNESS_PROGRAM_FIXTURE_LIST_H
#define GB_HARNESS_PROGRAM_FIXTURE_LIST_H

#include <stdbool.h>
#include <stdint.h>

#include "gaugeblock.h"

/* In a folder: the files that are to be there, the first word of each line that does not begin with '#'. */
#define SUITE_LIST "suite.txt"

struct fixture_list {
    char **path;    /* [count], allocated */
    char **refused; /* [count], allocated: why there is nothing to read; NULL: it is a file to be read */
    uint32_t count;
};

/* Whether a file of a folder is taken for a fixture: NAME.h5 or NAME.hdf5, not hidden. */
bool is_fixture_name(const char *file);

/* The files in the sequence given, of a folder by name. A folder that cannot be read or has none, or a file that its
 * list misses, is one that is refused. GB_ENOMEM. */
enum gb_status fixture_list_new(const char *const *arguments, uint32_t count, struct fixture_list *list,
                                struct gb_error *error);
void fixture_list_free(struct fixture_list *list);

#endif
