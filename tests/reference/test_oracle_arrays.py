"""The oracle reproduces every golden array to the rounding of the files."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.golden import PROMPTS, arrays, assert_close, checkpoint, runs
from tests.reference.oracle import Oracle, Outcome

# the files hold float32 roundings of float64 results: 14 * 2^-24 is 8e-7
LOGITS = 2e-6
PREVIEWS = ("preview_masks", "preview_half", "preview_width8")


@cache
def oracle(name: str) -> Oracle:
    return Oracle(checkpoint(name))


@cache
def causal(name: str, prompt: str) -> Outcome:
    model = oracle(name)
    ids = (
        [int(i) for i in arrays(name)[f"{prompt}.ids"]]
        if name == "qwen35moe_tiny"
        else runs(name)["prompts"][prompt]
    )
    return model.forward(ids, 0, model.empty_state(), model.empty_kv())


def after_prompt(name: str, prompt: str) -> tuple[int, dict[int, Any], dict[int, Any]]:
    out = causal(name, prompt)
    return len(out.logits), {i: a[-1] for i, a in out.after.items()}, out.kv


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", ["clover_tiny", "clover_tiny_b8", "qwen35moe_tiny"])
def test_causal_logits_come_out(name, prompt):
    want = arrays(name)[f"{prompt}.causal_logits"]
    assert_close(causal(name, prompt).logits, want, LOGITS, f"{name} {prompt}")


@pytest.mark.parametrize("prompt", ["short", "one"])
def test_hidden_rows_come_out(prompt):
    hidden = np.stack(causal("clover_tiny", prompt).hidden)
    assert_close(hidden, arrays("clover_tiny")[f"{prompt}.causal_hidden"], LOGITS, prompt)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_routes_come_out(prompt):
    out, want = causal("clover_tiny", prompt), arrays("clover_tiny")
    for layer in range(4):
        np.testing.assert_array_equal(out.experts[layer], want[f"{prompt}.route.{layer}.experts"])
        weights = want[f"{prompt}.route.{layer}.weights"]
        assert_close(out.weights[layer], weights, LOGITS, f"{prompt} layer {layer}")


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", ["clover_tiny", "qwen35moe_tiny"])
def test_states_come_out(name, prompt):
    _, state, kv = after_prompt(name, prompt)
    want = arrays(name)
    for layer, s in state.items():
        key = f"{prompt}.state.{layer}"
        assert_close(s.ring, want[f"{key}.conv"], LOGITS, f"{key}.conv")
        assert_close(s.S, want[f"{key}.S"], LOGITS, f"{key}.S")
    for layer, (k, v) in kv.items():
        assert_close(k, want[f"{prompt}.state.{layer}.k"], LOGITS, f"{prompt} k")
        assert_close(v, want[f"{prompt}.state.{layer}.v"], LOGITS, f"{prompt} v")


@pytest.mark.parametrize("preview", PREVIEWS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_previews_come_out(prompt, preview):
    want = arrays("clover_tiny")
    key = f"{prompt}.{preview}"
    position, state, kv = after_prompt("clover_tiny", prompt)
    block = [int(i) for i in want[f"{key}.block"]]
    out = oracle("clover_tiny").forward(block, position, state, kv, preview=True)
    assert_close(out.logits, want[f"{key}.logits"], LOGITS, f"{key}.logits")
    assert_close(np.stack(out.hidden), want[f"{key}.hidden"], LOGITS, f"{key}.hidden")
    np.testing.assert_array_equal(np.stack(out.kept), want[f"{key}.kept"])


@pytest.mark.parametrize("prompt", PROMPTS)
def test_previews_of_a_narrow_block_without_coreset_come_out(prompt):
    position, state, kv = after_prompt("clover_tiny_b8", prompt)
    out = oracle("clover_tiny_b8").forward([318] * 8, position, state, kv, preview=True)
    want = arrays("clover_tiny_b8")[f"{prompt}.preview_masks.logits"]
    assert_close(out.logits, want, LOGITS, prompt)


def test_a_prompt_in_two_pieces_gives_the_state_of_one():
    model = oracle("clover_tiny")
    ids = runs("clover_tiny")["prompts"]["long"]
    first = model.forward(ids[:37], 0, model.empty_state(), model.empty_kv())
    state = {i: a[-1] for i, a in first.after.items()}
    second = model.forward(ids[37:], 37, state, first.kv)
    whole = causal("clover_tiny", "long")
    assert_close(second.logits, whole.logits[37:], 1e-11, "logits")
    for layer, a in whole.after.items():
        assert_close(second.after[layer][-1].S, a[-1].S, 1e-12, f"S of layer {layer}")
