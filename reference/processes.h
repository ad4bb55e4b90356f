/* SPDX-License-Identifier: Apache-2.0 */
/* Private: what dispatch and combine over processes share: which ranks are whose, and items that are sent. */
#ifndef GB_REFERENCE_PROCESSES_H
#define GB_REFERENCE_PROCESSES_H

#include "reference/reference.h"

/* What this process has of a problem. */
struct gb_own {
    uint32_t first, ranks; /* its ranks */
    size_t routes;         /* of their tokens */
    uint32_t row, rows;    /* the first row that its ranks receive, and how many they do */
    int32_t *counts;       /* [all ranks, experts] */
    int32_t *next;         /* [all ranks, experts], the row of the next such route */
};

/* Arguments as gb_exchange_check found them good. Checks the others, and gathers the counts of all. GB_EINVAL,
 * GB_ENOMEM, GB_EFORMAT: of any process. */
enum gb_status gb_own_new(const struct gb_processes *processes, const struct gb_arguments *arguments,
                          enum gb_operator operation, struct gb_own *own, struct gb_error *error);
void gb_own_free(struct gb_own *own);

/* What became of the first process that failed, if one did. */
enum gb_status gb_processes_agree(const struct gb_processes *processes, enum gb_status mine, struct gb_error *error);

/* Which process has a rank. */
uint32_t gb_process_of(const struct gb_processes *processes, const struct gb_exchange *exchange, uint32_t rank);

/* A route on its way. */
struct gb_sent {
    int32_t row, route;
    uint32_t rank; /* of its expert */
    float weight;
};

/* The routes of this process's tokens in the order of their slots. sent: [own->routes]; weights: of the slots, or NULL;
 * to: [own->routes], the process of each. */
void gb_own_routes(const struct gb_processes *processes, const struct gb_arguments *arguments, struct gb_own *own,
                   struct gb_sent *sent, uint32_t *to);

/* One array of items that are sent. */
struct gb_column {
    size_t width;     /* bytes of an item */
    const void *sent; /* [count] */
    void *received;   /* [received], allocated here by malloc */
};
/* Sends each item to its process. Those received are in the sequence of processes, and of each in that of its items.
 * mine: what became of this process before. to: [count]. */
enum gb_status gb_send_items(const struct gb_processes *processes, enum gb_status mine, const uint32_t *to,
                             size_t count, struct gb_column *columns, uint32_t column_count, size_t *received,
                             struct gb_error *error);

#endif
