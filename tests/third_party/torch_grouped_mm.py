# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own building blocks as a MoE layer: grouped_mm, silu, mul, grouped_mm, weighted sum.

    python torch_grouped_mm.py FIXTURE.h5 OUT.json [--undeclared]        # a bf16 fixture, a GPU, PYTHONPATH=python

With --undeclared the judge is not told where it rounds.

Rounding points: both products of a slot, silu and the intermediate are stored as bf16; the sum over slots is FP32."""

import sys

import torch

import gaugeblock

ROUNDING = {"gate_up": "bf16", "silu": "bf16", "slot": "bf16"}
grouped_mm = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm


def torch_grouped_mm(layer):
    slots = layer.ids.reshape(-1)
    order = torch.argsort(slots, stable=True)
    order = order[int((slots < 0).sum()) :]  # without the empty slots
    ends = torch.bincount(slots[order], minlength=layer.experts).cumsum(0).to(torch.int32)
    x = layer.x[order // layer.top_k]
    gate, up = grouped_mm(x, layer.gate_up.codes.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    h = torch.nn.functional.silu(gate) * up
    y = grouped_mm(h.contiguous(), layer.down.codes.transpose(1, 2), offs=ends)
    weighted = torch.zeros(slots.numel(), layer.hidden, device=x.device)
    weighted[order] = y.float() * layer.routing_weights.reshape(-1)[order, None]
    intermediate = torch.zeros(slots.numel(), layer.intermediate, dtype=torch.bfloat16, device=x.device)
    intermediate[order] = h
    shape = (layer.tokens, layer.top_k, -1)
    return weighted.reshape(shape).sum(1), intermediate.reshape(shape)


if __name__ == "__main__":
    fixture, record = (word for word in sys.argv[1:] if word != "--undeclared")
    rounding = {} if "--undeclared" in sys.argv else ROUNDING
    report = gaugeblock.verify(
        torch_grouped_mm, fixture, framework="torch", device="cuda", batches=[1, 2, 3, 8, 32], rounding=rounding,
        arguments=("-o", record),
    )  # fmt: skip
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}\n{report}")
    sys.exit(report.verdict.exit_code)
