# SPDX-License-Identifier: Apache-2.0
"""Whenever the program is killed or interrupted, no process of its is left, however well that hid itself, and no file but
whole ones. An argument is the number of kills."""
import json
import os
import random
import signal
import subprocess
import sys
import time

import h5py

from program import FAULTS, PROGRAM, SOURCE, TMPFILE_FAULT, expect, path, run, small

KILLS = int(sys.argv[1]) if len(sys.argv) > 1 else 16
SEED = random.randrange(1 << 32)
MARK = f"GAUGEBLOCK_TEST_MARK={os.getpid()}.{SEED}"
generator = random.Random(SEED)

# A kernel that starts two processes, one of which leaves session, group and descriptors behind, and never ends; with
# GAUGEBLOCK_TEST_RETURNS in the environment it returns at once, and they stay.
with open(path("starts.c"), "w") as stream:
    stream.write("""
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "gaugeblock.h"
static enum gb_status supports(const struct gb_problem *problem, struct gb_error *error)
{
    return GB_OK;
}
static void wait_for_ever(void)
{
    for (;;)
        pause();
}
static enum gb_status run(const struct gb_arguments *arguments, struct gb_error *error)
{
    if (fork() == 0)
        wait_for_ever();
    if (fork() == 0) {
        setsid();
        for (int descriptor = 0; descriptor < 256; descriptor++)
            close(descriptor);
        if (fork() == 0)
            wait_for_ever();
        _exit(0);
    }
    if (!getenv("GAUGEBLOCK_TEST_RETURNS"))
        wait_for_ever();
    return GB_OK;
}
const struct gb_kernel_table *gb_kernels(void)
{
    static const struct gb_kernel kernel = {.name = "starts/processes", .operation = GB_LAYER, .weights = GB_NVFP4,
        .activations = GB_BF16, .output = GB_FP32, .accumulator_bits = 24, .supports = supports, .run = run};
    static const struct gb_kernel_table table = {GB_ABI_VERSION, sizeof kernel, 1, &kernel};
    return &table;
}
""")
subprocess.run([os.environ["CC"], "-shared", "-fPIC", "-I", SOURCE, "-o", path("starts.so"), path("starts.c")], check=True)

fixture = small("good.h5", "--seed", "5")
with open(fixture, "rb") as stream:
    good = stream.read()
for name in ("t", "out"):
    os.mkdir(path(name))
environment = {**os.environ, "TMPDIR": path("t"), MARK.split("=")[0]: MARK.split("=")[1]}
MAKE = ["make", path("out/made.h5"), "--shape", "8,3,96,48", "--tokens", "9", "--layers", "2", "--seed", "5"]
HANG = ["verify", fixture, "--subject", path("starts.so"), "-o", path("out/hang.json")]
COMMANDS = [HANG, MAKE, ["verify", fixture, "-o", path("out/record.json")],
            ["verify", fixture, "--subject", FAULTS, "--kernel", "faults/nibble-order", "--minimise", path("out/minimal.h5")]]


def alive():
    """Command lines of processes that carry the mark."""
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/environ", "rb") as stream:
                marked = MARK.encode() in stream.read().split(b"\0")
            with open(f"/proc/{number}/cmdline", "rb") as stream:
                line = stream.read()
        except OSError:
            continue
        if marked:
            found.append(line)
    return found


def nothing_left(what):
    for _ in range(400):
        left = alive()
        if not left:
            break
        time.sleep(0.05)
    expect(not left, f"seed {SEED}, {what}: processes are left: {left}")
    expect(os.listdir(path("t")) == [], f"seed {SEED}, {what}: TMPDIR has {os.listdir(path('t'))}")
    for name in os.listdir(path("out")):
        file = path(f"out/{name}")
        expect(name in ("made.h5", "record.json", "minimal.h5"), f"seed {SEED}, {what}: {name} is left")
        if name == "made.h5":
            with open(file, "rb") as stream:
                expect(stream.read() == good, f"seed {SEED}, {what}: half a fixture")
        elif name == "record.json":
            with open(file) as stream:
                expect(json.load(stream)["exit_code"] == 0, f"seed {SEED}, {what}: half a record")
        else:
            with h5py.File(file) as f:
                expect("layers/0/x" in f, f"seed {SEED}, {what}: half a problem")


def start(command):
    return subprocess.Popen([PROGRAM, *command], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def started(command):
    """Runs it until its worker is there."""
    process = start(command)
    for _ in range(60000):
        if any(b"\0worker\0" in line for line in alive()):
            return process
        time.sleep(0.001)
    sys.exit("the worker did not start")


def kill(process, number, what):
    process.send_signal(number)
    code = process.wait(60)
    expect(code in (-number, 0, 1), f"seed {SEED}, {what}: {code}")
    nothing_left(what)
    return code


for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)  # nohup has it ignored
    expect(kill(started(HANG), number, signal.Signals(number).name) == -number, f"{number} must end it")
for kill_number in range(KILLS):
    # The first of the two starts anywhere, also over files that an earlier one left; the second as its worker starts.
    delay = generator.uniform(0, 0.5)
    command = COMMANDS[kill_number // 2 % len(COMMANDS)]
    if kill_number % 2:
        delay /= 10
        process = started(HANG)
    else:
        if generator.random() < 0.5:
            for name in os.listdir(path("out")):
                os.remove(path(f"out/{name}"))
        process = start(command)
    time.sleep(delay)
    kill(process, signal.SIGKILL, f"kill {kill_number} after {1000 * delay:.1f} ms of {command[0]}")

# What a kernel started ends with it, not with the program only.
run(*HANG[:-2], env={**environment, "GAUGEBLOCK_TEST_RETURNS": "1"}, code=1)
nothing_left("a kernel that returned")

# On a file system without nameless files a killed run may leave a hidden one, named after its target, which the next
# run removes.
environment |= {"LD_PRELOAD": TMPFILE_FAULT, "ASAN_OPTIONS": "verify_asan_link_order=0"}
made = path("out/made.h5")
for delay in [generator.uniform(0, 0.5) for _ in range(KILLS // 4)]:
    process = start(MAKE)
    time.sleep(delay)
    process.send_signal(generator.choice((signal.SIGKILL, signal.SIGTERM)))
    process.wait(60)
    for name in set(os.listdir(path("out"))) - {"record.json", "minimal.h5"}:
        expect(name == "made.h5" or (name.startswith(".made.h5.") and name.endswith(".tmp")), name)
    if os.path.exists(made):
        with open(made, "rb") as stream:
            expect(stream.read() == good, "half a file")
        os.remove(made)
for name in (".made.h5.0123abcd.tmp", ".record.json.0123abcd.tmp"):
    with open(path(f"out/{name}"), "wb") as stream:
        stream.write(b"half")
    os.utime(path(f"out/{name}"), (1, 1))
run(*MAKE, env=environment)
run(*COMMANDS[2], env=environment)
for name in os.listdir(path("out")):
    expect("0123abcd" not in name, f"the next run removes what a killed one left: {name}")
run(*HANG[:-2], env={**environment, "GAUGEBLOCK_TEST_RETURNS": "1"}, code=1)
expect(os.listdir(path("t")) == [], "a worker's files lose their names at once")
