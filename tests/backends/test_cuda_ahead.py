"""The kernels compile for cards that are not here, fit them, and take as few launches as said."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

import clover_rt_cuda
from clover_rt.spec import Format, Precision, Signature, TableClass
from clover_rt_cuda.ahead import (
    TARGETS,
    compiled,
    hot,
    launches,
    lowered,
    name_of,
    signature,
    step_of,
)
from clover_rt_cuda.kernels.attend import LEAST_SPLIT
from clover_rt_cuda.launch import Launch

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


def test_a_short_prefix_needs_no_join() -> None:
    step = step_of(of("attention", 1))
    assert step.bounds == (LEAST_SPLIT,)
    names = [launch.kernel.__name__ for launch in step.launches(LEAST_SPLIT)]
    assert names == ["project_kernel", "heads_kernel", "attend_kernel", "linear_row"]
    assert len(step.launches(LEAST_SPLIT + 1)) == len(names) + 1


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


USUAL = ("gfx1201", "gfx1151", "sm_90")
"""Targets whose programs of a token and of a block, in q4 and `fast`, are compiled in each run."""


@pytest.fixture(scope="module")
def release() -> dict[str, Any]:
    """Return what makes the table: plans of the release, and their programs."""
    return runpy.run_path(str(Path(clover_rt_cuda.__file__).parents[1] / "ahead_table.py"))


@pytest.fixture(scope="module")
def plans(release: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    return release["Plans"](tmp_path_factory.mktemp("release"))


def wants_matrices(launch: Launch) -> bool:
    """Is this a product of several rows in a type that has matrix units?"""
    return launch.meta.get("TYPE") == tl.bfloat16 and launch.meta.get("BM", 16) > 1


def wrong_of(launch: Launch, entry: Mapping[str, Any], target: str) -> list[str]:
    """Return what is wrong with the numbers of a program on a target."""
    _, limit = TARGETS[target]
    wrong = []
    if entry["spills"]:
        wrong.append(f"{entry['spills']} spilt words")
    if entry["shared"] > limit:
        wrong.append(f"{entry['shared']} of {limit} bytes shared")
    if wants_matrices(launch) and not entry["matrix"]:
        wrong.append("no product of a matrix unit")
    return [f"{target} {name_of(launch)}: {text}" for text in wrong]


def compare(release: dict[str, Any], found: list[Launch], target: str, is_whole: bool) -> list[str]:
    """Compile programs; return what is wrong, and where their numbers are not the table's."""
    table = release["read"]()["targets"].get(target, {})
    wrong = []
    for launch in found:
        made = compiled(launch, target)
        entry, want = release["entry_of"](made), table.get(release["key_of"](launch))
        wrong += wrong_of(launch, entry, target)
        if "tf32" in made.code:
            wrong.append(f"{target} {name_of(launch)}: tf32")
        if want != entry and (want or is_whole):
            wrong.append(f"{target} {name_of(launch)}: {entry}, in the table {want}")
    return wrong


def test_the_table_has_the_usual_programs_and_none_of_it_spills(
    release: dict[str, Any], plans: Any
) -> None:
    table = release["read"]()["targets"]
    wrong = []
    for target in USUAL:
        launches = release["usual"](plans.of(Format.Q4, FAST, target))
        kernels = {launch.kernel.__name__ for launch in launches}
        assert {"project_kernel", "linear_row", "linear_rows", "attend_kernel"} <= kernels
        assert {"moe_hidden_row", "moe_hidden_rows"} <= kernels
        assert {"block_scan_kernel", "logits_kernel"} <= kernels
        for launch in launches:
            entry = table[target].get(release["key_of"](launch))
            wrong += wrong_of(launch, entry, target) if entry else [name_of(launch)]
    assert wrong == [], f"run: python {release['__file__']}"


@pytest.mark.skipif(triton.__version__ != "3.7.1", reason="the table is that of triton 3.7.1")
@pytest.mark.parametrize("target", USUAL)
def test_the_usual_programs_take_what_the_table_says(
    target: str, release: dict[str, Any], plans: Any
) -> None:
    launches = release["usual"](plans.of(Format.Q4, FAST, target))
    assert compare(release, launches, target, is_whole=True) == []


@pytest.mark.full
@pytest.mark.parametrize("precision", Precision, ids=lambda p: p.value)
@pytest.mark.parametrize("storage", [Format.Q4, Format.Q8, Format.BF16], ids=lambda f: f.value)
@pytest.mark.parametrize("target", TARGETS)
def test_every_program_of_the_release_fits_every_target(
    target: str, storage: Format, precision: Precision, release: dict[str, Any], plans: Any
) -> None:
    launches = release["every"](plans.of(storage, precision, target))
    assert compare(release, launches, target, is_whole=False) == []


def test_a_weight_that_groups_do_not_divide_is_bf16() -> None:
    sig = signature("gdn_gates", {"T": 1, "H": 30}, {}, "q4-64", FAST)
    assert {fmt.value for _, fmt, _ in sig.formats} == {"bf16"}
