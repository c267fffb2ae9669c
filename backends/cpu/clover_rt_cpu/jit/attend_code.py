"""The functions behind attend.py: one split of places for some queries, and sums of splits."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from clover_rt.spec import PAGE_ROWS, Kind
from clover_rt_cpu.jit.isa import Isa
from clover_rt_cpu.jit.lang import Code
from clover_rt_cpu.jit.maths import exp, lanes_most, lanes_sum, transposed
from clover_rt_cpu.jit.table import SegmentAt, Table, bf16_bits, to_bf16
from clover_rt_cpu.jit.values import F32, F32V, I16, I32, I32V, I64, LANES, Value, Var, vec

SPLIT = 512
"""Places of a split."""
QUERIES = 256
"""Queries (rows times heads of a group) of an item."""
VECTORS = PAGE_ROWS // LANES
LOW = float("-inf")


class Kernel:
    """The functions of one signature; products of float32 numbers, one at a time."""

    step = 1
    query_parts = 1
    held = 1
    """Tiles of keys, and of own keys, that a thread has room for at a time."""

    def __init__(
        self,
        module: ir.Module,
        name: str,
        tile: int,
        halves: bool,
        isa: Isa,
        split: bool = False,
    ) -> None:
        self.code = code = Code(module, name, split=split)
        self.tile = tile
        self.halves = halves
        self.isa = isa
        self.size = 2 if halves else 4
        (params, self.q, self.k, self.v, self.pages, self.k_pool, self.v_pool, self.y) = code.args(
            8
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
        self.own_k = self.keys_at + tile_bytes * self.held
        self.own_v = self.own_k + tile_bytes * self.held
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
        # queries past the item's rows get a record that nobody reads
        spare = self.after
        with code.deal(items) as item:
            split, group, chunk, index = self._split_item(item, splits, chunks)
            s = self.table.segment(index)
            lo = chunk * self.rows_each
            end = code.least(lo + self.rows_each, s.rows)
            last = self._last(s, lo)
            with code.when(code.both(lo < s.rows, split * SPLIT <= last)):

                def home(query: Value) -> Value:
                    row = lo + query // self.each
                    at = (split * self.capacity + s.row0 + row) * self.heads
                    head = group * self.each + query % self.each
                    return code.select(row < end, self.records + (at + head) * self.record, spare)

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
                    records = code.select(split.equals(0), totals, parts)

                    def home(query: Value, records: Value = records) -> Value:
                        return records + query * self.record

                    self._place_homes(home)
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
        return (
            item % splits,
            rest % self.groups,
            rest // self.groups % chunks,
            (rest // self.groups // chunks),
        )

    def _limit(self, s: SegmentAt, row: Value) -> Value:
        """Return the last place that a row of a segment sees."""
        code = self.code
        return s.position + code.select(s.kind.equals(int(Kind.PREVIEW)), s.rows - 1, row)

    def _row_limit(self, s: SegmentAt, row: Value) -> Value:
        return self._limit(s, self.code.least(row, s.rows - 1))

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
                self._keep_query(query, c, code.masked(F32V, source + c * 4, live) * scale)

    def _keep_query(self, query: Value, c: Value, value: Value) -> None:
        self.code.store(value, self.queries_at + (query * self.width + c) * 4, 64)

    def _arrange(self, values: Value, stride: Value) -> tuple[Value, Value]:
        """Return where the values are multiplied from."""
        return values, stride

    def _run_split(self, s: SegmentAt, lo: Value, group: Value, split: Value, last: Value) -> None:
        code = self.code
        first = split * (SPLIT // PAGE_ROWS)
        end = code.least(first + SPLIT // PAGE_ROWS, last // PAGE_ROWS + 1)
        with code.loop(first, end) as j:
            keys, values, stride = self._tile(s, group, j, self.own_k)
            self._transpose(keys, stride)
            values, stride = self._arrange(values, stride)
            with code.loop(0, self.queries, self.tile) as query:
                last_row = lo + (query + (self.tile - 1)) // self.each
                with code.when(self._row_limit(s, last_row) >= j * PAGE_ROWS):
                    self._logits(query)
                    with code.loop(0, self.tile) as i:
                        self._softmax(s, lo, query + i, self.shares + i * (4 * PAGE_ROWS), j)
                    self._add_values(query, values, stride)

    def _tile(
        self, s: SegmentAt, group: Value, j: Value, own_k: Value
    ) -> tuple[Value, Value, Value]:
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
                    homes, (self.k, self.v), (own_k, self.own_v), strict=True
                ):
                    to = home + p * self.width * self.size

                    def of_page(pool: Value = pool, to: Value = to) -> None:
                        self._gather(pool + p * row_bytes, to, self.halves)

                    def of_pass(source: Value = source, to: Value = to) -> None:
                        inside = code.select(place < s.position + s.rows, self.columns, 0)
                        self._gather(source + own * 4, to, False, inside)

                    code.either(place < s.position, of_page, of_pass)
            keys.v, values.v, stride.v = own_k, self.own_v, self.width * self.size
        return keys.v, values.v, stride.v

    def _gather(
        self, source: Value, to: Value, is_kept: bool, columns: Value | None = None
    ) -> None:
        """Copy a head's numbers, zeros behind them; float32 unless they are kept as they are."""
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

    def _logits(self, query: Value) -> None:
        """Write the products of some queries with the 64 keys where their shares will be."""
        code = self.code
        row_bytes = self.width * (4 // self.step)
        base = self.queries_at + query * row_bytes
        rows = [base + row_bytes * i for i in range(self.tile)]
        zero = code.const(F32V, 0.0)
        sums = [[code.var(zero) for _ in range(VECTORS)] for _ in rows]
        with code.loop(0, self.width // self.step) as c:
            keys = self.keys_at + c * (4 * PAGE_ROWS)
            line = [code.load(I32V, keys + 4 * LANES * i, 64) for i in range(VECTORS)]
            for part in range(self.query_parts):
                offset = self.queries * row_bytes * part + c * 4
                self._multiply(sums, [row + offset for row in rows], line)
        for i, totals in enumerate(sums):
            for n, total in enumerate(totals):
                code.store(total.v, self.shares + 4 * (PAGE_ROWS * i + LANES * n), 64)

    def _multiply(self, sums: list[list[Var]], factors: list[Value], line: list[Value]) -> None:
        """Add to each row's sums its factor times the vectors of a line, given as bits."""
        code = self.code
        for totals, factor in zip(sums, factors, strict=True):
            x = code.load(F32, factor).splat()
            for total, bits in zip(totals, line, strict=True):
                total.v = code.fma(x, bits.bits(F32), total.v)

    def _softmax(self, s: SegmentAt, lo: Value, query: Value, shares: Value, j: Value) -> None:
        """Turn a query's logits into shares; keep what its sum so far is to be multiplied with."""
        code = self.code
        home = code.load(I64, self.homes + query * 8, 8) + self.width * 4
        seen = self._row_limit(s, lo + query // self.each) - j * PAGE_ROWS + 1
        line = [code.load(F32V, shares + 4 * LANES * n, 64) for n in range(VECTORS)]
        masked = [code.select(code.live(seen - LANES * n), v, LOW) for n, v in enumerate(line)]
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
            self._keep_share(shares, n, share)
        factor = exp(code, before - base)
        mass = code.fma(code.load(F32, home + 4), factor, lanes_sum(total))
        for i, value in enumerate((top, mass, factor)):
            code.store(value, home + 4 * i)

    def _keep_share(self, shares: Value, part: int, share: Value) -> None:
        self.code.store(share, shares + 4 * LANES * part, 64)

    def _add_values(self, query: Value, values: Value, stride: Value) -> None:
        code = self.code
        homes = [code.load(I64, self.homes + (query + i) * 8, 8) for i in range(self.tile)]
        factors = [code.load(F32, home + self.width * 4 + 8) for home in homes]
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
                with code.loop(0, PAGE_ROWS // self.step) as p:
                    line = [self._value(values + p * stride, c + LANES * n) for n in range(count)]
                    shares = [self.shares + 4 * PAGE_ROWS * i + p * 4 for i in range(self.tile)]
                    self._multiply(sums, shares, line)
                for home, totals in zip(homes, sums, strict=True):
                    for n, total in enumerate(totals):
                        code.store(total.v, home + (c + LANES * n) * 4, 64)

    def _value(self, row: Value, c: Value) -> Value:
        """Return the bits of 16 values of a row."""
        at = row + c * self.size
        if self.halves:
            return bf16_bits(self.code.load(vec(I16), at))
        return self.code.load(I32V, at)

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
