# SPDX-License-Identifier: Apache-2.0
"""Where nothing was verified nothing is green: no case, no element, no effect, an undefined figure."""
import json
import os
import re
import shutil
import subprocess

import h5py
import numpy

from kept import expect_kept
from program import FAULTS, PROGRAM, SOURCE, expect, path, record, refused, run

fixture = path("good.h5")
run("make", fixture, "--shape", "6,2,64,32", "--tokens", "5")
run("make", path("mxfp8.h5"), "--shape", "6,2,64,32", "--tokens", "5", "--format", "mxfp8")


def changed(name, change, of=fixture):
    """A copy with a change, and the hash of its inputs as the reader wants it."""
    shutil.copy(of, path(name))
    with h5py.File(path(name), "r+") as file:
        change(file)
        if "truth_sha256" in file.attrs:
            del file.attrs["truth_sha256"]
    done = subprocess.run([PROGRAM, "info", path(name)], capture_output=True, text=True)
    found = re.search(r"the inputs hash to ([0-9a-f]{64})", done.stderr)
    with h5py.File(path(name), "r+") as file:
        if found:
            file.attrs.modify("input_sha256", numpy.bytes_(found[1]))
    return path(name)


def never_green(*arguments):
    """Not 0, by a message or a verdict; every form of it says why."""
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    expect(done.returncode in (1, 2, 3, 4), f"{arguments}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    expect(done.stdout.strip() or done.stderr.strip(), f"{arguments}: silent")
    return done.returncode


def put(dataset, value):
    def change(file):
        file[dataset][...] = value
    return change


# No case: nothing matches, nothing runs here, nothing takes the problem.
for pattern in ("none/*", "cpu/no-such", "faults/*"):
    expect(never_green("verify", fixture, "--kernel", pattern) == 3, pattern)
expect(never_green("verify", path("mxfp8.h5"), "--subject", FAULTS, "--kernel", "faults/none") == 3, "unsupported")
expect(never_green("verify", fixture, "--kernel", "none/*", "--expect", "0") == 3, "zero expected cases are none")
source = path("empty.c")
with open(source, "w") as stream:
    stream.write('#include "gaugeblock.h"\n'
                 'static const struct gb_kernel_table table = {GB_ABI_VERSION, sizeof(struct gb_kernel), 0, 0};\n'
                 'GB_API const struct gb_kernel_table *gb_kernels(void);\n'
                 'const struct gb_kernel_table *gb_kernels(void)\n{\n    return &table;\n}\n')
subprocess.run([os.environ["CC"], "-shared", "-fPIC", f"-I{SOURCE}", source, "-o", path("empty.so")], check=True)
expect(never_green("verify", fixture, "--subject", path("empty.so")) in (2, 3), "a library without kernels")
never_green("verify", fixture, "--batch", "0")
never_green("verify")

# No contract: weights and activations that none has together.
def foreign(file):
    for name, text in (("activations", "mxfp8"), ("activation_recipe", "mxfp8.rceil/1"),
                       ("contract", "nvfp4.mxfp8.fma32/1")):
        if name in file.attrs:
            del file.attrs[name]
        file.attrs[name] = numpy.bytes_(text)


for command in ("verify", "info", "power"):
    line = refused(command, changed("foreign.h5", foreign))
    expect("foreign.h5: activations: no contract has mxfp8 with nvfp4 weights" in line, line)

# No element: empty arrays, arrays of other sizes.
for name, shape in (("none", (0,)), ("flat", (0, 64)), ("wide", (5, 0)), ("scalar", ())):
    numpy.save(path("o.npy"), numpy.zeros(shape, numpy.float32))
    expect(never_green("verify", fixture, "--outputs", path("o.npy")) == 2, name)

# Truth that is no number, or nothing but zeros; inputs that make zeros of everything.
with h5py.File(fixture) as file:
    truth = file["layers/0/truth/quantised"][...]
    weights = file["layers/0/routing/weights"][...]
numpy.save(path("o.npy"), truth.astype(numpy.float32))
run("verify", fixture, "--outputs", path("o.npy"))
poisoned = truth.copy()
poisoned[2, 3] = numpy.nan
for gate in ("default", "cosine-0.99"):
    for name, dataset, value in (
            ("nan.h5", "layers/0/truth/quantised", poisoned),
            ("inf.h5", "layers/0/truth/quantised", numpy.where(numpy.isnan(poisoned), numpy.inf, poisoned)),
            ("all-nan.h5", "layers/0/truth/quantised", numpy.full_like(truth, numpy.nan)),
            ("zero.h5", "layers/0/truth/quantised", numpy.zeros_like(truth)),
            ("nan-weights.h5", "layers/0/truth/routing_weights", numpy.full(weights.shape, numpy.nan)),
            ("x.h5", "layers/0/x", 0),
            ("idle.h5", "layers/0/routing/ids", -1)):
        file = changed(name, put(dataset, value)) if gate == "default" else path(name)
        never_green("verify", file, "--gate", gate)
        never_green("verify", file, "--outputs", path("o.npy"), "--gate", gate)
        if gate == "default":
            never_green("power", file)

# Truth is in no hash: where it is not that of the inputs, that is said, and is nobody's FAIL.
case, = record(changed("stale.h5", put("layers/0/truth/quantised", truth * 1.01)), code=2)["cases"]
expect(case["verdict"] == "BAD_INPUT" and "not that of its inputs" in case["reason"], case["reason"])


def idle(file):
    file["layers/0/routing/ids"][...] = -1
    file["layers/0/truth/quantised"][...] = 0
    file["layers/0/truth/original"][...] = 0


# Figures of nothing are null in the record, and 0/0 meets no threshold.
case, = record(changed("idle.h5", idle), code=4)["cases"]
expect(never_green("power", path("idle.h5")) == 4, "zeros are right here")
shown = subprocess.run([PROGRAM, "power", path("idle.h5")], capture_output=True, text=True).stdout
expect("VACUOUS: the reference's outputs are zeros" in shown, "why, of power")
expect(case["metrics"]["overall"]["subject_truth"]["quantised"]["cosine"] is None, "0/0")
expect("zeros would lie inside" in case["reason"], case["reason"])
for key, value in (("cosine", 1e-9), ("cosine_min", 1e-9), ("nmse", 1e300)):
    with open(path("gate.json"), "w") as stream:
        json.dump({"schema": "gaugeblock-gate/2", key: value}, stream)
    expect(never_green("verify", path("idle.h5"), "--gate", path("gate.json")) == 1, key)

# So it is under gates without the bound: nothing but zeros is exact, and of no error is a sum too large.
for checks in (["exact"], ["rms"], ["scale"], ["exact", "rms", "scale"]):
    with open(path("gate.json"), "w") as stream:
        json.dump({"schema": "gaugeblock-gate/2", "checks": checks}, stream)
    case, = record(path("idle.h5"), "--gate", path("gate.json"), code=4)["cases"]
    expect(case["verdict"] == "VACUOUS" and "zeros would pass the checks of the policy" in case["reason"], case["reason"])
    expect(never_green("verify", path("idle.h5"), "--outputs", path("o.npy"), "--gate", path("gate.json")) > 0, checks)
    if checks != ["exact"]:
        run("verify", fixture, "--gate", path("gate.json"))

# One layer of zeros behind one that is judged.
def second_idle(file):
    file["layers/1/routing/ids"][...] = -1
    for name in ("quantised", "original"):
        file[f"layers/1/truth/{name}"][...] = 0
    if "stack" in file:
        del file["stack"]


run("make", path("two.h5"), "--shape", "6,2,64,32", "--tokens", "5", "--layers", "2")
second = changed("second.h5", second_idle, path("two.h5"))
with h5py.File(second) as file:
    numpy.save(path("two.npy"), numpy.stack([file[f"layers/{l}/truth/quantised"][...] for l in (0, 1)]).astype("f4"))
for checks in (["bound"], ["exact"], ["rms"], ["scale"], ["exact", "rms", "scale"], ["exact", "bound"]):
    with open(path("gate.json"), "w") as stream:
        json.dump({"schema": "gaugeblock-gate/2", "checks": checks}, stream)
    reason = record(second, "--outputs", path("two.npy"), "--gate", path("gate.json"), code=4)["cases"][0]["reason"]
    expect("of layer 1: zeros would" in reason or checks == ["exact"], f"{checks}: {reason}")

# Where no sums of errors can be tested since too many codes are ambiguous, the bound takes their place.
run("make", path("codes.h5"), "--shape", "6,2,64,128", "--tokens", "5", "--activations", "nvfp4")
with h5py.File(path("codes.h5")) as file:
    truth = file["layers/0/truth/quantised"][...]
for factor, code in ((1, 0), (100, 1)):
    numpy.save(path("codes.npy"), (truth * factor).astype(numpy.float32))
    for checks in (["rms"], ["scale"], ["rms", "scale"]):
        with open(path("gate.json"), "w") as stream:
            json.dump({"schema": "gaugeblock-gate/2", "checks": checks}, stream)
        case, = record(path("codes.h5"), "--outputs", path("codes.npy"), "--gate", path("gate.json"),
                       "--accumulator-bits", "13", "--activations", "nvfp4", "--no-diagnosis", code=code)["cases"]
        sums = case["checks"][checks[0]]["result"]
        expect(sums == "NOT_RUN" and case["checks"]["bound"]["binding"], f"{checks}: {sums}")
        expect(("outside the derived bound" in case["reason"]) == (code == 1), case["reason"])

# Comparing records without cases, or without outputs, finds nothing the same.
for name, arguments in (("a.json", ("--kernel", "none/*")), ("b.json", ("--kernel", "none/*"))):
    run("verify", fixture, *arguments, "-o", path(name), code=3)
never_green("diff", path("a.json"), path("b.json"))
with open(path("a.json")) as stream:
    empty = json.load(stream)
empty["cases"] = []
with open(path("a.json"), "w") as stream:
    json.dump(empty, stream)
never_green("diff", path("a.json"), path("a.json"))

expect_kept()
