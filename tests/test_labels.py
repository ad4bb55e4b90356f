# SPDX-License-Identifier: Apache-2.0
"""What CTest runs: every test has one label, the presets choose by labels that exist, and what a quick test leaves out has
a slow one. Usage: test_labels.py SOURCE_DIR BUILD_DIR CTEST"""
import glob
import json
import os
import re
import subprocess
import sys

SOURCE, BUILD, CTEST = sys.argv[1:]
MAIN = {"unit", "slow", "exhaustive", "fuzz", "gpu"}

listed = json.loads(subprocess.run([CTEST, "--show-only=json-v1"], cwd=BUILD, capture_output=True, check=True).stdout)
labels, commands = {}, {}
for test in listed["tests"]:
    labels[test["name"]] = next((p["value"] for p in test["properties"] if p["name"] == "LABELS"), [])
    commands[test["name"]] = test.get("command", [])


def expect(condition, message):
    if not condition:
        sys.exit(f"test_labels: {message}")


for name, of in labels.items():
    expect(len(MAIN & set(of)) == 1 and set(of) <= MAIN | {"sweep"}, f"{name} has the labels {of}")
    expect("slow" not in of or name.startswith("slow_") or name == "cli_python_install_pip", f"{name} is slow by its label")
    expect("unit" in of or not name.startswith("cli_") or name == "cli_python_install_pip", f"{name} is not in make test")

# Presets: make test leaves out all but unit, make test-all none but gpu.
with open(os.path.join(SOURCE, "CMakePresets.json")) as stream:
    presets = {preset["name"]: preset for preset in json.load(stream)["testPresets"]}
excluded = {name: set(preset.get("filter", {}).get("exclude", {}).get("label", "").split("|"))
            for name, preset in presets.items()}
expect(excluded["release"] == MAIN - {"unit"}, f"make test leaves out {excluded['release']}")
expect(excluded["everything"] == {"gpu"}, f"make test-all leaves out {excluded['everything']}")
expect(excluded["dev"] == MAIN - {"unit"} | {"sweep"}, f"make check leaves out {excluded['dev']}")
for label in MAIN - {"gpu", "fuzz"} | {"sweep"}:
    expect(any(label in of for of in labels.values()), f"no test has the label {label}")

# Every script and program that runs a part of a sweep has a test that runs it whole.
whole = {os.path.basename(word) for name, command in commands.items() if command[-1:] == ["all"] for word in command}
for file in glob.glob(os.path.join(SOURCE, "tests/**/test_*.*"), recursive=True):
    with open(file, encoding="utf-8") as stream:
        text = stream.read()
    name = os.path.basename(file)
    if name.endswith(".py") and re.search(r"^from program import .*\bALL\b", text, re.M):
        expect(name in whole, f"{name} leaves something out, and no test runs it with all")
    if name.endswith(".c") and "sweeps_are_whole(" in text:
        expect(name[:-2] in whole, f"{name} leaves something out, and no test runs it with all")

# Every test that needs a GPU shows in make test, as skipped; the preset gpu runs them.
gpu = set(re.findall(r"^\s*gb_gpu_test\((\w+)", open(os.path.join(SOURCE, "tests/gpu/CMakeLists.txt")).read(), re.M))
gpu |= {f"test_gpu_{name}" for name in ("routed", "faults")}
expect(len(gpu) >= 9, f"only {len(gpu)} tests need a GPU")
for name in gpu:
    expect(f"without_gpu_{name}" in labels or name in labels, f"{name} does not show")
print(f"{len(labels)} tests")
