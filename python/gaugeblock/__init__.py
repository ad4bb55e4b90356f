# SPDX-License-Identifier: Apache-2.0
"""Judge Mixture-of-Experts kernels written in Python: Triton, PyTorch, CuPy, numpy.

    import gaugeblock

    def moe(layer):                          # layer: gaugeblock.Layer with arrays of the chosen framework
        ...
        return output                        # [tokens, hidden], or a dictionary with more

    gaugeblock.verify(moe, "layer.h5", framework="torch", device="cuda").check()

docs/python.md has the whole interface.
"""

from gaugeblock.arrays import bf16_to_float32, float32_to_bf16
from gaugeblock.fixture import Fixture, Layer, Quantisation, Router, Weights
from gaugeblock.report import Case, Report, Verdict, VerificationError
from gaugeblock.verify import verify

__all__ = [
    "Case",
    "Fixture",
    "Layer",
    "Quantisation",
    "Report",
    "Router",
    "Verdict",
    "VerificationError",
    "Weights",
    "bf16_to_float32",
    "float32_to_bf16",
    "verify",
]
