# SPDX-License-Identifier: Apache-2.0
"""Judge Mixture-of-Experts kernels written in Python: Triton, PyTorch, CuPy, numpy.

    import gaugeblock

    def moe(layer):                          # layer: gaugeblock.Layer with arrays of the chosen framework
        ...
        return output                        # [tokens, hidden], or a dictionary with more

    fixture = gaugeblock.make("layer.h5", shape=(8, 2, 128, 64))
    gaugeblock.verify(moe, fixture, framework="torch", device="cuda").check()

docs/python.md has the whole interface.
"""

from gaugeblock import testing
from gaugeblock.arrays import bf16_to_float32, float32_to_bf16
from gaugeblock.fixture import Fixture, Layer, Quantisation, Ranks, Router, Values, Weights
from gaugeblock.make import make
from gaugeblock.native import include
from gaugeblock.report import Case, Report, Verdict, VerificationError
from gaugeblock.verify import verify

__all__ = [
    "Case",
    "Fixture",
    "Layer",
    "Quantisation",
    "Ranks",
    "Report",
    "Router",
    "Values",
    "Verdict",
    "VerificationError",
    "Weights",
    "__version__",
    "bf16_to_float32",
    "float32_to_bf16",
    "include",
    "make",
    "testing",
    "verify",
]

__version__: str


def __getattr__(name: str) -> str:
    """`__version__`, read from the installed header, so that it is written in one place and needs no library to import this."""
    if name == "__version__":
        from gaugeblock.native import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
