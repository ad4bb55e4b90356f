# SPDX-License-Identifier: Apache-2.0
"""CUDA layers that route by themselves have the reference's bits: trained layers and generated shapes, every kernel.

    test_gpu_routed.py [RECORD.json]"""
import os
import shutil
import sys

from program import CAPTURE, CHECKPOINT, expect, path, record, run

if "compute capability" not in run("list", "devices").stdout:
    required = "GAUGEBLOCK_REQUIRE_GPU" in os.environ
    print("FAILED, a GPU is required" if required else "skipped: there is no GPU")
    sys.exit(1 if required else 77)

fixtures = []
for weights in ("nvfp4", "mxfp8", "bf16"):
    quantised = [] if weights == "bf16" else ["--activations", weights]
    run("import", CHECKPOINT, path(f"tiny-{weights}.h5"), "--capture", CAPTURE, "--layers", "0-1", "--tokens", "16",
        "--format", weights, *quantised)
    run("make", path(f"made-{weights}.h5"), "--shape", "128,8,1024,256", "--tokens", "16", "--format", weights,
        "--generated", *quantised)
    fixtures += [(path(f"{kind}-{weights}.h5"), 2 if quantised else 1) for kind in ("tiny", "made")]
for fixture, kernels in fixtures:
    done = record(fixture, "--kernel", "cuda/*-routed-layer", "--batch", "1,3,16", "--expect", 6 * kernels)
    for case in done["cases"]:
        bits = case["checks"]["bits"]
        expect(bits["binding"] and bits["compared"] and not bits["mismatching"], f"{fixture}: {case['reason']}")
if len(sys.argv) > 1:
    done = record(*(fixture for fixture, _ in fixtures), "--kernel", "cuda/*-routed-layer", "--batch", "1,3,16")
    shutil.copy(path("record.json"), sys.argv[1])
