"""attention: five launches: projections with norm, then norm and rotation of heads with the cache's
rows, attention over splits of the prefix, their join with the output gate, and the way out.

Where the prefix is not split (more than 64 rows, or a short cache) the join is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import PAGE_ROWS, HostWeight, Numerics, Signature
from clover_rt_cuda.kernel import (
    TritonKernel,
    Words,
    block,
    numerics_of,
    room,
    room_bytes,
    sequence,
    table_of,
    views,
)
from clover_rt_cuda.kernels.attend import MOST_COLUMNS, attend_steps, split_counts
from clover_rt_cuda.kernels.kv_append import pool_row
from clover_rt_cuda.kernels.linear import linear_step
from clover_rt_cuda.kernels.project import Part, project_step
from clover_rt_cuda.kernels.tools import PREVIEW, ROWS, SEGMENT, narrowed
from clover_rt_cuda.launch import CudaStep

MATRICES = ("q", "gate", "k", "v", "o")


@triton.jit
def turned(raw, norm, angles, position, eps, K, half, x):
    """Return a head's columns x normalised and rotated; raw and norm point to its first column."""
    ok = x < K
    own = tl.load(raw + x, mask=ok, other=0)
    root = tl.sqrt(tl.sum(own * own, 0) / K + eps)
    turns, low = ok & (x < 2 * half), x < half
    partner = tl.where(low, x + half, x - half)
    other = tl.load(raw + partner, mask=turns, other=0) / root
    other *= tl.load(norm + partner, mask=turns, other=0)
    own = own / root * tl.load(norm + x, mask=ok, other=0)
    angle = angles + 2 * (position.to(tl.int64) * half + x % half)
    cos, sin = tl.load(angle, mask=turns, other=0), tl.load(angle + 1, mask=turns, other=0)
    return tl.where(turns, own * cos + tl.where(low, -other, other) * sin, own)


@triton.jit
def heads_kernel(
    table, segments, row_segment, q_raw, k_raw, v, q_norm, k_norm, angles, page_table, q, k,
    k_pool, v_pool, eps, H, G, K, half, pages, PAGE: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One program a row and head: queries, then keys, then values (which only go to the cache)."""
    row = tl.program_id(0)
    if row >= tl.load(table + ROWS):
        return
    entry = table + segments + tl.load(table + row_segment + row) * SEGMENT
    position = tl.load(entry + 4) + row - tl.load(entry + 2)
    head = tl.program_id(1)
    x = tl.arange(0, BK)
    ok = x < K
    if head < H:
        at = (row.to(tl.int64) * H + head) * K
        tl.store(q + at + x, turned(q_raw + at, q_norm, angles, position, eps, K, half, x), mask=ok)
    else:
        group = (head - H) % G
        at = (row.to(tl.int64) * G + group) * K
        kept = tl.load(entry) != PREVIEW
        slot = tl.load(entry + 1)
        place = pool_row(page_table, slot, position, pages, PAGE, kept) * G * K + group * K
        kind: tl.constexpr = k_pool.dtype.element_ty
        if head < H + G:
            key = turned(k_raw + at, k_norm, angles, position, eps, K, half, x)
            tl.store(k + at + x, key, mask=ok)
            tl.store(k_pool + place + x, narrowed(key, kind), mask=ok & kept)
        else:
            value = tl.load(v + at + x, mask=ok, other=0)
            tl.store(v_pool + place + x, narrowed(value, kind), mask=ok & kept)


class Attention(TritonKernel):
    """The first half of a gated-attention layer."""

    def numerics(self, sig: Signature) -> Numerics:
        return numerics_of(sig)

    def supports(self, sig: Signature) -> str:
        if sig["K"] > MOST_COLUMNS:
            return f"K={sig['K']} exceeds {MOST_COLUMNS}, the columns that one program holds"
        return super().supports(sig)

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        out = {name: self.upload(weights[name]) for name in MATRICES}
        for name in ("input_norm", "q_norm", "k_norm"):
            out[name] = self.vector(weights[name], 1.0)
        return out

    def scratch(self, sig: Signature) -> int:
        return room_bytes(*_counts(sig), *split_counts(sig))

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table, words = table_of(operands), Words.of(sig.layout)
        h, angles, y = views(operands, "h", "angles", "y")
        cache = views(operands, "page_table", "k_pool", "v_pool")
        heads, groups, width = sig["H"], sig["G"], sig["K"]
        q_raw, gate, k_raw, v, q, k, mixed, *kept = room(scratch, *_counts(sig), *split_counts(sig))
        parts = (
            Part(prepared["q"], q_raw, heads * width),
            Part(prepared["gate"], gate, heads * width),
            Part(prepared["k"], k_raw, groups * width),
            Part(prepared["v"], v, groups * width),
        )
        steps: list[CudaStep] = [project_step(self, sig, table, h, prepared["input_norm"], parts)]
        page_table, k_pool, v_pool = cache
        steps.append(
            self.launcher(
                sig,
                heads_kernel,
                (sig["T"], heads + 2 * groups),
                table,
                words.segments,
                words.row_segment,
                q_raw,
                k_raw,
                v,
                prepared["q_norm"],
                prepared["k_norm"],
                angles,
                page_table,
                q,
                k,
                k_pool,
                v_pool,
                float(sig.attr("eps")),
                heads,
                groups,
                width,
                sig["r"],
                sig["slot_pages"],
                PAGE=PAGE_ROWS,
                BK=block(width),
            )
        )
        steps += attend_steps(self, sig, table, (q, k, v, *cache), gate, mixed, kept)
        out = (mixed, h, y, prepared["o"], sig["D"], heads * width)
        steps.append(linear_step(self, sig, table, *out))
        return sequence(steps)


def _counts(sig: Signature) -> tuple[int, ...]:
    """Return the numbers of raw q, gate, raw k, v, q, k and the mixed values."""
    wide, narrow = sig["T"] * sig["H"] * sig["K"], sig["T"] * sig["G"] * sig["K"]
    return wide, wide, narrow, narrow, wide, narrow, wide
