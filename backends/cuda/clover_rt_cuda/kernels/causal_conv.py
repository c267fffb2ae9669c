"""causal_conv: two launches: rows by channels, then the rings of commits, after every read of them.

A program holds up to 16 rows by 128 channels and sums its taps in float32. A ring is moved by
programs that own their channels: all of it is read before any of it is written.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import HostWeight, Signature, TableClass
from clover_rt_cuda.kernel import TritonKernel, Words, block, cdiv, sequence, table_of, views
from clover_rt_cuda.kernels.tools import COMMIT, PREVIEW, ROWS, SEGMENT, SEGMENTS, VERIFY, silu
from clover_rt_cuda.launch import CudaStep

PAIRED = (TableClass.COMMIT_PREVIEW, TableClass.MIXED)
SEGMENT_PROGRAMS = 4
"""Programs that share the segments of a table; each takes every fourth."""


@triton.jit
def conv_kernel(
    table, segments, row_segment, u, taps, right, ring, tape_u, y, C, Q,
    J: tl.constexpr, PAIRS: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    count = tl.load(table + ROWS)
    if tl.program_id(0) * BT >= count:
        return
    row = tl.program_id(0) * BT + tl.arange(0, BT)
    ok = row < count
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    c_ok = c < C
    mask = ok[:, None] & c_ok[None, :]
    entry = table + segments + tl.load(table + row_segment + row, mask=ok, other=0) * SEGMENT
    kind = tl.load(entry, mask=ok, other=0)
    slot = tl.load(entry + 1, mask=ok, other=0)
    row0 = tl.load(entry + 2, mask=ok, other=0)
    rows = tl.load(entry + 3, mask=ok, other=0)
    i = row - row0
    # the rows in front of a segment lie at `shift` of [ring | rows of before0 ...]
    shift, before0 = 0 * row, row0
    if PAIRS:
        for s in range(0, tl.load(table + SEGMENTS)):
            other = table + segments + s * SEGMENT
            length = tl.load(other + 3)
            hit = (kind == PREVIEW) & (tl.load(other) == COMMIT) & (length > 0)
            hit = hit & (tl.load(other + 1) == slot)
            shift = tl.where(hit, length, shift)
            before0 = tl.where(hit, tl.load(other + 2), before0)
    total = tl.zeros((BT, BC), tl.float32)
    ring_row = slot.to(tl.int64) * (J - 1)
    for j in tl.static_range(J):
        # row i + j of [J - 1 rows in front | own rows]
        e = i + j
        own = e >= J - 1
        front = e + shift
        in_ring = (front < J - 1) & (own == 0)
        source = tl.where(own, row0 + e, before0 + front) - (J - 1)
        from_u = mask & (in_ring == 0)[:, None]
        from_ring = mask & in_ring[:, None]
        value = tl.load(u + source.to(tl.int64)[:, None] * C + c[None, :], mask=from_u, other=0)
        place = (ring_row + front)[:, None] * C + c[None, :]
        value += tl.load(ring + place, mask=from_ring, other=0)
        total += value * tl.load(taps + c * J + j, mask=c_ok, other=0)[None, :]
    if right is not None:
        for d in tl.static_range(1, J):
            later = mask & ((kind == PREVIEW) & (i + d < rows))[:, None]
            place = (row + d).to(tl.int64)[:, None] * C + c[None, :]
            tap = tl.load(right + c * (J - 1) + d - 1, mask=c_ok, other=0)
            total += tl.load(u + place, mask=later, other=0) * tap[None, :]
    here = row.to(tl.int64)[:, None] * C + c[None, :]
    tl.store(y + here, silu(total), mask=mask)
    kept = mask & (kind == VERIFY)[:, None]
    tape = (slot.to(tl.int64) * Q + i)[:, None] * C + c[None, :]
    tl.store(tape_u + tape, tl.load(u + here, mask=kept, other=0), mask=kept)


@triton.jit
def move_ring(
    ring, slot, rows, source, source_row, c, c_ok, C, J: tl.constexpr, BJ: tl.constexpr
):  # fmt: skip
    """Replace a slot's ring by the last J - 1 rows of [ring | source from source_row on]."""
    e = tl.arange(0, BJ)
    at = rows + e
    ok = (e < J - 1)[:, None] & c_ok[None, :]
    base = ring + slot.to(tl.int64) * (J - 1) * C
    old = tl.load(base + at[:, None] * C + c[None, :], mask=ok & (at < J - 1)[:, None], other=0)
    place = (source_row + at - (J - 1)).to(tl.int64)[:, None] * C + c[None, :]
    new = tl.load(source + place, mask=ok & (at >= J - 1)[:, None], other=0)
    # other threads of this program read what this one is about to write
    tl.debug_barrier()
    tl.store(base + e[:, None] * C + c[None, :], old + new, mask=ok)


@triton.jit
def ring_kernel(
    table, segments, u, ring, C, J: tl.constexpr, BJ: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    for s in range(tl.program_id(1), tl.load(table + SEGMENTS), tl.num_programs(1)):
        entry = table + segments + s * SEGMENT
        rows = tl.load(entry + 3)
        if (tl.load(entry) == COMMIT) & (rows > 0):
            slot, row0 = tl.load(entry + 1), tl.load(entry + 2)
            move_ring(ring, slot, rows, u, row0, c, c < C, C, J, BJ)


class CausalConv(TritonKernel):
    """Convolve the rows of each segment, and keep the last rows of commits."""

    def prepare(self, sig: Signature, weights: Mapping[str, HostWeight]) -> Prepared:
        return {name: self.vector(weight) for name, weight in weights.items()}

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        table = table_of(operands)
        u, ring, tape_u, y = views(operands, "u", "ring", "tape_u", "y")
        taps, right = prepared["taps"], prepared.get("right")
        steps: list[CudaStep] = [conv_step(self, sig, table, u, taps, right, ring, tape_u, y)]
        if moves_rings(sig):
            columns = block(sig["C"], 16, 128)
            steps.append(
                self.launcher(
                    sig,
                    ring_kernel,
                    (cdiv(sig["C"], columns), min(SEGMENT_PROGRAMS, sig.layout.segments)),
                    table,
                    Words.of(sig.layout).segments,
                    u,
                    ring,
                    sig["C"],
                    J=sig["J"],
                    BJ=block(sig["J"] - 1, 1),
                    BC=columns,
                )
            )
        return sequence(steps)


def moves_rings(sig: Signature) -> bool:
    """May a table of this class have commits, and does the convolution keep rows?"""
    return sig["J"] > 1 and sig.table not in (TableClass.PREVIEW, TableClass.VERIFY)


def conv_step(
    kernel: TritonKernel,
    sig: Signature,
    table: torch.Tensor,
    u: torch.Tensor,
    taps: torch.Tensor,
    right: torch.Tensor | None,
    ring: torch.Tensor,
    tape_u: torch.Tensor,
    y: torch.Tensor,
) -> CudaStep:
    """Return the step that convolves, and leaves the rings as they are."""
    words, channels = Words.of(sig.layout), sig["C"]
    rows, columns = block(sig["T"], 1, 16), block(channels, 16, 128)
    return kernel.launcher(
        sig,
        conv_kernel,
        (cdiv(sig["T"], rows), cdiv(channels, columns)),
        table,
        words.segments,
        words.row_segment,
        u,
        taps,
        right if sig.table.has_preview else None,
        ring,
        tape_u,
        y,
        channels,
        sig["Q"],
        J=sig["J"],
        PAIRS=sig.table in PAIRED,
        BT=rows,
        BC=columns,
    )
