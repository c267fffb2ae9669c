"""attend: pages of 64 places, each read once for all query heads and up to 32 rows.

Places are cut at absolute multiples of 64 into tiles and of 512 into splits. A split is worked
through tile by tile with a running maximum, from nothing; a row's splits are then merged in order.
A tile or split that a row does not see changes none of its bits, so these depend neither on the
other rows, nor on whether a key is in a page or among the operands, nor on who does which split.

Where there are few rows the splits are dealt out and merged in a second step; many rows are dealt
out themselves, and each item merges its splits as it goes.
    record of a query and split: sum [K], then 16 floats of which two are used: maximum, sum of e^
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from llvmlite import ir

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import PAGE_ROWS, Kind, Signature
from clover_rt_cpu.jit.kernel import PLAIN_TYPES, JitKernel, address, addresses, padded
from clover_rt_cpu.jit.lang import F32, F32V, I16, I32, I32V, I64, LANES, Code, Value, vec
from clover_rt_cpu.jit.maths import exp, lanes_most, lanes_sum
from clover_rt_cpu.jit.table import SegmentAt, Table, bf16_bits, offsets, to_bf16

SPLIT = 512
"""Places of a split."""
QUERIES = 256
"""Queries (rows times heads of a group) of an item."""
MOST_PARTS = 64 << 20
"""Bytes of records up to which splits are dealt out."""
VECTORS = PAGE_ROWS // LANES
LOW = float("-inf")


@dataclass(frozen=True)
class Sizes:
    """Fixed numbers of one signature.

    width  numbers of a head, filled up with zeros to whole vectors
    """

    rows: int
    queries: int
    width: int
    splits: int
    is_split: bool
    parts_bytes: int

    @staticmethod
    def of(sig: Signature, tile: int) -> Sizes:
        step = 2 * LANES if sig.dtype("k_pool").itemsize == 2 else LANES
        heads, width = sig["H"], -(-sig["K"] // step) * step
        each = heads // sig["G"]
        rows = max(1, min(QUERIES // each, sig["T"]))
        queries = -(-rows * each // tile) * tile
        splits = -(-(sig["slot_pages"] * PAGE_ROWS + sig["T"]) // SPLIT)
        parts = splits * sig["T"] * heads * (width + LANES) * 4
        return Sizes(rows, queries, width, splits, parts <= MOST_PARTS, parts)

    @property
    def thread_parts(self) -> tuple[int, ...]:
        """Return the bytes of a thread's memory: q, keys, own keys, own values, two records."""
        tile = PAGE_ROWS * self.width * 4
        records = 0 if self.is_split else self.queries * (self.width + LANES) * 4
        spare = (self.width + LANES) * 4
        return (self.queries * self.width * 4, tile, tile, tile, records, records, spare)

    @property
    def thread_bytes(self) -> int:
        return padded(sum(self.thread_parts))


def tile_rows(isa_name: str) -> int:
    """Return how many queries share one reading of the keys from registers."""
    return 4 if isa_name == "avx512" else 1


class Attend(JitKernel):
    """Let each row attend to its slot's pages and its own segment."""

    types = (*PLAIN_TYPES, "bfloat16")

    def refusal(self, sig: Signature) -> str:
        each = sig["H"] // sig["G"]
        if each > QUERIES:
            return f"{each} heads to a key head were asked for; up to {QUERIES} work"
        return ""

    def _sizes(self, sig: Signature) -> Sizes:
        return Sizes.of(sig, tile_rows(self.jit.isa.name))

    def scratch(self, sig: Signature) -> int:
        sizes = self._sizes(sig)
        parts = sizes.parts_bytes if sizes.is_split else 0
        return padded(parts) + self.jit.team.count * sizes.thread_bytes

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        assert scratch is not None
        sizes = self._sizes(sig)
        names = ("params", "q", "k", "v", "page_table", "k_pool", "v_pool", "y")
        parts = address(scratch)
        own = parts + (padded(sizes.parts_bytes) if sizes.is_split else 0)
        halves = sig.dtype("k_pool").itemsize == 2
        words = (
            *(*addresses(operands, *names), sig["H"], sig["G"], sig["K"], sig["slot_pages"]),
            *(sizes.rows, sizes.queries, sig["T"], parts, own, sizes.thread_bytes, sizes.width),
            *offsets(sig.layout, "segments"),
        )
        tile = tile_rows(self.jit.isa.name)
        kind = "bf16" if halves else "f32"

        def emit(body: Callable[[_Kernel], None]) -> Callable[[ir.Module, str], None]:
            return lambda m, n: body(_Kernel(m, n, tile, halves))

        if sizes.is_split:
            calls = [
                self.call(f"attend_parts_{kind}", emit(_Kernel.parts), *words),
                self.call("attend_merge", emit(_Kernel.merge_rows), *words),
            ]
        else:
            calls = [self.call(f"attend_whole_{kind}", emit(_Kernel.whole), *words)]
        return self.step(calls, operands, scratch)


class _Kernel:
    def __init__(self, module: ir.Module, name: str, tile: int, halves: bool) -> None:
        self.code = code = Code(module, name)
        self.tile = tile
        self.halves = halves
        self.size = 2 if halves else 4
        (params, self.q, self.k, self.v, self.pages, self.k_pool, self.v_pool, self.y) = (
            code.args(8)
        )
        rest = code.args(20)[8:]
        (self.heads, self.groups, self.columns, self.slot_pages) = rest[:4]
        (self.rows_each, self.queries, self.capacity, self.records, own, own_bytes, self.width) = (
            rest[4:11]
        )
        self.table = Table(code, params, rest[11])
        self.each = self.heads // self.groups
        self.record = (self.width + LANES) * 4
        base = own + code.thread * own_bytes
        tile_bytes = self.width * (PAGE_ROWS * 4)
        self.queries_at = base
        self.keys_at = base + self.queries * self.width * 4
        self.own_k = self.keys_at + tile_bytes
        self.own_v = self.own_k + tile_bytes
        self.after = self.own_v + tile_bytes
        self.shares = code.room(4 * tile * PAGE_ROWS)
        self.homes = code.room(8 * (QUERIES + 64))

    # ---- the three functions ----

    def parts(self) -> None:
        """Items are (segment, rows, group, split); records go to memory."""
        code = self.code
        chunks = (self.table.header(1) + self.rows_each - 1) // self.rows_each
        splits = self._live_splits()
        items = self.table.header(2) * chunks * self.groups * splits
        # queries past the rows get a record that nobody reads
        spare = self.after
        with code.deal(items) as item:
            split, group, chunk, index = self._split_item(item, splits, chunks)
            s = self.table.segment(index)
            lo = chunk * self.rows_each
            last = self._last(s, lo)
            with code.when(code.both(lo < s.rows, split * SPLIT <= last)):

                def home(query: Value) -> Value:
                    row = lo + query // self.each
                    at = (split * self.capacity + s.row0 + row) * self.heads
                    head = group * self.each + query % self.each
                    return code.select(
                        row < s.rows, self.records + (at + head) * self.record, spare
                    )

                self._place_homes(home)
                self._take_queries(s, lo, group)
                self._run_split(s, lo, group, split, last)
        code.end()

    def merge_rows(self) -> None:
        code = self.code
        lo, hi = code.share(self.table.header(1) * self.heads)
        with self.table.each() as s:
            start, end = s.row0 * self.heads, (s.row0 + s.rows) * self.heads
            with code.loop(code.most(lo, start), code.least(hi, end)) as i:
                row = i // self.heads - s.row0
                limit = self._limit(s, row)
                with code.loop(1, limit // SPLIT + 1) as split:
                    other = self.records + (split * self.capacity * self.heads + i) * self.record
                    self._merge(self.records + i * self.record, other)
                self._finish(self.records + i * self.record, self.y + i * self.columns * 4)
        code.end()

    def whole(self) -> None:
        """Items are (segment, rows, group); splits are merged on the way."""
        code = self.code
        chunks = (self.table.header(1) + self.rows_each - 1) // self.rows_each
        one = code.const(I64, 1)
        totals = self.after
        parts = totals + self.queries * self.record
        with code.deal(self.table.header(2) * chunks * self.groups) as item:
            _, group, chunk, index = self._split_item(item, one, chunks)
            s = self.table.segment(index)
            lo = chunk * self.rows_each
            with code.when(lo < s.rows):
                last = self._last(s, lo)
                self._take_queries(s, lo, group)
                with code.loop(0, last // SPLIT + 1) as split:
                    home = code.select(split.equals(0), totals, parts)
                    self._place_homes(lambda query, home=home: home + query * self.record)
                    self._run_split(s, lo, group, split, last)
                    with code.when(split > 0), code.loop(0, self.queries) as query:
                        self._merge(totals + query * self.record, parts + query * self.record)
                with code.loop(0, code.least(s.rows - lo, self.rows_each) * self.each) as query:
                    row = s.row0 + lo + query // self.each
                    head = group * self.each + query % self.each
                    to = self.y + (row * self.heads + head) * self.columns * 4
                    self._finish(totals + query * self.record, to)
        code.end()

    # ---- pieces ----

    def _live_splits(self) -> Value:
        code = self.code
        longest = code.var(code.const(I64, 0))
        with self.table.each() as s:
            longest.v = code.most(longest.v, s.position + s.rows)
        return (longest.v + (SPLIT - 1)) // SPLIT

    def _split_item(
        self, item: Value, splits: Value, chunks: Value
    ) -> tuple[Value, Value, Value, Value]:
        """Return split, group, chunk of rows, segment; the splits of a group come one by one."""
        rest = item // splits
        return item % splits, rest % self.groups, rest // self.groups % chunks, (
            rest // self.groups // chunks
        )

    def _limit(self, s: SegmentAt, row: Value) -> Value:
        """Return the last place that a row of a segment sees."""
        code = self.code
        return s.position + code.select(s.kind.equals(int(Kind.PREVIEW)), s.rows - 1, row)

    def _last(self, s: SegmentAt, lo: Value) -> Value:
        return self._limit(s, self.code.least(lo + self.rows_each, s.rows) - 1)

    def _place_homes(self, home: Callable[[Value], Value]) -> None:
        """Write where each query's record is, and clear it."""
        code = self.code
        with code.loop(0, self.queries) as query:
            at = home(query)
            code.store(at, self.homes + query * 8, 8)
            with code.loop(0, self.width, LANES) as c:
                code.store(code.const(F32V, 0.0), at + c * 4, 64)
            code.store(code.const(F32, LOW), at + self.width * 4)
            code.store(code.const(F32, 0.0), at + self.width * 4 + 4)

    def _take_queries(self, s: SegmentAt, lo: Value, group: Value) -> None:
        """Copy the item's queries, divided by sqrt(K); rows past the segment repeat its last."""
        code = self.code
        scale = (1.0 / code.sqrt(self.columns.to(F32))).splat()
        with code.loop(0, self.queries) as query:
            row = s.row0 + code.least(lo + query // self.each, s.rows - 1)
            head = group * self.each + query % self.each
            source = self.q + (row * self.heads + head) * self.columns * 4
            with code.loop(0, self.width, LANES) as c:
                live = code.live(self.columns - c)
                value = code.masked(F32V, source + c * 4, live) * scale
                code.store(value, self.queries_at + (query * self.width + c) * 4, 64)

    def _run_split(
        self, s: SegmentAt, lo: Value, group: Value, split: Value, last: Value
    ) -> None:
        code = self.code
        first = split * (SPLIT // PAGE_ROWS)
        end = code.least(first + SPLIT // PAGE_ROWS, last // PAGE_ROWS + 1)
        with code.loop(first, end) as j:
            keys, values, stride = self._tile(s, group, j)
            self._transpose(keys, stride)
            with code.loop(0, self.queries, self.tile) as query:
                rows = [lo + (query + i) // self.each for i in range(self.tile)]
                limits = [self._limit(s, code.least(r, s.rows - 1)) for r in rows]
                with code.when(limits[-1] >= j * PAGE_ROWS):
                    logits = self._logits(query)
                    factors = self._softmax(query, logits, limits, j)
                    self._add_values(query, factors, values, stride)

    def _tile(self, s: SegmentAt, group: Value, j: Value) -> tuple[Value, Value, Value]:
        """Return where a tile's keys and values lie, and the bytes between its rows.

        A tile that holds rows of the operands is put together first; what lies behind the segment
        is zero.
        """
        code = self.code
        page = code.var(code.const(I64, 0))
        at = self.pages + (s.slot * self.slot_pages + j) * 4
        with code.when(j * PAGE_ROWS < s.position):
            page.v = code.load(I32, at).to(I64) * PAGE_ROWS
        row_bytes = self.groups * self.columns * self.size
        column = group * self.columns
        homes = [pool + page.v * row_bytes + column * self.size for pool in self._pools]
        keys, values, stride = code.var(homes[0]), code.var(homes[1]), code.var(row_bytes)
        is_mixed = s.position < j * PAGE_ROWS + PAGE_ROWS
        is_ragged = self.columns < self.width
        with code.when(Value(code, code.ir.or_(is_mixed.raw, is_ragged.raw))):
            with code.loop(0, PAGE_ROWS) as p:
                place = j * PAGE_ROWS + p
                own = (s.row0 + place - s.position) * self.groups * self.columns + column
                for pool, source, home in zip(
                    homes, (self.k, self.v), (self.own_k, self.own_v), strict=True
                ):
                    to = home + p * self.width * self.size

                    def of_page(pool: Value = pool, to: Value = to) -> None:
                        self._gather(pool + p * row_bytes, to, self.halves)

                    def of_pass(source: Value = source, to: Value = to) -> None:
                        inside = code.select(place < s.position + s.rows, self.columns, 0)
                        self._gather(source + own * 4, to, False, inside)

                    code.either(place < s.position, of_page, of_pass)
            keys.v, values.v, stride.v = self.own_k, self.own_v, self.width * self.size
        return keys.v, values.v, stride.v

    def _gather(
        self, source: Value, to: Value, is_kept: bool, columns: Value | None = None
    ) -> None:
        """Copy a head's numbers, with zeros behind them; float32 unless they are kept as they are."""
        code = self.code
        count = self.columns if columns is None else columns
        with code.loop(0, self.width, LANES) as c:
            live = code.live(count - c)
            if is_kept:
                value = code.masked(vec(I16), source + c * 2, live)
            else:
                value = code.masked(F32V, source + c * 4, live)
                value = to_bf16(code, value) if self.halves else value
            code.store(value, to + c * self.size)

    @property
    def _pools(self) -> tuple[Value, Value]:
        return self.k_pool, self.v_pool

    def _transpose(self, keys: Value, stride: Value) -> None:
        """Write a tile's keys as float32 [K][64]."""
        code = self.code
        columns = 2 * LANES if self.halves else LANES
        with code.loop(0, self.width, columns) as c, code.loop(0, PAGE_ROWS, LANES) as p:
            at = keys + p * stride + c * self.size
            square = [code.load(I32V, at + stride * i) for i in range(LANES)]
            for i, row in enumerate(transposed(square)):
                to = self.keys_at + (c * PAGE_ROWS + p) * 4
                if self.halves:
                    # a column of pairs: two columns of 16-bit numbers
                    code.store(row << 16, to + 8 * PAGE_ROWS * i, 64)
                    code.store(row & 0xFFFF0000, to + 8 * PAGE_ROWS * i + 4 * PAGE_ROWS, 64)
                else:
                    code.store(row, to + 4 * PAGE_ROWS * i, 64)

    def _logits(self, query: Value) -> list[list[Value]]:
        """Return the products of some queries with the 64 keys, 4 vectors each."""
        code = self.code
        base = self.queries_at + query * self.width * 4
        rows = [base + self.width * (4 * i) for i in range(self.tile)]
        zero = code.const(F32V, 0.0)
        sums = [[code.var(zero) for _ in range(VECTORS)] for _ in rows]
        with code.loop(0, self.width) as c:
            keys = self.keys_at + c * (4 * PAGE_ROWS)
            line = [code.load(F32V, keys + 4 * LANES * i, 64) for i in range(VECTORS)]
            for totals, row in zip(sums, rows, strict=True):
                x = code.load(F32, row + c * 4).splat()
                for total, key in zip(totals, line, strict=True):
                    total.v = code.fma(x, key, total.v)
        return [[t.v for t in totals] for totals in sums]

    def _softmax(
        self, query: Value, logits: list[list[Value]], limits: Sequence[Value], j: Value
    ) -> list[Value]:
        """Write the shares of the tile's places; return what the sums so far are to be scaled by."""
        code = self.code
        factors = []
        for i, (line, limit) in enumerate(zip(logits, limits, strict=True)):
            home = code.load(I64, self.homes + (query + i) * 8, 8) + self.width * 4
            seen = limit - j * PAGE_ROWS + 1
            masked = [
                code.select(code.live(seen - LANES * n), v, LOW) for n, v in enumerate(line)
            ]
            peak = masked[0]
            for v in masked[1:]:
                peak = code.most(peak, v)
            before = code.load(F32, home)
            top = code.most(lanes_most(code, peak), before)
            # a row that sees nothing so far: e^(-inf - 0) is 0 where e^(-inf + inf) is not
            base = code.select(top > LOW, top, 0.0)
            total = code.const(F32V, 0.0)
            for n, v in enumerate(masked):
                share = exp(code, v - base)
                total = total + share
                code.store(share, self.shares + 4 * (PAGE_ROWS * i + LANES * n), 64)
            factor = exp(code, before - base)
            code.store(top, home)
            code.store(code.fma(code.load(F32, home + 4), factor, lanes_sum(total)), home + 4)
            factors.append(factor)
        return factors

    def _add_values(
        self, query: Value, factors: list[Value], values: Value, stride: Value
    ) -> None:
        code = self.code
        homes = [code.load(I64, self.homes + (query + i) * 8, 8) for i in range(self.tile)]
        whole = self.width - self.width % PAGE_ROWS
        for start, end, count in ((code.const(I64, 0), whole, VECTORS), (whole, self.width, 1)):
            with code.loop(start, end, LANES * count) as c:
                sums = [
                    [
                        code.var(code.load(F32V, home + (c + LANES * n) * 4, 64) * factor)
                        for n in range(count)
                    ]
                    for home, factor in zip(homes, factors, strict=True)
                ]
                with code.loop(0, PAGE_ROWS) as p:
                    at = values + p * stride + c * self.size
                    line = [self._value(at + LANES * self.size * n) for n in range(count)]
                    for i, totals in enumerate(sums):
                        share = code.load(F32, self.shares + 4 * PAGE_ROWS * i + p * 4).splat()
                        for total, value in zip(totals, line, strict=True):
                            total.v = code.fma(share, value, total.v)
                for home, totals in zip(homes, sums, strict=True):
                    for n, total in enumerate(totals):
                        code.store(total.v, home + (c + LANES * n) * 4, 64)

    def _value(self, at: Value) -> Value:
        if self.halves:
            return bf16_bits(self.code.load(vec(I16), at)).bits(F32)
        return self.code.load(F32V, at)

    def _merge(self, total: Value, part: Value) -> None:
        """Add a split's record to the sum of those before it."""
        code = self.code
        at, other = total + self.width * 4, part + self.width * 4
        before, here = code.load(F32, at), code.load(F32, other)
        top = code.most(before, here)
        base = code.select(top > LOW, top, 0.0)
        old, new = exp(code, before - base), exp(code, here - base)
        code.store(top, at)
        mass = code.fma(code.load(F32, other + 4), new, code.load(F32, at + 4) * old)
        code.store(mass, at + 4)
        with code.loop(0, self.width, LANES) as c:
            found = code.load(F32V, total + c * 4, 64) * old
            added = code.fma(code.load(F32V, part + c * 4, 64), new, found)
            code.store(added, total + c * 4, 64)

    def _finish(self, record: Value, to: Value) -> None:
        code = self.code
        mass = code.load(F32, record + self.width * 4 + 4).splat()
        with code.loop(0, self.width, LANES) as c:
            live = code.live(self.columns - c)
            code.masked_store(code.load(F32V, record + c * 4, 64) / mass, to + c * 4, live)


def transposed(rows: list[Value]) -> list[Value]:
    """Return the columns of a square: quarters change places at every scale."""
    step = 1
    while step < len(rows):
        lanes = range(len(rows))
        low = [n if not n & step else len(rows) + n - step for n in lanes]
        high = [n + step if not n & step else len(rows) + n for n in lanes]
        out = list(rows)
        for i in lanes:
            if not i & step:
                a, b = rows[i], rows[i + step]
                out[i], out[i + step] = a.pick(low, b), a.pick(high, b)
        rows, step = out, 2 * step
    return rows
