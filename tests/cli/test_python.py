# SPDX-License-Identifier: Apache-2.0
"""The Python package on functions of numpy: right ones pass, each fault gets its verdict."""
import atexit
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np

from blocks import block
from package import codes, moe
from nvfp4 import quantise
from program import ALL, SOURCE, expect, path, reproduced, run, small
from published import Published

import gaugeblock
from gaugeblock import Verdict, bf16_to_float32, float32_to_bf16


fixture = small()
report = gaugeblock.verify(moe, fixture, batches=[1, 4, 9]).check()
expect([case.tokens for case in report.cases] == [1, 4, 9], str(report))
expect(report.cases[2].record["checks"]["bound"]["elements"] == 2 * 9 * (96 + 3 * 48), "output and intermediate are judged")
expect(gaugeblock.Fixture(fixture).sha256 == report.cases[0].record["fixture"]["sha256"], "the hash of a fixture")
for form in ("mxfp8", "bf16"):
    run("make", path(f"{form}.h5"), "--shape", "8,3,96,64", "--format", form, "--generated")
    gaugeblock.verify(moe, path(f"{form}.h5")).check()


# Quantised activations: the function is told, and judged without them where it says so.
def plain(layer):
    expect(layer.activations == "nvfp4", f"activations {layer.activations}")
    return moe(layer)


run("make", path("activations.h5"), "--shape", "8,3,96,64", "--activations", "nvfp4")
gaugeblock.verify(plain, path("activations.h5"), arguments=("--activations", "bf16")).check()
expect(gaugeblock.Fixture(fixture).layer(0).activations == "bf16", "a fixture without quantised activations has some")

# gpt-oss: biases and an activation of its own; each is judged.
run("import", Published("gpt-oss-mxfp4").write("gpt-oss"), path("oss.h5"), "--tokens", 2, "--layers", 0)
gaugeblock.verify(moe, path("oss.h5")).check()
for missing in ({"activation": "silu"}, {"gate_up_bias": None}, {"down_bias": None}):
    report = gaugeblock.verify(lambda layer: moe(dataclasses.replace(layer, **missing)), path("oss.h5"), arguments=("--no-diagnosis",))
    expect(report.verdict is Verdict.FAIL, f"without {missing}: {report}")


def biased(layer):
    layer.down_bias[0, 0] += 1
    return moe(layer)


expect("down_bias" in str(gaugeblock.verify(biased, path("oss.h5"))), "a changed bias is not named")


def expect_verdict(function, verdict, words, **options):
    report = gaugeblock.verify(function, fixture, **options)
    expect(report.verdict is verdict and words in str(report), f"expected {verdict} and {words!r}:\n{report}")
    reproduced([case.record for case in report.cases if case.record])
    try:
        report.check()
    except gaugeblock.VerificationError as error:
        expect(str(error) == str(report), str(error))
    else:
        sys.exit(f"check() let {verdict} pass")


def spoiled(layer):
    output, _ = moe(layer)
    output[0, 5] += 0.1 * np.sqrt((output**2).mean())
    return output


def greedy(layer):
    layer.x[0, 0] = 0
    return moe(layer)


def broken(layer):
    raise RuntimeError("out of paper")


def unable(layer):
    raise NotImplementedError("needs a GPU")


runs = []


def restless(layer):
    runs.append(layer)
    output, _ = moe(layer)
    output[1, 1:4] = np.nextafter(output[1, 1:4], np.float32(np.inf if (len(runs) + 1) // 2 % 2 else -np.inf))
    return output


expect_verdict(spoiled, Verdict.FAIL, "token 0, element 5")
expect_verdict(lambda layer: np.zeros((layer.tokens, layer.hidden), np.float32), Verdict.FAIL, "output of layer 0")
expect_verdict(moe, Verdict.FAIL, "", order="fma32/1", batches=[1], arguments=("--no-diagnosis",))
claimed = gaugeblock.verify(moe, fixture, rounding={"gate_up": "bf16"}, accumulator_bits=20).check().cases[0].record["subject"]
expect(claimed["roundings"]["gate_up"] == "bf16" and claimed["accumulator_bits"] == 20, str(claimed))
expect_verdict(greedy, Verdict.FAIL, "changed its input x")
expect_verdict(broken, Verdict.CRASH, "RuntimeError at test_python.py")
expect_verdict(unable, Verdict.UNSUPPORTED, "needs a GPU")
expect_verdict(lambda layer: moe(layer)[0][:, 1:], Verdict.FAIL, "return [tokens, hidden]")
expect_verdict(lambda layer: moe(layer)[0].astype(np.float16), Verdict.FAIL, "float16")
expect_verdict(lambda layer: "hello", Verdict.FAIL, "str")


class Pack:
    """DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def late(layer):
    """float32 in the first of two layers, bfloat16 in the second."""
    runs.append(layer)
    output, _ = moe(layer)
    return output if len(runs) % 2 else float32_to_bf16(output)


def forgetful(layer):
    """The intermediate in the first of two runs of two layers."""
    runs.append(layer)
    output, intermediate = moe(layer)
    return (output, intermediate) if len(runs) <= 2 else output


def wordy(layer):
    raise RuntimeError("out of\n    paper\r\nand ink")


huge = np.broadcast_to(np.float32(0), (10**6, 10**6))
expect_verdict(lambda layer: moe(layer)[:1], Verdict.FAIL, "tuple of 1: return output or (output, intermediate)")
expect_verdict(lambda layer: (*moe(layer), 0, 0, 0), Verdict.FAIL, "returned a tuple of 5")
expect_verdict(lambda layer: (), Verdict.FAIL, "returned a tuple of 0")
expect_verdict(lambda layer: None, Verdict.FAIL, "NoneType")
expect_verdict(lambda layer: huge, Verdict.FAIL, "the output is [1000000, 1000000]: return [tokens, hidden]")
expect_verdict(lambda layer: (moe(layer)[0], huge), Verdict.FAIL, "the intermediate is [1000000, 1000000]: return [tokens")
expect_verdict(lambda layer: (moe(layer)[0], moe(layer)[1].view(np.int16)), Verdict.FAIL, "the intermediate is int16")
expect_verdict(lambda layer: Pack(np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), huge.shape, (0, 0))),
               Verdict.FAIL, "the output is [1000000, 1000000]")
expect_verdict(late, Verdict.FAIL, "layer 1: the output is bfloat16, layer 0's float32")
runs.clear()
expect_verdict(forgetful, Verdict.NONDETERMINISTIC, "one of two runs returned no intermediate")
runs.clear()
expect_verdict(wordy, Verdict.CRASH, ": out of paper and ink")
expect_verdict(restless, Verdict.NONDETERMINISTIC, "3 elements of the output differ")
expect(len(gaugeblock.verify(restless, fixture, nondeterministic=True).check().cases) == 2, "each run is judged")

# A dictionary: with routing of its own, the router is one case and the layer another.
def routed(layer):
    """The recipe gaugeblock.renormalised/1, then the layer."""
    logits = bf16_to_float32(layer.x) @ bf16_to_float32(layer.router.weights).T
    ids = np.argsort(-logits, axis=1, kind="stable")[:, : layer.top_k]
    q = np.exp(np.take_along_axis(logits, ids, 1) - logits.max(axis=1, keepdims=True))
    weights = (q / q.sum(axis=1, keepdims=True)).astype(np.float32)
    output, intermediate = moe(dataclasses.replace(layer, ids=ids, routing_weights=weights))
    return {"output": output, "intermediate": intermediate, "ids": ids, "routing_weights": weights}


def changed(**changes):
    """What `routed` returns, with these names changed by functions; one that gives None leaves the name out."""
    def function(layer):
        result = routed(layer)
        for name, change in changes.items():
            result[name] = change(result.get(name))
        return result
    return function


def keep(*names):
    return lambda layer: {name: value for name, value in routed(layer).items() if name in names}


def elsewhere(ids):
    """One token goes to an expert that it did not choose."""
    ids[2, 1] = np.setdiff1d(np.arange(8), ids[2])[-1]
    return ids


def routes(layer):
    """A wrong expert, and the layer that is right for it."""
    result = routed(layer)
    ids, weights = elsewhere(result["ids"]), result["routing_weights"]
    output, intermediate = moe(dataclasses.replace(layer, ids=ids, routing_weights=weights))
    return {"output": output, "intermediate": intermediate, "ids": ids, "routing_weights": weights}


rules = gaugeblock.Fixture(fixture).layer(0).router
expect((rules.recipe, rules.rules.score, rules.rules.weight, rules.rules.weights, rules.rules.side, rules.bias) ==
       ("gaugeblock.renormalised/1", "logit", "softmax_chosen", "fp32", "on_output", None), str(rules.rules))
report = gaugeblock.verify(routed, fixture, batches=[3, 9]).check()
expect([(c.tokens, c.operator) for c in report.cases] == [(3, "route"), (3, "layer"), (9, "route"), (9, "layer")], str(report))
expect(gaugeblock.verify(keep("ids", "routing_weights"), fixture).check().cases[0].operator == "route", "routing alone")
gaugeblock.verify(keep("output"), fixture).check()
gaugeblock.verify(changed(ids=lambda ids: ids.astype(np.int32)), fixture).check()
report = gaugeblock.verify(routes, fixture)
expect([c.verdict for c in report.cases] == [Verdict.FAIL, Verdict.PASS] and ", route: FAIL: " in str(report), str(report))
for function, words in (
    (changed(outputs=lambda none: 1), "returned 'outputs': the names are output, intermediate, ids"),
    (changed(output=lambda y: None), "returned no output"),
    (keep("intermediate"), "returned no output"),
    (keep("output", "ids"), "returned one of ids and routing_weights"),
    (changed(ids=lambda ids: ids[:, 1:]), "the ids is [9, 2]: return [tokens, top_k] = [9, 3]"),
    (changed(ids=lambda ids: ids.astype(np.float32)), "the ids is float32: return int32 or int64"),
    (changed(ids=lambda ids: ids + 2**32), "the ids reach from"),
    (changed(routing_weights=lambda w: w.astype(np.float64)), "the routing_weights is float64: return float32"),
    (changed(x_codes=lambda none: np.zeros((9, 48), np.uint8)), "x_codes: the fixture's activations are bf16; leave it out"),
):
    expect_verdict(function, Verdict.FAIL, words)


def meddles(layer):
    layer.router.weights[0, 0] ^= 1
    return moe(layer)


expect_verdict(meddles, Verdict.FAIL, "changed its input router.weights")
for router, shape in (("transformers.deepseek-v3/1", "64,5,96,48"), ("te.sigmoid/1", "16,3,96,48")):
    run("make", path("biased.h5"), "--shape", shape, "--tokens", "2", "--router", router)
    given = gaugeblock.Fixture(path("biased.h5")).layer(0).router
    expect(given.recipe == router and given.bias.dtype == np.float32 and given.rules.groups == 8, str(given))
    with h5py.File(path("biased.h5")) as f:
        expect(np.array_equal(given.bias, f["layers/0/router/bias"][:]), f"{router}: {given.bias}")
expect(vars(given.rules) == {  # the fields but the size of the structure
    "logits": "fp32", "bias": "lossy", "score": "sigmoid", "nonfinite": "kept", "replacement": 0.0, "groups": 8, "kept_groups": 4,
    "group_terms": 0, "masked": float("-inf"), "weight": "score", "renormalise": "divide", "renormalise_from": 2,
    "zero_sum_is_one": 0, "epsilon": float(np.float32(1e-20)), "scale": 2.5, "weights": "fp32", "side": "on_output"}, str(given.rules))

# Each input that a function changes is named, its last byte, too.
def changing(name):
    def change(layer):
        array = layer
        for part in name.split("."):
            array = getattr(array, part)
        array.reshape(-1).view(np.uint8)[-1] ^= 1
    return change


for given, names in (
    (path("oss.h5"), ("gate_up_bias", "down_bias", "gate_up.codes", "gate_up.scales", "down.codes", "down.scales")),
    (fixture, ("x", "ids", "routing_weights", "gate_up.global_scales", "down.global_scales", "router.weights")),
    (path("biased.h5"), ("router.weights", "router.bias")),
):
    for name in names:
        report = gaugeblock.verify(changing(name), given)
        expect(report.verdict is Verdict.FAIL and len(report.cases) == 1, f"{name}: {report}")
        expect(report.cases[0].reason == f"layer 0: the function changed its input {name}", report.cases[0].reason)


# Codes of activations, by what the layer says of their recipe.
report = gaugeblock.verify(codes, path("activations.h5")).check()
expect({"x_codes", "intermediate_scales"} <= set(report.cases[0].record["metrics"]["layers"][0]["subject_reference"]), "codes")


def spoiled_codes(name, change):
    def function(layer):
        result = codes(layer)
        return {**result, name: change(result[name])}
    return str(gaugeblock.verify(function, path("activations.h5"), arguments=("--no-diagnosis",)))


for name in ("x_codes", "x_scales", "intermediate_codes", "intermediate_scales"):
    expect(f"{name} of layer 0" in spoiled_codes(name, lambda values: values ^ 1), name)
tokens = gaugeblock.Fixture(path("activations.h5")).shape.tokens
expect(f"the x_scales is [{tokens}, 5]: return [tokens, width] = [{tokens}, 6]" in
       spoiled_codes("x_scales", lambda values: values[:, 1:]), "a shape")
expect("the x_codes is int8: return bytes" in spoiled_codes("x_codes", lambda v: v.view(np.int8)), "a type")


def routed_codes(layer):
    """Both: slots in another order, and codes under that routing."""
    own = routed(layer)
    ids, weights = own["ids"][:, ::-1].copy(), own["routing_weights"][:, ::-1].copy()
    return {**codes(dataclasses.replace(layer, ids=ids, routing_weights=weights)), "ids": ids, "routing_weights": weights}


report = gaugeblock.verify(routed_codes, path("activations.h5")).check()
expect(report.cases[1].record["rerouted_tokens"] == tokens and "codes" in report.cases[1].record["checks"], str(report))

# In a process of its own a function may come to any grief. It is imported there, so it lies in a module.
with open(path("grief.py"), "w") as stream:
    stream.write("""
import ctypes, os, signal, time
import numpy as np
def right(layer):
    raise NotImplementedError("never comes to it")
def crash(layer):
    ctypes.string_at(0)
def leave(layer):
    os._exit(0)
def leave_behind(layer):
    "Processes out of this one's group and session, and one whose parent is gone."
    for number in range(2):
        if os.fork() == 0:
            os.setsid()
            if os.fork() and number:
                os._exit(0)
            time.sleep(600)
    with open(os.environ["STARTED"], "w"):
        pass
    time.sleep(float(os.environ["SLEEP"]))
    return zeros(layer)
def fells_its_group(layer):
    os.kill(0, signal.SIGKILL)
def wanders(layer):
    os.chdir("/")
    return zeros(layer)
def zeros(layer):
    return np.zeros((layer.tokens, layer.hidden), np.float32)
def huge(layer):
    return np.broadcast_to(np.float32(0), (10**6, 10**6))
""")
sys.path.insert(0, path(""))
import grief  # noqa: E402

expect_verdict(grief.crash, Verdict.CRASH, "by signal 11", isolate=True)
expect_verdict(grief.leave, Verdict.CRASH, "with exit code 0", isolate=True)
expect_verdict(grief.fells_its_group, Verdict.CRASH, "by signal 9", isolate=True)
if ALL:  # what it says of itself comes back as FAIL does below
    expect_verdict(grief.right, Verdict.UNSUPPORTED, "never comes to it", isolate=True)
expect_verdict(grief.huge, Verdict.FAIL, "the output is [1000000, 1000000]", isolate=True)


# Nothing that it starts outlives it: neither the time that it has, nor its own end, nor its caller's, by whichever signal.
def left():
    """The processes that have this test's variable, and are not about to be gone."""
    found = []
    for number in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/environ", "rb") as stream:
                if int(number) != os.getpid() and f"STARTED={path('started')}".encode() in stream.read().split(b"\0"):
                    found.append(number)
        except OSError:
            pass
    return found


def kill_left():
    for number in left():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(number), signal.SIGKILL)


atexit.register(kill_left)
os.environ["STARTED"], os.environ["SLEEP"] = path("started"), "600"
expect_verdict(grief.leave_behind, Verdict.CRASH, "after 5 s", isolate=True, timeout_s=5)
expect(os.path.exists(path("started")) and not left(), f"left by a function out of time: {left()}")
os.environ["SLEEP"] = "0"
expect_verdict(grief.leave_behind, Verdict.FAIL, "output of layer 0", isolate=True)
expect(not left(), f"left by a function that is done: {left()}")
os.environ["SLEEP"] = "600"
CALL = "import sys; sys.path[:0] = sys.argv[2:]; import gaugeblock, grief; gaugeblock.verify(grief.leave_behind, sys.argv[1], isolate=True)"
signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup has it ignored, for children, too
for number in (signal.SIGKILL, signal.SIGINT) if ALL else (signal.SIGKILL,):
    os.remove(path("started"))
    caller = subprocess.Popen([sys.executable, "-B", "-c", CALL, fixture, os.path.join(SOURCE, "python"), path("")],
                              stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (os.path.exists(path("started")) and len(left()) > 4) and time.monotonic() < until:
        time.sleep(0.01)
    expect(len(left()) > 4, f"not all is started: {left()}")
    caller.send_signal(number)
    caller.wait(60)
    until = time.monotonic() + 20
    while left() and time.monotonic() < until:
        time.sleep(0.01)
    expect(not left(), f"left by a caller that was ended by signal {number}: {left()}")
del os.environ["STARTED"], os.environ["SLEEP"]

# Paths relative to the working folder hold wherever the function goes.
here = os.getcwd()
os.chdir(path(""))
sys.path = [os.path.abspath(folder) for folder in sys.path]
for isolate in (False, True):
    report = gaugeblock.verify(grief.wanders, "small.h5", isolate=isolate, keep="wandered", arguments=("-o", "wandered.json"))
    expect(report.verdict is Verdict.FAIL and "output of layer 0" in str(report), str(report))
    expect(os.path.samefile(".", path("")), f"the caller is in {os.getcwd()}")
os.chdir(here)

try:
    gaugeblock.verify(plain, fixture, isolate=True)
except ValueError as raised:
    expect("cannot be imported" in str(raised), str(raised))
else:
    sys.exit("a function of __main__ was isolated")
for options, words in (
    ({"accumulator_bits": 0}, "--accumulator-bits 0"),
    ({"order": ""}, "--order"),
    ({"order": "--help"}, "--order"),
    ({"rounding": "gate_up=bf16"}, "rounding='gate_up=bf16': give a dictionary"),
    ({"batches": []}, "batches: empty"),
    ({"batches": 3}, "batches=3"),
    ({"batches": ["a"]}, "batches=['a']"),
    ({"batches": [1.5]}, "batches=[1.5]"),
    ({"batches": [4, 0]}, "batches: 0"),
    ({"batches": [99], "isolate": True}, "batches: 99"),
):
    try:
        gaugeblock.verify(grief.zeros, fixture, **options)
    except ValueError as raised:
        expect(words in str(raised) and "Traceback" not in str(raised), f"{options}: {raised}")
    else:
        sys.exit(f"{options} was taken")
for bad, error in ((path("missing.h5"), OSError), (__file__, ValueError)):
    try:
        gaugeblock.verify(moe, bad)
    except error as raised:
        expect(os.path.basename(bad) in str(raised), str(raised))
    else:
        sys.exit(f"{bad} was taken for a fixture")
