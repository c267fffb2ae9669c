"""The head: controls against the golden rows, picks against a full softmax."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clover_rt.ops import confidence_topk
from clover_rt.ops.common import random_rows, random_weight, table
from clover_rt.ops.confidence_topk import Ranked
from clover_rt.ops.controls import apply_controls, pack_mask, ramp, unpack_mask
from clover_rt.spec import (
    Case,
    Controls,
    Kind,
    Pass,
    Segment,
    StepLayout,
    StepParams,
    Wanted,
)
from tests.golden import runs, stop_ids

COMMIT, PREVIEW, VERIFY = Kind.COMMIT, Kind.PREVIEW, Kind.VERIFY


def record(controls):
    """Return controls as kernels see them: one item of the step table."""
    params = StepParams(StepLayout())
    params.write(Pass((Segment(COMMIT, 0, 0, 1, 0),), (0,), (controls,)))
    return params.controls[0]


@pytest.mark.parametrize("index", range(len(runs("clover_tiny")["controls"])))
def test_a_golden_row_of_logits_comes_out_of_the_controls(index):
    golden = runs("clover_tiny")["controls"][index]
    config = golden["generation_config"]
    end = config["dllm_think_end_token_id"]
    controls = Controls(
        frequency=config["frequency_penalty"],
        presence=config["presence_penalty"],
        repetition=config["repetition_penalty"],
        length_penalty=config["dllm_length_penalty"],
        length_start=config["dllm_length_penalty_start"],
        length_window=config["dllm_length_penalty_window"],
        think_bias=config["dllm_think_end_bias"],
        think_start=config["dllm_think_end_start"],
        think_window=config["dllm_think_end_window"],
        think_end=end,
        stops=stop_ids(config),
    )
    row = np.array(golden["row"])
    seen = np.bincount(golden["committed"], minlength=len(row)) if golden["committed"] else 0 * row
    is_open = end not in golden["committed"] and end not in golden["block"]
    nothing = np.zeros(len(row), bool)
    out = apply_controls(row, seen, record(controls), golden["position"], is_open, nothing)
    # the step table holds float32 controls
    np.testing.assert_allclose(out, golden["out"], atol=2e-6)


@pytest.mark.parametrize(
    "position, start, window, want",
    [(4, 4, 8, 0), (6, 4, 8, 0.25), (12, 4, 8, 1), (99, 4, 8, 1), (1, 4, 8, 0)]
    + [(4, 4, 0, 0), (5, 4, 0, 1), (5, 4, -3, 1)],
)
def test_a_ramp_rises_over_its_window_or_steps_after_its_start(position, start, window, want):
    assert ramp(position, start, window) == want


def test_suppressed_ids_are_minus_infinity_whatever_else_is_added():
    suppressed = np.array([True, False, False])
    controls = record(Controls(length_penalty=100.0, length_start=0, length_window=1, stops=(0, 1)))
    out = apply_controls(np.zeros(3), np.array([2, 0, 0]), controls, 9, False, suppressed)
    assert out.tolist() == [-np.inf, 100, 0]


def test_repetition_divides_what_is_positive_after_the_penalties_and_multiplies_the_rest():
    controls = record(Controls(frequency=1.0, presence=0.5, repetition=2.0))
    logits, seen = np.array([4.0, 1.0, 1.5, 9.0]), np.array([1, 1, 1, 0])
    out = apply_controls(logits, seen, controls, 1, False, np.zeros(4, bool))
    assert out.tolist() == [1.25, -1.0, 0.0, 9.0]


@given(st.lists(st.booleans(), min_size=1, max_size=100))
def test_a_mask_survives_packing(bits):
    words = pack_mask(np.array(bits))
    assert words.dtype == np.uint32 and len(words) == -(-len(bits) // 32)
    assert unpack_mask(words, len(bits)).tolist() == bits
    assert all(bool(int(words[i // 32]) >> i % 32 & 1) == bit for i, bit in enumerate(bits))


VOCAB, D = 50, 16


def head_inputs(seed, rows):
    rng = np.random.default_rng(seed)
    return {
        "h": random_rows(rng, rows, D) * 2,
        "head": random_weight(rng, (VOCAB, D)),
        "counts": np.zeros((2, VOCAB), np.int32),
        "suppressed": np.stack([pack_mask(np.zeros(VOCAB, bool))] * 2),
    }


def picks_of(params, operands, top):
    return confidence_topk.reference(params=params, top=top, **operands)["picks"]


def test_picks_are_the_best_of_the_whole_softmax():
    operands = head_inputs(0, 4)
    params = table(
        [(COMMIT, 1, 4, 0)], wanted=[Wanted(3, 1, probe=7), Wanted(1, 1)], tokens=np.arange(4)
    )
    picks = picks_of(params, operands, 5)
    logits = operands["h"][[3, 1]].astype(np.float64) @ operands["head"].values().T
    order = np.argsort(-logits, axis=1)[:, :5]
    np.testing.assert_array_equal(picks.ids, order)
    np.testing.assert_allclose(picks.logits, np.take_along_axis(logits, order, axis=1))
    total = np.exp(logits).sum(axis=1)
    p = np.exp(logits) / total[:, None]
    np.testing.assert_allclose(picks.lse, np.log(total))
    np.testing.assert_allclose(picks.entropy, -(p * np.log(p)).sum(axis=1))
    assert picks.probe.tolist() == [logits[0, 7], 0]
    assert picks.finite


def test_a_verified_row_counts_the_drafts_up_to_itself_as_committed():
    operands = head_inputs(1, 5)
    operands["counts"][1, 9] = 1
    controls = Controls(frequency=1.0, presence=0.25)
    tokens = np.array([4, 9, 9, 3, 8])
    wanted = [Wanted(r, r + 1, count_from=1) for r in range(5)]
    params = table([(VERIFY, 1, 5, 3)], tokens=tokens, wanted=wanted, controls=[controls])
    picks = picks_of(params, operands, VOCAB)
    logits = operands["h"].astype(np.float64) @ operands["head"].values().T
    for row in range(5):
        seen = operands["counts"][1] + np.bincount(tokens[1 : row + 1], minlength=VOCAB)
        want = logits[row] - np.where(seen > 0, seen * 1.0 + 0.25, 0)
        np.testing.assert_allclose(picks.logits[row], -np.sort(-want), atol=1e-12)


def test_rows_of_two_slots_see_their_own_counts_and_masks():
    operands = head_inputs(2, 2)
    operands["h"][1] = operands["h"][0]
    best = int(np.argmax(operands["h"][0].astype(np.float64) @ operands["head"].values().T))
    mask = np.zeros(VOCAB, bool)
    mask[best] = True
    operands["suppressed"][1] = pack_mask(mask)
    params = table([(COMMIT, 0, 1, 0), (COMMIT, 1, 1, 0)], wanted=[Wanted(0, 1), Wanted(1, 1)])
    picks = picks_of(params, operands, 2)
    assert picks.ids[0, 0] == best
    assert picks.ids[1, 0] == picks.ids[0, 1]


def test_equal_logits_take_the_lower_id():
    operands = head_inputs(3, 1)
    operands["h"][:] = 0
    params = table([(PREVIEW, 0, 1, 0)], wanted=[Wanted(0, 1)])
    assert picks_of(params, operands, 4).ids.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_flag_guards_every_row_wanted_or_not(bad):
    operands = head_inputs(4, 3)
    operands["h"][2, 0] = bad
    wanted = [Wanted(0, 1)]
    assert not picks_of(table([(COMMIT, 0, 3, 0)], wanted=wanted), operands, 1).finite
    assert not picks_of(table([(COMMIT, 0, 3, 0)]), operands, 1).finite
    assert picks_of(table([(COMMIT, 0, 2, 0)], wanted=wanted), operands, 1).finite


CASE = Case("confidence_topk/judged", "confidence_topk", {}, lambda rng: {})
F32 = next(iter(confidence_topk.SPEC.tolerance.values()))


def picks(ids, logits, finite=True, others=(), rows=1):
    """Return the picks of equal rows; ids that are not picked have the logits `others`."""
    every = np.full(len(ids) + len(others), -9.0)
    unpicked = [i for i in range(len(every)) if i not in ids]
    every[unpicked[: len(others)]] = others
    every[ids] = logits
    one = np.ones(rows)
    ids, logits = np.array([ids] * rows, np.int32), np.array([logits] * rows, np.float64)
    return {"picks": Ranked(finite, ids, logits, one, one, one, np.array([every] * rows))}


def judge(got, want):
    return [m.operand for m in confidence_topk.check(CASE, got, want, F32)]


def test_ids_may_swap_only_where_their_logits_are_as_good_as_equal():
    near, far = [5.0, 5.0 - 1e-5, 1.0], [5.0, 4.0, 1.0]
    assert judge(picks([2, 1, 0], near), picks([1, 2, 0], near)) == []
    assert judge(picks([2, 1, 0], far), picks([1, 2, 0], far)) == ["picks.ids", "picks.ids"]


def test_the_last_candidate_may_lose_to_an_id_that_is_as_good_in_every_row():
    want = picks([0, 1], [5.0, 3.0], others=[3.0 - 1e-5, 2.0], rows=16)
    assert judge(picks([0, 2], [5.0, 3.0], others=[0.0, 0.0], rows=16), want) == []
    wrong = judge(picks([0, 3], [5.0, 3.0], others=[0.0, 0.0], rows=16), want)
    assert wrong == ["picks.ids"] * 16


def test_an_id_that_is_far_off_is_wrong_whatever_its_logit_is_said_to_be():
    want = picks([0, 1], [5.0, 3.0], others=[2.0])
    assert judge(picks([0, 2], [5.0, 3.0], others=[0.0]), want) == ["picks.ids"]


@pytest.mark.parametrize("id", [-1, 3])
def test_an_id_outside_of_the_vocabulary_is_wrong(id):
    want = picks([0, 1], [5.0, 3.0], others=[3.0])
    got = picks([0, 1], [5.0, 3.0])
    got["picks"].ids[0, 1] = id
    assert judge(got, want) == ["picks.ids"]


def test_equal_logits_go_to_the_lowest_ids_in_order():
    want = picks([0, 1], [5.0, 5.0], others=[5.0])
    for ids in ([1, 0], [0, 2]):
        assert set(judge(picks(ids, [5.0, 5.0], others=[0.0]), want)) == {"picks.ids"}


def test_an_id_that_occurs_twice_is_wrong_even_in_a_tie():
    equal = [5.0, 5.0 - 1e-5, 1.0]
    assert "picks.ids" in judge(picks([1, 1, 0], equal), picks([1, 2, 0], equal))


def test_a_wrong_flag_is_wrong_and_a_failed_pass_is_not_compared_further():
    good, failed = picks([0], [1.0]), picks([0], [9.0], finite=False)
    assert judge(good, failed) == ["picks.finite"]
    assert judge(failed, good) == ["picks.finite"]
    assert judge(picks([0], [2.0], finite=False), failed) == []
