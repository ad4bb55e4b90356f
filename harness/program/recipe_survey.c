/* SPDX-License-Identifier: Apache-2.0 */
/* Where recipes of one format disagree, counted over whole sweeps and printed as Markdown. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/program/command.h"
#include "harness/program/recipe_survey.h"
#include "harness/run/verdict.h"
#include "quant/quant.h"

enum { MANTISSAS = SURVEY_MATRICES, BLOCK = 16, SHIFTS = 12, EXPONENTS = 5 };

static bool of_mxfp4(const struct gb_recipe *r)
{
    return r->quantiser.element == GB_E2M1 && r->quantiser.scale == GB_SCALE_E8M0;
}

static bool of_mxfp8(const struct gb_recipe *r)
{
    return r->quantiser.element == GB_E4M3 && r->quantiser.scale == GB_SCALE_E8M0 && r->quantiser.block_columns == 32;
}

static bool of_nvfp4(const struct gb_recipe *r)
{
    return r->quantiser.element == GB_E2M1 && r->quantiser.global != GB_GLOBAL_NONE;
}

static struct recipe_comparison choose(bool (*belongs)(const struct gb_recipe *))
{
    struct recipe_comparison c = {.count = 0};
    size_t count;
    const struct gb_recipe *recipes = gb_recipes(&count);
    for (size_t i = 0; i < count && c.count < SURVEY_RECIPES; i++)
        if (belongs(&recipes[i]))
            c.recipe[c.count++] = &recipes[i];
    return c;
}

static float bf16(uint32_t bits)
{
    return gb_bf16_decode((gb_bf16){(uint16_t)bits});
}

static void print(const struct recipe_comparison *c, bool codes)
{
    printf("| # | recipe |");
    for (size_t i = 0; i < c->count; i++)
        printf(" %zu |", i + 1);
    printf("\n|---|---|");
    for (size_t i = 0; i < c->count; i++)
        printf("---|");
    for (size_t i = 0; i < c->count; i++) {
        printf("\n| %zu | `%s` |", i + 1, c->recipe[i]->name);
        for (size_t j = 0; j < c->count; j++)
            if (j > i || (j < i && codes))
                printf(" %llu |", (unsigned long long)(j > i ? c->scales[i][j] : c->codes[j][i]));
            else
                printf(" |");
    }
    printf("\n\n");
}

struct recipe_comparison survey_maxima(bool (*belongs)(const struct gb_recipe *))
{
    struct recipe_comparison c = choose(belongs);
    for (uint32_t bits = 0x0080; bits < 0x7F80; bits++) {
        uint32_t code[SURVEY_RECIPES];
        for (size_t i = 0; i < c.count; i++)
            code[i] = gb_quantiser_find_step(&c.recipe[i]->quantiser, bf16(bits), 1.0f, INFINITY).code;
        for (size_t i = 0; i < c.count; i++)
            for (size_t j = i + 1; j < c.count; j++)
                c.scales[i][j] += code[i] != code[j];
    }
    return c;
}

static void print_maxima(const char *title, bool (*belongs)(const struct gb_recipe *))
{
    const struct recipe_comparison c = survey_maxima(belongs);
    printf("### %s\n\n", title);
    print(&c, false);
}

/* The FP8 forms that differ although they are the same in exact arithmetic, over the same maxima. */
static void print_fp8(void)
{
    struct gb_quantiser divided = gb_recipe_find("fp8g128.deepgemm/1")->quantiser;
    struct gb_quantiser multiplied = gb_recipe_find("fp8g128.deepep/1")->quantiser;
    uint32_t scales = 0, multipliers = 0;
    for (uint32_t bits = 0x0080; bits < 0x7F80; bits++) {
        struct gb_quantiser_step d = gb_quantiser_find_step(&divided, bf16(bits), 1.0f, INFINITY);
        struct gb_quantiser_step m = gb_quantiser_find_step(&multiplied, bf16(bits), 1.0f, INFINITY);
        scales += d.scale != m.scale;
        multipliers += d.operand != m.operand;
    }
    printf("### FP8 with FP32 scales\n\n"
           "`fp8g128.deepgemm/1` against `fp8g128.deepep/1`, their limits aside:\n\n"
           "| | differ |\n|---|---|\n"
           "| scale: a / 448 against a * RN(1/448) | %u |\n"
           "| multiplier: 1 / (a / 448) against 448 / a | %u |\n\n",
           scales, multipliers);
}

/* Every block of the sweep for one A and one mantissa of a. values: [MANTISSAS, BLOCK] */
static void fill(uint32_t mantissa, float *values)
{
    for (uint32_t n = 0; n < MANTISSAS; n++) {
        float exponent = ldexpf(1.0f, -1 - (int)(n % SHIFTS)), *block = values + (size_t)n * BLOCK;
        block[0] = (1.0f + (float)mantissa / MANTISSAS) * exponent;
        for (uint32_t i = 1; i < BLOCK; i++) {
            float fraction = (float)((n + 43 * (i / EXPONENTS)) % MANTISSAS) / MANTISSAS;
            block[i] = ldexpf(1.0f + fraction, -1 - (int)(i % EXPONENTS)) * exponent;
        }
    }
}

static void compare_one(struct recipe_comparison *c, const float *globals, uint32_t mantissa)
{
    float values[MANTISSAS * BLOCK];
    uint8_t codes[SURVEY_RECIPES][MANTISSAS * BLOCK / 2], scales[SURVEY_RECIPES][MANTISSAS];
    uint32_t scale_counts[SURVEY_RECIPES][SURVEY_RECIPES] = {{0}}, code_counts[SURVEY_RECIPES][SURVEY_RECIPES] = {{0}};
    fill(mantissa, values);
    for (size_t i = 0; i < c->count; i++)
        gb_quantiser_run(&c->recipe[i]->quantiser, values, MANTISSAS, BLOCK, globals[i], INFINITY, codes[i], scales[i],
                         NULL);
    for (size_t i = 0; i < c->count; i++)
        for (size_t j = i + 1; j < c->count; j++) {
            for (uint32_t n = 0; n < MANTISSAS; n++)
                scale_counts[i][j] += scales[i][n] != scales[j][n];
            for (uint32_t n = 0; n < MANTISSAS * BLOCK / 2; n++) {
                uint8_t change = codes[i][n] ^ codes[j][n];
                code_counts[i][j] += (uint32_t)((change & 15) != 0) + (change >> 4 != 0);
            }
        }
#pragma omp critical
    for (size_t i = 0; i < c->count; i++)
        for (size_t j = i + 1; j < c->count; j++) {
            c->scales[i][j] += scale_counts[i][j];
            c->codes[i][j] += code_counts[i][j];
        }
}

struct recipe_comparison survey_nvfp4(uint32_t first, uint32_t end)
{
    struct recipe_comparison c = choose(of_nvfp4);
    for (uint32_t matrix = first; matrix < end; matrix++) {
        float globals[SURVEY_RECIPES];
        for (size_t i = 0; i < c.count; i++)
            gb_quantiser_global(&c.recipe[i]->quantiser, 1.0f + (float)matrix / MANTISSAS, &globals[i], NULL);
#pragma omp parallel for schedule(dynamic)
        for (uint32_t mantissa = 0; mantissa < MANTISSAS; mantissa++)
            compare_one(&c, globals, mantissa);
    }
    return c;
}

static void print_nvfp4(void)
{
    const uint64_t blocks = (uint64_t)SURVEY_MATRICES * MANTISSAS * MANTISSAS;
    printf("### NVFP4\n\n"
           "Scale bytes that differ above the diagonal, codes that differ below it, of %llu scales and %llu codes:\n\n"
           "    for A in 1 + 0/128 .. 1 + 127/128: the matrix's largest magnitude\n"
           "      for p in 0 .. 127, n in 0 .. 127: one block of 16\n"
           "        a = x[0] = (1 + p/128) * 2^(-1 - n mod %d)\n"
           "        for i in 1 .. 15:\n"
           "          x[i] = (1 + ((n + 43 * floor(i / %d)) mod 128) / 128) * 2^(-2 - n mod %d - i mod %d)\n\n",
           (unsigned long long)blocks, (unsigned long long)blocks * BLOCK, SHIFTS, EXPONENTS, SHIFTS, EXPONENTS);
    const struct recipe_comparison c = survey_nvfp4(0, SURVEY_MATRICES);
    print(&c, true);
}

int list_differences(void)
{
    printf("# Where recipes disagree\n\n"
           "Printed by `gaugeblock list differences`. Rules: [recipes.md](recipes.md).\n\n"
           "## Scales of every block maximum\n\n"
           "How many of the 32512 positive normal bf16 block maxima a get different scales; amax_start (step 2) is "
           "not applied.\n\n");
    print_maxima("MXFP4", of_mxfp4);
    print_maxima("MXFP8", of_mxfp8);
    print_fp8();
    printf("## Scales and codes\n\n");
    print_nvfp4();
    return EXIT_PASS;
}
