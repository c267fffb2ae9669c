"""coreset: one program a segment adds up the masses of up to 2048 experts and cuts.

The mass before an expert is the sum of those that come before it in falling order, found by
comparing all pairs, 16 experts at a time; nothing is sorted.
"""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cuda.kernel import TritonKernel, Words, block, table_of, views
from clover_rt_cuda.kernels.router_topk import NOT_ALLOWED, best_of, rank_of
from clover_rt_cuda.kernels.tools import PREVIEW, SEGMENT, SEGMENTS

MOST = 2048
TILE = 2048


@triton.jit
def block_mass(
    logits, row0, rows, E, top_k, BT: tl.constexpr, BE: tl.constexpr
):  # fmt: skip
    """Return the normalised mass [BE] of the experts over the rows of a block."""
    e = tl.arange(0, BE)
    mass = tl.zeros((BE,), tl.float32)
    for first in range(0, rows, BT):
        t = first + tl.arange(0, BT)
        ok = (t < rows)[:, None] & (e < E)[None, :]
        place = (row0 + t).to(tl.int64)[:, None] * E + e[None, :]
        x = tl.load(logits + place, mask=ok, other=0)
        x = tl.where(ok, x, float("-inf"))
        peak = tl.where(t < rows, tl.max(x, 1), 0.0)
        share = tl.exp(x - peak[:, None])
        share /= tl.where(t < rows, tl.sum(share, 1), 1.0)[:, None]
        rank = tl.where(ok, rank_of(x), NOT_ALLOWED)
        kept = tl.zeros((BT, BE), tl.float32)
        for _ in range(0, top_k):
            best, expert = best_of(rank, e)
            hit = (e[None, :] == expert[:, None]) & (best != NOT_ALLOWED)[:, None]
            kept = tl.where(hit, share, kept)
            rank = tl.where(hit, NOT_ALLOWED, rank)
        mass += tl.sum(kept, 0)
    return mass / tl.sum(mass, 0)


@triton.jit
def kept_of(mass, E, top_p, BE: tl.constexpr, BF: tl.constexpr):
    """Return 1 for the experts [BE] that are kept, int32: the mass before them is below top_p."""
    e = tl.arange(0, BE)
    before = tl.zeros((BE,), tl.float32)
    ahead_of = tl.zeros((BE,), tl.int32)
    for first in range(0, E, BF):
        f = first + tl.arange(0, BF)
        # the masses of experts f, each picked out of the vector
        own = tl.sum(tl.where(f[:, None] == e[None, :], mass[None, :], 0.0), 1)
        tied = (own[:, None] == mass[None, :]) & (f[:, None] < e[None, :])
        ahead = ((own[:, None] > mass[None, :]) | tied) & (f < E)[:, None]
        before += tl.sum(tl.where(ahead, own[:, None], 0.0), 0)
        ahead_of += tl.sum(ahead.to(tl.int32), 0)
    return ((before < top_p) | (ahead_of == 0)).to(tl.int32)


@triton.jit
def coreset_kernel(
    table, segments, logits, allowed, E, top_k, top_p,
    BT: tl.constexpr, BE: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    segment = tl.program_id(0)
    if segment >= tl.load(table + SEGMENTS):
        return
    entry = table + segments + segment * SEGMENT
    rows = tl.load(entry + 3)
    target = allowed + segment.to(tl.int64) * E
    e = tl.arange(0, BE)
    if (tl.load(entry) == PREVIEW) & (rows > 0) & (top_p < 1.0):
        mass = block_mass(logits, tl.load(entry + 2), rows, E, top_k, BT, BE)
        tl.store(target + e, kept_of(mass, E, top_p, BE, BF).to(tl.uint8), mask=e < E)
    else:
        tl.store(target + e, tl.full((BE,), 1, tl.uint8), mask=e < E)


class Coreset(TritonKernel):
    """Say which experts each segment may use."""

    def supports(self, sig: Signature) -> str:
        if sig["E"] > MOST:
            return f"E={sig['E']} exceeds {MOST}, the experts that one program ranks"
        return super().supports(sig)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        experts = block(sig["E"])
        return self.launcher(
            sig,
            coreset_kernel,
            (sig["segments"],),
            table_of(operands),
            Words.of(sig.layout).segments,
            *views(operands, "logits", "allowed"),
            sig["E"],
            int(sig.attr("top_k")),
            float(sig.attr("top_p")),
            **mass_tile(experts),
            BE=experts,
        )


def mass_tile(experts: int) -> dict[str, int]:
    """Return the rows, and the experts that are compared, that a program takes at a time."""
    return {"BT": max(1, TILE // experts), "BF": 16}
