# SPDX-License-Identifier: Apache-2.0
"""Data of kind exact: the lane binds without an order, and only where the sums fit the declared accumulator."""
import h5py
import numpy as np

from program import FAULTS, expect, path, record, refused, run

SHAPE = ["--shape", "8,2,128,32", "--tokens", "8", "--data", "exact"]

expect("--routing uniform" in refused("make", path("x.h5"), *SHAPE), "a router's weights are not exact")
fixture = path("exact.h5")
for form in ("nvfp4", "mxfp8", "mxfp4", "fp8", "bf16"):
    run("make", fixture, *SHAPE, "--routing", "uniform", "--format", form)
    lane = record(fixture)["cases"][0]["lanes"]["exact"]
    expect(lane["binding"] and lane["result"] == "PASS" and lane["compared"] == 8 * (128 + 2 * 32), f"{form}: {lane}")
    expect(12 < lane["widest_sum_bits"] <= 24, f"{form}: {lane}")

run("make", fixture, *SHAPE, "--routing", "uniform")
table = run("verify", fixture).stdout
expect("every sum is exact in any order" in table and "0 of 1536 values differ" in table, table)

# One wrong element fails without an order, and by this lane alone if nothing else binds.
case, = record(fixture, "--subject", FAULTS, "--kernel", "faults/one-element-unordered", code=1)["cases"]
expect("all correct kernels give the same value" in case["reason"], case["reason"])
expect(case["lanes"]["exact"]["mismatching"] == 1, case["lanes"]["exact"])
with open(path("gate.json"), "w") as stream:
    stream.write('{"schema": "gaugeblock-gate/1", "name": "exact alone", "lanes": ["exact"]}')
record(fixture, "--subject", FAULTS, "--kernel", "faults/one-element-unordered", "--gate", path("gate.json"), code=1)
record(fixture, "--subject", FAULTS, "--kernel", "faults/one-element-unordered", "--gate", "cosine-0.99")

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
