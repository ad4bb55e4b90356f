# SPDX-License-Identifier: Apache-2.0
"""layouts.py PACKAGE SOURCE: what tests/cli/packing.py makes of codes and scales is what the system's own code, as
published on PyPI, makes of them on a CPU. Skipped where the package is missing. PACKAGE: torchao, flashinfer-python,
compressed-tensors."""
import importlib.metadata
import os
import sys
import warnings

PACKAGE, SOURCE = sys.argv[1:3]
sys.path.insert(0, os.path.join(SOURCE, "tests", "cli"))
warnings.filterwarnings("ignore")
try:
    import numpy as np
    import torch
    VERSION = importlib.metadata.version(PACKAGE)
    if PACKAGE == "torchao":
        from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
        from torchao.prototype.mx_formats.utils import to_blocked
    elif PACKAGE == "flashinfer-python":
        from flashinfer.fused_moe.core import _maybe_get_cached_w3_w1_permute_indices, get_w2_permute_indices_with_cache
    else:
        from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
from packing import PACKED, tiles, up_first  # noqa: E402

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
rng = np.random.default_rng(1)


def equal(what, ours, theirs):
    if not np.array_equal(np.asarray(ours).reshape(-1), np.asarray(theirs).reshape(-1)):
        sys.exit(f"{PACKAGE} {VERSION}: {what} differs")
    print(f"{PACKAGE} {VERSION}: {what} is the same")


def torchao():
    """Tiles of scales, padded; nibbles; and both in a tensor of experts."""
    for rows, blocks in ((256, 8), (64, 4), (200, 6)):
        scales = rng.integers(0, 256, (1, rows, blocks), np.uint8)
        equal(f"to_blocked of {rows} x {blocks}", tiles(scales), to_blocked(torch.from_numpy(scales[0])).numpy())
    codes = rng.integers(0, 16, (2, 128, 64))
    values = E2M1[torch.from_numpy(codes)].bfloat16()
    values[..., ::16] = 6  # the largest code of every block, so that the scale is 1
    codes[..., ::16] = 7
    codes[codes == 8] = 0
    made = NVFP4Tensor.to_nvfp4(values.abs(), is_swizzled_scales=True)
    packed = (codes[..., 0::2] & 7) | (codes[..., 1::2] & 7) << 4
    equal("codes of NVFP4Tensor", packed.astype(np.uint8), made.qdata.view(torch.uint8).numpy())
    linear = NVFP4Tensor.to_nvfp4(values.abs(), is_swizzled_scales=False).scale.view(torch.uint8).numpy()
    equal("scales of NVFP4Tensor", tiles(linear), made.scale.view(torch.uint8).numpy())


def flashinfer():
    """The rows of w13 and w2, and of their scales, for TensorRT-LLM's kernels; ours begins with w13 as [w1, w3]."""
    rows13, rows2 = PACKED["flashinfer-trtllm"][:2]
    for rows in (128, 512):
        w = rng.integers(0, 256, (1, rows, 32), np.uint8)
        tensor = torch.from_numpy(up_first(w)[0])
        for scales in (None, 16):
            order = _maybe_get_cached_w3_w1_permute_indices({}, tensor, 128, scales)
            equal(f"rows of w13, {rows}", rows13(w), tensor[order].numpy())
            order = get_w2_permute_indices_with_cache({}, torch.from_numpy(w[0]), 128, scales)
            equal(f"rows of w2, {rows}", rows2(w), w[0][order.numpy()])


def compressed_tensors():
    """The even column in the low nibble."""
    codes = rng.integers(0, 16, (64, 32))
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    equal("pack_fp4_to_uint8", packed, pack_fp4_to_uint8(E2M1[torch.from_numpy(codes)].bfloat16()).numpy())


{"torchao": torchao, "flashinfer-python": flashinfer, "compressed-tensors": compressed_tensors}[PACKAGE]()
