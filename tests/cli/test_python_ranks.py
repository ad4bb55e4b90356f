# SPDX-License-Identifier: Apache-2.0
"""dispatch and combine in Python: what functions get, what they may return, wrong ones named."""
import os
import subprocess
import sys

import numpy as np

from program import SOURCE, expect, path

subprocess.run(
    ["cmake", "--install", os.environ["BUILD"], "--prefix", path("prefix")], check=True, stdout=subprocess.DEVNULL
)
os.environ["GAUGEBLOCK_PREFIX"] = path("prefix")
sys.path.insert(0, os.path.join(SOURCE, "python"))
# What a process of MPI starts by this package runs by itself.
os.makedirs(path("fake/bin"))
with open(path("fake/bin/gaugeblock"), "w", encoding="utf-8") as script:
    script.write("#!/bin/sh\nenv\n")
os.chmod(path("fake/bin/gaugeblock"), 0o755)
launched = {"OMPI_COMM_WORLD_SIZE": "2", "PMI_SIZE": "2", "PMIX_RANK": "0"}
seen = subprocess.run([sys.executable, "-c", "from gaugeblock import native; print(native.run('verify').stdout)"], check=True,
                      capture_output=True, text=True, env={**os.environ, **launched, "GAUGEBLOCK_PREFIX": path("fake"),
                                                           "PYTHONPATH": sys.path[0]}).stdout.splitlines()
expect("GAUGEBLOCK_PREFIX=" + path("fake") in seen and not [line for line in seen if line.split("=")[0] in launched], str(seen))

import gaugeblock  # noqa: E402
from gaugeblock import Verdict, native  # noqa: E402


def routes_of(ranks):
    """The route of each row."""
    ids, of_rank = ranks.ids.ravel(), ranks.tokens_per_rank * ranks.top_k
    slots = np.flatnonzero(ids >= 0)
    return slots[np.lexsort((slots, ids[slots], slots // of_rank, ranks.placement[ids[slots]]))].astype(np.int32)


def quantised(ranks, x):
    """Codes and scales by the library's quantiser."""
    ffi, lib = native.library()
    rules = ffi.new("struct gb_quantiser *")
    for name, value in vars(ranks.rules).items():
        setattr(rules, name.rstrip("_"), getattr(lib, value) if isinstance(value, str) else value)
    sizes, error = [ffi.new("size_t *") for _ in range(2)], ffi.new("struct gb_error *")
    native.check(lib.gb_quantiser_bytes(rules, *x.shape, *sizes, error), error)
    codes, scales = (np.zeros(size[0], np.uint8) for size in sizes)
    values = np.ascontiguousarray(gaugeblock.bf16_to_float32(x))
    native.check(
        lib.gb_quantiser_run(rules, ffi.from_buffer("float[]", values), *x.shape, ranks.global_scale or 1.0, float("inf"),
                             ffi.from_buffer(codes), ffi.from_buffer(scales), error), error)
    wide = np.float32 if ranks.rules.scale == "GB_SCALE_FP32" else np.uint8
    return codes.reshape(len(x), -1), scales.view(wide).reshape(len(x), -1)


def dispatch(ranks):
    routes = routes_of(ranks)
    rows = ranks.x[routes // ranks.top_k]
    counts = np.zeros((ranks.ranks, ranks.experts), np.int32)
    for route in routes:
        counts[route // (ranks.tokens_per_rank * ranks.top_k), ranks.ids.ravel()[route]] += 1
    arrays = {"counts": counts, "routes": routes, "codes": rows}
    if ranks.rules:
        arrays["codes"], arrays["scales"] = quantised(ranks, rows)
    return arrays


def late(ranks):
    arrays = dispatch(ranks)
    arrays["codes"][-1] = 0
    return arrays


def combine(ranks, lost=None):
    rows, y = gaugeblock.bf16_to_float32(ranks.values), np.zeros((ranks.tokens, ranks.hidden), np.float32)
    for slot, row in sorted(zip(routes_of(ranks), rows), key=lambda one: one[0]):
        if slot != lost:
            y[slot // ranks.top_k] += ranks.routing_weights.ravel()[slot] * row
    return y


def lossy(ranks):
    return combine(ranks, lost=6)


def spoils(ranks):
    ranks.ids[0, 0] = 0
    return combine(ranks)


common = {"shape": (32, 4, 128), "ranks": 4, "tokens": 6, "placement": "random", "empty_ranks": 1}
for recipe in (None, "fp8g128.deepseek/1", "nvfp4.trtllm/1"):
    sent = gaugeblock.make(path("sent.h5"), operator="dispatch", routing="holes", recipe=recipe, **common)
    with gaugeblock.Fixture(sent) as fixture:
        asked = fixture.over_ranks()
        expect((fixture.operator, fixture.layers, asked.ranks, asked.tokens) == ("dispatch", 0, 4, 24), str(asked))
        expect(asked.recipe == (recipe or "bf16") and asked.values is None and asked.accumulation is None, str(asked))
    gaugeblock.verify(dispatch, sent).check()
    if recipe == "nvfp4.trtllm/1":  # bytes with a sign
        signed = gaugeblock.verify(lambda ranks: {name: array.view(np.int8) if array.dtype == np.uint8 else array
                                                  for name, array in dispatch(ranks).items()}, sent)
        signed.check()
    report = gaugeblock.verify(late, sent)
    expect(report.cases[0].verdict is Verdict.FAIL and "of rank" in report.cases[0].reason, report.cases[0].reason)
for accumulation in ("receiver", "sender", "node"):
    sums = gaugeblock.make(path("sums.h5"), operator="combine", accumulation=accumulation, **common)
    with gaugeblock.Fixture(sums) as fixture:
        asked = fixture.over_ranks()
        expect(asked.accumulation == accumulation and asked.x is None, accumulation)
        sizes = asked.ranks, asked.tokens, asked.tokens_per_rank, asked.hidden, asked.experts, asked.top_k, asked.rows
        expect(sizes == (4, 24, 6, 128, 32, 4, (asked.ids >= 0).sum()) and len(asked.values) == asked.rows, str(sizes))
        expect(1 <= asked.ranks_per_node <= 4, f"{asked.ranks_per_node} ranks of a node")
    gaugeblock.verify(combine, sums).check()
    report = gaugeblock.verify(lossy, sums)
    expect("rank 0, token 1, slot 2" in report.cases[0].reason, report.cases[0].reason)
report = gaugeblock.verify(lambda ranks: gaugeblock.float32_to_bf16(combine(ranks)), sums)
report.check()
expect("changed its input ids" in gaugeblock.verify(spoils, sums).cases[0].reason, "a changed input passes")
for wrong, words in (
    (lambda ranks: combine(ranks)[:-1], "return [rows, columns] = [24, 128]"),
    (lambda ranks: combine(ranks).astype(np.float64), "return float32 or bfloat16"),
    (lambda ranks: {"codes": combine(ranks)}, "return a dictionary of output"),
    (lambda ranks: None, "the output is a NoneType"),
):
    reason = gaugeblock.verify(wrong, sums).cases[0].reason
    expect(words in reason, reason)
try:
    gaugeblock.verify(combine, sums, batches=[3])
    sys.exit("a part of the tokens was judged")
except ValueError as error:
    expect("the tokens of all ranks" in str(error), str(error))
