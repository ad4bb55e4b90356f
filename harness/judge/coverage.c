/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/text.h"
#include "harness/judge/coverage.h"
#include "quant/quant.h"
#include "reference/reference.h"

static const char *const weight_names[COVERAGE_WEIGHTS] = {
    [COVER_CODES] = "codes",
    [COVER_SCALES] = "scales",
    [COVER_ZERO_BLOCKS] = "zero_blocks",
    [COVER_ZERO_SCALES] = "zero_scales",
    [COVER_SUBNORMAL_SCALES] = "subnormal_scales",
    [COVER_SMALLEST_SCALES] = "smallest_scales",
    [COVER_LARGEST] = "largest",
    [COVER_SUBNORMALS] = "subnormals",
    [COVER_ZEROS] = "zeros",
    [COVER_NEGATIVE_ZEROS] = "negative_zeros",
};

static const char *const names[COVERAGE_ITEMS] = {
    [COVER_X_SUBNORMALS] = "x.subnormals",
    [COVER_X_ZEROS] = "x.zeros",
    [COVER_X_NEGATIVE_ZEROS] = "x.negative_zeros",
    [COVER_X_REPEATED] = "x.repeated",
    [COVER_X_SHARED_PREFIX] = "x.shared_prefix",
    [COVER_SILU_UNDERFLOW] = "silu.underflow",
    [COVER_SILU_EXP_OVERFLOW] = "silu.exp_overflow",
    [COVER_SILU_TAIL] = "silu.tail",
    [COVER_SILU_INTERIOR] = "silu.interior",
    [COVER_SILU_HALF] = "silu.half",
    [COVER_SILU_LINEAR] = "silu.linear",
    [COVER_CLAMP_GATE] = "clamp.gate",
    [COVER_CLAMP_UP] = "clamp.up",
    [COVER_TIES] = "intermediate.ties",
    [COVER_NEAR_TIES] = "intermediate.near_ties",
    [COVER_INTERMEDIATE_SUBNORMALS] = "intermediate.subnormals",
    [COVER_INTERMEDIATE_ZEROS] = "intermediate.zeros",
    [COVER_INTERMEDIATE_NEGATIVE_ZEROS] = "intermediate.negative_zeros",
    [COVER_EXPERTS_IDLE] = "experts.idle",
    [COVER_EXPERTS_ONE] = "experts.one",
    [COVER_EXPERTS_SEVERAL] = "experts.several",
    [COVER_EXPERTS_ALL] = "experts.all",
    [COVER_LOAD_7] = "experts.load_7",
    [COVER_LOAD_8] = "experts.load_8",
    [COVER_LOAD_9] = "experts.load_9",
    [COVER_LOAD_16] = "experts.load_16",
    [COVER_LOAD_17] = "experts.load_17",
    [COVER_IDS_128] = "ids.at_128",
    [COVER_IDS_256] = "ids.at_256",
    [COVER_IDS_32768] = "ids.at_32768",
    [COVER_IDS_65536] = "ids.at_65536",
    [COVER_SLOTS_EMPTY] = "slots.empty",
    [COVER_EQUAL_WEIGHTS] = "slots.equal_weights",
    [COVER_NEAR_WEIGHTS] = "slots.near_weights",
    [COVER_HIDDEN_64] = "hidden.tail_64",
    [COVER_HIDDEN_128] = "hidden.tail_128",
    [COVER_HIDDEN_256] = "hidden.tail_256",
    [COVER_INTERMEDIATE_64] = "intermediate.tail_64",
    [COVER_INTERMEDIATE_128] = "intermediate.tail_128",
    [COVER_INTERMEDIATE_256] = "intermediate.tail_256",
    [COVER_LAYERS_FURTHER] = "layers.further",
    [COVER_LAYERS_ROUTED] = "layers.routed",
};

/* Tokens of one expert, around tiles of 8 and 16. */
static const struct {
    enum coverage_item item;
    uint32_t tokens;
} loads[] = {{COVER_LOAD_7, 7}, {COVER_LOAD_8, 8}, {COVER_LOAD_9, 9}, {COVER_LOAD_16, 16}, {COVER_LOAD_17, 17}};

/* Ids that need one bit more than those below. */
static const struct {
    enum coverage_item item;
    uint32_t id;
} boundaries[] = {{COVER_IDS_128, 128}, {COVER_IDS_256, 256}, {COVER_IDS_32768, 32768}, {COVER_IDS_65536, 65536}};

#define COUNT(array) (sizeof(array) / sizeof *(array))

const char *coverage_name(enum coverage_item item, char name[32])
{
    static const char *const projections[] = {"gate_proj", "up_proj", "down_proj"};
    if (item >= COVER_X_SUBNORMALS)
        return names[item];
    snprintf(name, 32, "%s.%s", projections[item / COVERAGE_WEIGHTS], weight_names[item % COVERAGE_WEIGHTS]);
    return name;
}

/* Subnormals, zeros and, of those, negative ones, in this sequence in `of`. values: [count]. */
static void count_values(const gb_bf16 *values, size_t count, struct coverage_count *of)
{
    uint64_t subnormals = 0, zeros = 0, negative_zeros = 0;
    for (size_t i = 0; i < count; i++) {
        uint16_t magnitude = values[i].bits & 0x7FFF;
        zeros += magnitude == 0;
        subnormals += magnitude > 0 && magnitude < 0x80;
        negative_zeros += values[i].bits == 0x8000;
    }
    of[0].seen += subnormals;
    of[1].seen += zeros;
    of[2].seen += negative_zeros;
}

static int compare_rows(const void *a, const void *b, void *bytes)
{
    return memcmp(*(const gb_bf16 *const *)a, *(const gb_bf16 *const *)b, *(const size_t *)bytes);
}

/* x: [tokens, hidden]; row: scratch, [tokens]. */
static uint64_t repeated_rows(const gb_bf16 *x, uint32_t tokens, uint32_t hidden, const gb_bf16 **row)
{
    size_t bytes = hidden * sizeof *x;
    uint64_t count = 0;
    for (uint32_t t = 0; t < tokens; t++)
        row[t] = x + (size_t)t * hidden;
    qsort_r(row, tokens, sizeof *row, compare_rows, &bytes);
    for (uint32_t t = 1; t < tokens; t++)
        count += memcmp(row[t - 1], row[t], bytes) == 0;
    return count;
}

/* Tokens whose first half of x is an earlier token's, and the rest not. row: those that repeated_rows sorted. */
static uint64_t shared_prefixes(const gb_bf16 *const *row, uint32_t tokens, uint32_t hidden)
{
    uint64_t count = 0;
    for (uint32_t t = 1; t < tokens; t++)
        count += hidden > 1 && memcmp(row[t - 1], row[t], hidden / 2 * sizeof **row) == 0 &&
                 memcmp(row[t - 1], row[t], hidden * sizeof **row) != 0;
    return count;
}

/* Pairs of slots of one token: those of equal weights, and those of weights that only bf16 makes equal. */
static void count_weights(const struct gb_fixture *f, uint32_t layer, uint32_t tokens, struct coverage_count *of)
{
    const uint32_t top_k = f->shape.top_k;
    for (uint32_t t = 0; t < tokens; t++) {
        const float *weights = f->layer[layer].routing_weights + (size_t)t * top_k;
        const int32_t *ids = f->layer[layer].ids + (size_t)t * top_k;
        for (uint32_t a = 0; a < top_k; a++)
            for (uint32_t b = a + 1; b < top_k; b++) {
                if (ids[a] < 0 || ids[b] < 0 || gb_bf16_encode(weights[a]).bits != gb_bf16_encode(weights[b]).bits)
                    continue;
                of[weights[a] == weights[b] ? COVER_EQUAL_WEIGHTS : COVER_NEAR_WEIGHTS].seen++;
            }
    }
}

/* The largest power of two that divides the size tells what is left of a tile; from 256 on nothing is. */
static void count_tail(uint32_t size, struct coverage_count *tail_64)
{
    if (size % 64)
        tail_64[0].seen++;
    else if (size % 256)
        tail_64[size % 128 ? 1 : 2].seen++;
}

static void count_shape(const struct gb_fixture *f, uint32_t layer, struct coverage_count *of)
{
    count_tail(f->shape.hidden, of + COVER_HIDDEN_64);
    count_tail(f->shape.intermediate, of + COVER_INTERMEDIATE_64);
    of[COVER_LAYERS_FURTHER].seen += layer > 0;
    of[COVER_LAYERS_ROUTED].seen += f->layer[layer].router.codes != NULL;
}

/* load: scratch, [experts]. */
static void count_loads(const struct gb_fixture *f, uint32_t layer, uint32_t tokens, uint32_t *load,
                        struct coverage_count *of)
{
    memset(load, 0, f->shape.experts * sizeof *load);
    for (size_t p = 0; p < (size_t)tokens * f->shape.top_k; p++) {
        int32_t id = f->layer[layer].ids[p];
        if (id < 0)
            of[COVER_SLOTS_EMPTY].seen++;
        else
            load[id]++;
    }
    for (uint32_t e = 0; e < f->shape.experts; e++) {
        of[COVER_EXPERTS_IDLE].seen += load[e] == 0;
        of[COVER_EXPERTS_ONE].seen += load[e] == 1;
        of[COVER_EXPERTS_SEVERAL].seen += load[e] > 1;
        of[COVER_EXPERTS_ALL].seen += load[e] == tokens;
        for (size_t i = 0; i < COUNT(loads); i++)
            of[loads[i].item].seen += load[e] == loads[i].tokens;
    }
    for (size_t i = 0; i < COUNT(boundaries); i++) {
        uint32_t id = boundaries[i].id;
        if (id < f->shape.experts && load[id] && load[id - 1])
            of[boundaries[i].item].seen += load[id - 1] + load[id];
    }
}

/* Every gate that is a number lies in one region; docs/gates.md#coverage. */
static enum coverage_item silu_region(float gate)
{
    const float minimum = -1.2784645f; /* of silu: where 1 + e^-x + x e^-x = 0 */
    float silu = gb_silu(gate);
    if (gate < minimum)
        return silu == 0.0f ? COVER_SILU_UNDERFLOW : isinf(gb_exp(-gate)) ? COVER_SILU_EXP_OVERFLOW : COVER_SILU_TAIL;
    if (silu == 0.5f * gate)
        return COVER_SILU_HALF;
    return silu == gate ? COVER_SILU_LINEAR : COVER_SILU_INTERIOR;
}

static void count_product(float product, struct coverage_count *of)
{
    uint32_t bits;
    memcpy(&bits, &product, sizeof bits);
    uint32_t dropped = bits & 0xFFFF; /* what bf16 does not keep: 0x8000 is half an ulp of it */
    if (!isfinite(product))
        return;
    of[COVER_TIES].seen += dropped == 0x8000;
    of[COVER_NEAR_TIES].seen += dropped == 0x7FFF || dropped == 0x8001;
}

static void count_gate_up(const struct gb_fixture *f, uint32_t layer, uint32_t tokens,
                          const struct gb_gate_up_values *values, const gb_bf16 *intermediate,
                          struct coverage_count *of)
{
    const struct gb_activation_row *row = gb_activation_find(f->activation);
    uint32_t width = f->shape.intermediate;
    for (size_t p = 0; p < (size_t)tokens * f->shape.top_k; p++) {
        if (f->layer[layer].ids[p] < 0)
            continue;
        count_values(intermediate + p * width, width, of + COVER_INTERMEDIATE_SUBNORMALS);
        for (size_t i = p * width; i < (p + 1) * width; i++) {
            float gate = values->gate[i];
            count_product(values->product[i], of);
            of[COVER_CLAMP_GATE].seen += (double)gate > row->limit;
            of[COVER_CLAMP_UP].seen += (double)fabsf(values->up[i]) > row->limit;
            if (row->gate == GB_GATE_SILU && !isnan(gate))
                of[silu_region(gate)].seen++;
        }
    }
}

/* Rounding and activation, from the reference's own values. */
static enum gb_status measure_gate_up(const struct gb_fixture *f, uint32_t layer, uint32_t tokens,
                                      struct coverage_count *of, struct gb_error *error)
{
    size_t count = (size_t)tokens * f->shape.top_k * f->shape.intermediate;
    struct gb_arguments a = gb_layer_arguments(f, layer, tokens);
    float *buffer = malloc(3 * count * sizeof *buffer);           /* [3, tokens, top_k, intermediate] */
    gb_bf16 *intermediate = malloc(count * sizeof *intermediate); /* [tokens, top_k, intermediate] */
    struct gb_gate_up_values values = {buffer, buffer + count, buffer + 2 * count};
    a.intermediate = intermediate;
    enum gb_status status =
        buffer && intermediate
            ? gb_reference_gate_up_values(gb_contract_of(&a, GB_GATE_UP, GB_ORDER_FMA32), &a, &values, error)
            : gb_fail(error, GB_ENOMEM, "no memory for the coverage of %u tokens", tokens);
    if (status == GB_OK)
        count_gate_up(f, layer, tokens, &values, intermediate, of);
    free(buffer);
    free(intermediate);
    return status;
}

enum gb_status coverage_measure(const struct gb_fixture *f, uint32_t tokens, struct coverage *c, struct gb_error *error)
{
    const struct gb_activation_row *activation = gb_activation_find(f->activation);
    *c = (struct coverage){.tokens = tokens};
    for (enum coverage_item i = COVER_X_SUBNORMALS; i < COVERAGE_ITEMS; i++)
        c->of[i].applies = i == COVER_CLAMP_GATE || i == COVER_CLAMP_UP          ? isfinite(activation->limit)
                           : i >= COVER_SILU_UNDERFLOW && i <= COVER_SILU_LINEAR ? activation->gate == GB_GATE_SILU
                                                                                 : true;
    for (size_t i = 0; i < COUNT(boundaries); i++)
        c->of[boundaries[i].item].applies = boundaries[i].id < f->shape.experts;
    uint32_t multiple = gb_format_multiple(f->weights);
    if (f->activations != GB_BF16 && gb_format_block(f->activations) > multiple)
        multiple = gb_format_block(f->activations);
    for (unsigned i = 0; i < 3; i++)
        c->of[COVER_HIDDEN_64 + i].applies = c->of[COVER_INTERMEDIATE_64 + i].applies = multiple < 64u << i;
    uint32_t *load = malloc(f->shape.experts * sizeof *load); /* [experts] */
    const gb_bf16 **row = malloc(tokens * sizeof *row);       /* [tokens] */
    enum gb_status status = load && row ? coverage_measure_weights(f, tokens, c, error)
                                        : gb_fail(error, GB_ENOMEM, "no memory for the coverage of %u tokens", tokens);
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        const gb_bf16 *x = f->layer[l].x;
        count_loads(f, l, tokens, load, c->of);
        count_values(x, (size_t)tokens * f->shape.hidden, c->of + COVER_X_SUBNORMALS);
        c->of[COVER_X_REPEATED].seen += repeated_rows(x, tokens, f->shape.hidden, row);
        c->of[COVER_X_SHARED_PREFIX].seen += shared_prefixes(row, tokens, f->shape.hidden);
        count_weights(f, l, tokens, c->of);
        count_shape(f, l, c->of);
        status = measure_gate_up(f, l, tokens, c->of, error);
    }
    free(load);
    free(row);
    return status;
}

/* One NAME[=MINIMUM], or `all`. */
static enum gb_status demand_one(const char *word, struct coverage_demand *d, struct gb_error *error)
{
    char name[32];
    size_t length = strcspn(word, "=");
    uint64_t minimum = 0;
    if (word[length] && !parse_number(word + length + 1, 1, INT64_MAX, &minimum))
        return gb_fail(error, GB_EINVAL, "--require-coverage %s: the minimum is a whole number from 1", word);
    if (!strcmp(word, "all")) {
        for (enum coverage_item i = 0; i < COVERAGE_ITEMS; i++)
            d->of[i].all = true;
        return GB_OK;
    }
    for (enum coverage_item i = 0; i < COVERAGE_ITEMS; i++)
        if (strlen(coverage_name(i, name)) == length && !strncmp(coverage_name(i, name), word, length)) {
            d->of[i].named = true;
            d->of[i].minimum = minimum;
            return GB_OK;
        }
    return gb_fail(error, GB_EINVAL,
                   "--require-coverage %s: no such count; gaugeblock info FIXTURE --coverage has them", word);
}

enum gb_status coverage_demand_parse(const char *text, struct coverage_demand *d, struct gb_error *error)
{
    *d = (struct coverage_demand){.text = text};
    for (const char *c = text;; c++) {
        char word[64];
        size_t length = strcspn(c, ",");
        if (length == 0 || length >= sizeof word)
            return gb_fail(error, GB_EINVAL, "--require-coverage %.100s: give NAME[=MINIMUM],... or all", text);
        memcpy(word, c, length);
        word[length] = '\0';
        enum gb_status status = demand_one(word, d, error);
        c += length;
        if (status != GB_OK || !*c)
            return status;
    }
}

bool coverage_short(const struct coverage *c, const struct coverage_demand *d, char *text, size_t bytes)
{
    size_t n = 0;
    text[0] = '\0';
    for (enum coverage_item i = 0; i < COVERAGE_ITEMS; i++) {
        const struct coverage_count *count = &c->of[i];
        uint64_t minimum = d->of[i].minimum ? d->of[i].minimum : count->possible ? count->possible : 1;
        char name[32];
        if (!(d->of[i].named || (d->of[i].all && count->applies)) || (count->applies && count->seen >= minimum))
            continue;
        int more = count->applies
                       ? snprintf(text + n, bytes - n, "%s%s %llu of %llu", n ? ", " : "", coverage_name(i, name),
                                  (unsigned long long)count->seen, (unsigned long long)minimum)
                       : snprintf(text + n, bytes - n, "%s%s (not in this format or activation)", n ? ", " : "",
                                  coverage_name(i, name));
        n = n + (size_t)more < bytes ? n + (size_t)more : bytes - 1;
    }
    return n > 0;
}
