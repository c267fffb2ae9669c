"""The cpu backend in `exact`: how rows are split over passes changes no bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from clover_rt.engine import Engine, Mode, Settings
from clover_rt.plan import Plan
from clover_rt.spec import Kind, Pass, Picks, Segment, Wanted
from tests.end_to_end.golden_requests import FACTS, golden_request
from tests.end_to_end.plans import cpu_plan, plan_state
from tests.golden import runs

NAME = "clover_tiny"
PROMPT = tuple(runs(NAME)["prompts"]["long"])
BLOCK = (318,) * 32
LENGTH = len(PROMPT)


@pytest.fixture(scope="module")
def plan() -> Iterator[Plan]:
    made = cpu_plan(NAME, 4)
    assert made.row_invariant
    yield made
    made.close()


def pages(slot: int, count: int = 8) -> tuple[tuple[int, int, int], ...]:
    return tuple((slot, i, slot * 16 + i) for i in range(count))


def start(plan: Plan, slot: int) -> None:
    plan.reset_slot(slot)
    vocab = plan.vocab_size
    plan.load_request(slot, np.zeros(vocab, np.int32), np.zeros(vocab, np.bool_))
    plan.run(Pass(page_deltas=pages(slot)))


def wanted(rows: range, first: int = 0) -> tuple[Wanted, ...]:
    return tuple(Wanted(first + r, r + 1) for r in rows)


def commit(plan: Plan, slot: int, ids: tuple[int, ...], position: int) -> Picks:
    segment = Segment(Kind.COMMIT, slot, 0, len(ids), position)
    return plan.run(Pass((segment,), ids, wanted=wanted(range(len(ids)))), 64)


def committed(plan: Plan, slot: int, chunk: int = LENGTH) -> dict[str, Any]:
    """Commit the prompt in chunks; return the picks of every row and the state."""
    start(plan, slot)
    found = [commit(plan, slot, PROMPT[at : at + chunk], at) for at in range(0, LENGTH, chunk)]
    return {"picks": merged(found), "state": plan_state(plan, slot, LENGTH)}


def merged(found: list[Picks]) -> dict[str, np.ndarray]:
    fields = ("ids", "logits", "lse", "entropy")
    return {name: np.concatenate([getattr(p, name) for p in found]) for name in fields}


def assert_same_bits(got: Any, want: Any, where: str = "") -> None:
    if isinstance(want, dict):
        assert got.keys() == want.keys()
        for key in want:
            assert_same_bits(got[key], want[key], f"{where}/{key}")
    else:
        same = got.view(np.uint8) == want.view(np.uint8)
        assert same.all(), f"{where}: {int((~same).sum())} bytes differ"


def all_states(plan: Plan) -> dict[str, np.ndarray]:
    return {name: plan.state(name) for name in plan.state_places}


@pytest.mark.parametrize("chunk", [1, 7, 32, 64])
def test_prefill_in_chunks_gives_the_bits_of_one_pass(plan: Plan, chunk: int) -> None:
    whole = committed(plan, 0)
    assert_same_bits(committed(plan, 1, chunk), whole)


def test_a_row_keeps_its_bits_beside_other_sequences(plan: Plan) -> None:
    alone = committed(plan, 0)
    for slot in (1, 2, 3):
        start(plan, slot)
    other = PROMPT[::-1]
    segments = (
        Segment(Kind.COMMIT, 2, 0, 5, 0),
        Segment(Kind.COMMIT, 1, 5, LENGTH, 0),
        Segment(Kind.PREVIEW, 3, 5 + LENGTH, 32, 0),
    )
    ids = other[:5] + PROMPT + BLOCK
    picks = plan.run(Pass(segments, ids, wanted=wanted(range(LENGTH), 5)), 64)
    beside = {"picks": merged([picks]), "state": plan_state(plan, 1, LENGTH)}
    assert_same_bits(beside, alone)


def test_commit_and_preview_in_one_pass_give_the_bits_of_two(plan: Plan) -> None:
    committed(plan, 0)
    preview = Pass((Segment(Kind.PREVIEW, 0, 0, 32, LENGTH),), BLOCK, wanted=wanted(range(32)))
    two = {"picks": merged([plan.run(preview, 64)]), "state": plan_state(plan, 0, LENGTH)}
    start(plan, 1)
    commit(plan, 1, PROMPT[:100], 0)
    segments = (
        Segment(Kind.COMMIT, 1, 0, LENGTH - 100, 100),
        Segment(Kind.PREVIEW, 1, LENGTH - 100, 32, LENGTH),
    )
    both = Pass(segments, PROMPT[100:] + BLOCK, wanted=wanted(range(32), LENGTH - 100))
    one = {"picks": merged([plan.run(both, 64)]), "state": plan_state(plan, 1, LENGTH)}
    assert_same_bits(one, two)


def test_a_preview_changes_no_byte_of_any_state(plan: Plan) -> None:
    committed(plan, 0)
    before = all_states(plan)
    plan.run(Pass((Segment(Kind.PREVIEW, 0, 0, 32, LENGTH),), BLOCK, wanted=wanted(range(32))))
    assert_same_bits(all_states(plan), before)


@pytest.mark.parametrize("accepted", [0, 1, 2, 5, 8])
def test_verify_and_advance_give_the_bits_of_a_commit(plan: Plan, accepted: int) -> None:
    ids = PROMPT[40:48]
    committed(plan, 0)
    committed(plan, 1)
    if accepted:
        judged = commit(plan, 0, ids[:accepted], LENGTH)
    verify = Segment(Kind.VERIFY, 1, 0, 8, LENGTH)
    picks = plan.run(Pass((verify,), ids, wanted=wanted(range(8))), 64)
    plan.run(Pass(advances=((1, accepted),)))
    length = LENGTH + accepted
    assert_same_bits(plan_state(plan, 1, length), plan_state(plan, 0, length))
    if accepted:
        short = {k: v[:accepted] for k, v in merged([picks]).items()}
        assert_same_bits(short, merged([judged]))


@pytest.mark.parametrize("prompt", ["short", "one", "long"])
@pytest.mark.parametrize("controls", ["release", "neutral"])
def test_exact_self_speculation_writes_what_ar_writes(
    plan: Plan, prompt: str, controls: str
) -> None:
    engine = Engine(plan, FACTS[NAME])
    run = f"{prompt}/{controls}/"
    ar = list(engine.generate(golden_request(NAME, run + "ar")))[-1]
    request = golden_request(NAME, run + "self_spec_exact")
    assert list(engine.generate(request))[-1].tokens == ar.tokens
    assert request.mode is Mode.SELF_SPEC


def test_fused_commits_write_what_separate_ones_write(plan: Plan) -> None:
    request = golden_request(NAME, "long/neutral/diffusion_t03")
    apart = list(Engine(plan, FACTS[NAME], Settings(fuse_commit=False)).generate(request))[-1]
    fused = Engine(plan, FACTS[NAME])
    assert list(fused.generate(request))[-1].tokens == apart.tokens


def test_three_sequences_side_by_side_write_what_each_writes_alone(plan: Plan) -> None:
    requests = [
        golden_request(NAME, run)
        for run in ("short/release/diffusion_t03", "one/release/ar", "long/release/self_spec_exact")
    ]
    engine = Engine(plan, FACTS[NAME])
    alone = [list(engine.generate(r))[-1].tokens for r in requests]
    ends = {i: e for i, e in engine.run_many(requests)}
    assert [ends[i].tokens for i in range(3)] == alone
