# SPDX-License-Identifier: Apache-2.0
"""Two records: same bits, changed bits and different inputs are told apart."""
import json

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
