/* SPDX-License-Identifier: Apache-2.0 */
/* The record as a table for people. */
#include <math.h>
#include <string.h>

#include "harness/record.h"

static void number(FILE *stream, int width, const char *format, double value)
{
    char text[64];
    if (isnan(value))
        snprintf(text, sizeof text, "-");
    else
        snprintf(text, sizeof text, format, value);
    fprintf(stream, " %*s", width, text);
}

/* cosine, max abs and relative L2 of one object of figures. */
static void figures(FILE *stream, const json_t *m)
{
    number(stream, 13, "%.9f", record_number(m, "cosine_min", NULL));
    number(stream, 10, "%.3e", record_number(m, "max_abs", NULL));
    number(stream, 10, "%.3e", record_number(m, "relative_l2", NULL));
}

static void layers_table(FILE *stream, const json_t *one)
{
    const json_t *layers = json_object_get(json_object_get(one, "metrics"), "layers");
    fprintf(stream, "  %-5s %12s | %-35s | %-24s |\n", "", "differing", "subject - truth, same codes",
            "before quantising");
    fprintf(stream, "  %-5s %12s | %13s %10s %10s | %13s %10s | %8s\n", "layer", "elements", "min cosine", "max abs",
            "rel L2", "min cosine", "rel L2", "of bound");
    for (size_t l = 0; l < json_array_size(layers); l++) {
        const json_t *layer = json_array_get(layers, l);
        const json_t *original = json_object_get(json_object_get(layer, "subject_truth"), "original");
        fprintf(stream, "  %-5.0f %12.0f |", record_number(layer, "model_layer", NULL), record_layer_mismatches(layer));
        figures(stream, json_object_get(json_object_get(layer, "subject_truth"), "quantised"));
        fprintf(stream, " |");
        number(stream, 13, "%.9f", record_number(original, "cosine_min", NULL));
        number(stream, 10, "%.3e", record_number(original, "relative_l2", NULL));
        fprintf(stream, " |");
        number(stream, 8, "%.3f", record_layer_bound_ratio(layer));
        fprintf(stream, "\n");
    }
}

/* Of a router: its tokens by what became of their experts. */
static void routing_table(FILE *stream, const json_t *one)
{
    const json_t *layers = json_object_get(json_object_get(one, "metrics"), "layers");
    fprintf(stream, "  %-5s %12s %12s | %8s %8s %8s | %12s | %8s\n", "layer", "ids differ", "weights", "tokens as",
            "swapped", "wrong", "gap in ulp", "of bound");
    for (size_t l = 0; l < json_array_size(layers); l++) {
        const json_t *layer = json_array_get(layers, l), *tokens = json_object_get(layer, "tokens");
        const json_t *bits = json_object_get(layer, "subject_reference");
        fprintf(stream, "  %-5.0f", record_number(layer, "model_layer", NULL));
        number(stream, 12, "%.0f", record_number(bits, "ids", "mismatching", NULL));
        number(stream, 12, "%.0f", record_number(bits, "weights", "mismatching", NULL));
        fprintf(stream, " |");
        number(stream, 9, "%.0f", record_number(tokens, "same_experts", NULL));
        number(stream, 8, "%.0f", record_number(tokens, "swapped", NULL));
        number(stream, 8, "%.0f", record_number(tokens, "wrong", NULL));
        fprintf(stream, " |");
        number(stream, 12, "%.3g", record_number(tokens, "largest_gap_ulp", NULL));
        fprintf(stream, " |");
        number(stream, 8, "%.3f", record_layer_bound_ratio(layer));
        fprintf(stream, "\n");
    }
}

/* The residual stream after each layer, against truth's. */
static void drift_table(FILE *stream, const json_t *drift)
{
    fprintf(stream, "  drift of the residual stream from truth's, and tokens routed to other experts\n");
    for (size_t l = 0; l < json_array_size(drift); l++) {
        const json_t *layer = json_array_get(drift, l);
        fprintf(stream, "  %-5.0f %12s |", record_number(layer, "model_layer", NULL), "");
        figures(stream, json_object_get(json_object_get(layer, "subject_truth"), "quantised"));
        fprintf(stream, " |");
        number(stream, 13, "%.0f tokens", record_number(layer, "subject_routing_flips", NULL));
        fprintf(stream, "\n");
    }
}

/* Only where the fixture is exact. */
static void exact_line(FILE *stream, const json_t *exact)
{
    double bits = record_number(exact, "widest_sum_bits", NULL);
    if (isnan(bits))
        return;
    fprintf(stream, "  every sum is exact in any order, the widest in %.1f bits: %.0f of %.0f values differ%s\n", bits,
            record_number(exact, "mismatching", NULL), record_number(exact, "compared", NULL),
            json_is_true(json_object_get(exact, "binding")) ? "" : " (not binding)");
}

/* Only of a subject that hands out its intermediate. */
static void codes_line(FILE *stream, const json_t *codes)
{
    if (!codes)
        return;
    fprintf(stream, "  codes of the intermediate: %.0f, the reference's %.0f, legal flips %.0f of",
            record_number(codes, "codes", NULL), record_number(codes, "same", NULL),
            record_number(codes, "legal_flips", NULL));
    fprintf(stream, " at most %.0f (%.3g in the mean), illegal %.0f\n", record_number(codes, "allowed_flips", NULL),
            record_number(codes, "expected_flips", NULL), record_number(codes, "illegal", NULL));
}

/* A family of sums by its name; NULL if the case has none. */
static const json_t *find_family(const json_t *lane, const char *name)
{
    const json_t *families = json_object_get(lane, "families");
    for (size_t i = 0; i < json_array_size(families); i++)
        if (!strcmp(record_text(json_array_get(families, i), "name", NULL), name))
            return json_array_get(families, i);
    return NULL;
}

/* The sums of errors: how near to their limits, and what they would see. */
static void sums_line(FILE *stream, const json_t *lanes)
{
    const json_t *gain = json_object_get(lanes, "gain"), *rms = json_object_get(lanes, "rms");
    const json_t *layer = find_family(gain, "gain of the layer"), *token = find_family(gain, "gain of a token");
    const char *reason = record_text(gain, "reason", NULL);
    if (!gain) /* a router */
        return;
    if (*reason) {
        fprintf(stream, "  sums of errors: not judged: %s\n", reason);
        return;
    }
    fprintf(stream, "  sums of errors, of their limits: rms");
    number(stream, 0, "%.3f", record_number(rms, "limit_ratio", NULL));
    fprintf(stream, ", gain");
    number(stream, 0, "%.3f", record_number(gain, "limit_ratio", NULL));
    fprintf(stream, json_is_true(json_object_get(gain, "binding")) ? "\n" : " (not binding)\n");
    if (!layer)
        return;
    fprintf(stream, "  smallest scale error seen: of the layer");
    number(stream, 0, "%.1e", record_number(layer, "detection_floor_worst", NULL));
    fprintf(stream, ", of any one token");
    number(stream, 0, "%.1e", record_number(token, "detection_floor_worst", NULL));
    fprintf(stream, "\n");
}

/* Down by itself, on the intermediate that the subject handed out. */
static void down_line(FILE *stream, const json_t *down)
{
    const json_t *gain = json_object_get(down, "gain");
    if (!down)
        return;
    fprintf(stream, "  down on these codes: of bound");
    number(stream, 0, "%.3f", record_number(down, "bound", "limit_ratio", NULL));
    fprintf(stream, ", rms");
    number(stream, 0, "%.3f", record_number(down, "rms", "limit_ratio", NULL));
    fprintf(stream, ", gain");
    number(stream, 0, "%.3f", record_number(gain, "limit_ratio", NULL));
    fprintf(stream, "; smallest scale error seen: of the layer");
    number(stream, 0, "%.1e", record_number(find_family(gain, "gain of the layer"), "detection_floor_worst", NULL));
    fprintf(stream, ", of any one token");
    number(stream, 0, "%.1e", record_number(find_family(gain, "gain of a token"), "detection_floor_worst", NULL));
    fprintf(stream, "\n");
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
    fprintf(stream, "  own routing: ");
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
    fprintf(stream, "; the FFN was judged under it\n");
}

/* Whether a file was refused, which standard error says when it happens. */
static bool is_refused(const json_t *one)
{
    return record_number(one, "batch", NULL) == 0 || !strcmp(record_text(one, "verdict", NULL), "BAD_INPUT");
}

static void case_block(FILE *stream, const json_t *one)
{
    fprintf(stream, "\n%s on %s, batch %.0f", record_text(one, "subject", "name", NULL),
            record_text(one, "fixture", "path", NULL), record_number(one, "batch", NULL));
    const char *contract = record_text(one, "contract", NULL);
    fprintf(stream, contract[0] ? ", contract %s\n" : ", no order claimed%s\n", contract);
    const json_t *drift = json_object_get(json_object_get(one, "metrics"), "drift");
    if (json_object_get(one, "metrics") && !strcmp(record_text(one, "subject", "operator", NULL), "route"))
        routing_table(stream, one);
    else if (json_object_get(one, "metrics"))
        layers_table(stream, one);
    if (drift)
        drift_table(stream, drift);
    if (json_object_get(one, "lanes"))
        sums_line(stream, json_object_get(one, "lanes"));
    routing_line(stream, json_object_get(one, "rerouted"));
    codes_line(stream, json_object_get(json_object_get(one, "lanes"), "codes"));
    down_line(stream, json_object_get(json_object_get(one, "lanes"), "down"));
    exact_line(stream, json_object_get(json_object_get(one, "lanes"), "exact"));
    const json_t *stored =
        json_object_get(json_object_get(json_object_get(json_object_get(one, "metrics"), "overall"), "subject_truth"),
                        "quantised_bf16_store");
    if (stored) {
        fprintf(stream, "  stored as bf16: min cosine %.9f, max abs %.3e; reference - truth:",
                record_number(stored, "cosine_min", NULL), record_number(stored, "max_abs", NULL));
        fprintf(stream, " min cosine %.9f\n",
                record_number(one, "metrics", "overall", "reference_truth", "quantised", "cosine_min", NULL));
    }
    fprintf(stream, "  %s", record_text(one, "verdict", NULL));
    const char *reason = record_text(one, "reason", NULL), *repro = record_text(one, "repro", NULL);
    fprintf(stream, reason[0] ? ": %s\n" : "\n", reason);
    if (reason[0] && repro[0])
        fprintf(stream, "  reproduce: %s\n", repro);
    if (json_object_get(one, "minimal"))
        fprintf(stream, "  smallest part that fails%s, %.0f bytes: %s\n",
                json_is_true(json_object_get(json_object_get(one, "minimal"), "explained_alike")) ? " alike" : "",
                record_number(one, "minimal", "bytes", NULL), record_text(one, "minimal", "repro", NULL));
}

void report_table(FILE *stream, const json_t *record)
{
    const json_t *cases = json_object_get(record, "cases");
    size_t refused = 0;
    for (size_t i = 0; i < json_array_size(cases); i++)
        if (is_refused(json_array_get(cases, i)))
            refused++;
        else
            case_block(stream, json_array_get(cases, i));
    fprintf(stream, "%s%s: %.0f of %.0f cases passed", refused < json_array_size(cases) ? "\n" : "",
            record_text(record, "verdict", NULL), record_number(record, "summary", "passed", NULL),
            record_number(record, "summary", "cases", NULL));
    if (refused)
        fprintf(stream, ", %zu refused", refused);
    double expected = record_number(record, "summary", "expected", NULL);
    if (!isnan(expected))
        fprintf(stream, ", %.0f judged, %.0f expected", record_number(record, "summary", "judged", NULL), expected);
    const char *reason = record_text(record, "summary", "reason", NULL);
    fprintf(stream, reason[0] ? "; %s\n" : "\n", reason);
}
