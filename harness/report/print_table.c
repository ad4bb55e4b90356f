/* SPDX-License-Identifier: Apache-2.0 */
/* The record for people: of every case the verdict, the first wrong element, what it looks like, then figures. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/report/record.h"
#include "quant/quant.h"

static void number(FILE *stream, int width, const char *format, double value)
{
    char text[64];
    if (isnan(value))
        snprintf(text, sizeof text, "-");
    else
        snprintf(text, sizeof text, format, value);
    fprintf(stream, " %*s", width, text);
}

/* The same, with a mark behind it where it is above its limit. */
static void marked(FILE *stream, int width, const char *format, double value, bool above)
{
    number(stream, width, format, value);
    fputc(above ? '*' : ' ', stream);
}

/* Whether a check decides the verdict. */
static bool binds(const json_t *one, const char *check)
{
    return json_is_true(json_object_get(json_object_get(json_object_get(one, "checks"), check), "binding"));
}

/* Smallest cosine, largest error and relative L2 of one object of figures. */
static void figures(FILE *stream, const json_t *m)
{
    number(stream, 11, "%.9f", record_number(m, "cosine_min", NULL));
    number(stream, 9, "%.1e", record_number(m, "max_abs", NULL));
    number(stream, 8, "%.1e", record_number(m, "relative_l2", NULL));
}

/* "same NVFP4 weights", what truth was computed from. */
static void same_weights(const json_t *one, char *text, size_t bytes)
{
    snprintf(text, bytes, "vs float64, same %s weights", record_text(one, "fixture", "weights", NULL));
    for (char *c = text + strlen("vs float64, same "); *c && *c != ' '; c++)
        *c = (char)toupper((unsigned char)*c);
}

static void layers_table(FILE *stream, const json_t *one)
{
    const json_t *layers = json_object_get(json_object_get(one, "metrics"), "layers");
    bool above = false;
    char truth[64];
    same_weights(one, truth, sizeof truth);
    fprintf(stream, "         %-15s | %-46s | %s\n", "vs reference", truth, "vs float64, original weights");
    fprintf(stream, "  layer  %-15s | %13s %12s %9s %8s  | %10s %8s\n", "bit mismatches", "max err/bound", "min cos",
            "max |err|", "rel L2", "min cos", "rel L2");
    for (size_t l = 0; l < json_array_size(layers); l++) {
        const json_t *layer = json_array_get(layers, l);
        const json_t *original = json_object_get(json_object_get(layer, "subject_truth"), "original");
        const bool bits = binds(one, "bits") && record_layer_mismatches(layer) > 0;
        const bool bound = binds(one, "bound") && record_layer_bound_ratio(layer) > 1;
        above |= bits || bound;
        fprintf(stream, "  %-5.0f ", record_number(layer, "model_layer", NULL));
        marked(stream, 15, "%.0f", record_layer_mismatches(layer), bits);
        fputc('|', stream);
        marked(stream, 13, "%.3f", record_layer_bound_ratio(layer), bound);
        figures(stream, json_object_get(json_object_get(layer, "subject_truth"), "quantised"));
        fprintf(stream, "  |");
        number(stream, 10, "%.7f", record_number(original, "cosine_min", NULL));
        number(stream, 8, "%.1e", record_number(original, "relative_l2", NULL));
        fprintf(stream, "\n");
    }
    if (above)
        fprintf(stream, "  * fails: bits differ, or an error is above its bound\n");
}

/* Of a router: its tokens by what became of their experts. */
static void routing_table(FILE *stream, const json_t *one)
{
    const json_t *layers = json_object_get(json_object_get(one, "metrics"), "layers");
    fprintf(stream, "         %-22s | %-37s | %s\n", "vs reference, mismatches", "tokens by their set of experts",
            "routing weights vs float64");
    fprintf(stream, "  layer  %11s %12s | %8s %18s %8s  | %13s\n", "expert ids", "weights", "same", "admissible swap",
            "wrong", "max err/bound");
    for (size_t l = 0; l < json_array_size(layers); l++) {
        const json_t *layer = json_array_get(layers, l), *tokens = json_object_get(layer, "tokens");
        const json_t *bits = json_object_get(layer, "subject_reference");
        double gap = record_number(tokens, "largest_gap_ulp", NULL);
        fprintf(stream, "  %-5.0f ", record_number(layer, "model_layer", NULL));
        number(stream, 11, "%.0f", record_number(bits, "ids", "mismatching", NULL));
        number(stream, 12, "%.0f", record_number(bits, "weights", "mismatching", NULL));
        fprintf(stream, " |");
        number(stream, 8, "%.0f", record_number(tokens, "same_experts", NULL));
        number(stream, 18, "%.0f", record_number(tokens, "swapped", NULL));
        number(stream, 8, "%.0f", record_number(tokens, "wrong", NULL));
        fprintf(stream, "  |");
        number(stream, 13, "%.3f", record_layer_bound_ratio(layer));
        if (gap > 0)
            fprintf(stream, "  swapped experts are up to %.3g ulp apart", gap);
        fprintf(stream, "\n");
    }
}

/* The residual stream after each layer. */
static void drift_table(FILE *stream, const json_t *drift)
{
    if (!drift)
        return;
    fprintf(stream, "  Residual stream vs float64; tokens whose expert set differs\n");
    for (size_t l = 0; l < json_array_size(drift); l++) {
        const json_t *layer = json_array_get(drift, l);
        fprintf(stream, "  %-5.0f  %15s | %13s ", record_number(layer, "model_layer", NULL), "", "");
        figures(stream, json_object_get(json_object_get(layer, "subject_truth"), "quantised"));
        fprintf(stream, "  |");
        number(stream, 10, "%.0f tokens", record_number(layer, "subject_changed_expert_sets", NULL));
        fprintf(stream, "\n");
    }
}

/* Only where the fixture is exact. */
static void exact_line(FILE *stream, const json_t *exact)
{
    double bits = record_number(exact, "widest_sum_bits", NULL);
    if (isnan(bits))
        return;
    fprintf(
        stream,
        "  Every sum is exact in any order, the widest in %.1f bits: %.0f of %.0f values differ from the reference%s\n",
        bits, record_number(exact, "mismatching", NULL), record_number(exact, "compared", NULL),
        json_is_true(json_object_get(exact, "binding")) ? "" : " (informational)");
}

/* Only of a subject that hands out its intermediate. */
static void codes_line(FILE *stream, const json_t *codes)
{
    if (!codes)
        return;
    fprintf(stream, "  bf16 intermediate: %.0f/%.0f bit-equal; admissible differences %.0f",
            record_number(codes, "same", NULL), record_number(codes, "codes", NULL),
            record_number(codes, "admissible_differences", NULL));
    fprintf(stream, " (expected <= %.0f, limit %.0f); inadmissible %.0f\n",
            ceil(record_number(codes, "expected_differences", NULL)), record_number(codes, "allowed_differences", NULL),
            record_number(codes, "inadmissible", NULL));
}

/* A family of sums by its name; NULL if the case has none. */
static const json_t *find_family(const json_t *check, const char *name)
{
    const json_t *families = json_object_get(check, "families");
    for (size_t i = 0; i < json_array_size(families); i++)
        if (!strcmp(record_text(json_array_get(families, i), "name", NULL), name))
            return json_array_get(families, i);
    return NULL;
}

/* The smallest wrong scale that the sums would have shown. */
static void put_detection_limit(FILE *stream, const char *before, const json_t *scale)
{
    fprintf(stream, "%s limit, scale error: layer", before);
    number(stream, 0, "%.1e", record_number(find_family(scale, "scale of the layer"), "detection_limit_worst", NULL));
    fprintf(stream, ", one token");
    number(stream, 0, "%.1e", record_number(find_family(scale, "scale of a token"), "detection_limit_worst", NULL));
    fprintf(stream, "\n");
}

/* Sums of errors: how near to their limits, and what they would see. */
static void sums_lines(FILE *stream, const json_t *checks)
{
    const json_t *scale = json_object_get(checks, "scale"), *rms = json_object_get(checks, "rms");
    const char *reason = record_text(scale, "reason", NULL);
    bool binding = json_is_true(json_object_get(scale, "binding"));
    if (!scale) /* a router */
        return;
    if (*reason) {
        fprintf(stream, "  Aggregate tests skipped: %s\n", reason);
        return;
    }
    fprintf(stream, "  Aggregate tests (statistic/limit; above 1 %s): RMS", binding ? "fails" : "would fail");
    number(stream, 0, "%.2f", record_number(rms, "limit_ratio", NULL));
    fprintf(stream, "%s, scale", binding && record_number(rms, "limit_ratio", NULL) > 1 ? "*" : "");
    number(stream, 0, "%.2f", record_number(scale, "limit_ratio", NULL));
    fprintf(stream, "%s%s\n", binding && record_number(scale, "limit_ratio", NULL) > 1 ? "*" : "",
            binding ? ""
            : json_is_true(json_object_get(json_object_get(checks, "bits"), "binding"))
                ? " (informational: bits decide)"
                : " (informational)");
    if (find_family(scale, "scale of the layer"))
        put_detection_limit(stream, "  Detection", scale);
}

/* Down by itself, on the intermediate that the subject handed out. */
static void down_line(FILE *stream, const json_t *down)
{
    if (!down)
        return;
    fprintf(stream, "  Down projection on the kernel's own intermediate: max err/bound");
    number(stream, 0, "%.3f", record_number(down, "bound", "limit_ratio", NULL));
    fprintf(stream, ", RMS");
    number(stream, 0, "%.2f", record_number(down, "rms", "limit_ratio", NULL));
    fprintf(stream, ", scale");
    number(stream, 0, "%.2f", record_number(down, "scale", "limit_ratio", NULL));
    put_detection_limit(stream, "; detection", json_object_get(down, "scale"));
}

static void stored_line(FILE *stream, const json_t *overall)
{
    const json_t *stored = json_object_get(json_object_get(overall, "subject_truth"), "quantised_bf16_store");
    if (!stored)
        return;
    fprintf(stream,
            "  Output rounded to bf16 vs float64: min cos %.9f, max |err| %.1e; reference vs float64: min cos %.9f\n",
            record_number(stored, "cosine_min", NULL), record_number(stored, "max_abs", NULL),
            record_number(overall, "reference_truth", "quantised", "cosine_min", NULL));
}

static void details(FILE *stream, const json_t *one)
{
    const json_t *checks = json_object_get(one, "checks"), *metrics = json_object_get(one, "metrics");
    drift_table(stream, json_object_get(metrics, "drift"));
    sums_lines(stream, checks);
    codes_line(stream, json_object_get(checks, "codes"));
    down_line(stream, json_object_get(checks, "down"));
    exact_line(stream, json_object_get(checks, "exact"));
    stored_line(stream, json_object_get(metrics, "overall"));
}

/* How the routing that a layer chose differs from the fixture's. */
static void routing_line(FILE *stream, const json_t *rerouted)
{
    double sets = record_number(rerouted, "expert_sets", NULL);
    double weights = record_number(rerouted, "weights_only", NULL);
    double order = record_number(rerouted, "slot_order_only", NULL);
    const char *comma = "";
    if (!rerouted)
        return;
    fprintf(stream, "  routing    ");
    if (sets > 0) {
        fprintf(stream, "expert sets differ from the fixture's for %.0f tokens", sets);
        comma = "; ";
    }
    if (weights > 0) {
        fprintf(stream, "%ssame expert sets, routing weights differ by up to %.0f ulp for %.0f tokens", comma,
                record_number(rerouted, "max_ulp", NULL), weights);
        comma = "; ";
    }
    if (order > 0)
        fprintf(stream, "%ssame experts and weights in other slots for %.0f tokens", comma, order);
    fprintf(stream, "; the FFN was evaluated with the kernel's routing\n");
}

static bool check_fails(const json_t *check)
{
    return json_is_true(json_object_get(check, "binding")) && !strcmp(record_text(check, "result", NULL), "FAIL");
}

/* "; bound exceeded: 5 of 64 elements", of a check that fails; the first without "; ". */
static bool put_count(FILE *stream, bool first, const json_t *check, const char *what, const char *wrong,
                      const char *all)
{
    if (!check_fails(check) || !(record_number(check, wrong, NULL) > 0))
        return false;
    fprintf(stream, "%s%s: %.0f of %.0f elements", first ? "" : "; ", what, record_number(check, wrong, NULL),
            record_number(check, all, NULL));
    return true;
}

/* Why a case fails in a few words; false: its reason is as short. */
static bool put_cause(FILE *stream, const json_t *checks)
{
    static const char *const sums[][2] = {{"rms", "RMS error"}, {"scale", "scale error"}};
    const json_t *down = json_object_get(checks, "down");
    bool any = put_count(stream, true, json_object_get(checks, "bits"), "bits differ", "mismatching", "compared");
    any |= put_count(stream, !any, json_object_get(checks, "bound"), "bound exceeded", "exceeding", "elements");
    if (any ||
        put_count(stream, true, json_object_get(checks, "codes"), "inadmissible rounding of the intermediate",
                  "inadmissible", "codes") ||
        put_count(stream, true, json_object_get(down, "bound"), "bound of the down projection exceeded", "exceeding",
                  "elements"))
        return true;
    for (int i = 0; i < 2; i++)
        if (check_fails(json_object_get(checks, sums[i][0])) || check_fails(json_object_get(down, sums[i][0]))) {
            fprintf(stream, "aggregate test fails: %s", sums[i][1]);
            return true;
        }
    return false;
}

/* "0x3f9d1a00 (1.2273)": bf16 has four digits; the encoding of an expert's id is the id, and codes and scales of
 * activations, "x_codes", stand for no value by themselves. */
static void put_value(FILE *stream, const char *hex, const char *output)
{
    uint32_t bits = (uint32_t)strtoul(hex, NULL, 16);
    float value;
    if (!strcmp(output, "ids")) {
        fprintf(stream, "expert %d", (int32_t)bits);
        return;
    }
    if (strchr(output, '_')) {
        fprintf(stream, "0x%x", bits);
        return;
    }
    bool half = strlen(hex) == strlen("0x0000");
    bits = half ? bits << 16 : bits;
    memcpy(&value, &bits, sizeof value);
    fprintf(stream, "%s (%.*g)", hex, half ? 4 : 9, (double)value);
}

/* "layer 0, token 3, column 128"; of what has slots, the slot as well. */
static void put_place(FILE *stream, const json_t *one, const json_t *layer, const char *output, double token,
                      double element)
{
    double width = record_number(one, "fixture", "intermediate", NULL);
    fprintf(stream, "layer %.0f, token %.0f, ", record_number(layer, "layer", NULL), token);
    if (!strcmp(output, "ids") || !strcmp(output, "weights"))
        fprintf(stream, "slot %.0f", element);
    else if (!strcmp(output, "intermediate"))
        fprintf(stream, "slot %.0f, column %.0f of the intermediate", floor(element / width), fmod(element, width));
    else if (!strcmp(output, "output"))
        fprintf(stream, "column %.0f of the output", element);
    else
        fprintf(stream, "element %.0f of %s", element, output);
}

/* What is looked at first: what comes first in a layer is what the rest is computed from. */
static const char *const outputs[] = {
    "ids", "weights", "x_codes", "x_scales", "intermediate", "intermediate_codes", "intermediate_scales", "output"};
enum { OUTPUTS = sizeof outputs / sizeof *outputs };

/* The first element that differs from the reference where bits decide, otherwise the one furthest beyond its bound. */
static void first_line(FILE *stream, const json_t *one)
{
    const json_t *layers = json_object_get(json_object_get(one, "metrics"), "layers");
    bool bits = check_fails(json_object_get(json_object_get(one, "checks"), "bits"));
    for (size_t l = 0; l < json_array_size(layers); l++)
        for (int i = 0; i < OUTPUTS; i++) {
            const json_t *layer = json_array_get(layers, l);
            const json_t *first =
                json_object_get(json_object_get(json_object_get(layer, "subject_reference"), outputs[i]), "first");
            const json_t *bound = json_object_get(json_object_get(layer, "bound"), outputs[i]);
            if (bits && first) {
                fprintf(stream, "  first      ");
                put_place(stream, one, layer, outputs[i], record_number(first, "token", NULL),
                          record_number(first, "element", NULL));
                fprintf(stream, ": got ");
                put_value(stream, record_text(first, "subject", NULL), outputs[i]);
                fprintf(stream, ", reference ");
                put_value(stream, record_text(first, "reference", NULL), outputs[i]);
                fprintf(stream, "\n");
                return;
            }
            if (!bits && record_number(bound, "exceeding", NULL) > 0) {
                double ratio = record_number(bound, "limit_ratio", NULL);
                fprintf(stream, "  worst      ");
                put_place(stream, one, layer, outputs[i], record_number(bound, "at_token", NULL),
                          record_number(bound, "at_element", NULL));
                fprintf(stream,
                        isnan(ratio)                    ? ": is NaN or infinite\n"
                        : ratio >= 100.0 && ratio < 1e6 ? ": error is %.0f times its bound\n"
                                                        : ": error is %.3g times its bound\n",
                        ratio);
                return;
            }
        }
}

/* The reason without the diagnosis that ends it. */
static int reason_length(const char *reason, const char *diagnosis)
{
    size_t whole = strlen(reason), behind = strlen(diagnosis);
    bool ends = behind && whole > behind + 2 && !strcmp(reason + whole - behind, diagnosis);
    return (int)(ends ? whole - behind - 2 : whole);
}

static void minimal_line(FILE *stream, const json_t *minimal)
{
    const char *name = record_text(minimal, "name", NULL);
    if (!minimal)
        return;
    fprintf(stream, "  smallest   part that fails%s, %.0f bytes: %s\n",
            json_is_true(json_object_get(minimal, "explained_alike")) ? " alike" : "",
            record_number(minimal, "bytes", NULL), record_text(minimal, "repro", NULL));
    if (name[0] && !json_is_true(json_object_get(minimal, "explained_alike")))
        fprintf(stream, "             where it looks like: %s\n", name);
}

/* What went wrong, and what to do about it. */
static void explain_lines(FILE *stream, const json_t *one, bool reason_is_told)
{
    static const char prefix[] = "looks like: ";
    const char *reason = record_text(one, "reason", NULL), *diagnosis = record_text(one, "diagnosis", NULL);
    const char *next = record_text(one, "next", NULL), *repro = record_text(one, "repro", NULL);
    if (!strcmp(record_text(one, "verdict", NULL), "FAIL") && !record_text(one, "fixture", "operator", NULL)[0])
        first_line(stream, one);
    if (!reason_is_told)
        fprintf(stream, "  reason     %.*s\n", reason_length(reason, diagnosis), reason);
    if (diagnosis[0])
        fprintf(stream, "  diagnosis  %s\n",
                strncmp(diagnosis, prefix, strlen(prefix)) ? diagnosis : diagnosis + strlen(prefix));
    if (next[0])
        fprintf(stream, "  next       %s\n", next);
    minimal_line(stream, json_object_get(one, "minimal"));
    if (reason[0] && repro[0])
        fprintf(stream, "  reproduce  %s\n", repro);
}

/* Whether a file was refused, which standard error says when it happens. */
static bool is_refused(const json_t *one)
{
    return record_number(one, "batch", NULL) == 0 || !strcmp(record_text(one, "verdict", NULL), "BAD_INPUT");
}

/* The arrays of a quantiser against the reference's. */
static const json_t *quantised(const json_t *one, const char *name)
{
    const json_t *layers = json_object_get(json_object_get(one, "metrics"), "layers");
    return json_object_get(json_object_get(json_array_get(layers, 0), "subject_reference"), name);
}

/* "codes differ: 12 of 32768", of what another SiLU does not excuse; false: nothing differs. */
static bool put_wrong(FILE *stream, const json_t *one)
{
    static const char *const names[] = {"codes", "scales"};
    bool open = json_is_true(json_object_get(json_object_get(json_object_get(one, "checks"), "bits"), "open_silu"));
    bool any = false;
    for (int i = 0; i < 2; i++) {
        const json_t *a = quantised(one, names[i]);
        double wrong = record_number(a, "mismatching", NULL) - (open ? record_number(a, "admissible", NULL) : 0.0);
        if (!(wrong > 0))
            continue;
        fprintf(stream, "%s%s differ: %.0f of %.0f", any ? ", " : "", names[i], wrong,
                record_number(a, "compared", NULL));
        any = true;
    }
    return any;
}

/* The scale or code that comes first, a scale before its block's codes. */
static void first_code_line(FILE *stream, const json_t *one)
{
    const json_t *code = json_object_get(quantised(one, "codes"), "first");
    const json_t *scale = json_object_get(quantised(one, "scales"), "first");
    double rows = record_number(code, "row", NULL) - record_number(scale, "row", NULL);
    double columns = record_number(code, "column", NULL) - record_number(scale, "column", NULL);
    bool of_scale = scale && (!code || rows > 0 || (rows == 0 && columns >= 0));
    const json_t *first = of_scale ? scale : code;
    fprintf(stream, "  first      row %.0f, ", record_number(first, "row", NULL));
    if (!of_scale)
        fprintf(stream, "column %.0f of ", record_number(first, "column", NULL));
    fprintf(stream, "block %.0f: got %s %s, reference %s\n", record_number(first, "block", NULL),
            of_scale ? "scale" : "code", record_text(first, "subject", NULL), record_text(first, "reference", NULL));
}

static void quantiser_block(FILE *stream, const json_t *one)
{
    static const char *const names[] = {"codes", "scales"};
    const char *verdict = record_text(one, "verdict", NULL), *reason = record_text(one, "reason", NULL);
    fprintf(stream, "%s  %s  %s  %.0f rows  ", verdict, record_text(one, "subject", "name", NULL),
            record_text(one, "fixture", "path", NULL), record_number(one, "batch", NULL));
    bool wrong = !strcmp(verdict, "FAIL") && put_wrong(stream, one);
    if (!reason[0])
        fprintf(stream, "recipe %s", record_text(one, "fixture", "recipe", NULL));
    else if (!wrong)
        fprintf(stream, "%s", reason);
    fprintf(stream, "\n");
    if (wrong)
        first_code_line(stream, one);
    if (reason[0])
        explain_lines(stream, one, !wrong || !strncmp(reason, "codes: ", 7) || !strncmp(reason, "scales: ", 8));
    for (int i = 0; i < 2 && quantised(one, names[i]); i++)
        fprintf(stream, "  %-9s  %.0f of %.0f differ from the reference, %.0f of them admissibly\n", names[i],
                record_number(quantised(one, names[i]), "mismatching", NULL),
                record_number(quantised(one, names[i]), "compared", NULL),
                record_number(quantised(one, names[i]), "admissible", NULL));
}

/* Dispatch or combine: the verdict, what is wrong first, and how much of each array. */
static void exchange_block(FILE *stream, const json_t *one)
{
    const json_t *layer = json_array_get(json_object_get(json_object_get(one, "metrics"), "layers"), 0), *array;
    const char *reason = record_text(one, "reason", NULL), *name;
    const char *accumulation = record_text(one, "fixture", "accumulation", NULL);
    fprintf(stream, "%s  %s  %s  %.0f ranks, %.0f tokens on each, %s%s\n", record_text(one, "verdict", NULL),
            record_text(one, "subject", "name", NULL), record_text(one, "fixture", "path", NULL),
            record_number(one, "fixture", "ranks", NULL), record_number(one, "fixture", "tokens", NULL),
            accumulation[0] ? "accumulation at the " : "rows in ",
            accumulation[0] ? accumulation : record_text(one, "fixture", "recipe", NULL));
    if (reason[0])
        explain_lines(stream, one, false);
    json_object_foreach(json_object_get(layer, "subject_reference"), name, array)
        fprintf(stream, "  %-9s  %.0f of %.0f differ from the reference\n", name,
                record_number(array, "mismatching", NULL), record_number(array, "compared", NULL));
    const json_t *bound = json_object_get(json_object_get(layer, "bound"), "output");
    if (bound)
        fprintf(stream, "  max err/bound %.3f, relative L2 from truth %.3g, the reference's %.3g\n",
                record_number(bound, "limit_ratio", NULL),
                record_number(layer, "subject_truth", "output", "relative_l2", NULL),
                record_number(layer, "reference_truth", "output", "relative_l2", NULL));
}

static void case_block(FILE *stream, const json_t *one, bool verbose)
{
    if (record_number(one, "fixture", "ranks", NULL) > 0) {
        exchange_block(stream, one);
        return;
    }
    if (record_text(one, "fixture", "operator", NULL)[0]) {
        quantiser_block(stream, one);
        return;
    }
    const char *verdict = record_text(one, "verdict", NULL), *reason = record_text(one, "reason", NULL);
    const char *contract = record_text(one, "contract", NULL);
    bool route = !strcmp(record_text(one, "subject", "operator", NULL), "route");
    bool told = true;
    fprintf(stream, "%s  %s  %s  %.0f tokens  ", verdict, record_text(one, "subject", "name", NULL),
            record_text(one, "fixture", "path", NULL), record_number(one, "batch", NULL));
    if (!reason[0])
        fprintf(stream, contract[0] ? "contract %s" : "%sno order claimed", contract);
    else if (!strcmp(verdict, "FAIL") && put_cause(stream, json_object_get(one, "checks"))) {
        told = false;
        fprintf(stream, contract[0] ? "; contract %s" : "%s; no order claimed", contract);
    } else
        fprintf(stream, "%.*s", reason_length(reason, record_text(one, "diagnosis", NULL)), reason);
    fprintf(stream, route ? ", of the router\n" : "\n");
    if (reason[0])
        explain_lines(stream, one, told);
    if (record_text(one, "note", NULL)[0])
        fprintf(stream, "  note       %s\n", record_text(one, "note", NULL));
    routing_line(stream, json_object_get(one, "rerouted"));
    if (!json_object_get(one, "metrics"))
        return;
    if (route)
        routing_table(stream, one);
    else
        layers_table(stream, one);
    if (verbose)
        details(stream, one);
}

/* Whether cases of more than one fixture were not refused. */
static bool of_several_fixtures(const json_t *cases)
{
    const char *first = NULL;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        const char *path = record_text(one, "fixture", "path", NULL);
        if (is_refused(one))
            continue;
        if (first && strcmp(first, path))
            return true;
        first = path;
    }
    return false;
}

/* Widths of the columns of text: of the heading, or of the widest text below it. */
struct widths {
    int verdict, fixture, subject;
};

static void widen(int *width, const char *text)
{
    *width = (int)strlen(text) > *width ? (int)strlen(text) : *width;
}

static struct widths widths_of(const json_t *cases)
{
    struct widths w = {(int)strlen("verdict"), (int)strlen("fixture"), (int)strlen("subject")};
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        if (is_refused(one))
            continue;
        widen(&w.verdict, record_text(one, "verdict", NULL));
        widen(&w.fixture, record_text(one, "fixture", "path", NULL));
        widen(&w.subject, record_text(one, "subject", "name", NULL));
    }
    return w;
}

/* A case in one line, which says so of a router. */
static void case_line(FILE *stream, const json_t *one, const struct widths *w)
{
    const json_t *overall = json_object_get(json_object_get(one, "metrics"), "overall");
    fprintf(stream, "%-*s  %-*s  %-*s ", w->verdict, record_text(one, "verdict", NULL), w->fixture,
            record_text(one, "fixture", "path", NULL), w->subject, record_text(one, "subject", "name", NULL));
    number(stream, 6, "%.0f", record_number(one, "batch", NULL));
    number(stream, 14, "%.0f", record_number(one, "checks", "bits", "mismatching", NULL));
    number(stream, 13, "%.3f", record_bound_ratio(one));
    figures(stream, json_object_get(json_object_get(overall, "subject_truth"), "quantised"));
    fprintf(stream, "%s\n", !strcmp(record_text(one, "subject", "operator", NULL), "route") ? "  router" : "");
}

/* Cases of several fixtures, a line each. */
static void lines_table(FILE *stream, const json_t *cases)
{
    const struct widths w = widths_of(cases);
    fprintf(stream, "%-*s  %-*s  %-*s  %6s %14s %13s %12s %9s %8s\n", w.verdict, "verdict", w.fixture, "fixture",
            w.subject, "subject", "tokens", "bit mismatches", "max err/bound", "min cos", "max |err|", "rel L2");
    for (size_t i = 0; i < json_array_size(cases); i++)
        if (!is_refused(json_array_get(cases, i)))
            case_line(stream, json_array_get(cases, i), &w);
    fprintf(stream, "\n");
}

void report_table(FILE *stream, const json_t *record, bool verbose)
{
    const json_t *cases = json_object_get(record, "cases");
    size_t refused = 0, measured = 0;
    bool in_lines = !verbose && of_several_fixtures(cases);
    if (in_lines)
        lines_table(stream, cases);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        bool plain = !strcmp(record_text(one, "verdict", NULL), "PASS") && !record_text(one, "note", NULL)[0];
        measured += json_object_get(one, "metrics") && !record_text(one, "fixture", "operator", NULL)[0];
        if (is_refused(one)) {
            refused++;
            continue;
        }
        if (in_lines && plain)
            continue;
        case_block(stream, one, verbose);
        fprintf(stream, "\n");
    }
    if (measured && !verbose)
        fprintf(stream, "Details (residual stream, aggregate tests, detection limits): -v\n");
    fprintf(stream, "%s: %.0f of %.0f cases passed", record_text(record, "verdict", NULL),
            record_number(record, "summary", "passed", NULL), record_number(record, "summary", "cases", NULL));
    if (refused)
        fprintf(stream, ", %zu refused", refused);
    double expected = record_number(record, "summary", "expected", NULL);
    if (!isnan(expected))
        fprintf(stream, ", %.0f judged, %.0f expected", record_number(record, "summary", "judged", NULL), expected);
    const char *reason = record_text(record, "summary", "reason", NULL);
    fprintf(stream, reason[0] ? "; %s\n" : "\n", reason);
}
