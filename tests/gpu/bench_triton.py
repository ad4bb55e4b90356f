# SPDX-License-Identifier: Apache-2.0
"""Layers of this project beside a fused MoE layer in Triton with FP8 weights and activations, on the same routing.

    python3 bench_triton.py LIBRARY [SHAPE ...] --date DATE --commit COMMIT     # JSON on stdout; torch, Triton, a GPU

SHAPE is qwen3-next or qwen3-30b. The layer in Triton is five kernels, as serving systems have them: x is quantised
(E4M3, blocks of 1 x 128), gate_up and down multiply tiles of tensor cores by weights with scales of 128 x 128, between
them is SiLU, product and quantisation, and the last one sums over slots. Sorting tokens by expert is left out of its time.
For every batch and both products the fastest of 48 tilings counts.

Times are those of a CUDA graph of layers on other experts each, medians of 15 replays; weights are past the L2 cache. Every
timed output stands beside float64 truth of the same weights."""
import argparse
import concurrent.futures
import ctypes
import itertools
import json
import multiprocessing
import sys

import torch
import triton
import triton.language as tl

from gaugeblock import native

SHAPES = {"qwen3-next": (512, 10, 2048, 512), "qwen3-30b": (128, 8, 2048, 768)}
BATCHES = (1, 8, 32, 64)
BLOCK = 128
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
# BLOCK_M, BLOCK_N, warps, stages of a product
TILINGS = list(itertools.product((16, 32), (32, 64, 128), (4, 8), (2, 3, 4, 5)))


# In Triton ------------------------------------------------------------------------------------------------------------

@triton.jit
def quantise_rows(values, codes, scales, COLUMNS: tl.constexpr, GATED: tl.constexpr):
    """A block of a row: E4M3 codes and a scale, of the values or of silu(gate) * up."""
    row, block = tl.program_id(0), tl.program_id(1)
    column = block * 128 + tl.arange(0, 128)
    if GATED:
        gate = tl.load(values + row * 2 * COLUMNS + column).to(tl.float32)
        value = gate / (1 + tl.exp(-gate)) * tl.load(values + (row * 2 + 1) * COLUMNS + column).to(tl.float32)
    else:
        value = tl.load(values + row * COLUMNS + column).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value)), 1e-10) / 448
    tl.store(codes + row * COLUMNS + column, (value / scale).to(tl.float8e4nv))
    tl.store(scales + row * (COLUMNS // 128) + block, scale)


@triton.jit
def product(a, a_scales, b, b_scales, out, pairs, experts, routing, TOP_K: tl.constexpr, ROWS: tl.constexpr,
            COLUMNS: tl.constexpr, DOWN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """A tile: up to BLOCK_M pairs of one expert times BLOCK_N of its rows. pairs: [tiles, BLOCK_M], -1 where there is
    none; experts: [tiles], -1 for a tile without pairs."""
    n, m = tl.program_id(0), tl.program_id(1)
    expert = tl.load(experts + m).to(tl.int64)
    if expert < 0:
        return
    pair = tl.load(pairs + m * BLOCK_M + tl.arange(0, BLOCK_M))
    there = pair >= 0
    from_row = tl.where(there, pair if DOWN else pair // TOP_K, 0)
    row = n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, 128)
    a_at = a + from_row[:, None] * COLUMNS + k[None, :]
    b_at = b + expert * ROWS * COLUMNS + row[None, :] * COLUMNS + k[:, None]
    scale_at = b_scales + (expert * (ROWS // 128) + n * BLOCK_N // 128) * (COLUMNS // 128)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for block in range(COLUMNS // 128):
        part = tl.dot(tl.load(a_at + block * 128), tl.load(b_at + block * 128))
        scale = tl.load(a_scales + from_row * (COLUMNS // 128) + block) * tl.load(scale_at + block)
        total += part * scale[:, None]
    if DOWN:
        total *= tl.load(routing + tl.where(there, pair, 0))[:, None]
    tl.store(out + pair[:, None] * ROWS + row[None, :], total.to(tl.bfloat16), mask=there[:, None])


@triton.jit
def sum_slots(values, out, TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr):
    token, column = tl.program_id(0), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros((WIDTH,), tl.float32)
    for j in range(TOP_K):
        total += tl.load(values + (token * TOP_K + j) * HIDDEN + column).to(tl.float32)
    tl.store(out + token * HIDDEN + column, total)


def compile_product(shape, down, tiling):
    """Into Triton's cache, in a process of its own."""
    experts, top_k, hidden, intermediate = shape
    rows, columns = (hidden, intermediate) if down else (2 * intermediate, hidden)
    block_m, block_n, warps, stages = tiling
    types = (torch.float8_e4m3fn, torch.float32, torch.float8_e4m3fn, torch.float32, torch.bfloat16, torch.int32,
             torch.int32, torch.float32)
    try:
        product.warmup(*types, TOP_K=top_k, ROWS=rows, COLUMNS=columns, DOWN=down, BLOCK_M=block_m, BLOCK_N=block_n,
                       num_warps=warps, num_stages=stages, grid=(1, 1))
    except triton.runtime.errors.OutOfResources:
        pass


class Triton:
    """The layer on one routing. weights: (codes, scales) of gate_up and down."""

    def __init__(self, shape, weights, x, ids, routing):
        self.shape, self.weights, self.x, self.ids, self.routing = shape, weights, x, ids.int(), routing
        tokens, (_, top_k, hidden, inner) = len(x), shape
        pairs = tokens * top_k

        def empty(rows, columns, dtype):
            return torch.empty(rows, columns, dtype=dtype, device="cuda")

        fp8, bf16, fp32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
        self.x_codes, self.x_scales = empty(tokens, hidden, fp8), empty(tokens, hidden // BLOCK, fp32)
        self.h_codes, self.h_scales = empty(pairs, inner, fp8), empty(pairs, inner // BLOCK, fp32)
        self.halves, self.slots = empty(pairs, 2 * inner, bf16), empty(pairs, hidden, bf16)
        self.output = empty(tokens, hidden, bf16)
        self.sorted = {m: self.sort(m) for m in {tiling[0] for tiling in TILINGS}}

    def sort(self, block_m):
        """(pairs, experts) of tiles of one expert each."""
        flat, tiles = self.ids.flatten().tolist(), []
        for expert in sorted(set(flat)):
            mine = [p for p, e in enumerate(flat) if e == expert]
            tiles += [(expert, mine[i:i + block_m]) for i in range(0, len(mine), block_m)]
        padded = [some + [-1] * (block_m - len(some)) for _, some in tiles]
        return (torch.tensor(padded, dtype=torch.int32, device="cuda"),
                torch.tensor([expert for expert, _ in tiles], dtype=torch.int32, device="cuda"))

    def multiply(self, down, tiling):
        _, top_k, hidden, inner = self.shape
        rows, columns = (hidden, inner) if down else (2 * inner, hidden)
        block_m, block_n, warps, stages = tiling
        pairs, experts = self.sorted[block_m]
        a = (self.h_codes, self.h_scales) if down else (self.x_codes, self.x_scales)
        product[rows // block_n, len(experts)](
            *a, *self.weights[down], self.slots if down else self.halves, pairs, experts, self.routing, TOP_K=top_k,
            ROWS=rows, COLUMNS=columns, DOWN=down, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=warps, num_stages=stages)

    def run(self, tilings):
        tokens, (_, top_k, hidden, inner) = len(self.x), self.shape
        quantise_rows[tokens, hidden // BLOCK](self.x, self.x_codes, self.x_scales, hidden, False, num_warps=1)
        self.multiply(False, tilings[0])
        quantise_rows[tokens * top_k, inner // BLOCK](self.halves, self.h_codes, self.h_scales, inner, True, num_warps=1)
        self.multiply(True, tilings[1])
        sum_slots[tokens, hidden // 512](self.slots, self.output, top_k, hidden, 512, num_warps=4)


# Of this project ------------------------------------------------------------------------------------------------------

class Kernel:
    """A layer of LIBRARY, its weights prepared."""

    def __init__(self, library, name, shape, weights):
        self.ffi, self.lib = native.library()
        function = ctypes.cast(ctypes.CDLL(library).gb_kernels, ctypes.c_void_p).value
        table = self.ffi.cast("gb_kernels_function", function)()
        self.name, self.shape, self.weights = name, shape, weights
        self.kernel = next(table.kernels[i] for i in range(table.count)
                           if self.ffi.string(table.kernels[i].name).decode() == name)
        self.error = self.ffi.new("struct gb_error *")
        self.prepared = self.ffi.NULL
        if self.kernel.prepare:
            made = self.ffi.new("void **")
            native.check(self.kernel.prepare(self.arguments(1), made, self.error), self.error)
            self.prepared = made[0]

    def arguments(self, tokens):
        experts, top_k, hidden, inner = self.shape
        a = self.ffi.new("struct gb_arguments *")
        a.size = self.ffi.sizeof("struct gb_arguments")
        a.activation = self.lib.GB_SILU
        s = a.shape
        s.experts, s.top_k, s.hidden, s.intermediate, s.tokens = experts, top_k, hidden, inner, tokens
        for matrix, (codes, scales, globals_), rows, columns, halves in (
                (a.gate_up, self.weights[0], 2 * inner, hidden, 2), (a.down, self.weights[1], hidden, inner, 1)):
            matrix.format = self.lib.GB_MXFP8 if globals_ is None else self.lib.GB_NVFP4
            matrix.experts, matrix.rows, matrix.columns, matrix.halves = experts, rows, columns, halves
            matrix.codes, matrix.scales = self.pointer(codes), self.pointer(scales)
            matrix.global_scales = self.ffi.NULL if globals_ is None else self.pointer(globals_, "float *")
        return a

    def pointer(self, tensor, type_="void *"):
        return self.ffi.cast(type_, tensor.data_ptr())

    def on(self, x, ids, routing):
        """A call of run(), and the output it writes."""
        a, inner = self.arguments(len(x)), self.shape[3]
        problem = self.ffi.new("struct gb_problem *")
        problem.size, problem.shape, problem.weights = self.ffi.sizeof("struct gb_problem"), a.shape, a.gate_up.format
        kept = [x, ids.int().contiguous(), routing, torch.empty(ids.numel() * inner, dtype=torch.bfloat16, device="cuda"),
                torch.empty_like(x, dtype=torch.float32)]
        a.x, a.ids = self.pointer(kept[0], "gb_bf16 *"), self.pointer(kept[1], "int32_t *")
        a.routing_weights, a.intermediate = self.pointer(routing, "float *"), self.pointer(kept[3], "gb_bf16 *")
        a.output, a.prepared = self.pointer(kept[4]), self.prepared
        if self.kernel.workspace:
            kept.append(torch.empty(self.kernel.workspace(problem), dtype=torch.uint8, device="cuda"))
            a.workspace = self.pointer(kept[-1])

        def run():
            a.stream = self.ffi.cast("void *", torch.cuda.current_stream().cuda_stream)
            native.check(self.kernel.run(a, self.error), self.error)

        return run, kept[4], kept


# Weights and truth ----------------------------------------------------------------------------------------------------

def fp8_weights(experts, rows, columns):
    """E4M3 codes and FP32 scales of 128 x 128."""
    w = torch.randn(experts, rows // BLOCK, BLOCK, columns // BLOCK, BLOCK, device="cuda", dtype=torch.bfloat16)
    scales = w.abs().amax((2, 4)).float() * 0.02 / 448
    codes = (w * (0.02 / scales[:, :, None, :, None]).bfloat16()).to(torch.float8_e4m3fn)
    return codes.view(experts, rows, columns), scales


def mxfp8_weights(experts, rows, columns):
    w = torch.randn(experts, rows, columns // 32, 32, device="cuda", dtype=torch.bfloat16)
    exponents = torch.floor(torch.log2(w.abs().amax(3).float())) - 8
    codes = torch.ldexp(w, -exponents[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn).view(experts, rows, columns)
    return codes, (exponents + 127 - 6).to(torch.uint8), None  # numbers of 2^-6


def nvfp4_weights(experts, rows, columns, halves):
    codes = torch.randint(0, 256, (experts, rows, columns // 2), dtype=torch.uint8, device="cuda")
    scales = (torch.rand(experts, rows, columns // 16, device="cuda") * 4 + 1).to(torch.float8_e4m3fn)
    return codes, scales, torch.full((experts, halves), 0.002, device="cuda")


def dequantise(weights, expert):
    """An expert's [rows, columns] in float64."""
    codes, scales, globals_ = (part if part is None else part[expert] for part in (*weights, None)[:3])
    if globals_ is not None:
        values = torch.tensor(E2M1, dtype=torch.float64, device="cuda")
        w = torch.stack([values[codes.long() & 15], values[codes.long() >> 4]], -1).flatten(1)
        return w * scales.double().repeat_interleave(16, 1) * globals_.double().repeat_interleave(
            len(w) // len(globals_))[:, None]
    if scales.dtype == torch.uint8:
        return codes.double() * torch.exp2(scales.double() - 127).repeat_interleave(32, 1)
    return codes.double() * scales.double().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)


def truth(weights, x, ids, routing):
    y = torch.zeros(x.shape, dtype=torch.float64, device="cuda")
    for expert in ids.unique().tolist():
        t, j = torch.nonzero(ids == expert, as_tuple=True)
        gate, up = (x[t].double() @ dequantise(weights[0], expert).T).chunk(2, 1)
        h = torch.nn.functional.silu(gate) * up
        y.index_add_(0, t, routing[t, j][:, None].double() * (h @ dequantise(weights[1], expert).T))
    return y


def relative_error(output, exact):
    return float((output.double() - exact).norm() / exact.norm())


# Times ----------------------------------------------------------------------------------------------------------------

def median_us(calls):
    """Of one call, of 15 replays of a graph of all of them."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for call in calls:
            call()
    times = []
    for _ in range(18):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / len(calls))
    return sorted(times[3:])[7]


def fastest(layers, down):
    """The tiling of one of the products."""
    times = {}
    for tiling in TILINGS:
        try:
            times[tiling] = median_us([lambda one=one: one.multiply(down, tiling) for one in layers])
        except triton.runtime.errors.OutOfResources:
            continue
    return min(times, key=times.get)


def measure(library, shape):
    """A row for every batch."""
    experts, top_k, hidden, inner = shape
    matrices = (2 * inner, hidden), (hidden, inner)
    fp8 = [fp8_weights(experts, *matrix) for matrix in matrices]
    weights = {"mxfp8": [mxfp8_weights(experts, *matrix) for matrix in matrices],
               "nvfp4": [nvfp4_weights(experts, *matrix, halves) for matrix, halves in zip(matrices, (2, 1))]}
    kernels = [Kernel(library, f"cuda/{name}", shape, weights[name.split("-")[0]])
               for name in ("mxfp8-mma16-repacked-layer", "mxfp8-layer", "nvfp4-mma16-repacked-layer", "nvfp4-layer")]
    rows = []
    for batch in BATCHES:
        count = 24 if batch <= 2 else 12 if batch <= 8 else 6
        problems = [(torch.randn(batch, hidden, device="cuda").bfloat16(),
                     torch.stack([torch.randperm(experts, device="cuda")[:top_k] for _ in range(batch)]),
                     torch.softmax(torch.randn(batch, top_k, device="cuda"), -1)) for _ in range(count)]
        layers = [Triton(shape, fp8, *problem) for problem in problems]
        for one in layers:
            one.run(TILINGS[:1] * 2)
        tilings = [fastest(layers, down) for down in (False, True)]
        peer = median_us([lambda one=one: one.run(tilings) for one in layers])
        row = {"batch": batch, "triton": {"us": round(peer, 2), "tilings": tilings, "relative_error": relative_error(
            layers[0].output, truth(fp8, *problems[0]))}}
        for kernel in kernels:
            calls = [kernel.on(*problem) for problem in problems]
            us = median_us([run for run, _, _ in calls])
            row[kernel.name] = {"us": round(us, 2), "times_triton": round(peer / us, 3), "relative_error": relative_error(
                calls[0][1], truth(kernel.weights, *problems[0]))}
        print(json.dumps(row), file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("shapes", nargs="*", default=["qwen3-next"])
    parser.add_argument("--date", required=True)
    parser.add_argument("--commit", required=True)
    asked = parser.parse_args()
    torch.manual_seed(7)
    with concurrent.futures.ProcessPoolExecutor(
            max_workers=12, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_product, *zip(*itertools.product((SHAPES[name] for name in asked.shapes), (False, True),
                                                               TILINGS)), chunksize=4))
    print(json.dumps({
        "schema": "gaugeblock.bench-triton/1", "command": " ".join(["bench_triton.py", *asked.shapes]), "date": asked.date,
        "commit": asked.commit, "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "triton": triton.__version__, "times": "of a layer, microseconds; times_triton above 1: faster than Triton",
        "shapes": {name: measure(asked.library, SHAPES[name]) for name in asked.shapes}}, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
