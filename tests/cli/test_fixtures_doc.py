# SPDX-License-Identifier: Apache-2.0
"""The script of docs/fixtures.md computes the hash that the program stores, as printed; weights lie as its table says."""
import os
import re
import subprocess

import h5py

from blocks import block
from program import CAPTURE, CHECKPOINT, SOURCE, expect, path, run, small

with open(path("hash.py"), "w") as stream:
    stream.write(block("fixtures.md", "python"))
run("import", CHECKPOINT, path("tiny.h5"), "--capture", CAPTURE, "--layers", "1", "--tokens", "3")
run("make", path("generated.h5"), "--shape", "8,2,64,32", "--generated", "--routing", "holes")
run("make", path("quantised.h5"), "--shape", "8,2,64,32", "--activations", "nvfp4", "--layers", "2")
for file in (small(), path("tiny.h5"), path("generated.h5"), path("quantised.h5")):
    done = subprocess.run([os.environ["PYTHON"], path("hash.py"), file], check=True, capture_output=True, text=True)
    with h5py.File(file) as f:
        expect(done.stdout.strip() == f.attrs["input_sha256"].decode(), f"{file}: {done.stdout}")

with open(os.path.join(SOURCE, "docs/fixtures.md")) as stream:
    table = re.findall(r"^\|(?: (\w+))? \| `(codes|scales)` \|.*\| `([^`]*)` \| `([^`]*)` \|$", stream.read(), re.M)
weights = None
for name, array, form, layout in table:
    if name:
        weights = name
        run("make", path(f"{weights}.h5"), "--shape", "4,2,256,128", "--tokens", 2, "--format", weights)
    with h5py.File(path(f"{weights}.h5")) as f:
        for part, behind in (("gate_up", "; gate rows, then up rows"), ("down", "")):
            attributes = {key: value.decode() for key, value in f[f"layers/0/{part}/{array}"].attrs.items()}
            expect((attributes["format"], attributes["layout"]) == (form, layout + behind), f"{weights} {part} {array}: {attributes}")
expect(len(table) == 9, f"rows of the table: {table}")
