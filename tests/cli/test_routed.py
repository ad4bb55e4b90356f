# SPDX-License-Identifier: Apache-2.0
"""Layers that route by themselves: the router is one case, the experts under the subject's own routing another."""
import json
import shutil

import h5py

from edited import pair_experts, rehash
from kept import expect_kept
from program import CAPTURE, CHECKPOINT, FAULTS, expect, path, record, run

CONTRACTS = {"nvfp4": "nvfp4", "mxfp8": "mxfp8", "mxfp4": "mxfp8", "fp8": "fp8"}


def both(fixture, name, *arguments, code=0):
    """The case of the router and that of the layer."""
    (cases,) = several(fixture, [name], *arguments, code=code)
    return cases


def several(fixture, names, *arguments, code=0):
    """The same of several kernels, in one run."""
    kernels = [f"faults/routed-{name}" for name in names]
    cases = record(fixture, "--subject", FAULTS, *(word for kernel in kernels for word in ("--kernel", kernel)), *arguments,
                   code=code)["cases"]
    expect([(c["subject"]["name"], c["subject"]["operator"]) for c in cases] ==
           [(kernel, operator) for kernel in kernels for operator in ("route", "layer")], f"{[c['reason'] for c in cases]}")
    return list(zip(cases[::2], cases[1::2]))


def verdicts(cases):
    return [case["verdict"] for case in cases]


# The reference, every bit, in every format and with every kind of router; a stack too.
listed = {line.split()[0]: line for line in run("list", "kernels").stdout.splitlines()}
for weights in ("nvfp4", "mxfp8", "mxfp4", "fp8", "bf16"):
    expect("route and layer" in listed[f"cpu/{weights}-routed-layer"], "list kernels")
    run("make", path("made.h5"), "--shape", "16,3,64,32", "--tokens", "6", "--layers", "2", "--format", weights)
    cases = record(path("made.h5"), "--kernel", f"cpu/{weights}-routed-layer", "--batch", "1,6", "--expect", "4")["cases"]
    expect(all("drift" in c["metrics"] for c in cases[3:]), "the residual stream")
    expect(all(c["checks"]["bits"]["mismatching"] == 0 and c["checks"]["bits"]["binding"] for c in cases), weights)
    expect({c["contract"] for c in cases} == {"bf16.bf16.fma32/1", f"{weights}.bf16.fma32/1"}, cases[1]["contract"])
for weights, activations in CONTRACTS.items():
    run("make", path("made.h5"), "--shape", "8,3,128,128", "--tokens", "3", "--format", weights, "--activations", activations)
    route, layer = record(path("made.h5"), "--kernel", f"cpu/{weights}-{activations}-routed-layer")["cases"]
    expect(layer["contract"] == f"{weights}.{activations}.fma32/1", layer["contract"])
for router, shape in (("transformers.deepseek-v3/1", "64,5,96,48"), ("transformers.llama4/1", "16,1,96,48")):
    run("make", path("made.h5"), "--shape", shape, "--tokens", "7", "--router", router)
    record(path("made.h5"), "--kernel", "cpu/nvfp4-routed-layer", "--expect", "2")
run("import", CHECKPOINT, path("tiny.h5"), "--capture", CAPTURE, "--layers", "0-1", "--tokens", "6")
record(path("tiny.h5"), "--kernel", "cpu/nvfp4-routed-layer", "--batch", "5,6", "--expect", "4")

# A fixture whose routing is none of its router's: the layer is judged under the router's.
run("make", path("uniform.h5"), "--shape", "32,4,96,48", "--tokens", "6", "--routing", "uniform", "--generated")
route, layer = record(path("uniform.h5"), "--kernel", "cpu/nvfp4-routed-layer")["cases"]
expect(route["verdict"] == "PASS" and layer["rerouted_tokens"] == 6, layer)

# What is wrong, and where.
fixture = path("routed.h5")
run("make", fixture, "--shape", "32,4,96,48", "--tokens", "6", "--layers", "2")
NOT_RUN = "no output is right for it"
WRONG = (
    ("reference", 0, ["PASS", "PASS"], ["", ""]),
    ("none", 0, ["PASS", "PASS"], ["", ""]),
    ("backwards", 0, ["PASS", "PASS"], ["", ""]),
    ("wrong-expert", 1, ["FAIL", "PASS"], ["token 5 has expert 31 and not", ""]),
    ("wrong-ffn", 1, ["PASS", "FAIL"], ["", "looks like: output of token 5: multiplied by 1.25"]),
    ("wrong-both", 1, ["FAIL", "FAIL"], ["token 5 has expert 31 and not", "output of token 5: multiplied by 1.25"]),
    ("unnormalised", 1, ["FAIL", "PASS"], ["of 24 lie outside the derived bound around truth; worst at token", ""]),
    ("unwritten", 1, ["FAIL", "NOT_RUN"], ["48 elements were never written; first: element 0 of routed ids", NOT_RUN]),
    ("range", 1, ["FAIL", "NOT_RUN"], ["token 5, slot 3 has expert 32, out of 0..31 or twice", NOT_RUN]),
    ("twice", 1, ["FAIL", "NOT_RUN"], ["token 5, slot 3 has expert", NOT_RUN]),
    ("writes-past-ids", 1, ["FAIL", "PASS"], ["wrote outside a buffer: beside routed ids of layer 0", ""]),
    ("changes-router", 1, ["FAIL", "PASS"], ["changed an input: router weights of layer 0", ""]),
)
found = several(fixture, [name for name, *_ in WRONG], "-o", path("junit.xml"), code=1)
for (name, code, expected, says), cases in zip(WRONG, found):
    expect(verdicts(cases) == expected and max(case["exit_code"] for case in cases if case["verdict"] != "NOT_RUN") == code,
           f"{name}: {[(c['verdict'], c['reason']) for c in cases]}")
    for case, text in zip(cases, says):
        expect(text in case["reason"], f"{name}: {case['reason']}")
        expect("repro" in case and f"faults/routed-{name} --batch 6" in case["repro"], case["repro"])
    expect(name != "backwards" or cases[1]["rerouted_tokens"] == 12, "slots in another order")
with open(path("junit.xml")) as stream:
    text = stream.read()
expect(text.count('name="routed.h5 batch 6"') == text.count('name="routed.h5 batch 6 route"') == len(WRONG), text)

# Experts in pairs of equal ones, of which some tokens choose one: either is within the bound.
tied = path("tied.h5")
run("make", tied, "--shape", "32,5,96,48", "--tokens", "8")
pair_experts(tied)
route, layer = both(tied, "tie")
swapped = route["metrics"]["layers"][0]["tokens"]["swapped"]
expect(swapped == layer["rerouted_tokens"] == 8, route["metrics"])
route, layer = both(tied, "tie-ordered", "--no-diagnosis", code=1)
expect("experts differ from the reference" in route["reason"], route["reason"])
for cases in several(tied, ("restless", "restless-last"), code=6):
    expect(verdicts(cases) == ["NONDETERMINISTIC", "NONDETERMINISTIC"], verdicts(cases))
    expect("of routed ids" in cases[0]["reason"] and "of output" in cases[1]["reason"], cases[0]["reason"])
both(tied, "restless-declared")
for cases in several(tied, ("restless-lower-wrong", "restless-higher-wrong"), "--no-diagnosis", code=1):
    expect(verdicts(cases) == ["PASS", "FAIL"], str([case["reason"] for case in cases]))

# Slots in another order than the router's, or a token whose weights are twice as large: on the residual stream, which is
# routed, the first layer has the same x and need not have the same bits.
edited, weights = path("edited.h5"), ("routing/weights", "truth/routing_weights")
for changes in (
    {name: lambda v: v[:, ::-1] for name in ("routing/ids", *weights)},
    {name: lambda v: v * ([[1]] * 5 + [[2]]) for name in (*weights, "truth/quantised", "truth/original")},
):
    shutil.copy(path("tiny.h5"), edited)
    with h5py.File(edited, "r+") as f:
        for name, change in changes.items():
            values = f["layers/0"][name]
            values[:] = change(values[:])
    rehash(edited)
    case, = record(edited, "--kernel", "cpu/nvfp4-layer")["cases"]
    expect("drift" in case["metrics"], case)

# Quantised activations: the codes and the bound are those under the subject's own routing.
run("make", path("quantised.h5"), "--shape", "32,4,64,32", "--tokens", "8", "--activations", "nvfp4")
route, layer = both(path("quantised.h5"), "quantised")
expect(layer["rerouted_tokens"] == 8 and layer["subject"]["activations"] == "nvfp4", layer)
cases = both(path("quantised.h5"), "quantised-wrong-both", "--no-diagnosis", code=1)
expect(verdicts(cases) == ["FAIL", "FAIL"] and "token 7 has expert" in cases[0]["reason"], cases)

# An expert that a generated fixture has no token for is generated, and prepare is asked again.
run("make", path("generated.h5"), "--shape", "64,4,96,48", "--tokens", "2", "--generated")
for name in ("wrong-expert", "prepared"):
    cases = record(path("generated.h5"), "--subject", FAULTS, "--kernel", f"faults/routed-{name}", "--batch", "1,2",
                   code=1)["cases"]
    expect(verdicts(cases) == ["FAIL", "PASS"] * 2, f"{name}: {[(c['verdict'], c['reason']) for c in cases]}")

# Not asked without a router in every layer; never minimised, since a part has none.
bare = path("bare.h5")
run("make", bare, "--shape", "8,3,96,48", "--layers", "2")
with h5py.File(bare, "r+") as f:
    del f["layers/1/router"], f["stack"]
rehash(bare)
for kernel in ("cpu/nvfp4-routed-layer", "faults/routed-none"):
    case, = record(bare, "--subject", FAULTS, "--kernel", kernel, code=3)["cases"]
    expect(case["verdict"] == "UNSUPPORTED" and "no router in every layer" in case["reason"], case)
record(bare, "--kernel", "cpu/*", "--expect", "6")
done = run("verify", fixture, "--subject", FAULTS, "--kernel", "faults/routed-wrong-ffn", "--minimise", path("minimal.h5"),
           "--no-diagnosis", "-o", path("whole.json"), code=1)
with open(path("whole.json")) as stream:
    cases = json.load(stream)["cases"]
expect(len(cases) == 2 and all("minimal" not in case for case in cases), str(cases))
expect("--minimise" in done.stderr and "not written" in done.stderr, done.stderr)

expect_kept()
