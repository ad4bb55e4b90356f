# SPDX-License-Identifier: Apache-2.0
"""Generated fixtures: small files, the bits of the stored form, every kind of data and routing."""
import os
import subprocess

import h5py
import numpy as np

from kept import expect_kept
from program import ALL, PROGRAM, expect, path, record, run

SHAPE = ["--shape", "16,4,128,64", "--tokens", "6", "--layers", "2"]
FORMATS, DATA = ("nvfp4", "mxfp8", "bf16"), ("gaussian", "ties", "edge")
KINDS = [(weights, data, "uniform") for w, weights in enumerate(FORMATS) for d, data in enumerate(DATA) if ALL or w == d]
KINDS += [("nvfp4", "gaussian", routing) for routing in ("skewed", "holes", *(("hot", "half") if ALL else ()))]
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


# A generator's bits are those of its name for ever: of every problem of a group how the hash of its inputs begins, or that
# it is refused.
GOLDEN = {
    "nvfp4": "f42a 8285 986a - - 7dbd 3be5 c0ed",
    "mxfp4": "92f7 843e 2ee3 - - 04d7 0624 32cf",
    "mxfp8": "b5e3 bc64 2016 - - ea64 08b4 5537",
    "fp8": "cdc3 db39 6b3c - - 872b b640 3952",
    "bf16": "bc07 1c76 90ef - - 1d0a 4959 2cdd",
    "nvfp4 with nvfp4": "- a133 180e",
    "mxfp4 with mxfp8": "- 358d cf3c",
    "mxfp8 with mxfp8": "- d82d cea1",
    "fp8 with fp8": "- fbdc ccf5",
    "nonfinite": "dc5e 7425 ab53 901f db99",
    "scales": "e753 6aba af3c 3b68 0298",
    "routing": "92f7 e637 4a2b 7a86 deac 0ed4 1741 - d5e7",
    "nvfp4.trtllm/1": "0d60 3dee 143c 3caa 96d2 2a72 b84d ccab ba49 84a2 c4a7 8e97",
    "mxfp6e3m2.ceil/1": "b50d 0d58 3d23 1cca 3980 10a6 4eee f4f8 f36e 99b2 b6a4 e3e6",
    "mxfp6e2m3.ceil/1": "3d8f 645d e902 8dbc 3f0d c16c 50e5 dcfe 6f07 2357 52f6 4ecc",
    "mxfp8.rceil/1": "a04f df08 f1a7 d563 7eac e607 86c2 8ddc 5476 e5b6 dad0 d89e",
    "mxfp8e5m2.ceil/1": "48fe ff5f 6364 8467 0d18 0cd4 087e 8751 6750 75a5 4792 a19f",
    "fp8fnuzg128.vllm-fused/1": "3724 0024 13ea 3a7f 7607 1abc 74c0 d41c a6c2 e0a8 cffb 7ad7",
    "int8g128.vllm/1": "27c3 4f37 495f 4c85 e4a7 8ced ae8e f9af dabf c9a7 3bb7 6aef",
}
for number, (name, options) in enumerate(GROUPS.items()):
    golden = GOLDEN[name].split()
    expect(len(golden) == len(options), name)
    # Of a group some, others of the next one; every routing.
    step = 1 if ALL or name == "routing" else min(6, len(options))
    for one, begin in list(zip(options, golden))[number % step::step]:
        made = subprocess.run([PROGRAM, "make", path("golden.h5"), *one], capture_output=True).returncode == 0
        expect(made == (begin != "-"), f"{name}: refused: {one}")
        if made:
            with h5py.File(path("golden.h5")) as file:
                expect(file.attrs["input_sha256"].decode().startswith(begin),
                       f"{name}: other bits than this generator has always made: {one}")

expect_kept()
