# SPDX-License-Identifier: Apache-2.0
"""The program by several processes of MPI. Importing it ends a test with 77, skipped, where there is no mpirun or a build
without MPI."""
import os
import shutil
import subprocess
import sys

from program import PROGRAM

SKIPPED = 77
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
               "OMPI_MCA_hwloc_base_binding_policy": "none", "ASAN_OPTIONS": "detect_leaks=0"}  # Open MPI's own

if not shutil.which("mpirun") or not os.path.exists(os.path.join(os.path.dirname(PROGRAM), "gaugeblock-mpi")):
    print("skipped: no mpirun, or a build without MPI (Debian: openmpi-bin, libopenmpi-dev)")
    sys.exit(SKIPPED)


def mpirun(processes, *arguments, timeout=120, **environment):
    """`gaugeblock arguments` by so many processes, finished."""
    return subprocess.run(["mpirun", "-n", str(processes), PROGRAM, *map(str, arguments)], capture_output=True,
                          text=True, timeout=timeout, env={**ENVIRONMENT, **environment})


def said_by(done):
    """The lines of the program on stderr, without those of mpirun."""
    return [line for line in done.stderr.splitlines() if line.startswith("gaugeblock")]
