# SPDX-License-Identifier: Apache-2.0
"""The page's sentences about a study are what numpy makes of its arrays: which path is closest, which farthest, which
layer hurts most; for every case, and with the command that made it. The CSV has every case, and shapes as one field."""
import csv
import html
import re

import h5py
import numpy as np

from kept import expect_kept
from program import expect, path, run

# The first path is one of the worst, so that no sentence is right by naming it.
PATHS = "nvfp4.fma32,bf16.fma32,mxfp8.fma32,mxfp4.fma32"
SHAPES = ("12,3,128,64", "8,2,64,128")
run("study", "drift", "--shape", SHAPES[0], "--shape", SHAPES[1], "--layers", "4", "--tokens", "24", "--seeds", "2",
    "--paths", PATHS, "-o", path("study.h5"), "--csv", path("study.csv"))
run("report", path("study.h5"), "-o", path("study.html"))
with open(path("study.html")) as stream:
    page = stream.read()
for tag in sorted(set(re.findall(r"</(\w+)>", page))):
    begun, ended = len(re.findall(rf"<{tag}(?:\s[^>]*[^/])?>", page)), page.count(f"</{tag}>")
    expect(begun == ended, f"{begun} <{tag}> and {ended} </{tag}>")
answers = [html.unescape(re.sub(r"<[^>]+>", "", one)) for one in re.findall(r'(?s)<ul class="answers">(.*?)</ul>', page)]
expect(len(answers) == len(SHAPES), f"{len(answers)} lists of answers for {len(SHAPES)} cases")


def said(text, pattern, wanted, what):
    found = re.search(pattern, text)
    expect(found and list(found.groups()) == [str(w) for w in wanted], f"{what}: {found and found.groups()}, not {wanted}")


with h5py.File(path("study.h5")) as file:
    command = file.attrs["command"].decode()
    expect(f"<code>{html.escape(command, quote=False)}</code>" in page, "the page lacks the command")
    different = 0
    for number, text in enumerate(answers):
        case = file[f"cases/{number}"]
        names = case.attrs["paths"].decode().split(",")
        for truth in ("quantised", "original"):
            error = np.sqrt(case[f"open_loop/{truth}/error2"][-1].sum(axis=1) / case[f"truth/{truth}/stream2"][-1].sum())
            best = names[error.argmin()]
            said(text, rf"Closest to float64 with the {truth} weights: (\S+)\. Relative L2 .* the last layer: ([\d.e-]+) %",
                 (best, f"{100 * error.min():.3g}"), truth)
        injected = case["teacher_forced/original/error2"][:].sum(axis=2) / case["truth/original/stream2"][:].sum(axis=1)[:, None]
        share = injected.max(axis=0) / injected.sum(axis=0)
        far = error.argmax()  # of the original weights, the last of the loop
        layer = case["truth/model_layer"][:][injected.argmax(axis=0)].astype(int)
        near = (case["teacher_forced/quantised/error2"][:, far].sum(axis=1)
                / case["truth/quantised/stream2"][:].sum(axis=1))
        different += layer[0] != layer[1] or round(100 * share[0]) != round(100 * share[1])
        said(text, r"hurts most: layer (\d+), which injects (\d+) % of .* errors of (\S+) against .* for (\S+), the farthest path, "
             r"layer (\d+) with (\d+) %, and against the quantised weights layer (\d+) with (\d+) %",
             (layer[0], f"{100 * share[0]:.0f}", names[0], names[far], layer[far], f"{100 * share[far]:.0f}",
              int(case["truth/model_layer"][near.argmax()]), f"{100 * near.max() / near.sum():.0f}"), "the layer that hurts most")
        near, wide = (case[f"open_loop/{truth}/changed"][-1].sum(axis=1) for truth in ("quantised", "original"))
        said(text, r"in layer (\d+), of (\d+) tokens, .* for (\d+) by (\S+) and (\d+) by (\S+)\. "
             r".* these are (\d+) and (\d+),",
             (3, 48, f"{near[0]:.0f}", names[0], f"{near[far]:.0f}", names[far], f"{wide[0]:.0f}", f"{wide[far]:.0f}"),
             "changed experts")
        for truth in ("quantised", "original"):
            own = np.sqrt((case[f"layer/{truth}/error2"][:].sum(axis=2)
                           / case[f"truth/{truth}/layer2"][:].sum(axis=1)[:, None]).sum(axis=0))
            ratios = [f"{name} {value:.3f}" for name, value in zip(names[1:], own[1:] / own[0])]
            for path_, ratio in (one.split() for one in ratios):
                said(text, rf"Quantised activations, against float64 with the {truth} [^:]*:[^:]*: [^:]*"
                     rf"{path_} ([\d.]+) \(", (ratio,), f"{truth}, {path_}")
    expect(different, "the second path would have the same answers as the first")
with open(path("study.csv"), newline="") as stream:
    rows = list(csv.DictReader(stream))
expect({row["model"] for row in rows} == set(SHAPES), f"models of the CSV: {sorted({row['model'] for row in rows})}")
expect(all(row["weights"] == "nvfp4" and None not in row for row in rows), "a row of the CSV has more fields than its head")

expect_kept()
