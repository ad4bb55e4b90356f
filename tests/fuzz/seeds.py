# SPDX-License-Identifier: Apache-2.0
"""Writes the inputs that the kept corpora started from. Usage: GAUGEBLOCK=build/gaugeblock seeds.py FOLDER"""
import io
import json
import os
import struct
import subprocess
import sys

import h5py
import numpy as np

folder = sys.argv[1]


def put(target, name, content):
    os.makedirs(os.path.join(folder, target), exist_ok=True)
    with open(os.path.join(folder, target, name), "wb") as stream:
        stream.write(content)


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1}


def safetensors(tensors, metadata=None):
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape) in tensors.items():
        size = SIZES.get(dtype, 1) * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += bytes(i * 7 % 64 for i in range(size))
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def hdf5(arrays):
    path = os.path.join(folder, "temporary.h5")
    with h5py.File(path, "w", libver="latest") as f:
        for name, array in arrays.items():
            f[name] = array
    with open(path, "rb") as stream:
        content = stream.read()
    os.remove(path)
    return content


def fixture(*arguments):
    path = os.path.join(folder, "temporary.h5")
    subprocess.run([os.environ["GAUGEBLOCK"], "make", path, *arguments], check=True, stdout=subprocess.DEVNULL)
    with open(path, "rb") as stream:
        content = stream.read()
    os.remove(path)
    return content


os.makedirs(folder, exist_ok=True)
put("safetensors", "types", safetensors({dtype.lower(): (dtype, [2, 3]) for dtype in SIZES}, {"format": "pt"}))
put("safetensors", "ranks", safetensors({f"r{n}": ("F32", [1] * n) for n in range(7)}))
put("safetensors", "other", safetensors({"q": ("F8_E4M3", [4]), "empty": ("F32", [0, 3])}))

# Fixtures of the outputs' targets: 1 layer, 2 tokens, hidden 32, intermediate 16, top-2.
output = np.arange(64, dtype=np.float32).reshape(2, 32)
for name, array in {"f4": output, "f8": output.astype(np.float64)[:1], "u2": output.astype(np.uint16),
                    "layers": output[None], "order": np.asfortranarray(output), "i4": output.astype(np.int32)}.items():
    put("npy", name, npy(array)[6:])
    put("outputs", f"{name}.npy", npy(array))
header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 32), }"
put("npy", "version2", b"\2\0" + struct.pack("<I", len(header)) + header + output.tobytes())
put("outputs", "all.safetensors", safetensors({"layers.0.output": ("F32", [2, 32]),
                                               "layers.0.intermediate": ("BF16", [2, 2, 16]),
                                               "stack.output": ("F64", [1, 2, 32])}))
put("outputs", "prefix.safetensors", safetensors({"layers.0.output": ("BF16", [1, 32])}))
put("outputs", "all.h5", hdf5({"layers/0/output": output, "layers/0/intermediate": np.zeros((2, 2, 16), np.uint16),
                               "stack/output": output[None].astype(np.float64)}))
put("outputs", "prefix.h5", hdf5({"layers/0/output": output[:1].astype(np.uint16)}))

# Vectors: 2 cases of 2 rows; of columns, 32 in blocks of 16, or 48 in blocks of 2 x 32.


def vectors(kind, head, name, row):
    cases = "".join(f"case {c} {name} 3F800000\n" + (row + "\n") * 2 for c in range(2))
    return f"gaugeblock-vectors 1 {kind}\n# seed\n{head}\n{cases}end\n".encode()


for target, (form, columns, scales, codes) in {"fp4": ("e2m1-1x16-e4m3", 32, 2, 16),
                                               "fp8": ("e4m3-2x32-fp32", 48, 8, 48)}.items():
    put("vectors", target, vectors("inputs", f"format {form}\ngenerator seeds\nshape 2 2 {columns}", "amax",
                                   "3F80" * columns))
    which = bytes([target == "fp8"])
    put("vector_outputs", f"{target}.txt", which + vectors("outputs", f"recipe seed/1\nformat {form}", "global",
                                                           f"{'38' * scales} {'A5' * codes}"))
    scale = ("F32", [2, 1, 2]) if which[0] else ("U8", [2, 2, 2])
    put("vector_outputs", f"{target}.safetensors", which + safetensors({"codes": ("U8", [2, 2, codes]), "scales": scale,
                                                                        "global_scales": ("F32", [2])}))
    put("vector_outputs", f"{target}.h5", which + hdf5({"codes": np.zeros((2, 2, codes), np.uint8),
                                                        "scales": np.ones(scale[1], np.float32 if which[0] else np.uint8)}))
    put("vector_outputs", f"{target}.npy", bytes([which[0] | 2]) + npy(np.zeros((2, 2, codes), np.uint8)))

# Hidden size 4, as the target asks for.
layer = {"layer0.mlp_input_bf16": ("BF16", [3, 4]), "layer0.residual_in_f64": ("F64", [3, 4]),
         "layer0.residual_mid_f64": ("F32", [3, 4])}
put("capture", "one", safetensors(layer))
put("capture", "two", safetensors({**layer, "layer1.mlp_input_bf16": ("BF16", [3, 4]),
                                   "layer2.mlp_input_bf16": ("BF16", [3, 4]), "other": ("U8", [2])}))
put("capture", "output", safetensors({**layer, "layer0.output_f64": ("F64", [3, 4]), "layer0.router_ids_i64": ("I64", [3, 2]),
                                      "layer0.shared_output_f64": ("F32", [3, 4]),
                                      "layer0.residual_out_f64": ("F64", [3, 4]),
                                      **{name.replace("0", "2", 1): tensor for name, tensor in layer.items()}}))
put("capture", "short", safetensors({"layer0.mlp_input_bf16": ("BF16", [1, 4])}))

tensors = [f"model.layers.0.mlp.experts.{e}.{p}_proj.weight" for e in range(2) for p in ("gate", "up", "down")]
tensors += ["model.layers.0.mlp.gate.weight", "model.layers.0.post_attention_layernorm.weight"]
index = json.dumps({"metadata": {}, "weight_map": {name: "a.safetensors" for name in tensors}}).encode()
config = {"model_type": "qwen3_moe", "num_experts": 2, "num_experts_per_tok": 1, "hidden_size": 4,
          "moe_intermediate_size": 4, "num_hidden_layers": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6,
          "norm_topk_prob": True}
put("checkpoint", "good", json.dumps(config).encode() + b"\0" + index)
for model in ("qwen3_next", "olmoe", "qwen2_moe"):
    put("checkpoint", model, json.dumps({**config, "model_type": model}).encode() + b"\0" + index)
mixtral = {**config, "model_type": "mixtral", "num_local_experts": 2, "intermediate_size": 4}
for key in ("num_experts", "moe_intermediate_size"):
    del mixtral[key]
put("checkpoint", "mixtral", json.dumps(mixtral).encode() + b"\0" + index)
deepseek = {**config, "model_type": "deepseek_v3", "n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.446,
            "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
for name, changes in (("kimi_k2", {"model_type": "kimi_k2", "n_group": 1}), ("deepseek_v3", {}), ("unknown", {"model_type": "x"})):
    put("checkpoint", name, json.dumps({**deepseek, **changes}).encode() + b"\0" + index)
names = {key: f"model.layers.{{layer}}.mlp.experts.{{expert}}.{key}_proj" for key in ("gate", "up", "down")}
names.update(router=tensors[-2].replace("0", "{layer}"), norm=tensors[-1].replace("0", "{layer}"))
put("checkpoint", "map", b"\0".join([json.dumps({**config, "model_type": "x"}).encode(), index, json.dumps(
    {"router": "transformers.deepseek-v2/1;groups=2;kept=1;scale=1", "tensors": names, "experts": 2, "top_k": 1,
     "rms_norm_eps": 1e-6, "norm_plus_one": True, "activation": "silu"}).encode()]))
put("checkpoint", "like", b"\0".join([json.dumps({"text_config": {**config, "model_type": "x"}}).encode(), index,
                                      b'{"like": "olmoe"}']))
shards = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors", "c": "../a"}}
put("checkpoint", "shards", json.dumps(config).encode() + b"\0" + json.dumps(shards).encode())

# One expert of 32 x 32 as codes, in every layout; the bytes make numbers of every type.
LAYOUTS = {
    "modelopt-nvfp4": ({}, {"weight": ("U8", 2), "weight_scale": ("F8_E4M3", 16), "weight_scale_2": ("F32", 0)}),
    "nvfp4-pack-quantized": ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {
        "group_0": {"weights": {"num_bits": 4, "group_size": 16}}}},
        {"weight_packed": ("U8", 2), "weight_scale": ("F8_E4M3", 16), "weight_global_scale": ("F32", 0)}),
    "mxfp4-pack-quantized": ({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
                             {"weight_packed": ("U8", 2), "weight_scale": ("U8", 32)}),
    "mxfp8-quantized": ({"quant_method": "compressed-tensors", "format": "mxfp8-quantized"},
                        {"weight": ("F8_E4M3", 1), "weight_scale": ("F8_E8M0", 32)}),
    "modelopt-mxfp8": ({"quant_method": "modelopt", "quant_algo": "MXFP8"},
                       {"weight": ("F8_E4M3", 1), "weight_scale": ("U8", 32)}),
    "fp8-128x128": ({"quant_method": "fp8", "weight_block_size": [128, 128]},
                    {"weight": ("F8_E4M3", 1), "weight_scale_inv": ("F32", 32)}),
    "mxfp8-1x32": ({"quant_method": "mxfp8", "weight_block_size": [1, 32]},
                   {"weight": ("F8_E4M3", 1), "weight_scale_inv": ("U8", 32)}),
    "values": (None, {"weight": ("BF16", 1)}),
}
for layout, (declared, parts) in LAYOUTS.items():
    values = {"model.layers.0.mlp.gate.weight": ("BF16", [1, 32]),
              "model.layers.0.post_attention_layernorm.weight": ("BF16", [32])}
    for projection in ("gate", "up", "down"):
        for suffix, (dtype, block) in parts.items():
            rows = 1 if layout == "fp8-128x128" and "scale" in suffix else 32
            values[f"model.layers.0.mlp.experts.0.{projection}_proj.{suffix}"] = (dtype, [rows, 32 // block] if block else [1])
    said = {**config, "num_experts": 1, "hidden_size": 32, "moe_intermediate_size": 32}
    file = b""
    if layout == "modelopt-nvfp4":
        file = json.dumps({"quantization": {"quant_algo": "NVFP4", "group_size": 16}}).encode()
    elif declared:
        said["quantization_config"] = declared
    put("published", layout, json.dumps(said).encode() + b"\0" + file + b"\0" + safetensors(values))
said = {"model_type": "gpt_oss", "num_local_experts": 1, "num_experts_per_tok": 1, "hidden_size": 32,
        "intermediate_size": 32, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
        "quantization_config": {"quant_method": "mxfp4"}}
values = {"router.weight": ("BF16", [1, 32]), "router.bias": ("BF16", [1])}
for projection, rows in (("gate_up_proj", 64), ("down_proj", 32)):
    values[f"experts.{projection}_blocks"] = ("U8", [1, rows, 1, 16])
    values[f"experts.{projection}_scales"] = ("U8", [1, rows, 1])
    values[f"experts.{projection}_bias"] = ("BF16", [1, rows])
values = {f"model.layers.0.mlp.{name}": tensor for name, tensor in values.items()}
values["model.layers.0.post_attention_layernorm.weight"] = ("BF16", [32])
put("published", "gpt-oss", json.dumps(said).encode() + b"\0\0" + safetensors(values))


def record(*changes):
    """What verify writes, as far as diff reads it."""
    one = {"schema": "gaugeblock-record/2", "environment": {"commit": "c"}, "cases": [
        {"fixture": {"path": "a/b.h5", "sha256": "s"}, "subject": {"name": "n", "library": "builtin"}, "batch": 2,
         "verdict": "PASS", "metrics": {"layers": [{"output_sha256": "o", "intermediate_sha256": "i"}]},
         "checks": {"bound": {"limit_ratio": 0.97}}}]}
    for change in changes:
        change(one["cases"][0])
    return json.dumps(one).encode()


put("record", "same", record())
put("record", "bits", record() + b"\0" + record(lambda c: c["metrics"]["layers"][0].update(output_sha256="p")))
put("record", "inputs", record() + b"\0" + record(lambda c: c["fixture"].update(sha256="t")))
put("record", "subject", record() + b"\0" + record(lambda c: c["subject"].update(name="m", library_sha256="l")))

for name, gate in {"checks": {"name": "n", "checks": ["bound", "rms", "scale"]},
                   "close": {"atol": 0.1, "rtol": 1e-2, "fraction": 0.9, "either": True, "relative_to": "subject"},
                   "figures": {"cosine": 0.99, "cosine_min": -1, "max_abs": 1e-3, "nmse": 2, "relative_to": "truth"},
                   "nothing": {}}.items():
    put("gate", name, json.dumps({"schema": "gaugeblock-gate/2", **gate}).encode())

for name, arguments in {"nvfp4": ("--shape", "2,1,16,16"), "mxfp8": ("--shape", "2,1,32,32", "--format", "mxfp8"),
                        "bf16": ("--shape", "2,1,8,8", "--format", "bf16", "--data", "ties"),
                        "generated": ("--shape", "2,1,16,16", "--generated", "--routing", "holes")}.items():
    put("fixture", name, fixture(*arguments, "--tokens", "1"))
for operator in ("quantise", "silu_mul_quantise"):
    put("fixture", operator, fixture("--operator", operator, "--recipe", "nvfp4.trtllm/1", "--shape", "1,16"))
for operator, arguments in {"dispatch": ("--recipe", "nvfp4.trtllm/1"), "combine": ("--accumulation", "node")}.items():
    put("fixture", operator, fixture("--operator", operator, "--shape", "2,1,16", "--tokens", "1", *arguments))

# Lists of edits (edits.c): what, object, then what the edit takes.
put("edits", "none", b"")
put("edits", "element", bytes([0, 4, 0, 1, 9, 0, 0, 0, 0, 8, 0, 2, 0, 0, 192, 127]))
put("edits", "attribute", bytes([1, 0, 12, 8, 255, 255, 255, 127, 0, 0, 0, 0, 0, 0, 1, 0, 0, 12, 2, 97]))
put("edits", "dataset", bytes([2, 3, 1, 2, 2, 32, 0, 4, 0, 1, 2, 15, 4, 4, 2, 3]))
put("edits", "link", bytes([3, 3, 4, 0, 3, 17, 2, 1, 3, 18, 0, 2, 4, 12, 4, 18]))
