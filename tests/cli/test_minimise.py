# SPDX-License-Identifier: Apache-2.0
"""Mistakes are named for what they are, on the whole problem and on the smallest part that --minimise leaves of it."""
import concurrent.futures
import json
import os
import subprocess

import h5py

from edited import rehash
from kept import expect_kept
from program import ALL, MISTAKES, PROGRAM, expect, path, record, run

# Mistake; formats with the suffix of the operator; its name; of the smallest part, if another.
TABLE = [
    ("weight-missing", "nvfp4 mxfp4 mxfp8 fp8 bf16 nvfp4.down", "routing weight missing"),
    ("scales-next", "nvfp4 mxfp4 mxfp8 fp8", "scales of the next block"),
    ("gate-up-swapped", "nvfp4 mxfp4 mxfp8 fp8 bf16 bf16.gate_up", "gate and up swapped"),
    ("last-block-dropped", "nvfp4 mxfp4 mxfp8 fp8 bf16", "last K block dropped"),
    ("last-block-dropped", "mxfp4.gate_up", "last K block of gate and up dropped"),
    ("last-block-dropped", "mxfp8.down", "last K block of down dropped"),
    ("scales-next", "nvfp4.gate_up", "scales of the next block in gate and up"),
    ("scales-previous", "mxfp8.down", "scales of the previous block in down"),
    ("scales-next-row", "nvfp4", "scales of the next row in down"),
    ("scales-swizzled", "nvfp4", "swizzled scales of gate and up read as linear"),
    ("second-block-of-gate-up-dropped", "nvfp4 nvfp4.gate_up", "K block 1 of gate and up dropped"),
    ("second-block-of-gate-up-dropped", "bf16", "columns 16 to 31 of K of gate and up dropped"),
    ("first-block-of-down-dropped", "mxfp4", "K block 0 of down dropped"),
    ("nibbles-of-one-expert", "nvfp4 mxfp4.down", "nibbles of down exchanged, of expert {expert} alone"),
    ("weight-missing-in-one-token", "bf16", "routing weight missing, in some tokens"),
    ("weight-twice", "mxfp4", "routing weight applied twice"),
    ("expert-left-out", "nvfp4.down", "expert {expert} left out"),
    ("slot-left-out", "mxfp8", "slot 1 left out"),
    ("ids-off", "bf16", "experts' ids off by 1"),
    ("tile-missing", "nvfp4", "output zero, in some tokens and columns"),
    ("zero", "mxfp4", "output zero"),
]
SHAPES = {"fp8": "6,2,256,256", "nvfp4": "6,2,128,160"} if ALL else {"fp8": "6,2,256,256", "nvfp4": "4,2,48,48"}
experts = {}
for number, name in enumerate(("nvfp4", "mxfp4", "mxfp8", "fp8", "bf16")):
    run("make", path(f"{name}.h5"), "--shape", SHAPES.get(name, "6,2,128,96" if ALL else "4,2,64,96"), "--tokens", 6 if ALL else 4, "--layers", 1 + number % 2,
        "--format", name, "--stored" if number % 2 else "--generated", "--seed", 7 + number)
    with h5py.File(path(f"{name}.h5")) as file:
        experts[name] = [file[f"layers/{layer}/routing/ids"][0, 0] for layer in range(1 + number % 2)]
one = {**os.environ, "OMP_NUM_THREADS": "1"}


def check(mistake, kernel, name):
    """One kernel, run where its fixture lies; the printed line is run elsewhere."""
    what, weights = f"mistakes/{mistake}.{kernel}", kernel.split(".")[0]
    work = path(what.replace("/", "-"))
    os.mkdir(work)
    done = subprocess.run([PROGRAM, "verify", f"../{weights}.h5", "--subject", MISTAKES, "--kernel", what, "--minimise",
                           "small.h5", "-o", "record.json"], capture_output=True, text=True, cwd=work, env=one)
    expect(done.returncode == 1, f"{what}: {done.stdout}{done.stderr}")
    with open(os.path.join(work, "record.json")) as file:
        case, = json.load(file)["cases"]
    found, minimal = case["explanation"], case["minimal"]
    expect(name.format(expert=experts[weights][found["layer"]]) in (found["name"], *found["also_fits"]) and found["explains"] > 0.9,
           f"{what}: {found}")
    expect(found["name"] in case["reason"], case["reason"])
    expect(minimal["explained_alike"] and minimal["bytes"] == os.path.getsize(os.path.join(work, "small.h5")) < 1 << 20,
           f"{what}: {minimal}")
    with h5py.File(os.path.join(work, "small.h5")) as file:
        for size in "hidden", "intermediate", "tokens":
            expect(file.attrs[size] == minimal[size], f"{what}: {size} {file.attrs[size]}, and not {minimal}")
        expect(file["layers/0/routing/ids"].shape == (minimal["tokens"], minimal["slots"]), f"{what}: ids, {minimal}")
    words = minimal["repro"].split()
    again = subprocess.run([PROGRAM, *words[1:], "-o", os.path.join(work, "again.json")], capture_output=True, text=True,
                           cwd="/", env=one)
    expect(again.returncode == 1, f"{minimal['repro']}: {again.stdout}{again.stderr}")
    with open(os.path.join(work, "again.json")) as file:
        small = json.load(file)["cases"][0]["explanation"]
    expect(small["kind"] == found["kind"] and small["name"] == minimal["name"], f"{what}: {found}, then {small}")


def quick(mistake, kernel):
    """One of the whole layer; of one operator alone, which takes least, but no kind twice."""
    return mistake == "zero" or ("." in kernel and mistake != "last-block-dropped")


with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for task in [pool.submit(check, mistake, kernel, name) for mistake, kernels, name in TABLE
                 for kernel in kernels.split() if ALL or quick(mistake, kernel)]:
        task.result()


def marked(name, top_k, tokens, token, zeros):
    """A fixture whose `token` has routing weights 1024 times as large, and whose first `zeros` tokens are zero."""
    run("make", path(name), "--shape", f"6,{top_k},{'64,32' if ALL else '32,16'}", "--tokens", tokens, "--stored", "--seed", 3, "--format", "bf16")
    with h5py.File(path(name), "r+") as file:
        layer, truth = file["layers/0"], file["layers/0/truth"]
        for data in (layer["routing/weights"], truth["routing_weights"], truth["quantised"], truth["original"]):
            data[token] *= 1024
        for data in (layer["x"], truth["quantised"], truth["original"]):
            data[:zeros] = 0
        del file["stack"]
    rehash(path(name))


# An error without an explanation: any failure of a part will do, but not that nothing of it was verified, nor that the
# kernel does not take it. Odd numbers of tokens and slots are halved, too.
for suffix, top_k, tokens, token, zeros, first, left in [("", 3, 7, 6, 0, 6, 1), ("-of-two", 3, 5, 4, 0, 3, 2),
                                                         ("", 2, 8, 7, 4, 7, 1)]:
    marked("marked.h5", top_k, tokens, token, zeros)
    case, = record(path("marked.h5"), "--subject", MISTAKES, "--kernel", f"mistakes/marked-token-garbled{suffix}.bf16",
                   "--minimise", path("small.h5"), code=1)["cases"]
    expect(case["explanation"]["kind"] == "", case["explanation"])
    minimal = {"first_token": first, "tokens": left, "slots": 1, "hidden": 16, "intermediate": 16, "explained_alike": False}
    expect(minimal.items() <= case["minimal"].items(), f"{case['minimal']}, and not {minimal}")

# A part is wrong in another way than the whole: any failure will do.
os.environ["GB_MISTAKES_FIRST"] = path("first")
case, = record(path("bf16.h5"), "--subject", MISTAKES, "--kernel", "mistakes/weight-missing-at-first.bf16", "--minimise",
               path("other.h5"), code=1)["cases"]
expect(case["explanation"]["name"] == "routing weight missing", case["explanation"])
expect(case["minimal"] and not case["minimal"]["explained_alike"] and case["minimal"]["tokens"] == 1, case["minimal"])

# Nothing fails: nothing is written, and nothing said of it.
done = run("verify", path("marked.h5"), "--minimise", path("none.h5"))
expect(done.stderr == "" and not os.path.exists(path("none.h5")), done.stderr)

expect_kept()
