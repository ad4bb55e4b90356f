/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fuzz target is one file with LLVMFuzzerTestOneInput, as libFuzzer calls it; replay.c calls it with a kept corpus
 * where there is no libFuzzer. Readers take paths, so an input becomes a file.
 */
#ifndef GB_TESTS_FUZZ_H
#define GB_TESTS_FUZZ_H

#include <stdio.h>

#include "fixtures/fixtures.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

/* The path of file `slot` (0 .. FUZZ_FILES-1), which now holds these bytes and nothing else. */
enum { FUZZ_FILES = 3 };
const char *fuzz_file(int slot, const uint8_t *bytes, size_t count);
/* A folder that is removed when the process ends. */
const char *fuzz_folder(void);

/* A message is one line that names the file; anything else ends the process. */
void fuzz_check(enum gb_status status, const struct gb_error *error);
/* Reads every byte, so that a sanitiser sees one that is not there, into a hash. */
void fuzz_touch(const void *bytes, size_t count);
extern uint64_t fuzz_touched;
/* Where messages go as well; NULL: nowhere. */
extern FILE *fuzz_answers;

/* What a failed reader made, which is nothing. */
void fuzz_nothing(const void *made);
/* Touches the hash of a fixture's inputs, x, and truth; of NULL nothing. */
void fuzz_touch_fixture(struct gb_fixture *fixture);

/* What edits can be made to: paths of objects, and names of attributes. */
struct fuzz_names {
    const char *const *objects;
    uint32_t object_count;
    const char *const *attributes;
    uint32_t attribute_count;
};
/* Makes the edits that the bytes say to an HDF5 file. */
void fuzz_edit(const char *path, const struct fuzz_names *names, const uint8_t *bytes, size_t count);

/* A small valid fixture of NVFP4 weights: 1 layer, 2 tokens, hidden 32, intermediate 16, 3 experts, top-2. */
struct gb_fixture *fuzz_fixture(void);
/* The bytes of its file, which the reader takes. */
const uint8_t *fuzz_good_file(size_t *count);

#endif
