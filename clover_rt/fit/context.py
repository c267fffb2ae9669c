"""How long a context the KV cache of a load may hold."""

from __future__ import annotations

from clover_rt.backend import Device
from clover_rt.errors import BadInput
from clover_rt.model.config import LayerType, ModelConfig
from clover_rt.spec import PAGE_ROWS, Precision

# the KV cache may take this share of what is free once the weights are counted
KV_SHARE = 0.5


def kv_bytes_per_token(config: ModelConfig, item: int) -> int:
    """Return the bytes of KV cache that a token needs, at `item` bytes a number."""
    layers = sum(kind is LayerType.ATTENTION for kind in config.layer_types)
    return layers * 2 * config.kv_heads * config.head_dim * item


def context_for(
    wanted: int | None, config: ModelConfig, device: Device, precision: Precision, weights: int
) -> int:
    """Return the tokens to reserve for: as asked, or the smaller of the model's and what fits.

    weights  bytes of the checkpoint's weights
    Raises BadInput (CRT-1017) for a context that the model does not have.
    """
    if wanted is not None:
        if not 1 <= wanted <= config.context:
            raise BadInput(
                what=f"a context of {wanted} tokens was asked for",
                evidence=f"the model takes 1 to {config.context}",
                fix=f"use a context of at most {config.context}",
                code="CRT-1017",
            )
        return wanted
    item = 2 if device.dtypes(precision)[1] in ("bfloat16", "float16") else 4
    per_token = kv_bytes_per_token(config, item)
    free = device.memory().free
    if not free or not per_token:
        return config.context
    fits = int(max(free - weights, 0) * KV_SHARE) // per_token // PAGE_ROWS * PAGE_ROWS
    return min(config.context, max(fits, PAGE_ROWS))
