# SPDX-License-Identifier: Apache-2.0
"""Layers whose routing weight multiplies the input, as Llama-4's: made, judged against numpy, told from layers that weigh
their outputs, and refused where a token has several experts."""
import os
import subprocess

import h5py
import numpy as np

from blocks import block
from edited import input_hash
from kept import expect_kept
from program import ALL, FAULTS, expect, path, record, refused, run

fixture = path("weighed.h5")
run("make", fixture, "--router", "transformers.llama4/1", "--shape", "8,1,96,48", "--tokens", "9", "--layers", "2")
with h5py.File(fixture) as f:
    expect(f.attrs["weighed_input"] == 1 and "stack" not in f, dict(f.attrs))
    weights = f["layers/0/routing/weights"][:]
    expect(0 < weights.min() and weights.max() < 1, f"sigmoids: {weights}")
expect("multiplies x" in run("info", fixture).stdout, "info")

# The reference, operator by operator, on the CPU; a kernel that does not know of it is not asked.
cases = record(fixture, "--kernel", "cpu/nvfp4-*", "--expect", "10")["cases"]
expect(all(case["verdict"] == "PASS" for case in cases), str([case["reason"] for case in cases]))
case, = record(fixture, "--subject", FAULTS, "--kernel", "faults/none", code=3)["cases"]
expect(case["verdict"] == "UNSUPPORTED" and "weighs outputs" in case["reason"], case["reason"])

# Injected: the weight on the output. SiLU tells it in every check.
names = ("weighs-input", "weighs-input-unordered", "weighs-output", "weighs-output-unordered")
kernels = [word for name in names for word in ("--kernel", f"faults/{name}")]
cases = record(fixture, "--subject", FAULTS, *kernels, "--no-diagnosis", code=1)["cases"]
for name, case in zip(names, cases, strict=True):
    expect(case["subject"]["name"] == f"faults/{name}" and case["verdict"] == case["checks"]["bound"]["result"] ==
           ("FAIL" if "output" in name else "PASS"), f"{name}: {case['reason']}")
run("make", path("small.h5"), "--router", "transformers.llama4/1", "--shape", "4,1,32,16", "--tokens", "4")
run("verify", path("small.h5"), "--subject", FAULTS, "--kernel", "faults/weighs-output-unordered", "--no-diagnosis",
    "--minimise", path("least.h5"), code=1)
with h5py.File(path("least.h5")) as f:
    expect(f.attrs["weighed_input"] == 1, "the smallest problem weighs its input, too")
record(path("least.h5"), "--subject", FAULTS, "--kernel", "faults/weighs-output-unordered", code=1)
run("power", fixture)

# The example of docs/kernels.md with the weight moved, in float64, and as it stands.
script = block("kernels.md", "python")
moved = script.replace("        for e in np.unique", "        x = to_bf16(weights * x)\n        for e in np.unique")
moved = moved.replace("weights[t, j][:, None] * (h", "(h")
expect(moved.count("weights") == script.count("weights"), "docs/kernels.md has another script")
for text, code in ((moved, 0), (script, 1)):
    with open(path("outputs.py"), "w") as stream:
        stream.write(text)
    subprocess.run([os.environ["PYTHON"], path("outputs.py"), fixture, path("o.h5")], check=True)
    record(fixture, "--outputs", path("o.h5"), "--no-diagnosis", code=code)

# The documented hash covers the mark.
digest = input_hash(fixture)
with h5py.File(fixture, "r+") as f:
    expect(digest == f.attrs["input_sha256"].decode(), f"hash {digest}")
    f.attrs["weighed_input"] = np.uint64(0)
expect("input_sha256" in run("verify", fixture, code=2).stderr, "the mark was taken off")

line = refused("make", path("two.h5"), "--router", "transformers.llama4/1", "--shape", "8,2,96,48")
expect("inputs of their own" in line and "top_k is 2" in line, line)
plain = path("plain.h5")
run("make", plain, "--shape", "8,2,96,48", "--generated")
with h5py.File(plain, "r+") as f:
    f.attrs["weighed_input"] = np.uint64(1)
expect("weighed_input" in run("info", plain, code=2).stderr, "two experts of a token")
models = {line.split()[0]: line for line in run("list", "models").stdout.splitlines()}
expect("transformers.llama4/1" in models["llama-4-scout"], "a model has its router")
if ALL:  # 126 million weights
    run("make", path("scout.h5"), "--model", "llama-4-scout", "--tokens", "1", "--generated")
    expect("transformers.llama4/1" in run("info", path("scout.h5")).stdout, "its router is the file's")

expect_kept()
