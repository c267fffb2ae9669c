"""Sampling, acceptance and the think state on hand-made values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clover_rt.engine import Accept, Sampling
from clover_rt.engine.sampling import choose, draw, uniform
from clover_rt.engine.self_spec import judge, narrowed
from clover_rt.engine.think import ThinkState, is_prompt_closed
from clover_rt.spec import Picks

LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))


def picks(ids, logits, lse, entropy=None, probe=None):
    n = len(ids)
    zero = np.zeros(n, np.float32)
    return Picks(
        True,
        np.array(ids, np.int32).reshape(n, -1),
        np.array(logits, np.float32).reshape(n, -1),
        np.array(lse, np.float32),
        zero if entropy is None else np.array(entropy, np.float32),
        zero if probe is None else np.array(probe, np.float32),
    )


@pytest.mark.parametrize(
    "sampling, u, want",
    [
        (Sampling(), 0.0, 0),
        (Sampling(), 0.49, 0),
        (Sampling(), 0.51, 1),
        (Sampling(), 0.81, 2),
        (Sampling(), 0.96, 3),
        # two candidates: shares 0.625 and 0.375
        (Sampling(top_k=2), 0.62, 0),
        (Sampling(top_k=2), 0.63, 1),
        # the mass before the third is 0.8, before the second 0.5
        (Sampling(top_p=0.8), 0.99, 1),
        (Sampling(top_p=0.5), 0.99, 0),
        # squared shares: 0.25, 0.09, 0.0225, 0.0025 of 0.365
        (Sampling(temperature=0.5), 0.68, 0),
        (Sampling(temperature=0.5), 0.69, 1),
    ],
)
def test_a_draw_takes_the_candidate_under_its_number(sampling, u, want):
    assert draw(LOGITS, sampling, u) == want


def test_a_suppressed_candidate_is_never_drawn():
    logits = np.array([1.0, -np.inf, -np.inf], np.float32)
    assert {draw(logits, Sampling(), u) for u in (0.0, 0.5, 0.999999)} == {0}


def test_numbers_depend_on_seed_position_and_pass_and_nothing_else():
    numbers = {uniform(s, p, i) for s in (0, 1) for p in (1, 2) for i in (0, 1)}
    assert len(numbers) == 8
    assert all(0 <= u < 1 for u in numbers)
    assert uniform(2**64 - 1, 7, 3) == uniform(2**64 - 1, 7, 3)


def test_shares_of_many_draws_are_the_probabilities():
    drawn = [draw(LOGITS, Sampling(), uniform(5, p, 0)) for p in range(4000)]
    shares = np.bincount(drawn, minlength=4) / 4000
    # four standard deviations of a share of 4000 draws are below 0.032
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.15, 0.05], atol=0.032)


def test_a_confidence_is_the_probability_at_temperature_one():
    lse = math.log(4.0)
    row = picks([[7, 9]], [[math.log(3.0), math.log(1.0)]], [lse])
    token, confidence = choose(row, 0, Sampling(temperature=0.01), 1, 0)
    assert token == 7
    assert confidence == pytest.approx(0.75, abs=1e-6)


def test_exact_acceptance_stops_at_the_first_row_that_picks_otherwise():
    p = picks([5, 6, 9, 1], [0] * 4, [0] * 4, probe=[-1.0, -2.0, -3.0, 0])
    accepted, probabilities = judge(p, (4, 5, 6, 7), Accept.EXACT)
    assert accepted == 2
    np.testing.assert_allclose(probabilities, np.exp([-1.0, -2.0, -3.0]), rtol=1e-6)


@pytest.mark.parametrize(
    "p, entropy, accepted",
    [
        (0.61, 0.0, 1),
        (0.59, 0.0, 0),
        # 0.6 exp(-1) is 0.2207
        (0.23, 1.0, 1),
        (0.21, 1.0, 0),
    ],
)
def test_typical_acceptance_compares_with_the_entropy(p, entropy, accepted):
    rows = picks([0, 0], [0, 0], [0, 0], [entropy, 0], [math.log(p), 0])
    assert judge(rows, (4, 5), Accept.TYPICAL)[0] == accepted


def test_a_width_is_halved_until_it_fits_what_is_left():
    assert [narrowed(8, n) for n in (1, 2, 3, 4, 7, 8, 9)] == [1, 2, 2, 4, 4, 8, 8]
    assert narrowed(1, 5) == 1


@pytest.mark.parametrize(
    "prompt, closed",
    [([1, 2], False), ([8], False), ([9], True), ([8, 9], True), ([9, 8], False), ([], False)],
)
def test_the_last_think_tag_of_the_prompt_decides(prompt, closed):
    assert is_prompt_closed(prompt, 8, 9) is closed


def test_without_a_known_opening_tag_any_closing_one_counts():
    assert is_prompt_closed([9, 8], None, 9)
    assert not is_prompt_closed([8], None, 9)


def test_the_think_bias_ends_with_the_closing_tag():
    state = ThinkState(9, closed=False)
    assert state.is_open()
    assert not state.is_open([None, 9])
    state.count((3, 9))
    assert not state.is_open()
    assert not ThinkState(9, closed=True).is_open()
    assert not ThinkState(-1, closed=False).is_open()
