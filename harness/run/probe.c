/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/run/compute_truth.h"
#include "harness/run/contract.h"
#include "harness/run/child.h"
#include "harness/run/text.h"
#include "harness/run/probe.h"
#include "harness/run/progress.h"
#include "harness/run/verdict.h"
#include "quant/quant.h"
#include "reference/reference.h"

extern char **environ;

/*
 * Starts a child without OpenBLAS's threads: the buffers that they ask for as they start, 128 MiB each, would count
 * against the child's memory, and where there is too little of it the child never ends. Returns 0 or an errno.
 */
static int start(char *const *argv, int output, int shared, struct child *child)
{
    static char single[] = "OPENBLAS_NUM_THREADS=1";
    size_t count = 0, kept = 0, name = strcspn(single, "=") + 1;
    while (environ[count])
        count++;
    char **environment = malloc((count + 2) * sizeof *environment);
    if (!environment)
        return ENOMEM;
    for (size_t i = 0; i < count; i++)
        if (strncmp(environ[i], single, name))
            environment[kept++] = environ[i];
    environment[kept++] = single;
    environment[kept] = NULL;
    int code = child_start(argv, environment, output, &shared, shared >= 0, child);
    free(environment);
    return code;
}

/* What the child said, its first line. */
static void first_line(int descriptor, char *line, size_t bytes)
{
    ssize_t count = pread(descriptor, line, bytes - 1, 0);
    line[count > 0 ? count : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
}

/* Runs the child on argv. shared: what it writes to or reads, or negative. Returns its judgement of the file. */
static int probe(const char *path, char *const *argv, int shared, unsigned timeout_s, struct gb_error *error)
{
    char how[128];
    int status, said = memfd_create("probe", MFD_CLOEXEC);
    struct child child;
    int code = said < 0 ? errno : start(argv, said, shared, &child);
    if (code) {
        gb_fail(error, GB_EIO, "%s: cannot start a process to read it: %s", path, strerror(code));
        code = EXIT_USAGE;
    } else if (child_wait(&child, timeout_s, &status) != CHILD_ENDED) {
        gb_fail(error, GB_EIO, "%s: reading it took longer than %u s; make the file again", path, timeout_s);
        code = EXIT_CRASH;
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_USAGE) {
        first_line(said, error->message, sizeof error->message);
        code = EXIT_USAGE;
    } else if (child_describe(status, how, sizeof how)[0]) {
        gb_fail(error, GB_EFORMAT, "%s: damaged, the process that read it was %s; make the file again", path, how);
        code = EXIT_CRASH;
    }
    if (said >= 0)
        close(said);
    return code;
}

void input_name(const char *path, struct gb_error *error)
{
    char what[sizeof error->message];
    if (strstr(error->message, path_end(path)))
        return;
    strcpy(what, error->message);
    snprintf(error->message, sizeof error->message, "%.200s: %.300s", path_end(path), what);
}

/* Whether there is a contract that it can be a problem of. */
static enum gb_status check_contract(const char *path, const struct gb_fixture *f, struct gb_error *error)
{
    if (gb_fixture_quantises(f) || gb_fixture_exchanges(f) || fixture_contract(f))
        return GB_OK;
    return gb_fail(error, GB_EUNSUPPORTED,
                   "%s: activations: no contract has %s with %s weights; write bf16, or others that gaugeblock list "
                   "contracts prints",
                   path_end(path), gb_format_name(f->activations), gb_format_name(f->weights));
}

/* From here on nobody but this process, by the mapping that it has, changes the fixture: a subject's process finds the
 * file. Kernels before 5.1 keep the size alone. */
static void seal(int shared)
{
    const int size = F_SEAL_SHRINK | F_SEAL_GROW;
    if (fcntl(shared, F_ADD_SEALS, size | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) && errno == EINVAL)
        fcntl(shared, F_ADD_SEALS, size | F_SEAL_SEAL);
}

/* What gb_fixture_send leaves of a file. Returns an exit code. */
static int read_fixture(const char *path, unsigned timeout_s, struct gb_fixture **fixture, struct gb_error *error)
{
    char *argv[] = {"gaugeblock", "probe", (char *)path, NULL};
    int shared = memfd_create("fixture", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int code = probe(path, argv, shared, timeout_s, error);
    if (code == EXIT_PASS && gb_fixture_receive(path, shared, fixture, error) != GB_OK)
        code = EXIT_USAGE;
    if (*fixture)
        seal(shared);
    else if (shared >= 0)
        close(shared);
    return code;
}

/* A fixture that another process holds in memory; truth is computed where it lies, for both to see. */
static int receive_fixture(const char *path, int shared, struct gb_fixture **fixture, struct gb_error *error)
{
    enum gb_status status = gb_fixture_receive(path, shared, fixture, error);
    if (status != GB_OK)
        close(shared);
    if (status == GB_OK && !gb_fixture_quantises(*fixture))
        status = compute_truth(*fixture, error);
    return status == GB_OK ? EXIT_PASS : EXIT_USAGE;
}

int input_fixture(const char *path, unsigned timeout_s, struct gb_fixture **fixture, struct gb_error *error)
{
    *fixture = NULL;
    progress("reading the fixture, generating its weights", 0.0);
    int shared = gb_fixture_shared(path);
    int code =
        shared < 0 ? read_fixture(path, timeout_s, fixture, error) : receive_fixture(path, shared, fixture, error);
    if (code == EXIT_USAGE)
        input_name(path, error);
    progress_done();
    if (code == EXIT_PASS && check_contract(path, *fixture, error) != GB_OK)
        code = EXIT_USAGE;
    if (code != EXIT_PASS) {
        gb_fixture_free(*fixture);
        *fixture = NULL;
    }
    return code;
}

/* Sizes of a fixture as arguments, in this order. */
enum { SIZES = 6 };

/* What of a quantiser's problem says how its outputs lie, as arguments in this order, with a word before them. */
enum { CODES = 6 };
static const char codes_word[] = "codes";

int input_codes(const char *path, const char *scales, const struct gb_fixture *fixture, unsigned timeout_s,
                struct gb_outputs **outputs, struct gb_error *error)
{
    const struct gb_quantisation *q = &fixture->quantisation;
    const uint32_t numbers[CODES] = {q->rows,
                                     q->columns,
                                     (uint32_t)q->quantiser.element,
                                     (uint32_t)q->quantiser.scale,
                                     q->quantiser.block_columns,
                                     (uint32_t)q->layout};
    char texts[CODES][16];
    char *argv[CODES + 6] = {"gaugeblock", "probe", (char *)path, (char *)codes_word, (char *)(scales ? scales : "")};
    for (int i = 0; i < CODES; i++) {
        snprintf(texts[i], sizeof texts[i], "%u", numbers[i]);
        argv[5 + i] = texts[i];
    }
    *outputs = NULL;
    int code = probe(path, argv, -1, timeout_s, error);
    if (code == EXIT_PASS && gb_outputs_read_codes(path, scales, fixture, outputs, error) != GB_OK)
        code = EXIT_USAGE;
    return code;
}

/* What of a problem over ranks says how its outputs lie, likewise. */
enum { RANKS = 11 };
static const char ranks_word[] = "ranks";

static int read_exchange(const char *path, const struct gb_fixture *fixture, unsigned timeout_s,
                         struct gb_outputs **outputs, struct gb_error *error)
{
    const struct gb_exchange *x = &fixture->exchanged.asked;
    const uint32_t numbers[RANKS] = {(uint32_t)fixture->operation,
                                     x->ranks,
                                     x->tokens,
                                     x->hidden,
                                     x->experts,
                                     x->top_k,
                                     x->rows,
                                     (uint32_t)x->quantiser.element,
                                     (uint32_t)x->quantiser.scale,
                                     x->quantiser.block_columns,
                                     x->one_rank};
    char texts[RANKS][16];
    char *argv[RANKS + 5] = {"gaugeblock", "probe", (char *)path, (char *)ranks_word};
    for (int i = 0; i < RANKS; i++) {
        snprintf(texts[i], sizeof texts[i], "%u", numbers[i]);
        argv[4 + i] = texts[i];
    }
    *outputs = NULL;
    int code = probe(path, argv, -1, timeout_s, error);
    if (code == EXIT_PASS && gb_outputs_read(path, fixture, outputs, error) != GB_OK)
        code = EXIT_USAGE;
    return code;
}

int input_outputs(const char *path, const struct gb_fixture *fixture, unsigned timeout_s, struct gb_outputs **outputs,
                  struct gb_error *error)
{
    const struct gb_shape *s = &fixture->shape;
    if (gb_fixture_quantises(fixture))
        return input_codes(path, NULL, fixture, timeout_s, outputs, error);
    if (gb_fixture_exchanges(fixture))
        return read_exchange(path, fixture, timeout_s, outputs, error);
    const uint32_t sizes[SIZES] = {fixture->layers, s->tokens, s->hidden, s->intermediate, s->experts, s->top_k};
    char texts[SIZES][16];
    char *argv[SIZES + 5] = {"gaugeblock", "probe", (char *)path};
    argv[3 + SIZES] = (char *)fixture->activation_recipe;
    for (int i = 0; i < SIZES; i++) {
        snprintf(texts[i], sizeof texts[i], "%u", sizes[i]);
        argv[3 + i] = texts[i];
    }
    *outputs = NULL;
    int code = probe(path, argv, -1, timeout_s, error);
    if (code == EXIT_PASS && gb_outputs_read(path, fixture, outputs, error) != GB_OK)
        code = EXIT_USAGE;
    return code;
}

int input_vector_outputs(const char *path, const char *scales, const char *vectors_path,
                         const struct gb_vectors *vectors, struct gb_vector_outputs **outputs, struct gb_error *error)
{
    char *argv[] = {"gaugeblock", "probe", (char *)path, (char *)vectors_path, (char *)(scales ? scales : ""), NULL};
    *outputs = NULL;
    int code = probe(path, argv, -1, INPUT_TIMEOUT_S, error);
    if (code == EXIT_PASS && gb_vector_outputs_read(path, scales, vectors, outputs, error) != GB_OK)
        code = EXIT_USAGE;
    return code;
}

/* The child. */

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#define SANITISED 1 /* reserves terabytes of addresses */
#else
#define SANITISED 0
#endif

/* Twice the file and what its arrays become in memory (`arrays` bytes), and room for libhdf5's caches and chunks. */
static void limit_memory(const char *path, uint64_t arrays)
{
    enum { ROOM = 1 << 30 };
    struct stat about;
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    int got = file ? fscanf(file, "%llu", &pages) : 0;
    if (file)
        fclose(file);
    if (SANITISED || got != 1 || stat(path, &about))
        return;
    rlim_t bytes = pages * (rlim_t)sysconf(_SC_PAGESIZE) + ROOM + 2 * (rlim_t)about.st_size + 2 * arrays;
    setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes});
}

static enum gb_status probe_outputs(char **argv, struct gb_error *error)
{
    uint64_t sizes[SIZES];
    for (int i = 0; i < SIZES; i++)
        if (!parse_number(argv[2 + i], 1, INT32_MAX, &sizes[i]))
            return gb_fail(error, GB_EINVAL, "%s: is no size", argv[2 + i]);
    struct gb_fixture frame = {
        .layers = (uint32_t)sizes[0],
        .shape = {.tokens = (uint32_t)sizes[1],
                  .hidden = (uint32_t)sizes[2],
                  .intermediate = (uint32_t)sizes[3],
                  .experts = (uint32_t)sizes[4],
                  .top_k = (uint32_t)sizes[5]},
    };
    snprintf(frame.activation_recipe, sizeof frame.activation_recipe, "%s", argv[2 + SIZES]);
    struct gb_outputs *outputs;
    uint64_t layer = sizes[1] * (2 * sizeof(double) * sizes[2] + 2 * sizeof(gb_bf16) * sizes[5] * sizes[3]);
    limit_memory(argv[1], sizes[0] * layer);
    enum gb_status status = gb_outputs_read(argv[1], &frame, &outputs, error);
    gb_outputs_free(outputs);
    return status;
}

static enum gb_status probe_codes(char **argv, struct gb_error *error)
{
    uint64_t numbers[CODES];
    for (int i = 0; i < CODES; i++)
        if (!parse_number(argv[4 + i], 0, INT32_MAX, &numbers[i]))
            return gb_fail(error, GB_EINVAL, "%s: is no size", argv[4 + i]);
    struct gb_quantisation q = {.rows = (uint32_t)numbers[0],
                                .columns = (uint32_t)numbers[1],
                                .quantiser = {.element = (enum gb_element_format)numbers[2],
                                              .scale = (enum gb_scale)numbers[3],
                                              .block_rows = 1,
                                              .block_columns = (uint32_t)numbers[4]},
                                .layout = (enum gb_scale_layout)numbers[5]};
    const struct gb_fixture frame = {.operation = GB_QUANTISE, .quantisation = q};
    struct gb_outputs *outputs;
    size_t codes, scales;
    enum gb_status status = gb_quantiser_bytes(&q.quantiser, q.rows, q.columns, &codes, &scales, error);
    if (status != GB_OK)
        return status;
    limit_memory(argv[1], 2 * (codes + scales));
    status = gb_outputs_read_codes(argv[1], argv[3][0] ? argv[3] : NULL, &frame, &outputs, error);
    gb_outputs_free(outputs);
    return status;
}

static enum gb_status probe_exchange(char **argv, struct gb_error *error)
{
    uint64_t numbers[RANKS];
    for (int i = 0; i < RANKS; i++)
        if (!parse_number(argv[3 + i], 0, INT32_MAX, &numbers[i]))
            return gb_fail(error, GB_EINVAL, "%s: is no size", argv[3 + i]);
    struct gb_fixture frame = {.operation = (enum gb_operator)numbers[0],
                               .exchanged.asked = {.size = sizeof frame.exchanged.asked,
                                                   .ranks = (uint32_t)numbers[1],
                                                   .tokens = (uint32_t)numbers[2],
                                                   .hidden = (uint32_t)numbers[3],
                                                   .experts = (uint32_t)numbers[4],
                                                   .top_k = (uint32_t)numbers[5],
                                                   .rows = (uint32_t)numbers[6],
                                                   .quantiser = {.element = (enum gb_element_format)numbers[7],
                                                                 .scale = (enum gb_scale)numbers[8],
                                                                 .block_columns = (uint32_t)numbers[9]},
                                                   .one_rank = (uint32_t)numbers[10]}};
    struct gb_outputs *outputs;
    uint64_t bytes = 0;
    for (enum gb_exchange_part p = 0; p < GB_EXCHANGE_PARTS; p++)
        bytes += gb_exchange_array(&frame.exchanged.asked, GB_FP32, p).bytes;
    limit_memory(argv[1], bytes);
    enum gb_status status = gb_outputs_read(argv[1], &frame, &outputs, error);
    gb_outputs_free(outputs);
    return status;
}

static enum gb_status probe_vector_outputs(char **argv, struct gb_error *error)
{
    struct gb_vectors *vectors;
    struct gb_vector_outputs *outputs;
    enum gb_status status = gb_vectors_read(argv[2], &vectors, error);
    if (status != GB_OK)
        return status;
    limit_memory(argv[1], gb_vectors_code_bytes(vectors) + gb_vectors_all_scale_bytes(vectors));
    status = gb_vector_outputs_read(argv[1], argv[3][0] ? argv[3] : NULL, vectors, &outputs, error);
    gb_vector_outputs_free(outputs);
    gb_vectors_free(vectors);
    return status;
}

int probe_main(int argc, char **argv)
{
    struct gb_error error;
    enum gb_status status = GB_EINVAL;
#if SANITISED
    __lsan_disable(); /* what libhdf5 leaks over damaged files says nothing of the file */
#endif
    if (argc == 2) {
        limit_memory(argv[1], 0);
        status = gb_fixture_send(argv[1], CHILD_SHARED, &error);
    } else if (argc == 4) {
        status = probe_vector_outputs(argv, &error);
    } else if (argc == 4 + CODES && !strcmp(argv[2], codes_word)) {
        status = probe_codes(argv, &error);
    } else if (argc == 3 + RANKS && !strcmp(argv[2], ranks_word)) {
        status = probe_exchange(argv, &error);
    } else if (argc == 3 + SIZES) {
        status = probe_outputs(argv, &error);
    } else {
        gb_fail(&error, GB_EINVAL, "gaugeblock probe: is run by other commands");
    }
    if (status != GB_OK)
        puts(error.message);
    return status == GB_OK ? EXIT_PASS : EXIT_USAGE;
}
