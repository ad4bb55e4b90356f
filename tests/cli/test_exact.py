# SPDX-License-Identifier: Apache-2.0
"""Data of kind exact: the check binds without an order, and only where the sums fit the declared accumulator."""
import json

import h5py
import numpy as np

from kept import expect_kept
from program import ALL, FAULTS, expect, path, record, refused, run

SHAPE = ["--shape", "8,2,128,32", "--tokens", "8", "--data", "exact"]

expect("--routing uniform" in refused("make", path("x.h5"), *SHAPE), "a router's weights are not exact")
forms = ("nvfp4", "mxfp8", "mxfp4", "fp8", "bf16")
for form in forms:
    run("make", path(f"{form}.h5"), *SHAPE, "--routing", "uniform", "--format", form)
for form, case in zip(forms, record(*(path(f"{form}.h5") for form in forms))["cases"], strict=True):
    check = case["checks"]["exact"]
    expect(check["binding"] and check["result"] == "PASS" and check["compared"] == 8 * (128 + 2 * 32), f"{form}: {check}")
    expect(12 < check["widest_sum_bits"] <= 24, f"{form}: {check}")

fixture = path("exact.h5")
run("make", fixture, *SHAPE, "--routing", "uniform")
table = run("verify", fixture, "-v").stdout
expect("Every sum is exact in any order" in table and "0 of 1536 values differ" in table, table)

# One wrong element fails without an order, and by this check alone if nothing else binds.
case, = record(fixture, "--subject", FAULTS, "--kernel", "faults/one-element-unordered", code=1)["cases"]
expect("all correct kernels give the same value" in case["reason"], case["reason"])
expect(case["checks"]["exact"]["mismatching"] == 1, case["checks"]["exact"])
with open(path("gate.json"), "w") as stream:
    stream.write('{"schema": "gaugeblock-gate/2", "name": "exact alone", "checks": ["exact"]}')
record(fixture, "--subject", FAULTS, "--kernel", "faults/one-element-unordered", "--gate", path("gate.json"), code=1)
record(fixture, "--subject", FAULTS, "--kernel", "faults/one-element-unordered", "--gate", "cosine-0.99")

# Quantised activations: the check reaches through both quantisers of the contract, and not into that with bf16 activations.
for weights, activations in (("nvfp4", "nvfp4"), ("mxfp8", "mxfp8"), ("mxfp4", "mxfp8")):
    run("make", fixture, *SHAPE, "--routing", "uniform", "--format", weights, "--activations", activations)
    plain, quantised = (c["checks"]["exact"] for c in record(fixture)["cases"])
    expect(plain["result"] == "NOT_RUN" and plain["reason"], f"{weights}: {plain}")
    expect(quantised["binding"] and quantised["result"] == "PASS", f"{weights}: {quantised}")
    expect(12 < quantised["widest_sum_bits"] <= 24, f"{weights}: {quantised}")
run("make", fixture, "--shape", "6,3,384,256" if ALL else "6,3,128,128", "--data", "exact", "--routing", "holes", "--format", "fp8", "--activations", "fp8")
check = record(fixture)["cases"][1]["checks"]["exact"]
expect(check["binding"] and check["result"] == "PASS", f"fp8: {check}")
run("make", fixture, "--shape", "8,3,256,128" if ALL else "8,3,128,64", "--tokens", "7" if ALL else "2", "--layers", "2", "--data", "exact", "--routing", "uniform",
    "--activations", "nvfp4", "--generated")
kernels = [f"faults/quantised-{fault}{suffix}" for number, fault in enumerate(("none", "next-scale", "nibbles", "recipe", "not"))
           for suffix in (("-unordered", "-silent") if ALL else ("-unordered", "-silent")[number % 2:][:1])]
cases = record(fixture, "--subject", FAULTS, *(word for name in kernels for word in ("--kernel", name)), "--gate",
               path("gate.json"), "--no-diagnosis", code=1)["cases"]
for name, case in zip(kernels, cases, strict=True):
    check = case["checks"]["exact"]
    wrong = "quantised-none" not in name
    expect(case["exit_code"] == wrong, f"{name}: {case['verdict']}")
    expect(check["binding"] and (check["mismatching"] > 0) == wrong, f"{name}: {check}")
expect("exact/2" in refused("make", path("x.h5"), *SHAPE[:4], "--routing", "uniform", "--data", "exact/1",
                            "--activations", "nvfp4"), "data of bf16 activations")
expect("exact/1" in refused("make", path("x.h5"), *SHAPE[:4], "--routing", "uniform", "--data", "exact/2"),
       "and the reverse")

# Alone, it sees every injected fault that changes anything.
for weights, activations in (("nvfp4", "nvfp4"), ("mxfp8", "mxfp8"), ("fp8", "fp8"))[:3 if ALL else 1]:
    run("make", fixture, "--shape", "6,3,512,256" if ALL else "6,3,256,128", "--data", "exact", "--routing", "uniform", "--format", weights,
        "--activations", activations)
    run("power", fixture, "--gate", path("gate.json"), "-o", path("power.json"))
    with open(path("power.json")) as stream:
        faults = [f for f in json.load(stream)["injected_bugs"] if f["changed"]]
    expect(len(faults) > 90 and all(f["caught_by"]["exact alone"] == ["exact"] for f in faults), f"{weights}: {len(faults)} faults")

run("make", fixture, *SHAPE, "--routing", "uniform")

# The check needs the accumulator that the subject declares to hold its sums.
reference = path("outputs.h5")
with h5py.File(fixture) as f, h5py.File(reference, "w") as o:
    o["layers/0/output"] = f["layers/0/truth/quantised"][()].astype(np.float32)
for bits, holds in (("24", True), ("16", False)):
    check = record(fixture, "--outputs", reference, "--accumulator-bits", bits,
                  code=1 if holds else 0)["cases"][0]["checks"]["exact"]
    expect(check["binding"] == holds and check["result"] == ("FAIL" if holds else "NOT_RUN"), f"{bits}: {check}")
expect("too many bits" in check["reason"], check)

# Other data: not judged, with the reason.
run("make", path("gaussian.h5"), "--shape", "8,2,128,32")
check = record(path("gaussian.h5"))["cases"][0]["checks"]["exact"]
expect(not check["binding"] and check["result"] == "NOT_RUN" and check["reason"], check)

# A gate with this check alone, where it cannot bind, verified nothing.
record(path("gaussian.h5"), "--gate", path("gate.json"), code=4)

expect_kept()
