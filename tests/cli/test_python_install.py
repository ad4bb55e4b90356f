# SPDX-License-Identifier: Apache-2.0
"""From the installation of the Python package to a verdict on a numpy function, by the four commands of docs/python.md:
in a fresh venv and an empty folder, with no clone and no other gaugeblock on PATH.

With the argument `pip` all four are run, pip compiles for as long as it takes a user, and what it installed is looked
at (needs the package index). Without it, what pip would put into the venv is put there from the build that is
tested."""

import os
import re
import resource
import shutil
import subprocess
import sys
import time

from blocks import blocks, run_commands
from program import PROGRAM, SOURCE, expect, path

SKIPPED = 77
install, moe, use, prints = [block for block in blocks("docs/python.md")][:4]
expect(
    len(install.commands() + use.commands()) == 4 and moe.kind() == "file" and prints.kind() == "prints",
    "docs/python.md",
)
work, venv = path("work"), path("venv")
os.mkdir(work)
environment = {
    "PATH": os.pathsep.join([path("tools"), "/usr/bin", "/bin"]),
    "HOME": path(""),
    "LC_ALL": "C.UTF-8",
    "TMPDIR": path(""),
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "SKBUILD_BUILD_DIR": path("build"),
    "CCACHE_DISABLE": "1",
}
environment.update(
    {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_", "http", "HTTP", "no_", "NO_"))}
)
os.mkdir(path("tools"))
os.symlink(os.environ["PYTHON"], os.path.join(path("tools"), "python3"))


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def by_pip():
    """The first two commands, in the clone."""
    if subprocess.run([os.environ["PYTHON"], "-c", "import ensurepip"], capture_output=True).returncode:
        skip("this Python has no ensurepip (Debian: python3-venv)")
    began = time.monotonic()
    for command, (code, said) in zip(
        install.commands(), run_commands(install.commands(), SOURCE, environment, path("shell"))
    ):
        if code and re.search("Failed to establish a new connection|Temporary failure in name resolution", said):
            skip("no package index can be reached")
        expect(code == 0, f"{command}: exit {code}\n{said}")
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"installed in {time.monotonic() - began:.0f} s, of which {spent.ru_utime + spent.ru_stime:.0f} s of CPU time"
    )
    expect(spent.ru_utime + spent.ru_stime < 2 * 120, "two quiet cores must be done in two minutes")


def by_hand():
    """The same venv, with Debian's numpy and cffi, from the build at hand."""
    subprocess.run([os.environ["PYTHON"], "-m", "venv", "--without-pip", "--system-site-packages", venv], check=True)
    site = subprocess.run(
        [f"{venv}/bin/python3", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    shutil.copytree(
        os.path.join(SOURCE, "python/gaugeblock"),
        os.path.join(site, "gaugeblock"),
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    subprocess.run(
        ["cmake", "--install", os.environ["BUILD"], "--prefix", os.path.join(site, "gaugeblock/native")],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with open(os.path.join(SOURCE, "python/pyproject.toml")) as stream:
        module, function = re.search(r'^gaugeblock = "(gaugeblock\.\w+):(\w+)"$', stream.read(), re.M).groups()
    script = os.path.join(venv, "bin/gaugeblock")
    with open(script, "w") as stream:
        stream.write(f"#!{venv}/bin/python3\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    os.chmod(script, 0o755)


def after(*commands):
    """What these commands print in the venv, each of which must end with exit code 0."""
    text = ""
    shell = {**environment, "PATH": f"{venv}/bin{os.pathsep}{environment['PATH']}"}
    for command, (code, said) in zip(commands, run_commands(commands, work, shell, path("shell-after"))):
        expect(code == 0, f"{command}: exit {code}\n{said}")
        text += said
    return text


by_pip() if sys.argv[1:] == ["pip"] else by_hand()
with open(os.path.join(work, moe.value()), "w") as stream:
    stream.write(moe.text)
said = after(*use.commands())
expect("__main__.moe on layer.h5: PASS" in said, said)
expect(sorted(os.listdir(work)) == ["layer.h5", "moe.py"], f"files were left: {os.listdir(work)}")

# The command, the module and the attribute are of one version, and the program is the package's own.
version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
expect(after("gaugeblock --version") == version == after("python3 -m gaugeblock --version"), version)
said = after('python3 -c "import gaugeblock, gaugeblock.native as n; print(gaugeblock.__version__, n.prefix())"')
found, prefix = said.split()
expect(found == version.split()[1].rstrip(",") and prefix.startswith(venv), said)
expect(os.path.exists(os.path.join(os.path.dirname(prefix), "py.typed")), "no py.typed")

# A subject in C needs the header alone.
shutil.copy(os.path.join(SOURCE, "docs/first_kernel.c"), work)
said = after(
    "gaugeblock make first.h5 --shape 4,2,64,32 --format mxfp4",
    "cc -shared -fPIC -I $(python3 -c 'import gaugeblock; print(gaugeblock.include())') -o first.so first_kernel.c -lm",
    "gaugeblock verify first.h5 --subject ./first.so",
)
expect("PASS: 1 of 1" in said, said)

if sys.argv[1:] == ["pip"]:
    files = sorted(
        os.path.relpath(os.path.join(folder, name), prefix) for folder, _, names in os.walk(prefix) for name in names
    )
    built = [name for name in files if not name.startswith("include/")]
    with_mpi = ["bin/gaugeblock-mpi"] if "bin/gaugeblock-mpi" in built else []  # where there is an MPI
    expect(built == ["bin/gaugeblock", *with_mpi, "lib/libgaugeblock.so"], str(files))
    names = subprocess.run(
        [f"{venv}/bin/pip", "show", "-f", "gaugeblock"], check=True, capture_output=True, text=True
    ).stdout
    expect("LICENSE" in names, names)
else:
    # Without a program there is one line, and no script that calls itself.
    shutil.rmtree(prefix)
    lone = subprocess.run(
        [f"{venv}/bin/gaugeblock", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**environment, "PATH": f"{venv}/bin"},
    )
    expect(
        lone.returncode == 1
        and lone.stderr.startswith("gaugeblock: no gaugeblock: install it")
        and lone.stderr.count("\n") == 1,
        lone.stderr,
    )
