# SPDX-License-Identifier: Apache-2.0
"""What gates see: every fault by the default gate, published rules beside it, and the exit codes."""
import json
import os

import h5py
import numpy as np

from kept import expect_kept
from program import ALL, expect, path, refused, run

# Beneath the noise of a bf16 intermediate, or of FP32: what no judge of outputs can see.
BENEATH = {"output scaled by 1 + 2^-14", "subnormal E4M3 codes zero in down", "gate and up accumulated in 14 bits"}


def power(fixture, *arguments, code=0):
    run("power", fixture, *arguments, "-o", path("power.json"), code=code)
    with open(path("power.json")) as stream:
        record = json.load(stream)
    expect(record["schema"] == "gaugeblock-power/2" and record["exit_code"] == code, "schema and exit code")
    with h5py.File(fixture) as file:
        expect((record["fixture"]["path"], record["fixture"]["sha256"]) ==
               (fixture, file.attrs["input_sha256"].decode()), f"of {fixture}: {record['fixture']}")
    return record


for name, shape in (("nvfp4", "8,3,128,64"), ("bf16", "8,3,96,48"), ("mxfp8", "8,3,256,256"),
                    ("mxfp4", "8,3,256,256"), ("fp8", "8,3,256,256"))[:5 if ALL else 2]:
    fixture = path(f"{name}.h5")
    run("make", fixture, "--shape", shape, "--tokens", "12", "--format", name, "--seed", "3")
    record = power(fixture)
    effective = [f for f in record["injected_bugs"] if f["changed"]]
    expect(len(effective) >= 60, f"{name}: {len(effective)} faults")
    missed = {f["name"]: f["relative_l2"] for f in effective if not f["caught_by"]["default"]}
    expect(missed.keys() <= BENEATH and all(size < 2e-3 for size in missed.values()), f"{name}: {missed}")
    # Of zeros every element is another one, and the error is as large as the output; one expert is a part of it.
    zero, part = (next(f for f in effective if f["name"] == bug) for bug in ("output zero", "one expert dropped"))
    with h5py.File(fixture) as file:
        outputs = np.count_nonzero(file["layers/0/truth/quantised"])
    expect((zero["changed"], zero["relative_l2"]) == (outputs, 1), f"{name}: {zero}, of {outputs}")
    expect(0 < part["changed"] < outputs and 0 < part["relative_l2"] < 1, f"{name}: {part}, of {outputs}")
    # Given the intermediate, its codes show what is wrong before them, and down by itself what is wrong after.
    unseen = {f["name"] for f in effective if not f["caught_by_stages"]}
    expect(unseen <= {"subnormal E4M3 codes zero in down"}, f"{name}: {unseen}")
    for f in effective:
        before = f["stage"] in ("gate_up", "projection", "activation")
        after = f["stage"] in ("down", "slot", "combine", "output")
        if f["relative_l2"] is None: # infinities and NaN, of which down makes others
            continue
        if f["name"] == "routing weight on the input": # and missing on the output
            expect(f["caught_by_stages"] == ["codes", "down"], f"{name}: {f}")
            continue
        expect(f["caught_by_stages"] == ["codes"] if before else f["caught_by_stages"] in (["down"], []) if after
               else f["caught_by_stages"], f"{name}: {f}")
    default, *others = record["policies"]
    expect(default["caught"] == len(effective) - len(missed) and default["missed"] == len(missed), str(default))
    limits = default["detection_limits"]
    expect(limits["lost_rows"] == 1 and limits["lost_elements"] <= 4, str(limits))
    expect(1e-5 < limits["scale"] < limits["scale_of_a_row"] < 3e-3, str(limits))
    expect(limits["scale_given_the_intermediate"] < limits["scale"] / 10 and
           limits["scale_of_a_row_given_the_intermediate"] < limits["scale_of_a_row"] / 10, str(limits))
    for gate in others:
        if gate["rejects_reference"]:
            expect(gate["verdict"] == "FAIL" and "detection_limits" not in gate, str(gate))
        else:
            expect(gate["missed"] > 15 and gate["missed"] > 8 * len(missed), str(gate))
    # A floor is what is seen, and a tenth less is not.
    rule = next(g for g in others if g["name"] == "flashinfer-bench-moe")
    expect(0.008 < rule["detection_limits"]["scale"] < 0.03, str(rule))

# Layers with quantised activations: the same, by what is left when codes that may flip are taken out, and faults of codes.
# Powers of two as scales: blocks of 32 or 64 have the same values but below E4M3's range.
BENEATH_CODES = {"intermediate: one scale for two blocks", "x: one scale for two blocks", "subnormal E4M3 codes zero in down"}
for weights, activations in (("nvfp4", "nvfp4"), ("mxfp8", "mxfp8"), ("mxfp4", "mxfp8"), ("fp8", "fp8"))[:4 if ALL else 1]:
    fixture = path("quantised.h5")
    run("make", fixture, *(("--shape", "8,3,256,256", "--tokens", "12") if ALL else ("--shape", "8,2,256,256", "--tokens", "8")),
        "--format", weights, "--activations", activations, "--seed", "3")
    record = power(fixture)
    expect(record["contract"] == f"{weights}.{activations}.fma32/1", record["contract"])
    effective = [f for f in record["injected_bugs"] if f["changed"]]
    of_codes = [f for f in effective if f["stage"] in ("act_quant", "requant")]
    expect(len(effective) >= 90 and len(of_codes) >= 24, f"{weights}: {len(effective)}, {len(of_codes)} of codes")
    missed = {f["name"]: f["relative_l2"] for f in effective if not f["caught_by"]["default"]}
    expect(missed.keys() <= BENEATH_CODES and all(size < 1e-5 for size in missed.values()), f"{weights}: {missed}")
    # Given the intermediate, wrong codes of x show in it, and its own wrong codes in down.
    for f in of_codes:
        before, after = f["stage"] == "act_quant", f["caught_by_stages"] == []
        expect(f["caught_by_stages"] == (["codes"] if before else ["down"]) or f["relative_l2"] is None or
               (after and f["name"] in missed), f"{weights}: {f}")
    limits = record["policies"][0]["detection_limits"]
    expect(limits["lost_rows"] == 1 and limits["lost_elements"] == 1, str(limits))
    expect(1e-5 < limits["scale"] <= limits["scale_of_a_row"] < 1e-4, str(limits))
    plain = power(fixture, "--activations", "bf16")
    expect(plain["contract"] == f"{weights}.bf16.fma32/1", plain["contract"])
    expect(not any(f["stage"] in ("act_quant", "requant") for f in plain["injected_bugs"]), "codes of bf16 activations")
    expect(plain["policies"][0]["detection_limits"]["scale"] > 5 * limits["scale"], "the bf16 intermediate hides more")
refused("power", fixture, "--activations", "fp8" if activations != "fp8" else "nvfp4")

# Routers: all that their recipes can be mistaken about, and that changes a token.
for name, least in (("transformers.deepseek-v3/1", 18), ("transformers.qwen3-moe/1", 9), ("transformers.gpt-oss/1", 8)):
    run("make", path("routed.h5"), "--router", name, "--shape", "64,5,32,16", "--tokens", "16" if ALL else "8")
    faults = power(path("routed.h5"))["router_bugs"]
    expect(len(faults) >= least and all(f["changed_tokens"] for f in faults), f"{name}: {faults}")
    expect(all(f["caught_by"] and f["modelled_on"] for f in faults), f"{name}: {faults}")
    by = {f["name"]: f["caught_by"] for f in faults}
    expect(by["weights in reverse"] == ["weights"] and by["expert twice"] == ["range"], str(by))
    expect("ids" in by["next best expert for the last one"], str(by))

# A recipe that divides by the sum from so many experts on does so with just as many, and with one less it does not.
for name, experts, top_k, divides in (("transformers.mixtral/1", 8, 1, True), ("te.sigmoid/1;groups=1;kept=1", 8, 2, True),
                                      ("te.sigmoid/1;groups=1;kept=1", 8, 1, False)):
    run("make", path("few.h5"), "--router", name, "--shape", f"{experts},{top_k},96,48", "--tokens", "4")
    names = {f["name"] for f in power(path("few.h5"))["router_bugs"] if f["changed_tokens"]}
    expect(("renormalised over all experts" in names) == divides, f"{name}, top {top_k}: {names}")

fixture = path("least.h5")
run("make", fixture, "--shape", "8,3,64,48", "--tokens", "6", "--seed", "3")


def gate(**keys):
    with open(path("gate.json"), "w") as stream:
        json.dump({"schema": "gaugeblock-gate/2", "name": "ours", **keys}, stream)
    return path("gate.json")


record = power(fixture, "--gate", gate(max_abs=1e6), code=4)
expect(record["policies"][0]["reason"].startswith("the policy lets pass: one expert dropped"), str(record["policies"][0]))
expect(record["policies"][0]["detection_limits"]["lost_rows"] is None and record["policies"][1]["name"] == "default", "detection_limits")
power(fixture, "--gate", gate(max_abs=1e-12), code=1)
power(fixture, "--gate", "llama.cpp-fp4", code=4)
checks = [power(fixture, "--gate", gate(checks=[check])) for check in ("bound", "rms", "scale")]
expect(all(f["caught_by"]["ours"] in ([], [check]) for check, record in zip(("bound", "rms", "scale"), checks)
           for f in record["injected_bugs"] if f["changed"]), "one check alone")

text = run("power", fixture, "-o", path("power.md")).stdout
expect("NOT CAUGHT" in text and text.rstrip().endswith("PASS"), text)
with open(path("power.md")) as stream:
    expect(stream.read().count("\n| ") > 90, "a row for each fault")
refused("power", path("missing.h5"))
refused("power", fixture, "--gate", "no-such-gate")
for report in path("power.txt"), "json", "md", "x", ".jsonx", "power-json", "power-md":
    expect("extension" in refused("power", fixture, "-o", report, cwd=path("")), report)
run("make", path("quantiser.h5"), "--operator", "quantise", "--recipe", "nvfp4.trtllm/1", "--shape", "4,64")
for report in ".json", ".md":
    run("power", path("quantiser.h5"), "-o", report, cwd=path(""))
    expect(os.path.getsize(path(report)) > 0, report)
refused("power", fixture, fixture)
refused("power", fixture, "--gate", gate(max_abs=1e6), "-o", path("gate.json"))
with open(path("gate.json")) as stream:
    expect(json.load(stream)["max_abs"] == 1e6, "the policy is still there")
refused("power")
expect("power.json: cannot be written" in refused("power", path("none.h5"), "-o", os.path.join(path("no"), "power.json")),
       "where nothing can be written is said before anything is read")
expect("gaugeblock power layer.h5" in run("power", "--help").stdout, "an example")

expect_kept()
