"""causal_conv: taps are added oldest first, then those to the right, in blocks of rows.

A block's rows and the rows before it are gathered into one scratch, so that a tap is one multiply
and one add over the whole block. Rings are written last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Kind, Segment, Signature
from clover_rt_cpu.kernel import (
    ROW_BLOCK,
    Array,
    CpuKernel,
    Shapes,
    blocks,
    silu_of,
    table_of,
    views,
)
from clover_rt_cpu.weights import vector


class CausalConv(CpuKernel):
    """Convolve rows with those before them; previews also with those behind."""

    def supports(self, sig: Signature) -> str:
        if sig.table.has_preview and not sig.has("right"):
            return f"table class {sig.table.value} has previews, and there are 0 right taps"
        return super().supports(sig)

    def shapes(self, sig: Signature) -> Shapes:
        before, c = sig["J"] - 1, sig["C"]
        return {
            "rows": (before + ROW_BLOCK + before, c),
            "product": (ROW_BLOCK, c),
            "rings": (sig["slots"], before, c),
        }

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return {name: np.ascontiguousarray(vector(w).T) for name, w in weights.items()}

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(sig, operands)
        u, ring, tape_u, y = views(operands, "u", "ring", "tape_u", "y")
        room = self.room(sig, scratch)
        near, product, rings = room["rows"], room["product"], room["rings"]
        taps, right = prepared["taps"], prepared.get("right")
        before = len(taps) - 1

        def convolve(s: Segment, start: Array) -> None:
            """Convolve a segment whose `before` rows in front are `start`."""
            for block in blocks(s.rows):
                lo, n = block.start, block.stop - block.start
                behind = min(before, s.rows - block.stop) if s.kind is Kind.PREVIEW else 0
                for i in range(before):
                    source = lo + i - before
                    near[i] = u[s.row0 + source] if source >= 0 else start[lo + i]
                end = s.row0 + block.stop
                np.copyto(near[before : before + n + behind], u[s.row0 + lo : end + behind])
                total = y[s.row0 + lo : end]
                np.multiply(near[:n], taps[0], out=total)
                for j in range(1, before + 1):
                    total += np.multiply(near[j : j + n], taps[j], out=product[:n])
                if s.kind is Kind.PREVIEW:
                    for d in range(1, before + 1):
                        m = min(n, s.rows - d - lo)
                        if m <= 0:
                            break
                        later = near[before + d : before + d + m]
                        total[:m] += np.multiply(later, right[d - 1], out=product[:m])
                silu_of(total, product[:n])

        @np.errstate(all="ignore")
        def step() -> None:
            moved: dict[int, Array] = {}
            segments: Any = table.read().segments
            for s in segments:
                start = ring[s.slot]
                if s.kind is Kind.PREVIEW:
                    start = moved.get(s.slot, start)
                convolve(s, start)
                rows = u[s.row0 : s.row0 + s.rows]
                if s.kind is Kind.COMMIT and s.rows:
                    last = rings[s.slot]
                    kept = max(0, before - s.rows)
                    last[:kept] = start[before - kept :]
                    last[kept:] = rows[s.rows - (before - kept) :]
                    moved[s.slot] = last
                if s.kind is Kind.VERIFY:
                    tape_u[s.slot, : s.rows] = rows
            for slot, last in moved.items():
                ring[slot] = last

        return step
