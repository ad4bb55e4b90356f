# SPDX-License-Identifier: Apache-2.0
"""Generated fixtures: small files, the bits of the stored form, every kind of data and routing."""
import hashlib
import os
import subprocess

import h5py
import numpy as np

from kept import expect_kept
from program import ALL, PROGRAM, expect, path, record, run

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

KINDS_OF_DATA = ("gaussian", "ties", "edge", "nonfinite", "exact", "wide", "sparse", "shared")
ROUTINGS = ("router", "uniform", "skewed", "hot", "half", "holes", "loads", "boundary", "equal")
LAYER = ["--shape", "12,3,128,128", "--tokens", "5", "--seed", "11"]
# Groups of problems: lists of options of `make`, of which some refuse each other.
GROUPS = {name: [[*LAYER, "--format", name, "--data", data] for data in KINDS_OF_DATA]
          for name in ("nvfp4", "mxfp4", "mxfp8", "fp8", "bf16")}
GROUPS.update({f"{name} with {activations}": [[*LAYER, "--format", name, "--activations", activations, "--data", data]
                                              for data in ("exact", "edge", "ties")]
               for name, activations in (("nvfp4", "nvfp4"), ("mxfp4", "mxfp8"), ("mxfp8", "mxfp8"), ("fp8", "fp8"))})
GROUPS["nonfinite"] = [[*LAYER, "--format", name, "--data", "nonfinite", "--routing", "uniform"]
                       for name in ("nvfp4", "mxfp4", "mxfp8", "fp8", "bf16")]
GROUPS["scales"] = [[*LAYER, "--format", name, "--data", "scales", "--routing", "uniform"]
                    for name in ("nvfp4", "mxfp4", "mxfp8", "fp8", "bf16")]
GROUPS["routing"] = [[*LAYER, "--format", "mxfp4", "--routing", routing] for routing in ROUTINGS]
GROUPS.update({recipe: [["--operator", operator, "--recipe", recipe, "--shape", "6,256", "--input", form, "--data", data]
                        for operator in ("quantise", "silu_mul_quantise") for form in ("bf16", "fp16")
                        for data in ("gaussian", "ties", "edge")]
               for recipe in ("nvfp4.trtllm/1", "mxfp6e3m2.ceil/1", "mxfp6e2m3.ceil/1", "mxfp8.rceil/1", "mxfp8e5m2.ceil/1",
                              "fp8fnuzg128.vllm-fused/1", "int8g128.vllm/1")})


def fingerprint(options):
    """Of the inputs of each problem that exists."""
    found = hashlib.sha256()
    for one in options:
        if subprocess.run([PROGRAM, "make", path("golden.h5"), *one], capture_output=True).returncode:
            found.update(b"refused\n")
            continue
        with h5py.File(path("golden.h5")) as file:
            found.update(file.attrs["input_sha256"] + b"\n")
    return found.hexdigest()[:16]


# A generator's bits are those of its name for ever: hashes of the inputs of every group.
GOLDEN = {
    "nvfp4": "621033d2df80d0c0", "mxfp4": "83de0d1704180ba5", "mxfp8": "72447fb2b512b856", "fp8": "705368eb4048bb34",
    "bf16": "6bf3bdd6486e6ead", "nvfp4 with nvfp4": "8329118d02063ef3", "mxfp4 with mxfp8": "41090f9e1ee227a0",
    "mxfp8 with mxfp8": "37f5053d1c853f04", "fp8 with fp8": "7aaaf63c78d76d57", "nonfinite": "d1d43d5547b4793d",
    "scales": "04140e2b523e1277", "routing": "12b8fd96c4fc2a49",
    "nvfp4.trtllm/1": "ef9f047680478096", "mxfp6e3m2.ceil/1": "28bfb52de68d5984", "mxfp6e2m3.ceil/1": "3172ddab63341ba0",
    "mxfp8.rceil/1": "d9052de74e99410e", "mxfp8e5m2.ceil/1": "e8cfa873103d3ca5",
    "fp8fnuzg128.vllm-fused/1": "bc90e2d9b96a5121", "int8g128.vllm/1": "c82fbe4bd51d0811",
}
for name, options in GROUPS.items():
    expect(fingerprint(options) == GOLDEN[name], f"{name}: other bits than this generator has always made: {options}")

expect_kept()
