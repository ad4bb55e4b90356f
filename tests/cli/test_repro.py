# SPDX-License-Identifier: Apache-2.0
"""The lines that reproduce, of names that a shell would take apart and with every option that a verdict hangs on. What
each test gets from record() is run there as well; lines of Python functions are in test_python.py."""
import json
import os
import shutil

import numpy as np

from kept import expect_kept
from program import FAULTS, expect, path, record, reproduced, run

os.mkdir(path("it's a folder"))
os.chdir(path("it's a folder"))
shutil.copy(FAULTS, "the library.so")
for name, arguments in (("stored one.h5", ["--layers", "2"]), ("$generated.h5", ["--generated"])):
    run("make", name, "--shape", "8,3,96,48", "--tokens", "9", *arguments)
with open("gate;.json", "w") as stream:
    json.dump({"schema": "gaugeblock-gate/2", "checks": ["bound"], "max_abs": 1e-9}, stream)


def lines(*arguments, code):
    """The lines of the cases, which record() has run."""
    return [case["repro"] for case in record(*arguments, code=code)["cases"]]


C = ["--subject", "./the library.so", "--kernel"]
for fixture in ("stored one.h5", "$generated.h5"):
    found = lines(fixture, *C, "faults/one-element", "--batch", "4,9", code=1)
    expect(len(found) == 2 and all(f"'{fixture}'" in line for line in found), found)

# A verdict that hangs on the gate, the time limit, the coverage or the batch.
line, = lines("stored one.h5", *C, "faults/none", "--gate", "gate;.json", code=1)
expect(line.endswith(" --gate 'gate;.json'"), line)
line, = lines("stored one.h5", *C, "faults/hang", "--timeout", "1", code=5)
expect(line.endswith(" --timeout 1"), line)
line, = lines("stored one.h5", *C, "faults/none", "--require-coverage", "slots.empty", code=4)
expect(line.endswith(" --require-coverage slots.empty"), line)
line, = lines("stored one.h5", "--batch", "10", code=2)
expect(line == "gaugeblock verify 'stored one.h5' --batch 10", line)
np.save("the outputs.npy", np.zeros((2, 9, 96), np.float32))
line, = lines("stored one.h5", "--outputs", "the outputs.npy", "--rounding", "silu=bf16", "--accumulator-bits", "20",
              "--gate", "cosine-0.99", code=1)
expect(line == "gaugeblock verify 'stored one.h5' --outputs 'the outputs.npy' --rounding silu=bf16 "
       "--accumulator-bits 20 --gate cosine-0.99", line)

# What is no fixture, and a fixture whose truth is another's.
with open("no fixture.h5", "w") as stream:
    stream.write("nothing")
lines("no fixture.h5", code=2)

# The smallest part, from any folder, under the gate that it was searched with.
for gate in ("gate;.json", "cosine-0.99"):
    case, = record("stored one.h5", *C, "faults/zero-output", "--gate", gate, "--minimise", "small one.h5", code=1)["cases"]
    expect(case["minimal"]["repro"].startswith("gaugeblock verify '/"), case["minimal"]["repro"])
    reproduced([case["minimal"] | {"exit_code": 1}], cwd="/")

expect_kept()
