# SPDX-License-Identifier: Apache-2.0
"""Assertions for anybody's tests: outputs of a Mixture-of-Experts layer against float64 truth, within derived limits.

    from gaugeblock.testing import assert_moe_close

    assert_moe_close(output, x, (w13, w13_scale, w13_global), (w2, w2_scale, w2_global), ids, weights,
                     format="nvfp4", layout="flashinfer-cutlass")

Arrays are those of numpy or torch, on any device. There is no tolerance to choose and no fixture file: truth, limits,
aggregate tests and the diagnosis are those of `gaugeblock verify` (docs/gates.md). docs/testing.md has the whole interface.
"""

import dataclasses
import os
import types
import typing

import numpy as np

from gaugeblock import layouts, native
from gaugeblock.arrays import bf16_to_float32, float32_to_bf16, give, take
from gaugeblock.problem import Problem
from gaugeblock.report import Report, Verdict, VerificationError
from gaugeblock.returned import checked, write

__all__ = ["Limits", "assert_combined", "assert_moe_close", "assert_quantised", "assert_routed", "limits"]

Array = typing.Any
Path = typing.Union[str, "os.PathLike[str]"]
WHOLE_BYTES = 64 << 20  # of codes: larger problems keep only the experts that tokens use


@dataclasses.dataclass(frozen=True)
class Limits:
    """Of every element of an output: its float64 truth, and how far from it a right kernel may be. [tokens, hidden],
    torch's float64 on the device of x where x is torch's, otherwise numpy's."""

    truth: Array
    limit: Array


@dataclasses.dataclass(frozen=True)
class _Moe:
    """The arguments that assert_moe_close and limits share."""

    x: Array
    w13: Array
    w2: Array
    ids: Array
    weights: Array
    format: str
    layout: str
    w13_bias: Array
    w2_bias: Array
    activation: str
    activations: str
    activation_recipe: typing.Optional[str]
    x_scale: typing.Any
    intermediate_scale: typing.Any
    apply_router_weight_on_input: bool


def assert_moe_close(
    output: Array,
    x: Array,
    w13: Array,
    w2: Array,
    ids: Array,
    weights: Array,
    *,
    format: str,
    layout: str = "linear",
    w13_bias: Array = None,
    w2_bias: Array = None,
    activation: str = "silu",
    activations: str = "bf16",
    activation_recipe: typing.Optional[str] = None,
    x_scale: typing.Any = None,
    intermediate_scale: typing.Any = None,
    apply_router_weight_on_input: bool = False,
    intermediate: Array = None,
    roundings: typing.Optional[typing.Mapping[str, str]] = None,
    accumulator_bits: typing.Optional[int] = None,
    order: typing.Optional[str] = None,
    gate: typing.Optional[Path] = None,
    save: typing.Optional[Path] = None,
) -> Report:
    """Asserts that `output`, [tokens, hidden], is that of a layer on these inputs, and returns the report.

    x: bf16 [tokens, hidden]; w13, w2: the experts' weights, an array of bf16, or a tuple (codes, scales), of nvfp4
    (codes, scales, global_scale) with decoding global scales; ids: [tokens, top_k], -1 is an empty slot; weights: the
    routing weights. format: of w13 and w2, "bf16", "nvfp4", "mxfp4", "mxfp8" or "fp8"; layout: how they lie, a name of
    gaugeblock.layouts.LAYOUTS. w13_bias: float32 [experts, 2 * intermediate] in the order of w13's rows. activation:
    its name in docs/numerics.md. activations: what x and the intermediate are quantised to, by `activation_recipe`, with the
    decoding global scales x_scale and intermediate_scale. intermediate: what the kernel made between, if it hands it out.
    roundings, accumulator_bits, order: what the kernel claims, as in gaugeblock.verify; gate: a policy. save: where the
    problem is written, as a fixture, if the assertion fails.

    VerificationError, an AssertionError, has the program's words: verdict, first wrong element, diagnosis, next step.
    ValueError or TypeError: an array of another shape, strides or type than the layout has, or input that is refused."""
    given = _Moe(x, w13, w2, ids, weights, format, layout, w13_bias, w2_bias, activation, activations, activation_recipe,
                 x_scale, intermediate_scale, apply_router_weight_on_input)
    problem = _problem(given)
    arrays = _outputs(problem, {"output": output, "intermediate": intermediate})
    words = _claim(roundings, accumulator_bits, order, gate)
    report, _ = problem.judge(lambda path: write(path, problem, problem.shape.tokens, [arrays]), words, save)
    if report.verdict is Verdict.FAIL and _is_unnamed(report):  # experts that no token has may be what it read
        wider = _problem(given, beside=True)
        if wider.shape.experts > problem.shape.experts:
            report, _ = wider.judge(lambda path: write(path, wider, wider.shape.tokens, [arrays]), words, save)
    if report.verdict is Verdict.FAIL and _points_elsewhere(report):
        fits = _other_layouts(given, arrays, words)
        if fits:
            report = dataclasses.replace(report, text=f"{_of_layout(layout, fits)}\n{report.text}")
    return _check(report)


def limits(
    x: Array,
    w13: Array,
    w2: Array,
    ids: Array,
    weights: Array,
    *,
    format: str,
    layout: str = "linear",
    w13_bias: Array = None,
    w2_bias: Array = None,
    activation: str = "silu",
    activations: str = "bf16",
    activation_recipe: typing.Optional[str] = None,
    x_scale: typing.Any = None,
    intermediate_scale: typing.Any = None,
    apply_router_weight_on_input: bool = False,
    output: str = "fp32",
    roundings: typing.Optional[typing.Mapping[str, str]] = None,
    accumulator_bits: typing.Optional[int] = None,
) -> Limits:
    """Truth and the limit of every element, for those who compare by themselves: a right kernel has
    |output - truth| <= limit everywhere. output: what the kernel writes, "fp32" or "bf16", whose rounding is in the limit.
    The other arguments are those of assert_moe_close."""
    if output not in ("fp32", "bf16"):
        raise ValueError(f"output={output!r}: give fp32 or bf16")
    problem = _problem(_Moe(x, w13, w2, ids, weights, format, layout, w13_bias, w2_bias, activation, activations,
                            activation_recipe, x_scale, intermediate_scale, apply_router_weight_on_input))
    zeros = np.zeros((problem.shape.tokens, problem.shape.hidden), np.float32 if output == "fp32" else np.uint16)
    words = [*_claim(roundings, accumulator_bits, None, None), "--no-diagnosis"]  # of zeros
    _, made = problem.judge(
        lambda path: write(path, problem, problem.shape.tokens, [{"output": zeros}]), words, None, _read_limits(zeros.shape)
    )
    if hasattr(x, "device") and hasattr(x, "detach"):
        made = [give(array, None, "torch", x.device) for array in made]
    return Limits(*made)


def assert_routed(
    ids: Array,
    weights: Array,
    *,
    recipe: str,
    logits: Array = None,
    x: Array = None,
    router: Array = None,
    bias: Array = None,
    accumulator_bits: typing.Optional[int] = None,
    save: typing.Optional[Path] = None,
) -> Report:
    """Asserts that ids and weights, [tokens, top_k], are what a router chooses by a recipe (`gaugeblock list routers`), and
    returns the report.

    Of logits, [tokens, experts], or of x, bf16 [tokens, hidden], and router, bf16 [experts, hidden]; bias: float32
    [experts], where the recipe has one. Experts may be swapped where truth lies within the derived bound of a tie."""
    if (logits is None) == (x is None) or (x is None) != (router is None):
        raise ValueError("give logits, or x and router")
    x, router = _as_product(logits) if router is None else (_bf16(x, "x"), _bf16(router, "router"))
    chosen = take(ids, "ids")
    if chosen.ndim != 2 or x.ndim != 2 or router.ndim != 2 or x.shape[1] != router.shape[1]:
        raise ValueError(f"ids {list(chosen.shape)}, x {list(x.shape)}, router {list(router.shape)}: give [tokens, top_k], "
                         "[tokens, hidden], [experts, hidden]")
    sizes = {"tokens": x.shape[0], "hidden": x.shape[1], "intermediate": 1, "experts": router.shape[0],
             "top_k": chosen.shape[1]}
    problem = Problem.of_layer(sizes, "bf16", router=True)
    problem.fixture.router = recipe.encode()
    layer = problem.fixture.layer[0]
    problem.fill(layer.x, x)
    problem.fill(layer.router.codes, router)
    problem.fill(layer.norm, np.ones(x.shape[1], np.float32))
    problem.fill(layer.ids, np.full(chosen.shape, -1, np.int32))
    if bias is not None:
        problem.fill(problem.add("GB_EXTRA_ROUTER_BIAS").router_bias, _float32(bias, "bias", (sizes["experts"],)))
    arrays = _outputs(problem, {"ids": ids, "routing_weights": weights})
    report, _ = problem.judge(
        lambda path: write(path, problem, sizes["tokens"], [arrays]), _claim(None, accumulator_bits, None, None), save
    )
    return _check(report)


def assert_combined(
    output: Array,
    expert_outputs: Array,
    weights: Array,
    *,
    roundings: typing.Optional[typing.Mapping[str, str]] = None,
    accumulator_bits: typing.Optional[int] = None,
    save: typing.Optional[Path] = None,
) -> Report:
    """Asserts that `output`, [tokens, hidden], is the sum over the slots of routing weight times expert output, and returns
    the report.

    expert_outputs: bf16 or float32 [tokens, top_k, hidden]; weights: [tokens, top_k]. roundings: {"slot": "bf16"} and the
    like, as in gaugeblock.verify."""
    values = take(expert_outputs, "expert_outputs")
    if values.ndim != 3:
        raise ValueError(f"expert_outputs: {list(values.shape)}; give [tokens, top_k, hidden]")
    tokens, top_k, hidden = values.shape
    terms = _bf16_terms(values, "expert_outputs")  # their sum is exact
    pairs, wide = tokens * top_k, len(terms)
    sizes = {"tokens": tokens, "hidden": hidden, "intermediate": wide, "experts": pairs, "top_k": top_k}
    problem = Problem.of_layer(sizes, "bf16")
    layer = problem.fixture.layer[0]
    x = np.zeros((tokens, hidden), np.uint16)  # so that gate is 32 and up 1 / 32: silu(gate) * up is 1
    gate_up = np.zeros((pairs, 2, wide, hidden), np.uint16)
    x[:, 0], gate_up[:, 0, :, 0], gate_up[:, 1, :, 0] = float32_to_bf16([1.0, 32.0, 1.0 / 32.0])
    problem.fill(layer.x, x)
    problem.fill(layer.gate_up.codes, gate_up)
    problem.fill(layer.down.codes, np.stack([term.reshape(pairs, hidden) for term in terms], axis=2))
    problem.fill(layer.ids, np.arange(pairs, dtype=np.int32))
    problem.fill(layer.routing_weights, _routing_weights(weights, (tokens, top_k)))
    arrays = _outputs(problem, {"output": output})
    words = ["--operator=down", *_claim(roundings, accumulator_bits, None, None)]
    report, _ = problem.judge(lambda path: write(path, problem, tokens, [arrays]), words, save)
    return _check(report)


def assert_quantised(
    codes: Array,
    scales: Array,
    values: Array,
    *,
    recipe: typing.Union[str, typing.Sequence[str]],
    layout: str = "linear",
    global_scale: typing.Optional[float] = None,
    bound: typing.Optional[float] = None,
    silu: typing.Optional[str] = None,
    activated: str = "fp32",
    product: str = "fp32",
    save: typing.Optional[Path] = None,
) -> Report:
    """Asserts that codes and scales are those that a recipe (`gaugeblock list recipes`) makes of `values`, bit for bit, and
    returns the report.

    values: bf16 or fp16 [rows, columns]; recipe: a name, or several of which one must fit, as `gaugeblock identify` finds
    them; layout: of the scales, "linear", "transposed", "swizzled-128x4" and others of docs/numerics.md#scale-layouts;
    global_scale: encoding or decoding, as the recipe has it. silu: "exact", "divide" or "reciprocal", of a kernel that
    multiplies silu(gate) by up first: values are then [rows, 2 * columns], the gates of a row, then its up values;
    activated, product: what silu(gate), and its product with up, are rounded to."""
    names = [recipe] if isinstance(recipe, str) else list(recipe)
    if not names:
        raise ValueError("recipe: an empty list; name at least one")
    reports = []
    for name in names:
        problem = _quantiser(name, values, layout, global_scale, bound, silu, activated, product)
        arrays = _code_arrays(problem, codes, scales, layout)
        rows = problem.shape.tokens
        report, _ = problem.judge(lambda path: write(path, problem, rows, [arrays]), (), save)  # noqa: B023
        reports.append(report)
        if report.passed:
            return report
    return _check(reports[0])


def _check(report):
    if not report.passed:
        raise VerificationError("\n" + report.text.strip())
    return report


def _claim(roundings, accumulator_bits, order, gate):
    words = [f"--order={order}"] if order is not None else []
    if roundings:
        words.append("--rounding=" + ",".join(f"{stage}={format}" for stage, format in roundings.items()))
    words += [f"--accumulator-bits={accumulator_bits}"] if accumulator_bits is not None else []
    return [*words, f"--gate={os.path.abspath(gate) if os.path.exists(gate) else gate}"] if gate is not None else words


def _outputs(problem, given):
    """What the kernel made, checked and as numpy arrays."""
    s = problem.shape
    layer = types.SimpleNamespace(**vars(s), router=True)
    return checked(problem, layer, {name: array for name, array in given.items() if array is not None})


def _bf16(array, name):
    """The bits, [..] uint16. float32 and fp16 are taken where they are exact."""
    values = take(array, name)
    if values.dtype == np.uint16:
        return values
    if values.dtype not in (np.float32, np.float16):
        raise TypeError(f"{name} is {values.dtype}: give bfloat16 (in numpy its uint16 bits, or float32)")
    made = float32_to_bf16(values)
    if not np.array_equal(bf16_to_float32(made), values.astype(np.float32)):
        raise ValueError(f"{name} is {values.dtype} with values that bf16 does not have: give what the kernel read, in bfloat16")
    return made


def _bf16_terms(values, name):
    """bf16 arrays whose sum is `values`: one, or of float32 three, each the leading bits of what is left, so that all sums of
    them are exact."""
    if values.dtype != np.float32:
        return [_bf16(values, name)]
    terms, rest = [], values
    for _ in range(3):
        terms.append((np.ascontiguousarray(rest).view(np.uint32) >> 16).astype(np.uint16))
        rest = rest - bf16_to_float32(terms[-1])
    if rest.any():
        raise ValueError(f"{name}: has values so small that their last bits are subnormal; give larger ones, or bf16")
    return terms


def _as_product(logits):
    """x and a router whose logits these are: their bf16 terms, and as many identities."""
    terms = _bf16_terms(take(logits, "logits"), "logits")
    identity = float32_to_bf16(np.eye(terms[0].shape[-1], dtype=np.float32))
    return np.concatenate(terms, axis=-1), np.concatenate([identity] * len(terms), axis=-1)


def _float32(array, name, shape):
    values = take(array, name)
    values = bf16_to_float32(values) if values.dtype == np.uint16 else values
    if values.dtype != np.float32 or values.shape != shape:
        raise ValueError(f"{name} is {values.dtype} {list(values.shape)}: give float32 or bf16 {list(shape)}")
    return values


def _routing_weights(weights, shape):
    return _float32(weights, "weights", shape)


def _number(scale, name):
    """A scale given as a number or as an array of one."""
    if scale is None:
        return 1.0
    values = np.asarray(scale if isinstance(scale, (int, float)) else take(scale, name), np.float32).reshape(-1)
    if values.size != 1:
        raise ValueError(f"{name}: {values.size} numbers; give the one that all experts have")
    return float(values[0])


def _ids(ids, experts):
    """int32 [tokens, top_k], within the experts."""
    values = take(ids, "ids")
    if values.ndim != 2 or values.dtype.kind not in "iu":
        raise ValueError(f"ids: {values.dtype} {list(values.shape)}; give whole numbers [tokens, top_k]")
    if values.size and not -1 <= values.min() <= values.max() < experts:
        raise ValueError(f"ids: from {values.min()} to {values.max()}; there are experts 0 .. {experts - 1}, and -1")
    return values.astype(np.int32)


def _sizes(m):
    """tokens, hidden, intermediate and experts, from x and the codes of w13 and w2."""
    shape = tuple(getattr(m.x, "shape", ()))
    first = m.w13[0] if isinstance(m.w13, (tuple, list)) else m.w13
    rules = layouts.LAYOUTS[m.layout]
    codes = tuple(getattr(first, "shape", ()))
    if len(shape) != 2 or len(codes) != (4 if rules.blocked else 3):
        raise ValueError(f"x {list(shape)}, codes of w13 {list(codes)}: give [tokens, hidden] and [experts, rows, ...], of "
                         f"{4 if rules.blocked else 3} dimensions in layout {m.layout!r}")
    rows = codes[2 if rules.columns_first else 1]
    if rows % 2:
        raise ValueError(f"w13 has {rows} rows in layout {m.layout!r}: those of gate and up are as many")
    return {"tokens": shape[0], "hidden": shape[1], "intermediate": rows // 2, "experts": codes[0]}


def _problem(m: _Moe, beside: bool = False) -> Problem:
    """The layer in memory; of a large one the experts that tokens have, and those beside them."""
    layouts.check_layout(m.layout, m.format)
    sizes = _sizes(m)
    ids = _ids(m.ids, sizes["experts"])
    hidden, inner = sizes["hidden"], sizes["intermediate"]
    used = np.arange(sizes["experts"])
    if sizes["experts"] * 3 * hidden * inner > WHOLE_BYTES:
        used = np.unique(ids[ids >= 0]) if (ids >= 0).any() else used[:1]
        used = np.unique((used[:, None] + [-1, 0, 1]) % sizes["experts"]) if beside else used
        used = np.pad(used, (0, max(0, ids.shape[1] - len(used))), mode="edge")  # as many as a token chooses, at least
    w13 = layouts.Projection("w13", m.format, m.layout, sizes["experts"], 2 * inner, hidden, 2)
    w2 = layouts.Projection("w2", m.format, m.layout, sizes["experts"], hidden, inner, 1)
    own = {**sizes, "experts": len(used), "top_k": ids.shape[1]}
    try:
        problem = Problem.of_layer(own, m.format, experts=used if len(used) < sizes["experts"] else None)
    except ValueError as refusal:
        raise ValueError(f"{refusal}; these are w13's sizes in layout {m.layout!r}") from None
    layer = problem.fixture.layer[0]
    for to, projection, given in ((layer.gate_up, w13, m.w13), (layer.down, w2, m.w2)):
        made = layouts.canonical(projection, given, used)
        for name in ("codes", "scales", "global_scales"):
            if getattr(made, name) is not None:
                problem.fill(getattr(to, name), getattr(made, name))
    problem.fill(layer.x, _bf16(m.x, "x"))
    problem.fill(layer.ids, np.where(ids < 0, -1, np.searchsorted(used, ids)).astype(np.int32))
    problem.fill(layer.routing_weights, _routing_weights(m.weights, ids.shape))
    _extend(problem, m, (w13, w2), used)
    return problem


def _extend(problem, m, projections, used):
    """What not every layer has: biases, another activation, quantised activations."""
    ffi, lib = native.library()
    error, fixture = ffi.new("struct gb_error *"), problem.fixture
    activation, format = ffi.new("enum gb_activation *"), ffi.new("enum gb_format *")
    native.check(lib.gb_activation_parse(m.activation.encode(), activation, error), error)
    fixture.activation = activation[0]
    fixture.apply_router_weight_on_input = m.apply_router_weight_on_input
    if m.w13_bias is not None or m.w2_bias is not None:
        layer = problem.add("GB_EXTRA_BIASES")
        for projection, bias, to in zip(projections, (m.w13_bias, m.w2_bias), (layer.gate_up_bias, layer.down_bias)):
            if bias is not None:
                values = _float32(bias, f"{projection.name}_bias", (projection.experts, projection.rows))[used]
                sources = layouts.row_sources(projection)
                problem.fill(to, values if sources is None else values[:, sources])
    if m.activations == "bf16":
        if m.x_scale is not None or m.intermediate_scale is not None or m.activation_recipe is not None:
            raise ValueError("x_scale, intermediate_scale and activation_recipe go with quantised activations")
        return
    if not lib.gb_format_parse(m.activations.encode(), format):
        raise ValueError(f"activations={m.activations!r}: give bf16, nvfp4, mxfp8 or fp8")
    recipe = ffi.NULL if m.activation_recipe is None else m.activation_recipe.encode()
    native.check(lib.gb_fixture_quantise_activations(fixture, format[0], recipe, error), error)
    scales = fixture.layer[0].activation_scales
    if scales != ffi.NULL:
        if m.x_scale is None or m.intermediate_scale is None:
            raise ValueError(f"activations={m.activations!r}: give x_scale and intermediate_scale, decoding global scales")
        scales[0], scales[1] = _number(m.x_scale, "x_scale"), _number(m.intermediate_scale, "intermediate_scale")


def _read_limits(shape):
    """Reads truth and limit of the file that the program writes."""

    def read(path):
        ffi, lib = native.library()
        error, file = ffi.new("struct gb_error *"), ffi.new("struct gb_results **")
        native.check(lib.gb_results_open(os.fsencode(path), file, error), error)
        made = []
        for name in ("truth", "limit"):
            values = np.empty(shape)
            status = lib.gb_results_get(
                file[0], f"/layers/0/{name}".encode(), 2, list(shape), ffi.from_buffer("double[]", values), error
            )
            made.append(values)
            if status != lib.GB_OK:
                break
        lib.gb_results_close(file[0])
        native.check(status, error)
        return made

    return read


def _is_unnamed(report):
    return report.cases[0].record.get("diagnosis", "").startswith("no structure found")


def _points_elsewhere(report):
    """Whether some token's output has hardly the direction of truth's, as weights that are misread leave it."""
    cosine = report.cases[0].record["metrics"]["overall"]["subject_truth"]["quantised"]["cosine_min"]
    return cosine is None or not cosine > 0.99


def _other_layouts(m, arrays, words):
    """Names of layouts by which the output that fails would be right."""
    fits, tried, words = [], {layouts.LAYOUTS[m.layout].places}, [*words, "--no-diagnosis"]
    for name, rules in layouts.LAYOUTS.items():
        if rules.places in tried or m.format not in rules.formats:
            continue
        tried.add(rules.places)
        try:
            problem = _problem(dataclasses.replace(m, layout=name))
            report, _ = problem.judge(lambda path: write(path, problem, problem.shape.tokens, [arrays]), words)  # noqa: B023
        except (TypeError, ValueError):
            continue  # its arrays have other shapes, or hold what no weights are
        fits += [name] if report.passed else []
    return fits


def _of_layout(given, fits):
    return f"The output is right if the weights lie in layout {' or '.join(map(repr, fits))}, not {given!r}: name that one."


def _quantiser(recipe, values, layout, global_scale, bound, silu, activated, product):
    """A quantiser's problem in memory."""
    ffi, lib = native.library()
    row = lib.gb_recipe_find(recipe.encode())
    if row == ffi.NULL or not row.quantiser.element:
        raise ValueError(f"recipe={recipe!r}: no such recipe of codes and scales; gaugeblock list recipes prints those known")
    array = take(values, "values")
    half = array.dtype == np.float16
    bits = array.view(np.uint16) if half else _bf16(array, "values")
    if bits.ndim != 2 or not bits.size:
        raise ValueError(f"values: {list(bits.shape)}; give [rows, columns]")
    q = ffi.new("struct gb_quantisation *")
    q.size, q.input = ffi.sizeof("struct gb_quantisation"), lib.GB_FP16 if half else lib.GB_BF16
    q.rows, q.input_columns = bits.shape
    q.columns = q.input_columns if silu is None else q.input_columns // 2
    q.quantiser = row.quantiser
    q.layout = lib.GB_SCALES_TRANSPOSED if layout == "transposed" else lib.GB_SCALES_LINEAR
    q.bound = float("inf") if bound is None else bound
    q.global_scale = 1.0 if global_scale is None else _number(global_scale, "global_scale")
    if silu is not None:
        q.silu = _enumerator(silu, {"exact": lib.GB_SILU_EXACT, "divide": lib.GB_SILU_DIVIDE, "reciprocal": lib.GB_SILU_RECIPROCAL})
        formats = {"fp32": lib.GB_FP32, "bf16": lib.GB_BF16, "fp16": lib.GB_FP16}
        q.activated, q.product = _enumerator(activated, formats), _enumerator(product, formats)
    error, pointer = ffi.new("struct gb_error *"), ffi.new("struct gb_fixture **")
    operation = lib.GB_QUANTISE if silu is None else lib.GB_SILU_MUL_QUANTISE
    native.check(lib.gb_fixture_new_quantise(operation, q, recipe.encode(), pointer, error), error)
    problem = Problem(ffi.gc(pointer[0], lib.gb_fixture_free))
    problem.fixture.generator, problem.fixture.source = b"memory/1", b"gaugeblock.testing"
    problem.fixture.nonfinite = bool(((bits & (0x7C00 if half else 0x7F80)) == (0x7C00 if half else 0x7F80)).any())
    problem.fill(problem.fixture.values, bits)
    return problem


def _enumerator(word, known):
    if word not in known:
        raise ValueError(f"{word!r}: give {', '.join(known)}")
    return known[word]


def _code_arrays(problem, codes, scales, layout):
    """Codes and scales, checked; those in tiles in rows."""
    ffi, lib = native.library()
    if layout not in ("linear", "transposed"):
        place, known = ffi.new("struct gb_scales *"), ffi.new("enum gb_layout *")
        if not lib.gb_layout_parse(layout.encode(), known):
            raise ValueError(f"layout={layout!r}: no such layout of scales; docs/numerics.md#scale-layouts has them")
        (axes, dtype) = problem.code_arrays(problem.shape.tokens)["scales"]
        place.layout, place.rows, place.columns, place.bytes = known[0], axes["rows"], axes["blocks"], np.dtype(dtype).itemsize
        size, error = ffi.new("size_t *"), ffi.new("struct gb_error *")
        native.check(lib.gb_layout_bytes(place, size, error), error)
        packed = np.ascontiguousarray(take(scales, "scales")).view(np.uint8).reshape(-1)
        if packed.size != size[0]:
            raise ValueError(f"scales: {packed.size} bytes; layout {layout!r} of {axes['rows']} x {axes['blocks']} has {size[0]}")
        scales = np.empty((axes["rows"], axes["blocks"]), dtype)
        native.check(lib.gb_layout_unpack(place, ffi.from_buffer(packed), ffi.from_buffer(scales), error), error)
    layer = types.SimpleNamespace(rows=problem.shape.tokens)
    return checked(problem, layer, {"codes": codes, "scales": scales})
