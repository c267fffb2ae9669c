"""One binding run with several tables: a commit cut in two, and every row count from 0 up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from clover_rt.backend import Device
from clover_rt.ops.common import plain_table
from clover_rt.plan.case_run import FILL, pattern, typed
from clover_rt.spec import (
    Case,
    Kind,
    OpSpec,
    Pass,
    Precision,
    Role,
    Segment,
    StepParams,
    TableClass,
    evaluate_dim,
)
from clover_rt_conformance.bound import Array, Bound, note
from clover_rt_conformance.harness import Verdict
from clover_rt_conformance.judge import (
    expected,
    judge,
    measures,
    same_bits,
    tolerance_of,
)

CARRIES = ("gdn", "attention", "causal_conv", "block_scan", "kv_append")
ROW_WISE = (
    "rms_norm",
    "linear",
    "gdn_gates",
    "gated_norm",
    "output_gate",
    "group_rows",
    "combine",
)


def is_splittable(spec: OpSpec, case: Case) -> bool:
    """Is it one commit of two rows or more of an op that carries state over its rows?"""
    return spec.name in CARRIES and case.table is TableClass.COMMIT and case.axes["T"] > 1


def is_sweepable(spec: OpSpec, case: Case) -> bool:
    return spec.name in ROW_WISE and case.axes["T"] > 1


def try_split(
    device: Device, spec: OpSpec, case: Case, precision: Precision, seed: int, first: int
) -> Verdict:
    """Run the rows of a commit in two calls with the state carried over; judge as if in one.

    Where the kernels say that they are row-invariant, the bits must be those of one call.
    """
    inputs = typed(spec, case.inputs(seed), device.dtypes(precision))
    (segment,) = inputs["params"].segments
    with Bound(device, spec, case, precision, inputs) as bound:
        whole = bound.run()
        after: dict[str, Array] = dict(bound.before)
        pieces: list[Mapping[str, Array]] = []
        problems = []
        for start, stop in ((0, first), (first, segment.rows)):
            before = _part(spec, case, bound.before, after, segment, start, stop)
            after = bound.run(before)
            problems += bound.problems()
            pieces.append({n: after[n][: stop - start] for n in _rows(spec, after)})
        joined = {n: np.concatenate([p[n] for p in pieces]) for n in pieces[0]}
        states = {n: after[n] for n in spec.writes if n in after}
        numerics, how, invariant = bound.numerics, bound.how, bound.row_invariant
        before = bound.before
    want = expected(spec, case, inputs)
    tolerance = tolerance_of(spec, case, numerics, inputs)
    got = {**before, **joined, **states}
    problems += judge(spec, case, tolerance, before, got, want)
    if invariant:
        text = f"rows 0..{first - 1} and {first}.. in two calls give other bits than in one"
        problems += [note(n, text) for n in (*joined, *states) if not same_bits(got[n], whole[n])]
    return Verdict(how, problems, measures(tolerance, numerics, got, want))


def try_rows(device: Device, spec: OpSpec, case: Case, precision: Precision, seed: int) -> Verdict:
    """Run one binding with tables of 0, 1, 2, ... rows up to its capacity, each judged."""
    inputs = typed(spec, case.inputs(seed), device.dtypes(precision))
    layout = inputs["params"].layout
    problems = []
    found = []
    with Bound(device, spec, case, precision, inputs) as bound:
        tolerance = tolerance_of(spec, case, bound.numerics, inputs)
        # up and down again: a length that is remembered from a longer call shows
        for rows in (*range(case.axes["T"] + 1), 0, 1):
            params = plain_table(rows)
            assert params.layout == layout
            table = {"params": params.buffer}
            after = bound.run({**bound.before, **table})
            want = expected(spec, case, {**inputs, "params": params})
            here = bound.problems()
            here += judge(spec, case, tolerance, {**bound.before, **table}, after, want)
            problems += [replace(p, note=f"{p.note} ({rows} rows)".strip()) for p in here]
            found += measures(tolerance, bound.numerics, after, want)
            if problems:
                break
        return Verdict(bound.how, problems, _largest(found))


def _largest(found: list[Any]) -> list[Any]:
    worst: dict[str, Any] = {}
    for m in found:
        if m.operand not in worst or m.share > worst[m.operand].share:
            worst[m.operand] = m
    return list(worst.values())


def _rows(spec: OpSpec, arrays: Mapping[str, Array]) -> list[str]:
    return [o.name for o in spec.outputs if o.name in arrays]


def _part(
    spec: OpSpec,
    case: Case,
    original: Mapping[str, Array],
    carried: Mapping[str, Array],
    segment: Segment,
    start: int,
    stop: int,
) -> dict[str, Array]:
    """Return the operands of a call over rows start .. stop - 1, the rest of them NaN."""
    params = StepParams(case.layout)
    part = Segment(Kind.COMMIT, segment.slot, 0, stop - start, segment.position + start)
    params.write(Pass((part,), (0,) * (stop - start)))
    out = {"params": params.buffer}
    for name, array in original.items():
        operand = spec.operand(name)
        if name == "params":
            continue
        if name in spec.writes:
            out[name] = carried[name]
        elif operand.role is Role.INPUT and operand.shape[0] == "T":
            assert evaluate_dim("T", case.axes) == len(array)
            rest = pattern(FILL, array.nbytes).view(array.dtype).reshape(array.shape).copy()
            rest[: stop - start] = array[start:stop]
            out[name] = rest
        else:
            out[name] = array
    return out
