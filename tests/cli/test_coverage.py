# SPDX-License-Identifier: Apache-2.0
"""What a fixture exercises: every count against one by numpy, and what is missing makes a verdict VACUOUS."""
import contextlib
import io
import sys

import h5py
import numpy as np

from blocks import block
from kept import expect_kept
from program import ALL, expect, path, record, refused, run

SHAPE = ["--shape", "8,3,160,192", "--layers", "2", "--tokens"]
LARGEST = {"nvfp4": 7, "mxfp4": 7, "mxfp8": 0x7E, "fp8": 0x7E, "bf16": 0x7F7F}
SUBNORMALS = {"nvfp4": 1, "mxfp4": 1, "mxfp8": 7, "fp8": 7, "bf16": 127}
BLOCK = {"nvfp4": (1, 16), "mxfp4": (1, 32), "mxfp8": (1, 32), "fp8": (128, 128)}
f32 = np.float32


def rehash(file):
    """Puts the file's hash right after its inputs were changed."""
    printed = io.StringIO()
    sys.argv = ["", file]
    with contextlib.redirect_stdout(printed):
        exec(block("fixtures.md", "python"), {})
    with h5py.File(file, "r+", libver="latest") as f:
        f.attrs.modify("input_sha256", np.bytes_(printed.getvalue().strip()))


def shown(fixture):
    """`info --coverage` as {name: (seen, possible or None)}."""
    counts = {}
    for line in run("info", fixture, "--coverage").stdout.splitlines():
        words = line.split()
        if "." in words[0]:
            counts[words[0]] = (int(words[1]), int(words[3]) if len(words) > 2 else None)
    return counts


def elements(codes, weights):
    """[rows, columns] of one code each, with the sign bit apart."""
    if weights in ("nvfp4", "mxfp4"):
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)
    bits = {"bf16": 16, "nvfp4": 4, "mxfp4": 4}.get(weights, 8)
    return codes, codes & (1 << bits - 1) - 1


def values_among(codes):
    """How many codes there are among these."""
    return np.count_nonzero(np.bincount(codes))


def zeros_among_blocks(magnitude, down, across):
    """Of [rows, columns], how many blocks of `down` rows and `across` columns, of which the last ones may be cut off, are zero."""
    for axis, step in ((0, down), (1, across)):
        magnitude = np.maximum.reduceat(magnitude, range(0, magnitude.shape[axis], step), axis=axis)
    return np.sum(magnitude == 0)


def counted_weights(layers, weights):
    """The counts of gate, up and down by numpy."""
    counts = {}
    for p, dataset, half in (("gate_proj", "gate_up", 0), ("up_proj", "gate_up", 1), ("down_proj", "down", None)):
        codes, scales, zero_blocks = [], [], 0
        for layer in layers:
            for e in np.unique(layer["routing/ids"][()]):
                if e < 0:
                    continue
                rows = layer[f"{dataset}/codes"].shape[1]
                part = slice(None) if half is None else slice(half * rows // 2, (half + 1) * rows // 2)
                code, magnitude = elements(layer[f"{dataset}/codes"][e, part], weights)
                codes.append((code.ravel(), magnitude.ravel()))
                if weights in ("nvfp4", "mxfp4", "mxfp8"):
                    scales.append(layer[f"{dataset}/scales"][e, part].ravel())
                if weights in BLOCK:
                    zero_blocks += zeros_among_blocks(magnitude, *BLOCK[weights])
        code, magnitude = (np.concatenate(part) for part in zip(*codes))
        largest = LARGEST[weights]
        counts |= {f"{p}.codes": (values_among(code[magnitude <= largest]), 2 * largest + 2),
                   f"{p}.subnormals": (np.sum((magnitude > 0) & (magnitude <= SUBNORMALS[weights])), None),
                   f"{p}.zeros": (np.sum(magnitude == 0), None),
                   f"{p}.negative_zeros": (np.sum((magnitude == 0) & (code > 0)), None)}
        if weights != "bf16":
            counts[f"{p}.largest"] = (np.sum(magnitude == largest), None)
        if weights in BLOCK:
            counts[f"{p}.zero_blocks"] = (zero_blocks, None)
        if scales:
            scale = np.concatenate(scales)
            possible = 127 if weights == "nvfp4" else 255
            counts[f"{p}.scales"] = (values_among(scale[scale < possible]), possible)
            if weights == "nvfp4":
                counts |= {f"{p}.zero_scales": (np.sum(scale == 0), None),
                           f"{p}.subnormal_scales": (np.sum((scale > 0) & (scale < 8)), None)}
            else:
                counts[f"{p}.smallest_scales"] = (np.sum(scale == 0), None)
    return counts


def narrow(value):
    """The bits of an FP32 number rounded to bf16."""
    bits = int(np.float32(value).view(np.uint32))
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


def counted_inputs(layers):
    x = np.stack([layer["x"][()] for layer in layers])
    ids = [layer["routing/ids"][()] for layer in layers]
    experts = layers[0]["gate_up/codes"].shape[0]
    inner = layers[0]["gate_up/codes"].shape[1] // 2
    loads = np.array([np.bincount(i[i >= 0], minlength=experts) for i in ids])
    half = [len(np.unique(rows, axis=0)) - len(np.unique(rows[:, :rows.shape[1] // 2], axis=0)) for rows in x]
    pairs = [(w[t, a], w[t, b]) for i, w in zip(ids, (layer["routing/weights"][()] for layer in layers))
             for t in range(len(i)) for b in range(i.shape[1]) for a in range(b) if i[t, a] >= 0 and i[t, b] >= 0]
    counts = {"x.subnormals": np.sum((x & 0x7FFF > 0) & (x & 0x7FFF < 0x80)), "x.zeros": np.sum(x & 0x7FFF == 0),
              "x.negative_zeros": np.sum(x == 0x8000),
              "x.repeated": sum(len(rows) - len(np.unique(rows, axis=0)) for rows in x),
              "experts.idle": np.sum(loads == 0), "experts.one": np.sum(loads == 1),
              "experts.several": np.sum(loads > 1), "experts.all": np.sum(loads == x.shape[1]),
              "slots.empty": sum(np.sum(i < 0) for i in ids), "x.shared_prefix": sum(half),
              "slots.equal_weights": sum(a == b for a, b in pairs),
              "slots.near_weights": sum(a != b and narrow(a) == narrow(b) for a, b in pairs),
              "layers.further": len(layers) - 1, "layers.routed": sum("router" in layer for layer in layers)}
    counts |= {f"experts.load_{n}": np.sum(loads == n) for n in (7, 8, 9, 16, 17)}
    counts |= {f"ids.at_{n}": sum(load[n - 1] + load[n] for load in loads if load[n - 1] and load[n])
               for n in (128, 256, 32768, 65536) if n < experts}
    for name, size in (("hidden", x.shape[2]), ("intermediate", inner)):
        counts |= {f"{name}.tail_64": len(layers) * (size % 64 > 0),
                   f"{name}.tail_128": len(layers) * (size % 128 == 64),
                   f"{name}.tail_256": len(layers) * (size % 256 == 128)}
    return {name: (count, None) for name, count in counts.items()}


def compare(found, counted, what):
    for name, count in counted.items():
        expect(found.get(name) == count, f"{what}: {name} is {found.get(name)}, by numpy {count}")


KINDS = (("edge", "holes"), ("gaussian", "half"), ("ties", "hot"))
for number, weights in enumerate(LARGEST):
    for kind, routing in KINDS if ALL else KINDS[number % 3:][:1]:
        fixture = path(f"{weights}-{kind}.h5")
        run("make", fixture, *SHAPE, "12", "--format", weights, "--data", kind, "--routing", routing)
        with h5py.File(fixture, "r+", libver="latest") as f:
            e = f["layers/0/routing/ids"][()].max()
            f["layers/0/x"][3] = f["layers/0/x"][0]
            f["layers/0/gate_up/codes"][e, 192:384] = 0            # all of one up, its last blocks cut off
            f["layers/0/gate_up/codes"][e, :128, :128] = 8          # -0 in E2M1, a number in E4M3
            f["layers/0/down/codes"][e, 0] = 0                      # one row of a block of FP8
            f["layers/0/down/codes"][e, 128:160] = {1: 0x80, 2: 0x8000}[f["layers/0/down/codes"].dtype.itemsize]
        rehash(fixture)
        with h5py.File(fixture) as f:
            layers = [f["layers/0"], f["layers/1"]]
            counted = counted_weights(layers, weights) | counted_inputs(layers)
            gates = sum(np.sum(layer["routing/ids"][()] >= 0) for layer in layers) * 192
        found = shown(fixture)
        compare(found, counted, fixture)
        expect(sum(n for name, (n, _) in found.items() if name.startswith("silu.")) == gates, f"{fixture}: gates")
        expect(weights == "bf16" or found["up_proj.zero_blocks"][0] > 0, fixture)

# A block of FP8 that three columns are left for: its one number lies in the last of them.
fixture = path("narrow.h5")
run("make", fixture, "--shape", "3,2,131,70", "--tokens", 4, "--format", "fp8", "--stored")
with h5py.File(fixture, "r+", libver="latest") as f:
    codes = f["layers/0/gate_up/codes"]
    e = f["layers/0/routing/ids"][0, 0]
    codes[e] = 0
    codes[e, 5, 130] = codes[e, 77, 128] = 1
rehash(fixture)
with h5py.File(fixture) as f:
    compare(shown(fixture), counted_weights([f["layers/0"]], "fp8"), fixture)

MADE_FOR = {"loads": ["experts.one", *(f"experts.load_{n}" for n in (7, 8, 9, 16, 17))],
            "boundary": ["ids.at_128", "ids.at_256"],
            "sparse": ["slots.equal_weights", "slots.near_weights", "gate_proj.zero_blocks", "down_proj.zero_blocks"],
            "shared": ["x.shared_prefix", "x.repeated", "slots.equal_weights", "slots.near_weights", "layers.routed"],
            "wide": ["silu.underflow", "silu.exp_overflow", "silu.linear", "intermediate.subnormals"]}

# Loads, ids, prefixes, tails and weights of problems that are made for them.
for number, arguments in enumerate((
        ["--shape", "10,2,144,96", "--tokens", 58, "--routing", "loads"],
        ["--shape", "300,3,64,384", "--tokens", 16, "--routing", "boundary", "--layers", 2],
        *([["--shape", "65537,2,16,16", "--tokens", 9, "--routing", "boundary"]] if ALL else []),  # as cli_suite's
        ["--shape", "128,3,192,64", "--tokens", 12, "--routing", "equal", "--data", "sparse"],
        ["--shape", "16,4,128,256", "--tokens", 14, "--data", "shared"],
        ["--shape", "16,4,320,128", "--tokens", 14, "--data", "wide"])):
    fixture = path(f"made-{number}.h5")
    run("make", fixture, *arguments, "--stored")
    found = shown(fixture)
    with h5py.File(fixture) as f:
        counted = counted_inputs([f[f"layers/{l}"] for l in range(f.attrs["layers"])])
    compare(found, counted, arguments)
    expect(set(counted) <= set(found), f"{arguments}: {set(counted) - set(found)} are missing")
    ids = [name for name in found if name.startswith("ids.")]
    expect(set(ids) <= set(counted), f"{arguments}: {ids}, which not all can be")
    for name in MADE_FOR[arguments[-1] if arguments[-2] == "--data" else arguments[arguments.index("--routing") + 1]]:
        expect(found[name][0] > 0, f"{arguments}: {name} is zero")

# Injected gates: each row of gate and up has one weight, so that its dot product is one exact product.
fixture = path("injected.h5")
run("make", fixture, *SHAPE, "128", "--format", "bf16", "--routing", "holes")
random = np.random.default_rng(1)


def bf16(shape, lowest, highest):
    """Random bits: sign, an exponent from lowest to highest, fraction."""
    exponents = random.integers(lowest + 127, highest + 128, shape)
    return (random.integers(0, 2, shape) << 15 | exponents << 7 | random.integers(0, 128, shape)).astype(np.uint16)


def widen(bits):
    return (bits.astype(np.uint32) << 16).view(f32)


def injected_values(layer):
    """gate and up of every slot in use, FP32 and exact."""
    x, codes, ids = widen(layer["x"][()]), widen(layer["gate_up/codes"][()]), layer["routing/ids"][()]
    t, k = np.nonzero(ids >= 0)
    column = np.arange(384) % 160
    dots = codes[ids[t, k][:, None], np.arange(384), column] * x[t][:, column] + f32(0)
    return dots[:, :192], dots[:, 192:]


with h5py.File(fixture, "r+", libver="latest") as f:
    for layer in (f["layers/0"], f["layers/1"]):
        codes = np.zeros(layer["gate_up/codes"].shape, np.uint16)
        rows = np.arange(384)
        codes[:, rows, rows % 160] = np.where(rows < 192, bf16((8, 384), -34, 7), bf16((8, 384), -126, 3))
        codes[:, 192:, :][:, ::3] = np.where(codes[:, 192:, :][:, ::3] > 0, 0x4049, 0)
        layer["gate_up/codes"][...] = codes
        x = bf16((128, 160), -1, 0)
        x[::2] &= 0xFF80        # powers of two: products of two codes, whose ties are frequent
        layer["x"][...] = x
rehash(fixture)

with h5py.File(fixture) as f, np.errstate(all="ignore"):
    pairs = [injected_values(f[f"layers/{l}"]) for l in (0, 1)]
    gate, up = (np.concatenate([pair[i].ravel() for pair in pairs]) for i in (0, 1))
    wide = gate.astype(np.float64)
    silu = (wide / (1 + np.exp(-wide))).astype(f32)
    overflow = np.isinf(np.exp(-wide).astype(f32))
    tail, underflow = wide < -1 - 0.27846454276107380, (silu == 0) & (wide < -1)      # 1 + W(1 / e)
    half, linear = ~tail & (silu == gate / 2), ~tail & (silu == gate) & (gate != 0)
    bits = (silu * up).view(np.uint32)
    stored = bits + 0x7FFF + (bits >> 16 & 1) >> 16
    counted = {"silu.underflow": underflow, "silu.exp_overflow": overflow & ~underflow,
               "silu.tail": tail & ~overflow & ~underflow, "silu.half": half, "silu.linear": linear,
               "silu.interior": ~tail & ~half & ~linear, "intermediate.ties": bits & 0xFFFF == 0x8000,
               "intermediate.near_ties": abs((bits & 0xFFFF).astype(int) - 0x8000) == 1,
               "intermediate.subnormals": (stored & 0x7FFF > 0) & (stored & 0x7FFF < 0x80),
               "intermediate.zeros": stored & 0x7FFF == 0, "intermediate.negative_zeros": stored == 0x8000}
    counted = {name: (np.sum(mask), None) for name, mask in counted.items()}
expect(all(n > 0 for n, _ in counted.values()), f"the injected fixture lacks something: {counted}")
compare(shown(fixture), counted, "injected")

with h5py.File(fixture, "r+", libver="latest") as f:
    f.attrs["activation"] = np.bytes_("swiglu-oai")
rehash(fixture)
found = shown(fixture)
compare(found, {"clamp.gate": (np.sum(gate > 7), None), "clamp.up": (np.sum(abs(up) > 7), None)}, "swiglu-oai")
expect(found["clamp.up"][0] > 0 and not any(name.startswith("silu.") for name in found), str(found))

# What is asked for and missing: VACUOUS, by name, also in the line that reproduces it.
MAKE = ["--shape", "8,3,96,48", "--tokens", "9"]
gaussian, edge, one = path("gaussian.h5"), path("edge.h5"), path("one.h5")
run("make", gaussian, *MAKE)
run("make", edge, *MAKE, "--data", "edge", "--routing", "holes")
run("make", one, "--shape", "1,1,96,48", "--tokens", "9")


def asked(fixture, demand, missing, *arguments):
    whole = record(fixture, "--require-coverage", demand, *arguments, code=4 if missing else 0)
    case = whole["cases"][-1]
    expect(case["verdict"] == ("VACUOUS" if missing else "PASS"), str(case))
    if missing:
        expect(case["reason"] == f"the fixture does not exercise {missing}", case["reason"])
        expect(case["repro"].endswith(f" --require-coverage {demand}") and case["exit_code"] == 4, case["repro"])
    return whole


asked(edge, "gate_proj.codes,up_proj.scales=120,x.negative_zeros,slots.empty,down_proj.subnormal_scales=10", "")
asked(gaussian, "gate_proj.codes,x.negative_zeros,intermediate.ties", "x.negative_zeros 0 of 1, intermediate.ties 0 of 1")
asked(gaussian, "gate_proj.codes=16", "")
asked(gaussian, "gate_proj.codes=17", "gate_proj.codes 16 of 17")
asked(gaussian, "gate_proj.scales", "gate_proj.scales 34 of 127")
asked(gaussian, "clamp.gate", "clamp.gate (not in this format or activation)")
asked(one, "experts.all", "")
asked(one, "experts.idle", "experts.idle 0 of 1")
reason = record(one, "--require-coverage", "all,gate_proj.scales=1", code=4)["cases"][0]["reason"]
expect("up_proj.scales" in reason and "gate_proj.scales" not in reason and "clamp" not in reason, reason)

# The record has the counts once a fixture, of the largest batch that was judged; failures stay failures.
whole = asked(gaussian, "experts.several", "experts.several 0 of 1", "--batch", "1")
coverage, = whole["coverage"]
expect(coverage["tokens"] == 1 and coverage["sha256"] == whole["cases"][0]["fixture"]["sha256"], str(coverage))
expect(coverage["counts"]["experts.one"] == {"seen": 3}, str(coverage))
whole = asked(gaussian, "experts.several", "", "--batch", "1,9")
coverage, = whole["coverage"]
expect(coverage["tokens"] == 9, str(coverage))
expect(list(coverage["counts"].items()) == [(name, {"seen": n} | ({"possible": of} if of else {}))
                                            for name, (n, of) in shown(gaussian).items()], "the record's counts")
np.save(path("zeros.npy"), np.zeros((9, 96), f32))
record(gaussian, "--outputs", path("zeros.npy"), "--require-coverage", "experts.idle=9", code=1)

for bad in ("", "gate_proj.code", "gate_proj.codes=0", "gate_proj.codes=x", "gate_proj.codes,", ",all", "all=", "x" * 100, "ALL"):
    refused("verify", gaussian, "--require-coverage", bad)
refused("verify", gaussian, "--require-coverage", "all", "--require-coverage", "all")

expect_kept()
