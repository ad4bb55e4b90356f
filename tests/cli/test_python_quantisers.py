# SPDX-License-Identifier: Apache-2.0
"""Quantisers in Python: what they get, what they may return, wrong rules by name, a function that cheats."""
import os
import subprocess
import sys

import numpy as np

import nvfp4
from program import ALL, SOURCE, expect, path

subprocess.run(
    ["cmake", "--install", os.environ["BUILD"], "--prefix", path("prefix")], check=True, stdout=subprocess.DEVNULL
)
os.environ["GAUGEBLOCK_PREFIX"] = path("prefix")
sys.path.insert(0, os.path.join(SOURCE, "python"))
import gaugeblock  # noqa: E402
from gaugeblock import Verdict, native  # noqa: E402

LARGEST = {"GB_E2M1": 6, "GB_E4M3": 448, "GB_E5M2": 57344, "GB_INT8": 127}


def numbers(values):
    """What is quantised, as float32; silu correctly rounded."""
    x = values.values.astype(np.float32) if values.values.dtype == np.float16 else nvfp4.bf16(values.values)
    if values.operator == "quantise":
        return x
    gate, up = x[:, : values.columns].astype(np.float64), x[:, values.columns :]
    with np.errstate(over="ignore", invalid="ignore"):
        product = (gate / (1 + np.exp(-gate))).astype(np.float32) * up
    return nvfp4.bf16(nvfp4.to_bf16(product)) if values.product == "bf16" else product


def by_rules(values, x, **changed):
    """Codes and scales of any recipe: the library's quantiser, whose rules may be changed."""
    ffi, lib = native.library()
    rules = ffi.new("struct gb_quantiser *")
    for name, value in {**vars(values.rules), **changed}.items():
        setattr(rules, name.rstrip("_"), getattr(lib, value) if isinstance(value, str) else value)
    sizes, error = [ffi.new("size_t *") for _ in range(2)], ffi.new("struct gb_error *")
    native.check(lib.gb_quantiser_bytes(rules, *x.shape, *sizes, error), error)
    codes, scales = (np.zeros(size[0], np.uint8) for size in sizes)
    x = np.ascontiguousarray(x, np.float32)
    bound = float("inf") if values.bound is None else values.bound
    native.check(
        lib.gb_quantiser_run(
            rules, ffi.from_buffer("float[]", x), *x.shape, values.global_scale or 1.0, bound,
            ffi.from_buffer(codes), ffi.from_buffer(scales), error,
        ),
        error,
    )
    wide = np.float32 if values.rules.scale == "GB_SCALE_FP32" else np.uint8
    scales = scales.view(wide).reshape(x.shape[0], -1)
    return codes.reshape(x.shape[0], -1), scales.T if values.layout == "transposed" else scales


def right(values):
    return by_rules(values, numbers(values))


def truncating(values):
    return by_rules(values, numbers(values), rounding="GB_TRUNCATE")


def swapping(values):
    halves = np.concatenate([values.values[:, values.columns :], values.values[:, : values.columns]], axis=1)
    return by_rules(values, numbers(gaugeblock.Values(**{**vars(values), "values": halves})))


def nan(values):
    drops = values.rules.amax_nan == "GB_AMAX_DROPS_NAN"
    return by_rules(values, numbers(values), amax_nan="GB_AMAX_PROPAGATES_NAN" if drops else "GB_AMAX_DROPS_NAN")


def dividing(values):
    other = {"GB_QUOTIENT_ENCODE_PRODUCT": "GB_QUOTIENT_DIVIDE_ENCODE", "GB_QUOTIENT_DIVIDE": "GB_QUOTIENT_RECIPROCAL"}
    return by_rules(values, numbers(values), quotient=other[values.rules.quotient])


def without_minimum(values):
    return by_rules(values, numbers(values), amax_start=0.0, ratio_min=0.0)


def power(values):
    return by_rules(values, numbers(values), scale_rounding="GB_SCALE_FLOOR")


def next_block(values):
    codes, scales = right(values)
    return codes, np.roll(scales, -1, axis=1)


def transposing(values):
    codes, scales = right(values)
    return codes, np.ascontiguousarray(scales.T).reshape(scales.shape)


def rounding_product(values):
    x = numbers(values)
    return by_rules(values, nvfp4.bf16(nvfp4.to_bf16(x)))


def forgetting_global(values):
    return by_rules(gaugeblock.Values(**{**vars(values), "global_scale": 1.0}), numbers(values))


def ties_to_zero(values):
    return by_rules(values, numbers(values), rounding="GB_TIES_TO_ZERO")


def make(name, operator, recipe, **options):
    return gaugeblock.make(path(name), operator=operator, recipe=recipe, shape=(24, 256), **options)


# What a function gets, and right ones in every type, layout and form of answer.
fixture = make("first.h5", "silu_mul_quantise", "nvfp4.trtllm/1", layout="transposed", input="fp16", product="fp16")
with gaugeblock.Fixture(fixture) as f:
    expect(f.values().rows == f.values(24).tokens == 24, "all rows")
    got = f.values(3)
    expect((f.operator, f.layers, f.format) == ("silu_mul_quantise", 0, "none"), str(vars(f)))
    expect((got.rows, got.columns, got.recipe, got.silu, got.product, got.layout, got.bound) ==
           (3, 256, "nvfp4.trtllm/1", "exact", "fp16", "transposed", None), str(got))
    expect(got.values.dtype == np.float16 and got.values.shape == (3, 512) and got.global_scale > 0, str(got.values))
    expect(got.rules.element == "GB_E2M1" and got.rules.block_columns == 16, str(got.rules))
for number, recipe in enumerate(("nvfp4.trtllm/1", "mxfp8.rceil/1", "fp8g128.vllm/1", "int8g128.vllm/1")):
    for gated, operator in enumerate(("quantise", "silu_mul_quantise")):
        for kind, options in enumerate(({"data": "nonfinite"}, {"data": "edge", "layout": "transposed"}, {"product": "bf16"})):
            if not ALL and (number + gated + kind) % 2:
                continue
            if operator == "quantise":
                options = {name: option for name, option in options.items() if name != "product"}
            fixture = make("right.h5", operator, recipe, **options)
            report = gaugeblock.verify(right, fixture, batches=[1, 24])
            expect(len(report.cases) == 2 and report.passed, f"{recipe}, {options}: {report}")


def numpy_only(values):
    codes, scales, _ = nvfp4.quantise(values.values, 1 / np.float32(values.global_scale))
    return {"codes": codes, "scales": scales}


ties = make("ties.h5", "quantise", "nvfp4.trtllm/1", data="ties")
expect(gaugeblock.verify(numpy_only, ties).passed, "numpy's quantiser is right")

# Wrong rules fail, and are named.
NAMES = {
    truncating: "codes are truncated", ties_to_zero: "ties are rounded towards zero", nan: "NaN",
    swapping: "gate and up are exchanged", next_block: "scales are those of the next block",
    transposing: "scales are transposed", rounding_product: "silu(gate) * up is rounded elsewhere",
    dividing: "division and multiplication by a reciprocal exchanged", forgetting_global: "the global scale is left out",
    power: "the scale's power of two is rounded the other way", without_minimum: "the smallest scale is left out",
}
GENERAL = {"gaussian": (truncating, swapping, next_block, transposing, rounding_product), "nonfinite": (nan,)}
WRONG = {
    "nvfp4.trtllm/1": {**GENERAL, "ties": (ties_to_zero, dividing, forgetting_global)},
    "fp8g128.vllm/1": {**GENERAL, "ties": (ties_to_zero,), "edge": (dividing, without_minimum)},
    "mxfp8.rceil/1": {**GENERAL, "ties": (ties_to_zero, power)},
}
seen = set()
for recipe, kinds in WRONG.items():
    for data, functions in kinds.items():
        fixture = make("wrong.h5", "silu_mul_quantise", recipe, data=data)
        report = gaugeblock.verify({f.__name__: f for f in functions}, fixture)
        by_name = {case.subject: case for case in report.cases}
        for function in functions:
            case = by_name[function.__name__]
            expect(case.verdict is Verdict.FAIL and NAMES[function] in case.reason,
                   f"{recipe}, {data}, {function.__name__}: {case.verdict}: {case.reason}")
            seen.add(function)
expect(len(seen) >= 10, f"only {len(seen)} wrong rules")

# What a function may not do.


def writing(values):
    values.values[0, 0] ^= 1
    return right(values)


runs = []


def varying(values):
    codes, scales = right(values)
    runs.append(1)
    return codes ^ (len(runs) % 2), scales


def short(values):
    codes, scales = right(values)
    return codes[:, 1:], scales


for function, verdict, words in (
    (writing, Verdict.FAIL, "changed its input values"),
    (varying, Verdict.NONDETERMINISTIC, "differ between two runs"),
    (short, Verdict.FAIL, "return [rows, bytes of a row]"),
    (lambda values: right(values)[0], Verdict.FAIL, "neither (codes, scales)"),
    (lambda values: (right(values)[0].astype(np.float32), right(values)[1]), Verdict.FAIL, "return bytes"),
):
    case, = gaugeblock.verify(function, ties).cases
    expect(case.verdict is verdict and words in case.reason, f"{words}: {case.verdict}: {case.reason}")

# A SiLU of its own, where it is declared.
gated = make("gated.h5", "silu_mul_quantise", "fp8g128.vllm/1")


def own_silu(values):
    x = nvfp4.bf16(values.values)
    gate, up = x[:, : values.columns], x[:, values.columns :]
    with np.errstate(over="ignore"):
        silu = gate * (np.float32(1) / (np.float32(1) + np.exp(-gate)))
    return by_rules(values, silu * up)


expect(gaugeblock.verify(own_silu, gated, arguments=("--open-silu",)).passed, "another silu is admissible")
case, = gaugeblock.verify(own_silu, gated).cases
expect(case.verdict is Verdict.FAIL and "--open-silu" in case.record["next"], case.reason)
