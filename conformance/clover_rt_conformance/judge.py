"""Compare what a call left with what the reference says: values, untouched rows, untouched state.

Everything that is not an output's live row or the state of the pass must be as it was, to the bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from clover_rt.ops import OPS
from clover_rt.ops.common import is_left
from clover_rt.ops.derived import DERIVED, derive_tolerance, run_case
from clover_rt.spec import (
    Case,
    DType,
    Mismatch,
    Numerics,
    OpSpec,
    Picks,
    StepParams,
    Tolerance,
    Weight,
    picks_shape,
)
from clover_rt_conformance.bound import Array, note

# the widest gap between neighbours, relative to the number
STEPS = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


@dataclass(frozen=True, slots=True)
class Measure:
    """The largest error of a call beside what it may be.

    share  error / bound: above 1 is a failure; 0 where both are 0
    """

    operand: str
    error: float
    bound: float
    share: float
    numerics: str
    tolerance: Tolerance


@dataclass(frozen=True, slots=True)
class Expected:
    """outputs as the reference returns them, and its state operands after the call."""

    outputs: Mapping[str, Any]
    written: Mapping[str, Array]


def expected(spec: OpSpec, case: Case, inputs: Mapping[str, Any]) -> Expected:
    """Run the reference, or a layer op's decomposition, on copies of the inputs."""
    with np.errstate(all="ignore"):
        if spec.reference is None:
            values = run_case(spec, case, inputs, OPS)
            written = {n: values[n] for n in spec.writes if n in values}
            return Expected({o.name: values[o.name] for o in spec.outputs}, written)
        copies = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in inputs.items()}
        outputs = spec.reference(**copies, **case.attrs)
    return Expected(outputs, {n: copies[n] for n in spec.writes if n in copies})


def tolerance_of(
    spec: OpSpec, case: Case, numerics: Numerics, inputs: Mapping[str, Any]
) -> Tolerance:
    """Return the contract's tolerance for these numerics, derived from the case where it says so.

    The inputs count with their types: keys that a cache keeps in 16 bits are rounded in every run.
    """
    if spec.tolerance is not DERIVED:
        return spec.tolerance[numerics]
    # both precisions of many devices see the same numbers, and eight runs are dear
    key = (spec.name, numerics, case.table, _digest(inputs))
    if key not in _derived:
        same = Case(case.id, case.op, case.axes, lambda _: dict(inputs), case.attrs, case.table)
        with np.errstate(all="ignore"):
            _derived[key] = derive_tolerance(spec, same, numerics, OPS)
    return at_least_a_step(spec, inputs, _derived[key])


_derived: dict[object, Tolerance] = {}


def _digest(inputs: Mapping[str, Any]) -> bytes:
    """Return a hash of every number of a case."""
    found = hashlib.blake2b()
    for name, value in inputs.items():
        arrays = [value]
        if isinstance(value, Weight):
            arrays = [a for a in (value.codes, value.scale, value.zero) if a is not None]
        elif isinstance(value, StepParams):
            arrays = [value.buffer]
        for array in arrays:
            found.update(f"{name} {array.dtype} {array.shape}".encode())
            found.update(np.ascontiguousarray(array).tobytes())
    return found.digest()


def at_least_a_step(spec: OpSpec, inputs: Mapping[str, Any], tolerance: Tolerance) -> Tolerance:
    """Return a derived tolerance, at least one step of the type that keys and values are kept in.

    A key between two steps may be rounded either way, and few rounded runs show it.
    """
    kept = [inputs[o.name].dtype.name for o in spec.operands if o.dtype is DType.KV]
    step = max((STEPS.get(name, 0.0) for name in kept), default=0.0)
    if tolerance.atol >= step:
        return tolerance
    return Tolerance(0.0, step, f"one step of {kept[0]}, which keys and values are kept in")


def judge(
    spec: OpSpec,
    case: Case,
    tolerance: Tolerance,
    before: Mapping[str, Array],
    after: Mapping[str, Array],
    want: Expected,
) -> list[Mismatch]:
    """Return every way in which a call's results differ from what they must be."""
    right: dict[str, Any] = {}
    problems = []
    for name, value in want.outputs.items():
        if isinstance(value, Picks):
            live = picks_shape(*value.ids.shape)[0]
            right[name] = value
        else:
            live = len(value)
            if value.dtype.kind == "f":
                left = is_left(value)
                if not same_bits(after[name][:live][left], before[name][:live][left]):
                    problems.append(note(name, "a row that is to be left alone was written"))
                value = np.where(left, after[name][:live].astype(value.dtype), value)
            right[name] = value
        if not same_bits(after[name][live:], before[name][live:]):
            problems.append(note(name, "rows past the table were written"))
    for name, value in want.written.items():
        right[name] = value
        problems += _untouched(name, before[name], after[name], value)
    for name, array in before.items():
        if name not in right and not same_bits(after[name], array):
            problems.append(note(name, "an input was written"))
    return problems + spec.check(case, results(after, right), right, tolerance)


def results(after: Mapping[str, Array], right: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a call left of each judged operand: live rows of outputs, whole states."""
    got: dict[str, Any] = {}
    for name, value in right.items():
        got[name] = after[name] if isinstance(value, Picks) else after[name][: len(value)]
    return got


def measures(
    tolerance: Tolerance, numerics: Numerics, after: Mapping[str, Array], want: Expected
) -> list[Measure]:
    """Return the largest error of each floating-point operand beside its bound."""
    out = []
    for name, value in {**want.outputs, **want.written}.items():
        if isinstance(value, Picks):
            picks = Picks.decode(after[name], *value.ids.shape)
            if not value.finite:
                continue
            for part in ("logits", "lse", "entropy", "probe"):
                pair = getattr(picks, part), getattr(value, part)
                out += _measure(f"{name}.{part}", *pair, tolerance, numerics)
        elif value.dtype.kind not in "iub":
            out += _measure(name, after[name][: len(value)], value, tolerance, numerics)
    return out


def _measure(
    name: str, got: Array, want: Array, tolerance: Tolerance, numerics: Numerics
) -> list[Measure]:
    a, b = got.astype(np.float64), want.astype(np.float64)
    keep = np.isfinite(b) & np.isfinite(a)
    if not keep.any():
        return []
    a, b = a[keep], b[keep]
    error = np.abs(a - b)
    bound = tolerance.atol * np.abs(b).max() + tolerance.rtol * np.abs(b)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(error == 0, 0.0, error / bound)
    worst = int(np.argmax(share))
    numbers = float(error[worst]), float(bound[worst]), float(share[worst])
    return [Measure(name, *numbers, numerics.value, tolerance)]


def same_bits(a: Array, b: Array) -> bool:
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def _untouched(name: str, before: Array, after: Array, value: Array) -> list[Mismatch]:
    """Slices of the leading axes that the reference left alone must be left alone to the bit."""
    lead = max(1, min(2, before.ndim - 1))
    shape = (int(np.prod(before.shape[:lead])), -1)
    value = value.astype(before.dtype)
    old, new, right = (
        np.ascontiguousarray(a).reshape(shape).view(np.uint8).reshape(shape[0], -1)
        for a in (before, after, value)
    )
    wrong = (old == right).all(axis=1) & (old != new).any(axis=1)
    if not wrong.any():
        return []
    index = np.unravel_index(int(np.argmax(wrong)), before.shape[:lead])
    where = tuple(int(i) for i in index)
    return [Mismatch(name, where, np.nan, np.nan, 0.0, "state not of the pass was written")]
