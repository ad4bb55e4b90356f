# SPDX-License-Identifier: Apache-2.0
"""Files and names given by mistake: nothing is overwritten, nothing is judged in another's place, and one line says what
to give instead."""
import json
import os

import h5py

from program import FAULTS, expect, path, record, refused, run, small

fixture = small()
with open(fixture, "rb") as stream:
    before = stream.read()
refused("vectors", "")
for name, words in ((fixture, "is the fixture itself"), (path("no/such.h5"), "folder that exists"), ("", "name a file"),
                    (os.path.dirname(fixture), "is no regular file")):
    line = refused("verify", fixture, "--subject", FAULTS, "--minimise", name)
    expect("--minimise" in line and words in line, line)
with open(fixture, "rb") as stream:
    expect(stream.read() == before, "the fixture was changed")

# What is not outputs, or has them under another name, is refused, not judged by its routing alone.
expect("is a fixture" in run("verify", fixture, "--outputs", fixture, code=2).stderr, "a fixture as outputs")
with h5py.File(fixture) as f, h5py.File(path("misnamed.h5"), "w") as o:
    for layer in f["layers"]:
        for name in ("ids", "weights"):
            o[f"layers/{layer}/routing/{name}"] = f[f"layers/{layer}/routing/{name}"][:]
        o[f"layers/{layer}/Output"] = f[f"layers/{layer}/truth/quantised"][:].astype("f4")
line = run("verify", fixture, "--outputs", path("misnamed.h5"), code=2).stderr
expect("name the output 'output'" in line, line)

# Gates: their file is a file, and their name leaves tables and records whole.
os.mkfifo(path("fifo"))
expect("is no regular file" in refused("verify", fixture, "--gate", path("fifo")), "a FIFO as gate")
gate = {"schema": "gaugeblock-gate/1", "lanes": ["bound"]}
for name in ("a\nPASS b", "a|b", "\xe9", "default", ""):
    with open(path("gate.json"), "w") as stream:
        json.dump({**gate, "name": name}, stream)
    expect(": name: " in refused("verify", fixture, "--gate", path("gate.json")), repr(name))
odd = os.fsencode(path("")) + b"\xff.json"
with open(odd, "w") as stream:
    json.dump(gate, stream)
run("power", fixture, "--gate", os.fsdecode(odd), "-o", path("power.json"))
with open(path("power.json")) as stream:
    power = json.load(stream)
expect(power["gates"][0]["name"] and power["gates"][0]["caught"] > 0, str(power["gates"][0]))

# A batch that one fixture of several does not have costs that fixture's case.
big = path("big.h5")
run("make", big, "--shape", "8,2,64,32", "--tokens", "20")
cases = record(big, fixture, "--batch", "20", code=2)["cases"]
expect([case["verdict"] for case in cases] == ["PASS", "BAD_INPUT"] and fixture in cases[1]["reason"], str(cases))
