# SPDX-License-Identifier: Apache-2.0
"""Import, capture and verify, for a small random checkpoint of every family that transformers writes. The table of
docs/importing.md is what this measures:

    GAUGEBLOCK_TRANSFORMERS_PYTHON=python3 test_models.py --write

writes it. GAUGEBLOCK_TRANSFORMERS_PYTHON is a Python with torch, transformers, safetensors and accelerate (of which transformers'
MXFP4 has need); by default the one that runs this test."""
import json
import os
import subprocess
import sys

import h5py
import numpy as np

from program import PROGRAM, SANITISED, SOURCE, expect, path, run
from published import read

PYTHON = os.environ.get("GAUGEBLOCK_TRANSFORMERS_PYTHON", sys.executable)
SKIPPED = 77
DOCUMENT = os.path.join(SOURCE, "docs/importing.md")
BEGIN, END = "<!-- tests/cli/test_models.py writes this table -->\n", "<!-- end of the table -->\n"
HEAD = ("| checkpoint | import: router | left out | capture | verify |\n|---|---|---|---|---|\n")
# The routers that transformers has in float32 are at most so far from float64; the rest is in float64.
LIMIT = 1e-6

if subprocess.run([PYTHON, "-c", "import torch, transformers, safetensors, accelerate"], capture_output=True).returncode:
    print("skipped: no torch, transformers, safetensors and accelerate here; GAUGEBLOCK_TRANSFORMERS_PYTHON names a Python "
          "with them")
    sys.exit(SKIPPED)


def write_outputs(fixture, capture, file):
    """What the model's own code computed, as the outputs of a subject."""
    with h5py.File(fixture) as f, h5py.File(file, "w") as out:
        for n in range(f.attrs["layers"]):
            index = f[f"layers/{n}"].attrs["index"]
            out[f"layers/{n}/output"] = capture[f"layer{index}.output_f64"][1]
            out[f"layers/{n}/routing/ids"] = capture[f"layer{index}.router_ids_i64"][1].astype(np.int32)
            out[f"layers/{n}/routing/weights"] = capture[f"layer{index}.router_weights_f64"][1].astype(np.float32)


def near(name, fixture, capture):
    """Truth of the values is what the model's code computed, in ids, weights and outputs."""
    with h5py.File(fixture) as f:
        for n in range(f.attrs["layers"]):
            layer = f[f"layers/{n}"]
            ids, weights, output = (capture[f"layer{layer.attrs['index']}.{kind}"][1]
                                    for kind in ("router_ids_i64", "router_weights_f64", "output_f64"))
            own, theirs = np.argsort(layer["routing/ids"][()], axis=1), np.argsort(ids, axis=1)
            expect((np.take_along_axis(layer["routing/ids"][()], own, 1)
                    == np.take_along_axis(ids, theirs, 1)).all(), f"{name}: ids of layer {n}")
            off = np.abs(np.take_along_axis(layer["truth/routing_weights"][()], own, 1)
                         - np.take_along_axis(weights, theirs, 1)).max() / np.abs(weights).max()
            expect(off < LIMIT, f"{name}: routing weights of layer {n} are {off} off")
            truth = layer["truth/original"][()]
            off = np.linalg.norm(truth - output) / np.linalg.norm(output)
            # Llama-4's input times its weight is rounded to bf16: a last bit of the weight may move one.
            expect(off < (2e-4 if f.attrs.get("weighed_input", 0) else LIMIT),
                   f"{name}: the output of layer {n} is {off} off")


def stream(name, fixture, capture):
    """The stack's truth is the model's stream: where both have it, before the last layer's attention and after it."""
    with h5py.File(fixture) as f:
        if "stack" not in f:
            return "without stream"
        layers, own = f.attrs["layers"], f["stack/truth/original"][()]
        for n in range(layers):
            index = f[f"layers/{n}"].attrs["index"]
            wanted = capture[f"layer{index}.residual_out_f64"][1]
            if f"layer{index}.shared_output_f64" in capture:
                wanted = wanted - capture[f"layer{index}.shared_output_f64"][1]
            off = np.linalg.norm(own[n] - wanted) / np.linalg.norm(wanted)
            expect(off < 100 * LIMIT, f"{name}: the stream after layer {n} is {off} off")  # float32's
    return "with stream"


def measure(name, wrong):
    """A row of the table."""
    folder, captured, fixture = path(name), path(name + ".safetensors"), path("model.h5")
    if wrong is not None:
        return f"| {name} | {wrong} | | | |"
    common = ["import", folder, fixture, "--capture", captured]
    done = subprocess.run([PROGRAM, *common, "--format", "bf16"] if "mxfp4" not in name else [PROGRAM, *common],
                          capture_output=True, text=True)
    if done.returncode == 2:
        expect(len(done.stderr.splitlines()) == 1 and "cannot be imported: " in done.stderr, f"{name}: {done.stderr}")
        return f"| {name} | no: {done.stderr.rsplit('cannot be imported: ', 1)[1].strip()} | | | |"
    expect(done.returncode == 0 and "the same experts for every token" in done.stdout,
           f"{name}: {done.stdout}{done.stderr}")
    left_out = [line.split(": ", 1)[1].split(" of layers")[0].split(" (")[0] for line in done.stdout.splitlines()
                if line.startswith("left out")]
    left_out = ["layers without experts" if words.startswith("layers") else words for words in left_out]
    capture = read(captured)
    near(name, fixture, capture)
    with_stream = stream(name, fixture, capture)
    run("verify", fixture)
    write_outputs(fixture, capture, path("outputs.h5"))
    run("verify", fixture, "--outputs", path("outputs.h5"))
    with h5py.File(fixture) as f:
        router = f.attrs["router"].decode()
    return f"| {name} | `{router}` | {', '.join(left_out)} | {with_stream} | PASS |"


def command(*arguments):
    """fixtures/capture.py on its own; its output, and whether it says more than a line on failure."""
    done = subprocess.run([PYTHON, "-B", os.path.join(SOURCE, "fixtures/capture.py"), *arguments], capture_output=True,
                          text=True)
    expect("Traceback" not in done.stderr, f"{arguments}: {done.stderr}")
    expect(done.returncode == 0 or len(done.stderr.splitlines()) == 1, f"{arguments}: {done.stderr}")
    return done


def capture_by_command(name):
    """A text for a model without a tokenizer, in the checkpoint's own arithmetic; a folder that holds no model."""
    with open(path("text.txt"), "w") as stream_:
        stream_.write("Some text of which no tokenizer makes tokens.")
    done = command(path(name), path("text.txt"), path("text.safetensors"), "--tokens", "16", "--layers", "1-2")
    expect("no tokenizer" in done.stdout and "16 random token ids" in done.stdout, done.stdout + done.stderr)
    run("import", path(name), path("text.h5"), "--layers", "1-2", "--capture", path("text.safetensors"))
    for arguments, words in (((path(""), path("x.safetensors")), "cannot load"),
                             ((path(name), path("nothing.txt"), path("x.safetensors")), "No such file")):
        done = command(*arguments)
        expect(done.returncode == 1 and words in done.stderr, f"{arguments}: {done.stderr}")


def main():
    names = [name for name in sys.argv[1:] if name != "--write"]
    made = subprocess.run([PYTHON, "-B", os.path.join(SOURCE, "tests/cli/models.py"), path(""), *names],
                          capture_output=True, text=True)
    rows = [measure(*json.loads(line)) for line in made.stdout.splitlines() if line.startswith("[")]
    expect(made.returncode == 0 and rows, made.stderr[-2000:])
    if not names:
        capture_by_command("gpt_oss")
    with open(DOCUMENT) as stream_:
        document = stream_.read()
    before, rest = document.split(BEGIN)
    table, after = rest.split(END)
    if "--write" in sys.argv:
        with open(DOCUMENT, "w") as stream_:
            stream_.write(before + BEGIN + HEAD + "\n".join(rows) + "\n" + END + after)
        return
    written = {row.split(" | ")[0]: row for row in table.splitlines()}
    for row in rows:
        if "does not write it" not in row:  # a version of transformers without this family
            first = row.split(" | ")[0]
            expect(written.get(first) == row, f"docs/importing.md has\n{written.get(first)}\nbut measured was\n{row}")
    expect(names or len(written) == len(rows) + 2, "docs/importing.md has rows of other models, or fewer")


if SANITISED:
    sys.argv += ["qwen3_moe", "deepseek_v3", "gpt_oss, mxfp4", "granitemoe"]
main()
