# SPDX-License-Identifier: Apache-2.0
"""Truth that was changed by a factor of 1 + 2^-13 anywhere is refused: by its hash, and where a file has none, because it
is computed again. The BLAS may compute it by any of its kernels and threads."""
import itertools
import os
import re

import h5py
import numpy as np

from damaged import damage
from kept import expect_kept
from program import ALL, expect, path, refused, run

FACTOR = 1 + 2.0**-13
SHAPE = ["--shape", "8,3,128,64", "--tokens", "6", "--layers", "2"]
stored = path("stored.h5")
run("make", stored, *SHAPE)
generated, quantised, exact = path("generated.h5"), path("quantised.h5"), path("exact.h5")
run("make", generated, "--generated", *SHAPE)
run("make", quantised, "--activations", "nvfp4", *SHAPE)
run("make", exact, "--data", "exact", "--routing", "uniform", "--shape", "8,2,128,32", "--tokens", "4")


numbers = itertools.count()


def places(values):
    """Where: all, one row, the largest element, the smallest that is none, one at random. Unless ALL one of them, another
    one the next time."""
    found = list(every_place(values))
    return found if ALL else [found[next(numbers) % len(found)]]


def every_place(values):
    flat = np.abs(values).ravel()
    row = (0,) * (values.ndim - 1)
    yield ...
    yield row
    for one in (flat.argmax(), np.where(flat > 0, flat, np.inf).argmin(), flat.size // 3):
        if flat[one]:
            yield np.unravel_index(one, values.shape)


def scaled(name, where):
    def change(f):
        values = f[name][...]
        values[where] *= FACTOR
        f[name][...] = values
    return change


def truths(file):
    names = []
    with h5py.File(file) as f:
        f.visititems(lambda name, found: names.append((name, found[...])) if "/truth/" in name else None)
        expect(len(f.attrs["truth_sha256"]) == 64, "the hash is written")
    return names


count = 0
for good in (stored, generated):
    for name, values in truths(good):
        for where in places(values):
            line = refused("verify", damage(good, "changed.h5", scaled(name, where), rehash=False))
            expect("changed.h5" in line and "truth_sha256" in line, line)
            count += 1
expect(count > (60 if ALL else 10), f"{count} changes")
with h5py.File(stored) as f:
    residual = f["stack/residual"][...]
for where in places(residual):
    line = refused("verify", damage(stored, "changed.h5", scaled("stack/residual", where), rehash=False))
    expect("input_sha256" in line, line)
line = refused("info", damage(stored, "changed.h5", scaled("layers/1/truth/original", (5, 100)), rehash=False))
expect("truth_sha256" in line, line)

# Files that others wrote have no hash of truth.
for good in (stored, quantised, exact):
    run("verify", damage(good, "theirs.h5", lambda f: None))
    for name, values in (one for one in truths(good) if one[0].endswith("truth/quantised")):
        for where in places(values):
            file = damage(good, "theirs.h5", scaled(name, where))
            done = run("verify", file, code=2)
            expect("truth/quantised: is not that of its inputs" in done.stdout + done.stderr, f"{good}, {name}, {where}")

# The message names the place, what is there and what should be.
with h5py.File(stored) as f:
    was = f["layers/1/truth/quantised"][5, 100]
done = run("verify", damage(stored, "theirs.h5", scaled("layers/1/truth/quantised", (5, 100))), code=2)
found = re.search(r"/layers/1/truth/quantised: is not that of its inputs: 1 elements differ, first token 5, element 100: "
                  r"(\S+), computed again (\S+);", done.stdout + done.stderr)
expect(found, done.stdout + done.stderr)
expect(float(found[1]) == was * FACTOR and abs(float(found[2]) - was) <= 1e-12 * abs(was), f"{found[0]}, which was {was}")

# Another kernel of the BLAS, other threads: the same verdict, truth that was made elsewhere.
for core, threads in (("Nehalem", "2"), ("Haswell", "1"), ("Prescott", "1"), ("Sandybridge", "2"))[:4 if ALL else 1]:
    elsewhere = dict(os.environ, OPENBLAS_CORETYPE=core, OPENBLAS_NUM_THREADS=threads)
    file = path(f"{core}.h5")
    run("make", file, "--shape", "8,3,416,224", "--tokens", "12" if ALL else "4", "--layers", "1", env=elsewhere)
    run("verify", damage(file, "theirs.h5", lambda f: None))
    run("verify", file, env=dict(os.environ, OPENBLAS_CORETYPE="Prescott", OPENBLAS_NUM_THREADS="2"))

expect_kept()
