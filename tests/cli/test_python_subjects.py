# SPDX-License-Identifier: Apache-2.0
"""The Python package beside functions: fixtures that it makes, several subjects in one report, the files that
reproducing lines name, and types."""

import glob
import inspect
import os
import subprocess
import sys
import tempfile
import typing

import numpy as np

from program import SOURCE, expect, path, reproduced, run

subprocess.run(
    ["cmake", "--install", os.environ["BUILD"], "--prefix", path("prefix")], check=True, stdout=subprocess.DEVNULL
)
os.environ["GAUGEBLOCK_PREFIX"] = path("prefix")
os.mkdir(path("temporary"))
tempfile.tempdir = path("temporary")
sys.path.insert(0, os.path.join(SOURCE, "python"))
import gaugeblock  # noqa: E402
from gaugeblock import Verdict, bf16_to_float32, float32_to_bf16  # noqa: E402


def kept():
    """The files and folders for temporary files."""
    return sorted(glob.glob(path("temporary/**"), recursive=True))[1:]


# The fixture is the program's own, bit for bit, and what the program refuses is said in its words.
made = gaugeblock.make(
    path("made.h5"), shape=(8, 3, 96, 64), tokens=9, layers=2, format="mxfp4", seed=5, routing="holes", generated=True
)
run(
    "make",
    path("same.h5"),
    "--shape",
    "8,3,96,64",
    "--tokens",
    "9",
    "--layers",
    "2",
    "--format",
    "mxfp4",
    "--seed",
    "5",
    "--routing",
    "holes",
    "--generated",
)
with open(made, "rb") as ours, open(path("same.h5"), "rb") as theirs:
    expect(made == path("made.h5") and ours.read() == theirs.read(), "make and `gaugeblock make` differ")
with gaugeblock.Fixture(gaugeblock.make(path("-odd name.h5"), model="tiny-qwen3-moe", tokens=1, generated=True)) as f:
    expect((f.shape.experts, f.shape.tokens, f.format) == (16, 1, "nvfp4"), str(f.shape))
for options, words in (
    ({}, "give either --model or --shape"),
    ({"shape": (8, 3, 96)}, "--shape 8,3,96: give experts,top_k,hidden,intermediate"),
    ({"shape": "8,2,128,64"}, "shape='8,2,128,64': give numbers, such as (8, 2, 128, 64)"),
    ({"shape": (8, 3, 96, 47)}, "multiples of 16"),
    ({"model": "no"}, "--model no: unknown"),
    ({"shape": (8, 3, 96, 64), "seed": -1}, "--seed -1"),
):
    try:
        gaugeblock.make(path("refused.h5"), **options)
    except ValueError as error:
        expect(words in str(error) and "\n" not in str(error), f"{options}: {error}")
    else:
        sys.exit(f"make took {options}")
expect(not os.path.exists(path("refused.h5")), "a refused fixture was written")


def moe(layer):
    output = np.zeros((layer.tokens, layer.hidden), np.float32)
    for expert in np.unique(layer.ids[layer.ids >= 0]):
        t, j = np.nonzero(layer.ids == expert)
        gate, up = np.split(bf16_to_float32(layer.x)[t] @ layer.gate_up.dequantise(expert).T, 2, axis=1)
        h = bf16_to_float32(float32_to_bf16(gate / (1 + np.exp(-gate)) * up))
        np.add.at(output, t, layer.routing_weights[t, j][:, None] * (h @ layer.down.dequantise(expert).T))
    return output


def halved(layer):
    return moe(layer) * np.float32(0.5)


def fails(layer):
    raise RuntimeError("out of paper")


# A function that passes leaves nothing; of one that does not, the lines work, and name no more files than are needed.
gaugeblock.verify(moe, made, batches=[4, 9]).check()
expect(kept() == [], f"a function that passes left {kept()}")
report = gaugeblock.verify(halved, made, batches=[4, 9])
expect([case.verdict for case in report.cases] == [Verdict.FAIL] * 2 and len(kept()) == 3, f"{report}\n{kept()}")
expect(
    all(case.reproduce in report.text and case.reproduce == case.record["repro"] for case in report.cases), str(report)
)
expect(str(report).split("\n")[1:3] == [f"  batch {case.tokens}: FAIL: {case.reason}" for case in report.cases], str(report))
reproduced([case.record for case in report.cases], cwd="/")

# Several subjects: each has its cases, under its own name, and the gravest verdict is the report's.
before = kept()
report = gaugeblock.verify(
    {"a function": moe, "a/function": halved, "broken": fails, "reference": "cpu/mxfp4-layer"}, made, batches=[9, 4]
)
verdicts = [(case.subject, case.tokens, case.verdict.name) for case in report.cases]
expect(
    sorted(verdicts)
    == [
        ("a function", 4, "PASS"),
        ("a function", 9, "PASS"),
        ("a/function", 4, "FAIL"),
        ("a/function", 9, "FAIL"),
        ("broken", 4, "CRASH"),
        ("broken", 9, "CRASH"),
        ("reference", 4, "PASS"),
        ("reference", 9, "PASS"),
    ],
    str(verdicts),
)
expect(report.verdict is Verdict.CRASH and "a function, batch 9: PASS" in str(report), str(report))
new = [name for name in kept() if name not in before and name.endswith(".h5")]
expect(len(new) == 2 and all("a.function" in name for name in new), str(new))
reproduced([case.record for case in report.cases if case.record], cwd="/")
report = gaugeblock.verify("cpu/mxfp4-layer", made)
case, = report.check().cases
expect(case.subject == case.record["subject"]["name"] == "cpu/mxfp4-layer" and case.reproduce == "", str(report))
for name in ("no/such", "--help"):
    report = gaugeblock.verify(name, made)
    expect(report.verdict is Verdict.NOT_RUN and report.cases[0].subject == name, str(report))
for subject, error in (({}, ValueError), ({"x": 3}, TypeError), ({1: moe}, TypeError), (None, TypeError)):
    try:
        gaugeblock.verify(subject, made)
    except error as raised:
        expect("subject" in str(raised), str(raised))
    else:
        sys.exit(f"{subject} was taken for a subject")

# Where `keep` says, all files are kept; where an argument is refused, none is.
gaugeblock.verify(moe, made, keep=path("all")).check()
expect(os.listdir(path("all")) == ["__main__.moe-batch-9-run-0.h5"], str(os.listdir(path("all"))))
run("verify", made, "--outputs", path("all/__main__.moe-batch-9-run-0.h5"))
before = kept()
try:
    gaugeblock.verify(halved, made, arguments=("--gate", "no/such"))
except ValueError as raised:
    expect("--gate no/such" in str(raised), str(raised))
else:
    sys.exit("a gate that there is not was taken")
expect(kept() == before, f"a refused argument left {kept()}")

# A gate and a claim are part of the line.
with open(path("our gate.json"), "w") as stream:
    stream.write('{"schema": "gaugeblock-gate/2", "checks": ["bound"], "max_abs": 1e-9}')
report = gaugeblock.verify(moe, made, rounding={"gate_up": "bf16"}, arguments=("--gate", path("our gate.json")))
expect(report.verdict is Verdict.FAIL and "--rounding gate_up=bf16 --gate '" in report.cases[0].reproduce, str(report))
reproduced([case.record for case in report.cases])

# Everything that is public says its types.
for name in gaugeblock.__all__:
    public = getattr(gaugeblock, name)
    members = (
        [getattr(public, member) for member in vars(public) if not member.startswith("_")]
        if inspect.isclass(public)
        else [public]
    )
    for one in members:
        one = one.fget if isinstance(one, property) else one
        if inspect.isfunction(one):
            untyped = {"return", *inspect.signature(one).parameters} - {"self"} - typing.get_type_hints(one).keys()
            expect(not untyped, f"{name}: {one.__name__} has no type for {untyped}")
