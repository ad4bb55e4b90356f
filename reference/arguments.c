/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of operator arguments, and the grouping of (token, slot) pairs by expert. */
#include <stdlib.h>
#include <string.h>

#include "reference/operators.h"

enum gb_status gb_groups_new(const struct gb_shape *shape, const int32_t *ids, struct gb_groups *groups,
                             struct gb_error *error)
{
    size_t pairs = (size_t)shape->tokens * shape->top_k;
    uint32_t *count = calloc((size_t)shape->experts + 1, sizeof *count);
    *groups = (struct gb_groups){
        .expert = malloc(sizeof(uint32_t) * shape->experts),
        .start = malloc(sizeof(uint32_t) * ((size_t)shape->experts + 1)),
        .pair = malloc(sizeof(uint32_t) * pairs),
    };
    enum gb_status status = GB_OK;
    if (!count || !groups->expert || !groups->start || !groups->pair)
        status = gb_fail(error, GB_ENOMEM, "no memory to group %zu pairs by expert", pairs);
    for (size_t p = 0; status == GB_OK && p < pairs; p++) {
        if (ids[p] < -1 || ids[p] >= (int64_t)shape->experts)
            status = gb_fail(error, GB_EINVAL, "expert id %d of token %zu, slot %zu is out of range -1..%u", ids[p],
                             p / shape->top_k, p % shape->top_k, shape->experts - 1);
        else if (ids[p] >= 0)
            count[ids[p]]++;
    }
    if (status != GB_OK) {
        free(count);
        gb_groups_free(groups);
        return status;
    }
    groups->start[0] = 0;
    for (uint32_t e = 0; e < shape->experts; e++) {
        if (count[e] == 0)
            continue;
        uint32_t a = groups->active++;
        groups->expert[a] = e;
        groups->start[a + 1] = groups->start[a] + count[e];
        groups->most = count[e] > groups->most ? count[e] : groups->most;
        count[e] = groups->start[a]; /* from here on: where the next pair of this expert goes */
    }
    for (size_t p = 0; p < pairs; p++)
        if (ids[p] >= 0)
            groups->pair[count[ids[p]]++] = (uint32_t)p;
    free(count);
    return GB_OK;
}

void gb_groups_free(struct gb_groups *groups)
{
    free(groups->expert);
    free(groups->start);
    free(groups->pair);
    memset(groups, 0, sizeof *groups);
}

static enum gb_status check_weights(const char *name, const struct gb_weights *weights, uint32_t experts, uint32_t rows,
                                    uint32_t columns, uint32_t parts, struct gb_error *error)
{
    size_t codes, scales, global_scales;
    if (weights->experts != experts || weights->rows != rows || weights->columns != columns || weights->halves != parts)
        return gb_fail(error, GB_EINVAL, "%s is %u x %u x %u in %u parts; the shape needs %u x %u x %u in %u", name,
                       weights->experts, weights->rows, weights->columns, weights->halves, experts, rows, columns,
                       parts);
    enum gb_status status = gb_weights_bytes(weights, &codes, &scales, &global_scales, error);
    if (status != GB_OK)
        return status;
    if (!weights->codes || (scales && !weights->scales) || (global_scales && !weights->global_scales))
        return gb_fail(error, GB_EINVAL, "%s lacks codes, scales or global scales", name);
    return GB_OK;
}

struct gb_arguments gb_arguments_known(const struct gb_arguments *a)
{
    struct gb_arguments known = {0};
    memcpy(&known, a, a->size < sizeof known ? a->size : sizeof known);
    return known;
}

struct gb_extension gb_arguments_extension(const struct gb_arguments *a)
{
    if (a->size < offsetof(struct gb_arguments, down_bias) + sizeof a->down_bias)
        return (struct gb_extension){0};
    return (struct gb_extension){a->activation, a->gate_up_bias, a->down_bias};
}

bool gb_weighs_input(const struct gb_arguments *a)
{
    return gb_arguments_known(a).apply_router_weight_on_input;
}

/* Its weights and activations are the contract's. */
static enum gb_status check_contract(const struct gb_contract *contract, const struct gb_arguments *a,
                                     enum gb_operator operation, struct gb_error *error)
{
    enum gb_format activations = a->activation_rules ? gb_quantiser_activations(a->activation_rules) : GB_BF16;
    if (!contract)
        return gb_fail(error, GB_EINVAL, "no contract has these weights, activations and this order");
    if ((operation != GB_DOWN && a->gate_up.format != contract->weights) ||
        (operation != GB_GATE_UP && a->down.format != contract->weights) || activations != contract->activations)
        return gb_fail(error, GB_EINVAL, "weights or activations are not those of the contract %s", contract->name);
    return GB_OK;
}

enum gb_status gb_arguments_check(const struct gb_contract *contract, const struct gb_arguments *arguments,
                                  enum gb_operator operation, struct gb_error *error)
{
    const struct gb_shape *shape = &arguments->shape;
    size_t bytes;
    if (arguments->size < GB_ARGUMENTS_LEAST)
        return gb_fail(error, GB_EINVAL, "arguments of %zu bytes; at least %zu are needed", arguments->size,
                       GB_ARGUMENTS_LEAST);
    if (!shape->tokens || !shape->hidden || !shape->intermediate || !shape->experts || !shape->top_k ||
        shape->top_k > shape->experts || shape->intermediate > UINT32_MAX / 2)
        return gb_fail(error, GB_EINVAL, "every size must be at least 1, and top_k at most the number of experts");
    if (!gb_bytes(shape->tokens, shape->top_k, shape->intermediate, sizeof(float), &bytes) ||
        !gb_bytes(shape->tokens, shape->hidden, 1, sizeof(float), &bytes) ||
        (uint64_t)shape->tokens * shape->top_k > UINT32_MAX)
        return gb_fail(error, GB_EINVAL, "%u tokens do not fit in memory", shape->tokens);
    if (!arguments->ids || (operation != GB_DOWN && !arguments->x) ||
        (operation != GB_GATE_UP && (!arguments->routing_weights || !arguments->output)) ||
        (operation != GB_LAYER && !arguments->intermediate))
        return gb_fail(error, GB_EINVAL, "a buffer that the operator needs is NULL");
    if (gb_weighs_input(arguments) && (shape->top_k != 1 || arguments->apply_router_weight_on_input != 1))
        return gb_fail(error, GB_EINVAL,
                       "apply_router_weight_on_input %u with top_k %u; it is 0 or 1, and 1 only where top_k is 1",
                       arguments->apply_router_weight_on_input, shape->top_k);
    if (gb_weighs_input(arguments) && !arguments->routing_weights)
        return gb_fail(error, GB_EINVAL, "routing weights, which multiply the input, are NULL");
    enum gb_activation activation = gb_arguments_extension(arguments).activation;
    if (!gb_activation_find(activation))
        return gb_fail(error, GB_EINVAL, "unknown activation %d", (int)activation);
    enum gb_status status = GB_OK;
    if (operation != GB_DOWN)
        status = check_weights("gate_up", &arguments->gate_up, shape->experts, 2 * shape->intermediate, shape->hidden,
                               2, error);
    if (status == GB_OK && operation != GB_GATE_UP)
        status = check_weights("down", &arguments->down, shape->experts, shape->hidden, shape->intermediate, 1, error);
    struct gb_arguments known = gb_arguments_known(arguments);
    if (status == GB_OK && known.activation_rules && known.apply_router_weight_on_input)
        return gb_fail(error, GB_EINVAL,
                       "apply_router_weight_on_input with quantised activations; no contract has both");
    if (status == GB_OK && known.activation_rules)
        status = gb_activations_check(contract, &known, operation, error);
    if (status == GB_OK)
        status = check_contract(contract, &known, operation, error);
    return status;
}
