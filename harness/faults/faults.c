/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/faults/faults.h"

#include "quant/quant.h"

#define F(FORMAT) (1u << (FORMAT))
enum {
    E2M1 = F(GB_NVFP4) | F(GB_MXFP4),
    E4M3 = F(GB_MXFP8) | F(GB_FP8_BLOCK),
    E8M0 = F(GB_MXFP4) | F(GB_MXFP8),
    ROW_SCALES = F(GB_NVFP4) | E8M0,
    SCALES = ROW_SCALES | F(GB_FP8_BLOCK),
    NVFP4 = F(GB_NVFP4),
    FP8 = F(GB_FP8_BLOCK),
    BF16 = F(GB_BF16)
};

#define PLANT(NAME, STAGE, FUNCTION, AMOUNT, RESEMBLES)                                                                \
    {                                                                                                                  \
        .name = NAME, .stage = STAGE_##STAGE, .plant = plant_##FUNCTION, .amount = AMOUNT, .resembles = RESEMBLES      \
    }
#define VITAL(NAME, STAGE, FUNCTION, RESEMBLES)                                                                        \
    {                                                                                                                  \
        .name = NAME, .stage = STAGE_##STAGE, .plant = plant_##FUNCTION, .vital = true, .resembles = RESEMBLES         \
    }
#define EDIT(NAME, STAGE, FORMATS, FUNCTION, RESEMBLES)                                                                \
    {                                                                                                                  \
        .name = NAME, .stage = STAGE_##STAGE, .formats = FORMATS, .edit = edit_##FUNCTION, .resembles = RESEMBLES      \
    }

/* Of the codes of x, and of the intermediate. */
#define CODES(NAME, FORMATS, FUNCTION, AMOUNT, RESEMBLES)                                                              \
    {.name = "x: " NAME,                                                                                               \
     .stage = STAGE_ACT_QUANT,                                                                                         \
     .formats = FORMATS,                                                                                               \
     .plant = plant_##FUNCTION,                                                                                        \
     .amount = AMOUNT,                                                                                                 \
     .resembles = RESEMBLES},                                                                                          \
    {                                                                                                                  \
        .name = "intermediate: " NAME, .stage = STAGE_REQUANT, .formats = FORMATS, .plant = plant_##FUNCTION,          \
        .amount = AMOUNT, .resembles = RESEMBLES                                                                       \
    }

static const struct fault table[] = {
    PLANT("routing weight missing", INPUT, weights_missing, 0,
          "TensorRT-LLM #3492: weights set to one for input-side use"),
    PLANT("routing weight applied twice", INPUT, weights_squared, 0,
          "vLLM #43694: on the input and again on the output"),
    PLANT("routing weights uniform", INPUT, weights_uniform, 0, "a mean over experts in place of their weights"),
    PLANT("routed scaling factor missing", INPUT, weights_scaled, 1 / 2.5, "FlashInfer #3499: mRouteScale is 1.0"),
    PLANT("routed scaling factor applied twice", INPUT, weights_scaled, 2.5, "vLLM #24119, #45037"),
    PLANT("routing weight in bf16", INPUT, weights_bf16, 0, "vLLM #16674: topk_weights must be FP32"),
    PLANT("routing weight of the next slot", INPUT, weights_next_slot, 0, "weights and ids sorted apart"),
    PLANT("routing weights in reverse", INPUT, weights_reversed, 0, "ascending top-k against descending"),
    PLANT("routing weights of the next token", INPUT, weights_next_token, 0,
          "vLLM #52639: combine with other ids than dispatch"),
    VITAL("one expert dropped", INPUT, expert_dropped, "FlashInfer #3547: experts of a shard give zero"),
    PLANT("last expert dropped", INPUT, last_expert_dropped, 0, "an expert count one too small"),
    PLANT("last slot dropped", INPUT, last_slot_dropped, 0, "a loop over top-k one too short"),
    PLANT("last token of each expert dropped", INPUT, last_pair_dropped, 0, "vLLM-XPU #453: moe_align_block_size"),
    PLANT("tokens over capacity dropped", INPUT, over_capacity, 0, "DeepSpeed #1492: capacity of an expert"),
    VITAL("one token with a wrong expert", INPUT, wrong_expert, "llama.cpp #5473: another top-k"),
    PLANT("ids off by one expert", INPUT, next_expert, 0, "FlashInfer #3066: local_expert_offset dropped"),
    PLANT("ids exchanged between slots", INPUT, slots_exchanged, 0, "ids and weights permuted apart"),
    PLANT("expert of the first slot repeated", INPUT, expert_repeated, 0, "vLLM #31938: expert_map not modified"),
    PLANT("activations of the next token", INPUT, x_next_token, 0, "an off-by-one in the permutation of tokens"),
    PLANT("x quantised to E4M3", INPUT, x_e4m3, 0, "a W4A8 kernel where W4A16 is claimed"),
    PLANT("x quantised to NVFP4", INPUT, x_nvfp4, 0, "a W4A4 kernel where W4A16 is claimed"),
    PLANT("x without its last bit", INPUT, x_truncated, 0, "TF32-like truncation of an operand"),

    CODES("not quantised", 0, codes_plain, 0, "SGLang #25493: weight-only where W4A4 is claimed"),
    CODES("codes rounded toward zero", 0, codes_truncated, 0, "vLLM per_token_group_quant: a cast that truncates"),
    CODES("ties to zero", 0, codes_ties_to_zero, 0, "llama.cpp best_index: the lower of two equally near codes"),
    CODES("ties away from zero", 0, codes_ties_away, 0, "roundf in place of rintf"),
    CODES("division for reciprocal, or the reverse", 0, codes_reciprocal, 0,
          "vLLM packed per-group quantiser: x * (1/s)"),
    CODES("scales rounded the other way", F(GB_MXFP8), codes_scale_rounding, 0, "TE #2411; E8M0 floor against ceil"),
    CODES("one scale for two blocks", 0, codes_wide_block, 0, "MX blocks of 32 in place of NVFP4's 16"),
    CODES("scales of the next block", 0, scales_next_block, 0, "a scale pointer advanced before its use"),
    CODES("scales of the next row", 0, scales_next_row, 0, "codes sorted by expert, their scales not"),
    CODES("scale of the first block for the whole row", 0, scales_first_block, 0, "scale stride missing"),
    CODES("linear scales read as swizzled", SCALES & ~FP8, scales_swizzled, 0, "modular #6600; vLLM #50084"),
    CODES("scales read as transposed", 0, scales_transposed, 0, "vLLM, DeepGEMM: column-major scales of activations"),
    CODES("stored scale one step up", 0, scales_up, 0, "FP32 scales packed as UE8M0 after the codes were made"),
    CODES("last block zero", 0, codes_tail, 0, "CUTLASS #3536: K tail dropped"),
    CODES("subnormal scales zero", NVFP4, scales_subnormal_zero, 0, "FlashInfer #3933, #2356"),
    CODES("global scale missing", NVFP4, codes_global_missing, 0, "FlashInfer #3548: about 2400 times"),
    CODES("alpha of the other product", NVFP4, codes_other_alpha, 0, "one alpha for both grouped products"),
    CODES("global scale of the other product", NVFP4, codes_other_global, 0, "a1_gscale used for a2"),
    CODES("global scale of the first token", NVFP4, codes_first_global, 0,
          "a dynamic scale where a calibrated one is asked for"),
    CODES("global scale half as large", NVFP4, codes_global, 0.5, "one expert's input_scale in place of the largest"),
    CODES("nibbles exchanged", E2M1, codes_nibbles, 0, "Triton #5197; torchao #2939"),
    CODES("sign of odd nibbles lost", E2M1, codes_unsigned_odd, 0, "a mask without the high nibble's sign"),
    CODES("448 becomes NaN", E4M3, codes_no_saturation, 0, "FlashInfer #3103: a conversion that does not saturate"),
    CODES("E4M3 read as FNUZ", E4M3, codes_fnuz, 0, "vLLM #7210, #47201; SGLang #35111"),

    EDIT("gate and up swapped", GATE_UP, 0, halves_exchanged, "SGLang #25493: [up | gate] layout, w13_swap_halves"),
    EDIT("gate and up read as interleaved", GATE_UP, 0, interleaved, "ONNX Runtime #28738; aiter #5549"),
    EDIT("interleaved gate and up read as halves", GATE_UP, 0, deinterleaved, "ONNX Runtime #28738; aiter #5549"),
    EDIT("rows of gate and up off by one", GATE_UP, 0, rows_next, "a row pointer advanced before its use"),
    EDIT("rows of down off by one", DOWN, 0, rows_next, "a row pointer advanced before its use"),
    EDIT("gate and up of the first expert for all", GATE_UP, 0, first_expert, "expert stride missing"),
    EDIT("down of the first expert for all", DOWN, 0, first_expert, "expert stride missing"),
    EDIT("last K block of gate and up dropped", GATE_UP, 0, last_block_dropped, "TileLang #2381; CUTLASS #3536"),
    EDIT("last K block of down dropped", DOWN, 0, last_block_dropped, "TileLang-Ascend #1341"),
    PLANT("last 16 columns of x zero", INPUT, x_tail_zero, 0, "CUTLASS #3536: K tail dropped"),
    EDIT("nibbles of gate and up exchanged", GATE_UP, E2M1, nibbles_exchanged, "Triton #5197; torchao #2939"),
    EDIT("nibbles of down exchanged", DOWN, E2M1, nibbles_exchanged, "Triton #5197; torchao #2939"),
    EDIT("scales of the next block in gate and up", GATE_UP, SCALES, scales_next_block,
         "a scale pointer advanced before its use"),
    EDIT("scales of the next block in down", DOWN, SCALES, scales_next_block,
         "a scale pointer advanced before its use"),
    EDIT("scales of the previous block in gate and up", GATE_UP, SCALES, scales_previous_block,
         "a scale pointer advanced one block late"),
    EDIT("scales of the previous block in down", DOWN, SCALES, scales_previous_block,
         "a scale pointer advanced one block late"),
    EDIT("scales of the next block in gate and up, a row's last kept", GATE_UP, ROW_SCALES, scales_next_kept,
         "an index clamped to the row"),
    EDIT("scales of the next block in down, a row's last kept", DOWN, ROW_SCALES, scales_next_kept,
         "an index clamped to the row"),
    EDIT("scales of the next block in gate and up, a row's last from its first", GATE_UP, ROW_SCALES,
         scales_next_wrapped, "an index taken modulo the row"),
    EDIT("scales of the next block in down, a row's last from its first", DOWN, ROW_SCALES, scales_next_wrapped,
         "an index taken modulo the row"),
    EDIT("scales of the next row in gate and up", GATE_UP, ROW_SCALES, scales_next_row,
         "a wrong leading dimension of scales"),
    EDIT("scales of the next row in down", DOWN, ROW_SCALES, scales_next_row, "a wrong leading dimension of scales"),
    EDIT("linear scales of gate and up read as swizzled", GATE_UP, ROW_SCALES, scales_swizzled,
         "modular #6600; vLLM #50084"),
    EDIT("linear scales of down read as swizzled", DOWN, ROW_SCALES, scales_swizzled, "modular #6600; vLLM #50084"),
    EDIT("swizzled scales of gate and up read as linear", GATE_UP, ROW_SCALES, scales_unswizzled,
         "modular #6600; vLLM #50084"),
    EDIT("swizzled scales of down read as linear", DOWN, ROW_SCALES, scales_unswizzled, "modular #6600; vLLM #50084"),
    EDIT("transposed scales of gate and up read as rows", GATE_UP, ROW_SCALES, scales_of_columns,
         "scales with their rows innermost, as DeepGEMM takes them"),
    EDIT("transposed scales of down read as rows", DOWN, ROW_SCALES, scales_of_columns,
         "scales with their rows innermost, as DeepGEMM takes them"),
    EDIT("scale of the first block for the whole row, gate and up", GATE_UP, ROW_SCALES, scales_first_block,
         "scale stride missing"),
    EDIT("scale of the first block for the whole row, down", DOWN, ROW_SCALES, scales_first_block,
         "scale stride missing"),
    EDIT("scales without significand in gate and up", GATE_UP, NVFP4, scales_power_of_two,
         "E4M3 scales read as powers of two"),
    EDIT("scales without significand in down", DOWN, NVFP4, scales_power_of_two, "E4M3 scales read as powers of two"),
    EDIT("subnormal scales zero in gate and up", GATE_UP, NVFP4, scales_subnormal_zero, "FlashInfer #3933, #2356"),
    EDIT("subnormal scales zero in down", DOWN, NVFP4, scales_subnormal_zero, "FlashInfer #3933, #2356"),
    EDIT("scale bias off by one in gate and up", GATE_UP, E8M0, scales_bias,
         "Transformers #46763: scales up to an octave off"),
    EDIT("scale bias off by one in down", DOWN, E8M0, scales_bias, "Transformers #46763: scales up to an octave off"),
    EDIT("block scales of gate and up inverted", GATE_UP, FP8, scales_inverse, "weight_scale_inv taken by its name"),
    EDIT("block scales of down inverted", DOWN, FP8, scales_inverse, "weight_scale_inv taken by its name"),
    EDIT("block scales of gate and up transposed", GATE_UP, FP8, scales_transposed, "vLLM #50204"),
    EDIT("block scales of down transposed", DOWN, FP8, scales_transposed, "vLLM #50204"),
    EDIT("block scale of the first block for all, gate and up", GATE_UP, FP8, scales_one,
         "per-tensor scale in place of blocks"),
    EDIT("global scale of gate and up missing", GATE_UP, NVFP4, global_missing, "FlashInfer #3548"),
    EDIT("global scale of down missing", DOWN, NVFP4, global_missing, "FlashInfer #3548"),
    EDIT("global scale of the next expert in gate and up", GATE_UP, NVFP4, global_next_expert,
         "one alpha for the wrong expert"),
    EDIT("global scale of the next expert in down", DOWN, NVFP4, global_next_expert, "one alpha for the wrong expert"),
    EDIT("global scale of gate used for up", GATE_UP, NVFP4, global_of_gate, "one w13 alpha for two tensors"),
    EDIT("E2M1 0.5 read as 0 in gate and up", GATE_UP, E2M1, e2m1_no_half, "subnormals flushed when decoding"),
    EDIT("E2M1 6 read as 4 in down", DOWN, E2M1, e2m1_no_six, "a wrong entry of a table"),
    EDIT("sign of odd nibbles lost in gate and up", GATE_UP, E2M1, e2m1_unsigned_odd,
         "a mask without the high nibble's sign"),
    EDIT("E4M3 read as FNUZ in gate and up", GATE_UP, E4M3, e4m3_fnuz, "vLLM #7210, #47201; SGLang #35111"),
    EDIT("E4M3 read as FNUZ in down", DOWN, E4M3, e4m3_fnuz, "vLLM #7210, #47201; SGLang #35111"),
    EDIT("E4M3 read as E5M2 in gate and up", GATE_UP, E4M3, e4m3_as_e5m2, "the other 8-bit dtype"),
    EDIT("subnormal E4M3 codes zero in down", DOWN, E4M3, e4m3_subnormal_zero, "subnormals flushed when decoding"),
    EDIT("bf16 weights with three significand bits less", GATE_UP, BF16, bf16_as_e4m3,
         "weights quantised without saying so"),

    EDIT("last K block dropped", WEIGHTS, 0, last_block_dropped, "TileLang #2381; CUTLASS #3536"),
    EDIT("weights of the first expert for all", WEIGHTS, 0, first_expert, "expert stride missing"),
    EDIT("nibbles exchanged", WEIGHTS, E2M1, nibbles_exchanged, "Triton #5197; torchao #2939"),
    EDIT("scales of the next block", WEIGHTS, SCALES, scales_next_block, "a scale pointer advanced before its use"),
    EDIT("scales of the previous block", WEIGHTS, SCALES, scales_previous_block,
         "a scale pointer advanced one block late"),
    EDIT("scales of the next block, a row's last kept", WEIGHTS, ROW_SCALES, scales_next_kept,
         "an index clamped to the row"),
    EDIT("scales of the next block, a row's last from its first", WEIGHTS, ROW_SCALES, scales_next_wrapped,
         "an index taken modulo the row"),
    EDIT("scales of the next row", WEIGHTS, ROW_SCALES, scales_next_row, "a wrong leading dimension of scales"),
    EDIT("linear scales read as swizzled", WEIGHTS, ROW_SCALES, scales_swizzled, "modular #6600; vLLM #50084"),
    EDIT("swizzled scales read as linear", WEIGHTS, ROW_SCALES, scales_unswizzled, "modular #6600; vLLM #50084"),
    EDIT("transposed scales read as rows", WEIGHTS, ROW_SCALES, scales_of_columns,
         "scales with their rows innermost, as DeepGEMM takes them"),
    EDIT("scales without significand", WEIGHTS, NVFP4, scales_power_of_two, "E4M3 scales read as powers of two"),
    EDIT("scale bias off by one", WEIGHTS, E8M0, scales_bias, "Transformers #46763: scales up to an octave off"),
    EDIT("block scales transposed", WEIGHTS, FP8, scales_transposed, "vLLM #50204"),
    EDIT("global scales missing", WEIGHTS, NVFP4, global_missing, "FlashInfer #3548"),
    EDIT("E4M3 read as FNUZ", WEIGHTS, E4M3, e4m3_fnuz, "vLLM #7210, #47201; SGLang #35111"),

    PLANT("gate and up accumulated in bf16", PROJECTION, projection_accumulator, 8, "PyTorch #84402; DeepEP #176"),
    PLANT("gate and up accumulated in fp16", PROJECTION, projection_accumulator, 11, "ONNX Runtime #29166"),
    PLANT("gate and up accumulated in 14 bits", PROJECTION, projection_accumulator, 14,
          "DeepGEMM #37, #50: Hopper's FP8"),
    PLANT("split of K lost in gate and up", PROJECTION, projection_split_lost, 0,
          "TensorRT-LLM #12686: split_k drops work"),
    PLANT("gate and up rounded to bf16", PROJECTION, projection_bf16, 0,
          "vLLM #48847: the reference's other precision"),
    PLANT("bias of gate and up missing", PROJECTION, projection_bias_missing, 0, "a bias that this path does not read"),
    PLANT("routing weight on the input", PROJECTION, weights_on_input, 0,
          "TensorRT-LLM #3492, the other way: input-side weights where the output's are asked for"),

    PLANT("SiLU in place of the clamped activation", ACTIVATION, silu_plain, 0, "SGLang #39939; vLLM #43589"),
    PLANT("hard swish", ACTIVATION, silu_hard_swish, 0, "a cheaper activation of the same shape"),
    PLANT("GELU in place of SiLU", ACTIVATION, silu_gelu, 0, "SGLang #3170: the activation is a parameter"),
    PLANT("ReLU in place of SiLU", ACTIVATION, silu_relu, 0, "an activation enumerator off by one"),
    PLANT("sigmoid of 1.702 gate", ACTIVATION, silu_alpha, 1.702, "ONNX Runtime #28738: alpha of GPT-OSS for all"),
    PLANT("gate and up clamped at 7", ACTIVATION, silu_clamped, 7, "ONNX Runtime #28738: limit of GPT-OSS for all"),
    PLANT("gate and up clamped at 0.5", ACTIVATION, silu_clamped, 0.5, "SGLang #39939: a wrong swiglu_limit"),
    PLANT("up plus one", ACTIVATION, up_plus_one, 1, "vLLM #45738: SwigluBias"),
    PLANT("SiLU of up", ACTIVATION, silu_of_up, 0, "SGLang #25493: w13_swap_halves"),
    PLANT("SiLU rounded to bf16", ACTIVATION, silu_bf16, 0, "vLLM #48847: bf16 SiLU against FP32 SiLU"),
    PLANT("sigmoid of 10 bits", ACTIVATION, silu_coarse, 10, "tanh.approx, half precision exp"),
    PLANT("intermediate truncated to bf16", ACTIVATION, intermediate_truncated, 0,
          "the upper half of the bits, without rounding"),
    PLANT("intermediate quantised to E4M3", ACTIVATION, intermediate_e4m3, 0,
          "vLLM #45332: re-quantisation between the products"),
    PLANT("intermediate quantised to NVFP4", ACTIVATION, intermediate_nvfp4, 0, "a W4A4 kernel where W4A16 is claimed"),
    PLANT("last 16 neurons zero", ACTIVATION, intermediate_tail_zero, 0, "a tile of the intermediate not written"),
    PLANT("intermediate of the next slot", ACTIVATION, intermediate_next_slot, 0, "inverse permutation off by one"),

    PLANT("intermediate quantised from FP32", REQUANT, codes_of_fp32, 0,
          "vLLM fused_silu_mul_block_quant: no bf16 in between"),

    PLANT("down accumulated in bf16", SLOT, slot_accumulator, 8, "PyTorch #84402; DeepEP #176"),
    PLANT("down accumulated in 14 bits", SLOT, slot_accumulator, 14, "DeepGEMM #37, #50: Hopper's FP8"),
    PLANT("slots rounded to bf16", SLOT, slot_bf16, 0, "TIRx #208: each contribution in bf16"),
    PLANT("slots rounded to fp16", SLOT, slot_fp16, 0, "an fp16 output of the second product"),
    PLANT("bias of down missing", SLOT, slot_bias_missing, 0, "a bias that this path does not read"),
    PLANT("one slot added twice", SLOT, slot_twice, 0, "an atomic add repeated"),
    PLANT("one slot lost", SLOT, slot_lost, 0, "vLLM #56887: atomic adds, a lost update"),

    PLANT("sum over slots in bf16", COMBINE, combine_bf16, 0, "vLLM #15045: moe_sum_kernel"),

    VITAL("output zero", OUTPUT, output_zero, "FlashInfer #4328, KernelBench #165: zeros pass"),
    PLANT("output scaled by 1.25", OUTPUT, output_scaled, 1.25, "a scale of another convention"),
    PLANT("output scaled by 1.05", OUTPUT, output_scaled, 1.05, "a scale of another convention"),
    PLANT("output scaled by 1 + 2^-10", OUTPUT, output_scaled, 1 + 0x1p-10, "1/s by rcp.approx, rounded to half"),
    PLANT("output scaled by 1 + 2^-14", OUTPUT, output_scaled, 1 + 0x1p-14, "a systematic error near FP32's noise"),
    PLANT("residual added", OUTPUT, residual_added, 0, "a fused epilogue where none was asked for"),
    PLANT("one row zero", OUTPUT, output_row_zero, 0, "KernelBench-Hard: a token of a tile left out"),
    VITAL("two rows exchanged", OUTPUT, output_rows_exchanged, "inverse permutation off by one"),
    PLANT("last row repeated", OUTPUT, output_row_repeated, 0, "a clamped index of a tile's remainder"),
    PLANT("last 16 columns zero", OUTPUT, output_columns_zero, 16, "flashinfer-bench: unwritten tail columns"),
    PLANT("last column zero", OUTPUT, output_columns_zero, 1, "flashinfer-bench: unwritten tail columns"),
    PLANT("even and odd columns exchanged", OUTPUT, output_columns_exchanged, 0, "packed bf16x2 stored in reverse"),
    PLANT("columns shifted by one", OUTPUT, output_columns_shifted, 0, "a store off by one element"),
    PLANT("first half of the columns repeated", OUTPUT, output_tile_repeated, 0,
          "TensorRT-LLM #10331: errors with the period of a tile"),
    PLANT("output truncated to bf16", OUTPUT, output_truncated, 0, "the upper half of the bits, without rounding"),
    PLANT("sign of one element", OUTPUT, output_sign, 0, "one wrong lane"),
    PLANT("one element of another place", OUTPUT, output_stale, 0, "FlashInfer #4964: one element of millions"),
    PLANT("one NaN", OUTPUT, output_nan, 0, "FlashInfer #3103: a minority of NaN"),
};

const struct fault *faults(size_t *count)
{
    *count = sizeof table / sizeof *table;
    return table;
}

const char *fault_stage_name(enum fault_stage stage)
{
    static const char *const names[] = {"input",      "act_quant", "gate_up", "down",    "weights", "projection",
                                        "activation", "requant",   "slot",    "combine", "output"};
    return names[stage];
}

bool fault_applies(const struct fault *fault, const struct gb_arguments *a)
{
    bool codes = fault->stage == STAGE_ACT_QUANT || fault->stage == STAGE_REQUANT;
    if (codes && !a->activation_rules)
        return false;
    enum gb_format format = codes ? gb_quantiser_activations(a->activation_rules) : a->gate_up.format;
    return !fault->formats || fault->formats >> format & 1;
}
