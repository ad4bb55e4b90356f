/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/faults/faults_route.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/faults/operators.h"
#include "quant/quant.h"

/* Mistaken recipes. */

static bool bias_left_out(struct gb_router *r)
{
    bool had = r->bias != GB_ROUTER_BIAS_NONE;
    r->bias = GB_ROUTER_BIAS_NONE;
    return had;
}

static bool not_renormalised(struct gb_router *r)
{
    bool did = r->renormalise != GB_ROUTER_RENORMALISE_NONE;
    r->renormalise = GB_ROUTER_RENORMALISE_NONE;
    return did;
}

static bool renormalised(struct gb_router *r)
{
    bool did = r->renormalise != GB_ROUTER_RENORMALISE_NONE;
    r->renormalise = GB_ROUTER_RENORMALISE_DIVIDE;
    r->renormalise_from = 1;
    return !did && r->weight != GB_ROUTER_WEIGHT_SOFTMAX_CHOSEN;
}

static bool scale_missing(struct gb_router *r)
{
    bool had = r->scale != 1.0f;
    r->scale = 1.0f;
    return had;
}

static bool scale_twice(struct gb_router *r)
{
    bool had = r->scale != 1.0f;
    r->scale *= r->scale;
    return had;
}

static bool softmax_of_all(struct gb_router *r)
{
    bool chosen = r->weight == GB_ROUTER_WEIGHT_SOFTMAX_CHOSEN;
    r->weight = GB_ROUTER_WEIGHT_SOFTMAX_ALL;
    return chosen;
}

static bool sigmoid_for_softmax(struct gb_router *r)
{
    bool softmax = r->score == GB_ROUTER_SCORE_SOFTMAX || r->score == GB_ROUTER_SCORE_SOFTMAX_RECIPROCAL;
    r->score = GB_ROUTER_SCORE_SIGMOID;
    return softmax;
}

static bool softmax_for_sigmoid(struct gb_router *r)
{
    bool sigmoid = r->score == GB_ROUTER_SCORE_SIGMOID;
    r->score = GB_ROUTER_SCORE_SOFTMAX;
    return sigmoid;
}

static bool groups_ignored(struct gb_router *r)
{
    bool had = r->groups > 1 && r->kept_groups < r->groups;
    r->groups = r->kept_groups = 1;
    return had;
}

static bool group_maximum(struct gb_router *r)
{
    bool summed = r->groups > 1 && r->kept_groups < r->groups && r->group_terms > 1;
    r->group_terms = 1;
    return summed;
}

static bool masked_group_included(struct gb_router *r)
{
    bool had = r->groups > 1 && r->kept_groups < r->groups;
    r->kept_groups += had;
    return had && r->group_terms != 0; /* whose number would change with it */
}

static bool weights_in_bf16(struct gb_router *r)
{
    bool full = r->weights == GB_FP32;
    r->weights = GB_BF16;
    return full;
}

static bool logits_in_bf16(struct gb_router *r)
{
    bool full = r->logits == GB_FP32;
    r->logits = GB_BF16;
    return full;
}

/* Mistaken results. */

static size_t pairs(const struct routed *r)
{
    return (size_t)r->arguments->shape.tokens * r->arguments->shape.top_k;
}

/* The score of the expert in this slot, with its bias or without. */
static double score(const struct routed *r, size_t p, bool biased)
{
    const struct gb_shape *s = &r->arguments->shape;
    return (double)r->scores[p / s->top_k * s->experts + (size_t)r->ids[p]] +
           (biased ? (double)r->arguments->router_bias[r->ids[p]] : 0.0);
}

/* From scores: by the recipe's scale and, if it renormalises, over `all` experts or the chosen ones. */
static void weigh(struct routed *r, bool biased, bool all)
{
    const struct gb_router *router = r->arguments->router;
    const uint32_t top_k = r->arguments->shape.top_k, experts = r->arguments->shape.experts;
    bool divides = router->renormalise != GB_ROUTER_RENORMALISE_NONE && top_k >= router->renormalise_from;
    for (size_t t = 0; t < r->arguments->shape.tokens; t++) {
        double sum = 0.0;
        for (uint32_t e = 0; all && e < experts; e++)
            sum += (double)r->scores[t * experts + e];
        for (uint32_t k = 0; !all && k < top_k; k++)
            sum += score(r, t * top_k + k, biased);
        for (uint32_t k = 0; k < top_k; k++)
            r->weights[t * top_k + k] =
                (float)(score(r, t * top_k + k, biased) / (divides ? sum : 1.0) * (double)router->scale);
    }
}

static bool bias_in_weights(struct routed *r)
{
    bool choice = r->arguments->router->bias == GB_ROUTER_BIAS_CHOICE;
    if (choice)
        weigh(r, true, false);
    return choice;
}

static bool renormalised_over_all(struct routed *r)
{
    const struct gb_router *router = r->arguments->router;
    bool did = router->renormalise != GB_ROUTER_RENORMALISE_NONE && router->weight == GB_ROUTER_WEIGHT_SCORE &&
               r->arguments->shape.top_k >= router->renormalise_from;
    if (did)
        weigh(r, false, true);
    return did;
}

static bool ids_off_by_one(struct routed *r)
{
    for (size_t p = 0; p < pairs(r); p++)
        r->ids[p] = (r->ids[p] + 1) % (int32_t)r->arguments->shape.experts;
    return r->arguments->shape.experts > r->arguments->shape.top_k;
}

static bool ids_from_one(struct routed *r)
{
    for (size_t p = 0; p < pairs(r); p++)
        r->ids[p]++;
    return true;
}

static bool expert_twice(struct routed *r)
{
    uint32_t top_k = r->arguments->shape.top_k;
    for (size_t p = top_k - 1; p < pairs(r); p += top_k)
        r->ids[p] = r->ids[p + 1 - top_k];
    return top_k > 1;
}

/* Ids stay as they are. */
static bool weights_reversed(struct routed *r)
{
    uint32_t top_k = r->arguments->shape.top_k;
    for (size_t first = 0; first < pairs(r); first += top_k)
        for (uint32_t k = 0; k < top_k / 2; k++) {
            float w = r->weights[first + k];
            r->weights[first + k] = r->weights[first + top_k - 1 - k];
            r->weights[first + top_k - 1 - k] = w;
        }
    return top_k > 1;
}

static bool next_best(struct routed *r)
{
    uint32_t top_k = r->arguments->shape.top_k;
    for (uint32_t t = 0; t < r->arguments->shape.tokens; t++)
        if (r->next[t] >= 0)
            r->ids[(size_t)(t + 1) * top_k - 1] = r->next[t];
    return r->arguments->shape.experts > top_k;
}

static bool next_tokens_experts(struct routed *r)
{
    uint32_t top_k = r->arguments->shape.top_k, tokens = r->arguments->shape.tokens;
    for (uint32_t t = 0; t + 1 < tokens; t++)
        memcpy(r->ids + (size_t)t * top_k, r->ids + (size_t)(t + 1) * top_k, sizeof *r->ids * top_k);
    return tokens > 1;
}

static const struct route_fault table[] = {
    {"bias left out of the choice", bias_left_out, NULL, "a path without e_score_correction_bias"},
    {"bias in the weights", NULL, bias_in_weights, "weights gathered from the biased scores, not from the scores"},
    {"not renormalised", not_renormalised, NULL, "norm_topk_prob not read"},
    {"renormalised where the recipe is not", renormalised, NULL, "norm_topk_prob taken for true"},
    {"renormalised over all experts", NULL, renormalised_over_all, "the sum is taken before the choice of experts"},
    {"scaling factor missing", scale_missing, NULL, "FlashInfer #3499: mRouteScale is 1.0"},
    {"scaling factor twice", scale_twice, NULL, "vLLM #24119, #45037"},
    {"softmax over all experts for that over the chosen", softmax_of_all, NULL, "softmax and top-k in the other order"},
    {"sigmoid for softmax", sigmoid_for_softmax, NULL, "a scoring_func taken for another one's"},
    {"softmax for sigmoid", softmax_for_sigmoid, NULL, "scoring_func left at its default"},
    {"groups ignored", groups_ignored, NULL, "plain top-k where the model has n_group"},
    {"largest of a group for the sum of its two largest", group_maximum, NULL, "DeepSeek-V2's rule for DeepSeek-V3"},
    {"masked group included", masked_group_included, NULL, "topk_group one too large"},
    {"ids off by one", NULL, ids_off_by_one, "FlashInfer #3066: local_expert_offset dropped"},
    {"ids counted from one", NULL, ids_from_one, "an index of a padded table"},
    {"expert twice", NULL, expert_twice, "a winner that is not removed before the next round"},
    {"next best expert for the last one", NULL, next_best, "llama.cpp #5473: another top-k"},
    {"weights in reverse", NULL, weights_reversed, "ids and weights sorted apart"},
    {"ids of the next token", NULL, next_tokens_experts, "a row pointer advanced before its use"},
    {"weights in bf16", weights_in_bf16, NULL, "vLLM #16674: topk_weights must be FP32"},
    {"logits in bf16", logits_in_bf16, NULL, "the router's product in the activations' type"},
};

const struct route_fault *route_faults(size_t *count)
{
    *count = sizeof table / sizeof *table;
    return table;
}

/* The recipe on all experts, with neither groups nor bias beside the scores, nor renormalisation. */
static enum gb_status find_scores(const struct gb_contract *contract, const struct gb_arguments *a, struct routed *r,
                                  struct gb_error *error)
{
    struct gb_router plain = *a->router;
    struct gb_arguments all = *a;
    size_t count = (size_t)a->shape.tokens * a->shape.experts;
    float *weights = malloc(sizeof *weights * count); /* [tokens, experts], by descending score */
    int32_t *ids = malloc(sizeof *ids * count);       /* [tokens, experts] */
    plain.groups = plain.kept_groups = 1;
    plain.group_terms = 0;
    plain.renormalise = GB_ROUTER_RENORMALISE_NONE;
    plain.scale = 1.0f;
    if (plain.bias != GB_ROUTER_BIAS_LOGIT)
        plain.bias = GB_ROUTER_BIAS_NONE;
    all.router = &plain;
    all.router_bias = plain.bias == GB_ROUTER_BIAS_NONE ? NULL : a->router_bias;
    all.shape.top_k = a->shape.experts;
    all.routed_ids = ids;
    all.routed_weights = weights;
    enum gb_status status = weights && ids ? gb_reference_router(contract, &all, error)
                                           : gb_fail(error, GB_ENOMEM, "no memory for %zu scores", count);
    for (size_t i = 0; status == GB_OK && i < count; i++)
        r->scores[i / a->shape.experts * a->shape.experts + (size_t)ids[i]] = weights[i];
    free(weights);
    free(ids);
    return status;
}

/* The recipe with one expert more. */
static enum gb_status find_next(const struct gb_contract *contract, const struct gb_arguments *a, struct routed *r,
                                struct gb_error *error)
{
    struct gb_arguments more = *a;
    size_t count = (size_t)a->shape.tokens * (a->shape.top_k + 1);
    for (uint32_t t = 0; t < a->shape.tokens; t++)
        r->next[t] = -1;
    if (a->shape.top_k == a->shape.experts)
        return GB_OK;
    more.shape.top_k++;
    more.routed_ids = malloc(sizeof *more.routed_ids * count);         /* [tokens, top_k + 1] */
    more.routed_weights = malloc(sizeof *more.routed_weights * count); /* [tokens, top_k + 1] */
    enum gb_status status =
        more.routed_ids && more.routed_weights ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for %zu experts", count);
    if (status == GB_OK && gb_reference_router(contract, &more, NULL) == GB_OK) /* a recipe may not go with one more */
        for (uint32_t t = 0; t < a->shape.tokens; t++)
            r->next[t] = more.routed_ids[(size_t)(t + 1) * more.shape.top_k - 1];
    free(more.routed_ids);
    free(more.routed_weights);
    return status;
}

enum gb_status route_fault_run(const struct route_fault *fault, const struct gb_contract *contract,
                               const struct gb_arguments *a, bool *applies, struct gb_error *error)
{
    struct gb_router router = *a->router;
    struct gb_arguments changed = *a;
    changed.router = &router;
    *applies = !fault->change || fault->change(&router);
    if (!*applies)
        return GB_OK;
    if (router.bias == GB_ROUTER_BIAS_NONE)
        changed.router_bias = NULL;
    enum gb_status status = gb_reference_router(contract, &changed, error);
    if (status != GB_OK || !fault->spoil)
        return status;
    struct routed r = {a, a->routed_ids, a->routed_weights,
                       malloc(sizeof *r.scores * a->shape.tokens * a->shape.experts),
                       malloc(sizeof *r.next * a->shape.tokens)};
    status = r.scores && r.next ? find_scores(contract, a, &r, error)
                                : gb_fail(error, GB_ENOMEM, "no memory for the scores of %u tokens", a->shape.tokens);
    status = status == GB_OK ? find_next(contract, a, &r, error) : status;
    *applies = status == GB_OK && fault->spoil(&r);
    free(r.scores);
    free(r.next);
    return status;
}

static bool has_routers(const struct gb_fixture *f)
{
    for (uint32_t l = 0; l < f->layers; l++)
        if (!f->layer[l].router.codes || !gb_fixture_router(f))
            return false;
    return f->layers;
}

static bool fault_of_router(size_t index, struct operator_fault *fault)
{
    if (index >= sizeof table / sizeof *table)
        return false;
    *fault = (struct operator_fault){table[index].name, table[index].modelled_on, false};
    return true;
}

static enum gb_status run_router(int64_t index, const struct gb_contract *contract, const struct gb_fixture *f,
                                 struct gb_outputs **outputs, struct gb_error *error)
{
    const struct gb_contract *of_router = gb_contract_router(contract);
    bool applies = index < 0, here;
    enum gb_status status = gb_outputs_new_routing(&f->shape, f->layers, outputs, error);
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        struct gb_arguments a = gb_route_arguments(f, l, f->shape.tokens);
        a.routed_ids = (*outputs)->layer[l].ids;
        a.routed_weights = (*outputs)->layer[l].routing_weights;
        status = index < 0 ? gb_reference_router(of_router, &a, error)
                           : route_fault_run(&table[index], of_router, &a, &here, error);
        applies |= index >= 0 && status == GB_OK && here;
    }
    if (status != GB_OK || !applies) {
        gb_outputs_free(*outputs);
        *outputs = NULL;
    }
    return status;
}

const struct operator_faults operator_faults_route = {
    GB_ROUTE, "router_bugs", has_routers, fault_of_router, run_router, 0, NULL, NULL,
};
