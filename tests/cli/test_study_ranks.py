# SPDX-License-Identifier: Apache-2.0
"""gaugeblock study by several ranks of MPI: the same results for any number of them, also where one was killed and the
study gone on with. Some of it needs mpirun and a build with MPI."""
import os
import random
import shutil
import signal
import subprocess
import time

import h5py

from mpirun import ENVIRONMENT, MPI, command, mpirun, said_by
from program import ALL, PROGRAM, expect, path

SEED = 20261
LAYERS = 18 if ALL else 9  # of all seeds
SEVERAL = 3 if ALL else 2  # ranks
STUDY = ["study", "drift", "--shape", "16,4,512,256" if ALL else "16,4,256,128", "--layers", "6" if ALL else "3", "--tokens", "5",
         "--seeds", "3", "--paths", "mxfp8.fma32,nvfp4.fma32"]


def content(file):
    """Layers that are done, whether that is all, and the hash."""
    with h5py.File(file) as f:
        return f["cases/0"].attrs["done"], f.attrs["finished"], f.attrs["content_sha256"].decode()


def start(ranks, *arguments):
    words, environment = command(ranks, *STUDY, *arguments)
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def complete(ranks, *arguments):
    process = start(ranks, *arguments)
    out, err = process.communicate(timeout=300)
    expect(process.returncode == 0 and not err, f"{ranks} ranks {arguments}: {process.returncode} {err}")
    return out


def ranks_of(launcher):
    """The processes of the ranks, by number."""
    found = {}
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat") as stat, open(f"/proc/{entry}/environ", "rb") as environment:
                parent = int(stat.read().rsplit(")", 1)[1].split()[1])
                words = dict(word.split(b"=", 1) for word in environment.read().split(b"\0") if b"=" in word)
        except (OSError, ValueError):
            continue
        number = words.get(b"OMPI_COMM_WORLD_RANK", words.get(b"PMI_RANK"))
        if number is not None and (parent == launcher or b"PMI_RANK" in words):
            found[int(number)] = int(entry)
    return found


# Alone, and by several ranks: text and hash are the same.
alone = subprocess.run([PROGRAM, *STUDY, "-o", path("alone.h5")], env=ENVIRONMENT, capture_output=True, text=True)
expect(alone.returncode == 0, alone.stderr)
done, finished, wanted = content(path("alone.h5"))
expect(done == LAYERS and finished == 1, "alone")
for ranks in (1, 2, 4, 7) if ALL else (4,):  # 7: more than seeds, in groups of different size
    expect(complete(ranks, "-o", path("r.h5")) == alone.stdout, f"{ranks} ranks print something else")
    expect(content(path("r.h5"))[2] == wanted, f"{ranks} ranks have other results")

# A rank is killed at some moment: what was finished is there, and any number of ranks goes on with it.
choose = random.Random(SEED)
for killed, resumed in () if not MPI else ((choose.randrange(1, 4), 1), (0, 2), (choose.randrange(4), 4))[:None if ALL else 1]:
    file = path(f"killed{killed}{resumed}.h5")
    process = start(4, "-o", file)
    until = time.monotonic() + 60
    while not os.path.exists(file) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    time.sleep(choose.uniform(0.0, LAYERS / 12))
    processes = ranks_of(process.pid) if process.poll() is None else {}
    if killed in processes:
        os.kill(processes[killed], signal.SIGKILL)
    process.communicate(timeout=60)
    expect(killed not in processes or process.returncode != 0, f"seed {SEED}: mpirun saw no rank {killed} die")
    done, finished, _ = content(file)
    print(f"rank {killed} of 4 killed with {done} of {LAYERS} layers in the file")
    complete(resumed, "-o", file, "--resume")
    expect(content(file) == (LAYERS, 1, wanted), f"seed {SEED}: killed {killed} at {done} layers, resumed by {resumed}")
    expect(not [name for name in os.listdir(path("")) if "part" in name or "tmp" in name], "no half file is left")

# A file of several seeds that are begun is gone on with by one process.
process = start(SEVERAL if MPI else 1, "-o", path("stopped.h5"))
while not os.path.exists(path("stopped.h5")) and process.poll() is None:
    time.sleep(0.005)
time.sleep(LAYERS / 24)
process.send_signal(signal.SIGINT)
process.communicate(timeout=60)
again = subprocess.run([PROGRAM, *STUDY, "-o", path("stopped.h5"), "--resume"], env=ENVIRONMENT, capture_output=True,
                       text=True)
expect(again.returncode == 0 and again.stdout == alone.stdout and content(path("stopped.h5"))[2] == wanted, again.stderr)

# One that stopped within a seed is gone on with by several, of which one reads it.
for attempt in range(24):
    process = subprocess.Popen([PROGRAM, *STUDY, "-o", path("within.h5")], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not os.path.exists(path("within.h5")) and process.poll() is None:
        time.sleep(0.002)
    time.sleep(attempt * 0.01)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    if content(path("within.h5"))[0] % (LAYERS // 3): # layers of a seed
        break
    os.remove(path("within.h5"))
expect(os.path.exists(path("within.h5")), "no study stopped within a seed")
complete(SEVERAL, "-o", path("within.h5"), "--resume")
expect(content(path("within.h5")) == (LAYERS, 1, wanted), "stopped within a seed, resumed by several ranks")

# Bad input: one line, of one rank.
def refused(words, *arguments):
    done = mpirun(SEVERAL, "study", *arguments)
    lines = said_by(done)
    expect(done.returncode == 2 and len(lines) == 1 and words in lines[0], f"{done.returncode}: {done.stderr}")


refused("missing.h5", "drift", path("missing.h5"))
refused("sensitivity is not split", "sensitivity", path("missing.h5"), "--original", path(""))

# Without the program that speaks MPI nothing runs N times.
os.mkdir(path("bin"))
shutil.copy(PROGRAM, path("bin/gaugeblock"))
done = subprocess.run([path("bin/gaugeblock"), *STUDY], env={**ENVIRONMENT, "PMI_SIZE": "2"}, capture_output=True, text=True)
expect(done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "gaugeblock-mpi is not beside it" in done.stderr,
       done.stderr)
