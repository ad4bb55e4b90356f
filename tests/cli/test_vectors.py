# SPDX-License-Identifier: Apache-2.0
"""The committed vectors are what the program writes, docs/vectors.md reads them, and identify names recipes from every
kind of file."""
import filecmp
import json
import os
import struct
import subprocess

import h5py
import numpy as np

from blocks import block
from kept import expect_kept, readable
from program import ALL, PROGRAM, SOURCE, expect, path, refused, run, said

COMMITTED = os.path.join(SOURCE, "fixtures/vectors")


def committed(name):
    return os.path.join(COMMITTED, name.replace("/", "-") + ".txt")


# What is committed is what the program writes, all of it and nothing else.
seen = {}  # the first recipe of each block format
recipes = [line for line in run("list", "recipes").stdout.splitlines() if not line.startswith(" ") and line != "bf16.rne/1"]
for recipe in recipes:
    with open(committed(recipe)) as stream:
        seen.setdefault([line.split()[1] for line in stream if line.startswith("format ")][0], recipe)
kept = {name for name in os.listdir(COMMITTED) if not name.endswith((".c", ".h"))}
expect(kept == {os.path.basename(committed(name)) for name in (*recipes, *seen)},
       "a file for each recipe but bf16's and each format")
os.mkdir(path("vectors"))
few = {*list(seen.values())[::3], seen["e4m3-128x128-fp32"]}  # the blocks of one have several rows
run("vectors", path("vectors"), *(() if ALL else sorted(few)))
made = os.listdir(path("vectors"))
expect(set(made) == kept if ALL else len(made) >= 8,
       f"fixtures/vectors: not the files that `gaugeblock vectors` writes: {made}")
same, different, missing = filecmp.cmpfiles(path("vectors"), COMMITTED, made, shallow=False)
expect(not different and not missing, f"fixtures/vectors: not what `gaugeblock vectors` writes: {different}")
os.mkdir(path("one"))
run("vectors", path("one"), "mxfp8.rceil/1")
expect(sorted(os.listdir(path("one"))) == ["e4m3-1x32-e8m0.txt", "mxfp8.rceil-1.txt"], "a recipe and its inputs")

# Its own file names a recipe: one of block formats that are not asked below (test_identify has all).
for form, recipe in list(seen.items())[not ALL:: 1 if ALL else 3]:
    expect(run("identify", committed(form), committed(recipe)).stdout == recipe + "\n", recipe)

# The reader of the documentation, and files of every kind.
exec(block("vectors.md", "python"))
amax, values = read_inputs(committed("e4m3-1x32-e8m0"))
globals_, scales, codes = read_outputs(committed("mxfp8.rceil/1"))
expect(values.shape == (1, 256, 32) and amax[0] == np.abs(values[np.isfinite(values)]).max(), "inputs")
expect(scales.size == 256 and codes.size == 256 * 32, "outputs")


def safetensors(arrays):
    header, data = {}, b""
    for name, array in arrays.items():
        dtype = {"uint8": "U8", "float32": "F32"}[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write(codes, scales, only_hdf5=False, **more):
    """The same outputs in files of each kind: arguments of identify."""
    arrays = {"codes": codes, "scales": scales, **more}
    with h5py.File(path("outputs.h5"), "w") as f:
        for name, array in arrays.items():
            f[name] = array
    if only_hdf5:
        return [[path("outputs.h5")]]
    with open(path("outputs.safetensors"), "wb") as stream:
        stream.write(safetensors(arrays))
    np.save(path("codes.npy"), codes)
    np.save(path("scales.npy"), scales)
    return [[path("outputs.h5")], [path("outputs.safetensors")], [path("codes.npy"), "--scales", path("scales.npy")]]


def identify(form, arguments, code=0):
    """Its JSON, and what it prints."""
    done = run("identify", committed(form), *arguments, "-o", path("found.json"), code=code)
    said.append(readable(path("found.json")) + "\n")
    with open(path("found.json")) as stream:
        found = json.load(stream)
    expect(found["command"][:2] == ["gaugeblock", "identify"], found["command"])
    return found, done.stdout


found, text = identify("e4m3-1x32-e8m0", write(codes.reshape(1, 256, 32), scales.reshape(256, 1))[2])
expect(text == "mxfp8.rceil/1\n" and found["recipes"] == ["mxfp8.rceil/1"], text)
expect(found["verdict"] == "PASS" and found["exit_code"] == 0 and len(found["outputs"]["sha256"]) == 64, str(found))

# FP32 scales are float32; global scales are compared where they are given.
_, fp32, fp8 = read_outputs(committed("fp8g128.deepep/1"))
for arguments in write(fp8, fp32.view(">f4").astype(np.float32)):
    expect(identify("e4m3-1x128-fp32", arguments)[0]["recipes"] == ["fp8g128.deepep/1"], "FP32 scales")
encode, fp4_scales, fp4 = read_outputs(committed("nvfp4.te/1"))
encode = encode.astype(np.float32)
found, text = identify("e2m1-1x16-e4m3", write(fp4, fp4_scales, global_scales=encode)[1])
expect(found["recipes"] == ["nvfp4.te/1"], "global scales")
found, text = identify("e2m1-1x16-e4m3", write(fp4, fp4_scales, global_scales=1 / encode)[0], code=1)
expect(found["closest"] == "nvfp4.te/1" and found["difference"]["blocks"] == 0, text)
expect("global scales: " in text and found["difference"]["global_scales"] > 0, text)

# Injected: one code, one scale, a rule.
changed = codes.copy()
changed[5 * 32 + 7] ^= 1
found, text = identify("e4m3-1x32-e8m0", write(changed, scales)[0], code=1)
expect(text.startswith("unknown, closest mxfp8.rceil/1, differs at 1 of 256 blocks\n"), text)
first = found["first"]
expect((first["case"], first["row"], first["column"]) == (0, 5, 7) and found["change"] is None, str(found))
expect(int(first["codes"]["expected"][0], 16) ^ int(first["codes"]["found"][0], 16) == 1, str(first))
changed = scales.copy()
changed[9] = 5
found, text = identify("e4m3-1x32-e8m0", write(codes, changed)[0], code=1)
expect(sum(found["difference"]["scales"].values()) == 1 and found["first"]["row"] == 9, text)
expect(found["first"]["scale"] == {"expected": f"{scales[9]:02X}", "found": "05"}, text)
found, text = identify("e4m3-1x32-e8m0", write(np.where(codes == 0x80, 0, codes).astype(np.uint8), scales)[0], code=1)
expect(found["change"] == {"rule": "zero_sign", "from": "keeps-sign", "to": "positive"}, text)
expect("it is mxfp8.rceil/1 with another zero_sign: positive instead of keeps-sign" in text, text)

# Of blocks of other shapes the last code of the last row.
for form, recipe in [(form, recipe) for form, recipe in seen.items() if "row" in form or "128x128" in form]:
    with open(committed(recipe)) as stream:
        rows = stream.read().split("\n")
    last = rows.index("end") - 1
    rows[last] = rows[last][:-1] + ("1" if rows[last][-1] != "1" else "2")
    with open(path("other.txt"), "w") as stream:
        stream.write("\n".join(rows))
    first = identify(form, [path("other.txt")], code=1)[0]["first"]
    expect(first["codes"]["found"][0].endswith(rows[last][-1]), f"{form}: {first}")

# The example of the documentation.
_, floor_scales, floor_codes = read_outputs(committed("mxfp8.floor/1"))
text = identify("e4m3-1x32-e8m0", write(np.where(floor_codes == 0x80, 0, floor_codes).astype(np.uint8),
                                        floor_scales)[0], code=1)[1]
with open(os.path.join(SOURCE, "docs/vectors.md")) as stream:
    expect("".join(f"    {line}\n" for line in text.splitlines()) in stream.read(), f"docs/vectors.md has not:\n{text}")

# What cannot be read: one line that names the file and the mend.
inputs = committed("e4m3-1x32-e8m0")
with open(inputs) as stream:
    lines = stream.read().splitlines()
for number, shape in ((2, None), (7, "-1 1 16"), (7, "+1 1 32"), (7, "1 1"), (7, "123456789 1 32")):
    with open(path("bad.txt"), "w") as stream:
        stream.writelines(f"{line}\n" for line in (lines[:6] + [f"shape {shape}"] + lines[7:] if shape else lines[:1]))
    said = refused("identify", path("bad.txt"), inputs)
    expect(f"line {number}: is not " in said and ("at most seven digits" if shape else "ends before it") in said, said)
for form in ("e4m9-1x32-e8m0", "e4m3-1x32-e8m9", "e4m3-0x32-e8m0", "e4m3-4097x32-e8m0", "e4m3-1x4097-e8m0"):
    with open(path("bad.txt"), "w") as stream:
        stream.write("\n".join(lines).replace("format e4m3-1x32-e8m0", f"format {form}"))
    expect('is not "format" and a block format' in refused("identify", path("bad.txt"), inputs), form)
good = write(codes, scales)
expect("codes" in refused("identify", inputs, write(codes[:-1], scales)[0][0]), "codes")
expect("/codes: is larger than the outputs of the vectors" in
       refused("identify", inputs, write(np.zeros(64 * codes.size, np.uint8), scales)[0][0]), "many codes")
expect("/scales: has an element type that is not read" in
       refused("identify", inputs, write(codes, scales.astype(np.complex64), only_hdf5=True)[0][0]), "complex scales")
expect("float32" in refused("identify", committed("e4m3-1x128-fp32"), write(fp8, fp32)[0][0]), "FP32")
with h5py.File(path("outputs.h5"), "w") as f:
    f["scales"] = scales
    half = codes[:codes.size // 2]
    f.create_dataset("codes", codes.shape, codes.dtype, chunks=half.shape)[:half.size] = half
expect("/codes: holds no data in some places" in refused("identify", inputs, path("outputs.h5")), "half of the codes")
write(codes, scales)
expect("--scales" in refused("identify", inputs, path("codes.npy")) + "--scales", "npy alone")
refused("identify", inputs, path("outputs.h5"), "--scales", path("scales.npy"))
refused("identify", inputs, path("missing.h5"))
refused("identify", path("missing.txt"), path("outputs.h5"))
refused("identify", path("outputs.h5"), path("outputs.h5"))
refused("identify", inputs, inputs)
refused("identify", inputs, committed("mxfp4.floor/1"))
refused("identify", inputs, path("outputs.h5"), "-o", path("found.xml"))
refused("identify", inputs, path("outputs.h5"), "-o", path("no/such/folder.json"))
refused("identify", inputs)
refused("identify", inputs, path("outputs.h5"), path("outputs.h5"))
refused("vectors")
refused("vectors", path("no/such/folder"), "mxfp8.rceil/1")
expect("the folder's name is too long" in refused("vectors", path("vectors") + "/." * 2040), "a name of more than 4096 characters")
refused("vectors", path("vectors"), "bf16.rne/1")
with open(inputs) as stream:
    text = stream.read()
for damage, line in ((text[:-4], "line"), (text.replace("shape 1 256 32", "shape 9 256 32"), "line 7"),
                     (text.replace("case 0 amax 7", "case 1 amax 7"), "line 8"), (text + "more\n", "line"),
                     (text.replace("\n3", "\nG", 1), "hexadecimal")):
    with open(path("damaged.txt"), "w") as stream:
        stream.write(damage)
    message = refused("identify", path("damaged.txt"), path("outputs.h5"))
    expect("damaged.txt" in message and line in message, message)
with open("/dev/full", "w") as stream:
    done = subprocess.run([PROGRAM, "identify", committed("e4m3-1x128-fp32"), committed("fp8g128.deepep/1")], stdout=stream,
                          stderr=subprocess.PIPE, text=True)
expect(done.returncode == 2, "what cannot be printed is not exit 0")

# Inputs that tell little name nothing: a block of zeros fits many recipes, a few blocks one that could be another.
head = open(inputs).read().split("shape")[0]
for rows, amax_bits, recipe, words in ((["0" * 128], "00000000", "mxfp8.rceil/1", "do not tell them apart"),
                                       (None, "7F7F0000", "mxfp8.rceil/1", "other rules would be as good: amax_nan")):
    rows = rows or [line for line in open(inputs).read().splitlines() if len(line) == 128][:200]
    with open(path("few.txt"), "w") as stream:
        stream.write(f"{head}shape 1 {len(rows)} 32\ncase 0 amax {amax_bits}\n" + "".join(r + "\n" for r in rows) + "end\n")
    n = len(rows) if len(rows) > 1 else 1
    some_codes = codes.reshape(256, 32)[:n] if n > 1 else np.zeros((1, 32), np.uint8)
    some_scales = scales[:n] if n > 1 else np.zeros(1, np.uint8)
    arguments = write(some_codes, some_scales)[0]
    done = run("identify", path("few.txt"), *arguments, "-o", path("few.json"), code=4)
    expect(words in done.stdout, done.stdout)
    with open(path("few.json")) as stream:
        found = json.load(stream)
    expect(found["verdict"] == "VACUOUS" and (len(found["recipes"]) > 1) != bool(found["unseen"]), str(found))

expect_kept()
