/* SPDX-License-Identifier: Apache-2.0 */
/* The files that a command writes: none of those that it reads, and each another one. */
#ifndef GB_HARNESS_RUN_OUTPUT_GUARD_H
#define GB_HARNESS_RUN_OUTPUT_GUARD_H

#include "gaugeblock.h"

/* The file to write is none of the inputs, by any name. inputs: [count], NULL where there is none. GB_EINVAL. */
enum gb_status output_guard(const char *path, const char *const *inputs, uint32_t count, struct gb_error *error);
/* No two of the files to write are one, also where they are not there yet. outputs: [count], NULL where there is none.
 * GB_EINVAL. */
enum gb_status output_guard_each(const char *const *outputs, uint32_t count, struct gb_error *error);
/* A file can be written there: asked before what takes long. path: NULL is fine. GB_EIO. */
enum gb_status output_guard_writable(const char *path, struct gb_error *error);
/* The file to write by a path that stays right whatever happens to the working folder, to be kept as long as the
 * process lives; it is a regular file, or none yet. GB_EIO, GB_ENOMEM. */
enum gb_status output_begin(const char *path, const char **found, struct gb_error *error);
/* Makes room for it: what has taken its place or that of one of its folders since, or keeps it from being written, is
 * put aside, into PLACE.XXXXXX, or allowed to be. What cannot be done shows when it is written. */
void output_make_room(const char *found);
/* Nor one of a checkpoint's files, which are the .json and .safetensors of its folder. GB_EINVAL. */
enum gb_status output_guard_checkpoint(const char *path, const char *folder, struct gb_error *error);

#endif
