"""Weights as the products read them: packed into blocks of 16 rows, or mapped rows as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from clover_rt.spec import Format, HostWeight, Weight
from clover_rt_cpu.jit.arena import arena
from clover_rt_cpu.jit.kernel import Jit
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.maths import transposed
from clover_rt_cpu.jit.product import BLOCK, GROUP, WORDS, Inner
from clover_rt_cpu.jit.team import NativeStep
from clover_rt_cpu.jit.values import I8, I16, I32, I32V, Value, vec

Array = npt.NDArray[Any]
SLICE_BYTES = 8 << 20
LINE = 64


@dataclass(frozen=True)
class Blocks:
    """A weight [..., N, K] as blocks.

    table   int64 [matrices * blocks of one, WORDS]
    blocks  of one matrix
    shift   log2 of the groups of 32 columns that share a scale
    kept    the memory that the table points at
    """

    table: Array
    blocks: int
    shift: int
    has_zero: bool
    format: Format
    kept: Any

    def inner(self, jit: Jit, quantises: bool) -> Inner:
        return Inner(jit.isa, self.format, self.has_zero, quantises and self.format.is_quantised)

    def block_bytes(self, columns: int) -> float:
        """Return the bytes that one block reads."""
        size = {Format.Q4: 0.5625, Format.Q8: 1.0625, Format.F32: 4.0}.get(self.format, 2.0)
        return BLOCK * columns * size


def packed_bytes(weight_format: Format, group: int, shape: tuple[int, ...]) -> int:
    """Return the bytes that `blocks_of` allocates for a weight without zero points."""
    if not weight_format.is_quantised:
        return 0
    rows, columns = -(-shape[-2] // BLOCK) * BLOCK, shape[-1]
    each = rows * columns // (2 if weight_format is Format.Q4 else 1) + rows * columns // group * 2
    return int(np.prod(shape[:-2], dtype=np.int64)) * each


def blocks_of(jit: Jit, weight: HostWeight) -> Blocks:
    """Return a weight [N, K] or [E, N, K] as blocks; source pages are released as they are read."""
    shape = weight.shape if len(weight.shape) == 3 else (1, *weight.shape)
    if weight.format.is_quantised:
        return _packed(jit, weight, shape)
    return _mapped(weight, shape)


def _mapped(weight: HostWeight, shape: tuple[int, ...]) -> Blocks:
    per = -(-shape[1] // BLOCK)
    rows: list[tuple[int, ...]] = []
    kept = []
    for first, matrix in _matrices(weight):
        codes = np.ascontiguousarray(matrix.codes)
        kept.append(codes)
        stride = codes.strides[0]
        for lo in range(0, len(codes), BLOCK):
            count = min(BLOCK, len(codes) - lo)
            rows.append((codes.ctypes.data + lo * stride, 0, 0, first + lo, count))
    table = np.array(rows, np.int64).reshape(-1, WORDS)
    # a matrix of ragged pieces has more blocks than its rows need
    per = max(per, len(table) // shape[0])
    return Blocks(table, per, 0, False, weight.format, (kept, weight))


def _matrices(weight: HostWeight) -> Iterator[tuple[int, Weight]]:
    """Yield (first row, matrix): pieces of a matrix one above the other, or each of a stack."""
    if len(weight.shape) == 3:
        for piece in weight.pieces:
            for i in range(piece.shape[0]):
                yield 0, piece[i]
        return
    first = 0
    for piece in weight.pieces:
        yield first, piece
        first += piece.shape[0]


def _packed(jit: Jit, weight: HostWeight, shape: tuple[int, ...]) -> Blocks:
    matrices, rows, columns = shape
    per, groups = -(-rows // BLOCK), columns // weight.group
    has_zero = weight.has_zero
    code_bytes = BLOCK * columns // (2 if weight.format is Format.Q4 else 1)
    sizes = (code_bytes, BLOCK * groups * 2, BLOCK * groups if has_zero else 0)
    homes = [arena(matrices * per * size) for size in sizes]
    index = np.arange(matrices * per, dtype=np.int64)
    table = np.zeros((matrices * per, WORDS), np.int64)
    for i, (home, size) in enumerate(zip(homes, sizes, strict=True)):
        table[:, i] = home.ctypes.data + index * size
    table[:, 3] = index % per * BLOCK
    table[:, 4] = np.minimum(BLOCK, rows - table[:, 3])
    stacked = len(weight.shape) == 3
    row_bytes = max(1, weight.nbytes // (matrices * rows)) * (rows if stacked else 1)
    for first, part in weight.slices(max(1, SLICE_BYTES // row_bytes)):
        for i in range(part.shape[0] if stacked else 1):
            matrix = part[i] if stacked else part
            at = (first + i) * per * BLOCK if stacked else first
            _pack(jit, matrix, at, homes)
    shift = (weight.group // GROUP).bit_length() - 1
    return Blocks(table, per, shift, has_zero, weight.format, homes)


def _pack(jit: Jit, matrix: Weight, row0: int, homes: list[Array]) -> None:
    rows, columns = matrix.shape
    assert matrix.scale is not None
    codes, scale = np.ascontiguousarray(matrix.codes), np.ascontiguousarray(matrix.scale)
    zero = None if matrix.zero is None else np.ascontiguousarray(matrix.zero)
    sources = [a.ctypes.data if a is not None else 0 for a in (codes, scale, zero)]
    homes_at = [h.ctypes.data for h in homes]
    words = [*sources, *homes_at, row0, rows, columns, scale.shape[1]]
    unit = f"pack_{matrix.format.value}"
    function = jit.library.function(unit, unit, lambda m: _emit(jit, m, unit, matrix.format))
    kept = (codes, scale, zero, homes)
    NativeStep(jit.team, [(function, np.array(words, np.int64))], kept)()


def _emit(jit: Jit, module: ir.Module, name: str, kind: Format) -> None:
    """Move rows into blocks; an item is up to 16 rows, whole blocks if all goes well."""
    code = Code(module, name)
    pack = _Pack(code, kind, jit.isa.flips)
    rows, row0 = pack.rows, pack.row0
    with code.deal((rows + (BLOCK - 1)) // BLOCK) as item:
        first = item * BLOCK
        end = code.least(first + BLOCK, rows)
        is_whole = code.both((row0 % BLOCK).equals(0), (end - first).equals(BLOCK))
        is_wide = (pack.source % LINE).equals(0)

        def one_by_one() -> None:
            with code.loop(first, end) as r:
                pack.codes_of(r)

        code.either(code.both(is_whole, is_wide), lambda: pack.codes_of_block(first), one_by_one)

        def scales_one_by_one() -> None:
            with code.loop(first, end) as r:
                pack.scales_of(r)

        is_even = (pack.groups % 2).equals(0)
        code.either(
            code.both(is_whole, is_even), lambda: pack.scales_of_block(first), scales_one_by_one
        )
        with code.when(pack.zero.differs(0)), code.loop(first, end) as r:
            pack.zeros_of(r)
    code.end()


class _Pack:
    """Emits the moves of one format."""

    def __init__(self, code: Code, kind: Format, flips: bool) -> None:
        self.code = code
        self.q4 = kind is Format.Q4
        self.flips = flips
        words = code.args(10)
        self.codes, self.scale, self.zero = words[:3]
        self.to_codes, self.to_scale, self.to_zero = words[3:6]
        self.row0, self.rows, columns, self.groups = words[6:]
        self.source = columns // 2 if self.q4 else columns

    def _turn(self, raw: Value) -> Value:
        """Bring file bytes, 16 (q4) or more, into the order of a block."""
        if not self.q4:
            return raw ^ (128 if self.flips else 0)
        # of 16 bytes the first 8 hold columns 0 .. 15, the others columns 16 .. 31
        count = raw.lanes
        low = raw.pick([n // 16 * 16 + n % 16 // 2 for n in range(count)])
        high = raw.pick([n // 16 * 16 + 8 + n % 16 // 2 for n in range(count)])
        even = (low & 15) | (high << 4)
        odd = (low >> 4) | (high & 0xF0)
        return even.pick([n if n % 2 == 0 else count + n for n in range(count)], odd)

    def codes_of(self, r: Value) -> None:
        """Move the codes of one row, 32 columns at a time."""
        code = self.code
        row = self.row0 + r
        home = self.to_codes + row // BLOCK * self.source * BLOCK + row % BLOCK * 4
        size = GROUP // 2 if self.q4 else GROUP
        with code.loop(0, self.source, size) as k:
            raw = code.load(vec(I8, size), self.codes + r * self.source + k)
            quads = self._turn(raw).bits(I32)
            for j in range(quads.lanes):
                code.store(quads.lane(j), home + k * BLOCK + 64 * j)

    def codes_of_block(self, first: Value) -> None:
        """Move the codes of 16 rows, 64 bytes of each at a time."""
        code = self.code
        home = self.to_codes + (self.row0 + first) * self.source
        with code.loop(0, self.source, LINE) as k:
            at = self.codes + first * self.source + k
            rows = [code.load(vec(I8, LINE), at + self.source * i) for i in range(BLOCK)]
            turned = transposed([self._turn(r).bits(I32) for r in rows])
            for i, quads in enumerate(turned):
                code.store(quads, home + k * BLOCK + 64 * i)

    def scales_of(self, r: Value) -> None:
        code = self.code
        row = self.row0 + r
        base = (row // BLOCK * self.groups * BLOCK + row % BLOCK) * 2
        with code.loop(0, self.groups) as g:
            found = code.load(I16, self.scale + (r * self.groups + g) * 2)
            code.store(found, self.to_scale + base + g * (2 * BLOCK))

    def scales_of_block(self, first: Value) -> None:
        """Move the scales of 16 rows, two groups of each in one 32-bit number."""
        code = self.code
        home = self.to_scale + (self.row0 + first) * self.groups * 2
        with code.loop(0, self.groups, 2 * BLOCK) as g:
            live = code.live((self.groups - g) // 2)
            at = self.scale + (first * self.groups + g) * 2
            rows = [code.masked(I32V, at + self.groups * (2 * i), live) for i in range(BLOCK)]
            for i, pair in enumerate(transposed(rows)):
                to = home + (g + 2 * i) * (2 * BLOCK)
                with code.when(g + 2 * i < self.groups):
                    code.store(pair.to(I16), to)
                    code.store((pair >> 16).to(I16), to + 2 * BLOCK)

    def zeros_of(self, r: Value) -> None:
        code = self.code
        row = self.row0 + r
        base = row // BLOCK * self.groups * BLOCK + row % BLOCK
        with code.loop(0, self.groups) as g:
            found = code.load(I8, self.zero + r * self.groups + g)
            code.store(found, self.to_zero + base + g * BLOCK)
