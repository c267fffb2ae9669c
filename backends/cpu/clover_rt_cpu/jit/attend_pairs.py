"""The functions behind attend.py with dot products of pairs of bfloat16 numbers."""

from __future__ import annotations

from clover_rt.spec import PAGE_ROWS
from clover_rt_cpu.jit.attend_code import Kernel
from clover_rt_cpu.jit.maths import transposed
from clover_rt_cpu.jit.table import bf16_bits, to_bf16
from clover_rt_cpu.jit.values import F32, I16, I32, I32V, LANES, Value, Var, vec


class Pairs(Kernel):
    """The same with products of pairs of bfloat16; shares are rounded to it as well.

    A query is the sum of two bfloat16 numbers, since e^ makes much of an error in a large logit.
    Keys lie as [K/2][64] pairs of columns, values behind them as [32][K] pairs of places.
    """

    step = 2
    query_parts = 2

    def _keep_query(self, query: Value, c: Value, value: Value) -> None:
        code = self.code
        at = self.queries_at + (query * self.width + c) * 2
        high = to_bf16(code, value)
        code.store(high, at, 32)
        rest = value - bf16_bits(high).bits(F32)
        code.store(to_bf16(code, rest), at + self.queries * self.width * 2, 32)

    def _keep_share(self, shares: Value, part: int, share: Value) -> None:
        self.code.store(to_bf16(self.code, share), shares + 2 * LANES * part, 32)

    def _transpose(self, keys: Value, stride: Value) -> None:
        code = self.code
        with code.loop(0, self.width, 2 * LANES) as c, code.loop(0, PAGE_ROWS, LANES) as p:
            at = keys + p * stride + c * 2
            square = [code.load(I32V, at + stride * i) for i in range(LANES)]
            to = self.keys_at + (c * PAGE_ROWS // 2 + p) * 4
            for i, row in enumerate(transposed(square)):
                code.store(row, to + 4 * PAGE_ROWS * i, 64)

    def _arrange(self, values: Value, stride: Value) -> tuple[Value, Value]:
        code = self.code
        home = self.keys_at + self.width * (2 * PAGE_ROWS)
        with code.loop(0, PAGE_ROWS // 2) as p, code.loop(0, self.width, LANES) as c:
            at = values + p * 2 * stride + c * 2
            low, high = code.load(vec(I16), at), code.load(vec(I16), at + stride)
            pair = low.to(I32, signed=False) | (high.to(I32, signed=False) << 16)
            code.store(pair, home + (p * self.width + c) * 4, 64)
        return home, self.width * 4

    def _value(self, row: Value, c: Value) -> Value:
        return self.code.load(I32V, row + c * 4, 64)

    def _multiply(self, sums: list[list[Var]], factors: list[Value], line: list[Value]) -> None:
        code = self.code
        for totals, factor in zip(sums, factors, strict=True):
            x = code.load(I32, factor).splat()
            for total, pair in zip(totals, line, strict=True):
                total.v = self.isa.dot_pairs(code, total.v, x, pair)
