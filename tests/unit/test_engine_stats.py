"""The numbers of a run: the same words mean the same in every mode."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clover_rt.engine import BlockEvent, Mode, Request, RoundEvent
from clover_rt.engine.stats import Stats
from clover_rt.spec import Kind, TableClass
from tests.unit.engine_fake import FakeRunner, engine_of
from tests.unit.test_engine_modes import KEYS, of, requests


def fused(runner):
    """Return how many passes commit a block and preview the next."""
    return sum(p.table is TableClass.COMMIT_PREVIEW for p in runner.passes)


@settings(max_examples=60, deadline=None)
@given(requests(), KEYS)
def test_passes_are_those_that_ran_after_the_prompt_but_commits_of_blocks(request, key):
    runner = FakeRunner(key)
    events = list(engine_of(runner).generate(request))
    stats = events[-1].stats
    # the prompt, of 80 ids at most, is one pass
    decoding = len(runner.passes) - 1
    assert stats["passes"] == decoding - stats["commits"] + fused(runner)
    assert stats["blocks"] == len(of(events, BlockEvent))
    assert stats["rounds"] == len(of(events, RoundEvent))
    if request.mode is Mode.DIFFUSION:
        assert stats["prefill_tokens"] == 0
        kinds = [s.kind for p in runner.passes[1:] for s in p.segments]
        assert stats["passes"] == kinds.count(Kind.PREVIEW)
    else:
        assert stats["prefill_tokens"] == 1
    if request.mode is Mode.AR:
        assert stats["passes"] == stats["tokens"] - 1


@settings(max_examples=60, deadline=None)
@given(requests(), KEYS, st.integers(0, 20))
def test_a_cancelled_run_counts_every_pass_that_ran(request, key, wait):
    runner = FakeRunner(key)
    scheduler = engine_of(runner).scheduler()
    handle = scheduler.add(request)
    for _ in range(wait):
        if scheduler.running:
            scheduler.step()
    if scheduler.running:
        stats = scheduler.cancel(handle).stats
        ran = max(0, len(runner.passes) - 1)
        assert stats["passes"] + stats["commits"] == ran + fused(runner)
        assert (stats["decode_ms"] > 0) == (len(runner.passes) > 1)


@pytest.mark.parametrize("mode", [Mode.AR, Mode.SELF_SPEC])
def test_a_run_that_ends_with_the_prefills_token_has_no_decode_pass(mode):
    end = list(engine_of(FakeRunner(1)).generate(Request((3, 4, 5), mode, 1)))[-1]
    assert len(end.tokens) == 1
    names = ("passes", "decode_ms", "ms_per_pass", "tokens_per_pass", "tokens_per_s")
    assert [end.stats[n] for n in names] == [0] * 5
    assert end.stats["prefill_ms"] > 0


def test_rates_are_of_decode_passes_and_of_what_they_decoded():
    stats = Stats(tokens=13, prefill_tokens=1, passes=4, prefill_ms=90.0, decode_ms=24.0)
    found = stats.as_dict()
    # 12 tokens in 4 passes and 24 ms
    assert found["tokens_per_pass"] == 3.0
    assert found["ms_per_pass"] == 6.0
    assert found["tokens_per_s"] == 500.0
