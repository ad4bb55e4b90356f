# SPDX-License-Identifier: Apache-2.0
"""gaugeblock.testing on torch's tensors; skipped where there is no torch. With `all`, a layer of Qwen3-Next's sizes: a right
kernel passes, twelve mistakes fail by their names, and that takes at most twice as long as float64 truth in torch."""
import resource
import sys

try:
    import torch
except ImportError:
    print("skipped: no torch here")
    sys.exit(77)

import layers
import package  # noqa: F401
from program import ALL, expect

from gaugeblock.testing import assert_moe_close, limits

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def problem(tokens, experts, top_k, hidden, intermediate):
    """Random NVFP4 weights as torch has them, and inputs."""
    torch.manual_seed(7)
    ids = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)])
    shapes = (2 * intermediate, hidden), (hidden, intermediate)
    return layers.Arrays(
        torch.randn(tokens, hidden).bfloat16(), ids, torch.softmax(torch.randn(tokens, top_k), -1),
        [torch.randint(0, 256, (experts, rows, columns // 2), dtype=torch.uint8) for rows, columns in shapes],
        [(torch.rand(experts, rows, columns // 16) * 4 + 1).to(torch.float8_e4m3fn) for rows, columns in shapes],
        [torch.rand(experts, halves) * 0.004 + 0.001 for halves in (2, 1)])


def dequantise(a, which, expert, dtype):
    codes = a.codes[which][expert].long()
    values = torch.stack([E2M1[codes & 15], E2M1[codes >> 4]], -1).flatten(1)
    values = values * a.scales[which][expert].double().repeat_interleave(16, 1)
    scale = a.globals[which][expert].double()
    return (values * scale.repeat_interleave(values.shape[0] // scale.numel())[:, None]).to(dtype)


def kernel(a, dtype):
    """The layer: in float64 truth, in float32 a kernel with a bf16 intermediate."""
    y = torch.zeros(a.x.shape, dtype=dtype)
    for expert in a.ids.unique().tolist():
        t, j = torch.nonzero(a.ids == expert, as_tuple=True)
        gate, up = (a.x[t].to(dtype) @ dequantise(a, 0, expert, dtype).T).chunk(2, 1)
        h = torch.nn.functional.silu(gate) * up
        h = h.bfloat16().to(dtype) if dtype == torch.float32 else h
        y.index_add_(0, t, a.weights[t, j][:, None].to(dtype) * (h @ dequantise(a, 1, expert, dtype).T))
    return y


def in_numpy(a):
    """The same for layers.kernel, only the experts in use."""
    used = a.ids.unique()
    pick = lambda parts: [part[used] for part in parts]  # noqa: E731
    return layers.Arrays(a.x.view(torch.int16).numpy().view("u2"), torch.searchsorted(used, a.ids).numpy(),
                         a.weights.numpy(), [c.numpy() for c in pick(a.codes)],
                         [s.view(torch.uint8)[used].numpy() for s in a.scales], [g.numpy() for g in pick(a.globals)])


def seconds(function, *arguments, **named):
    """What it returned, and the time of processors that it and the program took."""
    def used():
        times = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(t.ru_utime + t.ru_stime for t in times)
    before = used()
    made = function(*arguments, **named)
    return made, used() - before


a = problem(8, 512, 10, 2048, 512) if ALL else problem(5, 8, 3, 64, 32)
truth, spent = seconds(kernel, a, torch.float64)
y = kernel(a, torch.float32)
_, asserted = seconds(assert_moe_close, y, **a.arguments())
assert_moe_close(y.bfloat16(), **a.arguments())
close = limits(**a.arguments())
expect(close.limit.dtype == torch.float64 and bool(((y - close.truth).abs() <= close.limit).all()), "limits")
torch.testing.assert_close(close.truth, truth, rtol=1e-12, atol=1e-12)
torch.testing.assert_close((y - close.truth) / close.limit, torch.zeros_like(close.limit), rtol=0, atol=1)
plain, named = in_numpy(a), []
for mistake in layers.NAMED_IN_LARGE if ALL else ("slot", "output"):
    wrong = torch.from_numpy(layers.kernel(plain, mistake))
    try:
        _, took = seconds(assert_moe_close, wrong, **a.arguments())
        sys.exit(f"{mistake}: passes")
    except AssertionError as failure:
        named.append(mistake)
        expect(layers.is_named(mistake, str(failure)), f"{mistake}: {failure}")
if ALL:
    print(f"float64 truth in torch {spent:.2f} s of processors, assert_moe_close {asserted:.2f} s; {len(named)} mistakes named")
    expect(asserted <= 2 * spent, f"assert_moe_close takes {asserted:.2f} s, truth {spent:.2f} s")
