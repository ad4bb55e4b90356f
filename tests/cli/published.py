# SPDX-License-Identifier: Apache-2.0
"""The repository's trained experts, quantised here and written as checkpoints in every published layout."""
import functools
import json
import os
import struct

import numpy as np

from program import CHECKPOINT, expect, path, run

E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], np.float32)
E4M3 = np.array([m / 512 if m < 8 else (8 + m % 8) * 2.0 ** (m // 8 - 10) for m in range(127)], np.float32)
LAYOUTS = ["modelopt-nvfp4", "modelopt-mxfp8", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized",
           "fp8-128x128", "mxfp8-1x32"]
PROJECTIONS = ["gate_proj", "up_proj", "down_proj"]
LAYERS, EXPERTS = 2, 16


def read(file):
    """Every tensor of a safetensors file: name -> [dtype, array of its bits]."""
    types = {"F64": np.float64, "F32": np.float32, "BF16": np.uint16, "I32": np.int32, "I64": np.int64}
    with open(file, "rb") as stream:
        header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
        data = stream.read()
    return {name: [t["dtype"], np.frombuffer(data[slice(*t["data_offsets"])], types[t["dtype"]]).reshape(t["shape"])]
            for name, t in header.items() if name != "__metadata__"}


def write(file, tensors):
    header, at = {}, 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    with open(file, "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            stream.write(np.ascontiguousarray(array).tobytes())


@functools.lru_cache(maxsize=None)
def codes_by_top(magnitudes):
    """Codes without sign by a number's upper 16 bits, doubled, and one more where its lower 16 are not all zero: what lies
    between such numbers is on one side of every middle, which has 8 significant bits at most."""
    tops = np.arange(1 << 15, dtype=np.uint32) << 16
    numbers = np.stack([tops, tops | 1], -1).ravel().view(np.float32)
    with np.errstate(invalid="ignore"): # NaNs among them
        return search(numbers, np.array(magnitudes, np.float32))


def search(values, magnitudes):
    middles = (magnitudes[1:].astype(np.float64) + magnitudes[:-1]) / 2
    size = np.abs(values.astype(np.float64))
    code = np.searchsorted(middles, size)
    tie = (code < len(middles)) & (np.append(middles, np.inf)[code] == size)
    return (code + (tie & (code % 2 == 1))).astype(np.uint8)


def nearest(values, magnitudes):
    """Codes without sign: round to nearest, ties to the even code, saturating."""
    values = np.asarray(values)
    if values.dtype != np.float32:
        return search(values, magnitudes)
    bits = np.ascontiguousarray(values).view(np.uint32)
    return codes_by_top(tuple(magnitudes.tolist()))[(bits >> 15 & 0xFFFE) | (bits & 0xFFFF != 0)]


def e2m1(values):
    codes = nearest(values, E2M1) | (np.signbit(values).astype(np.uint8) << 3)
    return codes[:, 0::2] | codes[:, 1::2] << 4


def e4m3(values):
    return nearest(values, E4M3) | (np.signbit(values).astype(np.uint8) << 7)


def amax(w, block):
    return np.abs(w.reshape(w.shape[0], -1, block)).max(axis=2)


def spread(scales, block):
    return np.repeat(scales, block, axis=1)


def once(quantiser):
    """The same arguments are quantised once; every caller has arrays of its own."""
    known = {}

    def quantised(w, *arguments):
        key = w.tobytes(), w.shape, *arguments
        if key not in known:
            known[key] = quantiser(w, *arguments)
        return tuple(array.copy() for array in known[key])

    return quantised


@once
def nvfp4(w, encoding, largest=None):
    """codes, scales, global scale as published; largest: of all that share the global scale."""
    largest = largest or np.abs(w).max()
    g = np.float32(2688) / largest if encoding else largest / np.float32(2688)
    ratio = amax(w, 16) / np.float32(6)
    scales = nearest(ratio * g if encoding else ratio / g, E4M3)
    step = E4M3[scales] / g if encoding else E4M3[scales] * g
    return e2m1(w / spread(step, 16)), scales, np.array(g, np.float32)


@once
def mx(w, up, limit, encode):
    """E8M0 scales: exponents rounded up, or by OCP's floor."""
    mantissa, exponent = np.frexp(amax(w, 32) / (limit if up else 1))
    e = exponent - (mantissa == .5) if up else exponent - 1 - 2
    return encode(np.ldexp(w, -spread(e, 32))), (e + 127).astype(np.uint8)


@once
def fp8(w):
    rows, columns = -(-w.shape[0] // 128), -(-w.shape[1] // 128)
    padded = np.zeros((rows * 128, columns * 128), np.float32)
    padded[:w.shape[0], :w.shape[1]] = w
    scales = np.abs(padded.reshape(rows, 128, columns, 128)).max(axis=(1, 3)) / np.float32(448)
    return e4m3(w / np.repeat(np.repeat(scales, 128, 0), 128, 1)[:w.shape[0], :w.shape[1]]), scales


def quantise(layout, w):
    """Suffix -> [dtype, array]."""
    if layout == "modelopt-nvfp4":
        codes, scales, g = nvfp4(w, False)
        return {"weight": ["U8", codes], "weight_scale": ["F8_E4M3", scales], "weight_scale_2": ["F32", g],
                "input_scale": ["F32", np.array(1, np.float32)]}
    if layout == "nvfp4-pack-quantized":
        codes, scales, g = nvfp4(w, True)
        return {"weight_packed": ["U8", codes], "weight_scale": ["F8_E4M3", scales],
                "weight_global_scale": ["F32", g.reshape(1)], "input_global_scale": ["F32", np.ones(1, np.float32)]}
    if layout == "mxfp4-pack-quantized":
        codes, scales = mx(w, False, 6, e2m1)
        return {"weight_packed": ["U8", codes], "weight_scale": ["U8", scales]}
    if layout == "fp8-128x128":
        codes, scales = fp8(w)
        return {"weight": ["F8_E4M3", codes], "weight_scale_inv": ["F32", scales]}
    codes, scales = mx(w, True, 448, e4m3)
    if layout == "mxfp8-1x32":
        return {"weight": ["F8_E4M3", codes], "weight_scale_inv": ["U8", scales]}
    return {"weight": ["F8_E4M3", codes], "weight_scale": ["F8_E8M0" if layout == "modelopt-mxfp8" else "U8", scales]}


def declaration(layout):
    """What config.json says of it; modelopt-nvfp4 says it in hf_quant_config.json."""
    if layout == "modelopt-nvfp4":
        return None
    if layout == "gpt-oss-mxfp4":
        return {"quant_method": "mxfp4",
                "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"]}
    if layout == "modelopt-mxfp8":
        return {"quant_method": "modelopt", "quant_algo": "MXFP8", "group_size": 32, "ignore": ["lm_head"]}
    if layout == "fp8-128x128":
        return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    if layout == "mxfp8-1x32":
        return {"quant_method": "mxfp8", "weight_block_size": [1, 32]}
    bits, group = (8, 32) if layout == "mxfp8-quantized" else (4, 16 if layout.startswith("nvfp4") else 32)
    weights = {"num_bits": bits, "type": "float", "strategy": "tensor_group", "group_size": group, "symmetric": True}
    return {"quant_method": "compressed-tensors", "format": layout, "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "ignore": ["lm_head"]}


def experts(tensors):
    """The trained experts: name without suffix -> FP32 [rows, columns]."""
    return {name[:-len(".weight")]: (bits.astype(np.uint32) << 16).view(np.float32)
            for name, (_, bits) in tensors.items() if ".experts." in name}


def trained():
    shards = [file for file in sorted(os.listdir(CHECKPOINT)) if file.startswith("model-")]
    return {name: tensor for file in shards for name, tensor in read(os.path.join(CHECKPOINT, file)).items()}


@functools.cache
def quantised(layout):
    everything = trained()
    tensors = {name: tensor for name, tensor in everything.items() if ".experts." not in name}
    for name, w in experts(everything).items():
        for suffix, tensor in quantise(layout, w).items():
            tensors[f"{name}.{suffix}"] = tensor
    return tensors


def bf16(values):
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


@functools.cache
def fused():
    """gpt-oss: all experts in one tensor, gate and up rows in turns, biases."""
    everything, draw = trained(), np.random.default_rng(7)
    tensors = {name: tensor for name, tensor in everything.items() if ".mlp." not in name}
    for layer in range(LAYERS):
        mlp = f"model.layers.{layer}.mlp."
        tensors[mlp + "router.weight"] = everything[mlp + "gate.weight"]
        tensors[mlp + "router.bias"] = ["BF16", bf16(draw.normal(size=EXPERTS))]
        w = experts({name: tensor for name, tensor in everything.items() if name.startswith(mlp)})
        gate, up, down = (np.stack([w[f"{mlp}experts.{e}.{p}"] for e in range(EXPERTS)]) for p in PROJECTIONS)
        turns = np.stack([gate, up], axis=2).reshape(EXPERTS, -1, gate.shape[2])
        for name, stack in (("gate_up_proj", turns), ("down_proj", down)):
            codes, scales = zip(*(mx(matrix, False, 6, e2m1) for matrix in stack))
            shape = stack.shape[:2] + (stack.shape[2] // 32,)
            tensors[f"{mlp}experts.{name}_blocks"] = ["U8", np.stack(codes).reshape(shape + (16,))]
            tensors[f"{mlp}experts.{name}_scales"] = ["U8", np.stack(scales)]
            tensors[f"{mlp}experts.{name}_bias"] = ["BF16", bf16(draw.normal(size=stack.shape[:2]) * 4)]
    return tensors


class Published:
    """A checkpoint in a layout; its tensors and configurations may be changed before write()."""

    def __init__(self, layout):
        self.tensors = dict(fused() if layout == "gpt-oss-mxfp4" else quantised(layout))
        with open(os.path.join(CHECKPOINT, "config.json")) as stream:
            self.config = json.load(stream)
        self.quantization = None
        if layout == "gpt-oss-mxfp4":
            self.config.update(model_type="gpt_oss", intermediate_size=192, swiglu_limit=7.0)
            for key in ("norm_topk_prob", "moe_intermediate_size"):
                self.config.pop(key)
        if declaration(layout):
            self.config["quantization_config"] = declaration(layout)
        else:
            self.quantization = {"producer": {"name": "modelopt", "version": "0.29.0"},
                                 "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": None,
                                                  "group_size": 16, "exclude_modules": ["lm_head"]}}

    def change(self, suffix, function):
        """Applies function to the array of every tensor of this suffix."""
        for name, tensor in self.tensors.items():
            if ".experts." in name and name.endswith("." + suffix):
                self.tensors[name] = [tensor[0], function(tensor[1])]

    def swap(self, a, b):
        """Gives the tensors of projection a the names of those of b, and the other way round."""
        self.tensors = {(name.replace(a, b) if a in name else name.replace(b, a)): tensor
                        for name, tensor in self.tensors.items()}

    def write(self, name):
        folder = path(name)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "config.json"), "w") as stream:
            json.dump(self.config, stream)
        if self.quantization:
            with open(os.path.join(folder, "hf_quant_config.json"), "w") as stream:
                json.dump(self.quantization, stream)
        write(os.path.join(folder, "model.safetensors"), self.tensors)
        return folder


def refused(folder, *words, options=()):
    """Exit 2, one line with every word, and no file."""
    out = path("refused.h5")
    done = run("import", folder, out, "--tokens", 3, "--layers", 0, *options, code=2)
    lines = done.stderr.splitlines()
    expect(len(lines) == 1 and all(word in lines[0] for word in words), f"{words} are not in one line: {done.stderr}")
    expect(not os.path.exists(out), "a refused import left a file")


def swapped(codes):
    """Two codes of four bits a byte, the other way round."""
    return codes >> 4 | codes << 4
