# SPDX-License-Identifier: Apache-2.0
"""Batches are prefixes of the same tokens: the bits of a token do not depend on the batch or on the threads. And every call
of a kernel for them: what it is given, and what lies beside it."""
import itertools
import os
import re
import signal
import subprocess

import h5py

import program
from kept import expect_kept
from program import ALL, call_failing, expect, path, record, run, small

fixture = small()
one = record(fixture, "--kernel", "cpu/*", "--batch", "1,2,3,8,9" if ALL else "1,8,9")
expect(len(one["cases"]) == (55 if ALL else 33) and one["verdict"] == "PASS", "nine kernels, two of them with two cases, of every batch")

# A batch's time is its own: this kernel sleeps 5 ms.
one = record(fixture, "--subject", program.FAULTS, "--kernel", "faults/slow", "--batch", "1,2,9")
expect(all(case["seconds"] >= 0.005 for case in one["cases"]), str([case["seconds"] for case in one["cases"]]))

# Whichever of its functions it changes the arithmetic in, and for whichever batch.
one = record(fixture, "--subject", program.FAULTS, "--kernel", "faults/none-down", "--batch", "1,2")
expect(all("the kernel's functions changed the rounding mode" in case.get("note", "") for case in one["cases"]), str([case.get("note") for case in one["cases"]]))

names = set()
for threads in ("1", "3"):
    os.environ["OMP_NUM_THREADS"] = threads
    names.add(record(fixture)["cases"][0]["metrics"]["layers"][1]["output_sha256"])
    small(f"threads{threads}.h5")
    with h5py.File(path(f"threads{threads}.h5")) as f:
        names.add(f.attrs["input_sha256"])
expect(len(names) == 2, f"threads changed bits: {names}")

# What a kernel leaves of the arithmetic in its threads is no one else's: neither the residual stream's nor the intermediate's.
os.environ["OMP_NUM_THREADS"] = "2"
one = record(fixture, "--subject", program.FAULTS, *(word for name in ("none", "none-prepared", "none-down") for word in ("--kernel", f"faults/{name}")))
drifts = [case["metrics"].get("drift") for case in one["cases"]]
expect(drifts[0] and drifts == [drifts[0], drifts[0], None], str(drifts))
del os.environ["OMP_NUM_THREADS"]

# Of every call of these kernels a line (tests/faults/calls.c): the arrays of the problem, those of others that must not be
# taken for them, poison, canaries and pages that may not be touched.
run("make", path("layer.h5"), "--shape", "5,2,48,32", "--tokens", "6")
run("make", path("quantised.h5"), "--shape", "5,2,64,32", "--tokens", "3", "--layers", "2", "--activations", "nvfp4")
run("make", path("shared.h5"), "--shape", "7,2,64,32", "--tokens", "5", "--layers", "2", "--data", "shared", "--generated")
run("make", path("biased.h5"), "--shape", "8,2,64,32", "--tokens", "5", "--router", "transformers.deepseek-v3/1;groups=2;kept=1")
run("make", path("rows.h5"), "--operator", "quantise", "--recipe", "nvfp4.trtllm/1", "--shape", "5,64")
for operator in ("dispatch", "combine"):
    run("make", path(f"{operator}.h5"), "--operator", operator, "--shape", "7,2,48", "--tokens", "3", "--ranks", "3")
os.environ["GB_CALLS"] = path("calls")


def changes(calls):
    """Of every line what is not as it was in the line before that has it."""
    last, lines = {}, []
    for line in calls.splitlines():
        verb, *parts = line.split(" | ")
        names = [re.match(r"[a-z_ ]*", part)[0] for part in parts]
        new = [(name, names[:n].count(name), part) for n, (name, part) in enumerate(zip(names, parts))]
        lines.append(" | ".join([verb, *(part for *key, part in new if last.get(tuple(key)) != part)]))
        last |= {tuple(key): part for *key, part in new}
    return "\n".join(lines) + "\n"


# Of root's powers a kernel has those over files (CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, MKNOD) and IPC_LOCK, and
# no other can come back; of others' it has none.
ROOT = os.geteuid() == 0
with open("/proc/self/status") as stream:
    own = dict(re.findall(r"^(Cap\w+):\s*(\w+)$", stream.read(), re.M))
allowed = sum(1 << power for power in (0, 1, 2, 3, 4, 14, 27)) if ROOT else 0
POWERS = [f"{int(own[name], 16) & allowed:016x}" for name in ("CapEff", "CapBnd")[:1 + ROOT]]
for kernel, fixture, *more in (
        ("layer", "layer", "--batch", "3,4,6"), ("gate_up", "layer"), ("down", "layer"), ("quantised", "quantised"),
        ("routed", "shared"), ("route", "shared"),
        ("route", "biased"), ("quantise", "rows", "--batch", "2,5"), ("dispatch", "dispatch"), ("combine", "combine")):
    run("verify", path(f"{fixture}.h5"), "--subject", os.environ["CALLS"], "--kernel", f"calls/{kernel}", "--no-diagnosis", *more)
    with open(path("calls")) as stream:
        calls = stream.read()
    powers = {line.split()[1:2 + ROOT] == POWERS for line in re.findall(r"^powers .*\n", calls, re.M)}
    expect(powers == {True}, calls)
    calls = re.sub(r"^powers .*\n", "", calls, flags=re.M)
    expect(0 < calls.count("release\n") == calls.count("prepare of "), calls)
    program.said.append(changes(calls))
    os.remove(path("calls"))

# Which of them run on which problem, and why others do not.
KERNELS = [f"calls/{name}" for name in ("ordered-combine", "dispatch", "ordered", "quantised", "routed", "quantise", "route")]
for fixture in ("layer", "combine", "rows"):
    run("verify", path(f"{fixture}.h5"), "--subject", os.environ["CALLS"], "--no-diagnosis", code=3,
        *(word for name in KERNELS for word in ("--kernel", name)))
os.remove(path("calls"))

# What was the process's child before it ran anything, by more than a tick of the kernel's clock, is no kernel's.
done = subprocess.run(["sh", "-c", 'sleep 60 >/dev/null 2>&1 & echo $!; sleep 0.1; exec "$@"', "sh", program.PROGRAM, "verify", path("dispatch.h5"), "--subject",
                       os.environ["CALLS"], "--kernel", "calls/dispatch"], capture_output=True, text=True)
expect(done.returncode == 0, done)
child = int(done.stdout.split()[0])
with open(f"/proc/{child}/stat") as stream:
    expect(" (sleep) S " in stream.read(), "the caller's child has ended")
os.kill(child, signal.SIGKILL)
os.remove(path("calls"))

CACHE = "65536"  # more than the 64 copies hold

# Timed on copies of its rows, each prepared once.
run("bench", path("dispatch.h5"), "--subject", os.environ["CALLS"], "--kernel", "calls/dispatch", "--samples", "1", "--cache", "4096")
program.said.pop()
with open(path("calls")) as stream:
    calls = stream.read()
expect(6 < calls.count("release\n") == calls.count("prepare of "), calls)

# Where a call fails, that is what is said; none comes behind it but those that give back what was prepared.
def behind(kernel, fixture, call, *mode):
    """Whether the worker comes to that call, which is to fail."""
    words = [path(f"{fixture}.h5"), os.environ["CALLS"], f"calls/{kernel}", {"layer": "3", "shared": "5", "rows": "5"}.get(fixture, "9"), *mode]
    report, before, failed, rest = call_failing(words, GB_CALLS_FAIL=call)
    expect(report["message"] == (f"{call} fails" if failed else ""), f"{kernel} on {fixture}.h5, {call}: {report}")
    expect(report["less_room"] is False, f"{kernel} on {fixture}.h5: {report}")
    expect(set(rest.splitlines()) <= {"release"}, f"{kernel} on {fixture}.h5, behind {call}: {rest}")
    prepared = before.count("prepare of ") - call.startswith("prepare") * failed
    released = (before + rest).count("release\n")
    expect(released == prepared, f"{kernel} on {fixture}.h5, {call}: {prepared} prepared, {released} released")
    return failed


every = range(1, 100, 1 if ALL else 5)
rows = ["quantise", "rows"], ["dispatch", "dispatch"], ["combine", "combine"]
for kernel, fixture, kind, numbers, *mode in (
        ["layer", "layer", "run", every], ["layer", "layer", "prepare", range(1, 100, 5)], ["routed", "shared", "run", range(1, 100, 6)],
        *([*one, kind, every] for one in rows for kind in ("run", "prepare")),
        ["dispatch", "dispatch", "run", (9, 10, 11, 30), "timed", "1", "hot", CACHE], ["dispatch", "dispatch", "prepare", (4, 5, 6), "timed", "1", "hot", CACHE]):
    came = list(itertools.takewhile(bool, (behind(kernel, fixture, f"{kind} {number}", *mode) for number in numbers)))
    expect(came, f"{kernel} on {fixture}.h5: no {kind} fails")

# What a timed run writes is held against the first one.
del os.environ["GB_CALLS"]
done = run("bench", path("layer.h5"), "--subject", os.environ["CALLS"], "--kernel", "calls/later", "--samples", "1", "--cache", CACHE, code=6)
program.said.pop()
expect("1 elements differ between two runs on the same inputs; first: element 0 of output of layer 0" in done.stdout, done.stdout)

expect_kept()
