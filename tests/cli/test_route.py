# SPDX-License-Identifier: Apache-2.0
"""Routers as subjects: bits where an order is claimed, sets of experts and bounds where none is."""
import re

import h5py
import numpy as np

from edited import pair_experts, rehash, replace
from kept import expect_kept
from program import ALL, CAPTURE, CHECKPOINT, FAULTS, expect, path, record, run, small

def bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def write(file, ids, weights):
    """Routing alone, for a fixture of one layer."""
    with h5py.File(path(file), "w") as f:
        f["layers/0/routing/ids"] = ids.astype(np.int32)
        f["layers/0/routing/weights"] = weights.astype(np.float32)
    return path(file)


def softmax_route(file, top_k):
    """Top-k of the logits and their softmax in float64, as anybody would write it."""
    with h5py.File(file) as f:
        logits = bf16(f["layers/0/x"][:]) @ bf16(f["layers/0/router/weight"][:]).T
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :top_k]
    q = np.exp(np.take_along_axis(logits, ids, 1) - logits.max(axis=1, keepdims=True))
    return logits, ids, q / q.sum(axis=1, keepdims=True)


# Imports name the model's router, in FP32 and bf16 alike, and the reference computes it.
run("import", CHECKPOINT, path("tiny.h5"), "--capture", CAPTURE, "--layers", "1", "--tokens", "5")
expect("transformers.qwen3-moe/1" in run("info", path("tiny.h5")).stdout, "info names the router")
done = record(path("tiny.h5"), "--kernel", "cpu/route*", "--batch", "1,3,5", "--expect", "3")
for case in done["cases"]:
    expect(case["subject"]["name"] == "cpu/route" and case["subject"]["operator"] == "route", case["subject"])
    expect(case["fixture"]["router"] == "transformers.qwen3-moe/1", case["fixture"])
    expect(case["checks"]["bits"]["compared"] == 2 * 4 * case["batch"], case["checks"])

# Outputs in a file: float64, without an order, lie within the bounds; claiming an order they do not.
plain = path("plain.h5")
run("make", plain, "--shape", "32,4,96,48", "--tokens", "16")
logits, ids, weights = softmax_route(plain, 4)
ours = write("ours.h5", ids, weights)
case = record(plain, "--outputs", ours, "--expect", "1")["cases"][0]
expect(case["metrics"]["layers"][0]["tokens"] == {"same_experts": 16, "swapped": 0, "wrong": 0, "largest_gap_ulp": 0.0},
       case["metrics"])
expect(0 < case["checks"]["bound"]["limit_ratio"] < 1, case["checks"])
backwards = write("backwards.h5", ids[:, ::-1], weights[:, ::-1])
record(plain, "--outputs", backwards)                                   # slots are no matter of bounds
expect("token 0, slot 0" in record(plain, "--outputs", backwards, "--order", "fma32/1", code=1)["cases"][0]["reason"],
       "bits name the place")

# What is wrong is found.
unlike, twice, beyond = ids.copy(), ids.copy(), ids.copy()
unlike[3, 2], twice[3, 2], beyond[3, 2] = np.argmin(logits[3]), ids[3, 1], 32
wrong = [(unlike, weights, "token 3 has expert .* ulp away"), (twice, weights, "twice"), (beyond, weights, "has expert 32"),
         *((ids, bad, "outside the derived bound")  # the last are not renormalised
           for bad in (weights * 1.001, weights * 0, weights * np.nan, np.exp(np.take_along_axis(logits, ids, 1))))]
files = [write(f"wrong{n}.h5", *one) for n, (*one, _) in enumerate(wrong)]
found = record(plain, *(word for file in files for word in ("--outputs", file)), code=1)["cases"]
for case, (*_, says) in zip(found, wrong, strict=True):
    expect(case["verdict"] == "FAIL" and re.search(says, case["reason"]), f"{says}: {case['reason']}")

# Three weights that are wrong are counted as three, and the farthest is named.
few = weights.copy()
few[[1, 6, 11], [3, 0, 2]] *= (1.01, 1.5, 1.02)
case = record(plain, "--outputs", write("few.h5", ids, few), code=1)["cases"][0]
expect("3 of 64 lie outside" in case["reason"] and "worst at token 6, slot 0" in case["reason"], case["reason"])
expect(case["checks"]["bound"]["exceeding"] == 3 and case["checks"]["bound"]["elements"] == 64, case["checks"]["bound"])

# Small logits have small bounds: an expert that is wrong by less than 1e-5 is wrong.
faint = path("faint.h5")
run("make", faint, "--shape", "32,4,96,48", "--tokens", "64", "--seed", "3")
with h5py.File(faint, "r+") as f:
    x = f["layers/0/x"][:]
    exponent = x >> 7 & 0xFF
    replace(f["layers/0"], "x", np.where(exponent > 14, x - (14 << 7), x & 0x8000).astype(np.uint16), "bf16")
    del f["stack"]
rehash(faint)
logits, ids, weights = softmax_route(faint, 5)
gap = np.diff(-np.take_along_axis(logits, ids, 1), axis=1)[:, 3]
right = softmax_route(faint, 4)
record(faint, "--outputs", write("right.h5", *right[1:]))
token = int(np.flatnonzero((gap > 1e-7) & (gap < 1e-5))[0])
wrong = right[1].copy()
wrong[token, 3] = ids[token, 4]
reason = record(faint, "--outputs", write("wrong.h5", wrong, right[2]), code=1)["cases"][0]["reason"]
expect(f"token {token} has expert {ids[token, 4]} and not {ids[token, 3]}" in reason, reason)

# Where every expert is chosen, and any weights would do, nothing is verified.
run("make", path("all.h5"), "--shape", "4,4,96,48", "--tokens", "8")
chosen = softmax_route(path("all.h5"), 4)
given = write("chosen.h5", *chosen[1:])
record(path("all.h5"), "--outputs", given)
reason = record(path("all.h5"), "--outputs", given, "--accumulator-bits", "8", code=4)["cases"][0]["reason"]
expect("any experts, or any weights, would lie inside the bound" in reason, reason)

# Nor where every expert ties with the others in every token, however close the weights have to be.
alike = path("alike.h5")
run("make", alike, "--shape", "8,2,96,48", "--tokens", "5", "--layers", "1")
with h5py.File(alike, "r+") as f:
    router = f["layers/0/router/weight"][:]
    replace(f["layers/0/router"], "weight", np.broadcast_to(router[0], router.shape), "bf16")
    del f["stack"]  # its truth is of the other router
rehash(alike)
given = write("any.h5", *softmax_route(alike, 2)[1:])
case, = record(alike, "--outputs", given, code=4)["cases"]
expect("any experts, or any weights, would lie inside the bound" in case["reason"], case["reason"])
expect(case["checks"]["bound"]["limit_ratio"] < 1 and case["checks"]["bound"]["exceeding"] == 0, case["checks"]["bound"])

# Two equal rows of the router tie in every token: either expert is within the bound, but only the lower id has the bits.
tied = path("tied.h5")
run("make", tied, "--shape", "8,1,96,48", "--tokens", "24", "--layers", "1")
with h5py.File(tied, "r+") as f:
    router = f["layers/0/router/weight"][:]
    router[5] = router[2]
    replace(f["layers/0/router"], "weight", router, "bf16")
    del f["stack"]  # its truth is of the other router
rehash(tied)
logits, ids, weights = softmax_route(tied, 1)
expect((ids == 2).any(), "a token goes to the expert that was doubled")
other = np.where(ids == 2, 5, ids)
swapped = record(tied, "--outputs", write("other.h5", other, weights))["cases"][0]["metrics"]["layers"][0]["tokens"]
expect(swapped["swapped"] == (ids == 2).sum() and swapped["wrong"] == 0 and swapped["largest_gap_ulp"] == 0, swapped)
record(tied, "--outputs", path("other.h5"), "--order", "fma32/1", code=1)

# A router of zeros has experts 0 to 3 and weights of a quarter: the first place that differs is named with both bits.
flat = path("flat.h5")
run("make", flat, "--shape", "32,4,96,48", "--tokens", "16")
with h5py.File(flat, "r+") as f:
    replace(f["layers/0/router"], "weight", 0 * f["layers/0/router/weight"][:], "bf16")
    del f["stack"]  # its truth is of the other router
rehash(flat)
ids, weights = np.tile(np.arange(4), (16, 1)), np.full((16, 4), 0.25)
weights[[2, 6], [3, 1]] = 0.5
reason = record(flat, "--outputs", write("weight.h5", ids, weights), "--order", "fma32/1", code=1)["cases"][0]["reason"]
expect("routing weights of layer 0: 2 of 64 differ from the reference; first at token 2, slot 3: 0x3f000000, reference 0x3e800000"
       in reason, reason)
ids[5, 2:] = 3, 2
reason = record(flat, "--outputs", write("weight.h5", ids, 0 * weights + 0.25), "--order", "fma32/1", code=1)["cases"][0]["reason"]
expect("routing of layer 0: 2 of 64 experts differ from the reference; first at token 5, slot 2: 3, reference 2" in reason, reason)

# Every recipe, made and judged, with a stack unless the recipe weighs the experts' input.
names = [line.split()[0] for line in run("list", "routers").stdout.splitlines() if line and line[0] != " "]
expect(len(names) >= 15, names)
files = [path(f"recipe{n}.h5") for n in range(len(names))]
for n, (name, file) in enumerate(zip(names, files)):
    shape = "64,1,32,16" if "llama4" in name else "64,5,32,16"
    run("make", file, "--router", name, "--shape", shape, "--tokens", "4", "--seed", str(n))
    with h5py.File(file) as f:
        expect(f.attrs["router"].decode() == name and ("stack" in f) == ("llama4" not in name), name)
        lossy_or_choice = any(word in name for word in ("deepseek-v3", "kimi", "grouped", "topk-sigmoid", "te.", "gpt-oss",
                                                       "ernie", "minimax"))
        expect(("bias" in f["layers/0/router"]) == lossy_or_choice, name)
for name, case in zip(names, record(*files, "--kernel", "cpu/route", "--expect", len(files))["cases"], strict=True):
    expect(case["fixture"]["router"] == name and case["checks"]["bound"]["limit_ratio"] < 1, case)
for flag, says in (("no/1", "unknown"), ("te.sigmoid/1", "do not divide")):
    expect(says in run("make", path("no.h5"), "--router", flag, "--shape", "9,3,96,48", code=2).stderr, flag)
models = {line.split()[0]: line for line in run("list", "models").stdout.splitlines()}
expect("transformers.deepseek-v3/1" in models["deepseek-v3"], "a model has its router")
if ALL:  # 400 million weights
    run("make", path("model.h5"), "--model", "deepseek-v3", "--tokens", "1", "--generated")
    expect("transformers.deepseek-v3/1" in run("info", path("model.h5")).stdout, "its router is the file's")

# DeepSeek-V3's rule in float64, as anybody would write it.
deep = path("deep.h5")
run("make", deep, "--shape", "64,5,96,48", "--tokens", "32", "--router", "transformers.deepseek-v3/1")
with h5py.File(deep) as f:
    score = 1 / (1 + np.exp(-(bf16(f["layers/0/x"][:]) @ bf16(f["layers/0/router/weight"][:]).T)))
    choice = score + f["layers/0/router/bias"][:]
group = np.sort(choice.reshape(32, 8, 8), axis=2)[:, :, -2:].sum(axis=2)
kept = group >= np.sort(group, axis=1)[:, [4]]
choice[~kept.repeat(8, axis=1)] = 0
ids = np.argsort(-choice, axis=1, kind="stable")[:, :5]
weights = np.take_along_axis(score, ids, 1)
weights = weights / (weights.sum(axis=1, keepdims=True) + 1e-20) * 2.5
layer, = record(deep, "--outputs", write("deepseek.h5", ids, weights))["cases"][0]["metrics"]["layers"]
expect(layer["tokens"]["same_experts"] == 32, layer)
ids = np.argsort(-score, axis=1, kind="stable")[:, :5]              # neither bias nor groups
weights = np.take_along_axis(score, ids, 1)
weights = weights / weights.sum(axis=1, keepdims=True) * 2.5
reason = record(deep, "--outputs", write("plain-topk.h5", ids, weights), code=1)["cases"][0]["reason"]
expect("has expert" in reason, reason)

# Faults of subjects in a process of their own.
def faults(said):
    """Judges these; {fault: the figures of its tokens}."""
    words = [word for name in said for word in ("--kernel", f"faults/route-{name}")]
    tokens = {}
    for (name, says), case in zip(said.items(), record(deep, "--subject", FAULTS, *words, code=1)["cases"], strict=True):
        expect(case["subject"]["name"] == f"faults/route-{name}" and case["exit_code"] == bool(says) and says in case["reason"],
               f"{name}: {case['reason']}")
        tokens[name] = case["metrics"]["layers"][0].get("tokens")
    return tokens


faults({"none": "",
        "groups-ignored-unordered": "has expert",
        "bias-ignored-unordered": "has expert",
        "unscaled-unordered": "outside the derived bound around truth",
        "unwritten-unordered": "never written; first: element 159 of routed ids of layer 0",
        "unwritten-weight-unordered": "never written; first: element 159 of routed weights of layer 0",
        "changes-bias": "changed an input: router bias",
        "writes-past-end": "wrote outside a buffer: beside routed weights"})

# Experts in pairs of equal ones, top 5: which one of a pair is chosen, only an order decides.
pair_experts(deep)
tokens = faults({"none-unordered": "", "tie-unordered": "", "tie": "experts differ from the reference"})
expect(tokens["none-unordered"]["swapped"] == 0, "the reference swaps none")
expect(tokens["tie-unordered"]["swapped"] == 32, "every token has half a pair")

# A recipe with groups and a bias; one whose bias is missing, an unknown one, one that does not fit, no router at all.
grouped = path("grouped.h5")
run("make", grouped, "--shape", "32,4,96,48", "--tokens", "16")
with h5py.File(grouped, "r+") as f:
    f.attrs["router"] = np.bytes_("transformers.deepseek-v3/1")
    del f["stack"]  # its truth is of the other router
expect("router/bias" in run("info", grouped, code=2).stderr, "a missing bias is named")
with h5py.File(grouped, "r+") as f:
    replace(f["layers/0/router"], "bias", np.linspace(-0.5, 0.5, 32).astype(np.float32), "fp32")
rehash(grouped)
record(grouped, "--kernel", "cpu/route", "--expect", "1")
with h5py.File(grouped, "r+") as f:
    f.attrs["router"] = np.bytes_("nobody.knows/1")
expect("unknown" in run("info", grouped, code=2).stderr, "an unknown router")
with h5py.File(grouped, "r+") as f:
    f.attrs["router"] = np.bytes_("vllm.grouped-topk/1")
rehash(grouped)
record(grouped, "--kernel", "cpu/route", "--expect", "1")
odd = path("odd.h5")
run("make", odd, "--shape", "9,3,96,48")
with h5py.File(odd, "r+") as f:
    f.attrs["router"] = np.bytes_("te.sigmoid/1")
expect("divide 9 experts" in run("info", odd, code=2).stderr, "groups that do not fit")
bare = small("bare.h5")
with h5py.File(bare, "r+") as f:
    del f["layers/1/router"], f["stack"]
rehash(bare)
case = record(bare, "--kernel", "cpu/route", code=3)["cases"][0]
expect(case["verdict"] == "UNSUPPORTED" and "no router in every layer" in case["reason"], case)
record(bare, "--kernel", "cpu/*", "--expect", "6")

expect_kept()
