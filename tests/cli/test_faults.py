# SPDX-License-Identifier: Apache-2.0
"""Injected faults: each gets its verdict and exit code, and the others of the run still get theirs.

With `all` every one on a layer of the trained model, too, where a fault takes seconds to explain.
"""
import itertools

from kept import expect_kept
from program import ALL, CAPTURE, CHECKPOINT, FAULTS, expect, path, record, run

run("import", CHECKPOINT, path("tiny.h5"), "--capture", CAPTURE, "--layers", "0", "--tokens", 6 if ALL else 2)
run("make", path("small.h5"), "--shape", "8,3,64,32", "--tokens", "6", "--stored")
tiny, small = path("tiny.h5"), path("small.h5")

WRONG = ["nibble-order", "scale-index", "gate-up-swapped", "expert-dropped", "routing-weight-missing",
         "last-block-dropped", "one-element"]
CODES = {"none": 0, "none-gate-up": 0, "none-down": 0, "none-unordered": 0, "zero-output": 1, "unwritten-row": 1,
         "writes-past-end": 1, "writes-before-start": 1, "writes-past-end-unordered": 1, "changes-input": 1, "nan-output": 1,
         "changes-last-weight": 1, "unwritten-once": 6, "device-error": 5, "crash": 5, "exits": 5,
         "nondeterministic": 6,
         "reads-unwritten": 6, "does-nothing": 1}
CODES.update({name: 1 for name in WRONG})
CODES.update({f"{name}-unordered": 1 for name in WRONG[:6]})
CODES.update({"routing-weight-missing-declared": 1, "routing-weight-truncated-declared": 1})
SAYS = {"unwritten-row": "never written", "writes-past-end": "outside a buffer",
        "writes-before-start": "outside a buffer", "changes-input": "changed an input",
        "changes-last-weight": "changed an input", "unwritten-once": "two runs", "device-error": "has had enough",
        "crash": "signal", "exits": "exit()", "nondeterministic": "two runs",
        "reads-unwritten": "two runs", "does-nothing": "never written"}

groups = {} # of one exit code: cli_explain asks for explanations
for name, code in CODES.items():
    groups.setdefault((code, not ALL or name.endswith("-unordered")), []).append(name)
for ((code, unasked), names), fixture in itertools.product(groups.items(), [small, tiny][:1 + ALL]):
    words = [word for name in names for word in ("--kernel", f"faults/{name}")] + ["--no-diagnosis"] * unasked
    cases = record(fixture, "--subject", FAULTS, *words, code=code)["cases"]
    expect([case["subject"]["name"] for case in cases] == [f"faults/{name}" for name in names], str(names))
    for name, case in zip(names, cases):
        expect(case["exit_code"] == code, f"{name}: {case['verdict']}")
        expect(SAYS.get(name, "") in case["reason"], f"{name}: {case['reason']}")
        if name in WRONG:
            first = case["metrics"]["layers"][0]["subject_reference"]["output"]["first"]
            expect(first["subject"].startswith("0x") and first["subject"] != first["reference"], f"{name}: not located")
            expect("first at token" in case["reason"], f"{name}: {case['reason']}")

# A write outside a buffer is all that is wrong: nothing is guessed of outputs that are right.
for name in ("writes-past-end", "writes-past-end-unordered", "changes-input"):
    case, = record(small, "--subject", FAULTS, "--kernel", f"faults/{name}", code=1)["cases"]
    expect("explanation" not in case and case["reason"].endswith("; its outputs pass every check"), case["reason"])
    expect("only" not in case["reason"] and "known bug" not in case["reason"], case["reason"])

one = record(small, "--subject", FAULTS, "--kernel", "faults/hang", "--timeout", "1", code=5)
expect("no result after 1 s" in one["cases"][0]["reason"], one["cases"][0]["reason"])

one = record(tiny, "--subject", FAULTS, "--kernel", "faults/none", "--kernel", "faults/crash", "--kernel",
             "faults/one-element", "--kernel", "faults/none-unordered", "--no-diagnosis", code=5)
expect([c["verdict"] for c in one["cases"]] == ["PASS", "CRASH", "FAIL", "PASS"], str([c["verdict"] for c in one["cases"]]))

# What each declares is what it is judged by.
stages = {}
for case in record(small, "--subject", FAULTS, "--kernel", "faults/rounds-*", "--no-diagnosis", code=1)["cases"]:
    stages[case["subject"]["name"]] = [stage for stage, word in case["subject"]["roundings"].items() if word == "bf16"]
expect(stages == {f"faults/rounds-{stage}": [stage] for stage in ("gate_up", "silu", "slot", "routing_weight", "weighted")},
       str(stages))

# Within every element's bound: only sums over elements show it. (The captured tokens above are all alike, so that
# sums over tokens have one term.)
run("make", path("gaussian.h5"), "--shape", "8,3,64,32", "--tokens", "24")
SUBTLE = {"none": 0, "none-unordered": 0, "scaled-unordered": 1, "routing-weight-bf16-unordered": 1}
# Routing weights in bf16 are exactly those where they are declared: those of the fixture are seen.
SUBTLE.update({"routing-weight-bf16-declared": 0, "none-declared": 1})
for name, code in SUBTLE.items():
    for fixture in [tiny, path("gaussian.h5")][0 if name == "none" or (ALL and not code) else 1:]:
        case, = record(fixture, "--subject", FAULTS, "--kernel", f"faults/{name}", code=code)["cases"]
        sums = [f for check in ("rms", "scale") for f in case["checks"][check]["families"]]
        expect(all(f["statistics"] and (0 < f["limit_ratio"] < 1 or code) for f in sums) and len(sums) == 9, f"{name}: {sums}")
        expect(case["checks"]["scale"]["binding"] == (name != "none"), name)
        expect(case["checks"]["bound"]["result"] == "PASS", f"{name}: an element shows it, no sum is needed")
        seen = [check for check in ("rms", "scale") if case["checks"][check]["result"] == "FAIL"]
        expect(bool(seen) == bool(code), f"{name}: {seen}")
        # Where the intermediate is handed out, down by itself shows it, and in single elements too.
        expect(("down of layer 0" in case["reason"]) == bool(code), f"{name}: {case['reason']}")

expect_kept()
