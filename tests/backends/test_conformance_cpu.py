"""The cpu backend passes the whole suite in both precisions, with nothing declined."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clover_rt.cli import main
from clover_rt.ops import HOT, OPS
from clover_rt_conformance.classes import CLASSES
from clover_rt_cpu.jit.isa import VARIABLE, supported


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return (exit code, report, text) of the usual lane."""
    folder = tmp_path_factory.mktemp("conformance")
    target = folder / "report.json"
    words = ["conformance", "--backend", "cpu", "--require", "hot", "--json", str(target)]
    return main(words), json.loads(target.read_text())


def test_everything_that_is_tried_is_right(report: Any) -> None:
    code, told = report
    assert told["failures"] == [] and told["problems"] == []
    assert code == 0 and told["passed"]
    assert told["counts"]["native"] > 1500 and told["counts"]["composed"] > 500


def test_nothing_is_declined_and_what_is_not_run_says_why(report: Any) -> None:
    _, told = report
    assert told["declined"] == {}
    assert told["required"] == list(HOT)
    assert sorted(told["not_run"]) == [
        "needs two devices in one process, and a plan uses one",
        "runs in the full lane: --lane full",
    ]


def test_every_op_is_judged_in_both_precisions(report: Any) -> None:
    _, told = report
    for op in OPS:
        for precision in ("exact", "fast"):
            ran = [t for t in told["trials"] if t.startswith(f"{op}/") and precision in t]
            assert ran, f"{op} in {precision}"


def test_no_error_exceeds_its_tolerance_and_every_tolerance_says_why(report: Any) -> None:
    _, told = report
    worst = {op: facts["largest_error"] for op, facts in told["ops"].items()}
    seen = {op: m for op, m in worst.items() if m is not None}
    assert len(seen) > 15
    for op, m in seen.items():
        assert m["share"] <= 1, op
        assert m["tolerance"]["why"], op


def test_every_class_has_a_case() -> None:
    from clover_rt_conformance.catalog import catalog

    tried = {k for trial in catalog().values() for k in trial.classes}
    assert tried == set(CLASSES)


@pytest.mark.full
def test_the_full_lane_is_right_too(tmp_path: Path) -> None:
    target = tmp_path / "full.json"
    words = ["conformance", "--backend", "cpu", "--lane", "full", "--class", "K-21,K-38"]
    assert main([*words, "--json", str(target)]) == 0
    assert json.loads(target.read_text())["counts"]["not_run"] == 0


@pytest.mark.full
@pytest.mark.parametrize("name", [*supported()[1:], "numpy"])
def test_every_other_instruction_set_is_right_when_it_is_forced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best one of this processor runs in the usual lane."""
    monkeypatch.setenv(VARIABLE, name)
    target = tmp_path / "report.json"
    words = ["conformance", "--backend", "cpu", "--require", "hot", "--json", str(target)]
    assert main(words) == 0
    assert json.loads(target.read_text())["failures"] == []
