/* SPDX-License-Identifier: Apache-2.0 */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "harness/run/match_kernels.h"
#include "quant/quant.h"
#include "reference/reference.h"

/* Whether a pattern can match a name that begins with "cuda/". */
static bool asks_for_cuda(const char *const *patterns, uint32_t count)
{
    static const char prefix[] = "cuda/";
    for (uint32_t p = 0; p < count; p++) {
        size_t literal = strcspn(patterns[p], "*?[\\");
        if (!strncmp(patterns[p], prefix, literal < strlen(prefix) ? literal : strlen(prefix)) &&
            (literal >= strlen(prefix) || patterns[p][literal]))
            return true;
    }
    return false;
}

static void read_cuda(struct catalogue *c, unsigned timeout_s)
{
    char path[4096];
    struct gb_error error;
    struct subject_library *library = &c->library[c->count];
    if (library_cuda_path(path, sizeof path, &error) != GB_OK ||
        library_read(path, timeout_s, library, &error) != GB_OK)
        snprintf(c->cuda_missing, sizeof c->cuda_missing, "%s", error.message);
    else if (library->verdict != VERDICT_PASS)
        snprintf(c->cuda_missing, sizeof c->cuda_missing, "%.500s", library->reason);
    else
        c->count++;
}

enum gb_status catalogue_open(const char *const *subjects, uint32_t count, const char *const *patterns,
                              uint32_t pattern_count, unsigned timeout_s, struct catalogue *c, struct gb_error *error)
{
    memset(c, 0, sizeof *c);
    enum gb_status status = library_read(BUILTIN_LIBRARY, timeout_s, &c->library[c->count++], error);
    if (status != GB_OK)
        return status;
    if (asks_for_cuda(patterns, pattern_count))
        read_cuda(c, timeout_s);
    c->own = c->count;
    for (uint32_t i = 0; i < count; i++) {
        status = library_read(subjects[i], timeout_s, &c->library[c->count++], error);
        if (status != GB_OK)
            return status;
    }
    return GB_OK;
}

void catalogue_close(struct catalogue *c)
{
    for (uint32_t l = 0; l < c->count; l++)
        library_free(&c->library[l]);
    c->count = 0;
}

static enum gb_format activations_of(const struct gb_problem *problem)
{
    return problem->activation_rules ? gb_quantiser_activations(problem->activation_rules) : GB_BF16;
}

/* Whether the kernel is for problems like this: of this operator or, on layers, one that routes for those with routers,
 * all but a router for their weight format, and bf16 activations or theirs. */
static bool takes(const struct gb_kernel *kernel, const struct gb_problem *problem)
{
    const struct operator_row *row = operator_find(kernel->operation), *asked = operator_asked(problem);
    uint32_t uses = operator_uses(kernel);
    if (!row->layers || !asked->layers)
        return row == asked;
    if (uses & READS_ROUTER && !problem->router)
        return false;
    if (!(uses & READS_EXPERTS))
        return true;
    return kernel->weights == problem->weights &&
           (kernel->activations == GB_BF16 || kernel->activations == activations_of(problem));
}

/* Fills in whether the kernel can run on this problem here. */
static void check(const struct gb_problem *problem, struct selected *s)
{
    char device[256];
    struct gb_error error = {""};
    const struct operator_row *row = operator_find(s->kernel->operation), *asked = operator_asked(problem);
    uint32_t uses = operator_uses(s->kernel);
    if (!asked->layers && row != asked) {
        s->verdict = VERDICT_UNSUPPORTED;
        snprintf(s->reason, sizeof s->reason, "%s is a kernel of %s; the fixture is a problem of %s", s->kernel->name,
                 row->name, asked->name);
    } else if (row->layers && uses & READS_ROUTER && !problem->router) {
        s->verdict = VERDICT_UNSUPPORTED;
        snprintf(s->reason, sizeof s->reason, "%s routes, but the fixture has no router in every layer",
                 s->kernel->name);
    } else if (asked->layers && !row->layers) {
        s->verdict = VERDICT_UNSUPPORTED;
        snprintf(s->reason, sizeof s->reason, "%s %s", s->kernel->name, row->instead);
    } else if (!takes(s->kernel, problem)) {
        s->verdict = VERDICT_UNSUPPORTED;
        const char *activations = gb_format_name(s->kernel->activations);
        snprintf(s->reason, sizeof s->reason, "%s takes %s weights and %s activations, the fixture has %s and %s",
                 s->kernel->name, kernel_weights_name(s->kernel), activations ? activations : "unknown",
                 gb_format_name(problem->weights), gb_format_name(activations_of(problem)));
    } else if (uses & READS_EXPERTS && (problem->activation != GB_SILU || problem->biased) &&
               !(s->kernel->flags & GB_LAYER_EXTENSIONS)) {
        s->verdict = VERDICT_UNSUPPORTED;
        snprintf(s->reason, sizeof s->reason, "%s knows no biases and no activation but SiLU, which the fixture has",
                 s->kernel->name);
    } else if (uses & READS_EXPERTS && problem->apply_router_weight_on_input &&
               !(s->kernel->flags & GB_APPLY_ROUTER_WEIGHT_ON_INPUT)) {
        s->verdict = VERDICT_UNSUPPORTED;
        snprintf(s->reason, sizeof s->reason, "%s weighs outputs, but the fixture's routing weights multiply the input",
                 s->kernel->name);
    } else if (s->kernel->order &&
               (row->layers ? !gb_contract_find(s->kernel->weights, s->kernel->activations, s->kernel->order)
                            : row->order && strcmp(s->kernel->order, row->order))) {
        s->verdict = VERDICT_UNSUPPORTED;
        snprintf(s->reason, sizeof s->reason, "%s claims the order %s, which this version does not know",
                 s->kernel->name, s->kernel->order);
    } else if (s->kernel->flags & GB_DEVICE_POINTERS && library_device(device, sizeof device, &error) != GB_OK) {
        s->verdict = VERDICT_NOT_RUN;
        snprintf(s->reason, sizeof s->reason, "%s: %s", s->kernel->name, error.message);
    }
}

static uint32_t add(struct selected *selected, uint32_t count, const struct subject_library *library,
                    const struct gb_kernel *kernel, const char *pattern)
{
    for (uint32_t i = 0; i < count; i++)
        if (selected[i].library == library && selected[i].kernel == kernel)
            return count;
    struct selected *s = &selected[count];
    memset(s, 0, sizeof *s);
    s->library = library;
    s->kernel = kernel;
    snprintf(s->pattern, sizeof s->pattern, "%s", pattern);
    return count + 1;
}

static uint32_t add_matching(const struct catalogue *c, const char *pattern, const struct gb_problem *problem,
                             struct selected *selected, uint32_t count)
{
    uint32_t before = count;
    const struct gb_kernel *other = NULL;
    const struct subject_library *other_library = NULL;
    for (uint32_t l = 0; l < c->count; l++)
        for (uint32_t i = 0; i < c->library[l].count; i++) {
            const struct gb_kernel *k = &c->library[l].kernels[i];
            if (fnmatch(pattern, k->name, 0))
                continue;
            if (takes(k, problem) || !strcmp(pattern, k->name)) {
                count = add(selected, count, &c->library[l], k, pattern);
            } else {
                other = k;
                other_library = &c->library[l];
            }
        }
    if (count > before)
        return count;
    if (other)
        return add(selected, count, other_library, other, pattern);
    struct selected *s = &selected[count];
    memset(s, 0, sizeof *s);
    snprintf(s->pattern, sizeof s->pattern, "%s", pattern);
    s->verdict = VERDICT_NOT_RUN;
    bool cuda = !strncmp(pattern, "cuda", 4) && c->cuda_missing[0];
    snprintf(s->reason, sizeof s->reason, "no kernel matches %s%s%s", pattern,
             cuda ? ": " : "; see gaugeblock list kernels, and name a library of others by --subject",
             cuda ? c->cuda_missing : "");
    return count + 1;
}

/* A case for every library that could not be read, whatever it may have had. */
static uint32_t add_unread(const struct catalogue *c, struct selected *selected, uint32_t count)
{
    for (uint32_t l = c->own; l < c->count; l++)
        if (c->library[l].verdict != VERDICT_PASS) {
            const char *path = c->library[l].path;
            count = add(selected, count, &c->library[l], NULL, strrchr(path, '/') ? strrchr(path, '/') + 1 : path);
            selected[count - 1].verdict = c->library[l].verdict;
            snprintf(selected[count - 1].reason, sizeof selected->reason, "%s", c->library[l].reason);
        }
    return count;
}

size_t select_most(const struct catalogue *c, uint32_t pattern_count)
{
    size_t most = pattern_count + 2 + c->count;
    for (uint32_t l = 0; l < c->count; l++)
        most += c->library[l].count;
    return most;
}

uint32_t select_subjects(const struct catalogue *c, const char *const *patterns, uint32_t pattern_count,
                         const struct gb_problem *problem, struct selected *selected)
{
    uint32_t count = add_unread(c, selected, 0);
    for (uint32_t p = 0; p < pattern_count; p++)
        count = add_matching(c, patterns[p], problem, selected, count);
    for (uint32_t l = c->own; !pattern_count && l < c->count; l++)
        for (uint32_t i = 0; i < c->library[l].count; i++)
            count = add(selected, count, &c->library[l], &c->library[l].kernels[i], "--subject");
    const struct operator_row *asked = operator_asked(problem);
    if (!pattern_count && c->count == c->own && asked->reference) {
        count = add_matching(c, asked->reference, problem, selected, count);
    } else if (!pattern_count && c->count == c->own) {
        const char *weights = gb_format_name(problem->weights), *activations = gb_format_name(activations_of(problem));
        char name[64];
        snprintf(name, sizeof name, "cpu/%s-layer", weights);
        count = add_matching(c, name, problem, selected, count);
        snprintf(name, sizeof name, "cpu/%s-%s-layer", weights, activations);
        if (problem->activation_rules)
            count = add_matching(c, name, problem, selected, count);
    }
    for (uint32_t i = 0; i < count; i++)
        if (selected[i].kernel)
            check(problem, &selected[i]);
    return count;
}
