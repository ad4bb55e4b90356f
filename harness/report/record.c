/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "gb_commit.h"
#include "harness/run/declared_precision.h"
#include "harness/report/record.h"
#include "harness/report/to_json.h"
#include "harness/run/hash.h"
#include "harness/run/library.h"
#include "quant/quant.h"

static void cpu_model(char *text, size_t bytes)
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(text, bytes, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon)
            continue;
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(text, bytes, "%s", colon + 2);
        break;
    }
    if (file)
        fclose(file);
}

static json_t *environment(void)
{
    char date[32], cpu[256];
    struct utsname system;
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    cpu_model(cpu, sizeof cpu);
    uname(&system);
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:s+++, s:s}", "version", GB_VERSION, "commit", GB_COMMIT, "date", date,
                     "cpu", cpu, "cpus", (int)sysconf(_SC_NPROCESSORS_ONLN), "system", system.sysname, " ",
                     system.release, "", "machine", system.machine);
}

json_t *record_begin(const char *schema, int argc, char **argv)
{
    json_t *command = json_array();
    json_array_append_new(command, json_string("gaugeblock"));
    for (int i = 0; i < argc; i++)
        json_array_append_new(command, record_string(argv[i]));
    return json_pack("{s:s, s:o, s:o}", "schema", schema, "command", command, "environment", environment());
}

json_t *record_new(int argc, char **argv)
{
    json_t *record = record_begin(RECORD_SCHEMA, argc, argv);
    json_object_set_new(record, "cases", json_array());
    return record;
}

/* A problem of a quantiser. */
static json_t *record_quantiser(const char *path, const struct gb_fixture *f)
{
    const struct gb_quantisation *q = &f->quantisation;
    json_t *fixture = json_pack("{s:o, s:s, s:o, s:s, s:o, s:s, s:i, s:i, s:s}", "path", record_string(path), "sha256",
                                f->sha256, "source", record_string(f->source), "operator", operator_name(f->operation),
                                "recipe", record_string(f->recipe), "input", gb_format_name(q->input), "rows",
                                (int)q->rows, "columns", (int)q->columns, "layout", gb_scale_layout_name(q->layout));
    if (gb_quantisation_gated(q))
        json_object_update_new(fixture, json_pack("{s:s, s:s, s:s}", "silu", gb_silu_form_name(q->silu), "activated",
                                                  gb_format_name(q->activated), "product", gb_format_name(q->product)));
    return fixture;
}

/* A problem over ranks. */
static json_t *record_exchange(const char *path, const struct gb_fixture *f)
{
    const struct gb_exchange *x = &f->exchanged.asked;
    const char *accumulation = gb_accumulation_name(x->accumulation);
    json_t *fixture =
        json_pack("{s:o, s:s, s:o, s:s, s:o, s:i, s:i, s:i, s:i, s:i, s:i}", "path", record_string(path), "sha256",
                  f->sha256, "source", record_string(f->source), "operator", operator_name(f->operation), "recipe",
                  record_string(f->recipe), "ranks", (int)x->ranks, "tokens", (int)x->tokens, "hidden", (int)x->hidden,
                  "experts", (int)x->experts, "top_k", (int)x->top_k, "rows", (int)x->rows);
    if (accumulation)
        json_object_update_new(
            fixture, json_pack("{s:s, s:i}", "accumulation", accumulation, "ranks_per_node", (int)x->ranks_per_node));
    return fixture;
}

json_t *record_fixture(const char *path, const struct gb_fixture *f)
{
    if (gb_fixture_quantises(f))
        return record_quantiser(path, f);
    if (gb_fixture_exchanges(f))
        return record_exchange(path, f);
    return json_pack("{s:o, s:s, s:o, s:s, s:o, s:o, s:i, s:i, s:i, s:i, s:i, s:i}", "path", record_string(path),
                     "sha256", f->sha256, "source", record_string(f->source), "weights", gb_format_name(f->weights),
                     "recipe", record_string(f->recipe), "router",
                     record_string(f->router[0] ? f->router : gb_router_recipe_default(f->norm_topk_prob)->name),
                     "layers", (int)f->layers, "tokens", (int)f->shape.tokens, "hidden", (int)f->shape.hidden,
                     "intermediate", (int)f->shape.intermediate, "experts", (int)f->shape.experts, "top_k",
                     (int)f->shape.top_k);
}

static json_t *record_refused(const char *path)
{
    return json_pack("{s:o, s:s}", "path", record_string(path), "sha256", "");
}

/* SHA-256 of a file's bytes; nothing where it cannot be read. */
static void hash_file(json_t *object, const char *name, const char *path)
{
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0 && fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
        if (bytes != MAP_FAILED) {
            char text[65];
            hash_sha256(bytes, (size_t)status.st_size, text);
            json_object_set_new(object, name, json_string(text));
            munmap(bytes, (size_t)status.st_size);
        }
    }
    if (file >= 0)
        close(file);
}

static const char *rounding_name(enum gb_format format)
{
    return gb_format_name(format ? format : GB_FP32);
}

json_t *record_file(const char *path)
{
    json_t *file = json_pack("{s:o}", "path", record_string(path));
    hash_file(file, "sha256", path);
    return file;
}

static json_t *record_subject(const char *name, const char *library, const struct gb_kernel *k)
{
    const char *own = strstr(library, "/" CUDA_LIBRARY);
    json_t *subject =
        json_pack("{s:o, s:o}", "name", record_string(name), "library", record_string(own ? own + 1 : library));
    if (strcmp(library, BUILTIN_LIBRARY)) /* what tells one build from another; the reference is the program's */
        hash_file(subject, "library_sha256", library);
    if (!k)
        return subject;
    json_object_set_new(subject, "operator", json_string(operator_name(k->operation)));
    json_object_set_new(subject, "weights", json_string(kernel_weights_name(k)));
    json_object_set_new(subject, "activations", json_string(gb_format_name(k->activations)));
    json_object_set_new(subject, "output", json_string(gb_format_name(k->output)));
    json_object_set_new(subject, "order", k->order ? record_string(k->order) : json_null());
    json_object_set_new(subject, "accumulator_bits", json_integer(k->accumulator_bits));
    json_t *roundings = json_object();
    for (uint32_t i = 0; i < ROUNDED_STAGES; i++)
        json_object_set_new(roundings, stage_name(i), json_string(rounding_name(stage_rounding(&k->roundings, i))));
    json_object_set_new(subject, "roundings", roundings);
    struct gb_error none;
    char device[256] = "host";
    if (k->flags & GB_DEVICE_POINTERS)
        library_device(device, sizeof device, &none);
    json_object_set_new(subject, "device", record_string(device));
    return subject;
}

static json_t *rerouted_to_json(const struct routing_difference *d)
{
    return json_pack("{s:i, s:i, s:i, s:I}", "expert_sets", (int)d->sets, "weights_only", (int)d->weights,
                     "slot_order_only", (int)d->order, "max_ulp", (json_int_t)d->max_ulp);
}

/* fixture: taken over. NULL: no memory. */
static json_t *case_json(const struct case_entry *e, json_t *fixture)
{
    const struct case_result *r = &e->result;
    json_t *one =
        json_pack("{s:o, s:o, s:s, s:i, s:s, s:o, s:i, s:o}", "fixture", fixture, "subject",
                  record_subject(e->subject, e->library, e->known ? &e->kernel : NULL), "contract", e->contract,
                  "batch", (int)e->batch, "verdict", verdict_name(r->verdict), "reason", record_string(e->reason),
                  "exit_code", verdict_exit_code(r->verdict), "repro", record_string(e->repro));
    if (!one)
        return NULL;
    if (r->judged) {
        json_object_set_new(one, "checks", checks_to_json(r));
        json_object_set_new(one, "metrics", figures_to_json(r));
    }
    if (e->rerouted_tokens) {
        json_object_set_new(one, "rerouted_tokens", json_integer(e->rerouted_tokens));
        json_object_set_new(one, "rerouted", rerouted_to_json(&e->rerouted));
    }
    if (e->explanation) {
        json_object_set_new(one, "explanation", explanation_to_json(e->explanation));
        json_object_set_new(one, "diagnosis", record_string(e->explanation->text));
    }
    if (e->note[0])
        json_object_set_new(one, "note", record_string(e->note));
    if (e->next)
        json_object_set_new(one, "next", json_string(e->next));
    if (e->minimal)
        json_object_set_new(one, "minimal", minimal_to_json(e->minimal));
    if (e->timing.samples)
        json_object_set_new(one, "timing", timing_to_json(&e->timing, operator_find(e->kernel.operation)->moved));
    json_object_set_new(one, "seconds", json_real(e->seconds));
    return one;
}

/* Whether the kernel was asked at all. */
static bool was_judged(enum verdict v)
{
    return v != VERDICT_NOT_RUN && v != VERDICT_UNSUPPORTED && v != VERDICT_BAD_INPUT;
}

void record_cases(json_t *record, const char *path, const struct gb_fixture *fixture, const struct case_list *cases,
                  struct run_totals *totals)
{
    for (size_t i = 0; i < cases->count; i++) {
        const struct case_entry *e = &cases->of[i];
        enum verdict v = e->result.verdict;
        json_t *one = case_json(e, fixture ? record_fixture(path, fixture) : record_refused(path));
        if (!one) { /* out of memory: a case must not be lost without a trace */
            v = VERDICT_CRASH;
            one = json_pack("{s:s, s:s}", "verdict", verdict_name(v), "reason", "the case could not be recorded");
        }
        json_array_append_new(json_object_get(record, "cases"), one);
        totals->verdict = totals->cases++ ? verdict_graver(totals->verdict, v) : v;
        totals->judged += was_judged(v);
        totals->passed += v == VERDICT_PASS;
        totals->failed += v == VERDICT_FAIL;
        totals->minimised += e->minimal != NULL;
    }
}

void record_coverage(json_t *record, const char *path, const char *sha256, uint32_t tokens,
                     const struct coverage *coverage)
{
    if (!json_object_get(record, "coverage"))
        json_object_set_new(record, "coverage", json_array());
    json_array_append_new(json_object_get(record, "coverage"),
                          json_pack("{s:o, s:s, s:i, s:o}", "fixture", record_string(path), "sha256", sha256, "tokens",
                                    (int)tokens, "counts", coverage_to_json(coverage)));
}

enum verdict record_finish(json_t *record, const struct run_totals *totals, long long expect, double seconds)
{
    enum verdict overall = totals->cases ? totals->verdict : VERDICT_PASS;
    const char *reason = "";
    json_t *summary = json_pack("{s:I, s:I, s:I}", "cases", (json_int_t)totals->cases, "judged",
                                (json_int_t)totals->judged, "passed", (json_int_t)totals->passed);
    if (totals->judged == 0) {
        overall = verdict_graver(overall, VERDICT_NOT_RUN);
        reason = "nothing was judged";
    }
    if (expect >= 0) {
        json_object_set_new(summary, "expected", json_integer(expect));
        if ((long long)totals->judged != expect) {
            overall = verdict_graver(overall, VERDICT_NOT_RUN);
            reason = "the number of judged cases is not the expected one";
        }
    }
    json_object_set_new(summary, "reason", json_string(reason));
    json_object_set_new(summary, "seconds", json_real(seconds));
    json_object_set_new(record, "summary", summary);
    json_object_set_new(record, "verdict", json_string(verdict_name(overall)));
    json_object_set_new(record, "exit_code", json_integer(verdict_exit_code(overall)));
    return overall;
}

static const json_t *walk(const json_t *object, va_list path)
{
    for (const char *key; object && (key = va_arg(path, const char *));)
        object = json_object_get(object, key);
    return object;
}

const char *record_text(const json_t *object, ...)
{
    va_list path;
    va_start(path, object);
    const char *text = json_string_value(walk(object, path));
    va_end(path);
    return text ? text : "";
}

double record_number(const json_t *object, ...)
{
    va_list path;
    va_start(path, object);
    const json_t *value = walk(object, path);
    va_end(path);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

double record_layer_bound_ratio(const json_t *layer)
{
    static const char *const outputs[] = {"output", "intermediate", "weights"};
    const json_t *bound = json_object_get(layer, "bound");
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++)
        if (json_object_get(bound, outputs[i])) {
            double ratio = record_number(bound, outputs[i], "limit_ratio", NULL);
            return isnan(ratio) ? INFINITY : ratio; /* which JSON has no number for */
        }
    return NAN;
}

double record_layer_mismatches(const json_t *layer)
{
    const char *name;
    json_t *bits;
    double count = 0.0;
    json_object_foreach(json_object_get(layer, "subject_reference"), name, bits)
    {
        /* "down" is the output again, against the reference's down on the subject's own intermediate. */
        double mismatching = strcmp(name, "down") ? record_number(bits, "mismatching", NULL) : NAN;
        count += isnan(mismatching) ? 0.0 : mismatching;
    }
    return count;
}

double record_bound_ratio(const json_t *one)
{
    const json_t *layers = json_object_get(json_object_get(one, "metrics"), "layers");
    double largest = NAN;
    for (size_t l = 0; l < json_array_size(layers); l++)
        largest = fmax(largest, record_layer_bound_ratio(json_array_get(layers, l)));
    return largest;
}

void record_case_name(const json_t *one, char *text, size_t bytes)
{
    const char *path = record_text(one, "fixture", "path", NULL);
    const char *slash = strrchr(path, '/');
    bool route = !strcmp(record_text(one, "subject", "operator", NULL), "route");
    double batch = record_number(one, "batch", NULL);
    size_t used = (size_t)snprintf(text, bytes, "%.400s", slash ? slash + 1 : path);
    if (batch > 0)
        snprintf(text + used, bytes - used, " batch %.0f%s", batch, route ? " route" : "");
}
