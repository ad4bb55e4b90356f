# SPDX-License-Identifier: Apache-2.0
"""The layouts of four systems: what is packed as each packs it is read as it was, and has one verdict; a layout that is
named wrongly is refused, or told."""
import sys

import numpy as np

from layers import arrays, kernel
from package import moe
from packing import PACKED, pack
from program import ALL, expect, path

import gaugeblock
from gaugeblock.layouts import LAYOUTS, Projection, canonical
from gaugeblock.testing import assert_moe_close

expect(set(PACKED) == set(LAYOUTS), "a layout without a test of its own")
places = {name: rules.places for name, rules in LAYOUTS.items()}
SHAPES = {"nvfp4": (4, 2, 64, 32), "mxfp4": (4, 2, 64, 32), "mxfp8": (4, 2, 64, 32), "fp8": (4, 2, 256, 128), "bf16": (4, 2, 32, 16)}

# Every format in every layout of it: all experts, and two in another order, are read as they were packed.
EXPERTS, HIDDEN, INNER = 3, 320, 192  # FP8 blocks of which the last ones are smaller
BLOCK = {"nvfp4": 16, "mxfp4": 32, "mxfp8": 32}
rng = np.random.default_rng(3)


def drawn(format):
    """codes, scales and global scales of w13 and w2; None: the format has none."""
    made = []
    for rows, columns, halves in ((2 * INNER, HIDDEN, 2), (HIDDEN, INNER, 1)):
        width = columns // 2 if format in ("nvfp4", "mxfp4") else columns
        codes = rng.integers(0, 256, (EXPERTS, rows, width)).astype(np.uint16 if format == "bf16" else np.uint8)
        scales = None
        if format == "fp8":
            scales = rng.random((EXPERTS, halves * -(-rows // halves // 128), -(-columns // 128)), np.float32)
        elif format in BLOCK:
            scales = rng.integers(0, 256, (EXPERTS, rows, columns // BLOCK[format])).astype(np.uint8)
        made.append((codes, scales, rng.random((EXPERTS, halves), np.float32) if format == "nvfp4" else None))
    return zip(*made)


def projections(format, layout):
    return Projection("w13", format, layout, EXPERTS, 2 * INNER, HIDDEN, 2), Projection("w2", format, layout, EXPERTS, HIDDEN, INNER, 1)


def same(read, expected, experts):
    """Whether what was read is these experts' part of each array, and its type."""
    return all(a is b is None or (a.dtype == b.dtype and np.array_equal(a, b[experts]))
               for a, b in zip((read.codes, read.scales, read.global_scales), expected))


for format in SHAPES:
    parts = tuple(drawn(format))
    for name in (name for name in LAYOUTS if format in LAYOUTS[name].formats):
        for p, given, *expected in zip(projections(format, name), pack(name, *parts), *parts):
            for experts in (np.arange(EXPERTS), np.array([2, 0])):
                expect(same(canonical(p, given, experts), expected, experts), f"{p} of {experts}")
            if LAYOUTS[name].swizzled:  # whatever type its bytes are given in
                words = given[0], np.ascontiguousarray(given[1]).view(np.int32), *given[2:]
                expect(same(canonical(p, words, np.arange(EXPERTS)), expected, np.arange(EXPERTS)), f"{p}, scales of four bytes")

# Many blocks of a row, each by itself.
many = rng.integers(0, 256, (2, 32, 512), np.uint8), rng.integers(0, 256, (2, 32, 32), np.uint8)
read = canonical(Projection("w2", "mxfp4", "gpt-oss", 2, 32, 1024, 1), (many[0].reshape(2, 32, 32, 16), many[1]), np.arange(2))
expect(same(read, (*many, None), np.arange(2)), "32 blocks of a row")

# One scale for an expert, or for a half of it, is that of all its blocks; a global scale likewise.
w13 = [projections(format, "linear")[0] for format in ("fp8", "nvfp4")]
turned = Projection("w13", "fp8", "flashinfer-trtllm-fp8", EXPERTS, 2 * INNER, HIDDEN, 2)
codes8, codes4 = np.zeros((EXPERTS, 2 * INNER, HIDDEN), np.uint8), np.zeros((EXPERTS, 2 * INNER, HIDDEN // 2), np.uint8)
scales4 = np.zeros((EXPERTS, 2 * INNER, HIDDEN // 16), np.uint8)
one, two = rng.random(EXPERTS, np.float32), rng.random((EXPERTS, 2), np.float32)
picked = np.array([2, 1])
for given, halves in ((one, one[:, None].repeat(2, 1)), (one[:, None], one[:, None].repeat(2, 1)), (two, two)):
    whole = halves[picked].repeat(2, axis=1)[..., None].repeat(3, axis=2)  # 2 x 3 blocks of a half
    expect(np.array_equal(canonical(w13[0], (codes8, given), picked).scales, whole), f"FP8 scales {given.shape}")
    expect(np.array_equal(canonical(turned, (codes8, given), picked).scales, whole[:, [2, 3, 0, 1]]), f"up first {given.shape}")
    expect(np.array_equal(canonical(w13[1], (codes4, scales4, given), picked).global_scales, halves[picked]), f"{given.shape}")
for given in (0.5, np.array(0.5), np.full(1, 0.5, np.float32)):
    made = canonical(w13[1], (codes4, scales4, given), picked).global_scales
    expect(made.dtype == np.float32 and np.array_equal(made, np.full((2, 2), 0.5, np.float32)), f"{given!r} of all experts")


def problem(format):
    """Inputs, the three arrays of both projections, and the output of a right kernel."""
    file = path(f"{format}.h5")
    layer = gaugeblock.Fixture(gaugeblock.make(file, shape=SHAPES[format], tokens=3, format=format, seed=9)).layer(0)
    both = layer.gate_up, layer.down
    scales = [w.scales for w in both]
    if format == "fp8":  # [experts, halves, rows, columns] of blocks
        scales = [s.reshape(s.shape[0], -1, s.shape[-1]) for s in scales]
    given = {"x": layer.x, "ids": layer.ids, "weights": layer.routing_weights, "format": format}
    return given, [w.codes for w in both], scales, [w.global_scales for w in both], moe(layer)[0]


def verdict(output, given, layout, packed):
    """PASS; or what is said, of a refusal or a failure."""
    try:
        assert_moe_close(output, **given, w13=packed[0], w2=packed[1], layout=layout)
        return "PASS"
    except ValueError as refusal:
        return f"refused: {refusal}"
    except AssertionError as failure:
        return str(failure)


for format in SHAPES if ALL else ("nvfp4", "bf16"):
    given, codes, scales, globals_, y = problem(format)
    names = [name for name in LAYOUTS if format in LAYOUTS[name].formats]
    right = []
    for name in names:
        if places[name] in right and not ALL:
            continue
        right.append(places[name])
        packed = pack(name, codes, scales, globals_)
        said = verdict(y, given, name, packed)
        expect(said == "PASS", f"{format} in {name}: {said}")
        if not ALL and (format, name) != ("nvfp4", "flashinfer-cutlass"):
            continue
        for other in names if ALL else ("linear", "vllm-cutlass", "flashinfer-trtllm"):
            if places[other] == places[name]:
                continue
            said = verdict(y, given, other, packed)
            expect("layout" in said, f"{format} in {name}, named {other}: {said}")
            told = [word for word in names if repr(word) in said.splitlines()[1]] if said.startswith("\n") else []
            expect(said.startswith("refused") or places[name] in [places[word] for word in told], f"{name} named {other}: {said}")

# Of layouts whose places are the same one is named.
given, codes, scales, globals_, y = problem("bf16")
said = verdict(y, given, "flashinfer-cutlass-unquantised", pack("linear", codes, scales, globals_))
expect("weights lie in layout 'linear', not 'flashinfer-cutlass-unquantised'" in said, said)

# A bug stays a bug in every layout; a view that was copied is refused by its strides.
given, codes, scales, globals_, y = problem("nvfp4")
packed = pack("flashinfer-trtllm", codes, scales, globals_)
said = verdict(y * np.float32(1.01), given, "flashinfer-trtllm", packed)
expect("output: multiplied by 1.01" in said, said)
packed = pack("torchao-grouped", codes, scales, globals_)
packed[0] = np.ascontiguousarray(packed[0][0]), *packed[0][1:]
expect("is a transposed view" in verdict(y, given, "torchao-grouped", packed), "strides")
