# SPDX-License-Identifier: Apache-2.0
"""gaugeblock inspect: nothing in sound checkpoints of every published layout, and each defect, written into each layout
that can have it, by its name and where it is. test_inspect.py all: the whole table."""
import functools
import hashlib
import json
import os
import shutil

import numpy as np

import published
from kept import DIGEST, expect_kept, shortened
from program import ALL, CHECKPOINT, expect, path, refused, run, said
from published import EXPERTS, LAYERS, PROJECTIONS, Published, swapped

LAYOUTS = published.LAYOUTS + ["gpt-oss-mxfp4"]
NVFP4 = ["modelopt-nvfp4", "nvfp4-pack-quantized"]
PACKED = NVFP4 + ["mxfp4-pack-quantized", "gpt-oss-mxfp4"]


@functools.cache
def sound(layout):
    """As the layout's exporters write it: gate and up with one global scale, activations calibrated."""
    made = Published(layout)
    draw = np.random.default_rng(3)
    if layout in NVFP4:
        encoding = layout != "modelopt-nvfp4"
        w = published.experts(published.trained())
        for layer in range(LAYERS):
            for expert in range(EXPERTS):
                name = f"model.layers.{layer}.mlp.experts.{expert}."
                largest = max(np.abs(w[name + p]).max() for p in PROJECTIONS[:2])
                inputs = draw.uniform(4, 20, 2)
                for p in PROJECTIONS:
                    codes, scales, g = published.nvfp4(w[name + p], encoding, None if p == "down_proj" else largest)
                    amax = np.float32(inputs[int(p == "down_proj")])
                    tensors = {"weight_packed" if encoding else "weight": ["U8", codes], "weight_scale": ["F8_E4M3", scales]}
                    tensors["weight_global_scale" if encoding else "weight_scale_2"] = ["F32", g.reshape(-1 if encoding else ())]
                    tensors["input_global_scale" if encoding else "input_scale"] = [
                        "F32", np.array(2688 / amax if encoding else amax / 2688, np.float32).reshape(-1 if encoding else ())]
                    made.tensors.update({f"{name}{p}.{suffix}": t for suffix, t in tensors.items()})
        if encoding:
            made.config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = {
                "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local"}
    return made


def copy(layout):
    made = sound(layout)
    other = object.__new__(Published)
    other.tensors, other.quantization = dict(made.tensors), json.loads(json.dumps(made.quantization))
    other.config = json.loads(json.dumps(made.config))
    return other


def inspect(folder, *options, code=0):
    """The record, of whose parts hashes are kept, and what was printed."""
    file = path("findings.json")
    done = run("inspect", folder, "-o", file, *options, code=code)
    with open(file) as stream:
        one = json.load(stream)
    expect(one["exit_code"] == code == bool(one["findings"]), f"{folder}: {done.stdout}")
    expect(one["command"][:2] == ["gaugeblock", "inspect"], one["command"])
    parts = {part: hashlib.sha256(json.dumps(shortened(one[part], part, DIGEST)).encode()).hexdigest()[:6]
             for part in ("findings", "matrices")}
    said.append(f"record: {one['layers']} layers, {one['experts']} experts, {one['bytes']} bytes, {parts}\n")
    return one, done.stdout


def defects(one):
    return sorted({f["defect"] for f in one["findings"]})


CODES = {"nvfp4-pack-quantized": "weight_packed", "mxfp4-pack-quantized": "weight_packed", "gpt-oss-mxfp4": "blocks"}
SCALES = {"fp8-128x128": "weight_scale_inv", "mxfp8-1x32": "weight_scale_inv", "gpt-oss-mxfp4": "scales"}
GLOBALS = {"modelopt-nvfp4": "weight_scale_2", "nvfp4-pack-quantized": "weight_global_scale"}
INPUTS = {"modelopt-nvfp4": "input_scale", "nvfp4-pack-quantized": "input_global_scale"}


class Edited:
    """A sound checkpoint in which single tensors are changed."""

    def __init__(self, layout):
        self.layout, self.fused, self.made = layout, layout == "gpt-oss-mxfp4", copy(layout)
        self.codes, self.scales = CODES.get(layout, "weight"), SCALES.get(layout, "weight_scale")
        self.globals, self.inputs = GLOBALS.get(layout), INPUTS.get(layout)

    def name(self, place, suffix):
        layer, expert, projection = place
        if self.fused:
            return f"model.layers.{layer}.mlp.experts.{'down_proj' if projection == 2 else 'gate_up_proj'}_{suffix}"
        return f"model.layers.{layer}.mlp.experts.{expert}.{PROJECTIONS[projection]}.{suffix}"

    def view(self, place, array):
        if not self.fused:
            return array
        return array[place[1]] if place[2] == 2 else array[place[1], place[2]::2]

    def get(self, place, suffix):
        return self.view(place, self.made.tensors[self.name(place, suffix)][1])

    def set(self, place, suffix, function):
        dtype, array = self.made.tensors[self.name(place, suffix)]
        array = array.copy()
        self.view(place, array)[...] = function(self.view(place, array).copy())
        self.made.tensors[self.name(place, suffix)] = [dtype, array]

    def everywhere(self, suffix, function, layer=1):
        for expert in range(EXPERTS):
            for projection in range(3):
                self.set((layer, expert, projection), suffix, function)

    def delete(self, place, suffix):
        del self.made.tensors[self.name(place, suffix)]

    def four(self):
        return self.layout in PACKED


PLACE = 1, 5, 2


def missing(suffix):
    return lambda e: e.delete(PLACE, getattr(e, suffix))


def nan_scale(e):
    value = np.nan if e.layout.startswith("fp8") else 0x7F if e.layout in NVFP4 else 0xFF
    e.set(PLACE, e.scales, lambda s: np.where(np.arange(s.size).reshape(s.shape) == 2, value, s).astype(s.dtype))


def nan_code(e):
    e.set(PLACE, e.codes, lambda c: np.where(np.arange(c.size).reshape(c.shape) == 99, 0xFF, c).astype(c.dtype))


def negative_scale(e):
    e.set(PLACE, e.scales, lambda s: -s if s.dtype == np.float32 else s | 0x80)


def inverse_scales(e):
    def inverse(s):
        if s.dtype == np.float32:
            return 1 / s
        if e.layout in NVFP4:
            return published.nearest(1 / published.E4M3[np.maximum(s, 1)], published.E4M3)
        return 254 - s
    e.everywhere(e.scales, inverse)


def inverse_global(e):
    e.everywhere(e.globals, lambda g: np.float32(1) / g)


def bad_global(value):
    return lambda e: e.set(PLACE, e.globals, lambda g: np.full_like(g, value))


def fill(e, value, share):
    """Blocks of one code: rows of FP8's tiles, or the first blocks of all rows."""
    def one(c):
        c = c.reshape(c.shape[0], -1)
        columns = 64 if e.four() else 128
        c[:128 if "128" in e.layout else max(1, c.shape[0] // share), :columns] = value
        return c.reshape(shape)
    shape = e.get(PLACE, e.codes).shape
    e.set(PLACE, e.codes, one)


def zero_blocks(e):
    fill(e, 0, 16)


def saturated_blocks(e):
    fill(e, 0x7F if e.four() else 0x7E, 16)


def saturated_scales(e):
    e.set(PLACE, e.scales, lambda s: np.full_like(s, 0x7E))


def dead(e):
    e.set(PLACE, e.codes, np.zeros_like)


def larger(e):
    """Sixteen times the other experts' values."""
    if e.globals:
        e.set(PLACE, e.globals, lambda g: g / 16 if e.layout == "nvfp4-pack-quantized" else g * 16)
    else:
        e.set(PLACE, e.scales, lambda s: s * 16 if s.dtype == np.float32 else s + 4)


def duplicate(e):
    for suffix in filter(None, (e.codes, e.scales, e.globals)):
        other = e.get((1, 3, 2), suffix)
        e.set(PLACE, suffix, lambda _, other=other: other)


def gate_up(e):
    e.set((1, 5, 1), e.globals, lambda g: g * np.float32(1.25))


def inputs(value):
    return lambda e: e.set(PLACE, e.inputs, lambda g: np.full_like(g, value))


def all_inputs(e):
    for layer in range(LAYERS):
        e.everywhere(e.inputs, np.ones_like, layer)


def weights_alone(e):
    e.made.tensors = {name: t for name, t in e.made.tensors.items() if not name.endswith(e.inputs)}


def other_layout(e):
    """Another 4-bit format's declaration, or another 8-bit one's."""
    other = {"modelopt-nvfp4": "nvfp4-pack-quantized", "nvfp4-pack-quantized": "mxfp4-pack-quantized",
             "mxfp4-pack-quantized": "nvfp4-pack-quantized", "fp8-128x128": "mxfp8-1x32",
             "mxfp8-1x32": "fp8-128x128"}.get(e.layout, "fp8-128x128")
    e.made.quantization = None
    e.made.config["quantization_config"] = published.declaration(other)


def more_experts(e):
    e.made.config["num_local_experts"] = 8


def wrong_width(e):
    dtype, array = e.made.tensors[e.name(PLACE, e.scales)]
    e.made.tensors[e.name(PLACE, e.scales)] = [dtype, array[..., :-1].copy()]


def noise(e):
    def thrown(c):
        c = np.random.default_rng(1).integers(0, 256, c.shape, np.uint8)
        return c if e.four() else np.where(c & 0x7F == 0x7F, 0x11, c)
    e.set(PLACE, e.codes, thrown)


def nibbles(e):
    e.everywhere(e.codes, swapped)


def nibbles_backwards(e):
    """Where down lies in front of gate and up."""
    nibbles(e)
    e.made.tensors = dict(reversed(e.made.tensors.items()))


def bits(e):
    """Bits of a code in reverse."""
    order = np.array([int(f"{b:08b}"[::-1], 2) for b in range(256)], np.uint8)
    order = np.where(order & 0x7F == 0x7F, 0x11, order)
    e.set(PLACE, e.codes, lambda c: swapped(order[c]) if e.four() else order[c])


def shifted(e):
    """Codes half a block away from their scales."""
    e.set(PLACE, e.codes, lambda c: np.roll(c, 4 if e.layout in NVFP4 else 8, axis=-1))


def signs(e):
    """Codes without sign."""
    e.set(PLACE, e.codes, lambda c: c & (0x77 if e.four() else 0x7F))


def not_quantised(e):
    name = e.name(PLACE, e.codes)
    e.delete(PLACE, e.codes)
    e.delete(PLACE, e.scales)
    if e.globals:
        e.delete(PLACE, e.globals)
        e.delete(PLACE, e.inputs)
    plain = name.rsplit(".", 1)[0] + ".weight"
    e.made.tensors[plain] = published.trained()[plain]


def experts_away(e):
    e.made.tensors = {n: t for n, t in e.made.tensors.items() if not (n.startswith("model.layers.1.mlp.experts."))}


ANY, EACH = LAYOUTS, [layout for layout in LAYOUTS if layout != "gpt-oss-mxfp4"]
E4M3_CODES = [layout for layout in LAYOUTS if layout not in PACKED]
# What is written: its defect, the layouts that can have it, and whether a single matrix has it (then PLACE is named).
DEFECTS = [
    (missing("codes"), "missing-tensor", ANY, True), (missing("scales"), "missing-tensor", ANY, True),
    (missing("globals"), "missing-tensor", NVFP4, True), (experts_away, "missing-tensor", ANY, False),
    (nan_scale, "nan", ANY, True), (nan_code, "nan", E4M3_CODES, True),
    (negative_scale, "negative-scale", NVFP4 + ["fp8-128x128"], True), (inverse_scales, "inverse-scale", ANY, False),
    (inverse_global, "inverse-scale", NVFP4, False), (bad_global(0), "global-scale", NVFP4, True),
    (bad_global(np.inf), "global-scale", NVFP4, True), (bad_global(np.nan), "global-scale", NVFP4, True),
    (zero_blocks, "zero-blocks", ANY, True), (saturated_blocks, "saturated", ANY, True),
    (saturated_scales, "saturated", NVFP4, True), (dead, "dead-expert", ANY, True),
    (larger, "outlier-expert", ANY, True), (duplicate, "duplicate-expert", ANY, True),
    (gate_up, "gate-up-scales", NVFP4, False), (missing("inputs"), "input-scale-missing", NVFP4, True),
    (inputs(0), "input-scale-value", NVFP4, True), (inputs(np.inf), "input-scale-value", NVFP4, True),
    (inputs(np.nan), "input-scale-value", NVFP4, True), (inputs(1), "input-scale-placeholder", NVFP4, True),
    (all_inputs, "input-scale-placeholder", NVFP4, False), (weights_alone, "declaration", NVFP4, False),
    (other_layout, "declaration", ANY, False), (more_experts, "declaration", EACH, False),
    (not_quantised, "declaration", EACH, True), (wrong_width, "shape", ANY, True), (noise, "misread-codes", ANY, True),
    (nibbles, "misread-codes", PACKED, False), (bits, "misread-codes", NVFP4 + E4M3_CODES, True),
    (shifted, "misread-codes", NVFP4, True), (signs, "misread-codes", ANY, True), (nibbles_backwards, "misread-codes", PACKED, False),
]

def check_table():
    """Each defect alone, and by its place."""
    for n, (function, defect, layouts, single) in enumerate(DEFECTS):
        for layout in layouts if ALL else [layouts[n % len(layouts)]]:
            edited = Edited(layout)
            function(edited)
            if not ALL and function is not experts_away:  # fewer bytes to write
                edited.made.tensors = {name: t for name, t in edited.made.tensors.items()
                                       if "layers.1." in name and ("mlp" in name or "layernorm" in name)}
            shutil.rmtree(path("edited"), ignore_errors=True)
            one, text = inspect(edited.made.write("edited"), *([] if ALL or function is experts_away else ["--layers", 1]), code=1)
            expect(defects(one) == [defect], f"{layout}, line {n} of DEFECTS, {defect}: {text}")
            at = [(f["layer"], f["expert"], f["projection"]) for f in one["findings"]]
            place = PLACE[0], PLACE[1], PROJECTIONS[PLACE[2]]
            stacked = edited.fused and defect in ("missing-tensor", "shape")  # of all experts
            expect(not single or (place in at if stacked else at == [place]), f"{layout}, line {n}: {at}")
            expect(single or function is experts_away or {f["layer"] for f in one["findings"]} <= {0, 1, None}, str(at))


def check_lines():
    """The table has a line for each defect and layer: of which projections, of which experts, how many."""
    edited = Edited("fp8-128x128")
    for place in ((1, 0, 2), (0, 3, 0), (0, 7, 2), (0, 5, 0)):
        edited.delete(place, edited.codes)
    for expert, factor in (4, 16), (9, 24): # the worst of its line is the last of its experts
        edited.set((1, expert, 2), edited.scales, lambda s: s * np.float32(factor))
    edited.set((0, 0, 1), edited.codes, np.zeros_like)
    edited.set((1, 2, 0), edited.codes, np.zeros_like)
    edited.set((1, 2, 1), edited.codes, np.zeros_like)
    edited.made.tensors = dict(reversed(edited.made.tensors.items())) # down in front of gate
    one, text = inspect(edited.made.write("lines"), code=1)
    expect([(f["layer"], f["expert"], f["projection"]) for f in one["findings"] if f["defect"] == "dead-expert"] ==
           [(0, 0, "up_proj"), (1, 2, "gate_proj"), (1, 2, "up_proj")], str(one["findings"]))
    lines = {(line[:24].strip(), line[25:30].strip(), line[32:42].strip(), line[44:53].strip(), line[55:60].strip())
             for line in text.splitlines()[3:]}
    expect(lines == {("missing-tensor", "1", "down", "0", "1"), ("missing-tensor", "0", "gate, down", "3..7", "3"),
                     ("outlier-expert", "1", "down", "4..9", "2"), ("dead-expert", "0", "up", "0", "1"), ("dead-expert", "1", "gate, up", "2", "2")}, text)


def check_sound():
    told = set()
    for layout in LAYOUTS:
        made = copy(layout)
        for name in [name for name in made.tensors if ".layers.1.mlp.experts.5." in name]: # of another part of the model
            made.tensors["draft" + name.removeprefix("model").replace("experts.5.", "experts.90.")] = made.tensors[name]
        for name in ("x.mlp.experts.0.down_proj.weight", "4096.mlp.experts.0.down_proj.weight", "1e.mlp.experts.0.up_proj.weight",
                     "-1.mlp.experts.0.up_proj.weight", "+1.mlp.experts.0.up_proj.weight", " 1.mlp.experts.0.up_proj.weight",
                     "0.mlp.experts.16384.up_proj.weight", "0.mlp.experts.0.other_proj.weight",
                     "0.mlp.experts.a.up_proj.weight", "0.mlp.experts.0x.up_proj.weight", "0.mlp.experts.down_proj_other",
                     "1.mlp.experts.", "1.mlp.experts.3", "1.mlp.experts.3.up_proj.other", "1.mlp.shared.up_proj.weight"):
            made.tensors["model.layers." + name] = ["BF16", np.ones((1, 3), np.uint16)]  # of no expert
        one, text = inspect(made.write("sound-" + layout))
        expect(text.startswith("SOUND") and one["layout"] == layout and len(one["matrices"]) == LAYERS * EXPERTS * 3,
               f"{layout}: {text}")
        expect(f"activations with {one['activations']}" in text.splitlines()[0], f"{layout}, {one['activations']}: {text}")
        told.add(one["activations"])
    expect(told == {"stored scales", "no stored scales"}, str(told))
    # Every other weight pruned: zeros have no sign.
    pruned = copy("fp8-128x128")
    pruned.change("weight", lambda codes: codes * (np.arange(codes.shape[-1]) % 2).astype(np.uint8))
    inspect(pruned.write("pruned"), "--layers", 1)
    # A layer that config.json leaves out, weights that alone are quantised, and scales that no one reads.
    edited = Edited("nvfp4-pack-quantized")
    not_quantised(edited)
    folder = edited.made.write("left-out")
    for pattern, left_out in (
            ("model.layers.1.mlp.experts.5.down_proj", True), ("re:.*experts.5.*", True), ("model.layers.1.mlp*", True),
            (r"re:model\.layers\.\d+\.mlp\.experts\.(?:5|7)\..*?", True), (r"re:(?!.*lm_head).*experts", True),
            ("re:^model[.]layers[.]1[.].*[.]experts[.]5[.].*", True), ("model.layers.1.*.experts.5.*", True),
            ("re:experts.5", False), ("model.layers.1.mlp.experts.15.*", False), (r"re:model\.layers\.\D+", False)):
        edited.made.config["quantization_config"]["ignore"] = [pattern]
        with open(os.path.join(folder, "config.json"), "w") as stream:
            json.dump(edited.made.config, stream)
        one, text = inspect(folder, "--layers", 1, code=0 if left_out else 1)
        expect(len(one["matrices"]) == EXPERTS * 3 - 1 and defects(one) == ([] if left_out else ["declaration"]), text)
    # By the model's own names.
    names = ((".mlp.", ".block_sparse_moe."), ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"))
    edited.made.tensors = {functools.reduce(lambda n, pair: n.replace(*pair), names, name): tensor
                           for name, tensor in edited.made.tensors.items()}
    edited.made.config["model_type"] = "mixtral"
    edited.made.config["quantization_config"]["ignore"] = ["model.layers.1.block_sparse_moe.experts.5.w2"]
    inspect(edited.made.write("mixtral"), "--layers", 1)
    edited = Edited("modelopt-nvfp4")
    all_inputs(edited)
    edited.made.quantization["quantization"]["quant_algo"] = "W4A16_NVFP4"
    inspect(edited.made.write("weights-alone"))


def check_original():
    """The error of each matrix; one that is a quarter too large is found by it alone."""
    limits = {"nvfp4": (.08, .11), "mxfp4": (.1, .16), "mxfp8": (.02, .035), "fp8": (.02, .035)}
    for layout in LAYOUTS if ALL else ("modelopt-nvfp4", "fp8-128x128", "gpt-oss-mxfp4"):
        least, most = next(limit for name, limit in limits.items() if name in layout)
        one, text = inspect(path("sound-" + layout), "--original", CHECKPOINT)
        errors = [m["relative_l2"] for m in one["matrices"]]
        expect(least < min(errors) <= max(errors) < most and "SQNR" in text, f"{layout}: {min(errors)}, {max(errors)}")
        expect(all(abs(m["sqnr_db"] + 20 * np.log10(m["relative_l2"])) < 1e-9 for m in one["matrices"]), layout)
        expect(all(abs(m["gain"] - 1) < .05 for m in one["matrices"]), layout)
    w = published.experts(published.trained())["model.layers.1.mlp.experts.5.down_proj"].astype(np.float64)
    one, _ = inspect(path("sound-fp8-128x128"), "--original", CHECKPOINT, "--layers", 1)
    tensors = sound("fp8-128x128").tensors
    codes, scales = (tensors[f"model.layers.1.mlp.experts.5.down_proj.{s}"][1] for s in ("weight", "weight_scale_inv"))
    values = np.where(codes & 0x80, -1, 1) * published.E4M3[np.minimum(codes & 0x7F, 126)].astype(np.float64)
    values *= np.repeat(np.repeat(scales, 128, 0), 128, 1)[:w.shape[0], :w.shape[1]]
    expected = np.linalg.norm(values - w) / np.linalg.norm(w)
    found = next(m for m in one["matrices"] if (m["expert"], m["projection"]) == (5, "down_proj"))
    expect(abs(found["relative_l2"] / expected - 1) < 1e-9, f"{found}, by numpy {expected}")
    expect(abs(found["rms"] / np.sqrt((values ** 2).mean()) - 1) < 1e-6, f"{found}")
    edited = Edited("fp8-128x128")
    edited.set(PLACE, edited.scales, lambda s: s * np.float32(1.25))
    one, text = inspect(edited.made.write("too-large"), "--original", CHECKPOINT, code=1)
    expect(defects(one) == ["error"] and "1.25 times as large" in text, text)


def check_shards():
    """A shard that is missing or cut short: the file, and per layer what is missing with it."""
    made = copy("modelopt-nvfp4")
    folder = made.write("shards")
    os.remove(os.path.join(folder, "model.safetensors"))
    files = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    where = {name: files["layers.1." in name] for name in made.tensors}
    for file in files:
        published.write(os.path.join(folder, file), {n: t for n, t in made.tensors.items() if where[n] == file})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as stream:
        json.dump({"weight_map": where}, stream)
    inspect(folder)
    last = os.path.join(folder, files[1])
    size = os.path.getsize(last)
    os.truncate(last, size - 1000)
    one, text = inspect(folder, code=1)
    expect(defects(one) == ["missing-tensor", "shard"] and "truncated" in text, text)
    os.remove(last)
    one, text = inspect(folder, code=1)
    lines = [line.split() for line in text.splitlines() if line.startswith("missing-tensor")]
    expect(len(lines) == 1 and lines[0][1:5] == ["1", "all", "0..15", "48"] and files[1] in text, text)
    expect(len(one["matrices"]) == EXPERTS * 3, text)
    inspect(folder, "--layers", 0, code=1)  # the shard is said all the same


def check_refused():
    """What is no quantised checkpoint: one line, exit 2."""
    expect("no expert is stored as codes" in refused("inspect", CHECKPOINT), "a checkpoint of values")
    refused("inspect", path("nowhere"))
    expect("record.json: cannot be written" in refused("inspect", path("nowhere"), "-o", os.path.join(path("no"), "record.json")),
           "where nothing can be written is said before anything is read")
    # An original of another size: half of each expert's neurons.
    os.mkdir(path("narrow"))
    narrow = {name: [dtype, array[:, :96] if "down_proj" in name else array[:96] if ".experts." in name else array]
              for name, (dtype, array) in published.trained().items()}
    published.write(path("narrow/model.safetensors"), narrow)
    with open(os.path.join(CHECKPOINT, "config.json")) as stream, open(path("narrow/config.json"), "w") as target:
        json.dump({**json.load(stream), "moe_intermediate_size": 96}, target)
    line = refused("inspect", path("sound-modelopt-nvfp4"), "--original", path("narrow"))
    expect("intermediate 96, but layer" in line, line)
    sound_folder = path("sound-modelopt-nvfp4")
    inspect(sound_folder, "--layers", "0-99999")
    for arguments in (["--layers", "7"], ["--layers", "x"], ["--layers", "1-0"], ["--layers", "1x"], ["--layers", "0-1x"],
                      ["--layers", "0-"], ["--layers", "0-100000"], ["-o", path("x.txt")],
                      ["--original", path("nowhere")], ["--original", sound_folder], [sound_folder],
                      ["-o", os.path.join(sound_folder, "config.json")]):
        refused("inspect", sound_folder, *arguments)
    shutil.copytree(CHECKPOINT, path("original"))
    refused("inspect", sound_folder, "--original", path("original"), "-o", path("original/config.json"))
    with open(path("original/config.json")) as stream:
        expect("model_type" in json.load(stream), "an input is overwritten")
    os.makedirs(path("broken"))
    shutil.copy(os.path.join(CHECKPOINT, "config.json"), path("broken"))
    refused("inspect", path("broken"))
    with open(path("broken/model.safetensors"), "wb") as stream:
        stream.write(b"no tensors")
    refused("inspect", path("broken"))


if __name__ == "__main__":
    check_sound()
    check_original()
    check_shards()
    check_refused()
    check_table()
    check_lines()

expect_kept()
