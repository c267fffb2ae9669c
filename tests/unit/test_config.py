"""config.json: both model types, flat and nested, and every way in which it can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import config
from hypothesis import given, settings
from hypothesis import strategies as st

from clover_rt.errors import BadCheckpoint, CloverError
from clover_rt.model.config import LayerType, ModelConfig

GOLDEN = Path(__file__).parents[2] / "conformance" / "clover_rt_conformance" / "golden"


def parse(**changes: Any) -> ModelConfig:
    return ModelConfig.parse(config(**changes), "config.json")


def rope(**changes: Any) -> dict[str, Any]:
    return config()["rope_parameters"] | changes


def failure(**changes: Any) -> BadCheckpoint:
    with pytest.raises(BadCheckpoint) as caught:
        parse(**changes)
    return caught.value


def test_the_golden_configuration_has_the_values_of_its_file():
    fields = json.loads((GOLDEN / "clover_tiny" / "config.json").read_text())
    c = ModelConfig.parse(fields, "config.json")
    assert c.model_type == "clover_moe"
    assert (c.vocab_size, c.hidden_size, c.context, c.eps) == (320, 64, 4096, 1e-6)
    assert c.layer_types == (LayerType.GDN,) * 3 + (LayerType.ATTENTION,)
    assert (c.heads, c.kv_heads, c.head_dim) == (4, 2, 32)
    assert (c.rotary_dims, c.rope_theta) == (8, 10000.0)
    assert (c.key_heads, c.value_heads, c.key_dim, c.value_dim, c.conv_kernel) == (2, 4, 16, 24, 4)
    assert (c.experts, c.experts_per_token, c.expert_width, c.shared_width) == (16, 4, 32, 48)
    assert c.conv_channels == 2 * 2 * 16 + 4 * 24
    assert not c.tied
    assert c.block is not None
    assert (c.block.block_size, c.block.mask_token_id) == (32, 318)
    assert (c.block.coreset_top_p, c.block.threshold) == (0.8, 0.95)
    assert (c.eos_token_ids, c.pad_token_id) == ((319,), None)


def test_a_disabled_coreset_keeps_every_expert():
    fields = json.loads((GOLDEN / "clover_tiny_b8" / "config.json").read_text())
    c = ModelConfig.parse(fields, "config.json")
    assert c.tied
    assert c.block is not None
    assert (c.block.block_size, c.block.coreset_top_p) == (8, 1.0)


def test_the_causal_twin_is_read_from_its_nested_object_and_has_no_blocks():
    fields = json.loads((GOLDEN / "qwen35moe_tiny" / "config.json").read_text())
    c = ModelConfig.parse(fields, "config.json")
    assert (c.model_type, c.block, c.experts, c.eos_token_ids) == ("qwen3_5_moe", None, 8, (319,))


@pytest.mark.parametrize("model_type", ["clover_moe", "qwen3_5_moe", "qwen3_5_moe_text"])
def test_flat_and_nested_files_mean_the_same(model_type):
    flat = config(model_type=model_type)
    nested = {"model_type": model_type, "text_config": flat, "vision_config": {"depth": 1}}
    assert ModelConfig.parse(flat) == ModelConfig.parse(nested)


def test_the_nested_object_wins_and_the_outer_one_fills_in():
    text = config(eos_token_id=3, mask_token_id=None)
    outer = {"model_type": "clover_moe", "eos_token_id": 4, "mask_token_id": 5, "pad_token_id": 6}
    c = ModelConfig.parse({**outer, "text_config": text})
    assert (c.eos_token_ids, c.pad_token_id) == ((3,), 6)
    assert c.block is not None and c.block.mask_token_id == 5


def test_layer_types_follow_the_interval_where_they_are_not_listed():
    c = parse(layer_types=None, num_hidden_layers=8)
    assert [i for i, t in enumerate(c.layer_types) if t is LayerType.ATTENTION] == [3, 7]
    c = parse(layer_types=None, num_hidden_layers=6, full_attention_interval=2)
    assert [i for i, t in enumerate(c.layer_types) if t is LayerType.ATTENTION] == [1, 3, 5]


def test_null_counts_as_absent():
    fields = config() | {"layer_types": None, "num_hidden_layers": 4, "pad_token_id": None}
    assert ModelConfig.parse(fields).layer_types[3] is LayerType.ATTENTION


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": None, "rope_scaling": {"type": "default", "rope_theta": 1e6}},
        {"rope_parameters": None, "rope_theta": 1e6},
        {"rope_parameters": {"rope_theta": 1e6}},
    ],
    ids=["rope_scaling", "top-level", "rope_parameters and top-level"],
)
def test_rope_is_found_in_each_of_its_places(changes):
    c = parse(**changes, partial_rotary_factor=0.5)
    assert (c.rope_theta, c.rotary_dims) == (1e6, 2)


def test_blocks_have_the_documented_defaults():
    c = parse(denoising_config=None)
    assert c.block is not None
    assert (c.block.threshold, c.block.coreset_top_p) == (0.95, 1.0)
    c = parse(moe_block_coreset_enabled=True, moe_block_coreset_top_p=3.0)
    assert c.block is not None and c.block.coreset_top_p == 1.0


@pytest.mark.parametrize(
    ("code", "changes", "words"),
    [
        ("CRT-1121", {"hidden_size": None}, "hidden_size is missing"),
        ("CRT-1121", {"block_size": None}, "block_size is missing"),
        ("CRT-1121", {"mask_token_id": None}, "mask_token_id is missing"),
        ("CRT-1121", {"rope_parameters": {"rope_theta": 1.0}}, "partial_rotary_factor is missing"),
        ("CRT-1121", {"rope_parameters": None}, "rope_theta is missing"),
        ("CRT-1121", {"model_type": None}, "model_type is missing"),
        ("CRT-1122", {"vocab_size": "20"}, "vocab_size = '20' is not a whole number"),
        ("CRT-1122", {"head_dim": 4.0}, "head_dim = 4.0 is not a whole number"),
        ("CRT-1122", {"num_experts": True}, "num_experts = true is not a whole number"),
        ("CRT-1122", {"rms_norm_eps": "1e-6"}, "rms_norm_eps = '1e-6' is not a number"),
        ("CRT-1122", {"tie_word_embeddings": 0}, "tie_word_embeddings = 0 is not true or false"),
        ("CRT-1122", {"layer_types": "gdn"}, "layer_types is not a list of strings"),
        ("CRT-1122", {"text_config": 3}, "text_config = 3 is not an object"),
        ("CRT-1122", {"mask_token_id": [18, 17]}, "mask_token_id = [18, 17] is not a single"),
        ("CRT-1122", {"eos_token_id": "end"}, "eos_token_id = 'end' is not a token id"),
        ("CRT-1122", {"pad_token_id": [1, 2]}, "pad_token_id = [1, 2] is not one token id"),
        ("CRT-1123", {"hidden_size": -8}, "hidden_size = -8 is out of range"),
        ("CRT-1123", {"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000"),
        ("CRT-1123", {"rms_norm_eps": 0}, "rms_norm_eps = 0 is out of range"),
        ("CRT-1123", {"rms_norm_eps": float("nan")}, "rms_norm_eps = nan is out of range"),
        ("CRT-1123", {"mask_token_id": 20}, "mask_token_id = 20 is out of range: vocab_size is 20"),
        ("CRT-1123", {"eos_token_id": [3, 20]}, "eos_token_id = [3, 20] is out of range"),
        ("CRT-1123", {"block_size": 257}, "block_size = 257 is out of range: 1 to 256"),
        ("CRT-1123", {"denoising_config": {"threshold": 1.5}}, "threshold = 1.5 is out of range"),
        ("CRT-1123", {"moe_block_coreset_top_p": 0}, "moe_block_coreset_top_p = 0 is out"),
        ("CRT-1124", {"rope_parameters": rope(rope_type="yarn")}, "rope_type = 'yarn'"),
        ("CRT-1124", {"attention_bias": True}, "attention_bias = true"),
        ("CRT-1124", {"attn_output_gate": False}, "attn_output_gate = false"),
        ("CRT-1124", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("CRT-1124", {"num_shared_experts": 2}, "num_shared_experts = 2"),
        ("CRT-1124", {"quantization_config": {"quant_method": "gptq"}}, "quant_method = 'gptq'"),
        (
            "CRT-1124",
            {"denoising_config": {"algorithm": "entropy"}},
            "denoising_config.algorithm = 'entropy'",
        ),
        ("CRT-1125", {"num_key_value_heads": 3}, "num_attention_heads = 4 is not a multiple of"),
        ("CRT-1125", {"linear_num_key_heads": 3}, "linear_num_key_heads = 3"),
        ("CRT-1125", {"num_hidden_layers": 3}, "layer_types has 2 entries but num_hidden_layers"),
        ("CRT-1125", {"num_experts_per_tok": 4}, "num_experts_per_tok = 4 is more than"),
        (
            "CRT-1125",
            {"rope_parameters": rope(partial_rotary_factor=0.25)},
            "partial_rotary_factor = 0.25 of head_dim = 4 gives 1 rotary dimensions",
        ),
        (
            "CRT-1125",
            {"model_type": "qwen3_5_moe", "text_config": {"model_type": "clover_moe"}},
            "text_config has 'clover_moe'",
        ),
        ("CRT-1126", {"model_type": "llama"}, "model_type = 'llama' is not one of clover_moe"),
        (
            "CRT-1127",
            {"layer_types": ["linear_attention", "mamba"]},
            "layer_types[1] = 'mamba' is not one of linear_attention, full_attention",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("CRT") else None,
)
def test_a_wrong_field_is_named_with_its_value(code, changes, words):
    error = failure(**changes)
    assert words in error.evidence
    assert error.evidence.startswith("config.json: ")
    assert error.code == code
    assert error.fix


def test_a_misspelt_field_is_recognised():
    error = failure(num_experts_per_tok=None, num_expert_per_tok=2)
    assert "num_experts_per_tok is missing (it has 'num_expert_per_tok'" in error.evidence


def test_all_problems_of_a_file_come_in_one_error():
    error = failure(hidden_size=None, attention_bias=True, num_key_value_heads=3)
    assert error.code == "CRT-1120"
    for words in ("3 problems", "hidden_size is missing", "attention_bias = true", "= 3"):
        assert words in error.evidence
    for code in ("CRT-1121", "CRT-1124", "CRT-1125"):
        assert code in error.evidence


def test_a_broken_value_is_reported_once():
    error = failure(vocab_size="x", mask_token_id=18, eos_token_id=19)
    assert error.evidence == "config.json: vocab_size = 'x' is not a whole number"


def test_an_empty_object_lists_every_required_field():
    with pytest.raises(BadCheckpoint) as caught:
        ModelConfig.parse({}, "config.json")
    for name in ("vocab_size", "rope_theta", "num_experts", "model_type"):
        assert f"{name} is missing" in caught.value.evidence


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*config(), "text_config", "pad_token_id"]), VALUES))
def test_no_values_raise_anything_but_a_checkpoint_error(changes):
    try:
        ModelConfig.parse(config() | changes)
    except CloverError:
        return
