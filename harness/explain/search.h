/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: the search for one finding. search.c keeps it, search_fit.c fits effects to single tokens,
 * search_settle.c makes findings of them, the others look for findings of one kind each; structure.c calls those one
 * after another. */
#ifndef GB_HARNESS_EXPLAIN_SEARCH_H
#define GB_HARNESS_EXPLAIN_SEARCH_H

#include "harness/explain/effects.h"
#include "harness/explain/structure.h"

/* What of the worst token's squared error an effect must explain for the others to be looked at. */
#define PROMISING 0.9
/* Findings that leave this share alike are told apart by simplicity. */
#define EXACT 1e-9
enum { MOST_SAMPLES = 192, MOST_EFFECTS = 8, MOST_SLOTS = 64 };
/* Products that a weight takes which is decoded anew, twice. */
#define REREAD 8.0
/* Rows of which one stands for all in a first look at an effect on what a projection reads; and of how many they do:
 * of fewer one in four may well make half of its share of the error, or less. */
enum { SCREENED = 4, MANY_ROWS = 256 };

struct search {
    struct diagnosis *w;
    struct stages s;
    uint32_t *column; /* [samples], wrong columns of the results */
    uint32_t samples;
    uint32_t *token; /* [tokens], the wrong ones, the worst first; finite */
    uint32_t tokens;
    double **down; /* [experts]: rows of down for the samples, [samples, intermediate]; NULL: not yet read */
    bool *asked;   /* [pairs] */
    const struct observed *seen; /* rows of what down multiplies that are known; NULL: none */
    bool *seen_pairs;            /* [pairs], which */
    double *operand;             /* [pairs, intermediate] */
    double *response;            /* [top_k, samples] */
    double *difference;          /* [intermediate], of down's operand */
    double *alpha;               /* [pairs] */
    double *weight;              /* [pairs]: squares of the responses */
    struct structure best;
    double work, most; /* products so far, and how many may be */
    enum gb_status status;
    struct gb_error *error;
};

enum gb_status search_new(struct diagnosis *w, struct search *q);
void search_free(struct search *q);
bool search_late(const struct search *q);
/* Done: nothing is left to explain. */
bool search_done(const struct search *q);
/* About as many products as a finding of the stage costs for so many pairs, down to its rows of `columns` results. */
double search_products(const struct search *q, enum finding_stage stage, double pairs, double columns);
/* Plants the finding in the diagnosis and keeps it if it explains more, or as much and is simpler. */
void search_verify(struct search *q, const struct finding *f);
/* The same with the elements that the wrong columns show, where the stage's elements are columns of the results. */
void search_verify_places(struct search *q, const struct finding *f);

/* An expert's rows of down for the samples: [samples, intermediate]; NULL: no memory. */
const double *search_down_of(struct search *q, uint32_t expert);
/* What the effect everywhere makes of the samples of one token: a response for each slot. Of FINDING_COMBINE the first
 * slot stands for all. */
void search_respond(struct search *q, uint32_t token, const struct finding *f);
/* What q->operand makes of the samples of one token. */
void search_respond_operand(struct search *q, uint32_t token);
double search_error(const struct search *q, uint32_t token, uint32_t slot, uint32_t sample);
/* How much of each slot's response the token's errors have: alpha and weight of its pairs. Returns the squares that are
 * left; *all: of the errors. */
double search_regress(struct search *q, uint32_t token, bool linear, double *all);
/* The same with an amount of its own for each slot, whatever the effect. */
double search_fit_token_freely(struct search *q, uint32_t token, const struct finding *f, double *all);
double search_fit_token(struct search *q, uint32_t token, const struct finding *f, double *all);
/* The pairs that have the effect, from alpha, and of a linear one its amount. */
bool search_take_pairs(struct search *q, struct finding *f);
/* What q->operand explains of the wrong elements of the rows seen. */
double search_rate_seen(const struct search *q);
/* An effect of which a multiple is another one of its kind. */
bool search_is_linear(const struct finding *f);
/* What the effect everywhere explains of the worst token. */
double search_promise(struct search *q, const struct finding *f);

/* Finds the pairs that have the effect, and verifies. */
void search_settle(struct search *q, const struct finding *effect);
/* Calls `try` for each effect without an amount that a stage can have. */
void search_each_effect(struct search *q, enum finding_stage stage, struct finding_axis elements,
                        void (*try)(struct search *, const struct finding *));

/* The same for effects on weights, codes and scales that a projection reads. */
void search_each_operand(struct search *q, enum finding_stage stage,
                         void (*try)(struct search *, const struct finding *));

/* Saturation, flushing, and, where they are not linear, factors and constants added. */
void search_each_amount(struct search *q, enum finding_stage stage, struct finding_axis elements);
/* A constant added to the rows of some slots: of all, of one, or of an expert. */
void search_try_added(struct search *q);

/* What the routing weights became, which the outputs tell. */
void search_try_weights(struct search *q);
/* Which experts the worst token's slots have, and by which rule. */
void search_try_experts(struct search *q);

/* What the output itself became. */
void search_try_outputs(struct search *q);
/* Each slot of the worst token as the only one that is wrong: what its row became. */
void search_try_single_slots(struct search *q);
/* What the worst token's rows of the intermediate must have been, by the outputs alone, and what made them so. */
void search_try_inverted(struct search *q);

/* The range or the residues of elements of the intermediate, or of columns of K of down, for which the effect explains
 * most of the worst token, whose slots it has all or one of. */
void search_try_elements(struct search *q, const struct finding *effect);

/* Effects on columns of x, and columns of K that gate_up leaves out or takes twice. */
void search_each_range(struct search *q);
/* The range of columns, in blocks and then one by one, for which the effect explains most of the worst token. Of a dot
 * product's stage columns of K. */
void search_try_ranges(struct search *q, const struct finding *effect);
/* The same for the residues of columns. */
void search_try_residues(struct search *q, const struct finding *effect);

#endif
