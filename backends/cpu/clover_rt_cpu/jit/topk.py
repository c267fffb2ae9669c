"""confidence_topk: the head is read once, in chunks of 256 ids; logits never reach memory whole.

1. wanted rows are quantised where that is wanted; all rows are checked for numbers that are not
   finite
2. an item is one chunk: logits of all wanted rows, controls, then a summary of each row: peak, sum
   of e^(l - peak), sum of e^(l - peak) (l - peak), and the best candidates
3. summaries are merged in the order of chunks, so that nothing depends on who made them

A summary is float32 peak, total, weighted, 1 word unused, then `top` logits and `top` ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llvmlite import ir

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature
from clover_rt_cpu.jit.controls import Controls
from clover_rt_cpu.jit.kernel import JitKernel, address, addresses, is_rounded, padded, quantises
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.linear import quantise_range
from clover_rt_cpu.jit.maths import exp, lanes_most, lanes_sum, log
from clover_rt_cpu.jit.pack import Blocks, blocks_of, packed_bytes
from clover_rt_cpu.jit.product import BLOCK, GROUP, RECORD, WORDS, Inner
from clover_rt_cpu.jit.routing import TAKEN, keys_of, largest
from clover_rt_cpu.jit.table import Lanes, Table, offsets, over_lanes
from clover_rt_cpu.jit.tiles import Tiles
from clover_rt_cpu.jit.values import F32, F32V, F64, I32, I64, LANES, Value

CHUNK = 256
ROWS = 64
"""Wanted rows whose logits of a chunk are held at a time: 64 KB."""
LINE = 64
MOST_TOP = 64
FIXED = 16
"""Bytes of a summary in front of its candidates."""


@dataclass(frozen=True)
class Room:
    """Byte offsets in the scratch memory."""

    flags: int
    probes: int
    records: int
    summaries: int
    end: int


class ConfidenceTopk(JitKernel):
    """Pick the best ids of the wanted rows."""

    products = ("head",)

    def refusal(self, sig: Signature) -> str:
        top = sig.attr("top")
        return "" if top <= MOST_TOP else f"{top} candidates were asked for; up to {MOST_TOP} work"

    def denial(self, sig: Signature) -> str:
        top = sig.attr("top")
        if top > sig["vocab"]:
            return f"top={top} exceeds the {sig['vocab']} ids of the vocabulary"
        return ""

    def room(self, sig: Signature) -> Room:
        chunks = -(-sig["vocab"] // CHUNK)
        probes = LINE * self.jit.team.count
        records = probes + padded(4 * sig["W"])
        rounded = is_rounded(sig, "head")
        size = sig["W"] * (sig["D"] // GROUP) * RECORD if rounded else 0
        summaries = records + padded(size)
        end = summaries + sig["W"] * chunks * (FIXED + 8 * sig["top"])
        return Room(0, probes, records, summaries, end)

    def scratch(self, sig: Signature) -> int:
        return padded(self.room(sig).end)

    def prepared_bytes(self, sig: Signature) -> int:
        fmt, group = sig.format("head")
        return packed_bytes(fmt, group, (sig["vocab"], sig["D"]))

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        head = weights["head"]
        ragged = any(p.shape[0] % BLOCK for p in head.pieces[:-1])
        return blocks_of(self.jit, HostWeight.of(head.whole(), head.name) if ragged else head)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        assert scratch is not None
        blocks: Blocks = prepared
        inner = blocks.inner(self.jit, quantises(sig))
        room, base = self.room(sig), address(scratch)
        params, h, counts, suppressed, picks = addresses(
            operands, "params", "h", "counts", "suppressed", "picks"
        )
        flags, probes, records, summaries = (
            base + n for n in (room.flags, room.probes, room.records, room.summaries)
        )
        places = offsets(sig.layout, "segments", "controls", "wanted", "tokens")
        columns, vocab, top = sig["D"], sig["vocab"], sig["top"]
        rows = self.call(
            f"topk_rows_{inner.bias if inner.quantises else 'f32'}",
            lambda m, n: _emit_rows(m, n, inner),
            *(params, h, columns, records, flags, places[2]),
        )
        chunks = self.call(
            f"topk_chunks_{inner.name}",
            lambda m, n: _emit_chunks(m, n, inner),
            *(params, records if inner.quantises else h, columns, flags, probes, summaries),
            *(blocks.table.ctypes.data, len(blocks.table), blocks.shift, self.jit.tiles(inner)),
            *(vocab, top, counts, suppressed, *places),
        )
        merge = self.call(
            "topk_merge",
            _emit_merge,
            *(params, flags, probes, summaries, picks, vocab, top, places[2]),
        )
        return self.step([rows, chunks, merge], operands, scratch, blocks)


def _wanted(code: Code, params: Value, wanted: Value, index: Value) -> list[Value]:
    """Return row, segment, response position, think flag, count_from and probe of a wanted row."""
    at = params + wanted + index * 32
    return [code.load(I32, at + 4 * i).to(I64) for i in range(6)]


def _emit_rows(module: ir.Module, name: str, inner: Inner) -> None:
    code = Code(module, name, split=True)
    params, h, columns, records, flags, wanted = code.args(6)
    table = Table(code, params, params)
    if inner.quantises:
        lo, hi = code.share(table.header(3))
        groups = columns // GROUP
        with code.loop(lo, hi) as i:
            row = _wanted(code, params, wanted, i)[0]
            to = records + i * groups * RECORD
            zero = code.const(I64, 0)
            quantise_range(code, zero, groups, h + row * columns * 4, to, inner.bias)
    lo, hi = code.share(table.header(1))
    odd = code.var(code.const(F32V, 0.0))

    def add(k: Value, at: Lanes) -> None:
        odd.v = odd.v + at.load(h + (lo * columns + k) * 4) * 0.0

    over_lanes(code, (hi - lo) * columns, add)
    # a product of 0 with a number that is not finite is NaN, and so is every sum with it
    finite = lanes_sum(odd.v).equals(0.0).to(I32, signed=False)
    code.store(finite, flags + code.part * LINE, 4)
    code.end()


def _emit_chunks(module: ir.Module, name: str, inner: Inner) -> None:
    code = Code(module, name)
    params, rows, columns, flags, probes, summaries = code.args(6)
    blocks, count, shift, functions, vocab, top, counts, suppressed = code.args(14)[6:]
    segments, controls, wanted, tokens = code.args(18)[14:]
    table = Table(code, params, segments)
    tiles = Tiles(code, inner, functions)
    logits = code.room(4 * ROWS * CHUNK)
    control = Controls(code, table, controls, tokens, counts, suppressed, vocab)
    wants = table.header(3)
    chunks = (vocab + (CHUNK - 1)) // CHUNK
    stride = inner.row_stride(columns)
    flag = flags + code.thread * LINE
    with code.deal(code.select(wants > 0, chunks, 0)) as chunk:
        first = chunk * CHUNK
        ids = code.least(vocab - first, CHUNK)
        block0 = first // BLOCK
        with code.loop(0, wants, ROWS) as lo:
            here = code.least(wants - lo, ROWS)
            with code.loop(block0, code.least(block0 + CHUNK // BLOCK, count)) as b:
                to = logits + (b - block0) * (4 * BLOCK)

                def source(m: Value, lo: Value = lo) -> Value:
                    index = lo + m
                    if not inner.quantises:
                        index = _wanted(code, params, wanted, index)[0]
                    return rows + index * stride

                def keep(m: Value, sums: Value, to: Value = to) -> None:
                    code.store(sums, to + m * (4 * CHUNK), 64)

                block = blocks + b * (8 * WORDS)
                even = (rows + lo * stride, stride) if inner.quantises else None
                tiles.run(block, here, source, columns, shift, keep, even)
            with code.loop(0, here) as m:
                index = lo + m
                row = logits + m * (4 * CHUNK)
                _check(code, row, ids, flag)
                facts = _wanted(code, params, wanted, index)
                control.apply(row, first, ids, facts)
                probe = facts[5]
                inside = code.both(probe >= first, probe < first + ids)
                with code.when(inside):
                    code.store(code.load(F32, row + (probe - first) * 4), probes + index * 4)
                summary = summaries + (index * chunks + chunk) * (top * 8 + FIXED)
                _summarise(code, row, first, ids, top, summary)
    code.end()


def _check(code: Code, row: Value, ids: Value, flag: Value) -> None:
    """Clear the flag if a logit is not finite; set what lies past the ids to -inf."""
    odd = code.var(code.const(F32V, 0.0))

    def add(k: Value, at: Lanes) -> None:
        odd.v = odd.v + at.load(row + k * 4) * 0.0

    over_lanes(code, ids, add)
    with code.when(lanes_sum(odd.v).equals(0.0).equals(0)):
        code.store(code.const(I32, 0), flag, 4)
    with code.loop(ids, CHUNK) as k:
        code.store(code.const(F32, float("-inf")), row + k * 4)


def _summarise(
    code: Code, row: Value, first: Value, ids: Value, top: Value, summary: Value
) -> None:
    low = code.const(F32V, float("-inf"))
    peak = code.var(low)
    with code.loop(0, CHUNK, LANES) as k:
        peak.v = code.most(peak.v, code.load(F32V, row + k * 4, 64))
    best = lanes_most(code, peak.v)
    base = code.select(best > float("-inf"), best, 0.0)
    total, weighted = (code.var(code.const(F32V, 0.0)) for _ in range(2))
    with code.loop(0, CHUNK, LANES) as k:
        value = code.load(F32V, row + k * 4, 64)
        # e^-200 is 0 in float32, and 0 times -200 is 0 where 0 times -inf is not
        below = code.most(value - base, -200.0)
        share = exp(code, below)
        total.v = total.v + share
        weighted.v = code.fma(share, below, weighted.v)
        code.store(keys_of(code, value), row + k * 4, 64)
    for i, value in enumerate((best, lanes_sum(total.v), lanes_sum(weighted.v))):
        code.store(value, summary + 4 * i)
    with code.loop(ids, CHUNK) as k:
        code.store(code.const(I32, TAKEN), row + k * 4)
    with code.loop(0, code.least(ids, top)) as rank:
        key, at = largest(code, row, code.const(I64, CHUNK))
        code.store(code.const(I32, TAKEN), row + at * 4)
        bits = key ^ (key.sar(31) & 0x7FFFFFFF)
        code.store(bits, summary + FIXED + rank * 4)
        code.store((first + at).to(I32), summary + FIXED + (top + rank) * 4)


def _emit_merge(module: ir.Module, name: str) -> None:
    code = Code(module, name, split=True)
    params, flags, probes, summaries, picks, vocab, top, wanted = code.args(8)
    table = Table(code, params, params)
    chunks = (vocab + (CHUNK - 1)) // CHUNK
    words = top * 2 + 4
    with code.when(code.part.equals(0)):
        with code.loop(0, words) as word:
            code.store(code.const(I32, 0), picks + word * 4)
        finite = code.var(code.const(I32, 1))
        with code.loop(0, code.threads) as part:
            finite.v = finite.v & code.load(I32, flags + part * LINE, 4)
        code.store(finite.v, picks)
    lo, hi = code.share(table.header(3))
    with code.loop(lo, hi) as w:
        base = summaries + w * chunks * (top * 8 + FIXED)
        row = picks + (w + 1) * words * 4
        _merge_best(code, base, chunks, vocab, top, row)
        lse, entropy = _merge_sums(code, base, chunks, top)
        probe = code.var(code.const(F32, 0.0))
        with code.when(_wanted(code, params, wanted, w)[5] >= 0):
            probe.v = code.load(F32, probes + w * 4)
        for i, value in enumerate((lse.to(F32), entropy.to(F32), probe.v, code.const(F32, 0.0))):
            code.store(value, row + (top * 2 + i) * 4)
    code.end()


def _merge_best(
    code: Code, base: Value, chunks: Value, vocab: Value, top: Value, row: Value
) -> None:
    """Insert every chunk's candidates, which fall, into the row's: equal ones stay in order."""
    found = code.var(code.const(I64, 0))
    with code.loop(0, chunks) as c:
        at = base + c * (top * 8 + FIXED) + FIXED
        count = code.least(code.least(vocab - c * CHUNK, CHUNK), top)
        i = code.var(code.const(I64, 0))
        with code.whilst(lambda: i.v < count):  # noqa: B023
            value = code.load(F32, at + i.v * 4)
            token = code.load(I32, at + (top + i.v) * 4)
            last = code.load(F32, row + (top * 2 - 1) * 4)
            is_late = code.both(found.v >= top, value <= last)

            def insert(value: Value = value, token: Value = token) -> None:
                place = code.var(code.least(found.v, top - 1))
                moves = code.var(code.const(I32, 1))

                def before() -> Value:
                    return row + (top + place.v - 1) * 4

                with code.whilst(lambda: code.both(place.v > 0, moves.v > 0)):
                    older = code.load(F32, before())

                    def shift(older: Value = older) -> None:
                        code.store(older, before() + 4)
                        code.store(code.load(I32, row + (place.v - 1) * 4), row + place.v * 4)
                        place.v = place.v - 1

                    def stop() -> None:
                        moves.v = code.const(I32, 0)

                    code.either(older < value, shift, stop)
                code.store(value, row + (top + place.v) * 4)
                code.store(token, row + place.v * 4)
                found.v = code.least(found.v + 1, top)
                i.v = i.v + 1  # noqa: B023

            def skip(count: Value = count) -> None:
                i.v = count  # noqa: B023

            code.either(is_late, skip, insert)


def _merge_sums(code: Code, base: Value, chunks: Value, top: Value) -> tuple[Value, Value]:
    """Return log-sum-exp and entropy in nats, as float64."""
    stride = top * 8 + FIXED
    peak = code.var(code.const(F32, float("-inf")))
    with code.loop(0, chunks) as c:
        peak.v = code.most(peak.v, code.load(F32, base + c * stride))
    total, weighted = (code.var(code.const(F64, 0.0)) for _ in range(2))
    with code.loop(0, chunks) as c:
        here, mass, mixed = (code.load(F32, base + c * stride + 4 * i) for i in range(3))
        with code.when(here > float("-inf")):
            factor = exp(code, here - peak.v).to(F64)
            gap = here.to(F64) - peak.v.to(F64)
            total.v = code.fma(mass.to(F64), factor, total.v)
            lowered = code.fma(gap, mass.to(F64), mixed.to(F64))
            weighted.v = code.fma(lowered, factor, weighted.v)
    logarithm = log(code, total.v)
    lse = peak.v.to(F64) + logarithm
    return lse, logarithm - weighted.v / total.v
