"""advance: one launch for all slots: programs of a head and its value columns, then of channels.

The tape is replayed row by row. A ring is moved as in causal_conv.
"""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cuda.kernel import TritonKernel, Words, block, cdiv, table_of, views
from clover_rt_cuda.kernels.block_scan import MOST_KEYS, scan_tile
from clover_rt_cuda.kernels.causal_conv import move_ring
from clover_rt_cuda.kernels.scan import scan_row, unit_row
from clover_rt_cuda.kernels.tools import ADVANCES


@triton.jit
def replay(
    S, tape_k, tape_v, tape_g, tape_beta, slot, rows, head, part, H, G, K, V, Q,
    BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Advance one head's memory over the first rows of a slot's tape."""
    x = tl.arange(0, BK)
    v = part * BV + tl.arange(0, BV)
    x_ok, v_ok = x < K, v < V
    group = head // (H // G)
    ok = x_ok[:, None] & v_ok[None, :]
    place = S + (slot.to(tl.int64) * H + head) * K * V + x[:, None] * V + v[None, :]
    state = tl.load(place, mask=ok, other=0)
    for t in range(0, rows):
        row = slot.to(tl.int64) * Q + t
        k = tl.load(tape_k + row * G * K + group * K + x, mask=x_ok, other=0)
        value = tl.load(tape_v + row * H * V + head * V + v, mask=v_ok, other=0)
        g, beta = tl.load(tape_g + row * H + head), tl.load(tape_beta + row * H + head)
        state = scan_row(state, unit_row(k), value, g, beta)
    tl.store(place, state, mask=ok)


@triton.jit
def advance_kernel(
    table, advances, ring, S, tape_u, tape_k, tape_v, tape_g, tape_beta, H, G, K, V, Q, C, parts,
    J: tl.constexpr, BJ: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0)
    for a in range(tl.program_id(1), tl.load(table + ADVANCES), tl.num_programs(1)):
        slot, rows = tl.load(table + advances + 2 * a), tl.load(table + advances + 2 * a + 1)
        if rows > 0:
            if index < H * parts:
                replay(
                    S, tape_k, tape_v, tape_g, tape_beta, slot, rows, index // parts,
                    index % parts, H, G, K, V, Q, BK, BV,
                )  # fmt: skip
            else:
                c = (index - H * parts) * BC + tl.arange(0, BC)
                move_ring(ring, slot, rows, tape_u, slot * Q, c, c < C, C, J, BJ)


class Advance(TritonKernel):
    """Replay tapes into rings and memories."""

    def supports(self, sig: Signature) -> str:
        if sig["K"] > MOST_KEYS:
            return f"K={sig['K']} exceeds {MOST_KEYS}, the rows of the memory that a program holds"
        return super().supports(sig)

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        tile = scan_tile(sig)
        channels, taps = sig["C"], sig["J"]
        columns = block(channels, 16, 128)
        parts = cdiv(sig["V"], tile["BV"])
        names = ("ring", "S", "tape_u", "tape_k", "tape_v", "tape_g", "tape_beta")
        rings = cdiv(channels, columns) if taps > 1 else 0
        return self.launcher(
            sig,
            advance_kernel,
            (sig["H"] * parts + rings, min(4, sig.layout.segments)),
            table_of(operands),
            Words.of(sig.layout).advances,
            *views(operands, *names),
            *(sig[a] for a in "HGKVQC"),
            parts,
            J=taps,
            BJ=block(max(taps - 1, 1), 1),
            BC=columns,
            **tile,
        )
