/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/localise.h"
#include "quant/quant.h"

/* Errors below this share of the largest one do not count. */
#define SMALL 1e-3

static bool has(const int32_t *ids, uint32_t top_k, int32_t expert)
{
    for (uint32_t k = 0; k < top_k; k++)
        if (ids[k] == expert)
            return true;
    return false;
}

/* Whether the tokens with this expert are exactly the wrong ones. */
static bool fits(const struct error_location *p, const int32_t *ids, uint32_t top_k, int32_t expert)
{
    for (uint32_t t = 0; t < p->tokens; t++)
        if (has(ids + (size_t)t * top_k, top_k, expert) != p->token[t])
            return false;
    return true;
}

static int32_t find_expert(const struct error_location *p, const int32_t *ids, uint32_t top_k)
{
    int32_t found = -1;
    if (p->wrong_tokens == p->tokens)
        return -1;
    for (uint32_t t = 0; t < p->tokens; t++)
        for (uint32_t k = 0; p->token[t] && k < top_k; k++) {
            int32_t expert = ids[(size_t)t * top_k + k];
            if (expert < 0 || expert == found || !fits(p, ids, top_k, expert))
                continue;
            if (found >= 0)
                return -1;
            found = expert;
        }
    return found;
}

enum gb_status error_location_new(const double *errors, uint32_t tokens, uint32_t hidden, const int32_t *ids,
                                  uint32_t top_k, struct error_location *p, struct gb_error *error)
{
    double largest = 0.0;
    *p = (struct error_location){tokens, hidden, 1, calloc(tokens, sizeof(bool)), calloc(hidden, sizeof(bool)),
                                 0,      0,      -1};
    if (!p->token || !p->column)
        return gb_fail(error, GB_ENOMEM, "no memory to locate the errors of %u tokens", tokens);
    for (size_t i = 0; i < (size_t)tokens * hidden; i++)
        largest = isfinite(errors[i]) ? fmax(largest, fabs(errors[i])) : largest;
    for (size_t i = 0; i < (size_t)tokens * hidden; i++)
        if (!isfinite(errors[i]) || fabs(errors[i]) > SMALL * largest)
            p->token[i / hidden] = p->column[i % hidden] = true;
    for (uint32_t t = 0; t < tokens; t++)
        p->wrong_tokens += p->token[t];
    for (uint32_t i = 0; i < hidden; i++)
        p->wrong_columns += p->column[i];
    p->expert = find_expert(p, ids, top_k);
    return GB_OK;
}

void error_location_free(struct error_location *p)
{
    free(p->token);
    free(p->column);
}

/* "3, 7, 9 and 4 more" */
static void list(const bool *set, uint32_t count, uint32_t first, uint32_t members, char *text, size_t bytes)
{
    size_t used = 0;
    uint32_t shown = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < count && shown < 8; i++)
        if (set[i])
            used += (size_t)snprintf(text + used, bytes - used, "%s%u", shown++ ? ", " : "", first + i);
    if (members > shown)
        snprintf(text + used, bytes - used, " and %u more", members - shown);
}

/* Whether exactly the columns with low <= column mod period < high are wrong, low and high being those seen. */
static bool periodic(const struct error_location *p, uint32_t period, uint32_t *low, uint32_t *high)
{
    *low = period;
    *high = 0;
    for (uint32_t i = 0; i < p->hidden; i++)
        if (p->column[i]) {
            *low = i % period < *low ? i % period : *low;
            *high = i % period + 1 > *high ? i % period + 1 : *high;
        }
    for (uint32_t i = 0; i < p->hidden; i++)
        if (p->column[i] != (i % period >= *low && i % period < *high))
            return false;
    return true;
}

/* Nothing where there is no rule, and they are most of them. */
static void name_columns(const struct error_location *p, char *text, size_t bytes)
{
    uint32_t first = 0, last = p->hidden - 1, low, high;
    while (!p->column[first])
        first++;
    while (!p->column[last])
        last--;
    if (last - first + 1 == p->wrong_columns && p->wrong_columns > 1) {
        snprintf(text, bytes, "%u to %u", first, last);
        return;
    }
    if (periodic(p, 2, &low, &high)) {
        snprintf(text, bytes, "%s", low ? "the odd ones" : "the even ones");
        return;
    }
    for (uint32_t period = 4; period <= 256 && period <= p->hidden / 2; period *= 2)
        if (periodic(p, period, &low, &high)) {
            snprintf(text, bytes, "%u to %u of every %u", low, high - 1, period);
            return;
        }
    if (p->wrong_columns <= p->hidden / 2)
        list(p->column, p->hidden, 0, p->wrong_columns, text, bytes);
}

void error_location_name(const struct error_location *p, uint32_t first_token, struct explanation *e)
{
    uint32_t wrong = 0, all = p->tokens / p->rows_per_token;
    bool *token = calloc(all, sizeof *token); /* [all] */
    for (uint32_t i = 0; token && i < p->tokens; i++)
        token[i / p->rows_per_token] |= p->token[i];
    for (uint32_t t = 0; token && t < all; t++)
        wrong += token[t];
    if (wrong && wrong < all)
        list(token, all, first_token, wrong, e->tokens, sizeof e->tokens);
    free(token);
    e->expert = p->expert;
    if (p->wrong_columns && p->wrong_columns < p->hidden)
        name_columns(p, e->columns, sizeof e->columns);
}
