"""A checkpoint on a backend."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from clover_rt import builtin
from clover_rt.api.choices import choice
from clover_rt.api.model import Model
from clover_rt.backend import Device
from clover_rt.errors import BadInput
from clover_rt.model.build import Capacity, build_graph
from clover_rt.model.config import LayerType, ModelConfig
from clover_rt.plan import Profile, bind
from clover_rt.plugins import open_device
from clover_rt.spec import PAGE_ROWS, Precision, StepLayout
from clover_rt.text import Template, Tokenizer
from clover_rt.weights import Checkpoint, load_weights

Progress = Callable[[int, int, str], None]
# the KV cache may take this share of what is free once the weights are counted
KV_SHARE = 0.5


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    backend: str = "cpu",
    device: str | None = None,
    precision: str = "exact",
    context: int | None = None,
    slots: int = 2,
    strict: bool = False,
    allow_reference: bool = False,
    profile: bool = False,
    on_progress: Progress | None = None,
) -> Model:
    """Open a checkpoint folder, or a built-in model by name, on a backend.

    path       a folder, the name of a built-in model, or None for the default one
    precision  "exact" (float32) or "fast" (the backend's choice)
    context    tokens to reserve a KV cache for; default: the smaller of the model's and what fits
    slots      sequences and snapshots held at once; one is kept to find the cause of a failed pass
    strict     an error if an operation of a layer would run on the host
    on_progress  told (done, total, what) while weights are prepared
    Raises BadInput, BadCheckpoint, BackendUnavailable or Unsupported.
    """
    numerics = choice("precision", precision, Precision)
    if slots < 1:
        raise BadInput(
            what=f"slots={slots} was given",
            evidence="at least one is needed",
            fix="use slots=2",
            code="CRT-1019",
        )
    checkpoint = Checkpoint.open(find(path))
    config = checkpoint.config
    tokenizer, template = open_text(checkpoint)
    opened = open_device(backend, device)[1]
    host = opened if backend == "cpu" else open_device("cpu")[1]
    tokens = _context(context, config, opened, numerics, checkpoint.nbytes)
    layout = StepLayout()
    sequences = max(slots - 1, 1)
    draft = config.block.block_size if config.block is not None else 1
    capacity = Capacity(slots, tokens, sequences * -(-tokens // PAGE_ROWS), draft, layout)
    graph = build_graph(config, load_weights(checkpoint), capacity)
    plan = bind(
        graph,
        opened,
        host,
        layout=layout,
        context=tokens,
        precision=numerics,
        strict=strict,
        allow_reference=allow_reference,
        on_progress=on_progress,
    )
    if profile:
        plan.profile = Profile()
    return Model(checkpoint, plan, tokenizer, template, backend)


def find(path: str | os.PathLike[str] | None) -> Path:
    """Return the folder of a path or built-in name; None is the default built-in model.

    Raises BadInput (CRT-1014) for a bare name that is neither a folder here nor built in.
    """
    if path is None:
        return builtin.path()
    name, folder = str(path), Path(path)
    if folder.exists() or folder.name != name:
        return folder
    return builtin.path(name)


def open_text(checkpoint: Checkpoint) -> tuple[Tokenizer | None, Template | None]:
    """Return a checkpoint's tokenizer, checked against its config, and chat template."""
    if not (checkpoint.folder / "tokenizer.json").is_file():
        return None, None
    tokenizer = Tokenizer.load(checkpoint.folder)
    if checkpoint.config.block is not None:
        tokenizer.check_mask(checkpoint.config.block.mask_token_id)
    return tokenizer, Template.load(checkpoint.folder, tokenizer)


def kv_bytes_per_token(config: ModelConfig, item: int) -> int:
    """Return the bytes of KV cache that a token needs, at `item` bytes a number."""
    layers = sum(kind is LayerType.ATTENTION for kind in config.layer_types)
    return layers * 2 * config.kv_heads * config.head_dim * item


def _context(
    wanted: int | None, config: ModelConfig, device: Device, precision: Precision, weights: int
) -> int:
    """Return the tokens to reserve for: as asked, or the smaller of the model's and what fits."""
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
