# SPDX-License-Identifier: Apache-2.0
"""The record, JUnit and Markdown of one run agree."""
import json
import os
import re
import subprocess
import time
import xml.etree.ElementTree as xml

from kept import expect_kept
from program import FAULTS, SOURCE, expect, path, refused, reproduced, run, small

fixture = small()
names = ["faults/none", "faults/one-element", "faults/crash", "no/such"]
arguments = [word for name in names for word in ("--kernel", name)]
began = time.monotonic()
run("verify", fixture, "--subject", FAULTS, *arguments, "-o", path("r.json"), "-o", path("r.xml"), "-o", path("r.md"),
    code=5)
took = time.monotonic() - began
with open(path("r.json")) as stream:
    record = json.load(stream)
expect(record["schema"] == "gaugeblock-record/2" and record["exit_code"] == 5, "the gravest verdict wins")
expect([c["verdict"] for c in record["cases"]] == ["PASS", "FAIL", "CRASH", "NOT_RUN"], "verdicts")
reproduced(record["cases"])
for case in record["cases"]:
    expect({"fixture", "subject", "contract", "verdict", "exit_code", "repro"} <= set(case), "keys of a case")
    expect(len(case["fixture"]["sha256"]) == 64, "input hash")
expect(record["environment"]["date"].endswith("Z") and record["command"][0] == "gaugeblock", "provenance")
with open("/proc/cpuinfo") as stream:
    cpus = re.findall("^model name.*?: (.*)", stream.read(), re.M)
expect(record["environment"]["cpu"] == (cpus or ["unknown"])[0], str(record["environment"]))

suite = xml.parse(path("r.xml")).getroot().find("testsuite")
expect([suite.get(k) for k in ("tests", "failures", "errors", "skipped")] == ["4", "1", "1", "1"], str(suite.attrib))
expect(suite.find("properties/property[@name='verdict']").get("value") == "CRASH", "the verdict is a property")
schema = os.path.join(SOURCE, "tests/cli/junit.xsd")
checked = subprocess.run(["xmllint", "--noout", "--schema", schema, path("r.xml")], capture_output=True, text=True)
expect(checked.returncode == 0, checked.stderr)
expect([len(case) for case in suite.findall("testcase")] == [0, 1, 1, 1], "one child where it did not pass")
expect("reproduce: gaugeblock verify" in suite.findall("testcase")[1][0].text, "JUnit has the line that reproduces")

times = [float(case.get("time")) for case in suite.findall("testcase")]
expect(all(t > 0 for t in times[:3]) and sum(times) <= float(suite.get("time")) + .003 <= took + .006,
       f"times {times} of {suite.get('time')}, {took} s")
run("verify", fixture, "--subject", FAULTS, "--kernel", "faults/hang", "--timeout", "2", "-o", path("hang.xml"), code=5)
hanging = xml.parse(path("hang.xml")).getroot().find("testsuite/testcase")
expect(float(hanging.get("time")) >= 1, f"2 s without a result are {hanging.get('time')} s")

with open(path("r.xml")) as stream:
    text = stream.read()
for right, wrong in (('tests="4"', 'tests="four"'), ("<testcase", "<testcases"), (' hostname="localhost"', "")):
    with open(path("bad.xml"), "w") as stream:
        stream.write(text.replace(right, wrong))
    checked = subprocess.run(["xmllint", "--noout", "--schema", schema, path("bad.xml")], capture_output=True)
    expect(checked.returncode != 0, f"the schema takes {wrong!r}")

with open(path("r.md")) as stream:
    text = stream.read()
expect(all(f"| {name} |" in text for name in names) and "CRASH" in text, text)

# Counts are whole numbers, and the bound's column is the table's: the largest of its layers.
run("make", path("large.h5"), "--shape", "8,3,1024,32", "--tokens", "64")
for name, more, code in (("faults/expert-dropped-unordered", ["--subject", FAULTS], 1), ("cpu/nvfp4-layer", [], 0)):
    done = run("verify", path("large.h5"), *more, "--kernel", name, "-o", path("w.md"), "-o", path("w.json"), code=code)
    with open(path("w.md")) as stream:
        heads, _, cells = [line.strip("| \n").split(" | ") for line in stream if line.startswith("|")]
    with open(path("w.json")) as stream:
        case, = json.load(stream)["cases"]
    cell = dict(zip(heads, cells))
    check, layers = case["checks"]["bits"], case["metrics"]["layers"]
    expect(cell["bit mismatches"] == str(check["mismatching"]) and (check["mismatching"] > 10000) == code, str(cell))
    largest = max(layer["bound"]["output"]["limit_ratio"] for layer in layers)
    expect(cell["max err/bound"] == f"{largest:.3f}" and cell["max err/bound"] in done.stdout, f"{cell}\n{done.stdout}")
    expect(case["checks"]["bound"]["limit_ratio"] > largest or code, "the intermediate is no nearer to its bound")

# What failed stands before the figures, with what to do next.
expect(text.index("**FAIL** faults/one-element, small.h5 batch 9: output of layer 0: 1 of") < text.index("| subject |"), text)
expect(". Next: every element is within its error bound" in text, text)

# For people: the verdict, the first wrong element, what it looks like, what to do, then figures; all of them with -v.
number = r"-?[0-9.e+-]+"
done = run("verify", fixture, "--subject", FAULTS, "--kernel", "faults/one-element", "--record", path("one.json"), code=1)
patterns = [rf"FAIL  faults/one-element  {fixture}  9 tokens  bits differ: 2 of 4320 elements; contract nvfp4\.bf16\.fma32/1",
            rf"  first      layer 0, token 4, column 48 of the output: got 0x[0-9a-f]{{8}} \({number}\), reference 0x[0-9a-f]{{8}} \({number}\)",
            r"  reason     output of layer 0: 1 of 864 elements differ from the reference; first at token 4, element 48: .*",
            r"  diagnosis  no structure found, no known bug fits it; in token 4 only; in column 48 only",
            r"  next       every element is within its error bound.*",
            r"  reproduce  gaugeblock verify .*",
            r"         vs reference    \| vs float64, same NVFP4 weights +\| vs float64, original weights",
            r"  layer  bit mismatches  \| max err/bound +min cos max \|err\| +rel L2  \| +min cos +rel L2",
            *[rf"  {layer}                    1\*\| +{number} ( +{number}){{3}}  \|( +{number}){{2}}" for layer in range(2)],
            r"  \* fails: bits differ, or an error is above its bound", "",
            r"Details \(residual stream, aggregate tests, detection limits\): -v", "FAIL: 0 of 1 cases passed"]
lines = done.stdout.splitlines()
for pattern, line in zip(patterns, lines):
    expect(re.fullmatch(pattern, line), f"{pattern}\nis not\n{line}")
expect(len(patterns) == len(lines), done.stdout)
plain, verbose = run("verify", fixture).stdout, run("verify", fixture, "-v").stdout
for words in ("Residual stream vs float64; tokens whose expert set differs", "Aggregate tests (statistic/limit; above 1 would fail): RMS 0.",
              "(informational: bits decide)", "Detection limit, scale error: layer ", "bf16 intermediate: 2592/2592 bit-equal; "
              "admissible differences 0 (expected <= ", "Output rounded to bf16 vs float64: min cos "):
    expect(words in verbose and words not in plain, f"{words}\n{plain}{verbose}")

# Of a path that is too long the end is shown, and behind it the reason.
long = path("d" * 250 + "/" + "e" * 240 + "/r.json")
line = refused("verify", fixture, "-o", long)
expect("/r.json: cannot " in line and "No such file or directory" in line, line)
line = refused("verify", fixture, "-o", path("f" * 300 + ".json"))
expect("f.json: cannot " in line and "File name too long" in line, line)

expect_kept()
