# SPDX-License-Identifier: Apache-2.0
"""NVFP4 activations in numpy, by the text of docs/recipes.md."""
import numpy as np

F32, E2M1 = np.float32, np.array([0, .5, 1, 1.5, 2, 3, 4, 6], np.float64)
E4M3 = np.array([m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0**(e - 7) for e in range(16) for m in range(8)][:127])


def nearest(table, magnitude, ties="even"):
    """Codes of magnitudes in a sorted table, ties to the even code, or away from zero; or truncated."""
    high = np.clip(np.searchsorted(table, magnitude), 1, len(table) - 1)
    low, up = magnitude - table[high - 1], table[high] - magnitude
    if ties in ("truncate", "floor"):
        return np.where(up > 0, high - 1, high)
    return np.where((low < up) | ((low == up) & (high % 2 == 1) & (ties == "even")), high - 1, high)


def bf16(bits):
    return (bits.astype(np.uint32) << 16).view(F32)


def to_bf16(x):
    bits = x.astype(F32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def quantise(bits, d, codes="even", scales="even", signed=False):
    """nvfp4.trtllm/1 -> packed codes, scales, values; or with wrong rules for codes, scales and the largest magnitude."""
    rule, x = codes, bf16(bits).reshape(*bits.shape[:-1], -1, 16)
    g, amax = F32(1) / F32(d), np.maximum((x if signed else np.abs(x)).max(-1), F32(0))
    scales = nearest(E4M3, (amax * (g * (F32(1) / F32(6)))).astype(F32), scales)
    s = E4M3[scales].astype(F32)
    with np.errstate(divide="ignore"):
        m = np.minimum(F32(1) / (s * (F32(1) / g)), np.finfo(F32).max)
    m = np.where(amax == 0, F32(0), m).astype(F32)
    q = x * m[..., None]
    codes = nearest(E2M1, np.minimum(np.abs(q), 6), rule) | np.where(np.signbit(q), 8, 0)
    values = np.where(codes & 8, -1, 1) * E2M1[codes & 7] * s[..., None].astype(np.float64) * np.float64(d)
    flat = codes.reshape(bits.shape).astype(np.uint8)
    return flat[..., ::2] | flat[..., 1::2] << 4, scales.astype(np.uint8), values.reshape(bits.shape)
