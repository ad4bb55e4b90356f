# SPDX-License-Identifier: Apache-2.0
"""Batches are prefixes of the same tokens: the bits of a token do not depend on the batch or on the threads."""
import os

import h5py

from kept import expect_kept
from program import expect, path, record, run, small

fixture = small()
one = record(fixture, "--kernel", "cpu/*", "--batch", "1,2,3,8,9")
expect(len(one["cases"]) == 55 and one["verdict"] == "PASS", "nine kernels, two of them with two cases, five batches")

names = set()
for threads in ("1", "2", "3"):
    os.environ["OMP_NUM_THREADS"] = threads
    names.add(record(fixture)["cases"][0]["metrics"]["layers"][1]["output_sha256"])
    small(f"threads{threads}.h5")
    with h5py.File(path(f"threads{threads}.h5")) as f:
        names.add(f.attrs["input_sha256"])
del os.environ["OMP_NUM_THREADS"]
expect(len(names) == 2, f"threads changed bits: {names}")

expect_kept()
