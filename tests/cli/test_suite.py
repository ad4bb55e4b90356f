# SPDX-License-Identifier: Apache-2.0
"""`make --suite` writes problems that together exercise everything, and `verify` takes folders of them.

With `all`: every problem is judged, of every contract every count of coverage is above zero in some problem, and the
policy `default` catches the injected bugs; the reference passes every check that a kernel without an order is held to.
"""
import json
import os
import re
import shutil
import subprocess
import time
import xml.etree.ElementTree as xml

from kept import expect_kept
from program import ALL, FAULTS, PROGRAM, SOURCE, expect, path, record, refused, run

LEAST_CAUGHT = 0.97
# Bugs that may change no bit: `make` makes no biases and no clamped activation; a division by a power of two is exact;
# and no block of x has a subnormal E4M3 scale, since its global scale fits its largest value.
SILENT = {"SiLU in place of the clamped activation", "bias of down missing", "bias of gate and up missing",
          "intermediate: division for reciprocal, or the reverse", "x: division for reciprocal, or the reverse",
          "scales: division and multiplication by a reciprocal exchanged", "x: subnormal scales zero"}
MOST_BYTES = 20_000_000
# What `power` needs minutes for: its searches copy arrays of 65,537 experts.
SLOW_POWER = "experts-65537.h5"
SHORT_OPERATOR_POWER = ("nonfinite.h5", "one-row.h5")
# The longest ones, which otherwise are not judged; the first three have counts alone, which are asked for.
LONG = () if ALL else ("edge.h5", "gaussian.h5", "sparse.h5", "long.h5", "ties.h5", "wide.h5")


def listed(folder):
    with open(os.path.join(folder, "suite.txt")) as stream:
        return [line.split()[0] for line in stream if not line.startswith("#")]


def fixtures(folder):
    return sorted(name for name in os.listdir(folder) if name.endswith(".h5"))


def names_of_counts():
    """The counts in the table of docs/gates.md, but those of the clamped activation, which `make` does not make."""
    with open(os.path.join(SOURCE, "docs/gates.md")) as stream:
        text = stream.read().partition("\n## Coverage\n")[2].partition("\n## ")[0]
    cells = " ".join(re.findall(r"(?m)^\| (`.*?) \|", text))
    found = set(re.findall(r"`([a-z_]+\.[a-z0-9_]+)`", cells))
    for name in [name for name in found if name.startswith("gate_proj.")]:
        found |= {name.replace("gate_proj", "up_proj"), name.replace("gate_proj", "down_proj")}
    return {name for name in found if not name.startswith("clamp.")}


def seen(whole, *others):
    """{count: over all problems of the record, and those files}."""
    counts = {}
    for one in whole["coverage"]:
        for name, count in one["counts"].items():
            counts[name] = counts.get(name, 0) + count["seen"]
    for file in others:
        told = subprocess.run([PROGRAM, "info", file, "--coverage"], capture_output=True, text=True, check=True).stdout
        for name, count in re.findall(r"(?m)^(\w+\.\w+) +(\d+)", told):
            counts[name] += int(count)
    return counts


def injected(fixture, *arguments):
    """{bug: whether it changes a bit, whether the policy catches it} of one problem."""
    subprocess.run([PROGRAM, "power", fixture, *arguments, "-o", path("power.json")], stdout=subprocess.DEVNULL,
                   check=False)
    with open(path("power.json")) as stream:
        whole = json.load(stream)
    found = {}
    for bug in whole["injected_bugs"]:
        caught = bug.get("caught_by", {})
        caught = caught.get("default") if isinstance(caught, dict) else caught
        effect = bug.get("changed", 0) or bug.get("codes", 0) + bug.get("scales", 0)
        found[bug["name"]] = bool(effect), bool(caught)
    for bug in whole.get("router_bugs", []):
        found["router: " + bug["name"]] = bool(bug["changed_tokens"]), bool(bug["caught_by"])
    return found


def check_power(folder, names):
    """Of the bugs that change a bit of a problem some problem catches this share; no others than SILENT change none."""
    bugs = {}
    for name in names:
        for bug, (effect, caught) in injected(os.path.join(folder, name)).items():
            before = bugs.get(bug, (False, False))
            bugs[bug] = before[0] or effect, before[1] or caught
    caught = sum(caught for _, caught in bugs.values())
    silent = sorted(bug for bug, (effect, _) in bugs.items() if not effect)
    missed = sorted(bug for bug, (effect, caught) in bugs.items() if effect and not caught)
    print(f"{os.path.basename(folder)}: {caught} of {len(bugs)} bugs caught; without effect {silent}; missed {missed}")
    expect(set(silent) <= SILENT, f"{folder}: {set(silent) - SILENT} change no bit of any problem")
    expect(len(bugs) > 15 and caught >= LEAST_CAUGHT * (len(bugs) - len(silent)),
           f"{folder}: {caught} caught, missed {missed}")


def check_suite(weights, activations, *reports):
    """Makes the suite of these formats, judges all but LONG of it, and writes these reports too. Returns its folder and
    record."""
    folder = path(f"{weights}-{activations}")
    run("make", folder, "--suite", "--format", weights, "--activations", activations)
    expect(sorted(listed(folder)) == fixtures(folder), f"{folder}: {listed(folder)}")
    bytes = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
    expect(bytes < MOST_BYTES, f"{folder}: {bytes} bytes")
    began = time.monotonic()
    judged = [os.path.join(folder, name) for name in fixtures(folder) if name not in LONG] if LONG else [folder]
    whole = record(*judged, "--kernel", f"cpu/{weights}{'' if activations == 'bf16' else '-' + activations}-layer",
                   "--expect", len(fixtures(folder)) - len(LONG), *reports)
    print(f"{folder}: {time.monotonic() - began:.1f} s")
    expect(whole["verdict"] == "PASS", f"{folder}: {whole['verdict']}")
    for case in whole["cases"]:
        for check in ("bound", "rms", "scale"):
            expect(case["checks"].get(check, {}).get("result") != "FAIL",
                   f"{case['fixture']['path']}: a kernel of the reference's bits that claims no order fails {check}")
    counts = seen(whole, *(os.path.join(folder, name) for name in LONG[:3]))
    expect(all(counts.values()), f"{folder}: {[name for name, count in counts.items() if not count]} are zero")
    return folder, whole


# The formats that a test of a minute has time for; the names of all counts are those of the document.
folder, whole = check_suite("nvfp4", "bf16", "-o", path("r.xml"), "-o", path("r.md"))
scales = {f"{p}_proj.smallest_scales" for p in ("gate", "up", "down")}
expect(names_of_counts() - set(seen(whole)) == scales, f"{sorted(names_of_counts() ^ set(seen(whole)))}")
if ALL: # bugs of one layer: cli_power
    check_power(folder, [name for name in fixtures(folder) if name != SLOW_POWER])
    for contract in re.findall(r"(?m)^(\w+)\.(\w+)\.fma32/1$", run("list", "contracts").stdout):
        if contract == ("nvfp4", "bf16"):
            continue
        other, _ = check_suite(*contract)
        check_power(other, [name for name in fixtures(other) if name != SLOW_POWER])
        shutil.rmtree(other)
for operator, recipe in (("quantise", "nvfp4.trtllm/1"), ("silu_mul_quantise", "fp8g128.vllm/1")):
    other = path(operator)
    run("make", other, "--suite", "--operator", operator, "--recipe", recipe)
    expect(record(other, "--expect", 6)["verdict"] == "PASS" and len(fixtures(other)) == 6, operator)
    check_power(other, fixtures(other) if ALL else SHORT_OPERATOR_POWER)

# The document's table names the problems.
with open(os.path.join(SOURCE, "docs/gates.md")) as stream:
    text = stream.read().partition('<a id="suite"></a>')[2].partition("\n## Record")[0]
table = text.partition("| problem | its part |")[2].partition("\n\n")[0]
expect(set(re.findall(r"`([\w-]+\.h5)`", table)) == set(listed(folder)), "problems of docs/gates.md")

# Every report has a case of each problem.
judged_ones = [name for name in fixtures(folder) if name not in LONG]
cases = xml.parse(path("r.xml")).getroot().findall("testsuite/testcase")
expect([case.get("name").split()[0] for case in cases] == judged_ones, "JUnit")
with open(path("r.md")) as stream:
    text = stream.read()
expect(all(f"| {name} batch " in text for name in judged_ones), text)

# A line a problem where all is well, and more only with -v. The three are the same short problem.
FEW = ["experts-300.h5", "nan.h5", "one-token.h5"]
few = path("few")
os.mkdir(few)
for name in FEW:
    shutil.copy(os.path.join(folder, FEW[2]), os.path.join(few, name))
done = run("verify", few, "--expect", 3, "-o", path("few.json"))
lines = done.stdout.splitlines()
expect(lines[0].split()[:3] == ["verdict", "fixture", "subject"] and lines[4] == "", done.stdout)
expect([os.path.basename(line.split()[1]) for line in lines[1:4]] == FEW, done.stdout)
expect(all(line.split()[0] == "PASS" and line.split()[4] == "0" for line in lines[1:4]), done.stdout)
expect("PASS: 3 of 3 cases passed, 3 judged, 3 expected" in lines, done.stdout)
expect("contract" not in done.stdout, done.stdout)
expect(run("verify", few, "-v", "-o", path("again.json")).stdout.count("contract") == 3, "blocks with -v")
expect("3 same bits" in run("diff", path("few.json"), path("again.json")).stdout, "two runs of a folder")

# What fails is told below the table, alone; --minimise takes the first failing problem that has a smaller part.
for kernel, code in (("faults/none", 0), ("faults/one-element", 1)):
    done = run("verify", few, "--subject", FAULTS, "--kernel", kernel, "-o", path(f"{code}.json"), code=code)
    expect(done.stdout.count("\n  reproduce ") == 3 * code, done.stdout)
    expect(done.stdout.count(f"{'FAIL' if code else 'PASS'}  ") >= 3, done.stdout)
with open(path("1.json")) as stream:
    text = stream.read().replace("faults/one-element", "faults/none")
with open(path("1.json"), "w") as stream:
    stream.write(text)
expect("3 changed bits" in run("diff", path("0.json"), path("1.json"), code=1).stdout, "diff of a folder's records")
whole = record(few, "--subject", FAULTS, "--kernel", "faults/one-element", "--minimise", path("small.h5"), code=1)
expect(["minimal" in case for case in whole["cases"]] == [True, False, False], "the first one's smallest part")

# Folders: what is no fixture is left alone; what cannot be judged is one case, and costs the two others nothing.
os.remove(os.path.join(few, FEW[0]))
with open(os.path.join(few, "notes.txt"), "w") as stream:
    stream.write("no fixture\n")
with open(os.path.join(few, ".hidden.h5"), "w") as stream:
    stream.write("no fixture\n")
os.mkdir(os.path.join(few, "folder.h5"))
shutil.copy(os.path.join(folder, "nan.h5"), os.path.join(few, "folder.h5"))
expect(len(record(few)["cases"]) == 2, "foreign files")
run("verify", few, "--expect", 3, code=3)
run("verify", few, path("quantise"), "--expect", 8)


def judged(*arguments, reason, passed=2):
    """One case is BAD_INPUT, for this reason, the others pass."""
    whole = record(*arguments, code=2)
    verdicts = [case["verdict"] for case in whole["cases"]]
    expect(sorted(verdicts) == ["BAD_INPUT"] + passed * ["PASS"], f"{arguments}: {verdicts}")
    bad, = (case for case in whole["cases"] if case["verdict"] == "BAD_INPUT")
    expect(re.search(reason, bad["reason"]), bad["reason"])
    return bad


with open(os.path.join(few, "nan.h5"), "rb") as stream:
    whole = stream.read()
half = os.path.join(few, "half.h5")
with open(half, "wb") as stream:
    stream.write(whole[:len(whole) // 2])
judged(few, reason="half.h5: ")
os.remove(half)
os.symlink(path("nowhere"), half)
judged(few, reason="half.h5: cannot open")
os.remove(half)
os.mkfifo(half)
judged(few, "--timeout", 5, reason="half.h5: ")
os.remove(half)
other = os.path.join(few, "outputs.hdf5")
with open(other, "w") as stream:
    stream.write("")
judged(few, reason="outputs.hdf5: ")
os.remove(other)
if os.getuid():
    os.chmod(os.path.join(few, "nan.h5"), 0)
    judged(few, reason="nan.h5: cannot open", passed=1)
    os.chmod(os.path.join(few, "nan.h5"), 0o600)
empty = path("empty")
os.mkdir(empty)
judged(empty, few, reason="empty: a folder without fixtures")
run("verify", empty, "--expect", 0, code=2)
judged(few + "/", path("missing"), reason="missing: cannot open")

# A file that the suite's list has must be there: what a run that was killed leaves is no success.
shutil.copy(os.path.join(folder, "suite.txt"), few)
whole = record(few, code=2)
expect(len(whole["cases"]) == 14 and whole["summary"]["passed"] == 2, "all that are missing are cases")
with open(os.path.join(few, "suite.txt"), "w") as stream:
    stream.write("# nan.h5 twice is once\nnan.h5 --data nonfinite\n\nnan.h5\nties.h5\r\n")
expect("suite.txt" in judged(few, reason="ties.h5: is in suite.txt, but not there")["reason"], "the list is named")
os.remove(os.path.join(few, "suite.txt"))
os.symlink("/dev/zero", os.path.join(few, "suite.txt"))
judged(few, reason="suite.txt: is no list of fixtures that can be read")
os.remove(os.path.join(few, "suite.txt"))
# 64 KiB are a list, one byte more is none, and neither is what has a NUL.
full = "nowhere.h5\n".ljust(1 << 16, "\n")
for text, reason in ((full, "nowhere.h5: is in suite.txt, but not there"), (full + "\n", "is no list"), ("#\0", "is no list")):
    with open(os.path.join(few, "suite.txt"), "w") as stream:
        stream.write(text)
    judged(few, reason=reason)
os.remove(os.path.join(few, "suite.txt"))

# One fixture of a folder is one fixture; --outputs takes no more, and no input is written over.
alone = path("alone")
os.mkdir(alone)
shutil.copy(os.path.join(folder, "one-token.h5"), alone)
expect("contract" in run("verify", alone).stdout, "a folder of one is shown as one")
refused("verify", few, "--outputs", path("no.npy"))
refused("verify", few, "--minimise", os.path.join(few, "nan.h5"))

# make: its own options alone, into a folder without other fixtures; another suite takes the place of the one before.
for arguments in (["--shape", "8,2,64,32"], ["--tokens", 4], ["--data", "edge"], ["--routing", "hot"], ["--layers", 2],
                  ["--generated"], ["--model", "mixtral-8x7b"]):
    said = refused("make", path("new"), "--suite", *arguments)
    expect(f"{arguments[0]}: the problems of a suite have their own" in said, said)
expect(not os.path.exists(path("new")), "a folder that was not asked for")
expect("small.h5: is not of the suite" in refused("make", path(""), "--suite"), "others")
refused("make", os.path.join(few, "notes.txt"), "--suite")
refused("make", path("no/such/folder"), "--suite")
refused("make", path("new"), "--suite", "--router", "no-such")
expect("experts-65537.h5: is in suite.txt" in run("verify", path("new"), code=2).stderr, "a suite that was not made")
expect("exact.h5: left out" in run("make", path("quantise"), "--suite", "--activations", "nvfp4", "--activation-recipe",
                                   "nvfp4.flashinfer/1", "--router", "vllm.grouped-topk/1").stdout, "what is left out is said")
expect(fixtures(path("quantise")) == sorted(listed(path("quantise"))), "what the suite before had alone is gone")
with open(os.path.join(path("quantise"), "suite.txt")) as stream:
    experts = [int(count) for count in re.findall(r" --shape (\d+),", stream.read())]
expect(len(experts) == 12 and all(count % 8 == 0 for count in experts), f"experts of a router of 8 groups: {experts}")

expect_kept()
