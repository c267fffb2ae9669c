"""rope: elementwise; a program holds a few rows by up to 256 columns of their heads."""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cuda.kernel import TritonKernel, Words, block, cdiv, table_of, views
from clover_rt_cuda.kernels.tools import ROWS, SEGMENT


@triton.jit
def position_of(table, segments, row_segment, row, ok):
    """The absolute position of rows [BT]."""
    entry = table + segments + tl.load(table + row_segment + row, mask=ok, other=0) * SEGMENT
    return tl.load(entry + 4, mask=ok, other=0) + row - tl.load(entry + 2, mask=ok, other=0)


@triton.jit
def rope_kernel(
    table, segments, row_segment, x, y, angles, N, K, half,
    BT: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    count = tl.load(table + ROWS)
    if tl.program_id(0) * BT >= count:
        return
    row = tl.program_id(0) * BT + tl.arange(0, BT)
    row_ok = row < count
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    column = n % K
    turns = (n < N) & (column < 2 * half)
    low = column < half
    position = position_of(table, segments, row_segment, row, row_ok)
    angle = (position.to(tl.int64) * half)[:, None] + (column % half)[None, :]
    mask = row_ok[:, None] & turns[None, :]
    cos = tl.load(angles + 2 * angle, mask=mask, other=0)
    sin = tl.load(angles + 2 * angle + 1, mask=mask, other=0)
    place = row.to(tl.int64)[:, None] * N + n[None, :]
    ok = row_ok[:, None] & (n < N)[None, :]
    value = tl.load(x + place, mask=ok, other=0)
    other = tl.load(x + place + tl.where(low, half, -half)[None, :], mask=mask, other=0)
    turned = value * cos + tl.where(low[None, :], -other, other) * sin
    tl.store(y + place, tl.where(turns[None, :], turned, value), mask=ok)


class Rope(TritonKernel):
    """Rotate the first columns of each head by the row's position."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        words, width = Words.of(sig.layout), sig["H"] * sig["K"]
        rows, columns = block(sig["T"], 1, 8), block(width, 16, 256)
        return self.launcher(
            sig,
            rope_kernel,
            (cdiv(sig["T"], rows), cdiv(width, columns)),
            table_of(operands),
            words.segments,
            words.row_segment,
            *views(operands, "x", "y", "angles"),
            width,
            sig["K"],
            sig["r"],
            BT=rows,
            BN=columns,
        )
