# SPDX-License-Identifier: Apache-2.0
"""Finds libgaugeblock, its headers and the program, and binds the library.

The declarations are read from the headers that were installed with the library, so that no layout is written twice.
"""

import functools
import os
import pathlib
import re
import shutil

import cffi

MODULES = ("gaugeblock_quantiser.h", "gaugeblock.h", "quant/quant.h", "fixtures/fixtures.h")


@functools.lru_cache(maxsize=None)
def prefix():
    """The folder that holds bin/, include/ and lib/: GAUGEBLOCK_PREFIX, else the one that came with this package, else
    that of the program on PATH. FileNotFoundError if there is none."""
    named = os.environ.get("GAUGEBLOCK_PREFIX")
    if named:
        return pathlib.Path(named)
    bundled = pathlib.Path(__file__).parent / "native"
    if (bundled / "bin" / "gaugeblock").exists():
        return bundled
    program_on_path = shutil.which("gaugeblock")
    if program_on_path:
        return pathlib.Path(program_on_path).resolve().parent.parent
    raise FileNotFoundError("no gaugeblock: install it, or set GAUGEBLOCK_PREFIX to the folder it was installed in")


def program():
    """The path of the program `gaugeblock`. FileNotFoundError if it is not there."""
    path = prefix() / "bin" / "gaugeblock"
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: is {prefix()} where gaugeblock was installed?")
    return str(path)


def _one(pattern):
    found = sorted(prefix().glob(pattern))
    if not found:
        raise FileNotFoundError(f"{prefix()}/{pattern} is not there: is this where gaugeblock was installed?")
    return found[0]


def declarations(text):
    """What remains of one of our headers for a parser of C declarations: no preprocessor, no comments, no linkage."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^#ifdef __cplusplus.*?^#endif$", "", text, flags=re.S | re.M)
    text = re.sub(r"^\s*#.*?(?<!\\)$", "", text, flags=re.M)
    text = re.sub(r"__attribute__\(\(.*?\)\)\)", "", text, flags=re.S)
    return text.replace("GB_API", "")


@functools.lru_cache(maxsize=None)
def library():
    """(ffi, lib): libgaugeblock and its declarations."""
    ffi = cffi.FFI()
    include = _one("include/gaugeblock")
    for module in MODULES:
        ffi.cdef(declarations((include / module).read_text(encoding="utf-8")))
    return ffi, ffi.dlopen(str(_one("lib*/**/libgaugeblock.so.*")))


def check(status, error):
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
