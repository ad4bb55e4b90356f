# SPDX-License-Identifier: Apache-2.0
"""Wherever gaugeblock asks for memory it may not get any: one line says so, or the result is the same without. No crash,
no other result. test_memory.py all: of more commands."""
import os
import re
import subprocess

import program
from kept import expect_kept
from program import ALL, CAPTURE, CHECKPOINT, PROGRAM, expect, own_code, path, run

fixture, quantiser, exchange = path("s.h5"), path("q.h5"), path("d.h5")
run("make", fixture, "--shape", "4,2,64,32", "--tokens", 2)
run("make", quantiser, "--operator", "quantise", "--recipe", "nvfp4.trtllm/1", "--shape", "6,96")
run("make", exchange, "--operator", "dispatch", "--shape", "8,3,96", "--ranks", 4, "--recipe", "nvfp4.trtllm/1")
run("study", "drift", fixture, "-o", path("drift.h5"))
run("verify", fixture, "-o", path("verify.json"))


OWN = own_code()


def tried(place, *arguments):
    """What the command does where the first allocation of this place fails."""
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, errors="replace", env={
        **os.environ, **OWN, "LD_PRELOAD": os.environ["MEMORY_FAULT"], "GAUGEBLOCK_FAULT_MEMORY": str(place)})


def results(done):
    """What is printed, but for the size of a page, which says when it was drawn."""
    return done.returncode, re.sub(r"\d+ bytes", "", done.stdout)


LINES = [
    ("verify", exchange, "-o", path("r.json")), ("report", path("verify.json"), path("drift.h5"), "-o", path("page.html")),
    ("study", "drift", fixture, "--csv", path("s.csv"), "--table", path("s.md"))]
if ALL:
    LINES += [
        ("make", path("made.h5"), "--shape", "8,3,96,48", "--tokens", 3), ("info", fixture, "--coverage"),
        ("verify", fixture, "-o", path("r.json"), "-o", path("r.xml"), "-o", path("r.md")),
        ("verify", quantiser, "-o", path("r.json")),
        ("study", "closeness", "--shape", "6,2,64,48", "--tokens", 5),
        ("power", quantiser),
        ("import", CHECKPOINT, path("imported.h5"), "--format", "nvfp4", "--capture", CAPTURE, "--tokens", 2)]
said_of = []  # each command for want of memory
for line in LINES:
    right = tried(0, *line)
    counts = [int(n) for n in re.findall(r"places that ask for memory: (\d+)", right.stderr)]
    expect(right.returncode == 0 and max(counts) >= 12, f"{line}: {right}")
    refusals, reasons = 0, set()
    for place in range(1, max(counts) + 1):
        done = tried(place, *line)
        said, errors = done.stdout + done.stderr, done.stderr.splitlines()
        refused = done.returncode in (2, 3) and "memory" in said and len(errors) <= 1
        expect(refused or results(done) == results(right), f"{line}, place {place}: {done}")
        refusals += refused
        reasons.update(errors if refused else [])
    expect(refusals > max(counts) // 2, f"{line}: {refusals} of {max(counts)} places are refused memory")
    said_of.append(f"{line[0]}:\n" + "".join(f"{reason}\n" for reason in sorted(reasons)))
program.said[:] = said_of
expect_kept()
