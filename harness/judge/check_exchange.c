/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of dispatch and combine: what was sent where, row by row, and sums by bits and by their bound. What is
 * wrong first is named with rank, token and slot. docs/gates.md#ranks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/faults/faults_exchange.h"
#include "harness/judge/checks.h"
#include "harness/judge/distance.h"
#include "harness/judge/operators.h"
#include "quant/quant.h"

static enum gb_status baseline_of_ranks(struct baselines *all, const struct gb_kernel *kernel, uint32_t tokens,
                                        struct baseline **baseline, struct gb_error *error)
{
    (void)kernel;
    return baselines_get_rows(all, tokens, exchange_reference, baseline, error);
}

/* "token 3 of rank 0, slot 2" */
enum { PLACE = 96 };
static const char *place_of(const struct gb_exchange *x, int64_t route, char text[PLACE])
{
    uint64_t token = (uint64_t)route / x->top_k;
    snprintf(text, PLACE, "token %llu of rank %llu, slot %llu", (unsigned long long)(token % x->tokens),
             (unsigned long long)(token / x->tokens), (unsigned long long)((uint64_t)route % x->top_k));
    return text;
}

/* The results of one layer, which is all there is. */
static enum gb_status result_new(struct case_result *j, struct gb_error *error)
{
    j->layer = calloc(1, sizeof *j->layer);
    j->layers = j->layer ? 1 : 0;
    j->judged = j->exchange = true;
    return j->layer ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for results");
}

/* Dispatch. */

struct sent {
    const struct gb_fixture *fixture;
    const struct gb_exchange *asked;
    const struct gb_outputs *reference, *outputs;
    uint32_t *times; /* [ranks * tokens * top_k], how many rows have the route */
    uint32_t *at;    /* the same: the last of them */
};

static bool is_route(const struct sent *s, int32_t route)
{
    return route >= 0 && (size_t)route < (size_t)s->fixture->shape.tokens * s->asked->top_k;
}

/* Who receives a row, from the reference's route. */
static uint32_t receiver_of(const struct sent *s, uint32_t row)
{
    const struct gb_exchanged *e = &s->fixture->exchanged;
    return (uint32_t)e->placement[e->ids[s->reference->routes[row]]];
}

static enum gb_status sent_new(const struct baseline *b, const struct gb_outputs *outputs, struct sent *s,
                               struct gb_error *error)
{
    size_t slots = (size_t)b->fixture->shape.tokens * b->fixture->shape.top_k;
    *s = (struct sent){b->fixture, &b->fixture->exchanged.asked,    b->reference,
                       outputs,    calloc(slots, sizeof *s->times), malloc(slots * sizeof *s->at)};
    if (!s->times || !s->at)
        return gb_fail(error, GB_ENOMEM, "no memory to check %zu slots", slots);
    for (uint32_t row = 0; row < s->asked->rows; row++)
        if (is_route(s, outputs->routes[row])) {
            s->times[outputs->routes[row]]++;
            s->at[outputs->routes[row]] = row;
        }
    return GB_OK;
}

static void sent_free(struct sent *s)
{
    free(s->times);
    free(s->at);
}

/* What has become of a route whose row has another: it is lost, or where it is. */
static void describe_fate(const struct sent *s, uint32_t row, char text[PLACE])
{
    int32_t route = s->reference->routes[row];
    if (!s->times[route])
        snprintf(text, PLACE, "is lost");
    else if (receiver_of(s, s->at[route]) != receiver_of(s, row))
        snprintf(text, PLACE, "went to rank %u", receiver_of(s, s->at[route]));
    else
        snprintf(text, PLACE, "is in row %u", s->at[route]);
}

/* What is there instead. */
static void describe_found(const struct sent *s, uint32_t row, char text[PLACE + 32])
{
    int32_t route = s->outputs->routes[row];
    char place[PLACE];
    if (!is_route(s, route) || s->fixture->exchanged.ids[route] < 0)
        snprintf(text, PLACE + 32, "%d, which is no route", route);
    else
        snprintf(text, PLACE + 32, "%s%s", place_of(s->asked, route, place),
                 s->times[route] > 1 ? ", which is there twice" : "");
}

static void check_routes(const struct sent *s, struct case_result *j)
{
    struct difference d = {.compared = s->asked->rows};
    uint64_t lost = 0, twice = 0, misrouted = 0;
    char place[PLACE], fate[PLACE], found[PLACE + 32];
    for (uint32_t row = s->asked->rows; row-- > 0;) {
        int32_t route = s->reference->routes[row];
        lost += !s->times[route];
        twice += s->times[route] > 1;
        misrouted += s->times[route] == 1 && receiver_of(s, s->at[route]) != receiver_of(s, row);
        if (s->outputs->routes[row] == route)
            continue;
        d.mismatching++;
        d.first = row;
        d.first_subject = (uint32_t)s->outputs->routes[row];
        d.first_reference = (uint32_t)route;
    }
    layer_add_bits(j->layer, "routes", GB_FP32, 1, &d);
    check_add_bits(&j->bits, &d);
    if (!d.mismatching)
        return;
    describe_fate(s, (uint32_t)d.first, fate);
    describe_found(s, (uint32_t)d.first, found);
    case_worsen(j, VERDICT_FAIL,
                "routes: %llu of %llu rows have another than the reference; first at rank %u, row %llu: %s %s; the row "
                "has %s; in all %llu routes are lost, %llu are there twice, %llu went to another rank",
                (unsigned long long)d.mismatching, (unsigned long long)d.compared, receiver_of(s, (uint32_t)d.first),
                (unsigned long long)d.first, place_of(s->asked, (int32_t)d.first_reference, place), fate, found,
                (unsigned long long)lost, (unsigned long long)twice, (unsigned long long)misrouted);
}

static void check_counts(const struct sent *s, struct case_result *j)
{
    uint32_t experts = s->asked->experts;
    struct difference d = {.compared = (uint64_t)s->asked->ranks * experts};
    for (uint64_t i = d.compared; i-- > 0;)
        if (s->outputs->counts[i] != s->reference->counts[i]) {
            d.mismatching++;
            d.first = i;
            d.first_subject = (uint32_t)s->outputs->counts[i];
            d.first_reference = (uint32_t)s->reference->counts[i];
        }
    layer_add_bits(j->layer, "counts", GB_FP32, experts, &d);
    check_add_bits(&j->bits, &d);
    if (d.mismatching)
        case_worsen(
            j, VERDICT_FAIL,
            "counts: %llu of %llu differ from the reference; first from rank %llu to expert %llu of rank %d: %d "
            "routes, reference %d",
            (unsigned long long)d.mismatching, (unsigned long long)d.compared, (unsigned long long)(d.first / experts),
            (unsigned long long)(d.first % experts), s->fixture->exchanged.placement[d.first % experts],
            (int32_t)d.first_subject, (int32_t)d.first_reference);
}

/* One element of an array of rows; FP32 scales that are NaN are one class. */
static uint32_t element_at(const struct gb_exchange_array *a, const void *values, uint64_t i)
{
    uint32_t bits = 0;
    memcpy(&bits, (const char *)values + i * a->element, a->element); /* little-endian */
    if (!strcmp(a->format, "fp32") && (bits & 0x7FFFFFFF) > 0x7F800000)
        bits = 0x7FC00000;
    return bits;
}

/* Another row of the reference that this one of the subject is; rows: none. */
static uint32_t row_that_is(const struct gb_exchange_array *a, const void *theirs, const void *ours, uint32_t row)
{
    size_t bytes = a->bytes / a->rows;
    uint32_t other = 0;
    while (other < a->rows && memcmp((const char *)theirs + row * bytes, (const char *)ours + other * bytes, bytes))
        other++;
    return other;
}

static void check_payload(const struct sent *s, enum gb_exchange_part part, struct case_result *j)
{
    struct gb_exchange_array a = gb_exchange_array(s->asked, GB_FP32, part);
    const void *theirs = gb_outputs_exchanged(s->outputs, part), *ours = gb_outputs_exchanged(s->reference, part);
    char place[PLACE], other_place[PLACE], is[PLACE + 64] = "", hash[32];
    if (!a.name)
        return;
    struct difference d = {.compared = (uint64_t)a.rows * a.columns};
    for (uint64_t i = d.compared; i-- > 0;)
        if (element_at(&a, theirs, i) != element_at(&a, ours, i)) {
            d.mismatching++;
            d.first = i;
            d.first_subject = element_at(&a, theirs, i);
            d.first_reference = element_at(&a, ours, i);
        }
    layer_add_bits(j->layer, a.name, GB_FP32, a.columns, &d);
    snprintf(hash, sizeof hash, "%s_sha256", a.name);
    layer_add_hash(j->layer, hash, theirs, a.bytes);
    check_add_bits(&j->bits, &d);
    if (!d.mismatching)
        return;
    uint32_t row = (uint32_t)(d.first / a.columns), other = row_that_is(&a, theirs, ours, row);
    if (other < a.rows)
        snprintf(is, sizeof is, "; they are those of %s", place_of(s->asked, s->reference->routes[other], other_place));
    case_worsen(j, VERDICT_FAIL,
                "%s: %llu of %llu differ from the reference; first at rank %u, row %u (%s), element %llu: 0x%0*x, "
                "reference 0x%0*x%s",
                a.name, (unsigned long long)d.mismatching, (unsigned long long)d.compared, receiver_of(s, row), row,
                place_of(s->asked, s->reference->routes[row], place), (unsigned long long)(d.first % a.columns),
                (int)(2 * a.element), d.first_subject, (int)(2 * a.element), d.first_reference, is);
}

static enum gb_status evaluate_dispatch(struct baseline *b, const struct gb_kernel *kernel,
                                        const struct gb_outputs *outputs, const struct policy *policy,
                                        struct case_result *j, struct gb_error *error)
{
    struct sent s = {0};
    (void)kernel;
    (void)policy; /* bits decide */
    enum gb_status status = result_new(j, error);
    if (status == GB_OK)
        status = sent_new(b, outputs, &s, error);
    if (status == GB_OK) {
        check_routes(&s, j);
        check_counts(&s, j);
        check_payload(&s, GB_EXCHANGE_CODES, j);
        check_payload(&s, GB_EXCHANGE_SCALES, j);
        j->bits_binding = true;
    }
    sent_free(&s);
    return status;
}

/* Combine. */

struct sums {
    double *truth, *worst; /* [tokens, hidden] */
    gb_bf16 *stored;       /* [tokens, hidden], the reference's output in bf16 */
    struct widened subject, reference;
};

static void sums_free(struct sums *s)
{
    free(s->truth);
    free(s->worst);
    free(s->stored);
    widened_free(&s->subject);
    widened_free(&s->reference);
}

static enum gb_status sums_new(const struct baseline *b, const struct gb_kernel *kernel,
                               const struct gb_outputs *outputs, struct sums *s, struct gb_error *error)
{
    const struct gb_arguments a = gb_fixture_exchange_arguments(b->fixture);
    const float *reference = b->reference->combined;
    size_t count = (size_t)a.shape.tokens * a.shape.hidden;
    *s = (struct sums){.truth = malloc(count * sizeof *s->truth),
                       .worst = malloc(count * sizeof *s->worst),
                       .stored = malloc(count * sizeof *s->stored)};
    if (!s->truth || !s->worst || !s->stored)
        return gb_fail(error, GB_ENOMEM, "no memory to check %zu sums", count);
    for (size_t i = 0; i < count; i++)
        s->stored[i] = gb_bf16_encode(reference[i]);
    enum gb_status status =
        gb_bound_exchange(&a, outputs->combined_format, kernel->accumulator_bits, s->truth, s->worst, error);
    if (status == GB_OK)
        status = widen(outputs->combined_format, outputs->combined, count, &s->subject, error);
    return status == GB_OK ? widen(GB_FP32, reference, count, &s->reference, error) : status;
}

/* The file's truth is that of its inputs, but for the roundings of float64. */
static void check_truth(const struct gb_fixture *f, const struct sums *s, struct case_result *j)
{
    const double narrow = 0x1p-24; /* of FP32's bound that of float64 is far less */
    const double *stored = f->exchanged.truth;
    for (size_t i = 0; i < (size_t)f->shape.tokens * f->shape.hidden; i++)
        if (!(fabs(stored[i] - s->truth[i]) <= narrow * s->worst[i]) && !(isnan(stored[i]) && isnan(s->truth[i]))) {
            case_worsen(
                j, VERDICT_BAD_INPUT,
                "/truth/output: is not that of its inputs: token %zu, element %zu is %.17g, and should be %.17g",
                i / f->shape.hidden, i % f->shape.hidden, stored[i], s->truth[i]);
            return;
        }
}

static void check_sum_bits(const struct baseline *b, const struct gb_outputs *outputs, const struct sums *s,
                           struct case_result *j)
{
    const struct gb_exchange *x = &b->fixture->exchanged.asked;
    const void *ours = outputs->combined_format == GB_BF16 ? (const void *)s->stored : b->reference->combined;
    int digits = outputs->combined_format == GB_BF16 ? 4 : 8;
    uint64_t count = (uint64_t)b->fixture->shape.tokens * x->hidden;
    struct difference d;
    difference_of(outputs->combined_format, outputs->combined, ours, count, &d);
    layer_add_bits(j->layer, "output", outputs->combined_format, x->hidden, &d);
    layer_add_hash(j->layer, "output_sha256", outputs->combined,
                   gb_exchange_array(x, outputs->combined_format, GB_EXCHANGE_OUTPUT).bytes);
    check_add_bits(&j->bits, &d);
    uint64_t token = d.first / x->hidden;
    if (j->bits_binding && d.mismatching)
        case_worsen(j, VERDICT_FAIL,
                    "output: %llu of %llu elements differ from the reference; first at rank %llu, token %llu, element "
                    "%llu: 0x%0*x, reference 0x%0*x",
                    (unsigned long long)d.mismatching, (unsigned long long)d.compared,
                    (unsigned long long)(token / x->tokens), (unsigned long long)(token % x->tokens),
                    (unsigned long long)(d.first % x->hidden), digits, d.first_subject, digits, d.first_reference);
}

static void check_sum_bounds(const struct baseline *b, const struct sums *s, struct case_result *j)
{
    const struct gb_exchange *x = &b->fixture->exchanged.asked;
    uint32_t tokens = b->fixture->shape.tokens;
    struct bound_result r;
    const struct enclosure expected = {.truth = s->truth, .worst = s->worst, .sigma = s->worst};
    bound_compare(s->subject.value, &expected, tokens, x->hidden, (uint64_t)tokens * x->hidden, &r);
    layer_add_bound(j->layer, "output", x->hidden, &r);
    check_add_bound(&j->bound, &r);
    uint64_t token = r.at / x->hidden;
    if (r.exceeding)
        case_worsen(
            j, VERDICT_FAIL,
            "output: %llu of %llu elements exceed the error bound of %s accumulation; worst at rank %llu, token "
            "%llu, element %llu: %.9g, truth %.9g, %.3g times the bound",
            (unsigned long long)r.exceeding, (unsigned long long)r.elements, gb_accumulation_name(x->accumulation),
            (unsigned long long)(token / x->tokens), (unsigned long long)(token % x->tokens),
            (unsigned long long)(r.at % x->hidden), s->subject.value[r.at], s->truth[r.at], r.limit_ratio);
    if (!r.zero_exceeding)
        case_worsen(j, VERDICT_VACUOUS, "zeros would lie inside the bound, so nothing was verified");
}

static void add_distance(struct layer_result *layer, const char *subject, const double *values, const double *truth,
                         const struct gb_shape *shape)
{
    struct metrics m;
    metrics_start(&m);
    metrics_add(&m, values, truth, shape->tokens, shape->hidden);
    layer->distance[layer->distance_count++] = (struct stage_distance){subject, "output", m};
}

static enum gb_status evaluate_combine(struct baseline *b, const struct gb_kernel *kernel,
                                       const struct gb_outputs *outputs, const struct policy *policy,
                                       struct case_result *j, struct gb_error *error)
{
    struct sums s = {0};
    (void)policy; /* every one judges sums over ranks alike */
    enum gb_status status = result_new(j, error);
    if (status == GB_OK)
        status = sums_new(b, kernel, outputs, &s, error);
    if (status == GB_OK) {
        j->bits_binding = kernel->order != NULL;
        j->bound_binding = true;
        check_truth(b->fixture, &s, j);
        check_sum_bits(b, outputs, &s, j);
        check_sum_bounds(b, &s, j);
        add_distance(j->layer, "subject_truth", s.subject.value, s.truth, &b->fixture->shape);
        add_distance(j->layer, "reference_truth", s.reference.value, s.truth, &b->fixture->shape);
    }
    sums_free(&s);
    return status;
}

/* How many elements of each array a bug changes, and which check sees it. */
static void injected_exchange(const struct gb_outputs *outputs, const struct gb_outputs *clean,
                              const struct case_result *j, struct injected_result *r)
{
    const struct layer_result *layer = j->layer;
    (void)outputs;
    (void)clean;
    for (uint32_t i = 0; i < layer->bits_count && i < MOST_FIGURES; i++) {
        r->figure[r->figures].name = layer->bits[i].stage;
        r->figure[r->figures++].count = layer->bits[i].of.mismatching;
        if (j->bits_binding && layer->bits[i].of.mismatching && !j->bound_binding)
            r->seen_by[r->seen++] = layer->bits[i].stage;
    }
    if (j->bound_binding && j->bits_binding && j->bits.mismatching)
        r->seen_by[r->seen++] = "bits";
    if (j->bound_binding && j->bound.exceeding)
        r->seen_by[r->seen++] = "bound";
}

const struct operator_check operator_check_dispatch = {GB_DISPATCH, baseline_of_ranks, evaluate_dispatch,
                                                       injected_exchange};
const struct operator_check operator_check_combine = {GB_COMBINE, baseline_of_ranks, evaluate_combine,
                                                      injected_exchange};
