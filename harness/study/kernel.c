/* SPDX-License-Identifier: Apache-2.0 */
/* A batch becomes a fixture of one layer, which a worker runs the kernel on: as `verify` runs it. */
#include "harness/study/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/run/child.h"
#include "harness/run/operators.h"
#include "harness/run/worker.h"

bool study_path_takes(const struct study_path *path, const struct gb_kernel *kernel)
{
    return !strcmp(operator_name(kernel->operation), "layer") && !(kernel->flags & GB_ROUTES) &&
           kernel->output == GB_FP32 && kernel->order && !strcmp(kernel->order, gb_order_name(path->contract->order)) &&
           kernel->weights == path->contract->weights && kernel->activations == path->contract->activations &&
           !path->dequantised && !path->ranks && !path->rounded_gate_up && !path->fp32_intermediate;
}

/* One expert's share of a matrix of `count` of them. */
static void copy_expert(const void *from, uint32_t source, void *to, uint32_t target, size_t bytes, uint32_t count)
{
    size_t share = bytes / count;
    memcpy((char *)to + target * share, (const char *)from + source * share, share);
}

/* The weights of the experts that the batch is routed to; in the place of others, which may not be there, another's. */
static enum gb_status copy_weights(const struct gb_weights *from, struct gb_weights *to,
                                   const struct study_batch *batch, uint32_t top_k, struct gb_error *error)
{
    size_t codes, scales, globals, pairs = (size_t)batch->tokens * top_k;
    bool *used = calloc(from->experts, sizeof *used); /* [experts] */
    uint32_t some = 0;
    enum gb_status status = used ? gb_weights_bytes(from, &codes, &scales, &globals, error)
                                 : gb_fail(error, GB_ENOMEM, "no memory for %u experts", from->experts);
    for (size_t i = 0; status == GB_OK && i < pairs; i++)
        if (batch->ids[i] >= 0)
            used[some = (uint32_t)batch->ids[i]] = true;
    for (uint32_t e = 0; status == GB_OK && e < from->experts; e++) {
        uint32_t source = used[e] ? e : some;
        copy_expert(from->codes, source, (void *)to->codes, e, codes, from->experts);
        if (scales)
            copy_expert(from->scales, source, (void *)to->scales, e, scales, from->experts);
        if (globals)
            copy_expert(from->global_scales, source, (void *)to->global_scales, e, globals, from->experts);
    }
    free(used);
    return status;
}

/* The kind of problem that the path is. */
static enum gb_status describe(const struct study_path *path, const struct gb_fixture *f, struct gb_fixture *to,
                               const float global[2], struct gb_error *error)
{
    to->activation = f->activation;
    to->rms_norm_epsilon = f->rms_norm_epsilon;
    memcpy(to->recipe, f->recipe, sizeof to->recipe);
    /* A fixture's is that of fma32; the order is the kernel's. */
    snprintf(to->contract, sizeof to->contract, "%s", gb_contract_find(f->weights, GB_BF16, GB_ORDER_FMA32)->name);
    snprintf(to->generator, sizeof to->generator, "import/1");
    snprintf(to->source, sizeof to->source, "a layer of a study");
    if (!path->recipe)
        return GB_OK;
    enum gb_status status = gb_fixture_quantise_activations(to, path->contract->activations, path->recipe->name, error);
    for (int i = 0; status == GB_OK && to->layer[0].activation_scales && i < 2; i++)
        to->layer[0].activation_scales[i] = global[i];
    return status;
}

static enum gb_status as_fixture(const struct study_path *path, const struct gb_fixture *f, uint32_t layer,
                                 const struct study_batch *batch, const float global[2], struct gb_fixture **result,
                                 struct gb_error *error)
{
    const struct gb_layer *from = &f->layer[layer];
    struct gb_shape shape = f->shape;
    size_t pairs = (size_t)batch->tokens * shape.top_k;
    shape.tokens = batch->tokens;
    enum gb_status status = gb_fixture_new(&shape, 1, f->weights, false, false, false, result, error);
    if (status != GB_OK)
        return status;
    struct gb_layer *to = &(*result)->layer[0];
    memcpy(to->x, batch->x, sizeof *to->x * batch->tokens * shape.hidden);
    memcpy(to->ids, batch->ids, sizeof *to->ids * pairs);
    memcpy(to->routing_weights, batch->weights, sizeof *to->routing_weights * pairs);
    for (size_t i = 0; i < pairs; i++)
        to->truth_routing_weights[i] = (double)batch->weights[i];
    status = copy_weights(&from->gate_up, &to->gate_up, batch, shape.top_k, error);
    if (status == GB_OK)
        status = copy_weights(&from->down, &to->down, batch, shape.top_k, error);
    if (status == GB_OK && from->gate_up_bias)
        status = gb_fixture_add(*result, GB_EXTRA_BIASES, error);
    if (status == GB_OK && from->gate_up_bias) {
        memcpy(to->gate_up_bias, from->gate_up_bias, sizeof(float) * shape.experts * 2 * shape.intermediate);
        memcpy(to->down_bias, from->down_bias, sizeof(float) * shape.experts * shape.hidden);
    }
    return status == GB_OK ? describe(path, f, *result, global, error) : status;
}

/* What the worker left. The intermediate that a kernel does not hand out is the reference's, whose contract it has. */
static enum gb_status take(const struct study_path *path, const struct gb_fixture *f,
                           const struct worker_result *result, float *output, gb_bf16 *intermediate,
                           struct gb_error *error)
{
    const char *name = path->kernel.kernel->name;
    if (result->verdict != VERDICT_PASS)
        return gb_fail(error, GB_EUNSUPPORTED, "--kernel %s: %s", name, result->reason);
    const struct worker_checks *checks = &result->checks[0];
    if (checks->differing || checks->unwritten || checks->canary_broken || checks->input_changed)
        return gb_fail(error, GB_EUNSUPPORTED, "--kernel %s: %s; gaugeblock verify tells more", name,
                       checks->differing ? "two runs differ" : "it leaves outputs out, or writes where it must not");
    const struct gb_layer_outputs *out = &result->outputs[0]->layer[0];
    size_t inner = (size_t)f->shape.tokens * f->shape.top_k * f->shape.intermediate;
    memcpy(output, out->output, sizeof *output * f->shape.tokens * f->shape.hidden);
    if (intermediate && out->intermediate)
        memcpy(intermediate, out->intermediate, sizeof *intermediate * inner);
    if (!intermediate || out->intermediate)
        return GB_OK;
    struct gb_arguments a = gb_layer_arguments(f, 0, f->shape.tokens);
    gb_layer_activations(f, 0, f->activations, &a);
    a.intermediate = intermediate;
    return gb_reference_gate_up(path->contract, &a, error);
}

enum gb_status study_kernel_run(const struct study_path *path, const struct gb_fixture *fixture, uint32_t layer,
                                const struct study_batch *batch, const float global[2], float *output,
                                gb_bf16 *intermediate, struct gb_error *error)
{
    struct gb_fixture *f = NULL;
    struct worker_result result;
    struct worker_request request = {.library = path->kernel.library,
                                     .kernel = path->kernel.kernel,
                                     .batches = {batch->tokens},
                                     .batch_count = 1,
                                     .timeout_s = STUDY_KERNEL_TIMEOUT_S};
    enum gb_status status = as_fixture(path, fixture, layer, batch, global, &f, error);
    if (status == GB_OK)
        status = child_file(&request.fixture, error);
    if (status == GB_OK) {
        status = gb_fixture_put(request.fixture, f, error);
        if (status == GB_OK) {
            worker_run(&request, f, &result);
            status = take(path, f, &result, output, intermediate, error);
            worker_result_free(&result);
        }
        close(request.fixture);
    }
    gb_fixture_free(f);
    return status;
}
