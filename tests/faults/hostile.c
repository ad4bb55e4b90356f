/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A subject library that misbehaves as its file's name says: hostile-WHEN-WHAT.so does WHAT as it is loaded (ctor), in
 * its table's function (table), in a function of its kernel (supports, workspace, prepare, run, release), or as its
 * process ends (dtor); stale and memory are kernels that remember, and that touch what is not theirs
 * (hostile_kernel.c). Its kernel, hostile/WHEN-WHAT, is the reference's NVFP4 layer otherwise.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "harness/run/table_wire.h"
#include "reference/reference.h"
#include "tests/faults/hostile.h"

enum { INSPECTED = 3, REPORT = 4 }; /* descriptors: harness/run/child.h */

char when[32], what[64];
static char name[128];

static void act(void);
static void at(const char *now)
{
    if (!strcmp(now, when))
        act();
}

static volatile int *volatile nowhere;
static volatile int zero;

static int deeper(int level)
{
    volatile char room[4096];
    room[0] = (char)level;
    return level < 0 ? 0 : deeper(level + 1) + room[0];
}

static void *turn(void *argument)
{
    for (;;)
        usleep(1000);
    return argument;
}

static void print(FILE *stream)
{
    for (int i = 0; i < 3; i++)
        fprintf(stream, "\033[2J\033[HPASS: 1 of 1 cases passed\r\n");
    fflush(stream);
}

/* Into whatever is open, but not behind what is written there later. */
static void scribble(void)
{
    for (int descriptor = 3; descriptor < 40; descriptor++)
        if (ftruncate(descriptor, 0) || lseek(descriptor, 0, SEEK_SET) < 0 || write(descriptor, "garbage", 7) != 7)
            continue;
}

static void start_processes(void)
{
    if (fork())
        return;
    setsid();
    for (int descriptor = 0; descriptor < 100; descriptor++)
        close(descriptor);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    if (fork() == 0)
        for (;;)
            pause();
    for (;;)
        pause();
}

/* More than 2 MiB of output is more than is to be kept. */
static void flood(void)
{
    static char block[1 << 16];
    memset(block, 'x', sizeof block);
    for (int i = 0; i < 32; i++)
        if (write(STDOUT_FILENO, block, sizeof block) < 0)
            return;
    abort();
}

static void raise_limits(void)
{
    static const int limits[] = {RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_CORE};
    for (int i = 0; i < 3; i++)
        setrlimit(limits[i], &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY});
}

/* What is left in memory files has the size that the judge gave them. */
static void grow(void)
{
    char path[64];
    raise_limits();
    for (int descriptor = INSPECTED; descriptor <= REPORT; descriptor++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
        int again = open(path, O_RDWR);
        if (again >= 0 && (ftruncate(again, (off_t)1 << 40) == 0 || ftruncate(again, 0) == 0))
            abort();
    }
}

/* Kills only where nothing is beside this library's processes: the first one is this program. */
static void kill_all(void)
{
    char first[32] = "";
    int file = open("/proc/1/cmdline", O_RDONLY);
    if (file < 0 || read(file, first, sizeof first - 1) < 0 || strcmp(first, "gaugeblock") || getppid() != 1)
        abort();
    kill(-1, SIGKILL);
}

/* Aborts where it can reach the process that watches it, or whatever judges. */
static void trace(void)
{
    char path[64], line[256], word = 'x';
    struct iovec own = {&word, 1}, other = {(void *)(uintptr_t)&zero, 1};
    for (long process = 0; process < 65536; process = process ? process + 1 : getppid()) {
        snprintf(path, sizeof path, "/proc/self/task/%ld", process); /* a thread of this process */
        bool own_one = access(path, F_OK) == 0;
        snprintf(path, sizeof path, "/proc/%ld/mem", process);
        int file = own_one ? -1 : open(path, O_RDWR);
        if (file >= 0 || (process == getppid() && (process_vm_writev((pid_t)process, &own, 1, &other, 1, 0) >= 0 ||
                                                   ptrace(PTRACE_SEIZE, process, NULL, NULL) == 0)))
            abort();
    }
    /* What lies under the namespace's own /proc. */
    if (umount2("/proc", MNT_DETACH) == 0 || (errno != EPERM && errno != EINVAL))
        abort();
    FILE *file = fopen("/proc/self/status", "r");
    if (!file || !fgets(line, sizeof line, file))
        abort();
    fclose(file);
}

/* Into the memory that the fixture came in, by whatever way there is to it. */
static void change_fixture(void)
{
    char path[64], line[512];
    unsigned long first, last;
    for (int descriptor = INSPECTED; descriptor < 64; descriptor++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
        ssize_t length = readlink(path, line, sizeof line - 1);
        line[length > 0 ? length : 0] = '\0';
        int file = strstr(line, "fixture") ? open(path, O_RDWR) : -1;
        if (file >= 0 && (ftruncate(file, 0) == 0 || pwrite(file, line, sizeof line, 0) > 0))
            abort();
    }
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        if (!strstr(line, "memfd:fixture") || sscanf(line, "%lx-%lx", &first, &last) != 2)
            continue;
        snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", first, last);
        int file = open(path, O_RDWR);
        if (file >= 0 && (ftruncate(file, 0) == 0 || pwrite(file, line, sizeof line, 0) > 0))
            abort();
    }
    if (maps)
        fclose(maps);
}

/* Memory that processes share outlives them. */
static void leave_memory(void)
{
    int file = shm_open("/gaugeblock-hostile", O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, 4096) || shmget(0x6b0b, 4096, IPC_CREAT | 0600) < 0)
        abort();
}

/* A few hundred processes, each of which starts others for as long as there are fewer. */
static void multiply(void)
{
    static const int most = 8;
    const pid_t first = getpid();
    for (int generation = 0; generation < most; generation++)
        if (fork() == 0)
            setsid();
    if (getpid() == first)
        return;
    for (;;)
        pause();
}

/* What root may do, and a subject may not. */
static void use_powers(void)
{
    char host[256];
    if (gethostname(host, sizeof host) || sethostname(host, strlen(host)) == 0 ||
        mount("none", "/mnt", "tmpfs", 0, NULL) == 0 || chroot("/") == 0 || unshare(CLONE_NEWNS) == 0 ||
        setrlimit(RLIMIT_CORE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}) == 0 || setuid(12345) == 0 ||
        setpriority(PRIO_PROCESS, 0, -10) == 0 ||
        sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1}) == 0 ||
        open("/proc/sys/kernel/core_pattern", O_WRONLY) >= 0)
        abort();
}

static void quit(void)
{
    _exit(0);
}

static void swallow(int number)
{
    (void)number;
    _exit(0);
}

/* As an exception that nobody catches. */
static void terminate(void)
{
    void *library = dlopen("libstdc++.so.6", RTLD_NOW);
    void (*function)(void) = NULL;
    if (library)
        *(void **)&function = dlsym(library, "_ZSt9terminatev");
    if (!function)
        abort();
    function();
}

static jmp_buf gone;

__attribute__((noinline)) static void mark(void)
{
    if (setjmp(gone))
        abort();
}

/* Into a function that has returned. */
static void jump(void)
{
    mark();
    zero = deeper(-1);
    longjmp(gone, 1);
}

/* What the program that started the judge had open, by the name that the test gave it. */
static void find_callers(void)
{
    char path[64], name_of[4096];
    for (int descriptor = 0; descriptor < 1024; descriptor++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
        ssize_t length = readlink(path, name_of, sizeof name_of - 1);
        name_of[length > 0 ? length : 0] = '\0';
        if (strstr(name_of, "of-the-caller"))
            abort();
    }
}

static void use_up_descriptors(void)
{
    while (open("/dev/null", O_RDONLY) >= 0)
        ;
}

/* More of what a constructor, a table function or a kernel can do: each returns, ends or hangs the process. */
static void act_more(void)
{
    static const struct {
        const char *what;
        void (*function)(void);
    } acts[] = {{"traces", trace},        {"fixture", change_fixture},
                {"shared", leave_memory}, {"multiplies", multiply},
                {"powers", use_powers},   {"terminates", terminate},
                {"jumps", jump},          {"descriptors", use_up_descriptors},
                {"callers", find_callers}};
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (!strcmp(what, acts[i].what))
            acts[i].function();
    if (!strcmp(what, "quick"))
        quick_exit(0);
    if (!strcmp(what, "atexit"))
        atexit(quit);
    if (!strcmp(what, "aborts-last"))
        atexit(abort);
    if (!strcmp(what, "swallows")) {
        signal(SIGSEGV, swallow);
        *nowhere = 1;
    }
    if (!strcmp(what, "reads-input"))
        while (getchar() != EOF)
            ;
    if (!strcmp(what, "sandbox"))
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    if (!strcmp(what, "memory-limit"))
        setrlimit(RLIMIT_AS, &(struct rlimit){1 << 20, 1 << 20});
    if (!strcmp(what, "file-limit")) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, 0});
    }
    if (!strcmp(what, "one-processor"))
        sched_setaffinity(0, sizeof(cpu_set_t), &(cpu_set_t){{1}});
    if (!strcmp(what, "slow"))
        setpriority(PRIO_PROCESS, 0, 19);
    if (!strcmp(what, "sleeps"))
        usleep(100000);
    if (!strcmp(what, "outlives")) { /* its starter */
        prctl(PR_SET_PDEATHSIG, 0);
        for (;;)
            pause();
    }
    if (!strcmp(what, "undumpable"))
        prctl(PR_SET_DUMPABLE, 0);
    if (!strcmp(what, "unlinks")) {
        char folder[] = "/tmp/gaugeblock-hostile-XXXXXX";
        if (mkdtemp(folder) && chdir(folder) == 0)
            rmdir(folder);
    }
}

/* What the harness leaves a subject: a core is not written, time and files end, and it is the first to end where memory
 * does. */
static void expect_limits(void)
{
    struct rlimit core, seconds, bytes;
    char first[8] = "";
    int file = open("/proc/self/oom_score_adj", O_RDONLY);
    if (file >= 0 && read(file, first, sizeof first - 1) > 0 && strcmp(first, "1000\n"))
        abort();
    close(file);
    if (getrlimit(RLIMIT_CORE, &core) || getrlimit(RLIMIT_CPU, &seconds) || getrlimit(RLIMIT_FSIZE, &bytes) ||
        core.rlim_max || seconds.rlim_max == RLIM_INFINITY || bytes.rlim_max == RLIM_INFINITY)
        abort();
}

static void act(void)
{
    expect_limits();
    act_more();
    hostile_files();
    if (!strcmp(what, "exit"))
        exit(0);
    if (!strcmp(what, "_exit"))
        _exit(0);
    if (!strcmp(what, "_exit1"))
        _exit(1);
    if (!strcmp(what, "abort"))
        abort();
    if (!strcmp(what, "segv"))
        *nowhere = 1;
    if (!strcmp(what, "fpe"))
        zero = 77 / zero;
    if (!strcmp(what, "stack"))
        zero = deeper(0);
    if (!strcmp(what, "hang"))
        for (;;)
            pause();
    if (!strcmp(what, "stop"))
        raise(SIGSTOP);
    if (!strcmp(what, "exec"))
        execl("/bin/echo", "echo", "PASS", NULL);
    if (!strcmp(what, "timer")) {
        setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 1}}, NULL);
        pause();
    }
    if (!strcmp(what, "closes"))
        for (int descriptor = 0; descriptor < 200; descriptor++)
            close(descriptor);
    if (!strcmp(what, "group") && getsid(0) == getpid())
        kill(0, SIGKILL);
    if (!strcmp(what, "parent"))
        kill(getppid(), SIGKILL);
    if (!strcmp(what, "orphans") || !strcmp(what, "freezes")) { /* where it can reach the process that watches it */
        start_processes();
        kill(getppid(), !strcmp(what, "orphans") ? SIGKILL : SIGSTOP);
    }
    if (!strcmp(what, "all"))
        kill_all();
    if (!strcmp(what, "prints"))
        print(stdout), print(stderr);
    if (!strcmp(what, "terminal")) {
        FILE *terminal = fopen("/dev/tty", "w");
        if (terminal)
            print(terminal), fclose(terminal);
    }
    if (!strcmp(what, "floods"))
        flood();
    if (!strcmp(what, "forks"))
        start_processes();
    if (!strcmp(what, "thread"))
        pthread_create(&(pthread_t){0}, NULL, turn, NULL);
    if (!strcmp(what, "scribbles"))
        scribble();
    if (!strcmp(what, "grows"))
        grow();
    if (!strcmp(what, "limits"))
        raise_limits();
    if (!strcmp(what, "folder") && chdir("/"))
        abort();
    if (!strcmp(what, "mask"))
        umask(0777);
    if (!strcmp(what, "clears"))
        clearenv();
    if (!strcmp(what, "signals"))
        for (int number = 1; number < 32; number++)
            signal(number, SIG_IGN);
    if (!strcmp(what, "rounding"))
        fesetround(FE_TOWARDZERO);
    if (!strcmp(what, "traps"))
        feenableexcept(FE_ALL_EXCEPT);
#ifdef __SSE__
    if (!strcmp(what, "flushes"))
        _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}

/* These are the library's own, and no one else's. */
#define OWN(name)                                                                                                      \
    GB_API int own_##name(void) __asm__(#name);                                                                        \
    int own_##name(void)                                                                                               \
    {                                                                                                                  \
        abort();                                                                                                       \
    }
OWN(json_dump_callback)
OWN(json_pack)
OWN(H5Fcreate)
OWN(H5Dwrite)
OWN(gb_weights_row)
OWN(worker_main)
OWN(environment_reset)
OWN(memcmp)
OWN(nanosleep)
OWN(posix_fallocate)
OWN(strtoul)

/* Whatever was done to it, every call begins in the default floating-point environment. */
static void check_environment(void)
{
    bool good = fegetround() == FE_TONEAREST && !fegetexcept();
#ifdef __SSE__
    good = good && !(_mm_getcsr() & 0x8040);
#endif
    if (!good)
        abort();
}

static const struct gb_kernel *reference(void)
{
    const struct gb_kernel_table *table = gb_reference_kernels();
    for (uint32_t i = 0; i < table->count; i++)
        if (!strcmp(table->kernels[i].name, "cpu/nvfp4-layer"))
            return &table->kernels[i];
    abort();
}

static enum gb_status supports(const struct gb_problem *problem, struct gb_error *error)
{
    check_environment();
    at("supports");
    if (!strcmp(when, "message")) {
        memset(error->message, strcmp(what, "endless") ? 0 : 'x', sizeof error->message);
        if (strcmp(what, "endless"))
            memcpy(error->message, "\033[2J\rPASS\nPASS", 14);
        return GB_EUNSUPPORTED;
    }
    return !strcmp(when, "status") ? (enum gb_status)99 : reference()->supports(problem, error);
}

static size_t workspace(const struct gb_problem *problem)
{
    check_environment();
    at("workspace");
    if (!strncmp(what, "workspace-", 10))
        return HOSTILE_WORKSPACE;
    if (!strcmp(when, "large"))
        return (size_t)1 << 40;
    return strcmp(when, "endless") ? reference()->workspace ? reference()->workspace(problem) : 0 : SIZE_MAX - 4096;
}

static enum gb_status prepare(const struct gb_arguments *arguments, void **prepared, struct gb_error *error)
{
    (void)arguments;
    (void)error;
    check_environment();
    at("prepare");
    *prepared = name;
    return GB_OK;
}

static void release(void *prepared)
{
    (void)prepared;
    check_environment();
    at("release");
}

/* As if all had gone well; or a report without one of its parts, and times with a part that is not positive. */
static void report(void)
{
    static const char *const times[] = {"copies", "runs", "bytes", "run_ns", "read_ns", "large_ns"};
    char text[1024] = "{\"batches\": [{}], \"routing\": [{}], \"seconds\": [-1]";
    if (strcmp(what, "status"))
        strcat(text, ", \"status\": 0");
    if (strcmp(what, "message"))
        strcat(text, ", \"message\": \"\"");
    strcat(text, ", \"timing\": [{\"launches\": 1");
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        const char *wrong = !strcmp(what, times[i]) ? "0" : "7";
        snprintf(text + strlen(text), sizeof text - strlen(text), i < 3 ? ", \"%s\": %s" : ", \"%s\": [5, %s]",
                 times[i], wrong);
    }
    strcat(text, "}]}");
    if (pwrite(REPORT, text, strlen(text) + 1, 0) < 0)
        abort();
    _exit(0);
}

static enum gb_status run(const struct gb_arguments *arguments, struct gb_error *error)
{
    struct gb_arguments given = *arguments;
    given.prepared = NULL;
    if (!strcmp(when, "report"))
        report();
    check_environment();
    at("run");
    return hostile_run(reference(), &given, error);
}

static struct gb_kernel kernels[5000];
static struct gb_kernel_table table = {.abi_version = GB_ABI_VERSION, .kernel_size = sizeof *kernels, .count = 1};

/* The field that the name says is wrong. */
static void spoil(void)
{
    static char long_name[300];
    struct gb_kernel *k = &kernels[0];
    memset(long_name, 'n', sizeof long_name - 1);
    if (!strcmp(what, "abi"))
        table.abi_version = 77;
    if (!strcmp(what, "size"))
        table.kernel_size = 8;
    if (!strcmp(what, "address"))
        table.kernels = (const struct gb_kernel *)64;
    if (!strcmp(what, "none"))
        table.kernels = NULL;
    if (!strcmp(what, "endless"))
        table.count = UINT32_MAX;
    if (!strcmp(what, "many")) {
        table.count = 5000;
        for (int i = 1; i < 5000; i++)
            kernels[i] = kernels[0];
    }
    if (!strcmp(what, "most"))
        for (table.count = MAX_KERNELS; k < &kernels[MAX_KERNELS - 1]; k++) {
            static char names[MAX_KERNELS][32];
            snprintf(names[k - kernels], sizeof *names, "other/%td", k - kernels);
            k[1] = kernels[0];
            k[1].name = names[k - kernels];
        }
    if (!strcmp(what, "twice")) { /* with another one between them */
        table.count = 3;
        kernels[1] = kernels[2] = kernels[0];
        kernels[1].name = "other/0";
    }
    if (!strcmp(what, "nameless"))
        k->name = NULL;
    if (!strcmp(what, "empty"))
        k->name = "";
    if (!strcmp(what, "unprintable"))
        k->name = "hostile/\033[2J";
    if (!strcmp(what, "long"))
        k->name = long_name;
    if (!strcmp(what, "nowhere"))
        k->name = (const char *)64;
    if (!strcmp(what, "order"))
        k->order = "fma32/1\nPASS";
    if (!strcmp(what, "operator"))
        k->operation = (enum gb_operator)99;
    if (!strcmp(what, "activations"))
        k->activations = (enum gb_format)99;
    if (!strcmp(what, "output"))
        k->output = GB_NVFP4;
    if (!strcmp(what, "bits"))
        k->accumulator_bits = 1u << 31;
    if (!strcmp(what, "rounding"))
        k->roundings.slot = (enum gb_format)99;
    if (!strcmp(what, "routes")) {
        k->operation = GB_DOWN;
        k->flags |= GB_ROUTES;
    }
    if (!strcmp(what, "supports"))
        k->supports = NULL;
    if (!strcmp(what, "run"))
        k->run = NULL;
}

/* gaugeblock guard table LIBRARY */
static bool table_asked(void)
{
    char line[4096] = "", *word = line;
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t length = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file)
        fclose(file);
    for (int i = 0; i < 2 && word < line + length; i++)
        word += strlen(word) + 1;
    return !strcmp(word, "table");
}

/* What the process that reads tables would have written, but wrong; that process ends. */
static void forge(void)
{
    struct wire_head head = {.state = WIRE_READ, .count = 1};
    struct wire_kernel k[2] = {{.name = "hostile/forged",
                                .order = "fma32/1",
                                .operation = GB_LAYER,
                                .weights = GB_NVFP4,
                                .activations = GB_BF16,
                                .output = GB_FP32,
                                .accumulator_bits = 24}};
    if (!table_asked())
        return;
    memcpy(k[0].name, name, sizeof k[0].name);
    if (!strcmp(what, "count"))
        head.count = UINT32_MAX;
    if (!strcmp(what, "state"))
        head.state = 77;
    if (!strcmp(what, "name"))
        memset(k[0].name, 'n', sizeof k[0].name);
    if (!strcmp(what, "order"))
        memset(k[0].order, 'o', sizeof k[0].order);
    if (!strcmp(what, "unprintable"))
        strcpy(k[0].name, "a\033[2J");
    if (!strcmp(what, "operator"))
        k[0].operation = UINT32_MAX;
    if (!strcmp(what, "rounding"))
        k[0].roundings[1] = 99;
    if (!strcmp(what, "twice"))
        head.count = 2;
    if (!strcmp(what, "flags")) /* of a kernel that the library does not have */
        k[0].flags = GB_ROUTES | GB_STAGE_OUTPUTS;
    if (!strcmp(what, "format"))
        k[0].output = GB_BF16;
    if (!strcmp(what, "message")) {
        head.state = WIRE_REFUSED;
        memset(head.message, 'm', sizeof head.message);
    }
    k[1] = k[0];
    if (pwrite(INSPECTED, &head, sizeof head, 0) < 0 || pwrite(INSPECTED, k, sizeof k, sizeof head) < 0)
        abort();
    _exit(0);
}

__attribute__((constructor)) static void load(void)
{
    Dl_info info;
    char path[4096];
    if (!dladdr((const void *)&load, &info))
        abort();
    snprintf(path, sizeof path, "%s", strrchr(info.dli_fname, '/') + 1);
    if (sscanf(path, "hostile-%31[^-]-%63[^.]", when, what) != 2)
        abort();
    snprintf(name, sizeof name, "hostile/%s-%s", when, what);
    kernels[0] = *reference();
    kernels[0].name = name;
    kernels[0].supports = supports;
    kernels[0].workspace = workspace;
    kernels[0].prepare = prepare;
    kernels[0].release = release;
    kernels[0].run = run;
    table.kernels = kernels;
    if (!strcmp(when, "known")) /* it keeps outputs alone */
        kernels[0].flags &= ~(uint32_t)GB_STAGE_OUTPUTS;
    if (!strcmp(when, "field"))
        spoil();
    if (!strcmp(when, "forged"))
        forge();
    at("ctor");
}

__attribute__((destructor)) static void unload(void)
{
    at("dtor");
}

GB_API const struct gb_kernel_table *gb_kernels(void);

const struct gb_kernel_table *gb_kernels(void)
{
    at("table");
    return strcmp(when, "null") ? &table : NULL;
}
