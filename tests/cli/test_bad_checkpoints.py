# SPDX-License-Identifier: Apache-2.0
"""Checkpoints with one thing wrong: one line names the file that is, and no fixture is written."""
import json
import os
import shutil
import struct

import h5py

from kept import expect_kept
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


# Sizes that the tensors cannot have are refused before memory is asked for.
for key in ("num_hidden_layers", "num_experts"):
    place = checkpoint()("config.json")
    with open(place) as stream:
        config = json.load(stream)
    os.remove(place)
    for value in (10000, 2**31 - 1):
        with open(place, "w") as stream:
            json.dump({**config, key: value}, stream)
        wrong("bad/config.json: num_hidden_layers, num_experts, ", str(value), "can hold")


def tensor(kind):
    """Names the first tensor of this kind in the first shard, with its place there."""
    with open(os.path.join(CHECKPOINT, SHARDS[0]), "rb") as stream:
        size, = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(size))
    name = next(name for name in header if kind in name)
    return name, slice(*(8 + size + offset for offset in header[name]["data_offsets"]))


def shard(change):
    """change: of the shard's bytes."""
    place = checkpoint()(SHARDS[0])
    os.remove(place)
    with open(os.path.join(CHECKPOINT, SHARDS[0]), "rb") as stream:
        content = bytearray(stream.read())
    change(content)
    with open(place, "wb") as stream:
        stream.write(content)


# What is no number is named where it stands.
for kind in ("mlp.gate.weight", "post_attention_layernorm", "experts.0.gate_proj", "experts.0.down_proj"):
    name, where = tensor(kind)
    for bits, value in ((0x7FC0, "nan"), (0x7F80, "inf")):
        def put(content):
            struct.pack_into("<H", content, where.start + 2 * 5, bits)
        shard(put)
        wrong(f"bad/{SHARDS[0]}: {name}: element 5 is {value}", "download")


# Weights whose outputs no binary32 holds: the fixture could not be judged, so none is written.
def huge(content):
    for part in ("experts.0.gate_proj", "experts.0.up_proj"):
        for e in range(16):
            _, where = tensor(part.replace("0", str(e)))
            content[where] = b"\x7f\x7f" * ((where.stop - where.start) // 2)


shard(huge)
wrong("bad: layer 0: ", "beyond binary32's range", "too large", arguments=("--layers", "0-0"))

expect_kept()
