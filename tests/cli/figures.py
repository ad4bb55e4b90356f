# SPDX-License-Identifier: Apache-2.0
"""Figures in sentences and tables of docs/, each beside the record or the table that it is taken from. Those of timings are
of the newest record of its name. A figure is right if it is the record's, rounded to the digits that stand there."""
import glob
import json
import os
import re

import numpy

from nvfp4 import to_bf16
from program import CHECKPOINT, SOURCE
from published import EXPERTS, LAYERS, read

FIGURE = r"(?<![\w.])-?\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[-+]\d+)?(?![\w])"


def page(name):
    with open(os.path.join(SOURCE, "docs", name), encoding="utf-8") as stream:
        return stream.read()


def newest(name):
    return sorted(glob.glob(os.path.join(SOURCE, "docs/results", f"????-??-??-{name}")))[-1]


def record(name):
    with open(newest(name + ".json"), encoding="utf-8") as stream:
        return json.load(stream)


def rows(text, first, past=""):
    """The cells of the table whose head begins with `first`, the first one behind the text `past`."""
    text = text[text.index(past):]
    lines = text[text.index(f"\n| {first}") + 1:].split("\n\n")[0].split("\n")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\|(?!--)", line)]


def figure(text):
    return float(text.replace(",", ""))


def is_rounded(text, value):
    mantissa, _, exponent = text.replace(",", "").partition("e")
    whole, _, fraction = mantissa.partition(".")
    zeros = int(whole.endswith("0")) if not fraction and len(whole) > 3 else 0 # three digits of 3,410 count
    return abs(figure(text) - value) <= 0.5001 * 10.0**((-len(fraction) if fraction else zeros) + int(exponent or 0))


def off(where, texts, values):
    """What is wrong with these figures."""
    if len(texts) != len(values):
        return [f"{where}: {len(texts)} figures where the record has {len(values)}"]
    return [f"{where}: {text}, but the record has {value:.6g}" for text, value in zip(texts, values)
            if not is_rounded(text, value)]


def sentence(name, text, *values):
    """text: as it stands on the page, with {} for each figure."""
    pattern = r"\s+".join(re.escape(word).replace(r"\{\}", f"({FIGURE})") for word in text.split())
    found = re.search(pattern, page(name))
    return off(f"docs/{name}, '{text[:50]}'", found.groups(), values) if found else [f"docs/{name} no longer says '{text}'"]


def row(name, label, *values):
    """The figures of the table's row that begins with these cells."""
    (line,) = [line for line in page(name).split("\n") if line.startswith(f"| {label} |")]
    return off(f"docs/{name}, row '{label}'", re.findall(FIGURE, line[len(label) + 4:]), values)


# Of each page, what is wrong in it.

def mma16():
    of = {(weights, shape): {b["batch"]: b for b in record(f"h200-mma16-{weights}-{shape}")["batches"]}
          for weights, shape in (("nvfp4", "qwen3-next"), ("mxfp8", "qwen3-next"), ("mxfp4", "qwen3-next"),
                                 *((w, s) for w in ("nvfp4", "mxfp8") for s in ("deepseek-v3", "qwen3-30b")))}
    wrong, weights = [], ""
    for format_, layout, *cells in rows(page("gpu.md"), "weights | layout")[1:]:
        weights = format_.lower() or weights
        wrong += off(f"docs/gpu.md, {weights} {layout}", re.findall(FIGURE, " ".join(cells)),
                     [value for batch in (1, 8, 32, 64) for value in
                      of[weights, "qwen3-next"][batch][layout.strip("`")]["layer"]])
    def times(weights, shape, *batches, part="layer"):
        return [of[weights, shape][batch]["repacked"][part][1] for batch in batches]
    m8, n4 = ("mxfp8", "qwen3-next"), ("nvfp4", "qwen3-next")
    wrong += sentence("gpu.md", "gate_up alone comes to {} (MXFP8, batch 32) and {} (NVFP4). down is the weaker one, {} and {}:",
                      *times(*m8, 32, part="gate-up"), *times(*n4, 32, part="gate-up"),
                      *times(*m8, 32, part="down"), *times(*n4, 32, part="down"))
    four, two = (1, 8, 32, 64), (128, 256)
    wrong += sentence("gpu.md", "DeepSeek-V3 in MXFP8 {}, {}, {} and {} (gate_up and down by themselves {} and {} at batch 64), "
                      "in NVFP4 {}, {}, {} and {}; Qwen3-30B, whose rows are short, in MXFP8 {}, {}, {} and {}, in NVFP4 {}, "
                      "{}, {} and {}.", *times("mxfp8", "deepseek-v3", *four),
                      *times("mxfp8", "deepseek-v3", 64, part="gate-up"), *times("mxfp8", "deepseek-v3", 64, part="down"),
                      *times("nvfp4", "deepseek-v3", *four), *times("mxfp8", "qwen3-30b", *four),
                      *times("nvfp4", "qwen3-30b", *four))
    wrong += sentence("gpu.md", "DeepSeek-V3 {} and {}, in NVFP4 {} and {}; Qwen3-30B {} and {}, in NVFP4 {} and {}",
                      *(x for s in ("deepseek-v3", "qwen3-30b") for w in ("mxfp8", "nvfp4") for x in times(w, s, *two)))
    def us(batch, kernel, part="layer"):
        return of[n4][batch][kernel][part][0]
    wrong += sentence("gpu.md", "at batch 1, 32 and 256 the repacked layer of NVFP4 is {}, {} and {} times as fast as the eight "
                      "stages, and {}, {} and {} times as fast as warp decode. Decoding by bits instead of by a table makes "
                      "warp decode {} times as fast at batch 1. A router in front of the repacked layer costs {} us more at "
                      "batch 1 and {} at batch 32",
                      *(us(b, k) / us(b, "repacked") for k in ("eight stages", "warp decode") for b in (1, 32, 256)),
                      us(1, "warp decode by table") / us(1, "warp decode"),
                      *(us(b, "repacked", "routed-layer") - us(b, "repacked") for b in (1, 32)))
    bench = {(one["kernel"], one["batch"]): one["ceiling_share"] for one in record("h200-bench-qwen3-next")["timed"]}
    wrong += sentence("gpu.md", "by `gaugeblock bench` {} at batch 8 and {} at batch 32",
                      *(bench["cuda/nvfp4-repacked-layer", batch] for batch in (8, 32)))
    every = [b[layout]["layer"][1] for shape in (m8, n4, ("mxfp4", "qwen3-next")) for batch, b in of[shape].items()
             if batch <= 64 for layout in ("repacked", "canonical")]
    wrong += sentence("results/README.md", "layers of mma16-sm90 {} to {} times the read", min(every), max(every))
    one = of["nvfp4", "deepseek-v3"][64]
    weights_per_us = one["megabytes"] / one["read"][2] * 1e6 * 16 / 9
    wrong += sentence("gpu.md", "At the {} TB/s of a bare read of DeepSeek-V3's layer at batch 64", one["megabytes"] / one["read"][2])
    wrong += sentence("gpu.md", "has {} for each GHz of its clock to spend on a weight", 132 * 128 * 1e3 / weights_per_us)
    with open(newest("h200-mma16-check.txt"), encoding="utf-8") as stream:
        text = stream.read()
    problems, outputs = re.search(r"check: (\d+) problems, (\d+) outputs, 0 mismatches", text).groups()
    routed = sum(map(int, re.findall(r"(\d+) words compared", text)))
    return (wrong + sentence("gpu.md", "The {} outputs of the {} problems of", int(outputs), int(problems))
            + sentence("results/README.md", "0 of {} outputs differ, 0 of {} words of routed layers", int(outputs), routed))


def peers():
    triton, monomoe, marlin = (record(f"h200-bench-{name}")["batches"] for name in ("triton", "monomoe", "marlin"))
    wrong = row("gpu.md", "Triton, FP8", *(b["triton_us"] for b in triton))
    wrong += row("gpu.md", "MonoMoE, logits given", *(b["us"] for b in monomoe))
    wrong += row("gpu.md", "MonoMoE, logits computed", *(b["routed_us"] for b in monomoe))
    wrong += row("gpu.md", "Marlin, NVFP4", *(b["us"] for b in marlin))
    for weights in ("mxfp8", "nvfp4"):
        name = weights.upper() + " repacked"
        wrong += row("gpu.md", f"{name}, ids given, times as fast", *(b[weights]["layer"]["times_as_fast"] for b in monomoe))
        wrong += row("gpu.md", f"{name}, routed layer, times as fast",
                     *(b[weights]["routed-layer"]["times_as_fast"] for b in monomoe))
    lines = [line for line in page("gpu.md").split("\n") if re.match(r"\| \w+ repacked, times as fast \|", line)]
    for line, values in zip(lines, ([b["mxfp8"]["times_as_fast"] for b in triton],
                                    [b["nvfp4"]["times_as_fast"] for b in triton],
                                    [b["nvfp4"]["layer"]["times_as_fast"] for b in marlin])):
        wrong += off(f"docs/gpu.md, row '{line}'", re.findall(FIGURE, line.split("|", 2)[2]), values)
    return wrong + sentence("gpu.md", "Beside MonoMoE whose logits are given a routed layer in MXFP8 is {}, {}, {} and {} times as fast",
                            *(b["us"] / b["mxfp8"]["routed-layer"]["us"] for b in monomoe))


def growth():
    batches, sizes, models = (record(f"h200-{name}") for name in ("growth-batches", "growth-sizes", "bench-models"))
    lines = {(r, one["weights"]): one for r, of in (("batches", batches), ("sizes", sizes)) for one in of["growth"]}
    def fits(of):
        return [x for w in ("nvfp4", "mxfp8") for x in (lines[of, w]["fixed_us"], lines[of, w]["gb_per_s"])]
    def deviations(of):
        return [100 * lines[of, w]["largest_deviation"] for w in ("nvfp4", "mxfp8")]
    wrong = sentence("gpu.md", "has a fixed cost of {} us and {} GB/s for NVFP4, {} us and {} GB/s for MXFP8; the largest "
                     "deviation of a time from it is {} % and {} %.", *fits("batches"), *deviations("batches"))
    wrong += sentence("gpu.md", "the lines are {} us and {} GB/s, and {} us and {} GB/s, with largest deviations of {} % and {} %",
                      *fits("sizes"), *deviations("sizes"))
    launches = sorted({(one["batch"], one["graph_launches"]) for one in batches["timed"]})
    wrong += sentence("gpu.md", "two at batch {}, three up to {}, four from {} on", *(
        choose(batch for batch, n in launches if n == of) for choose, of in ((max, 2), (max, 3), (min, 4))))
    every = deviations("batches") + deviations("sizes")
    wrong += sentence("results/README.md", "with largest deviations of {} to {} %", min(every), max(every))
    for weights in ("mxfp8", "nvfp4"):
        shares = [one["ceiling_share"] for one in models["timed"] if weights in one["kernel"]]
        (cells,) = [cells for cells in rows(page("gpu.md"), "weights | Qwen3-Next")[1:] if cells[0] == weights.upper()]
        wrong += off(f"docs/gpu.md, shares of {weights}", re.findall(FIGURE, " ".join(cells[1:])), shares)
    return wrong


def ranks():
    wrong, kinds = [], ("dispatch_fp8", "dispatch_bf16", "combine_receiver", "combine_sender")
    for batch in record("h200-bench-ranks")["batches"]:
        cells = next(cells for cells in rows(page("gpu.md"), "tokens a rank")[1:] if cells[0] == str(batch["tokens"]))
        wrong += off(f"docs/gpu.md, {batch['tokens']} tokens a rank", re.findall(FIGURE, " ".join(cells[1:])),
                     [batch[kind][key] for kind in kinds for key in ("us", "nccl_us")])
    with open(newest("h200-ranks.txt"), encoding="utf-8") as stream:
        wrong += sentence("results/README.md", "on two H200: {} problems of 1 to 16 ranks",
                          int(re.search(r"check: (\d+) problems", stream.read())[1]))
    least, more = {"sender": 2, "node": 16}, {"sender": [], "node": []} # ranks, and per cent more than at the receiver
    places = {"receiver": 2, "sender": 3, "node": 4}
    table = {(cells[0], int(cells[1])): cells for cells in rows(page("results/README.md"), "layers | ranks")[1:]}
    for fixture in record("accuracy-ranks")["fixtures"]:
        name = fixture["source"].removeprefix("--model ").split()[0]
        (layers,) = {layers for layers, _ in table if name in layers}
        receiver = fixture["cases"][0]["relative_l2_bf16"] # whatever the ranks
        for case in fixture["cases"]:
            cells = table.get((layers, case["ranks"]))
            if cells and case["placement"] == "random":
                wrong += off(f"docs/results/README.md, {layers}, {case['ranks']} ranks",
                             re.findall(FIGURE, cells[places[case["accumulation"]]]),
                             [1000 * case["relative_l2_fp32"], 1000 * case["relative_l2_bf16"]])
            if case["placement"] == "random" and case["ranks"] >= least.get(case["accumulation"], 1000):
                more[case["accumulation"]].append(100 * case["relative_l2_bf16"] / receiver - 100)
    return wrong + sentence("results/README.md", "adding up at the sender adds {} to {} % to the error", min(more["sender"]),
                            max(more["sender"])) + sentence("results/README.md", "at the node, makes that {} to {} % from 16 ranks on",
                                                            min(more["node"]), max(more["node"]))


def records():
    """Lines of docs/results/README.md and sentences elsewhere about records of the other kinds."""
    silu = {f["input"]: f for f in record("h200-dump-silu")["formats"]}
    wrong = sentence("results/README.md", "{} of {} bf16 gates differ, by {} ulp at most; {} of fp16, by {}",
                     *(silu["bf16"][key] for key in ("differing", "gates", "most_ulp")), silu["fp16"]["differing"],
                     silu["fp16"]["most_ulp"])
    seconds = record("h200-testing-triton")["seconds"]
    wrong += sentence("results/README.md", "the right kernel passes in {} s, truth in torch on the CPU takes {} s",
                      seconds["assert_moe_close"], seconds["truth in torch, CPU"])
    shapes = record("h200-bench-silu-mul-quantise")["shapes"]
    def share(of, kernel):
        return next(k["of_copy"] for k in of["kernels"] if k["kernel"] == kernel)
    ours = {of["rows"]: share(of, "library") for of in shapes}
    simple = [share(of, "one thread an element") for of in shapes if of["rows"] >= 512]
    wrong += sentence("results/README.md", "{} (512 rows) to {} (16,384 rows) of a copy's bandwidth; one thread an element is "
                      "faster at 64 rows ({} beside {}), and slower from 512 on ({} to {})", ours[512], ours[16384],
                      share(shapes[0], "one thread an element"), ours[64], min(simple), max(simple))
    mma = record("h200-mma")
    wrong += sentence("numerics.md", "{} outputs, bf16 and f16 operands, of {} kinds", mma["outputs"], len(mma["kinds"]) / 2)
    wrong += sentence("numerics.md", "and {} of them with the reference's C model", mma["outputs_in_c"])
    wgmma = [[figure(cell) for cell in cells[2:]] for cells in rows(page("results/README.md"), "kind | data")[1:]]
    other = [x for _, *both in wgmma for x in both]
    of_each = figure(re.search(r"([\d,]+) outputs a kind", page("results/README.md"))[1])
    wrong += sentence("numerics.md", "{} outputs of five kinds", of_each * len(wgmma))
    wrong += sentence("numerics.md", "in place of 13, {} to {} of each kind's {} mismatch", min(other), max(other), of_each)
    headers = {one["format"]: one for one in record("cuda-headers")["results"]}
    wrong += sentence("numerics.md", "0x7FFF, sign dropped | all {} NaNs", headers["bf16"]["nans_encoded_otherwise"])
    cpu = record("bench-reference")["cases"]
    def over_sgemv(path, **of):
        return [c["median"]["times_sgemv"][path] for c in cpu if all(c[key] == value for key, value in of.items())]
    reads = [c["median"]["gweights_per_s"]["avx512"] / c["median"]["gweights_per_s"]["read"] for c in cpu if c["threads"] == 2]
    speed = [c["median"]["read_gb_per_s"] for c in cpu if c["threads"] == 2]
    wrong += sentence("results/README.md", "AVX2: {} to {} times sgemv; AVX-512: {} to {} times (two threads: NVFP4 {} and {}, "
                      "MXFP8 {} and {}), {} to {} of the read", min(over_sgemv("avx2")), max(over_sgemv("avx2")),
                      min(over_sgemv("avx512")), max(over_sgemv("avx512")), *over_sgemv("avx512", threads=2, format="nvfp4"),
                      *over_sgemv("avx512", threads=2, format="mxfp8"), min(reads), max(reads))
    wrong += sentence("results/README.md", "it was read at {} to {} GB/s by two threads", min(speed), max(speed))
    torch = record("torch-check")["median_seconds"]
    wrong += sentence("results/README.md", "{} s beside {} s (medians of 5)", torch["gaugeblock"], torch["torch"])
    times = [record("numpy-check")["median_seconds"][name][kind] for kind in ("processor", "elapsed") for name in ("verify", "numpy")]
    wrong += sentence("results/README.md", "processor time {} s beside {} s, elapsed {} s beside {} s (medians of 7)", *times)
    tests = record("valgrind")["tests"]
    wrong += sentence("results/README.md", "| {} runs, {} errors |", len(tests), sum(one["errors"] for one in tests))
    with open(newest("exhaustive-identify.txt"), encoding="utf-8") as stream:
        found = re.search(r"(\d+) recipes.*?(\d+) changes of one rule: (\d+) seen, (\d+) change nothing", stream.read(), re.S)
    recipes, *changes = map(int, found.groups())
    wrong += sentence("results/README.md", "the {} recipes with vectors", recipes)
    wrong += sentence("results/README.md", "{} changes: {} seen, {} change no bit", *changes)
    for program, name in (("test_false_alarms", "false-alarms"), ("test_false_alarms_truncated", "false-alarms-truncated"),
                          ("test_false_alarms_activations", "false-alarms-activations"),
                          ("test_false_alarms_generated", "false-alarms-generated")):
        cells = next(cells for cells in rows(page("gates.md"), "program | kernels")[1:] if cells[0] == f"`{program} all`")
        wrong += off(f"docs/gates.md, {program}", [cells[1], cells[3]], [record(name)[key] for key in ("runs", "alarms")])
    return wrong


def loosened():
    """Shares of runs that alarm at loosened levels, the largest of each level."""
    every = [record(name)["loosened"] for name in ("false-alarms", "false-alarms-truncated", "false-alarms-activations",
                                                   "false-alarms-generated")]
    return (sentence("gates.md", "at most {} %, {} % and {} % of the runs of a row alarm",
                     *(max(100 * value for level in levels for key, value in level.items() if key != "probability")
                       for levels in zip(*every)))
            + sentence("gates.md", "{} problems drawn from all that", record("false-alarms-generated")["fixtures"])
            + sentence("gates.md", "{} of which are not judged (VACUOUS)", record("false-alarms-generated")["vacuous"]))


def exact_runs():
    """Runs of 16 whose sums of products with E2M1 are exact (gpu/fma32_runs.cuh), in per cent, of what is drawn."""
    rng = numpy.random.default_rng(16)
    def exact(x):
        x = abs((to_bf16(x).astype(numpy.uint32) << 16).view(numpy.float32).astype(float)).reshape(-1, 16)
        unit = 2.0 ** (numpy.floor(numpy.log2(numpy.where(x, x, numpy.inf).min(1))) - 8)
        return 100 * (6.05 * x.sum(1) <= 2.0**24 * unit).mean()
    x, gate, up = rng.standard_normal((3, 1 << 20))
    return sentence("gpu.md", "Of normally distributed x {} % of runs are such, of silu(gate) * up with gate and up of standard "
                    "deviation 1 about {} %", exact(x), exact(gate / (1 + numpy.exp(-gate)) * up))


def inner_loops():
    """The table of what the compiler makes of kernels, and the record of it."""
    with open(newest("inner-loops.txt"), encoding="utf-8") as stream:
        kept = [line.split() for line in stream if line.startswith("gb_")]
    wrong = []
    for tile, registers, each in rows(page("gpu.md"), "kernel, tile")[1:]:
        kernel = "gb_{}_kernel.*_tile<{}u".format(*re.match(r"(\w+),.*teams of (\d+)", tile).groups())
        found = {(int(cells[1]), float(cells[-1])) for cells in kept if re.match(kernel, cells[0])}
        figures = [registers, *re.findall(FIGURE, each)] # the last one, where there are three, is of one of two tokens
        wrong += [line for count, loop in found for line in off(f"docs/gpu.md, {tile}", figures, [count, loop, loop / 2][:len(figures)])]
        wrong += [] if found else [f"docs/gpu.md, {tile}: the record has no such kernel"]
    return wrong


def sizes():
    """README's megabytes, to tens of build/."""
    with open(newest("sizes.txt"), encoding="utf-8") as stream:
        kept = stream.read()
    def of(pattern):
        return [float(figure) for figure in re.search(pattern, kept).groups()]
    (packages,), (demo,), (every,) = (of(what) for what in (r"installed: \d+, ([\d.]+) MB", r"demo: .* ([\d.]+) MB", r"all: .*? has ([\d.]+) MB"))
    return (sentence("../README.md", "({} GB on a bare Debian)", packages / 1000)
            + sentence("../README.md", "which takes {} MB for the demo and {} for all", round(demo, -1), round(every, -1))
            + sentence("../README.md", "The suite is {} small ones, {} MB in MXFP4", *of(r"(\d+) problems, ([\d.]+) MB")))


def power():
    head, *table = rows(page("results/power.md"), "record | contract")
    changing = [int(cells[head.index("changing")]) for cells in table]
    def of(name, column):
        return next(figure(cells[head.index(column)]) for cells in table if cells[0] == f"power-{name}")
    a_row = "scale of a row"
    return (sentence("../README.md", "{} to {} of which change a bit", min(changing), max(changing))
            + sentence("gates.md", "[power.md](results/power.md) {} instead of {} for the scale of the layer",
                     of("qwen3-next-nvfp4", "scale given h"), of("qwen3-next-nvfp4", "scale"))
            + sentence("gates.md", "[power.md](results/power.md) from {} (NVFP4) or {} (MXFP8, FP8) on, for `qwen3-next` with "
                       "weights and activations in NVFP4 from {} on", of("small-nvfp4-nvfp4", a_row), of("small-mxfp8-mxfp8", a_row),
                       of("qwen3-next-nvfp4-nvfp4", a_row))
            + sentence("gates.md", "[power.md](results/power.md) from {} (NVFP4) or {} (MXFP8, FP8)",
                       of("small-nvfp4-nvfp4", a_row), of("small-fp8-fp8", a_row)))


def others():
    head, *table = rows(page("results/verify.md"), "record | fixture | batch")
    def of(name, column, batch=None):
        return [figure(cells[head.index(column)]) for cells in table if cells[0] == name and batch in (None, int(cells[2]))]
    torch, triton, ours = "torch-grouped-mm-undeclared", "sglang-triton-undeclared", "sglang-triton-qwen3-30b-a3b"
    marlin = ["sglang-marlin-layer-qwen3-30b-a3b", "sglang-marlin-slots-qwen3-30b-a3b"]
    def most(column):
        return max(x for name in marlin for x in of(name, column))
    worst = [of(name, "max err/bound") for name in (torch, triton)]
    return (sentence("third-party.md", "by up to {} times the limit: at batch 32, {} and {} elements lie outside",
                     max(map(max, worst)), *of(torch, "exceeding", 32), *of(triton, "exceeding", 32))
            + sentence("third-party.md", "the largest error is {} of its limit, the aggregate tests reach {} of theirs, and a "
                       "wrong scale of the whole layer would be seen from {} on at batch 32", max(of(ours, "max err/bound")),
                       max(of(ours, "RMS") + of(ours, "scale")), *of(ours, "detection limit", 32))
            + sentence("third-party.md", "the largest error of the layer is {} of its limit, RMS errors reach {} of theirs, scale "
                       "errors {}, and a wrong scale of the whole layer would be seen from {} on at batch 32",
                       most("max err/bound"), most("RMS"), most("scale"), *of(marlin[0], "detection limit", 32)))


def study():
    with open(newest("study-48-layers.md"), encoding="utf-8") as stream:
        kept = stream.read()
    text = page("study.md")
    begin = text.index("## Forty-eight layers")
    lines = [line for line in text[begin:text.index("\n## ", begin)].split("\n") if line.startswith("| ")]
    wrong = [f"docs/study.md: the record has no row {line}" for line in lines if line not in kept]
    ends = {}
    for truth in ("quantised", "original"):
        head, *table = rows(kept, "path | relative L2", f"the {truth} weights: residual stream")
        ends[truth] = {cells[0]: [figure(cells[1].split()[0]), figure(cells[6].split()[0])] for cells in table}
    layers = {(cells[0], int(cells[1])): [figure(cell) for cell in cells[2:]]
              for cells in rows(kept, "path | layer", "the quantised weights: by layer")[1:]}
    bf16, mxfp4 = "bf16.fma32", "mxfp4.fma32"
    near = [100 * ends["original"][path][0] for path in (bf16, "mxfp8.fma32", "fp8.fma32", "int8.fma32")]
    powers = [power for _, power in ends["original"].values()]
    wrong += sentence("study.md", "bf16, MXFP8, FP8 and INT8 activations all end {} to {} % off", min(near), max(near))
    wrong += sentence("study.md", "NVFP4 activations end at {} %, MXFP4 at {} %. Errors grow with a power of {} to {} of the depth",
                      *(100 * ends["original"][path][0] for path in ("nvfp4.fma32", mxfp4)), min(powers), max(powers))
    wrong += sentence("study.md", "bf16 activations start {} times closer than MXFP4 ones and end {} times closer.",
                      layers[mxfp4, 0][0] / layers[bf16, 0][0], ends["quantised"][mxfp4][0] / ends["quantised"][bf16][0])
    return wrong + sentence("study.md", "by itself layer 47 is as accurate as layer 0 ({} and {} of its output), but started from "
                            "truth's stream it injects {} of the stream instead of {}.", layers[bf16, 47][3], layers[bf16, 0][3],
                            layers[bf16, 47][1], layers[bf16, 0][1])


def closeness():
    text, tables = page("closeness.md"), {}
    for name, title in (("trained", "## A trained model"), ("made", "## Published shapes"), ("16", "## Outlier channels of 16"),
                        ("100", "## Outlier channels of 100")):
        tables[name] = {tuple(cells[:4]): [figure(x) for x in re.findall(FIGURE, " ".join(cells[4:]))]
                        for cells in rows(text, "model | weights", title)[1:]}
    def of(table, weights, *activations, truth="original"):
        """[ratio, low, high, least and most of a layer] of each row."""
        return [values for (_, w, path, t), values in tables[table].items()
                if w in weights and t == truth and (not activations or path.split(".")[0] in activations)]
    def span(rows_of):
        return min(r[0] for r in rows_of), max(r[0] for r in rows_of)
    eight, four = ("mxfp8", "fp8", "int8"), ("nvfp4", "mxfp4")
    (m8,), (n4,) = of("trained", ["mxfp8"], "mxfp8"), of("trained", ["nvfp4"], "nvfp4")
    wrong = sentence("closeness.md", "MXFP8 on MXFP8: {} to {} on generated weights, {} ({} to {}) on the trained model. NVFP4 on "
                     "NVFP4: {} to {} on generated weights; on the trained model {} ({} to {}), which is less than sqrt(2), and "
                     "{} in one", *span(of("made", ["mxfp8"], "mxfp8")), *m8[:3], *span(of("made", ["nvfp4"], "nvfp4")), *n4[:3],
                     n4[3])
    qwen = {key[1:3]: values for key, values in tables["made"].items() if key[0] == "qwen3-30b-a3b" and key[3] == "original"}
    a8, a4 = ((qwen["mxfp8", f"{a}.fma32"][0]**2 - 1)**0.5 for a in ("mxfp8", "nvfp4"))
    wrong += sentence("closeness.md", "a(MXFP8) = {} w and a(NVFP4) = {} w;", a8, a4)
    wrong += sentence("closeness.md", "that predicts {} for MXFP8 activations on NVFP4 weights, and {} ({} to {}) was measured",
                      (1 + (a8 / a4)**2)**0.5, *qwen["nvfp4", "mxfp8.fma32"][:3])
    cost = [100 * (r[0] - 1) for t in ("made", "trained") for r in of(t, ["nvfp4"], *eight)]
    most = 100 * (of("trained", ["nvfp4"], "int8")[0][0] - 1)
    wrong += sentence("closeness.md", "8-bit activations on 4-bit weights cost {} to {} % (INT8 on the trained model {} %), and 4-bit "
                      "activations on 8-bit weights make the error {} to {} times as large.", min(cost),
                      max(x for x in cost if x != most), most, *span(of("made", ["mxfp8"], *four) + of("trained", ["mxfp8"], *four)))
    both = ["nvfp4", "mxfp8"]
    wrong += sentence("closeness.md", "and is {} to {}, with outlier channels {} to {}.",
                      *span(of("made", both, truth="quantised") + of("trained", both, truth="quantised")),
                      *span(of("16", both, truth="quantised") + of("100", both, truth="quantised")))
    kinds = {key[1:] for key in tables["made"] if key[3] == "quantised"}
    shapes = {kind: [values[0] for key, values in tables["made"].items() if key[1:] == kind] for kind in kinds}
    trained = {key[1:]: values[0] for key, values in tables["trained"].items()}
    wrong += sentence("closeness.md", "Among the four published shapes the ratio differs by a factor of up to {}, and the small "
                      "trained model's is up to {} times the lowest of theirs", max(max(of) / min(of) for of in shapes.values()),
                      max(trained[kind] / min(of) for kind, of in shapes.items()))
    outliers = {(t, f): of(t, [f], f)[0][:3] for t in ("16", "100") for f in both}
    return wrong + sentence("closeness.md", "NVFP4 on NVFP4 falls from {} to {} ({} to {}) and {} ({} to {}), while MXFP8 on MXFP8 "
                            "rises from {} to {} ({} to {}) and {} ({} to {}).", qwen["nvfp4", "nvfp4.fma32"][0],
                            *outliers["16", "nvfp4"], *outliers["100", "nvfp4"], qwen["mxfp8", "mxfp8.fma32"][0],
                            *outliers["16", "mxfp8"], *outliers["100", "mxfp8"])


def traces():
    """Of the trained model: up's and gate's rows against rows whose signs are thrown by coin; and how alike the sizes of
    up's even rows and of their columns of down are ranked."""
    tensors = {name: array for file in glob.glob(os.path.join(CHECKPOINT, "model-*.safetensors"))
               for name, (_, array) in read(file).items()}
    def experts(projection, layer):
        return [(tensors[f"model.layers.{layer}.mlp.experts.{e}.{projection}.weight"].astype("<u4") << 16).view("<f4").astype("f8")
                for e in range(EXPERTS)]
    def t(projection, layer):
        k = sum(w[:256] @ w[:256].T for w in experts(projection, layer))
        k = k[numpy.tril_indices(len(k), -1)]
        return k.sum() / numpy.sqrt((k * k).sum())
    def tau(layer):
        sizes = [((up * up).sum(1)[::2], (down * down).sum(0)[::2])
                 for up, down in zip(experts("up_proj", layer), experts("down_proj", layer))]
        i, j = numpy.tril_indices(len(sizes[0][0]), -1)
        return numpy.mean([numpy.sign(a[i] - a[j]) * numpy.sign(b[i] - b[j]) for a, b in sizes])
    return (sentence("importing.md", "In the model of `fixtures/data`, t is {} and -{} for up, and {} and {} for gate.",
                     t("up_proj", 0), -t("up_proj", 1), t("gate_proj", 0), t("gate_proj", 1))
            + sentence("importing.md", "S over the number of pairs, is {} to {} there if nibbles are exchanged",
                       *sorted(map(tau, range(LAYERS)))))


def alike():
    """How many of the first tokens of the trained model have the same input, in every layer."""
    inputs = [array for name, (_, array) in read(os.path.join(CHECKPOINT, "capture.safetensors")).items()
              if name.endswith(".mlp_input_bf16")]
    same = min(int((x != x[0]).any(1).argmax()) for x in inputs)
    tokens, = {len(x) for x in inputs}
    return sentence("study.md", "of the trained model's {} tokens the first {} have the same input", tokens, same)


def wrong_percentages(texts):
    """Each 'N of M (P %)' that is another percentage. texts: {name: text}."""
    return [f"{name}: '{m[0]}' is {100 * figure(m[1]) / figure(m[2]):.1f} %" for name, text in texts.items()
            for m in re.finditer(r"\b(\d[\d,]*) of (\d[\d,]*) \((\d+\.\d) %", text)
            if not is_rounded(m[3], 100 * figure(m[1]) / figure(m[2]))]


def wrong_figures():
    return [line for of in (mma16, peers, growth, ranks, records, loosened, exact_runs, inner_loops, sizes, power, others, study,
                             closeness, alike, traces) for line in of()]
