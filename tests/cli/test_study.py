# SPDX-License-Identifier: Apache-2.0
"""gaugeblock study: results as h5py reads them, figures made again from them, threads, interruptions, refusals."""
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import h5py
import numpy

from kept import expect_kept, readable
from program import ALL, CAPTURE, CHECKPOINT, FAULTS, PROGRAM, SOURCE, expect, folder, path, record, refused, run, said
from published import write

TRUTHS, MODES = ("quantised", "original"), ("open_loop", "teacher_forced", "layer")


def attribute(file, name):
    return file.attrs[name].decode()


def near(a, b, what, off=1e-6):
    expect(abs(a - b) <= off * abs(b) or a == b, f"{what}: {a} is not {b}")


# The trained checkpoint: figures of the CSV are those of the arrays.
tiny = path("tiny.h5")
run("import", CHECKPOINT, tiny, "--format", "nvfp4", "--capture", CAPTURE, "--tokens", "32")
text = run("study", "drift", tiny, "-o", path("drift.h5"), "--csv", path("drift.csv"), "--table", path("drift.md")).stdout
expect("bf16.fma32" in text and "of 32" in text and "the original weights" in text, text)
with open(path("drift.md")) as stream:
    expect("## tiny-qwen3-moe, nvfp4 weights: 2 layers, 32 tokens\n" in stream.read(), "Markdown")
with open(path("drift.csv")) as stream:
    rows = {(r["mode"], r["truth"], r["layer"], r["path"], r["figure"]): r for r in csv.DictReader(stream)}
with h5py.File(path("drift.h5")) as file:
    expect(attribute(file, "schema") == "gaugeblock-study/1" and attribute(file, "kind") == "drift", "schema")
    expect(file.attrs["finished"] == 1 and file.attrs["cases"] == 1, "finished")
    case = file["cases/0"]
    paths = attribute(case, "paths").split(",")
    expect(len(paths) == case.attrs["path_count"] == 8 and case.attrs["tokens"] == 32, str(paths))
    expect("resume" not in case, "a finished study keeps no streams")
    expect(case["open_loop/original/error2"].attrs["axes"] == b"layers, paths, samples", "axes")
    for mode in MODES:
        for truth in TRUTHS:
            group = case[f"{mode}/{truth}"]
            right2 = case[f"truth/{truth}/{'layer2' if mode == 'layer' else 'stream2'}"][:]
            error2, dot, self2 = (group[name][:] for name in ("error2", "dot", "self2"))
            for layer in range(2):
                for p, name in enumerate(paths):
                    bins = group["ulps"][layer, p]
                    top, most = numpy.flatnonzero(bins)[-1], group["max_ulp"][layer, p]
                    expect(bins.sum() == 32 * 384 and (most == 0 if top == 0 else 2**(top - 2) < most <= 2**(top - 1)),
                           f"{name}: {most} ulp are not in bin {top}")
                    def value(figure):
                        return float(rows[mode, truth, str(layer), name, figure]["value"])
                    near(value("relative_l2"), numpy.sqrt(error2[layer, p].sum() / right2[layer].sum()), name)
                    near(value("sqnr_db"), 10 * numpy.log10(right2[layer].sum() / error2[layer, p].sum()), name)
                    near(value("cosine_min"), (dot[layer, p] / numpy.sqrt(self2[layer, p] * right2[layer])).min(), name)
                    near(value("max_abs"), group["max_abs"][layer, p], name)
                    row = rows[mode, truth, str(layer), name, "relative_l2"]
                    expect(float(row["low"]) < float(row["value"]) < float(row["high"]), str(row))
                    if mode == "layer" and p:
                        near(value("closeness"), numpy.sqrt(error2[layer, p].sum() / error2[layer, 0].sum()), name)
                    if mode == "open_loop":
                        expect(value("changed_tokens") == group["changed"][layer, p].sum(), name)
                        near(value("carried"), numpy.sqrt(group["carried2"][layer, p].sum() / right2[layer].sum()), name)

# The block of docs/study.md.
with open(os.path.join(SOURCE, "docs/study.md")) as stream:
    block = stream.read().split("```python\n")[1].split("```")[0]
done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, cwd=os.path.dirname(tiny))
value = rows["open_loop", "original", "0", "bf16.fma32", "relative_l2"]["value"]
expect(done.returncode == 0 and f"{float(value):.6f}"[:7] in done.stdout, done.stdout + done.stderr)

# The last mile: a final norm and a head beside the checkpoint.
model = path("model")
shutil.copytree(CHECKPOINT, model)
random = numpy.random.default_rng(3)


def head(words, **more):
    tensors = {"model.norm.weight": random.standard_normal(384) / 8 + 1, "lm_head.weight":
               random.standard_normal((words, 384)) / 4, **more}
    tensors = {name: ("F32", values.astype(numpy.float32)) for name, values in tensors.items() if values is not None}
    write(os.path.join(model, "head.safetensors"), tensors)
    with open(os.path.join(CHECKPOINT, "model.safetensors.index.json")) as index:
        index = json.load(index)
    index["weight_map"].update({name: "head.safetensors" for name in tensors})
    with open(os.path.join(model, "model.safetensors.index.json"), "w") as stream:
        json.dump(index, stream)


head(100)
text = run("study", "drift", tiny, "--head", model, "-o", path("head.h5"), "--csv", path("head.csv")).stdout
expect("logits of 100 words vs bf16.fma32" in text and text.count("same top-1") == 3, text)
with open(path("head.csv")) as stream:
    logits = {(r["truth"], r["path"], r["figure"]): r for r in csv.DictReader(stream) if r["mode"] == "head"}
with h5py.File(path("head.h5")) as file, h5py.File(path("drift.h5")) as plain:
    case = file["cases/0"]
    expect(case.attrs["vocabulary"] == 100 and plain["cases/0"].attrs["vocabulary"] == 0, "vocabulary")
    for against in (*TRUTHS, "bf16.fma32"):
        kl, same = case[f"head/{against}/kl"][:], case[f"head/{against}/same_top"][:]
        expect(kl.shape == same.shape == (8, 32) and (kl >= -1e-15).all() and set(numpy.unique(same)) <= {0.0, 1.0}, against)
        for p, name in enumerate(paths):
            near(float(logits[against, name, "top_agreement"]["value"]), same[p].mean(), name)
            near(float(logits[against, name, "kl_nats"]["value"]), kl[p].mean(), name) if kl[p].any() else None
    kl = case["head/quantised/kl"][:].mean(axis=1)
    expect((case["head/bf16.fma32/kl"][0] == 0).all() and 100 * kl[0] < kl[6], f"bf16 loses least: {kl}")
    expect((case["open_loop/original/error2"][:] == plain["cases/0/open_loop/original/error2"][:]).all(), "the same study")
run("report", path("head.h5"), "-o", path("head.html"))
said += re.findall(r"<caption>Logits.*?</table>|<ul class=.answers.>.*?</ul>\n", readable(path("head.html")), re.S)
with open(path("head.html")) as stream:
    page = stream.read()
for against, whom in (("quantised", "float64 with the quantised weights"), ("original", "float64 with the original weights"),
                      ("bf16.fma32", "bf16 activations, the same weights (bf16.fma32)")):
    table = page.split(f"<caption>Logits over a vocabulary of 100 against {whom}<", 1)[1].split("</table>", 1)[0]
    shown = [re.findall("<td[^>]*>([^<]*)<", row) for row in re.findall("<tr>.*", table)]
    right = []
    for name in paths[against == "bf16.fma32":]:
        kl, top = ([float(logits[against, name, figure][at] or "nan") for at in ("value", "low", "high")]
                   for figure in ("kl_nats", "top_agreement"))
        right.append([name, "%.3e" % kl[0], "%.2e to %.2e" % tuple(kl[1:]) if kl[1] == kl[1] else "", "%.1f" % (100 * top[0]),
                      "%.1f to %.1f" % (100 * top[1], 100 * top[2])])
    expect([row for row in shown if row] == right, f"{whom}: {shown} and not {right}")
head(7, **{"lm_head.weight": None, "model.embed_tokens.weight": random.standard_normal((7, 384))})
expect("logits of 7 words" in run("study", "drift", tiny, "--head", model, "--paths", "nvfp4.fma32").stdout, "a tied head")
expect("holds another study" in refused("study", "drift", tiny, "--head", model, "-o", path("head.h5"), "--resume"), "head")
expect("model.norm.weight" in refused("study", "drift", tiny, "--head", CHECKPOINT), "no head")
head(7, **{"lm_head.weight": random.standard_normal((7, 383))})
expect("lm_head.weight" in refused("study", "drift", tiny, "--head", model), "a narrow head")
for more, words in (
    ({"lm_head.weight": None}, "model.embed_tokens.weight"),
    ({"lm_head.weight": numpy.ones((1, 384))}, "lm_head.weight: is no head: values of at least 2 words, 384 of each"),
    ({"lm_head.weight": numpy.ones((7, 384, 1))}, "lm_head.weight: is no head: values of at least 2 words, 384 of each"),
    ({"model.norm.weight": numpy.ones(383)}, "model.norm.weight: is no vector of 384 values"),
    ({"model.norm.weight": numpy.ones((384, 1))}, "model.norm.weight: is no vector of 384 values"),
    ({"model.norm.weight": numpy.where(numpy.arange(384) < 383, 1.0, numpy.nan)},
     "model.norm.weight: element 383 is not finite"),
):
    head(7, **more)
    said = refused("study", "drift", tiny, "--head", model)
    expect(words in said, said)
run("import", CHECKPOINT, path("first.h5"), "--format", "nvfp4", "--capture", CAPTURE, "--layers", "0")
expect("ends with layer 0" in refused("study", "drift", path("first.h5"), "--head", model), "not the last layer")
refused("study", "closeness", tiny, "--head", model)
refused("study", "drift", "--shape", "8,2,256,128", "--head", model)

expect(float(rows["layer", "original", "", "bf16.mma16-sm90", "closeness"]["value"]) < 1.001, "another order")
# FP4 activations route some tokens to other experts, bf16 ones none.
expect(float(rows["open_loop", "quantised", "1", "mxfp4.fma32", "changed_tokens"]["value"]) > 0, "changed")
expect(float(rows["open_loop", "quantised", "1", "bf16.fma32", "changed_tokens"]["value"]) == 0, "changed")

# docs/closeness.md has what the program writes, and docs/study.md what suffixes of paths do.
whole = ("nvfp4", "mxfp8") if ALL else ("nvfp4",)
suffixed = [f"bf16.fma32.{suffix}" for suffix in ("bf16gateup", "fp32intermediate", "prereduced4")]
for form in whole:
    run("import", CHECKPOINT, path(f"{form}.h5"), "--format", form, "--capture", CAPTURE)
quantised = ["mxfp8.fma32", "fp8.fma32", "int8.fma32", "nvfp4.fma32", "mxfp4.fma32"]
run("study", "closeness", *(path(f"{form}.h5") for form in whole), "--paths", ",".join(quantised + suffixed), "--table", path("closeness.md"), "--csv", path("suffixes.csv"))
with open(path("closeness.md")) as stream, open(os.path.join(SOURCE, "docs/closeness.md")) as document:
    written, document = [line for line in stream if "bf16.fma32." not in line], document.read()
cells = [[word for cell in line.split("|") for word in cell.split()] for line in written]
known = [[word for cell in line.split("|") for word in cell.split()] for line in document.splitlines()]
first = known.index(cells[0])
expect(len(cells) == 2 + 10 * len(whole), written)
for one, other in zip(cells[2:], known[first + 2:]):  # the last digits of truth are the BLAS's
    expect(one[:4] == other[:4] and all(abs(float(a) - float(b)) <= 2e-3 * float(b) for a, b in
           zip(one[4:], other[4:]) if a != ".."), f"docs/closeness.md has {other}, the program {one}")
with open(path("suffixes.csv")) as stream:
    ratios = {(r["path"], r["truth"]): r for r in csv.DictReader(stream)
              if r["figure"] == "closeness" and not r["layer"] and r["weights"] == "nvfp4"}
with open(os.path.join(SOURCE, "docs/study.md")) as document:
    known = {line.split("`")[1]: [float(word) for word in line.replace("(", " ").replace(")", " ").split()
             if word[0].isdigit()] for line in document if line.startswith("| `bf16.fma32.") and " to " in line
             and "ratio" not in line and line.count("|") == 4}
expect(known.keys() == set(suffixed), str(known))
for name, numbers in known.items():
    found = [float(ratios[name, "quantised"][figure]) for figure in ("value", "low", "high")]
    found.append(float(ratios[name, "original"]["value"]))
    expect(all(abs(a - b) <= 0.01 * b for a, b in zip(found, numbers)) and len(numbers) == 4, f"{name}: {found} {numbers}")

# What a first look gave: quantised activations are far from the quantised weights' truth, and near the original one's.
for truth, name, low, high in (("quantised", "mxfp8", 19, 27), ("quantised", "nvfp4", 63, 100),
                               ("original", "nvfp4", 1.26, 1.44)):
    expect(low < float(ratios[f"{name}.fma32", truth]["value"]) < high, f"{name}, {truth}")

# Generated weights: several cases and seeds, the same results for any number of threads.
generated = ["study", "closeness", "--shape", "8,2,256,128", "--format", "nvfp4", "--format", "mxfp8", "--layers", "2",
             "--tokens", "6", "--seeds", "2", "--outliers", "16", "--routing-skew", "4"]
hashes = set()
for threads in ("1", "3"):
    text = run(*generated, "-o", path("g.h5"), env={**os.environ, "OMP_NUM_THREADS": threads}).stdout
    with h5py.File(path("g.h5")) as file:
        hashes.add(attribute(file, "content_sha256"))
        expect(file.attrs["cases"] == 2 and attribute(file["cases/1"], "weights") == "mxfp8", "cases")
        expect(file["cases/1/layer/original/error2"].shape == (2, 8, 12), "shape")
        expect(not numpy.isnan(file["cases/1/layer/original/error2"][:]).any(), "all measured")
expect(len(hashes) == 1, f"threads change the results: {hashes}")
expect(len([line for line in text.splitlines() if "mxfp8.fma32" in line]) == 4, text)

# Outlier channels and a skewed router change what they should.
plain = [word for word in generated if word not in ("--outliers", "16", "--routing-skew", "4")]
run(*plain, "-o", path("plain\u00e9.h5"))
with h5py.File(path("g.h5")) as skewed, h5py.File(path("plain\u00e9.h5")) as file:
    expect("plain??.h5" in attribute(file, "command") and attribute(file, "command").isascii(), attribute(file, "command"))
    for index in range(2):
        int8 = attribute(file[f"cases/{index}"], "paths").split(",").index("int8.fma32")
        figures = [numpy.sqrt(f[f"cases/{index}/layer/quantised/error2"][:, int8].sum() /
                              f[f"cases/{index}/truth/quantised/layer2"][:].sum()) for f in (skewed, file)]
        expect(figures[0] > 1.3 * figures[1], f"outliers cost INT8 accuracy: {figures}")

# Paths by kernels, in processes of their own: the reference's have its bits, a faulty one another's.
small = ["study", "drift", "--shape", "8,2,256,128", "--layers", "2", "--tokens", "4", "--paths", "mxfp8.fma32,nvfp4.fma32"]


def figures(*arguments):
    run(*small, *arguments, "-o", path("kernel.h5"))
    with h5py.File(path("kernel.h5")) as file:
        case = file["cases/0"]
        return (attribute(file, "content_sha256"), attribute(case, "kernels"),
                case["layer/quantised/error2"][:])


own, kernels, reference = figures()
expect(kernels == "", kernels)
by_kernel, kernels, _ = figures("--kernel", "cpu/*")
expect(by_kernel == own and kernels == "bf16.fma32 cpu/nvfp4-layer, nvfp4.fma32 cpu/nvfp4-nvfp4-layer", kernels)
faulty, kernels, found = figures("--subject", FAULTS, "--kernel", "faults/quantised-next-scale")
expect(kernels == "nvfp4.fma32 faults/quantised-next-scale" and faulty != own, kernels)
expect((found[:, :2] == reference[:, :2]).all() and found[:, 2].sum() > 2 * reference[:, 2].sum(), "one path is another's")
expect("computes none of the paths" in refused(*small, "--kernel", "cpu/mxfp8-layer"), "another format")
expect("faults/crash" in refused(*small, "--subject", FAULTS, "--kernel", "faults/crash"), "a crash")
expect("two runs differ" in refused(*small, "--subject", FAULTS, "--kernel", "faults/nondeterministic"), "two runs")
refused(*small, "--subject", FAULTS)

# Ctrl-C leaves a file that goes on: the same results as without it.
long = ["study", "drift", "--shape", "16,4,512,256", "--layers", "6", "--tokens", "8",
        "--paths", "mxfp8.fma32,nvfp4.fma32", "-o", path("long.h5")]
process = subprocess.Popen([PROGRAM, *long], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
for _ in range(600):
    if os.path.exists(path("long.h5")):
        break
    time.sleep(0.02)
time.sleep(0.1)
process.send_signal(signal.SIGINT)
out, err = process.communicate(timeout=60)
expect(process.returncode == 3 and not out and "--resume goes on" in err and len(err.splitlines()) == 1,
       f"{process.returncode}: {out}{err}")
with h5py.File(path("long.h5")) as file:
    done = file["cases/0"].attrs["done"]
    expect(file.attrs["finished"] == 0 and 0 <= done < 6, str(done))
    expect(file["cases/0/resume/layers_done"][:] == [done], "progress")
    if done:
        expect(file["cases/0/resume/state/0"].shape == (5, 8, 512), "streams")
    if done:
        expect(not numpy.isnan(file["cases/0/open_loop/original/error2"][:done]).any(), "what is done")
    expect(numpy.isnan(file["cases/0/open_loop/original/error2"][done:]).all(), "what is not")
expect("holds another study" in refused(*["7" if w == "6" else w for w in long], "--resume"), "another study")
done = run(*long, "--resume")
expect(not done.stderr and "8 tokens" in done.stdout, done.stderr)
with h5py.File(path("long.h5")) as file:
    resumed = attribute(file, "content_sha256")
run(*long)
with h5py.File(path("long.h5")) as file:
    expect(attribute(file, "content_sha256") == resumed, "an interrupted run has the same results")
run(*long, "--resume")  # finished: prints them again
with h5py.File(path("long.h5")) as file:
    expect(attribute(file, "content_sha256") == resumed, "and again")

# One token has no interval, and nothing is said to differ.
for kind in ("drift", "closeness"):
    one = run("study", kind, "--shape", "8,2,256,128", "--layers", "3", "--tokens", "1", "-o", path("one.h5"), "--csv",
              path("one.csv"), "--table", path("one.md")).stdout
    run("report", path("one.h5"), "-o", path("one.html"))
    texts = [one] + [open(path(name)).read() for name in ("one.csv", "one.md", "one.html")]
    expect("unknown" in one and not any(re.search(r"(?i)\b(nan|inf)\b", text) for text in texts), f"{kind}: {one}")
    expect("95 % interval unknown" in texts[3] and "The next one that differs" not in texts[3], "one token tells nothing apart")

# Bad usage and bad input.
refused("study", "drift")
refused("study", tiny)
refused("study", "closer", tiny)
expect("go with" in refused("study", "drift", tiny, "--tokens", "4"), "tokens of a fixture")
expect("--resume goes with --record" in refused("study", "drift", tiny, "--resume"), "resume")
for bad in ("mxfp8", "bf16.fma32", "mxfp8.fma64", *("bf16.fma32." + suffix for suffix in (
        "prereduced0", "prereduced1", "prereduced-1", "prereduced+3", "prereduced03", "prereduced1000",
        "prereduced2.prereduced4", "bf16gateup.bf16gateup"))):
    refused("study", "drift", "--shape", "8,2,256,128", "--paths", bad)
for flag, bad in (("--shape", "8,9,256,128"), ("--shape", "8,2,256"), ("--outliers", "0.5"), ("--routing-skew", "x"),
                  ("--format", "fp3"), ("--layers", "0"), ("--model", "none")):
    said = refused("study", "drift", "--shape", "8,2,256,128", flag, bad)
    expect(flag in said, f"{flag} {bad}: {said}")
refused("study", "drift", "--shape", "8,2,250,128")
refused("study", "drift", path("missing.h5"))
refused("study", "drift", tiny, "-o", tiny)
for twice in (("-o", path("one"), "--csv", path("one")), ("--csv", path("one"), "--table", path("./one"))):
    expect("written twice" in refused("study", "drift", "--shape", "8,2,256,128", "--tokens", "2", *twice), str(twice))
expect(not os.path.exists(path("one")), "nothing is written")
for flag, bad in (("--csv", path("no/such/a.csv")), ("--table", folder.name), ("--csv", "")):
    expect("cannot be written" in refused("study", "drift", "--shape", "8,2,256,128", "--tokens", "2", flag, bad), bad)
barred = path("a|b")
os.symlink(CHECKPOINT, barred)
run("import", barred, path("barred.h5"), "--format", "nvfp4", "--capture", CAPTURE, "--tokens", "4")
shown = run("study", "closeness", path("barred.h5"), path("first.h5"), "--paths", "nvfp4.fma32", "--table",
            path("barred.md")).stdout
with open(path("barred.md")) as stream:
    lines = [line for line in stream if line.startswith("|")]
expect("a\\|b" in lines[2] and "a|b  " in shown and len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1, lines)

# The path with bf16 activations is the reference that verify judges: the same figures.
run("study", "drift", path("barred.h5"), "--paths", "nvfp4.fma32", "--csv", path("barred.csv"))
with open(path("barred.csv")) as stream:
    rows = {(r["mode"], r["truth"], r["layer"], r["path"], r["figure"]): r for r in csv.DictReader(stream)}
one = record(path("barred.h5"), "--kernel", "cpu/nvfp4-layer")
for layer in range(2):
    found = one["cases"][0]["metrics"]["layers"][layer]["reference_truth"]
    for truth in TRUTHS:
        for figure in ("relative_l2", "cosine_min", "max_abs"):
            near(float(rows["layer", truth, str(layer), "bf16.fma32", figure]["value"]), found[truth][figure], figure)
for layer, found in enumerate(one["cases"][0]["metrics"]["drift"]):
    near(float(rows["open_loop", "quantised", str(layer), "bf16.fma32", "relative_l2"]["value"]),
         found["reference_truth"]["quantised"]["relative_l2"], "drift")

refused("study", "drift", tiny, "-o", path("no/such/folder/r.h5"))
run("make", path("lean.h5"), "--shape", "8,2,256,128", "--generated")
expect("no residual stream" in refused("study", "drift", path("lean.h5")), "no stream")
expect("weighs its experts' input" in refused("study", "drift", "--model", "llama-4-scout", "--tokens", "1"), "llama")
with open(path("long.h5"), "rb") as stream:
    whole = stream.read()
with open(path("cut.h5"), "wb") as stream:
    stream.write(whole[:len(whole) // 2])
refused(*long[:-1], path("cut.h5"), "--resume")

expect_kept()
