# SPDX-License-Identifier: Apache-2.0
"""Where systems put the packed weights and scales of a Mixture-of-Experts layer, and from there into fixtures.

A fixture (gaugeblock.h) has the gate rows first, codes in rows, the even column in the low nibble, scales in rows.
docs/testing.md#layouts has the table of the layouts with what each is read from.
"""

import dataclasses
import typing

import numpy as np

from gaugeblock import native
from gaugeblock.arrays import take

BLOCKED = ("nvfp4", "mxfp4", "mxfp8")  # formats with a one-byte scale for every block of a row
SHUFFLED_ROWS = 32  # rows that TensorRT-LLM's kernels with tiles of 128 rows permute among themselves


@dataclasses.dataclass(frozen=True)
class Layout:
    """formats: of the weights that lie so; up_first: w13 has the up rows first; in_turns: w13 has rows of its first and
    second half in turns; shuffled: rows are permuted among 32 neighbours; swizzled: scales lie in tiles of 128 x 4, each
    matrix padded; columns_first: codes and scales are [experts, columns, rows]; view: and that by strides alone, contiguous
    along the columns; blocked: codes are [experts, rows, blocks, bytes of a block]."""

    formats: typing.Tuple[str, ...]
    up_first: bool = False
    in_turns: bool = False
    shuffled: bool = False
    swizzled: bool = False
    columns_first: bool = False
    view: bool = False
    blocked: bool = False

    @property
    def places(self) -> "Layout":
        """The same for layouts that differ in their formats alone."""
        return dataclasses.replace(self, formats=())


ALL = ("bf16", *BLOCKED, "fp8")
FP4 = ("nvfp4", "mxfp4")
_SWIZZLED = Layout(BLOCKED, swizzled=True)
_UP_FIRST = Layout(("bf16", "fp8"), up_first=True)
_TRTLLM = Layout(FP4, up_first=True, in_turns=True, shuffled=True, swizzled=True)
LAYOUTS: typing.Dict[str, Layout] = {
    "linear": Layout(ALL),
    "vllm": Layout(ALL),
    "vllm-cutlass": _SWIZZLED,
    "flashinfer-cutlass": Layout(FP4, up_first=True, swizzled=True),
    "flashinfer-cutlass-unquantised": _UP_FIRST,
    "flashinfer-trtllm": _TRTLLM,
    "flashinfer-trtllm-fp8": Layout(("fp8",), up_first=True),
    "sglang": Layout(ALL),
    "sglang-cutlass": _SWIZZLED,
    "sglang-flashinfer": Layout(FP4, up_first=True, swizzled=True),
    "sglang-triton-kernels": Layout(("bf16",), columns_first=True),
    "torchao": Layout(BLOCKED),
    "torchao-swizzled": _SWIZZLED,
    "torchao-grouped": Layout(("bf16", *BLOCKED), columns_first=True, view=True),
    "gpt-oss": Layout(("mxfp4",), in_turns=True, blocked=True),
}


@dataclasses.dataclass(frozen=True)
class Canonical:
    """One projection of some experts as gaugeblock.h has it: codes uint8 or uint16 [experts, rows, row_codes]; scales
    uint8 [experts, rows, blocks], float32 [experts, row blocks, column blocks], or None; global_scales float32 [experts,
    halves], or None."""

    codes: np.ndarray
    scales: typing.Optional[np.ndarray]
    global_scales: typing.Optional[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Projection:
    """What is to be read: name, "w13" or "w2", for messages; format and layout by name; its sizes; halves: 2 of w13."""

    name: str
    format: str
    layout: str
    experts: int
    rows: int
    columns: int
    halves: int

    @property
    def rules(self) -> Layout:
        return LAYOUTS[self.layout]


def check_layout(name: str, format: str) -> None:
    """ValueError: no layout of this name, or none of weights of this format."""
    if name not in LAYOUTS:
        raise ValueError(f"layout={name!r}: there are {', '.join(LAYOUTS)}")
    if format not in LAYOUTS[name].formats:
        raise ValueError(f"layout={name!r} is of {', '.join(LAYOUTS[name].formats)} weights, not of {format}")


def canonical(p: Projection, given: typing.Any, experts: np.ndarray) -> Canonical:
    """The projection of these experts, out of what a caller has: an array of codes, or a tuple (codes, scales,
    global_scale). ValueError or TypeError: of another shape, type or strides than the layout has."""
    parts = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    wanted = {"bf16": 1, "nvfp4": 3}.get(p.format, 2)
    if len(parts) != wanted or any(part is None for part in parts):
        what = ("codes", "codes, scales", "codes, scales, global_scale")[wanted - 1]
        raise ValueError(f"{p.name}: {p.format} weights are ({what}), not {len(parts)} arrays")
    return Canonical(
        codes=_codes(p, parts[0], experts),
        scales=_scales(p, parts[1], experts) if wanted > 1 else None,
        global_scales=_global_scales(p, parts[2], experts) if wanted > 2 else None,
    )


def row_sources(p: Projection) -> typing.Optional[np.ndarray]:
    """Where the rows of a fixture are in the layout: [rows]; None: in their places."""
    order = np.arange(p.rows)  # of the layout: which row of the fixture each has
    if p.halves == 2 and p.rules.up_first:
        order = np.concatenate(np.split(order, 2)[::-1])
    if p.halves == 2 and p.rules.in_turns:
        order = np.stack(np.split(order, 2), axis=1).reshape(-1)
    if p.rules.shuffled:
        if p.rows % SHUFFLED_ROWS:
            raise ValueError(f"{p.name}: {p.rows} rows are no multiple of {SHUFFLED_ROWS}, as layout {p.layout!r} has them")
        four = np.arange(p.rows).reshape(-1, 8, 4)  # row 4 a + b of 32 goes to 8 b + a
        order = order[four.transpose(0, 2, 1).reshape(-1)]
    return None if np.array_equal(order, np.arange(p.rows)) else np.argsort(order)


def _pick(array, experts):
    """These experts alone, still where the array is: what is not needed is not copied from a device."""
    if len(experts) == array.shape[0]:
        return array
    if hasattr(array, "index_select") and hasattr(array, "device"):
        torch = __import__("torch")
        plain = array.view(torch.uint8) if array.element_size() == 1 else array  # not every 8-bit type can be indexed
        return plain[torch.as_tensor(experts, device=array.device)].view(array.dtype)
    return array[experts]


def _shape(array, name):
    if not hasattr(array, "shape"):
        raise TypeError(f"{name} is a {type(array).__name__}: give an array of numpy or torch")
    return tuple(array.shape)


def _expect(p, name, shape, expected, axes):
    if shape != expected:
        raise ValueError(
            f"{p.name} {name}: {list(shape)}; layout {p.layout!r} of {p.format} has [{axes}] = {list(expected)}"
        )


def _rows_first(p, name, array, rows, width):
    """Rows before columns, of an array that has columns first; ValueError where it should be a view and is none."""
    _expect(p, name, _shape(array, f"{p.name} {name}"), (p.experts, width, rows), "experts, columns, rows")
    torch = hasattr(array, "stride")
    strides = array.stride() if torch else tuple(step // array.itemsize for step in array.strides)
    along, kind = (1, "a transposed view, contiguous along the columns") if p.rules.view else (2, "contiguous along the rows")
    if (p.experts, width, rows)[along] > 1 and strides[along] != 1:
        raise ValueError(f"{p.name} {name}: strides {list(strides)}; layout {p.layout!r} is {kind}")
    return array.transpose(-2, -1) if torch else array.transpose(0, 2, 1)


def _codes(p, array, experts):
    _, lib = native.library()
    size = 2 if p.format == "bf16" else 1
    width = lib.gb_row_code_bytes(_format(p.format), p.columns) // size
    if p.rules.blocked:
        blocks = p.columns // 32
        _expect(p, "codes", _shape(array, f"{p.name} codes"), (p.experts, p.rows, blocks, width // blocks),
                "experts, rows, blocks, bytes of a block")
    elif p.rules.columns_first:
        array = _rows_first(p, "codes", array, p.rows, width)
    else:
        _expect(p, "codes", _shape(array, f"{p.name} codes"), (p.experts, p.rows, width), "experts, rows, " + _WIDTHS[size])
    codes = take(_pick(array, experts), f"{p.name} codes")
    if codes.dtype.itemsize != size or (size == 2 and codes.dtype != np.uint16):
        word = "bfloat16 (in numpy its uint16 bits)" if size == 2 else "bytes: uint8, int8, or torch's 8-bit types"
        raise TypeError(f"{p.name} codes are {codes.dtype}: {p.format} weights are {word}")
    codes = codes.reshape(len(experts), p.rows, width).view(np.uint16 if size == 2 else np.uint8)
    sources = row_sources(p)
    return codes if sources is None else codes[:, sources]


_WIDTHS = {1: "bytes of a row", 2: "columns"}


def _format(name):
    ffi, lib = native.library()
    format = ffi.new("enum gb_format *")
    if not lib.gb_format_parse(name.encode(), format):
        raise ValueError(f"format={name!r}: there are {', '.join(ALL)}")
    return format[0]


def _scales(p, array, experts):
    if p.format == "fp8":
        return _fp8_scales(p, array, experts)
    _, lib = native.library()
    blocks = p.columns // lib.gb_format_block(_format(p.format))
    if p.rules.swizzled:
        scales = _unswizzled(p, array, blocks, experts)
    else:
        if p.rules.columns_first:
            array = _rows_first(p, "scales", array, p.rows, blocks)
        _expect(p, "scales", _shape(array, f"{p.name} scales"), (p.experts, p.rows, blocks), "experts, rows, blocks")
        scales = _bytes(p, take(_pick(array, experts), f"{p.name} scales"))
    sources = row_sources(p)
    return scales if sources is None else scales[:, sources]


def _bytes(p, scales):
    if scales.dtype.itemsize != 1 or scales.dtype.kind not in "ui":
        raise TypeError(f"{p.name} scales are {scales.dtype}: {p.format} has bytes: uint8, or torch's 8-bit types")
    return scales.view(np.uint8)


def _unswizzled(p, array, blocks, experts):
    """Scales in tiles of 128 rows x 4 blocks, padded, whatever shape the bytes of an expert are given in."""
    ffi, lib = native.library()
    place = ffi.new("struct gb_scales *", {"layout": lib.GB_LAYOUT_SWIZZLED_128X4, "rows": p.rows, "columns": blocks, "bytes": 1})
    size, error = ffi.new("size_t *"), ffi.new("struct gb_error *")
    native.check(lib.gb_layout_bytes(place, size, error), error)
    shape = _shape(array, f"{p.name} scales")
    given = int(np.prod(shape)) * (array.element_size() if hasattr(array, "element_size") else array.itemsize)
    if shape[0] != p.experts or given != p.experts * size[0]:
        raise ValueError(
            f"{p.name} scales: {list(shape)}, {given} bytes; layout {p.layout!r} of {p.format} has {p.experts} experts of "
            f"{size[0]} bytes, {p.rows} rows and {blocks} blocks padded to multiples of 128 and 4"
        )
    packed = np.ascontiguousarray(take(_pick(array, experts), f"{p.name} scales")).view(np.uint8).reshape(len(experts), -1)
    scales = np.empty((len(experts), p.rows, blocks), np.uint8)
    for expert, linear in zip(packed, scales):
        native.check(lib.gb_layout_unpack(place, ffi.from_buffer(expert), ffi.from_buffer(linear), error), error)
    return scales


def _fp8_scales(p, array, experts):
    """float32, one for 128 x 128 codes of a half; or one for a half or an expert, which all its blocks then have."""
    half, columns = -(-p.rows // p.halves // 128), -(-p.columns // 128)
    shape = _shape(array, f"{p.name} scales")
    scales = take(array, f"{p.name} scales")
    if scales.dtype != np.float32:
        raise TypeError(f"{p.name} scales are {scales.dtype}: those of fp8 weights are float32")
    if shape in ((p.experts,), (p.experts, 1), (p.experts, p.halves)):
        scales = np.broadcast_to(scales.reshape(p.experts, -1, 1, 1), (p.experts, p.halves, half, columns))
    else:
        _expect(p, "scales", scales.shape, (p.experts, p.halves * half, columns), "experts, blocks of rows, blocks of columns")
        scales = scales.reshape(p.experts, p.halves, half, columns)
    if p.halves == 2 and p.rules.up_first:
        scales = scales[:, ::-1]
    return np.ascontiguousarray(scales[experts]).reshape(len(experts), p.halves * half, columns)


def _global_scales(p, array, experts):
    """float32 [experts, halves], from a number, [experts], or [experts, halves] in the order of the rows."""
    scales = np.asarray(array if isinstance(array, float) else take(array, f"{p.name} global_scale"), np.float32)
    if scales.shape not in ((), (1,), (p.experts,), (p.experts, 1), (p.experts, p.halves)):
        raise ValueError(f"{p.name} global_scale: {list(scales.shape)}; give [experts] or [experts, {p.halves}], decoding scales")
    whole = np.broadcast_to(scales.reshape(-1, 1) if scales.ndim < 2 else scales, (p.experts, p.halves))
    whole = whole[:, ::-1] if p.halves == 2 and p.rules.up_first else whole
    return np.ascontiguousarray(whole[experts])
