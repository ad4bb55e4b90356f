# SPDX-License-Identifier: Apache-2.0
"""Static scales of activations that a checkpoint was published with become the fixture's, and what kernels do wrong with them
is seen and named."""
import itertools
import json

import h5py
import numpy as np

from kept import expect_kept
from program import SANITISED, expect, path, record, refused, run
from published import EXPERTS, LAYERS, PROJECTIONS, Published

SUFFIX = {"modelopt-nvfp4": "input_scale", "nvfp4-pack-quantized": "input_global_scale"}


def with_scales(layout, name, value):
    """A checkpoint; value(layer, expert, projection): the decoding scale, None: there is none."""
    made = Published(layout)
    for layer, expert, projection in itertools.product(range(LAYERS), range(EXPERTS), PROJECTIONS):
        tensor = f"model.layers.{layer}.mlp.experts.{expert}.{projection}.{SUFFIX[layout]}"
        scale = value(layer, expert, projection)
        made.tensors.pop(tensor, None)
        if scale is not None:
            scale = np.float32(scale)
            made.tensors[tensor] = ["F32", np.array(1 / scale if layout == "nvfp4-pack-quantized" else scale, np.float32)]
    return made.write(name)


def imported(folder, name, says, layers="0-1"):
    done = run("import", folder, path(name), "--activations", "nvfp4", "--tokens", "2", "--layers", layers)
    expect(says in done.stdout, done.stdout)
    with h5py.File(path(name)) as file:
        return [file[f"layers/{layer}/activation_scales"][:] for layer in sorted(file["layers"])]


# Of each projection the largest of all experts, decoding; gate and up share theirs.
def own(layer, expert, projection):
    return (0.004 + 0.0005 * layer) * (1 + expert % 7 / 16) * (0.25 if projection == "down_proj" else 1)


for layout in SUFFIX:
    scales = imported(with_scales(layout, layout, own), f"{layout}.h5", "global scales of activations: as published")
    for layer in range(LAYERS):
        for which, projection in enumerate(("gate_proj", "down_proj")):
            largest = max(np.float32(own(layer, e, projection)) for e in range(EXPERTS))
            if layout == "nvfp4-pack-quantized":
                largest = np.float32(1) / np.float32(1 / largest)
            expect(scales[layer][which] == largest, f"{layout} {layer} {projection}: {scales[layer][which]}, not {largest}")

# None, or all 1: calibrated, the same ones; one layer's alone: the other is calibrated.
plain = imported(with_scales("modelopt-nvfp4", "none", lambda *_: None), "none.h5", "calibrated on these tokens", "0")
ones = imported(with_scales("modelopt-nvfp4", "ones", lambda *_: 1.0), "ones.h5", "calibrated on these tokens", "0")
expect(np.array_equal(plain, ones) and (np.array(plain) < 0.1).all(), f"{plain} {ones}")
half = imported(with_scales("modelopt-nvfp4", "half", lambda layer, e, p: own(layer, e, p) if layer else None), "half.h5",
                "as published, calibrated in layers that have none")
expect(np.array_equal(half[0], plain[0]) and half[1][0] == np.float32(own(1, 6, "gate_proj")), str(half))

# What quantises nothing, or is there in part, is refused with the tensor's name.
for value, says in ((0.0, "is 0, by which"), (-1.0, "is -1, by which"), (np.inf, "is inf, by which"), (np.nan, "is nan, by which"),
                    (None, "of the 48 projections of layer 0 have none")):
    folder = with_scales("modelopt-nvfp4", f"bad-{value}", lambda layer, e, p: value if (layer, e, p) == (0, 3, "up_proj") else 0.01)
    said = refused("import", folder, path("bad.h5"), "--activations", "nvfp4", "--tokens", "4", "--layers", "0")
    expect(says in said and "input_scale" in said, said)

# A kernel by these scales passes; one that uses one twice, or not at all, is seen by the default policy and named.
fixture = path("modelopt-nvfp4.h5")
expect(record(fixture)["verdict"] == "PASS", "the reference by published scales")
if not SANITISED:  # all injected bugs: half of this test's time there
    run("import", path("modelopt-nvfp4"), path("layer.h5"), "--activations", "nvfp4", "--tokens", "2", "--layers", "0")
    run("power", path("layer.h5"), "-o", path("power.json"))
    with open(path("power.json")) as stream:
        bugs = json.load(stream)["injected_bugs"]
    for bug in ("global scale used twice", "global scale missing"):
        found = [one for one in bugs if bug in one["name"] and one["changed"]]
        expect(len(found) >= 2 and all(one["caught_by"]["default"] for one in found), f"{bug}: {found}")

import package  # noqa: E402
import gaugeblock  # noqa: E402
from nvfp4 import quantise  # noqa: E402

run("make", path("small.h5"), "--shape", "4,2,64,64", "--tokens", "4", "--activations", "nvfp4")
layer = gaugeblock.Fixture(path("small.h5")).layer(0)
weights = [(w.codes, w.scales, w.global_scales) for w in (layer.gate_up, layer.down)]
for factor, name in ((lambda d: d, "global scale used twice"), (lambda d: 1 / d, "global scale missing")):
    def wrong(bits, d, factor=factor):
        codes, scales, values = quantise(bits, d)
        return codes, scales, values * (factor(np.float64(d)) if bits.shape == layer.x.shape else 1)
    package.quantise = wrong
    try:
        gaugeblock.testing.assert_moe_close(
            package.codes(layer)["output"], layer.x, *weights, layer.ids, layer.routing_weights, format="nvfp4",
            activations="nvfp4", x_scale=layer.quantisation.x_scale, intermediate_scale=layer.quantisation.intermediate_scale)
        raise SystemExit(f"{name} passes")
    except AssertionError as failure:
        expect(name in str(failure), str(failure))

expect_kept()
