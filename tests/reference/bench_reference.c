/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights per second of the reference on one token, path by path, beside OpenBLAS's sgemv on the same weights as FP32,
 * all from DRAM: each measurement walks once through experts whose codes are CACHES times as large as the last cache,
 * TOP_K experts to a call. Repeats, threads and methods alternate, so that all of them see the same disturbances.
 *
 *     gb_bench_reference [REPEATS]    JSON on stdout; exit code 1 if two paths differ, or sgemv computes something else
 *
 * OpenBLAS uses its AVX-512 or AVX2 kernels unless OPENBLAS_CORETYPE says otherwise. Medians count; the best shows how
 * much other work on the machine disturbed them.
 */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cblas.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/fma32.h"
#include "tests/support/provenance.h"

enum { HIDDEN = 2048, INTERMEDIATE = 512, TOP_K = 8, CACHES = 4, MOST_THREADS = 2, MOST_REPEATS = 101 };

/* SGEMV: one expert after the other, on OpenBLAS's threads. SGEMV_SPLIT: each thread has experts of its own.
 * READ: every byte of codes and scales once. */
enum method { PLAIN = GB_CPU_PLAIN, AVX2 = GB_CPU_AVX2, AVX512 = GB_CPU_AVX512, SGEMV, SGEMV_SPLIT, READ, METHODS };
static const char *const method_names[METHODS] = {"plain", "avx2", "avx512", "sgemv", "sgemv_split", "read"};

/* A token that goes to the first TOP_K experts, then to the next. */
struct bench {
    struct gb_weights weights;
    struct gb_arguments arguments; /* of all calls one after the other; weights are gate_up and down: one is run */
    bool down;
    size_t calls; /* experts / TOP_K */
    size_t code_bytes, scale_bytes;
    float *fp32; /* [experts, rows, columns] */
    float *x;    /* [experts, columns] */
    float *y;    /* [experts, rows], sgemv's */
};

static void die(const char *what)
{
    fprintf(stderr, "gb_bench_reference: %s\n", what);
    exit(1);
}

static void *allocate(size_t bytes)
{
    void *pointer = aligned_alloc(4096, bytes / 4096 * 4096 + 4096);
    if (!pointer)
        die("no memory");
    return pointer;
}

/* splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. */
static uint64_t random_bits(uint64_t n)
{
    uint64_t z = n * 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

/* -1 .. 1 */
static gb_bf16 random_activation(uint64_t n)
{
    return gb_bf16_encode((float)(random_bits(n) >> 40) * 0x1p-23f - 1);
}

/* Codes of any value but NaN, scales within a factor of four of one another. */
static void fill_weights(const struct bench *bench)
{
    const struct gb_weights *weights = &bench->weights;
    uint8_t *codes = (uint8_t *)weights->codes, *scales = (uint8_t *)weights->scales;
    bool nvfp4 = weights->format == GB_NVFP4;
#pragma omp parallel for
    for (size_t i = 0; i < bench->code_bytes; i++) {
        uint8_t code = (uint8_t)random_bits(i);
        codes[i] = nvfp4 || (code & 0x7F) != 0x7F ? code : 0;
    }
#pragma omp parallel for
    for (size_t i = 0; i < bench->scale_bytes; i++)
        scales[i] = (uint8_t)(nvfp4 ? 0x30 + random_bits(~i) % 16 : 117 + random_bits(~i) % 3);
    for (uint32_t i = 0; nvfp4 && i < weights->experts * weights->halves; i++)
        ((float *)weights->global_scales)[i] = 0x1p-8f;
#pragma omp parallel for
    for (size_t row = 0; row < (size_t)weights->experts * weights->rows; row++) {
        double values[HIDDEN];
        gb_weights_row(weights, (uint32_t)(row / weights->rows), (uint32_t)(row % weights->rows), values);
        for (uint32_t c = 0; c < weights->columns; c++)
            bench->fp32[row * weights->columns + c] = (float)values[c];
    }
}

static void fill_arguments(struct bench *bench)
{
    uint32_t experts = bench->weights.experts;
    gb_bf16 *x = allocate(sizeof *x * HIDDEN);
    gb_bf16 *intermediate = allocate(sizeof *intermediate * experts * INTERMEDIATE);
    int32_t *ids = allocate(sizeof *ids * experts);
    float *routing_weights = allocate(sizeof *routing_weights * experts);
    for (uint32_t i = 0; i < HIDDEN; i++)
        x[i] = random_activation(i);
    for (uint32_t i = 0; i < experts * INTERMEDIATE; i++)
        intermediate[i] = random_activation(HIDDEN + i);
    for (uint32_t e = 0; e < experts; e++) {
        ids[e] = (int32_t)e;
        routing_weights[e] = 1;
    }
    for (size_t i = 0; i < (size_t)experts * bench->weights.columns; i++)
        bench->x[i] = gb_bf16_decode(bench->down ? intermediate[i] : x[i % HIDDEN]);
    bench->arguments = (struct gb_arguments){
        .size = sizeof bench->arguments,
        .shape = {1, HIDDEN, INTERMEDIATE, experts, TOP_K},
        .x = x,
        .ids = ids,
        .routing_weights = routing_weights,
        .gate_up = bench->weights,
        .down = bench->weights,
        .intermediate = intermediate,
        .output = allocate(sizeof(float) * bench->calls * HIDDEN),
    };
}

/* Calls whose codes exceed `bytes`. */
static struct bench bench_new(enum gb_format format, bool down, size_t bytes)
{
    uint32_t rows = down ? HIDDEN : 2 * INTERMEDIATE, columns = down ? INTERMEDIATE : HIDDEN;
    size_t calls = bytes / (TOP_K * rows * gb_row_code_bytes(format, columns)) + 1;
    uint32_t experts = (uint32_t)calls * TOP_K;
    struct bench bench = {
        .down = down, .calls = calls, .weights = {format, experts, rows, columns, down ? 1 : 2, NULL, NULL, NULL}};
    bench.code_bytes = experts * rows * gb_row_code_bytes(format, columns);
    bench.scale_bytes = experts * rows * gb_row_scale_bytes(format, columns);
    bench.weights.codes = allocate(bench.code_bytes);
    bench.weights.scales = allocate(bench.scale_bytes);
    if (format == GB_NVFP4)
        bench.weights.global_scales = allocate(sizeof(float) * experts * bench.weights.halves);
    bench.fp32 = allocate(sizeof(float) * experts * rows * columns);
    bench.x = allocate(sizeof(float) * experts * columns);
    bench.y = allocate(sizeof(float) * experts * rows);
    fill_weights(&bench);
    fill_arguments(&bench);
    return bench;
}

static void bench_free(struct bench *bench)
{
    const void *const buffers[] = {
        bench->weights.codes,
        bench->weights.scales,
        bench->weights.global_scales,
        bench->fp32,
        bench->x,
        bench->y,
        bench->arguments.x,
        bench->arguments.ids,
        bench->arguments.routing_weights,
        bench->arguments.intermediate,
        bench->arguments.output,
    };
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free((void *)buffers[i]);
}

static void sgemv(const struct bench *bench, size_t expert)
{
    size_t rows = bench->weights.rows, columns = bench->weights.columns;
    cblas_sgemv(CblasRowMajor, CblasNoTrans, (blasint)rows, (blasint)columns, 1, bench->fp32 + expert * rows * columns,
                (blasint)columns, bench->x + expert * columns, 1, 0, bench->y + expert * rows, 1);
}

/* Each thread's share as four streams, as sgemv's kernels read rows: faster than one. */
static uint64_t read_all(const void *bytes, size_t count)
{
    uint64_t sum = 0;
#pragma omp parallel reduction(+ : sum)
    {
        size_t part = count / sizeof(uint64_t) / (4 * (size_t)omp_get_num_threads());
        const uint64_t *words = (const uint64_t *)bytes + 4 * part * (size_t)omp_get_thread_num();
        for (size_t i = 0; i < part; i++)
            sum += words[i] + words[part + i] + words[2 * part + i] + words[3 * part + i];
    }
    return sum;
}

static void run_reference(const struct bench *bench, enum gb_cpu_path path)
{
    struct gb_error error;
    if (gb_cpu_path_set(path, &error) != GB_OK)
        die(error.message);
    for (size_t call = 0; call < bench->calls; call++) {
        struct gb_arguments a = bench->arguments;
        a.ids += call * TOP_K;
        a.intermediate += call * TOP_K * INTERMEDIATE;
        a.output = (float *)a.output + call * HIDDEN;
        if ((bench->down ? fma32_down : fma32_gate_up)(&a, &error) != GB_OK)
            die(error.message);
    }
}

static void run(const struct bench *bench, enum method method)
{
    static volatile uint64_t sink;
    if (method <= AVX512) {
        run_reference(bench, (enum gb_cpu_path)method);
    } else if (method == SGEMV) {
        openblas_set_num_threads(omp_get_max_threads());
        for (size_t e = 0; e < bench->weights.experts; e++)
            sgemv(bench, e);
    } else if (method == SGEMV_SPLIT) {
        openblas_set_num_threads(1);
#pragma omp parallel for
        for (size_t e = 0; e < bench->weights.experts; e++)
            sgemv(bench, e);
    } else {
        sink = read_all(bench->weights.codes, bench->code_bytes) + read_all(bench->weights.scales, bench->scale_bytes);
        (void)sink;
    }
}

/* What the operator returned. [count] */
static size_t result(const struct bench *bench, float *values)
{
    const struct gb_arguments *a = &bench->arguments;
    if (bench->down) {
        memcpy(values, a->output, sizeof(float) * bench->calls * HIDDEN);
        return bench->calls * HIDDEN;
    }
    for (size_t i = 0; i < (size_t)a->shape.experts * INTERMEDIATE; i++)
        values[i] = gb_bf16_decode(a->intermediate[i]);
    return (size_t)a->shape.experts * INTERMEDIATE;
}

/* The same from sgemv's y. */
static void sgemv_result(const struct bench *bench, float *values)
{
    if (bench->down)
        memset(values, 0, sizeof(float) * bench->calls * HIDDEN);
    for (size_t e = 0; e < bench->weights.experts; e++) {
        const float *y = bench->y + e * bench->weights.rows;
        for (size_t h = 0; bench->down && h < HIDDEN; h++)
            values[e / TOP_K * HIDDEN + h] += y[h];
        for (size_t i = 0; !bench->down && i < INTERMEDIATE; i++)
            values[e * INTERMEDIATE + i] = gb_silu(y[i]) * y[INTERMEDIATE + i];
    }
}

/* All paths have the same bits, and sgemv the same numbers to a hundredth. */
static void check(const struct bench *bench)
{
    size_t most = bench->calls * (bench->down ? HIDDEN : TOP_K * INTERMEDIATE);
    float *first = allocate(sizeof(float) * most), *other = allocate(sizeof(float) * most);
    double difference = 0, norm = 0;
    run(bench, PLAIN);
    size_t count = result(bench, first);
    for (enum method path = AVX2; path <= AVX512; path++) {
        if (!gb_cpu_path_available((enum gb_cpu_path)path))
            continue;
        run(bench, path);
        result(bench, other);
        if (memcmp(first, other, sizeof(float) * count))
            die("two paths differ");
    }
    run(bench, SGEMV_SPLIT);
    sgemv_result(bench, other);
    for (size_t i = 0; i < count; i++) {
        difference += ((double)first[i] - (double)other[i]) * ((double)first[i] - (double)other[i]);
        norm += (double)first[i] * (double)first[i];
    }
    if (!(norm > 0 && difference < 1e-4 * norm))
        die("sgemv computes something else");
    free(first);
    free(other);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool available(enum method method)
{
    return method > AVX512 || gb_cpu_path_available((enum gb_cpu_path)method);
}

/* Weights per second, their ratios to the faster sgemv's, and the bytes per second that a plain read of the codes and
 * scales reaches, of one of the repeats. seconds: ascending. */
static void report_rates(const char *name, double weights, double bytes, double seconds[METHODS][MOST_REPEATS],
                         int which)
{
    double blas = weights / fmin(seconds[SGEMV][which], seconds[SGEMV_SPLIT][which]);
    printf(",\n     \"%s\": {\"gweights_per_s\": {", name);
    for (enum method m = 0; m < METHODS; m++)
        if (available(m))
            printf("%s\"%s\": %.3f", m ? ", " : "", method_names[m], weights / seconds[m][which] * 1e-9);
    printf("}, \"times_sgemv\": {");
    for (enum method m = PLAIN; m <= AVX512; m++)
        if (available(m))
            printf("%s\"%s\": %.2f", m ? ", " : "", method_names[m], weights / seconds[m][which] / blas);
    printf("}, \"read_gb_per_s\": %.2f}", bytes / seconds[READ][which] * 1e-9);
}

static void report(const struct bench *bench, int threads, int repeats, double seconds[METHODS][MOST_REPEATS])
{
    const struct gb_weights *weights = &bench->weights;
    double count = (double)weights->experts * weights->rows * weights->columns;
    double bytes = (double)(bench->code_bytes + bench->scale_bytes);
    for (enum method m = 0; m < METHODS; m++)
        qsort(seconds[m], (size_t)repeats, sizeof **seconds, ascending);
    printf("    {\"operator\": \"%s\", \"format\": \"%s\", \"rows\": %u, \"columns\": %u, ",
           bench->down ? "down" : "gate_up", gb_format_name(weights->format), weights->rows, weights->columns);
    printf("\"experts\": %u, \"top_k\": %d, \"threads\": %d, \"bytes\": %.0f, \"fp32_bytes\": %.0f", weights->experts,
           TOP_K, threads, bytes, sizeof(float) * count);
    report_rates("median", count, bytes, seconds, repeats / 2);
    report_rates("best", count, bytes, seconds, 0);
    printf("}");
    fflush(stdout);
}

static void measure(const struct bench *bench, int repeats)
{
    static double seconds[MOST_THREADS + 1][METHODS][MOST_REPEATS];
    for (int r = 0; r < repeats; r++)
        for (int threads = 1; threads <= MOST_THREADS; threads++) {
            omp_set_num_threads(threads);
            for (enum method m = 0; m < METHODS; m++) {
                if (!available(m))
                    continue;
                usleep(50000); /* OpenBLAS's idle threads spin for a while */
                double start = omp_get_wtime();
                run(bench, m);
                seconds[threads][m][r] = omp_get_wtime() - start;
            }
        }
    for (int threads = 1; threads <= MOST_THREADS; threads++) {
        report(bench, threads, repeats, seconds[threads]);
        printf(threads < MOST_THREADS ? ",\n" : "");
    }
}

/* Bytes of the last cache that the first core shares; 64 MiB where the system does not tell. */
static size_t last_cache(void)
{
    unsigned long kib = 65536;
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    if (file) {
        if (fscanf(file, "%luK", &kib) != 1)
            kib = 65536;
        fclose(file);
    }
    return kib * 1024;
}

/* OpenBLAS picks its kernels when it is loaded, and on a CPU younger than itself the slowest ones. */
static void choose_blas_kernels(char **argv)
{
    const char *core = gb_cpu_path_available(GB_CPU_AVX512) ? "SkylakeX" : "Haswell";
    if (!gb_cpu_path_available(GB_CPU_AVX2) || getenv("OPENBLAS_CORETYPE"))
        return;
    setenv("OPENBLAS_CORETYPE", core, 1);
    execv("/proc/self/exe", argv);
    die("cannot start itself again");
}

int main(int argc, char **argv)
{
    choose_blas_kernels(argv);
    static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP8};
    int repeats = argc > 1 ? atoi(argv[1]) : 9;
    size_t cache = last_cache();
    if (repeats < 1 || repeats > MOST_REPEATS || repeats % 2 == 0)
        die("REPEATS is an odd number from 1 to 101");
    char command[64];
    snprintf(command, sizeof command, "gb_bench_reference %d", repeats);
    printf("{");
    print_provenance(stdout, "gaugeblock.bench-reference/1", command);
    printf(",\n  \"last_cache_bytes\": %zu, \"repeats\": %d, \"blas\": \"%s\", \"cases\": [\n", cache, repeats,
           openblas_get_config());
    for (int i = 0; i < 4; i++) {
        struct bench bench = bench_new(formats[i / 2], i % 2, CACHES * cache);
        check(&bench);
        measure(&bench, repeats);
        printf(i < 3 ? ",\n" : "\n]}\n");
        bench_free(&bench);
    }
    return 0;
}
