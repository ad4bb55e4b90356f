# SPDX-License-Identifier: Apache-2.0
"""Runs a Python function on a fixture and has the program judge what it returned: the same judge as for every kernel."""

import importlib
import json
import operator
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback

import numpy as np

from gaugeblock import native
from gaugeblock.arrays import FRAMEWORKS, take
from gaugeblock.fixture import Fixture
from gaugeblock.report import Case, Report, Verdict


class _Stop(Exception):
    """A verdict that is certain before anything is judged."""

    def __init__(self, verdict, reason):
        self.verdict = verdict
        self.reason = " ".join(reason.split())  # one line, whatever an exception's text was
        super().__init__(self.reason)


def verify(
    function,
    fixture,
    *,
    batches=None,
    framework="numpy",
    device="cpu",
    order=None,
    rounding=None,
    accumulator_bits=None,
    nondeterministic=False,
    isolate=False,
    timeout_s=600,
    arguments=(),
):
    """Judges `function` on the fixture at the path `fixture` and returns a Report.

    function(layer) -> output or (output, intermediate), layer a gaugeblock.Layer whose arrays belong to `framework`
    ("numpy", "torch", "cupy") and lie on `device`; output: float32, float64 or bf16 [tokens, hidden]; intermediate: bf16
    [tokens, top_k, intermediate], +0 in empty slots. It is called twice for every batch and layer, on fresh copies.

    batches: numbers of tokens to judge, prefixes of the fixture's; all tokens by default. order: the order the function
    claims, such as "fma32/1", which makes every bit binding; None claims none. rounding: where it rounds between
    stages, {"gate_up": "bf16", "routing_weight": "bf16"} and the like (docs/gates.md). accumulator_bits: significand bits of its
    accumulators; None is 24, float32's. nondeterministic: two runs may differ, and
    each is judged. isolate: each batch runs in a process of its own for at most timeout_s seconds, so that a segmentation
    fault, an exit() or an endless loop costs one verdict; the function must be importable from its module. arguments: more of the program's arguments, such as ("-o", "junit.xml").

    Verdicts beside the program's: CRASH if the function raises, UNSUPPORTED if it raises NotImplementedError, FAIL if it
    changes its inputs or returns another shape or type, or not one type for all layers, NONDETERMINISTIC if its two
    runs differ. ValueError or OSError: a bad fixture or argument. FileNotFoundError: no gaugeblock."""
    if framework not in FRAMEWORKS:
        raise ValueError(f"framework={framework!r}: it must be one of {', '.join(FRAMEWORKS)}")
    name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}".replace("/", ".")
    cases, outputs, text = [], [], ""
    with Fixture(fixture) as problem, tempfile.TemporaryDirectory(prefix="gaugeblock-") as folder:
        for tokens in _batches(batches, problem):
            work = (os.fspath(fixture), tokens, framework, device, nondeterministic, os.path.join(folder, name))
            try:
                outputs += _isolated(function, timeout_s, work) if isolate else _outputs(function, *work, problem)
            except _Stop as stop:
                cases.append(Case(tokens, stop.verdict, stop.reason))
        if outputs:
            claim = _claim(order, rounding, accumulator_bits)
            text, record = _judge(fixture, outputs, [*claim, *arguments], folder)
            cases += [Case(c["batch"], Verdict[c["verdict"]], c["reason"], c) for c in record["cases"]]
    return Report(name, os.fspath(fixture), tuple(cases), text)


def _batches(batches, problem):
    """The numbers of tokens to judge. ValueError if `batches` are none of this fixture's."""
    if batches is None:
        return [problem.shape.tokens]
    try:
        numbers = [operator.index(tokens) for tokens in batches]
    except TypeError:
        raise ValueError(f"batches={batches!r}: give a list of numbers of tokens, such as [1, 8]") from None
    if not numbers:
        raise ValueError("batches: empty; give numbers of tokens, or None for all of the fixture's")
    for tokens in numbers:
        if not 1 <= tokens <= problem.shape.tokens:
            raise ValueError(f"batches: {tokens}; {problem.path} has tokens for 1 .. {problem.shape.tokens}")
    return numbers


def _outputs(function, fixture, tokens, framework, device, nondeterministic, stem, problem=None):
    """Runs the function twice and writes what is to be judged: the paths of one file, or of one a run. _Stop."""
    problem = problem or Fixture(fixture)
    runs = [_run(function, problem, tokens, framework, device) for _ in range(2)]
    _compare(runs, nondeterministic)
    paths = [f"{stem}-batch-{tokens}-run-{number}.h5" for number in range(2 if nondeterministic else 1)]
    for path, run in zip(paths, runs):
        _write(path, problem, tokens, run)
    return paths


def _isolated(function, timeout_s, work):
    """_outputs in a process of its own. _Stop with CRASH if that dies or is not done in time."""
    module, qualname = function.__module__, function.__qualname__
    if module == "__main__" or "<" in qualname:
        raise ValueError(f"isolate=True: {qualname} of {module} cannot be imported; define it at the top of a module")
    result = pathlib.Path(work[-1] + ".json")
    command = [sys.executable, "-m", "gaugeblock.isolated", str(result), module, qualname, json.dumps(work)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    try:
        code = subprocess.run(command, env=environment, timeout=timeout_s, check=False).returncode
    except subprocess.TimeoutExpired:
        raise _Stop(Verdict.CRASH, f"the function was not done after {timeout_s} s") from None
    if not result.exists():
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        raise _Stop(Verdict.CRASH, f"the function's process ended {how}")
    answer = json.loads(result.read_text(encoding="utf-8"))
    result.unlink()
    if answer["verdict"]:
        raise _Stop(Verdict[answer["verdict"]], answer["reason"])
    return answer["outputs"]


def isolated_main(arguments):
    """The other end of _isolated: runs the function, leaves a JSON file that says what came of it."""
    path, module, qualname, work = arguments
    function = importlib.import_module(module)
    for part in qualname.split("."):
        function = getattr(function, part)
    answer = {"verdict": None, "reason": "", "outputs": []}
    try:
        answer["outputs"] = _outputs(function, *json.loads(work))
    except _Stop as stop:
        answer.update(verdict=stop.verdict.name, reason=stop.reason)
    pathlib.Path(path).write_text(json.dumps(answer), encoding="utf-8")


def _run(function, problem, tokens, framework, device):
    """Every layer's (output, intermediate or None), as numpy arrays."""
    results = []
    for index in range(problem.layers):
        layer = problem.layer(index, tokens, framework, device)
        try:
            returned = function(layer)
        except NotImplementedError as error:
            raise _Stop(Verdict.UNSUPPORTED, str(error) or "the function raised NotImplementedError") from error
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{os.path.basename(at.filename)}:{at.lineno}"
            raise _Stop(Verdict.CRASH, f"layer {index}: {type(error).__name__} at {where}: {error}") from error
        _check_inputs(layer, problem.layer(index, tokens), index)
        try:
            results.append(_checked(layer, returned))
        except (TypeError, ValueError) as error:
            raise _Stop(Verdict.FAIL, f"layer {index}: {error}") from error
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise _Stop(Verdict.FAIL, f"layer {index}: what it returned cannot be read: {what}") from error
        for what, first, now in zip(("output", "intermediate"), results[0], results[-1]):
            if _type(first) != _type(now):
                reason = f"layer {index}: the {what} is {_type(now)}, layer 0's {_type(first)}: return one type"
                raise _Stop(Verdict.FAIL, reason)
    return results


def _type(array):
    """How _write stores it."""
    if array is None:
        return "None"
    return "bfloat16" if array.dtype == np.uint16 else "float32"


def _bits(array):
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1)


def _arrays(layer):
    yield "x", layer.x
    yield "ids", layer.ids
    yield "routing_weights", layer.routing_weights
    for name in ("gate_up", "down"):
        weights = getattr(layer, name)
        for part in ("codes", "scales", "global_scales"):
            if getattr(weights, part) is not None:
                yield f"{name}.{part}", getattr(weights, part)
        if getattr(layer, f"{name}_bias") is not None:
            yield f"{name}_bias", getattr(layer, f"{name}_bias")


def _check_inputs(layer, fresh, index):
    for (name, given), (_, kept) in zip(_arrays(layer), _arrays(fresh)):
        if not np.array_equal(_bits(take(_as_bits(given), name)), _bits(kept)):
            raise _Stop(Verdict.FAIL, f"layer {index}: the function changed its input {name}")


def _as_bits(array):
    """torch's 8-bit floating-point types have no numpy counterpart; their bits do."""
    if type(array).__module__.split(".")[0] != "torch" or array.element_size() != 1:
        return array
    import torch

    return array.view(torch.uint8)


def _checked(layer, returned):
    """(output, intermediate or None) as numpy arrays. TypeError or ValueError: of another shape or type."""
    if isinstance(returned, tuple) and len(returned) != 2:
        raise TypeError(f"the function returned a tuple of {len(returned)}: return output or (output, intermediate)")
    output, intermediate = returned if isinstance(returned, tuple) else (returned, None)
    output = _shaped(output, "output", {"tokens": layer.tokens, "hidden": layer.hidden})
    if output.dtype not in (np.float32, np.float64, np.uint16):
        raise TypeError(f"the output is {output.dtype}: return float32, float64, or bfloat16 (in numpy its uint16 bits)")
    if intermediate is None:
        return output, None
    sizes = {"tokens": layer.tokens, "top_k": layer.top_k, "intermediate": layer.intermediate}
    intermediate = _shaped(intermediate, "intermediate", sizes)
    if intermediate.dtype != np.uint16:
        raise TypeError(f"the intermediate is {intermediate.dtype}: return bfloat16 (in numpy its uint16 bits)")
    return output, intermediate


def _shaped(value, name, sizes):
    """A numpy array of this shape. Looked at before anything is copied: a view may be larger than memory."""
    expected = tuple(sizes.values())
    if not hasattr(value, "shape") and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    shape = tuple(getattr(value, "shape", expected))
    if shape == expected:
        array = take(value, f"the {name}")
        shape = array.shape
    if shape != expected:
        raise ValueError(f"the {name} is {list(shape)}: return [{', '.join(sizes)}] = {list(expected)}")
    return array


def _compare(runs, nondeterministic):
    for index, (first, second) in enumerate(zip(*runs)):
        for what, a, b in zip(("output", "intermediate"), first, second):
            if nondeterministic or (a is None and b is None):
                continue
            if a is None or b is None:
                raise _Stop(Verdict.NONDETERMINISTIC, f"layer {index}: one of two runs returned no {what}")
            a, b = _bits(a).reshape(a.size, -1), _bits(b).reshape(b.size, -1)
            differing = int((a != b).any(axis=1).sum()) if a.shape == b.shape else a.size
            if differing:
                raise _Stop(
                    Verdict.NONDETERMINISTIC,
                    f"layer {index}: {differing} elements of the {what} differ between two runs; "
                    "nondeterministic=True judges both",
                )


def _write(path, problem, tokens, run):
    """One run's outputs as a file that the program reads (docs/fixtures.md#outputs)."""
    ffi, lib = native.library()
    error = ffi.new("struct gb_error *")
    shape = ffi.new("struct gb_shape *", vars(problem.shape))
    shape.tokens = tokens
    bf16 = run[0][0].dtype == np.uint16
    pointer = ffi.new("struct gb_outputs **")
    with_intermediate = all(intermediate is not None for _, intermediate in run)
    form = lib.GB_BF16 if bf16 else lib.GB_FP32
    status = lib.gb_outputs_new(shape, problem.layers, form, with_intermediate, False, pointer, error)
    native.check(status, error)
    outputs = ffi.gc(pointer[0], lib.gb_outputs_free)
    for index, (output, intermediate) in enumerate(run):
        output = output if bf16 else output.astype(np.float32)
        ffi.memmove(outputs.layer[index].output, ffi.from_buffer(_bits(output)), output.nbytes)
        if with_intermediate:
            ffi.memmove(outputs.layer[index].intermediate, ffi.from_buffer(_bits(intermediate)), intermediate.nbytes)
    native.check(lib.gb_outputs_write(os.fsencode(path), outputs, error), error)


def _claim(order, rounding, accumulator_bits):
    """The program's arguments that say what the function claims."""
    words = ["--order", order] if order is not None else []
    if rounding:
        words += ["--rounding", ",".join(f"{stage}={format}" for stage, format in rounding.items())]
    return [*words, "--accumulator-bits", str(accumulator_bits)] if accumulator_bits is not None else words


def _judge(fixture, outputs, arguments, folder):
    """The program's table and record of the files of outputs."""
    record = pathlib.Path(folder) / "record.json"
    command = [native.program(), "verify", os.fspath(fixture), "-o", str(record)]
    command += [word for path in outputs for word in ("--outputs", str(path))]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if not record.exists():
        raise ValueError(done.stderr.strip() or f"gaugeblock verify ended with {done.returncode}")
    return done.stdout, json.loads(record.read_text(encoding="utf-8"))
