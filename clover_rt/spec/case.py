"""Cases that a kernel is run on, and how far its answer may be from the reference's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from clover_rt.spec.step import StepLayout, TableClass

Array = npt.NDArray[Any]
Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a result may be from the float64 reference: |got - want| <= atol + rtol |want|.

    atol is multiplied with the largest |want| of the output, so it is relative to the output's
    scale; why says where the number comes from.
    """

    rtol: float
    atol: float
    why: str


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One way in which an answer is wrong: the operand, where, both values, the bound."""

    operand: str
    index: tuple[int, ...]
    got: float
    want: float
    bound: float
    note: str = ""

    def __str__(self) -> str:
        where = f"{self.operand}{list(self.index)}"
        tail = f" ({self.note})" if self.note else ""
        return f"{where}: got {self.got:.9g}, want {self.want:.9g}, bound {self.bound:.3g}{tail}"


@dataclass(frozen=True)
class Case:
    """One call of one op: `build(rng)` returns every operand but the outputs.

    id       unique; the seed of `build` is derived from it
    classes  the conformance classes that the case belongs to, such as ("K-03",)
    axes     static axes and the capacities of dynamic ones
    """

    id: str
    op: str
    axes: Mapping[str, int]
    build: Callable[[np.random.Generator], Inputs]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    table: TableClass = TableClass.COMMIT
    classes: tuple[str, ...] = ()
    layout: StepLayout = field(default_factory=StepLayout)

    def inputs(self, seed: int = 0) -> Inputs:
        """Return fresh operands, the same for the same id and seed."""
        return self.build(np.random.default_rng(seed_of(self.id, seed)))


def seed_of(case_id: str, seed: int = 0) -> int:
    """Return the seed of a case: a hash of its id, so that every backend sees the same inputs."""
    digest = hashlib.sha256(f"{case_id}#{seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def compare(
    case: Case, got: Mapping[str, Array], want: Mapping[str, Array], tolerance: Tolerance
) -> list[Mismatch]:
    """Return the worst mismatch of each operand that is out of tolerance; integers must be equal.

    NaN and inf count as equal only where both have the same.
    """
    out = []
    for name, expected in want.items():
        a, b = np.asarray(got[name]), np.asarray(expected)
        if a.shape != b.shape:
            note = f"shape {a.shape}, want {b.shape}"
            out.append(Mismatch(name, (), np.nan, np.nan, 0.0, note))
            continue
        if b.size == 0:
            continue
        a64, b64 = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(b64)
        bound = np.zeros_like(b64)
        if b.dtype.kind not in "iub":
            scale = np.abs(b64[finite]).max(initial=0.0)
            bound[finite] = tolerance.atol * scale + tolerance.rtol * np.abs(b64[finite])
        same = (a64 == b64) | (np.isnan(a64) & np.isnan(b64))
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0.0, np.abs(a64 - b64))
        excess = np.where(np.isnan(error), np.inf, error) - bound
        worst = np.unravel_index(int(np.argmax(excess)), b.shape)
        if excess[worst] > 0:
            index = tuple(int(i) for i in worst)
            values = float(a64[worst]), float(b64[worst])
            out.append(Mismatch(name, index, *values, float(bound[worst])))
    return out
