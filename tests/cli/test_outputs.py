# SPDX-License-Identifier: Apache-2.0
"""Outputs as files: the script of docs/kernels.md is judged, and a single changed element is found."""
import json
import os
import struct
import subprocess

import h5py
import numpy as np

from blocks import block
from kept import expect_kept
from program import expect, path, record, refused, run, small

fixture, good = small(), path("outputs.h5")
with open(path("outputs.py"), "w") as stream:
    stream.write(block("kernels.md", "python"))
subprocess.run([os.environ["PYTHON"], path("outputs.py"), fixture, good], check=True)
one = record(fixture, "--outputs", good)
expect(one["cases"][0]["checks"]["bound"]["elements"] == 2 * 9 * 96, "every element is checked")

with h5py.File(good) as f:
    layers = [f[f"layers/{i}/output"][:] for i in range(2)]
np.save(path("outputs.npy"), np.stack(layers))
record(fixture, "--outputs", path("outputs.npy"))

changed = np.stack(layers)
size = np.sqrt((changed[1, 5] ** 2).mean())
changed[1, 5, 77] += 0.05 * size
np.save(path("changed.npy"), changed)
reason = record(fixture, "--outputs", path("changed.npy"), code=1)["cases"][0]["reason"]
expect("output of layer 1: 1 of" in reason and "token 5, element 77" in reason, reason)

# With the order claimed, one bit is enough; the reference's own bits come from its record.
record(fixture, "--outputs", path("outputs.npy"), "--order", "fma32/1", "--no-diagnosis", code=1)

# A kernel that stores gate, up, silu and its slots in bf16 passes if it says so, by as much as it says.
rounded = block("kernels.md", "python")
for exact, stored in (("T, 2, axis=1)", "T, 2, axis=1)\n            gate, up = to_bf16(gate), to_bf16(up)"),
                      ("gate / (1 + np.exp(-gate)) * up", "to_bf16(gate / (1 + np.exp(-gate))) * up"),
                      ('(h @ dequantise(layer["down"], e, 1).T)', 'to_bf16(h @ dequantise(layer["down"], e, 1).T)')):
    expect(exact in rounded, f"docs/kernels.md without {exact}")
    rounded = rounded.replace(exact, stored)
with open(path("rounded.py"), "w") as stream:
    stream.write(rounded)
subprocess.run([os.environ["PYTHON"], path("rounded.py"), fixture, path("rounded.h5")], check=True)
record(fixture, "--outputs", path("rounded.h5"), "--no-diagnosis", code=1)
record(fixture, "--outputs", path("rounded.h5"), "--rounding", "gate_up=fp32,slot=bf16", "--no-diagnosis", code=1)
one = record(fixture, "--outputs", path("rounded.h5"), "--rounding", "gate_up=bf16,silu=bf16,slot=bf16")["cases"][0]
expect(one["subject"]["roundings"] == {"gate_up": "bf16", "silu": "bf16", "slot": "bf16", "routing_weight": "fp32",
                                        "weighted": "fp32"}, str(one["subject"]))
expect(one["repro"].endswith(" --rounding gate_up=bf16,silu=bf16,slot=bf16"), one["repro"])
for words in (["gate=bf16"], ["silu"], ["silu=fp8"], ["silu="], ["silu=bf16,silu=bf16"], [""], ["silu=bf16,"],
              ["silu=bf16", "--rounding", "slot=bf16"], ["silu=bf16", "--order", "fma32/1"]):
    expect("--rounding" in refused("verify", fixture, "--outputs", good, "--rounding", *words), str(words))
refused("verify", fixture, "--rounding", "silu=bf16")
for bits in ("7", "54", "x"):
    refused("verify", fixture, "--outputs", good, "--accumulator-bits", bits)
wide = record(fixture, "--outputs", good, "--accumulator-bits", "14")["cases"][0]["checks"]["bound"]["worst_case_ratio"]
narrow = record(fixture, "--outputs", good)["cases"][0]["checks"]["bound"]["worst_case_ratio"]
expect(wide < narrow, f"an accumulator of 14 bits: {wide} of the bound, of 24 bits: {narrow}")

for value in (np.nan, np.inf, 0.0):
    changed = np.stack(layers)
    changed[0, 3] = value
    np.save(path("changed.npy"), changed)
    record(fixture, "--outputs", path("changed.npy"), "--no-diagnosis", code=1)

np.save(path("prefix.npy"), np.stack(layers)[:, :4])
np.save(path("all.npy"), np.stack(layers))
case, = record(fixture, "--outputs", path("prefix.npy"), code=2)["cases"]
expect(case["verdict"] == "BAD_INPUT" and "has outputs of 4 of 9 tokens" in case["reason"], f"an incomplete file: {case}")
for batch, code in (("4", 0), ("1,4,9", 0), ("3", 2), ("9", 2)):
    case, = record(fixture, "--outputs", path("prefix.npy"), "--batch", batch, code=code)["cases"]
    expect(code or case["batch"] == 4, f"--batch {batch}: {case}")
case, = record(fixture, "--outputs", path("all.npy"), "--batch", "4", code=2)["cases"]
expect("has outputs of 9 of 9 tokens; write as many as --batch says" in case["reason"], str(case))
np.save(path("wrong.npy"), np.zeros((2, 9, 95), np.float32))
expect("wrong.npy" in run("verify", fixture, "--outputs", path("wrong.npy"), code=2).stderr, "the file must be named")
run("verify", fixture, "--outputs", path("missing.npy"), code=2)

# What one layer has, all have: else it would go unjudged in the others.
for name, array in (("intermediate", np.zeros((9, 3, 48), np.uint16)), ("routing/ids", np.zeros((9, 3), np.int32))):
    for having, lacking in ((0, 1), (1, 0)):
        with h5py.File(path("partial.h5"), "w") as f:
            for layer in range(2):
                f[f"layers/{layer}/output"] = layers[layer]
            f[f"layers/{having}/{name}"] = array
            if name == "routing/ids":
                f[f"layers/{having}/routing/weights"] = np.zeros((9, 3), np.float32)
        line = refused("verify", fixture, "--outputs", path("partial.h5"))
        expect(f"partial.h5: /layers/{lacking}/{name}: is missing" in line, line)
for having, lacking in ((0, 1), (1, 0)):
    header, data = {}, b""
    for name, dtype, array in (("layers.0.output", "F32", layers[0]), ("layers.1.output", "F32", layers[1]),
                               (f"layers.{having}.intermediate", "BF16", np.zeros((9, 3, 48), np.uint16))):
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    header = json.dumps(header).encode()
    with open(path("partial.safetensors"), "wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header + data)
    line = refused("verify", fixture, "--outputs", path("partial.safetensors"))
    expect(f"partial.safetensors: layers.{lacking}.intermediate: is missing" in line, line)

# A file name that is no UTF-8 loses no case, and truth that does not fit the inputs is refused.
odd = os.path.join(os.path.dirname(os.fsencode(fixture)), b"od\xffd.h5")
os.rename(fixture, odd)
done = subprocess.run([os.environ["GAUGEBLOCK"], "verify", odd, "--outputs", path("changed.npy"), "--expect", "1"],
                      capture_output=True)
expect(done.returncode == 1 and b"FAIL" in done.stdout, done.stdout.decode(errors="replace"))
os.rename(odd, fixture)
with h5py.File(fixture, "r+") as f:
    f["layers/0/truth/routing_weights"][0, 0] = 1e6
    f.attrs.pop("truth_sha256")  # as of a file that others wrote
expect("truth/routing_weights" in run("verify", fixture, code=2).stderr, "truth that widens the bounds")
os.symlink("/dev/null", path("link.h5"))
run("make", path("link.h5"), "--shape", "8,3,96,48", code=2)
run("verify", small("again.h5"), "-o", path("again.json"))
os.symlink(path("again.json"), path("link.json"))
run("verify", path("again.h5"), "-o", path("link.json"), code=2)

expect_kept()
