# SPDX-License-Identifier: Apache-2.0
"""What fixtures/capture.py and capture_engine.py write of a small model, each number against the model's formula. torch is
torch_of_numpy.py; test_models.py and test_capture_engine.py have the real one."""
import contextlib
import copy
import io
import json
import os
import sys
import types

import numpy as np

from program import SOURCE, expect, path
from torch_of_numpy import Module, ModuleList, Tensor, rounded, torch

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(SOURCE, "fixtures"))
sys.modules["torch"] = made_torch = torch()
import capture  # noqa: E402
import capture_engine  # noqa: E402

HIDDEN, EXPERTS, TOP_K, TOKENS, VOCABULARY = 6, 5, 2, 4, 122
draw = np.random.default_rng(7)
written = {}


def save_file(tensors, file, metadata):
    with open(file, "wb") as stream:
        header = json.dumps({"__metadata__": metadata}).encode()
        stream.write(len(header).to_bytes(8, "little") + header)
    written[file.rsplit(".", 2)[0]] = tensors


sys.modules["safetensors"] = types.SimpleNamespace(SafetensorError=ValueError)
sys.modules["safetensors.torch"] = types.SimpleNamespace(save_file=save_file)


# The model ------------------------------------------------------------------------------------------------------------

def parameter(*shape):
    return Tensor((draw.normal(size=shape) / 2).astype(np.float32))


class Linear(Module):
    def __init__(self, rows, columns=HIDDEN):
        super().__init__()
        self.weight = parameter(rows, columns)

    def forward(self, x):
        return x @ self.weight.T


class Norm(Module):
    def __init__(self):
        super().__init__()
        self.weight = parameter(HIDDEN)

    def forward(self, x):
        return x * self.weight


class Experts(Module):
    """[EXPERTS, HIDDEN, HIDDEN]; of each token, the sum over its slots."""

    def __init__(self):
        super().__init__()
        self.weight = parameter(EXPERTS, HIDDEN, HIDDEN)

    def forward(self, x, ids, weights):
        return x.like(sum(weights.array[:, s, None] * np.einsum("tc,trc->tr", x.array, self.weight.array[ids.array[:, s]])
                          for s in range(TOP_K)))


class Router(Module):
    """The first experts by their logits, with softmax over those."""

    def __init__(self, bias):
        super().__init__()
        self.scale = parameter(HIDDEN)  # no router's weight
        self.odd = parameter(EXPERTS, HIDDEN + 1)
        self.weight = parameter(EXPERTS, HIDDEN)
        if bias:
            self.bias = parameter(EXPERTS)

    def scores(self, x):
        logits = x @ self.weight.T
        logits = logits + self.bias if hasattr(self, "bias") else logits
        chosen, ids = logits.topk(TOP_K, 1)
        e = np.exp(chosen.array - chosen.array.max(axis=1, keepdims=True))
        return logits, Tensor((e / e.sum(axis=1, keepdims=True)).astype(logits.array.dtype)), ids

    def forward(self, x):
        return self.scores(x)


class Block(Module):
    def __init__(self, shared=None, bias=False):
        super().__init__()
        self.gate, self.experts = Router(bias), Experts()
        self.config = types.SimpleNamespace(_experts_implementation="grouped_mm")
        if shared:
            setattr(self, shared, Linear(HIDDEN))

    def forward(self, x):
        flat = x.reshape(-1, HIDDEN)
        _, weights, ids = self.gate(flat)
        made = self.experts(flat, ids, weights)
        for name in capture.SHARED:
            if hasattr(self, name):
                made = made + getattr(self, name)(flat)
        return made.reshape(x.shape), weights


class ScoresRouter(Router):
    """A weight for every expert, 0 for those not chosen."""

    def forward(self, x):
        logits, weights, ids = self.scores(x)
        scores = np.zeros_like(logits.array)
        np.put_along_axis(scores, ids.array, weights.array, axis=1)
        return Tensor(scores)


class DenseExperts(Experts):
    """All experts, of inputs that their scores have multiplied: [EXPERTS * tokens, HIDDEN]."""

    def forward(self, x, experts):
        parts = x.array.reshape(experts, -1, HIDDEN)
        return x.like(np.einsum("etc,erc->tr", parts, self.weight.array))


class ScoresBlock(Module):
    """Its router's name is another, and its experts are given one tensor."""

    def __init__(self, router):
        super().__init__()
        self.router, self.experts, self.shared_experts = router, DenseExperts(), Linear(HIDDEN)

    def forward(self, x):
        flat = x.reshape(-1, HIDDEN)
        weighed = Tensor((self.router(flat).array.T[:, :, None] * flat.array).reshape(-1, HIDDEN))
        return (self.experts(weighed, EXPERTS) + self.shared_experts(flat)).reshape(x.shape)


class AllRouter(ScoresRouter):
    """No more than a weight for every expert."""

    def forward(self, x):
        return Tensor(np.abs(super().forward(x).array) + 0.125)


class Silent(Module):
    """Returns no tensor, or is given none."""

    def forward(self, given=None):
        return self if given is not None else Tensor(np.zeros(1))


class Layer(Module):
    """factor: of what the block adds; loose: no module returns what it is given."""

    def __init__(self, mlp, factor=1.0, loose=False):
        super().__init__()
        self.attention, self.first, self.second, self.mlp = Linear(HIDDEN), Norm(), Norm(), mlp
        self.factor, self.loose, self.silent = factor, loose, Silent()

    def forward(self, hidden_states, mask=None):
        self.silent()
        self.silent(hidden_states)
        middle = hidden_states + self.attention(x=self.first(hidden_states))
        given = self.second(middle)
        made = self.mlp(given.clone() if self.loose else given)
        made = made[0] if isinstance(made, tuple) else made
        return middle + made * self.factor, mask


class Tower(Module):
    """Of a model that sees: more layers, without experts."""

    def __init__(self):
        super().__init__()
        self.layers = ModuleList(Layer(Linear(HIDDEN)) for _ in range(9))


class Model(Module):
    def __init__(self):
        super().__init__()
        self.tower, self.embedding = Tower(), parameter(VOCABULARY, HIDDEN)
        self.layers = ModuleList([Layer(Linear(HIDDEN)), Layer(Block("shared_expert", bias=True)),
                                  Layer(ScoresBlock(ScoresRouter(True)), factor=0.5), Layer(Block(), loose=True),
                                  Layer(ScoresBlock(AllRouter(False)))])
        text = types.SimpleNamespace(vocab_size=VOCABULARY, num_experts_per_tok=[TOP_K])
        self.config = types.SimpleNamespace(get_text_config=lambda: text, _experts_implementation=None)
        self.given, self.fails = None, False

    def forward(self, ids, use_cache):
        self.given = ids.array, use_cache
        if self.fails:
            raise RuntimeError("out of memory\nand more")
        x = Tensor(self.embedding.array[ids.array])
        for layer in self.layers:
            x, _ = layer(hidden_states=x, mask=None)
        return x


class Auto:
    """Of transformers: the class by which the model was asked for."""

    def __init__(self, known, model):
        self._model_mapping, self.model, self.asked = known, model, None

    def from_pretrained(self, folder, dtype=None):
        self.asked = folder, dtype
        if self.model is None:
            raise OSError("no weights\nthere")
        return self.model


class Config:
    pass


class Picture:
    pass


class Tokenizer:
    def __call__(self, text):
        return {"input_ids": [ord(letter) - 1 for letter in text]}


calls = set()  # of how much transformers is to say


def transformers(model, config=Config, tokenizer=True):
    quiet = types.SimpleNamespace(set_verbosity_error=lambda: calls.add("errors alone"),
                                  disable_progress_bar=lambda: calls.add("no progress"))
    made = types.SimpleNamespace(
        logging=quiet, AutoConfig=types.SimpleNamespace(from_pretrained=lambda folder: config()),
        AutoModelForCausalLM=Auto([Config], model), AutoModelForImageTextToText=Auto([], model),
        AutoTokenizer=types.SimpleNamespace(from_pretrained=lambda folder: Tokenizer() if tokenizer else 1 / 0))
    sys.modules["transformers"] = made
    return made


def run_capture(*arguments):
    """What the program prints, or what it ends with."""
    sys.argv = ["capture.py", *map(str, arguments)]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            capture.main()
        except SystemExit as end:
            return out.getvalue() + f"exit: {end}\n"
    return out.getvalue()


# What is expected -----------------------------------------------------------------------------------------------------

def f64(tensor):
    return tensor.array.astype(np.float64)


def in_float64(block, x):
    """Of the block as it is, in float64: output without shared experts, ids, weights."""
    logits = x @ f64(getattr(block, "gate", None).weight if hasattr(block, "gate") else block.router.weight).T
    router = block.gate if hasattr(block, "gate") else block.router
    logits = logits + f64(router.bias) if hasattr(router, "bias") else logits
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :TOP_K]
    e = np.take_along_axis(logits, ids, 1)
    e = np.exp(e - e.max(axis=1, keepdims=True))
    weights = e / e.sum(axis=1, keepdims=True)
    output = np.zeros_like(x)
    scores = np.zeros_like(logits)
    np.put_along_axis(scores, ids, weights, 1)
    if type(router) is AllRouter:
        scores += 0.125
    for t in range(len(x)):
        for e in range(EXPERTS):
            if hasattr(block, "gate"):
                output[t] += scores[t, e] * (f64(block.experts.weight)[e] @ x[t])
            else:  # the weighed input is rounded
                output[t] += f64(block.experts.weight)[e] @ rounded(scores[t, e] * x[t]).astype(np.float64)
    if hasattr(block, "router"):  # by weight, the larger first
        order = np.argsort(-np.take_along_axis(scores, ids, 1), axis=1, kind="stable")
        ids, weights = np.take_along_axis(ids, order, 1), np.take_along_axis(weights, order, 1)
    return logits, output, ids, weights


def shared_of(block, x):
    return next((x @ f64(getattr(block, name).weight).T for name in capture.SHARED if hasattr(block, name)), None)


def expected(model, ids, layers, outputs=True):
    """The tensors of a capture: the model in float32, its blocks in float64."""
    x, tensors = model.embedding.array[ids], {}
    for n, layer in enumerate(model.layers):
        middle = x + (x * layer.first.weight.array) @ layer.attention.weight.array.T
        given = middle * layer.second.weight.array
        made = layer.mlp(Tensor(given))
        made = made[0] if isinstance(made, tuple) else made
        out = middle + made.array * layer.factor
        if n in layers:
            of = {"mlp_input_bf16": rounded(given)}
            x64 = rounded(given).astype(np.float64)
            logits, output, chosen, weights = in_float64(layer.mlp, x64)
            of["router_logits_f64"] = logits
            if layer.factor == 1.0 and not layer.loose:
                of.update(residual_in_f64=x, residual_mid_f64=middle, residual_out_f64=out)
            if outputs:
                of["output_f64"], shared = output, shared_of(layer.mlp, given.astype(np.float64))
                if shared is not None:
                    of["shared_output_f64"] = shared
                if type(getattr(layer.mlp, "router", None)) is not AllRouter:
                    of.update(router_ids_i64=chosen, router_weights_f64=weights)
            tensors.update({f"layer{n}.{name}": values for name, values in of.items()})
        x = out
    return tensors


def same(found, wanted, what):
    expect(sorted(found) == sorted(wanted), f"{what}: {sorted(set(found) ^ set(wanted))}")
    for name, values in wanted.items():
        tensor = found[name]
        expect(tensor.shape == values.shape, f"{what}, {name}: {tensor.shape}, not {values.shape}")
        kind = {"bf16": "bfloat16", "f64": np.dtype(np.float64), "i64": np.dtype(np.int64)}[name.rsplit("_", 1)[1]]
        expect(tensor.dtype == kind, f"{what}, {name}: {tensor.dtype}")
        # Sums of some ten products of float64, in another sequence; what is not computed anew is the same.
        limit = 1e-13 * np.abs(values).max() if "output" in name or "router_w" in name else 0.0
        expect(np.abs(tensor.array - values).max() <= limit, f"{what}, {name}: {tensor.array - values}")


# The program ----------------------------------------------------------------------------------------------------------

FOLDER, TEXT, OUTPUT = path("model"), path("text.txt"), path("new.safetensors")
os.mkdir(FOLDER)
with open(os.path.join(FOLDER, "config.json"), "w") as stream:
    json.dump({"num_hidden_layers": 5}, stream)
with open(TEXT, "w") as stream:
    stream.write("yawns")  # y: 121, the last of the vocabulary

model = Model()
asked = transformers(model)
said = run_capture(FOLDER, TEXT, OUTPUT, "--bytes", "--tokens", TOKENS)
IDS = [ord(letter) for letter in "yawn"]
NO_STREAM = "".join(f"layer {n}: is no norm, block and addition: its residual stream is left out\n" for n in (2, 3))
NO_IDS = "layer 4: its code hands no ids on: they are left out\n"
expect(said == NO_STREAM + NO_IDS + f"{OUTPUT}: 4 tokens, layers 1, 2, 3, 4\n", said)
same(written[OUTPUT], expected(model, IDS, (1, 2, 3, 4)), "all layers")
expect(model.given[0].tolist() == [IDS] and model.given[1] is False, f"{model.given}")
expect(calls == {"errors alone", "no progress"}, f"{calls}")
expect(os.environ["HF_HUB_OFFLINE"] == "1", "models are asked of a network")
expect(model.device == "cpu" and model.layers.entries[1].mlp.config._experts_implementation == "eager", "loops over experts")
expect(asked.AutoModelForCausalLM.asked == (FOLDER, "auto") and asked.AutoModelForImageTextToText.asked is None, "which class")
expect(not any(module._hooks for module in model.modules()), "hooks were left")
expect(all(p.array.dtype == np.float32 for m in model.modules() for _, p in m.named_parameters()), "the model is another")

# Some layers, without outputs, with a tokenizer; the capture may be made again. A model that sees may be one alone.
asked = transformers(model, Picture)
said = run_capture(FOLDER, TEXT, OUTPUT, "--tokens", 5, "--layers", "2-3", "--no-outputs", "--dtype", "float32")
expect(said == NO_STREAM + f"{OUTPUT}: 5 tokens, layers 2, 3\n", said)
same(written[OUTPUT], expected(model, [ord(letter) - 1 for letter in "yawns"], (2, 3), False), "two layers")
expect(asked.AutoModelForImageTextToText.asked == (FOLDER, np.dtype(np.float32)), "of a model that sees")
expect(asked.AutoModelForCausalLM.asked is None, "of a model that sees")

# As many tokens as by default.
with open(path("long.txt"), "w") as stream:
    stream.write("yawns" * 13)
said = run_capture(FOLDER, path("long.txt"), OUTPUT, "--bytes", "--layers", 1, "--no-outputs")
expect(said == f"{OUTPUT}: 64 tokens, layers 1\n", said)

# Where a link leads, the capture is made again.
os.symlink(OUTPUT, path("link.safetensors"))
written.clear()
run_capture(FOLDER, TEXT, path("link.safetensors"), "--tokens", 1, "--layers", 1)
expect(os.path.islink(path("link.safetensors")) and list(written) == [OUTPUT], f"{list(written)}")

# Random ids, by their seed, where there is no text, or no tokenizer for it.
random = np.random.default_rng(0).integers(0, VOCABULARY, [3]).tolist()
for arguments, first in (((FOLDER, OUTPUT), ""), ((FOLDER, TEXT, OUTPUT), f"{FOLDER}: no tokenizer (division by zero)\n")):
    transformers(model, tokenizer=False)
    said = run_capture(*arguments, "--tokens", 3, "--layers", 1)
    expect(said == first + "3 random token ids, seed 0: the activations are no text's\n"
           f"{OUTPUT}: 3 tokens, layers 1\n", said)
    same(written[OUTPUT], expected(model, random, (1,)), "random ids")

# What is refused.
os.remove(OUTPUT)
transformers(model)
with open(path("odd.txt"), "wb") as stream:
    stream.write(b"ab\xff\xff")
with open(path("z.txt"), "w") as stream:
    stream.write("az")
of_bytes = "is not in the model's vocabulary of 122; is --bytes for another model?"
for arguments, words in (
        ([FOLDER, path("odd.txt"), OUTPUT, "--tokens", 2], f"{path('odd.txt')}: is no UTF-8 text: "),
        ([FOLDER, path("nowhere.txt"), OUTPUT], f"{path('nowhere.txt')}: No such file or directory"),
        ([FOLDER, TEXT, OUTPUT, "--tokens", 6], f"{TEXT}: has 5 tokens; give a longer text or --tokens 5"),
        ([FOLDER, path("z.txt"), OUTPUT, "--tokens", 2, "--bytes"], f"{path('z.txt')}: token 122 {of_bytes}"),
        ([FOLDER, OUTPUT, "--layers", "0"], f"{FOLDER}: has no MoE layer among those asked for")):
    said = run_capture(*arguments)
    expect(said.splitlines()[-1].startswith(f"exit: {words}"), f"{arguments}: {said}")
for arguments, words in ((["--tokens", 0], "--tokens 0: give a number from 1 on"), (["--bytes"], "--bytes: give a text file")):
    expect(run_capture(FOLDER, OUTPUT, *arguments) == f"capture.py: {words}\nexit: 2\n", f"{arguments}")
# The layers are counted by the model where config.json does not say how many there are, or is none.
for config in ("{}", '{"num_hidden_layers": "5"}', "[]", "no JSON"):
    with open(os.path.join(FOLDER, "config.json"), "w") as stream:
        stream.write(config)
    expect(run_capture(FOLDER, TEXT, OUTPUT, "--bytes", "--tokens", 2, "--layers", "4-5")
           == f"exit: --layers 4-5: {FOLDER} has layers 0-4\n", config)
model.fails = True
expect(run_capture(FOLDER, TEXT, OUTPUT, "--bytes", "--tokens", 2) == f"exit: {FOLDER}: does not run: out of memory\n", "run")
model.fails = False
transformers(None)
expect(run_capture(FOLDER, TEXT, OUTPUT, "--tokens", 2)
       == f"exit: {FOLDER}: transformers cannot load it: no weights\n", "a model that does not load")
transformers(Tower())
sys.modules["transformers"].AutoModelForCausalLM.model.config = model.config
for layers in ([], ["--layers", 0]):
    said = run_capture(FOLDER, TEXT, OUTPUT, "--tokens", 2, *layers)
    expect(said.startswith(f"exit: {FOLDER}: has no MoE layer"), f"no experts: {said}")
expect(not os.path.exists(OUTPUT), "a refusal left a file")

# Configurations, routers and tensors that the model above does not have.
for config, count in (({"moe_topk": 3}, 3), ({"moe_k": (4, 5)}, 4), ({"num_experts_per_token": 6, "moe_k": None}, 6),
                      ({"num_experts_per_tok": [], "moe_topk": 2}, 2), ({}, 0), ({"num_experts_per_tok": 1, "moe_k": 2}, 1)):
    expect(capture.top_k_of(types.SimpleNamespace(**config)) == count, f"{config}")
x = Tensor(np.ones((2, HIDDEN)))
none = Module()
expect(capture.logits_of(none, x) is None, "no router")
none.gate = Module()
none.gate.weight = parameter(EXPERTS, HIDDEN + 1)
expect(capture.logits_of(none, x) is None, "no weight of the input's width")


class Chosen(Module):
    """Its experts are given ids and weights, the smaller first, and its router, which is found where it is named, hands
    on a weight for every expert."""

    def __init__(self, named):
        super().__init__()
        self.experts, self.scorer = Experts(), [ScoresRouter(False).double()]
        if named:
            self.gate = self.scorer[0]

    def forward(self, x):
        flat = x.reshape(-1, HIDDEN)
        self.scorer[0](flat)
        _, weights, ids = self.scorer[0].scores(flat)
        ids, weights = Tensor(ids.array[:, ::-1]), Tensor(weights.array[:, ::-1])
        return self.experts(x=flat, ids=ids, weights=weights).reshape(x.shape)


for named in (True, False):
    block, given = Chosen(named), Tensor(draw.normal(size=(TOKENS, HIDDEN)).astype(np.float32))
    block.router = None  # as a block that has none
    output, shared, ids, weights = capture.in_float64(block, given, given, TOP_K)
    _, right_weights, right = block.scorer[0].scores(given.double())
    expect(shared is None and ids.array.tolist() == right.array[:, ::-1].tolist(), f"ids given to experts: {ids.array}")
    expect(weights.array.tolist() == right_weights.array[:, ::-1].tolist(), f"weights of experts: {weights.array}")


class Ungiven(Module):
    """Its experts are given no ids. router: one that hands them on, or None."""

    def __init__(self, router):
        super().__init__()
        self.gate, self.experts = router, Linear(HIDDEN)

    def forward(self, x):
        if self.gate is not None:
            self.gate(x.reshape(-1, HIDDEN))
        return self.experts(x)


class Handing(Router):
    def forward(self, x):
        return self.scores(x)[::-1]


router = Handing(False)
_, right_weights, right = copy.deepcopy(router).double().scores(given.double())
_, _, ids, weights = capture.in_float64(Ungiven(router), given, given, TOP_K)
expect(ids.array.tolist() == right.array.tolist(), f"ids that a router hands on: {ids.array}")
expect(weights.array.tolist() == right_weights.array.tolist(), f"weights that a router hands on: {weights.array}")
expect(capture.in_float64(Ungiven(None), given, given, TOP_K)[2:] == (None, None), "ids of no router")
a, b = Tensor(np.zeros(1)), Tensor(np.zeros(2))
for value, tensors in ((a, [a]), ([a, (b, 3)], [a, b]), ({"x": b, "y": [None, a]}, [b, a]), ("ab", []), (None, [])):
    found = capture.tensors_of(value)
    expect(len(found) == len(tensors) and all(f is t for f, t in zip(found, tensors)), f"tensors of {value}")
ids, weights = Tensor(np.zeros((3, 2), int)), Tensor(np.zeros((3, 2)))
other = Tensor(np.zeros((2, 3), int)), Tensor(np.zeros((2, 3)))
found = capture.routing_of([*other, weights, ids, Tensor(np.zeros((3, 2)))], 2, 3)
expect(found[0] is ids and found[1] is weights, "ids and weights by their shape")
for given in ([*other, weights], [ids, *other]):
    expect([part is None for part in capture.routing_of(given, 2, 3)] == [True, True], "ids or weights alone")
expect(capture.first_line(ValueError()) == "ValueError" and capture.first_line(ValueError(" a\nb")) == "a", "first lines")


# An engine ------------------------------------------------------------------------------------------------------------

class EngineNorm(Norm):
    """Adds in place, and returns both."""

    def forward(self, x, residual):
        residual.array += x.array
        x.array[...] = residual.array * self.weight.array
        return x, residual


class EngineLayer(Module):
    def __init__(self, mlp, norm=True):
        super().__init__()
        self.first, self.attention, self.second, self.mlp = EngineNorm(), Linear(HIDDEN), EngineNorm(), mlp
        self.norm = norm

    def forward(self, positions, hidden, residual=None, mask=None):
        if residual is None:
            residual = Tensor(np.zeros_like(hidden.array))
        hidden, residual = self.first(hidden, residual)
        hidden = self.attention(hidden)
        if self.norm:
            hidden, residual = self.second(hidden, residual)
        made = self.mlp(hidden)
        return made[0] if isinstance(made, tuple) else made, residual


def engine_run(layers, x):
    """What passes: per layer the stream before, behind the norm and after, and the block's input; float32."""
    hidden, residual, seen = x.copy(), np.zeros_like(x), []
    for layer in layers:
        of = {"residual_in_f64": hidden.astype(np.float64) + residual.astype(np.float64)}
        residual = residual + hidden
        hidden = (residual * layer.first.weight.array) @ layer.attention.weight.array.T
        if layer.norm:
            residual = residual + hidden
            hidden = residual * layer.second.weight.array
            of["residual_mid_f64"] = residual.astype(np.float64)
        of["mlp_input_bf16"] = rounded(hidden)
        made = layer.mlp(Tensor(hidden))
        hidden = made[0].array if isinstance(made, tuple) else made.array
        of["residual_out_f64"] = hidden.astype(np.float64) + residual.astype(np.float64)
        seen.append(of if layer.norm else {"mlp_input_bf16": of["mlp_input_bf16"]})
    return seen


engine = Module()
engine.layers = ModuleList([EngineLayer(Linear(HIDDEN)), EngineLayer(Block("shared_mlp")), EngineLayer(Block(), norm=False),
                            EngineLayer(Block())])
x = draw.normal(size=(TOKENS, HIDDEN)).astype(np.float32)


def pass_through():
    positions, hidden, residual = Tensor(np.arange(3 * TOKENS).reshape(3, -1)), Tensor(x.copy()), None
    for layer in engine.layers:
        hidden, residual = layer(positions, hidden, residual=residual, mask=Tensor(np.ones((TOKENS, HIDDEN))))


seen = engine_run(engine.layers, x)
for chosen, layers in ((None, [1, 2, 3]), ([0, 3], [3]), (range(2), [1])):
    written.clear()
    expect(capture_engine.watch(engine, path("engine.safetensors"), chosen) == layers, f"layers {chosen}")
    expect(not written, "written before anything passed")
    pass_through()
    wanted = {f"layer{n}.{name}": values for n in layers for name, values in seen[n].items()}
    same(written[path("engine.safetensors")], wanted, f"engine, layers {layers}")
    written.clear()
    pass_through()
    expect(not written, "a second pass was captured")
for ranks, rank, writes in ((True, 1, False), (True, 0, True), (False, 1, True)):
    made_torch.distributed = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda ranks=ranks: ranks,
                                                   get_rank=lambda rank=rank: rank)
    capture_engine.watch(engine, path("engine.safetensors"))
    pass_through()
    expect(bool(written) == writes, f"rank {rank}")
    written.clear()
made_torch.distributed = types.SimpleNamespace(is_available=lambda: False)
expect(capture_engine.first_rank(), "one process")
try:
    capture_engine.watch(engine, path("engine.safetensors"), [0])
except ValueError as error:
    expect("no MoE layer" in str(error), str(error))
else:
    sys.exit("a dense layer was watched")
