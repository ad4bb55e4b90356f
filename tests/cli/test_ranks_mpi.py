# SPDX-License-Identifier: Apache-2.0
"""gaugeblock verify by several processes of MPI: the same bits for any number of them; what processes send wrong is
found, and one that dies or hangs ends the run in time. Some of it needs mpirun and a build with MPI."""
import json
import os
import re
import shutil
import subprocess
import time

from mpirun import ENVIRONMENT, MPI, mpirun, said_by
from program import ALL, PROGRAM, SANITISED, expect, own_code, path, run
from published import Published

ENVIRONMENT["OMPI_MCA_odls_base_sigkill_timeout"] = "0"  # of others, where one ends: two seconds less each time


def make(name, operator, *arguments, shape="64,6,256"):
    run("make", path(name), "--operator", operator, "--shape", shape, "--ranks", 5, "--tokens", 8, *arguments)
    return path(name)


SENT = make("sent.h5", "dispatch", "--routing", "holes", "--placement", "random")
SUMS = make("sender.h5", "combine", "--accumulation", "sender")
FIXTURES = [SENT, make("sent8.h5", "dispatch", "--recipe", "fp8g128.deepseek/1", "--empty-ranks", 2),
            make("one.h5", "dispatch", "--placement", "one"), make("receiver.h5", "combine", "--routing", "holes", shape="64,1,256"), SUMS,
            make("node.h5", "combine", "--accumulation", "node", "--ranks-per-node", 2, "--routing", "holes")]
LAYERS = ((), ("--format", "fp8", "--activations", "fp8")) + ALL * (
    ("--format", "mxfp4", "--routing", "holes"), ("--format", "nvfp4", "--activations", "nvfp4", "--generated"),
    ("--format", "bf16", "--data", "edge"))
TOKENS = 5 if ALL else 2
for number, words in enumerate(LAYERS): # of fewer experts and tokens than some numbers of processes
    run("make", path(f"layer{number}.h5"), "--shape", "7,2,256,128", "--tokens", TOKENS, "--layers", 2, *words)
    FIXTURES.append(path(f"layer{number}.h5"))
run("import", Published("gpt-oss-mxfp4").write("oss"), path("oss.h5"), "--tokens", TOKENS) # experts with biases
FIXTURES.append(path("oss.h5"))


def cases_of(file):
    """Of a record: what must be the same for any number of processes."""
    with open(file) as stream:
        record = json.load(stream)
    for case in record["cases"]:
        del case["seconds"], case["repro"]
    return record["cases"], record.get("processes", 1)


def without_stages(case):
    """A case, and of layers what does not depend on the intermediate, which several processes do not hand out."""
    if "layers" not in case["fixture"]:
        return case
    hashes = [layer["output_sha256"] for layer in case["metrics"]["layers"]]
    expect(len(hashes) == case["fixture"]["layers"] == 2, str(case["metrics"]))
    return case["subject"], case["verdict"], case["checks"]["bits"]["mismatching"], hashes


# The same as by one process, whether there are more of them than ranks or fewer.
alone = run("verify", *FIXTURES, "-o", path("alone.json"))
wanted, count = cases_of(path("alone.json"))
expect(count == 1 and len(wanted) >= len(FIXTURES), "one process")
several = []
for processes in (1, 2, 3, 5, 8) if ALL else (2, 3):
    done = mpirun(processes, "verify", *FIXTURES, "-o", path("record.json"), "-o", path("record.md"))
    expect(done.returncode == 0 and not done.stderr, f"{processes} processes: {done.returncode} {done.stderr}")
    found, count = cases_of(path("record.json"))
    expect([without_stages(case) for case in found] == [without_stages(case) for case in wanted],
           f"{processes} processes have other results than one")
    expect(count == processes, f"{processes} processes, of which the record has {count}")
    if processes == 1:
        expect(found == wanted and done.stdout == alone.stdout, f"mpirun of one process is another run:\n{done.stdout}")
        continue
    end = f"Computed by {processes} processes of MPI.\n"
    expect(done.stdout.endswith(end), done.stdout)
    several.append((found, done.stdout.removesuffix(end)))
    expect(several[-1] == several[0], f"{processes} processes have other figures than fewer:\n{done.stdout}")

# What goes wrong on the way; a few of it unless ALL. Sanitizers are to be loaded first, so that they see none of it.
WRONG = [
    ("address", SENT, 1, "has arrived twice"),
    ("hang", SENT, 5, "process 2 of 3 has not answered within the time limit"),
    ("flip", SUMS, 1, "output: "),
    ("flip", SENT, 1, "codes: "),
    ("flip", path("layer0.h5"), 1, "differ"),
    *[("drop", SUMS, 5, "process 2 of 3 has not answered within the time limit")] * MPI,
]
DEAD = [("die", 2, 137, "rank 2 with"), ("die", 0, 137, "rank 0 with"),
        ("hang", 0, 5, "process 1 of 3: process 0 of 3 has not answered within the time limit")]
for fault, fixture, code, words in [] if SANITISED else WRONG[:None if ALL else 2]:
    began = time.monotonic()
    done = mpirun(3, "verify", fixture, SENT, "--timeout", 1, "-o", path("wrong.json"), LD_PRELOAD=os.environ.get("MPI_FAULT", ""),
                  GB_FAULT_MPI=fault, GB_FAULT_MPI_PROCESS="2")
    with open(path("wrong.json")) as stream:
        record = json.load(stream)
    first = record["cases"][0]
    expect(done.returncode == record["exit_code"] == first["exit_code"] == code, f"{fault}: {done.returncode}: {done.stderr}")
    expect(words in first["reason"] and words in done.stdout, f"{fault}: {first['reason']}\n{done.stdout}")
    expect(time.monotonic() - began < 10, f"{fault}: {time.monotonic() - began} s")
    if code == 5: # behind it nothing is computed
        expect("a process has not answered before" in record["cases"][-1]["reason"] and
               record["cases"][-1]["verdict"] == "NOT_RUN", record["cases"][-1]["reason"])
        continue
    expect(record["cases"][-1]["verdict"] == "PASS", f"behind {fault}: {record['cases'][1]['reason']}")
    expect(first["repro"].startswith("mpirun -n 3 gaugeblock verify "), first["repro"])
    if ALL and MPI:
        again = subprocess.run(["sh", "-c", first["repro"]], env={**ENVIRONMENT, "PATH": os.path.dirname(PROGRAM) + ":" +
                               os.environ["PATH"]}, capture_output=True, text=True)
        expect(again.returncode == 0, f"{first['repro']}: without the fault {again.returncode}\n{again.stderr}")
for fault, process, code, words in [] if SANITISED or not MPI else DEAD[:None if ALL else 1]:
    done = mpirun(3, "verify", SENT, "--timeout", 2, "-o", path("died.json"), LD_PRELOAD=os.environ["MPI_FAULT"],
                  GB_FAULT_MPI=fault, GB_FAULT_MPI_PROCESS=str(process))
    expect(done.returncode == code and words in done.stderr, f"{fault} {process}: {done.returncode}: {done.stderr}")
    expect(not os.path.exists(path("died.json")) and not [name for name in os.listdir(path("")) if "tmp" in name or "part" in name],
           f"{fault} {process}: leaves {os.listdir(path(''))}")

# Memory that is short in one process: all end, each with a reason.
OWN = own_code(PROGRAM + "-mpi") if MPI else {}


def short(fixture, place):
    words = ["verify", fixture, "--timeout", "5"]
    fault = {"LD_PRELOAD": os.environ["MEMORY_FAULT"], "GAUGEBLOCK_FAULT_MEMORY": place, **OWN}
    return subprocess.run(["mpirun", "-n", "1", PROGRAM, *words, ":", "-n", "1", "env",
                           *(f"{name}={value}" for name, value in fault.items()), PROGRAM, *words], env=ENVIRONMENT,
                          capture_output=True, text=True, timeout=60)


for fixture in (FIXTURES[1], FIXTURES[5], path("layer1.h5")) if ALL and MPI and not SANITISED else ():
    places = int(re.search(r"places that ask for memory: (\d+)", short(fixture, 0).stderr)[1])
    expect(places > 20, f"{fixture}: {places} places")
    for place in range(1, places + 1, 3):
        began = time.monotonic()
        done = short(fixture, place)
        expect(done.returncode in (2, 3, 5) and time.monotonic() - began < 5 and
               (said_by(done) if done.returncode != 3 else "no memory" in done.stdout),
               f"{fixture}, place {place}: {done.returncode}: {done.stdout}{done.stderr}")

if MPI and not SANITISED: # a quick one: the first of what is sent
    done = short(FIXTURES[1], 2)
    expect(done.returncode == 5 and said_by(done) == ["gaugeblock: process 1 of 2: no memory for what is sent and received"],
           f"{done.returncode}: {done.stderr}")

# Bad input, and what is not computed by several processes.
run("make", path("layer.h5"), "--shape", "8,3,96,48", "--format", "nvfp4", "--tokens", "9")
for arguments, words in (((path("missing.h5"),), "missing.h5: cannot open"),
                         ((SENT, "--outputs", SENT), "--outputs is for one process: start it without mpirun"),
                         ((), "name at least one fixture"),
                         ((SENT, "--batch", "8"), "the tokens of all ranks, 40"))[slice(None) if ALL else slice(1, 2)]:
    done = mpirun(2, "verify", *arguments)
    expect(done.returncode == 2 and len(said_by(done)) == 1 and words in said_by(done)[0], f"{done.returncode}: {done.stderr}")
for arguments, words in (((path("layer.h5"), "--kernel", "cpu/nvfp4-gate-up"), "cpu/nvfp4-gate-up runs without mpirun"),
                         ((SENT, "--subject", os.environ["ONE_RANK"], "--kernel", "dispatch-right"),
                          "dispatch-right runs without mpirun"),
                         ((SENT, "--kernel", "cuda/dispatch-tokens"), "no kernel matches"))[:None if ALL else 1]:
    done = mpirun(2, "verify", *arguments)
    expect(done.returncode == 3 and words in done.stdout, f"{arguments}: {done.returncode}: {done.stdout}{done.stderr}")
if MPI:
    done = subprocess.run(["mpirun", "-n", "1", PROGRAM, "verify", SENT, ":", "-n", "1", PROGRAM, "verify", SUMS],
                          env=ENVIRONMENT, capture_output=True, text=True)
else:
    done = mpirun(2, "verify", SENT, GB_FAULT_MPI="argument", GB_FAULT_MPI_PROCESS="1")
expect(done.returncode == 2 and "process 1 of 2 was started with other arguments than process 0" in done.stderr, done.stderr)

# Without the program that speaks MPI nothing is verified N times; a job of one process needs none.
os.mkdir(path("bin"))
shutil.copy(PROGRAM, path("bin/gaugeblock"))
for size, code in (("2", 2), ("1", 0)):
    done = subprocess.run([path("bin/gaugeblock"), "verify", SENT], env={**ENVIRONMENT, "PMI_SIZE": size},
                          capture_output=True, text=True)
    expect(done.returncode == code and ("gaugeblock-mpi is not beside it" in done.stderr) == (code == 2), done.stderr)
