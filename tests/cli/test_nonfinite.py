# SPDX-License-Identifier: Apache-2.0
"""Fixtures marked nonfinite: NaN is where truth has it and nowhere else, and the rest is judged as ever."""
import shutil

import h5py
import numpy as np

from kept import expect_kept
from program import ALL, expect, path, record, refused, run

MAKE = ["--shape", "8,2,64,32", "--tokens", "9", "--data", "nonfinite", "--routing", "uniform"]


def outputs(values, name="outputs.npy"):
    np.save(path(name), values.astype(np.float32))
    return path(name)


def verdict(fixture, *arguments, code=0):
    case, = record(fixture, *arguments, code=code)["cases"]
    return case


for number, weights in enumerate(("nvfp4", "bf16", "mxfp8", "mxfp4", "fp8")[:5 if ALL else 2]):
    stored, generated = path(f"{weights}.h5"), path(f"{weights}-generated.h5")
    run("make", stored, *MAKE, "--format", weights)
    run("make", generated, *MAKE, "--format", weights, "--generated")
    with h5py.File(stored) as f:
        truth, ids = f["layers/0/truth/quantised"][()], f["layers/0/routing/ids"][()]
        expect(f.attrs["nonfinite"] == 1, "not marked")
    nan = np.isnan(truth)
    expect(not np.isinf(truth).any(), "truth is infinite")
    expect(nan.all(1).any() and (~nan).all(1).any() and (nan.any(1) & ~nan.all(1)).any(),
           f"{weights}: tokens of NaN, of numbers and of both: {nan.sum(1)}")
    done = run("verify", stored, "--kernel", "cpu/*" if ALL or number else "cpu/*-layer", "-v")
    expect("Aggregate tests skipped: " in done.stdout, done.stdout)
    for fixture in (stored, generated):
        for case in record(fixture, "--batch", "4,9")["cases"]:
            overall = case["metrics"]["overall"]["subject_truth"]["quantised"]
            expect(case["verdict"] == "PASS" and case["checks"]["bits"]["mismatching"] == 0, str(case["checks"]))
            expect(overall["cosine_min"] > .999 and overall["non_finite"] == 0, str(overall))

    # Without an order the bound judges: truth itself is right, and one NaN too few or too many is not.
    case = verdict(stored, "--outputs", outputs(truth))
    expect(case["checks"]["bound"]["binding"] and not case["checks"]["scale"]["binding"], str(case["checks"]))
    # What each looks like is searched of one format.
    diagnosis = [[] if ALL or n % 2 == number else ["--no-diagnosis"] for n in range(6)]
    for (where, value), options in zip(((nan, 0), (~nan, np.nan), (~nan, np.inf), (~nan, 1e30)), diagnosis):
        wrong = truth.copy()
        first = tuple(np.argwhere(where)[0])
        wrong[first] = value
        case = verdict(stored, "--outputs", outputs(wrong), *options, code=1)
        expect(f"token {first[0]}, element {first[1]}" in case["reason"], case["reason"])
    verdict(stored, "--outputs", outputs(np.nan * truth), *diagnosis[4], code=1)
    verdict(stored, "--outputs", outputs(0 * np.nan_to_num(truth)), *diagnosis[5], code=1)

    # The same file without its mark; other NaNs than the mark allows.
    shutil.copy(stored, path("bad.h5"))
    with h5py.File(path("bad.h5"), "r+", libver="latest") as f:
        del f.attrs["nonfinite"]
    line = refused("verify", path("bad.h5"))
    expect("bad.h5: /layers/0/x: element [3, " in line and "nonfinite = 1" in line, line)
    for name in ("routing/weights", "norm/weight", "x", "truth/quantised"):
        shutil.copy(stored, path("bad.h5"))
        with h5py.File(path("bad.h5"), "r+", libver="latest") as f:
            dataset = f[f"layers/0/{name}"]
            dataset[(0,) * dataset.ndim] = 0x7F80 if name == "x" else np.inf if "truth" in name else np.nan
        line = refused("verify", path("bad.h5"))
        expect(f"/layers/0/{name}: element [0" in line, line)

expect("--routing uniform" in refused("make", path("x.h5"), "--shape", "8,2,96,64", "--data", "nonfinite"), "router")

expect_kept()
