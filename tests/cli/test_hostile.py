# SPDX-License-Identifier: Apache-2.0
"""Input that is damaged, or made to hurt: exit 2 (5 where libhdf5 died in its own process) and one line that names the
file; never a half-written file, never a PASS."""
import json
import os
import random
import shutil
import signal
import struct
import subprocess

import h5py
import numpy as np

from program import (ALL, CAPTURE, CHECKPOINT, HDF5_FAULT, PROCESSORS, PROGRAM, SANITISED, SOURCE, expect, path, record, refused, run,
                     small)

generator = random.Random(7)
fixture = small("good.h5", "--seed", "5")
with open(fixture, "rb") as stream:
    good = stream.read()


def write(name, content):
    with open(path(name), "wb") as stream:
        stream.write(content)
    return path(name)


def died(done):
    """Exit 5 is for a reading process that a signal ended, not for leaks of libhdf5 in a sanitised build."""
    return done.returncode != 5 or "killed by signal" in done.stderr


def any_refusal(*arguments):
    """Exit 2, or 5 if the reading process died; one line that names the file. Returns the code."""
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    lines = done.stderr.splitlines()
    expect(done.returncode in (2, 5) and len(lines) == 1 and "bad." in lines[0] and died(done), f"{arguments}: {done}")
    return done.returncode


# Damage of any byte. tests/fixtures/test_fixture_damage.c has thousands of places; here the whole program sees some.
for size in [0, 1, 8, 100, len(good) // 2, len(good) - 1] + [generator.randrange(len(good)) for _ in range(20 if ALL else 3)]:
    any_refusal("info", write("bad.h5", good[:size]))
with h5py.File(fixture) as f:
    digest = f.attrs["input_sha256"].decode()
for _ in range(60 if ALL else 8):
    at = generator.randrange(len(good))
    changed = bytearray(good)
    changed[at] ^= 1 << generator.randrange(8)
    done = subprocess.run([PROGRAM, "info", write("bad.h5", changed)], capture_output=True, text=True)
    expect((done.returncode == 0 and digest in done.stdout) or
           (done.returncode in (2, 5) and len(done.stderr.splitlines()) == 1 and died(done)), f"flip at {at}: {done}")


# A field at a time.
def changed(field, change):
    shutil.copy(fixture, path("bad.h5"))
    with h5py.File(path("bad.h5"), "r+", libver="latest") as f:
        change(f)
    for command in ("info", "verify"):
        line = refused(command, path("bad.h5"))
        expect("bad.h5" in line and field in line, f"{field}: {line}")


def put(name, where, value):
    def change(f):
        f[name][where] = value
    return name, change


def attribute(name, value):
    return name, lambda f: f.attrs.__setitem__(name, value)


scales, ids, globals_ = "layers/1/gate_up/scales", "layers/0/routing/ids", "layers/1/down/global_scales"
for field, change in [attribute("schema_version", 2), attribute("hidden", 90), attribute("tokens", 2**31),
                      ("layers/0/x", lambda f: f.__delitem__("layers/0/x")), put(ids, (3, 1), 8),
                      put(ids, (3, 1), -2), put(scales, (0, 0, 0), 0x7F), put(scales, (0, 0, 0), 0x80),
                      *[put(globals_, (2, 0), value) for value in (np.nan, 0, -1, np.inf)]]:
    changed(field, change)
with h5py.File(fixture) as f:
    repeated = f[ids][3, 0]
changed("chosen twice", put(ids, (3, 1), repeated)[1])


def overflow(f):
    for name in ("tokens", "hidden", "intermediate", "experts"):
        f.attrs[name] = 0x7FFFFFE0


changed("memory", overflow)


# libhdf5 dies, hangs or eats memory: the process that reads costs one line.
def dying(fault, *arguments):
    environment = {**os.environ, "LD_PRELOAD": HDF5_FAULT, "GAUGEBLOCK_FAULT_HDF5": fault,
                   "ASAN_OPTIONS": "verify_asan_link_order=0:handle_segv=0:handle_abort=0"}
    return refused(*arguments, code=5, env=environment)


np.save(path("outputs.npy"), np.zeros((2, 9, 96), np.float32))
expect("signal 11" in dying("crash", "info", fixture) and "good.h5" in dying("crash", "verify", fixture), "crash")
expect("longer than 1 s" in dying("hang", "verify", fixture, "--timeout", "1"), "hang")
if not SANITISED:
    expect("signal 6" in dying("eat", "info", fixture), "eat")
    # OpenBLAS's buffers do not fit into the reading process's memory, and its threads would wait for it for ever.
    run("info", fixture, env={**os.environ, "LD_PRELOAD": PROCESSORS}, timeout=60)

# Old HDF5 formats have no checksums: outputs may have them. A wrong byte is refused, kills the reader or is FAIL.
run("make", path("tiny.h5"), "--shape", "4,2,32,16", "--tokens", "2")
output = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
with h5py.File(path("old.h5"), "w") as f:
    f["layers/0/output"] = output
with open(path("old.h5"), "rb") as stream:
    old = stream.read()
codes = set()
for _ in range(60 if ALL else 6):
    wrong = bytearray(old)
    wrong[generator.randrange(1200)] ^= 1 << generator.randrange(8)
    done = subprocess.run([PROGRAM, "verify", path("tiny.h5"), "--outputs", write("bad.h5", wrong)], capture_output=True,
                          text=True)
    codes.add(done.returncode)
    expect(done.returncode in (1, 2, 5) and len(done.stderr.splitlines()) <= 1 and died(done), str(done))
expect({1, 2} <= codes, f"both outcomes occur: {codes}")

# One bad file of outputs costs the others nothing.
one = record(fixture, "--outputs", path("outputs.npy"), "--outputs", write("bad.npy", b"\x93NUMPY"), code=2)
expect([case["verdict"] for case in one["cases"]] == ["FAIL", "BAD_INPUT"], str(one["cases"]))

# More of them than any table in the program has room for.
ABSENT = 600 if ALL else 70
one = record(*[path(f"absent{n}.h5") for n in range(ABSENT)], fixture, code=2)
expect(len(one["cases"]) == ABSENT + 1 and one["summary"]["judged"] == 1 and one["cases"][ABSENT]["verdict"] == "PASS",
       str(one["summary"]))
MANY = 600
with open(path("many.c"), "w") as stream:
    stream.write('''
#include <stdio.h>
#include "gaugeblock.h"
static enum gb_status supports(const struct gb_problem *problem, struct gb_error *error)
{
    return GB_OK;
}
static enum gb_status run(const struct gb_arguments *arguments, struct gb_error *error)
{
    return GB_OK;
}
const struct gb_kernel_table *gb_kernels(void)
{
    static struct gb_kernel kernels[MANY];
    static char names[MANY][16];
    static const struct gb_kernel_table table = {GB_ABI_VERSION, sizeof *kernels, MANY, kernels};
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof *names, "many/%d", i);
        kernels[i] = (struct gb_kernel){.name = names[i], .operation = GB_LAYER, .weights = GB_MXFP8,
            .activations = GB_BF16, .output = GB_FP32, .accumulator_bits = 24, .supports = supports, .run = run};
    }
    return &table;
}''')
subprocess.run([os.environ["CC"], "-shared", "-fPIC", f"-DMANY={MANY}", "-I", SOURCE, "-o", path("many.so"),
                path("many.c")], check=True)
one = record(fixture, "--subject", path("many.so"), code=3)
expect(len(one["cases"]) == MANY and {case["verdict"] for case in one["cases"]} == {"UNSUPPORTED"}, str(one["summary"]))


# Checkpoints and captures.
def tensors(header, data=b""):
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    return struct.pack("<Q", len(text)) + text + data


def tensor(begin, end):
    return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}


for what, content in {"bytes long": struct.pack("<Q", 1 << 40), "truncated": struct.pack("<Q", 99) + b"{}",
                      "overlap": tensors({"a": tensor(0, 8), "b": tensor(4, 12)}, bytes(12)),
                      "hole": tensors({"a": tensor(0, 4), "b": tensor(8, 12)}, bytes(12)),
                      "ends at byte": tensors({"a": tensor(0, 16)}, bytes(12)), "cut short": b"123",
                      "duplicate": tensors(b'{"a": {}, "a": {}}'),
                      "64 bits": tensors({"a": {"dtype": "F32", "shape": [1 << 40, 1 << 40],
                                                "data_offsets": [0, 4]}}, bytes(4))}.items():
    line = refused("import", CHECKPOINT, path("x.h5"), "--capture", write("bad.safetensors", content))
    expect("bad.safetensors" in line and what in line, f"{what}: {line}")
shutil.copytree(CHECKPOINT, path("checkpoint"))
os.remove(path("checkpoint/model-00002-of-00002.safetensors"))
expect("missing shard" in refused("import", path("checkpoint"), path("x.h5")), "a missing shard")
with open(path("checkpoint/config.json"), "w") as stream:
    stream.write('{"model_type": "olmoe", "model_type": "mixtral"}')
expect("config.json" in refused("import", path("checkpoint"), path("x.h5")), "duplicate keys")
expect(not os.path.exists(path("x.h5")), "a refused import leaves no file")

# Nowhere to write: a limit, a full disk. What was there stays. (No permission: test_permissions.py.)
shutil.copy(fixture, path("kept.h5"))
MAKE = [PROGRAM, "make", path("kept.h5"), "--shape", "8,3,96,48"]


def unchanged(done, what):
    with open(path("kept.h5"), "rb") as stream:
        expect(stream.read() == good, f"{what}: the old file was changed")
    expect(done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "kept.h5" in done.stderr, f"{what}: {done}")
    left = [name for name in os.listdir(path("")) if name.endswith(".tmp")]
    expect(not left, f"{what}: {left}")


def limited(size, command):
    """Runs the command, whose files may not grow beyond size bytes; by default a signal ends what writes more."""
    limit = "import resource, signal, sys, os; signal.signal(signal.SIGXFSZ, signal.SIG_DFL); " \
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size})); os.execv(sys.argv[1], sys.argv[1:])"
    return subprocess.run([os.environ["PYTHON"], "-c", limit, *command], capture_output=True, text=True)


unchanged(limited(9000, MAKE), "file size limit")
os.mkdir(path("reports"))
vectors = os.path.join(SOURCE, "fixtures/vectors/e4m3-1x32-e8m0.txt")
done = limited(100, [PROGRAM, "identify", vectors, os.path.join(SOURCE, "fixtures/vectors/mxfp8.rceil-1.txt"), "-o",
                     path("reports/finding.json")])
expect(done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "File too large" in done.stderr, str(done))
expect(not os.listdir(path("reports")), "a report that cannot be written leaves no file")
# Closed descriptors are none of the program's files.
for closed in ("<&-", ">&-", "2>&-", "<&- 2>&-", "<&- >&-", "<&- >&- 2>&-"):
    done = subprocess.run(["sh", "-c", f"exec {PROGRAM} info {write('bad.h5', good[:1000])} {closed}"],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    expect(done.returncode == 2 and ("2>&-" in closed or "bad.h5: " in done.stderr), f"{closed}: {done}")
done = subprocess.run(["sh", "-c", f"exec {PROGRAM} verify {fixture} -o {path('reports/closed.json')} <&- >&- 2>&-"])
with open(path("reports/closed.json")) as stream:
    expect(done.returncode == 2 and json.load(stream)["verdict"] == "PASS", "all three are closed: it is judged, but not printed")
done = subprocess.run(["sh", "-c", f"exec {PROGRAM} info {fixture} >&-"], capture_output=True, text=True)
expect(done.returncode == 2 and "standard output: Bad file descriptor" in done.stderr, str(done))
