"""Products of rows with blocks of 16 weight rows: the inner loops of linear, experts and head.

Packed weights (q4, q8) lie in blocks of 16 rows, 32 columns after 32 columns:
    q4  256 bytes: four vectors of 16 lanes x 4 bytes; byte b of lane n in vector j holds column
        4 j + b of row n in its low half and column 16 + 4 j + b in its high half
    q8  512 bytes: eight such vectors, one code a byte (plus 128 where the instruction set `flips`)
with scales float16 [K/g][16] and zero points uint8 [K/g][16] beside them. Plain weights (f32, f16,
bf16) are read where they lie, row by row.

Rows of activations are float32, or records of 40 bytes for 32 columns: 32 int8 codes, their scale
as float32, and -bias times the sum of the codes as int32, where bias is what a weight's code is
above its value.

Every output is summed in the same order whatever the number of rows: over columns for packed
weights, in 16 interleaved sums added in a fixed tree for plain ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from clover_rt.spec import Format
from clover_rt_cpu.jit.isa import Isa
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.maths import lanes_most, lanes_sum
from clover_rt_cpu.jit.values import F16, F32, F32V, I8, I16, I32, I64, LANES, Value, vec

BLOCK = 16
"""Weight rows of a block."""
GROUP = 32
"""Columns of a group of activations."""
RECORD = 40
"""Bytes of a group of quantised activations."""
AHEAD = {4: 2048, 8: 4096}
"""Bytes that packed weights are fetched ahead of use, by the most rows that each is for."""
WORDS = 5
"""Words of a block in a table: address of codes, of scales, of zeros, first row, rows."""


@dataclass(frozen=True)
class Block:
    """A block of weight rows as a kernel reads it out of the table."""

    codes: Value
    scales: Value
    zeros: Value
    first: Value
    count: Value

    @staticmethod
    def at(code: Code, base: Value) -> Block:
        return Block(*(code.load(I64, base + 8 * i) for i in range(WORDS)))


@dataclass(frozen=True)
class Inner:
    """One weight format with one kind of activations."""

    isa: Isa
    format: Format
    has_zero: bool = False
    quantises: bool = False

    @property
    def name(self) -> str:
        zero = "z" if self.has_zero else ""
        return f"{self.format.value}{zero}{'_i8' if self.quantises else ''}"

    @property
    def is_packed(self) -> bool:
        return self.format.is_quantised

    @property
    def bias(self) -> int:
        """What the activations' sums are multiplied with, less the sign."""
        if self.has_zero:
            return 1
        if self.format is Format.Q4:
            return 8
        return 128 if self.isa.flips else 0

    @property
    def has_many(self) -> bool:
        """Is there a function for many rows beside the tiles?"""
        return self.isa.matrices and self.is_packed and self.quantises

    @property
    def tiles(self) -> tuple[int, ...]:
        return self.isa.tiles if self.is_packed else self.isa.tiles[:4]

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a row of activations."""
        return columns // GROUP * RECORD if self.quantises else 4 * columns

    def row_stride(self, columns: Value) -> Value:
        return columns // GROUP * RECORD if self.quantises else columns * 4

    def emit(self, module: ir.Module) -> None:
        """Write the functions tile_1, tile_2, ...: 16 outputs of that many rows.

        tile_n(block, rows, columns, shift, out): the address of a block's words in the table; of n
        addresses of rows; log2 of the groups of activations that share a scale; where float32
        [n][16] go.
        """
        for count in self.tiles:
            code = Code(module, f"tile_{count}", 5)
            block, listed, columns, shift, out = code.parameters
            rows = [code.load(I64, listed + 8 * i, 8) for i in range(count)]
            found = self._block(code, Block.at(code, block), rows, columns, shift)
            for i, sums in enumerate(found):
                code.store(sums, out + 4 * BLOCK * i, 64)
            code.end()

    def _block(
        self, code: Code, at: Block, rows: Sequence[Value], columns: Value, shift: Value
    ) -> list[Value]:
        if not self.is_packed:
            return self._plain(code, at, rows, columns)
        if self.quantises:
            return self._integer(code, at, rows, columns, shift)
        return self._decoded(code, at, rows, columns, shift)

    @property
    def group_bytes(self) -> int:
        """Bytes of 32 columns of a packed block."""
        return 256 if self.format is Format.Q4 else 512

    def codes_of(self, code: Code, base: Value) -> list[Value]:
        """Return 32 columns of a packed block: eight vectors of 16 rows by 4 bytes."""
        loaded = [code.load(vec(I32), base + line) for line in range(0, self.group_bytes, 64)]
        if self.format is Format.Q4:
            low = [v & 0x0F0F0F0F for v in loaded]
            return low + [(v >> 4) & 0x0F0F0F0F for v in loaded]
        return loaded

    def _fetch(self, code: Code, base: Value, rows: int) -> None:
        ahead = next(n for most, n in AHEAD.items() if rows <= most)
        for line in range(0, self.group_bytes, 64):
            code.prefetch(base + (ahead + line))

    def group_scales(
        self, code: Code, at: Block, k: Value, shift: Value
    ) -> tuple[Value, Value | None]:
        """Return the scales of a group of columns, and the zero points as int32."""
        group = k >> shift
        scales = code.load(vec(F16), at.scales + (group << 5)).to(F32)
        if not self.has_zero:
            return scales, None
        return scales, code.load(vec(I8), at.zeros + (group << 4)).to(I32, signed=False)

    def _integer(
        self, code: Code, at: Block, rows: Sequence[Value], columns: Value, shift: Value
    ) -> list[Value]:
        sums = [code.var(code.const(F32V, 0.0)) for _ in rows]
        signed = self.format is Format.Q8
        with code.loop(0, columns // GROUP) as k:
            base = at.codes + k * self.group_bytes
            self._fetch(code, base, len(rows))
            weights = [v.bits(I8) for v in self.codes_of(code, base)]
            scales, zeros = self.group_scales(code, at, k, shift)
            offset = k * RECORD
            for total, row in zip(sums, rows, strict=True):
                x = row + offset
                if self.bias:
                    seed = code.load(I32, x + 36).splat()
                    if zeros is not None:
                        seed = seed * zeros
                else:
                    seed = code.const(vec(I32), 0)
                for j, w in enumerate(weights):
                    quad = code.load(I32, x + 4 * j).splat().bits(I8)
                    seed = self.isa.dot(code, seed, w, quad, signed)
                factor = scales * code.load(F32, x + 32).splat()
                total.v = code.fma(seed.to(F32), factor, total.v)
        return [s.v for s in sums]

    def _decoded(
        self, code: Code, at: Block, rows: Sequence[Value], columns: Value, shift: Value
    ) -> list[Value]:
        """Sum groups of float32 products; each group's sum is scaled once."""
        sums = [code.var(code.const(F32V, 0.0)) for _ in rows]
        with code.loop(0, columns // GROUP) as k:
            base = at.codes + k * self.group_bytes
            self._fetch(code, base, len(rows))
            scales, zeros = self.group_scales(code, at, k, shift)
            lift = None if zeros is None else zeros.to(F32)
            offset = k * (4 * GROUP)
            parts = [code.const(F32V, 0.0) for _ in rows]
            for j in range(self.group_bytes // 64):
                loaded = code.load(vec(I32), base + 64 * j)
                for column, w in self._columns(code, loaded, j, lift):
                    for i, row in enumerate(rows):
                        x = code.load(F32, row + offset + 4 * column).splat()
                        parts[i] = code.fma(w, x, parts[i])
            for total, part in zip(sums, parts, strict=True):
                total.v = code.fma(part, scales, total.v)
        return [s.v for s in sums]

    def _columns(
        self, code: Code, loaded: Value, j: int, lift: Value | None
    ) -> list[tuple[int, Value]]:
        """Return (column, 16 values) of the bytes of one vector, still without their scale."""
        out = []
        if self.format is Format.Q8:
            if self.isa.flips:
                loaded = loaded ^ 0x80808080
            for b in range(4):
                out.append((4 * j + b, (loaded << (24 - 8 * b)).sar(24).to(F32)))
            return out
        for half in range(2):
            for b in range(4):
                w = self.isa.nibbles(code, loaded >> (8 * b + 4 * half), 0 if lift else 8)
                out.append((16 * half + 4 * j + b, w if lift is None else w - lift))
        return out

    def _plain(self, code: Code, at: Block, rows: Sequence[Value], columns: Value) -> list[Value]:
        size = 4 if self.format is Format.F32 else 2
        stride = columns * size
        found = code.room(4 * BLOCK * len(rows))
        whole = columns - columns % LANES
        last = at.count - 1
        with code.loop(0, BLOCK, 4) as n:
            weights = [at.codes + code.least(n + i, last) * stride for i in range(4)]
            zero = code.const(F32V, 0.0)
            sums = [[code.var(zero) for _ in rows] for _ in weights]

            def add(k: Value, load: Any) -> None:
                xs = [load(F32V, row + k * 4) for row in rows]
                for w, totals in zip(weights, sums, strict=True):
                    value = self._numbers(load, w + k * size)
                    for x, total in zip(xs, totals, strict=True):
                        total.v = code.fma(value, x, total.v)

            with code.loop(0, whole, LANES) as k:
                add(k, code.load)
            with code.when(whole < columns):
                live = code.live(columns - whole)
                add(whole, lambda kind, address: code.masked(kind, address, live))
            for i, totals in enumerate(sums):
                for r, total in enumerate(totals):
                    code.store(lanes_sum(total.v), found + 4 * (BLOCK * r + i) + n * 4)
        return [code.load(F32V, found + 4 * BLOCK * r) for r in range(len(rows))]

    def _numbers(self, load: Any, address: Value) -> Value:
        if self.format is Format.F32:
            found: Value = load(F32V, address)
            return found
        if self.format is Format.F16:
            half: Value = load(vec(I16), address)
            return half.bits(F16).to(F32)
        bits: Value = load(vec(I16), address)
        return (bits.to(I32, signed=False) << 16).bits(F32)


def quantise(code: Code, x: Sequence[Value], record: Value, bias: int) -> None:
    """Write a record of 32 activations, given as two vectors of 16.

    The largest magnitude maps to 127. Where one is not finite the scale is NaN.
    """
    peak = code.const(F32V, 0.0)
    odd = code.const(F32V, 0.0)
    for v in x:
        peak = code.most(peak, code.intrinsic("fabs", v))
        odd = odd + v * 0.0
    most = lanes_most(code, peak)
    # below this an inverse would overflow; such rows are zeros to every weight there is
    normal = most > 1e-34
    inverse = code.select(normal, 127.0 / code.select(normal, most, 1.0), 0.0).splat()
    total = code.const(vec(I32), 0)
    for i, v in enumerate(x):
        whole = code.intrinsic("rint", v * inverse).to(I32)
        code.store(whole.to(I8), record + LANES * i)
        total = total + whole
    code.store(most * (1 / 127) + lanes_sum(odd), record + 32)
    code.store(lanes_sum(total) * -bias, record + 36)
