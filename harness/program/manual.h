/* SPDX-License-Identifier: Apache-2.0 */
/* Manual pages and shells' completion, written from the commands' option tables: nothing of them is written twice. */
#ifndef GB_HARNESS_PROGRAM_MANUAL_H
#define GB_HARNESS_PROGRAM_MANUAL_H

#include <stdio.h>

#include "harness/program/command.h"

/* gaugeblock(1), and gaugeblock-COMMAND(1), in the man macros of roff. */
void manual_program(FILE *stream, const struct command *const *commands, size_t count);
void manual_command(FILE *stream, const struct command *command);
/* Scripts that complete commands, options, files, and names of kernels and models. */
void completion_bash(FILE *stream, const struct command *const *commands, size_t count);
void completion_zsh(FILE *stream, const struct command *const *commands, size_t count);
void completion_fish(FILE *stream, const struct command *const *commands, size_t count);
/* Writes all of these into a folder that exists: man1/, bash/, zsh/ and fish/. */
int manual_write(const struct command *const *commands, size_t count, const char *folder);

#endif
