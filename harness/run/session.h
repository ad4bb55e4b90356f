/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the worker: one kernel, one layer's weights in its memory, and checked runs of it. */
#ifndef GB_HARNESS_RUN_SESSION_H
#define GB_HARNESS_RUN_SESSION_H

#include "fixtures/fixtures.h"
#include "harness/run/guarded.h"
#include "harness/run/worker.h"

enum { SESSION_WEIGHTS = 8 };

struct session {
    const struct gb_kernel *kernel;
    const struct gb_device *memory;
    const struct gb_fixture *fixture;
    uint32_t layer;
    struct guarded weights[SESSION_WEIGHTS]; /* gate_up codes, scales, global scales; down likewise; both biases */
    const char *originals[SESSION_WEIGHTS];
    struct guarded router, router_bias; /* of a kernel that routes */
    bool *used;                         /* [experts], whether the fixture has the expert's weights */
    uint32_t *moved;                    /* [experts], where an expert's weights lie: at its own place or another's */
    struct gb_arguments arguments;      /* with this layer's weights in the kernel's memory */
    void *prepared;
    unsigned environment; /* enum environment_change, what the kernel's functions changed */
};

/* Host inputs of one run, and memory for what the kernel writes. */
struct session_io {
    uint32_t tokens;
    const gb_bf16 *x;               /* [tokens, hidden] */
    const int32_t *ids;             /* [tokens, top_k] */
    const float *routing_weights;   /* [tokens, top_k] */
    const gb_bf16 *intermediate_in; /* [tokens, top_k, intermediate], for GB_DOWN */
    struct gb_layer_outputs out;    /* what it does not write is left alone */
};

/* What the kernel is asked whether it supports. */
struct gb_problem session_problem(const struct gb_kernel *kernel, const struct gb_fixture *fixture, uint32_t tokens);

/* Whether the kernel writes ids and routing weights. */
bool session_routes(const struct gb_kernel *kernel);
/* Whether the kernel writes the intermediate; whether it writes the output. */
bool session_writes_intermediate(const struct gb_kernel *kernel);
bool session_writes_output(const struct gb_kernel *kernel);
/* Whether it writes these codes or scales of quantised activations. */
bool session_writes_activations(const struct gb_kernel *kernel, enum gb_activation_part part);

/* Puts the layer's weights into the kernel's memory and calls prepare(). */
enum gb_status session_open(const struct gb_kernel *kernel, const struct gb_device *memory,
                            const struct gb_fixture *fixture, uint32_t layer, struct session *session,
                            struct gb_error *error);
/* Puts the weights of an expert there that the fixture was generated without, and prepares anew. */
enum gb_status session_admit(struct session *session, uint32_t expert, struct gb_error *error);
/* Puts every used expert's weights at the place of the next one, or back, and prepares anew. Experts of a kernel that
 * routes stay: ids are the router's. */
enum gb_status session_move(struct session *session, bool away, struct gb_error *error);
/* Reports whether weights were changed or their canaries broken since session_open; routing: those of the router. */
enum gb_status session_close(struct session *session, struct worker_checks *checks, struct worker_checks *routing,
                             struct gb_error *error);
/* One run, outputs and workspace poisoned with `poison`. Adds what it saw to checks and, of the routing, to routing. */
enum gb_status session_run(struct session *session, const struct session_io *io, uint8_t poison,
                           struct worker_checks *checks, struct worker_checks *routing, struct gb_error *error);

#endif
