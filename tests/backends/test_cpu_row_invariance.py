"""A row's bits on cpu depend on the row alone: not on the others, on how many, or on its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from clover_rt.backend import Device
from clover_rt.ops import (
    combine,
    confidence_topk,
    expert_gemm,
    gated_norm,
    gdn_gates,
    group_rows,
    linear,
    output_gate,
    rms_norm,
    router_topk,
)
from clover_rt.ops.common import plain_table, random_rows, random_weight, table, vector
from clover_rt.ops.controls import pack_mask
from clover_rt.spec import Case, Controls, Kind, OpSpec, Precision, Wanted, picks_shape
from clover_rt_conformance.harness import call
from clover_rt_cpu import products
from clover_rt_cpu.device import CpuDevice

ROWS = 71
Run = Callable[[np.ndarray], np.ndarray]


def run_op(
    device: Device, spec: OpSpec, inputs: dict[str, Any], axes: dict[str, int], **attrs: Any
) -> dict[str, np.ndarray]:
    case = Case(f"{spec.name}/rows", spec.name, axes, lambda _: inputs, attrs)
    return call(device, spec, case, Precision.EXACT, inputs)


def assert_rows_stand_alone(run: Run) -> None:
    """Run rows in splits, moved and alone, and compare their bits with one whole call."""
    every = np.arange(ROWS)
    whole = run(every)
    for size in (1, 7, 32, 64):
        parts = [run(every[lo : lo + size]) for lo in range(0, ROWS, size)]
        assert np.concatenate(parts).tobytes() == whole.tobytes(), f"splits of {size} rows"
    for shift in (1, 5, 34):
        moved = run(np.roll(every, shift))
        assert np.roll(moved, -shift, axis=0).tobytes() == whole.tobytes(), f"moved by {shift}"
    crowded = run(np.repeat(every[:3], 9))
    assert crowded[::9].tobytes() == whole[:3].tobytes(), "rows repeated"


LINEARS = [
    (64, 96, "bf16"),
    (24, 7, "f32"),
    (192, 257, "f32"),
    (512, 130, "bf16"),
    (2048, 1, "bf16"),
    (2048, 200, "q4-64"),
    (4096, 72, "f16"),
    (8192, 33, "q8"),
]


@pytest.mark.parametrize(("k", "n", "fmt"), LINEARS)
def test_linear_gives_a_row_the_same_bits(device: Device, k: int, n: int, fmt: str) -> None:
    rng = np.random.default_rng(k + n)
    x, w = random_rows(rng, ROWS, k), random_weight(rng, (n, k), fmt)
    residual = random_rows(rng, ROWS, n)

    def run(rows: np.ndarray) -> np.ndarray:
        inputs = {
            "params": plain_table(len(rows)),
            "x": x[rows],
            "w": w,
            "residual": residual[rows],
        }
        return run_op(device, linear.SPEC, inputs, {"T": len(rows), "N": n, "K": k})["y"]

    assert_rows_stand_alone(run)


@pytest.fixture
def plain_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which no shape of a product is steady."""
    monkeypatch.setattr(products, "_agreeing", lambda counts, stacks, x: [])
    products.tiles_for.cache_clear()
    products.row_shapes.cache_clear()
    yield
    products.tiles_for.cache_clear()
    products.row_shapes.cache_clear()


@pytest.mark.usefixtures("plain_loop")
def test_without_steady_products_a_plain_loop_gives_the_same_bits(device: Device) -> None:
    assert products.tiles_for(192, 96).plain
    assert products.row_shapes(32, 64) == (1,)
    test_linear_gives_a_row_the_same_bits(device, 192, 96, "bf16")


def test_shapes_that_disagree_are_dropped() -> None:
    """A product that depends on its place, or on its neighbours, is never kept."""
    rng = np.random.default_rng(0)
    x, w = random_rows(rng, 40, 64), random_rows(rng, 64, 64)
    good = w.T[None]
    assert products._agreeing([4, 8], [good, good], x) == [4, 8]
    other = (w * np.float32(1.0000002)).T[None]
    assert products._agreeing([4, 8, 16], [good, other, good], x) == [4, 16]


@pytest.mark.parametrize("width", [24, 64, 2048])
def test_rms_norm_gives_a_row_the_same_bits(device: Device, width: int) -> None:
    rng = np.random.default_rng(width)
    x, w = random_rows(rng, ROWS, 3 * width), random_weight(rng, (width,), "f32", 0.1)

    def run(rows: np.ndarray) -> np.ndarray:
        inputs = {"params": plain_table(len(rows)), "x": x[rows], "w": w}
        axes = {"T": len(rows), "G": 3, "K": width}
        return run_op(device, rms_norm.SPEC, inputs, axes, eps=1e-6, offset=1.0)["y"]

    assert_rows_stand_alone(run)


@pytest.mark.parametrize("width", [24, 128])
def test_gated_norm_gives_a_row_the_same_bits(device: Device, width: int) -> None:
    rng = np.random.default_rng(width)
    o, z = (random_rows(rng, ROWS, 3 * width) * 3 for _ in range(2))
    w = random_weight(rng, (width,), "f32", 1.0)

    def run(rows: np.ndarray) -> np.ndarray:
        inputs = {"params": plain_table(len(rows)), "o": o[rows], "z": z[rows], "w": w}
        axes = {"T": len(rows), "H": 3, "V": width}
        return run_op(device, gated_norm.SPEC, inputs, axes, eps=1e-6)["y"]

    assert_rows_stand_alone(run)


@pytest.mark.parametrize("width", [1, 17, 129])
def test_output_gate_gives_a_row_the_same_bits(device: Device, width: int) -> None:
    rng = np.random.default_rng(width)
    o, gate = (random_rows(rng, ROWS, width) * 5 for _ in range(2))

    def run(rows: np.ndarray) -> np.ndarray:
        inputs = {"params": plain_table(len(rows)), "o": o[rows], "gate": gate[rows]}
        return run_op(device, output_gate.SPEC, inputs, {"T": len(rows), "N": width})["y"]

    assert_rows_stand_alone(run)


@pytest.mark.parametrize("output", ["g", "beta"])
def test_gdn_gates_give_a_row_the_same_bits(device: Device, output: str) -> None:
    rng = np.random.default_rng(5)
    a, b = (random_rows(rng, ROWS, 5) * 4 for _ in range(2))
    rate, bias = vector(rng.uniform(-3, 2, 5)), vector(rng.uniform(-4, 2, 5))

    def run(rows: np.ndarray) -> np.ndarray:
        inputs = {
            "params": plain_table(len(rows)),
            "a": a[rows],
            "b": b[rows],
            "A_log": rate,
            "dt_bias": bias,
        }
        return run_op(device, gdn_gates.SPEC, inputs, {"T": len(rows), "H": 5})[output]

    assert_rows_stand_alone(run)


@pytest.mark.parametrize("experts", [16, 256])
def test_router_topk_gives_a_row_the_same_bits(device: Device, experts: int) -> None:
    logits = random_rows(np.random.default_rng(experts), ROWS, experts)

    def run(rows: np.ndarray) -> np.ndarray:
        inputs = {"params": plain_table(len(rows)), "logits": logits[rows]}
        axes = {"T": len(rows), "E": experts, "R": 4, "segments": 64}
        out = run_op(device, router_topk.SPEC, inputs, axes, top_k=4)
        return np.concatenate([out["ids"], out["weights"].view(np.int32)], axis=1)

    assert_rows_stand_alone(run)


@pytest.mark.parametrize("fmt", ["bf16", "q4-32"])
@pytest.mark.parametrize(("d", "f"), [(128, 64), (512, 256)])
def test_expert_gemm_gives_a_row_the_same_bits(device: Device, d: int, f: int, fmt: str) -> None:
    rng = np.random.default_rng(d)
    experts, top_k = 6, 2
    x = random_rows(rng, ROWS, d)
    ids = np.stack([rng.permutation(experts)[:top_k] for _ in range(ROWS)]).astype(np.int32)
    weights = {
        "gate": random_weight(rng, (experts, f, d), fmt),
        "up": random_weight(rng, (experts, f, d), fmt),
        "down": random_weight(rng, (experts, d, f), fmt),
    }

    def run(rows: np.ndarray) -> np.ndarray:
        params = plain_table(len(rows))
        axes = {"T": len(rows), "E": experts, "R": top_k, "D": d, "F": f}
        groups = run_op(
            device, group_rows.SPEC, {"params": params, "ids": ids[rows]}, axes, experts=experts
        )
        index = {name: groups[name] for name in ("order", "offsets")}
        inputs = {"params": params, "x": x[rows], **index, **weights}
        out = run_op(device, expert_gemm.SPEC, inputs, axes, top_k=top_k)["y"]
        return out.reshape(len(rows), top_k * d)

    assert_rows_stand_alone(run)


def test_the_shared_expert_gives_a_row_the_same_bits(device: Device) -> None:
    rng = np.random.default_rng(3)
    x = random_rows(rng, ROWS, 64)
    weights = {
        "gate": random_weight(rng, (1, 192, 64)),
        "up": random_weight(rng, (1, 192, 64)),
        "down": random_weight(rng, (1, 64, 192)),
    }

    def run(rows: np.ndarray) -> np.ndarray:
        inputs = {"params": plain_table(len(rows)), "x": x[rows], **weights}
        axes = {"T": len(rows), "E": 1, "R": 1, "D": 64, "F": 192}
        return run_op(device, expert_gemm.SPEC, inputs, axes, top_k=1)["y"]

    assert_rows_stand_alone(run)


def test_combine_gives_a_row_the_same_bits(device: Device) -> None:
    rng = np.random.default_rng(9)
    ids = np.stack([rng.permutation(16)[:4] for _ in range(ROWS)]).astype(np.int32)
    ids[::5, 2] = -1
    y, weights = random_rows(rng, ROWS, 4, 33), rng.random((ROWS, 4)).astype(np.float32)
    shared, residual = (random_rows(rng, ROWS, 33) for _ in range(2))
    gate = random_rows(rng, ROWS, 1)

    def run(rows: np.ndarray) -> np.ndarray:
        inputs = {
            "params": plain_table(len(rows)),
            "y": y[rows].reshape(-1, 33),
            "ids": ids[rows],
            "weights": weights[rows],
            "shared": shared[rows],
            "shared_gate": gate[rows],
            "residual": residual[rows],
        }
        axes = {"T": len(rows), "R": 4, "D": 33}
        return run_op(device, combine.SPEC, inputs, axes)["h"]

    assert_rows_stand_alone(run)


def test_picks_of_a_row_have_the_same_bits(device: Device) -> None:
    rng = np.random.default_rng(11)
    vocab, top = 1003, 8
    h, head = random_rows(rng, ROWS, 64), random_weight(rng, (vocab, 64))
    counts = (rng.integers(0, 8, (1, vocab)) // 5).astype(np.int32)
    suppressed = pack_mask(rng.random(vocab) < 0.1)[None]
    controls = Controls(0.2, 0.3, 1.1, 6.0, 4, 8, 9.0, 2, 5, think_end=70, stops=(75, 76))

    def run(rows: np.ndarray) -> np.ndarray:
        n = len(rows)
        params = table(
            [(Kind.COMMIT, 0, n, 0)],
            wanted=[Wanted(i, int(row) + 1, row % 2 == 0) for i, row in enumerate(rows)],
            controls=[controls],
        )
        inputs = {
            "params": params,
            "h": h[rows],
            "head": head,
            "counts": counts,
            "suppressed": suppressed,
        }
        axes = {"T": n, "W": n, "D": 64, "vocab": vocab, "slots": 1, "top": top}
        out = run_op(device, confidence_topk.SPEC, inputs, axes, top=top)["picks"]
        assert out.shape == picks_shape(n, top)
        return out[1:]

    assert_rows_stand_alone(run)


def test_the_number_of_workers_changes_no_bit() -> None:
    """Experts and spans are dealt out as workers come; what each computes does not change."""
    rng = np.random.default_rng(2)
    x, w = random_rows(rng, 33, 512), random_weight(rng, (4096, 512))
    inputs = {"params": plain_table(33), "x": x, "w": w}
    found = []
    for count in (1, 3):
        opened = CpuDevice(workers=count)
        axes = {"T": 33, "N": 4096, "K": 512}
        found.append(run_op(opened, linear.SPEC, inputs, axes)["y"].tobytes())
        opened.close()
    assert found[0] == found[1]
