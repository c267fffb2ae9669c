"""What the command `clover-rt conformance` does, once its flags are parsed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from clover_rt.spec import Precision
from clover_rt_conformance.catalog import Choice, chosen
from clover_rt_conformance.client import Workers
from clover_rt_conformance.report import SCHEMA, Report, text
from clover_rt_conformance.run import run_suite

__all__ = ["Asked", "judge", "listing", "listing_data", "text"]
Progress = Callable[[int, int, Any], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """A run as it was asked for; `Choice` and `Report` say what the fields mean."""

    backend: str
    device: str | None = None
    ops: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    precision: str | None = None
    is_full: bool = False
    seed: int = 0
    require: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 120.0

    @property
    def choice(self) -> Choice:
        precisions = tuple(Precision) if self.precision is None else (Precision(self.precision),)
        return Choice(self.ops, self.cases, self.classes, precisions, self.is_full, self.require)


def listing(asked: Asked) -> str:
    """Return one line a case: id, precision, op, classes, and the lane where it is the full one."""
    lines = []
    for trial, precision in chosen(asked.choice):
        lane = "full" if trial.is_full else ""
        classes = ",".join(trial.classes)
        lines.append("\t".join((trial.id, precision.value, trial.op, classes, lane)).rstrip())
    return "\n".join(lines)


def listing_data(asked: Asked) -> dict[str, Any]:
    """Return the list as JSON data."""
    cases = [
        {
            "id": trial.id,
            "precision": precision.value,
            "op": trial.op,
            "classes": list(trial.classes),
            "lane": "full" if trial.is_full else "usual",
        }
        for trial, precision in chosen(asked.choice)
    ]
    return {"schema": SCHEMA, "cases": cases}


def judge(asked: Asked, on_progress: Progress | None = None) -> Report:
    """Run the suite and return its report."""
    report = Report(asked.backend, asked.device, dict(asked.environment), seed=asked.seed)
    # a word that no case has is told before a device is opened
    chosen(asked.choice)
    runner = Workers(asked.backend, asked.device, asked.environment, asked.timeout_s)
    try:
        run_suite(report, runner, asked.choice, on_progress)
    finally:
        runner.close()
    return report
