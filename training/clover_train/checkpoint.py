"""To and from the ordinary checkpoint layout."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from clover_train.config import Config
from clover_train.model import Model
from clover_train.quant import Rounding, round_q4

_GDN = {
    "in_proj_qkv.weight": "qkv.weight",
    "in_proj_z.weight": "z.weight",
    "in_proj_a.weight": "a",
    "in_proj_b.weight": "b",
    "out_proj.weight": "out.weight",
    "A_log": "A_log",
    "dt_bias": "dt_bias",
    "norm.weight": "norm",
    "conv_right_weight": "conv_right",
    "bd_softmax_logit_scale": "logit_scale",
    "bd_softmax_history_bias": "history_bias",
    "bd_softmax_history_c": "history_c",
}
_ATTENTION = {
    "q_proj.weight": "q.weight",
    "k_proj.weight": "k.weight",
    "v_proj.weight": "v.weight",
    "o_proj.weight": "o.weight",
    "q_norm.weight": "q_norm",
    "k_norm.weight": "k_norm",
}
_MOE = {
    "gate.weight": "router",
    "experts.down_proj": "down.weight",
    "shared_expert.gate_proj.weight": "shared_gate.weight",
    "shared_expert.up_proj.weight": "shared_up.weight",
    "shared_expert.down_proj.weight": "shared_down.weight",
    "shared_expert_gate.weight": "shared_weight",
}


def _names(c: Config) -> dict[str, str]:
    """Return the model's parameter name of each tensor that is stored as it is."""
    out = {
        "model.embed_tokens.weight": "embed",
        "model.norm.weight": "norm",
        "lm_head.weight": "head.weight",
    }
    for i, kind in enumerate(c.layer_types):
        theirs, ours = f"model.layers.{i}.", f"layers.{i}."
        out[theirs + "input_layernorm.weight"] = ours + "input_norm"
        out[theirs + "post_attention_layernorm.weight"] = ours + "post_norm"
        part, table = ("linear_attn.", _GDN)
        if kind == "full_attention":
            part, table = ("self_attn.", _ATTENTION)
        out |= {theirs + part + a: f"{ours}mixer.{b}" for a, b in table.items()}
        out |= {f"{theirs}mlp.{a}": f"{ours}moe.{b}" for a, b in _MOE.items()}
    return out


def tensors(model: Model) -> dict[str, Tensor]:
    """Return a checkpoint's tensors; rounded to q4 values where rounding is on."""
    state = {k: v.detach().clone() for k, v in model.state_dict().items()}
    if Rounding.is_on:
        rounded = {n for n, m in model.named_modules() if type(m).__name__ in ("Linear", "Stack")}
        for n in rounded:
            state[f"{n}.weight"] = round_q4(state[f"{n}.weight"])
    out = {theirs: state[ours] for theirs, ours in _names(model.c).items()}
    for i, kind in enumerate(model.c.layer_types):
        moe, mlp = f"layers.{i}.moe.", f"model.layers.{i}.mlp.experts."
        out[mlp + "gate_up_proj"] = torch.cat(
            [state[moe + n] for n in ("gate.weight", "up.weight")], 1
        )
        if kind == "linear_attention":
            conv = state[f"layers.{i}.mixer.conv"]
            out[f"model.layers.{i}.linear_attn.conv1d.weight"] = conv[:, None]
    return {k: v.contiguous() for k, v in out.items()}


def read(folder: Path) -> Model:
    """Build the model of a checkpoint folder (fused experts, prefix `model.`)."""
    c = Config.parse(json.loads((folder / "config.json").read_text()))
    stored = {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}
    model = Model(c)
    state = {ours: stored[theirs] for theirs, ours in _names(c).items()}
    for i, kind in enumerate(c.layer_types):
        both = stored[f"model.layers.{i}.mlp.experts.gate_up_proj"]
        half = both.shape[1] // 2
        state[f"layers.{i}.moe.gate.weight"] = both[:, :half]
        state[f"layers.{i}.moe.up.weight"] = both[:, half:]
        if kind == "linear_attention":
            conv = stored[f"model.layers.{i}.linear_attn.conv1d.weight"]
            state[f"layers.{i}.mixer.conv"] = conv[:, 0]
    own = model.state_dict()
    model.load_state_dict({k: v.reshape(own[k].shape) for k, v in state.items()})
    return model


def write(model: Model, folder: Path, ids: dict[str, int]) -> None:
    """Write config, generation_config and bf16 weights; `ids` are the tokenizer's special ids."""
    folder.mkdir(parents=True, exist_ok=True)
    c = model.c
    config = {
        "model_type": "clover_moe",
        "architectures": ["CloverMoeModelLM"],
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "num_hidden_layers": len(c.layer_types),
        "layer_types": list(c.layer_types),
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": c.rms_norm_eps,
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "attn_output_gate": True,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": c.linear_num_key_heads,
        "linear_num_value_heads": c.linear_num_value_heads,
        "linear_key_head_dim": c.linear_key_head_dim,
        "linear_value_head_dim": c.linear_value_head_dim,
        "num_experts": c.num_experts,
        "num_experts_per_tok": c.num_experts_per_tok,
        "num_shared_experts": 1,
        "moe_intermediate_size": c.moe_intermediate_size,
        "shared_expert_intermediate_size": c.shared_expert_intermediate_size,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": c.rope_theta,
            "partial_rotary_factor": c.partial_rotary_factor,
        },
        "block_size": c.block_size,
        "moe_block_coreset_enabled": c.coreset_top_p < 1,
        "moe_block_coreset_top_p": c.coreset_top_p,
        "denoising_config": {"algorithm": "low_confidence", "threshold": 0.95},
        "mask_token_id": ids["<|mask|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "bos_token_id": None,
        "dtype": "bfloat16",
    }
    generation = {
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
        "do_sample": False,
        "dllm_length_penalty": 100.0,
        "dllm_length_penalty_start": 192,
        "dllm_length_penalty_window": 64,
        "dllm_think_end_bias": 30.0,
        "dllm_think_end_start": 48,
        "dllm_think_end_window": 48,
        "dllm_think_end_token_id": ids["</think>"],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    stored = {k: v.to(torch.bfloat16) for k, v in tensors(model).items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
