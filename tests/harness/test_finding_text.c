/* SPDX-License-Identifier: Apache-2.0 */
/* Findings in words: every effect, every axis, every array; and what to do next. */
#include "harness/explain/explain.h"
#include "harness/explain/finding_text.h"
#include "harness/explain/operators.h"
#include "tests/support/check.h"

#include <math.h>

#define ONLY(first_, count_)                                                                                           \
    {                                                                                                                  \
        .kind = AXIS_RANGE, .first = first_, .count = count_                                                           \
    }
#define EVERY(first_, count_, period_)                                                                                 \
    {                                                                                                                  \
        .kind = AXIS_MODULO, .first = first_, .count = count_, .period = period_                                       \
    }

static const struct {
    struct finding finding;
    const char *name, *kind;
} cases[] = {
    {{.stage = FINDING_GATE, .effect = FINDING_FACTOR, .amount = 0.5}, "gate_proj: multiplied by 0.5", "multiplied"},
    {{.stage = FINDING_UP, .effect = FINDING_FACTOR, .amount = -1.0}, "up_proj: sign inverted", "multiplied"},
    {{.stage = FINDING_ACT, .effect = FINDING_ADD, .amount = 0.25}, "intermediate: 0.25 added", "added"},
    {{.stage = FINDING_ACT, .effect = FINDING_CONSTANT, .amount = 0.0}, "intermediate: zero", "zero"},
    {{.stage = FINDING_COMBINE, .effect = FINDING_CONSTANT, .amount = NAN}, "output: NaN", "constant"},
    {{.stage = FINDING_COMBINE, .effect = FINDING_CONSTANT, .amount = 2.0}, "output: 2 everywhere", "constant"},
    {{.stage = FINDING_INPUT, .effect = FINDING_NEGATIVE}, "input x: sign lost", "sign lost"},
    {{.stage = FINDING_REQUANT, .effect = FINDING_SATURATE, .amount = 6.0},
     "quantised intermediate: saturated at 6",
     "saturated"},
    {{.stage = FINDING_DOWN, .effect = FINDING_FLUSH, .amount = 0.125},
     "down_proj: magnitudes below 0.125 flushed to zero",
     "flushed"},
    {{.stage = FINDING_ACT, .effect = FINDING_ROUND, .type = FINDING_BF16}, "intermediate: rounded to bf16", "rounded"},
    {{.stage = FINDING_ACT, .effect = FINDING_ROUND, .type = FINDING_BF16_TRUNCATED},
     "intermediate: truncated to bf16",
     "rounded"},
    {{.stage = FINDING_ACT, .effect = FINDING_ROUND, .type = FINDING_FP16}, "intermediate: rounded to FP16", "rounded"},
    {{.stage = FINDING_ACT, .effect = FINDING_ROUND, .type = FINDING_E4M3}, "intermediate: rounded to E4M3", "rounded"},
    {{.stage = FINDING_ACT, .effect = FINDING_ROUND, .type = FINDING_E5M2}, "intermediate: rounded to E5M2", "rounded"},
    {{.stage = FINDING_ACT, .effect = FINDING_ROUND, .type = FINDING_INT8},
     "intermediate: rounded to INT8 with a scale for each row",
     "rounded"},
    {{.stage = FINDING_INPUT, .effect = FINDING_ROUND, .type = FINDING_INT8_GROUPS},
     "input x: rounded to INT8 with a scale for each 128 elements",
     "rounded"},
    {{.stage = FINDING_COMBINE, .effect = FINDING_ELEMENT, .offset = 3},
     "output: those of the column 3 further on",
     "other column"},
    {{.stage = FINDING_DOWN, .effect = FINDING_ELEMENT, .offset = -3},
     "down_proj: those of the row 3 before",
     "other column"},
    {{.stage = FINDING_DOWN, .effect = FINDING_ELEMENT, .offset = -32},
     "down_proj: halves of a row exchanged",
     "other column"},
    {{.stage = FINDING_COMBINE, .effect = FINDING_XOR, .offset = 32},
     "output: halves of a row exchanged",
     "other column"},
    {{.stage = FINDING_COMBINE, .effect = FINDING_XOR, .offset = 1},
     "output: columns exchanged in pairs of 1 (index xor 1)",
     "other column"},
    {{.stage = FINDING_COMBINE, .effect = FINDING_XOR, .offset = 4},
     "output: columns exchanged in runs of 4 (index xor 4)",
     "other column"},
    {{.stage = FINDING_COMBINE, .effect = FINDING_REVERSE}, "output: columns in reverse", "reversed"},
    {{.stage = FINDING_COMBINE, .effect = FINDING_TOKEN, .offset = 1},
     "output: those of the next token",
     "other token"},
    {{.stage = FINDING_COMBINE, .effect = FINDING_TOKEN, .offset = -3, .tokens = ONLY(11, 1)},
     "output of token 11: those of token 14",
     "other token"},
    {{.stage = FINDING_COMBINE, .effect = FINDING_TOKEN, .offset = 3, .tokens = ONLY(13, 1)},
     "output of token 13: those of token 10",
     "other token"},
    {{.stage = FINDING_DOWN, .effect = FINDING_SLOT, .offset = -1, .slots = ONLY(1, 2)},
     "down_proj of slots 1-2: those of the previous slot",
     "other slot"},
    {{.stage = FINDING_GATE_UP, .effect = FINDING_EXPERT, .offset = 1, .experts = ONLY(5, 1)},
     "gate_proj and up_proj of expert 5: with the weights of the next expert",
     "other expert"},
    {{.stage = FINDING_DOWN, .effect = FINDING_EXPERT, .offset = -1, .experts = EVERY(0, 1, 2)},
     "down_proj of even experts: with the weights of the previous expert",
     "other expert"},
    {{.stage = FINDING_REQUANT, .effect = FINDING_SCALES, .offset = 1},
     "quantised intermediate: scales of the next block",
     "other scales"},
    {{.stage = FINDING_REQUANT, .effect = FINDING_SCALES, .offset = -1},
     "quantised intermediate: scales of the previous block",
     "other scales"},
    {{.stage = FINDING_GATE_UP, .effect = FINDING_SWAPPED}, "gate and up swapped", "gate and up swapped"},
    {{.stage = FINDING_ROUTING_WEIGHT, .effect = FINDING_FACTOR, .amount = 2.0, .experts = EVERY(1, 1, 2)},
     "routing weight of odd experts: multiplied by 2",
     "multiplied"},
    {{.stage = FINDING_DOWN, .effect = FINDING_CONSTANT, .elements = EVERY(3, 1, 8)},
     "down_proj, rows 3 of every 8: zero",
     "some elements: zero"},
    {{.stage = FINDING_DOWN, .effect = FINDING_CONSTANT, .experts = ONLY(5, 1)}, "expert 5 left out", "zero"},
    {{.stage = FINDING_DOWN, .effect = FINDING_CONSTANT, .slots = ONLY(1, 1), .tokens = ONLY(11, 2)},
     "slot 1, tokens 11-12 left out",
     "zero"},
    {{.stage = FINDING_GATE_UP, .effect = FINDING_SWAPPED, .experts = ONLY(5, 1)},
     "gate_proj and up_proj of expert 5: gate and up exchanged",
     "gate and up swapped"},
    {{.stage = FINDING_ACT, .effect = FINDING_FUNCTION, .function = FUNCTION_RELU, .experts = ONLY(5, 1)},
     "intermediate of expert 5: ReLU in place of SiLU",
     "ReLU in place of SiLU"},
    {{.stage = FINDING_ACT, .effect = FINDING_FUNCTION, .function = FUNCTION_GELU},
     "GELU in place of SiLU",
     "GELU in place of SiLU"},
    {{.stage = FINDING_GATE, .effect = FINDING_HALF}, "gate_proj: those of up_proj", "other half"},
    {{.stage = FINDING_GATE, .effect = FINDING_LISTED, .offset = -1, .added = true},
     "gate_proj: those of the previous token of the same expert added",
     "other token"},
    {{.stage = FINDING_ACT, .effect = FINDING_TOKEN_XOR, .offset = 1},
     "intermediate: those of the token with index xor 1",
     "other token"},
    {{.stage = FINDING_DOWN, .effect = FINDING_LISTED_XOR, .offset = 2},
     "down_proj: those of the token of the same expert with place xor 2",
     "other token"},
    {{.stage = FINDING_INPUT, .effect = FINDING_EXPERT, .offset = 3},
     "input x: with the weights of the expert 3 further on",
     "other expert"},
    {{.stage = FINDING_DOWN, .effect = FINDING_EXPERT_OF, .offset = 7, .experts = ONLY(8, 8)},
     "down_proj of experts 8-15: with the weights of expert 7",
     "other expert"},
    {{.stage = FINDING_INPUT, .effect = FINDING_EXCHANGED, .offset = 9, .experts = {AXIS_LIST, 0, 2, 0, {2, 7}}},
     "input x of experts 2 and 7: with each other's weights",
     "other expert"},
    {{.stage = FINDING_ROUTING_WEIGHT, .effect = FINDING_WEIGHTED},
     "routing weight applied twice",
     "routing weight applied twice"},
    {{.stage = FINDING_ROUTING_WEIGHT, .effect = FINDING_CONSTANT, .amount = 1.0},
     "routing weight missing",
     "routing weight missing"},
    {{.stage = FINDING_ROUTING_WEIGHT, .effect = FINDING_CONSTANT, .amount = 1.0, .tokens = ONLY(12, 1)},
     "routing weight of token 12: missing",
     "routing weight missing"},
    {{.stage = FINDING_GATE_UP, .effect = FINDING_WEIGHTED},
     "gate_proj and up_proj: multiplied by the routing weight",
     "weighted"},
    {{.stage = FINDING_ROUTING_WEIGHT, .effect = FINDING_LARGEST},
     "routing weight: divided by the token's largest",
     "by the largest"},
    {{.stage = FINDING_ROUTING_WEIGHT, .effect = FINDING_RANKED}, "routing weight: in descending order", "sorted"},
    {{.stage = FINDING_UP, .effect = FINDING_FLOOR, .amount = -0.5}, "up_proj: at least -0.5", "floored"},
    {{.stage = FINDING_DOWN, .effect = FINDING_ROUND, .type = FINDING_TF32}, "down_proj: rounded to TF32", "rounded"},
    {{.stage = FINDING_DOWN, .operand = FINDING_BLOCKS, .effect = FINDING_SQUARE},
     "scales of down_proj: applied twice",
     "scales of applied twice"},
    {{.stage = FINDING_DOWN, .operand = FINDING_BLOCKS, .effect = FINDING_CONSTANT, .amount = 1.0},
     "scales of down_proj: taken as 1",
     "scales of constant"},
    {{.stage = FINDING_UP, .operand = FINDING_BLOCKS, .effect = FINDING_TRANSPOSED, .offset = 4},
     "scales of up_proj: tiles of 4 x 4 transposed",
     "scales of transposed"},
    {{.stage = FINDING_DOWN, .operand = FINDING_BLOCKS, .effect = FINDING_ROW, .offset = 1},
     "scales of the next row in down",
     "scales of the next row in down"},
    {{.stage = FINDING_UP, .operand = FINDING_CODES, .effect = FINDING_ROW, .offset = -1},
     "codes of up_proj: those of the previous row",
     "codes of other row"},
    {{.stage = FINDING_DOWN, .operand = FINDING_BLOCKS, .effect = FINDING_ROW, .offset = 2, .k = ONLY(8, 8)},
     "scales of down_proj, columns 8-15 of K: those of the row 2 further on",
     "scales of other row"},
    {{.stage = FINDING_GATE, .effect = FINDING_EXPERT, .offset = -3},
     "gate_proj: with the weights of the expert 3 before",
     "other expert"},
    {{.stage = FINDING_ACT, .effect = FINDING_SLOT, .offset = 1, .experts = ONLY(2, 2)},
     "intermediate of experts 2-3: those of the next slot",
     "other slot"},
    {{.stage = FINDING_ACT, .effect = FINDING_TOKEN, .offset = -1},
     "intermediate: those of the previous token",
     "other token"},
    {{.stage = FINDING_UP, .operand = FINDING_CODES, .effect = FINDING_READ, .type = FINDING_INTEGER},
     "codes of up_proj: read as integers",
     "codes of misread"},
    {{.stage = FINDING_DOWN, .effect = FINDING_CONSTANT, .elements = EVERY(3, 2, 8)},
     "down_proj, rows 3-4 of every 8: zero",
     "some elements: zero"},
    {{.stage = FINDING_DOWN,
      .effect = FINDING_CONSTANT,
      .elements = {.kind = AXIS_LIST, .count = 3, .list = {1, 4, 6}}},
     "down_proj, rows 1, 4 and 6: zero",
     "some elements: zero"},
    {{.stage = FINDING_GATE_UP, .effect = FINDING_CONSTANT, .k = ONLY(16, 16)},
     "gate_proj and up_proj, columns 16-31 of K: left out",
     "left out"},
    {{.stage = FINDING_COMBINE, .effect = FINDING_CAP, .amount = 3.5}, "output: at most 3.5", "capped"},
    {{.stage = FINDING_ACT, .effect = FINDING_SLOT_OF, .offset = 2}, "intermediate: those of slot 2", "other slot"},
    {{.stage = FINDING_COMBINE, .effect = FINDING_TOKEN_OF, .offset = 4},
     "output: those of the token whose number is this one's mod 4",
     "other token"},
    {{.stage = FINDING_DOWN, .effect = FINDING_SHARED, .offset = 3, .operand = FINDING_BLOCKS},
     "scales of down_proj: one block for every 4",
     "scales of shared"},
    {{.stage = FINDING_GATE, .effect = FINDING_TILED, .offset = 2, .columns = 8, .operand = FINDING_CODES},
     "codes of gate_proj: tiles of 2 x 8 columns transposed",
     "codes of transposed"},
    {{.stage = FINDING_UP, .effect = FINDING_REVERSE, .operand = FINDING_WEIGHTS, .k = ONLY(4, 1)},
     "weights of up_proj, column 4 of K: columns in reverse",
     "weights of reversed"},
    {{.stage = FINDING_COMBINE, .effect = FINDING_LISTED, .offset = 1, .list = ONLY(2, 3)},
     "output of places 2-4 in the expert's list of tokens: those of the next token of the same expert",
     "other token"},
    {{.stage = FINDING_COMBINE, .effect = FINDING_CLAMPED, .offset = 7, .experts = ONLY(1, 1), .list = EVERY(1, 1, 4)},
     "output of expert 1, places 1 of every 4 in the expert's list of tokens: those of place 7 in the expert's list of "
     "tokens",
     "other token"},
    {{.stage = FINDING_GATE, .effect = FINDING_HALF}, "gate_proj: those of up_proj", "other half"},
    {{.stage = FINDING_UP, .effect = FINDING_HALF}, "up_proj: those of gate_proj", "other half"},
    {{.stage = FINDING_GATE_UP, .operand = FINDING_CODES, .effect = FINDING_HALF},
     "codes of gate_proj and up_proj: those of the other half of gate_up",
     "codes of other half"},
    {{.stage = FINDING_DOWN, .effect = FINDING_ROW_XOR, .offset = 8, .elements = ONLY(5, 1)},
     "down_proj, row 5: those of the row with index xor 8",
     "some elements: other row"},
    {{.stage = FINDING_INPUT, .effect = FINDING_READ, .type = FINDING_FP16}, "input x: read as FP16", "misread"},
    {{.stage = FINDING_INPUT, .effect = FINDING_READ, .type = FINDING_E5M2}, "input x: read as E5M2", "misread"},
    {{.stage = FINDING_DOWN, .effect = FINDING_POWER, .operand = FINDING_BLOCKS, .k = ONLY(8, 8)},
     "scales of down_proj, columns 8-15 of K: rounded down to a power of two",
     "scales without significand in down"}, /* the kind of the injected bug, whose name it has everywhere */
    {{.stage = FINDING_DOWN, .effect = FINDING_POWER, .operand = FINDING_BLOCKS},
     "scales without significand in down",
     "scales without significand in down"},
};

static void every_finding_has_words(void **state)
{
    const struct finding_frame frame = {.width = 64, .first_token = 10, .tokens = 6};
    char text[320];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct finding *f = &cases[i].finding;
        bool anywhere =
            !f->tokens.kind && !f->slots.kind && !f->experts.kind && !f->list.kind && !f->elements.kind && !f->k.kind;
        finding_name(f, &frame, text, sizeof text);
        assert_string_equal(text, cases[i].name);
        finding_kind(f, text, sizeof text);
        assert_string_equal(text, cases[i].kind);
        struct finding_words words;
        memset(&words, 'x', sizeof words); /* of which nothing is left */
        finding_words(f, &frame, &words);
        const bool of = !strncmp(words.place, "of ", 3);
        snprintf(text, sizeof text, "%s%s%s: %s", words.array,
                 of               ? " "
                 : words.place[0] ? ", "
                                  : "",
                 words.place, words.effect);
        if (strchr(cases[i].name, ':'))
            assert_string_equal(text, cases[i].name);
        assert_int_equal(words.place[0] == '\0', anywhere);
        assert_int_equal(finding_is_everywhere(f), anywhere);
    }
}

enum advice {
    NOTHING,
    ORDER,
    FEW,
    MINIMISE,
    MINIMISE_UNNAMED,
    WITHOUT_ROUTER,
    WITH_SUBJECT,
    WITH_INTERMEDIATE,
    OPEN_SILU,
    COMBINE
};

/* How each begins and ends. */
static const char *const advice[][2] = {
    [ORDER] = {"every element is within its error bound: if the kernel sums", "let it claim none"},
    [FEW] = {"every element is within its error bound, and few differ", "one more rounding"},
    [MINIMISE] = {"add --minimise least.h5: it writes", "the smallest part that fails"},
    [MINIMISE_UNNAMED] = {"add --minimise least.h5: it writes", "which may show a known bug"},
    [WITHOUT_ROUTER] = {"run the experts as a kernel without a router", "the smallest part that fails"},
    [WITH_SUBJECT] = {"run the kernel itself with --subject", "the smallest part that fails"},
    [WITH_INTERMEDIATE] = {"write the intermediate beside the output", "checked apart"},
    [OPEN_SILU] = {"every difference is one that another FP32 evaluation", "--open-silu)"},
    [COMBINE] = {"every element is within its error bound: if the kernel sums", "let it claim none"},
};

static void expect_advice(const char *next, enum advice expected, const char *what, unsigned n)
{
    if (expected == NOTHING ? next != NULL
                            : !next || strncmp(next, advice[expected][0], strlen(advice[expected][0])) ||
                                  strlen(next) < strlen(advice[expected][1]) ||
                                  strcmp(next + strlen(next) - strlen(advice[expected][1]), advice[expected][1]))
        fail_msg("%s, case %u: \"%s\"", what, n, next ? next : "nothing");
}

/* Of a layer: by whether the failure has a name, whether bits alone differ and how many, what was run and how. */
static void what_to_do_next_is_said(void **state)
{
    static const enum gb_operator layers[] = {GB_LAYER, GB_GATE_UP, GB_DOWN};
    static const uint64_t differ[] = {0, 1, 100, 101};
    struct gb_layer_outputs layer = {.intermediate = NULL};
    struct gb_outputs outputs = {.layer = &layer};
    struct explanation nameless = {.text = ""}, named = {.text = ""};
    struct explanation *const explanations[] = {NULL, &nameless, &named};
    (void)state;
    strcpy(named.best.name, "x");
    for (unsigned n = 0; n < 3 * 3 * 4 * 256; n++) {
        const unsigned found = n / 3 % 3, bits = n / 9 % 4, flags = n / 36 % 256;
        const bool library = flags & 1, routes = flags & 2, minimising = flags & 4, inner = flags & 8;
        const bool binding = flags & 16, exceeding = flags & 32, judged = flags & 64, rough = flags & 128;
        struct case_entry one = {.library = library ? "lib.so" : "", .explanation = explanations[found]};
        one.kernel.flags = routes ? GB_ROUTES : 0;
        one.result.judged = judged;
        one.result.bits_binding = binding;
        one.result.bits.compared = 1000 + (rough ? 9 : 0);
        one.result.bits.mismatching = differ[bits];
        one.result.bound.exceeding = exceeding;
        layer.intermediate = inner ? (gb_bf16 *)&layer : NULL;
        const bool alone = judged && binding && differ[bits] && !exceeding;
        const enum advice expected = found < 2 && alone   ? differ[bits] > 100 ? ORDER : FEW
                                     : library && !routes ? minimising   ? NOTHING
                                                            : found == 2 ? MINIMISE
                                                                         : MINIMISE_UNNAMED
                                     : found == 2         ? NOTHING
                                     : library            ? WITHOUT_ROUTER
                                     : inner              ? WITH_SUBJECT
                                                          : WITH_INTERMEDIATE;
        expect_advice(operator_explainer_find(layers[n % 3])->next(&one, &outputs, minimising), expected, "layer", n);
        expect_advice(operator_explainer_find(GB_COMBINE)->next(&one, &outputs, minimising),
                      !found && alone ? COMBINE : NOTHING, "combine", n);
    }
    assert_null(operator_explainer_find(GB_ROUTE));
}

/* Of codes: where each that differs is one that silu leaves open, and the kernel does not say so. */
static void open_silu_is_said(void **state)
{
    static const enum gb_operator quantisers[] = {GB_QUANTISE, GB_SILU_MUL_QUANTISE};
    (void)state;
    for (unsigned n = 0; n < 2 * 2 * 81; n++) {
        struct case_entry one = {.library = ""};
        struct quantise_check *k = &one.result.quantise;
        k->open_silu = n / 2 % 2;
        k->codes.mismatching = n / 4 % 3;
        k->codes.admissible = n / 12 % 3;
        k->scales.mismatching = n / 36 % 3;
        k->scales.admissible = n / 108 % 3;
        const uint64_t differ = k->codes.mismatching + k->scales.mismatching;
        const bool open = differ && differ == k->codes.admissible + k->scales.admissible && !k->open_silu;
        expect_advice(operator_explainer_find(quantisers[n % 2])->next(&one, NULL, false), open ? OPEN_SILU : NOTHING,
                      "codes", n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_finding_has_words),
                                       cmocka_unit_test(what_to_do_next_is_said), cmocka_unit_test(open_silu_is_said)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
