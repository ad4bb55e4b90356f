# SPDX-License-Identifier: Apache-2.0
"""Wherever gaugeblock asks for memory it may not get any: one line says so, or the result is the same without. No crash,
no other result. test_memory.py all: of more commands, and a place is also what called it, and its second call fails
too."""
import difflib
import os
import re
import subprocess

import program
from blocks import block
from kept import expect_kept
from program import ALL, CAPTURE, CHECKPOINT, FAULTS, MISTAKES, PROGRAM, expect, folder, own_code, run, small

DEPTH, CALLS = (3, "12") if ALL else (1, "1")
ENVIRONMENT = {**os.environ, **own_code(), "LD_PRELOAD": os.environ["MEMORY_FAULT"], "GAUGEBLOCK_FAULT_DEPTH": str(DEPTH)}

os.chdir(folder.name)


def made(name, *words):
    run("make", name, *words)
    return name


fixture = made("s.h5", "--shape", "4,2,64,32", "--tokens", 2)
exchange = made("d.h5", "--operator", "dispatch", "--shape", "8,3,96", "--ranks", 4, "--recipe", "nvfp4.trtllm/1")
run("study", "drift", fixture, "-o", "drift.h5")
run("verify", fixture, "-o", "verify.json")
LINES = [
    "verify d.h5 -o r.json", "report verify.json drift.h5 -o page.html", "study drift s.h5 --csv s.csv --table s.md",
    "make made.h5 --shape 4,2,64,32 --tokens 4",  # as many as experts: whichever calls are inlined
    "make made.h5 --shape 8,3,64,64 --tokens 3 --format mxfp8 --activations mxfp8 --data edge --routing holes",
    "make made.h5 --shape 4,2,64,32 --data exact --routing uniform",
    "make made.h5 --operator quantise --recipe nvfp4.trtllm/1 --shape 6,96 --data ties",
    "make made.h5 --operator dispatch --shape 8,3,96 --ranks 4 --recipe nvfp4.trtllm/1",
    "make made.h5 --operator combine --shape 8,3,96 --ranks 4 --accumulation sender",
    "info s.h5 --coverage", "info d.h5"]


def prepare_all():
    """What the commands of `all` read."""
    from published import Published
    made("q.h5", "--operator", "quantise", "--recipe", "nvfp4.trtllm/1", "--shape", "6,96")
    made("u.h5", "--operator", "silu_mul_quantise", "--recipe", "mxfp8.rceil/1", "--shape", "6,96")
    made("c.h5", "--operator", "combine", "--shape", "8,3,96", "--ranks", 4, "--accumulation", "node", "--ranks-per-node", 2)
    made("b.h5", "--operator", "dispatch", "--shape", "8,3,96", "--ranks", 4)
    made("g.h5", "--shape", "6,2,64,48", "--tokens", 5, "--layers", 2, "--generated")
    made("m.h5", "--shape", "6,2,64,32", "--tokens", 4, "--format", "mxfp4", "--layers", 2)
    made("a.h5", "--shape", "4,2,64,64", "--tokens", 3, "--activations", "nvfp4")
    made("f.h5", "--shape", "2,1,256,128", "--format", "fp8", "--activations", "fp8", "--tokens", 2)
    made("r.h5", "--shape", "16,4,96,32", "--tokens", 3, "--router", "transformers.deepseek-v3/1")
    made("e.h5", "--shape", "4,2,64,32", "--tokens", 2, "--data", "exact", "--routing", "uniform")
    run("import", CHECKPOINT, "t.h5", "--format", "nvfp4", "--capture", CAPTURE, "--tokens", 3)
    run("vectors", ".", "nvfp4.trtllm/1")
    for name in ("drift", "closeness"):
        run("study", name, "--shape", "6,2,64,48", "--tokens", 3, "-o", f"{name}.h5")
    run("power", fixture, "-o", "power.json")
    small("o.h5")
    with open("outputs.py", "w", encoding="utf-8") as stream:
        stream.write(block("kernels.md", "python"))
    subprocess.run([os.environ["PYTHON"], "outputs.py", "o.h5", "outputs.h5"], check=True)
    os.symlink(CHECKPOINT, "model")
    for name in ("faults", "mistakes", "quantisers", "ranks", "one_rank"):
        os.symlink(os.environ[name.upper()], f"{name}.so")
    Published("modelopt-nvfp4").write("published")
    Published("fp8-128x128").write("eight")
    with open("policy.json", "w", encoding="utf-8") as stream:
        stream.write('{"schema": "gaugeblock-gate/2", "name": "a", "checks": ["bound"]}')


if ALL:
    prepare_all()
    LINES += [
        "make made.h5 --shape 8,3,96,48 --tokens 3",
        "make made.h5 --shape 4,2,64,32 --generated --data ties",
        "make made.h5 --shape 16,2,64,32 --router transformers.deepseek-v3/1",
        "make made.h5 --operator silu_mul_quantise --recipe mxfp8.rceil/1 --shape 6,96",
        "info q.h5 --coverage", "info g.h5 --coverage",
        "verify s.h5 -o r.json -o r.xml -o r.md", "verify g.h5 -v", "verify q.h5 -o r.json", "verify u.h5 -o r.json",
        "verify c.h5 -o r.json",
        "verify a.h5 -v -o r.json",
        "verify f.h5 -o r.json",
        "verify r.h5 -o r.json --kernel cpu/route --kernel cpu/nvfp4-routed-layer",
        "verify e.h5 -o r.json --kernel cpu/nvfp4-layer --require-coverage all", "verify m.h5 s.h5 --expect 9",
        "verify o.h5 --outputs outputs.h5 -o r.json --limits limits.h5 --gate policy.json",
        "verify s.h5 --subject ./faults.so --kernel faults/zero-output --kernel faults/one-element* -o r.md",
        "verify s.h5 --subject ./faults.so --kernel faults/crash --kernel faults/nondeterministic",
        "verify m.h5 --subject ./mistakes.so --kernel mistakes/gate-up-swapped.mxfp4 -o r.json",
        "verify m.h5 --subject ./mistakes.so --kernel mistakes/gate-up-swapped.mxfp4 --no-diagnosis --minimise small.h5",
        "verify r.h5 --subject ./faults.so --kernel faults/route-* -o r.json",
        "verify q.h5 --subject ./quantisers.so --kernel *quantise-* -o r.json",
        "verify b.h5 --subject ./ranks.so --kernel dispatch-right --kernel dispatch-lost -o r.json",
        "verify c.h5 --subject ./ranks.so --kernel combine-right --kernel combine-lost --kernel combine-stale -o r.json",
        "verify b.h5 --subject ./one_rank.so --kernel dispatch-right --kernel dispatch-counts -o r.json",
        "verify c.h5 --subject ./one_rank.so --kernel combine-right -o r.json",
        "bench s.h5 --kernel cpu/nvfp4-layer --samples 1 --cache 65536 -o b.json --plot b.svg",
        "power s.h5 -o p.json", "power a.h5 -o p.md", "power q.h5", "power u.h5 -o p.md",
        "power d.h5", "power c.h5 -o p.json", "power s.h5 --gate policy.json",
        "study closeness --shape 6,2,64,48 --tokens 5 -o c2.h5", "study drift t.h5 --csv s.csv --paths nvfp4.fma32",
        "study sensitivity t.h5 --original model --csv e.csv --exclude e.json",
        "study sensitivity t.h5 --original model --remedy dynamic --csv e.csv",
        "report verify.json power.json drift.h5 closeness.h5 -o page.html",
        "import model imported.h5 --format nvfp4 --capture model/capture.safetensors --tokens 2",
        "import published imported.h5 --tokens 2", "import eight imported.h5 --tokens 2 --layers 0",
        "inspect published -o i.json", "inspect eight --original model",
        "vectors . nvfp4.trtllm/1 mxfp8.rceil/1", "identify e2m1-1x16-e4m3.txt nvfp4.trtllm-1.txt -o i.json",
        "list kernels --subject ./faults.so", "help verify"]


def tried(words, **fault):
    """What the command does where memory is short, and its record."""
    if os.path.exists("r.json"):
        os.remove("r.json")
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, errors="replace", timeout=300, env={
        **ENVIRONMENT, **fault})
    if not os.path.exists("r.json"):
        return done, ""
    with open("r.json", encoding="utf-8") as stream:
        return done, stream.read()


def results(done):
    """What is printed, but for times, the size of a page, which says when it was drawn, and how much of what an error
    looks like there is memory to say."""
    return f"exit {done.returncode}\n" + re.sub(r"\d+ bytes|(?m:(?<=\d) +[\d.]+ +[\d.]+ to .*$|^  diagnosis .*)", "", done.stdout)


def difference(right, done):
    return "\n".join(difflib.unified_diff(results(right).split("\n"), results(done).split("\n"), "with memory", "without", n=0,
                                          lineterm=""))


tried_before = set()
said_of = []  # each command for want of memory
for line in LINES:
    words = line.split()
    with open("places", "w", encoding="utf-8"):
        pass
    right, _ = tried(words, GAUGEBLOCK_FAULT_PLACES="places")
    with open("places", encoding="utf-8") as stream:
        found = {place for place in stream.read().splitlines() if place[-1] in CALLS}
    expect(found, f"{line}: {right}")
    new = sorted(found - tried_before)
    tried_before.update(new)
    refusals, reasons = 0, set()
    for place in new:
        done, record = tried(words, GAUGEBLOCK_FAULT_MEMORY=place)
        errors = done.stderr.splitlines()
        short = re.search("no memory|Cannot allocate memory|--minimise .*: not written", done.stdout + done.stderr + record)
        refused = done.returncode in (2, 3, right.returncode) and short and len(errors) <= 1
        expect(refused or results(done) == results(right), f"{line}, place {place}:\n{done.stderr}{difference(right, done)}")
        refusals += bool(refused)
        reasons.update(errors if refused else [])
    expect(ALL or refusals > len(new) // 2, f"{line}: {refusals} of {len(new)} places are refused memory")
    said_of.append(f"{line.split()[0]}:\n" + "".join(f"{reason}\n" for reason in sorted(reasons)))
program.said[:] = said_of
expect_kept()
