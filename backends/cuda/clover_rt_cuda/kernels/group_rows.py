"""group_rows: every pair finds its own place, 32 pairs a program.

The place of a pair is the number of pairs in front of it: those of lower experts, and earlier ones
of its own. Pairs in no part come last, in order. Other programs count the pairs up to each expert.
All pairs are compared with all: 16 384 pairs are 268 million comparisons, and no sum is carried
from one program to the next.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cuda.kernel import TritonKernel, block, cdiv, table_of, views
from clover_rt_cuda.kernels.tools import ROWS
from clover_rt_cuda.launch import CudaStep


@triton.jit
def part_of(ids, pair, ok, E):
    """Return the experts of pairs; E for one that is out of range."""
    expert = tl.load(ids + pair, mask=ok, other=-1)
    return tl.where((expert >= 0) & (expert < E), expert, E)


@triton.jit
def place_pairs(ids, order, count, E, first, BP: tl.constexpr, BQ: tl.constexpr):
    """Write pairs first .. first + BP - 1 to where they belong in `order`."""
    pair = first + tl.arange(0, BP)
    ok = pair < count
    part = part_of(ids, pair, ok, E)
    place = tl.zeros((BP,), tl.int32)
    for q0 in range(0, count, BQ):
        q = q0 + tl.arange(0, BQ)
        other = part_of(ids, q, q < count, E)
        ahead = (other[None, :] < part[:, None]) | (
            (other[None, :] == part[:, None]) & (q[None, :] < pair[:, None])
        )
        place += tl.sum((ahead & (q < count)[None, :]).to(tl.int32), 1)
    tl.store(order + place, tl.where(part < E, pair, -1), mask=ok)


@triton.jit
def count_pairs(ids, offsets, count, E, first, BP: tl.constexpr, BQ: tl.constexpr):
    """Write offsets first .. first + BP - 1: the pairs of lower experts."""
    e = first + tl.arange(0, BP)
    total = tl.zeros((BP,), tl.int32)
    for q0 in range(0, count, BQ):
        q = q0 + tl.arange(0, BQ)
        other = part_of(ids, q, q < count, E)
        below = (other[None, :] < e[:, None]) & (other < E)[None, :] & (q < count)[None, :]
        total += tl.sum(below.to(tl.int32), 1)
    tl.store(offsets + e, total, mask=e <= E)


@triton.jit
def group_rows_kernel(
    table, ids, order, offsets, E, R, tiles, BP: tl.constexpr, BQ: tl.constexpr
):  # fmt: skip
    count = tl.load(table + ROWS) * R
    tile = tl.program_id(0)
    if tile < tiles:
        if tile * BP < count:
            place_pairs(ids, order, count, E, tile * BP, BP, BQ)
    else:
        count_pairs(ids, offsets, count, E, (tile - tiles) * BP, BP, BQ)


class GroupRows(TritonKernel):
    """Sort the pairs of a pass by expert."""

    def bind(
        self,
        sig: Signature,
        operands: Mapping[str, Tensor],
        prepared: Prepared,
        scratch: Tensor | None,
    ) -> Step:
        ids, order, offsets = views(operands, "ids", "order", "offsets")
        return group_step(self, sig, table_of(operands), ids, order, offsets)


def group_step(
    kernel: TritonKernel,
    sig: Signature,
    table: torch.Tensor,
    ids: torch.Tensor,
    order: torch.Tensor,
    offsets: torch.Tensor,
) -> CudaStep:
    """Return the step that sorts pairs by expert."""
    pairs, experts = sig["T"] * sig["R"], sig["E"]
    tiles = cdiv(pairs, 32)
    return kernel.launcher(
        sig,
        group_rows_kernel,
        (tiles + cdiv(experts + 1, 32),),
        table,
        ids,
        order,
        offsets,
        experts,
        sig["R"],
        tiles,
        **pair_tile(pairs),
    )


def pair_tile(pairs: int) -> dict[str, int]:
    """Return the pairs that are placed, and those that are compared, at a time."""
    return {"BP": 32, "BQ": block(pairs, 16, 128)}
