"""A pass that is broken off: what it leaves cannot be used, and others go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clover_rt.engine import EndEvent, ErrorEvent, Mode, Request, TokensEvent
from clover_rt.errors import DeviceLost, OutOfMemory, StaleState
from clover_rt.spec import Kind
from tests.unit.engine_fake import FakeRunner, engine_of, is_idle

LOST = DeviceLost.of("gpu:0", "gdn", "bus error")
FULL = OutOfMemory.of("gpu:0", 100, 10)
STOPPED = [KeyboardInterrupt(), LOST, FULL, ValueError("a bug")]


class Breaks:
    """Raises an error in the pass with this number, counted from 0."""

    def __init__(self, error, at):
        self.error, self.left = error, at

    def __call__(self, work):
        self.left -= 1
        if self.left < 0 and self.error is not None:
            error, self.error = self.error, None
            raise error


def named(error):
    return type(error).__name__


@pytest.mark.parametrize("error", STOPPED, ids=named)
def test_a_commit_that_is_broken_off_leaves_a_sequence_that_cannot_be_used(error):
    runner = FakeRunner(broken=Breaks(error, 1))
    engine = engine_of(runner)
    sequence = engine.open()
    engine.commit(sequence, (3, 4))
    with pytest.raises(type(error)):
        engine.commit(sequence, (5, 6))
    with pytest.raises(StaleState, match=f"CRT-4103.*\\n.*{named(error)}"):
        sequence.check()
    for use in (lambda: engine.commit(sequence, (5, 6)), sequence.snapshot, sequence.settle):
        with pytest.raises(StaleState, match="CRT-4103"):
            use()
    with pytest.raises(StaleState, match="CRT-4103"):
        engine.generate(Request((3, 4, 5), Mode.AR, 4), sequence)
    sequence.close()
    assert is_idle(engine)


@pytest.mark.parametrize("error", STOPPED, ids=named)
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_generation_that_is_broken_off_makes_its_kept_sequence_unusable(error, mode, at):
    engine = engine_of(FakeRunner(broken=Breaks(error, at)), prefill_chunk=2)
    sequence = engine.open()
    with pytest.raises(type(error)):
        list(engine.generate(Request((3, 4, 5), mode, 20), sequence))
    with pytest.raises(StaleState, match="CRT-4103"):
        engine.commit(sequence, (3,))
    sequence.close()
    assert is_idle(engine)


def test_an_advance_that_is_broken_off_leaves_a_sequence_that_cannot_be_used():
    def broken(work):
        if work.advances and not work.segments:
            raise KeyboardInterrupt

    engine = engine_of(FakeRunner(4, broken=broken))
    sequence = engine.open()
    rounds = engine.generate(Request((3, 4), Mode.SELF_SPEC, 20, draft_width=8), sequence)
    for event in rounds:
        if isinstance(event, TokensEvent) and sequence.owed:
            break
    rounds.close()
    assert sequence.owed
    with pytest.raises(KeyboardInterrupt):
        sequence.settle()
    with pytest.raises(StaleState, match="CRT-4103"):
        sequence.snapshot()
    sequence.close()
    assert is_idle(engine)


@pytest.mark.parametrize("error", [LOST, FULL], ids=named)
@pytest.mark.parametrize("mode", Mode)
def test_an_error_of_one_table_ends_its_requests_and_the_others_go_on(error, mode):
    asked = [Request((3, 4, 5), mode, 20), Request((5, 4), mode, 20)]
    alone = list(engine_of(FakeRunner(3)).generate(asked[1]))[-1].tokens

    def broken(work):
        if work.segments and work.segments[0].slot == 0 and work.segments[0].position > 2:
            raise error

    # one sequence a table
    layout = replace(FakeRunner().layout, segments=1)
    engine = engine_of(FakeRunner(3, layout=layout, broken=broken))
    last = dict(engine.run_many(asked))
    assert isinstance(last[0], ErrorEvent)
    assert last[0].error is error
    assert isinstance(last[1], EndEvent)
    assert last[1].tokens == alone
    assert is_idle(engine)


@pytest.mark.parametrize("error", [LOST, FULL], ids=named)
def test_an_error_of_a_shared_table_ends_every_request_in_it(error):
    engine = engine_of(FakeRunner(3, broken=Breaks(error, 5)))
    last = dict(engine.run_many([Request((3, 4, 5), Mode.AR, 20)] * 2))
    assert [e.error for e in last.values()] == [error, error]
    assert is_idle(engine)


def test_a_sequence_closed_under_its_generation_ends_that_one_only():
    engine = engine_of(FakeRunner(3))
    alone = list(engine.generate(Request((5, 4), Mode.AR, 20)))[-1].tokens
    sequence = engine.open()
    scheduler = engine.scheduler()
    scheduler.add(Request((3, 4, 5), Mode.AR, 20), sequence)
    scheduler.add(Request((5, 4), Mode.AR, 20))
    last = dict(scheduler.step())
    sequence.close()
    while scheduler.running:
        last |= dict(scheduler.step())
    assert isinstance(last[0], ErrorEvent)
    assert last[0].error.code == "CRT-4103"
    assert last[1].tokens == alone
    assert is_idle(engine)


@pytest.mark.parametrize("name", ["reset_slot", "load_request"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), LOST], ids=named)
def test_an_error_before_the_first_pass_frees_slot_and_pages(name, error):
    runner = FakeRunner()
    engine = engine_of(runner)

    def fails(*_):
        raise error

    setattr(runner, name, fails)
    with pytest.raises(type(error)):
        list(engine.generate(Request((3, 4, 5), Mode.AR, 20)))
    assert is_idle(engine)


def test_a_snapshot_that_fails_gives_its_slot_back():
    runner = FakeRunner()
    engine = engine_of(runner)
    sequence = engine.open()
    saved = sequence.snapshot()
    free = engine.store.slots.free

    def fails(src, dst):
        raise LOST

    runner.copy_slot = fails
    with pytest.raises(DeviceLost):
        sequence.snapshot()
    assert engine.store.slots.free == free
    with pytest.raises(DeviceLost):
        sequence.restore(saved)
    with pytest.raises(StaleState, match="CRT-4103"):
        engine.commit(sequence, (3,))


def test_an_error_while_a_failure_is_explained_makes_every_sequence_of_the_pass_unusable():
    def explain(work, top):
        raise LOST

    runner = FakeRunner(3, bad=lambda s, t: s.kind is Kind.PREVIEW)
    runner.explain_nonfinite = explain
    engine = engine_of(runner)
    sequence = engine.open()
    with pytest.raises(DeviceLost):
        list(engine.generate(Request((3, 4, 5), max_tokens=9), sequence))
    with pytest.raises(StaleState, match="CRT-4103"):
        engine.commit(sequence, (3,))
