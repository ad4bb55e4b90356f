# SPDX-License-Identifier: Apache-2.0
"""quantisers.py PACKAGE GAUGEBLOCK VECTORS [RESULT.json]: quantisers that others wrote and published on PyPI are run on
the conformance vectors, and `gaugeblock identify` says which recipe each implements. Every one must be the recipe that
docs/recipes.md says it is: on all blocks, or on all but those with NaN or infinity, or on all but some that are named
here with the reason. Skipped where the package is missing. PACKAGE: torchao, compressed-tensors, nvidia-modelopt, gguf."""
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import warnings

PACKAGE, PROGRAM, VECTORS = sys.argv[1:4]


try:
    import numpy as np
    VERSION = importlib.metadata.version(PACKAGE)
    if PACKAGE != "gguf":
        import torch
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
warnings.filterwarnings("ignore")
np.seterr(all="ignore")


def read_inputs(name):
    """A file of inputs: A of each case, and values [cases, rows, columns] in binary32."""
    with open(os.path.join(VECTORS, name + ".txt")) as stream:
        lines = [line.split() for line in stream if not line.startswith("#")]
    _, cases, rows, columns = map(str, lines[3])
    cases, rows, columns = int(cases), int(rows), int(columns)
    bits = bytes.fromhex("".join(line[0] for line in lines[4:-1] if line[0] != "case"))
    values = np.frombuffer(bits, ">u2").astype(np.uint32) << 16
    amax = np.frombuffer(bytes.fromhex("".join(line[3] for line in lines[4:-1] if line[0] == "case")), ">f4")
    return amax.astype(np.float32), values.view(np.float32).reshape(cases, rows, columns)


def u8(tensor):
    return tensor.contiguous().view(torch.uint8).numpy()


# Where a quantiser is not its recipe. Codes of NaN are those of no rule: bits of a NaN pass through integer arithmetic,
# a NaN scale is cast to uint8, or it decodes as an infinity by which elements are divided.
NOWHERE, NONFINITE = (0, ""), (0, "blocks with NaN or infinity")
OVERFLOWS = (1, "blocks with NaN or infinity, and the largest maximum: an infinite exponent is cast to uint8")
WRAPS = (6, "blocks with NaN or infinity, and maxima below 2^-125: a negative exponent is cast to uint8")


# Each yields what was called, block format, recipe, where it differs, and a function of A and x [rows, columns], binary32,
# that returns codes and scales. A matrix of zeros is given the global scale 1, as recipes have it.


def torchao():
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    def mx(element, mode):
        def quantise(amax, x):
            scales, codes = to_mx(torch.from_numpy(x), element, 32, mode)
            return u8(codes), u8(scales)
        return quantise

    def nvfp4(amax, x):
        d = per_tensor_amax_to_scale(torch.tensor(amax)) if amax else torch.tensor(1.0)
        scales, codes = nvfp4_quantize(torch.from_numpy(x), 16, d)
        return u8(codes), u8(scales)

    def nvfp4_onelevel(amax, x):
        scales, codes = nvfp4_quantize(torch.from_numpy(x), 16)
        return u8(codes), u8(scales)

    elements = [(torch.float4_e2m1fn_x2, "e2m1", "mxfp4"), ("fp6_e3m2", "e3m2", "mxfp6e3m2"),
                ("fp6_e2m3", "e2m3", "mxfp6e2m3"), (torch.float8_e4m3fn, "e4m3", "mxfp8"),
                (torch.float8_e5m2, "e5m2", "mxfp8e5m2")]
    for element, name, recipe in elements:
        for mode in ScaleCalculationMode:
            rule = {"floor": "torchao-floor", "rceil": "torchao-rceil" if recipe == "mxfp8" else "rceil"}.get(mode.value,
                                                                                                             mode.value)
            where = NOWHERE if mode.value == "rceil" and recipe.startswith("mxfp8") else NONFINITE
            yield f"to_mx {name} {mode.value}", f"{name}-1x32-e8m0", f"{recipe}.{rule}/1", where, mx(element, mode)
    yield "nvfp4_quantize, per_tensor_scale", "e2m1-1x16-e4m3", "nvfp4.torchao/1", NONFINITE, nvfp4
    yield "nvfp4_quantize", "e2m1-1x16-e4m3", "nvfp4.torchao-onelevel/1", NONFINITE, nvfp4_onelevel


def compressed_tensors():
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp, generate_gparam

    def e2m1(values):
        codes = np.searchsorted([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.abs(values)) + 8 * np.signbit(values)
        return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)

    def quantise_with(x, args, gparam=None):  # symmetric: no zero point
        x = torch.from_numpy(x)
        scale, _ = compute_dynamic_scales_and_zp(x, args, None, global_scale=gparam)
        return scale, quantize(x, scale, None, args, global_scale=gparam)

    def mx(bits):
        args = QuantizationArgs(num_bits=bits, type="float", strategy="group", group_size=32, symmetric=True,
                                scale_dtype=torch.uint8, dynamic=True)

        def quantise(amax, x):
            scale, values = quantise_with(x, args)
            codes = e2m1(values.numpy()) if bits == 4 else u8(values.to(torch.float8_e4m3fn))
            return codes, (127 + torch.log2(scale)).numpy().astype(np.uint8)
        return quantise

    def nvfp4(amax, x):
        args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True,
                                scale_dtype=torch.float8_e4m3fn, dynamic="local")
        scale, values = quantise_with(x, args, generate_gparam(-torch.tensor(amax), torch.tensor(amax)))
        return e2m1(values.numpy()), u8(scale.to(torch.float8_e4m3fn))

    yield "quantize, FP4 groups of 32", "e2m1-1x32-e8m0", "mxfp4.compressed-tensors/1", OVERFLOWS, mx(4)
    yield "quantize, FP8 groups of 32", "e4m3-1x32-e8m0", "mxfp8.compressed-tensors/1", OVERFLOWS, mx(8)
    yield "quantize, FP4 tensor groups of 16", "e2m1-1x16-e4m3", "nvfp4.compressed-tensors/1", NONFINITE, nvfp4


def modelopt():
    from modelopt.torch.quantization.qtensor import MXFP4QTensor, MXFP8QTensor, NVFP4QTensor

    def mxfp4(amax, x):
        made, scales = MXFP4QTensor.quantize(torch.from_numpy(x).to(torch.bfloat16), 32)
        return u8(made._quantized_data), u8(scales)

    def mxfp8(amax, x):
        made, scales = MXFP8QTensor.quantize(torch.from_numpy(x).to(torch.bfloat16))
        return u8(made._quantized_data), u8(scales)

    def nvfp4(amax, x):
        d = torch.tensor(amax) / (6.0 * 448.0) if amax else torch.tensor(1.0)
        made, scales, _ = NVFP4QTensor.quantize(torch.from_numpy(x), 16, weights_scaling_factor_2=d)
        return u8(made._quantized_data), u8(scales)

    yield "MXFP4QTensor", "e2m1-1x32-e8m0", "mxfp4.modelopt/1", NONFINITE, mxfp4
    yield "MXFP8QTensor", "e4m3-1x32-e8m0", "mxfp8.rceil/1", NONFINITE, mxfp8
    yield "NVFP4QTensor", "e2m1-1x16-e4m3", "nvfp4.modelopt/1", NONFINITE, nvfp4


def gguf():
    from gguf.quants import MXFP4

    def mxfp4(amax, x):
        blocks = MXFP4.quantize_blocks(x.reshape(-1, 32))
        low, high = blocks[:, 1:] & 15, blocks[:, 1:] >> 4  # elements 0 to 15, and 16 to 31
        codes = np.concatenate([low, high], axis=1)
        return codes[:, ::2] | codes[:, 1::2] << 4, blocks[:, 0]

    yield "quants.MXFP4", "e2m1-1x32-e8m0", "mxfp4.llamacpp/1", WRAPS, mxfp4


def identify(folder, form, function):
    """What the program finds, as its record."""
    amax, x = read_inputs(form)
    outputs = [function(a, case.copy()) for a, case in zip(amax, x)]
    codes, scales, record = (os.path.join(folder, name) for name in ("codes.npy", "scales.npy", "record.json"))
    np.save(codes, np.stack([np.asarray(o[0]).reshape(len(x[0]), -1) for o in outputs]))
    np.save(scales, np.stack([np.asarray(o[1]).reshape(len(x[0]), -1) for o in outputs]))
    done = subprocess.run([PROGRAM, "identify", os.path.join(VECTORS, form + ".txt"), codes, "--scales", scales,
                           "-o", record], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    with open(record) as stream:
        found = json.load(stream)
    del found["command"]
    for name in ("vectors", "outputs", "scales"):
        found[name]["path"] = os.path.basename(found[name]["path"])
    return done.stdout, found


def wrong(record, recipe, extra):
    """Why it is not the recipe, but for blocks with NaN or infinity (extra: and for so many more); None if it is."""
    if record["recipes"]:
        return None if record["recipes"] == [recipe] and not extra else f"expected {recipe}"
    difference = record["difference"]
    if record["closest"] != recipe or difference["blocks"] - difference["nonfinite_blocks"] != extra:
        return f"expected {recipe}, and {extra} blocks without NaN and infinity that differ"
    return None


def main():
    quantisers = {"torchao": torchao, "compressed-tensors": compressed_tensors, "nvidia-modelopt": modelopt, "gguf": gguf}
    records, failed = [], False
    with tempfile.TemporaryDirectory() as folder:
        for called, form, recipe, (extra, where), function in quantisers[PACKAGE]():
            text, record = identify(folder, form, function)
            why = wrong(record, recipe, extra) or (not where and not record["recipes"] and f"expected {recipe} everywhere")
            print(f"{PACKAGE} {VERSION}: {called}: {recipe}{' but for ' + where if where else ''}")
            if why:
                failed = True
                print(f"  {why}; found {text}", end="")
            records.append({"package": PACKAGE, "version": VERSION, "quantiser": called, "recipe": recipe,
                            "differs_in": where, "identification": record})
    if len(sys.argv) > 4:
        with open(sys.argv[4], "w") as stream:
            json.dump(records, stream, indent=1)
    sys.exit(failed)


main()
