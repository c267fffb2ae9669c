"""What a segment leaves behind and gives out on cpu is the same however the rows are passed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clover_rt.backend import Device
from clover_rt.ops import (
    advance,
    attend,
    block_memory,
    block_scan,
    causal_conv,
    coreset,
    kv_append,
    rope,
)
from clover_rt.ops.common import random_rows, random_weight, table, vector
from clover_rt.ops.kv_append import random_pages
from clover_rt.spec import PAGE_ROWS, Case, Kind, OpSpec, Precision, StepLayout, TableClass
from clover_rt_conformance.harness import call

TOTAL = 150
START = 40
SPLITS = (1, 7, 32, 64)
Segments = list[tuple[Kind, int, int, int]]


def run_op(
    device: Device,
    spec: OpSpec,
    inputs: dict[str, Any],
    axes: dict[str, int],
    precision: Precision = Precision.EXACT,
    **attrs: Any,
) -> dict[str, np.ndarray]:
    case = Case(f"{spec.name}/segments", spec.name, axes, lambda _: inputs, attrs, TableClass.MIXED)
    return call(device, spec, case, precision, inputs)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


class Conv:
    """A convolution over one slot's rows, its ring and tape carried from call to call."""

    axes = {"C": 56, "J": 4, "slots": 2, "Q": 160}

    def __init__(self, device: Device) -> None:
        rng = np.random.default_rng(1)
        self.device = device
        self.u = random_rows(rng, TOTAL, 56)
        self.taps = {
            "taps": random_weight(rng, (56, 4), "bf16", 0.5),
            "right": random_weight(rng, (56, 3), "bf16", 0.5),
        }
        self.state = {"ring": random_rows(rng, 2, 3, 56), "tape_u": random_rows(rng, 2, 160, 56)}

    def run(self, segments: Segments, rows: slice) -> np.ndarray:
        inputs = {"params": table(segments), "u": self.u[rows], **self.taps, **self.state}
        axes = {"T": len(self.u[rows]), **self.axes}
        out = run_op(self.device, causal_conv.SPEC, inputs, axes)
        self.state = {name: out[name] for name in self.state}
        return out["y"]


@pytest.mark.parametrize("size", SPLITS)
def test_convolution_in_chunks_equals_whole(device: Device, size: int) -> None:
    whole, parts = Conv(device), Conv(device)
    expected = whole.run([(Kind.COMMIT, 1, TOTAL, 0)], slice(None))
    found = [
        parts.run([(Kind.COMMIT, 1, min(size, TOTAL - lo), lo)], slice(lo, lo + size))
        for lo in range(0, TOTAL, size)
    ]
    assert same(np.concatenate(found), expected)
    assert same(parts.state["ring"], whole.state["ring"])


def test_a_convolved_preview_behind_a_commit_equals_two_passes(device: Device) -> None:
    fused, apart = Conv(device), Conv(device)
    both = fused.run([(Kind.COMMIT, 1, 40, 0), (Kind.PREVIEW, 1, 32, 40)], slice(72))
    first = apart.run([(Kind.COMMIT, 1, 40, 0)], slice(40))
    second = apart.run([(Kind.PREVIEW, 1, 32, 40)], slice(40, 72))
    assert same(both, np.concatenate([first, second]))
    assert same(fused.state["ring"], apart.state["ring"])


class Memory:
    """A gated delta-rule memory of real head size, its state carried from call to call."""

    axes = {"G": 2, "H": 4, "K": 128, "V": 128, "slots": 2, "Q": 32}
    names = ("S", "tape_k", "tape_v", "tape_g", "tape_beta")

    def __init__(self, device: Device) -> None:
        self.device = device
        self.rows = block_scan.random_scan(np.random.default_rng(2), TOTAL, self.axes)
        self.state = {name: self.rows.pop(name) for name in self.names}

    def run(self, segments: Segments, rows: slice) -> np.ndarray:
        live = {name: value[rows] for name, value in self.rows.items()}
        axes = {"T": len(live["g"]), **self.axes}
        inputs = {"params": table(segments), **live, **self.state}
        out = run_op(self.device, block_scan.SPEC, inputs, axes)
        self.state = {name: out[name] for name in self.names}
        return out["o"]

    def advance(self, rows: int) -> None:
        width = 2 * self.axes["G"] * self.axes["K"] + self.axes["H"] * self.axes["V"]
        ring, tape_u = np.zeros((2, 3, width), np.float32), np.zeros((2, 32, width), np.float32)
        inputs = {"params": table([], advances=[(1, rows)]), "ring": ring, "tape_u": tape_u}
        axes = {**self.axes, "C": width, "J": 4}
        self.state["S"] = run_op(self.device, advance.SPEC, {**inputs, **self.state}, axes)["S"]


@pytest.mark.parametrize("size", SPLITS)
def test_a_scan_in_chunks_equals_whole(device: Device, size: int) -> None:
    whole, parts = Memory(device), Memory(device)
    expected = whole.run([(Kind.COMMIT, 1, TOTAL, 0)], slice(None))
    found = [
        parts.run([(Kind.COMMIT, 1, min(size, TOTAL - lo), lo)], slice(lo, lo + size))
        for lo in range(0, TOTAL, size)
    ]
    assert same(np.concatenate(found), expected)
    assert same(parts.state["S"], whole.state["S"])


@pytest.mark.parametrize("accepted", [0, 1, 5, 16])
def test_verify_then_advance_equals_commit(device: Device, accepted: int) -> None:
    judged, committed = Memory(device), Memory(device)
    before = judged.state["S"].copy()
    out = judged.run([(Kind.VERIFY, 1, 16, 0)], slice(16))
    assert same(judged.state["S"], before)
    judged.advance(accepted)
    expected = committed.run([(Kind.COMMIT, 1, accepted, 0)], slice(accepted)) if accepted else out
    assert same(out[:accepted], expected[:accepted])
    assert same(judged.state["S"], committed.state["S"])


@pytest.mark.parametrize("accepted", [0, 1, 2, 3, 9])
def test_verify_then_advance_leaves_the_ring_of_a_commit(device: Device, accepted: int) -> None:
    judged, committed = Conv(device), Conv(device)
    judged.run([(Kind.VERIFY, 1, 9, 0)], slice(9))
    committed.run([(Kind.COMMIT, 1, accepted, 0)], slice(accepted or 1)) if accepted else None
    rng = np.random.default_rng(0)
    axes = {"G": 1, "H": 1, "K": 8, "V": 8, "C": 56, "J": 4, "slots": 2, "Q": 160}
    scan = block_scan.random_scan(rng, 1, axes)
    tapes = {name: scan[name] for name in Memory.names}
    inputs = {"params": table([], advances=[(1, accepted)]), **tapes, **judged.state}
    ring = run_op(device, advance.SPEC, inputs, axes)["ring"]
    assert same(ring, committed.state["ring"])


class Attention:
    """One slot's pages, filled by kv_append and read by attend."""

    def __init__(self, device: Device, precision: Precision, each: int = 8) -> None:
        rng = np.random.default_rng(3)
        self.device, self.precision = device, precision
        self.axes = {"H": 2 * each, "G": 2, "K": 64, "slots": 2, "slot_pages": 4, "pages": 8}
        rows = START + TOTAL
        self.q = random_rows(rng, rows, 2 * each * 64) * 2
        self.k, self.v = random_rows(rng, rows, 128), random_rows(rng, rows, 128)
        self.pages = random_pages(rng, 2, 4)
        self.pools = {name: random_rows(rng, 8 * PAGE_ROWS, 128) for name in ("k_pool", "v_pool")}

    def run(self, kind: Kind, lo: int, n: int) -> np.ndarray:
        rows = slice(lo, lo + n)
        shared = {
            "params": table([(kind, 1, n, lo)]),
            "k": self.k[rows],
            "v": self.v[rows],
            "page_table": self.pages,
        }
        axes = {"T": n, **self.axes}
        out = run_op(self.device, kv_append.SPEC, {**shared, **self.pools}, axes, self.precision)
        self.pools = {name: out[name] for name in self.pools}
        inputs = {**shared, **self.pools, "q": self.q[rows]}
        heads = self.axes["H"]
        return run_op(self.device, attend.SPEC, inputs, axes, self.precision, heads=heads)["y"]


@pytest.mark.parametrize("precision", list(Precision), ids=lambda p: p.value)
@pytest.mark.parametrize("each", [2, 8])
@pytest.mark.parametrize("size", SPLITS)
def test_attention_in_chunks_equals_whole(
    device: Device, size: int, each: int, precision: Precision
) -> None:
    whole, parts = (Attention(device, precision, each) for _ in range(2))
    whole.run(Kind.COMMIT, 0, START)
    parts.run(Kind.COMMIT, 0, START)
    expected = whole.run(Kind.COMMIT, START, TOTAL)
    found = [
        parts.run(Kind.COMMIT, lo, min(size, START + TOTAL - lo))
        for lo in range(START, START + TOTAL, size)
    ]
    assert same(np.concatenate(found), expected)
    assert same(parts.pools["k_pool"], whole.pools["k_pool"])


def test_verified_rows_attend_as_committed_ones(device: Device) -> None:
    judged, committed = (Attention(device, Precision.EXACT) for _ in range(2))
    for one in (judged, committed):
        one.run(Kind.COMMIT, 0, 60)
    assert same(judged.run(Kind.VERIFY, 60, 16), committed.run(Kind.COMMIT, 60, 16))
    # the accepted rows are in the pages already: what follows reads them there
    assert same(judged.run(Kind.COMMIT, 70, 20), committed.run(Kind.COMMIT, 70, 20))


PASS = {"G": 2, "H": 4, "K": 32, "V": 32, "slots": 3, "Q": 1}


@pytest.mark.parametrize("width", [1, 8, 32, 33])
def test_a_previewed_block_does_not_see_the_rest_of_the_pass(device: Device, width: int) -> None:
    """The same block alone, and between segments of other slots: mixer, coreset, attention."""
    rng = np.random.default_rng(width)
    alone: Segments = [(Kind.PREVIEW, 1, width, 70)]
    crowd: Segments = [(Kind.COMMIT, 0, 5, 3), *alone, (Kind.PREVIEW, 2, 9, 11)]
    total, block = 5 + width + 9, slice(5, 5 + width)
    scan = block_scan.random_scan(rng, total, PASS)
    q, logits = random_rows(rng, total, 128), random_rows(rng, total, 16)
    k, v = random_rows(rng, total, 64), random_rows(rng, total, 64)
    pools = {name: random_rows(rng, 12 * PAGE_ROWS, 64) for name in ("k_pool", "v_pool")}
    pages = random_pages(rng, 3, 4)
    weights = {
        name: vector(rng.uniform(1, 2, 4)) for name in ("logit_scale", "history_bias", "history_c")
    }
    empty = np.zeros((total, 128), np.float32)

    def run(segments: Segments, rows: slice, n: int) -> list[np.ndarray]:
        params = table(segments)
        mixer = {"params": params, "qkv": scan["qkv"][rows], "g": scan["g"][rows], "S": scan["S"]}
        axes = {"T": n, **PASS}
        mixed = run_op(device, block_memory.SPEC, {**mixer, **weights, "o": empty[rows]}, axes)["o"]
        seen = {"params": params, "q": q[rows], "k": k[rows], "v": v[rows], "page_table": pages}
        attended = run_op(
            device,
            attend.SPEC,
            {**seen, **pools},
            {"T": n, "H": 4, "G": 2, "K": 32, "slots": 3, "slot_pages": 4, "pages": 12},
            heads=4,
        )["y"]
        layout = StepLayout()
        cut = run_op(
            device,
            coreset.SPEC,
            {"params": table(segments, layout), "logits": logits[rows]},
            {"T": n, "E": 16, "segments": layout.segments},
            top_k=4,
            top_p=0.6,
        )["allowed"]
        return [mixed, attended, cut]

    mixed, attended, cut = run(crowd, slice(None), total)
    expected = run(alone, block, width)
    assert same(mixed[block], expected[0])
    assert same(attended[block], expected[1])
    assert same(cut[1], expected[2][0])


@pytest.mark.parametrize("size", SPLITS)
def test_rotation_in_chunks_equals_whole(device: Device, size: int) -> None:
    x = random_rows(np.random.default_rng(4), TOTAL, 3 * 48)
    angles = rope.rope_angles(400, 7, 1e4)

    def run(lo: int, n: int) -> np.ndarray:
        params = table([(Kind.COMMIT, 0, n, START + lo)])
        inputs = {"params": params, "x": x[lo : lo + n], "angles": angles}
        axes = {"T": n, "H": 3, "K": 48, "r": 7, "P": 400}
        return run_op(device, rope.SPEC, inputs, axes, heads=3)["y"]

    parts = [run(lo, min(size, TOTAL - lo)) for lo in range(0, TOTAL, size)]
    assert same(np.concatenate(parts), run(0, TOTAL))
