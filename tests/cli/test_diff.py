# SPDX-License-Identifier: Apache-2.0
"""Two records: same bits, changed bits and different inputs are told apart."""
import json
import os

from program import FAULTS, expect, path, run, small

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

expect("same kernel, same inputs, same device: it is not deterministic; of bound 0." in done.stdout, done.stdout)
with open(path("1.json")) as stream:
    other = json.load(stream)
other["cases"][0]["subject"]["library_sha256"] = "0" * 64
with open(path("1.json"), "w") as stream:
    json.dump(other, stream)
done = run("diff", path("0.json"), path("1.json"), code=1)
expect("another build of the kernel or another device" in done.stdout, done.stdout)

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

# Nothing to compare is not the same bits; two fixtures of one name are two cases.
with open(path("a.json")) as stream:
    hollow = json.load(stream)
for layers in ([{}], [1, 2], [{"output_sha256": 7}]):
    hollow["cases"][0]["metrics"]["layers"] = layers
    with open(path("hollow.json"), "w") as stream:
        json.dump(hollow, stream)
    expect(run("diff", path("hollow.json"), path("hollow.json"), code=1).returncode == 1, str(layers))
run("verify", fixture, "--kernel", "no/such", "-o", path("none.json"), code=3)
run("diff", path("none.json"), path("none.json"), code=3)
os.mkdir(path("other"))
run("make", path("other/small.h5"), "--shape", "8,3,96,48", "--seed", "3")
run("verify", fixture, path("other/small.h5"), "-o", path("two.json"))
expect("2 same bits" in run("diff", path("two.json"), path("two.json")).stdout, "two fixtures of one name")
