"""Slots, pages, tapes and snapshots of one sequence."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clover_rt.engine import Engine, Mode, Request
from clover_rt.engine.execute import Job, execute
from clover_rt.engine.pages import PagePool
from clover_rt.engine.prefill import cuts
from clover_rt.engine.work import Part, Work
from clover_rt.errors import BadInput, OutOfMemory, StaleState
from clover_rt.spec import Controls, Kind
from tests.unit.engine_fake import MASK, FakeRunner, engine_of, is_idle


def verify(engine: Engine, sequence, ids):
    sequence.promise(sequence.length + len(ids))
    execute(engine.store, [Job(sequence, Work((Part(Kind.VERIFY, ids),)), Controls())])
    sequence.forget_promise()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(1, 40)),
        st.tuples(st.just("verify"), st.integers(1, 8)),
        st.tuples(st.just("advance"), st.integers(0, 8)),
        st.tuples(st.just("snapshot"), st.just(0)),
        st.tuples(st.just("restore"), st.integers(0, 3)),
        st.tuples(st.just("release"), st.integers(0, 3)),
    ),
    max_size=25,
)


@settings(max_examples=80, deadline=None)
@given(OPERATIONS)
def test_a_state_is_what_was_committed_or_a_typed_error(operations):
    runner = FakeRunner(slots=4)
    engine = engine_of(runner)
    sequence = engine.open()
    ids: tuple[int, ...] = ()
    tape: tuple[int, ...] | None = None
    # [snapshot, its ids, may it be restored]
    saved: list[list] = []
    for number, (operation, n) in enumerate(operations):
        tokens = tuple((number + i) % 19 for i in range(n))
        if operation in ("commit", "verify"):
            if len(ids) + n > 200:
                continue
            for entry in saved:
                entry[2] &= len(entry[1]) <= len(ids)
        if operation == "commit":
            engine.commit(sequence, tokens)
            ids, tape = ids + tokens, None
        elif operation == "verify":
            verify(engine, sequence, tokens)
            tape = tokens
        elif operation == "advance":
            if tape is None or n > len(tape):
                with pytest.raises(StaleState, match="CRT-4101"):
                    sequence.advance(n)
            else:
                sequence.advance(n)
                ids, tape = ids + tape[:n], None
        elif operation == "snapshot":
            if len(saved) == 3:
                with pytest.raises(OutOfMemory):
                    sequence.snapshot()
            else:
                saved.append([sequence.snapshot(), ids, True])
        elif n < len(saved) and operation == "restore":
            snapshot, then, good = saved[n]
            if good:
                sequence.restore(snapshot)
                ids, tape = then, None
            else:
                with pytest.raises(StaleState, match="CRT-4102"):
                    sequence.restore(snapshot)
        elif n < len(saved):
            sequence.release(saved.pop(n)[0])
        assert tuple(sequence.ids) == ids
    sequence.settle()
    assert runner.ids[sequence.slot] == ids
    engine.commit(sequence, (3,))
    sequence.close()
    assert is_idle(engine)


def test_a_verify_after_restoring_an_older_snapshot_makes_the_younger_one_stale():
    engine = engine_of(FakeRunner())
    sequence = engine.open()
    engine.commit(sequence, (3, 4))
    older = sequence.snapshot()
    engine.commit(sequence, (5,))
    younger = sequence.snapshot()
    sequence.restore(older)
    sequence.restore(younger)
    sequence.restore(older)
    verify(engine, sequence, (6, 7))
    with pytest.raises(StaleState, match="an older snapshot was restored"):
        sequence.restore(younger)
    sequence.restore(older)


def test_a_snapshot_of_another_sequence_is_refused():
    engine = engine_of(FakeRunner())
    one, two = engine.open(), engine.open()
    snapshot = one.snapshot()
    with pytest.raises(StaleState, match="another sequence"):
        two.restore(snapshot)


def test_a_closed_sequence_is_refused_and_closing_twice_is_nothing():
    engine = engine_of(FakeRunner())
    sequence = engine.open()
    sequence.snapshot()
    sequence.close()
    sequence.close()
    assert is_idle(engine)
    with pytest.raises(StaleState, match="CRT-4103"):
        engine.commit(sequence, (3,))


def test_a_running_sequence_cannot_be_restored_or_shared():
    engine = engine_of(FakeRunner())
    sequence = engine.open()
    engine.commit(sequence, (3, 4))
    snapshot = sequence.snapshot()
    running = engine.generate(Request((3, 4, 5), Mode.AR, 20), sequence)
    next(running)
    with pytest.raises(StaleState, match="a generation is running"):
        sequence.restore(snapshot)
    with pytest.raises(StaleState, match="another generation is running"):
        engine.generate(Request((3, 4, 5), Mode.AR, 20), sequence)
    running.close()
    sequence.restore(snapshot)
    sequence.close()
    assert is_idle(engine)


def test_a_sequence_goes_on_with_a_longer_prompt_and_prefills_only_the_rest():
    runner = FakeRunner(4)
    engine = engine_of(runner)
    prompt = tuple([3, 4, 5] * 20)
    whole = list(engine.generate(Request(prompt, Mode.AR, 12)))[-1].tokens
    sequence = engine.open()
    engine.commit(sequence, prompt[:40])
    before = len(runner.passes)
    assert list(engine.generate(Request(prompt, Mode.AR, 12), sequence))[-1].tokens == whole
    assert runner.passes[before].segments[0].rows == 20
    with pytest.raises(StaleState, match="differ from the prompt at token 1"):
        engine.generate(Request((3, 9, 9), Mode.AR, 12), sequence)


def test_a_causal_mode_needs_one_prompt_token_that_is_not_committed():
    engine = engine_of(FakeRunner(4))
    sequence = engine.open()
    engine.commit(sequence, (3, 4))
    with pytest.raises(StaleState, match="holds the whole prompt"):
        engine.generate(Request((3, 4), Mode.AR, 12), sequence)
    assert len(list(engine.generate(Request((3, 4), max_tokens=5), sequence))[-1].tokens) <= 5


@pytest.mark.parametrize("mode", Mode)
def test_a_running_sequence_takes_no_commit_snapshot_or_advance(mode):
    request = Request((3, 4, 5), mode, 20)
    alone = list(engine_of(FakeRunner(6)).generate(request))[-1].tokens
    engine = engine_of(FakeRunner(6))
    sequence = engine.open()
    tried, events = 0, []
    for event in engine.generate(request, sequence):
        events.append(event)
        for use in (
            lambda: engine.commit(sequence, (5, 6, 7)),
            sequence.snapshot,
            lambda: sequence.advance(0),
        ):
            if sequence.busy:
                tried += 1
                with pytest.raises(StaleState, match="CRT-4109"):
                    use()
    assert tried
    assert events[-1].tokens == alone
    engine.commit(sequence, (5, 6, 7))
    sequence.snapshot()


@pytest.mark.parametrize(
    "ids, code, found",
    [
        ((3, MASK), "CRT-1047", "ids[1]=20 is the mask"),
        ((99,), "CRT-1047", "ids[0]=99; ids go from 0 to 25"),
        ((3, 4, -1), "CRT-1047", "ids[2]=-1; ids go from 0 to 25"),
        ((3,) * 64, "CRT-1059", "1 committed and 64 more are 65; the context is 64"),
    ],
)
def test_masks_and_lengths_beyond_the_context_are_not_committed(ids, code, found):
    engine = engine_of(FakeRunner(context=64))
    sequence = engine.open()
    engine.commit(sequence, (3,))
    with pytest.raises(BadInput) as caught:
        engine.commit(sequence, ids)
    assert (caught.value.code, caught.value.evidence) == (code, found)
    engine.commit(sequence, (3,) * 63)


@given(st.integers(0, 300), st.integers(0, 700), st.integers(1, 600))
def test_long_chunks_start_and_end_at_multiples_of_64(start, rows, chunk):
    end = start + rows
    pieces = list(cuts(start, end, chunk))
    assert [i for lo, hi in pieces for i in range(lo, hi)] == list(range(start, end))
    for lo, hi in pieces:
        assert 0 < hi - lo <= chunk
        if hi - lo > 64:
            assert lo % 64 == 0
            assert hi % 64 == 0 or hi == end


def test_a_page_cannot_be_promised_twice():
    pool = PagePool(2)
    pool.promise(2)
    with pytest.raises(OutOfMemory, match="0 of 2 pages"):
        pool.promise(1)
    pages = [pool.take(), pool.take()]
    assert sorted(pages) == [0, 1]
    pool.give(pages)
    assert pool.available == 2
