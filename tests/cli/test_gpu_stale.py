# SPDX-License-Identifier: Apache-2.0
"""Kernels on the GPU that remember what they were given before, or touch memory that is not theirs, each cuda/nvfp4-layer but
for that: a problem of the suite, judged with the default policy, catches every one.

    test_gpu_stale.py [RECORD.json]"""
import json
import os
import shutil
import subprocess
import sys

from program import PROGRAM, expect, path, run

LEAST_KERNELS = 40

devices = run("list", "devices").stdout
if "compute capability" not in devices:
    required = "GAUGEBLOCK_REQUIRE_GPU" in os.environ
    print("FAILED, a GPU is required" if required else "skipped: there is no GPU")
    sys.exit(1 if required else 77)

run("make", path("suite"), "--suite")
done = subprocess.run([PROGRAM, "verify", path("suite/edge.h5"), "--subject", os.environ["CUDA_STALE"],
                       "--kernel", "stale-cuda/*", "--no-diagnosis", "-o", path("record.json")], capture_output=True, text=True)
with open(path("record.json")) as stream:
    one = json.load(stream)
expect(done.returncode == one["exit_code"] and done.returncode in (1, 5, 6), f"exit {done.returncode}: {done.stderr}")
cases = {case["subject"]["name"].removeprefix("stale-cuda/"): case for case in one["cases"]}
expect(len(cases) > LEAST_KERNELS, f"{len(cases)} kernels")
expect(cases["none"]["verdict"] == "PASS", f"none: {cases['none']['reason']}")
for name, case in cases.items():
    print(f"{name}: {case['verdict']} {case['reason']}")
missed = [name for name, case in cases.items() if name != "none" and case["verdict"] not in ("FAIL", "CRASH", "NONDETERMINISTIC")]
expect(not missed, f"not caught: {missed}")
if len(sys.argv) > 1:
    shutil.copy(path("record.json"), sys.argv[1])
