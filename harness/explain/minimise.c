/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/run/child.h"
#include "harness/judge/judge.h"
#include "harness/explain/minimise.h"
#include "harness/explain/operators.h"
#include "harness/explain/subproblem.h"
#include "harness/run/progress.h"
#include "harness/run/worker.h"
#include "quant/quant.h"

struct search {
    const struct case_request *request;
    const struct selected *selected;
    const char *path; /* of the smallest part so far */
    int trial;        /* descriptor of the one being tried */
    const char *kind; /* of the explanation that a part must keep; NULL: any failure will do */
    char name[160];   /* of the smallest part's explanation, or "" */
    struct part smallest;
    unsigned tries;
};

/* Whether the trial's failure has the explanation that is to be kept. */
static enum gb_status explained_alike(struct search *s, const struct baseline *b, const struct gb_outputs *outputs,
                                      bool *alike, struct gb_error *error)
{
    struct explanation *e;
    enum gb_operator operation = s->selected->kernel->operation;
    enum gb_status status = operator_explainer_find(operation)->explain(b, operation, outputs, &e, error);
    *alike = status == GB_OK && (!s->kind || (e && !strcmp(e->kind, s->kind)));
    if (*alike)
        snprintf(s->name, sizeof s->name, "%s", e ? e->best.name : "");
    explanation_free(e);
    return status;
}

static enum gb_status evaluate_trial(struct search *s, struct gb_fixture *fixture, bool *fails, struct gb_error *error)
{
    struct worker_request request = {.fixture = s->trial,
                                     .library = s->selected->library->path,
                                     .kernel = s->selected->kernel,
                                     .batches = {fixture->shape.tokens},
                                     .batch_count = 1,
                                     .timeout_s = s->request->timeout_s};
    struct worker_result result;
    struct baselines baselines = {.fixture = fixture};
    struct baseline *baseline = NULL;
    struct case_result j = {0};
    worker_run(&request, fixture, &result);
    enum gb_status status = GB_OK;
    if (result.verdict == VERDICT_PASS) {
        status = baselines_of_kernel(&baselines, s->selected->kernel, fixture->shape.tokens, &baseline, error);
        if (status == GB_OK)
            status = judge(baseline, s->selected->kernel, result.outputs[0], &result.checks[0], s->request->policy, &j,
                           error);
        if (status == GB_OK)
            *fails = j.verdict == VERDICT_FAIL;
        case_result_free(&j);
        if (status == GB_OK && *fails && operator_explainer_find(s->selected->kernel->operation))
            status = explained_alike(s, baseline, result.outputs[0], fails, error);
        baselines_free(&baselines);
    }
    worker_result_free(&result);
    return status;
}

/* Keeps the part if the kernel fails on it, and with the same explanation. What it does not take, or crashes on, is
 * another failure. */
static enum gb_status try_part(struct search *s, const struct part *part, bool *fails, struct gb_error *error)
{
    struct gb_fixture *fixture;
    struct gb_error refused;
    char what[64];
    *fails = false;
    snprintf(what, sizeof what, "searching the smallest part that fails: try %u", ++s->tries);
    progress(what, 0.0);
    enum gb_status status = part_new(s->request->fixture, part, &fixture, &refused);
    if (status != GB_OK) {
        gb_fixture_free(fixture);
        return GB_OK;
    }
    status = child_file(&s->trial, error);
    if (status == GB_OK) {
        status = gb_fixture_put(s->trial, fixture, error);
        if (status == GB_OK)
            status = evaluate_trial(s, fixture, fails, error);
        close(s->trial);
    }
    if (status == GB_OK && *fails) {
        s->smallest = *part;
        status = gb_fixture_write(s->path, fixture, error);
    }
    gb_fixture_free(fixture);
    return status;
}

/* Halves one range while a half still fails. */
static enum gb_status halve(struct search *s, size_t first, size_t count, struct gb_error *error)
{
    bool fails = true;
    enum gb_status status = GB_OK;
    while (status == GB_OK && fails) {
        struct part low = s->smallest, high = s->smallest;
        uint32_t whole = *(uint32_t *)(void *)((char *)&low + count), half = whole / 2;
        if (!half)
            return GB_OK;
        *(uint32_t *)(void *)((char *)&low + count) = half;
        *(uint32_t *)(void *)((char *)&high + count) = whole - half;
        *(uint32_t *)(void *)((char *)&high + first) += half;
        status = try_part(s, &low, &fails, error);
        if (status == GB_OK && !fails)
            status = try_part(s, &high, &fails, error);
    }
    return status;
}

/* Cuts columns or neurons to half, in whole scale blocks, while that still fails. */
static enum gb_status cut(struct search *s, size_t count, struct gb_error *error)
{
    const struct gb_fixture *f = s->request->fixture;
    const struct gb_quantiser *rules = gb_fixture_activation_rules(f);
    uint32_t block = gb_format_block(f->weights);
    block = rules && rules->block_columns > block ? rules->block_columns : block;
    bool fails = true;
    enum gb_status status = GB_OK;
    block = block < 16 ? 16 : block;
    while (status == GB_OK && fails) {
        struct part less = s->smallest;
        uint32_t *size = (uint32_t *)(void *)((char *)&less + count);
        if (*size < 2 * block)
            return GB_OK;
        *size = *size / 2 / block * block;
        status = try_part(s, &less, &fails, error);
    }
    return status;
}

static enum gb_status find_layer(struct search *s, uint32_t tokens, bool *fails, struct gb_error *error)
{
    const struct gb_fixture *f = s->request->fixture;
    enum gb_status status = GB_OK;
    *fails = false;
    for (uint32_t l = 0; status == GB_OK && !*fails && l < f->layers; l++) {
        struct part whole = part_whole(f, l, tokens);
        status = try_part(s, &whole, fails, error);
    }
    return status;
}

/* NULL: no memory. */
static struct minimal_part *describe(const struct search *s)
{
    struct stat file;
    const struct part *p = &s->smallest;
    struct minimal_part *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    *m = (struct minimal_part){.path = s->path,
                               .bytes = stat(s->path, &file) ? 0 : (long long)file.st_size,
                               .explained_alike = s->kind != NULL,
                               .layer = p->layer,
                               .first_token = p->first_token,
                               .tokens = p->tokens,
                               .first_slot = p->first_slot,
                               .slots = p->slots,
                               .hidden = p->hidden,
                               .intermediate = p->intermediate,
                               .tries = s->tries};
    memcpy(m->name, s->name, sizeof m->name);
    return m;
}

enum gb_status minimise_check(const char *path, struct gb_error *error)
{
    struct stat out, parent;
    char folder[4200] = ".";
    const char *slash = strrchr(path, '/');
    if (slash && (size_t)snprintf(folder, sizeof folder, "%.*s/", (int)(slash - path), path) >= sizeof folder)
        return gb_fail(error, GB_EINVAL, "--minimise: the path is too long");
    if (!path[0] || stat(folder, &parent) || !S_ISDIR(parent.st_mode) || access(folder, W_OK | X_OK))
        return gb_fail(error, GB_EIO, "--minimise %.200s: name a file in a folder that exists and can be written",
                       path);
    if (lstat(path, &out) == 0 && !S_ISREG(out.st_mode))
        return gb_fail(error, GB_EIO, "--minimise %.200s: is no regular file; name another", path);
    return GB_OK;
}

enum gb_status minimise(const struct case_request *request, const struct selected *selected,
                        const struct gb_outputs *outputs, const char *kind, const char *path,
                        struct minimal_part **smallest, struct gb_error *error)
{
    struct search s = {.request = request, .selected = selected, .path = path, .kind = kind[0] ? kind : NULL};
    bool fails;
    *smallest = NULL;
    enum gb_status status = find_layer(&s, outputs->shape.tokens, &fails, error);
    if (status == GB_OK && !fails && s.kind) {
        s.kind = NULL;
        status = find_layer(&s, outputs->shape.tokens, &fails, error);
    }
    if (status == GB_OK && fails) {
        status = halve(&s, offsetof(struct part, first_token), offsetof(struct part, tokens), error);
        if (status == GB_OK)
            status = halve(&s, offsetof(struct part, first_slot), offsetof(struct part, slots), error);
        if (status == GB_OK)
            status = cut(&s, offsetof(struct part, intermediate), error);
        if (status == GB_OK)
            status = cut(&s, offsetof(struct part, hidden), error);
        if (status == GB_OK && !(*smallest = describe(&s)))
            status = gb_fail(error, GB_ENOMEM, "no memory for the smallest part");
    }
    return status;
}
