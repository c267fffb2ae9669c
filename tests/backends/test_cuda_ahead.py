"""The kernels compile for cards that are not here, fit them, and take as few launches as said."""

from __future__ import annotations

import runpy
from collections.abc import Iterable, Mapping
from itertools import product
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
    programs,
    signature,
    step_of,
)
from clover_rt_cuda.kernels.attend import LEAST_SPLIT
from clover_rt_cuda.launch import Launch
from clover_rt_cuda.tuning import RELATED

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


def test_products_and_sums_are_fused_where_triton_would_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton.knobs.language, "default_fp_fusion", False)
    launch = launches(of("moe", 1))[-1]
    assert "fma.rn.f32" in compiled(launch, "sm_90").code


USUAL = ("gfx1201", "gfx1151", "sm_90")
"""Targets whose programs of a token and of a block, in q4 and `fast`, are compiled in each run."""
PINNED, NEWEST = "3.7.1", "3.9.0"
"""Versions of Triton with a table of the whole plan: torch's, and the newest."""
VERSIONS = (PINNED, NEWEST)
KNOWN_SPILLS = {
    # the scan of a draft of one row; tables have no tile for it
    (PINNED, "sm_80", "block_scan_kernel"): 6,
    # these take sm_120's tables, and this kernel has no tile
    (PINNED, "sm_86", "block_memory_kernel"): 2,
    (PINNED, "sm_89", "block_memory_kernel"): 2,
    # tiles are chosen for the pinned version; the newest's compilers use registers otherwise
    (NEWEST, "sm_80", "attend_kernel"): 8,
    (NEWEST, "sm_80", "block_scan_kernel"): 4,
    (NEWEST, "sm_80", "logits_kernel"): 2,
    (NEWEST, "sm_80", "moe_down_rows"): 2,
    (NEWEST, "sm_80", "moe_hidden_rows"): 6,
    (NEWEST, "sm_80", "project_kernel"): 2,
    (NEWEST, "sm_90", "attend_kernel"): 8,
    (NEWEST, "sm_90", "linear_rows"): 2,
    (NEWEST, "sm_90", "logits_kernel"): 2,
    (NEWEST, "sm_90", "moe_hidden_rows"): 10,
    (NEWEST, "sm_120", "attend_kernel"): 8,
    (NEWEST, "sm_120", "linear_rows"): 6,
    (NEWEST, "gfx1100", "logits_kernel"): 6,
    (NEWEST, "gfx1151", "logits_kernel"): 6,
}
"""Words that a thread spills at most, by version, target and kernel, where it is not none."""
of_a_version_with_a_table = pytest.mark.skipif(
    triton.__version__ not in VERSIONS, reason=f"there is no table of triton {triton.__version__}"
)


@pytest.fixture(scope="module")
def release() -> dict[str, Any]:
    """Return what makes the tables: plans of the release, and their programs."""
    return runpy.run_path(str(Path(clover_rt_cuda.__file__).parents[1] / "ahead_table.py"))


@pytest.fixture(scope="module")
def plans(release: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    return release["Plans"](tmp_path_factory.mktemp("release"))


def wants_matrices(launch: Launch) -> bool:
    """Is this a product of several rows in a type that has matrix units?"""
    return launch.meta.get("TYPE") == tl.bfloat16 and launch.meta.get("BM", 16) > 1


def wrong_of(launch: Launch, entry: Mapping[str, Any], target: str, version: str) -> list[str]:
    """Return what is wrong with the numbers of a program on a target."""
    limit = TARGETS[RELATED.get(target, target)]
    wrong = []
    if entry["spills"] > KNOWN_SPILLS.get((version, target, entry["kernel"]), 0):
        wrong.append(f"{entry['spills']} spilt words")
    if entry["shared"] > limit:
        wrong.append(f"{entry['shared']} of {limit} bytes shared")
    if wants_matrices(launch) and not entry["matrix"]:
        wrong.append("no product of a matrix unit")
    if launch.meta.get("TYPE") != tl.bfloat16 and entry["matrix"]:
        wrong.append("a matrix unit rounds float32")
    return [f"{target} {name_of(launch)}: {text}" for text in wrong]


def judge(release: dict[str, Any], found: Iterable[Launch], target: str, version: str) -> list[str]:
    """Return which programs a version's table lacks, and what is wrong with the others."""
    entries, wrong = release["read"](version)[target], []
    for launch in found:
        entry = entries.get(release["key_of"](launch))
        if entry is None:
            wrong.append(f"{target} {name_of(launch)}: not in the table")
        else:
            wrong += wrong_of(launch, entry, target, version)
    return wrong


def compare(release: dict[str, Any], found: Iterable[Launch], target: str) -> list[str]:
    """Compile programs; return where their numbers are not the table's."""
    entries, wrong = release["read"]()[target], []
    for launch in found:
        entry = release["entry_of"](compiled(launch, target))
        want = entries.get(release["key_of"](launch))
        if entry != want:
            wrong.append(f"{target} {name_of(launch)}: {entry}, in the table {want}")
    return wrong


@pytest.mark.parametrize("version", VERSIONS)
def test_the_tables_have_the_usual_programs_and_each_fits_its_target(
    version: str, release: dict[str, Any], plans: Any
) -> None:
    wrong = []
    for target in USUAL:
        launches = release["usual"](plans.of(Format.Q4, FAST, target))
        kernels = {launch.kernel.__name__ for launch in launches}
        assert {"project_kernel", "linear_row", "linear_rows", "attend_kernel"} <= kernels
        assert {"moe_hidden_row", "moe_hidden_rows"} <= kernels
        assert {"block_scan_kernel", "logits_kernel"} <= kernels
        wrong += judge(release, launches, target, version)
    assert wrong == [], f"run: python {release['__file__']}"


@of_a_version_with_a_table
@pytest.mark.parametrize("target", USUAL)
def test_the_usual_programs_take_what_the_table_says(
    target: str, release: dict[str, Any], plans: Any
) -> None:
    assert compare(release, release["usual"](plans.of(Format.Q4, FAST, target)), target) == []


def test_the_first_of_equal_layers_take_every_program_of_the_plan(
    release: dict[str, Any], plans: Any
) -> None:
    plan = plans.of(Format.Q4, FAST, "sm_90")
    whole = [action.step for action in plan.program(TableClass.PREVIEW, 32).actions]
    found = release["taken"](plan, [(TableClass.PREVIEW, 32, 1)])
    assert {launch.program for launch in found} == {n.program for n in programs(whole)}
    assert len(whole) > 2 * release["LAYERS"]


@pytest.fixture(scope="module")
def planned(release: dict[str, Any], plans: Any) -> dict[str, dict[str, Launch]]:
    """Return every program of the release by target and name in the table."""
    found: dict[str, dict[str, Launch]] = {target: {} for target in TARGETS}
    for storage, precision, target in product(release["FORMATS"].values(), Precision, TARGETS):
        launches = release["every"](plans.of(storage, precision, target))
        found[target].update((release["key_of"](launch), launch) for launch in launches)
    return found


@pytest.mark.full
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_table_has_every_program_of_the_release_and_no_other(
    version: str, target: str, release: dict[str, Any], planned: dict[str, dict[str, Launch]]
) -> None:
    assert judge(release, planned[target].values(), target, version) == []
    assert set(release["read"](version)[target]) == set(planned[target])


@pytest.mark.full
@of_a_version_with_a_table
@pytest.mark.parametrize("target", TARGETS)
def test_one_program_in_sixteen_takes_what_the_table_says(
    target: str, release: dict[str, Any], planned: dict[str, dict[str, Launch]]
) -> None:
    in_table = [key for key in sorted(planned[target]) if key in release["read"]()[target]]
    assert in_table
    assert compare(release, [planned[target][key] for key in in_table[::16]], target) == []


@pytest.mark.full
@of_a_version_with_a_table
@pytest.mark.parametrize("target", RELATED)
def test_a_card_that_takes_anothers_table_has_no_spills_in_the_usual_programs(
    target: str, release: dict[str, Any], plans: Any
) -> None:
    wrong = []
    for launch in release["usual"](plans.of(Format.Q4, FAST, target)):
        entry = release["entry_of"](compiled(launch, target))
        wrong += wrong_of(launch, entry, target, triton.__version__)
    assert wrong == []


def test_a_weight_that_groups_do_not_divide_is_bf16() -> None:
    sig = signature("gdn_gates", {"T": 1, "H": 30}, {}, "q4-64", FAST)
    assert {fmt.value for _, fmt, _ in sig.formats} == {"bf16"}
