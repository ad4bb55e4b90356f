# SPDX-License-Identifier: Apache-2.0
"""Finds libgaugeblock, its headers and the program, and binds the library.

The declarations are read from the headers that were installed with the library, so that no layout is written twice.
"""

import functools
import os
import pathlib
import re
import subprocess
import sys
import typing

import cffi

# By these the program knows that mpirun or srun started it (harness/run/processes.c).
LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
MODULES = ("gaugeblock_quantiser.h", "gaugeblock.h", "quant/quant.h", "fixtures/fixtures.h")


def _installed(folder: pathlib.Path) -> bool:
    """The program and the headers are there. A script of this package, which lies in a bin/ too, has no headers beside
    it."""
    return (folder / "bin" / "gaugeblock").exists() and (folder / "include" / "gaugeblock").is_dir()


@functools.lru_cache(maxsize=None)
def prefix() -> pathlib.Path:
    """The folder that holds bin/, include/ and lib/: GAUGEBLOCK_PREFIX, else the one that came with this package, else
    that of the program on PATH. FileNotFoundError if there is none."""
    named = os.environ.get("GAUGEBLOCK_PREFIX")
    if named:
        return pathlib.Path(named)
    bundled = [pathlib.Path(folder) / "native" for folder in sys.modules["gaugeblock"].__path__]
    on_path = [pathlib.Path(folder or ".").resolve().parent for folder in os.get_exec_path()]
    for folder in bundled + on_path:
        if _installed(folder):
            return folder
    raise FileNotFoundError("no gaugeblock: install it, or set GAUGEBLOCK_PREFIX to the folder it was installed in")


def program() -> str:
    """The path of the program `gaugeblock`. FileNotFoundError if it is not there."""
    path = prefix() / "bin" / "gaugeblock"
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: is {prefix()} where gaugeblock was installed?")
    return str(path)


def run(
    *arguments: typing.Union[str, "os.PathLike[str]"], folder: typing.Optional[str] = None
) -> "subprocess.CompletedProcess[str]":
    """What the program did with these arguments, its texts in `stdout` and `stderr`. folder: where it runs. In a process
    of MPI it is no other such process, but runs by itself."""
    words = [os.path.abspath(program()), *(os.fspath(argument) for argument in arguments)]
    alone = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    return subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, cwd=folder, env=alone)


def include() -> str:
    """The folder with gaugeblock.h, for a compiler's -I: what a kernel in C or C++ is built with (docs/kernels.md)."""
    return str(_one("include/gaugeblock"))


def version() -> str:
    """The version of the library and the program in use."""
    text = (_one("include/gaugeblock") / "gaugeblock.h").read_text(encoding="utf-8")
    return text.split('#define GB_VERSION "')[1].split('"')[0]


def _one(pattern: str) -> pathlib.Path:
    found = sorted(prefix().glob(pattern))
    if not found:
        raise FileNotFoundError(f"{prefix()}/{pattern} is not there: is this where gaugeblock was installed?")
    return found[0]


def declarations(text: str) -> str:
    """What remains of one of our headers for a parser of C declarations: no preprocessor, no comments, no linkage."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^#ifdef __cplusplus.*?^#endif$", "", text, flags=re.S | re.M)
    text = re.sub(r"^\s*#(?:.*\\\n)*.*$", "", text, flags=re.M)
    text = re.sub(r"__attribute__\(\(.*?\)\)\)", "", text, flags=re.S)
    return text.replace("GB_API", "")


@functools.lru_cache(maxsize=None)
def library() -> typing.Tuple[typing.Any, typing.Any]:
    """(ffi, lib): libgaugeblock and its declarations."""
    ffi = cffi.FFI()
    include = _one("include/gaugeblock")
    for module in MODULES:
        ffi.cdef(declarations((include / module).read_text(encoding="utf-8")))
    return ffi, ffi.dlopen(str(_one("lib*/**/libgaugeblock.so*")))


def check(status: int, error: typing.Any) -> None:
    """Raises what a status stands for; `error` is the struct gb_error the call filled."""
    ffi, lib = library()
    if status == lib.GB_OK:
        return
    message = ffi.string(error.message).decode("utf-8", "replace")
    if status == lib.GB_ENOMEM:
        raise MemoryError(message)
    if status == lib.GB_EIO:
        raise OSError(message)
    raise ValueError(message)
