# SPDX-License-Identifier: Apache-2.0
"""Two records: same bits, changed bits and different inputs are told apart."""
import json
import os

from kept import expect_kept
from program import FAULTS, expect, path, refused, run, small

fixture = small()
run("verify", fixture, "-o", path("a.json"))
run("verify", fixture, "-o", path("b.json"))
expect("1 same bits" in run("diff", path("a.json"), path("b.json")).stdout, "same bits")

for kernel, code in (("faults/none", 0), ("faults/one-element", 1)):
    run("verify", fixture, "--subject", FAULTS, "--kernel", kernel, "-o", path(f"{code}.json"), code=code)
with open(path("1.json")) as stream:
    text = stream.read().replace("faults/one-element", "faults/none")
with open(path("1.json"), "w") as stream:
    stream.write(text)
done = run("diff", path("0.json"), path("1.json"), code=1)
expect("PASS before and not now" in done.stdout and "1 changed bits" in done.stdout, done.stdout)

expect("same kernel, same inputs, same device: it is not deterministic; max err/bound 0." in done.stdout, done.stdout)
with open(path("1.json")) as stream:
    other = json.load(stream)
other["cases"][0]["subject"]["library_sha256"] = "0" * 64
with open(path("1.json"), "w") as stream:
    json.dump(other, stream)
done = run("diff", path("0.json"), path("1.json"), code=1)
expect("another build of the kernel or another device" in done.stdout, done.stdout)

# A problem that is judged twice: the first is compared with the first, the second with the second.
twice = json.loads(json.dumps(other))
twice["cases"] = [json.loads(json.dumps(other["cases"][0])) for _ in range(3)]
for n, case in enumerate(twice["cases"]):
    case["metrics"]["layers"][0]["output_sha256"] = f"{n}"
with open(path("twice.json"), "w") as stream:
    json.dump(twice, stream)
done = run("diff", path("twice.json"), path("twice.json"))
expect("3 same bits, 0 changed bits" in done.stdout, done.stdout)

# Both errors within a tenth of the bound are at its edge; the reference is another one in another commit.
def compared(builtin, *halves):
    """What diff says of 0.json with these ratios to the bound and commits."""
    for name, (ratio, commit) in zip(("before.json", "now.json"), halves):
        with open(path("0.json")) as stream:
            half = json.load(stream)
        one = half["cases"][0]
        one["checks"]["bound"]["limit_ratio"], half["environment"]["commit"] = ratio, commit
        one["metrics"]["layers"][1]["output_sha256"] = name
        if builtin:
            one["subject"] = {"name": "cpu/nvfp4-layer", "library": builtin}
        with open(path(name), "w") as stream:
            json.dump(half, stream)
    return run("diff", path("before.json"), path("now.json"), code=1).stdout


for before, now, edge in ((0.9001, 1.0999, True), (1.0999, 0.9001, True), (0.9, 1.0, False), (1.0, 0.9, False),
                          (1.0, 1.1, False), (1.1, 1.0, False), (None, 1.0, None), (1.0, None, None)):
    text = compared(None, (before, "a"), (now, "a"))
    expect((": at the edge" in text) == bool(edge) and ("max err/bound" in text) == (edge is not None), f"{before}, {now}: {text}")
for library, commits, same in (("builtin", "aa", True), ("builtin", "ab", False), ("elsewhere.so", "aa", False)):
    text = compared(library, *((0.5, commit) for commit in commits))
    expect(("same kernel, same inputs" in text) == same, f"{library}, {commits}: {text}")

# A record of the version before, whose checks are called lanes.
with open(path("0.json")) as stream:
    before = json.load(stream)
before["schema"] = "gaugeblock-record/1"
before["cases"][0]["lanes"] = before["cases"][0].pop("checks")
with open(path("before.json"), "w") as stream:
    json.dump(before, stream)
expect("1 same bits" in run("diff", path("before.json"), path("0.json")).stdout, "a record of the version before")
expect("max err/bound 0." in run("diff", path("before.json"), path("1.json"), code=1).stdout, "its bound")

small("small.h5", "--seed", "2")
run("verify", fixture, "-o", path("c.json"))
done = run("diff", path("a.json"), path("c.json"), code=3)
expect("1 different inputs" in done.stdout, done.stdout)

run("verify", fixture, "--batch", "4", "-o", path("d.json"))
expect("2 only in one record" in run("diff", path("c.json"), path("d.json"), code=3).stdout, "unmatched cases")

for content in ("", "{}", "[1]", '{"schema": "other/1", "cases": []}'):
    with open(path("bad.json"), "w") as stream:
        stream.write(content)
    expect("bad.json" in run("diff", path("a.json"), path("bad.json"), code=2).stderr, content)
run("diff", path("a.json"), path("missing.json"), code=2)
with open(path("a.json")) as stream:
    empty = json.load(stream)
empty["cases"] = []
with open(path("empty.json"), "w") as stream:
    json.dump(empty, stream)
run("diff", path("empty.json"), path("empty.json"), code=3)

# A field that a comparison needs is missing or of another kind: one line names it. Two fixtures of one name are two cases.
with open(path("a.json")) as stream:
    hollow = json.load(stream)
good = hollow["cases"][0]
layer = good["metrics"]["layers"][0]
for case, field in ((1, "fixture.path"), ("x", "fixture.path"), (None, "fixture.path"), ({}, "fixture.path"),
                    ({**good, "fixture": {"path": "a.h5"}}, "fixture.sha256"),
                    ({**good, "subject": []}, "subject.name"),
                    ({**good, "batch": "9"}, "batch"), ({**good, "verdict": "pass"}, "verdict"),
                    ({**good, "metrics": {}}, "metrics.layers"), ({**good, "metrics": 5}, "metrics.layers"),
                    *(({**good, "metrics": {"layers": layers}}, "metrics.layers[0]")
                      for layers in ([{}], [1, 2], [{"layer": 0, "output_sha256": 7}], [{**layer, "layer": 1}])),
                    ({**good, "metrics": {"layers": [layer, layer]}}, "metrics.layers[1]")):
    for cases in ([case], [good, case]):
        with open(path("hollow.json"), "w") as stream:
            json.dump({**hollow, "cases": cases}, stream)
        line = refused("diff", path("a.json"), path("hollow.json"))
        expect(f"hollow.json: cases[{len(cases) - 1}].{field}: " in line, line)
for many in (0, 1, 3, 4):
    line = refused("diff", *[path("a.json")] * many)
    expect(line == "gaugeblock diff: give two records; see gaugeblock diff --help", f"{many} records: {line}")
with open(path("hollow.json"), "w") as stream: # what wrote nothing has no metrics
    json.dump({**hollow, "cases": [{**good, "metrics": None}]}, stream)
expect("1 changed bits" in run("diff", path("a.json"), path("hollow.json"), code=1).stdout, "metrics that are null")
# Hashes of different outputs compare nothing; and where one case has no outputs, not all is the same.
with open(path("a.json")) as stream:
    one = json.load(stream)
both = [json.loads(json.dumps(one)) for _ in range(2)]
for half, name in zip(both, ("output_sha256", "intermediate_sha256")):
    for layer in half["cases"][0]["metrics"]["layers"]:
        layer.pop(name)
for name, whole in zip(("inner.json", "outer.json"), both):
    with open(path(name), "w") as stream:
        json.dump(whole, stream)
expect("1 changed bits" in run("diff", path("inner.json"), path("outer.json"), code=1).stdout, "nothing was compared")
run("verify", fixture, "--kernel", "cpu/nvfp4-layer", "--kernel", "no/such", "-o", path("beside.json"), code=3)
done = run("diff", path("beside.json"), path("beside.json"), code=3)
expect("1 same bits" in done.stdout and "no outputs in either" in done.stdout, done.stdout)
run("verify", fixture, "--kernel", "no/such", "-o", path("none.json"), code=3)
run("diff", path("none.json"), path("none.json"), code=3)
os.mkdir(path("other"))
run("make", path("other/small.h5"), "--shape", "8,3,96,48", "--seed", "3")
run("verify", fixture, path("other/small.h5"), "-o", path("two.json"))
expect("2 same bits" in run("diff", path("two.json"), path("two.json")).stdout, "two fixtures of one name")

# Codes and scales of activations that are handed out; an older record has no hashes of them.
run("make", path("codes.h5"), "--shape", "8,3,96,48", "--activations", "nvfp4")
run("verify", path("codes.h5"), "--kernel", "cpu/nvfp4-nvfp4-layer", "-o", path("codes.json"))
expect("1 same bits" in run("diff", path("codes.json"), path("codes.json")).stdout, "codes")
with open(path("codes.json")) as stream:
    text = stream.read()
for name in ("x_codes", "x_scales", "intermediate_codes", "intermediate_scales"):
    for value, code in (("0" * 64, 1), ("", 0)):
        changed = json.loads(text)
        changed["cases"][0]["metrics"]["layers"][0][f"{name}_sha256"] = value
        with open(path("changed.json"), "w") as stream:
            json.dump(changed, stream)
        run("diff", path("codes.json"), path("changed.json"), code=code)

# A router's outputs are its experts and their weights.
run("make", path("routed.h5"), "--shape", "8,3,96,48")
run("verify", path("routed.h5"), "--kernel", "cpu/route", "-o", path("route.json"))
expect("1 same bits" in run("diff", path("route.json"), path("route.json")).stdout, "a router")
with open(path("route.json")) as stream:
    routed = json.load(stream)
routed["cases"][0]["metrics"]["layers"][0]["ids_sha256"] = "0" * 64
with open(path("rerouted.json"), "w") as stream:
    json.dump(routed, stream)
expect("1 changed bits" in run("diff", path("route.json"), path("rerouted.json"), code=1).stdout, "other experts")

expect_kept()
