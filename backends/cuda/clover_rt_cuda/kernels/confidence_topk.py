"""confidence_topk: logits of 16 wanted rows by a block of the vocabulary never leave a program.

A program computes them, applies the controls, and keeps of each row its `top` largest, peak, sum
and entropy sum. Small programs then join the candidates, up to 2048 at a time, until one a row is
left, which writes the picks. Candidates are chosen one after the other by maximum and lowest id;
numbers are ranked as integers, so that minus infinity is ranked too. Sums in float32. The hidden
rows are checked for inf and NaN by the same programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Numerics, Signature, StepLayout
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
    views,
)
from clover_rt_cuda.kernels.linear import inner_block
from clover_rt_cuda.kernels.router_topk import NOT_ALLOWED, rank_of
from clover_rt_cuda.kernels.tools import ROWS, SEGMENT, WANTED, rows_product

JOINED = 2048
"""Candidates that one program joins."""

# words of a wanted row: row, segment, response, think_open, count_from, probe
WANT = tl.constexpr(8)
# words of a record of controls
_, _CONTROLS, _ = StepLayout().sections["controls"]
RECORD = tl.constexpr(_CONTROLS.itemsize // 4)
STOPS = tl.constexpr(_CONTROLS.fields["stops"][1] // 4)
NO_ID = tl.constexpr(2147483647)


@triton.jit
def number_of(rank):
    """Return the float32 numbers of ranks."""
    return tl.where(rank < 0, rank ^ 0x7FFFFFFF, rank).to(tl.float32, bitcast=True)


@triton.jit
def ramp(position, start, window):
    grown = (position - start).to(tl.float32) / tl.where(window > 0, window, 1).to(tl.float32)
    grown = tl.minimum(tl.maximum(grown, 0.0), 1.0)
    return tl.where(window > 0, grown, tl.where(position > start, 1.0, 0.0))


@triton.jit
def controlled(
    logits, table, numbers, segments, controls, tokens, want, w_ok, v, v_ok, counts, suppressed,
    vocab, words,
):  # fmt: skip
    """Return logits [BW, BV] of wanted rows after the response controls."""
    row, segment = tl.load(want, mask=w_ok, other=0), tl.load(want + 1, mask=w_ok, other=0)
    position = tl.load(want + 2, mask=w_ok, other=0)
    entry = table + segments + segment * SEGMENT
    slot, row0 = tl.load(entry + 1, mask=w_ok, other=0), tl.load(entry + 2, mask=w_ok, other=0)
    record = controls + segment * RECORD
    ok = w_ok[:, None] & v_ok[None, :]
    place = slot.to(tl.int64)[:, None] * vocab + v[None, :]
    seen = tl.load(counts + place, mask=ok, other=0)
    start = tl.load(want + 4, mask=w_ok, other=-1)
    drafted = tl.where(start >= 0, row - row0 - start + 1, 0)
    for j in range(0, tl.max(drafted, 0)):
        token = tl.load(table + tokens + row0 + start + j, mask=j < drafted, other=-1)
        seen += (v[None, :] == token[:, None]).to(tl.int32)
    frequency = tl.load(numbers + record, mask=w_ok, other=0)[:, None]
    presence = tl.load(numbers + record + 1, mask=w_ok, other=0)[:, None]
    repetition = tl.load(numbers + record + 2, mask=w_ok, other=1)[:, None]
    lowered = logits - seen.to(tl.float32) * frequency - presence
    lowered = tl.where(lowered < 0, lowered * repetition, lowered / repetition)
    logits = tl.where(seen > 0, lowered, logits)
    penalty = tl.load(numbers + record + 3, mask=w_ok, other=0)
    begin = tl.load(table + record + 4, mask=w_ok, other=0)
    window = tl.load(table + record + 5, mask=w_ok, other=0)
    bias = penalty * ramp(position, begin, window)
    stops = tl.load(table + record + 10, mask=w_ok, other=0)
    for s in range(0, tl.max(stops, 0)):
        stop = tl.load(table + record + STOPS + s, mask=w_ok & (s < stops), other=-1)
        logits += tl.where(v[None, :] == stop[:, None], bias[:, None], 0.0)
    is_open = tl.load(want + 3, mask=w_ok, other=0)
    think = tl.load(table + record + 9, mask=w_ok & (is_open != 0), other=-1)
    begin = tl.load(table + record + 7, mask=w_ok, other=0)
    window = tl.load(table + record + 8, mask=w_ok, other=0)
    bias = tl.load(numbers + record + 6, mask=w_ok, other=0) * ramp(position, begin, window)
    logits += tl.where(v[None, :] == think[:, None], bias[:, None], 0.0)
    place = slot.to(tl.int64)[:, None] * words + (v // 32)[None, :]
    banned = (tl.load(suppressed + place, mask=ok, other=0) >> (v % 32)[None, :]) & 1
    return tl.where(banned != 0, float("-inf"), logits)


@triton.jit
def take_best(ranks, ids, out_ranks, out_ids, place, ok, TOP: tl.constexpr):
    """Write the TOP best of each row of candidates to place [BW] and behind, falling."""
    for n in range(0, TOP):
        best = tl.max(ranks, 1)
        id = tl.min(tl.where(ranks == best[:, None], ids, NO_ID), 1)
        tl.store(out_ranks + place + n, best, mask=ok)
        tl.store(out_ids + place + n, id, mask=ok)
        ranks = tl.where(ids == id[:, None], NOT_ALLOWED, ranks)


@triton.jit
def finite_rows(table, h, D, first, step, BD: tl.constexpr):
    """Return 1 if rows first, first + step, ... of the table are finite, else 0."""
    wrong = tl.zeros((BD,), tl.int32)
    for row in range(first, tl.load(table + ROWS), step):
        place = h + (tl.zeros((), tl.int64) + row) * D
        for d0 in range(0, D, BD):
            d = d0 + tl.arange(0, BD)
            x = tl.load(place + d, mask=d < D, other=0)
            wrong |= (tl.abs(x) < float("inf")).to(tl.int32) ^ 1
    return 1 - tl.max(wrong, 0)


@triton.jit
def logits_kernel(
    table, numbers, segments, controls, wanted, tokens, h, head, scale, zero, counts, suppressed,
    ranks, ids, sums, probes, flags, vocab, words, D,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, TYPE: tl.constexpr, TOP: tl.constexpr,
    BW: tl.constexpr, BV: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    # programs of one block of the vocabulary are neighbours, so that they share its weights
    part, parts = tl.program_id(1), tl.num_programs(1)
    count = tl.load(table + WANTED)
    finite = tl.full((), 1, tl.int32)
    if tl.program_id(0) == 0:
        finite = finite_rows(table, h, D, part, parts, BD)
    if tl.program_id(0) * BW < count:
        w = tl.program_id(0) * BW + tl.arange(0, BW)
        w_ok = w < count
        v = part * BV + tl.arange(0, BV)
        v_ok = v < vocab
        want = table + wanted + w * WANT
        rows = tl.load(want, mask=w_ok, other=0).to(tl.int64)
        logits, _ = rows_product(
            h, rows, w_ok, None, head, scale, zero, v.to(tl.int64), v_ok, D,
            FORMAT, GROUP, TYPE, BW, BV, BK,
        )  # fmt: skip
        ok = w_ok[:, None] & v_ok[None, :]
        wrong = ok & ((tl.abs(logits) < float("inf")) == 0)
        finite = tl.minimum(finite, 1 - tl.max(tl.max(wrong.to(tl.int32), 1), 0))
        logits = controlled(
            logits, table, numbers, segments, controls, tokens, want, w_ok, v, v_ok,
            counts, suppressed, vocab, words,
        )  # fmt: skip
        logits = tl.where(ok, logits, float("-inf"))
        probe = tl.load(want + 5, mask=w_ok, other=-1)
        hit = v[None, :] == probe[:, None]
        own = w_ok & (probe >= part * BV) & (probe < tl.minimum((part + 1) * BV, vocab))
        tl.store(probes + w, tl.sum(tl.where(hit, logits, 0.0), 1), mask=own)
        peak = tl.max(logits, 1)
        below = logits - tl.where(peak == float("-inf"), 0.0, peak)[:, None]
        share = tl.exp(below)
        place = (w.to(tl.int64) * parts + part) * 3
        tl.store(sums + place, peak, mask=w_ok)
        tl.store(sums + place + 1, tl.sum(share, 1), mask=w_ok)
        weighed = tl.where(share > 0, share * below, 0.0)
        tl.store(sums + place + 2, tl.sum(weighed, 1), mask=w_ok)
        rank = tl.where(ok, rank_of(logits), NOT_ALLOWED)
        id = tl.broadcast_to(v[None, :], (BW, BV))
        place = (w.to(tl.int64) * parts + part) * TOP
        take_best(rank, id, ranks, ids, place, w_ok, TOP)
    tl.store(flags + tl.program_id(0) * parts + part, finite)


@triton.jit
def candidates(ranks, ids, place, first, count, BC: tl.constexpr):
    """Return (ranks, ids) [1, BC] of a row's candidates from `first` on."""
    c = first + tl.arange(0, BC)[None, :]
    ok = c < count
    rank = tl.load(ranks + place + c, mask=ok, other=NOT_ALLOWED)
    return rank, tl.load(ids + place + c, mask=ok, other=NO_ID)


@triton.jit
def join_candidates(
    table, ranks, ids, out_ranks, out_ids, count, TOP: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """Keep the best of every BC candidates of a row."""
    w = tl.program_id(0)
    if w >= tl.load(table + WANTED):
        return
    part, parts = tl.program_id(1), tl.num_programs(1)
    rank, id = candidates(ranks, ids, w.to(tl.int64) * count, part * BC, count, BC)
    place = (w.to(tl.int64) * parts + part) * TOP + tl.arange(0, 1)
    take_best(rank, id, out_ranks, out_ids, place, place >= 0, TOP)


@triton.jit
def picks_kernel(
    table, wanted, ranks, ids, sums, probes, flags, picks, count, parts, checks,
    TOP: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Write the header of the picks (program 0), or one wanted row of them."""
    WIDE: tl.constexpr = 2 * TOP + 4
    if tl.program_id(0) == 0:
        finite = tl.full((BS,), 1, tl.int32)
        for first in range(0, checks, BS):
            c = first + tl.arange(0, BS)
            finite &= tl.load(flags + c, mask=c < checks, other=1)
        word = tl.arange(0, BS)
        for first in range(0, WIDE, BS):
            at = first + word
            tl.store(picks + at, tl.where(at == 0, tl.min(finite, 0), 0), mask=at < WIDE)
    else:
        w = tl.program_id(0) - 1
        if w < tl.load(table + WANTED):
            peak = tl.full((), float("-inf"), tl.float32)
            for first in range(0, parts, BS):
                c = first + tl.arange(0, BS)
                place = (w.to(tl.int64) * parts + c) * 3
                here = tl.load(sums + place, mask=c < parts, other=float("-inf"))
                peak = tl.maximum(peak, tl.max(here, 0))
            total = tl.zeros((), tl.float32)
            weighed = tl.zeros((), tl.float32)
            for first in range(0, parts, BS):
                c = first + tl.arange(0, BS)
                ok = c < parts
                place = (w.to(tl.int64) * parts + c) * 3
                here = tl.load(sums + place, mask=ok, other=float("-inf"))
                some = ok & (here > float("-inf"))
                below = tl.where(some, here - peak, 0.0)
                grown = tl.where(some, tl.exp(below), 0.0)
                sum_ = tl.load(sums + place + 1, mask=some, other=0)
                total += tl.sum(sum_ * grown, 0)
                more = tl.load(sums + place + 2, mask=some, other=0) + below * sum_
                weighed += tl.sum(more * grown, 0)
            rank, id = candidates(ranks, ids, w.to(tl.int64) * count, 0, count, BC)
            row = picks + (w + 1).to(tl.int64) * WIDE
            for n in range(0, TOP):
                best = tl.max(rank, 1)
                chosen = tl.min(tl.where(rank == best[:, None], id, NO_ID), 1)
                at = tl.arange(0, 1)
                tl.store(row + n + at, chosen)
                tl.store(row + TOP + n + at, number_of(best).to(tl.int32, bitcast=True))
                rank = tl.where(id == chosen[:, None], NOT_ALLOWED, rank)
            log_total = tl.log(total)
            tl.store(row + 2 * TOP, (peak + log_total).to(tl.int32, bitcast=True))
            entropy = log_total - weighed / total
            tl.store(row + 2 * TOP + 1, entropy.to(tl.int32, bitcast=True))
            has_probe = tl.load(table + wanted + w * WANT + 5) >= 0
            probe = tl.load(probes + w, mask=has_probe, other=0.0)
            tl.store(row + 2 * TOP + 2, probe.to(tl.int32, bitcast=True))
            tl.store(row + 2 * TOP + 3, 0)


class ConfidenceTopk(TritonKernel):
    """Say what the wanted rows would pick, and how sure they are."""

    def numerics(self, sig: Signature) -> Numerics:
        return numerics_of(sig)

    def supports(self, sig: Signature) -> str:
        top = sig.attr("top")
        if top > sig["vocab"]:
            return f"top={top} exceeds the {sig['vocab']} ids of the vocabulary"
        if top > 64:
            return f"top={top} exceeds 64, the candidates that a program keeps of a row"
        return super().supports(sig)

    def scratch(self, sig: Signature) -> int:
        return room_bytes(*self._counts(sig))

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table, words = table_of(operands), Words.of(sig.layout)
        h, counts, suppressed, picks = views(operands, "h", "counts", "suppressed", "picks")
        head, top, vocab = prepared["head"], int(sig.attr("top")), sig["vocab"]
        tile = self._tile(sig)
        parts, blocks = cdiv(vocab, tile["BV"]), cdiv(sig["W"], tile["BW"])
        sums, probes, flags, *kept = room(scratch, *self._counts(sig))
        flags, lists = flags.view(torch.int32), [part.view(torch.int32) for part in kept]
        steps = [
            self.launcher(
                sig,
                logits_kernel,
                (blocks, parts),
                table,
                table.view(torch.float32),
                words.segments,
                words.controls,
                words.wanted,
                words.tokens,
                h,
                *head.arrays,
                counts,
                suppressed,
                *lists[:2],
                sums,
                probes,
                flags,
                vocab,
                cdiv(vocab, 32),
                sig["D"],
                **head.constants,
                **tile,
                TYPE=dot_type(sig),
                TOP=top,
                BD=block(sig["D"], 16, 1024),
            )
        ]
        levels = _levels(sig, tile)
        for level, (count, fewer) in enumerate(pairwise(levels)):
            ranks, ids, *better = lists[2 * level : 2 * level + 4]
            grid = (sig["W"], fewer // top)
            steps.append(
                self.launcher(
                    sig,
                    join_candidates,
                    grid,
                    table,
                    ranks,
                    ids,
                    *better,
                    count,
                    TOP=top,
                    BC=JOINED,
                )
            )
        steps.append(
            self.launcher(
                sig,
                picks_kernel,
                (sig["W"] + 1,),
                table,
                words.wanted,
                *lists[-2:],
                sums,
                probes,
                flags,
                picks,
                levels[-1],
                parts,
                blocks * parts,
                TOP=top,
                BC=block(levels[-1]),
                BS=1024,
            )
        )
        return sequence(steps)

    def _tile(self, sig: Signature) -> dict[str, int]:
        return self.tile("head", sig, head_tile(sig))

    def _counts(self, sig: Signature) -> list[int]:
        """Return the words of sums, probes, flags, and of ranks and ids at each level."""
        tile = self._tile(sig)
        parts, blocks = cdiv(sig["vocab"], tile["BV"]), cdiv(sig["W"], tile["BW"])
        lists = [sig["W"] * count for count in _levels(sig, tile) for _ in range(2)]
        return [3 * sig["W"] * parts, sig["W"], blocks * parts, *lists]


def head_tile(sig: Signature) -> dict[str, int]:
    """Return the tile of the head: more ids a program where more of them are kept."""
    return {"BW": 16, "BV": 128 if sig.attr("top") <= 8 else 256, "BK": inner_block(sig)}


def _levels(sig: Signature, tile: Mapping[str, int]) -> list[int]:
    """Return the candidates of a row, as the first programs leave them and after each join."""
    top = int(sig.attr("top"))
    levels = [cdiv(sig["vocab"], tile["BV"]) * top]
    while levels[-1] > JOINED:
        levels.append(cdiv(levels[-1], JOINED) * top)
    return levels
