/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process between the program and code that is not ours. It gives that code a PID namespace where the kernel
 * allows; where it does not, it adopts whatever the code starts and leaves. All of it ends with the code itself, or
 * when the lifeline closes: the program gave up, or is gone, however it went.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/run/adopted.h"
#include "harness/run/child.h"
#include "harness/run/library.h"
#include "harness/run/verdict.h"
#include "harness/run/worker.h"

/* What is run in the child, where no code of this process's runs. */
struct task {
    int (*run)(int argc, char **argv);
    int argc;
    char **argv;
};

/* A pipe that SIGCHLD writes to, in whichever thread it arrives: libraries have started some. */
static int endings[2];

static void note_ending(int signal)
{
    (void)signal;
    int reason = errno;
    if (write(endings[1], "", 1) < 0)
        errno = reason; /* full: there is enough to read */
}

static bool listen_for_endings(void)
{
    struct sigaction action = {.sa_handler = note_ending, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    return pipe2(endings, O_CLOEXEC | O_NONBLOCK) == 0 && sigaction(SIGCHLD, &action, NULL) == 0;
}

/* Waits for the child and for those that it left to us. Returns whether it ended before the lifeline did. */
static bool watch(pid_t child, int *status)
{
    struct pollfd events[] = {{STDIN_FILENO, 0, 0}, {endings[0], POLLIN, 0}};
    for (;;) {
        char noted[64];
        if (poll(events, 2, -1) < 0 && errno != EINTR)
            return false;
        if (read(endings[0], noted, sizeof noted) > 0)
            for (pid_t ended; (ended = waitpid(-1, status, WNOHANG | __WALL)) > 0;)
                if (ended == child)
                    return true;
        if (events[0].revents)
            return false;
    }
}

static bool put(const char *path, const char *text)
{
    int file = open(path, O_WRONLY | O_CLOEXEC);
    bool good = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);
    if (file >= 0)
        close(file);
    return good;
}

/* What root may do beyond its own files is nothing that a kernel needs: to trace other processes, to mount, to set the
 * clock. Others have no powers outside the user namespace that they may be in, and none are left inside. */
static bool is_kept(unsigned power)
{
    static const unsigned kept[] = {CAP_CHOWN,    CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID,
                                    CAP_IPC_LOCK, CAP_MKNOD};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (kept[i] == power)
            return geteuid() == 0;
    return false;
}

/* Out of the bounding set, so that no exec gives them back, and out of what is had. */
static bool drop_powers(void)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct had[_LINUX_CAPABILITY_U32S_3];
    if (syscall(SYS_capget, &head, had))
        return false;
    for (unsigned power = 0; power <= CAP_LAST_CAP; power++) {
        struct __user_cap_data_struct *word = &had[CAP_TO_INDEX(power)];
        if (is_kept(power))
            continue;
        if (prctl(PR_CAPBSET_READ, power) == 1)
            prctl(PR_CAPBSET_DROP, power);
        word->effective &= ~CAP_TO_MASK(power);
        word->permitted &= ~CAP_TO_MASK(power);
        word->inheritable &= ~CAP_TO_MASK(power);
    }
    return syscall(SYS_capset, &head, had) == 0;
}

/* Closes what is this process's own, as exec would. */
static void close_own(void)
{
    enum { OWN = 16 }; /* more than there are */
    for (int descriptor = CHILD_SHARED; descriptor < CHILD_SHARED + MAX_SHARED + OWN; descriptor++) {
        int flags = fcntl(descriptor, F_GETFD);
        if (flags >= 0 && flags & FD_CLOEXEC)
            close(descriptor);
    }
}

/* The child's part: a copy of this process, which has loaded what that needs and computed nothing. It has nothing of
 * what the guard has: no lifeline, no other descriptor, no power, and it can be looked at. */
static _Noreturn void begin_child(const struct task *task, pid_t parent)
{
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    signal(SIGCHLD, SIG_DFL);
    if (getppid() != parent || nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || !drop_powers())
        _exit(EXIT_CRASH);
    close_own();
    prctl(PR_SET_DUMPABLE, 1);
    exit(task->run(task->argc, task->argv));
}

/* Runs the child until it or the lifeline ends. Returns 0 and how the child ended, otherwise EXIT_CRASH. */
static int tend(const struct task *task, int *status)
{
    const pid_t parent = getpid();
    put("/proc/self/oom_score_adj", "1000"); /* it ends first where memory does */
    prctl(PR_SET_DUMPABLE, 0); /* the child cannot trace this process; before, /proc/self would not be this user's */
    pid_t child = listen_for_endings() ? fork() : -1;
    if (child == 0)
        begin_child(task, parent);
    if (child < 0) {
        fprintf(stderr, "gaugeblock guard: cannot start a process: %s\n", strerror(errno));
        return EXIT_CRASH;
    }
    return watch(child, status) ? 0 : EXIT_CRASH;
}

/* Whether children of this process begin a PID namespace: what is in it can signal nothing outside, and ends with the
 * first of them, its shared memory too. Who may not have one as he is may have it in a user namespace, where he stays
 * who he is. */
static bool unshare_processes(void)
{
    char user[64], group[64];
    snprintf(user, sizeof user, "%u %u 1", (unsigned)geteuid(), (unsigned)geteuid());
    snprintf(group, sizeof group, "%u %u 1", (unsigned)getegid(), (unsigned)getegid());
    const int apart = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC;
    return unshare(apart) == 0 || (unshare(CLONE_NEWUSER | apart) == 0 && put("/proc/self/uid_map", user) &&
                                   put("/proc/self/setgroups", "deny") && put("/proc/self/gid_map", group));
}

/* Where shared memory has names. Nothing that the child is to find lies there: one of its own can take its place. */
#define SHARED_FOLDER "/dev/shm"

static bool is_free(char **argv)
{
    char folder[PATH_MAX];
    bool used = !getcwd(folder, sizeof folder) || !strncmp(folder, SHARED_FOLDER, strlen(SHARED_FOLDER));
    for (int i = 0; argv[i]; i++)
        used |= !strncmp(argv[i], SHARED_FOLDER, strlen(SHARED_FOLDER));
    return !used && access(SHARED_FOLDER, F_OK) == 0;
}

/* A /proc of the namespace's own, without which libraries that look themselves up there find another (CUDA's driver
 * does not start), and shared memory that ends with it. */
static bool mount_own(char **argv)
{
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0 &&
           (!is_free(argv) || mount("shm", SHARED_FOLDER, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") == 0);
}

/* Settings of the kernel, by which root could leave the namespace or stop what watches it, are there to read. Where
 * this cannot be had (a user namespace) they are not this user's to write. */
static void protect_settings(void)
{
    static const char *const folders[] = {"/proc/sys", "/sys"};
    struct mount_attr read_only = {.attr_set = MOUNT_ATTR_RDONLY};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (mount(folders[i], folders[i], NULL, MS_BIND | MS_REC, NULL) == 0)
            (void)syscall(SYS_mount_setattr, -1, folders[i], AT_RECURSIVE, &read_only, sizeof read_only);
}

static void tell(int descriptor, int what)
{
    if (write(descriptor, &what, sizeof what) != (ssize_t)sizeof what)
        _exit(EXIT_CRASH);
}

/* The first process of a namespace: no signal from within ends it, and its end ends all the others. It tells when it
 * is ready and how the child ended, since it could not end by the same signal. */
static _Noreturn void begin_namespace(const struct task *task, int descriptor)
{
    int status;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!mount_own(task->argv))
        _exit(EXIT_CRASH);
    protect_settings();
    tell(descriptor, 0);
    if (tend(task, &status) == 0)
        tell(descriptor, status);
    _exit(0);
}

/* Tends the child in a namespace. Returns false where the kernel gives none; *code and *status: as of tend. */
static bool tend_apart(const struct task *task, int *code, int *status)
{
    int told[2], ready, ignored;
    *code = EXIT_CRASH;
    if (pipe2(told, O_CLOEXEC))
        return false;
    pid_t keeper = fork(); /* which alone is unshared: this process goes on where that fails */
    if (keeper == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pid_t first = unshare_processes() ? fork() : -1;
        if (first == 0)
            begin_namespace(task, told[1]);
        close(told[1]);
        _exit(first > 0 && waitpid(first, &ignored, 0) == first ? 0 : EXIT_CRASH);
    }
    close(told[1]);
    bool apart = read(told[0], &ready, sizeof ready) == (ssize_t)sizeof ready;
    if (apart && read(told[0], status, sizeof *status) == (ssize_t)sizeof *status)
        *code = 0;
    close(told[0]);
    if (keeper > 0)
        waitpid(keeper, &ignored, 0);
    return apart;
}

int guard_main(int argc, char **argv)
{
    struct task task = {.argc = argc - 1, .argv = argv + 1};
    int code, status = 0;
    if (argc > 1)
        task.run = !strcmp(argv[1], "worker") ? worker_main : !strcmp(argv[1], "table") ? table_main : NULL;
    if (!task.run) {
        fprintf(stderr, "gaugeblock guard: is run by other commands\n");
        return EXIT_USAGE;
    }
    prctl(PR_SET_PDEATHSIG, 0); /* from here on the lifeline tells */
    if (!tend_apart(&task, &code, &status)) {
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        code = tend(&task, &status);
        adopted_end(NULL, 0, 0);
    }
    if (!code && WIFSIGNALED(status)) { /* ends as the child did */
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    _exit(code ? code : WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_CRASH); /* libraries have nothing to end */
}
