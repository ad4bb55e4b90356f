/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/explain/causes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/finding_text.h"
#include "quant/quant.h"

/* With how many products a finding is looked for: a few seconds, and the same names on every machine. */
#define STRUCTURE_PRODUCTS 0x1p32
/* What a first finding must explain for what it leaves to be looked at. */
#define WORTH_REMOVING 0.1
/* Of the largest error: what is left of an error that was removed. */
#define REMOVED 1e-5

static size_t elements_of(const struct diagnosis *w)
{
    return (size_t)w->rows * w->width;
}

static enum gb_status search_in(struct diagnosis *w, const double *errors, struct structure *found,
                                struct gb_error *error)
{
    struct error_location kept = w->location;
    enum gb_status status = error_location_new(errors, w->rows, w->width, w->ids, w->slots_of_row, &w->location, error);
    w->location.rows_per_token = w->rows_per_token;
    if (status == GB_OK)
        status = structure_search(w, STRUCTURE_PRODUCTS, found, error);
    error_location_free(&w->location);
    w->location = kept;
    return status;
}

/* Looks at the errors of any size first, then at those beyond rounding. */
static enum gb_status find_first(struct diagnosis *w, struct structure *found, struct gb_error *error)
{
    enum gb_status status = search_in(w, w->errors, found, error);
    if (status == GB_OK && found->explains < EXPLAINS && w->noise > 0.0) {
        struct structure other;
        status = structure_search(w, STRUCTURE_PRODUCTS, &other, error);
        if (status == GB_OK && other.explains > found->explains)
            *found = other;
    }
    return status;
}

/* The diagnosis's errors less what the finding makes: rest, [rows, width], and squares, [rows]. */
static enum gb_status remove_finding(struct diagnosis *w, const struct finding *finding, double *rest, double *squares,
                                     struct gb_error *error)
{
    double largest = 0.0;
    enum gb_status status = structure_plant(w, finding, w->faulty, error);
    for (size_t i = 0; status == GB_OK && i < elements_of(w); i++) {
        rest[i] = w->errors[i] - diagnosis_difference((double)w->faulty[i], (double)w->clean[i]);
        largest = fmax(largest, fabs(w->errors[i]));
    }
    memset(squares, 0, w->rows * sizeof *squares);
    for (size_t i = 0; status == GB_OK && i < elements_of(w); i++) {
        rest[i] = fabs(rest[i]) <= REMOVED * largest ? 0.0 : rest[i];
        squares[i / w->width] += rest[i] * rest[i];
    }
    return status;
}

/* A second finding, which explains what the first leaves. */
static enum gb_status find_second(struct diagnosis *w, const struct structure *first, struct causes *causes,
                                  struct gb_error *error)
{
    double *errors = w->errors, *squares = w->squares;
    const double all = diagnosis_squares(w);
    double *rest = malloc(elements_of(w) * sizeof *rest), *rest_squares = malloc(w->rows * sizeof *rest_squares);
    struct structure second = {.explains = 0.0};
    enum gb_status status = rest && rest_squares ? remove_finding(w, &first->finding, rest, rest_squares, error)
                                                 : gb_fail(error, GB_ENOMEM, "no memory for what one cause leaves");
    if (status == GB_OK) {
        w->errors = rest;
        w->squares = rest_squares;
        double left = diagnosis_squares(w) / all;
        if (left > 0.0 && isfinite(left))
            status = search_in(w, rest, &second, error);
        w->errors = errors;
        w->squares = squares;
        double explains = 1.0 - left * (1.0 - second.explains);
        if (status == GB_OK && second.explains >= EXPLAINED && diagnosis_is_enough(w, explains))
            *causes = (struct causes){{first->finding, second.finding}, 2, explains};
    }
    free(rest);
    free(rest_squares);
    return status;
}

/* A threshold that is nearly right is the wrong one. */
static bool is_enough(const struct diagnosis *w, const struct structure *s)
{
    const enum finding_effect effect = s->finding.effect;
    const bool threshold =
        effect == FINDING_SATURATE || effect == FINDING_CAP || effect == FINDING_FLOOR || effect == FINDING_FLUSH;
    return threshold ? s->explains >= EXPLAINS : diagnosis_is_enough(w, s->explains);
}

enum gb_status causes_find(struct diagnosis *w, struct causes *causes, struct gb_error *error)
{
    struct structure first = {.explains = 0.0};
    *causes = (struct causes){.count = 0};
    enum gb_status status = find_first(w, &first, error);
    if (status == GB_OK && is_enough(w, &first))
        *causes = (struct causes){{first.finding}, 1, first.explains};
    else if (status == GB_OK && first.explains >= WORTH_REMOVING && w->wrong >= FEW_ELEMENTS)
        status = find_second(w, &first, causes, error);
    return status;
}

struct finding_frame causes_frame(const struct diagnosis *w, const struct finding *f)
{
    const struct gb_shape *shape = &w->trace.arguments.shape;
    bool hidden = f->stage == FINDING_INPUT || f->stage == FINDING_DOWN || f->stage == FINDING_COMBINE;
    return (struct finding_frame){hidden ? shape->hidden : shape->intermediate, w->first, w->tokens};
}

void causes_add(struct diagnosis *w, const struct causes *causes)
{
    char name[160] = "", kind[160] = "";
    const int most = causes->count > 1 ? (int)sizeof name / 2 - 6 : (int)sizeof name - 1; /* of each */
    bool nothing = w->count && w->candidates[0].rank == RANK_NOTHING;                     /* which has a name */
    if (!causes->count || (nothing && finding_is_everywhere(&causes->of[0])))
        return;
    for (uint32_t i = 0; i < causes->count; i++) {
        struct finding_frame frame = causes_frame(w, &causes->of[i]);
        char one[160];
        size_t used = strlen(name), kinds = strlen(kind);
        finding_name(&causes->of[i], &frame, one, sizeof one);
        snprintf(name + used, sizeof name - used, "%s%.*s", i ? "; and " : "", most, one);
        finding_kind(&causes->of[i], one, sizeof one);
        snprintf(kind + kinds, sizeof kind - kinds, "%s%.*s", i ? "; and " : "", most, one);
    }
    diagnosis_add(w, RANK_STRUCTURE, kind, name, causes->explains);
}
