"""Numbers and vectors of a function being emitted, with operators; see lang.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llvmlite import ir

if TYPE_CHECKING:
    from clover_rt_cpu.jit.lang import Code

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()


class _BFloat(ir.types.Type):  # type: ignore[misc]
    """bfloat16, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


BF16 = _BFloat()
LANES = 16
"""Floats of the vectors that kernels are written in."""

Number = int | float
SIZES = {I1: 0, I8: 1, I16: 2, I32: 4, I64: 8, F16: 2, BF16: 2, F32: 4, F64: 8}


def vec(element: Any, lanes: int = LANES) -> Any:
    """Return the type of `lanes` numbers."""
    return ir.VectorType(element, lanes)


F32V, I32V = vec(F32), vec(I32)


class Value:
    """A number or vector of the function being emitted; operators emit instructions."""

    __slots__ = ("code", "raw")

    def __init__(self, code: Code, raw: Any) -> None:
        self.code = code
        self.raw = raw

    @property
    def type(self) -> Any:
        return self.raw.type

    @property
    def lanes(self) -> int:
        return self.type.count if isinstance(self.type, ir.VectorType) else 1

    @property
    def element(self) -> Any:
        return self.type.element if isinstance(self.type, ir.VectorType) else self.type

    @property
    def is_float(self) -> bool:
        return not isinstance(self.element, ir.IntType)

    def _two(self, other: Value | Number, integer: str, floating: str) -> Value:
        name = floating if self.is_float else integer
        a, b = self.code.pair(self, other)
        return Value(self.code, getattr(self.code.ir, name)(a.raw, b.raw))

    def _flip(self, other: Number) -> Value:
        return self.code.like(other, self)

    def __add__(self, other: Value | Number) -> Value:
        return self._two(other, "add", "fadd")

    def __sub__(self, other: Value | Number) -> Value:
        return self._two(other, "sub", "fsub")

    def __mul__(self, other: Value | Number) -> Value:
        return self._two(other, "mul", "fmul")

    def __truediv__(self, other: Value | Number) -> Value:
        return self._two(other, "", "fdiv")

    def __floordiv__(self, other: Value | Number) -> Value:
        """Divide numbers that are not negative."""
        return self._two(other, "udiv", "")

    def __mod__(self, other: Value | Number) -> Value:
        return self._two(other, "urem", "")

    def __and__(self, other: Value | Number) -> Value:
        return self._two(other, "and_", "")

    def __or__(self, other: Value | Number) -> Value:
        return self._two(other, "or_", "")

    def __xor__(self, other: Value | Number) -> Value:
        return self._two(other, "xor", "")

    def __lshift__(self, other: Value | Number) -> Value:
        return self._two(other, "shl", "")

    def __rshift__(self, other: Value | Number) -> Value:
        """Shift zeros in."""
        return self._two(other, "lshr", "")

    def __radd__(self, other: Number) -> Value:
        return self._flip(other) + self

    def __rsub__(self, other: Number) -> Value:
        return self._flip(other) - self

    def __rmul__(self, other: Number) -> Value:
        return self._flip(other) * self

    def __rtruediv__(self, other: Number) -> Value:
        return self._flip(other) / self

    def _compare(self, other: Value | Number, sign: str) -> Value:
        a, b = self.code.pair(self, other)
        emit = self.code.ir.fcmp_ordered if self.is_float else self.code.ir.icmp_signed
        return Value(self.code, emit(sign, a.raw, b.raw))

    def __lt__(self, other: Value | Number) -> Value:
        return self._compare(other, "<")

    def __le__(self, other: Value | Number) -> Value:
        return self._compare(other, "<=")

    def __gt__(self, other: Value | Number) -> Value:
        return self._compare(other, ">")

    def __ge__(self, other: Value | Number) -> Value:
        return self._compare(other, ">=")

    def equals(self, other: Value | Number) -> Value:
        return self._compare(other, "==")

    def differs(self, other: Value | Number) -> Value:
        """Is it another number; false with a NaN."""
        return self._compare(other, "!=")

    def sar(self, other: Value | Number) -> Value:
        """Shift copies of the sign in."""
        return self._two(other, "ashr", "")

    def bits(self, element: Any) -> Value:
        """Return the same bits as vectors or numbers of another element type."""
        total = SIZES[self.element] * self.lanes // SIZES[element]
        kind = element if total == 1 else vec(element, total)
        return Value(self.code, self.code.ir.bitcast(self.raw, kind))

    def to(self, element: Any, signed: bool = True) -> Value:
        """Convert every number to another type."""
        if element == self.element:
            return self
        kind = element if self.lanes == 1 else vec(element, self.lanes)
        is_int = isinstance(element, ir.IntType)
        if self.is_float and is_int:
            name = "fptosi"
        elif self.is_float:
            name = "fpext" if SIZES[element] > SIZES[self.element] else "fptrunc"
        elif not is_int:
            name = "sitofp" if signed else "uitofp"
        elif element.width < self.element.width:
            name = "trunc"
        else:
            name = "sext" if signed else "zext"
        return Value(self.code, getattr(self.code.ir, name)(self.raw, kind))

    def splat(self, lanes: int = LANES) -> Value:
        """Return a vector of copies of a number."""
        code = self.code
        poison = ir.Constant(vec(self.type, lanes), ir.Undefined)
        one = code.ir.insert_element(poison, self.raw, ir.Constant(I32, 0))
        zeros = ir.Constant(vec(I32, lanes), [0] * lanes)
        return Value(code, code.ir.shuffle_vector(one, poison, zeros))

    def pick(self, lanes: Sequence[int], other: Value | None = None) -> Value:
        """Return a vector of chosen lanes of this one, and of `other` behind it."""
        mask = ir.Constant(vec(I32, len(lanes)), list(lanes))
        second = ir.Constant(self.type, ir.Undefined) if other is None else other.raw
        return Value(self.code, self.code.ir.shuffle_vector(self.raw, second, mask))

    def lane(self, index: int) -> Value:
        return Value(self.code, self.code.ir.extract_element(self.raw, ir.Constant(I32, index)))


class Var:
    """A variable of the function: `v` reads and writes it."""

    __slots__ = ("code", "slot")

    def __init__(self, code: Code, slot: Any) -> None:
        self.code = code
        self.slot = slot

    @property
    def v(self) -> Value:
        kind = self.slot.allocated_type
        return Value(self.code, self.code.ir.load(self.slot, typ=kind))

    @v.setter
    def v(self, value: Value) -> None:
        self.code.ir.store(value.raw, self.slot)
