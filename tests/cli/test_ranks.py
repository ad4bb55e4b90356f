# SPDX-License-Identifier: Apache-2.0
"""Problems over ranks: made, described, judged; one process a rank on numpy; wrong kernels and files named."""
import json
import multiprocessing
import os
import re
import shutil
import time

import h5py
import numpy as np

from kept import expect_kept
from program import ALL, expect, path, record, refused, run

RANKS, ONE_RANK = os.environ["RANKS"], os.environ["ONE_RANK"]
SHAPE = "64,4,96"


def make(name, operator, *arguments):
    run("make", path(name), "--operator", operator, *arguments)
    return path(name)


def judged(fixture, *arguments, code=0):
    """The cases by the subject's name, and what the program printed."""
    done = run("verify", fixture, *arguments, "-o", path("record.json"), code=code)
    with open(path("record.json")) as stream:
        return {case["subject"]["name"]: case for case in json.load(stream)["cases"]}, done.stdout


# The reference, for every placement and accumulation, skewed to one rank, with empty ranks and empty slots.
CASES = ((1, "blocks"), (2, "one"), (4, "round-robin"), (8, "random"), (64, "blocks"), (64, "one"))
for number, (ranks, placement) in enumerate(CASES):
    routing = ("uniform", "holes", "skewed", "hot")[number % 4]
    empty = ("--empty-ranks", ranks // 2)
    common = ("--shape", "72,4,128", "--ranks", ranks, "--tokens", 3, "--placement", placement, "--routing", routing, *empty)
    recipe = ("fp8g128.deepseek/1", "mxfp8.rceil/1", "nvfp4.trtllm/1")[number % 3]
    sent = make("sent.h5", "dispatch", *common, *(("--recipe", recipe) if number % 4 else ()))
    found, told = judged(sent)
    expect(list(found) == ["cpu/dispatch"] and told.startswith("PASS"), f"{common}: {told}")
    accumulation = ("receiver", "sender", "node")[number % 3]
    more = ("--ranks-per-node", 4) if accumulation == "node" and ranks > 4 else ()
    sums = make("sums.h5", "combine", *common, "--accumulation", accumulation, *more)
    found, told = judged(sums)
    expect(list(found) == ["cpu/combine"] and told.startswith("PASS"), f"{common}: {told}")
    layer = found["cpu/combine"]["metrics"]["layers"][0]
    lost = layer["reference_truth"]["output"]["relative_l2"]
    expect(lost < 1e-6 if accumulation == "receiver" else 1e-4 < lost < 1e-2, f"{accumulation}: {lost}")
    with h5py.File(sent) as file:
        received = np.bincount(file["placement"][()][file["routing/ids"][()][file["routing/ids"][()] >= 0]], minlength=ranks)
        idle = file["routing/ids"][()].reshape(ranks, -1)[ranks - ranks // 2 :]
    expect((idle == -1).all() and (placement != "one" or (received > 0).sum() == 1), f"{common}: {received}")
    told = run("info", sent).stdout
    expect(f"of which {(received > 0).sum()} receive rows" in told and f"at most {received.max()} on one" in told, told)

# Over processes, one a rank. Each knows its own tokens, and the placement; everything else comes through pipes.
def bf16(codes):
    return (codes.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values):
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def all_to_all(rank, pipes, parts):
    """parts[r] goes to rank r; what comes from each. In turns, so that no pipe fills on both ends."""
    ranks, come = len(parts), [None] * len(parts)
    come[rank] = parts[rank]
    for step in range(1, ranks):
        to, source = (rank + step) % ranks, (rank - step) % ranks
        for turn in sorted({("send", rank), ("receive", source)}, key=lambda one: (one[1], one[0])):
            if turn[0] == "send":
                pipes[rank][to][1].send(parts[to])
            else:
                come[source] = pipes[source][rank][0].recv()
    return come


def order_of(ids, placement, to):
    """A sender's slots to one receiver, by expert, then token and slot."""
    slots = [s for s, e in enumerate(ids.ravel()) if e >= 0 and placement[e] == to]
    return sorted(slots, key=lambda s: (ids.ravel()[s], s))


def dispatch_rank(rank, pipes, x, ids, placement, mistake, results):
    ranks, experts, top_k = len(pipes), len(placement), ids.shape[1]
    counts = np.bincount(ids[ids >= 0], minlength=experts).astype(np.int32)
    table = np.stack(all_to_all(rank, pipes, [counts] * ranks))
    per_pair = np.array([[table[s][placement == d].sum() for d in range(ranks)] for s in range(ranks)])
    first = np.concatenate([[0], np.cumsum(per_pair[:, rank])])
    parts = []
    for to in range(ranks):
        slots = order_of(ids, placement, to)
        if mistake == "lost" and rank == 1 and slots:
            slots[-1] = slots[0]
        parts.append((x[np.array(slots, int) // top_k], np.array(slots, np.int32) + rank * ids.size))
    come = all_to_all(rank, pipes, parts)
    rows, routes = np.zeros((first[-1], x.shape[1]), np.uint16), np.full(first[-1], -1, np.int32)
    for source, (sent, slots) in enumerate(come):
        at = first[source] if mistake != "offset" or source != 1 else first[0]
        rows[at : at + len(sent)], routes[at : at + len(sent)] = sent, slots
    results.send((table, routes, rows))


def combine_rank(rank, pipes, rows, ids, weights, placement, accumulation, mistake, results):
    """rows: those that this rank's experts made, as (receiver's slots, rows) for each receiver."""
    ranks, top_k, hidden = len(pipes), ids.shape[1], rows[0][1].shape[1]
    tokens = ids.shape[0]
    if accumulation == "sender":
        parts = []
        for to in range(ranks):
            partial = {}
            for slot, w, row in sorted(zip(*rows[to][::2], rows[to][1]), key=lambda one: one[0]):
                old = partial.get(slot // top_k, np.zeros(hidden))
                partial[slot // top_k] = (np.float64(w) * bf16(row) + old).astype(np.float32)
            parts.append({token: to_bf16(p) for token, p in partial.items()})
        y = np.zeros((tokens, hidden), np.float32)
        for come in all_to_all(rank, pipes, parts):
            for token, p in come.items():
                y[token] += bf16(p)
    else:
        y = np.zeros((tokens, hidden))
        slots = {}
        for come in all_to_all(rank, pipes, [(rows[to][0], rows[to][1]) for to in range(ranks)]):
            slots.update(zip(*come))
        for slot in sorted(slots, reverse=mistake == "backwards"):
            w = weights.ravel()[slot]
            y[slot // top_k] = (np.float64(w) * bf16(slots[slot]) + y[slot // top_k]).astype(np.float32)
    results.send(y.astype(np.float32))


def over_processes(function, ranks, arguments):
    """What each rank sends back."""
    context = multiprocessing.get_context("fork")
    pipes = [[context.Pipe(duplex=False) for _ in range(ranks)] for _ in range(ranks)]
    ends = [context.Pipe(duplex=False) for _ in range(ranks)]
    processes = [context.Process(target=function, args=(r, pipes, *arguments(r), ends[r][1])) for r in range(ranks)]
    for process in processes:
        process.start()
    results = [end[0].recv() for end in ends]
    for process in processes:
        process.join()
    return results


def write(name, **arrays):
    with h5py.File(path(name), "w", libver="latest") as file:
        for key, values in arrays.items():
            file.create_dataset(key, data=values, chunks=values.shape, fletcher32=True)
    return path(name)


def split(array, ranks):
    return array.reshape(ranks, -1, array.shape[-1])


def dispatched(fixture, mistake=""):
    with h5py.File(fixture) as file:
        x, ids, placement, ranks = file["x"][()], file["routing/ids"][()], file["placement"][()], int(file.attrs["ranks"])
    x, ids = split(x, ranks), split(ids, ranks)
    made = over_processes(dispatch_rank, ranks, lambda r: (x[r], ids[r], placement, mistake))
    expect(all((table == made[0][0]).all() for table, _, _ in made), "ranks have different counts")
    return write("made.h5", counts=made[0][0], routes=np.concatenate([one[1] for one in made]),
                 codes=np.concatenate([one[2] for one in made]))


def combined(fixture, mistake=""):
    with h5py.File(fixture) as file:
        rows, ids, weights = file["rows"][()], file["routing/ids"][()], file["routing/weights"][()]
        placement, ranks = file["placement"][()], int(file.attrs["ranks"])
        accumulation = file.attrs["accumulation"].decode() if isinstance(file.attrs["accumulation"], bytes) else file.attrs["accumulation"]
    ids, weights, at, own = split(ids, ranks), split(weights, ranks), 0, []
    for d in range(ranks):
        own.append([])
        for s in range(ranks):
            slots = order_of(ids[s], placement, d)
            own[d].append((slots, rows[at : at + len(slots)], [weights[s].ravel()[slot] for slot in slots]))
            at += len(slots)
    made = over_processes(combine_rank, ranks, lambda r: (own[r], ids[r], weights[r], placement, accumulation, mistake))
    return write("made.h5", output=np.concatenate(made))


for ranks, placement in ((2, "blocks"), (4, "random"), (3, "one")):
    common = ("--shape", "24,3,32", "--ranks", ranks, "--tokens", 5, "--placement", placement, "--routing", "holes")
    sent = make("sent.h5", "dispatch", *common)
    found, told = judged(sent, "--outputs", dispatched(sent))
    expect(told.startswith("PASS"), told)
    with h5py.File(path("made.h5")) as file:
        right = {name: array[()] for name, array in file.items()}
    for mistake, words in (("lost", "is lost"), ("offset", "differ from the reference")):
        if placement == "one":
            continue
        found, told = judged(sent, "--outputs", dispatched(sent, mistake), code=1)
        expect(words in told or "have another than the reference" in told, f"{mistake}: {told}")
        with h5py.File(path("made.h5")) as file:
            for name, array in right.items():
                wrong = np.flatnonzero(file[name][()] != array)
                bits = found[path("made.h5")]["metrics"]["layers"][0]["subject_reference"][name]
                expect((bits["compared"], bits["mismatching"]) == (array.size, len(wrong)), f"{mistake}, {name}: {bits}")
                if len(wrong):
                    row, element = divmod(int(wrong[0]), array.size // len(array))
                    values = [f"0x{int(values.ravel()[wrong[0]]) & 0xFFFFFFFF:08x}" for values in (file[name][()], array)]
                    expect(list(bits["first"].values()) == [row, element, *values], f"{mistake}, {name}: {bits}")
    for accumulation in ("receiver", "sender"):
        sums = make("sums.h5", "combine", *common, "--accumulation", accumulation)
        # The product and the sum of float64 are rounded once more than by fma: bits differ seldom, sums never much.
        found, told = judged(sums, "--outputs", combined(sums))
        expect(told.startswith("PASS"), f"{accumulation}: {told}")
    backwards = combined(make("sums.h5", "combine", *common), "backwards")
    judged(path("sums.h5"), "--outputs", backwards)
    found, told = judged(path("sums.h5"), "--outputs", backwards, "--order", "slots/1", code=1)
    expect("within its error bound" in told, told)
    with h5py.File(backwards) as file:
        stored = write("bf16.h5", output=to_bf16(file["output"][()]))
    found, told = judged(path("sums.h5"), "--outputs", stored)
    expect(found[stored]["checks"]["bound"]["result"] == "PASS", told)

# Kernels in C: what is wrong is named with rank, token and slot.
DISPATCH = {
    "right": (0, ""),
    "lost": (1, "first at rank 2, row 49: token 2 of rank 0, slot 2 is lost; the row has token 0 of rank 0, slot 2, which is there twice"),
    "misrouted": (1, "first at rank 0, row 0: token 0 of rank 0, slot 2 went to rank 3; the row has token 7 of rank 3, slot 3"),
    "arrival": (1, "token 0 of rank 0, slot 2 is in row 1"),
    "count": (1, "first from rank 1 to expert 0 of rank 0: 3 routes, reference 2"),
    "late": (1, "first at rank 3, row 98 (token 7 of rank 3, slot 3)"),
    "stale": (6, "element 96 of codes (row 1: token 3 of rank 0, slot 2)"),
    "overflow": (1, "wrote outside a buffer: beside codes"),
    "offset": (1, "first at rank 0, row 0 (token 0 of rank 0, slot 2), element 0"),
    "unwritten": (1, "(row 49: token 2 of rank 0, slot 2)"),
    "hang": (5, "no result after 2 s"),
}
COMBINE = {
    "right": (0, ""),
    "unclaimed": (0, ""),
    "backwards": (1, "first at rank 0, token 0, element"),
    "lost": (1, "rank 0, token 1, slot 1, from expert 57 of rank 3: the row is lost"),
    "twice": (1, "rank 0, token 1, slot 1, from expert 57 of rank 3: the row is added twice"),
    "both": (1, "weights are applied on both sides"),
    "neither": (1, "weights are applied on neither side"),
    "other": (1, "rank 0, token 1: one of its rows is row 95, of rank 0, token 5, slot 1"),
    "stale": (6, "element 3071 of output (rank 3, token 7)"),
    "narrow": (1, "exceed the error bound of receiver accumulation; worst at rank"),
    "sender": (1, "rows are added up at the sender"),
    "overflow": (1, "wrote outside a buffer: beside output"),
}
sent = make("sent.h5", "dispatch", "--shape", SHAPE, "--ranks", 4, "--tokens", 8, "--routing", "holes")
sums = make("sums.h5", "combine", "--shape", SHAPE, "--ranks", 4, "--tokens", 8)
for fixture, prefix, kernels, code in ((sent, "dispatch", DISPATCH, 5), (sums, "combine", COMBINE, 6)):
    words = [word for name in kernels for word in ("--kernel", f"{prefix}-{name}")]
    found, told = judged(fixture, "--subject", RANKS, *words, "--timeout", 2, code=code)
    for name, (code, diagnosis) in kernels.items():
        case = found[f"{prefix}-{name}"]
        expect(case["exit_code"] == code and diagnosis in case["reason"], f"{name}: {case['exit_code']}: {case['reason']}")
        expect(diagnosis in told, f"{name}: not printed: {told}")
    if prefix == "dispatch":
        sums_of = {name: re.search(r"in all (\d+) routes are lost, (\d+) are there twice, (\d+) went",
                                   found[f"dispatch-{name}"]["reason"]) for name in ("lost", "misrouted")}
        expect({name: one and one.groups() for name, one in sums_of.items()} ==
               {"lost": ("1", "1", "0"), "misrouted": ("0", "0", "2")}, f"routes of the whole: {sums_of}")
    done = run("power", fixture, "-o", path("power.json"))
    with open(path("power.json")) as stream:
        bugs = json.load(stream)["injected_bugs"]
    expect(len(bugs) >= 9 and all(bug["caught_by"] for bug in bugs), done.stdout)
    other = f"{'combine' if prefix == 'dispatch' else 'dispatch'}-right"
    found, told = judged(fixture, "--subject", RANKS, "--kernel", other, code=3)
    expect(f"the fixture is a problem of {prefix}" in told, told)
# Kernels in C that run in one process a rank.
APART = {
    "dispatch-right": (0, ""),
    "dispatch-lost": (1, "first at rank 0, row 12: token 3 of rank 1, slot 3 is lost"),
    "dispatch-counts": (1, "counts: rank 2 has others than rank 0"),
    "dispatch-offset": (1, "rank 0: element 12 of routes"),
    "dispatch-overflow": (1, "wrote outside a buffer: rank 1: beside codes"),
    "dispatch-dies": (5, "rank 2: killed by signal 6"),
    "dispatch-hangs": (5, "no result after 2 s"),
    "combine-right": (0, ""),
    "combine-lost": (1, "rank 1, token 0, slot 3, from expert 17 of rank 1: the row is lost"),
    "combine-both": (1, "weights are applied on both sides"),
    "combine-dies": (5, "rank 2: killed by signal 6"),
}
for fixture, prefix in ((sent, "dispatch"), (sums, "combine")):
    names = [name for name in APART if name.startswith(prefix)]
    words = [word for name in names for word in ("--kernel", name)]
    began = time.monotonic()
    seconds = 2 if "dispatch-hangs" in names else 600
    found, told = judged(fixture, "--subject", ONE_RANK, *words, "--timeout", seconds, code=5)
    expect(time.monotonic() - began < 300, "ranks wait for one that has died")
    for name in names:
        code, diagnosis = APART[name]
        case = found[name]
        expect(case["exit_code"] == code and diagnosis in case["reason"], f"{name}: {case['exit_code']}: {case['reason']}")
os.environ["TMPDIR"] = path("short-lived")
os.mkdir(path("short-lived"))
for ranks, placement, operator in ((1, "blocks", "dispatch"), (3, "random", "combine"), (6, "one", "dispatch"),
                                   (1, "blocks", "combine"), (3, "random", "dispatch"), (6, "one", "combine"))[:6 if ALL else 3]:
    apart = make("apart.h5", operator, "--shape", "24,3,40", "--ranks", ranks, "--placement", placement, "--tokens", 2)
    found, told = judged(apart, "--subject", ONE_RANK, "--kernel", f"{operator}-right")
    expect(told.startswith("PASS"), told)
expect(not os.listdir(path("short-lived")), "folders that processes met in are left")
many = make("many.h5", "dispatch", "--shape", "72,3,40", "--ranks", 65, "--tokens", 1)
found, told = judged(many, "--subject", ONE_RANK, "--kernel", "dispatch-right", code=3)
expect("65 ranks, and a process for each; at most 64" in told, told)
quantised = make("sent8.h5", "dispatch", "--shape", "64,4,128", "--recipe", "fp8g128.deepseek/1")
found, told = judged(quantised, "--subject", RANKS, "--kernel", "dispatch-right", code=3)
expect("UNSUPPORTED" in told, told)

# Records of every type.
run("verify", sums, "--subject", RANKS, "--kernel", "combine-lost", "-o", path("record.xml"), "-o", path("record.md"), code=1)
for kind in ("xml", "md"):
    with open(path(f"record.{kind}")) as stream:
        expect("the row is lost" in stream.read(), kind)

# What is no such problem is refused in a line that names it.
for arguments, words in (
    (("--operator", "combine", "--shape", "8,2,64", "--ranks", "0"), "--ranks 0"),
    (("--operator", "combine", "--shape", "8,2,64,64"), "experts,top_k,hidden"),
    (("--operator", "combine", "--shape", "8,9,64"), "top-k 9"),
    (("--operator", "combine"), "either --model or --shape"),
    (("--operator", "combine", "--shape", "8,2,64", "--recipe", "nvfp4.te/1"), "rows of combine are bf16"),
    (("--operator", "dispatch", "--shape", "8,2,64", "--accumulation", "sender"), "--accumulation goes with"),
    (("--operator", "combine", "--shape", "8,2,64", "--ranks-per-node", "2"), "--ranks-per-node goes with"),
    (("--operator", "dispatch", "--shape", "8,2,64", "--placement", "here"), "--placement here"),
    (("--operator", "dispatch", "--shape", "8,2,64", "--empty-ranks", "2"), "2 ranks without tokens of 2"),
    (("--operator", "dispatch", "--shape", "8,2,64", "--recipe", "fp8g128.vllm/1"), "no multiple of the block"),
    (("--operator", "dispatch", "--shape", "8,2,64", "--data", "ties"), "bf16 rows are gaussian"),
    (("--operator", "dispatch", "--shape", "8,2,64", "--format", "nvfp4"), "--format goes with problems of layers"),
    (("--operator", "dispatch", "--shape", "8,2,64", "--suite"), "--suite"),
    (("--shape", "8,2,64,64", "--ranks", "2"), "--ranks goes with"),
):
    expect(words in (told := refused("make", path("no.h5"), *arguments)), f"{arguments}: {told}")
for arguments, words in (
    (("--batch", "3"), "the tokens of all ranks, 32"),
    (("--minimise", path("small.h5")), "--minimise goes with problems of layers"),
    (("--require-coverage", "experts"), "--require-coverage"),
    (("--outputs", path("made.h5"), "--order", "fma32/1"), "combine has the order slots/1 alone"),
    (("--outputs", sent), "is a fixture"),
    (("--outputs", write("narrow.h5", output=np.zeros((32, 95), np.float32))), "has shape [32, 95]; write [32, 96]"),
    (("--outputs", write("wide.h5", output=np.zeros((32, 96), np.float64))), "holds another type; write float32"),
    (("--outputs", write("none.h5", codes=np.zeros((32, 96), np.float32))), "output"),
):
    expect(words in (told := refused("verify", sums, *arguments)), f"{arguments}: {told}")


def spoilt(fixture, change):
    shutil.copy(fixture, path("spoilt.h5"))
    with h5py.File(path("spoilt.h5"), "r+") as file:
        change(file)
    return path("spoilt.h5")


def put(name, place, value):
    return lambda file: file[name].__setitem__(place, value)


for fixture, change, words in (
    (sent, put("placement", 3, 4), "placement"),
    (sent, put("placement", 3, -1), "placement"),
    (sent, put("routing/ids", (1, 1), 64), "routing/ids"),
    (sent, put("routing/ids", (0, 2), -1), "slots have an expert, but rows is 99"),
    (sent, put("x", (1, 1), 0x7F80), "is not finite"),
    (sent, put("x", (1, 1), 1), "input_sha256"),
    (sent, lambda file: file.attrs.modify("ranks", 5), ""),
    (sent, lambda file: file.attrs.modify("rows", 0), "rows"),
    (sent, lambda file: file.attrs.modify("recipe", np.bytes_("mine/1")), "recipe"),
    (sent, lambda file: file.attrs.modify("operator", np.bytes_("gather")), "'gather' is no operator over ranks"),
    (sums, lambda file: file.attrs.modify("accumulation", np.bytes_("here")), "accumulation"),
    (sums, put("routing/weights", (1, 1), np.nan), "routing/weights"),
    (sums, put("truth/output", (1, 1), 7.0), "truth"),
    (sums, lambda file: file.__delitem__("rows"), "rows"),
):
    expect(words in (told := refused("verify", spoilt(fixture, change))), f"{words}: {told}")

# Truth that is not the inputs' is found by computing it again.
def other_truth(file):
    file["truth/output"][1, 1] += 0.5
    del file.attrs["truth_sha256"]


told = refused("verify", spoilt(sums, other_truth))
expect("truth/output: is not that of its inputs: token 1, element 1" in told, told)
expect(record(sums)["cases"][0]["fixture"]["accumulation"] == "receiver", "the record lacks the accumulation")

expect_kept()
