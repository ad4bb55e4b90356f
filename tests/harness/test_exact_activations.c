/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data of kind `exact` with quantised activations: layers of every order, with scales taken early or late, have the
 * reference's values; and what a kernel can do wrong where it quantises is seen by the check `exact` alone, on its
 * output, without an order claimed.
 */
#include "harness/judge/check_exact.h"
#include "harness/judge/judge.h"
#include "quant/quant.h"
#include "tests/support/check.h"
#include "tests/oracle/oracle.h"
#include "tests/support/quantised.h"

static const struct contract contracts[] = {
    {GB_NVFP4, GB_NVFP4}, {GB_MXFP8, GB_MXFP8}, {GB_MXFP4, GB_MXFP8}, {GB_FP8_BLOCK, GB_FP8_BLOCK}};
static const struct gb_shape small = {8, 128, 32, 8, 2};
enum { CONTRACTS = sizeof contracts / sizeof *contracts };

/* Every how manieth variant of valid orders is run; odd, so that all choices occur. */
static int sparse = 31;

static void ok(enum gb_status status, const struct gb_error *error)
{
    if (status != GB_OK)
        fail_msg("%s", error ? error->message : gb_status_name(status));
}

static struct gb_exactness examine(const struct gb_fixture *f, enum gb_format activations, uint32_t bits)
{
    struct gb_rounding_points points = {.intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = bits};
    struct gb_exactness found;
    struct gb_error error;
    ok(exact_examine(f, 0, activations, &points, &found, &error), &error);
    return found;
}

/* One fixture, its judge, and a subject that claims no order and hands out nothing but its output. */
struct bench {
    struct gb_fixture *fixture;
    struct baseline plain, baseline;
    struct gb_outputs *outputs;
    struct gb_kernel subject;
    struct quantised kernel;
    double *output, *intermediate; /* [tokens, hidden], [tokens, top_k, intermediate] */
};

static void bench_new(struct bench *b, const struct gb_shape *asked, const struct contract *c, const char *routing,
                      uint64_t seed)
{
    struct gb_error error;
    const struct gb_shape fits = quantised_shape(*asked, c), *shape = &fits;
    const size_t inner = (size_t)shape->tokens * shape->top_k * shape->intermediate;
    *b = (struct bench){.fixture = quantised_fixture(shape, c, routing, seed)};
    b->subject = (struct gb_kernel){.name = "subject",
                                    .operation = GB_LAYER,
                                    .weights = c->weights,
                                    .activations = c->activations,
                                    .output = GB_FP32,
                                    .accumulator_bits = 24};
    ok(baseline_new(b->fixture, gb_contract_find(b->fixture->weights, GB_BF16, GB_ORDER_FMA32), NULL, &b->plain,
                    &error),
       &error);
    ok(baseline_new(b->plain.fixture, fixture_contract(b->plain.fixture), &b->plain, &b->baseline, &error), &error);
    ok(gb_outputs_new(shape, 1, GB_FP32, false, false, &b->outputs, &error), &error);
    quantised_new(&b->kernel, b->fixture);
    b->output = malloc(sizeof(double) * shape->tokens * shape->hidden);
    b->intermediate = malloc(sizeof(double) * inner);
    assert_true(b->output && b->intermediate);
}

static void bench_free(struct bench *b)
{
    baseline_free(&b->baseline);
    baseline_free(&b->plain);
    gb_outputs_free(b->outputs);
    gb_fixture_free(b->fixture);
    free(b->output);
    free(b->intermediate);
}

/* Of b->output, with the check or without it. */
static enum verdict verdict_of(struct bench *b, bool exact, uint64_t *mismatching)
{
    struct case_result j;
    struct gb_error error;
    struct policy gate;
    const struct gb_shape *s = &b->fixture->shape;
    for (size_t i = 0; i < (size_t)s->tokens * s->hidden; i++)
        ((float *)b->outputs->layer[0].output)[i] = (float)b->output[i];
    policy_preset(0, &gate);
    gate.exact = exact;
    ok(judge(&b->baseline, &b->subject, b->outputs, NULL, &gate, &j, &error), &error);
    assert_int_equal(j.exact.binding, exact);
    *mismatching = j.exact.mismatching;
    case_result_free(&j);
    return j.verdict;
}

static void check_oracle(const struct bench *b)
{
    const size_t outputs = (size_t)b->fixture->shape.tokens * b->fixture->shape.hidden;
    float *expected = malloc(sizeof *expected * outputs);
    assert_non_null(expected);
    quantised_oracle(b->fixture, expected);
    for (size_t i = 0; i < outputs; i++)
        if (!((double)expected[i] == b->output[i]))
            fail_msg("output %zu: %.17g, the oracle's %.17g", i, b->output[i], (double)expected[i]);
    free(expected);
}

static void all_orders_agree(const struct gb_shape *shape, const struct contract *c, const char *routing, uint64_t seed,
                             int stride)
{
    struct bench b;
    struct gb_exactness found;
    bench_new(&b, shape, c, routing, seed);
    found = examine(b.fixture, c->activations, 24);
    if (found.why)
        fail_msg("%s %u: %s, token %u", gb_format_name(c->weights), shape->intermediate, found.why, found.token);
    for (int v = 0; v < VALID_ORDERS * 32; v += stride) {
        struct valid_kernel valid = {v / 32, v & 1, v & 2, v & 4, v & 8, (uint64_t)v, v % 5 > 2, false, v % 5 < 2};
        uint64_t mismatching;
        b.kernel.late = v & 16;
        quantised_layer(&b.kernel, b.fixture, &valid, b.output, b.intermediate);
        enum verdict verdict = verdict_of(&b, true, &mismatching);
        if (verdict != VERDICT_PASS || mismatching)
            fail_msg("%s, variant %d: %s, %llu values differ", gb_format_name(c->weights), v, verdict_name(verdict),
                     (unsigned long long)mismatching);
    }
    check_oracle(&b);
    bench_free(&b);
}

static void orders_agree(void **state)
{
    static const struct gb_shape shapes[] = {{8, 128, 32, 8, 2}, {4, 384, 128, 6, 3}, {3, 672, 96, 4, 4}};
    (void)state;
    for (int c = 0; c < CONTRACTS; c++)
        for (int s = sparse > 1 ? c % 3 : 0; s<3; s += sparse> 1 ? 3 : 1)
            all_orders_agree(&shapes[s], &contracts[c], s == 2 ? "holes" : "uniform", 1 + (uint64_t)s,
                             sparse * (3 + 4 * s));
}

/* As many terms as an output of the largest models has: top_k * intermediate = 16,384. */
static void large_sums_fit(void **state)
{
    (void)state;
    const struct gb_shape deep = {2, sparse > 1 ? 128 : 256, 2048, 8, 8};
    for (int c = 0; c < CONTRACTS; c += sparse) {
        struct gb_fixture *f = quantised_fixture(&deep, &contracts[c], "uniform", 5);
        struct gb_exactness found = examine(f, contracts[c].activations, 24);
        if (found.why)
            fail_msg("%s: %s, token %u", gb_format_name(contracts[c].weights), found.why, found.token);
        print_message("%s: %.1f bits\n", gb_format_name(contracts[c].weights), found.bits);
        gb_fixture_free(f);
    }
}

/* What of the mistakes a format has, and where. */
static bool can_be(const struct contract *c, enum mistake m, bool x)
{
    bool nvfp4 = c->activations == GB_NVFP4, fp8 = c->activations == GB_FP8_BLOCK;
    switch (m) {
    case SWAPPED:
    case WIDER:
    case WITHOUT_GLOBAL:
    case OTHER_GLOBAL:
        return nvfp4;
    case FLUSHED:
    case DIVIDED:
        return nvfp4 && !x; /* x has no such scales */
    case SCALE_UP:          /* of a power of two: the same values, but where codes are subnormal */
        return nvfp4;
    case SCALE_DOWN: /* FP8's is exact */
        return !fp8;
    case UNROUNDED:
        return !x;
    default:
        return m != NOTHING;
    }
}

/* Every mistake fails by this check; without the whole sweep half of the first contract's and a fifth of the others'
 * are made. The whole one prints how many pass all others. */
static void mistakes_are_seen(void **state)
{
    /* The first is long: of tens of thousands of elements a few show a division. */
    const bool few = sparse > 1;
    const struct gb_shape shapes[] = {{few ? 8 : 32, 128, 512, 4, 4}, {8, few ? 256 : 512, 256, 8, few ? 2 : 4}};
    const struct valid_kernel valid = {.order = VALID_FORWARD, .fma = true, .scales_first = true};
    int made = 0, unseen = 0;
    (void)state;
    for (int c = 0; c < CONTRACTS; c++) {
        struct bench b;
        bench_new(&b, &shapes[c > 0], &contracts[c], "uniform", 3);
        for (int n = 2; n < 2 * MISTAKES; n++) {
            struct quantiser *q = &b.kernel.quantiser;
            uint64_t mismatching;
            q->mistake = (enum mistake)(n / 2);
            q->of_x = n % 2;
            bool left_out = sparse > 1 && (n / 2 + n + c) % (c ? 5 : 2) && q->mistake != DIVIDED;
            if (left_out || !can_be(&contracts[c], q->mistake, q->of_x))
                continue;
            quantised_layer(&b.kernel, b.fixture, &valid, b.output, b.intermediate);
            enum verdict verdict = verdict_of(&b, true, &mismatching);
            if (verdict != VERDICT_FAIL || !mismatching)
                fail_msg("%s activations, %s of %s: %s, %llu values differ\n", gb_format_name(contracts[c].activations),
                         mistake_names[q->mistake], q->of_x ? "x" : "the intermediate", verdict_name(verdict),
                         (unsigned long long)mismatching);
            made++;
            if (sparse == 1 || !unseen)
                unseen += verdict_of(&b, false, &mismatching) != VERDICT_FAIL;
        }
        bench_free(&b);
    }
    print_message("%d mistakes, %d of them unseen by the other checks\n", made, unseen);
    assert_true(unseen > 0);
}

/* Distinct codes and scales, blocks of zeros, and values that their codes do not hold, in percent. */
struct variety {
    int codes, scales, zero_blocks, lossy;
};

static struct variety variety_of(const struct bench *b, bool of_x)
{
    const struct gb_shape *s = &b->fixture->shape;
    const struct gb_layer_outputs *out = &b->baseline.reference->layer[0];
    const enum gb_format format = b->fixture->activations;
    const uint8_t *codes = out->activations[of_x ? GB_X_CODES : GB_INTERMEDIATE_CODES];
    const void *scales = out->activations[of_x ? GB_X_SCALES : GB_INTERMEDIATE_SCALES];
    const gb_bf16 *values = of_x ? b->fixture->layer[0].x : out->intermediate;
    const size_t count = of_x ? (size_t)s->tokens * s->hidden : (size_t)s->tokens * s->top_k * s->intermediate;
    const uint32_t block = gb_format_block(format);
    bool code[256] = {false}, scale[256] = {false};
    size_t zero = 0, lossy = 0;
    struct variety v = {0};
    for (size_t first = 0; first < count; first += block) {
        unsigned byte = ((const uint8_t *)scales)[first / block];
        double step = format == GB_NVFP4   ? oracle_decode(ORACLE_E4M3, byte)
                      : format == GB_MXFP8 ? oracle_e8m0_decode(byte)
                                           : (double)((const float *)scales)[first / block];
        if (format == GB_FP8_BLOCK)
            byte = (unsigned)(128 + ilogb(step));
        bool all_zero = true;
        for (size_t i = first; i < first + block; i++) {
            unsigned n = format == GB_NVFP4 ? codes[i / 2] >> (i % 2 * 4) & 15u : codes[i];
            double value = oracle_decode(format == GB_NVFP4 ? ORACLE_E2M1 : ORACLE_E4M3, n);
            code[n] = true;
            all_zero &= value == 0.0;
            lossy += value * step * b->kernel.quantiser.d[!of_x] != (double)gb_bf16_decode(values[i]);
        }
        zero += all_zero;
        scale[byte] = true;
    }
    for (int i = 0; i < 256; i++) {
        v.codes += code[i];
        v.scales += scale[i];
    }
    v.zero_blocks = (int)(100 * zero * block / count);
    v.lossy = (int)(100 * lossy / count);
    return v;
}

/* Quantising loses bits of both, in blocks of many scales. */
static void data_is_varied(void **state)
{
    static const struct gb_shape shape = {8, 256, 256, 8, 4};
    static const struct variety least[CONTRACTS][2] = {{{16, 30, 5, 10}, {16, 3, 0, 50}},
                                                       {{50, 6, 0, 10}, {8, 3, 0, 50}},
                                                       {{50, 6, 0, 10}, {8, 3, 0, 50}},
                                                       {{50, 2, 0, 10}, {6, 2, 0, 50}}};
    (void)state;
    for (int c = 0; c < CONTRACTS; c++) {
        struct bench b;
        bench_new(&b, &shape, &contracts[c], "uniform", 1);
        for (int x = 0; x < 2; x++) {
            const struct variety v = variety_of(&b, x), *l = &least[c][x];
            print_message("%s, %s: %d codes, %d scales, %d %% of the blocks zero, %d %% of the values lossy\n",
                          gb_format_name(contracts[c].weights), x ? "x" : "intermediate", v.codes, v.scales,
                          v.zero_blocks, v.lossy);
            assert_true(v.codes >= l->codes && v.scales >= l->scales && v.zero_blocks <= l->zero_blocks &&
                        v.lossy >= l->lossy);
        }
        bench_free(&b);
    }
}

/* Whatever breaks exactness is seen, with its reason. */
static void breaches_are_seen(void **state)
{
    static const char global[] = "a global scale of activations has too many bits; powers of two have one";
    (void)state;
    struct gb_fixture *f = quantised_fixture(&small, &contracts[0], "uniform", 1);
    struct gb_exactness found = examine(f, GB_NVFP4, 24);
    float *d = f->layer[0].activation_scales;
    assert_null(found.why);
    assert_null(examine(f, GB_NVFP4, (uint32_t)ceil(found.bits)).why);
    assert_string_equal(examine(f, GB_NVFP4, (uint32_t)ceil(found.bits) - 1).why,
                        "the terms of an output have too many bits");
    assert_non_null(examine(f, GB_BF16, 24).why);
    for (int i = 0; i < 2; i++) {
        const float kept = d[i];
        d[i] = kept * 1.1f;
        assert_string_equal(examine(f, GB_NVFP4, 24).why, global);
        d[i] = kept * 2.0f;
        assert_null(examine(f, GB_NVFP4, 24).why);
        d[i] = kept;
    }
    gb_fixture_free(f);
}

/* A fixture that names the generator without its data; and one whose data are exact, for kernels of the other contract,
 * of which the generator says nothing. */
static void false_claims_are_refused(void **state)
{
    struct bench b;
    struct case_result j;
    struct gb_error error;
    struct policy gate;
    (void)state;
    bench_new(&b, &small, &contracts[0], "uniform", 1);
    policy_preset(0, &gate);
    struct gb_kernel plain = b.subject;
    plain.activations = GB_BF16;
    ok(judge(&b.plain, &plain, b.plain.reference, NULL, &gate, &j, &error), &error);
    assert_non_null(j.exact.why);
    assert_int_equal(j.verdict, VERDICT_PASS);
    case_result_free(&j);

    ok(exact_check(b.fixture, &error), &error);
    b.fixture->layer[0].activation_scales[1] *= 1.1f;
    assert_int_equal(exact_check(b.fixture, &error), GB_EINVAL);
    assert_non_null(strstr(error.message, "exact/2, but layer 0, token "));
    ok(judge(&b.baseline, &b.subject, b.baseline.reference, NULL, &gate, &j, &error), &error);
    assert_int_equal(j.verdict, VERDICT_BAD_INPUT);
    case_result_free(&j);
    bench_free(&b);
}

static double scale_value(enum gb_format activations, const uint8_t *scale)
{
    float value;
    memcpy(&value, scale, activations == GB_FP8_BLOCK ? sizeof value : 1);
    return activations == GB_FP8_BLOCK ? (double)value
           : activations == GB_NVFP4   ? (double)gb_e4m3_decode((gb_e4m3){*scale})
                                       : (double)gb_e8m0_decode((gb_e8m0){*scale});
}

/* The scale of a block of zeros, here the fourth of the intermediate, is of no matter, and that of no other is. */
static void zeros_need_no_scale(struct bench *b)
{
    enum { BLOCK = 3 };
    const struct gb_quantiser *rules = gb_fixture_activation_rules(b->fixture);
    const struct gb_layer_outputs *right = &b->baseline.reference->layer[0], *mine = &b->outputs->layer[0];
    const size_t bytes = rules->block_columns / (b->fixture->activations == GB_NVFP4 ? 2 : 1);
    uint8_t *scale = (uint8_t *)mine->activations[GB_INTERMEDIATE_SCALES] +
                     BLOCK * gb_activation_array(rules, &b->fixture->shape, GB_INTERMEDIATE_SCALES).bytes;
    uint8_t *codes[] = {(uint8_t *)mine->activations[GB_INTERMEDIATE_CODES] + BLOCK * bytes,
                        (uint8_t *)right->activations[GB_INTERMEDIATE_CODES] + BLOCK * bytes};
    uint8_t kept[128];
    assert_true(bytes <= sizeof kept);
    memcpy(kept, codes[0], bytes);
    *scale ^= 1;
    for (int zeros = 0; zeros < 2; zeros++) {
        struct exact_result check = {0};
        struct case_result j = {0};
        for (int i = 0; zeros && i < 2; i++)
            memset(codes[i], 0, bytes);
        exact_activations(&check, 0, &b->baseline, b->outputs, &j);
        assert_int_equal(check.mismatching, !zeros);
    }
    /* Nor is a number that is as near to zero as the reference's; the fourth element of x is compared all the same. */
    const float *globals = b->fixture->layer[0].activation_scales;
    const bool nibbles = b->fixture->activations == GB_NVFP4;
    const double least = nibbles ? 0.5 : 0x1p-9; /* of the code 1 */
    double *closed = &b->baseline.bounds[0].exactness.closed_intermediate, before = *closed;
    uint8_t *x = (uint8_t *)mine->activations[GB_X_CODES] + (nibbles ? BLOCK / 2 : BLOCK);
    codes[0][0] = 1;
    for (int n = 0; n < 3; n++) {
        struct exact_result check = {0};
        struct case_result j = {0};
        *closed = (n == 1 ? 0.97 : 1.0) * least * scale_value(b->fixture->activations, scale) *
                  (globals ? (double)globals[1] : 1.0);
        *x ^= n < 2 ? 0 : nibbles ? 0x10 : 1;
        exact_activations(&check, 0, &b->baseline, b->outputs, &j);
        assert_int_equal(check.mismatching, n == 0 ? 0 : n == 1 ? 2 : 1);
        *x ^= n < 2 ? 0 : nibbles ? 0x10 : 1;
    }
    *closed = before;
    for (int i = 0; i < 2; i++)
        memcpy(codes[i], kept, bytes);
    *scale ^= 1;
}

/* Codes and scales that are handed out are compared, though the intermediate is not handed out. */
static void handed_out_codes_are_compared(void **state)
{
    struct bench b;
    struct gb_error error;
    uint64_t mismatching;
    (void)state;
    for (int c = 0; c < CONTRACTS; c++) {
        bench_new(&b, &small, &contracts[c], "uniform", 1);
        const struct gb_layer_outputs *right = &b.baseline.reference->layer[0], *mine = &b.outputs->layer[0];
        const struct gb_shape *shape = &b.fixture->shape;
        for (size_t i = 0; i < (size_t)shape->tokens * shape->hidden; i++)
            b.output[i] = (double)((const float *)right->output)[i];
        for (int p = 0; p < GB_ACTIVATION_PARTS; p++) {
            const struct gb_quantiser *rules = gb_fixture_activation_rules(b.fixture);
            struct gb_activation_array a = gb_activation_array(rules, shape, (enum gb_activation_part)p);
            ok(gb_outputs_add_activations(b.outputs, rules, (enum gb_activation_part)p, &error), &error);
            memcpy(mine->activations[p], right->activations[p], (size_t)shape->tokens * a.slots * a.width * a.bytes);
        }
        assert_int_equal(verdict_of(&b, true, &mismatching), VERDICT_PASS);
        assert_int_equal(mismatching, 0);
        zeros_need_no_scale(&b);
        for (int p = 0; p < GB_ACTIVATION_PARTS; p++) {
            uint8_t *byte = (uint8_t *)mine->activations[p] + 5;
            *byte ^= 1;
            assert_int_equal(verdict_of(&b, true, &mismatching), VERDICT_FAIL);
            assert_int_equal(mismatching, 1);
            *byte ^= 1;
        }
        b.output[7] = nextafterf((float)b.output[7], INFINITY);
        assert_int_equal(verdict_of(&b, true, &mismatching), VERDICT_FAIL);
        assert_int_equal(mismatching, 1);
        bench_free(&b);
    }
}

int main(int argc, char **argv)
{
    if (sweeps_are_whole(argc, argv))
        sparse = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_agree),
        cmocka_unit_test(large_sums_fit),
        cmocka_unit_test(mistakes_are_seen),
        cmocka_unit_test(data_is_varied),
        cmocka_unit_test(breaches_are_seen),
        cmocka_unit_test(false_claims_are_refused),
        cmocka_unit_test(handed_out_codes_are_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
