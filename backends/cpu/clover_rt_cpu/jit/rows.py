"""Rows moved and mixed: rope, combine, embed_rows, kv_append, begin."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from llvmlite import ir

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import PAGE_ROWS, Format, HostWeight, Kind, Signature
from clover_rt_cpu.jit.kernel import PLAIN_TYPES, JitKernel, addresses, row_count
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.maths import sigmoid
from clover_rt_cpu.jit.table import (
    Lanes,
    Table,
    bf16_bits,
    offsets,
    over_lanes,
    to_bf16,
)
from clover_rt_cpu.jit.values import F16, F32, F32V, I8, I16, I32, I64, LANES, Value, vec

COLUMNS = 512
"""Columns of an item of combine."""


class Rope(JitKernel):
    """Rotate the first columns of each head by the row's position."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        params, x, angles, y = addresses(operands, "params", "x", "angles", "y")
        heads = sig.attr("heads")
        width = operands["x"].shape[1] // heads
        words = (params, x, angles, y, heads, width, operands["angles"].shape[1])
        places = offsets(sig.layout, "segments", "row_segment")
        return self.step([self.call("rope", _rope, *words, *places)], operands)


def _rope(module: ir.Module, name: str) -> None:
    code = Code(module, name, split=True)
    params, x, angles, y, heads, width, half, segments, owners = code.args(9)
    table = Table(code, params, segments)
    lo, hi = code.share(row_count(code, params) * heads)
    with code.loop(lo, hi) as item:
        row = item // heads
        s = table.segment(code.load(I32, params + owners + row * 4).to(I64))
        angle = angles + (s.position + row - s.row0) * half * 8
        base = item * width * 4

        def rotate(k: Value, at: Lanes) -> None:
            cos, sin = at.pairs(angle + k * 8)
            low = at.load(x + base + k * 4)
            high = at.load(x + base + (half + k) * 4)
            at.store(low * cos - high * sin, y + base + k * 4)
            at.store(high * cos + low * sin, y + base + (half + k) * 4)

        def move(k: Value, at: Lanes) -> None:
            here = base + (half * 2 + k) * 4
            at.store(at.load(x + here), y + here)

        over_lanes(code, half, rotate)
        over_lanes(code, width - half * 2, move)
    code.end()


class Combine(JitKernel):
    """Add up experts in the order of choice, the shared expert and the residual."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        names = ("params", "y", "ids", "weights", "shared", "shared_gate", "residual", "h")
        words = (*addresses(operands, *names), sig["R"], sig["D"])
        return self.step([self.call("combine", _combine, *words)], operands)


def _combine(module: ir.Module, name: str) -> None:
    code = Code(module, name, split=True)
    params, y, ids, weights, shared, gates, residual, h, choices, columns = code.args(10)
    parts = (columns + (COLUMNS - 1)) // COLUMNS
    lo, hi = code.share(row_count(code, params) * parts)
    with code.loop(lo, hi) as item:
        row, first = item // parts, item % parts * COLUMNS
        gate = sigmoid(code, code.load(F32, gates + row * 4).splat())

        def add(k: Value, at: Lanes) -> None:
            here = (row * columns + first + k) * 4
            total = code.var(at.load(shared + here) * gate)
            with code.loop(0, choices) as r:
                pair = row * choices + r
                with code.when(code.load(I32, ids + pair * 4) >= 0):
                    weight = code.load(F32, weights + pair * 4).splat()
                    found = at.load(y + (pair * columns + first + k) * 4)
                    total.v = code.fma(weight, found, total.v)
            at.store(total.v + at.load(residual + here), h + here)

        over_lanes(code, code.least(columns - first, COLUMNS), add)
    code.end()


class EmbedRows(JitKernel):
    """Look the rows' tokens up in the embedding, decoding it on the way."""

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        weight = weights["embed"]
        pieces, kept, first = [], [], 0
        for piece in weight.pieces:
            arrays = [piece.codes, piece.scale, piece.zero]
            whole = [None if a is None else np.ascontiguousarray(a) for a in arrays]
            kept.append(whole)
            at = [0 if a is None else a.ctypes.data for a in whole]
            pieces.append((first, first + piece.shape[0], *at))
            first += piece.shape[0]
        return np.array(pieces, np.int64), (kept, weight)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        pieces, _ = prepared
        fmt, group = sig.format("embed")
        params, h = addresses(operands, "params", "h")
        words = (params, h, pieces.ctypes.data, len(pieces), sig["D"], group)
        (tokens,) = offsets(sig.layout, "tokens")
        unit = f"embed_{fmt.value}"
        call = self.call(unit, lambda m, n: _embed(m, n, fmt), *words, tokens)
        return self.step([call], operands, prepared)


def _embed(module: ir.Module, name: str, fmt: Format) -> None:
    code = Code(module, name, split=True)
    params, h, pieces, count, columns, group, tokens = code.args(7)
    lo, hi = code.share(row_count(code, params))
    with code.loop(lo, hi) as row:
        token = code.load(I32, params + tokens + row * 4).to(I64)
        to = h + row * columns * 4
        over_lanes(code, columns, lambda k, at: at.store(code.const(F32V, 0.0), to + k * 4))
        with code.loop(0, count) as i:
            first, end, codes, scales, zeros = (
                code.load(I64, pieces + i * 40 + 8 * n) for n in range(5)
            )
            with code.when(code.both(token >= first, token < end)):
                at = token - first
                if fmt.is_quantised:
                    _decode(code, fmt, at, columns, group, codes, scales, zeros, to)
                else:
                    over_lanes(code, columns, _reader(code, fmt, codes, at * columns, to))
    code.end()


def _reader(code: Code, fmt: Format, codes: Value, first: Value, to: Value):  # type: ignore[no-untyped-def]
    def move(k: Value, at: Lanes) -> None:
        if fmt is Format.F32:
            value = at.load(codes + (first + k) * 4)
        else:
            bits = at.load(codes + (first + k) * 2, vec(I16))
            half = fmt is Format.F16
            value = bits.bits(F16).to(F32) if half else bf16_bits(bits).bits(F32)
        at.store(value, to + k * 4)

    return move


def _decode(
    code: Code,
    fmt: Format,
    row: Value,
    columns: Value,
    group: Value,
    codes: Value,
    scales: Value,
    zeros: Value,
    to: Value,
) -> None:
    """Write a quantised row as float32, 16 columns at a time."""
    with code.loop(0, columns, LANES) as k:
        at = row * (columns // group) + k // group
        scale = code.load(F16, scales + at * 2).to(F32).splat()
        if fmt is Format.Q8:
            whole = code.load(vec(I8), codes + row * columns + k).to(I32)
        else:
            raw = code.load(vec(I8, 8), codes + (row * columns + k) // 2)
            order = [n // 2 + (8 if n % 2 else 0) for n in range(LANES)]
            whole = (raw & 15).pick(order, raw >> 4).to(I32)
            zero = code.var(code.const(I32, 8))
            with code.when(zeros.differs(0)):
                zero.v = code.load(I8, zeros + at).to(I32, signed=False)
            whole = whole - zero.v
        code.store(whole.to(F32) * scale, to + k * 4)


class KvAppend(JitKernel):
    """Write keys and values of commit and verify rows into their pages."""

    types = (*PLAIN_TYPES, "bfloat16")

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        names = ("params", "k", "v", "page_table", "k_pool", "v_pool")
        halves = sig.dtype("k_pool").itemsize == 2
        words = (*addresses(operands, *names), operands["page_table"].shape[1])
        places = offsets(sig.layout, "segments", "row_segment")
        unit = "kv_append_bf16" if halves else "kv_append_f32"
        columns = operands["k"].shape[1]
        call = self.call(unit, lambda m, n: _kv_append(m, n, halves), *words, columns, *places)
        return self.step([call], operands)


def _kv_append(module: ir.Module, name: str, halves: bool) -> None:
    code = Code(module, name, split=True)
    params, k, v, pages, k_pool, v_pool, slot_pages, columns, segments, owners = code.args(10)
    table = Table(code, params, segments)
    lo, hi = code.share(row_count(code, params))
    with code.loop(lo, hi) as row:
        s = table.segment(code.load(I32, params + owners + row * 4).to(I64))
        with code.when(s.kind.differs(int(Kind.PREVIEW))):
            place = s.position + row - s.row0
            at = pages + (s.slot * slot_pages + place // PAGE_ROWS) * 4
            to = code.load(I32, at).to(I64) * PAGE_ROWS + place % PAGE_ROWS
            for source, pool in ((k, k_pool), (v, v_pool)):
                copy_row(
                    code,
                    source + row * columns * 4,
                    pool + to * columns * (2 if halves else 4),
                    columns,
                    halves,
                )
    code.end()


def copy_row(code: Code, source: Value, to: Value, columns: Value, halves: bool) -> None:
    """Copy float32 numbers, rounding them to bfloat16 where `halves`."""

    def move(c: Value, at: Lanes) -> None:
        value = at.load(source + c * 4)
        if halves:
            at.store(to_bf16(code, value), to + c * 2)
        else:
            at.store(value, to + c * 4)

    over_lanes(code, columns, move)


class Begin(JitKernel):
    """Apply page and count deltas."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        words = addresses(operands, "params", "page_table", "counts")
        widths = (operands["page_table"].shape[1], operands["counts"].shape[1])
        places = offsets(sig.layout, "page_deltas", "count_deltas")
        return self.step([self.call("begin", _begin, *words, *widths, *places)], operands)


def _begin(module: ir.Module, name: str) -> None:
    code = Code(module, name, split=True)
    params, pages, counts, slot_pages, vocab, page_deltas, count_deltas = code.args(7)
    table = Table(code, params, params)
    with code.when(code.part.equals(0)):
        for word, start, home, width in (
            (4, page_deltas, pages, slot_pages),
            (5, count_deltas, counts, vocab),
        ):
            with code.loop(0, table.header(word)) as i:
                at = params + start + i * 16
                slot, index = (code.load(I32, at + 4 * n).to(I64) for n in range(2))
                amount = code.load(I32, at + 8)
                to = home + (slot * width + index) * 4
                if word == 5:
                    amount = amount + code.load(I32, to)
                code.store(amount, to)
    code.end()
