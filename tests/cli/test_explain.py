# SPDX-License-Identifier: Apache-2.0
"""What a failure looks like is named, and its smallest part still fails."""
import os

import h5py
import numpy

from kept import expect_kept
from program import FAULTS, expect, path, record, refused, run

fixture = path("explain.h5")
run("make", fixture, "--shape", "8,2,64,32", "--tokens", "8")
with h5py.File(fixture) as file:
    truth = file["layers/0/truth/quantised"][...]
    ids = file["layers/0/routing/ids"][...]
MINIMISED = ("routing-weight-missing", "gate-up-swapped")
NAMED = {
    "routing-weight-missing": "routing weight missing",
    "scale-index": "scales of the next block",
    "gate-up-swapped": "gate and up swapped",
    "last-block-dropped": "last K block dropped",
    "last-block-of-x-dropped": "last K block of gate and up dropped",
    "scale-clamped": "scales of the next block, a row's last kept",
    "nibble-order": "nibbles exchanged",
    "expert-dropped": f"expert {ids[0, 0]} left out",
    "zero-output": "output zero",
    "routing-weight-bf16-unordered": "routing weight in bf16",
    "scaled-unordered": "the output scaled by 1.0005",
}
for fault, name in NAMED.items():
    small = path(f"{fault}.h5")
    more = ("--minimise", small) if fault in MINIMISED else ()
    case, = record(fixture, "--subject", FAULTS, "--kernel", f"faults/{fault}", *more, code=1)["cases"]
    found = case["explanation"]
    expect(any(one.startswith(name) for one in (found["name"], *found["also_fits"])) and found["explains"] > 0.99,
           f"{fault}: {found}")
    expect(f"looks like: {found['name']}" in case["reason"], case["reason"])
    expect(("next" in case) == (not more) and "--minimise" in case.get("next", "--minimise"), case.get("next"))
    if not more:
        continue
    minimal = case["minimal"]
    expect(minimal["bytes"] == os.path.getsize(small) < 1 << 20 and not os.path.exists(small + ".trial"), str(minimal))
    expect(minimal["tokens"] * minimal["slots"] <= 3 and minimal["hidden"] <= 32, f"{fault}: {minimal}")
    words = minimal["repro"].split()
    expect(words[:2] == ["gaugeblock", "verify"] and words[2] == small, minimal["repro"])
    run(*words[1:], code=1)
    with h5py.File(small) as file:
        expect(len(file["layers"]) == 1, "one layer")



def judged(output, code=1):
    numpy.save(path("o.npy"), output.astype(numpy.float32))
    case, = record(fixture, "--outputs", path("o.npy"), code=code)["cases"]
    return case


wrong = truth.copy()
wrong[5] *= 1.25
case = judged(wrong)
expect(case["explanation"]["where"].get("tokens") == "5", str(case["explanation"]))
expect("of token 5: multiplied by 1.25" in case["explanation"]["name"], str(case["explanation"]))
found, = case["explanation"]["structure"]
expect(found["stage"] == "combine" and found["place"] == "of token 5" and
       found["effect"].startswith("multiplied by 1.25"), str(case["explanation"]))

wrong = truth.copy()
wrong[:, 1::2] += numpy.sign(wrong[:, 1::2]) * 0.1
expect(judged(wrong)["explanation"]["where"]["columns"] == "the odd ones", "parity")
wrong = truth.copy()
wrong[:, [c for c in range(64) if c % 32 < 4]] *= -3
expect(judged(wrong)["explanation"]["where"]["columns"] == "0 to 3 of every 32", "tile")
wrong = truth.copy()
wrong[:, 32:48] = 0
case = judged(wrong)
expect(case["explanation"]["where"]["columns"] == "32 to 47", "range")
wrong = truth.copy()
wrong[7, 9] = numpy.nan
where = judged(wrong)["explanation"]["where"]
expect(where["tokens"] == "7" and where["columns"] == "9", str(where))
expert = ids[0, 0]
wrong = truth.copy()
wrong[(ids == expert).any(axis=1)] += 1
expect(judged(wrong)["explanation"]["where"]["expert"] == expert, "expert")

rng = numpy.random.default_rng(5)
case = judged(truth + rng.normal(size=truth.shape))
expect(case["explanation"]["name"] == "" and "; no structure found, no known bug fits it" in case["reason"], str(case["explanation"]))
expect("explanation" not in judged(truth, code=0), "nothing to explain")
# Where nothing is named, the next step is said; the same step is no advice to who has taken it.
expect("write the intermediate beside the output" in case["next"], case["next"])
one = ["--subject", FAULTS, "--kernel", "faults/one-element"]
case, = record(fixture, *one, code=1)["cases"]
expect(case["explanation"]["name"] == "" and "few differ" in case["next"], str(case))
case, = record(fixture, *one[:2], "--kernel", "faults/routing-weight-truncated-declared", code=1)["cases"]
expect(case["explanation"]["name"] == "routing weight: truncated to bf16" and case["next"].startswith("add --minimise"), str(case))
case, = record(fixture, *one[:2], "--kernel", "faults/routing-weight-truncated-declared", "--minimise", path("one.h5"),
               code=1)["cases"]
expect("next" not in case and case["minimal"]["bytes"] == os.path.getsize(path("one.h5")), str(case))

# Without an order, no file where nothing failed; and bad usage.
case, = record(fixture, "--minimise", path("none.h5"))["cases"]
expect("minimal" not in case and not os.path.exists(path("none.h5")), "nothing to minimise")
refused("verify", fixture, "--outputs", path("o.npy"), "--minimise", path("none.h5"))

# Other formats and several layers.
for name in ("fp8", "bf16"):
    run("make", path(f"{name}.h5"), "--shape", "6,2,256,128" if name == "fp8" else "6,2,64,32", "--tokens", "4", "--format", name,
        "--layers", "2")
    with h5py.File(path(f"{name}.h5")) as file:
        both = numpy.stack([file[f"layers/{layer}/truth/quantised"][...] for layer in range(2)])
    both[1] *= 0.4
    numpy.save(path("two.npy"), both.astype(numpy.float32))
    case, = record(path(f"{name}.h5"), "--outputs", path("two.npy"), code=1)["cases"]
    expect(case["explanation"]["layer"] == 1 and case["explanation"]["name"] == "routed scaling factor missing", name)

expect_kept()
