# SPDX-License-Identifier: Apache-2.0
"""SGLang's Triton fused-MoE kernels, from an installed or unpacked copy of its package, run as they stand.

    python triton_fused_moe.py SGLANG FIXTURE.h5 OUT.json [--undeclared]  # a bf16 fixture; a GPU

SGLANG: the folder that holds sglang/. With --undeclared the judge is not told where they round.

The file sglang/kernels/ops/moe/fused_moe_triton_kernels.py is executed unchanged. What it imports from the rest of SGLang
(tests of the platform, quantisers that bf16 weights do not use) is answered here, so that nothing else need be installed.

Rounding points: gate and up, silu, the intermediate, each slot's weighted product and the output are stored as bf16."""

import importlib.util
import os
import sys
import types

import torch
import triton
import triton.language as tl

import gaugeblock

ROUNDING = {"gate_up": "bf16", "silu": "bf16", "slot": "bf16"}
CONFIG = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}
KERNELS = "sglang/kernels/ops/moe/fused_moe_triton_kernels.py"
PLATFORM = {
    "sglang.kernels.jit.utils": {"is_arch_support_pdl": lambda: False},
    "sglang.kernels.ops.quantization.fp8_kernel": dict.fromkeys(
        ("per_token_group_quant_fp8", "scaled_fp8_quant", "sglang_per_token_group_quant_fp8")
    ),
    "sglang.kernels.ops.quantization.int8_kernel": dict.fromkeys(
        ("per_token_group_quant_int8", "per_token_quant_int8", "sglang_per_token_group_quant_int8")
    ),
    "sglang.srt.batch_invariant_ops": {"is_batch_invariant_mode_enabled": lambda: False},
    "sglang.srt.environ": {"envs": types.SimpleNamespace(SGLANG_USE_AITER=types.SimpleNamespace(get=lambda: False))},
    "sglang.srt.layers.moe.utils": {"get_moe_padding_size": lambda use_aiter: 0},
    "sglang.srt.utils": {
        "cpu_has_amx_support": lambda: False,
        "is_cpu": lambda: False,
        "is_cuda": lambda: True,
        "is_hip": lambda: False,
        "is_sm90_supported": lambda: True,
    },
}


def load(folder):
    """The module of SGLang's kernels."""
    for name, members in PLATFORM.items():
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
        vars(sys.modules[name]).update(members)
    spec = importlib.util.spec_from_file_location("fused_moe_triton_kernels", os.path.join(folder, KERNELS))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def align(slots, experts, block):
    """Slots sorted by expert, every expert's padded to whole blocks with the number of slots: sorted ids, expert of each
    block, and their number."""
    order = torch.argsort(slots, stable=True)[int((slots < 0).sum()) :]
    counts = torch.bincount(slots[order], minlength=experts)
    blocks = (counts + block - 1) // block
    padded = torch.full((int(blocks.sum()) * block,), slots.numel(), dtype=torch.int32, device=slots.device)
    first_padded = (blocks.cumsum(0) - blocks) * block
    first = counts.cumsum(0) - counts
    expert = slots[order].long()
    place = first_padded[expert] + torch.arange(order.numel(), device=slots.device) - first[expert]
    padded[place] = order.to(torch.int32)
    owners = torch.repeat_interleave(torch.arange(experts, dtype=torch.int32, device=slots.device), blocks)
    return padded, owners, torch.tensor([padded.numel()], dtype=torch.int32, device=slots.device)


def experts(kernels, layer):
    slots = layer.ids.reshape(-1)
    aligned = align(slots, layer.experts, CONFIG["BLOCK_SIZE_M"])
    pairs, device = slots.numel(), layer.x.device

    def bf16(*shape):
        return torch.zeros(shape, dtype=torch.bfloat16, device=device)

    def multiply(a, b, c, weighted, top_k):
        kernels.invoke_fused_moe_kernel(
            a, b, None, c, None, None, None, layer.routing_weights, layer.ids, *aligned, weighted, top_k, CONFIG,
            tl.bfloat16, False, False, False, False, False,
        )  # fmt: skip

    both, h = bf16(layer.tokens, layer.top_k, 2 * layer.intermediate), bf16(pairs, layer.intermediate)
    slot_outputs, output = bf16(layer.tokens, layer.top_k, layer.hidden), bf16(layer.tokens, layer.hidden)
    multiply(layer.x, layer.gate_up.codes, both, False, layer.top_k)
    kernels.act_and_mul_triton(both.view(pairs, -1), h, CONFIG, topk_ids=layer.ids)
    multiply(h, layer.down.codes, slot_outputs, True, 1)
    kernels.moe_sum_reduce_triton(slot_outputs, output, 1.0)
    return output, h.view(layer.tokens, layer.top_k, -1)


if __name__ == "__main__":
    folder, fixture, record = (word for word in sys.argv[1:] if word != "--undeclared")
    rounding = {} if "--undeclared" in sys.argv else ROUNDING
    kernels = load(folder)

    def triton_fused_moe(layer):
        return experts(kernels, layer)

    report = gaugeblock.verify(
        triton_fused_moe, fixture, framework="torch", device="cuda", batches=[1, 2, 3, 8, 32], rounding=rounding,
        arguments=("-o", record),
    )  # fmt: skip
    print(f"triton {triton.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}\n{report}")
    sys.exit(report.verdict.exit_code)
