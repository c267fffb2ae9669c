"""The kernels compile for cards that are not here, fit them, and take as few launches as said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clover_rt.spec import Precision, Signature, TableClass
from clover_rt_cuda.ahead import TARGETS, compiled, hot, launches, lowered, signature

FAST, EXACT = Precision.FAST, Precision.EXACT
ONE_CLASS = (TableClass.COMMIT, TableClass.PREVIEW, TableClass.VERIFY)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def of(op: str, rows: int, table: TableClass = TableClass.PREVIEW) -> Signature:
    """Return an operation of the release's layers at a capacity."""
    return next(s for s in hot(rows, "q4-64", FAST, table) if s.op == op)


@pytest.mark.parametrize("table", ONE_CLASS, ids=lambda t: t.value)
@pytest.mark.parametrize("rows", [1, 16, 64])
def test_a_gdn_layer_takes_nine_launches_at_most(rows: int, table: TableClass) -> None:
    taken = [len(launches(of(op, rows, table))) for op in ("gdn", "moe")]
    assert sum(taken) <= 9, taken


@pytest.mark.parametrize("table", ONE_CLASS, ids=lambda t: t.value)
@pytest.mark.parametrize("rows", [1, 16, 64])
def test_an_attention_layer_takes_ten_launches_at_most(rows: int, table: TableClass) -> None:
    taken = [len(launches(of(op, rows, table))) for op in ("attention", "moe")]
    assert sum(taken) <= 10, taken


def test_one_row_takes_fewer_launches_than_many() -> None:
    assert len(launches(of("moe", 1))) < len(launches(of("moe", 64)))


def test_a_long_prefix_is_shared_by_programs_and_joined_by_one_launch() -> None:
    names = [launch.kernel.__name__ for launch in launches(of("attention", 1))]
    assert names == [
        "project_kernel",
        "heads_kernel",
        "attend_kernel",
        "join_kernel",
        "linear_row",
    ]


@pytest.mark.parametrize("table", TableClass, ids=lambda t: t.value)
@pytest.mark.parametrize("precision", Precision, ids=lambda p: p.value)
def test_every_kernel_of_a_pass_is_a_program_of_triton(
    precision: Precision, table: TableClass
) -> None:
    """Types, shapes and loops are right for the compiler; the interpreter does not look at them."""
    for rows, weights in ((1, "q8"), (32, "q4-64"), (512, "bf16")):
        for sig in hot(rows, weights, precision, table):
            for launch in launches(sig):
                assert "tt.func" in lowered(launch, "sm_90"), launch.kernel.__name__


def configurations() -> Iterator[object]:
    """Yield (target, rows, precision, weights); the usual lane takes one of each vendor."""
    for target in TARGETS:
        for rows, precision, weights in (
            (1, FAST, "q4-64"),
            (32, FAST, "q4-64"),
            (32, EXACT, "q4-64"),
            (32, FAST, "q8"),
            (32, FAST, "bf16"),
            (512, FAST, "q4-128"),
        ):
            usual = target in ("sm_90", "gfx1201") and (rows, weights) == (32, "q4-64")
            marks = () if usual and precision is FAST else (pytest.mark.full,)
            name = f"{target}-T={rows}-{precision.value}-{weights}"
            yield pytest.param(target, rows, precision, weights, id=name, marks=marks)


@pytest.mark.parametrize(("target", "rows", "precision", "weights"), list(configurations()))
def test_the_hot_kernels_compile_without_spills_and_fit_shared_memory(
    target: str, rows: int, precision: Precision, weights: str
) -> None:
    _, limit = TARGETS[target]
    matrix = "wmma" if target.startswith("gfx") else "mma.sync"
    seen, wrong = set(), []
    for sig in hot(rows, weights, precision):
        for launch in launches(sig):
            found = compiled(launch, target)
            about = f"{found.name} of {sig.op}"
            if found.spills:
                wrong.append(f"{about}: {found.spills} spilt words")
            if found.shared > limit:
                wrong.append(f"{about}: {found.shared} of {limit} bytes shared")
            if "tf32" in found.code:
                wrong.append(f"{about}: tf32")
            if matrix in found.code:
                seen.add(found.name)
    assert wrong == []
    if precision is FAST and rows > 4:
        assert {"project_kernel", "linear_rows", "attend_kernel", "logits_kernel"} <= seen


def test_a_weight_that_groups_do_not_divide_is_bf16() -> None:
    sig = signature("gdn_gates", {"T": 1, "H": 30}, {}, "q4-64", FAST)
    assert {fmt.value for _, fmt, _ in sig.formats} == {"bf16"}
