# SPDX-License-Identifier: Apache-2.0
"""Quantised activations: contracts beside those of bf16, every stage compared, wrong files and kernels refused.

With `all` every injected fault in a kernel with an order, one without, and one that hands out no stage.
"""
import h5py
import numpy as np

from kept import expect_kept
from nvfp4 import E2M1, E4M3, F32, quantise, to_bf16
from program import ALL, CAPTURE, CHECKPOINT, FAULTS, expect, path, record, refused, run

TOKENS = 7 if ALL else 4
CONTRACTS = {"nvfp4": "nvfp4", "mxfp8": "mxfp8", "mxfp4": "mxfp8", "fp8": "fp8"}
STAGES = {"x_codes", "x_scales", "intermediate", "intermediate_codes", "intermediate_scales", "output"}


def make(name, weights, *arguments):
    shape = {"fp8": "4,2,256,128", "nvfp4": "6,3,128,96"}.get(weights, "8,3,128,64" if ALL else "5,2,64,64")
    run("make", path(name), "--shape", shape, "--tokens", TOKENS, "--layers", "2", "--format", weights,
        "--activations", CONTRACTS[weights], *arguments)
    return path(name)


def cosine(case):
    return case["metrics"]["overall"]["subject_truth"]["original"]["cosine"]


# Both paths beside each other, against the same truth; every stage and operator.
for weights, activations in CONTRACTS.items():
    fixture = make(f"{weights}.h5", weights)
    contract = f"{weights}.{activations}.fma32/1"
    expect(contract in run("info", fixture).stdout, f"info does not name {contract}")
    plain, quantised = record(fixture)["cases"]
    expect([plain["contract"], quantised["contract"]] == [f"{weights}.bf16.fma32/1", contract], "both contracts")
    expect(set(quantised["metrics"]["layers"][1]["subject_reference"]) == STAGES, "every stage is compared")
    expect(cosine(quantised) < cosine(plain) < 1, f"{weights}: {cosine(quantised)}, {cosine(plain)}")
    if weights == "mxfp4" and not ALL: # its activations are mxfp8's
        continue
    batches = f"1,{TOKENS}" if weights == "mxfp8" else TOKENS
    cases = record(fixture, "--kernel", f"cpu/{weights}-*", "--batch", batches)["cases"]
    orders = 2 if weights != "fp8" else 1  # of kernels with bf16 activations
    expect(len(cases) == 5 * len(str(batches).split(",")) * (1 + orders) and all(c["verdict"] == "PASS" for c in cases), f"{weights}: {len(cases)} cases")

run("import", CHECKPOINT, path("trained.h5"), "--capture", CAPTURE, "--layers", "0", "--tokens", TOKENS,
    "--activations", "nvfp4", "--activation-recipe", "nvfp4.modelopt/1")
expect("nvfp4.modelopt/1" in run("info", path("trained.h5")).stdout, "the recipe is not shown")
record(path("trained.h5"), "--kernel", "cpu/nvfp4-nvfp4-layer")

# What is not defined.
for options, word in {("--shape", "4,2,80,64", "--format", "mxfp8", "--activations", "mxfp8"): "multiples of 32",
                      ("--shape", "4,2,192,128", "--format", "fp8", "--activations", "fp8"): "multiples of 128",
                      ("--shape", "4,2,64,64", "--format", "bf16", "--activations", "nvfp4"): "no contract",
                      ("--shape", "4,2,64,64", "--activations", "mxfp8"): "no contract",
                      ("--shape", "4,1,64,64", "--activations", "nvfp4", "--router", "transformers.llama4/1"): "no contract",
                      ("--shape", "4,2,64,64", "--activations", "nvfp4", "--activation-recipe", "mxfp8.rceil/1"): "makes no nvfp4",
                      ("--shape", "4,2,64,64", "--activations", "nvfp4", "--data", "nonfinite", "--routing", "uniform"): "NaN",
                      ("--shape", "4,2,64,64", "--activation-recipe", "mxfp8.rceil/1"): "goes with --activations"}.items():
    expect(word in refused("make", path("refused.h5"), *options), f"{options}: not {word}")
refused("verify", path("nvfp4.h5"), "--outputs", path("none.h5"), "--activations", "mxfp8")

# Injected faults, with and without an order, with and without stages.
CLAIMS = ("", "-unordered", "-silent")
FAULTY = {"nibbles": CLAIMS[2:], "next-scale": CLAIMS[:1], "recipe": CLAIMS[1:2], "not": CLAIMS[2:]}
fixture = path("nvfp4.h5")
WRONG = {"reference": 0, "none": 1, "none-unordered": 0, "none-silent": 0}
WRONG.update({fault + claim: 1 for fault, claims in FAULTY.items() for claim in (CLAIMS if ALL else claims)})
for name, code in WRONG.items():
    case, = record(fixture, "--subject", FAULTS, "--kernel", f"faults/quantised-{name}", "--no-diagnosis", code=code)["cases"]
    expect(case["exit_code"] == code, f"{name}: {case['verdict']}: {case['reason']}")
    bound = case["checks"]["bound"]
    expect(0 < bound["limit_ratio"] < 1 or code, f"{name}: {bound}")
    expect("intermediate_codes" in case["reason"] or not name.startswith("recipe-un"), f"{name}: {case['reason']}")
    # What codes that may flip can do is taken out of sums of errors, so that these see a wrong scale all the same.
    scale = case["checks"]["scale"]
    expect(scale["binding"] == name.endswith(("unordered", "silent")) and scale["tokens_left_out"] == 0 and
           scale["ambiguous_codes"] > 0, f"{name}: {scale}")
    expect(all(f["detection_limit_smallest"] < 1e-4 for f in scale["families"] if "intermediate" not in f["name"]), name)


# Recipes that leave the bound open: bits are judged, and without an order nothing is verified.
run("make", path("open.h5"), "--shape", "8,3,96,48", "--tokens", TOKENS, "--activations", "nvfp4", "--activation-recipe",
    "nvfp4.flashinfer-4over6-mae-448/1")
record(path("open.h5"), "--kernel", "cpu/nvfp4-nvfp4-*")
record(path("open.h5"), "--subject", FAULTS, "--kernel", "faults/quantised-none-silent", code=4)

# A file of outputs: the layer in numpy.


def weights(group, expert):
    codes = group["codes"][expert]
    nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(codes.shape[0], -1)
    values = np.where(nibbles & 8, -1, 1) * E2M1[nibbles & 7]
    scales = np.repeat(E4M3[group["scales"][expert]], 16, -1)
    parts = np.repeat(group["global_scales"][expert].astype(np.float64), codes.shape[0] // group["global_scales"].shape[1])
    return values * scales * parts[:, None]


def compute(layer, out):
    d = layer["activation_scales"][()]
    out["x_codes"], out["x_scales"], x = quantise(layer["x"][()], d[0])
    ids, routing = layer["routing/ids"][()], layer["routing/weights"][()].astype(np.float64)
    inner = np.zeros((*ids.shape, layer["down/scales"].shape[2] * 16), np.float64)
    for t, j in np.ndindex(ids.shape):
        gate, up = np.split(weights(layer["gate_up"], ids[t, j]) @ x[t], 2)
        inner[t, j] = gate / (1 + np.exp(-gate)) * up
    out["intermediate"] = to_bf16(inner)
    out["intermediate_codes"], out["intermediate_scales"], h = quantise(out["intermediate"][()], d[1])
    y = np.zeros(layer["x"].shape)
    for t, j in np.ndindex(ids.shape):
        y[t] += routing[t, j] * (weights(layer["down"], ids[t, j]) @ h[t, j])
    out["output"] = y.astype(F32)


with h5py.File(fixture) as f, h5py.File(path("outputs.h5"), "w") as out:
    for layer in f["layers"]:
        compute(f["layers"][layer], out.create_group(f"layers/{layer}"))
case, = record(fixture, "--outputs", path("outputs.h5"))["cases"]
expect(set(case["metrics"]["layers"][0]["subject_reference"]) == STAGES, str(case["metrics"]["layers"][0].keys()))
expect(case["metrics"]["layers"][1]["subject_reference"]["x_scales"]["mismatching"] == 0, "scales of x differ")
case, = record(fixture, "--outputs", path("outputs.h5"), "--activations", "bf16", "--no-diagnosis", code=1)["cases"]
expect(case["subject"]["activations"] == "bf16", "the claim is not recorded")


def spoiled(name, change):
    """The same file with one array changed: the verdict and its reason."""
    with h5py.File(path("outputs.h5"), "r") as old, h5py.File(path("spoiled.h5"), "w") as new:
        for layer in old["layers"]:
            for key in old["layers"][layer]:
                values = old["layers"][layer][key][()]
                new[f"layers/{layer}/{key}"] = change(values) if key == name and layer == "1" else values
    case, = record(fixture, "--outputs", path("spoiled.h5"), "--no-diagnosis", code=1)["cases"]
    expect(f"{name} of layer 1" in case["reason"], f"{name}: {case['reason']}")


def flipped(values):
    values[3, ..., 5] ^= np.uint8(0x10)
    return values


for name in ("x_codes", "x_scales", "intermediate_codes", "intermediate_scales"):
    spoiled(name, flipped)


def without_intermediate(code, change, *left):
    """The same file without the intermediate and without what is left out, and with its codes changed: the case."""
    with h5py.File(path("outputs.h5"), "r") as old, h5py.File(path("spoiled.h5"), "w") as new:
        for layer in old["layers"]:
            for key in set(old["layers"][layer]) - {"intermediate", *left}:
                values = old["layers"][layer][key][()]
                new[f"layers/{layer}/{key}"] = change(values) if key == "intermediate_codes" else values
    case, = record(fixture, "--outputs", path("spoiled.h5"), "--no-diagnosis", code=code)["cases"]
    return case["reason"]


# Without the intermediate, values of codes and scales are judged by what admissible differences can do; either alone is nothing.
expect(without_intermediate(0, lambda values: values) == "", "right codes")
expect("none that admissible differences lead to" in without_intermediate(1, flipped), "another code")
expect("none that admissible differences lead to" in without_intermediate(1, np.zeros_like), "zeros")
for array, other in (("codes", "scales"), ("scales", "codes")):
    reason = without_intermediate(4, lambda values: values, f"intermediate_{other}")
    expect(f"intermediate_{array} of layer 0" in reason and f"hand out intermediate_{other}" in reason, reason)
with h5py.File(path("outputs.h5"), "a") as out:
    x = out["layers/0/x_scales"][()]
    del out["layers/0/x_scales"]
    out["layers/0/x_scales"] = x[:, 1:]
case, = record(fixture, "--outputs", path("outputs.h5"), code=2)["cases"]
expect("x_scales" in case["reason"] and "has shape" in case["reason"], case["reason"])


# Damaged fields.
def damaged(word, change, source="nvfp4.h5"):
    with open(path(source), "rb") as good, open(path("damaged.h5"), "wb") as bad:
        bad.write(good.read())
    with h5py.File(path("damaged.h5"), "a") as f:
        change(f)
    line = refused("info", path("damaged.h5"))
    expect(word in line, f"{line}: does not say {word}")


def scales(*values):
    def change(f):
        f["layers/1/activation_scales"][...] = np.array(values, np.float32)
    return change


def large_products(f):
    f["layers/1/gate_up/global_scales"][0, 0] = 8
    scales(2.0**126, 1e-3)(f)


def attribute(name, text):
    def change(f):
        f.attrs[name] = np.bytes_(text)
    return change


def without(f):
    del f["layers/0/activation_scales"]


damaged("element 0 of /layers/1 is 8.50706e+37, and times", large_products)
damaged("of down/global_scales, it is no normal number", scales(1e-3, 2.0**-126))
damaged("activation_scales: missing in /layers/0", without)
damaged("not above zero", scales(1, -1))
damaged("not finite", scales(np.nan, 1))
damaged("normal", scales(1, 2.0**-127))
damaged("input_sha256", scales(1, 1))
damaged("activations: format 'int4' is unknown", attribute("activations", "int4"))
damaged("'mxfp4' is not supported", attribute("activations", "mxfp4"))
damaged("leave it out", attribute("activations", "bf16"))
damaged("makes no mxfp8", attribute("activations", "mxfp8"))
damaged("'other' makes no nvfp4", attribute("activation_recipe", "other"))
damaged("input_sha256", attribute("activation_recipe", "nvfp4.te/1"))
damaged("drop it", attribute("activation_recipe", "nvfp4.torchao-onelevel/1"))
damaged("'' makes no nvfp4", lambda f: f.attrs.__delitem__("activation_recipe"))

expect_kept()
