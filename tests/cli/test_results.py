# SPDX-License-Identifier: Apache-2.0
"""Layers generated here, computed by the CPU reference here: the outputs have the hashes that the GPU's records of another
machine hold. Usage: test_results.py [MODEL...]"""
import glob
import json
import os
import sys

from program import SOURCE, expect, path, record, run

hashes = 0
for model in sys.argv[1:] or ["tiny-qwen3-moe"]:
    results = glob.glob(os.path.join(SOURCE, f"docs/results/*-models-{model}-*.json"))
    expect(results, f"docs/results has no record of {model}")
    for name in results:
        with open(name) as stream:
            cases = json.load(stream)["cases"]
        for fixture in dict.fromkeys(case["fixture"]["path"] for case in cases):
            there = [case for case in cases if case["fixture"]["path"] == fixture]
            form, data, routing = fixture.removesuffix(".h5").removeprefix(f"{model}-").split("-")
            layer = path(f"{hashes}.h5")
            run("make", layer, "--model", model, "--format", form, "--data", data, "--routing", routing,
                "--tokens", there[0]["fixture"]["tokens"], "--generated")
            batches = ",".join(str(case["batch"]) for case in there)
            here = record(layer, "--kernel", f"cpu/{form}-layer", "--batch", batches)["cases"]
            expect(len(here) == len(there), f"{fixture}: {len(here)} cases here, {len(there)} there")
            layers = [[layer for case in cases for layer in case["metrics"]["layers"]] for cases in (here, there)]
            for mine, theirs in zip(*layers):
                for key in ("output_sha256", "intermediate_sha256"):
                    expect(mine[key] == theirs[key], f"{name}, {fixture}: {key} is {mine[key]} here")
                    hashes += 1
expect(hashes > 0, "nothing was compared")
print(f"{hashes} hashes are the same")
