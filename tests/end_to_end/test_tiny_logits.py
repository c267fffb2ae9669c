"""The logits of clover-tiny are those of the program that trains it.

tiny_logits.npz holds what that program, in float64, gives for a few prompts and blocks:
training/clover_train/parity.py writes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from clover_rt import builtin
from clover_rt.plan import Plan
from clover_rt.plugins import open_device
from clover_rt.spec import Kind, Pass, Picks, Segment, Wanted
from tests.end_to_end.plans import plan_of

RECORD = dict(np.load(Path(__file__).with_name("tiny_logits.npz")))
KINDS = sorted({name.split("/")[0] for name in RECORD})
VIEWS = ("masks", "half", "draft")
# plain float32 in two formulations gave up to 1.1e-4 and 1e-5 on a checkpoint of this size
CAUSAL, PREVIEW = 4e-4, 4e-5


@pytest.fixture(scope="module")
def plan() -> Iterator[Plan]:
    made = plan_of(builtin.path(), open_device("cpu")[1], slots=1)
    made.run(Pass(page_deltas=tuple((0, i, i) for i in range(8))))
    yield made
    made.close()


def run(plan: Plan, kind: Kind, ids: np.ndarray, position: int) -> Picks:
    segment = Segment(kind, 0, 0, len(ids), position)
    wanted = tuple(Wanted(r, r + 1) for r in range(len(ids)))
    return plan.run(Pass((segment,), tuple(ids.tolist()), wanted=wanted), 64)


def commit(plan: Plan, kind: str) -> Picks:
    plan.reset_slot(0)
    vocab = plan.vocab_size
    plan.load_request(0, np.zeros(vocab, np.int32), np.zeros(vocab, np.bool_))
    return run(plan, Kind.COMMIT, RECORD[f"{kind}/prompt"], 0)


def assert_near(picks: Picks, record: str, bound: float) -> None:
    ids, logits = RECORD[f"{record}/ids"], RECORD[f"{record}/logits"]
    np.testing.assert_allclose(picks.lse, RECORD[f"{record}/lse"], rtol=0, atol=bound)
    for row, (wanted, values) in enumerate(zip(ids, logits, strict=True)):
        ours = dict(zip(picks.ids[row].tolist(), picks.logits[row].tolist(), strict=True))
        got = [ours[i] for i in wanted.tolist()]
        np.testing.assert_allclose(got, values, rtol=0, atol=bound, err_msg=f"{record} row {row}")


@pytest.mark.parametrize("kind", KINDS)
def test_causal_logits_of_a_prompt(plan: Plan, kind: str) -> None:
    assert_near(commit(plan, kind), f"{kind}/causal", CAUSAL)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", KINDS)
def test_preview_logits_of_a_block_over_the_prompts_state(plan: Plan, kind: str, view: str) -> None:
    commit(plan, kind)
    block = RECORD[f"{kind}/{view}/block"]
    position = len(RECORD[f"{kind}/prompt"])
    assert_near(run(plan, Kind.PREVIEW, block, position), f"{kind}/{view}", PREVIEW)
