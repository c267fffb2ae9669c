"""Which tensor is stored in which format, and rules that cannot be followed."""

from __future__ import annotations

import numpy as np
import pytest

from clover_rt.errors import BadCheckpoint, BadInput
from clover_rt.quantise import keep_rule
from clover_rt.quantise.rules import choose
from clover_rt.spec import Format
from clover_rt.weights import Checkpoint
from tests.unit import quantised

LAYER = "model.layers.0."
# what is never below 16 bits, by the end of the name
KEPT = (
    "norm.weight",
    "mlp.gate.weight",
    "conv1d.weight",
    "conv_right_weight",
    "in_proj_a.weight",
    "in_proj_b.weight",
    "shared_expert_gate.weight",
    "A_log",
    "dt_bias",
    "bd_softmax_logit_scale",
    "bd_softmax_history_bias",
    "bd_softmax_history_c",
)


def formats(folder, form="q4", group=32, keep=()):
    """Return name -> format, or None for as it is."""
    rules = [keep_rule(text) for text in keep]
    chosen = choose(Checkpoint.open(folder), Format(form), group, rules)
    return {c.name: c.format and c.format.value for c in chosen}


def refused(folder, *, form="q4", group=32, keep=()):
    with pytest.raises((BadInput, BadCheckpoint)) as caught:
        formats(folder, form, group, keep)
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize("form", ["q4", "q8"])
@pytest.mark.parametrize("layout", ["fused", "split", "nested"])
def test_every_tensor_gets_the_format_of_its_class(tmp_path, form, layout):
    values = quantised.tensors()
    if layout == "split":
        values = quantised.split(values)
    if layout == "nested":
        values = {n.replace("model.", "model.language_model.", 1): v for n, v in values.items()}
    chosen = formats(quantised.write(tmp_path, values), form)
    assert chosen.keys() == values.keys()
    for name, found in chosen.items():
        wanted = "q8" if "embed_tokens" in name or "lm_head" in name else form
        assert found == (None if name.endswith(KEPT) else wanted), name


def test_the_first_rule_that_matches_decides():
    keep = ("*layers.0.*.q_proj.weight=q8", "*layers.1.self_attn.q*=bf16", "*.self_attn.*=q8")
    chosen = formats(quantised.PROTO, keep=keep[1:])
    assert chosen["model.layers.1.self_attn.q_proj.weight"] is None
    assert chosen["model.layers.1.self_attn.k_proj.weight"] == "q8"
    assert chosen["model.layers.1.self_attn.q_norm.weight"] is None
    assert chosen["model.layers.1.mlp.experts.down_proj"] == "q4"
    error = refused(quantised.PROTO, keep=keep)
    assert (error.code, "no tensor" in error.evidence) == ("CRT-1201", True)


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ("model.nothing=q8", "no tensor of the checkpoint matches 'model.nothing'"),
        ("*.mlp.gate.weight=q8", "'model.layers.0.mlp.gate.weight' is stored the same way"),
        ("lm_head*=q8", "'lm_head.weight' is stored the same way"),
    ],
)
def test_a_rule_without_effect_is_an_error(rule, found):
    error = refused(quantised.PROTO, keep=[rule])
    assert error.code == "CRT-1201"
    assert found in error.evidence


@pytest.mark.parametrize(
    "keep",
    [
        ["*=q8", "lm_head*=bf16"],
        ["*q_proj*=q8", "*q_proj*=bf16"],
        ["*q_proj*=q8", "*q_proj*=q8"],
        ["*q_proj*=q8", "*_proj*=q8"],
    ],
    ids=" ".join,
)
def test_a_rule_that_another_makes_idle_is_an_error(keep):
    assert refused(quantised.PROTO, keep=keep).code == "CRT-1201"


def test_a_rule_for_what_is_the_default_protects_it_from_a_later_rule():
    chosen = formats(quantised.PROTO, keep=["lm_head*=q8", "*=bf16"])
    assert {n for n, form in chosen.items() if form} == {"lm_head.weight"}


@pytest.mark.parametrize("text", ["lm_head.weight", "=q8", "lm_head.weight=q4", "lm_head.weight="])
def test_a_rule_that_cannot_be_read_is_an_error(text):
    with pytest.raises(BadInput) as caught:
        keep_rule(text)
    assert caught.value.code == "CRT-1202"
    assert repr(text) in caught.value.what


def test_a_group_that_does_not_divide_names_the_tensors():
    error = refused(quantised.PROTO, group=128)
    assert error.code == "CRT-1203"
    # experts and shared experts of width 64 in four layers
    assert "rows of 8 tensors" in error.evidence
    assert f"{LAYER}mlp.experts.down_proj has K=64" in error.evidence
    chosen = formats(quantised.PROTO, group=128, keep=["*down_proj*=q8"])
    assert chosen[f"{LAYER}mlp.experts.down_proj"] == "q8"


def test_experts_of_one_layer_cannot_differ(tmp_path):
    folder = quantised.write(tmp_path, quantised.split(quantised.tensors()))
    error = refused(folder, keep=["*.layers.2.mlp.experts.3.up_proj.weight=q8"])
    assert (error.code, "layers.2.expert_up" in error.what) == ("CRT-1204", True)
    chosen = formats(folder, keep=["*.layers.2.mlp.experts.*.up_proj.weight=q8"])
    assert [n for n, f in chosen.items() if f == "q8" and "experts" in n] == [
        f"model.layers.2.mlp.experts.{e}.up_proj.weight" for e in range(8)
    ]


def test_a_quantised_checkpoint_is_not_quantised_again(tmp_path):
    quantised.make(quantised.PROTO, tmp_path / "q8", "q8")
    error = refused(tmp_path / "q8")
    assert error.code == "CRT-1200"
    assert "model.embed_tokens.weight" in error.evidence


def test_q8_has_groups_of_32_only(tmp_path):
    with pytest.raises(BadInput) as caught:
        quantised.make(quantised.PROTO, tmp_path / "out", "q8", 64)
    assert caught.value.code == "CRT-1205"


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
def test_what_is_kept_stays_in_its_type(tmp_path, dtype):
    values = {n: v.astype(dtype) for n, v in quantised.tensors().items()}
    source = quantised.write(tmp_path / "in", values)
    quantised.make(source, tmp_path / "out", keep=["lm_head.weight=bf16"])
    stored = quantised.read(tmp_path / "out")
    for name, value in values.items():
        if name.endswith(KEPT) or name == "lm_head.weight":
            assert stored[name].dtype == dtype
            np.testing.assert_array_equal(stored[name], value)
