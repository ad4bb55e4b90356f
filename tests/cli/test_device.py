# SPDX-License-Identifier: Apache-2.0
"""Kernels with device pointers, on a device whose memory is the host's (tests/faults/device.c): what they write beside
their arrays, what of them is replayed as a graph, their times and the paths that they compute, without a GPU. A copy of
the program has it beside itself in the place of the CUDA library."""
import hashlib
import json
import os
import re
import shutil

import h5py

import program
from kept import same, steady
from program import SANITISED, call_failing, expect, path, record, run, small

WHERE = "memory of the host"
fixture = small()
os.mkdir(path("bin"))
shutil.copy(os.environ["DEVICE_FAULT"], path("bin/libgaugeblock-cuda.so"))
shutil.copy(program.PROGRAM, path("bin/gaugeblock"))
program.PROGRAM = path("bin/gaugeblock")

said = {
    "none": ("PASS", ""), "stages": ("PASS", ""), "thrice": ("PASS", ""),
    "before": ("FAIL", "wrote outside a buffer: beside output of layer 0"),
    "behind": ("FAIL", "wrote outside a buffer: beside output of layer 0"),
    "fresh": ("FAIL", "output of layer 0: 1 of 864 elements differ from the reference; first at token 0, element 0: 0x7e7e7e7e"),
    "remembers": ("NONDETERMINISTIC", "768 elements differ between two runs on the same inputs; first: element 0 of "
                                      "output of layer 0, replayed as a CUDA graph"),
    "refuses": ("CRASH", "GB_EDEVICE: not while it is captured"), "elsewhere": ("CRASH", "GB_EDEVICE: nothing was captured"),
    "launched": ("PASS", ""), # as refuses, but it does not say that it can be captured
    "remembers-routing": ("NONDETERMINISTIC", "48 elements differ between two runs on the same inputs; first: element 0 of "
                                              "routed ids of layer 0, replayed as a CUDA graph")}
cases = record(fixture, "--kernel", "cuda/*", code=5)["cases"]
expect([case["subject"]["name"] for case in cases] == [f"cuda/{name}" for name in said], str(cases))
for case, (verdict, reason) in zip(cases, said.values(), strict=True):
    expect(case["verdict"] == verdict and case["reason"].startswith(reason), f"{case['subject']['name']}: {case['reason']}")
    expect(case["subject"]["device"] == WHERE, case["subject"]["device"])
case, = record(fixture, "--kernel", "cuda/none", "--batch", "1,4,9")["cases"][-1:]
expect(case["batch"] == 9, str(case))
expect(WHERE in run("list", "devices").stdout, "list devices")

# Timed in a graph beside a graph of reads, on the device's clock and its cache.
run("bench", fixture, "--kernel", "cuda/none", "--samples", "2", "-o", path("bench.json"))
with open(path("bench.json")) as stream:
    case, = json.load(stream)["cases"]
t = case["timing"]
expect(case["verdict"] == "PASS" and t["graph_launches"] == 1 and t["cache_bytes"] == 1 << 16 and t["beyond_cache"], str(t))
expect(len(t["us"]["samples"]) == 2 and min(t["us"]["samples"] + t["read_us"]["samples"]) > 0, str(t))

# What moves rows between devices is not timed here, and says where it is.
run("make", path("sent.h5"), "--operator", "dispatch", "--shape", "24,3,32", "--ranks", "2", "--tokens", "3")
done = run("bench", path("sent.h5"), "--kernel", "cuda/links", "--samples", "2", code=3)
expect("cuda/links needs two GPUs to be timed, beside NCCL: tests/gpu/bench_ranks does it (docs/gpu.md)" in done.stdout, done.stdout)
for words in ["--kernel", "cpu/dispatch"], []: # without a name all that can be timed, and no other is told
    expect("cuda/links" not in run("bench", path("sent.h5"), *words, "--samples", "2", "--cache", "65536").stdout, "what is not asked for")

os.environ["GB_DEVICE_SECONDS"] = "0.001"  # of every sample, however often its graph is replayed
run("bench", fixture, "--kernel", "cuda/none", "--samples", "2", "-o", path("bench.json"))
del os.environ["GB_DEVICE_SECONDS"]
with open(path("bench.json")) as stream:
    t = json.load(stream)["cases"][0]["timing"]
for us in t["us"]["samples"] + t["read_us"]["samples"]:
    expect(abs(us - 1e3 / round(1e3 / us)) <= 1e-3, f"of a sample of 1,000 us, in whole ns: {us} us a run")
timed = {**os.environ, "GB_DEVICE_SECONDS": "0"}
done = run("bench", fixture, "--kernel", "cuda/none", "--samples", "1", code=5, env=timed)
expect("CRASH  the worker left no times for 9 tokens" in done.stdout, done.stdout)



def failing(command, request):
    """What the device is asked for, by the worker of such a command, behind a request that fails."""
    words = [path("one.h5" if command == "bench" else "least.h5"), path("bin/libgaugeblock-cuda.so"), "cuda/none", "2", *(["timed", "1", "cold", "0"] if command == "bench" else [])]
    report, _, failed, rest = call_failing(words, GB_DEVICE_FAILS=request)
    if not report["message"]:
        return "unseen" if failed else "never asked"
    expect(report["message"] == f"{request} fails", f"{request}: {report}")
    lines = rest.splitlines()
    begun = [line for line in lines if line.startswith(("allocates", "launches", "captures", "replays", "begins", "starts", "stops"))]
    expect(not begun, f"{command} {request}: and yet it {begun}")
    follow = [f"{word} {sum(line.startswith(word) for line in lines)}" for word in ("uploads", "downloads", "releases", "discards")]
    return f"{', '.join(follow)}, {hashlib.sha256(rest.encode()).hexdigest()[:8]}"


# What the harness asks of the device, line by line: buffers and what is put there, runs, graphs and the clock. Of lines that
# are alike the first is kept, and of all a hash.
if not SANITISED:
    asked = ""
    os.environ["GB_CALLS"] = path("calls")
    run("make", path("one.h5"), "--shape", "8,3,128,96", "--tokens", "3")
    run("make", path("least.h5"), "--shape", "2,1,32,32", "--tokens", "2")
    for words in (["verify", "--batch", "2,3", "--no-diagnosis"], ["bench", "--samples", "2"], ["bench", "--samples", "2", "--hot"]):
        run(words[0], path("one.h5"), "--kernel", "cuda/none", *words[1:])
        with open(path("calls")) as stream:
            calls = stream.read()
        lines = calls.splitlines()
        expect(lines.count("begins a graph") == lines.count("discards a graph") > 0, calls)
        asked += "\n".join([f"$ {' '.join(words)}", *dict.fromkeys(lines), f"{len(lines)} lines, " +
                            hashlib.sha256(calls.encode()).hexdigest()[:8], ""])
        os.remove(path("calls"))
    # Where a request fails, that is what is said, nothing else is begun, and what follows is as ever: memory is released.
    for command, kinds in (("verify", {"poison": [1], "allocate": [1, 2, 7, 8, 10, 11, 14, 16], "launch": [1, 14, 18, 20, 21, 22], "synchronise": [11, 21], "clock": [1, 2, 4],
                                       "upload": [1, 3, 63, 123, 183, 363], "download": [1, 63, 311, 497]}),
                           ("bench", {"allocate": [12, 14, 15, 17, 25], "launch": [8, 10, 13, 14, 15, 16], "synchronise": [7, 10, 11, 12], "clock": range(1, 13),
                                      "upload": [230, 320], "download": [430, 480, 580, 680]})):
        for kind, numbers in kinds.items():
            for number in numbers:
                asked += f"{command}, {kind} {number} fails: {failing(command, f'{kind} {number}')}\n"
    # Of a kernel of three launches: bytes are read in as many for each run, and are the same.
    run("bench", path("one.h5"), "--kernel", "cuda/thrice", "--samples", "2", "-o", path("bench.json"))
    with open(path("bench.json")) as stream:
        t = json.load(stream)["cases"][0]["timing"]
    with open(path("calls")) as stream:
        read = [line.split() for line in stream if line.startswith("captures") and ", 0 bytes" not in line]
    places = [(int(words[3].rstrip(",")), int(words[4])) for words in read]
    expect(t["graph_launches"] == 3 and len(places) == 3 * t["copies"] == 9, f"{places}, {t}")
    expect(all(place + size == after for (place, size), (after, _) in zip(places, places[1:])) and
           sum(size for _, size in places) == t["copies"] * (t["bytes"] // 16 * 16), f"{places}: not {t['bytes']} bytes of each copy")
    expect(max(size for _, size in places) - min(size for _, size in places) <= 16, f"{places}: launches of unlike sizes")
    del os.environ["GB_CALLS"]
    # Where every sample takes a millisecond, all that bench prints, records and draws of it is known.
    os.environ["GB_DEVICE_SECONDS"] = "0.001"
    for words, code in ((["--kernel", "cuda/none", "--kernel", "cuda/behind", "--kernel", "cuda/thrice", "--batches", "1,2,3"], 5),
                        (["--kernel", "cuda/none", "--hot"], 0)):
        words = ["bench", path("one.h5"), fixture, *words, "--samples", "3"]
        done = run(*words, "-o", path("bench.json"), "--plot", path("bench.svg"), code=code)
        with open(path("bench.json")) as stream:
            timed = json.load(stream)
        for t in (case["timing"] for case in timed["cases"] if "timing" in case):
            copies = t["runs"] if "--hot" not in words else 8
            expect(t["us"]["samples"] == t["read_us"]["samples"] == 3 * [1000 / copies] and t["us"]["quartile_1"] == t["us"]["median"], str(t))
            t["prepare_us"] = "..."
        run("report", path("bench.json"), "-o", path("bench.html"))
        with open(path("bench.svg")) as plot, open(path("bench.html")) as page:
            drawn = plot.read()
            figures = hashlib.sha256("".join(re.findall("<figure>.*?</figure>", page.read(), re.S)).encode()).hexdigest()[:8]
        asked += steady("\n".join([f"$ {' '.join(map(str, words))}", re.sub("(?m)^cuda/", " cuda/", done.stdout + done.stderr), *(
            json.dumps(of) for of in [*(case["timing"] for case in timed["cases"] if "timing" in case), timed["growth"], timed["bench"]]), drawn, f"figures of its page: {figures}", ""]))
    del os.environ["GB_DEVICE_SECONDS"]
    same("cli_device", asked)

# A kernel's path of a study has the reference's bits; the intermediate that it does not hand out is the reference's.
studies = []
for words in ([], ["--kernel", "cuda/none"], ["--kernel", "cuda/stages"]):
    run("study", "drift", fixture, "--paths", "bf16.fma32,nvfp4.fma32", *words, "-o", path("study.h5"))
    with h5py.File(path("study.h5")) as file:
        studies.append((file.attrs["content_sha256"], file["cases/0"].attrs["kernels"].decode()))
expect({hash for hash, _ in studies} == {studies[0][0]}, str(studies))
expect([kernels for _, kernels in studies] == ["", "bf16.fma32 cuda/none", "bf16.fma32 cuda/stages"], str(studies))

# A library of an older version.
for table, verdict, code, reason in (("device", "NOT_RUN", 3, "libgaugeblock-cuda.so: no device functions of this ABI"),
                                     ("timer", "UNSUPPORTED", 3, "GB_EUNSUPPORTED: libgaugeblock-cuda.so: no timer of this version")):
    os.environ["GB_DEVICE_OLD"] = table
    case, = record(fixture, "--kernel", "cuda/none", code=code)["cases"]
    expect(case["verdict"] == verdict and case["reason"].endswith(reason), f"{table}: {case['verdict']}: {case['reason']}")
del os.environ["GB_DEVICE_OLD"]

# A device that is there no more.
os.environ["GB_DEVICE_GONE"] = "1"
case, = record(fixture, "--kernel", "cuda/none", code=3)["cases"]
expect(case["verdict"] == "NOT_RUN" and case["reason"] == "cuda/none: the device is gone", case["reason"])
expect("the device is gone" in run("list", "devices").stdout, "list devices")
