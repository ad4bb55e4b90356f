# SPDX-License-Identifier: Apache-2.0
"""The Python package, of what is installed into a folder of the test's own, and layers in numpy."""
import os
import subprocess
import sys
import tempfile

import numpy as np

from nvfp4 import quantise
from program import SOURCE, expect, path

subprocess.run(["cmake", "--install", os.environ["BUILD"], "--prefix", path("prefix")], check=True, stdout=subprocess.DEVNULL)
os.environ["GAUGEBLOCK_PREFIX"] = path("prefix")
sys.path.insert(0, os.path.join(SOURCE, "python"))
os.mkdir(path("temporary"))
tempfile.tempdir = path("temporary")
from gaugeblock import bf16_to_float32, float32_to_bf16  # noqa: E402


def moe(layer):
    """The layer in numpy: float32 dot products in whatever order the BLAS takes."""
    output = np.zeros((layer.tokens, layer.hidden), np.float32)
    intermediate = np.zeros((layer.tokens, layer.top_k, layer.intermediate), np.uint16)
    x = bf16_to_float32(layer.x)
    for expert in np.unique(layer.ids[layer.ids >= 0]):
        t, j = np.nonzero(layer.ids == expert)
        gate_up, down = (0 if bias is None else bias[expert] for bias in (layer.gate_up_bias, layer.down_bias))
        gate, up = np.split(x[t] @ layer.gate_up.dequantise(expert).T + gate_up, 2, axis=1)
        if layer.activation == "swiglu-oai":
            gate, up = np.minimum(gate, np.float32(7)), np.clip(up, np.float32(-7), np.float32(7)) + np.float32(1)
            h = gate / (1 + np.exp(np.float32(-1.702) * gate)) * up
        else:
            h = gate / (1 + np.exp(-gate)) * up
        intermediate[t, j] = float32_to_bf16(h)
        y = bf16_to_float32(intermediate[t, j]) @ layer.down.dequantise(expert).T + down
        np.add.at(output, t, layer.routing_weights[t, j][:, None] * y)
    return output, intermediate


def codes(layer):
    q = layer.quantisation
    expect((q.recipe, q.format, q.block) == ("nvfp4.trtllm/1", "nvfp4", 16), str(q))
    x_codes, x_scales, x = quantise(layer.x, np.float32(q.x_scale))
    inner = np.zeros((layer.tokens, layer.top_k, layer.intermediate))
    for t, j in np.ndindex(*layer.ids.shape):
        gate, up = np.split(layer.gate_up.dequantise(layer.ids[t, j]) @ x[t], 2)
        inner[t, j] = gate / (1 + np.exp(-gate)) * up
    intermediate = float32_to_bf16(inner.astype(np.float32))
    h_codes, h_scales, h = quantise(intermediate, np.float32(q.intermediate_scale))
    y = np.zeros((layer.tokens, layer.hidden))
    for t, j in np.ndindex(*layer.ids.shape):
        y[t] += layer.routing_weights[t, j] * (layer.down.dequantise(layer.ids[t, j]) @ h[t, j])
    return {"output": y, "intermediate": intermediate, "x_codes": x_codes, "x_scales": x_scales,
            "intermediate_codes": h_codes, "intermediate_scales": h_scales}
