# SPDX-License-Identifier: Apache-2.0
"""Files and names given by mistake: nothing is overwritten, nothing is judged in another's place, and one line says what
to give instead."""
import json
import os
import shutil

import h5py
import numpy as np

from kept import expect_kept
from program import CAPTURE, CHECKPOINT, FAULTS, SOURCE, expect, path, record, refused, run, small

fixture = small()
refused("vectors", "")
for name, words in ((path("no/such.h5"), "folder that exists"), ("", "name a file"),
                    (os.path.dirname(fixture), "is no regular file")):
    line = refused("verify", fixture, "--subject", FAULTS, "--minimise", name)
    expect("--minimise" in line and words in line, line)


def kept(file, *arguments):
    """The command refuses to write over that input of its own, which stays as it is."""
    with open(file, "rb") as stream:
        was = stream.read()
    line = refused(*arguments)
    expect("is an input of this command" in line and os.path.basename(file) in line, line)
    with open(file, "rb") as stream:
        expect(stream.read() == was, f"{file} was changed")


os.link(fixture, path("fixture.json"))
output = {"json": path("fixture.json"), "npy": path("outputs.json")}
with h5py.File(fixture) as f, open(output["npy"], "wb") as stream:
    np.save(stream, np.stack([f[f"layers/{layer}/truth/quantised"][:].astype("f4") for layer in sorted(f["layers"])]))
with open(path("own-gate.json"), "w") as stream:
    json.dump({"schema": "gaugeblock-gate/2", "name": "own", "checks": ["bound"]}, stream)
shutil.copytree(CHECKPOINT, path("checkpoint"))
shutil.copy(CAPTURE, path("capture.h5"))
vectors = os.path.join(path("vectors"), "e4m3-1x32-e8m0.txt")
shutil.copytree(os.path.join(SOURCE, "fixtures/vectors"), path("vectors"))
os.link(vectors, path("vectors.json"))
kept(fixture, "verify", fixture, "--subject", FAULTS, "--minimise", fixture)
kept(fixture, "verify", fixture, "-o", output["json"])
kept(output["json"], "verify", output["json"], "-o", output["json"])
kept(output["npy"], "verify", fixture, "--outputs", output["npy"], "-o", output["npy"])
kept(path("own-gate.json"), "verify", fixture, "--gate", path("own-gate.json"), "-o", path("own-gate.json"))
kept(path("own-gate.json"), "power", fixture, "--gate", path("own-gate.json"), "-o", path("own-gate.json"))
kept(path("fixture.json"), "power", fixture, "-o", output["json"])
kept(path("vectors.json"), "identify", vectors, vectors, "-o", path("vectors.json"))
for name in ("config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"):
    kept(path("checkpoint/" + name), "import", path("checkpoint"), path("checkpoint/" + name))
shutil.copy(fixture, path("checkpoint/old.h5"))  # no input
run("import", path("checkpoint"), path("checkpoint/old.h5"), "--format", "nvfp4", "--tokens", 1)
kept(path("capture.h5"), "import", path("checkpoint"), path("capture.h5"), "--capture", path("capture.h5"))

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
for arguments in (("verify", fixture, "--gate"), ("verify", fixture, "--subject"), ("diff", path("fifo"))):
    line = refused(*arguments, path("fifo"), timeout=60)
    expect("fifo: is no regular file" in line, line)
gate = {"schema": "gaugeblock-gate/2", "checks": ["bound"]}
for name in ("a\nPASS b", "a|b", "\xe9", "default", ""):
    with open(path("gate.json"), "w") as stream:
        json.dump({**gate, "name": name}, stream)
    expect(": name: " in refused("verify", fixture, "--gate", path("gate.json")), repr(name))
odd = os.fsencode(path("")) + b"\xff.json"
with open(odd, "w") as stream:
    json.dump(gate, stream)
run("power", fixture, "--gate", os.fsdecode(os.path.basename(odd)), "-o", path("power.json"), cwd=path(""))
with open(path("power.json")) as stream:
    power = json.load(stream)
expect(power["policies"][0]["name"] and power["policies"][0]["caught"] > 0, str(power["policies"][0]))

# A batch that one fixture of several does not have costs that fixture's case.
big = path("big.h5")
run("make", big, "--shape", "8,2,64,32", "--tokens", "20")
cases = record(big, fixture, "--batch", "20", code=2)["cases"]
expect([case["verdict"] for case in cases] == ["PASS", "BAD_INPUT"] and fixture in cases[1]["reason"], str(cases))

expect_kept()
