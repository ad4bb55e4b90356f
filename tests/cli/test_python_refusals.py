# SPDX-License-Identifier: Apache-2.0
"""What the Python package refuses, in whose words; where it finds the program; and what becomes of a command line and of
a verdict."""
import dataclasses
import os
import resource
import runpy
import select
import shutil
import signal
import subprocess
import sys
import time
import types

import numpy as np

import package  # noqa: F401, the package's folder
from layers import e4m3
from package import moe
from program import expect, path, run, small

import gaugeblock
from gaugeblock import Verdict, guard, layouts, native, testing
from gaugeblock.layouts import Projection, canonical, check_layout
from gaugeblock.problem import Problem
from gaugeblock.returned import checked


def refuses(error, says, function, *positional, **named):
    """One line with these words."""
    try:
        made = function(*positional, **named)
    except error as raised:
        expect(type(raised) is error and says in str(raised) and "\n" not in str(raised), f"no {says!r} in {raised!r}")
        return
    sys.exit(f"not refused with {says!r}: {made!r}")


# Fixtures: what they have is said with every number.
fixture, q, x = small(), path("q.h5"), path("x.h5")
run("make", q, "--operator", "quantise", "--recipe", "mxfp8.floor/1", "--shape", "5,64")
run("make", x, "--operator", "dispatch", "--shape", "8,2,64", "--tokens", 3, "--ranks", 2)
layer = gaugeblock.Fixture(fixture)
for index in (-1, 2):
    refuses(IndexError, f"small.h5 has layers 0 .. 1, not {index}", layer.layer, index)
for tokens in (0, 10):
    refuses(ValueError, f"small.h5 has 9 tokens, so tokens={tokens} is not possible", layer.layer, 0, tokens)
expect(layer.layer(1, 9).tokens == 9 and layer.layer(1, 1).x.shape == (1, 96), "the first and the last token")
one = layer.layer(1, 4)
expect((one.tokens, one.hidden, one.intermediate, one.experts, one.top_k) == (4, 96, 48, 8, 3), "sizes of a layer")
refuses(ValueError, "small.h5 is no problem of a quantiser: use layer()", layer.values)
refuses(ValueError, "small.h5 is a problem of layer, not of dispatch or combine", layer.over_ranks)
refuses(ValueError, "x.h5 is no problem of a quantiser: use over_ranks()", gaugeblock.Fixture(x).values)
refuses(ValueError, "q.h5 is a problem of quantise, not of dispatch or combine", gaugeblock.Fixture(q).over_ranks)
for rows in (0, 6):
    refuses(ValueError, f"q.h5 has 5 rows, so rows={rows} is not possible", gaugeblock.Fixture(q).values, rows)
expect([gaugeblock.Fixture(q).values(rows).tokens for rows in (1, 5)] == [1, 5], "the first and the last row")
weights = layer.layer(0).gate_up
for expert in (-1, 8):
    refuses(IndexError, f"small.h5 has experts 0 .. 7, not {expert}", weights.dequantise, expert)
first = [weights.dequantise(expert) for expert in (0, 7)]
layer.close()
layer.close()  # once more: nothing is left to free
refuses(ValueError, "small.h5 has been closed", weights.dequantise, 0)
for subject, error, words in (({}, ValueError, "subject: an empty dictionary; name at least one function or kernel"),
                              ({3: moe}, TypeError, "subject: the name 3 is a int; give a string"),
                              ({"mine": 5}, TypeError, "subject mine: a int; give a function, or a kernel's name")):
    refuses(error, words, gaugeblock.verify, subject, fixture)
with gaugeblock.Fixture(fixture) as opened:
    weights = opened.layer(0).down
refuses(ValueError, "small.h5 has been closed", weights.dequantise, 0)
expect(first[0].shape == (96, 96) and not np.array_equal(*first), "weights of two experts")

# FP8 blocks lie in both halves of gate_up, the last one smaller: codes times scales are the values.
run("make", path("fp8.h5"), "--shape", "3,1,320,192", "--format", "fp8", "--tokens", 1)
for whole, halves in ((gaugeblock.Fixture(path("fp8.h5")).layer(0).gate_up, 2), (gaugeblock.Fixture(path("fp8.h5")).layer(0).down, 1)):
    rows, columns = whole.codes.shape[1:]
    expect(whole.scales.shape == (3, halves, -(-rows // halves // 128), -(-columns // 128)), str(whole.scales.shape))
    spread = whole.scales.repeat(128, axis=2)[:, :, : rows // halves].reshape(3, rows, -1).repeat(128, axis=2)[..., :columns]
    values = e4m3(whole.codes) * spread
    expect(all(np.array_equal(whole.dequantise(expert), values[expert]) for expert in range(3)), "FP8 weights")

# Functions: frameworks, shapes, routing that nobody asked for.
refuses(ValueError, "framework='jax': it must be one of numpy, torch, cupy", gaugeblock.verify, moe, fixture, framework="jax")
with gaugeblock.Fixture(fixture) as problem:
    unrouted, pairs = dataclasses.replace(problem.layer(0), router=None), np.zeros((9, 3), np.int32)
    refuses(ValueError, "returned ids, but the fixture has no router: leave ids and routing_weights out", checked, problem, unrouted,
            {"ids": pairs, "routing_weights": pairs.astype(np.float32)})
    for far in (2**31, -(2**31) - 1):
        refuses(ValueError, f"the ids reach from {min(far, 0)} to {max(far, 0)}: return numbers of experts", checked, problem, problem.layer(0),
                {"ids": np.where(np.arange(3) == 1, far, pairs.astype(np.int64)), "routing_weights": pairs.astype(np.float32)})
    near = np.where(np.arange(3) == 1, 2**31 - 1, np.full((9, 3), -(2**31)))
    taken = checked(problem, problem.layer(0), {"ids": near, "routing_weights": pairs.astype(np.float32)})["ids"]
    expect(taken.dtype == np.int32 and np.array_equal(taken, near), "ids of 32 bits")
    given = np.arange(0x3F00, 0x3F00 + pairs.size, dtype=np.uint16).reshape(pairs.shape)
    taken = checked(problem, problem.layer(0), {"ids": pairs, "routing_weights": given})["routing_weights"]
    expect(taken.dtype == np.float32 and np.array_equal(taken, gaugeblock.bf16_to_float32(given)), "routing weights in bf16")
    # What is no array, whatever shape it names, and an array of another shape than it names.
    named, lying = types.SimpleNamespace(shape=(9, 96)), np.zeros((9, 95), np.float32)
    refuses(TypeError, "the output is a SimpleNamespace: return an array of numpy, torch or CuPy, or one with DLPack", checked, problem,
            problem.layer(0), named)
    lies = type("Lies", (), {"shape": (9, 96), "__dlpack__": lambda self, **options: lying.__dlpack__(**options),
                             "__dlpack_device__": lambda self: lying.__dlpack_device__()})
    refuses(ValueError, "the output is [9, 95]: return [tokens, hidden] = [9, 96]", checked, problem, problem.layer(0), lies())

# Assertions: each argument by its name.
y, logits = np.zeros((2, 64), np.float32), np.ones((2, 4), np.float32)
bf16 = {"x": np.zeros((2, 64), np.uint16), "w13": np.zeros((4, 64, 64), np.uint16), "w2": np.zeros((4, 64, 32), np.uint16),
        "ids": np.zeros((2, 1), np.int32), "weights": np.ones((2, 1), np.float32), "format": "bf16"}
refuses(ValueError, "output='fp16': give fp32 or bf16", testing.limits, **bf16, output="fp16")
refuses(TypeError, "x is int32: give bfloat16 (in numpy its uint16 bits, or float32)", testing.assert_moe_close, y,
        **{**bf16, "x": np.zeros((2, 64), np.int32)})
refuses(ValueError, "ids: float32 [2, 1]; give whole numbers [tokens, top_k]", testing.assert_moe_close, y,
        **{**bf16, "ids": np.zeros((2, 1), np.float32)})
refuses(ValueError, "ids: int32 [2]; give whole numbers [tokens, top_k]", testing.assert_moe_close, y,
        **{**bf16, "ids": np.zeros(2, np.int32)})
refuses(ValueError, "activations='int4': give bf16, nvfp4, mxfp8 or fp8", testing.assert_moe_close, y, **bf16, activations="int4")
refuses(ValueError, "gelu", testing.assert_moe_close, y, **bf16, activation="gelu")
mxfp8 = {name: (np.ones(bf16[name].shape, np.uint8), np.full((4, 64, bf16[name].shape[2] // 32), 127, np.uint8)) for name in ("w13", "w2")}
expect(testing.limits(**{**bf16, **mxfp8, "format": "mxfp8"}, activations="mxfp8").limit.shape == (2, 64), "activations without global scales")
refuses(ValueError, "x [2], codes of w13 [4, 64, 64]: give [tokens, hidden] and [experts, rows, ...], of 3 dimensions in layout 'linear'",
        testing.assert_moe_close, y, **{**bf16, "x": np.zeros(2, np.uint16)})
refuses(ValueError, "these are w13's sizes in layout 'linear'", testing.assert_moe_close, y, **{**bf16, "w13": np.zeros((4, 0, 64), np.uint16)})
refuses(ValueError, "x_scale: 2 numbers; give the one that all experts have", testing._number, np.ones(2, np.float32), "x_scale")
expect(testing._number(None, "x_scale") == 1.0 and testing._number(np.full(1, 3, np.float32), "x_scale") == 3.0, "scales as numbers")
refuses(ValueError, "logits: has values so small that their last bits are subnormal", testing.assert_routed, np.zeros((2, 1), np.int32),
        np.ones((2, 1), np.float32), recipe="gaugeblock.softmax/1", logits=logits * np.float32(1e-42))
refuses(ValueError, "ids [2], x [2, 12], router [4, 12]: give [tokens, top_k]", testing.assert_routed, np.zeros(2, np.int32),
        np.ones((2, 1), np.float32), recipe="gaugeblock.softmax/1", logits=logits)
refuses(ValueError, "expert_outputs: [2, 64]; give [tokens, top_k, hidden]", testing.assert_combined, y, y, np.ones((2, 1), np.float32))
refuses(ValueError, "recipe: an empty list; name at least one", testing.assert_quantised, y, y, y, recipe=[])
refuses(ValueError, "values: [64]; give [rows, columns]", testing.assert_quantised, y, y, y[0], recipe="mxfp8.floor/1")
refuses(ValueError, "values: [0, 64]; give [rows, columns]", testing.assert_quantised, y, y, y[:0], recipe="mxfp8.floor/1")
refuses(ValueError, "layout='tiled': no such layout of scales; docs/numerics.md#scale-layouts has them", testing.assert_quantised, y, y, y,
        recipe="mxfp8.floor/1", layout="tiled")
refuses(ValueError, "format='fp5': no such format of weights", Problem.of_layer, {}, "fp5")

# Infinities and NaN are values of a quantiser: codes of other values are wrong, and no bad input.
for values in (np.full((1, 64), 0x7F80, np.uint16), np.full((1, 64), 0xFFC0, np.uint16), np.full((1, 64), np.inf, np.float16)):
    try:
        testing.assert_quantised(np.zeros((1, 64), np.uint8), np.full((1, 2), 3, np.uint8), values, recipe="mxfp8.floor/1")
        sys.exit("wrong codes passed")
    except gaugeblock.VerificationError as failure:
        expect("FAIL" in str(failure), str(failure))

# When other layouts of the weights are tried: a token's output has hardly the direction of truth's.
for cosine, elsewhere in ((None, True), (float("nan"), True), (0.5, True), (0.985, True), (0.995, False)):
    metrics = {"overall": {"subject_truth": {"quantised": {"cosine_min": cosine}}}}
    case = types.SimpleNamespace(record={"metrics": metrics})
    expect(testing._points_elsewhere(types.SimpleNamespace(cases=[case])) is elsewhere, f"a cosine of {cosine}")

# Weights in layouts.
w2 = Projection("w2", "nvfp4", "flashinfer-trtllm", 2, 48, 64, 1)
codes, tiles, one = np.zeros((2, 48, 32), np.uint8), np.zeros((2, 128, 4), np.uint8), np.ones(2, np.float32)
refuses(ValueError, "w2: 48 rows are no multiple of 32, as layout 'flashinfer-trtllm' has them", canonical, w2, (codes, tiles, one), np.arange(2))
w2 = Projection("w2", "nvfp4", "linear", 2, 48, 64, 1)
expect(layouts.row_sources(w2) is None, "rows in their places are not moved")
scales = np.zeros((2, 48, 4), np.uint8)
refuses(TypeError, "w2 codes is a list: give an array of numpy or torch", canonical, w2, (codes.tolist(), scales, one), np.arange(2))
refuses(TypeError, "w2 codes are uint16: nvfp4 weights are bytes: uint8, int8", canonical, w2, (codes.astype(np.uint16), scales, one), np.arange(2))
refuses(TypeError, "w2 scales are float32: nvfp4 has bytes", canonical, w2, (codes, scales.astype(np.float32), one), np.arange(2))
refuses(TypeError, "w2 scales are bool: nvfp4 has bytes", canonical, w2, (codes, scales.astype(bool), one), np.arange(2))
refuses(ValueError, "w2 global_scale: [3]; give [experts] or [experts, 1], decoding scales", canonical, w2, (codes, scales, np.ones(3)), np.arange(2))
refuses(TypeError, "w2 codes are int16: bf16 weights are bfloat16 (in numpy its uint16 bits)", canonical,
        Projection("w2", "bf16", "linear", 2, 48, 64, 1), np.zeros((2, 48, 64), np.int16), np.arange(2))
w2 = Projection("w2", "fp8", "linear", 2, 48, 64, 1)
refuses(TypeError, "w2 scales are float64: those of fp8 weights are float32", canonical, w2,
        (np.zeros((2, 48, 64), np.uint8), np.ones((2, 1, 1))), np.arange(2))
refuses(ValueError, "w2 scales: [2, 2, 1]; layout 'linear' of fp8 has [experts, blocks of rows, blocks of columns] = [2, 1, 1]", canonical, w2,
        (np.zeros((2, 48, 64), np.uint8), np.ones((2, 2, 1), np.float32)), np.arange(2))
refuses(ValueError, "format='fp5': there are bf16, nvfp4", layouts._format, "fp5")
refuses(ValueError, "layout='gpt-oss' is of mxfp4 weights, not of bf16", check_layout, "gpt-oss", "bf16")

# The status of a call is an exception of its kind, with the library's words.
ffi, lib = native.library()
error = ffi.new("struct gb_error *", {"message": b"said so"})
native.check(lib.GB_OK, error)
for status, kind in ((lib.GB_ENOMEM, MemoryError), (lib.GB_EIO, OSError), (lib.GB_EINVAL, ValueError), (lib.GB_EFORMAT, ValueError)):
    refuses(kind, "said so", native.check, status, error)
codes_of = {verdict.name: verdict.exit_code for verdict in Verdict}
expect(codes_of == {"PASS": 0, "FAIL": 1, "BAD_INPUT": 2, "NOT_RUN": 3, "UNSUPPORTED": 3, "VACUOUS": 4, "CRASH": 5,
                    "NONDETERMINISTIC": 6}, str(codes_of))

# A guard ends as its command does, whose memory is written nowhere; 1 where it cannot be run.
signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup has it ignored, for children, too
script = os.path.join(os.path.dirname(gaugeblock.__file__), "guard.py")


def guarded(*command, **options):
    return subprocess.Popen([sys.executable, "-I", script, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, cwd=path(""), **options)


core = resource.getrlimit(resource.RLIMIT_CORE)[1]
shell = shutil.which("sh")
for command, code in ((path("no/such/command"),), 1), ((shutil.which("cat"),), 0), *(
        ((shell, "-c", f"ulimit -c 0; {words}"), code) for words, code in (
            ("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -INT $$", -2), ("kill -KILL $$", -9), ("kill -SEGV $$", -11),
            ("kill -PIPE $$", -13), ("kill -TERM $$", -15), ("kill -INT $PPID; exit 3", 3), ("sleep 60 & exit 4", 4),
            ("(sleep 0.01 &); sleep 0.3; exit 6", 6))):
    began = time.monotonic()
    with guarded(*command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (core, core))) as process:
        _, status = os.waitpid(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said, seconds = process.stderr.read(), time.monotonic() - began  # to the end, which has come when nothing is left of it
        expect((process.returncode, said, os.WCOREDUMP(status)) == (code, "", False) and seconds < 30,
               f"{command}: status {status:#x}, and not {code}, after {seconds} s: {said}")
# What it runs takes signals as any process does, although the guard itself leaves SIGINT to its caller.
with guarded(shutil.which("grep"), "SigIgn", "/proc/self/status") as process:
    ignored = int(process.stdout.read().split()[1], 16)
for one in signal.SIGINT, signal.SIGPIPE:
    expect(not ignored >> one - 1 & 1, f"{one.name} is ignored: {ignored:x}")
# It ends when its caller does, and its command when it is killed itself.
for give_up, code in (lambda process: process.stdin.close(), 1), (subprocess.Popen.kill, -9):
    with guarded(shell, "-c", "echo; exec sleep 60") as process:
        process.stdout.readline()
        began = time.monotonic()
        give_up(process)
        said, ended, seconds = process.stdout.read() + process.stderr.read(), process.wait(60), time.monotonic() - began
    expect((said, ended) == ("", code) and seconds < 30, f"exit {ended} after {seconds} s: {said}")


def refuse(number, sent):
    raise PermissionError


# A process is its child by its parent's number, whatever its name; one that it cannot kill is left.
os.symlink(shutil.which("sleep"), path("a) S 1 (b"))
with subprocess.Popen([path("a) S 1 (b"), "60"]) as child:
    endings, noted = os.pipe()
    os.write(noted, b"x")
    answers = iter((([endings], [], []), ([0], [], [])))
    wait, select.select = select.select, lambda *files: next(answers)
    expect(guard.watch(child.pid, endings) is None and not wait([endings], [], [], 0)[0], "a caller that is gone, and what was noted")
    select.select = wait
    others = os.getpid(), os.getppid(), 1, 2**30
    expect(guard.is_ours(child.pid) and not any(map(guard.is_ours, others)), "which processes are children")
    kill, os.kill = os.kill, refuse
    expect(guard.kill_children() is False, "a child that nobody killed")
    guard.end_all()
    os.kill = kill
    expect(guard.kill_children() is True and child.wait(60) == -9 and guard.kill_children() is False, "a child that was killed")

# The program: where GAUGEBLOCK_PREFIX says; else beside the package; else on PATH, where a script alone is none.
prefix, found = os.environ.pop("GAUGEBLOCK_PREFIX"), native.prefix.__wrapped__
os.makedirs(path("script/bin"))
open(path("script/bin/gaugeblock"), "w").close()
os.makedirs(path("headers/include/gaugeblock"))
PATH, os.environ["PATH"] = os.environ["PATH"], os.pathsep.join([path("script/bin"), path("headers/bin")])
refuses(FileNotFoundError, "no gaugeblock: install it, or set GAUGEBLOCK_PREFIX to the folder it was installed in", found)
os.environ["PATH"] += os.pathsep + os.path.join(prefix, "bin")
expect(found().samefile(prefix), f"on PATH: {found()}")
bundled = os.path.join(path("bundled"), "native")
shutil.copytree(os.path.join(prefix, "include"), os.path.join(bundled, "include"))
os.makedirs(os.path.join(bundled, "bin"))
open(os.path.join(bundled, "bin", "gaugeblock"), "w").close()
gaugeblock.__path__.append(path("bundled"))
expect(str(found()) == bundled, f"beside the package: {found()}")
gaugeblock.__path__.pop()
os.environ["PATH"], os.environ["GAUGEBLOCK_PREFIX"] = PATH, path("headers")
native.prefix.cache_clear()
refuses(FileNotFoundError, f"{path('headers')}/bin/gaugeblock is not there: is {path('headers')} where gaugeblock was installed?", native.program)
refuses(FileNotFoundError, f"{path('headers')}/lib is not there: is this where gaugeblock was installed?", native._one, "lib")

# `python -m gaugeblock` becomes the program, with its arguments.
calls = []
execv, os.execv = os.execv, lambda *words: calls.append(words)
own, sys.argv = sys.argv, ["-m", "list", "formats"]
try:
    runpy.run_module("gaugeblock", run_name="__main__")
except SystemExit as ended:
    expect(str(ended).startswith(f"gaugeblock: {path('headers')}/bin/gaugeblock is not there"), str(ended))
else:
    sys.exit("ran a program that there is not")
os.environ["GAUGEBLOCK_PREFIX"] = prefix
native.prefix.cache_clear()
runpy.run_module("gaugeblock", run_name="__main__")
os.execv, sys.argv = execv, own
expect(calls == [(native.program(), ["gaugeblock", "list", "formats"])], str(calls))
done = native.run("list", "formats")
expect(done.returncode == 0 and done.stdout == subprocess.run([native.program(), "list", "formats"], capture_output=True, text=True).stdout, "run")
