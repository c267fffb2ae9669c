"""attend: a tile is a few rows by all query heads of one KV head, so that keys are read once.

The prefix is split over programs at capacities up to 64 rows; a second launch joins the splits in
order. Beyond that a program goes over the whole prefix. Keys of the own segment, rounded to the KV
type, are seen by the first split. Keys come 32 at a time (16 in float32 where a head is wider than
128); a program holds the K columns of a head's result, up to 256. In bfloat16 a query is the sum of
two numbers, so that its logits are those of its float32 value to 2^-16.
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
from clover_rt_cuda.kernels.tools import (
    PREVIEW,
    ROWS,
    SEGMENT,
    SEGMENTS,
    dot,
    rounded,
    sigmoid,
)
from clover_rt_cuda.launch import ByPrefix, CudaStep

MOST_COLUMNS = 256
# (capacity of rows, splits of the prefix)
SPLITS = ((4, 32), (16, 16), (64, 8))
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
        key = tl.trans(rounded(key.to(tl.float32), KV).to(tl.float32))
        out = dot(query, key, out, TYPE)
        if tl.float32 != TYPE:
            out = dot(query - rounded(query, TYPE).to(tl.float32), key, out, TYPE)
    return out


@triton.jit
def absorb(acc, peak, total, logits, values, TYPE: tl.constexpr):
    """Return (acc, peak, total) of a running softmax after some more keys."""
    above = tl.maximum(peak, tl.max(logits, 1))
    # a row that has seen nothing yet has no peak to measure from
    base = tl.where(above == float("-inf"), 0.0, above)
    share = tl.exp(logits - base[:, None])
    shrunk = tl.exp(peak - base)
    total = total * shrunk + tl.sum(share, 1)
    return dot(share, values, acc * shrunk[:, None], TYPE), above, total


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
    BR: tl.constexpr, BH: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BX: tl.constexpr,
):  # fmt: skip
    """gate: None, or numbers [T, H * K] whose sigmoid y is times."""
    segment, first = segment_of_tile(table, segments, tl.program_id(0), BR, SEGS)
    if segment == SEGS:
        return
    group, split = tl.program_id(1), tl.program_id(2)
    entry = table + segments + segment * SEGMENT
    kind, slot, row0 = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    rows, position = tl.load(entry + 3), tl.load(entry + 4)
    each, width = H // G, G * K
    BM: tl.constexpr = BR * BH
    m = tl.arange(0, BM)
    i, head = first + m // BH, group * each + m % BH
    live = (i < rows) & (m % BH < each)
    x = tl.arange(0, BK)
    place = ((row0 + i).to(tl.int64) * H + head) * K
    mask = live[:, None] & (x < K)[None, :]
    KV: tl.constexpr = k_pool.dtype.element_ty
    acc = tl.zeros((BM, BK), tl.float32)
    peak = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    span = ((position + SPLITS - 1) // SPLITS + BN - 1) // BN * BN
    start = split * span
    stop = tl.minimum(start + span, position)
    for j0 in range(start, stop, BN):
        j = j0 + tl.arange(0, BN)
        j_ok = j < stop
        rows_k = pool_row(page_table, slot, j, pages, PAGE, j_ok) * width + group * K
        source = rows_k[:, None] + x[None, :]
        ok = j_ok[:, None] & (x < K)[None, :]
        logits = logits_of(q, place, live, k_pool, rows_k, j_ok, scale, K, TYPE, KV, BM, BN, BX)
        logits = tl.where(j_ok[None, :], logits, float("-inf"))
        values = tl.load(v_pool + source, mask=ok, other=0).to(tl.float32)
        acc, peak, total = absorb(acc, peak, total, logits, values, TYPE)
    own = tl.where(kind == PREVIEW, rows, tl.minimum(rows, first + BR))
    own = tl.where(split == 0, own, 0)
    for j0 in range(0, own, BN):
        j = j0 + tl.arange(0, BN)
        ok = (j < rows)[:, None] & (x < K)[None, :]
        rows_k = (row0 + j).to(tl.int64) * width + group * K
        source = rows_k[:, None] + x[None, :]
        logits = logits_of(q, place, live, k, rows_k, j < rows, scale, K, TYPE, KV, BM, BN, BX)
        values = rounded(tl.load(v + source, mask=ok, other=0), KV).to(tl.float32)
        seen = (j < rows)[None, :] & ((kind == PREVIEW) | (j[None, :] <= i[:, None]))
        logits = tl.where(seen, logits, float("-inf"))
        acc, peak, total = absorb(acc, peak, total, logits, values, TYPE)
    if SPLITS == 1:
        out = acc / tl.where(total > 0, total, 1.0)[:, None]
        if gate is not None:
            opens = tl.load(gate + place[:, None] + x[None, :], mask=mask, other=0)
            out *= sigmoid(opens)
        tl.store(y + place[:, None] + x[None, :], out, mask=mask)
    else:
        item = ((row0 + i).to(tl.int64) * H + head) * SPLITS + split
        tl.store(peaks + item, peak, mask=live)
        tl.store(totals + item, total, mask=live)
        # a split that saw nothing is not read again
        some = mask & (total > 0)[:, None]
        tl.store(parts + item[:, None] * K + x[None, :], acc, mask=some)


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
    splits, tile = splits_of(sig), kernel.tile("attend", sig, attend_tile(sig))
    tile["BR"] = max(tile["BR"], least_rows(tile["BH"]))

    def over(splits: int, *parts: torch.Tensor | None) -> CudaStep:
        return kernel.launcher(
            sig,
            attend_kernel,
            (min(sig.layout.segments, rows) + rows // tile["BR"], sig["G"], splits),
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
            **tile,
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
    """Return the tile: rows by query heads of a KV head, 16 queries, or 32 of narrow heads."""
    heads = block(cdiv(sig["H"], sig["G"]), 1)
    columns, is_fast = block(sig["K"]), sig.precision is Precision.FAST
    most = 32 if is_fast and columns <= 128 else 16
    rows = max(least_rows(heads), min(block(sig["T"], 1), most // heads))
    return {
        "BR": rows,
        "BH": heads,
        "BN": 32 if is_fast or columns <= 128 else 16,
        "BK": columns,
        "BX": 32 if is_fast else 16,
        "num_warps": 4 if columns <= 128 else 8,
    }


def least_rows(heads: int) -> int:
    """Return the rows that a tile needs with this many heads: a product takes 16 at least."""
    return cdiv(16, heads)


def splits_of(sig: Signature) -> int:
    """Return how many programs share the prefix of a row."""
    most = next((n for rows, n in SPLITS if sig["T"] <= rows), 1)
    worth = sig["slot_pages"] * PAGE_ROWS // LEAST_SPLIT
    return block(max(1, min(most, worth)), 1)


def split_counts(sig: Signature) -> tuple[int, ...]:
    """Return the numbers of peaks, totals and parts of the splits; none where there is one."""
    splits = splits_of(sig)
    if splits == 1:
        return ()
    items = int(sig["T"] * sig["H"] * splits)
    return items, items, items * int(sig["K"])
