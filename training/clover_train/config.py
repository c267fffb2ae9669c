"""Sizes of the model, in the words of config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_G, _A = "linear_attention", "full_attention"


@dataclass(frozen=True)
class Config:
    """The fields of a `clover_moe` config.json that training needs."""

    vocab_size: int = 1024
    hidden_size: int = 128
    layer_types: tuple[str, ...] = (_G, _A, _G, _A, _A)
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 32
    linear_value_head_dim: int = 32
    num_experts: int = 16
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 64
    shared_expert_intermediate_size: int = 64
    rms_norm_eps: float = 1e-6
    rope_theta: float = 2000.0
    partial_rotary_factor: float = 0.5
    block_size: int = 32
    coreset_top_p: float = 0.9

    @staticmethod
    def parse(data: dict[str, Any]) -> Config:
        """Read the fields of a config.json object."""
        known = {k: data[k] for k in Config.__dataclass_fields__ if k in data}
        known["layer_types"] = tuple(data["layer_types"])
        rope = data["rope_parameters"]
        known["rope_theta"] = float(rope["rope_theta"])
        known["partial_rotary_factor"] = rope["partial_rotary_factor"]
        enabled = data.get("moe_block_coreset_enabled", False)
        known["coreset_top_p"] = data.get("moe_block_coreset_top_p", 1.0) if enabled else 1.0
        return Config(**known)

    @property
    def rotary_dims(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def key_dim(self) -> int:
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_dim(self) -> int:
        return 2 * self.key_dim + self.value_dim
