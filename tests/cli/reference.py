# SPDX-License-Identifier: Apache-2.0
"""The library itself, as its headers declare it: the reference's outputs, stream and bounds as numpy arrays."""
import os
import re
import sys

import cffi
import numpy as np

from program import SOURCE

sys.path.append(os.path.join(SOURCE, "python"))
from gaugeblock.native import MODULES, declarations  # noqa: E402

ffi = cffi.FFI()
for module in (*MODULES, "reference/reference.h"):
    with open(os.path.join(SOURCE, module), encoding="utf-8") as stream:
        text = re.sub(r"(?ms)^static inline .*?^}$", "", stream.read())
    ffi.cdef(declarations(text))
lib = ffi.dlopen(os.path.join(os.environ["BUILD"], "libgaugeblock.so"))


def checked(status):
    if status != lib.GB_OK:
        sys.exit(f"libgaugeblock: status {status}")


def pointer(array, kind):
    return ffi.cast(f"{kind} *", array.ctypes.data)


class Reference:
    """A fixture with bf16 activations, read by the library."""

    def __init__(self, path):
        to = ffi.new("struct gb_fixture **")
        checked(lib.gb_fixture_read(path.encode(), to, ffi.NULL))
        self.fixture = f = to[0]
        self.tokens, self.hidden, self.inner, self.experts, self.top_k = (
            f.shape.tokens, f.shape.hidden, f.shape.intermediate, f.shape.experts, f.shape.top_k)
        self.layers = f.layers
        self.contract = lib.gb_contract_find(f.weights, lib.GB_BF16, b"fma32/1")

    def layer(self, index, x=None, ids=None, weights=None):
        """(output [tokens, hidden], intermediate bits [tokens, top_k, intermediate]) of the first tokens of x."""
        tokens = self.tokens if x is None else len(x)
        a = lib.gb_layer_arguments(self.fixture, index, tokens)
        output = np.zeros((tokens, self.hidden), np.float32)
        inner = np.zeros((tokens, self.top_k, self.inner), np.uint16)
        a.output, a.intermediate = ffi.cast("void *", output.ctypes.data), pointer(inner, "gb_bf16")
        if x is not None:
            a.x, a.ids, a.routing_weights = pointer(x, "gb_bf16"), pointer(ids, "int32_t"), pointer(weights, "float")
        checked(lib.gb_reference_layer(self.contract, ffi.addressof(a), ffi.NULL))
        return output, inner

    def route(self, index, x):
        """(ids, weights) [tokens, top_k]"""
        a = lib.gb_route_arguments(self.fixture, index, len(x))
        ids, weights = np.zeros((len(x), self.top_k), np.int32), np.zeros((len(x), self.top_k), np.float32)
        a.x, a.routed_ids, a.routed_weights = pointer(x, "gb_bf16"), pointer(ids, "int32_t"), pointer(weights, "float")
        checked(lib.gb_reference_router(lib.gb_contract_router(self.contract), ffi.addressof(a), ffi.NULL))
        return ids, weights

    def bounds(self, index, x, bits=24, output=None):
        """{name: array} of gb_bound_layer with an FP32 output, or bf16's. x: [tokens, hidden], float64."""
        layer = self.fixture.layer[index]
        sizes = {"output": (self.tokens, self.hidden), "intermediate": (self.tokens, self.top_k, self.inner)}
        arrays = {f"output_{name}": np.zeros(sizes["output"]) for name in ("worst", "sigma", "bias", "truth")}
        for name in ("intermediate_worst", "intermediate_sigma", "intermediate_bias", "intermediate_truth",
                     "unrounded_worst", "unrounded_sigma", "unrounded_typical"):
            arrays[name] = np.zeros(sizes["intermediate"])
        bounds = ffi.new("struct gb_bounds *", {name: pointer(array, "double") for name, array in arrays.items()})
        points = ffi.new("struct gb_rounding_points *", {"intermediate": lib.GB_BF16, "accumulator_bits": bits,
                                                         "output": lib.GB_FP32 if output is None else output})
        weights = ffi.new("struct gb_truth_quantised *")
        weights.gate_up, weights.down = layer.gate_up, layer.down
        checked(lib.gb_bound_layer(ffi.addressof(self.fixture.shape), pointer(x, "double"), layer.ids,
                                   layer.truth_routing_weights, weights, points, bounds, ffi.NULL))
        return arrays
