# SPDX-License-Identifier: Apache-2.0
"""The process between verify(isolate=True) and a function that is not ours: `python guard.py COMMAND...`.

It adopts whatever the command starts and leaves, and ends all of it with the command itself, or when standard input
ends: the caller gave up, or is gone, however it went. It ends as the command did. A script of the standard library
alone, since it forks and has to do so before a library has started threads."""

import ctypes
import os
import resource
import select
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PAUSE_S = 0.001
prctl = ctypes.CDLL(None).prctl


def become(command, guard):
    """The child's part: it dies with its guard, and signals that it sends to its group reach nobody else."""
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == guard:  # else it ended before the line above could take effect
            os.setpgid(0, 0)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execv(command[0], command)
    finally:
        os._exit(1)


def is_ours(number):
    """Whether the process is a child of this one."""
    try:
        with open(f"/proc/{number}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()  # behind the command's name, which may hold anything
        return int(fields[1]) == os.getpid()
    except OSError:
        return False


def kill_children():
    """Kills every child. Returns whether there was one that could be."""
    killed = False
    for number in filter(str.isdecimal, os.listdir("/proc")):
        if is_ours(number):
            try:
                os.kill(int(number), signal.SIGKILL)
                killed = True
            except OSError:
                pass  # another user's by now
    return killed


def end_all():
    """The children of one that is killed become ours, until there are none."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if not kill_children():
            return
        time.sleep(PAUSE_S)


def watch(child, endings):
    """Waits for the child, and for those that it left to us. Returns its status, or None if standard input ended first."""
    while True:
        ready, _, _ = select.select([0, endings], [], [])
        if endings in ready:
            os.read(endings, 64)
            process = 1
            while process:
                process, status = os.waitpid(-1, os.WNOHANG)
                if process == child:
                    return status
        if 0 in ready:
            return None


def main(command):
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    endings, noted = os.pipe()
    os.set_blocking(noted, False)
    signal.set_wakeup_fd(noted, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the caller has it too, and standard input tells
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        become(command, guard)
    status = watch(child, endings)
    end_all()
    if status is None:
        return 1
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(guard, os.WTERMSIG(status))
    return os.WEXITSTATUS(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
