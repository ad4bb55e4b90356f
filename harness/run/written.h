/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a kernel wrote, on its way from the process that ran it: the arrays of its operator's row that it has, those of
 * each layer one behind the other, then the residual stream, bytes as they lie in memory. How many there are both sides
 * know, so that nothing in the file has to be believed.
 */
#ifndef GB_HARNESS_RUN_WRITTEN_H
#define GB_HARNESS_RUN_WRITTEN_H

#include "fixtures/fixtures.h"

/* outputs: of the row's new_outputs. file: empty. GB_EIO. */
enum gb_status written_send(int file, const struct gb_kernel *kernel, const struct gb_fixture *fixture,
                            const struct gb_outputs *outputs, struct gb_error *error);
/* The same of `tokens` tokens, made. GB_EFORMAT: the file is shorter or longer; GB_EIO, GB_ENOMEM. */
enum gb_status written_receive(int file, const struct gb_kernel *kernel, const struct gb_fixture *fixture,
                               uint32_t tokens, bool with_stack, struct gb_outputs **outputs, struct gb_error *error);

#endif
