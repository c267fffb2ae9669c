"""What a checkpoint is, as plain data; weights are mapped and checked, not read."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from dataclasses import asdict
from typing import Any

from clover_rt.api.source import open_source
from clover_rt.fit import kv_bytes_per_token
from clover_rt.model.config import LayerType, ModelConfig
from clover_rt.text import Template, Tokenizer
from clover_rt.weights import Checkpoint, load_weights

FLOAT_BYTES = 4


def describe(path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return geometry, types, sizes, block settings, controls and tokenizer of a checkpoint.

    path  a folder, the name of a built-in model, or None for the default one
    Raises BadInput or BadCheckpoint, as `load` does: every tensor's name, shape and type is
    checked against config.json.
    """
    source = open_source(path)
    checkpoint, tokenizer = source.checkpoint, source.tokenizer
    load_weights(checkpoint)
    config, generation = source.config, source.generation
    controls = asdict(generation.controls)
    del controls["stops"]
    return {
        "folder": str(checkpoint.folder),
        "model_type": config.model_type,
        "modes": list(source.modes),
        "weights": _weights(checkpoint),
        "geometry": _geometry(config),
        "block": _block(config, tokenizer),
        "decoding": {
            "greedy": generation.greedy,
            "temperature": generation.temperature,
            "top_k": generation.top_k,
            "top_p": generation.top_p,
        },
        "controls": controls,
        "stop_ids": [{"id": i, "token": _spelling(i, tokenizer)} for i in source.stop_ids],
        "tokenizer": _tokenizer(tokenizer, source.template),
        "memory": {
            "kv_bytes_per_token": kv_bytes_per_token(config, FLOAT_BYTES),
            "state_bytes_per_sequence": _state_bytes(config),
        },
        "skipped": dict(checkpoint.skipped),
        "missing_preview": list(checkpoint.missing_preview),
        "warnings": list(checkpoint.warnings),
    }


def _weights(checkpoint: Checkpoint) -> dict[str, Any]:
    types: dict[str, dict[str, int]] = defaultdict(lambda: {"tensors": 0, "numbers": 0, "bytes": 0})
    for view in checkpoint.tensors.values():
        row = types[view.dtype]
        row["tensors"] += 1
        row["numbers"] += math.prod(view.shape)
        row["bytes"] += view.nbytes
    files = {v.file.path.name: v.file.nbytes for v in checkpoint.tensors.values()}
    return {
        "parameters": sum(row["numbers"] for row in types.values()),
        "bytes": checkpoint.nbytes,
        "types": dict(types),
        "files": [{"name": name, "bytes": files[name]} for name in sorted(files)],
    }


def _geometry(config: ModelConfig) -> dict[str, Any]:
    fields = asdict(config)
    for name in ("model_type", "block", "layer_types", "eos_token_ids", "pad_token_id"):
        del fields[name]
    kinds = [kind.value for kind in config.layer_types]
    return {"layers": len(kinds), "layer_types": kinds, **fields}


def _block(config: ModelConfig, tokenizer: Tokenizer | None) -> dict[str, Any] | None:
    if config.block is None:
        return None
    spelled = _spelling(config.block.mask_token_id, tokenizer)
    return {**asdict(config.block), "mask_token": spelled}


def _spelling(token: int, tokenizer: Tokenizer | None) -> str | None:
    return tokenizer.token(token) if tokenizer is not None else None


def _tokenizer(tokenizer: Tokenizer | None, template: Template | None) -> dict[str, Any] | None:
    if tokenizer is None:
        return None
    return {
        "size": tokenizer.size,
        "control_tokens": len(tokenizer.control_ids),
        "chat_template": template is not None,
    }


def _state_bytes(config: ModelConfig) -> int:
    """Return the float32 bytes of the recurrent state of one sequence: memories and conv rings."""
    layers = sum(kind is LayerType.GDN for kind in config.layer_types)
    memory = config.value_heads * config.key_dim * config.value_dim
    ring = (config.conv_kernel - 1) * config.conv_channels
    return layers * (memory + ring) * FLOAT_BYTES
