# SPDX-License-Identifier: Apache-2.0
"""All that commands print and write is what is kept. Usage: test_kept.py PART."""
import os
import shlex
import shutil
import subprocess
import sys

from kept import LIBRARIES, readable, same, steady
from program import CHECKPOINT, PROGRAM, folder

SMALL = "--shape 8,3,96,48 --tokens 9 --layers 2"
# One checkpoint, by two names.
MODEL, ACTIVATIONS, QUOTED = "model", "model/capture.safetensors", 'mo"del'


def verify(fixture, library, *names, more="-v -o r.json"):
    return f"verify {fixture} --subject ./{library}.so " + " ".join(f"--kernel '{name}'" for name in names) + f" {more}"


# Files of policies, and copies of tests/faults/hostile.c's library: each with a wrong table by its name, and one that
# computes wrongly in its fourth run alone.
WRITTEN = {f"{name}.json": f'{{"schema": "gaugeblock-gate/2", {keys}}}' for name, keys in {
    "bar": '"name": "a|b"', "preset": '"name": "llama.cpp-fp4"', "checks": '"name": "a", "checks": 3',
    "check": '"name": "a", "checks": ["all"]'}.items()}
WRONG = [f"hostile-field-{what}.so" for what in (
    "abi", "size", "none", "many", "twice", "nameless", "empty", "unprintable", "long", "order", "operator", "activations", "bits",
    "rounding", "routes", "supports", "run")] + ["hostile-null-table.so"]
FOURTH = "hostile-memory-fourth-alone.so"
# Of each part what is made first, unseen, and what is kept.
PARTS = {
    "make": ([], [line for options in (
        f"{SMALL} --data edge", f"{SMALL} --format mxfp8 --data ties --activations mxfp8 --routing holes",
        f"{SMALL} --format bf16 --data nonfinite --routing half --seed 4",
        "--shape 8,3,128,128 --format fp8 --data wide --activations fp8 --router gaugeblock.softmax/1",
        "--shape 8,2,96,96 --format mxfp4 --data sparse --routing boundary",
        f"{SMALL} --data exact --activations nvfp4 --routing loads", f"{SMALL} --data shared --generated --routing skewed",
        "--operator quantise --recipe nvfp4.trtllm/1 --shape 6,96 --data ties --input fp16",
        "--operator silu_mul_quantise --recipe mxfp8.rceil/1 --shape 6,96 --silu divide --activated bf16 --product bf16",
        "--operator dispatch --shape 8,3,96 --ranks 4 --empty-ranks 1 --placement random --recipe nvfp4.trtllm/1",
        "--operator combine --shape 8,3,96 --ranks 4 --ranks-per-node 2 --accumulation node --routing equal")
        for line in (f"make p.h5 {options}", "info p.h5 --coverage")] + [
        "make p.h5 --operator quantise --recipe nvfp4.trtllm/1 --shape 6,96 --global-scale 0.25", "info p.h5",
        "make p.h5 --model tiny-qwen3-moe --tokens 3 --routing skewed", "info p.h5",
        f"import {MODEL} t.h5 --format mxfp8 --activations mxfp8 --capture {ACTIVATIONS} --tokens 5", "info t.h5 --coverage",
        *(f"list {what}" for what in ("formats", "recipes", "conversions", "routers", "contracts", "models", "gates"))]),
    "verify": ([f"make s.h5 {SMALL}", f"make m.h5 {SMALL} --format mxfp8 --activations mxfp8 --routing holes",
                "make f.h5 --shape 4,2,128,128 --tokens 3 --format fp8 --activations fp8"], [
        "verify f.h5 --kernel cpu/fp8-fp8-layer --batch 1,3 -o r.json", "verify s.h5 --batch 1,9 -v -o r.json -o r.md -o r.xml",
        "verify s.h5 --kernel 'cpu/mxfp8*' --kernel cpu/none --kernel 'cpu/nvfp4-[dg]*' -v", "verify s.h5 --batch 10",
        "verify missing.h5 s.h5 other.h5 --expect 1 -o r.json",
        "verify m.h5 --kernel 'cpu/mxfp8-mxfp8-*' -v -o r.json",
        verify("s.h5", "faults", "faults/one-element*", more="--gate llama.cpp-fp4 -v -o r.json"),
        verify("s.h5", "faults", "faults/scaled-unordered", more="--require-coverage all -o r.json")]),
    "faults": (["make s.h5 --shape 8,3,96,48 --tokens 5"], [
        verify("s.h5", "faults", "faults/[nrs]*-unordered", "faults/*-declared", "faults/routed-w*", more="-v --no-diagnosis -o r.md"),
        verify("s.h5", "faults", "faults/none-*", "faults/zero-output", "faults/nan-output", "faults/crash",
               "faults/unwritten-*", "faults/writes-past-end", "faults/changes-*", "faults/nondeterministic", more="-v -o r.xml -o explained.json")]),
    "explain": (["make s.h5 --shape 6,2,64,48 --tokens 5"], [verify("s.h5", "mistakes", "mistakes/*.nvfp4", more="-o r.md -o explained.json")]),
    "explain_stages": (["make m.h5 --shape 6,2,64,32 --tokens 4 --format mxfp4", f"make s.h5 {SMALL}",
                        "make f.h5 --shape 2,1,384,128 --format fp8 --tokens 2"], [
        verify("m.h5", "mistakes", "mistakes/[sg]*.mxfp4.*", more="-o r.md -o explained.json"),
        verify("s.h5", "faults", "faults/last-block-of-x-dropped", "faults/scale-clamped", more="-o r.json"),
        verify("m.h5", "mistakes", "mistakes/gate-up-swapped.mxfp4", more="--minimise small.h5"), "info small.h5",
        verify("f.h5", "mistakes", "mistakes/slot-left-out.fp8", more="--no-diagnosis --minimise small.h5"), "info small.h5",
        verify("s.h5", "faults", "faults/nondeterministic", "faults/crash", more="--minimise none.h5")]),
    "power": ([f"make s.h5 {SMALL}", "make e.h5 --shape 8,3,128,128 --format mxfp8 --activations mxfp8 --tokens 5"], [
        "power s.h5 -o r.json", "power e.h5 -o r.md"]),
    "quantisers": ([
        "make q.h5 --operator quantise --recipe nvfp4.trtllm/1 --shape 6,96 --data ties",
        "make u.h5 --operator silu_mul_quantise --recipe mxfp8.rceil/1 --shape 6,96",
        "make d.h5 --operator dispatch --shape 8,3,96 --ranks 4 --recipe nvfp4.trtllm/1 --routing holes",
        "make c.h5 --operator combine --shape 8,3,96 --ranks 4 --accumulation sender"], [
        *(verify(fixture, "quantisers", "cpu/*", "*quantise-*", "open-*", more="-v -o r.md") for fixture in ("q.h5", "u.h5")),
        *(f"verify {fixture} -o r.json" for fixture in ("q.h5", "u.h5")),
        *(verify(fixture, "ranks", "cpu/*", "*-*", more="-v -o r.json") for fixture in ("d.h5", "c.h5")),
        *(f"power {fixture} -o {record}" for fixture, record in (
            ("q.h5", "r.md"), ("u.h5", "r.json"), ("d.h5", "r.json"), ("c.h5", "r.md")))]),
    "errors": ([f"make s.h5 {SMALL}", "make q.h5 --operator quantise --recipe nvfp4.trtllm/1 --shape 6,96 --data ties",
                "make d.h5 --operator dispatch --shape 8,3,96 --ranks 4",
                f"import {MODEL} t.h5 --format nvfp4 --capture {ACTIVATIONS} --tokens 2"], [
        *(f"verify s.h5 --gate {name}" for name in WRITTEN), "verify q.h5 --batch 7", "verify s.h5 --outputs s.h5 --order none/1",
        "verify s.h5 --outputs s.h5 --activations mxfp8", "verify s.h5 --outputs s.h5 --scales s.npy", "verify s.h5 --outputs q.h5",
        "verify s.h5 --limits l.h5", "verify q.h5 --outputs s.h5 --order fma32/1", "power s.h5 --gate check.json",
        verify("s.h5", "faults", "faults/zero-output", more="--no-diagnosis --minimise no/such/part.h5"),
        f"verify s.h5 --subject {FOURTH} --no-diagnosis --minimise part.h5",
        *("verify s.h5 --no-diagnosis " + " ".join(f"--subject {name}" for name in some) for some in (WRONG[:9], WRONG[9:])),
        "help list make", "list gates --timeout 9", "make x.h5 --operator dispatch --shape 8,3,96 --ranks 4 --data sparse", "make x.h5 --shape 8,3,96,48 --format int8",
        "make x.h5 --operator quantise --recipe nvfp4.trtllm/1 --shape 6,96 --data sparse", "study drift q.h5", "study sensitivity q.h5 --original model",
        "study drift s.h5 --paths nvfp4.fma32.fp32intermediate", "study drift s.h5 --paths fp8.fma32", "study drift s.h5 --paths bf16.none",
        "study drift s.h5 --paths bf16.fma32.other", "study drift s.h5 --paths other", "study drift s.h5 --head model",
        "study sensitivity s.h5 --original model", "study sensitivity t.h5 --original model --remedy none",
        "study sensitivity t.h5 --original model --remedy dynamic --activations mxfp8", "study sensitivity t.h5 --original model --remedy dynamic --exclude e.json",
        "import model x.h5 --format int8", "import model x.h5 --format nvfp4 --layers 2-1", "import model x.h5 --format nvfp4 --layers 7",
        "make x.h5 --operator quantise --recipe nvfp4.trtllm/1 --shape 6,96 --layout none", "bench d.h5 --subject ./one_rank.so",
        *(f"make x.h5 --shape 8,3,96,48 {more}" for more in ("--activations int3", "y.h5", "--batch 3")),
        *(f"make x.h5 --operator dispatch --ranks 4 {more}" for more in ("--shape 8,3,96 --accumulation none", "--shape 8,3", f"--shape 8,3,{96:060}")),
        *(f"make x.h5 --operator {more} --shape 6,96" for more in (
            "quantise --recipe none", "quantise --recipe bf16.rne/1", "quantise --recipe nvfp4.trtllm/1 --input fp32",
            "quantise --recipe nvfp4.trtllm/1 --global-scale 0", "quantise --recipe nvfp4.trtllm/1 --global-scale inf",
            "quantise --recipe nvfp4.trtllm/1 --global-scale 1x", "silu_mul_quantise --recipe mxfp8.rceil/1 --silu none",
            "silu_mul_quantise --recipe mxfp8.rceil/1 --product bf8")),
        *(f"import model x.h5 {more}" for more in (
            "--activations int3", "--seed x", "y.h5", "--activation-recipe nvfp4.trtllm/1", f"--format nvfp4 --capture {ACTIVATIONS} --tokens 65",
            f"--format nvfp4 --capture {ACTIVATIONS} --tokens 65537")),
        "info s.h5 q.h5", "list kernels recipes", "list recipes --subject faults.so", "list kernels --timeout 0", "list kernels --timeout 1048577",
        "list kernels" + 17 * " --subject faults.so", "power s.h5 --activations int3", "power s.h5 q.h5",
        "report -o page.html" + 65 * " s.h5", "study drift" + 33 * " --shape 8,2,64,48", "study drift s.h5" + 17 * " --kernel a", "study drift s.h5" + 17 * " --subject a",
        "study drift --shape 8,2,64,48" + 9 * " --format nvfp4",
        *(f"verify s.h5 {more}" for more in (
            "--operator dispatch", "--activations int3", 65 * " --kernel a", 17 * " --subject a", 65 * " --outputs a", 17 * " -o a.md",
            "--scales a --outputs b --outputs c", "--open-silu", "--accumulator-bits 7 --outputs a", "--accumulator-bits 54 --outputs a")),
        *(f"bench {more}" for more in ("", "s.h5 --routing half", "s.h5 --seed 2", "s.h5" + 33 * " --kernel a", "s.h5" + 17 * " --subject a", "s.h5 --batches 65537",
                                       "s.h5 --batches 0", "--model none", "--shape 8,2,64,48 --routing none", "--shape 8,2,64,48 --seed none", "missing.h5")),
        "bench q.h5", "bench s.h5 --batches 2 --cache 65536 --subject ./faults.so --kernel faults/nan-output", "report s.h5 -o page.html", "diff s.h5 q.h5", "identify s.h5 q.h5"]),
    "study": ([f"make s.h5 {SMALL}", "make g.h5 --shape 6,2,64,48 --tokens 5 --layers 4",
               f"import '{QUOTED}' t.h5 --format nvfp4 --capture {ACTIVATIONS} --tokens 12"], [
        "study drift t.h5 -o d.h5 --csv d.csv --table d.md", "study drift g.h5 --paths bf16.fma32,nvfp4.fma32 --table g.md",
        "study closeness --shape 8,3,96,64 --tokens 6 --seeds 2 --format mxfp8 -o c.h5 --csv c.csv --table c.md",
        f"study sensitivity t.h5 --original {MODEL} --csv e.csv --exclude e.json",
        f"study sensitivity t.h5 --original {MODEL} --remedy dynamic --csv f.csv",
        "study drift --shape 6,2,64,48 --tokens 3 --seeds 2 --layers 3 --outliers 8 --routing-skew 2 --csv h.csv --table h.md",
        "study drift --model tiny-qwen3-moe --tokens 2 --layers 2 --paths nvfp4.fma32 --csv m.csv",
        "verify s.h5 -o v.json", "power s.h5 -o p.json", "report d.h5 c.h5 v.json p.json -o page.html"]),
}


def said(line):
    """What a command says and writes."""
    before = {file: os.stat(file).st_mtime_ns for file in os.listdir()}
    done = subprocess.run([PROGRAM, *shlex.split(line)], capture_output=True, text=True)
    text = f"$ gaugeblock {line}\n{done.stdout}{done.stderr}exit {done.returncode}\n"
    for file in sorted(os.listdir()):
        if before.get(file) != os.stat(file).st_mtime_ns and file.endswith((".csv", ".html", ".json", ".md", ".xml")):
            text += f"--- {file}\n{readable(file)}\n"
    return steady(text)


part, = sys.argv[1:]
os.chdir(folder.name)
for name, library in LIBRARIES.items():
    os.symlink(library, f"{name}.so")
os.symlink(CHECKPOINT, MODEL)
os.symlink(CHECKPOINT, QUOTED)
for name, text in WRITTEN.items():
    with open(name, "w", encoding="utf-8") as stream:
        stream.write(text)
for name in (*WRONG, FOURTH):
    shutil.copy(LIBRARIES["hostile"], name)
before, lines = PARTS[part]
for line in before:
    said(line)
same(part, "\n".join(map(said, lines)))
