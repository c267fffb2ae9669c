"""ModelConfig: what config.json says about the model, checked as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from clover_rt.model.fields import CONTRADICTION, RANGE, TYPE, UNSUPPORTED, Fields

CLOVER = "clover_moe"
QWEN = "qwen3_5_moe"
MODEL_TYPES = {
    CLOVER: CLOVER,
    "clover_moe_text": CLOVER,
    QWEN: QWEN,
    "qwen3_5_moe_text": QWEN,
}
MAX_LAYERS = 4096
MAX_BLOCK = 256
MAX_CONTEXT = 2**24
"""Far above what such models take: tables of RoPE angles and pages are made for all of it."""


class LayerType(Enum):
    """How a layer mixes rows; the values are those of `layer_types` in config.json."""

    GDN = "linear_attention"
    ATTENTION = "full_attention"


@dataclass(frozen=True, slots=True)
class BlockSettings:
    """How a block-diffusion checkpoint was trained to decode.

    block_size     rows of a block
    mask_token_id  the id of a row that is not decided yet; never emitted
    coreset_top_p  mass of routing that a block's experts keep, in (0, 1]; 1: every expert is kept
    threshold      a row is fixed when its confidence is strictly greater than this
    """

    block_size: int
    mask_token_id: int
    coreset_top_p: float
    threshold: float


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model, from config.json.

    model_type         "clover_moe" or "qwen3_5_moe"
    layer_types        the mixer of each layer
    heads, kv_heads    attention heads of queries, and of keys and values; head_dim each
    rotary_dims        leading dimensions of a head that RoPE turns; even
    rope_theta         base of the RoPE angles
    key_heads, value_heads, key_dim, value_dim, conv_kernel   Gated DeltaNet
    experts, experts_per_token, expert_width, shared_width    mixture of experts
    eps                of every RMS norm
    context            tokens that a sequence may have
    tied               the head is the embedding table
    block              decoding in blocks; None for a causal twin
    eos_token_ids, pad_token_id   as in config.json; generation_config.json comes before them
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    layer_types: tuple[LayerType, ...]
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dims: int
    rope_theta: float
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    experts: int
    experts_per_token: int
    expert_width: int
    shared_width: int
    eps: float
    context: int
    tied: bool
    block: BlockSettings | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None

    @property
    def conv_channels(self) -> int:
        """Channels of a Gated DeltaNet's convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @staticmethod
    def parse(data: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
        """Return the configuration in a config.json object, flat or nested under text_config.

        source is the file's name for messages. Raises one BadCheckpoint that names every field
        that is missing, malformed, contradictory or asks for what the model cannot do.
        """
        outer = Fields(source, data)
        text = outer.table("text_config")
        f = Fields(source, text, data)
        f.problems += outer.problems
        model_type = _model_type(f, data, text)
        _refuse_unsupported(f)
        vocab = f.integer("vocab_size")
        head_dim = f.integer("head_dim")
        rope_theta, rotary_dims = _rope(f, head_dim)
        pads = f.ids("pad_token_id", vocab) if f.ok("vocab_size") else None
        eos = f.ids("eos_token_id", vocab) if f.ok("vocab_size") else None
        if pads is not None and len(pads) > 1:
            text_of = f"pad_token_id = {list(pads)} is not one token id"
            f.problem(TYPE, text_of, f"correct the value in {source}", "pad_token_id")
        config = ModelConfig(
            model_type=model_type,
            vocab_size=vocab,
            hidden_size=f.integer("hidden_size"),
            layer_types=_layer_types(f),
            heads=f.integer("num_attention_heads"),
            kv_heads=f.integer("num_key_value_heads"),
            head_dim=head_dim,
            rotary_dims=rotary_dims,
            rope_theta=rope_theta,
            key_heads=f.integer("linear_num_key_heads"),
            value_heads=f.integer("linear_num_value_heads"),
            key_dim=f.integer("linear_key_head_dim"),
            value_dim=f.integer("linear_value_head_dim"),
            conv_kernel=f.integer("linear_conv_kernel_dim", low=2),
            experts=f.integer("num_experts"),
            experts_per_token=f.integer("num_experts_per_tok"),
            expert_width=f.integer("moe_intermediate_size"),
            shared_width=f.integer("shared_expert_intermediate_size"),
            eps=f.number("rms_norm_eps", above=0.0, high=1.0),
            context=f.integer("max_position_embeddings", high=MAX_CONTEXT),
            tied=f.flag("tie_word_embeddings", False),
            block=_block(f, vocab) if model_type == CLOVER else None,
            eos_token_ids=eos or (),
            pad_token_id=pads[0] if pads else None,
        )
        _check_counts(f, config)
        f.finish("the model's configuration cannot be used")
        return config


def _model_type(f: Fields, data: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    """Return the canonical type: the outer object's, else the nested one's."""
    wanted = f"one of {', '.join(MODEL_TYPES)}"
    fix = f"use a checkpoint whose model_type is {wanted}"
    types = []
    for where, fields in (("model_type", data), ("text_config.model_type", text)):
        value = fields.get("model_type")
        if value is None:
            continue
        if not isinstance(value, str) or value not in MODEL_TYPES:
            f.problem("CRT-1126", f"{where} = {value!r} is not {wanted}", fix, "model_type")
        else:
            types.append(MODEL_TYPES[value])
    if types[:2] == [QWEN, CLOVER]:
        pair = f"model_type = {data['model_type']!r} but text_config has {text['model_type']!r}"
        f.problem(CONTRADICTION, pair, f"make both the same in {f.source}", "model_type")
    if types:
        return types[0]
    if f.ok("model_type"):
        f.text("model_type")
    return QWEN


def _refuse_unsupported(f: Fields) -> None:
    """Note every setting that would change the mathematics in a way that is not implemented."""
    f.expect(
        "attention_bias",
        f.flag("attention_bias", False),
        False,
        "use a checkpoint whose attention projections have no biases",
    )
    f.expect(
        "attn_output_gate",
        f.flag("attn_output_gate", True),
        True,
        "use a checkpoint whose attention output is gated",
    )
    f.expect(
        "hidden_act",
        f.text("hidden_act", "silu"),
        "silu",
        "use a checkpoint with silu activations",
    )
    f.expect(
        "num_shared_experts",
        f.integer("num_shared_experts", 1, low=0),
        1,
        "use a checkpoint with one shared expert a layer",
    )
    quantised = f.table("quantization_config")
    if quantised:
        method = quantised.get("quant_method", "unknown")
        f.problem(
            UNSUPPORTED,
            f"quantization_config.quant_method = {method!r}: only f32, f16 and bf16 are read",
            "use the checkpoint that was not quantised",
            "quantization_config",
        )


def _layer_types(f: Fields) -> tuple[LayerType, ...]:
    count = f.integer("num_hidden_layers", high=MAX_LAYERS)
    interval = f.integer("full_attention_interval", 4)
    known = {t.value: t for t in LayerType}
    listed = f.raw("layer_types")
    if listed is None:
        kinds = (LayerType.GDN, LayerType.ATTENTION)
        return tuple(kinds[(i + 1) % interval == 0] for i in range(count))
    if not isinstance(listed, list) or not all(isinstance(t, str) for t in listed):
        wanted = "layer_types is not a list of strings"
        f.problem(TYPE, wanted, f"correct the value in {f.source}", "layer_types")
        return ()
    unknown = [(i, t) for i, t in enumerate(listed) if t not in known]
    if unknown:
        i, name = unknown[0]
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        f.problem(
            "CRT-1127",
            f"layer_types[{i}] = {name!r}{more} is not one of {', '.join(known)}",
            "use a checkpoint whose layers are all of the known types",
            "layer_types",
        )
        return ()
    if f.ok("num_hidden_layers") and len(listed) != count:
        f.problem(
            CONTRADICTION,
            f"layer_types has {len(listed)} entries but num_hidden_layers = {count}",
            f"make the two agree in {f.source}",
            "layer_types",
        )
    return tuple(known[t] for t in listed)


def _rope(f: Fields, head_dim: int) -> tuple[float, int]:
    """Return (theta, rotary dimensions) from rope_parameters, rope_scaling or top-level keys."""
    tables = [t for t in (f.table("rope_parameters"), f.table("rope_scaling")) if t]
    rope = Fields(f.source, *tables, *f.objects)
    kind = next((t[k] for t in tables for k in ("rope_type", "type") if t.get(k)), "default")
    rope.expect("rope_type", kind, "default", "use a checkpoint with plain RoPE")
    theta = rope.number("rope_theta", above=0.0)
    factor = rope.number("partial_rotary_factor", above=0.0, high=1.0)
    f.problems += rope.problems
    if not rope.ok("partial_rotary_factor") or not f.ok("head_dim"):
        return theta, 0
    dims = round(head_dim * factor)
    if dims < 2 or dims % 2 or abs(dims - head_dim * factor) > 1e-6 * head_dim:
        f.problem(
            CONTRADICTION,
            f"partial_rotary_factor = {factor:g} of head_dim = {head_dim} gives "
            f"{head_dim * factor:g} rotary dimensions, not an even whole number from 2 on",
            f"correct the two values in {f.source}",
        )
    return theta, dims


def _block(f: Fields, vocab: int) -> BlockSettings:
    mask = f.raw("mask_token_id")
    if isinstance(mask, list):
        text = f"mask_token_id = {mask!r} is not a single token id"
        f.problem(TYPE, text, f"correct the value in {f.source}", "mask_token_id")
        mask_id = 0
    else:
        mask_id = f.integer("mask_token_id", low=0)
    if f.ok("mask_token_id", "vocab_size") and mask_id >= vocab:
        f.problem(
            RANGE,
            f"mask_token_id = {mask_id} is out of range: vocab_size is {vocab}",
            f"correct the value in {f.source}",
            "mask_token_id",
        )
    enabled = f.flag("moe_block_coreset_enabled", False)
    top_p = f.number("moe_block_coreset_top_p", 1.0, above=0.0)
    denoising = Fields(f.source, f.table("denoising_config"))
    denoising.expect(
        "denoising_config.algorithm",
        denoising.text("algorithm", "low_confidence"),
        "low_confidence",
        "use a checkpoint that decodes by low confidence",
    )
    threshold = denoising.number("threshold", 0.95, low=0.0, high=1.0)
    f.problems += denoising.problems
    block_size = f.integer("block_size", high=MAX_BLOCK)
    return BlockSettings(block_size, mask_id, min(top_p, 1.0) if enabled else 1.0, threshold)


def _check_counts(f: Fields, config: ModelConfig) -> None:
    """Note counts that contradict each other."""
    pairs = (
        ("num_attention_heads", config.heads, "num_key_value_heads", config.kv_heads),
        ("linear_num_value_heads", config.value_heads, "linear_num_key_heads", config.key_heads),
    )
    for many, a, few, b in pairs:
        if f.ok(many, few) and a % b:
            f.problem(
                CONTRADICTION,
                f"{many} = {a} is not a multiple of {few} = {b}",
                f"correct the two values in {f.source}",
            )
    if f.ok("num_experts", "num_experts_per_tok") and config.experts_per_token > config.experts:
        f.problem(
            CONTRADICTION,
            f"num_experts_per_tok = {config.experts_per_token} is more than "
            f"num_experts = {config.experts}",
            f"correct the two values in {f.source}",
        )
