/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: a diagnosis, which is the tokens around the worst error and the hypotheses that fit it. */
#ifndef GB_HARNESS_EXPLAIN_HYPOTHESIS_H
#define GB_HARNESS_EXPLAIN_HYPOTHESIS_H

#include "harness/judge/baseline.h"
#include "harness/faults/faults.h"
#include "harness/explain/localise.h"

enum { MOST_CANDIDATES = 1024 };

/* What a share of the error must be to be called an explanation; and where elements that are right in all but rounding
 * have what is left of it. */
#define EXPLAINS 0.999
#define EXPLAINED 0.99
/* And to be worth a mention. */
#define CLOSE 0.4
/* What more a second candidate of a kind must explain to be one. */
#define SAME 1e-3
/* Candidates explain equally well that leave at most so many times what the best one leaves, and this. */
#define TIMES_LEFT 4.0
#define LEFT 1e-6
/* Fewer wrong elements have no name from the list of injected bugs. */
enum { FEW_ELEMENTS = 4 };

/* Among explanations that fit equally well the simplest comes first: that with the fewest things left to choose. */
enum rank {
    RANK_NOTHING,    /* no result at all: zeros, NaN */
    RANK_WHOLE,      /* one mistake everywhere, nothing to choose */
    RANK_STRUCTURE,  /* a place, an effect and a stage */
    RANK_COORDINATE, /* a factor, or a place: which expert, slot, block */
    RANK_PARTLY,     /* a mistake everywhere, made in some places alone */
    RANK_PARTICULAR  /* a injected fault whose place is its own choice */
};

struct candidate {
    char name[160];
    char kind[160]; /* the name without the numbers of tokens, slots and experts, which a smaller problem renumbers */
    double explains;
    enum rank rank;
};

/*
 * One layer of some tokens: the reference taken apart, and the subject's error. A row is what one token has of the
 * subject's result: an output [hidden]; of GB_GATE_UP one slot's intermediate [intermediate].
 */
struct diagnosis {
    bool inner; /* it writes the intermediate, and no output */
    bool given; /* it reads the intermediate */
    struct trace trace;
    struct trace pairs; /* the same with every slot a token of its own; its arrays but x and output are trace's */
    const int32_t *ids; /* [rows, slots_of_row], where subject and truth have their experts */
    uint32_t *list;     /* [tokens, top_k]: the place of a pair among all those of its expert, in the order of tokens */
    uint32_t *listed;   /* [experts]: how many pairs have it */
    uint32_t layer, first, tokens; /* tokens first .. first + tokens - 1 of the fixture */
    uint32_t rows, rows_per_token, slots_of_row, width;
    double *errors;                 /* [rows, width]: subject - reference */
    double *squares;                /* [rows], of the errors, summed */
    double *values;                 /* [rows, width], the subject's */
    float *clean;                   /* [rows, width], the reference's */
    float *faulty;                  /* [rows, width], a fault's */
    float *share;                   /* [tokens, top_k, width]: each slot's part of clean */
    float *change;                  /* [tokens, top_k, width]: what a fault adds to each part */
    size_t wrong;                   /* elements, of about the size of the largest error */
    double noise;                   /* squared errors, if all elements were as wrong as those within rounding */
    struct error_location location; /* of rows and columns */
    char contract[64];              /* the kind of try_contract's candidate, and */
    enum gb_format activations;     /* what it would take */
    double affordable;              /* products that are left for trying known bugs */
    struct searched searched;
    struct candidate candidates[MOST_CANDIDATES];
    uint32_t count;
};

/* Whether a known bug can still be tried, which takes all of the products once; counts it. */
bool diagnosis_afford(struct diagnosis *w);

/* Results of the subject, of the kind that its operation writes: element i of the layer. */
double diagnosis_value(const struct diagnosis *w, const struct gb_layer_outputs *layer, size_t i);
/* value - right, where NaN for NaN is no error. */
double diagnosis_difference(double value, double right);
/* Of element i of the layer, against the reference as the subject stores it. */
double diagnosis_error(const struct diagnosis *w, const struct gb_layer_outputs *subject,
                       const struct gb_layer_outputs *reference, size_t i);
/* Adds a candidate, unless it explains nothing. */
void diagnosis_add(struct diagnosis *w, enum rank rank, const char *kind, const char *name, double explains);
/* The largest share of the error that a candidate so far explains. */
double diagnosis_best(const struct diagnosis *w);
/* 1 - |error - (faulty - clean)|^2 / |error|^2, over finite errors of the rows and columns asked for; NULL: of all. */
double diagnosis_explained(const struct diagnosis *w, const bool *rows, const bool *columns);
/* The errors' squares, summed. */
double diagnosis_squares(const struct diagnosis *w);
/* Whether so large a share explains all, or all but what the elements that are not wrong have too: rounding in another
 * order. */
bool diagnosis_is_enough(const struct diagnosis *w, double explains);
/* The kind, confined to the wrong rows, to the wrong columns, to both, or to nothing. */
enum { LOCATION_ROWS = 1, LOCATION_COLUMNS = 2 };
void diagnosis_name_partly(const char *kind, unsigned places, char *name, size_t bytes);
/* Enters what `faulty` explains of everything, and what more it explains of the wrong rows and columns alone. */
void diagnosis_add_faulty(struct diagnosis *w, enum rank rank, const char *kind);
/* Enters what `change` explains of everything, and what more it explains of the wrong rows, a slot or an expert alone.
 */
void diagnosis_add_change(struct diagnosis *w, enum rank rank, const char *kind);
/* The operation of the diagnosis on these arguments, whose outputs are NULL. results: [rows, width] for `trace`'s
 * shape, [tokens, top_k, width] for that of `pairs`. intermediate: what GB_DOWN is given; NULL: the reference's. */
enum gb_status diagnosis_run(struct diagnosis *w, const struct gb_arguments *arguments, const gb_bf16 *intermediate,
                             float *results, struct gb_error *error);
/* "token 3", "slot 1 of token 3" */
void diagnosis_row_name(const struct diagnosis *w, int64_t row, char *name, size_t bytes);

/* Injected faults. */
enum gb_status try_faults(struct diagnosis *w, struct gb_error *error);
/* Zeros, NaN: what the subject has wherever it is wrong. */
void try_nothing(struct diagnosis *w);
/* Wrong scales of the output, a slot, an expert, by least squares. */
void try_gains(struct diagnosis *w);
/* Rows that are the reference's of other tokens. subject, reference: of the layer, all `tokens` tokens. */
enum gb_status try_rows(struct diagnosis *w, const struct gb_layer_outputs *subject,
                        const struct gb_layer_outputs *reference, uint32_t tokens, struct gb_error *error);
/* Wrong columns that are the reference's at another place of the row. */
void try_columns(struct diagnosis *w);
/* The layer with all ids off by the same number, where the fixture has those experts. */
enum gb_status try_offsets(struct diagnosis *w, const struct gb_fixture *fixture, struct gb_error *error);
/* Some columns of K left out, in gate and up, in down, or in both. */
enum gb_status try_blocks(struct diagnosis *w, struct gb_error *error);
/* The other contract of a fixture with quantised activations. */
enum gb_status try_contract(struct diagnosis *w, const struct baseline *baseline, struct gb_error *error);

#endif
