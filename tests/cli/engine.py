# SPDX-License-Identifier: Apache-2.0
"""A stub of an engine: a transformers model whose decoder layers are called as vLLM and SGLang call theirs, with the
residual stream in two tensors and norms that add to it in place.

    engine.py FOLDER OUTPUT TOKENS vllm|sglang

captures a prompt of that many random tokens, those of fixtures/capture.py. Needs torch and transformers."""
import functools
import os
import sys

import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../fixtures"))
import capture_engine  # noqa: E402


class Norm(torch.nn.Module):
    """residual += x; x = norm(residual), both in place."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x, residual=None):
        if residual is None:
            return self.norm(x)
        residual += x
        x.copy_(self.norm(residual))
        return x, residual


class Block(torch.nn.Module):
    """Takes tokens without a batch around them, as engines do."""

    def __init__(self, block):
        super().__init__()
        self.experts, self.block = block.experts, [block]  # the block is no child

    def forward(self, x):
        output = self.block[0](x[None])
        return (output[0] if isinstance(output, tuple) else output)[0]


class Layer(torch.nn.Module):
    def __init__(self, layer, rotary):
        super().__init__()
        self.input_layernorm, self.self_attn = Norm(layer.input_layernorm), layer.self_attn
        self.post_attention_layernorm, self.mlp = Norm(layer.post_attention_layernorm), layer.mlp
        if hasattr(layer.mlp, "experts"):
            self.mlp = Block(layer.mlp)
        self.rotary = [rotary]  # no child

    def forward(self, positions, hidden_states, residual):
        if residual is None:
            residual = hidden_states.clone()
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        angles = self.rotary[0](hidden_states[None], positions[None])
        hidden_states = self.self_attn(hidden_states[None], position_embeddings=angles, attention_mask=None)[0][0]
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


class BatchLayer(Layer):
    """SGLang's has the batch between both, and names what it is given."""

    def forward(self, positions, hidden_states, forward_batch, residual):
        return super().forward(positions, hidden_states, residual)


class Engine(torch.nn.Module):
    def __init__(self, folder, kind):
        super().__init__()
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.kind, self.embed = kind, model.model.embed_tokens
        layer = Layer if kind == "vllm" else BatchLayer
        self.layers = torch.nn.ModuleList([layer(of, model.model.rotary_emb) for of in model.model.layers])

    def apply_model(self, function):
        return [function(self)]

    def generate(self, ids):
        positions, hidden, residual = torch.arange(len(ids)), self.embed(ids), None
        with torch.no_grad():
            for layer in self.layers:
                if self.kind == "vllm":
                    hidden, residual = layer(positions, hidden, residual)
                else:
                    hidden, residual = layer(positions=positions, hidden_states=hidden, forward_batch=object(),
                                             residual=residual)


if __name__ == "__main__":
    folder, output, tokens, kind = sys.argv[1:]
    engine = Engine(folder, kind)
    ids = torch.randint(0, 128, [int(tokens)], generator=torch.Generator().manual_seed(0))
    print(engine.apply_model(functools.partial(capture_engine.watch, output=output)))
    engine.generate(ids)
    engine.generate(ids[:1])  # a step that decodes is not captured
