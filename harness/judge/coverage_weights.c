/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "harness/judge/coverage.h"
#include "quant/quant.h"

enum { CODES = 1 << 16, SCALES = 256 }; /* bf16 has the most codes, E4M3 and E8M0 scales are bytes */

/* Of one projection, over all layers. */
struct histogram {
    uint64_t code[CODES];
    uint64_t scale[SCALES];
    uint64_t zero_blocks;
};

/* The rows of one projection of one expert: codes and scales lie without gaps. */
struct matrix {
    enum gb_format format;
    uint32_t rows, columns;
    const void *codes, *scales;
};

static struct matrix matrix_of(const struct gb_weights *w, uint32_t expert, uint32_t part)
{
    uint32_t rows = w->rows / w->halves;
    size_t number = (size_t)expert * w->halves + part;
    struct matrix m = {.format = w->format, .rows = rows, .columns = w->columns};
    m.codes = (const uint8_t *)w->codes + number * rows * gb_row_code_bytes(w->format, w->columns);
    if (w->scales)
        m.scales = (const uint8_t *)w->scales + number * gb_part_scale_bytes(w->format, rows, w->columns);
    return m;
}

/* Neighbouring bytes go to different tables: equal ones would wait for each other. */
static void count_bytes(const uint8_t *bytes, size_t count, uint64_t *histogram)
{
    uint64_t table[4][256] = {0};
    size_t i = 0;
    for (; i + 4 <= count; i += 4)
        for (unsigned k = 0; k < 4; k++)
            table[k][bytes[i + k]]++;
    for (; i < count; i++)
        table[0][bytes[i]]++;
    for (unsigned b = 0; b < 256; b++)
        histogram[b] += table[0][b] + table[1][b] + table[2][b] + table[3][b];
}

/* The same of E2M1 codes, of which three choose an entry: fewer entries than bytes are counted. The first
 * bytes of a word are its low ones. */
static void count_pairs(const uint8_t *pairs, size_t count, uint64_t *histogram)
{
    enum { AT_ONCE = 6, OF_THREE = 1 << 12, ANY = OF_THREE - 1 };
    uint64_t table[OF_THREE] = {0}, six;
    size_t i = 0;
    for (; i + sizeof six <= count; i += AT_ONCE) {
        memcpy(&six, pairs + i, sizeof six);
        for (unsigned k = 0; k < 4; k++)
            table[six >> 12 * k & ANY]++;
    }
    for (; i < count; i++) {
        histogram[pairs[i] & 15]++;
        histogram[pairs[i] >> 4]++;
    }
    for (unsigned t = 0; t < OF_THREE; t++)
        for (unsigned k = 0; k < 3; k++)
            histogram[t >> 4 * k & 15] += table[t];
}

/* The first eight of `count` bytes, zeros behind them; a copy of known length is one instruction. */
static inline uint64_t word_of(const uint8_t *bytes, size_t count)
{
    uint64_t word = 0;
    if (count >= sizeof word)
        memcpy(&word, bytes, sizeof word);
    else
        memcpy(&word, bytes, count);
    return word;
}

/* Whether all codes of `rows` rows x `bytes` bytes are +0 or -0; pitch: bytes of a whole row; magnitude: the bits of
 * eight bytes that are not signs. */
static bool zero_block(const uint8_t *codes, uint32_t rows, size_t bytes, size_t pitch, uint64_t magnitude)
{
    uint64_t any = 0;
    for (uint32_t r = 0; r < rows && !any; r++)
        for (size_t i = 0; i < bytes && !any; i += sizeof any)
            any = word_of(codes + r * pitch + i, bytes - i) & magnitude;
    return !any;
}

/* How many blocks that are one word each are zero_block. */
static uint64_t zero_words(const uint8_t *codes, size_t words, uint64_t magnitude)
{
    uint64_t count = 0;
    for (size_t i = 0; i < words; i++)
        count += (word_of(codes + i * sizeof magnitude, sizeof magnitude) & magnitude) == 0;
    return count;
}

static uint64_t zero_blocks(const struct matrix *m)
{
    uint32_t down = gb_format_block_rows(m->format);
    size_t pitch = gb_row_code_bytes(m->format, m->columns);
    bool pairs = gb_format_find(m->format)->codes == GB_CODEC_E2M1;
    size_t across = gb_format_block(m->format) / (pairs ? 2 : 1);
    uint64_t count = 0, magnitude = pairs ? 0x7777777777777777 : 0x7F7F7F7F7F7F7F7F;
    if (down == 1 && across == sizeof magnitude)
        return zero_words(m->codes, m->rows * pitch / sizeof magnitude, magnitude);
    for (uint32_t r = 0; r < m->rows; r += down)
        for (size_t c = 0; c < pitch; c += across)
            count += zero_block((const uint8_t *)m->codes + r * pitch + c, m->rows - r < down ? m->rows - r : down,
                                pitch - c < across ? pitch - c : across, pitch, magnitude);
    return count;
}

static void count_matrix(const struct matrix *m, struct histogram *h)
{
    size_t bytes = m->rows * gb_row_code_bytes(m->format, m->columns);
    const struct gb_format_row *format = gb_format_find(m->format);
    if (format->codes == GB_CODEC_BF16) {
        const uint16_t *codes = m->codes;
        for (size_t i = 0; i < bytes / sizeof *codes; i++)
            h->code[codes[i]]++;
        return;
    }
    if (format->codes == GB_CODEC_E2M1)
        count_pairs(m->codes, bytes, h->code);
    else
        count_bytes(m->codes, bytes, h->code);
    if (gb_scale_bytes(format->scales) == 1)
        count_bytes(m->scales, gb_part_scale_bytes(m->format, m->rows, m->columns), h->scale);
    h->zero_blocks += zero_blocks(m);
}

static void count_expert(const struct gb_layer *l, uint32_t expert, struct histogram h[3])
{
    const struct matrix matrices[3] = {matrix_of(&l->gate_up, expert, 0), matrix_of(&l->gate_up, expert, 1),
                                       matrix_of(&l->down, expert, 0)};
    for (unsigned p = 0; p < 3; p++)
        count_matrix(&matrices[p], &h[p]);
}

static void add(struct histogram *to, const struct histogram *from, enum gb_format format)
{
    unsigned codes = gb_format_find(format)->codes == GB_CODEC_BF16 ? CODES : 256;
    for (unsigned i = 0; i < codes; i++)
        to->code[i] += from->code[i];
    for (unsigned i = 0; i < SCALES; i++)
        to->scale[i] += from->scale[i];
    to->zero_blocks += from->zero_blocks;
}

/* Codes by magnitude: 0, then `subnormals` of them, up to `largest`; beyond it lie infinity and NaN. */
struct element {
    unsigned bits, subnormals, largest;
};

static struct element element_of(enum gb_codec codes)
{
    if (codes == GB_CODEC_E2M1)
        return (struct element){4, 1, 7};
    if (codes == GB_CODEC_BF16)
        return (struct element){16, 127, 0x7F7F};
    return (struct element){8, 7, 0x7E};
}

static void reduce_codes(const uint64_t *code, struct element e, struct coverage_count *of)
{
    unsigned sign = 1u << (e.bits - 1);
    of[COVER_CODES] = (struct coverage_count){true, 0, 2 * (e.largest + 1)};
    for (unsigned m = 0; m <= e.largest; m++) {
        of[COVER_CODES].seen += (code[m] > 0) + (code[sign | m] > 0);
        if (m > 0 && m <= e.subnormals)
            of[COVER_SUBNORMALS].seen += code[m] + code[sign | m];
    }
    of[COVER_LARGEST].seen = code[e.largest] + code[sign | e.largest];
    of[COVER_ZEROS].seen = code[0] + code[sign];
    of[COVER_NEGATIVE_ZEROS].seen = code[sign];
    of[COVER_SUBNORMALS].applies = true;
    of[COVER_LARGEST].applies = e.bits < 16; /* no scale brings values of bf16 there */
    of[COVER_ZEROS].applies = of[COVER_NEGATIVE_ZEROS].applies = true;
}

/* E4M3 scales have no sign: 0 .. 0x7E, the first eight being 0 and the subnormals. E8M0: 0 .. 0xFE. */
static void reduce_scales(const uint64_t *scale, enum gb_scale type, struct coverage_count *of)
{
    bool e4m3 = type == GB_SCALE_E4M3;
    of[COVER_SCALES] = (struct coverage_count){true, 0, e4m3 ? 0x7F : 0xFF};
    for (unsigned s = 0; s < of[COVER_SCALES].possible; s++)
        of[COVER_SCALES].seen += scale[s] > 0;
    of[COVER_ZERO_SCALES].applies = of[COVER_SUBNORMAL_SCALES].applies = e4m3;
    of[COVER_SMALLEST_SCALES].applies = !e4m3;
    of[COVER_ZERO_SCALES].seen = of[COVER_SMALLEST_SCALES].seen = scale[0];
    for (unsigned s = 1; s < 8; s++)
        of[COVER_SUBNORMAL_SCALES].seen += scale[s];
}

static void reduce(struct histogram *h, const struct gb_format_row *format, struct coverage_count *of)
{
    struct element e = element_of(format->codes);
    reduce_codes(h->code, e, of);
    of[COVER_ZERO_BLOCKS] = (struct coverage_count){format->scales != 0, h->zero_blocks, 0};
    if (gb_scale_bytes(format->scales) == 1)
        reduce_scales(h->scale, format->scales, of);
}

/* used: [experts]. */
static void find_used(const struct gb_fixture *f, uint32_t layer, uint32_t tokens, bool *used)
{
    memset(used, 0, f->shape.experts * sizeof *used);
    for (size_t p = 0; p < (size_t)tokens * f->shape.top_k; p++)
        if (f->layer[layer].ids[p] >= 0)
            used[f->layer[layer].ids[p]] = true;
}

enum gb_status coverage_measure_weights(const struct gb_fixture *f, uint32_t tokens, struct coverage *c,
                                        struct gb_error *error)
{
    struct histogram *all = calloc(3, sizeof *all);       /* gate, up, down */
    bool *used = malloc(f->shape.experts * sizeof *used); /* [experts] */
    enum gb_status status = all && used ? GB_OK : GB_ENOMEM;
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        find_used(f, l, tokens, used);
#pragma omp parallel
        {
            struct histogram *own = calloc(3, sizeof *own);
#pragma omp for schedule(dynamic)
            for (uint32_t e = 0; e < f->shape.experts; e++)
                if (own && used[e])
                    count_expert(&f->layer[l], e, own);
#pragma omp critical
            if (own)
                for (unsigned p = 0; p < 3; p++)
                    add(&all[p], &own[p], f->weights);
            else
                status = GB_ENOMEM;
            free(own);
        }
    }
    for (unsigned p = 0; status == GB_OK && p < 3; p++)
        reduce(&all[p], gb_format_find(f->weights), c->of + p * COVERAGE_WEIGHTS);
    free(all);
    free(used);
    return status == GB_OK ? GB_OK
                           : gb_fail(error, status, "no memory to count the codes of %u experts", f->shape.experts);
}
