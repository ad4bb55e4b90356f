# SPDX-License-Identifier: Apache-2.0
"""NVFP4, MXFP4, FP8 and bf16 weights packed as systems pack them, written from their published text (docs/testing.md#layouts
names it), one element at a time where that is how it is told."""
import numpy as np


def tiles(scales):
    """[experts, rows, blocks] in tiles of 128 x 4, padded with zeros: [experts, rows, blocks] of the padded sizes."""
    experts, rows, blocks = scales.shape
    padded = np.zeros((experts, -(-rows // 128) * 128, -(-blocks // 4) * 4), scales.dtype)
    padded[:, :rows, :blocks] = scales
    split = padded.reshape(experts, padded.shape[1] // 128, 4, 32, padded.shape[2] // 4, 4)
    return np.ascontiguousarray(split.transpose(0, 1, 4, 3, 2, 5)).reshape(padded.shape)


def up_first(array):
    """[w3, w1] of [w1, w3]."""
    w1, w3 = np.split(array, 2, axis=1)
    return np.concatenate([w3, w1], axis=1)


def in_turns(array):
    """Rows of the two halves one after the other."""
    made = np.empty_like(array)
    made[:, 0::2], made[:, 1::2] = np.split(array, 2, axis=1)
    return made


def shuffled(array):
    """Every 32 rows as TensorRT-LLM's kernels with tiles of 128 rows want them: where each old row goes."""
    to = [0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27, 4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31]
    made = np.empty_like(array)
    for row in range(array.shape[1]):
        made[:, row // 32 * 32 + to[row % 32]] = array[:, row]
    return made


def columns_first(array):
    return np.ascontiguousarray(array.transpose(0, 2, 1))


def view(array):
    return array.transpose(0, 2, 1)


def same(array):
    return array


def chain(*steps):
    def made(array):
        for step in steps:
            array = step(array)
        return array
    return made


# By layout: what is done to the codes of w13 and of w2, and to their scales.
PACKED = {
    "linear": (same, same, same, same),
    "vllm": (same, same, same, same),
    "vllm-cutlass": (same, same, tiles, tiles),
    "flashinfer-cutlass": (up_first, same, chain(up_first, tiles), tiles),
    "flashinfer-trtllm": (chain(up_first, in_turns, shuffled), shuffled, chain(up_first, in_turns, shuffled, tiles),
                          chain(shuffled, tiles)),
    "flashinfer-trtllm-fp8": (up_first, same, up_first, same),
    "flashinfer-cutlass-unquantised": (up_first, same, up_first, same),
    "sglang": (same, same, same, same),
    "sglang-cutlass": (same, same, tiles, tiles),
    "sglang-flashinfer": (up_first, same, chain(up_first, tiles), tiles),
    "sglang-triton-kernels": (columns_first, columns_first, same, same),
    "torchao": (same, same, same, same),
    "torchao-swizzled": (same, same, tiles, tiles),
    "torchao-grouped": (view, view, view, view),
    "gpt-oss": (chain(in_turns, lambda a: a.reshape(*a.shape[:2], -1, 16)), lambda a: a.reshape(*a.shape[:2], -1, 16), in_turns, same),
}


def pack(layout, codes, scales, globals_):
    """(codes, scales, global_scale) of w13, and those of w2, in this layout; what is None stays out."""
    steps = PACKED[layout]
    both = []
    for which in range(2):
        parts = [steps[which](codes[which])]
        if scales[which] is not None:
            parts.append(steps[2 + which](scales[which]))
        if globals_[which] is not None:
            parts.append(up_first(globals_[which]) if which == 0 and "flashinfer" in layout else globals_[which])
        both.append(tuple(parts) if len(parts) > 1 else parts[0])
    return both
