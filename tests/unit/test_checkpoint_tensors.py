"""From tensors to weights: layouts, types, and every way in which tensors can fail to fit."""

from __future__ import annotations

from pathlib import Path

import checkpoints
import numpy as np
import pytest

from clover_rt.errors import BadCheckpoint
from clover_rt.spec import Format, HostWeight, Weight
from clover_rt.weights import Checkpoint, load_weights

GDN = "model.layers.0.linear_attn."
EXPERTS = "model.layers.0.mlp.experts."


def load(folder: Path, values: checkpoints.Tensors, **changes) -> dict[str, HostWeight]:
    checkpoints.write(folder, values, checkpoints.config(**changes))
    return load_weights(Checkpoint.open(folder))


def failure(folder: Path, values: checkpoints.Tensors, **changes) -> BadCheckpoint:
    with pytest.raises(BadCheckpoint) as caught:
        load(folder, values, **changes)
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize("storage", [Format.F32, Format.F16, Format.BF16], ids=lambda f: f.value)
def test_each_type_is_read_as_it_is(tmp_path, storage):
    values = checkpoints.tensors(storage.codes_dtype)
    weights = load(tmp_path, values)
    assert {w.format for w in weights.values()} == {storage}
    codes = weights["layers.0.qkv"].whole().codes
    np.testing.assert_array_equal(codes, values[GDN + "in_proj_qkv.weight"])


def test_types_may_be_mixed_tensor_by_tensor(tmp_path):
    values = checkpoints.tensors()
    values[GDN + "A_log"] = values[GDN + "A_log"].astype(np.float32)
    values["model.norm.weight"] = values["model.norm.weight"].astype(np.float16)
    weights = load(tmp_path, values)
    found = [weights[n].format for n in ("layers.0.A_log", "norm", "embed")]
    assert found == [Format.F32, Format.F16, Format.BF16]


def test_experts_of_mixed_types_become_float32_without_loss(tmp_path):
    values = checkpoints.split_experts(checkpoints.tensors())
    name = EXPERTS + "1.down_proj.weight"
    values[name] = values[name].astype(np.float16)
    down = load(tmp_path, values)["layers.0.expert_down"]
    assert down.format is Format.F32
    for e, (start, piece) in enumerate(down.slices(1)):
        assert start == e
        stored = values[f"{EXPERTS}{e}.down_proj.weight"].astype(np.float32)
        np.testing.assert_array_equal(piece.codes, stored[None])


def test_fused_and_split_experts_are_the_same_weights(tmp_path):
    values = checkpoints.tensors()
    fused = load(tmp_path / "fused", values)
    split = load(tmp_path / "split", checkpoints.split_experts(values))
    assert fused.keys() == split.keys()
    for name, weight in fused.items():
        np.testing.assert_array_equal(weight.whole().codes, split[name].whole().codes)
        assert weight.shape == split[name].shape
        assert weight.format is split[name].format
    assert len(split["layers.1.expert_gate"].pieces) == checkpoints.EXPERTS


def test_split_experts_are_sliced_like_any_sequence(tmp_path):
    weights = load(tmp_path, checkpoints.split_experts(checkpoints.tensors()))
    pieces = weights["layers.0.expert_up"].pieces
    assert [p.shape for p in pieces[1:]] == [(1, checkpoints.WIDTH, checkpoints.HIDDEN)] * 2
    with pytest.raises(IndexError):
        pieces[checkpoints.EXPERTS]


def test_the_nested_prefix_is_the_same_checkpoint(tmp_path):
    values = checkpoints.tensors()
    nested = {n.replace("model.", "model.language_model.", 1): v for n, v in values.items()}
    weights = load(tmp_path, nested)
    assert (
        weights["layers.0.a"].name == "model.language_model.layers.0.linear_attn.in_proj_a.weight"
    )
    assert weights["head"].name == "lm_head.weight"


def test_three_axes_of_right_taps_and_any_shape_of_head_vectors_are_accepted(tmp_path):
    values = checkpoints.tensors()
    right = values[GDN + "conv_right_weight"]
    values[GDN + "conv_right_weight"] = right[:, None]
    scale = values[GDN + "bd_softmax_logit_scale"]
    values[GDN + "bd_softmax_logit_scale"] = scale.reshape(1, 4, 1)
    weights = load(tmp_path, values)
    np.testing.assert_array_equal(weights["layers.0.right"].whole().codes, right)
    np.testing.assert_array_equal(weights["layers.0.logit_scale"].whole().codes, scale)


def test_a_file_without_preview_tensors_loads_and_says_so(tmp_path):
    values = {n: v for n, v in checkpoints.tensors().items() if not n.endswith(checkpoints.PREVIEW)}
    checkpoints.write(tmp_path, values)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.missing_preview == tuple(GDN + name for name in checkpoints.PREVIEW)
    weights = load_weights(checkpoint)
    assert "layers.0.right" not in weights
    assert "layers.0.qkv" in weights


def test_a_part_of_the_preview_tensors_is_an_error(tmp_path):
    values = checkpoints.tensors()
    del values[GDN + "conv_right_weight"]
    error = failure(tmp_path, values)
    assert error.code == "CRT-1160"
    assert f"1 missing: {GDN}conv_right_weight [20, 3]" in error.evidence


def test_a_causal_twin_with_preview_tensors_is_an_error(tmp_path):
    error = failure(tmp_path, checkpoints.tensors(), model_type="qwen3_5_moe")
    assert error.code == "CRT-1161"
    assert "4 unknown" in error.evidence


def test_skipped_parts_are_counted_and_not_read(tmp_path):
    extra = {
        "mtp.fc.weight": np.zeros(3, np.int8),
        "mtp.norm.weight": np.zeros(3, np.float32),
        "model.visual.patch.weight": np.zeros(3, np.float32),
    }
    checkpoints.write(tmp_path, checkpoints.tensors() | extra)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.skipped == {"mtp.*": 2, "model.visual.*": 1}
    assert extra.keys().isdisjoint(checkpoint.tensors)
    load_weights(checkpoint)


def test_a_missing_tensor_is_named_with_its_shape(tmp_path):
    values = checkpoints.tensors()
    del values["model.layers.1.self_attn.o_proj.weight"]
    error = failure(tmp_path, values)
    assert error.code == "CRT-1160"
    assert "1 missing: model.layers.1.self_attn.o_proj.weight [8, 16]" in error.evidence
    assert str(tmp_path) in error.what


def test_an_unknown_tensor_is_named_with_file_type_and_shape(tmp_path):
    error = failure(tmp_path, checkpoints.tensors() | {"model.extra": np.zeros(3, np.float32)})
    assert error.code == "CRT-1161"
    assert "1 unknown: model.extra F32 [3] in model.safetensors" in error.evidence


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path):
    values = checkpoints.tensors()
    values[GDN + "conv1d.weight"] = values[GDN + "conv1d.weight"][:, 0]
    values[GDN + "conv_right_weight"] = values[GDN + "conv_right_weight"][:, :2]
    error = failure(tmp_path, values)
    assert error.code == "CRT-1162"
    found = f"{GDN}conv1d.weight in model.safetensors has [20, 4], wanted [20, 1, 4]"
    assert found in error.evidence
    assert "has [20, 2], wanted [20, 3] or [20, 1, 3]" in error.evidence


def test_a_wrong_type_is_named(tmp_path):
    values = checkpoints.tensors()
    values["lm_head.weight"] = np.zeros((20, 8), np.int8)
    error = failure(tmp_path, values)
    assert error.code == "CRT-1163"
    assert "lm_head.weight in model.safetensors is I8, wanted F32, F16, BF16" in error.evidence


def test_every_finding_comes_in_one_error(tmp_path):
    values = checkpoints.tensors()
    del values["model.norm.weight"]
    values["model.extra"] = np.zeros(3, np.float32)
    values[GDN + "A_log"] = values[GDN + "A_log"][:3]
    values["lm_head.weight"] = np.zeros((20, 8), np.int8)
    error = failure(tmp_path, values)
    assert error.code == "CRT-1165"
    for words in ("1 missing: ", "1 unknown: ", "1 of a wrong shape: ", "1 of a wrong type: "):
        assert words in error.evidence


def test_a_long_list_is_cut_and_counted(tmp_path):
    extra = {f"model.extra{i:02}": np.zeros(1, np.float32) for i in range(13)}
    error = failure(tmp_path, checkpoints.tensors() | extra)
    assert "13 unknown: model.extra00" in error.evidence
    assert "model.extra09" in error.evidence
    assert "model.extra10" not in error.evidence
    assert error.evidence.endswith("and 3 more")


def test_names_without_a_known_prefix_get_a_hint(tmp_path):
    values = {n.replace("model.", "transformer."): v for n, v in checkpoints.tensors().items()}
    error = failure(tmp_path, values)
    assert "tensor names begin with 'model.'" in error.fix


def test_a_missing_expert_is_named(tmp_path):
    values = checkpoints.split_experts(checkpoints.tensors())
    del values[EXPERTS + "2.up_proj.weight"]
    error = failure(tmp_path, values)
    assert f"1 missing: {EXPERTS}2.up_proj.weight [4, 8]" in error.evidence


def test_experts_in_both_layouts_at_once_are_an_error(tmp_path):
    values = checkpoints.tensors()
    error = failure(tmp_path, checkpoints.split_experts(values) | values)
    assert error.code == "CRT-1161"
    assert "18 unknown" in error.evidence


def test_a_head_beside_tied_embeddings_is_a_contradiction(tmp_path):
    error = failure(tmp_path, checkpoints.tensors(), tie_word_embeddings=True)
    assert "lm_head.weight" in error.evidence
    assert "tie_word_embeddings is true" in error.evidence


def test_weights_are_read_only_views_of_the_file(tmp_path):
    weights = load(tmp_path, checkpoints.tensors())
    for weight in weights.values():
        for piece in weight.pieces:
            assert not piece.codes.flags.writeable
            assert not piece.codes.flags.owndata


def test_a_weight_outlives_its_checkpoint(tmp_path):
    values = checkpoints.tensors()
    embed = load(tmp_path, values)["embed"]
    np.testing.assert_array_equal(embed.whole().codes, values["model.embed_tokens.weight"])


def test_released_pieces_can_be_read_again(tmp_path):
    values = checkpoints.tensors(np.dtype("<f4"))
    # more than a page, so that there is something to let go of
    values["model.embed_tokens.weight"] = np.random.default_rng(0).random((2000, 8), np.float32)
    values["lm_head.weight"] = np.zeros((2000, 8), np.float32)
    weights = load(tmp_path, values, vocab_size=2000)
    for name in ("embed", "layers.1.q", "layers.0.expert_gate"):
        weight = weights[name]
        before = weight.whole().codes.copy()
        assert weight.release is not None
        rows = [piece.codes.copy() for _, piece in weight.slices(7)]
        np.testing.assert_array_equal(np.concatenate(rows), before)
        np.testing.assert_array_equal(weight.whole().codes, before)
    assert weights["embed"].release is not None
    in_memory = np.ones((2, 2), np.float32)
    weights["embed"].release(Weight(Format.F32, (2, 2), in_memory))
    assert in_memory.all()
