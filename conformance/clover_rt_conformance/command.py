"""What the command `clover-rt conformance` does, once its flags are parsed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clover_rt.spec import Precision
from clover_rt_conformance.catalog import Choice, chosen
from clover_rt_conformance.client import Workers
from clover_rt_conformance.report import Report, text
from clover_rt_conformance.run import run_suite

Progress = Callable[[int, int, Any], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """A run as it was asked for; `Choice` and `Report` say what the fields mean.

    json_file, junit_file  where the report goes as well; "-" for JSON alone on standard output
    """

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
    json_file: str | None = None
    junit_file: Path | None = None

    @property
    def choice(self) -> Choice:
        precisions = tuple(Precision) if self.precision is None else (Precision(self.precision),)
        return Choice(self.ops, self.cases, self.classes, precisions, self.is_full, self.require)


def listing(asked: Asked) -> Iterator[str]:
    """Yield one line a case: id, precision, op, classes, and the lane where it is the full one."""
    for trial, precision in chosen(asked.choice):
        lane = "full" if trial.is_full else ""
        classes = ",".join(trial.classes)
        yield "\t".join((trial.id, precision.value, trial.op, classes, lane)).rstrip()


def judge(asked: Asked, on_progress: Progress | None = None) -> int:
    """Run the suite, print and write its report; return 0 where it passed, else 1."""
    report = Report(asked.backend, asked.device, dict(asked.environment), seed=asked.seed)
    # a word that no case has is told before a device is opened
    chosen(asked.choice)
    runner = Workers(asked.backend, asked.device, asked.environment, asked.timeout_s)
    try:
        run_suite(report, runner, asked.choice, on_progress)
    finally:
        runner.close()
    if asked.junit_file is not None:
        report.write_junit(asked.junit_file)
    data = json.dumps(report.to_dict(), indent=1)
    if asked.json_file == "-":
        print(data)
    elif asked.json_file is not None:
        Path(asked.json_file).write_text(data + "\n", encoding="utf-8")
    if asked.json_file != "-":
        sys.stdout.write(text(report) + "\n")
    return 0 if report.passed else 1
