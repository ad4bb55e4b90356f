# SPDX-License-Identifier: Apache-2.0
"""fixtures/capture_engine.py on a stub of an engine that calls its layers as vLLM and SGLang do: what it captures is
what fixtures/capture.py captures of the same model, and can be imported and studied. Needs torch and transformers;
GAUGEBLOCK_TRANSFORMERS_PYTHON is a Python with them."""
import os
import subprocess
import sys

import numpy as np

from program import SOURCE, expect, path, run
from published import read

PYTHON = os.environ.get("GAUGEBLOCK_TRANSFORMERS_PYTHON", sys.executable)
SKIPPED = 77
TOKENS = 24  # of models.py

if subprocess.run([PYTHON, "-c", "import torch, transformers, safetensors"], capture_output=True).returncode:
    print("skipped: no torch, transformers and safetensors here; GAUGEBLOCK_TRANSFORMERS_PYTHON names a Python with "
          "them")
    sys.exit(SKIPPED)


def python(script, *arguments):
    done = subprocess.run([PYTHON, "-B", os.path.join(SOURCE, "tests/cli", script), *arguments], capture_output=True,
                          text=True)
    expect(done.returncode == 0, f"{script} {arguments}: {done.stdout}{done.stderr[-2000:]}")
    return done.stdout


def values(tensor):
    dtype, bits = tensor
    return (bits.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else bits


for name, kind in (("qwen3_moe", "vllm"), ("mixtral", "sglang")):
    python("models.py", path(""), name)
    wanted = read(path(name + ".safetensors"))
    output = path(f"{name}-{kind}.safetensors")
    layers = python("engine.py", path(name), output, str(TOKENS), kind)
    expect(layers.strip() == ("[[0, 2]]" if name == "qwen3_moe" else "[[0, 1, 2]]"), layers)
    found = read(output)
    expect(found and all(tensor[1].shape == (TOKENS, 128) for tensor in found.values()), f"{name}: {list(found)}")
    for key, tensor in found.items():
        off = np.abs(values(tensor) - values(wanted[key])).max() / np.abs(values(wanted[key])).max()
        # In float32 both compute the same; a last bit may move a rounding to bf16.
        expect(off < (2.0**-7 if key.endswith("bf16") else 1e-5), f"{name} {key}: {off} off")
    expect({key.split(".")[1] for key in found} == {"mlp_input_bf16", "residual_in_f64", "residual_mid_f64",
                                                    "residual_out_f64"}, f"{name}: {list(found)}")
    run("import", path(name), path("engine.h5"), "--format", "nvfp4", "--capture", output)
    text = run("study", "drift", path("engine.h5"), "--paths", "mxfp8.fma32").stdout
    expect(f"{TOKENS} tokens" in text and "the original weights" in text, text)
