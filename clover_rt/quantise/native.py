"""Native functions of the scale search, generated for this processor when they are first used.

Written with vectors of 16 numbers and plain float32 operations in a fixed order: no fused or
reordered arithmetic, so every processor finds the same bits. One group of values is held in
registers while the candidates are tried.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

# numbers in a vector, and scales that are tried side by side
LANES, TRIES = 16, 4
F32 = ir.FloatType()
I8, I32, I64 = (ir.IntType(n) for n in (8, 32, 64))
F32V, I32V, I8V = (ir.VectorType(kind, LANES) for kind in (F32, I32, I8))
TRIESV = ir.VectorType(F32, TRIES)
Body = Callable[[Any, list[Any]], list[Any]]
# adding and subtracting it rounds numbers below 2^22 to the nearest whole one, ties to even
ROUNDER = 1.5 * 2**23
# a group of smaller numbers has a float16 scale of zero, whatever the codes
TINY = 1e-7


class Native:
    """The functions for one group size and range of codes.

    width      numbers a group: a multiple of 16
    low, high  the smallest and the largest code, less the zero point
    nibbles    two codes go into a byte, low nibble first, with 8 added; else one int8 each
    cpu        a processor by LLVM's name, to use no more than it has; "" for this one
    """

    def __init__(self, width: int, low: int, high: int, nibbles: bool, cpu: str = "") -> None:
        module = ir.Module("quantise")
        _emit_search(module, width, low, high)
        _emit_codes(module, width, low, high, nibbles)
        machine = _machine(cpu)
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
        passes.getModulePassManager().run(parsed, passes)
        # the engine owns the code: it lives as long as this object
        self._engine = llvm.create_mcjit_compiler(parsed, machine)
        self._engine.finalize_object()
        self._search = self._function("search", 6)
        self._codes = self._function("codes", 6)

    def search(
        self, values: int, groups: int, tries: int, count: int, plain: int, best: int
    ) -> None:
        """Find a scale for each group; arguments are addresses of float32 arrays, and counts.

        values [groups, width] are finite. tries [4 * count] holds what the extreme of a group is to
        map to, in codes. plain [groups] gets extreme / tries[0]; best [groups] the scale of least
        squared error for the codes that the best try gives. Both are 0 for a group of zeros.
        """
        self._search(values, groups, tries, count, plain, best)

    def codes(self, values: int, groups: int, plain: int, best: int, chosen: int, out: int) -> None:
        """Round each group at the scale of less squared error, `plain` where both are equal.

        plain, best, chosen  float32 [groups]: two scales to compare, and the one that was taken
        out                  the codes, width bytes a group, or half of it for nibbles
        """
        self._codes(values, groups, plain, best, chosen, out)

    def _function(self, name: str, count: int) -> Callable[..., None]:
        # a foreign function gives up the interpreter's lock, so threads run side by side
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * count)
        return kind(self._engine.get_function_address(name))


@cache
def native(width: int, low: int, high: int, nibbles: bool) -> Native:
    """Return the functions for one kind of group, made once."""
    return Native(width, low, high, nibbles)


def _machine(cpu: str) -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu or llvm.get_host_cpu_name(),
        features="" if cpu else llvm.get_host_cpu_features().flatten(),
        opt=2,
        codemodel="jitdefault",
    )


class _Code:
    """A function of 64-bit words being emitted; what both functions have in common."""

    def __init__(self, module: ir.Module, name: str, low: int, high: int) -> None:
        kind = ir.FunctionType(ir.VoidType(), [I64] * 6)
        self.module = module
        self.function = ir.Function(module, kind, name)
        self.ir = ir.IRBuilder(self.function.append_basic_block())
        self.low, self.high, self.rounder = (_splat(float(n)) for n in (low, high, ROUNDER))

    def address(self, base: Any, index: Any, nbytes: int) -> Any:
        offset = self.ir.add(base, self.ir.mul(index, I64(nbytes)))
        return self.ir.inttoptr(offset, ir.PointerType())

    def load(self, base: Any, index: Any) -> Any:
        return self.ir.load(self.address(base, index, 4), typ=F32, align=4)

    def store(self, value: Any, base: Any, index: Any) -> None:
        self.ir.store(value, self.address(base, index, 4), align=4)

    def group(self, values: Any, index: Any, width: int) -> list[Any]:
        """Return the numbers of a group as vectors."""
        first = self.ir.mul(index, I64(width // LANES))
        at = [self.ir.add(first, I64(i)) for i in range(width // LANES)]
        spots = [self.address(values, i, 4 * LANES) for i in at]
        return [self.ir.load(spot, typ=F32V, align=4) for spot in spots]

    def spread(self, x: Any, count: int = LANES) -> Any:
        """Return a vector with a number in every lane."""
        empty = ir.Constant(ir.VectorType(F32, count), ir.Undefined)
        return self.lanes(self.ir.insert_element(empty, x, I32(0)), [0] * count)

    def lanes(self, x: Any, chosen: Sequence[int], y: Any = None) -> Any:
        """Return chosen numbers of one vector, or of two behind each other."""
        kind = ir.VectorType(I32, len(chosen))
        return self.ir.shuffle_vector(x, x if y is None else y, ir.Constant(kind, list(chosen)))

    def rounded(self, x: Any, inverse: Any) -> Any:
        """Return the codes, as whole float32 numbers, of numbers times 1 / scale."""
        x = self.ir.fmul(x, inverse)
        x = self.pick("<", self.low, x, x, self.low)
        x = self.pick("<", x, self.high, x, self.high)
        return self.ir.fsub(self.ir.fadd(x, self.rounder), self.rounder)

    def pick(self, order: str, a: Any, b: Any, first: Any, second: Any) -> Any:
        return self.ir.select(self.ir.fcmp_ordered(order, a, b), first, second)

    def inverse(self, scale: Any) -> Any:
        """Return 1 / scale, or 0 for a scale of 0."""
        is_zero = self.ir.fcmp_ordered("==", scale, F32(0.0))
        divisor = self.ir.select(is_zero, F32(1.0), scale)
        return self.ir.select(is_zero, F32(0.0), self.ir.fdiv(F32(1.0), divisor))

    def fold(self, x: Any, join: Callable[[Any, Any], Any]) -> Any:
        """Return the 16 numbers of a vector joined by halves."""
        lanes = LANES
        while lanes > 1:
            lanes //= 2
            x = join(self.lanes(x, range(lanes)), self.lanes(x, range(lanes, 2 * lanes)))
        return self.ir.extract_element(x, I32(0))

    def added(self, vectors: list[Any]) -> Any:
        whole = vectors[0]
        for vector in vectors[1:]:
            whole = self.ir.fadd(whole, vector)
        return whole

    def totals(self, vectors: list[Any]) -> Any:
        """Return the sum of each of some vectors: a power of two of them, up to 16.

        Vectors are joined two by two while they are halved, which is less work than one by one.
        """
        size = LANES
        while size > 1:
            # each vector is made of parts of `size` numbers that are still to be added up
            size //= 2
            pairs = [vectors[i : i + 2] for i in range(0, len(vectors), 2)]
            spots = range(sum(vector.type.count for vector in pairs[0]))
            low, high = ([n for n in spots if n // size % 2 == half] for half in (0, 1))
            vectors = [
                self.ir.fadd(self.lanes(p[0], low, p[-1]), self.lanes(p[0], high, p[-1]))
                for p in pairs
            ]
        return vectors[0]

    def loop(self, count: Any, start: list[Any], body: Body) -> list[Any]:
        """Run a body for 0 .. count - 1; it is given and returns the values that it carries."""
        before = self.ir.block
        head, inside, done = (self.function.append_basic_block() for _ in range(3))
        self.ir.branch(head)
        self.ir.position_at_end(head)
        index = self.ir.phi(I64)
        carried = [self.ir.phi(value.type) for value in start]
        self.ir.cbranch(self.ir.icmp_signed("<", index, count), inside, done)
        self.ir.position_at_end(inside)
        after = body(index, list(carried))
        following = self.ir.add(index, I64(1))
        for phi, first, later in zip(
            [index, *carried], [I64(0), *start], [following, *after], strict=True
        ):
            phi.add_incoming(first, before)
            phi.add_incoming(later, self.ir.block)
        self.ir.branch(head)
        self.ir.position_at_end(done)
        return carried


def _emit_search(module: ir.Module, width: int, low: int, high: int) -> None:
    code = _Code(module, "search", low, high)
    b = code.ir
    values, groups, tries, count, plain, best = code.function.args

    def one(index: Any, _: list[Any]) -> list[Any]:
        x = code.group(values, index, width)
        largest, smallest = x[0], x[0]
        for vector in x[1:]:
            largest = code.pick("<", largest, vector, vector, largest)
            smallest = code.pick("<", vector, smallest, vector, smallest)
        top = code.fold(largest, lambda a, c: code.pick("<", a, c, c, a))
        bottom = code.fold(smallest, lambda a, c: code.pick("<", c, a, c, a))
        below = b.fneg(bottom)
        extreme = code.pick("<", below, top, top, bottom)
        size = code.pick("<", below, top, top, below)
        is_tiny = b.fcmp_ordered("<", size, F32(_single(TINY)))
        divisor = b.select(is_tiny, F32(1.0), extreme)

        def attempt(at: Any, held: list[Any]) -> list[Any]:
            spot = code.address(tries, at, 4 * TRIES)
            wanted = b.load(spot, typ=TRIESV, align=4)
            inverses = b.fdiv(wanted, code.spread(divisor, TRIES))
            dots, squares = [], []
            for lane in range(TRIES):
                inverse = code.lanes(inverses, [lane] * LANES)
                q = [code.rounded(vector, inverse) for vector in x]
                dots.append(code.added([b.fmul(v, c) for v, c in zip(x, q, strict=True)]))
                squares.append(code.added([b.fmul(c, c) for c in q]))
            sums = code.totals(dots + squares)
            dot, square = (code.lanes(sums, range(lo, lo + TRIES)) for lo in (0, TRIES))
            # the error of the best scale for these codes is sum(x^2) less this
            gains = b.fdiv(b.fmul(dot, dot), square)
            found = b.fdiv(dot, square)
            for lane in range(TRIES):
                gain = b.extract_element(gains, I32(lane))
                is_better = b.fcmp_ordered("<", held[0], gain)
                scale = b.extract_element(found, I32(lane))
                held = [b.select(is_better, gain, held[0]), b.select(is_better, scale, held[1])]
            return held

        first = b.fdiv(extreme, code.load(tries, I64(0)))
        found = code.loop(count, [F32(-1.0), F32(0.0)], attempt)[1]
        code.store(b.select(is_tiny, F32(0.0), first), plain, index)
        code.store(b.select(is_tiny, F32(0.0), found), best, index)
        return []

    code.loop(groups, [], one)
    b.ret_void()


def _emit_codes(module: ir.Module, width: int, low: int, high: int, nibbles: bool) -> None:
    code = _Code(module, "codes", low, high)
    b = code.ir
    values, groups, plain, best, chosen, out = code.function.args

    def one(index: Any, _: list[Any]) -> list[Any]:
        x = code.group(values, index, width)

        def error(scale: Any) -> Any:
            by, inverse = code.spread(scale), code.spread(code.inverse(scale))
            off = [b.fsub(v, b.fmul(code.rounded(v, inverse), by)) for v in x]
            return code.added([b.fmul(v, v) for v in off])

        scales = code.load(plain, index), code.load(best, index)
        off = code.totals([error(scale) for scale in scales])
        plain_off, best_off = (b.extract_element(off, I32(lane)) for lane in (0, 1))
        scale = code.pick("<", best_off, plain_off, scales[1], scales[0])
        code.store(scale, chosen, index)
        inverse = code.spread(code.inverse(scale))
        first = b.mul(index, I64(width // LANES))
        for i, vector in enumerate(x):
            whole = b.trunc(b.fptosi(code.rounded(vector, inverse), I32V), I8V)
            nbytes = LANES
            if nibbles:
                whole, nbytes = _packed(b, whole), LANES // 2
            spot = code.address(out, b.add(first, I64(i)), nbytes)
            b.store(whole, spot, align=1)
        return []

    code.loop(groups, [], one)
    b.ret_void()


def _packed(b: ir.IRBuilder, codes: Any) -> Any:
    """Return 16 codes of -8 .. 7 as 8 bytes."""
    half = ir.VectorType(I32, LANES // 2)
    codes = b.add(codes, ir.Constant(I8V, [8] * LANES))
    even, odd = (
        b.shuffle_vector(codes, codes, ir.Constant(half, list(range(start, LANES, 2))))
        for start in (0, 1)
    )
    return b.or_(even, b.shl(odd, ir.Constant(ir.VectorType(I8, LANES // 2), [4] * (LANES // 2))))


def _splat(number: float) -> ir.Constant:
    return ir.Constant(F32V, [number] * LANES)


def _single(number: float) -> float:
    return ctypes.c_float(number).value
