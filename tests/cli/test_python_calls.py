# SPDX-License-Identifier: Apache-2.0
"""What calls of Python functions share, and how they may end: buffers written again in every call, names of files, and
sys.exit()."""
import os
import subprocess
import sys

import numpy as np

from program import SOURCE, expect, path, small

subprocess.run(["cmake", "--install", os.environ["BUILD"], "--prefix", path("prefix")], check=True, stdout=subprocess.DEVNULL)
os.environ["GAUGEBLOCK_PREFIX"] = path("prefix")
sys.path.insert(0, os.path.join(SOURCE, "python"))
import gaugeblock  # noqa: E402
from gaugeblock import Verdict, bf16_to_float32, float32_to_bf16  # noqa: E402
from gaugeblock.verify import _end  # noqa: E402

buffers, calls = {}, []


def kept(name, values):
    """The values in the buffer of that name, which is the same in every call."""
    buffer = buffers.setdefault(name, np.empty_like(values))
    buffer[:] = values
    return buffer


def moe(layer):
    """Output in bf16 and intermediate, both in buffers of their own."""
    output = np.zeros((layer.tokens, layer.hidden), np.float32)
    intermediate = np.zeros((layer.tokens, layer.top_k, layer.intermediate), np.uint16)
    x = bf16_to_float32(layer.x)
    for expert in np.unique(layer.ids[layer.ids >= 0]):
        t, j = np.nonzero(layer.ids == expert)
        gate, up = np.split(x[t] @ layer.gate_up.dequantise(expert).T, 2, axis=1)
        intermediate[t, j] = float32_to_bf16(gate / (1 + np.exp(-gate)) * up)
        y = bf16_to_float32(intermediate[t, j]) @ layer.down.dequantise(expert).T
        np.add.at(output, t, layer.routing_weights[t, j][:, None] * y)
    return kept("output", float32_to_bf16(output)), kept("intermediate", intermediate)


def restless(layer):
    """The same buffers; the lowest bit of one output differs between the two runs."""
    calls.append(layer)
    output, intermediate = moe(layer)
    output[1, 1] ^= (len(calls) - 1) // 2 % 2
    return output, intermediate


def leaves(layer):
    sys.exit(0)


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("no text either")


class SpeechlessValue(Speechless, ValueError):
    pass


class SpeechlessRefusal(Speechless, NotImplementedError):
    pass


def raises(error):
    def function(layer):
        raise error()
    return function


class Unreadable:
    """An array whose shape cannot be asked for."""

    @property
    def shape(self):
        raise SpeechlessValue


fixture = small()
gaugeblock.verify(moe, fixture).check()
report = gaugeblock.verify(restless, fixture)
expect(report.verdict is Verdict.NONDETERMINISTIC and "1 elements of the output differ" in str(report), str(report))
for function, verdict, words in ((raises(Speechless), Verdict.CRASH, "Speechless at test_python_calls.py"),
                                 (raises(SpeechlessRefusal), Verdict.UNSUPPORTED, "its text raises RuntimeError"),
                                 (lambda layer: Unreadable(), Verdict.FAIL, "its text raises RuntimeError")):
    report = gaugeblock.verify(function, fixture)
    expect(report.verdict is verdict and words in str(report), str(report))
report = gaugeblock.verify(leaves, fixture)
expect(report.verdict is Verdict.CRASH and "SystemExit at test_python_calls.py" in str(report), str(report))

# Two functions whose names are one in a path have files of their own; what is guarded and does not end is ended.
report = gaugeblock.verify({"a b": moe, "a/b": lambda layer: moe(layer)[0] ^ 0x4000}, fixture, keep=path("both"))
expect([case.verdict for case in report.cases] == [Verdict.PASS, Verdict.FAIL] and len(os.listdir(path("both"))) == 2, str(report))


class Stubborn:
    """A guard that has not ended when it was waited for."""

    def __init__(self):
        self.stdin, self.done = self, []

    def close(self):
        self.done.append("closed")

    def wait(self, seconds):
        self.done.append(seconds)
        raise subprocess.TimeoutExpired("guard", seconds)

    def kill(self):
        self.done.append("killed")


guard = Stubborn()
_end(guard)
expect(guard.done == ["closed", 10, "killed"], str(guard.done))

expect(gaugeblock.__version__.count(".") == 2 and not hasattr(gaugeblock, "no_such_name"), "names of the module")
