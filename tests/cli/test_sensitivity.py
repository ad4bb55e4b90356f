# SPDX-License-Identifier: Apache-2.0
"""gaugeblock study sensitivity: harm planted in the trained checkpoint is found, named in its order, and leaving what is
named in bf16 takes it away."""
import csv
import fnmatch
import json
import os
import re
import shutil

import h5py
import numpy as np

from edited import rehash
from kept import expect_kept
from program import ALL, CAPTURE, CHECKPOINT, SOURCE, expect, path, refused, run
from published import E4M3, Published, nearest, quantise, read, trained, write

EXPERT, CHANNEL = 5, 77  # of layer 0
TOKENS = 64 if ALL else 24  # of most cases, of the capture's 64


def sensitivity(fixture, original, *options):
    """What is printed, and the rows of the CSV by layer and expert."""
    text = run("study", "sensitivity", fixture, "--original", original, "--csv", path("s.csv"), *options).stdout
    with open(path("s.csv")) as stream:
        rows = {(int(r["layer"]), int(r["expert"])): r for r in csv.DictReader(stream)}
    return text, rows


# Weights alone: the error is that of a drift whose layers start from truth.
tiny = path("tiny.h5")
run("import", CHECKPOINT, tiny, "--format", "nvfp4", "--capture", CAPTURE, "--tokens", TOKENS)
run("study", "drift", tiny, "--paths", "nvfp4.fma32", "--csv", path("drift.csv"))
with open(path("drift.csv")) as stream:
    drift = [r for r in csv.DictReader(stream) if r["figure"] == "relative_l2" and r["truth"] == "original"
             and r["mode"] == "teacher_forced"]
with h5py.File(tiny) as f:
    pairs = {(layer, expert) for layer in range(2) for expert in np.unique(f[f"layers/{layer}/routing/ids"][()])}
for name, options in (("bf16.fma32", ["--activations", "bf16"]), ("nvfp4.fma32", [])):
    text, rows = sensitivity(tiny, CHECKPOINT, *options)
    error = float(re.search(r"all layers: (\S+) of", text)[1])
    injected = sum(float(r["value"]) ** 2 for r in drift if r["path"] == name) ** 0.5
    expect(abs(error - injected) < 0.15 * injected, f"{name}: {error} is not about {injected}")
    expect(rows.keys() == pairs and sum(int(r["tokens"]) for r in rows.values()) == 2 * TOKENS * 4, "every pair once")
    for row in rows.values():
        parts = {part: float(row[part]) for part in ("gate weights", "up weights", "down weights", "x", "intermediate")}
        expect(0.5 * sum(parts.values()) < float(row["adds"]) < 2 * sum(parts.values()), str(row))
        expect((parts["x"] > 0) == (parts["intermediate"] > 0) == (name != "bf16.fma32"), str(row))
    ranks = sorted((int(r["rank"]), float(r["left"])) for r in rows.values() if r["rank"])
    takes = {key: float(row["takes"]) for key, row in rows.items()}
    first = max(takes, key=takes.get)
    expect(rows[first]["rank"] == "1" and abs(takes[first] - (1 - ranks[0][1]) * error**2) < 1e-3 * takes[first], str(takes))
    expect(all((float(row["takes of x"]) != 0) == (name != "bf16.fma32") for row in rows.values()), "activations' share")
    layers, whole = sorted({layer for (layer, _), row in rows.items() if row["rank"]}), text.split("whole layers")[0]
    expect(f"{len(ranks)} of {len(rows)} experts that have tokens, in {len(layers)} of 2 layers, left in bf16" in text, text)
    expect(whole.rstrip().endswith("2 of 2"), "one layer alone does not carry 80 %")
    lefts = [left for _, left in ranks]
    expect([rank for rank, _ in ranks] == list(range(1, len(ranks) + 1)) and lefts == sorted(lefts)[::-1], str(ranks))
    adds = [float(row["adds"]) for row in list(rows.values())[len(ranks):]]
    expect(len(adds) > 1 and [row["rank"] for row in rows.values()] == [*(str(rank) for rank, _ in ranks), *len(adds) * [""]] and
           adds == sorted(adds)[::-1], f"those with a rank come first, then those that add most: {adds}")
    expect(lefts[-1] <= 0.2 < lefts[-2] and "was it calibrated" not in text, text)
few = rows
run("import", CHECKPOINT, path("whole.h5"), "--format", "nvfp4", "--capture", CAPTURE)
text, usual = sensitivity(path("whole.h5"), CHECKPOINT)
with open(os.path.join(SOURCE, "docs/study.md")) as document:
    shown = document.read().split("    tiny-qwen3-moe, nvfp4 weights", 1)[1].split("    ...", 1)[0]
expect(all(line.strip() in text for line in shown.splitlines()), f"docs/study.md has another output than\n{text}")

# What is left in MXFP8 takes less away than what is left in bf16; all of it together leaves MXFP8's error alone.
text, rows8 = sensitivity(tiny, CHECKPOINT, "--remedy", "mxfp8")
taken, taken8 = (sum(float(row["takes"]) for row in some.values()) for some in (few, rows8))
expect(0.8 * taken < taken8 < 0.97 * taken, f"less than bf16: {taken8} and {taken}")
left = float(re.search(r"all experts left in MXFP8: (\S+)", text)[1])
expect(0.02 < left < 0.04 and re.search(r"whole layers left in MXFP8 take 9\d %", text), text)
text, rows8 = sensitivity(tiny, CHECKPOINT, "--remedy", "mxfp8", "--activations", "bf16")
expect(all(float(row["takes of x"]) == 0 for row in rows8.values()), "activations that stay bf16 have no remedy")

# Static scales that hold all there is cost nothing beside dynamic ones; scales 1,000 times too small, nearly all.
text, _ = sensitivity(tiny, CHECKPOINT, "--remedy", "dynamic")
static, dynamic = (float(re.search(words + r": (\S+)", text)[1]) for words in ("of all layers", "scales of activations"))
expect(abs(dynamic - static) < 0.05 * static, text)

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
ranges = {key: float(row["range"]) for key, row in rows.items() if float(row["range"])}
expect(list(ranges) == [(0, EXPERT)] and 100 < ranges[0, EXPERT] <= 1001, f"its input scale stands out: {ranges}")
expect(text.count(": its ") == 1 and f"layer 0, expert {EXPERT}: its largest input" in text, text)
healed, mended = sensitivity(fixture, original, "--input-scales", folder, "--remedy", "dynamic")
expect(max(mended, key=lambda key: float(mended[key]["takes"])) == (0, EXPERT), "a dynamic scale mends it")
expect(float(mended[0, EXPERT]["takes"]) > 0.9 * share[0, EXPERT], healed)


def named(name, exclude):
    """By what rules of Model Optimizer and llm-compressor the module is left out: of each, whether some rule does."""
    rules = [entry["quantizer_name"] for entry in exclude["quant_cfg"]]
    return (any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude["exclude_modules"]),
            any(re.match(pattern.removeprefix("re:"), name) for pattern in exclude["ignore"]),
            any(fnmatch.fnmatchcase(name + ".weight_quantizer", pattern) for pattern in rules))


def excludes(file, ranked, form, whole):
    """The lists name the ranked experts and no others, and the whole layers; form: an expert's module."""
    with open(file) as stream:
        exclude = json.load(stream)
    for layer in range(12):
        for expert in range(16):
            name = form.format(layer=layer, expert=expert)
            expect(named(name, exclude) == ((layer, expert) in ranked,) * 3, f"{name}: {named(name, exclude)}")
            expect(named(name, exclude["whole_layers"]) == (layer in whole,) * 3, name)
        for other in (f"model.layers.{layer}.mlp.shared_experts.1.up_proj", f"mtp.layers.{layer}.mlp.experts.1.up_proj",
                      f"model.layers.{layer}.self_attn.q_proj", f"model.layers.{layer}.mlp.gate"):
            expect(not any(named(other, exclude) + named(other, exclude["whole_layers"])), other)
    return exclude


found = excludes(path("exclude.json"), ranked, "model.layers.{layer}.mlp.experts.{expert}.up_proj", {0, 1})
expect(found["exclude_modules"] == [f"model.layers.{layer}.*.experts.{expert}.*" for layer, expert in ranked], "their sequence")
fused = [entry["quantizer_name"] for entry in found["quant_cfg"]]
expect(any(fnmatch.fnmatchcase(f"model.layers.0.mlp.experts.gate_up_proj_weight_quantizers.{EXPERT}", rule) for rule in fused),
       "an expert's quantiser in a list")

# The same model with Mixtral's names: the same figures, scales that are found, and lists in those names too.
def mixtral(name):
    for ours, theirs in ((".mlp.", ".block_sparse_moe."), ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
        name = name.replace(ours, theirs)
    return name


def renamed(source, target, **more):
    os.mkdir(target)
    config = {**json.load(open(os.path.join(CHECKPOINT, "config.json"))), "model_type": "mixtral", "intermediate_size": 192}
    with open(os.path.join(target, "config.json"), "w") as stream:
        json.dump({**config, **more}, stream)
    write(os.path.join(target, "model.safetensors"), {mixtral(name): tensor for name, tensor in source.items()})


renamed(trained(), path("mixtral"))
run("import", path("mixtral"), path("mixtral.h5"), "--format", "nvfp4", "--capture", CAPTURE, "--tokens", TOKENS)
text, rows = sensitivity(path("mixtral.h5"), path("mixtral"), "--exclude", path("mixtral.json"))
expect(rows == few, "a model's names change no figure")
ranked = [key for key, row in rows.items() if row["rank"]]
excludes(path("mixtral.json"), ranked, "model.layers.{layer}.block_sparse_moe.experts.{expert}.w1", {0, 1})
excludes(path("mixtral.json"), ranked, "model.layers.{layer}.mlp.experts.{expert}.gate_proj", {0, 1})
scaled = Published("modelopt-nvfp4").tensors
for name, (dtype, array) in scaled.items():
    if name.endswith(".input_scale"):
        expert = int(re.search(r"experts[.](\d+)[.]", name)[1])
        down = "down_proj" in name # expert 3 has x's scale of 1, expert 5 the intermediate's
        scaled[name] = [dtype, np.array({3: 0.003 if down else 1.0, 5: 1.0 if down else 0.003, 8: 5.0}.get(expert, 0.003), np.float32)]
renamed(scaled, path("scaled"), quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"})
text, rows = sensitivity(path("mixtral.h5"), path("mixtral"), "--input-scales", path("scaled"))
expect({key[1] for key, row in rows.items() if float(row["range"]) > 0} == {key[1] for key in rows}, "all have scales")
for expert in (3, 5):
    expect(text.count(f"expert {expert}: an input scale is 1, as before any calibration") == 2, text)
expect(text.count("expert 8: its input scale can hold") == 2 and text.count(": its ") == 2, text)

# Bad usage.
refused("study", "sensitivity", tiny)
refused("study", "sensitivity", tiny, tiny, "--original", CHECKPOINT)
refused("study", "drift", tiny, "--original", CHECKPOINT)
refused("study", "sensitivity", tiny, "--original", CHECKPOINT, "-o", path("x.h5"))
refused("study", "sensitivity", tiny, "--original", folder)
refused("study", "sensitivity", tiny, "--original", path("missing"))
for options, said in ((["--input-scales", CHECKPOINT], "name an NVFP4 checkpoint"), (["--remedy", "fp5"], "--remedy fp5"),
                      (["--activations", "mxfp8", "--input-scales", folder], "a global scale"),
                      (["--activations", "mxfp8", "--remedy", "dynamic"], "a global scale"),
                      (["--remedy", "dynamic", "--exclude", path("x.json")], "no expert is left out")):
    words = refused("study", "sensitivity", tiny, "--original", CHECKPOINT, *options)
    expect(said in words, words)
without = {name: tensor for name, tensor in scaled.items() if not name.endswith(".input_scale")}
renamed(without, path("without"), quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"})
expect("has no input_scale" in refused("study", "sensitivity", tiny, "--original", CHECKPOINT, "--input-scales", path("without")), "")
run("import", CHECKPOINT, path("plain.h5"), "--format", "bf16", "--capture", CAPTURE, "--tokens", 8)
expect("nothing is quantised" in refused("study", "sensitivity", path("plain.h5"), "--original", CHECKPOINT,
                                         "--activations", "bf16"), "no error at all")
shutil.copy(tiny, path("bare.h5"))
with h5py.File(path("bare.h5"), "r+") as f:
    del f["stack"]
rehash(path("bare.h5"))
run("make", path("generated.h5"), "--shape", "8,2,256,128", "--generated")
run("make", path("quantise.h5"), "--operator", "quantise", "--recipe", "nvfp4.trtllm/1", "--shape", "2,64")
for name in "bare.h5", "generated.h5", "quantise.h5":
    words = refused("study", "sensitivity", path(name), "--original", CHECKPOINT)
    expect("has no residual stream or no weights" in words, f"{name}: {words}")
refused("study", "sensitivity", tiny, "--original", CHECKPOINT, "--activations", "fp5")
for option in "--csv", "--exclude":
    refused("study", "sensitivity", tiny, "--original", CHECKPOINT, option, tiny)  # in the place of what it reads

expect_kept()
