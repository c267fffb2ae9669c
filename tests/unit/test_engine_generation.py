"""Cancelling a generation: its end is still told, with what it did."""

from __future__ import annotations

import gc
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clover_rt.engine import EndEvent, Mode, Request, TokensEvent
from tests.unit.engine_fake import FakeRunner, engine_of, is_idle
from tests.unit.test_engine_modes import KEYS, requests

FEW = settings(max_examples=60, deadline=None)


@FEW
@given(requests(), KEYS, st.integers(0, 40))
def test_a_cancelled_run_ends_within_one_pass_with_a_prefix_of_its_tokens(request, key, wait):
    whole = list(engine_of(FakeRunner(key)).generate(request))[-1]
    runner = FakeRunner(key)
    engine = engine_of(runner)
    running = engine.generate(request)
    events = list(islice(running, wait))
    before = len(runner.passes)
    running.cancel()
    events += running
    # the pass that was running is over: none is begun after the flag is set
    assert len(runner.passes) == before
    end = events[-1]
    assert isinstance(end, EndEvent)
    assert end.tokens == whole.tokens[: len(end.tokens)]
    assert end.tokens == tuple(i for e in events if isinstance(e, TokensEvent) for i in e.ids)
    assert end.stats["tokens"] == len(end.tokens)
    assert end.finish_reason == "cancelled" or end == whole_times(end, whole)
    assert is_idle(engine)


def whole_times(end: EndEvent, whole: EndEvent) -> EndEvent:
    """Return the uncancelled end with the other run's times."""
    times = {k: end.stats[k] for k in ("prefill_ms", "decode_ms", "ms_per_pass", "tokens_per_s")}
    return EndEvent(whole.tokens, whole.finish_reason, {**whole.stats, **times}, whole.text)


def test_a_cancelled_run_keeps_its_statistics():
    running = engine_of(FakeRunner(1)).generate(Request((3, 4, 5), Mode.AR, 10))
    for event in running:
        if isinstance(event, TokensEvent):
            running.cancel()
    assert isinstance(event, EndEvent)
    assert (event.finish_reason, len(event.tokens)) == ("cancelled", 1)
    assert (event.stats["passes"], event.stats["prompt_tokens"]) == (0, 3)
    assert event.stats["prefill_ms"] > 0


def test_a_run_cancelled_before_it_began_makes_no_pass():
    runner = FakeRunner(1)
    running = engine_of(runner).generate(Request((3, 4, 5), Mode.AR, 10))
    running.cancel()
    (end,) = running
    assert (end.finish_reason, end.tokens) == ("cancelled", ())
    assert not runner.passes


def test_closing_ends_without_an_event():
    engine = engine_of(FakeRunner(1))
    running = engine.generate(Request((3, 4, 5), Mode.AR, 10))
    next(running)
    running.close()
    assert list(running) == []
    assert is_idle(engine)


@pytest.mark.parametrize("mode", Mode)
def test_a_generation_that_is_dropped_frees_what_it_holds(mode):
    engine = engine_of(FakeRunner(1, slots=2))
    gc.disable()
    try:
        # more of them than slots: each must be free before the next begins
        for _ in range(5):
            for event in engine.generate(Request((3, 4, 5), mode, 20)):
                if isinstance(event, TokensEvent):
                    break
            assert is_idle(engine)
    finally:
        gc.enable()


def test_a_kept_sequence_is_idle_again_once_its_generation_is_dropped():
    engine = engine_of(FakeRunner(1))
    sequence = engine.open()
    gc.disable()
    try:
        for _ in engine.generate(Request((3, 4, 5), Mode.AR, 20), sequence):
            break
        assert not sequence.busy
    finally:
        gc.enable()
    sequence.close()
    assert is_idle(engine)


def test_requests_side_by_side_that_are_dropped_free_what_they_hold():
    engine = engine_of(FakeRunner(1))
    gc.disable()
    try:
        for _ in engine.run_many([Request((3, 4, 5), Mode.AR, 20)] * 2):
            break
        assert is_idle(engine)
    finally:
        gc.enable()
