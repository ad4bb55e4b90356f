# SPDX-License-Identifier: Apache-2.0
"""Libraries that end, hang, kill, print, lie or change the state of the process they are loaded into: each costs its own
case and no more. Every run has a good kernel beside them, a record and JUnit; no process is left, and nothing of what they
print is on the terminal. Without an argument each outcome and one in twelve is run, with `all` every one, otherwise those whose
names have the argument in them."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree

from program import FAULTS, PROGRAM, SANITISED, expect, path, reproduced, run

HOSTILE = os.environ["HOSTILE"]
MARK = ("GAUGEBLOCK_TEST_MARK", f"{os.getpid()}.{random.getrandbits(64)}")
ENVIRONMENT = {**os.environ, MARK[0]: MARK[1], "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
               "ASAN_OPTIONS": "handle_segv=0:handle_abort=0:handle_sigfpe=0:use_sigaltstack=0"}
SHARED_KEY = str(0x6b0b)  # tests/faults/hostile.c, leave_memory
MOST = 15  # --subject at most 16 times
RECORD = path("out/r.json")
ENVIRONMENT.update(TMPDIR=path("tmp"), HOSTILE_RECORD=RECORD)
fixture = path("tiny.h5")
run("make", fixture, "--shape", "4,2,32,32", "--tokens", "2")

# (WHEN, WHAT): the verdict, and a word of the reason or of the note.
expected = {}
FATAL = {"exit": "exit()", "abort": "signal 6", "segv": "signal 11", "fpe": "signal 8", "stack": "signal 11",
         "exec": "exit()", "timer": "signal 14", "group": "signal 9", "closes": ""}
for when in ("ctor", "table", "supports", "workspace", "prepare", "run", "release"):
    for what, word in FATAL.items():
        if what in ("exit", "abort", "segv", "closes") or when in ("ctor", "run"):
            expected[when, what] = "CRASH", word
    expected[when, "_exit"] = "CRASH", "exit()"
    expected[when, "prints"] = expected[when, "forks"] = "PASS", ""
for what in ("floods", "terminal", "thread", "grows", "limits", "folder", "mask", "clears", "signals"):
    expected["ctor", what] = expected["run", what] = "PASS", ""
expected["ctor", "scribbles"] = expected["run", "scribbles"] = "CRASH", "outputs cannot be read"
# A destructor ends a process whose work is done: how it ended says the rest.
for what, word in {"abort": "signal 6", "segv": "signal 11", "_exit1": "exit code 1", "group": "signal 9"}.items():
    expected["dtor", what] = "CRASH", word
for what in ("_exit", "prints", "forks"):
    expected["dtor", what] = "PASS", ""
# The floating-point environment is the default one in every call, and in what the worker computes; it is said.
for what, word in {"rounding": "rounding mode", "traps": "traps", "flushes": "subnormals"}.items():
    if what == "flushes" and os.uname().machine != "x86_64":
        continue
    for when in ("ctor", "supports", "prepare"):
        expected[when, what] = "PASS", word
expected["run", "rounding"] = "FAIL", "rounding mode"  # what it computes is wrong
for what in ("abi", "size", "none", "many", "endless", "twice", "nameless", "empty", "unprintable", "long", "order", "operator",
             "activations", "output", "bits", "rounding", "routes", "supports", "run"):
    expected["field", what] = "BAD_INPUT", ""
expected["field", "most"] = "PASS", ""  # as many kernels as a table may have
for what in ("address", "nowhere"):
    expected["field", what] = "CRASH", "signal 11"
# What is remembered by shape, by address or by call is judged where it is wrong.
for what in ("x", "ids", "routing", "output"):
    expected["stale", what] = "FAIL", ""
for what in ("third", "fourth"):
    expected["stale", what] = "FAIL or NONDETERMINISTIC", ""
# What is known again by some arrays is judged where another has changed: by all calls, or by the last alone.
for what in ("all-x", "all-i", "all-r", "all-w", "all-d", "all-h", "all-xi", "all-xw", "all-irw", "all-xir", "all-xwd", "all-xiw",
             "last-x", "last-i", "last-r", "last-w", "last-h", "last-xi", "last-ir", "last-xir", "last-irw", "last-wd"):
    expected["known", what] = "FAIL or NONDETERMINISTIC", ""
# What the judge writes and reads is its own, whatever lies there.
for what in ("record-forged", "record-pipe", "record-folder", "record-link", "record-gone", "record-file", "record-locked", "folder-gone",
             "folder-file", "folder-locked"):
    expected["ctor", what] = expected["run", what] = "PASS", ""
for what in ("address-x", "address-ids", "address-routing", "lag-x", "lag-ids", "lag-routing", "begin-codes", "begin-down"):
    expected["stale", what] = "FAIL or NONDETERMINISTIC", ""
expected["stale", "pointer"] = "CRASH", "signal 11"
for what in ("codes", "scales", "globals", "down", "down-scales"):
    expected["stale", what] = "FAIL", ""
expected["stale", "first"] = "FAIL", "run again, with tokens and experts in other places"  # the run that comes first
expected["stale", "last-row"] = "FAIL", ""
for what, word in {"heap": "", "adds": "", "half": "", "workspace-reads": "",
                   "workspace-past": "wrote outside a buffer", "past": "wrote outside a buffer", "before": "wrote outside a buffer", "x-past": ""}.items():
    expected["memory", what] = "FAIL", word
expected["memory", "freed"] = "FAIL or NONDETERMINISTIC", ""  # by where malloc keeps its own lists
for what in ("reads", "far", "under", "x-under", "ids-past", "weights-past", "routing-past", "globals-past",
             "scales-past"):
    expected["memory", what] = "CRASH", "signal 11"  # beyond a buffer that ends at a guard page
for what, word in {"writes-input": "input", "writes-ids": "input", "forgets": "", "nothing": ""}.items():
    expected["memory", what] = "FAIL", word
for what in ("protects", "unmaps"):
    expected["memory", what] = "CRASH", "signal"
expected["memory", "late"] = "FAIL", ""
expected["memory", "stream-alone"] = "FAIL", "residual stream"
expected["memory", "next"] = "CRASH", "signal 11"  # the buffer of the call before is gone
for what in ("random", "total", "writes-weights"):
    expected["memory", what] = "NONDETERMINISTIC", "two runs"
# What reaches beyond its process finds nothing to reach: these abort where they get there.
for when in ("ctor", "table", "supports", "run"):
    for what in ("traces", "fixture", "powers", "shared", "multiplies"):
        expected[when, what] = "PASS", ""
for what in ("atexit", "reads-input", "one-processor", "slow", "undumpable", "unlinks", "descriptors", "callers"):
    expected["ctor", what] = expected["run", what] = "PASS", ""
for what, word in {"quick": "exit()", "swallows": "exit()", "terminates": "signal 6", "jumps": "signal", "sandbox": "signal 9",
                   "aborts-last": "signal 6"}.items():
    expected["ctor", what] = expected["run", what] = "CRASH", word
expected["run", "file-limit"] = "CRASH", ""
expected["run", "memory-limit"] = "CRASH", "limited its own process's memory"
expected["null", "table"] = "BAD_INPUT", ""
for what in ("count", "name", "order", "unprintable", "operator", "rounding", "twice", "message"):
    expected["forged", what] = "BAD_INPUT", ""
expected["forged", "state"] = "CRASH", "exit()"
expected["forged", "flags"] = expected["forged", "format"] = "CRASH", "bytes of such a kernel"
expected["report", "forged"] = "CRASH", "outputs cannot be read"
expected["report", "status"] = expected["report", "message"] = "CRASH", "exit()"  # which the report does not have
expected["message", "escapes"] = expected["message", "endless"] = "UNSUPPORTED", ""
expected["status", "unknown"] = "FAIL", "unknown status"
expected["endless", "workspace"] = expected["large", "workspace"] = "NOT_RUN", "no memory for the workspace"
expected["workspace", "rounding"] = expected["release", "rounding"] = "PASS", "rounding mode"
QUICK = [("supports", "traps"), ("run", "rounding"), ("prepare", "rounding"), ("workspace", "rounding"), ("release", "rounding"), ("report", "status"), ("report", "message"),
         ("field", "most"), ("run", "memory-limit")]  # whichever else
# In a namespace of its own it has no parent that it can signal, and no other process.
apart = any(subprocess.run(["unshare", *how, "-pf", "--mount-proc", "true"], capture_output=True).returncode == 0
            for how in ([], ["-U", "-r"]))
APART = [(when, what) for when in ("ctor", "run") for what in ("parent", "all", "orphans", "freezes")]
if not apart:  # other processes of the user are there to be traced
    expected = {kind: outcome for kind, outcome in expected.items() if kind[1] != "traces"}
if SANITISED:  # the sanitizers need memory beyond the limit, and at the end of a process descriptors and system calls
    for what in ("memory-limit", "descriptors", "sandbox"):
        expected = {kind: outcome for kind, outcome in expected.items() if kind[1] != what}
HANGS = {("ctor", "hang"): "while it was loaded", ("table", "hang"): "gb_kernels()", ("supports", "hang"): "no result",
         ("run", "stop"): "no result", ("dtor", "hang"): "as its process ended",
         ("ctor", "outlives"): "while it was loaded", ("run", "outlives"): "no result"}


def library(when, what):
    """One file for each, since a library is loaded once."""
    name = path(f"hostile-{when}-{what}.so")
    if not os.path.exists(name):
        try:
            os.link(HOSTILE, name)
        except OSError:
            shutil.copy(HOSTILE, name)  # of another file system; by a link it would have the other name
    return name


def alive():
    """Processes that carry the mark."""
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/environ", "rb") as stream:
                if "=".join(MARK).encode() in stream.read().split(b"\0"):
                    found.append(int(number))
        except OSError:
            pass
    return found


# Where a PID namespace is not to be had, what a library starts ends all the same.
WITHOUT = ["unshare", "-U", "-r", "sh", "-c", 'echo 0 > /proc/sys/user/max_pid_namespaces && exec "$@"', "sh"]


def judge(kinds, *options, prefix=()):
    """One run of all these and a good kernel: the verdicts, the exit code, the reports, what is printed and left."""
    words = [word for kind in kinds for word in ("--subject", library(*kind))]
    for name in ("out", "tmp"):
        shutil.rmtree(path(name), ignore_errors=True)
        if os.path.lexists(path(name)): # a library put a file there
            os.remove(path(name))
        os.mkdir(path(name))
    with open(path("of-the-caller"), "w") as inherited:
        done = subprocess.run([*prefix, PROGRAM, "verify", fixture, *words, "--subject", FAULTS, "--kernel", "faults/none",
                               "--kernel", "hostile/*", "-o", RECORD, "-o", path("out/r.xml"), *options], capture_output=True,
                              env=ENVIRONMENT, timeout=300, pass_fds=(inherited.fileno(), os.dup2(inherited.fileno(), 200)))
    left = alive()
    for number in left:
        os.kill(number, signal.SIGKILL)
    expect(not left, f"{kinds}: {len(left)} processes are left")
    if apart and not prefix:
        with open("/proc/sysvipc/shm") as stream:
            expect(SHARED_KEY not in [line.split()[0] for line in stream], f"{kinds}: shared memory is left")
        expect(not os.path.exists("/dev/shm/gaugeblock-hostile"), f"{kinds}: named shared memory is left")
    expect(os.path.exists(RECORD), f"{kinds}: no record: {done}")
    aside = [name for folder in (path(""), path("out")) for name in os.listdir(folder) if "XXXXXX" in name]
    expect(not aside, f"{kinds}: what was there has no name of its own: {aside}")
    with open(RECORD) as stream:
        one = json.load(stream)
    printed = (done.stdout + done.stderr).decode()
    expect(all(c.isprintable() or c == "\n" for c in printed), f"{kinds}: {printed!r}")
    expect("PASS: 1 of 1" not in "\n".join(line for line in printed.splitlines() if "last line" not in line), printed)
    good = [case for case in one["cases"] if case["subject"]["name"] == "faults/none"]
    expect([case["verdict"] for case in good] == ["PASS"], f"{kinds}: the good kernel: {good}")
    expect(done.returncode == one["exit_code"], f"{kinds}: exit {done.returncode}, the record has {one['exit_code']}")
    suite = xml.etree.ElementTree.parse(path("out/r.xml")).getroot()
    expect(len(list(suite.iter("testcase"))) == len(one["cases"]), "JUnit")
    wrong = []
    for when, what in kinds:
        verdict, word = ("CRASH", HANGS[when, what]) if (when, what) in HANGS else expected[when, what]
        names = (f"hostile/{when}-{what}", f"hostile-{when}-{what}.so")
        cases = [case for case in one["cases"] if case["subject"]["name"] in names]
        said = " ".join(case["reason"] + case.get("note", "") for case in cases)
        if "".join(case["verdict"] for case in cases) not in verdict.split(" or ") or word not in said:
            wrong.append(f"{when}-{what}: {[case['verdict'] for case in cases]}, not {verdict}: {said!r}")
    expect(not wrong, "\n".join(wrong))
    codes = {case["exit_code"] for case in one["cases"]}
    expect(done.returncode == next((code for code in (5, 2, 6, 1, 4, 3) if code in codes), 0), f"{kinds}: {codes}")
    return one


if sys.argv[1:] == ["apart"]:
    if not apart:
        print("skipped: killing the parent and all processes needs a PID namespace")
        sys.exit(77)
    expected.update(dict.fromkeys(APART, ("PASS", "")))
    judge(APART)
    sys.exit()
if sys.argv[1:] == ["together"]:
    if subprocess.run([*WITHOUT, "true"], capture_output=True).returncode != 0:
        print("skipped: to forbid PID namespaces needs a user namespace")
        sys.exit(77)
    expected.update({(when, "orphans"): ("CRASH", "signal 9") for when in ("ctor", "run")})
    HANGS["run", "freezes"] = "no result"
    judge([kind for kind in expected if kind[1] in ("forks", "orphans")] + [("run", "freezes")], "--timeout", "3", prefix=WITHOUT)
    sys.exit()
expect(len(expected) >= 200 and len({what for _, what in expected}) >= 100, "kinds of libraries")
part = sys.argv[1] if len(sys.argv) > 1 else ""
if part:
    chosen = [kind for kind in expected if part == "all" or part in "-".join(kind)]
else:  # each outcome once, and one in twelve of all
    outcomes = {outcome: kind for kind, outcome in expected.items()}
    chosen = list(dict.fromkeys([*list(expected)[::12], *outcomes.values(), *(kind for kind in QUICK if kind in expected)]))
for first in range(0, len(chosen), MOST):
    judge(chosen[first:first + MOST])
if part in ("", "all"):
    judge(list(HANGS)[:: 1 if part else 2], "--timeout", "3" if part or SANITISED else "1")
    # Alone: the exit code is that library's.
    for kind, code in ((("ctor", "exit"), 5), (("dtor", "_exit"), 0), (("field", "twice"), 2), (("ctor", "rounding"), 0)):
        one = judge([kind])
        expect(one["exit_code"] == code, f"{kind}: {one['exit_code']}")
        done = subprocess.run([PROGRAM, "list", "kernels", "--subject", library(*kind)], capture_output=True, text=True)
        expect(done.returncode == code and (code == 0) == ("hostile/" in done.stdout), f"list: {done}")
        expect(len(done.stderr.splitlines()) == (code != 0), f"list: {done}")
    reproduced(judge([("ctor", "abort"), ("run", "exit")])["cases"])
    # Times without a part, or with a sample of no time, are none.
    lacking = ("forged", "copies", "runs", "bytes", "run_ns", "read_ns", "large_ns")
    run("bench", fixture, *(word for what in lacking for word in ("--subject", library("report", what))), "--kernel", "hostile/*",
        "--samples", "2", "--cache", "65536", "-o", path("times.json"), code=5)
    with open(path("times.json")) as stream:
        said = {case["subject"]["name"]: case["reason"] for case in json.load(stream)["cases"]}
    for what in lacking:
        reason = said[f"hostile/report-{what}"]
        expect("outputs cannot be read" in reason if what == "forged" else reason == "the worker left no times for 2 tokens",
               f"{what}: {reason}")
print(f"{len(chosen)} libraries")
