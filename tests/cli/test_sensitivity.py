# SPDX-License-Identifier: Apache-2.0
"""gaugeblock study sensitivity: harm planted in the trained checkpoint is found, named in its order, and leaving what is
named in bf16 takes it away."""
import csv
import json
import os
import re

import numpy as np

from program import CAPTURE, CHECKPOINT, expect, path, refused, run
from published import E4M3, Published, nearest, quantise, read, trained, write

EXPERT, CHANNEL = 5, 77  # of layer 0


def sensitivity(fixture, original, *options):
    """What is printed, and the rows of the CSV by layer and expert."""
    text = run("study", "sensitivity", fixture, "--original", original, "--csv", path("s.csv"), *options).stdout
    with open(path("s.csv")) as stream:
        rows = {(int(r["layer"]), int(r["expert"])): r for r in csv.DictReader(stream)}
    return text, rows


# Weights alone: the error is that of a drift whose layers start from truth.
tiny = path("tiny.h5")
run("import", CHECKPOINT, tiny, "--format", "nvfp4", "--capture", CAPTURE)
text, plain = sensitivity(tiny, CHECKPOINT, "--activations", "bf16")
run("study", "drift", tiny, "--paths", "nvfp4.fma32", "--csv", path("drift.csv"))
with open(path("drift.csv")) as stream:
    drift = [r for r in csv.DictReader(stream) if r["figure"] == "relative_l2" and r["truth"] == "original"
             and r["mode"] == "teacher_forced"]
for name, options in (("bf16.fma32", ["--activations", "bf16"]), ("nvfp4.fma32", [])):
    text, rows = sensitivity(tiny, CHECKPOINT, *options)
    error = float(re.search(r"all layers: (\S+) of", text)[1])
    injected = sum(float(r["value"]) ** 2 for r in drift if r["path"] == name) ** 0.5
    expect(abs(error - injected) < 0.15 * injected, f"{name}: {error} is not about {injected}")
    expect(len(rows) == 31 and sum(int(r["tokens"]) for r in rows.values()) == 2 * 64 * 4, "every pair once")
    for row in rows.values():
        parts = {part: float(row[part]) for part in ("gate weights", "up weights", "down weights", "x", "intermediate")}
        expect(0.5 * sum(parts.values()) < float(row["adds"]) < 2 * sum(parts.values()), str(row))
        expect((parts["x"] > 0) == (parts["intermediate"] > 0) == (name != "bf16.fma32"), str(row))
    ranks = sorted((int(r["rank"]), float(r["left"])) for r in rows.values() if r["rank"])
    lefts = [left for _, left in ranks]
    expect([rank for rank, _ in ranks] == list(range(1, len(ranks) + 1)) and lefts == sorted(lefts)[::-1], str(ranks))
    expect(lefts[-1] <= 0.2 < lefts[-2] and "was it calibrated" not in text, text)
usual = rows

# The planted checkpoint. Layer 0: one channel of its activations is 64 times larger, its weights 1/64 as large, and
# one expert's input scales are 1,000 times too small. Layer 1: block scales are inverted around their middle.
original = path("original")
os.mkdir(original)
tensors, shards = trained(), json.load(open(os.path.join(CHECKPOINT, "model.safetensors.index.json")))["weight_map"]


def halved(bits, times):
    """bf16 over 2^times."""
    values = (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32) * np.float32(2.0 ** -times)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


for name, (dtype, bits) in list(tensors.items()):
    if name.startswith("model.layers.0.") and ("gate_proj" in name or "up_proj" in name or name.endswith("mlp.gate.weight")):
        bits = bits.copy()
        bits[:, CHANNEL] = halved(bits[:, CHANNEL], 6)
        tensors[name] = [dtype, bits]
    if name == "model.layers.0.post_attention_layernorm.weight":
        bits = bits.copy()
        bits[CHANNEL:CHANNEL + 1] = halved(bits[CHANNEL:CHANNEL + 1], -6)
        tensors[name] = [dtype, bits]
for file in set(shards.values()):
    write(os.path.join(original, file), {name: tensors[name] for name in tensors if shards[name] == file})
for file in ("config.json", "model.safetensors.index.json"):
    with open(os.path.join(CHECKPOINT, file)) as source, open(os.path.join(original, file), "w") as target:
        target.write(source.read())
captured = read(CAPTURE)
for name, change in (("layer0.mlp_input_bf16", lambda b: halved(b, -6)), ("layer0.norm_weight_f32", lambda v: v * 64)):
    dtype, array = captured[name]
    array = array.copy()
    array[..., CHANNEL] = change(array[..., CHANNEL])
    captured[name] = [dtype, array.astype(captured[name][1].dtype)]
write(path("capture.safetensors"), captured)

planted = Published("modelopt-nvfp4")
for name, (dtype, bits) in tensors.items():
    if ".experts." not in name:
        planted.tensors[name] = [dtype, bits]
        continue
    layer, expert = map(int, re.match(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)", name).groups())
    made = quantise("modelopt-nvfp4", (bits.astype(np.uint32) << 16).view(np.float32))
    if layer == 1:
        scales = E4M3[made["weight_scale"][1]]
        middle = np.exp(np.log(scales[scales > 0]).mean())
        made["weight_scale"][1] = nearest(middle * middle / np.maximum(scales, 2.0 ** -9), E4M3)
    for suffix, tensor in made.items():
        planted.tensors[f"{name[:-len('.weight')]}.{suffix}"] = tensor
    del planted.tensors[f"{name[:-len('.weight')]}.input_scale"]
    if (layer, expert) == (0, EXPERT):
        x = (captured["layer0.mlp_input_bf16"][1].astype(np.uint32) << 16).view(np.float32)
        planted.tensors[f"{name[:-len('.weight')]}.input_scale"] = ["F32", np.array(np.abs(x).max() / 2688 / 1000, np.float32)]
folder = planted.write("planted")
fixture = path("planted.h5")
run("import", folder, fixture, "--capture", path("capture.safetensors"), "--trust")
text, rows = sensitivity(fixture, original, "--input-scales", folder, "--exclude", path("exclude.json"))

shares = [float(value) for value in re.findall(r"(?m)^ +\d+ +([\d.]+) %$", text)]
expect(len(shares) == 2 and shares[1] > shares[0] > 10, f"the inverted layer hurts most: {text}")
ranked = [key for key, row in sorted(rows.items(), key=lambda item: int(item[1]["rank"] or 999)) if row["rank"]]
inverted = [key for key in ranked if key[0] == 1]
others = [key for key in ranked if key[0] == 0 and key != (0, EXPERT)]
expect((0, EXPERT) in ranked and inverted, f"the planted expert and layer are named: {text}")
expect(not others or ranked.index(others[0]) > ranked.index((0, EXPERT)), f"sound experts come after it: {text}")
expect(float(rows[ranked[-1]]["left"]) <= 0.2, "leaving them in bf16 takes 80 % away")
share = {key: float(row["adds"]) for key, row in rows.items()}
expect(share[0, EXPERT] == max(value for (layer, _), value in share.items() if layer == 0), "most harmful of its layer")
expect(share[0, EXPERT] > 5 * float(usual[0, EXPERT]["adds"]), "more harmful than it was")
# What was planted in weights shows in weights, what was planted in activations in activations.
weights = lambda row: sum(float(row[part]) for part in ("gate weights", "up weights", "down weights"))
for key, row in rows.items():
    if key[0] == 1:
        expect(weights(row) > 10 * weights(usual[key]) and float(row["x"]) < 3 * float(usual[key]["x"]), f"{key}: {row}")
    elif key != (0, EXPERT):
        expect(float(row["x"]) > 1.5 * float(usual[key]["x"]), f"{key}: an outlier channel costs its layer's x: {row}")
        expect(0.5 < float(row["down weights"]) / float(usual[key]["down weights"]) < 2, f"{key}: {row}")
expect(weights(rows[0, EXPERT]) < 3 * weights(usual[0, EXPERT]), "its weights are sound")
clipped = {key: float(row["clipped"]) for key, row in rows.items() if float(row["clipped"])}
expect(list(clipped) == [(0, EXPERT)] and 100 < clipped[0, EXPERT] <= 1001, f"its input scale stands out: {clipped}")
expect(f"layer 0, expert {EXPERT}: its largest input" in text, text)
with open(path("exclude.json")) as stream:
    exclude = json.load(stream)
expect(exclude["exclude_modules"] == [f"model.layers.{layer}.mlp.experts.{expert}.*" for layer, expert in ranked], str(exclude))
for pattern, (layer, expert) in zip(exclude["ignore"], ranked):
    name = f"model.layers.{layer}.mlp.experts.{expert}.up_proj"
    expect(pattern.startswith("re:") and re.match(pattern[3:], name), pattern)
    expect(not re.match(pattern[3:], f"model.layers.{layer}.mlp.experts.{expert}1.up_proj"), pattern)

# Bad usage.
refused("study", "sensitivity", tiny)
refused("study", "sensitivity", tiny, tiny, "--original", CHECKPOINT)
refused("study", "drift", tiny, "--original", CHECKPOINT)
refused("study", "sensitivity", tiny, "--original", CHECKPOINT, "-o", path("x.h5"))
refused("study", "sensitivity", tiny, "--original", folder)
refused("study", "sensitivity", tiny, "--original", path("missing"))
expect("has no input_scale" in refused("study", "sensitivity", tiny, "--original", CHECKPOINT, "--input-scales", CHECKPOINT), "")
refused("study", "sensitivity", tiny, "--original", CHECKPOINT, "--activations", "fp5")
