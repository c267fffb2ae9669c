"""Calls of the inner loops of products from other functions: rows cut into tiles."""

from __future__ import annotations

from collections.abc import Callable

from clover_rt_cpu.jit import amx
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.product import BLOCK, Inner
from clover_rt_cpu.jit.values import F32V, I64, Value

Even = tuple[Value, Value]
"""Rows that lie evenly: the address of the first, and the bytes from one to the next."""


class Tiles:
    """Calls of an inner loop; `functions` is the address of its functions' addresses."""

    def __init__(self, code: Code, inner: Inner, functions: Value) -> None:
        self.code = code
        self.most = inner.tiles[-1]
        self.has_many = inner.has_many
        self.functions = functions
        self.rows = code.room(8 * self.most)
        self.out = code.room(4 * BLOCK * (amx.MOST if self.has_many else self.most))

    def run(
        self,
        block: Value,
        count: Value,
        row: Callable[[Value], Value],
        columns: Value,
        shift: Value,
        put: Callable[[Value, Value], None],
        even: Even | None = None,
    ) -> None:
        """Multiply `count` rows with the block whose words lie at an address.

        row(i) is the address of row i; put(i, sums) takes its 16 products; where the rows lie
        evenly `even` says how, at least where there are amx.FEWEST of them
        """
        code = self.code
        done = code.var(code.const(I64, 0))

        def few() -> None:
            left = count - done.v
            # tiles of about the same height: nine rows go as five and four
            tiles = (left + (self.most - 1)) // self.most
            height = (left + tiles - 1) // tiles
            first = done.v
            with code.loop(0, height) as i:
                code.store(row(first + i), self.rows + i * 8, 8)
            function = code.load(I64, self.functions + (height - 1) * 8, 8)
            code.call(function, [block, self.rows, columns, shift, self.out])
            take(first, height)

        def many() -> None:
            assert even is not None
            start, stride = even
            first = done.v
            height = code.least(count - first, amx.MOST)
            function = code.load(I64, self.functions + 8 * self.most, 8)
            operands = [block, start + first * stride, stride, height, columns, shift, self.out]
            code.call(function, operands)
            take(first, height)

        def take(first: Value, height: Value) -> None:
            with code.loop(0, height) as i:
                put(first + i, code.load(F32V, self.out + i * (4 * BLOCK), 64))
            done.v = first + height

        with code.whilst(lambda: done.v < count):
            if self.has_many and even is not None:
                fits = (columns % amx.COLUMNS).equals(0)
                code.either(code.both(count - done.v >= amx.FEWEST, fits), many, few)
            else:
                few()
