# SPDX-License-Identifier: Apache-2.0
"""What a function returned for a layer: checked, as numpy arrays by name, and as a file of outputs."""

import os

import numpy as np

from gaugeblock import native
from gaugeblock.arrays import take

CODES = ("x_codes", "x_scales", "intermediate_codes", "intermediate_scales")
NAMES = ("output", "intermediate", "ids", "routing_weights", *CODES, "counts", "routes", "codes", "scales")
QUANTISED = ("codes", "scales")


def checked(problem, layer, returned):
    """The arrays of one layer by name, in the order of NAMES: copies, since the function may return the same buffers for
    every layer and run. TypeError or ValueError: of another shape, type or name."""
    if problem.quantises:
        return _checked_codes(problem, layer, returned)
    if problem.exchanges:
        return _checked_exchange(problem, returned)
    given = _named(returned)
    arrays = {name: np.array(_array(problem, layer, name, given[name])) for name in NAMES if given.get(name) is not None}
    if ("ids" in arrays) != ("routing_weights" in arrays):
        raise ValueError("the function returned one of ids and routing_weights: return both, or neither")
    if "ids" in arrays and layer.router is None:
        raise ValueError("the function returned ids, but the fixture has no router: leave ids and routing_weights out")
    if "output" not in arrays and ("ids" not in arrays or len(arrays) > 2):
        raise ValueError("the function returned no output")
    return arrays


def _checked_codes(problem, values, returned):
    """Codes and scales of a quantiser, from a dictionary or a pair."""
    given = dict(zip(QUANTISED, returned)) if isinstance(returned, tuple) and len(returned) == 2 else returned
    if not isinstance(given, dict) or sorted(given) != sorted(QUANTISED):
        raise TypeError('the function returned neither (codes, scales) nor {"codes": ..., "scales": ...}')
    arrays = {}
    for name, (sizes, dtype) in problem.code_arrays(values.rows).items():
        array = _shaped(_something(given[name]), name, sizes)
        array = array.view(np.uint8) if dtype == np.uint8 and array.dtype == np.int8 else array
        word = "bytes: uint8, int8, or torch's 8-bit types" if dtype == np.uint8 else "float32"
        arrays[name] = np.array(_require(name, array, (dtype,), word))
    return arrays


def _checked_exchange(problem, returned):
    """What dispatch returned, a dictionary; of combine the output, in one or by itself."""
    expected = problem.exchange_arrays()
    given = returned if isinstance(returned, dict) else {"output": _something(returned)}
    if sorted(given) != sorted(expected):
        raise TypeError(f"the function returned {', '.join(map(str, given))}: return a dictionary of {', '.join(expected)}")
    words = {np.int32: "int32", np.float32: "float32", np.uint16: "bfloat16 (in numpy its uint16 bits)", np.uint8: "bytes"}
    arrays = {}
    for name, (axes, types) in expected.items():
        array = _shaped(_something(given[name]), name, axes)
        array = array.view(np.uint8) if types == (np.uint8,) and array.dtype == np.int8 else array
        arrays[name] = np.array(_require(name, array, types, " or ".join(words[one] for one in types)))
    return arrays


def _named(returned):
    """What was returned as a dictionary of names."""
    if isinstance(returned, dict):
        unknown = next((key for key in returned if key not in NAMES), None)
        if unknown is not None:
            raise TypeError(f"the function returned {unknown!r}: the names are {', '.join(NAMES)}")
        return returned
    if not isinstance(returned, tuple):
        return {"output": _something(returned)}
    if len(returned) != 2:
        raise TypeError(
            f"the function returned a tuple of {len(returned)}: return output or (output, intermediate), "
            "or a dictionary with more"
        )
    return {"output": _something(returned[0]), "intermediate": returned[1]}


def _something(value):
    if value is None:
        raise TypeError("the output is a NoneType: return an array of numpy, torch or CuPy, or one with DLPack")
    return value


def _array(problem, layer, name, value):
    pairs = {"tokens": layer.tokens, "top_k": layer.top_k}
    if name == "output":
        array = _shaped(value, name, {"tokens": layer.tokens, "hidden": layer.hidden})
        _require(name, array, (np.float32, np.float64, np.uint16), "float32, float64, or bfloat16 (in numpy its uint16 bits)")
        return array if array.dtype == np.uint16 else array.astype(np.float32)
    if name == "intermediate":
        array = _shaped(value, name, {**pairs, "intermediate": layer.intermediate})
        return _require(name, array, (np.uint16,), "bfloat16 (in numpy its uint16 bits)")
    if name == "ids":
        array = _require(name, _shaped(value, name, pairs), (np.int32, np.int64), "int32 or int64")
        if array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
            raise ValueError(f"the ids reach from {array.min()} to {array.max()}: return numbers of experts")
        return array.astype(np.int32)
    if name == "routing_weights":
        array = _shaped(value, name, pairs)
        _require(name, array, (np.float32, np.uint16), "float32, or bfloat16 (in numpy its uint16 bits)")
        return array if array.dtype == np.float32 else (array.astype(np.uint32) << 16).view(np.float32)
    sizes, dtype = problem.activation_array(name, layer.tokens)
    word = "bytes: uint8, or torch's 8-bit types" if dtype == np.uint8 else "float32"
    return _require(name, _shaped(value, name, sizes), (dtype,), word)


def _require(name, array, dtypes, word):
    if array.dtype not in dtypes:
        raise TypeError(f"the {name} is {array.dtype}: return {word}")
    return array


def _shaped(value, name, sizes):
    """A numpy array of this shape. Looked at before anything is copied: a view may be larger than memory."""
    expected = tuple(sizes.values())
    if not hasattr(value, "shape") and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    shape = tuple(getattr(value, "shape", expected))
    if shape == expected:
        array = take(value, f"the {name}")
        shape = array.shape
    if shape != expected:
        raise ValueError(f"the {name} is {list(shape)}: return [{', '.join(sizes)}] = {list(expected)}")
    return array


def bits(array):
    """The bytes of an array, in one row."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1)


def kind(array):
    """How it is stored; "None" for one that is not there."""
    if array is None:
        return "None"
    return "bfloat16" if array.dtype == np.uint16 else str(array.dtype)


def write(path, problem, tokens, run):
    """One run's arrays, by layer, as a file that the program reads (docs/fixtures.md#outputs)."""
    ffi, lib = native.library()
    error = ffi.new("struct gb_error *")
    shape = ffi.new("struct gb_shape *", vars(problem.shape))
    shape.tokens = tokens
    pointer = ffi.new("struct gb_outputs **")
    first = run[0]
    if problem.quantises:
        _write_codes(path, problem, tokens, first)
        return
    if problem.exchanges:
        _write_exchange(path, problem, first)
        return
    if "output" in first:
        form = lib.GB_BF16 if first["output"].dtype == np.uint16 else lib.GB_FP32
        status = lib.gb_outputs_new(shape, problem.layers, form, "intermediate" in first, False, pointer, error)
    else:
        status = lib.gb_outputs_new_routing(shape, problem.layers, pointer, error)
    native.check(status, error)
    outputs = ffi.gc(pointer[0], lib.gb_outputs_free)
    if "ids" in first and "output" in first:
        native.check(lib.gb_outputs_add_routing(outputs, error), error)
    parts = {name: getattr(lib, f"GB_{name.upper()}") for name in CODES if name in first}
    rules = problem.activation_rules()
    for part in parts.values():
        native.check(lib.gb_outputs_add_activations(outputs, rules, part, error), error)
    for index, arrays in enumerate(run):
        layer = outputs.layer[index]
        for name, array in arrays.items():
            to = layer.activations[parts[name]] if name in parts else getattr(layer, name)
            ffi.memmove(to, ffi.from_buffer(bits(array)), array.nbytes)
    native.check(lib.gb_outputs_write(os.fsencode(path), outputs, error), error)


def _write_codes(path, problem, rows, arrays):
    ffi, lib = native.library()
    error = ffi.new("struct gb_error *")
    pointer = ffi.new("struct gb_outputs **")
    quantisation = ffi.new("struct gb_quantisation *", problem.quantisation(rows))
    native.check(lib.gb_outputs_new_codes(quantisation, pointer, error), error)
    outputs = ffi.gc(pointer[0], lib.gb_outputs_free)
    for name, array in arrays.items():
        ffi.memmove(getattr(outputs, name), ffi.from_buffer(bits(array)), array.nbytes)
    native.check(lib.gb_outputs_write(os.fsencode(path), outputs, error), error)


def _write_exchange(path, problem, arrays):
    ffi, lib = native.library()
    error = ffi.new("struct gb_error *")
    pointer = ffi.new("struct gb_outputs **")
    if "output" in arrays:
        form = lib.GB_BF16 if arrays["output"].dtype == np.uint16 else lib.GB_FP32
        status = lib.gb_outputs_new_combine(problem.exchange(), form, pointer, error)
    else:
        status = lib.gb_outputs_new_dispatch(problem.exchange(), pointer, error)
    native.check(status, error)
    outputs = ffi.gc(pointer[0], lib.gb_outputs_free)
    for name, array in arrays.items():
        ffi.memmove(outputs.combined if name == "output" else getattr(outputs, name), ffi.from_buffer(bits(array)), array.nbytes)
    native.check(lib.gb_outputs_write(os.fsencode(path), outputs, error), error)
