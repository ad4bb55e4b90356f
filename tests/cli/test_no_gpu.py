# SPDX-License-Identifier: Apache-2.0
"""What was not verified is never green."""
import os

from program import expect, path, record, run, small

fixture = small()
plain = run("verify", fixture)
# A run that judged no one's kernel says so, and where kernels are named: not all of them, nor any that cannot run.
expect("the reference itself was judged. See gaugeblock list kernels" in plain.stdout.splitlines()[-1], plain.stdout)
expect("cuda/" not in plain.stdout and "cpu/nvfp4-down" not in plain.stdout, plain.stdout)
expect("the reference itself" not in run("verify", fixture, "--kernel", "cpu/nvfp4-layer").stdout, "a kernel was named")
if not os.path.exists("/dev/nvidia0"):
    one = record(fixture, "--kernel", "cuda/*", code=3)
    expect(one["summary"]["judged"] == 0 and one["cases"][0]["verdict"] == "NOT_RUN", str(one["summary"]))
record(fixture, "--kernel", "no/such", code=3)
# What verify cannot judge by itself says what can.
case, = record(fixture, "--kernel", "cpu/quantise", code=3)["cases"]
expect(case["verdict"] == "UNSUPPORTED" and "--operator quantise" in case["reason"] and "identify" in case["reason"],
       case["reason"])
run("make", path("quantised.h5"), "--shape", "8,3,128,64", "--activations", "nvfp4")
record(path("quantised.h5"), "--kernel", "cpu/*-nvfp4-layer", "--expect", "1")
record(fixture, "--kernel", "cpu/bf16-layer", code=3)
record(fixture, "--expect", "1000", code=3)
record(fixture, "--expect", "1")
record(fixture, "--kernel", "cpu/*", "--expect", "11")
record(fixture, "--kernel", "cpu/*", "--kernel", "no/such", code=3)
