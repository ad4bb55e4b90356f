# SPDX-License-Identifier: Apache-2.0
"""Kernels that remember what they were given before, and kernels that touch memory that is not theirs, each the reference but
for that: a problem of one layer and one batch, judged with the default policy, catches every one (what a wrong result looks
like is not searched, which changes no verdict). Without an argument some kinds; with `all` every one, on the suite, too."""
import json
import os
import shutil
import subprocess
import sys

from kept import expect_kept
from program import ALL, PROGRAM, expect, path, run

HOSTILE = os.environ["HOSTILE"]
CAUGHT = {"FAIL": 1, "CRASH": 5, "NONDETERMINISTIC": 6}
STATE = {  # of tests/faults/hostile.c: what is kept from an earlier call
    "x": "x of the first call", "ids": "experts of the first call", "routing": "routing weights of the first call",
    "output": "output of the first call", "codes": "codes of gate_up of the first call",
    "scales": "scales of gate_up of the first call", "globals": "global scales of the first call",
    "down": "codes of down of the first call", "down-scales": "scales of down of the first call",
    "last-row": "the last token of the first call", "third": "right twice, then wrong", "fourth": "right three times, then wrong",
    "first": "wrong in the first call alone", "begin-x": "x that begins alike", "begin-codes": "codes of gate_up that begin alike",
    "begin-down": "codes of down that begin alike",
    "address-x": "x by address", "address-ids": "experts by address", "address-routing": "routing weights by address",
    "lag-x": "x of the call before", "lag-ids": "experts of the call before",
    "lag-routing": "routing weights of the call before", "pointer": "the address of x of the first call",
}
MEMORY = {
    "heap": "adds its own memory, unwritten", "freed": "reads its own memory, freed", "adds": "adds to the output",
    "half": "leaves the last token unwritten", "nothing": "writes poison", "late": "writes after it has returned",
    "next": "writes a call late", "total": "sums over calls", "random": "differs in each call",
    "past": "writes past the output", "before": "writes before the output", "far": "writes far past the output",
    "under": "reads before the output", "reads": "reads past the output", "x-past": "reads past x", "x-under": "reads before x",
    "ids-past": "reads past the ids", "routing-past": "reads past the routing weights",
    "globals-past": "reads past the global scales", "scales-past": "reads past the scales", "weights-past": "reads past the weights",
    "workspace-past": "writes past the workspace", "workspace-reads": "reads the workspace, unwritten",
    "writes-input": "writes x", "writes-ids": "writes the ids", "writes-weights": "writes weights",
    "protects": "protects the output", "unmaps": "unmaps the output", "forgets": "drops pages of x",
}
LETTERS = {"x": "x", "i": "ids", "r": "routing weights", "w": "codes of gate_up", "d": "codes of down",
           "h": "the first 64 bytes of the codes of gate_up"}  # of keys_of in tests/faults/hostile_kernel.c
KNOWN = {f"{calls}-{letters}": f"{calls} calls, known by {', '.join(LETTERS[letter] for letter in letters)}"
         for calls, keys in {"all": "x i r w d h xi xw irw xir xwd xiw", "last": "x i r w h xi ir xir irw wd"}.items()
         for letters in keys.split()}
KINDS = [(when, what) for when, kinds in {"stale": STATE, "memory": MEMORY, "known": KNOWN}.items() for what in kinds]
expect(len(KINDS) >= 40, f"{len(KINDS)} kinds")


def library(when, what):
    name = path(f"hostile-{when}-{what}.so")
    if not os.path.exists(name):
        shutil.copy(HOSTILE, name)
    return name


def verdicts(folder, kind):
    """Of one kernel alone: the verdicts of its cases, and the exit code."""
    done = subprocess.run([PROGRAM, "verify", folder, "--subject", library(*kind), "--kernel", "hostile/*", "--no-diagnosis",
                           "-o", path("r.json")], capture_output=True, text=True, timeout=600)
    with open(path("r.json")) as stream:
        whole = json.load(stream)
    expect(done.returncode == whole["exit_code"], f"{kind}: exit {done.returncode}, the record has {whole['exit_code']}")
    return {os.path.basename(case["fixture"]["path"]): case["verdict"] for case in whole["cases"]}, done.returncode


suite = path("suite")
if ALL:
    run("make", suite, "--suite")
else:
    os.mkdir(suite)
    KINDS = KINDS[::6]
run("make", os.path.join(suite, "one.h5"), "--shape", "8,2,128,64", "--tokens", "9", "--layers", "1")
missed = []
for kind in KINDS:
    found, code = verdicts(suite, kind)
    by = [name for name, verdict in found.items() if verdict in CAUGHT]
    print(f"{(STATE | MEMORY | KNOWN)[kind[1]]}: caught by {len(by)} of {len(found)} problems, exit {code}")
    if "one.h5" not in by or code not in CAUGHT.values():
        missed.append((kind, found, code))
expect(not missed, f"not caught: {missed}")

expect_kept()
