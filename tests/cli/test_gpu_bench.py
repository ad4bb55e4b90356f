# SPDX-License-Identifier: Apache-2.0
"""bench on the GPU: every kernel of ours that takes the problem has a time, in a graph beside a graph of reads; a wrong
one has none.

    test_gpu_bench.py [RECORD.json]"""
import json
import os
import shutil
import sys

from program import expect, path, run

if "compute capability" not in run("list", "devices").stdout:
    required = "GAUGEBLOCK_REQUIRE_GPU" in os.environ
    print("FAILED, a GPU is required" if required else "skipped: there is no GPU")
    sys.exit(1 if required else 77)


def bench(*arguments, code=0):
    run("bench", "--shape", "64,8,1024,512", "--batches", "1,8", "--samples", "5", *arguments, "-o", path("bench.json"),
        code=code)
    with open(path("bench.json")) as stream:
        return json.load(stream)["cases"]


for hot in [], ["--hot"]:
    cases = bench("--kernel", "cuda/nvfp4-*", *hot)
    timed = [case for case in cases if "timing" in case]
    expect(len(timed) >= 6 and all(case["verdict"] == "PASS" for case in cases), f"{len(timed)} times")
    for case in timed:
        name, t = case["subject"]["name"], case["timing"]
        expect(t["graph_launches"] >= 1, f"{name}: no graph")
        expect(t["us"]["median"] > 0 and t["read_us"]["median"] > 0, f"{name}: {t}")
        slower = t["us"]["quartile_3"] >= t["read_us"]["quartile_1"]
        expect(hot or (t["beyond_cache"] and slower), f"{name} is faster than memory: {t}")
if len(sys.argv) > 1:
    shutil.copy(path("bench.json"), sys.argv[1])
cases = bench("--subject", os.environ["CUDA_FAULTS"], "--kernel", "*zero-output", code=1)
expect(cases and not any("timing" in case for case in cases), "a wrong kernel has a time")
