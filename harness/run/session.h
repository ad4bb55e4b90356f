/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the worker: one kernel, one layer's weights in its memory, and checked runs of it. */
#ifndef GB_HARNESS_RUN_SESSION_H
#define GB_HARNESS_RUN_SESSION_H

#include "fixtures/fixtures.h"
#include "harness/run/guarded.h"
#include "harness/run/operators.h"
#include "harness/run/worker.h"

enum { SESSION_WEIGHTS = 8, SESSION_ARRAYS = SESSION_WEIGHTS + 2 }; /* and the router's */

/* Those of codes: gate_up's, down's and the router's, a bit each. */
#define SESSION_CODES (1u << 0 | 1u << 3 | 1u << SESSION_WEIGHTS)

struct session {
    const struct gb_kernel *kernel;
    const struct gb_device *memory;
    const struct gb_fixture *fixture;
    uint32_t layer;
    uint32_t uses;                           /* enum operator_use */
    struct guarded weights[SESSION_WEIGHTS]; /* gate_up codes, scales, global scales; down likewise; both biases */
    const char *originals[SESSION_WEIGHTS];
    struct guarded_file file;           /* of the fixture; without a descriptor weights are copied */
    struct guarded router, router_bias; /* of a kernel that routes */
    enum guarded_place place;           /* of the weights */
    bool sparse;                        /* only the weights of experts in use are there */
    bool *used;                         /* [experts], whether the expert's weights are there */
    bool *admitted;                     /* [experts], whether they were made here, and the file has none */
    uint32_t *moved;                    /* [experts], where an expert's weights lie: at its own place or another's */
    bool altered;                       /* what lies there is not what the fixture has */
    struct gb_arguments arguments;      /* with this layer's weights in the kernel's memory */
    void *prepared;
    double prepare_s;     /* that prepare() took */
    unsigned environment; /* enum environment_change, what the kernel's functions changed */
};

/* Puts the layer's weights into the kernel's memory and calls prepare(). */
enum gb_status session_open(const struct gb_kernel *kernel, const struct gb_device *memory,
                            const struct gb_fixture *fixture, uint32_t layer, struct session *session,
                            struct gb_error *error);
/* The same with the weights of these experts alone, in memory of its own whose size is theirs. ids: [pairs]. */
enum gb_status session_open_chosen(const struct gb_kernel *kernel, const struct gb_device *memory,
                                   const struct gb_fixture *fixture, uint32_t layer, const int32_t *ids, size_t pairs,
                                   struct session *session, struct gb_error *error);
/* How many weights the kernel reads of experts in use and of the router, and their bytes with scales and biases. */
void session_weights(const struct session *session, uint64_t *weights, uint64_t *bytes);
/* Puts the weights of an expert there that the fixture was generated without, and prepares anew. */
enum gb_status session_admit(struct session *session, uint32_t expert, struct gb_error *error);
/* Puts every used expert's weights at the place of the next one, or back, and prepares anew. Experts of a kernel that
 * routes stay: ids are the router's. */
enum gb_status session_move(struct session *session, bool away, struct gb_error *error);
/* Whether its weights are so few bytes that to look at them after each run is little work. */
bool session_is_small(const struct session *session);
/* Whether the session has such an array of weights; number: below SESSION_ARRAYS. */
bool session_has(const struct session *session, uint32_t number);
/* Puts elements of these arrays into each other's places, or back, at the same addresses, and prepares anew. arrays: a
 * bit each, of numbers below SESSION_ARRAYS. */
enum gb_status session_alter(struct session *session, uint32_t arrays, bool away, struct gb_error *error);
/* Reports whether weights were changed or their canaries broken since session_open; routing: those of the router. */
enum gb_status session_close(struct session *session, struct worker_checks *checks, struct worker_checks *routing,
                             struct gb_error *error);
/* One run on so many tokens, what it writes and the workspace poisoned with `poison`. out: where it goes; what is not
 * written is left alone. Adds what it saw to checks and, of the routing, to routing. */
enum gb_status session_run(struct session *session, uint32_t tokens, const struct operator_inputs *inputs,
                           const struct gb_layer_outputs *out, struct run_way way, struct worker_checks *checks,
                           struct worker_checks *routing, struct gb_error *error);

#endif
