# SPDX-License-Identifier: Apache-2.0
"""An interrupted verify ends its worker and leaves no folder in TMPDIR; the folder of a killed one goes with the next."""
import os
import signal
import subprocess
import time

from program import FAULTS, PROGRAM, expect, path, run, small

fixture = small()
os.mkdir(path("t"))
environment = {**os.environ, "TMPDIR": path("t")}
arguments = [PROGRAM, "verify", fixture, "--subject", FAULTS, "--kernel", "faults/hang"]


def hanging():
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    for _ in range(600):
        if any(os.path.exists(path(f"t/{name}/stderr")) for name in os.listdir(path("t"))):
            return process
        time.sleep(0.1)
    raise SystemExit("the worker did not start")


for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    process = hanging()
    process.send_signal(number)
    expect(process.wait(60) == -number, f"{number}: {process.returncode}")
    expect(os.listdir(path("t")) == [], f"{number}: {os.listdir(path('t'))}")

process = hanging()
process.kill()
process.wait()
left, = os.listdir(path("t"))
os.utime(path(f"t/{left}"), (1, 1))
os.mkdir(path("t/gaugeblock-run-no"))
run("verify", fixture, env=environment)
expect(os.listdir(path("t")) == ["gaugeblock-run-no"], f"the next run removes it, and nothing else: {os.listdir(path('t'))}")

# The folder of a run that is under way stays.
process = hanging()
busy = [name for name in os.listdir(path("t")) if name != "gaugeblock-run-no"]
os.utime(path(f"t/{busy[0]}"), (1, 1))
run("verify", fixture, env=environment)
expect(busy[0] in os.listdir(path("t")), "a folder in use was removed")
process.terminate()
process.wait(60)
