# SPDX-License-Identifier: Apache-2.0
"""Copies of a good fixture with one thing wrong, and the hash of what they then hold."""
import os
import re

import h5py
import numpy as np

from program import SOURCE, path

with open(os.path.join(SOURCE, "docs/fixtures.md")) as stream:
    documented = {}
    exec(re.search(r"```python\n(import hashlib.*?)print\(input_sha256", stream.read(), re.S).group(1), documented)


def set_attribute(target, name, value):
    """A text as bytes, a number as numpy's integer or float of the type it had."""
    kind = target.attrs.get_id(name).dtype if name in target.attrs and not isinstance(value, bytes) else None
    target.attrs.create(name, np.bytes_(value) if isinstance(value, bytes) else value, dtype=kind)


def damage(good, name, change, rehash=True):
    """Writes a copy to path(name), changed by change(h5py.File), with the hash of its inputs. Returns its path."""
    with h5py.File(good) as source, h5py.File(path(name), "w", libver="latest") as f:
        for key in source:
            source.copy(key, f)
        for key in source.attrs:
            f.attrs.create(key, source.attrs[key], dtype=source.attrs.get_id(key).dtype)
        change(f)
    if not rehash:
        return path(name)
    digest = documented["input_sha256"](path(name))
    with h5py.File(path(name), "r+", libver="latest") as f:
        set_attribute(f, "input_sha256", digest.encode())
        f.attrs.pop("truth_sha256", None)  # as of a file that others wrote
    return path(name)


def replace(f, name, values):
    """Another array in the place of one, stored as fixtures are."""
    labels = {key: f[name].attrs[key] for key in f[name].attrs}
    del f[name]
    made = f.create_dataset(name, data=values, chunks=tuple(min(size, 1 << 16) for size in values.shape),
                            fletcher32=True)
    for key, value in labels.items():
        made.attrs[key] = value
