"""router_topk: a program ranks a few rows of up to 4096 experts, one choice after the other.

Logits are ranked as integers in the order of the numbers, with NaN below minus infinity and what
is not allowed below that, so that every choice is one maximum.
"""

from __future__ import annotations

from collections.abc import Mapping

import triton
import triton.language as tl

from clover_rt.backend import Prepared, Step, Tensor
from clover_rt.spec import Signature
from clover_rt_cuda.kernel import TritonKernel, Words, block, cdiv, table_of, view, views
from clover_rt_cuda.kernels.tools import ROWS

MOST = 4096
TILE = 2048

NOT_ALLOWED = tl.constexpr(-(2**31))
NAN = tl.constexpr(-(2**31) + 1)


@triton.jit
def rank_of(x):
    """Return int32 numbers in the order of float32 ones; -0 and 0 are one number."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(x == x, ordered, NAN)


@triton.jit
def best_of(rank, column):
    """Return the largest rank of each row, and the lowest column that has it."""
    best = tl.max(rank, 1)
    return best, tl.min(tl.where(rank == best[:, None], column[None, :], 2147483647), 1)


@triton.jit
def choose(
    x, rank, ids, weights, row, row_ok,
    R: tl.constexpr, BR: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Write the R best of logits x [BT, BE] by rank, for rows [BT]."""
    e = tl.arange(0, BE)
    slots = tl.arange(0, BR)
    chosen = tl.full((BT, BR), float("-inf"), tl.float32)
    taken = tl.zeros((BT, BR), tl.int32)
    for r in tl.static_range(R):
        best, expert = best_of(rank, e)
        found = best != NOT_ALLOWED
        tl.store(ids + row * R + r, tl.where(found, expert, -1), mask=row_ok)
        here = found[:, None] & (slots == r)[None, :]
        hit = e[None, :] == expert[:, None]
        value = tl.sum(tl.where(hit, x, 0.0), 1)
        chosen = tl.where(here, value[:, None], chosen)
        taken = tl.where(here, 1, taken)
        rank = tl.where(hit, NOT_ALLOWED, rank)
    nan = tl.max((chosen != chosen).to(tl.int32), 1) > 0
    top = tl.max(tl.where(chosen == chosen, chosen, float("-inf")), 1)
    some = (taken != 0) & (top > float("-inf"))[:, None]
    share = tl.where(some, tl.exp(chosen - top[:, None]), 0.0)
    share = tl.where(nan[:, None], tl.where(taken != 0, float("nan"), 0.0), share)
    total = tl.sum(share, 1)
    share = tl.where((total != 0)[:, None], share / total[:, None], 0.0)
    share = tl.where(taken != 0, share, 0.0)
    place = row[:, None] * R + slots[None, :]
    tl.store(weights + place, share, mask=row_ok[:, None] & (slots < R)[None, :])


@triton.jit
def router_topk_kernel(
    table, row_segment, logits, allowed, ids, weights, E,
    R: tl.constexpr, BR: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    count = tl.load(table + ROWS)
    if tl.program_id(0) * BT >= count:
        return
    row = tl.program_id(0) * BT + tl.arange(0, BT)
    row_ok = row < count
    e = tl.arange(0, BE)
    ok = row_ok[:, None] & (e < E)[None, :]
    x = tl.load(logits + row.to(tl.int64)[:, None] * E + e[None, :], mask=ok, other=0)
    rank = tl.where(ok, rank_of(x), NOT_ALLOWED)
    if allowed is not None:
        segment = tl.load(table + row_segment + row, mask=row_ok, other=0)
        may = tl.load(allowed + segment[:, None] * E + e[None, :], mask=ok, other=0)
        rank = tl.where(may != 0, rank, NOT_ALLOWED)
    choose(x, rank, ids, weights, row, row_ok, R, BR, BT, BE)


class RouterTopk(TritonKernel):
    """Choose the best allowed experts of each row."""

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
        rows = block(min(sig["T"], max(1, TILE // experts)), 1)
        return self.launcher(
            sig,
            router_topk_kernel,
            (cdiv(sig["T"], rows),),
            table_of(operands),
            Words.of(sig.layout).row_segment,
            view(operands["logits"]),
            view(operands["allowed"]) if sig.has("allowed") else None,
            *views(operands, "ids", "weights"),
            sig["E"],
            R=sig["R"],
            BR=block(sig["R"], 1),
            BT=rows,
            BE=experts,
        )
