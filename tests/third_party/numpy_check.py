# SPDX-License-Identifier: Apache-2.0
"""How much processor time `gaugeblock verify` of a generated layer takes beside one check in NumPy, in turns.

    python numpy_check.py GAUGEBLOCK [REPEATS]    # JSON on stdout

The layer is Qwen3-Next's in NVFP4, 32 tokens. `verify` draws and quantises its weights, runs the reference's kernel in a
process of its own twelve times, and computes truth from both sets of weights, bounds and covariances. The check in NumPy
has the weights in a file: it reads the experts that are used, dequantises them to float64, computes the layer and
compares it with truth. It has one thread, since OpenBLAS's threads take processor time while they wait."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

SHAPE = ["--model", "qwen3-next-80b-a3b", "--format", "nvfp4", "--tokens", "32"]


def check(path):
    """Whether the layer of the fixture, computed in float64, is its truth."""
    import h5py
    import numpy as np

    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = np.concatenate([magnitudes, -magnitudes])
    codes = np.arange(256)
    pairs = np.stack([numbers[codes & 15], numbers[codes >> 4]], -1)
    exponents, mantissas = codes >> 3 & 15, codes & 7
    scales = np.where(exponents == 0, mantissas * 2.0**-9, (8 + mantissas) * 2.0 ** (exponents - 10.0))

    def dequantised(group, expert):
        """float64 [rows, columns] of one expert."""
        of = scales[group["scales"][expert]]
        factors = np.repeat(group["global_scales"][expert].astype(np.float64), of.shape[0] // group["global_scales"].shape[1])
        blocks = pairs[group["codes"][expert]].reshape(*of.shape, 16)
        return (blocks * (of * factors[:, None])[..., None]).reshape(of.shape[0], -1)

    with h5py.File(path) as f:
        layer = f["layers/0"]
        x = (layer["x"][:].astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        ids, routing = layer["routing/ids"][:], layer["routing/weights"][:].astype(np.float64)
        y = np.zeros_like(x)
        for expert in np.unique(ids[ids >= 0]):
            tokens, slots = np.nonzero(ids == expert)
            gate, up = np.split(x[tokens] @ dequantised(layer["gate_up"], expert).T, 2, axis=1)
            dots = gate / (1 + np.exp(-gate)) * up @ dequantised(layer["down"], expert).T
            y[tokens] += dots * routing[tokens, slots][:, None]
        return np.allclose(y, layer["truth/quantised"][:], rtol=0, atol=1e-6 * np.abs(y).max())


def seconds(command):
    """Processor time of a command's processes, and its time."""
    before, start = os.times(), time.perf_counter()
    if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
        sys.exit(f"numpy_check: {command} failed, so its time says nothing")
    after = os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return {"processor": round(processor, 2), "elapsed": round(time.perf_counter() - start, 2)}


def main(program, repeats):
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        generated, stored, record = (os.path.join(folder, name) for name in ("generated.h5", "stored.h5", "record.json"))
        for path, more in ((generated, ["--generated"]), (stored, [])):
            subprocess.run([program, "make", path, *SHAPE, *more], stdout=subprocess.DEVNULL, check=True)
        commands = {
            "verify": [program, "verify", generated, "--kernel", "cpu/nvfp4-layer", "-o", record],
            "numpy": [sys.executable, __file__, "--check", stored],
        }
        times = {name: [] for name in commands}
        for _ in range(repeats):
            for name, command in commands.items():
                times[name].append(seconds(command))
        with open(record, encoding="utf-8") as stream:
            environment = json.load(stream)["environment"]
    medians = {
        name: {kind: statistics.median(one[kind] for one in of) for kind in of[0]} for name, of in times.items()
    }
    json.dump({"schema": "gaugeblock.numpy-check/1", "command": f"numpy_check.py GAUGEBLOCK {repeats}",
               "environment": environment, "seconds": times, "median_seconds": medians,
               "verify_over_numpy": {kind: round(medians["verify"][kind] / medians["numpy"][kind], 2)
                                     for kind in medians["verify"]}}, sys.stdout, indent=1)  # fmt: skip
    print()


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        sys.exit(0 if check(sys.argv[2]) else "numpy_check: the layer is not its truth")
    main(os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5)
