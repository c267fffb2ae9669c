"""The golden checkpoints open with the shapes of their configurations and their own values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from clover_rt.spec import Format
from clover_rt.weights import Checkpoint, load_weights

GOLDEN = Path(__file__).parents[2] / "conformance" / "clover_rt_conformance" / "golden"
MODELS = ("clover_tiny", "clover_tiny_b8", "qwen35moe_tiny")


def bits_by_peer(folder: Path) -> dict[str, np.ndarray]:
    """Return every tensor as the safetensors package reads it, bf16 as uint16."""
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118
                array = file.get_tensor(name)
                out[name] = array.view(np.uint16) if array.dtype.itemsize == 2 else array
    return out


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint16) if array.dtype.itemsize == 2 else array


@pytest.mark.parametrize("model", MODELS)
def test_every_tensor_has_the_bits_that_the_safetensors_package_reads(model):
    checkpoint = Checkpoint.open(GOLDEN / model)
    peer = bits_by_peer(GOLDEN / model)
    assert len(checkpoint.tensors) + sum(checkpoint.skipped.values()) == len(peer)
    for name, view in checkpoint.tensors.items():
        np.testing.assert_array_equal(bits(view.array), peer[name], err_msg=name)
        assert view.shape == peer[name].shape


def test_the_flat_checkpoint_has_the_shapes_of_its_configuration():
    w = load_weights(Checkpoint.open(str(GOLDEN / "clover_tiny")))
    shapes = {name: weight.shape for name, weight in w.items()}
    assert len(shapes) == 3 + 3 * (2 + 9 + 4 + 8) + (2 + 7 + 8)
    assert shapes["embed"] == shapes["head"] == (320, 64)
    assert shapes["norm"] == shapes["layers.3.input_norm"] == shapes["layers.0.post_norm"] == (64,)
    layer = {n.removeprefix("layers.0."): s for n, s in shapes.items() if n.startswith("layers.0.")}
    assert layer == {
        "input_norm": (64,),
        "post_norm": (64,),
        "qkv": (160, 64),
        "z": (96, 64),
        "a": (4, 64),
        "b": (4, 64),
        "conv": (160, 4),
        "A_log": (4,),
        "dt_bias": (4,),
        "norm": (24,),
        "out": (64, 96),
        "right": (160, 3),
        "logit_scale": (4,),
        "history_bias": (4,),
        "history_c": (4,),
        "router": (16, 64),
        "expert_gate": (16, 32, 64),
        "expert_up": (16, 32, 64),
        "expert_down": (16, 64, 32),
        "shared_gate": (48, 64),
        "shared_up": (48, 64),
        "shared_down": (64, 48),
        "shared_scale": (1, 64),
    }
    attention = ("q", "gate", "k", "v", "o", "q_norm", "k_norm")
    assert [shapes["layers.3." + n] for n in attention] == [
        (128, 64),
        (128, 64),
        (64, 64),
        (64, 64),
        (64, 128),
        (32,),
        (32,),
    ]


def test_whole_weights_hold_the_stored_values():
    w = load_weights(Checkpoint.open(GOLDEN / "clover_tiny"))
    peer = bits_by_peer(GOLDEN / "clover_tiny")
    for logical, stored in (
        ("embed", "model.embed_tokens.weight"),
        ("head", "lm_head.weight"),
        ("layers.1.qkv", "model.layers.1.linear_attn.in_proj_qkv.weight"),
        ("layers.1.right", "model.layers.1.linear_attn.conv_right_weight"),
        ("layers.2.history_c", "model.layers.2.linear_attn.bd_softmax_history_c"),
        ("layers.3.expert_down", "model.layers.3.mlp.experts.down_proj"),
    ):
        codes = w[logical].whole().codes
        np.testing.assert_array_equal(bits(codes), peer[stored].reshape(codes.shape))
        assert w[logical].name == stored
    conv = peer["model.layers.0.linear_attn.conv1d.weight"]
    np.testing.assert_array_equal(bits(w["layers.0.conv"].whole().codes), conv[:, 0])


def test_query_and_gate_rows_are_taken_apart_head_by_head():
    w = load_weights(Checkpoint.open(GOLDEN / "clover_tiny"))
    rows = bits_by_peer(GOLDEN / "clover_tiny")["model.layers.3.self_attn.q_proj.weight"]
    q, gate = w["layers.3.q"], w["layers.3.gate"]
    assert len(q.pieces) == len(gate.pieces) == 4
    for head in range(4):
        at = head * 64
        np.testing.assert_array_equal(bits(q.pieces[head].codes), rows[at : at + 32])
        np.testing.assert_array_equal(bits(gate.pieces[head].codes), rows[at + 32 : at + 64])
    assert q.whole().shape == (128, 64)


def test_fused_experts_are_two_views_of_one_tensor():
    w = load_weights(Checkpoint.open(GOLDEN / "clover_tiny"))
    both = bits_by_peer(GOLDEN / "clover_tiny")["model.layers.0.mlp.experts.gate_up_proj"]
    gate, up = w["layers.0.expert_gate"], w["layers.0.expert_up"]
    assert len(gate.pieces) == len(up.pieces) == 1
    np.testing.assert_array_equal(bits(gate.pieces[0].codes), both[:, :32])
    np.testing.assert_array_equal(bits(up.pieces[0].codes), both[:, 32:])
    assert gate.pieces[0].codes.base is not None


def test_the_twin_is_read_from_two_shards_and_42_tensors_are_skipped():
    checkpoint = Checkpoint.open(GOLDEN / "qwen35moe_tiny")
    assert sum(checkpoint.skipped.values()) == 42
    assert set(checkpoint.skipped) == {"mtp.*", "model.visual.*"}
    assert checkpoint.prefix == "model.language_model."
    assert len({view.file.path.name for view in checkpoint.tensors.values()}) == 2
    assert checkpoint.missing_preview == ()
    w = load_weights(checkpoint)
    assert "layers.0.right" not in w
    peer = bits_by_peer(GOLDEN / "qwen35moe_tiny")
    up = w["layers.2.expert_up"]
    assert (up.shape, len(up.pieces)) == ((8, 32, 64), 8)
    for e in (0, 3, 7):
        stored = peer[f"model.language_model.layers.2.mlp.experts.{e}.up_proj.weight"]
        np.testing.assert_array_equal(bits(up.pieces[e].codes), stored[None])
    whole = up.whole().codes
    assert whole.shape == up.shape


def test_a_tied_head_is_the_embedding_table():
    w = load_weights(Checkpoint.open(GOLDEN / "clover_tiny_b8"))
    assert w["head"].pieces is w["embed"].pieces
    assert w["head"].format is Format.BF16


def test_the_size_is_that_of_the_tensors_that_are_read():
    checkpoint = Checkpoint.open(GOLDEN / "qwen35moe_tiny")
    peer = bits_by_peer(GOLDEN / "qwen35moe_tiny")
    read = [a for n, a in peer.items() if not n.startswith(("mtp.", "model.visual."))]
    assert checkpoint.nbytes == sum(a.nbytes for a in read)
    assert sum(w.nbytes for w in load_weights(checkpoint).values()) == checkpoint.nbytes
