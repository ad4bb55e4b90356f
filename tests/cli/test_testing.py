# SPDX-License-Identifier: Apache-2.0
"""gaugeblock.testing in numpy: what is right passes, what is wrong fails with its name, and what is no input is refused."""
import dataclasses
import os
import re
import sys

import h5py
import numpy as np

from layers import MISTAKES, arrays, is_named, kernel
from nvfp4 import quantise
from program import ALL, expect, path, run

import gaugeblock
from gaugeblock import testing
from gaugeblock import Verdict, bf16_to_float32, float32_to_bf16
from gaugeblock.testing import assert_combined, assert_moe_close, assert_quantised, assert_routed, limits


def fails(assertion, *positional, says=(), quick=False, **named):
    """The text of the assertion that fails; those that are not quick in slow_cli_testing alone."""
    if not (quick or ALL):
        return ""
    try:
        assertion(*positional, **named)
    except AssertionError as error:
        for words in (says,) if isinstance(says, str) else says:
            expect(words in str(error), f"no {words!r} in:\n{error}")
        return str(error)
    sys.exit(f"{assertion.__name__} did not fail: {says}")


def refuses(assertion, *positional, says, **named):
    try:
        assertion(*positional, **named)
    except (TypeError, ValueError) as error:
        expect(says in str(error) and "\n" not in str(error), f"no {says!r} in: {error}")
        return
    sys.exit(f"{assertion.__name__} was not refused: {says}")


fixture = gaugeblock.make(path("layer.h5"), shape=(8, 2, 128, 64) if ALL else (4, 2, 64, 32), tokens=16 if ALL else 6,
                          format="nvfp4", seed=3)
a = arrays(fixture)
y = kernel(a)

# A right kernel, in three precisions of its output; with its intermediate; by a policy.
report = assert_moe_close(y, **a.arguments())
expect(report.verdict is Verdict.PASS and report.cases[0].record["checks"]["bound"]["exceeding"] == 0, str(report))
assert_moe_close(y.astype(np.float64), **a.arguments())
assert_moe_close(float32_to_bf16(y), **a.arguments())
assert_moe_close(float32_to_bf16(y), **a.arguments(gate="cosine-0.99"))

# Each mistake by its name.
for mistake in MISTAKES if ALL else ("output",):
    text = fails(assert_moe_close, kernel(a, mistake), **a.arguments(), says="diagnosis", quick=True)
    expect(is_named(mistake, text), f"{mistake}: {text}")
    expect(text.startswith("\nFAIL  output  ") and ("\n  worst      layer 0, token " in text or "aggregate" in text), text)
    expect('save="failing.h5"' in text and "verify problem" not in text, text)
# Of a large problem only the experts that tokens have are looked at: those beside them when nothing else explains.
whole, testing.WHOLE_BYTES = testing.WHOLE_BYTES, 0
kept_from = dataclasses.replace(a, ids=np.where(a.ids % 2, -1, a.ids))
fails(assert_moe_close, kernel(kept_from, "experts"), **kept_from.arguments(), says=MISTAKES["experts"], quick=True)
testing.WHOLE_BYTES = whole
fails(assert_moe_close, np.zeros_like(y), **a.arguments(), says="bound exceeded")
fails(assert_moe_close, np.full_like(y, np.nan), **a.arguments(), says="bound exceeded")
b = arrays(gaugeblock.make(path("one.h5"), shape=(8, 2, 128, 64), tokens=16, format="nvfp4"))
one = kernel(b)
one[3, 5] = np.nan
text = fails(assert_moe_close, one, **b.arguments(), says="output NaN", quick=True)
expect(text.startswith("\nFAIL") and "in token 3 only; in column 5 only" in text, text)

# A weight that the input is multiplied by, and not the output.
halved = arrays(gaugeblock.make(path("halved.h5"), shape=(4, 1, 64, 32), tokens=6, format="nvfp4"))
halved = dataclasses.replace(halved, weights=np.linspace(0.25, 0.75, 6, dtype=np.float32)[:, None])
weighed = float32_to_bf16(halved.weights * bf16_to_float32(halved.x))
weighed = dataclasses.replace(halved, x=weighed, weights=np.ones_like(halved.weights))
assert_moe_close(kernel(weighed), **halved.arguments(apply_router_weight_on_input=True))

# A claim widens the limits, or makes bits binding.
wide = limits(**a.arguments(), output="bf16", roundings={"gate_up": "bf16"})
close = limits(**a.arguments())
expect((wide.limit > close.limit).all() and (np.abs(y - close.truth) <= close.limit).all(), "limits")
expect((limits(**a.arguments(), output="bf16").limit > close.limit).all(), "an output that is rounded")
expect((np.abs(kernel(a, "output") - close.truth) > close.limit).any(), "an error within all limits")
refuses(gaugeblock.testing._read_limits((6, 64)), path("layer.h5"), says="layers/0/truth")
fails(assert_moe_close, y, **a.arguments(order="fma32/1"), says="bit mismatch")

# The problem that failed, as a fixture: its line judges it again, with the same verdict and diagnosis.
text = fails(assert_moe_close, kernel(a, "output"), **a.arguments(save=path("failing.h5")), says=MISTAKES["output"], quick=True)
line = re.search(r"^  reproduce  gaugeblock (.*)$", text, re.M)[1]
expect(MISTAKES["output"] in run(*line.split(), code=1).stdout, line)
with h5py.File(path("failing.h5")) as saved:
    expect([saved.attrs[name] for name in ("recipe", "contract", "generator", "source", "rms_norm_epsilon")] ==
           [b"nvfp4.modelopt/1", b"nvfp4.bf16.fma32/1", b"memory/1", b"gaugeblock.testing", 1e-6], f"{dict(saved.attrs)}")
expect(np.array_equal(gaugeblock.Fixture(path("failing.h5")).layer(0).gate_up.codes, a.codes[0]), "the saved codes")
assert_moe_close(y, **a.arguments(save=path("passing.h5")))
expect(not os.path.exists(path("passing.h5")), "a problem that passes was saved")

# Only experts in use, of a large layer; they keep their numbers.
many = 4096
idle = np.zeros((many, *a.codes[0].shape[1:]), np.uint8), np.zeros((many, *a.codes[1].shape[1:]), np.uint8)
places = np.arange(len(a.codes[0])) * 37 + 11
large = {"w13": [idle[0]], "w2": [idle[1]]}
for which, name in enumerate(large):
    large[name][0][places] = a.codes[which]
    for part in (a.scales, a.globals):
        whole = np.zeros((many, *part[which].shape[1:]), part[which].dtype)
        whole[places] = part[which]
        large[name].append(whole)
ids = np.where(a.ids < 0, -1, places[a.ids])
import gaugeblock.testing as module  # noqa: E402

module.WHOLE_BYTES = 1 << 20
assert_moe_close(y, **a.arguments(**large, ids=ids))
wrong = y.copy()
picked = int(a.ids[0, 0])
lost = kernel(a.without(picked))
text = fails(assert_moe_close, lost, **a.arguments(**large, ids=ids), says=f"expert {places[picked]}", quick=True)

# Quantised activations by the scales that were given.
q = gaugeblock.make(path("a4.h5"), shape=(4, 2, 64, 64), tokens=4, activations="nvfp4")
layer = gaugeblock.Fixture(q).layer(0)
from package import codes as quantised_layer  # noqa: E402

made = quantised_layer(layer)["output"]
own = {"x": layer.x, "ids": layer.ids, "weights": layer.routing_weights, "format": "nvfp4", "activations": "nvfp4",
       "w13": (layer.gate_up.codes, layer.gate_up.scales, layer.gate_up.global_scales),
       "w2": (layer.down.codes, layer.down.scales, layer.down.global_scales),
       "x_scale": layer.quantisation.x_scale, "intermediate_scale": layer.quantisation.intermediate_scale}
assert_moe_close(made, **own)
fails(assert_moe_close, made, **{**own, "x_scale": 1.5 * own["x_scale"]})
refuses(assert_moe_close, made, **{**own, "x_scale": None}, says="give x_scale and intermediate_scale")

small = gaugeblock.make(path("a8.h5"), shape=(2, 1, 64, 64), tokens=1, format="mxfp8", activations="mxfp8") # without global scales
one = gaugeblock.Fixture(small).layer(0).quantisation
expect((one.x_scale, one.intermediate_scale) == (1.0, 1.0), f"{one}")

# Biases: down's adds up over the slots; gate's and up's lie as the rows of w13 do.
layer = gaugeblock.Fixture(gaugeblock.make(path("bf16.h5"), shape=(4, 2, 64, 32), tokens=6, format="bf16")).layer(0)
rng = np.random.default_rng(7)
b13, b2 = rng.standard_normal((4, 64), dtype=np.float32), rng.standard_normal((4, 64), dtype=np.float32)
own = {"x": layer.x, "ids": layer.ids, "weights": layer.routing_weights, "format": "bf16", "w13": layer.gate_up.codes,
       "w2": layer.down.codes}
plain, down, inner = limits(**own).truth, limits(**own, w2_bias=b2).truth, limits(**own, w13_bias=b13).truth
added = np.einsum("tk,tkh->th", layer.routing_weights.astype(np.float64), b2[layer.ids].astype(np.float64))
expect(np.abs(down - plain - added).max() < 1e-12, "the bias of down")
own["w13"], halves = (np.concatenate(np.split(rows, 2, axis=1)[::-1], axis=1) for rows in (own["w13"], b13))
turned = limits(**own, w13_bias=halves, layout="flashinfer-cutlass-unquantised").truth
expect(np.array_equal(turned, inner) and np.abs(inner - plain).max() > 0.01, "the biases of gate and up")
refuses(limits, **{**own, "w13": own["w13"][:, 1:]}, says="those of gate and up are as many")

# Routers: experts and weights, by logits or by the product.
rng = np.random.default_rng(5)
logits = rng.standard_normal((7, 16), dtype=np.float32)
soft = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
chosen = np.argsort(-soft, axis=1)[:, :4].astype(np.int32)
weights = np.take_along_axis(soft, chosen, axis=1)
assert_routed(chosen, weights, recipe="gaugeblock.softmax/1", logits=logits)
fails(assert_routed, np.argsort(-soft, axis=1)[:, 1:5], weights, recipe="gaugeblock.softmax/1", logits=logits, says="wrong", quick=True)
fails(assert_routed, chosen, weights / weights.sum(axis=1, keepdims=True), recipe="gaugeblock.softmax/1", logits=logits,
      says="routing weights")
router = rng.standard_normal((16, 32), dtype=np.float32)
x = bf16_to_float32(float32_to_bf16(rng.standard_normal((7, 32), dtype=np.float32)))
router = bf16_to_float32(float32_to_bf16(router))
z = x @ router.T
best = np.argsort(-z, axis=1)[:, :4]
top = np.exp(np.take_along_axis(z, best, axis=1) - z.max(axis=1, keepdims=True))
assert_routed(best, top / top.sum(axis=1, keepdims=True), recipe="gaugeblock.renormalised/1", x=x, router=router)
bias = np.linspace(0.5, -0.5, 16, dtype=np.float32)  # of the choice alone
sigmoid = 1 / (1 + np.exp(-logits.astype(np.float64)))
chosen = np.argsort(-(sigmoid + bias), axis=1)[:, :4]
weights = np.take_along_axis(sigmoid, chosen, axis=1)
weights = (weights / weights.sum(axis=1, keepdims=True) * 2.827).astype(np.float32)
assert_routed(chosen, weights, recipe="moonshotai.kimi-k2/1", logits=logits, bias=bias)
fails(assert_routed, chosen, weights, recipe="moonshotai.kimi-k2/1", logits=logits, bias=-bias, says="wrong", quick=True)
refuses(assert_routed, chosen, weights, recipe="moonshotai.kimi-k2/1", logits=logits, bias=bias[1:], says="bias is float32 [15]: give float32")
refuses(assert_routed, best, top, recipe="none/1", x=x, router=router, says="is unknown; gaugeblock list routers")
refuses(assert_routed, best, top, recipe="gaugeblock.softmax/1", says="give logits, or x and router")

# The combine by itself: a slot that is lost, a weight that is rounded, and the last bits.
values, w = rng.standard_normal((5, 3, 64), dtype=np.float32), rng.random((5, 3), dtype=np.float32)
total = np.einsum("tkh,tk->th", values, w)
assert_combined(total, values, w)
fails(assert_combined, np.einsum("tkh,tk->th", values[:, 1:], w[:, 1:]), values, w, quick=True)
fails(assert_combined, np.einsum("tkh,tk->th", values, bf16_to_float32(float32_to_bf16(w))), values, w)
fails(assert_combined, total * np.float32(1.00001), values, w)
w16 = float32_to_bf16(w)
assert_combined(np.einsum("tkh,tk->th", values, bf16_to_float32(w16)), values, w16)
halved = float32_to_bf16(values)
assert_combined(np.einsum("tkh,tk->th", bf16_to_float32(halved), w), halved, w)

# Quantisers: bits of a recipe, or of one of several.
values = float32_to_bf16(rng.standard_normal((32, 64), dtype=np.float32))
path_q = gaugeblock.make(path("q.h5"), operator="quantise", recipe="mxfp8.floor/1", shape=(32, 64))
run("verify", path_q, "--kernel", "cpu/quantise")
magnitudes = np.abs(bf16_to_float32(values)).reshape(32, 2, 32).max(axis=2)
exponents = np.floor(np.log2(magnitudes)).astype(np.int32) - 8
scaled = bf16_to_float32(values).reshape(32, 2, 32) / np.ldexp(np.float32(1), exponents)[..., None]


def to_e4m3(v):
    """Nearest code, ties to even, by search among all of them."""
    from layers import e4m3
    table = e4m3(np.arange(127, dtype=np.uint8))
    m = np.minimum(np.abs(v), 448)
    low = np.clip(np.searchsorted(table, m, side="right") - 1, 0, 125)
    middle = (table[low].astype(np.float64) + table[low + 1]) / 2
    up = (m > middle) | ((m == middle) & (low % 2 == 1))
    return (low + up).astype(np.uint8) | np.where(np.signbit(v), 0x80, 0).astype(np.uint8)


codes, scales = to_e4m3(scaled).reshape(32, 64), (exponents + 127).astype(np.uint8)
assert_quantised(codes, scales, values, recipe="mxfp8.floor/1")
assert_quantised(codes, scales, values, recipe=["mxfp8.rceil/1", "mxfp8.floor/1"])
fails(assert_quantised, codes, scales, values, recipe="mxfp8.rceil/1", says="recipe", quick=True)
fails(assert_quantised, codes ^ np.uint8(1), scales, values, recipe="mxfp8.floor/1", says="codes differ: 2048 of 2048")
text = fails(assert_quantised, codes ^ np.uint8(1), scales, values, recipe="mxfp8.floor/1", save=path("codes.h5"), quick=True)
run(*re.search(r"^  reproduce  gaugeblock (.*)$", text, re.M)[1].split(), code=1)
large = np.full(values.shape, 0x4200, np.uint16)  # 32, which silu leaves as it is
gated = np.concatenate([large, float32_to_bf16(bf16_to_float32(values) / 32)], axis=1)
for form in ("exact", "divide", "reciprocal"):
    assert_quantised(codes, scales, gated, recipe="mxfp8.floor/1", silu=form, activated="bf16", product="bf16" if form == "exact" else "fp32")
assert_quantised(codes, scales.T, values, recipe="mxfp8.floor/1", layout="transposed")
fp4, fp4_scales, _ = quantise(values, 0.125)
assert_quantised(fp4, fp4_scales, values, recipe="nvfp4.trtllm/1", global_scale=8.0)
fp4, fp4_scales, _ = quantise(values, 1.0)
assert_quantised(fp4, fp4_scales, values, recipe="nvfp4.trtllm/1")
swizzled = np.zeros((128, 4), np.uint8)
swizzled[:32, :2] = scales
swizzled = swizzled.reshape(4, 32, 4).transpose(1, 0, 2)
assert_quantised(codes, swizzled, values, recipe="mxfp8.floor/1", layout="swizzled-128x4")
refuses(assert_quantised, codes, scales, values, recipe="mxfp8.floor/1", layout="swizzled-128x4", says="64 bytes; layout")
refuses(assert_quantised, codes, scales, values, recipe="mxfp9/1", says="no such recipe")
refuses(assert_quantised, codes, scales, np.tile(values, 2), recipe="mxfp8.floor/1", silu="near", says="'near': give exact, divide")

# What is no input is refused in a line.
refuses(assert_moe_close, y, **a.arguments(format="nvfp5"), says="not of nvfp5")
refuses(assert_moe_close, y, **a.arguments(layout="vllm-marlin"), says="there are linear, vllm")
refuses(assert_moe_close, y, **a.arguments(w13=a.packed[0][:2]), says="not 2 arrays")
refuses(assert_moe_close, y, **a.arguments(w13=a.packed[1], w2=a.packed[0]), says="bytes of a row")
refuses(assert_moe_close, y, **a.arguments(ids=a.ids + 100), says="there are experts 0 .. ")
refuses(assert_moe_close, y, **a.arguments(x=bf16_to_float32(a.x) + np.float32(1e-6)), says="values that bf16 does not have")
refuses(assert_moe_close, y, **a.arguments(weights=a.weights[:, :1]), says="weights is float32")
refuses(assert_moe_close, y[:2], **a.arguments(), says="the output is [2, ")
refuses(assert_moe_close, y, **a.arguments(x_scale=1.0), says="go with quantised activations")
refuses(assert_moe_close, y, **a.arguments(roundings={"sum": "bf16"}), says="no such stage")
bad = [part.copy() for part in a.packed[0]]
bad[1][1, 2, 1] = 0x7F
refuses(assert_moe_close, y, **a.arguments(w13=tuple(bad)), says="/layers/0/gate_up/scales: element [1, 2, 1] is NaN")
expect(not os.listdir(path("temporary")), f"left behind: {os.listdir(path('temporary'))}")
