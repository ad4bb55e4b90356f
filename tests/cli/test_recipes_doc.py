# SPDX-License-Identifier: Apache-2.0
"""docs/ holds what the program prints of its recipes, and the published disagreements are in it."""
import os
import pty
import re
import subprocess
import tty

import numpy as np

from program import ALL, PROGRAM, SOURCE, expect, run


# Taken before revisions were noted.
WITHOUT = {"NVIDIA/TensorRT-LLM, cpp/tensorrt_llm/kernels/quantization.cuh, without fast math",
           "ggml-org/llama.cpp, ggml/src/ggml-quants.c",
           "ggml-org/llama.cpp, ggml/src/ggml-quants.c, ggml-impl.h ggml_fp32_to_ue4m3"}


def document(name):
    with open(os.path.join(SOURCE, "docs", name)) as stream:
        return stream.read()


def cell(lines, row, column):
    """Of two recipes' rows in one table, the cell above the diagonal."""
    rows = {line.split("`")[1]: [text.strip() for text in line.split("|")] for line in lines if "| `" in line}
    return int(rows[row][2 + int(rows[column][1])])


def section(text, title):
    return text.split(f"### {title}\n", 1)[1].split("\n### ", 1)[0].splitlines()


rows, differences = run("list", "recipes").stdout, document("recipe-differences.md")
expect(rows == document("recipe-rows.txt"), "docs/recipe-rows.txt: not what `gaugeblock list recipes` prints")


def printed(command, end):
    """What the command prints up to a line, before what takes seconds: to a terminal it writes line by line."""
    here, there = pty.openpty()
    tty.setraw(there)
    process, text = subprocess.Popen([PROGRAM, *command], stdout=there, stderr=there), ""
    os.close(there)
    with open(here, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            text += line
            if line.endswith(end):
                break
        process.kill()
        process.wait()
    return text


end = "- n mod 12 - i mod 5)\n" # counts of NVFP4: tests/harness/test_identify.c
expect(printed(("list", "differences"), end) == differences.partition(end)[0] + end,
       "docs/recipe-differences.md: not what `gaugeblock list differences` prints before the table of NVFP4")
expect(not ALL or differences == run("list", "differences").stdout,
       "docs/recipe-differences.md: not what `gaugeblock list differences` prints")

# What a rounded reciprocal changes of a division, of all normal bf16 numbers.
maxima = (np.arange(0x80, 0x7F80, dtype=np.uint32) << 16).view(np.float32)
for divisor in (448, 2688):
    count = int(np.sum(maxima / np.float32(divisor) != maxima * (np.float32(1) / np.float32(divisor))))
    expect(f"/ {divisor} differs for {count:,}" in document("recipes.md") or f"/ {divisor} for {count:,}" in
           document("recipes.md"), f"docs/recipes.md: / {divisor} differs for {count:,}")

# Every row says which revision of its source it was taken from.
for kind in ("recipes", "routers", "conversions"):
    for line in run("list", kind).stdout.splitlines():
        source = line.partition("source: ")[2]
        revision = re.search(r"\b[0-9a-f]{7,40}\b|\b\d+\.\d+(\.\d+)?\b|CUDA 1\d|OCP", source)
        expect(revision or not source or source.startswith(("ours;", "IEEE 754")) or source in WITHOUT,
               f"list {kind}: no revision in {source!r}")

# Counts that others published.
published = [
    ("MXFP4", "mxfp4.floor/1", "mxfp4.rceil/1", 15939),
    ("MXFP4", "mxfp4.floor/1", "mxfp4.even/1", 8096),
    ("MXFP4", "mxfp4.rceil/1", "mxfp4.even/1", 7843),
    ("MXFP4", "mxfp4.floor/1", "mxfp4.vllm/1", 8096),
    ("MXFP4", "mxfp4.rceil/1", "mxfp4.vllm/1", 7843),
    ("MXFP4", "mxfp4.rceil/1", "mxfp4.compressed-tensors/1", 7843),
    ("MXFP8", "mxfp8.rceil/1", "mxfp8.floor/1", 7657),
]
for title, one, other, count in published:
    found = cell(section(differences, title), one, other)
    expect(found == count, f"{one} against {other}: {found}, published {count}")
fp8 = section(differences, "FP8 with FP32 scales")
for words, count in (("RN(1/448)", 17468), ("1 / (a / 448)", 9963)):
    found = [int(line.split("|")[2]) for line in fp8 if words in line]
    expect(found == [count], f"{words}: {found}, published {count}")
