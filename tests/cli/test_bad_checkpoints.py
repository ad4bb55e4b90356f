# SPDX-License-Identifier: Apache-2.0
"""Checkpoints with one thing wrong: one line names the file that is, and no fixture is written."""
import os
import shutil

import h5py

from program import CHECKPOINT, expect, path, refused, run

INDEX = "model.safetensors.index.json"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def checkpoint(name="bad"):
    """A folder with links to the good one's files. Returns a function that gives paths in it."""
    shutil.rmtree(path(name), ignore_errors=True)
    os.mkdir(path(name))
    for file in ("config.json", INDEX, *SHARDS):
        os.symlink(os.path.join(CHECKPOINT, file), os.path.join(path(name), file))
    return lambda file: os.path.join(path(name), file)


def wrong(*said, arguments=()):
    line = refused("import", path("bad"), path("x.h5"), "--tokens", "2", *arguments, timeout=60)
    for text in said:
        expect(text in line, f"'{text}' is not in '{line}'")
    expect(not os.path.exists(path("x.h5")), f"{line}: a file was written")


# A file that is there and cannot be read is not one that is absent.
def dangling(file):
    os.symlink("nowhere.json", file)


def looping(file):
    os.symlink(os.path.basename(file), file)


for file in (INDEX, "hf_quant_config.json"):
    for make, reason in ((os.mkfifo, "is no regular file"), (os.mkdir, "is no regular file"),
                         (dangling, "No such file"), (looping, "Too many levels")):
        place = checkpoint()(file)
        if os.path.lexists(place):
            os.remove(place)
        make(place)
        wrong(f"{file}: ", reason)

# A folder's name may be any bytes; the attribute that quotes it is text.
name = os.fsencode(path("")) + b"ck\xff\xc3\xa9\xed\xa0\x80\n"
shutil.copytree(os.fsencode(CHECKPOINT), name)
run("import", os.fsdecode(name), path("named.h5"), "--tokens", "2", "--layers", "0-0")
with h5py.File(path("named.h5")) as f:
    source = f.attrs["source"]
    source = source.decode() if isinstance(source, bytes) else source
expect(source == "ck\\xff\u00e9\\xed\\xa0\\x80\\x0a", ascii(source))
run("info", path("named.h5"))
