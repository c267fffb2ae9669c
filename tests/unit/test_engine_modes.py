"""Invariants of the decoding modes, over random models, prompts, limits and controls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from clover_rt.engine import (
    Accept,
    BlockEvent,
    EndEvent,
    Mode,
    PassEvent,
    Request,
    RoundEvent,
    Sampling,
    TokensEvent,
)
from clover_rt.spec import Controls, Kind, TableClass
from tests.unit.engine_fake import (
    MASK,
    STOPS,
    THINK_END,
    THINK_OPEN,
    VOCAB,
    FakeRunner,
    engine_of,
    is_idle,
)

FEW = settings(max_examples=40, deadline=None)
SOME_CONTROLS = st.builds(
    Controls,
    frequency=st.sampled_from([0.0, 0.4]),
    presence=st.sampled_from([0.0, 0.7]),
    repetition=st.sampled_from([1.0, 1.3]),
    length_penalty=st.sampled_from([0.0, 5.0]),
    length_start=st.integers(0, 20),
    length_window=st.integers(0, 20),
    think_bias=st.sampled_from([0.0, 6.0]),
    think_start=st.integers(0, 10),
    think_window=st.integers(0, 10),
    think_end=st.sampled_from([-1, THINK_END]),
)
PROMPTS = st.lists(st.sampled_from([0, 3, 4, 5, THINK_OPEN, THINK_END]), min_size=1, max_size=80)
KEYS = st.integers(0, 10_000)


def requests(mode=None, **fixed):
    """Return a strategy of requests of one mode, or of any."""

    def build(which, prompt, left, controls, stops, sampling, threshold, block, accept, width):
        extra = {}
        if which is Mode.DIFFUSION:
            extra = {"threshold": threshold, "block_size": block}
        if which is Mode.SELF_SPEC:
            extra = {"accept": accept, "draft_width": width}
        else:
            extra["sampling"] = sampling
        fields = dict(
            prompt=tuple(prompt), mode=which, max_tokens=left, controls=controls, stops=stops
        )
        return Request(**(fields | extra | fixed))

    return st.builds(
        build,
        st.sampled_from(Mode) if mode is None else st.just(mode),
        PROMPTS,
        st.integers(1, 40),
        SOME_CONTROLS,
        st.sampled_from([(), STOPS]),
        st.sampled_from([None, Sampling(seed=3), Sampling(0.5, 5, 0.9, 1)]),
        st.sampled_from([0.2, 0.5, 0.9, 1.0]),
        st.sampled_from([1, 2, 4, 8]),
        st.sampled_from(Accept),
        st.sampled_from([1, 2, 4, 8]),
    )


def run(request, key, **engine_settings):
    engine = engine_of(FakeRunner(key), **engine_settings)
    events = list(engine.generate(request))
    assert is_idle(engine)
    return events


def of(events, kind):
    return [e for e in events if isinstance(e, kind)]


@FEW
@given(requests(), KEYS)
def test_what_is_emitted_ends_at_a_stop_or_the_limit_and_never_holds_a_mask(request, key):
    end = run(request, key)[-1]
    assert isinstance(end, EndEvent)
    tokens = end.tokens
    assert 1 <= len(tokens) <= request.max_tokens
    assert all(t < MASK or t in (THINK_OPEN, THINK_END, 23) for t in tokens)
    assert not set(tokens[:-1]) & set(request.stops)
    if tokens[-1] in request.stops:
        assert end.finish_reason == "stop"
    else:
        assert end.finish_reason == "length"
        assert len(tokens) == request.max_tokens


@FEW
@given(requests(), KEYS)
def test_streamed_ids_only_append_and_make_up_the_end(request, key):
    events = run(request, key)
    streamed = of(events, TokensEvent)
    assert tuple(i for e in streamed for i in e.ids) == events[-1].tokens
    assert all(len(e.ids) == len(e.probabilities) > 0 for e in streamed)
    assert all(0 < p <= 1.0001 for e in streamed for p in e.probabilities)


@FEW
@given(requests(Mode.DIFFUSION, early_end=False), KEYS)
def test_a_fixed_row_never_changes_and_every_pass_fixes_one(request, key):
    events = run(request, key)
    for block in of(events, BlockEvent):
        seen: dict[int, int] = {}
        for p in block.passes:
            assert p.fixed
            assert not {f.row for f in p.fixed} & set(seen)
            seen |= {f.row: f.token for f in p.fixed}
            assert {r: t for r, t in enumerate(p.tokens) if t is not None} == seen
        assert len(seen) == request.block_size
        assert len(block.passes) <= request.block_size


@FEW
@given(requests(Mode.DIFFUSION), KEYS)
def test_ending_a_block_early_changes_no_token_and_no_pass_before(request, key):
    early, late = run(request, key), run(replace(request, early_end=False), key)
    assert early[-1].tokens == late[-1].tokens
    assert early[-1].finish_reason == late[-1].finish_reason
    for a, b in zip(of(early, BlockEvent), of(late, BlockEvent), strict=True):
        assert [p.fixed for p in a.passes] == [p.fixed for p in b.passes][: len(a.passes)]


@FEW
@given(requests(Mode.DIFFUSION), KEYS)
def test_rows_above_the_threshold_are_fixed_else_the_most_confident(request, key):
    for p in of(run(request, key), PassEvent):
        sure = [f.confidence > np.float32(request.threshold) for f in p.fixed]
        assert all(sure) or len(p.fixed) == 1


@FEW
@given(requests(Mode.AR, sampling=None), KEYS, st.sampled_from([2, 4, 8]))
def test_exact_self_speculation_gives_the_tokens_of_greedy_ar(request, key, width):
    draft = replace(request, mode=Mode.SELF_SPEC, accept=Accept.EXACT, draft_width=width)
    events = run(draft, key)
    assert events[-1].tokens == run(request, key)[-1].tokens
    for r in of(events, RoundEvent):
        assert r.accepted < r.width


@FEW
@given(requests(), KEYS)
def test_counts_equal_what_is_counted_and_the_state_what_is_committed(request, key):
    runner = FakeRunner(key)
    engine = engine_of(runner)
    sequence = engine.open()
    for _ in engine.generate(request, sequence):
        assert runner.ids[sequence.slot] == tuple(sequence.ids)[: len(runner.ids[sequence.slot])]
        counts = np.bincount(np.array(sequence.counted, int), minlength=VOCAB)
        np.testing.assert_array_equal(runner.counts[sequence.slot], counts)
    sequence.settle()
    assert runner.ids[sequence.slot] == tuple(sequence.ids)
    response = sequence.ids[len(request.prompt) :]
    if request.mode is Mode.DIFFUSION:
        assert response == sequence.counted
    sequence.close()
    assert is_idle(engine)


@FEW
@given(requests(), KEYS, st.sampled_from([1, 7, 32, 64, 0]), st.booleans())
def test_neither_chunking_nor_fusion_matters(request, key, chunk, fuse):
    plain = run(request, key, fuse_commit=False)[-1]
    other = run(request, key, prefill_chunk=chunk, fuse_commit=fuse)[-1]
    assert other.tokens == plain.tokens


@FEW
@given(requests(), KEYS)
def test_the_same_seed_gives_the_same_tokens(request, key):
    assert run(request, key)[-1].tokens == run(request, key)[-1].tokens


@FEW
@given(requests(Mode.DIFFUSION, early_end=False), KEYS)
def test_a_preview_row_asks_for_its_own_response_position(request, key):
    runner = FakeRunner(key)
    list(engine_of(runner).generate(request))
    for table in runner.passes:
        for s in table.segments:
            if s.kind is Kind.PREVIEW:
                done = s.position - len(request.prompt)
                for w in table.wanted:
                    assert w.response == done + (w.row - s.row0) + 1
                masked = [i for i, t in enumerate(table.tokens) if t == MASK]
                assert [w.row for w in table.wanted] == masked


@FEW
@given(requests(Mode.SELF_SPEC), KEYS)
def test_verify_rows_ask_for_the_position_after_their_own(request, key):
    runner = FakeRunner(key)
    list(engine_of(runner).generate(request))
    for table in runner.passes:
        for s in table.segments:
            pending = s.position - len(request.prompt) + 1
            for w in table.wanted:
                row = w.row - s.row0
                if s.kind is Kind.VERIFY:
                    assert w.response == pending + row + 1
                    assert w.count_from == (1 if request.accept is Accept.EXACT else -1)
                    last = row == s.rows - 1
                    assert w.probe == (-1 if last else table.tokens[w.row + 1])
                elif s.kind is Kind.PREVIEW:
                    assert row >= 1
                    assert w.response == pending + row
                    assert w.count_from == -1


def test_a_confidence_equal_to_the_threshold_does_not_pass():
    runner = FakeRunner(5)
    runner.sharpness = 1e4
    request = Request((3,), max_tokens=8, threshold=1.0, early_end=False)
    passes = of(list(engine_of(runner).generate(request)), PassEvent)
    assert {f.confidence for p in passes for f in p.fixed} == {1.0}
    assert [len(p.fixed) for p in passes] == [1] * 8
    # equal confidences: the lowest row is fixed first
    assert [p.fixed[0].row for p in passes] == list(range(8))


def test_a_block_at_the_end_of_the_context_is_previewed_whole():
    runner = FakeRunner(1, slots=1, context=64)
    engine = engine_of(runner)
    end = list(engine.generate(Request(tuple([3] * 61))))[-1]
    assert len(end.tokens) == 3
    assert runner.passes[-1].segments[0].rows == 8
    assert is_idle(engine)


def test_ignored_stops_neither_end_the_run_nor_reach_the_controls():
    runner = FakeRunner(2)
    request = Request((3,), Mode.AR, 60, stops=STOPS, ignore_eos=True)
    end = list(engine_of(runner).generate(request))[-1]
    assert end.finish_reason == "length"
    assert len(end.tokens) == 60
    assert all(c.stops == () for p in runner.passes for c in p.controls)


def test_banned_ids_are_never_picked():
    plain = run(Request((3,), Mode.AR, 30), 9)[-1].tokens
    banned = frozenset(plain[:3])
    assert not banned & set(run(Request((3,), Mode.AR, 30, banned=banned), 9)[-1].tokens)


def test_fusion_puts_a_commit_before_the_preview_of_the_next_block():
    runner = FakeRunner(1)
    request = Request((3, 4), max_tokens=30)
    list(engine_of(runner).generate(request))
    fused = [p for p in runner.passes if len(p.segments) == 2]
    assert len(fused) == 3
    for p in fused:
        commit, preview = p.segments
        assert (commit.kind, preview.kind) == (Kind.COMMIT, Kind.PREVIEW)
        assert preview.position == commit.position + commit.rows
        assert sum(amount for _, _, amount in p.count_deltas) == commit.rows


def test_a_plan_that_refuses_the_fused_class_gets_two_passes():
    runner = FakeRunner(1, classes=frozenset({TableClass.COMMIT, TableClass.PREVIEW}))
    list(engine_of(runner).generate(Request((3, 4), max_tokens=30)))
    assert {len(p.segments) for p in runner.passes} == {1}
