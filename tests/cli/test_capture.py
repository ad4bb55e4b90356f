# SPDX-License-Identifier: Apache-2.0
"""What fixtures/capture.py refuses before it loads a model: nothing is written over, and no model is asked of a network.
None of it needs torch."""
import json
import os
import shutil
import subprocess
import sys
import types

from kept import expect_kept
from program import CAPTURE, CHECKPOINT, SOURCE, expect, path
from published import read, write

sys.path.insert(0, os.path.join(SOURCE, "fixtures"))
import capture  # noqa: E402

MODEL, TEXT, EARLIER = path("model"), path("story.txt"), path("earlier.safetensors")
OUTPUT = path("new.safetensors")
shutil.copytree(CHECKPOINT, MODEL)
with open(TEXT, "w") as text:
    text.write("once upon a time")
os.link(TEXT, path("text.safetensors"))


def content(file):
    with open(file, "rb") as stream:
        return stream.read()


def refused(*arguments, code=1):
    """The one line of a refusal, after which every file is as it was."""
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path("")) for name in names]
    before = {file: content(file) for file in files if os.path.isfile(file)}
    done = subprocess.run([sys.executable, "-B", os.path.join(SOURCE, "fixtures/capture.py"), *arguments],
                          capture_output=True, text=True, cwd=path(""))
    expect(done.returncode == code and len(done.stderr.splitlines()) == 1, f"{arguments}: {done.returncode} {done.stderr}")
    for file, bytes_ in before.items():
        expect(os.path.exists(file) and content(file) == bytes_, f"{arguments}: {file} is another")
    expect(not os.path.exists(OUTPUT), f"{arguments}: left a file")
    return done.stderr


os.mkfifo(path("pipe.safetensors"))
os.symlink("/dev/full", path("full.safetensors"))
for arguments, words in (
        ([MODEL, TEXT], "ends in .safetensors"),
        ([MODEL, "/dev/full"], "ends in .safetensors"),
        ([MODEL, path("full.safetensors")], "no regular file"),
        ([MODEL, path("pipe.safetensors")], "no regular file"),
        ([MODEL, path("text.safetensors")], "is no capture"),
        ([MODEL, TEXT, path("text.safetensors")], "is the text"),
        ([MODEL, TEXT, os.path.join(MODEL, "model-00001-of-00002.safetensors")], "is no capture"),
        ([MODEL, TEXT, path("nowhere/new.safetensors")], "cannot be written: No such file or directory"),
        ([path("nothing"), TEXT, OUTPUT], "is no folder"),
        (["someone/some-model", OUTPUT], "is no folder"),
        ([MODEL, OUTPUT, "--layers", "1-9"], f"--layers 1-9: {MODEL} has layers 0-1"),
        ([MODEL, OUTPUT, "--layers", "2"], f"--layers 2-2: {MODEL} has layers 0-1")):
    line = refused(*arguments)
    expect(words in line, f"{arguments}: {line}")
for layers in ("x", "1-", "3-1", "1-2-3", ""):
    line = refused(MODEL, OUTPUT, "--layers", layers, code=2)
    expect(f"--layers: {layers}: give a range such as 0-3" in line, line)

# A package that is not installed.
os.mkdir(path("without"))
with open(path("without/safetensors.py"), "w") as stream:
    stream.write("raise ImportError(\"No module named 'safetensors'\")\n")
os.environ["PYTHONPATH"] = path("without")
line = refused(MODEL, OUTPUT)
expect(line == "No module named 'safetensors': install torch, transformers and safetensors\n", line)
del os.environ["PYTHONPATH"]

# The layers of a model that reads pictures too are its text's.
with open(os.path.join(MODEL, "config.json")) as stream:
    config = json.load(stream)
os.mkdir(path("vision"))
with open(path("vision/config.json"), "w") as stream:
    json.dump({"text_config": config}, stream)
expect("has layers 0-1" in refused(path("vision"), OUTPUT, "--layers", "0-2"), "a text_config")

# A capture may be made again, and what is there is as it was until then.
layers = {name: tensor for name, tensor in read(CAPTURE).items() if name == "layer0.mlp_input_bf16"}
write(EARLIER, layers)
expect("is no capture" in refused(MODEL, EARLIER), "a file of tensors was taken for a capture")
body = content(EARLIER)
size = int.from_bytes(body[:8], "little")
header = json.dumps({**json.loads(body[8:8 + size]), "__metadata__": capture.SOURCE}).encode()
with open(EARLIER, "wb") as stream:
    stream.write(len(header).to_bytes(8, "little") + header + body[8 + size:])
before = content(EARLIER)
for output in (EARLIER, OUTPUT):
    capture.check_output(types.SimpleNamespace(output=output, text=TEXT))
expect(content(EARLIER) == before and not os.path.exists(OUTPUT), "a check left its traces")


def protected(file, mode):
    """In place of open: no file can be changed, not even by root."""
    if mode == "ab":
        raise PermissionError(13, "Permission denied")
    return open(file, mode)


capture.open = protected
try:
    capture.check_output(types.SimpleNamespace(output=EARLIER, text=TEXT))
except SystemExit as error:
    expect(str(error) == f"{EARLIER}: cannot be written: Permission denied", str(error))
else:
    sys.exit("a file that cannot be changed was taken")
del capture.open


class Failure(Exception):
    pass


def save(written, failure):
    """In place of safetensors: what is written before it fails, or ends."""
    def save_file(tensors, file, metadata):
        if written:
            with open(file, "w") as stream:
                stream.write(written)
        if failure:
            raise Failure(failure)
    return save_file


sys.modules["safetensors"] = types.SimpleNamespace(SafetensorError=Failure)
files = os.listdir(path(""))
for written in ("half", ""):
    sys.modules["safetensors.torch"] = types.SimpleNamespace(save_file=save(written, "the disk is full"))
    try:
        capture.write({}, EARLIER)
    except SystemExit as error:
        expect(str(error) == f"{os.path.realpath(EARLIER)}: cannot be written: the disk is full", str(error))
    else:
        sys.exit("half a capture was taken for one")
    expect(content(EARLIER) == before and os.listdir(path("")) == files, "half a capture was left, or an old one lost")
sys.modules["safetensors.torch"] = types.SimpleNamespace(save_file=save("half", None))
capture.write({}, EARLIER)
expect(content(EARLIER) == b"half" and os.listdir(path("")) == files, "a capture was not made again")

for ids, words in (([], "has no tokens; give a longer text"), ([1, 2], "has 2 tokens; give a longer text or --tokens 2")):
    try:
        capture.choose_tokens(types.SimpleNamespace(text=TEXT, tokens=64), ids, 256)
    except SystemExit as error:
        expect(str(error) == f"{TEXT}: {words}", str(error))
    else:
        sys.exit(f"{len(ids)} tokens were enough")

expect_kept()
