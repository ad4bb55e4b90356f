# SPDX-License-Identifier: Apache-2.0
"""Small random checkpoints of every family, as transformers writes them, and captures of them. Needs torch,
transformers and safetensors; test_models.py runs it:

    models.py FOLDER [MODEL...]

writes FOLDER/MODEL/ and FOLDER/MODEL.safetensors, and prints a line of JSON for each: its name, and what went wrong or
null."""
import importlib.util
import json
import os
import shutil
import sys

TOKENS = 24
SIZES = {"vocab_size": 128, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256, "intermediate_size": 192,
         "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
FEW = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 64}
SHARED = {"shared_expert_intermediate_size": 96}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16,
          "linear_value_head_dim": 16}
LATENT = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
          "head_dim": 16, "num_key_value_heads": 4}
ROUTED = {"n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 64, "n_shared_experts": 1,
          "first_k_dense_replace": 1}
ONE_GROUP = {**ROUTED, "n_group": 1, "topk_group": 1}
INDEXED = {"index_head_dim": 32, "index_n_heads": 2, "index_topk": 16}
GROUPS = {**ROUTED, **LATENT, "n_group": 4, "topk_group": 2}

# By row of the table in docs/importing.md: model_type, and what is not as in SIZES.
MODELS = {
    "mixtral": ("mixtral", LOCAL),
    "olmoe": ("olmoe", {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 64}),
    "flex_olmo": ("flex_olmo", {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 64}),
    "qwen2_moe": ("qwen2_moe", {**FEW, **SHARED}),
    "qwen3_moe": ("qwen3_moe", {**FEW, "norm_topk_prob": True, "mlp_only_layers": [1]}),
    "qwen3_next": ("qwen3_next", {**FEW, **SHARED, **LINEAR}),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", {**FEW, **SHARED, **LINEAR}),
    "mellum": ("mellum", {**FEW, "norm_topk_prob": True}),
    "gpt_oss": ("gpt_oss", LOCAL),
    "gpt_oss, mxfp4": ("gpt_oss", LOCAL),
    "deepseek_v2": ("deepseek_v2", {**GROUPS, "topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0}),
    "deepseek_v2, greedy": ("deepseek_v2", {**GROUPS, "topk_method": "greedy", "routed_scaling_factor": 1.0}),
    "deepseek_v3": ("deepseek_v3", {**GROUPS, "routed_scaling_factor": 2.5}),
    "deepseek_v32": ("deepseek_v32", {**GROUPS, **INDEXED, "routed_scaling_factor": 2.5}),
    "kimi_k2": ("deepseek_v3", {**ONE_GROUP, **LATENT, "routed_scaling_factor": 2.827}),
    "glm4_moe": ("glm4_moe", {**ONE_GROUP, "routed_scaling_factor": 1.5}),
    "glm4_moe_lite": ("glm4_moe_lite", {**ONE_GROUP, **LATENT, "routed_scaling_factor": 1.8}),
    "glm_moe_dsa": ("glm_moe_dsa", {**ONE_GROUP, **LATENT, **INDEXED, "routed_scaling_factor": 2.5}),
    "dots1": ("dots1", {**ONE_GROUP, "norm_topk_prob": True, "routed_scaling_factor": 2.5}),
    "solar_open": ("solar_open", ONE_GROUP),
    "mimo_v2_flash": ("mimo_v2_flash", ONE_GROUP),
    "exaone_moe": ("exaone_moe", FEW),
    "minimax_m2": ("minimax_m2", LOCAL),
    "llama4_text": ("llama4_text", {"num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size": 64,
                                    "intermediate_size_mlp": 96, "interleave_moe_layer_step": 2,
                                    "num_hidden_layers": 4}),
    "llama4": ("llama4", {}),
    "qwen3_vl_moe": ("qwen3_vl_moe", {}),
    "ernie4_5_moe": ("ernie4_5_moe", {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 64,
                                      "moe_num_shared_experts": 1, "moe_layer_start_index": 1}),
    "granitemoe": ("granitemoe", LOCAL),
    "granitemoe, residual_multiplier 0.22": ("granitemoe", {**LOCAL, "residual_multiplier": 0.22}),
    "granitemoeshared": ("granitemoeshared", {**LOCAL, "shared_intermediate_size": 64}),
    "granitemoehybrid": ("granitemoehybrid", {**LOCAL, "shared_intermediate_size": 64,
                                              "layer_types": ["attention"] * 3}),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", {"num_experts": 8, "moe_topk": 2, "moe_intermediate_size": 64,
                                          "intermediate_size": 64, "num_shared_expert": 1}),
    "jamba": ("jamba", {"num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64, "attn_layer_period": 2,
                        "attn_layer_offset": 0, "expert_layer_period": 2, "expert_layer_offset": 1,
                        "num_hidden_layers": 4, "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2,
                        "mamba_dt_rank": 8}),
    "phimoe": ("phimoe", {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64}),
    "longcat_flash": ("longcat_flash", {**LATENT, "n_routed_experts": 8, "zero_expert_num": 2, "moe_topk": 2,
                                        "expert_ffn_hidden_size": 64, "ffn_hidden_size": 64, "num_layers": 2}),
}

# Models that read pictures too: what their text model has, in an object of config.json of its own.
PICTURES = {"llama4": MODELS["llama4_text"][1], "qwen3_vl_moe": FEW}
VISION = {"hidden_size": 32, "depth": 1, "num_hidden_layers": 1, "num_heads": 2, "num_attention_heads": 2,
          "intermediate_size": 32, "out_hidden_size": 128, "image_size": 28, "patch_size": 14,
          "deepstack_visual_indexes": [0], "vision_output_dim": 32, "projector_input_dim": 32,
          "projector_output_dim": 32}


def randomise(model):
    """Weights of the size that training leaves, biases and norms that are not what they are at first."""
    import torch
    generator = torch.Generator().manual_seed(20260101)

    def draw(tensor):
        return torch.randn(tensor.shape, generator=generator, dtype=torch.float32)

    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "e_score_correction_bias" in name or (name.endswith("bias") and "experts" not in name):
                tensor.copy_(draw(tensor) / 8)
            elif "norm" in name and tensor.dim() == 1:
                tensor.add_(draw(tensor) / 8)
            elif "experts" in name:  # gates and ups beyond 7, where gpt-oss clamps them
                tensor.copy_(draw(tensor) * (3 * tensor.shape[-1] ** -0.5 if tensor.dim() > 1 else 1))
            elif tensor.dim() == 2 and ("gate" in name or "router" in name):
                tensor.copy_(draw(tensor) * tensor.shape[-1] ** -0.5)
        # Routers in FP32 that bf16 holds: that others are refused is another test's affair.
        for name, tensor in model.named_parameters():
            if tensor.dtype == torch.float32:
                tensor.copy_(tensor.bfloat16())


def publish(folder):
    """Experts of a gpt-oss checkpoint as codes, as gpt-oss is published."""
    import torch
    from safetensors.torch import load_file, save_file
    file = os.path.join(folder, "model.safetensors")
    tensors, generator = load_file(file), torch.Generator().manual_seed(7)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        shape = [experts, rows, columns // 32, 16]
        tensors[name + "_blocks"] = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        tensors[name + "_scales"] = torch.randint(119, 123, shape[:3], generator=generator, dtype=torch.uint8)
    save_file(tensors, file, metadata={"format": "pt"})
    edit(folder, {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}})


def edit(folder, changes):
    with open(os.path.join(folder, "config.json")) as stream:
        config = json.load(stream)
    with open(os.path.join(folder, "config.json"), "w") as stream:
        json.dump({**config, **changes}, stream)


def write(name, folder):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    kind, changes = MODELS[name]
    torch.manual_seed(1)
    if kind in PICTURES:
        config = AutoConfig.for_model(kind, text_config={**SIZES, **PICTURES[kind]}, vision_config=VISION)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    else:
        config = AutoConfig.for_model(kind, **{**SIZES, **changes})
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    randomise(model)
    model.save_pretrained(folder)
    if name.endswith("mxfp4"):
        publish(folder)


def capture(folder, output):
    """fixtures/capture.py, as its users run it but in this process; in float32, as the stack's truth rounds nothing."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../fixtures/capture.py")
    spec = importlib.util.spec_from_file_location("capture", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.argv = ["capture.py", folder, output, "--tokens", str(TOKENS), "--dtype", "float32"]
    sys.stdout = sys.stderr
    try:
        module.main()
    finally:
        sys.stdout = sys.__stdout__


def main():
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    base, *names = sys.argv[1:]
    for name in names or MODELS:
        wrong, folder = None, os.path.join(base, name)
        try:
            shutil.rmtree(folder, ignore_errors=True)
            write(name, folder)
        except Exception as error:  # whatever this version of transformers raises
            wrong = f"transformers {transformers.__version__} does not write it: {type(error).__name__}: {error}"
        if wrong is None:
            try:
                capture(folder, folder + ".safetensors")
            except SystemExit as error:
                wrong = f"capture: {error}"
            if name == "kimi_k2":  # published with a type and code of its own, which are DeepSeek-V3's
                edit(folder, {"model_type": "kimi_k2"})
        print(json.dumps([name, wrong]), flush=True)


if __name__ == "__main__":
    main()
