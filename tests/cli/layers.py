# SPDX-License-Identifier: Apache-2.0
"""A layer's arrays as a test of a kernel has them, a kernel of them in numpy, and the same with mistakes."""
import dataclasses

import numpy as np

import package  # noqa: F401, the package's folder
from layer_mistakes import MISTAKES, NAMED_IN_LARGE, is_named  # noqa: F401
from gaugeblock import Fixture, bf16_to_float32, float32_to_bf16

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@dataclasses.dataclass
class Arrays:
    """NVFP4 weights; codes and scales as gaugeblock.h has them."""

    x: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    codes: list  # of w13 and w2
    scales: list
    globals: list

    @property
    def packed(self):
        return list(zip(self.codes, self.scales, self.globals))

    def arguments(self, **changed):
        """What assert_moe_close gets."""
        return {"x": self.x, "w13": self.packed[0], "w2": self.packed[1], "ids": self.ids, "weights": self.weights,
                "format": "nvfp4", **changed}

    def without(self, expert):
        """The same with an expert that no token has."""
        return dataclasses.replace(self, ids=np.where(self.ids == expert, -1, self.ids))


def arrays(path):
    layer = Fixture(path).layer(0)
    both = layer.gate_up, layer.down
    return Arrays(layer.x, layer.ids, layer.routing_weights, [w.codes for w in both], [w.scales for w in both],
                  [w.global_scales for w in both])


def e4m3(bits):
    """Values of codes that are no NaN."""
    exponent, fraction = (bits >> 3 & 15).astype(np.int32), (bits & 7).astype(np.float32)
    values = np.where(exponent, np.ldexp(1 + fraction / 8, exponent - 7), np.ldexp(fraction / 8, -6))
    return np.where(bits & 0x80, -values, values).astype(np.float32)


def dequantise(a, which, expert, high_first=False):
    codes, scales = a.codes[which][expert], e4m3(a.scales[which][expert])
    halves = (codes >> 4, codes & 15) if high_first else (codes & 15, codes >> 4)
    values = E2M1[np.stack(halves, -1).reshape(codes.shape[0], -1)] * scales.repeat(16, axis=1)
    scale = a.globals[which][expert]
    return values * scale.repeat(values.shape[0] // scale.size)[:, None]


def kernel(a, bug=""):
    """The layer in float32, with one of MISTAKES or none."""
    a = prepared(a, bug)
    x, y = bf16_to_float32(a.x), np.zeros(a.x.shape, np.float32)
    for expert in np.unique(a.ids[a.ids >= 0]):
        t, j = np.nonzero(a.ids == expert)
        gate, up = np.split(x[t] @ dequantise(a, 0, expert, bug == "nibbles").T, 2, axis=1)
        gate, up = (up, gate) if bug == "gate and up" else (gate, up)
        h = activated(gate, bug) * up
        down = dequantise(a, 1, expert)
        if bug == "column":
            h = np.roll(h, 1, axis=1)
        np.add.at(y, t, a.weights[t, j][:, None] * (bf16_to_float32(float32_to_bf16(h)) @ down.T))
    return y * np.float32(1.01) if bug == "output" else y


def activated(gate, bug):
    if bug == "silu":
        return gate / (1 + np.exp(-np.float32(1.702) * gate))
    return np.maximum(gate, 0) if bug == "relu" else gate / (1 + np.exp(-gate))


def prepared(a, bug):
    """The inputs as a kernel with this mistake reads them."""
    a = dataclasses.replace(a, weights=a.weights.copy(), ids=a.ids.copy(), scales=list(a.scales), globals=list(a.globals))
    if bug == "slot":
        a.weights[:, -1] = 0
    elif bug == "weights":
        a.weights = np.roll(a.weights, -1, axis=1)
    elif bug == "tokens":
        a.x = np.roll(a.x, 1, axis=0)
    elif bug == "experts":
        a.ids = np.where(a.ids < 0, a.ids, (a.ids + 1) % len(a.codes[0]))
    elif bug == "block scales":
        a.scales[1] = np.roll(a.scales[1], -1, axis=2)
    elif bug == "global scales":
        a.globals[0] = np.repeat(a.globals[0][:, :1], 2, axis=1)
    elif bug == "bf16 weights":
        a.weights = bf16_to_float32(float32_to_bf16(a.weights))
    return a
