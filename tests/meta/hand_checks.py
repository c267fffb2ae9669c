"""Small cases with answers worked out by hand, for rules that no golden run decides."""

from __future__ import annotations

from typing import Any

import numpy as np

from clover_rt.engine import Engine, Mode, PassEvent, Request
from clover_rt.ops import OPS
from clover_rt.ops.common import table
from clover_rt.ops.controls import pack_mask
from clover_rt.ops.derived import run_nodes
from clover_rt.spec import Format, Kind, Node, Picks, Wanted, Weight
from tests.unit.engine_fake import FACTS, VOCAB, FakeRunner

NEVER = -1e30


def pick(rows: Any, top: int, suppressed: tuple[int, ...] = ()) -> Picks:
    """Return the picks of rows of logits: the head is the identity."""
    logits = np.array(rows, np.float32)
    count, vocab = logits.shape
    mask = np.zeros(vocab, bool)
    mask[list(suppressed)] = True
    values: dict[str, Any] = {
        "params": table([(Kind.COMMIT, 0, count, 0)], wanted=[Wanted(i, 1) for i in range(count)]),
        "h": logits,
        "head": Weight(Format.F32, (vocab, vocab), np.eye(vocab, dtype=np.float32)),
        "counts": np.zeros((1, vocab), np.int32),
        "suppressed": pack_mask(mask)[None],
    }
    names = {o.name: o.name for o in OPS["confidence_topk"].operands}
    node = Node("pick", "confidence_topk", names, {}, {"top": top})
    run_nodes([node], values, OPS)
    picks = values["picks"]
    assert isinstance(picks, Picks)
    return picks


def equal_logits_go_to_the_lowest_id() -> None:
    picks = pick([[1.0, 3.0, 0.0, 3.0, 3.0]], 3)
    assert picks.ids[0].tolist() == [1, 3, 4]


def a_suppressed_id_is_never_picked() -> None:
    picks = pick([[1.0, 3.0, 2.0]], 2, suppressed=(1,))
    assert picks.ids[0].tolist() == [2, 0]
    # softmax over e^1 and e^2 alone
    np.testing.assert_allclose(picks.lse[0], 2 + np.log1p(np.exp(-1)), rtol=1e-6)


def entropy_is_in_nats() -> None:
    # four equal logits: ln 4
    np.testing.assert_allclose(pick([[2.0] * 4], 1).entropy[0], 1.3862943611, rtol=1e-6)


def one_bad_number_clears_the_finite_flag() -> None:
    assert pick([[1.0, 2.0], [3.0, 4.0]], 1).finite
    with np.errstate(invalid="ignore"):
        assert not pick([[1.0, 2.0], [np.nan, 4.0]], 1).finite
        assert not pick([[1.0, 2.0], [np.inf, 4.0]], 1).finite


class _HalfSure(FakeRunner):
    """Row 1 of a block has two equal logits alone, so its confidence is 1/2; others are sure."""

    def _preview(self, ids: tuple[int, ...], block: tuple[int, ...]) -> list[np.ndarray]:
        rows = np.full((len(block), VOCAB), NEVER)
        rows[:, 5] = 0
        rows[1, 6] = 0
        return list(rows)


def a_confidence_at_the_threshold_fixes_no_row() -> None:
    request = Request((3,), Mode.DIFFUSION, max_tokens=8, threshold=0.5, early_end=False)
    events = list(Engine(_HalfSure(), FACTS).generate(request))
    passes = [e for e in events if isinstance(e, PassEvent)]
    assert [[f.row for f in p.fixed] for p in passes] == [[0, 2, 3, 4, 5, 6, 7], [1]]
    assert passes[1].fixed[0].confidence == 0.5
