# SPDX-License-Identifier: Apache-2.0
"""Runs the program and checks its exit code; what every test here starts with."""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time

PROGRAM = os.environ["GAUGEBLOCK"]
SOURCE = os.environ["SOURCE"]
FAULTS = os.environ["FAULTS"]
MISTAKES = os.environ["MISTAKES"]
HDF5_FAULT = os.environ["HDF5_FAULT"]
PROCESSORS = os.environ["PROCESSORS"]
TMPFILE_FAULT = os.environ["TMPFILE_FAULT"]
SANITISED = os.environ["SANITISED"] == "1"
CHECKPOINT = os.path.join(SOURCE, "fixtures/data/tiny-qwen3-moe")
CAPTURE = os.path.join(CHECKPOINT, "capture.safetensors")

# Whether nothing is left out: `test_name.py all`, which is test slow_name.
ALL = sys.argv[1:] == ["all"]

folder = tempfile.TemporaryDirectory(prefix="gaugeblock-test-")


def path(name):
    """A path in this test's own folder."""
    return os.path.join(folder.name, name)


said = []  # of each command that `run` ran: its line and what it printed; and the records of `record`


def run(*arguments, code=0, **options):
    """Runs `gaugeblock arguments`, checks the exit code, returns the finished process."""
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, **options)
    said.append(f"$ gaugeblock {shlex.join(map(str, arguments))}\n{done.stdout}{done.stderr}exit {done.returncode}\n")
    if done.returncode != code:
        sys.exit(f"gaugeblock {' '.join(map(str, arguments))}: exit {done.returncode}, expected {code}\n"
                 f"{done.stdout}{done.stderr}")
    return done


def call_failing(words, **environment):
    """A worker of which one call fails, as `environment` has it: its report, and what the file `calls` has in front of that
    call, whether it came to it, and what behind it."""
    subprocess.run(["sh", "-c", 'exec "$@" 4> "$0" 5> "$0.first" 6> "$0.moved"', path("report"), PROGRAM, "worker", *words],
                   env={**os.environ, **environment}, check=True)
    with open(path("report")) as stream:
        report = json.load(stream)
    with open(path("calls")) as stream:
        before, failed, rest = stream.read().partition("fails\n")
    os.remove(path("calls"))
    return report, before, bool(failed), rest


def refused(*arguments, code=2, **options):
    """Runs what must be refused: the exit code and one line on stderr, which it returns."""
    done = run(*arguments, code=code, **options)
    lines = done.stderr.splitlines()
    expect(len(lines) == 1 and lines[0].startswith("gaugeblock"), f"{arguments}: not one line:\n{done.stderr}")
    return lines[0]


def record(*arguments, code=0):
    """Runs verify and returns its JSON record, whose reproducing lines do reproduce."""
    file = path("record.json")
    if os.path.exists(file):
        os.remove(file)
    began = time.monotonic()
    run("verify", *arguments, "-o", file, code=code)
    seconds = time.monotonic() - began
    with open(file) as stream:
        one = json.load(stream)
    said.append(one)
    own = [case["seconds"] for case in one["cases"]]
    expect(sum(own) <= seconds and all(of > 0 for of, case in zip(own, one["cases"]) if case["exit_code"] in (0, 1)),
           f"cases of {own} seconds in {seconds}")
    expect(sum(own) <= one["summary"]["seconds"] <= seconds, f"{one['summary']['seconds']} seconds, not {seconds}")
    reproduced(one["cases"])
    return one


forms = set()  # of lines that were run


def reproduced(cases, **options):
    """Runs the line of every case that does not pass, as a shell takes it: it ends with the gravest of the codes of
    the cases that have it; what it looks like is not asked again. Of hundreds of lines 32 are run; of lines with the same options and code that a test has
    run, none again unless ALL."""
    codes = {}
    for case in cases:
        codes.setdefault(case["repro"], set()).add(case["exit_code"])
        if "minimal" in case:
            codes.setdefault(case["minimal"]["repro"], set()).add(case["exit_code"])
    environment = {**os.environ, "PATH": os.pathsep.join([os.path.dirname(PROGRAM), os.environ["PATH"]])}
    lines = [line for line, found in codes.items() if line and found != {0}]
    for line in lines[:: 1 + len(lines) // 33]:
        gravest = next(code for code in (5, 2, 6, 1, 4, 3) if code in codes[line])
        form = gravest, *(word for word in line.split() if word.startswith("--"))
        if form in forms and not ALL:
            continue
        forms.add(form)
        done = subprocess.run(["sh", "-c", f"{line} --no-diagnosis"], capture_output=True, text=True, env=environment, **options)
        expect(done.returncode == gravest,
               f"{line}: exit {done.returncode}, and not {gravest}\n{done.stdout}{done.stderr}")


def small(name="small.h5", *arguments):
    """A small generated fixture."""
    run("make", path(name), "--shape", "8,3,96,48", "--tokens", "9", "--layers", "2", *arguments)
    return path(name)


def expect(condition, message):
    if not condition:
        sys.exit(message)

def own_code(program=PROGRAM):
    """The environment by which MEMORY_FAULT knows where the code of libraries within the program begins, which is linked
    behind ours; rare paths lie before all others."""
    symbols = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout.splitlines()
    foreign = [f[0] for f in map(str.split, symbols)
               if re.fullmatch("H5[A-Z]+_.*|cblas_.*", f[-1]) and f[1] in "Tt" and ".cold" not in f[-1]]
    return {"GAUGEBLOCK_FAULT_CODE": min(foreign)} if foreign else {}
