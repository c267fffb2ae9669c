"""Sequences side by side, cancelling, and what is given back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clover_rt.engine import EndEvent, ErrorEvent, Mode, Request
from clover_rt.errors import NonFinite, OutOfMemory, StaleState
from clover_rt.spec import Kind, StepLayout, TableClass
from tests.unit.engine_fake import FakeRunner, engine_of, is_idle
from tests.unit.test_engine_modes import KEYS, requests

FEW = settings(max_examples=40, deadline=None)
SMALL = StepLayout(rows=16, segments=2, wanted=16, page_deltas=2, count_deltas=8)
NARROW = frozenset({TableClass.COMMIT, TableClass.PREVIEW, TableClass.VERIFY})


@FEW
@given(
    st.lists(requests(), min_size=1, max_size=5),
    KEYS,
    st.sampled_from([NARROW, frozenset(TableClass)]),
    st.sampled_from([None, SMALL]),
    st.integers(1, 3),
)
def test_sequences_side_by_side_give_the_tokens_of_each_alone(asked, key, classes, layout, slots):
    alone = [list(engine_of(FakeRunner(key)).generate(r))[-1].tokens for r in asked]
    engine = engine_of(FakeRunner(key, slots, classes=classes, layout=layout))
    events = list(engine.run_many(asked))
    together = {i: e.tokens for i, e in events if isinstance(e, EndEvent)}
    assert [together[i] for i in range(len(asked))] == alone
    assert is_idle(engine)


def test_compatible_work_of_two_sequences_shares_passes():
    request = Request((3, 4, 5), Mode.AR, 10)
    runner = FakeRunner(1)
    list(engine_of(runner).run_many([request, request]))
    assert {len(p.segments) for p in runner.passes} == {2}
    assert len(runner.passes) == 10


@FEW
@given(requests(), KEYS, st.integers(0, 40))
def test_cancelling_anywhere_gives_everything_back(request, key, events):
    engine = engine_of(FakeRunner(key), prefill_chunk=7)
    running = engine.generate(request)
    for _ in range(events):
        if next(running, None) is None:
            break
    running.close()
    assert is_idle(engine)


@FEW
@given(st.lists(requests(), min_size=2, max_size=4), KEYS, st.integers(0, 10))
def test_cancelling_one_request_leaves_the_others_alone(asked, key, steps):
    alone = [list(engine_of(FakeRunner(key)).generate(r))[-1].tokens for r in asked]
    engine = engine_of(FakeRunner(key))
    scheduler = engine.scheduler()
    handles = [scheduler.add(r) for r in asked]
    ends = {}
    for i in range(200):
        if i == steps and handles[0] not in ends:
            ends[handles[0]] = scheduler.cancel(handles[0])
            assert ends[handles[0]].finish_reason == "cancelled"
        for handle, event in scheduler.step():
            if isinstance(event, EndEvent):
                ends[handle] = event
        if not scheduler.running:
            break
    assert [ends[h].tokens for h in handles[1:]] == alone[1:]
    assert ends[handles[0]].tokens == alone[0][: len(ends[handles[0]].tokens)]
    assert is_idle(engine)


def test_cancelling_a_request_that_ended_is_an_error():
    scheduler = engine_of(FakeRunner()).scheduler()
    with pytest.raises(StaleState, match="CRT-4104"):
        scheduler.cancel(0)


def test_a_request_without_a_free_slot_is_refused_where_nothing_will_free_one():
    engine = engine_of(FakeRunner(slots=1))
    sequence = engine.open()
    with pytest.raises(OutOfMemory, match="CRT-3211"):
        list(engine.generate(Request((3,), Mode.AR, 4)))
    sequence.close()
    assert len(list(engine.generate(Request((3,), Mode.AR, 4)))[-1].tokens) == 4


def test_a_request_without_pages_is_refused_before_any_pass():
    runner = FakeRunner(slots=2, context=128)
    engine = engine_of(runner)
    engine.store.pages.promise(3)
    with pytest.raises(OutOfMemory, match="CRT-3210"):
        list(engine.generate(Request((3,), Mode.AR, 100)))
    assert not runner.passes
    engine.store.pages.forget(3)
    assert is_idle(engine)


def test_pages_are_never_shared_by_two_live_sequences():
    engine = engine_of(FakeRunner(7))
    scheduler = engine.scheduler()
    for length in (70, 10, 130):
        scheduler.add(Request(tuple([3] * length), Mode.AR, 40))
    while scheduler.running:
        scheduler.step()
        pages = [p for r in scheduler._active for p in r.sequence.pages]
        assert len(pages) == len(set(pages))
    assert is_idle(engine)


def test_nothing_is_emitted_from_a_preview_that_is_not_finite():
    def bad(segment, tokens):
        return segment.kind is Kind.PREVIEW and segment.position >= 11

    runner = FakeRunner(3, bad=bad)
    engine = engine_of(runner)
    running = engine.generate(Request((3, 4, 5), max_tokens=40))
    seen = []
    with pytest.raises(NonFinite, match="layer 3, op gdn") as caught:
        for event in running:
            seen.append(event)
    assert caught.value.code == "CRT-4001"
    assert seen[-1].__class__.__name__ == "BlockEvent"
    assert runner.explained[-1].segments[0].kind is Kind.PREVIEW
    assert runner.explained[-1].page_deltas == runner.explained[-1].count_deltas == ()
    assert is_idle(engine)


def test_a_failed_commit_is_run_again_from_an_empty_spare_slot():
    def bad(segment, tokens):
        return segment.kind is Kind.COMMIT and segment.position <= 80 < segment.position + len(
            tokens
        )

    runner = FakeRunner(3, bad=bad)
    engine = engine_of(runner)
    with pytest.raises(NonFinite, match="layer 3, op gdn, at rows 64 to 99"):
        list(engine.generate(Request(tuple([3] * 100), max_tokens=9)))
    again = runner.explained
    assert [(p.segments[0].slot, p.segments[0].position) for p in again] == [(1, 0), (1, 64)]
    assert is_idle(engine)


def test_a_failed_commit_without_a_spare_slot_says_so():
    runner = FakeRunner(3, slots=1, bad=lambda s, t: s.kind is Kind.COMMIT)
    engine = engine_of(runner)
    with pytest.raises(NonFinite, match="no spare slot"):
        list(engine.generate(Request((3, 4), max_tokens=9)))
    assert is_idle(engine)


@pytest.mark.parametrize("mode", [Mode.AR, Mode.DIFFUSION])
def test_a_sequence_that_fails_does_not_stop_the_one_beside_it(mode):
    asked = [Request((3, 4, 5), mode, 20), Request((5, 4), mode, 20)]
    alone = list(engine_of(FakeRunner(3)).generate(asked[1]))[-1].tokens

    def bad(segment, tokens):
        # the spare slot 2, where the ids are run again, shows the failure of the first one's ids
        late = segment.position + segment.rows > 4
        return late and (segment.slot == 0 or (segment.slot == 2 and tokens[0] == 3))

    engine = engine_of(FakeRunner(3, slots=3, bad=bad))
    last = dict(engine.run_many(asked))
    assert isinstance(last[0], ErrorEvent)
    assert isinstance(last[0].error, NonFinite)
    assert isinstance(last[1], EndEvent)
    assert last[1].tokens == alone
    assert is_idle(engine)
