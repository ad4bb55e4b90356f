# SPDX-License-Identifier: Apache-2.0
"""The script of docs/fixtures.md computes the hash that the program stores, as printed."""
import os
import subprocess

import h5py

from blocks import block
from program import CAPTURE, CHECKPOINT, expect, path, run, small

with open(path("hash.py"), "w") as stream:
    stream.write(block("fixtures.md", "python"))
run("import", CHECKPOINT, path("tiny.h5"), "--capture", CAPTURE, "--layers", "1", "--tokens", "3")
run("make", path("generated.h5"), "--shape", "8,2,64,32", "--generated", "--routing", "holes")
run("make", path("quantised.h5"), "--shape", "8,2,64,32", "--activations", "nvfp4", "--layers", "2")
for file in (small(), path("tiny.h5"), path("generated.h5"), path("quantised.h5")):
    done = subprocess.run([os.environ["PYTHON"], path("hash.py"), file], check=True, capture_output=True, text=True)
    with h5py.File(file) as f:
        expect(done.stdout.strip() == f.attrs["input_sha256"].decode(), f"{file}: {done.stdout}")
