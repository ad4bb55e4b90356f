# SPDX-License-Identifier: Apache-2.0
"""Problems of quantisers: made, described, judged bit by bit; wrong kernels and files fail with the rule named."""
import json
import os

import h5py
import numpy as np

from nvfp4 import quantise, to_bf16
from kept import expect_kept
from program import ALL, expect, path, record, refused, run

QUANTISERS = os.environ["QUANTISERS"]
f32 = np.float32
OURS = {"quantise": "cpu/quantise", "silu_mul_quantise": "cpu/silu-mul-quantise"}


def make(name, operator, recipe, *arguments, shape="24,256"):
    run("make", path(name), "--operator", operator, "--recipe", recipe, "--shape", shape, *arguments)
    return path(name)


def cases(fixture, *arguments, code=0):
    """The cases by the subject's name, and what the program printed."""
    done = run("verify", fixture, *arguments, "-o", path("record.json"), code=code)
    with open(path("record.json")) as stream:
        return {case["subject"]["name"]: case for case in json.load(stream)["cases"]}, done.stdout


# What a fixture says of itself, in the same bits everywhere.
HASHES = {
    ("quantise", "gaussian"): "789b606bf23ffcc10533200f8db101474464adab8174b0f9801c7d5174737ba7",
    ("quantise", "ties"): "6b697f837a611f78fd39ea2ad555eb0330768d0da70bc73b78dc99ccf07658aa",
    ("quantise", "edge"): "f9472591b88a5140f6e2769b72a9d93c7a9cfb23690fd9908084811cc157d34b",
    ("quantise", "nonfinite"): "dfe656c0e8eff00cd11694d6235f52c44cb7d900adc8cca359762e7d445e7721",
    ("silu_mul_quantise", "gaussian"): "2a405db8cf36a25dfb1dc09e1fd551f8a446476fd8c08945d32339f9c4a2c73a",
    ("silu_mul_quantise", "ties"): "3fd1dcd82e43f60fe41af8c1faecfc28965c8f3f9cac22b55ddd1cb1f2a8b715",
    ("silu_mul_quantise", "edge"): "72301d1c789da03c2050dbb9bb25931e5a34016e5606cc1152b0c27db14019da",
    ("silu_mul_quantise", "nonfinite"): "5a97bd664d8e0cce0d8ece07f29ed6338225f4a71bc1e4e3e2cd872b70b711d8",
}
for (operator, data), sha256 in HASHES.items():
    fixture = make("hash.h5", operator, "nvfp4.trtllm/1", "--data", data, "--seed", "7")
    told = run("info", fixture).stdout
    expect(sha256 in told, f"{operator}, {data}: {told}")
    expect(all(word in told for word in (operator, "nvfp4.trtllm/1", f"{data}/1, seed 7", "e2m1x2 [24, 128]")), told)

make("seed.h5", "quantise", "nvfp4.trtllm/1", "--data", "ties", "--seed", 2**63 + 2**31 + 7)  # of more than 32 bits

# The reference, by the rules of vLLM, TensorRT-LLM, Transformer Engine and others, on every kind of data.
SYSTEMS = ("fp8g128.vllm/1", "fp8g64.vllm-fused/1", "int8g128.vllm/1", "mxfp4.vllm/1", "nvfp4.trtllm/1",
           "fp8g128.trtllm/1", "mxfp8.rceil/1", "nvfp4.te/1", "mxfp8e5m2.te/1", "nvfp4.flashinfer-4over6-mae-448/1")
for number, recipe in enumerate(SYSTEMS):
    operator = list(OURS)[number % 2]
    for kind, data in enumerate(("gaussian", "ties", "edge", "nonfinite")):
        if not ALL and kind != number // 2 % 4:  # each operator with each kind
            continue
        more = ("--input", "fp16") if kind == 1 else ("--layout", "transposed") if kind == 2 else ()
        fixture = make("system.h5", operator, recipe, "--data", data, *more)
        found, told = cases(fixture)
        expect(list(found) == [OURS[operator]] and told.startswith("PASS"), f"{recipe}, {data}: {told}")

# Kernels in C with a wrong rule each fail, and the rule is named. Per recipe: kind of data -> kernel -> words.
TIES = {"ties_away": "ties are rounded away from zero", "truncated": "codes are truncated"}
PLACES = {"next": "scales are those of the next block", "transposed": "scales are transposed", "truncated": TIES["truncated"]}
NAN = {"nan": "NaN"}
SWAPPED = {"swapped": "gate and up are exchanged"}
POWER = {"power": "the scale's power of two is rounded the other way"}
FLOOR = {"floor": "the scale is rounded down, not to the nearest"}
DIVISION = {"division": "values: division and multiplication by a reciprocal exchanged"}
SILU = {"silu": "silu is gate / (1 + exp(-gate))", "product": "silu(gate) * up is rounded elsewhere"}
WRONG = {
    "fp8g128.vllm/1": {"gaussian": {**PLACES, **SWAPPED, **SILU}, "ties": TIES, "nonfinite": NAN,
                       "edge": {**DIVISION, "minimum": "the smallest scale is left out"}},
    "nvfp4.trtllm/1": {"gaussian": {**PLACES, **SWAPPED, **FLOOR, "product": SILU["product"]}, "nonfinite": NAN,
                       "ties": {**TIES, **DIVISION}, "edge": {"unsaturated": "codes are not saturated", **FLOOR}},
    "mxfp8.rceil/1": {"gaussian": {**PLACES, **SWAPPED, **POWER, "product": SILU["product"]}, "ties": TIES,
                      "nonfinite": NAN, "edge": POWER},
    "nvfp4.te/1": {"gaussian": {**PLACES, **FLOOR}, "ties": {**TIES, **DIVISION}, "nonfinite": NAN,
                   "edge": {"unsaturated": "codes are not saturated"}},
}
BEHAVIOUR = {"lost": (1, "never written"), "outside": (1, "wrote outside a buffer: beside codes"),
             "input": (1, "changed an input: values"), "varying": (6, "differ between two runs"), "right": (0, "")}
SYSTEM = {"fp8g128.vllm/1": "vLLM", "nvfp4.trtllm/1": "TensorRT-LLM"}
named = {}
for recipe, kinds in WRONG.items():
    for data, kernels in kinds.items():
        names = named.setdefault(SYSTEM.get(recipe, "Transformer Engine"), set())
        kernels = {name: words for name, words in kernels.items() if ALL or name not in names}  # each once of a system
        if not kernels:
            continue
        fixture = make("wrong.h5", "silu_mul_quantise", recipe, "--data", data, shape="24,256" if ALL or data == "edge" else "8,256")
        words = [word for name in kernels for word in ("--kernel", f"silu_mul_quantise-{name}")]
        found, told = cases(fixture, "--subject", QUANTISERS, *words, code=1)
        for name, diagnosis in kernels.items():
            case = found[f"silu_mul_quantise-{name}"]
            expect(case["verdict"] == "FAIL" and diagnosis in case.get("diagnosis", ""),
                   f"{recipe}, {data}, {name}: {case['verdict']}: {case['reason']}")
            bits = case["metrics"]["layers"][0]["subject_reference"]
            first = next(bits[array]["first"] for array in ("codes", "scales") if "first" in bits[array])
            expect(f"first      row {first['row']}, " in told, f"{recipe}, {data}, {name}: {told}")
            names.add(name)
expect(len(named) == 3 and all(len(names) >= 10 for names in named.values()), f"fewer than ten wrong rules: {named}")
plain = make("plain.h5", "quantise", "nvfp4.trtllm/1", "--data", "ties")
words = [word for name in (*BEHAVIOUR, "ties_away") for word in ("--kernel", f"quantise-{name}")]
found, told = cases(plain, "--subject", QUANTISERS, *words, code=6)
for name, (code, words) in BEHAVIOUR.items():
    case = found[f"quantise-{name}"]
    expect(case["exit_code"] == code and words in case["reason"], f"{name}: {case['reason']}")
expect(TIES["ties_away"] in found["quantise-ties_away"]["diagnosis"], told)

# A bound, which the recipe takes: left out, it is named.
bounded = make("bound.h5", "quantise", "fp8g128.vllm-fused/1", "--bound", "0.002")
found, told = cases(bounded, "--subject", QUANTISERS, "--kernel", "quantise-bound", "--kernel", "quantise-right", code=1)
expect("the bound is left out" in found["quantise-bound"]["diagnosis"] and
       found["quantise-right"]["verdict"] == "PASS", told)

# A SiLU of the kernel's own is admissible where it says so, and nothing else is.
gated = make("gated.h5", "silu_mul_quantise", "fp8g128.vllm/1")
found, told = cases(gated, "--subject", QUANTISERS, *(w for n in ("silu", "truncated", "swapped", "next", "right")
                                                      for w in ("--kernel", f"open-{n}")), code=1)
expect([found[f"open-{n}"]["verdict"] for n in ("silu", "right")] == ["PASS", "PASS"], told)
expect(all(found[f"open-{n}"]["verdict"] == "FAIL" for n in ("truncated", "swapped", "next")), told)
expect(found["open-silu"]["checks"]["bits"]["admissible"] > 0, told)
closed, told = cases(gated, "--subject", QUANTISERS, "--kernel", "silu_mul_quantise-silu", code=1)
expect("GB_OPEN_SILU" in closed["silu_mul_quantise-silu"]["next"], told)

# Nothing but zeros verifies nothing.
run("make", path("zeros.h5"), "--operator", "quantise", "--recipe", "nvfp4.trtllm/1", "--shape", "1,16", "--data", "edge",
    "--seed", "1")  # whose only block is one of zeros, or of values that become zero
cases(path("zeros.h5"), code=4)

# Files of codes and scales: of the numpy quantiser, right and with wrong rules, in every kind of file.
def wrong_codes(codes, scales):
    yield "the two codes of a byte are exchanged", codes << 4 | codes >> 4, scales
    yield PLACES["next"], codes, np.roll(scales, -1, axis=1)
    yield "scales are those of the next row", codes, np.roll(scales, -1, axis=0)
    yield PLACES["transposed"], codes, scales.T.copy().reshape(scales.shape)
    lost = codes.copy()
    lost[:, -8:] = 0
    yield "the last block of every row is not computed", lost, scales
    short = codes.copy()
    short[-1] = 0
    yield "the last row is not computed", short, scales


def write(name, codes, scales):
    with h5py.File(path(name), "w") as f:
        f["codes"], f["scales"] = codes, scales
    return path(name)


with h5py.File(plain, "r") as f:
    values, decoding = f["values"][:], 1 / np.float32(f.attrs["global_scale"])
codes, scales, _ = quantise(values, decoding)
for name, one in {"right": (codes, scales), "prefix": (codes[:5], scales[:5])}.items():
    found, told = cases(plain, "--outputs", write(f"{name}.h5", *one), *(["--batch", "5"] if name == "prefix" else []))
    expect(told.startswith("PASS") and f"{len(one[0])} rows" in told, told)


def expect_named(wrong):
    """Of each file {what is to be said: codes, scales}, in one run."""
    files = [write(f"wrong{n}.h5", codes.astype(np.uint8), scales) for n, (codes, scales, *_) in enumerate(wrong.values())]
    found, told = cases(plain, *(word for file in files for word in ("--outputs", file)), code=1)
    for file, words in zip(files, wrong):
        expect(words in found[file].get("diagnosis", ""), f"{words}: {told}")


expect_named({words: wrong for words, *wrong in wrong_codes(codes, scales)})
# By wrong rules, as the numpy quantiser makes them.
step = np.float32(1) / decoding
wrong = {
    "the global scale is left out": quantise(values, np.float32(1)),
    "the global scale is inverted": quantise(values, step),
    "values are read as the other 16-bit format": quantise(
        to_bf16(values.view(np.float16).astype(np.float32)), decoding),
    "codes are truncated": quantise(values, decoding, codes="truncate"),
    "ties are rounded away from zero": quantise(values, decoding, codes="away"),
    "the scale is rounded down, not to the nearest": quantise(values, decoding, scales="floor"),
    "the block's largest value is taken with its sign": quantise(values, decoding, signed=True)}
expect_named(wrong)
# Recipes of another element or scale are not looked for, though they have as many codes: here all are right by those of E4M3.
E4M3 = np.array([(1 + c % 8 / 8) * 2.0 ** (c // 8 - 7) if c >= 8 else c * 2.0 ** -9 for c in range(127)])


def e4m3(quotients):
    distance = np.abs(np.minimum(np.abs(quotients), 448)[..., None] - E4M3)
    low, high = np.argmin(distance, -1), 126 - np.argmin(distance[..., ::-1], -1)  # the same but at ties, of which one is even
    return (np.where(low % 2, high, low) | np.where(quotients < 0, 128, 0)).astype(np.uint8).reshape(24, 256)


with h5py.File(make("right.h5", "quantise", "mxfp8.floor/1"), "r") as f:
    x = (f["values"][:].astype(np.uint32) << 16).view(np.float32).reshape(24, -1, 32)
exponent = np.floor(np.log2(np.abs(x).max(-1))) - 8
of_powers = write("powers.h5", e4m3(x / 2 ** exponent[..., None]), (exponent + 127).astype(np.uint8))
x = x.reshape(24, -1, 128)
scale = np.abs(x).max(-1) / f32(448)
codes_of_fp32 = e4m3(x / scale[..., None])
for own, other, right, wrong in (
        ("mxfp8.floor/1", "mxfp8e5m2.floor/1", of_powers, of_powers),
        ("fp8g128.deepseek/1", "fp8g128.vllm-ue8m0/1", write("fp32.h5", codes_of_fp32, scale),
         write("bytes.h5", codes_of_fp32, np.full(scale.shape, 1, np.uint8)))):
    told = cases(make("own.h5", "quantise", own), "--outputs", right)[1]
    expect(told.startswith("PASS"), f"{own}: {told}")
    told = cases(make("other.h5", "quantise", other), "--outputs", wrong, code=1)[1]
    expect("diagnosis  the recipe" not in told, f"{other}: {told}")
np.save(path("codes.npy"), codes)
np.save(path("scales.npy"), scales)
cases(plain, "--outputs", path("codes.npy"), "--scales", path("scales.npy"))
with open(path("codes.npy"), "rb") as whole, open(path("cut.npy"), "wb") as cut:
    cut.write(whole.read(40))
header = json.dumps({"codes": {"dtype": "U8", "shape": codes.shape, "data_offsets": [0, codes.size]},
                     "scales": {"dtype": "F8_E4M3", "shape": scales.shape,
                                "data_offsets": [codes.size, codes.size + scales.size]}}).encode()
with open(path("both.safetensors"), "wb") as f:
    f.write(len(header).to_bytes(8, "little") + header + codes.tobytes() + scales.tobytes())
cases(plain, "--outputs", path("both.safetensors"))

# What the lines that reproduce do, and the comparison with another run's record.
bad = write("bad.h5", np.zeros_like(codes), scales)
before = record(plain, "--outputs", bad, code=1)
record(plain, "--subject", QUANTISERS, "--kernel", "quantise-next", code=1)
os.rename(path("record.json"), path("before.json"))
record(plain, "--subject", QUANTISERS, "--kernel", "quantise-next", code=1)
expect("same bits" in run("diff", path("before.json"), path("record.json")).stdout, "diff does not see the same bits")

# What a fixture shows of injected bugs.
shown = run("power", plain, "-o", path("power.json")).stdout
with open(path("power.json")) as stream:
    power = json.load(stream)
effects = {fault["name"]: fault for fault in power["injected_bugs"]}
expect(power["caught"] >= 14 and effects[TIES["ties_away"]]["caught_by"] == ["codes"], shown)
expect(effects[PLACES["next"]]["caught_by"] == ["scales"] and not effects["NaN makes the block's largest magnitude NaN"]["codes"], shown)
expect("VACUOUS: every code of the reference is zero" in run("power", path("zeros.h5"), code=4).stdout, "the reference by itself")

# What is refused, in a line.
for arguments, words in {
    ("make", path("no.h5"), "--operator", "quantise"): "--recipe",
    ("make", path("no.h5"), "--operator", "layer", "--recipe", "nvfp4.trtllm/1"): "there are quantise",
    ("make", path("no.h5"), "--operator", "quantise", "--recipe", "nvfp4.trtllm/1", "--silu", "exact"): "silu_mul_quantise",
    ("make", path("no.h5"), "--operator", "quantise", "--recipe", "nvfp4.trtllm/1", "--tokens", "3"): "--tokens",
    ("make", path("no.h5"), "--operator", "quantise", "--recipe", "nvfp4.trtllm/1", "--model", "qwen3-30b-a3b"):
        "--model goes with problems of layers, or of dispatch and combine",
    ("make", path("no.h5"), "--operator", "quantise", "--recipe", "nvfp4.trtllm/1", "--shape", "3,40"):
        "columns: 40 is no multiple of the block 16",
    ("make", path("no.h5"), "--operator", "quantise", "--recipe", "nvfp4.trtllm/1", "--shape", "3"): "rows,columns",
    ("make", path("no.h5"), "--operator", "quantise", "--recipe", "nvfp4.trtllm/1", "--bound", "2"): "takes none",
    ("make", path("no.h5"), "--operator", "quantise", "--recipe", "mxfp8.rceil/1", "--global-scale", "2"): "has none",
    ("make", path("no.h5"), "--operator", "quantise", "--recipe", "fp8token.vllm/1"): "128",
    ("make", path("no.h5"), "--shape", "4,2,64,64", "--recipe", "nvfp4.trtllm/1"): "--operator",
    ("verify", plain, "--outputs", path("codes.npy")): "--scales",
    ("verify", plain, "--outputs", bad, "--scales", path("scales.npy")): "no .npy",
    ("verify", plain, "--outputs", write("wide.h5", codes.astype(np.float32), scales)): "codes: holds another type; write bytes (uint8)",
    ("verify", plain, "--outputs", write("narrow.h5", codes, scales.astype(np.float32))): "scales: holds another type; write bytes (uint8)",
    ("verify", plain, "--outputs", path("cut.npy"), "--scales", path("scales.npy")): "cut.npy: header: the file is truncated",
    ("verify", plain, "--outputs", plain): "is a fixture",
    ("verify", plain, "--outputs", bad, "--open-silu"): "silu_mul_quantise",
    ("verify", plain, "--outputs", bad, "--order", "fma32/1"): "--order",
    ("info", plain, "--coverage"): "--coverage",
    ("power", plain, "--gate", "default"): "--gate",
    ("power", plain, "--activations", "bf16"): "--activations go with problems of layers",
}.items():
    told = refused(*arguments)
    expect(words in told, f"{arguments}: {told}")
for kernel in ("cpu/nvfp4-layer", "cpu/silu-mul-quantise"):
    expect("problem of quantise" in run("verify", plain, "--kernel", kernel, code=3).stdout, kernel)

# Damaged fixtures name the field.


def damaged(change, words, fixture=plain):
    with open(fixture, "rb") as f, open(path("damaged.h5"), "wb") as to:
        to.write(f.read())
    with h5py.File(path("damaged.h5"), "r+") as f:
        change(f)
    told = refused("verify", path("damaged.h5"))
    expect(words in told, f"{words} not in {told}")


damaged(lambda f: f["values"].write_direct(np.roll(f["values"][:], 1)), "input_sha256")
damaged(lambda f: f.attrs.modify("recipe", np.bytes_("nvfp4.te/1")), "rules")
damaged(lambda f: f["rules"].attrs.modify("rounding", np.uint64(7)), "rounding")
damaged(lambda f: f.attrs.modify("columns", np.uint64(128)), "values")
damaged(lambda f: f.attrs.modify("layout", np.bytes_("diagonal")), "layout")
damaged(lambda f: f.attrs.modify("global_scale", -1.0), "global_scale")
damaged(lambda f: f.attrs.modify("operator", np.bytes_("dispatch")), "operator")
damaged(lambda f: f.attrs.modify("silu", np.bytes_("third")), "silu: 'third' is unknown", gated)
damaged(lambda f: f.__delitem__("values"), "values")

# Several problems in one run: what one is asked for stays with it.
for kind in ("gaussian", "ties"):
    run("make", path(f"several-{kind}.h5"), "--operator", "quantise", "--recipe", "nvfp4.te/1", "--shape", "16,256", "--data", kind)
run("verify", path("several-gaussian.h5"), path("several-ties.h5"), "--expect", "2")

expect_kept()
