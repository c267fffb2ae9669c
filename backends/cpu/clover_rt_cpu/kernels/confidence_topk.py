"""confidence_topk: logits of up to 32 wanted rows at a time, then each row on its own.

The head is converted and multiplied span by span, as in `linear`; only wanted rows are. The `top`
largest of a row are found through the maxima of runs of 64 ids: at least `top` logits reach the
`top`-th largest maximum, and hardly more do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.ops.controls import unpack_mask
from clover_rt.spec import HostWeight, Picks, Signature
from clover_rt_cpu.kernel import Array, CpuKernel, Shapes, Table, table_of, views
from clover_rt_cpu.products import Product, pad_rows, spans_of, tiles_for
from clover_rt_cpu.weights import matrices

MOST_WANTED = 32
RUN = 64


class ConfidenceTopk(CpuKernel):
    """Say what the wanted rows would pick, and how sure they are."""

    def shapes(self, sig: Signature) -> Shapes:
        tiles = tiles_for(sig["D"], sig["vocab"])
        most = min(sig["W"], MOST_WANTED)
        return {
            "x": (tiles.padded(most), sig["D"]),
            "logits": (most, sig["vocab"]),
            "share": (self.workers.count, 2, sig["vocab"]),
            **Product.shapes(self.workers, tiles),
        }

    def supports(self, sig: Signature) -> str:
        if sig.attr("top") > sig["vocab"]:
            return f"top={sig.attr('top')} exceeds the {sig['vocab']} ids of the vocabulary"
        return super().supports(sig)

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return spans_of(matrices(weights["head"]), tiles_for(sig["D"], sig["vocab"]).height)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        h, counts, suppressed, words = views(operands, "h", "counts", "suppressed", "picks")
        top, vocab = int(sig.attr("top")), sig["vocab"]
        tiles = tiles_for(sig["D"], vocab)
        room = self.room(sig, scratch)
        product = Product(self.workers, tiles, room["weights"], room["products"])

        def block(lo: int, n: int, picks: Picks) -> bool:
            """Fill rows lo .. lo + n - 1 of the picks; return whether all logits were finite."""
            wanted = table.wanted[lo : lo + n]
            rows = room["x"][: tiles.padded(n)]
            pad_rows(h[wanted["row"]], n, rows)
            logits = room["logits"][:n]
            product(rows, n, prepared, logits)
            controls = Controls(table, counts, suppressed, vocab)
            left, finite = deque(range(n)), [True] * n

            def job(worker: int) -> None:
                with np.errstate(all="ignore"):
                    while left:
                        try:
                            i = left.popleft()
                        except IndexError:
                            return
                        row = logits[i]
                        finite[i] = bool(np.isfinite(row).all())
                        if finite[i]:
                            controls.apply(row, wanted[i])
                            _pick(row, top, room["share"][worker], picks, lo + i)
                            probe = int(wanted[i]["probe"])
                            picks.probe[lo + i] = row[probe] if probe >= 0 else 0

            self.workers.run(job, 40.0 * vocab * n)
            return all(finite)

        @np.errstate(all="ignore")
        def step() -> None:
            n = table.wanted_rows
            picks = _empty(n, top)
            finite = bool(np.isfinite(h[: table.rows]).all())
            for lo in range(0, n, MOST_WANTED):
                finite &= block(lo, min(MOST_WANTED, n - lo), picks)
            Picks(finite, picks.ids, picks.logits, picks.lse, picks.entropy, picks.probe).encode(
                words
            )

        return step


class Controls:
    """The response controls of one pass; what depends on a slot alone is found once."""

    def __init__(self, table: Table, counts: Array, suppressed: Array, vocab: int) -> None:
        self.records = table.controls
        self.tokens = np.array(table.tokens)
        self.segments = table.read().segments
        slots = {s.slot for s in self.segments}
        self.banned = {s: np.flatnonzero(unpack_mask(suppressed[s], vocab)) for s in slots}
        self.seen = {s: np.flatnonzero(counts[s] > 0) for s in slots}
        self.counts = counts
        self.vocab = vocab

    def apply(self, row: Array, wanted: Any) -> None:
        """Change a row of float32 logits [vocab] in place."""
        segment = int(wanted["segment"])
        slot, record = self.segments[segment].slot, self.records[segment]
        row[self.banned[slot]] = -np.inf
        frequency, presence = record["frequency"], record["presence"]
        repetition, one = record["repetition"], np.float32(1)
        if frequency != 0 or presence != 0 or repetition != one:
            ids, times = self._committed(segment, slot, wanted)
            lowered = row[ids] - times * frequency - presence
            row[ids] = np.where(lowered < 0, lowered * repetition, lowered / repetition)
        position = int(wanted["response"])
        grown = _ramp(position, int(record["length_start"]), int(record["length_window"]))
        for stop in record["stops"][: int(record["stop_count"])].tolist():
            row[stop] += record["length_penalty"] * grown
        think = int(record["think_end"])
        if wanted["think_open"] and think >= 0:
            grown = _ramp(position, int(record["think_start"]), int(record["think_window"]))
            row[think] += record["think_bias"] * grown

    def _committed(self, segment: int, slot: int, wanted: Any) -> tuple[Array, Array]:
        """Return the ids seen by a row, and how often as float32."""
        ids = self.seen[slot]
        times = self.counts[slot, ids]
        first = int(wanted["count_from"])
        if first >= 0:
            row0 = self.segments[segment].row0
            drafted = self.tokens[row0 + first : int(wanted["row"]) + 1]
            also = np.repeat(ids, times)
            ids, times = np.unique(np.concatenate([also, drafted]), return_counts=True)
        return ids, times.astype(np.float32)


def _ramp(position: int, start: int, window: int) -> np.float32:
    if window <= 0:
        return np.float32(position > start)
    return np.float32(min(max((position - start) / window, 0.0), 1.0))


def _empty(n: int, top: int) -> Picks:
    floats = (np.zeros(n, np.float32) for _ in range(3))
    return Picks(True, np.zeros((n, top), np.int32), np.zeros((n, top), np.float32), *floats)


def _pick(row: Array, top: int, scratch: Array, picks: Picks, i: int) -> None:
    ids = _largest(row, top)
    picks.ids[i] = ids
    picks.logits[i] = row[ids]
    peak = row[ids[0]]
    below, share = scratch
    np.subtract(row, peak, out=below)
    # e^-200 is 0 in float32, and 0 times -200 is 0 where 0 times -inf is not
    np.maximum(below, -200, out=below)
    np.exp(below, out=share)
    total = share.sum(dtype=np.float64)
    share *= below
    picks.lse[i] = float(peak) + np.log(total)
    picks.entropy[i] = np.log(total) - share.sum(dtype=np.float64) / total


def _largest(row: Array, top: int) -> Array:
    """Return the ids of the `top` largest numbers, falling, equal ones by rising id."""
    runs = len(row) // RUN
    candidates = np.arange(len(row))
    if runs >= 2 * top:
        peaks = row[: runs * RUN].reshape(runs, RUN).max(axis=1)
        bar = np.partition(peaks, runs - top)[runs - top]
        if bar > -np.inf:
            candidates = np.flatnonzero(row >= bar)
    order = np.lexsort((candidates, -row[candidates]))[:top]
    ids: Array = candidates[order]
    return ids
