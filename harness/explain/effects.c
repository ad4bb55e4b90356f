/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/effects.h"
#include "harness/explain/places.h"

static double slack(const struct observed *o, double value)
{
    return o->tolerance + o->relative * fabs(value);
}

static bool near(const struct observed *o, double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b);
    return a == b || fabs(a - b) <= slack(o, fmax(fabs(a), fabs(b)));
}

static const double *clean_row(const struct observed *o, uint32_t n)
{
    return o->clean + (size_t)o->row[n] * o->width;
}

bool effect_fits(const struct observed *o, const double *made, struct finding *f)
{
    bool *is = calloc(o->width, sizeof *is), *would = calloc(o->width, sizeof *would), good = is && would;
    bool *not = calloc(o->width, sizeof *not );
    size_t wrong = 0, missed = 0, against = 0;
    good = good && not ;
    for (uint32_t n = 0; good && n < o->rows; n++)
        for (size_t i = 0; i < o->width; i++) {
            double clean = clean_row(o, n)[i], seen = o->values[n * o->width + i], m = made[n * o->width + i];
            bool differs = !near(o, seen, clean);
            wrong += differs;
            missed += differs && !near(o, seen, m);
            is[i] |= differs;
            not [i] |= !differs && (isnan(m) ? !isnan(clean) : fabs(m - clean) > 2.0 * slack(o, m));
        }
    good = good && wrong && 200 * missed <= wrong;
    for (size_t i = 0; good && i < o->width; i++) {
        against += is[i] && not [i];
        would[i] = not [i];
    }
    good = good && against * 200 <= o->width && axis_describe(is, would, (uint32_t)o->width, &f->elements);
    free(is);
    free(would);
    free(not );
    return good;
}

static bool tried(const struct observed *o, struct finding *f, double *made)
{
    for (uint32_t n = 0; n < o->rows; n++)
        for (size_t i = 0; i < o->width; i++)
            made[n * o->width + i] = effect_of(f, o->clean, o->count, o->per_token, o->width, o->row[n], i);
    return effect_fits(o, made, f);
}

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* The wrong elements' values seen, right ones, ratios and differences. */
struct sample {
    double *seen, *clean, *ratio, *difference; /* [count] */
    size_t count;
};

static bool sample_new(const struct observed *o, struct sample *s)
{
    size_t most = (size_t)o->rows * o->width;
    *s = (struct sample){malloc(4 * most * sizeof(double)), NULL, NULL, NULL, 0};
    if (!s->seen)
        return false;
    s->clean = s->seen + most;
    s->ratio = s->clean + most;
    s->difference = s->ratio + most;
    for (uint32_t n = 0; n < o->rows; n++)
        for (size_t i = 0; i < o->width; i++) {
            double seen = o->values[n * o->width + i], clean = clean_row(o, n)[i];
            if (near(o, seen, clean))
                continue;
            s->seen[s->count] = seen;
            s->clean[s->count] = clean;
            s->difference[s->count++] = seen - clean;
        }
    return s->count > 0;
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

/* The ratio by the larger ones of the wrong elements. */
static double factor_of(struct sample *s)
{
    double squares = 0.0;
    size_t used = 0;
    for (size_t i = 0; i < s->count; i++)
        squares += s->clean[i] * s->clean[i];
    double typical = sqrt(squares / (double)s->count);
    for (size_t i = 0; i < s->count; i++)
        if (fabs(s->clean[i]) >= 0.5 * typical)
            s->ratio[used++] = s->seen[i] / s->clean[i];
    if (!used)
        return NAN;
    double c = median(s->ratio, used), top = 0.0, bottom = 0.0;
    for (size_t i = 0; i < s->count; i++)
        if (fabs(s->seen[i] - c * s->clean[i]) <= 0.05 * fabs(c * s->clean[i])) {
            top += s->seen[i] * s->clean[i];
            bottom += s->clean[i] * s->clean[i];
        }
    return bottom > 0.0 ? top / bottom : c;
}

static double largest(const double *values, size_t count)
{
    double most = 0.0;
    for (size_t i = 0; i < count; i++)
        most = fmax(most, fabs(values[i]));
    return most;
}

/* The largest for sign 1, the smallest for -1. */
static double extreme(const double *values, size_t count, double sign)
{
    double most = values[0];
    for (size_t i = 1; i < count; i++)
        most = sign * fmax(sign * most, sign * values[i]);
    return most;
}

/* Offsets by which the first wrong elements are other elements of their row. */
static void try_moves(const struct observed *o, double *made, struct finding *f, struct finding *out, uint32_t most,
                      uint32_t *count)
{
    for (uint32_t d = 1; d < o->width && *count < most; d++) {
        uint32_t looked = 0;
        bool ring = true, flip = (d & (d - 1)) == 0;
        for (uint32_t n = 0; n < o->rows && looked < 16; n++)
            for (size_t i = 0; i < o->width && looked < 16; i++) {
                double seen = o->values[n * o->width + i], clean = clean_row(o, n)[i];
                if (near(o, seen, clean))
                    continue;
                looked++;
                ring = ring && near(o, seen, clean_row(o, n)[(i + d) % o->width]);
                flip = flip && (i ^ d) < o->width && near(o, seen, clean_row(o, n)[i ^ d]);
            }
        f->effect = FINDING_ELEMENT;
        f->offset = 2 * d <= o->width ? (int32_t)d : (int32_t)d - (int32_t)o->width;
        if (ring && tried(o, f, made))
            out[(*count)++] = *f;
        f->effect = FINDING_XOR;
        f->offset = (int32_t)d;
        if (flip && *count < most && tried(o, f, made))
            out[(*count)++] = *f;
    }
    f->effect = FINDING_SHARED;
    for (f->offset = 1; (size_t)f->offset < o->width && *count < most; f->offset = 2 * f->offset + 1)
        if (tried(o, f, made))
            out[(*count)++] = *f;
    f->effect = FINDING_TILED;
    for (f->offset = 2; f->offset <= MOST_TILED && *count < most; f->offset *= 2)
        for (f->columns = 2; f->columns <= MOST_TILED && *count < most; f->columns *= 2)
            if (o->width % (size_t)(f->offset * f->columns) == 0 && tried(o, f, made))
                out[(*count)++] = *f;
    f->columns = 0;
    f->offset = 0;
    f->effect = FINDING_REVERSE;
    if (*count < most && tried(o, f, made))
        out[(*count)++] = *f;
}

static void try_rows_of_others(const struct observed *o, double *made, struct finding *f, struct finding *out,
                               uint32_t most, uint32_t *count)
{
    uint32_t tokens = (uint32_t)(o->count / o->per_token);
    /* A token's weights often sum to 1, which is no sum of a kernel's. */
    for (int added = 0; added < (o->stage == FINDING_ROUTING_WEIGHT ? 1 : 2); added++) {
        f->added = added;
        for (uint32_t d = 1; d < tokens && *count < most; d++) {
            f->effect = FINDING_TOKEN;
            f->offset = 2 * d <= tokens ? (int32_t)d : (int32_t)d - (int32_t)tokens;
            if (tried(o, f, made))
                out[(*count)++] = *f;
        }
        for (uint32_t d = 1; d < o->per_token && *count < most; d++) {
            f->effect = FINDING_SLOT;
            f->offset = 2 * d <= o->per_token ? (int32_t)d : (int32_t)d - (int32_t)o->per_token;
            if (tried(o, f, made))
                out[(*count)++] = *f;
        }
    }
    f->added = false;
    f->effect = FINDING_TOKEN_XOR;
    for (f->offset = 1; (uint32_t)f->offset < tokens && *count < most; f->offset *= 2)
        if (tried(o, f, made))
            out[(*count)++] = *f;
}

uint32_t effects_infer(const struct observed *o, struct finding *out, uint32_t most)
{
    struct sample s;
    struct finding f = {.stage = o->stage};
    uint32_t count = 0;
    double *made = malloc((size_t)o->rows * o->width * sizeof *made);
    if (!sample_new(o, &s) || !made) {
        free(s.seen);
        free(made);
        return 0;
    }
    double seen = largest(s.seen, s.count), clean = largest(s.clean, s.count);
    bool many = s.count >= FEW_ELEMENTS, finite = isfinite(seen);
    const int types = o->stage == FINDING_ACT || o->stage == FINDING_INPUT ? FINDING_TYPES : FINDING_ROW_TYPES;
    const double constants[] = {0.0, NAN, s.seen[0]};
    for (int i = 0; i < 3 && count < most; i++) {
        f = (struct finding){.stage = o->stage, .effect = FINDING_CONSTANT, .amount = constants[i]};
        if ((i < 2 || (many && constants[i] != 0.0)) && tried(o, &f, made))
            out[count++] = f;
    }
    f = (struct finding){.stage = o->stage, .effect = FINDING_NEGATIVE};
    if (finite && many && count < most && tried(o, &f, made))
        out[count++] = f;
    f = (struct finding){.stage = o->stage, .effect = FINDING_FACTOR, .amount = factor_of(&s)};
    if (!many) /* only what nobody takes for chance */
        f.amount = fabs(f.amount + 1.0) < 1e-6 ? -1.0 : NAN;
    if (finite && isfinite(f.amount) && count < most && tried(o, &f, made))
        out[count++] = f;
    f = (struct finding){.stage = o->stage, .effect = FINDING_ADD, .amount = median(s.difference, s.count)};
    if (finite && many && count < most && tried(o, &f, made))
        out[count++] = f;
    for (int type = 0; finite && type < types && count < most; type++) {
        f = (struct finding){.stage = o->stage, .effect = FINDING_ROUND, .type = (enum finding_type)type};
        if (many && tried(o, &f, made))
            out[count++] = f;
    }
    f = (struct finding){.stage = o->stage, .effect = FINDING_SATURATE, .amount = seen};
    if (finite && many && count < most && tried(o, &f, made))
        out[count++] = f;
    for (int n = 0; n < 2; n++) {
        f = (struct finding){.stage = o->stage,
                             .effect = n ? FINDING_FLOOR : FINDING_CAP,
                             .amount = extreme(s.seen, s.count, n ? -1.0 : 1.0)};
        if (finite && many && count < most && tried(o, &f, made))
            out[count++] = f;
    }
    f = (struct finding){.stage = o->stage, .effect = FINDING_FLUSH, .amount = nextafter(clean, INFINITY)};
    if (finite && many && count < most && tried(o, &f, made))
        out[count++] = f;
    f = (struct finding){.stage = o->stage};
    if (finite && count < most)
        try_moves(o, made, &f, out, most, &count);
    if (finite && count < most)
        try_rows_of_others(o, made, &f, out, most, &count);
    free(s.seen);
    free(made);
    return count;
}
