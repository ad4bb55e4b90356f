# SPDX-License-Identifier: Apache-2.0
"""Fixtures (docs/fixtures.md) as arrays. Generated weights are made by libgaugeblock, so they need no file of their own."""

import dataclasses
import os
import types
import typing

import numpy as np
import numpy.typing as npt

from gaugeblock import native
from gaugeblock.arrays import give


@dataclasses.dataclass(frozen=True)
class Weights:
    """One projection of all experts, as gaugeblock.h has it.

    codes: nvfp4 uint8 [experts, rows, columns / 2], the even column in the low nibble; mxfp8 E4M3 [experts, rows, columns];
    mxfp4 as nvfp4, fp8 as mxfp8; bf16 [experts, rows, columns]. scales: nvfp4 E4M3 [experts, rows, columns / 16]; mxfp8 and
    mxfp4 E8M0 [experts, rows, columns / 32]; fp8 float32 [experts, halves, row blocks, column blocks]; else None. global_scales: nvfp4 float32 [experts, halves], decoding scales; else None."""

    format: str
    codes: typing.Any
    scales: typing.Any
    global_scales: typing.Any
    dequantise: typing.Callable[[int], npt.NDArray[np.float32]]  # (expert) -> float32 [rows, columns]: the weights' values, rounded once from float64


@dataclasses.dataclass(frozen=True)
class Router:
    """A layer's router. recipe: its name (`gaugeblock list routers`); rules: the fields of struct gb_router, enumerators
    and formats as words ("softmax", "bf16"); weights: bf16 [experts, hidden]; bias: float32 [experts], or None."""

    recipe: str
    rules: types.SimpleNamespace
    weights: typing.Any
    bias: typing.Any


@dataclasses.dataclass(frozen=True)
class Quantisation:
    """How activations are quantised. recipe: its name (`gaugeblock list recipes`); format: "nvfp4", "mxfp8" or "fp8"; block:
    columns that share a scale; x_scale, intermediate_scale: decoding global scales, 1.0 where the recipe has none."""

    recipe: str
    format: str
    block: int
    x_scale: float
    intermediate_scale: float


@dataclasses.dataclass(frozen=True)
class Layer:
    """The inputs of one layer for the first `tokens` tokens, in the framework that was asked for.

    x: bf16 [tokens, hidden]; ids: int32 [tokens, top_k], -1 is an empty slot; routing_weights: float32 [tokens, top_k];
    gate_up: Weights of 2 * intermediate rows, the gate rows first; down: Weights of hidden rows. activation: its name
    in docs/numerics.md, such as "silu"; gate_up_bias: float32 [experts, 2 * intermediate], down_bias: float32 [experts,
    hidden]; None where the layer has none. apply_router_weight_on_input: the routing weight multiplies x, rounded to bf16, and not the
    output. activations: what the fixture's contract multiplies x and the intermediate as: "bf16", or "nvfp4", "mxfp8",
    "fp8", which they are quantised to first. A function that does not know them raises NotImplementedError. quantisation: how, or None
    for "bf16". router: a Router, or None where the layer has none."""

    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    x: typing.Any
    ids: typing.Any
    routing_weights: typing.Any
    gate_up: Weights
    down: Weights
    activation: str
    gate_up_bias: typing.Any
    down_bias: typing.Any
    apply_router_weight_on_input: bool = False
    activations: str = "bf16"
    quantisation: typing.Optional[Quantisation] = None
    router: typing.Optional[Router] = None


@dataclasses.dataclass(frozen=True)
class Values:
    """What a quantiser is asked for, and its inputs: the first `rows` rows of the fixture, in the framework asked for.

    operator: "quantise" or "silu_mul_quantise"; recipe: its name (`gaugeblock list recipes`), "" for none of them; rules:
    the fields of struct gb_quantiser (gaugeblock_quantiser.h), enumerators as their names there; values: bf16 or fp16
    [rows, columns], of silu_mul_quantise [rows, 2 * columns], the gates of a row, then its up values. silu: "exact",
    "divide", "reciprocal"; activated, product: what silu(gate), and its product with up, are rounded to: "fp32", "bf16",
    "fp16"; these three None for quantise. layout: of the scales, "linear" [rows, blocks] or "transposed" [blocks, rows].
    bound: float or None; global_scale: float, or None where the recipe has none: encoding or decoding, as
    rules.global_ says."""

    rows: int
    columns: int
    operator: str
    recipe: str
    rules: types.SimpleNamespace
    values: typing.Any
    silu: typing.Optional[str]
    activated: typing.Optional[str]
    product: typing.Optional[str]
    layout: str
    bound: typing.Optional[float]
    global_scale: typing.Optional[float]

    @property
    def tokens(self) -> int:
        return self.rows


@dataclasses.dataclass(frozen=True)
class Ranks:
    """What dispatch or combine is asked for, and its inputs: arrays of all ranks, one after the other, in the framework
    asked for. docs/numerics.md#dispatch, #combine.

    operator: "dispatch" or "combine"; ranks; tokens: of all ranks, tokens_per_rank each; rows: routes of all of them.
    ids: int32 [tokens, top_k], -1 is an empty slot; placement: int32 [experts], the rank of each expert. Of dispatch: x
    bf16 [tokens, hidden]; recipe: "bf16", or what rows are quantised by; rules: the fields of struct gb_quantiser, or None
    for "bf16"; global_scale: float, or None where the recipe has none. Of combine: values bf16 [rows, hidden], the rows
    that experts return, in the order of dispatch; routing_weights float32 [tokens, top_k]; accumulation: "receiver",
    "sender" or "node"; ranks_per_node. What the other operator has is None."""

    operator: str
    ranks: int
    tokens: int
    tokens_per_rank: int
    hidden: int
    experts: int
    top_k: int
    rows: int
    ids: typing.Any
    placement: typing.Any
    x: typing.Any
    recipe: str
    rules: typing.Optional[types.SimpleNamespace]
    global_scale: typing.Optional[float]
    values: typing.Any
    routing_weights: typing.Any
    accumulation: typing.Optional[str]
    ranks_per_node: typing.Optional[int]


def _quantiser_rules(ffi, quantiser):
    """struct gb_quantiser, its enumerators as their names."""
    rules = {}
    for name, field in ffi.typeof("struct gb_quantiser").fields:
        value = getattr(quantiser, name)
        rules[name + "_" * (name == "global")] = field.type.elements[value] if field.type.kind == "enum" else value
    return types.SimpleNamespace(**rules)


def _rules(ffi, router):
    """struct gb_router, its enumerators as words."""
    rules = {}
    for name, field in ffi.typeof("struct gb_router").fields:
        value = getattr(router, name)
        if field.type.kind == "enum":
            word = field.type.elements[value].removeprefix(f"GB_ROUTER_{name.upper()}_")
            value = word.removeprefix("GB_ROUTER_").removeprefix("GB_").lower()
        if name != "size":
            rules[name] = value
    return types.SimpleNamespace(**rules)


def code_arrays(quantisation: typing.Any) -> typing.Dict[str, typing.Tuple[typing.Dict[str, int], type]]:
    """Axes and type of the "codes" and "scales" of a struct gb_quantisation."""
    ffi, lib = native.library()
    q = ffi.new("struct gb_quantisation *", quantisation)
    a = lib.gb_code_arrays(q)
    scales = {"rows": q.rows, "blocks": a.blocks}
    if q.layout == lib.GB_SCALES_TRANSPOSED:
        scales = {"blocks": a.blocks, "rows": q.rows}
    return {
        "codes": ({"rows": q.rows, "bytes of a row": a.row_codes}, np.uint8),
        "scales": (scales, np.uint8 if a.scale_bytes == 1 else np.float32),
    }


class Fixture:
    """A fixture in memory. `with Fixture(path) as f`, or close() it. ValueError or OSError say what is wrong with a file.

    operator: "layer", or what a fixture without layers is a problem of: "quantise" or "silu_mul_quantise", which has
    values(), "dispatch" or "combine", which has over_ranks(). shape: tokens, hidden, intermediate, experts, top_k (of a quantiser: rows, columns); layers:
    how many; format: of the weights; activations: a Layer's; sha256: of its inputs."""

    def __init__(self, path: typing.Union[str, "os.PathLike[str]"]) -> None:
        ffi, lib = native.library()
        error = ffi.new("struct gb_error *")
        pointer = ffi.new("struct gb_fixture **")
        native.check(lib.gb_fixture_read(os.fsencode(path), pointer, error), error)
        self.path = os.fspath(path)
        self._fixture = ffi.gc(pointer[0], lib.gb_fixture_free)
        fixture = self._fixture
        self.shape = types.SimpleNamespace(
            **{n: getattr(fixture.shape, n) for n in ("tokens", "hidden", "intermediate", "experts", "top_k")}
        )
        self.layers = fixture.layers
        others = {lib.GB_QUANTISE: "quantise", lib.GB_SILU_MUL_QUANTISE: "silu_mul_quantise",
                  lib.GB_DISPATCH: "dispatch", lib.GB_COMBINE: "combine"}  # fmt: skip
        self.operator = others.get(fixture.operation, "layer")
        self.quantises = bool(lib.gb_fixture_quantises(fixture))
        self.exchanges = bool(lib.gb_fixture_exchanges(fixture))
        self.parts = self.layers or 1
        self.format = "none" if not self.layers else ffi.string(lib.gb_format_name(fixture.weights)).decode()
        self.activations = ffi.string(lib.gb_format_name(fixture.activations)).decode()
        self.sha256 = ffi.string(fixture.sha256).decode()

    def __enter__(self) -> "Fixture":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the fixture. Arrays made with framework="numpy" are copies and stay valid."""
        self._fixture = None  # the one reference to it

    def layer(
        self, index: int, tokens: typing.Optional[int] = None, framework: str = "numpy", device: str = "cpu"
    ) -> Layer:
        """The inputs of layer `index` (0 .. layers-1) for the first `tokens` tokens (all by default), copied.

        framework: "numpy", "torch" or "cupy"; device: where torch puts them, such as "cuda"."""
        ffi, lib = native.library()
        tokens = self.shape.tokens if tokens is None else tokens
        if not 0 <= index < self.layers:
            raise IndexError(f"{self.path} has layers 0 .. {self.layers - 1}, not {index}")
        if not 1 <= tokens <= self.shape.tokens:
            raise ValueError(f"{self.path} has {self.shape.tokens} tokens, so tokens={tokens} is not possible")
        a = lib.gb_layer_arguments(self._fixture, index, tokens)
        s = self.shape

        def array(pointer, dtype, shape, element=None):
            count = int(np.prod(shape))
            values = np.frombuffer(ffi.buffer(pointer, count * np.dtype(dtype).itemsize), dtype).reshape(shape)
            return give(values, element, framework, device)

        return Layer(
            tokens=tokens,
            hidden=s.hidden,
            intermediate=s.intermediate,
            experts=s.experts,
            top_k=s.top_k,
            x=array(a.x, np.uint16, (tokens, s.hidden), "bf16"),
            ids=array(a.ids, np.int32, (tokens, s.top_k)),
            routing_weights=array(a.routing_weights, np.float32, (tokens, s.top_k)),
            gate_up=self._weights(a, "gate_up", array),
            down=self._weights(a, "down", array),
            activation=ffi.string(lib.gb_activation_name(a.activation)).decode(),
            gate_up_bias=None
            if a.gate_up_bias == ffi.NULL
            else array(a.gate_up_bias, np.float32, (s.experts, 2 * s.intermediate)),
            down_bias=None if a.down_bias == ffi.NULL else array(a.down_bias, np.float32, (s.experts, s.hidden)),
            apply_router_weight_on_input=bool(a.apply_router_weight_on_input),
            activations=self.activations,
            quantisation=self._quantisation(index),
            router=self._router(index, array),
        )

    def inputs(
        self, index: int, tokens: int, framework: str = "numpy", device: str = "cpu"
    ) -> typing.Union[Layer, Values, Ranks]:
        """What a function gets of part `index`: a layer, or what another operator has, which is part 0."""
        if self.exchanges:
            return self.over_ranks(framework, device)
        return self.values(tokens, framework, device) if self.quantises else self.layer(index, tokens, framework, device)

    def values(
        self, rows: typing.Optional[int] = None, framework: str = "numpy", device: str = "cpu"
    ) -> Values:
        """A quantiser's inputs, its first `rows` rows (all by default), copied."""
        ffi, lib = native.library()
        rows = self.shape.tokens if rows is None else rows
        if not self.quantises:
            raise ValueError(f"{self.path} is no problem of a quantiser: use {'over_ranks()' if self.exchanges else 'layer()'}")
        if not 1 <= rows <= self.shape.tokens:
            raise ValueError(f"{self.path} has {self.shape.tokens} rows, so rows={rows} is not possible")
        q = self._fixture.quantisation
        gated = self.operator == "silu_mul_quantise"
        bits = np.frombuffer(ffi.buffer(self._fixture.values, 2 * rows * q.input_columns), np.uint16)
        bits = bits.reshape(rows, q.input_columns)
        half = q.input == lib.GB_FP16

        def name(text):
            return ffi.string(text).decode()

        return Values(
            rows=rows,
            columns=q.columns,
            operator=self.operator,
            recipe=name(self._fixture.recipe),
            rules=_quantiser_rules(ffi, q.quantiser),
            values=give(bits.view(np.float16) if half else bits, None if half else "bf16", framework, device),
            silu=name(lib.gb_silu_form_name(q.silu)) if gated else None,
            activated=name(lib.gb_format_name(q.activated)) if gated else None,
            product=name(lib.gb_format_name(q.product)) if gated else None,
            layout=name(lib.gb_scale_layout_name(q.layout)),
            bound=None if q.bound == float("inf") else q.bound,
            global_scale=None if getattr(q.quantiser, "global") == lib.GB_GLOBAL_NONE else q.global_scale,
        )

    def over_ranks(self, framework: str = "numpy", device: str = "cpu") -> Ranks:
        """The inputs of dispatch or combine, copied."""
        ffi, lib = native.library()
        if not self.exchanges:
            raise ValueError(f"{self.path} is a problem of {self.operator}, not of dispatch or combine")
        e, s = self._fixture.exchanged, self.shape
        asked = e.asked
        sums, coded = e.rows != ffi.NULL, bool(asked.quantiser.element)

        def array(pointer, dtype, shape, element=None):
            if pointer == ffi.NULL:
                return None
            count = int(np.prod(shape))
            values = np.frombuffer(ffi.buffer(pointer, count * np.dtype(dtype).itemsize), dtype).reshape(shape)
            return give(values, element, framework, device)

        has_global = coded and getattr(asked.quantiser, "global") != lib.GB_GLOBAL_NONE
        return Ranks(
            operator=self.operator,
            ranks=asked.ranks,
            tokens=s.tokens,
            tokens_per_rank=asked.tokens,
            hidden=s.hidden,
            experts=s.experts,
            top_k=s.top_k,
            rows=asked.rows,
            ids=array(e.ids, np.int32, (s.tokens, s.top_k)),
            placement=array(e.placement, np.int32, (s.experts,)),
            x=array(e.x, np.uint16, (s.tokens, s.hidden), "bf16"),
            recipe=ffi.string(self._fixture.recipe).decode(),
            rules=_quantiser_rules(ffi, asked.quantiser) if coded else None,
            global_scale=asked.global_scale if has_global else None,
            values=array(e.rows, np.uint16, (asked.rows, s.hidden), "bf16"),
            routing_weights=array(e.routing_weights, np.float32, (s.tokens, s.top_k)),
            accumulation=ffi.string(lib.gb_accumulation_name(asked.accumulation)).decode() if sums else None,
            ranks_per_node=asked.ranks_per_node if sums else None,
        )

    def exchange(self) -> typing.Any:
        """The library's struct gb_exchange."""
        ffi, _ = native.library()
        return ffi.addressof(self._fixture.exchanged.asked)

    def exchange_arrays(self) -> typing.Dict[str, typing.Tuple[typing.Dict[str, int], typing.Tuple[type, ...]]]:
        """Axes and types of what dispatch, or combine, hands out."""
        ffi, lib = native.library()
        parts = ["OUTPUT"] if self._fixture.exchanged.rows != ffi.NULL else ["COUNTS", "ROUTES", "CODES", "SCALES"]
        found = {}
        for part in parts:
            a = lib.gb_exchange_array(self.exchange(), lib.GB_FP32, getattr(lib, f"GB_EXCHANGE_{part}"))
            if a.name == ffi.NULL:
                continue
            axes = {"rows": a.rows, "columns": a.columns} if a.columns else {"rows": a.rows}
            types_of = {"int32": (np.int32,), "fp32": (np.float32,), "bf16": (np.uint16,)}
            types_ = types_of.get(ffi.string(a.format).decode(), (np.uint8,))
            found[ffi.string(a.name).decode()] = axes, types_ + ((np.uint16,) if part == "OUTPUT" else ())
        return found

    def quantisation(self, rows: int) -> typing.Any:
        """The library's struct gb_quantisation of the first `rows` rows."""
        _, lib = native.library()
        return lib.gb_fixture_quantisation(self._fixture, rows)

    def code_arrays(self, rows: int) -> typing.Dict[str, typing.Tuple[typing.Dict[str, int], type]]:
        """Axes and type of a quantiser's "codes" and "scales"."""
        return code_arrays(self.quantisation(rows))

    def activation_rules(self) -> typing.Any:
        """The library's struct gb_quantiser of the activations; NULL for bf16."""
        _, lib = native.library()
        return lib.gb_fixture_activation_rules(self._fixture)

    def activation_array(self, name: str, tokens: int) -> typing.Tuple[typing.Dict[str, int], type]:
        """Axes and type of codes or scales of activations: "x_codes", "x_scales", "intermediate_codes",
        "intermediate_scales". ValueError where the fixture's activations are bf16."""
        ffi, lib = native.library()
        rules = self.activation_rules()
        if rules == ffi.NULL:
            raise ValueError(f"{name}: the fixture's activations are bf16; leave it out")
        shape = ffi.new("struct gb_shape *", vars(self.shape))
        array = lib.gb_activation_array(rules, shape, getattr(lib, f"GB_{name.upper()}"))
        slots = {} if name.startswith("x_") else {"top_k": array.slots}
        return {"tokens": tokens, **slots, "width": array.width}, np.uint8 if array.bytes == 1 else np.float32

    def _quantisation(self, index):
        ffi, _ = native.library()
        rules = self.activation_rules()
        scales = self._fixture.layer[index].activation_scales
        if rules == ffi.NULL:
            return None
        return Quantisation(
            recipe=ffi.string(self._fixture.activation_recipe).decode(),
            format=self.activations,
            block=rules.block_columns,
            x_scale=1.0 if scales == ffi.NULL else scales[0],
            intermediate_scale=1.0 if scales == ffi.NULL else scales[1],
        )

    def _router(self, index, array):
        ffi, lib = native.library()
        a = lib.gb_route_arguments(self._fixture, index, 1)
        if a.router_weights.codes == ffi.NULL or a.router == ffi.NULL:
            return None
        named = ffi.string(self._fixture.router).decode()
        recipe = lib.gb_router_recipe_default(self._fixture.norm_topk_prob)
        return Router(
            recipe=named or ffi.string(recipe.name).decode(),
            rules=_rules(ffi, a.router),
            weights=array(a.router_weights.codes, np.uint16, (self.shape.experts, self.shape.hidden), "bf16"),
            bias=None if a.router_bias == ffi.NULL else array(a.router_bias, np.float32, (self.shape.experts,)),
        )

    def _weights(self, arguments, projection, array):
        ffi, lib = native.library()
        w = getattr(arguments, projection)
        sizes = [ffi.new("size_t *") for _ in range(3)]
        error = ffi.new("struct gb_error *")
        native.check(lib.gb_weights_bytes(ffi.addressof(w), *sizes, error), error)
        row = lib.gb_format_find(w.format)
        element = {lib.GB_CODEC_BF16: "bf16", lib.GB_CODEC_E4M3: "e4m3"}.get(row.codes)
        scale_element = {lib.GB_SCALE_E4M3: "e4m3", lib.GB_SCALE_E8M0: "e8m0"}.get(row.scales)
        codes_type = np.uint16 if element == "bf16" else np.uint8
        scales_type = np.float32 if row.scales == lib.GB_SCALE_FP32 else np.uint8
        codes, scales, _ = (size[0] // w.experts for size in sizes)
        scales_shape = (w.experts, w.rows, scales // w.rows)
        if row.block_rows > 1:
            columns = -(-w.columns // row.block)
            scales_shape = (w.experts, w.halves, scales // scales_type().itemsize // w.halves // columns, columns)

        def dequantise(expert: int) -> npt.NDArray[np.float32]:
            w = getattr(arguments, projection)
            if self._fixture is None:
                raise ValueError(f"{self.path} has been closed")
            if not 0 <= expert < w.experts:
                raise IndexError(f"{self.path} has experts 0 .. {w.experts - 1}, not {expert}")
            values = np.empty((w.rows, w.columns))
            weights, start = ffi.addressof(w), ffi.from_buffer("double[]", values)
            for row in range(w.rows):
                lib.gb_weights_row(weights, expert, row, start + row * w.columns)
            return values.astype(np.float32)

        return Weights(
            format=self.format,
            codes=array(w.codes, codes_type, (w.experts, w.rows, codes // w.rows // codes_type().itemsize), element),
            scales=None if not scales else array(w.scales, scales_type, scales_shape, scale_element),
            global_scales=None
            if w.global_scales == ffi.NULL
            else array(w.global_scales, np.float32, (w.experts, w.halves)),
            dequantise=dequantise,
        )
