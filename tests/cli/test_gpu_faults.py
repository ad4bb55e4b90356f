# SPDX-License-Identifier: Apache-2.0
"""Kernels that misbehave on the GPU, all in one run: each gets its verdict, and the others still get theirs.

    test_gpu_faults.py [RECORD.json]"""
import os
import shutil
import sys

from program import CAPTURE, CHECKPOINT, expect, path, record, run

# By kernel: verdict, exit code, and what the reason says.
EXPECTED = {
    "none": ("PASS", 0, ""),
    "illegal-address": ("CRASH", 5, "cudaErrorIllegalAddress"),
    "hangs": ("CRASH", 5, "no result after 10 s"),
    "traps": ("CRASH", 5, "cuda"),
    "exits": ("CRASH", 5, "exit()"),
    "crashes": ("CRASH", 5, "signal 6"),
    "writes-past-end": ("FAIL", 1, "outside a buffer"),
    "changes-input": ("FAIL", 1, "changed an input"),
    "reads-unwritten": ("NONDETERMINISTIC", 6, "two runs"),
    "races": ("NONDETERMINISTIC", 6, "two runs"),
    "nan-output": ("FAIL", 1, ""),
    "zero-output": ("FAIL", 1, ""),
    "does-nothing": ("FAIL", 1, "never written"),
    "none-again": ("PASS", 0, ""),
}

devices = run("list", "devices").stdout
if "compute capability" not in devices:
    required = "GAUGEBLOCK_REQUIRE_GPU" in os.environ
    print("FAILED, a GPU is required" if required else "skipped: there is no GPU")
    sys.exit(1 if required else 77)

run("import", CHECKPOINT, path("tiny.h5"), "--capture", CAPTURE, "--layers", "0-1", "--tokens", "16")
one = record(path("tiny.h5"), "--subject", os.environ["CUDA_FAULTS"], "--kernel", "faults-cuda/*", "--timeout", "10",
             code=5)
verdicts = {case["subject"]["name"].removeprefix("faults-cuda/"): case for case in one["cases"]}
expect(verdicts.keys() == EXPECTED.keys(), str(verdicts.keys()))
for name, (verdict, code, text) in EXPECTED.items():
    case = verdicts[name]
    expect((case["verdict"], case["exit_code"]) == (verdict, code) and text in case["reason"],
           f"{name}: {case['verdict']}, {case['exit_code']}: {case['reason']}")
if len(sys.argv) > 1:
    shutil.copy(path("record.json"), sys.argv[1])
