# SPDX-License-Identifier: Apache-2.0
"""Marlin's CUDA MoE kernels (bf16 activations, MXFP4 weights) in SGLang's layer, from an unpacked copy of its package.

    python marlin_moe.py SGLANG MODULES                                  # compiles; nvcc, no GPU
    python marlin_moe.py SGLANG MODULES FIXTURE.h5 OUT.json [--combine]  # an mxfp4 fixture; a GPU of capability 9.0

SGLANG: the folder that holds sglang/ (0.5.23); MODULES: where its compiled kernels are kept. Needs apache-tvm-ffi, the
version that SGLang names, and PYTHONPATH=python.

`fused_marlin_moe` runs as it stands, and so do the repacking of the weights, the alignment, both products, the
activation and the sum over slots. What those files import from the rest of SGLang (tests of the platform, functions of
other formats, its build cache) is answered here.

Rounding points: gate, up and each slot's product are bf16, the intermediate is bf16, the tensor cores sum in FP32 and
truncate. With --combine the layer's own last steps are judged, too: the routing weight is rounded to bf16, its product
with the slot's again, and the sum is stored as bf16. Without, the slots are weighted by 1 and combined here in FP32."""

import functools
import importlib
import os
import pathlib
import re
import subprocess
import sys
import types

import torch
import tvm_ffi
from tvm_ffi.libinfo import find_dlpack_include_path, find_include_path, find_libtvm_ffi

import gaugeblock

ROUNDING = {"gate_up": "bf16", "slot": "bf16"}
COMBINE = {"routing_weight": "bf16", "weighted": "bf16"}  # with --combine
ACCUMULATOR_BITS = 23  # FP32 sums, truncated: errors of up to an ulp, where rounding to nearest makes half of one
CUDA = os.environ.get("CUDA_HOME", "/usr/local/cuda")
FLAGS = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", "-DSGL_CUDA_ARCH=900", "-Xcompiler", "-fPIC", "-shared"]
FLAGS += ["-gencode=arch=compute_90a,code=sm_90a"]
E2M1 = types.SimpleNamespace(id=2 | 1 << 8 | 1 << 16 | 1 << 49)  # exponent, mantissa, signed, finite (scalar_type.hpp)
WITHOUT_INIT = """sglang sglang.kernels sglang.kernels.jit sglang.kernels.ops sglang.kernels.ops.activation
sglang.kernels.ops.gemm sglang.kernels.ops.moe sglang.kernels.ops.quantization sglang.srt sglang.srt.layers
sglang.srt.layers.moe sglang.srt.layers.moe.fused_moe_triton sglang.srt.layers.moe.moe_runner
sglang.srt.layers.moe.moe_runner.triton_utils sglang.srt.layers.quantization""".split()


def load_jit(sglang, modules, name, *args, cuda_files, cuda_wrappers, extra_cuda_cflags=()):
    """SGLang's loader without its cache: a module that exports each C++ expression of cuda_wrappers under its name."""
    library = modules / (re.sub(r"\W+", "_", "_".join([name, *args])) + ".so")
    if not library.exists():
        sources = sglang / "kernels" / "jit"
        unit = library.with_suffix(".cu")
        lines = [f"#include <tvm/ffi/{header}.h>" for header in ("container/tensor", "dtype", "error", "function")]
        if name == "moe_wna16_marlin":
            lines.append(f'#include "{pathlib.Path(__file__).with_name("marlin_mxfp4.cuh")}"')
        lines += [f'#include "{sources / "csrc" / path}"' for path in cuda_files] + ["namespace sglang {"]
        lines += [f"TVM_FFI_DLL_EXPORT_TYPED_FUNC({export}, ({kernel}));" for export, kernel in cuda_wrappers]
        unit.write_text("\n".join([*lines, "}", ""]), encoding="utf-8")
        includes = [f"-I{path}" for path in (find_include_path(), find_dlpack_include_path(), sources / "include")]
        link = [f"-L{os.path.dirname(find_libtvm_ffi())}", "-ltvm_ffi", "-o", library]
        subprocess.run([f"{CUDA}/bin/nvcc", *FLAGS, *extra_cuda_cflags, *includes, unit, *link], check=True)
    return tvm_ffi.load_module(str(library))


def answers(sglang, modules):
    """What the executed files import from files that are not."""
    never, identity = None, lambda function: function
    return {
        "sglang.kernels.jit.utils": {
            "cache_once": functools.cache,
            "get_activation_cuda_cflags": lambda: ["--use_fast_math"],
            "is_arch_support_pdl": lambda: True,
            "load_jit": functools.partial(load_jit, sglang, modules),
            "make_cpp_args": cpp_arguments,
        },
        "sglang.kernels.kernel_api_logging": {"debug_kernel_api": identity},
        "sglang.kernels.ops.activation.minimax_m3_swiglu": {"swiglu_oai_split": never},
        "sglang.kernels.ops.gemm.gptq_marlin": {"gptq_marlin_gemm": never},
        "sglang.kernels.ops.moe": {"moe_align_block_size": never},
        "sglang.srt.environ": {
            "envs": types.SimpleNamespace(SGLANG_EXPERIMENTAL_LORA_OPTI=types.SimpleNamespace(get=lambda: False))
        },
        "sglang.srt.layers": {"zero_copy_context": types.SimpleNamespace(get_moe_output=lambda like: None)},
        "sglang.srt.layers.quantization.utils": {
            "get_scalar_types": lambda: (types.SimpleNamespace, types.SimpleNamespace(float4_e2m1f=E2M1)),
            "pack_cols": never,
            "unpack_cols": never,
        },
        "sglang.srt.model_executor.runner_backend_utils.tc_piecewise_cuda_graph": {
            "get_tc_piecewise_forward_context": never
        },
        "sglang.srt.runtime_context": {"get_platform": never},
        "sglang.srt.utils": {
            "get_device_capability": torch.cuda.get_device_capability,
            "is_cuda": lambda: True,
            "is_hip": lambda: False,
            "is_musa": lambda: False,
            "is_xpu": lambda: False,
        },
        "sglang.srt.utils.custom_op": {"register_custom_op": lambda **options: identity},
        "sgl_kernel": {"moe_sum_reduce": never},
        "sgl_kernel.scalar_type": {"scalar_types": types.SimpleNamespace(float4_e2m1f=E2M1)},
    }


def cpp_arguments(*args):
    """Python values as C++ template arguments; str() of them is the list."""
    names = {torch.bfloat16: "bf16_t", torch.int32: "int32_t", True: "true", False: "false"}
    return CppArguments(names[a] if isinstance(a, (bool, torch.dtype)) else str(a) for a in args)


class CppArguments(list):
    def __str__(self):
        return ", ".join(self)


def load(folder, modules):
    """SGLang's modules: the layer and the preparation of its weights."""
    sglang = pathlib.Path(folder).resolve() / "sglang"
    for name in WITHOUT_INIT:
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [str(sglang.parent.joinpath(*name.split(".")))]
    for name, members in answers(sglang, modules).items():
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
        vars(sys.modules[name]).update(members)
    layers = "sglang.srt.layers."
    align = importlib.import_module(layers + "moe.moe_runner.triton_utils.moe_align_block_size")
    sys.modules[layers + "moe.fused_moe_triton"].moe_align_block_size = align.moe_align_block_size
    layer = importlib.import_module(layers + "moe.fused_moe_triton.fused_marlin_moe")
    return layer, importlib.import_module(layers + "quantization.marlin_utils_fp4")


def compile_all():
    """Every module that a run needs, with the arguments that it will have."""
    ops = "sglang.kernels.ops."
    bf16, int32 = torch.bfloat16, torch.int32
    importlib.import_module(ops + "quantization.gptq_marlin_repack")._jit_gptq_marlin_repack_module()
    importlib.import_module(ops + "moe.moe_topk_sum")._jit_topk_sum_module()
    importlib.import_module(ops + "moe.moe_align_single_token")._jit_align_single_token_module(True)
    importlib.import_module(ops + "moe.moe_align")._jit_moe_align_module(int32, True, False, False)
    importlib.import_module(ops + "activation.activation").activation_module(bf16)
    for zero_inactive_output in (False, True):
        marlin = importlib.import_module(ops + "moe.moe_wna16_marlin")._jit_moe_wna16_marlin_module
        marlin(bf16, False, False, True, zero_inactive_output, True)


def experts(marlin, weights, layer, combine):
    """(output, intermediate) of one layer. The intermediate is what the activation stored."""
    prepared = types.SimpleNamespace(
        w13_weight=layer.gate_up.codes,
        w13_weight_scale=layer.gate_up.scales,
        w2_weight=layer.down.codes,
        w2_weight_scale=layer.down.scales,
    )
    weights.prepare_moe_mxfp4_layer_for_marlin(prepared)
    stored = []
    activation = marlin.silu_and_mul
    marlin.silu_and_mul = lambda both, out: stored.append(activation(both, out).clone())
    try:
        output = marlin.fused_marlin_moe(
            layer.x, prepared.w13_weight, prepared.w2_weight, prepared.w13_weight_scale, prepared.w2_weight_scale,
            layer.x, layer.routing_weights if combine else torch.ones_like(layer.routing_weights), layer.ids,
            workspace=prepared.workspace, num_bits=4, no_combine=not combine,
        )  # fmt: skip
    finally:
        marlin.silu_and_mul = activation
    used = (layer.ids >= 0)[..., None]
    if not combine:
        output = (output.float() * layer.routing_weights[..., None]).where(used, 0).sum(1)
    return output, stored[0].view(layer.tokens, layer.top_k, -1).where(used, 0)


if __name__ == "__main__":
    folder, library_folder, *paths = (word for word in sys.argv[1:] if word != "--combine")
    library_folder = pathlib.Path(library_folder).resolve()
    library_folder.mkdir(parents=True, exist_ok=True)
    marlin, weights = load(folder, library_folder)
    if not paths:
        sys.exit(compile_all())
    fixture, record = paths

    def marlin_slots(layer):
        return experts(marlin, weights, layer, combine=False)

    def marlin_layer(layer):
        return experts(marlin, weights, layer, combine=True)

    function, rounding = marlin_slots, ROUNDING
    if "--combine" in sys.argv:
        function, rounding = marlin_layer, ROUNDING | COMBINE
    report = gaugeblock.verify(
        function, fixture, framework="torch", device="cuda",
        batches=[1, 2, 3, 8, 32], rounding=rounding, accumulator_bits=ACCUMULATOR_BITS, arguments=("-o", record),
    )  # fmt: skip
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}\n{report}")
    sys.exit(report.verdict.exit_code)
