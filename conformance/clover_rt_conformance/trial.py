"""A trial: one thing that is tried on a device, the classes it is meant for, and its outcome."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from clover_rt.errors import OutOfMemory
from clover_rt.spec import Precision
from clover_rt_conformance.bench import Bench
from clover_rt_conformance.bound import Declined
from clover_rt_conformance.classes import name_of
from clover_rt_conformance.harness import Verdict

BOTH = (Precision.EXACT, Precision.FAST)
Run = Callable[[Bench, Precision, int], Verdict]


class Outcome(Enum):
    """What became of a trial.

    NATIVE    right, by the device's own kernel (whole models: with none on the host)
    COMPOSED  right, by the decomposition of a layer op
    DECLINED  the device said why it does not take it: not passed, not wrong
    FAILED    wrong, or an error where none was announced
    CRASHED   the process ended, or gave no answer in time
    NOT_RUN   it needs something that is not here; the reason is told
    """

    NATIVE = "native"
    COMPOSED = "composed"
    DECLINED = "declined"
    FAILED = "failed"
    CRASHED = "crashed"
    NOT_RUN = "not_run"

    @property
    def is_right(self) -> bool:
        return self in (Outcome.NATIVE, Outcome.COMPOSED)

    @property
    def is_wrong(self) -> bool:
        return self in (Outcome.FAILED, Outcome.CRASHED)


@dataclass(frozen=True)
class Trial:
    """One thing to try.

    op          the op it judges; `model` for whole models, `device` for copies
    run         (bench, precision, seed) -> verdict
    size        elements of its axes: the smallest failing trial is told first
    precisions  where it is tried
    is_full     runs only in the full lane
    needs       "" or why it cannot run anywhere yet
    """

    id: str
    op: str
    classes: tuple[str, ...]
    run: Run
    size: int = 0
    precisions: tuple[Precision, ...] = BOTH
    is_full: bool = False
    needs: str = ""


@dataclass
class Result:
    """The outcome of a trial in one precision; plain data, so that it crosses processes.

    detail    what was wrong, or why it was not run
    measures  the largest errors beside their bounds, as dictionaries
    """

    id: str
    op: str
    precision: str
    classes: tuple[str, ...]
    outcome: Outcome
    size: int = 0
    detail: tuple[str, ...] = ()
    measures: list[dict[str, Any]] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def named(self) -> str:
        """Return the classes as messages name them."""
        return ", ".join(name_of(k) for k in self.classes)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        return {**asdict(self), "outcome": self.outcome.value}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Result:
        """Read what `to_dict` gave."""
        tuples = {k: tuple(data[k]) for k in ("classes", "detail", "notes")}
        return Result(**{**data, **tuples, "outcome": Outcome(data["outcome"])})


def result(
    trial: Trial, precision: Precision, outcome: Outcome, *detail: str, **more: Any
) -> Result:
    """Return a result of a trial."""
    about = (trial.id, trial.op, precision.value, trial.classes)
    return Result(*about, outcome, trial.size, detail, **more)


def attempt(trial: Trial, bench: Bench, precision: Precision, seed: int = 0) -> Result:
    """Run a trial; whatever a kernel raises is its failure, and ends nothing."""
    if trial.needs:
        return result(trial, precision, Outcome.NOT_RUN, trial.needs)
    try:
        verdict = trial.run(bench, precision, seed)
    except Declined as refusal:
        if not refusal.evidence.strip():
            text = f"{name_of('K-27')}: it was declined without a reason"
            return result(trial, precision, Outcome.FAILED, text)
        return result(trial, precision, Outcome.DECLINED, refusal.evidence)
    except OutOfMemory as refusal:
        return result(trial, precision, Outcome.DECLINED, refusal.evidence)
    except Exception as error:
        # a claim that ends in an error is neither a refusal nor a right answer
        text = f"{name_of('K-27')}: it was claimed, and raised {type(error).__name__}: {error}"
        where = traceback.format_exc().strip().splitlines()[-6:]
        return result(trial, precision, Outcome.FAILED, text, *where)
    outcome = Outcome.NATIVE if verdict.how == "native" else Outcome.COMPOSED
    if verdict.problems:
        outcome = Outcome.FAILED
    return result(
        trial,
        precision,
        outcome,
        *(str(p) for p in verdict.problems[:8]),
        measures=[asdict(m) for m in verdict.measures],
        notes=verdict.notes,
    )
