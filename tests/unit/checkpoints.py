"""Tiny checkpoints for tests: a valid one with random values, and ways to change it."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

HIDDEN, VOCAB, EXPERTS, WIDTH, SHARED = 8, 20, 3, 4, 6
CONV = 2 * 2 * 3 + 4 * 2
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NAMES = {np.dtype("<f4"): "F32", np.dtype("<f2"): "F16", BFLOAT16: "BF16", np.dtype("i1"): "I8"}
PREVIEW = (
    "conv_right_weight",
    "bd_softmax_logit_scale",
    "bd_softmax_history_bias",
    "bd_softmax_history_c",
)

Tensors = dict[str, np.ndarray]


def config(**changes: Any) -> dict[str, Any]:
    """Return a clover_moe config of a GDN and an attention layer; None removes a field."""
    fields = {
        "model_type": "clover_moe",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "attention_bias": False,
        "attn_output_gate": True,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 3,
        "linear_value_head_dim": 2,
        "linear_conv_kernel_dim": 4,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": WIDTH,
        "shared_expert_intermediate_size": SHARED,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 64,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
        "tie_word_embeddings": False,
        "block_size": 8,
        "mask_token_id": 18,
        "denoising_config": {"algorithm": "low_confidence", "threshold": 0.9},
        "eos_token_id": 19,
    }
    fields |= changes
    return {key: value for key, value in fields.items() if value is not None}


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the stored shape of every tensor of `config()`, by hand from the file layout."""
    gdn, attn = "model.layers.0.linear_attn.", "model.layers.1.self_attn."
    out: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "lm_head.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        gdn + "in_proj_qkv.weight": (CONV, HIDDEN),
        gdn + "in_proj_z.weight": (8, HIDDEN),
        gdn + "in_proj_a.weight": (4, HIDDEN),
        gdn + "in_proj_b.weight": (4, HIDDEN),
        gdn + "conv1d.weight": (CONV, 1, 4),
        gdn + "conv_right_weight": (CONV, 3),
        gdn + "A_log": (4,),
        gdn + "dt_bias": (4,),
        gdn + "bd_softmax_logit_scale": (4,),
        gdn + "bd_softmax_history_bias": (4,),
        gdn + "bd_softmax_history_c": (4,),
        gdn + "norm.weight": (2,),
        gdn + "out_proj.weight": (HIDDEN, 8),
        attn + "q_proj.weight": (32, HIDDEN),
        attn + "k_proj.weight": (8, HIDDEN),
        attn + "v_proj.weight": (8, HIDDEN),
        attn + "o_proj.weight": (HIDDEN, 16),
        attn + "q_norm.weight": (4,),
        attn + "k_norm.weight": (4,),
    }
    for i in range(2):
        layer = f"model.layers.{i}."
        out |= {
            layer + "input_layernorm.weight": (HIDDEN,),
            layer + "post_attention_layernorm.weight": (HIDDEN,),
            layer + "mlp.gate.weight": (EXPERTS, HIDDEN),
            layer + "mlp.experts.gate_up_proj": (EXPERTS, 2 * WIDTH, HIDDEN),
            layer + "mlp.experts.down_proj": (EXPERTS, HIDDEN, WIDTH),
            layer + "mlp.shared_expert.gate_proj.weight": (SHARED, HIDDEN),
            layer + "mlp.shared_expert.up_proj.weight": (SHARED, HIDDEN),
            layer + "mlp.shared_expert.down_proj.weight": (HIDDEN, SHARED),
            layer + "mlp.shared_expert_gate.weight": (1, HIDDEN),
        }
    return out


def tensors(dtype: np.dtype[Any] = BFLOAT16, seed: int = 0) -> Tensors:
    """Return random values for every tensor of `config()`."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes().items()}


def split_experts(fused: Tensors) -> Tensors:
    """Return the same checkpoint with one tensor an expert and projection."""
    out = {name: value for name, value in fused.items() if ".mlp.experts." not in name}
    for i in range(2):
        at = f"model.layers.{i}.mlp.experts."
        for e in range(EXPERTS):
            both = fused[at + "gate_up_proj"][e]
            out[f"{at}{e}.gate_proj.weight"] = both[:WIDTH]
            out[f"{at}{e}.up_proj.weight"] = both[WIDTH:]
            out[f"{at}{e}.down_proj.weight"] = fused[at + "down_proj"][e]
    return out


def encode(values: Mapping[str, np.ndarray]) -> bytes:
    """Return a safetensors file, written by hand."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs, end = [], 0
    for name, array in values.items():
        blob = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [end, end + len(blob)],
        }
        end += len(blob)
        blobs.append(blob)
    return with_header(header, b"".join(blobs))


def with_header(header: Any, data: bytes) -> bytes:
    """Return a file with this header (an object, or bytes as they are) and data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def write(
    folder: Path,
    values: Tensors | None = None,
    fields: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
    shards: int = 1,
) -> Path:
    """Write a checkpoint folder and return it; several shards get an index."""
    folder.mkdir(parents=True, exist_ok=True)
    values = tensors() if values is None else values
    (folder / "config.json").write_text(json.dumps(config() if fields is None else fields))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    if shards == 1:
        (folder / "model.safetensors").write_bytes(encode(values))
        return folder
    weight_map = {}
    names = list(values)
    for i in range(shards):
        shard = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: values[name] for name in names[i::shards]}
        (folder / shard).write_bytes(encode(part))
        weight_map |= dict.fromkeys(part, shard)
    write_index(folder, weight_map)
    return folder


def write_index(folder: Path, weight_map: Any) -> None:
    """Write an index of shards."""
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)
