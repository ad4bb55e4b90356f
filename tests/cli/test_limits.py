# SPDX-License-Identifier: Apache-2.0
"""`verify --limits`: what a file of outputs is held to. The record's ratios are the errors by what stands in the file."""
import h5py
import numpy as np

from program import expect, path, record, small

fixture = small()
with h5py.File(fixture) as f:
    truth = [f[f"layers/{layer}/truth/quantised"][()] for layer in range(2)]
random = np.random.default_rng(1)
with h5py.File(path("outputs.h5"), "w") as file:
    for layer, exact in enumerate(truth):
        file[f"layers/{layer}/output"] = (exact + 1e-6 * random.standard_normal(exact.shape)).astype(np.float32)
for bits in 24, 12:
    case, = record(fixture, "--outputs", path("outputs.h5"), "--accumulator-bits", bits, "--limits", path("limits.h5"))["cases"]
    with h5py.File(path("outputs.h5")) as outputs, h5py.File(path("limits.h5")) as limits:
        expect(list(limits["layers"]) == ["0", "1"], str(list(limits["layers"])))
        for layer, exact in enumerate(truth):
            of = limits[f"layers/{layer}"]
            expect(np.array_equal(of["truth"], exact), f"layer {layer}: another truth than the fixture's")
            ratio = np.abs(outputs[f"layers/{layer}/output"][()].astype(np.float64) - exact) / of["limit"]
            said = case["metrics"]["layers"][layer]["bound"]["output"]
            token, element = np.unravel_index(ratio.argmax(), ratio.shape)
            expect((said["limit_ratio"], said["at_token"], said["at_element"]) == (ratio.max(), token, element),
                   f"{bits} bits, layer {layer}: {said}, by the limits {ratio.max()} at {token}, {element}")
