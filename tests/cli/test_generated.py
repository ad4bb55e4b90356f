# SPDX-License-Identifier: Apache-2.0
"""Generated fixtures: small files, the bits of the stored form, every kind of data and routing."""
import os

import h5py
import numpy as np

from program import ALL, expect, path, record, run

SHAPE = ["--shape", "32,4,128,64", "--tokens", "6", "--layers", "2"]
FORMATS, DATA = ("nvfp4", "mxfp8", "bf16"), ("gaussian", "ties", "edge")
KINDS = [(weights, data, "uniform") for w, weights in enumerate(FORMATS) for d, data in enumerate(DATA) if ALL or w in (0, d)]
KINDS += [("nvfp4", "gaussian", routing) for routing in ("skewed", "hot", "half", "holes")]
outputs = {}
for name in KINDS:
    for kind in ("--generated", "--stored"):
        run("make", path("g.h5"), *SHAPE, "--format", name[0], "--data", name[1], "--routing", name[2], kind)
        case, = record(path("g.h5"))["cases"]
        hashes = [layer["output_sha256"] for layer in case["metrics"]["layers"]]
        expect(outputs.setdefault(name, hashes) == hashes, f"{name}: stored and generated differ in bits")
        if kind == "--generated":
            expect(os.path.getsize(path("g.h5")) < 200_000, f"{name}: weights in the file")
expect(len({str(hashes) for hashes in outputs.values()}) == len(outputs), "kinds that give the same bits")


def ids(routing, tokens=200):
    run("make", path("r.h5"), "--shape", "16,3,32,32", "--tokens", tokens, "--routing", routing, "--generated")
    with h5py.File(path("r.h5")) as f:
        return f["layers/0/routing/ids"][:]


loads = {kind: np.bincount(ids(kind).ravel(), minlength=16) for kind in ("uniform", "skewed", "hot", "half")}
expect(loads["uniform"].min() > 15 and loads["uniform"].max() < 65, str(loads["uniform"]))
expect(loads["skewed"].max() > 3 * np.median(loads["skewed"]), str(loads["skewed"]))
expect(loads["hot"].max() == 200, str(loads["hot"]))
expect((loads["half"] == 0).sum() == 8, str(loads["half"]))
expect(90 < (ids("holes") == -1).sum() < 210, "a quarter of the slots is empty")

with h5py.File(path("g.h5"), "r+") as f:
    f.attrs["kind"] = np.bytes_("generated")
run("info", path("g.h5"), code=2)
run("make", path("r.h5"), "--shape", "16,3,32,32", "--routing", "router", "--generated")
with h5py.File(path("r.h5"), "r+") as f:
    f.attrs["seed"] = 2
expect("input_sha256" in run("info", path("r.h5"), code=2).stderr, "another seed is another problem")
with h5py.File(path("r.h5"), "r+") as f:
    f.attrs["intermediate"] = 1 << 30
expect("too large" in run("info", path("r.h5"), code=2).stderr, "sizes that no dataset bounds are bounded")
for flag, value in (("--routing", "none"), ("--data", "none"), ("--model", "none")):
    run("make", path("r.h5"), *SHAPE, flag, value, code=2)
