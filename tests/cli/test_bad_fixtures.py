# SPDX-License-Identifier: Apache-2.0
"""Fixtures whose types, shapes and hash are right, and whose content is not: one line names file, field and mend."""
import time

import numpy as np

from damaged import damage, replace, set_attribute
from kept import expect_kept
from program import expect, path, refused, run

SHAPE = ["--shape", "4,2,64,32", "--tokens", "3", "--layers", "2"]
stored, generated = path("stored.h5"), path("generated.h5")
run("make", stored, *SHAPE)
run("make", generated, "--generated", *SHAPE)


def wrong(good, change, *said, rehash=True):
    file = damage(good, "bad.h5", change, rehash)
    for command in ("info", "verify"):
        line = refused(command, file)
        for text in ("bad.h5", *said):
            expect(text in line, f"'{text}' is not in '{line}'")


# A copy without damage is the fixture.
for good in (stored, generated):
    run("verify", damage(good, "same.h5", lambda f: None))

# A stack is routed in every layer; without a stack neither is needed.
for name in ("layers/0/norm/weight", "layers/1/router/weight"):
    wrong(stored, lambda f: f.__delitem__(name), f"/{name}: missing", "no stack")


def no_stack(f):
    del f["stack"], f["layers/0/norm"], f["layers/1/router"]


run("verify", damage(stored, "plain.h5", no_stack))

# The contract is the one of the formats, and what stands for weights is known.
for name in (b"foo", b"", b"mxfp8.bf16.fma32/1", b"nvfp4.bf16.fma32/9"):
    wrong(stored, lambda f: set_attribute(f, "contract", name), "contract: ", "write 'nvfp4.bf16.fma32/1'")
for name in (b"nope", b""):
    wrong(generated, lambda f: set_attribute(f, "generator", name), "generator: ", "write 'gaussian/1'")
run("info", damage(stored, "other.h5", lambda f: set_attribute(f, "generator", b"another program")))
wrong(stored, lambda f: set_attribute(f, "source", b"\xff\xfe"), "source: ", "UTF-8", rehash=False)

# Whether there may be NaN is 0 or 1, in problems of every operator; 0 says what its absence does.
quantiser, sent = path("quantiser.h5"), path("sent.h5")
run("make", quantiser, "--operator", "quantise", "--recipe", "nvfp4.trtllm/1", "--shape", "4,64")
run("make", sent, "--operator", "dispatch", "--shape", "8,2,128", "--tokens", 4)
for good in (stored, quantiser, sent):
    for value in (2, -1):
        wrong(good, lambda f: set_attribute(f, "nonfinite", value), "nonfinite: ", "out of range", rehash=False)
    run("verify", damage(good, "finite.h5", lambda f: set_attribute(f, "nonfinite", 0), rehash=False))
    wrong(good, lambda f: set_attribute(f, "nonfinite", 1), "input_sha256: ", rehash=False)


# Ids are checked in time that does not grow with the square of their number.
def many_ids(f):
    count = 1 << 17
    for name in ("experts", "top_k"):
        set_attribute(f, name, count)
    set_attribute(f, "tokens", 1)
    for l in ("layers/0/", "layers/1/"):
        replace(f, l + "routing/ids", np.arange(count, dtype=np.int32)[None])
        replace(f, l + "routing/weights", np.full((1, count), 1 / count, np.float32))
        replace(f, l + "truth/routing_weights", np.full((1, count), 1 / count))
        for name in ("x", "truth/quantised", "truth/original"):
            replace(f, l + name, f[l + name][:1])
        for name in ("router", "norm"):
            del f[l + name]
    f["layers/1/routing/ids"][0, count - 1] = 7


begin = time.monotonic()
wrong(generated, many_ids, "/layers/1/routing/ids: expert 7 is chosen twice by token 0")
expect(time.monotonic() - begin < 60, f"{time.monotonic() - begin} s for ids")


# Where truth has no hash: it is computed again, or held against what is.
def wrong_truth(change, *said):
    line = refused("verify", damage(stored, "bad.h5", change))
    for text in ("bad.h5: ", *said):
        expect(text in line, f"'{text}' is not in '{line}'")


def put(name, values, where=...):
    return lambda f: f[name].__setitem__(where, values)


LIMIT = "/stack/truth/quantised: is not that of its inputs"
for values in (0, 1e308):
    wrong_truth(put("stack/truth/quantised", values), LIMIT, "make the fixture again")
    wrong_truth(put("stack/truth/original", values), "/stack/truth/original: is ")
    wrong_truth(put("layers/1/truth/original", values), "/layers/1/truth/original: is ")
    wrong_truth(put("layers/0/truth/quantised", values), "/layers/0/truth/quantised: is not", "make the fixture again")
for factor in (100, 0.01):
    for group in ("/layers/1", "/stack"):
        wrong_truth(lambda f, name=f"{group[1:]}/truth/original": f[name].__setitem__(..., factor * f[name][...]),
                    f"{group}/truth/original: is ", "times as large as truth/quantised, which no quantisation makes")
wrong_truth(put("stack/residual", 1e308), LIMIT)
wrong_truth(put("layers/0/norm/weight", 3e38, 0), LIMIT)


def scaled(by, element=5):
    def change(f):
        f["stack/truth/quantised"][1, 2, element] *= by
    return change


for element in (0, 5, 63):
    wrong_truth(scaled(1 + 1e-6, element), f"after layer 1, token 2, element {element} ")
run("verify", damage(stored, "close.h5", scaled(1 + 1e-12)))


# The limit is 2^-32 of the largest element that the layer adds to the token.
def beside(share):
    def change(f):
        stream = f["stack/truth/quantised"]
        stream[1, 2, 5] += share * 2.0**-32 * abs(stream[1, 2] - stream[0, 2]).max()
    return change


wrong_truth(beside(1.1), "after layer 1, token 2, element 5 ")
run("verify", damage(stored, "close.h5", beside(0.9)))


# Truth that is right, of a stream that no kernel can follow.
def still(f):
    for name in ("stack/residual", "stack/truth/quantised", "stack/truth/original"):
        f[name][...] = 1e300
    for l in range(2):
        for name in ("x", "truth/quantised", "truth/original"):
            f[f"layers/{l}/{name}"][...] = 0


wrong_truth(still, "/stack/truth/original: is so large that no distance from it can be computed")

expect_kept()
