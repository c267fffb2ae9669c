"""A small language over `llvmlite.ir`: values with operators, loops, variables, memory.

A kernel is a Python function that emits one native function
`void (i64 args, i64 thread, i64 threads, i64 state, i64 step)`: `args` is the address of 64-bit
words, `state` that of what the threads have in common (see team.py), `step` the number of the step.
Its work is cut into items, which threads take until none is left: `deal` once, or `split` for as
many equal parts as there are threads. A step is over when its items are done, whoever did them.
Addresses are plain 64-bit integers. Vectors have the width that the description says; the code
generator cuts them to what the processor has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from llvmlite import ir

from clover_rt_cpu.jit.values import (
    F16,
    F32,
    F64,
    I1,
    I8,
    I32,
    I64,
    LANES,
    SIZES,
    Number,
    Value,
    Var,
    vec,
)

# 64-bit words of what the threads have in common: number of the step and next item; items done
WORD, DONE = 0, 8


class Code:
    """One function being emitted.

    split  the whole of it is run for each of as many parts as there are threads
    """

    def __init__(
        self, module: ir.Module, name: str, parameters: int = 5, split: bool = False
    ) -> None:
        kind = ir.FunctionType(ir.VoidType(), [I64] * parameters)
        self.module = module
        self.function = ir.Function(module, kind, name)
        self.function.attributes.add("nounwind")
        self.ir = ir.IRBuilder(self.function.append_basic_block())
        self.parameters = [Value(self, a) for a in self.function.args]
        self.open = ExitStack()
        if split:
            self.part = self.open.enter_context(self.deal(self.threads))

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

    def instruct(self, name: str, *operands: int | Value) -> None:
        """Call an intrinsic of one processor family that returns nothing.

        Whole numbers are constants of 8 bits; the first value is an address.
        """
        kinds: list[Any] = []
        raw = []
        for operand in operands:
            if isinstance(operand, int):
                kinds.append(I8)
                raw.append(ir.Constant(I8, operand))
            elif ir.PointerType() in kinds:
                kinds.append(operand.type)
                raw.append(operand.raw)
            else:
                kinds.append(ir.PointerType())
                raw.append(self.ir.inttoptr(operand.raw, ir.PointerType()))
        self.ir.call(self._declared(name, ir.VoidType(), kinds), raw)

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
        """Bring a line of memory into the second cache; the first is for what is used again."""
        pointer = self.ir.inttoptr(address.raw, ir.PointerType())
        found = self._declared("llvm.prefetch.p0", ir.VoidType(), [ir.PointerType(), I32, I32, I32])
        self.ir.call(found, [pointer, *(ir.Constant(I32, n) for n in (0, 2, 1))])

    def atomic_add(self, address: Value, amount: int) -> Value:
        """Add to a 32-bit number and return what it was."""
        pointer = self.ir.inttoptr(address.raw, ir.PointerType())
        return Value(self, self.ir.atomic_rmw("add", pointer, ir.Constant(I32, amount), "seq_cst"))

    def fresh(self, address: Value, kind: Any = I32) -> Value:
        """Load a number that other threads write."""
        pointer = self.ir.inttoptr(address.raw, ir.PointerType())
        return Value(self, self.ir.load_atomic(pointer, "seq_cst", SIZES[kind], typ=kind))

    def put_fresh(self, value: Value, address: Value) -> None:
        """Store a number that other threads read, behind all that was stored before."""
        pointer = self.ir.inttoptr(address.raw, value.type.as_pointer())
        self.ir.store_atomic(value.raw, pointer, "seq_cst", SIZES[value.type])

    def swap(self, address: Value, old: Value, new: Value) -> Value:
        """Replace a 64-bit number if it is `old`; return what it was."""
        pointer = self.ir.inttoptr(address.raw, ir.PointerType())
        pair = self.ir.cmpxchg(pointer, old.raw, new.raw, "seq_cst", "seq_cst")
        return Value(self, self.ir.extract_value(pair, 0))

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
        """Run the body for items 0 .. items - 1, each taken by one thread; once in a function.

        A thread that comes after the step is over takes nothing, whatever `items` is to it: it may
        have counted them in memory that later steps have written meanwhile.
        """
        state, step = self.parameters[3:]
        word, done = state + 8 * WORD, state + 8 * DONE
        here, after = step << 32, ((step + 1) & 0xFFFFFFFF) << 32
        with self.when(items.equals(0)):
            self.swap(word, here, after)
        taken = self.var(self.const(I64, -1))

        def take() -> Value:
            taken.v = self.const(I64, -1)
            seen = self.var(self.fresh(word, I64))

            def is_left() -> Value:
                is_open = (seen.v >> 32).equals(step)
                return self.both(is_open, (seen.v & 0xFFFFFFFF) < items)

            with self.whilst(lambda: self.both(is_left(), taken.v < 0)):
                got = self.swap(word, seen.v, seen.v + 1)
                taken.v = self.select(got.equals(seen.v), seen.v - here, taken.v)
                seen.v = got
            return taken.v >= 0

        with self.whilst(take):
            yield taken.v
            with self.when(self.atomic_add(done, 1).to(I64).equals(items - 1)):
                self.put_fresh(self.const(I32, 0), done)
                self.put_fresh(after, word)

    def share(self, items: Value) -> tuple[Value, Value]:
        """Return this part's range of items, cut evenly."""
        lo = items * self.part // self.threads
        hi = items * (self.part + 1) // self.threads
        return lo, hi

    def end(self) -> None:
        self.open.close()
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
