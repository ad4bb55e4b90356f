# SPDX-License-Identifier: Apache-2.0
"""Files that the user may not read or replace: one line, exit 2, and what was there stays. Root asks as another user, who need
not be able to reach the clone: that lies in a folder of mode 0700 here, as one in /root does."""
import glob
import os
import shutil
import subprocess
import sys

BUILD, SOURCE = os.environ["BUILD"], os.environ["SOURCE"]
ROOT = os.geteuid() == 0
HIDDEN = "GAUGEBLOCK_TEST_HIDDEN"
# In a mount namespace of its own: the folder that the clone lies in becomes an empty one that only root may enter, the
# clone (and a build folder elsewhere) is put back.
HIDE = """
set -e
mount --make-rprivate /
held=$(mktemp -d)
mount -t tmpfs -o mode=0755 none "$held"
mkdir "$held/source" "$held/build"
mount --rbind "$SOURCE" "$held/source"
mount --rbind "$BUILD" "$held/build"
mount -t tmpfs -o mode=0700 none "$(dirname "$SOURCE")"
mkdir -p "$SOURCE"
mount --rbind "$held/source" "$SOURCE"
mkdir -p "$BUILD"
mount --rbind "$held/build" "$BUILD"
umount -l "$held"
rmdir "$held"
exec "$@"
"""
if ROOT and HIDDEN not in os.environ:
    parents = (os.path.dirname(SOURCE), "/tmp")
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0 and len({*parents, "/"}) == 3:
        environment = {**os.environ, HIDDEN: "1", "TMPDIR": "/tmp"}
        os.execvpe("unshare", ["unshare", "-m", "sh", "-c", HIDE, "sh", sys.executable, "-B", *sys.argv], environment)
    print("skipped: a clone that only root can reach (needs unshare, and a clone neither in / nor in /tmp)")

from program import PROGRAM, expect, path, small

fixture = small("good.h5")
with open(fixture, "rb") as stream:
    good = stream.read()
program, options = PROGRAM, {}
if ROOT:
    expect(HIDDEN not in os.environ or os.stat(os.path.dirname(SOURCE)).st_mode & 0o777 == 0o700, "the clone must be hidden")
    os.mkdir(path("bin"))
    for file in (PROGRAM, *glob.glob(f"{BUILD}/libgaugeblock.so.*")):
        shutil.copy(file, path("bin"))
    program = path("bin/gaugeblock")
    options = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/",
               "env": {**os.environ, "LD_LIBRARY_PATH": path("bin")}}
    os.chmod(path("."), 0o755)


def ask(*arguments, code):
    """What the other user, or this one, gets."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True, **options)
    expect(done.returncode == code and len(done.stderr.splitlines()) == (code != 0), f"{arguments}: {done}")
    return done.stderr


ask("info", fixture, code=0)
if not ROOT:
    os.chmod(path("."), 0o555)
expect("good.h5" in ask("make", fixture, "--shape", "8,3,96,48", code=2), "what cannot be replaced is named")
os.chmod(path("."), 0o755)
with open(fixture, "rb") as stream:
    expect(stream.read() == good, "the old file was changed")
expect(sorted(os.listdir(path("."))) == (["bin"] if ROOT else []) + ["good.h5"], f"{os.listdir(path('.'))}")
os.chmod(fixture, 0)
expect("good.h5: cannot open: Permission denied" in ask("info", fixture, code=2), "what cannot be read is named")
