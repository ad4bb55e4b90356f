# SPDX-License-Identifier: Apache-2.0
"""Gate files and presets: what binds, what is missed, what is refused."""
import json

import h5py
import numpy

from kept import expect_kept
from program import FAULTS, expect, path, record, refused, run

fixture = path("gate.h5")
run("make", fixture, "--shape", "8,3,128,64", "--tokens", "4")
with h5py.File(fixture) as file:
    truth = file["layers/0/truth/quantised"][...]


def gate(name="gate.json", **keys):
    with open(path(name), "w") as stream:
        json.dump({"schema": "gaugeblock-gate/2", **keys}, stream)
    return path(name)


def judge(output, which, code, *more):
    numpy.save(path("o.npy"), output.astype(numpy.float32))
    case, = record(fixture, "--outputs", path("o.npy"), "--gate", which, *(more or ["--no-diagnosis"]), code=code)["cases"]
    return case


# Each threshold just met and just missed, by an error of known size.
peak = numpy.abs(truth).max()
wrong = truth.copy()
wrong[3, 5] += 0.25 * peak
energy = (truth * truth).sum()
nmse = (0.25 * peak) ** 2 / energy
figures = {
    "cosine": (truth * wrong).sum() / numpy.sqrt(energy * (wrong * wrong).sum()),
    "cosine_min": (truth[3] @ wrong[3]) / numpy.sqrt((truth[3] @ truth[3]) * (wrong[3] @ wrong[3])),
    "max_abs": 0.25 * peak,
    "nmse": nmse,
}
for key, value in figures.items():
    strict = 1 if key.startswith("cosine") else -1
    easy = judge(wrong, gate(**{key: value - strict * 2e-6 * abs(value)}), 0)
    missed = judge(wrong, gate(**{key: value + strict * 2e-6 * abs(value)}), 1)
    expect(f"threshold {key} of the policy" in missed["reason"], missed["reason"])
    check, = easy["checks"]["thresholds"]["checks"]
    expect(check["name"] == key and abs(check["value"] - value) < 1e-6 * abs(value), f"{key}: {check} for {value}")
    expect(easy["checks"]["bound"] | {"binding": False, "result": "FAIL"} == easy["checks"]["bound"], "no check binds")
expect("outside the derived bound" in judge(wrong, gate(checks=["bound"], max_abs=peak), 1)["reason"], "a check binds")

# Sums bind one kind by one: a scale that the one sees before the other does, and one that both see.
for factor, rms, scale in ((1.0, 0, 0), (1.001, 0, 1), (1.004, 1, 1)):
    for check, missed in (("rms", rms), ("scale", scale)):
        reason = judge(truth * factor, gate(checks=[check]), missed).get("reason", "")
        expect(reason.startswith(f"{check} of" if missed else ""), f"{factor}, {check}: {reason}")

share = 1 - 1 / truth.size
judge(wrong, gate(atol=1e-4, rtol=0, fraction=share), 0)
judge(wrong, gate(atol=1e-4, rtol=0), 1)
far = truth.copy()
far[0] *= 1.5  # relative to truth 0.5, to the subject 1/3
judge(far, gate(atol=1e-6, rtol=0.4), 1)
judge(far, gate(atol=1e-6, rtol=0.4, relative_to="subject"), 0)
near = truth + 0.009
judge(near, gate(atol=0.01, rtol=0.01, either=True), 0)
judge(truth * 1.009, gate(atol=0.01, rtol=0.01, either=True), 0)
judge(truth * 1.009 + 0.009, gate(atol=0.01, rtol=0.01, either=True), 1)
judge(truth * 1.009 + 0.009, gate(atol=0.01, rtol=0.01), 0)

# Zeros and undefined figures.
vacuous = judge(truth, gate(atol=2 * peak, rtol=0), 4)
expect("zeros would meet" in vacuous["reason"], vacuous["reason"])
judge(truth, gate(atol=2 * peak, rtol=0, checks=["bound"]), 0)
judge(numpy.zeros_like(truth), gate(cosine=1e-9), 1)
judge(numpy.zeros_like(truth), gate(nmse=3.9, relative_to="subject"), 1)
vacuous = judge(truth, gate(nmse=4.1, relative_to="subject"), 4)
expect("truth of the wrong sign would meet" in vacuous["reason"], vacuous["reason"])
judge(truth, gate(nmse=4.1, relative_to="subject", cosine=0.1), 0)
for keys in ({"nmse": 1.01}, {"atol": 0, "rtol": 1.01}):
    vacuous = judge(truth, gate(**keys, relative_to="subject"), 4)
    expect("huge values would meet" in vacuous["reason"], vacuous["reason"])
judge(truth, gate(nmse=0.99, relative_to="subject"), 0)
nan = truth.copy()
nan[0, 0] = numpy.nan
for keys in ({"cosine": 1e-9}, {"cosine_min": 1e-9}, {"max_abs": 1e300}, {"nmse": 1e300}, {"atol": 1e300, "rtol": 0}):
    judge(nan, gate(**keys), 1)

for preset in ("vllm-nvfp4-moe", "flashinfer-fp4-moe", "flashinfer-bench-moe"):
    infinite = judge(numpy.full_like(truth, numpy.inf), preset, 1)
    expect(f"the threshold close of the policy {preset} is missed" in infinite["reason"], infinite["reason"])
expect("looks like: output: zero" in judge(truth * 1e-35, "default", 1, "-v")["reason"], "all but zeros")

# An order claimed: its bits bind under any gate.
_, = record(fixture, "--subject", FAULTS, "--kernel", "faults/one-element", "--gate", "cosine-0.99", code=1)["cases"]
_, = record(fixture, "--subject", FAULTS, "--kernel", "faults/one-element-unordered", "--gate", "cosine-0.99")["cases"]

# Presets are gate files, and give the same verdict as one.
presets = [json.loads(line) for line in run("list", "gates").stdout.splitlines()]
expect(presets[0]["name"] == "default" and presets[0]["checks"] == ["exact", "bound", "rms", "scale"], presets[0])
for number, preset in enumerate(presets):
    given = record(fixture, "--gate", preset["name"], "--no-diagnosis", code=1 if preset["name"] == "cosine-0.999996" else 0)
    expect(given["policy"] == preset, given["policy"])
    if number % 2:
        continue
    with open(path("preset.json"), "w") as stream:
        json.dump({**preset, "name": "mine"}, stream)
    again = record(fixture, "--gate", path("preset.json"), "--no-diagnosis", code=given["exit_code"])
    expect(again["policy"] == {**preset, "name": "mine"}, again["policy"])
    checks = json.dumps(given["cases"][0]["checks"]).replace(preset["name"], "mine")
    expect(checks == json.dumps(again["cases"][0]["checks"]), preset["name"])

# Refused, in one line that names the file and the key.
for keys, word in (({}, "without checks"), ({"checks": ["all"]}, "checks"), ({"cosine": 2}, "cosine"), ({"cosin": 1}, "cosin"),
                   ({"nmse": "0"}, "nmse"), ({"atol": 1}, "rtol"), ({"fraction": 1, "nmse": 1}, "fraction"),
                   ({"max_abs": -1}, "max_abs"), ({"cosine": -1}, "cosine"), ({"cosine_min": 0}, "cosine_min"),
                   ({"atol": 0.1, "rtol": -0.1}, "rtol"), ({"atol": 0.1, "rtol": 0, "fraction": 0}, "fraction"), ({"relative_to": "x", "nmse": 1}, "relative_to")):
    line = refused("verify", fixture, "--gate", gate(**keys))
    expect(word in line and "gate.json" in line, line)
for text in ("", "{", "[]", '{"nmse": 1}', '{"schema": "gaugeblock-gate/1", "nmse": 1}'):
    with open(path("bad.json"), "w") as stream:
        stream.write(text)
    expect("bad.json" in refused("verify", fixture, "--gate", path("bad.json")), text)
for text in ('{"schema": "gaugeblock-gate/2",\n "nmse": 1,\n}', '{"schema": "gaugeblock-gate/2",\n "nmse":\n 1e999}'):
    with open(path("bad.json"), "w") as stream:
        stream.write(text)
    line = refused("verify", fixture, "--gate", path("bad.json"))
    expect("bad.json: " in line and "line 3, column " in line, line)
refused("verify", fixture, "--gate", path("missing.json"))

expect_kept()
