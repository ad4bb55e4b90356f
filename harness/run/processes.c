/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/processes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/run/clock.h"
#include "harness/run/hash.h"
#include "harness/run/verdict.h"
#include "quant/quant.h"

struct processes processes = {.count = 1};

/* Joining. */

/* What launchers of MPI leave in the environment of every process: Open MPI; MPICH and Slurm's PMI; PMIx. */
static const char *const launchers[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};
/* Where they say how many there are. */
static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};

/* By such a launcher, and not alone. */
static bool launched(void)
{
    bool by_one = false;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        by_one |= getenv(launchers[i]) != NULL;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        by_one &= !getenv(sizes[i]) || strcmp(getenv(sizes[i]), "1");
    return by_one;
}

/* The program of harness/mpi has its own in place of this. */
__attribute__((weak)) enum gb_status processes_start(char **argv, struct gb_error *error)
{
    static const char name[] = "gaugeblock-mpi";
    char path[4096];
    size_t count = 0;
    ssize_t bytes = readlink("/proc/self/exe", path, sizeof path - sizeof name);
    char *end = bytes > 0 ? memrchr(path, '/', (size_t)bytes) : NULL;
    while (argv[count])
        count++;
    char **words = calloc(count + 2, sizeof *words);
    if (end && words) {
        memcpy(end + 1, name, sizeof name);
        words[0] = path;
        memcpy(words + 1, argv, sizeof *argv * count);
        execv(path, words);
    }
    free(words);
    return gb_fail(error, GB_EUNSUPPORTED,
                   "was started by MPI, but %s is not beside it: build where CMake finds MPI (Debian: libopenmpi-dev), "
                   "or start it without mpirun",
                   name);
}

enum gb_status processes_join(char **argv, struct gb_error *error)
{
    return launched() ? processes_start(argv, error) : GB_OK;
}

/* Parcels. */

/* What is known of a parcel before it comes. */
struct announcement {
    uint64_t size;
    int32_t status; /* enum gb_status of who sends it */
    char message[sizeof((struct gb_error){0}.message)];
};

static struct {
    processes_part *part;
    double until;          /* of the one at hand */
    enum gb_status failed; /* which all processes know: nothing is sent behind it */
    struct gb_error error;
    bool lost;
} task;

/* One has not answered: what it would have sent may still come, so that nothing else can be sent. */
static enum gb_status lose(uint32_t missing, struct gb_error *error)
{
    task.lost = true;
    return gb_fail(error, GB_EIO, "process %u of %u has not answered within the time limit", missing, processes.count);
}

/* Ends all where one cannot go on: the others would wait for it. */
static _Noreturn void give_up(const char *reason)
{
    fprintf(stderr, "gaugeblock: process %u of %u: %s\n", processes.process, processes.count, reason);
    processes.abort(EXIT_CRASH);
}

static void *need(size_t bytes)
{
    void *memory = calloc(1, bytes + 1);
    if (!memory)
        give_up("no memory for what is sent and received");
    return memory;
}

/* Every process tells every other how much it sends, and how it is. sizes: [count] */
static enum gb_status announce(enum gb_status mine, const struct gb_parcel *to, size_t *bytes, struct gb_error *error)
{
    const uint32_t count = processes.count;
    struct announcement *sent = need(sizeof *sent * count), *got = need(sizeof *got * count);
    struct gb_parcel *out = need(sizeof *out * count), *in = need(sizeof *in * count);
    enum gb_status status = GB_OK;
    uint32_t missing;
    for (uint32_t q = 0; q < count; q++) {
        sent[q] = (struct announcement){.size = mine == GB_OK ? to[q].size : 0, .status = mine};
        if (mine != GB_OK)
            memcpy(sent[q].message, error->message, sizeof sent[q].message);
        out[q] = (struct gb_parcel){&sent[q], sizeof *sent};
        in[q] = (struct gb_parcel){&got[q], sizeof *got};
    }
    if (!processes.swap(out, in, task.until, &missing))
        status = lose(missing, error);
    for (uint32_t q = 0; status == GB_OK && q < count; q++) {
        bytes[q] = got[q].size;
        if (got[q].status == GB_OK)
            continue;
        got[q].message[sizeof got[q].message - 1] = '\0';
        status = q ? gb_fail(error, (enum gb_status)got[q].status, "process %u of %u: %.440s", q, count, got[q].message)
                   : gb_fail(error, (enum gb_status)got[q].status, "%s", got[q].message);
    }
    free(sent);
    free(got);
    free(out);
    free(in);
    return status;
}

/* As struct gb_processes has it. */
static enum gb_status carry(const struct gb_processes *all, enum gb_status mine, const struct gb_parcel *to,
                            struct gb_parcel *from, struct gb_error *error)
{
    uint32_t missing;
    if (task.failed != GB_OK) {
        *error = task.error;
        return task.failed;
    }
    size_t *bytes = need(sizeof *bytes * all->count);
    enum gb_status status = announce(mine, to, bytes, error);
    if (status == GB_OK) {
        for (uint32_t q = 0; q < all->count; q++)
            from[q] = (struct gb_parcel){need(bytes[q]), bytes[q]};
        if (!processes.swap(to, from, task.until, &missing))
            status = lose(missing, error);
    }
    free(bytes);
    if (status != GB_OK)
        task.error = *error;
    return task.failed = status;
}

/* Leading and following. */

enum { PATIENCE_S = 10 }; /* with process 0, which says what happened, and with the others at its end */

/* What process 0 says to another. */
struct word {
    bool end;
    int code;           /* the exit code, at the end */
    unsigned timeout_s; /* of the task otherwise */
    size_t size;        /* of its part */
};

/* From process 0 to all; words, parts: [count], NULL in the others. False: *missing does not take or send it. */
static bool tell(const struct word *words, const struct gb_parcel *parts, struct word *word, struct gb_parcel *part,
                 uint32_t *missing)
{
    const uint32_t count = processes.count;
    struct gb_parcel *to = need(sizeof *to * count), *from = need(sizeof *from * count);
    for (uint32_t q = 0; words && q < count; q++)
        to[q] = (struct gb_parcel){(void *)&words[q], sizeof *words};
    from[0] = (struct gb_parcel){word, sizeof *word};
    bool good = processes.swap(to, from, task.until, missing);
    if (good && !word->end) {
        task.failed = GB_OK;
        from[0] = *part = (struct gb_parcel){need(word->size), word->size};
        task.until = clock_seconds() + word->timeout_s;
        good = processes.swap(parts ? parts : to, from, task.until, missing);
    }
    free(to);
    free(from);
    return good;
}

/* This process's part, whose result goes to process 0. results: [count], or NULL. */
static enum gb_status do_part(const struct gb_parcel *part, struct gb_parcel *results, struct gb_error *error)
{
    const struct gb_processes all = {.process = processes.process, .count = processes.count, .exchange = carry};
    struct gb_parcel *to = need(sizeof *to * all.count), *from = need(sizeof *from * all.count);
    enum gb_status status = task.part(&all, part, &to[0], error);
    status = carry(&all, status, to, from, error);
    free(to[0].bytes);
    for (uint32_t q = 0; q < all.count; q++)
        if (results && status == GB_OK)
            results[q] = from[q];
        else
            free(from[q].bytes);
    free(to);
    free(from);
    return status;
}

enum gb_status processes_task(const struct gb_parcel *parts, unsigned timeout_s, struct gb_parcel *results, bool *lost,
                              struct gb_error *error)
{
    struct word *words = need(sizeof *words * processes.count), word;
    struct gb_parcel part = {0};
    enum gb_status status = GB_OK;
    uint32_t missing;
    *lost = false;
    if (task.lost) {
        free(words);
        return gb_fail(error, GB_EUNSUPPORTED, "a process has not answered before");
    }
    for (uint32_t q = 0; q < processes.count; q++)
        words[q] = (struct word){.timeout_s = timeout_s, .size = parts[q].size};
    task.until = clock_seconds() + timeout_s;
    if (!tell(words, parts, &word, &part, &missing))
        status = lose(missing, error);
    if (status == GB_OK)
        status = do_part(&part, results, error);
    free(part.bytes);
    free(words);
    *lost = task.lost;
    return status;
}

/* Does its parts until process 0 ends, whose exit code it returns. */
static int follow(void)
{
    for (;;) {
        struct word word;
        struct gb_parcel part = {0};
        struct gb_error error;
        uint32_t missing;
        task.until = 0.0;
        if (!tell(NULL, NULL, &word, &part, &missing))
            lose(missing, &error);
        else if (word.end)
            return word.code;
        else
            do_part(&part, NULL, &error);
        free(part.bytes);
        if (task.lost) {
            sleep(PATIENCE_S + processes.process); /* one of them speaks first */
            give_up(error.message);
        }
    }
}

/* Process 0 ends, in whatever way: the others end with its exit code. */
static void dismiss(int code, void *unused)
{
    (void)unused;
    if (task.lost)
        processes.abort(code);
    struct word *words = need(sizeof *words * processes.count), word;
    uint32_t missing;
    for (uint32_t q = 0; q < processes.count; q++)
        words[q] = (struct word){.end = true, .code = code};
    task.until = clock_seconds() + PATIENCE_S;
    if (!tell(words, NULL, &word, NULL, &missing))
        processes.abort(code);
    free(words);
}

/* Every process's arguments are those of process 0. */
static enum gb_status compare_words(char *const *argv, struct gb_error *error)
{
    enum { HASH = 65 };
    const uint32_t count = processes.count;
    struct gb_parcel *to = need(sizeof *to * count), *from = need(sizeof *from * count);
    char own[HASH], *hashes = need((size_t)HASH * count), *words = need(0);
    size_t size = 0;
    uint32_t missing, other = 0;
    for (; *argv; size += strlen(*argv++) + 1) {
        words = realloc(words, size + strlen(*argv) + 1);
        if (!words)
            give_up("no memory for its arguments");
        memcpy(words + size, *argv, strlen(*argv) + 1);
    }
    hash_sha256(words, size, own);
    for (uint32_t q = 0; q < count; q++) {
        to[q] = (struct gb_parcel){own, HASH};
        from[q] = (struct gb_parcel){hashes + (size_t)q * HASH, HASH};
    }
    processes.swap(to, from, 0.0, &missing);
    while (other < count && !memcmp(hashes + (size_t)other * HASH, hashes, HASH))
        other++;
    free(to);
    free(from);
    free(hashes);
    free(words);
    return other == count ? GB_OK
                          : gb_fail(error, GB_EINVAL,
                                    "process %u of %u was started with other arguments than process 0: give all the "
                                    "same, or start each without mpirun",
                                    other, count);
}

enum gb_status processes_lead(char *const *argv, processes_part *part, bool *leads, int *code, struct gb_error *error)
{
    task.part = part;
    *leads = processes.process == 0;
    if (processes.count == 1)
        return GB_OK;
    enum gb_status status = compare_words(argv, error);
    if (*leads)
        on_exit(dismiss, NULL);
    else
        *code = follow();
    return *leads ? status : GB_OK;
}
