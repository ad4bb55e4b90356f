/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance vectors cover what they promise, every recipe is named from its outputs alone, and a recipe with one rule
 * changed is not: a change that the vectors do not show must change nothing on a sweep of its whole domain either.
 */
#include "tests/support/check.h"
#include "tests/support/kept_explanation.h"

#include <unistd.h>

#include "fixtures/vectors.h"
#include "harness/judge/identification.h"
#include "harness/program/recipe_survey.h"

static struct gb_error error;

static const enum gb_codec codecs[] = {
    [GB_E2M1] = GB_CODEC_E2M1, [GB_E4M3] = GB_CODEC_E4M3, [GB_E4M3FNUZ] = GB_CODEC_E4M3FNUZ,
    [GB_E5M2] = GB_CODEC_E5M2, [GB_E3M2] = GB_CODEC_E3M2, [GB_E2M3] = GB_CODEC_E2M3,
};

static float magnitude_of(enum gb_element_format element, unsigned code)
{
    return element == GB_INT8 ? (float)code : gb_codec_decode(codecs[element], (uint16_t)code);
}

/* Made once for each block format. */
static struct gb_vectors *made[32];

static const struct gb_vectors *inputs_of(const struct gb_recipe *recipe)
{
    struct gb_block_format format = gb_block_format_of(&recipe->quantiser);
    size_t i = 0;
    while (i < 31 && made[i] && !gb_block_format_same(&made[i]->format, &format))
        i++;
    if (!made[i])
        assert_int_equal(gb_vectors_make(&format, &made[i], &error), GB_OK);
    return made[i];
}

static int free_inputs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        gb_vectors_free(made[i]);
    return 0;
}

static struct gb_vector_outputs *outputs_of(const struct gb_vectors *v, const struct gb_quantiser *rules)
{
    struct gb_vector_outputs *o;
    if (gb_vector_outputs_run(v, rules, &o, &error) != GB_OK)
        fail_msg("%s: %s", v->name, error.message);
    return o;
}

/* Every finite code up to the recipe's largest, both zeros' signs in the inputs, NaN and infinity, subnormal inputs. */
static void vectors_cover(const struct gb_recipe *recipe, const struct gb_vectors *v)
{
    struct gb_vector_outputs *o = outputs_of(v, &recipe->quantiser);
    size_t count = (size_t)v->cases * v->rows * v->columns;
    bool codes[256] = {false};
    size_t nan = 0, infinite = 0, zero = 0, minus_zero = 0, subnormal = 0;
    for (size_t i = 0; i < count; i++) {
        uint16_t magnitude = v->values[i].bits & 0x7FFF;
        codes[gb_vectors_code(v, o, i / v->columns, (uint32_t)(i % v->columns))] = true;
        nan += magnitude > 0x7F80;
        infinite += magnitude == 0x7F80;
        zero += v->values[i].bits == 0;
        minus_zero += v->values[i].bits == 0x8000;
        subnormal += magnitude && magnitude < 0x80;
    }
    assert_true(nan && infinite && zero && minus_zero && subnormal);
    /* The power of two at or above the ratio to M's power of two leaves nothing above that. */
    const struct gb_quantiser *rules = &recipe->quantiser;
    bool ceil = rules->ratio == GB_RATIO_POWER && rules->scale_rounding == GB_SCALE_CEIL;
    float largest = ceil ? ldexpf(1, ilogbf(rules->largest)) : rules->largest;
    for (unsigned code = 0; code < 256; code++) {
        bool wanted = v->format.element == GB_INT8;
        if (wanted) {
            wanted = code != 0x80;
        } else if (code < 1u << gb_codec_bits(codecs[v->format.element])) {
            float value = gb_codec_decode(codecs[v->format.element], (uint16_t)code);
            wanted = fabsf(value) <= largest && !(value == 0 && code); /* -0: by zero_sign */
        }
        if (wanted && !codes[code])
            fail_msg("%s: code %02X does not occur", recipe->name, code);
    }
    gb_vector_outputs_free(o);
}

static bool is_power_of_two(float value)
{
    int exponent;
    return value > 0 && isfinite(value) && frexpf(value, &exponent) == 0.5f;
}

/* Marks the points +-p * 2^k that the block holds, if its maximum is M * 2^k. */
static void mark_points(const struct gb_vectors *v, size_t row, uint32_t from, float largest, const float *points,
                        uint32_t count, bool (*found)[2])
{
    uint32_t length = v->format.block_columns ? v->format.block_columns : v->columns;
    uint32_t rows = v->format.block_rows > 1 ? v->rows : 1,
             to = from + length < v->columns ? from + length : v->columns;
    float amax = 0;
    for (size_t i = row; i < row + rows; i++)
        for (uint32_t j = from; j < to; j++)
            amax = fmaxf(amax, fabsf(gb_bf16_decode(v->values[i * v->columns + j])));
    if (!is_power_of_two(amax / largest))
        return;
    for (size_t i = row; i < row + rows; i++)
        for (uint32_t j = from; j < to; j++) {
            float x = gb_bf16_decode(v->values[i * v->columns + j]);
            for (uint32_t p = 0; p < count; p++)
                if (fabsf(x) == points[p] * (amax / largest))
                    found[p][signbit(x) != 0] = true;
        }
}

/* Every magnitude, every tie between neighbours, and the bf16 numbers beside the tie. */
static void vectors_cover_every_tie(void **state)
{
    (void)state;
    static const float largest[] = {[GB_E2M1] = 6,  [GB_E4M3] = 448,  [GB_E4M3FNUZ] = 240, [GB_E5M2] = 57344,
                                    [GB_E3M2] = 28, [GB_E2M3] = 7.5f, [GB_INT8] = 127};
    size_t count;
    const struct gb_recipe *recipes = gb_recipes(&count);
    for (size_t i = 0; i < count; i++) {
        enum gb_element_format element = recipes[i].quantiser.element;
        if (!element)
            continue;
        const struct gb_vectors *v = inputs_of(&recipes[i]);
        uint32_t step = v->format.block_rows > 1 ? v->rows : 1, length = v->format.block_columns, points_count = 0;
        float points[4 * 128];
        bool found[4 * 128][2] = {{false}};
        for (unsigned code = 0; magnitude_of(element, code) < largest[element]; code++) {
            float here = magnitude_of(element, code), tie = (here + magnitude_of(element, code + 1)) / 2;
            uint16_t bits = gb_bf16_encode(tie).bits;
            points[points_count++] = here;
            points[points_count++] = tie;
            points[points_count++] = gb_bf16_decode((gb_bf16){(uint16_t)(bits - 1)});
            points[points_count++] = gb_bf16_decode((gb_bf16){(uint16_t)(bits + 1)});
        }
        for (size_t row = 0; row < (size_t)v->cases * v->rows; row += step)
            for (uint32_t from = 0; from < v->columns; from += length ? length : v->columns)
                mark_points(v, row, from, largest[element], points, points_count, found);
        for (uint32_t p = 0; p < points_count; p++)
            if (!found[p][0] || !found[p][1])
                fail_msg("%s: %a does not occur with both signs", v->name, (double)points[p]);
    }
}

static void vectors_cover_every_code(void **state)
{
    (void)state;
    size_t count;
    const struct gb_recipe *recipes = gb_recipes(&count);
    for (size_t i = 0; i < count; i++) {
        if (!recipes[i].quantiser.element)
            continue;
        const struct gb_vectors *v = inputs_of(&recipes[i]);
        vectors_cover(&recipes[i], v);
    }
}

static void every_recipe_is_named(void **state)
{
    (void)state;
    size_t count, named = 0;
    const struct gb_recipe *recipes = gb_recipes(&count);
    for (size_t i = 0; i < count; i++) {
        if (!recipes[i].quantiser.element)
            continue;
        const struct gb_vectors *v = inputs_of(&recipes[i]);
        struct gb_vector_outputs *o = outputs_of(v, &recipes[i].quantiser);
        struct identification found;
        free(o->globals);
        o->globals = NULL;
        assert_int_equal(identify_outputs(v, o, &found, &error), GB_OK);
        if (found.equals != 1 || found.equal[0] != &recipes[i])
            fail_msg("%s is named %s and %zu more", recipes[i].name, found.equals ? found.equal[0]->name : "unknown",
                     found.equals);
        named++;
        gb_vector_outputs_free(o);
    }
    print_message("%zu recipes, each named from its codes and scales alone\n", named);
}

/* One block of zeros and one NaN-free half of the inputs, of which no recipe can be told. */
static void little_names_nothing(void **state)
{
    (void)state;
    const struct gb_recipe *recipe = gb_recipe_find("mxfp8.rceil/1");
    const struct gb_vectors *full = inputs_of(recipe);
    const uint32_t rows[] = {0, 1, full->rows / 2, full->rows};
    gb_bf16 zeros[64] = {{0}};
    assert_true(full->columns <= 64 && full->cases == 1);
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct gb_vectors some = *full;
        struct identification found;
        some.rows = rows[i] ? rows[i] : 1;
        some.values = rows[i] ? full->values : zeros;
        struct gb_vector_outputs *o = outputs_of(&some, &recipe->quantiser);
        assert_int_equal(identify_outputs(&some, o, &found, &error), GB_OK);
        assert_int_equal(identify_unseen(&some, full, o, &found, &error), GB_OK);
        assert_true((found.equals == 1 && !found.unseen_count) == (rows[i] == full->rows));
        gb_vector_outputs_free(o);
    }
}

/* Every how manieth bf16 number is a block's maximum: 1 in the exhaustive test. */
static uint32_t stride = 997;

/*
 * Pairs of a block's maximum and an element below it, both bf16, with no global scale or with some: the maxima by
 * `stride`, and elements that lie less than 20 binades below. True: no code and no scale differs.
 */
static bool same_on_the_domain(const struct gb_quantiser *a, const struct gb_quantiser *b)
{
    enum { WIDTH = 130 };
    static const float globals[] = {1, 2688, 3.7e-3f, 1.9e20f};
    float values[WIDTH], scales[2];
    uint8_t codes[2][WIDTH];
    struct gb_quantiser rules[2] = {*a, *b};
    uint64_t state = 7;
    for (int g = 0; g < (a->global == GB_GLOBAL_NONE ? 1 : 4); g++)
        for (uint32_t amax = 0; amax < 0x7F80; amax += stride) {
            float global[2];
            values[0] = gb_bf16_decode((gb_bf16){(uint16_t)amax});
            if ((a->global != GB_GLOBAL_NONE && values[0] > globals[g]) ||
                gb_quantiser_global(a, globals[g], &global[0], NULL) != GB_OK ||
                gb_quantiser_global(b, globals[g], &global[1], NULL) != GB_OK)
                continue;
            for (uint32_t i = 1; i < WIDTH; i++) {
                uint32_t below = random_below(&state, amax + 1 < 2560 ? amax + 1 : 2560);
                values[i] = gb_bf16_decode((gb_bf16){(uint16_t)(amax - below)}) * (i % 2 ? 1.0f : -1.0f);
            }
            for (int r = 0; r < 2; r++) {
                rules[r].block_rows = 1;
                rules[r].block_columns = WIDTH;
                memset(codes[r], 0, WIDTH);
                scales[r] = 0;
                assert_int_equal(
                    gb_quantiser_run(&rules[r], values, 1, WIDTH, global[r], INFINITY, codes[r], &scales[r], &error),
                    GB_OK);
            }
            if (memcmp(&scales[0], &scales[1], sizeof(float)) || memcmp(codes[0], codes[1], WIDTH))
                return false;
        }
    return true;
}

struct tally {
    size_t changes, seen, equivalent, holes, asked, recipes;
};

/* identify either knows the changed rules as another recipe or says which rule of which recipe they change. */
static void is_explained(const struct gb_vectors *v, const struct gb_recipe *recipe, const struct rule_change *change,
                         const struct gb_vector_outputs *theirs, struct tally *tally)
{
    struct identification found;
    assert_int_equal(identify_outputs(v, theirs, &found, &error), GB_OK);
    if (!found.equals && !found.change.rule)
        fail_msg("%s with %s %s is unknown, closest %s", recipe->name, change->rule, change->to, found.closest->name);
    for (size_t i = 0; i < found.equals; i++)
        assert_ptr_not_equal(found.equal[i], recipe);
    tally->asked++;
    tally->recipes += found.equals > 0;
}

/* No byte beside the rule's own. */
static void nothing_else_changes(const struct gb_recipe *recipe, const struct rule_change *change)
{
    const unsigned char *before = (const unsigned char *)&recipe->quantiser;
    const unsigned char *after = (const unsigned char *)&change->rules;
    size_t bytes = 0, most = strncmp(change->to, "0x", 2) ? sizeof(uint32_t) : 1;
    for (size_t i = 0; i < sizeof change->rules; i++)
        bytes += before[i] != after[i];
    if (!bytes || bytes > most)
        fail_msg("%s: with %s %s %zu bytes change", recipe->name, change->rule, change->to, bytes);
}

static void change_is_seen(const struct gb_vectors *v, const struct gb_recipe *recipe, const struct rule_change *change,
                           const struct gb_vector_outputs *ours, struct tally *tally)
{
    struct gb_vector_outputs *theirs = outputs_of(v, &change->rules);
    struct quantiser_difference d;
    nothing_else_changes(recipe, change);
    difference_between(v, ours, theirs, &d);
    tally->changes++;
    if (d.blocks) {
        if (tally->seen++ % (stride == 1 ? 1 : 150) == 0)
            is_explained(v, recipe, change, theirs, tally);
    } else if (same_on_the_domain(&recipe->quantiser, &change->rules)) {
        tally->equivalent++;
    } else {
        tally->holes++;
        print_message("%s: %s %s instead of %s is not seen\n", recipe->name, change->rule, change->to, change->from);
    }
    gb_vector_outputs_free(theirs);
}

/* Every rule of every recipe, one at a time. */
static void a_changed_rule_is_seen(void **state)
{
    (void)state;
    size_t count;
    struct tally tally = {0};
    const struct gb_recipe *recipes = gb_recipes(&count);
    for (size_t i = 0; i < count; i++) {
        if (!recipes[i].quantiser.element)
            continue;
        const struct gb_vectors *v = inputs_of(&recipes[i]);
        struct gb_vector_outputs *ours = outputs_of(v, &recipes[i].quantiser);
        struct rule_change change;
        free(ours->globals);
        ours->globals = NULL;
        for (unsigned c = 0; rule_change_next(&recipes[i].quantiser, c, &change); c++)
            change_is_seen(v, &recipes[i], &change, ours, &tally);
        gb_vector_outputs_free(ours);
    }
    print_message("%zu changes of one rule: %zu seen, %zu change nothing, %zu holes; of %zu asked for, %zu are other "
                  "recipes, the rest is explained\n",
                  tally.changes, tally.seen, tally.equivalent, tally.holes, tally.asked, tally.recipes);
    assert_int_equal(tally.holes, 0);
}

/* To which values each rule is changed, and in how many recipes: tests/harness/kept has it. */
static void keep_changes(const struct rule_change *change, size_t changes)
{
    enum { MOST = 256 };
    const struct rule_change *kind[MOST];
    size_t kinds = 0, of[MOST] = {0};
    for (size_t c = 0; c < changes; c++) {
        size_t k = 0;
        while (k < kinds && (strcmp(kind[k]->rule, change[c].rule) || strcmp(kind[k]->to, change[c].to)))
            k++;
        if (k == kinds)
            kind[kinds++] = &change[c];
        assert_in_range(kinds, 1, MOST - 1);
        of[k]++;
    }
    for (size_t k = 0; k < kinds; k++) {
        char line[128];
        snprintf(line, sizeof line, "%s to %s: %zu\n", kind[k]->rule, kind[k]->to, of[k]);
        kept_text(line);
    }
    expect_kept_explanations("test_identify");
}

/* A value that a recipe has of a rule, where others have another one, is among those that the rule is changed to. */
static void values_of_recipes_are_tried(void **state)
{
    enum { MOST = 8192 };
    struct rule_change *change = malloc(MOST * sizeof *change);
    size_t count, changes = 0, missing = 0;
    const struct gb_recipe *recipes = gb_recipes(&count);
    (void)state;
    assert_non_null(change);
    for (size_t i = 0; i < count; i++)
        for (unsigned c = 0; recipes[i].quantiser.element && changes < MOST &&
                             rule_change_next(&recipes[i].quantiser, c, &change[changes]);
             c++)
            changes++;
    assert_in_range(changes, count, MOST - 1);
    for (size_t own = 0; own < changes; own++) {
        bool tried = false, differs = false;
        for (size_t c = 0; !tried && c < changes; c++) {
            bool same_rule = !strcmp(change[c].rule, change[own].rule);
            differs |= same_rule && strcmp(change[c].from, change[own].from) != 0;
            tried = same_rule && !strcmp(change[c].to, change[own].from);
        }
        missing += differs && !tried;
        if (differs && !tried)
            print_error("no recipe's %s is changed to %s, which one has\n", change[own].rule, change[own].from);
    }
    keep_changes(change, changes);
    free(change);
    assert_int_equal(missing, 0);
}

/* What one recipe makes of a block of 16: its scale and one code a byte. */
static void quantise_block(const struct gb_recipe *recipe, float global, const float x[16], uint8_t out[17])
{
    uint8_t codes[8];
    gb_quantiser_run(&recipe->quantiser, x, 1, 16, global, INFINITY, codes, &out[16], NULL);
    for (int i = 0; i < 16; i++)
        out[i] = codes[i / 2] >> 4 * (i % 2) & 15;
}

/* What `gaugeblock list differences` counts of NVFP4 is what its text says, of one matrix, block by block. */
static void survey_is_its_text(void **state)
{
    enum { MATRIX = 77 };
    static uint64_t scales[SURVEY_RECIPES][SURVEY_RECIPES], codes[SURVEY_RECIPES][SURVEY_RECIPES];
    const struct recipe_comparison c = survey_nvfp4(MATRIX, MATRIX + 1), none = survey_nvfp4(MATRIX, MATRIX);
    const struct gb_recipe *recipes[SURVEY_RECIPES];
    float globals[SURVEY_RECIPES], x[16];
    uint8_t made_of[SURVEY_RECIPES][17];
    size_t all, count = 0;
    const struct gb_recipe *every = gb_recipes(&all);
    (void)state;
    for (size_t i = 0; i < all; i++)
        if (every[i].quantiser.element == GB_E2M1 && every[i].quantiser.global != GB_GLOBAL_NONE) {
            gb_quantiser_global(&every[i].quantiser, 1.0f + MATRIX / 128.0f, &globals[count], NULL);
            recipes[count++] = &every[i];
        }
    for (int p = 0; p < 128; p++)
        for (int n = 0; n < 128; n++) {
            x[0] = ldexpf(1.0f + (float)p / 128.0f, -1 - n % 12);
            for (int i = 1; i < 16; i++)
                x[i] = ldexpf(1.0f + (float)((n + 43 * (i / 5)) % 128) / 128.0f, -2 - n % 12 - i % 5);
            for (size_t i = 0; i < count; i++)
                quantise_block(recipes[i], globals[i], x, made_of[i]);
            for (size_t i = 0; i < count; i++)
                for (size_t j = i + 1; j < count; j++) {
                    scales[i][j] += made_of[i][16] != made_of[j][16];
                    for (int k = 0; k < 16; k++)
                        codes[i][j] += made_of[i][k] != made_of[j][k];
                }
        }
    assert_true(c.count == count && none.count == count && count > 10);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < count; j++)
            if (c.recipe[i] != recipes[i] || c.scales[i][j] != scales[i][j] || c.codes[i][j] != codes[i][j] ||
                none.scales[i][j] || none.codes[i][j])
                fail_msg("%s and %s: %llu scales and %llu codes, not %llu and %llu", c.recipe[i]->name,
                         recipes[j]->name, (unsigned long long)c.scales[i][j], (unsigned long long)c.codes[i][j],
                         (unsigned long long)scales[i][j], (unsigned long long)codes[i][j]);
}

enum { MAXIMA = 0x7F80 - 0x80 };

static bool is_mxfp4(const struct gb_recipe *r)
{
    return r->quantiser.element == GB_E2M1 && r->quantiser.scale == GB_SCALE_E8M0;
}

static bool is_mxfp8(const struct gb_recipe *r)
{
    return r->quantiser.element == GB_E4M3 && r->quantiser.scale == GB_SCALE_E8M0 && r->quantiser.block_columns == 32;
}

/* What it counts of scales over all bf16 maxima is what each pair of recipes makes of them. */
static void survey_is_of_every_maximum(void **state)
{
    static bool (*const belongs[])(const struct gb_recipe *) = {is_mxfp4, is_mxfp8};
    size_t all;
    const struct gb_recipe *every = gb_recipes(&all);
    (void)state;
    for (int format = 0; format < 2; format++) {
        static uint32_t code[SURVEY_RECIPES][MAXIMA];
        const struct recipe_comparison c = survey_maxima(belongs[format]);
        const struct gb_recipe *recipes[SURVEY_RECIPES];
        size_t count = 0;
        for (size_t i = 0; i < all; i++)
            if (belongs[format](&every[i])) {
                for (uint32_t n = 0; n < MAXIMA; n++)
                    code[count][n] =
                        gb_quantiser_find_step(&every[i].quantiser, gb_bf16_decode((gb_bf16){(uint16_t)(0x80 + n)}),
                                               1.0f, INFINITY)
                            .code;
                recipes[count++] = &every[i];
            }
        assert_true(c.count == count && count > 2);
        for (size_t i = 0; i < count; i++)
            for (size_t j = 0; j < count; j++) {
                uint64_t differ = 0;
                for (uint32_t n = 0; j > i && n < MAXIMA; n++)
                    differ += code[i][n] != code[j][n];
                if (c.recipe[i] != recipes[i] || c.scales[i][j] != differ || c.codes[i][j])
                    fail_msg("%s and %s: %llu scales, not %llu", c.recipe[i]->name, recipes[j]->name,
                             (unsigned long long)c.scales[i][j], (unsigned long long)differ);
            }
    }
}

/* Whether a file of the name is mapped. */
static bool is_mapped(const char *path)
{
    char line[4096];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        found |= strstr(line, path) != NULL;
    fclose(maps);
    return found;
}

/* Two bytes are not the codes of any vectors; their file is let go all the same. */
static void files_of_outputs_are_let_go(void **state)
{
    static const char array[] = "\x93NUMPY\1\0\x38\0{'descr': '|u1', 'fortran_order': False, 'shape': (2,)}\n\0";
    char path[] = "/tmp/gaugeblock-identify-XXXXXX.npy", wanted[sizeof path + 40];
    struct gb_vector_outputs *outputs = NULL;
    (void)state;
    int file = mkstemps(path, 4);
    assert_true(file >= 0);
    assert_int_equal(write(file, array, sizeof array), sizeof array);
    close(file);
    assert_int_equal(
        gb_vector_outputs_read(path, path, inputs_of(gb_recipe_find("nvfp4.modelopt/1")), &outputs, &error),
        GB_EFORMAT);
    unlink(path);
    snprintf(wanted, sizeof wanted, "%s: codes: has 2 elements; the vectors ", path);
    if (strncmp(error.message, wanted, strlen(wanted)) != 0)
        fail_msg("%s\nand not %s", error.message, wanted);
    if (is_mapped(path))
        fail_msg("%s is still mapped", path);
}

/* `test_identify all`: on every maximum. */
int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "all"))
        stride = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_cover_every_code),    cmocka_unit_test(vectors_cover_every_tie),
        cmocka_unit_test(little_names_nothing),        cmocka_unit_test(every_recipe_is_named),
        cmocka_unit_test(a_changed_rule_is_seen),      cmocka_unit_test(values_of_recipes_are_tried),
        cmocka_unit_test(survey_is_its_text),          cmocka_unit_test(survey_is_of_every_maximum),
        cmocka_unit_test(files_of_outputs_are_let_go),

    };
    return cmocka_run_group_tests(tests, NULL, free_inputs);
}
