/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search for a finding, part by part: which slots have an effect and how much of it, by least squares; what
 * explains rows that are known; which pairs are put into words, and how; and all effects that are tried of each stage,
 * which tests/harness/kept holds.
 */
#include "harness/explain/places.h"
#include "harness/explain/search.h"
#include "tests/support/check.h"
#include "tests/support/kept_explanation.h"

enum { TOKENS = 5, TOP_K = 3, PAIRS = TOKENS * TOP_K, EXPERTS = 7, SAMPLES = 40, WIDTH = 2 * SAMPLES };

struct scene {
    struct diagnosis diagnosis;
    struct search search;
    int32_t ids[PAIRS];
    uint32_t list[PAIRS], column[SAMPLES];
    double alpha[PAIRS], weight[PAIRS], response[TOP_K * SAMPLES], errors[PAIRS * WIDTH];
};

/* Tokens with three different experts; one slot is empty. */
static void scene_new(struct scene *s)
{
    static const uint32_t expert[TOP_K] = {0, 3, 1};
    uint32_t listed[EXPERTS] = {0};
    memset(s, 0, sizeof *s);
    for (uint32_t p = 0; p < PAIRS; p++)
        s->ids[p] = p == 7 ? -1 : (int32_t)((p / TOP_K * 2 + expert[p % TOP_K]) % EXPERTS);
    for (uint32_t p = 0; p < PAIRS; p++)
        s->list[p] = s->ids[p] < 0 ? 0 : listed[s->ids[p]]++;
    for (uint32_t j = 0; j < SAMPLES; j++)
        s->column[j] = 2 * j + 1;
    s->diagnosis = (struct diagnosis){.list = s->list, .errors = s->errors, .width = WIDTH, .rows_per_token = 1};
    s->search = (struct search){.w = &s->diagnosis,
                                .s = {.diagnosis = &s->diagnosis,
                                      .tokens = TOKENS,
                                      .top_k = TOP_K,
                                      .pairs = PAIRS,
                                      .hidden = WIDTH,
                                      .intermediate = 48,
                                      .experts = EXPERTS,
                                      .ids = s->ids},
                                .column = s->column,
                                .samples = SAMPLES,
                                .alpha = s->alpha,
                                .weight = s->weight,
                                .response = s->response};
}

/* The slots of one token have an effect, each about as much of it; others have none, and some do not show it. */
static void slots_with_an_effect_are_taken(void **state)
{
    static struct scene s;
    (void)state;
    for (uint32_t t = 0; t < TOKENS; t++)
        for (int linear = 0; linear < 2; linear++)
            for (int combine = 0; combine < 2; combine++) {
                struct finding f = {.stage = combine ? FINDING_COMBINE : FINDING_ACT,
                                    .effect = linear ? FINDING_FACTOR : FINDING_ROUND,
                                    .amount = 2.0};
                double top = 0.0, bottom = 0.0;
                scene_new(&s);
                for (uint32_t p = 0; p < PAIRS; p++) {
                    bool one = p / TOP_K == t;
                    uint32_t strength = (p + t + 2) % TOP_K; /* of the first token's the first slot has most of it */
                    s.alpha[p] = !one ? 0.0 : linear ? 0.3 + 0.02 * strength : 1.0;
                    s.weight[p] = s.ids[p] < 0 ? 0.0 : 2.0 + strength;
                    top += one ? s.alpha[p] * s.weight[p] : 0.0;
                    bottom += one ? s.weight[p] : 0.0;
                }
                uint32_t faint = (t + 1) % TOKENS * TOP_K + 1; /* has all of it, and next to nothing to show */
                s.alpha[faint] = 1.0;
                s.weight[faint] = 0.985e-6 * 4.0;
                assert_true(search_take_pairs(&s.search, &f));
                for (uint32_t u = 0; u < TOKENS; u++)
                    assert_int_equal(finding_axis_has(&f.tokens, u), u == t);
                assert_true(fabs(f.amount - (linear ? 1.0 + top / bottom : 2.0)) < 1e-12);
                f = (struct finding){.stage = FINDING_ACT, .effect = FINDING_ADD, .amount = 3.0};
                assert_true(!linear || search_take_pairs(&s.search, &f));
                assert_true(!linear || fabs(f.amount - 3.0 * top / bottom) < 1e-12);
            }
}

/* One slot alone; and effects of which a multiple is another one of their kind. */
static void one_slot_is_taken(void **state)
{
    static struct scene s;
    (void)state;
    for (uint32_t p = 0; p < PAIRS; p++) {
        struct finding f = {.stage = FINDING_DOWN, .effect = FINDING_ADD, .amount = 3.0};
        scene_new(&s);
        s.alpha[p] = 0.3;
        for (uint32_t q = 0; q < PAIRS; q++)
            s.weight[q] = 1.0;
        if (s.ids[p] < 0)
            continue;
        assert_true(search_take_pairs(&s.search, &f));
        assert_true(fabs(f.amount - 0.9) < 1e-12);
        for (uint32_t q = 0; q < PAIRS; q++)
            assert_int_equal(stages_hit(&s.search.s, &f, q), q == p);
    }
    for (int effect = 0; effect < FINDING_EFFECTS; effect++)
        for (int stage = 0; stage < FINDING_STAGES; stage++)
            assert_int_equal(search_is_linear(&(struct finding){.stage = (enum finding_stage)stage,
                                                                .effect = (enum finding_effect)effect}),
                             effect <= FINDING_ADD && stage >= FINDING_ACT);
}

/* Beside the slot that shows most of it, those with half to one and a half of that; what shows a millionth is open. */
static void slots_with_about_as_much_are_taken(void **state)
{
    static struct scene s;
    static const struct {
        double alpha, faint;
        bool taken, open;
    } rows[] = {{0.51, 1.02e-6, true, false},  {0.49, 1.02e-6, false, false}, {1.49, 1.02e-6, true, false},
                {1.51, 1.02e-6, false, false}, {0.51, 0.98e-6, true, true},   {-1.0, 1.02e-6, false, false}};
    (void)state;
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
        for (int effect = 0; effect < 3; effect++) {
            static const enum finding_effect effects[] = {FINDING_FACTOR, FINDING_ADD, FINDING_ROUND};
            const bool linear = effect < 2, taken = rows[n].taken;
            const double scale = linear ? 0.25 : 1.0;
            struct finding f = {.stage = FINDING_DOWN, .effect = effects[effect], .amount = 3.0};
            scene_new(&s);
            for (uint32_t p = 0; p < PAIRS; p++) {
                const double alpha[] = {1.0, rows[n].alpha, 0.0}, weight[] = {8.0, 0.5, rows[n].faint * 8.0};
                s.alpha[p] = s.ids[p] < 0 ? 0.0 : scale * alpha[p % TOP_K];
                s.weight[p] = s.ids[p] < 0 ? 0.0 : weight[p % TOP_K];
            }
            assert_true(search_take_pairs(&s.search, &f));
            for (uint32_t p = 0; p < PAIRS; p++)
                if (s.ids[p] >= 0)
                    assert_int_equal(stages_hit(&s.search.s, &f, p),
                                     p % TOP_K == 0 || (p % TOP_K == 1 ? taken : rows[n].open));
            /* One of the second slots is empty. */
            const double mean = taken ? (5 * 8.0 + 4 * 0.5 * rows[n].alpha) / (5 * 8.0 + 4 * 0.5) : 1.0;
            const double amount = effect == 0 ? 1.0 + 2.0 * scale * mean : effect == 1 ? 3.0 * scale * mean : 3.0;
            assert_true(fabs(f.amount - amount) < 1e-12);
        }
}

static double random_value(uint64_t *random)
{
    return ldexp((double)(random_bits(random) >> 32), -31) - 1.0;
}

/* Amounts by which responses make the errors are found again; what is left is what nothing makes. */
static void amounts_are_found(void **state)
{
    static const double amounts[TOP_K] = {0.5, -1.0, 2.0}, whole[TOP_K] = {1.0, 0.0, 1.0};
    static struct scene s;
    uint64_t random = 5;
    (void)state;
    for (int inner = 0; inner < 2; inner++)
        for (int linear = 0; linear < 2; linear++)
            for (uint32_t t = 0; t < TOKENS; t++) {
                double all, expected = 0.0;
                scene_new(&s);
                s.diagnosis.inner = inner;
                s.diagnosis.rows_per_token = inner ? TOP_K : 1;
                for (uint32_t i = 0; i < TOP_K * SAMPLES; i++)
                    s.response[i] = random_value(&random);
                for (uint32_t j = 0; j < SAMPLES; j++)
                    for (uint32_t u = 0; u < TOP_K; u++) {
                        uint32_t row = inner ? t * TOP_K + u : t;
                        s.errors[row * WIDTH + s.column[j]] +=
                            (linear ? amounts[u] : whole[u]) * s.response[u * SAMPLES + j];
                    }
                for (uint32_t row = 0; row < PAIRS; row++)
                    for (uint32_t j = 0; j < SAMPLES && row / s.diagnosis.rows_per_token == t; j++)
                        expected += pow(s.errors[row * WIDTH + s.column[j]], 2);
                double left = search_regress(&s.search, t, linear, &all);
                assert_true(left < 1e-9 * all && fabs(all - expected) < 1e-9 * all);
                for (uint32_t u = 0; u < TOP_K; u++) {
                    double squares = 0.0;
                    for (uint32_t j = 0; j < SAMPLES; j++)
                        squares += pow(s.response[u * SAMPLES + j], 2);
                    assert_true(fabs(s.alpha[t * TOP_K + u] - (linear ? amounts[u] : whole[u])) < 1e-6);
                    assert_true(fabs(s.weight[t * TOP_K + u] - squares) < 1e-9 * squares);
                }
                for (uint32_t p = 0; p < PAIRS; p++)
                    assert_true(p / TOP_K == t || (s.alpha[p] == 0.0 && s.weight[p] == 0.0));
            }
}

enum { INNER = 48 };

/* Down of all experts, and of what it makes of the rows that it multiplies. */
struct arrays {
    double down[EXPERTS][WIDTH][INNER], sampled[EXPERTS][SAMPLES][INNER], requant[PAIRS][INNER], operand[PAIRS][INNER];
    double slots[PAIRS][WIDTH], output[TOKENS][WIDTH], weights[PAIRS], difference[INNER];
    double *of_expert[EXPERTS];
};

static double dot(const double *a, const double *b)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < INNER; i++)
        sum += a[i] * b[i];
    return sum;
}

static void arrays_new(struct arrays *a, struct scene *s)
{
    uint64_t random = 17;
    scene_new(s);
    memset(a, 0, sizeof *a);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        for (uint32_t i = 0; i < WIDTH * INNER; i++)
            a->down[e][i / INNER][i % INNER] = random_value(&random);
        for (uint32_t j = 0; j < SAMPLES; j++)
            memcpy(a->sampled[e][j], a->down[e][s->column[j]], sizeof a->sampled[e][j]);
        a->of_expert[e] = a->sampled[e][0];
    }
    for (uint32_t p = 0; p < PAIRS; p++) {
        a->weights[p] = 1.5 + random_value(&random);
        for (uint32_t i = 0; i < INNER; i++) {
            a->requant[p][i] = random_value(&random);
            a->operand[p][i] = i % 3 && p != 4 ? random_value(&random) : a->requant[p][i];
        }
        for (uint32_t c = 0; c < WIDTH && s->ids[p] >= 0; c++) {
            a->slots[p][c] = dot(a->down[s->ids[p]][c], a->requant[p]);
            a->output[p / TOP_K][c] += a->weights[p] * a->slots[p][c];
        }
    }
    struct stages *stages = &s->search.s;
    stages->requant = a->requant[0];
    stages->slots = a->slots[0];
    stages->output = a->output[0];
    stages->weights = a->weights;
    s->search.down = a->of_expert;
    s->search.operand = a->operand[0];
    s->search.difference = a->difference;
    s->search.most = INFINITY;
}

/* What a finding adds to column c of a pair's part of the output, from the definitions in finding.h. */
static double added_by(const struct finding *f, const struct arrays *a, const struct scene *s, uint32_t p, uint32_t c)
{
    const double *own = a->requant[p], value = a->slots[p][c], weight = a->weights[p];
    double sum = 0.0;
    if (s->ids[p] < 0 || !finding_axis_has(&f->slots, p % TOP_K) || !finding_axis_has(&f->elements, c))
        return 0.0;
    if (f->stage == FINDING_COMBINE) {
        const double output = a->output[p / TOP_K][c];
        return p % TOP_K                    ? 0.0
               : f->effect == FINDING_TOKEN ? a->output[(p / TOP_K + 1) % TOKENS][c] - output
                                            : (f->effect == FINDING_FACTOR ? f->amount * output : f->amount) - output;
    }
    if (f->stage == FINDING_ROUTING_WEIGHT)
        return (f->effect == FINDING_FACTOR ? (f->amount - 1.0) * weight : f->amount) * value;
    if (f->effect == FINDING_EXPERT)
        return weight * (dot(a->down[(s->ids[p] + EXPERTS + f->offset) % EXPERTS][c], own) - value);
    for (uint32_t i = 0; i < INNER; i++)
        sum += finding_axis_has(&f->k, i) ? a->down[s->ids[p]][c][i] * own[i] : 0.0;
    return f->effect == FINDING_ADD ? weight * f->amount
                                    : weight * sum * ((f->effect == FINDING_CONSTANT ? 0.0 : f->amount) - 1.0);
}

/* What an effect makes of the samples of each slot. */
static void responses_are_the_layers(void **state)
{
    static const struct finding_axis some = {.kind = AXIS_RANGE, .first = 5, .count = 20},
                                     odd = {.kind = AXIS_MODULO, .first = 1, .count = 2, .period = 4},
                                     last = {.kind = AXIS_RANGE, .first = 1, .count = 2};
    static const struct finding effects[] = {
        {.stage = FINDING_DOWN, .effect = FINDING_FACTOR, .amount = 3.0},
        {.stage = FINDING_DOWN, .effect = FINDING_FACTOR, .amount = 3.0, .slots = last, .elements = some},
        {.stage = FINDING_DOWN, .effect = FINDING_FACTOR, .amount = 0.5, .k = some},
        {.stage = FINDING_DOWN, .effect = FINDING_CONSTANT, .k = odd},
        {.stage = FINDING_DOWN, .effect = FINDING_ADD, .amount = 0.25, .elements = odd},
        {.stage = FINDING_DOWN, .effect = FINDING_EXPERT, .offset = -1},
        {.stage = FINDING_DOWN, .effect = FINDING_EXPERT, .offset = 1, .slots = last},
        {.stage = FINDING_ROUTING_WEIGHT, .effect = FINDING_FACTOR, .amount = -2.0},
        {.stage = FINDING_ROUTING_WEIGHT, .effect = FINDING_ADD, .amount = 0.75, .slots = last},
        {.stage = FINDING_COMBINE, .effect = FINDING_FACTOR, .amount = 1.25, .elements = some},
        {.stage = FINDING_COMBINE, .effect = FINDING_CONSTANT, .amount = 2.0},
        {.stage = FINDING_COMBINE, .effect = FINDING_TOKEN, .offset = 1},
    };
    static struct arrays a;
    static struct scene s;
    (void)state;
    arrays_new(&a, &s);
    for (size_t n = 0; n < sizeof effects / sizeof *effects; n++)
        for (uint32_t t = 0; t < TOKENS; t++) {
            const struct finding *f = &effects[n];
            for (uint32_t i = 0; i < TOP_K * SAMPLES; i++)
                s.response[i] = 1e9;
            double before = s.search.work;
            search_respond(&s.search, t, f);
            assert_true(s.search.work - before == TOP_K * (f->stage == FINDING_DOWN ? INNER : 1.0) * SAMPLES);
            for (uint32_t u = 0; u < TOP_K; u++)
                for (uint32_t j = 0; j < SAMPLES; j++) {
                    double expected = added_by(f, &a, &s, t * TOP_K + u, s.column[j]);
                    if (!(fabs(s.response[u * SAMPLES + j] - expected) <= 1e-12 * fabs(expected) * INNER))
                        fail_msg("effect %zu, token %u, slot %u, sample %u: %g, not %g", n, t, u, j,
                                 s.response[u * SAMPLES + j], expected);
                }
        }
}

/* What other rows for down to multiply make of them; of gate_up alone its results are those rows. */
static void responses_of_rows(void **state)
{
    static struct arrays a;
    static struct scene s;
    (void)state;
    arrays_new(&a, &s);
    for (int inner = 0; inner < 2; inner++)
        for (uint32_t t = 0; t < TOKENS; t++) {
            s.diagnosis.inner = inner;
            for (uint32_t j = 0; inner && j < SAMPLES; j++)
                s.column[j] = j;
            for (uint32_t i = 0; i < TOP_K * SAMPLES; i++)
                s.response[i] = 1e9;
            search_respond_operand(&s.search, t);
            for (uint32_t p = t * TOP_K; p < (t + 1) * TOP_K; p++)
                for (uint32_t j = 0; j < SAMPLES; j++) {
                    const double *row = s.ids[p] < 0 ? NULL : a.sampled[s.ids[p]][j];
                    double expected = inner ? a.operand[p][j] - a.requant[p][j]
                                      : row ? a.weights[p] * (dot(row, a.operand[p]) - dot(row, a.requant[p]))
                                            : 0.0;
                    assert_true(fabs(s.response[p % TOP_K * SAMPLES + j] - (s.ids[p] < 0 ? 0.0 : expected)) < 1e-9);
                }
        }
}

/* Of rows that are known, elements that are as they were do not count. */
static void known_rows_are_rated(void **state)
{
    enum { ROWS = 2, ELEMENTS = 6 };
    static const uint32_t row[ROWS] = {3, 1};
    double clean[4 * ELEMENTS], operand[4 * ELEMENTS], values[ROWS * ELEMENTS], left = 0.0, all = 0.0;
    struct observed seen = {.clean = clean,
                            .width = ELEMENTS,
                            .rows = ROWS,
                            .row = row,
                            .values = values,
                            .tolerance = 0.25,
                            .relative = 0.125};
    struct search q = {.seen = &seen, .operand = operand};
    uint64_t random = 9;
    (void)state;
    for (uint32_t i = 0; i < 4 * ELEMENTS; i++) {
        clean[i] = 2.0 + i % 5;
        operand[i] = clean[i] + random_value(&random);
    }
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < ELEMENTS; i++) {
            double right = clean[row[r] * ELEMENTS + i], limit = 0.25 + 0.125 * right;
            double off = limit * (i % 3 == 0 ? 0.99 : i % 3 == 1 ? 1.01 : -3.0);
            values[r * ELEMENTS + i] = right + off;
            left += i % 3 ? pow(right + off - operand[row[r] * ELEMENTS + i], 2) : 0.0;
            all += i % 3 ? off * off : 0.0;
        }
    assert_true(fabs(search_rate_seen(&q) - (1.0 - left / all)) < 1e-12);
    memcpy(operand + 3 * ELEMENTS, values, ELEMENTS * sizeof *values);
    memcpy(operand + ELEMENTS, values + ELEMENTS, ELEMENTS * sizeof *values);
    assert_true(search_rate_seen(&q) == 1.0);
    seen.tolerance = 100.0;
    assert_true(search_rate_seen(&q) == 0.0);
}

/* Whatever a finding said before, its places have every wrong pair and no right one, in no more words than these. */
static void expect_described(const struct scene *s, const struct finding *planted)
{
    bool is[PAIRS], would[PAIRS], any = false;
    struct finding f = {.tokens = {.kind = AXIS_LIST},
                        .slots = {.kind = AXIS_LIST},
                        .experts = {.kind = AXIS_LIST},
                        .list = {.kind = AXIS_LIST}};
    for (uint32_t p = 0; p < PAIRS; p++) {
        is[p] = stages_hit(&s->search.s, planted, p);
        would[p] = s->ids[p] >= 0;
        any |= is[p];
    }
    if (!any)
        return;
    assert_true(pairs_describe(&s->search.s, is, would, &f));
    for (uint32_t p = 0; p < PAIRS; p++)
        assert_int_equal(stages_hit(&s->search.s, &f, p), is[p]);
    assert_true(finding_cost(&f) <= finding_cost(planted));
}

static void places_of_pairs_are_described(void **state)
{
    static struct scene s;
    (void)state;
    for (uint32_t first = 0; first < 3; first++)
        for (uint32_t a = 0; a < EXPERTS; a++)
            for (uint32_t b = 0; b < EXPERTS; b++) {
                const struct finding_axis one = {.kind = AXIS_RANGE, .first = a, .count = 1},
                                          other = {.kind = AXIS_RANGE, .first = b, .count = 1 + first};
                scene_new(&s);
                s.diagnosis.first = first;
                expect_described(&s, &(struct finding){.tokens = one});
                expect_described(&s, &(struct finding){.slots = one});
                expect_described(&s, &(struct finding){.experts = one});
                expect_described(&s, &(struct finding){.list = one});
                expect_described(&s, &(struct finding){.tokens = one, .slots = other});
                expect_described(&s, &(struct finding){.tokens = one, .experts = other});
                expect_described(&s, &(struct finding){.experts = one, .slots = other});
                expect_described(&s, &(struct finding){.experts = one, .list = other});
            }
}

/* A constant added to the rows of all slots, of one slot or of one expert's is found, with its places. */
static void added_constants_are_found(void **state)
{
    static struct arrays a;
    static struct scene s;
    static float clean[TOKENS * WIDTH], faulty[TOKENS * WIDTH];
    static const gb_bf16 rows[PAIRS * INNER];
    bool wrong[WIDTH];
    uint32_t tokens[TOKENS] = {3, 1, 4, 0, 2};
    (void)state;
    memset(wrong, true, sizeof wrong);
    for (uint32_t n = 0; n < 1 + TOP_K + EXPERTS; n++) {
        const struct finding_axis one = {.kind = AXIS_RANGE, .first = n <= TOP_K ? n - 1 : n - 1 - TOP_K, .count = 1};
        struct finding f = {.stage = FINDING_DOWN, .effect = FINDING_ADD, .amount = 0.375 + n};
        if (n)
            *(n <= TOP_K ? &f.slots : &f.experts) = one;
        arrays_new(&a, &s);
        s.diagnosis.rows = TOKENS;
        s.diagnosis.location.column = wrong;
        s.diagnosis.location.wrong_columns = WIDTH;
        s.diagnosis.trace.intermediate = (gb_bf16 *)rows;
        s.diagnosis.clean = clean;
        s.diagnosis.faulty = faulty;
        s.search.token = tokens;
        s.search.tokens = TOKENS;
        for (uint32_t i = 0; i < TOKENS * WIDTH; i++) {
            clean[i] = (float)a.output[i / WIDTH][i % WIDTH];
            for (uint32_t p = i / WIDTH * TOP_K; p < (i / WIDTH + 1) * TOP_K; p++)
                s.errors[i] += stages_hit(&s.search.s, &f, p) ? f.amount * a.weights[p] : 0.0;
        }
        search_try_added(&s.search);
        const struct finding *best = &s.search.best.finding;
        assert_int_equal(s.search.status, GB_OK);
        assert_true(s.search.best.explains > 1.0 - 1e-9 && fabs(best->amount - f.amount) < 1e-12 * f.amount);
        assert_true(best->stage == FINDING_DOWN && best->effect == FINDING_ADD &&
                    finding_cost(best) <= finding_cost(&f));
        for (uint32_t p = 0; p < PAIRS; p++)
            assert_int_equal(stages_hit(&s.search.s, best, p), stages_hit(&s.search.s, &f, p));
    }
}

/* Outputs to which each slot adds a constant in some columns; which columns are known to be wrong. */
static void constant_new(struct scene *s, struct arrays *a, const struct finding_axis *elements, const bool *wrong)
{
    static float clean[TOKENS * WIDTH], faulty[TOKENS * WIDTH];
    static const gb_bf16 rows[PAIRS * INNER];
    arrays_new(a, s);
    s->diagnosis.rows = TOKENS;
    s->diagnosis.location.column = (bool *)wrong;
    s->diagnosis.trace.intermediate = (gb_bf16 *)rows;
    s->diagnosis.clean = clean;
    s->diagnosis.faulty = faulty;
    s->search.tokens = TOKENS;
    for (uint32_t i = 0; i < WIDTH; i++)
        s->diagnosis.location.wrong_columns += wrong[i];
    for (uint32_t i = 0; i < TOKENS * WIDTH; i++) {
        clean[i] = (float)a->output[i / WIDTH][i % WIDTH];
        for (uint32_t p = i / WIDTH * TOP_K; p < (i / WIDTH + 1) * TOP_K; p++)
            s->errors[i] += s->ids[p] >= 0 && finding_axis_has(elements, i % WIDTH) ? a->weights[p] : 0.0;
    }
}

/* A finding is kept that leaves less than a quarter, or not four times as much and is simpler; one that only makes it
 * worse never is. Rows that others name better are not looked at. */
static void the_better_finding_is_kept(void **state)
{
    static const struct finding_axis every = {.kind = AXIS_ALL}, listed = {.kind = AXIS_RANGE, .count = TOKENS};
    static const struct {
        double before, then; /* how far the amounts are off */
        bool simpler, kept;
    } rows[] = {{0.1, 0.0495, false, true}, {0.1, 0.0505, false, false}, {0.1, 0.199, true, true},
                {0.1, 0.201, true, false},  {1e-6, 0.0, false, false},   {1e-6, 0.0, true, true},
                {5.0, 1.5, false, false},   {1.2, 0.5, false, true},     {5.0, 0.5, false, true},
                {1e-3, 6e-5, false, true},  {7e-5, 3e-5, false, true},   {7e-5, 3.6e-5, false, false}};
    static const bool wrong[WIDTH] = {true};
    static struct arrays a;
    static struct scene s;
    (void)state;
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        struct finding f = {.stage = FINDING_DOWN,
                            .effect = FINDING_ADD,
                            .amount = 1.0 + rows[n].before,
                            .tokens = rows[n].simpler ? listed : every};
        constant_new(&s, &a, &every, wrong);
        search_verify(&s.search, &f);
        assert_true(s.search.best.explains == 0.0 || s.search.best.finding.amount == f.amount);
        assert_true(rows[n].before < 1.0 ? s.search.best.explains > 0.0 : s.search.best.explains == 0.0);
        f.amount = 1.0 + rows[n].then;
        f.tokens = every;
        search_verify(&s.search, &f);
        assert_int_equal(s.search.best.finding.amount == f.amount && finding_cost(&s.search.best.finding) == 0,
                         rows[n].kept);
        assert_int_equal(s.diagnosis.searched.findings, 2);
        assert_true(s.search.work == 2.0 * PAIRS * INNER * WIDTH);
    }
    static const struct finding unseen[] = {
        {.stage = FINDING_DOWN, .effect = FINDING_TOKEN, .offset = 1, .tokens = {.kind = AXIS_LIST, .count = 2}},
        {.stage = FINDING_DOWN, .effect = FINDING_TOKEN, .offset = 1},
        {.stage = FINDING_DOWN, .effect = FINDING_TOKEN_XOR, .offset = 1},
        {.stage = FINDING_DOWN,
         .effect = FINDING_TOKEN_XOR,
         .offset = 1,
         .tokens = {.kind = AXIS_MODULO, .count = 1, .period = 2}}};
    for (uint32_t tokens = 1; tokens <= 3; tokens++)
        for (uint32_t n = 0; n < 4; n++) {
            constant_new(&s, &a, &every, wrong);
            s.search.tokens = tokens;
            search_verify(&s.search, &unseen[n]);
            assert_int_equal(s.diagnosis.searched.findings, n == 1 || n == 3 || (n == 2 && tokens == 3));
        }
}

/* Where single columns of them are not known to be wrong: residues, if there are eight for each; a range; all. */
static void columns_are_filled_up(void **state)
{
    static const struct finding_axis residues = {.kind = AXIS_MODULO, .first = 3, .count = 2, .period = 8},
                                     range = {.kind = AXIS_RANGE, .first = 5, .count = 56}, every = {.kind = AXIS_ALL};
    static const struct {
        const struct finding_axis *elements;
        uint32_t without[6]; /* columns that are not known; 0: no more */
        bool found;
        uint32_t looked; /* findings that are verified */
    } rows[] = {{&residues, {0}, true, 1},
                {&residues, {11}, true, 1},
                {&residues, {3, 4, 12, 76}, true, 1},
                {&residues, {4, 12, 20, 28, 36}, false, 2},
                {&range, {6, 22, 23}, true, 1},
                {&every, {7, 12}, true, 1},
                {&every, {79, 12}, true, 2}};
    static struct arrays a;
    static struct scene s;
    (void)state;
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        const struct finding f = {.stage = FINDING_DOWN, .effect = FINDING_ADD, .amount = 1.0};
        const struct finding_axis *best = &s.search.best.finding.elements;
        bool wrong[WIDTH];
        for (uint32_t i = 0; i < WIDTH; i++)
            wrong[i] = finding_axis_has(rows[n].elements, i);
        for (uint32_t i = 0; i < 6 && rows[n].without[i]; i++)
            wrong[rows[n].without[i]] = false;
        constant_new(&s, &a, rows[n].elements, wrong);
        search_verify_places(&s.search, &f);
        const struct finding_axis *expected = rows[n].elements;
        assert_int_equal(s.diagnosis.searched.findings, rows[n].looked);
        if (!rows[n].found)
            assert_true(s.search.best.explains == 0.0);
        else
            assert_true(s.search.best.explains > 1.0 - 1e-9 && best->kind == expected->kind &&
                        best->first == expected->first && best->count == expected->count &&
                        best->period == expected->period);
    }
}

static FILE *stream;

static void note(struct search *q, const struct finding *f)
{
    static enum finding_effect last = FINDING_EFFECTS;
    (void)q;
    fprintf(stream, f->effect == last ? ";" : "\n%d", (int)f->effect);
    last = f->effect;
    fprintf(stream, " %d %d %g %d %d %d %d %d", (int)f->stage, (int)f->operand, f->amount, f->offset, f->columns,
            f->added, (int)f->type, (int)f->function);
    for (const struct finding_axis *axis = &f->elements; axis; axis = axis == &f->elements ? &f->k : NULL)
        if (axis->kind != AXIS_ALL)
            fprintf(stream, " %d:%u+%u%%%u", (int)axis->kind, axis->first, axis->count, axis->period);
}

/* Effects by number, with what finding.h has of each: stage, operand, amount, offset, columns, added, type, function.
 */
static void all_effects_are_tried(void **state)
{
    static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP8, GB_BF16};
    static const struct finding_axis all = {.kind = AXIS_ALL}, some = {.kind = AXIS_RANGE, .first = 3, .count = 9};
    static struct scene s;
    double rows[PAIRS];
    char *text;
    size_t bytes;
    (void)state;
    scene_new(&s);
    struct stages *stages = &s.search.s;
    stages->x = stages->gate = stages->up = stages->act = stages->requant = stages->slots = stages->weights =
        stages->output = rows;
    stream = open_memstream(&text, &bytes);
    assert_non_null(stream);
    s.search.most = 1.0;
    for (int kind = 0; kind < 3; kind++) { /* a layer, gate_up alone, down alone */
        s.diagnosis.inner = kind == 1;
        s.diagnosis.given = kind == 2;
        for (int stage = FINDING_INPUT; stage < FINDING_STAGES; stage++)
            search_each_effect(&s.search, (enum finding_stage)stage, kind ? all : some, note);
    }
    for (int i = 0; i < 3; i++) {
        struct gb_arguments *a = &s.diagnosis.trace.arguments;
        a->gate_up = (struct gb_weights){.format = formats[i], .rows = 96, .columns = WIDTH};
        a->down = (struct gb_weights){.format = formats[i], .rows = WIDTH, .columns = 48};
        for (int stage = FINDING_GATE; stage <= FINDING_DOWN; stage++)
            if (stage <= FINDING_GATE_UP || stage == FINDING_DOWN)
                search_each_operand(&s.search, (enum finding_stage)stage, note);
    }
    assert_int_equal(fclose(stream), 0);
    kept_text(text);
    free(text);
    expect_kept_explanations("test_search");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_with_an_effect_are_taken),
        cmocka_unit_test(one_slot_is_taken),
        cmocka_unit_test(slots_with_about_as_much_are_taken),
        cmocka_unit_test(amounts_are_found),
        cmocka_unit_test(known_rows_are_rated),
        cmocka_unit_test(places_of_pairs_are_described),
        cmocka_unit_test(responses_are_the_layers),
        cmocka_unit_test(responses_of_rows),
        cmocka_unit_test(added_constants_are_found),
        cmocka_unit_test(the_better_finding_is_kept),
        cmocka_unit_test(columns_are_filled_up),
        cmocka_unit_test(all_effects_are_tried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
