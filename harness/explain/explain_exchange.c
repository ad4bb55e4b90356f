/* SPDX-License-Identifier: Apache-2.0 */
/* What a wrong combine looks like: a mistake with all rows, or with one slot of the token that is farthest from truth.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/operators.h"
#include "harness/faults/faults_exchange.h"
#include "quant/quant.h"

/* The subject's values, what they should be and how far from there they may be: [tokens, hidden]. */
struct search {
    const struct gb_fixture *fixture;
    const struct gb_outputs *outputs;
    float *values;
    double *truth, *worst;
    uint32_t token; /* the one that is farthest from truth, as a part of its bound */
};

static float rounded(const struct search *s, float value)
{
    return s->outputs->combined_format == GB_BF16 ? gb_bf16_decode(gb_bf16_encode(value)) : value;
}

static bool same(float a, float b)
{
    return !memcmp(&a, &b, sizeof a) || (isnan(a) && isnan(b));
}

static enum gb_status search_new(const struct baseline *b, const struct gb_outputs *outputs, struct search *s,
                                 struct gb_error *error)
{
    const struct gb_arguments a = gb_fixture_exchange_arguments(b->fixture);
    size_t count = (size_t)a.shape.tokens * a.shape.hidden;
    *s = (struct search){.fixture = b->fixture,
                         .outputs = outputs,
                         .values = malloc(count * sizeof *s->values),
                         .truth = malloc(count * sizeof *s->truth),
                         .worst = malloc(count * sizeof *s->worst)};
    if (!s->values || !s->truth || !s->worst)
        return gb_fail(error, GB_ENOMEM, "no memory to explain %zu sums", count);
    enum gb_status status = gb_bound_exchange(&a, outputs->combined_format, 24, s->truth, s->worst, error);
    double most = 0.0;
    for (size_t i = 0; status == GB_OK && i < count; i++) {
        float got = outputs->combined_format == GB_BF16 ? gb_bf16_decode(((const gb_bf16 *)outputs->combined)[i])
                                                        : ((const float *)outputs->combined)[i];
        double apart = fabs((double)got - s->truth[i]), ratio = apart == 0.0 ? 0.0 : apart / s->worst[i];
        s->values[i] = got;
        if (!(ratio <= most) && !isnan(most)) { /* where it is worst, it shows best */
            most = ratio;
            s->token = (uint32_t)(i / a.shape.hidden);
        }
    }
    return status;
}

static void search_free(struct search *s)
{
    free(s->values);
    free(s->truth);
    free(s->worst);
}

/* Whether tokens first .. end - 1 are what a bug makes of them: in every bit or, where the bug is far beyond the bound,
 * within that. */
static bool fits(const struct search *s, const float *made, uint32_t first, uint32_t end)
{
    size_t hidden = s->fixture->shape.hidden;
    bool equal = true, near = true, far = false;
    for (size_t i = first * hidden; i < end * hidden; i++) {
        double apart = fabs((double)s->values[i] - (double)rounded(s, made[i]));
        equal &= same(s->values[i], rounded(s, made[i]));
        near &= apart <= 2.0 * s->worst[i];
        far |= fabs((double)s->values[i] - s->truth[i]) > 8.0 * s->worst[i];
    }
    return equal || (near && far);
}

/* The token as a problem of its own: every other slot is empty. */
struct alone {
    struct gb_exchange asked;
    struct gb_arguments arguments;
    int32_t *ids;    /* [ranks * tokens, top_k] */
    gb_bf16 *rows;   /* [top_k, hidden], of its routes */
    int32_t *routes; /* [rows], of all tokens */
};

static enum gb_status alone_new(const struct search *s, struct alone *a, struct gb_error *error)
{
    const struct gb_exchanged *e = &s->fixture->exchanged;
    const struct gb_shape *shape = &s->fixture->shape;
    size_t slots = (size_t)shape->tokens * shape->top_k, count = 0;
    *a = (struct alone){.asked = e->asked,
                        .arguments = gb_fixture_exchange_arguments(s->fixture),
                        .ids = malloc(slots * sizeof *a->ids),
                        .rows = malloc(sizeof *a->rows * shape->hidden * shape->top_k),
                        .routes = malloc(sizeof *a->routes * e->asked.rows)};
    enum gb_status status = a->ids && a->rows && a->routes ? gb_reference_routes(&a->arguments, a->routes, error)
                                                           : gb_fail(error, GB_ENOMEM, "no memory for one token");
    for (size_t i = 0; status == GB_OK && i < slots; i++)
        a->ids[i] = i / shape->top_k == s->token ? e->ids[i] : -1;
    for (uint32_t row = 0; status == GB_OK && row < e->asked.rows; row++)
        if ((uint32_t)a->routes[row] / shape->top_k == s->token)
            memcpy(a->rows + count++ * shape->hidden, e->rows + (size_t)row * shape->hidden,
                   sizeof *a->rows * shape->hidden);
    a->asked.rows = (uint32_t)count;
    a->arguments.exchange = &a->asked;
    a->arguments.ids = a->ids;
    a->arguments.values = a->rows;
    return status;
}

static void alone_free(struct alone *a)
{
    free(a->ids);
    free(a->rows);
    free(a->routes);
}

static enum gb_status describe(const char *name, struct explanation **explanation, struct gb_error *error)
{
    struct explanation *e = calloc(1, sizeof *e);
    *explanation = e;
    if (!e)
        return gb_fail(error, GB_ENOMEM, "no memory for an explanation");
    e->expert = -1;
    e->best.explains = 1.0;
    snprintf(e->best.name, sizeof e->best.name, "%s", name);
    strcpy(e->kind, e->best.name);
    e->shown[0] = e->best;
    e->shown_count = 1;
    snprintf(e->text, sizeof e->text, "looks like: %s", name);
    return GB_OK;
}

/* One bug in all tokens. */
static enum gb_status try_all(const struct search *s, const struct combine_fault *fault,
                              struct explanation **explanation, struct gb_error *error)
{
    struct gb_arguments a = gb_fixture_exchange_arguments(s->fixture);
    struct gb_outputs *made;
    enum gb_status status = combine_fault_run(fault, &a, 0, 0, &made, error);
    if (status == GB_OK && made && fits(s, made->combined, 0, a.shape.tokens))
        status = describe(fault->name, explanation, error);
    gb_outputs_free(made);
    return status;
}

/* Bugs of one slot of the first token that is wrong. */
static enum gb_status try_slots(const struct search *s, const struct alone *a, const struct combine_fault *fault,
                                struct explanation **explanation, struct gb_error *error)
{
    const struct gb_exchanged *e = &s->fixture->exchanged;
    uint32_t top_k = e->asked.top_k;
    enum gb_status status = GB_OK;
    for (uint32_t slot = 0; status == GB_OK && !*explanation && slot < top_k; slot++) {
        int32_t expert = e->ids[(size_t)s->token * top_k + slot];
        struct gb_outputs *made = NULL;
        char name[160];
        if (expert < 0)
            continue;
        status = combine_fault_run(fault, &a->arguments, s->token, slot, &made, error);
        snprintf(name, sizeof name, "rank %u, token %u, slot %u, from expert %d of rank %d: %s",
                 s->token / e->asked.tokens, s->token % e->asked.tokens, slot, expert, e->placement[expert],
                 fault->name);
        if (status == GB_OK && made && fits(s, made->combined, s->token, s->token + 1))
            status = describe(name, explanation, error);
        gb_outputs_free(made);
    }
    return status;
}

/* A slot of it has some other row of the buffer. */
static enum gb_status try_rows(const struct search *s, struct alone *a, struct explanation **explanation,
                               struct gb_error *error)
{
    const struct gb_exchanged *e = &s->fixture->exchanged;
    uint32_t hidden = e->asked.hidden, tokens = e->asked.tokens, top_k = e->asked.top_k;
    enum gb_status status = GB_OK;
    for (uint32_t own = 0; own < a->asked.rows; own++)
        for (uint32_t row = 0; status == GB_OK && !*explanation && row < e->asked.rows; row++) {
            uint32_t route = (uint32_t)a->routes[row], token = route / top_k;
            gb_bf16 *place = a->rows + (size_t)own * hidden, *kept = malloc(sizeof *kept * hidden);
            struct gb_outputs *made = NULL;
            char name[160];
            if (!kept)
                return gb_fail(error, GB_ENOMEM, "no memory for a row");
            memcpy(kept, place, sizeof *kept * hidden);
            memcpy(place, e->rows + (size_t)row * hidden, sizeof *kept * hidden);
            if (memcmp(kept, place, sizeof *kept * hidden))
                status = exchange_as(&a->arguments, false, GB_FP32, &made, error);
            snprintf(name, sizeof name, "rank %u, token %u: one of its rows is row %u, of rank %u, token %u, slot %u",
                     s->token / tokens, s->token % tokens, row, token / tokens, token % tokens, route % top_k);
            if (status == GB_OK && made && fits(s, made->combined, s->token, s->token + 1))
                status = describe(name, explanation, error);
            memcpy(place, kept, sizeof *kept * hidden);
            free(kept);
            gb_outputs_free(made);
        }
    return status;
}

enum gb_status explain_combine(const struct baseline *b, enum gb_operator operation, const struct gb_outputs *outputs,
                               struct explanation **explanation, struct gb_error *error)
{
    enum { MOST_ROWS = 4096 }; /* of which each is tried in each slot */
    struct search s;
    struct alone a = {0};
    size_t count;
    const struct combine_fault *all = combine_faults(&count);
    (void)operation;
    *explanation = NULL;
    enum gb_status status = search_new(b, outputs, &s, error);
    if (status == GB_OK)
        status = alone_new(&s, &a, error);
    for (size_t i = 0; status == GB_OK && !*explanation && i < count; i++)
        if (all[i].kind == OF_ALL)
            status = try_all(&s, &all[i], explanation, error);
    for (size_t i = 0; status == GB_OK && !*explanation && i < count; i++)
        if (all[i].kind == OF_SLOT)
            status = try_slots(&s, &a, &all[i], explanation, error);
    if (status == GB_OK && !*explanation && s.fixture->exchanged.asked.rows <= MOST_ROWS)
        status = try_rows(&s, &a, explanation, error);
    alone_free(&a);
    search_free(&s);
    return status;
}
