/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that this run did not write. libhdf5 can crash on a damaged file, so a process of its own reads each file
 * first, with limits on time and memory: what kills that process costs one line, not the run.
 */
#ifndef GB_HARNESS_RUN_PROBE_H
#define GB_HARNESS_RUN_PROBE_H

#include "fixtures/fixtures.h"

enum { INPUT_TIMEOUT_S = 600 };

/* Each returns EXIT_PASS; EXIT_USAGE if the file is refused; EXIT_CRASH if reading it crashed or took longer than
 * timeout_s seconds. */
int input_fixture(const char *path, unsigned timeout_s, struct gb_fixture **fixture, struct gb_error *error);
int input_outputs(const char *path, const struct gb_fixture *fixture, unsigned timeout_s, struct gb_outputs **outputs,
                  struct gb_error *error);
/* The same of a quantiser's codes and scales. scales: their file where `path` is .npy; otherwise NULL. */
int input_codes(const char *path, const char *scales, const struct gb_fixture *fixture, unsigned timeout_s,
                struct gb_outputs **outputs, struct gb_error *error);
/* What a quantiser made of the vectors in the file vectors_path; scales: NULL, or of a .npy file. */
int input_vector_outputs(const char *path, const char *scales, const char *vectors_path,
                         const struct gb_vectors *vectors, struct gb_vector_outputs **outputs, struct gb_error *error);

/* Puts the file before an error that came up over it and does not name it. */
void input_name(const char *path, struct gb_error *error);

/* Child: `gaugeblock probe FIXTURE`, `gaugeblock probe OUTPUTS VECTORS SCALES`, or
 * `gaugeblock probe OUTPUTS LAYERS TOKENS HIDDEN INTERMEDIATE EXPERTS TOP_K RECIPE`, the recipe of
 * activations or "", or `gaugeblock probe OUTPUTS codes SCALES ROWS COLUMNS ELEMENT SCALE BLOCK LAYOUT`, the numbers
 * those of struct gb_quantisation. */
int probe_main(int argc, char **argv);

#endif
