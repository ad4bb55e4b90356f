# SPDX-License-Identifier: Apache-2.0
"""Paths that CUDA kernels compute give a study the same content hash as the reference, and so the same bits in every
figure: trained layers and generated ones.

    test_gpu_study.py [FILE.md]   also writes what was compared, as a table for docs/results/"""
import os
import sys

import h5py

from program import CAPTURE, CHECKPOINT, expect, path, run

if "compute capability" not in run("list", "devices").stdout:
    required = "GAUGEBLOCK_REQUIRE_GPU" in os.environ
    print("FAILED, a GPU is required" if required else "skipped: there is no GPU")
    sys.exit(1 if required else 77)


def content(file):
    with h5py.File(file) as f:
        return f.attrs["content_sha256"].decode(), f["cases/0"].attrs["kernels"].decode()


rows = []
for weights, count in (("nvfp4", 3), ("mxfp8", 2)):
    fixture = path(f"{weights}.h5")
    run("import", CHECKPOINT, fixture, "--format", weights, "--capture", CAPTURE)
    for name, inputs in (("tiny-qwen3-moe, 2 layers, 64 tokens", [fixture]),
                         ("32,4,512,256, 3 layers, 16 tokens", ["--shape", "32,4,512,256", "--layers", "3", "--tokens",
                                                                "16", "--format", weights])):
        run("study", "drift", *inputs, "-o", path("cpu.h5"))
        run("study", "drift", *inputs, "--kernel", "cuda/*", "-o", path("gpu.h5"))
        (cpu, none), (gpu, kernels) = content(path("cpu.h5")), content(path("gpu.h5"))
        expect(not none and len(kernels.split(", ")) == count, f"{name}: {kernels} computed paths")
        expect(cpu == gpu, f"{name}, {weights}: the GPU's study is {gpu}, the CPU's {cpu}; paths by {kernels}")
        rows.append(f"| {name} | {weights} | {kernels} | `{cpu[:16]}` | the same |\n")
if len(sys.argv) > 1:
    with open(sys.argv[1], "w") as stream:
        stream.write("| layers | weights | paths and their kernels | content hash, CPU | GPU |\n|---|---|---|---|---|\n")
        stream.writelines(rows)
