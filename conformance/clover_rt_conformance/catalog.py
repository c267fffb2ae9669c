"""Every trial, and how a run chooses among them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from clover_rt.errors import BadInput
from clover_rt.ops import HOT
from clover_rt.spec import Precision
from clover_rt_conformance.classes import CLASSES
from clover_rt_conformance.device_trials import device_trials
from clover_rt_conformance.models.exact import exact_trials
from clover_rt_conformance.models.placement import placement_trials
from clover_rt_conformance.models.rounded import rounded_trials
from clover_rt_conformance.op_trials import op_trials
from clover_rt_conformance.trial import Trial


@cache
def catalog() -> dict[str, Trial]:
    """Return every trial by id, in the order in which they run; AssertionError where ids clash."""
    found: dict[str, Trial] = {}
    for trial in _all():
        assert trial.id not in found, f"two trials are called {trial.id}"
        found[trial.id] = trial
    return found


def _all() -> Iterator[Trial]:
    yield from device_trials()
    yield from op_trials()
    yield from exact_trials()
    yield from placement_trials()
    yield from rounded_trials()


@dataclass(frozen=True, slots=True)
class Choice:
    """Which trials a run wants; empty fields choose all.

    cases       ids, or patterns with * and ?
    is_full     run the trials of the full lane too; a case that is named runs in any lane
    require     ops that must not be declined; `hot` stands for the three that decide speed
    """

    ops: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    precisions: tuple[Precision, ...] = tuple(Precision)
    is_full: bool = False
    require: tuple[str, ...] = ()

    def waits(self, trial: Trial) -> bool:
        """Is this a trial of the full lane that this run does not want?"""
        return trial.is_full and not self.is_full and trial.id not in self.cases

    @property
    def required(self) -> tuple[str, ...]:
        """Return the names of the ops that must not be declined."""
        names = [op for name in self.require for op in (HOT if name == "hot" else (name,))]
        return tuple(dict.fromkeys(names))


def chosen(choice: Choice) -> list[tuple[Trial, Precision]]:
    """Return the trials that a run wants, each with a precision.

    Raises BadInput (CRT-1060) for an op, a case or a class that no trial has.
    """
    trials = catalog()
    known = sorted({t.op for t in trials.values()})
    for op in (*choice.ops, *choice.required):
        _refuse_unknown("op", op, known)
    for k in choice.classes:
        _refuse_unknown("class", k, CLASSES)
    for pattern in choice.cases:
        if not any(_matches(t.id, pattern) for t in trials.values()):
            _refuse_unknown("case", pattern, trials)
    return [
        (trial, precision)
        for trial in trials.values()
        if (not choice.ops or trial.op in choice.ops)
        and (not choice.cases or any(_matches(trial.id, p) for p in choice.cases))
        and (not choice.classes or set(choice.classes) & set(trial.classes))
        for precision in trial.precisions
        if precision in choice.precisions
    ]


def digest(trials: Iterable[tuple[Trial, Precision]]) -> str:
    """Return a hash of which trials these are: two reports with one hash tried the same."""
    lines = sorted(f"{t.id} {p.value}" for t, p in trials)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _matches(id: str, pattern: str) -> bool:
    return id == pattern or fnmatchcase(id, pattern)


def _refuse_unknown(what: str, name: str, known: Iterable[str]) -> None:
    listed: Sequence[str] = list(known)
    if name in listed:
        return
    import difflib

    near = difflib.get_close_matches(name, listed, n=3, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    # there are a thousand cases: of those only the nearest
    shown = listed if len(listed) <= 100 else near
    told = f": {', '.join(shown)}" if shown is listed else f"; nearest: {', '.join(shown) or '-'}"
    raise BadInput(
        what=f"{what} {name!r} of the conformance suite was asked for",
        evidence=f"there are {len(listed)} of them, none of this name{told}",
        fix=f"{hint}`clover-rt conformance --list` prints the cases with their op and classes",
        code="CRT-1060",
    )
