# SPDX-License-Identifier: Apache-2.0
"""Bad usage: exit 2 and a line that says what to mend; help: exit 0 and an example."""
import os

from program import CHECKPOINT, expect, path, run, small

fixture = small()
for command in ("list", "make", "import", "info", "verify", "diff"):
    expect("xample" in run(command, "--help").stdout, f"{command} --help has no example")
    run(command, "--no-such-flag", code=2)
    run(command, code=2)
for which in ("formats", "recipes", "routers", "contracts", "kernels", "devices"):
    expect(len(run("list", which).stdout.splitlines()) > 1, which)
expect("Example" in run("--help").stdout, "help")
run(code=2)
run("no-such-command", code=2)
run("list", "nonsense", code=2)

shape = ["make", path("x.h5"), "--shape"]
for bad in ("8,3,96", "8,3,96,48,1", "8,9,96,48", "0,0,96,48", "8,3,-96,48", "8,3,96,4x", "8,3,40,48", "",
            "99999999999999999999,3,96,48"):
    run(*shape, bad, code=2)
for flag, bad in (("--format", "fp3"), ("--layers", "0"), ("--tokens", "-1"), ("--seed", "x"), ("--data", "none")):
    run(*shape, "8,3,96,48", flag, bad, code=2)
run("make", path("no/such/folder/x.h5"), "--shape", "8,3,96,48", code=2)
expect(not os.path.exists(path("x.h5")), "a failed make leaves no file")

for bad in ("0", "10", "3,2", "1,,2", "x", "1,", "-1", "4294967297"):
    run("verify", fixture, "--batch", bad, code=2)
for arguments in (["--expect", "x"], ["--timeout", "0"], ["-o", path("r.txt")], ["--order", "fma32/1"],
                  ["--outputs", "a", "--kernel", "b"], ["--subject", path("missing.so")], ["--subject", fixture],
                  ["-o", path("no/such/folder/r.json")]):
    run("verify", fixture, *arguments, code=2)
run("verify", path("missing.h5"), code=2)
run("verify", __file__, code=2)
run("verify", fixture, path("missing.h5"), "-o", path("r.json"), code=2)
expect(not os.path.exists(path("r.json")), "bad input writes no record")

run("import", path("missing"), path("x.h5"), code=2)
for arguments in (["--layers", "0-9"], ["--layers", "1-0"], ["--layers", "a"], ["--tokens", "0"],
                  ["--capture", path("missing")], ["--capture", __file__], ["--format", "int3"]):
    run("import", CHECKPOINT, path("x.h5"), *arguments, code=2)
run("info", path("missing.h5"), code=2)
expect("top-3" in run("info", fixture).stdout, "info")
