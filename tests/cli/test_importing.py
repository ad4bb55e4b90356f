# SPDX-License-Identifier: Apache-2.0
"""Quantised checkpoints as they are published: codes and scales taken over exactly, misread ones found, wrong ones
refused in one line."""
import os
import subprocess
import sys

import h5py
import numpy as np

from blocks import block
from program import CAPTURE, FAULTS, expect, path, run
from published import E2M1, EXPERTS, LAYERS, LAYOUTS, PROJECTIONS, Published

CAPTURED = ["--capture", CAPTURE, "--tokens", 24]
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


def same(layout, checkpoint, file):
    with h5py.File(file) as f:
        expect(f.attrs["recipe"].decode() == "published:" + layout, f"{layout}: recipe {f.attrs['recipe']}")
        for layer in range(LAYERS):
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


def refused(folder, *words, options=()):
    """Exit 2, one line with every word, and no file."""
    out = path("refused.h5")
    done = run("import", folder, out, "--tokens", 3, "--layers", 0, *options, code=2)
    lines = done.stderr.splitlines()
    expect(len(lines) == 1 and all(word in lines[0] for word in words), f"{words} are not in one line: {done.stderr}")
    expect(not os.path.exists(out), "a refused import left a file")


for layout in LAYOUTS:
    checkpoint = Published(layout)
    folder = checkpoint.write(layout)
    done = run("import", folder, path("out.h5"), *CAPTURED)
    same(layout, checkpoint, path("out.h5"))
    cosine = float(done.stdout.split("cosine of ")[1].split()[0])
    expect(cosine > (.97 if "4" in layout.split("-")[1 if "modelopt" in layout else 0] else .999),
           f"{layout}: cosine {cosine}")
    run("verify", path("out.h5"))

# gpt-oss: rows in turns, biases, its own activation; truth against numpy.
def widen(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def values(codes, scales):
    table = np.concatenate([E2M1, -E2M1]).astype(np.float64)
    pairs = np.stack([table[codes & 15], table[codes >> 4]], axis=-1).reshape(*codes.shape[:-1], -1)
    return pairs * np.repeat(2.0 ** (scales.astype(int) - 127), 32, axis=-1)


oss = Published("gpt-oss-mxfp4")
folder = oss.write("gpt-oss")
run("import", folder, path("oss.h5"), "--tokens", 7)
with h5py.File(path("oss.h5")) as f:
    expect(f.attrs["activation"].decode() == "swiglu-oai" and f.attrs["recipe"].decode() == "published:gpt-oss-mxfp4",
           "gpt-oss: attributes")
    expect(f.attrs["router"].decode() == "transformers.gpt-oss/1" and "residual" in f["stack"], "gpt-oss: router")
    for n in range(LAYERS):
        mlp, layer = f"model.layers.{n}.mlp.", f[f"layers/{n}"]
        turns = [oss.tensors[f"{mlp}experts.gate_up_proj_{part}"][1] for part in ("blocks", "scales", "bias")]
        codes, scales, bias = (np.concatenate([t[:, 0::2], t[:, 1::2]], axis=1) for t in turns)
        codes = codes.reshape(*codes.shape[:2], -1)
        down_codes = oss.tensors[f"{mlp}experts.down_proj_blocks"][1].reshape(16, 384, -1)
        down_scales, down_bias = (oss.tensors[f"{mlp}experts.down_proj_{part}"][1] for part in ("scales", "bias"))
        for name, want in (("gate_up/codes", codes), ("gate_up/scales", scales), ("gate_up/bias", widen(bias)),
                           ("down/codes", down_codes), ("down/scales", down_scales), ("down/bias", widen(down_bias)),
                           ("router/bias", widen(oss.tensors[mlp + "router.bias"][1]))):
            expect((layer[name][()] == want).all() and layer[name].shape == want.shape, f"gpt-oss: {name}")
        gate_up, down = values(codes, scales), values(down_codes, down_scales)
        for t, x in enumerate(widen(layer["x"][()]).astype(np.float64)):
            logits = widen(layer["router/weight"][()]).astype(np.float64) @ x + layer["router/bias"][()]
            ids = np.argsort(-logits)[:4]
            weights = np.exp(logits[ids] - logits[ids[0]])
            weights /= weights.sum()
            expect((layer["routing/ids"][t] == ids).all(), f"gpt-oss: ids of token {t}")
            expect(np.allclose(layer["truth/routing_weights"][t], weights, rtol=1e-12), "gpt-oss: routing weights")
            y = np.zeros(384)
            for e, weight in zip(ids, weights):
                h = gate_up[e] @ x + widen(bias)[e]
                g, u = np.minimum(h[:192], 7), np.clip(h[192:], -7, 7)
                y += weight * (down[e] @ (g / (1 + np.exp(-1.702 * g)) * (u + 1)) + widen(down_bias)[e])
            expect(np.abs(y - layer["truth/quantised"][t]).max() < 1e-11 * np.abs(y).max(), f"gpt-oss: truth of token {t}")
run("verify", path("oss.h5"))
run("verify", path("oss.h5"), "--kernel", "cpu/route", "--expect", "1")
run("verify", path("oss.h5"), "--kernel", "cpu/mxfp4-*")

# The documented hash covers the encoding scales.
with open(path("hash.py"), "w") as stream:
    stream.write(block("fixtures.md", "python"))
run("import", path("nvfp4-pack-quantized"), path("encode.h5"), "--tokens", 3, "--layers", 1)


def documented(file):
    done = subprocess.run([sys.executable, path("hash.py"), file], check=True, capture_output=True, text=True)
    return done.stdout.strip()


for file in (path("encode.h5"), path("oss.h5")):
    with h5py.File(file) as f:
        stored = f.attrs["input_sha256"].decode()
    expect(documented(file) == stored, f"hash of {file}: {documented(file)}")

# A kernel that knows no other activation is not asked; one that knows it computes something else than SiLU.
with h5py.File(path("encode.h5"), "r+") as f:
    f.attrs.create("activation", np.bytes_("swiglu-oai"), dtype="S10")
new = documented(path("encode.h5"))
with h5py.File(path("encode.h5"), "r+") as f:
    f.attrs.modify("input_sha256", np.bytes_(new))
done = run("verify", path("encode.h5"), "--subject", FAULTS, "--kernel", "faults/none", code=3)
expect("UNSUPPORTED" in done.stdout and "no activation but SiLU" in done.stdout, f"faults/none: {done.stdout}")

# Without a capture, and with the format named.
folder = path("modelopt-nvfp4")
run("import", folder, path("named.h5"), "--format", "nvfp4", "--tokens", 3)
refused(folder, "nvfp4", "modelopt-nvfp4", "never quantised again", options=["--format", "mxfp8"])
refused(path("fp8-128x128"), "fp8", "--format", options=["--format", "bf16"])


def swapped(codes):
    return codes >> 4 | codes << 4


def planted(layout, name, change, *words, capture=False, options=()):
    checkpoint = Published(layout)
    change(checkpoint)
    folder = checkpoint.write("planted")
    if capture:  # symmetric: only what the model computed tells
        run("import", folder, path("planted.h5"), "--tokens", 3, "--layers", 0)
        options = CAPTURED
    out = path("trusted.h5")
    done = run("import", folder, path("planted-2.h5"), "--layers", 0, *(options or ["--tokens", 3]), code=2)
    expect(len(done.stderr.splitlines()) == 1 and all(w in done.stderr for w in words), f"{layout}, {name}: {done.stderr}")
    run("import", folder, out, "--trust", "--layers", 0, *(options or ["--tokens", 3]))
    if os.path.exists(os.path.join(folder, "hf_quant_config.json")):
        os.remove(os.path.join(folder, "hf_quant_config.json"))


# Seen from the codes alone: the wrong direction of a scale, and codes packed across blocks.
planted("modelopt-nvfp4", "encode", lambda c: c.change("weight_scale_2", np.reciprocal), "scales of gate", "encoding")
planted("nvfp4-pack-quantized", "decode", lambda c: c.change("weight_global_scale", np.reciprocal), "scales of gate")
planted("fp8-128x128", "inverse", lambda c: c.change("weight_scale_inv", np.reciprocal), "scales of gate")
for mx in ("mxfp4-pack-quantized", "mxfp8-quantized"):
    planted(mx, "inverse", lambda c: c.change("weight_scale", lambda v: 254 - v), "scales of gate")
planted("modelopt-nvfp4", "halves", lambda c: c.change("weight", lambda v: np.concatenate(
    [(v[:, :v.shape[1] // 2] & 15) | v[:, v.shape[1] // 2:] << 4, v[:, :v.shape[1] // 2] >> 4 | v[:, v.shape[1] // 2:] & 240],
    axis=1)), "blocks of gate")
planted("modelopt-nvfp4", "columns moved by half a block",
        lambda c: c.change("weight", lambda v: np.roll(v, 4, axis=1)), "blocks of gate")
planted("fp8-128x128", "rows moved by half a block",
        lambda c: c.change("weight", lambda v: np.roll(v, 64, axis=0)), "blocks of")
# Seen from what the model computed.
for layout, suffix in (("modelopt-nvfp4", "weight"), ("mxfp4-pack-quantized", "weight_packed")):
    planted(layout, "nibbles", lambda c: c.change(suffix, swapped), "even and odd elements swapped", capture=True)
for layout in ("nvfp4-pack-quantized", "mxfp8-quantized", "fp8-128x128"):
    planted(layout, "gate and up", lambda c: c.swap("gate_proj", "up_proj"), "gate and up swapped", capture=True)

# Hostile.
FIRST = "model.layers.0.mlp.experts.0."


def hostile(layout, change, *words):
    checkpoint = Published(layout)
    change(checkpoint)
    folder = checkpoint.write("hostile-" + layout)
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
OSS = "gpt-oss-mxfp4"
GATE_UP = "model.layers.0.mlp.experts.gate_up_proj"


def oss_put(name, function):
    def change(c):
        c.tensors[name] = function(*c.tensors[name])
    return change


hostile(OSS, oss_put(GATE_UP + "_blocks", lambda d, a: [d, a[:, :, :-1]]), "gate_up_proj_blocks", "[16, 384, 12, 16]")
hostile(OSS, oss_put(GATE_UP + "_blocks", lambda d, a: ["F8_E4M3", a]), "gate_up_proj_blocks", "F8_E4M3")
hostile(OSS, oss_put(GATE_UP + "_scales", lambda d, a: [d, np.full_like(a, 255)]), "gate_up_proj_scales", "NaN")
hostile(OSS, oss_put(GATE_UP + "_scales", lambda d, a: [d, 254 - a]), "scales of gate")
hostile(OSS, oss_put(GATE_UP + "_bias", lambda d, a: [d, a[:, 1:]]), "gate_up_proj_bias")
hostile(OSS, oss_put(GATE_UP + "_bias", lambda d, a: [d, a | 0x7F80]), "gate_up_proj_bias", "not finite")
hostile(OSS, lambda c: c.tensors.pop("model.layers.0.mlp.router.bias"), "router.bias", "missing")
hostile(OSS, lambda c: c.config.update(swiglu_limit=6.0), "swiglu_limit")
hostile(OSS, lambda c: c.config.update(model_type="qwen3_moe"), "quantization_config", "gpt_oss")
hostile(OSS, lambda c: c.config.update(quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]}),
        "quantization_config", "gpt_oss")
checkpoint = Published(MX)
folder = checkpoint.write("truncated")
with open(os.path.join(folder, "model.safetensors"), "r+b") as stream:
    stream.truncate(os.path.getsize(stream.name) - 100)
refused(folder, "model.safetensors", "truncated")
