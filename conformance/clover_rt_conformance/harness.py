"""Run one case of one op on one device and judge everything that the contract says about it.

Operands lie in buffers of their own between guard bands; outputs are filled with NaN (integers:
a pattern) before the call. Afterwards the outputs' live rows and the state are compared with the
reference, and everything else must be as it was, to the bit. A second call on the same inputs,
with other numbers in guard bands and scratch, must give the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clover_rt.backend import Device
from clover_rt.plan.case_run import signature, typed
from clover_rt.spec import Case, Mismatch, OpSpec, Precision
from clover_rt_conformance.bound import Array, Bound, Declined, note
from clover_rt_conformance.judge import Measure, expected, judge, measures, same_bits, tolerance_of

__all__ = ["Declined", "Verdict", "call", "run_case", "signature", "try_case"]


@dataclass(frozen=True)
class Verdict:
    """What a case showed.

    how       "native" or "composed"
    problems  every way in which the contract was broken; empty: it was kept
    measures  the largest errors beside their bounds
    notes     other facts worth a line in the report
    """

    how: str
    problems: list[Mismatch] = field(default_factory=list)
    measures: list[Measure] = field(default_factory=list)
    notes: tuple[str, ...] = ()


def call(
    device: Device,
    spec: OpSpec,
    case: Case,
    precision: Precision,
    inputs: Mapping[str, Any] | None = None,
) -> dict[str, Array]:
    """Run a case once and return every operand but the weights as it is afterwards.

    inputs  operands instead of the case's own, with its axes as capacities
    """
    given = case.inputs() if inputs is None else inputs
    given = typed(spec, given, device.dtypes(precision))
    with Bound(device, spec, case, precision, given) as bound:
        return bound.run()


def run_case(
    device: Device, spec: OpSpec, case: Case, precision: Precision, seed: int = 0
) -> list[Mismatch]:
    """Return every way in which the device breaks the contract on this case.

    Raises Declined (CRT-3110) where its kernels refuse the signature.
    """
    return try_case(device, spec, case, precision, seed).problems


def try_case(
    device: Device,
    spec: OpSpec,
    case: Case,
    precision: Precision,
    seed: int = 0,
    calls: int = 2,
) -> Verdict:
    """Run a case `calls` times from the same inputs and judge it.

    Raises Declined (CRT-3110) where the device's kernels refuse the signature.
    """
    inputs = typed(spec, case.inputs(seed), device.dtypes(precision))
    with Bound(device, spec, case, precision, inputs) as bound:
        first = bound.run()
        problems = bound.problems()
        for i in range(1, calls):
            again = bound.run(surroundings=i % 2)
            problems += _differences(first, again, i + 1)
            if problems:
                break
        problems += [p for p in bound.problems() if p not in problems]
        how, numerics = bound.how, bound.numerics
    want = expected(spec, case, inputs)
    tolerance = tolerance_of(spec, case, numerics, inputs)
    problems += judge(spec, case, tolerance, bound.before, first, want)
    return Verdict(how, problems, measures(tolerance, numerics, first, want))


def _differences(first: Mapping[str, Array], again: Mapping[str, Array], n: int) -> list[Mismatch]:
    text = f"call {n} on the same inputs gives other bits than the first"
    return [note(name, text) for name in first if not same_bits(first[name], again[name])]
