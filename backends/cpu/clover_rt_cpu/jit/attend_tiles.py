"""The functions behind attend.py with AMX: products of tiles of bfloat16 numbers.

A split is worked through as a whole for 16 queries at a time: the logits of all its places, then
one maximum, then shares, then sums. A query has a lane of its own from the logits to the shares,
since keys are the rows of the first product: they are multiplied where they lie.
    logits [512][16] float32        shares [16 blocks of 32 places][16][32] bfloat16
    values [16 blocks of 32 places][K/16][16 pairs of places][16] pairs of bfloat16
"""

from __future__ import annotations

from llvmlite import ir

from clover_rt.spec import PAGE_ROWS, Kind
from clover_rt_cpu.jit.amx import configure
from clover_rt_cpu.jit.attend_code import LOW, SPLIT
from clover_rt_cpu.jit.attend_pairs import Pairs
from clover_rt_cpu.jit.isa import Isa
from clover_rt_cpu.jit.maths import exp, transposed
from clover_rt_cpu.jit.table import SegmentAt
from clover_rt_cpu.jit.values import BF16, F32V, I16, I32, I32V, I64, Value, vec

TILE = 16
"""Queries, places or columns of a tile."""
TILE_BYTES, LINE = 1024, 64
PAGES = SPLIT // PAGE_ROWS
BLOCK = 32
"""Places whose shares make up the rows of a tile."""
# numbers of tiles; a sum is ready long after the unit is free, so four are added to in turn
SUMS, FIRST, SECOND = (0, 1, 2, 3), (4, 5), (6, 7)


class Tiles(Pairs):
    """The same with tiles; q is two numbers and shares are rounded as there."""

    held = 4

    def __init__(self, module: ir.Module, name: str, tile: int, halves: bool, isa: Isa) -> None:
        super().__init__(module, name, tile, halves, isa)
        code = self.code
        # own values take half of their room, and a tile of queries a quarter
        self.packed = self.own_v + self.width * (2 * PAGE_ROWS)
        self.places = code.room(16 * PAGES)
        self.logits = code.room(4 * TILE * SPLIT)
        self.shares = code.room(2 * TILE * SPLIT)
        self.found = code.room(TILE_BYTES * len(SUMS))

    def _run_split(self, s: SegmentAt, lo: Value, group: Value, split: Value, last: Value) -> None:
        code = self.code
        first = split * PAGES
        end = code.least(first + PAGES, last // PAGE_ROWS + 1)
        configure(code, [(tile, TILE, LINE) for tile in (*SUMS, *FIRST, *SECOND)])
        with code.loop(first, end) as j:
            n = j - first
            page = n * self.width * (2 * PAGE_ROWS)
            keys, values, stride = self._tile(s, group, j, self.own_k + page)
            code.store(keys, self.places + n * 16)
            code.store(stride, self.places + n * 16 + 8)
            self._pack_values(values, stride, self.keys_at + page)
        with code.loop(0, self.queries, TILE) as query:
            most = self._row_limit(s, lo + (query + (TILE - 1)) // self.each) - split * SPLIT
            with code.when(most >= 0):
                pages = code.least(end - first, most // PAGE_ROWS + 1)
                self._pack_queries(query)
                self._all_logits(pages)
                self._all_shares(self._seen(s, lo, query, split), query, pages)
                self._all_sums(query, pages)
        code.instruct("llvm.x86.tilerelease")

    def _pack_values(self, values: Value, stride: Value, to: Value) -> None:
        """Write a page's values as tiles of pairs of places."""
        code = self.code
        with code.loop(0, PAGE_ROWS // 2) as p, code.loop(0, self.width, TILE) as c:
            at = values + p * 2 * stride + c * 2
            low, high = code.load(vec(I16), at), code.load(vec(I16), at + stride)
            pair = low.to(I32, signed=False) | (high.to(I32, signed=False) << 16)
            tile = p // TILE * (self.width // TILE) + c // TILE
            code.store(pair, to + tile * TILE_BYTES + p % TILE * LINE, 64)

    def _pack_queries(self, query: Value) -> None:
        """Write 16 queries as tiles of pairs of columns, both numbers of each."""
        code = self.code
        for part in range(self.query_parts):
            rows = self.queries_at + (self.queries * part + query) * self.width * 2
            to = self.packed + self.width * (2 * TILE * part)
            with code.loop(0, self.width, 2 * TILE) as c:
                square = [code.load(I32V, rows + self.width * (2 * i) + c * 2) for i in range(TILE)]
                for i, row in enumerate(transposed(square)):
                    code.store(row, to + c * (2 * TILE) + LINE * i, 64)

    def _all_logits(self, pages: Value) -> None:
        code = self.code
        line = code.const(I64, LINE)
        with code.loop(0, pages) as n:
            keys = code.load(I64, self.places + n * 16)
            stride = code.load(I64, self.places + n * 16 + 8)
            for total in SUMS:
                code.instruct("llvm.x86.tilezero", total)
            with code.loop(0, self.width, 2 * TILE) as c:
                for part, x in enumerate(SECOND):
                    at = self.packed + self.width * (2 * TILE * part) + c * (2 * TILE)
                    code.instruct("llvm.x86.tileloadd64", x, at, line)
                    for i, total in enumerate(SUMS):
                        key = FIRST[i % len(FIRST)]
                        rows = keys + stride * (TILE * i) + c * 2
                        code.instruct("llvm.x86.tileloadd64", key, rows, stride)
                        code.instruct("llvm.x86.tdpbf16ps", total, key, x)
            for i, total in enumerate(SUMS):
                to = self.logits + n * (PAGE_ROWS * LINE) + TILE_BYTES * i
                code.instruct("llvm.x86.tilestored64", total, to, line)

    def _seen(self, s: SegmentAt, lo: Value, query: Value, split: Value) -> Value:
        """Return for 16 queries the last place of the split that each sees."""
        code = self.code
        lanes = code.vector(I32, range(TILE))
        row = lo.to(I32) + (lanes + query.to(I32)) // self.each.to(I32)
        end = (s.rows - 1).to(I32).splat()
        row = code.select(s.kind.equals(int(Kind.PREVIEW)), end, code.least(row, end))
        return row + (s.position - split * SPLIT).to(I32)

    def _all_shares(self, seen: Value, query: Value, pages: Value) -> None:
        """Turn logits into shares, and keep the maximum and the sum of each query."""
        code = self.code

        def logit(p: Value) -> Value:
            hidden = seen < p.to(I32).splat()
            return code.select(hidden, LOW, code.load(F32V, self.logits + p * LINE, 64))

        peak = code.var(code.const(F32V, LOW))
        with code.loop(0, pages * PAGE_ROWS, 4) as p:
            a, b, c, d = (logit(p + i) for i in range(4))
            peak.v = code.most(peak.v, code.most(code.most(a, b), code.most(c, d)))
        top = peak.v
        # a row that sees nothing of the split: e^(-inf - 0) is 0 where e^(-inf + inf) is not
        base = code.select(top > LOW, top, 0.0)
        mass = code.var(code.const(F32V, 0.0))
        turn = [n // 2 + BLOCK // 2 * (n % 2) for n in range(BLOCK)]
        with code.loop(0, pages * PAGE_ROWS, BLOCK) as p:
            pairs = []
            for i in range(0, BLOCK, 2):
                low, high = (exp(code, logit(p + (i + k)) - base) for k in range(2))
                mass.v = mass.v + low + high
                both = code.target(
                    "llvm.x86.avx512bf16.cvtne2ps2bf16.512", vec(BF16, BLOCK), high, low
                )
                pairs.append(both.bits(I16).pick(turn).bits(I32))
            for i, row in enumerate(transposed(pairs)):
                code.store(row, self.shares + p * (2 * TILE) + LINE * i, 64)
        code.store(top, self.found, 64)
        code.store(mass.v, self.found + LINE, 64)
        with code.loop(0, TILE) as lane:
            home = code.load(I64, self.homes + (query + lane) * 8, 8) + self.width * 4
            for n in range(2):
                code.store(code.load(I32, self.found + LINE * n + lane * 4), home + 4 * n)

    def _all_sums(self, query: Value, pages: Value) -> None:
        """Write the sums of the values, four tiles of columns at a time."""
        code = self.code
        line = code.const(I64, LINE)
        step = len(SUMS) * TILE
        whole = self.width - self.width % step
        row_of_tiles = self.width * (TILE_BYTES // TILE)
        share = FIRST[0]
        for start, end, count in ((code.const(I64, 0), whole, 4), (whole, self.width, 2)):
            with code.loop(start, end, TILE * count) as c:
                for total in SUMS[:count]:
                    code.instruct("llvm.x86.tilezero", total)
                with code.loop(0, pages * (PAGE_ROWS // BLOCK)) as b:
                    code.instruct("llvm.x86.tileloadd64", share, self.shares + b * TILE_BYTES, line)
                    tiles = self.keys_at + b * row_of_tiles + c * (TILE_BYTES // TILE)
                    for i, total in enumerate(SUMS[:count]):
                        value = SECOND[i % len(SECOND)]
                        code.instruct("llvm.x86.tileloadd64", value, tiles + TILE_BYTES * i, line)
                        code.instruct("llvm.x86.tdpbf16ps", total, share, value)
                for i, total in enumerate(SUMS[:count]):
                    to = self.found + TILE_BYTES * i
                    code.instruct("llvm.x86.tilestored64", total, to, line)
                with code.loop(0, TILE) as row:
                    home = code.load(I64, self.homes + (query + row) * 8, 8) + c * 4
                    for n in range(count):
                        at = self.found + TILE_BYTES * n + row * LINE
                        code.store(code.load(F32V, at, 64), home + LINE * n, 64)
