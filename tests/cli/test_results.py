# SPDX-License-Identifier: Apache-2.0
"""Layers generated here, computed by the CPU reference here: the outputs have the hashes that docs/results has of a GPU
of another machine. MODELS in the environment names other models than the trained one."""
import glob
import json
import os
import sys

from program import ALL, SOURCE, expect, path, record, run

sys.path.append(os.path.join(SOURCE, "tests"))
import records  # noqa: E402

results = glob.glob(os.path.join(SOURCE, "docs/results/*-h200-models.json"))
expect(len(results) == 1, f"docs/results has {len(results)} files of published shapes")
with open(results[0]) as stream:
    fixtures = {fixture: (there["commit"], of) for there in json.load(stream)
                for fixture, of in there["fixtures"].items()}
hashes = 0
for model in os.environ.get("MODELS", "tiny-qwen3-moe").split():
    names = [name for name in fixtures if name.startswith(f"{model}-")]
    expect(len(names) == 6, f"docs/results has {len(names)} fixtures of {model}, not 2 formats of 3 kinds")
    for name in names if ALL else names[::2]: # each format, each kind
        commit, there = fixtures[name]
        form, data, routing = name.removesuffix(".h5").removeprefix(f"{model}-").split("-")
        layer = path(f"{hashes}.h5")
        run("make", layer, "--model", model, "--format", form, "--data", data, "--routing", routing,
            "--tokens", there["tokens"], "--generated")
        judged = record(layer, "--kernel", f"cpu/{form}-layer", "--batch", ",".join(there["batches"]))
        here = records.hashes(judged)[os.path.basename(layer)]["batches"]
        expect(here.keys() == there["batches"].keys(), f"{name}: batches {list(here)} here")
        for batch, found in here.items():
            expect(found == there["batches"][batch], f"{name}, batch {batch}: {found} here, not the GPU's of {commit}")
            hashes += len(found)
        rows = [list(cells) for cells in records.layers(judged)]
        expect(len(rows) == 1 and rows[0][2:4] == [len(here), f"{len(here)} PASS"], f"{name}: summed up as {rows}")
expect(hashes > 0, "nothing was compared")
print(f"{hashes} hashes are the same")
