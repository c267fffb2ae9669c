"""A small language over `llvmlite.ir`: values with operators, loops, variables, memory.

A kernel is a Python function that emits one native function
`void (i64 args, i64 thread, i64 threads, i64 counter)`: `args` is the address of 64-bit words,
`counter` that of a 32-bit number that is zero when a step begins, for dealing out work. Addresses
are plain 64-bit integers. Vectors have the width that the description says; the code generator
cuts them to what the processor has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
LANES = 16
"""Floats of the vectors that kernels are written in."""

Number = int | float
SIZES = {I1: 0, I8: 1, I16: 2, I32: 4, I64: 8, F16: 2, F32: 4, F64: 8}


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


class Code:
    """One function being emitted."""

    def __init__(self, module: ir.Module, name: str, parameters: int = 4) -> None:
        kind = ir.FunctionType(ir.VoidType(), [I64] * parameters)
        self.module = module
        self.function = ir.Function(module, kind, name)
        self.ir = ir.IRBuilder(self.function.append_basic_block())
        self.parameters = [Value(self, a) for a in self.function.args]

    def args(self, count: int) -> list[Value]:
        """Return the first words that the argument address points at."""
        base = self.parameters[0]
        return [self.load(I64, base + 8 * i) for i in range(count)]

    @property
    def thread(self) -> Value:
        return self.parameters[1]

    @property
    def threads(self) -> Value:
        return self.parameters[2]

    def const(self, kind: Any, number: Number) -> Value:
        if isinstance(kind, ir.VectorType):
            return Value(self, ir.Constant(kind, [number] * kind.count))
        return Value(self, ir.Constant(kind, number))

    def vector(self, element: Any, numbers: Sequence[Number]) -> Value:
        return Value(self, ir.Constant(vec(element, len(numbers)), list(numbers)))

    def like(self, x: Value | Number, other: Value) -> Value:
        """Return x with the type of another value: constants are made, numbers splatted."""
        if not isinstance(x, Value):
            return self.const(other.type, float(x) if other.is_float else int(x))
        if x.lanes == 1 and other.lanes > 1:
            return x.splat(other.lanes)
        return x

    def pair(self, a: Value, b: Value | Number) -> tuple[Value, Value]:
        """Return two operands with the same type."""
        other = self.like(b, a)
        return self.like(a, other), other

    def var(self, start: Value) -> Var:
        with self.ir.goto_entry_block():
            slot = self.ir.alloca(start.type)
        out = Var(self, slot)
        out.v = start
        return out

    def room(self, nbytes: int) -> Value:
        """Return the address of memory of the function's own, at a multiple of 64."""
        with self.ir.goto_entry_block():
            slot = self.ir.alloca(ir.ArrayType(I8, nbytes))
            slot.align = 64
            return Value(self, self.ir.ptrtoint(slot, I64))

    def load(self, kind: Any, address: Value, align: int = 1) -> Value:
        pointer = self.ir.inttoptr(address.raw, ir.PointerType())
        return Value(self, self.ir.load(pointer, align=align, typ=kind))

    def store(self, value: Value, address: Value, align: int = 1) -> None:
        pointer = self.ir.inttoptr(address.raw, ir.PointerType())
        self.ir.store(value.raw, pointer, align=align)

    def masked(self, kind: Any, address: Value, live: Value) -> Value:
        """Load the lanes that are live; the others are zero and not touched."""
        pointer = self.ir.inttoptr(address.raw, ir.PointerType())
        name = f"llvm.masked.load.{_suffix(kind)}.p0"
        i1s = vec(I1, kind.count)
        found = self._declared(name, kind, [ir.PointerType(), I32, i1s, kind])
        operands = [pointer, ir.Constant(I32, 1), live.raw, self.const(kind, 0).raw]
        return Value(self, self.ir.call(found, operands))

    def masked_store(self, value: Value, address: Value, live: Value) -> None:
        pointer = self.ir.inttoptr(address.raw, ir.PointerType())
        name = f"llvm.masked.store.{_suffix(value.type)}.p0"
        kinds = [value.type, ir.PointerType(), I32, vec(I1, value.lanes)]
        found = self._declared(name, ir.VoidType(), kinds)
        self.ir.call(found, [value.raw, pointer, ir.Constant(I32, 1), live.raw])

    def live(self, count: Value, lanes: int = LANES) -> Value:
        """Return which lanes lie below a count."""
        return self.vector(I32, range(lanes)) < count.to(I32)

    def intrinsic(self, name: str, *operands: Value, result: Any = None) -> Value:
        """Call an intrinsic that is overloaded by the type of its first operand."""
        kind = operands[0].type
        found = self._declared(
            f"llvm.{name}.{_suffix(kind)}", result or kind, [o.type for o in operands]
        )
        return Value(self, self.ir.call(found, [o.raw for o in operands]))

    def intrinsic_with_flag(self, name: str, x: Value, flag: bool = False) -> Value:
        """Call an overloaded intrinsic that takes one more constant bit."""
        found = self._declared(f"llvm.{name}.{_suffix(x.type)}", x.type, [x.type, I1])
        return Value(self, self.ir.call(found, [x.raw, ir.Constant(I1, int(flag))]))

    def target(self, name: str, result: Any, *operands: Value) -> Value:
        """Call an intrinsic of one processor family by its whole name."""
        found = self._declared(name, result, [o.type for o in operands])
        return Value(self, self.ir.call(found, [o.raw for o in operands]))

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return a * b + c, rounded once."""
        kind = next((v for v in (a, b, c) if v.lanes > 1), a)
        a, b, c = (self.like(v, kind) for v in (a, b, c))
        return self.intrinsic("fma", a, b, c)

    def sqrt(self, x: Value) -> Value:
        return self.intrinsic("sqrt", x)

    def select(self, condition: Value, a: Value | Number, b: Value | Number) -> Value:
        given = a if isinstance(a, Value) else b
        assert isinstance(given, Value)
        if condition.lanes > 1 and given.lanes == 1:
            given = given.splat(condition.lanes)
        first, second = self.like(a, given), self.like(b, given)
        return Value(self, self.ir.select(condition.raw, first.raw, second.raw))

    def least(self, a: Value, b: Value | Number) -> Value:
        a, b = self.pair(a, b)
        return self.select(b < a, b, a)

    def most(self, a: Value, b: Value | Number) -> Value:
        """Return the larger; a NaN in `a` stays."""
        a, b = self.pair(a, b)
        return self.select(a < b, b, a)

    def both(self, a: Value, b: Value) -> Value:
        return Value(self, self.ir.and_(a.raw, b.raw))

    def call(self, function: Value, operands: Sequence[Value], result: bool = False) -> None:
        """Call a function by its address; its result, an int, is dropped."""
        kind = ir.FunctionType(I32 if result else ir.VoidType(), [I64] * len(operands))
        pointer = self.ir.inttoptr(function.raw, kind.as_pointer())
        self.ir.call(pointer, [o.raw for o in operands])

    def prefetch(self, address: Value) -> None:
        pointer = self.ir.inttoptr(address.raw, ir.PointerType())
        found = self._declared(
            "llvm.prefetch.p0", ir.VoidType(), [ir.PointerType(), I32, I32, I32]
        )
        self.ir.call(found, [pointer, *(ir.Constant(I32, n) for n in (0, 3, 1))])

    def atomic_add(self, address: Value, amount: int) -> Value:
        """Add to a 32-bit number and return what it was."""
        pointer = self.ir.inttoptr(address.raw, ir.PointerType())
        return Value(self, self.ir.atomic_rmw("add", pointer, ir.Constant(I32, amount), "seq_cst"))

    def fresh(self, address: Value) -> Value:
        """Load a 32-bit number that other threads write."""
        pointer = self.ir.inttoptr(address.raw, ir.PointerType())
        return Value(self, self.ir.load_atomic(pointer, "seq_cst", 4, typ=I32))

    def pause(self) -> None:
        """Let a thread that spins leave its core to others for some cycles."""
        if self.module.triple.startswith("x86_64"):
            found = self._declared("llvm.x86.sse2.pause", ir.VoidType(), [])
            self.ir.call(found, [])
        elif self.module.triple.startswith("aarch64"):
            found = self._declared("llvm.aarch64.hint", ir.VoidType(), [I32])
            self.ir.call(found, [ir.Constant(I32, 1)])

    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: int = 1) -> Iterator[Value]:
        """Run the body for start, start + step, ... below stop."""
        first = start if isinstance(start, Value) else self.const(I64, start)
        end = stop if isinstance(stop, Value) else self.const(first.type, stop)
        at = self.var(first)
        with self.whilst(lambda: at.v < end):
            here = at.v
            yield here
            at.v = here + step

    @contextmanager
    def whilst(self, condition: Callable[[], Value]) -> Iterator[None]:
        """Run the body as long as the condition, emitted before it, holds."""
        head = self.function.append_basic_block()
        body = self.function.append_basic_block()
        done = self.function.append_basic_block()
        self.ir.branch(head)
        self.ir.position_at_end(head)
        self.ir.cbranch(condition().raw, body, done)
        self.ir.position_at_end(body)
        yield
        self.ir.branch(head)
        self.ir.position_at_end(done)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        with self.ir.if_then(condition.raw):
            yield

    def either(
        self, condition: Value, first: Callable[[], None], second: Callable[[], None]
    ) -> None:
        """Run one of two bodies."""
        with self.ir.if_else(condition.raw) as (then, otherwise):
            with then:
                first()
            with otherwise:
                second()

    @contextmanager
    def deal(self, items: Value) -> Iterator[Value]:
        """Take items 0 .. items - 1 from the counter that all threads share."""
        counter = self.parameters[3]
        at = self.var(self.atomic_add(counter, 1).to(I64))
        with self.whilst(lambda: at.v < items):
            yield at.v
            at.v = self.atomic_add(counter, 1).to(I64)

    def share(self, items: Value) -> tuple[Value, Value]:
        """Return this thread's range of items, cut evenly."""
        lo = items * self.thread // self.threads
        hi = items * (self.thread + 1) // self.threads
        return lo, hi

    def end(self) -> None:
        self.ir.ret_void()

    def _declared(self, name: str, result: Any, kinds: list[Any]) -> Any:
        if name in self.module.globals:
            return self.module.globals[name]
        return ir.Function(self.module, ir.FunctionType(result, kinds), name)


def _suffix(kind: Any) -> str:
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{_suffix(kind.element)}"
    if isinstance(kind, ir.IntType):
        return f"i{kind.width}"
    return {F16: "f16", F32: "f32", F64: "f64"}[kind]
