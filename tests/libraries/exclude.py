# SPDX-License-Identifier: Apache-2.0
"""exclude.py PACKAGE GAUGEBLOCK SOURCE: the lists that `gaugeblock study sensitivity --exclude` writes leave out, by the
quantisers' own code, the experts that it ranks and no other module. Skipped where the package is missing. PACKAGE:
compressed-tensors, whose matching llm-compressor calls; nvidia-modelopt."""
import csv
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings

PACKAGE, GAUGEBLOCK, SOURCE = sys.argv[1:4]
warnings.filterwarnings("ignore")
try:
    import torch
    VERSION = importlib.metadata.version(PACKAGE)
    if PACKAGE == "compressed-tensors":
        from compressed_tensors.utils.match import match_named_modules
    else:
        import modelopt.torch.quantization as quantization
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

CHECKPOINT = os.path.join(SOURCE, "fixtures/data/tiny-qwen3-moe")
EXPERT = re.compile(r"model[.]layers[.](\d+)[.]\w+[.]experts[.](\d+)[.]")


def lists():
    """The lists, and the experts that they are of."""
    with tempfile.TemporaryDirectory(prefix="gaugeblock-test-") as folder:
        def at(name):
            return os.path.join(folder, name)
        for arguments in (["import", CHECKPOINT, at("tiny.h5"), "--format", "nvfp4", "--capture",
                           os.path.join(CHECKPOINT, "capture.safetensors")],
                          ["study", "sensitivity", at("tiny.h5"), "--original", CHECKPOINT, "--csv", at("s.csv"), "--exclude",
                           at("exclude.json")]):
            subprocess.run([GAUGEBLOCK, *arguments], check=True, stdout=subprocess.DEVNULL)
        with open(at("s.csv")) as stream:
            ranked = {(int(row["layer"]), int(row["expert"])) for row in csv.DictReader(stream) if row["rank"]}
        with open(at("exclude.json")) as stream:
            return json.load(stream), ranked


class Layers(torch.nn.Module):
    """Modules named as a model's whose experts are linear layers."""

    def __init__(self, block, projections):
        super().__init__()
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleList()
        for _ in range(12):
            layer, mlp = torch.nn.Module(), torch.nn.Module()
            mlp.gate, mlp.shared_experts = torch.nn.Linear(16, 16), torch.nn.ModuleList([torch.nn.Linear(16, 16)])
            mlp.experts = torch.nn.ModuleList(
                torch.nn.ModuleDict({name: torch.nn.Linear(16, 16) for name in projections}) for _ in range(16))
            setattr(layer, block, mlp)
            self.model.layers.append(layer)


def same(what, left_out, ranked):
    if left_out != ranked:
        sys.exit(f"{PACKAGE} {VERSION}: {what}: left out are {sorted(left_out)}, not {sorted(ranked)}")
    print(f"{PACKAGE} {VERSION}: {what}: {len(ranked)} experts are left out, and nothing else")


def experts_of(names):
    """The experts of modules; of any other module its name."""
    found = {(name, EXPERT.match(name + ".")) for name in names}
    return {(int(match[1]), int(match[2])) if match else name for name, match in found}


def compressed_tensors(exclude, ranked):
    for block, projections in (("mlp", ["gate_proj", "up_proj", "down_proj"]), ("block_sparse_moe", ["w1", "w3", "w2"])):
        model = Layers(block, projections)
        every = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
        for what, ignore, expected in (("experts", exclude["ignore"], ranked),
                                       ("layers", exclude["whole_layers"]["ignore"],
                                        {(layer, expert) for layer in range(2) for expert in range(16)})):
            quantised = {name for name, _ in match_named_modules(model, ["Linear"], ignore)}
            same(f"ignore, {block}, {what}", experts_of(every - quantised), expected)


def disabled(model, rules):
    """Names of the quantisers of weights that the rules switch off, where all would be on without them."""
    def off(config):
        made = quantization.quantize(model(), {"quant_cfg": config, "algorithm": None}, forward_loop=None)
        return {name for name, module in made.named_modules()
                if type(module).__name__ == "TensorQuantizer" and "weight_quantizer" in name and not module.is_enabled}
    every = [{"quantizer_name": "*weight_quantizer", "cfg": {"num_bits": (2, 1), "block_sizes": {-1: 16, "type": "dynamic",
                                                                                                 "scale_bits": (4, 3)}}}]
    return off(every + rules) - off(every)


def modelopt(exclude, ranked):
    config = Qwen3MoeConfig(num_hidden_layers=2, num_experts=16, hidden_size=64, moe_intermediate_size=32, vocab_size=64,
                            num_attention_heads=2, num_key_value_heads=2, head_dim=32, num_experts_per_tok=4,
                            mlp_only_layers=[], decoder_sparse_step=1)
    everything = {(layer, expert) for layer in range(2) for expert in range(16)}
    for what, rules, expected in (("experts", exclude["quant_cfg"], ranked),
                                  ("layers", exclude["whole_layers"]["quant_cfg"], everything)):
        for block, projections in (("mlp", ["gate_proj", "up_proj", "down_proj"]), ("block_sparse_moe", ["w1", "w3", "w2"])):
            names = disabled(lambda: Layers(block, projections), rules)
            same(f"quant_cfg, {block}, {what}", experts_of(names), expected)
        names = disabled(lambda: Qwen3MoeForCausalLM(config), rules)
        stacked = re.compile(r"(model[.]layers[.]\d+[.]mlp[.]experts)[.]\w+_quantizers[.](\d+)")
        same(f"quant_cfg, transformers' stacked experts, {what}", experts_of(stacked.sub(r"\1.\2", name) for name in names),
             expected)


(compressed_tensors if PACKAGE == "compressed-tensors" else modelopt)(*lists())
