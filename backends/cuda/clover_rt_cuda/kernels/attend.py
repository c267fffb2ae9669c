"""attend: a tile is rows by all query heads of one KV head, so that keys are read once a tile.

A token or a draft has a tile of few rows. A preview, and a pass of more than 64 rows, has one of as
many rows as a program's registers hold results of: 128 queries of 256 columns in bfloat16, which is
16 rows of 8 heads, or more by a tuning table. The prefix is split over programs at capacities up to
64 rows; a second launch joins the splits in order. Beyond that a program goes over the whole
prefix. Keys of the own segment, rounded to the KV type, are seen by the first split. Keys come 32
at a time (16 in float32 where a head is wider than 128); a program holds the K columns of a head's
result, up to 256. In bfloat16 a query is the sum of two numbers, so that its logits are those of
its float32 value to 2^-16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import PAGE_ROWS, Numerics, Precision, Signature
from clover_rt_cuda.kernel import (
    TritonKernel,
    Words,
    block,
    cdiv,
    dot_type,
    numerics_of,
    room,
    room_bytes,
    sequence,
    table_of,
    view,
    views,
)
from clover_rt_cuda.kernels.kv_append import pool_row
from clover_rt_cuda.kernels.linear import FEW_ROWS
from clover_rt_cuda.kernels.tools import (
    PREVIEW,
    ROWS,
    SEGMENT,
    SEGMENTS,
    dot,
    operand,
    rounded,
    sigmoid,
)
from clover_rt_cuda.launch import ByPrefix, CudaStep

MOST_COLUMNS = 256
# (capacity of rows, splits of the prefix)
SPLITS = ((4, 32), (16, 16), (64, 8))
MANY_SPLITS = 16
"""Splits of a pass with tiles of many rows: a split then writes about as much as it reads."""
LEAST_QUERIES, MOST_QUERIES = 16, 256
RESULTS = 1 << 15
"""Numbers of a tile's result: half of the registers of a card's multiprocessor."""
THREAD_RESULTS = 128
LEAST_SPLIT = 128
"""Places of the prefix that are worth a program of their own; no more are not split at all."""


@triton.jit
def logits_of(
    q, q_rows, q_ok, keys, k_rows, k_ok, scale, K,
    TYPE: tl.constexpr, KV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """Return logits [BM, BN] in float32, BX columns of a head at a time; rows are offsets.

    The columns of a whole head would fill a thread's registers.
    """
    out = tl.zeros((BM, BN), tl.float32)
    for x0 in range(0, K, BX):
        x = x0 + tl.arange(0, BX)
        inside = (x < K)[None, :]
        query = tl.load(q + q_rows[:, None] + x[None, :], mask=q_ok[:, None] & inside, other=0)
        query *= scale
        key = tl.load(keys + k_rows[:, None] + x[None, :], mask=k_ok[:, None] & inside, other=0)
        key = tl.trans(rounded(operand(key), KV))
        out = dot(query, key, out, TYPE)
        if tl.float32 != TYPE:
            out = dot(query - rounded(query, TYPE).to(tl.float32), key, out, TYPE)
    return out


@triton.jit
def absorbed(peak, total, logits):
    """Return (share of each key, what earlier sums shrink to, peak, total) after some more keys."""
    above = tl.maximum(peak, tl.max(logits, 1))
    # a row that has seen nothing yet has no peak to measure from
    base = tl.where(above == float("-inf"), 0.0, above)
    share = tl.exp(logits - base[:, None])
    shrunk = tl.exp(peak - base)
    return share, shrunk[:, None], above, total * shrunk + tl.sum(share, 1)


@triton.jit
def values_of(v, v_rows, v_ok, K, KV: tl.constexpr, FIRST: tl.constexpr, BV: tl.constexpr):
    """Return columns FIRST .. FIRST + BV - 1 of values, rounded to KV; rows are offsets."""
    x = FIRST + tl.arange(0, BV)
    ok = v_ok[:, None] & (x < K)[None, :]
    return rounded(operand(tl.load(v + v_rows[:, None] + x[None, :], mask=ok, other=0)), KV)


@triton.jit
def keep(
    acc, total, gate, y, place, parts, item, live, K,
    SPLITS: tl.constexpr, FIRST: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Store columns FIRST .. FIRST + BV - 1 of a result, or of a split's part of it."""
    x = FIRST + tl.arange(0, BV)
    mask = live[:, None] & (x < K)[None, :]
    if SPLITS == 1:
        out = acc / tl.where(total > 0, total, 1.0)[:, None]
        if gate is not None:
            out *= sigmoid(tl.load(gate + place[:, None] + x[None, :], mask=mask, other=0))
        tl.store(y + place[:, None] + x[None, :], out, mask=mask)
    else:
        # a split that saw nothing is not read again
        some = mask & (total > 0)[:, None]
        tl.store(parts + item[:, None] * K + x[None, :], acc, mask=some)


@triton.jit
def segment_of_tile(table, segments, tile, BR: tl.constexpr, SEGS: tl.constexpr):
    """Return (segment, its first row in this tile); segment SEGS: the tile is past the last."""
    e = tl.arange(0, SEGS)
    ok = e < tl.load(table + SEGMENTS)
    rows = tl.load(table + segments + e * SEGMENT + 3, mask=ok, other=0)
    tiles = (rows + BR - 1) // BR
    last = tl.cumsum(tiles, 0)
    segment = tl.sum((last <= tile).to(tl.int32), 0)
    start = tl.sum(tl.where(e == segment, last - tiles, 0), 0)
    return segment, (tile - start) * BR


@triton.jit
def attend_kernel(
    table, segments, q, k, v, page_table, k_pool, v_pool, gate, y, peaks, totals, parts,
    H, G, K, pages, scale,
    SEGS: tl.constexpr, PAGE: tl.constexpr, TYPE: tl.constexpr, SPLITS: tl.constexpr,
    BQ: tl.constexpr, BH: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """gate: None, or numbers [T, H * K] whose sigmoid y is times; BQ: rows times BH heads."""
    BR: tl.constexpr = BQ // BH
    segment, first = segment_of_tile(table, segments, tl.program_id(0), BR, SEGS)
    if segment == SEGS:
        return
    group, split = tl.program_id(1), tl.program_id(2)
    entry = table + segments + segment * SEGMENT
    kind, slot, row0 = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    rows, position = tl.load(entry + 3), tl.load(entry + 4)
    each, width = H // G, G * K
    # a wide head's result is two, so that one at a time is laid out for its stores
    WIDE: tl.constexpr = BK > 128
    BV: tl.constexpr = BK // 2 if WIDE else BK
    m = tl.arange(0, BQ)
    i, head = first + m // BH, group * each + m % BH
    live = (i < rows) & (m % BH < each)
    place = ((row0 + i).to(tl.int64) * H + head) * K
    KV: tl.constexpr = k_pool.dtype.element_ty
    acc = tl.zeros((BQ, BV), tl.float32)
    more = tl.zeros((BQ, BV), tl.float32)
    peak = tl.full((BQ,), float("-inf"), tl.float32)
    total = tl.zeros((BQ,), tl.float32)
    span = ((position + SPLITS - 1) // SPLITS + BN - 1) // BN * BN
    start = split * span
    stop = tl.minimum(start + span, position)
    for j0 in range(start, stop, BN):
        j = j0 + tl.arange(0, BN)
        ok = j < stop
        at = pool_row(page_table, slot, j, pages, PAGE, ok) * width + group * K
        logits = logits_of(q, place, live, k_pool, at, ok, scale, K, TYPE, KV, BQ, BN, BX)
        logits = tl.where(ok[None, :], logits, float("-inf"))
        share, shrunk, peak, total = absorbed(peak, total, logits)
        acc = dot(share, values_of(v_pool, at, ok, K, KV, 0, BV), acc * shrunk, TYPE)
        if WIDE:
            more = dot(share, values_of(v_pool, at, ok, K, KV, BV, BV), more * shrunk, TYPE)
    own = tl.where(kind == PREVIEW, rows, tl.minimum(rows, first + BR))
    own = tl.where(split == 0, own, 0)
    for j0 in range(0, own, BN):
        j = j0 + tl.arange(0, BN)
        ok = j < rows
        at = (row0 + j).to(tl.int64) * width + group * K
        logits = logits_of(q, place, live, k, at, ok, scale, K, TYPE, KV, BQ, BN, BX)
        seen = ok[None, :] & ((kind == PREVIEW) | (j[None, :] <= i[:, None]))
        logits = tl.where(seen, logits, float("-inf"))
        share, shrunk, peak, total = absorbed(peak, total, logits)
        acc = dot(share, values_of(v, at, ok, K, KV, 0, BV), acc * shrunk, TYPE)
        if WIDE:
            more = dot(share, values_of(v, at, ok, K, KV, BV, BV), more * shrunk, TYPE)
    item = ((row0 + i).to(tl.int64) * H + head) * SPLITS + split
    if SPLITS > 1:
        tl.store(peaks + item, peak, mask=live)
        tl.store(totals + item, total, mask=live)
    keep(acc, total, gate, y, place, parts, item, live, K, SPLITS, 0, BV)
    if WIDE:
        keep(more, total, gate, y, place, parts, item, live, K, SPLITS, BV, BV)


@triton.jit
def join_kernel(
    table, peaks, totals, parts, gate, y, H, K, SPLITS: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Join the splits of one row and head."""
    row = tl.program_id(0)
    if row >= tl.load(table + ROWS):
        return
    item = row.to(tl.int64) * H + tl.program_id(1)
    s = item * SPLITS + tl.arange(0, SPLITS)
    x = tl.arange(0, BK)
    peak, total = tl.load(peaks + s), tl.load(totals + s)
    share = tl.where(total > 0, tl.exp(peak - tl.max(peak, 0)), 0.0)
    mask = (total > 0)[:, None] & (x < K)[None, :]
    part = tl.load(parts + s[:, None] * K + x[None, :], mask=mask, other=0)
    out = tl.sum(part * share[:, None], 0) / tl.sum(total * share, 0)
    place = item * K + x
    if gate is not None:
        out *= sigmoid(tl.load(gate + place, mask=x < K, other=0))
    tl.store(y + place, out, mask=x < K)


class Attend(TritonKernel):
    """Attend over pages and the rows of the pass."""

    def numerics(self, sig: Signature) -> Numerics:
        return numerics_of(sig)

    def supports(self, sig: Signature) -> str:
        if sig["K"] > MOST_COLUMNS:
            return f"K={sig['K']} exceeds {MOST_COLUMNS}, the columns that one program holds"
        return super().supports(sig)

    def scratch(self, sig: Signature) -> int:
        counts = split_counts(sig)
        return room_bytes(*counts) if counts else 0

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        names = ("q", "k", "v", "page_table", "k_pool", "v_pool")
        y = view(operands["y"])
        steps = attend_steps(
            self, sig, table_of(operands), views(operands, *names), None, y, room_of(sig, scratch)
        )
        return sequence(steps)


def room_of(sig: Signature, scratch: Tensor | None) -> list[torch.Tensor]:
    """Return peaks, totals and parts of the splits; none where there is one."""
    counts = split_counts(sig)
    return room(scratch, *counts) if counts else []


def attend_steps(
    kernel: TritonKernel,
    sig: Signature,
    table: torch.Tensor,
    operands: tuple[torch.Tensor, ...],
    gate: torch.Tensor | None,
    y: torch.Tensor,
    kept: list[torch.Tensor],
) -> list[CudaStep]:
    """Return the steps of attention; operands are those of attend, in order.

    Where every prefix of a pass is short, one program takes all of it and there is no join.

    gate  None, or numbers [T, H * K] whose sigmoid the result is times
    kept  as `room_of` returns it
    """
    rows, heads, width = sig["T"], sig["H"], sig["K"]
    splits, own = splits_of(sig), attend_tile(sig)
    tile = kernel.tile("attend_rows" if has_many_rows(sig) else "attend", sig, own)

    def over(splits: int, *parts: torch.Tensor | None) -> CudaStep:
        # the gate of a whole result takes registers too
        most = tile["BQ"] if splits > 1 else min(tile["BQ"], RESULTS // tile["BK"] // 2)
        queries = queries_of(sig, most)
        return kernel.launcher(
            sig,
            attend_kernel,
            (most_tiles(sig, queries), sig["G"], splits),
            table,
            Words.of(sig.layout).segments,
            *operands,
            gate,
            y,
            *parts,
            heads,
            sig["G"],
            width,
            sig["slot_pages"],
            1 / math.sqrt(width),
            SEGS=block(sig.layout.segments, 1),
            PAGE=PAGE_ROWS,
            TYPE=dot_type(sig),
            SPLITS=splits,
            **tile | {"BQ": queries},
        )

    whole = over(1, None, None, None)
    if splits == 1:
        return [whole]
    join = kernel.launcher(
        sig,
        join_kernel,
        (rows, heads),
        table,
        *kept,
        gate,
        y,
        heads,
        width,
        SPLITS=splits,
        BK=block(width),
    )
    return [ByPrefix(kernel.device, LEAST_SPLIT, whole, sequence([over(splits, *kept), join]))]


def attend_tile(sig: Signature) -> dict[str, int]:
    """Return the tile; few queries are 16, or 32 of narrow heads."""
    columns, is_fast = block(sig["K"]), sig.precision is Precision.FAST
    most = 32 if is_fast and columns <= 128 else 16
    if has_many_rows(sig):
        most = min(MOST_QUERIES, RESULTS // columns)
    queries = queries_of(sig, most)
    return {
        "BQ": queries,
        "BH": heads_of(sig),
        "BN": 32 if is_fast or columns <= 128 else 16,
        "BK": columns,
        "BX": 32 if is_fast and not has_many_rows(sig) else 16,
        "num_warps": max(4 if columns <= 128 else 8, queries * columns // (32 * THREAD_RESULTS)),
    }


def heads_of(sig: Signature) -> int:
    """Return the query heads of a KV head that a tile has room for."""
    return block(cdiv(sig["H"], sig["G"]), 1)


def queries_of(sig: Signature, most: int) -> int:
    """Return the queries of a tile: at most these or the capacity's, but a row, and 16 at least."""
    heads = heads_of(sig)
    return max(min(most, block(sig["T"], 1) * heads), heads, LEAST_QUERIES)


def most_tiles(sig: Signature, queries: int) -> int:
    """Return the most tiles that the rows can need: one more a segment than whole tiles."""
    return int(min(sig.layout.segments, sig["T"]) + sig["T"] * heads_of(sig) // queries)


def has_many_rows(sig: Signature) -> bool:
    """Are segments of many rows what these tables hold? Products then have a matrix unit."""
    rows, is_fast = sig["T"], sig.precision is Precision.FAST
    return is_fast and (rows > SPLITS[-1][0] or (rows > FEW_ROWS and sig.table.has_preview))


def splits_of(sig: Signature) -> int:
    """Return how many programs share the prefix of a row."""
    most = next((n for rows, n in SPLITS if sig["T"] <= rows), 1)
    if most > 1 and has_many_rows(sig):
        most = MANY_SPLITS
    worth = sig["slot_pages"] * PAGE_ROWS // LEAST_SPLIT
    return block(max(1, min(most, worth)), 1)


def split_counts(sig: Signature) -> tuple[int, ...]:
    """Return the numbers of peaks, totals and parts of the splits; none where there is one."""
    splits = splits_of(sig)
    if splits == 1:
        return ()
    items = int(sig["T"] * sig["H"] * splits)
    return items, items, items * int(sig["K"])
