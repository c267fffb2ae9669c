"""block_scan, advance and block_memory: the memory of the gated delta rule.

Every value head's memory [K, V] is cut into slices of 32 columns, which have nothing to do with
each other: an item advances one slice over all rows of its segment, in a copy that stays in the
nearest cache. A first step brings keys and queries to unit length and takes e^g.

    notes of a row, per key head: unit k [K], unit q / sqrt(K) [K]; then k . q of each key head,
    and e^g of each value head
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llvmlite import ir

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cpu.jit.kernel import JitKernel, address, addresses, padded
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.maths import exp, lanes_sum
from clover_rt_cpu.jit.table import Lanes, Table, offsets, over_lanes
from clover_rt_cpu.jit.values import F32, F32V, I32, I64, LANES, Value

SLICE = 64
"""Columns of the memory that an item works on."""
MOST_KEY = 256
EPS = 1e-6


@dataclass(frozen=True)
class Sizes:
    """The axes of a scan as values of a kernel."""

    groups: Value
    heads: Value
    key: Value
    value: Value

    @property
    def notes(self) -> Value:
        """Floats of the notes of a row."""
        return self.groups * self.key * 2 + self.groups + self.heads


def note_floats(sig: Signature) -> int:
    """Return the floats of the notes of a row."""
    return int(sig["G"] * sig["K"] * 2 + sig["G"] + sig["H"])


def too_wide(sig: Signature) -> str:
    key = sig["K"]
    return "" if key <= MOST_KEY else f"keys of {key} numbers were asked for; up to {MOST_KEY} work"


class BlockScan(JitKernel):
    """Advance the memory over commit rows; read it, and leave a tape, for verify rows."""

    def refusal(self, sig: Signature) -> str:
        return too_wide(sig)

    def scratch(self, sig: Signature) -> int:
        return padded(4 * sig["T"] * note_floats(sig))

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
        params, qkv, g, beta = addresses(operands, "params", "qkv", "g", "beta")
        memory, o = addresses(operands, "S", "o")
        tapes = addresses(operands, "tape_k", "tape_v", "tape_g", "tape_beta")
        places = offsets(sig.layout, "segments")
        note = self.call("scan_notes", scan_notes, params, qkv, g, notes, *axes, *places)
        tape = self.call(
            "scan_tape", _scan_tape, params, qkv, g, beta, *tapes, sig["Q"], *axes, *places
        )
        rows = self.call(
            "scan_rows", _scan_rows, params, qkv, beta, notes, memory, o, *axes, *places
        )
        calls = [note, tape, rows] if sig.table.has_verify else [note, rows]
        return self.step(calls, operands, scratch)


def scan_notes(module: ir.Module, name: str) -> None:
    code = Code(module, name, split=True)
    params, qkv, g, notes, *axes, segments = code.args(9)
    sizes = Sizes(*axes)
    table = Table(code, params, segments)
    width = sizes.groups * sizes.key
    stride = width * 2 + sizes.heads * sizes.value
    lo, hi = code.share(table.header(1))
    with code.loop(lo, hi) as row:
        note_row(
            code,
            sizes,
            qkv + row * stride * 4,
            qkv + (row * stride + width) * 4,
            g + row * sizes.heads * 4,
            notes + row * sizes.notes * 4,
        )
    code.end()


def note_row(code: Code, sizes: Sizes, q: Value | None, k: Value, g: Value, notes: Value) -> None:
    """Write the notes of one row; without q only those of k and g."""
    overlaps = notes + sizes.groups * sizes.key * 8
    with code.loop(0, sizes.groups) as group:
        offset = group * sizes.key * 4
        to = notes + group * sizes.key * 8
        unit_row(code, k + offset, to, sizes.key, None)
        if q is not None:
            unit_row(code, q + offset, to + sizes.key * 4, sizes.key, sizes.key)
            code.store(dot(code, to, to + sizes.key * 4, sizes.key), overlaps + group * 4)
    decays = overlaps + sizes.groups * 4
    over_lanes(
        code,
        sizes.heads,
        lambda h, at: at.store(exp(code, at.load(g + h * 4)), decays + h * 4),
    )


def dot(code: Code, a: Value, b: Value, columns: Value) -> Value:
    """Return the sum of products of two rows in memory."""
    total = code.var(code.const(F32V, 0.0))

    def add(c: Value, at: Lanes) -> None:
        total.v = code.fma(at.load(a + c * 4), at.load(b + c * 4), total.v)

    over_lanes(code, columns, add)
    return lanes_sum(total.v)


def unit_row(code: Code, x: Value, to: Value, columns: Value, scale: Value | None) -> None:
    """Write x / sqrt(sum of squares + 1e-6), and over sqrt(scale) where that is given."""
    length = code.sqrt(dot(code, x, x, columns) + EPS)
    if scale is not None:
        length = length * code.sqrt(scale.to(F32))
    factor = length.splat()
    over_lanes(code, columns, lambda c, at: at.store(at.load(x + c * 4) / factor, to + c * 4))


def _scan_tape(module: ir.Module, name: str) -> None:
    code = Code(module, name, split=True)
    params, qkv, g, beta, *tapes, draft, groups, heads, key, value, segments = code.args(14)
    table = Table(code, params, segments)
    width = groups * key
    stride = width * 2 + heads * value
    parts = (
        (qkv + width * 4, stride, tapes[0], width),
        (qkv + width * 8, stride, tapes[1], heads * value),
        (g, heads, tapes[2], heads),
        (beta, heads, tapes[3], heads),
    )
    with table.each() as s, code.when(s.is_verify):
        lo, hi = code.share(s.rows)
        with code.loop(lo, hi) as t:
            for source, step, to, columns in parts:
                here = source + (s.row0 + t) * step * 4
                there = to + (s.slot * draft + t) * columns * 4
                over_lanes(
                    code,
                    columns,
                    lambda c, at, here=here, there=there: at.store(  # type: ignore[misc]
                        at.load(here + c * 4), there + c * 4
                    ),
                )
    code.end()


def _scan_rows(module: ir.Module, name: str) -> None:
    code = Code(module, name)
    params, qkv, beta, notes, memory, o, *axes, segments = code.args(11)
    sizes = Sizes(*axes)
    table = Table(code, params, segments)
    stride = sizes.groups * sizes.key * 2 + sizes.heads * sizes.value
    slices = (sizes.value + (SLICE - 1)) // SLICE
    items = sizes.heads * slices
    copy = code.room(4 * SLICE * MOST_KEY)
    with code.deal(table.header(2) * items) as item:
        s = table.segment(item // items)
        with code.when(code.both(s.rows > 0, s.kind.differs(1))):
            head, first = item % items // slices, item % slices * SLICE
            v = qkv + (s.row0 * stride + sizes.groups * sizes.key * 2) * 4
            work = Slice(code, sizes, head, first, copy)
            work.run(
                memory + (s.slot * sizes.heads + head) * sizes.key * sizes.value * 4,
                s.rows,
                notes + s.row0 * sizes.notes * 4,
                v,
                stride,
                beta + s.row0 * sizes.heads * 4,
                o + s.row0 * sizes.heads * sizes.value * 4,
                s.is_commit,
            )
    code.end()


class Slice:
    """One head's memory in up to 32 of its columns, worked on in a copy [K][32]."""

    def __init__(self, code: Code, sizes: Sizes, head: Value, first: Value, copy: Value) -> None:
        self.code = code
        self.sizes = sizes
        self.head = head
        self.first = first
        self.copy = copy
        left = sizes.value - first
        self.parts = [Lanes(code, left - LANES * i) for i in range(SLICE // LANES)]

    def columns(self, base: Value) -> list[tuple[Lanes, Value]]:
        """Return the lanes and addresses of the slice's parts of a row of V columns."""
        return [(p, base + (self.first + LANES * i) * 4) for i, p in enumerate(self.parts)]

    def run(
        self,
        memory: Value,
        rows: Value,
        notes: Value,
        v: Value,
        v_stride: Value,
        beta: Value,
        o: Value | None,
        is_kept: Value,
    ) -> None:
        code, sizes = self.code, self.sizes
        step = sizes.value * 4
        with code.loop(0, sizes.key) as k:
            for i, (at, here) in enumerate(self.columns(memory + k * step)):
                code.store(at.load(here), self.copy + k * (4 * SLICE) + 4 * LANES * i, 64)
        group = self.head // (sizes.heads // sizes.groups)
        with code.loop(0, rows) as t:
            note = notes + t * sizes.notes * 4
            key = note + group * sizes.key * 8
            extra = note + sizes.groups * sizes.key * 8
            decay = code.load(F32, extra + (sizes.groups + self.head) * 4).splat()
            reads, asks = self._read(key, o is not None)
            strength = code.load(F32, beta + (t * sizes.heads + self.head) * 4).splat()
            values = self.columns(v + (t * v_stride + self.head * sizes.value) * 4)
            writes = [
                strength * (at.load(here) - decay * read)
                for (at, here), read in zip(values, reads, strict=True)
            ]
            self._write(key, decay, writes)
            if o is not None:
                overlap = code.load(F32, extra + group * 4).splat()
                to = self.columns(o + (t * sizes.heads + self.head) * step)
                for (at, here), ask, write in zip(to, asks, writes, strict=True):
                    at.store(code.fma(overlap, write, decay * ask), here)
        with code.when(is_kept), code.loop(0, sizes.key) as k:
            for i, (at, here) in enumerate(self.columns(memory + k * step)):
                at.store(code.load(F32V, self.copy + k * (4 * SLICE) + 4 * LANES * i, 64), here)

    def _read(self, key: Value, asks: bool) -> tuple[list[Value], list[Value]]:
        """Return S^T k and S^T q; even and odd rows of S are summed apart."""
        code, sizes = self.code, self.sizes
        zero = code.const(F32V, 0.0)
        count = len(self.parts)
        sums = [code.var(zero) for _ in range(count * (2 if asks else 1))]
        with code.loop(0, sizes.key) as k:
            at = key + k * 4
            row = [
                code.load(F32V, self.copy + k * (4 * SLICE) + 4 * LANES * i, 64)
                for i in range(count)
            ]
            factors = [code.load(F32, at).splat()]
            if asks:
                factors.append(code.load(F32, at + sizes.key * 4).splat())
            for j, factor in enumerate(factors):
                for i, part in enumerate(row):
                    total = sums[j * count + i]
                    total.v = code.fma(part, factor, total.v)
        found = [s.v for s in sums]
        return found[:count], found[count:]

    def _write(self, key: Value, decay: Value, writes: list[Value]) -> None:
        code = self.code
        with code.loop(0, self.sizes.key) as k:
            factor = code.load(F32, key + k * 4).splat()
            for i, write in enumerate(writes):
                at = self.copy + k * (4 * SLICE) + 4 * LANES * i
                code.store(code.fma(factor, write, decay * code.load(F32V, at, 64)), at, 64)


class Advance(JitKernel):
    """Replay the accepted rows of a slot's tape into its ring and memory."""

    def refusal(self, sig: Signature) -> str:
        return too_wide(sig)

    def scratch(self, sig: Signature) -> int:
        rows = sig.layout.segments * sig["Q"]
        return padded(4 * rows * note_floats(sig))

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        assert scratch is not None
        names = ("params", "ring", "S", "tape_u", "tape_k", "tape_v", "tape_g", "tape_beta")
        words = (
            *(*addresses(operands, *names), address(scratch)),
            *(*(sig[a] for a in "GHKVQC"), sig["J"] - 1, *offsets(sig.layout, "advances")),
        )
        notes = self.call("advance_notes", _advance_notes, *words)
        rows = self.call("advance_rows", _advance_rows, *words)
        return self.step([notes, rows], operands, scratch)


def _advance_notes(module: ir.Module, name: str) -> None:
    """Write the notes of every row that is replayed, and shift the rings."""
    code = Code(module, name, split=True)
    params, ring, _, tape_u, tape_k, _, tape_g, _, notes, *axes = code.args(17)
    groups, heads, key, value, draft, columns, before, advances = axes
    sizes = Sizes(groups, heads, key, value)
    with code.loop(0, code.load(I32, params + 24).to(I64)) as i:
        slot, rows = _advance(code, params, advances, i)
        lo, hi = code.share(rows)
        with code.loop(lo, hi) as t:
            row = slot * draft + t
            to = notes + (i * draft + t) * sizes.notes * 4
            source = tape_k + row * groups * key * 4
            note_row(code, sizes, None, source, tape_g + row * heads * 4, to)
        with code.when(code.both(code.part.equals(0), rows > 0)), code.loop(0, before) as r:
            index = rows + r
            from_ring = ring + (slot * before + index) * columns * 4
            from_tape = tape_u + (slot * draft + index - before) * columns * 4
            source = code.select(index < before, from_ring, from_tape)
            to = ring + (slot * before + r) * columns * 4
            over_lanes(
                code,
                columns,
                lambda c, at: at.store(at.load(source + c * 4), to + c * 4),  # noqa: B023
            )
    code.end()


def _advance(code: Code, params: Value, advances: Value, i: Value) -> tuple[Value, Value]:
    at = params + advances + i * 8
    return code.load(I32, at).to(I64), code.load(I32, at + 4).to(I64)


def _advance_rows(module: ir.Module, name: str) -> None:
    code = Code(module, name)
    params, _, memory, _, _, tape_v, _, tape_beta, notes, *axes = code.args(17)
    groups, heads, key, value, draft, _, _, advances = axes
    sizes = Sizes(groups, heads, key, value)
    slices = (value + (SLICE - 1)) // SLICE
    items = heads * slices
    copy = code.room(4 * SLICE * MOST_KEY)
    with code.deal(code.load(I32, params + 24).to(I64) * items) as item:
        i = item // items
        slot, rows = _advance(code, params, advances, i)
        with code.when(rows > 0):
            head, first = item % items // slices, item % slices * SLICE
            Slice(code, sizes, head, first, copy).run(
                memory + (slot * heads + head) * key * value * 4,
                rows,
                notes + i * draft * sizes.notes * 4,
                tape_v + slot * draft * heads * value * 4,
                heads * value,
                tape_beta + slot * draft * heads * 4,
                None,
                rows > 0,
            )
    code.end()
