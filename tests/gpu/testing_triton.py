# SPDX-License-Identifier: Apache-2.0
"""gaugeblock.testing on CUDA tensors: a Triton kernel of a layer of Qwen3-Next's sizes with NVFP4 weights passes, each
mistake in it fails by its name, and what is outside the limits outside of them is.

    python3 testing_triton.py --date DATE --commit COMMIT     # JSON on stdout; the Python package, torch and Triton, a GPU

Truth is computed by the program on the CPU, in float64, of the experts that tokens have; the time that this takes stands
beside that of float64 truth in torch, on the GPU and on the CPU."""
import argparse
import json
import os
import sys
import time

import torch
import triton
import triton.language as tl

import gaugeblock
from gaugeblock.testing import assert_moe_close, limits

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../cli"))
from layer_mistakes import NAMED_IN_LARGE, is_named  # noqa: E402

TOKENS, EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 8, 512, 10, 2048, 512
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


@triton.jit
def e2m1(code):
    size = (code & 7).to(tl.float32)
    value = tl.where(size < 4, size * 0.5, tl.where(size < 6, size - 2, 2 * size - 8))
    return tl.where(code > 7, -value, value)


@triton.jit
def dot(x, codes, scales, row, BYTES: tl.constexpr):
    """Of x, [2 * BYTES] bf16, and a row of NVFP4."""
    byte = tl.arange(0, BYTES)
    code = tl.load(codes + row * BYTES + byte)
    scale = tl.load(scales + row * (BYTES // 8) + byte // 8).to(tl.float32)
    even, odd = tl.load(x + 2 * byte).to(tl.float32), tl.load(x + 2 * byte + 1).to(tl.float32)
    return tl.sum((e2m1(code & 15) * even + e2m1(code >> 4) * odd) * scale)


@triton.jit
def gate_up(x, codes, scales, globals_, ids, h, TOP_K: tl.constexpr, BYTES: tl.constexpr, INNER: tl.constexpr,
            SWAP: tl.constexpr, SLOPE: tl.constexpr, RELU: tl.constexpr):
    """A neuron of a slot: the intermediate, bf16 [tokens, top_k, intermediate]."""
    slot, neuron = tl.program_id(0), tl.program_id(1)
    expert = tl.load(ids + slot)
    row = x + slot // TOP_K * 2 * BYTES
    gate = dot(row, codes, scales, expert * 2 * INNER + neuron, BYTES) * tl.load(globals_ + expert * 2)
    up = dot(row, codes, scales, (expert * 2 + 1) * INNER + neuron, BYTES) * tl.load(globals_ + expert * 2 + 1)
    if SWAP:
        gate, up = up, gate
    opened = tl.maximum(gate, 0) if RELU else gate / (1 + tl.exp(-SLOPE * gate))
    tl.store(h + slot * INNER + neuron, (opened * up).to(tl.bfloat16))


@triton.jit
def down(h, codes, scales, globals_, ids, weights, y, TOP_K: tl.constexpr, BYTES: tl.constexpr, HIDDEN: tl.constexpr):
    """An element of a token's output, slot after slot: y, FP32 [tokens, hidden]."""
    token, column = tl.program_id(0), tl.program_id(1)
    total = 0.0
    for j in range(TOP_K):
        slot = token * TOP_K + j
        expert = tl.load(ids + slot)
        one = dot(h + slot * 2 * BYTES, codes, scales, expert * HIDDEN + column, BYTES) * tl.load(globals_ + expert)
        total += tl.load(weights + slot) * one
    tl.store(y + token * HIDDEN + column, total)


def problem():
    """Arguments of assert_moe_close on the GPU."""
    torch.manual_seed(7)
    shapes = (2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE)
    w13, w2 = ((torch.randint(0, 256, (EXPERTS, rows, columns // 2), dtype=torch.uint8, device="cuda"),
                (torch.rand(EXPERTS, rows, columns // 16, device="cuda") * 4 + 1).to(torch.float8_e4m3fn),
                torch.rand(EXPERTS, halves, device="cuda") * 0.004 + 0.001)
               for (rows, columns), halves in zip(shapes, (2, 1)))
    ids = torch.stack([torch.randperm(EXPERTS, device="cuda")[:TOP_K] for _ in range(TOKENS)])
    return {"x": torch.randn(TOKENS, HIDDEN, device="cuda").bfloat16(), "w13": w13, "w2": w2, "ids": ids,
            "weights": torch.softmax(torch.randn(TOKENS, TOP_K, device="cuda"), -1), "format": "nvfp4"}


def layer(x, w13, w2, ids, weights, bug=""):
    """By the kernels above, with one of the mistakes or none."""
    (codes13, scales13, globals13), (codes2, scales2, globals2) = w13, w2
    if bug == "nibbles":
        codes13 = codes13 >> 4 | codes13 << 4
    elif bug == "global scales":
        globals13 = globals13[:, :1].repeat(1, 2)
    if bug == "slot":
        weights = weights * (torch.arange(TOP_K, device="cuda") < TOP_K - 1)
    elif bug == "weights":
        weights = weights.roll(-1, 1)
    elif bug == "bf16 weights":
        weights = weights.bfloat16().float()
    elif bug == "tokens":
        x = x.roll(1, 0)
    elif bug == "experts":
        ids = (ids + 1) % EXPERTS
    elif bug == "block scales":
        scales2 = scales2.view(torch.uint8).roll(-1, 2).view(torch.float8_e4m3fn)
    h = torch.empty(TOKENS, TOP_K, INTERMEDIATE, dtype=torch.bfloat16, device="cuda")
    y = torch.empty(TOKENS, HIDDEN, device="cuda")
    gate_up[TOKENS * TOP_K, INTERMEDIATE](x, codes13, scales13, globals13, ids, h, TOP_K, HIDDEN // 2, INTERMEDIATE,
                                          bug == "gate and up", 1.702 if bug == "silu" else 1.0, bug == "relu")
    h = h.roll(1, 2) if bug == "column" else h
    down[TOKENS, HIDDEN](h, codes2, scales2, globals2, ids, weights.contiguous(), y, TOP_K, INTERMEDIATE // 2, HIDDEN)
    return y * 1.01 if bug == "output" else y


def truth(x, w13, w2, ids, weights):
    """The layer in torch, in float64, where the tensors are."""
    values = torch.tensor(E2M1, dtype=torch.float64, device=x.device)

    def dequantise(packed, expert):
        codes, scales, scale = (part[expert] for part in packed)
        made = torch.stack([values[codes.long() & 15], values[codes.long() >> 4]], -1).flatten(1)
        made = made * scales.double().repeat_interleave(16, 1)
        return made * scale.double().repeat_interleave(made.shape[0] // scale.numel())[:, None]

    y = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for expert in ids.unique().tolist():
        t, j = torch.nonzero(ids == expert, as_tuple=True)
        gate, up = (x[t].double() @ dequantise(w13, expert).T).chunk(2, 1)
        h = torch.nn.functional.silu(gate) * up
        y.index_add_(0, t, weights[t, j][:, None].double() * (h @ dequantise(w2, expert).T))
    return y


def seconds(function, *positional, **named):
    """What it returned, and the shorter time of two."""
    took = []
    for _ in range(2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        made = function(*positional, **named)
        torch.cuda.synchronize()
        took.append(time.perf_counter() - start)
    return made, min(took)


def expect(condition, message):
    if not condition:
        sys.exit(message)


parser = argparse.ArgumentParser()
parser.add_argument("--date", required=True)
parser.add_argument("--commit", required=True)
asked = parser.parse_args()
arguments = problem()
inputs = {name: value for name, value in arguments.items() if name != "format"}
on_host = {name: tuple(part.cpu() for part in value) if isinstance(value, tuple) else value.cpu()
           for name, value in inputs.items()}
y = layer(**inputs)
exact, on_gpu = seconds(truth, **inputs)
_, on_cpu = seconds(truth, **on_host)
report, asserted = seconds(assert_moe_close, y, **arguments)
assert_moe_close(y.bfloat16(), **arguments)
close, limited = seconds(limits, **arguments)
expect(close.truth.is_cuda and close.limit.is_cuda, "limits are not where x is")
torch.testing.assert_close(close.truth, exact, rtol=1e-12, atol=1e-12)
ratio = (y - close.truth).abs() / close.limit
expect(bool((ratio <= 1).all()), f"outside the limits, {ratio.max()}")
named, otherwise = {}, []
for mistake in NAMED_IN_LARGE:
    start = time.perf_counter()
    try:
        assert_moe_close(layer(**inputs, bug=mistake), **arguments)
        sys.exit(f"{mistake}: passes")
    except AssertionError as failure:
        lines = [line.strip() for line in str(failure).splitlines()]
        if not is_named(mistake, str(failure)):
            otherwise.append(f"{mistake}: {failure}")
        named[mistake] = next((line for line in lines if line.startswith("diagnosis")), lines[1])
    print(f"{mistake}: named after {time.perf_counter() - start:.1f} s", file=sys.stderr)
print(json.dumps({
    "schema": "gaugeblock.testing-triton/1", "command": " ".join(["testing_triton.py", *sys.argv[1:]]), "date": asked.date,
    "commit": asked.commit,
    "device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
    "gaugeblock": gaugeblock.native.version(), "verdict": report.verdict.name, "largest_ratio": float(ratio.max()),
    "seconds": {"assert_moe_close": asserted, "limits": limited, "truth in torch, GPU": on_gpu, "truth in torch, CPU": on_cpu},
    "mistakes": named}, indent=2))  # fmt: skip
expect(not otherwise, "not by its name:\n" + "\n".join(otherwise))
