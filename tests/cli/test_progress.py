# SPDX-License-Identifier: Apache-2.0
"""On a terminal one line says how much of the whole run is done, and moves with it; elsewhere there is none. What it says
is kept."""
import os
import pty
import re

import h5py
import numpy

from kept import expect_kept
from program import ALL, FAULTS, PROGRAM, expect, path, run, said


def lines_of(*arguments, code=0):
    """What the line showed, in turn."""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(PROGRAM, [PROGRAM, *map(str, arguments)])
    text = b""
    while True:
        try:
            piece = os.read(terminal, 1 << 16)
        except OSError:  # as Linux says the end of a terminal
            break
        if not piece:
            break
        text += piece
    expect(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code, f"{arguments}: {text.decode()}")
    lines = re.findall(r"\r\x1b\[K([^\r\n]*)", text.decode())
    expect(" 0/" not in text.decode(), f"{arguments}: nothing is 0 of anything: {lines[:20]}")
    expect(lines[-1] == "" or not re.match(" *[0-9]+ %", lines[-1]), f"{arguments}: the line stays: {lines[-1]}")
    return [line for line in lines if re.match(" *[0-9]+ %", line)]


def percentages(*arguments, code=0):
    shown = lines_of(*arguments, code=code)
    said.append("\n".join(["$ gaugeblock " + " ".join(map(str, arguments)), *shown, ""]))
    return [int(line.split()[0]) for line in shown]


for layers in (1, 4):
    fixture, shape = path(f"{layers}.h5"), ["--shape", "8,3,96,48", "--layers", layers]
    for arguments, fewest in ((["make", fixture, *shape], 4 * layers), (["verify", fixture], 6 + 4 * (layers - 1)),
                              (["verify", fixture, fixture, "--kernel", "cpu/nvfp4*", "--batch", "2,4,8"], 20),
                              (["power", fixture], 20))[:4 if ALL or layers == 1 else 3]:
        shown = percentages(*arguments)
        expect(shown == sorted(shown), f"{arguments}: goes back: {shown}")
        expect(shown[0] <= 5 and shown[-1] >= 75 and max(shown) <= 100, f"{arguments}: from {shown[0]} to {shown[-1]}")
        expect(len(set(shown)) >= fewest, f"{arguments}: {len(set(shown))} steps, not {fewest}: {shown}")
# Each fixture, and of it each kernel that is timed, has its part of the whole, in which its own steps go on.
shown = percentages("bench", path("1.h5"), path("4.h5"), "--kernel", "cpu/nvfp4-[dl]*", "--batches", "2,8", "--samples", 1, "--hot", "--cache", 65536)
expect(shown == sorted(shown) and shown[0] == 0 and 75 <= shown[-1] <= 100, f"bench: {shown}")
# Each problem of a suite has its part.
if ALL:
    shown = percentages("make", path("suite"), "--suite")
    expect(shown == sorted(shown) and len(set(shown)) >= 20 and 75 <= shown[-1] <= 100, f"make --suite: {shown}")
# Problems without layers.
run("make", path("rows.h5"), "--operator", "quantise", "--recipe", "nvfp4.trtllm/1", "--shape", "5,64")
percentages("verify", path("rows.h5"), "--kernel", "cpu/quantise", "--batch", "2,5")
percentages("power", path("rows.h5"))
# What an error looks like, and outputs in files.
percentages("verify", fixture, "--subject", FAULTS, "--kernel", "faults/scaled-unordered", code=1)
with h5py.File(fixture) as file:
    numpy.save(path("o.npy"), numpy.stack([file[f"layers/{n}/truth/quantised"][...] for n in range(4)]).astype(numpy.float32))
percentages("verify", fixture, "--outputs", path("o.npy"), "--outputs", path("o.npy"))
# A study says which layer of a seed is next and, once it has done some, how long the rest takes.
shown = [line for line in lines_of("study", "drift", "--shape", "8,3,96,48", "--tokens", 3, "--seeds", 2, "--layers", 3,
                                   "--paths", "nvfp4.fma32") if "layer" in line]
expect([re.sub(", [0-9]+ s left$", "", line).strip() for line in shown] ==
       [f"{100 * n / 6:.0f} %  8,3,96,48 nvfp4: layer {n % 3 + 1} of 3" for n in range(6)], str(shown))
expect(["left" in line for line in shown] == [False] + 5 * [True], str(shown))
expect("%" not in run("verify", path("1.h5")).stderr, "a line of progress that no one sees")
expect_kept()
