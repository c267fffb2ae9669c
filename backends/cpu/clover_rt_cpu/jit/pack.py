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
from clover_rt_cpu.jit.lang import I8, I16, I32, Code, vec
from clover_rt_cpu.jit.product import BLOCK, GROUP, WORDS, Inner
from clover_rt_cpu.jit.team import NativeStep

Array = npt.NDArray[Any]
SLICE_BYTES = 8 << 20


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
    has_zero = any(p.zero is not None for p in weight.pieces)
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
            _pack(jit, matrix, at, homes, has_zero)
    shift = (weight.group // GROUP).bit_length() - 1
    return Blocks(table, per, shift, has_zero, weight.format, homes)


def _pack(jit: Jit, matrix: Weight, row0: int, homes: list[Array], has_zero: bool) -> None:
    rows, columns = matrix.shape
    assert matrix.scale is not None
    codes, scale = np.ascontiguousarray(matrix.codes), np.ascontiguousarray(matrix.scale)
    zero = matrix.zero
    if has_zero:
        zero = np.full(scale.shape, 8, np.uint8) if zero is None else np.ascontiguousarray(zero)
    sources = [a.ctypes.data if a is not None else 0 for a in (codes, scale, zero)]
    homes_at = [h.ctypes.data for h in homes]
    words = [*sources, *homes_at, row0, rows, columns, scale.shape[1]]
    unit = f"pack_{matrix.format.value}"
    function = jit.library.function(unit, unit, lambda m: _emit(jit, m, unit, matrix.format))
    NativeStep(jit.team, [(function, np.array(words, np.int64))])()


def _emit(jit: Jit, module: ir.Module, name: str, kind: Format) -> None:
    """Move rows into blocks; items are 16 rows."""
    code = Code(module, name)
    codes, scale, zero, to_codes, to_scale, to_zero, row0, rows, columns, groups = code.args(10)
    q4 = kind is Format.Q4
    source = columns // 2 if q4 else columns
    block = source * BLOCK
    with code.deal((rows + (BLOCK - 1)) // BLOCK) as item:
        with code.loop(item * BLOCK, code.least(item * BLOCK + BLOCK, rows)) as r:
            row = row0 + r
            lane = row % BLOCK
            home = to_codes + row // BLOCK * block + lane * 4
            with code.loop(0, columns // GROUP) as k:
                at = codes + r * source + k * (16 if q4 else 32)
                if q4:
                    raw = code.load(vec(I8, 16), at)
                    pairs = [n // 2 + (16 if n % 2 else 0) for n in range(32)]
                    every = (raw & 15).pick(pairs, raw >> 4)
                    low, high = every.pick(range(16)), every.pick(range(16, 32))
                    quads = (low | (high << 4)).bits(I32)
                    step = 256
                else:
                    raw = code.load(vec(I8, 32), at)
                    quads = (raw ^ (128 if jit.isa.flips else 0)).bits(I32)
                    step = 512
                for j in range(quads.lanes):
                    code.store(quads.lane(j), home + k * step + 64 * j)
            base = row // BLOCK * groups * BLOCK + lane
            with code.loop(0, groups) as g:
                to = base + g * BLOCK
                code.store(code.load(I16, scale + (r * groups + g) * 2), to_scale + to * 2)
                with code.when(zero.differs(0)):
                    code.store(code.load(I8, zero + r * groups + g), to_zero + to)
    code.end()


