# SPDX-License-Identifier: Apache-2.0
"""How long `gaugeblock verify` takes beside the same check as it is usually written: dequantise in PyTorch, multiply,
allclose. Both on the CPU, in turns.

    python torch_check.py GAUGEBLOCK FIXTURE.h5 [REPEATS]    # JSON on stdout; an nvfp4 fixture with its weights stored

The outputs under test are those of the reference, computed once. The PyTorch check reads the same file with h5py,
dequantises each touched expert to FP32, computes the layer with a bf16 intermediate and calls allclose on the output and
on the intermediate. gaugeblock's check adds float64 truth from both sets of weights, bounds, sums of errors and the record."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np
import torch

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def dequantise(group, expert, parts):
    """FP32 [rows, columns] of one expert's NVFP4 codes, E4M3 scales and global scales."""
    codes = torch.from_numpy(group["codes"][expert]).long()
    scales = torch.from_numpy(group["scales"][expert]).view(torch.float8_e4m3fn).float()
    weights = torch.stack([E2M1[codes & 15], E2M1[codes >> 4]], dim=-1).view(*scales.shape, 16)
    globals_ = torch.from_numpy(np.atleast_1d(group["global_scales"][expert])).float()
    return (weights * scales[..., None]).flatten(1) * globals_.repeat_interleave(scales.shape[0] // parts)[:, None]


def layer(group):
    """Output FP32 [tokens, hidden] and intermediate bf16 [tokens, top_k, intermediate]."""
    x = torch.from_numpy(group["x"][:]).view(torch.bfloat16).float()
    ids, weights = torch.from_numpy(group["routing/ids"][:]), torch.from_numpy(group["routing/weights"][:])
    y, intermediate = torch.zeros_like(x), None
    for expert in ids[ids >= 0].unique().tolist():
        t, j = torch.nonzero(ids == expert, as_tuple=True)
        gate, up = (x[t] @ dequantise(group["gate_up"], expert, 2).T).chunk(2, dim=1)
        h = (torch.nn.functional.silu(gate) * up).bfloat16()
        if intermediate is None:
            intermediate = torch.zeros(*ids.shape, h.shape[1], dtype=torch.bfloat16)
        intermediate[t, j] = h
        y.index_add_(0, t, weights[t, j][:, None] * (h.float() @ dequantise(group["down"], expert, 1).T))
    return y, intermediate


def torch_check(fixture, outputs):
    with h5py.File(fixture) as f, h5py.File(outputs) as o:
        y, intermediate = layer(f["layers/0"])
        theirs = torch.from_numpy(o["layers/0/intermediate"][:]).view(torch.bfloat16)
        return (torch.allclose(torch.from_numpy(o["layers/0/output"][:]), y, atol=1e-2, rtol=1e-2)
                and torch.allclose(theirs.float(), intermediate.float(), atol=1e-2, rtol=1e-2))  # fmt: skip


def seconds(check):
    start = time.perf_counter()
    if not check():
        sys.exit("torch_check: the check failed, so its time says nothing")
    return time.perf_counter() - start


if __name__ == "__main__":
    program, fixture = sys.argv[1:3]
    repeats = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    with tempfile.TemporaryDirectory() as folder, h5py.File(fixture) as f:
        outputs, record = os.path.join(folder, "outputs.h5"), os.path.join(folder, "record.json")
        y, intermediate = layer(f["layers/0"])
        with h5py.File(outputs, "w") as o:
            o["layers/0/output"] = y.numpy()
            o["layers/0/intermediate"] = intermediate.view(torch.uint16).numpy()
        command = [program, "verify", fixture, "--outputs", outputs, "-o", record]
        checks = {
            "gaugeblock": lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0,
            "torch": lambda: torch_check(fixture, outputs),
        }
        times = {name: [] for name in checks}
        for _ in range(repeats):
            for name, check in checks.items():
                times[name].append(round(seconds(check), 3))
        with open(record, encoding="utf-8") as stream:
            judged = json.load(stream)
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(json.dumps({
        "schema": "gaugeblock.torch-check/1", "command": "torch_check.py", "environment": judged["environment"],
        "torch": torch.__version__, "threads": torch.get_num_threads(), "fixture": judged["cases"][0]["fixture"],
        "checks": judged["cases"][0]["checks"], "seconds": times, "median_seconds": medians,
        "torch_over_gaugeblock": round(medians["torch"] / medians["gaugeblock"], 2),
    }, indent=1))  # fmt: skip
