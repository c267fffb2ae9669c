"""Gated DeltaNet: each reference against another formulation of the same mathematics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clover_rt.ops import advance, block_memory, block_scan, causal_conv, gated_norm, gdn_gates
from clover_rt.ops.common import is_left, random_rows, random_weight, table, vector
from clover_rt.ops.derived import run_case
from clover_rt.spec import Kind

AXES = {"G": 2, "H": 4, "K": 16, "V": 24, "slots": 3, "Q": 32}
G, H, K, V = (AXES[a] for a in "GHKV")
C = 2 * G * K + H * V


def scan_inputs(seed, rows, equal_keys=False):
    """Return operands of block_scan with float64 states, so that nothing is rounded."""
    rng = np.random.default_rng(seed)
    made = block_scan.random_scan(rng, rows, AXES, equal_keys)
    return {name: array.astype(np.float64) for name, array in made.items()}


def scan(operands, segments):
    """Run the reference on copies; return (o, operands after it)."""
    after = {name: array.copy() for name, array in operands.items()}
    o = block_scan.reference(params=table(segments), **after)["o"]
    return o, after


def chunk_form(operands, rows, memory):
    """Return (o, memory after) by the chunk form: one linear system, no recurrence.

    (I + A) R = diag(beta) V - diag(beta e^G) K S0 with A_ij = beta_i e^(G_i - G_j) k_i.k_j, j < i
    """
    q, k, v = block_scan.split_qkv(operands["qkv"][rows], H, K, V)
    q = q / np.sqrt((q**2).sum(-1, keepdims=True) + 1e-6) / np.sqrt(K)
    k = k / np.sqrt((k**2).sum(-1, keepdims=True) + 1e-6)
    n = len(v)
    out, after = np.empty((n, H, V)), np.empty_like(memory)
    for h in range(H):
        qh, kh, vh = q[:, h // (H // G)], k[:, h // (H // G)], v[:, h]
        beta, decay = operands["beta"][rows][:, h], np.cumsum(operands["g"][rows][:, h])
        lower = np.tri(n, dtype=bool)
        with np.errstate(over="ignore"):
            ratio = np.where(lower, np.exp(np.minimum(decay[:, None] - decay, 0)), 0)
        a = np.tril(beta[:, None] * ratio * (kh @ kh.T), -1)
        right = beta[:, None] * vh - (beta * np.exp(decay))[:, None] * (kh @ memory[h])
        r = np.linalg.solve(np.eye(n) + a, right)
        out[:, h] = np.exp(decay)[:, None] * (qh @ memory[h]) + (ratio * (qh @ kh.T)) @ r
        after[h] = np.exp(decay[-1]) * memory[h] + (np.exp(decay[-1] - decay)[:, None] * kh).T @ r
    return out.reshape(n, H * V), after


@pytest.mark.parametrize("equal_keys", [False, True], ids=["random", "equal-keys"])
@pytest.mark.parametrize("rows", [1, 2, 7, 32, 65])
def test_the_recurrence_equals_the_chunk_form(rows, equal_keys):
    operands = scan_inputs(rows, rows, equal_keys)
    o, after = scan(operands, [(Kind.COMMIT, 1, rows, 0)])
    want, memory = chunk_form(operands, slice(0, rows), operands["S"][1])
    np.testing.assert_allclose(o, want, atol=1e-9)
    np.testing.assert_allclose(after["S"][1], memory, atol=1e-9)
    for slot in (0, 2):
        np.testing.assert_array_equal(after["S"][slot], operands["S"][slot])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 99))
def test_any_split_of_the_rows_gives_the_same_result(parts, seed):
    rows = sum(parts)
    operands = scan_inputs(seed, rows)
    whole, after = scan(operands, [(Kind.COMMIT, 0, rows, 0)])
    at, outputs, memory = 0, [], operands["S"]
    for n in parts:
        part = {**operands, "S": memory}
        part |= {name: operands[name][at : at + n] for name in ("qkv", "g", "beta")}
        o, ended = scan(part, [(Kind.COMMIT, 0, n, at)])
        outputs.append(o)
        memory, at = ended["S"], at + n
    np.testing.assert_array_equal(np.concatenate(outputs), whole)
    np.testing.assert_array_equal(memory, after["S"])


def test_one_step_by_hand():
    # k = q = e_0 (unit by construction), S = 0 but for S[0, 0] = 2, decay 1/2, beta 1/4, v_0 = 3
    operands = {name: np.zeros_like(a) for name, a in scan_inputs(0, 1).items()}
    operands["qkv"][0, [0, K, G * K, G * K + K]] = 1e6
    operands["qkv"][0, 2 * G * K] = 3
    operands["S"][0, 0, 0, 0] = 2
    operands["g"][0, 0], operands["beta"][0, 0] = np.log(0.5), 0.25
    o, after = scan(operands, [(Kind.COMMIT, 0, 1, 0)])
    # S = 1; r = 1; S = 1 + 0.25 (3 - 1) = 1.5; o = 1.5 / sqrt(16)
    assert after["S"][0, 0, 0, 0] == pytest.approx(1.5)
    assert o[0, 0] == pytest.approx(1.5 / 4)


def test_a_verify_reads_as_a_commit_does_leaves_the_memory_and_writes_the_tape():
    operands = scan_inputs(3, 8)
    want, _ = scan(operands, [(Kind.COMMIT, 1, 8, 5)])
    got, after = scan(operands, [(Kind.VERIFY, 1, 8, 5)])
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(after["S"], operands["S"])
    qkv = operands["qkv"]
    np.testing.assert_array_equal(after["tape_k"][1, :8], qkv[:, G * K : 2 * G * K])
    np.testing.assert_array_equal(after["tape_v"][1, :8], qkv[:, 2 * G * K :])
    np.testing.assert_array_equal(after["tape_g"][1, :8], operands["g"])
    np.testing.assert_array_equal(after["tape_beta"][1, :8], operands["beta"])
    for name in ("tape_k", "tape_v", "tape_g", "tape_beta"):
        np.testing.assert_array_equal(after[name][1, 8:], operands[name][1, 8:])
        np.testing.assert_array_equal(after[name][[0, 2]], operands[name][[0, 2]])


def test_preview_rows_of_a_scan_are_left_alone():
    operands = scan_inputs(4, 9)
    o, _ = scan(operands, [(Kind.COMMIT, 0, 3, 0), (Kind.PREVIEW, 0, 4, 3), (Kind.VERIFY, 1, 2, 0)])
    assert is_left(o).all(axis=1).tolist() == [False] * 3 + [True] * 4 + [False] * 2


@pytest.mark.parametrize("kept", [0, 1, 5, 8])
def test_an_advance_over_a_tape_is_a_commit_of_its_first_rows(kept):
    rng = np.random.default_rng(7)
    operands, ring = scan_inputs(7, 8), random_rows(rng, 3, 3, C).astype(np.float64)
    u = random_rows(rng, 8, C).astype(np.float64)
    taps = random_weight(rng, (C, 4))
    tape_u = np.zeros((3, 32, C))
    verify = table([(Kind.VERIFY, 1, 8, 5)])
    after = {name: array.copy() for name, array in operands.items()}
    block_scan.reference(params=verify, **after)
    causal_conv.reference(params=verify, u=u, taps=taps, ring=ring, tape_u=tape_u)
    moved, memory = ring.copy(), after["S"].copy()
    tapes = {name: after[name] for name in ("tape_k", "tape_v", "tape_g", "tape_beta")}
    advance.reference(
        params=table([], advances=[(1, kept)]), ring=moved, S=memory, tape_u=tape_u, **tapes
    )
    committed = ring.copy()
    if kept:
        commit = table([(Kind.COMMIT, 1, kept, 5)])
        block_scan.reference(params=commit, **operands)
        causal_conv.reference(params=commit, u=u, taps=taps, ring=committed, tape_u=tape_u)
    np.testing.assert_array_equal(memory, operands["S"])
    np.testing.assert_array_equal(moved, committed)


def convolved(u, ring, taps, right=None):
    """Return the convolution by np.convolve, channel by channel, before silu."""
    n, width = len(u), taps.shape[1]
    ext = np.concatenate([ring, u])
    out = np.empty(u.shape)
    for c in range(u.shape[1]):
        out[:, c] = np.convolve(ext[:, c], taps[c, ::-1], "valid")
        if right is not None:
            padded = np.concatenate([u[1:, c], np.zeros(width - 1)])
            out[:, c] += np.convolve(padded, right[c, ::-1], "valid")[:n]
    return out


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("kind", list(Kind), ids=lambda k: k.name)
def test_the_convolution_is_numpys_for_each_channel(kind, rows):
    rng = np.random.default_rng(rows)
    u, ring = random_rows(rng, rows, 10).astype(float), random_rows(rng, 3, 3, 10).astype(float)
    taps, right = random_weight(rng, (10, 4), "f32", 0.5), random_weight(rng, (10, 3), "f32", 0.5)
    tape, before = np.zeros((3, 16, 10)), ring.copy()
    y = causal_conv.reference(
        params=table([(kind, 2, rows, 0)]), u=u, taps=taps, ring=ring, tape_u=tape, right=right
    )["y"]
    linear = convolved(
        u, before[2], taps.values(), right.values() if kind is Kind.PREVIEW else None
    )
    np.testing.assert_allclose(y, linear / (1 + np.exp(-linear)), atol=1e-12)
    want = before.copy()
    if kind is Kind.COMMIT:
        want[2] = np.concatenate([before[2], u])[-3:]
    np.testing.assert_array_equal(ring, want)
    assert tape[2, :rows].any() == (kind is Kind.VERIFY)


def test_a_preview_behind_a_commit_takes_its_ring_from_the_commits_rows():
    rng = np.random.default_rng(5)
    u, ring = random_rows(rng, 6, 8).astype(float), random_rows(rng, 3, 3, 8).astype(float)
    taps, right = random_weight(rng, (8, 4), "f32"), random_weight(rng, (8, 3), "f32")
    before = ring.copy()
    params = table([(Kind.COMMIT, 1, 2, 0), (Kind.PREVIEW, 1, 4, 2)])
    tape = np.zeros((3, 16, 8))
    y = causal_conv.reference(params=params, u=u, taps=taps, ring=ring, tape_u=tape, right=right)
    moved = np.concatenate([before[1], u[:2]])[-3:]
    linear = convolved(u[2:], moved, taps.values(), right.values())
    np.testing.assert_allclose(y["y"][2:], linear / (1 + np.exp(-linear)), atol=1e-12)
    np.testing.assert_array_equal(ring[1], moved)


@pytest.mark.parametrize("rows", [1, 8, 32, 33])
def test_block_memory_is_a_softmax_over_the_block_and_one_history_slot(rows):
    rng = np.random.default_rng(rows)
    made = block_scan.random_scan(rng, rows, AXES)
    scale, bias, slope = (rng.uniform(1, 4, H) for _ in range(3))
    o = np.zeros((rows, H * V))
    block_memory.reference(
        params=table([(Kind.PREVIEW, 1, rows, 5)]),
        qkv=made["qkv"],
        g=made["g"],
        S=made["S"],
        logit_scale=vector(scale),
        history_bias=vector(bias),
        history_c=vector(slope),
        o=o,
    )
    qkv = made["qkv"].astype(np.float64)
    for h in range(H):
        group = h // (H // G)
        at = slice(group * K, (group + 1) * K)
        q, k = qkv[:, : G * K][:, at], qkv[:, G * K : 2 * G * K][:, at]
        v = qkv[:, 2 * G * K :].reshape(rows, H, V)[:, h]
        for t in range(rows):
            q_unit = q[t] / np.sqrt(q[t] @ q[t] + 1e-6)
            weights = [
                np.exp(np.float32(scale[h]) * (q_unit @ k[s]) / np.sqrt(k[s] @ k[s] + 1e-6))
                for s in range(rows)
            ]
            history = np.exp(np.float32(bias[h]) + np.float32(slope[h]) * np.log(rows / 32))
            total = sum(weights) + history
            want = sum(w / total * v[s] for s, w in enumerate(weights))
            read = made["S"][1, h].astype(np.float64).T @ (q_unit / np.sqrt(K))
            want = want + history / total * np.exp(made["g"][t, h].astype(np.float64)) * read
            np.testing.assert_allclose(o[t].reshape(H, V)[h], want, atol=1e-6)


def test_block_memory_fills_preview_rows_alone():
    rng = np.random.default_rng(0)
    made = block_scan.random_scan(rng, 6, AXES)
    o = np.full((6, H * V), 7.0)
    ones = vector(np.ones(H))
    block_memory.reference(
        params=table([(Kind.COMMIT, 0, 2, 0), (Kind.PREVIEW, 0, 3, 2), (Kind.VERIFY, 1, 1, 0)]),
        qkv=made["qkv"],
        g=made["g"],
        S=made["S"],
        logit_scale=ones,
        history_bias=ones,
        history_c=ones,
        o=o,
    )
    assert (o[[0, 1, 5]] == 7).all()
    assert not (o[2:5] == 7).any()


def test_gates_by_hand():
    a, b = np.array([[0.0, 1.0], [-200.0, 200.0]]), np.array([[0.0, np.log(3)], [-800.0, 800.0]])
    out = gdn_gates.reference(
        params=table([(Kind.COMMIT, 0, 2, 0)]),
        a=a,
        b=b,
        A_log=vector(np.log([2.0, 0.5])),
        dt_bias=vector(np.array([0.0, -1.0])),
    )
    np.testing.assert_allclose(out["g"][0], [-2 * np.log(2), -0.5 * np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(out["g"][1], [0, -0.5 * 199], atol=1e-5)
    np.testing.assert_allclose(out["beta"], [[0.5, 0.75], [0, 1]], atol=1e-12)


def test_the_norm_comes_before_the_gate_and_runs_over_one_head():
    o = np.array([[3.0, 4.0, 0.0, 2.0]])
    z = np.array([[1.0, -1.0, 2.0, 0.0]])
    w = vector(np.array([1.0, 10.0]))
    y = gated_norm.reference(params=table([(Kind.COMMIT, 0, 1, 0)]), o=o, z=z, w=w, eps=1e-6)["y"]
    silu = z / (1 + np.exp(-z))
    first, second = np.sqrt(12.5), np.sqrt(2)
    want = np.array([[3 / first, 40 / first, 0, 20 / second]]) * silu
    np.testing.assert_allclose(y, want, rtol=1e-6)


def test_a_case_runs_with_states_in_float64():
    case = next(iter(block_scan.cases()))
    out = run_case(block_scan.SPEC, case, case.inputs(), {"block_scan": block_scan.SPEC})
    assert out["S"].dtype == np.float64
