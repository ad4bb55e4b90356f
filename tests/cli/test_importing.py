# SPDX-License-Identifier: Apache-2.0
"""Quantised checkpoints as they are published: codes and scales taken over exactly, misread ones found, wrong ones
refused in one line."""
import os

import h5py
import numpy as np

from edited import input_hash
from kept import expect_kept
from program import ALL, CAPTURE, expect, path, run
from published import EXPERTS, LAYERS, LAYOUTS, PROJECTIONS, Published, read, refused, swapped, write

CAPTURED = ["--capture", CAPTURE, "--tokens", 24 if ALL else 6]
CODES = {"nvfp4-pack-quantized": "weight_packed", "mxfp4-pack-quantized": "weight_packed"}
SCALES = {"fp8-128x128": "weight_scale_inv", "mxfp8-1x32": "weight_scale_inv"}
GLOBALS = {"modelopt-nvfp4": "weight_scale_2", "nvfp4-pack-quantized": "weight_global_scale"}


def written(checkpoint, layer, projection, suffix):
    """[experts, ...] of what was written."""
    return np.stack([checkpoint.tensors[f"model.layers.{layer}.mlp.experts.{e}.{projection}.{suffix}"][1]
                     for e in range(EXPERTS)])


def expected(checkpoint, layer, part, suffix):
    """The same as the fixture has it: gate rows, then up rows."""
    if part == "down":
        return written(checkpoint, layer, "down_proj", suffix)
    return np.concatenate([written(checkpoint, layer, p, suffix) for p in PROJECTIONS[:2]], axis=1)


def first_layer(checkpoint):
    """Of a checkpoint of which layer 0 alone is imported: fewer bytes to write."""
    if not ALL:
        checkpoint.tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if ".layers.1." not in name}
    return checkpoint


def same(layout, checkpoint, file, layers):
    with h5py.File(file) as f:
        expect(f.attrs["recipe"].decode() == "published:" + layout, f"{layout}: recipe {f.attrs['recipe']}")
        expect(len(f["layers"]) == layers, f"{layout}: {len(f['layers'])} layers")
        for layer in range(layers):
            for part in ("gate_up", "down"):
                group = f[f"layers/{layer}/{part}"]
                for name, suffix in (("codes", CODES.get(layout, "weight")), ("scales", SCALES.get(layout, "weight_scale"))):
                    want = expected(checkpoint, layer, part, suffix)
                    expect(group[name][()].tobytes() == want.tobytes() and group[name].shape == want.shape,
                           f"{layout}: {part}/{name} of layer {layer} are not those written")
                if layout not in GLOBALS:
                    expect("global_scales" not in group, f"{layout}: has a global scale")
                    continue
                parts = PROJECTIONS[:2] if part == "gate_up" else PROJECTIONS[2:]
                want = np.stack([written(checkpoint, layer, p, GLOBALS[layout]).reshape(-1) for p in parts], axis=1)
                if layout == "nvfp4-pack-quantized":
                    expect((group["encode_scales"][()] == want).all(), f"{layout}: encoding scales of {part}")
                    want = np.float32(1) / want
                expect((group["global_scales"][()] == want).all(), f"{layout}: global scales of {part}")
            quantised, original = (f[f"layers/{layer}/truth/{name}"][()] for name in ("quantised", "original"))
            error = np.abs(quantised - original).max() / np.abs(original).max()
            inverted = layout == "nvfp4-pack-quantized"  # 1 / scale is rounded once, to 2^-24
            expect(0 < error < 2.0 ** -21 if inverted else error < 2.0 ** -45, f"{layout}: truths differ by {error}")


for layout in LAYOUTS:
    checkpoint = Published(layout)
    layers = LAYERS if ALL or layout == "modelopt-nvfp4" else 1
    done = run("import", checkpoint.write(layout), path(f"{layout}.h5"), "--layers", f"0-{layers - 1}", *CAPTURED)
    same(layout, checkpoint, path(f"{layout}.h5"), layers)
    cosine = float(done.stdout.split("cosine of ")[1].split()[0])
    expect(cosine > (.97 if "4" in layout.split("-")[1 if "modelopt" in layout else 0] else .999),
           f"{layout}: cosine {cosine}")
    if ALL or layout in ("nvfp4-pack-quantized", "fp8-128x128"):
        run("verify", path(f"{layout}.h5"))

# The cosine that is said is the worst layer's: the last one's block adds, by this capture, what its codes make of it and
# some of that in reverse.
capture = read(CAPTURE)
folder = path("modelopt-nvfp4")
with h5py.File(path("modelopt-nvfp4.h5")) as f:
    ours = [f[f"layers/{layer}/truth/quantised"][()] for layer in range(LAYERS)]
for some in (0.0, 0.5):
    added = np.zeros_like(capture["layer0.residual_mid_f64"][1])
    added[:len(ours[1])] = ours[1] + some * ours[1][:, ::-1]
    after = ["F64", capture["layer1.residual_mid_f64"][1] + added]
    write(path("both.safetensors"), {**capture, "layer2.residual_in_f64": after, "layer2.residual_mid_f64": after})
    done = run("import", folder, path("both.h5"), "--capture", path("both.safetensors"), *CAPTURED[2:])
    first = capture["layer1.residual_in_f64"][1] - capture["layer0.residual_mid_f64"][1]
    right = min((a * b[:len(a)]).sum() / np.sqrt((a * a).sum() * (b[:len(a)]**2).sum()) for a, b in zip(ours, (first, added)))
    expect(f"a cosine of {right:.6f} or more" in done.stdout, f"{some}: {right}, {done.stdout}")

# The documented hash covers the encoding scales.
run("import", path("nvfp4-pack-quantized"), path("encode.h5"), "--tokens", 3, "--layers", "1-1")
digest = input_hash(path("encode.h5"))
with h5py.File(path("encode.h5")) as f:
    expect(digest == f.attrs["input_sha256"].decode(), f"hash {digest}")

# Without a capture, and with the format named.
folder = path("modelopt-nvfp4")
run("import", folder, path("named.h5"), "--format", "nvfp4", "--tokens", 3, "--layers", 0)
refused(folder, "nvfp4", "modelopt-nvfp4", "never quantised again", options=["--format", "mxfp8"])
refused(path("fp8-128x128"), "fp8", "--format", options=["--format", "bf16"])


def injected(layout, name, change, *words, capture=False):
    checkpoint = Published(layout)
    change(checkpoint)
    folder = first_layer(checkpoint).write("injected")
    options = CAPTURED if capture else ["--tokens", 3]
    done = run("import", folder, path("injected.h5"), "--layers", 0, *options, code=2)
    expect(len(done.stderr.splitlines()) == 1 and all(w in done.stderr for w in words), f"{layout}, {name}: {done.stderr}")
    if ALL or (capture and layout == "modelopt-nvfp4"):
        run("import", folder, path("trusted.h5"), "--trust", "--layers", 0, *options)
    if os.path.exists(os.path.join(folder, "hf_quant_config.json")):
        os.remove(os.path.join(folder, "hf_quant_config.json"))


# Whatever the codes look like, outputs beyond binary32 cannot be judged.
checkpoint = Published("modelopt-nvfp4")
checkpoint.change("weight_scale_2", lambda v: np.full_like(v, 3e38))
done = run("import", checkpoint.write("huge"), path("huge.h5"), "--trust", "--layers", 0, "--tokens", 3, code=2)
expect("layer 0" in done.stderr and "beyond binary32's range" in done.stderr, done.stderr)
expect(not os.path.exists(path("huge.h5")), "an unusable fixture was written")

# Seen from the codes alone: the wrong direction of a scale, and codes packed across blocks.
injected("modelopt-nvfp4", "encode", lambda c: c.change("weight_scale_2", np.reciprocal), "scales of gate", "encoding")
injected("nvfp4-pack-quantized", "decode", lambda c: c.change("weight_global_scale", np.reciprocal), "scales of gate")
injected("fp8-128x128", "inverse", lambda c: c.change("weight_scale_inv", np.reciprocal), "scales of gate")
for mx in ("mxfp4-pack-quantized", "mxfp8-quantized"):
    injected(mx, "inverse", lambda c: c.change("weight_scale", lambda v: 254 - v), "scales of gate")
injected("modelopt-nvfp4", "halves", lambda c: c.change("weight", lambda v: np.concatenate(
    [(v[:, :v.shape[1] // 2] & 15) | v[:, v.shape[1] // 2:] << 4, v[:, :v.shape[1] // 2] >> 4 | v[:, v.shape[1] // 2:] & 240],
    axis=1)), "blocks of gate")
injected("modelopt-nvfp4", "columns moved by half a block",
        lambda c: c.change("weight", lambda v: np.roll(v, 4, axis=1)), "blocks of gate")
injected("fp8-128x128", "rows moved by half a block",
        lambda c: c.change("weight", lambda v: np.roll(v, 64, axis=0)), "blocks of")
# Seen from what training leaves in the codes.
INNER, GATE, UP = "up's rows and down's columns", "the norm and gate's columns", "the norm and up's columns"
for layout in LAYOUTS if ALL else LAYOUTS[1::2]:
    injected(layout, "gate and up", lambda c: c.swap("gate_proj", "up_proj"), "order of gate and up", "swapped")
PARTS = ("", INNER), ("down_proj.", INNER), ("gate_proj.", GATE), ("up_proj.", UP)
for number, layout in enumerate(("modelopt-nvfp4", "nvfp4-pack-quantized", "mxfp4-pack-quantized")):
    codes = CODES.get(layout, "weight")
    for part, what in PARTS if ALL else PARTS[number::3]:
        suffix = part + codes
        injected(layout, "nibbles of " + suffix, lambda c: c.change(suffix, swapped), "order of " + what,
                "even and odd elements exchanged")
# Scales in another layout of the same size.
def swizzled(tall):
    """[rows, columns] -> tiles of `tall` rows and 4 columns, of 32 rows in turns or 8."""
    def change(v):
        rows, columns = v.shape
        groups = max(1, tall // 32)
        tiles = v.reshape(rows // tall, groups, tall // groups, columns // 4, 4)
        return np.ascontiguousarray(tiles.transpose(0, 3, 2, 1, 4)).reshape(v.shape)
    return change


def packed(v):
    return np.ascontiguousarray(v.reshape(v.shape[0], -1, 4).transpose(1, 0, 2)).reshape(v.shape)


def transposed(v):
    return np.ascontiguousarray(v.T).reshape(v.shape)


ORDERS = ("swizzled-8x4", swizzled(8)), ("packed", packed), ("transposed", transposed)
for number, layout in enumerate(("modelopt-nvfp4", "nvfp4-pack-quantized")):
    for name, change in ORDERS if ALL else ORDERS[number::2]:
        injected(layout, name, lambda c: c.change("weight_scale", change), "order of " + INNER, name)
injected("mxfp4-pack-quantized", "swizzled", lambda c: c.change("up_proj.weight_scale", swizzled(8)), "order of " + INNER)
# Scales folded from up into down, as AWQ does, blur the traces; nothing is refused.
checkpoint, exponents = Published("modelopt-nvfp4"), np.random.default_rng(5).integers(0, 4, 12).astype(np.uint8)
checkpoint.change("up_proj.weight_scale", lambda v: np.maximum(v, 32) - 8 * np.repeat(exponents, 16)[:, None])
checkpoint.change("down_proj.weight_scale", lambda v: np.minimum(v, 94) + 8 * exponents)
run("import", checkpoint.write("folded"), path("folded.h5"), "--tokens", 3, "--layers", 0)
# Seen from what the model computed.
for layout, suffix in (("modelopt-nvfp4", "weight"), ("mxfp4-pack-quantized", "weight_packed")):
    injected(layout, "nibbles", lambda c: c.change(suffix, swapped), "even and odd elements swapped", capture=True)
for layout in ("nvfp4-pack-quantized", "mxfp8-quantized", "fp8-128x128"):
    injected(layout, "gate and up", lambda c: c.swap("gate_proj", "up_proj"), "gate and up swapped", capture=True)

for layout, change, name in (("modelopt-nvfp4", swizzled(128), "scales swizzled-128x4"),
                             ("nvfp4-pack-quantized", swizzled(8), "scales swizzled-8x4"),
                             ("nvfp4-pack-quantized", packed, "scales packed")):
    injected(layout, name, lambda c: c.change("down_proj.weight_scale", change), name, capture=True)

# Hostile.
FIRST = "model.layers.0.mlp.experts.0."


def hostile(layout, change, *words):
    checkpoint = Published(layout)
    change(checkpoint)
    folder = first_layer(checkpoint).write("hostile-" + layout)
    refused(folder, *words)


def put(name, function):
    def change(c):
        dtype, array = c.tensors[FIRST + name]
        c.tensors[FIRST + name] = function(dtype, array.copy())
    return change


def element(value):
    def function(dtype, array):
        array.reshape(-1)[5 % array.size] = value
        return [dtype, array]
    return function


def drop(name):
    return lambda c: c.tensors.pop(FIRST + name)


def add(name, tensor):
    def change(c):
        c.tensors[FIRST + name] = tensor
    return change


def configure(**keys):
    return lambda c: c.config["quantization_config"].update(keys)


NVFP4, PACKED, MX, FP8 = "modelopt-nvfp4", "nvfp4-pack-quantized", "mxfp8-quantized", "fp8-128x128"
ONE = ["F32", np.ones(1, np.float32)]
hostile(NVFP4, put("gate_proj.weight", lambda d, a: [d, a[:, :-1]]), "gate_proj.weight", "[192, 192]")
hostile(NVFP4, put("gate_proj.weight", lambda d, a: ["BF16", np.zeros((192, 384), np.uint16)]), "is BF16")
hostile(NVFP4, put("down_proj.weight_scale", lambda d, a: ["U8", a]), "down_proj.weight_scale", "is U8")
hostile(NVFP4, put("up_proj.weight_scale", lambda d, a: [d, a.T]), "up_proj.weight_scale", "[192, 24]")
hostile(NVFP4, put("up_proj.weight_scale", element(0x7F)), "up_proj.weight_scale", "element 5 is NaN")
hostile(NVFP4, put("up_proj.weight_scale", element(0x81)), "up_proj.weight_scale", "negative")
for bad in (np.nan, np.inf, 0, -1):
    hostile(NVFP4, put("gate_proj.weight_scale_2", element(bad)), "gate_proj.weight_scale_2", "above zero")
hostile(NVFP4, put("gate_proj.weight_scale_2", lambda d, a: [d, np.ones(2, np.float32)]), "weight_scale_2", "[1]")
hostile(NVFP4, drop("gate_proj.weight_scale_2"), "weight_scale_2", "missing")
hostile(NVFP4, drop("down_proj.weight"), "down_proj.weight", "missing")
hostile(NVFP4, add("gate_proj.weight_global_scale", ONE), "weight_global_scale", "ambiguous")
hostile(NVFP4, add("gate_proj.weight_packed", ["U8", np.zeros((192, 192), np.uint8)]), "weight_packed", "ambiguous")
hostile(NVFP4, lambda c: c.tensors.update({"model.layers.0.mlp.experts.gate_up_proj": [
    "U8", np.zeros((16, 384, 192), np.uint8)]}), "experts.gate_up_proj", "ambiguous")
hostile(NVFP4, lambda c: c.quantization["quantization"].update(quant_algo="W4A8_AWQ"), "quant_algo", "W4A8_AWQ")
hostile(NVFP4, lambda c: c.quantization["quantization"].update(group_size=32), "group_size", "16")
hostile(NVFP4, lambda c: c.config.update(quantization_config={"quant_method": "modelopt", "quant_algo": "MXFP8"}),
        "hf_quant_config.json", "modelopt-mxfp8")
hostile(NVFP4, lambda c: c.config.update(quantization_config=3), "quantization_config", "object")
hostile(PACKED, configure(format="pack-quantized"), "format", "'pack-quantized'")
hostile(PACKED, configure(format="mixed-precision"), "format", "'mixed-precision'")
hostile(PACKED, configure(quantization_status="frozen"), "quantization_status", "frozen")
hostile(PACKED, configure(format="mxfp4-pack-quantized"), "group_size")
hostile(PACKED, configure(config_groups={"a": {"format": MX}}), "a:", MX)
hostile(PACKED, configure(quant_method="gptq"), "quant_method", "gptq")
hostile(PACKED, add("gate_proj.weight", ["BF16", np.zeros((192, 384), np.uint16)]), "gate_proj.weight", "ambiguous")
hostile(PACKED, put("up_proj.weight_global_scale", element(np.float32(1e-45))), "weight_global_scale", "reciprocal")
hostile(MX, put("gate_proj.weight_scale", element(0xFF)), "weight_scale", "NaN")
hostile(MX, put("gate_proj.weight", element(0xFF)), "gate_proj.weight", "NaN")
hostile(MX, configure(format="mxfp4-pack-quantized"), "num_bits")
hostile(FP8, configure(weight_block_size=None), "weight_block_size", "other scales")
hostile(FP8, configure(weight_block_size=[128, 64]), "weight_block_size")
hostile(FP8, configure(fmt="e5m2"), "fmt", "e5m2")
hostile(FP8, put("gate_proj.weight_scale_inv", lambda d, a: [d, a[:1]]), "weight_scale_inv", "[2, 3]")
hostile(FP8, put("gate_proj.weight_scale_inv", element(np.nan)), "weight_scale_inv", "above zero")
hostile(FP8, lambda c: c.config.pop("quantization_config"), "is F8_E4M3", "quantization_config")
checkpoint = Published(MX)
folder = checkpoint.write("truncated")
with open(os.path.join(folder, "model.safetensors"), "r+b") as stream:
    stream.truncate(os.path.getsize(stream.name) - 100)
refused(folder, "model.safetensors", "truncated")

expect_kept()
