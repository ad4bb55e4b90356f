# SPDX-License-Identifier: Apache-2.0
"""The layouts of four systems: one problem, packed as each packs it, has one verdict; a layout that is named wrongly is
refused, or told."""
import sys

import numpy as np

from layers import arrays, kernel
from package import moe
from packing import PACKED, pack
from program import ALL, expect, path

import gaugeblock
from gaugeblock.layouts import LAYOUTS
from gaugeblock.testing import assert_moe_close

expect(set(PACKED) == set(LAYOUTS), "a layout without a test of its own")
places = {name: rules.places for name, rules in LAYOUTS.items()}
SHAPES = {"nvfp4": (4, 2, 64, 32), "mxfp4": (4, 2, 64, 32), "mxfp8": (4, 2, 64, 32), "fp8": (4, 2, 256, 128), "bf16": (4, 2, 32, 16)}


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


for format in SHAPES:
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
        for other in names:
            if places[other] == places[name]:
                continue
            said = verdict(y, given, other, packed)
            expect("layout" in said, f"{format} in {name}, named {other}: {said}")
            told = [word for word in names if repr(word) in said.splitlines()[1]] if said.startswith("\n") else []
            expect(said.startswith("refused") or places[name] in [places[word] for word in told], f"{name} named {other}: {said}")

# A bug stays a bug in every layout; a view that was copied is refused by its strides.
given, codes, scales, globals_, y = problem("nvfp4")
packed = pack("flashinfer-trtllm", codes, scales, globals_)
said = verdict(y * np.float32(1.01), given, "flashinfer-trtllm", packed)
expect("output: multiplied by 1.01" in said, said)
packed = pack("torchao-grouped", codes, scales, globals_)
packed[0] = np.ascontiguousarray(packed[0][0]), *packed[0][1:]
expect("is a transposed view" in verdict(y, given, "torchao-grouped", packed), "strides")
