"""A plan gives the golden numbers wherever its nodes run."""

from __future__ import annotations

import numpy as np
import pytest

from clover_rt.spec import Kind, Pass, Picks, Segment, TableClass, Wanted
from tests.golden import PROMPTS, arrays, assert_close, runs
from tests.toy import PRIMITIVES, ToyDevice
from tests.unit.plan_bench import (
    ROUNDING,
    assert_near_picks,
    assert_near_slots,
    assert_same_bytes,
    bind_toy,
    cache_rows,
    commit,
    golden_graph,
    host,
    native,
    pages,
    preview,
    states,
    verify,
    without,
)

GOLD = arrays("clover_tiny")
# the golden README's bounds; states are rows of the same size as the logits' inputs
CAUSAL, PREVIEW, STATE = 4e-4, 4e-5, 4e-5
BLOCKS = ("preview_masks", "preview_half", "preview_width8")
MASK = 318
FIELDS = ("ids", "logits", "lse", "entropy", "probe")

PLACEMENTS = {
    "native": lambda: bind_toy(native()),
    "composed": lambda: bind_toy(ToyDevice("primitives", PRIMITIVES)),
    "two-primitives": lambda: bind_toy(ToyDevice("two", ["linear", "rms_norm"]), host()),
    "layer-ops": lambda: bind_toy(
        ToyDevice("layers", ["begin", "embed", "gdn", "moe", "pick", "advance"]), host()
    ),
    "no-block-memory": lambda: bind_toy(ToyDevice("most", without("block_memory")), host()),
    "fused-gdn-host-advance": lambda: bind_toy(
        ToyDevice("fused", ["gdn", *without("advance")]), host()
    ),
    "references": lambda: bind_toy(ToyDevice("none"), allow_reference=True),
    "references-on-host": lambda: bind_toy(
        ToyDevice("none"), ToyDevice("host"), allow_reference=True
    ),
}


@pytest.fixture(scope="module", params=list(PLACEMENTS))
def plan(request):
    return PLACEMENTS[request.param]()


def prompt(name):
    return runs("clover_tiny")["prompts"][name]


def assert_picks_of(picks, logits, bound, what):
    """Compare candidates, log-sum-exp and entropy of the wanted rows with golden logits."""
    assert picks.finite
    at = np.take_along_axis(logits, picks.ids, axis=1)
    assert_close(picks.logits, at, bound, f"{what} logits of the candidates")
    best = -np.sort(-logits, axis=1)[:, : picks.ids.shape[1]]
    assert_close(picks.logits, best, bound, f"{what} best logits")
    peak = logits.astype(np.float64)
    lse = np.log(np.exp(peak - peak.max(1, keepdims=True)).sum(1)) + peak.max(1)
    assert_close(picks.lse, lse.astype(np.float32), bound, f"{what} log-sum-exp")
    share = np.exp(peak - lse[:, None])
    entropy = -(share * np.log(share)).sum(1)
    assert_close(picks.entropy, entropy.astype(np.float32), 10 * bound, f"{what} entropy")


def assert_states_of(plan, name, slot):
    length = len(prompt(name))
    for layer in range(3):
        ring = plan.state(f"layers.{layer}.ring")[slot]
        assert_close(ring, GOLD[f"{name}.state.{layer}.conv"], STATE, f"ring {layer}")
        memory = plan.state(f"layers.{layer}.S")[slot]
        assert_close(memory, GOLD[f"{name}.state.{layer}.S"], STATE, f"S {layer}")
    for got, kind in zip(cache_rows(plan, 3, slot, length), "kv", strict=True):
        assert_close(got, GOLD[f"{name}.state.3.{kind}"], STATE, kind)


@pytest.mark.parametrize("name", PROMPTS)
def test_prompt_and_blocks_are_the_golden_ones_in_every_placement(plan, name):
    ids, slot = prompt(name), 1
    plan.reset_slot(slot)
    logits = GOLD[f"{name}.causal_logits"]
    # the table has room for 64 wanted rows
    rows = range(max(0, len(ids) - 60), len(ids))
    picks = plan.run(commit(ids, slot, wanted=rows), 64)
    assert_picks_of(picks, logits[rows.start :], CAUSAL, name)
    assert_states_of(plan, name, slot)
    before = states(plan)
    for block in BLOCKS:
        ids_of_block = GOLD[f"{name}.{block}.block"]
        picks = plan.run(preview(ids_of_block, slot, len(ids), "all"), 64)
        assert_picks_of(picks, GOLD[f"{name}.{block}.logits"], PREVIEW, f"{name} {block}")
        assert_same_bytes(states(plan), before)


@pytest.mark.parametrize("kept", [0, 1, 5, 8])
def test_verified_rows_score_as_committed_and_an_advance_keeps_some(plan, kept):
    ids = prompt("long")[:40]
    tail = ids[32:]
    for slot in (0, 1):
        plan.reset_slot(slot)
        plan.run(commit(ids[:32], slot))
    before = states(plan)
    picks = plan.run(verify(tail, 0, 32, "all"), 64)
    assert_picks_of(picks, GOLD["long.causal_logits"][32:40], CAUSAL, "verify")
    after = states(plan)
    for name in before:
        if name.endswith((".ring", ".S", "counts")):
            assert after[name].tobytes() == before[name].tobytes(), f"a verify changed {name}"
    plan.run(Pass(advances=((0, kept),)))
    if kept:
        plan.run(commit(tail[:kept], 1, 32))
    ended = states(plan)
    assert_near_slots(ended, ended, [(0, 1)])
    caches = (cache_rows(plan, 3, slot, 32 + kept) for slot in (0, 1))
    for got, want in zip(*caches, strict=True):
        assert_close(got, want, ROUNDING, "kept rows of the cache")


def test_two_sequences_in_one_pass_are_each_as_alone(plan):
    first, second = prompt("short"), prompt("long")[:23]
    n, m = len(first), len(second)
    for slot in range(2):
        plan.reset_slot(slot)
    alone = [
        plan.run(commit(first, 0, wanted=[n - 1]), 64),
        plan.run(commit(second, 1, wanted=[m - 1]), 64),
    ]
    apart = states(plan)
    for slot in range(2):
        plan.reset_slot(slot)
    table = Pass(
        (Segment(Kind.COMMIT, 1, 0, m, 0), Segment(Kind.COMMIT, 0, m, n, 0)),
        (*second, *first),
        wanted=(Wanted(m + n - 1, n), Wanted(m - 1, m)),
        page_deltas=pages(0) + pages(1),
    )
    both = plan.run(table, 64)
    for row, picks in enumerate(alone):
        assert_near_picks(row_of(both, row), picks)
    assert_near_slots(states(plan), apart, [(0, 0), (1, 1)])


def row_of(picks, row):
    """Return the picks of one wanted row."""
    parts = {n: getattr(picks, n)[row : row + 1] for n in FIELDS}
    return Picks(picks.finite, **parts)


def test_a_commit_and_its_preview_in_one_pass_are_two_passes(plan):
    ids, block = prompt("short"), [MASK] * 8
    n = len(ids)
    plan.reset_slot(0)
    plan.run(commit(ids, 0))
    apart_picks = plan.run(preview(block, 0, n, "all"), 64)
    apart = states(plan)
    plan.reset_slot(0)
    table = Pass(
        (Segment(Kind.COMMIT, 0, 0, n, 0), Segment(Kind.PREVIEW, 0, n, 8, n)),
        (*ids, *block),
        wanted=tuple(Wanted(n + r, r + 1) for r in range(8)),
        page_deltas=pages(0),
    )
    assert table.table is TableClass.COMMIT_PREVIEW
    assert_near_picks(plan.run(table, 64), apart_picks)
    assert_near_slots(states(plan), apart, [(0, 0)])


@pytest.mark.parametrize("step", [1, 7, 32, 64])
def test_any_split_of_a_prompt_gives_the_same_result(step):
    toy = bind_toy(native())
    ids = prompt("long")
    whole = toy.run(commit(ids, 0, wanted=[len(ids) - 1]), 64)
    for at in range(0, len(ids), step):
        part = ids[at : at + step]
        picks = toy.run(commit(part, 1, at, wanted=[len(part) - 1]), 64)
    assert_near_picks(picks, whole)
    ended = states(toy)
    assert_near_slots(ended, ended, [(1, 0)])


@pytest.mark.parametrize("name", ["clover_tiny_b8", "qwen35moe_tiny"])
def test_the_other_checkpoints_come_out_too(name):
    gold = arrays(name)
    plan = bind_toy(ToyDevice("primitives", PRIMITIVES), graph=golden_graph(name))
    for slot, what in enumerate(n.removesuffix(".causal_logits") for n in _causal(gold)):
        listed = gold.get(f"{what}.ids")
        ids = runs(name)["prompts"][what] if listed is None else listed
        rows = range(max(0, len(ids) - 60), len(ids))
        picks = plan.run(commit(ids, slot % 3, wanted=rows), 64)
        assert_picks_of(picks, gold[f"{what}.causal_logits"][rows.start :], CAUSAL, what)
        plan.reset_slot(slot % 3)


def _causal(gold):
    return [name for name in gold if name.endswith(".causal_logits")]


def test_a_twin_without_block_weights_takes_no_previews():
    plan = bind_toy(native(), graph=golden_graph("qwen35moe_tiny"))
    assert plan.accepts(TableClass.COMMIT) and plan.accepts(TableClass.VERIFY)
    assert not plan.accepts(TableClass.PREVIEW)
    assert not plan.accepts(TableClass.COMMIT_PREVIEW)
