# SPDX-License-Identifier: Apache-2.0
"""The record, JUnit and Markdown of one run agree."""
import json
import os
import re
import subprocess
import time
import xml.etree.ElementTree as xml

from program import FAULTS, SOURCE, expect, path, refused, reproduced, run, small

fixture = small()
names = ["faults/none", "faults/one-element", "faults/crash", "no/such", "faults/hang"]
arguments = ["--timeout", "2", *(word for name in names for word in ("--kernel", name))]
began = time.monotonic()
run("verify", fixture, "--subject", FAULTS, *arguments, "-o", path("r.json"), "-o", path("r.xml"), "-o", path("r.md"),
    code=5)
took = time.monotonic() - began
with open(path("r.json")) as stream:
    record = json.load(stream)
expect(record["schema"] == "gaugeblock-record/1" and record["exit_code"] == 5, "the gravest verdict wins")
expect([c["verdict"] for c in record["cases"]] == ["PASS", "FAIL", "CRASH", "NOT_RUN", "CRASH"], "verdicts")
reproduced(record["cases"])
for case in record["cases"]:
    expect({"fixture", "subject", "contract", "verdict", "exit_code", "repro"} <= set(case), "keys of a case")
    expect(len(case["fixture"]["sha256"]) == 64, "input hash")
expect(record["environment"]["date"].endswith("Z") and record["command"][0] == "gaugeblock", "provenance")

suite = xml.parse(path("r.xml")).getroot().find("testsuite")
expect([suite.get(k) for k in ("tests", "failures", "errors", "skipped")] == ["5", "1", "2", "1"], str(suite.attrib))
expect(suite.find("properties/property[@name='verdict']").get("value") == "CRASH", "the verdict is a property")
schema = os.path.join(SOURCE, "tests/cli/junit.xsd")
checked = subprocess.run(["xmllint", "--noout", "--schema", schema, path("r.xml")], capture_output=True, text=True)
expect(checked.returncode == 0, checked.stderr)
expect([len(case) for case in suite.findall("testcase")] == [0, 1, 1, 1, 1], "one child where it did not pass")
expect("reproduce: gaugeblock verify" in suite.findall("testcase")[1][0].text, "JUnit has the line that reproduces")

times = [float(case.get("time")) for case in suite.findall("testcase")]
expect(all(t > 0 for t in times[:3]) and 1 <= times[4] < took and sum(times) <= float(suite.get("time")) <= took + .001,
       f"times {times} of {suite.get('time')}, {took} s")

with open(path("r.xml")) as stream:
    text = stream.read()
for right, wrong in (('tests="5"', 'tests="four"'), ("<testcase", "<testcases"), (' hostname="localhost"', "")):
    with open(path("bad.xml"), "w") as stream:
        stream.write(text.replace(right, wrong))
    checked = subprocess.run(["xmllint", "--noout", "--schema", schema, path("bad.xml")], capture_output=True)
    expect(checked.returncode != 0, f"the schema takes {wrong!r}")

with open(path("r.md")) as stream:
    text = stream.read()
expect(all(f"| {name} |" in text for name in names) and "CRASH" in text, text)

# Counts are whole numbers, and the bound's column is the table's: the largest of its layers.
run("make", path("large.h5"), "--shape", "8,3,1024,256", "--tokens", "64")
for name, more, code in (("faults/expert-dropped-unordered", ["--subject", FAULTS], 1), ("cpu/nvfp4-layer", [], 0)):
    done = run("verify", path("large.h5"), *more, "--kernel", name, "-o", path("w.md"), "-o", path("w.json"), code=code)
    with open(path("w.md")) as stream:
        heads, _, cells = [line.strip("| \n").split(" | ") for line in stream if line.startswith("|")]
    with open(path("w.json")) as stream:
        case, = json.load(stream)["cases"]
    cell = dict(zip(heads, cells))
    lane, layers = case["lanes"]["bits"], case["metrics"]["layers"]
    expect(cell["bit mismatches"] == str(lane["mismatching"]) and (lane["mismatching"] > 10000) == code, str(cell))
    largest = max(layer["bound"]["output"]["limit_ratio"] for layer in layers)
    expect(cell["max err/bound"] == f"{largest:.3f}" and cell["max err/bound"] in done.stdout, f"{cell}\n{done.stdout}")
    expect(case["lanes"]["bound"]["limit_ratio"] > largest or code, "the intermediate is no nearer to its bound")

# Of a path that is too long the end is shown, and behind it the reason.
long = path("d" * 250 + "/" + "e" * 240 + "/r.json")
line = refused("verify", fixture, "-o", long)
expect("/r.json: cannot " in line and "No such file or directory" in line, line)
line = refused("verify", fixture, "-o", path("f" * 300 + ".json"))
expect("f.json: cannot " in line and "File name too long" in line, line)
