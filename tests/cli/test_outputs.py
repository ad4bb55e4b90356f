# SPDX-License-Identifier: Apache-2.0
"""Outputs as files: the script of docs/kernels.md is judged, and a single changed element is found."""
import os
import subprocess

import h5py
import numpy as np

from blocks import block
from program import expect, path, record, run, small

fixture, good = small(), path("outputs.h5")
with open(path("outputs.py"), "w") as stream:
    stream.write(block("kernels.md", "python"))
subprocess.run([os.environ["PYTHON"], path("outputs.py"), fixture, good], check=True)
one = record(fixture, "--outputs", good)
expect(one["cases"][0]["lanes"]["bound"]["elements"] == 2 * 9 * 96, "every element is checked")

with h5py.File(good) as f:
    layers = [f[f"layers/{i}/output"][:] for i in range(2)]
np.save(path("outputs.npy"), np.stack(layers))
record(fixture, "--outputs", path("outputs.npy"))

changed = np.stack(layers)
size = np.sqrt((changed[1, 5] ** 2).mean())
changed[1, 5, 77] += 0.05 * size
np.save(path("changed.npy"), changed)
reason = record(fixture, "--outputs", path("changed.npy"), code=1)["cases"][0]["reason"]
expect("output of layer 1: 1 of" in reason and "token 5, element 77" in reason, reason)

# With the order claimed, one bit is enough; the reference's own bits come from its record.
record(fixture, "--outputs", path("outputs.npy"), "--order", "fma32/1", code=1)

for value in (np.nan, np.inf, 0.0):
    changed = np.stack(layers)
    changed[0, 3] = value
    np.save(path("changed.npy"), changed)
    record(fixture, "--outputs", path("changed.npy"), code=1)

np.save(path("prefix.npy"), np.stack(layers)[:, :4])
expect(record(fixture, "--outputs", path("prefix.npy"))["cases"][0]["batch"] == 4, "a prefix of the tokens is a batch")
np.save(path("wrong.npy"), np.zeros((2, 9, 95), np.float32))
expect("wrong.npy" in run("verify", fixture, "--outputs", path("wrong.npy"), code=2).stderr, "the file must be named")
run("verify", fixture, "--outputs", path("missing.npy"), code=2)

# A file name that is no UTF-8 loses no case, and truth that does not fit the inputs is refused.
odd = os.path.join(os.path.dirname(os.fsencode(fixture)), b"od\xffd.h5")
os.rename(fixture, odd)
done = subprocess.run([os.environ["GAUGEBLOCK"], "verify", odd, "--outputs", path("changed.npy"), "--expect", "1"],
                      capture_output=True)
expect(done.returncode == 1 and b"FAIL" in done.stdout, done.stdout.decode(errors="replace"))
os.rename(odd, fixture)
with h5py.File(fixture, "r+") as f:
    f["layers/0/truth/routing_weights"][0, 0] = 1e6
expect("truth/routing_weights" in run("verify", fixture, code=2).stderr, "truth that widens the bounds")
os.symlink("/dev/null", path("link.h5"))
run("make", path("link.h5"), "--shape", "8,3,96,48", code=2)
run("verify", small("again.h5"), "-o", path("again.json"))
os.symlink(path("again.json"), path("link.json"))
run("verify", path("again.h5"), "-o", path("link.json"), code=2)
