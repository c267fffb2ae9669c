"""block_scan: one program a head, up to 32 of its value columns, and every few segments.

Capacities below 16 rows: row by row, with the memory's K rows, up to 256, in registers. Others:
chunks of 16 rows as matrix products, with no loop over rows; the inverse of I + A by halves. A
verify of more than a chunk moves a copy of the memory on, in scratch. float32 throughout.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cuda.kernel import (
    TritonKernel,
    Words,
    block,
    cdiv,
    room,
    room_bytes,
    table_of,
    views,
)
from clover_rt_cuda.kernels.causal_conv import move_ring
from clover_rt_cuda.kernels.scan import scan_chunk, scan_row, unit_row
from clover_rt_cuda.kernels.tools import COMMIT, PREVIEW, SEGMENT, SEGMENTS
from clover_rt_cuda.launch import CudaStep

MOST_KEYS = 256
CHUNK_ROWS = 16
MEMORY_ROWS = 16


@triton.jit
def scan_segment_rows(
    state, qkv, g, beta, tape_k, tape_v, tape_g, tape_beta, o, slot, row0, rows, keeps, head, part,
    H, G, K, V, Q, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Run a segment row by row; return the memory after it."""
    x = tl.arange(0, BK)
    v = part * BV + tl.arange(0, BV)
    x_ok, v_ok = x < K, v < V
    each, width = H // G, G * K
    group = head // each
    for t in range(0, rows):
        row = (row0 + t).to(tl.int64)
        base = qkv + row * (2 * width + H * V)
        raw = tl.load(base + width + group * K + x, mask=x_ok, other=0)
        value = tl.load(base + 2 * width + head * V + v, mask=v_ok, other=0)
        query = tl.load(base + group * K + x, mask=x_ok, other=0)
        decay, strength = tl.load(g + row * H + head), tl.load(beta + row * H + head)
        state = scan_row(state, unit_row(raw), value, decay, strength)
        root = tl.sqrt(tl.full((), 1.0, tl.float32) * K)
        out = tl.sum(state * (unit_row(query) / root)[:, None], 0)
        tl.store(o + row * H * V + head * V + v, out, mask=v_ok)
        if keeps:
            place = slot.to(tl.int64) * Q + t
            tl.store(tape_v + place * H * V + head * V + v, value, mask=v_ok)
            if part == 0:
                tl.store(tape_g + place * H + head, decay)
                tl.store(tape_beta + place * H + head, strength)
                if head % each == 0:
                    tl.store(tape_k + place * width + group * K + x, raw, mask=x_ok)
    return state


@triton.jit
def scan_segment_chunks(
    memory, copy, qkv, g, beta, tape_k, tape_v, tape_g, tape_beta, o, slot, row0, rows, keeps,
    head, part, H, G, K, V, Q,
    C: tl.constexpr, LEVELS: tl.constexpr, BX: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Run a segment in chunks of C rows; a verify moves its memory on in `copy`."""
    x = tl.arange(0, BX)
    v = part * BV + tl.arange(0, BV)
    v_ok = v < V
    each, width = H // G, G * K
    group = head // each
    for first in range(0, rows, C):
        t = first + tl.arange(0, C)
        ok = t < rows
        row = (row0 + t).to(tl.int64)
        step = row * (2 * width + H * V)
        values_ok = ok[:, None] & v_ok[None, :]
        start = step[:, None] + 2 * width + head * V + v[None, :]
        value = tl.load(qkv + start, mask=values_ok, other=0)
        decay = tl.load(g + row * H + head, mask=ok, other=0)
        strength = tl.load(beta + row * H + head, mask=ok, other=0)
        q, k = qkv + group * K, qkv + width + group * K
        # a verify reads its slot's memory once, and then the copy
        source, target = memory, memory
        if keeps:
            target = copy
            if first > 0:
                source = copy
        moves = (first + C < rows) | (keeps == 0)
        out = scan_chunk(
            q, k, step, ok, source, target, moves, value, decay, strength,
            v, v_ok, K, V, C, LEVELS, BX, BV,
        )  # fmt: skip
        if keeps:
            place = slot.to(tl.int64) * Q + t
            row_v = (place * H * V + head * V)[:, None]
            tl.store(tape_v + row_v + v[None, :], value, mask=values_ok)
            if part == 0:
                tl.store(tape_g + place * H + head, decay, mask=ok)
                tl.store(tape_beta + place * H + head, strength, mask=ok)
                if head % each == 0:
                    for x0 in range(0, K, BX):
                        here = ok[:, None] & (x0 + x < K)[None, :]
                        raw = tl.load(k + step[:, None] + (x0 + x)[None, :], mask=here, other=0)
                        row_k = (place * width + group * K)[:, None] + (x0 + x)[None, :]
                        tl.store(tape_k + row_k, raw, mask=here)
        tl.store(o + (row * H * V + head * V)[:, None] + v[None, :], out, mask=values_ok)


@triton.jit
def block_scan_kernel(
    table, segments, qkv, g, beta, S, tape_k, tape_v, tape_g, tape_beta, o, copies, u, ring,
    H, G, K, V, Q, channels,
    BK: tl.constexpr, BV: tl.constexpr, BX: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr,
    J: tl.constexpr, BJ: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Run the segments, one head's columns a program.

    copies  None, or memory for verifies
    ring    None, or the rings that programs behind the last head move on by the rows of u
    """
    head, part = tl.program_id(0), tl.program_id(1)
    x = tl.arange(0, BK)
    v = part * BV + tl.arange(0, BV)
    ok = (x < K)[:, None] & (v < V)[None, :]
    for s in range(tl.program_id(2), tl.load(table + SEGMENTS), tl.num_programs(2)):
        entry = table + segments + s * SEGMENT
        kind, slot = tl.load(entry), tl.load(entry + 1)
        row0, rows = tl.load(entry + 2), tl.load(entry + 3)
        if (kind != PREVIEW) & (rows > 0) & (head < H):
            memory = S + (slot.to(tl.int64) * H + head) * K * V
            keeps = kind != COMMIT
            if C == 1:
                place = memory + x[:, None] * V + v[None, :]
                state = tl.load(place, mask=ok, other=0)
                state = scan_segment_rows(
                    state, qkv, g, beta, tape_k, tape_v, tape_g, tape_beta, o,
                    slot, row0, rows, keeps, head, part, H, G, K, V, Q, BK, BV,
                )  # fmt: skip
                tl.store(place, state, mask=ok & (kind == COMMIT))
            else:
                copy = memory
                if copies is not None:
                    copy = copies + (tl.program_id(2).to(tl.int64) * H + head) * K * V
                scan_segment_chunks(
                    memory, copy, qkv, g, beta, tape_k, tape_v, tape_g, tape_beta, o,
                    slot, row0, rows, keeps, head, part, H, G, K, V, Q, C, LEVELS, BX, BV,
                )  # fmt: skip
        if ring is not None:  # noqa: SIM102 - one is known when compiled, the other is not
            if (kind == COMMIT) & (rows > 0) & (head >= H) & (part == 0):
                c = (head - H) * BC + tl.arange(0, BC)
                move_ring(ring, slot, rows, u, row0, c, c < channels, channels, J, BJ)


class BlockScan(TritonKernel):
    """Advance the memory over commit rows; read it, and leave a tape, for verify rows."""

    def supports(self, sig: Signature) -> str:
        if sig["K"] > MOST_KEYS:
            return f"K={sig['K']} exceeds {MOST_KEYS}, the rows of the memory that a program holds"
        return super().supports(sig)

    def scratch(self, sig: Signature) -> int:
        return room_bytes(copies_count(sig)) if copies_count(sig) else 0

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        names = ("qkv", "g", "beta", "S", "tape_k", "tape_v", "tape_g", "tape_beta", "o")
        copies = room(scratch, copies_count(sig))[0] if copies_count(sig) else None
        return scan_step(self, sig, table_of(operands), views(operands, *names), copies)


def scan_step(
    kernel: TritonKernel,
    sig: Signature,
    table: torch.Tensor,
    operands: tuple[torch.Tensor, ...],
    copies: torch.Tensor | None,
    u: torch.Tensor | None = None,
    ring: torch.Tensor | None = None,
) -> CudaStep:
    """Return the step that scans; operands are those of block_scan, in order.

    copies   as many numbers as `copies_count` says
    u, ring  the raw rows and the rings of causal_conv, which this launch then moves on as well
    """
    tile, chunk = scan_tile(sig), chunk_of(sig["T"])
    rings, moved = 0, {"J": 1, "BJ": 1, "BC": 16}
    if ring is not None:
        moved = {"J": sig["J"], "BJ": block(sig["J"] - 1, 1), "BC": block(sig["C"], 16, 128)}
        rings = cdiv(sig["C"], moved["BC"])
    return kernel.launcher(
        sig,
        block_scan_kernel,
        (sig["H"] + rings, cdiv(sig["V"], tile["BV"]), segment_programs(sig)),
        table,
        Words.of(sig.layout).segments,
        *operands,
        copies,
        u,
        ring,
        *(sig[a] for a in "HGKVQ"),
        0 if ring is None else sig["C"],
        **tile,
        **moved,
        BX=MEMORY_ROWS,
        num_warps=4 if chunk == 1 else 8,
        C=chunk,
        LEVELS=chunk.bit_length() - 1,
    )


def copies_count(sig: Signature) -> int:
    """Return the numbers of the memories that verifies move on; none where one chunk holds them."""
    if chunk_of(sig["T"]) == 1 or not sig.table.has_verify:
        return 0
    return int(segment_programs(sig) * sig["H"] * sig["K"] * sig["V"])


def chunk_of(rows: int) -> int:
    """Return the rows of a chunk at a capacity; 1: row by row."""
    return CHUNK_ROWS if rows >= CHUNK_ROWS else 1


def scan_tile(sig: Signature) -> dict[str, int]:
    """Return the part of a head's memory that a program holds; one that goes row by row, half."""
    most = 16 if chunk_of(sig["T"]) == 1 else 32
    return {"BK": block(sig["K"]), "BV": block(sig["V"], 16, most)}


def segment_programs(sig: Signature) -> int:
    """Return how many programs share the segments: many sequences come with many rows."""
    return max(1, min(sig["T"] // CHUNK_ROWS, sig.layout.segments, 8))
