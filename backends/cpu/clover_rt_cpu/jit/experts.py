"""expert_gemm: three steps over all experts with rows, their work dealt out in small items.

1. rows are quantised where that is wanted; one thread lists the experts that have rows
2. gate and up: an item is 32 hidden columns of one expert, for all its rows; silu(gate) * up is
   kept, quantised where the down product wants it
3. down: an item is a run of blocks of one expert
The list is an int64 table: how many experts, then (expert, first pair, pairs) of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_cpu.jit import amx
from clover_rt_cpu.jit.kernel import (
    JitKernel,
    address,
    addresses,
    is_rounded,
    padded,
    quantises,
    row_count,
)
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.linear import ITEM_BYTES, put, quantise_range
from clover_rt_cpu.jit.maths import silu
from clover_rt_cpu.jit.pack import Blocks, blocks_of, packed_bytes
from clover_rt_cpu.jit.product import BLOCK, GROUP, RECORD, WORDS, Block, Inner, quantise
from clover_rt_cpu.jit.tiles import Tiles
from clover_rt_cpu.jit.values import F32V, I32, I64, Value, vec

ROWS_AT_ONCE = 64
"""Rows whose gate and up products are kept at a time: 16 KB."""


@dataclass(frozen=True)
class Expert:
    """The three weights of every expert, prepared."""

    gate: Blocks
    up: Blocks
    down: Blocks


class ExpertGemm(JitKernel):
    """Run each expert's gated network on the rows that chose it."""

    products = ("gate", "down")

    def refusal(self, sig: Signature) -> str:
        gate, up = sig.format("gate"), sig.format("up")
        if gate != up:
            return f"gate is {_show(gate)} and up is {_show(up)}; they are read together"
        return ""

    def scratch(self, sig: Signature) -> int:
        return sum(self._parts(sig))

    def _parts(self, sig: Signature) -> tuple[int, int, int, int]:
        """Return the bytes of the list, of quantised rows, of hidden rows, of gathered rows."""
        pairs = sig["T"] * sig["R"]
        listed = padded(8 + 24 * sig["E"])
        rows = sig["T"] * (sig["D"] // GROUP) * RECORD if is_rounded(sig, "gate") else 0
        gathers = rows > 0 and self.jit.isa.matrices
        return (
            listed,
            padded(rows),
            padded(pairs * hidden_bytes(sig["F"])),
            self.jit.team.count * self._gathered(sig) if gathers else 0,
        )

    def _gathered(self, sig: Signature) -> int:
        """Return the bytes of a thread's copy of an expert's quantised rows."""
        return padded(ROWS_AT_ONCE * (sig["D"] // GROUP) * RECORD)

    def prepared_bytes(self, sig: Signature) -> int:
        e, d, f = sig["E"], sig["D"], sig["F"]
        shapes = {"gate": (e, f, d), "up": (e, f, d), "down": (e, d, f)}
        return sum(packed_bytes(*sig.format(n), shape) for n, shape in shapes.items())

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return Expert(*(blocks_of(self.jit, weights[n]) for n in ("gate", "up", "down")))

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        weights: Expert = prepared
        assert scratch is not None
        gate = weights.gate.inner(self.jit, quantises(sig))
        up = weights.up.inner(self.jit, quantises(sig))
        down = weights.down.inner(self.jit, quantises(sig))
        params, x, order, offsets, y = addresses(operands, "params", "x", "order", "offsets", "y")
        kept: Any = None
        if not order:
            # the shared expert: every row in its place
            kept = np.arange(sig["T"], dtype=np.int32)
            order = kept.ctypes.data
        parts = self._parts(sig)
        listed = address(scratch)
        records, hidden = listed + parts[0], listed + parts[0] + parts[1]
        gathered = hidden + parts[2]
        d, f = sig["D"], sig["F"]
        stride = down.row_bytes(f) if down.quantises else hidden_bytes(f)
        rows = records if gate.quantises else x
        start = self.call(
            f"experts_start_{gate.bias if gate.quantises else 'f32'}",
            lambda m, n: _emit_start(m, n, gate),
            *(params, x, d, records, offsets, sig["E"], listed),
        )
        inward = self.call(
            f"experts_in_{gate.name}_{up.name}_{down.name}",
            lambda m, n: _emit_in(m, n, gate, up, down),
            *(listed, order, rows, hidden, sig.attr("top_k"), d, f, stride),
            *(weights.gate.table.ctypes.data, weights.up.table.ctypes.data),
            *(weights.gate.blocks, weights.gate.shift, weights.up.shift),
            *(self.jit.tiles(gate), self.jit.tiles(up), gathered, self._gathered(sig)),
        )
        chunk = max(1, int(ITEM_BYTES / 2 / weights.down.block_bytes(f)))
        outward = self.call(
            f"experts_out_{down.name}",
            lambda m, n: _emit_out(m, n, down),
            *(listed, order, hidden, y, d, f, stride),
            *(weights.down.table.ctypes.data, weights.down.blocks, weights.down.shift, chunk),
            self.jit.tiles(down),
        )
        return self.step([start, inward, outward], operands, scratch, weights, kept)


def hidden_bytes(columns: int) -> int:
    """Return the bytes between hidden rows of float32, in whole groups; records take less."""
    return -(-columns // GROUP) * GROUP * 4


def _show(found: Any) -> str:
    fmt, group = found
    return f"{fmt.value} g{group}" if group else str(fmt.value)


def _emit_start(module: ir.Module, name: str, inner: Inner) -> None:
    code = Code(module, name, split=True)
    params, x, columns, records, offsets, experts, listed = code.args(7)
    rows = row_count(code, params)
    with code.when(code.part.equals(0)):
        found = code.var(code.const(I64, 0))

        def add(expert: Value, first: Value, count: Value) -> None:
            with code.when(count > 0):
                at = listed + 8 + found.v * 24
                for i, value in enumerate((expert, first, count)):
                    code.store(value, at + 8 * i, 8)
                found.v = found.v + 1

        def of_groups() -> None:
            with code.loop(0, code.select(rows > 0, experts, 0)) as e:
                first = code.load(I32, offsets + e * 4).to(I64)
                add(e, first, code.load(I32, offsets + e * 4 + 4).to(I64) - first)

        zero = code.const(I64, 0)
        code.either(offsets.differs(0), of_groups, lambda: add(zero, zero, rows))
        code.store(found.v, listed, 8)
    if inner.quantises:
        lo, hi = code.share(rows * (columns // GROUP))
        quantise_range(code, lo, hi, x, records, inner.bias)
    code.end()


def _entry(code: Code, listed: Value, index: Value) -> tuple[Value, Value, Value]:
    at = listed + 8 + index * 24
    expert, first, count = (code.load(I64, at + 8 * i, 8) for i in range(3))
    return expert, first, count


def _emit_in(module: ir.Module, name: str, gate: Inner, up: Inner, down: Inner) -> None:
    code = Code(module, name)
    listed, order, x, hidden, top_k, columns, width, hidden_stride = code.args(8)
    gates, ups, blocks, gate_shift, up_shift, gate_tiles, up_tiles = code.args(15)[8:]
    gathered, gathered_bytes = code.args(17)[15:]
    copies = gathered + code.thread * gathered_bytes
    sides = (
        (Tiles(code, gate, gate_tiles), gates, gate_shift),
        (Tiles(code, up, up_tiles), ups, up_shift),
    )
    stride = gate.row_stride(columns)
    groups = (width + (GROUP - 1)) // GROUP
    products = code.room(ROWS_AT_ONCE * 2 * GROUP * 4)
    with code.deal(code.load(I64, listed, 8) * groups) as item:
        expert, first, count = _entry(code, listed, item // groups)
        group = item % groups
        with code.loop(0, count, ROWS_AT_ONCE) as lo:
            rows = code.least(count - lo, ROWS_AT_ONCE)
            pairs = order + (first + lo) * 4
            block = expert * blocks + group * 2

            def row(m: Value, pairs: Value = pairs) -> Value:
                return x + code.load(I32, pairs + m * 4).to(I64) // top_k * stride

            if gate.has_many:
                _gather(code, row, rows, stride, copies)
            for i, (tiles, table, shift) in enumerate(sides):
                with code.loop(0, code.least(blocks - group * 2, 2)) as half:
                    at = table + (block + half) * (8 * WORDS)
                    to = products + half * (4 * BLOCK) + i * 4 * GROUP

                    def keep(m: Value, sums: Value, to: Value = to) -> None:
                        code.store(sums, to + m * (8 * GROUP), 64)

                    tiles.run(at, rows, row, columns, shift, keep, (copies, stride))
            with code.loop(0, rows) as m:
                base = products + m * (8 * GROUP)
                both = []
                for half_at in (0, 4 * BLOCK):
                    g = code.load(F32V, base + half_at, 64)
                    u = code.load(F32V, base + (4 * GROUP + half_at), 64)
                    both.append(silu(code, g) * u)
                home = hidden + (first + lo + m) * hidden_stride
                if down.quantises:
                    quantise(code, both, home + group * RECORD, down.bias)
                else:
                    for j, value in enumerate(both):
                        code.store(value, home + group * (4 * GROUP) + 4 * BLOCK * j)
    code.end()


def _gather(
    code: Code, row: Callable[[Value], Value], rows: Value, stride: Value, to: Value
) -> None:
    """Copy quantised rows one behind the other, where they are enough for a product of many."""
    with code.when(rows >= amx.FEWEST), code.loop(0, rows) as m:
        source, home = row(m), to + m * stride
        with code.loop(0, stride, RECORD) as k:
            code.store(code.load(vec(I64, RECORD // 8), source + k), home + k)


def _emit_out(module: ir.Module, name: str, inner: Inner) -> None:
    code = Code(module, name)
    listed, order, hidden, y, width, columns, stride = code.args(7)
    table, blocks, shift, chunk, functions = code.args(12)[7:]
    tiles = Tiles(code, inner, functions)
    items = (blocks + chunk - 1) // chunk
    with code.deal(code.load(I64, listed, 8) * items) as item:
        expert, first, count = _entry(code, listed, item // items)
        start = item % items * chunk
        with code.loop(start, code.least(start + chunk, blocks)) as b:
            block = table + (expert * blocks + b) * (8 * WORDS)
            at = Block.at(code, block)

            def row(m: Value) -> Value:
                return hidden + (first + m) * stride

            def store(m: Value, sums: Value, at: Block = at) -> None:
                none = code.const(I64, 0)
                pair = code.load(I32, order + (first + m) * 4).to(I64)
                put(code, sums, y + (pair * width + at.first) * 4, none, none, at.count)

            tiles.run(block, count, row, columns, shift, store, (hidden + first * stride, stride))
    code.end()
