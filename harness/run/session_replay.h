/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the worker: runs of a kernel as a CUDA graph that was captured once. */
#ifndef GB_HARNESS_RUN_SESSION_REPLAY_H
#define GB_HARNESS_RUN_SESSION_REPLAY_H

#include "harness/run/session.h"

/*
 * Captures one run on so many tokens and replays it on each of the inputs, which are put where those of the capture
 * lay; what it writes and the workspace are poisoned before. inputs, out: [count]. Adds what it saw to checks and, of
 * the routing, to routing.
 */
enum gb_status session_replay(struct session *session, const struct gb_timer *clock, uint32_t tokens,
                              const struct operator_inputs *const *inputs, const struct gb_layer_outputs *const *out,
                              uint32_t count, struct worker_checks *checks, struct worker_checks *routing,
                              struct gb_error *error);

#endif
