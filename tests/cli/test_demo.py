# SPDX-License-Identifier: Apache-2.0
"""The trained model: import, truth against the capture's own, verify. Nothing outside the clone is read."""
import json
import os
import struct

import h5py
import numpy as np

from program import CAPTURE, CHECKPOINT, SOURCE, expect, folder, path, run


def safetensors(file):
    types = {"F64": np.float64, "F32": np.float32, "I32": np.int32, "BF16": np.uint16}
    with open(file, "rb") as stream:
        length, = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
        data = stream.read()
    return {name: np.frombuffer(data[t["data_offsets"][0]:t["data_offsets"][1]], types[t["dtype"]]).reshape(t["shape"])
            for name, t in header.items() if name != "__metadata__"}


def to_bf16(v):
    bits = v.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


capture = safetensors(CAPTURE)
os.mkdir(path("build"))
for weights, file, tokens in (("bf16", "bf16.h5", 16), ("nvfp4", "build/demo.h5", 64)):
    some = ["--tokens", tokens] if tokens < 64 else []
    run("import", CHECKPOINT, path(file), "--format", weights, "--capture", CAPTURE, *some)
    with h5py.File(path(file)) as f:
        expect(len(f["layers"]) == 2, "two layers are in the repository")
        for name, layer in f["layers"].items():
            index = layer.attrs["index"]
            get = lambda key: capture[f"layer{index}.{key}"][:tokens]
            ours, theirs = layer["truth/original"][:], get("mlp_output_f64")
            error = np.linalg.norm(ours - theirs, axis=1) / np.linalg.norm(theirs, axis=1)
            expect(error.max() < 1e-12, f"layer {name}: truth differs from the capture's by {error.max()}")
            expect((layer["routing/ids"][:] == get("topk_ids_i32")).all(), f"layer {name}: other experts were chosen")
            worst = abs(layer["truth/routing_weights"][:] - get("topk_weights_f64")).max()
            expect(worst < 1e-14, f"layer {name}: routing weights differ by {worst}")
            r = get("residual_mid_f64")
            x = r / np.sqrt((r * r).mean(axis=1, keepdims=True) + f.attrs["rms_norm_epsilon"]) * layer["norm/weight"][:]
            expect((to_bf16(x) == layer["x"][:]).all(), f"layer {name}: RMSNorm of the residual is not the input")
    printed = run("verify", file, "-o", "record.json", cwd=folder.name).stdout
    with open(path("record.json")) as stream:
        one = json.load(stream)
    case, = one["cases"]
    expect(one["exit_code"] == 0 and case["verdict"] == "PASS" and case["batch"] == tokens, "the demo must pass")
    expect(len(case["metrics"]["drift"]) == 2, "drift by layer is missing")
    overall = case["metrics"]["overall"]["subject_truth"]
    expect(overall["quantised"]["cosine_min"] > 0.999996, f"{weights}: cosine {overall['quantised']['cosine_min']}")
    expect(overall["quantised"]["cosine_min"] > overall["quantised_bf16_store"]["cosine_min"], "bf16 cannot scale")
    expect((overall["original"]["cosine_min"] < 0.999) == (weights == "nvfp4"), "NVFP4 loses, bf16 does not")

# README shows what the demo prints.
with open(os.path.join(SOURCE, "README.md")) as stream:
    readme = stream.read()
block = "".join(f"    {line}".rstrip(" ") + "\n" if line else "\n" for line in printed.splitlines())
expect(block in readme, f"README.md shows another output than\n{block}")
