"""Products of many rows by AMX: tiles of 16 rows by 16 outputs over the 32 columns of a group.

Used in place of the tiles of product.py from FEWEST rows on, where rows lie evenly and columns are
a multiple of 256. Eight groups of a block are unpacked to signed bytes, 4 KB, and multiplied with
all rows of the call; the unit leaves eight [16][16] sums, 8 KB, which are then scaled and added row
by row. Sums over a group are whole numbers and floats are added in the order of product.py, so the
bits are the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from llvmlite import ir

from clover_rt.spec import Format
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.product import AHEAD, BLOCK, GROUP, RECORD, Block, Inner
from clover_rt_cpu.jit.values import F32, F32V, I8, I16, I32, I32V, I64, Value

FEWEST = 12
"""Rows from which on this is faster."""
MOST = 64
"""Rows of a call."""
GROUPS = 8
"""Groups of columns that are unpacked at a time."""
COLUMNS = GROUPS * GROUP
ROWS = 16
"""Rows of a tile."""
SUM_BYTES, W_BYTES = 4 * ROWS * BLOCK, GROUP * BLOCK
"""Bytes of a tile of sums, and of a tile of weights."""
# numbers of tiles, taken in turn; those of the last rows have another shape
SUMS, X, W, LAST_SUMS, LAST_X = (0, 1), (2, 3), (4,), (5, 6), (7,)


def emit(module: ir.Module, inner: Inner) -> None:
    """Write the function tile_many(block, first row, stride, rows, columns, shift, out).

    block and shift as the other tiles have them; up to MOST rows; out float32 [rows][16]
    """
    code = Code(module, "tile_many", 7)
    block, first, stride, count, columns, shift, out = code.parameters
    at = Block.at(code, block)
    weights, sums = code.room(W_BYTES * GROUPS), code.room(SUM_BYTES * GROUPS)
    last = code.most(count % ROWS, 1)
    configure(
        code,
        [
            *((tile, ROWS, 4 * BLOCK) for tile in SUMS),
            *((tile, ROWS, GROUP) for tile in X),
            *((tile, GROUP // 4, 4 * BLOCK) for tile in W),
            *((tile, last, 4 * BLOCK) for tile in LAST_SUMS),
            *((tile, last, GROUP) for tile in LAST_X),
        ],
    )
    with code.loop(0, count) as i:
        code.store(code.const(F32V, 0.0), out + i * (4 * BLOCK), 64)
    with code.loop(0, columns // GROUP, GROUPS) as k:
        scales = []
        for g in range(GROUPS):
            _unpack(code, inner, at, k + g, weights + W_BYTES * g)
            scales.append(inner.group_scales(code, at, k + g, shift))
        with code.loop(0, count, ROWS) as lo:
            records = first + lo * stride + k * RECORD
            left = count - lo

            def whole(records: Value = records) -> None:
                _multiply(code, SUMS, X, records, stride, weights, sums)

            def rest(records: Value = records) -> None:
                _multiply(code, LAST_SUMS, LAST_X, records, stride, weights, sums)

            code.either(left >= ROWS, whole, rest)
            with code.loop(0, code.least(left, ROWS)) as i:
                to = out + (lo + i) * (4 * BLOCK)
                _scale(code, scales, records + i * stride, sums + i * 64, to)
    code.instruct("llvm.x86.tilerelease")
    code.end()


def configure(code: Code, shapes: Iterable[tuple[int, Value | int, int]]) -> None:
    """Give tiles their shapes: number, rows, and bytes of a row."""
    shape = code.room(64)
    code.store(code.const(I32V, 0), shape, 64)
    # the only palette there is
    code.store(code.const(I8, 1), shape)
    for tile, rows, width in shapes:
        count = rows.to(I8) if isinstance(rows, Value) else code.const(I8, rows)
        code.store(code.const(I16, width), shape + (16 + 2 * tile))
        code.store(count, shape + (48 + tile))
    code.instruct("llvm.x86.ldtilecfg", shape)


def _multiply(
    code: Code,
    totals: tuple[int, ...],
    xs: tuple[int, ...],
    records: Value,
    stride: Value,
    weights: Value,
    sums: Value,
) -> None:
    """Write the sums of up to 16 rows over each of the groups."""
    line = code.const(I64, 64)
    for g in range(GROUPS + 1):
        if g < GROUPS:
            total, x, w = totals[g % len(totals)], xs[g % len(xs)], W[g % len(W)]
            code.instruct("llvm.x86.tilezero", total)
            code.instruct("llvm.x86.tileloadd64", x, records + RECORD * g, stride)
            code.instruct("llvm.x86.tileloadd64", w, weights + W_BYTES * g, line)
            code.instruct("llvm.x86.tdpbssd", total, x, w)
        # a tile is stored one group later: loads behind a store wait for it where the low bits of
        # their addresses agree, and with sums of 8 KB they all do
        if g > 0:
            total = totals[(g - 1) % len(totals)]
            code.instruct("llvm.x86.tilestored64", total, sums + SUM_BYTES * (g - 1), line)


def _unpack(code: Code, inner: Inner, at: Block, k: Value, to: Value) -> None:
    """Write a group of a block as signed bytes [8][16][4]; with zero points as they are."""
    base = at.codes + k * inner.group_bytes
    for line in range(0, inner.group_bytes, 64):
        code.prefetch(base + (AHEAD[8] + line))
    for j, v in enumerate(inner.codes_of(code, base)):
        if inner.format is Format.Q8:
            v = v ^ 0x80808080
        elif not inner.has_zero:
            v = (v.bits(I8) - inner.bias).bits(I32)
        code.store(v, to + 64 * j, 64)


def _scale(
    code: Code, scales: list[tuple[Value, Value | None]], record: Value, sums: Value, to: Value
) -> None:
    """Add the sums of a row over the groups, scaled, to its outputs."""
    total = code.load(F32V, to, 64)
    for g, (scale, zeros) in enumerate(scales):
        found = code.load(I32V, sums + SUM_BYTES * g, 64)
        at = record + RECORD * g
        if zeros is not None:
            found = found + code.load(I32, at + 36).splat() * zeros
        total = code.fma(found.to(F32), scale * code.load(F32, at + 32).splat(), total)
    code.store(total, to, 64)
