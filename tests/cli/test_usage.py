# SPDX-License-Identifier: Apache-2.0
"""Bad usage: exit 2 and a line that says what to mend; help: exit 0 and an example."""
import fcntl
import os
import resource
import subprocess
import time

from kept import expect_kept
from program import ALL, CHECKPOINT, FAULTS, PROGRAM, SANITISED, TMPFILE_FAULT, expect, path, record, refused, run, small



def full(*arguments):
    """What cannot be printed is not exit 0."""
    with open("/dev/full", "w") as stream:
        done = subprocess.run([PROGRAM, *arguments], stdout=stream, stderr=subprocess.PIPE, text=True)
    expect(done.returncode == 2 and "standard output: No space left" in done.stderr, f"{arguments}: {done}")


fixture = small()
for number, command in enumerate(("list", "make", "import", "info", "inspect", "verify", "bench", "diff", "power", "vectors",
                                  "identify", "study", "report")):
    before, found, after = run(command, "--help").stdout.partition("xample")
    expect(found, f"{command} --help has no example")
    broken = [line for line in after.splitlines()[1:] if line and not line.startswith("  ") and not line.endswith(":")]
    expect(not broken, f"{command} --help breaks an example: {broken}")
    expect("--no-such-flag" in refused(command, "--no-such-flag"), command)
    refused(command)
    forms = [command, "--help"], [command, "-h"], [command, "-?"], ["help", command]
    for form in forms if ALL else [forms[number % 4]]:
        full(*form)
for which in ("formats", "recipes", "routers", "contracts", "kernels", "devices"):
    expect(len(run("list", which).stdout.splitlines()) > 1, which)
expect("Example" in run("--help").stdout, "help")
for arguments in (["--help"], ["-h"], ["help"], ["--version"], ["list", "formats"], ["info", fixture]):
    full(*arguments)
refused("no-such-command")
# OpenMP says at each start of the program how long its threads spin: not at all, but where the environment says so.
for policy, starts, spins in ((None, 2, False), ("active", 1, True), ("passive", 1, False)):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {"OMP_DISPLAY_ENV": "verbose"} | ({"OMP_WAIT_POLICY": policy} if policy else {})
    said = subprocess.run([PROGRAM, "list", "formats"], capture_output=True, text=True, env=environment, check=True).stderr
    found = [int(line.split("'")[1]) for line in said.splitlines() if "GOMP_SPINCOUNT" in line]
    expect(len(found) == starts and (found[-1] > 0) == spins, f"{policy}: {found}")
# So does OpenBLAS, which says nothing: what the program was last started with, and what a process that it starts has.
ROOT = os.geteuid() == 0
def environments(variables):
    others = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "OPENBLAS_THREAD_TIMEOUT")}
    own, theirs = {}, set()
    with subprocess.Popen([PROGRAM, "verify", fixture, "--kernel", "cpu/nvfp4-layer"], stdout=subprocess.DEVNULL,
                          env=others | variables) as process:
        while process.poll() is None:
            own = environment_of(process.pid) or own
            with open(f"/proc/{process.pid}/task/{process.pid}/children") as stream:
                begun = [environment_of(child) for child in stream.read().split()]
            theirs |= {of.get("OPENBLAS_THREAD_TIMEOUT") for of in begun if of and "GAUGEBLOCK_WAITS" not in of} # beyond fork
            time.sleep(0.0005)
    return own, theirs
def environment_of(process):
    """Empty if it is gone, or is no longer seen by a user who is not root: the program hides itself from what it judges."""
    try:
        with open(f"/proc/{process}/environ") as stream:
            return dict(line.split("=", 1) for line in stream.read().split("\0") if "=" in line)
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return {}
for variables, kept in (({}, "01"), ({"OMP_WAIT_POLICY": "passive"}, "1"), ({"OPENBLAS_THREAD_TIMEOUT": "20"}, "0")):
    for _ in range(20): # a process may be gone before it is looked at
        own, theirs = environments(variables)
        if theirs or not ROOT:
            break
    wanted = {"OMP_WAIT_POLICY": "passive", "OPENBLAS_THREAD_TIMEOUT": "4", "GAUGEBLOCK_WAITS": kept} | variables
    found = {name: own.get(name) for name in wanted}
    expect(found == wanted or not ROOT, f"{variables}: started with {found}")
    expect(theirs == {variables.get("OPENBLAS_THREAD_TIMEOUT")} or not ROOT, f"{variables}: others started with {theirs}")
refused("list", "nonsense")

shape = ["make", path("x.h5"), "--shape"]
for bad in ("8,3,96", "8,3,96,48,1", "8,9,96,48", "0,0,96,48", "8,3,-96,48", "8,3,96,4x", "8,3,40,48", "",
            "99999999999999999999,3,96,48", "8,3,1048577,48"):
    refused(*shape, bad)
for flag, bad in (("--format", "fp3"), ("--layers", "0"), ("--tokens", "-1"), ("--seed", "x"), ("--data", "none")):
    refused(*shape, "8,3,96,48", flag, bad)
refused("make", path("no/such/folder/x.h5"), "--shape", "8,3,96,48")
expect(not os.path.exists(path("x.h5")), "a failed make leaves no file")

for bad in ("0", "10", "3,2", "1,,2", "x", "1,", "-1", "4294967297"):
    refused("verify", fixture, "--batch", bad)
for arguments in (["--expect", "x"], ["--timeout", "0"], ["-o", path("r.txt")], ["--order", "fma32/1"],
                  ["--outputs", "a", "--kernel", "b"], ["--subject", path("missing.so")], ["--subject", fixture],
                  ["-o", path("no/such/folder/r.json")]):
    refused("verify", fixture, *arguments)
os.symlink(TMPFILE_FAULT, path("without.so"))
expect("exports no function gb_kernels" in refused("verify", fixture, "--subject", path("without.so")), "a library without kernels")
# No value is silently replaced by a later one.
for arguments in (["verify", fixture, "--gate", "cosine-0.99", "--gate", "default"], ["verify", fixture, "--expect=1", "--expect=2"],
                  ["power", fixture, "--gate", "default", "--gate", "cosine-0.99"], ["power", fixture, "-g", "default", "-gdefault"],
                  [*shape, "8,3,96,48", "--seed", "1", "--seed", "2"], [*shape, "8,3,96,48", "--shape", "8,3,96,48"],
                  ["import", CHECKPOINT, path("x.h5"), "--tokens", "4", "--tokens", "5"],
                  ["identify", "a", "b", "-o", "c.json", "--record", "d.json"]):
    expect("is given twice" in refused(*arguments), str(arguments))
# Nor is an option guessed from its beginning.
for arguments in (["--exp", "1"], ["--exp=1"], ["--batc", "1"], ["--output", path("r.json")], ["--output=" + path("r.json")]):
    expect("no such option; there is --" in refused("verify", fixture, *arguments), str(arguments))
expect("no such option" in refused("make", path("x.h5"), "--shape", "8,3,96,48", "--gen"), "--gen")
for command, names in (("list", "subject timeout"), ("info", "coverage"), ("inspect", "original layers record"),
                       ("identify", "scales record"), ("power", "gate activations record"), ("report", "page title")):
    for option in names.split():
        word = f"--{option[:-1]}" + "=1" * (option != "coverage")
        expect(f"there is --{option};" in refused(command, word), f"{command} {word}")
run("verify", fixture, "--kernel", "cpu/nvfp4-layer", "--kernel", "cpu/nvfp4-down", "-o", path("a.json"), "-o", path("b.md"))
expect("either" in refused(*shape, "8,3,96,48", "--stored", "--generated"), "two ways to keep weights")
expect("--router: name a rule" in refused(*shape, "8,3,96,48", "--router", ""), "a router without a name")
refused("verify", path("missing.h5"))
for arguments in (["make", path("x.h5"), "--shape", "8,\n3"], ["verify", "a\nb.h5"], ["info", "a\nb"], ["diff", "a\nb", "c"]):
    refused(*arguments)
refused("verify", __file__)

# A bad fixture costs the others nothing, and is a case of the record.
one = record(path("missing.h5"), fixture, __file__, "--expect", "1", "-o", path("r.xml"), code=2)
expect([case["verdict"] for case in one["cases"]] == ["BAD_INPUT", "PASS", "BAD_INPUT"], str(one["cases"]))
expect(one["verdict"] == "BAD_INPUT" and one["exit_code"] == 2 and one["summary"]["judged"] == 1, str(one["summary"]))
expect("missing.h5: cannot open" in one["cases"][0]["reason"], one["cases"][0]["reason"])
expect(one["cases"][0]["fixture"]["path"] == path("missing.h5"), str(one["cases"][0]))
with open(path("r.xml")) as stream:
    text = stream.read()
expect('errors="2"' in text and "batch 0" not in text, f"JUnit has two errors, of no batch: {text}")

# What is refused is said once, and has no batch.
for arguments in ([path("missing.h5")], [fixture, path("missing.h5")], [fixture, "--outputs", path("missing.npy")]):
    done = run("verify", *arguments, "-o", path("r.md"), code=2)
    with open(path("r.md")) as stream:
        text = stream.read()
    expect(done.stderr.count("\n") == 1 and (done.stdout + done.stderr).count("cannot") == 1, f"{done.stdout}{done.stderr}")
    expect(", 1 refused" in done.stdout and "batch 0" not in done.stdout + text, done.stdout + text)

refused("import", path("missing"), path("x.h5"))
for arguments in (["--layers", "0-9"], ["--layers", "2"], ["--layers", "1-0"], ["--layers", "a"], ["--tokens", "0"],
                  ["--capture", path("missing")], ["--capture", __file__], ["--format", "int3"]):
    refused("import", CHECKPOINT, path("x.h5"), *arguments)
refused("info", path("missing.h5"))
expect("top-3" in run("info", fixture).stdout, "info")

# Whole numbers: the ends of their ranges, and what lies beyond.
WHOLE = "give a whole number from {} to {}"
RANGES = (
    ("bench", "samples", 1, 31, WHOLE), ("bench", "timeout", 1, 1 << 20, WHOLE), ("make", "layers", 1, 1024, WHOLE),
    ("make", "tokens", 1, 1 << 16, WHOLE), ("make", "seed", 0, 2**64 - 1, WHOLE), ("make", "ranks", 1, 4096, WHOLE),
    ("make", "ranks-per-node", 1, 4096, WHOLE), ("make", "empty-ranks", 0, 4096, WHOLE), ("study", "layers", 1, 1024, WHOLE),
    ("study", "tokens", 1, 4096, WHOLE), ("study", "seeds", 1, 256, WHOLE), ("study", "seed", 0, 2**64 - 257, WHOLE),
    ("import", "tokens", 1, 1 << 16, WHOLE), ("verify", "accumulator-bits", 8, 53, WHOLE),
    ("verify", "expect", 0, 2**31 - 1, "give a whole number"),
    ("verify", "timeout", 1, 1 << 20, "give a number of seconds from {} to {}"))
for at, (command, option, low, high, words) in enumerate(RANGES):
    words = words.format(low, high)
    for number in (*(["x"] if at % 3 == 0 else []), low - 1, high + 1):
        said = refused(command, f"--{option}={number}")
        expect(f"--{option} {number}: {words}" in said, said)
for command in sorted({row[0] for row in RANGES}):
    for end in (2, 3):
        ends = [f"--{row[1]}={row[end]}" for row in RANGES if row[0] == command]
        said = refused(command, *ends, "--none")
        expect("--none" in said and "give a" not in said, f"{ends}: {said}")

# What of verify does not go together, and what it would write over.
os.symlink(FAULTS, path("subject.json"))
for name in ("gate.json", "outputs.json"):
    with open(path(name), "w") as stream:
        stream.write('{"schema": "gaugeblock-gate/2", "nmse": 1}')
OUTPUTS, READ = ["--outputs", path("outputs.json")], ": is an input of this command"
for words, said in (
        ([fixture, *OUTPUTS], "--outputs goes with one fixture"), ([*OUTPUTS, "--kernel", "b"], "--outputs goes with one fixture"),
        ([*OUTPUTS, "--subject", FAULTS], "--outputs goes with one fixture"),
        (["--order", "fma32/1"], "go with --outputs"), (["--rounding", "slot=bf16"], "go with --outputs"),
        (["--accumulator-bits", 24], "go with --outputs"), (["--activations", "bf16"], "go with --outputs"),
        (["--operator", "down"], "--operator and --limits go with one --outputs"), (["--limits", path("l.h5")], "--operator and --limits go"),
        ([*OUTPUTS, *OUTPUTS, "--limits", path("l.h5")], "--operator and --limits go"), (["--scales", "s"], "--scales and --open-silu go"),
        ([*OUTPUTS, *OUTPUTS, "--open-silu"], "--scales and --open-silu go"), ([*OUTPUTS, "--minimise", path("m.h5")], "--minimise goes without"),
        ([*OUTPUTS, "--order", "fma32/1", "--rounding", "slot=bf16"], "--order claims every rounding"),
        ([*OUTPUTS, "--order", "fma32/1", "--accumulator-bits", 24], "--order claims every rounding"),
        (["--minimise", fixture], READ), ([*OUTPUTS, "--limits", fixture], READ), ([*OUTPUTS, "-o", path("outputs.json")], READ),
        (["--subject", FAULTS, "-o", path("subject.json")], READ), (["--gate", path("gate.json"), "-o", path("gate.json")], READ)):
    found = refused("verify", fixture, *words)
    expect(said in found, f"{words}: {found}")

# The same of study.
OURS, GENERATED, ORIGINAL = [fixture], ["--shape", "8,3,96,48"], ["--original", CHECKPOINT]
for words, said in (
        ([], "name drift, closeness or sensitivity, and a fixture"), (["drift"], "name drift, closeness or sensitivity, and a fixture"),
        *((["drift", *OURS, option, value], "go with generated weights, --model or --shape") for option, value in (
            ("--format", "nvfp4"), ("--layers", 2), ("--tokens", 2), ("--seeds", 2), ("--seed", 2), ("--outliers", 2), ("--routing-skew", 2))),
        (["drift", *OURS, "--subject", FAULTS], "--subject goes with --kernel"), (["drift", *OURS, "--resume"], "--resume goes with --record"),
        *((words, "--head goes with drift and one fixture") for words in (
            ["closeness", *OURS, "--head", "d"], ["drift", *OURS, *OURS, "--head", "d"], ["drift", *GENERATED, "--head", "d"])),
        *((["drift", *OURS, option, "d"], "--remedy and --exclude go with sensitivity") for option in (
            "--original", "--input-scales", "--activations", "--remedy", "--exclude")),
        *((words, "sensitivity needs one fixture and --original") for words in (
            ["sensitivity", *OURS], ["sensitivity", *OURS, *OURS, *ORIGINAL], ["sensitivity", *GENERATED, *ORIGINAL])),
        *((["sensitivity", *OURS, *ORIGINAL, option, path("x")], "go with drift and closeness") for option in (
            "-o", "--paths", "--table", "--kernel")),
        *((["drift", *OURS, option, fixture], READ) for option in ("-o", "--csv", "--table")),
        *((["sensitivity", *OURS, *ORIGINAL, option, fixture], READ) for option in ("--csv", "--exclude")),
        (["drift", *OURS, "--csv", path("x"), "--table", path("x")], "is to be written twice"),
        (["sensitivity", *OURS, *ORIGINAL, "--csv", path("x"), "--exclude", path("x")], "is to be written twice"),
        *((["drift", *OURS, option, path("no/such/x")], "cannot be written") for option in ("--csv", "--table")),
        *((["sensitivity", *OURS, *ORIGINAL, option, path("no/such/x")], "cannot be written") for option in ("--csv", "--exclude")),
        *((["drift", *GENERATED, f"--{option}", number], f"--{option} {number}: give a number from 1 to 65536") for option in (
            "outliers", "routing-skew") for number in ("0.99", "65537", "1x", "", "nan"))):
    found = refused("study", *words)
    expect(said in found, f"{words}: {found}")
for option in ("outliers", "routing-skew"):
    for number in (1, 65536):
        expect("give a number" not in run("study", f"--{option}={number}", "--none", code=2).stderr, f"--{option} {number}")

# Libraries that are none.
for library, words in ((path("none.so"), "no such subject library"), (os.path.dirname(path("none.so")), "no regular file")):
    expect(words in refused("list", "kernels", "--subject", library), library)

# Commands that others run: what they are given wrong. Standard input is the lifeline of a guarded one.
ends = os.pipe()
for words, said in ((["probe"], "gaugeblock probe: is run by other commands"), (["probe", fixture, "1", "2"], "1: "),
                    (["probe", fixture, "1", "2", "3", "x", "5", "6", ""], "x: is no size"),
                    (["probe", fixture, "codes", "", "1", "2", "3", "4", "5", "x"], "x: is no size"),
                    (["probe", fixture, "ranks", *map(str, range(10)), "x"], "x: is no size"),
                    (["probe", fixture, "rank", *map(str, range(10)), "x"], "gaugeblock probe: is run by other commands"),
                    # of 513 MiB, for which there is memory
                    (["probe", fixture, "ranks", *"8 1 513 262144 1 1 1 0 0 0 0".split()], f"{fixture}: /output: missing"),
                    (["guard"], "gaugeblock guard: is run by other commands"), (["guard", "none"], "gaugeblock guard: is run by other commands"),
                    (["guard", "table", "1", "2"], "gaugeblock guard table: is run by other commands"), (["guard", "table", "1"], ""),
                    (["guard", "worker"], "gaugeblock worker: is run by gaugeblock verify and bench"),
                    *(((["guard", "worker", "", FAULTS, "faults/none", "1", *mode], "gaugeblock worker: is run by gaugeblock verify and bench"))
                      for mode in (["timed"], ["timed", "0", "cold", "0"], ["timed", "32", "cold", "0"], ["timed", "1", "warm", "0"], ["runs", "1", "cold"], ["runs", "1", "cold", "0"],
                                   ["timed", "1", "cold"], ["timed", "1", "cold", "x"], ["timed", "1", "cold", "1099511627777"], ["timed", "1", "cold", "0", "0"], ["rank", "1"], ["rank", "1", "y", "z"],
                                   ["rank", "x", "y"], ["rank", "4294967296", "y"]))):
    done = run(*words, code=2, stdin=ends[0])
    expect((done.stdout + done.stderr).startswith(said), f"{words}: {done}")

# Without any environment, of which processes that are started have all but a few.
if not SANITISED:
    done = subprocess.run([PROGRAM, "verify", fixture, "--subject", FAULTS, "--kernel", "faults/none"], env={}, capture_output=True, text=True)
    expect(done.returncode == 0, done)

# Of memory a process that reads a file may have twice the file and what its arrays become, and 1 GiB beside what it has
# then. It is held where it says that there is nothing to read, since nobody reads that.
full_pipe = os.pipe()
os.write(full_pipe[1], bytes(fcntl.fcntl(full_pipe[1], fcntl.F_SETPIPE_SZ, 4096)))
unlimited = resource.getrlimit(resource.RLIMIT_AS)[0]
large, size = path("large"), 3 << 38
with open(large, "wb") as stream:
    stream.truncate(size)
layers = 3 * 70001 * (2 * 8 * 3001 + 2 * 2 * 5 * 4003)
codes = [2 * (70001 * 32000 + 70001 * 1000 * of_scale) for of_scale in (4, 1)]
rows, experts, output = 100000007, 3 * 100000003, 60000011 * 224
for words, arrays in (("", 0), (",3,70001,3001,4003,11,5,", layers), (",codes,,70001,32000,2,3,32,0", codes[0]),
                      (",codes,,70001,32000,2,1,32,0", codes[1]),
                      (",ranks,7,3,60000011,224,100000003,5,100000007,0,0,0,0", 4 * experts + rows * (4 + 2 * 224) + 3 * 4 * output),
                      (",ranks,7,3,60000011,224,100000003,5,100000007,2,2,32,1", 4 * experts + rows * (4 + 224 + 7) + 4 * output)):
    process = subprocess.Popen([PROGRAM, "probe", *(large + words).split(",")], stdout=full_pipe[1],
                               env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    limit, own, end = unlimited, 0, time.monotonic() + 20
    while not SANITISED and process.poll() is None and limit == unlimited and time.monotonic() < end:
        limit = resource.prlimit(process.pid, resource.RLIMIT_AS)[0]
        with open(f"/proc/{process.pid}/statm", encoding="ascii") as stream:
            own = int(stream.read().split()[0]) * resource.getpagesize() % size  # it may have mapped the file
        time.sleep(0.001)
    process.kill()
    process.wait()
    room = limit - 2 * size - 2 * arrays - (1 << 30)
    expect(SANITISED or own - (16 << 20) <= room <= own, f"{words}: {limit} bytes, of which {own} before, not {room}")
os.remove(large)

# A guard that has no descriptors left for a process to guard says so.
short = subprocess.run(["sh", "-c", f"ulimit -n 4; exec '{PROGRAM}' guard table 1 2"], capture_output=True, text=True, stdin=ends[0])
expect(short.returncode == 5 and short.stderr == "gaugeblock guard: cannot start a process: Too many open files\n", short)

# What tests/gpu/record.sh runs under a sanitizer: a kernel in a process of its own, report and outputs on 4 and 5.
report, outputs = path("report.json"), path("outputs.raw")
watched = subprocess.run(["sh", "-c", f"exec '{PROGRAM}' worker '{fixture}' '{FAULTS}' faults/one-element 3 4<>'{report}' 5>'{outputs}'"],
                         capture_output=True, text=True)
expect(watched.returncode == 0, watched)
with open(report) as stream:
    expect('"status": 0' in stream.read(), "worker")
expect(os.path.getsize(outputs) > 0, "outputs of the worker")

expect_kept()
