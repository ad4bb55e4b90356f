/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: the tokens around the worst error, and what has been found to fit it. */
#ifndef GB_HARNESS_WINDOW_H
#define GB_HARNESS_WINDOW_H

#include "harness/baseline.h"
#include "harness/faults.h"
#include "harness/place.h"

enum { MOST_CANDIDATES = 512 };

/* What a share of the error must be to be called an explanation. */
#define EXPLAINED 0.9
/* And to be worth a mention. */
#define CLOSE 0.4
/* Among explanations that differ by less, the one that comes first. */
#define SAME 1e-3

struct candidate {
    char name[128];
    double explains;
};

/* One layer of some tokens: the reference taken apart, and the subject's error. */
struct window {
    struct trace trace;
    uint32_t layer, first, tokens, hidden;
    double *errors; /* [tokens, hidden]: subject - reference */
    float *faulty;  /* [tokens, hidden] */
    struct place place;
    struct candidate candidates[MOST_CANDIDATES];
    uint32_t count;
};

double window_value(const struct gb_layer_outputs *layer, size_t i);
/* value - right, where NaN for NaN is no error. */
double window_difference(double value, double right);
/* Adds a candidate, unless it explains nothing. */
void window_enter(struct window *w, const char *name, const char *suffix, double explains);
/* 1 - |error - what the fault makes|^2 / |error|^2, over finite errors of the tokens asked for; NULL: of all. */
double window_explained(const struct window *w, const bool *tokens);

/* The expert whose share of the output is most of the error; -1: none is. */
int32_t window_suspect(const struct window *w);
/* Wrong scales of the output, a slot, the expert (or -1), by least squares. */
void try_gains(struct window *w, int32_t expert);
/* Rows that are the reference's of other tokens. subject, reference: of the layer, `tokens` tokens. */
enum gb_status try_rows(struct window *w, const struct gb_layer_outputs *subject,
                        const struct gb_layer_outputs *reference, uint32_t tokens, struct gb_error *error);
/* The layer with all ids off by the same number, where the fixture has those experts. */
enum gb_status try_offsets(struct window *w, const struct gb_fixture *fixture, struct gb_error *error);

#endif
