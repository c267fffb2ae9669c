"""Routing and experts: each reference against another formulation or a hand example."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clover_rt.ops import combine, coreset, expert_gemm, group_rows, router_topk
from clover_rt.ops.common import is_left, random_rows, random_weight, table
from clover_rt.spec import Kind

COMMIT, PREVIEW, VERIFY = Kind.COMMIT, Kind.PREVIEW, Kind.VERIFY


def rows_of(n):
    return table([(COMMIT, 0, n, 0)])


def allowed_by(logits, top_k, top_p, segments):
    return coreset.reference(
        params=table(segments), logits=np.asarray(logits), top_k=top_k, top_p=top_p
    )["allowed"].tolist()


# one row whose softmax is (0.5, 0.3, 0.15, 0.05)
HAND = np.log([[0.15, 0.5, 0.05, 0.3]])


@pytest.mark.parametrize(
    "top_p, want",
    [
        # of the two best, 0.5 and 0.3, the masses are 0.625 and 0.375
        (0.0, [0, 1, 0, 0]),
        (0.3, [0, 1, 0, 0]),
        (0.62, [0, 1, 0, 0]),
        # the mass before the second expert is 0.625: cut before, not after
        (0.63, [0, 1, 0, 1]),
        (0.99, [0, 1, 0, 1]),
        (1.0, [1, 1, 1, 1]),
    ],
)
def test_experts_are_kept_while_the_mass_before_them_is_below_the_limit(top_p, want):
    assert allowed_by(HAND, 2, top_p, [(PREVIEW, 0, 1, 0)]) == [want]


def test_masses_add_up_over_the_rows_of_a_block():
    # best two of each row: 0.6 + 0.3 and 0.5 + 0.4 -> expert 0: 0.6 + 0.4, 1: 0.3, 2: 0.5
    logits = np.log([[0.6, 0.3, 0.05, 0.05], [0.4, 0.05, 0.5, 0.05]])
    block = [(PREVIEW, 0, 2, 0)]
    # masses 1.0, 0.3, 0.5 of 1.8: in falling order 0, 2, 1 with 0, 0.556 and 0.833 before them
    assert allowed_by(logits, 2, 0.55, block) == [[1, 0, 0, 0]]
    assert allowed_by(logits, 2, 0.56, block) == [[1, 0, 1, 0]]
    assert allowed_by(logits, 2, 0.83, block) == [[1, 0, 1, 0]]
    assert allowed_by(logits, 2, 0.84, block) == [[1, 1, 1, 0]]


def test_equal_masses_keep_the_lower_index():
    assert allowed_by(np.zeros((1, 5)), 4, 0.3, [(PREVIEW, 0, 1, 0)]) == [[1, 1, 0, 0, 0]]


def test_only_a_segments_own_rows_count_and_causal_segments_allow_all():
    logits = np.concatenate([HAND, HAND[:, ::-1], HAND])
    segments = [(COMMIT, 0, 1, 0), (PREVIEW, 0, 1, 1), (VERIFY, 1, 1, 0)]
    assert allowed_by(logits, 2, 0.5, segments) == [[1] * 4, [0, 0, 1, 0], [1] * 4]


def test_the_margin_of_a_coreset_is_the_nearest_change():
    mass = np.array([0.5, 0.3, 0.12, 0.08])
    assert coreset.margin(mass, 0.79) == pytest.approx(0.01)
    # all masses before are far from 0.65, the last kept and the first dropped are 0.18 apart
    assert coreset.margin(mass, 0.65) == pytest.approx(0.15)
    assert coreset.margin(np.array([0.5, 0.26, 0.24]), 0.6) == pytest.approx(0.02)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_routing_takes_the_largest_and_renormalises_the_softmax(seed, top_k):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (5, 9))
    out = router_topk.reference(params=rows_of(5), logits=logits, top_k=top_k)
    order = np.argsort(-logits, axis=1)[:, :top_k]
    np.testing.assert_array_equal(out["ids"], order)
    share = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    best = np.take_along_axis(share, order, axis=1)
    np.testing.assert_allclose(out["weights"], best / best.sum(axis=1, keepdims=True), atol=1e-12)


def test_ties_take_the_lower_index():
    out = router_topk.reference(params=rows_of(1), logits=np.array([[1.0, 2, 2, 1, 2]]), top_k=4)
    assert out["ids"].tolist() == [[1, 2, 4, 0]]


def test_a_row_routes_among_the_experts_its_own_segment_allows():
    logits = np.tile(np.arange(5.0), (2, 1))
    allowed = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0]], np.uint8)
    params = table([(COMMIT, 0, 1, 0), (PREVIEW, 0, 1, 1)])
    out = router_topk.reference(params=params, logits=logits, top_k=3, allowed=allowed)
    assert out["ids"].tolist() == [[4, 3, 2], [2, 0, -1]]
    assert out["weights"][1, 2] == 0
    np.testing.assert_allclose(out["weights"].sum(axis=1), [1, 1])
    np.testing.assert_allclose(out["weights"][1, 0], 1 / (1 + np.exp(-2)))


def test_nan_logits_rank_last_and_spoil_only_their_rows_weights():
    logits = np.array([[np.nan, 1, 0, 2], [3, 2, 1, 0]])
    out = router_topk.reference(params=rows_of(2), logits=logits, top_k=3)
    assert out["ids"].tolist() == [[3, 1, 2], [0, 1, 2]]
    assert np.isfinite(out["weights"]).all()
    whole = router_topk.reference(params=rows_of(2), logits=logits, top_k=4)
    assert sorted(whole["ids"][0].tolist()) == [0, 1, 2, 3]
    assert np.isnan(whole["weights"][0]).all() and np.isfinite(whole["weights"][1]).all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 4))
def test_grouping_is_a_stable_sort_by_expert_with_the_strays_behind(seed, rows, top_k):
    rng = np.random.default_rng(seed)
    ids = rng.integers(-1, 7, (rows, top_k)).astype(np.int32)
    out = group_rows.reference(params=rows_of(rows), ids=ids, experts=6)
    flat = ids.reshape(-1)
    inside = (flat >= 0) & (flat < 6)
    order = np.argsort(np.where(inside, flat, 99), kind="stable")[: inside.sum()]
    np.testing.assert_array_equal(out["order"][: inside.sum()], order)
    assert (out["order"][inside.sum() :] == -1).all()
    counts = np.bincount(flat[inside], minlength=6)
    np.testing.assert_array_equal(out["offsets"], [0, *np.cumsum(counts)])


def test_each_pair_is_its_experts_network_of_its_row():
    rng = np.random.default_rng(0)
    e, d, f, top_k = 5, 64, 32, 2
    gate, up = (random_weight(rng, (e, f, d), "q4-32", zero_point=True) for _ in range(2))
    down = random_weight(rng, (e, d, f), "q8")
    x = random_rows(rng, 4, d)
    ids = np.array([[0, 4], [4, -1], [2, 0], [-1, 2]], np.int32)
    groups = group_rows.reference(params=rows_of(4), ids=ids, experts=e)
    y = expert_gemm.reference(
        params=rows_of(4), x=x, gate=gate, up=up, down=down, top_k=top_k, **groups
    )["y"]
    for f_, expert in enumerate(ids.reshape(-1).tolist()):
        if expert < 0:
            assert is_left(y[f_]).all()
            continue
        row = x[f_ // top_k].astype(np.float64)
        g, u = gate.values()[expert] @ row, up.values()[expert] @ row
        want = down.values()[expert] @ (g / (1 + np.exp(-g)) * u)
        np.testing.assert_allclose(y[f_], want, atol=1e-12)


def test_a_single_expert_without_groups_takes_every_row():
    rng = np.random.default_rng(1)
    gate, up = (random_weight(rng, (1, 8, 16)) for _ in range(2))
    down, x = random_weight(rng, (1, 16, 8)), random_rows(rng, 3, 16)
    y = expert_gemm.reference(params=rows_of(3), x=x, gate=gate, up=up, down=down)["y"]
    g, u = x @ gate.values()[0].T, x @ up.values()[0].T
    np.testing.assert_allclose(y, (g / (1 + np.exp(-g)) * u) @ down.values()[0].T, atol=1e-6)


def test_a_row_is_the_residual_its_experts_and_the_gated_shared_expert():
    y = np.array([[1.0, 2], [10, 20], [3, 4], [np.nan, np.nan]])
    out = combine.reference(
        params=rows_of(2),
        y=y,
        ids=np.array([[5, 0], [2, -1]], np.int32),
        weights=np.array([[0.25, 0.5], [1.0, 0.0]], np.float32),
        shared=np.array([[4.0, 8], [4, 8]]),
        shared_gate=np.array([[0.0], [np.log(3)]]),
        residual=np.array([[100.0, 200], [0, 0]]),
    )["h"]
    np.testing.assert_allclose(out, [[107.25, 214.5], [6, 10]], atol=1e-12)
