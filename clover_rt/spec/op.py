"""OpSpec: one operation's whole contract, and the Signature that a kernel is asked about.

Axes are named. A static axis is an int that the graph fixes; a dynamic one (`DYNAMIC`) has a
capacity, and its length in a pass lies in StepParams. A dimension is an expression of axis names,
such as `T*R` or `2*G*K+H*V`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from clover_rt.spec.case import Case, Mismatch, Tolerance, compare
from clover_rt.spec.step import StepLayout, TableClass
from clover_rt.spec.weight import Format

# the capacity of each stands for it where shapes are compared before a capacity is chosen:
# primes, so that no product of static axes equals one by accident
DYNAMIC = {"T": 1_000_003, "W": 1_000_033}
Attrs = tuple[tuple[str, Any], ...]


class Tier(Enum):
    """A layer op has a decomposition into primitives; a primitive has a reference."""

    LAYER = "layer"
    PRIMITIVE = "primitive"


class Role(Enum):
    """How an operation uses an operand; STATE is updated in place, INOUT is an edge that is."""

    INPUT = "input"
    OUTPUT = "output"
    INOUT = "inout"
    STATE = "state"
    WEIGHT = "weight"
    PARAMS = "params"


class DType(Enum):
    """Element types; EDGE and KV are chosen by the plan's precision."""

    EDGE = "edge"
    KV = "kv"
    F32 = "float32"
    I32 = "int32"
    U32 = "uint32"
    U8 = "uint8"


class Precision(Enum):
    """`exact`: float32 activations, KV and accumulation. `fast`: the backend's choice."""

    EXACT = "exact"
    FAST = "fast"


class Numerics(Enum):
    """What a kernel computes with: the class that decides its tolerance.

    F32       float32 operands and accumulation (float64 is allowed inside)
    BF16      bfloat16 activations, float32 accumulation
    INT8_G32  int8 activations with one scale for 32 values, exact integer dots, float32 sums
    """

    F32 = "f32"
    BF16 = "bf16"
    INT8_G32 = "int8-g32"


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand: its role, element type, shape by axis name, and what it holds."""

    name: str
    role: Role
    dtype: DType
    shape: tuple[str, ...]
    doc: str
    optional: bool = False

    @property
    def is_written(self) -> bool:
        return self.role in (Role.OUTPUT, Role.INOUT, Role.STATE)


@dataclass(frozen=True, slots=True)
class Work:
    """What one call costs: floating-point operations, and bytes read and written."""

    flops: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Node:
    """One operation in a graph: operand name -> value name, static axes, attributes.

    A node inside a decomposition is named `parent/part`.
    """

    name: str
    op: str
    operands: Mapping[str, str]
    axes: Mapping[str, int]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def layer(self) -> str:
        return self.name.split("/", 1)[0]


@dataclass(frozen=True)
class Signature:
    """What a kernel is asked about: one op with every axis, type, format and attribute fixed.

    axes     static axes and the capacities of dynamic ones
    dtypes   (operand, numpy dtype name) of each operand given, weights left out
    formats  (weight operand, format, group size) of each weight given
    An optional operand that is in neither is absent.
    """

    op: str
    table: TableClass
    precision: Precision
    axes: tuple[tuple[str, int], ...]
    dtypes: tuple[tuple[str, str], ...]
    formats: tuple[tuple[str, Format, int], ...]
    attrs: Attrs
    layout: StepLayout

    def __getitem__(self, axis: str) -> int:
        return dict(self.axes)[axis]

    def attr(self, name: str) -> Any:
        return dict(self.attrs)[name]

    def has(self, operand: str) -> bool:
        """Is this optional operand given?"""
        return operand in dict(self.dtypes) or any(w == operand for w, _, _ in self.formats)

    def format(self, weight: str) -> tuple[Format, int]:
        """Return (format, group size) of a weight operand."""
        return next((f, g) for w, f, g in self.formats if w == weight)

    def dtype(self, operand: str) -> np.dtype[Any]:
        name = dict(self.dtypes)[operand]
        return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)

    def described(self) -> str:
        """Return the op with its shape, the formats of its weights and its class, for messages."""
        axes = ", ".join(f"{name}={n}" for name, n in self.axes)
        formats = ", ".join(f"{w} {f.value}" for w, f, _ in self.formats)
        return " ".join(part for part in (self.op, f"[{axes}]", formats, self.table.value) if part)

    def static(self) -> Signature:
        """Return the signature that `prepare` sees: without dynamic axes and table class."""
        axes = tuple((a, n) for a, n in self.axes if a not in DYNAMIC)
        return Signature(
            self.op,
            TableClass.MIXED,
            self.precision,
            axes,
            self.dtypes,
            self.formats,
            self.attrs,
            self.layout,
        )


Reference = Callable[..., dict[str, Any]]
Decompose = Callable[[Node, TableClass], list[Node]]


@dataclass(frozen=True)
class OpSpec:
    """One operation's contract. Suite ids, docs, benchmark shapes and self-tests derive from it.

    reference  primitive: numpy in float64, called with every operand and attribute by name
               (arrays at capacity, weights as `Weight`, params as `StepParams`); updates state
               in place and returns {output: live rows}
    decompose  layer op: (node, table class) -> primitive nodes
    writes     the operands that may be written besides the outputs
    work       (signature, live lengths of the dynamic axes) -> Work
    check      (case, got, want, tolerance) -> mismatches
    """

    name: str
    tier: Tier
    doc: str
    source: str
    operands: tuple[Operand, ...]
    cases: Callable[[], Iterable[Case]]
    work: Callable[[Signature, Mapping[str, int]], Work]
    tolerance: Mapping[Numerics, Tolerance]
    attrs: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    reference: Reference | None = None
    decompose: Decompose | None = None
    check: Callable[[Case, Any, Any, Tolerance], list[Mismatch]] = compare

    def __post_init__(self) -> None:
        assert self.reference is not None or self.decompose is not None, self.name
        in_place = tuple(o.name for o in self.operands if o.role in (Role.STATE, Role.INOUT))
        assert set(self.writes) <= set(in_place), f"{self.name}: {self.writes} not in {in_place}"

    def operand(self, name: str) -> Operand:
        return next(o for o in self.operands if o.name == name)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if o.role is Role.OUTPUT)

    @property
    def weights(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if o.role is Role.WEIGHT)

    def shape(self, operand: str, axes: Mapping[str, int]) -> tuple[int, ...]:
        """Return an operand's shape with these axes."""
        return tuple(evaluate_dim(d, axes) for d in self.operand(operand).shape)


@lru_cache(maxsize=4096)
def _parse(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def evaluate_dim(expression: str, axes: Mapping[str, int]) -> int:
    """Return the value of a dimension, an expression of +, *, // over axis names and integers.

    Raises KeyError with the axis name when an axis is not in `axes`.
    """

    def walk(e: ast.expr) -> int:
        if isinstance(e, ast.Constant) and isinstance(e.value, int):
            return e.value
        if isinstance(e, ast.Name):
            return axes[e.id] if e.id in axes else DYNAMIC[e.id]
        assert isinstance(e, ast.BinOp), expression
        left, right = walk(e.left), walk(e.right)
        if isinstance(e.op, ast.Add):
            return left + right
        if isinstance(e.op, ast.Sub):
            return left - right
        if isinstance(e.op, ast.Mult):
            return left * right
        assert isinstance(e.op, ast.FloorDiv), expression
        return left // right

    return walk(_parse(expression))


def axis_names(expression: str) -> list[str]:
    """Return the axis names that a dimension uses."""
    return [n.id for n in ast.walk(_parse(expression)) if isinstance(n, ast.Name)]


def show_dim(value: int) -> str:
    """Return a dimension as text: dynamic ones by name, so `16*T` and not a large number."""
    for name, prime in DYNAMIC.items():
        if value % prime == 0:
            factor = value // prime
            return name if factor == 1 else f"{factor}*{name}"
    return str(value)
