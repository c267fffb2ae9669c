"""Whole golden runs, token for token, with their logs."""

from __future__ import annotations

import numpy as np
import pytest

from clover_rt.engine import (
    BlockEvent,
    EndEvent,
    Engine,
    PassEvent,
    RoundEvent,
    Settings,
    TokensEvent,
)
from tests.end_to_end.golden_requests import FACTS, golden_request
from tests.golden import arrays, assert_close, runs

# logged numbers have 7 decimals; float32 logits move a probability by less than 1e-5
PROBABILITY = 1e-5
STATE = 4e-4
TINY = runs("clover_tiny")["decode"]
TINY_B8 = runs("clover_tiny_b8")["decode"]
DIFFUSION = [run for run in TINY if "/diffusion" in run]


@pytest.fixture(scope="module")
def made():
    return {}


@pytest.fixture
def engine(make_runner, made):
    """Return engine(name): one a checkpoint and runner, its slots all free between tests."""

    def get(name: str, settings: Settings | None = None) -> Engine:
        key = (make_runner, name)
        if key not in made:
            made[key] = make_runner(name, 3)
        return Engine(made[key], FACTS[name], settings)

    return get


def of(events, kind):
    return [e for e in events if isinstance(e, kind)]


def block_logs(events):
    """Return a list a block of lists a pass of [row, token, confidence]."""
    return [
        [[[f.row, f.token, f.confidence] for f in p.fixed] for p in block.passes]
        for block in of(events, BlockEvent)
    ]


def assert_pass_log(got, want):
    assert [[f[:2] for f in p] for p in got] == [[f[:2] for f in p] for p in want]
    flat = [[f[2] for p in log for f in p] for log in (got, want)]
    np.testing.assert_allclose(*flat, atol=PROBABILITY, rtol=0)


def assert_whole(events):
    """Streamed ids, joined, are the tokens of the end."""
    end = events[-1]
    assert isinstance(end, EndEvent)
    streamed = [i for e in of(events, TokensEvent) for i in e.ids]
    assert tuple(streamed) == end.tokens
    assert end.stats["tokens"] == len(streamed)


@pytest.mark.parametrize("run", TINY)
def test_a_golden_run_comes_out(engine, run):
    events = list(engine("clover_tiny").generate(golden_request("clover_tiny", run)))
    want = TINY[run]
    assert list(events[-1].tokens) == want["tokens"]
    assert_whole(events)
    if "/diffusion" in run:
        assert_pass_log([p for block in block_logs(events) for p in block], want["log"])
        assert events[-1].stats["passes"] == len(want["log"])
    elif run.endswith("/ar"):
        got = [(*e.ids, *e.probabilities) for e in of(events, TokensEvent)]
        assert [g[0] for g in got] == [w[0] for w in want["log"]]
        np.testing.assert_allclose(
            [g[1] for g in got], [w[1] for w in want["log"]], atol=PROBABILITY, rtol=0
        )
    else:
        assert [r.accepted for r in of(events, RoundEvent)] == want["log"]
    reason = "length" if len(want["tokens"]) == 80 else "stop"
    assert events[-1].finish_reason == reason


@pytest.mark.parametrize("run", DIFFUSION)
def test_with_early_end_tokens_are_equal_and_block_logs_are_prefixes(engine, run):
    request = golden_request("clover_tiny", run, early_end=True)
    events = list(engine("clover_tiny").generate(request))
    want = TINY[run]
    assert list(events[-1].tokens) == want["tokens"]
    assert_whole(events)
    start = 0
    for log in block_logs(events):
        assert_pass_log(log, want["log"][start : start + len(log)])
        # a block's passes fix 32 rows in all: that finds the next block's first pass
        rows, end = 0, start
        while rows < 32:
            rows += len(want["log"][end])
            end += 1
        assert len(log) <= end - start
        start = end
    assert start == len(want["log"])


@pytest.mark.parametrize("run", TINY_B8)
def test_a_golden_run_of_narrow_blocks_comes_out(engine, run):
    events = list(engine("clover_tiny_b8").generate(golden_request("clover_tiny_b8", run)))
    want = TINY_B8[run]
    assert list(events[-1].tokens) == want["tokens"]
    stats = events[-1].stats
    # of ar the file counts picked rows, and the prompt's last row is one of them
    passes = stats["passes"] + stats["prefill_tokens"]
    assert (stats["rounds"] if "self_spec" in run else passes) == want["passes"]


@pytest.mark.parametrize("run", runs("clover_tiny")["rounds"])
def test_rounds_with_given_drafts_come_out(engine, read_state, run):
    prompt, controls, accept = run.split("/")
    want = runs("clover_tiny")["rounds"][run]
    given = iter(want["rounds"])

    def drafter(counted, wanted):
        candidates = next(given)["candidates"]
        assert counted[-1] == candidates[0]
        assert wanted == len(candidates) - 1
        return candidates[1:]

    name = f"{prompt}/{controls}/self_spec_{accept}"
    request = golden_request("clover_tiny", name, drafter=drafter)
    made = engine("clover_tiny")
    sequence = made.open()
    try:
        events = list(made.generate(request, sequence))
        rounds = of(events, RoundEvent)
        assert [list(r.candidates) for r in rounds] == [r["candidates"] for r in want["rounds"]]
        assert [r.accepted for r in rounds] == [r["accepted"] for r in want["rounds"]]
        assert [r.boundary for r in rounds] == [r["boundary"] for r in want["rounds"]]
        for got, golden in zip(rounds, want["rounds"], strict=True):
            np.testing.assert_allclose(
                got.probabilities, golden["probabilities"], atol=PROBABILITY, rtol=0
            )
        assert list(events[-1].tokens) == want["tokens"]
        sequence.settle()
        state = read_state(made.store.runner, sequence.slot, sequence.length)
        assert sorted(state) == [0, 1, 2, 3]
        assert_state(state, f"rounds.{prompt}.{accept}.state")
    finally:
        sequence.close()


def assert_state(state, key):
    want = arrays("clover_tiny")
    for layer, parts in state.items():
        for name, got in parts.items():
            what = f"{key}.{layer}.{name}"
            assert_close(got, want[what], STATE, what)


@pytest.mark.parametrize("run", ["short/release/diffusion_t03", "one/release/diffusion_t03"])
def test_a_commit_in_a_pass_of_its_own_gives_the_same_log(engine, run):
    made = engine("clover_tiny", Settings(fuse_commit=False))
    events = list(made.generate(golden_request("clover_tiny", run)))
    assert list(events[-1].tokens) == TINY[run]["tokens"]
    assert_pass_log([p for block in block_logs(events) for p in block], TINY[run]["log"])


@pytest.mark.parametrize("chunk", [1, 7, 32, 64, 0])
def test_any_prefill_chunk_gives_the_golden_tokens(engine, chunk):
    made = engine("clover_tiny", Settings(prefill_chunk=chunk))
    run = "long/release/diffusion_t03"
    events = list(made.generate(golden_request("clover_tiny", run)))
    assert list(events[-1].tokens) == TINY[run]["tokens"]


def test_three_modes_side_by_side_give_the_tokens_of_each_alone(engine):
    names = ["long/release/diffusion_t03", "short/release/ar", "one/release/self_spec_exact"]
    made = engine("clover_tiny")
    events = list(made.run_many([golden_request("clover_tiny", n) for n in names]))
    ends = {i: e for i, e in events if isinstance(e, EndEvent)}
    for i, name in enumerate(names):
        assert list(ends[i].tokens) == TINY[name]["tokens"], name
    assert made.store.slots.free == made.store.slots.slots
    assert made.store.pages.available == made.store.pages.pages


def test_pass_events_tell_masks_left_and_confidences(engine):
    run = "short/neutral/diffusion_t03"
    events = list(engine("clover_tiny").generate(golden_request("clover_tiny", run)))
    passes = of(events, PassEvent)
    assert [p.masks_left for p in passes if p.block == 0][-1] == 0
    for p in passes:
        assert 0 < p.min_confidence <= p.mean_confidence <= 1
        assert sum(t is None for t in p.tokens) == p.masks_left


def test_a_restored_prompt_gives_the_same_run_and_state_again(engine, read_state):
    made = engine("clover_tiny")
    run = "long/release/diffusion_t03"
    request = golden_request("clover_tiny", run)
    sequence = made.open()
    try:
        made.commit(sequence, request.prompt[:100])
        snapshot = sequence.snapshot()
        states = []
        for _ in range(2):
            events = list(made.generate(request, sequence))
            assert list(events[-1].tokens) == TINY[run]["tokens"]
            states.append(read_state(made.store.runner, sequence.slot, sequence.length))
            sequence.restore(snapshot)
        for layer, parts in states[0].items():
            for name, array in parts.items():
                np.testing.assert_array_equal(states[1][layer][name], array)
    finally:
        sequence.close()
