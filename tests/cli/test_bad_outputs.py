# SPDX-License-Identifier: Apache-2.0
"""Files of outputs that other readers would refuse, or that ask for much memory."""
import json
import struct

import h5py
import numpy as np

from kept import expect_kept
from program import expect, path, record, refused, run

LAYERS, TOKENS, HIDDEN = 2, 3, 64
fixture = path("good.h5")
run("make", fixture, "--shape", f"4,2,{HIDDEN},32", "--tokens", TOKENS, "--layers", LAYERS)
values = np.full((LAYERS, TOKENS, HIDDEN), 0.5, np.float32)


def judged(name, wrong=None):
    """Read and judged, or refused with a line that names the file and says what is wrong."""
    if wrong is None:
        expect(record(fixture, "--outputs", path(name), code=1)["cases"][0]["verdict"] == "FAIL", name)
        return
    line = refused("verify", fixture, "--outputs", path(name))
    expect(f"{name}: {wrong}" in line, line)


def npy(name, header):
    with open(path(name), "wb") as stream:
        stream.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + values.tobytes())


KEYS = b"'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, 64), "
npy("good.npy", b"{" + KEYS + b"}   \n")
judged("good.npy")
for header in (b"{" + KEYS + b"} garbage", b"{" + KEYS + b"}}", b"{'shape': (2, 9, 64), " + KEYS + b"}",
               b"{'descr': '<f8', " + KEYS + b"}", b"{'fortran_order': True, " + KEYS + b"}"):
    npy("bad.npy", header)
    judged("bad.npy", "header: is no description of an array")


def safetensors(name, metadata):
    size = values[0].nbytes
    header = json.dumps({"__metadata__": metadata, **{
        f"layers.{l}.output": {"dtype": "F32", "shape": [TOKENS, HIDDEN], "data_offsets": [l * size, (l + 1) * size]}
        for l in range(LAYERS)}}).encode()
    with open(path(name), "wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header + values.tobytes())


safetensors("good.safetensors", {"format": "pt"})
judged("good.safetensors")
for metadata in (5, "text", [], {"format": 5}, None):
    safetensors("bad.safetensors", metadata)
    judged("bad.safetensors", "__metadata__: ")

# A chunk is read as a whole: 66 MiB of zeros are 66 KiB of gzip.
for name, side in (("good.h5o", 64), ("bad.h5o", 4160)):
    with h5py.File(path(name), "w") as f:
        for l in range(LAYERS):
            made = f.create_dataset(f"layers/{l}/output", (TOKENS, HIDDEN), np.float32, chunks=(side, side),
                                    maxshape=(None, None), compression="gzip")
            made[0, 0] = 1
    judged(name, None if side == 64 else "/layers/0/output: has chunks of 69222400 bytes; write at most 67108864")

# Routing is ids and weights; activations' codes belong to contracts that have them.
def hdf5(name, dataset, array):
    with h5py.File(path(name), "w") as f:
        for l in range(LAYERS):
            f[f"layers/{l}/output"] = values[l]
            f[f"layers/{l}/{dataset}"] = array


for dataset, array, wrong in (
        ("routing/weights", np.full((TOKENS, 2), np.nan, np.float32), "/layers/0/routing/ids: missing"),
        ("routing/ids", np.zeros((TOKENS, 2), np.int64), "write int32"),
        ("x_codes", np.zeros((TOKENS, HIDDEN // 2), np.uint8), "/layers/0/x_codes: the fixture has bf16 activations")):
    hdf5("bad.h5o", dataset, array)
    line = refused("verify", fixture, "--outputs", path("bad.h5o"))
    expect(wrong in line, line)

expect_kept()
