/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/program/make_exchange.h"

#include <stdio.h>
#include <string.h>

#include "harness/program/command.h"
#include "quant/quant.h"
#include "reference/reference.h"

static uint32_t count(struct argp_state *state, const char *name, const char *text, uint64_t low)
{
    enum { MOST = 4096 };
    uint64_t value = 0;
    if (!parse_number(text, low, MOST, &value))
        usage_error(state, "--%s %s: give a whole number from %d to %d", name, text, (int)low, MOST);
    return (uint32_t)value;
}

static const char *placement(struct argp_state *state, const char *text)
{
    size_t kinds;
    const struct gb_placement_kind *all = gb_placement_kinds(&kinds);
    for (size_t i = 0; i < kinds; i++)
        if (!strcmp(text, all[i].name))
            return all[i].name;
    usage_error(state, "--placement %s: there are blocks, round-robin, random and one", text);
}

static enum gb_accumulation accumulation(struct argp_state *state, const char *text)
{
    for (enum gb_accumulation a = GB_AT_RECEIVER; gb_accumulation_name(a); a++)
        if (!strcmp(text, gb_accumulation_name(a)))
            return a;
    usage_error(state, "--accumulation %s: there are receiver, sender and node", text);
}

error_t make_exchange_parse(int key, char *argument, struct argp_state *state, struct make_exchange *o)
{
    static const char *const names[] = {"ranks", "placement", "accumulation", "ranks-per-node", "empty-ranks"};
    if (key < MAKE_RANKS || key > MAKE_EMPTY_RANKS)
        return ARGP_ERR_UNKNOWN;
    o->first = o->first ? o->first : names[key - MAKE_RANKS];
    switch (key) {
    case MAKE_RANKS:
        o->ranks = count(state, "ranks", argument, 1);
        return 0;
    case MAKE_PLACEMENT:
        o->placement = placement(state, argument);
        return 0;
    case MAKE_ACCUMULATION:
        o->accumulation = accumulation(state, argument);
        return 0;
    case MAKE_RANKS_PER_NODE:
        o->ranks_per_node = count(state, "ranks-per-node", argument, 1);
        return 0;
    default:
        o->empty = count(state, "empty-ranks", argument, 0);
        return 0;
    }
}

void make_exchange_check(struct argp_state *state, const struct operator_row *row, const struct make_exchange *o)
{
    bool ranks = row && row->over_ranks, sums = ranks && row->order;
    if (!ranks && o->first)
        usage_error(state, "--%s goes with --operator dispatch or combine", o->first);
    if (ranks && !sums && o->accumulation)
        usage_error(state, "--accumulation goes with --operator combine");
    if (o->ranks_per_node && o->accumulation != GB_AT_SENDER_NODE)
        usage_error(state, "--ranks-per-node goes with --accumulation node");
}

/* The kind of data with its version. */
static const char *generator_of(const char *data)
{
    static const char *const names[] = {"gaussian/1", "ties/1", "edge/1", "nonfinite/1"};
    size_t length = strlen(data);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(names[i], data, length) && (names[i][length] == '/' || !names[i][length]))
            return names[i];
    return NULL;
}

static enum gb_status fill_truth(struct gb_fixture *f, struct gb_error *error)
{
    struct gb_arguments a = gb_fixture_exchange_arguments(f);
    return f->exchanged.truth ? gb_truth_exchange(&a, f->exchanged.truth, error) : GB_OK;
}

enum gb_status make_exchange(const struct make_exchange_problem *p, const struct make_exchange *o,
                             struct gb_fixture **fixture, struct gb_error *error)
{
    enum { RANKS_PER_NODE = 8 };
    const struct gb_exchange_kinds kinds = {.generator = generator_of(p->data),
                                            .routing = p->routing,
                                            .placement = o->placement ? o->placement : "blocks",
                                            .seed = p->seed,
                                            .empty = o->empty};
    struct gb_exchange x = {.size = sizeof x,
                            .ranks = o->ranks ? o->ranks : 2,
                            .tokens = p->shape.tokens,
                            .hidden = p->shape.hidden,
                            .experts = p->shape.experts,
                            .top_k = p->shape.top_k,
                            .global_scale = 1.0f,
                            .input = GB_BF16};
    if (!kinds.generator)
        return gb_fail(error, GB_EINVAL, "--data %s: over ranks there are gaussian, ties, edge and nonfinite", p->data);
    if (p->row->order && p->recipe)
        return gb_fail(error, GB_EINVAL, "--recipe %s: rows of %s are bf16", p->recipe->name, p->row->name);
    if (p->recipe)
        x.quantiser = p->recipe->quantiser;
    if (p->row->order) {
        x.accumulation = o->accumulation ? o->accumulation : GB_AT_RECEIVER;
        x.ranks_per_node = o->ranks_per_node ? o->ranks_per_node : x.ranks < RANKS_PER_NODE ? x.ranks : RANKS_PER_NODE;
    }
    enum gb_status status =
        gb_generate_exchange(p->row->operation, &x, p->recipe ? p->recipe->name : "bf16", &kinds, fixture, error);
    if (status != GB_OK)
        return status;
    snprintf((*fixture)->source, sizeof(*fixture)->source,
             "--operator %s --shape %u,%u,%u --tokens %u --ranks %u --routing %s --placement %s --empty-ranks %u",
             p->row->name, x.experts, x.top_k, x.hidden, x.tokens, x.ranks, kinds.routing, kinds.placement, o->empty);
    return fill_truth(*fixture, error);
}
