# SPDX-License-Identifier: Apache-2.0
"""A full disk: one line, no half file, and no kernel judged by what could not be written. Skipped without mount
namespaces."""
import json
import os
import subprocess
import sys

from program import PROGRAM, expect, path, small

if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
    print("skipped: a full disk needs unshare -m")
    sys.exit(77)
fixture = small("good.h5", "--seed", "5")
os.mkdir(path("disk"))
mount = f"mount -t tmpfs -o size=64k none {path('disk')} && exec {PROGRAM} make {path('disk/kept.h5')} " \
        "--shape 8,3,96,48 --tokens 9 --layers 2"
done = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, text=True)
expect(done.returncode == 2 and "No space left" in done.stderr and len(done.stderr.splitlines()) == 1, str(done))
# A TMPDIR without room costs nothing: what a kernel writes lies in memory.
mount = f"mount -t tmpfs -o size=4k none {path('disk')} && TMPDIR={path('disk')} {PROGRAM} verify {fixture} " \
        f"-o {path('full.json')} > {path('full.out')}; code=$?; ls -A {path('disk')}; exit $code"
done = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, text=True)
with open(path("full.json")) as stream:
    verdict = json.load(stream)["verdict"]
expect(done.returncode == 0 and not done.stdout and verdict == "PASS", f"{done}, {verdict}")
