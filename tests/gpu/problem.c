/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/check.h"
#include "tests/support/fma32.h"
#include "tests/gpu/problem.h"

enum { CANARY = 0xC7, CANARY_BYTES = 256 };
enum { REGION_INTERMEDIATE = 3, REGION_OUTPUT = 4 }; /* their places in problem.region */

const char *data_kind_name(enum data_kind kind)
{
    static const char *const names[DATA_KINDS] = {"ordinary", "scales",    "integers", "tiny",
                                                  "huge",     "nonfinite", "spread"};
    return names[kind];
}

static size_t rounded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Adds a region and returns its offset. */
static size_t add_region(struct problem *p, const char *name, size_t bytes)
{
    size_t offset = p->bytes;
    p->region[p->regions++] = (struct region){name, offset, bytes};
    p->bytes = offset + rounded(bytes) + CANARY_BYTES;
    return offset;
}

/* A run with codes of 6 and one of 0.5: six times the sum of x is a little more than 2^24 u, u the unit of its
 * products, though two roundings to bf16 make less of it; and its products add up to half-way between two floats. */
static const float edge_x[16] = {256,   64,         1,       0.25f,   0.5f,    0.125f,  0.5f,    0.125f,
                                 16.0f, 0x1.06p-5f, 0x1p-4f, 0x1p-5f, 0x1p-5f, 0x1p-5f, 0x1p-5f, 2.65625f};
static const uint8_t edge_codes[8] = {0x77, 0x77, 0x77, 0x77, 0x17, 0x77, 0x77, 0x77};

/* An element of x, or a weight. */
static float value(enum data_kind kind, uint64_t *state)
{
    switch (kind) {
    case DATA_INTEGERS:
        return random_below(state, 8) == 0 ? -0.0f : (float)random_below(state, 5) - 2.0f;
    case DATA_TINY:
        return (random_bits(state) & 1 ? 1.0f : -1.0f) * (float)random_below(state, 512) * 0x1p-133f;
    case DATA_HUGE:
        return ldexpf((float)random_gaussian(state), 115 + (int)random_below(state, 9));
    case DATA_SPREAD:
        return ldexpf((float)(1.0 + random_uniform(state)),
                      random_below(state, 16) ? 0 : -4 - (int)random_below(state, 8));
    default:
        return (float)random_gaussian(state);
    }
}

static void fill_x(struct problem *p, gb_bf16 *x, uint64_t *state)
{
    for (uint32_t t = 0; t < p->shape.tokens; t++)
        for (uint32_t i = 0; i < p->shape.hidden; i++, x++) {
            *x = gb_bf16_encode(value(p->kind, state));
            if (p->kind == DATA_SPREAD && i % 16 == 15 && random_below(state, 4) == 0)
                for (unsigned k = 0; k < 16; k++)
                    x[(int)k - 15] = gb_bf16_encode(edge_x[k] * 0x1p-8f);
            if (p->kind == DATA_NONFINITE && t % 3 == 1 && random_below(state, 64) == 0) {
                static const uint16_t special[] = {0x7F80, 0xFF80, 0x7FC0, 0xFFC1};
                x->bits = special[random_below(state, 4)];
            }
        }
}

static void fill_routing(struct problem *p, int32_t *ids, float *routing_weights, uint64_t *state)
{
    const struct gb_shape *s = &p->shape;
    for (uint32_t t = 0; t < s->tokens; t++)
        for (uint32_t j = 0; j < s->top_k; j++) {
            int32_t *id = &ids[t * s->top_k + j];
            bool repeated = true;
            while (repeated) { /* distinct experts, as a router chooses them */
                *id = (int32_t)random_below(state, s->experts);
                repeated = false;
                for (uint32_t k = 0; k < j; k++)
                    repeated |= ids[t * s->top_k + k] == *id;
            }
            routing_weights[t * s->top_k + j] = random_below(state, 16) ? (float)random_uniform(state) : 0.0f;
        }
    for (uint32_t t = 1; t < s->tokens; t++)
        for (uint32_t j = 0; j < s->top_k; j++)
            if (t == 2 || random_below(state, 8) == 0) /* token 2 has nothing but empty slots */
                ids[t * s->top_k + j] = -1;
}

/* Codes of E2M1, eight bytes of which are a run. */
static void fill_codes(enum data_kind kind, uint8_t *codes, size_t bytes, uint64_t *state)
{
    for (size_t i = 0; i < bytes; i++) {
        codes[i] = (uint8_t)random_bits(state);
        if (kind == DATA_SPREAD && random_below(state, 8))
            codes[i] = 0x77;
        if (kind == DATA_SPREAD && i % 8 == 7 && random_below(state, 4) == 0)
            memcpy(codes + i - 7, edge_codes, sizeof edge_codes);
    }
}

static uint8_t scale_code(enum data_kind kind, uint32_t expert, uint64_t *state)
{
    if (kind == DATA_SCALES)
        return (uint8_t)random_below(state, 0x7F); /* 0 .. 448 */
    if (kind == DATA_INTEGERS)
        return (uint8_t)(0x38 + 8 * random_below(state, 2)); /* 1 or 2 */
    if (kind == DATA_NONFINITE && expert % 4 == 3 && random_below(state, 256) == 0)
        return 0x7F;
    return (uint8_t)(0x30 + random_below(state, 0x10)); /* 0.5 .. 1.875 */
}

/* A global scale that brings dots of `columns` terms to about +-2, or half of them to the edge of the kind's range. */
static float global_scale(const struct problem *p, uint32_t expert, uint32_t columns, bool down, uint32_t part,
                          uint64_t *state)
{
    float size = 0.5f * sqrtf((float)columns);
    float g = (1.0f + (float)random_uniform(state)) / size / 4.0f;
    bool edge = expert % 2;
    switch (p->kind) {
    case DATA_SCALES:
        return g / 64.0f;
    case DATA_INTEGERS:
        return 0.25f;
    case DATA_TINY: /* x is about 2^-125; intermediates are about 1, or for `edge` subnormal */
        return down ? g * (edge ? 0x1p+100f : 1.0f) : g * (edge ? 1.0f : 0x1p+124f);
    case DATA_HUGE: /* x is about 2^120; gates about 1, intermediates of `edge` about 2^121 */
        return down ? g * (edge ? 0x1p-121f : 1.0f) : g * (edge && part == 1 ? 2.0f : 0x1p-120f);
    default:
        return g;
    }
}

/* Codes of MXFP8 or MXFP4 and E8M0 scales. The codes' root mean square is about 150 or 3, or 1 for integers. */
static void fill_mx(struct problem *p, struct gb_weights *w, uint32_t e, bool down, uint64_t *state)
{
    static const uint8_t integers[] = {0x00, 0x80, 0x38, 0xB8, 0x40, 0xC0}; /* E4M3: +-0, +-1, +-2 */
    static const uint8_t pairs[] = {0x02, 0xA2, 0x42, 0xCA, 0x08, 0xA4};    /* E2M1: two of them */
    const bool bytes = w->format == GB_MXFP8;
    const size_t count = w->rows * gb_row_code_bytes(w->format, w->columns);
    uint8_t *codes = (uint8_t *)w->codes + e * count;
    uint8_t *scales = (uint8_t *)w->scales + (size_t)e * w->rows * (w->columns / 32);
    for (size_t i = 0; i < count; i++) {
        codes[i] =
            p->kind != DATA_INTEGERS ? (uint8_t)random_bits(state) : (bytes ? integers : pairs)[random_below(state, 6)];
        if (bytes && (codes[i] & 0x7F) == 0x7F)
            codes[i] ^= 1; /* NaN is for the scales of DATA_NONFINITE */
    }
    for (uint32_t r = 0; r < w->rows; r++) {
        int exponent = ilogbf(global_scale(p, e, w->columns, down, !down && r >= w->rows / 2, state));
        for (uint32_t b = 0; b < w->columns / 32; b++) {
            int code = 127 + exponent + (int)random_below(state, 2);
            if (p->kind == DATA_SCALES)
                code += (int)random_below(state, 17) - 8;
            else if (p->kind != DATA_INTEGERS)
                code -= bytes ? 7 : 1;
            *scales++ = (uint8_t)(code < 0 ? 0 : code > 254 ? 254 : code);
            if (p->kind == DATA_NONFINITE && e % 4 == 3 && random_below(state, 256) == 0)
                scales[-1] = 0xFF;
        }
    }
}

/* E4M3 codes, as MXFP8's, and FP32 scales of blocks. */
static void fill_fp8(struct problem *p, struct gb_weights *w, uint32_t e, bool down, uint64_t *state)
{
    size_t codes, scales, globals;
    gb_weights_bytes(w, &codes, &scales, &globals, NULL);
    const size_t each = codes / w->experts, blocks = scales / sizeof(float) / w->experts / w->halves;
    uint8_t *code = (uint8_t *)w->codes + e * each;
    float *scale = (float *)w->scales + e * blocks * w->halves;
    for (size_t i = 0; i < each; i++) {
        code[i] = (uint8_t)random_bits(state);
        code[i] ^= (code[i] & 0x7F) == 0x7F;
    }
    for (uint32_t part = 0; part < w->halves; part++)
        for (size_t b = 0; b < blocks; b++)
            *scale++ = global_scale(p, e, w->columns, down, part, state) / 64.0f;
}

static void fill_weights(struct problem *p, struct gb_weights *w, bool down, uint64_t *state)
{
    size_t row_scales = gb_row_scale_bytes(w->format, w->columns), row_codes = gb_row_code_bytes(w->format, w->columns);
    for (uint32_t e = 0; e < w->experts; e++) {
        if (w->format == GB_MXFP8 || w->format == GB_MXFP4) {
            fill_mx(p, w, e, down, state);
            continue;
        }
        if (w->format == GB_FP8_BLOCK) {
            fill_fp8(p, w, e, down, state);
            continue;
        }
        if (w->format == GB_NVFP4) {
            uint8_t *codes = (uint8_t *)w->codes + e * w->rows * row_codes;
            uint8_t *scales = (uint8_t *)w->scales + e * w->rows * row_scales;
            fill_codes(p->kind, codes, w->rows * row_codes, state);
            for (size_t i = 0; i < w->rows * row_scales; i++)
                scales[i] = scale_code(p->kind, e, state);
            for (uint32_t part = 0; part < w->halves; part++)
                ((float *)w->global_scales)[e * w->halves + part] = global_scale(p, e, w->columns, down, part, state);
            continue;
        }
        gb_bf16 *codes = (gb_bf16 *)((uint8_t *)w->codes + e * w->rows * row_codes);
        enum data_kind kind = p->kind == DATA_INTEGERS ? DATA_INTEGERS : DATA_ORDINARY;
        for (uint32_t r = 0; r < w->rows; r++) {
            float g = global_scale(p, e, w->columns, down, !down && r >= w->rows / 2, state);
            for (uint32_t i = 0; i < w->columns; i++)
                *codes++ = gb_bf16_encode(2.0f * g * value(kind, state));
        }
    }
}

static void lay_out(struct problem *p)
{
    const struct gb_shape *s = &p->shape;
    struct gb_arguments *a = &p->arguments;
    struct gb_weights *weights[2] = {&a->gate_up, &a->down};
    size_t pairs = (size_t)s->tokens * s->top_k, offset[11];
    unsigned n = 0;
    *a = (struct gb_arguments){.size = sizeof *a, .shape = *s};
    a->gate_up = (struct gb_weights){p->format, s->experts, 2 * s->intermediate, s->hidden, 2, NULL, NULL, NULL};
    a->down = (struct gb_weights){p->format, s->experts, s->hidden, s->intermediate, 1, NULL, NULL, NULL};
    p->bytes = CANARY_BYTES;
    offset[n++] = add_region(p, "x", sizeof(gb_bf16) * s->tokens * s->hidden);
    offset[n++] = add_region(p, "ids", sizeof(int32_t) * pairs);
    offset[n++] = add_region(p, "routing_weights", sizeof(float) * pairs);
    offset[n++] = add_region(p, "intermediate", sizeof(gb_bf16) * pairs * s->intermediate);
    offset[n++] = add_region(p, "output", sizeof(float) * s->tokens * s->hidden);
    for (int i = 0; i < 2; i++) {
        size_t codes, scales, globals;
        gb_weights_bytes(weights[i], &codes, &scales, &globals, NULL);
        offset[n++] = add_region(p, i ? "down codes" : "gate_up codes", codes);
        offset[n++] = add_region(p, i ? "down scales" : "gate_up scales", scales);
        offset[n++] = add_region(p, i ? "down global scales" : "gate_up global scales", globals);
    }
    p->image = aligned_alloc(256, p->bytes);
    if (!p->image)
        return;
    memset(p->image, CANARY, p->bytes);
    a->x = (const gb_bf16 *)(p->image + offset[0]);
    a->ids = (const int32_t *)(p->image + offset[1]);
    a->routing_weights = (const float *)(p->image + offset[2]);
    a->intermediate = (gb_bf16 *)(p->image + offset[3]);
    a->output = p->image + offset[4];
    for (int i = 0; i < 2; i++) {
        weights[i]->codes = p->image + offset[5 + 3 * i];
        if (p->format != GB_BF16)
            weights[i]->scales = p->image + offset[6 + 3 * i];
        if (p->format == GB_NVFP4)
            weights[i]->global_scales = (const float *)(p->image + offset[7 + 3 * i]);
    }
}

bool problem_make(struct problem *p, const struct gb_shape *shape, enum gb_format format, enum data_kind kind,
                  uint64_t seed)
{
    struct gb_error error;
    uint64_t state = seed;
    *p = (struct problem){.shape = *shape, .format = format, .kind = kind, .seed = seed};
    lay_out(p);
    const struct region *intermediate = &p->region[REGION_INTERMEDIATE], *output = &p->region[REGION_OUTPUT];
    p->intermediate = malloc(intermediate->bytes);
    p->output = malloc(output->bytes);
    if (!p->image || !p->intermediate || !p->output) {
        fprintf(stderr, "no memory for a problem of %zu bytes\n", p->bytes);
        return false;
    }
    fill_x(p, (gb_bf16 *)p->arguments.x, &state);
    fill_routing(p, (int32_t *)p->arguments.ids, (float *)p->arguments.routing_weights, &state);
    fill_weights(p, &p->arguments.gate_up, false, &state);
    fill_weights(p, &p->arguments.down, true, &state);
    struct gb_arguments a = p->arguments;
    a.intermediate = (gb_bf16 *)p->intermediate;
    a.output = p->output;
    if (fma32_layer(&a, &error) == GB_OK)
        return true;
    fprintf(stderr, "reference: %s\n", error.message);
    return false;
}

void problem_free(struct problem *p)
{
    free(p->image);
    free(p->intermediate);
    free(p->output);
}

static const void *moved(const void *pointer, const struct problem *p, void *base)
{
    return pointer ? (unsigned char *)base + ((const unsigned char *)pointer - p->image) : NULL;
}

struct gb_arguments problem_arguments_at(const struct problem *p, void *base)
{
    struct gb_arguments a = p->arguments;
    struct gb_weights *weights[2] = {&a.gate_up, &a.down};
    a.x = moved(a.x, p, base);
    a.ids = moved(a.ids, p, base);
    a.routing_weights = moved(a.routing_weights, p, base);
    a.intermediate = (gb_bf16 *)moved(a.intermediate, p, base);
    a.output = (void *)moved(a.output, p, base);
    for (int i = 0; i < 2; i++) {
        weights[i]->codes = moved(weights[i]->codes, p, base);
        weights[i]->scales = moved(weights[i]->scales, p, base);
        weights[i]->global_scales = moved(weights[i]->global_scales, p, base);
    }
    return a;
}

static bool writes(enum gb_operator operation, unsigned region)
{
    return (region == REGION_INTERMEDIATE && operation != GB_DOWN) ||
           (region == REGION_OUTPUT && operation != GB_GATE_UP);
}

/* The reference's results in `image`, or poison where `poisoned` and the operator writes. */
static void fill_results(const struct problem *p, enum gb_operator operation, bool poisoned, int poison,
                         unsigned char *image)
{
    const unsigned char *result[2] = {p->intermediate, p->output};
    memcpy(image, p->image, p->bytes);
    for (unsigned n = REGION_INTERMEDIATE; n <= REGION_OUTPUT; n++) {
        const struct region *r = &p->region[n];
        bool given = n == REGION_INTERMEDIATE && operation == GB_DOWN;
        if (given || (writes(operation, n) && !poisoned))
            memcpy(image + r->offset, result[n - REGION_INTERMEDIATE], r->bytes);
        else
            memset(image + r->offset, poison, r->bytes);
    }
}

void problem_before(const struct problem *p, enum gb_operator operation, int poison, unsigned char *image)
{
    fill_results(p, operation, true, poison, image);
}

void problem_after(const struct problem *p, enum gb_operator operation, int poison, unsigned char *image)
{
    fill_results(p, operation, false, poison, image);
}

/* Word i of a region as FP32: the output's, or an intermediate's bf16. */
static float word(unsigned region, const unsigned char *bytes, size_t i)
{
    if (region == REGION_OUTPUT)
        return ((const float *)bytes)[i];
    return gb_bf16_decode(((const gb_bf16 *)bytes)[i]);
}

static void print_mismatch(const struct problem *p, unsigned n, size_t i, float expected, float actual,
                           const char *label)
{
    const struct gb_shape *s = &p->shape;
    size_t row = n == REGION_OUTPUT ? s->hidden : s->intermediate, token = i / row, slot = 0;
    if (n == REGION_INTERMEDIATE) {
        token = i / row / s->top_k;
        slot = i / row % s->top_k;
    }
    printf("MISMATCH %s: %s token %zu, slot %zu, column %zu: expected %08X (%a), got %08X (%a)\n", label,
           p->region[n].name, token, slot, i % row, float_bits(expected), (double)expected, float_bits(actual),
           (double)actual);
}

void problem_compare(const struct problem *p, enum gb_operator operation, const unsigned char *expected,
                     const unsigned char *actual, const char *label, struct tally *tally)
{
    bool reported = false;
    size_t from = 0; /* bytes before it have been compared */
    for (unsigned n = 0; n <= p->regions; n++) {
        const struct region end = {"the end", p->bytes, 0}, *r = n < p->regions ? &p->region[n] : &end;
        bool written = n < p->regions && writes(operation, n);
        size_t until = written || n == p->regions ? r->offset : r->offset + r->bytes;
        for (size_t i = from; i < until; i++)
            if (expected[i] != actual[i]) {
                tally->mismatched++;
                if (!reported)
                    printf("MISMATCH %s: byte %zu, not to be written, near %s, was %02X and is %02X\n", label, i,
                           r->name, expected[i], actual[i]);
                reported = true;
            }
        from = until;
        if (!written)
            continue;
        size_t words = r->bytes / (n == REGION_OUTPUT ? sizeof(float) : sizeof(gb_bf16));
        for (size_t i = 0; i < words; i++) {
            float want = word(n, expected + r->offset, i), got = word(n, actual + r->offset, i);
            tally->compared++;
            tally->finite += isfinite(want) && want != 0;
            if (same_float(want, got))
                continue;
            tally->mismatched++;
            if (!reported)
                print_mismatch(p, n, i, want, got, label);
            reported = true;
        }
        from = r->offset + r->bytes;
    }
}
