# SPDX-License-Identifier: Apache-2.0
"""Data of kind exact: the lane binds without an order, and only where the sums fit the declared accumulator."""
import json

import h5py
import numpy as np

from program import ALL, FAULTS, expect, path, record, refused, run

SHAPE = ["--shape", "8,2,128,32", "--tokens", "8", "--data", "exact"]

expect("--routing uniform" in refused("make", path("x.h5"), *SHAPE), "a router's weights are not exact")
fixture = path("exact.h5")
for form in ("nvfp4", "mxfp8", "mxfp4", "fp8", "bf16"):
    run("make", fixture, *SHAPE, "--routing", "uniform", "--format", form)
    lane = record(fixture)["cases"][0]["lanes"]["exact"]
    expect(lane["binding"] and lane["result"] == "PASS" and lane["compared"] == 8 * (128 + 2 * 32), f"{form}: {lane}")
    expect(12 < lane["widest_sum_bits"] <= 24, f"{form}: {lane}")

run("make", fixture, *SHAPE, "--routing", "uniform")
table = run("verify", fixture, "-v").stdout
expect("Every sum is exact in any order" in table and "0 of 1536 values differ" in table, table)

# One wrong element fails without an order, and by this lane alone if nothing else binds.
case, = record(fixture, "--subject", FAULTS, "--kernel", "faults/one-element-unordered", code=1)["cases"]
expect("all correct kernels give the same value" in case["reason"], case["reason"])
expect(case["lanes"]["exact"]["mismatching"] == 1, case["lanes"]["exact"])
with open(path("gate.json"), "w") as stream:
    stream.write('{"schema": "gaugeblock-gate/1", "name": "exact alone", "lanes": ["exact"]}')
record(fixture, "--subject", FAULTS, "--kernel", "faults/one-element-unordered", "--gate", path("gate.json"), code=1)
record(fixture, "--subject", FAULTS, "--kernel", "faults/one-element-unordered", "--gate", "cosine-0.99")

# Quantised activations: the lane reaches through both quantisers of the contract, and not into that with bf16 activations.
for weights, activations in (("nvfp4", "nvfp4"), ("mxfp8", "mxfp8"), ("mxfp4", "mxfp8")):
    run("make", fixture, *SHAPE, "--routing", "uniform", "--format", weights, "--activations", activations)
    plain, quantised = (c["lanes"]["exact"] for c in record(fixture)["cases"])
    expect(plain["result"] == "NOT_RUN" and plain["reason"], f"{weights}: {plain}")
    expect(quantised["binding"] and quantised["result"] == "PASS", f"{weights}: {quantised}")
    expect(12 < quantised["widest_sum_bits"] <= 24, f"{weights}: {quantised}")
run("make", fixture, "--shape", "6,3,384,256", "--data", "exact", "--routing", "holes", "--format", "fp8", "--activations", "fp8")
lane = record(fixture)["cases"][1]["lanes"]["exact"]
expect(lane["binding"] and lane["result"] == "PASS", f"fp8: {lane}")
run("make", fixture, "--shape", "8,3,256,128", "--tokens", "7", "--layers", "2", "--data", "exact", "--routing", "uniform",
    "--activations", "nvfp4", "--generated")
for fault in ("none", "next-scale", "nibbles", "recipe", "not"):
    for suffix in ("-unordered", "-silent"):
        code = 0 if fault == "none" else 1
        case, = record(fixture, "--subject", FAULTS, "--kernel", f"faults/quantised-{fault}{suffix}", "--gate",
                       path("gate.json"), code=code)["cases"]
        lane = case["lanes"]["exact"]
        expect(lane["binding"] and (lane["mismatching"] > 0) == (code > 0), f"{fault}{suffix}: {lane}")
expect("exact/2" in refused("make", path("x.h5"), *SHAPE[:4], "--routing", "uniform", "--data", "exact/1",
                            "--activations", "nvfp4"), "data of bf16 activations")
expect("exact/1" in refused("make", path("x.h5"), *SHAPE[:4], "--routing", "uniform", "--data", "exact/2"),
       "and the reverse")

# Alone, it sees every planted fault that changes anything.
for weights, activations in (("nvfp4", "nvfp4"), ("mxfp8", "mxfp8"), ("fp8", "fp8"))[:3 if ALL else 1]:
    run("make", fixture, "--shape", "6,3,512,256", "--data", "exact", "--routing", "uniform", "--format", weights,
        "--activations", activations)
    run("power", fixture, "--gate", path("gate.json"), "-o", path("power.json"))
    with open(path("power.json")) as stream:
        faults = [f for f in json.load(stream)["faults"] if f["changed"]]
    expect(len(faults) > 90 and all(f["caught_by"]["exact alone"] == ["exact"] for f in faults), f"{weights}: {len(faults)} faults")

run("make", fixture, *SHAPE, "--routing", "uniform")

# The lane needs the accumulator that the subject declares to hold its sums.
reference = path("outputs.h5")
with h5py.File(fixture) as f, h5py.File(reference, "w") as o:
    o["layers/0/output"] = f["layers/0/truth/quantised"][()].astype(np.float32)
for bits, holds in (("24", True), ("16", False)):
    lane = record(fixture, "--outputs", reference, "--accumulator-bits", bits,
                  code=1 if holds else 0)["cases"][0]["lanes"]["exact"]
    expect(lane["binding"] == holds and lane["result"] == ("FAIL" if holds else "NOT_RUN"), f"{bits}: {lane}")
expect("too many bits" in lane["reason"], lane)

# Other data: not judged, with the reason.
run("make", path("gaussian.h5"), "--shape", "8,2,128,32")
lane = record(path("gaussian.h5"))["cases"][0]["lanes"]["exact"]
expect(not lane["binding"] and lane["result"] == "NOT_RUN" and lane["reason"], lane)

# A gate with this lane alone, where it cannot bind, verified nothing.
record(path("gaussian.h5"), "--gate", path("gate.json"), code=4)
