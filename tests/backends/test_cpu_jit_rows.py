"""Generated products: a row's bits are the same in company, and on every instruction set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from clover_rt.ops import attend, block_memory, confidence_topk, expert_gemm, group_rows, linear
from clover_rt.ops.common import plain_table, random_rows, random_weight, table
from clover_rt.spec import PAGE_ROWS, Case, Kind, OpSpec, Precision
from clover_rt_conformance.harness import call
from clover_rt_cpu.device import CpuDevice
from clover_rt_cpu.jit.attend_code import QUERIES
from clover_rt_cpu.jit.isa import supported

ROWS = 23
FORMATS = ("f32", "f16", "bf16", "q8", "q4-32", "q4-64", "q4-128")
# generating code for every processor takes its time: in the full lane
pytestmark = pytest.mark.full
SETS = supported()
Run = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(scope="module", params=SETS)
def generated(request: pytest.FixtureRequest):
    opened = CpuDevice(isa=request.param)
    yield opened
    opened.close()


def run_op(
    device: CpuDevice,
    spec: OpSpec,
    inputs: dict[str, Any],
    axes: dict[str, int],
    precision: Precision,
    **attrs: Any,
) -> dict[str, np.ndarray]:
    case = Case(f"{spec.name}/rows", spec.name, axes, lambda _: inputs, attrs)
    return call(device, spec, case, precision, inputs)


def assert_company_changes_no_bit(run: Run) -> None:
    """Run rows in every number from 1 to 9, so that every tile is used, moved, and all at once."""
    every = np.arange(ROWS)
    whole = run(every)
    for size in range(1, 10):
        parts = [run(every[lo : lo + size]) for lo in range(0, ROWS, size)]
        assert np.concatenate(parts).tobytes() == whole.tobytes(), f"splits of {size} rows"
    moved = run(np.roll(every, 5))
    assert np.roll(moved, -5, axis=0).tobytes() == whole.tobytes(), "moved rows"


@pytest.mark.parametrize("precision", list(Precision), ids=lambda p: p.value)
@pytest.mark.parametrize("fmt", FORMATS)
def test_linear_in_company(generated: CpuDevice, fmt: str, precision: Precision) -> None:
    rng = np.random.default_rng(7)
    n, k = 41, 256
    x, w = random_rows(rng, ROWS, k), random_weight(rng, (n, k), fmt, zero_point=True)

    def run(rows: np.ndarray) -> np.ndarray:
        inputs = {"params": plain_table(len(rows)), "x": x[rows], "w": w}
        axes = {"T": len(rows), "N": n, "K": k}
        return run_op(generated, linear.SPEC, inputs, axes, precision)["y"]

    assert_company_changes_no_bit(run)


@pytest.mark.parametrize("precision", list(Precision), ids=lambda p: p.value)
@pytest.mark.parametrize("fmt", ["bf16", "q8", "q4-64"])
def test_expert_gemm_in_company(generated: CpuDevice, fmt: str, precision: Precision) -> None:
    rng = np.random.default_rng(8)
    # enough rows for some experts, and wide enough, that all go through AMX where it is
    experts, top_k, d, f = 3, 2, 256, 256
    x = random_rows(rng, ROWS, d)
    ids = np.stack([rng.permutation(experts)[:top_k] for _ in range(ROWS)]).astype(np.int32)
    shapes = {"gate": (experts, f, d), "up": (experts, f, d), "down": (experts, d, f)}
    weights = {name: random_weight(rng, shape, fmt) for name, shape in shapes.items()}

    def run(rows: np.ndarray) -> np.ndarray:
        params = plain_table(len(rows))
        axes = {"T": len(rows), "E": experts, "R": top_k, "D": d, "F": f}
        given = {"params": params, "ids": ids[rows]}
        groups = run_op(generated, group_rows.SPEC, given, axes, precision, experts=experts)
        index = {name: groups[name] for name in ("order", "offsets")}
        inputs = {"params": params, "x": x[rows], **index, **weights}
        out = run_op(generated, expert_gemm.SPEC, inputs, axes, precision, top_k=top_k)["y"]
        return out.reshape(len(rows), top_k * d)

    assert_company_changes_no_bit(run)


@pytest.mark.parametrize("heads, groups, width", [(8, 1, 256), (6, 2, 96), (4, 4, 40)])
def test_attention_over_several_splits_of_a_bfloat16_cache(
    generated: CpuDevice, heads: int, groups: int, width: int
) -> None:
    """Against float64, and in chunks: rows on both sides of place 1024, where a split begins."""
    rng = np.random.default_rng(10)
    total, start, slot_pages = 70, 1000, 17
    columns = groups * width
    q = random_rows(rng, total, heads * width) * 2
    k, v = (random_rows(rng, total, columns) for _ in range(2))
    pages = rng.permutation(slot_pages).astype(np.int32)[None]
    pools = [random_rows(rng, slot_pages * PAGE_ROWS, columns).astype(bfloat16) for _ in range(2)]
    axes = {"H": heads, "G": groups, "K": width, "slots": 1}
    axes |= {"slot_pages": slot_pages, "pages": slot_pages}

    def given(lo: int, n: int) -> dict[str, Any]:
        """Return the operands of n rows; those before them are in the pages."""
        past = attend.pool_rows(pages, 0, start, lo)
        filled = [pool.copy() for pool in pools]
        for pool, own in zip(filled, (k, v), strict=True):
            pool[past] = own[:lo].astype(bfloat16)
        rows = slice(lo, lo + n)
        names = {"k_pool": filled[0], "v_pool": filled[1], "page_table": pages}
        params = table([(Kind.COMMIT, 0, n, start + lo)])
        return {"params": params, "q": q[rows], "k": k[rows], "v": v[rows], **names}

    def run(lo: int, n: int) -> np.ndarray:
        inputs = given(lo, n)
        return run_op(
            generated, attend.SPEC, inputs, {**axes, "T": n}, Precision.FAST, heads=heads
        )["y"]

    whole = run(0, total)
    want = attend.reference(**given(0, total), heads=heads)["y"]
    # shares are rounded to 1 part in 512, and a query to 1 in 2^17, which moves logits of up to
    # 100 by less than that: twice of it for both
    assert np.abs(whole - want).max() <= np.abs(v).max() / 256
    for size in (1, 7, 32):
        parts = [run(lo, min(size, total - lo)) for lo in range(0, total, size)]
        assert np.concatenate(parts).tobytes() == whole.tobytes(), f"chunks of {size} rows"


def test_a_row_behind_an_unfilled_tile_of_queries_is_written_by_one_thread(
    generated: CpuDevice,
) -> None:
    """It sees a page more than the tile. Repeated, since two threads must meet for a wrong one."""
    rng = np.random.default_rng(12)
    heads, slot_pages, width = 3, 8, 256
    item = QUERIES // heads
    rows = item + 3
    q = random_rows(rng, rows, heads * width)
    k, v = (random_rows(rng, rows, width) for _ in range(2))
    pages = np.arange(slot_pages, dtype=np.int32)[None]
    pools = [random_rows(rng, slot_pages * PAGE_ROWS, width) for _ in range(2)]
    params = table([(Kind.COMMIT, 0, rows, 7 * PAGE_ROWS - item)])
    names = {"k_pool": pools[0], "v_pool": pools[1], "page_table": pages}
    inputs = {"params": params, "q": q, "k": k, "v": v, **names}
    axes = {"T": rows, "H": heads, "G": 1, "K": width, "slots": 1}
    axes |= {"slot_pages": slot_pages, "pages": slot_pages}
    want = attend.reference(**inputs, heads=heads)["y"]
    for turn in range(50):
        got = run_op(generated, attend.SPEC, inputs, axes, Precision.EXACT, heads=heads)["y"]
        # 512 products of 256 in float32
        assert np.abs(got - want).max() <= 1e-4, f"run {turn}"


needs_amx = pytest.mark.skipif(
    "amx" not in SETS, reason="this processor has no AMX, or the system forbids it"
)


@needs_amx
@pytest.mark.parametrize("rows", [11, 12, 16, 33, 63, 64, 70, 77])
@pytest.mark.parametrize("fmt", ["q8", "q4-32", "q4-128", "q4-32 with zeros"])
def test_tiles_of_amx_give_the_bits_of_avx512(fmt: str, rows: int) -> None:
    """Every number of rows: none or several whole tiles, with all sizes of what is left."""
    rng = np.random.default_rng(rows)
    n, k = 33, 768
    weight = random_weight(rng, (n, k), fmt.split()[0], zero_point="zeros" in fmt)
    inputs = {"params": plain_table(rows), "x": random_rows(rng, rows, k), "w": weight}
    found = []
    for name in ("amx", "avx512"):
        opened = CpuDevice(workers=1, isa=name)
        axes = {"T": rows, "N": n, "K": k}
        found.append(run_op(opened, linear.SPEC, inputs, axes, Precision.FAST)["y"].tobytes())
        opened.close()
    assert found[0] == found[1]


@needs_amx
@pytest.mark.parametrize("fmt", ["q8", "q4-32"])
def test_picks_by_tiles_of_amx_are_those_of_avx512(fmt: str) -> None:
    """32 rows of 256 columns, where the suite's own cases are narrower."""
    wanted = f"confidence_topk/{fmt}/top=8/preview32"
    (case,) = [c for c in confidence_topk.SPEC.cases() if c.id == wanted]
    rng = np.random.default_rng(9)
    wide = {"h": random_rows(rng, 32, 256), "head": random_weight(rng, (77, 256), fmt)}
    inputs = {**case.inputs(), **wide}
    case = replace(case, axes={**case.axes, "D": 256})
    found = []
    for name in ("amx", "avx512"):
        opened = CpuDevice(workers=1, isa=name)
        out = call(opened, confidence_topk.SPEC, case, Precision.FAST, inputs)
        found.append(out["picks"].tobytes())
        opened.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("spec", [linear, expert_gemm, attend, block_memory, confidence_topk])
def test_every_instruction_set_gives_the_same_bits_in_exact(spec: Any) -> None:
    """Sums have one order and formulas one form, whatever the width of the vectors."""
    devices = [CpuDevice(isa=name) for name in SETS]
    cases = [c for c in spec.SPEC.cases() if "K-09" not in c.classes and "nan" not in c.id]
    for case in cases[:: max(1, len(cases) // 24)]:
        first, *others = (call(d, spec.SPEC, case, Precision.EXACT) for d in devices)
        for other in others:
            for name, array in first.items():
                assert array.tobytes() == other[name].tobytes(), f"{case.id}: {name}"
    for device in devices:
        device.close()


def test_the_number_of_threads_changes_no_bit() -> None:
    rng = np.random.default_rng(2)
    x, w = random_rows(rng, 33, 512), random_weight(rng, (640, 512), "q4-32")
    inputs = {"params": plain_table(33), "x": x, "w": w}
    axes = {"T": 33, "N": 640, "K": 512}
    found = set()
    for count in (1, 2, 5):
        opened = CpuDevice(workers=count)
        found.add(run_op(opened, linear.SPEC, inputs, axes, Precision.FAST)["y"].tobytes())
        opened.close()
    assert len(found) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_stays_so_in_eight_bits(
    generated: CpuDevice, value: float
) -> None:
    rng = np.random.default_rng(3)
    x, w = random_rows(rng, 5, 128), random_weight(rng, (32, 128), "q4-32")
    x[2, 77] = value
    inputs = {"params": plain_table(5), "x": x, "w": w}
    axes = {"T": 5, "N": 32, "K": 128}
    y = run_op(generated, linear.SPEC, inputs, axes, Precision.FAST)["y"]
    assert not np.isfinite(y[2]).any()
    assert np.isfinite(np.delete(y, 2, axis=0)).all()


def test_the_error_of_eight_bit_activations_is_what_is_stated(generated: CpuDevice) -> None:
    """Each group of 32 is rounded to 1/254 of its largest: 0.6 % of the output's spread here."""
    rng = np.random.default_rng(4)
    k = 2048
    x, w = random_rows(rng, 16, k), random_weight(rng, (256, k), "q4-32")
    inputs = {"params": plain_table(16), "x": x, "w": w}
    axes = {"T": 16, "N": 256, "K": k}
    y = run_op(generated, linear.SPEC, inputs, axes, Precision.FAST)["y"]
    want = x.astype(np.float64) @ w.values().T
    relative = np.linalg.norm(y - want) / np.linalg.norm(want)
    assert 1e-4 < relative < 8e-3
