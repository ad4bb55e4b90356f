/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of a router: experts and weights against the reference's bits, and against what truth allows. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/judge/checks.h"
#include "harness/judge/operators.h"
#include "quant/quant.h"

/* What a layer's routing is judged against, for the tokens of the outputs. */
struct expected {
    int32_t *ids;          /* [tokens, top_k], the reference's */
    float *weights;        /* [tokens, top_k] */
    double *x;             /* [tokens, hidden] */
    double *low, *high;    /* [tokens, experts], gb_bound_router */
    double *relative;      /* [tokens] */
    double *truth_weights; /* [tokens, top_k], of the subject's experts */
};

static void expected_free(struct expected *e)
{
    free(e->ids);
    free(e->weights);
    free(e->x);
    free(e->low);
    free(e->high);
    free(e->relative);
    free(e->truth_weights);
}

static enum gb_status expected_new(const struct gb_contract *contract, const struct gb_fixture *f, uint32_t layer,
                                   const struct gb_kernel *kernel, uint32_t tokens, struct expected *e,
                                   struct gb_error *error)
{
    size_t pairs = (size_t)tokens * f->shape.top_k, choices = (size_t)tokens * f->shape.experts;
    size_t inputs = (size_t)tokens * f->shape.hidden;
    struct gb_arguments a = gb_route_arguments(f, layer, tokens);
    *e = (struct expected){malloc(pairs * sizeof *e->ids),          malloc(pairs * sizeof *e->weights),
                           malloc(inputs * sizeof *e->x),           malloc(choices * sizeof *e->low),
                           malloc(choices * sizeof *e->high),       malloc(tokens * sizeof *e->relative),
                           malloc(pairs * sizeof *e->truth_weights)};
    if (!e->ids || !e->weights || !e->x || !e->low || !e->high || !e->relative || !e->truth_weights)
        return gb_fail(error, GB_ENOMEM, "no memory to judge the routing of %u tokens", tokens);
    if (!a.router_weights.codes)
        return gb_fail(error, GB_EINVAL, "layer %u of the fixture has no router", layer);
    a.routed_ids = e->ids;
    a.routed_weights = e->weights;
    for (size_t i = 0; i < inputs; i++)
        e->x[i] = (double)gb_bf16_decode(a.x[i]);
    enum gb_status status = gb_reference_router(contract, &a, error);
    double deviations = sqrt(2.0 * log(2.0 * (double)choices * f->layers / FALSE_ALARM_PROBABILITY));
    return status == GB_OK
               ? gb_bound_router(&a, e->x, kernel->accumulator_bits, deviations, e->low, e->high, e->relative, error)
               : status;
}

/* Every id is an expert, and no token has one twice. */
static bool valid(const struct gb_fixture *f, uint32_t layer, const struct gb_outputs *outputs, struct case_result *j)
{
    const int32_t *ids = outputs->layer[layer].ids;
    for (uint32_t t = 0; t < outputs->shape.tokens; t++, ids += f->shape.top_k)
        for (uint32_t s = 0; s < f->shape.top_k; s++) {
            bool good = ids[s] >= 0 && (uint32_t)ids[s] < f->shape.experts;
            for (uint32_t before = 0; before < s; before++)
                good &= ids[before] != ids[s];
            if (!good) {
                case_worsen(j, VERDICT_FAIL, "layer %u: token %u, slot %u has expert %d, out of 0..%u or twice", layer,
                            t, s, ids[s], f->shape.experts - 1);
                return false;
            }
        }
    return true;
}

static bool has(const int32_t *ids, uint32_t top_k, uint32_t expert)
{
    for (uint32_t s = 0; s < top_k; s++)
        if (ids[s] == (int32_t)expert)
            return true;
    return false;
}

/* Bits: experts in slot order, then weights. */
static void check_bits(const struct gb_fixture *f, uint32_t layer, const struct gb_outputs *outputs,
                       const struct expected *e, bool binding, struct layer_result *of_layer,
                       struct check_result *check, struct case_result *j)
{
    const struct gb_layer_outputs *out = &outputs->layer[layer];
    uint32_t top_k = f->shape.top_k;
    uint64_t pairs = (uint64_t)outputs->shape.tokens * top_k;
    struct difference ids = {.compared = pairs}, weights;
    for (uint64_t p = pairs; p-- > 0;)
        if (out->ids[p] != e->ids[p]) {
            ids.mismatching++;
            ids.first = p;
            ids.first_subject = (uint32_t)out->ids[p];
            ids.first_reference = (uint32_t)e->ids[p];
        }
    difference_of(GB_FP32, out->routing_weights, e->weights, pairs, &weights);
    layer_add_bits(of_layer, "ids", GB_FP32, top_k, &ids);
    layer_add_bits(of_layer, "weights", GB_FP32, top_k, &weights);
    layer_add_hash(of_layer, "ids_sha256", out->ids, pairs * sizeof *out->ids);
    layer_add_hash(of_layer, "weights_sha256", out->routing_weights, pairs * sizeof *out->routing_weights);
    check_add_bits(check, &ids);
    check_add_bits(check, &weights);
    if (binding && ids.mismatching)
        case_worsen(
            j, VERDICT_FAIL,
            "routing of layer %u: %llu of %llu experts differ from the reference; first at token %llu, slot %llu: %d, "
            "reference %d",
            layer, (unsigned long long)ids.mismatching, (unsigned long long)pairs,
            (unsigned long long)(ids.first / top_k), (unsigned long long)(ids.first % top_k),
            (int32_t)ids.first_subject, (int32_t)ids.first_reference);
    if (binding && weights.mismatching)
        case_worsen(
            j, VERDICT_FAIL,
            "routing weights of layer %u: %llu of %llu differ from the reference; first at token %llu, slot %llu: "
            "0x%08x, reference 0x%08x",
            layer, (unsigned long long)weights.mismatching, (unsigned long long)pairs,
            (unsigned long long)(weights.first / top_k), (unsigned long long)(weights.first % top_k),
            weights.first_subject, weights.first_reference);
}

/* The gap between the middles of two intervals in ulp of FP32 there. */
static double gap_ulp(const struct expected *e, size_t missing, size_t extra)
{
    double a = 0.5 * (e->low[missing] + e->high[missing]), b = 0.5 * (e->low[extra] + e->high[extra]);
    double ulp = ldexp(1.0, ilogb(fmax(fmax(fabs(a), fabs(b)), (double)FLT_MIN)) - 23);
    return isfinite(a) && isfinite(b) ? fabs(a - b) / ulp : 0.0;
}

/* One token: a set of experts is possible if none outside it must rank before one inside. */
static void check_token(const struct gb_fixture *f, uint32_t layer, uint32_t t, const int32_t *ids,
                        const struct expected *e, struct routed_tokens *tally, struct case_result *j)
{
    uint32_t experts = f->shape.experts, top_k = f->shape.top_k;
    size_t first = (size_t)t * experts;
    const int32_t *reference = e->ids + (size_t)t * top_k;
    double lowest = INFINITY, highest = -INFINITY, smallest = INFINITY, above = -INFINITY;
    size_t inside = 0, outside = 0;
    bool same = true;
    for (uint32_t i = 0; i < experts; i++) {
        bool in = has(ids, top_k, i);
        same &= in == has(reference, top_k, i);
        smallest = fmin(smallest, e->high[first + i]);
        above = fmax(above, e->low[first + i]);
        if (in && e->high[first + i] <= lowest) {
            lowest = e->high[first + i];
            inside = first + i;
        }
        if (!in && e->low[first + i] >= highest) {
            highest = e->low[first + i];
            outside = first + i;
        }
    }
    bool possible = top_k == experts || !(highest > lowest);
    tally->decided += top_k < experts && above > smallest;
    tally->same += same;
    tally->swapped += !same && possible;
    tally->wrong += !possible;
    if (!same && possible)
        for (uint32_t i = 0; i < experts; i++)
            for (uint32_t s = 0; s < top_k; s++)
                if (!has(ids, top_k, i) && has(reference, top_k, i) && !has(reference, top_k, (uint32_t)ids[s]))
                    tally->gap_ulp = fmax(tally->gap_ulp, gap_ulp(e, first + i, first + (size_t)ids[s]));
    if (!possible)
        case_worsen(
            j, VERDICT_FAIL,
            "routing of layer %u: token %u has expert %zu and not %zu, whose value is %.6g ulp away, outside the "
            "derived bound; %.9g..%.9g and %.9g..%.9g",
            layer, t, inside - first, outside - first, gap_ulp(e, outside, inside), e->low[inside], e->high[inside],
            e->low[outside], e->high[outside]);
}

/* Weights against truth's of the same experts. */
static void check_weights(const struct gb_fixture *f, uint32_t layer, const struct gb_outputs *outputs,
                          const struct expected *e, struct bound_result *r, struct case_result *j)
{
    const float *weights = outputs->layer[layer].routing_weights;
    uint32_t top_k = f->shape.top_k;
    memset(r, 0, sizeof *r);
    r->elements = (uint64_t)outputs->shape.tokens * top_k;
    for (uint64_t p = 0; p < r->elements; p++) {
        double truth = e->truth_weights[p], wrong = fabs((double)weights[p] - truth);
        if (isinf(e->relative[p / top_k]) || (isnan(truth) && isnan(weights[p])))
            continue;
        double limit = e->relative[p / top_k] * fabs(truth) + 0x1p-120, ratio = wrong / limit;
        r->zero_exceeding += fabs(truth) > limit;
        r->exceeding += !(wrong <= limit);
        if (!(ratio <= r->limit_ratio) && !isnan(r->limit_ratio)) {
            r->limit_ratio = r->worst_ratio = ratio;
            r->at = p;
        }
    }
    if (r->exceeding)
        case_worsen(
            j, VERDICT_FAIL,
            "routing weights of layer %u: %llu of %llu lie outside the derived bound around truth; worst at token "
            "%llu, slot %llu: %.9g, truth %.9g, %.3g times the bound",
            layer, (unsigned long long)r->exceeding, (unsigned long long)r->elements,
            (unsigned long long)(r->at / top_k), (unsigned long long)(r->at % top_k), (double)weights[r->at],
            e->truth_weights[r->at], r->limit_ratio);
}

static enum gb_status evaluate_layer(const struct gb_fixture *f, uint32_t layer, const struct gb_outputs *outputs,
                                     bool ordered, struct expected *e, struct layer_result *of_layer,
                                     struct check_result *bits, struct check_result *bound, struct case_result *j,
                                     struct gb_error *error)
{
    const struct gb_layer_outputs *out = &outputs->layer[layer];
    struct gb_arguments a = gb_route_arguments(f, layer, outputs->shape.tokens);
    struct routed_tokens tally = {0};
    struct bound_result r;
    check_bits(f, layer, outputs, e, ordered, of_layer, bits, j);
    if (!valid(f, layer, outputs, j))
        return GB_OK;
    enum gb_status status = gb_truth_routing_weights(&a, e->x, out->ids, e->truth_weights, error);
    if (status != GB_OK)
        return status;
    for (uint32_t t = 0; t < outputs->shape.tokens; t++)
        check_token(f, layer, t, out->ids + (size_t)t * f->shape.top_k, e, &tally, j);
    check_weights(f, layer, outputs, e, &r, j);
    layer_add_bound(of_layer, "weights", f->shape.top_k, &r);
    of_layer->routed = true;
    of_layer->tokens = tally;
    check_add_bound(bound, &r);
    if (!ordered && ((!tally.decided && f->shape.top_k < f->shape.experts) || !r.zero_exceeding))
        case_worsen(j, VERDICT_VACUOUS, "routing of layer %u: any experts, or any weights, would lie inside the bound",
                    layer);
    return GB_OK;
}

/* The bound binds; so do the bits if an order is claimed. */
static enum gb_status evaluate_routing(struct baseline *b, const struct gb_kernel *kernel,
                                       const struct gb_outputs *outputs, const struct policy *policy,
                                       struct case_result *j, struct gb_error *error)
{
    (void)policy; /* every one judges a router alike */
    const struct gb_fixture *f = b->fixture;
    bool ordered = kernel->order != NULL;
    struct check_result bits = {0}, bound = {0};
    enum gb_status status = case_result_layers(j, f, error);
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        struct expected e;
        status = expected_new(gb_contract_router(b->contract), f, l, kernel, outputs->shape.tokens, &e, error);
        if (status == GB_OK)
            status = evaluate_layer(f, l, outputs, ordered, &e, &j->layer[l], &bits, &bound, j, error);
        expected_free(&e);
    }
    j->judged = j->router = true;
    j->bits = bits;
    j->bound = bound;
    j->bits_binding = ordered;
    j->bound_binding = true;
    return status;
}

/* Tokens, of all layers, whose ids or weights a bug changes; and what saw it: "ids", "weights", or "range" for ids that
 * are no experts, or are there twice. */
static void injected_routing(const struct gb_outputs *outputs, const struct gb_outputs *clean,
                             const struct case_result *j, struct injected_result *r)
{
    uint32_t top_k = clean->shape.top_k;
    bool range = false, ids = false;
    r->figure[0].name = "changed_tokens";
    r->figures = 1;
    for (uint32_t l = 0; l < clean->layers; l++) {
        const struct gb_layer_outputs *a = &outputs->layer[l], *b = &clean->layer[l];
        for (size_t t = 0; t < clean->shape.tokens; t++)
            r->figure[0].count += memcmp(a->ids + t * top_k, b->ids + t * top_k, sizeof *a->ids * top_k) ||
                                  memcmp(a->routing_weights + t * top_k, b->routing_weights + t * top_k,
                                         sizeof *a->routing_weights * top_k);
        range |= !j->layer[l].routed;
        ids |= j->layer[l].tokens.wrong > 0;
    }
    if (range)
        r->seen_by[r->seen++] = "range";
    if (ids)
        r->seen_by[r->seen++] = "ids";
    if (j->bound.exceeding)
        r->seen_by[r->seen++] = "weights";
}

const struct operator_check operator_check_route = {GB_ROUTE, baselines_of_kernel, evaluate_routing, injected_routing};
