/* SPDX-License-Identifier: Apache-2.0 */
/* Named conversions: what real libraries do where a format leaves the choice. */
#include <string.h>

#include "quant/quant.h"

#define CUDA_FP4 "CUDA 13.0 cuda_fp4.hpp, __nv_cvt_float_to_fp4"
#define CUDA_FP6 "CUDA 13.0 cuda_fp6.hpp, __nv_cvt_float_to_fp6"
#define CUDA_FP8 "CUDA 13.0 cuda_fp8.hpp, __nv_cvt_float_to_fp8"
#define CUDA_FP8_DOUBLE "CUDA 13.0 cuda_fp8.hpp, __nv_cvt_double_to_fp8"
#define CUDA_E8M0 "CUDA 13.0 cuda_fp8.hpp, __nv_cvt_float_to_e8m0"
#define ML_DTYPES "ml_dtypes 0.6.0, astype"

static const struct gb_conversion conversions[] = {
    {"e2m1.cuda", GB_CODEC_E2M1, GB_CONVERT_TIES_TO_EVEN, 0x7, GB_TO_LARGEST, GB_TO_LARGEST, 0x7, GB_NAN_POSITIVE,
     GB_CONVERT_ZERO_SIGNED, CUDA_FP4 ", cudaRoundNearest"},
    {"e2m1.cuda-rz", GB_CODEC_E2M1, GB_CONVERT_TOWARD_ZERO, 0x7, GB_TO_LARGEST, GB_TO_LARGEST, 0x7, GB_NAN_POSITIVE,
     GB_CONVERT_ZERO_SIGNED, CUDA_FP4 ", cudaRoundZero (host only)"},
    {"e2m1.ml_dtypes", GB_CODEC_E2M1, GB_CONVERT_TIES_TO_EVEN, 0x7, GB_TO_LARGEST, GB_TO_LARGEST, 0x0, GB_NAN_INVERTED,
     GB_CONVERT_ZERO_SIGNED, ML_DTYPES "(float4_e2m1fn)"},
    {"e2m1.modelopt", GB_CODEC_E2M1, GB_CONVERT_TIES_TO_EVEN, 0x7, GB_TO_LARGEST, GB_TO_LARGEST, 0x7, GB_NAN_POSITIVE,
     GB_CONVERT_ZERO_SIGNED_UNDERFLOW, "NVIDIA Model-Optimizer 211c6b34, qtensor/nvfp4_tensor.py, _cast_fp4"},
    {"e2m1.modelopt-mxfp4", GB_CODEC_E2M1, GB_CONVERT_TIES_TO_ZERO, 0x7, GB_TO_LARGEST, GB_TO_LARGEST, 0x0,
     GB_NAN_POSITIVE, GB_CONVERT_ZERO_NEGATIVE,
     "NVIDIA Model-Optimizer 211c6b34, qtensor/mxfp4_tensor.py, cast_fp4; NaN is not defined there"},
    {"e2m1.deepgemm", GB_CODEC_E2M1, GB_CONVERT_TIES_TO_ZERO, 0x7, GB_TO_LARGEST, GB_TO_LARGEST, 0x0, GB_NAN_POSITIVE,
     GB_CONVERT_ZERO_UNSIGNED, "DeepGEMM 54e22612, deep_gemm/utils/math.py, _quantize_to_fp4_e2m1"},

    {"e3m2.cuda", GB_CODEC_E3M2, GB_CONVERT_TIES_TO_EVEN, 0x1F, GB_TO_LARGEST, GB_TO_LARGEST, 0x1F, GB_NAN_POSITIVE,
     GB_CONVERT_ZERO_SIGNED, CUDA_FP6 ", cudaRoundNearest"},
    {"e3m2.cuda-rz", GB_CODEC_E3M2, GB_CONVERT_TOWARD_ZERO, 0x1F, GB_TO_LARGEST, GB_TO_LARGEST, 0x1F, GB_NAN_POSITIVE,
     GB_CONVERT_ZERO_SIGNED, CUDA_FP6 ", cudaRoundZero (host only)"},
    {"e3m2.ml_dtypes", GB_CODEC_E3M2, GB_CONVERT_TIES_TO_EVEN, 0x1F, GB_TO_LARGEST, GB_TO_LARGEST, 0x0, GB_NAN_INVERTED,
     GB_CONVERT_ZERO_SIGNED, ML_DTYPES "(float6_e3m2fn)"},
    {"e2m3.cuda", GB_CODEC_E2M3, GB_CONVERT_TIES_TO_EVEN, 0x1F, GB_TO_LARGEST, GB_TO_LARGEST, 0x1F, GB_NAN_POSITIVE,
     GB_CONVERT_ZERO_SIGNED, CUDA_FP6 ", cudaRoundNearest"},
    {"e2m3.cuda-rz", GB_CODEC_E2M3, GB_CONVERT_TOWARD_ZERO, 0x1F, GB_TO_LARGEST, GB_TO_LARGEST, 0x1F, GB_NAN_POSITIVE,
     GB_CONVERT_ZERO_SIGNED, CUDA_FP6 ", cudaRoundZero (host only)"},
    {"e2m3.ml_dtypes", GB_CODEC_E2M3, GB_CONVERT_TIES_TO_EVEN, 0x1F, GB_TO_LARGEST, GB_TO_LARGEST, 0x0, GB_NAN_INVERTED,
     GB_CONVERT_ZERO_SIGNED, ML_DTYPES "(float6_e2m3fn)"},

    {"e4m3.cuda-satfinite", GB_CODEC_E4M3, GB_CONVERT_TIES_TO_EVEN, 0x7E, GB_TO_LARGEST, GB_TO_LARGEST, 0x7F,
     GB_NAN_POSITIVE, GB_CONVERT_ZERO_SIGNED, CUDA_FP8 ", __NV_SATFINITE"},
    {"e4m3.cuda-nosat", GB_CODEC_E4M3, GB_CONVERT_TIES_TO_EVEN, 0x7E, GB_TO_NAN, GB_TO_NAN, 0x7F, GB_NAN_POSITIVE,
     GB_CONVERT_ZERO_SIGNED, CUDA_FP8 ", __NV_NOSAT"},
    {"e4m3.cuda-double-satfinite", GB_CODEC_E4M3, GB_CONVERT_TIES_TO_EVEN, 0x7E, GB_TO_LARGEST, GB_TO_LARGEST, 0x7F,
     GB_NAN_SIGNED, GB_CONVERT_ZERO_SIGNED, CUDA_FP8_DOUBLE ", __NV_SATFINITE, of a float widened"},
    {"e4m3.ml_dtypes", GB_CODEC_E4M3, GB_CONVERT_TIES_TO_EVEN, 0x7E, GB_TO_NAN, GB_TO_NAN, 0x7F, GB_NAN_SIGNED,
     GB_CONVERT_ZERO_SIGNED, ML_DTYPES "(float8_e4m3fn)"},
    {"e4m3.torch-2.12", GB_CODEC_E4M3, GB_CONVERT_TIES_TO_EVEN, 0x7E, GB_TO_NAN, GB_TO_NAN, 0x7F, GB_NAN_SIGNED,
     GB_CONVERT_ZERO_SIGNED,
     "PyTorch up to 2.12, tensor.to(torch.float8_e4m3fn), torch/headeronly/util/Float8_e4m3fn.h"},
    {"e4m3.torch-2.13", GB_CODEC_E4M3, GB_CONVERT_TIES_TO_EVEN, 0x7E, GB_TO_LARGEST, GB_TO_LARGEST, 0x7F, GB_NAN_SIGNED,
     GB_CONVERT_ZERO_SIGNED, "PyTorch from 2.13 on, tensor.to(torch.float8_e4m3fn)"},
    {"e4m3.fmax-fmin", GB_CODEC_E4M3, GB_CONVERT_TIES_TO_EVEN, 0x7E, GB_TO_LARGEST, GB_TO_LARGEST, 0x7E,
     GB_NAN_POSITIVE, GB_CONVERT_ZERO_SIGNED,
     "fmax(-448, fmin(x, 448)) before the conversion: vLLM scaled_fp8_conversion, FlashInfer MXFP8"},
    {"e4m3.fmin-fmax", GB_CODEC_E4M3, GB_CONVERT_TIES_TO_EVEN, 0x7E, GB_TO_LARGEST, GB_TO_LARGEST, 0xFE,
     GB_NAN_POSITIVE, GB_CONVERT_ZERO_SIGNED,
     "fmin(fmax(x, -448), 448) before the conversion: vLLM per_token_group_quant"},

    {"e4m3fnuz.saturate", GB_CODEC_E4M3FNUZ, GB_CONVERT_TIES_TO_EVEN, 0x7F, GB_TO_LARGEST, GB_TO_LARGEST, 0x80,
     GB_NAN_POSITIVE, GB_CONVERT_ZERO_UNSIGNED, "gb_e4m3fnuz_encode: largest 240, as ml_dtypes and PyTorch report it"},
    {"e4m3fnuz.hip-satfinite", GB_CODEC_E4M3FNUZ, GB_CONVERT_TIES_TO_EVEN, 0x7F, GB_TO_LARGEST, GB_TO_NAN, 0x80,
     GB_NAN_POSITIVE, GB_CONVERT_ZERO_UNSIGNED, "HIP amd_hip_fp8.h, cast_to_f8 with clip: infinities are not clipped"},
    {"e4m3fnuz.ml_dtypes", GB_CODEC_E4M3FNUZ, GB_CONVERT_TIES_TO_EVEN, 0x7F, GB_TO_NAN, GB_TO_NAN, 0x80,
     GB_NAN_POSITIVE, GB_CONVERT_ZERO_UNSIGNED, ML_DTYPES "(float8_e4m3fnuz)"},
    {"e4m3fnuz.torch", GB_CODEC_E4M3FNUZ, GB_CONVERT_TIES_TO_EVEN, 0x7F, GB_TO_NAN, GB_TO_NAN, 0x80, GB_NAN_POSITIVE,
     GB_CONVERT_ZERO_UNSIGNED, "PyTorch, tensor.to(torch.float8_e4m3fnuz)"},
    {"e4m3fnuz.vllm-224", GB_CODEC_E4M3FNUZ, GB_CONVERT_TIES_TO_EVEN, 0x7E, GB_TO_LARGEST, GB_TO_LARGEST, 0x7E,
     GB_NAN_POSITIVE, GB_CONVERT_ZERO_UNSIGNED, "vLLM on gfx94x: fmax(-224, fmin(x, 224)) before the conversion"},

    {"e5m2.cuda-satfinite", GB_CODEC_E5M2, GB_CONVERT_TIES_TO_EVEN, 0x7B, GB_TO_LARGEST, GB_TO_LARGEST, 0x7F,
     GB_NAN_POSITIVE, GB_CONVERT_ZERO_SIGNED, CUDA_FP8 ", __NV_SATFINITE"},
    {"e5m2.cuda-nosat", GB_CODEC_E5M2, GB_CONVERT_TIES_TO_EVEN, 0x7B, GB_TO_INFINITY, GB_TO_INFINITY, 0x7F,
     GB_NAN_POSITIVE, GB_CONVERT_ZERO_SIGNED, CUDA_FP8 ", __NV_NOSAT"},
    {"e5m2.ml_dtypes", GB_CODEC_E5M2, GB_CONVERT_TIES_TO_EVEN, 0x7B, GB_TO_INFINITY, GB_TO_INFINITY, 0x7E,
     GB_NAN_SIGNED, GB_CONVERT_ZERO_SIGNED, ML_DTYPES "(float8_e5m2)"},
    {"e5m2.torch", GB_CODEC_E5M2, GB_CONVERT_TIES_TO_EVEN, 0x7B, GB_TO_INFINITY, GB_TO_INFINITY, 0x7F, GB_NAN_SIGNED,
     GB_CONVERT_ZERO_SIGNED, "PyTorch, tensor.to(torch.float8_e5m2)"},

    {"e8m0.cuda-rp-satfinite", GB_CODEC_E8M0, GB_CONVERT_AWAY_FROM_ZERO, 0xFE, GB_TO_LARGEST, GB_TO_LARGEST, 0xFF,
     GB_NAN_POSITIVE, GB_CONVERT_ZERO_UNSIGNED, CUDA_E8M0 ", __NV_SATFINITE, cudaRoundPosInf"},
    {"e8m0.cuda-rp-nosat", GB_CODEC_E8M0, GB_CONVERT_AWAY_FROM_ZERO, 0xFE, GB_TO_NAN, GB_TO_NAN, 0xFF, GB_NAN_POSITIVE,
     GB_CONVERT_ZERO_UNSIGNED, CUDA_E8M0 ", __NV_NOSAT, cudaRoundPosInf"},
    {"e8m0.cuda-rz-satfinite", GB_CODEC_E8M0, GB_CONVERT_TOWARD_ZERO, 0xFE, GB_TO_LARGEST, GB_TO_LARGEST, 0xFF,
     GB_NAN_POSITIVE, GB_CONVERT_ZERO_UNSIGNED, CUDA_E8M0 ", __NV_SATFINITE, cudaRoundZero"},
    {"e8m0.cuda-rz-nosat", GB_CODEC_E8M0, GB_CONVERT_TOWARD_ZERO, 0xFE, GB_TO_NAN, GB_TO_NAN, 0xFF, GB_NAN_POSITIVE,
     GB_CONVERT_ZERO_UNSIGNED, CUDA_E8M0 ", __NV_NOSAT, cudaRoundZero"},
    {"e8m0.torch", GB_CODEC_E8M0, GB_CONVERT_TIES_TO_EVEN, 0xFE, GB_TO_NAN, GB_TO_NAN, 0xFF, GB_NAN_POSITIVE,
     GB_CONVERT_ZERO_UNSIGNED, "PyTorch, torch/headeronly/util/Float8_e8m0fnu.h"},
    {"e8m0.ml_dtypes", GB_CODEC_E8M0, GB_CONVERT_TIES_TO_EVEN, 0xFE, GB_TO_NAN, GB_TO_NAN, 0xFF, GB_NAN_POSITIVE,
     GB_CONVERT_ZERO_NAN, ML_DTYPES "(float8_e8m0fnu)"},

    {"bf16.ieee", GB_CODEC_BF16, GB_CONVERT_TIES_TO_EVEN, 0x7F7F, GB_TO_INFINITY, GB_TO_INFINITY, 0x7FC0, GB_NAN_SIGNED,
     GB_CONVERT_ZERO_SIGNED, "gb_bf16_encode; ml_dtypes 0.6.0, astype(bfloat16)"},
    {"bf16.cuda", GB_CODEC_BF16, GB_CONVERT_TIES_TO_EVEN, 0x7F7F, GB_TO_INFINITY, GB_TO_INFINITY, 0x7FFF,
     GB_NAN_POSITIVE, GB_CONVERT_ZERO_SIGNED, "CUDA 13.0 cuda_bf16.hpp, __float2bfloat16_rn"},
    {"bf16.saturate", GB_CODEC_BF16, GB_CONVERT_TIES_TO_EVEN, 0x7F7F, GB_TO_LARGEST, GB_TO_LARGEST, 0x7FC0,
     GB_NAN_SIGNED, GB_CONVERT_ZERO_SIGNED, "bf16.ieee, saturating"},
    {"fp16.ieee", GB_CODEC_FP16, GB_CONVERT_TIES_TO_EVEN, 0x7BFF, GB_TO_INFINITY, GB_TO_INFINITY, 0x7E00, GB_NAN_SIGNED,
     GB_CONVERT_ZERO_SIGNED, "gb_fp16_encode"},
    {"fp16.cuda", GB_CODEC_FP16, GB_CONVERT_TIES_TO_EVEN, 0x7BFF, GB_TO_INFINITY, GB_TO_INFINITY, 0x7FFF,
     GB_NAN_POSITIVE, GB_CONVERT_ZERO_SIGNED, "CUDA 13.0 cuda_fp16.hpp, __float2half_rn"},
    {"fp16.saturate", GB_CODEC_FP16, GB_CONVERT_TIES_TO_EVEN, 0x7BFF, GB_TO_LARGEST, GB_TO_LARGEST, 0x7E00,
     GB_NAN_SIGNED, GB_CONVERT_ZERO_SIGNED, "fp16.ieee, saturating"},
};

const struct gb_conversion *gb_conversions(size_t *count)
{
    *count = sizeof conversions / sizeof *conversions;
    return conversions;
}

const struct gb_conversion *gb_conversion_find(const char *name)
{
    for (size_t i = 0; i < sizeof conversions / sizeof *conversions; i++)
        if (!strcmp(conversions[i].name, name))
            return &conversions[i];
    return NULL;
}
