# SPDX-License-Identifier: Apache-2.0
"""The program by several processes of MPI or, where there is no mpirun or a build without MPI, by processes that
tests/faults/forked.c begins: what needs mpirun itself asks for MPI."""
import os
import shutil
import subprocess

from program import PROGRAM, folder

MPI = bool(shutil.which("mpirun")) and os.path.exists(os.path.join(os.path.dirname(PROGRAM), "gaugeblock-mpi"))
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
               "OMPI_MCA_hwloc_base_binding_policy": "none", "ASAN_OPTIONS": "detect_leaks=0"}  # Open MPI's own
FORKED = os.path.join(folder.name, "forked", "gaugeblock")
if not MPI:
    print("no mpirun, or a build without MPI (Debian: openmpi-bin, libopenmpi-dev): processes without it, and a part of the test")
    os.mkdir(os.path.dirname(FORKED))
    shutil.copy(PROGRAM, FORKED)
    os.symlink(os.environ["FORKED"], FORKED + "-mpi")


def command(processes, *arguments):
    """`gaugeblock arguments` by so many processes: words and their environment."""
    if MPI:
        return ["mpirun", "-n", str(processes), PROGRAM, *map(str, arguments)], ENVIRONMENT
    return [FORKED, *map(str, arguments)], {**ENVIRONMENT, "OMPI_COMM_WORLD_SIZE": str(processes)}


def mpirun(processes, *arguments, timeout=120, **environment):
    """The same, finished."""
    words, own = command(processes, *arguments)
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, env={**own, **environment})


def said_by(done):
    """The lines of the program on stderr, without those of mpirun."""
    return [line for line in done.stderr.splitlines() if line.startswith("gaugeblock")]
