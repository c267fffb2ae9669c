"""block_memory: an item is four rows of a preview and one key head with all its value heads.

The rows' products with the keys of the block are shared by the value heads; each value head then
has its own softmax, its mix of values, and its reading of the memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from llvmlite import ir

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_cpu.jit.kernel import JitKernel, address, addresses, padded
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.maths import exp, lanes_most, lanes_sum, log
from clover_rt_cpu.jit.scan import MOST_KEY, SLICE, Sizes, note_floats, scan_notes
from clover_rt_cpu.jit.table import Lanes, SegmentAt, Table, floats, offsets, over_lanes
from clover_rt_cpu.jit.values import F32, F32V, F64, LANES, Value

ROWS = 4
"""Rows of an item."""
MOST_ROWS = 2048
"""Rows that a block may have: their shares lie on the stack."""
NAMES = ("logit_scale", "history_bias", "history_c")


class BlockMemory(JitKernel):
    """Mix a block's values and what the memory holds for each of its rows."""

    def refusal(self, sig: Signature) -> str:
        rows = sig.layout.rows
        if rows > MOST_ROWS or sig["K"] > MOST_KEY:
            return (
                f"{rows} rows and keys of {sig['K']} numbers were asked for; "
                f"up to {MOST_ROWS} and {MOST_KEY} work"
            )
        return ""

    def scratch(self, sig: Signature) -> int:
        return padded(4 * sig["T"] * note_floats(sig))

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return np.concatenate([floats(weights[n]).ravel() for n in NAMES])

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        assert scratch is not None
        notes = address(scratch)
        axes = tuple(sig[a] for a in "GHKV")
        params, qkv, g, memory, o = addresses(operands, "params", "qkv", "g", "S", "o")
        places = offsets(sig.layout, "segments")
        calls = [
            self.call("scan_notes", scan_notes, params, qkv, g, notes, *axes, *places),
            self.call(
                "block_memory",
                _emit,
                *(params, qkv, notes, memory, o, prepared.ctypes.data, *axes, *places),
            ),
        ]
        return self.step(calls, operands, scratch, prepared)


def _emit(module: ir.Module, name: str) -> None:
    code = Code(module, name)
    params, qkv, notes, memory, o, constants, *axes, segments = code.args(11)
    sizes = Sizes(*axes)
    table = Table(code, params, segments)
    block = _Block(code, sizes, qkv, notes, memory, o, constants)
    parts = (table.header(1) + (ROWS - 1)) // ROWS
    each = parts * sizes.groups
    with code.deal(table.header(2) * each) as item:
        s = table.segment(item // each)
        row = item % each // sizes.groups * ROWS
        with code.when(code.both(s.is_preview, row < s.rows)):
            block.rows(s, row, item % sizes.groups)
    code.end()


class _Block:
    def __init__(
        self,
        code: Code,
        sizes: Sizes,
        qkv: Value,
        notes: Value,
        memory: Value,
        o: Value,
        constants: Value,
    ) -> None:
        self.code = code
        self.sizes = sizes
        self.qkv = qkv
        self.notes = notes
        self.memory = memory
        self.o = o
        self.constants = constants
        self.products = code.room(4 * ROWS * MOST_ROWS)
        self.shares = code.room(4 * ROWS * MOST_ROWS)

    def rows(self, s: SegmentAt, first: Value, group: Value) -> None:
        code, sizes = self.code, self.sizes
        each = sizes.heads // sizes.groups
        # past the block's end the last row is computed again and not stored
        rows = [s.row0 + code.least(first + i, s.rows - 1) for i in range(ROWS)]
        notes = [self.notes + r * sizes.notes * 4 for r in rows]
        here = group * sizes.key * 8
        queries = [n + here + sizes.key * 4 for n in notes]
        self._multiply(s, queries, here)
        with code.loop(group * each, group * each + each) as head:
            factor = code.load(F32, self.constants + head * 4) * code.sqrt(sizes.key.to(F32))
            bias = code.load(F32, self.constants + (sizes.heads + head) * 4)
            slope = code.load(F32, self.constants + (sizes.heads * 2 + head) * 4)
            past = bias + slope * log(code, s.rows.to(F64) / 32.0).to(F32)
            decays = [
                code.load(F32, n + (sizes.groups * sizes.key * 2 + sizes.groups + head) * 4)
                for n in notes
            ]
            wholes, pasts = [], []
            for i in range(ROWS):
                whole, share = self._softmax(i, s.rows, factor, past)
                wholes.append(whole)
                pasts.append(share * decays[i])
            with code.loop(0, sizes.value, SLICE) as column:
                left = sizes.value - column
                parts = [Lanes(code, left - LANES * i) for i in range(SLICE // LANES)]
                mixed = self._mix(s, head, column, parts)
                read = self._read(s, head, column, parts, queries)
                for i in range(ROWS):
                    to = self.o + ((rows[i] * sizes.heads + head) * sizes.value + column) * 4
                    with code.when(first + i < s.rows):
                        for j, part in enumerate(parts):
                            total = code.fma(pasts[i].splat(), read[i][j], mixed[i][j])
                            part.store(total / wholes[i], to + 4 * LANES * j)

    def _multiply(self, s: SegmentAt, queries: list[Value], here: Value) -> None:
        """Fill `products` with the rows' products with every key of the block."""
        code, sizes = self.code, self.sizes
        with code.loop(0, s.rows) as t:
            key = self.notes + (s.row0 + t) * sizes.notes * 4 + here
            sums = [code.var(code.const(F32V, 0.0)) for _ in queries]

            def add(c: Value, at: Lanes) -> None:
                k = at.load(key + c * 4)
                for total, query in zip(sums, queries, strict=True):
                    total.v = code.fma(k, at.load(query + c * 4), total.v)

            over_lanes(code, sizes.key, add)
            for i, total in enumerate(sums):
                code.store(lanes_sum(total.v), self.products + 4 * MOST_ROWS * i + t * 4)

    def _softmax(self, row: int, count: Value, factor: Value, past: Value) -> tuple[Value, Value]:
        """Fill a row's shares, not yet divided; return their sum and the share of the past."""
        code = self.code
        products = self.products + 4 * MOST_ROWS * row
        shares = self.shares + 4 * MOST_ROWS * row
        low = code.const(F32V, float("-inf"))
        peak = code.var(past.splat())
        scale = factor.splat()

        def find(k: Value, at: Lanes) -> None:
            logit = at.load(products + k * 4) * scale
            peak.v = code.most(
                peak.v, logit if at.mask is None else code.select(at.mask, logit, low)
            )

        over_lanes(code, count, find)
        top = lanes_most(code, peak.v)
        total = code.var(code.const(F32V, 0.0))

        def share(k: Value, at: Lanes) -> None:
            found = exp(code, at.load(products + k * 4) * scale - top)
            if at.mask is not None:
                found = code.select(at.mask, found, 0.0)
            total.v = total.v + found
            code.store(found, shares + k * 4, 64)

        over_lanes(code, count, share)
        history = exp(code, past - top)
        return (lanes_sum(total.v) + history).splat(), history

    def _mix(
        self, s: SegmentAt, head: Value, column: Value, parts: list[Lanes]
    ) -> list[list[Value]]:
        """Return the sums of shares times values of each row, for some columns."""
        sizes = self.sizes
        width = sizes.groups * sizes.key * 2
        stride = width + sizes.heads * sizes.value
        base = self.qkv + (s.row0 * stride + width + head * sizes.value + column) * 4
        factors = [self.shares + 4 * MOST_ROWS * i for i in range(ROWS)]
        return self._sums(s.rows, base, stride * 4, factors, parts)

    def _read(
        self, s: SegmentAt, head: Value, column: Value, parts: list[Lanes], queries: list[Value]
    ) -> list[list[Value]]:
        """Return S^T q / sqrt(K) of each row, for some columns."""
        sizes = self.sizes
        state = (s.slot * sizes.heads + head) * sizes.key * sizes.value
        base = self.memory + (state + column) * 4
        return self._sums(sizes.key, base, sizes.value * 4, queries, parts)

    def _sums(
        self, count: Value, base: Value, stride: Value, factors: list[Value], parts: list[Lanes]
    ) -> list[list[Value]]:
        code = self.code
        sums = [[code.var(code.const(F32V, 0.0)) for _ in parts] for _ in factors]
        with code.loop(0, count) as k:
            row = [p.load(base + k * stride + 4 * LANES * j) for j, p in enumerate(parts)]
            for totals, factor in zip(sums, factors, strict=True):
                share = code.load(F32, factor + k * 4).splat()
                for total, value in zip(totals, row, strict=True):
                    total.v = code.fma(share, value, total.v)
        return [[t.v for t in totals] for totals in sums]
