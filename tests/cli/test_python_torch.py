# SPDX-License-Identifier: Apache-2.0
"""The Python package on functions of torch; skipped where there is none."""
import sys

try:
    import torch
except ImportError:
    print("skipped: no torch here")
    sys.exit(77)

from blocks import block
from package import codes
from program import expect, path, run, small

import gaugeblock
from gaugeblock import Verdict

fixture = small()
run("make", path("activations.h5"), "--shape", "8,3,96,64", "--activations", "nvfp4")
printed = {}
exec(block("python.md", "python", 2).split("report =")[0], printed)
gaugeblock.verify(printed["moe"], fixture, framework="torch").check()
gaugeblock.verify(lambda layer: printed["moe"](layer).bfloat16(), fixture, framework="torch").check()
report = gaugeblock.verify(lambda layer: printed["moe"](layer) * 1.02, fixture, framework="torch")
expect(report.verdict is Verdict.FAIL, str(report))

exec(block("python.md", "python", 3), printed)
report = gaugeblock.verify(printed["block"], fixture, framework="torch").check()
expect([case.operator for case in report.cases] == ["route", "layer"], str(report))
report = gaugeblock.verify(lambda layer: {**printed["block"](layer), "ids": layer.ids.flip(1)}, fixture, framework="torch")
expect([case.verdict for case in report.cases] == [Verdict.FAIL, Verdict.FAIL], str(report))

def codes_in_torch(layer):
    """The layer of numpy, handed out in torch's types."""
    plain = codes(gaugeblock.Fixture(path("activations.h5")).layer(0))
    given = {name: torch.from_numpy(value) for name, value in plain.items() if name != "intermediate"}
    return {name: value.view(torch.float8_e4m3fn) if name.endswith("_scales") else value for name, value in given.items()}

report = gaugeblock.verify(codes_in_torch, path("activations.h5"), framework="torch").check()
expect("x_scales_sha256" in report.cases[0].record["metrics"]["layers"][0], "codes in torch")

# What a kernel started on the device fails after the function has returned, and everything after it.
def lost(device=None):
    raise RuntimeError("CUDA error: an inadmissible memory access was encountered")

initialised, synchronise = torch.cuda.is_initialized, torch.cuda.synchronize
torch.cuda.is_initialized, torch.cuda.synchronize = lambda: True, lost
try:
    report = gaugeblock.verify(printed["moe"], fixture, framework="torch", batches=[1, 2])
finally:
    torch.cuda.is_initialized, torch.cuda.synchronize = initialised, synchronise
expect([case.verdict for case in report.cases] == [Verdict.CRASH] * 2 and "inadmissible memory access" in str(report), str(report))
