"""Every golden array comes out of a plan: logits, hidden rows, routes, coresets and states."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from clover_rt.plan import Plan
from clover_rt.spec import Kind
from clover_rt_conformance.models.golden import prompt_ids
from tests.end_to_end.golden_model import (
    DEVICES,
    all_logits,
    commit_prompt,
    hidden_rows,
    one_segment,
    open_plan,
    side_by_side,
    state_bytes,
    trace,
    without_layer_ops,
)
from tests.end_to_end.plans import plan_state
from tests.golden import PROMPTS, arrays, assert_close, runs

# the golden README's bounds of logits, which go up to 14
CAUSAL, PREVIEW = 4e-4, 4e-5
# hidden rows and states carry the relative rounding that the logits inherit from them, so they
# get the same share of their largest value
SHARE = 1 / 14
# a route may differ only where two router logits are closer than what a deviation of that share
# makes of them; router logits stay under 8
ROUTE_TIE = 8 * CAUSAL * SHARE
NAMES = ("clover_tiny", "clover_tiny_b8", "qwen35moe_tiny")
PREVIEWS = ("preview_masks", "preview_half", "preview_width8")
TESTED = (
    r"(short|one|long)\.ids",
    r"(short|one|long)\.causal_logits",
    r"(short|one)\.causal_hidden",
    r"(short|one|long)\.route\.[0-3]\.(experts|weights)",
    r"(short|one|long)\.state\.[0-3]\.(conv|S|k|v)",
    r"(short|one|long)\.preview_(masks|half|width8)\.(block|logits|hidden|kept)",
    r"rounds\.(short|one|long)\.(exact|typical)\.state\.[0-3]\.(conv|S|k|v)",
)


@cache
def plan_of(device: str, name: str) -> Plan:
    return open_plan(name, DEVICES[device]())


@cache
def open_moe(device: str) -> Plan:
    """Return a plan of clover_tiny whose moe runs as primitives: routes lie inside that op."""
    return open_plan("clover_tiny", without_layer_ops(DEVICES[device]()))


@pytest.fixture(params=list(DEVICES))
def device(request):
    return request.param


def assert_share(got: Any, want: Any, bound: float, what: str) -> None:
    """Fail where a value is off by more than the logits' share of the array's largest value."""
    assert_close(got, want, bound * SHARE * float(np.abs(want).max()), what)


def assert_state(plan: Plan, slot: int, length: int, key: str, name: str = "clover_tiny") -> None:
    want = arrays(name)
    state = plan_state(plan, slot, length)
    assert sorted(state) == [0, 1, 2, 3]
    for layer, parts in state.items():
        for part, got in parts.items():
            what = f"{key}.{layer}.{part}"
            assert_share(got, want[what], CAUSAL, what)


@pytest.mark.parametrize("name", NAMES)
def test_every_golden_array_belongs_to_a_test_below(name):
    for key in arrays(name):
        assert sum(bool(re.fullmatch(p, key)) for p in TESTED) == 1, key


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", NAMES)
def test_causal_logits_come_out(device, name, prompt):
    plan, ids = plan_of(device, name), prompt_ids(name, prompt)
    commit_prompt(plan, 1, ids)
    got = all_logits(plan, one_segment(Kind.COMMIT, 1, ids, 0))
    assert_close(got, arrays(name)[f"{prompt}.causal_logits"], CAUSAL, f"{name} {prompt}")


@pytest.mark.parametrize("prompt", ["short", "one"])
def test_causal_hidden_rows_come_out(device, prompt):
    plan = plan_of(device, "clover_tiny")
    got = hidden_rows(plan, commit_prompt(plan, 1, prompt_ids("clover_tiny", prompt)))
    key = f"{prompt}.causal_hidden"
    for i, want in enumerate(arrays("clover_tiny")[key]):
        assert_share(got[i], want, CAUSAL, f"{key} {i}")


@pytest.mark.parametrize("prompt", PROMPTS)
def test_routes_come_out_and_differ_only_at_near_ties(device, prompt):
    plan, want = open_moe(device), arrays("clover_tiny")
    values = commit_prompt(plan, 1, prompt_ids("clover_tiny", prompt))
    for layer in range(4):
        moe, key = f"layers.{layer}.moe", f"{prompt}.route.{layer}"
        ids, golden = values[f"{moe}/ids"], want[f"{key}.experts"]
        logits = values[f"{moe}/router"].astype(np.float64)
        at = np.take_along_axis(logits, golden, axis=1)
        # the golden choice must be a choice of these logits too, up to near ties
        others = logits.copy()
        np.put_along_axis(others, golden, -np.inf, axis=1)
        ordered = np.concatenate([at, others.max(axis=1, keepdims=True)], axis=1)
        assert (np.diff(ordered, axis=1) <= ROUTE_TIE).all(), key
        same = (ids == golden).all(axis=1)
        close = np.abs(np.diff(ordered, axis=1)).min(axis=1) <= ROUTE_TIE
        assert (same | close).all(), f"{key}: rows {np.flatnonzero(~same & ~close)}"
        # softmax weights move by a quarter of a logit's deviation at most
        got = values[f"{moe}/weights"][same]
        assert_close(got, want[f"{key}.weights"][same], ROUTE_TIE, f"{key}.weights")


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", ["clover_tiny", "qwen35moe_tiny"])
def test_states_after_a_prompt_come_out(device, name, prompt):
    plan, ids = plan_of(device, name), prompt_ids(name, prompt)
    commit_prompt(plan, 1, ids)
    assert_state(plan, 1, len(ids), f"{prompt}.state", name)


@pytest.mark.parametrize("preview", PREVIEWS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_previews_come_out_and_change_no_byte_of_the_state(device, prompt, preview):
    plan, want = plan_of(device, "clover_tiny"), arrays("clover_tiny")
    ids, key = prompt_ids("clover_tiny", prompt), f"{prompt}.{preview}"
    commit_prompt(plan, 1, ids)
    before = state_bytes(plan)
    work = one_segment(Kind.PREVIEW, 1, want[f"{key}.block"].tolist(), len(ids))
    hidden = hidden_rows(plan, trace(plan, work))
    changed = [name for name, now in state_bytes(plan).items() if now != before[name]]
    assert not changed, f"the preview wrote {changed}"
    assert_close(all_logits(plan, work), want[f"{key}.logits"], PREVIEW, f"{key}.logits")
    for i, rows in enumerate(want[f"{key}.hidden"]):
        assert_share(hidden[i], rows, PREVIEW, f"{key}.hidden {i}")


@pytest.mark.parametrize("preview", PREVIEWS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_coresets_come_out(device, prompt, preview):
    plan, want = open_moe(device), arrays("clover_tiny")
    ids, key = prompt_ids("clover_tiny", prompt), f"{prompt}.{preview}"
    commit_prompt(plan, 1, ids)
    work = one_segment(Kind.PREVIEW, 1, want[f"{key}.block"].tolist(), len(ids))
    values = trace(plan, work)
    kept = np.concatenate([values[f"layers.{i}.moe/allowed"] for i in range(4)])
    np.testing.assert_array_equal(kept != 0, want[f"{key}.kept"])


@pytest.mark.parametrize("prompt", PROMPTS)
def test_previews_of_a_narrow_block_without_coreset_come_out(device, prompt):
    plan, ids = plan_of(device, "clover_tiny_b8"), prompt_ids("clover_tiny_b8", prompt)
    commit_prompt(plan, 1, ids)
    work = one_segment(Kind.PREVIEW, 1, [318] * 8, len(ids))
    trace(plan, work)
    want = arrays("clover_tiny_b8")[f"{prompt}.preview_masks.logits"]
    assert_close(all_logits(plan, work), want, PREVIEW, prompt)


def test_two_previews_of_two_slots_in_one_pass_come_out(device):
    plan, want = plan_of(device, "clover_tiny"), arrays("clover_tiny")
    parts = []
    for slot, prompt in ((0, "short"), (2, "one")):
        ids = prompt_ids("clover_tiny", prompt)
        commit_prompt(plan, slot, ids)
        block = want[f"{prompt}.preview_half.block"].tolist()
        parts.append(one_segment(Kind.PREVIEW, slot, block, len(ids)))
    work = side_by_side(parts)
    trace(plan, work)
    logits = all_logits(plan, work)
    for got, prompt in zip(np.split(logits, 2), ("short", "one"), strict=True):
        assert_close(got, want[f"{prompt}.preview_half.logits"], PREVIEW, prompt)


@pytest.mark.parametrize("run", runs("clover_tiny")["rounds"])
def test_states_after_rounds_of_verify_and_advance_come_out(device, run):
    prompt, _, accept = run.split("/")
    plan, position = plan_of(device, "clover_tiny"), 0
    plan.reset_slot(1)
    plan.run(one_segment(Kind.COMMIT, 1, prompt_ids("clover_tiny", prompt), 0))
    position = len(prompt_ids("clover_tiny", prompt))
    owed: tuple[tuple[int, int], ...] = ()
    for given in runs("clover_tiny")["rounds"][run]["rounds"]:
        plan.run(one_segment(Kind.VERIFY, 1, given["candidates"], position, owed))
        owed = ((1, 1 + given["accepted"]),)
        position += 1 + given["accepted"]
    plan.run(one_segment(Kind.COMMIT, 1, (), position, owed))
    assert_state(plan, 1, position, f"rounds.{prompt}.{accept}.state")
