"""Tensor names of a checkpoint: which exist for a configuration, with which shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from clover_rt.model.config import CLOVER, LayerType, ModelConfig

Shape = tuple[int, ...]

PREFIXES = ("model.language_model.", "model.")
HEAD = "lm_head.weight"
EMBED = "embed_tokens.weight"
SKIPPED = ("mtp.", "model.visual.")
"""Tensors of parts that are not run: the multi-token prediction block and the vision tower."""


class Part(Enum):
    """How a stored tensor becomes a logical weight.

    WHOLE    it is the weight, reshaped to the logical shape
    PREVIEW  as WHOLE; only previews read it, and a file may lack all of these
    QUERIES  rows of query and gate alternate head by head: two weights, `q` and `gate`
    FUSED    gate rows, then up rows of every expert: two weights, `expert_gate` and `expert_up`
    DOWN     the down projection of every expert
    """

    WHOLE = "whole"
    PREVIEW = "preview"
    QUERIES = "queries"
    FUSED = "fused"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor that a checkpoint should have.

    logical   the weight's name in the graph, such as `layers.3.qkv`; for QUERIES and the experts
              the layer's prefix, such as `layers.3.`
    name      the stored name, without the checkpoint's prefix (HEAD has none)
    shape     the logical shape of the whole tensor
    accepted  the stored shapes that hold it
    any_shape every stored shape with as many values as `shape` will do
    """

    logical: str
    name: str
    shape: Shape
    accepted: tuple[Shape, ...]
    part: Part = Part.WHOLE
    any_shape: bool = False


def detect_prefix(names: Iterable[str]) -> str:
    """Return the prefix of the trunk's tensors; multimodal files nest them one level deeper."""
    nested = PREFIXES[0]
    return nested if any(name.startswith(nested) for name in names) else PREFIXES[1]


def stored_tensors(config: ModelConfig) -> Iterator[Stored]:
    """Yield every tensor of a checkpoint, experts in their fused layout."""
    d, vocab = config.hidden_size, config.vocab_size
    yield _whole("embed", EMBED, (vocab, d))
    yield _whole("norm", "norm.weight", (d,))
    if not config.tied:
        yield _whole("head", HEAD, (vocab, d))
    for i, kind in enumerate(config.layer_types):
        layer = f"layers.{i}."
        yield _whole(layer + "input_norm", layer + "input_layernorm.weight", (d,))
        yield _whole(layer + "post_norm", layer + "post_attention_layernorm.weight", (d,))
        yield from (_gdn if kind is LayerType.GDN else _attention)(config, layer)
        yield from _moe(config, layer)


def preview_names(config: ModelConfig) -> list[str]:
    """Return the names, without prefix, of the tensors that only previews read."""
    return [s.name for s in stored_tensors(config) if s.part is Part.PREVIEW]


def split_expert(layer: str, expert: int, projection: str) -> str:
    """Return the name, without prefix, of one expert's tensor in the per-expert layout.

    layer       such as `layers.3.`
    projection  gate, up or down
    """
    return f"{layer}mlp.experts.{expert}.{projection}_proj.weight"


def _whole(logical: str, name: str, shape: Shape, *accepted: Shape) -> Stored:
    return Stored(logical, name, shape, accepted or (shape,))


def _gdn(config: ModelConfig, layer: str) -> Iterator[Stored]:
    d, channels, kernel = config.hidden_size, config.conv_channels, config.conv_kernel
    heads, values = config.value_heads, config.value_heads * config.value_dim
    at = layer + "linear_attn."
    yield _whole(layer + "qkv", at + "in_proj_qkv.weight", (channels, d))
    yield _whole(layer + "z", at + "in_proj_z.weight", (values, d))
    yield _whole(layer + "a", at + "in_proj_a.weight", (heads, d))
    yield _whole(layer + "b", at + "in_proj_b.weight", (heads, d))
    yield _whole(layer + "conv", at + "conv1d.weight", (channels, kernel), (channels, 1, kernel))
    yield _whole(layer + "A_log", at + "A_log", (heads,))
    yield _whole(layer + "dt_bias", at + "dt_bias", (heads,))
    yield _whole(layer + "norm", at + "norm.weight", (config.value_dim,))
    yield _whole(layer + "out", at + "out_proj.weight", (d, values))
    if config.model_type != CLOVER:
        return
    right = (channels, kernel - 1)
    accepted = (right, (channels, 1, kernel - 1))
    yield Stored(layer + "right", at + "conv_right_weight", right, accepted, Part.PREVIEW)
    for logical, name in (
        ("logit_scale", "bd_softmax_logit_scale"),
        ("history_bias", "bd_softmax_history_bias"),
        ("history_c", "bd_softmax_history_c"),
    ):
        shape = (heads,)
        yield Stored(layer + logical, at + name, shape, (shape,), Part.PREVIEW, any_shape=True)


def _attention(config: ModelConfig, layer: str) -> Iterator[Stored]:
    d, head_dim = config.hidden_size, config.head_dim
    queries, keys = config.heads * head_dim, config.kv_heads * head_dim
    at = layer + "self_attn."
    both = (2 * queries, d)
    yield Stored(layer, at + "q_proj.weight", both, (both,), Part.QUERIES)
    yield _whole(layer + "k", at + "k_proj.weight", (keys, d))
    yield _whole(layer + "v", at + "v_proj.weight", (keys, d))
    yield _whole(layer + "o", at + "o_proj.weight", (d, queries))
    yield _whole(layer + "q_norm", at + "q_norm.weight", (head_dim,))
    yield _whole(layer + "k_norm", at + "k_norm.weight", (head_dim,))


def _moe(config: ModelConfig, layer: str) -> Iterator[Stored]:
    d, experts = config.hidden_size, config.experts
    width, shared = config.expert_width, config.shared_width
    at = layer + "mlp."
    yield _whole(layer + "router", at + "gate.weight", (experts, d))
    fused, down = (experts, 2 * width, d), (experts, d, width)
    yield Stored(layer, at + "experts.gate_up_proj", fused, (fused,), Part.FUSED)
    yield Stored(layer, at + "experts.down_proj", down, (down,), Part.DOWN)
    shared_at = at + "shared_expert."
    yield _whole(layer + "shared_gate", shared_at + "gate_proj.weight", (shared, d))
    yield _whole(layer + "shared_up", shared_at + "up_proj.weight", (shared, d))
    yield _whole(layer + "shared_down", shared_at + "down_proj.weight", (d, shared))
    yield _whole(layer + "shared_scale", at + "shared_expert_gate.weight", (1, d))
