"""Attention, norms and products: each reference against another formulation."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from clover_rt.ops import (
    attend,
    begin,
    embed_rows,
    kv_append,
    linear,
    output_gate,
    rms_norm,
    rope,
)
from clover_rt.ops.common import random_rows, random_weight, table, vector
from clover_rt.spec import PAGE_ROWS, Kind

COMMIT, PREVIEW, VERIFY = Kind.COMMIT, Kind.PREVIEW, Kind.VERIFY


def rows_of(n):
    return table([(COMMIT, 0, n, 0)])


def test_rope_is_a_product_of_complex_numbers():
    rng = np.random.default_rng(0)
    heads, width, half, theta = 3, 16, 5, 1e4
    x = random_rows(rng, 7, heads * width).astype(np.float64)
    angles = rope.rope_angles(64, half, theta)
    params = table([(COMMIT, 0, 4, 20), (PREVIEW, 1, 3, 9)])
    y = rope.reference(params=params, x=x, angles=angles, heads=heads)["y"]
    position = np.array([20, 21, 22, 23, 9, 10, 11])
    turn = np.exp(1j * position[:, None] * theta ** (-2 * np.arange(half) / (2 * half)))
    rows, out = x.reshape(7, heads, width), y.reshape(7, heads, width)
    z = (rows[..., :half] + 1j * rows[..., half : 2 * half]) * turn[:, None, :]
    # cos and sin are float32
    np.testing.assert_allclose(out[..., :half], z.real, atol=1e-6)
    np.testing.assert_allclose(out[..., half : 2 * half], z.imag, atol=1e-6)
    np.testing.assert_array_equal(out[..., 2 * half :], rows[..., 2 * half :])


def test_angles_at_the_end_of_a_long_context_are_those_of_float64():
    angles = rope.rope_angles(131072, 32, 1e7)
    assert angles.dtype == np.float32 and angles.shape == (131072, 32, 2)
    want = np.cos(131071.0), np.sin(131071.0)
    np.testing.assert_allclose(angles[-1, 0], want, atol=1e-7)


HEADS, GROUPS, WIDTH = 4, 2, 8
PAGES = np.array([[3, 0, 5], [1, 4, 2]], np.int32)


def cache(seed):
    rng = np.random.default_rng(seed)
    shape = (6 * PAGE_ROWS, GROUPS * WIDTH)
    return {name: random_rows(rng, *shape).astype(np.float64) for name in ("k_pool", "v_pool")}


def dense(q, k, v, mask):
    """Return masked softmax attention: q [n, H, w], k and v [m, G, w], mask bool [n, m]."""
    out = np.empty(q.shape)
    for h in range(HEADS):
        g = h // (HEADS // GROUPS)
        logits = np.where(mask, q[:, h] @ k[:, g].T / np.sqrt(WIDTH), -np.inf)
        share = np.exp(logits - logits.max(axis=1, keepdims=True))
        out[:, h] = share / share.sum(axis=1, keepdims=True) @ v[:, g]
    return out.reshape(len(q), HEADS * WIDTH)


def places(slot, count):
    at = np.arange(count)
    return PAGES[slot, at // PAGE_ROWS] * PAGE_ROWS + at % PAGE_ROWS


@pytest.mark.parametrize("kind", list(Kind), ids=lambda k: k.name)
@pytest.mark.parametrize("position", [0, 1, 63, 64, 130])
def test_attention_is_a_masked_softmax_over_pages_and_own_rows(kind, position):
    n, rng, pools = 7, np.random.default_rng(position), cache(1)
    q = random_rows(rng, n, HEADS * WIDTH).astype(np.float64)
    k, v = (random_rows(rng, n, GROUPS * WIDTH).astype(np.float64) for _ in range(2))
    y = attend.reference(
        params=table([(kind, 1, n, position)]),
        q=q,
        k=k,
        v=v,
        page_table=PAGES,
        heads=HEADS,
        **pools,
    )["y"]
    past = places(1, position)
    keys = np.concatenate([pools["k_pool"][past], k]).reshape(-1, GROUPS, WIDTH)
    values = np.concatenate([pools["v_pool"][past], v]).reshape(-1, GROUPS, WIDTH)
    own = np.ones((n, n), bool) if kind is PREVIEW else np.tri(n, dtype=bool)
    mask = np.concatenate([np.ones((n, position), bool), own], axis=1)
    want = dense(q.reshape(n, HEADS, WIDTH), keys, values, mask)
    np.testing.assert_allclose(y, want, atol=1e-12)


def test_own_rows_are_rounded_to_the_caches_type_first():
    rng = np.random.default_rng(2)
    q = random_rows(rng, 3, HEADS * WIDTH)
    k, v = (random_rows(rng, 3, GROUPS * WIDTH) for _ in range(2))
    empty = np.zeros((PAGE_ROWS, GROUPS * WIDTH), ml_dtypes.bfloat16)
    rounded = [a.astype(ml_dtypes.bfloat16).astype(np.float32) for a in (k, v)]
    plain = np.zeros(empty.shape, np.float32)
    common = dict(params=rows_of(3), q=q, page_table=PAGES, heads=HEADS)
    got = attend.reference(k=k, v=v, k_pool=empty, v_pool=empty, **common)["y"]
    want = attend.reference(k=rounded[0], v=rounded[1], k_pool=plain, v_pool=plain, **common)["y"]
    np.testing.assert_array_equal(got, want)


def test_appended_rows_stand_where_the_page_table_says_and_previews_nowhere():
    rng, pools = np.random.default_rng(3), cache(4)
    k, v = (random_rows(rng, 9, GROUPS * WIDTH) for _ in range(2))
    before = {name: pool.copy() for name, pool in pools.items()}
    params = table([(COMMIT, 0, 4, 62), (PREVIEW, 0, 3, 66), (VERIFY, 1, 2, 0)])
    kv_append.reference(params=params, k=k, v=v, page_table=PAGES, **pools)
    # slot 0: places 62, 63 in page 3, then 64, 65 in page 0; slot 1: places 0, 1 in page 1
    rows = [3 * 64 + 62, 3 * 64 + 63, 0, 1, 64, 65]
    for name, source in (("k_pool", k), ("v_pool", v)):
        want = before[name]
        want[rows] = source[[0, 1, 2, 3, 7, 8]]
        np.testing.assert_array_equal(pools[name], want)


def test_appending_and_attending_equals_attending_in_one_segment():
    rng = np.random.default_rng(5)
    q = random_rows(rng, 6, HEADS * WIDTH)
    k, v = (random_rows(rng, 6, GROUPS * WIDTH) for _ in range(2))
    pools = {n: a.astype(np.float32) for n, a in cache(6).items()}
    common = dict(page_table=PAGES, heads=HEADS)
    whole = attend.reference(params=table([(COMMIT, 0, 6, 0)]), q=q, k=k, v=v, **pools, **common)
    parts = []
    for at, n in ((0, 4), (4, 2)):
        params, rows = table([(COMMIT, 0, n, at)]), slice(at, at + n)
        own = {"k": k[rows], "v": v[rows]}
        kv_append.reference(params=params, page_table=PAGES, **own, **pools)
        parts.append(attend.reference(params=params, q=q[rows], **own, **pools, **common)["y"])
    np.testing.assert_allclose(np.concatenate(parts), whole["y"], atol=1e-12)


def test_the_output_gate_is_a_sigmoid():
    o, gate = np.array([[2.0, -4.0, 1.0]]), np.array([[0.0, np.log(3), -1e4]])
    y = output_gate.reference(params=rows_of(1), o=o, gate=gate)["y"]
    np.testing.assert_allclose(y, [[1.0, -3.0, 0.0]], atol=1e-12)


def test_a_norm_divides_by_the_root_mean_square_of_its_group():
    x = np.array([[3.0, 4.0, 6.0, 8.0], [0.0, 0.0, 1e-20, 0.0]])
    w = vector(np.array([0.0, 1.0]))
    y = rms_norm.reference(params=rows_of(2), x=x, w=w, eps=0.0 + 1e-6, offset=1.0)["y"]
    np.testing.assert_allclose(y[0, :2], y[0, 2:], rtol=1e-6)
    np.testing.assert_allclose(y[0, :2], [3 / np.sqrt(12.5), 8 / np.sqrt(12.5)], rtol=1e-6)
    assert (y[1, :2] == 0).all()
    np.testing.assert_allclose(y[1, 2], 1e-20 / 1e-3, rtol=1e-6)
    plain = rms_norm.reference(params=rows_of(2), x=x, w=w, eps=1e-6, offset=0.0)["y"]
    assert (plain[:, 0] == 0).all()


@pytest.mark.parametrize("fmt", linear.FORMATS)
def test_a_product_is_a_sum_over_columns_plus_the_residual(fmt):
    rng = np.random.default_rng(0)
    w = random_weight(rng, (5, 128), fmt, zero_point=True)
    x, residual = random_rows(rng, 3, 128), random_rows(rng, 3, 5)
    y = linear.reference(params=rows_of(2), x=x, w=w, residual=residual)["y"]
    values = w.values()
    for t in range(2):
        for n in range(5):
            want = sum(float(x[t, k]) * values[n, k] for k in range(128)) + residual[t, n]
            assert y[t, n] == pytest.approx(want, abs=1e-12)
    assert y.shape == (2, 5), "rows past the table are not computed"


def test_an_id_outside_the_vocabulary_embeds_as_zeros():
    embed = random_weight(np.random.default_rng(0), (4, 32), "q4-32")
    params = table([(COMMIT, 0, 4, 0)], tokens=np.array([3, -1, 4, 0]))
    h = embed_rows.reference(params=params, embed=embed)["h"]
    np.testing.assert_array_equal(h[[0, 3]], embed.values()[[3, 0]])
    assert not h[1:3].any()


def test_deltas_are_applied_in_order_and_add_up():
    pages, counts = np.zeros((2, 3), np.int32), np.zeros((2, 5), np.int32)
    params = table(
        [],
        page_deltas=[(1, 2, 9), (0, 0, 4), (1, 2, 7)],
        count_deltas=[(0, 4, 1), (0, 4, 1), (1, 0, 5), (1, 0, -2)],
    )
    begin.reference(params=params, page_table=pages, counts=counts)
    assert pages.tolist() == [[4, 0, 0], [0, 0, 7]]
    assert counts.tolist() == [[0, 0, 0, 0, 2], [3, 0, 0, 0, 0]]
