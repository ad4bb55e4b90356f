# SPDX-License-Identifier: Apache-2.0
"""Fixtures changed with h5py, as the schema wants them."""
import contextlib
import io
import sys

import h5py
import numpy as np

from blocks import block


def input_hash(file):
    """The input hash of what the file holds now, by the script of docs/fixtures.md."""
    arguments, told = sys.argv, io.StringIO()
    sys.argv = ["hash.py", file]
    with contextlib.redirect_stdout(told):
        exec(block("fixtures.md", "python"), {"__name__": "__main__"})
    sys.argv = arguments
    return told.getvalue().strip()


def rehash(file):
    """Gives the file the input hash of what it holds now."""
    digest = input_hash(file)
    with h5py.File(file, "r+") as f:
        f.attrs.modify("input_sha256", np.bytes_(digest))
        f.attrs.pop("truth_sha256", None)  # as of a file that others wrote


def replace(group, name, values, format):
    """A dataset as the schema wants it."""
    if name in group:
        del group[name]
    d = group.create_dataset(name, data=values, chunks=values.shape, fletcher32=True)
    d.attrs["format"], d.attrs["layout"] = np.bytes_(format), np.bytes_("row-major")


def pair_experts(file):
    """Routers whose experts 2n and 2n + 1 are equal: which one of a pair is chosen, only an order decides."""
    with h5py.File(file, "r+") as f:
        for layer in f["layers"].values():
            router = layer["router/weight"][:]
            router[1::2] = router[::2]
            replace(layer["router"], "weight", router, "bf16")
            if "bias" in layer["router"]:
                bias = layer["router/bias"][:]
                bias[1::2] = bias[::2]
                replace(layer["router"], "bias", bias, "fp32")
        if "stack" in f:
            del f["stack"]  # its truth is of the other router
    rehash(file)
