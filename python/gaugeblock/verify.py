# SPDX-License-Identifier: Apache-2.0
"""Runs a Python function on a fixture and has the program judge what it returned, as it judges every kernel."""

import contextlib
import importlib
import json
import operator
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
import typing

import numpy as np

from gaugeblock import native
from gaugeblock.arrays import FRAMEWORKS, give, synchronise, take
from gaugeblock.fixture import Fixture, Layer, Ranks, Values
from gaugeblock.report import Case, Report, Verdict
from gaugeblock.returned import NAMES, bits, checked, kind, write


GUARD_S = 10  # that a guard has to end what it guards


class _Stop(Exception):
    """A verdict that is certain before anything is judged."""

    def __init__(self, verdict: Verdict, reason: str) -> None:
        self.verdict = verdict
        self.reason = " ".join(reason.split())  # one line, whatever an exception's text was


Function = typing.Union[typing.Callable[[Layer], typing.Any], typing.Callable[[Values], typing.Any]]
Subject = typing.Union[Function, str]
Path = typing.Union[str, "os.PathLike[str]"]


def verify(
    subject: typing.Union[Subject, typing.Mapping[str, Subject]],
    fixture: Path,
    *,
    batches: typing.Optional[typing.Sequence[int]] = None,
    framework: str = "numpy",
    device: str = "cpu",
    order: typing.Optional[str] = None,
    rounding: typing.Optional[typing.Mapping[str, str]] = None,
    accumulator_bits: typing.Optional[int] = None,
    nondeterministic: bool = False,
    isolate: bool = False,
    timeout_s: float = 600,
    keep: typing.Optional[Path] = None,
    arguments: typing.Sequence[str] = (),
) -> Report:
    """Judges `subject` on the fixture at the path `fixture` and returns a Report.

    subject: a function, or the name of a kernel (`gaugeblock list kernels`), or several: a dictionary of such by name.

    function(layer) -> output, (output, intermediate), or a dictionary; layer a gaugeblock.Layer whose arrays belong to
    `framework` ("numpy", "torch", "cupy") and lie on `device`. Names in the dictionary: output: float32, float64 or
    bf16 [tokens, hidden]; intermediate: bf16 [tokens, top_k, intermediate], +0 in empty slots; ids, routing_weights:
    int32 or int64, and float32 or bf16 [tokens, top_k], of a function that routes by layer.router; then its routing is
    one case, and its layer under that routing another; x_codes, x_scales, intermediate_codes, intermediate_scales: what
    layer.quantisation makes of x and the intermediate, as gaugeblock.h has them. It is called twice for every batch and
    layer, on fresh copies. Of a quantiser's fixture it is function(values) -> (codes, scales), or a dictionary of them;
    values a gaugeblock.Values; batches are numbers of rows.

    batches: numbers of tokens to judge, prefixes of the fixture's; all tokens by default. arguments: more of the
    program's arguments, such as ("-o", "junit.xml"). The rest is about functions; a kernel declares these things
    itself. order: the order the function claims, such as "fma32/1", which makes every bit binding; None claims none.
    rounding: where it rounds between stages, {"gate_up": "bf16", "routing_weight": "bf16"} and the like
    (docs/gates.md). accumulator_bits: significand bits of its accumulators; None is 24, float32's. nondeterministic:
    two runs may differ, and each is judged. isolate: each batch runs in a process of its own for at most timeout_s
    seconds, so that a segmentation fault, an exit() or an endless loop costs one verdict; the function must be
    importable from its module. keep: the folder that the files with what the functions returned are written to. By
    default those that do not pass are kept in a new folder for temporary files, since the lines that reproduce their
    cases name them, and the others deleted.

    Verdicts beside the program's: CRASH if the function raises, UNSUPPORTED if it raises NotImplementedError, FAIL if it
    changes its inputs or returns another shape or type, or not one type for all layers, NONDETERMINISTIC if its two
    runs differ. ValueError or OSError: a bad fixture or argument. FileNotFoundError: no gaugeblock."""
    if framework not in FRAMEWORKS:
        raise ValueError(f"framework={framework!r}: it must be one of {', '.join(FRAMEWORKS)}")
    subjects = dict(subject) if isinstance(subject, typing.Mapping) else {_name(subject): subject}
    if not subjects:
        raise ValueError("subject: an empty dictionary; name at least one function or kernel")
    for name, one in subjects.items():
        if not isinstance(name, str):
            raise TypeError(f"subject: the name {name!r} is a {type(name).__name__}; give a string")
        if not callable(one) and not isinstance(one, str):
            raise TypeError(f"subject {name}: a {type(one).__name__}; give a function, or a kernel's name")
    functions = {name: one for name, one in subjects.items() if not isinstance(one, str)}
    if functions and not isolate:
        give(np.zeros(1, np.float32), None, framework, device)  # no such framework or device: an argument, not a verdict
    claim = _claim(order, rounding, accumulator_bits)
    cases: typing.List[Case] = []
    texts = []
    with Fixture(fixture) as problem, _kept(keep) as folder:
        numbers = _batches(batches, problem)
        owners: typing.Dict[str, str] = {}
        for number, (name, function) in enumerate(functions.items()):
            stem = os.path.join(folder, f"{number}-" * (len(functions) > 1) + re.sub(r"[^\w.<>-]", ".", name))
            for tokens in numbers:
                work = (os.fspath(fixture), tokens, framework, device, nondeterministic, stem)
                try:
                    paths = _isolated(function, timeout_s, work) if isolate else _outputs(function, *work, problem)
                    owners.update(dict.fromkeys(paths, name))
                except _Stop as stop:
                    cases.append(Case(tokens, stop.verdict, stop.reason, subject=name))
        if owners:
            words = [f"--outputs={path}" for path in owners]
            words += ["--batch", ",".join(map(str, sorted(set(numbers))))]
            text, judged = _judge(fixture, [*words, *claim, *arguments], owners)
            texts.append(text)
            cases += judged
        if keep is None:
            _delete_passed(folder, cases)
        for name, one in subjects.items():
            if not isinstance(one, str):
                continue
            words = [f"--kernel={one}", f"--batch={','.join(map(str, sorted(set(numbers))))}", *arguments]
            text, judged = _judge(fixture, words, {one: name})
            texts.append(text)
            cases += judged
    return Report(", ".join(subjects), os.fspath(fixture), tuple(cases), "\n".join(texts))


def _said(error: BaseException) -> str:
    """An exception's text, whatever its own code does when asked for it."""
    try:
        return str(error)
    except (Exception, SystemExit) as another:
        return f"(its text raises {type(another).__name__})"


def _name(subject: Subject) -> str:
    """What a report calls it."""
    if isinstance(subject, str):
        return subject
    qualname = getattr(subject, "__qualname__", type(subject).__name__)
    return f"{getattr(subject, '__module__', '?')}.{qualname}"


@contextlib.contextmanager
def _kept(keep: typing.Optional[Path]) -> typing.Iterator[str]:
    """The folder of the files of outputs. A new one, for temporary files, is deleted if nothing is left in it."""
    if keep is not None:
        os.makedirs(keep, exist_ok=True)
        yield os.fspath(keep)
        return
    folder = tempfile.mkdtemp(prefix="gaugeblock-")
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if not os.listdir(folder):
        os.rmdir(folder)


def _delete_passed(folder: str, cases: typing.Sequence[Case]) -> None:
    """Leaves the files that reproducing lines name: those with a case that does not pass."""
    needed = {case.record["subject"]["name"] for case in cases if case.record and case.verdict is not Verdict.PASS}
    for name in os.listdir(folder):
        if os.path.join(folder, name) not in needed:
            os.unlink(os.path.join(folder, name))


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
        write(path, problem, tokens, run)
    return paths


def _isolated(function, timeout_s, work):
    """_outputs in a process of its own. _Stop with CRASH if that dies or is not done in time."""
    module, qualname = function.__module__, function.__qualname__
    if module == "__main__" or "<" in qualname:
        raise ValueError(f"isolate=True: {qualname} of {module} cannot be imported; define it at the top of a module")
    result = pathlib.Path(work[-1] + ".json")
    command = [sys.executable, "-m", "gaugeblock.isolated", str(result), module, qualname, json.dumps(work)]
    guard = [sys.executable, "-I", os.path.join(os.path.dirname(os.path.abspath(__file__)), "guard.py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    with subprocess.Popen([*guard, *command], env=environment, stdin=subprocess.PIPE) as guarded:
        try:
            code = guarded.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise _Stop(Verdict.CRASH, f"the function was not done after {timeout_s} s") from None
        finally:
            _end(guarded)
    if not result.exists():
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        raise _Stop(Verdict.CRASH, f"the function's process ended {how}")
    answer = json.loads(result.read_text(encoding="utf-8"))
    result.unlink()
    if answer["verdict"]:
        raise _Stop(Verdict[answer["verdict"]], answer["reason"])
    return answer["outputs"]


def _end(guarded):
    """Has the guard end what it guards, and ends the guard itself if it does not answer."""
    guarded.stdin.close()
    try:
        guarded.wait(GUARD_S)
    except subprocess.TimeoutExpired:
        guarded.kill()


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
    """Every layer's arrays by name, as numpy arrays."""
    results = []
    for index in range(problem.parts):
        layer = _inputs(problem, index, tokens, framework, device)
        returned = _call(function, layer, index, framework, device)
        _check_inputs(layer, problem.inputs(index, tokens), index)
        try:
            results.append(checked(problem, layer, returned))
        except (TypeError, ValueError) as error:
            raise _Stop(Verdict.FAIL, f"layer {index}: {_said(error)}") from error
        except Exception as error:
            what = f"{type(error).__name__}: {_said(error)}"
            raise _Stop(Verdict.FAIL, f"layer {index}: what it returned cannot be read: {what}") from error
        for name in NAMES:
            first, now = (kind(result.get(name)) for result in (results[0], results[-1]))
            if first != now:
                raise _Stop(Verdict.FAIL, f"layer {index}: the {name} is {now}, layer 0's {first}: return one type")
    return results


def _inputs(problem, index, tokens, framework, device):
    """A layer's inputs; where an earlier call has lost the device, they cannot be put there."""
    try:
        return problem.inputs(index, tokens, framework, device)
    except Exception as error:
        what = f"{type(error).__name__}: {_said(error)}"
        raise _Stop(Verdict.CRASH, f"layer {index}: its inputs cannot be put on {device}: {what}") from error


@contextlib.contextmanager
def _same_folder() -> typing.Iterator[None]:
    """Afterwards the working folder is what it was: paths may be relative to it, the caller's too."""
    folder = os.open(".", os.O_PATH | os.O_CLOEXEC)
    try:
        yield
    finally:
        os.fchdir(folder)
        os.close(folder)


def _call(function, layer, index, framework, device):
    """What the function returns, when all that it has started is done."""
    try:
        with _same_folder():
            returned = function(layer)
    except NotImplementedError as error:
        raise _Stop(Verdict.UNSUPPORTED, _said(error) or "the function raised NotImplementedError") from error
    except (Exception, SystemExit) as error:  # sys.exit() is the function's end, not its caller's
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(at.filename)}:{at.lineno}"
        raise _Stop(Verdict.CRASH, f"layer {index}: {type(error).__name__} at {where}: {_said(error)}") from error
    try:
        synchronise(framework, device)
    except Exception as error:
        what = f"{type(error).__name__}: {_said(error)}"
        raise _Stop(Verdict.CRASH, f"layer {index}: what it started on the device failed: {what}") from error
    return returned


def _arrays(layer):
    if isinstance(layer, Values):
        yield "values", layer.values
        return
    if isinstance(layer, Ranks):
        for name in ("x", "values", "ids", "routing_weights", "placement"):
            if getattr(layer, name) is not None:
                yield name, getattr(layer, name)
        return
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
    if layer.router is not None:
        yield "router.weights", layer.router.weights
        if layer.router.bias is not None:
            yield "router.bias", layer.router.bias


def _check_inputs(layer, fresh, index):
    for (name, given), (_, kept) in zip(_arrays(layer), _arrays(fresh)):
        if not np.array_equal(bits(take(given, name)), bits(kept)):
            raise _Stop(Verdict.FAIL, f"layer {index}: the function changed its input {name}")


def _compare(runs, nondeterministic):
    for index, (first, second) in enumerate(zip(*runs)):
        for name in NAMES:
            a, b = first.get(name), second.get(name)
            if nondeterministic or (a is None and b is None):
                continue
            if a is None or b is None:
                raise _Stop(Verdict.NONDETERMINISTIC, f"layer {index}: one of two runs returned no {name}")
            a, b = bits(a).reshape(a.size, -1), bits(b).reshape(b.size, -1)
            differing = int((a != b).any(axis=1).sum()) if a.shape == b.shape else a.size
            if differing:
                raise _Stop(
                    Verdict.NONDETERMINISTIC,
                    f"layer {index}: {differing} elements of the {name} differ between two runs; "
                    "nondeterministic=True judges both",
                )


def _claim(order, rounding, accumulator_bits):
    """The program's arguments that say what the function claims."""
    if rounding is not None and not isinstance(rounding, typing.Mapping):
        raise ValueError(f'rounding={rounding!r}: give a dictionary, such as {{"gate_up": "bf16"}}')
    words = [f"--order={order}"] if order is not None else []
    if rounding:
        words.append("--rounding=" + ",".join(f"{stage}={format}" for stage, format in rounding.items()))
    return [*words, f"--accumulator-bits={accumulator_bits}"] if accumulator_bits is not None else words


def _judge(
    fixture: Path, words: typing.Sequence[str], owners: typing.Mapping[str, str]
) -> typing.Tuple[str, typing.List[Case]]:
    """The program's table, and its cases. owners: what to call the program's subjects."""
    with tempfile.TemporaryDirectory(prefix="gaugeblock-") as folder:
        path = pathlib.Path(folder) / "record.json"
        done = native.run("verify", "-o", path, *words, "--", fixture)
        if not path.exists():
            raise ValueError(done.stderr.strip() or f"gaugeblock verify ended with {done.returncode}")
        record = json.loads(path.read_text(encoding="utf-8"))
    return done.stdout, [
        Case(
            case["batch"],
            Verdict[case["verdict"]],
            case["reason"],
            case,
            case["subject"].get("operator", "layer"),
            owners.get(case["subject"]["name"], case["subject"]["name"]),
        )
        for case in record["cases"]
    ]
