# SPDX-License-Identifier: Apache-2.0
"""A fused mixture-of-experts layer in Triton, FP8 weights and activations, as is usual on a Hopper GPU, tuned on the
device, and beside it the times of the repacked kernels of mma16-sm90/1 on the same routing.

    python3 bench_triton.py BENCH_MMA16 LIBRARY --date DATE --commit COMMIT [--batches 1 8 32 64]

JSON on stdout.

Five launches in a CUDA graph: quantise, GEMM of gate and up, silu * up and quantise, GEMM of down, sum over the slots.
Left out in its favour: the router, and which tokens an expert has. Weights are E4M3 with an FP32 scale for 128 x 128,
activations E4M3 with one for 128. Every layer of the graph has other experts, as in bench_mma16, so that weights come
from beyond the L2; medians of 15. The tile of each GEMM is the fastest of those below for every batch."""
import argparse
import itertools
import json
import multiprocessing
import statistics
import sys

import torch
import triton
import triton.language as tl

import beside

EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 512, 10, 2048, 512  # Qwen3-Next
ROWS = 16  # tokens of a tile: few experts have more, and the instruction has no fewer
# Relative error, in the mean square: E4M3 is off by up to 2^-4 of a number, evenly spread by 2^-4 / sqrt(3), and three such
# errors come in, by gate, by up and by the intermediate.
MOST_ERROR = 2**-4
TILES = [(columns, warps, stages) for columns, (warps, stages) in itertools.product(
    (32, 64, 128), ((2, 4), (4, 3), (4, 4), (4, 5), (8, 3), (8, 4)))]  # fmt: skip


@triton.jit
def quantised(values, codes, scales):
    scale = tl.maximum(tl.max(tl.abs(values)), 1e-10) / 448
    tl.store(codes, (values / scale).to(tl.float8e4nv))
    tl.store(scales, scale)


@triton.jit
def quantise(x, codes, scales, COLUMNS: tl.constexpr):
    """x, bf16 [tokens, COLUMNS]: 128 columns of a token."""
    at = tl.program_id(0) * COLUMNS + tl.program_id(1) * 128 + tl.arange(0, 128)
    scale_at = scales + tl.program_id(0) * (COLUMNS // 128) + tl.program_id(1)
    quantised(tl.load(x + at).to(tl.float32), codes + at, scale_at)


@triton.jit
def silu_mul_quantise(gate_up, codes, scales, COLUMNS: tl.constexpr):
    """gate_up, bf16 [pairs, 2 * COLUMNS]: 128 columns of a pair."""
    pair, column = tl.program_id(0), tl.program_id(1) * 128 + tl.arange(0, 128)
    gate = tl.load(gate_up + pair * 2 * COLUMNS + column).to(tl.float32)
    up = tl.load(gate_up + pair * 2 * COLUMNS + COLUMNS + column).to(tl.float32)
    quantised(gate / (1 + tl.exp(-gate)) * up, codes + pair * COLUMNS + column,
              scales + pair * (COLUMNS // 128) + tl.program_id(1))


@triton.jit(do_not_specialize=["pairs"])
def gemm(x, x_scales, weights, scales, routing, pair_of, expert_of, out, pairs, N: tl.constexpr, K: tl.constexpr,
         SHARE: tl.constexpr, ROUTED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """ROWS pairs of an expert times COLUMNS rows of its weights [experts, N, K]: out, bf16 [pairs, N]."""
    block, first = tl.program_id(0) // (N // COLUMNS), tl.program_id(0) % (N // COLUMNS) * COLUMNS
    expert = tl.load(expert_of + block).to(tl.int64)
    pair = tl.load(pair_of + block * ROWS + tl.arange(0, ROWS))
    there, row, k, n = pair < pairs, pair // SHARE, tl.arange(0, 128), first + tl.arange(0, COLUMNS)
    x_at = x + row[:, None] * K + k[None, :]
    weight_at = weights + expert * N * K + n[None, :] * K + k[:, None]
    scale_at = scales + (expert * (N // 128) + first // 128) * (K // 128)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(K // 128):
        a = tl.load(x_at + step * 128, mask=there[:, None], other=0.0)
        b = tl.load(weight_at + step * 128)
        a_scale = tl.load(x_scales + row * (K // 128) + step, mask=there, other=0.0)
        total += tl.dot(a, b) * (a_scale * tl.load(scale_at + step))[:, None]
    if ROUTED:
        total *= tl.load(routing + pair, mask=there, other=0.0)[:, None]
    tl.store(out + pair[:, None] * N + n[None, :], total.to(tl.bfloat16), mask=there[:, None])


@triton.jit
def add_slots(slots, out, COLUMNS: tl.constexpr, TOP_K: tl.constexpr):
    """slots, bf16 [tokens, TOP_K, COLUMNS]: 512 columns of a token."""
    column = tl.program_id(1) * 512 + tl.arange(0, 512)
    total = tl.zeros((512,), tl.float32)
    for j in range(TOP_K):
        total += tl.load(slots + (tl.program_id(0) * TOP_K + j) * COLUMNS + column).to(tl.float32)
    tl.store(out + tl.program_id(0) * COLUMNS + column, total.to(tl.bfloat16))


GEMMS = {"gate_up": {"N": 2 * INTERMEDIATE, "K": HIDDEN, "SHARE": TOP_K, "ROUTED": False},
         "down": {"N": HIDDEN, "K": INTERMEDIATE, "SHARE": 1, "ROUTED": True}}  # fmt: skip


def compile_tile(case):
    name, (columns, warps, stages) = case
    f8, f32, i32 = torch.float8_e4m3fn, torch.float32, torch.int32
    gemm.warmup(f8, f32, f8, f32, f32, i32, i32, torch.bfloat16, 1, **GEMMS[name], ROWS=ROWS, COLUMNS=columns,
                num_warps=warps, num_stages=stages, grid=(1,))


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def route(tokens, seed):
    """The ids that bench_mma16 has for a layer of this seed."""
    ids = []
    for token in range(tokens):
        chosen, r = [], seed + token * 1000003
        while len(chosen) < TOP_K:
            if (expert := mix(r) % EXPERTS) not in chosen:
                chosen.append(expert)
            r = mix(r)
        ids.append(chosen)
    return ids


def matrix(rows, columns):
    codes = torch.empty(EXPERTS, rows, columns, dtype=torch.float8_e4m3fn, device="cuda")
    for expert in range(0, EXPERTS, 32):
        codes[expert : expert + 32] = torch.randn(32, rows, columns, device="cuda").to(torch.float8_e4m3fn)
    return codes, (torch.rand(EXPERTS, rows // 128, columns // 128, device="cuda") + 0.5) * columns**-0.5


class Layer:
    def __init__(self, tokens, seed, matrices):
        self.matrices, self.tokens, self.pairs = matrices, tokens, tokens * TOP_K
        self.ids = route(tokens, seed)
        of = {}
        for pair, expert in enumerate(itertools.chain.from_iterable(self.ids)):
            of.setdefault(expert, []).append(pair)
        pair_of, expert_of = [], []
        for expert, pairs in of.items():
            for at in range(0, len(pairs), ROWS):
                some = pairs[at : at + ROWS]
                pair_of += some + [self.pairs] * (ROWS - len(some))
                expert_of.append(expert)
        on = {"device": "cuda"}
        self.pair_of = torch.tensor(pair_of, dtype=torch.int32, **on)
        self.expert_of = torch.tensor(expert_of, dtype=torch.int32, **on)
        self.x = torch.randn(tokens, HIDDEN, **on).bfloat16()
        self.routing = torch.rand(tokens, TOP_K, **on)
        f8, bf16 = {"dtype": torch.float8_e4m3fn, **on}, {"dtype": torch.bfloat16, **on}
        self.codes, self.scales = torch.empty(tokens, HIDDEN, **f8), torch.empty(tokens, HIDDEN // 128, **on)
        self.gate_up = torch.empty(self.pairs, 2 * INTERMEDIATE, **bf16)
        self.inner = torch.empty(self.pairs, INTERMEDIATE, **f8)
        self.inner_scales = torch.empty(self.pairs, INTERMEDIATE // 128, **on)
        self.slots, self.out = torch.empty(self.pairs, HIDDEN, **bf16), torch.empty(tokens, HIDDEN, **bf16)

    def multiply(self, name, tile):
        columns, warps, stages = tile
        given = (self.codes, self.scales) if name == "gate_up" else (self.inner, self.inner_scales)
        gemm[(len(self.expert_of) * (GEMMS[name]["N"] // columns),)](
            *given, *self.matrices[name], self.routing, self.pair_of, self.expert_of,
            self.gate_up if name == "gate_up" else self.slots, self.pairs, **GEMMS[name], ROWS=ROWS, COLUMNS=columns,
            num_warps=warps, num_stages=stages)

    def run(self, tiles):
        quantise[self.tokens, HIDDEN // 128](self.x, self.codes, self.scales, HIDDEN, num_warps=1)
        self.multiply("gate_up", tiles["gate_up"])
        silu_mul_quantise[self.pairs, INTERMEDIATE // 128](self.gate_up, self.inner, self.inner_scales, INTERMEDIATE,
                                                           num_warps=1)
        self.multiply("down", tiles["down"])
        add_slots[self.tokens, HIDDEN // 512](self.slots, self.out, HIDDEN, TOP_K)

    def error(self):
        """Of the first token, against float64 without quantised activations."""
        y = torch.zeros(HIDDEN, dtype=torch.float64, device="cuda")
        for j, expert in enumerate(self.ids[0]):
            w13, w2 = (codes[expert].double() * scales[expert].double().repeat_interleave(128, 0).repeat_interleave(128, 1)
                       for codes, scales in self.matrices.values())  # fmt: skip
            gate, up = (w13 @ self.x[0].double()).chunk(2)
            y += self.routing[0, j].double() * (w2 @ (torch.nn.functional.silu(gate) * up))
        return float((self.out[0].double() - y).norm() / y.norm())


def median_us(layers, launch, replays=15):
    """Of a layer, in a graph of all of them."""
    for layer in layers:
        launch(layer)
    graph, took = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for layer in layers:
            launch(layer)
    for replay in range(replays + 3):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        if replay >= 3:
            took.append(start.elapsed_time(stop) * 1e3 / len(layers))
    return statistics.median(took)


def measure(batch, matrices):
    layers = [Layer(batch, 100 + i, matrices) for i in range(24 if batch <= 2 else 12 if batch <= 8 else 6)]
    tiles = {}
    for name in GEMMS:
        times = {tile: median_us(layers, lambda layer, tile=tile: layer.multiply(name, tile), 5) for tile in TILES}
        tiles[name] = min(times, key=times.get)
    us = median_us(layers, lambda layer: layer.run(tiles))
    error = max(layer.error() for layer in layers[:2])
    if not error < MOST_ERROR:
        sys.exit(f"batch {batch}: the Triton layer is off by {error}")
    return us, {name: dict(zip(("columns", "warps", "stages"), tile)) for name, tile in tiles.items()}, error


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("library")
    parser.add_argument("--date", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64])
    asked = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(12) as pool:
        pool.map(compile_tile, list(itertools.product(GEMMS, TILES)), chunksize=1)
    torch.manual_seed(1)
    matrices = {"gate_up": matrix(2 * INTERMEDIATE, HIDDEN), "down": matrix(HIDDEN, INTERMEDIATE)}
    measured = {batch: measure(batch, matrices) for batch in asked.batches}
    shape = (EXPERTS, TOP_K, HIDDEN, INTERMEDIATE)
    ours = {form: beside.repacked(asked.bench, asked.library, form, shape, asked.batches) for form in ("nvfp4", "mxfp8")}
    rows = [{"batch": batch, "triton_us": round(us, 1), "tiles": tiles, "relative_error": round(error, 4),
             **{form: {"us": times[batch]["layer"], "times_as_fast": round(us / times[batch]["layer"], 2)}
                for form, times in ours.items()}}
            for batch, (us, tiles, error) in measured.items()]  # fmt: skip
    print(json.dumps({"schema": "gaugeblock.bench-triton/1", "command": "bench_triton.py " + " ".join(sys.argv[3:]),
                      "date": asked.date, "commit": asked.commit, "device": torch.cuda.get_device_name(),
                      "torch": torch.__version__, "triton": triton.__version__, "experts": EXPERTS, "top_k": TOP_K,
                      "hidden": HIDDEN, "intermediate": INTERMEDIATE, "batches": rows}, indent=1))


if __name__ == "__main__":
    main()
