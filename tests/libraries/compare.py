# SPDX-License-Identifier: Apache-2.0
"""compare.py ml_dtypes|torch GB_CONVERT: a library's own conversions against the rows of quant/recipes/conversions.c that are
named after it (no bit may differ), and against our encoders (every difference has a rule)."""
import subprocess
import sys

try:
    import numpy as np
    library = __import__(sys.argv[1])
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
if sys.argv[1] == "torch":
    import torch
    saturates = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
    convert = lambda values, name: torch.from_numpy(values).to(getattr(torch, name))
    bits = lambda codes: codes.view(torch.uint8 if codes.element_size() == 1 else torch.int16).numpy()
    ROWS = [  # their type, the row that is to be equal in every bit, our encoder's row
        ("float8_e4m3fn", "e4m3.torch-2.13" if saturates else "e4m3.torch-2.12", "e4m3.cuda-satfinite"),
        ("float8_e4m3fnuz", "e4m3fnuz.torch", "e4m3fnuz.saturate"),
        ("float8_e5m2", "e5m2.torch", "e5m2.cuda-satfinite"),
        ("float8_e8m0fnu", "e8m0.torch", "e8m0.cuda-rp-satfinite"),
        ("bfloat16", None, "bf16.ieee"),
        ("float16", None, "fp16.ieee"),
    ]
else:
    import ml_dtypes
    convert = lambda values, name: values.astype(getattr(ml_dtypes, name, None) or name)
    bits = lambda codes: codes.view(np.uint8 if codes.itemsize == 1 else np.uint16)
    ROWS = [
        ("float4_e2m1fn", "e2m1.ml_dtypes", "e2m1.cuda"),
        ("float6_e3m2fn", "e3m2.ml_dtypes", "e3m2.cuda"),
        ("float6_e2m3fn", "e2m3.ml_dtypes", "e2m3.cuda"),
        ("float8_e4m3fn", "e4m3.ml_dtypes", "e4m3.cuda-satfinite"),
        ("float8_e4m3fnuz", "e4m3fnuz.ml_dtypes", "e4m3fnuz.saturate"),
        ("float8_e5m2", "e5m2.ml_dtypes", "e5m2.cuda-satfinite"),
        ("float8_e8m0fnu", "e8m0.ml_dtypes", "e8m0.cuda-rp-satfinite"),
        ("bfloat16", "bf16.ieee", "bf16.ieee"),
        ("float16", None, "fp16.ieee"),
    ]
LARGEST = {"e2m1": 6, "e3m2": 28, "e2m3": 7.5, "e4m3": 448, "e4m3fnuz": 240, "e5m2": 57344, "e8m0": 2.0**127,
           "bf16": 3.4e38, "fp16": 65504}

# Every bf16; every exponent and sign with the 128 first mantissas and what lies at and beside each and its tie.
mantissas = (np.arange(128)[:, None] << 16) + np.array([1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x4000])
floats = (np.arange(512)[:, None] << 23) + mantissas.reshape(-1)
inputs = np.concatenate([np.arange(65536) << 16, floats.reshape(-1)]).astype(np.uint32).view(np.float32)


def ours(row):
    done = subprocess.run([sys.argv[2], row], input=inputs.tobytes(), capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.uint16)


def rule(codec, x):
    """Why two conversions may differ at x."""
    largest = LARGEST[codec]
    return np.select(
        [np.isnan(x), np.isinf(x), np.abs(x) > largest, (codec == "e8m0") & (x <= 0) & (sys.argv[1] == "ml_dtypes"), np.full(x.shape, codec == "e8m0")],
        ["code of NaN", "infinity saturates or not", "overflow saturates or not", "zero and negative values",
         "rounded up, or to nearest"], "UNEXPLAINED")


failed = False
print(f"{sys.argv[1]} {library.__version__}")
for name, row, encoder in ROWS:
    if not hasattr(library, name) and name not in ("float16",):
        print(f"{name}: {sys.argv[1]} {library.__version__} has none")
        continue
    with np.errstate(all="ignore"):
        theirs = bits(convert(inputs, name)).astype(np.uint16)
    if row:
        differ = theirs != ours(row)
        print(f"{name} / {row}: {inputs.size} values, {differ.sum()} differ")
        for i in np.flatnonzero(differ)[:5]:
            failed = True
            print(f"  {inputs[i].view(np.uint32):08X}: theirs {theirs[i]:02X}, ours {ours(row)[i]:02X}")
    differ = theirs != ours(encoder)
    why = rule(encoder.split(".")[0], inputs[differ])
    reasons, counts = np.unique(why, return_counts=True)
    print(f"{name} / {encoder}: {differ.sum()} differ" + "".join(f"; {r}: {c}" for r, c in zip(reasons, counts)))
    for i in np.flatnonzero(differ)[why == "UNEXPLAINED"][:5]:
        failed = True
        print(f"  {inputs[i].view(np.uint32):08X}: theirs {theirs[i]:02X}, ours {ours(encoder)[i]:02X}")
sys.exit(failed)
