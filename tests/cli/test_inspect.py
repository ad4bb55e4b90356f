# SPDX-License-Identifier: Apache-2.0
"""gaugeblock inspect: nothing in sound checkpoints of every published layout, and each defect, written into each layout
that can have it, by its name and where it is. test_inspect.py all: the whole table."""
import functools
import json
import os

import numpy as np

import published
from program import ALL, CHECKPOINT, expect, path, refused, run
from published import EXPERTS, LAYERS, PROJECTIONS, Published, swapped

LAYOUTS = published.LAYOUTS + ["gpt-oss-mxfp4"]
NVFP4 = ["modelopt-nvfp4", "nvfp4-pack-quantized"]
PACKED = NVFP4 + ["mxfp4-pack-quantized", "gpt-oss-mxfp4"]


@functools.cache
def sound(layout):
    """As the layout's exporters write it: gate and up with one global scale, activations calibrated."""
    made = Published(layout)
    draw = np.random.default_rng(3)
    if layout in NVFP4:
        encoding = layout != "modelopt-nvfp4"
        w = published.experts(published.trained())
        for layer in range(LAYERS):
            for expert in range(EXPERTS):
                name = f"model.layers.{layer}.mlp.experts.{expert}."
                largest = max(np.abs(w[name + p]).max() for p in PROJECTIONS[:2])
                inputs = draw.uniform(4, 20, 2)
                for p in PROJECTIONS:
                    codes, scales, g = published.nvfp4(w[name + p], encoding, None if p == "down_proj" else largest)
                    amax = np.float32(inputs[int(p == "down_proj")])
                    tensors = {"weight_packed" if encoding else "weight": ["U8", codes], "weight_scale": ["F8_E4M3", scales]}
                    tensors["weight_global_scale" if encoding else "weight_scale_2"] = ["F32", g.reshape(-1 if encoding else ())]
                    tensors["input_global_scale" if encoding else "input_scale"] = [
                        "F32", np.array(2688 / amax if encoding else amax / 2688, np.float32).reshape(-1 if encoding else ())]
                    made.tensors.update({f"{name}{p}.{suffix}": t for suffix, t in tensors.items()})
        if encoding:
            made.config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = {
                "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local"}
    return made


def copy(layout):
    made = sound(layout)
    other = object.__new__(Published)
    other.tensors, other.quantization = dict(made.tensors), json.loads(json.dumps(made.quantization))
    other.config = json.loads(json.dumps(made.config))
    return other


def inspect(folder, *options, code=0):
    file = path("findings.json")
    done = run("inspect", folder, "-o", file, *options, code=code)
    with open(file) as stream:
        return json.load(stream), done.stdout


if __name__ == "__main__":
    for layout in LAYOUTS:
        one, text = inspect(copy(layout).write("sound-" + layout))
        expect(not one["findings"] and text.startswith("SOUND"), f"{layout}: {text}")
