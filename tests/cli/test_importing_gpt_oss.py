# SPDX-License-Identifier: Apache-2.0
"""gpt-oss checkpoints: rows in turns, biases, an activation of its own; codes taken over exactly, truth against numpy,
misread ones found."""
import h5py
import numpy as np

from edited import input_hash
from program import CAPTURE, FAULTS, expect, path, run, small
from published import E2M1, LAYERS, Published, bf16, read, refused, swapped, write

OSS, HIDDEN, INNER, TOP_K = "gpt-oss-mxfp4", 384, 192, 4


def widen(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def halves(turns):
    """[experts, rows, ...]: even rows, then odd ones."""
    return np.concatenate([turns[:, 0::2], turns[:, 1::2]], axis=1)


def values(codes, scales):
    table = np.concatenate([E2M1, -E2M1]).astype(np.float64)
    pairs = np.stack([table[codes & 15], table[codes >> 4]], axis=-1).reshape(*codes.shape[:-1], -1)
    return pairs * np.repeat(2.0 ** (scales.astype(int) - 127), 32, axis=-1)


def stored(checkpoint, n):
    """What the fixture's layer n must hold, by dataset."""
    mlp = f"model.layers.{n}.mlp."
    want = {"router/bias": widen(checkpoint.tensors[mlp + "router.bias"][1])}
    for part, order in (("gate_up", halves), ("down", np.asarray)):
        blocks, scales, bias = (checkpoint.tensors[f"{mlp}experts.{part}_proj_{suffix}"][1]
                                for suffix in ("blocks", "scales", "bias"))
        want[part + "/codes"] = order(blocks.reshape(*blocks.shape[:2], -1))
        want[part + "/scales"], want[part + "/bias"] = order(scales), order(widen(bias))
    return want


def moe(checkpoint, n, inputs):
    """The block's ids, routing weights and output, in float64. inputs: [tokens, hidden]."""
    want = stored(checkpoint, n)
    gate_up, down = (values(want[part + "/codes"], want[part + "/scales"]) for part in ("gate_up", "down"))
    router = widen(checkpoint.tensors[f"model.layers.{n}.mlp.router.weight"][1]).astype(np.float64)
    logits = inputs @ router.T + want["router/bias"]
    ids = np.argsort(-logits, axis=1)[:, :TOP_K]
    weights = np.exp(np.take_along_axis(logits, ids, 1) - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    y = np.zeros(inputs.shape)
    for t, x in enumerate(inputs):
        for e, weight in zip(ids[t], weights[t]):
            h = gate_up[e] @ x + want["gate_up/bias"][e]
            g, u = np.minimum(h[:INNER], 7), np.clip(h[INNER:], -7, 7)
            y[t] += weight * (down[e] @ (g / (1 + np.exp(-1.702 * g)) * (u + 1)) + want["down/bias"][e])
    return ids, weights, y


oss = Published(OSS)
folder = oss.write("gpt-oss")
run("import", folder, path("oss.h5"), "--tokens", 5)
with h5py.File(path("oss.h5")) as f:
    expect(f.attrs["activation"].decode() == "swiglu-oai", f"activation {f.attrs['activation']}")
    expect(f.attrs["recipe"].decode() == "published:" + OSS, f"recipe {f.attrs['recipe']}")
    expect(f.attrs["router"].decode() == "transformers.gpt-oss/1" and "residual" in f["stack"], "router or stack")
    for n in range(LAYERS):
        layer = f[f"layers/{n}"]
        for name, want in stored(oss, n).items():
            expect(layer[name].shape == want.shape and (layer[name][()] == want).all(), f"{name} of layer {n}")
        for name, lies in (("gate_up/bias", "row-major; gate, then up"), ("down/bias", "row-major")):
            expect(layer[name].attrs["layout"].decode() == lies, f"{name} of layer {n}: {layer[name].attrs['layout']}")
        ids, weights, y = moe(oss, n, widen(layer["x"][()]).astype(np.float64))
        expect((layer["routing/ids"][()] == ids).all(), f"ids of layer {n}")
        expect(np.allclose(layer["truth/routing_weights"], weights, rtol=1e-12, atol=0), f"routing weights of layer {n}")
        expect(np.abs(y - layer["truth/quantised"][()]).max() < 1e-11 * np.abs(y).max(), f"truth of layer {n}")
    digest = f.attrs["input_sha256"].decode()
run("verify", path("oss.h5"), "--kernel", "cpu/route", "--expect", "1")
run("verify", path("oss.h5"))
run("import", folder, path("layer.h5"), "--tokens", 1, "--layers", 0)
run("verify", path("layer.h5"), "--kernel", "cpu/mxfp4-*")

# The same values in bf16: rows in turns, or columns.
def in_bf16(columns):
    checkpoint = Published(OSS)
    del checkpoint.config["quantization_config"]
    for n in range(LAYERS):
        for part in ("gate_up_proj", "down_proj"):
            name = f"model.layers.{n}.mlp.experts.{part}"
            blocks, scales = (checkpoint.tensors.pop(f"{name}_{suffix}")[1] for suffix in ("blocks", "scales"))
            bits = bf16(values(blocks.reshape(*blocks.shape[:2], -1), scales))  # exact
            checkpoint.tensors[name] = ["BF16", np.ascontiguousarray(bits.swapaxes(1, 2)) if columns else bits]
    return checkpoint


with h5py.File(path("oss.h5")) as f:
    coded = {part: bf16(values(f[f"layers/1/{part}/codes"][()], f[f"layers/1/{part}/scales"][()])) for part in ("gate_up", "down")}
for columns in (True, False):
    run("import", in_bf16(columns).write("bf16"), path("bf16.h5"), "--format", "bf16", "--layers", 1, "--tokens", 2)
    with h5py.File(path("bf16.h5")) as f:
        for part, bits in coded.items():
            expect((f[f"layers/0/{part}/codes"][()] == bits).all(), f"{part} in bf16, columns {columns}")

# The documented hash covers biases and activation.
expect(input_hash(path("oss.h5")) == digest, "the documented hash differs")

# A kernel that knows no other activation is not asked.
with h5py.File(small("other.h5"), "r+") as f:
    f.attrs.create("activation", np.bytes_("swiglu-oai"), dtype="S10")
    del f["stack"]  # its truth is of the other activation
    del f.attrs["truth_sha256"]
digest = input_hash(path("other.h5"))
with h5py.File(path("other.h5"), "r+") as f:
    f.attrs.modify("input_sha256", np.bytes_(digest))
done = run("verify", path("other.h5"), "--subject", FAULTS, "--kernel", "faults/none", code=3)
expect("UNSUPPORTED" in done.stdout and "no activation but SiLU" in done.stdout, f"faults/none: {done.stdout}")

# What the model adds to the residual stream in layer 0.
capture = read(CAPTURE)
_, _, added = moe(oss, 0, widen(capture["layer0.mlp_input_bf16"][1]).astype(np.float64))
capture["layer1.residual_in_f64"] = ["F64", capture["layer0.residual_mid_f64"][1] + added]
write(path("capture.safetensors"), capture)
CAPTURED = ["--capture", path("capture.safetensors"), "--tokens", 8]
done = run("import", folder, path("captured.h5"), *CAPTURED)
expect(float(done.stdout.split("cosine of ")[1].split()[0]) > .999999, f"captured: {done.stdout}")
# And with what shared experts add, which is not the layer's.
shared = 4 * added[::-1]
write(path("shared.safetensors"), {**capture, "layer0.shared_output_f64": ["F64", shared],
                                   "layer1.residual_in_f64": ["F64", capture["layer1.residual_in_f64"][1] + shared]})
done = run("import", folder, path("shared.h5"), "--capture", path("shared.safetensors"), "--tokens", 8, "--layers", 0)
expect(float(done.stdout.split("cosine of ")[1].split()[0]) > .999999, f"shared experts: {done.stdout}")


def change(part, suffixes, function):
    def apply(checkpoint):
        for n in range(LAYERS):
            for suffix in suffixes:
                name = f"model.layers.{n}.mlp.experts.{part}_proj_{suffix}"
                checkpoint.tensors[name] = [checkpoint.tensors[name][0], function(checkpoint.tensors[name][1])]
    return apply


def injected(change, *words, captured=None, trusted=False):
    """Refused from the codes alone with these words, if any, and with the capture; --trust takes it, where that is asked."""
    checkpoint = Published(OSS)
    change(checkpoint)
    folder = checkpoint.write("injected")
    if words:
        refused(folder, *words)
    else:
        run("import", folder, path("injected.h5"), "--tokens", 3, "--layers", 0)
    refused(folder, *(captured or words), options=CAPTURED[:2])
    if trusted:
        run("import", folder, path("injected.h5"), "--trust", "--layers", 0, *CAPTURED)


def turned(v):
    return np.stack([v[:, 1::2], v[:, 0::2]], 2).reshape(v.shape)


EVERY = ("blocks", "scales", "bias")
SIZES = "order of up's rows and down's columns"
injected(change("gate_up", EVERY, halves), SIZES, "gate and up in halves", captured=["gate and up in halves (cosine 1.000)"],
         trusted=True)
injected(change("down", ["blocks"], swapped), SIZES, "even and odd elements exchanged",
        captured=["even and odd elements swapped", "cosine"])
injected(lambda c: [change(part, ["blocks"], swapped)(c) for part in ("gate_up", "down")], SIZES,
        "even and odd elements exchanged", captured=["even and odd elements swapped (cosine 1.000)"])
# up + 1 has no sign to choose, so that gate and up are told apart by a capture alone.
injected(change("gate_up", EVERY, turned), captured=["gate and up swapped (cosine 1.000)"])


def twice_wrong(checkpoint):
    change("gate_up", EVERY, turned)(checkpoint)
    for part in ("gate_up", "down"):
        change(part, ["blocks"], swapped)(checkpoint)


injected(twice_wrong, SIZES, captured=["with even and odd elements and gate and up swapped (cosine 1.000)"])

GATE_UP = "model.layers.0.mlp.experts.gate_up_proj"


def hostile(change, *words):
    checkpoint = Published(OSS)
    change(checkpoint)
    refused(checkpoint.write("hostile"), *words)


def put(name, function):
    def change(c):
        c.tensors[name] = function(*c.tensors[name])
    return change


hostile(put(GATE_UP + "_blocks", lambda d, a: [d, a[:, :, :-1]]), "gate_up_proj_blocks", "[16, 384, 12, 16]")
hostile(put(GATE_UP + "_blocks", lambda d, a: ["F8_E4M3", a]), "gate_up_proj_blocks", "F8_E4M3")
hostile(put(GATE_UP + "_scales", lambda d, a: [d, np.full_like(a, 255)]), "gate_up_proj_scales", "NaN")
hostile(put(GATE_UP + "_scales", lambda d, a: [d, 254 - a]), "scales of gate")
hostile(put(GATE_UP + "_bias", lambda d, a: [d, a[:, 1:]]), "gate_up_proj_bias")
hostile(put(GATE_UP + "_bias", lambda d, a: [d, a | 0x7F80]), "gate_up_proj_bias", "not finite")
for part, size in (("gate_up", 16 * 384), ("down", 16 * 384)):
    for at in (0, size - 1): # the first and the last of them
        hostile(put(f"model.layers.0.mlp.experts.{part}_proj_bias",
                    lambda d, a: [d, np.where(np.arange(a.size).reshape(a.shape) == at, a | 0x7F80, a)]), f"{part}_proj_bias: element {at} is")
hostile(lambda c: c.tensors.pop("model.layers.0.mlp.router.bias"), "router.bias", "missing")
hostile(lambda c: c.config.update(swiglu_limit=6.0), "swiglu_limit")
hostile(lambda c: c.config.update(model_type="qwen3_moe"), "quantization_config", "gpt_oss")
hostile(lambda c: c.config.update(quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]}),
        "quantization_config", "gpt_oss")
