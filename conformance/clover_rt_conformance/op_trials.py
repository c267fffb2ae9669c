"""Trials of single ops: every case of every contract, and what is made from those cases.

The largest case of each op and table class is also run with a padded capacity, in another table
layout, cut in two, for every row count with one binding, and many times over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from clover_rt.errors import BadCheckpoint
from clover_rt.ops import OPS
from clover_rt.spec import Case, OpSpec, Precision, StepLayout, TableClass, encode_q4, encode_q8
from clover_rt_conformance.bench import Bench
from clover_rt_conformance.bound import note
from clover_rt_conformance.harness import Verdict, try_case
from clover_rt_conformance.long_cases import long_cases
from clover_rt_conformance.resized import padded, relaid
from clover_rt_conformance.splits import is_splittable, is_sweepable, try_rows, try_split
from clover_rt_conformance.trial import BOTH, Trial

CALLS = 50
OTHER_LAYOUT = StepLayout(rows=200, segments=7, wanted=70, page_deltas=5, count_deltas=9)


def op_trials() -> Iterator[Trial]:
    """Yield the trials of every op, in the order of the contracts."""
    for spec in OPS.values():
        cases = list(spec.cases())
        for case in cases:
            yield case_trial(spec, case)
        yield from _derived(spec, cases)
    for case in long_cases():
        spec = OPS[case.op]
        yield replace(case_trial(spec, case), is_full=not case.id.endswith("keys=4096"))
    yield from _packing()


def case_trial(spec: OpSpec, case: Case, calls: int = 2) -> Trial:
    """Return the trial of a case, with `calls` calls from the same inputs."""

    def run(bench: Bench, precision: Precision, seed: int) -> Verdict:
        return try_case(bench.device, spec, case, precision, seed, calls)

    return Trial(case.id, spec.name, case.classes, run, _size(case))


def _derived(spec: OpSpec, cases: list[Case]) -> Iterator[Trial]:
    widest = _widest(cases)
    for case in widest:
        name = f"{case.id}/padded"
        yield case_trial(spec, padded(spec, replace(case, id=name, classes=("K-33", "K-34"))))
        if "segments" not in case.axes:
            other = replace(case, id=f"{case.id}/other-layout", classes=("K-27",))
            yield case_trial(spec, relaid(other, OTHER_LAYOUT))
    for case in widest:
        if is_splittable(spec, case):
            half = case.axes["T"] // 2
            ends = {1, half, case.axes["T"] - 1} if spec.reference is not None else {half}
            for first in sorted(ends):
                split = replace(case, id=f"{case.id}/split-at-{first}", classes=("K-26",))
                run = partial(_split, spec, split, first)
                yield Trial(split.id, spec.name, split.classes, run, _size(case))
        if is_sweepable(spec, case):
            swept = replace(case, id=f"{case.id}/every-row-count", classes=("K-04", "K-09"))
            run = partial(_rows, spec, swept)
            yield Trial(swept.id, spec.name, swept.classes, run, _size(case))
    if widest:
        last = widest[-1]
        classes = ("K-28", "K-32", "K-37") if spec.writes else ("K-32", "K-37")
        yield case_trial(spec, replace(last, id=f"{last.id}/{CALLS}-calls", classes=classes), CALLS)


def _split(spec: OpSpec, case: Case, first: int, bench: Bench, p: Precision, seed: int) -> Verdict:
    return try_split(bench.device, spec, case, p, seed, first)


def _rows(spec: OpSpec, case: Case, bench: Bench, p: Precision, seed: int) -> Verdict:
    return try_rows(bench.device, spec, case, p, seed)


def _widest(cases: list[Case]) -> list[Case]:
    """Return the case of most rows of each table class, empty and special ones left out."""
    found: dict[TableClass, Case] = {}
    for case in cases:
        plain = not {"K-09", "K-13", "K-15", "K-18", "K-22", "K-23"} & set(case.classes)
        best = found.get(case.table)
        if plain and (best is None or case.axes.get("T", 0) >= best.axes.get("T", 0)):
            found[case.table] = case
    return list(found.values())


def _packing() -> Iterator[Trial]:
    for k, group in ((192, 128), (4304, 32), (200, 0)):

        def run(
            bench: Bench, precision: Precision, seed: int, k: int = k, group: int = group
        ) -> Verdict:
            values = np.ones((2, k), np.float32)
            try:
                encode_q4(values, group) if group else encode_q8(values)
            except BadCheckpoint:
                return Verdict("native")
            text = f"K={k} was packed in groups of {group or 32}"
            return Verdict("native", [note("codes", text)])

        name = f"q4-{group}" if group else "q8"
        yield Trial(f"packing/{name}/K={k}", "packing", ("K-05",), run, k, BOTH[:1])


def _size(case: Case) -> int:
    axes: Mapping[str, Any] = case.axes
    return math.prod(max(int(n), 1) for n in axes.values())
