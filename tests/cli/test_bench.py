# SPDX-License-Identifier: Apache-2.0
"""bench: times beside a read of as many bytes. What a kernel wrote while it was timed is judged; what the record says
follows from its samples and from the fixture, computed here in numpy."""
import json
import os
import shutil
import time
import xml.etree.ElementTree

import h5py
import numpy

from program import ALL, FAULTS, PROGRAM, SANITISED, expect, path, refused, run, small

try:
    with open("/sys/devices/system/cpu/cpu0/cache/index3/size") as stream:
        LAST_CACHE = int(stream.read().split("K")[0]) << 10
except FileNotFoundError:
    LAST_CACHE = 64 << 20
CACHE = 65537  # that the last cache is taken to hold where nothing else is said: a share of the weights here, an odd number
MOST_COPIES = 64
US_OF_SLOW = 5000  # that faults/slow sleeps
SAMPLES = 2 if SANITISED else 3


def bench(*arguments, code=0, cache=CACHE, samples=SAMPLES):
    """cache: None: as the system says."""
    began = time.monotonic()
    done = run("bench", *arguments, "--samples", samples, *(["--cache", cache] if cache else []), "-o", path("bench.json"), code=code)
    with open(path("bench.json")) as stream:
        record = json.load(stream)
    expect(0 < record["summary"]["seconds"] <= time.monotonic() - began, f"it took {record['summary']['seconds']} s")
    return record, done


def named(record, name):
    return [case for case in record["cases"] if case["subject"]["name"] == name and "timing" in case]


def near(a, b, what):
    expect(numpy.isclose(a, b, rtol=1e-9), f"{what}: {a}, and not {b}")


def rotated(t, cache):
    """As many copies as are four times the cache and more, and a large read of no less."""
    expect(t["cache_bytes"] == cache, f"the last cache holds {cache} bytes: {t}")
    expect(t["copies"] == t["runs"] == min(MOST_COPIES, 4 * cache // t["bytes"] + 1), f"copies of {t['bytes']} bytes: {t}")
    expect(t["large_bytes"] == max(t["copies"] * t["bytes"], 4 * cache) // 16 * 16, f"the large read: {t}")
    expect(t["beyond_cache"] == (t["copies"] * t["bytes"] > cache), f"beyond_cache: {t}")


def follows(case, fixture):
    """Every figure of a case's timing follows from its samples, its batch and the fixture."""
    t, batch = case["timing"], case["batch"]
    for name in "us", "read_us", "large_read_gb_per_s":
        samples = numpy.array(t[name]["samples"])
        expect(len(samples) == SAMPLES and (samples > 0).all(), f"{name}: {samples}")
        quartiles = numpy.percentile(samples, [25, 50, 75])
        for value, key in zip(quartiles, ("quartile_1", "median", "quartile_3")):
            near(t[name][key], value, f"{name} {key}")
    experts = len(numpy.unique(fixture["layers/0/routing/ids"][:batch]))
    hidden, intermediate = case["fixture"]["hidden"], case["fixture"]["intermediate"]
    parts = {"layer": (2, 1), "gate_up": (2, 0), "down": (0, 1)}[case["subject"]["operator"]]
    weights = experts * hidden * intermediate * sum(parts)
    # Half a byte of code a weight, a byte of scale for 16 weights, FP32 scales of gate, up and down.
    near(t["weights"], weights, "weights")
    near(t["bytes"], weights // 2 + weights // 16 + 4 * experts * sum(parts), "bytes")
    near(t["gb_per_s"], t["bytes"] / t["us"]["median"] / 1e3, "GB/s")
    near(t["gweights_per_s"], weights / t["us"]["median"] / 1e3, "Gweights/s")
    near(t["ceiling_share"], t["read_us"]["median"] / t["us"]["median"], "share of the ceiling")
    rotated(t, CACHE)
    expect(0 <= t["prepare_us"] < 6e7, f"prepared in {t['prepare_us']} us")


def test_record():
    file = small("bench.h5", "--format", "nvfp4")
    record, done = bench(file, "--batches", "1,4,9", "--kernel", "cpu/nvfp4-[dgl]*", "--plot", path("bench.svg"))
    with h5py.File(file) as fixture:
        for case in record["cases"]:
            follows(case, fixture)
    names = sorted({case["subject"]["name"] for case in record["cases"]})
    expect(names == ["cpu/nvfp4-down", "cpu/nvfp4-gate-up", "cpu/nvfp4-layer"], str(names))
    expect(record["bench"]["timed"] == len(record["cases"]) == 9, str(record["bench"]))
    table = done.stdout.splitlines()
    for case in record["cases"]:
        row = f"{case['timing']['us']['median']:.1f}"
        expect(any(case["subject"]["name"] in line and row in line.split() for line in table), f"no {row}:\n{table}")
    # Growth: the line through the times over the bytes, deviations counted as shares of the time.
    for line in record["growth"]:
        cases = named(record, line["subject"])
        x, y = (numpy.array([get(c["timing"]) for c in cases]) for get in (lambda t: t["bytes"], lambda t: t["us"]["median"]))
        slope, fixed = numpy.polyfit(x, y, 1, w=1 / y)
        expect(numpy.isclose(line["fixed_us"], fixed, rtol=1e-6), f"fixed cost {line}, and not {fixed}")
        expect(numpy.isclose(line["gb_per_s"], 1e-3 / slope, rtol=1e-6), f"rate {line}, and not {1e-3 / slope}")
        near(line["largest_deviation"], numpy.abs((fixed + slope * x) / y - 1).max(), "largest deviation")
    expect(len(record["growth"]) == 3, str(record["growth"]))
    # The plot and the page: a line of each kernel and of the read, a mark of each time.
    svg = xml.etree.ElementTree.parse(path("bench.svg")).getroot()
    texts = " ".join(svg.itertext())
    expect("cpu/nvfp4-layer" in texts and "read of as many bytes" in texts, texts)
    expect(sum(e.tag.endswith("circle") for e in svg.iter()) == 6, "the plot has other times")
    run("report", path("bench.json"), "-o", path("bench.html"))
    with open(path("bench.html")) as page:
        text = page.read()
    expect(text.count("<figure>") == 3 and "Time of down" in text, "the page lacks a chart")


def test_cache():
    """The last cache is as large as the system says, which may be a gigabyte to read, or --cache; the record and the table
    say which."""
    layer, rows = small("cache.h5"), path("rows.h5")
    run("make", rows, "--operator", "dispatch", "--shape", "16,4,256", "--tokens", 7)
    for file, words, caches in (layer, ["--kernel", "cpu/nvfp4-down", "--batches", "1"], (*[None][:ALL], 1 << 18, 1024)), (rows, [], (1 << 18, 1024)):
        for cache in caches:
            record, done = bench(file, *words, cache=cache, samples=SAMPLES if cache else 1) # a cache of the system is large
            case, = record["cases"]
            rotated(case["timing"], cache or LAST_CACHE)
            expect(record["bench"].get("cache_bytes") == cache, str(record["bench"]))
            head = done.stdout.splitlines()[0]
            expect((f"the last cache; --cache {cache}; share" in head) == bool(cache) and ("--cache" in head) == bool(cache), head)
            expect(("in the cache" in done.stdout) != case["timing"]["beyond_cache"], f"{cache}: {done.stdout}")
            expect(not cache or case["timing"]["beyond_cache"], f"copies that a cache of {cache} bytes keeps")


def test_all_that_fit():
    """Without a name all kernels are timed that the problem fits, and no other is told; of a part without a router none
    that routes."""
    file, part = small("whole.h5"), path("part.h5")
    run("verify", file, "--subject", FAULTS, "--kernel", "faults/scaled-unordered", "--minimise", part, "--no-diagnosis", code=1)
    of_experts = [f"cpu/nvfp4-{name}" for name in ("down", "gate-up", "layer", "mma16-down", "mma16-gate-up", "mma16-layer")]
    routing = ["cpu/nvfp4-mma16-routed-layer", "cpu/nvfp4-routed-layer", "cpu/route"]
    for one, names in (part, of_experts), (file, of_experts + routing):
        run("bench", one, "--samples", 1, "--hot", "--cache", CACHE, "-o", path("bench.json"))
        with open(path("bench.json")) as stream:
            record = json.load(stream)
        found = sorted({case["subject"]["name"] for case in record["cases"] if not case["subject"]["name"].startswith("cuda/")})
        expect(found == sorted(names), f"{one}: {found}")
        expect(record["bench"] == {"hot": True, "samples": 1, "threads": 1, "timed": record["bench"]["timed"], "cache_bytes": CACHE}, str(record["bench"]))
    done = run("bench", part, "--kernel", "cpu/route", "--kernel", "cpu/nvfp4-down", "--samples", 1, "--hot", "--cache", CACHE, code=3)
    expect("cpu/route" in done.stdout and "router" in done.stdout, done.stdout)


def test_wrong():
    """A wrong output has no time, and neither has one that is right until it is timed."""
    file = small("wrong.h5")
    record, done = bench(file, "--batches", "2", "--hot", "--subject", FAULTS, "--kernel", "faults/one-element", "--kernel",
                         "faults/none", code=1)
    expect(not named(record, "faults/one-element") and named(record, "faults/none"), "a wrong kernel has a time")
    expect("FAIL" in done.stdout and "faults/one-element" in done.stdout, done.stdout)
    record, _ = bench(file, "--batches", "2", "--hot", "--subject", FAULTS, "--kernel", "faults/wrong-later", code=6)
    expect(not named(record, "faults/wrong-later"), "a kernel that is wrong while it is timed has a time")
    # Of one that says that its results differ, those that are timed are judged as well; and so is where it routes.
    file = path("one.h5")
    run("make", file, "--shape", "8,3,96,48", "--tokens", "2")
    record, _ = bench(file, "--hot", "--subject", FAULTS, "--kernel", "faults/wrong-later-declared", code=1)
    case, = record["cases"]
    expect(case["verdict"] == "FAIL" and case["reason"].startswith(
        "run again, with tokens and experts in other places: output of layer 0: "), case["reason"])
    record, _ = bench(file, "--hot", "--subject", FAULTS, "--kernel", "faults/routed-restless-later", code=6)
    expect([case["verdict"] for case in record["cases"]] == ["NONDETERMINISTIC"] * 2, f"{record['cases']}")
    record, _ = bench(file, "--hot", "--subject", FAULTS, "--kernel", "faults/crash", code=5)
    expect(not named(record, "faults/crash"), "a crash has a time")
    expect("not written" in run("bench", file, "--subject", FAULTS, "--kernel", "faults/one-element", "--samples", "1", "--hot",
                                "--cache", CACHE, "--plot", path("none.svg"), code=1).stderr, "a plot of no times")


def test_slow():
    """What takes longer shows, in memory and in the cache."""
    file = small("slow.h5")
    for hot in [], ["--hot"]:
        record, _ = bench(file, "--batches", "2", "--subject", FAULTS, "--kernel", "faults/slow", "--kernel",
                          "faults/none", *hot)
        slow, none = named(record, "faults/slow")[0]["timing"], named(record, "faults/none")[0]["timing"]
        expect(slow["us"]["quartile_1"] >= US_OF_SLOW and min(slow["us"]["samples"]) < 2 * US_OF_SLOW, f"a kernel that sleeps {US_OF_SLOW} us: {slow['us']}")
        expect(slow["us"]["median"] > none["us"]["median"], "a slow kernel is not slower")
        expect((slow["copies"] == 1) == bool(hot), f"{slow['copies']} copies, hot {hot}")


def test_ranks():
    """dispatch and combine: bytes are those of all rows, and the time beside them that of a copy."""
    common = "--shape", "16,4,256", "--ranks", 3, "--tokens", 7, "--routing", "holes"
    for operator, kind, width, kernels in (("dispatch", ("--recipe", "fp8g128.deepseek/1"), 256 + 2 * 4, []),
                                           ("dispatch", (), 256 * 2, ["dispatch-right", "dispatch-stale", "dispatch-lost"]),
                                           ("combine", (), 256 * 2, ["combine-right", "combine-stale", "combine-both"])):
        file = path("ranks.h5")
        if os.path.exists(file):
            os.remove(file)
        run("make", file, "--operator", operator, *common, *kind)
        with h5py.File(file) as fixture:
            rows = int(fixture.attrs["rows"])
        record, done = bench(file, "--plot", path("ranks.svg")) # without a name every kernel that runs it
        (case,), (t,) = record["cases"], [one["timing"] for one in record["cases"]]
        expect(case["subject"]["name"] == f"cpu/{operator}" and case["verdict"] == "PASS" and "read_us" not in t and t["weights"] == 0, str(t))
        near(t["bytes"], rows * width, f"{operator}: bytes of {rows} rows")
        near(t["ceiling_share"], t["copy_us"]["median"] / t["us"]["median"], "share of the copy")
        near(t["gb_per_s"], t["bytes"] / t["us"]["median"] / 1e3, "GB/s")
        for name in "us", "copy_us", "large_copy_gb_per_s":
            expect(len(t[name]["samples"]) == SAMPLES and min(t[name]["samples"]) > 0, f"{name}: {t[name]}")
        texts = " ".join(xml.etree.ElementTree.parse(path("ranks.svg")).getroot().itertext())
        expect("copy of as many bytes" in texts and "copy, us" in done.stdout, texts)
        if kernels:
            named_kernels = [word for name in kernels for word in ("--kernel", name)]
            record, done = bench(file, "--hot", "--subject", os.environ["RANKS"], *named_kernels, code=6)
            timed = {case["subject"]["name"] for case in record["cases"] if "timing" in case}
            expect(timed == {kernels[0]}, f"{operator}: a wrong kernel has a time: {timed}")
        record, done = bench(file, "--subject", os.environ["ONE_RANK"], "--kernel", f"{operator}-right", code=3)
        expect("one process a rank are not timed" in done.stdout, done.stdout)


def test_made():
    """A problem of bench's own: what make makes, and gone when all passed."""
    folder = path("made")
    os.mkdir(folder)
    environment = {**os.environ, "TMPDIR": folder}
    words = ["--shape", "8,3,96,64", "--format", "nvfp4", "--format", "mxfp8", "--batches", "2", "--seed", "7",
             "--samples", "1", "--hot", "--cache", CACHE]
    run("bench", *words, "--kernel", "cpu/*-layer", "-o", path("made.json"), env=environment)
    with open(path("made.json")) as stream:
        cases = json.load(stream)["cases"]
    run("make", path("same.h5"), "--shape", "8,3,96,64", "--tokens", "2", "--seed", "7", "--generated")
    hashes = {case["fixture"]["weights"]: case["fixture"]["sha256"] for case in cases}
    expect(hashes["nvfp4"] in run("info", path("same.h5")).stdout, f"another problem than make's: {hashes}")
    expect(set(hashes) == {"nvfp4", "mxfp8"} and not os.listdir(folder), f"{hashes}, {os.listdir(folder)}")
    done = run("bench", *words[:3], "nvfp4", "--samples", "1", "--hot", "--cache", CACHE, "--batches", "2", "--subject", FAULTS,
               "--kernel", "faults/one-element", code=1, env=environment)
    (kept,) = os.listdir(folder)
    expect(kept in done.stderr and os.listdir(os.path.join(folder, kept)), f"the problem is not kept: {done.stderr}")
    # Without a seed it is make's without one.
    (problem,) = os.listdir(os.path.join(folder, kept))
    run("make", path("first.h5"), "--shape", "8,3,96,64", "--tokens", "2", "--generated")
    with h5py.File(path("first.h5")) as f:
        expect(f.attrs["input_sha256"].decode() in run("info", os.path.join(folder, kept, problem)).stdout, "another seed than make's")


def test_places():
    """Where a kernel took away the folder of a record or a plot, there is one again when these are written."""
    file = small("places.h5")
    library = path("hostile-run-record-gone.so")
    shutil.copy(os.environ["HOSTILE"], library)
    words = ["bench", file, "--batches", "1", "--samples", "1", "--hot", "--cache", CACHE, "--subject", library]
    written = [path("record/r.json"), path("plot/p.svg")]
    for name in written:
        os.mkdir(os.path.dirname(name))
    for name in written:
        run(*words, "-o", written[0], "--plot", written[1], env={**os.environ, "HOSTILE_RECORD": name})
        with open(written[0]) as stream:
            names = [case["subject"]["name"] for case in json.load(stream)["cases"]]
        expect(names == ["hostile/run-record-gone"], f"of a library alone its kernels: {names}")
        for other in written:
            expect(os.path.getsize(other) > 0, f"{name} was taken away: no {other}")
            os.remove(other)


def test_environment():
    """What preparing does to the floating-point environment holds for no call that is timed: this one aborts where it
    does."""
    library = path("hostile-prepare-rounding.so")
    shutil.copy(os.environ["HOSTILE"], library)
    record, _ = bench(small("rounding.h5"), "--batches", "1,2", "--hot", "--subject", library)
    expect([("timing" in case, "changed the rounding mode" in case["note"]) for case in record["cases"]] == 2 * [(True, True)], str(record["cases"]))


def test_preparing():
    """It is timed by itself: this one takes 0.1 s."""
    library = path("hostile-prepare-sleeps.so")
    shutil.copy(os.environ["HOSTILE"], library)
    record, _ = bench(small("sleeps.h5"), "--batches", "1,2", "--hot", "--subject", library)
    for case in record["cases"]:
        expect(100e3 <= case["timing"]["prepare_us"] and case["timing"]["us"]["median"] < 100e3, str(case))


def test_usage():
    file = small("usage.h5")
    os.symlink(FAULTS, path("subject.json"))
    for words, said in (
        ([], "--shape"),
        ([file, "--shape", "8,3,96,48"], "--shape"),
        ([file, "--format", "nvfp4"], "--format"),
        ([file, "--routing", "uniform"], "--routing"),
        ([file, "--seed", "7"], "--seed"),
        ([file, "--kernel", "none/*", *(17 * ["--subject", FAULTS])], "at most 16 times --subject"),
        (["--shape", "8,3,96,48", "--batches", "65537"], "from 1 to 65536"),
        ([file, "--batches", "10"], "from 1 to 9"),
        ([file, "--batches", "4,2"], "ascending"),
        ([file, "--samples", "0"], "--samples"),
        ([file, "--samples", "32"], "--samples"),
        *(([file, "--cache", bytes_], "--cache") for bytes_ in ("0", "1023", "x", "1M", "-4096", f"{(1 << 40) + 1}")),
        *(([file, *(33 * [option, "x"])], f"at most 32 times {option}") for option in ("--kernel", "--shape", "--model", "--format")),
        ([file, *(33 * ["-o", "x.json"])], "at most 32 times -o"),
        (["--model", "nothing"], "--model"),
        (["--shape", "8,9,96,48"], "top-k"),
        (2 * ["--shape", "8,3,96,50"], "multiples"),
        (2 * ["--model", "tiny-qwen3-moe"] + ["--routing", "none"], "--routing none"),
        (["--shape", "8,3,96,48", "--batches", "x"], "--batches"),
        ([file, "-o", "record.txt"], "extension"),
        ([file, "-o", file + ".json", "--plot", file], "usage.h5"),
        ([file, "--subject", FAULTS, "-o", path("subject.json")], "subject.json: is an input of this command"),
        ([path("missing.h5")], "missing.h5"),
    ):
        line = refused("bench", *words)
        expect(said in line, f"{words}: {line}")
    run("make", path("quantiser.h5"), "--operator", "quantise", "--recipe", "nvfp4.trtllm/1")
    expect("problem of quantise;" in refused("bench", path("quantiser.h5")), "a problem of a quantiser")
    run("make", path("sent.h5"), "--operator", "dispatch", "--shape", "8,2,128", "--tokens", 4)
    expect("the tokens of all ranks" in refused("bench", path("sent.h5"), "--batches", 4), "a batch of a problem over ranks")
    record, _ = bench(file, *(32 * ["--kernel", "none/*"]), code=3)
    expect(record["cases"] and {case["verdict"] for case in record["cases"]} == {"NOT_RUN"}, "a kernel that does not exist")


for test in test_record, test_cache, test_all_that_fit, test_wrong, test_slow, test_ranks, test_made, test_places, test_environment, test_preparing, test_usage:
    test()
