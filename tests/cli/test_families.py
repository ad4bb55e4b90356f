# SPDX-License-Identifier: Apache-2.0
"""Families of models by their config.json and tensors: DeepSeek-V3 and Kimi-K2 as they are published, layers without
experts, models that are not known, maps, and what is refused in one line."""
import json
import os

import h5py
import numpy as np

import program
import published
from kept import expect_kept
from program import ALL, CAPTURE, CHECKPOINT, expect, path, run
from published import EXPERTS, Published, bf16, trained

ROUTER = "model.layers.{}.mlp.gate.weight"
BIAS = "model.layers.{}.mlp.gate.e_score_correction_bias"

TOKENS = 32 if ALL else 4 # of a model whose routing is compared


def refused(folder, *words, options=()):
    """Exit 2, one line with every word, and no file."""
    line = program.refused("import", folder, path("refused.h5"), *options)
    expect(all(word in line for word in words), f"{words} are not in {line}")
    expect(not os.path.exists(path("refused.h5")), "a refused import left a file")


class Values:
    """The trained model in bf16 as another one; config and tensors may be changed before write()."""

    def __init__(self, **changes):
        self.tensors = dict(trained())
        with open(os.path.join(CHECKPOINT, "config.json")) as stream:
            self.config = {**json.load(stream), **changes}
        self.quantization = None

    write = Published.write

    def without(self, *keys):
        for key in keys:
            del self.config[key]
        return self

    def renamed(self, *pairs):
        for old, new in pairs:
            self.tensors = {name.replace(old, new): tensor for name, tensor in self.tensors.items()}
        return self


def digest(folder, *options):
    run("import", folder, path("one.h5"), "--tokens", 3, *options)
    with h5py.File(path("one.h5")) as f:
        return f.attrs["input_sha256"].decode()


def widen(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


# DeepSeek-V3's shape of a checkpoint: FP8 blocks, a dense layer first, a bias for the choice, a shared expert.
DEEPSEEK = {"model_type": "deepseek_v3", "n_routed_experts": EXPERTS, "num_hidden_layers": 3, "norm_topk_prob": True,
            "scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 4, "topk_group": 2,
            "routed_scaling_factor": 2.5}


def deepseek(**changes):
    checkpoint = Published("fp8-128x128")
    moved = {}
    for name, tensor in checkpoint.tensors.items():
        layer = int(name.split(".")[2]) if name.startswith("model.layers.") else None
        moved[name if layer is None else name.replace(f"layers.{layer}.", f"layers.{layer + 1}.", 1)] = tensor
    moved["model.layers.0.post_attention_layernorm.weight"] = moved["model.layers.1.post_attention_layernorm.weight"]
    moved["model.layers.0.mlp.gate_proj.weight"] = ["BF16", np.zeros((64, 384), np.uint16)]
    draw = np.random.default_rng(3)
    for layer in (1, 2):
        moved[BIAS.format(layer)] = ["F32", (draw.normal(size=EXPERTS) / 8).astype(np.float32)]
        moved[f"model.layers.{layer}.mlp.shared_experts.down_proj.weight"] = ["BF16", np.zeros((384, 64), np.uint16)]
    checkpoint.tensors = moved
    del checkpoint.config["num_local_experts"]
    checkpoint.config.update({**DEEPSEEK, **changes})
    return checkpoint


def choice(score, groups, kept, top_k):
    """The sets of experts, by DeepSeek-V3's rule. score: [tokens, experts], biased."""
    grouped = score.reshape(len(score), groups, -1)
    best = np.argsort(-np.sort(grouped, axis=2)[:, :, -2:].sum(axis=2), axis=1)[:, :kept]
    masked = np.full_like(grouped, -np.inf)
    for t, chosen in enumerate(best):
        masked[t, chosen] = grouped[t, chosen]
    return np.sort(np.argsort(-masked.reshape(score.shape), axis=1)[:, :top_k], axis=1)


for model, router, groups, kept, scale in (
        ("deepseek_v3", "transformers.deepseek-v3/2;groups=4;kept=2", 4, 2, 2.5),
        ("kimi_k2", "moonshotai.kimi-k2/1", 1, 1, 2.827),
        ("deepseek_v3", "transformers.deepseek-v3/2;groups=1;kept=1;scale=2.446", 1, 1, 2.446)):
    checkpoint = deepseek(model_type=model, n_group=groups, topk_group=kept, routed_scaling_factor=scale)
    done = run("import", checkpoint.write(model), path("deep.h5"), "--tokens", TOKENS)
    expect("left out: layers 0 (no experts)" in done.stdout and "shared experts of layers 1-2" in done.stdout,
           done.stdout)
    with h5py.File(path("deep.h5")) as f:
        expect(f.attrs["router"].decode() == router, f"{model}: {f.attrs['router']}")
        for n in range(2):
            layer = f[f"layers/{n}"]
            expect(layer.attrs["index"] == n + 1, "layers begin behind the dense one")
            bias = checkpoint.tensors[BIAS.format(n + 1)][1]
            expect((layer["router/bias"][()] == bias).all(), f"{model}: bias of layer {n}")
            score = 1 / (1 + np.exp(-widen(layer["x"][()]) @ widen(layer["router/weight"][()]).T))
            ids = layer["routing/ids"][()]
            expect((np.sort(ids, axis=1) == choice(score + bias, groups, kept, 4)).all(), f"{model}: ids of layer {n}")
            weights = np.take_along_axis(score, ids, 1)
            weights *= scale / weights.sum(axis=1, keepdims=True)
            expect(np.allclose(layer["truth/routing_weights"][()], weights, rtol=1e-6), f"{model}: weights")
            name = f"model.layers.{n + 1}.mlp.experts.5.up_proj.weight"
            expect((layer["gate_up/codes"][5, 192:] == checkpoint.tensors[name][1]).all(), f"{model}: codes")
    if ALL:
        run("verify", path("deep.h5"))

# DeepSeek-V2: softmax, groups by their largest score; "greedy" has no groups, whatever else is said.
def deepseek_v2(**changes):
    checkpoint = deepseek(**{"model_type": "deepseek_v2", "norm_topk_prob": False, "scoring_func": "softmax",
                             "topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0, **changes})
    return checkpoint.write("v2")


for method, kept, router in (("group_limited_greedy", 2, "transformers.deepseek-v2/1;groups=4;kept=2"),
                             ("greedy", 4, "transformers.deepseek-v2/1;groups=1;kept=1"),
                             (None, 4, "transformers.deepseek-v2/1;groups=1;kept=1")):
    run("import", deepseek_v2(topk_method=method), path("deep.h5"), "--layers", 1, "--tokens", TOKENS)
    with h5py.File(path("deep.h5")) as f:
        expect(f.attrs["router"].decode() == router, f"{method}: {f.attrs['router']}")
        layer = f["layers/0"]
        score = np.exp(widen(layer["x"][()]) @ widen(layer["router/weight"][()]).T)
        score /= score.sum(axis=1, keepdims=True)
        grouped = score.reshape(TOKENS, 4, -1)
        best = np.argsort(-grouped.max(axis=2), axis=1)[:, :kept]
        masked = np.full_like(grouped, -1.0)
        np.put_along_axis(masked, best[..., None], np.take_along_axis(grouped, best[..., None], 1), 1)
        ids = layer["routing/ids"][()]
        expect((np.sort(ids, axis=1) == np.sort(np.argsort(-masked.reshape(TOKENS, -1), axis=1)[:, :4], axis=1)).all(), method)
        expect(np.allclose(layer["truth/routing_weights"][()], 16 * np.take_along_axis(score, ids, 1), rtol=1e-6), method)
for change, words in (({"norm_topk_prob": True}, ["norm_topk_prob", "is true"]), ({"scoring_func": "sigmoid"}, ["scoring_func", "'sigmoid'"]),
                      ({"topk_method": "noaux_tc"}, ["topk_method", "'noaux_tc'"])):
    refused(deepseek_v2(**change), "config.json", *words)

# Llama 4: the routing weight multiplies what the expert reads, so that there is no stream of the stack.
llama4 = Values(model_type="llama4_text", num_experts_per_tok=1, intermediate_size=192).renamed(
    (".mlp.gate.weight", ".feed_forward.router.weight"), (".mlp.experts.", ".feed_forward.experts."))
run("import", llama4.write("llama4"), path("deep.h5"), "--tokens", TOKENS)
with h5py.File(path("deep.h5")) as f:
    expect(f.attrs["router"].decode() == "transformers.llama4/1" and f.attrs["weighed_input"] == 1 and "stack" not in f,
           dict(f.attrs))
    for n in range(2):
        layer = f[f"layers/{n}"]
        score = widen(layer["x"][()]) @ widen(layer["router/weight"][()]).T
        ids = layer["routing/ids"][()]
        expect((ids[:, 0] == score.argmax(axis=1)).all(), f"Llama 4: ids of layer {n}")
        expect(np.allclose(layer["truth/routing_weights"][()], 1 / (1 + np.exp(-np.take_along_axis(score, ids, 1))),
                           rtol=1e-6), f"Llama 4: weights of layer {n}")

# A range without experts, and one that goes around them.
refused(path("kimi_k2"), "--layers 0-0", "no experts", options=["--layers", 0])
run("import", path("kimi_k2"), path("deep.h5"), "--layers", "0-1", "--tokens", 2)
run("verify", path("deep.h5"), "--batch", 1)

# What is said of a router and no recipe does.
for change, words in (
        ({"norm_topk_prob": False}, ["norm_topk_prob", "divided"]),
        ({"scoring_func": "softmax"}, ["scoring_func", "'softmax'"]),
        ({"topk_method": "greedy"}, ["topk_method", "'greedy'"]),
        ({"n_group": 5}, ["n_group", "2 of 5 groups of 16"]),
        ({"topk_group": 5}, ["topk_group", "5 of 4 groups"]),
        ({"n_group": 0}, ["n_group", "no number"]),
        ({"n_group": "4"}, ["n_group", "no number"]),
        ({"routed_scaling_factor": 0}, ["routed_scaling_factor", "above zero"]),
        ({"routed_scaling_factor": 1e60}, ["routed_scaling_factor", "above zero"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "'gelu'"]),
        ({"swiglu_limit": 7.0}, ["swiglu_limit", "silu does not"]),
        ({"model_type": "phimoe"}, ["phimoe", "sparsemixer"]),
        ({"model_type": "longcat_flash"}, ["longcat_flash", "identity"]),
        ({"model_type": "llama4_text"}, ["num_experts_per_tok", "is 4", "one expert a token"])):
    checkpoint = deepseek(**change)
    refused(checkpoint.write("wrong"), "config.json", *words)
checkpoint = deepseek()
del checkpoint.tensors[BIAS.format(2)]
refused(checkpoint.write("wrong"), BIAS.format(2), "missing", options=["--layers", "2"])
for array, words in ((np.zeros((2, EXPERTS), np.float32), ["[1, 16]", "[2, 16]"]),
                     (np.zeros(EXPERTS - 1, np.float32), ["[16]", "[15]"]),
                     (np.full(EXPERTS, np.nan, np.float32), ["not finite"])):
    checkpoint.tensors[BIAS.format(2)] = ["F32", array]
    refused(checkpoint.write("wrong"), BIAS.format(2), *words, options=["--layers", "2"])

# A model that nobody knows is the one that its tensors and keys say.
known = digest(Values().write("known"))
unknown = Values(model_type="new_moe").without("num_local_experts", "hidden_size", "moe_intermediate_size",
                                               "intermediate_size")
done = run("import", unknown.write("unknown"), path("one.h5"), "--tokens", 3)
expect("'new_moe' is not known" in done.stdout and "16 experts of 192 x 384" in done.stdout
       and "transformers.qwen3-moe/1" in done.stdout, done.stdout)
expect(digest(path("unknown")) == known, "other values than the known model's")
refused(Values(model_type="new_moe").without("norm_topk_prob").write("unknown"), "model_type", "'new_moe'",
        ROUTER.format(0) + " [16, 384]", "experts.0.gate_proj.weight [192, 384]", "--map")
for change in ({"scoring_func": "sigmoid"}, {"routed_scaling_factor": 2.5}, {"n_group": 4}, {"topk_method": "other"}):
    refused(Values(model_type="new_moe", **change).write("unknown"), "'new_moe'", "how it routes")
inside = Values()
inside.config = {"model_type": "new_vl", "text_config": inside.config}
expect(digest(inside.renamed(("model.layers", "model.language_model.layers")).write("unknown")) == known,
       "other values in a text_config")

# Names that nobody knows, and the map that says them.
other = Values(model_type="new_moe").without("norm_topk_prob").renamed(
    ("model.layers.", "decoder.blocks."), (".mlp.gate.weight", ".moe.router.w"), (".mlp.experts.", ".moe.expert_"),
    ("gate_proj", "a"), ("up_proj", "b"), ("down_proj", "c"), ("post_attention_layernorm", "norm2"))
refused(other.write("other"), "'new_moe'", "no tensor has a router's name", "decoder.blocks.0.moe.router.w [16, 384]",
        "--map")
MOE = "decoder.blocks.{layer}.moe."
MAP = {"router": "transformers.qwen3-moe/1",
       "tensors": {"router": MOE + "router.w", "gate": MOE + "expert_{expert}.a", "up": MOE + "expert_{expert}.b",
                   "down": MOE + "expert_{expert}.c", "norm": "decoder.blocks.{layer}.norm2.weight"}}


def mapped(content):
    with open(path("map.json"), "w") as stream:
        stream.write(content if isinstance(content, str) else json.dumps(content))
    return ["--map", path("map.json")]


expect(digest(path("other"), *mapped(MAP)) == known, "other values by a map")
expect(digest(path("other"), *mapped({**MAP, "experts": 16, "hidden": 384, "intermediate": 192, "layers": 2, "top_k": 4,
                                      "activation": "silu", "norm_plus_one": False, "rms_norm_eps": 1e-6})) == known,
       "other values by a map with sizes")
expect(digest(Values(model_type="new_moe").without("norm_topk_prob").write("like"),
              *mapped({"like": "mixtral"})) == known, "a model like Mixtral, whose tensors are Qwen's")
for change, words in (
        ("{", ["invalid JSON"]), ("[]", ["no JSON object"]),
        ({"names": {}}, ["names", "no key"]), ({"like": 3}, ["like", "not a text"]),
        ({"like": "no_model"}, ["like", "'no_model'"]), ({"router": "no/1"}, ["router", "'no/1'"]),
        ({"router": "transformers.deepseek-v3/2;groups=01"}, ["router", "unknown"]),
        ({"activation": "gelu"}, ["activation", "'gelu'"]), ({"experts": "16"}, ["experts", "whole number"]),
        ({"experts": 0}, ["experts", "no size"]), ({"experts": 2 ** 40}, ["experts", "no size"]),
        ({"experts": 15}, ["router.w", "[15, 384]", "[16, 384]"]),
        ({"layers": 2 ** 31 - 1}, ["can hold"]), ({"rms_norm_eps": -1}, ["rms_norm_eps", "above zero"]),
        ({"norm_plus_one": 1}, ["norm_plus_one", "true or false"]),
        ({"router": "transformers.deepseek-v3/2;groups=1;kept=1"}, ["adds a bias", "--map"]),
        ({"router": "transformers.deepseek-v3/2;groups=3;kept=1"}, ["3 groups", "16"]),
        ({"tensors": {"router": MOE + "router.w"}}, ["tensors", "neither"]),
        ({"tensors": {**MAP["tensors"], "gate": MOE + "a"}}, ["gate", "{expert}"]),
        ({"tensors": {**MAP["tensors"], "norm": "norm"}}, ["norm", "{layer}"]),
        ({"tensors": {**MAP["tensors"], "norm": "%s%n{layer}" + "x" * 200}}, ["norm", "96 characters"]),
        ({"tensors": {**MAP["tensors"], "other": "x"}}, ["other", "no tensor's key"])):
    refused(path("other"), *words, options=mapped(change if isinstance(change, str) else {**MAP, **change}))
line = run("import", path("other"), path("map.json"), *mapped(MAP), code=2).stderr
expect("map.json" in line and len(line.splitlines()) == 1, f"the map was written over: {line}")

# A router in FP32.
fp32 = Values()
for layer in range(2):
    values = widen(fp32.tensors[ROUTER.format(layer)][1]).astype(np.float32)
    fp32.tensors[ROUTER.format(layer)] = ["F32", values * np.float32(1 + 2 ** -12)]
refused(fp32.write("fp32"), ROUTER.format(0), "not exact in bf16", "--round-router")
expect(digest(path("fp32"), "--round-router") == known, "a rounded router")

# Experts of all in one tensor, as rows and as columns; the message has what was found.
def stacked(columns):
    checkpoint = Values()
    for layer in range(2):
        mlp = f"model.layers.{layer}.mlp.experts."
        parts = [np.stack([checkpoint.tensors.pop(f"{mlp}{e}.{p}.weight")[1] for e in range(EXPERTS)])
                 for p in published.PROJECTIONS]
        for name, array in (("gate_up_proj", np.concatenate(parts[:2], axis=1)), ("down_proj", parts[2])):
            checkpoint.tensors[mlp + name] = ["BF16", np.ascontiguousarray(array.swapaxes(1, 2) if columns else array)]
    return checkpoint


for columns in (False, True):
    expect(digest(stacked(columns).write("stacked")) == known, f"stacked, columns {columns}")
both = stacked(False)
NAME = "model.layers.0.mlp.experts.down_proj"
both.tensors[NAME] = ["BF16", np.ascontiguousarray(both.tensors[NAME][1][:, :, :-1])]
refused(both.write("stacked"), NAME, "[16, 384, 192]", "[16, 192, 384]", "it has [16, 384, 191]")
both.tensors[NAME] = stacked(True).tensors[NAME]
both.tensors[NAME.replace("down", "gate_up")] = ["BF16", np.zeros((16, 384, 384), np.uint16)]
run("import", both.write("stacked"), path("one.h5"), "--layers", 0, "--tokens", 2)  # 2 * 192 = 384: down tells

# A capture that says what the model's block computes.
run("import", path("known"), path("own.h5"), "--format", "bf16", "--capture", CAPTURE, "--tokens", 8)
with h5py.File(path("own.h5")) as f:
    outputs, ids = ([f[f"layers/{n}/{name}"][()] for n in range(2)] for name in ("truth/original", "routing/ids"))


def captured(change=lambda tensors: None):
    tensors = {name: [dtype, array[:8]] for name, (dtype, array) in published.read(CAPTURE).items()}
    for n in range(2):
        tensors[f"layer{n}.output_f64"] = ["F64", outputs[n]]
        tensors[f"layer{n}.router_ids_i64"] = ["I64", ids[n][:, ::-1].astype(np.int64)]
    change(tensors)
    published.write(path("capture.safetensors"), tensors)
    return ["--capture", path("capture.safetensors"), "--format", "bf16"]


def put(name, function):
    def change(tensors):
        tensors[name] = function(*tensors[name])
    return change


done = run("import", path("known"), path("own.h5"), *captured())
expect("2 captured layers: the same experts for every token, outputs within 0.0e+00" in done.stdout, done.stdout)
OUTPUT, IDS = "layer1.output_f64", "layer1.router_ids_i64"
for name in ("layer0.output_f64", OUTPUT): # within the limit of 2^-7, and the farther layer is told
    done = run("import", path("known"), path("own.h5"), *captured(put(name, lambda d, a: [d, a * 1.0077])))
    expect("outputs within 7.6e-03 (relative L2)" in done.stdout, done.stdout)
for n, (change, words) in enumerate((
        (put(OUTPUT, lambda d, a: [d, a * 1.01]), ["layer 1", "output differs", "relative L2"]),
        (put(OUTPUT, lambda d, a: [d, a * np.nan]), ["layer1.output_f64", "element 0 is nan"]),
        (put(OUTPUT, lambda d, a: [d, a * 0 + 1e39]), ["layer1.output_f64", "element 0 is 1e+39"]),
        (put(IDS, lambda d, a: [d, (a + 1) % 16]), ["layer 1", "other experts", "for 8 of 8 tokens, the first one token 0 "]),
        (put(IDS, lambda d, a: [d, np.where(np.isin(np.arange(8)[:, None], (3, 5)), (a + 1) % 16, a)]),
         ["layer 1", "for 2 of 8 tokens, the first one token 3 "]))):
    refused(path("known"), *words, options=captured(change))
    if ALL or n in (0, 1, 3): # an output, NaN, experts
        run("import", path("known"), path("own.h5"), "--trust", *captured(change))
for change, words in ((put(OUTPUT, lambda d, a: [d, a[:, 1:]]), [OUTPUT, "[8, 384]"]),
                      (put(OUTPUT, lambda d, a: ["BF16", bf16(a)]), [OUTPUT, "F64 or F32"]),
                      (put(IDS, lambda d, a: [d, a + 13]), [IDS, "no expert of 16"]),
                      (put(IDS, lambda d, a: [d, a[:, 1:]]), [IDS, "[8, 4]"])):
    refused(path("known"), *words, options=captured(change))

expect_kept()
